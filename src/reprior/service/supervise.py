"""Background tasks under watch: an unexpected end is logged, counted and shown, never silent."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from reprior.service.counters import RareLog
from reprior.service.errors import place

PAUSE = 1.0  # seconds before a task that ended is started again
SHOWN_SECONDS = 60.0  # for which `/healthz` names a task after it ended unexpectedly


class Supervisor:
    """The background tasks of one server.

    A task that ends by an exception is started again after a pause. A vital task is not: without it the server cannot
    continue, so `on_fatal` is called with a sentence.
    """

    def __init__(self, on_fatal: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self.failures: Counter[str] = Counter()  # unexpected ends per task, since the start
        self._on_fatal, self._clock, self._rare_log = on_fatal, clock, RareLog(clock)
        self._ended: dict[str, tuple[float, str]] = {}  # the last unexpected end: when, and its sentence
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Callable[[], Awaitable[None]], *, vital: bool = False) -> None:
        """Run `work` under this name until it returns or `stop` is called."""
        self.failures[name] += 0
        self._tasks[name] = asyncio.create_task(self._watch(name, work, vital))

    async def _watch(self, name: str, work: Callable[[], Awaitable[None]], vital: bool) -> None:
        while True:
            try:
                await work()
                return
            except Exception as error:
                sentence = f"The task '{name}' ended unexpectedly ({place(error)})."
                self.failures[name] += 1
                self._ended[name] = self._clock(), sentence
                self._rare_log.line(name, sentence, logging.ERROR)
                if vital:
                    self._on_fatal(sentence)
                    return
            await asyncio.sleep(PAUSE)

    def problems(self) -> list[str]:
        """Return a sentence for each task that ended unexpectedly within the last minute."""
        now = self._clock()
        return [sentence for when, sentence in self._ended.values() if now - when < SHOWN_SECONDS]

    async def wait(self, name: str) -> None:
        """Wait until a task has returned."""
        if name in self._tasks:
            await asyncio.gather(self._tasks[name], return_exceptions=True)

    async def stop(self) -> None:
        """Cancel every task and wait for its end."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
