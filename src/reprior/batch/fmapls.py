"""FMAPLS: EM with a Dirichlet prior that follows the estimate, as printed and in the form that works."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from reprior._check import check_choice, check_number, check_source
from reprior._types import PriorEstimate, Status, Vector
from reprior.rows.blocks import as_blocks
from reprior.rows.passes import Counts, e_step

if TYPE_CHECKING:
    pass
from reprior.batch.driver import Step, drive, finish

FLOOR = 1e-12  # of a share, where the printed FMAPLS would make it negative


def fmapls(
    source: Any, proba: Any, *, variant: str = "stable", c: float | str = "auto", update: str = "lsf",
    n_iter: int = 100, mu: float = 0.01, n_grad: int = 10,
) -> PriorEstimate:  # fmt: skip
    """Estimate the target prior by EM with a Dirichlet prior whose parameters follow the estimate [hu2025].

    `variant="paper"` is Algorithm 1 as printed; its fixed point does not depend on `c`, so what it returns is where it
    stands after `n_iter` steps (`c="auto"` there is 2N). `variant="stable"` (default) uses the posterior mean and a
    step fixed by time, √(N/K)/n_iter; a number for `c` sets α's sum instead. `update="ga"` replaces the surrogate
    (eq. 15) by `n_grad` steps of gradient ascent with rate `mu` (eq. 10).
    """
    known = check_source(source, "fmapls")
    check_choice(variant, "fmapls", "variant", ("stable", "paper"))
    check_choice(update, "fmapls", "update", ("lsf", "ga"))
    check_number(n_iter, "fmapls", "n_iter", low=1, whole=True)
    check_number(mu, "fmapls", "mu", low=0, open_low=True)
    check_number(n_grad, "fmapls", "n_grad", low=1, whole=True)
    if not isinstance(c, str) or c != "auto":
        check_number(c, "fmapls", "c", low=0, high=1e100, open_low=True)
    target = as_blocks(proba, known, "fmapls")
    k = len(known.prior)
    n = e_step(target, np.ones(k)).n if c == "auto" else 0  # only its row count is wanted
    uniform = np.full(k, 1.0 / k)
    if variant == "paper" or update == "ga":
        strength = 2.0 * n if isinstance(c, str) else float(c)
        offset = 1.0 if variant == "paper" else 0.0

        def m_step(stats: Counts, step: Step) -> Step:
            alpha = step.carry if step.carry is not None else np.ones(k)
            # eq. 9. Differs from hu2025: a numerator can be negative, where no prior is; it is then held at a floor
            prior = np.maximum(alpha - offset + stats.counts, FLOOR * stats.n)
            prior /= prior.sum()
            if update == "lsf":
                return Step(prior, strength * prior / prior.max())  # eq. 15
            return Step(prior, ascend(alpha, prior, mu=mu, n_grad=int(n_grad)))  # eq. 10

        step, done, _ = drive(target, known, m_step, Step(uniform, np.ones(k)), n_iter=int(n_iter))
    else:
        if isinstance(c, str):
            pace = min(1.0, np.sqrt(n / k) / n_iter)  # of plain EM: n_iter steps amount to √(N/K) of it
            strength = n / pace - n
        else:
            strength = float(c)

        def m_step(stats: Counts, step: Step) -> Step:
            # Differs from hu2025: posterior mean, so nothing is subtracted; ĉ is set by time, not by max π
            return Step((strength * step.prior + stats.counts) / (strength + stats.n))

        step, done, _ = drive(target, known, m_step, Step(uniform), n_iter=int(n_iter))
    return finish(target, known, step.prior, done, Status.STOPPED)


def ascend(alpha: Vector, prior: Vector, *, mu: float, n_grad: int) -> Vector:
    """Return α (K,) after gradient ascent on log Dir(π; α) (eq. 10)."""
    from scipy.special import digamma

    log_prior = np.log(prior)
    for _ in range(n_grad):
        move = mu * (digamma(alpha.sum()) - digamma(alpha) + log_prior)  # eq. 10
        # Differs from hu2025: a step that would leave α > 0, where ψ has poles, stops at a tenth of α
        alpha = np.maximum(alpha + move, 0.1 * alpha)
    return alpha
