"""What one pass over the rows adds up: expected class counts (the E-step), and the observed information."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from reprior._kernels import loops, reference
from reprior._kernels.reference import REFUSED, padded
from reprior._types import Matrix, Vector
from reprior.rows.blocks import ArrayBlocks, Blocks, as_stored, map_numbered

MAX_DENSE_CLASSES = 4096  # classes beyond which a K×K matrix takes too much memory and time: 134 MB here
CORRELATION_ROWS = 6  # per class, and a thousand times that in all, to take correlations from
IN_CACHE = 1 << 18  # numbers of a block whose products are taken in turn: 1 MB in single precision
SAMPLE = 4_000_000  # numbers that are kept in memory; of longer targets a sample of rows decides between hypotheses


@dataclass(frozen=True, slots=True)
class Counts:
    """What one E-step returns: Σ r (K,), the log-likelihood if asked for, and the number of rows."""

    counts: Vector
    log_likelihood: float
    n: int


def e_step(target: Blocks, weights: Vector, *, likelihood: bool = False) -> Counts:
    """Return expected class counts of all rows under `weights` = π/ε: one pass, no N×K temporary."""
    k, aligned = len(weights), padded(weights)[0]

    def of_block(block: Matrix) -> Vector:
        out = np.zeros(2 + len(aligned))
        sums = out[None, 2:]
        value = loops.e_step(block, aligned, sums, likelihood)
        if type(value) is int and value == REFUSED:  # rows that are not contiguous: BLAS can read those
            value = reference.e_step(block, aligned, sums, likelihood)
        out[0], out[1] = value, len(block)
        return out

    total = target.map_sum(of_block)
    return Counts(weights * total[2 : 2 + k], float(total[0]), int(total[1]))


def count_rows(target: Blocks) -> int:
    """Return the number of rows, by a pass if need be."""
    n = len(target.array) if isinstance(target, ArrayBlocks) else getattr(target, "n", None)
    return e_step(target, np.ones(target.n_classes)).n if n is None else int(n)


def every_nth(stride: int, first: int, block: Matrix) -> Matrix:
    """Return those rows of a block whose number is a multiple of `stride`; `first` is the number of its first row."""
    return block[-first % stride :: stride]


def some_rows(target: Blocks, n: float, at_most: int) -> Matrix:
    """Return about `at_most` of `n` rows (m, K), spread evenly over the target, as they are stored."""
    stride = max(1, -(-int(n) // at_most))
    if stride == 1 and isinstance(target, ArrayBlocks):
        return as_stored(target.array)  # no copy
    parts = map_numbered(target, lambda first, block: (np.array(every_nth(stride, first, block)),))
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def row_blocks(n: int, n_classes: int, numbers: int = IN_CACHE) -> Iterator[slice]:
    """Yield slices of `n` rows, each of about `numbers` numbers, so that a second pass finds them in cache."""
    step = max(1, numbers // n_classes)
    return (slice(first, first + step) for first in range(0, n, step))


def rows_kept(n_classes: int) -> int:
    """Return how many rows are kept in memory: some a class, as long as that is not too many numbers."""
    return max(SAMPLE // n_classes, min(4 * n_classes, 2 * SAMPLE // n_classes), 100)


def information(
    target: Blocks, prior: Vector, source_prior: Vector, *, dtype: Any = np.float64, stride: int = 1,
    per_log: bool = False,
) -> Matrix:  # fmt: skip
    """Return Σ_i g_i g_iᵀ (K, K), g_ij = P_ij/(ε_j s_i): the observed information about π, a sum over rows.

    `dtype` float32 halves the cost, for uses where six digits do; with `stride` only every so many rows are taken.
    `per_log` gives that about log π, g_ij π_j, whose numbers stay below 1 however small a source share is.
    """
    weights = prior / source_prior
    inverse = weights if per_log else 1.0 / source_prior
    dtype = np.float64 if inverse.max() > 1e30 else dtype  # else a float32 would not hold the product

    def of_block(first: int, block: Matrix) -> Matrix:
        some = every_nth(stride, first, block)
        scaled = np.multiply(some, inverse, dtype=dtype, casting="same_kind")
        scaled *= (1.0 / (some @ weights)).astype(dtype)[:, None]
        return scaled.T @ scaled

    return map_numbered(target, of_block)


def correlation(target: Blocks, prior: Vector, source_prior: Vector, n: float) -> Matrix:
    """Return the correlations (K, K) of the classes' likelihoods over `n` samples, by enough of them."""
    stride = max(1, int(n) // (CORRELATION_ROWS * max(1000, len(prior))))
    gram = information(target, prior, source_prior, dtype=np.float32, stride=stride, per_log=True).astype(np.float64)
    root = np.sqrt(np.maximum(np.diag(gram), 1e-30))  # what is less has no digits left in single precision
    return np.asarray(gram / root / root[:, None])


def physical_memory() -> float:
    """Return the bytes of memory that the machine has, infinity if it is unknown."""
    try:
        return float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return np.inf
