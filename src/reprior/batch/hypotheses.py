"""Hypotheses about where class shares have gone, and what rows make of them: modes, evidence, variances."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprior._kernels import loops, reference
from reprior._kernels.reference import width
from reprior._kernels.small import ascend, curvature
from reprior._types import Matrix, Vector

AROUND_SOURCE = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # rows a class that a hypothesis is worth, around the source
AROUND_UNIFORM = (0.3, 0.6, 1.0, 2.0, 5.0, 15.0, 50.0)
NO_SHIFT, UNIFORM = 0.8, 0.12  # how likely, before any row is seen: no shift; a shift around the uniform prior
NO_SHIFT_OPEN = 1e-6  # the first of these for intervals, which make no such bet: a mild shift would often lie outside
TOLD = 2.0  # held-out rows of a class that half tell what it looks like
LEAST_GRANTED = 1e-6  # of an even share
# by texts trained 1:50 (pipeline.py) and the language channels, which are reported too
UNLIKE = 0.5, 0.1  # rows to be expected of a class that none is half by chance, if few classes lack them so; if all do
# from here to GONE by seeds 50 to 54 of quality.py, MISSED by 30 to 59; with the language channels in view
BUT_FOR_SOME = (1.0, 10.0, 100.0)  # as AROUND_SOURCE, of hypotheses that leave out some classes
KINDS = 0.1, 1.0, 0.1  # classes that are absent, usual, and apart: how many rows say so beforehand
ABSENT = 0.2  # of the usual share, less than which a class is absent at first sight; or of its own, the usual if apart
MISSED, BEYOND = 4.0, 8.0  # rows that a class must lack to be absent; that it must have beyond the usual to be apart
LEAST_ODDS = 1e-100  # of hypotheses that are worth a look
EVENER = 0.85  # times as uneven as all classes the others may be, for a look at such hypotheses to pay
GONE = 0.01  # of the usual share, what an absent class is granted
DOUBTED, LOOKS = 0.02, 10  # chance that a class is absent from which on its share is from the rows; looks at most
FORESEEN = 20  # directions of error taken from theory, beside those that were observed
SMALL = 1 << 17  # numbers in rows, or in a K×K matrix, that the kernel weighs faster than BLAS
SINGLE, LEAST = 100.0, 1e-12  # rows a class up to which, and number from which, single precision does
FEW = 1 << 14  # numbers in rows, of which double precision costs nothing to speak of
SOME = 32  # classes, from which a K×K matrix costs more than the rows
STIRLING = 100.0  # rows of a class from which Γ is as Stirling says, but for 1/12 of their inverse
PART = 1 << 15  # rows at a time


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


def nothing(n_classes: int) -> Seen:
    """Return no labels."""
    return Seen(np.zeros(n_classes), np.zeros(n_classes), np.empty((0, n_classes)), np.empty(0))


def averaged(n_classes: int) -> float:
    """Return how far errors of single classes average out over all of them: not at all if there are two."""
    return (n_classes - 2) / (n_classes - 2 + FORESEEN)


@dataclass(frozen=True, slots=True)
class Hypotheses:
    """Dirichlet priors `alpha` (C, K) over the shares, how likely each is beforehand, `odds` (C,), and for intervals,
    which make no bet that nothing has shifted, `open` (C,); `still` (C,) ones say that nothing has shifted against a
    source of so many `rows` (K,). Labels that were `seen` (K,) count in all. Of classes `apart` (C, K) a hypothesis has
    its share from the rows, so what it says of that is no evidence beside them."""

    alpha: Matrix
    odds: Vector
    open: Vector
    still: NDArray[np.bool_]
    rows: Vector
    seen: Seen
    apart: NDArray[np.bool_]

    def those(self, kept: NDArray[np.bool_]) -> Hypotheses:
        """Return some of them."""
        return self.each(lambda name: getattr(self, name)[kept])

    def joined(self, others: Hypotheses) -> Hypotheses:
        """Return these and others, which know of no labels."""
        return self.each(lambda name: np.concatenate([getattr(self, name), getattr(others, name)]))

    def each(self, made: Callable[[str], Any]) -> Hypotheses:
        """Return the same with other hypotheses: `made` has what belongs to each of them."""
        return replace(self, **{name: made(name) for name in ("alpha", "odds", "open", "still", "apart")})

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
    the source, of which no more is known than `worth` rows tell beside how even its classes may be. `told` (K,) are
    the held-out rows of each class."""
    k, rows = len(base), worth * base
    near, far, even = np.array(AROUND_SOURCE), np.array(AROUND_UNIFORM), granted(base, told)
    alpha = np.concatenate([k * near[:, None] * base, far[:, None] * even, far[:, None] * even + rows])
    shift = (1 - NO_SHIFT - UNIFORM) / len(near)
    none, half = evenness(rows), (1 - NO_SHIFT_OPEN) / 2
    odds = [np.full(len(near), shift), np.full(len(far), UNIFORM / len(far)), NO_SHIFT * none]
    flat = [np.full(len(near), half / len(near)), np.full(len(far), half / len(far)), NO_SHIFT_OPEN * none]
    still = np.arange(len(alpha)) >= len(near) + len(far)
    all_odds = np.concatenate(odds)
    apart = np.zeros(alpha.shape, bool)
    return Hypotheses(alpha, all_odds, np.concatenate(flat), still, rows, seen, apart).those(all_odds > 1e-6)


def but_for_some(
    shares: Vector, given: Hypotheses, base: Vector, rows: Matrix, source_prior: Vector, worth: float
) -> Hypotheses | None:
    """Return hypotheses of a shift around `base` (K,), or around the uniform prior, but for some classes that are
    absent and some that have a share of their own, as `shares` (K,) and then `rows` (m, K) say; None if there are none
    such. The rows are worth so many. Labels are not looked at.

    A Dirichlet prior is wide for all classes or for none: beside one class that has half of the rows it takes the
    others for uneven too. Which classes are apart, and the share of those, is taken from the rows, and paid for: by how
    likely so many of each kind are beforehand, and by the density of a share that may be anything beside that of the
    prior which knows it.
    """
    from scipy.special import gammaln

    k, strength, shares = len(base), np.array(BUT_FOR_SOME), np.maximum(shares, 1e-12)

    def unlike(middle: Vector) -> tuple[float, float, Vector, NDArray[np.bool_], NDArray[np.bool_]]:
        """Return how uneven others and all are beside `middle`, the usual share (K,), who is absent or alone (K,)."""
        usual = middle * float(np.median(shares / middle))
        absent = (shares < ABSENT * usual) & (worth * usual > MISSED)
        alone = (shares > usual / ABSENT) & (worth * (shares - usual) > BEYOND)
        away, like = np.log(shares / usual), ~(absent | alone)
        return float(away[like].std()) if like.any() else np.inf, float(away.std()), usual, absent, alone

    found = (unlike(middle) for middle in (base, np.full(k, 1 / k)))
    others, every, usual, absent, alone = min(found, key=lambda x: x[0])
    if not (absent | alone).any() or others > EVENER * every:
        return None

    def mixed(gone: Vector) -> Vector:
        return np.where(alone, shares, (1 - (1 - GONE) * gone) * usual)

    gone, doubtful = absent.astype(float), (shares < usual) & (worth * usual > MISSED)
    order = np.flatnonzero(doubtful)[np.argsort((shares / usual)[doubtful], kind="stable")]
    gone = one_by_one(gone, mixed(gone), usual, order, int(alone.sum()), rows / source_prior, worth)
    absent, mix = gone > 0.5, mixed(gone)
    if not (absent | alone).any():
        return None
    mix = mix / mix.sum()
    kinds, counts = np.array(KINDS), np.array([absent.sum(), k - absent.sum() - alone.sum(), alone.sum()])
    kind = gammaln(kinds.sum()) - gammaln(kinds.sum() + k) + (gammaln(kinds + counts) - gammaln(kinds)).sum()
    own = np.minimum(mix[alone], 1 - 1e-9)
    known = 0.5 * np.log(k * strength[:, None] / (2 * np.pi * own * (1 - own)))  # how dense a Beta around it is there
    paid = kind - (np.log(own * np.log(k)) + np.maximum(known, 0.0)).sum(axis=1)
    odds = (1 - NO_SHIFT) * averaged(k) / len(strength) * np.exp(paid)
    kept = odds > LEAST_ODDS
    alpha, still = k * strength[:, None] * mix, np.zeros(len(odds), bool)
    apart = np.tile(alone | (doubtful & (gone > DOUBTED)), (len(odds), 1))
    made = Hypotheses(alpha, odds, odds / (1 - NO_SHIFT), still, given.rows, given.seen, apart)
    return made.those(kept) if kept.any() else None


def one_by_one(
    gone: Vector, mix: Vector, usual: Vector, order: NDArray[np.intp], alone: int, ratio: Matrix, worth: float
) -> Vector:
    """Return how likely it is that each class is absent (K,): by a second look at some, one by one in this `order`,
    beside a `mix` (K,) of all others; `gone` (K,) for the rest. Likelihood ratios `ratio` (m, K) are `worth` so many
    rows. So many classes are `alone`, and not in question.

    The first look knows nothing of the others. It gives a class that is absent up to half of the usual share if a
    frequent one resembles it, and no more to one that the classifier mostly misses. If the others have their usual
    share, rows tell these two apart, though not always. So a class may be absent in part. What is found of one changes
    what is found of others, so they are gone through until it no longer does.
    """
    gone, mix = gone.copy(), mix.copy()
    made, total, each = ratio @ mix, float(mix.sum()), worth / len(ratio)
    for _ in range(LOOKS):
        last = gone.copy()
        for j in order:
            own = np.ascontiguousarray(ratio[:, j])
            less, more, beside = GONE * usual[j] - mix[j], usual[j] - mix[j], own / made
            odds = each * float(np.log((1 + less * beside) / (1 + more * beside)).sum())
            odds -= worth * np.log((total + less) / (total + more))
            absent = gone.sum() - gone[j]
            odds += np.log((KINDS[0] + absent) / (KINDS[1] + len(gone) - alone - 1 - absent))
            gone[j] = 1 / (1 + np.exp(-np.clip(odds, -100, 100)))
            change = more + gone[j] * (less - more)
            made, total, mix[j] = made + change * own, total + change, mix[j] + change
        if np.abs(gone - last).max() < 1e-3:
            break
    return gone


def granted(base: Vector, told: Vector) -> Vector:
    """Return how much of an even share the uniform prior grants each class (K,): one that few held-out rows, `told`
    (K,), show, little more than by `base` (K,), unless classes are many and it may lack rows by chance.

    So it may if `base` lets one expect some. How few that may be, classes with one row and with two tell: f₁²/2f₂ of
    those without any lack theirs by chance [chao1984]. Where all do, an output that grants a class hardly a row errs.
    """
    k, expected = len(base), np.maximum(base * told.sum(), 1e-3)
    none, one, two = (int((told == rows).sum()) for rows in range(3))
    lacking = min(1.0, one * (one - 1) / (2 * (two + 1) * none)) if none else 1.0  # Chao's form without bias
    by_chance = averaged(k) / (1 + (UNLIKE[0] ** (1 - lacking) * UNLIKE[1] ** lacking / expected) ** 4)
    strange = (1 - by_chance) / (1 + (told / TOLD) ** 2)
    return np.asarray(1 - strange * (1 - np.clip(k * base, LEAST_GRANTED, 1.0)))


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

    def joined(self, others: Weighed, given: Hypotheses) -> Weighed:
        """Return what the same rows make of these and of others, `given` all of them."""
        both = Weighed(*(np.concatenate([getattr(x, f.name) for x in (self, others)]) for f in fields(self)))
        flat = both.log_odds + np.log(given.open) - np.log(given.odds)
        return replace(both, weights=softmax(both.log_odds), open_weights=softmax(flat))

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
    if given.apart.any():  # as if these had no prior; and of a class that no row shows there may be one, or two
        counted = float(each * len(rows))
        known = 1 / (variances / modes**2 + 1 / (strength.sum(axis=1, keepdims=True) + counted + factors.sum()))
        free = modes**2 * (1 - modes) / np.maximum(known - given.alpha, 1e-3 * known) + 1 / max(counted, 1.0) ** 2
        variances = np.where(given.apart, np.maximum(variances, free), variances)
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


def softmax(a: Vector) -> Vector:
    out = np.exp(a - a.max())
    return np.asarray(out / out.sum())
