"""The converged maximum-likelihood prior, with a certificate.

The log-likelihood f(π) = (1/N) Σ_i log (Lπ)_i, L = P/ε, is concave in π. With its gradient g_j = (1/N) Σ_i L_ij/(Lπ)_i,
concavity bounds what is left to gain: f* − f(π) ≤ max_j g_j − 1, the duality gap [kim2020]. EM needs thousands of
passes to close it; here a few accelerated EM passes, or the optimum of a sample where rows are many, bring π near, then
Newton steps on the simplex close it, with one Hessian that later gradients keep up to date.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from reprior._kernels import loops, reference
from reprior._kernels.reference import width
from reprior._types import Matrix, Vector
from reprior.batch.driver import SMALL, iterate
from reprior.rows.blocks import ArrayBlocks, Blocks
from reprior.rows.passes import MAX_DENSE_CLASSES, e_step, information, some_of_any

WARM_UP = 8  # accelerated EM passes before the Hessian is worth its price
CLIMB = 26  # of its passes, more where a pass is cheaper than a Newton step in Python
CLIMB_NUMBERS = 100_000  # numbers read in that time
IN_MEMORY = 4_000_000  # numbers in rows that are held in memory: all, or a sample to begin with
SAMPLE_TIMES, SAMPLE_SHARE = (
    4,
    64,
)  # times as many of very many rows in blocks, one in so many: rare classes are then better known
MAX_CLOSED = 0.75  # of a gradient, that a step may be taken to close
CLASS_PRIOR_ROWS = 0.5  # rows, to every class, of a sample that tells where to begin
SAMPLE_STEPS = 60  # of EM on a sample, at most
CHEAP_HESSIAN = 256  # classes, up to which a Hessian of all rows costs hardly more than to read them
MEMORY = 5  # past steps the acceleration looks at
PIVOTS = 60  # exchanges of classes at most, until the signs of all are right


@dataclass(frozen=True, slots=True)
class Point:
    """A prior with its gradient, mean log-likelihood and duality gap: what one pass tells."""

    prior: Vector
    gradient: Vector
    value: float
    gap: float
    n: int
    curvature: Vector | None = None


class Climb(NamedTuple):
    """Where accelerated EM stands after so many passes, with the log-priors (m, K) and residuals (m, K) of late."""

    point: Point
    passes: int
    positions: Matrix
    residuals: Matrix


def evaluate(target: Blocks, prior: Vector, source_prior: Vector, *, curvature: bool = False) -> Point:
    """Return what one pass over the rows tells about `prior` (K,), the Hessian's diagonal too if asked."""
    weights = prior / source_prior
    # a class at zero still has a gradient; less than this would make denormal products, ten times as slow
    gradient_weights = np.maximum(weights, 1e-200)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        stats = e_step(target, gradient_weights, likelihood=True, squares=curvature)
        gradient = stats.counts / gradient_weights / source_prior / stats.n
        bend = None if stats.squares is None else stats.squares / prior**2 / stats.n
    value, gap = stats.log_likelihood / stats.n, float(gradient.max() - 1)
    if note_gap := getattr(target, "note_gap", None):  # whoever shows progress
        note_gap(gap)
    return Point(prior, gradient, value if np.isfinite(value) else -np.inf, gap, stats.n, bend)


def maximize(target: Blocks, source_prior: Vector, *, tol: float, max_pass: int = 500) -> tuple[Point, int]:
    """Return the maximum-likelihood prior and the number of passes it took.

    It stops at a duality gap of `tol` or after `max_pass` passes: compare `Point.gap` with `tol`.
    """
    passes, k = 0, len(source_prior)
    most = max(IN_MEMORY // k, 4 * k)
    in_memory = isinstance(target, ArrayBlocks) and (target.array.size <= 2 * IN_MEMORY or len(target.array) <= most)
    if not in_memory:
        many = getattr(target, "promised", None)
        if many is not None:  # files that say so before they are read
            most = max(most, min(many // SAMPLE_SHARE, SAMPLE_TIMES * IN_MEMORY // k))
        rows, n = some_of_any(target, most)
        sample, passes = ArrayBlocks(rows), 1
        if len(sample.array) == n:
            return maximize(sample, source_prior, tol=tol, max_pass=max_pass)[0], passes
        if k <= MAX_DENSE_CLASSES:
            point, passes = from_sample(target, sample, source_prior, n, passes, tol=tol, max_pass=max_pass)
            return accelerated_em(target, source_prior, point, passes, tol=tol, max_pass=max_pass)
    climbed = in_kernel(target, source_prior, tol=tol, max_pass=max_pass)
    if climbed is not None:
        point, passes, hessian = climbed
    else:
        point, hessian = evaluate(target, source_prior, source_prior), None
        most = min(WARM_UP, max_pass) if k <= MAX_DENSE_CLASSES else max_pass
        point, passes = accelerated_em(target, source_prior, point, passes + 1, tol=tol, max_pass=most)
    if k <= MAX_DENSE_CLASSES and point.gap > tol:
        point, passes = newton(target, source_prior, point, passes, hessian, tol=tol, max_pass=max_pass)
    if point.gap > tol:
        point, passes = accelerated_em(target, source_prior, point, passes, tol=tol, max_pass=max_pass)
    return point, passes


class Climbed(NamedTuple):
    """Where the kernel's accelerated EM got, after how many passes, with the Hessian (K, K) there."""

    point: Point
    passes: int
    hessian: Matrix | None


def in_kernel(target: Blocks, source_prior: Vector, *, tol: float, max_pass: int) -> Climbed | None:
    """Return where the kernel gets; None for rows that do not stay in cache, or that it cannot read.

    With hardly more rows than classes EM stalls, and the kernel is not asked.
    """
    k = len(source_prior)
    if not isinstance(target, ArrayBlocks) or target.array.size > SMALL or len(target.array) < 2 * k:
        return None
    (at, inverse), result, hessian = np.zeros((2, width(k))), np.zeros(2 + width(k)), np.empty((k, k))
    at[:k], inverse[:k] = source_prior, 1.0 / source_prior
    most = min(max(CLIMB, CLIMB_NUMBERS // target.array.size), max_pass // 2)
    done = loops.climb(target.array, inverse, at, result, hessian, tol, most)
    if done == reference.REFUSED or not isfinite(result[1]):
        return None
    point = Point(at[:k], result[2 : 2 + k], float(result[1]), float(result[0]), len(target.array))
    return Climbed(point, done, hessian)


def from_sample(
    target: Blocks, sample: ArrayBlocks, source_prior: Vector, n: int, passes: int, *, tol: float, max_pass: int
) -> tuple[Point, int]:
    """Return where Newton steps get that begin at the optimum of a sample of the `n` rows."""
    k, size = len(source_prior), len(sample.array)
    # the optimum of a sample has too little of rare classes, from where Newton's steps would be short
    ratio, near = np.asarray(sample.array, np.float64) / source_prior, source_prior
    for _ in range(SAMPLE_STEPS):
        before, near = near, (CLASS_PRIOR_ROWS + near * ((1 / (ratio @ near)) @ ratio)) / (k * CLASS_PRIOR_ROWS + size)
        if np.abs(near - before).sum() < 1e-4:
            break
    point = evaluate(target, near, source_prior, curvature=True)
    # a step with the sample's Hessian first: that of all rows is dear, and tells more where it is nearer to the optimum
    hessian = information(sample, point.prior, source_prior, dtype=np.float32).astype(np.float64) / size
    start = stepped(rescaled(hessian, point), point)
    passes += 1
    if k <= CHEAP_HESSIAN:
        # far from the optimum a Hessian is soon out of date; one pass tells the next, and the gradient with it
        hessian = information(target, start, source_prior, dtype=np.float32).astype(np.float64) / n
        start = stepped(hessian, replace(point, prior=start, gradient=hessian @ start))
        passes += 1
    return newton(target, source_prior, Point(start, start, -np.inf, np.inf, n), passes, tol=tol, max_pass=max_pass)


def stepped(hessian: Matrix, point: Point) -> Vector:
    """Return where a Newton step leads that nobody checks, so that it takes no more than nine tenths of any class."""
    goal = next_prior(hessian, point, 1e-12 * np.trace(hessian) / len(hessian))
    start = point.prior if goal is None else np.maximum(goal, 0.1 * point.prior)
    return np.asarray(start / start.sum(), np.float64)


def accelerated_em(
    target: Blocks, source_prior: Vector, point: Point, passes: int, *, tol: float, max_pass: int
) -> tuple[Point, int]:
    """Return where EM with Anderson acceleration in log π gets; a step that lowers the likelihood is retaken plain."""
    tiny = 1e-12

    def advance(at: Climb) -> Climb:
        point, passes = at.point, at.passes + 1
        here = np.log(np.maximum(point.prior, tiny))
        residual = np.log(np.maximum(point.gradient, tiny))  # EM: π ← π·g, in logs a fixed-point map
        place, rest = np.array([*at.positions[-MEMORY:], here]), np.array([*at.residuals[-MEMORY:], residual])
        step = rest[1:] - rest[:-1]
        # rare classes have loud logs and little weight: measure the residual where the mass is
        mass = np.sqrt(np.maximum(point.prior, tiny))
        mix = np.linalg.lstsq((step * mass).T, residual * mass, rcond=1e-8)[0]
        guess = here + residual - mix @ (place[1:] - place[:-1] + step)
        guess = np.exp(guess - guess.max())
        trial = evaluate(target, guess / guess.sum(), source_prior)
        if trial.value >= point.value:
            return Climb(trial, passes, place, rest)
        plain = point.prior * point.gradient
        return Climb(evaluate(target, plain / plain.sum(), source_prior), passes + 1, place[:0], rest[:0])

    def arrived(new: Climb, _: Climb) -> bool:
        return new.point.gap <= tol or new.passes >= max_pass

    start = Climb(point, passes, np.empty((0, len(source_prior))), np.empty((0, len(source_prior))))
    if not arrived(start, start):
        start = iterate(advance, start, n_iter=max_pass, done=arrived).at
    return start.point, start.passes


def newton(
    target: Blocks, source_prior: Vector, point: Point, passes: int, hessian: Matrix | None = None, *, tol: float,
    max_pass: int,
) -> tuple[Point, int]:  # fmt: skip
    """Return where Newton steps on the simplex get, with one Hessian and BFGS updates from the passes' gradients."""
    if hessian is None:
        hessian = information(target, point.prior, source_prior, dtype=np.float32).astype(np.float64) / point.n
    passes += 1
    if point.gap == np.inf:  # not evaluated yet; but g·π = 1 in every row, so that the Hessian tells the gradient
        point = replace(point, gradient=hessian @ point.prior)
    scale, damping = np.trace(hessian) / len(hessian), 1e-12
    while point.gap > tol and passes < max_pass and damping < 1e3:
        goal = next_prior(hessian, point, damping * scale)
        if goal is None or not 0.5 < goal.sum() < 2:
            damping *= 100
            continue
        trial = evaluate(target, goal / goal.sum(), source_prior, curvature=True)
        passes += 1
        if trial.value < point.value and (trial.value < point.value - 1e-12 or trial.gap >= point.gap):
            damping = max(100 * damping, 1e-8)
            continue
        if trial.gap > tol:
            hessian = updated(rescaled(hessian, trial), trial.prior - point.prior, point.gradient - trial.gradient)
        point, damping = trial, max(damping / 10, 1e-12)
    return point, passes


def updated(hessian: Matrix, moved: Vector, bent: Vector) -> Matrix:
    """Return a Hessian after the BFGS update by a step that `moved` (K,) the prior and `bent` (K,) the gradient."""
    if moved @ bent > 1e-12 * np.linalg.norm(moved) * np.linalg.norm(bent):
        image = hessian @ moved
        directions = np.stack([bent / np.sqrt(moved @ bent), image / np.sqrt(moved @ image)])
        hessian += directions.T @ (directions * [[1.0], [-1.0]])
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
    goal = nonnegative_quadratic(damped, slope, np.diag(damped) * point.prior + point.gradient > 1)
    if goal is None:
        return None
    # a class's gradient is no line but falls like 1/(π + b), b such that slope and value are right: the step goes along
    step = goal - point.prior
    along = step / (1 - np.minimum(step * np.diag(hessian) / np.maximum(point.gradient, 1e-300), MAX_CLOSED))
    return np.where(goal > 0, point.prior + along, 0.0)


def rescaled(hessian: Matrix, point: Point) -> Matrix:
    """Return a Hessian of elsewhere with the diagonal that a pass told at `point`; what is beside it goes along."""
    assert point.curvature is not None
    positive = np.isfinite(point.curvature) & (point.curvature > 0)
    grown = np.sqrt(np.where(positive, point.curvature, 1.0) / np.where(positive, np.diag(hessian), 1.0))
    return np.asarray(hessian * grown * grown[:, None])


def nonnegative_quadratic(h: Matrix, b: Vector, free: NDArray[np.bool_]) -> Vector | None:
    """Return the minimiser of ½xᵀHx − bᵀx over x ≥ 0 by block principal pivoting [portugal1994], None if H is singular.

    `free` (K,) guesses which classes are positive.
    """
    from scipy.linalg.lapack import dposv

    best, patience = len(b) + 1, 3
    x = np.zeros(len(b))
    for _ in range(PIVOTS):
        x = np.zeros(len(b))
        if not free.any():
            return x
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
    return np.maximum(x, 0.0)
