"""Alarms for many streams at once, one a key of a `StreamTable`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from copy import copy
from dataclasses import asdict, dataclass
from typing import Any

from reprior._check import fail, missing
from reprior._types import Matrix, Vector
from reprior.online.alarm import Alarm, check_times
from reprior.online.bets import BettingState, Verdict, start, state_from_fields
from reprior.online.table import StreamTable, are_storable, check_storable
from reprior.rows.blocks import by_name
from reprior.rows.keys import plain
from reprior.state import Key, Saved, decode, encode, refuse, take


@dataclass(frozen=True, slots=True)
class Keyed:
    """One stream of a table, as a `Learner`."""

    table: StreamTable
    key: Hashable

    def calibrated(self, proba: Any, *, caller: str) -> Matrix:
        return self.table.calibrated(proba, caller=caller)

    @property
    def prior(self) -> Vector:
        return self.table.prior(self.key) if self.key in self.table else self.table.common

    def learn_calibrated(self, rows: Any) -> None:
        self.table.learn_calibrated([self.key] * len(rows), rows)


class AlarmTable(Saved):
    """Keep one `Alarm` per key of a `StreamTable`, all with the same reference.

    `alarms[key]` is the verdict of a key; an unknown key raises a KeyError. `alpha` and `run_length` hold per key. With
    G unshifted keys, false alarms are G times as frequent.

    Parameters
    ----------
    source : Source or (K,)
        As for `Alarm`.
    **options
        Options of `Alarm`.

    Examples
    --------
    >>> from reprior.online.table import StreamTable
    >>> table, alarms = StreamTable("online-ebls", [1, 1]), AlarmTable([1, 1], exact=True)
    >>> verdicts = alarms.watch(table, ["a", "b"] * 100, [[0.9, 0.1], [0.5, 0.5]] * 100)
    >>> bool(verdicts["a"]), bool(verdicts["b"])
    (True, False)
    """

    def __init__(self, source: Any, **options: Any) -> None:
        self.model = Alarm(source, **options)
        self._seen: dict[Hashable, BettingState] = {}

    def __len__(self) -> int:
        return len(self._seen)

    def __contains__(self, key: Hashable) -> bool:
        return plain(key) in self._seen

    def __iter__(self) -> Iterator[Hashable]:
        return iter(tuple(self._seen))

    def __getitem__(self, key: Hashable) -> Verdict:
        if plain(key) not in self._seen:
            raise missing("key", key, self._seen)
        return self._of(key).verdict

    def __repr__(self) -> str:
        raised = sum(bool(purse.verdict) for purse in self._seen.values())
        return f"AlarmTable({len(self):,} keys, {raised:,} raised)"

    def _of(self, key: Hashable) -> Alarm:
        alarm = copy(self.model)
        alarm.purse = self._seen.get(plain(key), start(alarm.plan))
        return alarm

    def reset(self, key: Hashable) -> None:
        """Start the test of a key again, for example after an alarm that you have dealt with."""
        self._seen.pop(plain(key), None)

    def watch(self, table: StreamTable, keys: Any, proba: Any, times: Any = None) -> dict[Hashable, Verdict]:
        """Test samples with the prior of their key's stream, let the table learn them, and return the verdict per key.

        A key that a full table has evicted keeps its alarm until `reset`.

        Parameters
        ----------
        table : StreamTable
            Its streams learn the samples.
        keys : (n,)
            Key of each sample.
        proba : (n, K)
            Predicted probabilities as the table takes them: raw, if it has a calibrator.
        times : (n,), optional
            Time of each sample, as numbers that never decrease. Verdicts then report times too.
        """
        caller = "AlarmTable.watch"
        raw = by_name(proba, self.model.source.classes, caller)
        rows = self.model._rows(table.calibrated(raw, caller=caller), caller)
        when = check_times(times, len(rows), caller)
        names, slots = table._find(keys, caller)
        if len(names) != len(rows):
            fail(caller, "keys", f"name the stream of each of {len(rows)} rows", len(names))
        places: dict[Hashable, list[int]] = {}
        for row, name in enumerate(map(plain, names)):
            places.setdefault(name, []).append(row)
        if table.on_evict is None:  # refuse what has no room before anything is learned
            new = {name for name, slot in zip(map(plain, names), slots.tolist(), strict=True) if slot < 0}
            table._make_room(len(new), slots[slots >= 0], caller)
        verdicts = {}
        for name, where in places.items():
            alarm = self._of(name)
            verdicts[name] = alarm.watch_calibrated(Keyed(table, name), rows[where], when[where])
            self._seen[name] = alarm.purse
        return verdicts

    def to_bytes(self, key: Key = None) -> bytes:
        """Return all alarms as bytes for `from_bytes`. Keys must be strings or whole numbers."""
        check_storable(self._seen, "AlarmTable.to_bytes")
        arrays = {f"{i}_{name}": x for i, purse in enumerate(self._seen.values()) for name, x in asdict(purse).items()}
        return encode("alarm-table", {**self.model._fixed(), "keys": list(self._seen), **arrays}, key)

    @classmethod
    def from_bytes(cls, data: Any, key: Key = None) -> AlarmTable:
        """Return the alarms that `to_bytes` wrote. Other bytes raise `InputError`."""
        caller, table = "AlarmTable.from_bytes", cls.__new__(cls)
        stored = decode(data, "alarm-table", caller, key=key)
        table.model = Alarm._from_fields(stored, caller)
        keys = take(stored, "keys", list, caller)
        if not are_storable(keys):
            refuse(caller, "data", "keys that are not strings or whole numbers, each once")
        parts: list[dict[str, Any]] = [{} for _ in keys]
        for name, value in stored.items():
            number, _, field = name.partition("_")
            if number.isdecimal() and int(number) < len(keys):
                parts[int(number)][field] = value
        plan = table.model.plan
        table._seen = {name: state_from_fields(part, plan, caller) for name, part in zip(keys, parts, strict=True)}
        return table
