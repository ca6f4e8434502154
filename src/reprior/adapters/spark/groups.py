"""Many groups on a cluster: rows are put together by group once, and each group is then fitted where its rows are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np

from reprior._check import fail
from reprior._types import Matrix, Source
from reprior.adapters.spark.blocks import SparkBlocks, raised
from reprior.adapters.spark.frames import chosen, quoted, with_lists
from reprior.adapters.spark.parts import PIECE_NUMBERS, File, Piece, answered, blocks_of, opener, pieces_of
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.groups import Groups
from reprior.io.table import Choice, readable
from reprior.model.ebls import ebls
from reprior.model.groups import GATHERED, fit_pooled_groups, group_means, of_estimates, scale_groups
from reprior.model.settings import DEFAULT
from reprior.pipelines.pipeline import Pipeline
from reprior.rows.blocks import ArrayBlocks, Blocks, in_columns
from reprior.rows.grouped import GroupedRows, Index, factorize

S = TypeVar("S")
GROUPS, KEY = "groups", "reprior_key"


class Bucket(NamedTuple):
    """A file with all rows of its groups, side by side: their numbers (g,) among all groups, and their rows (g,)."""

    pieces: tuple[Piece, ...]
    groups: Index
    sizes: Index


def groups(
    pipe: Pipeline, spark: Any, data: Any, *, by: str, columns: str | None = None, share: bool = True,
    estimate: PriorEstimate | None = None, **storage: Any,
) -> Groups:  # fmt: skip
    """Estimate each group of samples, as `pipe.groups` does.

    Samples are shuffled once by group. The driver holds a few numbers per group and class: 100,000 groups of 100
    classes take about 1 GB.

    Parameters
    ----------
    pipe : Pipeline
        The fitted pipeline.
    spark : SparkSession
        A classic session.
    data : str, Path or DataFrame
        Parquet that all workers can read, or a DataFrame.
    by : str
        Column with the group of each sample: text or numbers.
    columns : str, optional
        Column or columns with the probabilities, as in `SparkBlocks`.
    share : bool
        Whether small groups borrow from what all groups have in common.
    estimate : PriorEstimate, optional
        What `pipe.estimate` returned for the same samples. Its tests decide how much of the correction is applied. By
        default it is computed here.
    scratch, keep
        As in `SparkBlocks`; `scratch` is for shuffled samples.
    """
    choice = Choice(columns=columns, caller=GROUPS, classes=pipe.classes or ())
    framed = hasattr(data, "select")
    whole = SparkBlocks.of(spark, data, choice, **storage)
    target = pipe.rows(whole, GROUPS)
    frame = data if framed else spark.read.parquet(str(data))
    n_buckets = max(spark.sparkContext.defaultParallelism, whole.n * whole.n_classes // PIECE_NUMBERS)
    together = sorted_by(frame, by, replace(choice, aside={by: "--by"}), n_buckets, framed=framed)
    names = tuple(column for column in together.columns if column != KEY)
    chosen_again = {"columns": names[0], "classes": ()} if len(names) == 1 else {"columns": None, "classes": names}
    shuffled = SparkBlocks.of(spark, together, replace(choice, aside={KEY: "--by"}, **chosen_again), **storage)
    rows, keys = cluster_rows(shuffled, pipe)
    options: dict[str, Any] = {"settings": DEFAULT, **(pipe.options if pipe.method == "ebls" else {})}
    if share:
        of_all = ebls(pipe.source, target, **options)
        made = fit_pooled_groups(pipe.source, keys, rows, of_all, pipe.unshifted, options["settings"])
    else:
        made = of_estimates(pipe.source, keys, rows.each(pipe.source, options))
    estimate = pipe.estimate(whole) if estimate is None else estimate
    assert estimate.acts is not None
    scaled = scale_groups(made, estimate.acts.share, pipe.unshifted, group_means(rows, pipe.unshifted))
    return replace(scaled, calibrator=pipe.calibrator, whole=estimate)


def sorted_by(frame: Any, by: str, choice: Choice, n_buckets: int, *, framed: bool) -> Any:
    """Return keys and probabilities, the rows of a group side by side in the order in which they came."""
    from pyspark.sql import functions

    if by not in frame.columns:
        fail(choice.caller, by, "be a column of the data", ", ".join(frame.columns[:30]))
    frame = with_lists(frame, choice)
    names = [functions.col(quoted(name)) for name in chosen(frame, choice)]
    order = [functions.monotonically_increasing_id().alias("reprior_row")]
    if not framed:
        order = [functions.col("_metadata.file_path").alias("reprior_file"),
                 functions.col("_metadata.row_index").alias("reprior_row")]  # fmt: skip
    rows = frame.select(functions.col(quoted(by)).alias(KEY), *names, *order)
    places = [column for column in rows.columns if column in ("reprior_file", "reprior_row")]
    return rows.repartition(n_buckets, KEY).sortWithinPartitions(KEY, *places).drop(*places)


def cluster_rows(shuffled: SparkBlocks, pipe: Pipeline) -> tuple[ClusterRows, tuple[Any, ...]]:
    """Return the rows in groups, and what the groups are called, in the order of their numbers."""
    pieces: dict[File, list[Piece]] = {}
    for piece in pieces_of(shuffled.surveys):
        pieces.setdefault(piece.file, []).append(piece)
    files = list(pieces)
    context = shuffled.spark.sparkContext
    runs = raised(context.parallelize(files, len(files)).map(key_runs).collect())
    names, codes = factorize([key for keys, _ in runs for key in keys])
    if len(names) < len(codes):
        fail(GROUPS, "rows", "have each group in one file", "a group in two", remedy="Report this, please")
    buckets, at = [], 0
    for file, (keys, sizes) in zip(files, runs, strict=True):
        own = codes[at : at + len(keys)].astype(np.int64)
        buckets.append(Bucket(tuple(pieces[file]), own, np.array(sizes, np.int64)))
        at += len(keys)
    sizes = np.zeros(len(names), np.int64)
    for bucket in buckets:
        sizes[bucket.groups] = bucket.sizes
    target: SparkBlocks = in_columns(shuffled, shuffled.classes, pipe.classes, GROUPS)
    target = target if pipe.calibrator is None else target.having(pipe.calibrator)
    tasks = context.parallelize(buckets, len(buckets)).persist()
    return ClusterRows(target, tasks, sizes), names


@answered
def key_runs(file: File) -> tuple[list[Any], list[int]]:
    """Return the keys of the groups in a file, and how many rows each has, one behind the other."""
    import pyarrow.parquet as pq

    keys: list[Any] = []
    sizes: list[int] = []
    with readable(file.name, GROUPS), opener(file.path)() as data:
        for batch in pq.ParquetFile(data).iter_batches(columns=[KEY]):
            for key, rows in groupby(batch.column(0).to_pylist()):
                n = sum(1 for _ in rows)
                if key is None or key != key:
                    fail(GROUPS, "by", "name a group for every row", key, count=n,
                         remedy="Drop those rows, or give them a key of their own")  # fmt: skip
                if keys and keys[-1] == key:
                    sizes[-1] += n
                else:
                    keys.append(key)
                    sizes.append(n)
    return keys, sizes


@dataclass(frozen=True, slots=True)
class ClusterRows:
    """Samples in groups on a cluster, for `model.groups`: each group is fitted where its samples are."""

    rows: SparkBlocks
    tasks: Any
    sizes: Index

    def run(self, fn: Callable[[GroupedRows, Index], S]) -> list[S]:
        """Return `fn(samples of a bucket, the numbers of its groups)` for all buckets."""
        reader = self.rows.reader

        @answered
        def in_bucket(bucket: Bucket) -> S:
            rows = np.concatenate([block for piece in bucket.pieces for block in blocks_of(piece, reader)])
            codes = np.repeat(np.arange(len(bucket.groups)), bucket.sizes)
            assert len(codes) == len(rows)
            return fn(GroupedRows.of(ArrayBlocks(rows), codes, len(bucket.groups)), bucket.groups)

        return raised(self.tasks.map(in_bucket).collect())

    def map_groups(self, fn: Callable[[GroupedRows], tuple[Any, ...]]) -> tuple[Any, ...]:
        """Return arrays with a row per group: those that `fn` returns for the groups of each bucket, put together."""

        def of_bucket(rows: GroupedRows, groups: Index) -> tuple[Index, tuple[Any, ...]]:
            return groups, fn(rows)

        parts = self.run(of_bucket)
        whole = tuple(np.empty((len(self.sizes), *array.shape[1:])) for array in parts[0][1])
        for groups, arrays in parts:
            for array, part in zip(whole, arrays, strict=True):
                array[groups] = part
        return whole

    def each(self, source: Source, options: Mapping[str, Any]) -> list[PriorEstimate]:
        """Return the estimate of each group, separately."""

        def of_bucket(rows: GroupedRows, groups: Index) -> list[tuple[int, PriorEstimate]]:
            return [(int(g), replace(ebls(source, rows.of_group(i), **options), target=None))
                    for i, g in enumerate(groups)]  # fmt: skip

        estimates = dict(pair for part in self.run(of_bucket) for pair in part)
        return [replace(estimates[g], target=self.of_group(g)) for g in range(len(self.sizes))]

    def of_group(self, g: int) -> Blocks:
        """Return the rows of one group, fetched when they are asked for."""
        return Fetched(self, g)


@dataclass(frozen=True, slots=True)
class Fetched:
    """The rows of one group on a cluster."""

    rows: ClusterRows
    group: int

    @property
    def n_classes(self) -> int:
        return self.rows.rows.n_classes

    def map_sum(self, fn: Callable[[Matrix], S]) -> S:
        group, most = self.group, GATHERED // self.n_classes  # rows that are fetched, at most

        def of_bucket(rows: GroupedRows, groups: Index) -> Matrix | None:
            here = np.flatnonzero(groups == group)
            return np.array(rows.of_group(int(here[0])).array[:most]) if len(here) else None  # type: ignore[attr-defined]

        rows = next(part for part in self.rows.run(of_bucket) if part is not None)
        return ArrayBlocks(np.ascontiguousarray(rows, dtype=np.float64)).map_sum(fn)
