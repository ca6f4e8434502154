"""May an estimate be used? Refusals, warnings, and what to know about its intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reprior._check import fail, p_text, warn
from reprior._types import Checks, Source

if TYPE_CHECKING:
    from reprior.estimates.estimate import PriorEstimate

WEAK = 1.85  # amplification from which the evidence of a shift is called weak
MANY_LABELS = 50  # labels of target samples that tell whether the correction helps
TRAINED = (
    " The classifier is right on nearly all held-out samples, and less sure on these samples. Were the held-out samples"
    " used for training?"
)


def mean_differs(p: float) -> str:
    """Return the sentence about a mean prediction that differs from the source prior, without held-out samples."""
    return (f"The mean prediction differs from the source prior ({p_text(p)}). Either the class prior has shifted, or"
            " the predictions imply another prior, as after class weights. Held-out samples would show"
            " which.")  # fmt: skip


def not_label_shift(share: float) -> str:
    """Return the sentence about samples that differ by more than their class prior."""
    return f"The data differ by more than their class prior (probability of label shift {share:.0%})."


def weak_evidence(amplification: float) -> str:
    """Return the sentence about an estimate that amplifies a small change of the mean prediction."""
    return (f"Weak evidence: the estimated shares moved {amplification:.1f} times as far as the mean prediction. Label"
            f" about {MANY_LABELS} samples to be sure.")  # fmt: skip


def in_training(checks: Checks) -> str:
    """Return sentences, each after a space, on why new samples may differ from held-out ones: those may have been used
    for training, or a cause was found; else ""."""
    return TRAINED * checks.heldout_in_training + checks.causes


def report_rejected(estimate: PriorEstimate, caller: str = "correct", name: str = "proba") -> None:
    """Warn, or refuse if the estimate says so, if most of the correction is not applied or if labels contradict the
    predictions. `name` is what the caller calls the samples."""
    checks, acts = estimate.checks, estimate.acts
    if checks is None or acts is None or estimate.on_reject == "ignore":
        return
    refuse = estimate.on_reject == "refuse"
    if checks.labels_conflict:
        if refuse:
            fail(caller, "labels", "agree with the predictions", "a contradiction",
                 remedy=f"{checks.labels_conflict} To {caller} anyway, estimate with `on_reject='scale'`")  # fmt: skip
        warn(checks.labels_conflict)
        return
    if acts.share >= 0.5:
        return
    if refuse:
        fail(caller, name, "differ from the held-out samples in their class prior alone",
             f"a probability of label shift of {acts.share:.0%}",
             remedy=f"Check the data.{in_training(checks)} Pass labels of {MANY_LABELS} samples as `labels`, or"
                    " estimate with `on_reject='scale'`")  # fmt: skip
    warn(f"{acts.share:.0%} of the correction is applied. {acts.reason}{in_training(checks)} Calibration is applied in"
         f" full. Pass labels of {MANY_LABELS} samples as `labels` to decide.")  # fmt: skip


def interval_notes(source: Source, n: float) -> list[str]:
    """Return what to know about an interval from `n` samples: what held-out samples added to it, which classes
    they lack, and that target samples are few."""
    k, notes = len(source.prior), []
    if source.heldout is None:
        notes.append("Optimistic: without held-out samples the classifier error is unknown.")
    else:
        missing = int((np.bincount(source.heldout[1], minlength=k) == 0).sum())
        whose = "class has no held-out sample. Its" if missing == 1 else "classes have no held-out sample. Their"
        notes.append("The interval includes the uncertainty about the classifier error.")
        notes += [f"{missing} {whose} classifier error is assumed to be average."] * bool(missing)
    return notes + [f"There are few samples: {n:.0f} for {k} classes."] * (n < k)
