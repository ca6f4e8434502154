"""DataFrames: which of their columns hold the probabilities, and the same DataFrame with corrected ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from reprior._check import fail, order_of, row_fault
from reprior._types import Matrix
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.groups import Groups
from reprior.estimates.verdict import report_rejected
from reprior.io.table import Choice
from reprior.rows.calibrated import Calibrator, corrected_rows


def quoted(name: str) -> str:
    """Return the name of a column as Spark reads it whatever is in it: a dot would name a field of a column."""
    return "`" + name.replace("`", "``") + "`"


def with_lists(frame: Any, choice: Choice) -> Any:
    """Return a DataFrame whose vectors, as Spark ML's `probability`, are lists."""
    vectors = [field.name for field in frame.schema if type(field.dataType).__name__ == "VectorUDT"]
    if not vectors:
        return frame
    from pyspark.ml.functions import vector_to_array

    wanted = choice.columns if choice.columns in vectors else "probability" if "probability" in vectors else vectors[0]
    return frame.withColumn(wanted, vector_to_array(frame[wanted]))


def chosen(frame: Any, choice: Choice) -> list[str]:
    """Return the names of the columns that hold the probabilities: one of lists, or one a class."""
    from pyspark.sql.pandas.types import to_arrow_schema

    from reprior.io.arrow import chosen_columns

    return list(chosen_columns("the DataFrame", to_arrow_schema(frame.schema), choice).names)


def correct(estimate: PriorEstimate | Groups, frame: Any, *, columns: str | None = None, by: str | None = None) -> Any:
    """Return a DataFrame with corrected probabilities, and the same partitions, columns, types and order.

    It is computed when it is used. A row that is not a probability vector then ends the job; the error names its
    partition and row.

    Parameters
    ----------
    estimate : PriorEstimate or Groups
        What `pipe.estimate` or `groups` returned; its calibrator is applied first.
    frame : DataFrame
        With a list column, a vector column of Spark ML, or one column per class, matched by name.
    columns : str, optional
        Column or columns with the probabilities, as in `SparkBlocks`.
    by : str, optional
        Column with the group of each row. Each row is corrected with the prior of its group.
    """
    from pyspark.sql.types import StructField, StructType

    if isinstance(estimate, Groups) != (by is not None):
        fail("correct", "by", "name the column of the groups, if groups were estimated", by)
    if isinstance(estimate, PriorEstimate):
        report_rejected(estimate)
        weights, slots = np.asarray(estimate.weights)[None], None
    else:
        if estimate.whole is not None:
            report_rejected(estimate.whole)
        weights, slots = estimate.weights, {key: g for g, key in enumerate(estimate.keys)}
    classes = estimate.source.classes
    choice = Choice(columns=columns, caller="correct", classes=classes or (), aside={by: "--by"} if by else {})
    frame = with_lists(frame, choice)
    names = chosen(frame, choice)
    order = None if len(names) == 1 or classes is None else order_of(names, classes, "correct", "frame")
    columns_of = {name: f"c{i}" for i, name in enumerate(frame.columns)}  # names that mapInArrow takes, without dots
    plain = StructType([StructField(columns_of[f.name], f.dataType, f.nullable, f.metadata) for f in frame.schema])
    work = Correction(weights, slots, by, columns_of.get(by or ""), estimate.calibrator,
                      [columns_of[name] for name in names], order)  # fmt: skip
    return frame.toDF(*plain.names).mapInArrow(work, plain).toDF(*frame.columns)


@dataclass(frozen=True, slots=True)
class Correction:
    """What a worker does to the batches of a partition: `weights` (1, K), or (G, K) with the number of each group."""

    weights: Matrix
    slots: Mapping[Any, int] | None
    by: str | None
    keys: str | None  # what `by` is called here
    calibrator: Calibrator | None
    names: list[str]
    order: list[int] | None

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        from reprior.io.arrow import rows_from, with_rows

        context, at, k = TaskContext.get(), 0, self.weights.shape[1]
        name = f"partition {context.partitionId() if context else 0}"
        for batch in batches:
            if batch.num_rows:
                rows = rows_from(batch, self.names, k, ("correct", name, at))
                weights = self.weights if self.slots is None else self.weights[self.codes(batch, name, at)]
                yield with_rows(batch, self.names, self.fixed(rows, weights, name, at), batch.schema)
                at += batch.num_rows

    def codes(self, batch: Any, name: str, at: int) -> list[int]:
        """Return the number of the group of each row."""
        assert self.slots is not None
        keys = batch.column(self.keys).to_pylist()
        for row, key in enumerate(keys):
            if key not in self.slots:
                fail("correct", self.by or "", "name a group that was estimated", repr(key),
                     place=f"row {at + row} of {name}")  # fmt: skip
        return [self.slots[key] for key in keys]

    def fixed(self, rows: Matrix, weights: Matrix, name: str, at: int) -> Matrix:
        """Return rows (n, K), the first of which is row `at` of its partition, calibrated and corrected."""
        right = np.ascontiguousarray(rows if self.order is None else rows[:, self.order])
        logits = self.calibrator is not None and self.calibrator.of_logits
        if not logits and (fault := row_fault(right)):
            fail("correct", name, fault.rule, fault.value, place=f"row {at + fault.row} of this partition",
                 remedy=fault.remedy)  # fmt: skip
        done = corrected_rows(right, self.calibrator, weights[0] if len(weights) == 1 else weights, at)
        return done if self.order is None else np.ascontiguousarray(done[:, np.argsort(self.order)])
