"""`reprior stream`: corrected rows out as rows come in, and a state that survives any crash."""

from __future__ import annotations

import json
import os
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from reprior import Alarm, InputError, Source, Stream
from reprior._check import check_rows, check_source, counted, fail, listed, row_fault
from reprior._types import Vector

from reprior.cli._inputs import (  # isort: skip
    SourceFiles, check_method, classes_option, parse_options, read_names, read_pipeline, source_options,
    stream_method_options, values_options,
)  # fmt: skip
from reprior.cli._pipes import Arriving, Leaving, Stop, tail_of
from reprior.cli._shell import DONE, INTERRUPTED, alone, printable
from reprior.cli._stream_state import AlarmWatch, Batch, LateLabels, RunState, StreamOptions, restore, save, seconds_of
from reprior.estimates.show import applied, cut
from reprior.io.files import RECORD_BYTES, prepare, refuse_probabilities, too_long
from reprior.io.records import CSV, JSON, MSGPACK, UTF8_MARK, Roles, header_names, recognise
from reprior.io.table import Choice, left_aside
from reprior.online.acting import next_window_end
from reprior.online.registry import ONLINE
from reprior.rows.correction import correct_rows

FORMATS = {".csv": CSV, ".ndjson": JSON, ".jsonl": JSON, ".msgpack": MSGPACK}  # of records, by the end of a name
BY_POSITION = "Classes were matched by position, because the input or the source has no class names."


@click.command("stream")
@click.argument("input", default="-", type=click.Path(allow_dash=True, path_type=Path))
@click.option("-s", "--source", type=click.Path(path_type=Path), help="As for estimate; --state remembers it.")
@source_options("--source-label")
@classes_option
@values_options
@stream_method_options
@click.option("--columns", help="Key or columns of the probabilities: a,b,c or first:last.")
@click.option("--label", help="Key of the label; null or empty if unknown.")
@click.option("--id", "name", help="Key of the sample id, so that its label can arrive in a later record.")
@click.option("--remember", default=10_000, show_default=True, help="Number of samples that may wait for a label.")
@click.option("--time", "time_column", help="Key of the time: seconds, or like 2026-11-16T12:00:00Z.")
@click.option("--alarm/--no-alarm", default=None, help="Raise an alarm when the prior shifts."
              "  [default: on with held-out samples, if the prior is written]")  # fmt: skip
@click.option("--on-alarm", metavar="COMMAND", help="Run this once the alarm is raised: without a shell, with the"
              " record as JSON on standard input and in REPRIOR_ALARM.")  # fmt: skip
@click.option("--rearm", is_flag=True, help="On a restart: reset the alarm.")
@click.option("--level", default=0.95, show_default=True, help="Level of the intervals; 1: no intervals.")
@click.option("--state", type=click.Path(path_type=Path), help="Save the state here, and continue from it.")
@click.option("-o", "--output", default="-", type=click.Path(allow_dash=True, path_type=Path), help="Output file.")
@click.option("--emit", type=click.Choice(["both", "rows", "prior"]),
              help="Corrected rows, the prior after every --every rows, or both; a CSV table gets rows alone."
              "  [default: rows with -o, else both]")  # fmt: skip
@click.option("--every", default=100, show_default=True, help="Number of samples between two updates of the prior.")
@click.option("--follow", is_flag=True, help="Wait for more at the end of the file, and follow a rotated file, like"
              " tail -F.")  # fmt: skip
@click.option("--skip-bad", is_flag=True, help="Skip rows that are not probabilities instead of stopping.")
@click.option("--save-every", default=1.0, show_default=True, help="Seconds between two saves of the state.")
@click.option("--json", "as_json", is_flag=True, help="Print errors as JSON.")
def command(as_json: bool, **settings: Any) -> int:
    """Correct INPUT (NDJSON, CSV or msgpack; standard input by default) one by one, and follow the class prior.

    Each sample is corrected before it is learned, with the prior of at most --every samples ago. With --state a
    restart continues, and the output has the same bytes as an uninterrupted run. `reprior show` prints a state.

    \b
    Example:  reprior stream scores.ndjson --source counts.json --state state.bin -o corrected.ndjson
    """
    state = settings["state"]
    with alone("stream", state, "--state") if state is not None else nullcontext():
        run = StreamRun(StreamOptions(**settings))
        try:
            if run.warning:
                click.echo(run.warning, err=True)
            with run.stop:
                run.run()
            piped = run.out.handle == 1
        finally:
            run.pieces.close()
            run.out.close()
        value = {"rows": run.stream.n, "skipped": run.at.skipped, "labels": run.labels.n_used,
                 "labels_lost": run.labels.n_lost, "output": run.out.name, "state": str(state) if state else None,
                 "matched": run.matched, "alarm": run.watch.verdict(), "acts": run.stream.acts._asdict()}  # fmt: skip
        for line in [json.dumps(value)] * (not piped) if as_json else report(run, piped):
            click.echo(printable(line), err=True)
        return INTERRUPTED if run.stop.asked else DONE


def report(run: StreamRun, piped: bool) -> list[str]:
    """Return what a run did, in sentences; where it wrote is left out if that is a pipe."""
    labels, alarm, at, state, lines = run.labels, run.watch.verdict(), run.at, run.options.state, []
    if at.skipped:
        lines.append(f"{counted(at.skipped, 'row')} left out; the first: {at.first_skipped}")
    if labels.n_lost:
        lost = f"{counted(labels.n_lost, 'label')} found no row among the last {labels.remember:,} that wait for one"
        lines.append(f"{lost}; see --remember and --id")
    if alarm:
        since = f" ({alarm['since_time']})" if "since_time" in alarm else ""
        names = ", ".join(cut(str(name)) for name in alarm["classes"][:8])
        lines.append(f"The alarm was raised at row {alarm['raised_at']}; predictions have changed since about row"
                     f" {alarm['since']}{since}: {names}.")  # fmt: skip
    if run.stream.acts.log_evidence is not None:
        lines.append(applied(run.stream.acts))
    if not piped:
        text = f"{run.out.name}: {counted(run.stream.n, 'row')}"
        text += f", {counted(labels.n_used, 'label')}" if labels.label else ""
        lines.append(text + (f"; state in {state}" if state else "; no state kept"))
    return lines + [BY_POSITION] * (run.stream.n > 0 and run.matched == "position")


def alarm_for(source: Source, options: StreamOptions) -> Alarm | None:
    """Return the alarm that is wanted, or else one that somebody sees and that held-out samples allow."""
    wanted = bool(options.on_alarm) if options.alarm is None else options.alarm
    if not wanted and (options.alarm is False or options.emitted == "rows" or source.heldout is None):
        return None
    try:
        return Alarm(source)
    except InputError:
        if wanted:
            raise
        return None  # too few held-out samples to tell anything by


class StreamRun:
    """Reads records, corrects and learns them, writes them, and saves how far it got."""

    def __init__(self, options: StreamOptions) -> None:
        self.options, self.warning = options, ""
        self.labels = LateLabels(options.label, options.name, options.remember)
        self.watch = AlarmWatch(None, options.on_alarm)
        before = restore(options, self.labels, self.watch)
        self.at = self.new_state() if before is None else before
        if before is not None and options.rearm:  # the last alarm was dealt with
            if self.watch.alarm is None:
                fail("stream", "--rearm", "be used with an alarm", "none", remedy="Add `--alarm`")
            self.watch.alarm.reset()
            self.watch.reported, self.watch.before = False, before.stream.n
        self.out = Leaving(options.output, None if before is None else before.written, self.at.written_tail,
                           self.at.output)  # fmt: skip
        self.at.output, self.stream = str(options.output), self.at.stream
        self.stop, self.saved_at = Stop(), time.monotonic()
        self.pieces = Arriving(options.input, self.at.offset, self.at.read_tail, self.at.mark,
                               follow=options.follow, stop=self.stop)  # fmt: skip
        self.at.mark = self.pieces.mark

    def new_state(self) -> RunState:
        """Return the state of a run that has learned nothing yet, and set the alarm."""
        options = self.options
        if options.source is None and options.counts is None:
            fail("stream", "--source", "be given, unless --state names an existing state", "nothing")
        check_method("stream", options.method, ONLINE, "reprior estimate")
        names = read_names(options.classes, "stream")
        files = SourceFiles(options.source, options.counts, options.columns, options.source_columns,
                            options.source_label, options.calibrate, options.values, names)  # fmt: skip
        pipe, values, self.warning = read_pipeline("stream", files)
        if pipe.classes is None and names:
            pipe = replace(pipe, source=check_source(pipe.source, "stream", names))
        self.watch.alarm = alarm_for(pipe.source, options)
        stream = Stream(options.method, pipe.source, calibrator=pipe.calibrator, **parse_options(options.options))
        return RunState(stream, stream.weights, str(options.output), options.fingerprint, values)

    def run(self) -> None:
        """Process all that arrives."""
        at, data = self.at, bytearray()
        for piece in self.pieces:
            if piece is None:  # another file begins: the old one was renamed, or cut
                self.finish(data)
                at.offset, at.read_tail, at.mark, at.begins = 0, b"", self.pieces.mark, True
                self.save()
            else:
                data += piece
                if b"\n" in piece or self.binary(data):
                    self.take(data)
                if len(data) > RECORD_BYTES:
                    self.save()
                    too_long("stream", "input")
            if time.monotonic() - self.saved_at >= self.options.save_every:
                self.save()
        if not self.stop.asked:
            self.finish(data)
        self.out.open()  # an empty input has an empty output
        self.save()

    def binary(self, data: bytearray) -> bool:
        """Return whether these are records without lines."""
        if self.at.form is not None:
            return self.at.form.kind == MSGPACK
        return bool(data) and data[0] >= 0x80 and not data.startswith(UTF8_MARK[: len(data)])

    def finish(self, data: bytearray) -> None:
        """Process what a file ends with: its last line may lack its end."""
        at = self.at
        if data and not self.binary(data):
            data += b"\n"
            self.take(data)
            at.offset, at.read_tail = at.offset - 1, at.read_tail[:-1]
        if data.strip():
            self.save()
            place = f"byte {at.offset}"
            if not self.options.skip_bad or not self.pieces.follow:
                fail("stream", "input", "end with a whole record", f"{len(data)} bytes of one", place=place)
            at.skip(f"half a record at {place}")
        data.clear()

    def take(self, data: bytearray) -> None:
        """Correct and learn the whole records in `data`, and leave the rest in it."""
        at, start = self.at, 0
        if at.form is None:
            header = self.recognise(bytes(data))
            if header is None:
                return
            start = header
        elif at.begins and at.form.kind == CSV:
            end = data.find(b"\n") + 1
            start = end if header_names(bytes(data[:end])) == at.form.header else 0
        assert at.form is not None
        records, ends = at.form.split(bytes(data[start:]))
        before = at.records
        try:
            self.process(records)
        except InputError:
            self.note_read(data, start + ends[at.records - before])
            self.save()
            raise
        self.note_read(data, start + ends[-1])
        at.begins = False

    def note_read(self, data: bytearray, n: int) -> None:
        """Note that the first `n` bytes have been dealt with, and remove them."""
        self.at.offset, self.at.read_tail = self.at.offset + n, tail_of(self.at.read_tail, bytes(data[:n]))
        del data[:n]

    def recognise(self, data: bytes) -> int | None:
        """Find the form of the records; return how many bytes come before the first, None if more data are needed."""
        source, options = self.stream.source, self.options
        choice = Choice(columns=options.columns, caller="stream", classes=source.classes or (),
                        names=read_names(options.classes, "stream"), values=self.at.values)  # fmt: skip
        roles = Roles(options.label, options.name, options.time_column)
        recognised = recognise(data, choice, len(source.prior), roles)
        if recognised is None:
            return None
        self.at.form, start = recognised
        kind = self.at.form.kind
        if options.emitted != "prior" and FORMATS.get(options.output.suffix.lower(), kind) != kind:
            ending = next(ending for ending, of in FORMATS.items() if of == kind)
            fail("stream", "-o", f"end in {ending}, since the output has the format of the input", str(options.output))
        if choice.names and choice.classes and not self.at.form.columns and choice.names != choice.classes:
            fail("stream", "--classes", "be the classes of the source in their order, since the records are lists",
                 listed(choice.names), remedy=f"That is {listed(choice.classes)}")  # fmt: skip
        if options.emitted != "prior" and self.at.form.opening:
            self.write(self.at.form.opening.encode())
        return start

    def process(self, records: list[Any]) -> None:
        """Correct and learn records; a bad one stops the run, after all before it, or is skipped."""
        try:
            if records:
                self.learn(self.checked(records))
                self.at.records += len(records)
        except InputError as error:
            if len(records) > 1:
                half = len(records) // 2
                self.process(records[:half])
                self.process(records[half:])
            elif not self.options.skip_bad:
                raise
            else:
                self.at.records += 1
                self.at.skip(error.shell)

    def checked(self, records: list[Any]) -> Batch:
        """Return records with their samples, once those are known to be probabilities."""
        form, first, source = self.at.form, self.at.records, self.stream.source
        assert form is not None
        batch = self.labels.split(records, form, source, first)
        if not batch.records:
            return batch._replace(rows=(none := np.empty((0, len(source.prior)))), calibrated=none)
        rows = form.rows(batch.records, first)
        if not first:
            refuse_probabilities(rows, self.at.values, "stream", "input")
        rows = prepare(rows, self.at.values)
        fault = row_fault(rows) if form.unused else None
        if fault and (remedy := left_aside(fault, rows.shape[1], form.unused, "columns")):
            fail("stream", "input", fault.rule, fault.value, place=f"row {first + fault.row}", remedy=remedy)
        check_rows([(first, rows)], "stream", "input")
        times, column = [], self.options.time_column
        if column is not None:
            fields = enumerate(form.fields(batch.records, first), first)
            times = [seconds_of(some.get(column), number) for number, some in fields]
        return batch._replace(rows=rows, calibrated=self.stream.calibrated(rows), times=times)

    def learn(self, batch: Batch) -> None:
        """Correct each sample with the prior in use, learn it, and write it; use each label when it arrives."""
        out: list[bytes] = []
        done, classes = 0, self.stream.source.classes
        for label in batch.labels:
            self.advance(batch, done, label.at, out)
            done = label.at
            row = self.labels.find(label, batch.rows)
            if row is not None:
                self.stream.observe(row, label.y if classes is None else classes[label.y])
        self.advance(batch, done, len(batch.rows), out)
        self.write(b"".join(out))
        self.watch.tell(self.about)

    def advance(self, batch: Batch, start: int, stop: int, out: list[bytes]) -> None:
        """Correct and learn `rows[start:stop]` and append what to write to `out`; no label arrives in between."""
        form, every, emitted = self.at.form, self.options.every, self.options.emitted
        assert form is not None
        self.labels.keep(batch.names[start:stop], batch.rows[start:stop])
        while start < stop:
            n = self.stream.n
            end = min(stop, start + every - n % every, start + next_window_end(self.stream, n) - n)
            here = slice(start, end)
            if emitted != "prior":
                out.append(form.write(batch.records[here], correct_rows(batch.calibrated[here], self.at.weights)))
            event = self.watch.learn(self.stream, batch.calibrated[here], batch.times[here])
            values: list[dict[str, Any]] = [] if event is None else [event._asdict()]
            if self.stream.n % every == 0:
                self.at.weights = self.stream.weights
                values.append(self.about())
            if emitted == "prior" or (emitted == "both" and not form.opening):  # it would break a table
                out += map(form.write_value, values)
            start = end

    def about(self) -> dict[str, Any]:
        """Return samples, prior and interval, the share of the correction, the last time, and the alarm's verdict."""
        form, level = self.at.form, self.options.level
        names = self.stream.source.classes or (form and form.columns)

        def keyed(shares: Vector) -> Any:
            return dict(zip(names, shares.tolist(), strict=True)) if names else shares.tolist()

        value: dict[str, Any] = {"n": self.stream.n, "prior": keyed(self.stream.prior)}
        if level < 1:
            lower, upper = self.stream.interval(level)
            value |= {"lower": keyed(lower), "upper": keyed(upper), "level": level}
        acts = self.stream.acts
        if acts.log_evidence is not None:
            value["acts_share"] = acts.share
        if self.watch.clock is not None:
            value["time"] = self.watch.shown(self.watch.clock)
        return value | ({"alarm": self.watch.verdict()} if self.watch.alarm else {})

    @property
    def matched(self) -> str:
        """How classes were matched: by "name" or by "position"."""
        named = self.at.form is not None and self.at.form.columns
        return "name" if named and self.stream.source.classes else "position"

    def write(self, data: bytes) -> None:
        """Write bytes, and note that they are written."""
        self.out.write(data)
        self.at.written += len(data)
        self.at.written_tail = tail_of(self.at.written_tail, data)

    def save(self) -> None:
        """Put the state on disk, after what was written before it."""
        self.saved_at = time.monotonic()
        if self.options.state is not None:
            if self.out.regular:
                os.fsync(self.out.handle)
            save(self.at, self.options, self.labels, self.watch)
