"""Groups under known Dirichlet priors, and how far groups scatter, against exact results."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import gammaln
from worlds import score_outputs

from reprior.model.group_fit import Common, GroupedRows, fit_groups, fit_kind
from reprior.model.groups import learn
from reprior.model.population import ClusterPriors, GroupSums, Scatter, dirichlet_multinomial_log_pmf, scatter_of
from reprior.rows.blocks import ArrayBlocks

K = 4


def common(proba: np.ndarray, heldout: float = 1e12) -> Common:
    mean = proba.mean(axis=0)
    return Common(np.ones(K), mean, mean, proba.T @ proba / len(proba), heldout)


def grouped(proba: np.ndarray, n_groups: int) -> GroupedRows:
    return GroupedRows.of(ArrayBlocks(proba), np.repeat(np.arange(n_groups), len(proba) // n_groups), n_groups)


def sums(rows: GroupedRows, about: Common) -> GroupSums:
    first = rows.counts(about.weights, np.ones((len(rows.sizes), K)))
    n = rows.sizes.astype(float)
    return GroupSums(first.observed, first.squares, n, n)


def draw(n_groups: int, n: int, concentration: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the priors of groups (G, K) around even shares, and calibrated probabilities of n samples of each."""
    rng = np.random.default_rng(seed)
    priors = rng.dirichlet(np.full(K, concentration / K), size=n_groups)
    y = np.concatenate([rng.choice(K, size=n, p=prior) for prior in priors])
    return priors, score_outputs(rng, y, K, 1.5)


@pytest.mark.parametrize("concentration", [0.5, 5.0, 500.0])
def test_certain_samples_have_the_evidence_and_posterior_of_counts(concentration: float) -> None:
    y = np.random.default_rng(0).choice(K, size=60, p=[0.5, 0.3, 0.15, 0.05])
    proba = np.eye(K)[y]
    about, rows = common(proba), grouped(proba, 3)
    centre = np.array([0.4, 0.3, 0.2, 0.1])
    counts = np.stack([np.bincount(part, minlength=K) for part in y.reshape(3, 20)])
    alpha = concentration * centre
    exact = (
        (gammaln(alpha + counts) - gammaln(alpha)).sum(axis=1) - gammaln(concentration + 20) + gammaln(concentration)
    )
    exact -= counts @ np.log(about.mean)  # relative to the common prior
    baseline = rows.counts(about.weights, np.ones((3, K))).log_ratio
    found = fit_kind(rows, about, centre, concentration, baseline)
    np.testing.assert_allclose(found.log_evidence, exact, atol=1e-6)
    kinds = ClusterPriors(np.stack([centre, centre]), np.array([1.0, 1e-300]), Scatter(concentration, 0.0, 0.0))
    fit = fit_groups(rows, about, kinds)
    relative = dirichlet_multinomial_log_pmf(counts, kinds)[:, 0] - counts @ np.log(about.mean)
    np.testing.assert_allclose(relative, exact, atol=1e-9)
    posterior = (alpha + counts) / (concentration + 20)
    np.testing.assert_allclose(fit.prior, posterior, atol=1e-6)
    np.testing.assert_allclose(fit.prior_variance, posterior * (1 - posterior) / (concentration + 21), rtol=1e-5)
    np.testing.assert_allclose(fit.shares, counts / 20, atol=1e-9)
    np.testing.assert_allclose(fit.shares_variance, 0, atol=1e-9)


@pytest.mark.parametrize("concentration", [1.0, 10.0, 100.0])
def test_the_scatter_of_groups_is_found_whatever_the_classifier_confuses(concentration: float) -> None:
    _, proba = draw(200, 50, concentration, seed=1)
    about, rows = common(proba), grouped(proba, 200)
    found = scatter_of(sums(rows, about), np.ones(200, bool), np.zeros(200, np.intp), about.mean[None])
    assert 0.6 < found.concentration / concentration < 1.7
    assert found.gain > 2


def test_groups_drawn_from_one_prior_do_not_differ() -> None:
    gains = []
    for seed in range(20):
        _, proba = draw(20, 40, 1e9, seed)
        gains.append(learn(grouped(proba, 20), common(proba)).scatter.gain)
    assert np.mean(np.array(gains) > 2) <= 0.1


def test_one_group_unlike_the_others_is_found_beside_groups_that_are_alike() -> None:
    _, proba = draw(60, 40, 1e9, seed=2)
    rng = np.random.default_rng(3)
    odd = score_outputs(rng, np.zeros(40, int), K, 1.5)
    proba = np.concatenate([proba, odd])
    rows, about = grouped(proba, 61), common(proba)
    kinds = learn(rows, about)
    member = fit_groups(rows, about, kinds).member
    assert len(kinds.centres) == 2  # one cluster, and the kind of odd groups
    assert member[-1, -1] > 0.95
    assert member[:-1, -1].max() < 0.5
    assert kinds.scatter.concentration > 100


@pytest.mark.parametrize("n_heldout", [1e12, 50.0])
def test_intervals_of_groups_cover_their_priors(n_heldout: float) -> None:
    priors, proba = draw(100, 40, 8.0, seed=5)
    about, rows = common(proba, n_heldout), grouped(proba, 100)
    fit = fit_groups(rows, about, learn(rows, about))
    within = np.abs(fit.prior - priors) < 1.96 * np.sqrt(fit.prior_variance)
    assert within.mean() > 0.92
    if n_heldout > 1e6:
        assert within.mean() < 0.99
