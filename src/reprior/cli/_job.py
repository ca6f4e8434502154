"""A run of `reprior stream`: between two batches its state is always one to go on from."""

from __future__ import annotations

import time
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from reprior import InputError, Stream
from reprior._check import check_number, check_rows, check_source, fail, listed, row_fault
from reprior.cli._atomic import keep_apart
from reprior.cli._inputs import read_names, read_pipeline
from reprior.cli._labels import Batch, LateLabels
from reprior.cli._options import batch_methods, check_method, parse_options, stream_methods
from reprior.cli._pipes import Arriving, Leaving, Stop, tail_of
from reprior.cli._watch import Watch, make_alarm, moment
from reprior.io.columns import left_aside
from reprior.io.files import RECORD_BYTES, too_long
from reprior.io.msgpack import MsgpackForm
from reprior.io.ndjson import keyed
from reprior.io.prepare import prepare, refuse_probabilities
from reprior.io.records import CsvForm, form_from_json, form_to_json, recognise
from reprior.io.table import Choice
from reprior.rows.correction import correct_rows
from reprior.state import decode, encode, is_special, refuse, take, write_atomically

if TYPE_CHECKING:
    from reprior._types import Matrix, Vector
    from reprior.io.records import Form

BY_POSITION = "Classes were matched by position, because the input or the source does not name them."


class Job:
    """Its stream, and how far it has read and written."""

    def __init__(
        self, *, input: Path, output: Path, state: Path | None, emit: str | None, every: int, follow: bool,
        replay: bool, skip_bad: bool, save_every: float, columns: str | None, values: str | None, method: str,
        options: tuple[str, ...], calibrate: str, label: str | None, name: str | None, remember: int,
        time_column: str | None, alarm: bool | None, on_alarm: str | None, rearm: bool, level: float,
        classes: Path | None, **source: Any,
    ) -> None:  # fmt: skip
        self.every = int(check_number(every, "stream", "--every", low=1, whole=True))
        check_number(remember, "stream", "--remember", low=1, whole=True)
        if name is not None and label is None:
            raise click.UsageError("--id names rows for late labels: say what holds those with --label")
        keep_apart("stream", output, input, source["source"], source["counts"], state)
        if state is not None and is_special(state):
            fail("stream", "--state", "be a file, which a restart can read again", state)
        self.level = check_number(level, "stream", "--level", low=0, high=1, open_low=True)
        self.state, self.output, self.skip_bad, self.save_every = state, str(output), skip_bad, save_every
        self.emit = emit or ("both" if self.output == "-" else "rows")
        self.labels = LateLabels(label, name, remember)
        self.values, self.columns, self.classes = values, columns, classes
        self.settings = {
            "--method": method, "-O": list(options), "--every": every, "--columns": columns, "--emit": self.emit,
            "--calibrate": calibrate, "--label": label, "--id": name, "--remember": remember,
            "--normalize": values == "normalize", "--logits": values == "logits", "--time": time_column,
            "--level": level,
        }  # fmt: skip
        self.known = [path for path in (source["source"], source["counts"]) if path is not None]
        self.fingerprint = blake2b(b"".join(file_mark(path) for path in self.known)).hexdigest()
        self.form: Form | None = None
        self.time, self.watch = time_column, Watch(None, on_alarm)
        self.mark: list[int] | None = None  # tells the file that is read
        self.begins = True  # a file, with a header if it is CSV
        self.offset = self.written = self.skipped = self.records = 0
        self.read_tail = self.written_tail = b""
        self.first_skipped, self.warning, self.saved = "", "", time.monotonic()
        before = self.restore()
        if before is None:
            if alarm is None:  # what nobody would see need not be computed
                alarm = True if on_alarm else False if self.emit == "rows" else None
            self.start(method, options, calibrate, alarm, **source)
        elif rearm:
            self.watch.rearm(self.stream.n)
        self.out = Leaving(output, None if before is None else self.written, self.written_tail, before or "")
        self.stop = Stop()
        try:
            self.pieces = Arriving(input, self.offset, self.read_tail, self.mark, follow=follow, replay=replay,
                                   stop=self.stop)  # fmt: skip
        except BaseException:
            self.stop.end()
            raise
        self.mark = self.pieces.mark

    def close(self) -> None:
        """Let go of files and signals."""
        self.stop.end()
        self.pieces.close()
        self.out.close()

    def start(
        self, method: str, options: tuple[str, ...], calibrate: str, alarm: bool | None, source: Path | None,
        counts: Path | None, source_columns: str | None, source_label: str | None,
    ) -> None:  # fmt: skip
        """Begin with a stream that has learned nothing yet."""
        if source is None and counts is None:
            fail("stream", "--source", "be given, unless --state names a state to go on from", "nothing")
        check_method("stream", method, stream_methods(), batch_methods(), "reprior estimate")
        names = read_names(self.classes, "stream")
        fitted = read_pipeline("stream", source=source, counts=counts, columns=self.columns, values=self.values,
                               source_columns=source_columns, label=source_label, calibrate=calibrate,
                               names=names)  # fmt: skip
        pipe, self.values, self.warning = fitted.pipeline, fitted.values, fitted.warning
        if pipe.classes is None and names:
            pipe = replace(pipe, source=check_source(pipe.source, "stream", names))
        self.stream = Stream(method, pipe.source, calibrator=pipe.calibrator, **parse_options(options))
        self.watch.alarm = make_alarm(pipe.source, alarm)
        self.weights: Vector = self.stream.weights

    def run(self) -> None:
        """Take in all that comes."""
        data = bytearray()
        for piece in self.pieces:
            if piece is None:
                self.finish(data)
                self.next_file()
            else:
                data += piece
                if b"\n" in piece or self.binary(data):
                    self.take(data)
                if len(data) > RECORD_BYTES:
                    self.save()
                    too_long("stream", "input")
            if time.monotonic() - self.saved >= self.save_every:
                self.save()
        if not self.stop.asked:
            self.finish(data)
        self.out.open()  # an empty input has an empty output
        self.save()

    def binary(self, data: bytearray) -> bool:
        """Return whether these are records without lines."""
        if self.form is not None:
            return isinstance(self.form, MsgpackForm)
        return bool(data) and data[0] >= 0x80 and not data.startswith(b"\xef\xbb\xbf"[: len(data)])

    def finish(self, data: bytearray) -> None:
        """Take in what a file ends with: its last line may lack its end."""
        if data and not self.binary(data):
            data += b"\n"
            self.take(data)
            self.offset, self.read_tail = self.offset - 1, self.read_tail[:-1]
        if data.strip():
            self.save()
            place = f"byte {self.offset}"
            if not self.skip_bad or not self.pieces.follow:
                fail("stream", "input", "end with a whole record", f"{len(data)} bytes of one", place=place)
            self.skipped, self.first_skipped = self.skipped + 1, self.first_skipped or f"half a record at {place}"
        data.clear()

    def next_file(self) -> None:
        """Go on with the start of another file: the old one was renamed, or cut."""
        if self.pieces.note:
            click.echo(self.pieces.note, err=True)
            self.pieces.note = ""
        self.offset, self.read_tail, self.mark, self.begins = 0, b"", self.pieces.mark, True
        self.save()

    def take(self, data: bytearray) -> None:
        """Correct and learn the whole records in `data`, and leave the rest in it."""
        start = 0
        if self.form is None:
            choice = Choice(columns=self.columns, caller="stream", classes=self.stream.source.classes or (),
                            names=read_names(self.classes, "stream"))  # fmt: skip
            recognised = recognise(bytes(data), choice, len(self.stream.source.prior), self.labels.label,
                                   self.labels.name, self.time)  # fmt: skip
            if recognised is None:
                return
            self.form, start = recognised
            if choice.names and choice.classes and self.form.named is None and choice.names != choice.classes:
                fail("stream", "--classes", "be the classes of the source in their order, since the records are lists",
                     listed(choice.names), remedy=f"That is {listed(choice.classes)}")  # fmt: skip
            if self.emit != "prior" and self.form.opening:
                self.write(self.form.opening.encode())
        elif self.begins and isinstance(self.form, CsvForm):
            end = data.find(b"\n") + 1
            start = end if self.form.is_header(bytes(data[:end])) else 0
        whole = bytes(data[start:])
        records, length = self.form.cut(whole)
        before = self.records
        try:
            self.process(records)
        except InputError:
            self.passed(bytes(data[:start]) + whole[: self.form.length(whole, self.records - before)])
            self.save()
            raise
        self.passed(bytes(data[: start + length]))
        self.begins = False
        del data[: start + length]

    def passed(self, data: bytes) -> None:
        """Note what has been read and dealt with."""
        self.offset += len(data)
        self.read_tail = tail_of(self.read_tail, data)

    def process(self, records: list[Any]) -> None:
        """Correct and learn records; a bad one stops the run, after all before it, or is skipped."""
        try:
            if records:
                self.learn(*self.checked(records))
                self.records += len(records)
        except InputError as error:
            if len(records) > 1:
                half = len(records) // 2
                self.process(records[:half])
                self.process(records[half:])
            elif not self.skip_bad:
                raise
            else:
                self.records += 1
                self.skipped, self.first_skipped = self.skipped + 1, self.first_skipped or error.shell

    def checked(self, records: list[Any]) -> tuple[Batch, Matrix, list[tuple[float, bool]]]:
        """Return records, their rows, each of them a probability vector, and their times."""
        assert self.form is not None
        first, source = self.records, self.stream.source
        batch = self.labels.split(records, self.form, source.classes, len(source.prior), first)
        rows = self.form.rows(batch.records, first) if batch.records else np.empty((0, len(source.prior)))
        if not first:
            refuse_probabilities(rows, self.values, "stream", "input")
        rows = prepare(rows, self.values)
        fault = row_fault(rows) if self.form.unused and len(rows) else None
        if fault and (remedy := left_aside(fault, rows.shape[1], self.form.unused, "columns")):
            fail("stream", "input", fault.rule, fault.value, place=f"row {first + fault.row}", remedy=remedy)
        if len(rows):
            check_rows([(first, rows)], "stream", "input")
        if self.time is None:
            return batch, rows, []
        fields = self.form.fields(batch.records, first)
        return batch, rows, [moment(some.get(self.time), first + i) for i, some in enumerate(fields)]

    def learn(self, batch: Batch, rows: Matrix, times: list[tuple[float, bool]]) -> None:
        """Correct each row with the prior in use, learn it, and write it; take in each label when it comes."""
        out: list[bytes] = []
        done = 0
        calibrated, classes = self.stream.calibrated(rows) if len(rows) else rows, self.stream.source.classes
        for label in batch.labels:
            done = self.advance(batch, rows, calibrated, times, done, label.at, out)
            row = self.labels.find(label, rows)
            if row is not None:
                self.stream.observe(row, label.y if classes is None else classes[label.y])
        self.advance(batch, rows, calibrated, times, done, len(rows), out)
        self.write(b"".join(out))
        self.watch.tell(self.about)

    def advance(
        self, batch: Batch, rows: Matrix, calibrated: Matrix, times: list[tuple[float, bool]], start: int, stop: int,
        out: list[bytes],
    ) -> int:  # fmt: skip
        """Do so with rows from `start` to `stop`, between which no label comes; return `stop`."""
        assert self.form is not None
        self.labels.keep(batch.names[start:stop], rows[start:stop])
        while start < stop:
            end = min(stop, start + self.every - self.stream.n % self.every)
            if self.emit != "prior":
                out.append(self.form.write(batch.records[start:end], correct_rows(calibrated[start:end], self.weights)))
            self.watch.learn(self.stream, calibrated[start:end], times[start:end])
            if self.stream.n % self.every == 0:
                self.weights = self.stream.weights
                if self.emit == "prior" or (self.emit == "both" and not self.form.opening):  # it would break a table
                    out.append(self.form.write_value(self.about()))
            start = end
        return stop

    def about(self) -> dict[str, Any]:
        """Return what there is to say now: samples, prior, its interval, the last time, and what the alarm says."""
        names = self.stream.source.classes or (self.form.named if self.form else None)
        level = self.stream.interval(self.level) if self.level < 1 else None
        value: dict[str, Any] = {"n": self.stream.n, "prior": keyed(self.stream.prior, names)}
        if level is not None:
            value |= {"lower": keyed(level.lower, names), "upper": keyed(level.upper, names), "level": self.level}
        if np.isfinite(self.watch.clock):
            value["time"] = self.watch.shown(self.watch.clock)
        return value | ({"alarm": self.watch.verdict()} if self.watch.alarm else {})

    @property
    def matched(self) -> str:
        """How classes were matched: by "name" or by "position"."""
        return "name" if self.form is not None and self.form.named and self.stream.source.classes else "position"

    def write(self, data: bytes) -> None:
        self.out.write(data)
        self.written += len(data)
        self.written_tail = tail_of(self.written_tail, data)

    def save(self) -> None:
        """Put the state on disk, behind what was written under it."""
        self.saved = time.monotonic()
        if self.state is None:
            return
        self.out.sync()
        fields = {
            "settings": self.settings, "known": self.fingerprint,
            "offset": self.offset, "written": self.written, "skipped": self.skipped,
            "records": self.records, "output": self.output, "weights": self.weights, "mark": self.mark,
            "begins": self.begins,
            "form": form_to_json(self.form) if self.form else None, **self.labels.to_fields(),
            "read_tail": self.read_tail, "written_tail": self.written_tail,
            "stream": self.stream.to_bytes(), **self.watch.to_fields(),
        }  # fmt: skip
        write_atomically(self.state, encode("stream-job", fields))

    def restore(self) -> str | None:
        """Go on from the state file, if there is one; return where its rows went."""
        if self.state is None or not self.state.exists():
            return None
        caller, nothing = "stream", type(None)
        saved = decode(self.state.read_bytes(), "stream-job", caller, name=str(self.state))
        output = take(saved, "output", str, caller)
        self.same_settings({"-o": output} | take(saved, "settings", dict, caller))
        sources = take(saved, "known", str, caller)
        if self.known and self.fingerprint != sources:
            fail("stream", "--source", f"be the source that {self.state} was made from, or be left out",
                 "another", remedy="After a retraining name another state file, to start anew")  # fmt: skip
        self.fingerprint = sources
        numbers = [take(saved, name, int, caller) for name in ("offset", "written", "skipped", "records")]
        if min(numbers) < 0:
            refuse(caller, "data", "a negative number of bytes or rows")
        self.offset, self.written, self.skipped, self.records = numbers
        tails = (take(saved, f"{name}_tail", np.ndarray, caller, (None,)).tobytes() for name in ("read", "written"))
        self.read_tail, self.written_tail = tails
        self.mark, self.begins = take(saved, "mark", (list, nothing), caller), take(saved, "begins", bool, caller)
        self.stream = Stream.from_bytes(take(saved, "stream", np.ndarray, caller, (None,)).tobytes())
        k = len(self.stream.source.prior)
        try:
            self.form = form_from_json(saved["form"], k) if take(saved, "form", (list, nothing), caller) else None
        except (LookupError, TypeError, ValueError, AttributeError):
            refuse(caller, "data", "records of no form that there is")
        self.labels.restore(saved, k, caller)
        self.weights = take(saved, "weights", np.ndarray, caller, (k,))
        self.watch.restore(saved, k, caller)
        return str(output)

    def same_settings(self, then: dict[str, Any]) -> None:
        """Refuse to go on with other settings; an output file may have moved, but not turned into a pipe or back."""
        now = {"-o": self.output if "-" in (self.output, then["-o"]) else then["-o"]} | self.settings
        if other := [key for key in now if now[key] != then.get(key)]:
            asked, had = (", ".join(f"{key} {values.get(key)}" for key in other) for values in (now, then))
            fail("stream", str(self.state), f"belong to a run with {asked}", had,
                 remedy="Give the same options again, or name another state file to start anew")  # fmt: skip


def file_mark(path: Path) -> bytes:
    """Return what tells a file's content from another's; nothing for a folder or a file that is not there."""
    return blake2b(path.read_bytes()).digest() if path.is_file() else b""
