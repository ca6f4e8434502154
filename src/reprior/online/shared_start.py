"""What the keys of a table have in common, from which a new key starts."""

from __future__ import annotations

from typing import Any

import numpy as np

from reprior._types import Labels, Matrix, Vector
from reprior.online.method import StreamMethod, learned, refuse
from reprior.online.robust import Robust
from reprior.online.stream import aligned
from reprior.rows.correction import correct_float64
from reprior.state import refuse as refuse_bytes
from reprior.state import take


def shares(method: StreamMethod) -> bool:
    """Return whether streams of a method can start from what others have in common."""
    return hasattr(method.method if isinstance(method, Robust) else method, "start")


class SharedStart:
    """What the keys of a table have in common: one stream of the first rows of each, and, for some of them, sums by
    which they can be compared. From both new keys start.

    Where they start is settled anew after every `PERIOD` rows that the table has learned, later on less often. So it
    depends on the order of rows, and not on how they are cut into blocks.
    """

    FIRST, PERIOD, LONGEST = 32, 1024, 4096
    MOST = 100  # rows of a key that count: none has more of a say, however many it has
    HELD = 10_000  # rows that the stream of all remembers
    DOUBT = 1.0  # keys that the start of a stream which knows no others counts as
    KEYS = 64  # that are compared
    IDLE = 65_536  # rows of the table after which a key without any makes room for another

    def __init__(self, method: StreamMethod) -> None:
        self.method, self.rows, self.keys = method.of_all(), 0, 0  # type: ignore[attr-defined]
        first = method.init()
        self.values = aligned(first.shape)
        self.values[:] = first
        self.kernel = self.method.bind(self.values)
        # of the keys that are compared: sums of r and of r², slots (-1 once no more rows count), and until when there
        # were rows of theirs
        self.sums = np.zeros((2, 0, len(method.source.prior)))
        self.slots, self.last = np.zeros((2, 0), np.int64)
        self.begin(first)

    def begin(self, start: Vector) -> None:
        """Let new keys start there."""
        self.start, self.weights = start, self.method.prior(start) / self.method.source.prior

    def left(self) -> int:
        """Return after how many more rows it is settled anew where keys start."""
        if self.rows < self.PERIOD:
            return max(self.FIRST, 1 << self.rows.bit_length()) - self.rows
        period = min(max(self.PERIOD, 1 << self.rows.bit_length() - 3), self.LONGEST)
        return period - self.rows % period

    def learn(self, rows: Matrix, slots: Labels, before: Vector) -> None:
        """Learn rows (n, K), at most as many as are left, of keys in these slots (n,) with so many rows before (n,)."""
        rank = before.copy()
        if len(slots) > 1:  # of each row among those of its key
            order = np.argsort(slots, kind="stable")
            ordered = slots[order]
            first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
            rank[order] += np.arange(len(slots)) - np.repeat(first, np.diff(np.append(first, len(slots))))
        counts = rank < self.MOST
        if counts.any():
            counted = np.ascontiguousarray(rows[counts])
            if self.kernel is not refuse:
                learned(self.kernel(None, counted, 2))
            else:
                self.method.learn(self.values, counted)
            self.enter(slots[rank == 0.0])
            self.add(counted, slots[counts])
        due = len(rows) == self.left()
        self.rows, self.keys = self.rows + len(rows), self.keys + int((rank == 0.0).sum())
        if due:
            self.settle()

    def enter(self, new: Labels) -> None:
        """Compare new keys in these slots (m,), as far as there is room, with the others."""
        if not len(new):
            return
        self.forget(new)
        more = min(self.KEYS - len(self.slots), len(new))
        if more > 0:
            self.sums = np.pad(self.sums, ((0, 0), (0, more), (0, 0)))
            self.slots, self.last = (np.append(x, np.full(more, -1)) for x in (self.slots, self.last))
        room = np.flatnonzero(self.slots < 0)
        room = room[np.argsort(self.last[room], kind="stable")][: len(new)]
        self.slots[room] = new[: len(room)]
        self.sums[:, room] = 0.0

    def add(self, rows: Matrix, slots: Labels) -> None:
        """Add rows (m, K) that count to the sums of their keys."""
        if not len(self.slots):
            return
        order = np.argsort(self.slots)
        place = order[np.searchsorted(self.slots, slots, sorter=order) % len(order)]
        here = self.slots[place] == slots
        if here.any():
            r, place = correct_float64(rows[here], self.weights), place[here]
            np.add.at(self.sums[0], place, r)
            np.add.at(self.sums[1], place, r * r)
            self.last[place] = self.rows + self.left()

    def forget(self, slots: Any) -> None:
        """Take it that keys in these slots bring no more rows."""
        self.slots[np.isin(self.slots, slots)] = -1

    def settle(self) -> None:
        done = (self.sums[0].sum(axis=1) > self.MOST - 0.5) | (self.rows - self.last > self.IDLE)
        self.slots[done] = -1
        trust = self.keys / (self.keys + self.DOUBT)
        self.method.fade(self.values, self.HELD)
        self.begin(self.method.start(self.values, trust, self.sums))

    def to_fields(self, slots: list[int]) -> dict[str, Any]:
        """Return what bytes must say of it, which number keys by the order of their slots."""
        number = {slot: i for i, slot in enumerate(slots)}
        return {
            "together": self.values.copy(), "together_start": self.start, "together_n": [self.rows, self.keys],
            "together_sums": self.sums, "together_keys": [number.get(slot, -1) for slot in self.slots.tolist()],
            "together_last": self.last.tolist(),
        }  # fmt: skip

    def restore(self, about: dict[str, Any], caller: str, slots: Labels) -> None:
        """Go on from what `to_fields` said, once it is known to be such, with keys in these slots."""
        values, start = (
            take(about, name, np.ndarray, caller, self.values.shape) for name in ("together", "together_start")
        )
        n = take(about, "together_n", list, caller)
        states = np.stack([values, start]).astype(np.float64)
        with np.errstate(all="ignore"):
            whole = len(n) == 2 and all(type(x) is int and 0 <= x <= 2**53 for x in n) and n[1] <= n[0]
            sound = whole and 0 <= values[0] <= n[0] and values[0] % 1 == 0 == start[0] and self.method.valid(states)
        if not sound or not self.restore_keys(about, caller, slots, n[0]):
            refuse_bytes(caller, "data", "invalid numbers shared by keys")
        self.values[:], (self.rows, self.keys) = values, n
        self.begin(start.astype(np.float64))

    def restore_keys(self, about: dict[str, Any], caller: str, slots: Labels, rows: int) -> bool:
        """Go on with the keys that are compared, and return whether they can be such, in a table of so many rows."""
        sums = take(about, "together_sums", np.ndarray, caller, (2, None, self.sums.shape[2])).astype(np.float64)
        keys, last = (take(about, name, list, caller) for name in ("together_keys", "together_last"))
        compared = [key for key in keys if key != -1]
        if not (
            all(type(x) is int for x in (*keys, *last)) and all(0 <= x <= rows + self.LONGEST for x in last)
            and len(set(compared)) == len(compared) and all(0 <= key < len(slots) for key in compared)
            and len(keys) == len(last) == sums.shape[1] <= self.KEYS
        ):  # fmt: skip
            return False
        self.sums, self.last = sums, np.array(last, np.int64)
        self.slots = np.array([slots[key] if key >= 0 else -1 for key in keys], np.int64)
        with np.errstate(all="ignore"):
            n = sums[0].sum(axis=1)
            counted = (n > 0.5) & (n <= rows + 0.5) & ((sums[1] >= 0) & (sums[1] <= sums[0])).all(axis=1)
        return bool(counted.all())
