"""What several tests share: small classifiers whose posteriors are exact, so that truth is known."""

from __future__ import annotations

import os
from typing import NamedTuple

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # small products: threads would only wait for each other

import numpy as np
import pytest
from hypothesis import settings

import reprior as rp

settings.register_profile("default", deadline=None, max_examples=30, derandomize=True)
settings.load_profile("default")


class Problem(NamedTuple):
    source_prior: np.ndarray
    target_prior: np.ndarray
    proba: np.ndarray
    y: np.ndarray
    source: rp.Source


def make_problem(k: int = 5, n: int = 400, *, separation: float = 1.2, seed: int = 0, alpha: float = 1.0) -> Problem:
    """Gaussian classes with known means: the outputs are the true posteriors under a long-tailed source prior."""
    rng = np.random.default_rng(seed)
    source_prior = rp.simulate.long_tail(k, 0.2)
    target_prior = rp.simulate.dirichlet(k, alpha, rng=rng)
    means = separation * rng.normal(size=(k, 4))

    def outputs(y: np.ndarray) -> np.ndarray:
        x = means[y] + rng.normal(size=(len(y), 4))
        logits = x @ means.T - 0.5 * (means**2).sum(axis=1) + np.log(source_prior)
        proba = np.exp(logits - logits.max(axis=1, keepdims=True))
        return proba / proba.sum(axis=1, keepdims=True)

    y = rng.choice(k, n, p=target_prior)
    heldout_y = np.concatenate([np.arange(k), rng.choice(k, 40 * k, p=source_prior)])
    return Problem(source_prior, target_prior, outputs(y), y, rp.summarize(outputs(heldout_y), heldout_y))


@pytest.fixture
def problem() -> Problem:
    return make_problem()
