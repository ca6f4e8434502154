"""What a report says, as plain values: gathered once, shown as HTML or JSON."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from reprior._types import Checks, Interval, Labels, Matrix, Status
from reprior.assess.compare import compare
from reprior.assess.diagnose import Diagnosis, diagnose
from reprior.assess.sentences import Sentence, sentences
from reprior.batch.registry import METHODS
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.groups import Groups
from reprior.estimates.show import cut, few_heldout, lines_of_checks, movers, share, stopped, verdicts, without_heldout
from reprior.rows.blocks import Blocks
from reprior.rows.correction import correct_rows


class Predictions(NamedTuple):
    """What an estimate does to the predicted classes of samples."""

    before: Labels  # (K,), how often each class is predicted by raw probabilities
    after: Labels
    changed: int  # samples whose predicted class changed
    by_calibration: int
    by_correction: int  # of what was calibrated
    confidence: float  # summed over samples
    corrected_confidence: float

    def __add__(self, other: Predictions) -> Predictions:  # type: ignore[override]
        pairs: Any = zip(self, other, strict=True)
        return Predictions(*(a + b for a, b in pairs))


def predictions(raw: Blocks, estimate: PriorEstimate) -> Predictions:
    """Return what an estimate does to the predicted classes of raw rows, as the classifier gave them: one pass."""
    k, weights, calibrator = len(estimate.prior), estimate.weights, estimate.calibrator

    def of_block(block: Matrix) -> Predictions:
        calibrated = block if calibrator is None else calibrator(block)
        scaled = correct_rows(calibrated, weights)
        before, between, after = (rows.argmax(axis=1) for rows in (block, calibrated, scaled))
        return Predictions(
            np.bincount(before, minlength=k), np.bincount(after, minlength=k), int((before != after).sum()),
            int((before != between).sum()), int((between != after).sum()),
            float(block.max(axis=1).sum(dtype=np.float64)), float(scaled.max(axis=1).sum(dtype=np.float64)),
        )  # fmt: skip

    return raw.map_sum(of_block)


HEADLINE_CLASSES = 3  # classes that a headline names


def headline(estimate: PriorEstimate, interval: Interval, diagnosis: Diagnosis) -> list[Sentence]:
    """Return the headline: the results of the tests, then the classes whose intervals exclude their source share."""
    rejected, shifted = diagnosis.applies is False, diagnosis.shift_p < diagnosis.alpha
    unknown = shifted and diagnosis.applies is None
    own = estimate.checks or Checks(1.0, None, None)
    tested = own._replace(shift_p=diagnosis.shift_p, label_shift=diagnosis.label_shift, label_mismatch="", pooled=False)
    sentences = [Sentence(own.label_mismatch, False)] * bool(own.label_mismatch)
    sentences += [
        Sentence(text, not rejected and not unknown and text != own.labels_conflict)
        for text in lines_of_checks(tested, estimate.n - estimate.n_labels, estimate.acts)
    ]
    sentences += [Sentence(text, False) for text in few_heldout(estimate.source) + without_heldout(estimate.source)]
    if rejected:
        sentences.append(Sentence(shares_shown(estimate), True))
    sentences.append(Sentence(moved_classes(estimate, interval, shifted=shifted, rejected=rejected), True))
    return sentences


def shares_shown(estimate: PriorEstimate) -> str:
    """Return which shares the report shows, although label shift is improbable."""
    if not stopped(estimate.acts):
        return "The rest of this report assumes label shift."
    if estimate.n_labels:
        return "The shares in this report are estimated with the labels."
    return "The shares in this report are the mean prediction."


def moved_classes(estimate: PriorEstimate, interval: Interval, *, shifted: bool, rejected: bool) -> str:
    """Return a sentence about the classes whose intervals exclude the source share, the largest movers by name."""
    source, shares, k = estimate.source.prior, estimate.shares, len(estimate.prior)
    called, level = estimate.source.called, f"{100 * interval.level:g} %"
    moved = [j for j in movers(estimate) if interval.lower[j] > source[j] or interval.upper[j] < source[j]]
    if not moved:
        so = " The samples do not show which classes moved." if shifted else ""
        return f"The {level} interval of every class includes its source share.{so}"
    whose = "s of {} of {:,} classes exclude their" if len(moved) > 1 else " of {} of {:,} classes excludes its"
    each = [f"{cut(called[j])} ({share(source[j])} → {share(shares[j])})" for j in moved[:HEADLINE_CLASSES]]
    more = f", and {len(moved) - HEADLINE_CLASSES:,} more" if len(moved) > HEADLINE_CLASSES else ""
    by_chance = "" if shifted or rejected else " With no shift some intervals do so by chance."
    return f"The {level} interval{whose.format(len(moved), k)} source share: {', '.join(each)}{more}.{by_chance}"


def ending(status: Status) -> list[Sentence]:
    """Return the sentence about how a method ended, if it has one."""
    return [Sentence(status.value, status.normal)] if status.value else []


def plainly(sentences: list[Sentence]) -> list[dict[str, Any]]:
    return [{"text": text, "ok": good} for text, good in sentences]


def collect(estimate: PriorEstimate, raw: Blocks, *, level: float, made: dict[str, Any]) -> dict[str, Any]:
    """Return the whole content of a report on an estimate of `raw` rows; `made` says how it came about."""
    source, shares, target = estimate.source, estimate.shares, estimate.target
    interval, diagnosis = estimate.interval(level), diagnose(source, target, estimate=estimate)
    moved, n = predictions(raw, estimate), float(estimate.n)
    # the method itself need not run again, unless its options were other than its own
    others = [method for method in METHODS if method != made["method"]]
    compared = compare(source, target, others, first=estimate, name=f"{made['method']} (this report)")
    return {
        "classes": list(source.called), "n": n, "status": estimate.status.name.lower(), "ok": estimate.status.ok,
        "message": estimate.status.value, "level": level, "note": interval.note,
        "headline": plainly(headline(estimate, interval, diagnosis)), "verdict": verdicts(estimate),
        "shift_p": diagnosis.shift_p, "label_shift": diagnosis.label_shift,
        "acts": estimate.acts and estimate.acts._asdict(), "source_made": source.made,
        "source_prior": source.prior, "shares": shares, "prior": estimate.prior,
        "lower": interval.lower, "upper": interval.upper,
        "weights": estimate.weights, "distance": float(np.abs(shares - source.prior).sum() / 2),
        "predictions": {
            "before": moved.before, "after": moved.after, "changed": moved.changed,
            "changed_by_calibration": moved.by_calibration, "changed_by_correction": moved.by_correction,
            "confidence": moved.confidence / n, "corrected_confidence": moved.corrected_confidence / n,
        },
        "diagnosis": plainly([*ending(estimate.status), *sentences(diagnosis)]), "made": made,
        "agreement": [
            {"method": row.method, "skipped": row.skipped} if row.estimate is None else
            {"method": row.method, "prior": row.estimate.shares, "distance": row.distance, "seconds": row.seconds,
             **({} if row.log_likelihood is None else {"log_likelihood": row.log_likelihood})}
            for row in compared
        ],
    }  # fmt: skip


def grouped(groups: Groups, by: str, level: float | None) -> dict[str, Any]:
    """Return the groups' estimates, to stand beside that of all rows; the column `by` names the groups."""
    interval, common = None if level is None else groups.interval(level), groups.population
    assert common is not None
    return {
        "by": by,
        "groups": [
            {"key": key, "n": groups.n[g], "shares": groups.shares[g], "prior": groups.prior[g],
             "shifted": groups.shifted[g], "converged": bool(groups.converged[g]),
             "interval": None if interval is None else list(zip(interval.lower[g], interval.upper[g], strict=True))}
            for g, key in enumerate(groups.keys)
        ],
        "population": {"prior": common.prior, "concentration": common.concentration,
                       "stand_out": list(common.stand_out), "text": str(common)},
        "groups_note": groups.note,
    }  # fmt: skip
