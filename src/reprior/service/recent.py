"""The rows of late, which are in memory alone, and what they say about the method's assumptions."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np

from reprior._check import InputError, fail
from reprior._types import Matrix
from reprior.assess.diagnose import Diagnosis, diagnose
from reprior.rows.blocks import ArrayBlocks
from reprior.rows.passes import MAX_DENSE_CLASSES
from reprior.service.live import Live
from reprior.service.settings import Clock

ROWS = 1_000  # of a stream
BYTES = 128 << 20  # of all streams together; of the longest silent ones they go first
HOLDS_SECONDS = 10.0  # for which a diagnosis holds at least


class Recent:
    """The last rows of each stream."""

    def __init__(self) -> None:
        self._kept: OrderedDict[int, deque[Matrix]] = OrderedDict()
        self._rows: Counter[int] = Counter()  # of each stream
        self._bytes = 0

    def add(self, live: Live, rows: Matrix) -> None:
        """Keep rows (n, K) that a stream has learned; older ones make room for them."""
        kept = self._kept.setdefault(live.id, deque())
        self._kept.move_to_end(live.id)
        if len(rows):
            kept.append(np.array(rows[-ROWS:], np.float32))
            self._bytes += kept[-1].nbytes
            self._rows[live.id] += len(kept[-1])
        while len(kept) > 1 and self._rows[live.id] - len(kept[0]) >= ROWS:
            self._rows[live.id] -= len(kept[0])
            self._bytes -= kept.popleft().nbytes
        while self._bytes > BYTES and len(self._kept) > 1:
            self.drop(next(iter(self._kept)))

    def drop(self, stream: int) -> None:
        """Forget the rows of a stream."""
        self._bytes -= sum(x.nbytes for x in self._kept.pop(stream, ()))
        self._rows.pop(stream, None)

    def of(self, live: Live) -> Matrix:
        """Return the last rows (m, K) of a stream that are still in memory."""
        kept = self._kept.get(live.id)
        return np.concatenate(list(kept))[-ROWS:] if kept else np.empty((0, live.n_classes), np.float32)


class Diagnoses:
    """What the rows of late say; one diagnosis of a stream is made at a time, and holds for a while."""

    def __init__(
        self, recent: Recent, clock: Clock, think: Callable[[Callable[[], Diagnosis]], Awaitable[Diagnosis]]
    ) -> None:
        self._recent, self._clock, self._think = recent, clock, think
        self._made: dict[int, tuple[float, int, dict[str, Any] | None]] = {}  # until when, of which samples, what
        self._making: dict[int, asyncio.Task[dict[str, Any] | None]] = {}

    async def of(self, live: Live) -> dict[str, Any] | None:
        """Return what the rows of late say about the method's assumptions; None until there are some."""
        known = self._made.get(live.id)
        if known and (self._clock() < known[0] or known[1] == live.stream.n):
            return known[2]
        if live.id not in self._making:
            task = asyncio.create_task(self._make(live))
            self._making[live.id] = task
            task.add_done_callback(lambda _: self._making.pop(live.id, None))
        return await asyncio.shield(self._making[live.id])

    async def _make(self, live: Live) -> dict[str, Any] | None:
        rows, n, begun = self._recent.of(live), live.stream.n, self._clock()
        found: dict[str, Any] | None = None
        if len(rows) >= 2:
            found = {"rows": len(rows), "at": self._clock(), "applies": None, "shifted": None}
            try:
                if live.n_classes > MAX_DENSE_CLASSES:
                    fail("diagnose", "classes", f"be at most {MAX_DENSE_CLASSES}, since this needs K×K numbers",
                         live.n_classes)  # fmt: skip
                made = await self._think(lambda: diagnose(live.source, ArrayBlocks(live.stream.calibrated(rows))))
                found |= {"applies": made.applies, "shifted": bool(made.shifted), "sentences": str(made).split("\n")}
            except InputError as error:
                found["sentences"] = [str(error)]
            except (ValueError, ArithmeticError):  # of numbers that no diagnosis was tried with
                found["sentences"] = [f"The last {len(rows)} samples cannot be diagnosed."]
        now = self._clock()  # one that takes long is not made again at once
        self._made[live.id] = (now + max(HOLDS_SECONDS, 10 * (now - begun)), n, found)
        return found

    def forget(self, stream: int) -> None:
        """Forget what was said of a stream."""
        self._made.pop(stream, None)

    async def end(self) -> None:
        """Wait for those that are being made."""
        await asyncio.gather(*self._making.values(), return_exceptions=True)
