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
OPPOSED, RELATED = -4.0, 3.0  # standard errors of the association; one of a useless classifier is about 0
MIN_CONFIRMED = 0.1  # of the association that probabilities claim, which labels have to show
CLAIMED = 4.0  # standard errors, by the probabilities, of the association that they claim
MISSED = 5.0  # standard errors, by the probabilities, that labels stay behind that claim
REVERSED = 0.5  # of its expectation, below which the mean probability of the labels speaks for swapped columns
MAX_NUMBERS = 4_000_000  # held-out probabilities that are looked at
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
    """How labels and probabilities of samples go together.

    A sample's label should have a higher probability in its own row than on average. `related` is the mean of that
    difference in its own standard errors, and `claimed` is the mean to be expected if probabilities are right, in the
    same unit. `sure` is the expected sum in standard errors of labels that are drawn from the probabilities, `missed`
    by how many of those the labels stay behind it. `own` is the mean probability of the labels, divided by its
    expectation. `kappa` is Cohen's κ of labels and predictions.
    """

    related: float
    claimed: float
    sure: float
    missed: float
    own: float
    kappa: float


def label_mismatch(source: Source, calibrator: Calibrator | None) -> str:
    """Return a sentence on why the labels of the held-out samples may not be theirs, "" if there is no reason.

    Raw probabilities are looked at: a calibrator has done for labels what it could. A classifier that predicts the most
    frequent class alone has a κ of 0 too. So probabilities must claim much about the labels, and labels must confirm
    next to nothing of it. Labels of a few rare samples, shuffled, may still look like those of a weak classifier.
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
    if relation.related < OPPOSED:
        return CONTRADICT
    idle = relation.related < min(RELATED, MIN_CONFIRMED * relation.claimed)
    if idle and relation.sure > CLAIMED and relation.missed > MISSED and relation.kappa < MIN_KAPPA:
        return UNRELATED.format(relation.kappa)
    return CONTRADICT if relation.related < 0 and relation.own < REVERSED else ""


def association(rows: Matrix, labels: Labels) -> Association:
    """Return how labels (n,) and probabilities (n, K) of the same samples go together."""
    each, mean = np.arange(len(labels)), rows.mean(axis=0)
    more = rows[each, labels] - mean[labels]
    expected = (rows**2).sum(axis=1) - rows @ mean
    variance = (rows * (rows - mean) ** 2).sum(axis=1) - expected**2
    error = max(float(more.std()) / np.sqrt(len(more)), 1e-9)
    by_rows = max(float(np.sqrt(np.maximum(variance, 0).sum())), 1e-9)
    return Association(
        related=float(more.mean()) / error if error > 1e-9 else 0.0,
        claimed=float(expected.mean()) / error if error > 1e-9 else 0.0,
        sure=float(expected.sum()) / by_rows,
        missed=float((expected - more).sum()) / by_rows,
        own=float(rows[each, labels].sum() / (rows**2).sum()),
        kappa=chance_corrected(rows, labels),
    )


def chance_corrected(rows: Matrix, labels: Labels) -> float:
    """Return Cohen's κ of labels (n,) and predictions: 0 if they agree no more often than by chance, 1 if always."""
    k, guess = rows.shape[1], rows.argmax(axis=1)
    chance = float(np.bincount(labels, minlength=k) @ np.bincount(guess, minlength=k)) / len(labels) ** 2
    return float((np.mean(guess == labels) - chance) / max(1 - chance, 1e-9))
