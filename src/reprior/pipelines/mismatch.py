"""Do the labels of held-out samples belong to them? Swapped columns and shuffled labels make every estimate wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reprior._types import Labels, Matrix, Source
from reprior.rows.calibrated import Calibrator

# Constants by 190 classifiers of 35 sets, three draws each: of true labels 0.7 % are doubted with 50 held-out samples
# of fresh sets, 0.3 % with 200, none with 1,000; of shuffled ones 49, 78 and 94 %, of misnamed classes 83, 93 and 94 %.
# Of nine sets kept aside 2 to 7 % of the true labels are doubted, all of classifiers with a κ below 0.07.
MIN_KAPPA = 0.1  # Cohen's κ of labels and predictions, below which the labels may belong to other samples
OPPOSED, RELATED = -4.0, 3.0  # limits of `z_observed`; it is about 0 for a useless classifier
MIN_CONFIRMED = 0.1  # part of `z_expected` that labels have to show
CLAIMED = 4.0  # `z_expected_model` above which labels can contradict the probabilities
MISSED = 5.0  # `z_shortfall` above which labels contradict the probabilities
REVERSED = 0.5  # `label_probability_ratio` below which columns are taken to be swapped
MAX_NUMBERS = 4_000_000  # held-out probabilities that are used
CONTRADICT = (
    "Labels and predictions of the held-out samples contradict each other. Are the class names in the order of the"
    " columns? Do the labels belong to these samples?"
)
UNRELATED = (
    "Labels and predictions of the held-out samples hardly agree (Cohen's kappa {:.2f}). Do the labels belong to these"
    " samples? Are classes counted from 0? If yes to both, the classifier is too weak to estimate anything."
)


@dataclass(frozen=True, slots=True)
class Association:
    """Association of labels and probabilities, by the difference d = p_y − mean p_y of each sample with label y.

    A label should have a higher probability in its own row than on average, so d should be positive. `z_observed` is
    the mean of d in standard errors of that mean. `z_expected` is the mean of d that the probabilities imply, in the
    same unit. `z_expected_model` is the sum of d that the probabilities imply, in standard errors for labels drawn from
    the probabilities, and `z_shortfall` is how much lower the observed sum is, in this unit. `label_probability_ratio`
    is the mean probability of the labels, divided by its expectation. `kappa` is Cohen's κ of labels and predictions.
    """

    z_observed: float
    z_expected: float
    z_expected_model: float
    z_shortfall: float
    label_probability_ratio: float
    kappa: float


def label_mismatch(source: Source, calibrator: Calibrator | None) -> str:
    """Return a warning about the held-out labels: one class only, or labels that do not match their samples; "" if
    none.

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
    relation = association(rows if calibrator is None else calibrator.undone(rows), labels)
    if relation.z_observed < OPPOSED:
        return CONTRADICT
    idle = relation.z_observed < min(RELATED, MIN_CONFIRMED * relation.z_expected)
    if idle and relation.z_expected_model > CLAIMED and relation.z_shortfall > MISSED and relation.kappa < MIN_KAPPA:
        return UNRELATED.format(relation.kappa)
    return CONTRADICT if relation.z_observed < 0 and relation.label_probability_ratio < REVERSED else ""


def association(rows: Matrix, labels: Labels) -> Association:
    """Return the association of labels (n,) and probabilities (n, K) of the same samples."""
    each, mean = np.arange(len(labels)), rows.mean(axis=0)
    more = rows[each, labels] - mean[labels]
    expected = (rows**2).sum(axis=1) - rows @ mean
    variance = (rows * (rows - mean) ** 2).sum(axis=1) - expected**2
    error = max(float(more.std()) / np.sqrt(len(more)), 1e-9)
    by_rows = max(float(np.sqrt(np.maximum(variance, 0).sum())), 1e-9)
    return Association(
        z_observed=float(more.mean()) / error if error > 1e-9 else 0.0,
        z_expected=float(expected.mean()) / error if error > 1e-9 else 0.0,
        z_expected_model=float(expected.sum()) / by_rows,
        z_shortfall=float((expected - more).sum()) / by_rows,
        label_probability_ratio=float(rows[each, labels].sum() / (rows**2).sum()),
        kappa=cohen_kappa(rows, labels),
    )


def cohen_kappa(rows: Matrix, labels: Labels) -> float:
    """Return Cohen's κ of labels (n,) and predictions: 0 if they agree no more often than by chance, 1 if always."""
    k, guess = rows.shape[1], rows.argmax(axis=1)
    chance = float(np.bincount(labels, minlength=k) @ np.bincount(guess, minlength=k)) / len(labels) ** 2
    return float((np.mean(guess == labels) - chance) / max(1 - chance, 1e-9))
