"""What labels of target samples change: class biases, around calibrated and around corrected probabilities.

A bias b (K,) multiplies probabilities by exp(b). With labels y it has the log-likelihood Σ log softmax(log p + b)_y.
There is no bias at all, or each class has one of N(0, spread²), for several spreads. The evidence of each, by Laplace's
method, averages them. Intervals assume the widest spread, so they do not bet that there is no bias. The evidence of all
together says whether biases around the corrected probabilities explain the labels better than biases around the
calibrated ones, or than biases around those that labels of an earlier batch led to.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reprior._types import Labels, Matrix, Vector
from reprior.model.likelihood import DENSE_CLASSES
from reprior.model.settings import Settings

MAX_STEPS = 25  # of Newton's method
MAX_HALVINGS = 20  # of a step that does not ascend
MIN_PROBABILITY = 1e-6  # a smaller one of a labelled sample counts as this


@dataclass(frozen=True, slots=True)
class Biases:
    """Class biases: their posterior mean (K,), their covariance (K, K) for intervals, the probability that there are
    none, and the log evidence of the labels."""

    mean: Vector
    covariance: Matrix
    none: float
    log_evidence: float


@dataclass(frozen=True, slots=True)
class LabelledRows:
    """Target samples with labels: log probabilities (m, K), labels (m,), and how much each counts (m,)."""

    log_proba: Matrix
    y: Labels
    counts: Vector


def labelled_rows(proba: Matrix, y: Labels, weights: Vector | None = None) -> LabelledRows:
    """Return labelled samples. Weights (m,) of chosen samples are scaled to their effective sample size.

    Each of m labels counts m/(m + 1), so one wrong label cannot decide.
    """
    counts = np.ones(len(y)) if weights is None else weights * (weights.sum() / (weights @ weights))
    counts = counts * (counts.sum() / (counts.sum() + 1))
    return LabelledRows(np.log(np.maximum(np.asarray(proba, np.float64), MIN_PROBABILITY)), y, counts)


@dataclass(frozen=True, slots=True)
class BiasMode:
    """The mode (K,) of biases of one spread, the log joint density there, and its curvature."""

    bias: Vector
    log_joint: float
    curvature: Curvature


def fit_biases(rows: LabelledRows, log_weights: Vector, settings: Settings) -> Biases:
    """Return the class biases of labelled samples whose probabilities are multiplied by exp(log_weights) (K,)."""
    k = rows.log_proba.shape[1]
    means, evidence = [np.zeros(k)], [log_likelihood(rows, log_weights)[0] + np.log(settings.no_bias)]
    for spread in settings.bias_spreads:
        mode = bias_mode(rows, log_weights, spread, means[-1])
        means.append(mode.bias)
        chance = (1 - settings.no_bias) / len(settings.bias_spreads)
        evidence.append(mode.log_joint - 0.5 * mode.curvature.log_determinant() - k * np.log(spread) + np.log(chance))
    total = np.logaddexp.reduce(evidence)
    p = np.exp(np.array(evidence) - total)
    mean = p @ np.array(means)
    covariance = mode.curvature.covariance()
    return Biases(mean, covariance + square(means[-1] - mean, covariance.ndim), float(p[0]), float(total))


def bias_mode(rows: LabelledRows, log_weights: Vector, spread: float, start: Vector) -> BiasMode:
    """Return the mode of the biases of one spread by Newton's method from a `start` (K,)."""
    bias, wanted = start, np.bincount(rows.y, rows.counts, minlength=len(start))
    value, p = log_likelihood(rows, log_weights + bias)
    value -= float(bias @ bias) / (2 * spread**2)
    for _ in range(MAX_STEPS):
        gradient = wanted - rows.counts @ p - bias / spread**2
        step = Curvature(p, rows.counts, spread).solve(gradient)
        if gradient @ step < 1e-8:
            break
        for _ in range(MAX_HALVINGS):
            new, new_p = log_likelihood(rows, log_weights + bias + step)
            new -= float((bias + step) @ (bias + step)) / (2 * spread**2)
            if new >= value - 1e-12:
                break
            step = step / 2
        bias, value, p = bias + step, new, new_p
    return BiasMode(bias, value, Curvature(p, rows.counts, spread))


class Curvature:
    """The negative second derivative D − AᵀA by the biases, D (K,) diagonal and A (m, K).

    With A = QᵀR, R has at most K rows, so that many labels of few classes are cheap. By Woodbury's identity the inverse
    is D⁻¹ + D⁻¹Rᵀ(I − RD⁻¹Rᵀ)⁻¹RD⁻¹.
    """

    def __init__(self, p: Matrix, counts: Vector, spread: float) -> None:
        rows = p * np.sqrt(counts)[:, None]
        if len(rows) > rows.shape[1]:
            rows = np.asarray(np.linalg.qr(rows, mode="r"))
        self.diagonal = counts @ p + spread**-2
        self.scaled = rows / self.diagonal
        self.inner = np.eye(len(rows)) - self.scaled @ rows.T

    def solve(self, x: Vector) -> Vector:
        """Return the inverse times x (K,)."""
        return np.asarray(x / self.diagonal + self.scaled.T @ np.linalg.solve(self.inner, self.scaled @ x))

    def covariance(self) -> Matrix:
        """Return the inverse (K, K); only its diagonal (K,) for very many classes."""
        inverse = np.linalg.solve(self.inner, self.scaled)
        if len(self.diagonal) > DENSE_CLASSES:
            return np.asarray(1 / self.diagonal + (self.scaled * inverse).sum(axis=0))
        return np.asarray(np.diag(1 / self.diagonal) + self.scaled.T @ inverse)

    def log_determinant(self) -> float:
        """Return the logarithm of its determinant."""
        return float(np.log(self.diagonal).sum() + np.linalg.slogdet(self.inner)[1])


def log_likelihood(rows: LabelledRows, log_weights: Vector) -> tuple[float, Matrix]:
    """Return the log-likelihood of the labels, and the probabilities (m, K) that it is taken from."""
    z = rows.log_proba + log_weights
    z = z - z.max(axis=1, keepdims=True)
    p = np.exp(z)
    total = p.sum(axis=1)
    own = z[np.arange(len(rows.y)), rows.y] - np.log(total)
    return float(rows.counts @ own), p / total[:, None]


@dataclass(frozen=True, slots=True)
class LabelledWeights:
    """Log class weights (K,) after labels, their covariance (K, K), the probability that there are no class biases, the
    log evidence of the labels that corrected probabilities are better than calibrated ones, and the probability `share`
    of label shift with this evidence."""

    log_weights: Vector
    covariance: Matrix
    no_bias: float
    log_evidence: float
    share: float


def labelled_weights(
    rows: LabelledRows, unshifted: Vector, shifted: Vector, share: float, settings: Settings,
    earlier: Vector | None = None,
) -> LabelledWeights:  # fmt: skip
    """Return class weights with biases from labels, averaged over explanations by the labels' evidence.

    The explanations are log weights (K,) that biases are added to. `unshifted` are those without label shift, `shifted`
    those with it, whose probability is `share` before the labels. `earlier` are those after labels of an earlier batch.
    They have a third of the probability.
    """
    centres, probability = [unshifted, shifted], np.array([1 - share, share])
    if earlier is not None:
        centres, probability = [*centres, earlier], np.append(2 * probability, 1.0) / 3
    biases = [fit_biases(rows, centre, settings) for centre in centres]
    evidence = np.array([b.log_evidence for b in biases])
    probability = probability * np.exp(np.minimum(evidence - evidence[probability > 0].max(), 700))
    probability /= probability.sum()
    means = np.array([centre + b.mean for centre, b in zip(centres, biases, strict=True)])
    mean = probability @ means
    covariance = sum(p * (b.covariance + square(own - mean, b.covariance.ndim))
                     for p, b, own in zip(probability, biases, means, strict=True))  # fmt: skip
    no_bias, gain = float(probability @ [b.none for b in biases]), float(evidence[1] - evidence[0])
    return LabelledWeights(mean, np.asarray(covariance), no_bias, gain, float(probability[1]))


def square(x: Vector, ndim: int) -> Matrix:
    """Return x xᵀ (K, K), or its diagonal (K,) if `ndim` is 1."""
    return np.asarray(x**2 if ndim == 1 else np.outer(x, x))


def updated_share(share: float, log_evidence: float) -> float:
    """Return a probability after evidence in its favour; 1 stays 1."""
    if share == 1:
        return 1.0
    share = min(max(share, 1e-12), 1 - 1e-12)
    return float(1 / (1 + np.exp(-np.clip(np.log(share / (1 - share)) + log_evidence, -700, 700))))
