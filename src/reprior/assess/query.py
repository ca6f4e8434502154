"""Which target rows to label next: those whose labels tell most about the class mix, drawn with known chances.

A label tells what the output leaves open: of a row whose corrected output is r (K,), diag(r) − rrᵀ about log π. If V is
the covariance of log π, that lowers the expected KL, ½ Σ π_j V_jj, in proportion to tr[(diag(r) − rrᵀ) VΠV]. Shares of
classes that the rows confuse err against each other, so a row between two such classes tells most. Rows are drawn the
more often the more they tell. A part is drawn evenly, so that every row has its chance and no weight is large. Rows are
gone through by likely class and then by how sure it is, at equal steps: a sample then holds each kind of row as often
as it should, give or take one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reprior._check import as_rng, check_estimate, check_int, fail
from reprior._types import Labels, Matrix, PriorEstimate, Vector
from reprior.assess.intervals import ENOUGH_ROWS, MANY, inverse
from reprior.rows.blocks import Blocks, map_numbered
from reprior.rows.correction import reweight
from reprior.rows.labelled import LabelledBlocks
from reprior.rows.passes import information

EVEN = 0.1  # of the rows to label, how many are drawn without regard to what their labels may tell
KEEN = 1.5  # chances go by this power of what labels tell; by trials 1000 to 1017 of labels.py, as APART
APART = 0.3  # rows of its own that each class is granted, so that no two classes err against each other alone
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
    gain, likely, sure = worth(target.raw if isinstance(target, LabelledBlocks) else target, estimate)
    free = target.labels < 0 if isinstance(target, LabelledBlocks) else np.ones(len(gain), bool)
    rows = np.flatnonzero(free)
    if not len(rows):
        fail("query", "estimate", "have rows without a label", f"labels for all {len(gain)} rows")
    size = min(size, len(rows))
    even = np.full(len(rows), size / len(rows))
    chance = (1 - EVEN) * inclusion(gain[rows] ** KEEN, size) + EVEN * even
    order = np.lexsort((sure[rows], likely[rows]))
    picked = order[systematic(chance[order], size, generator)]
    picked.sort()
    return Query(rows[picked], even[picked] / chance[picked])


def worth(target: Blocks, estimate: PriorEstimate) -> tuple[Vector, Labels, Vector]:
    """Return what a label of each row may tell (n,), up to a factor, each row's likeliest class (n,) and how likely it
    is (n,)."""
    prior = np.maximum(estimate.prior, 0.1 / estimate.n)
    lower, upper = estimate.interval(ONE_SIGMA)
    unsure = np.minimum(((upper - lower) / (2 * prior)) ** 2, SURE)  # s², of the logarithm of a share
    weights, value = prior / estimate.source.prior, covered(target, estimate, prior, unsure)

    def of_block(first: int, block: Matrix) -> tuple[tuple[int, Vector, Labels, Vector], ...]:
        resp = reweight(np.asarray(block, np.float64), weights)
        if value.ndim == 1:
            told = (resp * (1 - resp)) @ value
        else:
            told = resp @ np.diag(value) - np.einsum("ij,ij->i", resp @ value, resp)
        return ((first, np.maximum(told, 0.0), resp.argmax(axis=1), resp.max(axis=1)),)

    parts = sorted(map_numbered(target, of_block), key=lambda part: part[0])
    gain, likely, sure = (np.concatenate([part[i] for part in parts]) for i in (1, 2, 3))
    return gain, likely, sure


def covered(target: Blocks, estimate: PriorEstimate, prior: Vector, unsure: Vector) -> Matrix:
    """Return VΠV (K, K), where V has the variances `unsure` (K,) and the correlations that the rows give; of very many
    classes its diagonal (K,) without correlations."""
    k = len(prior)
    if k > MANY:
        return prior * unsure**2
    stride = max(1, int(estimate.n) // (ENOUGH_ROWS * max(1000, k)))
    about = information(target, prior, estimate.source.prior, stride=stride, per_log=True) * stride
    # what outputs tell is held back by the classifier's error, as far as the method knows of it
    about /= 1 + getattr(estimate.posterior, "unsure", 0.0)
    about.flat[:: k + 1] += APART
    v = inverse(about)
    scale = np.sqrt(unsure / np.maximum(np.diag(v), 1e-300))
    v *= scale * scale[:, None]
    return np.asarray((v * prior) @ v)


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
