"""The M-step of EBLS: a prior over class shares, fitted to the shares themselves.

Joint maximisation over (π, α) has no finite solution: Dir(π; α) grows without bound as α = ĉπ, ĉ → ∞. So shares are
integrated out instead. A class's expected count λ = Nπ has one of three gamma priors: absent (a small share, or none),
ordinary (scattered around a base distribution, with a width learned from all classes) or outlier (far larger than the
rest). Filled-in labels are worth less than seen ones; each class's counts enter as Poisson pseudo-data with the slope
and the curvature that the likelihood really has.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import digamma, gammaln, polygamma

from reprior._types import Matrix, Vector
from reprior.rows.passes import Counts

PRIOR_MIX = np.array([0.05, 0.9, 0.05])  # absent, ordinary, outlier: where their proportions start
PSEUDO_MIX = np.array([0.1, 1.0, 0.1])
LOG_SHAPE = (-7.0, 12.0)
MEAN = (1e-3, 10.0)


@dataclass(frozen=True, slots=True)
class Fit:
    """An EBLS iteration: `prior` (K,) the estimate, `belief` (K,) the geometric mean that the E-step uses, and the
    fitted share prior: `log_shape` and `mean` of the ordinary classes, `mix` (3,) the proportions; `temper` is the
    weight that the likelihood was given."""

    prior: Vector
    belief: Vector
    base: Vector
    log_shape: float
    mean: float
    mix: Vector
    log_prior_mass: float
    temper: float = 1.0

    def coordinates(self) -> Vector:
        """Return all that an iteration changes as one vector without constraints."""
        return np.concatenate([np.log(self.belief), [self.log_shape, np.log(self.mean)], np.log(self.mix)])

    def mass(self) -> Vector:
        """Return how much each coordinate counts."""
        return np.concatenate([self.prior, [0.01, 0.01], 0.01 * self.mix])

    def at(self, coordinates: Vector) -> Fit:
        """Return this fit moved to other coordinates."""
        k = len(self.base)
        belief = np.exp(coordinates[:k] - coordinates[:k].max())
        mix = np.exp(coordinates[k + 2 :])
        return replace(
            self,
            belief=belief / belief.sum(),
            log_shape=float(np.clip(coordinates[k], *LOG_SHAPE)),
            mean=float(np.clip(np.exp(coordinates[k + 1]), *MEAN)),
            mix=mix / mix.sum(),
        )


def start_ebls(base: Vector) -> Fit:
    """Return the start of a fit around `base` (K,)."""
    return Fit(base, base, base, 0.0, 1.0, PRIOR_MIX, 0.0)


def m_step_ebls(stats: Counts, fit: Fit, misfit: Vector | float = 0.0) -> Fit:
    """Return the next fit from Σr and Σr² of one E-step.

    `misfit` σ² (K,) is the variance of the classifier's own error in the log of a class's share. More rows do not
    lessen it, so a class's evidence is tempered by β = 1/(1 + σ²·count) and is never worth more than 1/σ² rows.
    """
    assert stats.squares is not None
    n, total = stats.counts, float(stats.n)
    expected = fit.belief * total  # the λ at which the E-step was taken
    worth = np.clip(stats.squares / np.maximum(n, 1e-300), 1e-12, 1.0)  # κ = Σr²/Σr: what a count is worth
    above = n >= expected
    x = np.where(above, n - (1 - worth) * expected, worth * n)
    exposure = np.where(above, worth, 1 - (1 - worth) * n / np.maximum(expected, 1e-300))
    log_shape, mean, mix = fit.log_shape, fit.mean, fit.mix
    ordinary = total * fit.base
    seen = np.maximum(x, exposure * mean * ordinary)  # of a class not seen: what was to be expected
    beta = np.ones_like(x) / (1 + misfit * seen)
    x, exposure = beta * x, beta * exposure
    for _ in range(2):
        shape, rate = components(log_shape, mean, ordinary, total)
        log_q = gamma_evidence(x, exposure, shape, rate) + np.log(mix)[:, None]
        log_z = log_sum_exp(log_q)
        q = np.exp(log_q - log_z)
        mix = (q.sum(axis=1) + PSEUDO_MIX) / (len(x) + PSEUDO_MIX.sum())
        posterior = (x + shape[1]) / (exposure + rate[1])
        mean = float(np.clip((q[1] * posterior).sum() / max((q[1] * ordinary).sum(), 1e-300), *MEAN))
        log_shape = newton_log_shape(log_shape, x, exposure * mean * ordinary, q[1])
    shape, rate = components(log_shape, mean, ordinary, total)
    log_q = gamma_evidence(x, exposure, shape, rate) + np.log(mix)[:, None]
    log_z = log_sum_exp(log_q)
    q = np.exp(log_q - log_z)
    counts, rate = beta * n + shape, beta + rate
    share = (q * counts / rate).sum(axis=0)  # posterior mean of λ: the estimate
    belief = (q * np.exp(digamma(counts) - np.log(rate))).sum(axis=0)  # its geometric mean, per component
    mass = float(log_z.sum() - (x * np.log(share) - exposure * share).sum() + log_shape_prior(log_shape))
    temper = float(beta @ n / total)
    return Fit(share / share.sum(), belief / belief.sum(), fit.base, log_shape, mean, mix, mass, temper)


def components(log_shape: float, mean: float, ordinary: Vector, total: float) -> tuple[Matrix, Matrix]:
    """Return shapes (3, 1 or K) and rates (3, K) of the three gamma priors on λ."""
    a = float(np.exp(log_shape))
    shape = np.repeat([[1.0], [a], [0.5]], len(ordinary), axis=1)
    rate = np.stack([np.full_like(ordinary, 2.0), a / (mean * ordinary), np.full_like(ordinary, 0.5 / (0.3 * total))])
    return shape, rate


def gamma_evidence(x: Vector, exposure: Vector, shape: Matrix, rate: Matrix) -> Matrix:
    """Return log ∫ λ^x e^(−eλ) Gamma(λ; shape, rate) dλ for each component and class (3, K)."""
    out = gammaln(x + shape) - gammaln(shape) + shape * np.log(rate) - (x + shape) * np.log(exposure + rate)
    return np.asarray(out)


def log_sum_exp(a: Matrix) -> Vector:
    top = a.max(axis=0)
    return np.asarray(top + np.log(np.exp(a - top).sum(axis=0)))


def log_shape_prior(log_shape: float) -> float:
    """Return the log density, up to a constant, of a weak logistic prior on the log shape."""
    return float(-log_shape - 2 * np.logaddexp(0.0, -log_shape))


def newton_log_shape(log_shape: float, x: Vector, mean: Vector, q: Vector) -> float:
    """Return log a after one clipped Newton step on Σ q log NB(x; a, mean) + its prior."""
    a = float(np.exp(log_shape))
    # d/da of log NB(x; a, m) = ψ(x+a) − ψ(a) + log(a/(a+m)) + 1 − (x+a)/(a+m)
    slope = (q * (digamma(x + a) - digamma(a) + np.log(a / (a + mean)) + 1 - (x + a) / (a + mean))).sum()
    bend = (q * (polygamma(1, x + a) - polygamma(1, a) + mean / (a * (a + mean)) - (mean - x) / (a + mean) ** 2)).sum()
    sigmoid = 1 / (1 + a)  # of −log a
    first = a * slope - 1 + 2 * sigmoid
    second = a * slope + a * a * bend - 2 * sigmoid * (1 - sigmoid)
    step = -first / second if second < 0 else np.sign(first)
    return float(np.clip(log_shape + np.clip(step, -1.0, 1.0), *LOG_SHAPE))
