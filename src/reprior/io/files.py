"""Prediction files as rows to estimate from: NPY, NPZ, Parquet, Arrow IPC, CSV, NDJSON, a folder of parts, a pipe.

A `Table` is one or several parts, each of which can be read again and again as chunks of rows. `FileBlocks` makes a
target of it: rows are checked in the first pass and kept decoded in a scratch file, so that later passes only read.
`ordered` is a table whose rows are made probabilities, and whose columns are put in order.
"""

from __future__ import annotations

import atexit
import csv
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

import numpy as np

from reprior._check import check_text, fail, row_fault
from reprior._types import Matrix

from reprior.io.table import (  # isort: skip
    Choice, Chunk, Correct, Corrected, Opener, Part, Table, user_names, check_width, classes_apart, columns_hint,
    left_aside, places_of, readable,
)  # fmt: skip
from reprior.rows.blocks import add_up, as_stored, block_rows
from reprior.state import MAGIC

S = TypeVar("S")
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
    if place.is_dir():
        files = sorted(f for f in place.rglob("*") if f.suffix in SUFFIXES and f.is_file() and f.name[0] not in "._")
        if not files:
            fail(choice.caller, str(place), f"hold files that end in {', '.join(SUFFIXES)}", "none")
        parts = [open_part(str(f), opener_of(f), choice) for f in files]
    else:
        parts = [open_part("standard input" if str(path) == "-" else str(place), opener_of(place), choice)]
    for part in parts[1:]:
        if part.n_classes != parts[0].n_classes or part.classes != parts[0].classes:
            fail(choice.caller, part.name, f"have the classes of {parts[0].name}",
                 classes_apart(part.classes, part.n_classes, parts[0].classes))  # fmt: skip
    names = user_names(parts[0].classes, parts[0].n_classes, choice, parts[0].name)
    return Table(tuple(replace(part, classes=names) for part in parts), choice)


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

    def reopen() -> IO[bytes]:
        SPOOLED[key].seek(0)
        return open(SPOOLED[key].fileno(), "rb", closefd=False)

    return reopen


def read_whole(path: Path) -> bytes:
    """Return the bytes of a file, or of a pipe, as often as needed."""
    with opener_of(path)() as file:
        return file.read()


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


DECIMAL_NUMBER = re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?|[+-]?\d+[eE]-\d+")
QUOTED = re.compile(r'"[^"]*"')
CONTROL = re.compile(rb"(?!\xff\xfe|\xfe\xff).*[\x01-\x08\x0e-\x19\x1b-\x1f]", re.S)  # no text, unless in UTF-16


def prepare(rows: Matrix, values: str | None) -> Matrix:
    """Return rows (n, K) as probabilities of at least float32; a row that cannot be one stays bad, for checks to find.

    >>> prepare(np.array([[3.0, 1.0], [0.0, 0.0]]), "normalize")
    array([[0.75, 0.25],
           [0.  , 0.  ]])
    """
    if values is None:
        return rows
    wide = rows.astype(np.result_type(rows.dtype, np.float32))
    with np.errstate(invalid="ignore", over="ignore"):
        if values == "logits":
            wide -= wide.max(axis=1, keepdims=True)
            np.exp(wide, out=wide)
        sums = wide.sum(axis=1, keepdims=True)
        wide /= np.where(sums > 0, sums, 1.0)
    return wide


def refuse_probabilities(rows: Matrix, values: str | None, caller: str, name: str) -> None:
    """Refuse as logits what are probabilities already: their softmax would look fine and mean nothing."""
    if values == "logits" and len(rows) and row_fault(np.asarray(rows, np.float64)) is None:
        fail(caller, name, "hold logits", "rows that sum to 1, as probabilities do", remedy="Leave out `--logits`")


def read_text(line: bytes, caller: str, name: str) -> str:
    """Return the first line of a file as text, or say what the file is instead."""
    if line.startswith(MAGIC):
        fail(caller, name, "hold a table", "a file that reprior has saved",
             remedy="Give the table itself here, and that file as `--source`")  # fmt: skip
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        return text
    if CONTROL.match(line):
        fail(caller, name, "be a file of a kind that reprior reads", "binary data",
             remedy="Give CSV, NDJSON, Parquet, Arrow, NPY or NPZ")  # fmt: skip
    fail(caller, name, "be text in UTF-8", f"another encoding: {line[:40]!r}", remedy="Save it as UTF-8")


def check_commas(text: str, caller: str, name: str) -> None:
    """Refuse a line of column names that have something else than commas between them.

    A name may hold a comma, or a semicolon, and mostly has a space behind it then; between columns there is none.
    """
    bare = QUOTED.sub("x", text)
    commas, semicolons, tabs = (len(re.findall(rf"{mark}\S", bare)) for mark in (",", ";", "\t"))
    if commas < max(semicolons, tabs) or ("," not in bare and (";" in bare or "\t" in bare)):
        fail(caller, name, "have its columns separated by commas", repr(text.strip()[:60]),
             remedy="Save it with commas, and points in numbers")  # fmt: skip


def check_header(line: bytes, caller: str, name: str, classes: Sequence[str] = ()) -> None:
    """Refuse the first line of a CSV file that is in another encoding, has other separators than commas, or is a row.

    Names that look like probabilities are a row, unless they are `classes`.
    """
    text = read_text(line, caller, name)
    try:
        names = [cell.strip() for cell in next(csv.reader([text.strip()], strict=True), [])]
    except csv.Error as error:  # as for a file that has only \r at the ends of its lines, or quotes before semicolons
        check_commas(text, caller, name)
        fail(caller, name, "begin with a line of column names", repr(text.strip()[:60]),
             remedy=f"Save it as CSV with an end after each line ({error})")  # fmt: skip
    check_width(len(names), caller, name)
    if classes and {*classes} <= {*names}:
        return
    check_commas(text, caller, name)
    if sum(map(bool, map(DECIMAL_NUMBER.fullmatch, names))) > 1:
        fail(caller, name, "begin with a line of column names", repr(text.strip()[:60]),
             remedy="Put the names of the classes before the first row")  # fmt: skip


def prepared(table: Table, order: Sequence[int] | None = None) -> Table:
    """Return a table whose rows are read as `prepare` makes them, with their columns in this order.

    Written rows keep the type of the file, and the order of its columns.
    """
    values, caller, classes = table.choice.values, table.choice.caller, table.classes
    if values is None and order is None:
        return table
    back = None if order is None else np.argsort(order)
    if order is not None and classes is not None:
        classes = tuple(classes[j] for j in order)

    def view(rows: Matrix) -> Matrix:
        return prepare(rows if order is None else np.ascontiguousarray(rows[:, order]), values)

    def of(part: Part) -> Part:
        def read() -> Iterator[Chunk]:
            for number, chunk in enumerate(part.read()):
                if number == 0:
                    refuse_probabilities(chunk.proba[:1000], values, caller, part.name)
                yield chunk._replace(proba=view(chunk.proba))

        def rewrite(file: IO[bytes], fn: Correct, names: Sequence[str] | None) -> None:
            def fixed(rows: Matrix) -> Corrected:
                out, inside = fn(view(rows))
                if back is not None:
                    out, inside = out[:, back], None if inside is None else inside[:, back]
                return Corrected(out.astype(rows.dtype, copy=False), inside)

            part.rewrite(file, fixed, names if names is None or back is None else [names[j] for j in back])

        return replace(part, read=read, rewrite=rewrite, cheap=False, classes=classes)

    return replace(table, parts=tuple(map(of, table.parts)))


def ordered(table: Table, classes: tuple[str, ...] | None, n_classes: int) -> Table:
    """Return the table `prepared` with its columns in the order of `classes` (K,)."""
    part, caller = table.parts[0], table.choice.caller
    remedy = f"Choose the class columns with `{table.choice.option}`; say what they are called with `--classes FILE`"
    if part.n_classes != n_classes:
        fail(caller, part.name, f"have the {n_classes} classes of the source",
             classes_apart(part.classes, part.n_classes, classes), remedy=remedy)  # fmt: skip
    if classes is None or part.classes is None or part.classes == classes:
        return prepared(table)
    return prepared(table, places_of(classes, part.classes, caller, part.name, remedy))


@dataclass(slots=True)
class FileBlocks:
    """The rows of files in blocks; the first pass checks them and keeps what it decoded, after `change`.

    Decoded rows go to a nameless temporary file, which no crash can leave behind; if the disk is full, each pass
    decodes again. `watch(rows)` is called as rows are done.
    """

    table: Table
    watch: Callable[[int], None] | None = None
    change: Callable[[Matrix], Matrix] | None = None
    changed: FileBlocks | None = field(default=None, repr=False)
    kept: IO[bytes] | None = field(default=None, repr=False)
    dtype: Any = None  # of kept rows
    n: int | None = None  # known once every row has been looked at

    @property
    def n_classes(self) -> int:
        return self.table.n_classes

    def map_sum(self, fn: Callable[[Matrix], S]) -> S:
        def watched(block: Matrix) -> S:
            made = fn(block)
            if self.watch:
                self.watch(len(block))
            return made

        try:
            return add_up(map(watched, self._decoded() if self.kept is None else self._mapped(self.kept)))
        finally:
            if self.n is None:
                self._forget()  # what a pass that failed has kept

    def having(self, change: Callable[[Matrix], Matrix]) -> FileBlocks:
        """Return the rows as `change` makes them, of float64 and each by itself; it is done once, in the first pass."""
        if self.changed is None or self.changed.change is not change:
            self.changed = FileBlocks(self.table, change=change)
        self.changed.watch = self.watch
        return self.changed

    def _forget(self) -> None:
        """Close the scratch file, so that later passes decode the files again."""
        if self.kept is not None:
            self.kept.close()
        self.kept = self.dtype = None

    __del__ = _forget

    def _decoded(self) -> Iterator[Matrix]:
        """Yield the rows as the files have them, changed; those of the first pass are checked, and kept if possible."""
        first_pass, step, n = self.n is None, block_rows(self.n_classes), 0
        if first_pass and (self.change is not None or not all(part.cheap for part in self.table.parts)):
            self.kept = tempfile.TemporaryFile()  # noqa: SIM115
        for part, first, chunk in self.table.chunks():
            for at in range(0, len(chunk.proba), step):
                block = as_stored(chunk.proba[at : at + step])
                if first_pass:
                    check_block(part, self.table.choice, first, n, at, block)
                rows = block if self.change is None else self.change(np.asarray(block, np.float64))
                if first_pass and self.kept is not None and not self._keep(self.kept, rows):
                    self._forget()
                yield rows
            n += len(chunk.proba)
        if not n:
            fail(self.table.choice.caller, self.table.parts[0].name, "have at least one row", "none")
        self.n = n

    def _mapped(self, file: IO[bytes]) -> Iterator[Matrix]:
        """Yield the rows of the scratch file, mapped some blocks at a time: no copy, and little address space."""
        assert self.n is not None
        k, dtype, step = self.n_classes, np.dtype(self.dtype), block_rows(self.n_classes)
        for first in range(0, self.n, 32 * step):
            shape = (min(32 * step, self.n - first), k)
            rows = np.asarray(np.memmap(file, dtype, "r", first * k * dtype.itemsize, shape))
            yield from (rows[at : at + step] for at in range(0, len(rows), step))

    def _keep(self, file: IO[bytes], block: Matrix) -> bool:
        """Return whether rows could be kept: not if the disk is full, nor if parts have several types."""
        self.dtype = block.dtype if self.dtype is None else self.dtype
        with suppress(OSError):
            if block.dtype == self.dtype:
                file.write(np.ascontiguousarray(block).data)
                file.flush()
                return True
        return False


def check_block(part: Part, choice: Choice, first: int, total: int, at: int, block: Matrix) -> None:
    """Refuse rows that are no probabilities; they begin `at` rows after row `first` of a file, row `total` of all."""
    if fault := row_fault(block):
        row = at + fault.row
        place = f"row {total + row} of all, row {first + row} of this file (the first is row 0)"
        remedy = left_aside(fault, part.n_classes, part.unused) or fault.remedy + columns_hint(fault.rule, part, choice)
        fail(choice.caller, part.name, fault.rule, fault.value, place=place, remedy=remedy)
