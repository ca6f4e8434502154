"""Alarms for many streams at once, one per key of a `StreamTable`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from copy import copy
from dataclasses import asdict
from typing import Any

from reprior._check import missing
from reprior._types import Matrix, Vector
from reprior.online.alarm import Alarm, check_times
from reprior.online.bets import Verdict, state_from_fields
from reprior.online.table import StreamTable, are_storable, check_storable
from reprior.rows.blocks import by_name
from reprior.rows.grouped import as_python
from reprior.state import Saved, refuse, take


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

    KIND = "alarm-table"

    def __init__(self, source: Any, **options: Any) -> None:
        self.model = Alarm(source, **options)  # what a new key starts from
        self._alarms: dict[Hashable, Alarm] = {}

    def __len__(self) -> int:
        return len(self._alarms)

    def __contains__(self, key: Hashable) -> bool:
        return as_python(key) in self._alarms

    def __iter__(self) -> Iterator[Hashable]:
        return iter(tuple(self._alarms))

    def __getitem__(self, key: Hashable) -> Verdict:
        if as_python(key) not in self._alarms:
            raise missing("key", key, self._alarms)
        return self._alarms[as_python(key)].verdict

    def __repr__(self) -> str:
        raised = sum(bool(alarm.verdict) for alarm in self._alarms.values())
        return f"AlarmTable({len(self):,} keys, {raised:,} raised)"

    def reset(self, key: Hashable) -> None:
        """Start the test of a key again, for example after an alarm that you have dealt with."""
        self._alarms.pop(as_python(key), None)

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
        rows = self.model.checked_rows(table.calibrated(raw, caller=caller), caller)
        when = check_times(times, len(rows), caller)
        places: dict[Hashable, list[int]] = {}
        for row, name in enumerate(table.check_room(keys, len(rows), caller)):  # before anything is learned
            places.setdefault(name, []).append(row)
        return {name: self._watch_key(table, name, rows[where], when[where]) for name, where in places.items()}

    def _watch_key(self, table: StreamTable, key: Hashable, rows: Matrix, when: Vector) -> Verdict:
        """Test calibrated rows (n, K) of one key, which came `when` (n,), and let the table learn them."""
        alarm = copy(self._alarms.get(key, self.model))
        verdict = alarm.follow(
            rows, when, lambda: table.prior(key) if key in table else table.common,
            lambda some: table.learn_calibrated([key] * len(some), some),
        )  # fmt: skip
        self._alarms[key] = alarm  # not before the table has learned the rows
        return verdict

    def fields(self, caller: str) -> dict[str, Any]:
        """Return what bytes hold of the alarms. Keys must be strings or whole numbers."""
        check_storable(self._alarms, caller)
        states = {f"{i}_{name}": x for i, alarm in enumerate(self._alarms.values())
                  for name, x in asdict(alarm.state).items()}  # fmt: skip
        return {**self.model.fixed_fields(), "keys": list(self._alarms), **states}

    @classmethod
    def from_fields(cls, stored: dict[str, Any], caller: str) -> AlarmTable:
        """Return the alarms whose `fields` bytes held."""
        table, keys = cls.__new__(cls), take(stored, "keys", list, caller)
        if not are_storable(keys):
            refuse(caller, "data", "keys that are not strings or whole numbers, each once")
        table.model, table._alarms = Alarm.from_fixed_fields(stored, caller), {}
        parts: list[dict[str, Any]] = [{} for _ in keys]
        for name, value in stored.items():
            number, _, field = name.partition("_")
            if number.isdecimal() and int(number) < len(keys):
                parts[int(number)][field] = value
        for key, part in zip(keys, parts, strict=True):
            table._alarms[key] = alarm = copy(table.model)
            alarm.state = state_from_fields(part, alarm.plan, caller)
        return table
