"""Do labels of target samples agree with the predictions, and is there a shift by the labels?"""

from __future__ import annotations

import numpy as np

from reprior._check import REJECTED, percent
from reprior._types import Labels, Matrix
from reprior.estimates.estimate import PriorEstimate
from reprior.model.ebls import ebls
from reprior.rows.correction import correct_float64, correct_rows
from reprior.rows.labelled import LabelledBlocks, taken_rows

STRANGE = 0.3  # share of labelled samples that may have any class, whatever their probabilities
FEW_LABELS = 5  # below which chance may contradict anything
ENOUGH_LABELS = 20  # from which on their number in each class shows a shift
LOOKED_AT, DRAWS = 500, 99  # labelled rows that are looked at, and samples as large that they are held against
ALL_ALIKE = 1e-3  # probability of labels of one class alone, below which they are refused
OPEN_LEVEL = 0.99  # level of the interval whose upper end that probability is computed at
UNMOVED, BEYOND = 1 / 3, 3.0  # share of the way that the mean output must have gone, and standard errors short of all


def scaled_chi_square_p(value: float, *, mean: float, variance: float) -> float:
    """Return the chance of more than `value`, a sum of weighted χ² with this mean and variance (Satterthwaite)."""
    from scipy.special import chdtrc

    if not variance > 0:  # one sample, or equal samples: the variance by chance is unknown
        return 1.0
    return float(chdtrc(2 * mean**2 / variance, 2 * mean * value / variance))


def look_at_labels(estimate: PriorEstimate, sample: Matrix) -> tuple[str, float]:
    """Return a sentence if labels conflict with the predictions, else "", and the p-value of "nothing has shifted" by
    the labels, 1 if they are too few. `sample` (m, K) is a part of the predicted probabilities."""
    target, source = estimate.target, estimate.source
    if not isinstance(target, LabelledBlocks) or target.n_labels < FEW_LABELS:
        return "", 1.0
    there = np.flatnonzero(target.labels >= 0)
    there = there[:: -(-len(there) // LOOKED_AT)]
    rows, y = taken_rows(target.raw, np.isin(np.arange(len(target.labels)), there)), target.labels[there]
    p = labels_p_value(rows, y, source.n_heldout) if source.n_heldout and target.n_labels >= ENOUGH_LABELS else 1.0
    corrected = correct_rows(rows, np.maximum(estimate.shares, 1e-9) / source.prior)
    return (
        misplaced(corrected, y)
        or swapped(corrected, y, source.called)
        or (hand_picked(estimate, rows, sample) if target.weights is None else "")
        or one_class(estimate, rows, y, sample)
        or (unmoved(estimate, sample) if p < REJECTED else "")
    ), p


def labels_p_value(rows: Matrix, y: Labels, n_heldout: int) -> float:
    """Return the p-value of "labels (n,) are as frequent as their rows (n, K) predict", however those were chosen."""
    covariance = np.diag(rows.sum(axis=0)) - rows.T @ rows
    covariance *= 1 + len(y) / n_heldout  # the calibration has the error of as many samples
    scale = 1 + np.diag(covariance)  # a class that was not to be expected at all is no proof by its one label
    squares = float(((np.bincount(y, minlength=rows.shape[1]) - rows.sum(axis=0)) ** 2 / scale).sum())
    covariance /= np.sqrt(np.outer(scale, scale))
    return scaled_chi_square_p(squares, mean=float(np.trace(covariance)), variance=2 * float((covariance**2).sum()))


def misplaced(rows: Matrix, y: Labels) -> str:
    """Return a sentence if labels (m,) cannot be those of their rows (m, K), corrected; else ""."""
    own, squares = rows[np.arange(len(y)), y], (rows**2).sum(axis=1)
    noise = float(np.sqrt(((rows**3).sum(axis=1) - squares**2).sum()))
    chance = float(np.bincount(y, minlength=rows.shape[1]) @ rows.mean(axis=0)) / len(y)  # of labels of other rows
    # one label may be strange, whatever its sample's probabilities
    if own.mean() >= (squares.mean() + chance) / 2 or squares.sum() - own.sum() <= 4 * noise + 1:
        return ""
    average, expected = percent(float(own.mean())), percent(float(squares.mean()))
    return (f"The labels conflict with the predictions: the labelled class has a predicted probability of {average} on"
            f" average, expected are {expected}. Do the labels belong to these samples?")  # fmt: skip


def swapped(rows: Matrix, y: Labels, called: tuple[str, ...]) -> str:
    """Return a sentence if rows (m, K) of two labels look like each other's; else ""."""
    counts = np.bincount(y, minlength=rows.shape[1])
    means = {int(j): rows[y == j].mean(axis=0) for j in np.flatnonzero(counts >= FEW_LABELS)}
    for j, mean in means.items():
        k = int(mean.argmax())
        if k > j and k in means and mean[k] > 3 * mean[j] and means[k][j] > 3 * means[k][k]:
            return f"Samples labelled {called[j]} look like {called[k]}, and vice versa. Are these two names swapped?"
    return ""


def one_class(estimate: PriorEstimate, rows: Matrix, y: Labels, sample: Matrix) -> str:
    """Return a sentence if labels (m,) are all of one class, and their rows (m, K) do not make that likely; else "".

    An estimate from all rows without labels shows what is likely: the class gets the upper end of its interval.
    """
    j = int(y[0])
    if (y != j).any():
        return ""
    unlabelled = ebls(estimate.source, sample)
    shares, upper = np.maximum(unlabelled.shares, 1e-9), float(unlabelled.interval(OPEN_LEVEL, of="prior").upper[j])
    shares = shares * (1 - upper) / max(1 - shares[j], 1e-9)
    shares[j] = upper
    # a row that rules its label out is strange, not proof
    own_class = np.maximum(correct_float64(rows, shares / estimate.source.prior)[:, j], STRANGE / len(shares))
    if np.log(own_class).sum() >= np.log(ALL_ALIKE):
        return ""
    expected = float(correct_float64(rows, unlabelled.weights)[:, j].sum())
    called = estimate.source.called[j]
    return (f"The labels conflict with the predictions: all {len(y)} labels are {called}, but about {expected:.0f} are"
            " predicted. Are the labels right? Were the labelled samples drawn at random?")  # fmt: skip


def unmoved(estimate: PriorEstimate, sample: Matrix) -> str:
    """Return a sentence if the mean prediction has not moved as far as the shares from the labels imply.

    Held-out samples give the mean prediction of each class. From the mean at the source prior to the mean at the
    estimated shares, the `sample` (m, K) must have moved by the part UNMOVED, or end within BEYOND standard errors.
    """
    if estimate.source.heldout is None:
        return ""
    rows, y = estimate.source.heldout
    order = np.argsort(y, kind="stable")
    halves = (order[::2], order[1::2])  # of each class: one gives the direction, the other the distance
    parts = [travelled(estimate, rows[a], y[a], rows[b], y[b], sample) for a, b in (halves, halves[::-1])]
    gone, short = np.mean(parts, axis=0)
    if gone >= UNMOVED or short <= BEYOND:
        return ""
    return ("The labels conflict with the predictions: the mean prediction moved only "
            f"{percent(max(gone, 0.0))} of the way that the labels imply. Are the labels right? Were the labelled"
            " samples drawn at random?")  # fmt: skip


def travelled(
    estimate: PriorEstimate, rows: Matrix, y: Labels, others: Matrix, other_y: Labels, sample: Matrix
) -> tuple[float, float]:
    """Return the part of the way that the sample has come, and how many standard errors it is short of the end."""
    source, prior = estimate.source.prior, estimate.shares
    way = (prior - source) @ class_means(rows, y, len(prior)) / (rows.var(axis=0) + 1e-6)
    now, positions, k = sample @ way, others @ way, len(prior)
    counts = np.bincount(other_y, minlength=k)
    at = class_means(positions[:, None], other_y, k)[:, 0]
    errors = (positions - at[other_y]) ** 2
    # few rows of a class show its variance badly: five rows with the mean variance are added
    variance = (np.bincount(other_y, errors, k) + 5 * errors.mean()) / (counts + 5)
    end, start = float(prior @ at), float(source @ at)
    chosen = (prior @ at**2 - end**2) / estimate.n_labels
    error = np.sqrt(now.var() / len(now) + prior**2 @ (variance / np.maximum(counts, 0.5)) + chosen + 1e-30)
    gone = (float(now.mean()) - start) / (end - start) if end > start else 1.0
    return gone, (end - float(now.mean())) / float(error)


def class_means(rows: Matrix, y: Labels, n_classes: int) -> Matrix:
    """Return the mean row of each class, and that of all rows for a class without one."""
    means = np.tile(rows.mean(axis=0), (n_classes, 1))
    for j in np.unique(y):
        means[j] = rows[y == j].mean(axis=0)
    return means


def hand_picked(estimate: PriorEstimate, rows: Matrix, sample: Matrix) -> str:
    """Return a sentence if labelled rows (n, K) are further from the mean of a `sample` (m, K) than random draws."""
    middle, rng = sample.mean(axis=0), np.random.default_rng(0)
    scale = 1 / np.sqrt(middle * (1 - middle) + 1e-6)

    def stray(some: Matrix) -> float:
        return float((((some.mean(axis=0) - middle) * scale) ** 2).sum())

    draws = np.array([stray(sample[rng.integers(len(sample), size=len(rows))]) for _ in range(DRAWS)])
    if stray(rows) < max(draws.max(), draws.mean() + 6 * draws.std()):
        return ""
    weights = ebls(estimate.source, sample).weights  # without the labels, which may have moved all shares
    some, every = (correct_float64(x, weights).mean(axis=0) for x in (rows, sample))
    k = int(np.argmax(np.abs(some - every)))
    called = estimate.classes[k] if estimate.classes else f"class {k}"
    return (f"The labelled samples are not a random sample: {percent(some[k])} of them are predicted as {called}, but"
            f" {percent(every[k])} of all samples. Label random samples, or samples from `query` with its"
            " weights.")  # fmt: skip
