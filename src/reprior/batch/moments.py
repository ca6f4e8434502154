"""Moment methods: match the mean output on the target through the held-out confusion matrix."""

from __future__ import annotations

from typing import Any

import numpy as np

from reprior._check import UNLABELLED, check_choice, check_flag, check_number, fail
from reprior._types import Matrix, PriorEstimate, Source, Status, Vector
from reprior.batch.driver import finish
from reprior.batch.solve import nonnegative_quadratic
from reprior.rows.blocks import Blocks, given
from reprior.rows.labelled import LabelledBlocks, labelled, put_in


def moments(source: Any, proba: Any, hard: bool, caller: str, labels: Any) -> tuple[Source, Blocks, Matrix, Vector]:
    """Return the checked source and target, the joint confusion C[i, j] = P(ŷ=i, y=j), and the target's mean output."""
    check_flag(hard, caller, "hard")
    if not isinstance(source, Source) or any(
        x is None for x in (source.confusion, source.hard_confusion, source.counts)
    ):
        fail(caller, "source", "hold a confusion matrix", type(source).__name__,
             remedy=UNLABELLED)  # fmt: skip
    source, target = given(source, proba, caller)
    k = len(source.prior)

    def of_block(block: Matrix) -> Vector:
        total = np.bincount(block.argmax(axis=1), minlength=k) if hard else block.sum(axis=0, dtype=np.float64)
        return np.append(total, len(block)).astype(np.float64)

    sums = (target.raw if isinstance(target, LabelledBlocks) else target).map_sum(of_block)
    target = labelled(target, labels, source, caller)
    return source, target, source.hard_confusion if hard else source.confusion, sums[:-1] / sums[-1]


def from_weights(source: Source, target: Blocks, confusion: Matrix, weights: Vector) -> PriorEstimate:
    """Return the estimate π ∝ w·P(y); classes without a held-out row keep the source prior."""
    frequency = confusion.sum(axis=0)  # the label shares that the weights refer to
    unseen = frequency == 0
    share = np.where(unseen, source.prior, weights * frequency)
    share[~unseen] *= (1 - share[unseen].sum()) / max(share[~unseen].sum(), 1e-300)
    share = share / share.sum()
    if isinstance(target, LabelledBlocks):  # the mean output is that of all rows, for any of them may have been chosen
        share = put_in(share, target, source.prior)
    return finish(target, source, share, 1, Status.UNSEEN_CLASSES if unseen.any() else Status.SOLVED)


def bbse(
    source: Any, proba: Any, *, labels: Any = None, hard: bool = False, solver: str = "constrained"
) -> PriorEstimate:
    """Return the estimate by black-box shift estimation [lipton2018]: solve C w = mean target output.

    Parameters
    ----------
    source : Source
        Made by `summarize` from held-out rows: it holds their confusion matrix.
    proba : (n, K) array, DataFrame, Blocks, or top-k pair
        The outputs on the target.
    labels : (n,), optional
        Labels of some target rows, names or column indices, −1 where unknown. Moments give the mix of the others.
    hard : bool
        Whether to count arg-max predictions instead of summing probabilities.
    solver : str
        "constrained" is least squares under w ≥ 0; "clip" is as published: solve, then clip at zero.

    Examples
    --------
    >>> from reprior import summarize
    >>> source = summarize([[0.9, 0.1], [0.7, 0.3], [0.3, 0.7], [0.1, 0.9]], [0, 0, 1, 1])
    >>> bbse(source, [[0.8, 0.2], [0.8, 0.2], [0.2, 0.8]]).prior.round(3)
    array([0.667, 0.333])
    """
    check_choice(solver, "bbse", "solver", ("constrained", "clip"))
    known, target, confusion, mean = moments(source, proba, hard, "bbse", labels)
    if solver == "clip":
        weights = np.maximum(np.linalg.lstsq(confusion, mean, rcond=None)[0], 0.0)
        if not weights.any():
            fail("bbse", "solver", "leave a positive weight", "none after clipping", remedy='Use solver="constrained"')
    else:
        weights = nonnegative_least_squares(confusion, mean)
    return from_weights(known, target, confusion, weights)


def nonnegative_least_squares(a: Matrix, b: Vector) -> Vector:
    """Return argmin ‖a x − b‖ over x ≥ 0."""
    gram = a.T @ a
    ridge = 1e-13 * np.trace(gram) / len(gram) * np.eye(len(gram))
    # the ridge pulls to a weight of 1: where the confusion matrix says nothing, nothing has shifted
    x = nonnegative_quadratic(gram + ridge, a.T @ b + ridge.sum(axis=1), np.ones(len(gram), dtype=bool))
    if x is None or not is_minimum(gram + ridge, a.T @ b + ridge.sum(axis=1), x):  # squaring lost the last digits
        from scipy.optimize import nnls

        x = nnls(a, b, maxiter=30 * len(gram))[0]
    return np.asarray(x)


def is_minimum(h: Matrix, b: Vector, x: Vector) -> bool:
    """Return whether x ≥ 0 minimises ½xᵀHx − bᵀx: no slope where x is positive, and none down where it is zero."""
    slope = h @ x - b
    return bool((np.where(x > 0, np.abs(slope), -slope) <= 1e-8 * max(1e-300, np.abs(b).max())).all())


def rlls(
    source: Any, proba: Any, *, labels: Any = None, hard: bool = False, alpha: float = 0.01, delta: float = 0.05
) -> PriorEstimate:
    """Return the estimate by regularised learning under label shifts [azizzadenesheli2019].

    Minimises ‖Cθ − (μ_t − μ_s)‖₂ + α·ρ·‖θ‖₂ over θ ≥ −1, w = 1 + θ, with ρ from the sizes and the confidence `delta`;
    norms are not squared, and C is divided by the number of held-out rows.

    Parameters
    ----------
    source, proba, labels, hard
        As in `bbse`.
    alpha : float
        The strength of regularisation, at least 0.
    delta : float
        The chance, at most, that the error of the moments exceeds ρ.

    Examples
    --------
    >>> from reprior import summarize
    >>> heldout = [[0.9, 0.1], [0.7, 0.3], [0.3, 0.7], [0.1, 0.9]]
    >>> rlls(summarize(heldout, [0, 0, 1, 1]), [[0.8, 0.2], [0.8, 0.2], [0.2, 0.8]]).prior.round(1)
    array([0.7, 0.3])
    """
    check_number(alpha, "rlls", "alpha", low=0)
    check_number(delta, "rlls", "delta", low=0, high=1, open_low=True)
    known, target, confusion, mean = moments(source, proba, hard, "rlls", labels)
    assert known.counts is not None
    n, k = float(known.counts.sum()), len(known.prior)
    log_term = np.log(2 * k / delta)
    rho = 3 * (2 * log_term / (3 * n) + np.sqrt(2 * log_term / n))
    theta = regularised_shift(confusion, mean - confusion.sum(axis=1), alpha * rho)
    return from_weights(known, target, confusion, 1 + theta)


def regularised_shift(confusion: Matrix, change: Vector, strength: float) -> Vector:
    """Return argmin ‖Cθ − d‖ + s‖θ‖ over θ ≥ −1.

    Convex, and smooth but at θ = 0, so quasi-Newton steps inside the bounds find it; the kink is compared with.
    """
    from scipy.optimize import minimize

    gram, image = confusion.T @ confusion, confusion.T @ change

    def objective(theta: Vector) -> tuple[float, Vector]:
        residual = confusion @ theta - change
        a, b = float(np.sqrt(residual @ residual + 1e-30)), float(np.sqrt(theta @ theta + 1e-30))
        return a + strength * b, np.asarray(confusion.T @ residual / a + strength * theta / b)

    theta = np.maximum(np.linalg.solve(gram + 1e-3 * np.trace(gram) / len(gram) * np.eye(len(gram)), image), -1.0)
    best = minimize(objective, theta, jac=True, method="L-BFGS-B", bounds=[(-1.0, None)] * len(theta),
                    options={"maxiter": 5000, "maxfun": 20000, "ftol": 1e-15, "gtol": 1e-10})  # fmt: skip
    zero = np.zeros_like(theta)  # the kink at θ = 0, where the gradient says nothing
    return np.asarray(best.x if best.fun <= objective(zero)[0] else zero)
