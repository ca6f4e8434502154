"""The test of label shift: are the target's outputs those of held-out rows in another class mix?"""

from __future__ import annotations

import numpy as np

from reprior._types import Labels, Matrix, Vector
from reprior.rows.correction import correct_rows

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
    place *= np.where((place**3).sum(axis=0) < 0, -1, 1)  # an eigenvector has no sign of its own
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
    second order, if outputs are calibrated. What an error of each share would move, as large as its variance lets one
    expect, counts as chance too, less what the same sum for e = p(k|x) tells of that error.

    Outputs that are not calibrated show it on the held-out rows: Σ a(x)e(x)(w_y − r) is then more than chance, and how
    many times more says how far they mislead at this mix. So much less r counts in place of w_y; and so much further
    off may shares be that were read from such outputs.
    """
    (m, n_classes), n = sample.shape, len(heldout)
    # all in the mix of the held-out rows, whatever that is: half a row more, so that no class is impossible
    mix = (np.bincount(y, minlength=n_classes) + 0.5) / (n + 0.5 * n_classes)
    outputs = np.concatenate([sample, heldout])
    rows = correct_rows(np.asarray(outputs, np.float64), mix / source_prior)
    weights = (m * prior + 0.5 / n_classes) / (m + 0.5) / mix
    ratio = rows @ weights
    corrected = rows * weights / ratio[:, None]
    from_heldout = n / (n + m * ratio)  # a: the chance that a row like this is a held-out one
    overlap = from_heldout * (1 - from_heldout)
    weighted = corrected * overlap[:, None]
    gram = weighted.T @ corrected
    gram.flat[:: n_classes + 1] += 0.3  # about one row
    expected_square = rows @ weights**2  # of w_y, by the outputs

    def unexplained(feature: Matrix) -> Matrix:
        e = feature - np.average(feature, axis=0, weights=overlap)
        e -= corrected @ np.linalg.solve(gram, weighted.T @ e)
        return np.asarray(e * from_heldout[:, None])

    unsure, elsewhere = unexplained(sureness(rows)), unexplained(bumps(rows))
    missed = weights[y] - ratio[m:]
    # also by what outputs expect: where few rows err, observed squares alone would call calibrated outputs astray
    squares = (missed**2 + expected_square[m:] - ratio[m:] ** 2) / 2
    astray, chance, _ = ridged(missed @ elsewhere[m:], (elsewhere[m:] * squares[:, None]).T @ elsewhere[m:])
    misled = max(1.0, astray / chance)

    # `misled`, and not its root: by worlds and draws other than those that diagnosis.py reports
    off = np.zeros(n_classes) if variance is None else misled * np.sqrt(variance)
    of_class = np.equal.outer(np.arange(n_classes), y) * (off / mix)[:, None]  # what an error of each share would weigh
    beside = corrected[:, np.argsort(-off, kind="stable")[:CENTRES]] * from_heldout[:, None]

    def p_value(e: Matrix, by_output: float, *, expect: bool) -> float:
        by_label = 1 - by_output
        each = np.concatenate([np.ones(m), -m / n * (by_label * weights[y] + by_output * ratio[m:])])
        square = each**2
        if expect:  # were it open which row is held out, and with what label
            of_heldout = (m / n) ** 2 * (by_label**2 * expected_square + (1 - by_label**2) * ratio**2)
            square = (square + 1 - from_heldout + from_heldout * of_heldout) / 2
        error = m / n * (by_label * of_class + by_output * (rows[m:] * (off / mix)).T)
        error -= np.outer(off, off @ error) / max(float(off @ off), 1e-300)  # errors of shares add up to 0
        moved, seen = error @ e[m:], error @ beside[m:]
        # the sum for outputs moves with the shares too; what it tells of their error is taken out of each feature
        noise = (beside * square[:, None]).T @ beside
        noise.flat[:: len(noise) + 1] += FEATURE_RIDGE * np.diag(noise) + 1e-12
        told = np.linalg.lstsq(noise + seen.T @ seen, seen.T @ moved, rcond=None)[0]  # singular if classes separate
        e, moved = e - beside @ told, moved - seen @ told
        squares = (e * square[:, None]).T @ e + moved.T @ moved
        return p_value_of_zero(each @ e, squares / (1 - min(0.5, n_classes / n)))

    # w_y has mean r where outputs are calibrated, and noise besides. Few features can bear it all, and feel the least
    # miscalibration. For many, weights halfway are better; and their squares are averaged with those to be expected: a
    # rare row with a large weight, when it is missing, leaves no trace in the observed ones
    either = p_value(unsure, 0.0, expect=False), p_value(elsewhere, 0.5 / misled, expect=True)
    return min(1.0, 2 * min(either))  # Bonferroni


def ridged(total: Vector, covariance: Matrix) -> tuple[float, float, float]:
    """Return the length of a sum (F,) by its `covariance` (F, F), squared, and its mean and variance if that is all
    chance: Hotelling's T² with a ridge, for features that nearly repeat each other."""
    deviation = np.sqrt(np.maximum(np.diag(covariance), 1e-30))
    variance, directions = np.linalg.eigh(covariance / np.outer(deviation, deviation))
    variance = np.maximum(variance, 1e-12)
    part = variance / (variance + FEATURE_RIDGE)
    squares = float(part @ (((total / deviation) @ directions) ** 2 / variance))
    return squares, float(part.sum()), 2 * float(part @ part)


def p_value_of_zero(total: Vector, covariance: Matrix) -> float:
    """Return the p-value of "this sum (F,) has mean zero", from the summed squares (F, F) of what was added up.

    The squares are not centred: few rows that share a direction then vouch for its variance themselves, and cannot
    reject.
    """
    squares, mean, variance = ridged(total, covariance)
    return scaled_chi_square_p(squares, mean=mean, variance=variance)
