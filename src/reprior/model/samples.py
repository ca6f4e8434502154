"""The two samples that the default compares: held-out samples with labels, and target samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reprior._types import Matrix, Source, Vector
from reprior.model.settings import Settings
from reprior.rows.blocks import Blocks
from reprior.rows.passes import some_rows

MAX_NUMBERS = 20_000_000  # target probabilities held in memory, 80 MB


@dataclass(frozen=True, slots=True)
class TwoSamples:
    """Calibrated probabilities of both samples, as float32.

    Rows are scaled so that the density ratio of target to held-out samples is r(x) = row @ weights; they sum to 1 if
    every class has held-out samples. `heldout` (n, K) count `heldout_weights` (n,) each; n = 0 if there are training
    counts alone. `target` (N, K) are used without labels.
    `likelihood_power` is the power of the whole likelihood: (n − 1)/n for n target samples, smaller without held-out
    samples.
    `source_prior` (K,) is the class prior for which all weights are 1, `smoothed_prior` (K,) the same with less noise.
    `ratio` is ρ, target samples per held-out sample; 0 without held-out samples.
    """

    heldout: Matrix
    heldout_weights: Vector
    target: Matrix
    likelihood_power: float
    source_prior: Vector
    smoothed_prior: Vector
    ratio: float


def density_ratio(proba: Matrix, weights: Vector) -> Vector:
    """Return r(x) = g(x) @ w of each sample (n,): how many times as frequent samples like it are in the target."""
    return np.asarray(proba @ weights.astype(proba.dtype), np.float64)


def two_samples(source: Source, target: Blocks, n: int, base: Vector | None, settings: Settings) -> TwoSamples:
    """Return the samples in memory: all held-out samples, and of `n` target samples as many as are needed.

    `base` (K,) is the class prior of training, if it is known better than held-out labels tell it. Held-out samples
    are then weighted to it, and probabilities that imply another prior are moved to it.
    """
    k = len(source.prior)
    factor, missing = base_factor(source, base), missing_classes(source, base)
    kept = min(settings.max_samples, max(MAX_NUMBERS // k, 100))
    raw_heldout, heldout_y = (np.zeros((0, k)), np.zeros(0, np.intp)) if source.heldout is None else source.heldout
    heldout, weights = density_rows(raw_heldout, factor, missing), np.ones(len(heldout_y))
    prior = smoothed_prior = source.prior if base is None else base
    if len(heldout_y) and base is not None:
        wanted, present = len(heldout_y) * base, np.bincount(heldout_y, minlength=k)
        weights = ((wanted + settings.pseudo_count) / (present + settings.pseudo_count))[heldout_y]
    elif len(heldout_y):
        prior = np.maximum(heldout.sum(axis=0, dtype=np.float64), settings.pseudo_count) / len(heldout)
        smoothed_prior = smoothed(prior, heldout, settings.pseudo_count)
    sample = density_rows(some_rows(target, n, kept), factor, missing)
    likelihood_power = (n - 1) / n  # a sample that counted in its own correction would count twice
    if not len(heldout_y):  # nothing has checked the probabilities
        likelihood_power /= 1 + len(sample) / (settings.counts_worth * k)
    ratio = len(sample) / float(weights.sum()) if len(heldout_y) else 0.0
    return TwoSamples(heldout, weights, sample, likelihood_power, prior, smoothed_prior, ratio)


def smoothed(prior: Vector, heldout: Matrix, pseudo_count: float) -> Vector:
    """Return the mean probability `prior` (K,) of held-out samples (n, K), with its logarithms shrunk to their mean.

    They are shrunk as far as chance explains how they differ (James and Stein). A balanced source looks unbalanced by
    chance, and a shift to equal shares would undo that. Each class counts as if it had `pseudo_count` more samples,
    because a class that no sample shows would seem to have no noise.
    """
    squares = ((heldout - prior) ** 2).sum(axis=0) + pseudo_count
    noise = squares / (len(heldout) * prior) ** 2  # variance of log prior
    log_prior = np.log(prior)
    real = max(float(log_prior.var() - noise.mean()), 0.0)
    shrunk = np.exp(log_prior.mean() + real / (real + noise) * (log_prior - log_prior.mean()))
    return np.asarray(shrunk / shrunk.sum())


def density_rows(proba: Matrix, factor: Vector, missing: NDArray[np.bool_]) -> Matrix:
    """Return probabilities (n, K) as rows of `TwoSamples`, float32: times `factor` (K,), and divided by their sum over
    classes that are not `missing` (K,), because the density of held-out samples has no others."""
    if (factor == 1).all() and not missing.any():
        return np.ascontiguousarray(proba, np.float32)
    scaled = proba * factor
    total = scaled[:, ~missing].sum(axis=1, keepdims=True)
    return np.ascontiguousarray(scaled / np.maximum(total, 1e-6 * scaled.sum(axis=1, keepdims=True)), np.float32)


def missing_classes(source: Source, base: Vector | None) -> NDArray[np.bool_]:
    """Return which classes (K,) training had, by `base` (K,), and held-out samples do not."""
    if source.heldout is None or base is None:
        return np.zeros(len(source.prior), bool)
    return np.asarray(np.bincount(source.heldout[1], minlength=len(source.prior)) == 0)


def base_factor(source: Source, base: Vector | None) -> Vector:
    """Return what moves probabilities from the prior that they imply to `base` (K,)."""
    return np.ones(len(source.prior)) if base is None else np.asarray(base / source.prior)
