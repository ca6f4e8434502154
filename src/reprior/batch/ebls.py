"""EBLS, the default: the posterior mean under a prior over class shares that is itself weighed by the data.

Most targets have not shifted, and most classifiers say little. So "nothing has shifted" is one of the hypotheses, and
shifts of many sizes, around the source prior and around the uniform one, are the others; each is a Dirichlet prior,
weighed by its evidence. Two rules keep the data from saying more than they know. The source prior and the calibrator
come from held-out rows, a sample too, so N target rows count as harmonically many as N and the held-out rows together.
That decides whether anything has shifted. How far, is asked at the mix that was found: where few held-out rows stand
for what is frequent there, or the classifier is seen to mislead on them, rows count for less.

Labels of target rows are evidence that no classifier's error lessens. A labelled row leaves the rows that outputs speak
for, and its label counts in full. Where rows to label were chosen, its label says in full what it says beyond its
output, and the output counts as often as it would have in a sample drawn at random. Labels also tell which classes the
corrected outputs of their rows favour: that is taken out of the correction, and half of it out of the shares.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprior._check import check_number, check_prior
from reprior._kernels import loops, reference
from reprior._kernels.reference import width
from reprior._kernels.small import ascend, curvature
from reprior._types import Labels, Matrix, PriorEstimate, Source, Status, Vector
from reprior.batch.driver import finish
from reprior.batch.posterior import Posterior
from reprior.rows.blocks import Blocks, given
from reprior.rows.correction import posteriors
from reprior.rows.labelled import LabelledBlocks, labelled, put_in, some_blocks, taken_rows
from reprior.rows.passes import count_rows, e_step, some_rows

AROUND_SOURCE = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # rows a class that a hypothesis is worth, around the source
AROUND_UNIFORM = (0.3, 0.6, 1.0, 2.0, 5.0, 15.0, 50.0)
NO_SHIFT, UNIFORM = 0.8, 0.12  # how likely, before any row is seen: no shift; a shift around the uniform prior
COUNTED = 0.8  # rows that a held-out row stands for if classes are few: the calibrator has been fitted to it
TOLD, UNLIKE = 2.0, 0.25  # held-out rows of a class that half tell what it looks like; that none is half by chance
FORESEEN = 20  # directions of error taken from theory, beside those that were observed
SEEN = 0.5  # of the error that held-out rows show beyond their noise, what is taken to be the classifier's
BLIND, FEWEST = 30.0, 20.0  # held-out rows a class that outputs are trusted like: none given; beside a base, at least,
FEW_CLASSES = 10  # for each class beyond so many: those of a few classes are counted as they are
SAMPLE = 4_000_000  # numbers that are kept in memory; of longer targets a sample of rows decides between hypotheses
REFUTED, WIDER = 2.5, 0.5  # nats it takes for labels to refute the outputs at all; to double the variance of those
HELD_BACK, SOME_LABELS = 1.5, 20.0  # times as wide as held-out rows say that the outputs' error is taken to be beside
# labels, of which so many bring half of that
UNTOLD = 2.5  # times that counts what a class's held-out rows leave open; by trials 1000 to 1009 of labels.py
STRANGE = 0.3  # of labelled rows, how many may have any class whatever their output says
BIASED = 0.1  # variance of the logarithms by which outputs favour classes, were they corrected by the true shares
SOON = 10  # labels from which on the bias that they show has more than half of its say in the shares
SMALL = 1 << 17  # numbers in rows, or in a K×K matrix, that the kernel weighs faster than BLAS
SINGLE, LEAST = 100.0, 1e-12  # rows a class up to which, and number from which, single precision does
FEW = 1 << 14  # numbers in rows, of which double precision costs nothing to speak of
SOME = 32  # classes, from which a K×K matrix costs more than the rows
LOOSE = 15.5  # rows a class up to which a hypothesis lets the rows themselves say the shares
STIRLING = 100.0  # rows of a class from which Γ is as Stirling says, but for 1/12 of their inverse
MANY = 4096  # classes, beyond which a K×K matrix is too dear
PART = 1 << 15  # rows at a time
HOPELESS = 40.0  # nats by which a hypothesis has to be behind to be dropped


def ebls(
    source: Any, proba: Any, *, labels: Any = None, label_weights: Any = None, base: Any = None,
    worth: float | None = None, tol: float = 1e-5, n_iter: int = 60,
) -> PriorEstimate:  # fmt: skip
    """Estimate the target prior by empirical Bayes: where nothing is known, nothing is changed.

    Parameters
    ----------
    source : Source, or class counts or prior (K,)
        What the outputs carry. Its held-out rows, if it has any, tell how far outputs can be trusted.
    proba : rows (n, K) of probabilities, Blocks, or a top-k pair
    labels : (n,), optional
        Labels of some target rows, names or column indices, −1 where unknown.
    label_weights : (n,), optional
        How much each labelled row counts beside one that was chosen at random, as `query` says; others do not matter.
    base : (K,), optional
        The class mix of training where it is known better than the prior that outputs carry. That is kept if nothing
        has shifted.
    worth : float, optional
        How many held-out rows stand behind the outputs. By default those of the source, with a base at least 20 for
        each class beyond ten, or 30 a class if it has none.
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
    target = labelled(target, labels, known, "ebls", label_weights)
    worth = stands_behind(known, beside_base=base is not None) if worth is None else worth
    check_number(worth, "ebls", "worth", low=0, open_low=True)
    rows, n, seen = gathered(target, known.prior)
    unsure = n / worth  # how much more variance the held-out rows' noise brings than that of the target rows
    supposed = supposed_once(middle.tobytes(), float(worth), shown_by(known).tobytes())
    fit, total, reached = weigh(rows, known.prior, supposed, n, 1 / (1 + unsure), tol=tol, n_iter=int(n_iter))
    misled, vague, refuted, beyond, labelled_rows = unsure, 0.0, 1.0, 0.0, bool(seen.counts.any())
    if known.heldout is not None and n:
        # what held-out rows say of the classifier depends on the mix: ask them once, at what it is if it has shifted
        misled, vague = unsure_of(rows, n, fit.if_shifted(supposed.still), known, unsure=unsure)
    if labelled_rows and n:
        refuted = contradicted(fit, seen, (1 + misled) / (1 + unsure))
        beyond = refuted * (1 + max(misled - unsure, 0.0)) - 1  # what is seen of the outputs' error, and not foreseen
        labels_seen = float(seen.drawn.sum())
        misled = refuted * (1 + (1 + (HELD_BACK - 1) * labels_seen / (labels_seen + SOME_LABELS)) * misled) - 1
        seen = seen.believed(1 / refuted)
    if labelled_rows or abs(np.log1p(misled) - np.log1p(unsure)) > 0.05:
        kept = (fit.log_odds > fit.log_odds.max() - HOPELESS) | labelled_rows  # labels may revive any of them
        before, supposed = fit.those(kept), supposed.those(kept)

        def again(given: Hypotheses) -> tuple[Weighed, int, bool]:
            temper = 1 / (1 + misled)
            return weigh(rows, known.prior, given, n, temper, tol=tol, n_iter=int(n_iter), start=before.modes)

        fit, more, reached = again(supposed)
        weights, unsure, total = fit.believing(before, supposed.still), misled, total + more
        if labelled_rows:
            supposed, rows_alone = replace(supposed, seen=seen), fit
            fit, more, reached = again(supposed)
            by_labels = fit.log_odds - rows_alone.log_odds
            weights = softmax(np.log(np.maximum(weights, 1e-300)) + by_labels) if refuted == 1 else fit.weights
            total += more
        fit = replace(fit, weights=weights)
    prior = answer(target, known, fit, supposed, rows, n, vague, refuted)
    estimate = finish(target, known, prior, total, Status.CONVERGED if reached else Status.NOT_CONVERGED)
    # a mode is drawn to the middle, what the rows say is not: if something has shifted, the truth may lie at either
    both = np.concatenate([fit.open_weights, fit.open_weights]) / 2
    means = np.concatenate([fit.modes, np.where(supposed.still[:, None], fit.modes, fit.said)])
    variances = np.concatenate([fit.variances, fit.variances])
    if isinstance(target, LabelledBlocks):  # of these rows, some of which are known: no chance is left in those
        middle, left = both @ means, n / len(target.labels)
        means = np.maximum(put_in(middle, target, known.prior) + left * (means - middle), 1e-12)
        variances = left * variances
        if n and known.heldout is not None:
            variances = left**2 * np.tile(of_these_rows(fit, supposed, n, shown_by(known), unsure, beyond), (2, 1))
    still = supposed.still
    swayed = fit.weights[~still] @ (fit.variances / fit.modes**2)[~still]
    swayed = swayed + fit.weights[still].sum() / (supposed.rows + seen.counts)
    posterior = Posterior(both, means, variances, unsure, swayed)
    if isinstance(target, LabelledBlocks) and k <= MANY:
        trust = fit.weights[~still].sum() / refuted  # what labels refute is more than a bias
        weights = estimate.weights * np.exp(trust * favoured(target, estimate.weights, doubt(posterior, prior)))
        # corrected outputs add up to shares too, which labels have mended in another way: half of each errs less
        some = len(target.labels) - n
        half = trust / (2 * refuted) * some / (some + SOON)
        shares = prior + half * (e_step(target, weights).counts / len(target.labels) - prior)
        estimate = replace(estimate, prior=shares, weights=weights, bias=weights * known.prior / shares)
    return replace(estimate, posterior=posterior)


@dataclass(frozen=True, slots=True)
class Seen:
    """Labels among the target rows: `counts` (K,), and `drawn` (K,), what as informative rows drawn at random would
    count. Where rows were chosen, also their likelihood ratios `rows` (m, K) and by how much more often than it came
    each would have come at random, `more` (m,)."""

    counts: Vector
    drawn: Vector
    rows: Matrix
    more: Vector

    def factors(self, temper: float) -> Vector:
        """Return how much the outputs of labelled rows (m,) count; they do not, where rows were drawn at random.

        A label adds to an output what it says beyond it, log π_y − log Lπ. The output itself counts `temper`, as all
        do; what is left, 1 − `temper`, is untempered evidence of the classes' mix, as often as a random row brings it.
        """
        return (1 - temper) * self.more

    def believed(self, outputs: float) -> Seen:
        """Return the same where outputs are believed that much: of chosen rows these say what a label brings beyond
        them, and if they are wrong, only the chances by which rows were chosen tell how often they would have come."""
        if not len(self.more):
            return self
        counts = outputs * self.counts + (1 - outputs) * self.drawn
        return replace(self, counts=counts, more=outputs * self.more)


def averaged(n_classes: int) -> float:
    """Return how far errors of single classes average out over all of them: not at all if there are two."""
    return (n_classes - 2) / (n_classes - 2 + FORESEEN)


def stands_behind(known: Source, *, beside_base: bool) -> float:
    """Return how many held-out rows stand behind the outputs, unless the caller knows."""
    k = len(known.prior)
    if known.heldout is None:
        return BLIND * k
    counted = COUNTED + averaged(k) * (1 - COUNTED)
    return max(counted * len(known.heldout[1]), FEWEST * (k - FEW_CLASSES) if beside_base else 0.0)


def shown_by(known: Source) -> Vector:
    """Return the held-out rows of each class (K,), without end where there are none at all to ask."""
    k = len(known.prior)
    return np.full(k, np.inf) if known.heldout is None else np.bincount(known.heldout[1], minlength=k).astype(float)


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """Dirichlet priors `alpha` (C, K) over the shares, how likely each is beforehand, `odds` (C,), and for intervals,
    which make no bet that nothing has shifted, `open` (C,); `still` (C,) ones say that nothing has shifted against a
    source of so many `rows` (K,). Labels that were `seen` (K,) count in all."""

    alpha: Matrix
    odds: Vector
    open: Vector
    still: NDArray[np.bool_]
    rows: Vector
    seen: Seen

    def those(self, kept: NDArray[np.bool_]) -> Hypotheses:
        """Return some of them."""
        return Hypotheses(self.alpha[kept], self.odds[kept], self.open[kept], self.still[kept], self.rows, self.seen)

    def once(self) -> Hypotheses:
        """Return the same, each once: shifts around an even source and around the uniform prior may be alike."""
        odds, flat, kept = self.odds.copy(), self.open.copy(), np.ones(len(self.odds), bool)
        totals = self.alpha.sum(axis=1).tolist()
        for j, total in enumerate(totals):
            for i in range(j):
                if (
                    abs(totals[i] - total) < 1e-9 * total
                    and np.abs(self.alpha[i] - self.alpha[j]).max() < 1e-12 * total
                ):
                    odds[i], flat[i], kept[j] = odds[i] + odds[j], flat[i] + flat[j], False
                    break
        return replace(self, odds=odds, open=flat).those(kept)


def suppose(base: Vector, worth: float, seen: Seen, told: Vector) -> Hypotheses:
    """Return the hypotheses: shifts around `base` (K,) and around the uniform prior, and none: then shares are as in
    the source, of which no more is known than `worth` rows tell beside how even its classes may be. Of few classes one
    that few held-out rows, `told` (K,), show, is granted little more by the uniform prior than by `base`."""
    k, rows = len(base), worth * base
    near, far = np.array(AROUND_SOURCE), np.array(AROUND_UNIFORM)
    expected = np.maximum(base * told.sum(), 1e-3)
    by_chance = averaged(k) / (1 + (UNLIKE / expected) ** 4)  # why it may have no more, if classes are many
    strange = (1 - by_chance) / (1 + (told / TOLD) ** 2)
    even = 1 - strange * (1 - np.minimum(1.0, k * base))
    alpha = np.concatenate([k * near[:, None] * base, far[:, None] * even, far[:, None] * even + rows])
    shift = (1 - NO_SHIFT - UNIFORM) / len(near)
    none = NO_SHIFT * evenness(rows)
    odds = np.concatenate([np.full(len(near), shift), np.full(len(far), UNIFORM / len(far)), none])
    flat = np.concatenate([np.full(len(near), 0.5 / len(near)), np.full(len(far), 0.5 / len(far)), 1e-6 * none])
    still = np.arange(len(alpha)) >= len(near) + len(far)
    return Hypotheses(alpha, odds, flat, still, rows, seen).those(odds > 1e-6)


@lru_cache(maxsize=1)
def supposed_once(base: bytes, worth: float, told: bytes) -> Hypotheses:
    """Return `suppose`, each hypothesis once. A loop over many targets asks for those of one source again and again."""
    middle = np.frombuffer(base)
    return suppose(middle, worth, nothing(len(middle)), np.frombuffer(told)).once()


def evenness(rows: Vector) -> Vector:
    """Return how likely rows (K,) of the classes make it that these are as even as each of AROUND_UNIFORM says.

    A source of even classes has uneven held-out rows by chance. That is no reason to see a shift in an even target.
    """
    from scipy.special import gammaln

    k, even = len(rows), np.array(AROUND_UNIFORM)[:, None]
    whole = gammaln(k * even) - gammaln(k * even + rows.sum())
    return softmax(whole[:, 0] + (gammaln(rows + even) - gammaln(even)).sum(axis=1))


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

    def those(self, kept: NDArray[np.bool_]) -> Weighed:
        """Return some of them, with weights as they are."""
        return Weighed(*(getattr(self, f.name)[kept] for f in fields(self)))

    def if_shifted(self, still: NDArray[np.bool_]) -> Vector:
        """Return the shares (K,) that rows say, unless nothing has shifted as those that are `still` (C,) say."""
        weights = np.where(still, 0.0, self.weights)
        return np.asarray(weights @ self.said / max(float(weights.sum()), 1e-300))

    def believing(self, before: Weighed, still: NDArray[np.bool_]) -> Vector:
        """Return weights (C,) that leave it to `before` whether anything has shifted.

        There rows were compared with held-out rows at the source's own mix. What is known less well at the mix that was
        found, is how far they have moved. Which hypothesis of a shift says that best is asked of both: of many classes
        each is misjudged in its own way, and how uneven shares are hardly depends on it.
        """
        many = averaged(self.modes.shape[1])
        weights = self.weights ** (1 - many) * before.weights**many
        for which in (still, ~still):
            weights[which] *= before.weights[which].sum() / max(float(weights[which].sum()), 1e-300)
        return np.asarray(weights / weights.sum())


def gathered(target: Blocks, source_prior: Vector) -> tuple[Matrix, int, Seen]:
    """Return the rows without a label, or a sample, how many such rows there are, and what labels there are."""
    k = len(source_prior)
    if not isinstance(target, LabelledBlocks):
        return *sample(target), nothing(k)
    labelled = target.labels >= 0
    y = target.labels[labelled]
    counts = np.bincount(y, minlength=k).astype(np.float64)
    seen = replace(nothing(k), counts=counts, drawn=counts)
    if target.weights is not None:
        chosen = np.flatnonzero(labelled)[:: max(1, len(y) // at_most(k))]
        there = np.zeros(len(labelled), bool)
        there[chosen] = True
        weights = target.weights[chosen]
        weights = weights * (weights.sum() / (weights**2).sum())  # rows that count unequally tell less
        drawn = np.asarray(np.bincount(target.labels[chosen], weights, minlength=k) * (len(y) / len(chosen)))
        more = (weights - 1) * (len(y) / len(chosen))
        seen = Seen(counts, drawn, taken_rows(target.raw, there) / source_prior, more)
    if labelled.all():
        return np.empty((0, k)), 0, seen
    return *sample(some_blocks(target.raw, ~labelled)), seen


def nothing(n_classes: int) -> Seen:
    """Return no labels."""
    return Seen(np.zeros(n_classes), np.zeros(n_classes), np.empty((0, n_classes)), np.empty(0))


def sample(target: Blocks) -> tuple[Matrix, int]:
    """Return all rows (n, K), or a sample if they are many, and how many there are."""
    n = count_rows(target)
    return some_rows(target, n, at_most(target.n_classes)), n


def at_most(n_classes: int) -> int:
    """Return how many rows are kept in memory: some a class, as long as that is not too many numbers."""
    return max(SAMPLE // n_classes, min(4 * n_classes, 2 * SAMPLE // n_classes), 100)


def weigh(
    rows: Matrix, source_prior: Vector, given: Hypotheses, n: int, temper: float, *, tol: float, n_iter: int,
    start: Matrix | None = None,
) -> tuple[Weighed, int, bool]:  # fmt: skip
    """Return what rows (m, K) make of hypotheses, the passes and whether `tol` was reached.

    The rows stand for `n`, each of which counts `temper`. In u = log π, where a Dirichlet prior has its mode at its
    mean, EM finds the mode, π ∝ α + βn(π), and Laplace's method the evidence.
    """
    k, each = rows.shape[1], temper * n / max(len(rows), 1)  # what a row of the sample counts
    factors, seen = given.seen.factors(temper), given.seen
    strength = given.alpha + seen.counts
    modes = np.array(strength / strength.sum(axis=1, keepdims=True) if start is None else start)
    found = None
    if max(rows.size, k**2) <= SMALL and len(rows) and not len(factors):
        told, tail, inverse = np.empty((2, *modes.shape)), np.empty((len(modes), 4)), np.zeros(width(k))
        inverse[:k] = 1 / source_prior
        single = rows.size > FEW and rough(len(rows), k, each, tol)
        if loops.weigh(rows, inverse, strength, modes, *told, tail, each, tol, n_iter, single) != reference.REFUSED:
            found = Bends(each * tail[:, 0], told[0] / len(rows), each * told[0], tail[:, 1], told[1])
            passes, reached = int(tail[:, 2].max()), bool(tail[:, 3].all())
    if found is None:
        ratio = rows / source_prior
        light = lighter(ratio, each, modes, tol)
        modes, taken, ended = ascend(light, strength, each, modes, seen.rows, factors, tol=tol, n_iter=n_iter)
        found = bends(ratio, strength, modes, each, seen.rows, factors, light)
        passes, reached = int(taken.max()), bool(ended.all())
    evidence, variances = laplace(given.alpha, seen, modes, each, len(rows), factors, found)
    log_odds = evidence + np.log(given.odds)
    weights, flat = softmax(log_odds), softmax(evidence + np.log(given.open))
    return Weighed(weights, flat, modes, variances, found.said, log_odds), passes, reached


def laplace(
    alpha: Matrix, seen: Seen, modes: Matrix, each: float, n: int, factors: Vector, found: Bends
) -> tuple[Vector, Matrix]:
    """Return log evidence (C,) and variances of the shares (C, K) at each mode.

    The negative Hessian in u is diag(α) + β RᵀR − Tππᵀ, T = Σα + βN. All u may move together, so one coordinate is
    left out: the determinant of what remains is that of diag(α) + β RᵀR divided by T, for that takes 1 to Tπ. Labels
    add to α; outputs of chosen rows, to βN and β RᵀR.
    """
    from scipy.special import gammaln  # costs more to import than the whole of reprior

    strength, k = alpha + seen.counts, alpha.shape[1]
    amount = strength + found.expected
    total = strength.sum(axis=1) + each * n + factors.sum()
    size = found.size + np.log(amount).sum(axis=1) - np.log(total)
    normaliser = gammaln(alpha.sum(axis=1)) - gammaln(alpha).sum(axis=1)
    fit = found.value + (strength * np.log(modes)).sum(axis=1)
    evidence = fit + normaliser + 0.5 * (k - 1) * np.log(2 * np.pi) - 0.5 * size
    # a class of which little is known has no normal shape in u, but a gamma's, of as many rows as its precision: what
    # Laplace's method misses of each is next to nothing, but there are K of them, and most under a loose hypothesis
    evidence += beyond_stirling(amount / np.maximum(found.inverse, 1e-300)).sum(axis=1) - beyond_stirling(total)
    variances = modes**2 * np.maximum(found.inverse / amount - 1 / total[:, None], 1e-300)
    return evidence, variances


def beyond_stirling(shape: Vector) -> Vector:
    """Return log Γ less what Stirling's formula, that is Laplace's method, makes of it."""
    from scipy.special import gammaln

    beyond = 1 / (12 * np.maximum(shape, STIRLING))
    small = shape < STIRLING
    x = np.maximum(shape[small], 1e-300)
    beyond[small] = gammaln(x) - (x - 0.5) * np.log(x) + x - 0.5 * np.log(2 * np.pi)
    return np.asarray(beyond)


@dataclass(frozen=True, slots=True)
class Bends:
    """What rows tell at each mode: their log-likelihood `value` (C,), shares that they say, `said` (C, K), counts
    `expected` (C, K), and of H = diag(α) + β RᵀR, scaled by 1/√(α + expected) on both sides, log det, `size` (C,), and
    the diagonal of the inverse, `inverse` (C, K)."""

    value: Vector
    said: Matrix
    expected: Matrix
    size: Vector
    inverse: Matrix


def bends(
    rows: Matrix, strength: Matrix, modes: Matrix, each: float, chosen: Matrix, factors: Vector,
    light: Matrix | None = None,
) -> Bends:  # fmt: skip
    """Return what rows tell at each mode (C, K) of hypotheses `strength` (C, K); `chosen` rows count by `factors`.
    K×K matrices are made of `light` rows, if there are such."""
    light = rows if light is None else light
    value, counts = np.zeros(len(modes)), np.zeros_like(modes)
    for first in range(0, len(rows), PART):  # of all at once, what hypotheses say would be as large as the rows
        part = rows[first : first + PART]
        likelihood = part @ modes.T
        value += each * np.log(likelihood).sum(axis=0)
        counts += modes * ((1 / likelihood).T @ part)
    expected = each * counts
    said = counts / len(rows) if len(rows) else modes.copy()
    size, spread = np.empty(len(modes)), np.empty_like(modes)
    over = np.empty_like(light)
    for c, (alpha, pi) in enumerate(zip(strength, modes, strict=True)):
        more = None
        if len(factors):
            other = chosen @ pi
            more = chosen * (pi / other[:, None])
            value[c] += factors @ np.log(other)
            expected[c] = np.maximum(expected[c] + factors @ more, -0.99 * alpha)  # before EM has come to rest
        scale = 1 / np.sqrt(alpha + expected[c])
        np.multiply(light, (1 / (rows @ pi)).astype(light.dtype)[:, None], out=over)
        extra = None if more is None else (more * scale, factors)
        size[c], spread[c] = curvature(over, pi * scale, alpha * scale**2 + 1e-12, each, extra)
    return Bends(value, said, expected, size, spread)


def lighter(rows: Matrix, each: float, modes: Matrix, tol: float) -> Matrix:
    """Return rows in half as many bytes where rounding to seven digits is lost beside `tol`, else as they are."""
    if not rough(len(rows), modes.shape[1], each, tol) or modes.min() < LEAST:
        return rows
    return np.maximum(rows.astype(np.float32), np.float32(LEAST))  # products of less would be denormal, and slow


def rough(n: int, n_classes: int, each: float, tol: float) -> bool:
    """Tell whether single precision does for `n` rows, and pays. Rounding tells where rows do not: there, each row a
    class makes more of it."""
    return n_classes >= SOME and tol >= 1e-6 and each * n <= SINGLE * n_classes


def unsure_of(rows: Matrix, n: int, prior: Vector, known: Source, *, unsure: float) -> tuple[float, float]:
    """Return by how much the held-out rows' noise and the classifier's error exceed the noise of `n` target rows, and
    how vague outputs are, from 0 to 1: the square of how much of the noise that theory expects is there.

    Held-out rows put to the mix `prior` (K,) should give it back; how far rows scatter within their classes says what
    noise to expect of that, and what they miss beyond it is the classifier's error. Both are measured in directions of
    u in which the target rows tell anything, each in units of what those tell. Few directions say little, so what
    theory expects, `unsure`, counts as FORESEEN more, unless that is more. How target rows scatter, the classifier says
    itself, and where it errs it says too little: held-out rows of a class that scatter more say how much more. Theory
    speaks of the source's own mix. A class of few held-out rows that is frequent now makes for more noise than that.
    """
    assert known.heldout is not None
    (heldout, y), k = known.heldout, len(prior)
    if k > MANY:  # no K×K matrix; theory alone
        return unsure, 0.0
    stride = max(1, len(y) // at_most(k))
    heldout, y = np.asarray(heldout[::stride], np.float64), y[::stride]
    resp = posteriors(heldout, prior / known.prior)
    counts = np.bincount(y, minlength=k).astype(np.float64)
    wanted = np.where(counts > 0, prior, 0.0)
    if wanted.sum() < 1e-6:
        return unsure, 0.0
    wanted = wanted / wanted.sum()
    error = np.where(counts > 0, (wanted / np.maximum(counts, 1))[y] @ resp - wanted, 0.0)
    error -= wanted * error.sum()
    # a little inside: at a corner of the simplex rows vary no more, and any error would look endless beside them
    target = posteriors(rows, (0.9 * prior + 0.1 * known.prior) / known.prior)
    said = target.mean(axis=0)
    told, directions = np.linalg.eigh(target.T @ target / len(rows) - np.outer(said, said))
    use = told > max(1e-4 * told[-1], 1e-12)
    if not use.any():  # one row, or all alike: nothing to measure an error by
        return unsure, 0.0
    whiten = directions[:, use] / np.sqrt(told[use])
    # how rows of a class scatter is asked of the many target rows: a class may have one held-out row, or none
    place, own = target @ whiten, target / (len(rows) * np.maximum(said, 1e-12))
    scattered = np.maximum(own.T @ place**2 - (own.T @ place) ** 2, 0)
    within, here = scattered.sum(axis=1), said**2 / (counts * stride + 0.5) @ scattered
    at_source = known.prior**2 / (counts * stride + 0.5) @ scattered
    noise = n * float(here.sum()) / use.sum()
    missed = n * float(((error @ whiten) ** 2).sum()) / use.sum()
    expected = min(unsure, (FORESEEN * unsure + use.sum() * noise) / (FORESEEN + use.sum()))
    noisier = float(np.log(np.maximum(here, 1e-300) / np.maximum(at_source, 1e-300)).mean())
    expected *= np.exp((1 - averaged(k)) * max(0.0, noisier))
    misled = expected + SEEN * max(0.0, missed - noise * scatter(resp @ whiten, y, within))
    return float(misled), float(min(1.0, noise / unsure)) ** 2


def scatter(place: Matrix, y: Labels, within: Vector) -> float:
    """Return how many times more rows at `place` (n, d) scatter in their classes `y` (n,) than `within` (K,) says, or
    1 if it is less."""
    k = len(within)
    counts = np.bincount(y, minlength=k)
    own = np.zeros((k, place.shape[1]))
    np.add.at(own, y, place)
    squares = float((place**2).sum() - ((own**2).sum(axis=1) / np.maximum(counts, 1)).sum())
    few = FORESEEN * float(within.mean())  # that it is as said is worth as many rows
    return max(1.0, (squares + few) / max(float(np.maximum(counts - 1, 0) @ within) + few, 1e-300))


def contradicted(fit: Weighed, seen: Seen, wider: float) -> float:
    """Return how many times wider than `wider` times theirs the variances must be for labels to be as they are.

    Were the outputs right to within those variances, labels of rows drawn at random would be negative binomial around
    the shares that outputs give. A classifier that misleads on the target in a way that held-out rows do not show is
    found out here: labels then count for more. It takes evidence to say so, REFUTED nats and WIDER for each doubling.
    """
    from scipy.special import gammaln

    mean = fit.weights @ fit.modes
    spread = fit.open_weights @ (fit.variances + (fit.modes - mean) ** 2)
    shape = mean**2 / np.maximum(wider * spread, 1e-300)
    counts = seen.drawn
    expected = counts.sum() * mean
    doubled = np.arange(0.0, 12.0, 0.5)
    score = []
    for step in doubled:
        a = shape / 2**step
        score.append(float((gammaln(counts + a) - gammaln(a) - (counts + a) * np.log1p(expected / a)
                            - counts * np.log(a)).sum()) - WIDER * step - REFUTED * (step > 0))  # fmt: skip
    return float(2 ** doubled[int(np.argmax(score))])


def answer(
    target: Blocks, known: Source, fit: Weighed, given: Hypotheses, rows: Matrix, n: int, vague: float, refuted: float
) -> Vector:
    """Return the estimate: what the rows say if something has shifted, but the mode of a hypothesis that leaves next to
    nothing open, or the more `vague` the outputs of few classes are: beside that the rows' error is the larger. If
    nothing has shifted, nothing is changed but for labels. Rows with a label are what it says, and the others say less
    the more labels have `refuted` them."""
    said, seen = fit.said, given.seen
    weights = np.where(given.still, 0.0, fit.weights)
    moved = float(weights.sum())
    if len(rows) < n and moved > 1e-6:  # let all rows say it
        middle = weights @ fit.modes / moved
        raw = some_blocks(target.raw, target.labels < 0) if isinstance(target, LabelledBlocks) else target
        said = np.broadcast_to(e_step(raw, middle / known.prior).counts / n, said.shape)
    said = said - vague * (1 - averaged(said.shape[1])) ** 2 * (said - fit.modes)
    said = np.where((given.alpha.sum(axis=1) > LOOSE * said.shape[1])[:, None], fit.modes, said)
    kept = given.rows + seen.counts
    kept = kept / kept.sum()
    if len(seen.rows):
        strength = (given.rows + seen.counts)[None]
        kept = ascend(rows[:0], strength, 0.0, kept[None], seen.rows, seen.factors(0.0), tol=1e-5, n_iter=60)[0][0]
    if isinstance(target, LabelledBlocks):
        mixed = put_in(kept, target, known.prior)
        if len(seen.rows):  # rows left by those that were chosen are unlike all; outputs tell how, if they are believed
            said = fit.modes + ((n * said + seen.counts) / (n + seen.counts.sum()) - fit.modes) / refuted
            kept = kept + (mixed - kept) / refuted
        else:
            said = (n * (fit.modes + (said - fit.modes) / refuted) + seen.counts) / (n + seen.counts.sum())
            kept = mixed
    shares = weights @ said + fit.weights[given.still].sum() * kept
    return np.asarray(shares / shares.sum())


def of_these_rows(fit: Weighed, given: Hypotheses, n: int, heldout: Vector, unsure: float, misled: float) -> Matrix:
    """Return the variances (C, K) of the shares among `n` rows without a label, beside rows with one.

    Outputs tell as much of log π_j as o_j labels, if the classifier is right. So far they count o_j/(1 + `unsure`), as
    if its error were alike for all classes. But nπ_j − o_j rows of a class they leave open, and how to read those only
    the class's own rows in `heldout` (K,) tell. So their variance is 1 + `misled` + UNTOLD·(nπ_j − o_j)/(h_j + ½) times
    1/o_j: little more for a class that outputs are sure of, much for one that hardly a held-out row is of. The share
    among these very rows strays from π_j by 1/nπ_j. Their own outputs have seen that, and labels of others have not.
    """
    sure, count = given.alpha + given.seen.counts, np.maximum(n * fit.modes, 1e-9)
    total = sure.sum(axis=1, keepdims=True) + n / (1 + unsure)  # shares add up to 1, which is put aside here
    known = 1 / (fit.variances / fit.modes**2 + 1 / total)
    o = (1 + unsure) * np.maximum(known - sure, 0.02 * known)
    by_outputs = (1 + misled + UNTOLD * np.maximum(count - o, 0.0) / (heldout + 0.5)) / o
    by_outputs -= np.minimum(1 / count, 0.9 * by_outputs)
    return np.asarray(fit.modes**2 * (1 - fit.modes) / (1 / (1 / sure + 1 / count) + 1 / by_outputs))


def doubt(posterior: Posterior, prior: Vector) -> Vector:
    """Return the variance (K,) of the logarithm of what a class must count in the correction, before its labels' rows
    are looked at: that of its share, and of how much the outputs favour it."""
    of_share = posterior.variance() / np.maximum(prior, 1e-12) ** 2
    return np.asarray(np.minimum(of_share, 1.0) + BIASED)


def favoured(target: LabelledBlocks, weights: Vector, variance: Vector) -> Vector:
    """Return the logarithms (K,) by which classes must count more for outputs, corrected by `weights` (K,), to expect
    the labels that their rows have: a logistic regression, held back by the `variance` (K,) of those logarithms.

    Outputs say which label each row is likely to have, so a few labels tell more of this than of the shares. A row
    whose label its output all but rules out is no sign of a bias. What a class counts is its mean over what is left
    open, so it is a little more for a class that little is known of.
    """
    known = np.flatnonzero(target.labels >= 0)
    known = known[:: max(1, len(known) // at_most(len(weights)))]
    y, rows = target.labels[known], taken_rows(target.raw, np.isin(np.arange(len(target.labels)), known)) * weights
    k, each, bias = len(weights), np.arange(len(y)), np.zeros(len(weights))
    for _ in range(30):
        resp = posteriors(rows, np.exp(bias))
        fair = resp[each, y] / (resp[each, y] + STRANGE / k)
        expected = fair @ resp
        bend = np.diag(expected + 1 / variance) - (fair * resp.T) @ resp
        missing = np.bincount(y, fair, k) - expected - bias / variance
        step = np.clip(np.linalg.solve(bend, missing), -1.0, 1.0)
        bias += step
        if np.abs(step).max() < 1e-6:
            break
    return np.asarray(bias + np.diag(np.linalg.inv(bend)) / 2)


def softmax(a: Vector) -> Vector:
    out = np.exp(a - a.max())
    return np.asarray(out / out.sum())
