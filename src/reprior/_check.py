"""Every error about user input is worded here, once, and raised before anything has changed.

Template: ``{caller}: `{name}` must {rule}; got {value}, first at {place}, {count} in all. {remedy}.``
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np

from reprior._types import Labels, Matrix, Source, Vector

ROW_SUM_TOLERANCE = 1e-3  # half of this is what rounding to float16 can cost a row


class InputError(ValueError):
    """Bad input: the message is one sentence that says what is wrong, where, and what to do next."""


def fail(
    caller: str, name: str, rule: str, got: object, *, place: str = "", count: int = 0, remedy: str = ""
) -> NoReturn:
    """Raise the one kind of error that users see for their input."""
    where = f", first at {place}" if place else ""
    total = f", {count} in all" if count else ""
    raise InputError(f"{caller}: `{name}` must {rule}; got {got}{where}{total}." + (f" {remedy}." if remedy else ""))


def as_array(x: Any, caller: str, name: str) -> np.ndarray[Any, Any]:
    """Return `x` as an array without copying what NumPy can share; tensors leave their graph and device."""
    if hasattr(x, "detach"):  # a torch tensor, perhaps with a gradient, on a device, in bfloat16
        x = x.detach().cpu()
        x = x.float() if "bfloat16" in str(x.dtype) else x
    if isinstance(x, np.ma.MaskedArray) and np.ma.is_masked(x):
        count = int(np.ma.getmaskarray(x).sum())
        fail(caller, name, "have no masked value", f"{count} of them", remedy="Drop or fill them")
    try:
        array = np.asarray(x)
    except (ValueError, TypeError):
        fail(caller, name, "be a rectangular array of numbers", "ragged or mixed values")
    if array.dtype == object or array.dtype.kind not in "fiub":
        fail(caller, name, "be an array of numbers", f"dtype {array.dtype}")
    return array


def check_matrix(x: Any, caller: str, name: str, n_classes: int | None = None) -> Matrix:
    """Return `x` as an (n, K) array of floats with n > 0 and the right K; values are not looked at yet."""
    array = as_array(x, caller, name)
    if array.ndim != 2:
        remedy = "For one row pass `p[None, :]`" if array.ndim == 1 else ""
        fail(caller, name, "have shape (n, K)", f"shape {array.shape}", remedy=remedy)
    if array.shape[0] == 0:
        fail(caller, name, "have at least one row", f"shape {array.shape}", remedy="Skip empty batches")
    if array.shape[1] < 2:
        fail(caller, name, "have at least two classes", f"shape {array.shape}",
             remedy="For a binary classifier pass both columns, [1 - p, p]")  # fmt: skip
    if n_classes is not None and array.shape[1] != n_classes:
        fail(caller, name, f"have {n_classes} columns, one for each class of the source", f"{array.shape[1]}",
             remedy="Give the columns in the order of the source's classes")  # fmt: skip
    return array if array.dtype.kind == "f" else array.astype(np.float64)


def row_fault(block: Matrix) -> tuple[int, str, object, int, str] | None:
    """Return (row, rule, value, count, remedy) of the first row that is no probability vector, else None."""
    with np.errstate(invalid="ignore", over="ignore"):
        sums = block @ np.ones(block.shape[1])
    if np.all(np.abs(sums - 1) <= ROW_SUM_TOLERANCE) and block.min() >= 0:
        return None
    softmax = "If these are logits, apply softmax first"
    negative = (block < 0).any(axis=1)
    faults: list[tuple[Any, str, str]] = [
        (~np.isfinite(block).all(axis=1), "contain only finite numbers", "Drop or repair those rows"),
        (negative, "contain no negative number", softmax),
        (~negative & (sums == 0), "have no all-zero row", "Drop those rows: they say nothing about any class"),
        (np.abs(sums - 1) > ROW_SUM_TOLERANCE, f"have rows that sum to 1 (±{ROW_SUM_TOLERANCE:g})",
         f"Divide each row by its sum, if it is a probability vector; {softmax[0].lower() + softmax[1:]}"),
    ]  # fmt: skip
    for bad, rule, remedy in faults:
        if bad.any():
            row = int(np.argmax(bad))
            value: object = f"a sum of {sums[row]:.6g}"
            if "finite" in rule:
                value = float(block[row][~np.isfinite(block[row])][0])
            elif "negative" in rule:
                value = float(block[row][block[row] < 0][0])
            return row, rule, value, int(bad.sum()), remedy
    raise AssertionError("unreachable: a row is bad by one of the rules above")


def check_rows(blocks: Iterable[tuple[int, Matrix]], caller: str, name: str) -> None:
    """Refuse the first row, over (first row number, block) pairs, that is no probability vector."""
    found: tuple[int, str, object, int, str] | None = None
    for first, block in blocks:
        fault = row_fault(block)
        if fault and found is None:
            found = (first + fault[0], *fault[1:])
        elif fault and found and fault[1] == found[1]:
            found = (*found[:3], found[3] + fault[3], found[4])
    if found:
        row, rule, value, count, remedy = found
        fail(caller, name, rule, value, place=f"row {row} (the first is row 0)", count=count, remedy=remedy)


def check_row(p: Any, caller: str, name: str, n_classes: int) -> Vector:
    """Return one sample's probabilities (K,) as float64, or refuse it."""
    array = as_array(p, caller, name)
    if array.shape != (n_classes,):
        fail(caller, name, f"have shape ({n_classes},)", f"shape {array.shape}")
    row = np.ascontiguousarray(array, dtype=np.float64)
    fault = row_fault(row[None, :])
    if fault:
        rule = fault[1].replace("have rows that sum", "sum").replace("have no all-zero row", "not be all zero")
        fail(caller, name, rule, fault[2], remedy=fault[4])
    return row


def check_prior(x: Any, caller: str, name: str, *, allow_zero: bool = False) -> Vector:
    """Return class counts or a prior (K,) as a prior that sums to one; zeros are refused unless allowed."""
    array = as_array(x, caller, name).astype(np.float64)
    if array.ndim != 1 or array.size < 2:
        fail(caller, name, "be a vector of at least two class counts or probabilities", f"shape {array.shape}")
    bad = ~np.isfinite(array)
    if bad.any():
        fail(caller, name, "contain only finite numbers", array[bad][0],
             place=f"class {int(np.argmax(bad))}", count=int(bad.sum()))  # fmt: skip
    # beyond a factor of 1e100 between two classes their squared weights would leave the range of a float
    bad = array < 0 if allow_zero else array <= 1e-100 * array.max()
    if bad.any():
        rule, remedy = ("contain no negative number", "") if allow_zero else (
            "be positive for every class",
            "Leave out classes the classifier was never trained on, or give them a small count")  # fmt: skip
        fail(caller, name, rule, array[bad][0], place=f"class {int(np.argmax(bad))}", count=int(bad.sum()),
             remedy=remedy)  # fmt: skip
    if not array.any():
        fail(caller, name, "have a positive sum", 0.0)
    if array.max() <= 1 and abs(array.sum() - 1) < 1e-14:
        return array  # bit for bit what was given
    array = array / array.max()
    return np.asarray(array / array.sum())


def check_source(source: Any, caller: str) -> Source:
    """Return a `Source` from one, or from class counts or a prior."""
    if isinstance(source, Source):
        return replace(source, prior=check_prior(source.prior, caller, "source.prior"))
    return Source(prior=check_prior(source, caller, "source"))


def holds_names(y: Any) -> bool:
    """Return whether labels are text rather than numbers."""
    try:
        return not hasattr(y, "detach") and np.asarray(y).dtype.kind in "UO"
    except ValueError:  # ragged
        return False


def check_labels(y: Any, caller: str, name: str, n: int, n_classes: int) -> Labels:
    """Return labels (n,) as column indices."""
    if holds_names(y):
        fail(caller, name, "hold the column index of each row's class", "names",
             remedy="Pass `classes`, or `np.searchsorted(clf.classes_, y)`")  # fmt: skip
    array = as_array(y, caller, name)
    if array.shape != (n,):
        fail(caller, name, f"have shape ({n},), one label a row", f"shape {array.shape}")
    if array.dtype.kind == "f" and not np.all(array == np.floor(array)):
        fail(caller, name, "hold whole numbers, the column index of each row's class", f"dtype {array.dtype}")
    bad = (array < 0) | (array >= n_classes)
    if bad.any():
        fail(caller, name, f"lie between 0 and {n_classes - 1}", array[bad][0],
             place=f"row {int(np.argmax(bad))}", count=int(bad.sum()),
             remedy="Labels are column indices of the probabilities")  # fmt: skip
    return array.astype(np.intp, copy=False)


def check_number(
    value: Any, caller: str, name: str, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False,
    whole: bool = False,
) -> float:  # fmt: skip
    """Return a finite number inside [low, high] (or (low, high])."""
    kind = "a whole number" if whole else "a number"
    rule = f"be {kind} {'above' if open_low else 'of at least'} {low:g}" + (
        f" and at most {high:g}" if high < math.inf else ""
    )
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        fail(caller, name, rule, repr(value))
    try:
        number = float(value)
    except OverflowError:
        fail(caller, name, rule, "a whole number too large for a float")
    if not math.isfinite(number) or number < low or number > high or (open_low and number == low):
        fail(caller, name, rule, value)
    if whole and number != int(number):
        fail(caller, name, rule, value)
    return number


def check_choice(value: Any, caller: str, name: str, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        fail(caller, name, "be one of " + ", ".join(repr(c) for c in choices), repr(value))
    return str(value)


def as_rng(rng: int | np.random.Generator | None) -> np.random.Generator:
    """Return a generator from a seed or a generator."""
    if rng is not None and not isinstance(rng, (int, np.integer, np.random.Generator)):
        fail("rng", "rng", "be a whole number or a numpy Generator", repr(rng))
    return rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)


def check_flag(value: Any, caller: str, name: str) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        fail(caller, name, "be True or False", repr(value))
    return bool(value)
