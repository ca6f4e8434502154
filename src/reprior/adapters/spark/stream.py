"""A keyed stream on Structured Streaming: each key has a stream of its own, whose bytes are Spark's state.

Spark commits state, offsets and output of a micro-batch together, and plans one again that it did not finish. So each
row is learned exactly once, however often the driver dies.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import Any, NoReturn

import numpy as np

from reprior._check import fail, order_of, row_fault
from reprior._types import Matrix, Vector
from reprior.adapters.spark.frames import chosen, quoted, with_lists
from reprior.io.table import Choice
from reprior.online.acting import without_warning
from reprior.online.stream import Stream
from reprior.pipelines.pipeline import Pipeline
from reprior.rows.correction import correct_float64

FOLLOW = "follow"
N, PRIOR, ACTS = "reprior_n", "reprior_prior", "acts_share"
KEY, ORDER, REST = "reprior_key", "reprior_order", "reprior_rest"


def follow(
    pipe: Pipeline, frame: Any, *, key: str, order: str | None = None, columns: str | None = None,
    method: str = "online-ebls", skip_bad: bool = False, **options: Any,
) -> Any:  # fmt: skip
    """Return a streaming DataFrame with corrected rows, each with the prior that its key had before it.

    It has the columns of `frame`, and `reprior_n`, the number of samples learned for the key so far. The last row of
    each key in a micro-batch has the key's estimated prior in `reprior_prior`, and in `acts_share` the share of the
    correction that is applied to its next samples; the others have null.

    Parameters
    ----------
    pipe : Pipeline
        The fitted pipeline. A checkpoint of another pipeline raises `InputError`.
    frame : DataFrame
        Streaming DataFrame with a list column, or one column per class, matched by name.
    key : str
        Column with the key of each row. Each key has its own stream.
    order : str, optional
        Column that orders the rows of a key within a micro-batch: a sequence number or a time. Spark does not keep an
        order. A late row is learned in the micro-batch in which it arrives.
    columns : str, optional
        Column or columns with the probabilities, as in `SparkBlocks`.
    method : str
        A name of `ONLINE`.
    skip_bad : bool
        Whether a row that is not a probability vector gets null and is not learned. By default it ends the query.
    **options
        Options of the method, as for `Stream`.
    """
    from pyspark.sql import functions
    from pyspark.sql.types import ArrayType, DoubleType, LongType, StructField, StructType

    names = list(frame.columns)
    if missing := [wanted for wanted in (key, order) if wanted not in (None, *names)]:
        fail(FOLLOW, "frame", f"have the column {missing[0]!r}", ", ".join(names[:30]))
    frame = with_lists(frame, Choice(columns=columns))
    choice = Choice(columns=columns, caller=FOLLOW, classes=pipe.classes or (), aside={key: "--by"})
    taken = chosen(frame, choice)
    ordered = None if len(taken) == 1 or pipe.classes is None else order_of(taken, pipe.classes, FOLLOW, "frame")
    plain = {name: f"reprior_{i}" for i, name in enumerate(taken)}  # names that Spark takes in Python, without dots
    fresh = pipe.stream(method, **options).to_bytes()
    work = Following(fresh, key, order, taken, [*plain.values()], ordered, skip_bad)

    def column(name: str) -> Any:
        return functions.col(quoted(name))

    # pandas makes floats of numbers with gaps: what is only passed on goes as one value, which it leaves alone
    rest = [name for name in names if name not in taken]
    numbers = [column(name).alias(plain[name]) for name in taken]
    packed = functions.struct(*map(column, rest)).alias(REST)
    by = [column(key).alias(KEY), *([] if order is None else [column(order).alias(ORDER)])]
    kept = frame.select(*by, *numbers, packed)
    fields = [field for field in kept.schema.fields if field.name not in (KEY, ORDER)]
    more = [StructField(N, LongType()), StructField(PRIOR, ArrayType(DoubleType())), StructField(ACTS, DoubleType())]
    out = kept.groupBy(KEY).transformWithStateInPandas(
        statefulProcessor=work, outputStructType=StructType(fields + more), outputMode="Append", timeMode="None"
    )
    back = [(column(plain[name]) if name in plain else column(REST).getField(name)).alias(name) for name in names]
    return out.select(*back, N, PRIOR, ACTS)


@dataclass
class Following:
    """What Spark calls for the rows of each key in a micro-batch; `fresh` are the bytes of a stream without rows."""

    fresh: bytes
    key: str
    order: str | None
    names: list[str]
    columns: list[str]  # what those of the probabilities are called here
    ordered: list[int] | None
    skip_bad: bool
    state: Any = None

    @cached_property
    def mark(self) -> str:
        """A hash of the stream that keys begin with."""
        return blake2b(self.fresh, digest_size=16).hexdigest()

    def init(self, handle: Any) -> None:
        """Have Spark keep a stream's bytes for each key, and a mark of what it began as."""
        self.state = handle.getValueState("stream", "bytes binary, mark string")

    def close(self) -> None:
        """Have nothing to let go of."""

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:
        """Correct and learn all rows of a key in this micro-batch, one by one."""
        import pandas as pd

        name = key[0]
        if name is None:
            fail(FOLLOW, self.key, "name the stream of every row", "null", remedy="Drop those rows")
        batch = pd.concat(list(rows), ignore_index=True)
        if self.order is not None:
            batch = batch.sort_values(ORDER, kind="stable", ignore_index=True)
        stream = self.stream(name)
        numbers = self.numbers(batch, name, stream)
        good = ~np.isnan(numbers[:, 0])
        fixed, counts = np.full(numbers.shape, np.nan), np.empty(len(batch), np.int64)
        calibrated = stream.calibrated(numbers[good]) if good.any() else numbers[:0]
        at = iter(calibrated)
        for i, fine in enumerate(good):
            if fine:
                row = next(at)[None]
                fixed[i] = correct_float64(row, stream.weights)[0]
                with without_warning():  # the share is written beside the prior
                    stream.learn_calibrated(row)
            counts[i] = stream.n
        self.state.update((stream.to_bytes(), self.mark))
        yield self.written(batch, fixed, good, counts, stream)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Any]:
        """Set no timer, and so have none expire."""
        return iter(())

    def stream(self, name: Any) -> Stream:
        """Return the stream of a key as it was after the last micro-batch."""
        if not self.state.exists():
            return Stream.from_bytes(self.fresh)
        kept, mark = self.state.get()
        if mark != self.mark:
            fail(FOLLOW, "pipe", "be the one that started the checkpoint", f"another for the key {name!r}",
                 remedy="Use the old pipeline and options, or a new checkpoint")  # fmt: skip
        return Stream.from_bytes(bytes(kept))

    def numbers(self, batch: Any, name: Any, stream: Stream) -> Matrix:
        """Return the rows (n, K) in the order of the classes, NaN where a bad row is skipped."""
        k = len(stream.source.prior)
        if len(self.columns) == 1:
            values = [() if row is None else row for row in batch[self.columns[0]]]
            rows = np.full((len(values), k), np.nan)
            for i, row in enumerate(values):
                if len(row) == k:
                    rows[i] = row
        else:
            rows = batch[self.columns].to_numpy(np.float64)
        rows = rows if self.ordered is None else rows[:, self.ordered]
        logits = stream.calibrator is not None and stream.calibrator.of_logits
        for i in range(len(rows)) if any_refused(rows, logits) else ():
            if any_refused(rows[i : i + 1], logits):
                if not self.skip_bad:
                    place = f"row {i} of the key {name!r} in its micro-batch"
                    if self.order is not None:
                        place = f"{self.order} {batch[ORDER][i]} of the key {name!r}"
                    self.refuse_row(rows[i], len(values[i]) if len(self.columns) == 1 else k, logits, place)
                rows[i] = np.nan
        return rows

    def refuse_row(self, row: Vector, length: int, logits: bool, place: str) -> NoReturn:
        """Refuse a row (K,) that came with `length` numbers."""
        fault = None if logits else row_fault(row[None])
        rule, got = (fault.rule, fault.value) if fault else ("be finite logits", row.tolist())
        if length != len(row):
            rule, got = f"have {len(row)} numbers in every row", length
        fail(FOLLOW, ", ".join(self.names[:3]), rule, got, place=place,
             remedy="Repair the row, or skip invalid rows with `skip_bad`")  # fmt: skip

    def written(self, batch: Any, fixed: Matrix, good: Any, counts: Any, stream: Stream) -> Any:
        """Return the batch with corrected numbers, and the prior and the share that is applied behind its last row."""
        back = fixed if self.ordered is None else fixed[:, np.argsort(self.ordered)]
        if len(self.columns) == 1:
            batch[self.columns[0]] = [row.tolist() if fine else None for row, fine in zip(back, good, strict=True)]
        else:
            batch[self.columns] = back
        batch[N] = counts
        before = [None] * (len(batch) - 1)
        batch[PRIOR], batch[ACTS] = [*before, stream.prior.tolist()], [*before, stream.acts.share]
        return batch[[*self.columns, REST, N, PRIOR, ACTS]]


def any_refused(rows: Matrix, logits: bool) -> bool:
    """Return whether a stream refuses one of the rows: no probabilities, or no finite logits."""
    return not np.isfinite(rows).all() if logits else row_fault(rows) is not None


def write_batch(folder: str, key: str, batch: Any, number: int) -> None:
    """Write a micro-batch of what `follow` returned, whatever an earlier try has left: corrected rows, then priors.

    Each has a folder of its own, so that a batch that Spark runs again after a crash takes the place of its first try.
    """
    rows = f"{folder}/rows/batch={number}"
    batch.write.mode("overwrite").parquet(rows)
    # read back: to ask the batch twice would learn it twice
    priors = batch.sparkSession.read.schema(batch.schema).parquet(rows).where(f"{PRIOR} is not null")
    priors.select(quoted(key), N, PRIOR, ACTS).write.mode("overwrite").parquet(f"{folder}/priors/batch={number}")
