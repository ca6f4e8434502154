"""Intervals that cover: what the target rows really said, their observed information, which is a sum over rows."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from reprior._check import fail
from reprior._types import Interval, Labels, Matrix, Source, Vector
from reprior.batch.driver import iterate
from reprior.batch.solve import nonnegative_quadratic
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.verdict import interval_notes
from reprior.rows.blocks import ArrayBlocks, Blocks, numbered
from reprior.rows.correction import correct_float64
from reprior.rows.passes import MAX_DENSE_CLASSES, e_step, information

CLASS_PSEUDO_ROWS = 0.1  # of a row, given to every class so that none is ruled out before its information is looked at
SAME_CLASS = 1e-4  # classes whose likelihoods correlate closer to 1 than this are one class to the rows
CONFUSED = 1e4  # variance inflation beyond which a class looks like a mixture of others
CORRELATION_ROWS = 6  # a class, and a thousand times that in all, to take correlations from
MAX_DISTANCE = 0.1  # mean squared standard errors from estimate to maximum beyond which to look again from there

FORESEEN = 20  # classes whose error is taken from theory, beside those that were observed
REFIT_STEPS = 30  # EM steps on held-out samples; more would follow their noise


@dataclass(frozen=True, slots=True)
class ObservedInformation:
    """How sure shares are by the observed information of the `target` samples, which is computed when it is asked for.

    The interval holds the shares whose best fit is not much worse than the best of all, by a quadratic model of the
    log-likelihood around `prior`. It is centred on the maximum-likelihood shares: methods that shrink are biased, and
    an interval around a biased estimate would miss large classes.
    """

    prior: Vector
    source: Source
    target: Blocks | None
    n: float

    def at(self, level: float, of: str = "shares") -> Interval:
        """Return the interval of each class's share, or of its prior in the population."""
        return self.without_rows().at(level, of)

    def without_rows(self) -> ObservedSpread:
        """Return what the samples tell, K numbers of each kind."""
        source, (rows, fit) = self.source, around(self)
        group, share = alike(rows)
        if len(fit.shares) > group.max() + 1:
            fit = maximum(merge(rows, group, share))
        phi = source.heldout and misfit(fit, *source.heldout, source.prior, group, share, n=rows.n)
        inflation = 1 + (phi or 0.0)
        wider = np.sqrt(inflation)
        widened = f"Widened by {wider:.2f}: on the held-out samples the error of the estimate is larger than chance"
        notes = interval_notes(source, self.n, f"{widened}." if wider >= 1.005 else "",
                               has_target_classes=phi is not None)  # fmt: skip
        notes.extend(_confusions(group, fit.inflation > CONFUSED, source.called))
        return ObservedSpread(self.prior, fit, fit.variances * inflation, group, rows.n, tuple(notes))


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

    def at(self, level: float, of: str = "shares") -> Interval:
        """Return the interval of each class's share, or of its prior in the population."""
        from scipy.special import ndtri  # costs more to import than the whole of reprior

        variances = self.variances
        if of == "shares":  # how these samples were drawn from the population does not matter then
            variances = np.maximum(variances - self.fit.shares * (1 - self.fit.shares) / self.n, 1e-3 * variances)
        lower, upper = ends(self.fit, z=float(ndtri(0.5 + level / 2)), variances=variances, n=self.n)
        single, notes = np.bincount(self.group)[self.group] == 1, list(self.notes)
        # what a group of classes has together, any one of them may have alone, or not at all
        lower, upper = np.where(single, lower[self.group], 0.0), upper[self.group]
        outside = int(((self.prior < lower - 1e-9) | (self.prior > upper + 1e-9)).sum())
        if outside:
            notes.append(f"For {outside} of {len(self.group)} classes the estimate lies outside its interval: the"
                         " method shrinks and the interval does not. Use `ebls` if both must agree.")  # fmt: skip
        return Interval(lower, upper, level=level, note=" ".join(notes))

    def without_rows(self) -> ObservedSpread:
        """Return the same: it holds no samples."""
        return self


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


def around(estimate: PriorEstimate | ObservedInformation, *, rounds: int = 4) -> tuple[LocalLikelihood, Fit]:
    """Return the log-likelihood of the rows next to an estimate, or to the maximum if that is far, and the maximum."""
    if estimate.target is None:
        fail("interval", "estimate", "carry its target rows", "none",
             remedy="Estimate again from the rows, or ask before `detach`")  # fmt: skip
    if len(estimate.prior) > MAX_DENSE_CLASSES:
        fail("interval", "estimate", f"have at most {MAX_DENSE_CLASSES} classes, since this needs K×K numbers",
             len(estimate.prior),
             remedy="The intervals of `ebls` have no such limit")  # fmt: skip
    n, source_prior, near = float(estimate.n), estimate.source.prior, estimate.prior
    while True:
        # an estimate may rule out a class that rows insist on: give each class a little, then the rows a say
        near = (n * near + CLASS_PSEUDO_ROWS) / (n + CLASS_PSEUDO_ROWS * len(near))
        near = np.maximum(e_step(estimate.target, near / source_prior).counts / n, 1e-12)
        rows = local_likelihood(estimate.target, near, source_prior)
        fit = maximum(rows)
        rounds -= 1
        if not rounds or np.mean((fit.shares - near) ** 2 / fit.variances) < MAX_DISTANCE:
            return rows, fit
        near = fit.shares


def local_likelihood(target: Blocks, prior: Vector, source_prior: Vector) -> LocalLikelihood:
    """Return the log-likelihood of the rows around `prior` (K,): gradient and scales from all rows, correlations from
    enough of them, since those cost N·K²."""
    stats = e_step(target, prior / source_prior, squares=True)
    assert stats.squares is not None
    stride = max(1, stats.n // (CORRELATION_ROWS * max(1000, len(prior))))
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
    twins = rows.correlation > 1 - SAME_CLASS
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
    sentences = [
        f"The samples cannot distinguish {name(s)}. Only the total of these classes can be estimated."
        for s in sets[:3]
    ]
    if len(sets) > 3:
        sentences.append(f"{len(sets) - 3} more groups of classes cannot be distinguished.")
    if dependent.any():
        vague = name(np.flatnonzero(dependent[group]))
        sentences.append(f"The shares of {vague} are uncertain: mixtures of other classes look like them.")
    return sentences


@dataclass(frozen=True, slots=True)
class Fit:
    """The maximum of a `LocalLikelihood`: `shares` (K,), their `variances`, `slopes` (0 where a share is positive), and
    `inflation`, how many times less is known of a class than if all others were known."""

    shares: Vector
    variances: Vector
    slopes: Vector
    inflation: Vector


def misfit(
    fit: Fit, proba: Matrix, y: Labels, source_prior: Vector, group: Labels | None = None, share: Vector | None = None,
    *, n: float | None = None,
) -> float | None:  # fmt: skip
    """Return φ: the classifier's error on labelled rows reweighted to the fitted shares, in units of their variance.

    `group` and `share` (K,) say which of the fit's shares, and how much of it, belongs to each class. Only classes with
    a labelled row can tell; if the target has none of those, nothing can, and φ is None. Few classes tell little, and
    a calibrator fitted to the same rows hides the error: so what labelled rows of this worth must be expected to err
    counts as FORESEEN classes more, unless that makes it less. `n` is the number of target rows that the fit is from,
    None if they are gone.
    """
    counts = np.bincount(y, minlength=len(source_prior))
    shares = fit.shares if group is None or share is None else fit.shares[group] * share
    wanted = np.where(counts > 0, shares, 0.0)
    if wanted.sum() < 1e-6:
        return None
    wanted = wanted / wanted.sum()
    refitted, has_labels = refit(proba, y, wanted, source_prior), wanted > 0
    error = np.where(has_labels, refitted - wanted, 0.0)
    weight = (wanted / np.maximum(counts, 1))[y]
    worth = 1 / float(weight @ weight)
    if group is not None:
        error, has_labels = (
            np.bincount(group, error, len(fit.shares)),
            np.bincount(group, has_labels, len(fit.shares)) > 0,
        )
    floor = (1.0 / len(y)) ** 2  # of a variance: what one labelled row can show
    observed = error[has_labels] ** 2 / np.maximum(fit.variances[has_labels], floor)
    # a row's output says less than its label; so much less have the labelled rows said of what the classifier does
    by_label = fit.shares * (1 - fit.shares)
    if n is None:  # no target rows to ask how much less: ask the labelled ones, of each class against the rest
        corrected = correct_float64(proba, shares / source_prior)
        by_output = by_label**2 / np.maximum(weight @ (corrected - shares) ** 2, 1e-12)
    else:
        by_output = n * fit.variances
    unsaid = np.maximum(by_output - by_label, 0) / (worth * fit.variances)
    return blended(observed, unsaid[fit.shares > 1e-6])


def blended(observed: Vector, unsaid: Vector) -> float:
    """Return the mean of observed errors and, as FORESEEN classes more, of the mean one that must be expected."""
    blend = (observed.sum() + FORESEEN * float(np.mean(unsaid))) / (len(observed) + FORESEEN)
    return float(max(blend, observed.mean()))  # a classifier that is seen to mislead does so


def refit(proba: Matrix, y: Labels, prior: Vector, source_prior: Vector) -> Vector:
    """Return the prior (K,) that EM finds in labelled rows reweighted to `prior` (K,): where it differs, the
    classifier misleads."""
    counts = np.bincount(y, minlength=len(prior))
    weight = prior[y] / counts[y]
    weight = weight / weight.sum()

    def advance(at: Vector) -> Vector:
        factors, moved = at / source_prior, np.zeros_like(prior)
        for first, block in numbered(ArrayBlocks(proba)):
            moved += block.T @ (weight[first : first + len(block)] / np.maximum(block @ factors, 1e-300))
        return factors * moved

    return iterate(advance, 0.99 * prior + 0.01 / len(prior), n_iter=REFIT_STEPS).at
