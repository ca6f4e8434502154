"""Rows of a `Table` as a target: checked once, then kept decoded where every further pass reads them cheaply."""

from __future__ import annotations

import errno
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import IO, Any, TypeVar

import numpy as np

from reprior._check import fail, row_fault
from reprior._types import Matrix
from reprior.io.table import Choice, Part, Table, columns_hint, left_aside
from reprior.rows.blocks import add_up, as_stored, block_rows

S = TypeVar("S")


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
        if self.n is None:
            self._forget()  # what a pass that failed has kept
        blocks = self._decoded() if self.kept is None else self._mapped(self.kept)
        try:
            return add_up(self._watched(blocks, fn))
        finally:
            if self.n is None:
                self._forget()

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

    def _watched(self, blocks: Iterator[Matrix], fn: Callable[[Matrix], S]) -> Iterator[S]:
        for block in blocks:
            yield fn(block)
            if self.watch:
                self.watch(len(block))

    def _decoded(self) -> Iterator[Matrix]:
        """Yield the rows as the files have them, changed; those of the first pass are checked, and kept if possible."""
        first_pass, step, n = self.n is None, block_rows(self.n_classes), 0
        if first_pass and (self.change is not None or not all(part.mapped for part in self.table.parts)):
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
        """Return whether rows could be kept: not where the disk is full, nor where parts have several types."""
        if self.dtype not in (None, block.dtype):
            return False
        self.dtype = block.dtype
        try:
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
        remedy = left_aside(fault, part.n_classes, part.unused) or fault.remedy + columns_hint(fault.rule, part, choice)
        fail(choice.caller, part.name, fault.rule, fault.value, place=place, remedy=remedy)
