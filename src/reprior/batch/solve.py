"""The converged maximum-likelihood prior, with a certificate.

The log-likelihood f(π) = (1/N) Σ_i log (Lπ)_i, L = P/ε, is concave in π. With its gradient g_j = (1/N) Σ_i L_ij/(Lπ)_i,
concavity bounds what is left to gain: f* − f(π) ≤ max_j g_j − 1, the duality gap [kim2020]. EM needs thousands of
passes to close it. Here a few accelerated EM passes, or the optimum of a sample if there are many rows, bring π near.
Newton steps on the simplex then close the gap, with one Hessian that later gradients keep up to date.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from reprior._kernels import loops, reference
from reprior._kernels.reference import width
from reprior._kernels.small import squared_em
from reprior._types import Matrix, Vector
from reprior.batch.driver import SMALL
from reprior.rows.blocks import ArrayBlocks, Blocks
from reprior.rows.passes import MAX_DENSE_CLASSES, count_rows, e_step, information, some_rows

WARM_UP = 8  # accelerated EM passes before the Hessian is worth its price
CLIMB_PASSES, CLIMB_NUMBERS = 26, 100_000  # passes of the kernel at least, and numbers that it reads in that time
IN_MEMORY = 4_000_000  # numbers in rows that are held in memory: all, or a sample to begin with
SAMPLE_PSEUDO_ROWS = 0.5  # added to each class of a sample's optimum, which has too little of rare classes
SAMPLE_TOLERANCE = 1e-5  # duality gap at which the optimum of a sample is near enough to begin with
MAX_GAP_LEFT = 0.1  # part of the duality gap; if a Newton step leaves more, the Hessian is computed again
PIVOTS = 60  # exchanges of classes at most, until the signs of all are right


@dataclass(frozen=True, slots=True)
class Point:
    """A prior with its gradient, mean log-likelihood and duality gap, from one pass over `n` samples."""

    prior: Vector
    gradient: Vector
    value: float
    gap: float
    n: int


@dataclass(frozen=True, slots=True)
class Optimum:
    """The point that a search reached after `passes` passes, with the Hessian (K, K) there if it is known."""

    point: Point
    passes: int
    hessian: Matrix | None = None


def evaluate(target: Blocks, source_prior: Vector, prior: Vector) -> Point:
    """Return `prior` (K,) with its gradient, likelihood and gap, in one pass over the samples."""
    # a class at zero still has a gradient; less than this would make denormal products, ten times as slow
    weights = np.maximum(prior / source_prior, 1e-200)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        stats = e_step(target, weights, likelihood=True)
        gradient = stats.counts / weights / source_prior / stats.n
    value, gap = stats.log_likelihood / stats.n, float(gradient.max() - 1)
    return Point(prior, gradient, value if np.isfinite(value) else -np.inf, gap, stats.n)


def maximize(target: Blocks, source_prior: Vector, *, tol: float, max_pass: int = 500) -> Optimum:
    """Return the maximum-likelihood prior. The search stops at a duality gap of `tol` or after `max_pass` passes."""
    look, k = partial(evaluate, target, source_prior), len(source_prior)
    most = max(IN_MEMORY // k, 4 * k)
    start: Optimum | None
    if isinstance(target, ArrayBlocks) and (target.array.size <= 2 * IN_MEMORY or len(target.array) <= most):
        start = in_kernel(target, source_prior, tol=tol, max_pass=max_pass)
        if start is None:
            warm_up = min(WARM_UP, max_pass) if k <= MAX_DENSE_CLASSES else max_pass
            start = Optimum(*squared_em(look, look(source_prior), passes=1, tol=tol, max_pass=warm_up))
    else:
        counted = isinstance(target, ArrayBlocks) or getattr(target, "n", None) is not None
        n, passes = count_rows(target), 1 if counted else 2
        sample = ArrayBlocks(some_rows(target, n, most))
        if len(sample.array) == n:
            return replace(maximize(sample, source_prior, tol=tol, max_pass=max_pass), passes=passes)
        near = maximize(sample, source_prior, tol=max(tol, SAMPLE_TOLERANCE), max_pass=max_pass).point
        prior = (near.n * near.prior + SAMPLE_PSEUDO_ROWS) / (near.n + k * SAMPLE_PSEUDO_ROWS)
        start = Optimum(Point(prior, prior, -np.inf, np.inf, n), passes)  # not evaluated yet
        if k > MAX_DENSE_CLASSES:
            start = Optimum(look(prior), passes + 1)
    if k <= MAX_DENSE_CLASSES and start.point.gap > tol:
        start = newton(target, source_prior, start, tol=tol, max_pass=max_pass)
    return Optimum(*squared_em(look, start.point, passes=start.passes, tol=tol, max_pass=max_pass))


def in_kernel(target: ArrayBlocks, source_prior: Vector, *, tol: float, max_pass: int) -> Optimum | None:
    """Return where the kernel gets; None for rows beyond its cache, too few rows, or rows that it cannot read."""
    k = len(source_prior)
    if target.array.size > SMALL or len(target.array) < 2 * k:  # with hardly more rows than classes EM stalls
        return None
    (at, inverse), result, hessian = np.zeros((2, width(k))), np.zeros(2 + width(k)), np.empty((k, k))
    at[:k], inverse[:k] = source_prior, 1.0 / source_prior
    most = min(max(CLIMB_PASSES, CLIMB_NUMBERS // target.array.size), max_pass // 2)
    done = loops.climb(target.array, inverse, at, result, hessian, tol, most)
    if done == reference.REFUSED or not isfinite(result[1]):
        return None
    point = Point(at[:k], result[2 : 2 + k], float(result[1]), float(result[0]), len(target.array))
    return Optimum(point, done, hessian)


def newton(target: Blocks, source_prior: Vector, start: Optimum, *, tol: float, max_pass: int) -> Optimum:
    """Return where Newton steps on the simplex get, with one Hessian and BFGS updates from the passes' gradients."""
    point, passes, hessian = start.point, start.passes, start.hessian
    damping = 1e-12
    while point.gap > tol and passes < max_pass and damping < 1e3:
        if hessian is None:
            hessian = information(target, point.prior, source_prior, dtype=np.float32).astype(np.float64) / point.n
            passes += 1
            if point.gap == np.inf:  # g·π = 1 in every row, so the gradient follows from the Hessian
                point = replace(point, gradient=hessian @ point.prior)
        goal = next_prior(hessian, point, damping * np.trace(hessian) / len(hessian))
        if goal is None or not 0.5 < goal.sum() < 2:
            damping *= 100
            continue
        trial = evaluate(target, source_prior, goal / goal.sum())
        passes += 1
        if trial.value < point.value and (trial.value < point.value - 1e-12 or trial.gap >= point.gap):
            damping = max(100 * damping, 1e-8)
            continue
        slow = trial.gap > MAX_GAP_LEFT * point.gap  # the Hessian is out of date
        hessian = None if slow else updated(hessian, trial.prior - point.prior, point.gradient - trial.gradient)
        point, damping = trial, max(damping / 10, 1e-12)
    return Optimum(point, passes, hessian)


def updated(hessian: Matrix, moved: Vector, bent: Vector) -> Matrix:
    """Return a Hessian after the BFGS update by a step that `moved` (K,) the prior and `bent` (K,) the gradient."""
    if moved @ bent > 1e-12 * np.linalg.norm(moved) * np.linalg.norm(bent):
        image = hessian @ moved
        directions = np.stack([bent / np.sqrt(moved @ bent), image / np.sqrt(moved @ image)])
        hessian = hessian + directions.T @ (directions * [[1.0], [-1.0]])
    return hessian


def next_prior(hessian: Matrix, point: Point, pull: float) -> Vector | None:
    """Return where a Newton step leads, whose sum is about one; None if the Hessian is singular.

    φ(x) = Σx − f(x) over x ≥ 0 has the same minimiser as −f on the simplex: no equality constraint is needed. `pull`
    draws to where we are, as much as a singular Hessian (fewer rows than classes) or a bad step demands.
    """
    damped = hessian.copy()
    damped.flat[:: len(hessian) + 1] += pull
    slope = damped @ point.prior + point.gradient - 1
    # which classes would be positive if each were alone
    return nonnegative_quadratic(damped, slope, np.diag(damped) * point.prior + point.gradient > 1)


def nonnegative_quadratic(h: Matrix, b: Vector, free: NDArray[np.bool_]) -> Vector | None:
    """Return argmin ½xᵀHx − bᵀx over x ≥ 0 by block principal pivoting [portugal1994] from `free`; None if singular."""
    from scipy.linalg.lapack import dposv

    best, patience = len(b) + 1, 3
    x = np.zeros(len(b))
    for _ in range(PIVOTS):
        x = np.zeros(len(b))
        if free.any():
            _, x[free], singular = dposv(h if free.all() else h[free][:, free], b[free])
            if singular:
                return None
        wrong = np.where(free, x < 0, h @ x - b < -1e-12)
        bad = int(wrong.sum())
        if bad == 0:
            break
        if bad < best:
            best, patience = bad, 3
        elif patience:
            patience -= 1
        else:  # exchange one class only, which cannot cycle
            wrong[: np.flatnonzero(wrong)[-1]] = False
        free = free ^ wrong
    else:  # rounding errors of a nearly singular H make exchanges cycle, so leave them to an active-set method
        from scipy.linalg import solve_triangular
        from scipy.optimize import nnls

        factor, _, singular = dposv(h, b)
        if singular:
            return None
        x = nnls(np.triu(factor), solve_triangular(factor, b, trans="T"), maxiter=30 * len(b))[0]
    return np.maximum(x, 0.0)
