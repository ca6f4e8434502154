"""Which target rows to label next: those whose labels tell most about the class mix, drawn with known chances.

A label tells what the output leaves open. For a share that is uncertain by the factor s it is worth r(1 − r)·s⁴π, by
the row's own corrected output r, in expected KL; so rows are drawn in proportion to that. A part is drawn evenly, so
that every row has its chance and no weight is large. Rows are gone through by likely class at equal steps: a sample
then holds each kind of row as often as it should, give or take one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reprior._check import as_rng, check_estimate, check_int, fail
from reprior._types import Labels, Matrix, PriorEstimate, Vector
from reprior.rows.blocks import Blocks, map_numbered
from reprior.rows.correction import reweight
from reprior.rows.labelled import LabelledBlocks

EVEN = 0.1  # of the rows to label, how many are drawn without regard to what their labels may tell
ONE_SIGMA = 0.6826894921
SURE = 1.0  # s² at most: of a class that may well be absent, no more is to be learned


class Query(NamedTuple):
    """Rows to label, by their numbers in increasing order (n,), and how much each counts beside one that was drawn at
    random (n,): what to give `estimate` as `label_weights`, at those rows."""

    rows: Labels
    weights: Vector


def query(estimate: PriorEstimate, n: int = 100, *, rng: int | np.random.Generator | None = 0) -> Query:
    """Return which rows of an estimate's target to label next, and how to weigh them.

    Parameters
    ----------
    estimate : PriorEstimate
        Of the target, with its rows. Those that have a label already are not asked for again.
    n : int
        How many rows; all that are left, if there are fewer.
    rng : int or Generator, optional
        A seed, or a generator of random numbers.

    Returns
    -------
    Query
        A pair (rows (n,), weights (n,)). A weight is the row's chance in an even draw over its chance in this one.

    Examples
    --------
    >>> from reprior import datasets, pipeline
    >>> data = datasets.load("banking77")
    >>> pipe = pipeline(data.heldout_proba, data.heldout_y, counts=data.counts)
    >>> proba, y = data.pool_proba[:1000], data.pool_y[:1000]
    >>> rows, weights = query(pipe.estimate(proba), n=50)
    >>> labels, label_weights = np.full(1000, -1), np.ones(1000)
    >>> labels[rows], label_weights[rows] = y[rows], weights
    >>> pipe.estimate(proba, labels=labels, label_weights=label_weights).n_labels
    50
    """
    size, generator, target = check_int(n, "query", "n"), as_rng(rng), check_estimate(estimate, "query").target
    if target is None:
        fail("query", "estimate", "carry its target rows", "none", remedy="Ask before `detach`")
    gain, likely = worth(target.raw if isinstance(target, LabelledBlocks) else target, estimate)
    free = target.labels < 0 if isinstance(target, LabelledBlocks) else np.ones(len(gain), bool)
    rows = np.flatnonzero(free)
    if not len(rows):
        fail("query", "estimate", "have rows without a label", f"labels for all {len(gain)} rows")
    size = min(size, len(rows))
    even = np.full(len(rows), size / len(rows))
    chance = (1 - EVEN) * inclusion(gain[rows], size) + EVEN * even
    order = np.lexsort((generator.random(len(rows)), likely[rows]))
    picked = order[systematic(chance[order], size, generator)]
    picked.sort()
    return Query(rows[picked], even[picked] / chance[picked])


def worth(target: Blocks, estimate: PriorEstimate) -> tuple[Vector, Labels]:
    """Return what a label of each row may tell (n,), up to a factor, and each row's likeliest class (n,)."""
    prior = np.maximum(estimate.prior, 0.1 / estimate.n)
    lower, upper = estimate.interval(ONE_SIGMA)
    unsure = np.minimum(((upper - lower) / (2 * prior)) ** 2, SURE)  # s², of the logarithm of a share
    value, weights = prior * unsure**2, prior / estimate.source.prior

    def of_block(first: int, block: Matrix) -> tuple[tuple[int, Vector, Labels], ...]:
        resp = reweight(np.asarray(block, np.float64), weights)
        return ((first, (resp * (1 - resp)) @ value, resp.argmax(axis=1)),)

    parts = sorted(map_numbered(target, of_block), key=lambda part: part[0])
    return np.concatenate([part[1] for part in parts]), np.concatenate([part[2] for part in parts])


def inclusion(size: Vector, n: int) -> Vector:
    """Return chances (N,) that add up to n, none above 1, and where they are below it in proportion to `size` (N,)."""
    size = np.maximum(size, 1e-12 * max(float(size.max()), 1e-300))
    chance = np.zeros(len(size))
    sure = np.zeros(len(size), bool)
    while True:
        left = ~sure
        chance[left] = (n - sure.sum()) * size[left] / size[left].sum()
        over = left & (chance > 1)
        if not over.any():
            return np.minimum(chance, 1.0)
        sure |= over
        chance[sure] = 1.0


def systematic(chance: Vector, n: int, rng: np.random.Generator) -> Labels:
    """Return n different places, each with its chance (N,), at equal steps along the sum of the chances."""
    edges = np.cumsum(chance)
    edges *= n / edges[-1]
    return np.minimum(np.searchsorted(edges, np.arange(n) + rng.random(), side="right"), len(chance) - 1)
