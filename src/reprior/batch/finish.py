"""The estimate that a batch method ends with, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reprior._check import fail
from reprior._types import Interval, Source, Status, Vector
from reprior.estimates.estimate import PriorEstimate
from reprior.model.ebls import ebls
from reprior.model.interval import PosteriorSpread, posterior_of, posterior_spread
from reprior.rows.blocks import Blocks
from reprior.rows.passes import e_step


@dataclass(frozen=True, slots=True)
class ModelSpread:
    """How sure an estimate of any method is: what the default model knows about the same `target` samples.

    The model is fitted when an interval is asked for. The interval contains the method's own `shares` and `prior` (K,).
    """

    shares: Vector
    prior: Vector
    source: Source
    target: Blocks | None
    n: float

    def at(self, level: float, of: str = "shares") -> Interval:
        """Return the interval of each class's share, or of its prior in the population."""
        return self.without_rows().at(level, of)

    def without_rows(self) -> PosteriorSpread:
        """Return what the model knows, without the samples."""
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
    # a method may rule out every class of a sample: nothing then says what the sample is
    shares = last.counts / last.n if np.isfinite(last.log_likelihood) else prior
    return PriorEstimate(
        prior, weights, shares, status, n_iter, last.n, last.log_likelihood, source, target,
        spread=ModelSpread(shares, prior, source, target, last.n), n_labels=getattr(target, "n_labels", 0),
    )  # fmt: skip
