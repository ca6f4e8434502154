"""Has the prior moved? A sequential test that may be looked at after every sample; bets.py says how it bets."""

from __future__ import annotations

import math
from dataclasses import asdict, replace
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
from reprior._types import Matrix, Source, Vector
from reprior.online.bets import (
    BOLDNESS,
    FACTORS,
    Plan,
    Verdict,
    followers_gain,
    in_blocks,
    log_bets,
    look,
    make_plan,
    seen_from_fields,
    seen_to_fields,
    spread_out,
    start,
)
from reprior.rows.blocks import by_name
from reprior.rows.correction import correct
from reprior.rows.stored import from_fields, to_fields
from reprior.state import Key, decode, encode, read_saved, refuse, take, write_atomically

RENEW = 16  # samples for which a bet on the stream's prior stays the same
MODES = ("monitor", "ever")


class Learner(Protocol):
    """What an alarm needs of a stream: its prior before some rows, those rows as it sees them, and to learn them."""

    @property
    def prior(self) -> Vector: ...

    def calibrated(self, proba: Any, *, caller: str) -> Matrix: ...

    def learn_calibrated(self, rows: Any) -> Any: ...


def check_times(times: Any, n: int, caller: str) -> Vector:
    """Return the time of each of n rows (n,), NaN where none were given; they are finite and never go back."""
    if times is None:
        return np.full(n, math.nan)
    if getattr(times, "dtype", None) is not None and times.dtype.kind == "M":
        fail(caller, "times", "be numbers", f"dtype {times.dtype}",
             remedy="Pass seconds: `times.astype('datetime64[us]').astype(float) / 1e6`")  # fmt: skip
    array = as_array(times, caller, "times").astype(np.float64)
    if array.shape != (n,):
        fail(caller, "times", f"have shape ({n},), one time per sample", f"shape {array.shape}")
    refuse_where(~np.isfinite(array), caller, "times", "be finite", array)
    refuse_where(np.diff(array, prepend=array[:1]) < 0, caller, "times", "not go back", array)
    return array


def check_options(alpha: Any, mode: Any, run_length: Any, caller: str) -> None:
    """Refuse options that no alarm can have."""
    check_number(alpha, caller, "alpha", low=0, high=0.5, open_low=True)
    check_number(run_length, caller, "run_length", low=1, open_low=True)
    check_choice(mode, caller, "mode", MODES)


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
        check_options(alpha, mode, run_length, "Alarm")
        self._weights: Vector | None = None
        self.rows: Matrix | None = None
        if not exact:
            heldout = self.source.heldout and self.source.heldout[0]
            if reference is None and heldout is None:
                fail("Alarm", "source", "have held-out samples, so that the margin for its prior can be known", "none",
                     remedy="Make it by `summarize`, pass earlier rows as `reference`, or `exact=True`")  # fmt: skip
            rows = heldout if reference is None else reference
            rows = self._rows(rows, "Alarm", "reference")
            if len(rows) < 2:
                fail("Alarm", "reference", "have at least two rows", len(rows))
            if reference is not None:
                from reprior.model.ebls import ebls

                self._weights = ebls(self.source, rows).weights
                rows = correct(rows, self._weights)
            self.rows = np.asarray(rows, np.float64)
        mean = self.source.prior if self.rows is None else np.asarray(self.rows.mean(axis=0), np.float64)
        self.options: dict[str, Any] = {"alpha": float(alpha), "mode": mode, "run_length": float(run_length)}
        self.plan = make_plan(mean, self.rows, **self.options)
        self.purse = start(self.plan)
        self._believed: Vector | None = None  # the prior bet on since the last renewal

    @property
    def verdict(self) -> Verdict:
        """What the samples seen so far say."""
        verdict, names = self.purse.verdict, self.source.classes
        return replace(verdict, names=tuple(names[k] for k in verdict.classes)) if names else verdict

    def __repr__(self) -> str:
        verdict, kind = self.purse.verdict, "monitor" if self.plan.forgets else "ever"
        state = f"raised at sample {verdict.raised_at:,}" if verdict else "not raised"
        return f"Alarm(mode={kind!r}, {len(self.plan.mean)} classes, n={verdict.n:,}, {state})"

    def reset(self, reference: Any = None) -> None:
        """Start the test again, as after an alarm that was dealt with.

        Parameters
        ----------
        reference : (n, K), optional
            Rows that are normal from now on, calibrated if those of the source are. Without them the test starts again
            against the reference that it had.
        """
        if reference is not None:
            other = Alarm(self.source, reference=reference, **self.options)
            self.plan, self.rows, self._weights = other.plan, other.rows, other._weights
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
        k = len(self.plan.mean)
        check_prior(stream.prior, "Alarm.watch", "prior", allow_zero=True, n_classes=k)
        caller = "Alarm.watch"
        rows = self._rows(stream.calibrated(by_name(proba, self.source.classes, caller), caller=caller), caller)
        return self._follow(stream, rows, check_times(times, len(rows), caller))

    def _follow(self, stream: Learner, rows: Matrix, when: Vector) -> Verdict:
        """Bet on calibrated rows (n, K) that came `when` (n,), and let the stream learn them."""
        first = 0
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
            corrected = block if self._weights is None else correct(block, self._weights)
            self.purse = look(self.plan, self.purse, np.asarray(corrected, np.float64), prior, when)

    def _fixed(self) -> dict[str, Any]:
        """Return what bytes must say of the alarm beside what it has seen."""
        fields = to_fields(self.source, parts=("prior", "classes"))
        return (
            fields
            | {"options": self.options, "weights": self._weights}
            | {f"plan_{name}": x for name, x in asdict(self.plan).items()}
        )

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
        alarm = cls.__new__(cls)
        alarm.source, _ = from_fields(stored, caller)
        k, factors = len(alarm.source.prior), len(FACTORS)
        bets = len(BOLDNESS) + factors * k
        shapes = {"mean": (k,), "spread": (k,), "slope": (factors, k), "price": (factors, k), "log_share": (bets,)}
        arrays = {name: take(stored, f"plan_{name}", np.ndarray, caller, shape) for name, shape in shapes.items()}
        arrays = {name: x.astype(np.float64) for name, x in arrays.items()}
        threshold = float(take(stored, "plan_log_threshold", (int, float), caller))
        alarm.plan = plan = Plan(**arrays, log_threshold=threshold, forgets=take(stored, "plan_forgets", bool, caller))
        inside = ((plan.mean >= 1e-12) & (plan.mean <= 1 - 1e-12) & (plan.spread >= 0) & (plan.spread < 1e13)).all()
        fair = bool(inside and ((plan.price > 1 - 1e-9) & (plan.price < 1e13)).all())
        fair = fair and all(map(np.allclose, spread_out(plan.mean)[::2], (plan.slope, plan.log_share)))
        if not (fair and 0 < threshold < 1e3):
            refuse(caller, "data", "numbers that no alarm has")
        alarm.rows, alarm._believed, alarm.purse = None, None, start(plan)
        alarm.options = options = take(stored, "options", dict, caller)
        if options.keys() != {"alpha", "mode", "run_length"}:
            refuse(caller, "data", "options that no alarm has")
        check_options(**options, caller=caller)
        alarm._weights = take(stored, "weights", (np.ndarray, type(None)), caller, (k,))
        if alarm._weights is not None:
            check_prior(alarm._weights, caller, "weights")
        return alarm

    @classmethod
    def load(cls, path: str | Path, key: Key = None) -> Alarm:
        """Return the alarm that `save` wrote to a file; a file that holds anything else is refused."""
        return cls.from_bytes(read_saved(path, "Alarm.load"), key)

    def save(self, path: str | Path, key: Key = None) -> None:
        """Write the alarm to one file, whole or not at all, whatever happens; `reprior.load` reads it."""
        write_atomically(path, self.to_bytes(key))

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
        smallest = []
        for end, sign in zip(ends, (-1.0, 1.0), strict=True):
            fixed = np.where(sign * tilted > 0, np.abs(needed), math.inf).min(axis=0)
            # the bets on the stream's prior follow the shift; what they gain has no such form, and grows with σ
            low, high = np.zeros(k), np.abs(end)
            for _ in range(16):
                middle = (low + high) / 2
                sees = followers_gain(plan, rows, sign * middle)
                low, high = np.where(sees, low, middle), np.where(sees, middle, high)
            sigma = np.minimum(fixed, np.where(high < np.abs(end), high, math.inf))
            smallest.append(np.where(sigma < np.abs(end), 1 + sign * sigma * (1 - plan.mean) / plan.mean, math.inf))
        return np.where(np.isinf(smallest[0]), 0.0, np.maximum(smallest[0], 0.0)), smallest[1]

    def _reference(self, caller: str) -> Matrix:
        if self.rows is None:
            fail(caller, "alarm", "have reference rows, on which this is worked out", "none",
                 remedy="Make it without `exact=True`, from a source that has held-out samples")  # fmt: skip
        return self.rows
