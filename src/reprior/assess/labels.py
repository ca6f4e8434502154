"""Do labels of target rows and outputs fit together, and what do labels say about a shift?"""

from __future__ import annotations

import numpy as np

from reprior._check import percent
from reprior._types import Labels, Matrix, PriorEstimate
from reprior.assess.label_shift import scaled_chi_square_p
from reprior.rows.correction import posteriors, reweight
from reprior.rows.labelled import LabelledBlocks, taken_rows

FEW_LABELS = 5  # below which chance may contradict anything
LOOKED_AT, DRAWS = 500, 99  # labelled rows that are looked at, and samples as large that they are held against
UNMOVED, BEYOND = 1 / 3, 3.0  # share of the way that the mean output must have gone, and standard errors short of all


def objection(estimate: PriorEstimate, sample: Matrix) -> str:
    """Return a sentence if labels do not fit the outputs, of which `sample` (m, K) is a part; else ""."""
    target = estimate.target
    if not isinstance(target, LabelledBlocks) or target.n_labels < FEW_LABELS:
        return ""
    rows, y = labelled_rows(target)
    seen = reweight(rows, np.maximum(estimate.prior, 1e-9) / estimate.source.prior)
    picked = "" if target.weights is not None else hand_picked(estimate, rows, sample)
    return misplaced(seen, y) or swapped(seen, y, estimate.source.called) or picked or unmoved(estimate, sample)


def labelled_rows(target: LabelledBlocks) -> tuple[Matrix, Labels]:
    """Return rows with a label (m, K), not too many of them, and their labels (m,)."""
    there = np.flatnonzero(target.labels >= 0)
    there = there[:: -(-len(there) // LOOKED_AT)]
    rows = taken_rows(target.raw, np.isin(np.arange(len(target.labels)), there))
    return np.asarray(rows, np.float64), target.labels[there]


def labels_p_value(estimate: PriorEstimate) -> float:
    """Return the p-value of "labels come as often as the outputs of their rows say", however those were chosen."""
    target, source = estimate.target, estimate.source
    if not isinstance(target, LabelledBlocks) or source.heldout is None:
        return 1.0
    rows, y = labelled_rows(target)
    variance = np.maximum((rows * (1 - rows)).sum(axis=0), 1e-12)
    covariance = np.diag(rows.sum(axis=0)) - rows.T @ rows
    squares = (np.bincount(y, minlength=rows.shape[1]) - rows.sum(axis=0)) ** 2 / variance
    squares /= 1 + len(y) / len(source.heldout[1])  # outputs are calibrated by as many rows, no better
    correlation = covariance / np.sqrt(np.outer(variance, variance))
    return scaled_chi_square_p(float(squares.sum()), mean=len(squares), variance=2 * float((correlation**2).sum()))


def misplaced(rows: Matrix, y: Labels) -> str:
    """Return a sentence if labels (m,) cannot be those of their rows (m, K), corrected; else ""."""
    found, squares = rows[np.arange(len(y)), y], (rows**2).sum(axis=1)
    noise = float(np.sqrt(((rows**3).sum(axis=1) - squares**2).sum()))
    chance = float(np.bincount(y, minlength=rows.shape[1]) @ rows.mean(axis=0)) / len(y)  # of labels of other rows
    if found.mean() >= (squares.mean() + chance) / 2 or squares.sum() - found.sum() <= 4 * noise:
        return ""
    given, expected = percent(float(found.mean())), percent(float(squares.mean()))
    return (f"The labels contradict the outputs. Those give the class of the label {given} on average, "
            f"where {expected} is to be expected. Do the labels belong to these rows?")  # fmt: skip


def swapped(rows: Matrix, y: Labels, called: tuple[str, ...]) -> str:
    """Return a sentence if rows (m, K) of two labels look like each other's; else ""."""
    counts = np.bincount(y, minlength=rows.shape[1])
    means = {int(j): rows[y == j].mean(axis=0) for j in np.flatnonzero(counts >= FEW_LABELS)}
    for j, mean in means.items():
        k = int(mean.argmax())
        if k > j and k in means and mean[k] > 3 * mean[j] and means[k][j] > 3 * means[k][k]:
            return (f"Rows labelled {called[j]} look like {called[k]}, and the other way round. Are these two names "
                    "swapped?")  # fmt: skip
    return ""


def unmoved(estimate: PriorEstimate, sample: Matrix) -> str:
    """Return a sentence if the mean output has not gone where the class mix that labels brought about would take it.

    Held-out rows tell the mean output of each class. Along the way from the source's mean output to that of the
    estimated mix, the `sample` (m, K) must have come UNMOVED of it, or be within BEYOND standard errors of its end.
    """
    source, prior = estimate.source, estimate.prior
    if source.heldout is None:
        return ""
    rows, y = source.heldout
    k, counts = len(prior), np.bincount(y, minlength=len(prior))
    means = np.eye(k)
    for j in np.flatnonzero(counts):
        means[j] = rows[y == j].mean(axis=0)
    way = (prior - source.prior) @ means / (rows.var(axis=0) + 1e-6)
    at, now = means @ way, sample @ way
    errors = (rows @ way - at[y]) ** 2
    # few rows of a class tell its variance badly: five of the mean one are put to them
    variance = (np.bincount(y, errors, k) + 5 * errors.mean()) / (counts + 5)
    end, start = float(prior @ at), float(source.prior @ at)
    chosen = (prior @ at**2 - end**2) / estimate.n_labels
    error = np.sqrt(now.var() / len(now) + prior**2 @ (variance / np.maximum(counts, 0.5)) + chosen)
    gone = (float(now.mean()) - start) / (end - start) if end > start else 1.0
    if gone >= UNMOVED or end - now.mean() <= BEYOND * error:
        return ""
    return ("The labels contradict the outputs. If the class mix were what they say, the mean output of all rows would "
            f"have moved; it has gone {percent(max(gone, 0.0))} of that way. Are the labels right, and are rows of "
            "every class among them?")  # fmt: skip


def hand_picked(estimate: PriorEstimate, rows: Matrix, sample: Matrix) -> str:
    """Return a sentence if labelled rows (n, K), said to be drawn at random, are unlike a `sample` (m, K) of all rows.

    Draws from the sample tell how far the mean output of so many rows strays by chance; it must be much further.
    """
    middle, rng = sample.mean(axis=0), np.random.default_rng(0)
    scale = 1 / np.sqrt(middle * (1 - middle) + 1e-6)

    def stray(some: Matrix) -> float:
        return float((((some.mean(axis=0) - middle) * scale) ** 2).sum())

    draws = np.array([stray(sample[rng.integers(len(sample), size=len(rows))]) for _ in range(DRAWS)])
    if stray(rows) < max(draws.max(), draws.mean() + 6 * draws.std()):
        return ""
    some, every = (posteriors(x, estimate.weights).mean(axis=0) for x in (rows, sample))
    k = int(np.argmax(np.abs(some - every)))
    called = estimate.classes[k] if estimate.classes else f"class {k}"
    return (f"The labelled rows are unlike the others: by their outputs {percent(some[k])} of them are {called}, and "
            f"{percent(every[k])} of all rows. Label rows that chance chose, or `query` with its weights.")  # fmt: skip
