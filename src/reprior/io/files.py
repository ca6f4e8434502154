"""Prediction files as rows to estimate from: NPY, NPZ, Parquet, Arrow IPC, CSV, NDJSON, a folder of parts, a pipe.

A `Table` is one or several parts, each of which can be read again and again as chunks of rows. `FileBlocks` makes a
target of it: rows are checked in the first pass and kept decoded in a scratch file, so that later passes only read.
"""

from __future__ import annotations

import atexit
import io
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import IO, NoReturn

from reprior._check import check_text, fail
from reprior.io.columns import called, classes_apart
from reprior.io.table import Choice, Opener, Part, Table, readable

SUFFIXES_OF = {
    "parquet": (".parquet",), "arrow": (".arrow", ".feather", ".ipc"), "npy": (".npy",), "npz": (".npz",),
    "csv": (".csv",), "ndjson": (".ndjson", ".jsonl", ".json"),
}  # fmt: skip
SUFFIXES = tuple(suffix for suffixes in SUFFIXES_OF.values() for suffix in suffixes)
FIRST_BYTES = {
    b"\x93NUMPY": "npy", b"PK\x03\x04": "npz", b"PAR1": "parquet", b"ARROW1": "arrow", b"\xff\xff\xff\xff": "arrow",
}  # fmt: skip
READERS = {  # kind: module and function, imported when they are needed
    "parquet": ("arrow", "parquet_part"), "arrow": ("arrow", "arrow_part"), "csv": ("arrow", "csv_part"),
    "npy": ("npy", "npy_part"), "npz": ("npy", "npz_part"), "ndjson": ("records", "ndjson_part"),
}  # fmt: skip
RECORD_BYTES = 1 << 24  # a line or record longer than this is none: it would hold a million probabilities


def open_table(path: str | Path, choice: Choice) -> Table:
    """Return the rows of a file, of a folder's parts in the order of their names, or of standard input (`-`)."""
    place = Path(path)
    if not place.is_dir():
        name = "standard input" if str(path) == "-" else str(place)
        return renamed(Table((open_part(name, opener_of(place), choice),), choice))
    files = sorted(f for f in place.rglob("*") if f.suffix in SUFFIXES and f.is_file() and f.name[0] not in "._")
    if not files:
        fail(choice.caller, str(place), f"hold files that end in {', '.join(SUFFIXES)}", "none")
    parts = tuple(open_part(str(f), lambda f=f: f.open("rb"), choice) for f in files)  # type: ignore[misc]
    for part in parts[1:]:
        if part.n_classes != parts[0].n_classes or part.classes != parts[0].classes:
            fail(choice.caller, part.name, f"have the classes of {parts[0].name}",
                 classes_apart(part.classes, part.n_classes, parts[0].classes))  # fmt: skip
    return renamed(Table(parts, choice))


def renamed(table: Table) -> Table:
    """Return the table with its class columns called as the user says."""
    part = table.parts[0]
    names = called(part.classes, part.n_classes, table.choice, part.name)
    return replace(table, parts=tuple(replace(part, classes=names) for part in table.parts))


SPOOLED: dict[tuple[object, ...], IO[bytes]] = {}  # a pipe yields its bytes once, and readers want them again
atexit.register(lambda: [file.close() for file in SPOOLED.values()])


def opener_of(path: Path) -> Opener:
    """Return what opens a file, as often as needed; what comes through a pipe (`-`, a FIFO) is copied once."""
    if str(path) != "-" and (path.is_file() or not path.exists()):
        return lambda: path.open("rb")
    about = None if str(path) == "-" else path.stat()
    key = (str(path), about.st_dev, about.st_ino) if about else ("-", sys.stdin.buffer)
    if key not in SPOOLED:
        file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # no crash can leave it behind
        with path.open("rb") if about else nullcontext(sys.stdin.buffer) as stream:
            shutil.copyfileobj(stream, file, 1 << 20)
        SPOOLED[key] = file
    return lambda: again(SPOOLED[key])


def whole(path: Path) -> bytes:
    """Return the bytes of a file, or of a pipe, as often as needed."""
    with opener_of(path)() as file:
        return file.read()


class again(io.BufferedReader):
    """The same open file from its start; closing this view leaves the file open for the next pass."""

    def __init__(self, file: IO[bytes]) -> None:
        file.seek(0)
        super().__init__(io.FileIO(file.fileno(), closefd=False))


def open_kind(opener: Opener) -> str:
    """Return the kind of a file by its first bytes, one of `SUFFIXES_OF`; "" for an empty file."""
    with opener() as file:
        head = file.read(4096)
    kind = next((kind for magic, kind in FIRST_BYTES.items() if head.startswith(magic)), "")
    head = head.removeprefix(b"\xef\xbb\xbf")  # a mark that some programs put before UTF-8
    return kind or ("ndjson" if head.lstrip()[:1] in (b"{", b"[") else "csv" if head else "")


def open_part(name: str, opener: Opener, choice: Choice) -> Part:
    """Return the reader that a file's first bytes, not its name, ask for."""
    with readable(name, choice.caller):
        kind = open_kind(opener)
        if not kind:
            fail(choice.caller, name, "have at least one row", "an empty file")
        module, function = READERS[kind]
        part: Part = getattr(import_module(f"reprior.io.{module}"), function)(name, opener, choice)
        check_text(part.classes or (), choice.caller, name)
        return replace(part, kind=kind)


def lines_of(file: IO[bytes], caller: str, name: str) -> Iterator[bytes]:
    """Yield the lines of a file that hold anything, none of them beyond measure."""
    while line := file.readline(RECORD_BYTES + 1):
        if len(line) > RECORD_BYTES:
            too_long(caller, name)
        if line.strip():
            yield line


def too_long(caller: str, name: str) -> NoReturn:
    """Refuse a line or record without an end."""
    fail(caller, name, f"have lines or records of at most {RECORD_BYTES >> 20} MiB", "a longer one",
         remedy="Write one row on each line")  # fmt: skip
