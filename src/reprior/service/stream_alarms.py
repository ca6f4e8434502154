"""The alarm of one stream: its sequential test, the samples that wait for it, and the alarms that are open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from reprior._types import Matrix, Vector
from reprior.online.alarm import Alarm

LOOK_ROWS = 16  # samples for which one look of the test is worth its cost
LOOK_MOST = 64  # samples that one look takes at most: the prior it bets on is the one from before them
LOOK_SECONDS = 10.0  # for which samples wait for the test at most


@dataclass(slots=True)
class StreamAlarms:
    """What is known about alarms of a stream; `test` is None if it is not watched for a shift."""

    test: Alarm | None = None
    shift: dict[str, Any] | None = None  # the open alarm about a shift
    stale: dict[str, Any] | None = None  # the alarm that no samples come, until some do
    not_label_shift: dict[str, Any] | None = None  # the alarm that little of the correction is applied, until more is
    silence: dict[str, Any] | None = None
    stored_rows: int = 0  # samples since the open alarm about a shift that are stored
    waiting: list[tuple[Matrix, float]] = field(default_factory=list)  # samples that the test lacks, and when they came
    waiting_rows: int = 0
    test_moved: bool = False  # since it was stored; a crash costs it the samples of at most ten seconds
    waiting_prior: Vector | None = None  # before the first of them

    @property
    def active(self) -> bool:
        """Whether the test looks at samples: a raised alarm has nothing to add until somebody deals with it."""
        return self.test is not None and self.shift is None

    def silenced(self, now: float) -> dict[str, Any] | None:
        """Return the silence that holds now, if there is one."""
        return self.silence if self.silence is not None and self.silence["until"] > now else None

    def raised(self) -> list[dict[str, Any]]:
        """Return the alarms that are not resolved."""
        return [alarm for alarm in (self.shift, self.not_label_shift, self.stale) if alarm is not None]

    def open(self) -> list[dict[str, Any]]:
        """Return the alarms that are raised and acknowledged by nobody."""
        return [alarm for alarm in self.raised() if not alarm.get("acknowledged")]

    def add(self, rows: Matrix, now: float) -> None:
        """Let calibrated samples (n, K) wait for the test."""
        self.waiting.append((rows, now))
        self.waiting_rows += len(rows)

    def look_due(self, now: float) -> bool:
        """Return whether enough samples, or old enough ones, wait for the test."""
        return bool(self.waiting) and (self.waiting_rows >= LOOK_ROWS or now - self.waiting[0][1] >= LOOK_SECONDS)

    def look(self) -> bool:
        """Test the samples that wait against the prior from before them; return whether that raised the alarm."""
        assert self.test is not None
        assert self.waiting_prior is not None
        rows = np.concatenate([block for block, _ in self.waiting])
        times = np.repeat([t for _, t in self.waiting], [len(block) for block, _ in self.waiting])
        self.waiting, self.waiting_rows = [], 0
        self.test.bet(rows, self.waiting_prior, times)
        return bool(self.test.state.verdict)

    def restart(self, test: Alarm | None) -> None:
        """Continue with another test; samples that waited for the old one are not for it."""
        self.test, self.shift, self.waiting, self.waiting_rows = test, None, [], 0
