"""How alike groups are: one Dirichlet population, learned from sums over the samples of each group.

The class prior of a group is Dirichlet(c · common prior). The concentration c is in samples: a group starts with c
samples of the common prior. Only sums of p and of p² are used, p the probabilities corrected by the weights of all
samples together. The same model serves groups of a batch and new keys of a table of streams. Clusters of groups were
tried and did not pay (benchmarks/results/groups_forms.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reprior._types import Matrix, Vector

CONCENTRATIONS = 10.0 ** np.arange(0.0, 4.1, 0.25)  # samples, from one sample to alike for all practical purposes


@dataclass(frozen=True, slots=True)
class Scatter:
    """How far groups scatter: their `concentration` c, the standard error `intraclass_se` of their intraclass
    correlation 1/(c + 1), and the log likelihood `gain` over groups that do not differ.

    Mean corrected probabilities have the variance `within` (K,) for one sample and `between` (K,) groups. If the share
    of a class differs by 1, its mean corrected probability differs by `share_slope` (K,).
    """

    concentration: float
    intraclass_se: float
    gain: float
    within: Vector
    between: Vector
    share_slope: Vector


def share_slope(p: Matrix, squares: Matrix, n: Any) -> Vector:
    """Return the derivative of the mean of p_k by the share of class k, from sums of p and p² (..., K) over n samples.

    With m the mean of p_k over all samples and a = Σ p_k² / Σ p_k that over samples of class k, it is (a − m)/(1 − m).
    That equals Var(p_k)/(m(1 − m)), the information about the share relative to labels.
    """
    mean = p / n
    return np.asarray(np.clip((squares / np.maximum(p, 1e-300) - mean) / np.maximum(1 - mean, 1e-12), 0, 1))


def scatter_of(p: Matrix, squares: Matrix, n: Vector) -> Scatter:
    """Return how far groups scatter, by an analysis of variance of the sums of p and of p² (G, K) over n (G,) samples.

    With m the mean of p_k over all samples and I its `share_slope`, the mean of p_k over n samples of a group has the
    variance within/n + I² m(1 − m)/(c + 1), and its sum of squares over groups a gamma likelihood. 1/(c + 1) is
    averaged over a grid of c by this likelihood. Shares add up to 1, so K classes count as K − 1.
    """
    total, k = np.maximum(p.sum(axis=0), 1e-300), p.shape[1]
    mean, means = total / total.sum(), p / n[:, None]
    freedom = len(n) - 1 if n.sum() > len(n) else 0  # 0: nothing is known, every concentration is possible
    within = np.maximum(squares.sum(axis=0) - n @ means**2, 1e-12) / max(n.sum() - len(n), 1)
    between_square = n @ (means - mean) ** 2 / max(freedom, 1)
    mean_group_size = (n.sum() - (n**2).sum() / n.sum()) / max(len(n) - 1, 1)
    intraclass = np.append(1 / (CONCENTRATIONS + 1), 0.0)  # the last: groups do not differ
    of_class = share_slope(total, squares.sum(axis=0), total.sum())
    unit = of_class**2 * mean * (1 - mean)
    expected = within + mean_group_size * intraclass[:, None] * unit
    log_likelihood = -0.5 * freedom * (k - 1) / k * (np.log(expected) + between_square / expected).sum(axis=1)
    posterior = np.exp(log_likelihood[:-1] - log_likelihood[:-1].max())
    posterior /= posterior.sum()
    average = float(posterior @ intraclass[:-1])
    intraclass_se = float(np.sqrt(posterior @ (intraclass[:-1] - average) ** 2))
    gain = float(log_likelihood[:-1].max() - log_likelihood[-1])
    return Scatter(1 / average - 1, intraclass_se, gain, within, average * unit, of_class)


def unlikeness(p: Matrix, n: Vector, scatter: Scatter) -> Vector:
    """Return by how many standard deviations each group (G,) is unlike the others, from its sums of p (G, K).

    The squared distance of a group's mean of p from that of all groups, in units of its expectation, is about a
    chi-square variable. The cube root of one is nearly normal (Wilson and Hilferty). Its location and scale are medians
    over groups, which hardly depend on groups that are unlike the others.
    """
    means = p / n[:, None]
    weights = n / (1 + n / scatter.concentration)  # samples of a group are not independent samples of the population
    centre = np.maximum(weights @ means / weights.sum(), 1e-12)
    distance = ((means - centre) ** 2 / centre).sum(axis=1)
    expected = (scatter.within / centre).sum() / n + (scatter.between / centre).sum()
    root = np.cbrt(distance / expected)
    deviation = 1.4826 * np.median(np.abs(root - np.median(root)))  # of a normal variable
    at_least = np.sqrt(2 / 9 / (p.shape[1] - 1))  # that of a chi-square variable with K − 1 degrees of freedom
    return np.asarray((root - np.median(root)) / max(deviation, at_least))
