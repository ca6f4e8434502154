"""Whole iterations in the kernel: what they return is what the driver's own loop returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from worlds import make_problem

import reprior as rp
from reprior._kernels import NATIVE, loops, small
from reprior.batch import driver, solve

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
    gap = solve.evaluate(fast.target, problem.source_prior, fast.prior).gap
    assert gap <= 1.01e-8


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
        prior, answer, hessian = np.zeros(width), np.zeros(2 + width), np.zeros((k, k))
        prior[:k] = problem.source_prior
        return kernel.climb(problem.proba, inverse, prior, answer, hessian, 1e-8, most), prior, answer, hessian

    for ours, specified, near in zip(run(loops), run(small), (0, 1e-9, 1e-9, 1e-6), strict=True):
        np.testing.assert_allclose(ours, specified, rtol=near, atol=max(near / 10, 1e-10))
    for bad, square in ((inverse[:-8], np.zeros((k, k))), (inverse, np.zeros((k, k - 1)))):
        assert loops.climb(problem.proba, bad, np.zeros(width), np.zeros(2 + width), square, 1e-8, 40) == -2
    assert loops.em(problem.proba, inverse, np.zeros(width), np.zeros(5), 1) == -2
