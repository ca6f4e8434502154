"""Rows on a cluster as a target: the driver plans, workers sum, and only sums come back."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property, reduce
from hashlib import blake2b
from itertools import pairwise
from operator import add
from typing import Any, Self, TypeVar

import numpy as np

from reprior._check import InputError, fail
from reprior._types import Matrix
from reprior.adapters.spark.frames import chosen, quoted, with_lists
from reprior.adapters.spark.parts import File, Reader, Survey, file_system, pieces_of, some_labels, survey, total
from reprior.io.files import SUFFIXES
from reprior.io.table import Choice, classes_apart

S = TypeVar("S")
TASKS = 1  # for each core: a task costs Spark as much as the sums of a million numbers
LABELLED = 10_000_000  # rows of which some have labels: those are a list on the driver, which goes to each task
COLLECTED = 1 << 28  # bytes of sums that may come to the driver at once; more are added up on the way


class SparkBlocks:
    """Wrap files or a DataFrame on a Spark cluster as `Blocks`, which `pipe.estimate` and every method take.

    Workers read the files; the driver gets sums. Each worker checks and calibrates its samples in the first pass and
    keeps them on its local disk. A file that changes meanwhile raises `InputError`.

    Parameters
    ----------
    spark : SparkSession or SparkContext
        A classic session; Spark Connect does not work. For files a SparkContext is enough.
    data : str, Path or DataFrame
        A file or folder of Parquet (or any other format of the command line) that all workers can read, or its address
        in a file system that pyarrow knows, such as `s3://…`. Or a DataFrame, which is written once to `scratch`.
    columns : str, optional
        Column or columns with the probabilities: a list column, or class columns as "a,b,c" or "first:last".
    classes : sequence of str, optional
        Names of the class columns. By default all floating-point columns, or the only list column.
    logits : bool
        Whether the numbers are logits.
    scratch : str, optional
        Folder for a DataFrame that driver and workers share. With a local Spark a temporary one is made.
    keep : int, optional
        Maximum bytes that an executor keeps on its local disk; by default half of the free space.
    label : str, optional
        Column of labels; empty or −1 if unknown. Pass them as `pipe.estimate(blocks, labels=blocks.labels)`.

    Examples
    --------
    >>> blocks = SparkBlocks(spark, "scores/")      # doctest: +SKIP
    >>> reprior.load("model.reprior").estimate(blocks)      # doctest: +SKIP
    """

    def __init__(
        self, spark: Any, data: Any, *, columns: str | None = None, classes: Sequence[str] | None = None,
        logits: bool = False, scratch: str | None = None, keep: int | None = None, label: str | None = None,
    ) -> None:  # fmt: skip
        choice = Choice(columns=columns, caller="SparkBlocks", classes=tuple(classes or ()), label=label,
                        aside={label: "--labels"} if label else {}, values="logits" if logits else None)  # fmt: skip
        self._open(spark, data, choice, scratch, keep)

    @classmethod
    def of(cls, spark: Any, data: Any, choice: Choice, scratch: str | None = None, keep: int | None = None) -> Self:
        """Return the rows of the columns that a command, or `groups`, has chosen."""
        blocks = cls.__new__(cls)
        blocks._open(spark, data, choice, scratch, keep)
        return blocks

    def _open(self, spark: Any, data: Any, choice: Choice, scratch: str | None, keep: int | None) -> None:
        if not hasattr(spark, "_jsc") and not hasattr(spark, "_jsparkSession"):
            fail(choice.caller, "spark", "be a classic SparkSession",
                 type(spark).__module__ + "." + type(spark).__name__,
                 remedy="Spark Connect cannot run it: start the program with spark-submit")  # fmt: skip
        self.spark, self._context = spark, getattr(spark, "sparkContext", spark)
        paths = isinstance(data, (str, os.PathLike))
        files = files_at(str(data), choice.caller) if paths else self._written(data, scratch, choice)
        self.surveys: list[Survey] = [x for x in self._each(files, lambda file: survey(file, choice)) if x.rows]
        if not self.surveys:
            fail(choice.caller, files[0].name, "have at least one row", "none")
        first = self.surveys[0]
        for about in self.surveys:
            if (about.n_classes, about.classes) != (first.n_classes, first.classes):
                fail(choice.caller, about.file.name, f"have the classes of {first.file.name}",
                     classes_apart(about.classes, about.n_classes, first.classes))  # fmt: skip
        self.reader = self._marked(Reader(choice, keep=keep))
        self.n_classes: int = first.n_classes
        self.classes: tuple[str, ...] | None = first.classes
        self.n = sum(sum(about.rows) for about in self.surveys)
        self._changed: SparkBlocks | None = None
        self._asked: Any = None

    def _each(self, items: Sequence[Any], fn: Callable[[Any], Any]) -> list[Any]:
        """Return what workers answer about each of some items."""
        slices = min(len(items), TASKS * self._context.defaultParallelism)
        return raised(self._context.parallelize(items, slices).map(fn).collect())

    def _written(self, frame: Any, scratch: str | None, choice: Choice) -> list[File]:
        """Write the probabilities of a DataFrame once, a file for each partition; what it computes is then fixed."""
        if scratch is None and not self._context.master.startswith("local"):
            fail(choice.caller, "scratch", "name a folder that driver and workers share", "none",
                 remedy="The DataFrame is written there once. A path of files needs no folder")  # fmt: skip
        folder = tempfile.mkdtemp(prefix="reprior-") if scratch is None else f"{scratch.rstrip('/')}/{uuid.uuid4().hex}"
        weakref.finalize(self, delete, folder)
        frame = with_lists(frame, choice)
        names = [*chosen(frame, choice), *choice.aside]
        frame.select(*map(quoted, names)).write.mode("overwrite").parquet(folder)
        files = files_at(folder, choice.caller)
        return [file._replace(name=f"partition {i} of the DataFrame") for i, file in enumerate(files)]

    @cached_property
    def labels(self) -> Any:
        """Labels of all samples (n,) from the column `label`; None if unknown."""
        choice = self.reader.choice
        if choice.label is None:
            fail(choice.caller, "label", "name the column of the labels", "none")
        if self.n > LABELLED:
            fail(choice.caller, "label", f"be used with at most {LABELLED:,} rows on Spark", f"{self.n:,}",
                 remedy="The driver holds a label for each row. Take some of the files")  # fmt: skip

        answers = self._each(self.surveys, lambda about: some_labels(about.file, choice))
        out, first = np.full(self.n, None, object), 0
        for about, (rows, values) in zip(self.surveys, answers, strict=True):
            for row, value in zip(rows, values, strict=True):  # one by one: a list would be taken for a row of numbers
                out[first + row] = value
            first += sum(about.rows)
        return out

    @cached_property
    def _tasks(self) -> Any:
        """The pieces, so many for each task. Spark holds these few numbers, and sends later passes where they are."""
        pieces = pieces_of(self.surveys)
        n = min(len(pieces), TASKS * self._context.defaultParallelism)
        ends = np.cumsum([piece.rows for piece in pieces])
        cuts = np.searchsorted(ends, ends[-1] * np.arange(1, n + 1) / n - 0.5, side="left") + 1
        bounds = [0, *np.maximum.accumulate(cuts).tolist()]
        runs = [pieces[a:b] for a, b in pairwise(bounds) if b > a]
        return self._context.parallelize(runs, len(runs)).persist()

    def map_sum(self, fn: Callable[[Matrix], S]) -> S:
        return self.map_numbered(lambda _, block: fn(block))

    def map_numbered(self, fn: Callable[[int, Matrix], S]) -> S:
        """Return the sum of `fn(number of its first row, block)`."""
        reader, errors, tasks = self.reader, np.geterr(), self._tasks
        sums = tasks.map(lambda pieces: total(pieces, reader, fn, errors))
        n = tasks.getNumPartitions()
        if n * 8 * self.n_classes**2 > COLLECTED:  # a K×K sum of every task would be too much for the driver
            return raised([sums.treeReduce(plus, depth=2 if n <= 256 else 3)])[0]  # type: ignore[no-any-return]
        return reduce(add, raised(sums.collect()))  # type: ignore[no-any-return]

    def having(self, change: Callable[[Matrix], Matrix]) -> SparkBlocks:
        """Return the rows as `change` makes them, which workers do once."""
        if self._changed is None or self._asked is not change:
            self._asked, how = change, change
            if getattr(change, "of_logits", False):
                if self.reader.choice.values != "logits":
                    fail(self.reader.choice.caller, "logits", "be True, because the pipeline takes logits", "False")
                how = replace(change, of_logits=False)  # type: ignore[type-var]  # rows are softmaxed as they are read
            self._changed = self._like(change=how)
        return self._changed

    def in_order(self, order: Sequence[int]) -> SparkBlocks:
        """Return the rows with their columns in the order of these column indices."""
        blocks = self._like(order=tuple(order))
        blocks.classes = None if self.classes is None else tuple(self.classes[j] for j in order)
        return blocks

    def _like(self, **how: Any) -> SparkBlocks:
        blocks = SparkBlocks.__new__(SparkBlocks)
        blocks.__dict__.update(self.__dict__, _tasks=self._tasks, _changed=None, _whole=self)  # one scratch folder
        blocks.reader = self._marked(replace(self.reader, **how))
        return blocks

    def _marked(self, reader: Reader) -> Reader:
        """Return a reader with a mark of these files and of all that decides which rows it yields."""
        from pyspark import cloudpickle

        about = cloudpickle.dumps((replace(reader, mark="", keep=None), [survey.file for survey in self.surveys]))
        return replace(reader, mark=blake2b(about, digest_size=12).hexdigest())

    def __repr__(self) -> str:
        return f"SparkBlocks({self.n:,} rows, {self.n_classes} classes, {len(self.surveys):,} files)"


def raised(answers: list[Any]) -> list[Any]:
    """Return what workers answered; raise the first sentence about a bad row instead, if there is one."""
    for answer in answers:
        if isinstance(answer, InputError):
            raise answer
    return answers


def plus(a: Any, b: Any) -> Any:
    """Return the sum of two answers; a sentence about a bad row stays one."""
    return a if isinstance(a, InputError) else b if isinstance(b, InputError) else a + b


def files_at(path: str, caller: str) -> list[File]:
    """Return the files at a path or address, in the order of their names."""
    from pyarrow import fs

    system, inside = file_system(path, caller)
    root = system.get_file_info(inside)
    if root.type == fs.FileType.NotFound:
        raise FileNotFoundError(2, "No such file or directory", path)
    base, mark, query = path.rstrip("/").partition("?")
    local = system.type_name == "local"
    before = "" if local else base.removesuffix(inside.rstrip("/"))  # of an address, what pyarrow has taken off

    def file_of(about: Any) -> File:
        address = before + about.path + ("" if local else mark + query)
        return File(address, address, about.size, about.mtime_ns)

    if root.is_file:
        return [file_of(root)]

    def is_data(about: Any) -> bool:
        """Return whether this is none of the files that Spark and others put beside data."""
        steps = about.path[len(inside) :].strip("/").split("/")
        return about.is_file and about.path.endswith(SUFFIXES) and not any(step[0] in "._" for step in steps)

    inner = system.get_file_info(fs.FileSelector(inside, recursive=True))
    files = sorted(filter(is_data, inner), key=lambda about: about.path)
    if not files:
        fail(caller, path, f"hold files that end in {', '.join(SUFFIXES)}", "none")
    return [file_of(about) for about in files]


def delete(folder: str) -> None:
    """Delete a scratch folder, wherever it is."""
    system, inside = file_system(folder)
    if system.type_name == "local":
        shutil.rmtree(inside, ignore_errors=True)
    else:
        with suppress(OSError):
            system.delete_dir(inside)
