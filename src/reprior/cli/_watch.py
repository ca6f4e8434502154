"""The alarms of a stream: a shift of its class prior, and changes that are not label shift; and whom to tell."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import click
import numpy as np

from reprior import Alarm, Stream
from reprior._check import fail
from reprior._types import Matrix
from reprior.estimates.show import applied
from reprior.online.acting import STOPPED, ActsEvent, acts_event, without_warning
from reprior.state import refuse, take

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
             place=f"row {number}", remedy="Name its column with `--time`")  # fmt: skip


class Watch:
    """The alarm of a stream, if it has one, the time of its samples, and whether it corrects by at least half."""

    def __init__(self, alarm: Alarm | None, hook: str | None) -> None:
        self.alarm, self.reported = alarm, False
        try:
            self.hook = shlex.split(hook) if hook else None
        except ValueError as error:
            raise click.UsageError(f"--on-alarm takes a command with its arguments: {error}") from error
        self.clock, self.dated = -np.inf, False
        self.before = 0  # rows that the stream had learned when the alarm began
        self.acting = True  # whether at least half of the correction was applied at the last look
        self.events: list[ActsEvent] = []  # not reported yet

    def rearm(self, n: int) -> None:
        """Reset the alarm after `n` samples: the last one was dealt with."""
        if self.alarm is None:
            fail("stream", "--rearm", "be used with an alarm", "none", remedy="Add `--alarm`")
        self.alarm.reset()
        self.reported, self.before = False, n

    def learn(self, stream: Stream, rows: Matrix, times: list[tuple[float, bool]]) -> ActsEvent | None:
        """Let stream and alarm learn calibrated rows, up to its next test; return the event if its correction stops."""
        before, seconds = stream.n, np.full(len(rows), np.nan)
        for i, (time, dated) in enumerate(times):
            seconds[i] = self.clock = max(self.clock, time)  # records may come late
            self.dated = self.dated or dated
        with without_warning():
            if self.alarm is None:
                stream.learn_calibrated(rows)
            else:
                self.alarm.watch_calibrated(stream, rows, seconds)
        event = acts_event(stream, before, self.acting)
        if event is not None:
            self.acting = event.kind != STOPPED
            self.events.append(event)
        return event

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
        """Return the alarm and what was reported of it, for the state file."""
        return {
            "alarm": self.alarm.to_bytes() if self.alarm else b"", "alarm_reported": self.reported,
            "alarm_dated": self.dated, "alarm_clock": None if np.isinf(self.clock) else self.clock,
            "alarm_before": self.before, "acting": self.acting,
        }  # fmt: skip

    def restore(self, saved: dict[str, Any], n_classes: int, caller: str) -> None:
        """Continue from the fields that `to_fields` made; fields of another stream are refused."""
        data = take(saved, "alarm", np.ndarray, caller, (None,)).tobytes()
        self.alarm = Alarm.from_bytes(data) if data else None
        self.reported, self.dated = (take(saved, f"alarm_{name}", bool, caller) for name in ("reported", "dated"))
        self.acting = take(saved, "acting", bool, caller)
        clock = take(saved, "alarm_clock", (int, float, type(None)), caller)
        self.clock = -np.inf if clock is None else float(clock)
        self.before = take(saved, "alarm_before", int, caller)
        if self.before < 0 or (self.alarm and len(self.alarm.source.prior) != n_classes):
            refuse(caller, "data", "an alarm of another stream")

