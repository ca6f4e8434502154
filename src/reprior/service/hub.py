"""All streams of a server: learn in memory, answer after the commit, tell who watches."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np

from reprior._check import fail
from reprior._types import Matrix, Source
from reprior.online.stream import Stream
from reprior.rows.blocks import as_stored
from reprior.rows.correction import correct_rows
from reprior.service import late
from reprior.service.alarm_store import Acknowledgement, Silence
from reprior.service.alarms import Alarms
from reprior.service.commits import Commits
from reprior.service.live import SPARK, Defined, Live, Placed, as_rows, define, restored, state_bytes
from reprior.service.measure import Measures
from reprior.service.recent import Diagnoses, Recent
from reprior.service.settings import Ages, Clock, Settings
from reprior.service.store import Kept, Store, StoreError
from reprior.service.supervise import Supervisor

log = logging.getLogger("reprior.service")
T = TypeVar("T")

COMPACT_SECONDS = 60.0
COMPACT_STREAMS = 50  # in one transaction, so that no commit waits long for it


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
        newest = store.newest() if store else 0.0
        self.clock = clock or Clock(newest)
        self.ages = Ages(self.clock, newest)
        self.streams: dict[str, Live] = {}
        self.unreadable: dict[str, Unreadable] = {}
        self.version = 0  # grows with every change, so that watchers know whether to look
        self.watchers = 0  # open event streams
        self.measures = Measures(self.clock)
        self.intakes: dict[str, str | None] = {}  # brokers that are read, and why one is not connected
        self.started = self.clock()
        self._writer = ThreadPoolExecutor(1, "reprior-writer")
        self._readers = ThreadPoolExecutor(2, "reprior-reader")
        self._thinker = ThreadPoolExecutor(1, "reprior-thinker")
        self._maker = ThreadPoolExecutor(1, "reprior-maker")
        self._commits = Commits(store, self.in_writer, settings.limits.waiting, self.measures.commits)
        self._unsettled: set[Live] = set()  # have samples without a test of their alarm, or without a point
        self._admin = asyncio.Lock()
        self.on_fatal: Callable[[], None] = lambda: None  # called when the server cannot continue
        self.tasks = Supervisor(self._fatal)
        self._recent = Recent()
        self.diagnoses = Diagnoses(self._recent, self.clock, self.in_thinker)
        self.alarms = Alarms(self, self._mark)
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
        self.alarms.load(by_id)

    @property
    def trouble(self) -> str | None:
        """Why nothing can be stored now, if so."""
        return self._commits.trouble

    def problems(self) -> list[str]:
        """Return what is not as it should be although samples are taken, one sentence each."""
        waiting = [f"The intake from {name} waits: {why}." for name, why in self.intakes.items() if why is not None]
        return self.tasks.problems() + waiting

    # life

    def start(self) -> None:
        """Begin to commit and to keep the history."""
        self.tasks.start("commits", self._commits.run, vital=True)
        self.tasks.start("history", self._tick)
        self.tasks.start("compaction", self._compact_all)

    def _fatal(self, sentence: str) -> None:
        self._commits.fail(sentence)
        self.on_fatal()

    async def stop(self) -> None:
        """Commit what there is and end."""
        self._commits.close()
        await self.tasks.wait("commits")
        await self.tasks.stop()
        await self.diagnoses.end()
        now = self.clock()
        for live in list(self._unsettled):
            self._settle(live, now, last=True)
        await self._commits.last()
        self._writer.shutdown()
        self._readers.shutdown()
        self._thinker.shutdown()
        self._maker.shutdown()
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

    async def in_maker(self, work: Callable[[], T]) -> T:
        """Run something that a new stream is made by, which may be a fit of seconds."""
        return await asyncio.get_running_loop().run_in_executor(self._maker, work)

    async def _tick(self) -> None:
        """Close the history of streams that have fallen silent, and let watchers see quiet streams' rates fall."""
        while True:
            await asyncio.sleep(self.settings.point_seconds)
            now = self.clock()
            if self.trouble is None:
                for live in list(self._unsettled):
                    self._settle(live, now)
                self._commits.soon()

    def _settle(self, live: Live, now: float, *, last: bool = False) -> None:
        """Do what samples waited for: the alarm's test, and a point of the history."""
        if live.unwatched and (last or live.look_due(now)):
            if live.look(now):
                self._raised(live)
            self._mark(live)
        if live.point_n != live.counted and (last or live.point_due(now, self.settings.point_seconds)):
            live.point(now)
            self._mark(live)
        if not live.unwatched and live.point_n == live.counted:
            self._unsettled.discard(live)

    async def _compact_all(self) -> None:
        while True:
            await asyncio.sleep(COMPACT_SECONDS)
            keep = self.settings.retention
            now = self.ages()  # one for the file and for the memory: what either forgets the other must not keep
            if self.store:
                numbers = [live.id for live in self.streams.values()]
                for first in range(0, max(1, len(numbers)), COMPACT_STREAMS):
                    try:
                        await self.in_writer(self.store.compact, now, numbers[first : first + COMPACT_STREAMS], keep)
                    except StoreError as error:
                        log.warning("compaction put off: %s", error)
                    await asyncio.sleep(0.01)
            self._forget(now)

    def _forget(self, now: float) -> None:
        keep = self.settings.retention
        for live in self.streams.values():
            for client in [c for c, o in live.offsets.items() if o.seen < now - keep.clients]:
                del live.offsets[client]
            for event in [e for e, t in live.taken.items() if t < now - keep.events]:
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
        self, name: str, stream: Stream, source: Source, *, classes: list[str] | None, alarm: dict[str, Any] | None,
        stale_after: float | None = None,
    ) -> bool:  # fmt: skip
        """Make a stream; return False if it was there already, made of the same."""
        definition, watch = await self.in_maker(
            lambda: define(stream, source, classes=classes, alarm=alarm, stale_after=stale_after)
        )
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
            kept = Kept(number, name, now, definition, stream.n, 0, now, state, alarm_bytes)
            made = await self.in_maker(lambda: restored(kept))
            made.point_at = 0.0
            self.streams[name] = made
            self.version += 1
        log.info("stream %r created", name)
        return True

    async def delete(self, name: str) -> None:
        """Remove a stream with all that is known of it."""
        async with self._admin:
            if name in self.unreadable:
                if self.store:
                    await self.in_writer(self.store.delete, self.unreadable[name].id)
                del self.unreadable[name]
                log.info("unreadable stream %r deleted", name)
                return
            live = self.get(name)
            live.gone = True
            self._commits.drop(live)
            self._unsettled.discard(live)
            try:
                if self.store:
                    await self.in_writer(self.store.delete, live.id, self.alarms.closing(live))
            except StoreError:
                live.gone = False
                self._mark(live)
                raise
            del self.streams[name]
            self._recent.drop(live.id)
            self.diagnoses.forget(live.id)
            self.version += 1
        log.info("stream %r deleted", name)

    # samples

    async def samples(
        self, name: str, proba: Any, client: str | None, seq: int | None, *, dtype: Any = None, correct: bool = True,
        event: str | None = None, cursor: tuple[str, str] | None = None, ids: Any = None,
    ) -> Answer:  # fmt: skip
        """Learn rows, unless they were counted before, and return them corrected, once that is on disk."""
        live = self.get(name)
        self._commits.check_ready()
        rows = as_rows(proba, live.n_classes, "samples", dtype)
        now = self.clock()
        placed = live.place(client, seq, self.settings.limits, now)
        seen = None
        repeated = placed.repeated or (event is not None and event in live.taken)
        if ids is not None:
            late.check_ids(ids, len(rows), "samples")
        if not repeated:
            raised, seen = live.learn(rows, now)
            if ids is not None:
                late.keep(live, ids, rows, now)
            if raised:
                self._raised(live)
            if event is not None:
                live.taken[event] = now
                live.fresh_taken.append((event, now))
            self._counted(live, client, seq, placed, now)
            self._recent.add(live, rows)
            self.measures.learned += len(rows)
        if cursor is not None:
            self._moved(live, *cursor)
        corrected = None
        if correct:
            corrected = corrected_rows(live, rows, seen)
        counted_at = live.offsets[client].n if repeated and client is not None and client in live.offsets else None
        answer = Answer(corrected, live.stream.prior, live.stream.n, repeated, placed.gap, counted_at)
        await self._commits.stored(live, repeated=repeated)
        return answer

    def _raised(self, live: Live) -> None:
        """See to an alarm that was raised just now."""
        assert live.open_alarm is not None
        # samples from before the alarm would blur what is diagnosed, and what may be accepted as new reference
        self._recent.drop(live.id)
        self.alarms.raised(live, live.open_alarm)

    async def passed(self, name: str, origin: str, position: str) -> None:
        """Note that a broker's message was looked at, though nothing could be learned from it."""
        live = self.get(name)
        self._moved(live, origin, position)
        await self._commits.stored(live)

    def _moved(self, live: Live, origin: str, position: str) -> None:
        live.cursors[origin] = position
        live.fresh_cursors.add(origin)
        self._mark(live)

    async def labels(
        self, name: str, proba: Any, y: Any, client: str | None, seq: int | None, dtype: Any = None, ids: Any = None
    ) -> Answer:
        """Take in the labels of rows that were learned before, given as such or by their prediction ids."""
        live = self.get(name)
        self._commits.check_ready()
        if not isinstance(y, list):
            fail("labels", "y", "be a list with the label of each row", type(y).__name__)
        if (proba is None) == (ids is None):
            fail("labels", "body", "have either `proba` or `ids`", "both" if ids is not None else "neither")
        async with live.labelling if ids is not None else nullcontext():  # a row that waits takes one label
            now = self.clock()
            placed = live.place(client, seq, self.settings.limits, now)
            if not placed.repeated:
                if ids is None:
                    rows = as_rows(proba, live.n_classes, "labels", dtype)
                else:
                    rows = await late.waiting(self, live, late.check_ids(ids, None, "labels"))
                if len(rows) or y:
                    live.observe(rows, y)
                live.fresh_labelled |= set(ids or ())
                self._counted(live, client, seq, placed, now)
            answer = Answer(None, live.stream.prior, live.stream.n, placed.repeated, placed.gap)
            await self._commits.stored(live, repeated=placed.repeated)
        return answer

    def _counted(self, live: Live, client: str | None, seq: int | None, placed: Placed, now: float) -> None:
        live.note(client, seq, placed, now)
        self.alarms.heard(live)
        if live.point_due(now, self.settings.point_seconds):
            live.point(now)
            self._unsettled.discard(live)
        else:
            self._unsettled.add(live)
        if live.unwatched:
            self._unsettled.add(live)
        self._mark(live)

    # alarms

    async def acknowledge(self, name: str, number: int, done: Acknowledgement) -> dict[str, Any]:
        """Note who has dealt with an open alarm of a stream."""
        async with self._admin:
            live = self.get(name)
            if not live.has_open(number):
                raise Missing(f"The stream {name!r} has no open alarm {number}.")
            await self._commits.stored(live)  # the alarm itself must be in the file before it can be answered there
            return await self.alarms.acknowledge(live, number, done, self._recent.of(live))

    async def silence(self, name: str, wanted: Silence) -> dict[str, Any] | None:
        """Hold back messages about a stream until a time."""
        async with self._admin:
            live = self.get(name)
            await self._commits.stored(live)
            return await self.alarms.silence(live, wanted)

    def commit_soon(self) -> None:
        """Commit what there is, though nobody waits for it."""
        self._commits.soon()

    async def sparks(self, lives: list[Live]) -> None:
        """See to it that streams have their small curve, from the file where it is not known."""
        for live in lives:
            if live.spark is None:
                live.spark = deque(maxlen=SPARK)
                if self.store and live.stream.n:
                    found = await self.in_reader(self.store.priors, live.id, SPARK)
                    live.spark.extendleft(map(live.shift, found))


def corrected_rows(live: Live, rows: Matrix, seen: Matrix | None) -> Matrix:
    """Return rows (n, K) under the prior of a stream; `seen` are the same rows as calibrated, if they were."""
    if not len(rows):
        return rows
    if seen is None or live.stream.calibrator is None:
        return live.stream.correct_many(rows)
    return np.asarray(correct_rows(as_stored(seen), live.stream.weights).astype(rows.dtype, copy=False))
