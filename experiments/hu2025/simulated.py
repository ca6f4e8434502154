"""A simulated classifier that fails the way a real one does: class means learned from few, long-tailed examples."""

from __future__ import annotations

import numpy as np
from outputs import Outputs

SEED = 2019


def imagenet_counts(n_classes: int = 1000, largest: int = 1280, smallest: int = 5, total: int = 115_846) -> np.ndarray:
    """Return class sizes like ImageNet-LT's [liu2019]: 1280 to 5 images, 115,846 in all, 385 classes above 100."""
    rank = np.arange(n_classes) / (n_classes - 1)
    tail = np.exp(np.interp(rank, [0.385, 0.864, 1.0], np.log([100.0, 20.0, smallest])))
    low, high = 0.1, 20.0
    for _ in range(60):  # of the head only the largest class and the total are known: fit its bend to them
        bend = 0.5 * (low + high)
        head = 100 * (largest / 100) ** (np.maximum(0, 1 - rank / 0.385) ** bend)
        sizes = np.where(rank < 0.385, head, tail)
        low, high = (bend, high) if sizes.sum() > total else (low, bend)
    return np.rint(sizes).astype(np.int64)


def classifier(counts: np.ndarray, *, dimension: int, spread: float, n_test: int, held_out_share: float,
               rng: np.random.Generator) -> Outputs:
    """Return the outputs of linear discriminant analysis on Gaussian classes whose means it had to estimate.

    A class mean learned from n examples is off by 1/n of the within-class variance, so rare classes are modelled
    badly, the more so the rarer: that misfit, not sampling noise, is what limits label-shift estimation.
    """
    k = len(counts)
    centres = spread * rng.standard_normal((k, dimension))
    noise = rng.standard_normal((k, dimension)) / np.sqrt(counts)[:, None]
    shrink = spread**2 / (spread**2 + 1 / counts)  # the posterior mean of a centre given its examples
    learned = shrink[:, None] * (centres + noise)
    prior = counts / counts.sum()

    def outputs(y: np.ndarray) -> np.ndarray:
        x = centres[y] + rng.standard_normal((len(y), dimension))
        z = x @ learned.T - 0.5 * (learned**2).sum(1) + np.log(prior)
        z -= z.max(1, keepdims=True)
        np.exp(z, out=z)
        return (z / z.sum(1, keepdims=True)).astype(np.float32)

    y_test = np.repeat(np.arange(k), n_test)
    y_held = np.repeat(np.arange(k), np.maximum(1, np.rint(held_out_share * counts).astype(int)))
    return Outputs(counts, outputs(y_test), y_test, outputs(y_held), y_held)


def imagenet_like() -> Outputs:
    """Return a K = 1000 classifier at about 50 % accuracy under its own long-tailed prior; SIMULATED, not ImageNet."""
    return classifier(imagenet_counts(), dimension=64, spread=0.46, n_test=50, held_out_share=0.15,
                      rng=np.random.default_rng(SEED))
