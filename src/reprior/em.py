"""The EM family: one driver, and an M-step for each method.

An E-step turns a prior into expected class counts (eq. 8); what a method does with them is all that sets it apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from reprior._check import as_array, check_choice, check_number, check_source, fail
from reprior._types import PriorEstimate, Source, Status, Vector
from reprior.blocks import Blocks, Counts, as_blocks, e_step
from reprior.solve import maximize

if TYPE_CHECKING:
    from reprior.empirical_bayes import Fit

FLOOR = 1e-12  # of a share, where the printed FMAPLS would make it negative


@dataclass(frozen=True, slots=True)
class Step:
    """Where an EM iteration stands: the estimate, and what the M-step carries to the next (FMAPLS: α)."""

    prior: Vector
    carry: Vector | None = None


MStep = Callable[[Counts, Any], Any]


def drive(
    target: Blocks, source: Source, m_step: MStep, start: Any, *, n_iter: int, tol: float = 0.0, squares: bool = False
) -> tuple[Any, int, bool]:
    """Iterate E-step and M-step from `start`; return the last step, the iterations, and whether `tol` was reached.

    A step has the `prior` that is the estimate; one that also has a `belief`, the point that the next E-step uses
    instead, is moved ahead every other iteration. `tol` bounds the L1 change of the prior in an iteration.
    """
    step, earlier, reach = start, None, 4.0
    for iteration in range(1, n_iter + 1):
        belief = getattr(step, "belief", step.prior)
        new = m_step(e_step(target, belief / source.prior, squares=squares), step)
        if np.abs(new.prior - step.prior).sum() < tol:
            return new, iteration, True
        if not hasattr(new, "belief"):
            step = new
        elif earlier is None:
            earlier, step = step, new
        else:
            ahead, reach = extrapolate(earlier.coordinates(), step.coordinates(), new.coordinates(), new.mass(), reach)
            earlier, step = None, new.at(ahead)
    return step, n_iter, False


def extrapolate(a: Vector, b: Vector, c: Vector, mass: Vector, reach: float) -> tuple[Vector, float]:
    """Return a point ahead of three successive ones by squared extrapolation [varadhan2008], and the next reach.

    `mass` says which coordinates count when steps are measured; `reach` caps the extrapolation and grows when met.
    """
    first, last = b - a, c - b
    bend = last - first
    length = float(np.sqrt((mass * first**2).sum() / max((mass * bend**2).sum(), 1e-300)))
    if length >= reach:
        length, reach = reach, 4 * reach
    length = max(1.0, length)
    # three nats: a rare class must not be thrown out of sight by one bold step
    return np.clip(a + 2 * length * first + length**2 * bend, c - 3, c + 3), reach


def finish(target: Blocks, source: Source, prior: Vector, n_iter: int, status: Status) -> PriorEstimate:
    """Return the estimate with its likelihood, which costs one more pass."""
    weights = prior / source.prior
    with np.errstate(divide="ignore", invalid="ignore"):  # −inf if a row has no class but such as are ruled out
        last = e_step(target, weights, likelihood=True)
    return PriorEstimate(prior, weights, status, n_iter, last.n, last.log_likelihood, source, target)


def mlls(source: Any, proba: Any, *, n_iter: int | None = None, tol: float = 1e-8) -> PriorEstimate:
    """Estimate the target prior by maximum likelihood [saerens2002] (EMQ, SLD): the optimum, or `n_iter` steps of EM.

    `source` is a `Source` or class counts (K,); `proba` (n, K) the outputs on the target. Without `n_iter` the answer
    is certified to within `tol` nats a row of the maximum by its duality gap.

    >>> mlls([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.1, 0.9]]).prior.round(3)
    array([0.678, 0.322])
    """
    known = check_source(source, "mlls")
    check_number(tol, "mlls", "tol", low=0, open_low=True)
    if n_iter is not None:
        check_number(n_iter, "mlls", "n_iter", low=1, whole=True)
    target = as_blocks(proba, known, "mlls")
    if n_iter is None:
        point, passes = maximize(target, known.prior, tol=tol)
        status = Status.OPTIMUM if point.gap <= tol else Status.NOT_CONVERGED
        return PriorEstimate(
            point.prior.copy(), point.prior / known.prior, status, passes, point.n, point.value * point.n, known, target
        )
    step, n, _ = drive(target, known, m_step_mlls, Step(known.prior), n_iter=int(n_iter))
    return finish(target, known, step.prior, n, Status.STOPPED)


def m_step_mlls(stats: Counts, step: Step) -> Step:
    share = stats.counts / stats.n
    return Step(np.where(share > 1e-200, share, 0.0))  # a dying class would make denormal products, ten times as slow


def mapls(source: Any, proba: Any, *, lam: float | str = "auto", n_iter: int = 100) -> PriorEstimate:
    """Estimate the target prior by EM that shrinks to the uniform prior by a fixed share [ye2024].

    `lam` in [0, 1] is the weight of the data; "auto" chooses it as published, from how far the maximum-likelihood
    prior is from the uniform and from the source prior.
    """
    known = check_source(source, "mapls")
    check_number(n_iter, "mapls", "n_iter", low=1, whole=True)
    if not isinstance(lam, str) or lam != "auto":
        lam = check_number(lam, "mapls", "lam", low=0, high=1)
    target = as_blocks(proba, known, "mapls")
    uniform = np.full(len(known.prior), 1.0 / len(known.prior))
    if isinstance(lam, str):
        fitted, _, _ = drive(target, known, m_step_mlls, Step(known.prior), n_iter=int(n_iter))
        lam = adaptive_lambda(fitted.prior, known.prior, uniform)
    share = lam

    def m_step(stats: Counts, step: Step) -> Step:
        return Step(share * stats.counts / stats.n + (1 - share) * uniform)

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
    from reprior.empirical_bayes import m_step_ebls, start_ebls  # brings in SciPy's special functions

    m_step = partial(m_step_ebls, misfit=misfit)
    fit, n, ok = drive(target, known, m_step, start_ebls(base), n_iter=n_iter, tol=tol, squares=True)
    return fit, n, ok


def evidence(target: Blocks, known: Source, fit: Fit) -> float:
    """Return the approximate log evidence of a fit, by which two bases are compared."""
    stats = e_step(target, fit.prior / known.prior, likelihood=True)
    return fit.temper * stats.log_likelihood + fit.log_prior_mass
