"""Samples and labels: learned in memory, answered after the commit that stores them."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reprior._check import check_choice, check_matrix, fail
from reprior._types import Matrix, Vector
from reprior.online.stream import Stream
from reprior.service.errors import Missing
from reprior.service.receipts import Placement
from reprior.service.served import ServedStream

if TYPE_CHECKING:
    from reprior.service.hub import Hub

LONGEST_ID = 200


class Post(NamedTuple):
    """What a client sends: samples, or labels `y` of samples that it sent before.

    `proba` are lists of numbers, an array (n, K), or raw numbers of the type `dtype`. `ids` name the samples, for
    labels that come later. `event` is the id of a CloudEvent, `cursor` a broker's log and the position in it.
    """

    proba: Any = None
    client: str | None = None
    seq: int | None = None
    dtype: Any = None
    correct: bool = True
    ids: Any = None
    event: str | None = None
    cursor: tuple[str, str] | None = None


class Answer(NamedTuple):
    """What a client gets back: its corrected samples `proba`, the estimated prior and the number of samples learned.

    `repeated` is whether the post was counted before, when the stream had `counted_at` samples. `gap` is the range of
    the client's numbers that were left out.
    """

    proba: Matrix | None
    prior: Vector
    n: int
    repeated: bool = False
    gap: tuple[int, int] | None = None
    counted_at: int | None = None

    def fields(self) -> dict[str, Any]:
        """Return the answer as the object that a client reads."""
        fields: dict[str, Any] = {} if self.proba is None else {"proba": self.proba}
        fields["prior"], fields["n"] = self.prior, self.n
        if self.repeated:
            fields |= {"repeated": True, "counted_at": self.counted_at}
        if self.gap:
            fields["gap"] = {"first": self.gap[0], "last": self.gap[1]}
        return fields


class Posts:
    """The posts to the streams of one server."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    async def samples(self, name: str, post: Post) -> Answer:
        """Learn samples, unless they were counted before, and return them corrected, once that is on disk."""
        hub = self._hub
        served = hub.get(name)
        hub.commits.check_ready()
        raw = as_rows(post.proba, served.n_classes, "samples", post.dtype)
        now = hub.clock()
        placement = served.receipts.place(post.client, post.seq, hub.settings.limits, now)
        repeated = placement.repeated or (post.event is not None and post.event in served.receipts.events)
        if post.ids is not None:
            check_ids(post.ids, len(raw), "samples")
        calibrated = None if repeated else self._learn(served, raw, post, placement, now)
        if post.cursor is not None:
            self._move_cursor(served, *post.cursor)
        corrected, prior = corrected_by(served.stream, raw, calibrated) if post.correct else (None, served.stream.prior)
        counted_at = None
        if repeated and post.client is not None and (offset := served.receipts.offsets.get(post.client)):
            counted_at = offset.n
        answer = Answer(corrected, prior, served.stream.n, repeated, placement.gap, counted_at)
        await hub.commits.wait_stored(served, repeated=repeated)
        return answer

    def _learn(self, served: ServedStream, raw: Matrix, post: Post, placement: Placement, now: float) -> Matrix:
        """Learn samples that were not counted before; return them as calibrated."""
        hub, before = self._hub, served.stream.n
        raised, calibrated, window_ended = served.learn(raw, now)
        if window_ended:
            hub.alarms.update_not_label_shift(served, before)
        if post.ids is not None:
            keep_for_label(served, post.ids, raw, now)
        if raised:
            hub.alarms.shift_raised(served)
        hub.alarms.store_since_alarm(served, raw)
        if post.event is not None:
            served.receipts.events[post.event] = now
            served.pending.put("event", post.event, served.id, post.event, now)
        self._count(served, post, placement, now)
        hub.recent.add(served.id, raw)
        hub.counters.learned += len(raw)
        return calibrated

    async def labels(self, name: str, post: Post, y: Any) -> Answer:
        """Take in the labels of samples that were learned before, named by their rows or by their prediction ids."""
        hub = self._hub
        served = hub.get(name)
        hub.commits.check_ready()
        if not isinstance(y, list):
            fail("labels", "y", "be a list with the label of each row", type(y).__name__)
        if (post.proba is None) == (post.ids is None):
            fail("labels", "body", "have either `proba` or `ids`", "both" if post.ids is not None else "neither")
        async with served.labelling if post.ids is not None else nullcontext():  # a row that waits takes one label
            now = hub.clock()
            placement = served.receipts.place(post.client, post.seq, hub.settings.limits, now)
            if not placement.repeated:
                if post.ids is None:
                    rows = as_rows(post.proba, served.n_classes, "labels", post.dtype)
                else:
                    rows = await rows_waiting(hub, served, check_ids(post.ids, None, "labels"))
                if len(rows) or y:
                    served.observe(rows, y)
                for name_of_row in post.ids or ():
                    served.pending.put("forget row", name_of_row, served.id, name_of_row)
                self._count(served, post, placement, now)
            answer = Answer(None, served.stream.prior, served.stream.n, placement.repeated, placement.gap)
            await hub.commits.wait_stored(served, repeated=placement.repeated)
        return answer

    async def skip_message(self, name: str, cursor: tuple[str, str]) -> None:
        """Store the position after a broker's message from which nothing could be learned."""
        served = self._hub.get(name)
        self._move_cursor(served, *cursor)
        await self._hub.commits.wait_stored(served)

    def _move_cursor(self, served: ServedStream, origin: str, position: str) -> None:
        """Let the next commit store the position in a broker's log."""
        served.receipts.cursors[origin] = position
        served.pending.put("cursor", origin, served.id, origin, position)
        self._hub.mark(served)

    def _count(self, served: ServedStream, post: Post, placement: Placement, now: float) -> None:
        """Remember a post of samples or labels as counted, resolve a stale alarm, and add a point if one is due."""
        hub = self._hub
        served.count_post(post.client, post.seq, placement, now)
        hub.alarms.resolve_stale(served)
        if served.point_due(now, hub.settings.point_seconds):
            served.add_point(now)
        if not served.settled:
            hub.unsettled.add(served)
        hub.mark(served)


def corrected_by(stream: Stream, raw: Matrix, calibrated: Matrix | None) -> tuple[Matrix, Vector]:
    """Return samples (n, K) under the estimated prior, and this prior (K,). `calibrated` are the samples as calibrated,
    None if they were not learned."""
    if calibrated is None or not len(raw):
        return stream.correct_many(raw) if len(raw) else raw, stream.prior
    corrected, prior = stream.correct_calibrated(calibrated)
    return corrected.astype(raw.dtype, copy=False), prior


def as_rows(value: Any, n_classes: int, caller: str, dtype: Any = None) -> Matrix:
    """Return rows (n, K) of a body: lists of numbers, an array, or raw little-endian float32 or float64."""
    if isinstance(value, bytes):
        kind = check_choice("f4" if dtype is None else dtype, caller, "dtype", ("f4", "f8"))
        size = int(kind[1]) * n_classes
        if len(value) % size:
            fail(caller, "proba", f"have {n_classes} classes, so rows of {n_classes} numbers ({size} bytes as {kind})",
                 f"{len(value) // int(kind[1])} numbers in all ({len(value)} bytes)")  # fmt: skip
        return np.frombuffer(value, f"<{kind}").reshape(-1, n_classes)
    if dtype is not None:
        fail(caller, "dtype", "be left out where rows are lists", repr(dtype)[:80])
    if isinstance(value, np.ndarray):
        return value if value.shape[1:] == (n_classes,) else check_matrix(value, caller, "proba", n_classes)
    if not isinstance(value, list):
        fail(caller, "proba", "be a list of rows", type(value).__name__)
    if not value:
        return np.empty((0, n_classes))
    if not all(isinstance(row, list) for row in value):
        fail(caller, "proba", "be a list of rows, each a list of numbers", "something else")
    if any(isinstance(x, bool) for x in value[0]):
        fail(caller, "proba", "hold numbers", "true or false")
    return check_matrix(value, caller, "proba", n_classes)


# labels that come late, by the id of a prediction


def check_ids(ids: Any, n: int | None, caller: str) -> list[str]:
    """Return prediction ids, all different, one for each of `n` rows."""
    if not isinstance(ids, list) or not all(isinstance(x, str) and 0 < len(x) <= LONGEST_ID for x in ids):
        fail(caller, "ids", f"be a list of texts of 1 to {LONGEST_ID} characters", repr(ids)[:80])
    if n is not None and len(ids) != n:
        fail(caller, "ids", f"be one for each of the {n} rows", len(ids))
    if len({*ids}) < len(ids):
        fail(caller, "ids", "all be different", "the same one twice")
    return list(ids)


def keep_for_label(served: ServedStream, ids: Any, rows: Matrix, now: float) -> None:
    """Let rows (n, K) wait for their labels."""
    values = np.asarray(rows, "<f8")
    for name, row in zip(ids, values, strict=True):
        served.pending.put("row", name, served.id, name, now, row.tobytes())


async def rows_waiting(hub: Hub, served: ServedStream, ids: list[str]) -> Matrix:
    """Return the rows (n, K) that wait for labels under these ids."""
    if hub.store is None:
        fail("labels", "ids", "be used with a database", "none")
    version = served.version
    waiting = dict(await hub.workers.read(hub.store.rows, served.id, ids))
    if served.version != version:  # what waited is a prediction of the old version
        waiting = {}
    missing = [name for name in ids if name not in waiting or ("forget row", name) in served.pending.rows]
    if missing:
        days = hub.settings.retention.rows / 86_400
        raise Missing(f"No sample of the stream {served.name!r} waits for a label under the id {missing[0][:80]!r},"
                      f" {len(missing)} in all. A sample waits {days:g} days and takes one label.")  # fmt: skip
    return np.array([np.frombuffer(waiting[name], "<f8") for name in ids], np.float64).reshape(-1, served.n_classes)
