"""NumPy specification of small.c: whole iterations of EM over rows that stay in cache, and class counts of groups."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


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


def climb(rows: Array, inverse: Array, prior: Array, answer: Array, hessian: Array, tol: float, max_pass: int) -> int:
    """Raise the likelihood from `prior` (width,), in place, by EM with squared extrapolation [varadhan2008].

    It ends at a duality gap of `tol` or after `max_pass` passes; `answer` (2 + width,) becomes the gap, the
    mean log-likelihood and its gradient (K,). If the gap is larger still, `hessian` (K, K) becomes that of the negative
    mean log-likelihood, to six digits. Return the number of passes.
    """
    k = rows.shape[1]
    ratio, p, reach = np.asarray(rows, np.float64) * inverse[:k], prior[:k], 4.0

    def evaluate(at: Array) -> tuple[Array, float, float]:
        scale = ratio @ at
        gradient = ratio.T @ (1.0 / scale) / len(ratio)
        return gradient, float(gradient.max() - 1), float(np.log(scale).mean())

    gradient, gap, value = evaluate(p)
    passes = 1
    while gap > tol and passes + 2 <= max_pass:
        once = p * gradient
        gradient, gap, least = evaluate(once)
        passes += 1
        twice = once * gradient
        if gap <= tol:
            p[:], value = once, least
            break
        r = once - p
        v = twice - once - r
        length = float(np.sqrt((r**2).sum() / max((v**2).sum(), 1e-300)))
        if length >= reach:
            length, reach = reach, 4 * reach
        length = max(1.0, length)
        p[:] = np.maximum(p + 2 * length * r + length**2 * v, 0.01 * twice)
        p /= p.sum()
        gradient, gap, value = evaluate(p)
        passes += 1
        if value < least:  # too bold
            p[:], reach = twice, 4.0
            gradient, gap, value = evaluate(p)
            passes += 1
    answer[0], answer[1], answer[2 : 2 + k] = gap, value, gradient
    if gap > tol:
        over = ratio / (ratio @ p)[:, None]
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
