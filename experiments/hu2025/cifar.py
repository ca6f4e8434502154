"""Long-tailed CIFAR-100: the two file formats, and the training and held-out rows for an imbalance ratio."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path

import numpy as np

CLASSES, PER_CLASS, HELD_OUT_MAX = 100, 500, 75


@dataclass(frozen=True, slots=True)
class Cifar:
    x_train: np.ndarray  # (50000, 32, 32, 3) uint8
    y_train: np.ndarray
    x_test: np.ndarray  # (10000, 32, 32, 3) uint8
    y_test: np.ndarray


def load(path: Path) -> Cifar:
    """Read CIFAR-100 from an .npz file or from the folder of the original pickled `train` and `test` files."""
    if path.is_dir():
        return Cifar(*_pickled(path / "train"), *_pickled(path / "test"))
    with np.load(path) as f:
        return Cifar(f["x_train"], f["y_train"].astype(np.int64), f["x_test"], f["y_test"].astype(np.int64))


def _pickled(path: Path) -> tuple[np.ndarray, np.ndarray]:
    # The original files are Python 2 pickles: unpickle only files you trust.
    with path.open("rb") as f:
        batch = pickle.load(f, encoding="bytes")
    images = np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
    return images, np.asarray(batch[b"fine_labels"], np.int64)


def class_counts(n_max: int, ratio: float, n_classes: int = CLASSES) -> np.ndarray:
    """Images per class of a long-tailed set: eq. 2 of [hu2025], exponent k/(K-1) as in the published code."""
    exact = n_max * ratio ** (np.arange(n_classes) / (n_classes - 1))
    return np.floor(exact + 1e-9).astype(np.int64)


def split(y: np.ndarray, ratio: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Row numbers of the training set (425 for the largest class) and a disjoint held-out set (75), one prior.

    The head class has 500 images, so the two maxima must share them; every other class takes its held-out
    rows from the images the subsampling leaves out, and gives at least one.
    """
    n_train = class_counts(PER_CLASS - HELD_OUT_MAX, ratio)
    n_held = np.maximum(1, np.rint(n_train * HELD_OUT_MAX / (PER_CLASS - HELD_OUT_MAX)).astype(np.int64))
    train, held = [], []
    for k in range(CLASSES):
        rows = rng.permutation(np.flatnonzero(y == k))
        train.append(rows[: n_train[k]])
        held.append(rows[n_train[k] : n_train[k] + n_held[k]])
    return np.concatenate(train), np.concatenate(held)
