"""Eq. 8, rows under another prior: the only place that computes it for a user's rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from reprior._check import check_prior, check_proba, fail
from reprior._types import Matrix
from reprior.rows.blocks import ArrayBlocks, numbered


def correct(proba: Any, weights: Any) -> Matrix:
    """Return `proba` (n, K) reweighted to another prior, rows summing to one, in the type it came in (eq. 8).

    `weights` (K,) is target prior / source prior, as in `PriorEstimate.weights`; its scale does not matter.

    >>> correct([[0.5, 0.5]], [1.0, 3.0])
    array([[0.25, 0.75]])
    """
    if hasattr(weights, "weights"):
        fail("correct", "weights", "be K numbers", type(weights).__name__, remedy="Call the estimate's own `correct`")
    factors = check_prior(weights, "correct", "weights", allow_zero=True)
    array = check_proba(proba, "correct", "proba", len(factors))
    out = np.empty(array.shape, array.dtype)
    for first, block in numbered(ArrayBlocks(array)):
        joint = np.multiply(block, factors, order="C")
        scale = joint.sum(axis=1)  # not by BLAS, whose rounding depends on the number of rows
        if not scale.all():
            place, rule = f"row {first + int(np.argmin(scale))}", "leave every row at least one possible class"
            fail("correct", "weights", rule, "a row of zeros", place=place)
        out[first : first + len(block)] = joint / scale[:, None]
    return out
