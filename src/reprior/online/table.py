"""Many keyed streams of one method in one array."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from functools import partial, partialmethod
from itertools import repeat
from typing import Any, NoReturn

import numpy as np

from reprior._check import check_flag, check_int, check_level, fail, missing
from reprior._kernels.reference import DONE
from reprior._labels import check_label, check_learned, is_missing, same_rows
from reprior._types import Acts, Interval, Labels, Matrix, Vector
from reprior.estimates import show
from reprior.online.method import StreamState, refuse, require_done
from reprior.online.registry import labels_in, method_fields, method_from_fields, online_method, options_of
from reprior.online.shared_start import SharedStart, can_share_start

from reprior.online.stream import (  # isort: skip
    LOCKS, Stream, aligned_zeros, beta_interval, calibrated, calibrated_row, check_calibrator, checked, corrected,
)  # fmt: skip
from reprior.rows.blocks import ArrayBlocks, TopKBlocks, numbered
from reprior.rows.calibrated import Calibrator
from reprior.rows.grouped import as_python
from reprior.state import Key, Saved, decode, encode, take
from reprior.state import refuse as refuse_bytes

Evict = Callable[[Hashable, Stream], object]


def check_storable(keys: Iterable[Hashable], caller: str) -> None:
    """Refuse keys that bytes cannot hold."""
    if odd := [key for key in keys if type(key) not in (str, int)]:
        fail(caller, "keys", "be strings or whole numbers", repr(odd[0])[:60], remedy="Use `str(key)` as the key")


def are_storable(keys: list[Any]) -> bool:
    """Return whether keys that were read from bytes can have been written: strings or whole numbers, each once."""
    return all(type(key) in (str, int) for key in keys) and len(set(keys)) == len(keys)


def check_count(n_keys: int, n_rows: int, caller: str) -> None:
    """Refuse a number of keys that is not the number of rows."""
    if n_keys != n_rows:
        fail(caller, "keys", f"name the stream of each of {n_rows} rows", n_keys)


class Snapshot(Stream):
    """A read-only copy of a stream of a table."""

    __slots__ = ()

    def _refuse(self, caller: str, *_: Any) -> NoReturn:
        fail(f"Stream.{caller}", "stream", "be able to learn", "a read-only copy from a table",
             remedy="Call `learn` or `observe` of the table, or take the stream out with `pop`")  # fmt: skip

    learn_one = partialmethod(_refuse, "learn_one")
    learn_many = partialmethod(_refuse, "learn_many")
    learn_calibrated = partialmethod(_refuse, "learn_calibrated")
    observe = partialmethod(_refuse, "observe")


class StreamTable(Saved):
    """Keep one stream per key, for example per customer or camera, all with the same method and source.

    `table[key]` is a read-only copy of one stream; an unknown key raises a KeyError. Threads may share a table.

    Parameters
    ----------
    method, source, calibrator, **options
        As in `Stream`, the same for all keys.
    share : bool, optional
        Whether a new key starts from what the other keys have in common. By default True for "online-ebls", which alone
        can do so.
    max_streams : int, default 100000
        Maximum number of streams.
    on_evict : callable, optional
        Called as `on_evict(key, stream)` when a new key needs room, with the stream that was used longest ago. Without
        it a full table refuses new keys with `InputError`.

    Examples
    --------
    >>> table = StreamTable("online-ebls", [0.5, 0.5])
    >>> table.learn(["a", "b", "a"], [[0.9, 0.1], [0.2, 0.8], [0.7, 0.3]])
    >>> len(table), table["a"].n
    (2, 2)
    """

    KIND = "stream-table"

    def __init__(
        self, method: str, source: Any, /, *, calibrator: Calibrator | None = None, share: bool | None = None,
        max_streams: int = 100_000, on_evict: Evict | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.method = online_method(method, source, options, "StreamTable")
        self.source = self.method.source
        if share is not None and check_flag(share, "StreamTable", "share") and not can_share_start(self.method):
            fail("StreamTable", "share", f"be left out or False for {self.method.name}", "True",
                 remedy="Only streams of online-ebls can start from what others have in common")  # fmt: skip
        self._shared_start = SharedStart(self.method) if can_share_start(self.method) and share is not False else None
        self.calibrator = check_calibrator(calibrator, self.method.source, "StreamTable")
        self.max_streams = check_int(max_streams, "StreamTable", "max_streams")
        self.on_evict = on_evict
        self._lock = LOCKS.new()
        self._alone = self.method.init()
        # of each slot: its state, when it was last used, and its number of labels
        self._table = np.empty((0, len(self._alone)))
        self._used, self._labels = np.zeros((2, 0), np.int64)
        self._slots: dict[Hashable, int] = {}
        self._free: list[int] = []
        self._clock = 0
        self._grow(0)

    def _grow(self, rows: int) -> None:
        """Give the table this many slots, and bind the kernels to its new memory."""
        old = self._table
        self._table = aligned_zeros((rows, len(self._alone)))
        self._used, self._labels = np.resize(self._used, rows), np.resize(self._labels, rows)
        self._table[: len(old)] = old
        self._free.extend(range(rows - 1, len(old) - 1, -1))
        self._kernel, self._top = self.method.bind(self._table), self.method.bind_top(self._table)

    @property
    def _fresh(self) -> Vector:
        """The state of a new key."""
        return self._alone if self._shared_start is None else self._shared_start.start

    @property
    def share(self) -> bool:
        """Whether a new key starts from what the other keys have in common."""
        return self._shared_start is not None

    @property
    def common(self) -> Vector:
        """The class prior (K,) that a new key starts from."""
        with self._lock:
            return self.method.prior(self._fresh)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names in the order of the columns; None if they are not known."""
        return self.source.classes

    def __len__(self) -> int:
        return len(self._slots)

    def __contains__(self, key: Hashable) -> bool:
        return as_python(key) in self._slots

    def __iter__(self) -> Iterator[Hashable]:
        with self._lock:
            return iter(tuple(self._slots))

    def __getitem__(self, key: Hashable) -> Stream:
        """Return the stream of that key as it is now, to look at; a key that has none is a KeyError."""
        with self._lock:
            return Snapshot.of(self._state(key, "StreamTable"))

    def _state(self, key: Hashable, caller: str) -> StreamState:
        """Return the state of that key, not to be changed."""
        try:
            slot = self._slots[as_python(key)]
        except TypeError:
            fail(caller, "key", "be hashable", repr(key)[:60])
        except KeyError:
            raise missing("stream", key, self._slots) from None
        return StreamState(self.method, self._table[slot], self.calibrator, int(self._labels[slot]))

    def __setitem__(self, key: Hashable, stream: Stream) -> None:
        """Put a stream of the same method and source under a key, as after reading back one that was evicted."""
        theirs, ours = (encode("method", method_fields(x.method, x.calibrator)) for x in (stream, self))
        if theirs != ours:
            other = f"{stream.method!r}, or another source or calibrator"
            fail("StreamTable", "stream", f"be of {self.method!r}, this source and this calibrator", other)
        with self._lock:
            (slot,) = self._claim(*self._find([key], "StreamTable"), "StreamTable")
            state = stream.state
            self._table[slot], self._labels[slot] = state.values, state.labels

    def pop(self, key: Hashable) -> Stream:
        """Remove a key and return its stream, which can learn. An unknown key raises a KeyError."""
        with self._lock:
            stream = Stream.of(self._state(key, "StreamTable.pop"))
            self._remove(as_python(key))
            return stream

    def _remove(self, key: Hashable) -> None:
        slot = self._slots.pop(key)
        self._free.append(slot)
        if self._shared_start is not None:
            self._shared_start.forget(slot)

    def _find(self, keys: Any, caller: str) -> tuple[list[Hashable], Labels]:
        """Return the keys as a list of Python values, and their slots, -1 for new keys."""
        if isinstance(keys, (str, bytes)):
            fail(caller, "keys", "be a list or vector of hashable keys, one per row", repr(keys)[:60])
        try:
            plainly = isinstance(keys, np.ndarray) and keys.dtype.kind != "M"  # whose items may be numbers
            names: list[Hashable] = keys.tolist() if plainly else list(keys)
            slots = np.fromiter(map(self._slots.get, names, repeat(-1)), np.int64, len(names))
            if (slots < 0).any():
                names = list(map(as_python, names))
                slots = np.fromiter(map(self._slots.get, names, repeat(-1)), np.int64, len(names))
        except TypeError:
            fail(caller, "keys", "be a list or vector of hashable keys, one per row", repr(keys)[:60])
        return names, slots

    def check_room(self, keys: Any, n_rows: int, caller: str) -> list[Hashable]:
        """Return the keys of `n_rows` rows as Python values; refuse new ones that a full table cannot take."""
        with self._lock:
            names, slots = self._find(keys, caller)
            check_count(len(names), n_rows, caller)
            names = list(map(as_python, names))
            if self.on_evict is None:
                new = {name for name, slot in zip(names, slots.tolist(), strict=True) if slot < 0}
                self._make_room(len(new), slots[slots >= 0], caller)
            return names

    def _make_room(self, count: int, keep: Labels, caller: str) -> None:
        """Have `count` free slots, by growing, then by evicting the least recently used ones that are not in `keep`."""
        while len(self._free) < count and len(self._table) < self.max_streams:
            self._grow(min(max(64, 2 * len(self._table)), self.max_streams))
        over = count - len(self._free)
        if over <= 0:
            return
        evictable = np.setdiff1d(np.fromiter(self._slots.values(), np.int64), keep)
        if self.on_evict is None or len(evictable) < over:
            staying = len(self._slots) - (0 if self.on_evict is None else len(evictable))
            fail(caller, "keys", f"need at most {self.max_streams} streams at once", staying + count,
                 remedy="Raise `max_streams`, or pass `on_evict` to receive the streams that were used longest ago"
                 if self.on_evict is None else "Pass fewer keys at once")  # fmt: skip
        leaving = set(evictable[np.argsort(self._used[evictable])[:over]].tolist())
        for key in [key for key, slot in self._slots.items() if slot in leaving]:
            self.on_evict(key, Stream.of(self._state(key, caller)))  # if it raises, this one and those behind it stay
            self._remove(key)

    def _claim(self, names: list[Hashable], slots: Labels, caller: str) -> Labels:
        """Return the slots of keys, given what `_find` returned; new keys get a slot with the start state."""
        if (slots < 0).any():
            new = dict.fromkeys(key for key, slot in zip(names, slots.tolist(), strict=True) if slot < 0)
            for key in new:
                if is_missing(key):
                    fail(caller, "keys", "name a stream for every row", repr(key)[:60],
                         remedy="Drop those rows, or give them a key of their own")  # fmt: skip
            self._make_room(len(new), slots[slots >= 0], caller)
            for key in new:
                self._slots[key] = slot = self._free.pop()
                self._table[slot], self._labels[slot] = self._fresh, 0
            slots = np.fromiter(map(self._slots.__getitem__, names), np.int64, len(names))
        self._use(slots)
        return slots

    def _use(self, slots: Labels) -> None:
        """Note that slots were used just now, in this order."""
        self._used[slots] = np.arange(self._clock, self._clock + len(slots))
        self._clock += len(slots)

    def learn(self, keys: Any, proba: Any) -> None:
        """Learn from probabilities (n, K), or a top-k pair (indices, values), each row in the stream of its key, in
        order.

        Keys (n,) may be any hashable values. `save` needs strings or whole numbers.
        """
        same_rows(proba, keys, "StreamTable.learn", "keys")
        self._learn(keys, proba, self.calibrator, "StreamTable.learn")

    def learn_calibrated(self, keys: Any, rows: Any) -> None:
        """Learn from probabilities (n, K) that `calibrated` returned, so that they are not calibrated twice."""
        self._learn(keys, rows, None, "StreamTable.learn_calibrated")

    def _learn(self, keys: Any, proba: Any, calibrator: Calibrator | None, caller: str) -> None:
        LOCKS.let_forks_pass()
        with self._lock:
            names, slots = self._find(keys, caller)
            blocks = self._checked(proba, len(slots), calibrator, caller)
            new, slots = slots < 0, self._claim(names, slots, caller)
            if isinstance(blocks, TopKBlocks) and self._top(slots, blocks.indices, blocks.values, 2) == DONE:
                return
            for first, block in numbered(blocks):
                rows = np.ascontiguousarray(block if calibrator is None else calibrator.of_block(block))
                here = slice(first, first + len(rows))
                self._learn_block(slots[here], new[here], rows)

    def _checked(self, proba: Any, n_keys: int, calibrator: Calibrator | None, caller: str) -> ArrayBlocks | TopKBlocks:
        """Return rows as checked blocks, as many as there are keys."""
        blocks = checked(proba, self.source, caller, calibrator)
        check_count(n_keys, len(blocks.values if isinstance(blocks, TopKBlocks) else blocks.array), caller)
        return blocks

    def _learn_block(self, slots: Labels, new: Any, rows: Matrix) -> None:
        """Learn rows (n, K) into the slots (n,) of their keys; `new` (n,) marks rows whose key had no slot before."""
        shared, at = self._shared_start, 0
        while at < len(rows):
            step = len(rows) - at if shared is None else min(len(rows) - at, shared.rows_until_update())
            part, own = rows[at : at + step], slots[at : at + step]
            if shared is not None:
                before = self._table[own, 0]
                # the start may have been updated since the whole block found its slots
                self._table[np.unique(own[(before == 0.0) & new[at : at + step]])] = shared.start
                shared.learn(part, own, before)
            if self._kernel is not refuse:
                require_done(self._kernel(own, part, 2))
            else:
                for row, slot in zip(part, own, strict=True):
                    self.method.learn(self._table[slot], row[None])
            at += step

    def calibrated(self, proba: Any, *, caller: str = "StreamTable.calibrated") -> Matrix:
        """Return probabilities (n, K) as the method uses them: calibrated, if the table has a calibrator."""
        return calibrated(proba, self.source, self.calibrator, caller)

    def correct(self, keys: Any, proba: Any) -> Matrix:
        """Return corrected probabilities (n, K), each row by the stream of its key, and learn nothing.

        A new key is corrected as a new stream would. A DataFrame keeps its columns. For a top-k pair the probabilities
        of the listed classes are returned.
        """
        caller = "StreamTable.correct"
        same_rows(proba, keys, caller, "keys")
        with self._lock:
            _, slots = self._find(keys, caller)
            blocks = self._checked(proba, len(slots), self.calibrator, caller)
            used, which = np.unique(slots, return_inverse=True)
            states = [self._fresh if slot < 0 else self._table[slot] for slot in used]
            weights = np.stack([self.method.weights(state) for state in states])[which]
        return corrected(blocks, weights, self.source, self.calibrator, proba)

    def prior(self, key: Hashable) -> Vector:
        """Return `table[key].prior` (K,), without copying the stream."""
        with self._lock:
            return self._state(key, "StreamTable.prior").prior

    def acts(self, key: Hashable) -> Acts:
        """Return `table[key].acts`: how much of the correction is applied to samples of this key, and why."""
        with self._lock:
            return self.method.acts(self._state(key, "StreamTable.acts").values)

    def interval(self, key: Hashable, level: float = 0.95) -> Interval:
        """Return `table[key].interval(level)`."""
        inside = check_level(level, "StreamTable.interval")
        with self._lock:
            return beta_interval(self.method, self._state(key, "StreamTable.interval").values, inside)

    def observe(self, key: Hashable, p: Any, y: Any) -> None:
        """Learn the late label `y` of a sample `p` (K,) that the key's stream has learned before."""
        caller, source = "StreamTable.observe", self.source
        row = calibrated_row(p, source, caller, self.calibrator)
        label = check_label(y, caller, len(source.prior), source.classes)
        with self._lock:
            _, slots = self._find([key], caller)
            (slot,) = slots.tolist()
            labels, n = (self._labels[slot] + 1, self._table[slot, 0]) if slot >= 0 else (1, 0)
            check_learned(labels, n, caller, f" of {key!r}")
            self.method.observe(self._table[slot], row, label)
            self._labels[slot] = labels
            self._use(slots)

    def to_frame(self, level: float | None = 0.95) -> Any:
        """Return a pandas DataFrame with what `Stream.to_frame(level)` returns for each key."""
        frames = {key: self[key].to_frame(level) for key in self}
        if not frames:
            fail("StreamTable.to_frame", "table", "have at least one stream", "none")
        return show.pandas().concat(frames, names=["key"])

    def fields(self, caller: str) -> dict[str, Any]:
        """Return what bytes hold of the table. Keys must be strings or whole numbers."""
        with self._lock:
            check_storable(self._slots, caller)
            order = sorted(self._slots, key=lambda name: self._used[self._slots[name]])
            slots = [self._slots[name] for name in order]
            values, labels = self._table[slots], self._labels[slots]
            common = {} if self._shared_start is None else self._shared_start.to_fields(slots)
        about = {**method_fields(self.method, self.calibrator), "max_streams": self.max_streams, "keys": order}
        return {**about, **common, "values": values, "labels": labels}

    @classmethod
    def from_bytes(cls, data: Any, key: Key = None, *, on_evict: Evict | None = None) -> StreamTable:
        """Return the table that `to_bytes` wrote, with its order of use. Other bytes raise `InputError`."""
        caller = "StreamTable.from_bytes"
        about = decode(data, "stream-table", caller, key=key)
        method, calibrator = method_from_fields(about, caller, ndim=2)
        keys, values, most = take(about, "keys", list, caller), about["values"], take(about, "max_streams", int, caller)
        if not are_storable(keys) or not len(keys) == len(values) <= most:
            refuse_bytes(caller, "data", f"{len(keys)} keys for {len(values)} streams, of at most {most}")
        table = cls(method.name, method.source, calibrator=calibrator, max_streams=most, on_evict=on_evict,
                    share="together" in about, **options_of(method))  # fmt: skip
        table._grow(len(keys))
        slots = table._claim(*table._find(keys, caller), caller)
        table._table[slots], table._labels[slots] = values, labels_in(about, caller)
        if table._shared_start is not None:
            table._shared_start.restore(about, caller, slots)
        return table

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self).from_bytes, on_evict=self.on_evict), (self.to_bytes(),)

    def __repr__(self) -> str:
        new = ", a new key starts from what they have in common" if self.share else ""
        with self._lock:
            learned = int(self._table[list(self._slots.values()), 0].sum())
        about = f"{len(self.source.prior)} classes, {len(self):,} streams, n={learned}"
        return f"StreamTable({self.method.name!r}, {about}{new})"
