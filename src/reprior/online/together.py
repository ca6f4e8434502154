"""What the keys of a table have in common, from which a new key starts."""

from __future__ import annotations

from typing import Any

import numpy as np

from reprior._types import Labels, Matrix, Vector
from reprior.online.method import StreamMethod, learned, refuse
from reprior.online.robust import Robust
from reprior.online.stream import aligned
from reprior.state import refuse as refuse_bytes
from reprior.state import take


def shares(method: StreamMethod) -> bool:
    """Return whether streams of a method can start from what others have in common."""
    return hasattr(method.method if isinstance(method, Robust) else method, "start")


class Together:
    """What the keys of a table have in common: one stream of the first rows of each, from which new keys start.

    Where they start is settled anew after every `PERIOD` rows that the table has learned, earlier on more often. So it
    depends on the order of rows, and not on how they are cut into blocks.
    """

    PERIOD, FIRST = 1024, 32
    MOST = 100  # rows of a key that count: none has more of a say, however many it has
    DOUBT = 1.0  # keys that the start of a stream which knows no others counts as

    def __init__(self, method: StreamMethod) -> None:
        self.method, self.rows, self.keys = method, 0, 0
        first = method.init()
        self.values = aligned(first.shape)
        self.values[:] = self.start = first
        self.kernel = method.bind(self.values)

    def left(self) -> int:
        """Return after how many more rows it is settled anew where keys start."""
        if self.rows < self.PERIOD:
            return max(self.FIRST, 1 << self.rows.bit_length()) - self.rows
        return self.PERIOD - self.rows % self.PERIOD

    def counting(self, before: Vector, slots: Labels) -> Any:
        """Return which rows of keys in these slots (n,) count, who had so many rows before them (n,)."""
        order = np.argsort(slots, kind="stable")
        ordered = slots[order]
        first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
        rank = np.empty(len(slots))
        rank[order] = np.arange(len(slots)) - np.repeat(first, np.diff(np.append(first, len(slots))))
        return before + rank < self.MOST

    def learn(self, rows: Matrix, n: int, new: int) -> None:
        """Learn those rows (m, K) that count, of n that the table has learned, with so many new keys among them."""
        if len(rows):
            if self.kernel is not refuse:
                learned(self.kernel(None, np.ascontiguousarray(rows), 2))
            else:
                self.method.learn(self.values, rows)
        due = n == self.left()
        self.rows, self.keys = self.rows + n, self.keys + new
        if due:
            self.settle()

    def settle(self) -> None:
        trust = self.keys / (self.keys + self.DOUBT)
        self.start = self.method.start(self.values, trust)  # type: ignore[attr-defined]

    def to_fields(self) -> dict[str, Any]:
        """Return what bytes must say of it."""
        return {"together": self.values.copy(), "together_start": self.start, "together_n": [self.rows, self.keys]}

    def restore(self, about: dict[str, Any], caller: str) -> None:
        """Go on from what `to_fields` said, once it is known to be such."""
        values, start = (
            take(about, name, np.ndarray, caller, self.values.shape) for name in ("together", "together_start")
        )
        n = take(about, "together_n", list, caller)
        states = np.stack([values, start]).astype(np.float64)
        with np.errstate(all="ignore"):
            whole = len(n) == 2 and all(type(x) is int and 0 <= x <= 2**53 for x in n) and n[1] <= n[0]
            sound = whole and 0 <= values[0] <= n[0] and values[0] % 1 == 0 == start[0] and self.method.valid(states)
        if not sound:
            refuse_bytes(caller, "data", "numbers that keys cannot have in common")
        self.values[:], self.start, (self.rows, self.keys) = values, start.astype(np.float64), n
