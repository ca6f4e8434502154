"""MLLS (EMQ, SLD): maximum likelihood."""

from __future__ import annotations

from typing import Any

from reprior._check import check_number
from reprior._types import Status
from reprior.batch.driver import Linear, ModelSpread, Step, checked_inputs, drive, finish
from reprior.batch.solve import maximize
from reprior.estimates.estimate import PriorEstimate

M_STEP = Linear(min_share=1e-200)  # π ← n/N


def mlls(source: Any, proba: Any, *, labels: Any = None, n_iter: int | None = None, tol: float = 1e-8) -> PriorEstimate:
    """Estimate the target prior by maximum likelihood [saerens2002]. The method is also known as EMQ and SLD.

    Parameters
    ----------
    source, proba, labels
        As in `estimate`. Labels count as exact.
    n_iter : int, optional
        Number of plain EM steps. By default the optimum is returned.
    tol : float
        Largest duality gap of the optimum, in nats per sample.

    Examples
    --------
    >>> mlls([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]]).prior.round(3)
    array([0.678, 0.322])
    """
    check_number(tol, "mlls", "tol", low=0, open_low=True)
    if n_iter is not None:
        check_number(n_iter, "mlls", "n_iter", low=1, whole=True)
    training, target = checked_inputs(source, proba, labels, "mlls")
    if n_iter is None:
        best = maximize(target, training.prior, tol=tol)
        point, prior = best.point, best.point.prior.copy()
        return PriorEstimate(
            prior, prior / training.prior, prior.copy(),
            Status.OPTIMUM if point.gap <= tol else Status.NOT_CONVERGED, best.passes, point.n, point.value * point.n,
            training, target, spread=ModelSpread(prior, prior, training, target, point.n),
            n_labels=getattr(target, "n_labels", 0),
        )  # fmt: skip
    step, n, _ = drive(target, training, M_STEP, Step(training.prior), n_iter=int(n_iter))
    return finish(target, training, step.prior, n, Status.STOPPED)
