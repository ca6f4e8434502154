"""Calibrator, source prior and method as one value: by default, by hand, or chosen by simulated shifts.

The defaults, and what they were measured against, are on the page "Which method should I use?" of the docs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from reprior._check import check_choice, check_labelled, check_prior, fail
from reprior._types import Labels, Matrix, PriorEstimate, Source, Vector
from reprior.batch.registry import ALIASES, METHODS, estimate
from reprior.pipelines import calibrate
from reprior.pipelines.source import carried_prior, summarize, tilt_of
from reprior.rows.calibrated import Calibrator
from reprior.rows.correction import correct

RIDGE = 10.0  # labelled rows of a class that its bias must outweigh: few of them leave plain temperature scaling
FEW_ROWS = 100  # held-out rows in all, below which training counts say more than they do


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What turns raw outputs into an estimate: a calibrator or None, the source its outputs carry, and a method.

    `table` holds what `select` decided from.
    """

    calibrator: Calibrator | None
    source: Source
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    table: tuple[Candidate, ...] = ()

    def calibrate(self, proba: Any) -> Any:
        """Return raw outputs (n, K) calibrated."""
        return proba if self.calibrator is None else self.calibrator(proba)

    def estimate(self, proba: Any) -> PriorEstimate:
        """Return the estimate of the target prior from raw outputs `proba` (n, K)."""
        return estimate(self.source, self.calibrate(proba), self.method, **self.options)

    def correct(self, proba: Any, prior: Any) -> Matrix:
        """Return raw outputs `proba` (n, K), calibrated, as they would be under `prior` (K,)."""
        target = check_prior(prior, "correct", "prior", allow_zero=True)
        return correct(self.calibrate(proba), target / self.source.prior)


class Candidate(NamedTuple):
    """A line of the table `select` decides from: mean and standard error of the loss on simulated shifts."""

    calibration: str
    prior: str
    method: str
    loss: float
    error: float


def pipeline(
    proba: Any = None, y: Any = None, *, counts: Any = None, calibration: str = "auto", prior: Any = "auto",
    method: str = "auto", classes: Sequence[str] | None = None, **options: Any,
) -> Pipeline:  # fmt: skip
    """Return the default pipeline, or the one described, from held-out outputs (n, K) and labels (n,), or from neither.

    `counts` (K,) are the training rows of each class; held-out rows may have another class mix. `calibration` is a
    name of `calibrate.KINDS`; "auto" is temperature scaling with a bias for each class, held back where a class has
    few labels. `prior` is "carried" (mean calibrated output, pooled with training counts where biases are held back),
    "pooled", "mean", "labels", "training", or a vector (K,), which can also stand alone; "auto" is "carried" with
    counts and "mean" without. `method` is a name of `METHODS`; "auto" is "ebls". `options` go to the method.

    >>> pipeline(counts=[500, 300]).method
    'ebls'
    """
    method = check_choice(str(method).lower(), "pipeline", "method", ("auto", *METHODS, *ALIASES))
    method = "ebls" if method == "auto" else ALIASES.get(method, method)
    if (proba is None) != (y is None) or (proba is None and counts is None and isinstance(prior, str)):
        given = "one of them" if counts is None else "`counts`"
        fail("pipeline", "proba, y", "both be given, or `counts` alone, or a `prior`", given)
    trained = None if counts is None else check_prior(counts, "pipeline", "counts")
    total = None if counts is None else np.asarray(counts, np.float64)
    if total is not None and total.min() < 1:
        fail("pipeline", "counts", "be training rows of each class, at least 1", total.min(),
             remedy="Pass shares as `prior`")  # fmt: skip
    if proba is None:
        source = Source(check_prior(prior, "pipeline", "prior") if trained is None else trained)
        source = source if trained is None else replace(source, made="training counts")
        return Pipeline(None, source, method, options)
    rows, labels = check_labelled(proba, y, "pipeline")
    n, k = rows.shape
    if trained is not None and len(trained) != k:
        fail("pipeline", "counts", f"have {k} classes like `proba`", len(trained))
    if calibration == "auto" and total is not None and n < FEW_ROWS:
        calibration = "none"
        prior = "training" if isinstance(prior, str) and prior == "auto" else prior
    kind, tilt = "bias-corrected" if calibration == "auto" else calibration, None
    if total is not None and (tilt := tilt_of(labels, total)) is not None:
        # labels and outputs agree once these are put to the mix of the labels: fit there, and move back
        floor = 0.5 * float(rows.min(initial=1.0, where=rows > 0) * tilt.min() / tilt.max())  # zeros must tilt too
        moved = np.maximum(rows, floor)
        cal = calibrate.fit(correct(moved / moved.sum(axis=1, keepdims=True), tilt), labels, kind=kind, ridge=RIDGE)
        cal = replace(cal, floor=floor, bias=cal.bias + (cal.scale - 1) * np.log(tilt))
    else:
        cal = calibrate.fit(rows, labels, kind=kind, ridge=RIDGE)
    source = _source(cal, rows, labels, prior, total, classes, tilt=tilt)
    return Pipeline(cal, source, method, _options(method, total, options))


def _options(method: str, counts: Vector | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return a method's options: the default keeps to the class mix of training, where that is known."""
    return options if method != "ebls" or counts is None else {"base": counts / counts.sum()} | options


def _source(
    cal: Calibrator, rows: Matrix, labels: Labels, prior: Any, counts: Vector | None,
    classes: Sequence[str] | None = None, *, tilt: Vector | None = None,
) -> Source:  # fmt: skip
    """Return the source of calibrated outputs; `tilt` is undone."""
    out, made, weight = np.asarray(cal(rows), np.float64), "", None if tilt is None else 1 / tilt[labels]
    if isinstance(prior, str):
        check_choice(prior, "pipeline", "prior", ("auto", "mean", "labels", "training", "pooled", "carried"))
        if prior == "auto":
            prior = "mean" if counts is None else "carried"
        if prior in ("training", "pooled", "carried"):
            if counts is None:
                fail("pipeline", "counts", f"be given for prior={prior!r}", "nothing")
            made = "training counts" if prior == "training" else "training counts and mean held-out output"
            held_back = np.inf if cal.kind in ("none", "temperature") or prior == "pooled" else RIDGE
            prior = counts if prior == "training" else carried_prior(out, counts, weight, ridge=held_back)
        elif weight is not None:
            made = "mean held-out output" if prior == "mean" else "held-out label counts"
            prior = weight @ (out if prior == "mean" else np.eye(rows.shape[1])[labels] + 1e-3)
    source = summarize(out, labels, prior=prior, classes=classes)
    if tilt is not None and source.confusion is not None and source.hard_confusion is not None:
        scale = 1 / (tilt * (source.confusion.sum(axis=0) @ (1 / tilt)))
        source = replace(source, confusion=source.confusion * scale, hard_confusion=source.hard_confusion * scale)
    return replace(source, made=made) if made else source
