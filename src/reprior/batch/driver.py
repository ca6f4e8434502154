"""The one EM loop: an E-step turns a prior into expected class counts (eq. 8), an M-step, which is all that sets
a method apart, turns those into the next prior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from reprior._kernels import loops, reference
from reprior._kernels.reference import width
from reprior._types import Source, Vector
from reprior.rows.blocks import ArrayBlocks, Blocks
from reprior.rows.passes import Counts, e_step

SMALL = 1 << 18  # numbers in rows that stay in cache, where the kernel can run whole iterations


@dataclass(frozen=True, slots=True)
class Step:
    """Where an EM iteration stands: the estimate, and what the M-step carries to the next (FMAPLS: α)."""

    prior: Vector
    carry: Vector | None = None


@dataclass(frozen=True, slots=True)
class Linear:
    """An M-step linear in the counts n (K,): π ∝ max(α + gain·n + add, floor), `add` and `floor` for each row too.

    α starts as keep·π and is then keep·π, or with a `surrogate` c the c·π/max π of eq. 15. A share of no more than
    `least` is 0: a dying class would make denormal products, ten times as slow.
    """

    keep: float = 0.0
    gain: float = 1.0
    add: float = 0.0
    add_a_row: float = 0.0
    floor_a_row: float = 0.0
    least: float = 0.0
    surrogate: float = 0.0

    def __call__(self, stats: Counts, step: Step) -> Step:
        alpha = step.carry if step.carry is not None else self.keep * step.prior
        raised = alpha + self.gain * stats.counts + (self.add + self.add_a_row * stats.n)
        prior = np.maximum(raised, self.floor_a_row * stats.n)
        prior /= prior.sum()
        return self.at(np.where(prior > self.least, prior, 0.0))

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
            [self.keep, self.gain, self.add + self.add_a_row * n, self.floor_a_row * n, self.least, self.surrogate]
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
