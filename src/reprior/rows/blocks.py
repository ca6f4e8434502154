"""Target data as blocks of rows, and what can be added up over them.

E-step statistics add, so any partition of the rows gives the same answer: work goes to the data and only K-vectors
come back. Whatever can `map_sum` a function over its rows (memory, a mapped file, Parquet parts, a cluster) can be a
target.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard, TypeVar, cast, runtime_checkable

import numpy as np

from reprior._check import as_array, check_proba, check_source, fail, names_of, refuse_where
from reprior._check import by_name as by_name
from reprior._check import in_columns as in_columns
from reprior._types import Matrix, Source, Vector

S = TypeVar("S")
BLOCK_BYTES = 1 << 19  # a block is read from memory once and then used from cache


@runtime_checkable
class Blocks(Protocol):
    """Predicted probabilities that can be read block by block, as often as needed.

    Every object with `n_classes` and `map_sum` can be passed as `proba`: for example a table of a database, or files on
    many machines.

    Parameters
    ----------
    n_classes : int
        Number of classes K, which is the number of columns.

    Examples
    --------
    >>> isinstance(ArrayBlocks(np.ones((2, 3)) / 3), Blocks)
    True
    """

    @property
    def n_classes(self) -> int: ...

    def map_sum(self, fn: Callable[[Matrix], S]) -> S:
        """Return the sum of `fn(block)` over blocks (n, K) that contain each row once. Results of `fn` must support +.

        Blocks may be float32; `fn` should sum in float64.
        """
        ...


def map_numbered(target: Blocks, fn: Callable[[int, Matrix], S]) -> S:
    """Return the sum of `fn(number of its first row, block)`.

    Blocks that may come in any order, as from a cluster, have a `map_numbered`. Others come in order.
    """
    if (own := getattr(target, "map_numbered", None)) is not None:
        return cast(S, own(fn))
    at = 0

    def of_block(block: Matrix) -> S:
        nonlocal at
        at += len(block)
        return fn(at - len(block), block)

    return target.map_sum(of_block)


class View:
    """Blocks `raw` seen through something: what is not changed is as below."""

    __slots__ = ()
    raw: Blocks

    @property
    def n_classes(self) -> int:
        return self.raw.n_classes

    def map_sum(self, fn: Callable[[Matrix], S]) -> S:
        return map_numbered(cast(Blocks, self), lambda _, block: fn(block))


def add_up(parts: Iterator[S]) -> S:
    """Sum without a zero to start from."""
    total = next(parts)
    for part in parts:
        total += part  # type: ignore[operator]  # in place where S can: a K×K sum would be allocated for every block
    return total


def as_stored(rows: Matrix) -> Matrix:
    """Return rows as float32 if they are, which the E-step widens while it reads them, else as float64."""
    return np.asarray(rows, dtype=np.float32 if rows.dtype == np.float32 else np.float64)


def block_rows(n_classes: int) -> int:
    """Return how many float64 rows make a block that stays in cache, but is not thin against a K×K result."""
    return max(16, BLOCK_BYTES // (8 * n_classes), n_classes // 8)


def block_slices(n: int, n_classes: int) -> Iterator[slice]:
    """Yield the rows of each block of an array (n, K)."""
    step = block_rows(n_classes)
    return (slice(first, first + step) for first in range(0, n, step))


@dataclass(frozen=True, slots=True)
class ArrayBlocks:
    """Wrap an array as `Blocks`. The array is never copied as a whole.

    Parameters
    ----------
    array : (n, K)
        Probabilities, one row per sample, in memory or memory-mapped, of any float type.
    checked : bool, default False
        Whether the rows were checked to be probabilities already. They are then not checked again.

    Examples
    --------
    >>> blocks = ArrayBlocks(np.array([[0.9, 0.1], [0.4, 0.6]]))
    >>> blocks.n_classes, blocks.map_sum(lambda block: block.sum(axis=0))
    (2, array([1.3, 0.7]))
    """

    array: Matrix
    checked: bool = False

    @property
    def n_classes(self) -> int:
        return int(self.array.shape[1])

    def stored(self) -> Iterator[Matrix]:
        """Return blocks as float32 or float64."""
        return (as_stored(self.array[rows]) for rows in block_slices(*self.array.shape))

    def __iter__(self) -> Iterator[Matrix]:
        # float32 becomes float64 here, in cache, so that storage never limits the accuracy
        return (np.asarray(block, dtype=np.float64) for block in self.stored())

    def map_sum(self, fn: Callable[[Matrix], S]) -> S:
        return add_up(map(fn, self.stored()))


@dataclass(frozen=True, slots=True)
class TopKBlocks:
    """Wrap the k most probable classes of each sample, as services often log them, as `Blocks`.

    The missing probability, 1 − Σ values, is divided among the unlisted classes in proportion to the source prior. Rows
    become dense one block at a time.

    Parameters
    ----------
    indices : (n, k)
        Column indices of the listed classes.
    values : (n, k)
        Probabilities of the listed classes.
    prior : (K,)
        The source prior.

    Examples
    --------
    >>> top = TopKBlocks(np.array([[2]]), np.array([[0.7]]), np.array([0.4, 0.2, 0.4]))
    >>> next(iter(top))
    array([[0.2, 0.1, 0.7]])
    """

    indices: np.ndarray[Any, np.dtype[np.integer[Any]]]
    values: Matrix
    prior: Vector

    @property
    def n_classes(self) -> int:
        return len(self.prior)

    def __iter__(self) -> Iterator[Matrix]:
        for rows in block_slices(len(self.values), self.n_classes):
            listed, p = self.indices[rows].astype(np.intp), np.asarray(self.values[rows], np.float64)
            dense = np.tile(self.prior, (len(p), 1))
            np.put_along_axis(dense, listed, 0.0, axis=1)
            # the prior of the unlisted is summed: 1 − that of the listed would be rounding if those are nearly all
            share = np.clip(1.0 - p.sum(axis=1), 0.0, None) / np.maximum(dense.sum(axis=1), 1e-300)
            dense *= share[:, None]
            np.put_along_axis(dense, listed, p, axis=1)
            yield dense

    def map_sum(self, fn: Callable[[Matrix], S]) -> S:
        return add_up(map(fn, self))


def top_k_in(target: Any) -> TopKBlocks | None:
    """Return the top-k rows that a target was made from, if it was."""
    while not isinstance(target, TopKBlocks):
        if (target := getattr(target, "raw", None)) is None:
            return None
    return target


def as_listed(rows: Matrix, k: int, prior: Vector) -> Matrix:
    """Return rows (n, K) as they would be if only the `k` best classes of each were known."""
    best = np.argpartition(-rows, k - 1, axis=1)[:, :k]
    listed = TopKBlocks(best, np.take_along_axis(rows, best, axis=1), prior)
    return np.concatenate([rows[:0], *listed])


def unlisted(shares: Matrix, listed: Any) -> Vector:
    """Return the sum of `shares`, (1, K) or (n, K), over the classes that rows (n, k) do not list, exact near 0."""
    each = np.broadcast_to(shares, (len(listed), shares.shape[1]))
    rest = 1.0 - np.take_along_axis(each, np.asarray(listed, np.intp), axis=1).sum(axis=1)
    for row in np.flatnonzero(rest < 1e-6):  # what is left may be rounding: sum the unlisted classes themselves
        others = np.ones(shares.shape[1])
        others[np.asarray(listed[row], np.intp)] = 0.0
        rest[row] = each[row] @ others
    return np.asarray(rest)


def check_top_k(indices: Any, values: Any, caller: str, prior: Vector) -> TopKBlocks:
    """Refuse top-k rows whose indices repeat or leave the range, or whose values are no sub-probabilities."""
    index, p = as_array(indices, caller, "indices"), as_array(values, caller, "values")
    if index.shape != p.shape or index.ndim != 2 or index.shape[0] == 0 or not 0 < index.shape[1] < len(prior):
        shapes = f"{index.shape}, {p.shape}"
        fail(caller, "indices, values", f"both have shape (n, k) with 0 < k < {len(prior)}", shapes)
    if index.dtype.kind not in "iu":
        fail(caller, "indices", "hold whole numbers", f"dtype {index.dtype}")
    outside = ((index < 0) | (index >= len(prior))).any(axis=1)
    refuse_where(outside, caller, "indices", f"lie between 0 and {len(prior) - 1}", index)
    ordered = np.sort(index, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]).any(axis=1)
    refuse_where(twice, caller, "indices", "name each class once in a row", "a repeated class")
    sums = p.sum(axis=1, dtype=np.float64)
    bad = ~(np.isfinite(p).all(axis=1) & (p >= 0).all(axis=1) & (sums > 0) & (sums <= 1 + 1e-3))
    refuse_where(bad, caller, "values", "be finite, not negative, with a row sum in (0, 1]", p)
    return TopKBlocks(index, p, prior)


def as_blocks(target: Any, prior: Vector, caller: str) -> Blocks:
    """Return checked `Blocks` of an (n, K) array, of top-k rows (indices, values), or of Blocks (checked by maker)."""
    n_classes = len(prior)
    if isinstance(target, ArrayBlocks):
        if target.checked and target.n_classes == n_classes:
            return target
        target = target.array
    if isinstance(target, TopKBlocks):
        target = (target.indices, target.values)
    # to ask an array whether it is a protocol's costs more than to check its rows, if they are few
    if not isinstance(target, np.ndarray) and isinstance(target, Blocks):
        if target.n_classes != n_classes:
            fail(caller, "proba", f"have {n_classes} columns, one for each class of the source", target.n_classes)
        return target
    if is_top_k(target):
        return check_top_k(*target, caller, prior)
    return ArrayBlocks(check_proba(target, caller, "proba", n_classes), checked=True)


def is_top_k(proba: Any) -> TypeGuard[tuple[Any, Any]]:
    """Tell a top-k pair (indices, values) from a tuple of two probabilities."""
    if not isinstance(proba, tuple) or len(proba) != 2:
        return False
    return bool(getattr(proba[0], "ndim", isinstance(proba[0], Sequence)))


def check_inputs(source: Any, proba: Any, caller: str) -> tuple[Source, Blocks]:
    """Return the source and the target's blocks, both checked, with the classes of both matched by name."""
    rows: Any = proba
    names: Sequence[Any] | None = None
    if isinstance(proba, (np.ndarray, ArrayBlocks)):
        pass
    elif isinstance(proba, (Mapping, Blocks)):
        names = block_names(proba)
    else:
        called = getattr(source, "classes", None) or (None if isinstance(source, Source) else names_of(source)[1])
        rows, names = names_of(proba, called, caller)
    training = check_source(source, caller, names)
    return training, as_blocks(in_columns(rows, names, training.classes, caller), training.prior, caller)


def block_names(blocks: Any) -> tuple[str, ...] | None:
    """Return the names of the columns of blocks that can put them `in_order`; else None."""
    return blocks.classes if hasattr(blocks, "in_order") else None


def numbered(blocks: Iterable[Matrix], first: int = 0) -> Iterator[tuple[int, Matrix]]:
    """Yield each block with the number of its first row; that of the first block is `first`."""
    for block in blocks:
        yield first, block
        first += len(block)
