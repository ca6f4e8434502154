"""May an estimate be used? Refusals, warnings, and what to know about its intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reprior._check import counted, fail, p_text, warn
from reprior._types import Checks, Source

if TYPE_CHECKING:
    from reprior.estimates.estimate import PriorEstimate

ON_REJECT = ("scale", "refuse", "ignore")  # what happens if a change is probably not label shift
WEAK = 1.85  # amplification from which the shares are called sensitive to small errors
UNCLEAR = 0.2, 0.8  # probabilities between which it is unclear whether a change is label shift
MAX_LABELS = 10_000  # that are asked for; if more are needed, corrected and calibrated probabilities hardly differ
TRAINED = (
    " The classifier is right on nearly all held-out samples, and less sure on these samples. Were the held-out samples"
    " used for training?"
)


def mean_differs(p: float) -> str:
    """Return the sentence about a mean prediction that differs from the source prior, without held-out samples."""
    return (f"The mean prediction differs from the source prior ({p_text(p)}). Either the class prior has shifted, or"
            " the predictions imply another prior, as after class weights. Held-out samples would show"
            " which.")  # fmt: skip


def is_label_shift(share: float, by: str = "", who: str = "The data differ by more than their") -> str:
    """Return the sentence about the probability of label shift, `share`, which is known `by` labels perhaps."""
    low, high = UNCLEAR
    probability = "below 1%" if share < 0.005 else f"{share:.0%}"
    if low <= share <= high:
        return f"It is unclear whether the change is label shift (probability {probability}{by})."
    if share > high:
        return f"{'Consistent with' if by else 'No evidence against'} label shift (probability {probability}{by})."
    return f"{who} class prior (probability of label shift {probability}{by})."


def sensitive_shares(amplification: float, needed: int | None, unlabelled: float) -> str:
    """Return the sentence about an estimate that amplifies a small change of the mean prediction, with advice."""
    return (f"Sensitive to small errors: the estimated shares moved {amplification:.1f} times as far as the mean"
            f" prediction.{label_advice('Label {} to be sure.', needed, unlabelled)}")  # fmt: skip


def label_advice(advice: str, needed: int | None, unlabelled: float) -> str:
    """Return, after a space, the advice to label random samples; "" if earlier labels have settled it.

    `needed` is the number of labels, None if it is not known; `unlabelled` samples of the batch have no label yet.
    """
    if needed == 0:
        return ""
    if needed is not None and needed > unlabelled:
        return " Even labels of all samples might not decide."
    if needed is not None and needed >= MAX_LABELS:
        return f" Even {MAX_LABELS:,} labels might not decide."
    return " " + advice.format("some random samples" if needed is None else f"about {counted(needed, 'random sample')}")


def in_training(checks: Checks) -> str:
    """Return sentences, each after a space, on why new samples may differ from held-out ones; else ""."""
    return TRAINED * checks.heldout_in_training + checks.causes


def report_rejected(estimate: PriorEstimate, caller: str = "correct", name: str = "proba") -> None:
    """Warn, or refuse if `on_reject` is "refuse", if labels conflict or less than half of the correction is applied."""
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
    labels, unlabelled = checks.labels_needed, estimate.n - estimate.n_labels
    if refuse:
        advice = label_advice("Pass labels of {} as `labels`.", labels, unlabelled)
        fail(caller, name, "differ from the held-out samples in their class prior alone",
             f"a probability of label shift of {acts.share:.0%}",
             remedy=f"Check the data.{in_training(checks)}{advice} To {caller} anyway, estimate with"
                    " `on_reject='ignore'`")  # fmt: skip
    advice = label_advice("Pass labels of {} as `labels` to decide.", labels, unlabelled)
    warn(f"{acts.share:.0%} of the correction is applied. {acts.reason}{in_training(checks)} Calibration is applied in"
         f" full.{advice}")  # fmt: skip


def interval_notes(source: Source, n: float) -> list[str]:
    """Return what an interval from `n` samples includes, and which classes lack held-out samples."""
    k, notes = len(source.prior), []
    if source.heldout is None:
        notes.append("Optimistic: without held-out samples the classifier error is unknown.")
    else:
        missing = int((np.bincount(source.heldout[1], minlength=k) == 0).sum())
        whose = "class has no held-out sample. Its" if missing == 1 else "classes have no held-out sample. Their"
        notes.append("The interval includes the uncertainty about the classifier error.")
        notes += [f"{missing} {whose} classifier error is assumed to be average."] * bool(missing)
    return notes + [f"There are few samples: {n:.0f} for {k} classes."] * (n < k)
