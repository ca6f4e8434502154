"""All streams of a server: learn in memory, answer after the commit, tell who watches."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from reprior._check import fail
from reprior.online.alarm import Alarm
from reprior.service.alarms import Alarms
from reprior.service.commits import Commits
from reprior.service.counters import Counters
from reprior.service.definition import Recipe, StreamDefinition, decoded, digest_of
from reprior.service.errors import Conflict, Missing, StoreError
from reprior.service.posts import Posts
from reprior.service.recent import Diagnoses, Recent
from reprior.service.served import CURVE_POINTS, ServedStream, restored
from reprior.service.settings import Ages, Clock, Settings
from reprior.service.store import Store, StoredStream
from reprior.service.supervise import Supervisor
from reprior.service.workers import Workers

log = logging.getLogger("reprior.service")
COMPACT_SECONDS = 60.0  # between two compactions
COMPACT_STREAMS = 50  # in one transaction, so that no commit waits long for it


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
        self.streams: dict[str, ServedStream] = {}
        self.unreadable: dict[str, Unreadable] = {}
        self.version = 0  # grows with every change, so that watchers know whether to look
        self.watchers = 0  # open event streams
        self.counters = Counters(self.clock)
        self.intakes: dict[str, str | None] = {}  # brokers that are read, and why one is not connected
        self.started = self.clock()
        self.workers = Workers()
        self.commits = Commits(store, self.workers.write, settings.limits.waiting, self.counters.commits)
        self.unsettled: set[ServedStream] = set()  # samples of these wait for the alarm's test or for a point
        self.admin = asyncio.Lock()  # held by whoever makes, renews or deletes a stream, or deals with its alarms
        self.on_fatal: Callable[[], None] = lambda: None  # called when the server cannot continue
        self.tasks = Supervisor(self._fatal)
        self.recent = Recent()
        self.diagnoses = Diagnoses(self.recent, self.clock, self.workers.think)
        self.alarms = Alarms(self)
        self.posts = Posts(self)
        self._unstored = 0  # streams of a server without a file
        if store:
            self._load(store)

    def _load(self, store: Store) -> None:
        """Take over streams, receipts and alarms from the file; a stream that cannot be read becomes `unreadable`."""
        by_id: dict[int, ServedStream] = {}
        definitions: dict[bytes, StreamDefinition] = {}
        for stored in store.streams():
            try:
                by_id[stored.id] = self.streams[stored.name] = restored(stored, definitions)
            except Exception as error:  # bytes of another release, or damaged ones, may be anything
                why = (f"The stream {stored.name!r} cannot be read ({error}) Its bytes are kept as they are. Serve the"
                       " file with the release that wrote it, or delete the stream and make it again.")  # fmt: skip
                self.unreadable[stored.name] = Unreadable(stored.id, why)
                log.error("%s", why)
        for stream, kind, key, value in store.receipts():
            if stream in by_id:
                getattr(by_id[stream].receipts, kind)[key] = value
        self.alarms.load(by_id)
        self.commits.load(by_id.values())

    def present(self) -> list[ServedStream]:
        """Return the streams that are not about to be deleted."""
        return [served for served in self.streams.values() if not served.gone]

    @property
    def trouble(self) -> str | None:
        """Why nothing can be stored now, if so."""
        return self.commits.trouble

    def problems(self) -> list[str]:
        """Return what is not as it should be although samples are taken, one sentence each."""
        waiting = [f"The intake from {name} waits: {why}." for name, why in self.intakes.items() if why is not None]
        damaged = self.store.damage.sentences() if self.store else []
        return self.tasks.problems() + waiting + damaged

    # life

    def start(self) -> None:
        """Begin to commit and to keep the history."""
        self.tasks.start("commits", self.commits.run, vital=True)
        self.tasks.start("history", self._tick)
        self.tasks.start("compaction", self._compact_all)

    def _fatal(self, sentence: str) -> None:
        """Refuse all posts from now on, and end the server."""
        self.commits.fail(sentence)
        self.on_fatal()

    async def stop(self) -> None:
        """Commit what there is and end."""
        self.commits.close()
        await self.tasks.wait("commits")
        await self.tasks.stop()
        await self.diagnoses.end()
        now = self.clock()
        for served in list(self.unsettled):
            self._settle(served, now, last=True)
        await self.commits.commit_remaining()
        self.workers.stop()
        if self.store:
            self.store.close()

    async def _tick(self) -> None:
        """Test samples that wait and add due points, every `point_seconds`, also if no further post comes."""
        while True:
            await asyncio.sleep(self.settings.point_seconds)
            now = self.clock()
            if self.trouble is None:
                for served in list(self.unsettled):
                    self._settle(served, now)
                self.commits.request_commit()

    def _settle(self, served: ServedStream, now: float, *, last: bool = False) -> None:
        """Test the samples that wait for the alarm, and add a point to the history, if due or for the `last` time."""
        if served.watch.waiting and (last or served.watch.look_due(now)):
            if served.look(now):
                self.alarms.shift_raised(served)
            self.mark(served)
        behind = served.activity.point_count != served.counted
        if behind and (last or served.point_due(now, self.settings.point_seconds)):
            served.add_point(now)
            self.mark(served)
        elif not behind:
            served.mark_test_changed()
        if served.settled:
            self.unsettled.discard(served)

    async def _compact_all(self) -> None:
        """Compact the file, repair damaged states in it, and forget old receipts in memory, every `COMPACT_SECONDS`."""
        while True:
            await asyncio.sleep(COMPACT_SECONDS)
            keep = self.settings.retention
            now = self.ages()  # one for the file and for the memory: what either forgets the other must not keep
            if self.store:
                numbers = [served.id for served in self.streams.values()]
                for first in range(0, max(1, len(numbers)), COMPACT_STREAMS):
                    some = numbers[first : first + COMPACT_STREAMS]
                    try:
                        await self.workers.write(self.store.compact, now, some, keep)
                        damaged = await self.workers.read(self.store.damaged_states, some)
                        if damaged:
                            await self.workers.write(self.store.forget_pages)
                            self._write_again(damaged)
                        self.store.damage.note("file", None)
                    except StoreError as error:
                        self.store.damage.note("file", f"Compaction is put off: {error}")
                    await asyncio.sleep(0.01)
            self._forget(now)

    def _write_again(self, damaged: list[int]) -> None:
        """Commit the states of streams whose stored states are damaged: those in memory are not."""
        for served in self.present():
            if served.id in damaged:
                served.state_due = True
                self.mark(served)
        self.commits.request_commit()

    def _forget(self, now: float) -> None:
        """Forget clients and events of long ago, as `Store.compact` does in the file."""
        keep = self.settings.retention
        for served in self.streams.values():
            served.receipts.forget(now - keep.clients, now - keep.events)

    def mark(self, served: ServedStream) -> None:
        """Note that a stream has something to store."""
        self.commits.add(served)
        self.version += 1

    # streams

    def get(self, name: str) -> ServedStream:
        """Return the stream of that name."""
        if name in self.unreadable:
            raise Conflict(self.unreadable[name].why)
        served = self.streams.get(name)
        if served is None or served.gone:
            raise Missing(f"There is no stream {name!r}. PUT /streams/{{name}} makes one.")
        return served

    async def create(self, name: str, stored: Recipe) -> bool:
        """Make a stream; return False if it was there already, made of the same."""
        async with self.admin:
            if name in self.unreadable:
                raise Conflict(self.unreadable[name].why)
            present = self.streams.get(name)
            if present is not None:
                if present.definition.digest == digest_of(stored.definition):
                    return False
                raise Conflict(f"The stream {name!r} exists already with another definition. Delete it first, or"
                               f" POST the definition to /streams/{{name}}/versions.")  # fmt: skip
            if len(self.streams) >= self.settings.limits.streams:
                fail("PUT", "streams", f"be at most {self.settings.limits.streams}", "one more",
                     remedy="Delete some, or start the server with a larger --max-streams")  # fmt: skip
            now = self.clock()
            if self.store:
                number = await self.workers.write(self.store.create, name, now, stored)
            else:
                self._unstored += 1
                number = self._unstored
            kept = StoredStream(number, name, now, 1, now, stored.definition, stored.n, 0, now, stored.state,
                                stored.test)  # fmt: skip
            served = await self.workers.make(restored, kept, {})
            served.activity.point_at = 0.0
            self.streams[name] = served
            self.version += 1
        log.info("stream %r created", name)
        return True

    async def renew(self, name: str, stored: Recipe, by: str, address: str) -> bool:
        """Begin a new model version of a stream: history and offsets stay, the state is new.

        Return False if the stream is made of the same already: a client that repeats its request begins one version.
        """
        definition = await self.workers.make(decoded, stored.definition)
        test = None if stored.test is None else await self.workers.make(Alarm.from_bytes, stored.test)
        async with self.admin:
            served = self.get(name)
            if definition.classes != served.classes:
                raise Conflict(f"A new version of the stream {name!r} must have the same classes in the same order."
                               " Make another stream for a model with other classes.")  # fmt: skip
            if definition.digest == served.definition.digest:
                return False
            now = max(self.clock(), served.last_post + 0.001)  # the history tells versions apart by milliseconds
            if not served.settled:
                served.add_point(served.last_post)  # the end of the old version in the history
            for alarm in (served.watch.shift, served.watch.not_label_shift):
                if alarm is not None:
                    served.pending.alarms.append(self.alarms.resolution(served, alarm, "new version"))
            served.renew(definition, stored, test, now)
            self._forget_samples(served)
            self.alarms.note(served, "renew", by, address, {"version": served.version})
            await self.commits.wait_stored(served)
            log.info("stream %r: version %d begun by %r", name, served.version, by)
        return True

    async def delete(self, name: str) -> None:
        """Remove a stream with all that is known of it."""
        async with self.admin:
            if name in self.unreadable:
                if self.store:
                    await self.workers.write(self.store.delete, self.unreadable[name].id)
                del self.unreadable[name]
                log.info("unreadable stream %r deleted", name)
                return
            served = self.get(name)
            served.gone = True
            self.commits.drop(served)
            self.unsettled.discard(served)
            try:
                if self.store:
                    await self.workers.write(self.store.delete, served.id, self.alarms.resolutions_at_deletion(served))
            except StoreError:
                served.gone = False
                self.mark(served)
                raise
            del self.streams[name]
            self._forget_samples(served)
            self.version += 1
        log.info("stream %r deleted", name)

    def _forget_samples(self, served: ServedStream) -> None:
        """Forget the last samples of a stream, and the diagnosis of them."""
        self.recent.drop(served.id)
        self.diagnoses.forget(served.id)

    async def load_curves(self, streams: list[ServedStream]) -> None:
        """Fill the small curves of streams from the file, once after a start of the server."""
        for served in streams:
            if served.activity.curve is None:
                served.activity.curve = deque(maxlen=CURVE_POINTS)
                if self.store and served.stream.n:
                    priors = await self.workers.read(self.store.priors, served.id, CURVE_POINTS)
                    served.activity.curve.extendleft(map(served.shift, priors))
