"""The last rows, which are in memory alone, and whether they fit the method's assumptions."""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import numpy as np

from reprior._check import InputError, fail
from reprior._types import Matrix
from reprior.assess.diagnose import Diagnosis, diagnose
from reprior.rows.blocks import ArrayBlocks
from reprior.rows.passes import MAX_DENSE_CLASSES
from reprior.service.served import ServedStream
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

    def add(self, stream: int, rows: Matrix) -> None:
        """Keep rows (n, K) that a stream has learned; older ones make room for them."""
        kept = self._kept.setdefault(stream, deque())
        self._kept.move_to_end(stream)
        if len(rows):
            kept.append(rows[-ROWS:].astype(np.float32))
            self._bytes += kept[-1].nbytes
            self._rows[stream] += len(kept[-1])
        while len(kept) > 1 and self._rows[stream] - len(kept[0]) >= ROWS:
            self._rows[stream] -= len(kept[0])
            self._bytes -= kept.popleft().nbytes
        while self._bytes > BYTES and len(self._kept) > 1:
            self.drop(next(iter(self._kept)))

    def drop(self, stream: int) -> None:
        """Forget the rows of a stream."""
        self._bytes -= sum(x.nbytes for x in self._kept.pop(stream, ()))
        self._rows.pop(stream, None)

    def of(self, stream: int, n_classes: int) -> Matrix:
        """Return the last rows (m, K) of a stream that are still in memory."""
        kept = self._kept.get(stream)
        return np.concatenate(list(kept))[-ROWS:] if kept else np.empty((0, n_classes), np.float32)


class Holding(NamedTuple):
    """A diagnosis, until when it holds, and the samples of the stream when it was made."""

    until: float
    n: int
    diagnosis: dict[str, Any] | None


class Diagnoses:
    """Whether the last rows fit the method's assumptions; one diagnosis of a stream is made at a time."""

    def __init__(self, recent: Recent, clock: Clock, think: Callable[..., Awaitable[Diagnosis]]) -> None:
        self._recent, self._clock, self._think = recent, clock, think
        self._made: dict[int, Holding] = {}
        self._making: dict[int, asyncio.Task[dict[str, Any] | None]] = {}

    async def of(self, served: ServedStream) -> dict[str, Any] | None:
        """Return the diagnosis of the last rows of a stream; None until there are some."""
        last = self._made.get(served.id)
        if last and (self._clock() < last.until or last.n == served.stream.n):
            return last.diagnosis
        if served.id not in self._making:
            task = asyncio.create_task(self._make(served))
            self._making[served.id] = task
            task.add_done_callback(lambda _: self._making.pop(served.id, None))
        return await asyncio.shield(self._making[served.id])

    async def _make(self, served: ServedStream) -> dict[str, Any] | None:
        rows, n, begun = self._recent.of(served.id, served.n_classes), served.stream.n, self._clock()
        stream, source = served.stream, served.definition.source
        about: dict[str, Any] | None = None
        if len(rows) >= 2:
            about = {"rows": len(rows), "at": self._clock(), "applies": None, "shifted": None}
            try:
                if served.n_classes > MAX_DENSE_CLASSES:
                    fail("diagnose", "classes", f"be at most {MAX_DENSE_CLASSES}, since this needs K×K numbers",
                         served.n_classes)  # fmt: skip
                made = await self._think(lambda: diagnose(source, ArrayBlocks(stream.calibrated(rows))))
                about |= {"applies": made.applies, "shifted": bool(made.shifted), "sentences": str(made).split("\n")}
            except (ValueError, ArithmeticError) as error:  # of numbers that no diagnosis was tried with
                known, other = isinstance(error, InputError), f"The last {len(rows)} samples cannot be diagnosed."
                about["sentences"] = [str(error) if known else other]
        now = self._clock()  # one that takes long is not made again at once
        self._made[served.id] = Holding(now + max(HOLDS_SECONDS, 10 * (now - begun)), n, about)
        return about

    def forget(self, stream: int) -> None:
        """Forget the diagnosis of a stream."""
        self._made.pop(stream, None)

    async def end(self) -> None:
        """Wait for those that are being made."""
        await asyncio.gather(*self._making.values(), return_exceptions=True)
