"""A diagnosis in plain sentences."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from reprior._check import REJECTED, counted, p_text, percent
from reprior.estimates.verdict import UNCLEAR, WEAK, is_label_shift, mean_differs, sensitive_shares

if TYPE_CHECKING:
    from reprior.assess.diagnose import Diagnosis

ENOUGH_HELDOUT = 300  # effective held-out samples from which one new sample in ten is mostly found
NEARLY_SINGULAR = 0.05  # smallest singular value below which moment methods amplify noise twentyfold


class Sentence(NamedTuple):
    """A sentence of a diagnosis, and whether it is good news."""

    text: str
    good: bool = True


def sentences(diagnosis: Diagnosis) -> list[Sentence]:
    """Return the diagnosis in plain sentences."""
    conflict = [Sentence(diagnosis.labels_conflict, False)] if diagnosis.labels_conflict else []
    n, labels = counted(diagnosis.estimate.n, "sample"), counted(diagnosis.effective_labels, "label")
    return [
        *conflict, *about_shift(diagnosis), *about_classes(diagnosis), *about_confidence(diagnosis),
        Sentence(f"The shares from {n} are as precise as from {labels}."),
        *about_accuracy(diagnosis), *about_heldout(diagnosis),
    ]  # fmt: skip


def about_shift(diagnosis: Diagnosis) -> list[Sentence]:
    """Return whether there is a shift, and whether it is label shift."""
    p, share = diagnosis.shift_p, diagnosis.label_shift
    if p >= diagnosis.alpha:
        first = Sentence(f"No shift found ({p_text(p)}).")
    elif share is None:
        first = Sentence(mean_differs(p), False)
    else:
        how = "have" if p < REJECTED else "may have"
        first = Sentence(f"The predictions {how} changed against the held-out samples ({p_text(p)}).")
    if share is None:
        untested = "Not tested for label shift: this needs held-out samples. Whether correction helps is unknown."
        return [first, Sentence(untested, False)]
    if diagnosis.applies:
        return [first, Sentence(is_label_shift(share))]
    why = " The inputs look different within classes, or a class is new." if share < UNCLEAR[0] else ""
    return [first, Sentence(f"{is_label_shift(share)}{why} Check the data before you use the estimate.", False)]


def about_classes(diagnosis: Diagnosis) -> list[Sentence]:
    """Return which classes are hard to distinguish."""
    pairs, value = "; ".join(f"{a} and {b}" for a, b, _ in diagnosis.confused[:3]), diagnosis.smallest_singular_value
    confused = (f"The classifier hardly distinguishes these classes: {pairs}. Their shares are less certain than their"
                " sum.")  # fmt: skip
    lines = [Sentence(confused, False)] * bool(pairs)
    if value is not None and value < NEARLY_SINGULAR:
        lines.append(Sentence(f"The confusion matrix is nearly singular (smallest singular value {value:.2g}). Avoid"
                              " bbse and rlls.", False))  # fmt: skip
    return lines


def about_confidence(diagnosis: Diagnosis) -> list[Sentence]:
    """Return whether confidence matches accuracy on held-out samples."""
    gap, error = diagnosis.overconfidence, diagnosis.overconfidence_se
    if gap is None or error is None:
        return []
    size, how = percent(abs(gap), 1), "over" if gap > 0 else "under"
    if abs(gap) > 3 * error:
        return [Sentence(f"On held-out samples the probabilities are {how}confident by {size}. Corrected"
                         " probabilities inherit this error.", False)]
    return [Sentence(f"On held-out samples confidence matches accuracy to {size}.")]


def about_accuracy(diagnosis: Diagnosis) -> list[Sentence]:
    """Return the accuracy to expect, unless this is clearly not label shift."""
    if diagnosis.applies is False or diagnosis.accuracy is None or diagnosis.accuracy_interval is None:
        return []
    (before, after), (low, high) = diagnosis.accuracy, diagnosis.accuracy_interval
    how = "uncorrected" if diagnosis.estimate.calibrator is None else "only calibrated"
    first = Sentence(f"Expected accuracy: {percent(before, 1)} {how}, {percent(after, 1)} corrected (95 % interval"
                     f" {percent(low, 1)} to {percent(high, 1)}).")  # fmt: skip
    if diagnosis.risky:
        labels = "More labels" if diagnosis.estimate.n_labels else "Labels of some samples"
        return [first, Sentence("Correction may lower the accuracy, because the class shares are uncertain."
                                f" {labels} would show whether it does.", False)]  # fmt: skip
    if diagnosis.amplification < WEAK:
        return [first]
    unlabelled = diagnosis.estimate.n - diagnosis.estimate.n_labels
    return [first, Sentence(sensitive_shares(diagnosis.amplification, diagnosis.labels_needed, unlabelled), False)]


def about_heldout(diagnosis: Diagnosis) -> list[Sentence]:
    """Return whether held-out samples are enough at the estimated prior."""
    n = diagnosis.effective_heldout
    if n is None or not diagnosis.applies:
        return []
    lines = [Sentence(f"Effective held-out sample size at this prior: {n:.0f}.")]
    if round(n) < ENOUGH_HELDOUT:
        lines.append(Sentence(f"Below {ENOUGH_HELDOUT} a new class may go unnoticed. Hold out more samples of the"
                              " classes that are frequent now.", False))  # fmt: skip
    return lines
