"""What the keys of a table have in common, from which a new key starts."""

from __future__ import annotations

from typing import Any

import numpy as np

from reprior._types import Labels, Matrix, Vector
from reprior.model.population import scatter_of
from reprior.online.method import Robust, StreamMethod
from reprior.rows.correction import correct_float64
from reprior.state import refuse as refuse_bytes
from reprior.state import take

MIN_SIZE, MAX_SIZE = 0.3, 30.0  # samples per class that the common prior may count as
P_UNLIKE_KEY = 0.1  # probability that a new key is unlike the others (benchmarks/results/groups_forms.md)


def can_share_start(method: StreamMethod) -> bool:
    """Return whether streams of a method can start from what others have in common."""
    return hasattr(method.method if isinstance(method, Robust) else method, "start")


def start_sizes(sums: Matrix, n: int) -> tuple[Vector, Vector]:
    """Return samples per class (n,) that the common prior may count as for a new key, and their probabilities (n,).

    The first is for a key unlike the others. The other sizes follow from the concentration of keys, with its standard
    error, by the sums (2, G, K) of p and p² over the first samples of G keys.
    """
    samples, low, high = sums[0].sum(axis=1), MIN_SIZE, MAX_SIZE
    if len(samples):
        scatter = scatter_of(sums[0], sums[1], samples)
        intraclass = 1 / (scatter.concentration + 1) + np.array([1, -1]) * scatter.intraclass_se
        low, high = np.clip((1 / np.maximum(intraclass, 1e-9) - 1) / sums.shape[2], MIN_SIZE, MAX_SIZE)
    return (np.append(MIN_SIZE, np.geomspace(low, high, n - 1)),
            np.append(P_UNLIKE_KEY, np.full(n - 1, (1 - P_UNLIKE_KEY) / (n - 1))))  # fmt: skip


def ranks(slots: Labels) -> Labels:
    """Return how many earlier rows have the same slot as each row (n,)."""
    if len(slots) == 1:  # a service often learns one row at a time
        return np.zeros(1, np.int64)
    order = np.argsort(slots, kind="stable")
    _, first, sizes = np.unique(slots[order], return_index=True, return_counts=True)
    rank = np.empty(len(slots), np.int64)
    rank[order] = np.arange(len(slots)) - np.repeat(first, sizes)
    return rank


class SharedStart:
    """What the keys of a table have in common, and the state that new keys start from.

    It has one stream of the first rows of each key and, for some keys, sums by which they are compared. The start is
    updated at powers of two of the table's rows, then every `PERIOD` rows, so any cut into blocks gives the same start.
    """

    FIRST, PERIOD = 32, 1024  # rows of the table until the first update, and between later ones
    ROWS_PER_KEY = 100  # rows of a key that count, so that no key dominates
    MAX_REMEMBERED = 10_000  # rows that the stream of all keys remembers
    PRIOR_KEYS = 1.0  # keys that the start without other keys counts as
    KEYS = 64  # keys that are compared, and periods of each at most

    def __init__(self, method: StreamMethod) -> None:
        self.method, self.rows, self.keys = method.pooled_method(), 0, 0  # type: ignore[attr-defined]
        self.values = method.init()
        # of the keys that are compared: sums of p and of p², and slots, -1 once no more rows count
        self.sums, self.slots = np.zeros((2, 0, len(method.source.prior))), np.zeros(0, np.int64)
        self.set_start(method.init())

    def set_start(self, start: Vector) -> None:
        """Let new keys start from this state, with the class weights of its prior."""
        self.start, self.weights = start, self.method.prior(start) / self.method.source.prior

    def rows_until_update(self) -> int:
        """Return the number of rows until the start is updated."""
        if self.rows < self.PERIOD:
            return max(self.FIRST, 1 << self.rows.bit_length()) - self.rows
        return self.PERIOD - self.rows % self.PERIOD

    def learn(self, rows: Matrix, slots: Labels, before: Vector) -> None:
        """Learn rows (n, K), at most `rows_until_update`, of keys in `slots` (n,) that had `before` (n,) rows."""
        rank = before + ranks(slots)  # of each row among those of its key
        due, early, new = len(rows) == self.rows_until_update(), rank < self.ROWS_PER_KEY, slots[rank == 0.0]
        if early.any():
            self.method.learn(self.values, np.ascontiguousarray(rows[early]))
            if len(new):
                self.assign_places(new)
            self.add_to_sums(rows[early], slots[early])
        self.rows, self.keys = self.rows + len(rows), self.keys + len(new)
        if due:
            self.update()

    def assign_places(self, new: Labels) -> None:
        """Give new keys, in these slots (m,), free places among `KEYS` for their sums, as far as there are any.

        The search begins at another place for each new key, so places are reused in turn.
        """
        self.forget(new)
        more = min(self.KEYS - len(self.slots), len(new))
        self.sums = np.pad(self.sums, ((0, 0), (0, more), (0, 0)))
        self.slots = np.append(self.slots, np.full(more, -1))
        room = np.flatnonzero(self.slots < 0)
        room = room[np.argsort((room - self.keys) % self.KEYS)][: len(new)]
        self.slots[room], self.sums[:, room] = new[: len(room)], 0.0

    def add_to_sums(self, rows: Matrix, slots: Labels) -> None:
        """Add p and p² of rows (m, K), corrected to the start's prior, to the sums of their keys if they have any."""
        here, place = np.nonzero(slots[:, None] == self.slots)
        if len(here):
            p = correct_float64(rows[here], self.weights)
            np.add.at(self.sums[0], place, p)
            np.add.at(self.sums[1], place, p * p)

    def forget(self, slots: Any) -> None:
        """Add no more rows of the keys in these slots."""
        self.slots[np.isin(self.slots, slots)] = -1

    def update(self) -> None:
        """Compute the start of new keys from the keys so far."""
        self.slots[self.sums[0].sum(axis=1) > self.ROWS_PER_KEY - 0.5] = -1
        freed_place = (self.rows // self.PERIOD - 1) % self.KEYS  # one place per period gets free, so rare keys leave
        self.slots[freed_place : freed_place + 1] = -1
        self.method.fade(self.values, self.MAX_REMEMBERED)
        self.set_start(self.method.start(self.values, self.keys / (self.keys + self.PRIOR_KEYS), self.sums))

    def to_fields(self, slots: list[int]) -> dict[str, Any]:
        """Return the fields to store. They number keys by the order of their `slots`."""
        number = {slot: i for i, slot in enumerate(slots)}
        keys = np.array([number.get(slot, -1) for slot in self.slots.tolist()], np.int64)
        return {"together": self.values.copy(), "together_start": self.start, "together_sums": self.sums,
                "together_n": np.array([self.rows, self.keys]), "together_keys": keys}  # fmt: skip

    def restore(self, about: dict[str, Any], caller: str, slots: Labels) -> None:
        """Continue from what `to_fields` returned, with keys in these slots; invalid numbers are refused."""
        state, of_keys = self.values.shape, (2, None, self.sums.shape[2])
        values, start, sums = (
            take(about, f"together{name}", np.ndarray, caller, shape).astype(np.float64)
            for name, shape in (("", state), ("_start", state), ("_sums", of_keys))
        )
        n, keys = (take(about, f"together_{name}", np.ndarray, caller, (size,))
                   for name, size in (("n", 2), ("keys", sums.shape[1])))  # fmt: skip
        compared, samples = keys[keys >= 0], sums[0].sum(axis=1)
        with np.errstate(all="ignore"):
            sound = (
                n.dtype == keys.dtype == np.int64, 0 <= n[1] <= n[0] <= 2**53, len(keys) <= self.KEYS,
                keys >= -1, keys < len(slots), len(np.unique(compared)) == len(compared),
                0 <= values[0] <= n[0], values[0] % 1 == 0 == start[0], self.method.valid(np.stack([values, start])),
                samples > 0.5, samples.sum() <= n[0] + 0.5, sums[1] >= 0, sums[1] <= sums[0],
            )  # fmt: skip
        if not all(np.all(x) for x in sound):
            refuse_bytes(caller, "data", "invalid numbers shared by keys")
        self.values, (self.rows, self.keys), self.sums = values, n.tolist(), sums
        self.slots = np.where(keys >= 0, np.append(slots, -1)[keys], -1)
        self.set_start(start)
