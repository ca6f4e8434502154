"""Does the method apply: is there a shift, is it label shift, can classes be told apart, are outputs calibrated?"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from reprior._check import check_number, check_source, fail
from reprior._types import Labels, Matrix, PriorEstimate, Source, Vector
from reprior.blocks import Blocks, as_blocks, e_step
from reprior.bounds import LocalLikelihood, around
from reprior.em import ebls

ENOUGH_ROWS = 8  # a class, and a thousand times that in all, to test with
CENTRES = 128  # places among the outputs, in
DIRECTIONS = 20  # of their log-odds, that the label-shift test looks at
FEATURE_RIDGE = 0.3  # of a feature's variance
ENOUGH_HELDOUT = 300  # held-out rows, by their worth, from which one new row in ten is mostly found
OVERLAP = 0.9  # correlation of two classes' likelihoods from which they count as confused


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What the rows say about the method's assumptions; `str()` gives it in sentences.

    `shift_p` and `label_shift_p` are p-values of "nothing has shifted" and of "only the class shares have"; None where
    no held-out rows were there to tell. `confused` lists (class, class, correlation), worst first, and
    `smallest_singular_value` is that of the column-normalised confusion matrix. `worth` is how many labelled rows would
    tell as much about the shares, `heldout_worth` how many rows the held-out ones are worth after reweighting,
    `overconfidence` mean confidence minus accuracy on them with `overconfidence_se`, `accuracy` what they predict for
    the target as (uncorrected, corrected). `alpha` is the level at which the sentences decide.
    """

    estimate: PriorEstimate
    shift_p: float
    label_shift_p: float | None
    confused: tuple[tuple[str, str, float], ...]
    smallest_singular_value: float | None
    worth: float
    heldout_worth: float | None
    overconfidence: float | None
    overconfidence_se: float | None
    accuracy: tuple[float, float] | None
    alpha: float

    @property
    def shifted(self) -> bool:
        """Whether the class shares, or something else, differ from the source."""
        return self.shift_p < self.alpha or (self.label_shift_p is not None and self.label_shift_p < self.alpha)

    @property
    def applies(self) -> bool | None:
        """Whether a change of class shares explains the outputs; None if no held-out rows were there to tell."""
        return None if self.label_shift_p is None else self.label_shift_p >= self.alpha

    def __str__(self) -> str:
        return "\n".join(sentences(self))


def diagnose(source: Any, proba: Any, *, estimate: PriorEstimate | None = None, alpha: float = 0.05) -> Diagnosis:
    """Return whether label-shift correction applies to `proba` (n, K), from a `Source` or class counts (K,).

    Most answers need the held-out rows of `summarize`. `estimate` is the one whose accuracy and precision to tell;
    without it `ebls` makes one. Whether it is label shift is asked of the rows, whichever estimate is given.

    >>> print(diagnose([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]))
    No shift found (p = 0.27).
    Whether it is label shift cannot be told without held-out labelled rows: make the source with `summarize`.
    ...
    """
    known = check_source(source, "diagnose")
    level = check_number(alpha, "diagnose", "alpha", low=0, high=0.5, open_low=True)
    target = as_blocks(proba, known, "diagnose")
    if estimate is not None and (not isinstance(estimate, PriorEstimate) or len(estimate.prior) != len(known.prior)):
        fail("diagnose", "estimate", f"be what a method returned for these {len(known.prior)} classes",
             type(estimate).__name__)  # fmt: skip
    made = ebls(known, target) if estimate is None else estimate
    rows, fit = around(made)
    sample = some_rows(target, made.n)
    spread = float((fit.shares * (1 - fit.shares)).sum() / fit.variances.sum())
    label_shift_p = heldout_worth = gap = gap_se = accuracy = None
    if known.heldout is not None:
        # shares that shrink: those that fit the noise of the rows best make the rows look surer than held-out ones
        shares = made.prior if estimate is None else ebls(known, sample).prior
        label_shift_p = label_shift_p_value(sample, *known.heldout, shares, known.prior)
        heldout_worth, accuracy = reweighted(*known.heldout, made)
        gap, gap_se = overconfidence(*known.heldout, row_weights(known))
    return Diagnosis(
        estimate=made, shift_p=shift_p_value(target, sample, known), label_shift_p=label_shift_p,
        confused=confused_pairs(rows, known.classes), smallest_singular_value=smallest_singular_value(known),
        worth=min(made.n, spread), heldout_worth=heldout_worth, overconfidence=gap, overconfidence_se=gap_se,
        accuracy=accuracy, alpha=level,
    )  # fmt: skip


def some_rows(target: Blocks, n: float) -> Matrix:
    """Return rows (m, K) spread evenly over the target, enough to test with."""
    stride = max(1, int(n) // (ENOUGH_ROWS * max(1000, target.n_classes)))
    return np.concatenate(target.map_sum(lambda block: [block[::stride].astype(np.float64)]))


def shift_p_value(target: Blocks, sample: Matrix, source: Source) -> float:
    """Return the p-value of "the mean output is the source's", by a sum of squared z-scores, which are correlated."""
    n_classes = target.n_classes
    whole = e_step(target, np.ones(n_classes))
    reference, n_reference = source.prior, np.inf
    if source.heldout is not None:
        weight = row_weights(source)
        reference, n_reference = weight @ source.heldout[0], 1 / float(weight @ weight)
    # all rows together: where a class is rare, a sample's own variance goes with its mean
    centred = sample if source.heldout is None else np.concatenate([sample, source.heldout[0]])
    centred = centred - centred.mean(axis=0)
    deviation = np.sqrt(np.maximum((centred**2).mean(axis=0), 1e-30))
    centred /= deviation
    correlation = centred.T @ centred / len(centred)
    error = deviation * np.sqrt(1 / whole.n + 1 / n_reference)
    squares = float((((whole.counts / whole.n - reference) / error) ** 2).sum())
    return scaled_chi_square_p(squares, mean=n_classes, variance=2 * float((correlation**2).sum()))


def scaled_chi_square_p(value: float, *, mean: float, variance: float) -> float:
    """Return the chance of more than `value`, a sum of weighted χ² with this mean and variance (Satterthwaite)."""
    from scipy.special import chdtrc

    return float(chdtrc(2 * mean**2 / variance, 2 * mean * value / variance))


def sureness(proba: Matrix) -> Matrix:
    """Return how unsure each output is (n, 2), by entropy and by what the likeliest class leaves to the others."""
    entropy = -(proba * np.log(np.maximum(proba, 1e-12))).sum(axis=1)
    return np.column_stack([entropy, np.log(1 - proba.max(axis=1) + 1e-3)])


def bumps(proba: Matrix) -> Matrix:
    """Return how near each output is to each of CENTRES of them (n, CENTRES), in the main directions of the log-odds.

    The centres come from all rows alike: were they target rows, each would have one of those, itself, next to it.
    """
    log_odds = np.log(np.maximum(proba, 1e-6))
    log_odds -= log_odds.mean(axis=1, keepdims=True)
    log_odds -= log_odds.mean(axis=0)
    spread, directions = np.linalg.eigh(log_odds.T @ log_odds / len(proba))
    main = slice(-1, -1 - min(DIRECTIONS, proba.shape[1] - 1), -1)
    # halfway between lengths as they are and all alike: wide directions tell classes apart, narrow ones hold the rest
    place = log_odds @ (directions[:, main] * np.maximum(spread[main], 1e-12) ** -0.25)
    order = np.argsort(place[:, 0], kind="stable")  # so that the order of the rows does not matter
    centre = place[order[np.linspace(0, len(place) - 1, min(CENTRES, len(place))).astype(np.intp)]]
    lengths = (centre**2).sum(axis=1)
    apart = lengths[:, None] + lengths - 2 * centre @ centre.T
    np.fill_diagonal(apart, np.inf)
    nearest = apart.min(axis=1)
    nearest = nearest[np.isfinite(nearest) & (nearest > 1e-6)]  # outputs that are quite sure lie in one place
    width = 1.5 * float(np.median(nearest)) if len(nearest) else 1.0
    return np.asarray(np.exp(((place @ centre.T) * 2 - (place**2).sum(axis=1)[:, None] - lengths) / (2 * width)))


def label_shift_p_value(sample: Matrix, heldout: Matrix, y: Labels, prior: Vector, source_prior: Vector) -> float:
    """Return the p-value of "the target's outputs are those of held-out rows, reweighted to `prior` (K,)".

    Under label shift Σ over the target of a(x)e(x) is that over the held-out rows of (m/n)·w_y·a(x)e(x) for any a and
    e, calibrated or not; with r = Σ w_k p(k|x) for w_y, if calibrated. a = n/(n + m·r) weighs each region by the rows
    both sides have there, so that no held-out row stands for many. e is a feature less what the corrected outputs
    explain of it, which makes its mean the same in every class: an error in the shares then moves the test only to
    second order.
    """
    (m, n_classes), n = sample.shape, len(heldout)
    # all in the mix of the held-out rows, whatever that is: half a row more, so that no class is impossible
    mix = (np.bincount(y, minlength=n_classes) + 0.5) / (n + 0.5 * n_classes)
    outputs = np.concatenate([sample, heldout])
    rows = outputs * (mix / source_prior)
    rows /= rows.sum(axis=1, keepdims=True)
    weights = (m * prior + 0.5 / n_classes) / (m + 0.5) / mix
    ratio = rows @ weights
    corrected = rows * weights / ratio[:, None]
    from_heldout = n / (n + m * ratio)  # a: the chance that a row like this is a held-out one
    overlap = from_heldout * (1 - from_heldout)
    weighted = corrected * overlap[:, None]
    gram = weighted.T @ corrected
    gram.flat[:: n_classes + 1] += 0.3  # about one row

    def chance(feature: Matrix, heldout_weight: Vector, expected_square: Vector | None = None) -> float:
        e = feature - np.average(feature, axis=0, weights=overlap)
        e -= corrected @ np.linalg.solve(gram, weighted.T @ e)
        e *= from_heldout[:, None]
        expected = None
        if expected_square is not None:  # were it open which row is held out, and with what label
            each = 1 - from_heldout + from_heldout * (m / n) ** 2 * expected_square
            expected = (e * each[:, None]).T @ e
        e[m:] *= (-m / n * heldout_weight)[:, None]
        squares = e.T @ e if expected is None else (e.T @ e + expected) / 2
        return p_value_of_zero(e.sum(axis=0), squares / (1 - min(0.5, n_classes / n)))

    # w_y has mean r where outputs are calibrated, and noise besides. Few features can bear it all, and feel the least
    # miscalibration. For many, weights halfway are better; and their squares are averaged with those to be expected: a
    # rare row with a large weight, when it is missing, leaves no trace in the observed ones
    by_label, by_output = weights[y], ratio[m:]
    unsure = chance(sureness(outputs), by_label)
    elsewhere = chance(bumps(outputs), (by_label + by_output) / 2, (rows @ weights**2 + 3 * ratio**2) / 4)
    return min(1.0, 2 * unsure, 2 * elsewhere)  # Bonferroni


def p_value_of_zero(total: Vector, covariance: Matrix) -> float:
    """Return the p-value of "this sum (F,) has mean zero", from the summed squares (F, F) of what was added up.

    Hotelling's T² with a ridge, for features that nearly repeat each other. The squares are not centred: few rows that
    share a direction then vouch for its variance themselves, and cannot reject.
    """
    deviation = np.sqrt(np.maximum(np.diag(covariance), 1e-30))
    variance, directions = np.linalg.eigh(covariance / np.outer(deviation, deviation))
    variance = np.maximum(variance, 1e-12)
    part = variance / (variance + FEATURE_RIDGE)
    squares = float(part @ (((total / deviation) @ directions) ** 2 / variance))
    return scaled_chi_square_p(squares, mean=float(part.sum()), variance=2 * float(part @ part))


def reweighted(heldout: Matrix, y: Labels, estimate: PriorEstimate) -> tuple[float, tuple[float, float]]:
    """Return what the held-out rows, reweighted to the estimate, are worth, and their accuracy (before, after)."""
    counts = np.bincount(y, minlength=len(estimate.prior))
    weight = (estimate.prior / np.maximum(counts, 1))[y]
    weight = weight / weight.sum()
    before = float(weight @ (heldout.argmax(axis=1) == y))
    after = float(weight @ ((heldout * estimate.weights).argmax(axis=1) == y))
    return 1 / float(weight @ weight), (before, after)


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
    return float(weight @ confidence - weight @ (heldout.argmax(axis=1) == y)), float(max(error, 1e-12))


def smallest_singular_value(source: Source) -> float | None:
    """Return that of P(prediction | class), classes without held-out rows left out; 0 would mean no unique answer."""
    if source.confusion is None:
        return None
    columns = source.confusion.sum(axis=0)
    return float(np.linalg.svd(source.confusion[:, columns > 0] / columns[columns > 0], compute_uv=False)[-1])


def confused_pairs(rows: LocalLikelihood, classes: tuple[str, ...] | None) -> tuple[tuple[str, str, float], ...]:
    """Return the pairs of classes that the rows hardly tell apart, worst first, ten at most."""
    a, b = np.nonzero(np.triu(rows.correlation, 1) > OVERLAP)
    worst = np.argsort(-rows.correlation[a, b], kind="stable")[:10]
    return tuple(
        (classes[i] if classes else str(i), classes[j] if classes else str(j), float(rows.correlation[i, j]))
        for i, j in zip(a[worst], b[worst], strict=True)
    )


def sentences(found: Diagnosis) -> list[str]:
    """Return the diagnosis in plain sentences."""
    said = []
    if found.label_shift_p is None and found.shift_p < found.alpha:
        said.append(
            f"The mean output is not that of the source (p = {found.shift_p:.2g}): a shift, or a classifier whose "
            "outputs never had that mean; held-out rows would tell."
        )
    elif found.shift_p < found.alpha:
        said.append(f"The outputs have shifted against the source (p = {found.shift_p:.2g}).")
    else:
        said.append(f"No shift found (p = {found.shift_p:.2g}).")
    if found.label_shift_p is None:
        said.append(
            "Whether it is label shift cannot be told without held-out labelled rows: make the source with `summarize`."
        )
    elif found.applies:
        said.append(f"New class shares alone explain the outputs (p = {found.label_shift_p:.2g}).")
    else:
        said.append(
            f"New class shares alone do NOT explain the outputs (p = {found.label_shift_p:.2g}): the inputs look "
            "different within classes, or a class is new. Check the data before using estimate or correction."
        )
    if found.confused:
        pairs = "; ".join(f"{a} and {b}" for a, b, _ in found.confused[:3])
        said.append(f"Hard to tell apart: {pairs}. Their shares are less certain than their sum.")
    if found.smallest_singular_value is not None and found.smallest_singular_value < 0.05:
        said.append(
            f"The confusion matrix is nearly singular ({found.smallest_singular_value:.2g}): avoid bbse and rlls."
        )
    if found.overconfidence is not None and found.overconfidence_se is not None:
        size, how = f"{abs(found.overconfidence):.1%}", "over" if found.overconfidence > 0 else "under"
        if abs(found.overconfidence) > 3 * found.overconfidence_se:
            said.append(f"On held-out rows the classifier is {how}confident by {size}: calibrate it first.")
        else:
            said.append(f"On held-out rows confidence matches accuracy to {size}.")
    n = found.estimate.n
    said.append(f"The {n:.0f} rows tell as much about the shares as about {found.worth:.0f} labelled ones would.")
    if found.applies and found.accuracy is not None and found.heldout_worth is not None:
        before, after = found.accuracy
        text = f"Held-out rows predict an accuracy of {before:.1%}, {after:.1%} with correction"
        said.append(f"{text} (they are worth {found.heldout_worth:.0f} rows at these shares).")
        if found.heldout_worth < ENOUGH_HELDOUT:
            said.append("Few to tell by: rows of a new kind may go unnoticed. Hold out more, as many of each class.")
    return said


class CallableModule(ModuleType):
    """Lets `reprior.diagnose(source, proba)` stand for `reprior.diagnose.diagnose(source, proba)`."""

    def __call__(self, source: Any, proba: Any, **options: Any) -> Diagnosis:
        return diagnose(source, proba, **options)


sys.modules[__name__].__class__ = CallableModule
