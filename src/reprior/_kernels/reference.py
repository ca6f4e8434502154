"""NumPy kernels: the specification of every kernel. They trust their input; callers have checked it."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprior._kernels.small import climb, em, group_counts

__all__ = [  # what `native` offers, too
    "calibrate", "climb", "correct", "e_step", "ebls", "ebls_weights", "em", "first_bad_row", "fmapls", "fmapls_top",
    "format_rows", "group_counts", "parse_rows",
]  # fmt: skip

Array = NDArray[Any]


def e_step(block: Array, weights: Array, sums: Array, logs: int) -> float:
    """Add Σ p/s and, where `sums` has a second row, Σ (p/s)² of a block (n, K) to `sums`, s = P w; return Σ log s.

    `weights` (width,) has zeros behind; without `logs` the answer is 0. Times w these are Σ r and Σ r² of eq. 8.
    """
    block, k = np.asarray(block, np.float64), block.shape[1]
    scale = block @ weights[:k]
    inverse = 1.0 / scale
    sums[0, :k] += block.T @ inverse
    if len(sums) > 1:
        sums[1, :k] += (block * block).T @ (inverse * inverse)
    return float(np.log(scale).sum()) if logs else 0.0


# The per-sample kernels change a state, one flat vector, in place. All take `table`, one state (size,) or many
# (slots, size) with the slot of each row in `slots`; rows (n, K) or (K,). They return DONE; or the number of the
# first row that is no probability vector, with nothing changed; or REFUSED, where only `native` can be that picky.
DONE, REFUSED = -1, -2
SUM_TOLERANCE = 1e-3 + 1e-9  # twice what float16 can cost a row, and a hair more: 0.999 in floats is a little less
RUNNING, PREDICTED, OBSERVED = 0.0, 1.0, 2.0
FMAPLS_HEAD = 8  # n, ĉ, a, b, last, apart: π = a·u + b; `last` is the last predicted class, or how many labels are in d
LEAST_NUMERATOR = 1e-12
TINY = 1e-200  # above what divides by a count of next to nothing, behind the last class
LEAST_A, MOST_APART = 1e-100, 4.0  # see `fmapls_top`
LEAST_PRECISION, LEAST_NO_SHIFT = 0.01, 1e-6  # of a filter, in samples; probability, so that odds stay finite


def width(k: int) -> int:
    """Return how many numbers a vector of k takes in a state: the next multiple of eight, with zeros behind."""
    return -(-k // 8) * 8


def padded(vector: Array) -> Array:
    """Return (2, width): the vector and ones, each with zeros behind."""
    out = np.zeros((2, width(len(vector))))
    out[0, : len(vector)], out[1, : len(vector)] = vector, 1.0
    return out


def first_bad_row(rows: Array) -> int:
    """Return the number of the first row that is no probability vector, or DONE."""
    k = rows.shape[1]
    with np.errstate(invalid="ignore", over="ignore"):
        if rows.dtype == np.float32 and k <= 4096:  # six digits settle nearly all blocks, and are cheap
            near = np.abs(rows @ np.ones(k, np.float32) - 1) <= SUM_TOLERANCE / 2
            if near.all() and rows.min() >= 0:
                return DONE
        near = np.abs(rows @ np.ones(k) - 1.0) <= SUM_TOLERANCE
        if near.all() and rows.min() >= 0:
            return DONE
    return int(np.argmin(near & (rows.min(axis=1) >= 0.0)))


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
    state[2], state[3], state[5] = 1.0, 0.0, 0.0


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
        if not 0 <= last < len(r):  # Differs from hu2025: eq. 24 has no class before the first sample, so S = r
            return r
        mixed = gamma * r
        mixed[last] += 1.0 - gamma
        return np.asarray(mixed)
    if state[4] == 0.0:  # no label has arrived: the posterior stands in for it
        return r
    mixed = (1.0 - gamma) / state[4] * d + gamma * r
    d[:] = state[4] = 0.0
    return np.asarray(mixed)


def fmapls(table: Array, constants: Array, options: Array, slots: Any, rows: Array, ndim: int = 2) -> int:
    """Learn `rows` by online-fmapls with the linear surrogate; `constants` is 1/ε, padded."""
    rows = np.atleast_2d(np.asarray(rows, np.float64))
    bad = first_bad_row(rows)
    if bad >= 0:
        return bad
    k, (paper, c, gamma, delta, memory, inflow) = int(options[0]), options[1:]
    inverse, w = constants[0, :k], width(k)
    for p, state in zip(rows, each_state(table, slots, len(rows)), strict=True):
        if state[2] != 1.0 or state[3] != 0.0:
            rebase(state, k)
        n, strength = state[0], state[1]
        pi, d = state[FMAPLS_HEAD : FMAPLS_HEAD + k], state[FMAPLS_HEAD + w : FMAPLS_HEAD + w + k]
        s = posterior(p, inverse, pi)
        if gamma < 1.0:
            s = statistic(state, d, gamma, delta, s)
        if paper:
            # eq. 31; Differs from hu2025: a numerator that would be negative stops at a floor
            np.maximum(strength * pi - 1.0 + s, LEAST_NUMERATOR, out=pi)
            pi /= pi.sum()
        else:  # Differs from hu2025: the posterior's mean, not its mode, and a little inflow to every class
            total = strength + 1.0 + inflow
            pi *= strength / total
            pi += s * (1.0 / total)
            pi += inflow / k / total
        state[0] = n + 1.0
        state[1] = c / pi.max() if c > 0.0 else min(strength + 1.0, memory)  # eq. 33, or growing with the samples
    return DONE


def ebls(
    table: Array, constants: Array, options: Array, bank: Array, directions: Array, slots: Any, rows: Array,
    ndim: int = 2,
) -> int:  # fmt: skip
    """Learn `rows` by a bank of F moment-matched filters beside the hypothesis that nothing has shifted.

    `constants` are 1/ε, padded, and below it the prior that holds without shift and equal shares. `bank` (F, 5) has for
    each filter its size, its memory in samples (0: endless), whether it restarts from the filter above, its start
    weight, and whether it is centred at the prior without shift. Options: K; the weight that is shared at each sample;
    `heldout_noise`, by which a sample that a filter holds reduces the count of the next; `caution`, by which a sample
    since the last change reduces the evidence of all; the log-likelihood per sample that a fitted prior gains by
    chance; the log odds of no shift at the start. `directions` (3K + 1, D) are those of the moments (see `moments`)
    whose sums, and sums of squares, the state holds behind its filters; then come the sums of probabilities. It holds
    none if they are (0, D).
    """
    rows = np.atleast_2d(np.asarray(rows, np.float64))
    bad = first_bad_row(rows)
    if bad >= 0:
        return bad
    k, filters, w = int(options[0]), len(bank), width(int(options[0]))
    share, heldout_noise, caution, chance_gain, log_odds_start = options[1:]
    inverse, without_shift = constants[0, :k], constants[2, :k]
    size, memory, restarts, start = bank[:, :1], bank[:, 1], bank[:, 2] > 0.0, bank[:, 3]
    fades = memory > 0.0
    keep = 1.0 - 1.0 / memory[fades, None]
    inflow = (1.0 - keep) * k * size[fades] * np.where(bank[fades, 4:] > 0.0, without_shift, constants[3, :k])
    for p, state in zip(rows, each_state(table, slots, len(rows)), strict=True):
        state[0] += 1.0
        if len(directions):
            x = moments(p[None])[0] @ directions
            sums = state[2 + 3 * filters + 2 * filters * w :][: 2 * len(x)].reshape(2, -1)
            sums += x, x * x
            state[2 + 3 * filters + 2 * filters * w + 2 * len(x) :][:k] += p
        weights, behind, held = state[2 : 2 + 3 * filters].reshape(3, filters)
        m, s = state[2 + 3 * filters :][: 2 * filters * w].reshape(2, filters, w)[:, :, :k]
        r = p * inverse * m
        z, likelihood = r.sum(axis=1), (p * inverse * without_shift).sum()
        r /= z[:, None]
        mass, rest = s * m, s * (1.0 - m)  # of the class's Beta
        count = 1.0 / ((1.0 + heldout_noise * held) * (1.0 + heldout_noise * held))[:, None]
        more = s + count
        spread = r * (mass + count) * rest + (1.0 - r) * mass * (rest + count) + TINY
        m[:] = (mass + count * r) / more
        m /= m.sum(axis=1)[:, None]
        # an uncertain sample adds less than one count
        s[:] = np.maximum(more * spread / (spread + r * (1.0 - r) * (count * count) * (more + 1.0)), LEAST_PRECISION)
        evidence = float((weights * z).sum())
        since = held[~fades].min()  # samples since the last change: a filter of endless memory holds them
        # all of them count alike, and the less the more there are: t samples as t/(1 + caution·t)
        before, now = (1.0 / (1.0 + caution * t) for t in (since, since + 1.0))
        log_odds = log_odds_start + now / before * (np.log(state[1] / (1.0 - state[1])) - log_odds_start)
        log_odds += now * (np.log(likelihood / evidence) + chance_gain)
        state[1] = min(max(1.0 / (1.0 + np.exp(-log_odds)), LEAST_NO_SHIFT), 1.0 - LEAST_NO_SHIFT)
        weights[:] = (1.0 - share) / evidence * weights * z + share * start
        held += 1.0
        for j in np.flatnonzero(restarts):  # a slower filter against the next faster one
            behind[j] = max(0.0, behind[j] + np.log(z[j - 1] / z[j]))
            if behind[j] > np.log(min(memory[j], state[0]) if memory[j] else state[0]):
                m[j], s[j], behind[j], held[j] = m[j - 1], s[j - 1], 0.0, held[j - 1]
                weights[j - 1 : j + 1] = (weights[j - 1] + weights[j]) / 2.0
        if fades.any():
            total = keep * s[fades] + (1.0 - keep) * k * size[fades]
            mean = (keep * s[fades] * m[fades] + inflow) / total
            m[fades], s[fades] = mean / mean.sum(axis=1)[:, None], total
            held[fades] *= keep[:, 0]
    return DONE


def ebls_weights(state: Array, constants: Array, options: Array, share: float, out: Array) -> int:
    """Write class weights, ones, and the estimated prior (K,) of a state without labels to `out` (3, width), padded.

    The prior mixes the filters' mean with the prior that holds without shift: the filters' part is 1 − P(no shift)/P(no
    shift at the start), at least 0. The weights correct for label shift to this prior, of which `share` applies.
    `constants` are, padded, the prior without shift, ones, the part of each log class weight that is kept, the log
    class weights without shift, and the source prior. Options: K; filters; P(no shift) at the start; the least prior.
    """
    (k, filters), (no_shift_start, least) = options[:2].astype(int), options[2:]
    without_shift, _, kept, log_unshifted, source = constants[:, :k]
    mean = state[2 + 3 * filters :][: filters * width(k)].reshape(filters, -1)[:, :k]
    shifted = max(0.0, 1.0 - state[1] / no_shift_start)
    prior = without_shift + shifted * (state[2 : 2 + filters] @ mean - without_shift)
    w = np.exp(log_unshifted + share * kept * np.log(np.maximum(prior, least) / without_shift))
    out[:] = 0.0
    out[:, :k] = w / (source @ w), np.ones(k), prior
    return DONE


def moments(proba: Array) -> Array:
    """Return the moments (n, 3K + 1) of probabilities (n, K): p, √p and p² of each class, and log(1.001 − max p)."""
    n, k = proba.shape
    out = np.empty((n, 3 * k + 1), order="F")  # sums over few classes are fast in this order
    p, root, square = (out[:, j * k : (j + 1) * k] for j in range(3))
    p[:] = proba
    np.sqrt(p, out=root)
    np.multiply(p, p, out=square)
    out[:, -1] = np.log(1.001 - p.max(axis=1))
    return out


def bad_listing(indices: NDArray[Any], values: Array, k: int) -> int:
    """Return the number of the first top-k row that repeats or misses a class or is no sub-probability, or DONE."""
    ordered = np.sort(indices, axis=1)
    sums = values.sum(axis=1)
    bad = ~((values >= 0.0).all(axis=1) & (sums > 0.0) & (sums <= 1.0 + SUM_TOLERANCE))
    bad |= (ordered[:, 1:] == ordered[:, :-1]).any(axis=1) | (ordered[:, 0] < 0) | (ordered[:, -1] >= k)
    return int(np.argmax(bad)) if bad.any() else DONE


def fmapls_top(
    table: Array, constants: Array, options: Array, slots: Any, indices: NDArray[Any], values: Array, ndim: int = 2
) -> int:
    """Learn top-k rows in O(k) a sample, where ĉ does not depend on max π and γ = 1.

    What is not listed goes to the other classes in proportion to ε; they are then only scaled and raised alike, so
    π = a·u + b needs new u for listed classes alone. It is written out once every K samples, which costs O(1) each,
    and where a vanishes. A listed class may shrink against a and b, by a factor of exp(apart) at most since π was last
    written out; where that would exceed exp(MOST_APART), it is written out before, so that nothing cancels.
    """
    indices, values = np.atleast_2d(indices), np.atleast_2d(values)
    k, memory, inflow = int(options[0]), options[5], options[6]
    bad = bad_listing(indices, values, k)
    if bad >= 0:
        return bad
    inverse, period, most = constants[0], max(k, 1024), 2 * indices.shape[1] >= k
    for index, p, state in zip(indices, values, each_state(table, slots, len(values)), strict=True):
        u, strength, lift, others = state[FMAPLS_HEAD : FMAPLS_HEAD + k], state[1], inverse[index], np.ones(k, bool)
        source = max(1.0 - (1.0 / lift).sum(), TINY)
        if most:  # the others are as quickly added up as what is left by the listed
            others[index] = False
            source = (1.0 / inverse[:k][others]).sum()
        share = max(0.0, 1.0 - p.sum()) / source
        for again in (False, True):
            pi = state[2] * u[index] + state[3]
            rest = (state[2] * u[others] + state[3]).sum() if most else 1.0 - pi.sum()
            z = (p * lift * pi).sum() + share * max(rest, LEAST_NUMERATOR)
            apart = state[5] + share / (z * strength)
            if again or (apart <= MOST_APART and state[2] >= LEAST_A):
                break
            rebase(state, k, normalise=True)
        whole = 1.0 / (strength + 1.0 + inflow)
        factor, add = (strength + share / z) * whole, inflow / k * whole
        state[2], state[3], state[5] = state[2] * factor, state[3] * factor + add, apart
        u[index] = ((strength * pi + p * lift * pi / z) * whole + add - state[3]) / state[2]
        state[0] += 1.0
        state[1] = min(strength + 1.0, memory)
        if state[0] % period == 0:
            rebase(state, k, normalise=True)
    return DONE


def calibrate(constants: Array, k: int, rows: Array, out: Array, floor: float) -> int:
    """Write softmax(scale·x + bias) of each of `rows` (n, K) to `out`, each by itself, bit for bit.

    x is the row's logarithm, or that of a positive `floor` where it is less, or with a floor of 0 the row, less its
    mean. `constants` is the scale, ones and the bias, padded.
    """
    x = np.array(rows, np.float64, order="C")  # a row is added up along memory, whatever other rows there are
    if floor > 0:
        np.log(np.maximum(x, floor, out=x), out=x)
    x -= x.mean(axis=1, keepdims=True)
    x *= constants[0, :k]
    x += constants[2, :k]
    x -= x.max(axis=1)[:, None]
    np.exp(x, out=out)
    out /= out.sum(axis=1)[:, None]  # not by BLAS, whose rounding depends on the number of rows
    return DONE


def correct(weights: Array, k: int, rows: Array, out: Array, ndim: int = 2) -> int:
    """Write `rows` (n, K) reweighted by `weights` and normalised to `out` (eq. 8)."""
    bad = first_bad_row(np.atleast_2d(np.asarray(rows, np.float64)))
    if bad < 0:
        joint = np.asarray(rows, np.float64) * weights[0, :k]
        out[...] = joint / joint.sum(axis=-1, keepdims=True)
    return bad


def parse_rows(text: bytes, start: int, k: int) -> tuple[bytes, int, bool] | None:
    """Read the JSON array of arrays of `k` numbers that begins at `text[start]`.

    Return the numbers as float64, where the array ends, and whether some number has more than nine significant digits;
    None if there is anything else, or if another array follows.
    """
    try:
        rows, end = json.JSONDecoder(parse_float=Digits, parse_int=Digits).raw_decode(text[start:].decode("latin-1"))
        shaped = isinstance(rows, list) and rows and all(isinstance(row, list) and len(row) == k for row in rows)
        if not shaped or b"[" in text[start + end :] or any(type(x) is not Digits for row in rows for x in row):
            return None
        values = np.array([[float(x) for x in row] for row in rows])
    except ValueError:
        return None
    mantissas = (x.lower().split("e")[0].replace(".", "").lstrip("-0") for row in rows for x in row)
    wide = any(len(digits) > 9 for digits in mantissas)
    return (values.tobytes(), start + end, wide) if np.isfinite(values).all() else None


class Digits(str):
    """A number as it is written."""

    __slots__ = ()


def format_rows(rows: Array) -> bytes | int:
    """Return rows (n, K) of numbers between 0 and 1 as JSON text with nine significant digits; REFUSED for others."""
    if not ((rows >= 0) & (rows <= 1)).all():
        return REFUSED
    return ("[" + ",".join("[" + ",".join(f"{x:.9g}" for x in row) + "]" for row in rows.tolist()) + "]").encode()
