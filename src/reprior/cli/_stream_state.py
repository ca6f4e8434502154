"""What a run of `reprior stream` was asked to do, how far it got, and the file that a restart reads both from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import cached_property
from hashlib import blake2b
from types import SimpleNamespace
from typing import Any

import click
import numpy as np

from reprior import Stream
from reprior._check import check_number, fail
from reprior._types import Vector
from reprior.cli._atomic import keep_apart
from reprior.cli._labels import LateLabels
from reprior.cli._pipes import tail_of
from reprior.cli._watch import Watch
from reprior.io.records import Form, form_from_json
from reprior.state import decode, encode, is_special, refuse, take, write_atomically

KIND, STREAM = "stream-job", "stream"


class StreamOptions(SimpleNamespace):
    """The options of `reprior stream`, called as the parameters of its command, once they are checked."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        check_number(self.every, STREAM, "--every", low=1, whole=True)
        check_number(self.remember, STREAM, "--remember", low=1, whole=True)
        check_number(self.level, STREAM, "--level", low=0, high=1, open_low=True)
        if self.name is not None and self.label is None:
            raise click.UsageError("--id needs --label, the key of the late labels")
        keep_apart(STREAM, self.output, self.input, self.source, self.counts, self.state)
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


@dataclass
class RunState:
    """All that a restart continues from, except labels and alarm: with the last bytes read and written.

    `weights` (K,) correct samples until the next update of the prior. `values` is as in `prepare`.
    """

    stream: Stream
    weights: Vector
    output: str
    fingerprint: str
    values: str | None = None
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

    def read(self, data: bytes) -> None:
        """Note what has been read and dealt with."""
        self.offset += len(data)
        self.read_tail = tail_of(self.read_tail, data)

    def skip(self, why: str) -> None:
        """Note that a record was left out."""
        self.skipped, self.first_skipped = self.skipped + 1, self.first_skipped or why


STORED: dict[str, tuple[type, ...]] = {  # fields of `RunState` as the state file has them
    "offset": (int,), "written": (int,), "skipped": (int,), "records": (int,), "read_tail": (np.ndarray,),
    "written_tail": (np.ndarray,), "mark": (list, type(None)), "begins": (bool,), "output": (str,),
    "fingerprint": (str,), "values": (str, type(None)),
}  # fmt: skip


def save(state: RunState, options: StreamOptions, labels: LateLabels, watch: Watch) -> None:
    """Write the state of a run, whole or not at all."""
    assert options.state is not None
    fields = {
        "settings": options.lasting, "stream": state.stream.to_bytes(), "weights": state.weights,
        "form": asdict(state.form) if state.form else None, **{name: getattr(state, name) for name in STORED},
        **labels.to_fields(), **watch.to_fields(),
    }  # fmt: skip
    write_atomically(options.state, encode(KIND, fields))


def restore(options: StreamOptions, labels: LateLabels, watch: Watch) -> RunState | None:
    """Return what the state file holds, if there is one, with labels and alarm put back as they were."""
    path = options.state
    if path is None or not path.exists():
        return None
    fields = decode(path.read_bytes(), KIND, STREAM, name=str(path))
    stored = {name: take(fields, name, kinds, STREAM, (None,)) for name, kinds in STORED.items()}
    same_options(options, {"-o": stored["output"]} | take(fields, "settings", dict, STREAM))
    if options.fingerprint not in ("", stored["fingerprint"]):
        fail(STREAM, "--source", f"be the source that {path} was made from, or be left out", "another",
             remedy="After retraining name a new state file")  # fmt: skip
    if min(stored[name] for name in ("offset", "written", "skipped", "records")) < 0:
        refuse(STREAM, "data", "a negative number of bytes or rows")
    if stored["values"] not in (None, "normalize", "logits"):
        refuse(STREAM, "data", "rows of an unknown kind")
    stored = {name: item.tobytes() if isinstance(item, np.ndarray) else item for name, item in stored.items()}
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


def same_options(options: StreamOptions, then: dict[str, Any]) -> None:
    """Refuse to continue with other options; an output file may have moved, but not turned into a pipe or back."""
    output = str(options.output)
    now = {"-o": output if "-" in (output, then["-o"]) else then["-o"]} | options.lasting
    if other := [key for key in now if now[key] != then.get(key)]:
        asked, had = (", ".join(f"{key} {values.get(key)}" for key in other) for values in (now, then))
        fail(STREAM, str(options.state), f"belong to a run with {asked}", had,
             remedy="Give the same options again, or name another state file to start again")  # fmt: skip
