"""Target samples of which some have labels: a labelled sample has probability 1 for its class."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from reprior._check import as_array, fail, refuse_where
from reprior._labels import check_some_labels
from reprior._types import Labels, Matrix, Source, Vector
from reprior.rows.blocks import Blocks, View, map_numbered
from reprior.rows.passes import count_rows, e_step

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class LabelledBlocks(View):
    """Rows of which some have labels: a labelled row has probability 1 for its class."""

    raw: Blocks  # the predictions without labels
    labels: Labels  # (n,), −1 where unknown
    weights: Vector | None = None  # (n,), of labelled rows relative to rows that were chosen at random

    @property
    def n_labels(self) -> int:
        return int((self.labels >= 0).sum())

    def map_numbered(self, fn: Callable[[int, Matrix], S]) -> S:
        labels = self.labels  # alone: `of_block` may be sent to where the rows are

        def of_block(first: int, block: Matrix) -> S:
            y = labels[first : first + len(block)]
            labelled = np.flatnonzero(y >= 0)
            if len(labelled):
                block = np.array(block)
                block[labelled] = 0.0
                block[labelled, y[labelled]] = 1.0
            return fn(first, block)

        return map_numbered(self.raw, of_block)


@dataclass(frozen=True, slots=True)
class SomeBlocks(View):
    """Those rows of a target that are `kept` (n,), as blocks of their own."""

    raw: Blocks
    kept: NDArray[np.bool_]

    def map_numbered(self, fn: Callable[[int, Matrix], S]) -> S:
        kept, before = self.kept, np.concatenate([[0], np.cumsum(self.kept)])

        def of_block(first: int, block: Matrix) -> S:
            here = kept[first : first + len(block)]
            return fn(int(before[first]), block if here.all() else np.ascontiguousarray(block[here]))

        return map_numbered(self.raw, of_block)


def taken_rows(raw: Blocks, wanted: NDArray[np.bool_]) -> Matrix:
    """Return the rows that are `wanted` (n,), in their order, as float64."""

    def of_block(first: int, block: Matrix) -> tuple[tuple[int, Matrix], ...]:
        return ((first, np.array(block[wanted[first : first + len(block)]], np.float64)),)

    return np.concatenate([rows for _, rows in sorted(map_numbered(raw, of_block), key=lambda part: part[0])])


def labelled(target: Blocks, labels: Any, source: Source, caller: str, weights: Any = None) -> Blocks:
    """Return the target with the labels (n,) of some of its rows, checked; as it is if there are none."""
    if labels is None:
        if weights is not None:
            fail(caller, "label_weights", "be given with `labels`", "weights alone")
        return target
    target = target.raw if isinstance(target, LabelledBlocks) else target
    n = count_rows(target)
    y = check_some_labels(labels, caller, n, target.n_classes, source.classes)
    if not (y >= 0).any():
        return target
    if weights is None:
        return LabelledBlocks(target, y)
    numbers = as_array(weights, caller, "label_weights").astype(np.float64)
    if numbers.shape != (n,):
        fail(caller, "label_weights", f"have shape ({n},), one per row", f"shape {numbers.shape}",
             remedy="Put the weights of `query` at its rows; others do not matter")  # fmt: skip
    bad = (y >= 0) & ~((numbers > 0) & np.isfinite(numbers))
    refuse_where(bad, caller, "label_weights", "be positive and finite where there is a label", numbers)
    return LabelledBlocks(target, y, None if np.ptp(numbers[y >= 0]) == 0 else numbers)


def put_in(shares: Vector, target: LabelledBlocks, source_prior: Vector) -> Vector:
    """Return the shares (K,) of all rows, from the estimated `shares` (K,) of the others and the labels of some."""
    y = target.labels[target.labels >= 0]
    n, counts = len(target.labels), np.bincount(y, minlength=len(shares))
    weights = np.maximum(shares, 1e-200) / source_prior
    every = e_step(target.raw, weights).counts
    rest = np.maximum(every - e_step(SomeBlocks(target.raw, target.labels >= 0), weights).counts, 0.0)
    rest = shares * np.divide(rest, every, out=np.zeros(len(shares)), where=every > 0)
    left = rest.sum()
    rest = rest * ((n - len(y)) / left) if left > 0 else shares * (n - len(y))
    return np.asarray((rest + counts) / n)
