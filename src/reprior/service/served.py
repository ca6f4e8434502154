"""One stream as the server holds it: its definition, what it has learned, what is not stored, and its activity."""

from __future__ import annotations

import asyncio
import json
import math
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from reprior._check import fail
from reprior._labels import check_labels, check_learned, named
from reprior._types import Matrix, Vector
from reprior.online.acting import next_window_end, without_warning
from reprior.online.alarm import Alarm
from reprior.online.stream import Stream
from reprior.service.damage import with_checksum
from reprior.service.definition import Recipe, StreamDefinition, decoded, state_bytes
from reprior.service.pending import LOGGED_BYTES, NOTHING, Change, Logged, Pending
from reprior.service.receipts import Placement, Receipts
from reprior.service.store import StoredStream, floats
from reprior.service.stream_alarms import LOOK_MOST, StreamAlarms

RATE_SECONDS = 10.0  # over which samples per second are averaged
POINT_ROWS = 16  # samples for which a point of the history is worth its place
POINT_SECONDS = 10.0  # for which fewer samples wait for a point
CURVE_POINTS = 40  # of the small curve in the list of streams
NO_WARNING = nullcontext()  # around samples that no test of the stream follows


@dataclass(slots=True)
class Activity:
    """What a stream did of late: in memory only, for the page and for when the next point is due."""

    point_at: float = 0.0  # when the last point of the history was made
    point_count: int = 0  # samples and labels at that point
    rate_then: float = 0.0  # samples per second at `rate_at`
    rate_at: float = 0.0
    curve: deque[float] | None = None  # the last shifts, for the small curve

    def rate(self, now: float) -> float:
        """Return samples per second, averaged over the last ten seconds."""
        return self.rate_then * math.exp(-max(0.0, now - self.rate_at) / RATE_SECONDS)

    def count(self, samples: int, now: float) -> None:
        """Note that samples came."""
        self.rate_then, self.rate_at = self.rate(now) + samples / RATE_SECONDS, now


class Learned(NamedTuple):
    """What a post did: whether it raised the alarm, its samples (n, K) as calibrated (or as they came), and whether
    a window of the stream has ended, after which its share of the correction may have changed."""

    raised: bool
    rows: Matrix
    window_ended: bool = False


@dataclass(slots=True, eq=False)
class ServedStream:
    """A stream on the server; only the event loop touches it.

    `definition` lasts until a new model version. `stream`, `labels`, `receipts` and `watch` are stored. `pending` lasts
    until the next commit. `activity` is lost when the server stops.
    """

    id: int
    name: str
    created: float
    version: int
    version_since: float
    definition: StreamDefinition
    stream: Stream
    labels: int = 0  # that came over HTTP for this version
    last_post: float = 0.0
    receipts: Receipts = field(default_factory=Receipts)
    watch: StreamAlarms = field(default_factory=StreamAlarms)
    pending: Pending = field(default_factory=Pending)
    learned: list[Matrix] = field(default_factory=list)  # calibrated samples that are in no commit yet
    state_due: bool = False  # whether the next commit must write the state: samples alone do not tell it
    log_bytes: int = 0  # of samples in the file that are later than the state there
    activity: Activity = field(default_factory=Activity)
    labelling: asyncio.Lock = field(default_factory=asyncio.Lock)
    gone: bool = False  # deleted, or about to be

    @property
    def n_classes(self) -> int:
        return len(self.stream.source.prior)

    @property
    def classes(self) -> list[str]:
        return self.definition.classes

    @property
    def counted(self) -> int:
        """Samples and labels of this version: what the last point of the history may lag behind."""
        return self.stream.n + self.labels

    def shift(self, prior: Vector | None = None) -> float:
        """Return the total variation between a prior (by default the estimate) and the source prior."""
        if not self.stream.n:
            return 0.0
        now = self.stream.prior if prior is None else prior
        return float(np.abs(now - self.stream.source.prior).sum() / 2)

    # learning

    def count_post(self, client: str | None, seq: int | None, placement: Placement, now: float) -> None:
        """Remember a post as counted."""
        self.last_post = now
        if client is None or seq is None:
            return
        o = self.receipts.count(client, seq, placement, self.stream.n, now)
        for idle in placement.idle:
            self.pending.put("forget client", idle, self.id, idle)
        missing = json.dumps(o.missing) if o.missing else "[]"
        self.pending.put("offset", client, self.id, client, o.seq, o.n, o.last_post, missing)

    def learn(self, rows: Matrix, now: float) -> Learned:
        """Learn rows (n, K) in order. Bad rows are refused and change nothing."""
        if not len(rows):
            return Learned(False, rows)
        stream, watch = self.stream, self.watch
        if stream.calibrator is not None:
            rows = stream.calibrated(rows, caller="samples")
        before = stream.n
        window_ended = before + len(rows) >= next_window_end(stream, before)
        with without_warning() if window_ended else NO_WARNING:  # the server raises an alarm
            if watch.active:
                raised = self._learn_watched(rows, now)
            else:
                raised = False
                stream.learn_calibrated(rows)
        self.learned.append(rows)
        self.activity.count(len(rows), now)
        return Learned(raised, rows, window_ended)

    def _learn_watched(self, rows: Matrix, now: float) -> bool:
        """Learn rows and let the alarm's test look at them, in blocks; return whether that raised the alarm."""
        stream, watch, raised = self.stream, self.watch, False
        if len(rows) > LOOK_MOST:  # every block must be good before the first is learned
            rows = stream.calibrated(rows, caller="samples") if stream.calibrator is None else rows
        for first in range(0, len(rows), LOOK_MOST):
            block = rows[first : first + LOOK_MOST]
            if not watch.waiting:
                prior = stream.prior
            stream.learn_calibrated(block)
            if raised:
                continue
            if not watch.waiting:
                watch.waiting_prior = prior
            watch.add(block, now)
            raised = watch.look_due(now) and self.look(now)
        return raised

    def look(self, now: float) -> bool:
        """Let the alarm's test look at the samples that wait; return whether that raised the alarm."""
        assert self.watch.test is not None
        looked_at = self.watch.test.state.verdict.n
        before = self.stream.n - self.watch.waiting_rows - looked_at  # samples that it never looked at
        self.watch.test_moved = True
        if not self.watch.look():
            return False
        self.mark_test_changed()
        self.watch.shift = self._shift_alarm(before, now)
        return True

    def mark_test_changed(self) -> None:
        """Let the next commit store the alarm's test, if it has looked at samples since it was stored."""
        if self.watch.test_moved and self.watch.test is not None:
            self.watch.test_moved = False
            self.pending.put("test", None, self.id, self.watch.test.to_bytes())

    def _shift_alarm(self, before: int, now: float) -> dict[str, Any]:
        assert self.watch.test is not None
        verdict, names, prior = self.watch.test.verdict, self.classes, self.stream.prior
        source = self.stream.source.prior
        return {
            "kind": "shift", "stream": self.name, "raised": now, "sample": before + (verdict.raised_at or 0),
            "since_sample": before + (verdict.since or 1), "since": verdict.since_time, "evidence": verdict.evidence,
            "threshold": verdict.threshold, "sure": self.definition.false_alarms, "shift": self.shift(prior),
            "classes": [{"class": names[k], "source": float(source[k]), "now": float(prior[k])}
                        for k in verdict.classes],
        }  # fmt: skip

    def observe(self, rows: Matrix, y: Any) -> None:
        """Take in the labels (n,), columns or names, of rows (n, K) that were learned before."""
        columns = check_labels(y, "labels", "y", len(rows), self.n_classes, self.definition.source.classes)
        columns = named(columns, self.stream.classes)
        state = self.stream.state
        check_learned(state.labels + len(columns), state.n, "labels")
        try:
            for row, label in zip(rows, columns.tolist(), strict=True):
                self.stream.observe(row, label)
        except ValueError:  # all or nothing, also if a later row is bad
            self.stream = Stream.of(state)
            raise
        self.labels += len(columns)
        self.state_due = True

    # storing

    def history_point(self, t: float) -> tuple[int, int, bytes, bytes]:
        """Return a point of the history: milliseconds since 1970, samples, float32 prior and variance (K,) about it."""
        (about, _), prior = self.stream.method.spread(self.stream.state.values), self.stream.prior
        return int(t * 1000), self.stream.n, floats(prior), floats(about.variance + (about.mean - prior) ** 2)

    def point_due(self, now: float, seconds: float) -> bool:
        """Return whether the history needs a point: a stream with few new samples has one every ten seconds."""
        activity, counted = self.activity, self.counted
        few = 0 < activity.point_count <= counted < activity.point_count + POINT_ROWS
        return now - activity.point_at >= (max(seconds, POINT_SECONDS) if few and seconds >= 1.0 else seconds)

    def add_point(self, now: float) -> None:
        """Add a point to the history, and store the alarm's test with it."""
        self.mark_test_changed()
        t, n, prior, variance = self.history_point(now)
        self.pending.put("point", (t, n), self.id, t, n, prior, with_checksum(variance, self.id, t, n, prior))
        self.activity.point_at, self.activity.point_count = now, self.counted
        if self.activity.curve is not None:
            self.activity.curve.append(self.shift())

    @property
    def settled(self) -> bool:
        """Whether every sample had its look of the alarm and is in the history."""
        return not self.watch.waiting and self.activity.point_count == self.counted

    def take_change(self) -> Change:
        """Take and return what is not stored yet. It counts as stored from now on, unless `take_back` returns it."""
        pending = self.pending
        if pending.rows or pending.alarms or pending.versions:
            self.pending = Pending()
        else:  # as after most posts
            pending = NOTHING
        samples = self._logged()
        state = state_bytes(self.stream) if samples is None else None
        self.learned, self.state_due = [], False
        return Change(self.id, self.stream.n, self.labels, self.last_post, state, pending, samples)

    def _logged(self) -> Logged | None:
        """Return the samples since the last commit as they are stored; None if the state is to be stored instead.

        The state is stored when the samples after it would take as many bytes.
        """
        learned = self.learned
        size = self.log_bytes + LOGGED_BYTES + sum([rows.nbytes for rows in learned])
        if self.state_due or size > self.definition.state_size:
            return None
        dtypes = {rows.dtype.str for rows in learned} or {"<f8"}
        if dtypes not in ({"<f4"}, {"<f8"}):
            return None
        rows = b"".join([rows.tobytes() for rows in learned])
        return Logged(self.id, self.version_since, self.stream.n, self.last_post, dtypes.pop(), rows)

    def forget_changes(self) -> None:
        """Forget what there is to store: the server has no file."""
        self.pending, self.learned = Pending(), []

    def take_back(self, change: Change) -> None:
        """Put back a change that could not be stored."""
        self.pending = change.pending.followed_by(self.pending)
        self.state_due = True

    def renew(self, definition: StreamDefinition, stored: Recipe, test: Alarm | None, now: float) -> None:
        """Start a new model version: its state and alarm begin at nothing, receipts and history stay."""
        self.version, self.version_since, self.definition = self.version + 1, now, definition
        self.stream, self.labels = Stream.of(definition.first.state), 0
        self.learned, self.state_due = [], True
        self.watch.restart(test)
        self.watch.not_label_shift = None
        self.pending.begin_version(self.version, now, stored.definition)
        if test is not None:
            self.pending.put("test", None, self.id, stored.test)
        self.activity.point_count = -1  # a point is due with the first sample


def restored(stored: StoredStream, definitions: dict[bytes, StreamDefinition]) -> ServedStream:
    """Return a stream that was stored; `definitions` are those read before, and this one is added to them."""
    if stored.definition not in definitions:
        definitions[stored.definition] = decoded(stored.definition)
    definition = definitions[stored.definition]
    state = definition.first.state
    values = np.frombuffer(stored.state, "<f8").astype(np.float64) if len(stored.state) % 8 == 0 else np.empty(0)
    if len(values) != len(state.values):
        fail("serve", "state", f"hold {len(state.values)} numbers of 8 bytes, undamaged", f"{len(stored.state)} bytes",
             remedy=f"The stream {stored.name!r} is damaged; run `reprior serve check`")  # fmt: skip
    stream = Stream.of(replace(state, values=values, labels=state.labels + stored.labels))
    with without_warning():  # the server raised an alarm
        for logged in stored.samples:
            rows = np.frombuffer(logged.rows, logged.dtype).reshape(-1, len(definition.source.prior))
            if len(rows):
                stream.learn_calibrated(rows)
            if stream.n != logged.n:
                fail("serve", "samples", f"add up to {logged.n}", stream.n,
                     remedy=f"The stream {stored.name!r} is damaged; run `reprior serve check`")  # fmt: skip
    test = None if stored.test is None else Alarm.from_bytes(stored.test)
    return ServedStream(
        stored.id, stored.name, stored.created, stored.version, stored.version_since, definition,
        stream, stored.labels, stored.last_post, watch=StreamAlarms(test),
        activity=Activity(point_at=stored.last_post), log_bytes=sum(logged.size for logged in stored.samples),
    )  # fmt: skip
