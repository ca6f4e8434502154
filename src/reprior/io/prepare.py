"""Rows that become probabilities as the user asks: by dividing by their sum, or by softmax. And columns in order."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import IO

import numpy as np

from reprior._check import fail, row_fault
from reprior._types import Matrix
from reprior.io.columns import check_width, classes_apart, places_of
from reprior.io.table import Chunk, Correct, Corrected, Part, Table
from reprior.state import MAGIC

CHUNK_NUMBERS = 1 << 21  # prepared at once
DECIMAL_NUMBER = re.compile(r"[+-]?(\d+\.\d*|\.\d+)([eE][+-]?\d+)?|[+-]?\d+[eE]-\d+")
QUOTED = re.compile(r'"[^"]*"')
CONTROL = re.compile(rb"(?!\xff\xfe|\xfe\xff).*[\x01-\x08\x0e-\x19\x1b-\x1f]", re.S)  # no text, unless in UTF-16


def prepare(rows: Matrix, values: str | None) -> Matrix:
    """Return rows (n, K) as probabilities of at least float32; a row that cannot be one stays bad, for checks to find.

    >>> prepare(np.array([[3.0, 1.0], [0.0, 0.0]]), "normalize")
    array([[0.75, 0.25],
           [0.  , 0.  ]])
    """
    if values is None:
        return rows
    wide = rows.astype(np.result_type(rows.dtype, np.float32))
    with np.errstate(invalid="ignore", over="ignore"):
        if values == "logits":
            wide -= wide.max(axis=1, keepdims=True)
            np.exp(wide, out=wide)
        sums = wide.sum(axis=1, keepdims=True)
        wide /= np.where(sums > 0, sums, 1.0)
    return wide


def refuse_probabilities(rows: Matrix, values: str | None, caller: str, name: str) -> None:
    """Refuse as logits what are probabilities already: their softmax would look fine and mean nothing."""
    if values == "logits" and len(rows) and row_fault(np.asarray(rows, np.float64)) is None:
        fail(caller, name, "hold logits", "rows that sum to 1, as probabilities do", remedy="Leave out `--logits`")


def read_text(line: bytes, caller: str, name: str) -> str:
    """Return the first line of a file as text, or say what the file is instead."""
    if line.startswith(MAGIC):
        fail(caller, name, "hold a table", "a file that reprior has saved",
             remedy="Give the table itself here, and that file as `--source`")  # fmt: skip
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" not in text:
        return text
    if CONTROL.match(line):
        fail(caller, name, "be a file of a kind that reprior reads", "binary data",
             remedy="Give CSV, NDJSON, Parquet, Arrow, NPY or NPZ")  # fmt: skip
    fail(caller, name, "be text in UTF-8", f"another encoding: {line[:40]!r}", remedy="Save it as UTF-8")


def check_commas(text: str, caller: str, name: str) -> None:
    """Refuse a line of column names that have something else than commas between them.

    A name may hold a comma, or a semicolon, and mostly has a space behind it then; between columns there is none.
    """
    bare = QUOTED.sub("x", text)
    commas, semicolons, tabs = (len(re.findall(rf"{mark}\S", bare)) for mark in (",", ";", "\t"))
    if commas < max(semicolons, tabs) or ("," not in bare and (";" in bare or "\t" in bare)):
        fail(caller, name, "have its columns separated by commas", repr(text.strip()[:60]),
             remedy="Save it with commas, and points in numbers")  # fmt: skip


def check_header(line: bytes, caller: str, name: str, classes: Sequence[str] = ()) -> None:
    """Refuse the first line of a CSV file that is in another encoding, has other separators than commas, or is a row.

    Names that look like probabilities are a row, unless they are `classes`.
    """
    text = read_text(line, caller, name)
    try:
        names = [cell.strip() for cell in next(csv.reader([text.strip()], strict=True), [])]
    except csv.Error as error:  # as for a file that has only \r at the ends of its lines, or quotes before semicolons
        check_commas(text, caller, name)
        fail(caller, name, "begin with a line of column names", repr(text.strip()[:60]),
             remedy=f"Save it as CSV with an end after each line ({error})")  # fmt: skip
    check_width(len(names), caller, name)
    if classes and {*classes} <= {*names}:
        return
    check_commas(text, caller, name)
    if sum(map(bool, map(DECIMAL_NUMBER.fullmatch, names))) > 1:
        fail(caller, name, "begin with a line of column names", repr(text.strip()[:60]),
             remedy="Put the names of the classes before the first row")  # fmt: skip


def slices(part: Part) -> Iterator[Chunk]:
    """Yield the rows of a part in chunks of limited size; an NPY file has one chunk."""
    step = max(1, CHUNK_NUMBERS // part.n_classes)
    for chunk in part.read():
        for at in range(0, len(chunk.proba), step):
            labels = None if chunk.labels is None else chunk.labels[at : at + step]
            yield Chunk(chunk.proba[at : at + step], labels)


def prepared(table: Table) -> Table:
    """Return a table whose rows are read as `prepare` makes them; written rows keep the type of the file."""
    values = table.choice.values

    def of(part: Part) -> Part:
        def read() -> Iterator[Chunk]:
            for number, chunk in enumerate(slices(part)):
                if number == 0:
                    refuse_probabilities(chunk.proba[:1000], values, table.choice.caller, part.name)
                yield chunk._replace(proba=prepare(chunk.proba, values))

        def rewrite(file: IO[bytes], fn: Correct, names: Sequence[str] | None) -> None:
            def fixed(rows: Matrix) -> Corrected:
                made = fn(prepare(rows, values))
                return made._replace(rows=made.rows.astype(rows.dtype, copy=False))

            part.rewrite(file, fixed, names)

        return replace(part, read=read, rewrite=rewrite, mapped=False)

    return table if values is None else replace(table, parts=tuple(map(of, table.parts)))


def ordered(table: Table, classes: tuple[str, ...] | None, n_classes: int) -> Table:
    """Return a table whose rows are read, and written, with their columns in the order of `classes` (K,)."""
    part, caller = table.parts[0], table.choice.caller
    remedy = f"Choose the class columns with `{table.choice.option}`; say what they are called with `--classes FILE`"
    if part.n_classes != n_classes:
        fail(caller, part.name, f"have the {n_classes} classes of the source",
             classes_apart(part.classes, part.n_classes, classes), remedy=remedy)  # fmt: skip
    if classes is None or part.classes is None or part.classes == classes:
        return table
    order = np.array(places_of(classes, part.classes, caller, part.name, remedy))
    back = np.argsort(order).tolist()

    def of(part: Part) -> Part:
        def read() -> Iterator[Chunk]:
            return (chunk._replace(proba=np.ascontiguousarray(chunk.proba[:, order])) for chunk in slices(part))

        def rewrite(file: IO[bytes], fn: Correct, names: Sequence[str] | None) -> None:
            def fixed(rows: Matrix) -> Corrected:
                made = fn(np.ascontiguousarray(rows[:, order]))
                return Corrected(made.rows[:, back], None if made.inside is None else made.inside[:, back])

            part.rewrite(file, fixed, None if names is None else [names[j] for j in back])

        return replace(part, read=read, rewrite=rewrite, mapped=False, classes=classes)

    return replace(table, parts=tuple(map(of, table.parts)))
