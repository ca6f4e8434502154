"""An estimate as people look at it: a short table, a data frame, a picture."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, cast

import numpy as np

from reprior._check import NOTED, REJECTED, InputError, counted, listed, p_text
from reprior._types import Acts, Checks, Interval, Source, Status, Vector
from reprior.estimates.verdict import WEAK, in_training, is_label_shift, mean_differs, sensitive_shares
from reprior.rows.blocks import ArrayBlocks, Blocks, TopKBlocks
from reprior.rows.calibrated import FEW_FOR_BIASES
from reprior.rows.labelled import LabelledBlocks

if TYPE_CHECKING:
    from reprior.estimates.estimate import PriorEstimate
    from reprior.online.acting import ActsEvent
    from reprior.online.stream import Stream

# held-out rows: with 50 for 26 simulated classes a large shift went unnoticed in a third to a half of draws, with 100
# in a quarter to none, with 300 in none
FEW_A_CLASS, FEW_IN_ALL = 5, 300
SHOWN_CLASSES = 10  # classes of a table
MOVERS = 3  # classes in a repr, which has at most eight lines
NAMED_CLASSES = 5  # classes that a sentence names
CHEAP = 1 << 24  # numbers in the rows, up to which a repr may look at them once more for its intervals


def is_batch(estimate: PriorEstimate | Stream) -> TypeGuard[PriorEstimate]:
    """Return whether this is the estimate of certain samples: a stream has a prior and no shares."""
    return hasattr(estimate, "shares")


def shares_or_prior(estimate: PriorEstimate | Stream) -> Vector:
    """Return the class shares (K,) of an estimate's samples, or the prior (K,) that a stream has now."""
    return estimate.shares if is_batch(estimate) else estimate.prior


def movers(estimate: PriorEstimate | Stream) -> list[int]:
    """Return the classes, largest change of the share first, and equal changes in the order of the columns."""
    # rounded, because of two classes one loses exactly what the other gains
    moved = np.abs(shares_or_prior(estimate) - estimate.source.prior).round(12)
    return list(map(int, np.argsort(-moved, kind="stable")))


def share(x: float | None) -> str:
    """Return a share in percent, with more digits the smaller it is and never an exponent; — if it is not known."""
    if x is None or not math.isfinite(x):
        return "—"
    if 0.9995 <= x < 1:  # not all, though it would be rounded to that
        return "> 99.9 %"
    digits = next((d for low, d in ((1e-2, 1), (1e-3, 2), (1e-5, 3)) if x >= low), None)
    return f"{100 * x:.{digits}f} %" if digits else "< 0.001 %" if x > 0 else "0 %"


def times(before: float, after: float) -> str:
    """Return by which factor a share has changed."""
    ratio = after / before if before > 0 else math.inf
    digits = 0 if ratio >= 99.5 else 1 if ratio >= 9.95 else 2
    return "× > 9,999" if ratio >= 9999.5 else "× < 0.01" if 0 < ratio < 0.005 else f"× {ratio:,.{digits}f}"


def cut(name: str, size: int = 40) -> str:
    """Return a name in one line, and without its middle if it is long: names differ at either end."""
    line = "".join(char if char.isprintable() else "·" for char in name)  # a terminal obeys what is not
    return line if len(line) <= size else f"{line[: size // 2]}…{line[-(size - size // 2 - 1) :]}"


def verdicts(estimate: PriorEstimate) -> list[str]:
    """Return the sentences that must come first: about the tests, few held-out samples, and classes without any."""
    checks, unlabelled, source = estimate.checks, estimate.n - estimate.n_labels, estimate.source
    first = [] if checks is None else lines_of_checks(checks, unlabelled, estimate.acts)
    return first + few_heldout(source) + without_heldout(source)


def few_heldout(source: Source) -> list[str]:
    """Return a sentence about few held-out samples, if the classifier error is unknown or a shift may go unnoticed."""
    held, k = 0 if source.counts is None else int(source.counts.sum()), len(source.prior)
    if held == 0 or held >= max(FEW_FOR_BIASES, min(FEW_A_CLASS * k, FEW_IN_ALL)):
        return []
    if held >= FEW_FOR_BIASES:
        return [f"A large shift may go unnoticed: there are only {held} held-out samples for {k:,} classes. Hold out"
                " ten per class if you can."]  # fmt: skip
    return [f"The classifier's error is unknown: there {'is' if held == 1 else 'are'} only"
            f" {counted(held, 'held-out sample')}. Hold out 300 if you can."]  # fmt: skip


def without_heldout(source: Source, named: int = NAMED_CLASSES) -> list[str]:
    """Return a sentence about the classes without a held-out sample, if there are any; it names the first `named`."""
    lone = [] if source.counts is None else np.flatnonzero(source.counts == 0).tolist()
    if not lone:
        return []
    names = source.called
    if len(lone) == 1:
        return [f"Class {cut(names[lone[0]])} has no held-out sample. Its share depends on uncalibrated predictions."]
    some = listed([cut(names[k]) for k in lone], named)
    return [f"{len(lone)} of {len(source.prior)} classes have no held-out sample ({some}). Their shares depend"
            " on uncalibrated predictions."]  # fmt: skip


def applied(acts: Acts | ActsEvent) -> str:
    """Return how much of the correction is applied and why, in one line."""
    return f"{acts.share:.0%} of the correction is applied. {acts.reason}"


def stopped(acts: Acts | None) -> str:
    """Return the line of `applied` if the tests let less than half of the correction act, else ""."""
    return applied(acts) if acts is not None and acts.log_evidence is not None and acts.share < 0.5 else ""


def prior_log_likelihood(estimate: PriorEstimate) -> float | None:
    """Return the log-likelihood of the prior; None if less than half of the correction is applied.

    `prior` is then the mean prediction.
    """
    return None if stopped(estimate.acts) else float(estimate.log_likelihood)


def first_lines(head: str, sentences: Sequence[str], stopped: str) -> list[str]:
    """Return the lines above a table: those with the line `stopped`, then the `head`, then the other `sentences`."""
    first = [line for line in sentences if stopped and stopped in line]
    return [*first, head, *(line for line in sentences if line not in first)]


def lines_of_checks(checks: Checks, unlabelled: float, acts: Acts | None = None) -> list[str]:
    """Return what the tests of a pipeline found, in sentences; `unlabelled` samples have no label."""
    p, label_shift = checks.shift_p, checks.label_shift
    sentences = [line for line in (checks.label_mismatch, checks.labels_conflict) if line]
    if label_shift is not None and label_shift < 0.5:
        first = applied(acts) if acts else is_label_shift(label_shift)
        return [f"{first}{in_training(checks)}", *sentences]
    if p >= NOTED:
        result = f"No shift found ({p_text(p)})."
    elif label_shift is None:
        result = mean_differs(p)
    else:
        shifted = "have shifted" if p < REJECTED else "may have shifted"
        result = f"The predictions {shifted} ({p_text(p)}). Probability of label shift: {label_shift:.0%}."
    if checks.pooled:
        result = f"All groups together: {result[0].lower()}{result[1:]}"
    sentences.append(result)
    if acts is not None and acts.amplification >= WEAK and (label_shift is not None or p >= NOTED):
        sentences.append(sensitive_shares(acts.amplification, checks.labels_needed, unlabelled))
    return sentences


def aligned(rows: list[list[str]], left: Collection[int] = (0,)) -> list[str]:
    """Return the lines of a table: columns with these numbers are aligned on the left, the others on the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:{'<' if j in left else '>'}{width}}" for j, (cell, width) in
                      enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]  # fmt: skip


class Shown(NamedTuple):
    """What is shown of an estimate: sentences, a table whose first row names the columns, and more sentences."""

    before: list[str]
    rows: list[list[str]]
    after: list[str]

    @property
    def text(self) -> str:
        """The lines that a terminal shows."""
        return "\n".join([*self.before, "", *aligned(self.rows), *self.after])

    @property
    def html(self) -> str:
        """The elements that a notebook shows."""
        before, after = ([f"<p>{escape(line)}</p>" for line in some if line] for some in (self.before, self.after))
        tags = ("th", *["td"] * (len(self.rows) - 1))
        rows = ["".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in row)
                for tag, row in zip(tags, self.rows, strict=True)]  # fmt: skip
        return "\n".join([*before, f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>", *after])


def notes(estimate: PriorEstimate) -> list[str]:
    """Return all that there is to know about an estimate, in sentences: its tests, held-out samples and interval."""
    checks = [] if estimate.checks is None else lines_of_checks(estimate.checks, estimate.n - estimate.n_labels)
    heldout = few_heldout(estimate.source) + without_heldout(estimate.source, named=len(estimate.prior))
    note = known_interval(estimate, 0.95 if is_cheap(estimate) else None)[1]
    status = "" if estimate.status.normal else estimate.status.value
    lines = [*checks, *heldout, status, note]
    return [line for line in lines if line]


def brief(estimate: PriorEstimate) -> str:
    """Return an estimate in at most eight lines: the number of samples, two notes, and the classes that moved most."""
    shown = estimate_shown(estimate, top=MOVERS)
    status = [] if estimate.status.normal else [estimate.status.value]
    first = [*status, *shown.before[1:]][:2]
    more = "; more in `notes`" if len(notes(estimate)) > len(first) else ""
    rest = [line for line in shown.after if line.startswith("…")]
    return "\n".join([shown.before[0] + more, *first, Shown([], shown.rows, rest).text.removeprefix("\n")])


def estimate_shown(
    estimate: PriorEstimate, level: float | None = 0.95, top: int = SHOWN_CLASSES, head: str = ""
) -> Shown:
    """Return the largest movers; `top` 0 lists all. Without a `head` an interval that would take long is left out."""
    interval, note = known_interval(estimate, level if head or is_cheap(estimate) else None)
    labelled = f", {estimate.n_labels:,} of them with a label" if estimate.n_labels else ""
    head = head or f"Estimate of {len(estimate.prior)} class shares from {counted(estimate.n, 'sample')}{labelled}"
    rows, rest = table(estimate, interval, top)
    return Shown([head, *verdicts(estimate)], rows, [*rest, *endings(estimate.status, note)])


def known_interval(estimate: PriorEstimate | Stream, level: float | None) -> tuple[Interval | None, str]:
    """Return the interval and its note; if the method has none, None and a sentence about it; nothing without level."""
    if level is None:
        return None, ""
    try:
        interval = estimate.interval(level)
    except InputError as error:
        return None, f"No interval. {error}"
    return interval, interval.note


def is_cheap(estimate: PriorEstimate) -> bool:
    """Return whether its interval reads no samples again, or few."""
    target: Blocks | None = getattr(estimate.spread, "target", None)
    rows = target.raw if isinstance(target, LabelledBlocks) else target
    if isinstance(rows, TopKBlocks):
        return len(rows.values) * rows.n_classes <= CHEAP
    return rows is None or (isinstance(rows, ArrayBlocks) and rows.array.size <= CHEAP)


def endings(status: Status, *after: str) -> list[str]:
    """Return the lines below a table: an empty one, the status if it is not normal, and the sentences `after`."""
    more = [line for line in ("" if status.normal else status.value, *after) if line]
    return ["", *more] if more else []


def stream_shown(stream: Stream) -> Shown:
    """Return what is shown of a stream."""
    interval, note = known_interval(stream, 0.95)
    head = f"Stream of {counted(stream.n, 'sample')}, method {stream.method.name}"
    rows, rest = table(stream, interval, SHOWN_CLASSES)
    before = [head, applied(stream.acts), *without_heldout(stream.source)]
    return Shown(before, rows, [*rest, *endings(Status.CONVERGED, note)])


def table(estimate: PriorEstimate | Stream, interval: Interval | None, top: int) -> tuple[list[list[str]], list[str]]:
    """Return the rows of the table, and a line about the classes that it leaves out, if there are any."""
    source, order, now, of_samples = estimate.source, movers(estimate), shares_or_prior(estimate), is_batch(estimate)
    band = [f"{100 * interval.level:g} % interval"] if interval is not None else []
    rows = [["class", "source", "shares" if of_samples else "prior", *band, *["prior"] * of_samples, "change"]]
    for k in order[: top or None]:
        ends = [f"{share(interval.lower[k])} … {share(interval.upper[k])}"] if interval is not None else []
        population = [share(estimate.prior[k])] * of_samples
        change = times(source.prior[k], now[k])
        rows.append([cut(source.called[k]), share(source.prior[k]), share(now[k]), *ends, *population, change])
    rest = len(order) + 1 - len(rows)
    return rows, [f"… and {counted(rest, 'class', 'classes')} with smaller changes"] if rest else []


def pandas() -> Any:
    """Return pandas; an ImportError has the command that installs it."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("A data frame needs pandas: pip install pandas") from error
    return pd


class Displayed:
    """How an estimate or a stream looks, as text, in a notebook, as a data frame and as a picture."""

    __slots__ = ()

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names in the order of the columns; None if they are not known."""
        return cast("PriorEstimate | Stream", self).source.classes

    def to_frame(self, level: float | None = 0.95) -> Any:
        """Return a pandas DataFrame: one row per class, with source prior, target shares or prior, and interval.

        For a stream, the column `acts_share` has the share of the correction that is applied, and `frame.attrs["acts"]`
        the reason.

        Parameters
        ----------
        level : float or None
            Coverage probability of the intervals; None leaves them out.
        """
        estimate, pd = cast("PriorEstimate | Stream", self), pandas()
        columns = {"source": estimate.source.prior} | ({"shares": estimate.shares} if is_batch(estimate) else {})
        columns |= {"prior": estimate.prior, "weight": estimate.weights}
        if level is not None:
            columns |= zip(("lower", "upper"), estimate.interval(level), strict=True)
        frame = pd.DataFrame(columns, index=pd.Index(estimate.source.called, name="class"))
        if not is_batch(estimate) and estimate.acts is not None:
            frame["acts_share"], frame.attrs["acts"] = estimate.acts.share, applied(estimate.acts)
        return frame

    def plot(self, *, top: int = 20, ax: Any = None) -> Any:
        """Plot the classes whose share changed most, with intervals; return the matplotlib axes.

        Parameters
        ----------
        top : int
            Number of classes to show.
        ax : matplotlib axes, optional
            Axes to draw on; new ones by default.
        """
        estimate = cast("PriorEstimate | Stream", self)
        first = verdicts(estimate) if is_batch(estimate) else without_heldout(estimate.source)
        title = [*first, "Classes sorted by how far the share moved"]
        source, shown = estimate.source, movers(estimate)[: top or None]
        return drawn(shown, source.called, source.prior, shares_or_prior(estimate), estimate.interval(), ax, title)

    def __repr__(self) -> str:
        estimate = cast("PriorEstimate | Stream", self)
        return brief(estimate) if is_batch(estimate) else stream_shown(cast("Stream", self)).text

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        estimate = cast("PriorEstimate | Stream", self)
        return (estimate_shown(estimate) if is_batch(estimate) else stream_shown(cast("Stream", self))).html


def drawn(
    order: Any, called: Sequence[str], source: Vector, target: Vector, interval: Interval, ax: Any, title: Sequence[str]
) -> Any:
    """Draw shares with their intervals below each other, in this order, with names; return the matplotlib axes."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("A picture needs matplotlib: pip install matplotlib") from error
    size = pyplot.rcParams["font.size"] / 10  # some libraries set large letters for everybody
    shape = 9 * size, (2 + 0.28 * len(order)) * size
    axes = pyplot.subplots(figsize=shape, layout="constrained")[1] if ax is None else ax
    y, names = np.arange(len(order))[::-1], [cut(called[k]).replace("$", r"\$") for k in order]
    low, high, target, source = (100 * x[order] for x in (*interval, target, source))
    axes.hlines(y, low, high, color="#bfe0ee", lw=7, label=f"{100 * interval.level:g} % interval")
    axes.plot(target, y, "o", color="#0b6e99", label="target")
    axes.plot(source, y, "o", mfc="none", mec="#333333", label="source")  # hollow, above: both show if they meet
    axes.set(yticks=y, yticklabels=names, xlabel="share of the samples, %")
    axes.set_title("\n".join(title).replace("$", r"\$"), loc="left", fontsize=9, wrap=True)
    axes.set_xlim(left=0)
    axes.set_ylim(-0.6, len(order) - 0.4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return axes
