"""What is known of the source, from a file: class counts or a prior, or held-out predictions with labels."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from reprior._check import InputError, as_array, check_prior, check_rows, check_text, fail, listed, number_of
from reprior._check.frames import class_places
from reprior._labels import check_labels, named
from reprior._types import Labels, Matrix, Source, Vector
from reprior.io.files import check_commas, open_kind, open_table, opener_of, prepare, read_text, refuse_probabilities
from reprior.io.labels import as_labels, column_in, label_columns, row_in_file
from reprior.io.npy import array_columns, npy_head
from reprior.io.records import unique_keys

from reprior.io.table import (  # isort: skip
    LABEL_NAMES, Choice, Table, check_width, classes_apart, perhaps_column, places_of, readable, columns_hint,
)  # fmt: skip
from reprior.pipelines.source import summarize
from reprior.rows.blocks import ArrayBlocks, numbered
from reprior.state import MAGIC

TOO_LARGE = 2.0  # times the range of scores of labelled classes: numbers that far above the smallest are no scores
MAX_LABEL_DISTANCE = 0.05  # total variation between held-out labels and predictions, above which we warn


def read_source(path: Path, choice: Choice, columns: str | None = None) -> Source:
    """Return the source that a file describes: a vector of counts or a prior, else held-out rows with labels.

    `columns` are the target's: they are tried where `choice` names none.
    """
    with readable(str(path), choice.caller):
        vector = read_vector(path, choice, of_source=True)
    if vector is not None:
        numbers, classes = vector
        check_text(classes or (), choice.caller, str(path))
        prior = check_counts(numbers, classes, choice.caller, str(path))
        return Source(prior=prior, classes=classes, made=f"class counts or prior from {path.name}")
    try:
        table = open_table(path, choice if choice.columns else replace(choice, columns=columns))
    except InputError:
        if choice.columns or columns is None:
            raise
        table = open_table(path, choice)
    rows, labels = labelled_rows(table, path)
    summed = columns_hint("sum to 1", table.parts[0], choice)
    check_rows(numbered(ArrayBlocks(rows)), choice.caller, str(path), summed)
    source = summarize(rows, named(labels, table.classes), classes=table.classes)
    return replace(source, made=f"{source.made} of {path.name}")


def labelled_rows(table: Table, path: Path) -> tuple[Matrix, Labels]:
    """Return all rows (n, K) of a file as its user has them made probabilities, and the columns of their labels (n,).

    Nothing sums to 1 before that, so a column which no label names may be an amount, say, that is taken for a class.
    """
    chunk, choice, part = table.load(), table.choice, table.parts[0]
    refuse_probabilities(chunk.proba[:1000], choice.values, choice.caller, part.name)
    labels = label_columns(chunk.labels, table, path, len(chunk.proba), table.classes)
    labelled = np.bincount(labels, minlength=part.n_classes) > 0
    if choice.values and part.columns and not choice.columns and not labelled.all():
        largest, scores = np.max(chunk.proba, axis=0), chunk.proba[:, labelled]
        others = np.flatnonzero(~labelled & (largest - scores.min() > TOO_LARGE * np.ptp(scores)))
        if len(others):
            fail(choice.caller, part.name, "have no other numbers beside the scores of the classes",
                 f"{listed([part.columns[j] for j in others])}, which no label names, with numbers up to"
                 f" {largest[others].max():g}",
                 remedy=f"Name the columns of the classes with `{choice.option}`")  # fmt: skip
    return prepare(chunk.proba, choice.values), labels


def read_counts(path: Path, source: Source, caller: str) -> Vector:
    """Return training counts (K,) from a file, in the order of the source's classes."""
    with readable(str(path), caller):
        vector = read_vector(path, Choice(caller=caller), of_source=True)
    if vector is None:
        fail(caller, str(path), "hold one number per class", "rows", remedy="Give held-out samples as `--source`")
    numbers, classes = np.asarray(vector[0], np.float64), vector[1]
    check_counts(numbers, classes, caller, str(path))
    if len(numbers) != len(source.prior):
        lacks = len(numbers) < len(source.prior)
        remedy = "Choose the class columns of held-out samples with `--source-columns`" if source.heldout else ""
        remedy = "Give every class a count there" if lacks and classes and source.classes else remedy
        fail(caller, str(path), f"have the {len(source.prior)} classes of the source",
             classes_apart(classes, len(numbers), source.classes), remedy=remedy)  # fmt: skip
    if classes is None or source.classes is None:
        return numbers
    return numbers[places_of(source.classes, classes, caller, str(path))]


def check_counts(numbers: Any, classes: tuple[str, ...] | None, caller: str, name: str) -> Vector:
    """Return counts or a prior (K,) from a file as a prior; a class without a positive number is refused."""
    array = as_array(numbers, caller, name)
    bad = array <= 0
    if array.ndim == 1 and bad.any():
        first = int(np.argmax(bad))
        fail(caller, name, "be positive for every class", f"{array[first]:g}",
             place=f"class {classes[first] if classes else first}", count=int(bad.sum()),
             remedy="Leave the class out here and its column out of the predictions (`--columns`), if the classifier"
             " was never trained on it; else give it a count of 0.5")  # fmt: skip
    return check_prior(array, caller, name)


def disagreement(source: Source) -> float:
    """Return the total variation between the label shares and the mean prediction of held-out samples; 0 if it may be
    chance.

    It is large if held-out samples were drawn with another prior than the training samples. The mean prediction is then
    not the source prior.
    """
    if source.heldout is None or source.counts is None:
        return 0.0
    rows, n = source.heldout[0], float(source.counts.sum())
    mean, k = rows.mean(axis=0, dtype=np.float64), rows.shape[1]
    variance = (mean - np.square(rows).mean(axis=0, dtype=np.float64)) / n + n**-2  # of labels
    squares = float(((source.counts / n - mean) ** 2 / variance).sum())
    distance = float(np.abs(source.counts / n - mean).sum() / 2)
    return distance if squares > k + 5 * np.sqrt(2 * k) and distance > MAX_LABEL_DISTANCE else 0.0


def read_vector(path: Path, choice: Choice, *, of_source: bool = False) -> tuple[Any, tuple[str, ...] | None] | None:
    """Return (values, class names) if the file holds one number a class, else None. An estimate is refused as a source:
    its prior is a target's, and the classifier was not trained on that."""
    if path.is_dir():
        return None
    opener = opener_of(path)
    kind = open_kind(opener)
    if kind in ("parquet", "arrow"):
        return None
    with opener() as file:
        if kind == "npy":
            vector = len(npy_head(file).shape) == 1
            file.seek(0)
            return (np.load(file), None) if vector else None
        if kind == "npz":
            with np.load(file) as archive:
                key = next((key for key in ("counts", "prior") if key in archive), None)
                labelled = any(name in archive for name in (choice.label, *LABEL_NAMES))
                rows = class_places(array_columns(archive), None)
                if key is None or "proba" in archive or (labelled and rows):  # an array without labels holds no rows
                    return None
                return archive[key], tuple(map(str, archive["classes"])) if "classes" in archive else None
        if kind == "ndjson":
            return json_vector(file.read(), choice.caller, str(path), of_source)
        read_text(file.readline(4096), choice.caller, str(path))
        file.seek(0)
        return csv_vector(file, str(path), choice)


def json_vector(data: bytes, caller: str, name: str, of_source: bool) -> tuple[Any, tuple[str, ...] | None] | None:
    """Return the numbers of a JSON list or object; None for rows, one JSON value a line."""
    try:
        value = json.loads(data, object_pairs_hook=unique_keys)
    except json.JSONDecodeError:
        return None
    if isinstance(value, dict) and isinstance(value.get("prior"), list):
        if of_source and "source_prior" in value:
            fail(caller, name, "hold training counts or held-out samples", "an estimate of a target prior",
                 remedy="Pass the source of that estimate. `correct --prior` takes estimates")  # fmt: skip
        return value["prior"], tuple(map(str, value["classes"])) if value.get("classes") else None
    if isinstance(value, dict) and value and all(type(item) in (int, float) for item in value.values()):
        return list(value.values()), tuple(map(str, value))
    return (value, None) if isinstance(value, list) and all(type(item) in (int, float) for item in value) else None


def csv_vector(data: IO[bytes], name: str, choice: Choice) -> tuple[Any, tuple[str, ...] | None] | None:
    """Return the counts of classes that a CSV file has in two columns, with or without a header; None for rows."""
    with io.TextIOWrapper(data, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        if not any(header):
            fail(choice.caller, name, "have at least one row", "an empty file")
        labelled = bool(choice.label) or not {*header}.isdisjoint(LABEL_NAMES)
        check_width(len(header), choice.caller, name)
        if len(header) > 2 and labelled:
            return None
        rows = [row for row in reader if row] if len(header) == 2 else []
        first = next(reader, header)
    counts = counts_in(header, rows)
    if counts is not None or labelled:
        return counts
    whole = [name for name, text in zip(header, first, strict=False) if "." not in text]  # these may hold labels
    likely = [*whole, *(name for name in header if name not in whole)]
    check_commas(",".join(header), choice.caller, name)
    fail(choice.caller, name, "be a counts file with the columns `class` and `count`, each class once, or"
         " held-out samples with a label column", f"the columns {listed(likely)}",
         remedy=f"{perhaps_column('label', whole)}Name the label column with `--label`")  # fmt: skip


def counts_in(header: list[str], rows: list[list[str]]) -> tuple[Any, tuple[str, ...]] | None:
    """Return the numbers and the names of two columns, whichever of them holds the classes; None if neither does."""
    for names, counts in ((0, 1), (1, 0)) if rows else ():
        body = rows if number_of(header[counts]) is None else [header, *rows]
        values = [number_of(row[counts]) if len(row) == 2 else None for row in body]
        labels = tuple(row[names].strip() for row in body if len(row) == 2)
        odd = any((number_of(label) or 0) % 1 > 0 for label in labels)  # 0.25 is no name of a class
        if None not in values and not odd and len({*labels}) == len(body):
            return values, labels
    return None


def read_prior(path: Path, classes: tuple[str, ...] | None, n_classes: int, choice: Choice) -> Vector:
    """Return a prior (K,) from a file, or the shares of labelled rows, in the order of `classes`; zeros are allowed."""
    with readable(str(path), choice.caller):
        labels = read_labels(path, choice)
        vector = read_vector(path, choice) if labels is None else None
    if labels is not None:
        column, values = labels
        meant = as_labels(values, classes)
        meant = np.array(meant.tolist()) if all(isinstance(label, int) for label in meant) else meant
        y = check_labels(meant, choice.caller, column_in(path, column), len(values), n_classes,
                         classes, place=row_in_file)  # fmt: skip
        return check_prior(np.bincount(y, minlength=n_classes), choice.caller, str(path), allow_zero=True)
    if vector is None:
        source = read_source(path, choice)
        assert source.counts is not None
        vector = source.counts, source.classes
    numbers, names = vector
    if names is not None and classes is not None:
        numbers = dict(zip(names, np.asarray(numbers).tolist(), strict=True))
    return check_prior(numbers, choice.caller, str(path), allow_zero=True, n_classes=n_classes, like="the source",
                       classes=classes)  # fmt: skip


def read_labels(path: Path, choice: Choice) -> tuple[str, list[str]] | None:
    """Return the name and the values of the label column of a CSV file, whatever its other columns; else None."""
    if path.is_dir() or open_kind(opener_of(path)) != "csv":
        return None
    with opener_of(path)() as data, io.TextIOWrapper(data, newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        header = [name.strip() for name in next(reader, [])]
        column = choice.label or next((name for name in LABEL_NAMES if name in header), None)
        if column not in header:
            return None
        place = header.index(column)
        return column, [row[place].strip() if len(row) > place else "" for row in reader if row]


def is_saved(path: Path) -> bool:
    """Return whether a file was written by `save`, or by `reprior fit`."""
    if path.is_dir():
        return False
    with opener_of(path)() as file:
        return file.read(len(MAGIC)) == MAGIC
