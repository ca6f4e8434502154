"""Intervals that cover: what the target rows really said, their observed information, which is a sum over rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprior._check import check_estimate, check_level, fail
from reprior._types import Interval, Labels, Matrix, PriorEstimate, Spread, Vector
from reprior.batch.misfit import Fit, misfit
from reprior.batch.solve import nonnegative_quadratic
from reprior.rows.blocks import Blocks
from reprior.rows.passes import e_step, information

SMOOTHING = 0.1  # of a row, given to every class so that none is ruled out before its information is looked at
ALIKE = 1e-4  # classes whose likelihoods correlate closer to 1 than this are one class to the rows
CONFUSED = 1e4  # variance inflation beyond which a class looks like a mixture of others
ENOUGH_ROWS = 6  # a class, and a thousand times that in all, to take correlations from
MANY = 4096  # classes, beyond which a K×K matrix is too dear
FAR = 0.1  # mean squared standard errors from estimate to maximum beyond which to look again from there

HELD_BACK = (
    "For {} of {} classes the estimate is itself the end of the interval. The estimate weighs the chance that nothing"
    " has shifted, and the interval does not."
)


def notes_on(estimate: PriorEstimate, widened: str, *, told: bool = True) -> list[str]:
    """Return what to know of an interval: how far held-out rows, if they have `told` anything, `widened` it, which
    classes they have no row of, and that target rows are few."""
    heldout, k, notes = estimate.source.heldout, len(estimate.prior), []
    if heldout is None:
        notes.append("Optimistic: no held-out labelled rows tell how wrong the classifier's outputs are.")
    elif not told:
        notes.append("Optimistic: the held-out rows have none of the target's classes.")
    else:
        unseen = int((np.bincount(heldout[1], minlength=k) == 0).sum())
        whose = "class has no held-out row. Its" if unseen == 1 else "classes have no held-out row. Their"
        notes += [widened] * bool(widened)
        notes += [f"{unseen} {whose} misfit is taken to be that of the others."] * bool(unseen)
    return notes + [f"There are few rows: {estimate.n:.0f} for {k} classes."] * (estimate.n < k)


def interval(estimate: PriorEstimate, level: float = 0.95) -> Interval:
    """Return lower and upper ends (K,), (K,) for each class's share of the target.

    Parameters
    ----------
    estimate : PriorEstimate
        What a method returned, with its rows.
    level : float
        Between 0 and 1, of each class by itself.

    Returns
    -------
    Interval
        A pair (lower, upper); `note` says how far to trust it.

    Examples
    --------
    >>> from reprior import mlls
    >>> rows = [[0.9, 0.1]] * 60 + [[0.1, 0.9]] * 40
    >>> lower, upper = interval(mlls([1, 1], rows), level=0.9)
    >>> bool(lower[0] < 0.625 < upper[0])
    True
    """
    return spread(check_estimate(estimate, "interval")).at(check_level(level, "interval"))


def spread(estimate: PriorEstimate) -> Spread:
    """Return how sure an estimate is: what its method says itself, else from the observed information of its rows.

    The interval then holds the shares whose best fit is not much worse than the best of all, by a quadratic model of
    the log-likelihood around the estimate. It is centred on the maximum-likelihood shares: methods that shrink are
    biased, and an interval around a biased estimate would miss large classes.
    """
    if estimate.spread is not None:
        return estimate.spread
    if estimate.posterior is not None:
        return posterior_spread(estimate)
    source, (rows, fit) = estimate.source, around(estimate)
    group, share = alike(rows)
    if len(fit.shares) > group.max() + 1:
        fit = maximum(merge(rows, group, share))
    phi = source.heldout and misfit(fit, *source.heldout, source.prior, group, share, n=rows.n)
    inflation = 1 + (phi or 0.0)
    wider = np.sqrt(inflation)
    widened = f"Interval widened by {wider:.2f}: on the held-out rows the classifier's estimates miss by that much more"
    notes = notes_on(estimate, f"{widened} than chance." if wider >= 1.005 else "", told=phi is not None)
    notes.extend(_confusions(group, fit.inflation > CONFUSED, source.called))
    return ObservedSpread(estimate.prior, fit, fit.variances * inflation, group, rows.n, tuple(notes))


@dataclass(frozen=True, slots=True)
class ObservedSpread:
    """What the rows said about the shares, K numbers of each kind: the maximum `fit` of their likelihood by `group` of
    classes that they tell apart, its `variances` with the classifier's misfit in them, and what to say of it."""

    prior: Vector
    fit: Fit
    variances: Vector
    group: Labels
    n: float
    notes: tuple[str, ...]

    def at(self, level: float) -> Interval:
        """Return the interval of each class's share."""
        from scipy.special import ndtri  # costs more to import than the whole of reprior

        lower, upper = ends(self.fit, z=float(ndtri(0.5 + level / 2)), variances=self.variances, n=self.n)
        single, notes = np.bincount(self.group)[self.group] == 1, list(self.notes)
        # what a group of classes has together, any one of them may have alone, or not at all
        lower, upper = np.where(single, lower[self.group], 0.0), upper[self.group]
        outside = int(((self.prior < lower - 1e-9) | (self.prior > upper + 1e-9)).sum())
        if outside:
            notes.append(f"For {outside} of {len(self.group)} classes the estimate lies outside its interval, because "
                         "its method shrinks and the interval does not. Use `ebls` if both must agree.")  # fmt: skip
        return Interval(lower, upper, level=level, note=" ".join(notes))


@dataclass(frozen=True, slots=True)
class PosteriorSpread:
    """What an estimate's own posterior gives, by `group` of classes that the rows tell apart, and what to say of it."""

    prior: Vector
    posterior: Any
    group: Labels
    notes: tuple[str, ...]

    def at(self, level: float) -> Interval:
        """Return the interval of each class's share; the estimate lies inside."""
        lower, upper = self.posterior.quantiles(level)
        # no hypothesis rules a class out, but one that has less than its own uncertainty may well be absent
        # and if all others have less, they may be
        half = (upper - lower) / 2
        lower, upper = np.where(self.prior <= half, 0.0, lower), np.where(1 - self.prior <= half, 1.0, upper)
        single = np.bincount(self.group)[self.group] == 1
        # what a group of classes has together, any one of them may have alone, or not at all
        lower = np.where(single, lower, 0.0)
        upper = np.where(single, upper, np.minimum(np.bincount(self.group, upper)[self.group], 1.0))
        outside = int(((self.prior < lower - 1e-9) | (self.prior > upper + 1e-9)).sum())
        notes = [*self.notes, HELD_BACK.format(outside, len(self.group))] if outside else self.notes
        lower, upper = np.minimum(lower, self.prior), np.maximum(upper, self.prior)
        return Interval(lower, upper, level=level, note=" ".join(notes))


def posterior_spread(estimate: PriorEstimate) -> PosteriorSpread:
    """Return how sure an estimate is by its own posterior, without its bet that nothing has shifted."""
    source, posterior, k = estimate.source, estimate.posterior, len(estimate.prior)
    group = np.arange(k)
    notes = notes_on(estimate, "The interval is wider for what the held-out rows leave open about the classifier.")
    if k > MANY:
        notes.append(f"Whether some of the {k:,} classes cannot be told apart was not looked at.")
    elif estimate.target is not None:
        near = (estimate.n * estimate.prior + SMOOTHING) / (estimate.n + SMOOTHING * k)
        rows = local_likelihood(estimate.target, near, source.prior)
        group, share = alike(rows)
        fit = maximum(merge(rows, group, share) if group.max() + 1 < k else rows)
        notes.extend(_confusions(group, fit.inflation > CONFUSED, source.called))
    return PosteriorSpread(estimate.prior, posterior, group, tuple(notes))


def ends(fit: Fit, *, z: float, variances: Vector, n: float) -> tuple[Vector, Vector]:
    """Return lower and upper ends (K,), (K,) inside [0, 1]: where t²/(v + gt) + slope·t = z², t away from the maximum.

    v + gt is the variance if the share were t larger, as for counts: a class of few rows has a longer arm upwards, one
    that has nearly all of them a longer arm downwards.
    `slope` holds for classes at zero, where the likelihood falls at once; a class no row resembles ends at z²/n.
    """
    gain = (1 - 2 * fit.shares) / n  # of a variance of counts, s(1 − s)/n, for each unit that the share is larger
    a, b = 1 + fit.slopes * gain, fit.slopes * variances - z * z * gain
    upper = fit.shares + (np.sqrt(b * b + 4 * a * z * z * variances) - b) / (2 * a)
    skew = z * z * gain / 2
    lower = fit.shares + skew - np.sqrt(skew * skew + z * z * variances)
    return np.clip(lower, 0.0, fit.shares), np.clip(upper, fit.shares, 1.0)


@dataclass(frozen=True, slots=True)
class LocalLikelihood:
    """The log-likelihood of `n` rows around `prior` (K,), to second order.

    `gradient` (K,); the information is diag(scale)·correlation·diag(scale), with `correlation` (K, K) of unit diagonal.
    """

    prior: Vector
    gradient: Vector
    scale: Vector
    correlation: Matrix
    n: float


def around(estimate: PriorEstimate, *, rounds: int = 4) -> tuple[LocalLikelihood, Fit]:
    """Return the log-likelihood of the rows next to an estimate, or to the maximum if that is far, and the maximum."""
    if estimate.target is None:
        fail("interval", "estimate", "carry its target rows", "none",
             remedy="Estimate again from the rows, or ask before `detach`")  # fmt: skip
    if len(estimate.prior) > MANY:
        fail("interval", "estimate", f"have at most {MANY} classes, since this needs K×K numbers", len(estimate.prior),
             remedy="The intervals of `ebls` have no such limit")  # fmt: skip
    n, source_prior, near = float(estimate.n), estimate.source.prior, estimate.prior
    while True:
        # an estimate may rule out a class that rows insist on: give each class a little, then the rows a say
        near = (n * near + SMOOTHING) / (n + SMOOTHING * len(near))
        near = np.maximum(e_step(estimate.target, near / source_prior).counts / n, 1e-12)
        rows = local_likelihood(estimate.target, near, source_prior)
        fit = maximum(rows)
        rounds -= 1
        if not rounds or np.mean((fit.shares - near) ** 2 / fit.variances) < FAR:
            return rows, fit
        near = fit.shares


def local_likelihood(target: Blocks, prior: Vector, source_prior: Vector) -> LocalLikelihood:
    """Return the log-likelihood of the rows around `prior` (K,): gradient and scales from all rows, correlations from
    enough of them, since those cost N·K²."""
    stats = e_step(target, prior / source_prior, squares=True)
    assert stats.squares is not None
    stride = max(1, stats.n // (ENOUGH_ROWS * max(1000, len(prior))))
    # about log π: what is normalised to correlations may have any scale, and this one no number leaves
    gram = information(target, prior, source_prior, dtype=np.float32, stride=stride, per_log=True).astype(np.float64)
    root = np.sqrt(np.maximum(np.diag(gram), 1e-30))  # what is less has no digits left in single precision
    gram /= root
    gram /= root[:, None]
    np.fill_diagonal(gram, 1.0)
    scale = np.maximum(np.sqrt(stats.squares) / prior, 1e-3)  # √I_jj; next to none for a class that no row resembles
    return LocalLikelihood(prior, stats.counts / prior, scale, gram, float(stats.n))


def alike(rows: LocalLikelihood) -> tuple[Labels, Vector]:
    """Return the group (K,) of each class, shared by those no row tells apart, and the class's share (K,) of it."""
    twins = rows.correlation > 1 - ALIKE
    first = np.argmax(twins, axis=1)
    for j in np.flatnonzero(first < np.arange(len(first))):  # in order, so that chains end in one group
        first[j] = first[first[j]]
    _, group = np.unique(first, return_inverse=True)
    return group, rows.prior / np.bincount(group, rows.prior)[group]


def merge(rows: LocalLikelihood, group: Labels, share: Vector) -> LocalLikelihood:
    """Return the likelihood of the groups' total shares."""
    if group.max() + 1 == len(group):
        return rows  # all apart
    order = np.argsort(group, kind="stable")
    first = np.flatnonzero(np.diff(group[order], prepend=-1))
    gram = rows.correlation[np.ix_(order, order)]
    gram *= (share * rows.scale)[order]
    gram *= (share * rows.scale)[order, None]
    gram = np.add.reduceat(np.add.reduceat(gram, first, axis=0), first, axis=1)
    scale = np.sqrt(np.diag(gram))
    prior, gradient = (np.add.reduceat(x[order], first) for x in (rows.prior, share * rows.gradient))
    return LocalLikelihood(prior, gradient, scale, gram / np.outer(scale, scale), rows.n)


def maximum(rows: LocalLikelihood) -> Fit:
    """Return the maximum of the quadratic model over the simplex, one constrained Newton step from `rows.prior`."""
    n, k, scale = rows.n, len(rows.prior), rows.scale
    inverse_scale = 1 / scale
    for ridge in (1e-6, 1e-4, 1e-2):  # a pull to the estimate, as much as too few rows demand
        h = rows.correlation.copy()
        h.flat[:: k + 1] += ridge
        penalised = np.outer(inverse_scale, 100 * n * inverse_scale)  # holds Σπ at 1
        penalised += h
        b = penalised @ (scale * rows.prior) + (rows.gradient - n) * inverse_scale
        x = nonnegative_quadratic(penalised, b, rows.prior > 1e-3 / n)
        if x is not None and abs(x @ inverse_scale - 1) < 0.05:
            break
    else:
        x = scale * rows.prior
    shares = x * inverse_scale / (x @ inverse_scale)
    slopes = np.where(x > 0, 0.0, np.maximum(penalised @ x - b, 0.0) * scale)
    # variances with the classes at zero held there; each of those freed by itself (Schur complement)
    free, zero = np.flatnonzero(x > 0), np.flatnonzero(x <= 0)
    block = inverse(h[np.ix_(free, free)])
    inflation, total = np.ones(k), block @ inverse_scale[free]
    inflation[free] = np.diag(block)
    mass = inverse_scale[free] @ total
    variances = np.empty(k)
    variances[free] = np.diag(block) - total**2 / mass
    cross = h[np.ix_(zero, free)] @ block
    alone = 1 / np.maximum(1 + ridge - np.einsum("ij,ij->i", cross, h[np.ix_(zero, free)]), 1e-12)
    reach = inverse_scale[zero] - cross @ inverse_scale[free]
    inflation[zero] = alone
    variances[zero] = alone - (alone * reach) ** 2 / (mass + alone * reach**2)
    variances = variances * inverse_scale**2
    # the information was taken at `rows.prior`: move it as counts do, and never below what labels would give
    variances = np.maximum(variances + (shares - rows.prior) / n, shares * (1 - shares) / n)
    return Fit(shares, np.maximum(variances, 1e-300), slopes, inflation)


def inverse(h: Matrix) -> Matrix:
    """Return the inverse of a positive definite matrix, at a third of the general price."""
    from scipy.linalg.lapack import dpotrf, dpotri

    factor, failed = dpotrf(h, lower=True, clean=True)
    half, singular = (factor, 1) if failed else dpotri(factor, lower=True, overwrite_c=True)
    if singular:  # not positive definite in floats
        return np.asarray(np.linalg.pinv(h, hermitian=True))
    return np.asarray(half + np.tril(half, -1).T)


def _confusions(group: Labels, dependent: NDArray[np.bool_], called: tuple[str, ...]) -> list[str]:
    """Return a sentence for each set of classes whose shares the rows cannot tell apart."""

    def name(members: Labels) -> str:
        return ", ".join(called[j] for j in members)

    sets = [np.flatnonzero(group == g) for g in np.flatnonzero(np.bincount(group) > 1)]
    said = [
        f"The rows cannot tell classes {name(s)} apart. Each may have all that they have together, or nothing."
        for s in sets[:3]
    ]
    if len(sets) > 3:
        said.append(f"{len(sets) - 3} more groups of classes cannot be told apart.")
    if dependent.any():
        vague = name(np.flatnonzero(dependent[group]))
        said.append(f"Little is known of classes {vague}, because mixtures of other classes look like them.")
    return said
