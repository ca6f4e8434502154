"""`reprior stream`: corrected rows out as rows come in, and a state that survives any crash."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reprior.cli._atomic import keep_apart
from reprior.cli._inputs import METHODS, ONLINE, check_method, parse_options
from reprior.cli._shell import DONE, INTERRUPTED

if TYPE_CHECKING:
    from reprior import Stream
    from reprior._types import Vector
    from reprior.adapters.records import Form


@click.command("stream")
@click.argument("input", default="-", type=click.Path(allow_dash=True, path_type=Path))
@click.option("-s", "--source", type=click.Path(path_type=Path), help="As for estimate; --state remembers it.")
@click.option("-m", "--method", default="online-ebls", show_default=True,
              help=f"Which online method: {', '.join(ONLINE)}.")  # fmt: skip
@click.option("-O", "--option", "options", multiple=True, metavar="NAME=VALUE", help="An option of the method.")
@click.option("--columns", help="What holds the probabilities: a key, or class columns a,b,c or first:last.")
@click.option("--state", type=click.Path(path_type=Path), help="Keep the state here, and go on from it.")
@click.option("-o", "--output", default="-", type=click.Path(allow_dash=True, path_type=Path), help="Where rows go.")
@click.option("--emit", type=click.Choice(["both", "rows", "prior"]),
              help="Corrected rows, the prior every so many rows, or both (CSV: rows).  [default: rows with -o, else"
              " both]")  # fmt: skip
@click.option("--every", default=100, show_default=True, help="Rows between two updates of the prior in use.")
@click.option("--follow", is_flag=True, help="Wait for more at the end of the file, like tail -f.")
@click.option("--replay", is_flag=True, help="The pipe starts again from its first row: skip what the state has seen.")
@click.option("--skip-bad", is_flag=True, help="Leave out rows that are no probabilities instead of stopping.")
@click.option("--save-every", default=1.0, show_default=True, help="Seconds between two writes of the state.")
@click.option("--json", "as_json", is_flag=True, help="Errors as JSON; rows keep the form they came in.")
def command(as_json: bool, **settings: Any) -> int:
    """Correct INPUT (NDJSON, CSV or msgpack; standard input by default) row by row, and follow its class mix.

    Each row is corrected before it is learned, with the prior of at most --every rows ago. With --state a restart
    continues exactly: a file is read on from where it stopped, and an output file ends with the very bytes of an
    uninterrupted run.

    \b
    Example:  reprior stream scores.ndjson --source counts.json --state state.bin -o corrected.ndjson
    """
    job = Job(**settings)
    job.run()
    if job.skipped and not as_json:
        click.echo(f"{job.skipped} rows left out; the first: {job.first_skipped}", err=True)
    if job.out.handle != 1:
        told = {"rows": job.stream.n, "skipped": job.skipped, "output": job.out.name,
                "state": str(job.state) if job.state else None}  # fmt: skip
        text = f"{job.out.name}: {job.stream.n} rows" + (f"; state in {job.state}" if job.state else "; no state kept")
        click.echo(json.dumps(told) if as_json else text, err=True)
    return INTERRUPTED if job.stop.asked else DONE


class Job:
    """A run of the command: its stream, and how far it has read and written."""

    def __init__(
        self, *, input: Path, output: Path, source: Path | None, state: Path | None, columns: str | None, method: str,
        options: tuple[str, ...], emit: str | None, every: int, follow: bool, replay: bool, skip_bad: bool,
        save_every: float,
    ) -> None:  # fmt: skip
        from reprior._check import check_number
        from reprior.adapters.files import Choice
        from reprior.cli._pipes import Leaving, Stop, arriving

        self.every = int(check_number(every, "stream", "--every", low=1, whole=True))
        keep_apart("stream", output, input, source, state)
        self.state, self.skip_bad, self.save_every = state, skip_bad, save_every
        self.emit = emit or ("both" if str(output) == "-" else "rows")
        self.choice = Choice(columns=columns, caller="stream")
        self.settings = [method, list(options), every, columns, self.emit]
        self.form: Form | None = None
        self.offset = self.written = self.skipped = 0
        self.first_skipped, self.saved = "", time.monotonic()
        known = self.restore()
        if not known:
            self.stream = fresh_stream(source, method, options)
            self.weights: Vector = self.stream.weights
            self.choice = replace(self.choice, classes=self.stream.source.classes or ())
        self.stop = Stop()
        self.pieces = arriving(input, self.offset, follow=follow, replay=replay, stop=self.stop)
        self.out = Leaving(output, self.written if known else None)

    def run(self) -> None:
        """Take in all that comes; between two batches, the state is always one to go on from."""
        data = b""
        for piece in self.pieces:
            data = self.take(data + piece)
            if time.monotonic() - self.saved >= self.save_every:
                self.save()
        if data and not self.stop.asked and type(self.form).__name__ != "MsgpackForm":
            data = self.take(data + b"\n")  # the last line may lack its end
            self.offset -= 1
        if data.strip() and not self.stop.asked:
            from reprior._check import fail

            self.save()
            fail("stream", "input", "end with a whole record", f"{len(data)} bytes of one", place=f"byte {self.offset}")
        self.out.open()  # an empty input has an empty output
        self.save()

    def take(self, data: bytes) -> bytes:
        """Correct and learn the whole records in `data`; return the rest."""
        from reprior.adapters.records import recognise

        if self.form is None:
            found = recognise(data, self.choice, len(self.stream.source.prior))
            if found is None:
                return data
            self.form, start = found
            if self.emit != "prior" and self.form.opening:
                self.write(self.form.opening.encode())
            self.offset += start
            data = data[start:]
        records, end = self.form.cut(data)
        self.process(records)
        self.offset += end
        return data[end:]

    def process(self, records: list[Any]) -> None:
        """Correct and learn records; a bad one stops the run, after all before it, or is skipped."""
        from reprior import InputError

        try:
            if records:
                self.learn(records, self.checked(records))
        except InputError as error:
            if len(records) > 1:
                half = len(records) // 2
                self.process(records[:half])
                self.process(records[half:])
            elif not self.skip_bad:
                self.save()
                raise
            else:
                self.skipped, self.first_skipped = self.skipped + 1, self.first_skipped or str(error)

    def checked(self, records: list[Any]) -> Any:
        """Return the rows of records, each of them a probability vector."""
        from reprior._check import check_rows, fail, row_fault
        from reprior.adapters.files import left_aside

        assert self.form is not None
        first = self.stream.n + self.skipped
        rows = self.form.rows(records, first)
        fault = row_fault(rows) if self.form.unused else None
        if fault and (remedy := left_aside(fault[1], rows.shape[1], self.form.unused, "columns")):
            fail("stream", "input", fault[1], fault[2], place=f"row {first + fault[0]}", remedy=remedy)
        check_rows([(first, rows)], "stream", "input")
        return rows

    def learn(self, records: list[Any], rows: Any) -> None:
        """Correct each row with the prior in use, learn it, and write it."""
        from reprior.cli._correction import correction

        assert self.form is not None
        out, start = [], 0
        while start < len(rows):
            end = min(len(rows), start + self.every - self.stream.n % self.every)
            if self.emit != "prior":
                out.append(self.form.write(records[start:end], correction(self.weights)(rows[start:end])))
            self.stream.learn_many(rows[start:end])
            if self.stream.n % self.every == 0:
                self.weights = self.stream.weights
                if self.emit != "rows":
                    out.append(self.form.write_prior(self.stream.n, self.stream.prior))
            start = end
        self.write(b"".join(out))

    def write(self, data: bytes) -> None:
        self.out.write(data)
        self.written += len(data)

    def save(self) -> None:
        """Put the state on disk, behind what was written under it."""
        from reprior.adapters.records import form_to_json
        from reprior.codec import encode, write_atomically

        self.saved = time.monotonic()
        if self.state is None:
            return
        self.out.sync()
        fields = {"settings": self.settings, "offset": self.offset, "written": self.written, "skipped": self.skipped,
                  "form": form_to_json(self.form) if self.form else None, "weights": self.weights}  # fmt: skip
        stream = np_bytes(self.stream.to_bytes())
        write_atomically(self.state, encode("stream-job", {**fields, "stream": stream}))

    def restore(self) -> bool:
        """Go on from the state file, if there is one."""
        from reprior import Stream
        from reprior._check import fail
        from reprior.adapters.records import form_from_json
        from reprior.codec import decode

        if self.state is None or not self.state.exists():
            return False
        found = decode(self.state.read_bytes(), "stream-job", "stream", name=str(self.state))
        if found["settings"] != self.settings:
            names = ("--method", "-O", "--every", "--columns", "--emit")
            pairs = zip(names, self.settings, found["settings"], strict=True)
            now, then = zip(*((f"{name} {a}", f"{name} {b}") for name, a, b in pairs if a != b), strict=True)
            fail("stream", str(self.state), f"belong to a run with {', '.join(now)}", ", ".join(then),
                 remedy="Name another state file to start anew")  # fmt: skip
        self.offset, self.written, self.skipped = found["offset"], found["written"], found["skipped"]
        self.form = form_from_json(found["form"]) if found["form"] else None
        self.weights, self.stream = found["weights"], Stream.from_bytes(found["stream"].tobytes())
        return True


def fresh_stream(source: Path | None, method: str, options: tuple[str, ...]) -> Stream:
    """Return a stream that has learned nothing yet."""
    from reprior import Stream
    from reprior._check import fail
    from reprior.adapters.files import Choice
    from reprior.adapters.sources import read_source

    if source is None:
        fail("stream", "--source", "be given, unless --state names a state to go on from", "nothing")
    check_method("stream", method, ONLINE, METHODS, "reprior estimate")
    known = read_source(source, replace(Choice(), caller="stream", with_labels=True))
    return Stream(method, known, **parse_options(options))


def np_bytes(data: bytes) -> Any:
    """Return bytes as an array, which is what a codec stores unchanged."""
    import numpy as np

    return np.frombuffer(data, np.uint8)
