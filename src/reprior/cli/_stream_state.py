"""What a run of `reprior stream` was asked to do, how far it got, and the file that a restart reads both from."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any, NamedTuple

import click
import numpy as np

from reprior import Alarm, Stream
from reprior._check import check_number, fail
from reprior._labels import check_some_labels
from reprior._types import Matrix, Source, Vector
from reprior.cli._shell import keep_apart
from reprior.estimates.show import applied
from reprior.io.labels import as_labels
from reprior.io.records import Form, form_from_json
from reprior.online.acting import STOPPED, ActsEvent, acts_event, without_warning
from reprior.state import decode, encode, is_special, refuse, take, write_atomically

KIND, STREAM = "stream-job", "stream"
HOOK_SECONDS = 60  # that a hook may take before it is ended


class StreamOptions(SimpleNamespace):
    """The options of `reprior stream`, called as the parameters of its command, once they are checked."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        check_number(self.every, STREAM, "--every", low=1, whole=True)
        check_number(self.remember, STREAM, "--remember", low=1, whole=True)
        check_number(self.level, STREAM, "--level", low=0, high=1, open_low=True)
        if self.name is not None and self.label is None:
            raise click.UsageError("--id needs --label, the key of the late labels")
        keep_apart(STREAM, self.output, self.input, self.source, self.counts, self.state, standard=True)
        if self.state is not None and is_special(self.state):
            fail(STREAM, "--state", "be a file, which a restart can read again", self.state)
        self.emitted = self.emit or ("both" if str(self.output) == "-" else "rows")

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the source files, by which a restart knows another source; "" if no file was named."""
        paths = [path for path in (self.source, self.counts) if path is not None]
        content = (blake2b(path.read_bytes()).digest() if path.is_file() else b"" for path in paths)
        return blake2b(b"".join(content)).hexdigest() if paths else ""

    @property
    def lasting(self) -> dict[str, Any]:
        """The options that a restart must repeat."""
        return {
            "--method": self.method, "-O": list(self.options), "--every": self.every, "--columns": self.columns,
            "--emit": self.emitted, "--calibrate": self.calibrate, "--label": self.label, "--id": self.name,
            "--remember": self.remember, "--normalize": self.values == "normalize", "--logits": self.values == "logits",
            "--time": self.time_column, "--level": self.level,
        }  # fmt: skip


class Label(NamedTuple):
    """The label `y` of a row that came, when `at` rows of the batch had been learned: of the row before, or by name."""

    at: int
    y: int
    name: str | None


class Batch(NamedTuple):
    """Records that hold rows, and the labels that arrived with or between them, in their order."""

    records: list[Any]
    names: list[str | None]  # by which a later label may call records; None: not to be waited for
    labels: list[Label]
    rows: Any = None  # probabilities (n, K)
    calibrated: Any = None  # the same after calibration
    times: Sequence[tuple[float, bool]] = ()  # when samples were made


class LateLabels:
    """Where records keep labels and names, and the last rows that still wait for a label."""

    def __init__(self, label: str | None, name: str | None, remember: int) -> None:
        self.label, self.name, self.remember = label, name, remember
        self.waiting: OrderedDict[str, Any] = OrderedDict()
        self.columns: dict[Any, int] = {}
        self.n_used = self.n_lost = 0

    def split(self, records: list[Any], form: Form, source: Source, first: int) -> Batch:
        """Return records as rows and labels; a label that is no class, or of no row, is refused."""
        if self.label is None:
            return Batch(records, [], [])
        batch = Batch([], [], [])
        for number, (record, fields) in enumerate(zip(records, form.fields(records, first), strict=True), first):
            y, late = self.column(fields.get(self.label), source, number), form.lacks_probabilities(fields)
            name = fields.get(self.name or "")
            called = None if name in (None, "") else str(name)
            if late and y >= 0:
                if called is None:
                    how = f"`--id {self.name}` and `--label {self.label}` name the two columns"
                    fail("stream", "input", "name the row that a late label belongs to", repr(fields)[:80],
                         place=f"row {number}",
                         remedy=how if self.name else "Name the column of the sample ids with `--id`")  # fmt: skip
                batch.labels.append(Label(len(batch.records), y, called))
            elif not late or called is None or self.label not in fields or form.opening:
                batch.records.append(record)
                batch.names.append(called if y < 0 else None)
                if y >= 0:
                    batch.labels.append(Label(len(batch.records), y, None))
            # else the label is still unknown; a CSV line like this is a row without its numbers
        return batch

    def column(self, value: Any, source: Source, number: int) -> int:
        """Return the column of a row's label, −1 if there is no label; the result is kept per value."""
        key = type(value), str(value)
        if key not in self.columns:
            label = as_labels([value], source.classes)
            (self.columns[key],) = check_some_labels(
                label, "stream", 1, len(source.prior), source.classes, "--label", place=lambda _: f"row {number}",
            )  # fmt: skip
        return self.columns[key]

    def keep(self, names: list[str | None], rows: Matrix) -> None:
        """Remember rows by their names; the oldest are forgotten."""
        for name, row in zip(names, rows, strict=True) if self.name and names else ():
            if name is not None:
                self.waiting.pop(name, None)
                self.waiting[name] = row.copy()
        while len(self.waiting) > self.remember:
            self.waiting.popitem(last=False)

    def find(self, label: Label, rows: Matrix) -> Any:
        """Return the row that a label is of, and count it; None if it is not remembered."""
        row = rows[label.at - 1] if label.name is None else self.waiting.pop(label.name, None)
        self.n_used, self.n_lost = self.n_used + (row is not None), self.n_lost + (row is None)
        return row

    def to_fields(self, n_classes: int) -> dict[str, Any]:
        """Return the samples that wait for labels, and the counts of labels, for the state file."""
        rows = np.reshape([*self.waiting.values()], (len(self.waiting), n_classes))
        return {"waiting": [*self.waiting], "waiting_rows": rows, "labels": [self.n_used, self.n_lost]}

    def restore(self, fields: dict[str, Any], n_classes: int, caller: str) -> None:
        """Continue from the fields that `to_fields` made."""
        names, counts = take(fields, "waiting", list, caller), take(fields, "labels", list, caller)
        rows = take(fields, "waiting_rows", np.ndarray, caller, (len(names), n_classes))
        numbers = len(counts) == 2 and all(type(count) is int and count >= 0 for count in counts)
        if not numbers or not all(isinstance(name, str) for name in names):
            refuse(caller, "data", "invalid labels")
        self.waiting = OrderedDict(zip(names, rows, strict=True))
        self.n_used, self.n_lost = counts


def seconds_of(value: Any, number: int) -> tuple[float, bool]:
    """Return a time in seconds and whether it was a date: a number, or text like 2026-11-16T12:00:00Z (else UTC)."""
    with suppress(TypeError, ValueError, OverflowError):
        if not isinstance(value, bool) and np.isfinite(seconds := float(value)):
            return seconds, False
    with suppress(TypeError, ValueError, OverflowError):
        when = datetime.fromisoformat(value)
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp(), True
    fail("stream", "input", "have a time in every row, as seconds or like 2026-11-16T12:00:00Z", repr(value)[:60],
         place=f"row {number}", remedy="Name its column with `--time`")  # fmt: skip


ALARM_FIELDS: dict[str, Any] = {  # fields of `AlarmWatch` as the state file has them
    "reported": bool, "dated": bool, "acting": bool, "clock": (int, float, type(None)), "before": int,
}  # fmt: skip


class AlarmWatch:
    """The alarm of a stream, if it has one, the time of its samples, and whether it corrects by at least half."""

    def __init__(self, alarm: Alarm | None, hook: str | None) -> None:
        self.alarm, self.reported = alarm, False
        try:
            self.hook = shlex.split(hook) if hook else None
        except ValueError as error:
            raise click.UsageError(f"--on-alarm takes a command with its arguments: {error}") from error
        self.clock: float | None = None  # the latest time of a sample
        self.dated = False
        self.before = 0  # rows that the stream had learned when the alarm began
        self.acting = True  # whether at least half of the correction was applied at the last look
        self.events: list[ActsEvent] = []  # not reported yet

    def learn(self, stream: Stream, rows: Matrix, times: Sequence[tuple[float, bool]]) -> ActsEvent | None:
        """Let stream and alarm learn calibrated rows, up to its next test; return the event if its correction stops."""
        before, seconds = stream.n, np.full(len(rows), np.nan)
        for i, (time, dated) in enumerate(times):
            seconds[i] = self.clock = time if self.clock is None else max(self.clock, time)  # records may come late
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
        alarm = self.alarm.to_bytes() if self.alarm else b""
        return {"alarm": alarm} | {f"alarm_{name}": getattr(self, name) for name in ALARM_FIELDS}

    def restore(self, fields: dict[str, Any], n_classes: int, caller: str) -> None:
        """Continue from the fields that `to_fields` made; fields of another stream are refused."""
        data = take(fields, "alarm", np.ndarray, caller, (None,)).tobytes()
        self.alarm = Alarm.from_bytes(data) if data else None
        for name, kinds in ALARM_FIELDS.items():
            setattr(self, name, take(fields, f"alarm_{name}", kinds, caller))
        if self.before < 0 or (self.alarm and len(self.alarm.source.prior) != n_classes):
            refuse(caller, "data", "an alarm of another stream")


@dataclass
class RunState:
    """All that a restart continues from, except labels and alarm: with the last bytes read and written."""

    stream: Stream
    weights: Vector  # (K,), correct samples until the next update of the prior
    output: str
    fingerprint: str
    values: str | None = None  # as in `prepare`
    form: Form | None = None
    offset: int = 0
    written: int = 0
    skipped: int = 0
    records: int = 0
    read_tail: bytes = b""
    written_tail: bytes = b""
    mark: list[int] | None = None  # tells the file that is read
    begins: bool = True  # a file, with a header if it is CSV
    first_skipped: str = ""  # not stored

    def skip(self, why: str) -> None:
        """Note that a record was left out."""
        self.skipped, self.first_skipped = self.skipped + 1, self.first_skipped or why


STORED: dict[str, tuple[type, ...]] = {  # fields of `RunState` as the state file has them
    "offset": (int,), "written": (int,), "skipped": (int,), "records": (int,), "read_tail": (np.ndarray,),
    "written_tail": (np.ndarray,), "mark": (list, type(None)), "begins": (bool,), "output": (str,),
    "fingerprint": (str,), "values": (str, type(None)),
}  # fmt: skip


def save(state: RunState, options: StreamOptions, labels: LateLabels, watch: AlarmWatch) -> None:
    """Write the state of a run, whole or not at all."""
    assert options.state is not None
    fields = {
        "settings": options.lasting, "stream": state.stream.to_bytes(), "weights": state.weights,
        "form": asdict(state.form) if state.form else None, **{name: getattr(state, name) for name in STORED},
        **labels.to_fields(len(state.weights)), **watch.to_fields(),
    }  # fmt: skip
    write_atomically(options.state, encode(KIND, fields))


def restore(options: StreamOptions, labels: LateLabels, watch: AlarmWatch) -> RunState | None:
    """Return what the state file holds, if there is one, with labels and alarm put back as they were."""
    path = options.state
    if path is None or not path.exists():
        return None
    fields = decode(path.read_bytes(), KIND, STREAM, name=str(path))
    stored = {name: take(fields, name, kinds, STREAM, (None,)) for name, kinds in STORED.items()}
    then, output = {"-o": stored["output"]} | take(fields, "settings", dict, STREAM), str(options.output)
    # an output file may have moved, but not turned into a pipe or back
    now = {"-o": output if "-" in (output, then["-o"]) else then["-o"]} | options.lasting
    if other := [key for key in now if now[key] != then.get(key)]:
        asked, had = (", ".join(f"{key} {values.get(key)}" for key in other) for values in (now, then))
        fail(STREAM, str(path), f"belong to a run with {asked}", had,
             remedy="Give the same options again, or name another state file to start again")  # fmt: skip
    if options.fingerprint not in ("", stored["fingerprint"]):
        fail(STREAM, "--source", f"be the source that {path} was made from, or be left out", "another",
             remedy="After retraining name a new state file")  # fmt: skip
    if min(stored[name] for name in ("offset", "written", "skipped", "records")) < 0:
        refuse(STREAM, "data", "a negative number of bytes or rows")
    if stored["values"] not in (None, "normalize", "logits"):
        refuse(STREAM, "data", "rows of an unknown kind")
    stored = {name: bytes(item) if isinstance(item, np.ndarray) else item for name, item in stored.items()}
    stream = Stream.from_bytes(take(fields, "stream", np.ndarray, STREAM, (None,)).tobytes())
    k = len(stream.source.prior)
    form = take(fields, "form", (dict, type(None)), STREAM)
    try:
        form = None if form is None else form_from_json(form, k)
    except (LookupError, TypeError, ValueError, AttributeError):
        refuse(STREAM, "data", "an unknown format of records")
    labels.restore(fields, k, STREAM)
    watch.restore(fields, k, STREAM)
    return RunState(stream, take(fields, "weights", np.ndarray, STREAM, (k,)), form=form, **stored)
