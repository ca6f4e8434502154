"""Which columns of a file hold the classes, how they match those of the source, and what to say where they do not."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from reprior._check import Fault, counted, difference, fail, listed, perhaps, quoted, spelled
from reprior.io.table import Choice, Part

LABEL_NAMES = ("label", "y")
ID_NAMES = ("id", "row_id")
FLOATS = ("double", "float", "halffloat")  # what probabilities are, and labels are not
SOUGHT = {"--by": "groups", "--id": "names of the rows", "--labels": "labels"}


def called(columns: tuple[str, ...] | None, n_classes: int, choice: Choice, name: str) -> tuple[str, ...] | None:
    """Return what the class columns are called: as the user says, unless they have these names already, in whatever
    order. Names of which only some agree are refused."""
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


def places_of(wanted: tuple[str, ...], found: tuple[str, ...], caller: str, name: str, remedy: str = "") -> list[int]:
    """Return the place among the classes `found` in a file of each of the source's; others than those are refused."""
    place, ours = {spelled(label): j for j, label in enumerate(found)}, [spelled(label) for label in wanted]
    if place.keys() != {*ours} or len(place) < len(found):
        fail(caller, name, "have the classes of the source", classes_apart(found, len(found), wanted), remedy=remedy)
    return [place[label] for label in ours]


def named_in(classes: tuple[str, ...], columns: Collection[str]) -> list[str]:
    """Return the columns that are called as the classes, in their order; none if one of them is not there."""
    there = {spelled(column): column for column in columns}
    return [there[spelled(label)] for label in classes] if there.keys() >= {*map(spelled, classes)} else []


def classes_apart(found: tuple[str, ...] | None, n_classes: int, wanted: tuple[str, ...] | None) -> str:
    """Return a short phrase for what a set of classes lacks, and has besides, of those wanted."""
    if found is None or wanted is None:
        said = counted(n_classes, "class", "classes")
        return said + (" without names" if found is None else f": {listed(found)}")
    return f"{n_classes} classes in another order" if sorted(found) == sorted(wanted) else difference(found, wanted)


def check_names(classes: tuple[str, ...] | None, caller: str, name: str) -> None:
    """Refuse class names that are no text, as half a surrogate pair in JSON: nothing could print or store them."""
    for label in classes or ():
        try:
            label.encode()
        except UnicodeEncodeError:
            fail(caller, name, "have class names that are text", ascii(label), remedy="Rename that class")


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


def beside(numbers: dict[str, Any]) -> set[str]:
    """Return which columns {name: its first values} hold whole numbers beside probabilities: they are no classes."""
    whole = {
        name for name, x in numbers.items() if x.dtype.kind in "iu" and (name in ID_NAMES or x.min() < 0 or x.max() > 1)
    }
    rest = [x for name, x in numbers.items() if name not in whole]
    if len(rest) < 2 or not any(x.dtype.kind == "f" for x in rest):
        return set()
    sums = np.sum(rest, axis=0)
    return whole if (np.abs(sums - 1) < 0.05).all() else whole.intersection(ID_NAMES)  # rounded, or no shares yet


def no_column(choice: Choice, name: str, wanted: str, there: dict[str, str]) -> NoReturn:
    """Refuse a column that is not there, and list what is: first what may hold labels, if it is those that lack."""
    labels = wanted in (choice.by, choice.label, *LABEL_NAMES)
    how = f"Name what holds the probabilities with `{choice.option}`, labels with `--label`"
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
    """Return which of the columns may have been meant; where labels are wanted, the only one that can hold them, which
    is none that names rows."""
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
