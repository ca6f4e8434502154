"""One stream as the server holds it: what it has learned, what its clients have sent, and what is not stored yet."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from reprior._check import check_choice, check_int, check_matrix, fail
from reprior._labels import check_labels, check_learned, named
from reprior._types import Matrix, Source, Vector
from reprior.online.alarm import Alarm
from reprior.online.method import earlier, grown, state_size
from reprior.online.stream import Stream
from reprior.service.settings import Limits
from reprior.service.store import Change, Kept, Offset, Point, floats
from reprior.state import decode, encode

RATE_SECONDS = 10.0  # over which the samples a second are averaged
SPARK = 40  # points of the small curve in the list of streams
RUN_LENGTH = 1e6  # samples between two false alarms: a server sees many more than a notebook does


@dataclass(frozen=True, slots=True)
class Placed:
    """How a client's number fits what it sent before: already counted, or new, with what it leaves out."""

    repeated: bool = False
    fills: bool = False
    gap: tuple[int, int] | None = None


@dataclass(slots=True, eq=False)
class Live:
    """A stream with its alarm and its clients; only the event loop touches it."""

    id: int
    name: str
    created: float
    definition: bytes
    about: dict[str, Any]
    source: Source
    stream: Stream
    alarm: Alarm | None
    labels: int = 0
    seen: float = 0.0
    offsets: dict[str, Offset] = field(default_factory=dict)
    taken: dict[str, float] = field(default_factory=dict)
    cursors: dict[str, str] = field(default_factory=dict)  # of a broker's log: what was learned last
    open_alarm: dict[str, Any] | None = None
    gone: bool = False
    # not stored yet
    fresh_offsets: set[str] = field(default_factory=set)
    fresh_points: list[Point] = field(default_factory=list)
    fresh_taken: list[tuple[str, float]] = field(default_factory=list)
    fresh_alarms: list[tuple[int, float, str, str | None]] = field(default_factory=list)
    fresh_cursors: set[str] = field(default_factory=set)
    alarm_moved: bool = False
    # for the page alone
    point_at: float = 0.0
    rate_before: float = 0.0
    rate_at: float = 0.0
    spark: deque[float] | None = None

    @property
    def n_classes(self) -> int:
        return len(self.stream.source.prior)

    @property
    def classes(self) -> list[str]:
        """The names of the classes; their numbers where they have no names."""
        named: list[str] | None = self.about["classes"]
        return named if named is not None else [str(k) for k in range(self.n_classes)]

    def rate(self, now: float) -> float:
        """Return samples a second, of late."""
        return self.rate_before * math.exp(-max(0.0, now - self.rate_at) / RATE_SECONDS)

    def shift(self, prior: Vector | None = None) -> float:
        """Return how much of the mix has moved: half the summed differences of prior and source."""
        if not self.stream.n:
            return 0.0
        now = self.stream.prior if prior is None else prior
        return float(np.abs(now - self.stream.source.prior).sum() / 2)

    # what clients send

    def place(self, client: str | None, seq: int | None, limits: Limits) -> Placed:
        """Return how a number fits in; refuse it where that could not be remembered. Nothing changes."""
        if client is None or seq is None:
            return Placed()
        offset = self.offsets.get(client)
        if offset is None:
            if len(self.offsets) >= limits.clients:
                fail("samples", "client", f"be one of at most {limits.clients} clients of a stream",
                     "another one", remedy="A client is forgotten after seven days of silence")  # fmt: skip
            return Placed()
        if seq > offset.seq:
            gap = (offset.seq + 1, seq - 1) if seq > offset.seq + 1 else None
            if gap and len(offset.missing) >= limits.gaps:
                fail("samples", "seq", f"leave no more than {limits.gaps} gaps", seq,
                     remedy="Send what was left out, or go on under another client name")  # fmt: skip
            return Placed(gap=gap)
        fills = any(first <= seq <= last for first, last in offset.missing)
        return Placed(repeated=not fills, fills=fills)

    def note(self, client: str | None, seq: int | None, placed: Placed, now: float) -> None:
        """Remember a number as counted."""
        self.seen = now
        if client is None or seq is None:
            return
        offset = self.offsets.setdefault(client, Offset(seq, 0, now))
        if placed.fills:
            ranges = [(first, last) for first, last in offset.missing if not first <= seq <= last]
            cut = next((first, last) for first, last in offset.missing if first <= seq <= last)
            ranges += [(a, b) for a, b in ((cut[0], seq - 1), (seq + 1, cut[1])) if a <= b]
            offset.missing = [list(pair) for pair in sorted(ranges)]
        else:
            if placed.gap:
                offset.missing.append(list(placed.gap))
            offset.seq, offset.n = seq, self.stream.n
        offset.seen = now
        self.fresh_offsets.add(client)

    def learn(self, rows: Matrix, now: float) -> bool:
        """Learn rows (n, K) in order; return whether that raised an alarm. Bad rows change nothing."""
        raised = False
        if not len(rows):
            return raised
        before = self.stream.n
        if self.alarm is not None and not self.alarm.verdict:
            base = before - self.alarm.verdict.n
            raised = bool(self.alarm.watch(self.stream, rows, np.full(len(rows), now)))
            self.alarm_moved = True
            if raised:
                self.open_alarm = self._describe(base, now)
        else:  # an alarm that was raised has nothing more to say until somebody deals with it
            self.stream.learn_many(rows)
        self.rate_before, self.rate_at = self.rate(now) + len(rows) / RATE_SECONDS, now
        return raised

    def observe(self, rows: Matrix, y: Any) -> None:
        """Take in the labels (n,), columns or names, of rows (n, K) that were learned before."""
        found = named(
            check_labels(y, "labels", "y", len(rows), self.n_classes, self.about["classes"]), self.stream.classes
        )
        state = self.stream.state
        check_learned(state.labels + len(found), state.n, "labels")
        try:
            for row, label in zip(rows, found.tolist(), strict=True):
                self.stream.observe(row, label)
        except ValueError:  # all or nothing, also where a later row is bad
            self.stream = Stream.of(state)
            raise
        self.labels += len(found)

    def _describe(self, base: int, now: float) -> dict[str, Any]:
        assert self.alarm is not None
        verdict, names, prior = self.alarm.verdict, self.classes, self.stream.prior
        since = base + (verdict.since or 1)
        source = self.stream.source.prior
        return {
            "stream": self.name, "raised": now, "sample": base + (verdict.raised_at or 0), "since_sample": since,
            "since": verdict.since_time, "evidence": verdict.evidence, "threshold": verdict.threshold,
            "sure": self.about["sure"], "shift": self.shift(prior),
            "classes": [{"class": names[k], "source": float(source[k]), "now": float(prior[k])}
                        for k in verdict.classes],
        }  # fmt: skip

    # what is stored

    def moment(self, t: float) -> Point:
        """Return what the stream knows now, as the point of its history at the time `t`."""
        variance, _ = self.stream.method.variance(self.stream.state.values)
        return Point(int(t * 1000), self.stream.n, floats(self.stream.prior), floats(variance))

    def point(self, now: float) -> None:
        """Add a point to the history."""
        self.fresh_points.append(self.moment(now))
        self.point_at = now
        if self.spark is not None:
            self.spark.append(self.shift())

    def change(self) -> Change:
        """Return what is not stored yet; it counts as stored from now on, unless `restore` gets it back."""
        made = Change(
            self.id, self.stream.n, self.labels, self.seen, state_bytes(self.stream),
            self.alarm.to_bytes() if self.alarm is not None and self.alarm_moved else None,
            {name: Offset(o.seq, o.n, o.seen, list(o.missing)) for name in self.fresh_offsets
             if (o := self.offsets.get(name))},
            self.fresh_points, self.fresh_taken, self.fresh_alarms,
            {origin: self.cursors[origin] for origin in self.fresh_cursors},
        )  # fmt: skip
        self.fresh_offsets, self.fresh_points, self.fresh_taken, self.fresh_alarms = set(), [], [], []
        self.fresh_cursors, self.alarm_moved = set(), False
        return made

    def restore(self, change: Change) -> None:
        """Take back what could not be stored."""
        self.fresh_offsets |= set(change.offsets)
        self.fresh_points = change.points + self.fresh_points
        self.fresh_taken = change.taken + self.fresh_taken
        self.fresh_alarms = change.alarms + self.fresh_alarms
        self.fresh_cursors |= set(change.cursors)
        self.alarm_moved |= change.alarm is not None


def state_bytes(stream: Stream) -> bytes:
    """Return what a stream has learned, without its definition, as little-endian float64."""
    return stream.state.values.astype("<f8", copy=False).tobytes()


def define(
    stream: Stream, source: Source, *, classes: list[str] | None, alarm: dict[str, Any] | None
) -> tuple[bytes, Alarm | None]:
    """Return all that makes a stream as bytes, and its alarm; `alarm` are the options of one, None for none."""
    watch, about = None, None
    if alarm is not None:
        options = {"run_length": RUN_LENGTH, **alarm}
        watch, about = Alarm(source, **options), options
    fields: dict[str, Any] = {
        "classes": classes, "alarm": about, "stream": stream.to_bytes(),
        "prior": source.prior, "made": source.made,
    }  # fmt: skip
    for name in ("confusion", "hard_confusion", "counts"):
        if getattr(source, name) is not None:
            fields[name] = getattr(source, name)
    if source.heldout is not None:
        fields["heldout_proba"], fields["heldout_y"] = source.heldout
    return encode("served stream", fields), watch


@dataclass(frozen=True, slots=True)
class Defined:
    """What a definition's bytes say; streams made of the same share it."""

    first: Stream
    source: Source
    about: dict[str, Any]


def defined(definition: bytes) -> Defined:
    """Return what the bytes of `define` say."""
    fields = decode(definition, "served stream", "serve")
    heldout = (fields["heldout_proba"], fields["heldout_y"]) if "heldout_y" in fields else None
    classes = fields["classes"]
    source = Source(
        fields["prior"], confusion=fields.get("confusion"), counts=fields.get("counts"),
        hard_confusion=fields.get("hard_confusion"), heldout=heldout, made=fields["made"],
        classes=None if classes is None else tuple(classes),
    )  # fmt: skip
    about = {"classes": classes, "alarm": fields["alarm"], "sure": how_sure(fields["alarm"])}
    return Defined(Stream.from_bytes(fields["stream"].tobytes()), source, about)


def restored(kept: Kept, known: dict[bytes, Defined] | None = None) -> Live:
    """Return the stream that was stored, ready to go on; `known` are definitions that were read before."""
    known = {} if known is None else known
    if kept.definition not in known:
        known[kept.definition] = defined(kept.definition)
    made = known[kept.definition]
    state = made.first.state
    values = np.frombuffer(kept.state, "<f8").astype(np.float64) if len(kept.state) % 8 == 0 else np.empty(0)
    if len(values) == state_size(earlier(state.method)):
        values = grown(state.method, values)
    if len(values) != len(state.values):
        fail("serve", "state", f"hold {len(state.values)} numbers of 8 bytes", f"{len(kept.state)} bytes",
             remedy=f"The stream {kept.name!r} is damaged; `reprior serve --check` looks for more")  # fmt: skip
    alarm = None if kept.alarm is None else Alarm.from_bytes(kept.alarm)
    live = Live(kept.id, kept.name, kept.created, kept.definition, made.about, made.source,
                Stream.of(replace(state, values=values, labels=state.labels + kept.labels)), alarm,
                labels=kept.labels)  # fmt: skip
    live.seen = live.point_at = kept.seen
    return live


def how_sure(options: dict[str, Any] | None) -> str | None:
    """Return the sentence that says how often such an alarm is false."""
    if options is None:
        return None
    if options.get("mode", "monitor") == "ever":
        return f"The chance of a false alarm is at most {options.get('alpha', 0.01):.3g}, however long it runs."
    return f"False alarms are on average at least {options['run_length']:,.0f} samples apart."


def check_seq(client: Any, seq: Any) -> tuple[str | None, int | None]:
    """Return a client's name and number, both or neither."""
    if (client is None) != (seq is None):
        given, missing = ("client", "seq") if seq is None else ("seq", "client")
        fail("samples", missing, f"be given, because `{given}` is", "nothing", remedy="Or leave out both")
    if client is None:
        return None, None
    if not isinstance(client, str) or not 0 < len(client) <= 200 or not client.isprintable():
        fail("samples", "client", "be a text of 1 to 200 printable characters", repr(client)[:80])
    number = check_int(seq, "samples", "seq", low=0)
    if number >= 1 << 53:
        fail("samples", "seq", "be below 2**53", number)
    return client, number


def as_rows(value: Any, n_classes: int, caller: str, dtype: Any = None) -> Matrix:
    """Return rows (n, K) of a body: lists of numbers, or raw little-endian float32 or float64; none at all is fine."""
    if isinstance(value, bytes):
        kind = check_choice("f4" if dtype is None else dtype, caller, "dtype", ("f4", "f8"))
        size = int(kind[1]) * n_classes
        if len(value) % size:
            fail(caller, "proba", f"have {n_classes} classes, so rows of {n_classes} numbers ({size} bytes as {kind})",
                 f"{len(value) // int(kind[1])} numbers in all ({len(value)} bytes)")  # fmt: skip
        return np.frombuffer(value, f"<{kind}").reshape(-1, n_classes)
    if isinstance(value, np.ndarray):
        return value
    if dtype is not None:
        fail(caller, "dtype", "be left out where rows are lists", repr(dtype)[:80])
    if not isinstance(value, list):
        fail(caller, "proba", "be a list of rows", type(value).__name__)
    if not value:
        return np.empty((0, n_classes))
    if not all(isinstance(row, list) for row in value):
        fail(caller, "proba", "be a list of rows, each a list of numbers", "something else")
    if any(isinstance(x, bool) for x in value[0]):
        fail(caller, "proba", "hold numbers", "true or false")
    return check_matrix(value, caller, "proba", n_classes)
