"""One stream as the server holds it: what it has learned, what its clients have sent, and what is not stored yet."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from reprior._check import check_choice, check_int, check_matrix, fail
from reprior._labels import check_labels, check_learned, named
from reprior._types import Matrix, Source, Vector
from reprior.online.alarm import Alarm
from reprior.online.stream import Stream
from reprior.service.alarm_store import AlarmEvent
from reprior.service.settings import Limits
from reprior.service.store import Change, Kept, Offset, Point, floats
from reprior.state import decode, encode

RATE_SECONDS = 10.0  # over which the samples a second are averaged
LOOK_ROWS = 16  # samples for which one look of the alarm's test is worth its cost
LOOK_MOST = 64  # samples that one look takes at most: the prior it bets on is the one from before them
LOOK_SECONDS = 10.0  # for which samples wait for that test at most
POINT_ROWS = 16  # samples for which a point of the history is worth its place
POINT_SECONDS = 10.0  # for which fewer samples wait for a point
SPARK = 40  # points of the small curve in the list of streams
RUN_LENGTH = 1e6  # samples between two false alarms: a server sees many more than a notebook does


@dataclass(frozen=True, slots=True)
class Placed:
    """How a client's number fits what it sent before: already counted, or new, with what it leaves out."""

    repeated: bool = False
    fills: bool = False
    gap: tuple[int, int] | None = None
    forget: tuple[str, ...] = ()  # idle clients that make room for this one


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
    open_alarm: dict[str, Any] | None = None  # of a shift
    stale: dict[str, Any] | None = None  # the alarm that no samples come, until some do
    silence: dict[str, Any] | None = None
    gone: bool = False
    labelling: asyncio.Lock = field(default_factory=asyncio.Lock)
    unwatched: list[tuple[Matrix, float]] = field(default_factory=list)  # rows that the alarm has not tested, and when
    unwatched_prior: Vector | None = None  # before those rows
    # not stored yet
    fresh_offsets: set[str] = field(default_factory=set)
    fresh_forgotten: set[str] = field(default_factory=set)  # clients
    fresh_points: list[Point] = field(default_factory=list)
    fresh_taken: list[tuple[str, float]] = field(default_factory=list)
    fresh_alarms: list[AlarmEvent] = field(default_factory=list)
    fresh_cursors: set[str] = field(default_factory=set)
    fresh_rows: list[tuple[str, float, bytes]] = field(default_factory=list)
    fresh_labelled: set[str] = field(default_factory=set)
    alarm_moved: bool = False
    # for the page alone
    point_at: float = 0.0
    point_n: int = 0  # samples and labels at the last point
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

    def silenced(self, now: float) -> dict[str, Any] | None:
        """Return the silence that holds now, if there is one."""
        return self.silence if self.silence is not None and self.silence["until"] > now else None

    def alarms(self) -> list[dict[str, Any]]:
        """Return the alarms that are open: raised, and acknowledged by nobody."""
        return [a for a in (self.open_alarm, self.stale) if a is not None and not a.get("acknowledged")]

    def has_open(self, alarm: int) -> bool:
        """Return whether the alarm of this number is open."""
        return any(each["id"] == alarm for each in self.alarms())

    # what clients send

    def place(self, client: str | None, seq: int | None, limits: Limits, now: float) -> Placed:
        """Return how a number fits in; refuse it if that could not be remembered. Nothing changes."""
        if client is None or seq is None:
            return Placed()
        offset = self.offsets.get(client)
        if offset is None:
            if len(self.offsets) < limits.clients:
                return Placed()
            idle = tuple(name for name, o in self.offsets.items() if o.seen < now - limits.idle_seconds)
            if not idle:
                fail("samples", "client", f"be one of at most {limits.clients} clients of a stream", "another one",
                     remedy="Use the same client name again, or start the server with a larger --max-clients"
                     )  # fmt: skip
            return Placed(forget=idle)
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
        for name in placed.forget:
            del self.offsets[name]
            self.fresh_forgotten.add(name)
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

    def learn(self, rows: Matrix, now: float) -> tuple[bool, Matrix | None]:
        """Learn rows (n, K) in order; return whether that raised an alarm, and the rows as calibrated, if they were.

        Bad rows change nothing. A raised alarm has nothing to add until somebody deals with it, so it looks no further.
        """
        raised, seen, watched = False, None, self.alarm is not None and not self.alarm.verdict
        if not len(rows):
            return raised, rows
        if watched or self.stream.calibrator is not None:
            seen = self.stream.calibrated(rows, caller="samples")
        if seen is None:
            self.stream.learn_many(rows)
        else:
            for first in range(0, len(seen), LOOK_MOST):
                block = seen[first : first + LOOK_MOST]
                if watched and not self.unwatched:
                    self.unwatched_prior = self.stream.prior
                self.stream.learn_calibrated(block)
                if watched and not raised:
                    self.unwatched.append((block, now))
                    raised = self.look_due(now) and self.look(now)
        self.rate_before, self.rate_at = self.rate(now) + len(rows) / RATE_SECONDS, now
        return raised, seen

    def look_due(self, now: float) -> bool:
        """Return whether enough rows, or old enough ones, wait for the alarm's test."""
        if not self.unwatched:
            return False
        return sum(len(block) for block, _ in self.unwatched) >= LOOK_ROWS or now - self.unwatched[0][1] >= LOOK_SECONDS

    def look(self, now: float) -> bool:
        """Test the rows that wait, against the prior from before them; return whether that raised the alarm."""
        assert self.alarm is not None
        rows = np.concatenate([block for block, _ in self.unwatched])
        times = np.repeat([t for _, t in self.unwatched], [len(block) for block, _ in self.unwatched])
        base = self.stream.n - len(rows) - self.alarm.verdict.n
        self.unwatched, self.alarm_moved = [], True
        if not self.alarm.look(rows, self.unwatched_prior, times):
            return False
        self.open_alarm = self._describe(base, now)
        return True

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
            "kind": "shift", "stream": self.name, "raised": now, "sample": base + (verdict.raised_at or 0),
            "since_sample": since, "since": verdict.since_time, "evidence": verdict.evidence,
            "threshold": verdict.threshold,
            "sure": self.about["sure"], "shift": self.shift(prior),
            "classes": [{"class": names[k], "source": float(source[k]), "now": float(prior[k])}
                        for k in verdict.classes],
        }  # fmt: skip

    # what is stored

    def moment(self, t: float) -> Point:
        """Return what the stream knows now, as the point of its history at the time `t`."""
        variance, _ = self.stream.method.variance(self.stream.state.values)
        return Point(int(t * 1000), self.stream.n, floats(self.stream.prior), floats(variance))

    @property
    def counted(self) -> int:
        """Samples and labels so far: what a point of the history may be behind of."""
        return self.stream.n + self.labels

    def point_due(self, now: float, seconds: float) -> bool:
        """Return whether the history needs a point: a stream with few new samples has one every ten seconds."""
        passed = now - self.point_at
        few = 0 < self.point_n <= self.counted < self.point_n + POINT_ROWS
        return passed >= (max(seconds, POINT_SECONDS) if few and seconds >= 1.0 else seconds)

    def point(self, now: float) -> None:
        """Add a point to the history."""
        self.fresh_points.append(self.moment(now))
        self.point_at, self.point_n = now, self.counted
        if self.spark is not None:
            self.spark.append(self.shift())

    def change(self) -> Change:
        """Return what is not stored yet; it counts as stored from now on, unless `restore` gets it back."""
        made = Change(
            self.id, self.stream.n, self.labels, self.seen, state_bytes(self.stream),
            self.alarm.to_bytes() if self.alarm is not None and self.alarm_moved else None,
            {name: Offset(o.seq, o.n, o.seen, list(o.missing)) for name in self.fresh_offsets
             if (o := self.offsets.get(name))},
            self.fresh_forgotten, self.fresh_points, self.fresh_taken, self.fresh_alarms,
            self.fresh_rows, self.fresh_labelled,
            {origin: self.cursors[origin] for origin in self.fresh_cursors},
        )  # fmt: skip
        self.fresh_offsets, self.fresh_points, self.fresh_taken, self.fresh_alarms = set(), [], [], []
        self.fresh_rows, self.fresh_labelled = [], set()
        self.fresh_cursors, self.fresh_forgotten, self.alarm_moved = set(), set(), False
        return made

    def restore(self, change: Change) -> None:
        """Take back what could not be stored."""
        self.fresh_offsets |= set(change.offsets)
        self.fresh_forgotten |= change.forgotten
        self.fresh_points = change.points + self.fresh_points
        self.fresh_taken = change.taken + self.fresh_taken
        self.fresh_alarms = change.alarms + self.fresh_alarms
        self.fresh_cursors |= set(change.cursors)
        self.fresh_rows = change.rows + self.fresh_rows
        self.fresh_labelled |= change.labelled
        self.alarm_moved |= change.alarm is not None


def state_bytes(stream: Stream) -> bytes:
    """Return what a stream has learned, without its definition, as little-endian float64."""
    return stream.state.values.astype("<f8", copy=False).tobytes()


def define(
    stream: Stream, source: Source, *, classes: list[str] | None, alarm: dict[str, Any] | None,
    stale_after: float | None = None,
) -> tuple[bytes, Alarm | None]:  # fmt: skip
    """Return all that makes a stream as bytes, and its alarm; `alarm` are the options of one, None for none.

    `stale_after` are the seconds without samples after which the stream is stale: 0 for never, None for the server's.
    """
    watch, about = None, None
    if alarm is not None:
        options = {"run_length": RUN_LENGTH, **alarm}
        watch, about = Alarm(source, **options), options
    fields: dict[str, Any] = {
        "classes": classes, "alarm": about, "stale_after": stale_after, "stream": stream.to_bytes(),
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
    about = {"classes": classes, "alarm": fields["alarm"], "sure": how_sure(fields["alarm"]),
             "stale_after": fields["stale_after"]}  # fmt: skip
    return Defined(Stream.from_bytes(fields["stream"].tobytes()), source, about)


def restored(kept: Kept, known: dict[bytes, Defined] | None = None) -> Live:
    """Return the stream that was stored, ready to go on; `known` are definitions that were read before."""
    known = {} if known is None else known
    if kept.definition not in known:
        known[kept.definition] = defined(kept.definition)
    made = known[kept.definition]
    state = made.first.state
    values = np.frombuffer(kept.state, "<f8").astype(np.float64) if len(kept.state) % 8 == 0 else np.empty(0)
    if len(values) != len(state.values):
        fail("serve", "state", f"hold {len(state.values)} numbers of 8 bytes", f"{len(kept.state)} bytes",
             remedy=f"The stream {kept.name!r} is damaged; `reprior serve check` looks for more")  # fmt: skip
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
