"""What groups have in common, learned from them: how much they differ, and whether they form clusters."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reprior._check import counted, listed, percent
from reprior._types import Matrix, Vector, comparable
from reprior.model.group_fit import Common, GroupCounts, GroupedRows, KindFit, Kinds, fit_kind, memberships

CONCENTRATIONS = 10.0 ** np.arange(0.0, 4.1, 0.25)  # samples of the common prior that a group starts with
ENOUGH_GROUPS = 500  # to learn the population from
CLUSTERS = (2, 4, 8)  # numbers of clusters to try while the evidence grows by more than they cost
GROUPS_PER_CLUSTER = 10  # on average; a cluster has at least half as many
ODD_GROUPS = 0.1  # share of groups that may be unlike the others; as many groups are added to those observed
START_CONCENTRATION = 10.0  # assumed until it has been learned
ODD_CONCENTRATION = 3.0  # samples of the common prior that a group unlike the others starts with
ROUNDS = 4  # of fitting groups and what they have in common in turn
STARTS = 10  # of the search for clusters
EM_STEPS = 50  # for the share of each kind
ALIKE = 0.015  # standard deviation of a share of 10 % between groups up to which they are called alike


@comparable
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Population:
    """What groups have in common.

    Parameters
    ----------
    prior : (K,)
        The common class prior.
    concentration : float
        How alike groups are, in samples: a class of prior m has the variance m(1 − m)/(concentration + 1).
    centres, weights : (C, K), (C,)
        The priors that groups scatter around, and the share of groups around each.
    stand_out : tuple
        Keys of groups that are unlike the others.
    n_groups, n : int
        Groups and samples.
    classes : tuple of str, optional
        Names of the classes.
    differ : bool
        Whether the samples show that groups differ.
    """

    prior: Vector
    concentration: float
    centres: Matrix
    weights: Vector
    stand_out: tuple[Hashable, ...]
    n_groups: int
    n: int
    classes: tuple[str, ...] | None = None
    differ: bool = True

    def sentences(self) -> list[str]:
        """Return the population in a few sentences."""
        names = self.classes or tuple(f"class {j}" for j in range(len(self.prior)))
        largest = np.argsort(-self.prior, kind="stable")[:5]
        prior = ", ".join(f"{names[j]} {percent(self.prior[j], 1)}" for j in largest)
        more = f" and {len(names) - 5} more classes" if len(names) > 5 else ""
        out = [f"{counted(self.n_groups, 'group')} with {counted(self.n, 'sample')}.", f"Common prior: {prior}{more}."]
        deviation = float(np.sqrt(0.1 * 0.9 / (self.concentration + 1)))
        if self.n_groups == 1:
            return out
        if not self.differ:
            out.append("The groups do not differ by more than chance explains.")
        elif deviation < ALIKE and len(self.weights) == 1:
            out.append("The groups are alike: a class with a prior of 10 % has 9 to 11 % in most groups.")
        else:
            low, high = max(0.0, 0.1 - deviation), 0.1 + deviation
            out.append("The groups differ: a class with a prior of 10 % has "
                       f"{100 * low:.0f} to {percent(high)} in most groups.")  # fmt: skip
        sizes = np.sort(self.weights[self.weights >= 0.005])[::-1]
        if len(sizes) > 1:
            parts = ", ".join(percent(w) for w in sizes[:-1])
            out.append(f"They form {len(sizes)} clusters, with {parts} and {percent(sizes[-1])} of the groups.")
        if self.stand_out:
            verb = "stands" if len(self.stand_out) == 1 else "stand"
            out.append(f"{counted(len(self.stand_out), 'group')} {verb} out: {listed(self.stand_out, 5)}.")
        return out

    def __repr__(self) -> str:
        return " ".join(self.sentences())


@dataclass(frozen=True, slots=True)
class Scatter:
    """How far groups scatter: their `concentration`, the standard error `doubt` of 1/(concentration + 1), and the log
    likelihood `gain` over groups that do not differ."""

    concentration: float
    doubt: float
    gain: float


@dataclass(frozen=True, slots=True)
class Learned:
    """A population: its kinds of groups, the scatter within clusters, `fits` of each kind, which kind each group is of,
    `member` (G, C), and the log evidence of all groups, less what its parameters cost."""

    kinds: Kinds
    scatter: Scatter
    fits: list[KindFit]
    member: Matrix
    log_evidence: float


def learn(rows: GroupedRows, common: Common) -> Learned:
    """Return the population of some groups: one cluster, or as many as the evidence shows."""
    first = rows.counts(common.weights, np.ones((len(rows.sizes), len(common.mean))))
    n = rows.sizes.astype(np.float64)
    centre = recentred(first.seen[None], n, common.effective(n), START_CONCENTRATION, common.mean)
    best = settle(rows, common, first, centre, np.zeros(len(n), np.intp))
    for n_clusters in CLUSTERS:
        if len(rows.sizes) < GROUPS_PER_CLUSTER * n_clusters:
            break
        factor = common.effective(rows.sizes) / rows.sizes
        seen = sum(q[:, None] * fit.counts.seen for q, fit in zip(best.member.T, best.fits, strict=True))
        other = settle(rows, common, first, *clusters(factor[:, None] * seen, n_clusters, common.mean))
        if other.log_evidence <= best.log_evidence:
            break
        best = other
    return best


def settle(
    rows: GroupedRows, common: Common, first: GroupCounts, centres: Matrix, nearest: NDArray[np.intp]
) -> Learned:
    """Return the population with clusters around some `centres` (J, K), each group at its `nearest` (G,).

    `first` are the counts at v = 1. The scatter within clusters, the groups, and the centres are fitted in turn.
    """
    n, n_clusters, k = rows.sizes.astype(np.float64), len(centres), len(common.mean)
    effective, usual = common.effective(n), nearest_groups(first, n, nearest, centres)
    pseudo = np.append(np.full(n_clusters, (1 - ODD_GROUPS) / n_clusters), ODD_GROUPS)
    for last in range(ROUNDS - 1, -1, -1):
        scatter = scatter_of(first, n, usual, nearest, centres, common)
        c = scatter.concentration
        everywhere = np.vstack([centres, common.mean])
        strengths = np.append(np.full(n_clusters, c), min(c, ODD_CONCENTRATION))
        fits = [fit_kind(rows, common, centre, strength, first.log_ratio)
                for centre, strength in zip(everywhere, strengths, strict=True)]  # fmt: skip
        evidence, probability = np.stack([fit.log_evidence for fit in fits], axis=1), pseudo
        for _ in range(EM_STEPS):
            member, total = memberships(evidence, probability)
            probability = (member.sum(axis=0) + pseudo) / (len(n) + 1)
        before, usual = usual, member[:, -1] < 0.5
        usual = usual if usual.sum() > 1 else before
        nearest = member[:, :-1].argmax(axis=1)
        if last == 0 or (n_clusters == 1 and (usual == before).all()):
            break
        around = np.stack([q[:, None] * fit.counts.seen for q, fit in zip(member.T[:-1], fits, strict=False)])
        centres = recentred(around, n, effective, c, common.mean)
    # a centre has K numbers and a weight: each fits half a nat by chance, and errs by as much in other groups
    cost = (n_clusters - 1) * (k + float(np.log(len(n))))
    if n_clusters > 1 and member[:, :-1].sum(axis=0).min() < GROUPS_PER_CLUSTER / 2:
        cost = np.inf  # a few groups unlike the others are no cluster
    doubt = np.append(np.full(n_clusters, scatter.doubt), 0.0)
    return Learned(Kinds(everywhere, strengths, probability, doubt), scatter, fits, member, float(total.sum()) - cost)


def recentred(seen: Matrix, n: Vector, effective: Vector, concentration: float, mean: Vector) -> Matrix:
    """Return the mean prior (J, K) of groups by their class counts `seen` (J, G, K), around each of some centres.

    A group counts as many independent samples of the population as it is worth, not as many as it has. K samples of the
    mean over all samples (K,) are added.
    """
    worth = effective * (concentration + 1) / (effective + concentration)
    total = len(mean) * mean + np.einsum("g,jgk->jk", worth / n, seen)
    return np.asarray(total / total.sum(axis=1, keepdims=True))


def nearest_groups(first: GroupCounts, n: Vector, nearest: NDArray[np.intp], centres: Matrix) -> NDArray[np.bool_]:
    """Return all groups but the share ODD_GROUPS farthest from their centre, by χ² distance.

    The scatter is first estimated without them, so that groups unlike the others do not make all look different.
    """
    centre = centres[nearest]
    distance = n * ((first.seen / n[:, None] - centre) ** 2 / centre).sum(axis=1)
    return np.asarray(distance <= np.quantile(distance, 1 - ODD_GROUPS, method="higher"))


def scatter_of(
    first: GroupCounts, n: Vector, usual: NDArray[np.bool_], nearest: NDArray[np.intp], centres: Matrix, common: Common
) -> Scatter:
    """Return how far the usual groups scatter around their centres, by an analysis of variance.

    A group's mean corrected probability at v = 1 is linear in its prior, A π with A_jl = E[p_j | class l]. So the means
    of groups of n samples have the variance within/n + A Var(π) Aᵀ, with Var(π) of a Dirichlet law. The sum of squares
    of each class has a gamma likelihood. Classes are correlated: they count as half as many.
    """
    n, nearest = n[usual], nearest[usual]
    means, squares = first.seen[usual] / n[:, None], first.squares[usual]
    freedom = max(len(n) - len(centres), 0) if n.sum() > len(n) else 0  # 0: nothing is known, and every size possible
    at = nearest == np.arange(len(centres))[:, None]
    around = (at * n) @ means / np.maximum((at * n).sum(axis=1), 1)[:, None]
    within = np.maximum(squares.sum(axis=0) - n @ means**2, 1e-12) / max(n.sum() - len(n), 1)
    observed = n @ (means - around[nearest]) ** 2 / max(freedom, 1)
    shown = common.gram / np.maximum(common.mean, 1e-12)  # A
    share = at.mean(axis=1)
    unit = np.maximum(share @ (centres @ (shown**2).T - (centres @ shown.T) ** 2), 0)
    samples = (n.sum() - (n**2).sum() / n.sum()) / max(len(n) - 1, 1)
    inverse = np.append(1 / (CONCENTRATIONS + 1), 0.0)  # the last: groups do not differ
    expected = within + samples * inverse[:, None] * unit
    log_likelihood = -0.25 * freedom * (np.log(expected) + observed / expected).sum(axis=1)
    posterior = np.exp(log_likelihood[:-1] - log_likelihood[:-1].max())
    posterior /= posterior.sum()
    mean = float(posterior @ inverse[:-1])
    doubt = float(np.sqrt(posterior @ (inverse[:-1] - mean) ** 2))
    return Scatter(1 / mean - 1, doubt, float(log_likelihood[:-1].max() - log_likelihood[-1]))


def clusters(counts: Matrix, n_clusters: int, base: Vector) -> tuple[Matrix, NDArray[np.intp]]:
    """Return centres (J, K) of groups by their class counts (G, K), and the nearest of each group: k-means with the
    multinomial likelihood, the best of several starts."""
    k, rng = len(base), np.random.default_rng(0)  # the same groups give the same clusters

    def centres_of(sums: Matrix) -> Matrix:
        smoothed = np.maximum(sums + k * base, 1e-300)
        return np.asarray(smoothed / smoothed.sum(axis=1, keepdims=True))

    own = (counts * np.log(np.maximum(counts / counts.sum(axis=1, keepdims=True), 1e-300))).sum(axis=1)
    best, label = -np.inf, np.empty(0, np.intp)
    found: Matrix = np.empty((0, k))
    for _ in range(STARTS):
        centres = centres_of(counts[rng.integers(len(counts), size=1)])
        while len(centres) < n_clusters:  # far from those there are
            far = np.maximum(own - (counts @ np.log(centres.T)).max(axis=1), 1e-300)
            centres = np.vstack([centres, centres_of(counts[rng.choice(len(counts), size=1, p=far / far.sum())])])
        for _ in range(20):
            fit = counts @ np.log(centres.T)
            nearest = fit.argmax(axis=1)
            moved = centres_of((nearest == np.arange(n_clusters)[:, None]).astype(np.float64) @ counts)
            settled = np.abs(moved - centres).max() < 1e-9
            centres = moved
            if settled:
                break
        if (value := float(fit.max(axis=1).sum())) > best:
            best, found, label = value, centres, nearest
    return found, label
