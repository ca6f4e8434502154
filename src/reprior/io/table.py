"""What a file holds, as values: a table of parts that can be read and written again, and which columns are classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from traceback import walk_tb
from typing import IO, Any, NamedTuple, NoReturn

import numpy as np

from reprior._check import Fault, InputError, counted, difference, fail, listed, perhaps, quoted
from reprior._check.frames import FLOAT, ID_NAMES, LIST, WHOLE, Column, class_places, named_places
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

    proba: Matrix
    labels: Any = None


@dataclass(frozen=True, slots=True)
class Choice:
    """Which columns the user asked for; None: those called like the source's `classes`, else the obvious ones."""

    columns: str | None = None
    label: str | None = None
    with_labels: bool = False
    caller: str = "read"
    classes: tuple[str, ...] = ()
    aside: Mapping[str, str] = field(default_factory=dict)  # columns that hold no class: the option that names each
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
    column of sets if `classes`, the names to write there, are not None. `column(name, choice)` yields its values.
    """

    name: str
    n_classes: int
    read: Callable[[], Iterator[Chunk]]
    rewrite: Callable[[IO[bytes], Correct, Sequence[str] | None], None]
    column: Callable[[str, Choice], Iterator[list[Any]]]
    classes: tuple[str, ...] | None = None
    rows: int | None = None
    cheap: bool = False  # to read again: decoded rows need not be kept
    unused: tuple[str, ...] = ()  # columns of numbers that the source does not name
    kind: str = ""
    columns: tuple[str, ...] = ()  # taken as classes, if each class has one
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
        chunks = [chunk for _, _, chunk in self.chunks()]
        if not chunks:
            fail(self.choice.caller, self.parts[0].name, "have at least one row", "none")
        if len(chunks) == 1:
            return chunks[0]
        labels = None if chunks[0].labels is None else np.concatenate([np.asarray(c.labels) for c in chunks])
        return Chunk(np.concatenate([chunk.proba for chunk in chunks]), labels)

    def column(self, name: str, option: str) -> list[list[Any]]:
        """Return the values of a column, which `option` names, for each part; each distinct one is stored once."""
        choice, columns = replace(self.choice, aside={**self.choice.aside, name: option}), []
        distinct: dict[Any, Any] = {}
        for part in self.parts:
            with readable(part.name, choice.caller):
                columns.append([distinct.setdefault(value, value) if is_key(value) else value
                                for some in part.column(name, choice) for value in some])  # fmt: skip
        return columns


def is_key(key: Any) -> bool:
    """Return whether a value can name a group: text that is not empty, or a finite number."""
    return bool(key) if isinstance(key, str) else isinstance(key, (int, float)) and math.isfinite(key)


def group_keys(table: Table, by: str) -> list[Any]:
    """Return the keys of the rows of each part, (n,) each, from the column `by`; a row without a key is refused."""
    keys = table.column(by, "--by")
    for part, own in zip(table.parts, keys, strict=True):
        row = next((row for row, key in enumerate(own) if not is_key(key)), None)
        if row is not None:
            lacks = own[row] is None or own[row] == "" or own[row] != own[row]
            rule = f"name a group in {by!r} in every row" if lacks else "have text or numbers as keys"
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


LABEL_NAMES = ("label", "y")
MAX_COLUMNS = 50_000  # of a file; a CSV reader takes 12 kB for each, and 50 µs
FLOATS = ("double", "float", "halffloat")  # what probabilities are, and labels are not
SOUGHT = {"--by": "groups", "--id": "names of the rows", "--labels": "labels"}


def user_names(columns: tuple[str, ...] | None, n_classes: int, choice: Choice, name: str) -> tuple[str, ...] | None:
    """Return what the class columns are called: as the user says, unless they have these names in some order."""
    names = choice.names
    if not names or (columns is not None and set(columns) == set(names)):
        return columns
    if len(names) != n_classes:
        fail(choice.caller, "--classes", f"name all {n_classes} classes of {name}", f"{len(names)} names")
    if columns is not None and set(columns) & set(names):
        fail(choice.caller, "--classes", f"agree with the columns of {name}, which have names",
             classes_apart(names, n_classes, columns),
             remedy="Leave it out to use the names of the columns")  # fmt: skip
    return names


def places_of(wanted: tuple[str, ...], names: tuple[str, ...], caller: str, name: str, remedy: str = "") -> list[int]:
    """Return the place among the classes of a file, `names`, of each of the source's; other classes are refused."""
    places = named_places(names, wanted)
    if len(names) != len(wanted) or not places:
        fail(caller, name, "have the classes of the source", classes_apart(names, len(names), wanted), remedy=remedy)
    return places


def classes_apart(names: tuple[str, ...] | None, n_classes: int, wanted: tuple[str, ...] | None) -> str:
    """Return a short phrase for what a set of classes lacks, and has besides, of those wanted."""
    if names is None or wanted is None:
        count = counted(n_classes, "class", "classes")
        return count + (" without names" if names is None else f": {listed(names)}")
    return f"{n_classes} classes in another order" if sorted(names) == sorted(wanted) else difference(names, wanted)


def check_all_named(classes: tuple[str, ...] | None, n_classes: int, caller: str, name: str) -> None:
    """Refuse a file that names only some of its classes."""
    if classes is not None and len(classes) != n_classes:
        fail(caller, name, f"name all {n_classes} classes", f"{len(classes)} names")


def check_width(n_columns: int, caller: str, name: str) -> None:
    """Refuse a file of more columns than a reader of columns can hold."""
    if n_columns > MAX_COLUMNS:
        fail(caller, name, f"have at most {MAX_COLUMNS:,} columns", f"{n_columns:,}",
             remedy="Save this many classes as NPY, or as one list column in Parquet")  # fmt: skip


def pick(choice: Choice, columns: list[str]) -> list[str]:
    """Return the columns meant by "a,b,c" or by "first:last", in the order of the file."""
    wanted = choice.columns or ""
    first, colon, last = wanted.partition(":")
    if colon and wanted not in columns and first in columns and last in columns:
        chosen = columns[columns.index(first) : columns.index(last) + 1]
        if not chosen:
            fail(choice.caller, choice.option, "name the first column before the last", wanted,
                 remedy=f"In the file {last} comes before {first}")  # fmt: skip
        return chosen
    return [wanted] if wanted in columns else [column.strip() for column in wanted.split(",")]


class Chosen(NamedTuple):
    """What holds the probabilities, one column of lists or one per class; the labels; and floats that are unused."""

    names: tuple[str, ...]
    is_list: bool
    label: str | None
    unused: tuple[str, ...]


def choose(
    columns: Sequence[Column], types: dict[str, str], choice: Choice, name: str, aside: Sequence[str | None] = ()
) -> Chosen:
    """Return which columns of a file the user means, or else the obvious ones: not `aside`. Sentences show `types`."""
    check_width(len(columns), choice.caller, name)
    if len(types) < len(columns):
        fail(choice.caller, name, "have columns with different names", listed([c.name for c in columns], 30))
    label = choice.label or next((column for column in LABEL_NAMES if column in types), None)
    needed = label or "label" if choice.with_labels else choice.label
    refuse_absent([needed, *choice.aside, *aside], types, choice, name)
    free = [column for column in columns if column.name not in (label, *choice.aside, *aside)]
    names = class_names(free, choice, name)
    refuse_absent(names or ["proba"], types, choice, name)
    if not names:
        fail(choice.caller, name, "have columns of numbers, one for each class", listed([*types], 30))
    kinds = {column.name: column.kind for column in columns}
    is_list = [kinds[column] for column in names] == [LIST]
    floats = () if choice.columns or is_list else filter(holds_floats, free)
    unused = tuple(column.name for column in floats if column.name not in (*names, *LABEL_NAMES))
    return Chosen(tuple(names), is_list, label if choice.with_labels else None, unused)


def class_names(columns: Sequence[Column], choice: Choice, name: str) -> list[str]:
    """Return the names of the class columns: those that the user names, those of the source, or the obvious ones."""
    names = [column.name for column in columns]
    if choice.columns:
        return pick(choice, names)
    places = named_places(names, choice.classes) if choice.classes else []
    if not places:
        places = class_places(columns, None)
        refuse_mixed([columns[j] for j in places], choice, name)
    return [names[j] for j in places]


def refuse_mixed(columns: Sequence[Column], choice: Choice, name: str) -> None:
    """Refuse to guess whether whole numbers beside other numbers are scores or ids, if no sum of a row can show it."""
    whole = [column.name for column in columns if column.kind == WHOLE]
    others = [column.name for column in columns if holds_floats(column)]
    if choice.values and whole and others:
        fail(choice.caller, name, "have no whole numbers, which may be ids, beside the scores of the classes",
             f"{listed(whole, 10)} beside {listed(others, 10)}",
             remedy=f"Name the columns of the classes with `{choice.option}`")  # fmt: skip


def holds_floats(column: Column) -> bool:
    """Return whether a column has numbers that are not whole."""
    return column.kind == FLOAT and (column.first is None or column.first.dtype.kind == "f")


def refuse_absent(wanted: Sequence[str | None], types: dict[str, str], choice: Choice, name: str) -> None:
    """Refuse the first wanted column that is not there."""
    for column in wanted:
        if column and column not in types:
            no_column(choice, name, column, types)


def no_column(choice: Choice, name: str, wanted: str, there: dict[str, str]) -> NoReturn:
    """Refuse a column that is not there, and list what is: first what may hold labels, if it is those that lack."""
    option = choice.aside.get(wanted)
    labels = option is not None or wanted in (choice.label, *LABEL_NAMES)
    how = f"Name the columns of the probabilities with `{choice.option}`, labels with `--label`"
    how = f"Name what holds the {SOUGHT[option]} with `{option}`" if option else how
    order = sorted(there, key=lambda column: labels and there[column] in FLOATS)
    among = [column for column in order if there[column] not in FLOATS] if wanted in LABEL_NAMES else order
    how = perhaps_column(wanted, among) + how
    rule = f"have the column {wanted!r}"
    if option == "--labels":  # of some rows, which may also come as a list
        rule += ", since there is no file of that name"
        how = perhaps_file(wanted) + how
    shown = [quoted(column) + (there[column] and f" ({there[column]})") for column in order]
    fail(choice.caller, name, rule, listed(shown, 30, str) or "no column", remedy=how)


def perhaps_column(wanted: str, there: Collection[str]) -> str:
    """Return which of the columns may have been meant; where labels are wanted, the only one that can hold them."""
    able = [column for column in there if column not in ID_NAMES]
    only = able[0] if wanted in LABEL_NAMES and len(able) == 1 else wanted
    meant = perhaps(only, there)
    return meant and f"{meant}. "


def perhaps_file(wanted: str) -> str:
    """Return which file of the folder may have been meant."""
    path = Path(wanted)
    try:
        there = [file.name for file in path.parent.iterdir() if file.is_file()]
    except OSError:
        return f"There is no folder {path.parent}. "
    meant = perhaps(path.name, there, lambda name: f"the file {str(path.parent / name)!r}")
    return meant and f"{meant}. "


def left_aside(fault: Fault, n_classes: int, unused: tuple[str, ...], kind: str = "numeric columns") -> str:
    """Return what to say of rows that break a rule on their sum where the source names only some of the columns."""
    if not unused or not ("sum" in fault.rule or "zero" in fault.rule):
        return ""
    rest = listed(unused, 10)
    return f"The source names {n_classes} of the {n_classes + len(unused)} {kind}; unused: {rest}. {fault.remedy}"


def columns_hint(rule: str, part: Part, choice: Choice) -> str:
    """Return which columns rows were made of, where those break the rule on their sum."""
    if not part.columns or "sum to 1" not in rule:
        return ""
    shown = part.columns if len(part.columns) < 6 else (*part.columns[:3], "…", part.columns[-1])
    return f". The columns taken as classes are {listed(shown)}: choose others with `{choice.option}`"
