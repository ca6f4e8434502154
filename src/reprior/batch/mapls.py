"""MAPLS: EM that shrinks to the uniform prior by a fixed share."""

from __future__ import annotations

from typing import Any

import numpy as np

from reprior._check import check_number
from reprior._types import Status, Vector
from reprior.batch.driver import Linear, Step, checked_inputs, drive, finish
from reprior.batch.mlls import M_STEP
from reprior.estimates.estimate import PriorEstimate

UNIFORM_LAMBDA = 0.9  # Differs from ye2024: λ for a uniform source, where their code divides by zero; this is the limit


def mapls(
    source: Any, proba: Any, *, labels: Any = None, lam: float | str = "auto", n_iter: int = 100
) -> PriorEstimate:
    """Estimate the target prior by EM that shrinks towards the uniform prior by a fixed share [ye2024].

    Parameters
    ----------
    source, proba, labels
        As in `estimate`. Labels count as exact.
    lam : float or "auto"
        Weight of the data, in [0, 1]. "auto" chooses it as published, from how far the maximum-likelihood prior is from
        the uniform and from the source prior.
    n_iter : int
        Number of iterations.

    Examples
    --------
    >>> mapls([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]], lam=0.5).prior.round(2)
    array([0.56, 0.44])
    """
    check_number(n_iter, "mapls", "n_iter", low=1, whole=True)
    if not isinstance(lam, str) or lam != "auto":
        lam = check_number(lam, "mapls", "lam", low=0, high=1)
    training, target = checked_inputs(source, proba, labels, "mapls")
    uniform = np.full(len(training.prior), 1.0 / len(training.prior))
    if isinstance(lam, str) and np.ptp(training.prior) == 0:
        lam = UNIFORM_LAMBDA  # whatever the target
    elif isinstance(lam, str):
        fitted = drive(target, training, M_STEP, Step(training.prior), n_iter=int(n_iter)).at
        lam = adaptive_lambda(fitted.prior, training.prior, uniform)
    m_step = Linear(gain=lam, add_a_row=(1 - lam) / len(uniform))  # π ← λ n/N + (1 − λ)/K
    step, n, _ = drive(target, training, m_step, Step(training.prior), n_iter=int(n_iter))
    return finish(target, training, step.prior, n, Status.STOPPED)


def adaptive_lambda(target: Vector, source: Vector, uniform: Vector) -> float:
    """Return the weight of the data from three divergences, as `get_lamda` of the authors' code does [ye2024].

    With f(d, g) = g·d/(1 + g·d), their s is 1 − f(KL(source ‖ uniform), ½), and their g is 2s/(1 − s) = 4/KL(source ‖
    uniform). The weight is 0.9·f(KL(target ‖ uniform), g) + 0.1·(1 − f(KL(target ‖ source), g)).
    """

    def kl(p: Vector, q: Vector) -> float:
        return float(np.sum(p * (np.log(np.maximum(p, 1e-300)) - np.log(q))))

    tu, ts, su = kl(target, uniform), kl(target, source), kl(source, uniform)
    if su < 1e-12:
        return UNIFORM_LAMBDA
    return 0.9 * 4 * tu / (su + 4 * tu) + 0.1 * su / (su + 4 * ts)
