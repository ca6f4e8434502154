"""All streams of a server: learn in memory, commit in groups, answer after the commit, tell who watches.

While one commit is on its way to the disk the next posts gather; all of them go into the next one. A commit that fails
is tried again with everything that has come since, and until one succeeds no new samples are taken.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from reprior._check import fail
from reprior._types import Matrix, Source
from reprior.online.alarm import Alarm
from reprior.online.stream import Stream
from reprior.service.live import SPARK, Defined, Live, as_rows, define, restored, state_bytes
from reprior.service.recent import Diagnoses, Recent
from reprior.service.settings import Clock, Settings
from reprior.service.store import FORGET_CLIENTS, REMEMBER_IDS, Kept, Store, StoreError

log = logging.getLogger("reprior.service")
T = TypeVar("T")

RETRY_SECONDS = 0.5
GATHER_SECONDS = 0.001
COMPACT_SECONDS = 60.0
COMPACT_STREAMS = 50  # in one transaction, so that no commit waits long for it
LISTED = 100  # alarms of a stream
ENOUGH_TO_ACCEPT = 200  # rows that may become the new reference of an alarm


class Unavailable(Exception):
    """Try again later; the sentence says why."""


class Missing(Exception):
    """There is no such thing."""


class Conflict(Exception):
    """It is there already, and different."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a post is told: the rows under the prior after it, and how its number fitted in."""

    proba: Matrix | None
    prior: Any
    n: int
    repeated: bool = False
    gap: tuple[int, int] | None = None
    counted_at: int | None = None

    def fields(self) -> dict[str, Any]:
        said: dict[str, Any] = {} if self.proba is None else {"proba": self.proba}
        said |= {"prior": self.prior, "n": self.n}
        if self.repeated:
            said |= {"repeated": True, "counted_at": self.counted_at}
        if self.gap:
            said["gap"] = {"first": self.gap[0], "last": self.gap[1]}
        return said


class Unreadable(NamedTuple):
    """A stored stream that this release cannot read: its number, and why."""

    id: int
    why: str


class Hub:
    """The streams of one server, and the one thread that writes them down."""

    def __init__(self, settings: Settings, store: Store | None, clock: Clock | None = None) -> None:
        self.settings, self.store = settings, store
        self.clock = clock or Clock(store.newest() if store else 0.0)
        self.streams: dict[str, Live] = {}
        self.unreadable: dict[str, Unreadable] = {}
        self.trouble: str | None = None
        self.version = 0  # grows with every change, so that watchers know whether to look
        self.learned = self.watchers = self.forward_dropped = self.refused = 0  # since the start
        self.started = self.clock()
        self._writer = ThreadPoolExecutor(1, "reprior-writer")
        self._readers = ThreadPoolExecutor(2, "reprior-reader")
        self._thinker = ThreadPoolExecutor(1, "reprior-thinker")
        self._dirty: set[Live] = set()
        self._unpointed: set[Live] = set()
        self._flying: asyncio.Future[None] | None = None
        self._next: asyncio.Future[None] | None = None
        self._waiting = 0
        self._joined = self._group = 0  # posts that wait for the next commit, and that waited for the last one
        self._wake, self._closing = asyncio.Event(), False
        self._admin = asyncio.Lock()
        self._tasks: list[asyncio.Task[None]] = []
        self._recent = Recent()
        self.diagnoses = Diagnoses(self._recent, self.clock, self.in_thinker)
        self._alarm_id = 0
        self._nameless = 0
        if store:
            self._load(store)

    def _load(self, store: Store) -> None:
        by_id: dict[int, Live] = {}
        known: dict[bytes, Defined] = {}
        for kept in store.streams():
            try:
                by_id[kept.id] = self.streams[kept.name] = restored(kept, known)
            except Exception as error:  # bytes of another release, or damaged ones, may be anything
                why = (f"The stream {kept.name!r} cannot be read ({error}) Its bytes are kept as they are. Serve the"
                       " file with the release that wrote it, or delete the stream and make it anew.")  # fmt: skip
                self.unreadable[kept.name] = Unreadable(kept.id, why)
                log.error("%s", why)
        for stream, client, offset in store.offsets():
            if stream in by_id:
                by_id[stream].offsets[client] = offset
        for stream, name, t in store.read("SELECT stream, id, t FROM taken"):
            if stream in by_id:
                by_id[stream].taken[name] = t
        for stream, origin, position in store.read("SELECT stream, origin, position FROM cursors"):
            if stream in by_id:
                by_id[stream].cursors[origin] = position
        for number, stream, about in store.read("SELECT id, stream, about FROM alarms WHERE acknowledged IS NULL"):
            if stream in by_id:
                by_id[stream].open_alarm = {"id": number, **json.loads(about)}
        self._alarm_id = store.read("SELECT coalesce(max(id), 0) FROM alarms")[0][0]

    # life

    def start(self) -> None:
        """Begin to commit and to keep the history."""
        self._tasks = [asyncio.create_task(work()) for work in (self._commit_all, self._tick, self._compact_all)]

    async def stop(self) -> None:
        """Commit what there is and end."""
        self._closing = True
        self._wake.set()  # a commit on its way is never broken off: whoever waits for it would wait for ever
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, self.diagnoses.end(), return_exceptions=True)
        now = self.clock()
        for live in self._unpointed:
            live.point(now)
            self._dirty.add(live)
        if self.store and self._dirty:
            await self._commit()
        self._writer.shutdown()
        self._readers.shutdown()
        self._thinker.shutdown()
        if self.store:
            self.store.close()

    async def in_writer(self, work: Callable[..., T], *args: Any) -> T:
        """Run something that changes the file, after what was asked for before."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, work, *args)

    async def in_reader(self, work: Callable[..., T], *args: Any) -> T:
        """Run something that reads the file beside the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, work, *args)

    async def in_thinker(self, work: Callable[[], T]) -> T:
        """Run something that takes seconds where there are thousands of classes; no reader waits for it."""
        return await asyncio.get_running_loop().run_in_executor(self._thinker, work)

    async def _commit_all(self) -> None:
        while not self._closing:
            await self._wake.wait()
            if self._group > 1:  # who shared the last commit will soon be back: wait for them, and share this one too
                await asyncio.sleep(GATHER_SECONDS)
            self._wake.clear()
            if (self._dirty or self._next is not None) and not await self._commit() and not self._closing:
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def _commit(self) -> bool:
        assert self.store is not None
        lives, self._dirty = list(self._dirty), set()
        self._flying, self._next = self._next or asyncio.get_running_loop().create_future(), None
        flying = self._flying
        self._group, self._joined = self._joined, 0
        changes = [live.change() for live in lives]
        try:
            await self.in_writer(self.store.write, changes)
        except StoreError as error:
            for live, change in zip(lives, changes, strict=True):
                live.restore(change)
            self._dirty |= {live for live in lives if not live.gone}
            if self.trouble is None:
                log.warning("commit failed: %s", error)
            self.trouble = str(error)
            if not flying.done():
                flying.set_exception(Unavailable(f"{error} This was not stored yet. Send it again with the same seq."))
                flying.exception()  # nobody may be waiting any more
            return False
        if self.trouble is not None:
            log.warning("commits succeed again")
        self.trouble = None
        if not flying.done():
            flying.set_result(None)
        return True

    async def stored(self, live: Live, *, repeated: bool = False) -> None:
        """Wait until all that a stream has learned so far is on disk."""
        if self.store is None:
            return
        if repeated and live not in self._dirty:
            if self._flying is not None and not self._flying.done():
                await asyncio.shield(self._flying)
            return
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
        self._wake.set()
        self._joined += 1
        self._waiting += 1
        try:
            await asyncio.shield(self._next)
        finally:
            self._waiting -= 1

    async def _tick(self) -> None:
        """Close the history of streams that have fallen silent, and let watchers see quiet streams' rates fall."""
        while True:
            await asyncio.sleep(self.settings.point_seconds)
            now = self.clock()
            if self.trouble is None:
                quiet = {live for live in self._unpointed if now - live.point_at >= self.settings.point_seconds}
                for live in quiet:
                    live.point(now)
                    self._mark(live)
                self._unpointed -= quiet
                if self._dirty:
                    self._wake.set()

    async def _compact_all(self) -> None:
        while True:
            await asyncio.sleep(COMPACT_SECONDS)
            if self.store:
                numbers = [live.id for live in self.streams.values()]
                for first in range(0, max(1, len(numbers)), COMPACT_STREAMS):
                    now = self.clock()
                    try:
                        await self.in_writer(self.store.compact, now, numbers[first : first + COMPACT_STREAMS])
                    except StoreError as error:
                        log.warning("compaction put off: %s", error)
                    await asyncio.sleep(0.01)
            self._forget(self.clock())

    def _forget(self, now: float) -> None:
        for live in self.streams.values():
            for client in [c for c, o in live.offsets.items() if o.seen < now - FORGET_CLIENTS]:
                del live.offsets[client]
            for event in [e for e, t in live.taken.items() if t < now - REMEMBER_IDS]:
                del live.taken[event]

    def _mark(self, live: Live) -> None:
        if self.store:
            self._dirty.add(live)
        else:
            live.fresh_points.clear()
            live.fresh_offsets.clear()
            live.fresh_cursors.clear()
        self.version += 1

    # streams

    def get(self, name: str) -> Live:
        """Return the stream of that name."""
        if name in self.unreadable:
            raise Conflict(self.unreadable[name].why)
        live = self.streams.get(name)
        if live is None or live.gone:
            raise Missing(f"There is no stream {name!r}. PUT /streams/{{name}} makes one.")
        return live

    async def create(
        self, name: str, stream: Stream, source: Source, *, classes: list[str] | None, alarm: dict[str, Any] | None
    ) -> bool:
        """Make a stream; return False if it was there already, made of the same."""
        definition, watch = define(stream, source, classes=classes, alarm=alarm)
        async with self._admin:
            if name in self.unreadable:
                raise Conflict(self.unreadable[name].why)
            known = self.streams.get(name)
            if known is not None:
                if known.definition == definition:
                    return False
                raise Conflict(f"The stream {name!r} is there already, with another definition. Delete it first.")
            if len(self.streams) >= self.settings.limits.streams:
                fail("PUT", "streams", f"be at most {self.settings.limits.streams}", "one more",
                     remedy="Delete some, or start the server with a larger --max-streams")  # fmt: skip
            now, state = self.clock(), state_bytes(stream)
            alarm_bytes = None if watch is None else watch.to_bytes()
            if self.store:
                number = await self.in_writer(self.store.create, name, now, definition, state, alarm_bytes, stream.n)
            else:
                self._nameless += 1
                number = self._nameless
            made = restored(Kept(number, name, now, definition, stream.n, 0, now, state, alarm_bytes))
            made.point_at = 0.0
            self.streams[name] = made
            self.version += 1
        return True

    async def delete(self, name: str) -> None:
        """Remove a stream with all that is known of it."""
        async with self._admin:
            if name in self.unreadable:
                if self.store:
                    await self.in_writer(self.store.delete, self.unreadable[name].id)
                del self.unreadable[name]
                return
            live = self.get(name)
            live.gone = True
            self._dirty.discard(live)
            self._unpointed.discard(live)
            try:
                if self.store:
                    await self.in_writer(self.store.delete, live.id)
            except StoreError:
                live.gone = False
                self._mark(live)
                raise
            del self.streams[name]
            self._recent.drop(live.id)
            self.diagnoses.forget(live.id)
            self.version += 1

    # samples

    def _ready(self) -> None:
        if self.trouble is not None:
            raise Unavailable(f"{self.trouble} No samples are taken until it can be written again.")
        if self._waiting >= self.settings.limits.waiting:
            raise Unavailable("Too many posts wait for the disk. Send this one again in a moment.")

    async def samples(
        self, name: str, proba: Any, client: str | None, seq: int | None, *, dtype: Any = None, correct: bool = True,
        event: str | None = None, cursor: tuple[str, str] | None = None,
    ) -> Answer:  # fmt: skip
        """Learn rows, unless they were counted before, and return them corrected, once that is on disk."""
        live = self.get(name)
        self._ready()
        rows = as_rows(proba, live.n_classes, "samples", dtype)
        placed = live.place(client, seq, self.settings.limits)
        repeated = placed.repeated or (event is not None and event in live.taken)
        now = self.clock()
        if not repeated:
            if live.learn(rows, now):
                self._raise(live, now)
            if event is not None:
                live.taken[event] = now
                live.fresh_taken.append((event, now))
            self._counted(live, client, seq, placed, now)
            self._recent.add(live, rows)
            self.learned += len(rows)
        if cursor is not None:
            self._moved(live, *cursor)
        corrected = None
        if correct:
            corrected = live.stream.correct_many(rows) if len(rows) else rows
        counted_at = live.offsets[client].n if repeated and client is not None and client in live.offsets else None
        answer = Answer(corrected, live.stream.prior, live.stream.n, repeated, placed.gap, counted_at)
        await self.stored(live, repeated=repeated)
        return answer

    async def passed(self, name: str, origin: str, position: str) -> None:
        """Note that a broker's message was looked at, though nothing could be learned from it."""
        live = self.get(name)
        self.refused += 1
        self._moved(live, origin, position)
        await self.stored(live)

    def _moved(self, live: Live, origin: str, position: str) -> None:
        live.cursors[origin] = position
        live.fresh_cursors.add(origin)
        self._mark(live)

    async def labels(
        self, name: str, proba: Any, y: Any, client: str | None, seq: int | None, dtype: Any = None
    ) -> Answer:
        """Take in the labels of rows that were learned before."""
        live = self.get(name)
        self._ready()
        rows = as_rows(proba, live.n_classes, "labels", dtype)
        if not isinstance(y, list):
            fail("labels", "y", "be a list with the label of each row", type(y).__name__)
        placed, now = live.place(client, seq, self.settings.limits), self.clock()
        if not placed.repeated:
            if len(rows) or y:
                live.observe(rows, y)
            self._counted(live, client, seq, placed, now)
        answer = Answer(None, live.stream.prior, live.stream.n, placed.repeated, placed.gap)
        await self.stored(live, repeated=placed.repeated)
        return answer

    def _counted(self, live: Live, client: str | None, seq: int | None, placed: Any, now: float) -> None:
        live.note(client, seq, placed, now)
        if now - live.point_at >= self.settings.point_seconds:
            live.point(now)
            self._unpointed.discard(live)
        else:
            self._unpointed.add(live)
        self._mark(live)

    # alarms

    def _raise(self, live: Live, now: float) -> None:
        assert live.open_alarm is not None
        # rows from before the alarm would blur what is diagnosed, and what may be accepted as the new normal
        self._recent.drop(live.id)
        self._alarm_id += 1
        about = json.dumps(live.open_alarm)
        live.open_alarm["id"] = self._alarm_id
        body = json.dumps({"type": "alarm.raised", **live.open_alarm}) if self.settings.webhook else None
        live.fresh_alarms.append((self._alarm_id, now, about, body))

    async def acknowledge(self, name: str, number: int, by: str, note: str, then: str) -> dict[str, Any]:
        """Say who has dealt with an alarm; its test starts anew, against the old reference or the rows of late."""
        async with self._admin:
            live = self.get(name)
            raised = live.open_alarm
            if raised is None or raised["id"] != number or live.alarm is None:
                raise Missing(f"The stream {name!r} has no open alarm {number}.")
            await self.stored(live)  # the alarm itself must be in the file before it can be answered there
            if then == "accept":
                rows = self._recent.of(live)
                if len(rows) < ENOUGH_TO_ACCEPT:
                    rule = f"be 'restart' until {ENOUGH_TO_ACCEPT} samples have come since the alarm"
                    fail("acknowledge", "next", rule, f"'accept' after {len(rows)}", remedy="Try again later")
                options = {k: v for k, v in live.about["alarm"].items() if k not in ("reference", "exact")}
                seen = live.stream.calibrated(rows.astype(np.float64))
                fresh = await self.in_thinker(lambda: Alarm(live.source, reference=seen, **options))
            else:
                fresh = Alarm.from_bytes(live.alarm.to_bytes())
                fresh.reset()
            now = self.clock()
            if self.store:
                await self.in_writer(self._acknowledged, live.id, number, now, by, note, then, fresh.to_bytes())
            live.alarm, live.open_alarm = fresh, None
            self.version += 1
        return {"id": number, "acknowledged": now, "by": by, "note": note, "next": then}

    def _acknowledged(self, stream: int, number: int, now: float, by: str, note: str, then: str, alarm: bytes) -> None:
        assert self.store is not None
        with self.store.transaction() as db:
            db.execute("UPDATE alarms SET acknowledged = ?, by = ?, note = ?, next = ? WHERE id = ?",
                       (now, by, note, then, number))  # fmt: skip
            db.execute("UPDATE streams SET alarm = ? WHERE id = ?", (alarm, stream))

    async def alarms(self, live: Live) -> list[dict[str, Any]]:
        """Return the alarms of a stream, newest first."""
        if self.store is None:
            return [live.open_alarm] if live.open_alarm else []
        rows = await self.in_reader(
            self.store.read, "SELECT id, about, acknowledged, by, note, next FROM alarms WHERE stream = ?"
            " ORDER BY t DESC, id DESC LIMIT ?", (live.id, LISTED),
        )  # fmt: skip
        return [
            {"id": number, **json.loads(about), "acknowledged": t, "by": by, "note": note, "next": then}
            for number, about, t, by, note, then in rows
        ]

    async def sparks(self, lives: list[Live]) -> None:
        """See to it that streams have their small curve, from the file where it is not known."""
        for live in lives:
            if live.spark is None:
                live.spark = deque(maxlen=SPARK)
                if self.store and live.stream.n:
                    found = await self.in_reader(
                        self.store.read, "SELECT prior FROM history WHERE stream = ? ORDER BY t DESC LIMIT ?",
                        (live.id, SPARK),
                    )  # fmt: skip
                    newest = [live.shift(np.frombuffer(prior, "<f4").astype(np.float64)) for (prior,) in found]
                    live.spark.extendleft(newest[:SPARK])
