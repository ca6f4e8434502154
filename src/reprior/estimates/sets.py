"""Prediction sets: sets of classes that contain the true class with a chosen probability, under the estimated prior.

Split conformal prediction with weights [tibshirani2019], which under label shift are the class weights
[podkopaev2021]. A class is in the set of a sample if its corrected probability reaches a cutoff. The cutoff is a
quantile of the probabilities that held-out samples, reweighted to the target prior, give to their own class.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from reprior._check import fail
from reprior._types import Labels, Matrix, Source, Vector
from reprior.rows.calibrated import Calibrator
from reprior.rows.correction import correct_float64

if TYPE_CHECKING:
    from reprior.estimates.estimate import PriorEstimate

# held-out samples that a summary keeps: of each class at least, of all classes at most
MIN_KEPT_PER_CLASS, MAX_KEPT = 100, 1 << 16
PRIOR_DRAWS = 5  # class shares within the estimate's uncertainty, to see what an error of the weights costs
# Part of the mean coverage loss over PRIOR_DRAWS that is added to the level. It would be 1 if the estimate scattered
# around the truth, and 0 if the truth scattered around the estimate
CHARGED = 0.5
TIED = 1e-6  # relative difference of probabilities that is rounding: a class at its cutoff is in the set


@dataclass(frozen=True, slots=True)
class Scores:
    """What prediction sets need of the held-out samples."""

    own: Matrix  # (M, n), probability of the own class of each, corrected to M class shares
    y: Labels  # (n,), classes
    shares: Matrix  # (M, K): the estimate, and others that it might have been

    def cutoffs(self, level: float, *, by_class: bool) -> Vector:
        """Return the least corrected probability (K,) with which each class is in a set."""
        k = self.shares.shape[1]
        if by_class:  # the n rows of a class and a new one are equally likely to be the least
            least = np.zeros(k)
            for c in np.unique(self.y):
                own = np.sort(self.own[0, self.y == c])
                rank = int((1.0 - level) * (len(own) + 1) + 1e-9)
                least[c] = own[rank - 1] if rank else 0.0
            return least
        mass = (self.shares[0] / np.maximum(np.bincount(self.y, minlength=k), 1))[self.y]  # of held-out samples
        inside = [self.own[m] >= self.overall_cutoffs(m, level)[self.y] for m in range(1, len(self.own))]
        covered = [float(mass @ some / mass.sum()) for some in inside]
        short = max(0.0, level - float(np.mean(covered))) if covered else 0.0
        return self.overall_cutoffs(0, min(level + CHARGED * short, np.nextafter(1.0, 0.0)))

    def overall_cutoffs(self, m: int, level: float) -> Vector:
        """Return cutoffs (K,) by which a sample drawn with the shares number m is covered."""
        order = np.argsort(self.own[m], kind="stable")
        counts = np.bincount(self.y, minlength=self.shares.shape[1])
        mass = self.shares[m] / np.maximum(counts, 0.5)  # of a row; an unseen class is tried as if it had half of one
        reached = np.cumsum(mass[self.y[order]])
        # the new row has the weight of the class that it is tried for, and may be the least of all
        beyond = (1.0 - level) * (reached[-1] + mass) - mass
        at = np.minimum(np.searchsorted(reached, beyond, side="right"), len(order) - 1)
        return np.where(beyond < 0.0, 0.0, self.own[m, order][at])

    def thinned(self) -> Scores:
        """Return scores of bounded size: evenly spaced ones of a class with many rows, which then count as its rows."""
        k = self.shares.shape[1]
        most, kept = max(MIN_KEPT_PER_CLASS, MAX_KEPT // k), []
        for c in np.unique(self.y):
            rows = np.flatnonzero(self.y == c)
            if len(rows) > most:
                ranks = (np.arange(1, most + 1) * ((len(rows) + 1) / (most + 1)) + 1e-9).astype(np.intp)
                rows = rows[np.argsort(self.own[0, rows], kind="stable")[ranks - 1]]
            kept.append(rows)
        rows = np.concatenate(kept)
        return Scores(self.own[:, rows], self.y[rows], self.shares)


def scores_of(
    source: Source, calibrator: Calibrator | None, shares: Vector, error: Vector | None, weights: Vector
) -> Scores:
    """Return scores for target shares (K,) with standard errors (K,), and class weights (K,) of the correction."""
    if source.heldout is None:
        fail("prediction_sets", "estimate", "be based on held-out samples with labels", "none",
             remedy="Fit a pipeline to held-out samples")  # fmt: skip
    rows, y = source.heldout
    if calibrator is not None:
        rows = calibrator.left_out(rows, y)
    shares = np.maximum(shares, 1e-12)  # no class is impossible, or its held-out samples would have no probabilities
    drawn = [shares] if error is None else [shares, *nearby(shares, error, PRIOR_DRAWS)]
    each, per_share = np.arange(len(y)), weights / shares
    return Scores(np.stack([correct_float64(rows, some * per_share)[each, y] for some in drawn]), y, np.stack(drawn))


def nearby(prior: Vector, error: Vector, n: int) -> Matrix:
    """Return shares (n, K) that an estimate (K,) with errors (K,) might be, the same for any order of the classes."""
    rng, by_size = np.random.default_rng(0), np.lexsort((error, prior))
    mean = np.maximum(prior, 1e-9)
    shape = np.clip((mean / np.maximum(error, 1e-9)) ** 2, 1e-3, 1e9)
    drawn = np.empty((n, len(prior)))
    drawn[:, by_size] = np.maximum(rng.gamma(shape[by_size], (mean / shape)[by_size], drawn.shape), 1e-12)
    return np.asarray(drawn / drawn.sum(axis=1, keepdims=True))


def scores(estimate: PriorEstimate) -> Scores:
    """Return what an estimate's prediction sets need of the held-out rows."""
    if estimate.scores is not None:
        return estimate.scores
    error = None
    if estimate.source.heldout is not None:
        lower, upper = estimate.interval(0.6827)  # one standard error to both sides
        error = (upper - lower) / 2
    return scores_of(estimate.source, estimate.calibrator, estimate.shares, error, estimate.weights).thinned()
