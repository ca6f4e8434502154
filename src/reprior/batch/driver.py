"""The one EM loop, and the estimate that a batch method ends with.

An E-step turns a prior into expected class counts (eq. 8). An M-step, which is all that differs between methods, turns
those into the next prior.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from reprior._check import fail
from reprior._kernels import loops, reference
from reprior._kernels.reference import width
from reprior._types import Interval, Source, Status, Vector
from reprior.estimates.estimate import PriorEstimate
from reprior.model.ebls import ebls
from reprior.model.interval import PosteriorSpread, posterior_of, posterior_spread
from reprior.rows.blocks import ArrayBlocks, Blocks, check_inputs
from reprior.rows.labelled import labelled
from reprior.rows.passes import Counts, e_step

SMALL = 1 << 18  # numbers in rows that stay in cache, where the kernel can run whole iterations


def checked_inputs(source: Any, proba: Any, labels: Any, caller: str) -> tuple[Source, Blocks]:
    """Return the source, and the target samples with the labels of some, both checked."""
    training, target = check_inputs(source, proba, caller)
    return training, labelled(target, labels, training, caller)


@dataclass(frozen=True, slots=True)
class Step:
    """Where an EM iteration stands: the estimate, and what the M-step carries to the next (FMAPLS: α)."""

    prior: Vector
    carry: Vector | None = None


@dataclass(frozen=True, slots=True)
class Linear:
    """An M-step linear in the counts n (K,): π ∝ max(α + gain·n + add, floor), `add` and `floor` for each row too.

    α = keep·π; with a `surrogate` c, it is c·π/max π after the first step ([hu2025], eq. 15). A share of no more than
    `min_share` is 0: a dying class would make denormal products, ten times as slow.
    """

    keep: float = 0.0
    gain: float = 1.0
    add: float = 0.0
    add_a_row: float = 0.0
    floor_a_row: float = 0.0
    min_share: float = 0.0
    surrogate: float = 0.0

    def __call__(self, stats: Counts, step: Step) -> Step:
        alpha = step.carry if step.carry is not None else self.keep * step.prior
        raised = alpha + self.gain * stats.counts + (self.add + self.add_a_row * stats.n)
        prior = np.maximum(raised, self.floor_a_row * stats.n)
        prior /= prior.sum()
        return self.at(np.where(prior > self.min_share, prior, 0.0))

    def at(self, prior: Vector) -> Step:
        """Return the step that stands at a prior."""
        return Step(prior, (self.surrogate / prior.max() if self.surrogate else self.keep) * prior)

    def starts(self, step: Step) -> bool:
        """Return whether α of a step is keep·π, as the kernel has it at first."""
        return step.carry is None or np.allclose(step.carry, self.keep * step.prior, rtol=1e-12, atol=0)

    def iterate(self, target: Blocks, source: Source, prior: Vector, n_iter: int) -> Step | None:
        """Return where `n_iter` iterations lead, all in the kernel, or None if the rows are not in cache."""
        if not isinstance(target, ArrayBlocks) or target.array.size > SMALL:
            return None
        n, k = target.array.shape
        at, inverse = np.zeros((2, width(k)))
        at[:k], inverse[:k] = prior, 1.0 / source.prior
        options = np.array(
            [self.keep, self.gain, self.add + self.add_a_row * n, self.floor_a_row * n, self.min_share, self.surrogate]
        )
        if loops.em(target.array, inverse, at, options, n_iter) == reference.REFUSED:  # a type or order it cannot read
            return None
        return self.at(at[:k])


MStep = Callable[[Counts, Step], Step]


class Reached(NamedTuple):
    """Where EM ended, after how many iterations, and whether it converged."""

    at: Step
    n_iter: int
    done: bool


def drive(target: Blocks, source: Source, m_step: MStep, start: Step, *, n_iter: int, tol: float = 0.0) -> Reached:
    """Iterate E-step and M-step from `start` until the L1 change of the prior is below `tol`."""
    if isinstance(m_step, Linear) and tol == 0 and m_step.starts(start):
        reached = m_step.iterate(target, source, start.prior, n_iter)
        if reached is not None:
            return Reached(reached, n_iter, False)
    step = start
    for iteration in range(1, n_iter + 1):
        before, step = step, m_step(e_step(target, step.prior / source.prior), step)
        if np.abs(step.prior - before.prior).sum() < tol:
            return Reached(step, iteration, True)
    return Reached(step, n_iter, False)


@dataclass(frozen=True, slots=True)
class ModelSpread:
    """Uncertainty of any method: that of the default model, fitted to the same samples when an interval is asked for.

    The interval contains the method's own `shares` and `prior` (K,).
    """

    shares: Vector
    prior: Vector
    source: Source
    target: Blocks | None
    n: float

    def at(self, level: float, of: str = "shares") -> Interval:
        return self.without_rows().at(level, of)

    def without_rows(self) -> PosteriorSpread:
        if self.target is None:
            fail("interval", "estimate", "have its samples", "none",
                 remedy="Estimate again, or call `interval` before `detach`")  # fmt: skip
        posterior = posterior_of(ebls(self.source, self.target))
        return posterior_spread(self.shares, self.prior, self.n, posterior, self.source)


def finish(target: Blocks, source: Source, prior: Vector, n_iter: int, status: Status) -> PriorEstimate:
    """Return the estimate with its likelihood, which costs one more pass."""
    weights = prior / source.prior
    with np.errstate(divide="ignore", invalid="ignore"):  # −inf if a row has no class but such as are ruled out
        last = e_step(target, weights, likelihood=True)
    # a method may rule out every class of a sample, which then has no corrected probabilities
    shares = last.counts / last.n if np.isfinite(last.log_likelihood) else prior
    return PriorEstimate(
        prior, weights, shares, status, n_iter, last.n, last.log_likelihood, source, target,
        spread=ModelSpread(shares, prior, source, target, last.n), n_labels=getattr(target, "n_labels", 0),
    )  # fmt: skip
