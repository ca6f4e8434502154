"""A posterior over class shares: a few hypotheses, each with the mean and variance of every share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reprior._types import Matrix, Vector


@dataclass(frozen=True, slots=True)
class Posterior:
    """Hypotheses' `weights` (C,), and under each the `means` and `variances` (C, K) of the shares.

    `unsure` says by how much the held-out rows' noise and the classifier's error exceed that of the target rows.
    `swayed` (K,) says by how much one more label of a class would raise the logarithm of its share.
    """

    weights: Vector
    means: Matrix
    variances: Matrix
    unsure: float
    swayed: Vector

    def variance(self) -> Vector:
        """Return the variance (K,) of each share, over all hypotheses."""
        share = self.weights / self.weights.sum()
        return np.asarray(share @ (self.variances + (self.means - share @ self.means) ** 2))

    def quantiles(self, level: float) -> tuple[Vector, Vector]:
        """Return lower and upper ends (K,), (K,) that leave out (1 − level)/2 on either side."""
        from scipy.special import betainc

        kept = self.weights > 1e-4 * self.weights.max()
        weights = self.weights[kept] / self.weights[kept].sum()
        means = np.clip(self.means[kept], 1e-9, 1 - 1e-9)
        variances = np.clip(self.variances[kept], 1e-14, 0.99 * means * (1 - means))
        rows = means * (1 - means) / variances - 1  # a Beta with these moments
        first, second = means * rows, (1 - means) * rows
        ends = []
        for share in ((1 - level) / 2, (1 + level) / 2):
            low, high = np.zeros(means.shape[1]), np.ones(means.shape[1])
            for _ in range(40):
                middle = 0.5 * (low + high)
                below = weights @ betainc(first, second, middle) < share
                low, high = np.where(below, middle, low), np.where(below, high, middle)
            ends.append(0.5 * (low + high))
        return ends[0], ends[1]
