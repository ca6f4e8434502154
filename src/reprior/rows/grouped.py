"""Keys that name the group or stream of each sample, and the pass that counts classes per group."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from reprior._check import fail, is_none
from reprior._kernels import loops, reference
from reprior._kernels.reference import width
from reprior._types import Matrix, Vector
from reprior.rows.blocks import ArrayBlocks, Blocks, map_numbered
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


Codes = NDArray[np.integer[Any]]
CODE = np.int32  # numbers of groups; eight bytes per sample would cost memory for nothing


def as_python(key: Any) -> Hashable:
    """Return a key as a Python value, if it is a scalar of NumPy or pyarrow."""
    if isinstance(key, np.datetime64) and np.datetime_data(key.dtype)[0] == "ns":  # whose item would be a number
        whole = key.astype("M8[us]")
        return whole.item() if whole == key else key
    if hasattr(key, "as_py"):
        return key.as_py()  # type: ignore[no-any-return]
    return key.item() if isinstance(key, np.generic) else key  # type: ignore[no-any-return]


def factorize(keys: Any, caller: str = "groups") -> tuple[tuple[Hashable, ...], Codes]:
    """Return the distinct keys, sorted if they have an order, and the position of each sample's key among them (n,)."""
    if isinstance(keys, (str, bytes)) or not hasattr(keys, "__len__"):
        fail(caller, "keys", "be an array or a list, one key per row", type(keys).__name__)
    if hasattr(keys, "to_pylist"):  # of pyarrow, whose scalars are not equal to the values that they hold
        keys = keys.to_pylist()
    # NumPy would turn a list of numbers and text, or of tuples, into something else
    if isinstance(keys, (list, tuple)) and {type(key) for key in keys} not in ({str}, {int}):
        return of_values(list(keys), caller)
    column = np.asarray(keys)
    if column.ndim != 1:
        fail(caller, "keys", "have one axis", f"shape {column.shape}")
    return of_column(column, caller) if column.dtype.kind in "iufbUSmM" else of_values(list(keys), caller)


def refuse_missing(places: Any, values: Any, caller: str) -> None:
    """Refuse keys that are missing at these places."""
    if len(places):
        fail(caller, "keys", "name a group for every row", values[places[0]], place=f"row {places[0]}",
             count=len(places), remedy="Drop those rows, or give them a key of their own")  # fmt: skip


def of_column(column: np.ndarray[Any, Any], caller: str) -> tuple[tuple[Hashable, ...], Codes]:
    """Return the distinct keys of an array of numbers, text or times, and the position of each (n,)."""
    codes: Codes
    missing = np.isnat(column) if column.dtype.kind in "mM" else column != column
    refuse_missing(np.flatnonzero(missing), column, caller)
    if column.dtype.kind == "i" and len(column) and (low := int(column.min())) + 4 * len(column) > column.max():
        near = np.empty(len(column), CODE)  # integers this close together need no sorting
        np.subtract(column, low, out=near, dtype=np.int64, casting="unsafe")
        there = np.bincount(near) > 0
        codes = near if there.all() else (np.cumsum(there) - 1).astype(CODE)[near]
        return tuple((np.flatnonzero(there) + low).tolist()), codes
    distinct, codes = np.unique(column, return_inverse=True)
    called = map(as_python, distinct) if distinct.dtype.kind == "M" else distinct.tolist()
    return tuple(called), codes.astype(CODE)


def of_values(values: list[Any], caller: str) -> tuple[tuple[Hashable, ...], Codes]:
    """Return the distinct keys among Python values, and the position of each (n,)."""
    slots: dict[Hashable, int] = {}
    for i, key in enumerate(values):
        try:
            slots[key] = 0
        except TypeError:
            fail(caller, "keys", "hold hashable keys", type(key).__name__, place=f"row {i}")
    if any(map(is_none, slots)):
        refuse_missing([i for i, key in enumerate(values) if is_none(key)], values, caller)
    names: Any = list(slots)
    with suppress(TypeError):  # keys of several types have no order of their own
        names = sorted(names)
    slots = {key: slot for slot, key in enumerate(names)}
    return tuple(names), np.array([slots[key] for key in values], CODE)
