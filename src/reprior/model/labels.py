"""What labels of target samples say about the classifier: do they agree with the samples that have none?"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from reprior.model.likelihood import Reliability
from reprior.model.samples import TwoSamples
from reprior.model.settings import Settings
from reprior.model.shift_prior import Shifts

MAX_FACTOR = 1e6  # of the variance: beyond it target samples without a label hardly count


def without_labels(samples: TwoSamples) -> TwoSamples:
    """Return the samples as if no target sample had a label."""
    return replace(samples, labelled=samples.labelled[:0], label_weights=samples.label_weights[:0],
                   label_counts=np.zeros_like(samples.label_counts))  # fmt: skip


def label_conflict(samples: TwoSamples, shifts: Shifts, settings: Settings, reliability: Reliability) -> Reliability:
    """Return the reliability with a variance factor that lets labels be as they are.

    `shifts` were fitted without labels. If probabilities are right, the label counts less those expected, s, have the
    covariance V + V C V: V = Σ diag(p) − p pᵀ of the labels themselves, C that of log w. If sᵀ(V + V C V)⁻¹s exceeds
    its degrees of freedom, the classifier errs on the target in a way that held-out samples do not show. C is then
    multiplied by the factor that explains s.
    """
    from scipy.special import chdtri

    weights = np.exp(shifts.probability @ np.log(shifts.weights))
    p = samples.labelled * weights
    p = p / p.sum(axis=1, keepdims=True)
    v = np.diag(samples.label_weights @ p) - (p.T * samples.label_weights) @ p
    residual = samples.label_counts - samples.label_weights @ p
    moved = sum(chance * (v @ (np.diag(h.covariance) if h.covariance.ndim == 1 else h.covariance) @ v)
                for chance, h in zip(shifts.probability, shifts.hypotheses, strict=True))  # fmt: skip
    noise = v + np.eye(len(v))  # one label's worth of anything
    degrees = float(np.trace(np.linalg.solve(noise, v)))
    if residual @ np.linalg.solve(noise + moved, residual) <= chdtri(max(degrees, 1.0), settings.conflict_level):
        return reliability
    low, high = 0.0, float(np.log(MAX_FACTOR))
    for _ in range(30):  # bisect the logarithm of the factor
        middle = (low + high) / 2
        explained = residual @ np.linalg.solve(noise + np.exp(middle) * moved, residual) <= degrees
        low, high = (low, middle) if explained else (middle, high)
    return replace(reliability, variance_factor=reliability.variance_factor * float(np.exp(high)))
