"""What held-out samples show about the classifier: how many each class has, and how informative its predictions are."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from reprior._types import ClassifierError, Labels, Matrix, Source, Vector
from reprior.model.label_shift import moment_reference
from reprior.model.settings import DEFAULT, Settings
from reprior.rows.correction import correct_float64
from reprior.rows.passes import MAX_DENSE_CLASSES, rows_kept


def measure_error(source: Source, settings: Settings = DEFAULT) -> ClassifierError | None:
    """Return the held-out samples of each class and what their probabilities tell; None without held-out samples."""
    if source.heldout is None or (source.error is not None and source.error.moments is not None):
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
