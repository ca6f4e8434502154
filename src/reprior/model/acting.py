"""How much of an estimate is applied: by the evidence that the change is label shift, and by labels.

The correction multiplies probabilities by class weights. If something else than the class prior has changed, they stay
as they are: log weights 0. As for the kinds of shift, log weights are averaged over the explanations, so a correction
of which the share s is applied has the weights w^s.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reprior._check import counted
from reprior._kernels.reference import moments
from reprior._types import Acts, Matrix, MomentReference, Vector
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.verdict import WEAK, is_label_shift
from reprior.model.interval import Moments, Posterior, effect_of_weights, mixture, posterior_spread, variances
from reprior.model.label_shift import acting_share, amplification, explanations, log_evidence
from reprior.model.labels import LabelledWeights, labelled_rows, labelled_weights, updated_share
from reprior.model.settings import Settings
from reprior.rows.blocks import Blocks
from reprior.rows.correction import correct_float64
from reprior.rows.labelled import LabelledBlocks, taken_rows

MIN_WEIGHT = 1e-30  # of a class, so that its logarithm is defined
NOT_TESTED = "Whether the change is label shift was not tested: there are no held-out samples."


@dataclass(frozen=True, slots=True)
class Evidence:
    """Evidence that a deployment's changes are label shift: the log Bayes factor of `n_tests` tests, the largest
    `amplification` at any of them, and the log Bayes factor `of_labels`. `log_weights` (K,) are those after labels of
    the last batch that had any.

    If something else changes, it does so at one of the tests, each as likely as the others. So the Bayes factor against
    label shift is the mean of the Bayes factors of the tests. The start counts as a test without evidence.
    """

    log_evidence: float = 0.0
    amplification: float = 1.0
    of_labels: float = 0.0
    n_tests: float = 1.0
    log_weights: tuple[float, ...] | None = None

    def __add__(self, later: Evidence) -> Evidence:
        """Pool the tests of both by the mean Bayes factor; the larger amplification counts."""
        n = self.n_tests + later.n_tests
        against = np.logaddexp(np.log(self.n_tests) - self.log_evidence, np.log(later.n_tests) - later.log_evidence)
        return Evidence(float(np.log(n) - against), max(self.amplification, later.amplification),
                        self.of_labels + later.of_labels, n, later.log_weights or self.log_weights)  # fmt: skip

    def share(self, settings: Settings) -> float:
        """Return the share of the correction that it lets act."""
        share = acting_share(self.log_evidence, self.amplification, settings)
        return updated_share(max(share, settings.min_probability), self.of_labels) if self.of_labels else share


def batch_evidence(
    reference: MomentReference, sample: Matrix, estimate: PriorEstimate, unshifted: Vector, settings: Settings
) -> Evidence:
    """Return the evidence of label shift from a `sample` (m, K) of the target of an estimate, whose class weights
    without shift are `unshifted` (K,)."""
    x, source = moments(sample) @ reference.directions, estimate.source.prior
    prior, base = estimate.weights * source, unshifted * source
    base_prior = None if (unshifted == 1).all() else base / base.sum()
    mean, prior = x.mean(axis=0), prior / prior.sum()
    x -= mean
    variance = np.einsum("ij,ij->j", x, x) / len(x)
    evidence = log_evidence(explanations(reference, settings, base_prior), mean, variance, len(x), prior)
    mean_moved = sample.mean(axis=0) - source / source.sum()
    return Evidence(evidence, amplification(prior - base / base.sum(), mean_moved, settings))


def scaled(estimate: PriorEstimate, share: float, unshifted: Vector, sample: Matrix) -> PriorEstimate:
    """Return the estimate of which this `share` is applied, the probability of label shift.

    The weights average both explanations of the change. Shares and prior are those of the more probable one: of label
    shift, or of something else. For the latter they follow from the mean prediction, of a `sample` (m, K) under the
    class weights `unshifted` (K,) without label shift, and intervals allow for both. In the prior, that of the source
    counts as one sample per class, so that one sample decides little.
    """
    applied = replace(estimate, weights=scaled_weights(estimate.weights, share, unshifted, estimate.source.prior))
    if share >= 0.5:
        return applied
    mean = correct_float64(sample, unshifted).mean(axis=0)
    base = unshifted * estimate.source.prior
    population = pooled(base / base.sum(), len(base), mean, estimate.n)
    applied, posterior = replace(applied, shares=mean, prior=population), estimate.posterior
    if posterior is None:
        return applied
    shares = equal_mixture(posterior.shares, mean, estimate.n)
    prior = equal_mixture(posterior.prior, population, estimate.n)
    return with_posterior(applied, replace(posterior, shares=shares, prior=prior))


def pooled(base: Vector, worth: float, mean: Vector, n: Any) -> Vector:
    """Return the prior (..., K) of the population of `n` samples with this mean prediction, pooled with `base` (K,),
    which counts as `worth` samples."""
    return np.asarray((worth * base + n * mean) / (worth + n))


def scaled_weights(weights: Vector, share: float, unshifted: Vector, source_prior: Vector) -> Vector:
    """Return class weights (..., K) of which a share is applied, for a source prior (K,)."""
    out = unshifted * (weights / unshifted) ** share
    return np.asarray(out / (out @ source_prior)[..., None])


def equal_mixture(under_label_shift: Moments, mean: Vector, n: Any) -> Moments:
    """Return moments (..., K) that allow for label shift and for the mean prediction of `n` samples alike."""
    variance = mean * (1 - mean) / n
    return mixture(np.full(2, 0.5), np.stack([under_label_shift.mean, mean]),
                   np.stack([under_label_shift.variance, variance]))  # fmt: skip


def with_posterior(estimate: PriorEstimate, posterior: Posterior) -> PriorEstimate:
    """Return the estimate with this posterior, and the intervals that follow."""
    spread = posterior_spread(estimate.shares, estimate.prior, estimate.n, posterior, estimate.source)
    return replace(estimate, posterior=posterior, spread=spread)


def with_labels(
    estimate: PriorEstimate, target: LabelledBlocks, share: float, unshifted: Vector, sample: Matrix,
    settings: Settings, earlier: tuple[float, ...] | None = None,
) -> tuple[PriorEstimate, float]:  # fmt: skip
    """Return an estimate with labels of some target samples in it, and the log evidence of the labels for label shift.

    `share` is the probability of label shift before the labels, `unshifted` (K,) are the class weights without it, and
    `sample` (m, K) is a part of the target. `earlier` are log class weights after labels of an earlier batch.
    """
    has_label = target.labels >= 0
    weights = None if target.weights is None else target.weights[has_label]
    rows = labelled_rows(taken_rows(target.raw, has_label), target.labels[has_label], weights)
    of_none, of_shift = (np.log(np.maximum(x, MIN_WEIGHT)) for x in (unshifted, estimate.weights))
    before = None if earlier is None else np.array(earlier)
    fit = labelled_weights(rows, of_none, of_shift, max(share, settings.min_probability), settings, before)
    w = np.exp(fit.log_weights - fit.log_weights.max())
    w /= estimate.source.prior @ w
    n = int(estimate.n)
    shares = target.map_sum(lambda block: correct_float64(block, w).sum(axis=0)) / n
    prior = shrunk_prior(estimate, unshifted * estimate.source.prior, shares, fit.no_bias)
    changed = replace(estimate, weights=w, shares=shares, prior=prior, target=target, n_labels=target.n_labels)
    if estimate.posterior is None:
        return changed, fit.log_evidence
    posterior = labelled_posterior(estimate.posterior, shares, fit, w, 1 - target.n_labels / n, sample, n)
    return with_posterior(changed, posterior), fit.log_evidence


def shrunk_prior(estimate: PriorEstimate, base: Vector, shares: Vector, no_bias: float) -> Vector:
    """Return the prior (K,) of the population after labels of samples with these `shares` (K,).

    The shares are shrunk towards the prior without shift, `base` (K,), by the factor of the estimate without labels.
    This factor is reduced by the probability that labels show a bias, 1 − `no_bias`.
    """
    direction = base / base.sum() - estimate.shares
    shrinkage = float((estimate.prior - estimate.shares) @ direction) / max(float(direction @ direction), 1e-12)
    return np.asarray(shares + no_bias * min(max(shrinkage, 0.0), 1.0) * (base / base.sum() - shares))


def labelled_posterior(
    posterior: Posterior, shares: Vector, fit: LabelledWeights, weights: Vector, unknown: float, sample: Matrix, n: int
) -> Posterior:
    """Return the posterior of the shares after labels. The `unknown` part of the samples has no label.

    Under label shift the estimate without labels and the labels both inform, otherwise the labels alone.
    """
    by_weights, ambiguity = effect_of_weights(correct_float64(sample, weights), fit.covariance)
    by_labels = unknown**2 * by_weights + unknown * ambiguity / n
    by_both = 1 / (1 / np.maximum(by_labels, 1e-300) + 1 / np.maximum(posterior.shares.variance, 1e-300))
    variance = fit.share * by_both + (1 - fit.share) * by_labels
    population = variance + shares * (1 - shares) / n
    return replace(posterior, shares=Moments(shares, variance), prior=Moments(shares, population),
                   log_weight_variance=(1 - fit.no_bias) * variances(fit.covariance))  # fmt: skip


def describe(evidence: Evidence | None, settings: Settings, n_labels: int = 0, *, remembers: bool = False) -> Acts:
    """Return how much of the correction is applied, with the reason; `remembers`: earlier batches count too."""
    if evidence is None:
        return Acts(1.0, NOT_TESTED)
    share = evidence.share(settings)
    weak = (f" The estimated shares moved {evidence.amplification:.1f} times as far as the mean prediction."
            if evidence.amplification >= WEAK else "")  # fmt: skip
    by = f", with {counted(n_labels, 'label')}" if n_labels else ""
    who = "This batch or an earlier one differs by more than its" if remembers else "The data differ by more than their"
    reason = is_label_shift(share, by, who) + weak * (share < 0.5)
    return Acts(share, reason, evidence.log_evidence, evidence.amplification)


def act(
    estimate: PriorEstimate, target: Blocks, unshifted: Vector, sample: Matrix, evidence: Evidence, on_reject: str,
    settings: Settings,
) -> tuple[PriorEstimate, Evidence]:  # fmt: skip
    """Return the estimate of which as much is applied as the `evidence` allows, with labels if the `target` has any,
    and the evidence with that of the labels."""
    share = 1.0 if on_reject == "ignore" else evidence.share(settings)
    if isinstance(target, LabelledBlocks):
        made, gain = with_labels(estimate, target, share, unshifted, sample, settings, evidence.log_weights)
        log_weights = tuple(np.log(np.maximum(made.weights, MIN_WEIGHT)).tolist())
        return made, replace(evidence, of_labels=evidence.of_labels + gain, log_weights=log_weights)
    return (estimate if share == 1 else scaled(estimate, share, unshifted, sample)), evidence
