"""The EM family where its behaviour can be said in one sentence, the paper's claims among them."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import polygamma
from worlds import Problem, gaussian_outputs, make_problem

import reprior as rp
from reprior import bounds
from reprior.batch.fmapls import newton
from reprior.batch.mapls import adaptive_lambda
from reprior.rows.blocks import ArrayBlocks
from reprior.rows.passes import e_step


def test_one_plain_step_is_the_mean_posterior(problem: Problem) -> None:
    step = rp.mlls(problem.source_prior, problem.proba, n_iter=1).prior
    np.testing.assert_allclose(step, problem.proba.mean(axis=0))


def test_the_optimum_agrees_with_a_general_solver(problem: Problem) -> None:
    ratio = problem.proba / problem.source_prior

    def loss(z: np.ndarray) -> float:
        prior = np.exp(z - z.max())
        return -float(np.log(ratio @ (prior / prior.sum())).mean())

    optimum = minimize(loss, np.zeros(5), method="BFGS", options={"gtol": 1e-9}).x
    optimum = np.exp(optimum) / np.exp(optimum).sum()
    est = rp.mlls(problem.source_prior, problem.proba)
    assert est.status is rp.Status.OPTIMUM
    np.testing.assert_allclose(est.prior, optimum, atol=1e-5)


def test_the_optimum_is_certified_with_more_classes_than_rows() -> None:
    problem = make_problem(k=60, n=25)
    est = rp.mlls(problem.source_prior, problem.proba)
    assert est.status is rp.Status.OPTIMUM
    assert est.n_iter < 60


def test_certain_rows_are_counted() -> None:
    proba = np.eye(3)[[0, 0, 0, 1]]
    np.testing.assert_allclose(rp.mlls([1, 1, 1], proba).prior, [0.75, 0.25, 0], atol=1e-7)


def test_too_few_passes_are_said(problem: Problem) -> None:
    from reprior.batch.solve import maximize

    best = maximize(ArrayBlocks(problem.proba), problem.source_prior, tol=1e-14, max_pass=3)
    assert best.passes <= 4
    assert best.point.gap > 1e-14
    assert not rp.Status.NOT_CONVERGED.ok


def test_adaptive_lambda_has_its_limit_at_a_uniform_source() -> None:
    uniform = np.full(4, 0.25)
    near = uniform + 1e-5 * np.array([1, -1, 1, -1])
    target = np.array([0.7, 0.1, 0.1, 0.1])
    assert adaptive_lambda(target, uniform, uniform) == 0.9
    assert adaptive_lambda(target, near, uniform) == pytest.approx(0.9, abs=1e-6)


def printed_path(problem: Problem, c: float, n_iter: int) -> list[np.ndarray]:
    return [
        rp.fmapls(problem.source_prior, problem.proba, variant="paper", c=c, n_iter=t).prior
        for t in range(1, n_iter + 1)
    ]


def test_the_printed_fixed_point_does_not_depend_on_c() -> None:
    problem = make_problem(n=600, seed=2)
    ends = [rp.fmapls(problem.source_prior, problem.proba, variant="paper", c=c, n_iter=4000) for c in (600, 2400)]
    np.testing.assert_allclose(ends[0].prior, ends[1].prior, atol=1e-6)
    # at it, π_j (N − K) = n_j − 1: a count is taken from every class
    prior, n = ends[0].prior, len(problem.proba)
    counts = e_step(ArrayBlocks(problem.proba), prior / problem.source_prior).counts
    np.testing.assert_allclose(prior * (n - 5), counts - 1, atol=1e-3)


def falls(problem: Problem, c_of_n: float, n_iter: int = 100) -> tuple[int, int, int]:
    """How often log-likelihood, log posterior under the α of the step, and log posterior under Dirichlet(0) fall."""
    c = c_of_n * len(problem.proba)
    values = []
    for prior in printed_path(problem, c, n_iter):
        likelihood = np.log((problem.proba / problem.source_prior) @ prior).sum()
        alpha = bounds.surrogate(prior, c)
        posterior = likelihood + bounds.alpha_objective(alpha, prior)
        values.append((likelihood, posterior, likelihood - np.log(prior).sum()))
    return tuple(int(x) for x in (np.diff(values, axis=0) < -1e-7).sum(axis=0))


def test_the_printed_likelihood_is_monotone_over_100_steps_from_twice_n_on_and_not_below_n() -> None:
    problem = make_problem(k=5, n=600, seed=2)
    table = {c: falls(problem, c) for c in (0.125, 0.5, 1.0, 2.0, 8.0)}
    assert table[0.125][0] > 50  # the likelihood falls once the path has passed its maximum …
    assert table[0.125][1] > 50  # … and the posterior, whose α moves, soon after
    assert table[1.0][0] > table[2.0][0] == 0
    assert table[1.0][1] > table[2.0][1] == 0
    assert table[8.0] == (0, 0, 0)
    assert [row[2] for row in table.values()] == [0] * 5  # what the path does climb, whatever c: Dirichlet(0)
    assert falls(problem, 4.0, 300)[0] > 0  # "from 2N on" is a matter of how long it runs


def test_newtons_step_solves_the_full_hessian_and_needs_no_constant() -> None:
    rng = np.random.default_rng(0)
    alpha, prior = rng.gamma(5.0, size=7) + 1, rng.dirichlet(np.ones(7))
    hessian = polygamma(1, alpha.sum()) - np.diag(polygamma(1, alpha))
    whole = alpha - np.linalg.solve(hessian, bounds.alpha_gradient(alpha, prior))
    np.testing.assert_allclose(newton(alpha, prior), np.maximum(whole, 0.1 * alpha), rtol=1e-9)
    strength = [newton(c * prior, prior).sum() / c for c in (1e3, 1e6)]
    np.testing.assert_allclose(strength, 2, atol=0.05)  # no maximum to find: Σα doubles, so the estimate comes to rest
    problem = make_problem(k=40, n=1200, seed=3)
    est = rp.fmapls(problem.source_prior, problem.proba, update="newton")
    assert est.status is rp.Status.CONVERGED
    assert est.n_iter < 30
    further = rp.fmapls(problem.source_prior, problem.proba, update="newton", n_iter=400)
    np.testing.assert_array_equal(further.prior, est.prior)
    stable = rp.fmapls(problem.source_prior, problem.proba)
    assert rp.metrics.kl(problem.target_prior, est.prior) < 1.2 * rp.metrics.kl(problem.target_prior, stable.prior)
    short = rp.fmapls(problem.source_prior, problem.proba, update="newton", n_iter=3)
    assert short.status is rp.Status.NOT_CONVERGED


def test_no_class_goes_negative_where_the_printed_numerator_does() -> None:
    problem = make_problem(k=40, n=50, seed=1)
    est = rp.fmapls(problem.source_prior, problem.proba, variant="paper", c=5.0)
    assert est.prior.min() > 0
    assert np.isfinite(est.log_likelihood)


def test_the_stable_step_follows_time_not_max_pi() -> None:
    problem = make_problem(n=900)
    slow = rp.fmapls(problem.source_prior, problem.proba, n_iter=400).prior
    fast = rp.fmapls(problem.source_prior, problem.proba, n_iter=100).prior
    np.testing.assert_allclose(slow, fast, atol=2e-3)  # √(N/K) of plain EM, however finely it is cut


@pytest.mark.parametrize(("k", "n"), [(2, 30), (10, 5), (100, 50), (30, 5000)])
def test_ebls_converges_and_stays_sane_at_any_size(k: int, n: int) -> None:
    problem = make_problem(k=k, n=n, seed=k)
    est = rp.ebls(problem.source_prior, problem.proba)
    assert est.status is rp.Status.CONVERGED
    assert rp.metrics.kl(problem.target_prior, est.prior) < rp.metrics.kl(
        problem.target_prior, rp.mlls(problem.source_prior, problem.proba).prior, floor=1e-12
    )


def test_ebls_keeps_the_source_prior_when_nothing_has_shifted() -> None:
    problem = make_problem(k=20, n=1, seed=5)
    rng = np.random.default_rng(0)
    means = 1.2 * rng.normal(size=(20, 4))
    y = rng.choice(20, 2000, p=problem.source_prior)
    proba = gaussian_outputs(rng, y, means, problem.source_prior)
    kept = rp.metrics.kl(problem.source_prior, rp.ebls(problem.source_prior, proba).prior)
    assert kept < 0.01
    assert kept < 0.2 * rp.metrics.kl(problem.source_prior, rp.mapls(problem.source_prior, proba).prior)


def test_top_k_rows_give_what_their_dense_form_gives(problem: Problem) -> None:
    k = 3
    order = np.argsort(-problem.proba, axis=1)[:, :k]
    values = np.take_along_axis(problem.proba, order, axis=1)
    dense = np.zeros_like(problem.proba)
    np.put_along_axis(dense, order, values, axis=1)
    left = 1 - values.sum(axis=1)
    others = np.where(dense == 0, problem.source_prior, 0)
    dense += left[:, None] * others / others.sum(axis=1, keepdims=True)
    listed = rp.ebls(problem.source_prior, (order, values)).prior
    np.testing.assert_allclose(listed, rp.ebls(problem.source_prior, dense).prior, atol=1e-7)
    for indices, p, words in (
        (order + 9, values, "lie between"),
        (np.zeros_like(order), values, "name each class once"),
        (order, values + 1, "row sum in"),
        (order, values[:, :2], "both have shape"),
        (order.astype(float), values, "whole numbers"),
    ):
        with pytest.raises(rp.InputError, match=words):
            rp.ebls(problem.source_prior, (indices, p))


def test_correct_refuses_what_it_cannot_do() -> None:
    with pytest.raises(rp.InputError, match="at least one possible class"):
        rp.correct([[1.0, 0.0]], [0.0, 1.0])
    with pytest.raises(rp.InputError, match="2 columns"):
        rp.correct([[0.2, 0.3, 0.5]], [0.5, 0.5])
    assert rp.correct(np.array([[0.5, 0.5]], np.float16), [1, 1]).dtype == np.float16


def test_few_rows_of_very_many_classes_in_memory_are_solved_and_shown() -> None:
    n, k = 500, 16_500  # more numbers than are held of a sample, and fewer rows than 4 K
    proba = np.full((n, k), 1e-6)
    proba[np.arange(n), np.arange(n) % 50] += 1 - 1e-6 * k
    est = rp.mlls(np.ones(k), proba, tol=1e-2)
    assert est.status is rp.Status.OPTIMUM
    np.testing.assert_allclose(est.prior[:50], 1 / 50, atol=1e-3)
    lower, upper = est.interval()
    assert ((lower <= est.shares) & (est.shares <= upper)).all()
