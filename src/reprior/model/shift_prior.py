"""Which shifts are supposed possible, and how probable the samples make each.

Either nothing has shifted, w = 1. Or each class weight has a gamma prior of shape `size` around one of two centres: 1,
the source, or 1/(K ε_k), equal shares. Sizes are on a grid. Among many classes a few may behave unlike the others,
absent or dominant: each kind of shift also has a form in which any class may be *odd*, with the loosest prior.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from reprior._types import Matrix, Vector
from reprior.model.interval import variances
from reprior.model.likelihood import WeightFit, fisher_information, fit_weights, log_likelihood
from reprior.model.samples import TwoSamples
from reprior.model.settings import Settings

MAX_WEIGHT = 1e6  # of a class that the source has next to none of
EM_STEPS = 10  # that find the share of odd classes; it settles within a few


@dataclass(frozen=True, slots=True)
class GammaPrior:
    """Gamma priors of class weights: shapes `size` and means `mean`, (K,) each.

    `log_probability` is that of this kind of shift, given a shift. If classes may be odd, `log_mixture_gain` is what
    the mixture of usual and odd classes changes in the log evidence. `for_interval`: intervals assume it.
    """

    size: Vector
    mean: Vector
    log_probability: float
    for_interval: bool = False
    log_mixture_gain: float = 0.0


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A kind of shift after the data: its prior, the posterior mode `weights` (K,) of log w and its covariance (K, K),
    or variances (K,) for very many classes, and its log evidence."""

    prior: GammaPrior
    weights: Vector
    covariance: Matrix
    log_evidence: float


@dataclass(frozen=True, slots=True)
class Shifts:
    """All kinds of shift that are worth a look, with their `probability` (C,) given a shift, and `weights` (C, K).

    `no_shift` is the probability that nothing has shifted; `steps` EM steps were taken, which `converged` or did not.
    """

    hypotheses: tuple[Hypothesis, ...]
    probability: Vector
    weights: Matrix
    no_shift: float
    steps: int
    converged: bool


def shifts_of(
    hypotheses: list[Hypothesis], log_likelihood_no_shift: float, settings: Settings, fits: list[WeightFit]
) -> Shifts:
    """Return hypotheses with their posterior probabilities, without the negligible ones."""
    log_joint = np.array([h.log_evidence + h.prior.log_probability for h in hypotheses])
    total = np.logaddexp.reduce(log_joint)
    probability = np.exp(log_joint - total)
    log_odds = np.log(settings.no_shift / (1 - settings.no_shift)) + log_likelihood_no_shift - total
    no_shift = 1 / (1 + np.exp(-np.clip(log_odds, -700, 700)))
    kept = (probability > settings.min_probability) | [h.prior.for_interval for h in hypotheses]
    kept_hypotheses = [h for h, keep in zip(hypotheses, kept, strict=True) if keep]
    return Shifts(
        tuple(kept_hypotheses), probability[kept] / probability[kept].sum(),
        np.array([h.weights for h in kept_hypotheses]), float(no_shift), sum(fit.steps for fit in fits),
        all(fit.converged for fit in fits),
    )  # fmt: skip


def fit_shifts(samples: TwoSamples, settings: Settings) -> Shifts:
    """Return the kinds of shift, each fitted to the samples."""
    k, hypotheses = len(samples.source_prior), list[Hypothesis]()
    even = np.minimum(1 / (k * samples.smoothed_prior), MAX_WEIGHT)
    effective = effective_labels(samples)
    even_shift = settings.even_shift * (effective + 1e-9) / (effective + settings.even_samples + 1e-9)
    centres = (np.ones(k), 1 - even_shift), (even, even_shift)
    n_sizes = len(settings.sizes)
    priors = [GammaPrior(np.full(k, size), centre, float(np.log(chance / n_sizes)), size == settings.sizes[0])
              for centre, chance in centres for size in settings.sizes]  # fmt: skip
    fits = [fit_weights(samples, *stacked(priors), np.array([p.mean for p in priors]))]
    log_likelihood_no_shift = log_likelihood(samples, np.ones(k))
    for first in (0, n_sizes):
        of_centre = list[Hypothesis]()
        for prior, weights in zip(priors[first:], fits[0].weights[first : first + n_sizes], strict=False):
            of_centre.append(laplace(samples, prior, weights))
            if negligible(of_centre, settings):
                break  # stricter priors have even less evidence
        if k * settings.odd_share > 1 and max(h.log_evidence for h in of_centre) > log_likelihood_no_shift:
            with_odd, more = fit_odd_classes(samples, of_centre[0], settings)
            of_centre, fits = of_centre + with_odd, fits + more
        hypotheses += of_centre
    return shifts_of(hypotheses, log_likelihood_no_shift, settings, fits)


def effective_labels(samples: TwoSamples) -> float:
    """Return as how many labels the samples count: nN/(n + N) times the part of the variance of labels that the
    probabilities explain, Σ_k Var(g_k) / Σ_k m_k(1 − m_k), with m their mean over target samples."""
    mean = samples.target.mean(axis=0, dtype=np.float64)
    squares = np.einsum("ij,ij->", samples.target, samples.target) / len(samples.target)
    explained = max(float(squares - mean @ mean), 0.0) / max(float(mean @ (1 - mean)), 1e-12)
    return len(samples.target) / (1 + samples.ratio) * min(explained, 1.0)


def stacked(priors: list[GammaPrior]) -> tuple[Matrix, Matrix]:
    """Return sizes and means of several priors, (C, K) each."""
    return np.array([p.size for p in priors]), np.array([p.mean for p in priors])


def negligible(hypotheses: list[Hypothesis], settings: Settings) -> bool:
    """Return whether the last hypothesis has next to no evidence beside the best."""
    best = max(h.log_evidence for h in hypotheses)
    return bool(hypotheses[-1].log_evidence < best + np.log(settings.min_probability))


def log_gamma_density(weights: Vector, size: Vector | float, mean: Vector) -> Vector:
    """Return the log density (K,) of log w, for w of a gamma law of this shape and mean."""
    from scipy.special import gammaln

    return np.asarray(size * np.log(size * weights / mean) - gammaln(size) - size * weights / mean)


def laplace(samples: TwoSamples, prior: GammaPrior, weights: Vector) -> Hypothesis:
    """Return a hypothesis with its evidence by Laplace's method at the mode (K,).

    Laplace's method takes the posterior of each log w_k for normal. It is nearly that of the logarithm of a gamma
    variable whose shape is the precision, so the ratio of both normalisers is multiplied in (Stirling's error).
    """
    from scipy.special import gammaln

    precision = fisher_information(samples, weights)  # at the mode, all other terms sum to `size` on the diagonal
    covariance: Matrix
    if precision.ndim == 1:
        precision = precision + prior.size
        covariance, log_determinant = 1 / precision, float(np.log(precision).sum())
    else:
        precision.flat[:: len(weights) + 1] += prior.size
        covariance, log_determinant = np.linalg.inv(precision), float(np.linalg.slogdet(precision)[1])
    shape = 1 / variances(covariance)
    stirling_error = gammaln(shape) - (shape - 0.5) * np.log(shape) + shape  # its ½ log 2π cancels that of Laplace
    evidence = log_likelihood(samples, weights) - 0.5 * log_determinant + stirling_error.sum()
    evidence += log_gamma_density(weights, prior.size, prior.mean).sum() + prior.log_mixture_gain
    return Hypothesis(prior, weights, covariance, float(evidence))


@dataclass(frozen=True, slots=True)
class OddClasses:
    """Which classes are unlike the others: the probability `is_odd` (K,) of each, their `share`, shape and means (K,)
    of the weights of usual classes, and the `bic_penalty` of the two numbers fitted to find them."""

    is_odd: Vector
    share: float
    usual_size: float
    usual_mean: Vector
    bic_penalty: float


def fit_odd_classes(
    samples: TwoSamples, loose: Hypothesis, settings: Settings
) -> tuple[list[Hypothesis], list[WeightFit]]:
    """Return hypotheses around the centre of a loose one in which any class may be odd, and the fits behind them.

    First all classes are odd. From that fit `find_odd` finds the odd classes for each size of usual classes. The
    expected log prior, given `is_odd`, is up to a constant a gamma density of averaged shape and rate.
    """
    centre, k = loose.prior.mean, len(loose.weights)
    chance = loose.prior.log_probability + float(np.log(settings.odd_share))
    all_odd = GammaPrior(np.full(k, settings.odd_size), centre, chance)
    fits = [fit_weights(samples, *stacked([all_odd]), loose.weights[None])]
    all_odd_fit = laplace(samples, all_odd, fits[0].weights[0])
    hypotheses, priors = [all_odd_fit], list[GammaPrior]()
    found = [find_odd(all_odd_fit, usual_size, samples.source_prior, settings) for usual_size in settings.sizes[1:]]
    for odd in found:
        size = (1 - odd.is_odd) * odd.usual_size + odd.is_odd * settings.odd_size
        rate = (1 - odd.is_odd) * odd.usual_size / odd.usual_mean + odd.is_odd * settings.odd_size / centre
        priors.append(GammaPrior(size, size / rate, chance))
    fits.append(fit_weights(samples, *stacked(priors), np.repeat(fits[0].weights, len(priors), axis=0)))
    for odd, prior, weights in zip(found, priors, fits[1].weights, strict=True):
        density = np.logaddexp(np.log(1 - odd.share) + log_gamma_density(weights, odd.usual_size, odd.usual_mean),
                               np.log(odd.share) + log_gamma_density(weights, settings.odd_size, centre))  # fmt: skip
        gain = float((density - log_gamma_density(weights, prior.size, prior.mean)).sum()) - odd.bic_penalty
        hypotheses.append(laplace(samples, replace(prior, log_mixture_gain=gain), weights))
        if negligible(hypotheses, settings):
            break
    return hypotheses, fits


def find_odd(all_odd_fit: Hypothesis, usual_size: float, source_prior: Vector, settings: Settings) -> OddClasses:
    """Return which classes are odd, by EM on a mixture over classes, from the fit in which all are odd.

    The fit is summarised as Poisson counts: observed ~ Poisson(w · expected). They follow from a gamma posterior of
    each weight, of shape 1/Var(log w). Usual classes keep their proportions to each other; a common factor makes
    Σ ε_k w_k = 1. The share of odd classes is a posterior mean under a Beta(1, 1/odd_share − 1) prior. The penalty for
    the factor and for this share is half the logarithm of the information about each (BIC).
    """
    from scipy.special import expit

    shape, centre = 1 / variances(all_odd_fit.covariance), all_odd_fit.prior.mean
    observed = np.maximum(shape - all_odd_fit.prior.size, 0)
    expected = np.maximum(shape / all_odd_fit.weights - all_odd_fit.prior.size / centre, 0)
    share, factor, of_odd = settings.odd_share, 1.0, log_marginal(observed, expected, settings.odd_size, centre)
    for _ in range(EM_STEPS):
        log_odds = np.log(share / (1 - share)) + of_odd - log_marginal(observed, expected, usual_size, factor * centre)
        is_odd = expit(log_odds)
        remaining_mass = max(1 - float((source_prior * is_odd) @ all_odd_fit.weights), 1e-3)
        factor = remaining_mass / max(float((source_prior * (1 - is_odd)) @ centre), 1e-3)
        share = float(is_odd.sum() + 1) / (len(centre) + 1 / settings.odd_share)
    factor_information = (1 - is_odd) @ (usual_size * observed / (usual_size + observed))
    bic_penalty = 0.5 * float(np.log(len(centre)) + np.log1p(factor_information))
    return OddClasses(is_odd, share, usual_size, factor * centre, bic_penalty)


def log_marginal(observed: Vector, expected: Vector, size: float, mean: Vector) -> Vector:
    """Return the log probability (K,), up to a constant, of Poisson counts `observed` with means w · `expected`, if
    w has a gamma law (negative binomial)."""
    from scipy.special import gammaln

    rate = size / mean
    counts = gammaln(size + observed) - gammaln(size) - (size + observed) * np.log(rate + expected)
    return np.asarray(counts + size * np.log(rate))
