"""Groups under known Dirichlet priors, and how far groups scatter, against exact results."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import score_outputs

from reprior.model.group_fit import Common, fit_groups
from reprior.model.groups import group_moments
from reprior.model.interval import Moments
from reprior.model.population import Scatter, scatter_of, unlikeness
from reprior.rows.blocks import ArrayBlocks
from reprior.rows.grouped import GroupedRows

K = 4


def grouped(proba: np.ndarray, n_groups: int) -> GroupedRows:
    return GroupedRows.of(ArrayBlocks(proba), np.repeat(np.arange(n_groups), len(proba) // n_groups), n_groups)


def scatter(rows: GroupedRows) -> Scatter:
    counts = rows.counts(np.ones(K))
    return scatter_of(counts.observed, counts.squares, rows.sizes.astype(float))


def fitted(rows: GroupedRows, about: Scatter, heldout: float = 1e12) -> dict[str, Moments]:
    """Return what is known about the groups, given how far they scatter."""
    mean = rows.target.array.mean(axis=0)  # type: ignore[attr-defined]
    common = Common(np.ones(K), mean, mean, about.concentration, heldout)
    return group_moments(common, about, fit_groups(rows, common), rows.sizes.astype(float))


def draw(n_groups: int, n: int, concentration: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the priors of groups (G, K) around even shares, and calibrated probabilities of n samples of each."""
    rng = np.random.default_rng(seed)
    priors = rng.dirichlet(np.full(K, concentration / K), size=n_groups)
    y = np.concatenate([rng.choice(K, size=n, p=prior) for prior in priors])
    return priors, score_outputs(rng, y, K, 1.5)


@pytest.mark.parametrize("concentration", [0.5, 5.0, 500.0])
def test_certain_samples_have_the_posterior_of_counts(concentration: float) -> None:
    y = np.random.default_rng(0).choice(K, size=60, p=[0.5, 0.3, 0.15, 0.05])
    counts = np.stack([np.bincount(part, minlength=K) for part in y.reshape(3, 20)])
    rows = grouped(np.eye(K)[y], 3)
    result = fitted(rows, Scatter(concentration, 0.0, 0.0, np.zeros(K), np.zeros(K), np.ones(K)))
    mean = counts.sum(axis=0) / 60
    posterior = (concentration * mean + counts) / (concentration + 20)
    np.testing.assert_allclose(result["prior"].mean, posterior, atol=1e-6)
    np.testing.assert_allclose(result["prior"].variance, posterior * (1 - posterior) / (concentration + 21), rtol=1e-5)
    np.testing.assert_allclose(result["shares"].mean, counts / 20, atol=1e-9)
    np.testing.assert_allclose(result["shares"].variance, 0, atol=1e-9)


@pytest.mark.parametrize("concentration", [1.0, 10.0, 100.0])
def test_the_scatter_of_groups_is_found_whatever_the_classifier_confuses(concentration: float) -> None:
    _, proba = draw(200, 50, concentration, seed=1)
    result = scatter(grouped(proba, 200))
    assert 0.6 < result.concentration / concentration < 1.7
    assert result.gain > 2


def test_groups_drawn_from_one_prior_do_not_differ() -> None:
    gains = [scatter(grouped(draw(20, 40, 1e9, seed)[1], 20)).gain for seed in range(20)]
    assert np.mean(np.array(gains) > 2) <= 0.1


def test_one_group_unlike_the_others_is_found_beside_groups_that_are_alike() -> None:
    _, proba = draw(60, 40, 1e9, seed=2)
    odd = score_outputs(np.random.default_rng(3), np.zeros(40, int), K, 1.5)
    rows = grouped(np.concatenate([proba, odd]), 61)
    z = unlikeness(rows.counts(np.ones(K)).observed, rows.sizes.astype(float), scatter(rows))
    assert z[-1] > 5
    assert z[:-1].max() < 3.5


@pytest.mark.parametrize("n_heldout", [1e12, 50.0])
def test_intervals_of_groups_cover_their_priors(n_heldout: float) -> None:
    priors, proba = draw(100, 40, 8.0, seed=5)
    rows = grouped(proba, 100)
    result = fitted(rows, scatter(rows), n_heldout)["prior"]
    within = np.abs(result.mean - priors) < 1.96 * np.sqrt(result.variance)
    assert within.mean() > 0.92
    if n_heldout > 1e6:
        assert within.mean() < 0.99
