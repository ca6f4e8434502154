"""`Alarm`: a sequential test of whether the prior has moved, valid after every sample; bets.py has its mathematics."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from reprior._check import as_array, check_prior, check_proba, check_source, fail, refuse_where
from reprior._types import Matrix, Source, Vector
from reprior.online import bets
from reprior.online.bets import BOLDNESS, Verdict, in_blocks, initial_state, log_bets, state_from_fields
from reprior.online.stream import Stream
from reprior.rows.blocks import by_name
from reprior.rows.correction import correct
from reprior.rows.stored import from_fields, to_fields
from reprior.state import Saved, refuse, take

SAMPLES_PER_BET = 16  # for which a bet on the stream's prior stays the same


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
    refuse_where(np.diff(array, prepend=array[:1]) < 0, caller, "times", "never decrease", array)
    return array


def fields_of(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass by name; unlike `asdict` it copies none of their arrays."""
    return {field.name: getattr(value, field.name) for field in fields(value)}


class Alarm(Saved):
    """Raise an alarm when a stream's class prior has left that of the held-out samples.

    This is a sequential test. It compares each predicted probability with the held-out ones ("reference") and controls
    how often it raises a false alarm. It assumes that samples are independent.

    Parameters
    ----------
    source : Source or (K,)
        What `summarize` returned, or `pipe.source` of a pipeline. Its held-out samples are the reference.
    alpha : float, default 0.01
        Mode "ever": probability that an unshifted stream ever raises an alarm. Mode "monitor": probability that
        `run_length` is not kept because the reference samples are unusual.
    mode : {"monitor", "ever"}
        "monitor" (default) finds late shifts as fast as early ones; false alarms recur after about `run_length`
        samples. "ever" limits the probability of any false alarm, but finds late shifts more slowly.
    run_length : float, default 10000
        Mode "monitor": mean number of samples between false alarms, at least.
    reference : (n, K), optional
        Predicted probabilities of a period without a shift, instead of the held-out samples. Calibrate them if `source`
        is that of a pipeline.
    exact : bool, default False
        Whether `source.prior` is known exactly. Otherwise the test allows for the noise of the reference samples.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> def outputs(y): return np.where(np.eye(2)[y] > 0, 0.9, 0.1)
    >>> was, now = rng.integers(2, size=500), (rng.random(500) < 0.8).astype(int)
    >>> bool(Alarm([1, 1], reference=outputs(was)).look(outputs(now), [0.5, 0.5]))
    True
    """

    KIND = "alarm"

    def __init__(
        self, source: Any, *, alpha: float = 0.01, mode: str = "monitor", run_length: float = 1e4,
        reference: Any = None, exact: bool = False,
    ) -> None:  # fmt: skip
        self.source: Source = check_source(source, "Alarm")
        bets.check_options(alpha, mode, run_length, "Alarm")
        self._weights: Vector | None = None
        self.rows: Matrix | None = None
        if not exact:
            heldout = self.source.heldout and self.source.heldout[0]
            if reference is None and heldout is None:
                fail("Alarm", "source", "have held-out samples, which show the noise of its prior", "none",
                     remedy="Use `pipe.source`, pass earlier predictions as `reference`, or `exact=True`")  # fmt: skip
            rows = self.checked_rows(heldout if reference is None else reference, "Alarm", "reference")
            if len(rows) < 2:
                fail("Alarm", "reference", "have at least two rows", len(rows))
            if reference is not None:
                from reprior.model.ebls import ebls

                self._weights = ebls(self.source, rows).weights
                rows = correct(rows, self._weights)
            self.rows = np.asarray(rows, np.float64)
        mean = self.source.prior if self.rows is None else np.asarray(self.rows.mean(axis=0), np.float64)
        self.options: dict[str, Any] = {"alpha": float(alpha), "mode": mode, "run_length": float(run_length)}
        self.plan = bets.make_plan(mean, self.rows, **self.options)
        self.state = initial_state(self.plan)

    @property
    def verdict(self) -> Verdict:
        """Result of the test after all samples so far; it is true if the alarm is raised."""
        verdict, names = self.state.verdict, self.source.classes
        return replace(verdict, names=tuple(names[k] for k in verdict.classes)) if names else verdict

    def __repr__(self) -> str:
        verdict, mode = self.state.verdict, self.options["mode"]
        state = f"raised at sample {verdict.raised_at:,}" if verdict else "not raised"
        return f"Alarm(mode={mode!r}, {len(self.plan.mean)} classes, n={verdict.n:,}, {state})"

    def reset(self, reference: Any = None) -> None:
        """Start the test again, for example after an alarm that you have dealt with.

        Parameters
        ----------
        reference : (n, K), optional
            Predicted probabilities that count as normal from now on, calibrated if those of the source are. By default
            the test keeps its reference.
        """
        if reference is not None:
            other = Alarm(self.source, reference=reference, **self.options)
            self.plan, self.rows, self._weights = other.plan, other.rows, other._weights
        self.state = initial_state(self.plan)

    def look(self, proba: Any, prior: Any, times: Any = None) -> Verdict:
        """Test samples against the reference and return the verdict. Nothing is learned by a stream; see `watch`.

        Parameters
        ----------
        proba : (n, K)
            Predicted probabilities. Calibrate them first if the source is that of a pipeline.
        prior : (K,)
            The prior that a stream had estimated before these samples. The test uses it as its guess of the shift.
        times : (n,), optional
            Time of each sample, as numbers that never decrease. The verdict then reports times too.
        """
        rows, stream_prior = self.checked_rows(proba, "Alarm.look"), self._prior(prior, "Alarm.look")
        self.bet(rows, stream_prior, check_times(times, len(rows), "Alarm.look"))
        return self.verdict

    def watch(self, stream: Stream, proba: Any, times: Any = None) -> Verdict:
        """Test samples with the stream's current prior, let the stream learn them, and return the verdict.

        The prior is taken from the stream every 16 samples, so the cut into calls does not change the result.

        Parameters
        ----------
        stream : Stream
            Its prior is the test's guess of the shift. It learns the samples.
        proba : (n, K)
            Predicted probabilities as the stream takes them: raw, if it has a calibrator.
        times : (n,), optional
            Time of each sample, as numbers that never decrease. The verdict then reports times too.
        """
        caller = "Alarm.watch"
        self._prior(stream.prior, caller)
        rows = self.checked_rows(stream.calibrated(by_name(proba, self.source.classes, caller), caller=caller), caller)
        return self.watch_calibrated(stream, rows, check_times(times, len(rows), caller))

    def watch_calibrated(self, stream: Stream, rows: Matrix, when: Vector) -> Verdict:
        """Test calibrated rows (n, K) that came `when` (n,), NaN if unknown, and let the stream learn them."""
        return self.follow(rows, when, lambda: stream.prior, stream.learn_calibrated)

    def follow(
        self, rows: Matrix, when: Vector, stream_prior: Callable[[], Vector], learn: Callable[[Matrix], object]
    ) -> Verdict:
        """Test rows (n, K) that came `when` (n,) in blocks, and let a stream with this prior `learn` each block."""
        first = 0
        while first < len(rows):
            since_bet, prior = self.state.verdict.n % SAMPLES_PER_BET, self.state.stream_prior
            block = slice(first, first + SAMPLES_PER_BET - since_bet)
            if since_bet == 0 or prior is None:
                prior = stream_prior()
            self.bet(rows[block], prior, when[block])
            learn(rows[block])
            first = block.stop
        return self.verdict

    def checked_rows(self, proba: Any, caller: str, name: str = "proba") -> Matrix:
        """Return rows (n, K), checked, with columns in the order of the source's classes by name."""
        return check_proba(by_name(proba, self.source.classes, caller), caller, name, len(self.source.prior))

    def _prior(self, prior: Any, caller: str) -> Vector:
        k, classes = len(self.plan.mean), self.source.classes
        return check_prior(prior, caller, "prior", allow_zero=True, n_classes=k, classes=classes)

    def bet(self, rows: Matrix, prior: Vector, times: Vector) -> None:
        """Test rows (n, K) that came at `times` (n,) as `look` does; the caller has checked them."""
        for block, when in in_blocks(self.plan, rows, times):
            corrected = block if self._weights is None else correct(block, self._weights)
            self.state = bets.update(self.plan, self.state, np.asarray(corrected, np.float64), prior, when)

    def fixed_fields(self) -> dict[str, Any]:
        """Return what bytes hold of the alarm besides the state of its test. Reference samples are not included."""
        plan = {f"plan_{name}": x for name, x in fields_of(self.plan).items()}
        source = to_fields(self.source, parts=("prior", "classes"))
        return {**source, **plan, "options": self.options, "weights": self._weights}

    def fields(self, caller: str) -> dict[str, Any]:
        """Return what bytes hold of the alarm."""
        return {**self.fixed_fields(), **fields_of(self.state), "verdict": asdict(self.state.verdict)}

    @classmethod
    def from_fields(cls, stored: dict[str, Any], caller: str) -> Alarm:
        """Return the alarm whose `fields` bytes held. Its test continues."""
        alarm = cls.from_fixed_fields(stored, caller)
        alarm.state = state_from_fields(stored, alarm.plan, caller)
        return alarm

    @classmethod
    def from_fixed_fields(cls, stored: dict[str, Any], caller: str) -> Alarm:
        """Return the alarm that `fixed_fields` described, before its first sample."""
        alarm = cls.__new__(cls)
        alarm.source, _ = from_fields(stored, caller)
        alarm.plan = bets.plan_from_fields(stored, len(alarm.source.prior), caller)
        alarm.rows, alarm.state = None, initial_state(alarm.plan)
        alarm.options = take(stored, "options", dict, caller)
        if alarm.options.keys() != {"alpha", "mode", "run_length"}:
            refuse(caller, "data", "invalid options")
        bets.check_options(**alarm.options, caller=caller)
        alarm._weights = take(stored, "weights", (np.ndarray, type(None)), caller, alarm.source.prior.shape)
        if alarm._weights is not None:
            check_prior(alarm._weights, caller, "weights")
        return alarm

    def delay(self, prior: Any) -> float:
        """Return how many samples the test needs, on average, to find a lasting shift; infinity if it cannot find it.

        This is optimistic: the samples that the stream needs to learn the new prior are not counted.

        Parameters
        ----------
        prior : (K,)
            The class prior after the shift.
        """
        rows = self._reference("Alarm.delay")
        target = self._prior(prior, "Alarm.delay")
        chance = rows @ (target / self.plan.mean)
        chance /= chance.sum()  # of each reference row, had they been drawn under `prior`
        growth = np.zeros(len(self.plan.log_share))
        for share, block in in_blocks(self.plan, chance, rows):
            growth += share @ log_bets(self.plan, block, target)
        growing = growth > 0
        needed = (self.plan.log_threshold - self.plan.log_share[growing]) / growth[growing]
        return float(needed.min(initial=math.inf))

    def smallest(self) -> tuple[Vector, Vector]:
        """Return the factors (K,), (K,) by which a class's share must fall, or rise, for the test to find it.

        The other classes keep their proportions. A factor is 0 if even the absence of the class is not found, and
        infinity if no rise is.
        """
        plan, rows = self.plan, self._reference("Alarm.smallest")
        k, n_stream_bets = len(plan.mean), len(BOLDNESS)
        # Under a shift of class k by σ, from a share m to m + σ(1−m), a row with outputs p has the weight 1 + σ·x_k,
        # x_k = p_k/m_k − 1. So a bet on a class, which stays the same, gains G₀ + σ·G_k: solve for σ.
        n_class_bets = len(plan.log_share) - n_stream_bets
        gain_at_mean, gain_per_sigma = np.zeros(n_class_bets), np.zeros((n_class_bets, k))
        for (block,) in in_blocks(plan, rows):
            gains = log_bets(plan, block, plan.mean)[:, n_stream_bets:]
            excess = block / plan.mean - block.sum(axis=1)[:, None]
            gain_at_mean, gain_per_sigma = gain_at_mean + block.sum(axis=1) @ gains, gain_per_sigma + gains.T @ excess
        with np.errstate(divide="ignore", invalid="ignore"):
            needed = np.maximum(-gain_at_mean[:, None], 0.0) / gain_per_sigma
        ends = -plan.mean / (1 - plan.mean), np.ones(k)  # σ where the class is absent, and where it is alone
        smallest = []
        for end, sign in zip(ends, (-1.0, 1.0), strict=True):
            by_class_bets = np.where(sign * gain_per_sigma > 0, np.abs(needed), math.inf).min(axis=0)
            # bets on the stream's prior follow the shift; their gain has no such form, but it grows with σ
            low, high = np.zeros(k), np.abs(end)
            for _ in range(16):
                trial_sigma = (low + high) / 2
                gained = bets.stream_bets_gain(plan, rows, sign * trial_sigma)
                low, high = np.where(gained, low, trial_sigma), np.where(gained, trial_sigma, high)
            sigma = np.minimum(by_class_bets, np.where(high < np.abs(end), high, math.inf))
            smallest.append(np.where(sigma < np.abs(end), 1 + sign * sigma * (1 - plan.mean) / plan.mean, math.inf))
        return np.where(np.isinf(smallest[0]), 0.0, np.maximum(smallest[0], 0.0)), smallest[1]

    def _reference(self, caller: str) -> Matrix:
        if self.rows is None:
            fail(caller, "alarm", "have reference samples", "none",
                 remedy="Create it without `exact=True`, from a source with held-out samples")  # fmt: skip
        return self.rows
