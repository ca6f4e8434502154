"""How far the held-out rows let a classifier's outputs be trusted: their number, and how far they go astray."""

from __future__ import annotations

import numpy as np

from reprior._types import Labels, Matrix, Source, Vector
from reprior.batch.hypotheses import FORESEEN, Hypotheses, Weighed, averaged
from reprior.rows.correction import posteriors
from reprior.rows.passes import rows_kept

COUNTED = 0.8  # rows that a held-out row stands for if classes are few: the calibrator has been fitted to it
SEEN = 0.5  # of the error that held-out rows show beyond their noise, what is taken to be the classifier's
BLIND, FEWEST = 30.0, 20.0  # held-out rows a class that outputs are trusted like: none given; beside a base, at least,
FEW_CLASSES = 10  # for each class beyond so many: those of a few classes are counted as they are
# two rows a class beside training counts, counted as more, lost 2 to 4 points of accuracy where nothing had shifted
# (four classifiers of 26 simulated classes)
AT_MOST = 2.2  # times as many as the held-out rows that there are
# by draws 200 to 202 of ordinary.py, designed and fresh sets, and trials 1000 to 1023 of labels.py
UNTOLD_OF_TWO, UNTOLD = 4.5, 1.5  # times that counts what a class's held-out rows leave open: of two; of very many
HIDDEN = 0.05  # of what theory expects of the classifier's error, what sure outputs may hide
MANY = 4096  # classes, beyond which a K×K matrix is too dear


def stands_behind(known: Source, *, beside_base: bool) -> float:
    """Return how many held-out rows stand behind the outputs, unless the caller knows."""
    k = len(known.prior)
    shown = shown_by(known).sum()
    if not np.isfinite(shown):
        return BLIND * k
    counted = COUNTED + averaged(k) * (1 - COUNTED)
    least = min(FEWEST * (k - FEW_CLASSES), AT_MOST * float(shown)) if beside_base else 0.0
    return max(counted * float(shown), least)


def shown_by(known: Source) -> Vector:
    """Return the held-out rows of each class (K,), without end where there are none at all to ask."""
    k = len(known.prior)
    if known.heldout is not None:
        return np.bincount(known.heldout[1], minlength=k).astype(float)
    return np.full(k, np.inf) if known.misled is None else known.misled[2]  # what bytes carry of them


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
    stride = max(1, len(y) // rows_kept(k))
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


def like_others(of_class: Vector, heldout: Vector, others: float | None = None) -> Vector:
    """Return what is known of each class (K,), and of one without a row in `heldout` (K,) what holds of the `others`,
    their mean if None."""
    shown = heldout > 0
    others = of_class[shown].sum() / max(int(shown.sum()), 1) if others is None else others
    return np.where(shown, of_class, others)


def read_from(count: Matrix, o: Matrix, heldout: Vector, misled: Matrix | float) -> Matrix:
    """Return the variances (C, K) of log π_j by outputs of `count` (C, K) rows of each class that tell as much as `o`
    (C, K) labels would, as `left_open` has them. Streams have them so, too."""
    untold = UNTOLD_OF_TWO + averaged(len(heldout)) * (UNTOLD - UNTOLD_OF_TWO)
    shown = like_others(heldout, heldout)
    return np.asarray((1 + misled + untold * np.maximum(count - o, 0.0) / (shown + 0.5)) / o)


def adding_up(apart: Matrix) -> Matrix:
    """Return the variances (C, K) of shares that add up to 1, from those that they would have apart."""
    return np.asarray(apart * (1 - apart / apart.sum(axis=1, keepdims=True)))


def left_open(
    fit: Weighed, given: Hypotheses, n: int, heldout: Vector, unsure: float, misled: float, *, these: bool
) -> Matrix:
    """Return the variances (C, K) of the shares that `n` rows without a label come from, or if `these` rows are meant,
    of the shares among them.

    Outputs tell as much of log π_j as o_j labels, if the classifier is right. So far they count o_j/(1 + `unsure`), as
    if its error were alike for all classes. But nπ_j − o_j rows of a class they leave open, and how to read those only
    the class's own rows in `heldout` (K,) tell. So their variance is 1 + `misled` + UNTOLD·(nπ_j − o_j)/(h_j + ½) times
    1/o_j: little more for a class that outputs are sure of, much for one that hardly a held-out row is of. A class
    without any is taken to be like the others. Outputs may be sure and wrong, more rarely than the held-out rows can
    show: that is HIDDEN. The share among these very rows strays from π_j by 1/nπ_j. Their own outputs have seen that,
    and labels of others have not.
    """
    sure, count = given.alpha + given.seen.counts, np.maximum(n * fit.modes, 1e-9)
    total = sure.sum(axis=1, keepdims=True) + n / (1 + unsure)  # shares add up to 1, which is put aside here
    known = 1 / (fit.variances / fit.modes**2 + 1 / total)
    o = (1 + unsure) * np.maximum(known - sure, 0.02 * known)
    by_outputs = read_from(count, o, heldout, misled + HIDDEN * unsure)
    if these:
        by_outputs -= np.minimum(1 / count, 0.9 * by_outputs)
        sure = 1 / (1 / sure + 1 / count)
    apart = fit.modes**2 / (sure + 1 / by_outputs)
    variances = adding_up(apart)
    return np.asarray(np.where(given.apart, np.maximum(variances, fit.variances), variances))
