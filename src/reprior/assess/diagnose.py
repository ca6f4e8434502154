"""Does the method apply: is there a shift, is it label shift, can classes be told apart, are outputs calibrated?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from reprior._check import REJECTED, check_number, fail, p_text, percent
from reprior._types import Checks, Labels, Matrix, Source, Vector
from reprior.assess.accuracy import expected_accuracy
from reprior.assess.labels import look_at_labels, scaled_chi_square_p
from reprior.batch.intervals import LocalLikelihood, around
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.verdict import MANY_LABELS, WEAK
from reprior.model.acting import Evidence, weighed_evidence
from reprior.model.classifier_error import measure_error
from reprior.model.ebls import DEFAULT, ebls
from reprior.model.settings import Settings
from reprior.rows.blocks import Blocks, TopKBlocks, as_listed, check_inputs, top_k_in
from reprior.rows.calibrated import CalibratedBlocks, Calibrator
from reprior.rows.correction import correct_rows
from reprior.rows.labelled import LabelledBlocks
from reprior.rows.passes import some_and_counts

ENOUGH_ROWS = 8  # a class, and a thousand times that in all, to test with
MAX_CLASSES = 10_000  # that are tested: a K×K matrix takes 0.8 GB then
ENOUGH_HELDOUT = 300  # held-out rows, by their worth, from which one new row in ten is mostly found
ALL_RIGHT = 0.99  # accuracy on held-out rows above which they may have been learned by heart
HARM = 0.003  # of the rows, that correction has to get wrong to be worth a word
ROUNDED = 1e-7  # standard deviation of outputs, below which their means differ by how they were rounded
OVERLAP = 0.9  # correlation of two classes' likelihoods from which they count as confused


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """What the rows say about the method's assumptions; `str()` gives it in sentences. Made by `diagnose`.

    Parameters
    ----------
    estimate : PriorEstimate
        The estimate that accuracy and precision are told of.
    shift_p : float
        P-value of "nothing has shifted".
    label_shift : float or None
        Probability that nothing but the class prior has changed; None without held-out samples.
    confused : tuple of (class, class, correlation)
        Classes that are hard to tell apart, worst first.
    smallest_singular_value : float or None
        That of the column-normalised confusion matrix.
    worth : float
        How many labelled rows would tell as much about the shares.
    heldout_worth : float or None
        How many rows the held-out ones are worth after reweighting.
    overconfidence, overconfidence_se : float or None
        Mean confidence minus accuracy on the held-out rows, and its standard error.
    accuracy : (float, float) or None
        What to expect of predictions on the target: as they are, corrected. It takes held-out rows or labels.
    alpha : float
        The level at which the sentences decide.
    accuracy_interval : (float, float) or None
        A 95 % interval of the accuracy to expect of corrected predictions.
    accuracy_risk : float or None
        By how much correction may lower the accuracy, if the class mix is not quite the estimate.
    amplification : float
        How much further than the mean output the shares have moved, by total variation; 1 if they have hardly.
    labels_conflict : str
        How labels of target rows contradict the outputs, if they do.

    Examples
    --------
    >>> found = diagnose([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> found.shifted, found.applies
    (False, None)
    """

    estimate: PriorEstimate
    shift_p: float
    label_shift: float | None
    confused: tuple[tuple[str, str, float], ...]
    smallest_singular_value: float | None
    worth: float
    heldout_worth: float | None
    overconfidence: float | None
    overconfidence_se: float | None
    accuracy: tuple[float, float] | None
    alpha: float
    accuracy_interval: tuple[float, float] | None = None
    accuracy_risk: float | None = None
    amplification: float = 1.0
    labels_conflict: str = ""

    @property
    def may_harm(self) -> bool | None:
        """Whether correction may lower the accuracy by more than 0.3 points; None if no held-out rows, nor labels of
        target rows, were there to tell."""
        if self.labels_conflict or self.applies is False:
            return True
        if self.accuracy_risk is None or self.accuracy is None or self.accuracy_interval is None:
            return None
        return self.amplification >= WEAK or self.risky

    @property
    def risky(self) -> bool:
        """Whether too little is known about the class mix to say that correction does not lower the accuracy."""
        if self.accuracy_risk is None or self.accuracy is None or self.accuracy_interval is None:
            return False
        surely = self.accuracy_interval[0] > self.accuracy[0]  # better, whatever of the interval is true
        return self.accuracy_risk > HARM and not surely

    @property
    def shifted(self) -> bool:
        """Whether the class shares, or something else, differ from the source."""
        return self.shift_p < self.alpha or self.applies is False

    @property
    def applies(self) -> bool | None:
        """Whether a change of the class prior explains the predictions; None without held-out samples."""
        return None if self.label_shift is None else self.label_shift >= 0.5

    def __repr__(self) -> str:
        return "\n".join(said.text for said in sentences(self))


def diagnose(source: Any, proba: Any, *, estimate: PriorEstimate | None = None, alpha: float = 0.05) -> Diagnosis:
    """Return whether label-shift correction applies to some rows, and how well it can be measured.

    Most answers need held-out rows. Whether it is label shift is asked of the rows, whichever estimate is given.

    Parameters
    ----------
    source : Source or (K,)
        Made by `summarize`, or class counts. A pipeline has its own way, `pipe.diagnose(proba)`.
    proba : (n, K) array, DataFrame, Blocks, or top-k pair
        Predicted probabilities of the target. If `source` belongs to a pipeline that calibrates, only blocks that the
        pipeline made are taken, such as `estimate.target`: of other rows nothing tells whether they are calibrated.
    estimate : PriorEstimate, optional
        The one whose accuracy and precision to tell; without it `ebls` makes one.
    alpha : float
        The level at which the sentences decide.

    Examples
    --------
    >>> print(diagnose([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]))
    No shift found (p = 0.27).
    Whether it is label shift, and whether correction helps, cannot be told without held-out labelled rows.
    ...
    """
    level = check_number(alpha, "diagnose", "alpha", low=0, high=0.5, open_low=True)
    known, target = check_inputs(source, proba, "diagnose")
    if known.calibrated and not isinstance(proba, Blocks):
        fail("diagnose", "proba", "be calibrated by the pipeline that `source` belongs to", f"a {type(proba).__name__}",
             remedy="Diagnose the classifier's own predictions by `pipe.diagnose(proba)`")  # fmt: skip
    if estimate is not None and (not isinstance(estimate, PriorEstimate) or len(estimate.prior) != len(known.prior)):
        fail("diagnose", "estimate", f"be what a method returned for these {len(known.prior)} classes",
             type(estimate).__name__)  # fmt: skip
    made = ebls(known, target) if estimate is None else estimate
    rows, fit = around(made)
    spread = float((fit.shares * (1 - fit.shares)).sum() / fit.variances.sum()) if fit.variances.sum() else np.inf
    heldout_worth = gap = gap_se = None
    if known.heldout is not None:
        heldout_worth = reweighted_worth(known.heldout[1], made.shares)
        gap, gap_se = overconfidence(*known.heldout, row_weights(known))
    raw = target.raw if isinstance(target, LabelledBlocks) else target
    told = expected_accuracy(made, raw, known)
    found = made.checks if made.checks is not None and made.target is proba else checks(made, look(raw, made.n))
    return Diagnosis(
        estimate=made, shift_p=found.shift_p, label_shift=found.label_shift,
        confused=confused_pairs(rows, known.called), smallest_singular_value=smallest_singular_value(known),
        worth=min(made.n, spread), heldout_worth=heldout_worth, overconfidence=gap, overconfidence_se=gap_se,
        accuracy=told and (told.before, told.after), accuracy_interval=told and (told.lower, told.upper), alpha=level,
        accuracy_risk=told and told.risk, amplification=found.amplification,
        labels_conflict=found.labels_conflict,
    )  # fmt: skip


class Look(NamedTuple):
    """Some samples (m, K) of a target, and the summed probabilities (K,) of all."""

    sample: Matrix
    counts: Vector


def look(target: Blocks, n: float) -> Look:
    """Return what the tests need of a target of `n` samples, in one pass."""
    sample, counts = some_and_counts(target, n, ENOUGH_ROWS * max(1000, target.n_classes))
    return Look(sample.astype(np.float64), counts)


def evidence_of(
    estimate: PriorEstimate, target: Blocks, sample: Matrix, settings: Settings, unshifted: Vector | None = None
) -> Evidence | None:
    """Return the evidence that a change is label shift; None without held-out samples.

    Held-out samples are listed as the target's are if those have top-k probabilities only.
    """
    source, listed = estimate.source, top_k_in(target)
    if source.heldout is None:
        return None
    if listed is not None and listed.values.shape[1] < target.n_classes:
        heldout = as_given_out(source.heldout[0], listed, target), source.heldout[1]
        source = replace(source, heldout=heldout, error=None)
    error = measure_error(source)
    assert error is not None
    assert error.moments is not None
    unshifted = np.ones_like(source.prior) if unshifted is None else unshifted
    return weighed_evidence(error.moments, sample, estimate, unshifted, settings)


def checks(
    estimate: PriorEstimate, seen: Look, evidence: Evidence | None = None, settings: Settings = DEFAULT
) -> Checks:
    """Return what the tests of "nothing has shifted" and of label shift find for an estimate."""
    if len(estimate.prior) > MAX_CLASSES:
        fail("estimate", "proba", f"have at most {MAX_CLASSES:,} classes for the test of a shift, which needs K×K"
             " numbers", f"{len(estimate.prior):,} classes",
             remedy="Pass `check=False`, or merge rare classes")  # fmt: skip
    source, target = estimate.source, estimate.target
    assert target is not None
    raw = target.raw if isinstance(target, LabelledBlocks) else target
    evidence = evidence_of(estimate, raw, seen.sample, settings) if evidence is None else evidence
    conflict, by_labels = look_at_labels(estimate, seen.sample)
    shift_p = shift_p_value(seen.counts, seen.sample, source)
    if by_labels < 1:
        shift_p = min(1.0, 2 * min(shift_p, by_labels))  # of two looks, one may be low by chance
    if evidence is None:
        return Checks(shift_p, None, None, 1.0, conflict)
    share = evidence.share(settings)
    trained = share < 0.5 and by_heart(source, seen.sample, estimate.weights)
    return Checks(shift_p, evidence.log_evidence, share, evidence.amplification, conflict, trained)


def as_given_out(rows: Matrix, like: TopKBlocks, target: Blocks) -> Matrix:
    """Return held-out rows (n, K) as they would be had they been listed `like` the target's: whole rows differ."""
    calibrate = target.calibrator if isinstance(target, CalibratedBlocks) else None
    if not isinstance(calibrate, Calibrator):
        return as_listed(rows, like.values.shape[1], like.prior)
    return calibrate(as_listed(calibrate.undone(rows), like.values.shape[1], like.prior))


def by_heart(source: Source, sample: Matrix, weights: Vector) -> bool:
    """Return whether held-out rows look like rows of training: nearly all right, and surer than the `sample` (m, K) is
    under its own shares."""
    assert source.heldout is not None
    rows, y = source.heldout
    seen = correct_rows(sample, weights)
    return bool(np.mean(rows.argmax(axis=1) == y) > ALL_RIGHT and seen.max(axis=1).mean() < rows.max(axis=1).mean())


def shift_p_value(counts: Vector, sample: Matrix, source: Source) -> float:
    """Return the p-value of "the mean output is the source's", by a sum of squared z-scores, which are correlated.

    `counts` (K,) are the sum of all rows, of which `sample` (m, K) are some.
    """
    reference, n_reference = source.prior, np.inf
    if source.heldout is not None:
        weight = row_weights(source)
        reference, n_reference = weight @ source.heldout[0], 1 / float(weight @ weight)
    # all rows together: where a class is rare, a sample's own variance goes with its mean
    centred = sample if source.heldout is None else np.concatenate([sample, source.heldout[0]])
    centred = centred - centred.mean(axis=0)
    deviation = np.sqrt(
        np.maximum((centred**2).mean(axis=0), ROUNDED**2)
    )  # outputs that are all alike are not rounded alike
    centred /= deviation
    products = centred.T @ centred if len(centred) > len(counts) else centred @ centred.T  # both have the same squares
    n = counts.sum()  # each row expects one
    error = deviation * np.sqrt(1 / n + 1 / n_reference)
    squares = float((((counts / n - reference) / error) ** 2).sum())
    return scaled_chi_square_p(squares, mean=len(counts), variance=2 * float((products**2).sum()) / len(centred) ** 2)


def reweighted_worth(y: Labels, prior: Vector) -> float:
    """Return how many rows held-out rows with labels (n,) are worth once they are reweighted to `prior` (K,)."""
    weight = (prior / np.maximum(np.bincount(y, minlength=len(prior)), 1))[y]
    return float(weight.sum() ** 2 / (weight @ weight))


def row_weights(source: Source) -> Vector:
    """Return how much each held-out row counts (n,), so that they have the class mix the source is said to have."""
    assert source.heldout is not None
    weight = np.ones(len(source.heldout[1]))
    if source.confusion is not None and source.counts is not None:
        weight = (source.confusion.sum(axis=0) / np.maximum(source.counts, 1))[source.heldout[1]]
    return np.asarray(weight / weight.sum())


def overconfidence(heldout: Matrix, y: Labels, weight: Vector) -> tuple[float, float]:
    """Return mean confidence minus accuracy of labelled rows, and its standard error if they are calibrated."""
    confidence = heldout.max(axis=1)
    error = np.sqrt(weight**2 @ (confidence * (1 - confidence)))
    return float(weight @ confidence - weight @ (heldout.argmax(axis=1) == y)), max(float(error), 1e-12)


def smallest_singular_value(source: Source) -> float | None:
    """Return that of P(prediction | class), classes without held-out rows left out; 0 would mean no unique answer."""
    if source.confusion is None:
        return None
    columns = source.confusion.sum(axis=0)
    return float(np.linalg.svd(source.confusion[:, columns > 0] / columns[columns > 0], compute_uv=False)[-1])


def confused_pairs(rows: LocalLikelihood, called: tuple[str, ...]) -> tuple[tuple[str, str, float], ...]:
    """Return the pairs of classes that the rows hardly tell apart, worst first, ten at most."""
    a, b = np.nonzero(np.triu(rows.correlation, 1) > OVERLAP)
    worst = np.argsort(-rows.correlation[a, b], kind="stable")[:10]
    pairs = zip(a[worst], b[worst], strict=True)
    return tuple((called[i], called[j], float(rows.correlation[i, j])) for i, j in pairs)


class Sentence(NamedTuple):
    """A sentence of a diagnosis, and whether it is good news."""

    text: str
    good: bool


def sentences(found: Diagnosis) -> list[Sentence]:
    """Return the diagnosis in plain sentences."""
    said: list[Sentence] = []

    def say(text: str, good: bool = True) -> None:
        said.append(Sentence(text, good))

    if found.labels_conflict:
        say(found.labels_conflict, False)
    shift, heldout = p_text(found.shift_p), found.label_shift is not None
    clearly = found.applies is False
    labels = "More labels" if found.estimate.n_labels else "Labels of some rows"
    if found.shift_p >= found.alpha:
        say(f"No shift found ({shift}).")
    elif heldout:
        how = "have" if found.shift_p < REJECTED else "may have"
        say(f"The outputs {how} shifted against the source ({shift}).")
    else:
        say(f"The mean output differs from the source prior ({shift}). Either the class mix has shifted, or the "
            "outputs never had that mean. Held-out rows would show which.", False)  # fmt: skip
    if found.label_shift is None:
        say("Whether it is label shift, and whether correction helps, cannot be told without held-out labelled rows.",
            False)  # fmt: skip
    elif found.applies:
        say(f"Consistent with label shift (probability {found.label_shift:.0%}).")
    else:
        say(f"The data differ by more than their class prior (probability of label shift {found.label_shift:.0%}). The "
            "inputs look different within classes, or a class is new. Check the data before you use the estimate.",
            False)  # fmt: skip
    if found.confused:
        pairs = "; ".join(f"{a} and {b}" for a, b, _ in found.confused[:3])
        say(f"These classes are hard to tell apart: {pairs}. Their shares are less certain than their sum.", False)
    if found.smallest_singular_value is not None and found.smallest_singular_value < 0.05:
        value = f"{found.smallest_singular_value:.2g}"
        say(f"The confusion matrix is nearly singular (smallest singular value {value}). Avoid bbse and rlls.", False)
    if found.overconfidence is not None and found.overconfidence_se is not None:
        size, how = percent(abs(found.overconfidence), 1), "over" if found.overconfidence > 0 else "under"
        if abs(found.overconfidence) > 3 * found.overconfidence_se:
            say(f"On held-out rows the classifier is {how}confident by {size}. Calibrate it first.", False)
        else:
            say(f"On held-out rows confidence matches accuracy to {size}.")
    n = found.estimate.n
    say(f"The {n:.0f} rows tell as much about the shares as {found.worth:.0f} labelled rows would.")
    if not clearly and found.accuracy is not None and found.accuracy_interval is not None:
        (before, after), (low, high) = found.accuracy, found.accuracy_interval
        say(f"Expect an accuracy of {percent(before, 1)}, and of {percent(after, 1)} with correction (95 % interval "
            f"{percent(low, 1)} to {percent(high, 1)}).")  # fmt: skip
        if found.risky:
            say("Correction may also lower the accuracy, because too little is known about the class mix. "
                f"{labels} would show whether it does.", False)  # fmt: skip
        elif found.amplification >= WEAK:
            say(f"Weak evidence: the estimated shares moved {found.amplification:.1f} times as far as the mean "
                f"prediction. Label about {MANY_LABELS} samples to be sure.", False)  # fmt: skip
    if found.applies and found.heldout_worth is not None:
        say(f"Weighed to these shares, the held-out rows count as {found.heldout_worth:.0f}.")
        if found.heldout_worth < ENOUGH_HELDOUT:
            say(f"Fewer than {ENOUGH_HELDOUT} may not notice a new class. Hold out more rows of the classes that are "
                "frequent now.", False)  # fmt: skip
    return said
