"""Betting test for label shift: the mathematics of the alarm.

A bet is a function of one sample's predicted probabilities whose mean over the reference samples is 1. The wealth is
the product of a bet over all samples. Under no shift the wealth is a supermartingale, so it reaches A with probability
at most 1/A, at whatever time one looks (Ville; [shin2023] for the mode "monitor"). The mean is only estimated, so each
bet is divided by a margin for the error of that estimate. The stakes are spread over two kinds of bets. Bets on the
prior that a stream has learned find any shift, but need a margin against all directions at once, up to √K standard
errors. Bets on one class at a time need a margin of about five standard errors.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from reprior._check import check_choice, check_number, check_prior
from reprior._types import Labels, Matrix, Vector
from reprior.state import refuse, take

MODES = ("monitor", "ever")
BOLDNESS = np.array([1.0, 0.5, 0.25])  # how far towards the stream's prior to bet: a timid bet needs less margin
# Log gain above its lowest value up to which a bet has not begun to gain. A bet on a prior near the mean stays flat for
# thousands of samples, and a small gain by chance would date the shift back to it. Shifts after 3,000 samples, 220
# streams: at 0.01 two are dated back by more than 2,800 samples, at 0.1 to 0.5 none by more than 240.
FLAT = 0.3
FACTORS = np.array([0.5, 0.75, 1.5, 4.0])  # by which a bet on one class multiplies its share


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of an `Alarm` after `n` samples; true if the alarm is raised.

    `evidence` is the logarithm of the test statistic now; the alarm is raised at `threshold`. `raised_at` is the sample
    at which that first happened, and `since` the sample from which the evidence grew. `classes` are the column indices
    of the classes that changed most by then, and `names` their names. `raised_time` and `since_time` are the times of
    both samples, if you passed times.
    """

    n: int
    evidence: float
    threshold: float
    raised_at: int | None = None
    since: int | None = None
    classes: tuple[int, ...] = ()
    names: tuple[str, ...] = ()
    raised_time: float | None = None
    since_time: float | None = None

    def __bool__(self) -> bool:
        return self.raised_at is not None


@dataclass(frozen=True)
class Plan:
    """The fixed part of a test: the `mean` (K,) of the reference rows, the margins for it, and how the stake is spread.

    The class bets (F, K) are 1 + slope·(p/mean − 1), divided by `price`. A bet with weights 1 + d on the classes pays
    √(Σ d²·spread).
    """

    mean: Vector
    spread: Vector
    price: Matrix
    log_threshold: float
    forgets: bool

    @cached_property
    def slope(self) -> Matrix:
        """The slopes (F, K) of the class bets."""
        return slopes(self.mean)

    @cached_property
    def log_share(self) -> Vector:
        """The logarithm of each bet's share of the stake at the start (3 + F·K,)."""
        of_class = np.tile(0.5 * class_shares(self.mean) / len(FACTORS), len(FACTORS))
        return np.asarray(np.log(np.concatenate([np.full(len(BOLDNESS), 0.5 / len(BOLDNESS)), of_class])))


@dataclass(frozen=True, slots=True)
class BettingState:
    """The part of a test that changes with samples.

    `gain` is the log gain of each bet (3 + F·K,), and `lowest` its lowest value so far. `lowest_at` is the number of
    samples after which it was last there (within FLAT), and `lowest_time` the time of the next sample, NaN if unknown.
    `stream_prior` is the prior that is bet on, None before the first sample.
    """

    gain: Vector
    lowest: Vector
    lowest_at: Labels
    lowest_time: Vector
    verdict: Verdict
    stream_prior: Vector | None = None


def slopes(mean: Vector) -> Matrix:
    """Return the slopes (F, K) of bets that multiply the share m of one class by each of FACTORS: (share − m)/(1 − m).

    The share grows at most halfway to 1.
    """
    share = np.minimum(FACTORS[:, None] * mean, (1 + mean) / 2)
    return np.asarray((share - mean) / (1 - mean))


def class_shares(mean: Vector) -> Vector:
    """Return each class's share (K,) of the stake on classes: a frequent class gets more of it."""
    return np.asarray((mean / mean.sum() + 1 / len(mean)) / 2)


def mean_bounds(mean: Vector, n: float, log_inverse_delta: Any) -> tuple[Vector, Vector]:
    """Return lower and upper bounds (K,), (K,) of the true means of n numbers in [0, 1] with this `mean` (K,).

    Each bound is wrong with probability δ at most; `log_inverse_delta` is log(1/δ). Chernoff's bound in Hoeffding's
    form [hoeffding1963] holds for any n: the p with n·KL(mean ‖ p) ≤ log(1/δ).
    """

    def divergence(p: Vector) -> Vector:
        rest = np.maximum(1 - mean, 1e-300)
        return np.asarray(mean * np.log(mean / p) + rest * np.log(rest / np.maximum(1 - p, 1e-300)))

    ends = []
    for outer in (np.zeros_like(mean), np.ones_like(mean)):
        inside, outside = mean.copy(), outer
        for _ in range(60):
            middle = (inside + outside) / 2
            fits = n * divergence(np.maximum(middle, 1e-300)) <= log_inverse_delta
            inside, outside = np.where(fits, middle, inside), np.where(fits, outside, middle)
        ends.append(outside)
    return ends[0], ends[1]


def check_options(alpha: Any, mode: Any, run_length: Any, caller: str) -> None:
    """Refuse options that no alarm can have."""
    check_number(alpha, caller, "alpha", low=0, high=0.5, open_low=True)
    check_number(run_length, caller, "run_length", low=1, open_low=True)
    check_choice(mode, caller, "mode", MODES)


def make_plan(mean: Vector, rows: Matrix | None, *, alpha: float, mode: str, run_length: float) -> Plan:
    """Return the test against reference rows (n, K) with this mean (K,), or against the mean itself if it is exact."""
    from scipy.stats import chi2

    n = math.inf if rows is None else len(rows)
    mean = np.clip(mean, 1e-12, 1 - 1e-12)  # where the reference is all of one class, there is still a bet to make
    # α pays for the margins, a half for each kind of bet, and in mode "ever" first a half of it for the stakes
    margin_alpha = alpha / 2 if mode == "ever" else alpha
    low, high = (mean, mean) if rows is None else mean_bounds(mean, n, np.log(4 / (margin_alpha * class_shares(mean))))
    # n·Σ (mean − truth)²/mean bounds what a bet in any direction gains by chance. It is about a weighted sum of χ²,
    # which is about (squared_norm/trace)·χ² with trace²/squared_norm degrees of freedom (Satterthwaite). 1/n and 1.25
    # allow for the longer tail of few samples per class. In seven simulations with up to 100 classes, bounds meant to
    # fail in 0.5 % failed in at most 0.9 %; without 1.25 in 1.6 %; without both in 37 %.
    c_squared = 0.0
    if rows is not None:
        x = (rows - mean) / np.sqrt(mean * (n - 1))
        gram = x.T @ x if len(mean) < n else x @ x.T  # the same trace and norm, by the smaller of the two
        trace, squared_norm = float(np.trace(gram)), float((gram**2).sum())
        if trace > 0:
            c_squared = squared_norm / trace * float(chi2.isf(margin_alpha / 2, trace**2 / squared_norm))
    slope = slopes(mean)
    price = 1 + slope * (np.where(slope > 0, high, low) / mean - 1)
    threshold = 2 / alpha if mode == "ever" else run_length
    spread = 1.25 * c_squared * (mean + 1 / n) / n
    return Plan(mean, spread, price, math.log(threshold), mode == "monitor")


def in_blocks(plan: Plan, *arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Yield the arrays (n, ...) in blocks of rows, which bound the memory."""
    size = max(1, (1 << 17) // len(plan.log_share))
    for first in range(0, len(arrays[0]), size):
        yield tuple(array[first : first + size] for array in arrays)


def initial_state(plan: Plan) -> BettingState:
    """Return the state before the first sample."""
    none = np.zeros(len(plan.log_share))
    return BettingState(none, none, none.astype(np.intp), none + math.nan, Verdict(0, 0.0, plan.log_threshold))


def log_bets(plan: Plan, rows: Matrix, prior: Vector) -> Matrix:
    """Return the log gain (n, 3 + F·K) of each bet on each row; `prior` (K,) is the stream's prior before these rows.

    A bet on the prior pays (1 + b p·d)/(1 + b √(Σ d²·spread)), with the tilt d = prior/mean − 1 and the boldness b.
    """
    tilt = prior / plan.mean - 1
    stream_bets = (1 + (rows @ tilt)[:, None] * BOLDNESS) / (1 + BOLDNESS * math.sqrt(tilt**2 @ plan.spread))
    single = (1 + plan.slope * (rows / plan.mean - 1)[:, None, :]) / plan.price
    # a prior with zeros can lose everything on a row; that bet is then out, the others are not
    return np.asarray(np.log(np.concatenate([np.maximum(stream_bets, 1e-300), single.reshape(len(rows), -1)], axis=1)))


def update(plan: Plan, state: BettingState, rows: Matrix, prior: Vector, times: Vector) -> BettingState:
    """Return the state after `rows` (n, K) that came at `times` (n,); the bets use the stream's `prior` (K,) before."""
    gain = state.gain + np.cumsum(log_bets(plan, rows, prior), axis=0)
    before = np.concatenate([state.gain[None], gain[:-1]])
    lowest = np.minimum(np.minimum.accumulate(before), state.lowest)
    n, fell = state.verdict.n, before <= lowest + FLAT

    def lowest_at(rows: int) -> tuple[Labels, Vector]:
        """Return, after the first `rows` of the rows, the number of samples after which each bet was last at its lowest
        value (within FLAT), and the time of the next sample."""
        last = rows - 1 - fell[:rows][::-1].argmax(axis=0)
        here = fell[:rows].any(axis=0)
        return np.where(here, n + last, state.lowest_at), np.where(here, times[last], state.lowest_time)

    stakes = plan.log_share + (gain - lowest if plan.forgets else gain)
    top = stakes.max(axis=1)
    evidence = top + np.log(np.exp(stakes - top[:, None]).sum(axis=1))
    verdict = replace(state.verdict, n=n + len(rows), evidence=float(evidence[-1]))
    raised = evidence >= plan.log_threshold
    if raised.any() and not verdict:
        at = int(np.argmax(raised))
        since, since_time = (float(x[stakes[at].argmax()]) for x in lowest_at(at + 1))
        by_class = stakes[at, len(BOLDNESS) :].reshape(plan.slope.shape).max(axis=0)
        order = np.argsort(-by_class, kind="stable")[:3]
        gained = tuple(int(k) for k in order if by_class[k] > by_class[order[0]] - 3)
        then = [None if math.isnan(time) else float(time) for time in (times[at], since_time)]
        verdict = replace(verdict, raised_at=n + at + 1, since=int(since) + 1, classes=gained,
                          raised_time=then[0], since_time=then[1])  # fmt: skip
    return BettingState(gain[-1], lowest[-1], *lowest_at(len(rows)), verdict, prior)


def stream_bets_gain(plan: Plan, rows: Matrix, sigma: Vector) -> Any:
    """Return for each class (K,) whether a bet on a stream's prior gains once that class has shifted by σ (K,).

    If class k has shifted, the tilt is d_j = σ(1[j = k]/m_j − 1) with m the mean, and the margin √(Σ d²·spread).
    """
    margin = np.sqrt(sigma**2 * (plan.spread / plan.mean**2 - 2 * plan.spread / plan.mean + plan.spread.sum()))
    growth = np.zeros((len(BOLDNESS), len(sigma)))
    for (block,) in in_blocks(plan, rows):
        moved = sigma * (block / plan.mean - block.sum(axis=1)[:, None])
        for i, boldness in enumerate(BOLDNESS):
            won = np.log(np.maximum(1 + boldness * moved, 1e-300) / (1 + boldness * margin))
            growth[i] += ((block.sum(axis=1)[:, None] + moved) * won).sum(axis=0)
    return (growth > 0).any(axis=0)


def plan_from_fields(stored: dict[str, Any], k: int, caller: str) -> Plan:
    """Return the plan for `k` classes whose `asdict` was stored as plan_*, after checks."""
    shapes = {"mean": (k,), "spread": (k,), "price": (len(FACTORS), k)}
    mean, spread, price = (take(stored, f"plan_{name}", np.ndarray, caller, shape).astype(np.float64)
                           for name, shape in shapes.items())  # fmt: skip
    threshold = float(take(stored, "plan_log_threshold", (int, float), caller))
    inside = (mean >= 1e-12) & (mean <= 1 - 1e-12) & (spread >= 0) & (spread < 1e13)
    if not (inside.all() and ((price > 1 - 1e-9) & (price < 1e13)).all() and 0 < threshold < 1e3):
        refuse(caller, "data", "invalid numbers")
    return Plan(mean, spread, price, threshold, take(stored, "plan_forgets", bool, caller))


def state_from_fields(stored: dict[str, Any], plan: Plan, caller: str) -> BettingState:
    """Return the state whose `asdict` was stored, after checks."""
    n_bets, nothing, k = plan.log_share.shape, type(None), len(plan.mean)
    gain, lowest, lowest_at = (take(stored, name, np.ndarray, caller, n_bets).astype(np.float64)
                               for name in ("gain", "lowest", "lowest_at"))  # fmt: skip
    time = stored.get("lowest_time")  # NaN if unknown
    kinds = {"n": int, "evidence": float, "raised_at": (int, nothing), "since": (int, nothing), "classes": list,
             "raised_time": (float, nothing), "since_time": (float, nothing)}  # fmt: skip
    fields = take(stored, "verdict", dict, caller)
    verdict = {name: take(fields, name, kind, caller) for name, kind in kinds.items()}
    n, raised, since, classes = verdict["n"], verdict["raised_at"], verdict["since"], verdict["classes"]
    sound = (
        0 <= n <= 2**53, (raised is None) == (since is None) == (not classes),
        raised is None or since is None or 1 <= since <= raised <= n,
        all(type(c) is int and 0 <= c < k for c in classes),
        isinstance(time, np.ndarray) and time.shape == n_bets and not np.isinf(time).any(),
        (lowest_at >= 0) & (lowest_at <= n) & (lowest <= 0) & (lowest > -1e100) & (np.abs(gain) < 1e100),
    )  # fmt: skip
    if not all(np.all(x) for x in sound):
        refuse(caller, "data", "an invalid verdict")
    prior = take(stored, "stream_prior", (np.ndarray, nothing), caller, (k,))
    if prior is not None:
        check_prior(prior, caller, "stream_prior", allow_zero=True)
    verdict |= {"classes": tuple(classes), "threshold": plan.log_threshold}
    lowest_time = np.asarray(time, np.float64)
    return BettingState(gain, lowest, lowest_at.astype(np.intp), lowest_time, Verdict(**verdict), prior)
