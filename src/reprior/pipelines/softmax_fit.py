"""Newton's method for the scale and the biases of softmax(scale·x + bias), whatever the number of classes.

The curvature in the biases is diag(Σ_i p_i) − PᵀP + ridge, with P (n, K) the softmax of all rows. Up to `LARGE` classes
it is a matrix. Beyond, it is never formed: P alone is kept, in single precision, conjugate gradients solve with it, and
Lanczos' method estimates its determinant. A Newton step then costs n·K instead of n·K² + K³.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reprior._types import Labels, Matrix, Vector
from reprior.rows.calibrated import softmax
from reprior.rows.passes import row_blocks

SCALE_BOUNDS = (0.01, 100.0)  # where every held-out row is right, the likelihood alone would ask for an infinite scale
LARGE = 600  # classes; up to here n·K² costs less than the gradients of the many steps that it saves
BLOCK = 1 << 16  # numbers that stay in cache from the first look at them to the last
NEWTON_STEPS = 100  # at most; ten are many
MIN_GAIN, MIN_GAIN_DIAGONAL = 1e-11, 1e-6  # nats per row that a step is predicted to gain: with a matrix, without
CG_STEPS, CG_TOLERANCE = 50, 1e-2  # of a Newton step: a residual of one hundredth leaves it superlinear
SOLVED_RESIDUAL = 1e-4  # residual of a solution that is itself an answer
PROBES, LANCZOS = 8, 10  # random vectors, and steps from each: the log-determinant is then within a nat or two


@dataclass(frozen=True, slots=True)
class Profile:
    """How biases follow one scale: by −`follow` (K,) per unit. `scale_precision` is the curvature in the scale along
    these biases, and `log_determinant` is of the curvature in the biases."""

    scale_precision: float
    follow: Vector
    log_determinant: float


@dataclass(frozen=True, slots=True)
class DenseCurvature:
    """The curvature as a matrix (p, p)."""

    matrix: Matrix

    def plus(self, pull: Vector) -> DenseCurvature:
        """Return the curvature with that of a penalty (p,)."""
        matrix = self.matrix.copy()
        matrix.flat[:: len(pull) + 1] += pull
        return DenseCurvature(matrix)

    def step(self, gradient: Vector, moving: Any) -> Vector:
        """Return the Newton step (p,); parameters that are not `moving` (p,) stay."""
        if moving.all():
            return np.asarray(np.linalg.solve(self.matrix, -gradient), np.float64)
        step = np.zeros_like(gradient)
        step[moving] = np.linalg.solve(self.matrix[moving][:, moving], -gradient[moving])
        return step

    def profile(self) -> Profile:
        """Return the curvature of one scale along which the biases follow."""
        across = np.asarray(self.matrix[0, 1:], np.float64)
        follow = np.asarray(np.linalg.solve(self.matrix[1:, 1:], across), np.float64)
        log_determinant = float(np.linalg.slogdet(self.matrix[1:, 1:])[1])
        return Profile(float(self.matrix[0, 0] - follow @ across), follow, log_determinant)


@dataclass(frozen=True, slots=True)
class RowCurvature:
    """The curvature of one scale and K biases: `corner` of the scale, `across` (K,) of both, and of the biases
    diag(`column_sums`) − PᵀP + `ridge`, with P (n, K) in `rows` and `squares` (K,) the diagonal of PᵀP."""

    corner: float
    across: Vector
    rows: Matrix
    column_sums: Vector
    squares: Vector
    ridge: float

    def plus(self, pull: Vector) -> RowCurvature:
        """Return the curvature with that of a penalty (p,), equal for all biases."""
        return replace(self, corner=self.corner + float(pull[0]), ridge=self.ridge + float(pull[-1]))

    def times(self, v: Matrix) -> Matrix:
        """Return the curvature of the biases times vectors (K, m)."""
        single, product = v.astype(self.rows.dtype), np.zeros_like(v)
        for part in row_blocks(*self.rows.shape):
            block = self.rows[part]
            product += block.T @ (block @ single)
        return (self.column_sums + self.ridge)[:, None] * v - product

    def inverse(self, b: Matrix, tolerance: float) -> Matrix:
        """Return the inverse of the biases' curvature times vectors (K, m), by preconditioned conjugate gradients."""
        scale = (self.column_sums - self.squares + self.ridge)[:, None]
        x, residual = np.zeros_like(b), b.copy()
        direction = preconditioned = residual / scale
        size = first = (residual * preconditioned).sum(axis=0)
        for _ in range(CG_STEPS):
            if (size <= tolerance**2 * first).all():
                break
            image = self.times(direction)
            length = size / np.maximum((direction * image).sum(axis=0), 1e-300)
            x, residual = x + length * direction, residual - length * image
            preconditioned = residual / scale
            size, before = (residual * preconditioned).sum(axis=0), size
            direction = preconditioned + size / np.maximum(before, 1e-300) * direction
        return x

    def step(self, gradient: Vector, moving: Any) -> Vector:
        """Return the Newton step (p,); parameters that are not `moving` (p,) stay."""
        by_bias, follow = self.inverse(np.stack([-gradient[1:], self.across], axis=1), CG_TOLERANCE).T
        scale = 0.0
        if moving[0]:
            scale = (-gradient[0] - self.across @ by_bias) / max(self.corner - self.across @ follow, 1e-300)
        return np.append(scale, by_bias - scale * follow)

    def profile(self) -> Profile:
        """Return the curvature of one scale along which the biases follow."""
        follow = np.asarray(self.inverse(self.across[:, None], SOLVED_RESIDUAL)[:, 0], np.float64)
        precision = float(self.corner - follow @ self.across)
        return Profile(precision, follow, self.log_determinant() if len(follow) else 0.0)

    def log_determinant(self) -> float:
        """Return the log-determinant of the biases' curvature B.

        B·1 = ridge·1, because rows of P sum to one: B + c·11ᵀ has (ridge + cK)/ridge times its determinant. With c the
        mean of PᵀP beside its diagonal, what is left beside the diagonal of B + c·11ᵀ is small; the logarithm of that
        matrix, scaled to a diagonal of ones, has a trace that random signs estimate [ubaru2017].
        """
        k, own = len(self.column_sums), self.column_sums - self.squares
        c = own.sum() / (k * (k - 1))
        diagonal = own + self.ridge + c
        root = np.sqrt(diagonal)[:, None]
        signs = np.empty((k, PROBES))  # by the order of the diagonal: the order of the classes does not matter
        signs[np.argsort(diagonal, kind="stable")] = np.random.default_rng(0).choice([-1.0, 1.0], (k, PROBES))

        def times(v: Matrix) -> Matrix:
            inner = v / root
            return np.asarray((self.times(inner) + c * inner.sum(axis=0)) / root)

        trace = float(np.mean(log_quadratic_forms(times, signs)))
        return float(np.log(diagonal).sum()) + trace + float(np.log(self.ridge) - np.log(self.ridge + c * k))


Curvature = DenseCurvature | RowCurvature  # second derivatives of the loss at a point, by scale and biases


def log_quadratic_forms(times: Any, starts: Matrix) -> Vector:
    """Return vᵀ log(M) v of each start v (K, m), for M near the identity, by `LANCZOS` steps of Gauss quadrature."""
    size = (starts**2).sum(axis=0)
    last, now = np.zeros_like(starts), starts / np.sqrt(size)
    diagonal, beside = np.zeros((LANCZOS, starts.shape[1])), np.zeros((LANCZOS, starts.shape[1]))
    for at in range(LANCZOS):
        image = times(now) - (beside[at - 1] if at else 0.0) * last
        diagonal[at] = (now * image).sum(axis=0)
        image -= diagonal[at] * now
        beside[at] = np.sqrt((image**2).sum(axis=0))
        last, now = now, image / np.maximum(beside[at], 1e-30)
    out = np.empty(len(size))
    for probe in range(len(size)):
        alone = np.flatnonzero(beside[:, probe] < 1e-5)  # the Krylov space is exhausted: what follows is rounding
        depth = int(alone[0]) + 1 if len(alone) else LANCZOS
        off = beside[: depth - 1, probe]
        values, vectors = np.linalg.eigh(np.diag(diagonal[:depth, probe]) + np.diag(off, 1) + np.diag(off, -1))
        out[probe] = size[probe] * (vectors[0] ** 2 @ np.log(np.maximum(values, 1e-6)))
    return out


@dataclass(frozen=True, slots=True)
class Point:
    """A loss at `theta` (p,): its `value`, `gradient` (p,) and `curvature`."""

    theta: Vector
    value: float
    gradient: Vector
    curvature: Curvature


@dataclass(frozen=True, slots=True)
class Penalty:
    """½ Σ pull·(θ − centre)² of parameters (p,)."""

    pull: Vector
    centre: Vector

    def added(self, point: Point) -> Point:
        """Return the loss with the penalty."""
        away = point.theta - self.centre
        value, gradient = point.value + 0.5 * float(self.pull @ away**2), point.gradient + self.pull * away
        return Point(point.theta, value, gradient, point.curvature.plus(self.pull))


class SoftmaxLoss:
    """−Σ log softmax(scale·x + bias + offset)[y] of θ = (scale, bias), with 1 or K scales and 0 or K biases."""

    def __init__(
        self, x: Matrix, labels: Labels, n_scales: int, n_biases: int, *, offset: Vector | float = 0.0
    ) -> None:
        (n, k), self.offset, self.n_scales, self.n_biases = x.shape, offset, n_scales, n_biases
        self.by_rows = n_scales == 1 and k > LARGE  # keep the curvature as rows
        self.x = x if self.by_rows else np.asfortranarray(x)  # sums over few classes are fast in this order
        self.statistics = np.empty((n, 0 if self.by_rows else n_scales + k), order="F")  # Σ_j p x, or p x, and p
        self.rows = np.empty_like(self.x) if self.by_rows else self.statistics[:, n_scales:]
        self.weighted = np.empty((0, 0)) if self.by_rows else np.empty_like(self.x)
        own = x[np.arange(n), labels].astype(np.float64)
        moments = np.bincount(labels, weights=own, minlength=k) if n_scales == k else np.array([own.sum()])
        self.target = np.concatenate([moments, np.bincount(labels, minlength=k)[:n_biases]])

    def blocks(self) -> Iterator[slice]:
        n, k = self.x.shape
        return row_blocks(n, k, BLOCK) if k > LARGE else iter([slice(n)])

    def at(self, theta: Vector) -> Point:
        """Return the loss at θ, and leave the softmax in `rows`."""
        scale, total = theta[: self.n_scales].astype(self.x.dtype), 0.0
        shift = np.asarray(self.offset + theta[self.n_scales :] if self.n_biases else self.offset, self.x.dtype)
        for part in self.blocks():
            block = self.rows[part]
            np.multiply(self.x[part], scale, out=block)
            np.add(block, shift, out=block)
            total += float(softmax(block).sum(dtype=np.float64))
        moment, curvature = self.by_row_sums() if self.by_rows else self.by_products()
        return Point(theta, float(total - theta @ self.target), moment - self.target, curvature)

    @property
    def jitter(self) -> float:
        """A curvature for directions that have none: a shift of all biases, a class that no row resembles."""
        return 1e-10 * len(self.x)

    def by_row_sums(self) -> tuple[Vector, RowCurvature]:
        """Return Σ over rows of what is expected of θ's statistics, and the curvature as rows."""
        n, k = self.x.shape
        own, first, column_sums, squares, second = np.empty(n), np.zeros(k), np.zeros(k), np.zeros(k), 0.0
        for part in self.blocks():
            p, x = self.rows[part], self.x[part]
            weighted = p * x
            own[part] = weighted.sum(axis=1)
            first += weighted.sum(axis=0)
            column_sums += p.sum(axis=0)
            squares += np.einsum("ij,ij->j", p, p)
            second += float(np.einsum("ij,ij->", weighted, x))
        biases = slice(self.n_biases)  # all, or none
        across = (first - own.astype(self.rows.dtype) @ self.rows)[biases]
        corner = second - float(own @ own) + self.jitter
        curvature = RowCurvature(corner, across, self.rows, column_sums[biases], squares[biases], self.jitter)
        return np.append(own.sum(), column_sums[biases]), curvature

    def by_products(self) -> tuple[Vector, DenseCurvature]:
        """Return Σ over rows of what is expected of θ's statistics, and the curvature as a matrix."""
        x, s, p, b = self.x, self.n_scales, len(self.target), self.n_biases
        statistics, ones = self.statistics[:, :p], np.ones(len(x))
        weighted = np.multiply(x, self.rows, out=self.weighted)
        expected = ones @ weighted
        statistics[:, :s] = weighted.sum(axis=1, keepdims=True) if s == 1 else weighted
        second = ones @ np.multiply(weighted, x, out=weighted)
        second = second.sum(keepdims=True) if s == 1 else second
        moment, square = ones @ statistics, -(statistics.T @ statistics)
        square.flat[:: p + 1] += np.concatenate([second, moment[s:]]) + self.jitter
        if b:
            scale, bias = np.arange(b) % s, np.arange(s, p)  # of each class
            square[scale, bias] += expected
            square[bias, scale] += expected
        return moment, DenseCurvature(square)


def minimum(loss: SoftmaxLoss, start: Point, penalty: Penalty) -> tuple[Point, Point]:
    """Return the loss, without and with a penalty, where their sum is least: a convex function, by Newton's method.

    A step is halved until the sum decreases. Scales stay within `SCALE_BOUNDS`.
    """
    point, (low, high), scales, moving = start, SCALE_BOUNDS, slice(loss.n_scales), np.ones(len(start.theta), bool)
    min_decrease = (MIN_GAIN_DIAGONAL if loss.by_rows else MIN_GAIN) * len(loss.x)
    penalised = penalty.added(point)
    for _ in range(NEWTON_STEPS):
        inside = np.where(penalised.gradient[scales] > 0, point.theta[scales] > low, point.theta[scales] < high)
        moving[scales] = inside  # a scale at its bound stays if the loss falls beyond it
        step = penalised.curvature.step(penalised.gradient, moving)
        predicted_decrease = float(-penalised.gradient @ step)
        while predicted_decrease >= min_decrease:
            theta = point.theta + step
            theta[scales] = np.minimum(np.maximum(theta[scales], low), high)
            trial = loss.at(theta)
            penalised_trial = penalty.added(trial)
            if penalised_trial.value <= penalised.value - 1e-4 * predicted_decrease:
                break
            step, predicted_decrease = 0.5 * step, 0.5 * predicted_decrease
        else:
            break  # rounding leaves nothing to gain
        point, penalised = trial, penalised_trial
    return point, penalised
