"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


def hidden(path: Path, suffix: str) -> Path:
    """Return the name of a helper file beside `path`."""
    return path.with_name(f".{path.name}.{suffix}")


def keep_apart(caller: str, output: Path | None, *inputs: Path | None) -> None:
    """Refuse an output that would overwrite an input, or lie inside an input folder."""
    from reprior._check import fail

    for path in inputs:
        if output is None or path is None or "-" in (str(output), str(path)):
            continue
        if output.resolve() == path.resolve() or (path.is_dir() and path.resolve() in output.resolve().parents):
            fail(caller, "--output", f"be apart from the input {path}", output, remedy="Name another file or folder")


@contextmanager
def whole_file(path: Path, keep: int = 0) -> Iterator[IO[bytes]]:
    """Yield a file that takes the place of `path` when the block ends well, and vanishes when it does not.

    `keep` bytes that an earlier run left in it, when it was killed, stay, and writing goes on behind them.
    Errors that say nothing of where they happened, as pyarrow's on a full disk, get the name of the file.
    """
    partial = hidden(path, "partial")
    with naming(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with partial.open("r+b" if keep else "wb") as file:
                file.truncate(keep)
                file.seek(keep)
                yield file
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        except BaseException:
            with suppress(OSError):
                partial.unlink()
            raise


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Name `path` in system errors that name no file, or only the hidden one."""
    try:
        yield
    except OSError as error:
        if error.errno and (error.filename is None or str(hidden(path, "partial")) == str(error.filename)):
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error
        raise
