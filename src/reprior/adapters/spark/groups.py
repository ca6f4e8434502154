"""Many groups on a cluster: rows are put together by group once, and each group is then fitted where its rows are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from itertools import groupby
from typing import Any, NamedTuple, TypeVar

import numpy as np

from reprior._check import InputError, fail
from reprior._types import Matrix, Source, Vector
from reprior.adapters.spark.blocks import SparkBlocks, raised
from reprior.adapters.spark.frames import chosen, quoted, with_lists
from reprior.adapters.spark.parts import PIECE_NUMBERS, File, Piece, Reader, blocks_of, opener, pieces_of
from reprior.estimates.estimate import PriorEstimate
from reprior.io.table import Choice, readable
from reprior.model.ebls import DEFAULT, ebls
from reprior.model.group_fit import Common, GroupedRows, GroupFit, Index, overwrite_groups
from reprior.model.groups import GATHERED, Groups, fit_pooled_groups, group_means, of_estimates, scale_groups
from reprior.model.population import ClusterPriors
from reprior.pipelines.pipeline import Pipeline
from reprior.rows.blocks import ArrayBlocks, Blocks, in_columns
from reprior.rows.keys import factorize

S = TypeVar("S")
GROUPS, KEY = "groups", "reprior_key"


class Bucket(NamedTuple):
    """A file with all rows of its groups, side by side: their numbers (g,) among all groups, and their rows (g,)."""

    pieces: tuple[Piece, ...]
    groups: Index
    sizes: Index


def groups(
    pipe: Pipeline, spark: Any, data: Any, *, by: str, columns: str | None = None, share: bool = True,
    scratch: str | None = None, keep: int | None = None, estimate: PriorEstimate | None = None,
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
    scratch : str, optional
        Folder for shuffled samples that driver and workers share. With a local Spark a temporary one is made.
    keep : int, optional
        Maximum bytes that an executor keeps on its local disk; by default half of the free space.
    estimate : PriorEstimate, optional
        What `pipe.estimate` returned for the same samples. Its tests decide how much of the correction is applied. By
        default it is computed here.
    """
    taken: dict[str, Any] = {"columns": columns, "classes": pipe.classes, "scratch": scratch, "keep": keep}
    framed = hasattr(data, "select")
    whole = SparkBlocks(spark, data, caller=GROUPS, **taken)
    target = pipe.rows(whole, GROUPS)
    frame = data if framed else spark.read.parquet(str(data))
    n_buckets = max(spark.sparkContext.defaultParallelism, whole.n * whole.n_classes // PIECE_NUMBERS)
    together = sorted_by(frame, by, Choice(columns=columns, caller=GROUPS, classes=pipe.classes or (), by=by),
                         n_buckets, framed=framed)  # fmt: skip
    *listed_or_classes, _ = sorted(together.columns, key=KEY.__eq__)  # the key comes last
    one = len(listed_or_classes) == 1
    taken |= {"columns": listed_or_classes[0] if one else None, "classes": () if one else listed_or_classes}
    shuffled = SparkBlocks(spark, together, caller=GROUPS, by=KEY, **taken)
    rows, names = cluster_rows(shuffled, pipe)
    options: dict[str, Any] = {"settings": DEFAULT, **(pipe.options if pipe.method == "ebls" else {})}
    if share:
        made = fit_pooled_groups(pipe.source, names, rows, ebls(pipe.source, target, **options), options["settings"])
    else:
        made = of_estimates(pipe.source, names, rows.each(pipe.source, options))
    estimate = pipe.estimate(whole) if estimate is None else estimate
    assert estimate.acts is not None
    scaled = scale_groups(made, estimate.acts.share, pipe.unshifted, rows.means(pipe.unshifted))
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


def key_runs(file: File) -> tuple[list[Any], list[int]] | InputError:
    """Return the keys of the groups in a file, and how many rows each has, one behind the other."""
    import pyarrow.parquet as pq

    keys: list[Any] = []
    sizes: list[int] = []
    try:
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
    except InputError as error:
        return error
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
        return raised(self.tasks.map(lambda bucket: in_bucket(bucket, reader, fn)).collect())

    def fit(self, common: Common, kinds: ClusterPriors) -> GroupFit:
        """Return the fit of all groups."""

        def of_bucket(rows: GroupedRows, groups: Index) -> tuple[Index, GroupFit]:
            return groups, rows.fit(common, kinds)

        parts = self.run(of_bucket)
        whole = GroupFit(*(np.empty((len(self.sizes), *getattr(parts[0][1], name.name).shape[1:]))
                           for name in fields(GroupFit)))  # fmt: skip
        for groups, part in parts:
            overwrite_groups(whole, groups, part)
        return whole

    def means(self, weights: Vector) -> Vector:
        """Return the mean probabilities (G, K) of each group under class weights (K,)."""

        def of_bucket(rows: GroupedRows, groups: Index) -> tuple[Index, Matrix]:
            return groups, group_means(rows.target, rows.codes, len(groups), weights)

        whole = np.empty((len(self.sizes), self.rows.n_classes))
        for groups, part in self.run(of_bucket):
            whole[groups] = part
        return whole

    def each(self, source: Source, options: Mapping[str, Any]) -> list[PriorEstimate]:
        """Return the estimate of each group, separately."""

        def of_bucket(rows: GroupedRows, groups: Index) -> list[tuple[int, PriorEstimate]]:
            return [(int(g), replace(ebls(source, rows.of_group(i), **options), target=None))
                    for i, g in enumerate(groups)]  # fmt: skip

        estimates = dict(pair for part in self.run(of_bucket) for pair in part)
        return [replace(estimates[g], target=self.of_group(g)) for g in range(len(self.sizes))]

    def some(self, which: Index) -> GroupedRows:
        """Return the rows of some groups (m,) alone, in memory; where they are too many, the first ones of each."""
        k = self.rows.n_classes
        most = largest(self.sizes[which], GATHERED // k)

        def of_bucket(rows: GroupedRows, groups: Index) -> tuple[Index, list[Matrix]]:
            inside = np.flatnonzero(np.isin(groups, which))
            return groups[inside], [np.array(rows.of_group(int(g)).array[:most]) for g in inside]  # type: ignore[attr-defined]

        parts = {int(g): part for groups, some in self.run(of_bucket) for g, part in zip(groups, some, strict=True)}
        held = [parts[int(g)] for g in which]
        codes = np.repeat(np.arange(len(which)), [len(part) for part in held])
        rows = np.ascontiguousarray(np.concatenate(held), dtype=np.float64)
        return GroupedRows.of(ArrayBlocks(rows), codes, len(which))

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
        return self.rows.some(np.array([self.group])).target.map_sum(fn)


def largest(sizes: Index, room: int) -> int:
    """Return how many rows of each group may be taken so that all together are no more than `room`."""
    if sizes.sum() <= room:
        return int(sizes.max())
    low, high = 1, int(sizes.max())
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if np.minimum(sizes, middle).sum() <= room else (low, middle)
    return low


def in_bucket(bucket: Bucket, reader: Reader, fn: Callable[[GroupedRows, Index], S]) -> S | InputError:
    """Return what `fn` makes of the samples of a bucket, or the sentence about a bad one."""
    try:
        rows = np.concatenate([block for piece in bucket.pieces for block in blocks_of(piece, reader)])
    except InputError as error:
        return error
    codes = np.repeat(np.arange(len(bucket.groups)), bucket.sizes)
    assert len(codes) == len(rows)
    return fn(GroupedRows.of(ArrayBlocks(rows), codes, len(bucket.groups)), bucket.groups)
