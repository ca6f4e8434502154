"""NumPy kernels: the specification of every kernel. They trust their input; callers have checked it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def e_step(block: Array, weights: Array) -> tuple[Array, Array]:
    """Return expected class counts (K,) of a block (n, K) and the row normalisers s = P w (n,): eq. 8 and its sum."""
    scale = block @ weights
    return weights * (block.T @ (1.0 / scale)), scale


def e_step_squares(block: Array, weights: Array) -> tuple[Array, Array, Array]:
    """As `e_step`, with the sums of squared responsibilities (K,) in between."""
    scale = block @ weights
    inverse = 1.0 / scale
    counts = weights * (block.T @ inverse)
    squares = weights**2 * ((block * block).T @ (inverse * inverse))
    return counts, squares, scale


# The per-sample kernels change a state, one flat vector, in place. All take `table`, one state (size,) or many
# (slots, size) with the slot of each row in `slots`; rows (n, K) or (K,). They return DONE; or the number of the
# first row that is no probability vector, with nothing changed; or REFUSED, where only `native` can be that picky.
DONE, REFUSED = -1, -2
SUM_TOLERANCE = 1e-3
RUNNING, PREDICTED, OBSERVED = 0.0, 1.0, 2.0
FMAPLS_HEAD = 5  # n, ĉ, a, b, last: π = a·u + b; `last` is the last predicted class, or the count of labels in d
LEAST_NUMERATOR = 1e-12
TINY = 1e-300


def first_bad_row(rows: Array) -> int:
    """Return the number of the first row that is no probability vector, or DONE."""
    with np.errstate(invalid="ignore", over="ignore"):
        bad = ~((np.abs(rows.sum(axis=1) - 1.0) <= SUM_TOLERANCE) & (rows.min(axis=1) >= 0.0))
    return int(np.argmax(bad)) if bad.any() else DONE


def each_state(table: Array, slots: NDArray[np.intp] | None, n: int) -> Any:
    """Return the state of each of n rows."""
    return [table] * n if slots is None else (table[slot] for slot in slots)


def rebase(state: Array, k: int, *, normalise: bool = False) -> None:
    """Write π = a·u + b out, so that a = 1 and b = 0."""
    pi = state[FMAPLS_HEAD : FMAPLS_HEAD + k]
    pi *= state[2]
    pi += state[3]
    if normalise:
        pi /= pi.sum()
    state[2], state[3] = 1.0, 0.0


def posterior(p: Array, inverse: Array, pi: Array) -> Array:
    """Return one sample's posterior (K,) under the prior π: eq. 8, B π in the paper."""
    joint = p * inverse * pi
    return np.asarray(joint / joint.sum())


def statistic(state: Array, d: Array, gamma: float, delta: float, r: Array) -> Array:
    """Return S of eq. 24 (K,) from the sample's posterior `r`, and remember what the next one needs."""
    if delta == RUNNING:
        d[:] = (1.0 - gamma) * d + gamma * r
        return d
    if delta == PREDICTED:
        last, state[4] = int(state[4]), float(np.argmax(r))
        if last < 0:
            return r
        mixed = gamma * r
        mixed[last] += 1.0 - gamma
        return np.asarray(mixed)
    if state[4] == 0.0:  # no label has arrived: the posterior stands in for it
        return r
    mixed = (1.0 - gamma) / state[4] * d + gamma * r
    d[:] = state[4] = 0.0
    return np.asarray(mixed)


def fmapls(table: Array, slots: Any, inverse: Array, options: Array, rows: Array) -> int:
    """Learn `rows` by online-fmapls with the linear surrogate; `inverse` is 1/ε (K,)."""
    rows = np.atleast_2d(np.asarray(rows, np.float64))
    bad = first_bad_row(rows)
    if bad >= 0:
        return bad
    k = len(inverse)
    paper, c, gamma, delta, memory, inflow = options
    for p, state in zip(rows, each_state(table, slots, len(rows)), strict=True):
        if state[2] != 1.0 or state[3] != 0.0:
            rebase(state, k)
        n, strength = state[0], state[1]
        pi, d = state[FMAPLS_HEAD : FMAPLS_HEAD + k], state[FMAPLS_HEAD + k : FMAPLS_HEAD + 2 * k]
        s = posterior(p, inverse, pi)
        if gamma < 1.0:
            s = statistic(state, d, gamma, delta, s)
        if paper:
            np.maximum(strength * pi - 1.0 + s, LEAST_NUMERATOR, out=pi)  # eq. 31, with the floor it needs
            pi /= pi.sum()
        else:  # Differs from hu2025: the posterior's mean, not its mode, and a little inflow to every class
            total = strength + 1.0 + inflow
            pi *= strength / total
            pi += s * (1.0 / total)
            pi += inflow / k / total
        state[0] = n + 1.0
        state[1] = c / pi.max() if c > 0.0 else min(strength + 1.0, memory)  # eq. 33, or growing with the samples
    return DONE


def ebls(table: Array, slots: Any, inverse: Array, bank: Array, share: float, rows: Array) -> int:
    """Learn `rows` by the bank of moment-matched filters; bank (F, 4): a, memory (0 = endless), competes, w0."""
    rows = np.atleast_2d(np.asarray(rows, np.float64))
    bad = first_bad_row(rows)
    if bad >= 0:
        return bad
    k, filters = len(inverse), len(bank)
    a, memory, competes, start = bank[:, :1], bank[:, 1], bank[:, 2] > 0.0, np.append(bank[:, 3], 1 - bank[:, 3].sum())
    fades = memory > 0.0
    keep = 1.0 - 1.0 / memory[fades, None]
    for p, state in zip(rows, each_state(table, slots, len(rows)), strict=True):
        state[0] += 1.0
        weights, behind = state[1 : filters + 2], state[filters + 2 : 2 * filters + 2]
        m, s = state[2 * filters + 2 :].reshape(2, filters, k)
        r = p * inverse * m
        z = r.sum(axis=1)
        r /= z[:, None]
        mass, rest = s * m, s * (1.0 - m)  # of the class's Beta
        spread = r * (mass + 1.0) * rest + (1.0 - r) * mass * (rest + 1.0) + TINY
        m[:] = (mass + r) / (s + 1.0)
        m /= m.sum(axis=1)[:, None]
        # an uncertain sample adds less than one count
        s[:] = np.maximum((s + 1.0) * spread / (spread + r * (1.0 - r) * (s + 2.0)), 0.01)
        weights *= np.append(z, p.sum())
        weights *= (1.0 - share) / weights.sum()
        weights += share * start
        for j in np.flatnonzero(competes):  # a slower filter against the next faster one
            behind[j] = max(0.0, behind[j] + np.log(z[j - 1] / z[j]))
            if behind[j] > np.log(10.0 * (min(memory[j], state[0]) if memory[j] else state[0])):
                m[j], s[j], behind[j] = m[j - 1], s[j - 1], 0.0
                weights[j - 1 : j + 1] = (weights[j - 1] + weights[j]) / 2.0
        if fades.any():
            total = keep * s[fades] + (1.0 - keep) * k * a[fades]
            mean = (keep * s[fades] * m[fades] + (1.0 - keep) * a[fades]) / total
            m[fades], s[fades] = mean / mean.sum(axis=1)[:, None], total
    return DONE
