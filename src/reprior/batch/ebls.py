"""EBLS, the default: the posterior mean under a prior over class shares that is itself weighed by the data.

Most targets have not shifted, and most classifiers say little. So "nothing has shifted" is one of the hypotheses, and
shifts of many sizes, around the source prior and around the uniform one, are the others; each is a Dirichlet prior,
weighed by its evidence. Two rules keep the data from saying more than they know. The source prior and the calibrator
come from held-out rows, a sample too, so N target rows count as harmonically many as N and the held-out rows together;
and where the classifier is seen to mislead on held-out rows put to the estimated mix, they count for less.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprior._check import as_array, check_number, check_prior, fail
from reprior._types import Matrix, PriorEstimate, Source, Status, Vector
from reprior.batch.driver import finish
from reprior.batch.posterior import Posterior
from reprior.rows.blocks import Blocks, given
from reprior.rows.passes import count_rows, e_step, some_rows

AROUND_SOURCE = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # rows a class that a hypothesis is worth, around the source
AROUND_UNIFORM = (0.3, 0.6, 1.0, 2.0, 5.0, 15.0, 50.0)
NO_SHIFT, UNIFORM = 0.75, 0.1  # how likely, before any row is seen: no shift; a shift around the uniform prior
LOOSE = 5.0  # rows a class up to which a hypothesis lets the rows themselves say the shares
FORESEEN = 20  # directions of error taken from theory, beside those that were observed
SEEN = 0.5  # of the error that held-out rows show beyond their noise, what is taken to be the classifier's
BLIND, FEWEST = 30.0, 20.0  # held-out rows a class that outputs are trusted like: none given; beside a base, at least
SAMPLE = 4_000_000  # numbers that are kept in memory; of longer targets a sample of rows decides between hypotheses
TINY = 0.01  # of a row, that a class is expected to have
MANY = 4096  # classes, beyond which a K×K matrix is too dear
HOPELESS = 40.0  # nats by which a hypothesis has to be behind to be dropped


def ebls(
    source: Any, proba: Any, *, base: Any = None, worth: float | None = None, seen: Any = None, tol: float = 1e-5,
    n_iter: int = 60,
) -> PriorEstimate:  # fmt: skip
    """Estimate the target prior by empirical Bayes: where nothing is known, nothing is changed.

    Parameters
    ----------
    source : Source, or class counts or prior (K,)
        What the outputs carry. Its held-out rows, if it has any, tell how far outputs can be trusted.
    proba : rows (n, K) of probabilities, Blocks, or a top-k pair
    base : (K,), optional
        The class mix of training where it is known better than the prior that outputs carry. That is kept if nothing
        has shifted.
    worth : float, optional
        How many held-out rows stand behind the outputs. By default those of the source, with a base at least 20 a
        class, or 30 a class if it has none.
    seen : (K,), optional
        Labels counted among further target rows, which are not in `proba`.
    tol, n_iter
        The L1 change of a hypothesis at which iterations stop, and passes over the rows at most.

    Examples
    --------
    >>> rows = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]] * 50
    >>> ebls([1, 1], rows).prior.round(2)
    array([0.5, 0.5])
    """
    check_number(tol, "ebls", "tol", low=0, open_low=True)
    check_number(n_iter, "ebls", "n_iter", low=1, whole=True)
    known, target = given(source, proba, "ebls")
    k = len(known.prior)
    middle = known.prior if base is None else check_prior(base, "ebls", "base", n_classes=k, like="`source`")
    labels = np.zeros(k) if seen is None else as_array(seen, "ebls", "seen").astype(np.float64)
    if labels.shape != (k,) or not (labels >= 0).all() or not np.isfinite(labels).all():
        fail("ebls", "seen", f"be ({k},) counts of at least 0", seen)
    if worth is None:
        least = 0.0 if base is None else FEWEST * k
        worth = BLIND * k if known.heldout is None else max(float(len(known.heldout[1])), least)
    check_number(worth, "ebls", "worth", low=0, open_low=True)
    rows, n = sample(target, known.prior)
    unsure = n / worth  # how much more variance the held-out rows' noise brings than that of the target rows
    told = np.ones(k) if known.heldout is None else np.bincount(known.heldout[1], minlength=k)
    supposed = suppose(middle, worth, labels, told > 0)
    fit, total, reached = weigh(rows, supposed, n, 1 / (1 + unsure), tol=tol, n_iter=int(n_iter))
    if known.heldout is not None:
        # what held-out rows say of the classifier depends on the mix: ask them once, at the first answer
        misled = unsure_of(rows, n, fit.weights @ fit.modes, known, unsure=unsure)
        if abs(np.log1p(misled) - np.log1p(unsure)) > 0.05:
            kept = fit.log_odds > fit.log_odds.max() - HOPELESS
            unsure, supposed, start = misled, supposed.those(kept), fit.modes[kept]
            fit, more, reached = weigh(rows, supposed, n, 1 / (1 + unsure), tol=tol, n_iter=int(n_iter), start=start)
            total += more
    prior = answer(target, known, fit, supposed, n, sampled=len(rows) < n)
    estimate = finish(target, known, prior, total, Status.CONVERGED if reached else Status.NOT_CONVERGED)
    return replace(estimate, posterior=Posterior(fit.open_weights, fit.modes, fit.variances, unsure))


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """Dirichlet priors `alpha` (C, K) over the shares, how likely each is beforehand, `odds` (C,), and for intervals,
    which make no bet that nothing has shifted, `open` (C,); `loose` (C,) ones let the rows say the shares, `still` (C,)
    ones say that nothing has shifted. Labels that
    were `seen` (K,) count in all."""

    alpha: Matrix
    odds: Vector
    open: Vector
    loose: NDArray[np.bool_]
    still: NDArray[np.bool_]
    seen: Vector

    def those(self, kept: NDArray[np.bool_]) -> Hypotheses:
        """Return some of them."""
        return Hypotheses(
            self.alpha[kept], self.odds[kept], self.open[kept], self.loose[kept], self.still[kept], self.seen
        )


def suppose(base: Vector, worth: float, seen: Vector, told: NDArray[np.bool_]) -> Hypotheses:
    """Return the hypotheses: shifts around `base` (K,) and around the uniform prior, and none; that is known to no
    more than `worth` rows either. Where no held-out row has `told` (K,) what a class looks like, the uniform prior
    grants it no more than `base` does."""
    k = len(base)
    near, far = np.array(AROUND_SOURCE), np.array(AROUND_UNIFORM)
    even = np.where(told, 1.0, np.minimum(1.0, k * base))
    alpha = np.concatenate([k * near[:, None] * base, far[:, None] * even, worth * base[None]])
    shift = (1 - NO_SHIFT - UNIFORM) / len(near)
    odds = np.concatenate([np.full(len(near), shift), np.full(len(far), UNIFORM / len(far)), [NO_SHIFT]])
    flat = np.concatenate([np.full(len(near), 0.5 / len(near)), np.full(len(far), 0.5 / len(far)), [1e-6]])
    size = np.concatenate([near, far, [np.inf]])
    return Hypotheses(alpha, odds, flat, size <= LOOSE, np.isinf(size), seen)


@dataclass(frozen=True, slots=True)
class Weighed:
    """Hypotheses after the rows: `weights` (C,) to estimate by and `open_weights` (C,) for intervals, most likely
    shares `modes` (C, K), their `variances` (C, K), and shares `said` (C, K) by the rows there."""

    weights: Vector
    open_weights: Vector
    modes: Matrix
    variances: Matrix
    said: Matrix
    log_odds: Vector


def sample(target: Blocks, source_prior: Vector) -> tuple[Matrix, int]:
    """Return likelihood ratios L = P/ε of all rows (n, K), or of a sample if they are many, and how many there are."""
    n, k = count_rows(target), len(source_prior)
    return some_rows(target, n, at_most(k)) / source_prior, n


def at_most(n_classes: int) -> int:
    """Return how many rows are kept in memory: some a class, as long as that is not too many numbers."""
    return max(SAMPLE // n_classes, min(4 * n_classes, 2 * SAMPLE // n_classes), 100)


def weigh(
    rows: Matrix, given: Hypotheses, n: int, temper: float, *, tol: float, n_iter: int, start: Matrix | None = None
) -> tuple[Weighed, int, bool]:
    """Return what likelihood ratios `rows` make of hypotheses, the passes and whether `tol` was reached.

    The rows stand for `n`, each of which counts `temper`. In u = log π, where a Dirichlet prior has its mode at its
    mean, EM finds the mode, π ∝ α + βn(π), and Laplace's method the evidence.
    """
    each = temper * n / len(rows)  # what a row of the sample counts
    alpha = given.alpha + given.seen
    modes, passes, reached = climb(rows, alpha, each, start, tol=tol, n_iter=n_iter)
    evidence, variances, said = laplace(rows, given.alpha, given.seen, modes, each)
    log_odds = evidence + np.log(given.odds)
    weights, flat = softmax(log_odds), softmax(evidence + np.log(given.open))
    return Weighed(weights, flat, modes, variances, said, log_odds), passes, reached


def climb(
    rows: Matrix, alpha: Matrix, each: float, start: Matrix | None, *, tol: float, n_iter: int
) -> tuple[Matrix, int, bool]:
    """Return the mode (C, K) of each hypothesis by EM with squared extrapolation, all hypotheses in one pass."""

    def step(modes: Matrix) -> Matrix:
        new = alpha + each * modes * ((1 / (rows @ modes.T)).T @ rows)
        return np.asarray(new / new.sum(axis=1, keepdims=True))

    modes = alpha / alpha.sum(axis=1, keepdims=True) if start is None else start
    passes = 0
    while passes + 2 <= max(n_iter, 2):
        first = step(modes)
        second = step(first)
        passes += 2
        if np.abs(second - first).sum(axis=1).max() < tol:
            return second, passes, True
        a, b, c = np.log(modes), np.log(first), np.log(second)
        rise, bend = b - a, c - 2 * b + a
        length = np.sqrt((second * rise**2).sum(axis=1) / np.maximum((second * bend**2).sum(axis=1), 1e-300))
        length = np.clip(length, 1.0, 30.0)[:, None]
        leap = np.clip(a + 2 * length * rise + length**2 * bend, c - 2, c + 2)  # no class is thrown out of sight
        leap = np.exp(leap - leap.max(axis=1, keepdims=True))
        modes = step(leap / leap.sum(axis=1, keepdims=True))
        passes += 1
    return modes, passes, False


def laplace(rows: Matrix, alpha: Matrix, seen: Vector, modes: Matrix, each: float) -> tuple[Vector, Matrix, Matrix]:
    """Return log evidence (C,), variances of the shares (C, K) and the shares that the rows say (C, K) at each mode.

    The negative Hessian in u is diag(α) + β RᵀR − Tππᵀ, T = Σα + βN. All u may move together, so one coordinate is
    left out: the determinant of what remains is that of diag(α) + β RᵀR divided by T, for that takes 1 to Tπ.
    """
    from scipy.special import gammaln  # costs more to import than the whole of reprior

    evidence, variances, said = np.empty(len(alpha)), np.empty_like(modes), np.empty_like(modes)
    k = alpha.shape[1]
    for c, (prior, pi) in enumerate(zip(alpha, modes, strict=True)):
        strength, likelihood = prior + seen, rows @ pi
        resp = rows / likelihood[:, None]
        resp *= pi
        counts = resp.sum(axis=0)
        said[c] = counts / len(rows)
        scale = 1 / np.sqrt(strength + each * counts)
        resp *= scale
        size, inverse = curvature(resp, strength * scale**2 + 1e-12, each)
        total = strength.sum() + each * len(rows)
        size -= 2 * np.log(scale).sum() + np.log(total)
        normaliser = gammaln(prior.sum()) - gammaln(prior).sum()
        fit = each * np.log(likelihood).sum() + strength @ np.log(pi)
        evidence[c] = fit + normaliser + 0.5 * (k - 1) * np.log(2 * np.pi) - 0.5 * size
        # next to nothing is expected of such a class, where u has no normal shape: Γ itself, not Laplace's idea of it
        tiny = strength + each * counts
        tiny = tiny[tiny < TINY]
        evidence[c] += (gammaln(tiny) - tiny * (np.log(tiny) - 1) - 0.5 * np.log(2 * np.pi / tiny)).sum()
        variances[c] = pi**2 * np.maximum(scale**2 * inverse - 1 / total, 1e-300)
    return evidence, variances, said


def curvature(resp: Matrix, diagonal: Vector, each: float) -> tuple[float, Vector]:
    """Return log det H, and the diagonal (K,) of its inverse, for H = diag(`diagonal`) + each·RᵀR, `resp` R (n, K).

    Where there are fewer rows than classes, by the n×n matrix that Woodbury's identity leaves.
    """
    from scipy.linalg.lapack import dpotrf, dpotri

    n, k = resp.shape
    if n >= k:
        hessian = each * (resp.T @ resp)
        hessian.flat[:: k + 1] += diagonal
        half, _ = dpotrf(hessian, lower=True, overwrite_a=True)  # a third of a general inverse's price
        size = 2 * float(np.log(np.diag(half)).sum())
        return size, np.diag(dpotri(half, lower=True, overwrite_c=True)[0]).copy()
    scaled = resp * np.sqrt(each / diagonal)
    inner = scaled @ scaled.T
    inner.flat[:: n + 1] += 1.0
    half = np.linalg.cholesky(inner)
    spread = np.linalg.solve(half, scaled)
    size = float(np.log(diagonal).sum()) + 2 * float(np.log(np.diag(half)).sum())
    return size, np.maximum(1 - (spread**2).sum(axis=0), 1e-12) / diagonal


def unsure_of(rows: Matrix, n: int, prior: Vector, known: Source, *, unsure: float) -> float:
    """Return by how much the held-out rows' noise and the classifier's error exceed the noise of `n` target rows.

    Held-out rows put to the mix `prior` (K,) should give it back; how far they scatter within their classes says what
    noise to expect of that, and what they miss beyond it is the classifier's error. Both are measured in directions of
    u in which the target rows tell anything, each in units of what those tell. Few directions say little, so what
    theory expects, `unsure`, counts as FORESEEN more, unless that is more.
    """
    assert known.heldout is not None
    (heldout, y), k = known.heldout, len(prior)
    if k > MANY:  # no K×K matrix; theory alone
        return unsure
    stride = max(1, len(y) // at_most(k))
    heldout, y = np.asarray(heldout[::stride], np.float64), y[::stride]
    # what held-out outputs carry is their own mean, which may be off the source prior by the noise of their labels
    carried = known.prior if known.made == "given by the user" else heldout.mean(axis=0)
    resp = heldout * (prior / carried)
    resp /= np.maximum(resp.sum(axis=1, keepdims=True), 1e-300)
    counts = np.bincount(y, minlength=k).astype(np.float64)
    wanted = np.where(counts > 0, prior, 0.0)
    if wanted.sum() < 1e-6:
        return unsure
    wanted = wanted / wanted.sum()
    weight = (wanted / np.maximum(counts, 1))[y]
    means = np.zeros((k, k))
    np.add.at(means, y, resp)
    means /= np.maximum(counts, 1)[:, None]
    error = np.where(counts > 0, weight @ resp - wanted, 0.0)
    error -= wanted * error.sum()
    lone = np.sqrt(counts / np.maximum(counts - 1, 0.5))[y]
    scatter = (resp - means[y]) * (weight * lone)[:, None]
    # a little inside: at a corner of the simplex rows vary no more, and any error would look endless beside them
    target = rows * (0.9 * prior + 0.1 * known.prior)
    target /= target.sum(axis=1, keepdims=True)
    said = target.sum(axis=0)
    told, directions = np.linalg.eigh((target.T @ target - np.outer(said, said) / len(rows)) / len(rows))
    use = told > max(1e-4 * told[-1], 1e-12)
    if not use.any():  # one row, or all alike: nothing to measure an error by
        return unsure
    whiten = directions[:, use] / np.sqrt(told[use])
    noise = n * float(((scatter @ whiten) ** 2).sum()) / use.sum()
    missed = n * float(((error @ whiten) ** 2).sum()) / use.sum()
    expected = min(unsure, (FORESEEN * unsure + use.sum() * noise) / (FORESEEN + use.sum()))
    return float(expected + SEEN * max(0.0, missed - noise))


def answer(target: Blocks, known: Source, fit: Weighed, given: Hypotheses, n: int, *, sampled: bool) -> Vector:
    """Return the estimate: what the rows say under loose hypotheses, where shares may be anything, else the mode; if
    nothing has shifted, nothing is changed."""
    loose, said = given.loose, fit.said
    if sampled and fit.weights[loose].sum() > 1e-6:  # let all rows say it
        middle = fit.weights[loose] @ fit.modes[loose] / fit.weights[loose].sum()
        all_rows = e_step(target, middle / known.prior).counts / n
        said = np.broadcast_to(all_rows, said.shape)
    if given.seen.any():
        said = (n * said + given.seen) / (n + given.seen.sum())
    strength = given.alpha + given.seen
    mean = strength / strength.sum(axis=1, keepdims=True)
    shares = fit.weights @ np.where(loose[:, None], said, np.where(given.still[:, None], mean, fit.modes))
    return np.asarray(shares / shares.sum())


def softmax(a: Vector) -> Vector:
    out = np.exp(a - a.max())
    return np.asarray(out / out.sum())
