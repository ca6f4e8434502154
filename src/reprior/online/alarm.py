"""Has the prior moved? A sequential test that may be looked at after every sample.

A bet is a function of one row's outputs whose mean over the reference rows is 1. If nothing has moved, it cannot be
expected to gain, so a stake that has grown A-fold is evidence whenever one looks (Ville; [shin2023] for the mode
"monitor"). That mean is only estimated, so each bet first pays a margin for how wrong it may be. The stakes are spread
over bets on the prior a stream has learned and bets on one class at a time: the former see any shift but need a margin
against all directions at once, up to √K standard errors; the latter need about five.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator
from copy import copy
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from reprior._check import (
    as_array,
    check_choice,
    check_number,
    check_prior,
    check_proba,
    check_source,
    fail,
    refuse_where,
)
from reprior._types import Labels, Matrix, Source, Vector
from reprior.online.table import StreamTable, plain
from reprior.rows.blocks import by_name
from reprior.rows.correction import correct
from reprior.state import Key, decode, encode, refuse, take, write_atomically

BOLDNESS = np.array([1.0, 0.5, 0.25])  # how far towards the stream's prior to bet: a timid bet needs less margin
FACTORS = np.array([0.5, 0.75, 1.5, 4.0])  # by which a bet on one class multiplies its share
RENEW = 16  # samples for which a bet on the stream's prior stays the same
MODES = ("monitor", "ever")


class Learner(Protocol):
    """What an alarm needs of a stream: its prior before some rows, those rows as it sees them, and to learn them."""

    @property
    def prior(self) -> Vector: ...

    def calibrated(self, proba: Any) -> Matrix: ...

    def learn_calibrated(self, rows: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Keyed:
    """One stream of a table, as a `Learner`."""

    table: StreamTable
    key: Hashable

    @property
    def prior(self) -> Vector:
        return self.table.prior(self.key) if self.key in self.table else self.table.method.prior(self.table._fresh)

    def calibrated(self, proba: Any) -> Matrix:
        return self.table.calibrated(proba)

    def learn_calibrated(self, rows: Any) -> None:
        self.table.learn_calibrated([self.key] * len(rows), rows)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an alarm says after `n` samples; true if it was raised.

    `evidence` is the logarithm of the stake now; the alarm is raised at `threshold`. `raised_at` is the sample at which
    that first happened, `since` the sample from which on the evidence had gathered, and `classes` those whose own bets
    had gained most by then, `names` what they are called if the source has names. `raised_time` and `since_time` are
    the times of those two samples, where times were given.
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


@dataclass(frozen=True, slots=True)
class Plan:
    """The fixed part: the `mean` (K,) of the reference rows, the margins for it, and how the stake is spread.

    The class bets (F, K) are 1 + slope·(p/mean − 1), divided by `price`. A bet with weights 1 + d on the classes pays
    √(Σ d²·spread). `log_share` (3 + F·K,) is the logarithm of each bet's share of the stake at the start.
    """

    mean: Vector
    spread: Vector
    slope: Matrix
    price: Matrix
    log_share: Vector
    log_threshold: float
    forgets: bool


@dataclass(frozen=True, slots=True)
class Purse:
    """The moving part: log gain of each bet (3 + F·K,), its lowest value so far, after how many samples that was, and
    the time of the sample that came next (NaN if it was not told)."""

    gain: Vector
    lowest: Vector
    lowest_at: Labels
    lowest_time: Vector
    verdict: Verdict


def mean_bounds(mean: Vector, n: float, log_odds: Any) -> tuple[Vector, Vector]:
    """Return limits (K,), (K,) of the true means of numbers in [0, 1], each wrong with chance exp(−log_odds) at most.

    Chernoff's bound in Hoeffding's form [hoeffding1963], so it holds for any n: those p with n·KL(mean ‖ p) ≤ log_odds.
    """

    def divergence(p: Vector) -> Vector:
        rest = np.maximum(1 - mean, 1e-300)
        return np.asarray(mean * np.log(mean / p) + rest * np.log(rest / np.maximum(1 - p, 1e-300)))

    ends = []
    for outer in (np.zeros_like(mean), np.ones_like(mean)):
        inside, outside = mean.copy(), outer
        for _ in range(60):
            middle = (inside + outside) / 2
            fits = n * divergence(np.maximum(middle, 1e-300)) <= log_odds
            inside, outside = np.where(fits, middle, inside), np.where(fits, outside, middle)
        ends.append(outside)
    return ends[0], ends[1]


def spread_out(mean: Vector) -> tuple[Matrix, Vector, Vector]:
    """Return the slopes (F, K) of the class bets, the weight of each class (K,), and how the stake is spread."""
    share = np.minimum(FACTORS[:, None] * mean, (1 + mean) / 2)
    weight = (mean / mean.sum() + 1 / len(mean)) / 2  # a frequent class gets more of what is shared out
    shares = [np.full(len(BOLDNESS), 0.5 / len(BOLDNESS)), np.tile(0.5 * weight / len(FACTORS), len(FACTORS))]
    return (share - mean) / (1 - mean), weight, np.log(np.concatenate(shares))


def make_plan(mean: Vector, rows: Matrix | None, *, alpha: float, mode: str, run_length: float) -> Plan:
    """Return the test against reference rows (n, K) with this mean (K,), or against the mean itself if it is exact."""
    from scipy.stats import chi2

    n = math.inf if rows is None else len(rows)
    mean = np.clip(mean, 1e-12, 1 - 1e-12)  # where the reference is all of one class, there is still a bet to make
    # α pays for the margins, a half for each kind of bet, and in mode "ever" first a half of it for the stakes
    spare = alpha / 2 if mode == "ever" else alpha
    slope, weight, log_share = spread_out(mean)
    low, high = mean_bounds(mean, n, np.log(4 / (spare * weight))) if n < math.inf else (mean, mean)
    # n·Σ (mean − truth)²/mean is about a weighted sum of χ², and it bounds what a bet in any direction gains by chance;
    # 1/n and the quarter more are for classes with few rows, where it has a longer tail
    c_squared = 0.0
    if rows is not None:
        x = (rows - mean) / np.sqrt(mean * (n - 1))
        gram = x.T @ x if len(mean) < n else x @ x.T  # the same trace and norm, by the smaller of the two
        first, second = float(np.trace(gram)), float((gram**2).sum())
        c_squared = second / first * float(chi2.isf(spare / 2, first**2 / second)) if first > 0 else 0.0
    price = 1 + slope * (np.where(slope > 0, high, low) / mean - 1)
    threshold = 2 / alpha if mode == "ever" else run_length
    spread = 1.25 * c_squared * (mean + 1 / n) / n
    return Plan(mean, spread, slope, price, log_share, math.log(threshold), mode == "monitor")


def in_blocks(plan: Plan, *arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Yield as many rows of the arrays (n, ...) as to bet on at once: it bounds the memory, not the answer."""
    size = max(1, (1 << 17) // len(plan.log_share))
    for first in range(0, len(arrays[0]), size):
        yield tuple(array[first : first + size] for array in arrays)


def start(plan: Plan) -> Purse:
    """Return the stakes before the first sample."""
    none = np.zeros(len(plan.log_share))
    return Purse(none, none, none.astype(np.intp), none + math.nan, Verdict(0, 0.0, plan.log_threshold))


def log_bets(plan: Plan, rows: Matrix, prior: Vector) -> Matrix:
    """Return the log gain (n, 3 + F·K) of each bet on each row; `prior` is the one believed in before these rows."""
    odds = prior / plan.mean - 1
    believed = (1 + (rows @ odds)[:, None] * BOLDNESS) / (1 + BOLDNESS * math.sqrt(odds**2 @ plan.spread))
    single = (1 + plan.slope * (rows / plan.mean - 1)[:, None, :]) / plan.price
    # a prior with zeros can lose everything on a row; that bet is then out, the others are not
    return np.asarray(np.log(np.concatenate([np.maximum(believed, 1e-300), single.reshape(len(rows), -1)], axis=1)))


def look(plan: Plan, purse: Purse, rows: Matrix, prior: Vector, times: Vector) -> Purse:
    """Return the stakes after `rows` (n, K) of `times` (n,), all of them bet on with the `prior` (K,) of before."""
    gain = purse.gain + np.cumsum(log_bets(plan, rows, prior), axis=0)
    before = np.concatenate([purse.gain[None], gain[:-1]])
    lowest = np.minimum(np.minimum.accumulate(before), purse.lowest)
    n, fell = purse.verdict.n, before <= lowest

    def lowest_at(rows: int) -> tuple[Labels, Vector]:
        """Return after how many samples each bet was lowest, the latest of equal ones, as seen after so many rows, and
        the time of the sample that came next."""
        last = rows - 1 - fell[:rows][::-1].argmax(axis=0)
        here = fell[:rows].any(axis=0)
        return np.where(here, n + last, purse.lowest_at), np.where(here, times[last], purse.lowest_time)

    stakes = plan.log_share + (gain - lowest if plan.forgets else gain)
    top = stakes.max(axis=1)
    evidence = top + np.log(np.exp(stakes - top[:, None]).sum(axis=1))
    verdict = replace(purse.verdict, n=n + len(rows), evidence=float(evidence[-1]))
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
    return Purse(gain[-1], lowest[-1], *lowest_at(len(rows)), verdict)


def followers_gain(plan: Plan, rows: Matrix, sigma: Vector) -> Any:
    """Return for each class (K,) whether a bet on a stream's prior gains once that class has shifted by σ (K,)."""
    odds = np.sqrt(sigma**2 * (plan.spread / plan.mean**2 - 2 * plan.spread / plan.mean + plan.spread.sum()))
    growth = np.zeros((len(BOLDNESS), len(sigma)))
    for (block,) in in_blocks(plan, rows):
        moved = sigma * (block / plan.mean - block.sum(axis=1)[:, None])
        for i, bold in enumerate(BOLDNESS):
            won = np.log(np.maximum(1 + bold * moved, 1e-300) / (1 + bold * odds))
            growth[i] += ((block.sum(axis=1)[:, None] + moved) * won).sum(axis=0)
    return (growth > 0).any(axis=0)


def check_times(times: Any, n: int, caller: str) -> Vector:
    """Return the time of each of n rows (n,), NaN where none were given; they are finite and never go back."""
    if times is None:
        return np.full(n, math.nan)
    if getattr(times, "dtype", None) is not None and times.dtype.kind == "M":
        fail(caller, "times", "be numbers", f"dtype {times.dtype}",
             remedy="Pass seconds: `times.astype('datetime64[us]').astype(float) / 1e6`")  # fmt: skip
    array = as_array(times, caller, "times").astype(np.float64)
    if array.shape != (n,):
        fail(caller, "times", f"have shape ({n},), one time a row", f"shape {array.shape}")
    refuse_where(~np.isfinite(array), caller, "times", "be finite", array)
    refuse_where(np.diff(array, prepend=array[:1]) < 0, caller, "times", "not go back", array)
    return array


def seen_to_fields(purse: Purse, believed: Vector | None) -> dict[str, Any]:
    """Return what bytes must say of what an alarm has seen."""
    parts = asdict(purse)
    return {"verdict": parts.pop("verdict"), "believed": believed, **{f"purse_{name}": x for name, x in parts.items()}}


def seen_from_fields(stored: dict[str, Any], plan: Plan, caller: str) -> tuple[Purse, Vector | None]:
    """Return what `seen_to_fields` described, once it is known to be such."""
    bets, nothing, k = plan.log_share.shape, type(None), len(plan.mean)
    gain, lowest = (take(stored, f"purse_{name}", np.ndarray, caller, bets) for name in ("gain", "lowest"))
    lowest_at = take(stored, "purse_lowest_at", np.ndarray, caller, bets).astype(np.intp)
    time = stored.get("purse_lowest_time", np.full(bets, math.nan))
    told = take(stored, "verdict", dict, caller)
    names = {"n": int, "evidence": float, "raised_at": (int, nothing), "since": (int, nothing), "classes": list,
             "raised_time": (float, nothing), "since_time": (float, nothing)}  # fmt: skip
    said = {name: take(told, name, kinds, caller) for name, kinds in names.items()}
    n, raised, since, classes = said["n"], said["raised_at"], said["since"], said["classes"]
    ordered = 0 <= n <= 2**53 and (raised is None) == (since is None) == (not classes)
    ordered &= raised is None or since is None or 1 <= since <= raised <= n
    counted = ((lowest_at >= 0) & (lowest_at <= n)).all() and ((lowest <= 0) & (lowest > -1e100)).all()
    counted &= (np.abs(gain) < 1e100).all()
    timed = isinstance(time, np.ndarray) and time.shape == bets and not np.isinf(time).any()
    if not (ordered and counted and timed and all(type(c) is int and 0 <= c < k for c in classes)):
        refuse(caller, "data", "a verdict that no alarm gives")
    believed = take(stored, "believed", (np.ndarray, nothing), caller, (k,))
    if believed is not None:
        check_prior(believed, caller, "believed", allow_zero=True)
    verdict = Verdict(**{**said, "classes": tuple(classes), "threshold": plan.log_threshold})
    return Purse(gain, lowest, lowest_at, np.asarray(time, np.float64), verdict), believed


class Alarm:
    """A sequential test that the outputs have left those of the reference rows, as a moved prior makes them.

    Parameters
    ----------
    source : Source or (K,)
        Made by `summarize`; its held-out rows are the reference. Of a pipeline it is `pipe.source`.
    alpha : float
        The chance of a false alarm, ever, in mode "ever"; in mode "monitor" the chance that the promise on `run_length`
        fails because the reference rows happen to be unusual.
    mode : str
        "monitor", for streams that run well for long: a shift is found as fast however late it comes. Or "ever".
    run_length : float
        Samples between false alarms in mode "monitor", on average and at least.
    reference : (n, K), optional
        Rows of a time when all was well, instead of the held-out rows.
    exact : bool
        Whether `source.prior` is the mean output itself. There is then no margin for a reference that is a sample.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> def outputs(y): return np.where(np.eye(2)[y] > 0, 0.9, 0.1)
    >>> was, now = rng.integers(2, size=500), (rng.random(500) < 0.8).astype(int)
    >>> bool(Alarm([1, 1], reference=outputs(was)).look(outputs(now), [0.5, 0.5]))
    True
    """

    def __init__(
        self, source: Any, *, alpha: float = 0.01, mode: str = "monitor", run_length: float = 1e4,
        reference: Any = None, exact: bool = False,
    ) -> None:  # fmt: skip
        self.source: Source = check_source(source, "Alarm")
        alpha = check_number(alpha, "Alarm", "alpha", low=0, high=0.5, open_low=True)
        run_length = check_number(run_length, "Alarm", "run_length", low=1, open_low=True)
        check_choice(mode, "Alarm", "mode", MODES)
        self._weights: Vector | None = None
        self.rows: Matrix | None = None
        if not exact:
            heldout = self.source.heldout and self.source.heldout[0]
            if reference is None and heldout is None:
                fail("Alarm", "source", "have held-out rows, so that the margin for its prior can be known", "none",
                     remedy="Make it by `summarize`, pass earlier rows as `reference`, or `exact=True`")  # fmt: skip
            rows = heldout if reference is None else reference
            rows = self._rows(rows, "Alarm", "reference")
            if len(rows) < 2:
                fail("Alarm", "reference", "have at least two rows", len(rows))
            if reference is not None:
                from reprior.batch.ebls import ebls

                self._weights = ebls(self.source, rows).weights
                rows = correct(rows, self._weights)
            self.rows = np.asarray(rows, np.float64)
        mean = self.source.prior if self.rows is None else np.asarray(self.rows.mean(axis=0), np.float64)
        self.plan = make_plan(mean, self.rows, alpha=alpha, mode=mode, run_length=run_length)
        self.purse = start(self.plan)
        self._believed: Vector | None = None  # the prior bet on since the last renewal

    @property
    def verdict(self) -> Verdict:
        """What the samples seen so far say."""
        verdict, names = self.purse.verdict, self.source.classes
        return replace(verdict, names=tuple(names[k] for k in verdict.classes)) if names else verdict

    def __repr__(self) -> str:
        verdict, kind = self.purse.verdict, "monitor" if self.plan.forgets else "ever"
        said = f"raised at sample {verdict.raised_at:,}" if verdict else "not raised"
        return f"Alarm(mode={kind!r}, {len(self.plan.mean)} classes, n={verdict.n:,}, {said})"

    def reset(self) -> None:
        """Start anew, as after an alarm that was dealt with."""
        self.purse, self._believed = start(self.plan), None

    def look(self, proba: Any, prior: Any, times: Any = None) -> Verdict:
        """Return the verdict after a bet on each row.

        The rows are as the source's are: if those were calibrated, calibrate these before.

        Parameters
        ----------
        proba : (n, K)
            The rows.
        prior : (K,)
            The prior that a stream had before it learned the rows.
        times : (n,), optional
            When each row came; the verdict then tells times too.
        """
        k = len(self.plan.mean)
        rows = self._rows(proba, "Alarm.look")
        believed = check_prior(prior, "Alarm.look", "prior", allow_zero=True, n_classes=k, classes=self.source.classes)
        self._bet(rows, believed, check_times(times, len(rows), "Alarm.look"))
        return self.verdict

    def watch(self, stream: Learner, proba: Any, times: Any = None) -> Verdict:
        """Bet on rows (n, K) with the stream's prior and let it learn them, a few at a time; return the verdict.

        Rows are what the stream takes: raw outputs, if it has a calibrator. Bets are renewed at every 16th sample,
        wherever the calls begin and end. `times` (n,) are numbers, such as seconds, that never go back.

        Parameters
        ----------
        stream : Stream
            Whose prior to bet with.
        proba : (n, K)
            The rows, as the stream takes them.
        times : (n,), optional
            When each row came; the verdict then tells times too.
        """
        k, first = len(self.plan.mean), 0
        check_prior(stream.prior, "Alarm.watch", "prior", allow_zero=True, n_classes=k)
        rows = self._rows(proba, "Alarm.watch")
        when = check_times(times, len(rows), "Alarm.watch")
        rows = stream.calibrated(rows)
        while first < len(rows):
            block = slice(first, first + RENEW - self.purse.verdict.n % RENEW)
            if self.purse.verdict.n % RENEW == 0 or self._believed is None:
                self._believed = stream.prior
            self._bet(rows[block], self._believed, when[block])
            stream.learn_calibrated(rows[block])
            first = block.stop
        return self.verdict

    def _rows(self, proba: Any, caller: str, name: str = "proba") -> Matrix:
        """Return rows (n, K), checked, with columns in the order of the source's classes by name."""
        return check_proba(by_name(proba, self.source.classes, caller), caller, name, len(self.source.prior))

    def _bet(self, rows: Matrix, prior: Vector, times: Vector) -> None:
        for block, when in in_blocks(self.plan, rows, times):
            seen = block if self._weights is None else correct(block, self._weights)
            self.purse = look(self.plan, self.purse, np.asarray(seen, np.float64), prior, when)

    def _fixed(self) -> dict[str, Any]:
        """Return what bytes must say of the alarm beside what it has seen."""
        classes = None if self.source.classes is None else list(self.source.classes)
        about = {"weights": self._weights, "prior": self.source.prior, "classes": classes}
        return about | {f"plan_{name}": x for name, x in asdict(self.plan).items()}

    def to_bytes(self, key: Key = None) -> bytes:
        """Return the alarm with all that it has seen, but without its reference rows, as bytes."""
        return encode("alarm", {**self._fixed(), **seen_to_fields(self.purse, self._believed)}, key)

    @classmethod
    def from_bytes(cls, data: Any, key: Key = None) -> Alarm:
        """Return the alarm that `to_bytes` wrote; it goes on where that one was. What is no alarm is refused."""
        stored = decode(data, "alarm", "Alarm.from_bytes", key=key)
        alarm = cls._from_fields(stored, "Alarm.from_bytes")
        alarm.purse, alarm._believed = seen_from_fields(stored, alarm.plan, "Alarm.from_bytes")
        return alarm

    @classmethod
    def _from_fields(cls, stored: dict[str, Any], caller: str) -> Alarm:
        """Return the alarm that `_fixed` described, with nothing seen yet."""
        nothing, alarm = type(None), cls.__new__(cls)
        prior = check_prior(take(stored, "prior", np.ndarray, caller, (None,)), caller, "prior")
        k, factors, bets = len(prior), len(FACTORS), len(BOLDNESS) + len(FACTORS) * len(prior)
        shapes = {"mean": (k,), "spread": (k,), "slope": (factors, k), "price": (factors, k), "log_share": (bets,)}
        arrays = {name: take(stored, f"plan_{name}", np.ndarray, caller, shape) for name, shape in shapes.items()}
        arrays = {name: x.astype(np.float64) for name, x in arrays.items()}
        threshold = float(take(stored, "plan_log_threshold", (int, float), caller))
        alarm.plan = plan = Plan(**arrays, log_threshold=threshold, forgets=take(stored, "plan_forgets", bool, caller))
        classes = take(stored, "classes", (list, nothing), caller)
        named = classes is None or (len(classes) == k and all(isinstance(name, str) for name in classes))
        inside = ((plan.mean >= 1e-12) & (plan.mean <= 1 - 1e-12) & (plan.spread >= 0) & (plan.spread < 1e13)).all()
        fair = bool(inside and ((plan.price > 1 - 1e-9) & (plan.price < 1e13)).all())
        fair = fair and all(map(np.allclose, spread_out(plan.mean)[::2], (plan.slope, plan.log_share)))
        if not (named and fair and 0 < threshold < 1e3):
            refuse(caller, "data", "numbers that no alarm has")
        alarm.source = Source(prior, classes=classes and tuple(classes), made="read from bytes")
        alarm.rows, alarm._believed, alarm.purse = None, None, start(plan)
        alarm._weights = take(stored, "weights", (np.ndarray, nothing), caller, (k,))
        if alarm._weights is not None:
            check_prior(alarm._weights, caller, "weights")
        return alarm

    def save(self, path: str | Path, key: Key = None) -> None:
        """Write the alarm to a file so that a crash at any moment leaves the old or the new one, whole."""
        write_atomically(path, self.to_bytes(key))

    @classmethod
    def load(cls, path: str | Path, key: Key = None) -> Alarm:
        """Return the alarm that `save` wrote."""
        return cls.from_bytes(Path(path).read_bytes(), key)

    def delay(self, prior: Any) -> float:
        """Return about how many samples a lasting shift to `prior` (K,) takes to be found; infinite: it is not seen.

        Optimistic: what the stream needs to learn the new prior comes on top.

        Parameters
        ----------
        prior : (K,)
            The class mix after the shift.
        """
        rows = self._reference("Alarm.delay")
        target = check_prior(prior, "Alarm.delay", "prior", allow_zero=True, n_classes=len(self.plan.mean),
                             classes=self.source.classes)  # fmt: skip
        chance = rows @ (target / self.plan.mean)
        chance /= chance.sum()  # of each reference row, had they been drawn under `prior`
        growth = np.zeros(len(self.plan.log_share))
        for share, block in in_blocks(self.plan, chance, rows):
            growth += share @ log_bets(self.plan, block, target)
        growing = growth > 0
        needed = (self.plan.log_threshold - self.plan.log_share[growing]) / growth[growing]
        return float(needed.min(initial=math.inf))

    def smallest(self) -> tuple[Vector, Vector]:
        """Return the factors (K,), (K,) by which a class's share must fall, or rise, for `delay` to be finite.

        The other classes keep their proportions. 0 and infinity where nothing would be seen: not even the absence of
        the class, or any growth.
        """
        plan, rows = self.plan, self._reference("Alarm.smallest")
        k, bold = len(plan.mean), len(BOLDNESS)
        # Under a shift of class k by σ, from a share m to m + σ(1−m), a row with outputs p has the weight 1 + σ·x_k,
        # x_k = p_k/m_k − 1. So a bet on a class, which stays the same, gains G₀ + σ·G_k: solve for σ.
        flat, tilted = np.zeros(len(plan.log_share) - bold), np.zeros((len(plan.log_share) - bold, k))
        for (block,) in in_blocks(plan, rows):
            gains, excess = log_bets(plan, block, plan.mean)[:, bold:], block / plan.mean - block.sum(axis=1)[:, None]
            flat, tilted = flat + block.sum(axis=1) @ gains, tilted + gains.T @ excess
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.maximum(-flat[:, None], 0.0) / tilted
        ends = -plan.mean / (1 - plan.mean), np.ones(k)  # σ where the class is absent, and where it is alone
        found = []
        for end, sign in zip(ends, (-1.0, 1.0), strict=True):
            fixed = np.where(sign * tilted > 0, np.abs(needed), math.inf).min(axis=0)
            # the bets on the stream's prior follow the shift; what they gain has no such form, and grows with σ
            low, high = np.zeros(k), np.abs(end)
            for _ in range(16):
                middle = (low + high) / 2
                sees = followers_gain(plan, rows, sign * middle)
                low, high = np.where(sees, low, middle), np.where(sees, middle, high)
            sigma = np.minimum(fixed, np.where(high < np.abs(end), high, math.inf))
            found.append(np.where(sigma < np.abs(end), 1 + sign * sigma * (1 - plan.mean) / plan.mean, math.inf))
        return np.where(np.isinf(found[0]), 0.0, np.maximum(found[0], 0.0)), found[1]

    def _reference(self, caller: str) -> Matrix:
        if self.rows is None:
            fail(caller, "alarm", "have reference rows, on which this is worked out", "none",
                 remedy="Make it without `exact=True`, from a source that has held-out rows")  # fmt: skip
        return self.rows


class AlarmTable:
    """An `Alarm` for each key of a `StreamTable`, all against the same reference.

    `alarms[key]` is the verdict of a key; a key that was never watched is a KeyError. `alpha` and `run_length` hold for
    each key by itself: among G keys that are well, one is raised falsely G times as often.

    Parameters
    ----------
    source : Source or (K,)
        As for `Alarm`.
    **options
        Options of `Alarm`.

    Examples
    --------
    >>> from reprior.online.table import StreamTable
    >>> table, alarms = StreamTable("online-ebls", [1, 1]), AlarmTable([1, 1], exact=True)
    >>> verdicts = alarms.watch(table, ["a", "b"] * 100, [[0.9, 0.1], [0.5, 0.5]] * 100)
    >>> bool(verdicts["a"]), bool(verdicts["b"])
    (True, False)
    """

    def __init__(self, source: Any, **options: Any) -> None:
        self.model = Alarm(source, **options)
        self._seen: dict[Hashable, tuple[Purse, Vector | None]] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, key: Hashable) -> bool:
        return plain(key) in self._seen

    def __iter__(self) -> Iterator[Hashable]:
        return iter(tuple(self._seen))

    def __getitem__(self, key: Hashable) -> Verdict:
        self._seen[plain(key)]  # or a KeyError
        return self._of(key).verdict

    def __repr__(self) -> str:
        raised = sum(bool(purse.verdict) for purse, _ in self._seen.values())
        return f"AlarmTable({len(self):,} keys, {raised:,} raised)"

    def _of(self, key: Hashable) -> Alarm:
        alarm = copy(self.model)
        alarm.purse, alarm._believed = self._seen.get(plain(key), (start(alarm.plan), None))
        return alarm

    def reset(self, key: Hashable) -> None:
        """Start anew for a key, as after an alarm that was dealt with."""
        self._seen.pop(plain(key), None)

    def watch(self, table: StreamTable, keys: Any, proba: Any, times: Any = None) -> dict[Hashable, Verdict]:
        """Bet on rows (n, K), each with the prior of its key's stream, and let the table learn them.

        Return the verdict of each key named. What a full table evicts keeps its alarm, until `reset`.

        Parameters
        ----------
        table : StreamTable
            Whose priors to bet with.
        keys : (n,)
            The key of each row.
        proba : (n, K)
            The rows.
        times : (n,), optional
            When each row came; the verdict then tells times too.
        """
        caller = "AlarmTable.watch"
        rows = self.model._rows(proba, caller)
        when = check_times(times, len(rows), caller)
        names, _ = table._find(keys if not isinstance(keys, np.ndarray) else keys.tolist(), caller)
        if len(names) != len(rows):
            fail(caller, "keys", f"name the stream of each of {len(rows)} rows", len(names))
        found: dict[Hashable, list[int]] = {}
        for row, name in enumerate(map(plain, names)):
            found.setdefault(name, []).append(row)
        verdicts = {}
        for name, where in found.items():
            alarm = self._of(name)
            verdicts[name] = alarm.watch(Keyed(table, name), rows[where], None if times is None else when[where])
            self._seen[name] = alarm.purse, alarm._believed
        return verdicts

    def to_bytes(self, key: Key = None) -> bytes:
        """Return all alarms as bytes; keys must be strings or whole numbers."""
        if odd := [name for name in self._seen if type(name) not in (str, int)]:
            fail("AlarmTable.to_bytes", "keys", "be strings or whole numbers", repr(odd[0]))
        seen = [seen_to_fields(*pair) for pair in self._seen.values()]
        arrays = {f"{i}_{name}": x for i, one in enumerate(seen) for name, x in one.items()}
        return encode("alarm-table", {**self.model._fixed(), "keys": list(self._seen), **arrays}, key)

    @classmethod
    def from_bytes(cls, data: Any, key: Key = None) -> AlarmTable:
        """Return the alarms that `to_bytes` wrote; what holds none is refused."""
        caller, table = "AlarmTable.from_bytes", cls.__new__(cls)
        stored = decode(data, "alarm-table", caller, key=key)
        table.model = Alarm._from_fields(stored, caller)
        keys = take(stored, "keys", list, caller)
        if not all(type(name) in (str, int) for name in keys) or len(set(keys)) != len(keys):
            refuse(caller, "data", "keys that are not strings or whole numbers, each once")
        parts: list[dict[str, Any]] = [{} for _ in keys]
        for name, value in stored.items():
            number, _, field = name.partition("_")
            if number.isdecimal() and int(number) < len(keys):
                parts[int(number)][field] = value
        plan = table.model.plan
        table._seen = {name: seen_from_fields(part, plan, caller) for name, part in zip(keys, parts, strict=True)}
        return table

    def save(self, path: str | Path, key: Key = None) -> None:
        """Write the alarms to a file so that a crash at any moment leaves the old or the new ones, whole."""
        write_atomically(path, self.to_bytes(key))

    @classmethod
    def load(cls, path: str | Path, key: Key = None) -> AlarmTable:
        """Return the alarms that `save` wrote."""
        return cls.from_bytes(Path(path).read_bytes(), key)
