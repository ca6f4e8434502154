"""Calibrator, source prior and method as one value: by default, by hand, or chosen by simulated shifts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


from reprior import calibrate
from reprior._check import check_prior
from reprior._types import Matrix, PriorEstimate, Source
from reprior.blocks import correct
from reprior.calibrate import Calibrator
from reprior.methods import estimate
from reprior.source import summarize


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What turns raw outputs into an estimate: a calibrator, the source that its outputs carry, and a method."""

    calibrator: Calibrator
    source: Source
    method: str = "ebls"
    options: Mapping[str, Any] = field(default_factory=dict)

    def estimate(self, proba: Any) -> PriorEstimate:
        """Return the estimate of the target prior from raw outputs `proba` (n, K)."""
        return estimate(self.source, self.calibrator(proba), self.method, **self.options)

    def correct(self, proba: Any, prior: Any = None) -> Matrix:
        """Return raw outputs `proba` (n, K) calibrated, and put to `prior` (K,) if one is given."""
        rows = self.calibrator(proba)
        return rows if prior is None else correct(rows, check_prior(prior, "correct", "prior", allow_zero=True)
                                                  / self.source.prior)  # fmt: skip


def pipeline(
    proba: Any, y: Any, *, calibration: str = "auto", prior: Any = "mean", method: str = "ebls",
    classes: Sequence[str] | None = None, **options: Any,
) -> Pipeline:  # fmt: skip
    cal = calibrate.fit(proba, y, kind=calibration)
    return Pipeline(cal, summarize(cal(proba), y, prior=prior, classes=classes), method, options)
