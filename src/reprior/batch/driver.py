"""The one EM loop: an E-step turns a prior into expected class counts (eq. 8), an M-step, which is all that sets
a method apart, turns those into the next prior."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from reprior._types import PriorEstimate, Source, Status, Vector
from reprior.rows.blocks import Blocks
from reprior.rows.passes import Counts, e_step

if TYPE_CHECKING:
    pass


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
