"""The alarms of a stream: a shift of its class prior, and changes that are not label shift; and whom to tell."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from reprior import Alarm, InputError
from reprior._check import fail
from reprior.estimates.show import applied
from reprior.online.acting import NOT, ActsEvent, acts_event, without_warning
from reprior.online.alarm import RENEW
from reprior.state import refuse, take

if TYPE_CHECKING:
    from collections.abc import Callable

    from reprior import Stream
    from reprior._types import Matrix, Vector

HOOK_SECONDS = 60  # that a hook may take before it is ended


def moment(value: Any, number: int) -> tuple[float, bool]:
    """Return a time in seconds and whether it was a date: a number, or text like 2026-11-16T12:00:00Z (else UTC)."""
    try:
        if not isinstance(value, bool):
            seconds = float(value)
            if np.isfinite(seconds):
                return seconds, False
    except (TypeError, ValueError, OverflowError):
        pass
    try:
        when = datetime.fromisoformat(value)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp(), True
    except (TypeError, ValueError, OverflowError):
        fail("stream", "input", "have a time in every row, as seconds or like 2026-11-16T12:00:00Z", repr(value)[:60],
             place=f"row {number}", remedy="`--time` says what holds it")  # fmt: skip


class Watch:
    """An alarm that looks at rows by sixteen, so that a restart never changes what it says, or none; and whether the
    stream corrects."""

    def __init__(self, alarm: Alarm | None, hook: str | None) -> None:
        self.alarm, self.reported = alarm, False
        try:
            self.hook = shlex.split(hook) if hook else None
        except ValueError as error:
            raise click.UsageError(f"--on-alarm takes a command with its arguments: {error}") from error
        self.rows: list[Vector] = []  # not looked at yet
        self.times: list[float] = []
        self.believed: Vector | None = None
        self.clock, self.dated = -np.inf, False
        self.before = 0  # rows that the stream had learned when the alarm began
        self.acting = True  # whether at least half of the correction was applied at the last look
        self.events: list[ActsEvent] = []  # that nobody was told of

    def rearm(self, n: int) -> None:
        """Start the alarm anew after `n` rows: the last one was dealt with."""
        if self.alarm is None:
            fail("stream", "--rearm", "be used with an alarm", "none", remedy="`--alarm` asks for one")
        self.alarm.reset()
        self.reported, self.before, self.rows, self.times, self.believed = False, n, [], [], None

    def learn(self, stream: Stream, rows: Matrix, times: list[tuple[float, bool]]) -> ActsEvent | None:
        """Let the stream learn calibrated rows, and the alarm see them. Return the event if the stream stops to correct
        or corrects again; `rows` must not go beyond the stream's next test."""
        before = stream.n
        with without_warning():
            self._learn(stream, rows, times)
        event = acts_event(stream, before, self.acting)
        if event is not None:
            self.acting = event.kind != NOT
            self.events.append(event)
        return event

    def _learn(self, stream: Stream, rows: Matrix, times: list[tuple[float, bool]]) -> None:
        seconds = []
        for time, dated in times:
            self.clock, self.dated = max(self.clock, time), self.dated or dated  # records may come late
            seconds.append(self.clock)
        if self.alarm is None:
            stream.learn_calibrated(rows)
            return
        start = 0
        while start < len(rows):
            if not self.rows:
                self.believed = stream.prior
            stop = min(len(rows), start + RENEW - len(self.rows))
            self.times += seconds[start:stop]
            self.rows += [np.array(row, np.float64) for row in rows[start:stop]]
            stream.learn_calibrated(rows[start:stop])
            if len(self.rows) == RENEW:
                self.alarm.look(np.array(self.rows), self.believed, self.times or None)
                self.rows, self.times = [], []
            start = stop

    def verdict(self) -> dict[str, Any] | None:
        """Return when the alarm was raised, since when and by which classes; None: it was not."""
        verdict = self.alarm.verdict if self.alarm else None
        if verdict is None or verdict.raised_at is None or verdict.since is None:
            return None
        value: dict[str, Any] = {"raised_at": self.before + verdict.raised_at, "since": self.before + verdict.since,
                                 "classes": list(verdict.names or verdict.classes)}  # fmt: skip
        times = {"raised_time": verdict.raised_time, "since_time": verdict.since_time}
        return value | {name: self.shown(time) for name, time in times.items() if time is not None}

    def shown(self, time: float) -> float | str:
        """Return a time as it came in: a number, or a date."""
        return datetime.fromtimestamp(time, UTC).isoformat().replace("+00:00", "Z") if self.dated else time

    def tell(self, about: Callable[[], dict[str, Any]]) -> None:
        """Report each alarm and event once: on standard error, and to the hook."""
        for event in self.events:
            click.echo(f"Sample {event.n:,}: {event.kind}. {applied(event)}", err=True)
            self.run_hook(about() | event._asdict())
        self.events.clear()
        if not self.reported and self.verdict() is not None:
            self.reported = True
            self.run_hook(about() | {"kind": "shift"})

    def run_hook(self, facts: dict[str, Any]) -> None:
        """Run the hook: no shell, the facts as JSON on its standard input."""
        if self.hook is None:
            return
        text = json.dumps(facts)
        try:
            done = subprocess.run(self.hook, input=text.encode(), stdout=2, timeout=HOOK_SECONDS, check=False,
                                  env={**os.environ, "REPRIOR_ALARM": text})  # fmt: skip
            failed = f"exit code {done.returncode}" if done.returncode else ""
        except (OSError, subprocess.SubprocessError) as error:
            failed = str(error)
        if failed:
            click.echo(f"The alarm was raised, but --on-alarm failed: {failed}", err=True)

    def to_fields(self) -> dict[str, Any]:
        """Return what a state must keep."""
        return {
            "alarm": self.alarm.to_bytes() if self.alarm else b"", "alarm_reported": self.reported,
            "alarm_dated": self.dated,
            "alarm_clock": None if np.isinf(self.clock) else self.clock, "alarm_rows": np.array(self.rows, np.float64),
            "alarm_times": list(self.times), "alarm_believed": self.believed, "alarm_before": self.before,
            "acting": self.acting,
        }  # fmt: skip

    def restore(self, saved: dict[str, Any], n_classes: int, caller: str) -> None:
        """Go on from what a state has kept."""
        data = take(saved, "alarm", np.ndarray, caller, (None,)).tobytes()
        self.alarm = Alarm.from_bytes(data) if data else None
        self.reported, self.dated = (take(saved, f"alarm_{name}", bool, caller) for name in ("reported", "dated"))
        self.acting = take(saved, "acting", bool, caller)
        clock = take(saved, "alarm_clock", (int, float, type(None)), caller)
        self.clock = -np.inf if clock is None else float(clock)
        rows, times = saved.get("alarm_rows"), take(saved, "alarm_times", list, caller)
        believed = take(saved, "alarm_believed", (np.ndarray, type(None)), caller, (n_classes,))
        if not isinstance(rows, np.ndarray) or (rows.shape != (0,) and rows.shape[1:] != (n_classes,)):
            refuse(caller, "data", "rows that no alarm waits for")
        if len(rows) >= RENEW or len(times) not in (0, len(rows)) or (len(rows) and believed is None):
            refuse(caller, "data", "rows that no alarm waits for")
        if any(type(time) not in (int, float) for time in times):
            refuse(caller, "data", "times that are none")
        before = take(saved, "alarm_before", int, caller)
        if before < 0:
            refuse(caller, "data", "a negative number of rows")
        self.rows, self.times, self.believed, self.before = list(rows), times, believed, before


def make_alarm(source: Any, wanted: bool | None) -> Alarm | None:
    """Return an alarm against the held-out rows; None where there are none, unless one is wanted."""
    if wanted is False or (wanted is None and source.heldout is None):
        return None
    try:
        return Alarm(source)
    except InputError:
        if wanted is None:  # too few rows to tell anything by
            return None
        raise
