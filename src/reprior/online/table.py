"""Many keyed streams of one method in one array."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

import numpy as np

from reprior._check import check_int, check_pair, check_proba, fail
from reprior._kernels import NATIVE
from reprior._kernels.reference import DONE, REFUSED
from reprior._types import Labels, Matrix, Source, Vector
from reprior.online.method import StreamState, learned, refuse
from reprior.online.stream import Stream, aligned, checked, contiguous, described, is_top_k, online_method, recovered
from reprior.rows.blocks import TopKBlocks
from reprior.state import decode, encode


def plain(key: Any) -> Hashable:
    """Return a NumPy scalar as Python's, which is what keys are kept as."""
    return key.item() if isinstance(key, np.generic) else key  # type: ignore[no-any-return]


class StreamTable:
    """Many streams of one method and source, found by key, in one array of at most `max_streams` states.

    When a new key finds the table full, the streams that were used longest ago make room: each is handed to
    `on_evict(key, stream)` first. Without `on_evict` a new key is then refused: nothing is ever dropped in silence.

    >>> table = StreamTable("online-ebls", [0.5, 0.5])
    >>> table.learn(["a", "b", "a"], [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    >>> len(table), table["a"].n
    (2, 2)
    """

    def __init__(
        self, method: str, source: Any, /, *, max_streams: int = 100_000,
        on_evict: Callable[[Hashable, Stream], object] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.method = online_method(method, source, options, "StreamTable")
        self.max_streams = check_int(max_streams, "StreamTable", "max_streams")
        self.on_evict = on_evict
        self._fresh = self.method.init()
        self._table, self._used = np.empty((0, len(self._fresh))), np.zeros(0, np.int64)  # states, and when last used
        self._slots: dict[Hashable, int] = {}
        self._numbered = np.full(0, -1)  # the slots of small whole numbers once more: an array is faster than a dict
        self._free: list[int] = []
        self._clock = 0
        self._grow(min(64, self.max_streams))

    def _grow(self, rows: int) -> None:
        old = self._table
        self._table, self._used = aligned((rows, len(self._fresh))), np.resize(self._used, rows)
        self._table[: len(old)] = old
        self._free.extend(range(rows - 1, len(old) - 1, -1))
        self._kernel, self._top = self.method.bind(self._table), self.method.bind_top(self._table)

    @property
    def source(self) -> Source:
        return self.method.source

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: Hashable) -> bool:
        return plain(key) in self._slots

    def __iter__(self) -> Iterator[Hashable]:
        return iter(tuple(self._slots))

    def __getitem__(self, key: Hashable) -> Stream:
        """Return a copy of the stream of that key; a new one if the key is new."""
        return Stream.of(StreamState(self.method, self._state(key, "StreamTable")))

    def _state(self, key: Hashable, caller: str) -> Vector:
        """Return the state of that key, not to be changed; a fresh one if the key is new."""
        try:
            slot = self._slots.get(plain(key))
        except TypeError:
            fail(caller, "key", "be hashable", repr(key)[:60])
        return self._fresh if slot is None else self._table[slot]

    def __setitem__(self, key: Hashable, stream: Stream) -> None:
        """Put a stream of the same method and source under a key, as after reading back one that was evicted."""
        if encode("method", described(stream.method)) != encode("method", described(self.method)):
            other = f"{stream.method!r}, or another source"
            fail("StreamTable", "stream", f"be of {self.method!r} and this source", other)
        (slot,) = self._claim(*self._find([key], "StreamTable"), "StreamTable")
        self._table[slot] = stream._values

    def pop(self, key: Hashable) -> Stream:
        """Return the stream of that key and forget it here."""
        stream = self[key]
        if key in self:
            self._remove(plain(key))
        return stream

    def _remove(self, key: Hashable) -> None:
        slot, number = self._slots.pop(key), hash(key)
        self._free.append(slot)
        # whatever equals a small whole number, as 1.0 does, has it as its hash
        if 0 <= number < len(self._numbered) and self._numbered[number] == slot:
            self._numbered[number] = -1

    def _add(self, key: Hashable) -> None:
        self._slots[key] = slot = self._free.pop()
        self._table[slot] = self._fresh
        if type(key) is int and 0 <= key < 8 * len(self._table):  # True would index them all
            if key >= len(self._numbered):
                self._numbered = np.append(self._numbered, np.full(8 * len(self._table) - len(self._numbered), -1))
            self._numbered[key] = slot

    def _find(self, keys: Any, caller: str) -> tuple[list[Hashable], Labels]:
        """Return the keys as a list (empty if they were numbers found at once), and their slots, -1 for new keys."""
        numbers = isinstance(keys, np.ndarray) and keys.dtype.kind in "iu" and keys.ndim == 1 and len(keys) > 0
        if numbers and keys.min() >= 0 and keys.max() < len(self._numbered):
            slots = self._numbered[keys]
            if slots.min() >= 0:
                return [], slots
        try:
            names: list[Hashable] = keys.tolist() if isinstance(keys, np.ndarray) else list(keys)
            slots = np.fromiter(map(self._slots.get, names, repeat(-1)), np.int64, len(names))
            if (slots < 0).any():
                names = list(map(plain, names))
                slots = np.fromiter(map(self._slots.get, names, repeat(-1)), np.int64, len(names))
        except TypeError:
            fail(caller, "keys", "be a list or vector of hashable keys, one a row", repr(keys)[:60])
        return names, slots

    def _make_room(self, count: int, keep: Labels, caller: str) -> None:
        """Have `count` free rows, by growing, then by evicting the least recently used of those not in `keep`."""
        while len(self._free) < count and len(self._table) < self.max_streams:
            self._grow(min(2 * len(self._table), self.max_streams))
        over = count - len(self._free)
        if over <= 0:
            return
        evictable = np.setdiff1d(np.fromiter(self._slots.values(), np.int64), keep)
        if self.on_evict is None or len(evictable) < over:
            staying = len(self._slots) - (0 if self.on_evict is None else len(evictable))
            fail(caller, "keys", f"need at most {self.max_streams} streams at once", staying + count,
                 remedy="Raise `max_streams`, or pass `on_evict` to take over the streams used longest ago"
                 if self.on_evict is None else "Pass fewer keys at once")  # fmt: skip
        leaving = set(evictable[np.argsort(self._used[evictable])[:over]].tolist())
        for key in [key for key, slot in self._slots.items() if slot in leaving]:
            self.on_evict(key, self[key])  # if it raises, this stream and those behind it are still here
            self._remove(key)

    def _claim(self, names: list[Hashable], slots: Labels, caller: str) -> Labels:
        """Return the slots of keys as `_find` found them, with rows made for new ones."""
        if (slots < 0).any():
            new = dict.fromkeys(key for key, slot in zip(names, slots.tolist(), strict=True) if slot < 0)
            self._make_room(len(new), slots[slots >= 0], caller)
            for key in new:
                self._add(key)
            slots = np.fromiter(map(self._slots.__getitem__, names), np.int64, len(names))
        self._use(slots)
        return slots

    def _use(self, slots: Labels) -> None:
        self._used[slots] = np.arange(self._clock, self._clock + len(slots))
        self._clock += len(slots)

    def learn(self, keys: Any, proba: Any) -> None:
        """Learn rows (n, K), or top-k rows (indices, values), each into the stream of its key; in order."""
        caller, top = "StreamTable.learn", is_top_k(proba)
        names, slots = self._find(keys, caller)
        if len(slots) and slots.min() >= 0:  # nothing to make room for: the kernel checks the rows itself
            code = self._kernel(slots, proba, 2) if not top else self._top(slots, *proba, 2) if NATIVE else REFUSED
            if code == DONE:
                self._use(slots)
                return
        blocks = checked(proba, self.source, caller)
        n = len(blocks.values) if isinstance(blocks, TopKBlocks) else len(blocks.array)
        if len(slots) != n:
            fail(caller, "keys", f"name the stream of each of {n} rows", len(slots))
        slots = self._claim(names, slots, caller)
        if isinstance(blocks, TopKBlocks) and self._top is not refuse:
            learned(self._top(slots, *contiguous(blocks), 2))
            return
        first = 0
        for block in blocks:
            part = slots[first : first + len(block)]
            first += len(block)
            if self._kernel is not refuse:
                learned(self._kernel(part, np.ascontiguousarray(block), 2))
            else:
                for row, slot in zip(block, part, strict=True):
                    self.method.learn(self._table[slot], row[None])

    def correct(self, keys: Any, proba: Any) -> Matrix:
        """Return rows (n, K), each under the prior of its key's stream (a new stream's, if the key is new)."""
        _, slots = self._find(keys, "StreamTable.correct")
        rows = check_proba(proba, "StreamTable.correct", "proba", len(self.source.prior))
        if len(slots) != len(rows):
            fail("StreamTable.correct", "keys", f"name the stream of each of {len(rows)} rows", len(slots))
        used, which = np.unique(slots, return_inverse=True)
        priors = [self.method.prior(self._fresh if slot < 0 else self._table[slot]) for slot in used]
        joint = np.stack(priors)[which] / self.source.prior * rows
        return np.asarray(joint / joint.sum(axis=1, keepdims=True), rows.dtype)

    def prior(self, key: Hashable) -> Vector:
        """Return the estimated prior (K,) of a key's stream."""
        return self.method.prior(self._state(key, "StreamTable.prior"))

    def observe(self, key: Hashable, p: Any, y: int) -> None:
        """Take in the late label `y` of a sample `p` (K,) of a key's stream."""
        row, label = check_pair(p, y, "StreamTable.observe", len(self.source.prior))
        (slot,) = self._claim(*self._find([key], "StreamTable.observe"), "StreamTable.observe")
        self.method.observe(self._table[slot], row, label)

    def to_bytes(self) -> bytes:
        """Return all streams as bytes; keys must be strings or whole numbers."""
        for key in self._slots:
            if not isinstance(key, (str, int)):
                fail("StreamTable.to_bytes", "keys", "be strings or whole numbers", repr(key))
        order = sorted(self._slots, key=lambda key: self._used[self._slots[key]])
        values = self._table[[self._slots[key] for key in order]]
        about = {**described(self.method), "max_streams": self.max_streams, "keys": order}
        return encode("stream-table", {**about, "values": values})

    @classmethod
    def from_bytes(cls, data: Any, *, on_evict: Callable[[Hashable, Stream], object] | None = None) -> StreamTable:
        """Return the table that `to_bytes` wrote; the order of use is kept."""
        caller = "StreamTable.from_bytes"
        about = decode(data, "stream-table", caller)
        method = recovered(about, caller)
        table = cls(method.name, method.source, max_streams=about["max_streams"], on_evict=on_evict, **about["options"])
        slots = table._claim(*table._find(about["keys"], caller), caller)  # this may replace the array by a larger one
        table._table[slots] = about["values"]
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self).from_bytes, on_evict=self.on_evict), (self.to_bytes(),)
