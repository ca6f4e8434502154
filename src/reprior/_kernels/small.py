"""NumPy specification of small.c: whole iterations of EM over rows that stay in cache, and class counts of groups."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
P = TypeVar("P", bound=Any)  # a point: `prior`, `gradient`, `value` and `gap`


def em(rows: Array, inverse: Array, prior: Array, options: Array, n_iter: int) -> int:
    """Take `n_iter` steps of EM from `prior` (width,), in place: an E-step, then an M-step linear in its counts n (K,).

    π ∝ max(a π + b n + c, floor), and 0 if not above `least`; with a positive `strength` a = strength / max π from then
    on. `options` are a, b, c, floor, least, strength; `inverse` (width,) is 1/ε.
    """
    a, b, c, floor, least, strength = options
    k = rows.shape[1]
    ratio, p = np.asarray(rows, np.float64) * inverse[:k], prior[:k]
    for _ in range(n_iter):
        p[:] = np.maximum(a * p + b * (p * (ratio.T @ (1.0 / (ratio @ p)))) + c, floor)
        p /= p.sum()
        p[p <= least] = 0.0
        if strength > 0:
            a = strength / p.max()
    return 0


def squared_em(evaluate: Callable[[Array], P], point: P, *, passes: int, tol: float, max_pass: int) -> tuple[P, int]:
    """Raise the likelihood by EM with squared extrapolation [varadhan2008], to a duality gap of `tol`.

    `evaluate` makes a point of a prior (K,), in one pass. EM is π ← π·g, g the gradient of the mean log-likelihood. Two
    EM steps are extrapolated. If that lowers the likelihood, the second step itself is taken. Return where it got, and
    the number of passes, at most about `max_pass`; `passes` were taken before.
    """
    reach = 4.0
    while point.gap > tol and passes + 2 <= max_pass:
        once = evaluate(point.prior * point.gradient)
        passes += 1
        if once.gap <= tol:
            return once, passes
        twice = once.prior * once.gradient
        first = once.prior - point.prior
        bend = twice - once.prior - first
        length = float(np.sqrt((first**2).sum() / max((bend**2).sum(), 1e-300)))
        if length >= reach:
            length, reach = reach, 4 * reach
        length = max(1.0, length)
        bold = np.maximum(point.prior + 2 * length * first + length**2 * bend, 0.01 * twice)
        point = evaluate(bold / bold.sum())
        passes += 1
        if point.value < once.value:  # too bold
            point, reach, passes = evaluate(twice), 4.0, passes + 1
    return point, passes


class Ascent(NamedTuple):
    """A prior (K,) with the gradient (K,) of its mean log-likelihood, that value, and the duality gap."""

    prior: Array
    gradient: Array
    value: float
    gap: float


def climb(rows: Array, inverse: Array, prior: Array, answer: Array, hessian: Array, tol: float, max_pass: int) -> int:
    """Raise the likelihood from `prior` (width,), in place, as `squared_em` does.

    `answer` (2 + width,) becomes the gap, the mean log-likelihood and its gradient (K,). If the gap is larger than
    `tol` still, `hessian` (K, K) becomes that of the negative mean log-likelihood, to six digits. Return the number of
    passes.
    """
    k = rows.shape[1]
    ratio = np.asarray(rows, np.float64) * inverse[:k]

    def evaluate(at: Array) -> Ascent:
        scale = ratio @ at
        gradient = ratio.T @ (1.0 / scale) / len(ratio)
        return Ascent(at, gradient, float(np.log(scale).mean()), float(gradient.max() - 1))

    point, passes = squared_em(evaluate, evaluate(prior[:k].copy()), passes=1, tol=tol, max_pass=max_pass)
    prior[:k], answer[0], answer[1], answer[2 : 2 + k] = point.prior, point.gap, point.value, point.gradient
    if point.gap > tol:
        over = ratio / (ratio @ point.prior)[:, None]
        hessian[:] = over.T @ over / len(ratio)
    return passes


def group_counts(block: Array, inverse: Array, slots: Array, weights: Array, sums: Array, logs: Array) -> int:
    """Add l/s and (l/s)² of each row to its group's `sums` (G, 2, width), log s to `logs` (G,); l = p/ε, s = l·w."""
    k = block.shape[1]
    rows = np.asarray(block, np.float64) * inverse[:k]
    scale = np.einsum("ij,ij->i", rows, weights[slots, :k])
    rows /= scale[:, None]
    np.add.at(sums[:, 0, :k], slots, rows)
    np.add.at(sums[:, 1, :k], slots, rows * rows)
    np.add.at(logs, slots, np.log(scale))
    return 0
