"""The estimate that a batch method ends with."""

from __future__ import annotations

import numpy as np

from reprior._types import Source, Status, Vector
from reprior.batch.intervals import ObservedInformation
from reprior.estimates.estimate import PriorEstimate
from reprior.rows.blocks import Blocks
from reprior.rows.passes import e_step


def finish(target: Blocks, source: Source, prior: Vector, n_iter: int, status: Status) -> PriorEstimate:
    """Return the estimate with its likelihood, which costs one more pass."""
    weights = prior / source.prior
    with np.errstate(divide="ignore", invalid="ignore"):  # −inf if a row has no class but such as are ruled out
        last = e_step(target, weights, likelihood=True)
    # a method may rule out every class of a sample: nothing then says what the sample is
    shares = last.counts / last.n if np.isfinite(last.log_likelihood) else prior
    return PriorEstimate(
        prior, weights, shares, status, n_iter, last.n, last.log_likelihood, source, target,
        spread=ObservedInformation(prior, source, target, last.n), n_labels=getattr(target, "n_labels", 0),
    )  # fmt: skip
