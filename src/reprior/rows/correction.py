"""Eq. 8, probabilities under another prior."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from reprior._check import check_prior, check_proba, fail, like_input, names_of
from reprior._kernels import NATIVE, loops
from reprior._kernels.reference import DONE, padded
from reprior._types import Matrix, Source, Vector
from reprior.rows.blocks import TopKBlocks, as_stored, block_slices, unlisted


def correct_rows(rows: Matrix, weights: Vector | Matrix, first: int = 0) -> Matrix:
    """Return checked rows (n, K) times `weights`, (K,) or (n, K), and normalised (eq. 8), in the float type that came
    in; `first` is the number of the first row in an error."""
    kind, rows, k = rows.dtype, as_stored(rows), rows.shape[1]
    out, wide_weights = np.empty(rows.shape, rows.dtype), padded(weights) if weights.ndim == 1 else None
    if NATIVE and wide_weights is not None and loops.correct(wide_weights, k, rows, out, 2) == DONE:
        return out.astype(kind, copy=False)
    for here in block_slices(*rows.shape):
        part = np.ascontiguousarray(rows[here], np.float64)  # the same sums, however the rows lie
        wide = np.empty(part.shape)
        if not NATIVE or wide_weights is None or loops.correct(wide_weights, k, part, wide, 2) != DONE:
            np.multiply(part, weights if wide_weights is not None else weights[here], out=wide)
            scale = wide.sum(axis=1)
            if not scale.all():
                place = f"row {first + here.start + int(np.argmin(scale))}"
                fail("correct", "weights", "leave every row at least one possible class", "a row of zeros", place=place)
            wide /= scale[:, None]
        out[here] = wide
    return out.astype(kind, copy=False)


def correct_float64(rows: Matrix, weights: Vector) -> Matrix:
    """Return rows (n, K) times `weights` (K,) and normalised, as float64 (eq. 8); a row of zeros stays one."""
    out = np.asarray(rows, np.float64) * weights
    out /= np.maximum(out.sum(axis=1, keepdims=True), 1e-300)
    return out


def correct_top_k(source: Source, prior: Matrix, blocks: TopKBlocks) -> Matrix:
    """Return the corrected values (n, k) of top-k rows under `prior`, (1, K) or one for each row (n, K)."""
    listed, p = blocks.indices, np.asarray(blocks.values, np.float64)
    priors = np.take_along_axis(np.broadcast_to(prior, (len(p), prior.shape[1])), listed.astype(np.intp), axis=1)
    joint = p * priors / source.prior[listed]
    share = np.maximum(1.0 - p.sum(axis=1), 0.0) / np.maximum(unlisted(source.prior[None], listed), 1e-300)
    rest = share * unlisted(prior, listed)
    return np.asarray(joint / (joint.sum(axis=1) + rest)[:, None])


def refuse_listed(caller: str, name: str) -> NoReturn:
    """Refuse top-k rows where there is a calibrator: it needs to know which of the unlisted classes were likely."""
    fail(caller, name, "list every class, because there is a calibrator", "top-k rows",
         remedy="Pass all K probabilities, or calibrate before the top k are taken")  # fmt: skip


def correct(proba: Any, weights: Any) -> Matrix:
    """Multiply probabilities by class weights and normalise each row (eq. 8).

    Parameters
    ----------
    proba : (n, K)
        Probabilities under the source prior. Nothing is calibrated here; `PriorEstimate.correct` does both. A DataFrame
        is returned for a DataFrame.
    weights : (K,)
        Target prior over source prior, as in `PriorEstimate.weights`, up to a constant factor. A Series or dict is
        matched to the columns of a DataFrame by name.

    Examples
    --------
    >>> correct([[0.5, 0.5]], [1.0, 3.0])
    array([[0.25, 0.75]])
    """
    if hasattr(weights, "weights"):
        fail("correct", "weights", "be K numbers", type(weights).__name__, remedy="Call the estimate's own `correct`")
    rows, names = names_of(proba, names_of(weights)[1], "correct")
    classes = None if names is None else [str(name) for name in names]
    factors = check_prior(weights, "correct", "weights", allow_zero=True, classes=classes)
    fixed = correct_rows(check_proba(rows, "correct", "proba", len(factors)), factors)
    return like_input(fixed, proba, classes)  # type: ignore[no-any-return]
