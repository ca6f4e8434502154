"""Calibrators: make a classifier's probabilities match observed frequencies, from held-out labelled samples.

Each calibrator is softmax(scale·x + bias) of centred log probabilities x; the kinds differ in which scales and biases
are fitted. `pipeline` calibrates for you. If you calibrate yourself, take the source prior from calibrated
probabilities: `summarize(calibrator(proba), y)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from reprior._check import check_choice, check_flag, check_number, check_prior, fail, own_names
from reprior._labels import check_labels
from reprior._types import Labels, Matrix, Vector
from reprior.pipelines.softmax_fit import LARGE, SCALE_BOUNDS, Penalty, Point, SoftmaxLoss, minimum
from reprior.rows.calibrated import SMALLEST_NORMAL, STIFF, Calibrator, centred, check_proba_or_logits, softmax
from reprior.simulate import Rng, folds

KINDS = ("none", "temperature", "bias-corrected", "no-bias-vector", "vector")  # from stiff to free
ALIASES = {"raw": "none", "ts": "temperature", "bcts": "bias-corrected", "nbvs": "no-bias-vector", "vs": "vector"}
FOLDS = 5
NONE = np.zeros(0)
SPREADS = (0.1, 0.3, 1.0, 3.0)  # prior standard deviations of the scale around 1, and of biases around 0
SCALE_SDS = np.array([0.0, *SPREADS])
START_PENALTY = SPREADS[-1] ** -2  # on the scale in the one fit from which those of every `SCALE_SDS` are derived
FIXED = STIFF**-0.5  # prior standard deviation of biases that are not fitted
START_STRIDE = 8  # of the rows to which a first scale is fitted, with more than `LARGE` classes
HOPELESS = 10.0  # nats behind the best evidence from which larger standard deviations of biases are not tried


def fit(
    proba: Any = None, y: Any = None, *, logits: Any = None, kind: str = "auto", ridge: float = 1.0,
    shrink: float = 0.0, kinds: Sequence[str] = KINDS, rng: Rng = 0,
) -> Calibrator:  # fmt: skip
    """Fit a calibrator to held-out samples.

    Parameters
    ----------
    proba : (n, K), optional
        Predicted probabilities of held-out samples.
    y : (n,)
        Labels of the held-out samples, as column indices.
    logits : (n, K), optional
        Logits instead of `proba`.
    kind : str
        A name of `KINDS` or `ALIASES`: "none"; "temperature", one scale for all classes [guo2017]; "bias-corrected"
        (BCTS), a scale for all classes and a bias per class [alexandari2020]; "no-bias-vector" (NBVS), a scale per
        class; "vector", a scale and a bias per class. "auto" takes the simplest of `kinds` whose cross-validated
        likelihood is within one standard error of the best.
    ridge : float
        Strength of a penalty ridge/2·‖·‖² on biases and on differences between scales. The bias of a class with few
        labels then stays near 0.
    shrink : float
        Strength of a penalty shrink/2·(scale − 1)² on the common scale. It keeps the scale finite if the classifier
        predicts every held-out label.
    kinds : sequence of str
        Kinds that "auto" chooses from.
    rng : int or Generator, optional
        Seed of the folds of "auto".

    Examples
    --------
    >>> rows, y = [[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.2, 0.8]] * 10, [0, 1, 0, 1] * 10
    >>> fit(rows, y, kind="ts").kind, fit(rows, y).kind
    ('temperature', 'bias-corrected')
    """
    x, floor, labels = _labelled(proba, y, logits, "fit")
    penalty, shrink = check_number(ridge, "fit", "ridge", low=0), check_number(shrink, "fit", "shrink", low=0)
    name = check_choice(ALIASES.get(kind, kind), "fit", "kind", ("auto", *KINDS, *ALIASES))
    if name == "auto":
        score = _cross_validated(x, labels, kinds, penalty, rng)
        best = max(score.values(), key=np.mean)
        loss = {kind: best - rows for kind, rows in score.items()}
        name = next(k for k, rows in loss.items() if rows.mean() <= rows.std() / np.sqrt(len(rows)))
    bias_ridge = penalty if name in ("bias-corrected", "vector") else STIFF
    return _calibrator(name, x, floor, labels, *_fit_kind(name, x, labels, penalty, shrink), bias_ridge)


def likelihood_temperature(proba: Any = None, y: Any = None, *, prior: Any, logits: Any = None) -> Calibrator:
    """Fit temperature scaling that leaves the class prior unscaled: z = (x − log ε)/T + log ε.

    Use it if the training data were imbalanced. Plain temperature scaling also scales log ε.

    Parameters
    ----------
    proba, y, logits
        Held-out samples, as in `fit`.
    prior : (K,)
        Class counts or prior ε of the training data.

    Examples
    --------
    >>> rows, y = [[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.2, 0.8]] * 10, [0, 1, 0, 1] * 10
    >>> cal = likelihood_temperature(rows, y, prior=[0.5, 0.5])  # balanced: plain temperature scaling
    >>> cal([[0.9, 0.1]]).round(2)
    array([[0.85, 0.15]])
    """
    x, floor, labels = _labelled(proba, y, logits, "likelihood_temperature")
    log_eps = np.log(check_prior(prior, "likelihood_temperature", "prior", n_classes=x.shape[1], like="the rows"))
    scale, _ = _fit(x - log_eps, labels, np.ones(1), NONE, 0.0, offset=log_eps)
    return _calibrator("likelihood-temperature", x, floor, labels, scale, (1 - scale) * log_eps)


def from_accuracy(proba: Any = None, *, accuracy: float, logits: Any = None) -> Calibrator:
    """Fit the temperature at which mean confidence equals a known accuracy. No labels are needed.

    The samples must come from the training distribution, or nearly so.

    Parameters
    ----------
    proba : (n, K), optional
        Predicted probabilities of the samples.
    accuracy : float
        The classifier's accuracy on the training distribution.
    logits : (n, K), optional
        Logits instead of `proba`.

    Examples
    --------
    >>> rows = [[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.2, 0.8]]
    >>> print(from_accuracy(rows, accuracy=0.75)(rows).max(axis=1).mean().round(3))
    0.75
    """
    x, floor = _inputs(proba, logits, "from_accuracy")
    n, k = x.shape
    wanted = check_number(accuracy, "from_accuracy", "accuracy", low=1 / k, high=1, open_low=True)
    low, high = np.log(SCALE_BOUNDS)
    for _ in range(40):  # mean confidence grows with the scale, so bisection cannot fail
        middle = 0.5 * (low + high)
        rows = x * np.exp(middle)
        softmax(rows)
        low, high = (low, middle) if rows.max(axis=1).mean() > wanted else (middle, high)
    return Calibrator("accuracy-temperature", np.full(k, np.exp(0.5 * (low + high))), np.zeros(k), floor, n, None)


def learned(proba: Any = None, y: Any = None, *, logits: Any = None, biases: bool = True) -> Calibrator:
    """Fit one scale and a bias per class, shrunk towards no change; this is what `pipeline` uses.

    One hypothesis is that probabilities are calibrated already. Others let the scale, the biases or both differ, by
    various amounts. Their fits are averaged by evidence. Few held-out samples therefore change little.

    Parameters
    ----------
    proba, y, logits
        Held-out samples, as in `fit`.
    biases : bool
        Whether to fit a bias per class. If False, only the scale is fitted.

    Examples
    --------
    >>> rows, y = [[0.8, 0.2], [0.2, 0.8]] * 50, [0, 1] * 40 + [1, 0] * 10  # accuracy 0.8
    >>> learned(rows, y)([[0.8, 0.2]]).round(2)
    array([[0.8, 0.2]])
    """
    check_flag(biases, "learned", "biases")
    x, floor, labels = _labelled(proba, y, logits, "learned")
    k, fits, best = x.shape[1], list[_Fits](), -np.inf
    identity, bias_sds = np.append(1.0, np.zeros(k)), np.array([FIXED, *SPREADS] if biases else [FIXED])
    start = identity.copy()
    if k > LARGE:  # single precision does if a row's own class is the zero of its logits
        x = (x - x[np.arange(len(x)), labels][:, None]).astype(np.float32)
        sample = SoftmaxLoss(x[::START_STRIDE], labels[::START_STRIDE], 1, 0)  # all rows may need many steps from 1
        start[:1] = minimum(sample, sample.at(start[:1]), Penalty(np.array([START_PENALTY]), np.ones(1)))[0].theta
    loss = SoftmaxLoss(x, labels, 1, k)
    at = loss.at(start)
    for bias_sd in bias_sds:
        pull = np.full(k + 1, bias_sd**-2)
        pull[0] = START_PENALTY
        at, penalised = minimum(loss, at, Penalty(pull, identity))
        fits.append(_scale_fits(penalised, bias_sd))
        best = max(best, fits[-1].evidence.max())
        if fits[-1].evidence.max() < best - HOPELESS:
            break
    evidence, scales, modes, follows = (np.array(part) for part in zip(*fits, strict=True))
    weights = np.exp(evidence - best)
    weights /= weights.sum()
    # mean of scale and biases over all fits; beside its mode a fit has another scale, which its biases follow
    sd_weights, scale_moves = weights.sum(axis=1), (weights * (scales - modes[:, :1])).sum(axis=1)
    theta = sd_weights @ modes
    scale = np.full(k, min(max(theta[0] + scale_moves.sum(), SCALE_BOUNDS[0]), SCALE_BOUNDS[1]))
    if not biases:
        return _calibrator("temperature", x, floor, labels, scale, np.zeros(k))
    ridge, bias = 1 / (bias_sds[: len(fits)] ** 2 @ sd_weights), theta[1:] - scale_moves @ follows
    return _calibrator("bias-corrected", loss.x, floor, labels, scale, bias, min(float(ridge), STIFF))


class _Fits(NamedTuple):
    """Fits with one prior of the biases and each prior of the scale (S,): their log `evidence` and `scales`.

    At the `mode` (1 + K,) the scale has the prior of `START_PENALTY`. Biases move by −`follow` (K,) per unit of scale.
    """

    evidence: Vector
    scales: Vector
    mode: Vector
    follow: Vector


def _scale_fits(penalised: Point, bias_sd: float) -> _Fits:
    """Return the fits whose scale has each prior standard deviation of `SCALE_SDS`, from one with `START_PENALTY`.

    The profile likelihood of the scale is about normal: mean 1 + offset, variance 1/precision. `log_integral` is over
    biases and scale. A prior N(1, scale_sd²) multiplies it by N(1 + offset; 1, 1/precision + scale_sd²).
    """
    theta, profile = penalised.theta, penalised.curvature.profile()
    precision = max(profile.scale_precision - START_PENALTY, 1e-9)
    offset = (theta[0] - 1) * (1 + START_PENALTY / precision)  # without the penalty
    penalty_loss = offset**2 / (1 / precision + 1 / START_PENALTY)  # twice what the penalty adds
    log_determinant = profile.log_determinant + 2 * (len(theta) - 1) * np.log(bias_sd)
    log_integral = -penalised.value + 0.5 * (penalty_loss - np.log(precision) - log_determinant)
    variance = 1 / precision + SCALE_SDS**2
    evidence = log_integral - 0.5 * (np.log(variance) + offset**2 / variance)
    return _Fits(evidence, 1 + offset * SCALE_SDS**2 / variance, theta, profile.follow)


def _cross_validated(x: Matrix, labels: Labels, kinds: Sequence[str], ridge: float, rng: Rng) -> dict[str, Vector]:
    """Return each row's log-likelihood (n,) under a calibrator of each kind that was fitted to other rows."""
    if len(labels) < 2 * FOLDS:
        fail("fit", "y", f"have at least {2 * FOLDS} rows to cross-validate", len(labels), remedy="Name a `kind`")
    names = sorted((check_choice(ALIASES.get(k, k), "fit", "kinds", KINDS) for k in kinds), key=KINDS.index)
    score, fold = {name: np.empty(len(labels)) for name in names}, folds(labels, FOLDS, rng)
    for f in range(FOLDS):
        inside, outside = fold != f, fold == f
        for name, rows in score.items():
            fitted = _fit_kind(name, x[inside], labels[inside], ridge)
            rows[outside] = _log_likelihood(x[outside], labels[outside], *fitted)
    return score


def _fit_kind(kind: str, x: Matrix, labels: Labels, ridge: float, shrink: float = 0.0) -> tuple[Vector, Vector]:
    """Return scale and bias (K,), (K,). One common scale is fitted first; freer kinds start from it."""
    k = x.shape[1]
    if kind == "none":
        return np.ones(k), np.zeros(k)
    scale, bias = _fit(x, labels, np.ones(1), NONE, 0.0, shrink=shrink)
    if kind == "temperature":
        return scale, bias
    scales, biases = scale if "vector" in kind else scale[:1], NONE if kind == "no-bias-vector" else bias
    return _fit(x, labels, scales, biases, ridge, shrink=shrink)


def _calibrator(
    kind: str, x: Matrix, floor: float, labels: Labels, scale: Vector, bias: Vector, ridge: float = STIFF
) -> Calibrator:
    """Return a calibrator whose biases have the mean 0, with its mean log-likelihood."""
    bias = bias - bias.mean()
    score = float(_log_likelihood(x, labels, scale, bias).mean())
    return Calibrator(kind, scale, bias, floor, len(x), score, ridge=ridge)


def _fit(
    x: Matrix, labels: Labels, scale: Vector, bias: Vector, ridge: float, *, offset: Vector | float = 0.0,
    shrink: float = 0.0,
) -> tuple[Vector, Vector]:  # fmt: skip
    """Return the scale and bias (K,), (K,) that minimize loss and penalties, started at `scale` and `bias`.

    `scale` has one number or one per class; `bias` is empty or has one per class. A common scale is pulled to 1 by
    `shrink`. Class scales and biases are pulled to their start by `ridge`.
    """
    k, free, start = x.shape[1], len(scale), np.concatenate([scale, bias])
    pull = np.full(len(start), ridge)
    centre = start.copy()
    if free == 1:
        pull[0], centre[0] = shrink, 1.0
    loss = SoftmaxLoss(x, labels, free, len(bias), offset=offset)
    theta = minimum(loss, loss.at(start), Penalty(pull, centre))[0].theta
    return np.broadcast_to(theta[:free], k).copy(), theta[free:] if len(bias) else np.zeros(k)


def _inputs(proba: Any, logits: Any, caller: str) -> tuple[Matrix, float]:
    """Return centred log-probabilities (n, K), and what replaces zeros: half of the smallest positive probability."""
    array = check_proba_or_logits(proba, logits, caller)
    if logits is not None:
        return centred(array, None), 0.0
    floor = max(0.5 * float(array.min(initial=1.0, where=array > 0)), SMALLEST_NORMAL)
    return centred(array, floor), floor


class _FitInput(NamedTuple):
    """Logits (n, K), the probability that replaced zeros, and labels (n,)."""

    x: Matrix
    floor: float
    labels: Labels


def _labelled(proba: Any, y: Any, logits: Any, caller: str) -> _FitInput:
    """Return checked and centred logits of held-out samples, with their labels as column indices."""
    x, floor = _inputs(proba, logits, caller)
    if y is None:
        fail(caller, "y", "be the column index of each row's class", "nothing")
    names = own_names(proba if logits is None else logits, None)
    classes = None if names is None else [str(name) for name in names]
    return _FitInput(x, floor, check_labels(y, caller, "y", len(x), x.shape[1], classes))


def _log_likelihood(x: Matrix, labels: Labels, scale: Vector, bias: Vector) -> Vector:
    """Return log softmax(scale·x + bias)[y] of each row (n,)."""
    z = x * scale.astype(x.dtype)
    z += bias.astype(x.dtype)
    own = z[np.arange(len(z)), labels]
    return np.asarray(own - softmax(z))
