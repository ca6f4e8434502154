"""What a server counts while it runs: requests, their latency, commits, and data that it refused."""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable
from typing import Any

log = logging.getLogger("reprior.service")
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)  # upper ends of the buckets
LOG_SECONDS = 10.0  # between two log lines about the same thing


class Histogram:
    """Durations in buckets, as Prometheus wants them."""

    __slots__ = ("buckets", "total")

    def __init__(self) -> None:
        self.buckets, self.total = [0] * (len(SECONDS) + 1), 0.0

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self.buckets[bisect_left(SECONDS, seconds)] += 1
        self.total += seconds


class RareLog:
    """A log with at most one line per key in ten seconds; the next line has the number of those left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: dict[object, tuple[float, int]] = {}  # of each key: time of the last line, lines left out since

    def line(self, key: object, text: str, level: int = logging.WARNING) -> None:
        """Log `text` unless something with the same key was logged a moment ago."""
        now = self._clock()
        when, more = self._lines.get(key, (-LOG_SECONDS, 0))
        if now - when < LOG_SECONDS:
            self._lines[key] = when, more + 1
            return
        if len(self._lines) >= 10_000:
            self._lines.clear()
        self._lines[key] = now, 0
        log.log(level, "%s%s", text, f" ({more} more since the last such line)" if more else "")


class Counters:
    """Counts of one server since its start."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.learned = 0  # samples
        self.forward_dropped = 0  # CloudEvents that the second sink did not take
        self.requests: Counter[tuple[str, int]] = Counter()  # by route and status
        self.latency: defaultdict[str, Histogram] = defaultdict(Histogram)  # by route
        self.commits = Histogram()
        self.refused: Counter[tuple[str, str]] = Counter()  # by stream ("" if there is none of that name) and reason
        self.last_refused: dict[str, Any] | None = None
        self.rare_log, self._clock = RareLog(), clock

    def request(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request."""
        self.requests[route, status] += 1
        self.latency[route].add(seconds)

    def refuse(self, stream: str, reason: str, sentence: str) -> None:
        """Count data that was not taken, and log it."""
        self.refused[stream, reason] += 1
        self.last_refused = {"stream": stream, "reason": reason, "error": sentence[:300], "at": self._clock()}
        about = f"for the stream {stream!r} " if stream else ""
        self.rare_log.line((stream, reason), f"data {about}refused ({reason}): {sentence[:300]}")
