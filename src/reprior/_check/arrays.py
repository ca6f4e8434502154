"""Checks of arrays of numbers: their type and shape, and rows of probabilities or logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import PurePath
from typing import Any, NamedTuple, NoReturn

import numpy as np

from reprior._check.errors import DIVIDE, SOFTMAX, fail, refuse_where
from reprior._check.frames import frame_of
from reprior._kernels import loops, reference
from reprior._types import Matrix, Vector


def as_array(x: Any, caller: str, name: str) -> np.ndarray[Any, Any]:
    """Return `x` as an array without copying what NumPy can share; tensors leave their graph and device."""
    if hasattr(x, "detach"):  # a torch tensor, perhaps with a gradient, on a device, in bfloat16
        x = x.detach().cpu()
        x = x.float() if "bfloat16" in str(x.dtype) else x
    if (frame := frame_of(x, None, caller, name)) is not None and not isinstance(x, Mapping):
        x = frame.values
    if is_masked(x) and np.ma.is_masked(x):
        count = int(np.ma.getmaskarray(x).sum())
        fail(caller, name, "have no masked value", f"{count} of them", remedy="Drop or fill them")
    try:
        array = np.asarray(x)
    except (ValueError, TypeError):
        fail(caller, name, "be a rectangular array of numbers", "ragged or mixed values")
    if array.dtype == object or array.dtype.kind not in "fiub":
        refuse_other(x, array, caller, name)
    return array if array.flags.aligned else array.copy()  # as one at an odd offset in a packet is not


def is_masked(x: Any) -> bool:
    """Return whether `x` is an array with a mask; np.ma, which is slow to import, is asked only about one that may."""
    return hasattr(x, "mask") and isinstance(x, np.ma.MaskedArray)


def refuse_other(x: Any, array: np.ndarray[Any, Any], caller: str, name: str) -> NoReturn:
    """Refuse what is no array of numbers, and say how to make one of it."""
    first = array.flat[0] if array.size else None
    got, remedy = f"dtype {array.dtype}", ""
    if isinstance(x, (str, PurePath)):
        got, remedy = f"the text {str(x)[:80]!r}", "If it is a file, read it first, for example with `pandas.read_csv`"
    elif x is None:
        got = "None"
    elif hasattr(x, "collect"):
        got, remedy = "a frame that is not computed yet", f"Pass `{name}.collect()`"
    elif hasattr(x, "toarray"):
        got, remedy = "a sparse matrix", f"Pass `{name}.toarray()`"
    elif isinstance(first, Mapping):
        got, remedy = "a dict" if isinstance(x, Mapping) else "a list of dicts", f"Pass `pandas.DataFrame({name})`"
    elif array.dtype.kind in "US" or isinstance(first, str):
        got, remedy = f"text, as {str(first)[:40]!r}", "Remove text, or convert it to numbers"
    elif array.dtype == object and array.ndim:
        got, remedy = f"objects, as {str(first)[:40]}", f"Pass `{name}.astype(float)`"
    fail(caller, name, "be an array of numbers", got, remedy=remedy)


def check_matrix(x: Any, caller: str, name: str, n_classes: int | None = None) -> Matrix:
    """Return `x` as an (n, K) array of floats with n > 0 and the right K; values are not looked at yet."""
    array = as_array(x, caller, name)
    if array.ndim != 2:
        vector = "For binary scores pass `np.column_stack([1 - p, p])`, for one sample `p[None, :]`"
        remedy = vector if array.ndim == 1 else ""
        fail(caller, name, "have shape (n, K)", f"shape {array.shape}", remedy=remedy)
    if array.shape[0] == 0:
        fail(caller, name, "have at least one row", f"shape {array.shape}", remedy="Skip empty batches")
    if array.shape[1] < 2:
        fail(caller, name, "have at least two classes", f"shape {array.shape}",
             remedy="For a binary classifier pass both columns, [1 - p, p]")  # fmt: skip
    if n_classes is not None and array.shape[1] != n_classes:
        fail(caller, name, f"have {n_classes} columns, one for each class of the source", f"{array.shape[1]}",
             remedy="Pass the columns in the order of the source's classes")  # fmt: skip
    return array if array.dtype.kind == "f" else array.astype(np.float64)


class Fault(NamedTuple):
    """The first row that is no probability vector, its fault, how many rows have it, and a remedy."""

    row: int
    rule: str
    value: str
    rows: int
    remedy: str


def row_fault(block: Matrix) -> Fault | None:
    """Return what is wrong with the rows of a block (n, K), or None if all are probability vectors."""
    bad = loops.first_bad_row(block)
    if bad == reference.REFUSED:  # a type or order that only NumPy can read
        bad = reference.first_bad_row(block)
    if bad == reference.DONE:
        return None
    with np.errstate(invalid="ignore", over="ignore"):
        sums = (block @ np.ones(block.shape[1]))[:, None]
    off = ~(np.abs(sums - 1) <= reference.SUM_TOLERANCE)
    total = "a sum of {:.10g}"  # digits enough to show the fault
    for bad, values, shown, rule, remedy in (
        (~np.isfinite(block), block, "{}", "contain only finite numbers", "Drop or repair those rows"),
        (block < 0, block, "{}", "contain no negative number", SOFTMAX),
        (sums == 0, sums, total, "have no all-zero row", "Drop those rows"),
        (off, sums, total, f"have rows that sum to 1 (±{reference.SUM_TOLERANCE:.3g})",
         f"If these are rounded probabilities or counts, {DIVIDE}. {SOFTMAX}"),
    ):  # fmt: skip
        rows = bad.any(axis=1)
        if rows.any():
            first = int(np.argmax(rows))
            value = shown.format(float(values[first][bad[first]][0]))
            return Fault(first, rule, value, int(rows.sum()), remedy)
    return None  # a sum at the very edge, which rounding puts on either side


def check_rows(blocks: Iterable[tuple[int, Matrix]], caller: str, name: str, summed: str = "") -> None:
    """Refuse the first row of (row number, block) pairs that is no probability vector; `summed` adds to the remedy."""
    worst: Fault | None = None
    for first, block in blocks:
        fault = row_fault(block)
        if fault and worst is None:
            worst = fault._replace(row=first + fault.row)
        elif fault and worst and fault.rule == worst.rule:
            worst = worst._replace(rows=worst.rows + fault.rows)
    if worst:
        place = f"row {worst.row} (the first is row 0)"
        more = summed * ("sum to 1" in worst.rule)
        fail(caller, name, worst.rule, worst.value, place=place, count=worst.rows, remedy=worst.remedy + more)


def check_proba(x: Any, caller: str, name: str = "proba", n_classes: int | None = None) -> Matrix:
    """Return `x` as an (n, K) array of floats whose rows are probability vectors; it is not copied as a whole."""
    array = check_matrix(x, caller, name, n_classes)
    size = max(16, (1 << 16) // array.shape[1])  # of a block that stays in cache
    starts = range(0, len(array), size)
    kind = np.result_type(array.dtype, np.float32)
    check_rows(((first, np.asarray(array[first : first + size], kind)) for first in starts), caller, name)
    return array


def check_logits(x: Any, caller: str, n_classes: int | None = None) -> Matrix:
    """Return `x` as an (n, K) array of finite numbers."""
    array = check_matrix(x, caller, "logits", n_classes)
    bad = ~np.isfinite(array)
    first = array[np.arange(len(array)), bad.argmax(axis=1)]
    refuse_where(bad.any(axis=1), caller, "logits", "contain only finite numbers", first)
    # no row but one in ten thousand of logits adds up to 1; as logits, probabilities would say next to nothing
    if len(array) and (array >= 0).all() and (np.abs(array.sum(axis=1, dtype=np.float64) - 1) < 1e-4).all():
        fail(caller, "logits", "be logits", "rows of probabilities",
             remedy="Pass them as probabilities, or take their logarithm")  # fmt: skip
    return array


def check_row(p: Any, caller: str, n_classes: int) -> Vector:
    """Return one sample's probabilities (K,) as float64, or refuse it."""
    array = as_array(p, caller, "p")
    if array.shape != (n_classes,):
        fail(caller, "p", f"have shape ({n_classes},)", f"shape {array.shape}")
    row = np.ascontiguousarray(array, dtype=np.float64)
    fault = row_fault(row[None, :])
    if fault:
        rule = fault.rule.replace("have rows that sum", "sum").replace("have no all-zero row", "not be all zero")
        fail(caller, "p", rule, fault.value, remedy=fault.remedy)
    return row
