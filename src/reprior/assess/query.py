"""Which target samples to label next: those whose labels tell most about the class prior, drawn with known chances.

A label tells what the output leaves open: of a row whose corrected output is r (K,), diag(r) − rrᵀ about log π. Let V
be the covariance of log π once the rows that are drawn have their labels. One label more lowers the expected KL,
½ Σ π_j V_jj, in proportion to tr[(diag(r) − rrᵀ) VΠV]. Shares of classes that the rows confuse err against each other,
so a row between two such classes tells most; the more of them are drawn, the less the next one tells. Chances at which
no row would tell more than those that are drawn make an A-optimal design. Steps towards it multiply each row's chance
by a power of what it tells [silvey1978]. A part is drawn evenly, so that every row has its chance and no weight is
large. Rows are gone through by likely class and then by how sure it is, at equal steps: a sample then holds each kind
of row as often as it should, give or take one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reprior._check import as_rng, check_int, fail
from reprior._types import Labels, Matrix, Vector
from reprior.estimates.estimate import PriorEstimate, check_estimate
from reprior.rows.blocks import Blocks, map_numbered
from reprior.rows.correction import correct_rows
from reprior.rows.labelled import LabelledBlocks, some_blocks
from reprior.rows.passes import CORRELATION_ROWS, count_rows, information, some_rows

RANDOM_PART = 0.2  # of the rows to label, how many are drawn without regard to what their labels may tell
STEPS, STRIDE = 4, 0.75  # towards the best chances, and their length; by trials 1000 to 1039 of labels.py
APART = 0.3  # rows of its own that each class is granted, so that no two classes err against each other alone; by those
DESIGNED = 3  # rows a class, and a thousand times that in all, by which the best chances are found
ONE_SIGMA = 0.6826894921
SPARSE_CLASSES = 256  # classes from which on matrix products take most of the time; float32 then halves it
DIAGONAL_CLASSES = 1024  # classes from which on matrix products take too long, and correlations are ignored
SURE = 1.0  # s² at most: of a class that may well be absent, no more is to be learned


class Query(NamedTuple):
    """Samples to label: `rows` (n,), their row numbers in increasing order, and `weights` (n,).

    Pass the weights to `estimate` as `label_weights`, at these rows. Samples that were chosen more often than at random
    count less.
    """

    rows: Labels
    weights: Vector


def query(estimate: PriorEstimate, n: int = 100, *, rng: int | np.random.Generator | None = 0) -> Query:
    """Choose target samples to label next: those whose labels reduce the error of the shares most.

    Parameters
    ----------
    estimate : PriorEstimate
        An estimate that has its samples (not detached). Samples with a label are not chosen again.
    n : int
        Number of samples; all unlabelled ones if there are fewer.
    rng : int or Generator, optional
        A seed, or a generator of random numbers.

    Returns
    -------
    Query
        A pair (rows (n,), weights (n,)). A weight is the probability of the sample in a uniform draw over its
        probability here.

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
        fail("query", "estimate", "have its samples", "none", remedy="Call `query` before `detach`")
    left, rows = target, np.arange(count_rows(target))
    if isinstance(target, LabelledBlocks):
        left, rows = some_blocks(target.raw, target.labels < 0), np.flatnonzero(target.labels < 0)
        if not len(rows):
            fail("query", "estimate", "have samples without a label", f"labels for all {len(target.labels)} rows")
    size = min(size, len(rows))
    often, likely, sure = label_values(left, len(rows), estimate, size)
    even = np.full(len(rows), size / len(rows))
    chance = (1 - RANDOM_PART) * inclusion(often, size) + RANDOM_PART * even
    by_size = np.argsort(np.argsort(estimate.shares, kind="stable"))  # no order of columns or rows matters
    order = np.lexsort((chance, sure.round(6), by_size[likely]))
    picked = order[systematic(chance[order], size, generator)]
    picked.sort()
    return Query(rows[picked], even[picked] / chance[picked])


class LabelValues(NamedTuple):
    """How often samples (N,) should get a label (relative), their likeliest class (N,) and its probability (N,)."""

    often: Vector
    likely: Labels
    sure: Vector


def label_values(target: Blocks, n_rows: int, estimate: PriorEstimate, n: int) -> LabelValues:
    """Return how much a label of each sample (N,) is worth if `n` of them get one."""
    prior = np.maximum(estimate.shares, 0.1 / estimate.n)
    weights = estimate.weights * prior / np.maximum(estimate.shares, 1e-12)
    some = correct_rows(np.asarray(some_rows(target, n_rows, DESIGNED * max(1000, len(prior))), np.float64), weights)
    values = designed(some, precision(target, n_rows, estimate, prior), prior, n * len(some) / n_rows)

    def of_block(first: int, block: Matrix) -> tuple[tuple[int, LabelValues], ...]:
        resp = correct_rows(np.asarray(block, np.float64), weights)
        often = np.ones(len(resp))
        for value in values:
            often *= information_value(resp, value) ** STRIDE
        return ((first, LabelValues(often, resp.argmax(axis=1), resp.max(axis=1))),)

    parts = sorted(map_numbered(target, of_block), key=lambda part: part[0])
    often, likely, sure = (np.concatenate([part[i] for _, part in parts]) for i in range(3))
    return LabelValues(often, likely, sure)


def designed(some: Matrix, labelled: Matrix, prior: Vector, n: float) -> list[Matrix]:
    """Return VΠV (K, K) at each step towards the best chances of corrected rows (m, K), of which `n` get a label, where
    so much is `labelled` (K, K) of log π without."""
    chance, values = np.full(len(some), n / len(some)), list[Matrix]()
    for _ in range(STEPS):
        drawn = chance @ some
        if labelled.ndim == 1:
            value = prior / (labelled + drawn - chance @ some**2) ** 2
        else:
            after = np.linalg.inv(labelled + np.diag(drawn) - (some.T * chance) @ some)
            value = (after * prior) @ after
        values.append(value / np.max(value))
        chance = inclusion(chance * information_value(some, values[-1]) ** STRIDE, n)
    return values


def information_value(resp: Matrix, value: Matrix) -> Vector:
    """Return what a label of each row (n, K) tells, tr[(diag(r) − rrᵀ) `value`]; (K,) is a diagonal."""
    if value.ndim == 1:
        return np.asarray((resp * (1 - resp)) @ value)
    if len(value) > SPARSE_CLASSES:  # seven digits do, at half the price
        resp, value = resp.astype(np.float32), value.astype(np.float32)
    beyond = resp @ np.diag(value) - np.einsum("ij,ij->i", resp @ value, resp)
    return np.asarray(np.maximum(beyond, 0.0), np.float64)


def precision(target: Blocks, n_rows: int, estimate: PriorEstimate, prior: Vector) -> Matrix:
    """Return the inverse (K, K) of the covariance of log π: variances are those of the estimate, and correlations those
    that the rows give; of very many classes its diagonal (K,) without correlations."""
    lower, upper = estimate.interval(ONE_SIGMA)
    unsure = np.clip(((upper - lower) / (2 * prior)) ** 2, 1e-12, SURE)  # s², of the logarithm of a share
    k = len(prior)
    if k > DIAGONAL_CLASSES:
        return 1 / unsure
    stride = max(1, n_rows // (CORRELATION_ROWS * max(1000, k)))
    about = information(target, prior, estimate.source.prior, stride=stride, per_log=True) * stride
    about /= getattr(estimate.posterior, "variance_factor", 1.0)
    about.flat[:: k + 1] += APART
    scale = np.sqrt(np.maximum(np.diag(np.linalg.inv(about)), 1e-300) / unsure)
    return np.asarray(about * scale * scale[:, None])


def inclusion(size: Vector, n: float) -> Vector:
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
