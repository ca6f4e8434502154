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
    """Return held-out counts per class, information of the predictions, and moments.

    Without held-out samples, or if they were measured before, return the error that the source has, which may be None.
    """
    if source.heldout is None or (source.error is not None and source.error.moments is not None):
        return source.error
    k, (proba, y) = len(source.prior), source.heldout
    counts = np.bincount(y, minlength=k).astype(np.float64)
    stride = max(1, len(y) // rows_kept(k))
    used, present, information = np.asarray(proba[::stride], np.float64), counts > 0, np.zeros(k)
    information[present] = relative_information(used, y[::stride], source.prior, present)
    information[~present] = information[present].mean()  # of classes without held-out samples: the average
    return ClassifierError(counts, information, moment_reference(proba, y, information, settings))


def relative_information(proba: Matrix, y: Labels, source_prior: Vector, present: NDArray[np.bool_]) -> Vector:
    """Return the information of predictions about the shares of the `present` classes, relative to labels, in (0, 1].

    It is measured at equal shares π. J = mean of (p/π)(p/π)ᵀ, p the probabilities at equal shares. As shares add up to
    1, they have the covariance J⁻¹ − J⁻¹11ᵀJ⁻¹/(1ᵀJ⁻¹1) per sample. With labels J = diag(1/π), and the variance is
    π(1 − π). One sample per class counts as labelled, so that J can be inverted. With many classes only the diagonal
    of J is used: π·J_kk.
    """
    n_present = int(present.sum())
    if n_present < 2:
        return np.ones(n_present)
    even = 1 / n_present
    weight = even / np.maximum(np.bincount(y, minlength=len(present)), 1)[y]
    ratio = correct_float64(proba, np.where(present, even / source_prior, 0.0))[:, present] / even  # p/π
    labelled = min(n_present / len(y), 1.0)
    if n_present > MAX_DENSE_CLASSES:
        return np.asarray(np.clip(even * ((1 - labelled) * (weight @ ratio**2) + labelled / even), 1e-6, 1.0))
    information = (1 - labelled) * (ratio.T * weight) @ ratio
    information.flat[:: n_present + 1] += labelled / even
    inverse = np.linalg.inv(information)
    total = inverse.sum(axis=1)
    return np.asarray(np.clip(even * (1 - even) / (np.diag(inverse) - total**2 / total.sum()), 1e-6, 1.0))
