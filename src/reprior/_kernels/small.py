"""NumPy specification of small.c: whole iterations over rows that stay in cache, and the groups' model.

A group's expected counts λ = N π have a prior that is a mixture of components c: independent gammas of shape α_c (K,)
and rate Σα_c/N, given their sum, that is Dirichlet(α_c). Labels are filled in, not seen, so counts n at the
belief w (their λ) enter as Poisson pseudo-data (x, e) that have the slope and the curvature of the likelihood there.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
LEAST_BELIEF = 1e-200


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


def weigh(
    rows: Array, inverse: Array, alpha: Array, modes: Array, counts: Array, spread: Array, tail: Array, each: float,
    tol: float, n_iter: int, single: bool,
) -> int:  # fmt: skip
    """Move `modes` (C, K) to the most likely shares under Dirichlet priors `alpha` (C, K), by `ascend`; write Σ r there
    to `counts` (C, K), and of H = diag(α) + each·RᵀR, scaled by 1/√(α + each·counts) on both sides, the diagonal of the
    inverse to `spread` (C, K). `tail` (C, 4) becomes Σ log s, log det H, the passes and whether `tol` was reached.
    `inverse` (width,) is 1/ε. With `single` RᵀR may be made in single precision, but for its diagonal, which tells ten
    digits of both.
    """
    ratio = np.asarray(rows, np.float64) * inverse[: rows.shape[1]]
    modes[:], tail[:, 2], tail[:, 3] = ascend(ratio, alpha, each, modes, ratio[:0], np.empty(0), tol=tol, n_iter=n_iter)
    for c, (strength, pi) in enumerate(zip(alpha, modes, strict=True)):
        likelihood = ratio @ pi
        counts[c] = pi * ((1 / likelihood) @ ratio)
        scale = 1 / np.sqrt(strength + each * counts[c])
        tail[c, 0] = np.log(likelihood).sum()
        tail[c, 1], spread[c] = curvature(ratio / likelihood[:, None], pi * scale, strength * scale**2 + 1e-12, each)
    return 0


def ascend(
    rows: Array, alpha: Array, each: float, start: Array, chosen: Array, factors: Array, *, tol: float, n_iter: int
) -> tuple[Array, Array, Array]:
    """Return the most likely shares (C, K) under Dirichlet priors `alpha` (C, K) by EM with squared extrapolation, from
    `start` (C, K), of rows L (n, K) that count `each`; the passes of each (C,), and whether it came to rest (C,).

    `chosen` rows (m, K) count by `factors` (m,). Where those are negative, what they take away divides instead.
    """
    gain, loss = np.maximum(factors, 0), np.maximum(-factors, 0)
    total = alpha.sum(axis=1, keepdims=True) + each * len(rows) + factors.sum()
    found, passes, rest = start.copy(), np.zeros(len(alpha), int), np.zeros(len(alpha), bool)
    going = np.arange(len(alpha))

    def step(modes: Array) -> Array:
        scale = rows @ modes.T.astype(rows.dtype)
        new = alpha[going] + each * modes * (np.reciprocal(scale, out=scale).T @ rows)
        if len(factors):
            inverse = 1 / (chosen @ modes.T)
            new = new + modes * ((inverse * gain[:, None]).T @ chosen)
            new = new / (total[going] + (inverse * loss[:, None]).T @ chosen)
        return np.asarray(new / new.sum(axis=1, keepdims=True))

    modes = found
    for taken in range(2, max(n_iter, 2) + 1, 3):
        first = step(modes)
        second = step(first)
        passes[going] = taken
        still = np.abs(second - first).sum(axis=1) < tol
        if still.any():
            found[going[still]], rest[going[still]] = second[still], True
            going, modes, first, second = going[~still], modes[~still], first[~still], second[~still]
            if not len(going):
                break
        a, b, c = np.log(modes), np.log(first), np.log(second)
        rise, bend = b - a, c - 2 * b + a
        length = np.sqrt((second * rise**2).sum(axis=1) / np.maximum((second * bend**2).sum(axis=1), 1e-300))
        length = np.clip(length, 1.0, 30.0)[:, None]
        leap = np.clip(a + 2 * length * rise + length**2 * bend, c - 2, c + 2)  # no class is thrown out of sight
        leap = np.exp(leap - leap.max(axis=1, keepdims=True))
        modes = step(leap / leap.sum(axis=1, keepdims=True))
        found[going], passes[going] = modes, taken + 1
    return found, passes, rest


def curvature(
    rows: Array, by: Array, diagonal: Array, each: float, extra: tuple[Array, Array] | None = None
) -> tuple[float, Array]:
    """Return log det H, and the diagonal (K,) of its inverse, for H = diag(`diagonal`) + each·RᵀR, R = `rows` (n, K)
    times `by` (K,).

    `extra` rows (m, K) count by factors (m,), which may be negative. Where there are fewer rows than classes, by the
    n×n matrix that Woodbury's identity leaves. Negative factors are left out there, and where they leave no maximum.
    """
    from scipy.linalg.lapack import dpotrf, dtrtri

    n, k = rows.shape
    if n >= k:
        hessian = (rows.T @ rows) * (each * by)
        hessian *= by[:, None]
        hessian.flat[:: k + 1] += diagonal
        if extra is not None:
            hessian += (extra[0] * extra[1][:, None]).T @ extra[0]
        half, failed = dpotrf(hessian, lower=True, overwrite_a=True)  # a third of a general inverse's price
        if failed and extra is not None and (extra[1] < 0).any():
            return curvature(rows, by, diagonal, each, (extra[0], np.maximum(extra[1], 0)))
        size = 2 * float(np.log(np.diag(half)).sum())
        root, _ = dtrtri(half, lower=True, overwrite_c=True)
        return size, np.einsum("ij,ij->j", root, root)
    scaled = rows * (by * np.sqrt(each / diagonal))
    if extra is not None:
        scaled = np.concatenate([scaled, extra[0] * np.sqrt(np.maximum(extra[1], 0)[:, None] / diagonal)])
        n = len(scaled)
    inner = scaled @ scaled.T
    inner.flat[:: n + 1] += 1.0
    half = np.linalg.cholesky(inner)
    spread = np.linalg.solve(half, scaled)
    size = float(np.log(diagonal).sum()) + 2 * float(np.log(np.diag(half)).sum())
    return size, np.maximum(1 - (spread**2).sum(axis=0), 1e-12) / diagonal


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


def group_step(
    k: int, n: Array, sums: Array, alpha: Array, terms: Array,
    belief: Array, prior: Array, variance: Array, counts: Array, member: Array, tail: Array, unsure: float,
) -> int:  # fmt: skip
    """Take one M-step of all groups of `n` (G,) rows from the sums of an E-step at `belief`; change the rest in place.

    `alpha` (C, width) are the components, `terms` (C, 3) their strength s = Σα, log weight and Σ log Γ(α) − log Γ(s).
    `belief`, `prior`, `variance` and `counts` are (G, width), `member` (G, C) each component's posterior weight, and
    `tail` (G, 3) the log evidence without that of the rows themselves, and two numbers that are left alone. For the
    classifier's error, which is not less in more rows, n rows count as n/(1 + `unsure`·n).
    """
    from scipy.special import digamma, gammaln

    rows, b = n[:, None], belief[:, :k]
    temper = 1 / (1 + unsure * rows)
    w, count = b * rows, b * sums[:, 0, :k]
    worth = np.clip(b * b * sums[:, 1, :k] / np.maximum(count, 1e-300), 1e-12, 1.0)
    above = count >= w
    x = temper * np.where(above, count - (1 - worth) * w, worth * count)
    e = temper * np.where(above, worth, 1 - (1 - worth) * count / np.maximum(w, 1e-300))
    seen, exposed = x.sum(axis=1), (e * b).sum(axis=1)
    for c, (strength, log_weight, log_gamma) in enumerate(terms):
        shape, whole, rate = x + alpha[c, :k], seen + strength, strength / n
        inside = (gammaln(shape) - shape * np.log(e + rate[:, None])).sum(axis=1)
        # given the number of rows, which says nothing: a total that could vary would make groups look alike
        total = gammaln(whole) - whole * np.log(exposed + rate)
        member[:, c] = inside - total - log_gamma + log_weight
    top = member.max(axis=1)
    np.exp(member - top[:, None], out=member)
    whole = member.sum(axis=1)
    member /= whole[:, None]
    mean, geometric, first, second = np.zeros((4, *x.shape))
    for c, (strength, _, _) in enumerate(terms):
        a, rate, q = alpha[c, :k], strength / rows, member[:, c, None]
        mean += q / (temper + rate) * (temper * count + a)
        geometric += q / (temper + rate) * np.exp(digamma(temper * count + a))
        at = (x + a) / (e + rate)
        first += q * at
        second += q * at * (at + 1 / (e + rate))
    p = mean / mean.sum(axis=1)[:, None]
    expected = p * rows
    tail[:, 0] = top + np.log(whole) - (x * np.log(np.maximum(expected, 1e-300)) - e * expected).sum(axis=1)
    prior[:, :k], counts[:, :k] = p, count
    belief[:, :k] = np.maximum(geometric / geometric.sum(axis=1)[:, None], LEAST_BELIEF)
    variance[:, :k] = (second - first * first) / (rows * rows) * (1 - p)
    return 0


def group_fit(
    rows: Array, inverse: Array, order: Array, starts: Array, alpha: Array, terms: Array,
    belief: Array, prior: Array, variance: Array, counts: Array, member: Array, tail: Array, n_iter: int, tol: float,
    unsure: float,
) -> int:  # fmt: skip
    """Iterate E-step and `group_step` for each group from `belief` until its prior moves by less than `tol`.

    Group g has the rows `order[starts[g]:starts[g + 1]]`, at least one; `inverse` (width,) is 1/ε. `tail` (G, 3)
    becomes the log evidence, the log-likelihood at the prior and the last change.
    Return how many groups are still moving.
    """
    k, n = rows.shape[1], np.diff(starts).astype(np.float64)
    slots = np.repeat(np.arange(len(n)), np.diff(starts))
    prior[:] = belief
    going = np.arange(len(n))
    for _ in range(n_iter):
        some = np.isin(slots, going)
        local = np.searchsorted(going, slots[some])
        sums, logs = np.zeros((len(going), 2, belief.shape[1])), np.zeros(len(going))
        group_counts(rows[order[some]], inverse, local, belief[going], sums, logs)
        parts = [a[going] for a in (belief, prior, variance, counts, member, tail)]
        belief_g, prior_g, *rest = parts
        group_step(k, n[going], sums, alpha, terms, belief_g, prior_g, rest[0], rest[1], rest[2], rest[3], unsure)
        moved = np.abs(parts[1] - prior[going]).sum(axis=1)
        for a, part in zip((belief, prior, variance, counts, member, tail), parts, strict=True):
            a[going] = part
        tail[going, 2] = moved
        going = going[moved >= tol]
        if not len(going):
            break
    logs, unused = np.zeros(len(n)), np.zeros((len(n), 2, belief.shape[1]))
    group_counts(rows[order], inverse, slots, prior, unused, logs)
    tail[:, 1] = logs
    tail[:, 0] += logs / (1 + unsure * n)
    return len(going)
