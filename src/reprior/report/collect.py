"""What a report says, as plain values: gathered once, shown as HTML or JSON."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reprior._types import Labels, Matrix, PriorEstimate
from reprior.assess.compare import compare
from reprior.assess.diagnose import diagnose, sentences
from reprior.report.show import names, verdicts
from reprior.rows.blocks import Blocks
from reprior.rows.correction import reweight


@dataclass(frozen=True, slots=True)
class Predictions:
    """How often each class is predicted before and after correction (K,), and for how many rows that changed."""

    before: Labels
    after: Labels
    changed: int
    confidence: float
    corrected_confidence: float

    def __add__(self, other: Predictions) -> Predictions:
        return Predictions(
            self.before + other.before, self.after + other.after, self.changed + other.changed,
            self.confidence + other.confidence, self.corrected_confidence + other.corrected_confidence,
        )  # fmt: skip


def predictions(raw: Blocks, estimate: PriorEstimate) -> Predictions:
    """Return what an estimate does to the predicted classes of raw rows, as the classifier gave them: one pass."""
    k, weights, calibrator = len(estimate.prior), estimate.weights, estimate.calibrator

    def of_block(block: Matrix) -> Predictions:
        scaled = reweight(block if calibrator is None else calibrator(block), weights)
        before, after = block.argmax(axis=1), scaled.argmax(axis=1)
        return Predictions(
            np.bincount(before, minlength=k), np.bincount(after, minlength=k), int((before != after).sum()),
            float(block.max(axis=1).sum(dtype=np.float64)), float(scaled.max(axis=1).sum(dtype=np.float64)),
        )  # fmt: skip

    return raw.map_sum(of_block)


def collect(estimate: PriorEstimate, raw: Blocks, *, level: float, made: dict[str, Any]) -> dict[str, Any]:
    """Return the whole content of a report on an estimate of `raw` rows; `made` says how it came about."""
    source, prior, target = estimate.source, estimate.prior, estimate.target
    assert target is not None
    interval, found = estimate.interval(level), diagnose(source, target, estimate=estimate)
    moved, n = predictions(raw, estimate), float(estimate.n)
    compared = compare(source, target, first=estimate, name="this report")
    return {
        "classes": list(names(estimate)), "n": n, "status": estimate.status.name.lower(), "ok": estimate.status.ok,
        "message": estimate.status.value, "level": level, "note": interval.note, "verdict": verdicts(estimate.checks),
        "shift_p": found.shift_p, "label_shift_p": found.label_shift_p, "source_made": source.made,
        "source_prior": source.prior, "prior": prior, "lower": interval.lower, "upper": interval.upper,
        "weights": estimate.weights, "distance": float(np.abs(prior - source.prior).sum() / 2),
        "predictions": {
            "before": moved.before, "after": moved.after, "changed": moved.changed,
            "confidence": moved.confidence / n, "corrected_confidence": moved.corrected_confidence / n,
        },
        "diagnosis": [{"text": said.text, "ok": said.good} for said in sentences(found)], "made": made,
        "agreement": [
            {"method": row.method, "skipped": row.skipped} if row.estimate is None else
            {"method": row.method, "prior": row.prior, "distance": row.distance, "seconds": row.seconds,
             "log_likelihood": row.estimate.log_likelihood / row.estimate.n}
            for row in compared
        ],
    }  # fmt: skip
