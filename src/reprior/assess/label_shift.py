"""The test of label shift: are the target's outputs those of held-out rows in another class mix?"""

from __future__ import annotations

import numpy as np

from reprior._types import Labels, Matrix, Vector
from reprior.rows.correction import reweight

CENTRES = 128  # places among the outputs, in
DIRECTIONS = 20  # of their log-odds, that the label-shift test looks at
FEATURE_RIDGE = 0.3  # of a feature's variance


def scaled_chi_square_p(value: float, *, mean: float, variance: float) -> float:
    """Return the chance of more than `value`, a sum of weighted χ² with this mean and variance (Satterthwaite)."""
    from scipy.special import chdtrc

    if not variance > 0:  # one row, or rows that are all the same: nothing tells what chance would do
        return 1.0
    return float(chdtrc(2 * mean**2 / variance, 2 * mean * value / variance))


def sureness(proba: Matrix) -> Matrix:
    """Return how unsure each output is (n, 2), by entropy and by what the likeliest class leaves to the others."""
    entropy = -(proba * np.log(np.maximum(proba, 1e-12))).sum(axis=1)
    return np.column_stack([entropy, np.log(1 - proba.max(axis=1) + 1e-3)])


def bumps(proba: Matrix) -> Matrix:
    """Return how near each output is to each of CENTRES of them (n, CENTRES), in the main directions of the log-odds.

    The centres come from all rows alike: were they target rows, each would have one of those, itself, next to it.
    """
    log_odds = np.log(np.maximum(proba, 1e-6))
    log_odds -= log_odds.mean(axis=1, keepdims=True)
    log_odds -= log_odds.mean(axis=0)
    spread, directions = np.linalg.eigh(log_odds.T @ log_odds / len(proba))
    main = slice(-1, -1 - min(DIRECTIONS, proba.shape[1] - 1), -1)
    # halfway between lengths as they are and all alike: wide directions tell classes apart, narrow ones hold the rest
    place = log_odds @ (directions[:, main] * np.maximum(spread[main], 1e-12) ** -0.25)
    order = np.argsort(place[:, 0], kind="stable")  # so that the order of the rows does not matter
    centre = place[order[np.linspace(0, len(place) - 1, min(CENTRES, len(place))).astype(np.intp)]]
    lengths = (centre**2).sum(axis=1)
    apart = lengths[:, None] + lengths - 2 * centre @ centre.T
    np.fill_diagonal(apart, np.inf)
    nearest = apart.min(axis=1)
    nearest = nearest[np.isfinite(nearest) & (nearest > 1e-6)]  # outputs that are quite sure lie in one place
    width = 1.5 * float(np.median(nearest)) if len(nearest) else 1.0
    return np.asarray(np.exp(((place @ centre.T) * 2 - (place**2).sum(axis=1)[:, None] - lengths) / (2 * width)))


def label_shift_p_value(
    sample: Matrix, heldout: Matrix, y: Labels, prior: Vector, source_prior: Vector, variance: Vector | None = None
) -> float:
    """Return the p-value of "the target's outputs are those of held-out rows, reweighted to `prior` (K,)", whose shares
    are known to within `variance` (K,).

    Under label shift Σ over the target of a(x)e(x) is that over the held-out rows of (m/n)·w_y·a(x)e(x) for any a and
    e, calibrated or not; with r = Σ w_k p(k|x) for w_y, if calibrated. a = n/(n + m·r) weighs each region by the rows
    both sides have there, so that no held-out row stands for many. e is a feature less what the corrected outputs
    explain of it, which makes its mean the same in every class: an error in the shares then moves the test only to
    second order. Of a poor classifier outputs explain little, and shares may be far off. So what an error of each share
    would move, as large as its variance lets one expect, counts as chance too.
    """
    (m, n_classes), n = sample.shape, len(heldout)
    # all in the mix of the held-out rows, whatever that is: half a row more, so that no class is impossible
    mix = (np.bincount(y, minlength=n_classes) + 0.5) / (n + 0.5 * n_classes)
    outputs = np.concatenate([sample, heldout])
    rows = reweight(np.asarray(outputs, np.float64), mix / source_prior)
    weights = (m * prior + 0.5 / n_classes) / (m + 0.5) / mix
    ratio = rows @ weights
    corrected = rows * weights / ratio[:, None]
    from_heldout = n / (n + m * ratio)  # a: the chance that a row like this is a held-out one
    overlap = from_heldout * (1 - from_heldout)
    weighted = corrected * overlap[:, None]
    gram = weighted.T @ corrected
    gram.flat[:: n_classes + 1] += 0.3  # about one row

    off = np.zeros(n_classes) if variance is None else np.sqrt(variance)
    of_class = np.equal.outer(np.arange(n_classes), y) * (off / mix)[:, None]  # what an error of each share would weigh

    def chance(feature: Matrix, by_output: float, expected_square: Vector | None = None) -> float:
        heldout_weight = (1 - by_output) * weights[y] + by_output * ratio[m:]
        e = feature - np.average(feature, axis=0, weights=overlap)
        e -= corrected @ np.linalg.solve(gram, weighted.T @ e)
        e *= from_heldout[:, None]
        expected = None
        if expected_square is not None:  # were it open which row is held out, and with what label
            each = 1 - from_heldout + from_heldout * (m / n) ** 2 * expected_square
            expected = (e * each[:, None]).T @ e
        moved = m / n * ((1 - by_output) * of_class + by_output * (rows[m:] * (off / mix)).T) @ e[m:]
        moved -= np.outer(off, off @ moved) / max(float(off @ off), 1e-300)  # errors of shares add up to 0
        e[m:] *= (-m / n * heldout_weight)[:, None]
        squares = moved.T @ moved + (e.T @ e if expected is None else (e.T @ e + expected) / 2)
        return p_value_of_zero(e.sum(axis=0), squares / (1 - min(0.5, n_classes / n)))

    # w_y has mean r where outputs are calibrated, and noise besides. Few features can bear it all, and feel the least
    # miscalibration. For many, weights halfway are better; and their squares are averaged with those to be expected: a
    # rare row with a large weight, when it is missing, leaves no trace in the observed ones
    unsure = chance(sureness(rows), 0.0)
    elsewhere = chance(bumps(rows), 0.5, (rows @ weights**2 + 3 * ratio**2) / 4)
    return min(1.0, 2 * unsure, 2 * elsewhere)  # Bonferroni


def p_value_of_zero(total: Vector, covariance: Matrix) -> float:
    """Return the p-value of "this sum (F,) has mean zero", from the summed squares (F, F) of what was added up.

    Hotelling's T² with a ridge, for features that nearly repeat each other. The squares are not centred: few rows that
    share a direction then vouch for its variance themselves, and cannot reject.
    """
    deviation = np.sqrt(np.maximum(np.diag(covariance), 1e-30))
    variance, directions = np.linalg.eigh(covariance / np.outer(deviation, deviation))
    variance = np.maximum(variance, 1e-12)
    part = variance / (variance + FEATURE_RIDGE)
    squares = float(part @ (((total / deviation) @ directions) ** 2 / variance))
    return scaled_chi_square_p(squares, mean=float(part.sum()), variance=2 * float(part @ part))
