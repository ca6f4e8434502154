"""Do the labels of held-out samples belong to them? Swapped columns and shuffled labels make every estimate wrong."""

from __future__ import annotations

import numpy as np
from scipy.special import xlogy

from reprior._types import Labels, Matrix, Source
from reprior.rows.calibrated import Calibrator

# Constants by 190 classifiers of 35 sets, three draws each: of true labels 0.7 % are doubted with 50 held-out samples
# of fresh sets, 0.3 % with 200, none with 1,000; of shuffled ones 49, 78 and 94 %, of misnamed classes 83, 93 and 94 %.
# Of nine sets kept aside 2 to 7 % of the true labels are doubted, all of classifiers with a κ below 0.07.
MIN_KAPPA = 0.1  # Cohen's κ of labels and predictions, below which the labels may belong to other samples
OPPOSED, RELATED = -4.0, 3.0  # limits of the observed association in standard errors; a useless classifier has about 0
MIN_CONFIRMED = 0.1  # part of the expected association that labels have to show
CLAIMED = 4.0  # expected association above which labels can contradict the probabilities, in standard errors
MISSED = 5.0  # standard errors by which labels that contradict the probabilities fall short of it
REVERSED = 0.5  # mean probability of the labels over its expectation, below which columns are taken to be swapped
UNLIKELY = 3e-5  # chance of a false report of reversed classes, over all pairs: that of four standard errors
MAX_NUMBERS = 4_000_000  # held-out probabilities, and pairs of classes, that are used
CONTRADICT = (
    "Labels and predictions of the held-out samples contradict each other. Are the class names in the order of the"
    " columns? Do the labels belong to these samples?"
)
REVERSED_PAIR = (
    "Labels and predictions of the held-out samples contradict each other for the classes {} and {}. Are the class"
    " names in the order of the columns?"
)
UNRELATED = (
    "Labels and predictions of the held-out samples hardly agree (Cohen's kappa {:.2f}). Do the labels belong to these"
    " samples? Are classes counted from 0? If yes to both, the classifier is too weak to estimate anything."
)


def label_mismatch(source: Source, calibrator: Calibrator | None) -> str:
    """Return a warning about held-out labels of one class only, or that do not match their samples; "" if none.

    The test uses raw probabilities, because a calibrator was fitted to the labels. A classifier that always predicts
    the most frequent class also has a κ of 0. So the warning needs a large expected association and a small observed
    one. With few samples of rare classes, shuffled labels may still look like a weak classifier.
    """
    if source.heldout is None:
        return ""
    rows, labels = source.heldout
    if len({*labels.tolist()}) == 1:
        who = "The only held-out sample has" if len(labels) == 1 else f"All {len(labels):,} held-out samples have"
        return (f"{who} the class {source.called[labels[0]]}, so the error on other classes is unknown."
                " Pass held-out samples of every class.")  # fmt: skip
    stride = max(1, rows.size // MAX_NUMBERS)
    rows, labels = np.asarray(rows[::stride], np.float64), labels[::stride]
    rows = rows if calibrator is None else calibrator.undone(rows)
    own, mean = rows[np.arange(len(labels)), labels], rows.mean(axis=0)
    excess = own - mean[labels]  # a label should have a higher probability in its own sample than on average
    expected = (rows**2).sum(axis=1) - rows @ mean  # mean of `excess` if labels are drawn from these
    error = float(excess.std()) / np.sqrt(len(excess))
    z_observed, z_expected = (float(x.mean()) / error if error > 1e-9 else 0.0 for x in (excess, expected))
    if z_observed < OPPOSED:
        return CONTRADICT
    if z_observed < min(RELATED, MIN_CONFIRMED * z_expected):
        variance = (rows * (rows - mean) ** 2).sum(axis=1) - expected**2  # of `excess`, for labels from these
        implied_sd = max(float(np.sqrt(np.maximum(variance, 0).sum())), 1e-9)
        # these two are in standard deviations that the probabilities imply; z uses the observed scatter
        expects_association = expected.sum() > CLAIMED * implied_sd
        falls_short = (expected - excess).sum() > MISSED * implied_sd
        kappa = cohens_kappa(labels, rows.argmax(axis=1), rows.shape[1])
        if expects_association and falls_short and kappa < MIN_KAPPA:
            return UNRELATED.format(kappa)
    if z_observed < 0 and own.sum() < REVERSED * (rows**2).sum():
        return CONTRADICT
    pair = reversed_pair(rows, labels)
    return REVERSED_PAIR.format(*(source.called[k] for k in pair)) if pair else ""


def reversed_pair(rows: Matrix, labels: Labels) -> tuple[int, int] | None:
    """Return the two classes whose order of probabilities contradicts the labels most clearly; None if none does.

    Of samples of either class i or j, those of i should have p_i > p_j more often. If they have it more rarely, the
    log-likelihood ratio G/2 of the 2×2 table (label, larger probability) must exceed log(number of pairs / `UNLIKELY`).
    """
    k = rows.shape[1]
    if k * k > MAX_NUMBERS:
        return None
    own, smaller, larger = rows[np.arange(len(labels)), labels, None], np.zeros((k, k)), np.zeros((k, k))
    for i in np.unique(labels):
        of_i = labels == i
        smaller[i], larger[i] = (rows[of_i] < own[of_i]).sum(axis=0), (rows[of_i] > own[of_i]).sum(axis=0)
    table = np.stack([smaller, larger, larger.T, smaller.T])  # (i, p_i > p_j), (i, p_i < p_j), (j, p_i > p_j), (j, …)
    of_labels, of_larger = table[[0, 2]] + table[[1, 3]], table[[0, 1]] + table[[2, 3]]
    expected = (of_labels[:, None] * of_larger / np.maximum(of_labels.sum(axis=0), 1)).reshape(4, k, k)
    ratio = xlogy(table, table / np.maximum(expected, 1e-300)).sum(axis=0)
    ratio[table[0] >= expected[0]] = 0.0
    i, j = divmod(int(ratio.argmax()), k)
    return (i, j) if ratio[i, j] > np.log(max(k * (k - 1) / 2, 1) / UNLIKELY) else None


def cohens_kappa(labels: Labels, predicted: Labels, k: int) -> float:
    """Return the agreement a of labels and predictions (n,) of `k` classes beyond chance c: (a − c)/(1 − c)."""
    by_chance = float(np.bincount(labels, minlength=k) @ np.bincount(predicted, minlength=k)) / len(labels) ** 2
    return float((np.mean(predicted == labels) - by_chance) / max(1 - by_chance, 1e-9))
