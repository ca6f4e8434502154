"""Labels of some rows of a target: a column of its own, or a list of rows that `reprior query` wrote for people."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from io import StringIO
from itertools import chain
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from reprior._check import InputError, fail, listed, number_of
from reprior._check.frames import ID_NAMES
from reprior._labels import WHOLE_NUMBER, check_labels, check_some_labels
from reprior._types import Labels, Source, Vector
from reprior.io.table import Table, readable

ROW = "row"  # what names rows where no column does
FIELDS = ("chance", "weight", "label")  # beside the column that names rows
Line = dict[str, str]  # of a list: the fields by column


class Listed(NamedTuple):
    """A list of rows to label: the name of its first column, the fields of each line, and the numbers of its rows."""

    name: str
    lines: list[Line]
    rows: list[int]


class TargetLabels(NamedTuple):
    """Labels of all rows of a target (n,), None if unknown; weights (n,) and list if they were chosen for labelling."""

    labels: Any
    weights: Vector | None = None
    listed: Listed | None = None


UNLABELLED = TargetLabels(None)


class Ids(NamedTuple):
    """What names the rows of a target, their names or None, which stands for their numbers, and why it is those."""

    column: str
    names: list[str] | None
    why: str = ""


def column_in(path: str | Path, column: str | None) -> str:
    """Return what to call a column of a file in a sentence."""
    return f"{path}, column {column!r}" if column else str(path)


row_in_file = "row {} (the first is row 0)".format


def is_list(where: str | None) -> bool:
    """Return whether labels come from a file of their own."""
    return where is not None and Path(where).is_file()


def as_labels(values: Iterable[Any], classes: Sequence[str] | None) -> Any:
    """Return labels as they were meant: text that says a whole number is one, unless classes are called so."""
    labels = [str(value).strip() if isinstance(value, (str, list, dict)) else value for value in values]
    if classes is None or any(number_of(name) is None for name in classes):
        names = {*(classes or ())}
        labels = [int(v.partition(".")[0]) if isinstance(v, str) and v not in names and WHOLE_NUMBER.fullmatch(v) else v
                 for v in labels]  # fmt: skip
    return np.fromiter(labels, object, len(labels))


def label_columns(labels: Any, table: Table, path: Path, n: int, classes: Sequence[str] | None) -> Labels:
    """Return the labels of all `n` rows of a file as column indices; a label of no class is refused by its row."""
    return check_labels(labels, table.choice.caller, column_in(path, table.parts[0].label), n, table.n_classes, classes,
                        place=row_in_file)  # fmt: skip


def checked_labels(
    values: Sequence[Any], source: Source, caller: str, name: str, place: Callable[[int], str] = row_in_file
) -> Any:
    """Return labels of some rows of a file as they were meant; one that is of no class is refused by its `place`."""
    labels = as_labels(values, source.classes)
    check_some_labels(labels, caller, len(labels), len(source.prior), source.classes, name, place=place)
    return labels


def read_ids(table: Table, target: Path, name: str | None, option: str = "--id") -> Ids:
    """Return what names the rows: a column of ids, whose name an option or a list has, or their numbers."""
    why = ""
    for column in ID_NAMES if name is None else (name,):
        try:
            values = chain.from_iterable(table.column(column, "--id"))
        except InputError:
            if name is not None:
                raise
            continue
        ids = ["" if value is None else str(value) for value in values]
        bad = [text for text, times in Counter(ids).items() if text == "" or times > 1]
        if not bad:
            return Ids(column, ids)
        lacks = f"has {f'{bad[0]!r} twice' if bad[0] else 'nothing in one row'}"
        why = why or f"{column!r} {lacks}"
        if name is not None:
            fail(table.choice.caller, option, f"name rows by a column of {target} that tells all of them apart",
                 f"{name!r}, which {lacks}",
                 remedy="Leave it out to go by the rows' numbers" if option == "--id" else
                 f"Name rows by their numbers, from 0, in a column {ROW!r}")  # fmt: skip
    return Ids(ROW, None, why)


def read_lines(path: str | Path, caller: str) -> tuple[list[str], dict[int, Line]]:
    """Return the columns of a list and its lines by their numbers.

    Spreadsheets use the delimiter of their country, with decimal commas beside semicolons, and leave empty lines.
    """
    with readable(str(path), caller):
        data = Path(path).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        fail(caller, str(path), "be a CSV file", "other bytes than text in UTF-8", remedy="Save the list as CSV")
    delimiter, lines = max(",;\t", key=text.partition("\n")[0].count), {}
    reader = csv.DictReader(StringIO(text), delimiter=delimiter)
    columns = reader.fieldnames = [(name or "").strip() for name in reader.fieldnames or ()]
    for fields in reader:
        line = {key: (value or "").strip() for key, value in fields.items() if key in columns and key}
        if delimiter != ",":
            line |= {key: line[key].replace(",", ".") for key in ("chance", "weight") if key in line}
        if any(line.values()):
            lines[reader.line_num] = line
    return columns, lines


def ids_of(names: Sequence[str], table: Table, target: Path, path: str) -> Ids:
    """Return what names the rows of a list with these columns: an id column, else the first that the target has too."""
    reasons = []
    for column in [column for column in (*ID_NAMES, ROW) if column in names] or names:
        try:
            return Ids(ROW, None) if column == ROW else read_ids(table, target, column, path)
        except InputError as error:
            reasons.append(error)
    raise reasons[0]


def read_list(path: str, target: Path, table: Table, n: int, source: Source) -> TargetLabels:
    """Return the labels and weights that a filled-in list of rows gives to the `n` rows of a target."""
    caller = table.choice.caller
    head, lines = read_lines(path, caller)
    named = [column for column in head if column and column not in FIELDS]
    if not named or "label" not in head:
        fail(caller, path, "have a column that names rows, and the column 'label'", listed(head) or "nothing",
             remedy="`reprior query` writes a file of this form")  # fmt: skip
    ids = ids_of(named, table, target, path)
    name, place = ids.column, {x: i for i, x in enumerate(ids.names or map(str, range(n)))}
    for at, line in lines.items():
        if line[name] not in place:
            fail(caller, path, f"name rows of {target}", f"{name} {line[name]!r}", place=f"line {at}",
                 remedy=f"The column {name!r} of {target} names its rows" if ids.names is not None else
                 f"Rows go by their numbers, from 0 to {n - 1}")  # fmt: skip
    rows = [place[line[name]] for line in lines.values()]
    called = [f"{name} {line[name]!r}" for line in lines.values()]
    if len({*rows}) < len(rows):
        fail(caller, path, "name each row once", f"{next(text for text in called if called.count(text) > 1)} twice")
    texts = [line["label"] for line in lines.values()]
    values = checked_labels(texts, source, caller, column_in(path, "label"), called.__getitem__)
    labels, weights = [None] * n, np.ones(n)
    for row, line, value, which in zip(rows, lines.values(), values, called, strict=True):
        labels[row] = value
        if weight := line.get("weight", ""):
            number = number_of(weight)
            if number is None:
                fail(caller, path, "have numbers in the column 'weight'", repr(weight), place=which)
            weights[row] = number
    return TargetLabels(as_labels(labels, source.classes), weights, Listed(name, list(lines.values()), rows))


def filled_in(path: Path) -> int:
    """Return how many rows of a list have a label, 0 if the file is no such list."""
    with suppress(OSError, ValueError, csv.Error):
        if path.is_file():
            return sum(bool(line.get("label")) for line in read_lines(path, "query")[1].values())
    return 0


def write_list(
    file: IO[bytes], name: str, ids: list[str] | None, rows: Any, weights: Any, chances: Any, before: Listed | None
) -> None:
    """Write rows to label, after those of the list `before`: their names, chances, weights, and room for labels."""
    out = StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([name, "chance", "weight", "label"])
    for line in before.lines if before is not None else ():
        writer.writerow([line[name], line.get("chance", ""), line.get("weight", ""), line["label"]])
    for row, weight, chance in zip(rows, weights, chances, strict=True):
        writer.writerow([row if ids is None else ids[row], f"{chance:.6g}", f"{weight:.6g}", ""])
    file.write(out.getvalue().encode("utf-8", "backslashreplace"))
