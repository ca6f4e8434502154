"""Outputs of two real classifiers that ship with the package: no text, only probabilities, labels and class names."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprior._check import check_choice
from reprior._types import Labels, Vector

_ORIGIN = {
    "banking77": "Banking77 (Casanueva et al., 2020), CC BY 4.0",
    "clinc150": "CLINC150 (Larson et al., 2019), CC BY 3.0",
}


@dataclass(frozen=True, slots=True)
class Dataset:
    """A classifier trained on a long-tailed sample, seen from outside.

    `counts` (K,) are its training rows of each class. The held-out rows have the training prior; the pool are other
    rows it was not trained on, to resample shifted targets from. Probabilities are (n, K), labels (n,) column indices.
    """

    name: str
    classes: tuple[str, ...]
    counts: Vector
    heldout_proba: NDArray[np.float64]
    heldout_y: Labels
    pool_proba: NDArray[np.float64]
    pool_y: Labels
    origin: str


def load(name: str) -> Dataset:
    """Return the shipped outputs called `name`: "banking77" (K=77) or "clinc150" (K=150).

    >>> data = load("banking77")
    >>> data.pool_proba.shape, data.counts.max(), data.counts.min()
    ((9184, 77), np.float64(98.0), np.float64(10.0))
    """
    check_choice(name, "load", "name", tuple(_ORIGIN))
    with (files(__package__) / f"{name}.npz").open("rb") as file, np.load(file) as stored:
        return Dataset(
            name=name,
            classes=tuple(stored["classes"].tolist()),
            counts=stored["counts"].astype(np.float64),
            heldout_proba=_proba(stored["heldout_log_proba"]),
            heldout_y=stored["heldout_y"].astype(np.intp),
            pool_proba=_proba(stored["pool_log_proba"]),
            pool_y=stored["pool_y"].astype(np.intp),
            origin=f"Outputs of a TF-IDF and logistic-regression classifier on {_ORIGIN[name]}; no text included.",
        )


def _proba(planes: NDArray[Any]) -> NDArray[np.float64]:
    """Return probabilities (n, K) from float16 log-probabilities stored as two planes of bytes (2, n, K)."""
    half = np.ascontiguousarray(np.moveaxis(planes, 0, 2)).view("<f2")[..., 0]
    proba: NDArray[np.float64] = np.exp(half.astype(np.float64))
    proba /= proba.sum(axis=1, keepdims=True)
    return proba
