"""The accuracy to expect on the target.

Three figures are combined by their variances: the mean corrected probability of the predicted class on the target (its
*promise*), the accuracy of held-out samples reweighted to the estimated shares, and the accuracy of labelled target
samples, if there are any.

The promise is optimistic, because the shares were fitted to the same predictions. It is therefore averaged over shares
that the estimate might have been; with labels, half of that difference is removed. A calibrator makes promises true at
the held-out prior. At another prior one class may be right more often than promised, and another less often. Held-out
samples were used to fit the calibrator, so each is evaluated as if it had been left out of the fit.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reprior._types import Labels, Matrix, Source, Vector
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.sets import nearby
from reprior.rows.blocks import Blocks
from reprior.rows.correction import correct_float64
from reprior.rows.labelled import LabelledBlocks, taken_rows

SHARE_DRAWS = 16  # class shares that the estimate might have been
# standard deviation of how much more often than promised a class is right; by trials 1000 to 1079 of labels.py, and
# seeds 1000 to 1019 of the sets that ordinary.py was designed on
CLASS_ACCURACY_SD = 0.07
MIN_VARIANCE_PART = 0.3  # smallest variance of "right or wrong", as a part of that of equally likely samples
SURPRISE = 9.0  # squared standard errors beyond which two figures differ by more than was foreseen
Z_95 = 1.959964


class Accuracy(NamedTuple):
    """Expected accuracy of uncorrected and of corrected predictions, a 95 % interval of the latter, and by how much
    correction may lower it if the true shares differ from the estimate; 0 if it hardly can."""

    before: float
    after: float
    lower: float
    upper: float
    risk: float


class Tried(NamedTuple):
    """What labels tell: the accuracies of rows without one (2,), before and after, variances of those (2,), the
    accuracies of rows with one (2,), how many of all rows those are, and by how much the others promise more than all
    (2,)."""

    accuracy: Vector
    noise: Vector
    own: Vector
    part: float
    apart_by: Vector


class Rows(NamedTuple):
    """Of rows: how likely their prediction is right before and after correction, and whether it is, (2, n) each."""

    promised: Matrix
    right: Matrix


class Promises(NamedTuple):
    """What predictions of the target promise, before and after correction, (2,) each, by corrected probabilities.

    `mean` is the accuracy, `spread` its variance per sample, `unchecked` the part of it from classes without held-out
    samples, `redrawn` (2, m) the accuracy under other shares that might be true, `kept` and `shifted` that under the
    estimated shares and under those without the bet that nothing has shifted.
    """

    mean: Vector
    spread: Vector
    unchecked: Vector
    redrawn: Matrix
    kept: Vector
    shifted: Vector


class Expected(NamedTuple):
    """An accuracy before and after correction (2,), and its variance (2,)."""

    mean: Vector
    variance: Vector


def expected_accuracy(estimate: PriorEstimate, target: Blocks, source: Source) -> Accuracy | None:
    """Return the expected accuracy; None without held-out samples and labels of target samples."""
    labelled = estimate.target if isinstance(estimate.target, LabelledBlocks) else None
    if source.heldout is None and labelled is None:
        return None
    counts = np.zeros(len(estimate.weights))
    if source.heldout is not None:
        counts += np.bincount(source.heldout[1], minlength=len(counts))
    made = promises(estimate, target, counts)
    now, unlabelled = Expected(made.mean, np.full(2, np.inf)), 1.0
    if source.heldout is not None:
        now = by_heldout(estimate, made, counts, *source.heldout, flattery=1.0 if labelled is None else 0.5)
    if labelled is not None:
        tried = by_labels(labelled, estimate, made.mean)
        now, unlabelled = with_labels(now, tried), 1 - tried.part
    variance = now.variance + unlabelled * made.spread / float(estimate.n)
    before, after = np.clip(now.mean, 0.0, 1.0)
    gains = made.redrawn[1] - made.redrawn[0]
    least = min(after - before, float(gains.mean() - 2 * gains.std()) if gains.size else np.inf)
    reach = Z_95 * float(np.sqrt(variance[1]))
    ends = max(0.0, float(after) - reach), min(1.0, float(after) + reach)
    return Accuracy(float(before), float(after), *ends, max(0.0, -float(least)))


def promises(estimate: PriorEstimate, target: Blocks, counts: Vector) -> Promises:
    """Return what the predictions promise, in one pass over the target; `counts` (K,) are held-out samples."""
    weights, unchecked = estimate.weights, counts == 0
    per_share = weights / np.maximum(estimate.shares, 1e-12)
    others = np.concatenate([plausible_shares(estimate), shares_without_bet(estimate)]) * per_share

    def of_block(block: Matrix) -> Matrix:
        wide, promise = np.asarray(block, np.float64), promised(block, weights)
        total, made = wide @ others.T, (wide.argmax(axis=1), (wide * weights).argmax(axis=1))
        shares = [(wide[np.arange(len(y)), y, None] * others.T[y] / np.maximum(total, 1e-300)).sum(axis=0)
                  for y in made]  # fmt: skip
        alone = [(p * unchecked[y]).sum() for p, y in zip(promise, made, strict=True)]
        sums = [promise.sum(axis=1), (promise * (1 - promise)).sum(axis=1), np.array(alone)]
        return np.concatenate([np.stack(sums, axis=1), shares], axis=1)

    sums = np.asarray(target.map_sum(of_block) / float(estimate.n), np.float64)
    mean, spread, alone = sums[:, :3].T  # one that promises p is right with variance p(1 − p)
    kept, shifted = sums[:, -2:].T
    return Promises(mean, spread, alone, sums[:, 3:-2], kept, shifted)


def by_heldout(
    estimate: PriorEstimate, made: Promises, counts: Vector, rows: Matrix, y: Labels, *, flattery: float
) -> Expected:
    """Return what held-out samples (n, K) with labels (n,) and the promises let one expect.

    `flattery` is the part to take out of what shares fitted to the same predictions add to a promise. Labels of target
    samples have taken out some of it, and nothing tells how much.
    """
    each, fitted, redrawn = (estimate.shares / np.maximum(counts, 1))[y], estimate.calibrator, made.redrawn
    apart = outcomes(np.asarray(rows, np.float64) if fitted is None else fitted.left_out(rows, y), y, estimate.weights)
    promise = made.mean
    if redrawn.size:
        promise = promise - flattery * np.maximum(promise - redrawn.mean(axis=1), 0.0)
    # classes without a held-out sample are mostly rare and rarely right: they are as they promise
    measured = np.clip(apart.right @ each + made.unchecked, 0.0, 1.0)
    plain = MIN_VARIANCE_PART * smoothed_variance(measured, len(y))
    noise = np.maximum((each**2) @ (apart.promised * (1 - apart.promised)).T, plain * float(each @ each))
    noise = noise + 2 * made.spread * float((estimate.shares[counts == 0] ** 2).sum())  # half a sample tells of such
    # what so many samples leave unproven of promises at their own prior, and what another prior adds to it
    moved = estimate.shares - counts / len(y)
    unproven = np.maximum(made.spread, plain) / len(y) + CLASS_ACCURACY_SD**2 * float(moved @ moved)
    doubted = widened_variance(unproven, measured - promise, noise)
    gain = doubted / (doubted + noise)
    # both stand on the same held-out samples: that they agree makes neither surer, until there are very many of those
    variance = np.maximum(np.minimum(unproven, 2 * noise), gain * noise)
    variance = variance + (redrawn.var(axis=1) if redrawn.size else 0.0) + (made.shifted - made.kept) ** 2
    return Expected(promise + gain * (measured - promise), variance)


def with_labels(now: Expected, tried: Tried) -> Expected:
    """Return what labels of target samples make of an expectation. Labelled samples are as right as they are, so that
    only the others are uncertain."""
    mean = now.mean + tried.apart_by  # of the samples without a label: those with one may have been chosen
    variance = widened_variance(now.variance, tried.accuracy - mean, tried.noise)
    gain = variance / (variance + tried.noise) if np.isfinite(variance).all() else np.ones(2)
    left = 1 - tried.part
    mean = left * (tried.accuracy + (1 - gain) * (mean - tried.accuracy)) + tried.part * tried.own
    return Expected(mean, left**2 * tried.noise * gain)


def smoothed_variance(rate: Vector, n: int) -> Vector:
    """Return the variance of "right or wrong", p(1 − p), if `n` samples are right at this rate (2,).

    Half a right and half a wrong sample are added, because samples that are all right do not prove that none is wrong.
    """
    rate = (n * rate + 0.5) / (n + 1)
    return np.asarray(rate * (1 - rate))


def widened_variance(variance: Vector, differ: Vector, noise: Vector) -> Vector:
    """Return the variance (2,) of a figure that differs by `differ` (2,) from another with variance `noise` (2,).

    It grows if they are more than three standard errors apart.
    """
    return np.asarray(variance + np.maximum(differ**2 - SURPRISE * (variance + noise), 0.0))


def plausible_shares(estimate: PriorEstimate) -> Matrix:
    """Return class shares (m, K) that these samples might have, as far as the estimate has a posterior; else none."""
    posterior, shares = estimate.posterior, estimate.shares
    if posterior is None:
        return np.empty((0, len(shares)))
    # shares are drawn class by class and then made to add up to one, which takes this part of their variance
    return nearby(shares, np.sqrt(posterior.shares.variance / np.maximum(1 - shares, 1e-9)), SHARE_DRAWS)


def shares_without_bet(estimate: PriorEstimate) -> Matrix:
    """Return the estimated shares, and what they would be without the bet that nothing has shifted, (2, K)."""
    posterior = estimate.posterior
    mean = posterior.shares.mean if posterior is not None else estimate.shares
    return np.stack([estimate.shares, mean / mean.sum()])


class AsUnlabelled(NamedTuple):
    """Labelled target rows (m, K) with labels `y` (m,), how much each tells of rows without a label, `each` (m,), and
    the rows corrected as if each had no label, `alone` (m, K)."""

    rows: Matrix
    y: Labels
    each: Vector
    alone: Matrix


def as_unlabelled(target: LabelledBlocks, estimate: PriorEstimate) -> AsUnlabelled:
    """Return labelled samples corrected as if they had no label, so that they tell of samples without one.

    A sample that was chosen stands for itself and for samples that were not; here it tells of the latter alone.
    """
    there = target.labels >= 0
    rows, y = taken_rows(target.raw, there), target.labels[there]
    part, each = len(y) / len(there), np.ones(len(y)) if target.weights is None else target.weights[there]
    each = each / each.mean()
    posterior, p = estimate.posterior, correct_float64(rows, estimate.weights)
    step = posterior.log_weight_variance if posterior is not None else np.zeros(p.shape[1])
    # one Newton step back: a label moved log w by its variance times (1 at its class − p)
    apart = rows * np.exp(p * step)
    apart[np.arange(len(y)), y] *= np.exp(-step[y])
    each = np.maximum(each - part, 1e-9)  # samples that were sure to be chosen stand for no other
    return AsUnlabelled(rows, y, each / each.sum(), correct_float64(apart, estimate.weights))


def by_labels(target: LabelledBlocks, estimate: PriorEstimate, promise: Vector) -> Tried:
    """Return what labels of target rows tell of the accuracy: by how much the rows fail what they promise. The
    `promise` (2,) of all rows is then less by so much."""
    rows, y, each, alone = as_unlabelled(target, estimate)
    part, results = len(y) / len(target.labels), outcomes(rows, y, estimate.weights)
    right = np.stack([results.right[0], alone.argmax(axis=1) == y])
    promises = np.stack([alone[np.arange(len(y)), rows.argmax(axis=1)], alone.max(axis=1)])
    missed = right - promises
    plain = MIN_VARIANCE_PART * smoothed_variance(right @ each, len(y)) * float(each @ each)
    # as promised, and as it is seen
    chance = promises * (1 - promises), (missed - (missed @ each)[:, None]) ** 2
    noise = np.maximum(np.maximum(*(x @ each**2 for x in chance)), plain)
    apart_by = part / max(1 - part, 1e-6) * (promise - results.promised.mean(axis=1))
    return Tried(promise + apart_by + missed @ each, noise, results.right.mean(axis=1), part, apart_by)


def promised(rows: Matrix, weights: Vector) -> Matrix:
    """Return the corrected probability of the predicted class (2, n): before and after correction."""
    wide = np.asarray(rows, np.float64)
    resp = correct_float64(wide, weights)
    return np.stack([np.take_along_axis(resp, wide.argmax(axis=1)[:, None], axis=1)[:, 0], resp.max(axis=1)])


def outcomes(rows: Matrix, y: Labels, weights: Vector) -> Rows:
    """Return what rows (n, K) with labels (n,) tell."""
    right = np.stack([rows.argmax(axis=1) == y, (rows * weights).argmax(axis=1) == y]).astype(np.float64)
    return Rows(promised(rows, weights), right)
