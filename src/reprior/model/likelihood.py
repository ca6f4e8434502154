"""The likelihood of class weights, and their posterior mode.

Notation. g(x) (K,) are calibrated probabilities, w (K,) = target prior / source prior are class weights, and
r(x) = g(x) @ w. Under label shift samples like x are r(x) times as frequent in the target as in the source. So "is this
sample a target sample or a held-out one?" is a logistic regression without any unknown density [anderson1979, qin1998]:

    P(target | x) = ρ r(x) / (1 + ρ r(x)),    ρ = target samples / held-out samples.            (1)

Without held-out samples, ρ → 0, the log-likelihood is Σ log r(x) − N Σ_k ε_k w_k, that of MLLS [saerens2002]. A class
weight has a gamma prior of shape `size` and a given `mean`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reprior._types import Matrix, Vector
from reprior.model.samples import TwoSamples, density_ratio
from reprior.rows.passes import row_blocks

MAX_CYCLES = 50  # of two EM steps each
MAX_STEP = 16.0  # EM steps that one extrapolation may replace
MAX_LOG_WEIGHT = 30.0  # single precision holds its square
DENSE_CLASSES = 512  # classes above which the information is taken to be diagonal: K×K matrices would take seconds


@dataclass(frozen=True, slots=True)
class WeightFit:
    """Posterior modes of log w, as `weights` (C, K), the EM `steps` it took, and whether they `converged`."""

    weights: Matrix
    steps: int
    converged: bool


def class_counts(samples: TwoSamples, weights: Matrix) -> tuple[Matrix, Matrix]:
    """Return for class weights (C, K) the target samples observed of each class, and those expected at weight 1.

    The derivative of the log-likelihood by log w is observed − w · expected.
    """
    rho, single = np.float32(samples.ratio), weights.astype(np.float32)
    observed, expected = np.zeros(weights.shape), np.zeros(weights.shape)
    for part in row_blocks(*samples.target.shape):
        rows = samples.target[part]
        r = rows @ single.T
        observed += (1 / (r * (1 + rho * r))).T @ rows  # Σ (1 − P) g/r, by eq. 1
    observed *= weights
    for part in row_blocks(*samples.heldout.shape):
        rows, counts = samples.heldout[part], samples.heldout_weights[part].astype(np.float32)
        expected += (rho * counts[:, None] / (1 + rho * (rows @ single.T))).T @ rows  # Σ P g/r, by eq. 1
    if not rho:
        expected += len(samples.target) * samples.source_prior
    return observed * samples.likelihood_power, expected * samples.likelihood_power


def extrapolated(at: Matrix, first: Matrix, second: Matrix) -> Matrix:
    """Return where two EM steps, from `at` (C, K) to `first` and `second`, lead: SQUAREM, scheme S3 [varadhan2008]."""
    change, second_difference = first - at, second - 2 * first + at
    length = np.sqrt((change**2).sum(axis=1) / np.maximum((second_difference**2).sum(axis=1), 1e-30))
    length = np.clip(length, 1, MAX_STEP)[:, None]  # 1 is the second step itself
    return np.asarray(at + 2 * length * change + length**2 * second_difference)


def bounded(log_weights: Matrix) -> Matrix:
    """Return log class weights between ±MAX_LOG_WEIGHT."""
    return np.minimum(np.maximum(log_weights, -MAX_LOG_WEIGHT), MAX_LOG_WEIGHT)


def fit_weights(samples: TwoSamples, size: Matrix, mean: Matrix, start: Matrix, tol: float = 1e-4) -> WeightFit:
    """Return the posterior modes of log w under gamma priors of shape `size` and this `mean`, (C, K) each.

    A mode solves w = (size + observed) / (size/mean + expected). EM iterates that until weights change by less than
    `tol`, averaged over the source. Every two steps are extrapolated [varadhan2008].
    """

    def em_step(log_weights: Matrix) -> Matrix:
        observed, expected = class_counts(samples, np.exp(log_weights))
        return bounded(np.log((size + observed) / (size / mean + expected)))

    at, second, steps, converged = np.log(start), np.log(start), 0, False
    for _ in range(MAX_CYCLES):
        first = em_step(at)
        second, steps = em_step(first), steps + 2
        converged = bool((np.abs(np.exp(second) - np.exp(first)) @ samples.source_prior).max() < tol)
        if converged:
            break
        at = bounded(extrapolated(at, first, second))
    return WeightFit(np.exp(second), steps, converged)


def fisher_information(samples: TwoSamples, weights: Vector) -> Matrix:
    """Return the expected information (K, K) about log w: Σ P (1 − P) p pᵀ over both samples, with p = w g / r.

    It is estimated by Σ (1 − P) p pᵀ over target samples, because they are the part P of both. Above DENSE_CLASSES
    classes only its diagonal (K,) is returned.
    """
    r = density_ratio(samples.target, weights)
    p = samples.target * (1 / (r * np.sqrt(1 + samples.ratio * r))).astype(np.float32)[:, None]
    if len(weights) > DENSE_CLASSES:
        return np.asarray(samples.likelihood_power * weights**2 * np.einsum("ij,ij->j", p, p))
    return np.asarray(samples.likelihood_power * np.outer(weights, weights) * (p.T @ p))


def log_likelihood(samples: TwoSamples, weights: Vector) -> float:
    """Return the log-likelihood of class weights (K,), up to a constant."""
    rho, r = samples.ratio, density_ratio(samples.target, weights)
    value = float(np.log(r / (1 + rho * r)).sum())  # log P, by eq. 1
    if rho:
        value -= float(samples.heldout_weights @ np.log1p(rho * density_ratio(samples.heldout, weights)))  # log(1 − P)
    else:
        value -= len(samples.target) * float(samples.source_prior @ weights - 1)
    return samples.likelihood_power * value
