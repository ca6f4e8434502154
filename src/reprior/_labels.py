"""Labels as column indices: one map, whatever the classes are called."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

# isort: off
from reprior._check import (
    UNNAMED, check_classes, check_logits, check_order, check_proba, column_map, counted, fail, in_columns, is_masked,
    is_none, listed, names_of, number_of, own_names, perhaps, quoted, refuse_where, spelled, values_of,
)  # fmt: skip
# isort: on
from reprior._types import Labels, Matrix

MISSING = ("nan", "None", "NaT", "<NA>")  # what missing labels turn into where names are made text
WHOLE_FLOATS = 2.0**53  # from here on floats skip whole numbers
WHOLE_NUMBER = re.compile(r"(-?[0-9]{1,18})(\.0*)?")  # numbers, which beside a gap are written as 2.0


def same_rows(proba: Any, y: Any, caller: str, name: str = "y", rows: str = "proba") -> None:
    """Refuse a Series of labels whose index has the rows of a DataFrame in another order."""
    a: Any = getattr(proba, "index", None)
    b: Any = getattr(y, "index", None)
    if not (hasattr(a, "equals") and hasattr(b, "equals")) or len(a) != len(b) or a.equals(b):
        return
    if set(a) == set(b):
        fail(caller, name, f"have its rows in the order of `{rows}`", "the same index in another order",
             remedy=f"Pass `{name}.loc[{rows}.index]`")  # fmt: skip


class Labelled(NamedTuple):
    """Rows (n, K), the column of each row's class (n,), and the classes' names if they are known."""

    rows: Matrix
    y: Labels
    classes: tuple[str, ...] | None


def check_labelled(proba: Any, y: Any, caller: str, classes: Any = None, *, logits: bool = False) -> Labelled:
    """Return rows and their labels, both checked; columns of a DataFrame are put in the order of `classes` (K,)."""
    check_order(classes, caller)
    values, names = names_of(proba, own_names(proba, classes), caller)
    same_rows(proba, y, caller)
    rows = check_logits(values, caller) if logits else check_proba(values, caller)
    called = check_classes(classes, names, rows.shape[1], caller)
    rows = in_columns(rows, names, called, caller)
    return Labelled(rows, check_labels(y, caller, "y", len(rows), rows.shape[1], called), called)


def check_labels(
    y: Any, caller: str, name: str, n: int, n_classes: int, classes: Sequence[Any] | None = None,
    *, place: Callable[[int], str] = "row {}".format,
) -> Labels:  # fmt: skip
    """Return labels (n,) as column indices: the one map from labels to columns.

    A label is the name of its class. A whole number is the index of its column, unless the classes' own names are
    whole numbers: then it is a name like any other. False and True are 0 and 1, and the other way round, where the
    classes are called so, or are two without names.
    """
    values = _read(y, n, caller, name, "one label per sample")
    if is_masked(y) and np.ma.is_masked(y):
        fail(caller, name, "have no masked value", "some", remedy="Drop those rows")
    text = values.dtype.kind in "UOST"
    names = [] if classes is None else [str(label) for label in classes]
    refuse_where(_unknown(values, names), caller, name, "hold the class of every row", "a missing label",
                 remedy="Drop those rows" * (n > 1), place=place)  # fmt: skip
    numbers = range(n_classes) if classes is None else values_of(names)
    if values.dtype.kind == "b" and {*(numbers or ())} != {0, 1}:
        fail(caller, name, "hold names of classes, or column indices", "False or True",
             remedy=UNNAMED if classes is None else f"The classes are {listed(classes)}")  # fmt: skip
    if classes is not None and (text or numbers is not None):
        return _by_name(values, classes, caller, name, place)
    if text:
        fail(caller, name, "hold the column index of each row's class", f"names, as {str(values[0])!r}", remedy=UNNAMED)
    if values.dtype.kind not in "iubf":
        fail(caller, name, "hold names or whole numbers", f"dtype {values.dtype}")
    if values.dtype.kind == "f" and not np.all(values == np.floor(values)):
        fail(caller, name, "hold whole numbers, the column index of each row's class", f"dtype {values.dtype}")
    refuse_where((values < 0) | (values >= n_classes), caller, name, f"lie between 0 and {n_classes - 1}", values,
                 remedy="Whole numbers are column indices of the probabilities, from 0, unless the columns have numbers"
                 f" for names. {UNNAMED}", place=place)  # fmt: skip
    return values.astype(np.intp, copy=False)


def _read(y: Any, n: int, caller: str, name: str, each: str) -> np.ndarray[Any, Any]:
    """Return labels as an array (n,), of whatever they are."""
    try:
        values = y.cpu().numpy() if hasattr(y, "detach") else np.asarray(y)
    except ValueError:
        fail(caller, name, "be a list of labels", "ragged values")
    if values.shape != (n,):
        fail(caller, name, f"have shape ({n},), {each}", f"shape {values.shape}")
    if values.dtype.kind in "US" and not isinstance(y, np.ndarray):
        return np.asarray(y, object)  # a list with NaN in it would be one with the text "nan"
    return values


def check_some_labels(
    y: Any, caller: str, n: int, n_classes: int, classes: Sequence[str] | None = None, name: str = "labels",
    *, place: Callable[[int], str] = "row {}".format,
) -> Labels:  # fmt: skip
    """Return labels of some rows (n,) as column indices. −1, None, NaN and "" are unknown; −1 may be a class."""
    if is_masked(y):
        y = np.where(np.ma.getmaskarray(y), None, y.data)  # what is masked is unknown
    values = _read(y, n, caller, name, "one per sample and −1 where unknown")
    values = values.astype(object) if values.dtype.kind in "US" else values  # room for any name
    nothing = () if classes is not None and any(number_of(c) == -1 for c in classes) else (-1, "-1")
    out, labelled = np.full(n, -1, np.intp), np.flatnonzero(~_unknown(values, nothing=nothing))
    if len(labelled):
        there = values[labelled]
        if there.dtype == object and all(isinstance(v, (int, float, np.number)) for v in there):
            there = np.array(there.tolist())
        out[labelled] = check_labels(there, caller, name, len(labelled), n_classes, classes,
                                  place=lambda i: place(int(labelled[i])))  # fmt: skip
    return out


def _unknown(values: np.ndarray[Any, Any], names: Sequence[str] = (), nothing: Sequence[Any] = ()) -> Any:
    """Return which labels (n,) are missing, unless they are `names` of classes, or are among `nothing`."""
    if values.dtype.kind in "UOST":
        each = values.tolist()
        return np.array([(is_missing(v) and str(v) not in names) or v in nothing for v in each], bool)
    unknown = np.isnan(values) if values.dtype.kind == "f" else np.zeros(len(values), bool)
    return unknown | (values == -1) if nothing else unknown


def is_missing(label: Any) -> bool:
    """Return whether a label says nothing: no value, or no text."""
    return is_none(label) or label in ("", b"")


def named(y: Labels, classes: Sequence[str] | None) -> Any:
    """Return column indices (n,) as names, if there are any: `check_labels` would take indices for numeric names."""
    return y if classes is None else np.asarray(classes)[y]


def column_of(label: Any, columns: dict[Any, int]) -> int:
    """Return the column of a label by the map of its classes, −1 if it is of none; 2.0 is the label 2."""
    name = spelled(label) if isinstance(label, str) else label
    if name not in columns and WHOLE_NUMBER.fullmatch(str(label)):
        name = WHOLE_NUMBER.sub(r"\1", str(label))
    return columns.get(name, -1)


def _by_name(
    values: np.ndarray[Any, Any], classes: Sequence[Any], caller: str, name: str, place: Callable[[int], str]
) -> Labels:
    """Return the column of each label (n,) by its name, or by its value where names are numbers."""
    columns = column_map(classes)
    if values.dtype.kind == "f" and (np.abs(values) >= WHOLE_FLOATS).any():
        fail(caller, name, "hold whole numbers from 2**53 on as integers or text", f"dtype {values.dtype}",
             remedy="Floats cannot represent all of these numbers")  # fmt: skip
    if values.dtype == object:  # NumPy's own text drops a NUL character at the end
        places: dict[str, int] = {}
        which = np.array([places.setdefault(str(label), len(places)) for label in values.tolist()])
        kinds: list[Any] = list(places)
    else:
        unique, which = np.unique(values, return_inverse=True)
        kinds = unique.tolist()
    column = np.array([column_of(label, columns) for label in kinds], np.intp)
    labels: Labels = column[which.reshape(-1)]
    if not (labels < 0).any():
        return labels
    first = values[np.argmax(labels < 0)]  # what is shown, and so what the hint is about
    got, meant = quoted(first), ""
    if isinstance(first, str) and first in MISSING:
        got = f"the text {str(first)!r}"
        meant = "Pass None for an unknown label: in an array of text NumPy turns NaN into 'nan'"
    elif isinstance(first, str) and number_of(first) is None:
        meant = perhaps(first, map(str, classes))
    remedy = (meant and f"{meant}. ") + f"The classes are {listed(classes)}"
    if len(labels) > 1 and (labels < 0).all():
        remedy += (
            ". If the columns have other names than the classes, pass the class names as `classes` (on the command"
            " line: `--classes FILE`)"
        )
    refuse_where(labels < 0, caller, name, "hold names of classes", got, remedy=remedy, place=place)
    return labels


def check_label(y: Any, caller: str, n_classes: int, classes: Sequence[str] | None = None, name: str = "y") -> int:
    """Return the column of one sample's label, a name or an index; a single float is no index."""
    if classes is not None and isinstance(y, (float, np.floating)) and y == y and values_of(classes) is None:
        fail(caller, name, "be the name of a class, or a column index", y, remedy=f"The classes are {listed(classes)}")
    return int(check_labels([y], caller, name, 1, n_classes, classes, place=lambda _: "")[0])


def check_learned(labels: int, n: float, caller: str, of: str = "") -> None:
    """Refuse more labels than the `n` samples that a stream has learned; `of` names the stream."""
    if labels > n:
        got = f"{counted(labels, 'label')} of {counted(n, 'sample')}{of}"
        fail(caller, "y", "belong to samples that were learned", got,
             remedy="Learn a sample first. Each sample takes one label")  # fmt: skip
