"""Outputs that harm nothing: apart from all inputs, and one run at a time."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from reprior._check import fail
from reprior.state import hidden, lock, naming


def keep_apart(caller: str, output: Path | None, *inputs: Path | None) -> None:
    """Refuse an output that would overwrite an input, under whatever name, or lie inside an input folder."""
    for path in inputs:
        if output is None or path is None or "-" in (str(output), str(path)):
            continue
        inside = path.is_dir() and path.resolve() in output.resolve().parents
        same = output.resolve() == path.resolve()  # links may lead to it, too; no file takes the place of a device
        if same or inside or ((output.is_file() or output.is_dir()) and path.exists() and output.samefile(path)):
            fail(caller, "--output", f"be apart from the input {path}", output, remedy="Name another file or folder")


@contextmanager
def alone(caller: str, path: Path, option: str) -> Iterator[None]:
    """Let one run at a time have `path`; the second is refused. A run that was killed holds nothing."""
    name = hidden(path, "lock")
    made = [folder for folder in name.parents if not folder.exists()]
    with naming(path):
        name.parent.mkdir(parents=True, exist_ok=True)
        handle = -1
        while handle < 0:
            handle = os.open(name, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            if not lock(handle):
                os.close(handle)
                fail(caller, option, "belong to one run at a time", f"{path}, which another run has",
                     remedy="Wait for its end, or name another file")  # fmt: skip
            if not os.fstat(handle).st_nlink:  # its holder has just ended and removed it: this lock is no one's
                os.close(handle)
                handle = -1
    try:
        yield
    finally:
        with suppress(OSError):
            name.unlink()
        os.close(handle)
        for folder in made:
            with suppress(OSError):  # unless something was written there
                folder.rmdir()
