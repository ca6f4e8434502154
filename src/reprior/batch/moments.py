"""Moment methods: match the mean output on the target through the held-out confusion matrix."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from reprior._check import UNLABELLED, check_choice, check_flag, check_number, fail
from reprior._types import Interval, Matrix, Source, Status, Vector
from reprior.batch.finish import finish
from reprior.batch.solve import nonnegative_quadratic
from reprior.estimates.estimate import PriorEstimate
from reprior.rows.blocks import Blocks, check_inputs
from reprior.rows.labelled import LabelledBlocks, labelled, put_in

# λ at the ends of the ridge path, in units of the mean squared column of C: beyond them θ changes by rounding alone
LEAST_PENALTY, MOST_PENALTY = 1e-12, 1e6
REFINEMENTS = 4  # each divides what is left of the residual by σ²/λ, with σ² ≥ 1e-9 in every direction that data show
CONFUSION_PSEUDO_ROWS = (
    1.0  # samples, shared by all classes, that each sample of predicted classes has more than it shows
)
HARD_NOTE = "From counts of predicted classes: sampling error of target and confusion matrix, to first order."


@dataclass(frozen=True, slots=True)
class Moments:
    """The checked `source` and `target`, the joint `confusion` C[i, j] = P(ŷ=i, y=j), and the target's `mean` output.

    `hard`: outputs count as predicted classes, because the caller asks for it or because the held-out ones are one-hot.
    """

    source: Source
    target: Blocks
    confusion: Matrix
    mean: Vector
    hard: bool
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
    return Moments(source, target, confusion, sums[:-1] / sums[-1], hard or one_hot, one_hot)


@dataclass(frozen=True, slots=True)
class HardSpread:
    """How sure the shares are that counts of predicted classes give: the moments' sampling error, to first order.

    With A[i, j] = P(ŷ=i | y=j) and π = A⁻¹μ, the variance of π is A⁻¹(V(μ)/n + Σ_j π_j² V(A_j)/n_j)A⁻ᵀ, each V that of
    one draw of a class, diag(p) − ppᵀ. The n samples get `CONFUSION_PSEUDO_ROWS` more, shared by all
    predictions, and so do the n_j held-out samples of each class: otherwise no variance is known where all agree.
    """

    prior: Vector
    variance: Vector
    n: float
    shares: Vector | None = None

    def at(self, level: float, of: str = "shares") -> Interval:
        """Return the interval of each class's share; the estimate lies inside."""
        from scipy.special import ndtri

        z = float(ndtri(0.5 + level / 2))
        # t² = z²(v + gt), t away from the estimate: a share of counts has the longer arm towards one half
        skew = z * z * (1 - 2 * self.prior) / (2 * self.n)
        arm = np.sqrt(skew * skew + z * z * self.variance)
        lower, upper = self.prior + skew - arm, self.prior + skew + arm
        lower, upper = np.clip(lower, 0.0, self.prior), np.clip(upper, self.prior, 1.0)
        if of == "shares" and self.shares is not None:
            lower, upper = np.minimum(lower, self.shares), np.maximum(upper, self.shares)
        return Interval(lower, upper, level=level, note=HARD_NOTE)

    def without_rows(self) -> HardSpread:
        """Return the same: it holds no samples."""
        return self


def hard_spread(both: Moments, prior: Vector, n: float) -> HardSpread:
    """Return how sure the shares `prior` (K,) of `n` rows are."""
    assert both.source.counts is not None
    k, rows = len(prior), both.source.counts
    share = CONFUSION_PSEUDO_ROWS / k
    counts = both.confusion / np.maximum(both.confusion.sum(axis=0), 1e-300) * rows + share
    given_class = counts / counts.sum(axis=0)
    predicted = (n * both.mean + share) / (n + CONFUSION_PSEUDO_ROWS)
    weight = prior**2 / (rows + CONFUSION_PSEUDO_ROWS)
    covariance = np.diag(predicted / n + given_class @ weight) - np.outer(predicted, predicted) / n
    covariance -= (given_class * weight) @ given_class.T
    inverse = np.linalg.pinv(given_class)
    variance = np.einsum("ij,jk,ik->i", inverse, covariance, inverse, optimize=True)
    return HardSpread(prior, np.maximum(variance, 0.0), n)


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
    if not both.hard:
        return estimate
    # corrected decisions stay the decisions that they are: their mean is the share of predictions, and not of classes
    shares = share if both.one_hot else estimate.shares
    return replace(estimate, shares=shares, spread=replace(hard_spread(both, share, estimate.n), shares=shares))


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
        Whether to count predicted classes instead of summing probabilities. If you have probabilities, keep the
        default: counts discard what they say. If you have predicted classes alone, pass them as one-hot rows to
        `ebls`: its intervals hold the true share more often.
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
