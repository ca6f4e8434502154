"""Has the prior moved? A sequential test that may be looked at after every sample.

A bet is a function of one row's outputs whose mean over the reference rows is 1. If nothing has moved, it cannot be
expected to gain, so a stake that has grown A-fold is evidence whenever one looks (Ville; [shin2023] for the mode
"monitor"). That mean is only estimated, so each bet first pays a margin for how wrong it may be. The stakes are spread
over bets on the prior a stream has learned and bets on one class at a time: the former see any shift but need a margin
against all directions at once, up to √K standard errors; the latter need about five.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np

from reprior._check import check_choice, check_number, check_prior, check_proba, check_source, fail
from reprior._types import Labels, Matrix, Source, Vector
from reprior.rows.correction import correct
from reprior.state import decode, encode

BOLDNESS = np.array([1.0, 0.5, 0.25])  # how far towards the stream's prior to bet: a timid bet needs less margin
FACTORS = np.array([0.5, 0.75, 1.5, 4.0])  # by which a bet on one class multiplies its share
RENEW = 16  # samples for which a bet on the stream's prior stays the same
MODES = ("monitor", "ever")


class Learner(Protocol):
    """What an alarm needs of a stream: its prior before some rows, and that it learns them."""

    @property
    def prior(self) -> Vector: ...

    def learn_many(self, proba: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Verdict:
    """What an alarm says after `n` samples; true if it was raised.

    `evidence` is the logarithm of the stake now; the alarm is raised at `threshold`. `raised_at` is the sample at which
    that first happened, `since` the sample from which on the evidence had gathered, and `classes` those whose own bets
    had gained most by then.
    """

    n: int
    evidence: float
    threshold: float
    raised_at: int | None = None
    since: int | None = None
    classes: tuple[int, ...] = ()

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
    """The moving part: log gain of each bet (3 + F·K,), its lowest value so far, and after how many samples."""

    gain: Vector
    lowest: Vector
    lowest_at: Labels
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


def make_plan(mean: Vector, rows: Matrix | None, *, alpha: float, mode: str, run_length: float) -> Plan:
    """Return the test against reference rows (n, K) with this mean (K,), or against the mean itself if it is exact."""
    from scipy.stats import chi2

    n = math.inf if rows is None else len(rows)
    mean = np.clip(mean, 1e-12, 1 - 1e-12)  # where the reference is all of one class, there is still a bet to make
    # α pays for the margins, a half for each kind of bet, and in mode "ever" first a half of it for the stakes
    spare = alpha / 2 if mode == "ever" else alpha
    weight = (mean / mean.sum() + 1 / len(mean)) / 2  # a frequent class gets more of what is shared out
    low, high = mean_bounds(mean, n, np.log(4 / (spare * weight))) if n < math.inf else (mean, mean)
    # n·Σ (mean − truth)²/mean is about a weighted sum of χ², and it bounds what a bet in any direction gains by chance;
    # 1/n and the quarter more are for classes with few rows, where it has a longer tail
    c_squared = 0.0
    if rows is not None:
        x = (rows - mean) / np.sqrt(mean * (n - 1))
        gram = x.T @ x if len(mean) < n else x @ x.T  # the same trace and norm, by the smaller of the two
        first, second = float(np.trace(gram)), float((gram**2).sum())
        c_squared = second / first * float(chi2.isf(spare / 2, first**2 / second)) if first > 0 else 0.0
    share = np.minimum(FACTORS[:, None] * mean, (1 + mean) / 2)
    slope = (share - mean) / (1 - mean)
    price = 1 + slope * (np.where(slope > 0, high, low) / mean - 1)
    shares = [np.full(len(BOLDNESS), 0.5 / len(BOLDNESS)), np.tile(0.5 * weight / len(FACTORS), len(FACTORS))]
    threshold = 2 / alpha if mode == "ever" else run_length
    spread = 1.25 * c_squared * (mean + 1 / n) / n
    log_share = np.log(np.concatenate(shares))
    return Plan(mean, spread, slope, price, log_share, math.log(threshold), mode == "monitor")


def in_blocks(plan: Plan, *arrays: Any) -> Iterator[tuple[Any, ...]]:
    """Yield as many rows of the arrays (n, ...) as to bet on at once: it bounds the memory, not the answer."""
    size = max(1, (1 << 17) // len(plan.log_share))
    for first in range(0, len(arrays[0]), size):
        yield tuple(array[first : first + size] for array in arrays)


def start(plan: Plan) -> Purse:
    """Return the stakes before the first sample."""
    none = np.zeros(len(plan.log_share))
    return Purse(none, none, none.astype(np.intp), Verdict(0, 0.0, plan.log_threshold))


def log_bets(plan: Plan, rows: Matrix, prior: Vector) -> Matrix:
    """Return the log gain (n, 3 + F·K) of each bet on each row; `prior` is the one believed in before these rows."""
    odds = prior / plan.mean - 1
    believed = (1 + (rows @ odds)[:, None] * BOLDNESS) / (1 + BOLDNESS * math.sqrt(odds**2 @ plan.spread))
    single = (1 + plan.slope * (rows / plan.mean - 1)[:, None, :]) / plan.price
    # a prior with zeros can lose everything on a row; that bet is then out, the others are not
    return np.asarray(np.log(np.concatenate([np.maximum(believed, 1e-300), single.reshape(len(rows), -1)], axis=1)))


def look(plan: Plan, purse: Purse, rows: Matrix, prior: Vector) -> Purse:
    """Return the stakes after `rows` (n, K), all of them bet on with the `prior` (K,) of before."""
    gain = purse.gain + np.cumsum(log_bets(plan, rows, prior), axis=0)
    before = np.concatenate([purse.gain[None], gain[:-1]])
    lowest = np.minimum(np.minimum.accumulate(before), purse.lowest)
    n, fell = purse.verdict.n, before <= lowest

    def lowest_at(rows: int) -> Labels:
        """Return after how many samples each bet was lowest, the latest of equal ones, as seen after so many rows."""
        last = fell[:rows][::-1].argmax(axis=0)
        return np.where(fell[:rows].any(axis=0), n + rows - 1 - last, purse.lowest_at)

    stakes = plan.log_share + (gain - lowest if plan.forgets else gain)
    top = stakes.max(axis=1)
    evidence = top + np.log(np.exp(stakes - top[:, None]).sum(axis=1))
    verdict = replace(purse.verdict, n=n + len(rows), evidence=float(evidence[-1]))
    raised = evidence >= plan.log_threshold
    if raised.any() and not verdict:
        at = int(np.argmax(raised))
        since = int(lowest_at(at + 1)[stakes[at].argmax()])
        by_class = stakes[at, len(BOLDNESS) :].reshape(plan.slope.shape).max(axis=0)
        order = np.argsort(-by_class, kind="stable")[:3]
        gained = tuple(int(k) for k in order if by_class[k] > by_class[order[0]] - 3)
        verdict = replace(verdict, raised_at=n + at + 1, since=since + 1, classes=gained)
    return Purse(gain[-1], lowest[-1], lowest_at(len(rows)), verdict)


class Alarm:
    """A sequential test that the outputs have left those of the reference rows, as a moved prior makes them.

    The reference is the held-out rows of `source`, made by `summarize`, or `reference` (n, K), rows of a time when all
    was well. Mode "ever": the chance of ever raising a false alarm is at most `alpha`. Mode "monitor", for streams that
    run well for long: a shift is found as fast however late it comes, and false alarms are on average at least
    `run_length` samples apart, unless, with a chance of `alpha`, the reference rows are so unlike what they were drawn
    from that the margin is too small. `exact=True` drops the margin: `source.prior` is the mean output itself.

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
            rows = check_proba(rows, "Alarm", "reference", len(self.source.prior))
            if len(rows) < 2:
                fail("Alarm", "reference", "have at least two rows", len(rows))
            if reference is not None:
                from reprior.batch.ebls import ebls

                self._weights = ebls(self.source, rows).weights
                rows = correct(rows, self._weights)
            self.rows = np.asarray(rows, np.float64)
        mean = self.source.prior if self.rows is None else self.rows.mean(axis=0)
        self.plan = make_plan(mean, self.rows, alpha=alpha, mode=mode, run_length=run_length)
        self.purse = start(self.plan)
        self._believed: Vector | None = None  # the prior bet on since the last renewal

    @property
    def verdict(self) -> Verdict:
        """What the samples seen so far say."""
        return self.purse.verdict

    def reset(self) -> None:
        """Start anew, as after an alarm that was dealt with."""
        self.purse, self._believed = start(self.plan), None

    def look(self, proba: Any, prior: Any) -> Verdict:
        """Bet on rows (n, K) with the `prior` (K,) that a stream had before it learned them; return the verdict."""
        k = len(self.plan.mean)
        rows = check_proba(proba, "Alarm.look", "proba", k)
        self._bet(rows, check_prior(prior, "Alarm.look", "prior", allow_zero=True, n_classes=k))
        return self.verdict

    def watch(self, stream: Learner, proba: Any) -> Verdict:
        """Bet on rows (n, K) with the stream's prior and let it learn them, a few at a time; return the verdict.

        Bets are renewed at every 16th sample, wherever the calls begin and end.
        """
        k, first = len(self.plan.mean), 0
        rows = check_proba(proba, "Alarm.watch", "proba", k)
        check_prior(stream.prior, "Alarm.watch", "prior", allow_zero=True, n_classes=k)
        while first < len(rows):
            block = rows[first : first + RENEW - self.verdict.n % RENEW]
            if self.verdict.n % RENEW == 0 or self._believed is None:
                self._believed = stream.prior
            self._bet(block, self._believed)
            stream.learn_many(block)
            first += len(block)
        return self.verdict

    def _bet(self, rows: Matrix, prior: Vector) -> None:
        for (block,) in in_blocks(self.plan, rows):
            block = block if self._weights is None else correct(block, self._weights)
            self.purse = look(self.plan, self.purse, np.asarray(block, np.float64), prior)

    def to_bytes(self) -> bytes:
        """Return the alarm with all that it has seen, but without its reference rows, as bytes."""
        plan, purse = asdict(self.plan), asdict(self.purse)
        verdict = purse.pop("verdict")
        kept = {"weights": self._weights, "believed": self._believed, "prior": self.source.prior}
        parts = {f"plan_{name}": x for name, x in plan.items()} | {f"purse_{name}": x for name, x in purse.items()}
        return encode("alarm", {"verdict": verdict, **parts, **kept})

    @classmethod
    def from_bytes(cls, data: bytes) -> Alarm:
        """Return the alarm that `to_bytes` wrote; it goes on where that one was."""
        stored = decode(data, "alarm", "Alarm.from_bytes")
        alarm = cls.__new__(cls)
        alarm.source, alarm.rows = Source(stored["prior"], made="read from bytes"), None
        alarm._weights, alarm._believed = stored["weights"], stored["believed"]
        plan, purse = (
            {name.removeprefix(kind): x for name, x in stored.items() if name.startswith(kind)}
            for kind in ("plan_", "purse_")
        )
        verdict = Verdict(**{**stored["verdict"], "classes": tuple(stored["verdict"]["classes"])})
        alarm.plan, alarm.purse = Plan(**plan), Purse(**purse, verdict=verdict)
        return alarm

    def delay(self, prior: Any) -> float:
        """Return about how many samples a lasting shift to `prior` (K,) takes to be found; infinite: it is not seen.

        Optimistic: what the stream needs to learn the new prior comes on top.
        """
        rows = self._reference("Alarm.delay")
        target = check_prior(prior, "Alarm.delay", "prior", allow_zero=True, n_classes=len(self.plan.mean))
        chance = rows @ (target / self.plan.mean)
        chance /= chance.sum()  # of each reference row, had they been drawn under `prior`
        growth = np.zeros(len(self.plan.log_share))
        for share, block in in_blocks(self.plan, chance, rows):
            growth += share @ log_bets(self.plan, block, target)
        growing = growth > 0
        needed = (self.plan.log_threshold - self.plan.log_share[growing]) / growth[growing]
        return float(needed.min(initial=math.inf))

    def smallest(self) -> tuple[Vector, Vector]:
        """Return the factors (K,), (K,) by which a class's share must fall, or rise, for its own bet to see it at all.

        0 and infinity where nothing would be seen: not even its absence, or any growth.
        """
        plan = self.plan
        spread = np.maximum(self._reference("Alarm.smallest").var(axis=0) / plan.mean**2, 1e-300)
        # a bet of size s on a shift of size d grows by about s·d·variance − (price − 1) − s²·variance/2
        size = np.abs(plan.slope)
        moved = ((plan.price - 1) / (size * spread) + size / 2) * (1 - plan.mean) / plan.mean
        fall = 1 - np.where(plan.slope < 0, moved, np.inf).min(axis=0)
        rise = 1 + np.where(plan.slope > 0, moved, np.inf).min(axis=0)
        return np.maximum(fall, 0.0), np.where(rise * plan.mean < 1, rise, np.inf)

    def _reference(self, caller: str) -> Matrix:
        if self.rows is None:
            fail(caller, "alarm", "have reference rows, on which this is worked out", "none",
                 remedy="Make it without `exact=True`, from a source that has held-out rows")  # fmt: skip
        return self.rows
