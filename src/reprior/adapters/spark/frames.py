"""DataFrames: which of their columns hold the probabilities, and the same DataFrame with corrected ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from reprior._check import fail, order_of
from reprior._types import Matrix, PriorEstimate, Vector
from reprior.io.files import Choice
from reprior.rows.calibrated import Calibrator
from reprior.rows.correction import refuse_rejected, reweight


def numbers_of(frame: Any, choice: Choice) -> Any:
    """Return the columns of a DataFrame that hold the probabilities; vectors of Spark ML become lists."""
    frame = listed(frame, choice)
    return frame.select(*(f"`{name}`" for name in chosen(frame, choice)))


def listed(frame: Any, choice: Choice) -> Any:
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

    from reprior.io.arrow import choose

    plain = frame.select(*(f"`{f.name}`" for f in frame.schema if type(f.dataType).__name__ != "VectorUDT"))
    return choose("the DataFrame", to_arrow_schema(plain.schema), choice, None)[0]


def correct(
    estimate: PriorEstimate, frame: Any, *, columns: str | None = None, anyway: bool = False,
) -> Any:  # fmt: skip
    """Return a DataFrame with corrected probabilities: the same partitions, columns, types and order of rows.

    Nothing is computed before the DataFrame is used. A row that is no probability vector then ends the job, and the
    error names its partition and row.

    Parameters
    ----------
    estimate : PriorEstimate
        As `pipe.estimate` returned it; raw outputs are calibrated first.
    frame : DataFrame
        Rows with a list column, a vector column of Spark ML, or one column a class, matched by name.
    columns : str, optional
        What holds the probabilities, as for `SparkBlocks`.
    anyway : bool
        Whether to correct even if the rows differ from the held-out rows by more than their class mix.
    """
    refuse_rejected(estimate, anyway=anyway)
    choice = Choice(columns=columns, caller="correct", classes=estimate.classes or ())
    frame = listed(frame, choice)
    names = chosen(frame, choice)
    one = len(names) == 1
    order = None if one or estimate.classes is None else order_of(names, estimate.classes, "correct", "frame")
    fix = Correction(np.asarray(estimate.weights), estimate.calibrator, names, order)
    return frame.mapInArrow(fix, frame.schema)


class Correction:
    """What a worker does to the batches of a partition."""

    def __init__(
        self, weights: Vector, calibrator: Calibrator | None, names: list[str], order: list[int] | None
    ) -> None:
        self.weights, self.calibrator, self.names, self.order = weights, calibrator, names, order

    def __call__(self, batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        from reprior.io.arrow import list_rows, replaced, stacked

        context, at, k = TaskContext.get(), 0, len(self.weights)
        name = f"partition {context.partitionId() if context else 0}"
        for batch in batches:
            if batch.num_rows:
                picked, place = batch.select(self.names), ("correct", name, at)
                one = len(self.names) == 1
                rows = list_rows(picked.column(0), k, place) if one else stacked(picked, k, place)
                yield replaced(batch, self.names, self.fixed(rows, name, at), batch.schema)
                at += batch.num_rows

    def fixed(self, rows: Matrix, name: str, at: int) -> Matrix:
        """Return rows (n, K), the first of which is row `at` of its partition, calibrated and corrected."""
        order = slice(None) if self.order is None else self.order
        right = np.ascontiguousarray(rows[:, order])
        seen = checked(right, self.calibrator, name, at)
        done = reweight(seen, self.weights, at).astype(rows.dtype, copy=False)
        return done if self.order is None else np.ascontiguousarray(done[:, np.argsort(self.order)])


def checked(rows: Matrix, calibrator: Calibrator | None, name: str, at: int) -> Matrix:
    """Return checked rows, calibrated."""
    from reprior._check import row_fault

    if calibrator is not None and calibrator.of_logits:
        return calibrator(rows)
    if fault := row_fault(rows):
        fail("correct", name, fault[1], fault[2], place=f"row {at + fault[0]} of this partition", remedy=fault[4])
    return rows if calibrator is None else calibrator(rows)
