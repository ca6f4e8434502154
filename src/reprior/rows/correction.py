"""Eq. 8, rows under another prior: every correction in the package ends in `reweight`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from reprior._check import check_prior, check_proba, fail, names_of
from reprior._kernels import NATIVE, loops
from reprior._kernels.reference import DONE, padded
from reprior._types import Matrix, PriorEstimate, Vector
from reprior.rows.blocks import ArrayBlocks, in_columns, numbered

REJECTED = 1e-3  # p-value of label shift below which a correction is refused


def reweight(rows: Matrix, weights: Vector, first: int = 0) -> Matrix:
    """Return rows (n, K) of float32 or float64, already checked, times `weights` (K,) and normalised (eq. 8).

    `first` is the number of the first row, for the sentence about a row that the weights leave nothing of.
    """
    out, known = np.empty(rows.shape, rows.dtype), padded(weights)
    if NATIVE and loops.correct(known, len(weights), rows, out, 2) == DONE:
        return out
    for start, block in numbered(ArrayBlocks(rows)):
        part, wide = np.ascontiguousarray(block), np.empty(block.shape)  # the same sums, however the rows lie
        if not NATIVE or loops.correct(known, len(weights), part, wide, 2) != DONE:
            np.multiply(part, weights, out=wide)
            scale = wide.sum(axis=1)
            if not scale.all():
                place = f"row {first + start + int(np.argmin(scale))}"
                fail("correct", "weights", "leave every row at least one possible class", "a row of zeros", place=place)
            wide /= scale[:, None]
        out[start : start + len(block)] = wide
    return out


def correct(proba: Any, weights: Any) -> Matrix:
    """Return `proba` reweighted to another prior, rows summing to one, in the type it came in (eq. 8).

    Parameters
    ----------
    proba : (n, K)
        Probabilities that carry the source prior. Nothing is calibrated here: an estimate's own `correct` does that.
    weights : (K,)
        Target prior over source prior, as in `PriorEstimate.weights`; the scale does not matter.

    Examples
    --------
    >>> correct([[0.5, 0.5]], [1.0, 3.0])
    array([[0.25, 0.75]])
    """
    if hasattr(weights, "weights"):
        fail("correct", "weights", "be K numbers", type(weights).__name__, remedy="Call the estimate's own `correct`")
    rows, names = names_of(proba)
    classes = None if names is None else [str(name) for name in names]
    factors = check_prior(weights, "correct", "weights", allow_zero=True, classes=classes)
    array = check_proba(rows, "correct", "proba", len(factors))
    wide = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
    return np.asarray(reweight(wide, factors), array.dtype)


def correct_estimated(estimate: PriorEstimate, proba: Any, *, anyway: bool = False) -> Matrix:
    """Return raw outputs (n, K) under an estimated prior: calibrated first, if a pipeline made the estimate."""
    refuse_rejected(estimate, anyway=anyway)
    rows, names = names_of(proba, estimate.classes)
    rows = in_columns(rows, names, estimate.classes, "correct")
    if estimate.calibrator is not None:
        rows = estimate.calibrator(rows)
    fixed: Matrix = as_given(correct(rows, estimate.weights), proba, names, estimate.classes)
    return fixed


def refuse_rejected(estimate: PriorEstimate, *, anyway: bool = False) -> None:
    """Refuse, or warn, as the estimate says, where its rows differ by more than their class mix."""
    if estimate.checks is not None and estimate.checks.contradiction and not anyway and estimate.on_reject != "ignore":
        if estimate.on_reject == "refuse":
            fail("correct", "labels", "agree with the outputs", "a contradiction",
                 remedy=f"{estimate.checks.contradiction} To correct all the same, estimate with on_reject='warn'"
                 " (`--anyway` on the command line)")  # fmt: skip
        warnings.warn(estimate.checks.contradiction, stacklevel=5)
    p = None if estimate.checks is None else estimate.checks.label_shift_p
    if p is not None and p < REJECTED and not anyway and estimate.on_reject != "ignore":
        shown = f"p = {max(p, 1e-300):.1g}"
        if estimate.on_reject == "refuse":
            fail("correct", "proba", "differ from the held-out rows in their class mix alone", shown,
                 remedy="Check the data. To correct all the same, estimate with on_reject='warn' (`--anyway` on the"
                 " command line)")  # fmt: skip
        warnings.warn(f"The rows differ from the held-out rows by more than their class mix ({shown}). The correction"
                      " may do harm.", stacklevel=5)  # fmt: skip


def as_given(rows: Matrix, proba: Any, names: Sequence[Any] | None, classes: Sequence[str] | None) -> Any:
    """Return corrected rows (n, K) as they came: a DataFrame as one, with its own columns, order and index."""
    if not (hasattr(proba, "columns") and hasattr(proba, "index") and hasattr(proba, "iloc")):
        return rows
    told = [str(name) for name in names] if names is not None else [str(k) for k in range(rows.shape[1])]
    order = list(classes) if names is not None and classes is not None else [str(k) for k in range(len(told))]
    if names is None:  # column indices, which may come in any order
        told = [str(int(name)) for name in proba.columns]
    return type(proba)(rows[:, [order.index(name) for name in told]], index=proba.index, columns=proba.columns)
