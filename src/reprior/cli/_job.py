"""A run of `reprior stream`: between two batches its state is always one to go on from."""

from __future__ import annotations

import time
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from reprior import InputError, Stream
from reprior._check import check_number, check_rows, fail, row_fault
from reprior.cli._atomic import keep_apart
from reprior.cli._correction import correction
from reprior.cli._inputs import METHODS, ONLINE, check_method, known_files, learned, parse_options
from reprior.cli._labels import Batch, Labels
from reprior.cli._pipes import TAIL, Leaving, Stop, arriving
from reprior.io.files import Choice, left_aside
from reprior.io.prepare import prepare, refuse_probabilities
from reprior.io.records import form_from_json, form_to_json, recognise
from reprior.rows.calibrated import Calibrator
from reprior.state import decode, encode, write_atomically

if TYPE_CHECKING:
    from reprior._types import Matrix, Vector
    from reprior.io.records import Form


class Job:
    """Its stream, and how far it has read and written."""

    def __init__(
        self, *, input: Path, output: Path, state: Path | None, emit: str | None, every: int, follow: bool,
        replay: bool, skip_bad: bool, save_every: float, columns: str | None, values: str | None, method: str,
        options: tuple[str, ...], calibrate: str, label: str | None, name: str | None, remember: int, **source: Any,
    ) -> None:  # fmt: skip
        self.every = int(check_number(every, "stream", "--every", low=1, whole=True))
        check_number(remember, "stream", "--remember", low=1, whole=True)
        if name is not None and label is None:
            raise click.UsageError("--id names rows for late labels: say what holds those with --label")
        keep_apart("stream", output, input, source["source"], source["counts"], state)
        self.state, self.output, self.skip_bad, self.save_every = state, str(output), skip_bad, save_every
        self.emit = emit or ("both" if self.output == "-" else "rows")
        self.labels, self.values, self.columns = Labels(label, name, remember), values, columns
        self.settings = {
            "--method": method, "-O": list(options), "--every": every, "--columns": columns, "--emit": self.emit,
            "--calibrate": calibrate, "--label": label, "--id": name, "--remember": remember,
            "--normalize": values == "normalize", "--logits": values == "logits",
        }  # fmt: skip
        self.known = [path for path in (source["source"], source["counts"]) if path is not None]
        self.fingerprint = blake2b(b"".join(file_mark(path) for path in self.known)).hexdigest()
        self.form: Form | None = None
        self.offset = self.written = self.skipped = self.records = 0
        self.read_tail = self.written_tail = b""
        self.first_skipped, self.warning, self.saved = "", "", time.monotonic()
        before = self.restore()
        if before is None:
            self.start(method, options, calibrate, **source)
        self.stop = Stop()
        self.pieces = arriving(input, self.offset, self.read_tail, follow=follow, replay=replay, stop=self.stop)
        self.out = Leaving(output, None if before is None else self.written, self.written_tail, before or "")

    def start(
        self, method: str, options: tuple[str, ...], calibrate: str, source: Path | None, counts: Path | None,
        source_columns: str | None, source_label: str | None,
    ) -> None:  # fmt: skip
        """Begin with a stream that has learned nothing yet."""
        from reprior.io.sources import read_source

        if source is None and counts is None:
            fail("stream", "--source", "be given, unless --state names a state to go on from", "nothing")
        check_method("stream", method, ONLINE, METHODS, "reprior estimate")
        path, counts = known_files(source, counts)
        wanted = Choice(columns=source_columns, label=source_label, caller="stream", with_labels=True)
        known = read_source(path, wanted, self.columns, self.values)
        pipe, self.warning = learned(known, path, counts, calibrate, "stream")
        self.calibrator = pipe.calibrator
        self.stream = Stream(method, pipe.source, **parse_options(options))
        self.weights: Vector = self.stream.weights

    def run(self) -> None:
        """Take in all that comes."""
        data = b""
        for piece in self.pieces:
            data = self.take(data + piece)
            if time.monotonic() - self.saved >= self.save_every:
                self.save()
        if data and not self.stop.asked and type(self.form).__name__ != "MsgpackForm":
            data = self.take(data + b"\n")  # the last line may lack its end
            self.offset, self.read_tail = self.offset - 1, self.read_tail[:-1]
        if data.strip() and not self.stop.asked:
            self.save()
            fail("stream", "input", "end with a whole record", f"{len(data)} bytes of one", place=f"byte {self.offset}")
        self.out.open()  # an empty input has an empty output
        self.save()

    def take(self, data: bytes) -> bytes:
        """Correct and learn the whole records in `data`; return the rest."""
        start = 0
        if self.form is None:
            choice = Choice(columns=self.columns, caller="stream", classes=self.stream.source.classes or ())
            found = recognise(data, choice, len(self.stream.source.prior), self.labels.label, self.labels.name)
            if found is None:
                return data
            self.form, start = found
            if self.emit != "prior" and self.form.opening:
                self.write(self.form.opening.encode())
        records, length = self.form.cut(data[start:])
        before = self.records
        try:
            self.process(records)
        except InputError:
            self.passed(data[: start + self.form.length(data[start:], self.records - before)])
            self.save()
            raise
        self.passed(data[: start + length])
        return data[start + length :]

    def passed(self, data: bytes) -> None:
        """Note what has been read and dealt with."""
        self.offset += len(data)
        self.read_tail = (self.read_tail + data[-TAIL:])[-TAIL:]

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
                self.skipped, self.first_skipped = self.skipped + 1, self.first_skipped or str(error)

    def checked(self, records: list[Any]) -> tuple[Batch, Matrix]:
        """Return records and their rows, each of them a probability vector."""
        assert self.form is not None
        first, source = self.records, self.stream.source
        batch = self.labels.split(records, self.form, source.classes or (), len(source.prior), first)
        rows = self.form.rows(batch.records, first) if batch.records else np.empty((0, len(source.prior)))
        if not first:
            refuse_probabilities(rows, self.values, "stream", "input")
        rows = prepare(rows, self.values)
        fault = row_fault(rows) if self.form.unused and len(rows) else None
        if fault and (remedy := left_aside(fault[1], rows.shape[1], self.form.unused, "columns")):
            fail("stream", "input", fault[1], fault[2], place=f"row {first + fault[0]}", remedy=remedy)
        if len(rows):
            check_rows([(first, rows)], "stream", "input")
        return batch, rows if self.calibrator is None or not len(rows) else self.calibrator(rows)

    def learn(self, batch: Batch, rows: Matrix) -> None:
        """Correct each row with the prior in use, learn it, and write it; take in each label when it comes."""
        out: list[bytes] = []
        done = 0
        for label in batch.labels:
            done = self.advance(batch, rows, done, label.at, out)
            row = self.labels.find(label, rows)
            if row is not None:
                self.stream.observe(row, label.y)
        self.advance(batch, rows, done, len(rows), out)
        self.write(b"".join(out))

    def advance(self, batch: Batch, rows: Matrix, start: int, stop: int, out: list[bytes]) -> int:
        """Do so with rows from `start` to `stop`, between which no label comes; return `stop`."""
        assert self.form is not None
        self.labels.keep(batch.names[start:stop], rows[start:stop])
        while start < stop:
            end = min(stop, start + self.every - self.stream.n % self.every)
            if self.emit != "prior":
                out.append(self.form.write(batch.records[start:end], correction(self.weights)(rows[start:end])))
            self.stream.learn_many(rows[start:end])
            if self.stream.n % self.every == 0:
                self.weights = self.stream.weights
                if self.emit == "prior" or (self.emit == "both" and not self.form.opening):  # it would break a table
                    out.append(self.form.write_prior(self.stream.n, self.stream.prior, self.stream.source.classes))
            start = end
        return stop

    def write(self, data: bytes) -> None:
        self.out.write(data)
        self.written += len(data)
        self.written_tail = (self.written_tail + data[-TAIL:])[-TAIL:]

    def save(self) -> None:
        """Put the state on disk, behind what was written under it."""
        self.saved = time.monotonic()
        if self.state is None:
            return
        self.out.sync()
        fields = {
            "settings": self.settings, "known": self.fingerprint,
            "offset": self.offset, "written": self.written, "skipped": self.skipped,
            "records": self.records, "output": self.output, "weights": self.weights,
            "form": form_to_json(self.form) if self.form else None, **self.labels.to_fields(),
            "read_tail": as_array(self.read_tail), "written_tail": as_array(self.written_tail),
            "calibrator": as_array(self.calibrator.to_bytes() if self.calibrator else b""),
            "stream": as_array(self.stream.to_bytes()),
        }  # fmt: skip
        write_atomically(self.state, encode("stream-job", fields))

    def restore(self) -> str | None:
        """Go on from the state file, if there is one; return where its rows went."""
        if self.state is None or not self.state.exists():
            return None
        found = decode(self.state.read_bytes(), "stream-job", "stream", name=str(self.state))
        self.same_settings({"-o": found["output"]} | found["settings"])
        if self.known and self.fingerprint != found.get("known", self.fingerprint):
            fail("stream", "--source", f"be the source that {self.state} was made from, or be left out",
                 "another", remedy="After a retraining name another state file, to start anew")  # fmt: skip
        self.fingerprint = found.get("known", self.fingerprint)
        self.offset, self.written, self.skipped = found["offset"], found["written"], found["skipped"]
        self.records = found["records"]
        self.read_tail, self.written_tail = found["read_tail"].tobytes(), found["written_tail"].tobytes()
        self.form = form_from_json(found["form"]) if found["form"] else None
        self.labels.restore(found)
        self.calibrator = Calibrator.from_bytes(data) if (data := found["calibrator"].tobytes()) else None
        self.weights, self.stream = found["weights"], Stream.from_bytes(found["stream"].tobytes())
        return str(found["output"])

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


def as_array(data: bytes) -> Any:
    """Return bytes as an array, which is what a codec stores unchanged."""
    return np.frombuffer(data, np.uint8)
