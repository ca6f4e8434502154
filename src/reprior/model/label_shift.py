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

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reprior._kernels.reference import moments
from reprior._types import Labels, Matrix, MomentReference, Vector
from reprior.model.settings import Settings
from reprior.rows.correction import correct_float64

MAX_DIRECTIONS = 16  # of the moments that are compared
MAX_HELDOUT, MAX_NUMBERS = 5000, 1_500_000  # held-out samples and probabilities that are looked at
MAX_DENSE = 512  # moments from which on only the largest eigenvalues are computed
SOFT_SAMPLES = 20  # held-out samples of a class up to which labels and probabilities count alike in its mean
MAX_LOG_EVIDENCE = 1e9  # nats: larger evidence is cut to it
MIN_MASS = 0.3  # held-out samples that a class counts as at least
MIN_MOVE = 0.03  # total change of the mean prediction below which it is taken to be this large


def moment_reference(proba: Matrix, y: Labels, source_prior: Vector, information: Vector) -> MomentReference:
    """Return what held-out samples (n, K) with labels (n,) show about the moments.

    Probabilities imply `source_prior` (K,). `information` (K,) is that of the predictions about each class.
    """
    stride = heldout_stride(len(y), proba.shape[1])
    p = np.asarray(proba[::stride], np.float64)
    x, counts = moments(p), np.bincount(y, minlength=p.shape[1])
    responsibilities = class_responsibilities(p, y[::stride], counts, source_prior)
    directions = moment_directions(x)
    centre, mass = x.mean(axis=0) @ directions, responsibilities.sum(axis=0)
    means, within, deviations = class_moments(x @ directions - centre, responsibilities)
    has_samples = counts > 0
    if not has_samples.all():
        offsets = impute_class_offsets(means[has_samples], directions, centre, has_samples)
        scatter = (deviations[has_samples] ** 2).mean(axis=0)
        means[~has_samples] = offsets
        deviations[~has_samples] = np.sqrt(scatter + offsets**2)
    prior = np.maximum(mass, MIN_MASS) / np.maximum(mass, MIN_MASS).sum()
    return MomentReference(directions, centre, means + centre, within, deviations, prior, information, float(len(y)))


def heldout_stride(n: float, k: int) -> int:
    """Return the distance between those of `n` held-out samples of `k` classes that are looked at."""
    return int(max(-(-n // MAX_HELDOUT), -(-n * k // MAX_NUMBERS), 1))


def class_responsibilities(p: Matrix, y: Labels, counts: Labels, source_prior: Vector) -> Matrix:
    """Return how much each held-out sample (n, K) counts for each class, given the label `counts` (K,).

    A sample counts partly for the class of its label and partly for the classes that its probabilities give: labels are
    right, probabilities have less noise. Labels count at least half. They count more the more held-out samples their
    class has, because class means by a misspecified classifier would be biased. Probabilities imply `source_prior`
    (K,), so they are corrected to the class shares of the labels first.
    """
    n, k = p.shape
    shares = (counts + 0.5) / (counts.sum() + 0.5 * k)
    in_class = counts[y]
    by_label = np.maximum(0.5, in_class / (in_class + SOFT_SAMPLES))
    responsibilities = correct_float64(p, shares / source_prior) * (1 - by_label)[:, None]
    responsibilities[np.arange(n), y] += by_label
    return np.asarray(responsibilities)


def moment_directions(x: Matrix) -> Matrix:
    """Return the directions (M, D) in which moments (n, M) are compared: the principal ones of standardised moments.

    Directions whose variance is below a quarter of the noise of n samples are left out.
    """
    deviation = np.maximum(x.std(axis=0), 1e-6)
    variance, vectors = principal_directions((x - x.mean(axis=0)) / deviation)
    kept = np.flatnonzero(variance > max(len(deviation) / (4 * len(x)), 1e-9))[::-1][:MAX_DIRECTIONS]
    if not len(kept):  # all samples are alike: nothing can be compared
        return np.zeros((len(deviation), 1))
    return np.asarray(vectors[:, kept] / deviation[:, None] / np.sqrt(np.maximum(variance[kept], 1e-9)))


class ClassMoments(NamedTuple):
    """Moments in D directions: class `means` (K, D), the covariance `within` classes (D, D), and the standard
    `deviations` (K, D) of each class."""

    means: Matrix
    within: Matrix
    deviations: Matrix


def class_moments(x: Matrix, responsibilities: Matrix) -> ClassMoments:
    """Return the class moments of centred moments (n, D), of which each counts for the classes by (n, K)."""
    mass = responsibilities.sum(axis=0)
    means = (responsibilities.T @ x) / np.maximum(mass, 1e-9)[:, None]
    within = (x.T @ x - (means.T * mass) @ means) / len(x) + 1e-6 * np.eye(x.shape[1])
    squares = responsibilities.T @ x**2 - mass[:, None] * means**2
    # one sample of average scatter is added to each class
    deviations = np.sqrt((np.maximum(squares, 0) + np.diag(within)) / (mass + 1)[:, None])
    return ClassMoments(means, within, deviations)


def impute_class_offsets(offsets: Matrix, directions: Matrix, mean: Vector, has_samples: NDArray[np.bool_]) -> Matrix:
    """Return the offsets from the `mean` (D,) that classes without held-out samples are assumed to have, (K', D).

    With c_k the offset of a sample that is certain of class k, and o_j the `offsets` (K − K', D) of the other classes,

        o_k = a c_k,    a = Σ_j o_j·c_j / Σ_j |c_j|²  between 0 and 1.
    """
    k = len(has_samples)
    certain = directions[:k] + directions[k : 2 * k] + directions[2 * k : 3 * k] + np.log(0.001) * directions[-1]
    certain_offsets = certain - mean
    observed_offsets = certain_offsets[has_samples]
    a = float((offsets * observed_offsets).sum() / max((observed_offsets**2).sum(), 1e-300))
    return np.asarray(np.clip(a, 0.0, 1.0) * certain_offsets[~has_samples])


def principal_directions(standard: Matrix) -> tuple[Vector, Matrix]:
    """Return eigenvalues, increasing, and eigenvectors of the covariance of standardised moments (n, M): all of them,
    or the largest if there are many moments."""
    n, m = standard.shape
    if m <= MAX_DENSE:
        return np.linalg.eigh(standard.T @ standard / n)
    from scipy.sparse.linalg import LinearOperator, eigsh

    covariance = LinearOperator((m, m), matvec=lambda v: standard.T @ (standard @ v) / n, dtype=np.float64)
    return eigsh(covariance, k=MAX_DIRECTIONS, v0=np.ones(m), tol=1e-6)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Explanations:
    """The laws of d that compete: nothing has changed, then kinds of label shift.

    `log_chances` (2, C) are their prior log probabilities, without and with another change. `moves` (C, D) are their
    means and `spreads` (C, D, D) their covariances without noise. `base` (K,) is the prior without shift, `noise` that
    of this prior, and `drift` (D, D) the covariance of another change. If `with_estimate`, the last law is the
    estimated prior itself.
    """

    reference: MomentReference
    base: Vector
    log_chances: Matrix
    moves: Matrix
    spreads: NDArray[np.float64]
    noise: Noise
    drift: Matrix
    with_estimate: bool


def explanations(reference: MomentReference, settings: Settings, unshifted: Vector | None = None) -> Explanations:
    """Return the laws that compete. `unshifted` (K,) is the prior without shift, by default that of held-out samples.

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
    drift = settings.drift_scale**2 * reference.within
    return Explanations(reference, base, log_chances, np.array(moves), np.array(spreads), noise(reference, base),
                        drift, with_estimate)  # fmt: skip


def log_evidence(laws: Explanations, mean: Vector, variance: Vector, n: float, prior: Vector) -> float:
    """Return log P(moments | nothing or label shift) − log P(moments | something else).

    `mean` and `variance` (D,) are those of the directed moments of `n` target samples, and `prior` (K,) is the
    estimated class prior of the target.
    """
    reference, base = laws.reference, laws.base
    moved = prior - base
    d = mean - reference.mean - (base - reference.source_prior) @ reference.class_means - laws.moves
    if laws.with_estimate:
        d[-1] -= moved @ reference.class_means
    covariance = laws.spreads + noise(reference, prior).of(variance, n)
    covariance[0] = laws.noise.of(variance, n)
    both = np.concatenate([covariance, covariance + laws.drift])
    log_density = log_normal(np.concatenate([d, d]), both).reshape(2, -1) + laws.log_chances
    as_expected, with_drift = np.logaddexp.reduce(log_density, axis=1)
    return float(np.clip(as_expected - with_drift, -MAX_LOG_EVIDENCE, MAX_LOG_EVIDENCE))


@dataclass(frozen=True, slots=True)
class Noise:
    """The noise S(w) of eq. 3: covariances (D, D) of one target sample, and of the mean of held-out samples."""

    target: Matrix
    heldout: Matrix

    def of(self, variance: Vector, n: float) -> Matrix:
        """Return S(w) for `n` target samples. If they have a larger `variance` (D,) than expected, theirs counts."""
        scale = np.sqrt(np.maximum(variance / np.diag(self.target), 1))
        return np.asarray(self.target * (scale * scale[:, None] / n) + self.heldout)


def noise(reference: MomentReference, prior: Vector) -> Noise:
    """Return the noise at a target prior (K,): Σ_k counts_k (V_k + (M_k − πM)ᵀ(M_k − πM)) for target and held-out
    samples."""
    deviation = np.sqrt(np.diag(reference.within))
    centred = reference.class_means - prior @ reference.class_means
    n_heldout = reference.n_heldout / heldout_stride(reference.n_heldout, len(prior))
    heldout = prior * (1 + reference.information * (prior / reference.source_prior - 1)) / n_heldout
    counts = np.stack([prior, heldout])[:, :, None]
    own, between = (x.T @ (counts * x) for x in (reference.deviations, centred))
    of_target, of_heldout_mean = own * (reference.within / np.outer(deviation, deviation)) + between
    return Noise(of_target, of_heldout_mean)


def log_normal(d: Matrix, covariance: NDArray[np.float64]) -> Vector:
    """Return the log densities (C,) of N(0, covariance (C, D, D)) at d (C, D), up to a constant."""
    squares = (d * np.linalg.solve(covariance, d[..., None])[..., 0]).sum(axis=1)
    return np.asarray(-0.5 * (squares + np.linalg.slogdet(covariance)[1]))


def amplification(moved: Vector, information: Vector) -> float:
    """Return how many times as far as the mean prediction the estimated prior has `moved` (K,), at least 1.

    If a class share moves by x, the mean prediction moves by about I x, I its `information` (K,). A weak classifier
    turns a small change of its predictions into a large change of the prior. If anything but the class prior has
    changed, the correction then does much harm.
    """
    distance = np.abs(moved)
    return float(max(distance.sum() / max(float(distance @ information), MIN_MOVE), 1.0))


def acting_share(log_evidence: float, amplification: float, settings: Settings) -> float:
    """Return the share of the correction that is applied: the probability of label shift, with odds divided by the
    square root of the amplification. Evidence in favour does not raise the odds above those at the start."""
    log_odds = np.log(settings.label_shift_odds / amplification**0.5) + min(log_evidence, 0.0)
    return float(1 / (1 + np.exp(-np.clip(log_odds, -700, 700))))
