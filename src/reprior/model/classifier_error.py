"""How far the classifier's calibrated probabilities are wrong, as held-out labels show it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reprior._types import ClassifierError, Labels, Matrix, Source, Vector
from reprior.model.label_shift import moment_reference
from reprior.model.likelihood import information
from reprior.model.samples import TwoSamples, density_ratio
from reprior.model.settings import DEFAULT, Settings
from reprior.rows.correction import correct_float64
from reprior.rows.passes import MAX_DENSE_CLASSES, row_blocks, rows_kept

ROUNDING = 1e-6  # least variance of a weight, relative to its square: less is the rounding of single precision


def label_trust(samples: TwoSamples, weights: Vector) -> float:
    """Return how far held-out labels are trusted instead of probabilities at class weights (K,), from 0 to 1.

    By its label a held-out sample stands for w_y target samples, by its probabilities for r = g @ w. If probabilities
    are right, w_y − r has mean 0 and variance g @ w² − r². By James and Stein's rule, what the observed differences
    exceed that by is the trust in labels.
    """
    rho, heldout, r = samples.ratio, samples.heldout, density_ratio(samples.heldout, weights)
    per_sample = rho * samples.heldout_weights / (r * (1 + rho * r))
    has_samples = np.bincount(samples.y, minlength=len(weights)) > 0  # no label of another class can be expected
    by_label, squared = (density_ratio(heldout, np.where(has_samples, w, 0)) for w in (weights, weights**2))
    variance = np.maximum(squared - by_label**2, ROUNDING * squared) * per_sample**2
    difference = (weights[samples.y] - by_label) * per_sample
    about = information(samples, weights)
    error, noise = np.zeros(len(weights)), np.zeros(about.shape)  # of the derivative by log w
    for part in row_blocks(*heldout.shape):
        rows = heldout[part] * weights
        error += difference[part] @ rows
        noise += variance[part] @ rows**2 if about.ndim == 1 else (rows.T * variance[part]) @ rows
    inverse: Matrix
    squared_error: Matrix
    if about.ndim == 1:
        inverse, squared_error = 1 / (about + 1), error**2
    else:
        inverse, squared_error = np.linalg.inv(about + np.eye(len(weights))), np.outer(error, error)
    by_chance, observed = float((noise * inverse).sum()), float((squared_error * inverse).sum())
    return max(0.0, 1 - by_chance / max(observed, 1e-12))


def measure_error(source: Source, settings: Settings = DEFAULT) -> ClassifierError | None:
    """Return the held-out samples of each class and what their probabilities tell; None without held-out samples."""
    if source.error is not None or source.heldout is None:
        return source.error
    k, (proba, y) = len(source.prior), source.heldout
    counts = np.bincount(y, minlength=k).astype(np.float64)
    stride = max(1, len(y) // rows_kept(k))
    some, shown, information = np.asarray(proba[::stride], np.float64), counts > 0, np.zeros(k)
    information[shown] = information_of_outputs(some, y[::stride], source.prior, shown)
    information[~shown] = information[shown].mean()  # for classes without held-out samples: the classifier's average
    return ClassifierError(counts, information, moment_reference(proba, y, information, settings))


def information_of_outputs(proba: Matrix, y: Labels, source_prior: Vector, shown: NDArray[np.bool_]) -> Vector:
    """Return what samples tell about the shares of the `shown` classes, relative to labels, at equal shares π.

    The information about shares is J = mean of (p/π)(p/π)ᵀ, p the probabilities at equal shares. As shares add up to 1,
    they have the covariance J⁻¹ − J⁻¹11ᵀJ⁻¹/(1ᵀJ⁻¹1) per sample. With labels J = diag(1/π), and the variance is
    π(1 − π). One sample per class is taken to have a label, so that J can be inverted.
    """
    n_shown = int(shown.sum())
    if n_shown < 2:
        return np.ones(n_shown)
    even = 1 / n_shown
    weight = even / np.maximum(np.bincount(y, minlength=len(shown)), 1)[y]
    p = correct_float64(proba, np.where(shown, even / source_prior, 0.0))[:, shown] / even
    labels = min(n_shown / len(y), 1.0)
    if n_shown > MAX_DENSE_CLASSES:
        return np.asarray(np.clip(even * ((1 - labels) * (weight @ p**2) + labels / even), 1e-6, 1.0))
    information = (1 - labels) * (p.T * weight) @ p
    information.flat[:: n_shown + 1] += labels / even
    inverse = np.linalg.inv(information)
    total = inverse.sum(axis=1)
    return np.asarray(np.clip(even * (1 - even) / (np.diag(inverse) - total**2 / total.sum()), 1e-6, 1.0))
