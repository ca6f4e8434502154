"""An estimate as people look at it: a short table, a data frame, a picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from reprior._check import NOTED, REJECTED, counted, listed, told_p
from reprior._types import Checks, Interval, PriorEstimate, Source, Status, Vector
from reprior.online.stream import Stream
from reprior.pipelines.fit import FEW
from reprior.rows.blocks import ArrayBlocks, TopKBlocks
from reprior.rows.correction import STRETCHED, TRAINED, stretched
from reprior.rows.labelled import LabelledBlocks

# held-out rows: with 50 for 26 simulated classes a large shift went unnoticed in a third to a half of draws, with 100
# in a quarter to none, with 300 in none
FEW_A_CLASS, FEW_IN_ALL = 5, 300
SHOWN = 10  # classes in a repr
NAMED = 5  # classes that a sentence names
CHEAP = 1 << 24  # numbers in the rows, up to which a repr may look at them once more for its intervals


def movers(estimate: PriorEstimate | Stream) -> list[int]:
    """Return the classes, those whose share moved most first; equal ones in their own order."""
    moved = np.abs(estimate.prior - estimate.source.prior).round(12)  # what two classes exchange is equal
    return [int(k) for k in np.argsort(-moved, kind="stable")]


def share(x: float | None) -> str:
    """Return a share in percent, as many digits as it deserves and never an exponent; — if it is not known."""
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
    """Return the sentences that must come first: whether the held-out labels fit, whether the method applies, whether
    anything has shifted, whether held-out rows are few, and of which classes there is none."""
    return ([] if estimate.checks is None else judged(estimate.checks)) + few(estimate.source) + unseen(estimate.source)


def few(source: Source) -> list[str]:
    """Return a sentence about how few held-out rows there are, if they hardly tell anything, or may miss a shift."""
    held, k = 0 if source.counts is None else int(source.counts.sum()), len(source.prior)
    if FEW <= held < min(FEW_A_CLASS * k, FEW_IN_ALL):
        return [f"There are only {held} held-out rows for {k:,} classes, so a large shift may go unnoticed. Give ten a"
                " class if you can."]  # fmt: skip
    if not 0 < held < FEW:
        return []
    there = "is only 1 held-out row, which tells" if held == 1 else f"are only {held} held-out rows, which tell"
    return [f"There {there} little about the classifier. Give a few hundred if you can."]


def unseen(source: Source) -> list[str]:
    """Return a sentence about the classes that no held-out row has, if there are any."""
    lone = [] if source.counts is None else np.flatnonzero(source.counts == 0).tolist()
    if not lone:
        return []
    names = source.called
    if len(lone) == 1:
        return [f"Class {cut(names[lone[0]])} has no held-out row. Its share rests on the outputs alone."]
    some = listed([cut(names[k]) for k in lone], NAMED)
    return [f"{len(lone)} of {len(source.prior)} classes have no held-out row ({some}). Their shares rest on the"
            " outputs alone."]  # fmt: skip


def judged(checks: Checks) -> list[str]:
    """Return what the tests of a pipeline found, in sentences."""
    said = [line for line in (checks.doubt, checks.contradiction) if line]
    if checks.label_shift_p is not None and checks.label_shift_p < NOTED:
        how = "clearly differ" if checks.label_shift_p < REJECTED else "may differ"
        said.append(
            f"The rows {how} from the held-out rows by more than their class mix "
            f"({told_p(checks.label_shift_p)}). "
            + (checks.borne_out or "Check the data before you use the estimate." + TRAINED * checks.trained)
        )
    elif checks.label_shift_p is None and checks.shift_p < NOTED:
        said.append(f"The mean output differs from the source prior ({told_p(checks.shift_p)}). Either the class mix"
                    " has shifted, or the outputs never had that mean, as after class weights. Held-out rows would"
                    " show which.")  # fmt: skip
    else:
        shifted = "has shifted" if checks.shift_p < REJECTED else "may have shifted"
        found = "No shift found" if checks.shift_p >= NOTED else f"The class mix {shifted}"
        said.append(f"{found} ({told_p(checks.shift_p)}).")
    said += [stretched(checks.stretch)] * (checks.stretch >= STRETCHED)
    return said


def estimate_text(estimate: PriorEstimate, *, level: float | None = 0.95, top: int = SHOWN, head: str = "") -> str:
    """Return an estimate as a short table of the largest movers; `top` 0 lists all classes."""
    target = estimate.target.raw if isinstance(estimate.target, LabelledBlocks) else estimate.target
    stored = target.array.size if isinstance(target, ArrayBlocks) else CHEAP + 1
    stored = len(target.values) * target.n_classes if isinstance(target, TopKBlocks) else stored
    cheap = estimate.spread is not None or stored <= CHEAP
    interval = estimate.interval(level) if level is not None and (cheap or head) else None
    lines = [
        head
        or f"Estimate of {len(estimate.prior)} class shares from {counted(estimate.n, 'row')}"
        + (f", {estimate.n_labels:,} of them with a label" if estimate.n_labels else "")
    ]
    lines += [*verdicts(estimate), "", *table(estimate, interval, top)]
    return ended(lines, estimate.status, interval.note if interval is not None else "")


def ended(lines: list[str], status: Status, *after: str) -> str:
    """Return lines of text, and below them what there is to add: of a normal end nothing."""
    more = [line for line in ("" if status.normal else status.value, *after) if line]
    return "\n".join([*lines, *([""] if more else []), *more])


def stream_text(stream: Stream) -> str:
    """Return a stream as a short table of the largest movers so far."""
    interval = stream.interval()
    head = f"Stream of {counted(stream.n, 'sample')}, method {stream.method.name}"
    return ended([head, *unseen(stream.source), "", *table(stream, interval, SHOWN)], Status.CONVERGED, interval.note)


def table(estimate: PriorEstimate | Stream, interval: Interval | None, top: int) -> list[str]:
    """Return the lines of the table."""
    called, order, prior = estimate.source.called, movers(estimate), estimate.prior
    shown = order[: top or None]
    band = [f"{100 * interval.level:g} % interval"] if interval is not None else []
    rows = [["class", "source", "target", *band, "change"]]
    for k in shown:
        before, after = float(estimate.source.prior[k]), float(prior[k])
        ends = [f"{share(interval.lower[k])} … {share(interval.upper[k])}"] if interval is not None else []
        rows.append([cut(called[k]), share(before), share(after), *ends, times(before, after)])
    first, *others = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = [
        "  ".join([f"{name:<{first}}", *(f"{cell:>{width}}" for cell, width in zip(cells, others, strict=True))])
        for name, *cells in rows
    ]
    if rest := len(order) - len(shown):
        lines.append(f"… and {counted(rest, 'class', 'classes')} that moved less")
    return lines


def estimate_frame(estimate: PriorEstimate | Stream, level: float | None = 0.95) -> Any:
    """Return an estimate, or a stream's, as a pandas DataFrame, one row a class in the classes' order."""
    pd, columns = pandas(), {"source": estimate.source.prior, "target": estimate.prior, "weight": estimate.weights}
    if level is not None:
        interval = estimate.interval(level)
        columns |= {"lower": interval.lower, "upper": interval.upper}
    return pd.DataFrame(columns, index=pd.Index(estimate.source.called, name="class"))


def pandas() -> Any:
    """Return pandas, or say how to get it."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("A data frame needs pandas: pip install pandas") from error
    return pd


def estimate_plot(estimate: PriorEstimate, *, top: int = 20, ax: Any = None) -> Any:
    """Draw source and target share of the largest movers, with intervals; return the matplotlib axes."""
    order, called, interval = movers(estimate)[: top or None], estimate.source.called, estimate.interval()
    return drawn(
        [called[k] for k in order], estimate.source.prior[order], estimate.prior[order],
        Interval(interval.lower[order], interval.upper[order], level=interval.level, note=interval.note), ax,
        [*verdicts(estimate), "Classes sorted by how far the share moved"],
    )  # fmt: skip


def drawn(
    called: Sequence[str], source: Vector, target: Vector, interval: Interval, ax: Any, title: Sequence[str]
) -> Any:
    """Draw shares with their intervals below each other, each with what it is called; return the matplotlib axes."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("A picture needs matplotlib: pip install matplotlib") from error
    size = pyplot.rcParams["font.size"] / 10  # some libraries set large letters for everybody
    shape = 9 * size, (2 + 0.28 * len(called)) * size
    axes = pyplot.subplots(figsize=shape, layout="constrained")[1] if ax is None else ax
    y, (low, high) = np.arange(len(called))[::-1], interval
    axes.hlines(y, 100 * low, 100 * high, color="#bfe0ee", lw=7, label=f"{100 * interval.level:g} % interval")
    axes.plot(100 * target, y, "o", color="#0b6e99", label="target")
    axes.plot(100 * source, y, "o", mfc="none", mec="#333333", label="source")  # hollow, above: both show if they meet
    axes.set(yticks=y, yticklabels=[cut(name).replace("$", r"\$") for name in called], xlabel="share of the rows, %")
    axes.set_title("\n".join(title).replace("$", r"\$"), loc="left", fontsize=9, wrap=True)
    axes.set_xlim(left=0)
    axes.set_ylim(-0.6, len(called) - 0.4)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return axes
