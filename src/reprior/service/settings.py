"""What a server is told once, at its start, and the clock it goes by."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Limits:
    """What one server takes at most; each limit is refused with a sentence that names it."""

    body: int = 32 << 20  # bytes
    classes: int = 10_000
    streams: int = 20_000
    clients: int = 1_000  # that a stream remembers the offsets of
    gaps: int = 100  # ranges of missing numbers that a client's offset may hold
    rate: float = 5_000.0  # requests a second from one address, with as many at once
    watchers: int = 200  # open event streams
    waiting: int = 2_000  # posts that wait for a commit
    body_seconds: float = 30.0  # to send a request


@dataclass(frozen=True, slots=True)
class Settings:
    """How a server runs. `db` is None where nothing is to be kept, as a benchmark wants it."""

    db: Path | None
    token: str | None = field(default=None, repr=False)
    read_token: str | None = field(default=None, repr=False)
    hosts: tuple[str, ...] = ()  # values of the header Host that are answered; empty: all
    limits: Limits = Limits()
    point_seconds: float = 1.0  # between two points of a stream's history
    webhook: str | None = None
    webhook_secret: str | None = field(default=None, repr=False)
    forward: str | None = None  # where CloudEvents go on to
    intakes: tuple[str, ...] = ()  # addresses of brokers to read from
    demo: bool = False  # feed streams of its own
    metric_streams: int = 200
    metric_classes: int = 5


class Clock:
    """Seconds since 1970 that never go back: where the system's clock is set back, this one runs at half speed.

    Points of a history must come one after the other. Half speed lets the system's clock catch up.
    """

    def __init__(
        self, start: float = 0.0, wall: Callable[[], float] = time.time, steady: Callable[[], float] = time.monotonic
    ) -> None:
        self._wall, self._steady = wall, steady
        self._then, self._now = steady(), max(start, wall())

    def __call__(self) -> float:
        passed, wall = self._steady() - self._then, self._wall()
        self._then += passed
        self._now = max(wall, self._now + (0.5 * passed if self._now > wall else 0.0))
        return self._now

    @property
    def ahead(self) -> float:
        """How many seconds it is ahead of the system's clock."""
        return max(0.0, self() - self._wall())
