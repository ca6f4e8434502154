"""Commits in groups: while one is on its way to the disk the next posts gather, and all of them go into the next one.

A commit that fails is tried again with everything that has come since, and until one succeeds no new samples are taken.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress

from reprior.service.counters import Histogram
from reprior.service.errors import StoreError, Unavailable
from reprior.service.sample_log import SampleLog
from reprior.service.served import ServedStream
from reprior.service.store import Store

log = logging.getLogger("reprior.service")
RETRY_SECONDS = 0.5
GATHER_SECONDS = 0.002  # for which a commit waits for those who shared the last one
LOG_BYTES = 8 << 20  # of samples, above which old states are written; a start of the server learns them in a second
STATES_EACH = 32  # that one commit then writes


class Commits:
    """What streams have learned and is not on disk yet; `write(store.write, changes)` runs in the thread that writes.

    Without a store nothing waits, and all counts as stored.
    """

    def __init__(
        self, store: Store | None, write: Callable[..., Awaitable[None]], max_waiting: int, durations: Histogram
    ) -> None:
        self._store, self._write, self._max_waiting, self._durations = store, write, max_waiting, durations
        self.trouble: str | None = None  # why the last commit failed
        self._ended = False  # by `fail`: nothing will be stored any more
        self._dirty: set[ServedStream] = set()
        self._log = SampleLog(0, ())
        self._next: list[asyncio.Future[None]] = []  # posts that wait for the next commit
        self._in_progress: list[asyncio.Future[None]] | None = None  # and for the one on its way, if there is one
        self._group = 0  # posts that waited for the last commit
        self._wake, self._gathered, self._closing = asyncio.Event(), asyncio.Event(), False

    def load(self, streams: Iterable[ServedStream]) -> None:
        """Take over streams that were read from the file."""
        if self._store:
            self._log = SampleLog(self._store.last_commit(), streams)

    def add(self, served: ServedStream) -> None:
        """Note that a stream has something to store."""
        if self._store:
            self._dirty.add(served)
        else:
            served.forget_changes()

    def drop(self, served: ServedStream) -> None:
        """Forget a stream that is to be deleted."""
        self._dirty.discard(served)
        self._log.forget(served)
        served.state_due = True  # if it cannot be deleted

    def request_commit(self) -> None:
        """Request a commit if any stream has changed, without waiting for it."""
        if self._dirty:
            self._wake.set()

    def check_ready(self) -> None:
        """Refuse posts while they could not be stored, or while too many wait."""
        if self.trouble is not None:
            raise Unavailable(f"{self.trouble} No samples are taken until it can be written again.")
        if len(self._next) + len(self._in_progress or ()) >= self._max_waiting:
            raise Unavailable("Too many posts wait for the disk. Send this one again in a moment.")

    async def wait_stored(self, served: ServedStream, *, repeated: bool = False) -> None:
        """Wait until all that a stream has learned so far is on disk."""
        if self._store is None:
            return
        if self._ended:
            raise Unavailable(f"{self.trouble} This was not stored.")
        if repeated and served not in self._dirty:
            if self._in_progress is None:
                return
            group = self._in_progress
        else:
            group = self._next
            self._wake.set()
        waiting = asyncio.get_running_loop().create_future()
        group.append(waiting)
        if len(self._next) == self._group:
            self._gathered.set()
        await waiting

    async def run(self) -> None:
        """Commit until `close` is called."""
        while not self._closing:
            await self._wake.wait()
            if len(self._next) < self._group and not self._closing:
                await self._gather()
            self._wake.clear()
            if (self._dirty or self._next) and not await self._commit() and not self._closing:
                await asyncio.sleep(RETRY_SECONDS)
                self._wake.set()

    async def _gather(self) -> None:
        """Wait until all who shared the last commit are back: they come soon, and share this one too."""
        self._gathered.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(GATHER_SECONDS):
                await self._gathered.wait()

    def close(self) -> None:
        """Let `run` end; a commit on its way is never broken off: whoever waits for it would wait for ever."""
        self._closing = True
        self._wake.set()

    def fail(self, sentence: str) -> None:
        """Answer every post that waits, and every later one, with 503: `run` has ended and cannot continue."""
        self.trouble, self._ended = sentence, True
        end([*(self._in_progress or ()), *self._next], Unavailable(f"{sentence} This was not stored."))

    async def commit_remaining(self) -> None:
        """Commit the remaining changes after `run` has ended, and the state of every stream with logged samples."""
        if self._ended:
            return
        self._dirty |= self._log.overdue(0)
        if self._dirty:
            await self._commit()

    async def _commit(self) -> bool:
        assert self._store is not None
        streams, self._dirty = list(self._dirty), set()
        waiting = self._in_progress = self._next
        self._next, self._group = [], len(waiting)
        changes = [served.take_change() for served in streams]
        begun = time.perf_counter()
        problem: Unavailable | None = None
        try:
            await self._write(self._store.write, changes, self._log.number, self._log.needed)
        except StoreError as error:
            for served, change in zip(streams, changes, strict=True):
                served.take_back(change)
            self._dirty |= {served for served in streams if not served.gone}
            if self.trouble is None:
                log.error("commit failed: %s", error)
            self.trouble = str(error)
            problem = Unavailable(f"{error} This was not stored yet. Send it again with the same seq.")
        else:
            self._durations.add(time.perf_counter() - begun)
            self._log.stored(streams, changes)
            self._dirty |= self._log.overdue(LOG_BYTES, STATES_EACH)
            if self.trouble is not None:
                log.warning("commits succeed again")
            self.trouble = None
        self._in_progress = None
        end(waiting, problem)
        return problem is None


def end(waiting: list[asyncio.Future[None]], problem: Unavailable | None) -> None:
    """Let posts continue, or end with 503; some may have gone meanwhile."""
    for each in waiting:
        if not each.done():
            if problem is None:
                each.set_result(None)
            else:
                each.set_exception(problem)
