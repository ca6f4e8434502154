"""Eq. 8, rows under another prior: every correction ends in `reweight`, whatever else needs them asks `posteriors`."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from reprior._check import (
    REJECTED,
    check_prior,
    check_proba,
    fail,
    names_of,
    told_p,
    warn,
)
from reprior._check import (
    as_given as as_given,
)
from reprior._kernels import NATIVE, loops
from reprior._kernels.reference import DONE, padded
from reprior._types import Checks, Matrix, PriorEstimate, Source, Vector
from reprior.rows.blocks import ArrayBlocks, TopKBlocks, by_name, check_top_k, is_top_k, numbered, top_k_in, unlisted

STRETCHED = 1.85  # times as far as the mean output that shares have to move for a correction to warn
MANY_LABELS = 50  # from which on they tell a poor classifier from a change within the classes
HARDLY = 0.03  # of the rows, that have to change their class for shares to have moved
TRAINED = (
    " The classifier is right on nearly all held-out rows, and less sure on these rows. Were the held-out rows used for"
    " training?"
)


def reweight(rows: Matrix, weights: Vector | Matrix, first: int = 0) -> Matrix:
    """Return rows (n, K) of float32 or float64, already checked, times `weights` and normalised (eq. 8).

    `weights` are (K,), or (n, K) where each row has its own. `first` is the number of the first row, for the sentence
    about a row that the weights leave nothing of.
    """
    out, k, known = np.empty(rows.shape, rows.dtype), rows.shape[1], padded(weights) if weights.ndim == 1 else None
    if NATIVE and known is not None and loops.correct(known, k, rows, out, 2) == DONE:
        return out
    for start, block in numbered(ArrayBlocks(rows)):
        part, wide = np.ascontiguousarray(block), np.empty(block.shape)  # the same sums, however the rows lie
        if not NATIVE or known is None or loops.correct(known, k, part, wide, 2) != DONE:
            np.multiply(part, weights if known is not None else weights[start : start + len(part)], out=wide)
            scale = wide.sum(axis=1)
            if not scale.all():
                place = f"row {first + start + int(np.argmin(scale))}"
                fail("correct", "weights", "leave every row at least one possible class", "a row of zeros", place=place)
            wide /= scale[:, None]
        out[start : start + len(block)] = wide
    return out


def posteriors(rows: Matrix, weights: Vector) -> Matrix:
    """Return rows (n, K) times `weights` (K,) and normalised, as float64 (eq. 8).

    Nothing is refused: a row that the weights leave nothing of stays nothing.
    """
    out = np.asarray(rows, np.float64) * weights
    out /= np.maximum(out.sum(axis=1, keepdims=True), 1e-300)
    return out


def correct_listed(source: Source, prior: Matrix, blocks: TopKBlocks) -> Matrix:
    """Return the corrected values (n, k) of top-k rows under `prior`, (1, K) or one for each row (n, K).

    What they leave is the corrected mass of all other classes.
    """
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
    """Return `proba` reweighted to another prior, rows summing to one, in the type it came in (eq. 8).

    Parameters
    ----------
    proba : (n, K)
        Probabilities that carry the source prior. Nothing is calibrated here: an estimate's own `correct` does that.
        A DataFrame comes back as one.
    weights : (K,)
        Target prior over source prior, as in `PriorEstimate.weights`; the scale does not matter. A Series or dict is
        matched by name to the columns of a DataFrame. Numbers without names have the order of its columns.

    Examples
    --------
    >>> correct([[0.5, 0.5]], [1.0, 3.0])
    array([[0.25, 0.75]])
    """
    if hasattr(weights, "weights"):
        fail("correct", "weights", "be K numbers", type(weights).__name__, remedy="Call the estimate's own `correct`")
    return corrected(proba, weights, "correct")


def corrected(proba: Any, weights: Any, caller: str) -> Matrix:
    """Do what `correct` does, for whoever called."""
    rows, names = names_of(proba, names_of(weights)[1], caller)
    classes = None if names is None else [str(name) for name in names]
    factors = check_prior(weights, caller, "weights", allow_zero=True, classes=classes)
    array = check_proba(rows, caller, "proba", len(factors))
    wide = array if array.dtype in (np.float32, np.float64) else array.astype(np.float64)
    fixed: Matrix = as_given(np.asarray(reweight(wide, factors), array.dtype), proba, classes)
    return fixed


def correct_estimated(estimate: PriorEstimate, proba: Any, *, anyway: bool = False, caller: str = "correct") -> Matrix:
    """Return raw outputs (n, K) under an estimated prior: calibrated first, if a pipeline made the estimate.

    Of top-k rows come the listed values. A calibrator sees what they leave where the estimate saw it.
    """
    refuse_rejected(estimate, anyway=anyway)
    if is_top_k(proba):
        if estimate.calibrator is not None:
            if estimate.calibrator.of_logits:
                refuse_listed(caller, "proba")
            like = top_k_in(estimate.target)
            listed = check_top_k(*proba, caller, estimate.source.prior if like is None else like.prior)
            fixed = np.empty(listed.values.shape)
            for first, block in numbered(listed):
                here = slice(first, first + len(block))
                whole = correct(estimate.calibrator(block), estimate.weights)
                fixed[here] = np.take_along_axis(whole, listed.indices[here].astype(np.intp), axis=1)
            return fixed
        listed = check_top_k(*proba, caller, estimate.source.prior)
        prior = estimate.weights * estimate.source.prior
        return correct_listed(estimate.source, prior[None] / prior.sum(), listed)
    rows = by_name(proba, estimate.classes, caller)
    if estimate.calibrator is not None:
        rows = estimate.calibrator(rows, caller=caller)
    return as_given(corrected(rows, estimate.weights, caller), proba, estimate.classes)  # type: ignore[no-any-return]


def refuse_rejected(
    estimate: PriorEstimate, *, anyway: bool = False, caller: str = "correct", name: str = "proba",
    how: str = "say `anyway=True`, or estimate with `on_reject='warn'`",
) -> None:  # fmt: skip
    """Refuse, or warn, as the estimate says, where its rows differ by more than their class mix."""
    checks = estimate.checks
    if checks is None or anyway or estimate.on_reject == "ignore":
        return
    if estimate.on_reject == "refuse":
        refuse_clear(checks, caller, name, how)
    elif checks.contradiction:
        warn(checks.contradiction)
    p = None if checks.borne_out else checks.label_shift_p
    if p is not None and p < REJECTED:
        warn(f"The rows differ from the held-out rows by more than their class mix ({told_p(p)})."
             f"{TRAINED * checks.trained} The correction may do harm.")  # fmt: skip
    elif checks.stretch >= STRETCHED:
        warn(stretched(checks.stretch))


def refuse_clear(checks: Checks, caller: str, name: str, how: str, labels: str = "labels") -> None:
    """Refuse rows that clearly differ by more than their class mix, or labels that contradict their outputs; `name` and
    `labels` are what the user calls them, and `how` says how to go on all the same."""
    if checks.contradiction:
        fail(caller, labels, "agree with the outputs", "a contradiction",
             remedy=f"{checks.contradiction} To {caller} all the same, {how}")  # fmt: skip
    p = checks.label_shift_p
    if p is not None and p < REJECTED and not checks.borne_out:
        fail(caller, name, "differ from the held-out rows in their class mix alone", told_p(p),
             remedy=f"Check the data.{TRAINED * checks.trained} Labels of these rows, {MANY_LABELS} or some hundreds,"
                    f" may show that the correction helps all the same. To {caller} without, {how}")  # fmt: skip


def stretch(moved: Vector, seen: Vector) -> float:
    """Return how many times further shares have `moved` (K,) than the mean output (K,) is `seen` to; 1 at least.

    A classifier that tells classes apart poorly says by a small change of outputs that the shares have changed much. A
    small change within the classes looks the same, and then the correction does harm.
    """
    return float(max(np.abs(moved).sum() / max(np.abs(seen).sum(), HARDLY), 1.0))


def stretched(by: float) -> str:
    """Return the warning about shares that moved so many times as far as the mean output."""
    return (
        f"The shares moved {by:.1f} times as far as the mean output, so they rest on small changes of the"
        " outputs. If anything but the class mix has changed, correction makes predictions worse. Labels of"
        f" {MANY_LABELS} rows would show it."
    )
