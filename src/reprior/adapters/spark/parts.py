"""What a worker does: read its pieces of the files, check and calibrate them once, and keep them for the next pass.

Kept rows lie in Spark's own local folder of the executor, which Spark deletes at the end: all Python workers of the
executor share them, and one that dies takes nothing with it. Whoever does not find a piece reads it again.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from hashlib import blake2b
from itertools import chain, starmap
from pathlib import Path
from typing import IO, Any, NamedTuple, NoReturn, TypeVar

import numpy as np

from reprior._check import InputError, fail
from reprior._labels import is_missing
from reprior._types import Matrix
from reprior.io.files import check_block, open_part, prepared
from reprior.io.npy import write_head
from reprior.io.table import Choice, Opener, Table, readable
from reprior.rows.blocks import ArrayBlocks, add_up, numbered

S = TypeVar("S")
PIECE_NUMBERS = 1 << 24  # decoded at once by one worker: 64 MB of float32
KEPT = "reprior-kept"


class File(NamedTuple):
    """A part of the data as it was when it was first seen: its address, what to call it, its size and its time."""

    path: str
    name: str
    size: int
    stamp: int


class Survey(NamedTuple):
    """What a worker reads from a file at first: its rows in each row group (one if it has none), and its classes."""

    file: File
    rows: tuple[int, ...]
    n_classes: int = 0
    classes: tuple[str, ...] | None = None
    grouped: bool = False


class Piece(NamedTuple):
    """Rows that are read at once: some row groups of a file, or all of it."""

    file: File
    groups: tuple[int, int] | None
    rows: int
    start: int  # number of the first row in its file
    first: int  # and among all rows


@dataclass(frozen=True, slots=True)
class Reader:
    """How rows are read: which columns, in which order, changed how."""

    choice: Choice
    order: tuple[int, ...] | None = None
    change: Callable[[Matrix], Matrix] | None = None
    keep: int | None = None  # bytes that the kept rows of an executor may have; None: half of what is free
    mark: str = ""  # distinguishes one reader from another

    def rows(self, piece: Piece) -> Iterator[Matrix]:
        """Yield the rows of a piece in blocks, checked and changed."""
        from reprior.io.arrow import parquet_part

        source, at = (piece.file.name, opener(piece.file.path), self.choice), 0
        part = open_part(*source) if piece.groups is None else parquet_part(*source, range(*piece.groups))
        part = prepared(Table((part,), self.choice), self.order).parts[0]
        with readable(piece.file.name, self.choice.caller):
            for chunk in part.read():
                for block in ArrayBlocks(chunk.proba).stored():
                    check_block(part, self.choice, piece.start, piece.first, at, block)
                    at += len(block)
                    yield block if self.change is None else self.change(np.asarray(block, np.float64))
        if at != piece.rows:
            changed(piece.file, self.choice.caller, f"{at} rows in place of {piece.rows}")


def opener(path: str) -> Opener:
    """Return what opens a file here or, by its address, in another file system that pyarrow knows."""
    system, inside = file_system(path)
    if system.type_name == "local":
        return lambda: open(inside, "rb")
    return lambda: system.open_input_file(inside)


def file_system(path: str, caller: str = "SparkBlocks") -> tuple[Any, str]:
    """Return pyarrow's file system and the path inside it."""
    from pyarrow import fs, lib

    if ":/" in path:
        try:
            return fs.FileSystem.from_uri(path)  # type: ignore[no-any-return]
        except lib.ArrowException as error:
            fail(caller, path, "be an address that pyarrow can read", repr(str(error)[:100]),
                 remedy="Give `spark.read.parquet(path)`, a DataFrame, instead")  # fmt: skip
    return fs.LocalFileSystem(), os.path.abspath(path)


def changed(file: File, caller: str, how: str) -> NoReturn:
    """Refuse a part that is not the one it was at the start: passes over different rows have no common answer."""
    fail(caller, file.name, "not change while it is read", how,
         remedy="Start again, and do not replace files meanwhile")  # fmt: skip


def check_fresh(file: File, caller: str) -> None:
    """Refuse a part that was replaced or deleted."""
    system, inside = file_system(file.path)
    now = system.get_file_info(inside)
    if not now.is_file:
        changed(file, caller, "no file")
    if (now.size, now.mtime_ns) != (file.size, file.stamp):
        changed(file, caller, "another size or time of change")


def answered(fn: Callable[..., S]) -> Callable[..., S | InputError]:
    """Return `fn` with the sentence about bad input as its answer: Spark would try a failure three times more."""

    @wraps(fn)
    def answer(*args: Any) -> S | InputError:
        try:
            return fn(*args)
        except InputError as error:
            return error
        except (FileNotFoundError, PermissionError) as error:  # between the look at it and the reading
            return InputError(f"{error.filename}: {error.strerror}.")

    return answer


@answered
def survey(file: File, choice: Choice) -> Survey:
    """Return what is in a file: of Parquet from its footer alone, of other formats by reading it."""
    with readable(file.name, choice.caller):
        if not file.size:
            return Survey(file, ())
        with opener(file.path)() as data:
            parquet = data.read(4) == b"PAR1"
            if parquet:
                import pyarrow.parquet as pq

                from reprior.io.arrow import row_groups

                data.seek(0)
                sizes = row_groups(pq.ParquetFile(data).metadata)
                if not sum(sizes):  # Spark writes such parts
                    return Survey(file, ())
        part = open_part(file.name, opener(file.path), choice)
        if not parquet:
            sizes = [sum(len(chunk.proba) for chunk in part.read()) if part.rows is None else part.rows]
        return Survey(file, tuple(sizes), part.n_classes, part.classes, parquet)


@answered
def some_labels(file: File, choice: Choice) -> tuple[list[int], list[Any]]:
    """Return the numbers of the rows of a file that have a label, and their labels."""
    check_fresh(file, choice.caller)
    with readable(file.name, choice.caller):
        part = open_part(file.name, opener(file.path), choice)
        values = [value for some in part.column(choice.label or "", choice) for value in some]
    rows = [i for i, value in enumerate(values) if not is_missing(value)]
    return rows, [values[i] for i in rows]


def pieces_of(surveys: Sequence[Survey]) -> list[Piece]:
    """Return the pieces of all files in their order: files, or runs of their row groups that are not too large."""
    pieces: list[Piece] = []
    first = 0
    for about in surveys:
        start, low = 0, 0
        sizes = about.rows
        for high in range(1, len(sizes) + 1):
            rows = sum(sizes[low:high])
            if high == len(sizes) or (rows + sizes[high]) * about.n_classes > PIECE_NUMBERS:
                if rows:
                    groups = (low, high) if about.grouped else None
                    pieces.append(Piece(about.file, groups, rows, start, first))
                start, first, low = start + rows, first + rows, high
    return pieces


@answered
def total(pieces: Sequence[Piece], reader: Reader, fn: Callable[[int, Matrix], S], errors: Any) -> S:
    """Return the sum of `fn(number of its first row, block)` over pieces."""
    with np.errstate(**errors):
        every = (numbered(blocks_of(piece, reader), piece.first) for piece in pieces)
        return add_up(starmap(fn, chain.from_iterable(every)))


def blocks_of(piece: Piece, reader: Reader) -> Iterator[Matrix]:
    """Yield the blocks of a piece: kept ones if its file is still the same, else read, and kept if there is room."""
    check_fresh(piece.file, reader.choice.caller)
    about = blake2b(repr((piece.file, piece.groups)).encode(), digest_size=16).hexdigest()
    folders = (os.environ.get("SPARK_LOCAL_DIRS") or tempfile.gettempdir()).split(",")
    place = Path(folders[int(about[:8], 16) % len(folders)]) / KEPT / f"{reader.mark}-{about}.npy"
    rows: Any = ()
    with suppress(OSError, ValueError):  # none is there, or it is damaged
        rows = np.asarray(np.load(place, mmap_mode="r"))
        os.utime(place)  # what was used last is dropped last
    if len(rows) == piece.rows:
        yield from ArrayBlocks(rows).stored()
        return
    keeping = Keeping(place, piece, reader)
    try:
        for block in reader.rows(piece):
            keeping.add(block)
            yield block
        check_fresh(piece.file, reader.choice.caller)  # else it was replaced while it was read
        keeping.close(whole=True)
    finally:
        keeping.close()


class Keeping:
    """Write the blocks of a piece beside reading them, whole or not at all; where there is no room, do nothing."""

    def __init__(self, place: Path, piece: Piece, reader: Reader) -> None:
        self.place, self.piece, self.reader = place, piece, reader
        self.file: IO[bytes] | None = None
        self.partial, self.begun = place.with_suffix(f".{os.getpid()}"), False

    def add(self, block: Matrix) -> None:
        try:
            if not self.begun:
                self.begun, shape = True, (self.piece.rows, block.shape[1])
                self.place.parent.mkdir(parents=True, exist_ok=True)
                if make_room(self.place.parent, shape[0] * block[:1].nbytes, self.reader):
                    self.file = self.partial.open("wb")
                    write_head(self.file, shape, block.dtype)
            if self.file is not None:
                self.file.write(np.ascontiguousarray(block).data)
        except OSError:  # the disk is full: every pass reads this piece again
            self.close()

    def close(self, *, whole: bool = False) -> None:
        if self.file is not None:
            with suppress(OSError):
                self.file.close()
                if whole:
                    self.partial.replace(self.place)
            self.partial.unlink(missing_ok=True)
            self.file = None


def make_room(folder: Path, needed: int, reader: Reader) -> bool:
    """Return whether there is room for so many bytes, after dropping what was kept for other data and used longest ago.

    Nothing kept for the same data is dropped: passes come round in the same order, and would find nothing again.
    """
    files = []
    for path in folder.iterdir():
        with suppress(OSError):  # another worker has dropped it
            about = path.stat()
            files.append((about.st_mtime_ns, about.st_size, path))
    used = sum(size for _, size, _ in files)
    system = os.statvfs(folder)
    limit = (used + system.f_bavail * system.f_frsize) // 2 if reader.keep is None else reader.keep
    for _, size, path in sorted(files):
        if used + needed <= limit:
            break
        if not path.name.startswith(reader.mark):
            path.unlink(missing_ok=True)
            used -= size
    return used + needed <= limit
