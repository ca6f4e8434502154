"""Moment methods: match the mean output on the target through the held-out confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reprior._check import UNLABELLED, check_choice, check_flag, check_number, fail
from reprior._types import Matrix, Source, Status, Vector
from reprior.batch.driver import ModelSpread, finish
from reprior.batch.solve import nonnegative_quadratic
from reprior.estimates.estimate import PriorEstimate
from reprior.rows.blocks import Blocks, check_inputs
from reprior.rows.calibrated import CalibratedBlocks
from reprior.rows.labelled import LabelledBlocks, labelled, put_in

# λ at the ends of the ridge path, in units of the mean squared column of C: beyond them θ changes by rounding alone
LEAST_PENALTY, MOST_PENALTY = 1e-12, 1e6
REFINEMENTS = 4  # each divides what is left of the residual by σ²/λ, with σ² ≥ 1e-9 in every direction that data show


@dataclass(frozen=True, slots=True)
class Moments:
    """The checked `source` and `target`, the joint `confusion` C[i, j] = P(ŷ=i, y=j), and the target's `mean` output.

    `one_hot`: the held-out probabilities are predicted classes.
    """

    source: Source
    target: Blocks
    confusion: Matrix
    mean: Vector
    one_hot: bool


def moments(source: Any, proba: Any, hard: bool, caller: str, labels: Any) -> Moments:
    """Return the moments of both sides, both checked."""
    check_flag(hard, caller, "hard")
    if not isinstance(source, Source) or any(
        x is None for x in (source.confusion, source.hard_confusion, source.counts)
    ):
        many = isinstance(source, Source) and source.heldout is not None
        fail(caller, "source", "hold a confusion matrix", f"{len(source.prior):,} classes, too many for one" if many
             else type(source).__name__, remedy="Use 'ebls' or 'mlls'" if many else UNLABELLED)  # fmt: skip
    source, target = check_inputs(source, proba, caller)
    k = len(source.prior)

    def of_block(block: Matrix) -> Vector:
        total = np.bincount(block.argmax(axis=1), minlength=k) if hard else block.sum(axis=0, dtype=np.float64)
        return np.append(total, len(block)).astype(np.float64)

    sums = (target.raw if isinstance(target, LabelledBlocks) else target).map_sum(of_block)
    target = labelled(target, labels, source, caller)
    one_hot = bool(np.allclose(source.confusion, source.hard_confusion, rtol=0, atol=1e-9))
    confusion = source.hard_confusion if hard else source.confusion
    return Moments(source, target, confusion, sums[:-1] / sums[-1], one_hot)


def from_weights(both: Moments, weights: Vector) -> PriorEstimate:
    """Return the estimate π ∝ w·P(y); classes without a held-out row keep the source prior."""
    source, target = both.source, both.target
    frequency = both.confusion.sum(axis=0)  # the label shares that the weights refer to
    unseen = frequency == 0
    share = np.where(unseen, source.prior, weights * frequency)
    share[~unseen] *= (1 - share[unseen].sum()) / max(share[~unseen].sum(), 1e-300)
    share = share / share.sum()
    if isinstance(target, LabelledBlocks):  # the mean output is that of all rows, for any of them may have been chosen
        share = put_in(share, target, source.prior)
    estimate = finish(target, source, share, 1, Status.UNSEEN_CLASSES if unseen.any() else Status.SOLVED)
    if not both.one_hot:
        return estimate
    # corrected decisions stay the decisions that they are: their mean is the share of predictions, and not of classes
    return replace(estimate, shares=share, spread=decision_spread(both, share, estimate.n))


def decision_spread(both: Moments, shares: Vector, n: float) -> ModelSpread:
    """Return the uncertainty of shares (K,) from `n` predicted classes, each replaced by P(class | prediction)."""
    source, target = both.source, both.target
    assert source.heldout is not None
    rows, y = source.heldout
    joint = len(y) * both.confusion + source.prior / len(shares)  # one more held-out sample in all
    given_prediction = joint / joint.sum(axis=1, keepdims=True)

    def calibrated(block: Matrix) -> Matrix:
        return np.asarray(given_prediction[block.argmax(axis=1)])

    raw = CalibratedBlocks(target.raw if isinstance(target, LabelledBlocks) else target, calibrated)
    described = replace(source, prior=joint.sum(axis=0) / joint.sum(), heldout=(calibrated(rows), y), error=None)
    target = replace(target, raw=raw) if isinstance(target, LabelledBlocks) else raw
    return ModelSpread(shares, shares, described, target, n)


def bbse(
    source: Any, proba: Any, *, labels: Any = None, hard: bool = False, solver: str = "constrained"
) -> PriorEstimate:
    """Estimate the target prior by black-box shift estimation [lipton2018]: solve C w = mean target prediction.

    Parameters
    ----------
    source : Source
        What `summarize` returned for held-out samples, with their confusion matrix C.
    proba, labels
        As in `estimate`. With labels, the equation holds for the other samples.
    hard : bool
        Whether to count predicted classes instead of averaging probabilities. Keep False if you have probabilities. If
        you have predicted classes alone, one-hot rows in `ebls` give better intervals.
    solver : str
        "constrained" (default) is least squares under w ≥ 0. "clip" solves, then sets negative weights to 0, as
        published.

    Examples
    --------
    >>> from reprior import summarize
    >>> source = summarize([[0.9, 0.1], [0.7, 0.3], [0.3, 0.7], [0.1, 0.9]], [0, 0, 1, 1])
    >>> bbse(source, [[0.8, 0.2], [0.8, 0.2], [0.2, 0.8]]).prior.round(3)
    array([0.667, 0.333])
    """
    check_choice(solver, "bbse", "solver", ("constrained", "clip"))
    both = moments(source, proba, hard, "bbse", labels)
    if solver == "clip":
        weights = np.maximum(np.linalg.lstsq(both.confusion, both.mean, rcond=None)[0], 0.0)
        if not weights.any():
            fail("bbse", "solver", "leave a positive weight", "none after clipping", remedy='Use solver="constrained"')
    else:
        weights = 1 + regularised_shift(both.confusion, both.mean - both.confusion.sum(axis=1), 0.0)
    return from_weights(both, weights)


def rlls(
    source: Any, proba: Any, *, labels: Any = None, hard: bool = False, alpha: float = 0.01, delta: float = 0.05
) -> PriorEstimate:
    """Estimate the target prior by regularised learning under label shifts [azizzadenesheli2019].

    Minimises ‖Cθ − (μ_t − μ_s)‖₂ + α·ρ·‖θ‖₂ over θ ≥ −1, w = 1 + θ, with ρ from the sizes and the confidence `delta`;
    norms are not squared, and C is divided by the number of held-out samples.

    Parameters
    ----------
    source, proba, labels, hard
        As in `bbse`.
    alpha : float
        Strength of the regularisation, at least 0.
    delta : float
        Probability, at most, that the error of the moments exceeds ρ.

    Examples
    --------
    >>> from reprior import summarize
    >>> heldout = [[0.9, 0.1], [0.7, 0.3], [0.3, 0.7], [0.1, 0.9]]
    >>> rlls(summarize(heldout, [0, 0, 1, 1]), [[0.8, 0.2], [0.8, 0.2], [0.2, 0.8]]).prior.round(1)
    array([0.7, 0.3])
    """
    check_number(alpha, "rlls", "alpha", low=0)
    check_number(delta, "rlls", "delta", low=0, high=1, open_low=True)
    both = moments(source, proba, hard, "rlls", labels)
    assert both.source.counts is not None
    n, k = float(both.source.counts.sum()), len(both.mean)
    log_term = np.log(2 * k / delta)
    rho = 3 * (2 * log_term / (3 * n) + np.sqrt(2 * log_term / n))
    theta = regularised_shift(both.confusion, both.mean - both.confusion.sum(axis=1), alpha * rho)
    return from_weights(both, 1 + theta)


def regularised_shift(confusion: Matrix, change: Vector, strength: float) -> Vector:
    """Return argmin ‖Cθ − d‖ + s‖θ‖ over θ ≥ −1; with s = 0, the smallest θ of all that minimise ‖Cθ − d‖.

    Both norms have a kink, at Cθ = d and at θ = 0, and the minimum is often at one of them. Every minimum is a point
    θ(λ) = argmin ‖Cθ − d‖² + λ‖θ‖² of the ridge path, at λ‖θ‖ = s‖Cθ − d‖. The kinks are its ends, λ → 0 and λ → ∞.
    λ‖θ(λ)‖/‖Cθ(λ) − d‖ grows with λ, so one root search finds the place.
    """
    from scipy.optimize import brentq

    gram, k = confusion.T @ confusion, len(change)
    scale = max(float(np.trace(gram)) / k, 1e-300)
    gram /= scale
    free = np.ones(k, dtype=bool)

    def ridge(log_penalty: float, goal: Vector) -> Vector:
        h, penalty = gram.copy(), np.exp(log_penalty)
        h.flat[:: k + 1] += penalty
        x = nonnegative_quadratic(h, confusion.T @ goal / scale + gram.sum(axis=1) + penalty, free)  # x = 1 + θ
        return np.zeros(k) if x is None else x - 1

    def imbalance(log_penalty: float) -> float:
        theta = ridge(log_penalty, change)
        sizes = np.linalg.norm(theta), strength / scale * np.linalg.norm(confusion @ theta - change)
        return float(log_penalty + np.log(np.maximum(sizes[0], 1e-300)) - np.log(np.maximum(sizes[1], 1e-300)))

    low, high = np.log(LEAST_PENALTY), np.log(MOST_PENALTY)
    if imbalance(high) <= 0:
        return np.zeros(k)
    if imbalance(low) < 0:
        return ridge(brentq(imbalance, low, high, xtol=1e-10), change)
    goal = change.copy()
    for _ in range(REFINEMENTS):  # Bregman's iteration: each step takes the residual that the penalty left to the goal
        theta = ridge(low, goal)
        goal += change - confusion @ theta
    return theta
