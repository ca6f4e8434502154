"""What a file holds, as values: the columns asked for, parts that can be read and written again, a table of parts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from traceback import walk_tb
from typing import IO, Any, NamedTuple

import numpy as np

from reprior._check import InputError, fail
from reprior._types import Matrix

Opener = Callable[[], IO[bytes]]


class Corrected(NamedTuple):
    """Corrected rows (n, K), and which classes are in the set of each, (n, K), if sets are written beside them."""

    rows: Matrix
    inside: Any = None


Correct = Callable[[Matrix], Corrected]
SET = "set"  # the column of the sets


def set_names(inside: Any, classes: Sequence[str]) -> list[list[str]]:
    """Return sets (n, K) as lists of the names of their classes."""
    return [[name for name, is_in in zip(classes, row, strict=True) if is_in] for row in inside]


def refuse_set_column(there: Iterable[str], caller: str, part: str) -> None:
    """Refuse a file that has a column of the name of the sets already."""
    if SET in there:
        fail(caller, part, f"have no column {SET!r}, where sets are written", "one", remedy="Rename it")


class Chunk(NamedTuple):
    """Rows as they came: `proba` (n, K) of any float type, `labels` (n,) if they were asked for."""

    proba: Matrix  # or NpyRows, which are sliced alike
    labels: Any = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which columns the user asked for; None: those called like the source's `classes`, else the obvious ones."""

    columns: str | None = None
    label: str | None = None
    with_labels: bool = False
    caller: str = "read"
    classes: tuple[str, ...] = ()
    by: str | None = None  # what holds the group of each row, or what else `by_option` asks for
    by_option: str = "--by"
    names: tuple[str, ...] = ()  # what to call the class columns, whatever the file calls them
    values: str | None = None  # what rows become probabilities by: "normalize", "logits", or None if they are some

    @property
    def option(self) -> str:
        """What the user names the class columns with."""
        return "--source-columns" if self.with_labels and self.caller != "simulate" else "--columns"


@dataclass(frozen=True, slots=True)
class Part:
    """One file of rows: `read()` starts again at its first row each time.

    `rewrite(file, fn, classes)` writes a file of the same kind with each block of rows replaced by fn(rows), and with a
    column of sets if `classes`, the names to write there, are not None. `groups()` yields the keys of all rows.
    """

    name: str
    n_classes: int
    read: Callable[[], Iterator[Chunk]]
    rewrite: Callable[[IO[bytes], Correct, Sequence[str] | None], None]
    classes: tuple[str, ...] | None = None
    rows: int | None = None
    mapped: bool = False
    unused: tuple[str, ...] = ()  # columns of numbers that the source does not name
    kind: str = ""
    columns: tuple[str, ...] = ()  # taken as classes, if each class has one
    groups: Callable[[], Iterator[list[Any]]] | None = None
    label: str | None = None  # what holds the labels, if they were asked for


@dataclass(frozen=True, slots=True)
class Table:
    """Parts that together hold the rows of one data set, all with the same classes in the same order."""

    parts: tuple[Part, ...]
    choice: Choice = field(repr=False, default_factory=Choice)

    @property
    def n_classes(self) -> int:
        return self.parts[0].n_classes

    @property
    def classes(self) -> tuple[str, ...] | None:
        return self.parts[0].classes

    @property
    def rows(self) -> int | None:
        sizes = [part.rows for part in self.parts]
        return None if None in sizes else sum(filter(None, sizes))

    def chunks(self) -> Iterator[tuple[Part, int, Chunk]]:
        """Yield each chunk with its part and the number of its first row within the part."""
        for part in self.parts:
            first = 0
            with readable(part.name, self.choice.caller):
                for chunk in part.read():
                    if len(chunk.proba):
                        yield part, first, chunk
                    first += len(chunk.proba)

    def load(self) -> Chunk:
        """Return all rows at once; for held-out data, which fits in memory."""
        chunks = [Chunk(chunk.proba[:], chunk.labels) for _, _, chunk in self.chunks()]
        if not chunks:
            fail(self.choice.caller, self.parts[0].name, "have at least one row", "none")
        if len(chunks) == 1:
            return chunks[0]
        labels = None if chunks[0].labels is None else np.concatenate([np.asarray(c.labels) for c in chunks])
        return Chunk(np.concatenate([chunk.proba for chunk in chunks]), labels)


def column_values(part: Part, choice: Choice) -> list[Any]:
    """Return the values in all rows of the column `choice.by`, each distinct one stored once."""
    assert part.groups is not None
    distinct: dict[Any, Any] = {}
    with readable(part.name, choice.caller):
        return [distinct.setdefault(value, value) if is_key(value) else value
                for some in part.groups() for value in some]  # fmt: skip


def is_key(key: Any) -> bool:
    """Return whether a value can name a group: text that is not empty, or a finite number."""
    return bool(key) if isinstance(key, str) else isinstance(key, (int, float)) and math.isfinite(key)


def group_keys(table: Table) -> list[Any]:
    """Return the keys of the rows of each part, (n,) each; a row without a key is refused."""
    keys = [column_values(part, table.choice) for part in table.parts]
    for part, own in zip(table.parts, keys, strict=True):
        row = next((row for row, key in enumerate(own) if not is_key(key)), None)
        if row is not None:
            lacks = own[row] is None or own[row] == "" or own[row] != own[row]
            rule = f"name a group in {table.choice.by!r} in every row" if lacks else "have text or numbers as keys"
            fail(table.choice.caller, part.name, rule, "none" if lacks else repr(own[row])[:60],
                 place=f"row {row} of this file (the first is row 0)",
                 remedy="Drop those rows, or give them a key of their own")  # fmt: skip
    return [np.fromiter(own, object, len(own)) for own in keys]


@contextmanager
def readable(name: str, caller: str) -> Iterator[None]:
    """Turn whatever a reader raises about a file into the one sentence that names the file.

    Libraries do not agree on what a damaged file raises, so every other error is taken for one.
    """
    try:
        yield
    except (InputError, ImportError, AssertionError, AttributeError, NameError, MemoryError):
        raise
    except UnicodeDecodeError:
        fail(caller, name, "be text in UTF-8", "other bytes", remedy="Save it as UTF-8")
    except Exception as error:
        *_, (last, _) = walk_tb(error.__traceback__)
        here = str(last.f_globals.get("__name__")).startswith("reprior.")  # and not in a library that we called
        if (here and isinstance(error, (LookupError, TypeError))) or getattr(error, "filename", None):
            raise  # a mistake of ours, or a sentence that names the file
        reason = " ".join(str(error).split())[:200]
        fail(caller, name, "be a readable, whole file", repr(reason))

