"""Labels of some rows of a target: a column of its own, or a list of rows that `reprior query` wrote for people."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np

from reprior._check import InputError, fail, listed, perhaps
from reprior._labels import WHOLE, is_number
from reprior._types import Vector
from reprior.io.files import ID_NAMES, Choice, Table, open_table, readable

ROW = "row"  # what names rows where no column does
FIELDS = ("chance", "weight", "label")  # beside the column that names rows


class Listed(NamedTuple):
    """A list of rows to label: what its first column is called, the fields of each line, and the numbers of the
    rows (m,)."""

    name: str
    lines: list[dict[str, str]]
    rows: list[int]


class Given(NamedTuple):
    """Labels of all rows of a target (n,), None where unknown; their weights (n,) if they were chosen; the list that
    they came from, if it was one."""

    labels: Any
    weights: Vector | None = None
    listed: Listed | None = None


def is_list(where: str | None) -> bool:
    """Return whether labels come from a file of their own."""
    return where is not None and Path(where).is_file()


def column_values(table: Table) -> list[Any]:
    """Return what a column holds, of all rows; the table was opened for it."""
    values: list[Any] = []
    for part in table.parts:
        assert part.groups is not None
        with readable(part.name, table.choice.caller):
            for some in part.groups():
                values.extend(some)
    return values


def opened_again(target: Path, choice: Choice, column: str, option: str) -> Table:
    """Return the target, opened for one more column, which `option` names."""
    if str(target) == "-":
        fail(choice.caller, option, "name a column of a file, which can be read twice", "standard input")
    return open_table(target, replace(choice, by=column, by_option=option))


def as_labels(values: Iterable[Any], classes: Sequence[str] | None) -> Any:
    """Return labels as they were meant: text that says a whole number is one, unless classes are called so."""
    found = [str(value).strip() if isinstance(value, (str, list, dict)) else value for value in values]
    if classes is None or not all(map(is_number, classes)):
        names = {*(classes or ())}
        found = [int(v.partition(".")[0]) if isinstance(v, str) and v not in names and WHOLE.fullmatch(v) else v
                 for v in found]  # fmt: skip
    return np.fromiter(found, object, len(found))


def read_ids(
    target: Path, choice: Choice, name: str | None, given_by: str = "--id"
) -> tuple[str, list[str] | None]:  # fmt: skip
    """Return what names the rows and their names: a column of ids, else None, which stands for their numbers.

    The column's name is given by an option or by a list.
    """
    for column in ID_NAMES if name is None else (name,):
        try:
            table = opened_again(target, choice, column, "--id")
        except InputError:
            if name is not None:
                raise
            continue
        ids = ["" if value is None else str(value) for value in column_values(table)]
        unique = len({*ids}) == len(ids) and "" not in ids
        if unique:
            return column, ids
        if name is not None:
            bad = next(x for x in ids if x == "" or ids.count(x) > 1)
            fail(choice.caller, given_by, f"name rows by a column of {target} that tells all of them apart",
                 f"{name!r}, which has {f'{bad!r} twice' if bad else 'nothing in one row'}",
                 remedy="Leave it out to go by the rows' numbers" if given_by == "--id" else
                 f"Name rows by their numbers, from 0, in a column {ROW!r}")  # fmt: skip
    return ROW, None


def lines_in(text: str) -> csv.DictReader[str]:
    """Return a reader of CSV, whatever stands between its fields: spreadsheets write what their country does."""
    between = max(",;\t", key=text.partition("\n")[0].count)
    return csv.DictReader(StringIO(text), delimiter=between)


def read_list(path: str, target: Path, choice: Choice, n: int, classes: Sequence[str] | None) -> Given:
    """Return the labels and weights that a filled-in list of rows gives to the `n` rows of a target."""
    with readable(path, choice.caller):
        data = Path(path).read_bytes()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        fail(choice.caller, path, "be a CSV file", "other bytes than text in UTF-8", remedy="Save the list as CSV")
    reader = lines_in(text)
    between = reader.reader.dialect.delimiter
    head = [(name or "").strip() for name in reader.fieldnames or ()]
    reader.fieldnames = head
    named = [column for column in head if column and column not in FIELDS]
    if not named or "label" not in head:
        fail(choice.caller, path, "have a column that names rows, and the column 'label'", ", ".join(head) or "nothing",
             remedy="`reprior query` writes such a file")  # fmt: skip
    name = named[0]
    lines, numbers = [], []
    for fields in reader:
        line = {key: (value or "").strip() for key, value in fields.items() if key in head and key}
        if any(line.values()):  # spreadsheets leave lines of nothing but commas
            lines.append(line)
            numbers.append(reader.line_num)
    ids = None if name == ROW else read_ids(target, choice, name, path)[1]
    place = {x: i for i, x in enumerate(ids)} if ids is not None else {str(i): i for i in range(n)}
    for number, line in zip(numbers, lines, strict=True):
        if line[name] not in place:
            fail(choice.caller, path, f"name rows of {target}", f"{name} {line[name]!r}", place=f"line {number}",
                 remedy=f"The column {name!r} of {target} names its rows" if ids is not None else
                 f"Rows go by their numbers, from 0 to {n - 1}")  # fmt: skip
    rows = [place[line[name]] for line in lines]
    if len({*rows}) < len(rows):
        twice = next(r for r in rows if rows.count(r) > 1)
        fail(choice.caller, path, "name each row once", f"{name} {lines[rows.index(twice)][name]!r} twice")
    labels, weights = [None] * n, np.ones(n)
    values = as_labels([line["label"] for line in lines], classes)
    refuse_unknown(values, lines, name, path, choice.caller, classes)
    for row, line, value in zip(rows, lines, values, strict=True):
        labels[row] = value
        if weight := line.get("weight", ""):
            weight = weight.replace(",", ".") if between != "," else weight
            if not is_number(weight):
                fail(choice.caller, path, "have numbers in the column 'weight'", repr(weight),
                     place=f"{name} {line[name]!r}")  # fmt: skip
            weights[row] = float(weight)
    return Given(as_labels(labels, classes), weights, Listed(name, lines, rows))


def refuse_unknown(
    values: Any, lines: list[dict[str, str]], name: str, path: str, caller: str, classes: Sequence[str] | None
) -> None:
    """Refuse text that names no class, by the name of its row; numbers are left to who knows what they mean."""
    bad = [i for i, value in enumerate(values) if isinstance(value, str) and value and not is_number(value)]
    bad = [i for i in bad if values[i] not in (classes or ())]
    if bad and classes:
        meant = perhaps(values[bad[0]], classes)
        fail(caller, path, "have names of classes in the column 'label', or nothing", repr(values[bad[0]]),
             place=f"{name} {lines[bad[0]][name]!r}", count=len(bad),
             remedy=(meant and f"{meant}. ") + f"The classes are {listed(classes)}")  # fmt: skip


def filled_in(path: Path) -> int:
    """Return how many rows of a list have a label, 0 if the file is no such list."""
    with suppress(OSError, ValueError, csv.Error):
        lines = lines_in(path.read_text(encoding="utf-8-sig")) if path.is_file() else ()
        return sum(bool((line.get("label") or "").strip()) for line in lines)
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
