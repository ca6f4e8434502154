"""All streams of a server: learn in memory, answer after the commit, tell who watches."""

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
from reprior.service.commits import Commits
from reprior.service.live import SPARK, Defined, Live, Placed, as_rows, define, restored, state_bytes
from reprior.service.recent import Diagnoses, Recent
from reprior.service.settings import Clock, Settings
from reprior.service.store import FORGET_CLIENTS, REMEMBER_IDS, Kept, Store, StoreError

log = logging.getLogger("reprior.service")
T = TypeVar("T")

COMPACT_SECONDS = 60.0
COMPACT_STREAMS = 50  # in one transaction, so that no commit waits long for it
LISTED = 100  # alarms of a stream
ENOUGH_TO_ACCEPT = 200  # rows that may become the new reference of an alarm


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
        self.version = 0  # grows with every change, so that watchers know whether to look
        self.learned = self.watchers = self.forward_dropped = self.refused = 0  # since the start
        self.started = self.clock()
        self._writer = ThreadPoolExecutor(1, "reprior-writer")
        self._readers = ThreadPoolExecutor(2, "reprior-reader")
        self._thinker = ThreadPoolExecutor(1, "reprior-thinker")
        self._commits = Commits(store, self.in_writer, settings.limits.waiting)
        self._unpointed: set[Live] = set()
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
        for stream, name, t in store.taken():
            if stream in by_id:
                by_id[stream].taken[name] = t
        for stream, origin, position in store.cursors():
            if stream in by_id:
                by_id[stream].cursors[origin] = position
        for stream, about in store.open_alarms():
            if stream in by_id:
                by_id[stream].open_alarm = about
        self._alarm_id = store.last_alarm()

    @property
    def trouble(self) -> str | None:
        """Why nothing can be stored now, if so."""
        return self._commits.trouble

    # life

    def start(self) -> None:
        """Begin to commit and to keep the history."""
        self._tasks = [asyncio.create_task(work()) for work in (self._commits.run, self._tick, self._compact_all)]

    async def stop(self) -> None:
        """Commit what there is and end."""
        self._commits.close()
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, self.diagnoses.end(), return_exceptions=True)
        now = self.clock()
        for live in self._unpointed:
            live.point(now)
            self._commits.add(live)
        await self._commits.last()
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
                self._commits.soon()

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
        self._commits.add(live)
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
            self._commits.drop(live)
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

    async def samples(
        self, name: str, proba: Any, client: str | None, seq: int | None, *, dtype: Any = None, correct: bool = True,
        event: str | None = None, cursor: tuple[str, str] | None = None,
    ) -> Answer:  # fmt: skip
        """Learn rows, unless they were counted before, and return them corrected, once that is on disk."""
        live = self.get(name)
        self._commits.check_ready()
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
        await self._commits.stored(live, repeated=repeated)
        return answer

    async def passed(self, name: str, origin: str, position: str) -> None:
        """Note that a broker's message was looked at, though nothing could be learned from it."""
        live = self.get(name)
        self.refused += 1
        self._moved(live, origin, position)
        await self._commits.stored(live)

    def _moved(self, live: Live, origin: str, position: str) -> None:
        live.cursors[origin] = position
        live.fresh_cursors.add(origin)
        self._mark(live)

    async def labels(
        self, name: str, proba: Any, y: Any, client: str | None, seq: int | None, dtype: Any = None
    ) -> Answer:
        """Take in the labels of rows that were learned before."""
        live = self.get(name)
        self._commits.check_ready()
        rows = as_rows(proba, live.n_classes, "labels", dtype)
        if not isinstance(y, list):
            fail("labels", "y", "be a list with the label of each row", type(y).__name__)
        placed, now = live.place(client, seq, self.settings.limits), self.clock()
        if not placed.repeated:
            if len(rows) or y:
                live.observe(rows, y)
            self._counted(live, client, seq, placed, now)
        answer = Answer(None, live.stream.prior, live.stream.n, placed.repeated, placed.gap)
        await self._commits.stored(live, repeated=placed.repeated)
        return answer

    def _counted(self, live: Live, client: str | None, seq: int | None, placed: Placed, now: float) -> None:
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
            await self._commits.stored(live)  # the alarm itself must be in the file before it can be answered there
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
                await self.in_writer(self.store.acknowledge, live.id, number, now, by, note, then, fresh.to_bytes())
            live.alarm, live.open_alarm = fresh, None
            self.version += 1
        return {"id": number, "acknowledged": now, "by": by, "note": note, "next": then}

    async def alarms(self, live: Live) -> list[dict[str, Any]]:
        """Return the alarms of a stream, newest first."""
        if self.store is None:
            return [live.open_alarm] if live.open_alarm else []
        return await self.in_reader(self.store.alarms, live.id, LISTED)

    async def sparks(self, lives: list[Live]) -> None:
        """See to it that streams have their small curve, from the file where it is not known."""
        for live in lives:
            if live.spark is None:
                live.spark = deque(maxlen=SPARK)
                if self.store and live.stream.n:
                    found = await self.in_reader(self.store.priors, live.id, SPARK)
                    live.spark.extendleft(map(live.shift, found))
