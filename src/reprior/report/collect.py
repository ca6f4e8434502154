"""What a report says, as plain values: gathered once, shown as HTML or JSON."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from reprior._check import InputError
from reprior._types import Labels, Matrix, PriorEstimate, Source, Vector
from reprior.assess.diagnose import diagnose
from reprior.assess.metrics import kl
from reprior.batch.registry import METHODS
from reprior.rows.blocks import Blocks

CAUTION = ("do NOT", "cannot be told", "Hard to tell", "nearly singular", "calibrate it first")  # in a diagnosis


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


def predictions(target: Blocks, weights: Vector) -> Predictions:
    """Return what correcting with `weights` (K,) does to the predicted classes: one pass."""
    k = len(weights)

    def of_block(block: Matrix) -> Predictions:
        scaled = block * weights
        scaled /= scaled.sum(axis=1, keepdims=True)
        before, after = block.argmax(axis=1), scaled.argmax(axis=1)
        return Predictions(
            np.bincount(before, minlength=k), np.bincount(after, minlength=k), int((before != after).sum()),
            float(block.max(axis=1).sum(dtype=np.float64)), float(scaled.max(axis=1).sum()),
        )  # fmt: skip

    return target.map_sum(of_block)


def agreement(
    source: Source, target: Blocks, first: dict[str, Callable[[], PriorEstimate]], *, true: Any = None
) -> list[dict[str, Any]]:
    """Return the `first` estimate and every method's, how far it is from the first, and from the truth if known."""
    found: list[dict[str, Any]] = []
    named = sorted(METHODS.items(), key=lambda item: item[0] != "ebls")
    runs: dict[str, Callable[[], PriorEstimate]] = {name: partial(run, source, target) for name, run in named}
    for name, run in (first | runs).items():
        start = time.perf_counter()
        try:
            estimate = run()
        except InputError:
            if source.confusion is not None:
                raise
            found.append({"method": name, "skipped": "needs held-out rows with labels"})
            continue
        row: dict[str, Any] = {
            "method": name, "prior": estimate.prior, "status": estimate.status.name.lower(),
            "log_likelihood": estimate.log_likelihood / estimate.n, "seconds": time.perf_counter() - start,
        }  # fmt: skip
        row["distance"] = float(np.abs(estimate.prior - (found[0]["prior"] if found else estimate.prior)).sum() / 2)
        found.append(row | ({} if true is None else {"kl": kl(true, estimate.prior)}))
    return found


def collect(
    estimate: PriorEstimate, target: Blocks, classes: Sequence[str], *, method: str, level: float, made: dict[str, Any]
) -> dict[str, Any]:
    """Return the whole content of a report on an estimate; `made` says how it came about."""
    source, prior = estimate.source, estimate.prior
    interval = estimate.interval(level)
    moved = predictions(target, estimate.weights)
    n = float(estimate.n)
    return {
        "classes": list(classes), "n": n, "method": method, "status": estimate.status.name.lower(),
        "ok": estimate.status.ok, "message": estimate.status.value, "level": level, "note": interval.note,
        "source_prior": source.prior, "prior": prior, "lower": interval.lower, "upper": interval.upper,
        "weights": estimate.weights, "distance": float(np.abs(prior - source.prior).sum() / 2),
        "predictions": {
            "before": moved.before, "after": moved.after, "changed": moved.changed,
            "confidence": moved.confidence / n, "corrected_confidence": moved.corrected_confidence / n,
        },
        "diagnosis": diagnosis(estimate, target), "made": made,
        "agreement": agreement(source, target, {"this report": lambda: estimate}),
    }  # fmt: skip


def diagnosis(estimate: PriorEstimate, target: Blocks) -> list[dict[str, Any]]:
    """Return what the diagnosis says, sentence by sentence, and whether each is good news."""
    said = in_files(str(diagnose(estimate.source, target, estimate=estimate))).split("\n")
    return [{"text": text, "ok": not any(sign in text for sign in CAUTION)} for text in said]


def in_files(text: str) -> str:
    """Return advice on functions as advice on files, and a p-value too small for a float as what it is."""
    text = text.replace("(p = 0)", "(p < 1e-300)")
    return text.replace("make the source with `summarize`", "give held-out predictions with labels as the source")
