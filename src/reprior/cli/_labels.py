"""Labels that come with a record of a stream, or later and by its name."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any, NamedTuple

import numpy as np

from reprior._check import fail
from reprior._labels import check_some_labels
from reprior._types import Matrix, Source
from reprior.io.labels import FOR_FILES, as_labels
from reprior.io.records import Form
from reprior.state import refuse, take


class Label(NamedTuple):
    """The label `y` of a row that came, when `at` rows of the batch had been learned: of the row before, or by name."""

    at: int
    y: int
    name: str | None


class Batch(NamedTuple):
    """Records that hold rows, the names they go by (None: not to be waited for), and labels in the order they came.

    `rows` (n, K) are their probabilities, `calibrated` the same after calibration, and `times` when samples were made.
    """

    records: list[Any]
    names: list[str | None]
    labels: list[Label]
    rows: Any = None
    calibrated: Any = None
    times: list[tuple[float, bool]] = []  # noqa: RUF012  # never changed


class LateLabels:
    """Where records keep labels and names, and the last rows that still wait for a label."""

    def __init__(self, label: str | None, name: str | None, remember: int) -> None:
        self.label, self.name, self.remember = label, name, remember
        self.waiting: OrderedDict[str, Any] = OrderedDict()
        self.columns: dict[Any, int] = {}
        self.taken = self.lost = 0

    def split(self, records: list[Any], form: Form, source: Source, first: int) -> Batch:
        """Return records as rows and labels; a label that is no class, or of no row, is refused."""
        if self.label is None:
            return Batch(records, [], [])
        batch = Batch([], [], [])
        for number, (record, fields) in enumerate(zip(records, form.fields(records, first), strict=True), first):
            y, late = self.column(fields.get(self.label), source, number), form.bare(fields)
            name = fields.get(self.name or "")
            called = None if name in (None, "") else str(name)
            if late and y >= 0:
                if called is None:
                    how = f"`--id {self.name}` and `--label {self.label}` name the two columns"
                    fail("stream", "input", "name the row that a late label belongs to", repr(fields)[:80],
                         place=f"row {number}",
                         remedy=how if self.name else "Name the column of the sample ids with `--id`")  # fmt: skip
                batch.labels.append(Label(len(batch.records), y, called))
            elif not late or called is None or self.label not in fields or form.opening:
                batch.records.append(record)
                batch.names.append(called if y < 0 else None)
                if y >= 0:
                    batch.labels.append(Label(len(batch.records), y, None))
            # else the label is still unknown; a CSV line like this is a row without its numbers
        return batch

    def column(self, value: Any, source: Source, number: int) -> int:
        """Return the column that the label of a row means, −1 if it is none; the map is asked once for each value."""
        key = type(value), str(value)
        if key not in self.columns:
            label = as_labels([value], source.classes)
            (self.columns[key],) = check_some_labels(
                label, "stream", 1, len(source.prior), source.classes, "--label", place=lambda _: f"row {number}",
                remedy=FOR_FILES,
            )  # fmt: skip
        return self.columns[key]

    def keep(self, names: list[str | None], rows: Matrix) -> None:
        """Remember rows by their names; the oldest are forgotten."""
        for name, row in zip(names, rows, strict=True) if self.name and names else ():
            if name is not None:
                self.waiting.pop(name, None)
                self.waiting[name] = row.copy()
        while len(self.waiting) > self.remember:
            self.waiting.popitem(last=False)

    def find(self, label: Label, rows: Matrix) -> Any:
        """Return the row that a label is of, and count it; None if it is not remembered."""
        row = rows[label.at - 1] if label.name is None else self.waiting.pop(label.name, None)
        self.taken, self.lost = self.taken + (row is not None), self.lost + (row is None)
        return row

    def to_fields(self) -> dict[str, Any]:
        """Return the samples that wait for labels, and the counts of labels, for the state file."""
        rows = np.array(list(self.waiting.values()), np.float64)
        return {"waiting": list(self.waiting), "waiting_rows": rows, "labels": [self.taken, self.lost]}

    def restore(self, fields: dict[str, Any], n_classes: int, caller: str) -> None:
        """Continue from the fields that `to_fields` made."""
        names, counts = take(fields, "waiting", list, caller), take(fields, "labels", list, caller)
        shape = (len(names), n_classes) if names else (0,)
        rows = take(fields, "waiting_rows", np.ndarray, caller, shape)
        numbers = len(counts) == 2 and all(type(count) is int and count >= 0 for count in counts)
        if not numbers or not all(isinstance(name, str) for name in names):
            refuse(caller, "data", "invalid labels")
        self.waiting = OrderedDict(zip(names, rows, strict=True))
        self.taken, self.lost = counts
