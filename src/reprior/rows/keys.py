"""Keys that name the group or stream of each sample."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprior._check import fail

Codes = NDArray[np.integer[Any]]
CODE = np.int32  # numbers of groups; eight bytes per sample would cost memory for nothing


def plain(key: Any) -> Hashable:
    """Return a key as a Python value, if it is a scalar of NumPy or pyarrow."""
    if isinstance(key, np.datetime64) and np.datetime_data(key.dtype)[0] == "ns":  # whose item would be a number
        whole = key.astype("M8[us]")
        return whole.item() if whole == key else key
    if hasattr(key, "as_py"):
        return key.as_py()  # type: ignore[no-any-return]
    return key.item() if isinstance(key, np.generic) else key  # type: ignore[no-any-return]


def factorize(keys: Any, caller: str = "groups") -> tuple[tuple[Hashable, ...], Codes]:
    """Return the distinct keys, sorted if they have an order, and the position of each sample's key among them (n,)."""
    if isinstance(keys, (str, bytes)) or not hasattr(keys, "__len__"):
        fail(caller, "keys", "be an array or a list, one key per row", type(keys).__name__)
    if hasattr(keys, "to_pylist"):  # of pyarrow, whose scalars are not equal to the values that they hold
        keys = keys.to_pylist()
    # NumPy would turn a list of numbers and text, or of tuples, into something else
    if isinstance(keys, (list, tuple)) and {type(key) for key in keys} not in ({str}, {int}):
        return of_values(list(keys), caller)
    column = np.asarray(keys)
    if column.ndim != 1:
        fail(caller, "keys", "have one axis", f"shape {column.shape}")
    return of_column(column, caller) if column.dtype.kind in "iufbUSmM" else of_values(list(keys), caller)


def refuse_missing(places: Any, values: Any, caller: str) -> None:
    """Refuse keys that are missing at these places."""
    if len(places):
        fail(caller, "keys", "name a group for every row", values[places[0]], place=f"row {places[0]}",
             count=len(places), remedy="Drop those rows, or give them a key of their own")  # fmt: skip


def of_column(column: np.ndarray[Any, Any], caller: str) -> tuple[tuple[Hashable, ...], Codes]:
    """Return the distinct keys of an array of numbers, text or times, and the position of each (n,)."""
    codes: Codes
    missing = np.isnat(column) if column.dtype.kind in "mM" else column != column
    refuse_missing(np.flatnonzero(missing), column, caller)
    if column.dtype.kind == "i" and len(column) and (low := int(column.min())) + 4 * len(column) > column.max():
        near = np.empty(len(column), CODE)  # integers this close together need no sorting
        np.subtract(column, low, out=near, dtype=np.int64, casting="unsafe")
        there = np.bincount(near) > 0
        codes = near if there.all() else (np.cumsum(there) - 1).astype(CODE)[near]
        return tuple((np.flatnonzero(there) + low).tolist()), codes
    distinct, codes = np.unique(column, return_inverse=True)
    called = map(plain, distinct) if distinct.dtype.kind == "M" else distinct.tolist()
    return tuple(called), codes.astype(CODE)


def of_values(values: list[Any], caller: str) -> tuple[tuple[Hashable, ...], Codes]:
    """Return the distinct keys among Python values, and the position of each (n,)."""
    slots: dict[Hashable, int] = {}
    codes = np.empty(len(values), CODE)
    bad: list[int] = []
    for i, key in enumerate(values):
        try:
            if key is None or key != key:  # NaN is not itself
                bad.append(i)
                continue
            codes[i] = slots.setdefault(key, len(slots))
        except (TypeError, ValueError):  # not hashable, or pandas.NA, which cannot be compared
            if type(key).__name__ != "NAType":
                fail(caller, "keys", "hold hashable keys", type(key).__name__, place=f"row {i}")
            bad.append(i)
    refuse_missing(bad, values, caller)
    names = list(slots)
    try:
        ranked = sorted(range(len(names)), key=names.__getitem__)  # type: ignore[arg-type]
    except TypeError:  # keys of several types have no order of their own
        return tuple(names), codes
    rank = np.empty(len(names), CODE)
    rank[ranked] = np.arange(len(names))
    return tuple(names[i] for i in ranked), rank[codes]
