"""EBLS: the posterior mean under a prior over class shares that is itself fitted to the data."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from reprior._check import as_array, check_number, check_source, fail
from reprior._types import PriorEstimate, Source, Status, Vector
from reprior.rows.blocks import Blocks, as_blocks
from reprior.rows.passes import e_step

if TYPE_CHECKING:
    from reprior.batch.shares import Fit
from reprior.batch.driver import drive, finish


def ebls(source: Any, proba: Any, *, misfit: Any = 0.0, tol: float = 1e-8, n_iter: int = 2000) -> PriorEstimate:
    """Estimate the target prior by empirical Bayes: the posterior mean under a class-share prior fitted to the data.

    Nothing needs tuning. Each class's share is absent, ordinary or an outlier, in proportions learned from all classes;
    ordinary shares scatter around the uniform or the source prior, whichever explains the rows better. `misfit`, a
    number or (K,), is the variance of the classifier's own error in the log of a class's share, which more rows do not
    lessen: 1/(training rows of the class) does well where a class had few.
    """
    known = check_source(source, "ebls")
    check_number(tol, "ebls", "tol", low=0, open_low=True)
    check_number(n_iter, "ebls", "n_iter", low=1, whole=True)
    target = as_blocks(proba, known, "ebls")
    k = len(known.prior)
    uniform = np.full(k, 1.0 / k)
    error = as_array(misfit, "ebls", "misfit").astype(np.float64)
    if error.shape not in ((), (k,)) or not (error >= 0).all() or not np.isfinite(error).all():
        fail("ebls", "misfit", f"be a number or ({k},) numbers of at least 0", misfit)
    best, total, reached = fit_ebls(target, known, uniform, misfit=error, n_iter=int(n_iter), tol=tol)
    if np.abs(known.prior - uniform).max() > 1e-9:
        other, more, ok = fit_ebls(target, known, known.prior, misfit=error, n_iter=int(n_iter), tol=tol)
        total += more
        if evidence(target, known, other) - evidence(target, known, best) > 0.1 * k:
            best, reached = other, ok
    return finish(target, known, best.prior, total, Status.CONVERGED if reached else Status.NOT_CONVERGED)


def fit_ebls(
    target: Blocks, known: Source, base: Vector, *, misfit: Vector, n_iter: int, tol: float
) -> tuple[Fit, int, bool]:
    """Return the fit whose ordinary shares scatter around `base` (K,)."""
    from reprior.batch.shares import m_step_ebls, start_ebls

    m_step = partial(m_step_ebls, misfit=misfit)
    fit, n, ok = drive(target, known, m_step, start_ebls(base), n_iter=n_iter, tol=tol, squares=True)
    return fit, n, ok


def evidence(target: Blocks, known: Source, fit: Fit) -> float:
    """Return the approximate log evidence of a fit, by which two bases are compared."""
    stats = e_step(target, fit.prior / known.prior, likelihood=True)
    return fit.temper * stats.log_likelihood + fit.log_prior_mass
