"""What the default knows about shares and priors beyond its estimate, and the interval that follows from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reprior._types import Interval, Matrix, Source, Vector
from reprior.estimates.verdict import interval_notes

if TYPE_CHECKING:
    from reprior.estimates.estimate import PriorEstimate


@dataclass(frozen=True, slots=True)
class Moments:
    """Mean and variance of several numbers, (K,) or (G, K) each."""

    mean: Vector
    variance: Vector


@dataclass(frozen=True, slots=True)
class Posterior:
    """What is known about `shares` among these samples and about the `prior` of their population, class by class.

    Intervals follow from it. They assume a shift of unknown size, so they do not bet that there is none. `no_shift` is
    the probability that nothing has shifted. `log_weight_variance` (K,) is that of the logarithm of each class weight.
    For groups all of these have one row per group.
    """

    shares: Moments
    prior: Moments
    no_shift: Any
    log_weight_variance: Vector

    def of_group(self, g: int) -> Posterior:
        """Return what is known about one group."""
        shares, prior = (Moments(x.mean[g], x.variance[g]) for x in (self.shares, self.prior))
        return Posterior(shares, prior, float(self.no_shift[g]), self.log_weight_variance[g])


def mixture(probabilities: Vector, means: Matrix, variances: Matrix) -> Moments:
    """Return the moments (..., K) of a mixture of laws with these `means` and `variances` (C, ..., K)."""
    mean = np.tensordot(probabilities, means, 1)
    return Moments(mean, np.tensordot(probabilities, variances + (means - mean) ** 2, 1))


def variances(covariance: Matrix) -> Vector:
    """Return the diagonal (K,) of a covariance (K, K), or the variances (K,) themselves."""
    return np.asarray(covariance if covariance.ndim == 1 else np.diag(covariance))


def effect_of_weights(p: Matrix, covariance: Matrix) -> tuple[Vector, Vector]:
    """Return the variance (K,) of the mean of corrected probabilities (n, K) due to the covariance (K, K) of log
    weights, and their mean ambiguity p(1 − p) (K,).

    The mean moves by ∂(mean p)/∂log w = diag(mean p) − mean(p pᵀ). With variances (K,) alone, correlations are ignored.
    """
    mean = p.mean(axis=0, dtype=np.float64)
    if covariance.ndim == 1:
        ambiguity = np.maximum(mean - np.einsum("ij,ij->j", p, p) / len(p), 0)
        return ambiguity**2 * covariance, ambiguity
    slope = np.diag(mean) - p.T @ p / len(p)
    return np.asarray(((slope @ covariance) * slope).sum(axis=1)), np.maximum(np.diag(slope), 0)


def beta_parameters(about: Moments) -> tuple[Vector, Vector]:
    """Return the parameters a, b of Beta laws with these moments, a + b between 0.001 and 1e14."""
    mean = np.clip(about.mean, 1e-12, 1 - 1e-12)
    strength = np.clip(mean * (1 - mean) / np.maximum(about.variance, 1e-300) - 1, 1e-3, 1e14)
    return mean * strength, (1 - mean) * strength


def beta_interval(about: Moments, level: float, *, estimate: Vector, n: Vector | float) -> tuple[Vector, Vector]:
    """Return the ends of central intervals of Beta laws with these moments.

    They contain the `estimate` and are rounded outwards to whole samples of `n`: no interval is finer than one sample.
    """
    from scipy.special import betaincinv

    a, b = beta_parameters(about)
    lower, upper = (betaincinv(a, b, (1 + side * level) / 2) for side in (-1, 1))
    lower, upper = np.minimum(lower, estimate), np.maximum(upper, estimate)
    lower, upper = np.floor(lower * n + 1e-3) / n, np.ceil(upper * n - 1e-3) / n
    return np.minimum(lower, estimate), np.clip(upper, estimate, 1.0)


@dataclass(frozen=True, slots=True)
class PosteriorSpread:
    """How sure an estimate of `shares` and `prior` (K,) is, or those of groups (G, K): intervals from their posterior.

    Intervals of shares are rounded to one of `n` samples, those of priors to one of `n_population`.
    """

    shares: Vector
    prior: Vector
    n: Any
    n_population: float
    posterior: Posterior
    note: str

    def at(self, level: float, of: str = "shares") -> Interval:
        """Return the interval of each class's share, or of its prior in the population; the estimate lies inside."""
        about, estimate, n = self.posterior.shares, self.shares, self.n
        if of == "prior":
            about, estimate, n = self.posterior.prior, self.prior, self.n_population
        return Interval(*beta_interval(about, level, estimate=estimate, n=n), level=level, note=self.note)

    def of_group(self, g: int) -> PosteriorSpread:
        """Return how sure the estimate of one group is."""
        return PosteriorSpread(self.shares[g], self.prior[g], self.n[g], self.n_population, self.posterior.of_group(g),
                               self.note)  # fmt: skip

    def without_rows(self) -> PosteriorSpread:
        """Return the same: it holds no samples."""
        return self


def posterior_spread(shares: Vector, prior: Vector, n: float, posterior: Posterior, source: Source) -> PosteriorSpread:
    """Return how sure an estimate is, with notes about what the intervals include."""
    return PosteriorSpread(shares, prior, float(n), float(n), posterior, " ".join(interval_notes(source, n)))


def posterior_of(estimate: PriorEstimate) -> Posterior:
    """Return what is known about an estimate of the default."""
    assert estimate.posterior is not None
    return estimate.posterior
