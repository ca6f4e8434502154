"""Which columns of a file hold the classes, how they match those of the source, and what to say where they do not."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

from reprior._check import Fault, counted, difference, fail, listed, perhaps, quoted
from reprior._check.frames import FLOAT, ID_NAMES, LIST, WHOLE, Column, class_places, named_places
from reprior.io.table import Choice, Part

LABEL_NAMES = ("label", "y")
MAX_COLUMNS = 50_000  # of a file; a CSV reader takes 12 kB for each, and 50 µs
FLOATS = ("double", "float", "halffloat")  # what probabilities are, and labels are not
SOUGHT = {"--by": "groups", "--id": "names of the rows", "--labels": "labels"}


def called(columns: tuple[str, ...] | None, n_classes: int, choice: Choice, name: str) -> tuple[str, ...] | None:
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
    refuse_absent([needed, choice.by, *aside], types, choice, name)
    free = [column for column in columns if column.name not in (label, choice.by, *aside)]
    names = class_names(free, choice, name)
    refuse_absent(names or ["proba"], types, choice, name)
    if not names:
        fail(choice.caller, name, "have columns of numbers, one for each class", listed([*types], 30))
    kinds = {column.name: column.kind for column in columns}
    is_list = [kinds[column] for column in names] == [LIST]
    unused = () if choice.columns or is_list else unused_floats(free, names)
    return Chosen(tuple(names), is_list, label if choice.with_labels else None, unused)


def unused_floats(columns: Sequence[Column], names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of floats that are neither classes nor labels."""
    used = {*names, *LABEL_NAMES}
    return tuple(column.name for column in columns if holds_floats(column) and column.name not in used)


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
    labels = wanted in (choice.by, choice.label, *LABEL_NAMES)
    how = f"Name the columns of the probabilities with `{choice.option}`, labels with `--label`"
    some = wanted == choice.label and not choice.with_labels  # labels of some rows, which also come as a list
    if wanted == choice.by or some:
        held = "labels with `--labels`" if some else f"{SOUGHT[choice.by_option]} with `{choice.by_option}`"
        how = f"Name what holds the {held}"
    order = sorted(there, key=lambda column: labels and there[column] in FLOATS)
    among = [column for column in order if there[column] not in FLOATS] if wanted in LABEL_NAMES else order
    how = perhaps_column(wanted, among) + how
    rule = f"have the column {wanted!r}"
    if some:
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
    return f"The source names {n_classes} of the {n_classes + len(unused)} {kind}; unused: {rest}. {fault.shell}"


def taken(rule: str, part: Part, choice: Choice) -> str:
    """Return which columns rows were made of, where those break the rule on their sum."""
    if not part.columns or "sum to 1" not in rule:
        return ""
    shown = part.columns if len(part.columns) < 6 else (*part.columns[:3], "…", part.columns[-1])
    return f". The columns taken as classes are {listed(shown)}: choose others with `{choice.option}`"
