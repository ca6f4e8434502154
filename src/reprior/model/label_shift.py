"""Is it label shift, or has something else changed? A comparison of the mean moments of predicted probabilities.

Moments of a sample are p_k, √p_k and p_k² of every class, and log(1.001 − max p), in a few directions. Let M (K, D) be
their means within each class, W (D, D) their covariance within classes, ε the source prior, and d the difference of
their means between target and held-out samples. Three explanations of d compete, each a normal law [kass1995]:

    nothing has changed    d ~ N(0, S(1))
    label shift            d ~ N((c − ε) M, S(w) + Mᵀ C M)     C: covariance of a Dirichlet law around the centre c
    something else         one of these, with s² W added       within classes, moments move by s standard deviations

S(w) is the noise of N target and n held-out samples if class weights are w = π/ε:

    S(w) = Σ_k π_k (1/N + (1 + I_k (w_k − 1))/n) (V_k + (M_k − πM)ᵀ(M_k − πM)).                                  (3)

A held-out sample of class k counts w_k times if the classifier is sure of its class (information I_k = 1), and once if
the classifier knows nothing (I_k = 0). V_k is the covariance of class k, with the correlations of W.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reprior._kernels.reference import moments
from reprior._types import Labels, Matrix, MomentReference, Vector
from reprior.model.settings import Settings

MAX_DIRECTIONS = 32  # of moments in which means are compared; more cost time, and K class means span K − 1 of them
MIN_VARIANCE = 0.0005  # of a direction, relative to the largest: p, √p, p² are nearly collinear
LOG_RANGE = -np.log(0.001)  # of the moment log(1.001 − max p); the others lie between 0 and 1
MAX_HELDOUT, MAX_NUMBERS = 5000, 1_500_000  # held-out samples, and their probabilities, that are used
MAX_DENSE = 512  # moments above which only the largest eigenvalues are computed
MAX_LOG_EVIDENCE = 1e9  # nats: larger evidence is cut to it


def moment_reference(proba: Matrix, y: Labels, information: Vector, settings: Settings) -> MomentReference:
    """Return mean, class means and covariances of the moments of held-out samples (n, K) with labels (n,).

    `information` (K,) of the predictions about each class is only stored beside them, for eq. 3.
    """
    stride = heldout_stride(len(y), proba.shape[1])
    p, y_used = np.asarray(proba[::stride], np.float64), y[::stride]
    x, k = moments(p), p.shape[1]
    centre = x.mean(axis=0)
    x -= centre
    affordable = int(len(p) / k / settings.samples_per_direction)  # class means in many directions need many samples
    directions = moment_directions(x, min(max(affordable, 1), MAX_DIRECTIONS))
    mean, counts = centre @ directions, np.bincount(y_used, minlength=k)
    # moments of a sample that is certain of its class: p = √p = p² = 1 for one class, log(1.001 − 1)
    certain = directions[:k] + directions[k : 2 * k] + directions[2 * k : 3 * k] - LOG_RANGE * directions[-1] - mean
    n_certain = settings.pseudo_count * certainty(p, y_used)
    means, within, deviations = class_moments(x @ directions, y_used, certain, settings.pseudo_count, n_certain)
    prior = (counts + settings.pseudo_count) / (len(y_used) + k * settings.pseudo_count)
    return MomentReference(directions, mean, means + mean, within, deviations, prior, information, float(len(y)))


def heldout_stride(n: float, k: int) -> int:
    """Return the stride of the held-out samples that are used, of `n` samples with `k` classes."""
    return int(max(-(-n // MAX_HELDOUT), -(-n * k // MAX_NUMBERS), 1))


def moment_directions(x: Matrix, max_directions: int) -> Matrix:
    """Return at most `max_directions` principal directions (M, D) of centred moments (n, M), each of variance 1.

    Moments are divided by their range. The standard deviation of a rare class's moment may be small by chance.
    """
    scale = np.ones(x.shape[1])
    scale[-1] = LOG_RANGE
    variance, vectors = principal_directions(x / scale)
    kept = np.flatnonzero(variance > max(MIN_VARIANCE * variance[-1], 1e-12))[::-1][:max_directions]
    if not len(kept):  # all samples are alike: nothing can be compared
        return np.zeros((len(scale), 1))
    # in C order, as after loading: products of another order are rounded differently
    return np.ascontiguousarray(vectors[:, kept] / scale[:, None] / np.sqrt(variance[kept]))


def certainty(p: Matrix, y: Labels) -> float:
    """Return how far predictions (n, K) go from the mean prediction m to certainty of their label (n,), from 0 to 1:
    Σ_i (p_iy − m_y) / Σ_i (1 − m_y)."""
    mean = p.mean(axis=0)[y]
    excess = p[np.arange(len(y)), y] - mean
    return float(np.clip(excess.sum() / max((1 - mean).sum(), 1e-12), 0, 1))


class ClassMoments(NamedTuple):
    """Moments in D directions: class `means` (K, D), the covariance `within` classes (D, D), and the standard
    `deviations` (K, D) of each class."""

    means: Matrix
    within: Matrix
    deviations: Matrix


def class_moments(x: Matrix, y: Labels, certain: Matrix, pseudo_count: float, n_certain: float) -> ClassMoments:
    """Return the class moments of centred moments (n, D) with labels (n,).

    Classes may have few samples or none, so each class gets `pseudo_count` more. Of these, `n_certain` are certain of
    the class, with the moments `certain` (K, D). The others are average samples: their moments are 0, and together
    they add the mean variance w within classes once. So a class with few samples gets a larger deviation:

        mean = (n_certain·certain + Σ x)/count,  deviation² = (n_certain·certain² + Σ x² − count·mean² + w)/count
    """
    k = len(certain)
    counts = np.bincount(y, minlength=k)[:, None] + pseudo_count
    means = (n_certain * certain + class_sums(x, y, k)) / counts
    squares = n_certain * certain**2 + class_sums(x**2, y, k)
    residual = x - means[y]
    within = residual.T @ residual / len(x) + 1e-6 * np.eye(x.shape[1])
    deviations = np.sqrt((np.maximum(squares - counts * means**2, 0) + np.diag(within)) / counts)
    return ClassMoments(means, within, deviations)


def class_sums(x: Matrix, y: Labels, k: int) -> Matrix:
    """Return the sums (K, D) of the rows (n, D) of each class."""
    d = x.shape[1]
    places = (y[:, None] * d + np.arange(d)).ravel()
    return np.bincount(places, x.ravel(), minlength=k * d).reshape(k, d).astype(np.float64, copy=False)


def principal_directions(x: Matrix) -> tuple[Vector, Matrix]:
    """Return eigenvalues, increasing, and eigenvectors of the covariance of centred moments (n, M): all of them, or the
    largest if there are many moments."""
    n, m = x.shape
    if m <= MAX_DENSE:
        return np.linalg.eigh(x.T @ x / n)
    from scipy.sparse.linalg import LinearOperator, eigsh

    covariance = LinearOperator((m, m), matvec=lambda v: x.T @ (x @ v) / n, dtype=np.float64)
    return eigsh(covariance, k=MAX_DIRECTIONS, v0=np.ones(m), tol=1e-6)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Explanations:
    """The C normal laws of d that compete: first "nothing has changed", then the label shifts.

    `log_chances` (2, C) are their prior log probabilities, without and with another change. `moves` (C, D) are their
    means and `spreads` (C, D, D) their covariances without noise. `base` (K,) is the prior without shift, and `noise`
    is S(1), the noise at this prior. `other_change` (D, D) is the covariance s² W that another change adds. If
    `with_estimate`, the last law is a shift to the estimated prior.
    """

    reference: MomentReference
    base: Vector
    log_chances: Matrix
    moves: Matrix
    spreads: NDArray[np.float64]
    noise: Noise
    other_change: Matrix
    with_estimate: bool


def explanations(reference: MomentReference, settings: Settings, unshifted: Vector | None = None) -> Explanations:
    """Return the laws that compete. `unshifted` (K,) is the prior without shift, by default of the reference.

    No Dirichlet law has odd classes (`Settings`). So if at least one class is expected to be odd, the estimated prior
    itself is one more law, as probable as all Dirichlet laws together. If something else has changed, the class prior
    has shifted as well with the same probability as that of another change.
    """
    means, base = reference.class_means, reference.source_prior if unshifted is None else unshifted
    k, d = means.shape
    sizes = np.array(settings.sizes) * k
    with_estimate = k * settings.odd_share >= 1
    law_chances, moves, spreads = list[float](), [np.zeros(d)], [np.zeros((d, d))]
    for centre in (base, np.full(k, 1 / k)):
        centred = means - centre @ means
        covariance = (centred.T * centre) @ centred  # MᵀCM, times the size of the Dirichlet law + 1
        law_chances += [0.5 / len(sizes)] * len(sizes)
        moves += [(centre - base) @ means] * len(sizes)
        spreads += [covariance / (size + 1) for size in sizes]
    if with_estimate:
        law_chances = [*(0.5 * np.array(law_chances)), 0.5]
        moves, spreads = [*moves, np.zeros(d)], [*spreads, np.zeros((d, d))]
    shifted = np.array([[1 - settings.no_shift], [1 / (1 + settings.label_shift_odds)]])
    log_chances = np.log(np.hstack([1 - shifted, shifted * law_chances]))
    other_change = settings.drift_scale**2 * reference.within
    return Explanations(reference, base, log_chances, np.array(moves), np.array(spreads), noise(reference, base),
                        other_change, with_estimate)  # fmt: skip


def log_evidence(laws: Explanations, mean: Vector, variance: Vector, n: float, prior: Vector) -> float:
    """Return log P(moments | nothing or label shift) − log P(moments | something else).

    The moments of `n` target samples have this `mean` and `variance` (D,) in the reference's directions. `prior` (K,)
    is the estimated class prior of the target, the best guess of π: all laws of a shift have the noise at this prior.
    With the noise at the mean of each law, fewer of the real changes were found that are no label shift.
    """
    reference, base = laws.reference, laws.base
    moved = prior - base
    d = mean - reference.mean - (base - reference.source_prior) @ reference.class_means - laws.moves
    if laws.with_estimate:
        d[-1] -= moved @ reference.class_means
    covariance = laws.spreads + noise(reference, prior).of(variance, n)
    covariance[0] = laws.noise.of(variance, n)
    both = np.concatenate([covariance, covariance + laws.other_change])
    log_joint = log_normal(np.concatenate([d, d]), both).reshape(2, -1) + laws.log_chances
    label_shift, something_else = np.logaddexp.reduce(log_joint, axis=1)
    return float(np.clip(label_shift - something_else, -MAX_LOG_EVIDENCE, MAX_LOG_EVIDENCE))


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise S(w) of eq. 3 in two parts: covariances (D, D) of one target sample, and of the held-out mean."""

    target: Matrix
    heldout: Matrix

    def of(self, variance: Vector, n: float) -> Matrix:
        """Return S(w) for `n` target samples. If their `variance` (D,) is larger than expected, it is used instead."""
        scale = np.sqrt(np.maximum(variance / np.diag(self.target), 1))
        return np.asarray(self.target * (scale * scale[:, None] / n) + self.heldout)


def noise(reference: MomentReference, prior: Vector) -> Noise:
    """Return the noise of eq. 3 at a target prior (K,), separately for target and held-out samples.

    Held-out samples of class k enter with π_k (1 + I_k (w_k − 1))/n: if the class becomes w_k times as frequent, so
    does the noise of its mean, as far as the predictions tell the class from others.
    """
    deviation = np.sqrt(np.diag(reference.within))
    centred = reference.class_means - prior @ reference.class_means
    n_heldout = reference.n_heldout / heldout_stride(reference.n_heldout, len(prior))
    heldout = prior * (1 + reference.information * (prior / reference.source_prior - 1)) / n_heldout
    weights = np.stack([prior, heldout])[:, :, None]  # of the classes in both sums
    own, between = (x.T @ (weights * x) for x in (reference.deviations, centred))
    of_target, of_heldout_mean = own * (reference.within / np.outer(deviation, deviation)) + between
    return Noise(of_target, of_heldout_mean)


def log_normal(d: Matrix, covariance: NDArray[np.float64]) -> Vector:
    """Return the log densities (C,) of N(0, covariance (C, D, D)) at d (C, D), up to a constant."""
    squares = (d * np.linalg.solve(covariance, d[..., None])[..., 0]).sum(axis=1)
    return np.asarray(-0.5 * (squares + np.linalg.slogdet(covariance)[1]))


def amplification(moved: Vector, mean_moved: Vector, settings: Settings) -> float:
    """Return the ratio Σ|moved| / Σ|mean_moved|, at least 1: of the moves of the estimated prior and mean prediction.

    A weak classifier turns a small change of its predictions into a large change of the prior. If anything but the
    class prior has changed, the correction then does much harm.
    """
    return float(max(np.abs(moved).sum() / max(float(np.abs(mean_moved).sum()), settings.min_move), 1.0))


def acting_share(log_evidence: float, amplification: float, settings: Settings) -> float:
    """Return the share of the correction that is applied: the probability of label shift, with odds divided by the
    square root of the amplification. Evidence in favour does not raise the odds above those at the start."""
    log_odds = math.log(settings.label_shift_odds / math.sqrt(amplification)) + min(log_evidence, 0.0)
    return 1 / (1 + math.exp(-max(-700.0, min(log_odds, 700.0))))
