"""Fit of many groups at once, given the population that they come from.

Corrected by the weights of all samples together, the samples of a group have class weights v (K,) around 1. The group's
class prior m v, with m the mean corrected probability of all samples, is Dirichlet(c · m). That is a gamma prior of
each v_k, so EM is that of `likelihood.py`,

    v = (c m + observed) / ((c + n) m),    observed = Σ p over the samples of the group.                          (2)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from reprior._types import Matrix, Vector
from reprior.model.likelihood import extrapolated
from reprior.rows.grouped import GroupedRows

MAX_CYCLES = 30  # of two EM steps each
TOLERANCE = 3e-4  # L1 change of a group's prior in an EM step


@dataclass(frozen=True, slots=True)
class Common:
    """What holds for all groups: class `weights` (K,), mean corrected probability `mean` (K,) and class `prior` (K,) of
    all samples, and the `concentration` of groups around them.

    `heldout` is the effective number of held-out samples. Samples of a group share the classifier's error, so n of them
    count as n/(1 + n/heldout).
    """

    weights: Vector
    mean: Vector
    prior: Vector
    concentration: float
    heldout: float

    def effective(self, n: Any) -> Vector:
        """Return how many samples of a classifier without error the samples of each group (G,) are worth."""
        return np.asarray(n / (1 + n / self.heldout))


class GroupFit(NamedTuple):
    """Groups after EM: class weights `ratios` (G, K) relative to all samples, what `GroupCounts` has at these, and the
    L1 `change` (G,) of the prior in the last step."""

    ratios: Matrix
    observed: Matrix
    squares: Matrix
    log_ratio: Vector
    change: Vector


def fit_groups(rows: GroupedRows, common: Common) -> GroupFit:
    """Return the fit of all groups by EM (eq. 2), every two steps extrapolated [varadhan2008].

    Groups that have converged stay, so the fit of a group does not depend on others.
    """
    n, c = rows.sizes[:, None], common.concentration
    effective = common.effective(n)
    factor, total = effective / n, (c + effective) * common.mean

    def em_step(log_v: Matrix) -> Matrix:
        observed = rows.counts(common.weights, np.exp(log_v)).observed
        return np.asarray(np.log((c * common.mean + factor * observed) / total))

    at = np.zeros((len(n), len(common.mean)))
    for _ in range(MAX_CYCLES):
        first = em_step(at)
        second = em_step(first)
        change = np.abs(np.exp(second) - np.exp(first)) @ common.mean
        moving = change >= TOLERANCE
        if not moving.any():
            break
        at[moving] = extrapolated(at[moving], first[moving], second[moving])
    ratios = np.exp(second)
    return GroupFit(ratios, *rows.counts(common.weights, ratios), change)
