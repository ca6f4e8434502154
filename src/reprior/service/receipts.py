"""What a stream has counted already, by client, event id and broker position, so that nothing counts twice."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from reprior._check import check_int, fail
from reprior.service.settings import Limits


@dataclass(slots=True)
class Offset:
    """The last number a client has sent, how many samples there were after it, and the numbers it has left out."""

    seq: int
    n: int
    last_post: float
    missing: list[list[int]] = field(default_factory=list)  # closed ranges, in order


class Placement(NamedTuple):
    """How a client's number fits what it sent before: already counted, or new, with what it leaves out."""

    repeated: bool = False
    fills: bool = False
    gap: tuple[int, int] | None = None
    idle: tuple[str, ...] = ()  # clients that make room for this one


UNNUMBERED = Placement()


@dataclass(slots=True)
class Receipts:
    """What was counted, as long as it is remembered."""

    offsets: dict[str, Offset] = field(default_factory=dict)  # by client
    events: dict[str, float] = field(default_factory=dict)  # when the event of each id came
    cursors: dict[str, str] = field(default_factory=dict)  # of a broker's log: the position that was learned last

    def place(self, client: str | None, seq: int | None, limits: Limits, now: float) -> Placement:
        """Return how a number fits in; refuse it if that could not be remembered. Nothing changes."""
        if client is None or seq is None:
            return UNNUMBERED
        offset = self.offsets.get(client)
        if offset is None:
            if len(self.offsets) < limits.clients:
                return UNNUMBERED
            idle = tuple(name for name, o in self.offsets.items() if o.last_post < now - limits.idle_seconds)
            if not idle:
                fail("samples", "client", f"be one of at most {limits.clients} clients of a stream", "another one",
                     remedy="Use the same client name again, or start the server with a larger --max-clients"
                     )  # fmt: skip
            return Placement(idle=idle)
        if seq > offset.seq:
            gap = (offset.seq + 1, seq - 1) if seq > offset.seq + 1 else None
            if gap and len(offset.missing) >= limits.gaps:
                fail("samples", "seq", f"leave no more than {limits.gaps} gaps", seq,
                     remedy="Send what was left out, or use another client name")  # fmt: skip
            return Placement(gap=gap)
        fills = any(first <= seq <= last for first, last in offset.missing)
        return Placement(repeated=not fills, fills=fills)

    def count(self, client: str, seq: int, placement: Placement, n: int, now: float) -> Offset:
        """Remember a client's number as counted, when the stream has `n` samples; return the client's offset."""
        for name in placement.idle:
            del self.offsets[name]
        offset = self.offsets.setdefault(client, Offset(seq, 0, now))
        if placement.fills:
            left: list[list[int]] = []
            for first, last in offset.missing:
                left += [[first, seq - 1], [seq + 1, last]] if first <= seq <= last else [[first, last]]
            offset.missing = [pair for pair in left if pair[0] <= pair[1]]
        else:
            if placement.gap:
                offset.missing.append(list(placement.gap))
            offset.seq, offset.n = seq, n
        offset.last_post = now
        return offset

    def forget(self, clients_before: float, events_before: float) -> None:
        """Forget clients and events that were last heard of before a time."""
        self.offsets = {name: o for name, o in self.offsets.items() if o.last_post >= clients_before}
        self.events = {name: t for name, t in self.events.items() if t >= events_before}


def check_seq(client: Any, seq: Any) -> tuple[str | None, int | None]:
    """Return a client's name and number, both or neither."""
    if (client is None) != (seq is None):
        present, missing = ("client", "seq") if seq is None else ("seq", "client")
        fail("samples", missing, f"be given, because `{present}` is", "nothing", remedy="Or leave out both")
    if client is None:
        return None, None
    if not isinstance(client, str) or not 0 < len(client) <= 200 or not client.isprintable():
        fail("samples", "client", "be a text of 1 to 200 printable characters", repr(client)[:80])
    number = check_int(seq, "samples", "seq", low=0)
    if number >= 1 << 53:
        fail("samples", "seq", "be below 2**53", number)
    return client, number
