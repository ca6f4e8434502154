"""Is there a shift, is it label shift, are classes distinguishable, are predictions calibrated?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from reprior._check import check_number, fail
from reprior._types import Checks, Labels, Matrix, Source, Vector
from reprior.assess.accuracy import expected_accuracy
from reprior.assess.labels import look_at_labels, scaled_chi_square_p
from reprior.assess.sentences import sentences
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.verdict import WEAK
from reprior.model.acting import Evidence, batch_evidence
from reprior.model.classifier_error import measure_error
from reprior.model.ebls import ebls
from reprior.model.interval import posterior_of
from reprior.model.settings import DEFAULT, Settings
from reprior.rows.blocks import Blocks, as_listed, check_inputs, map_numbered, top_k_in
from reprior.rows.calibrated import CalibratedBlocks, Calibrator
from reprior.rows.correction import correct_rows
from reprior.rows.labelled import LabelledBlocks
from reprior.rows.passes import MAX_DENSE_CLASSES, correlation, every_nth

ENOUGH_ROWS = 8  # a class, and a thousand times that in all, to test with
MAX_NUMBERS, MIN_ROWS = 20_000_000, 500  # probabilities to test with, 0.2 GB, unless these are fewer samples
MAX_PAIRED = 2000  # samples that are compared in pairs if there are more classes, so that the cost is linear in K
ALL_RIGHT = 0.99  # share of held-out samples outside the largest class that are right if they were trained on
HARM = 0.003  # of the rows, that correction has to get wrong to be worth a word
ROUNDED = 1e-7  # smallest standard deviation of probabilities; below it their means differ by rounding
PSEUDO_SAMPLES = 0.1  # given to every class so that none is ruled out before it is compared with the others
OVERLAP = 0.9  # correlation of two classes' likelihoods from which they count as confused


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """Answers about label shift, accuracy and precision for some samples; made by `diagnose`. `print` it to read it.

    Parameters
    ----------
    estimate : PriorEstimate
        The estimate that accuracy and precision refer to.
    shift_p : float
        P-value of "nothing has shifted".
    label_shift : float or None
        Probability that only the class prior has changed; None without held-out samples.
    confused : tuple of (class, class, correlation)
        Pairs of classes that the classifier hardly distinguishes, worst first. Empty above 4,096 classes.
    smallest_singular_value : float or None
        Smallest singular value of the column-normalised confusion matrix.
    effective_labels : float
        Effective number of labels: this many labelled samples would give shares as precise.
    effective_heldout : float or None
        Effective held-out sample size at the estimated prior.
    overconfidence, overconfidence_se : float or None
        Mean confidence minus accuracy on the held-out samples, and its standard error.
    accuracy : (float, float) or None
        Expected accuracy on the target: uncorrected, corrected. None without held-out samples and labels.
    alpha : float
        Significance level of the tests that the sentences report.
    accuracy_interval : (float, float) or None
        95 % interval of the expected accuracy of corrected predictions.
    accuracy_risk : float or None
        How much correcting may lower the accuracy, given the uncertainty of the shares.
    amplification : float
        Change of the estimated shares divided by the change of the mean prediction, in total variation.
    labels_conflict : str
        How labels of target samples contradict the predictions; "" if they do not.
    labels_needed : int or None
        About how many labels of random samples settle whether to correct, as in `query`.

    Examples
    --------
    >>> diagnosis = diagnose([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]])
    >>> diagnosis.shifted, diagnosis.applies
    (False, None)
    """

    estimate: PriorEstimate
    shift_p: float
    label_shift: float | None
    confused: tuple[tuple[str, str, float], ...]
    smallest_singular_value: float | None
    effective_labels: float
    effective_heldout: float | None
    overconfidence: float | None
    overconfidence_se: float | None
    accuracy: tuple[float, float] | None
    alpha: float
    accuracy_interval: tuple[float, float] | None = None
    accuracy_risk: float | None = None
    amplification: float = 1.0
    labels_conflict: str = ""
    labels_needed: int | None = None

    @property
    def may_harm(self) -> bool | None:
        """Whether correcting may lower the accuracy by more than 0.3 points; None without held-out samples and labels.
        """
        if self.labels_conflict or self.applies is False:
            return True
        if self.accuracy is None:
            return None
        return self.amplification >= WEAK or self.risky

    @property
    def risky(self) -> bool:
        """Whether the shares are too uncertain to exclude that correcting lowers the accuracy."""
        if self.accuracy_risk is None or self.accuracy is None or self.accuracy_interval is None:
            return False
        surely = self.accuracy_interval[0] > self.accuracy[0]  # better, whatever of the interval is true
        return self.accuracy_risk > HARM and not surely

    @property
    def shifted(self) -> bool:
        """Whether something differs from the source: the class prior, or anything else."""
        return self.shift_p < self.alpha or self.applies is False

    @property
    def applies(self) -> bool | None:
        """Whether a change of the class prior explains the predictions; None without held-out samples."""
        return None if self.label_shift is None else self.label_shift >= 0.5

    def __repr__(self) -> str:
        return "\n".join(sentence.text for sentence in sentences(self))


def diagnose(source: Any, proba: Any, *, estimate: PriorEstimate | None = None, alpha: float = 0.05) -> Diagnosis:
    """Check whether label shift explains some samples and whether correcting them helps. `print` the result.

    Most answers need held-out samples. If you have a pipeline, call `pipe.diagnose(proba)` instead.

    Parameters
    ----------
    source : Source or (K,)
        What `summarize` returned, or class counts.
    proba : (n, K) array, DataFrame, Blocks, or top-k pair
        Predicted probabilities of the target. If `source` belongs to a pipeline that calibrates, pass
        `estimate.target`, which is calibrated.
    estimate : PriorEstimate, optional
        Estimate to check; by default `ebls` makes one.
    alpha : float
        Significance level of the tests that the sentences report.

    Examples
    --------
    >>> print(diagnose([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]))
    No shift found (p = 0.27).
    Not tested for label shift: this needs held-out samples. Whether correction helps is unknown.
    ...
    """
    level = check_number(alpha, "diagnose", "alpha", low=0, high=0.5, open_low=True)
    training, target = check_inputs(source, proba, "diagnose")
    if training.calibrated and not isinstance(proba, Blocks):
        fail("diagnose", "proba", "be calibrated by the pipeline that `source` belongs to", f"a {type(proba).__name__}",
             remedy="Diagnose the classifier's own predictions by `pipe.diagnose(proba)`")  # fmt: skip
    if estimate is not None and (not isinstance(estimate, PriorEstimate) or len(estimate.prior) != len(training.prior)):
        fail("diagnose", "estimate", f"be what a method returned for these {len(training.prior)} classes",
             type(estimate).__name__)  # fmt: skip
    made = ebls(training, target) if estimate is None else estimate
    raw = target.raw if isinstance(target, LabelledBlocks) else target
    about = posterior_of(made if made.posterior is not None else ebls(training, target)).prior
    one_label = float((about.mean * (1 - about.mean)).sum())  # variance of all shares by a single label
    effective_heldout = gap = gap_se = None
    if training.heldout is not None:
        (rows, y), weight = training.heldout, row_weights(training)
        confidence = rows.max(axis=1)
        gap = float(weight @ confidence - weight @ (rows.argmax(axis=1) == y))
        gap_se = max(float(np.sqrt(weight**2 @ (confidence * (1 - confidence)))), 1e-12)  # if they are calibrated
        to_shares = (made.shares / np.maximum(np.bincount(y, minlength=len(made.shares)), 1))[y]
        effective_heldout = float(to_shares.sum() ** 2 / max(to_shares @ to_shares, 1e-300))
    expected = expected_accuracy(made, raw, training)
    tests = made.checks if made.checks is not None and made.target is proba else checks(made, look(raw, made.n))
    return Diagnosis(
        estimate=made, shift_p=tests.shift_p, label_shift=tests.label_shift,
        confused=confused_pairs(raw, made), smallest_singular_value=smallest_singular_value(training),
        effective_labels=min(made.n, one_label / max(float(about.variance.sum()), 1e-300)),
        effective_heldout=effective_heldout, overconfidence=gap, overconfidence_se=gap_se,
        accuracy=expected and (expected.before, expected.after),
        accuracy_interval=expected and (expected.lower, expected.upper), alpha=level,
        accuracy_risk=expected and expected.risk, amplification=tests.amplification,
        labels_conflict=tests.labels_conflict, labels_needed=tests.labels_needed,
    )  # fmt: skip


class Look(NamedTuple):
    """Some samples (m, K) of a target, and the summed probabilities (K,) of all."""

    sample: Matrix
    counts: Vector


def look(target: Blocks, n: float) -> Look:
    """Return what the tests need of a target of `n` samples, in one pass."""
    k = target.n_classes
    at_most = min(ENOUGH_ROWS * max(1000, k), max(MAX_NUMBERS // k, MIN_ROWS))
    stride = max(1, -(-int(n) // at_most))

    def of_block(first: int, block: Matrix) -> tuple[Look, ...]:
        counts = np.asarray(block.T, np.float64) @ (1 / block.sum(axis=1, dtype=np.float64))  # rows sum to about 1
        return (Look(np.array(every_nth(stride, first, block), np.float64), counts),)

    samples, counts = zip(*map_numbered(target, of_block), strict=True)
    return Look(np.concatenate(samples), np.sum(counts, axis=0))


def evidence_of(
    estimate: PriorEstimate, target: Blocks, sample: Matrix, settings: Settings, unshifted: Vector | None = None
) -> Evidence | None:
    """Return the evidence that a change is label shift; None without held-out samples."""
    source, listed = estimate.source, top_k_in(target)
    if source.heldout is None:
        return None
    if listed is not None and (k := listed.values.shape[1]) < target.n_classes:
        rows, y = source.heldout  # listed like the target's rows: whole rows would differ
        if isinstance(target, CalibratedBlocks) and isinstance(target.calibrator, Calibrator):
            rows = target.calibrator(as_listed(target.calibrator.undone(rows), k, listed.prior))
        else:
            rows = as_listed(rows, k, listed.prior)
        source = replace(source, heldout=(rows, y), error=None)
    error = measure_error(source, settings)
    assert error is not None
    assert error.moments is not None
    unshifted = np.ones_like(source.prior) if unshifted is None else unshifted
    return batch_evidence(error.moments, sample, estimate, unshifted, settings)


def checks(
    estimate: PriorEstimate, looked: Look, evidence: Evidence | None = None, settings: Settings = DEFAULT
) -> Checks:
    """Return what the tests of "nothing has shifted" and of label shift find for an estimate."""
    source, target = estimate.source, estimate.target
    assert target is not None
    raw = target.raw if isinstance(target, LabelledBlocks) else target
    evidence = evidence_of(estimate, raw, looked.sample, settings) if evidence is None else evidence
    conflict, by_labels = look_at_labels(estimate, looked.sample)
    shift_p = shift_p_value(looked.counts, looked.sample, source)
    if by_labels < 1:
        shift_p = min(1.0, 2 * min(shift_p, by_labels))  # of two looks, one may be low by chance
    if evidence is None or source.heldout is None:
        return Checks(shift_p, None, None, 1.0, conflict)
    share = evidence.share(settings)
    trained = share < 0.5 and by_heart(*source.heldout, looked.sample, estimate.weights)
    return Checks(shift_p, evidence.log_evidence, share, evidence.amplification, conflict, trained)


def by_heart(rows: Matrix, y: Labels, sample: Matrix, weights: Vector) -> bool:
    """Return whether held-out samples look like training samples: nearly all right, and surer than `sample` (m, K)."""
    corrected = correct_rows(sample, weights)
    wrong, smaller = np.mean(rows.argmax(axis=1) != y), 1 - np.bincount(y).max() / len(y)
    return bool(wrong < (1 - ALL_RIGHT) * smaller and corrected.max(axis=1).mean() < rows.max(axis=1).mean())


def shift_p_value(counts: Vector, sample: Matrix, source: Source) -> float:
    """Return the p-value of "the mean prediction is the source's"; `counts` (K,) sum all rows, `sample` has some."""
    reference, n_reference = source.prior, np.inf
    if source.heldout is not None:
        weight = row_weights(source)
        reference, n_reference = weight @ source.heldout[0], 1 / float(weight @ weight)
    # all rows together: where a class is rare, a sample's own variance goes with its mean
    rows = sample if source.heldout is None else np.concatenate([sample, source.heldout[0]])
    centred = rows - np.ones(len(rows)) @ rows / len(rows)  # BLAS sums narrow columns several times as fast as NumPy
    deviation = np.sqrt(np.maximum(np.einsum("ij,ij->j", centred, centred) / len(rows), ROUNDED**2))
    centred /= deviation
    n = counts.sum()  # each row expects one
    error = deviation * np.sqrt(1 / n + 1 / n_reference)
    squares = float((((counts / n - reference) / error) ** 2).sum())
    return scaled_chi_square_p(squares, mean=len(counts), variance=2 * squared_correlations(centred))


def squared_correlations(standard: Matrix) -> float:
    """Return the sum of all squared correlations between the columns of standardised samples (n, K).

    It is also the mean of (x_i @ x_j)² over pairs of samples. For very many classes, some pairs are enough.
    """
    n, k = standard.shape
    if min(n, k) <= MAX_PAIRED:
        products = standard.T @ standard if n > k else standard @ standard.T  # both have the same squares
        return float((products**2).sum() / n**2)
    some: Matrix = standard[:: -(-n // MAX_PAIRED)].astype(np.float32)
    pairs = some @ some.T
    np.fill_diagonal(pairs, 0)
    return float(max((pairs**2).sum(dtype=np.float64) / (len(some) * (len(some) - 1)), k))


def row_weights(source: Source) -> Vector:
    """Return weights (n,) of the held-out samples by which they have the source prior."""
    assert source.heldout is not None
    weight = np.ones(len(source.heldout[1]))
    if source.confusion is not None and source.counts is not None:
        weight = (source.confusion.sum(axis=0) / np.maximum(source.counts, 1))[source.heldout[1]]
    return np.asarray(weight / weight.sum())


def smallest_singular_value(source: Source) -> float | None:
    """Return that of P(prediction | class) for classes with held-out samples; None for very many classes."""
    if source.confusion is None or len(source.prior) > MAX_DENSE_CLASSES:
        return None
    columns = source.confusion.sum(axis=0)
    return float(np.linalg.svd(source.confusion[:, columns > 0] / columns[columns > 0], compute_uv=False)[-1])


def confused_pairs(target: Blocks, estimate: PriorEstimate) -> tuple[tuple[str, str, float], ...]:
    """Return the pairs of classes that the samples hardly distinguish, worst first, ten at most."""
    n, source, k = float(estimate.n), estimate.source, len(estimate.prior)
    if k > MAX_DENSE_CLASSES:
        return ()
    shares = (n * estimate.shares + PSEUDO_SAMPLES) / (n + k * PSEUDO_SAMPLES)
    both = correlation(target, shares, source.prior, n)
    a, b = np.nonzero(np.triu(both, 1) > OVERLAP)
    worst = np.argsort(-both[a, b], kind="stable")[:10]
    pairs = zip(a[worst], b[worst], strict=True)
    return tuple((source.called[i], source.called[j], float(both[i, j])) for i, j in pairs)
