"""Rows that are no probabilities yet, made so because the user said what they are: shares to normalise, or logits."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import IO, Any

import numpy as np

from reprior._check import fail, row_fault
from reprior._types import Matrix
from reprior.io.files import Chunk, Part, Table

VALUES = ("normalize", "logits")


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


def check_header(line: bytes, caller: str, name: str) -> None:
    """Refuse the first line of a CSV file that is in another encoding, or has other separators than commas."""
    try:
        text = line.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        fail(caller, name, "be text in UTF-8", f"another encoding: {line[:40]!r}", remedy="Save it as UTF-8")
    if "," not in text and (";" in text or "\t" in text):
        fail(caller, name, "have its columns separated by commas", repr(text.strip()[:60]),
             remedy="Save it with commas, and points in numbers")  # fmt: skip


def prepared(table: Table, values: str | None) -> Table:
    """Return a table whose rows are read as `prepare` makes them; written rows keep the type of the file."""
    if values is None:
        return table
    return replace(table, parts=tuple(_part(part, values, table.choice.caller) for part in table.parts))


def _part(part: Part, values: str, caller: str) -> Part:
    def read() -> Iterator[Chunk]:
        for number, chunk in enumerate(part.read()):
            if number == 0:
                refuse_probabilities(chunk.proba[:1000], values, caller, part.name)
            yield Chunk(prepare(chunk.proba, values), chunk.labels)

    def rewrite(file: IO[bytes], fn: Callable[[Matrix], Matrix]) -> None:
        part.rewrite(file, partial(_as_before, fn))

    def _as_before(fn: Callable[[Matrix], Matrix], rows: Matrix) -> Any:
        return fn(prepare(rows, values)).astype(rows.dtype, copy=False)

    return replace(part, read=read, rewrite=rewrite, mapped=False)
