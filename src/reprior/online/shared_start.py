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


def can_share_start(method: StreamMethod) -> bool:
    """Return whether streams of a method can start from what others have in common."""
    return hasattr(method.method if isinstance(method, Robust) else method, "start")


class SharedStart:
    """What the keys of a table have in common, and the state that new keys start from.

    It has one stream of the first rows of each key and, for some keys, sums by which they are compared. The start is
    updated after a fixed number of rows of the table: at powers of two, then every `PERIOD` rows, later less often. So
    it depends on the order of rows, and not on how they are cut into blocks.
    """

    FIRST, PERIOD, LONGEST = 32, 1024, 4096
    ROWS_PER_KEY = 100  # rows of a key that count, so that no key dominates
    MAX_REMEMBERED = 10_000  # rows that the stream of all keys remembers
    PRIOR_KEYS = 1.0  # keys that the start without other keys counts as
    KEYS = 64  # that are compared
    IDLE = 65_536  # rows of the table after which a key without any makes room for another

    def __init__(self, method: StreamMethod) -> None:
        self.method, self.rows, self.keys = method.pooled_method(), 0, 0  # type: ignore[attr-defined]
        first = method.init()
        self.values = aligned(first.shape)
        self.values[:] = first
        self.kernel = self.method.bind(self.values)
        # of the keys that are compared: sums of r and of r², slots (-1 once no more rows count), and the rows of the
        # table at the update after their last row
        self.sums = np.zeros((2, 0, len(method.source.prior)))
        self.slots, self.last = np.zeros((2, 0), np.int64)
        self.begin(first)

    def begin(self, start: Vector) -> None:
        """Let new keys start from this state."""
        self.start, self.weights = start, self.method.prior(start) / self.method.source.prior

    def rows_until_update(self) -> int:
        """Return the number of rows until the start is updated."""
        if self.rows < self.PERIOD:
            return max(self.FIRST, 1 << self.rows.bit_length()) - self.rows
        period = min(max(self.PERIOD, 1 << self.rows.bit_length() - 3), self.LONGEST)
        return period - self.rows % period

    def learn(self, rows: Matrix, slots: Labels, before: Vector) -> None:
        """Learn rows (n, K), at most `rows_until_update`, of keys in `slots` (n,) that had `before` (n,) rows."""
        rank = before.copy()
        if len(slots) > 1:  # of each row among those of its key
            order = np.argsort(slots, kind="stable")
            ordered = slots[order]
            first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
            rank[order] += np.arange(len(slots)) - np.repeat(first, np.diff(np.append(first, len(slots))))
        counts = rank < self.ROWS_PER_KEY
        if counts.any():
            counted = np.ascontiguousarray(rows[counts])
            if self.kernel is not refuse:
                learned(self.kernel(None, counted, 2))
            else:
                self.method.learn(self.values, counted)
            self.track_keys(slots[rank == 0.0])
            self.add(counted, slots[counts])
        due = len(rows) == self.rows_until_update()
        self.rows, self.keys = self.rows + len(rows), self.keys + int((rank == 0.0).sum())
        if due:
            self.update_start()

    def track_keys(self, new: Labels) -> None:
        """Compare the new keys in these slots (m,) with the others from now on, while there is room."""
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
            self.last[place] = self.rows + self.rows_until_update()

    def forget(self, slots: Any) -> None:
        """Stop tracking the keys in these slots."""
        self.slots[np.isin(self.slots, slots)] = -1

    def update_start(self) -> None:
        """Compute the start of new keys from the keys so far."""
        done = (self.sums[0].sum(axis=1) > self.ROWS_PER_KEY - 0.5) | (self.rows - self.last > self.IDLE)
        self.slots[done] = -1
        trust = self.keys / (self.keys + self.PRIOR_KEYS)
        self.method.fade(self.values, self.MAX_REMEMBERED)
        self.begin(self.method.start(self.values, trust, self.sums))

    def to_fields(self, slots: list[int]) -> dict[str, Any]:
        """Return the fields to store. They number keys by the order of their `slots`."""
        number = {slot: i for i, slot in enumerate(slots)}
        return {
            "together": self.values.copy(), "together_start": self.start, "together_n": [self.rows, self.keys],
            "together_sums": self.sums, "together_keys": [number.get(slot, -1) for slot in self.slots.tolist()],
            "together_last": self.last.tolist(),
        }  # fmt: skip

    def restore(self, about: dict[str, Any], caller: str, slots: Labels) -> None:
        """Continue from what `to_fields` returned, after checks, with keys in these slots."""
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
        """Restore the keys that are compared. Return whether they are valid in a table of `rows` rows."""
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
