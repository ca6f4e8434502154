"""Which columns of a table hold the classes: one rule for frames, files and streams of records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from reprior._check.words import spelled

ID_NAMES = ("id", "row_id")
LIST, FLOAT, WHOLE, OTHER = "list", "float", "whole", "other"
ROW_SUM_ERROR = 0.05  # how far a sum of rounded probabilities may be from 1


class Column(NamedTuple):
    """A column: its name, what it holds, and its first numbers, if looking at them may help to choose."""

    name: Any
    kind: str
    first: np.ndarray[Any, Any] | None = None


def number_column(name: Any, first: np.ndarray[Any, Any]) -> Column:
    """Return a column of numbers; whole numbers from 0 to 1 may be the probabilities of a class."""
    whole = first.dtype.kind in "iub" and (name in ID_NAMES or first.min(initial=0) < 0 or first.max(initial=0) > 1)
    return Column(name, WHOLE if whole else FLOAT, first)


def class_places(columns: Sequence[Column], classes: Iterable[Any] | None) -> list[int]:
    """Return the places of the columns that hold the probabilities; none if there is no telling.

    Columns called like the classes come first, in the order of `classes`, if all are there. Else it is the list
    `proba`, or the only list, or all columns of floats. Whole numbers beside floats are taken for ids, unless the
    floats do not sum to 1. Columns of anything else are left aside.
    """
    if classes is not None and (places := named_places([column.name for column in columns], classes)):
        return places
    if lists := [j for j, column in enumerate(columns) if column.kind == LIST]:
        called = [j for j in lists if columns[j].name == "proba"] or lists
        return called if len(called) == 1 else []
    return number_places(columns)


def number_places(columns: Sequence[Column]) -> list[int]:
    """Return the places of all columns of floats; and of whole numbers, unless the floats are probabilities."""
    floats = [j for j, column in enumerate(columns) if column.kind == FLOAT]
    firsts = [columns[j].first for j in floats]
    typed = any(first is None or first.dtype.kind == "f" for first in firsts)
    if len(floats) > 1 and typed and sum_to_one(columns, floats):
        return floats
    whole = [j for j, column in enumerate(columns) if column.kind == WHOLE and column.name not in ID_NAMES]
    return sorted([*floats, *whole])


def sum_to_one(columns: Sequence[Column], places: Sequence[int]) -> bool:
    """Return whether the first rows of some columns sum to about 1; they are taken to if they were not looked at."""
    looked = [first for j in places if (first := columns[j].first) is not None]
    return len(looked) < len(places) or bool((np.abs(np.sum(looked, axis=0) - 1) < ROW_SUM_ERROR).all())


def named_places(names: Sequence[Any], classes: Iterable[Any]) -> list[int]:
    """Return the place among `names` of each class; none if one of them is missing, or there twice."""
    spellings = [spelled(name) for name in names]
    place = {name: j for j, name in enumerate(spellings)}
    places = [place.get(spelled(label), -1) for label in classes]
    twice = len(place) < len(names) and any(spellings.count(spellings[j]) > 1 for j in places)
    return [] if -1 in places or twice else places
