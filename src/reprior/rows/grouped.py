"""Samples in groups, and the pass over them that counts classes per group."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reprior._check import fail
from reprior._kernels import loops, reference
from reprior._kernels.reference import width
from reprior._types import Matrix, Vector
from reprior.rows.blocks import ArrayBlocks, Blocks, map_numbered
from reprior.rows.keys import Codes
from reprior.rows.labelled import LabelledBlocks, SomeBlocks

Index = NDArray[np.int64]


class GroupCounts(NamedTuple):
    """Per group: Σ p and Σ p² (G, K), p the corrected probabilities, and Σ log r (G,)."""

    observed: Matrix
    squares: Matrix
    log_ratio: Vector


class Grouped(Protocol):
    """Samples in groups, here or on a cluster; `sizes` (G,) count them."""

    @property
    def sizes(self) -> Index: ...

    def map_groups(self, fn: Callable[[GroupedRows], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return the arrays that `fn` returns, each with one row per group."""
        ...

    def of_group(self, g: int) -> Blocks:
        """Return the samples of one group."""
        ...


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Samples that this process reads, with the number of each one's group, `codes` (n,); `sizes` (G,) count them."""

    target: Blocks
    codes: Codes
    sizes: Index

    @classmethod
    def of(cls, target: Blocks, codes: Codes, n_groups: int) -> GroupedRows:
        """Return samples with the number of each one's group."""
        return cls(target, codes, np.bincount(codes, minlength=n_groups).astype(np.int64))

    def map_groups(self, fn: Callable[[GroupedRows], tuple[Any, ...]]) -> tuple[Any, ...]:
        return fn(self)

    def counts(self, weights: Vector, ratios: Matrix | None = None) -> GroupCounts:
        """Return class counts under the class weights `weights` (K,), times `ratios` (G, K) if given, in one pass."""
        k = len(weights)
        ratios = np.ones((len(self.sizes), k)) if ratios is None else ratios
        padded_weights, wide = np.zeros(width(k)), np.zeros((len(self.sizes), width(k)))
        padded_weights[:k], wide[:, :k] = weights, ratios
        sums, logs = np.zeros((len(self.sizes), 2, width(k))), np.zeros(len(self.sizes))
        rows_read, codes = 0, self.codes  # alone: `of_block` may be sent to where the rows are

        def of_block(first: int, block: Matrix) -> int:
            nonlocal rows_read
            rows_read += len(block)
            slots = codes[first : first + len(block)].astype(np.int64)
            if loops.group_counts(block, padded_weights, slots, wide, sums, logs) == reference.REFUSED:
                reference.group_counts(block, padded_weights, slots, wide, sums, logs)
            return 0

        map_numbered(self.target, of_block)
        if rows_read != len(codes):  # blocks that other processes read: nothing of them is here
            fail("groups", "proba", f"be {len(codes)} rows that this process reads in order", f"{rows_read} such rows",
                 remedy="On Spark call `reprior.adapters.spark.groups`")  # fmt: skip
        return GroupCounts(ratios * sums[:, 0, :k], ratios**2 * sums[:, 1, :k], logs)

    def of_group(self, g: int) -> Blocks:
        """Return the samples of one group."""
        return self._some(np.flatnonzero(self.codes == g))

    def each(self) -> Iterator[Blocks]:
        """Yield the samples of each group."""
        yield from map(self._some, np.split(np.argsort(self.codes, kind="stable"), np.cumsum(self.sizes)[:-1]))

    def _some(self, here: Index) -> Blocks:
        """Return the samples of these numbers (m,), with their labels if they have any."""
        target = self.target
        raw = target.raw if isinstance(target, LabelledBlocks) else target
        if isinstance(raw, ArrayBlocks):
            rows: Blocks = ArrayBlocks(raw.array[here])
        else:
            rows = SomeBlocks(raw, np.isin(np.arange(len(self.codes)), here))
        if isinstance(target, LabelledBlocks) and (target.labels[here] >= 0).any():
            return LabelledBlocks(rows, target.labels[here], None if target.weights is None else target.weights[here])
        return rows
