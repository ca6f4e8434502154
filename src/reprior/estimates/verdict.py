"""May an estimate be used? Refusals, warnings, and what to know about its intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from reprior._check import REJECTED, fail, p_text, warn
from reprior._types import Checks, Source, Vector

if TYPE_CHECKING:
    from reprior.estimates.estimate import PriorEstimate

AMPLIFIED = 1.85  # times as far as the mean output that shares have to move for a correction to warn
MANY_LABELS = 50  # from which on they tell a poor classifier from a change within the classes
MIN_MOVE = 0.03  # of the rows, that have to change their class for shares to have moved
TRAINED = (
    " The classifier is right on nearly all held-out samples, and less certain on these. Were the held-out samples used"
    " for training?"
)


def in_training(checks: Checks) -> str:
    """Return sentences, each after a space, on why new samples may differ from held-out ones: those may have been used
    for training, or a cause was found; else ""."""
    return TRAINED * checks.heldout_in_training + checks.causes


def refuse_rejected(
    estimate: PriorEstimate, *, anyway: bool = False, caller: str = "correct", name: str = "proba",
    how: str = "say `anyway=True`, or estimate with `on_reject='warn'`",
) -> None:  # fmt: skip
    """Refuse, or warn, as the estimate says, where its rows differ by more than their class mix."""
    checks = estimate.checks
    if checks is None or anyway or estimate.on_reject == "ignore":
        return
    if estimate.on_reject == "refuse":
        refuse_clear(checks, caller, name, how)
    elif checks.labels_conflict:
        warn(checks.labels_conflict)
    p = None if checks.labels_support else checks.label_shift_p
    if p is not None and p < REJECTED:
        warn(f"The rows differ from the held-out rows by more than their class mix ({p_text(p)})."
             f"{in_training(checks)} The correction may do harm.")  # fmt: skip
    elif checks.amplification >= AMPLIFIED:
        warn(amplified(checks.amplification))


def refuse_clear(checks: Checks, caller: str, name: str, how: str, labels: str = "labels") -> None:
    """Refuse rows that clearly differ by more than their class mix, or labels that contradict their outputs; `name` and
    `labels` are what the user calls them, and `how` says how to go on all the same."""
    if checks.labels_conflict:
        fail(caller, labels, "agree with the outputs", "a contradiction",
             remedy=f"{checks.labels_conflict} To {caller} all the same, {how}")  # fmt: skip
    p = checks.label_shift_p
    if p is not None and p < REJECTED and not checks.labels_support:
        fail(caller, name, "differ from the held-out rows in their class mix alone", p_text(p),
             remedy=f"Check the data.{in_training(checks)} Labels of these rows, {MANY_LABELS} or some hundreds,"
                    f" may show that the correction helps all the same. To {caller} without, {how}")  # fmt: skip


def amplification(moved: Vector, mean_moved: Vector) -> float:
    """Return how many times as far as the mean prediction the shares have `moved` (K,), at least 1.

    A classifier that tells classes apart poorly says by a small change of outputs that the shares have changed much. A
    small change within the classes looks the same, and then the correction does harm.
    """
    return float(max(np.abs(moved).sum() / max(np.abs(mean_moved).sum(), MIN_MOVE), 1.0))


def amplified(by: float) -> str:
    """Return the warning about shares that moved so many times as far as the mean output."""
    return (
        f"The shares moved {by:.1f} times as far as the mean output, so they rest on small changes of the"
        " outputs. If anything but the class mix has changed, correction makes predictions worse. Labels of"
        f" {MANY_LABELS} rows would show it."
    )


def interval_notes(source: Source, n: float, widened: str, *, has_target_classes: bool = True) -> list[str]:
    """Return what to know about an interval from `n` samples: what held-out samples added to it, if they have classes
    of the target, which classes they lack, and that target samples are few."""
    k, notes = len(source.prior), []
    if source.heldout is None:
        notes.append("Optimistic: without held-out samples the classifier error is unknown.")
    elif not has_target_classes:
        notes.append("Optimistic: no held-out sample has a class of the target.")
    else:
        missing = int((np.bincount(source.heldout[1], minlength=k) == 0).sum())
        whose = "class has no held-out sample. Its" if missing == 1 else "classes have no held-out sample. Their"
        notes += [widened] * bool(widened)
        notes += [f"{missing} {whose} classifier error is assumed to be average."] * bool(missing)
    return notes + [f"There are few samples: {n:.0f} for {k} classes."] * (n < k)
