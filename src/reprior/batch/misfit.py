"""How wrong the classifier itself is, seen on labelled rows: an error that more target rows do not lessen."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reprior._types import Labels, Matrix, Source, Vector
from reprior.batch.driver import iterate
from reprior.batch.trust import MANY
from reprior.rows.blocks import ArrayBlocks, numbered
from reprior.rows.correction import posteriors
from reprior.rows.passes import rows_kept

FORESEEN = 20  # classes whose error is taken from theory, beside those that were observed
REFIT_STEPS = 30  # EM steps on held-out rows; more would follow their noise


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
    found, told = refit(proba, y, wanted, source_prior), wanted > 0
    error = np.where(told, found - wanted, 0.0)
    weight = (wanted / np.maximum(counts, 1))[y]
    worth = 1 / float(weight @ weight)
    if group is not None:
        error, told = np.bincount(group, error, len(fit.shares)), np.bincount(group, told, len(fit.shares)) > 0
    floor = (1.0 / len(y)) ** 2  # of a variance: what one labelled row can show
    observed = error[told] ** 2 / np.maximum(fit.variances[told], floor)
    # a row's output says less than its label; so much less have the labelled rows said of what the classifier does
    by_label = fit.shares * (1 - fit.shares)
    if n is None:  # no target rows to ask how much less: ask the labelled ones, of each class against the rest
        corrected = posteriors(proba, shares / source_prior)
        by_output = by_label**2 / np.maximum(weight @ (corrected - shares) ** 2, 1e-12)
    else:
        by_output = n * fit.variances
    unsaid = np.maximum(by_output - by_label, 0) / (worth * fit.variances)
    return blended(observed, unsaid[fit.shares > 1e-6])


def blended(observed: Vector, unsaid: Vector) -> float:
    """Return the mean of observed errors and, as FORESEEN classes more, of the mean one that must be expected."""
    blend = (observed.sum() + FORESEEN * float(np.mean(unsaid))) / (len(observed) + FORESEEN)
    return float(max(blend, observed.mean()))  # a classifier that is seen to mislead does so


# on draws 0 to 15 of classes in a row (stream_coverage.py), with draws 800 to 803 of the ordinary classifiers that are
# designed on in view, whose intervals must not widen
OWN = 0.02  # of what rows tell of a class, what a filter knows beside them: no class is ever quite open
MIXES = 3  # priors that held-out rows are reweighted to, beside the even one, to see how far EM is led astray


def misled_of(source: Source) -> Matrix | None:
    """Return what the held-out rows say of the classifier's error under any prior, as (4, K), or None without them.

    For each class: the squared error of its share in units of the share's square, over an even and a few random
    priors; how many times less an output says of it than a label; its held-out rows; and how many times less is known
    of it with all other shares open. Streams need no more of these rows for their intervals, so it is what bytes carry.
    Those from before do not have the last.
    """
    if source.misled is not None:
        return source.misled if len(source.misled) > 3 else np.vstack([source.misled, np.ones_like(source.prior)])
    if source.heldout is None:
        return None
    proba, y = np.asarray(source.heldout[0], np.float64), source.heldout[1]
    counts = np.bincount(y, minlength=len(source.prior))
    mixes = np.random.default_rng(0).dirichlet(np.ones(len(counts)), MIXES)
    sums = np.zeros((4, len(counts)))
    for mix in (np.ones(len(counts)), *mixes):
        wanted = np.where(counts > 0, mix, 0.0) / mix[counts > 0].sum()
        corrected = posteriors(proba, wanted / source.prior)
        by_output = (wanted / np.maximum(counts, 1))[y] @ (corrected - wanted) ** 2
        error = refit(proba, y, wanted, source.prior) - wanted
        sums += error**2, wanted**2, wanted * (1 - wanted), by_output
    astray = np.where(counts > 0, sums[0] / np.maximum(sums[1], 1e-300), 0.0)
    vague = np.maximum(sums[2] / np.maximum(sums[3], 1e-12), 1.0)
    return np.stack([astray, vague, counts, beside_others(proba, y, source.prior)])


def beside_others(proba: Matrix, y: Labels, source_prior: Vector) -> Vector:
    """Return how many times less labelled rows at even shares tell of each class (K,) if all other shares are open than
    if those stay in proportion: much less of one between two that look like it."""
    found, k = np.ones(len(source_prior)), len(source_prior)
    stride = max(1, len(y) // rows_kept(k))
    proba, y = proba[::stride], y[::stride]
    counts = np.bincount(y, minlength=k)
    shown, n_shown = counts > 0, np.count_nonzero(counts)
    if k > MANY or n_shown < 2:  # no K×K matrix; no others
        return found
    even, weight = 1 / n_shown, 1 / (counts[y] * n_shown)
    resp = posteriors(proba, np.where(shown, even, 0.0) / source_prior)[:, shown]
    alone = weight @ (resp - even) ** 2 / (1 - even) ** 2  # what they tell of a class if others stay in proportion
    told = np.maximum(np.sqrt(weight @ resp**2), 1e-12)
    resp = resp / told
    spread = np.linalg.inv((resp.T * weight) @ resp + OWN * np.eye(len(told))) / np.outer(told, told)
    total = spread.sum(axis=1)
    ratio = alone * (np.diag(spread) - total**2 / total.sum())  # shares add up to 1
    found[shown] = np.clip(ratio, 1.0, 1 / OWN)
    return found


def refit(proba: Matrix, y: Labels, prior: Vector, source_prior: Vector) -> Vector:
    """Return the prior (K,) that EM finds in labelled rows reweighted to `prior` (K,): where it differs, the
    classifier misleads."""
    counts = np.bincount(y, minlength=len(prior))
    weight = prior[y] / counts[y]
    weight = weight / weight.sum()

    def advance(found: Vector) -> Vector:
        factors, moved = found / source_prior, np.zeros_like(prior)
        for first, block in numbered(ArrayBlocks(proba)):
            moved += block.T @ (weight[first : first + len(block)] / np.maximum(block @ factors, 1e-300))
        return factors * moved

    return iterate(advance, 0.99 * prior + 0.01 / len(prior), n_iter=REFIT_STEPS)[0]
