"""MAPLS: EM that shrinks to the uniform prior by a fixed share."""

from __future__ import annotations

from typing import Any

import numpy as np

from reprior._check import check_number
from reprior._types import PriorEstimate, Status, Vector
from reprior.batch.driver import Linear, Step, drive, finish
from reprior.batch.mlls import M_STEP
from reprior.rows.blocks import given


def mapls(source: Any, proba: Any, *, lam: float | str = "auto", n_iter: int = 100) -> PriorEstimate:
    """Estimate the target prior by EM that shrinks to the uniform prior by a fixed share [ye2024].

    `lam` in [0, 1] is the weight of the data; "auto" chooses it as published, from how far the maximum-likelihood
    prior is from the uniform and from the source prior.
    """
    check_number(n_iter, "mapls", "n_iter", low=1, whole=True)
    if not isinstance(lam, str) or lam != "auto":
        lam = check_number(lam, "mapls", "lam", low=0, high=1)
    known, target = given(source, proba, "mapls")
    uniform = np.full(len(known.prior), 1.0 / len(known.prior))
    if isinstance(lam, str):
        fitted, _, _ = drive(target, known, M_STEP, Step(known.prior), n_iter=int(n_iter))
        lam = adaptive_lambda(fitted.prior, known.prior, uniform)
    m_step = Linear(gain=lam, add_a_row=(1 - lam) / len(uniform))  # π ← λ n/N + (1 − λ)/K
    step, n, _ = drive(target, known, m_step, Step(known.prior), n_iter=int(n_iter))
    return finish(target, known, step.prior, n, Status.STOPPED)


def adaptive_lambda(target: Vector, source: Vector, uniform: Vector) -> float:
    """Return the weight of the data that ye2024 derive from three divergences."""

    def kl(p: Vector, q: Vector) -> float:
        return float(np.sum(p * (np.log(np.maximum(p, 1e-300)) - np.log(q))))

    tu, ts, su = kl(target, uniform), kl(target, source), kl(source, uniform)
    if su < 1e-12:
        return 0.9  # Differs from ye2024: their code divides by zero for a uniform source; this is the limit
    return 0.9 * 4 * tu / (su + 4 * tu) + 0.1 * su / (su + 4 * ts)
