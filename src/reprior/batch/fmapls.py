"""FMAPLS: EM with a Dirichlet prior that follows the estimate, as printed and in the form that works."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from reprior._check import check_choice, check_number, check_prior, in_order
from reprior._types import Status, Vector
from reprior.batch.driver import Linear, MStep, Step, checked_inputs, drive, finish
from reprior.estimates.estimate import PriorEstimate
from reprior.rows.passes import Counts, count_rows

FLOOR = 1e-12  # of a share, where the printed FMAPLS would make it negative
NEWTON_TOLERANCE = 1e-6  # L1 change of the estimate at which Newton's form ends


def fmapls(
    source: Any, proba: Any, *, labels: Any = None, variant: str = "stable", c: float | str = "auto",
    update: str = "lsf", n_iter: int = 100, mu: float = 0.01, n_grad: int = 10, alpha0: Any = None, start: Any = None,
) -> PriorEstimate:  # fmt: skip
    """Estimate the target prior by EM with a Dirichlet prior whose parameters follow the estimate [hu2025].

    `variant="paper"` is Algorithm 1 as printed. Its fixed point does not depend on `c`, so the result depends on
    `n_iter`. `variant="stable"` (default) uses the posterior mean and a fixed step √(N/K)/`n_iter`. `estimate.alpha` is
    the final α.

    Parameters
    ----------
    source, proba, labels
        As in `estimate`. Labels count as exact.
    variant : {"stable", "paper"}
        Which form of the algorithm to run.
    c : float or "auto"
        The constant of eq. 15. "auto" is 2N in the printed form. In the stable form a number sets Σα instead.
    update : {"lsf", "ga", "newton"}
        How α follows π. "lsf" (default) is the linear surrogate (eq. 15). "ga" is `n_grad` steps of gradient ascent of
        size `mu` (eq. 10), and needs a `mu` that fits the problem. "newton" is one Newton step; it needs no constant
        and converges in 10 to 30 passes, but with hundreds of samples per class it stops too early.
    n_iter : int
        Number of EM iterations (T_max in the paper); the maximum with "newton".
    mu, n_grad : float, int
        Size and number of gradient steps (T_grad in the paper), with "ga" only.
    alpha0 : float or (K,), optional
        α of the first iteration. By default 1 as printed; the stable form derives it from `start`.
    start : (K,), optional
        The prior π of the first iteration; by default uniform, as printed. Names are matched.

    Examples
    --------
    >>> proba = [[0.8, 0.2]] * 30 + [[0.2, 0.8]] * 10
    >>> fmapls([1, 1], proba, update="newton").prior.round(2)
    array([0.81, 0.19])
    """
    check_choice(variant, "fmapls", "variant", ("stable", "paper"))
    check_choice(update, "fmapls", "update", ("lsf", "ga", "newton"))
    check_number(n_iter, "fmapls", "n_iter", low=1, whole=True)
    check_number(mu, "fmapls", "mu", low=0, high=1e100, open_low=True)
    check_number(n_grad, "fmapls", "n_grad", low=1, whole=True)
    if not isinstance(c, str) or c != "auto":
        check_number(c, "fmapls", "c", low=0, high=1e100, open_low=True)
    training, target = checked_inputs(source, proba, labels, "fmapls")
    k = len(training.prior)
    first_prior = np.full(k, 1.0 / k) if start is None else start
    prior = check_prior(first_prior, "fmapls", "start", n_classes=k, like="the source", classes=training.classes)
    first = None if alpha0 is None else check_alpha(alpha0, k, training.classes)
    n = count_rows(target) if c == "auto" else 0
    climb = {"lsf": None, "ga": partial(ascend, mu=mu, n_grad=int(n_grad)), "newton": newton}[update]
    if variant == "paper" or climb is not None:
        m_step = printed(k, 2.0 * n if isinstance(c, str) else float(c), variant, climb)
        first = np.ones(k) if first is None else first
    else:
        m_step = posterior_mean(n, k, int(n_iter)) if isinstance(c, str) else Linear(keep=float(c))
    tol = NEWTON_TOLERANCE if update == "newton" else 0.0  # no other α grows fast enough for the estimate to rest
    step, done, met = drive(target, training, m_step, Step(prior, first), n_iter=int(n_iter), tol=tol)
    status = Status.STOPPED if not tol else Status.CONVERGED if met else Status.NOT_CONVERGED
    return replace(finish(target, training, step.prior, done, status), alpha=step.carry)


def posterior_mean(n: int, k: int, n_iter: int) -> Linear:
    """Return the M-step of the stable form for `n` samples, which makes √(N/K) EM steps in `n_iter` iterations."""
    pace = min(1.0, np.sqrt(n / k) / n_iter)  # fraction of an EM step per iteration
    # Differs from hu2025: posterior mean, so nothing is subtracted; ĉ is set by time, not by max π
    return Linear(keep=n / pace - n)


def printed(k: int, c: float, variant: str, climb: Callable[[Vector, Vector], Vector] | None) -> MStep:
    """Return the M-step of eq. 9, where α follows π by eq. 15, or by `climb`, a function of α and π (eq. 10)."""
    # α = 1 at first. Differs from hu2025: a numerator that would be negative is held at a floor
    surrogate = Linear(keep=k, add=-float(variant == "paper"), floor_a_row=FLOOR, surrogate=c)
    if climb is None:
        return surrogate

    def m_step(stats: Counts, step: Step) -> Step:
        alpha = step.carry if step.carry is not None else np.ones(k)
        prior = surrogate(stats, step).prior
        return Step(prior, climb(alpha, prior))

    return m_step


def check_alpha(alpha0: Any, k: int, classes: Sequence[str] | None) -> Vector:
    """Return the Dirichlet parameters (K,) of the first iteration, all positive."""
    if np.ndim(alpha0) == 0:
        return np.full(k, check_number(alpha0, "fmapls", "alpha0", low=0, high=1e100, open_low=True))
    check_prior(alpha0, "fmapls", "alpha0", n_classes=k, like="the source", classes=classes)
    return in_order(alpha0, "fmapls", "alpha0", classes)[0].astype(np.float64)


def ascend(alpha: Vector, prior: Vector, *, mu: float, n_grad: int) -> Vector:
    """Return α (K,) after gradient ascent on log Dir(π; α) (eq. 10)."""
    from scipy.special import digamma

    log_prior = np.log(prior)
    for _ in range(n_grad):
        move = mu * (digamma(alpha.sum()) - digamma(alpha) + log_prior)  # eq. 10
        # Differs from hu2025: a step that would leave α > 0, where ψ has poles, stops at a tenth of α
        alpha = np.maximum(alpha + move, 0.1 * alpha)
    return alpha


def newton(alpha: Vector, prior: Vector) -> Vector:
    """Return α (K,) after one Newton step instead of eq. 10, in O(K): diagonal plus rank one [minka2000].

    log Dir(π; α) has no maximum in α. Near a multiple of π the step doubles Σα, so after t iterations EM moves
    by N/(N + K·2ᵗ): the estimate comes to rest after about log₂(N/K) steps of plain EM, without a constant to choose.
    """
    from scipy.special import digamma, polygamma

    total = alpha.sum()
    slope = digamma(total) - digamma(alpha) + np.log(prior)
    bend, shared = polygamma(1, alpha), polygamma(1, total)
    common = (slope / bend).sum() / (1.0 / shared - (1.0 / bend).sum())
    return np.asarray(np.maximum(alpha + (slope + common) / bend, 0.1 * alpha))  # α > 0, as in `ascend`
