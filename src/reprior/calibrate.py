"""Calibrators: make a classifier's probabilities mean what they say, from held-out labelled rows.

Every one of them is softmax(scale·x + bias) on centred log-probabilities x; they differ in what is free. Afterwards
the source prior has to be the one the calibrated outputs carry: `summarize(calibrator(proba), y)` takes their mean.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from reprior import codec
from reprior._check import as_rng, check_choice, check_labels, check_matrix, check_number, check_prior, check_rows, fail
from reprior._types import Labels, Matrix, Vector
from reprior.blocks import ArrayBlocks, numbered

KINDS = ("none", "temperature", "bias-corrected", "no-bias-vector", "vector")  # from stiff to free
ALIASES = {"raw": "none", "ts": "temperature", "bcts": "bias-corrected", "nbvs": "no-bias-vector", "vs": "vector"}
SCALE_BOUNDS = (0.01, 100.0)  # where every held-out row is right, the likelihood alone would ask for an infinite scale
FOLDS = 5


@dataclass(frozen=True, slots=True)
class Calibrator:
    """A fitted calibrator, softmax(scale·x + bias); call it on `proba` (n, K), or by name on `logits` (n, K).

    `scale` and `bias` (K,); `floor` is the probability that zeros, and whatever lies below it, are taken for; `n` rows
    were fitted, with mean log-likelihood `log_likelihood` if they had labels.
    """

    kind: str
    scale: Vector
    bias: Vector
    floor: float
    n: int
    log_likelihood: float | None

    def __call__(self, proba: Any = None, *, logits: Any = None) -> Matrix:
        """Return calibrated probabilities (n, K), in the float type that came in."""
        array = _read(proba, logits, "Calibrator", len(self.scale))
        if self.kind == "none" and logits is None:
            return array
        out = np.empty(array.shape, array.dtype)
        for first, block in numbered(ArrayBlocks(array)):
            rows = _centred(block, None if logits is not None else self.floor)
            _softmax(rows, self.scale, self.bias)
            out[first : first + len(block)] = rows
        return out

    def to_bytes(self) -> bytes:
        """Return the calibrator as a few bytes that later versions can still read."""
        return codec.encode("calibrator", {name: getattr(self, name) for name in self.__slots__})

    @classmethod
    def from_bytes(cls, data: bytes) -> Calibrator:
        """Return the calibrator that `to_bytes` wrote."""
        return cls(**codec.decode(data, "calibrator", "Calibrator.from_bytes"))


def temperature(proba: Any = None, y: Any = None, *, logits: Any = None) -> Calibrator:
    """Return temperature scaling [guo2017]: one scale for all classes, fitted by likelihood to `y` (n,).

    >>> cal = temperature([[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.2, 0.8]], [0, 1, 0, 1])
    >>> cal([[0.9, 0.1]]).round(2)
    array([[0.85, 0.15]])
    """
    return fit(proba, y, logits=logits, kind="temperature")


def bias_corrected(proba: Any = None, y: Any = None, *, logits: Any = None, ridge: float = 1.0) -> Calibrator:
    """Return bias-corrected temperature scaling (BCTS) [alexandari2020]: one scale, and a bias for each class."""
    return fit(proba, y, logits=logits, kind="bias-corrected", ridge=ridge)


def vector(proba: Any = None, y: Any = None, *, logits: Any = None, ridge: float = 1.0) -> Calibrator:
    """Return vector scaling [guo2017]: a scale and a bias for each class."""
    return fit(proba, y, logits=logits, kind="vector", ridge=ridge)


def no_bias_vector(proba: Any = None, y: Any = None, *, logits: Any = None, ridge: float = 1.0) -> Calibrator:
    """Return no-bias vector scaling (NBVS) [alexandari2020]: a scale for each class."""
    return fit(proba, y, logits=logits, kind="no-bias-vector", ridge=ridge)


def likelihood_temperature(proba: Any = None, y: Any = None, *, prior: Any, logits: Any = None) -> Calibrator:
    """Return temperature scaling of the likelihood part alone, z = (x − log ε)/T + log ε, for an imbalanced source.

    `prior` (K,) is ε: the class counts or prior that the classifier was trained on. Plain temperature scaling would
    shrink log ε, which is part of the logits, as well.
    """
    array, labels = _pair(proba, y, logits, "likelihood_temperature")
    eps = check_prior(prior, "likelihood_temperature", "prior")
    if len(eps) != array.shape[1]:
        fail("likelihood_temperature", "prior", f"have {array.shape[1]} classes like the rows", len(eps))
    floor = None if logits is not None else _floor(array)
    x, log_eps = _centred(array, floor), np.log(eps)
    scale, _ = _fit(x - log_eps, labels, np.ones(1), None, 0.0, offset=log_eps)
    return _finish("likelihood-temperature", x, labels, scale, (1 - scale) * log_eps, floor)


def from_accuracy(proba: Any = None, *, accuracy: float, logits: Any = None) -> Calibrator:
    """Return the temperature at which mean confidence equals the `accuracy` known for the source: no labels needed.

    The rows have to come from the source distribution, or from one near it.
    """
    array = _read(proba, logits, "from_accuracy")
    known = check_number(accuracy, "from_accuracy", "accuracy", low=1 / array.shape[1], high=1, open_low=True)
    floor = None if logits is not None else _floor(array)
    x = _centred(array, floor)
    low, high = np.log(SCALE_BOUNDS)
    for _ in range(40):  # mean confidence grows with the scale, so bisection cannot fail
        middle = 0.5 * (low + high)
        rows = x.copy()
        _softmax(rows, np.exp(middle), 0.0)
        low, high = (low, middle) if rows.max(axis=1).mean() > known else (middle, high)
    scale = np.full(array.shape[1], np.exp(0.5 * (low + high)))
    return Calibrator("accuracy-temperature", scale, np.zeros_like(scale), floor or 0.0, len(x), None)


def fit(
    proba: Any = None, y: Any = None, *, logits: Any = None, kind: str = "auto", ridge: float = 1.0,
    kinds: Sequence[str] = KINDS, rng: int | np.random.Generator | None = 0,
) -> Calibrator:  # fmt: skip
    """Return a calibrator of the `kind` asked for (see `KINDS` and `ALIASES`), fitted to held-out rows.

    "auto" takes the stiffest of `kinds` whose cross-validated likelihood is within one standard error of the best.
    `ridge` pulls biases and scales towards plain temperature scaling as ridge/2·‖·‖² in a sum over rows would: with few
    labels in a class its bias stays near 0.
    """
    array, labels = _pair(proba, y, logits, "fit")
    name = ALIASES.get(kind, kind)
    penalty = check_number(ridge, "fit", "ridge", low=0)
    if name == "auto":
        score = _held_out(array, labels, logits is not None, kinds, penalty, rng)
        best = max(score.values(), key=np.mean)
        loss = {kind: best - rows for kind, rows in score.items()}
        name = next(k for k, rows in loss.items() if rows.mean() <= rows.std() / np.sqrt(len(rows)))
    check_choice(name, "fit", "kind", ("auto", *KINDS, *ALIASES))
    return _fit_kind(array, labels, logits is not None, name, penalty)


def cross_validate(
    proba: Any = None, y: Any = None, *, logits: Any = None, ridge: float = 1.0, kinds: Sequence[str] = KINDS,
    rng: int | np.random.Generator | None = 0,
) -> dict[str, float]:  # fmt: skip
    """Return the mean log-likelihood of each of `kinds` on rows it was not fitted to (5 folds, stratified)."""
    array, labels = _pair(proba, y, logits, "cross_validate")
    penalty = check_number(ridge, "cross_validate", "ridge", low=0)
    score = _held_out(array, labels, logits is not None, kinds, penalty, rng)
    return {kind: float(rows.mean()) for kind, rows in score.items()}


def _held_out(
    array: Matrix, labels: Labels, is_logits: bool, kinds: Sequence[str], ridge: float,
    rng: int | np.random.Generator | None,
) -> dict[str, Vector]:  # fmt: skip
    if len(labels) < 2 * FOLDS:
        fail("fit", "y", f"have at least {2 * FOLDS} rows to cross-validate", len(labels), remedy="Name a `kind`")
    names = sorted((check_choice(ALIASES.get(k, k), "fit", "kinds", KINDS) for k in kinds), key=KINDS.index)
    order = as_rng(rng).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), np.intp)
    fold[order] = np.arange(len(labels)) % FOLDS  # neighbours in `order` share a class: the folds are stratified
    score = {name: np.empty(len(labels)) for name in names}
    for f in range(FOLDS):
        inside, outside = fold != f, fold == f
        for name, rows in score.items():
            cal = _fit_kind(array[inside], labels[inside], is_logits, name, ridge)
            x = _centred(array[outside], None if is_logits else cal.floor)
            rows[outside] = _log_likelihood(x, labels[outside], cal.scale, cal.bias)
    return score


def _fit_kind(array: Matrix, labels: Labels, is_logits: bool, kind: str, ridge: float) -> Calibrator:
    floor = None if is_logits else _floor(array)
    x = _centred(array, floor)
    scale, bias = np.ones(1), None
    if kind != "none":
        scale, bias = _fit(x, labels, scale, None, 0.0)
    if kind not in ("none", "temperature"):
        start = np.full(x.shape[1], scale[0]) if "vector" in kind else scale
        scale, bias = _fit(x, labels, start, None if kind == "no-bias-vector" else np.zeros(x.shape[1]), ridge)
    return _finish(kind, x, labels, scale, bias, floor)


def _finish(
    kind: str, x: Matrix, labels: Labels, scale: Vector, bias: Vector | None, floor: float | None
) -> Calibrator:
    k = x.shape[1]
    scale, bias = np.broadcast_to(scale, k).copy(), np.zeros(k) if bias is None else bias - bias.mean()
    mean = float(_log_likelihood(x, labels, scale, bias).mean())
    return Calibrator(kind, scale, bias, floor or 0.0, len(x), mean)


def _fit(
    x: Matrix, labels: Labels, scale: Vector, bias: Vector | None, ridge: float, *, offset: Vector | float = 0.0
) -> tuple[Vector, Vector | None]:
    """Minimise −Σ log softmax(scale·x + bias + offset)[y] + ridge/2 ‖(scale, bias) − start‖² by Newton's method.

    `scale` (1,) or (K,) and `bias` (K,), or None for none, are the start; a lone scale is never penalised. The problem
    is convex, so halving steps is all the damping it needs; the scale stays within its bounds.
    """
    n, k = x.shape
    free, rows = len(scale), np.empty_like(x)
    seen = np.bincount(labels, minlength=k).astype(np.float64)
    moments = np.bincount(labels, weights=x[np.arange(n), labels], minlength=k)
    target = moments if free == k else moments.sum(keepdims=True)
    start = scale if bias is None else np.concatenate([scale, bias])
    target = target if bias is None else np.concatenate([target, seen])
    pull = np.full(len(start), ridge)
    pull[:free] *= free == k
    low, high = np.full_like(start, -np.inf), np.full_like(start, np.inf)
    low[:free], high[:free] = SCALE_BOUNDS

    def loss(theta: Vector) -> float:
        """Return what is minimised, and leave the softmax in `rows`."""
        np.multiply(x, theta[:free], out=rows)
        np.add(rows, offset if bias is None else offset + theta[free:], out=rows)
        top = rows.max(axis=1)
        np.subtract(rows, top[:, None], out=rows)
        np.exp(rows, out=rows)
        total = rows @ np.ones(k)
        np.divide(rows, total[:, None], out=rows)
        return float(top.sum() + np.log(total).sum() - theta @ target + 0.5 * pull @ (theta - start) ** 2)

    def derivatives(theta: Vector) -> tuple[Vector, Matrix]:
        """Return slope and curvature at the `theta` whose softmax is in `rows`."""
        weighted = x * rows
        expected, second = weighted.sum(axis=0), np.einsum("ij,ij->j", weighted, x)
        if free == 1:
            mean = weighted @ np.ones(k)
            moment, square = mean.sum(keepdims=True), np.array([[second.sum() - mean @ mean]])
            cross = (expected - mean @ rows)[None, :]
        else:
            moment, square = expected, np.diag(second) - weighted.T @ weighted
            cross = np.diag(expected) - weighted.T @ rows
        if bias is not None:
            each = rows.sum(axis=0)
            moment = np.concatenate([moment, each])
            square = np.block([[square, cross], [cross.T, np.diag(each) - rows.T @ rows]])
        return moment - target + pull * (theta - start), square + np.diag(pull)

    theta, value = start, loss(start)
    for _ in range(100):
        slope, bend = derivatives(theta)
        moving = ~((theta <= low) & (slope > 0) | (theta >= high) & (slope < 0))
        bend[np.diag_indices_from(bend)] += 1e-10 * n  # a shift of all biases, or an unseen class, has no curvature
        step = np.zeros_like(theta)
        step[moving] = np.linalg.solve(bend[np.ix_(moving, moving)], -slope[moving])
        promise = float(-slope @ step)
        if promise < 1e-11 * n:
            break
        for _ in range(30):
            new = np.clip(theta + step, low, high)
            worth = loss(new)
            if worth <= value - 1e-4 * promise:
                break
            step, promise = 0.5 * step, 0.5 * promise
        else:
            break  # rounding leaves nothing to gain
        theta, value = new, worth
    return theta[:free], None if bias is None else theta[free:]


def _read(proba: Any, logits: Any, caller: str, n_classes: int | None = None) -> Matrix:
    """Return the one of `proba` and `logits` that was given, checked."""
    if (proba is None) == (logits is None):
        fail(
            caller, "proba", "be given, or `logits` by name, and not both", "both" if logits is not None else "neither"
        )
    if logits is None:
        array = check_matrix(proba, caller, "proba", n_classes)
        check_rows(numbered(ArrayBlocks(array)), caller, "proba")
        return array
    array = check_matrix(logits, caller, "logits", n_classes)
    bad = ~np.isfinite(array).all(axis=1)
    if bad.any():
        row = int(np.argmax(bad))
        fail(caller, "logits", "contain only finite numbers", float(array[row][~np.isfinite(array[row])][0]),
             place=f"row {row}", count=int(bad.sum()))  # fmt: skip
    return array


def _pair(proba: Any, y: Any, logits: Any, caller: str) -> tuple[Matrix, Labels]:
    array = _read(proba, logits, caller)
    if y is None:
        fail(caller, "y", "be the column index of each row's class", "nothing")
    return array, check_labels(y, caller, "y", *array.shape)


def _floor(proba: Matrix) -> float:
    """Return what zeros are taken for: half of the smallest positive probability in the held-out rows."""
    return max(0.5 * float(proba.min(initial=1.0, where=proba > 0)), np.finfo(np.float64).tiny)


def _centred(block: Matrix, floor: float | None) -> Matrix:
    """Return log-probabilities, or logits if there is no `floor`, less their row mean: float64, a new array."""
    x = np.array(block, np.float64) if floor is None else np.log(np.maximum(np.asarray(block, np.float64), floor))
    x -= x.mean(axis=1, keepdims=True)
    return x


def _softmax(rows: Matrix, scale: Vector | float, bias: Vector | float) -> None:
    """Turn centred rows (n, K) into softmax(scale·rows + bias), in place."""
    rows *= scale
    rows += bias
    rows -= rows.max(axis=1, keepdims=True)
    np.exp(rows, out=rows)
    rows /= rows.sum(axis=1, keepdims=True)


def _log_likelihood(x: Matrix, labels: Labels, scale: Vector, bias: Vector) -> Vector:
    """Return log softmax(scale·x + bias)[y] of each row (n,)."""
    z = x * scale + bias
    z -= z.max(axis=1, keepdims=True)
    return np.asarray(z[np.arange(len(z)), labels] - np.log(np.exp(z).sum(axis=1)))
