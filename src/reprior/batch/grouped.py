"""Rows in groups: which group a row belongs to, and the fit of every group under one mixture of Dirichlets.

The E-step of a group, and what filled-in labels are worth, are in small.py.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from reprior._check import fail
from reprior._kernels import loops, reference
from reprior._kernels.reference import width
from reprior._types import Matrix, Vector
from reprior.rows.blocks import ArrayBlocks, Blocks, map_numbered
from reprior.rows.labelled import some_blocks

S = TypeVar("S")
Index = NDArray[np.int64]
Codes = NDArray[np.integer[Any]]
CODE = np.int32  # groups are far fewer than such numbers, and rows may be so many that eight bytes each are felt
TOLERANCE = 1e-5  # L1 change of a group's prior in an iteration


def plain(key: Any) -> Hashable:
    """Return a NumPy scalar as Python's, which is what keys are kept as."""
    if isinstance(key, np.datetime64) and np.datetime_data(key.dtype)[0] == "ns":  # whose item would be a number
        whole = key.astype("M8[us]")
        return whole.item() if whole == key else key
    return key.item() if isinstance(key, np.generic) else key  # type: ignore[no-any-return]


def factorize(keys: Any, caller: str = "groups") -> tuple[tuple[Hashable, ...], Codes]:
    """Return the groups' keys, sorted if they can be, and the number of each row's group (n,)."""
    remedy = "Drop those rows, or give them a key of their own"
    rule = "name a group for every row"
    if isinstance(keys, (str, bytes)) or not hasattr(keys, "__len__"):
        fail(caller, "keys", "be an array or a list, one key a row", type(keys).__name__)
    # a list of numbers and text, or of tuples, would not survive as an array
    mixed = isinstance(keys, (list, tuple)) and {type(key) for key in keys} not in ({str}, {int})
    column = None if mixed else np.asarray(keys)
    if column is not None and column.ndim != 1:
        fail(caller, "keys", "have one axis", f"shape {column.shape}")
    if column is not None and column.dtype.kind in "iufbUSmM":
        missing = np.isnat(column) if column.dtype.kind in "mM" else column != column
        if missing.any():
            at, total = int(np.argmax(missing)), int(missing.sum())
            fail(caller, "keys", rule, column[at], place=f"row {at}", count=total, remedy=remedy)
        if column.dtype.kind == "i" and len(column) and (low := int(column.min())) + 4 * len(column) > column.max():
            codes: Codes
            near = np.empty(len(column), CODE)  # so close, they need no sorting
            np.subtract(column, low, out=near, dtype=np.int64, casting="unsafe")
            there = np.bincount(near) > 0
            codes = near if there.all() else (np.cumsum(there) - 1).astype(CODE)[near]
            return tuple((np.flatnonzero(there) + low).tolist()), codes
        found, codes = np.unique(column, return_inverse=True)
        called = map(plain, found) if found.dtype.kind == "M" else found.tolist()
        return tuple(called), codes.astype(CODE)
    values = list(keys)
    slots: dict[Hashable, int] = {}
    codes = np.empty(len(values), CODE)
    bad: list[int] = []
    for i, key in enumerate(values):
        try:
            if key is None or key != key:  # NaN is not itself
                bad.append(i)
                continue
            codes[i] = slots.setdefault(key, len(slots))
        except (TypeError, ValueError):  # not hashable; pandas.NA, which is neither itself nor another
            if type(key).__name__ != "NAType":
                fail(caller, "keys", "hold hashable keys", type(key).__name__, place=f"row {i}")
            bad.append(i)
    if bad:
        fail(caller, "keys", rule, values[bad[0]], place=f"row {bad[0]}", count=len(bad), remedy=remedy)
    names = list(slots)
    try:
        ranked = sorted(range(len(names)), key=names.__getitem__)  # type: ignore[arg-type]
    except TypeError:  # keys of several kinds have no order but that of the rows
        return tuple(names), codes
    rank = np.empty(len(names), CODE)
    rank[ranked] = np.arange(len(names))
    return tuple(names[i] for i in ranked), rank[codes]


@dataclass(frozen=True, slots=True)
class Model:
    """A mixture of Dirichlets: component c has α = strength[c]·centres[which[c]] and the weight weights[c].

    `scatter` is what the groups' mean outputs say the mean of 1/(strength + 1) is, `doubt` its standard error, `gram`
    (K, K) the mean of r rᵀ over rows.
    """

    centres: Matrix
    which: NDArray[np.intp]
    strength: Vector
    weights: Vector
    scatter: float = 0.0
    doubt: float = 0.0
    gram: Matrix | None = None

    @property
    def alpha(self) -> Matrix:
        """Return α (C, K) of all components."""
        return np.asarray(self.strength[:, None] * self.centres[self.which])

    def arrays(self) -> tuple[Matrix, Matrix]:
        """Return α (C, width), and the terms (C, 3) that kernels take beside it."""
        from scipy.special import gammaln

        k = self.centres.shape[1]
        alpha = np.ones((len(self.strength), width(k)))
        alpha[:, :k] = np.maximum(self.alpha, 1e-12)
        log_gamma = gammaln(alpha[:, :k]).sum(axis=1) - gammaln(self.strength)
        return alpha, np.stack([self.strength, np.log(self.weights), log_gamma], axis=1)


@dataclass(frozen=True, slots=True)
class State:
    """Where all groups stand; small.py says what the arrays are."""

    belief: Vector
    prior: Vector
    variance: Vector
    counts: Vector
    member: Vector
    tail: Vector

    @classmethod
    def at(cls, n_groups: int, belief: Matrix, model: Model) -> State:
        """Return the start from a belief (K,) or (G, K)."""
        k = belief.shape[-1]
        start = np.zeros((n_groups, width(k)))
        start[:, :k] = belief
        prior, variance, counts = (np.zeros_like(start) for _ in range(3))
        return cls(start, prior, variance, counts, np.zeros((n_groups, len(model.strength))), np.zeros((n_groups, 3)))

    def arrays(self) -> tuple[Matrix, ...]:
        return self.belief, self.prior, self.variance, self.counts, self.member, self.tail


class Grouped(Protocol):
    """What is asked of rows in groups, here or on a cluster; `GroupedRows` says what each means."""

    @property
    def sizes(self) -> Index: ...

    @property
    def unsure(self) -> float: ...

    @property
    def told(self) -> Vector: ...

    def fit(self, model: Model, state: State, *, n_iter: int = 300, tol: float = TOLERANCE) -> State: ...

    def log_likelihood(self, source_prior: Vector, priors: Matrix) -> Vector: ...

    def some(self, which: Index) -> GroupedRows: ...

    def of_group(self, g: int) -> Blocks: ...


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Target rows with the number of their group (n,): all rows of group g are `order[starts[g]:starts[g + 1]]`.

    `unsure` is the classifier's error beside the noise of one row, so that n rows of a group tell what n/(1 + unsure·n)
    would tell of a classifier that never errs.
    """

    target: Blocks
    codes: Codes
    sizes: Index
    inverse: Vector
    unsure: float
    order: Index | None = None
    starts: Index | None = None

    @classmethod
    def of(cls, target: Blocks, codes: Codes, n_groups: int, source_prior: Vector, unsure: float) -> GroupedRows:
        sizes = np.bincount(codes, minlength=n_groups).astype(np.int64)
        inverse = inverse_of(source_prior)
        if not (isinstance(target, ArrayBlocks) and in_cache_order(target.array)):
            return cls(target, codes, sizes, inverse, unsure)
        order = np.argsort(codes, kind="stable").astype(np.int64, copy=False)
        return cls(
            target, codes, sizes, inverse, unsure, order, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        )

    def fit(self, model: Model, state: State, *, n_iter: int = 300, tol: float = TOLERANCE) -> State:
        """Return the state after up to `n_iter` iterations from a state's belief; that state is used up."""
        if self.order is None or self.starts is None:
            return self.fit_by_passes(model, state, n_iter=n_iter, tol=tol)
        assert isinstance(self.target, ArrayBlocks)
        args: Any = (self.inverse, self.order, self.starts, *model.arrays(), *state.arrays(), n_iter, tol, self.unsure)
        if loops.group_fit(self.target.array, *args) == reference.REFUSED:
            reference.group_fit(self.target.array, *args)
        return state

    def fit_by_passes(self, model: Model, state: State, *, n_iter: int, tol: float) -> State:
        """Do the same with one pass over the rows an iteration: O(G·K) numbers and no row are held."""
        k, sizes = self.target.n_classes, self.sizes.astype(np.float64)
        alpha, terms = model.arrays()
        state.prior[:] = state.belief
        for _ in range(n_iter):
            before = state.prior.copy()
            sums, _ = self.count(state.belief)
            args: Any = (k, sizes, sums, alpha, terms, *state.arrays(), self.unsure)
            if loops.group_step(*args) == reference.REFUSED:
                reference.group_step(*args)
            state.tail[:, 2] = np.abs(state.prior - before).sum(axis=1)
            if (state.tail[:, 2] < tol).all():
                break
        state.tail[:, 1] = self.count(state.prior)[1]
        state.tail[:, 0] += state.tail[:, 1] / (1 + self.unsure * sizes)
        return state

    def count(self, weights: Matrix) -> tuple[Matrix, Vector]:
        """Return each group's sums (G, 2, width) of an E-step at `weights` (G, width), and its log-likelihood (G,)."""
        sums, logs = np.zeros((len(self.sizes), 2, weights.shape[1])), np.zeros(len(self.sizes))

        def of_block(block: Matrix, codes: Codes) -> int:
            args = (self.inverse, codes.astype(np.int64), weights, sums, logs)
            if loops.group_counts(block, *args) == reference.REFUSED:
                reference.group_counts(block, *args)
            return 0

        map_keyed(self.target, self.codes, of_block)
        return sums, logs

    def log_likelihood(self, source_prior: Vector, priors: Matrix) -> Vector:
        """Return that of each group (G,) under its prior, of `priors` (G, width), relative to a source prior."""
        return replace(self, inverse=inverse_of(source_prior)).count(priors)[1]

    def some(self, which: Index) -> GroupedRows:
        """Return the rows of some groups (m,) alone, in memory."""
        new = np.full(len(self.sizes), -1, np.int64)
        new[which] = np.arange(len(which))
        prior = 1.0 / self.inverse[: self.target.n_classes]
        if self.order is not None and self.starts is not None:
            ends = self.starts[which + 1]
            order = np.concatenate([self.order[a:b] for a, b in zip(self.starts[which], ends, strict=True)])
            starts = np.concatenate([[0], np.cumsum(self.sizes[which])]).astype(np.int64)
            return GroupedRows(self.target, self.codes, self.sizes[which], self.inverse, self.unsure, order, starts)
        kept: list[Matrix] = []

        def keep(block: Matrix, codes: Codes) -> int:
            kept.append(np.array(block[new[codes] >= 0]))
            return 0

        map_keyed(self.target, self.codes, keep)
        codes = new[self.codes]
        rows = np.ascontiguousarray(np.concatenate(kept), dtype=np.float64)
        return GroupedRows.of(ArrayBlocks(rows), codes[codes >= 0], len(which), prior, self.unsure)

    @property
    def told(self) -> Vector:
        """Return how many rows each group's rows are worth (G,)."""
        return worth_of(self.sizes, self.unsure)

    def of_group(self, g: int) -> Blocks:
        """Return the rows of one group."""
        if self.order is not None and self.starts is not None and isinstance(self.target, ArrayBlocks):
            return ArrayBlocks(self.target.array[self.order[self.starts[g] : self.starts[g + 1]]])
        return some_blocks(self.target, self.codes == g)


def worth_of(sizes: Index, unsure: float) -> Vector:
    """Return how many rows of a classifier that never errs so many rows (G,) are worth."""
    return np.asarray(sizes / (1 + unsure * sizes))


def inverse_of(source_prior: Vector) -> Vector:
    """Return 1/ε (width,), as kernels take it."""
    out = np.zeros(width(len(source_prior)))
    out[: len(source_prior)] = 1.0 / source_prior
    return out


def map_keyed(target: Blocks, codes: Codes, fn: Callable[[Matrix, Codes], S]) -> S:
    """Return the sum of `fn(block, its rows' groups)`."""
    seen = 0

    def of_block(first: int, block: Matrix) -> S:
        nonlocal seen
        seen += len(block)
        return fn(block, codes[first : first + len(block)])

    total = map_numbered(target, of_block)
    if seen != len(codes):  # what `fn` notes down in another process, nobody here gets to see
        fail("groups", "proba", f"be {len(codes)} rows that this process reads in their order", f"{seen} such rows",
             remedy="On Spark call `reprior.adapters.spark.groups`")  # fmt: skip
    return total


def in_cache_order(array: Matrix) -> bool:
    """Return whether rows can be read where they are."""
    return array.dtype in (np.float32, np.float64) and array.flags.c_contiguous and array.flags.aligned
