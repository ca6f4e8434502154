"""Fit of many groups at once, given what they have in common.

Corrected by the weights of all samples together, the samples of a group have class weights v (K,) around 1. The group's
class prior m v, with m the mean corrected probability of all samples, has a Dirichlet prior of one of several kinds:
c samples around some centre. That is a gamma prior of each v_k, so EM is that of `likelihood.py`,

    v = (size + observed) / (size/mean + expected),    size = c · centre,  mean = centre/m,  expected = n m.      (2)

Evidence is by Laplace's method in log v, given the number of samples.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from reprior._check import fail
from reprior._kernels import loops, reference
from reprior._kernels.reference import width
from reprior._types import Matrix, Vector
from reprior.model.likelihood import extrapolated
from reprior.model.population import ClusterPriors, memberships
from reprior.rows.blocks import ArrayBlocks, Blocks, map_numbered
from reprior.rows.keys import Codes
from reprior.rows.labelled import some_blocks

Index = NDArray[np.int64]
MAX_CYCLES = 30  # of two EM steps each
TOLERANCE = 3e-4  # L1 change of a group's prior in an EM step


@dataclass(frozen=True, slots=True)
class Common:
    """What holds for all samples together: class `weights` (K,), the mean corrected probability `mean` (K,), the class
    `prior` (K,) of their population, and `gram` (K, K), the mean of p pᵀ, or (K,), its diagonal alone.

    `heldout` is the effective number of held-out samples. Samples of a group share the classifier's error, so n of them
    count as n/(1 + n/heldout).
    """

    weights: Vector
    mean: Vector
    prior: Vector
    gram: Matrix
    heldout: float

    def effective(self, n: Any) -> Vector:
        """Return how many samples of a classifier without error the samples of each group (G,) are worth."""
        return np.asarray(n / (1 + n / self.heldout))


@dataclass(frozen=True, slots=True)
class GroupCounts:
    """Per group: Σ p and Σ p² (G, K), p the corrected probabilities, and Σ log r (G,)."""

    observed: Matrix
    squares: Matrix
    log_ratio: Vector


@dataclass(frozen=True, slots=True)
class GroupFit:
    """Groups after the data: class weights `ratios` (G, K) relative to all samples, probability `member` (G, C) of each
    kind, `prior` and `shares` (G, K) with their variances, the log evidence (G,) relative to v = 1, Σ log r (G,) at
    v = 1 and at `ratios`, and the last change of the prior (G,)."""

    ratios: Vector
    member: Vector
    prior: Vector
    prior_variance: Vector
    shares: Vector
    shares_variance: Vector
    log_evidence: Vector
    log_ratio_common: Vector
    log_ratio: Vector
    change: Vector


class Grouped(Protocol):
    """Samples in groups, here or on a cluster."""

    @property
    def sizes(self) -> Index: ...

    def fit(self, common: Common, kinds: ClusterPriors) -> GroupFit: ...

    def some(self, which: Index) -> GroupedRows: ...

    def of_group(self, g: int) -> Blocks: ...


def check_read(n: int, observed: int) -> None:
    """Refuse blocks that other processes read, because nothing of them is here."""
    if observed != n:
        fail("groups", "proba", f"be {n} rows that this process reads in order", f"{observed} such rows",
             remedy="On Spark call `reprior.adapters.spark.groups`")  # fmt: skip


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Samples that this process reads, with the number of each one's group, `codes` (n,); `sizes` (G,) count them."""

    target: Blocks
    codes: Codes
    sizes: Index

    @classmethod
    def of(cls, target: Blocks, codes: Codes, n_groups: int) -> GroupedRows:
        """Return samples with the number of each one's group."""
        return cls(target, codes, np.bincount(codes, minlength=n_groups).astype(np.int64))

    def counts(self, weights: Vector, ratios: Matrix) -> GroupCounts:
        """Return class counts under the class weights `weights` (K,) times `ratios` (G, K), in one pass."""
        k = len(weights)
        inverse, wide = np.zeros(width(k)), np.zeros((len(self.sizes), width(k)))
        inverse[:k], wide[:, :k] = weights, ratios
        sums, logs = np.zeros((len(self.sizes), 2, width(k))), np.zeros(len(self.sizes))
        observed, codes = 0, self.codes  # alone: `of_block` may be sent to where the rows are

        def of_block(first: int, block: Matrix) -> int:
            nonlocal observed
            observed += len(block)
            slots = codes[first : first + len(block)].astype(np.int64)
            if loops.group_counts(block, inverse, slots, wide, sums, logs) == reference.REFUSED:
                reference.group_counts(block, inverse, slots, wide, sums, logs)
            return 0

        map_numbered(self.target, of_block)
        check_read(len(codes), observed)
        return GroupCounts(ratios * sums[:, 0, :k], ratios**2 * sums[:, 1, :k], logs)

    def fit(self, common: Common, kinds: ClusterPriors) -> GroupFit:
        """Return the fit of all groups."""
        return fit_groups(self, common, kinds)

    def some(self, which: Index) -> GroupedRows:
        """Return the samples of some groups (m,) alone, in memory."""
        position = np.full(len(self.sizes), -1, np.int64)
        position[which] = np.arange(len(which))
        if isinstance(self.target, ArrayBlocks):
            kept = position[self.codes] >= 0
            rows = self.target.array if kept.all() else self.target.array[kept]
            return GroupedRows.of(ArrayBlocks(rows), position[self.codes[kept]], len(which))
        parts, codes = list[tuple[int, Matrix]](), self.codes

        def keep(first: int, block: Matrix) -> int:
            parts.append((first, np.array(block[position[codes[first : first + len(block)]] >= 0])))
            return 0

        map_numbered(self.target, keep)
        check_read(int((position[codes] >= 0).sum()), sum(len(rows) for _, rows in parts))
        rows = np.concatenate([rows for _, rows in sorted(parts, key=lambda part: part[0])])
        codes = position[self.codes]
        return GroupedRows.of(ArrayBlocks(np.ascontiguousarray(rows)), codes[codes >= 0], len(which))

    def of_group(self, g: int) -> Blocks:
        """Return the samples of one group."""
        here = self.codes == g
        if isinstance(self.target, ArrayBlocks):
            return ArrayBlocks(self.target.array[here])
        return some_blocks(self.target, here)


@dataclass(frozen=True, slots=True)
class KindFit:
    """Groups under one kind: modes `ratios` of v (G, K), what their samples count there, the log evidence (G,) relative
    to v = 1, and the last change of the prior (G,)."""

    ratios: Matrix
    counts: GroupCounts
    log_evidence: Vector
    change: Vector


def fit_kind(
    rows: GroupedRows, common: Common, centre: Vector, concentration: float, baseline: Vector,
    start: Matrix | None = None,
) -> KindFit:  # fmt: skip
    """Return the fit of all groups under a Dirichlet prior. `baseline` (G,) is Σ log r at v = 1; EM begins at `start`
    (G, K), by default 1. If few groups have not converged, they are fitted again without the others."""
    n, m = rows.sizes.astype(np.float64), common.mean
    centre = np.maximum(centre, 1e-12)
    effective, size = common.effective(n), concentration * centre
    factor, rate = (effective / n)[:, None], concentration * m + effective[:, None] * m

    def em_step(log_v: Matrix) -> tuple[Matrix, GroupCounts]:
        counts = rows.counts(common.weights, np.exp(log_v))
        return np.log((size + factor * counts.observed) / rate), counts  # eq. 2

    at = np.zeros((len(n), len(m))) if start is None else np.log(start)
    for cycle in range(MAX_CYCLES):
        first, _ = em_step(at)
        second, counts = em_step(first)
        change = np.abs(np.exp(second) - np.exp(first)) @ m
        moving = np.flatnonzero(change >= TOLERANCE)
        refit_remaining = isinstance(rows.target, ArrayBlocks) and 4 * len(moving) < len(n) and cycle < MAX_CYCLES - 1
        # others stay, so a group's fit does not depend on others
        at[moving] = extrapolated(at[moving], first[moving], second[moving])
        if refit_remaining or not len(moving):
            break
    v = np.exp(first)
    evidence = factor[:, 0] * (counts.log_ratio - baseline) - effective * (v @ m - 1)
    evidence += log_normaliser(size).sum() + (first - np.log(centre / m)) @ size - concentration * (v @ m)
    evidence += log_integral(size + factor * counts.squares).sum(axis=1)
    # given the number of samples: a total that could vary would make groups look alike
    evidence -= log_normaliser(concentration) + log_integral(concentration + effective) - concentration
    fit = KindFit(np.exp(second), counts, np.asarray(evidence), change)
    if refit_remaining and len(moving):
        rest = fit_kind(rows.some(moving), common, centre, concentration, baseline[moving], np.exp(at[moving]))
        overwrite_groups(fit, moving, rest)
    return fit


def overwrite_groups(whole: Any, groups: Index, part: Any) -> None:
    """Overwrite the arrays of some groups in `whole` by those of `part`, a value of the same type."""
    for name in (field.name for field in fields(whole)):
        mine, theirs = getattr(whole, name), getattr(part, name)
        if isinstance(mine, GroupCounts):
            overwrite_groups(mine, groups, theirs)
        else:
            mine[groups] = theirs


def log_integral(shape: Vector) -> Vector:
    """Return the log of Laplace's integral over log v for a gamma law of this shape: log Γ(h) − h log h + h."""
    from scipy.special import gammaln

    return np.asarray(gammaln(shape) - shape * np.log(shape) + shape)


def log_normaliser(size: Vector | float) -> Vector:
    """Return that of a gamma density of log v with this shape and mean 1: size log size − log Γ(size)."""
    from scipy.special import gammaln

    return np.asarray(size * np.log(size) - gammaln(size))


def by_class(variance: Matrix, vectors: Matrix | None) -> Matrix:
    """Return the variances (G, K) of classes from those along eigenvectors (K, K); None if classes are eigenvectors."""
    return variance if vectors is None else variance @ (vectors**2).T


def fit_groups(rows: GroupedRows, common: Common, kinds: ClusterPriors) -> GroupFit:
    """Return all groups under the kinds that there are, averaged by evidence.

    With M the Gram matrix of corrected probabilities in units of √m, the precision of log v is, in units of the square
    root of (c + n) m, I − b (I − M) with b = n/(c + n). The eigenvectors of M are those for all groups. If only the
    diagonal of M is known, each class is an eigenvector.
    """
    n, (g, k) = rows.sizes.astype(np.float64), (len(rows.sizes), len(common.mean))
    effective = common.effective(n)[:, None]
    baseline = rows.counts(common.weights, np.ones((g, k))).log_ratio
    fits = list[KindFit]()
    for centre, c in zip(kinds.centres, kinds.concentrations, strict=True):
        fits.append(fit_kind(rows, common, centre, c, baseline, fits[-1].ratios if fits else None))
    member, evidence = memberships(np.stack([fit.log_evidence for fit in fits], axis=1), kinds.probability)
    log_v, prior, second, shares_variance = np.zeros((4, g, k))
    root, vectors = np.sqrt(common.mean), None
    if common.gram.ndim == 1:
        clear = common.gram / common.mean
    else:
        clear, vectors = np.linalg.eigh(common.gram / np.outer(root, root))
    ambiguity = 1 - np.clip(clear, 0, 1)  # 0 in a direction without any
    for fit, q, centre, c, inverse_se in zip(
        fits, member.T[:, :, None], kinds.centres, kinds.concentrations, kinds.inverse_se, strict=True
    ):
        p = c * centre * (common.prior / common.mean) + effective / n[:, None] * fit.counts.observed
        p /= p.sum(axis=1, keepdims=True)
        variance = 1 / (1 - effective / (c + effective) * ambiguity)  # along each eigenvector
        of_prior = by_class(variance, vectors) / (c + effective + 1) + (c / (c + effective)) ** 2 * inverse_se
        log_v += q * np.log(fit.ratios)
        prior += q * p
        second += q * (p**2 + p * (1 - p) * np.minimum(of_prior, 1))
        shares_variance += q * p * by_class(variance * ambiguity**2, vectors) / (c + effective)
    at = rows.counts(common.weights, np.exp(log_v))
    shares = at.observed / n[:, None]
    shares_variance += (at.observed - at.squares) / (n**2)[:, None]  # each sample is ambiguous, p(1 − p)
    return GroupFit(
        np.exp(log_v), member, prior, np.maximum(second - prior**2, 0), shares, shares_variance, evidence, baseline,
        at.log_ratio, np.max([fit.change for fit in fits], axis=0),
    )  # fmt: skip
