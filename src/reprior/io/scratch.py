"""Rows of a `Table` as a target: checked once, then kept decoded where every further pass reads them cheaply."""

from __future__ import annotations

import errno
import os
import tempfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import starmap
from threading import Lock
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np

from reprior._check import fail, row_fault
from reprior._types import Matrix
from reprior.io.columns import left_aside, taken
from reprior.io.table import Choice, Part, Table
from reprior.rows.blocks import ArrayBlocks, add_up, as_stored, block_rows, numbered

S = TypeVar("S")
T = TypeVar("T")
SEGMENT = 32  # blocks summed by one thread at a time; fixed, so that the number of threads never changes the answer


class Segment(NamedTuple):
    """`rows` rows from the row with the number `first` on, and what yields them in blocks."""

    first: int
    rows: int
    blocks: Callable[[], Iterator[Matrix]]


@dataclass(slots=True)
class FileBlocks:
    """The rows of files in blocks; the first pass checks them and keeps what it decoded, after `change`.

    Decoded rows go to a nameless temporary file, which no crash can leave behind; if the disk is full, each pass
    decodes again. `fn` runs in `threads` threads while the next rows are read. `watch(rows)` is called as rows are
    done, `note_gap(gap)` by solvers that know it.
    """

    table: Table
    threads: int = min(4, os.cpu_count() or 1)
    watch: Callable[[int], None] | None = None
    note_gap: Callable[[float], None] | None = None
    change: Callable[[Matrix], Matrix] | None = None
    changed: FileBlocks | None = field(default=None, repr=False)
    kept: IO[bytes] | None = field(default=None, repr=False)
    turn: Any = field(default_factory=Lock, repr=False)
    dtype: Any = None
    n: int | None = None
    read: int = 0

    @property
    def n_classes(self) -> int:
        return self.table.n_classes

    def map_sum(self, fn: Callable[[Matrix], S]) -> S:
        return self.map_numbered(lambda _, block: fn(block))

    def map_numbered(self, fn: Callable[[int, Matrix], S]) -> S:
        """Return the sum of `fn(number of its first row, block)`; `fn` gets blocks as threads come to them."""
        if self.n is not None:
            return add_up(self._sums(self._decoded() if self.kept is None else self._kept(self.kept), fn))
        self._forget()
        try:
            total = add_up(self._sums(self._decoded(), fn))
            self.n = self.read  # not before every row has been looked at
        finally:
            if self.n is None:
                self._forget()
        return total

    def having(self, change: Callable[[Matrix], Matrix]) -> FileBlocks:
        """Return the rows as `change` makes them, of float64 and each by itself; it is done once, in the first pass."""
        if self.changed is None or self.changed.change is not change:
            self.changed = FileBlocks(self.table, self.threads, change=change)
        self.changed.watch = self.watch
        return self.changed

    def _forget(self) -> None:
        """Close the scratch file, so that later passes decode the files again."""
        if self.kept is not None:
            self.kept.close()
        self.kept = self.dtype = None

    __del__ = _forget

    def _sums(self, segments: Iterator[Segment], fn: Callable[[int, Matrix], S]) -> Iterator[S]:
        mode = np.geterr()  # threads do not inherit it

        def total(segment: Segment) -> tuple[S, int]:
            with np.errstate(**mode):
                return add_up(starmap(fn, numbered(segment.blocks(), segment.first))), segment.rows

        for value, n in ahead(total, segments, self.threads):
            if self.watch:
                self.watch(n)
            yield value

    def _decoded(self) -> Iterator[Segment]:
        """Yield the rows as the files have them; those of the first pass are checked, and kept if possible."""
        first_pass = self.n is None
        if first_pass and (self.change is not None or not all(part.mapped for part in self.table.parts)):
            self.kept = tempfile.TemporaryFile()  # noqa: SIM115
        total = 0
        for part, first, chunk in self.table.chunks():
            for start, rows, blocks in pieces(chunk.proba):
                check = partial(check_block, part, self.table.choice, first + start, total + start)
                yield Segment(
                    total + start, rows, partial(self._blocks, blocks, check if first_pass else None, total + start)
                )
            total += len(chunk.proba)
        if not total:
            fail(self.table.choice.caller, self.table.parts[0].name, "have at least one row", "none")
        self.read = total

    def _blocks(
        self, blocks: Callable[[], Iterator[Matrix]], check: Callable[[int, Matrix], None] | None, first: int
    ) -> Iterator[Matrix]:
        """Yield blocks as `fn` takes them: changed, and in the first pass checked and written to the scratch file."""
        for at, block in numbered(blocks()):
            if check is not None:
                check(at, block)
            rows = block if self.change is None else self.change(np.asarray(block, np.float64))
            if check is not None:
                with self.turn:  # threads come in any order
                    if self.kept is not None and not self._keep(self.kept, first + at, rows):
                        self._forget()
            yield rows

    def _kept(self, file: IO[bytes]) -> Iterator[Segment]:
        """Yield the rows of the scratch file, mapped a segment at a time: no copy, and little address space."""
        assert self.n is not None
        size, k, dtype = SEGMENT * block_rows(self.n_classes), self.n_classes, np.dtype(self.dtype)

        def blocks(first: int, rows: int) -> Iterator[Matrix]:
            some = np.memmap(file, dtype, "r", first * k * dtype.itemsize, (rows, k))
            return ArrayBlocks(np.asarray(some)).stored()

        for first in range(0, self.n, size):
            rows = min(size, self.n - first)
            yield Segment(first, rows, partial(blocks, first, rows))

    def _keep(self, file: IO[bytes], first: int, block: Matrix) -> bool:
        """Return whether rows could be kept: not where the disk is full, nor where parts have several types."""
        if self.dtype not in (None, block.dtype):
            return False
        self.dtype = block.dtype
        try:
            file.seek(first * block.shape[1] * block.itemsize)
            file.write(np.ascontiguousarray(block).data)
            file.flush()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
                raise
            return False
        return True


def check_block(part: Part, choice: Choice, first: int, total: int, at: int, block: Matrix) -> None:
    """Refuse rows that are no probabilities; they begin `at` rows after row `first` of a file, row `total` of all."""
    if fault := row_fault(block):
        row = at + fault.row
        place = f"row {total + row} of all, row {first + row} of this file (the first is row 0)"
        remedy = left_aside(fault, part.n_classes, part.unused) or fault.shell + taken(fault.rule, part, choice)
        fail(choice.caller, part.name, fault.rule, fault.value, place=place, remedy=remedy)


def pieces(rows: Matrix) -> Iterator[Segment]:
    """Yield rows a segment at a time; those of a file are read a block at a time, and stay in cache."""
    step = block_rows(rows.shape[1])
    size = SEGMENT * step

    def blocks(start: int, stop: int) -> Iterator[Matrix]:
        return (as_stored(rows[first : min(first + step, stop)]) for first in range(start, stop, step))

    for start in range(0, len(rows), size):
        stop = min(start + size, len(rows))
        yield Segment(start, stop - start, partial(blocks, start, stop))



def ahead(fn: Callable[[S], T], items: Iterator[S], threads: int) -> Iterator[T]:
    """Yield fn(item) in the order of items, computed by threads, with few items in flight."""
    if threads == 1:
        yield from map(fn, items)
        return
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[T]] = deque()
        try:
            for item in items:
                waiting.append(pool.submit(fn, item))
                if len(waiting) > threads:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
