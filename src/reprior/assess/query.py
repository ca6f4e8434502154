"""Which target samples to label next: an A-optimal design, drawn with known probabilities.

A-optimality: the labels should minimise the expected KL of the estimated prior, ½ Σ π_j V_jj, with V the covariance of
log π given the labels. A label of a sample with corrected probabilities r (K,) adds the information diag(r) − rrᵀ about
log π. So one more label lowers the KL in proportion to its value tr[(diag(r) − rrᵀ) VΠV]. Samples between two classes
that are often confused have the largest values, and each draw lowers the value of the next. The design is optimal if
no sample has a larger value than those drawn. Multiplicative steps approach it: each multiplies the probability of a
sample by a power of its value [silvey1978].

A part of the samples is drawn evenly, so that each has a positive probability and no weight is large. The draw is
systematic: samples are ordered by likely class and then by its probability, and taken at equal steps. So each kind of
sample is drawn as often as its probability requires, give or take one.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reprior._check import as_rng, check_int, fail
from reprior._types import Labels, Matrix, Vector
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.verdict import MAX_LABELS
from reprior.rows.blocks import Blocks, map_numbered
from reprior.rows.correction import correct_rows
from reprior.rows.labelled import LabelledBlocks, SomeBlocks
from reprior.rows.passes import CORRELATION_ROWS, count_rows, information, some_rows

RANDOM_PART = 0.5  # part of the samples that is drawn evenly, so that no weight exceeds 2
STEPS, STRIDE = 4, 0.75  # multiplicative steps, and their power; by trials 1000 to 1039 of labels.py
RIDGE_SAMPLES = 0.3  # samples added to each class's information, a ridge against confused classes; by these trials
DESIGNED = 3  # samples per class, and at least 1,000 times as many in all, that the design is computed on
ONE_SIGMA = 0.6826894921
# mean m of the log Bayes factor of labels at which it exceeds log 20 with probability 0.8, m − 0.84 √(2m) = log 20: the
# factor of two near models is about normal with variance 2m. Class biases, which labels are fitted with too, make that
# about three of four draws.
DECISIVE = 5.9
FLOAT32_CLASSES = 256  # classes from which on matrix products take most of the time; float32 then halves it
DIAGONAL_CLASSES = 1024  # classes from which on matrix products take too long, and correlations are ignored
MAX_LOG_VARIANCE = 1.0  # largest variance of a log share; a class that may be absent has a larger one


class Query(NamedTuple("Pair", [("rows", Labels), ("weights", Vector)])):
    """Samples to label: `rows` (n,), their row numbers in increasing order, and `weights` (n,).

    Pass the weights to `estimate` as `label_weights`, at these rows. Samples that were chosen more often than at random
    count less. `labels_needed` is about how many labels of random samples settle whether to correct; see `query`.
    """

    labels_needed: int


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
        probability here. Its `labels_needed` is about how many more labels of random samples settle whether corrected
        or calibrated probabilities are right: the Bayes factor is then above 20 in about three of four draws. It is at
        most 10,000. If a pipeline made the estimate with its tests, it is 0 once labels have settled it. Otherwise it
        compares with a target that has the source prior, and counts neither a `base` nor earlier labels.

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
    size, generator = check_int(n, "query", "n"), as_rng(rng)
    if not isinstance(estimate, PriorEstimate):
        kind = type(estimate).__name__
        fail("query", "estimate", "be what a method or a pipeline's `estimate` returned", f"a {kind}")
    if (target := estimate.target) is None:
        fail("query", "estimate", "have its samples", "none", remedy="Call `query` before `detach`")
    left, rows = target, np.arange(count_rows(target))
    if isinstance(target, LabelledBlocks):
        left, rows = SomeBlocks(target.raw, target.labels < 0), np.flatnonzero(target.labels < 0)
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
    chosen = Query(rows[picked], even[picked] / chance[picked])
    needed, k = None if estimate.checks is None else estimate.checks.labels_needed, len(estimate.weights)
    some = np.asarray(some_rows(left, len(rows), DESIGNED * max(1000, k)), np.float64)
    chosen.labels_needed = labels_needed(some, estimate.weights, np.ones(k)) if needed is None else needed
    return chosen


def labels_needed(sample: Matrix, corrected: Vector, calibrated: Vector, so_far: float = 0.0) -> int:
    """Return about how many more labels settle whether `corrected` or `calibrated` class weights (K,) are right.

    A label of a random sample adds mean KL(p ‖ q) to the log Bayes factor if p is right: the smaller of both KLs over a
    `sample` (m, K) counts. `so_far` is the log Bayes factor of earlier labels.
    """
    a, b = calibrated, np.maximum(corrected, 1e-30)
    ratio = np.log(b / a)
    sum_a, sum_b, ratio_a, ratio_b = np.stack([a, b, a * ratio, b * ratio]) @ sample.T
    log_sums = np.log(sum_b / sum_a).mean()
    per_label = min((ratio_b / sum_b).mean() - log_sums, log_sums - (ratio_a / sum_a).mean())
    unsettled = max(1 - abs(so_far) / np.log(20), 0.0)
    return int(min(np.ceil(unsettled * DECISIVE / max(per_label, 1e-12)), MAX_LABELS))


class LabelValues(NamedTuple):
    """How often samples (N,) should get a label (relative), their likeliest class (N,) and its probability (N,)."""

    often: Vector
    likely: Labels
    sure: Vector


def label_values(target: Blocks, n_rows: int, estimate: PriorEstimate, n: int) -> LabelValues:
    """Return the value of a label of each sample (N,) if `n` of them get one."""
    prior = np.maximum(estimate.shares, 0.1 / estimate.n)
    weights = estimate.weights * prior / np.maximum(estimate.shares, 1e-12)
    some = correct_rows(np.asarray(some_rows(target, n_rows, DESIGNED * max(1000, len(prior))), np.float64), weights)
    values = design_values(some, precision(target, n_rows, estimate, prior), prior, n * len(some) / n_rows)

    def of_block(first: int, block: Matrix) -> tuple[tuple[int, LabelValues], ...]:
        resp = correct_rows(np.asarray(block, np.float64), weights)
        often = np.ones(len(resp))
        for value in values:
            often *= information_value(resp, value) ** STRIDE
        return ((first, LabelValues(often, resp.argmax(axis=1), resp.max(axis=1))),)

    parts = sorted(map_numbered(target, of_block), key=lambda part: part[0])
    return LabelValues(*map(np.concatenate, zip(*(part for _, part in parts), strict=True)))


def design_values(rows: Matrix, precision: Matrix, prior: Vector, n: float) -> list[Matrix]:
    """Return VΠV at each step to the A-optimal design of `n` labels; `precision` of log π is (K, K) or (K,)."""
    chance, values = np.full(len(rows), n / len(rows)), list[Matrix]()
    for _ in range(STEPS):
        drawn = chance @ rows
        if precision.ndim == 1:
            value = prior / (precision + drawn - chance @ rows**2) ** 2
        else:
            covariance = np.linalg.inv(precision + np.diag(drawn) - (rows.T * chance) @ rows)
            value = (covariance * prior) @ covariance
        values.append(value / np.max(value))
        chance = inclusion(chance * information_value(rows, values[-1]) ** STRIDE, n)
    return values


def information_value(resp: Matrix, value: Matrix) -> Vector:
    """Return the value of a label of each row r (n, K), tr[(diag(r) − rrᵀ) `value`]; a `value` (K,) is a diagonal."""
    if value.ndim == 1:
        return np.asarray((resp * (1 - resp)) @ value)
    if len(value) > FLOAT32_CLASSES:  # seven digits suffice, in half the time
        resp, value = resp.astype(np.float32), value.astype(np.float32)
    beyond = resp @ np.diag(value) - np.einsum("ij,ij->i", resp @ value, resp)
    return np.asarray(np.maximum(beyond, 0.0), np.float64)


def precision(target: Blocks, n_rows: int, estimate: PriorEstimate, prior: Vector) -> Matrix:
    """Return the inverse (K, K) of the covariance of log π, with variances from the estimate and correlations from the
    samples; for very many classes only its diagonal (K,), without correlations."""
    lower, upper = estimate.interval(ONE_SIGMA)
    unsure = np.clip(((upper - lower) / (2 * prior)) ** 2, 1e-12, MAX_LOG_VARIANCE)  # s², of the logarithm of a share
    k = len(prior)
    if k > DIAGONAL_CLASSES:
        return 1 / unsure
    stride = max(1, n_rows // (CORRELATION_ROWS * max(1000, k)))
    about = information(target, prior, estimate.source.prior, stride=stride, per_log=True) * stride
    about.flat[:: k + 1] += RIDGE_SAMPLES
    scale = np.sqrt(np.maximum(np.diag(np.linalg.inv(about)), 1e-300) / unsure)
    return np.asarray(about * scale * scale[:, None])


def inclusion(size: Vector, n: float) -> Vector:
    """Return probabilities (N,) with the sum n, in proportion to `size` (N,) but at most 1."""
    size = np.maximum(size, 1e-12 * max(float(size.max()), 1e-300))
    chance, sure = np.zeros(len(size)), np.zeros(len(size), bool)
    while True:
        left = ~sure
        chance[left] = (n - sure.sum()) * size[left] / size[left].sum()
        over = left & (chance > 1)
        if not over.any():
            return np.minimum(chance, 1.0)
        sure |= over
        chance[sure] = 1.0


def systematic(chance: Vector, n: int, rng: np.random.Generator) -> Labels:
    """Return n different positions by systematic sampling: at equal steps along the cumulative `chance` (N,)."""
    edges = np.cumsum(chance)
    edges *= n / edges[-1]
    return np.minimum(np.searchsorted(edges, np.arange(n) + rng.random(), side="right"), len(chance) - 1)
