"""What a stream has to store: gathered while a commit is on its way, written with the next one."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import NamedTuple

from reprior.service.alarm_store import AlarmEvent
from reprior.service.receipts import Offset


class Point(NamedTuple):
    """A moment of a stream: milliseconds since 1970, samples so far, prior and variance (K,) as float32."""

    t: int
    n: int
    prior: bytes
    variance: bytes


class Renewal(NamedTuple):
    """A new model version of a stream: its number, when it began, and its definition as bytes."""

    number: int
    since: float
    definition: bytes


@dataclass(slots=True)
class Pending:
    """What is new since the last commit, beside the state itself."""

    clients: set[str] = field(default_factory=set)  # whose offsets moved
    forgotten: set[str] = field(default_factory=set)  # clients whose offsets go
    cursors: set[str] = field(default_factory=set)  # that moved
    points: list[Point] = field(default_factory=list)
    events: list[tuple[str, float]] = field(default_factory=list)  # ids of CloudEvents, and when they came
    alarms: list[AlarmEvent] = field(default_factory=list)
    since_alarm: list[tuple[int, bytes]] = field(default_factory=list)  # its number, samples since as float32
    rows: list[tuple[str, float, bytes]] = field(default_factory=list)  # that wait for a label: id, time, float64
    labelled: set[str] = field(default_factory=set)  # ids of rows whose label came
    renewals: list[Renewal] = field(default_factory=list)
    test: bool = False  # whether the alarm's test moved

    def followed_by(self, later: Pending) -> Pending:
        """Return what both hold, this first."""
        pairs = [(getattr(self, each.name), getattr(later, each.name)) for each in fields(self)]
        return Pending(*(a + b if isinstance(a, list) else a | b for a, b in pairs))


NOTHING = Pending()


class Change(NamedTuple):
    """What one stream becomes in the file. `test` is None if the alarm's test stays as it is."""

    stream: int
    n: int
    labels: int
    last_post: float
    state: bytes
    test: bytes | None = None
    offsets: dict[str, Offset] = {}  # noqa: RUF012  (nobody changes it)
    cursors: dict[str, str] = {}  # noqa: RUF012
    pending: Pending = NOTHING
