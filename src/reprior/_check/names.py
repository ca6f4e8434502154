"""Names of classes: what rows and counts call their columns, and how these are matched."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from reprior._check.arrays import as_array
from reprior._check.errors import UNNAMED, counted, fail, listed, spelled
from reprior._check.frames import frame_of, is_default, named_places, number_of, put_back
from reprior._types import Labels

NO_TEXT = re.compile("[\0\ud800-\udfff]")  # what nothing can store: the end of a C string, half a surrogate pair


def names_of(
    x: Any, classes: Sequence[Any] | None = None, caller: str = "", name: str = "proba"
) -> tuple[Any, tuple[Any, ...] | None]:
    """Return the numbers of `x`, and what it calls its classes: keys of a mapping, or columns of a frame.

    The numbers 0 to K − 1 are column indices and no names, unless `classes` are called so: the numbers of `x` are then
    put in their order. Beside names that are no numbers they must come in order. What pandas numbers by itself has no
    names; beside classes that are the same numbers in another order it is refused.
    """
    frame = frame_of(x, classes, caller, name)
    if frame is None:
        return x, None
    names, values = frame.names, frame.values
    if isinstance(values, np.ndarray) and values.dtype.kind == "O" and values.ndim == 2:
        for column, cells in zip(names, values.T, strict=True):
            if texts := [cell for cell in cells.tolist() if isinstance(cell, (str, bytes))]:
                fail(caller, name, "hold only numbers", f"text, as {texts[0]!r}, in the column {column!r}",
                     remedy="Remove that column, or convert it to numbers")  # fmt: skip
    if is_default(names) and are_reordered(names, classes):
        fail(caller, name, f"have class names, like the classes {listed(classes or ())}",
             f"0 to {len(names) - 1}, which pandas writes if there are no names",
             remedy=f"Pass `{name}.to_numpy()` if it is in the order of the classes, otherwise name it, for example"
             " with `set_axis`")  # fmt: skip
    order = index_order(names, classes)
    if order is None:
        return values, tuple(names)
    if classes is not None and values_of(classes) is None and order.tolist() != list(range(len(order))):
        fail(caller, name, f"use the class names {listed(classes)}",
             f"the whole numbers {listed(list(names))}", remedy="Use the class names, or pass the"
             " numbers without names, in the order of the classes")  # fmt: skip
    return values[..., order], (False, True) if are_truths(names) else None


def by_name(x: Any, classes: Sequence[str] | None, caller: str, name: str = "proba") -> Any:
    """Return the numbers of rows (n, K), or of one (K,), in the order of `classes` by name where both have names."""
    return in_columns(*names_of(x, classes, caller, name), classes, caller, name)


def in_columns(rows: Any, names: Any, classes: Sequence[str] | None, caller: str, name: str = "proba") -> Any:
    """Return rows (n, K) whose columns have these names in the order of `classes`; without names, as they are."""
    if names is None or classes is None or [str(label) for label in names] == list(classes):
        return rows
    order = order_of(names, classes, caller, name)
    return rows.in_order(order) if hasattr(rows, "in_order") else rows[..., order]


def like_input(rows: Any, x: Any, classes: Sequence[str] | None) -> Any:
    """Return `rows` (n, K) or (K,), in the order of `classes`, with the names, order and other columns of `x`."""
    frame = frame_of(x, classes, numbers=False)
    if frame is None:
        return rows
    order: Any = index_order(frame.names, classes)
    if order is None:
        order = range(len(frame.names)) if classes is None else order_of(frame.names, classes, "correct", "proba")
    return put_back(rows[..., np.argsort(order)], x, frame)


def own_names(x: Any, classes: Sequence[Any] | None) -> Sequence[Any] | None:
    """Return names to match columns by: `classes`, else their own; None if there are none, or numbers from 0 on."""
    frame = frame_of(x, classes, numbers=False)
    if frame is None or is_default(frame.names):
        return None
    names = frame.names
    plain = not are_truths(names) and list(names) == list(range(len(names)))
    return classes if classes is not None else None if plain else tuple(names)


def are_truths(names: Any) -> bool:
    """Return whether names are False and True themselves."""
    return len(names) == 2 and all(isinstance(label, (bool, np.bool_)) for label in names) and names[0] != names[1]


def values_of(names: Iterable[Any]) -> list[float] | None:
    """Return the numbers that names say, False and True as 0 and 1, whole numbers exactly; None unless all say one.

    >>> values_of(["2", "0.5", 1]), values_of(["True", "False"]), values_of(["True", "2"])
    ([2, 0.5, 1], [1, 0], None)
    """
    texts = [str(name) for name in names]
    truths = {*texts} == {"False", "True"}
    values = [int(text == "True") if truths else number_of(text) for text in texts]
    return None if None in values else values  # type: ignore[return-value]


def column_map(classes: Sequence[Any]) -> dict[Any, int]:
    """Return the column of each class by its name, and by its value where all names are numbers: the one map."""
    numbers = values_of(classes) or ()
    return {value: j for j, value in enumerate(numbers)} | {spelled(label): j for j, label in enumerate(classes)}


def index_order(names: Any, classes: Sequence[Any] | None) -> Labels | None:
    """Return the order that sorts names which are column indices; None where they are names."""
    if is_default(names):
        return np.arange(len(names))
    try:
        indices = set(names) == set(range(len(names)))
    except TypeError:  # what cannot be hashed is no index
        indices = False
    if classes is None and {str(label) for label in names} == {*map(str, range(len(names)))}:
        indices = True  # columns of Arrow and polars are always called by text
    if not indices:
        return None
    if classes is not None:
        same = {str(label) for label in names} == {str(label) for label in classes}
        if same or are_truths(names) or are_reordered(names, classes):
            return None
    return np.argsort(np.asarray(names, int))


def are_reordered(names: Any, classes: Sequence[Any] | None) -> bool:
    """Return whether `classes` are called by the same numbers as columns, but not in ascending order."""
    labels = values_of(classes or ()) or []
    return labels != sorted(labels) and set(labels) == set(names)


def order_of(names: Sequence[Any], classes: Sequence[Any], caller: str, name: str) -> list[int]:
    """Return the place in `names` of each of `classes`, which must be the same names."""
    places = named_places(names, classes)
    if len(names) != len(classes) or not places:
        spellings, classes = [spelled(label) for label in names], [spelled(label) for label in classes]
        fail(caller, name, f"have the {len(classes)} classes of the source", difference(spellings, classes),
             remedy=f"The classes are {listed(classes)}")  # fmt: skip
    return places


def difference(names: Sequence[str], wanted: Sequence[str]) -> str:
    """Return a short phrase for what a set of class names lacks, and has besides, of those wanted."""
    there = Counter(names)
    parts = {
        "without {}": [c for c in wanted if c not in there], "with {} besides": [c for c in names if c not in wanted],
        "with {} twice": [c for c, times in there.items() if times > 1],
    }  # fmt: skip
    phrases = [say.format(listed(some, 5)) for say, some in parts.items() if some]
    return f"{counted(len(names), 'class', 'classes')}, " + " and ".join(phrases)


def in_order(
    x: Any, caller: str, name: str, classes: Sequence[str] | None = None
) -> tuple[np.ndarray[Any, Any], tuple[str, ...] | None]:
    """Return one number a class (K,), put in the order of `classes` by name, and the names if there are any.

    Where the columns have no names, those of `x` must come in the order that classifiers use, which is sorted: the
    counts of `value_counts`, largest first, would else meet the wrong columns in silence.
    """
    values, names = names_of(x, classes, caller, name)
    array = as_array(values, caller, name)
    if names is None or array.ndim != 1:
        return array, None if classes is None else tuple(classes)
    if classes is not None:
        return array[order_of(names, classes, caller, name)], tuple(classes)
    try:
        ordered = sorted(names)
    except TypeError:  # of mixed types
        ordered = sorted(names, key=str)
    if list(names) != ordered:
        fail(caller, name, "be sorted by name, because the predictions have no class names to match",
             f"{names[0]} first", remedy=f"{UNNAMED}. Or sort it by name, if the columns are sorted. Or pass the"
             " numbers without names, in the order of the columns")  # fmt: skip
    return array, tuple(map(str, names))


def check_classes(classes: Any, names: tuple[Any, ...] | None, n_classes: int, caller: str) -> tuple[str, ...] | None:
    """Return the names of the K columns: `classes` if given, else what the rows call them."""
    if isinstance(classes, (str, int)):
        fail(caller, "classes", f"be the names of the {n_classes} classes", repr(classes))
    check_order(classes, caller)
    labels = names if classes is None else tuple(classes)
    if labels is None:
        return None
    called = tuple(str(label) for label in labels)
    check_text(called, caller, "classes")
    if len(called) != n_classes or len({*map(spelled, called)}) < n_classes:
        alike = len({*called}) == n_classes == len(called)
        fail(caller, "classes", f"name {n_classes} classes, each once", f"{len(called)} names: {listed(called)}",
             remedy="Two of them look the same: only their Unicode differs (NFC and NFD)" * alike)  # fmt: skip
    values = values_of(called) or ()
    if len({*values}) < len(values):
        first = next(j for j, value in enumerate(values) if values.index(value) < j)
        fail(caller, "classes", f"name {n_classes} classes, each once",
             f"{called[values.index(values[first])]} and {called[first]}, which are the same number",
             remedy="Rename one of them")  # fmt: skip
    return called


def check_text(classes: Iterable[str], caller: str, name: str) -> None:
    """Refuse class names that nothing could print or store."""
    for label in classes:
        if NO_TEXT.search(label):
            fail(caller, name, "have class names that are text", ascii(label), remedy="Rename that class")


def check_order(classes: Any, caller: str) -> None:
    """Refuse names of classes that come in no order, or among which one is missing."""
    if isinstance(classes, (set, frozenset)):
        fail(caller, "classes", "come in the order of the columns", "a set, which has no order",
             remedy="Pass a list, as `list(model.classes_)`")  # fmt: skip
    for at, label in enumerate(() if classes is None or isinstance(classes, (str, int)) else classes):
        if is_none(label):
            fail(caller, "classes", "have a name for every class", label, place=f"column {at}",
                 remedy="Give that class a name")  # fmt: skip


def is_none(label: Any) -> bool:
    """Return whether a label is no value: None, NaN, or what pandas calls missing."""
    return label is None or type(label).__name__ in ("NAType", "NaTType") or bool(label != label)
