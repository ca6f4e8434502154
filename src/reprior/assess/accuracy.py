"""The accuracy to expect on the target.

Three figures are combined by their variances: the *predicted accuracy* on the target, which is the mean corrected
probability of the predicted class; the accuracy of held-out samples reweighted to the estimated shares; and the
accuracy of labelled target samples, if there are any.

The predicted accuracy is optimistic, because the shares were fitted to the same predictions. It is therefore averaged
over shares that the estimate might have been; with labels, half of that difference is removed. A calibrator makes it
exact at the held-out prior. At another prior one class may be right more often than predicted, and another less often.
Held-out samples were used to fit the calibrator, so each is evaluated as if it had been left out of the fit.

Pairs (2,) and first axes of length 2 are predictions before and after correction.
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
# standard deviation of how much more often than predicted a class is right; by trials 1000 to 1079 of labels.py, and
# seeds 1000 to 1019 of the sets that ordinary.py was designed on
CLASS_ACCURACY_SD = 0.07
MIN_VARIANCE_PART = 0.3  # smallest variance of "right or wrong", as a part of that of equally likely samples
SURPRISE = 9.0  # squared standard errors beyond which two figures differ by more than was foreseen
Z_95 = 1.959964


class Accuracy(NamedTuple):
    """Expected accuracy uncorrected and corrected, a 95 % interval of the latter, and how much it may harm."""

    before: float
    after: float
    lower: float
    upper: float
    risk: float


class PredictedAccuracy(NamedTuple):
    """Accuracy on the target by corrected probabilities, and what it is under other class shares."""

    mean: Vector  # (2,)
    spread: Vector  # (2,), variance per sample
    unchecked: Vector  # (2,), the part of the mean from classes without held-out samples
    redrawn: Matrix  # (2, m), under shares that might be true
    kept: Vector  # (2,), under the estimated shares
    shifted: Vector  # (2,), under the posterior mean of the shares, which does not bet that nothing has shifted


class Expected(NamedTuple):
    """An accuracy (2,), and its variance (2,)."""

    mean: Vector
    variance: Vector


def expected_accuracy(estimate: PriorEstimate, target: Blocks, source: Source) -> Accuracy | None:
    """Return the expected accuracy; None without held-out samples and labels of target samples."""
    labelled = estimate.target if isinstance(estimate.target, LabelledBlocks) else None
    if source.heldout is None and labelled is None:
        return None
    y = np.empty(0, np.intp) if source.heldout is None else source.heldout[1]
    counts = np.bincount(y, minlength=len(estimate.weights)).astype(np.float64)
    made = predicted_accuracies(estimate, target, counts)
    now, unlabelled = Expected(made.mean, np.full(2, np.inf)), 1.0
    if source.heldout is not None:
        now = by_heldout(estimate, made, counts, *source.heldout, optimism=1.0 if labelled is None else 0.5)
    if labelled is not None:
        now = with_labels(now, labelled, estimate, made.mean)
        unlabelled -= labelled.n_labels / len(labelled.labels)
    variance = now.variance + unlabelled * made.spread / float(estimate.n)
    before, after = np.clip(now.mean, 0.0, 1.0)
    gains = made.redrawn[1] - made.redrawn[0]
    least = min(after - before, float(gains.mean() - 2 * gains.std()) if gains.size else np.inf)
    reach = Z_95 * float(np.sqrt(variance[1]))
    ends = max(0.0, float(after) - reach), min(1.0, float(after) + reach)
    return Accuracy(float(before), float(after), *ends, max(0.0, -float(least)))


def predicted_accuracies(estimate: PriorEstimate, target: Blocks, counts: Vector) -> PredictedAccuracy:
    """Return the predicted accuracy, in one pass over the target; `counts` (K,) are held-out samples."""
    weights, shares, posterior, unchecked = estimate.weights, estimate.shares, estimate.posterior, counts == 0
    mean = shares if posterior is None else posterior.shares.mean
    others = np.concatenate([plausible_shares(estimate), [shares, mean / mean.sum()]])
    others = others * (weights / np.maximum(shares, 1e-12))

    def of_block(block: Matrix) -> Matrix:
        wide, confidence = np.asarray(block, np.float64), prediction_confidence(block, weights)
        total, made = wide @ others.T, (wide.argmax(axis=1), (wide * weights).argmax(axis=1))
        by_others = [(wide[np.arange(len(y)), y, None] * others.T[y] / np.maximum(total, 1e-300)).sum(axis=0)
                     for y in made]  # fmt: skip
        alone = [(p * unchecked[y]).sum() for p, y in zip(confidence, made, strict=True)]
        sums = [confidence.sum(axis=1), (confidence * (1 - confidence)).sum(axis=1), np.array(alone)]
        return np.concatenate([np.stack(sums, axis=1), by_others], axis=1)

    sums = np.asarray(target.map_sum(of_block) / float(estimate.n), np.float64)
    mean, spread, alone = sums[:, :3].T  # a prediction with confidence p is right with variance p(1 − p)
    return PredictedAccuracy(mean, spread, alone, sums[:, 3:-2], sums[:, -2], sums[:, -1])


def plausible_shares(estimate: PriorEstimate) -> Matrix:
    """Return class shares (m, K) that these samples might have, as far as the estimate has a posterior; else none."""
    posterior, shares = estimate.posterior, estimate.shares
    if posterior is None:
        return np.empty((0, len(shares)))
    # shares are drawn class by class and then made to add up to one, which takes this part of their variance
    return nearby(shares, np.sqrt(posterior.shares.variance / np.maximum(1 - shares, 1e-9)), SHARE_DRAWS)


def by_heldout(
    estimate: PriorEstimate, made: PredictedAccuracy, counts: Vector, rows: Matrix, y: Labels, *, optimism: float
) -> Expected:
    """Return the accuracy expected from held-out samples (n, K) with labels (n,) and from the predicted accuracy.

    Shares fitted to the same predictions raise the predicted accuracy; the part `optimism` of this gain is removed.
    """
    sample_weights = (estimate.shares / np.maximum(counts, 1))[y]
    calibrator, redrawn = estimate.calibrator, made.redrawn
    rows = np.asarray(rows, np.float64) if calibrator is None else calibrator.left_out(rows, y)
    predicted, confidence = made.mean, prediction_confidence(rows, estimate.weights)
    if redrawn.size:
        predicted = predicted - optimism * np.maximum(predicted - redrawn.mean(axis=1), 0.0)
    # classes without a held-out sample are mostly rare and rarely right: their predicted accuracy counts
    measured = np.clip(are_right(rows, y, estimate.weights) @ sample_weights + made.unchecked, 0.0, 1.0)
    min_variance = MIN_VARIANCE_PART * smoothed_variance(measured, len(y))
    by_confidence = (confidence * (1 - confidence)) @ sample_weights**2
    noise = np.maximum(by_confidence, min_variance * float(sample_weights @ sample_weights))
    noise = noise + 2 * made.spread * float((estimate.shares[counts == 0] ** 2).sum())  # these count as half a sample
    # variance of the predicted accuracy: of a check by n samples at the held-out prior, plus that of another prior
    moved = estimate.shares - counts / len(y)
    unproven = np.maximum(made.spread, min_variance) / len(y) + CLASS_ACCURACY_SD**2 * float(moved @ moved)
    doubted = widened_variance(unproven, measured - predicted, noise)
    gain = doubted / (doubted + noise)
    # both stand on the same held-out samples: that they agree makes neither surer, until there are very many of those
    variance = np.maximum(np.minimum(unproven, 2 * noise), gain * noise)
    variance = variance + (redrawn.var(axis=1) if redrawn.size else 0.0) + (made.shifted - made.kept) ** 2
    return Expected(predicted + gain * (measured - predicted), variance)


def with_labels(now: Expected, target: LabelledBlocks, estimate: PriorEstimate, predicted: Vector) -> Expected:
    """Return what labels of target samples make of an expectation; `predicted` (2,) is the accuracy of all samples.

    Samples without a label have the predicted accuracy, plus the mean of right or wrong minus confidence of labelled
    samples, which are corrected as if they had no label. Labelled samples are as right as they are.
    """
    has_label, weights = target.labels >= 0, estimate.weights
    rows, y = taken_rows(target.raw, has_label), target.labels[has_label]
    part = len(y) / len(has_label)
    sample_weights = np.ones(len(y)) if target.weights is None else target.weights[has_label]
    # a labelled sample is also one of all samples: that part of its weight adds nothing
    sample_weights = np.maximum(sample_weights / sample_weights.mean() - part, 1e-9)
    sample_weights /= sample_weights.sum()
    residual, noise = label_residuals(rows, y, estimate, sample_weights)
    # samples without a label are predicted to be right more often than all by this: those with one may be chosen
    unlabelled_offset = part / max(1 - part, 1e-6) * (predicted - prediction_confidence(rows, weights).mean(axis=1))
    accuracy, mean = predicted + unlabelled_offset + residual, now.mean + unlabelled_offset
    variance = widened_variance(now.variance, accuracy - mean, noise)
    gain = variance / (variance + noise) if np.isfinite(variance).all() else np.ones(2)
    of_labelled = are_right(rows, y, weights).mean(axis=1)
    mean = (1 - part) * (accuracy + (1 - gain) * (mean - accuracy)) + part * of_labelled
    return Expected(mean, (1 - part) ** 2 * noise * gain)


def label_residuals(rows: Matrix, y: Labels, estimate: PriorEstimate, sample_weights: Vector) -> Expected:
    """Return the weighted mean of right or wrong minus confidence of labelled samples (n, K), and its variance.

    Each is corrected as if it had no label, by one Newton step back: a label moved log w by its variance times
    (1 at its class − p).
    """
    posterior, p, each = estimate.posterior, correct_float64(rows, estimate.weights), np.arange(len(y))
    step = posterior.log_weight_variance if posterior is not None else np.zeros(p.shape[1])
    moved_back = rows * np.exp(p * step)
    moved_back[each, y] *= np.exp(-step[y])
    left_out = correct_float64(moved_back, estimate.weights)
    made = np.stack([rows.argmax(axis=1), left_out.argmax(axis=1)])
    right, confidence = made == y, left_out[each, made]
    residual = right - confidence
    mean = residual @ sample_weights
    min_variance = MIN_VARIANCE_PART * smoothed_variance(right @ sample_weights, len(y))
    by_confidence, observed = confidence * (1 - confidence), (residual - mean[:, None]) ** 2
    noise = np.maximum(by_confidence @ sample_weights**2, observed @ sample_weights**2)
    return Expected(mean, np.maximum(noise, min_variance * float(sample_weights @ sample_weights)))


def smoothed_variance(rate: Vector, n: int) -> Vector:
    """Return the variance p(1 − p) of "right or wrong" at a rate (2,), with half a sample of each more than `n`."""
    # samples that are all right do not prove that none is wrong
    rate = (n * rate + 0.5) / (n + 1)
    return np.asarray(rate * (1 - rate))


def widened_variance(variance: Vector, differ: Vector, noise: Vector) -> Vector:
    """Return a variance (2,), widened if two figures differ by more than three standard errors."""
    return np.asarray(variance + np.maximum(differ**2 - SURPRISE * (variance + noise), 0.0))


def prediction_confidence(rows: Matrix, weights: Vector) -> Matrix:
    """Return the corrected probability of the predicted class (2, n)."""
    wide = np.asarray(rows, np.float64)
    resp = correct_float64(wide, weights)
    return np.stack([np.take_along_axis(resp, wide.argmax(axis=1)[:, None], axis=1)[:, 0], resp.max(axis=1)])


def are_right(rows: Matrix, y: Labels, weights: Vector) -> Matrix:
    """Return whether predictions from rows (n, K) match the labels (n,), as 0 or 1 (2, n)."""
    return np.stack([rows.argmax(axis=1) == y, (rows * weights).argmax(axis=1) == y]).astype(np.float64)
