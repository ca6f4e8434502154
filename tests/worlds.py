"""Simulated classifiers whose posteriors are exact, so that tests know the truth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

import reprior as rp


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities (n, K) of logits."""
    proba = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(proba / proba.sum(axis=1, keepdims=True))


def posteriors(x: np.ndarray, means: np.ndarray, prior: np.ndarray | float = 1.0) -> np.ndarray:
    """Return the posteriors (n, K) of points (n, d) among unit Gaussians at `means` (K, d), under a class prior."""
    return softmax(x @ means.T - 0.5 * (means**2).sum(axis=1) + np.log(prior))


def gaussian_outputs(
    rng: np.random.Generator, y: np.ndarray, means: np.ndarray, prior: np.ndarray | float = 1.0
) -> np.ndarray:
    """Return exact posteriors (n, K) of points drawn from the classes `y` (n,), unit Gaussians at `means` (K, d)."""
    return posteriors(means[y] + rng.normal(size=(len(y), means.shape[1])), means, prior)


def two_gaussians(
    rng: np.random.Generator, y: np.ndarray, distance: float, prior: Sequence[float] = (0.5, 0.5)
) -> np.ndarray:
    """Return exact posteriors (n, 2) of points drawn from the classes `y` (n,), unit Gaussians this far apart."""
    return gaussian_outputs(rng, y, np.array([[0.0], [distance]]), np.array(prior))


def score_outputs(
    rng: np.random.Generator, y: np.ndarray, k: int, sharp: float, prior: np.ndarray | float = 1.0, *,
    scale: float | None = None,
) -> np.ndarray:  # fmt: skip
    """Return posteriors (n, K) of K noisy scores of which the true class's is `sharp` above the others.

    They are exact if scores are multiplied by `sharp`, which is the default of `scale`.
    """
    factor = sharp if scale is None else scale
    return softmax(factor * (rng.standard_normal((len(y), k)) + sharp * np.eye(k)[y]) + np.log(prior))


class Problem(NamedTuple):
    """A source prior, a target prior, target samples with labels, and a source with held-out samples."""

    source_prior: np.ndarray
    target_prior: np.ndarray
    proba: np.ndarray
    y: np.ndarray
    source: rp.Source


def make_problem(k: int = 5, n: int = 400, *, separation: float = 1.2, seed: int = 0, alpha: float = 1.0) -> Problem:
    """Return a problem of Gaussian classes with a long-tailed source prior."""
    rng = np.random.default_rng(seed)
    source_prior = rp.simulate.long_tail(k, 0.2)
    target_prior = rp.simulate.dirichlet(k, alpha, rng=rng)
    means = separation * rng.normal(size=(k, 4))
    y = rng.choice(k, n, p=target_prior)
    heldout_y = np.concatenate([np.arange(k), rng.choice(k, 40 * k, p=source_prior)])
    proba = gaussian_outputs(rng, y, means, source_prior)
    heldout = gaussian_outputs(rng, heldout_y, means, source_prior)
    return Problem(source_prior, target_prior, proba, y, rp.summarize(heldout, heldout_y))
