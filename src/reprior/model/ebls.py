"""EBLS, the default: class weights by empirical Bayes from held-out and target samples.

Without clear evidence of a shift, predictions stay as they are. `likelihood.py` has the model, `shift_prior.py` which
shifts it averages over, `settings.py` all constants.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reprior._check import check_prior
from reprior._types import Matrix, Status, Vector
from reprior.estimates.estimate import PriorEstimate
from reprior.model.acting import pooled, with_labels
from reprior.model.interval import Posterior, effect_of_weights, mixture, posterior_spread, variances
from reprior.model.samples import TwoSamples, base_factor, density_ratio, two_samples
from reprior.model.settings import DEFAULT, Settings
from reprior.model.shift_prior import Shifts, fit_shifts
from reprior.rows.blocks import Blocks, check_inputs
from reprior.rows.labelled import LabelledBlocks, labelled
from reprior.rows.passes import count_rows, rows_kept, some_rows


def ebls(
    source: Any, proba: Any, *, labels: Any = None, label_weights: Any = None, base: Any = None,
    settings: Settings = DEFAULT,
) -> PriorEstimate:  # fmt: skip
    """Estimate class shares, class prior and correction weights of target samples by empirical Bayes (the default).

    Parameters
    ----------
    source : Source, or class counts or prior (K,)
        The training side. Held-out samples, if any, show how accurate the predicted probabilities are.
    proba : (n, K) array, DataFrame, Blocks, or top-k pair
        Calibrated probabilities of the target samples.
    labels : (n,), optional
        Labels of some target samples, as class names or column indices; −1 if unknown.
    label_weights : (n,), optional
        Weights of labelled samples that `query` chose; other entries do not matter.
    base : (K,), optional
        Class prior of the training data, if you know it better than the held-out labels show.
    settings : Settings
        The constants of the model.

    Returns
    -------
    PriorEstimate
        With `shares` among these samples, the `prior` of their population, and the `weights` that correct.

    Examples
    --------
    >>> proba = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]] * 50
    >>> ebls([1, 1], proba).shares.round(2)
    array([0.5, 0.5])
    """
    training, with_known_labels = check_inputs(source, proba, "ebls")
    with_known_labels = labelled(with_known_labels, labels, training, "ebls", label_weights)
    target = with_known_labels.raw if isinstance(with_known_labels, LabelledBlocks) else with_known_labels
    if base is not None:
        base = check_prior(base, "ebls", "base", n_classes=len(training.prior), like="`source`")
    n = count_rows(target)
    samples = two_samples(training, target, n, base, settings)
    shifts = fit_shifts(samples, settings)
    # logarithms are averaged, so that an improbable large weight cannot act; no shift has the logarithm 0
    weights = np.exp((1 - shifts.no_shift) * shifts.probability @ np.log(shifts.weights))
    factor = base_factor(training, base)
    candidates = np.vstack([shifts.weights, np.ones_like(weights), weights])
    corrected_means, log_ratio = mean_corrected(target, candidates * factor, n)
    shares, unshifted_mean = corrected_means[:-2], corrected_means[-2]
    priors, rates = population_priors(samples, shifts, shares, n)
    prior = (1 - shifts.no_shift) * (shifts.probability @ priors)
    heldout = float(samples.heldout_weights.sum()) or settings.counts_worth * len(prior)
    prior += shifts.no_shift * (pooled(samples.source_prior, heldout, unshifted_mean, n) if base is None else base)
    prior = prior / prior.sum()
    shares_mean = (1 - shifts.no_shift) * (shifts.probability @ shares) + shifts.no_shift * unshifted_mean
    about = posterior(samples, shifts, shares, priors, rates, n)
    made = PriorEstimate(
        prior, weights * factor, shares_mean, Status.CONVERGED if shifts.converged else Status.NOT_CONVERGED,
        shifts.steps, n, log_ratio - n * float(np.log(training.prior @ (weights * factor))), training, target,
        posterior=about, spread=posterior_spread(shares_mean, prior, n, about, training),
    )  # fmt: skip
    if not isinstance(with_known_labels, LabelledBlocks):
        return made
    return with_labels(made, with_known_labels, 1.0, factor, some_rows(target, n, rows_kept(len(factor))), settings)[0]


def mean_corrected(target: Blocks, weights: Matrix, n: int) -> tuple[Matrix, float]:
    """Return the mean corrected probabilities (C, K) of all samples under each of some weights (C, K), in one pass, and
    Σ log r under the last of them."""

    def of_block(block: Matrix) -> Matrix:
        r = np.asarray(block, np.float64) @ weights.T
        sums = np.empty((len(weights), weights.shape[1] + 1))
        sums[:, :-1] = weights * ((1 / r).T @ block)
        sums[:, -1] = np.log(r).sum(axis=0)
        return sums

    total = target.map_sum(of_block)
    return total[:, :-1] / n, float(total[-1, -1])


def population_priors(samples: TwoSamples, shifts: Shifts, shares: Matrix, n: int) -> tuple[Matrix, Matrix]:
    """Return the prior of the population under each kind of shift (C, K), and the rate of its gamma posterior (C, K).

    A gamma prior of w_k is one of the prior ε_k w_k. Were all labels known, n samples would add n to its rate.
    """
    size, mean = (np.array([getattr(h.prior, name) for h in shifts.hypotheses]) for name in ("size", "mean"))
    rate = size / (mean * samples.smoothed_prior) + n
    priors = (size + n * shares) / rate
    return priors / priors.sum(axis=1, keepdims=True), rate


def posterior(
    samples: TwoSamples, shifts: Shifts, shares: Matrix, priors: Matrix, rates: Matrix, n: int
) -> Posterior:
    """Return the posterior of the shares (C, K) and priors (C, K) under each kind of shift.

    Moments of shares and priors average over the loosest kinds of shift only (`for_interval`), so that intervals are
    not too narrow. `log_weight_variance` averages over all kinds.
    """
    loose = np.array([h.prior.for_interval for h in shifts.hypotheses])
    chance = np.maximum(shifts.probability[loose], 1e-300)
    chance, shares, priors, rates = chance / chance.sum(), shares[loose], priors[loose], rates[loose]
    variance = np.array([share_variance(samples, h.weights, h.covariance, n)
                         for h, is_loose in zip(shifts.hypotheses, loose, strict=True) if is_loose])  # fmt: skip
    of_log_weight = np.array([variances(h.covariance) for h in shifts.hypotheses])
    of_prior = variance * (n / rates) ** 2 + priors * (1 - priors) / rates
    return Posterior(
        mixture(chance, shares, variance), mixture(chance, priors, of_prior), shifts.no_shift,
        shifts.probability @ of_log_weight,
    )  # fmt: skip


def share_variance(samples: TwoSamples, weights: Vector, covariance: Matrix, n: int) -> Vector:
    """Return the variance (K,) of the shares of `n` samples under one kind of shift. It has three parts.

    What is unknown about log w moves the shares. Each sample is ambiguous, p(1 − p). And probabilities may err by less
    than the held-out labels can show.
    """
    single = weights.astype(np.float32)
    p = samples.target * single
    p /= (samples.target @ single)[:, None]
    by_weights, ambiguity = effect_of_weights(p, covariance)
    variance = by_weights + ambiguity / n
    if len(samples.heldout):
        q = samples.heldout * single
        q /= (samples.heldout @ single)[:, None]
        per_sample = samples.heldout_weights**2 * density_ratio(samples.heldout, weights**2)
        variance = variance + (per_sample @ (q * (1 - q))) / samples.heldout_weights.sum() ** 2
    return np.asarray(variance)
