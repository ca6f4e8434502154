"""What groups have in common, learned from them: how much they differ, and around how many centres.

It serves groups of a batch and new keys of a table of streams. A group's class prior is Dirichlet(c · centre). Of a
group only sums over its samples are used, of p and of p², p their corrected probabilities at the weights of all samples
together. The mean of p is linear in the prior of a group, so an analysis of variance gives 1/(c + 1).
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from reprior._check import counted, listed, percent
from reprior._types import Matrix, Vector, comparable

CONCENTRATIONS = 10.0 ** np.arange(0.0, 4.1, 0.25)  # samples of the common prior that a group may start with
GROUPS_PER_CENTRE = 10  # on average, and half as many around each
ODD_GROUPS = 0.1  # share of groups that may be unlike the others, before any is observed
ODD_CONCENTRATION = 3.0  # samples of the common prior that a group unlike the others starts with
ALIKE = 0.015  # standard deviation of a share of 10 % between groups up to which they are called alike
MAX_ROUNDS = 10  # of groups that move to the nearest centre


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
            low, high = 0.1 - ALIKE, 0.1 + ALIKE
            out.append("The groups are alike: a class with a prior of 10 % has "
                       f"{100 * low:.1f} to {percent(high, 1)} in most groups.")  # fmt: skip
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
    """How far groups scatter: their `concentration`, the standard error `inverse_se` of 1/(concentration + 1), and the
    log likelihood `gain` over groups that do not differ."""

    concentration: float
    inverse_se: float
    gain: float


@dataclass(frozen=True, slots=True)
class ClusterPriors:
    """Dirichlet priors, one per kind of group: `centres` (C, K), one `scatter` for all, and `probability` (C,).

    All kinds but the last are clusters of groups. The last is for groups unlike the others, widely scattered around the
    common prior.
    """

    centres: Matrix
    probability: Vector
    scatter: Scatter

    @property
    def concentrations(self) -> Vector:
        """The concentration of each kind (C,)."""
        c = self.scatter.concentration
        return np.append(np.full(len(self.centres) - 1, c), min(c, ODD_CONCENTRATION))

    @property
    def inverse_se(self) -> Vector:
        """The standard error of 1/(concentration + 1) of each kind (C,)."""
        return np.append(np.full(len(self.centres) - 1, self.scatter.inverse_se), 0.0)


@dataclass(frozen=True, slots=True)
class GroupSums:
    """Of each group: Σ p and Σ p² (G, K), samples `n` (G,), and as how many they count, `effective` (G,)."""

    p: Matrix
    squares: Matrix
    n: Vector
    effective: Vector

    @property
    def counts(self) -> Matrix:
        """Class counts (G, K) of the effective samples."""
        return np.asarray(self.p * (self.effective / self.n)[:, None])


@dataclass(frozen=True, slots=True)
class Clusters:
    """Groups in clusters: their priors `kinds`, the centre `nearest` (G,) to each group, and the log evidence minus the
    BIC penalty."""

    kinds: ClusterPriors
    nearest: NDArray[np.intp]
    log_evidence: float


def find_kinds(sums: GroupSums, mean: Vector, max_centres: int) -> ClusterPriors:
    """Return the kinds of groups around at most `max_centres` centres, given the common prior `mean` (K,).

    The centre whose groups differ most is split in two, again and again. What has the most evidence is kept.
    """
    last = best = fit_clusters(sums, mean, np.zeros(len(sums.n), np.intp), 1)
    for n in range(2, 1 + min(max_centres, len(sums.n) // GROUPS_PER_CENTRE)):
        splits = [split_by_principal_axis(sums.counts, last.nearest == j, mean) for j in range(n - 1)]
        _, moved = max(splits, key=lambda split: split[0])
        last = fit_clusters(sums, mean, np.where(moved, n - 1, last.nearest), n)
        best = max(best, last, key=lambda one: one.log_evidence)
    return best.kinds


def split_by_principal_axis(counts: Matrix, at: NDArray[np.bool_], mean: Vector) -> tuple[float, NDArray[np.bool_]]:
    """Split the groups `at` a centre along the principal axis of their class counts (G, K).

    Return the singular value of that axis, and which (G,) groups lie on its positive side.
    """
    out, here = np.zeros(len(counts), bool), counts[at]
    if len(here) < 2:
        return 0.0, out
    n = here.sum(axis=1, keepdims=True)
    _, width, along = np.linalg.svd((here - n * here.sum(axis=0) / n.sum()) / np.sqrt(n * mean), full_matrices=False)
    out[at] = (here / n - here.sum(axis=0) / n.sum()) / np.sqrt(mean) @ along[0] > 0
    return float(width[0]), out


def fit_clusters(sums: GroupSums, mean: Vector, nearest: NDArray[np.intp], n_centres: int) -> Clusters:
    """Return groups in clusters around `n_centres` centres, given a first guess of the `nearest` (G,) centre of each.

    Centres, scatter and nearest centres are fitted in turn until no group moves.
    """
    counts, n_groups = sums.counts, len(sums.n)
    usual, scatter = np.ones(n_groups, bool), Scatter(ODD_CONCENTRATION, 0.0, 0.0)
    for turn in range(MAX_ROUNDS):
        at = (nearest == np.arange(n_centres)[:, None]) * usual
        # samples of a group are not independent samples of the population: n of them count as n (c + 1)/(n + c)
        c = scatter.concentration
        group_weight = at * ((c + 1) / (sums.effective + c))
        centres = group_weight @ counts + len(mean) * mean
        centres /= centres.sum(axis=1, keepdims=True)
        if turn == 0:  # groups unlike the others must not make all look different
            distance = (counts - sums.effective[:, None] * centres[nearest]) ** 2 / centres[nearest]
            distance = distance.sum(axis=1) / sums.effective
            usual = distance <= np.quantile(distance, 1 - ODD_GROUPS, method="higher")
        scatter = scatter_of(sums, usual, nearest, centres)
        chance = np.append((1 - ODD_GROUPS) * (at.sum(axis=1) + 1) / (at.sum() + n_centres), ODD_GROUPS)
        kinds = ClusterPriors(np.vstack([centres, mean]), chance, scatter)
        member, total = memberships(dirichlet_multinomial_log_pmf(counts, kinds), chance)
        before = nearest, usual
        nearest, usual = member[:, :-1].argmax(axis=1), member[:, -1] < 0.5
        usual = usual if usual.sum() > 1 else before[1]
        if turn and (nearest == before[0]).all() and (usual == before[1]).all():
            break
    value = float(total.sum())
    # each of the K numbers of a centre costs half the logarithm of the samples that determine it (BIC)
    value -= 0.5 * (n_centres - 1) * len(mean) * float(np.log1p(group_weight.sum(axis=0) @ sums.effective / len(mean)))
    if n_centres > 1 and np.bincount(nearest[usual], minlength=n_centres).min() < GROUPS_PER_CENTRE / 2:
        value = -np.inf  # a few groups unlike the others are no cluster
    return Clusters(replace(kinds, probability=(member.sum(axis=0) + chance) / (n_groups + 1)), nearest, value)


def dirichlet_multinomial_log_pmf(counts: Matrix, kinds: ClusterPriors) -> Matrix:
    """Return the Dirichlet-multinomial log probability (G, C) of class counts (G, K) under each kind, up to a constant
    per group."""
    from scipy.special import gammaln

    c = kinds.concentrations
    alpha = np.maximum(c[:, None] * kinds.centres, 1e-9)
    classes = [(gammaln(counts + a) - gammaln(a)).sum(axis=1) for a in alpha]
    return np.asarray(np.stack(classes, axis=1) + gammaln(c) - gammaln(counts.sum(axis=1)[:, None] + c))


def memberships(log_evidence: Matrix, probability: Vector) -> tuple[Vector, Vector]:
    """Return the probability of each kind for each group (G, C), and the log evidence (G,) of all kinds together."""
    joint = log_evidence + np.log(probability)
    total = np.logaddexp.reduce(joint, axis=1)
    return np.asarray(np.exp(joint - total[:, None])), np.asarray(total)


def attenuation(sums: GroupSums) -> Vector:
    """Return by how much the mean of p_k differs between groups (K,) if their share of class k differs by 1: 0 to 1.

    With a = E[p_k | class k] = Σ p_k² / Σ p_k and m the mean of p_k, that is (a − m)/(1 − m).
    """
    total = np.maximum(sums.p.sum(axis=0), 1e-300)
    mean = total / total.sum()
    return np.asarray(np.clip((sums.squares.sum(axis=0) / total - mean) / np.maximum(1 - mean, 1e-12), 0, 1))


def scatter_of(sums: GroupSums, usual: NDArray[np.bool_], nearest: NDArray[np.intp], centres: Matrix) -> Scatter:
    """Return how far the `usual` groups scatter around their centres, by an analysis of variance.

    With s the part of a difference that p shows, the means of groups of n samples have the variance
    within/n + s² m(1 − m)/(c + 1). The sum of squares of each class has a gamma likelihood. Classes are correlated:
    they count as half as many.
    """
    n, nearest = sums.n[usual], nearest[usual]
    means = sums.p[usual] / n[:, None]
    freedom = max(len(n) - len(centres), 0) if n.sum() > len(n) else 0  # 0: nothing is known, and every size possible
    at = nearest == np.arange(len(centres))[:, None]
    around = (at * n) @ means / np.maximum((at * n).sum(axis=1), 1)[:, None]
    within = np.maximum(sums.squares[usual].sum(axis=0) - n @ means**2, 1e-12) / max(n.sum() - len(n), 1)
    observed = n @ (means - around[nearest]) ** 2 / max(freedom, 1)
    unit = attenuation(sums) ** 2 * (at.mean(axis=1) @ (centres * (1 - centres)))
    samples = (n.sum() - (n**2).sum() / n.sum()) / max(len(n) - 1, 1)
    inverse = np.append(1 / (CONCENTRATIONS + 1), 0.0)  # the last: groups do not differ
    expected = within + samples * inverse[:, None] * unit
    log_likelihood = -0.25 * freedom * (np.log(expected) + observed / expected).sum(axis=1)
    posterior = np.exp(log_likelihood[:-1] - log_likelihood[:-1].max())
    posterior /= posterior.sum()
    mean = float(posterior @ inverse[:-1])
    inverse_se = float(np.sqrt(posterior @ (inverse[:-1] - mean) ** 2))
    return Scatter(1 / mean - 1, inverse_se, float(log_likelihood[:-1].max() - log_likelihood[-1]))
