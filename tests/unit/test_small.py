"""Whole iterations in the kernel: what they return is what the driver's own loop returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from conftest import make_problem

import reprior as rp
from reprior._kernels import NATIVE, loops, small
from reprior._kernels.reference import width
from reprior.batch import driver, hypotheses, solve

CALLS: dict[str, Any] = {
    "mlls": lambda s, p: rp.mlls(s, p, n_iter=50),
    "mapls": rp.mapls,
    "mapls, all data": lambda s, p: rp.mapls(s, p, lam=1.0),
    "mapls, no data": lambda s, p: rp.mapls(s, p, lam=0.0),
    "fmapls": rp.fmapls,
    "fmapls, c": lambda s, p: rp.fmapls(s, p, c=30.0),
    "fmapls, printed": lambda s, p: rp.fmapls(s, p, variant="paper"),
    "fmapls, printed, small c": lambda s, p: rp.fmapls(s, p, variant="paper", c=3.0),
}


@pytest.mark.parametrize("method", CALLS)
@pytest.mark.parametrize(("k", "n"), [(5, 83), (2, 1), (19, 40), (8, 4)])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_kernel_iterates_as_the_driver_does(
    method: str, k: int, n: int, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = make_problem(k=k, n=n)
    proba = problem.proba.astype(dtype)
    fast = CALLS[method](problem.source_prior, proba)
    monkeypatch.setattr(driver, "SMALL", 0)
    slow = CALLS[method](problem.source_prior, proba)
    np.testing.assert_allclose(fast.prior, slow.prior, rtol=1e-10, atol=1e-12)
    assert (fast.n_iter, fast.status, fast.n) == (slow.n_iter, slow.status, slow.n)
    if slow.alpha is not None:
        np.testing.assert_allclose(fast.alpha, slow.alpha, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("k", "n"), [(5, 200), (2, 50), (20, 300)])
def test_the_small_optimum_is_the_large_one(k: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(k=k, n=n)
    fast = rp.mlls(problem.source_prior, problem.proba)
    monkeypatch.setattr(solve, "SMALL", 0)
    slow = rp.mlls(problem.source_prior, problem.proba)
    assert fast.status is slow.status is rp.Status.OPTIMUM
    assert fast.log_likelihood == pytest.approx(slow.log_likelihood, abs=2e-8 * n)
    gap = solve.evaluate(fast.target, fast.prior, problem.source_prior).gap
    assert gap <= 1.01e-8


@pytest.mark.parametrize(("k", "n"), [(10, 100), (2, 1), (33, 20), (5, 400)])
def test_ebls_of_a_small_problem_is_that_of_a_large_one(k: int, n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(k=k, n=n)
    fast = rp.ebls(problem.source_prior, problem.proba)
    monkeypatch.setattr(hypotheses, "SMALL", 0)
    rounded = rp.ebls(problem.source_prior, problem.proba)
    monkeypatch.setattr(hypotheses, "SINGLE", 0.0)
    slow = rp.ebls(problem.source_prior, problem.proba)
    np.testing.assert_allclose(rounded.prior, slow.prior, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(fast.prior, slow.prior, rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(fast.posterior.weights, slow.posterior.weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(fast.posterior.variances, slow.posterior.variances, rtol=1e-8, atol=1e-12)
    assert (fast.n_iter, fast.status) == (slow.n_iter, slow.status)


@pytest.mark.skipif(not NATIVE, reason="no native kernel to compare with")
@pytest.mark.parametrize("single", [False, True])
@pytest.mark.parametrize(
    ("k", "n", "n_iter"), [(10, 100, 60), (3, 7, 60), (33, 12, 60), (8, 200, 4), (2, 1, 60), (50, 259, 60)]
)
def test_weighing_is_its_specification(k: int, n: int, n_iter: int, single: bool) -> None:
    problem = make_problem(k=k, n=n)
    rows, known = problem.proba, np.zeros(width(k))
    known[:k] = 1 / problem.source_prior
    alpha = hypotheses.suppose(problem.source_prior, 30.0 * k, hypotheses.nothing(k), np.full(k, np.inf)).alpha

    def run(kernel: Any) -> list[np.ndarray]:
        modes, tail = alpha / alpha.sum(axis=1, keepdims=True), np.empty((len(alpha), 4))
        counts, spread = np.empty((2, *alpha.shape))
        assert kernel.weigh(rows, known, alpha, modes, counts, spread, tail, 0.7, 1e-6, n_iter, single) == 0
        return [modes, counts, spread, tail]

    for ours, specified, digits in zip(run(loops), run(small), (1e-10, 1e-10, 1e-6, 1e-6), strict=True):
        near = digits if single else 1e-10
        np.testing.assert_allclose(ours, specified, rtol=near, atol=near)
    assert loops.weigh(rows, known, alpha, *np.empty((3, *alpha.shape)), np.empty((1, 4)), 0.7, 1e-6, 9, single) == -2


@pytest.mark.skipif(not NATIVE, reason="no native kernel to compare with")
@pytest.mark.parametrize("even", [False, True])
def test_single_precision_is_not_seen_in_the_answer(even: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(k=100, n=1000)
    source = np.full(100, 0.01) if even else problem.source_prior
    fast = rp.ebls(source, problem.proba)
    monkeypatch.setattr(hypotheses, "loops", small)
    slow = rp.ebls(source, problem.proba)
    np.testing.assert_allclose(fast.prior, slow.prior, rtol=0, atol=2e-10)
    np.testing.assert_allclose(fast.interval(), slow.interval(), rtol=0, atol=1e-8)


def test_hypotheses_that_are_alike_count_once() -> None:
    k = 6
    given = hypotheses.suppose(np.full(k, 1 / k), 30.0 * k, hypotheses.nothing(k), np.full(k, np.inf))
    once = given.once()
    assert len(once.alpha) == len(given.alpha) - 2
    for weights in ("odds", "open"):
        assert getattr(once, weights).sum() == pytest.approx(getattr(given, weights).sum())
        assert getattr(once, weights) @ once.alpha == pytest.approx(getattr(given, weights) @ given.alpha)
    uneven = hypotheses.suppose(np.arange(1, k + 1) / 21, 30.0 * k, hypotheses.nothing(k), np.full(k, np.inf))
    assert len(uneven.once().alpha) == len(uneven.alpha)


def test_rows_the_kernel_cannot_read_take_the_other_way() -> None:
    problem = make_problem(k=5, n=60)
    plain = rp.fmapls(problem.source_prior, problem.proba)
    for rows in (np.asfortranarray(problem.proba), np.repeat(problem.proba, 2, axis=1)[:, ::2]):
        np.testing.assert_allclose(rp.fmapls(problem.source_prior, rows).prior, plain.prior, rtol=1e-10)
        assert rp.mlls(problem.source_prior, rows).status is rp.Status.OPTIMUM


@pytest.mark.skipif(not NATIVE, reason="no native kernel to compare with")
@pytest.mark.parametrize(("k", "n", "most"), [(10, 100, 40), (3, 7, 40), (16, 64, 40), (10, 100, 3), (21, 77, 4)])
def test_climbing_is_its_specification(k: int, n: int, most: int) -> None:
    problem, width = make_problem(k=k, n=n), -(-k // 8) * 8
    inverse = np.zeros(width)
    inverse[:k] = 1 / problem.source_prior

    def run(kernel: Any) -> tuple[int, np.ndarray, np.ndarray, np.ndarray]:
        prior, told, hessian = np.zeros(width), np.zeros(2 + width), np.zeros((k, k))
        prior[:k] = problem.source_prior
        return kernel.climb(problem.proba, inverse, prior, told, hessian, 1e-8, most), prior, told, hessian

    for ours, specified, near in zip(run(loops), run(small), (0, 1e-9, 1e-9, 1e-6), strict=True):
        np.testing.assert_allclose(ours, specified, rtol=near, atol=max(near / 10, 1e-10))
    for bad, square in ((inverse[:-8], np.zeros((k, k))), (inverse, np.zeros((k, k - 1)))):
        assert loops.climb(problem.proba, bad, np.zeros(width), np.zeros(2 + width), square, 1e-8, 40) == -2
    assert loops.em(problem.proba, inverse, np.zeros(width), np.zeros(5), 1) == -2
