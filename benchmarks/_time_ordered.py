"""Outputs of classifiers on later periods than they were trained on, as `make_data.py` stores them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

DATA = Path(__file__).parent / "data" / "time_ordered.npz"
FLOOR = 2e-5  # probabilities are stored with four decimals, so a stored 0 is below 5e-5


class Classifier(NamedTuple):
    """Predicted probabilities and labels of held-out samples of the training period, and of each later batch."""

    name: str
    counts: np.ndarray
    heldout: np.ndarray
    heldout_y: np.ndarray
    batches: list[tuple[np.ndarray, np.ndarray]]

    @property
    def task(self) -> str:
        return self.name.split("-")[0]


def halves(tasks: list[str]) -> dict[str, str]:
    """Return the half of each task: by name, every second task is for design and the others are reported."""
    return {task: ("design", "reported")[i % 2] for i, task in enumerate(sorted(set(tasks)))}


def load(path: Path = DATA) -> Iterator[Classifier]:
    """Yield the stored classifiers."""
    with np.load(path) as stored:
        for name in map(str, stored["names"]):
            proba = np.maximum(stored[f"{name}|P"].astype(np.float64), FLOOR)
            proba /= proba.sum(axis=1, keepdims=True)
            y, t = stored[f"{name}|y"].astype(np.intp), stored[f"{name}|t"]
            batches = [(proba[t == i], y[t == i]) for i in range(1, int(t.max()) + 1)]
            yield Classifier(name, stored[f"{name}|counts"].astype(float), proba[t == 0], y[t == 0], batches)
