"""An estimate as people look at it: a short table, a data frame, a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

from reprior._types import Checks, Interval, PriorEstimate
from reprior.assess.diagnose import told_p
from reprior.rows.blocks import ArrayBlocks, TopKBlocks

SHOWN = 10  # classes in a repr
CHEAP = 1 << 24  # numbers in the rows, up to which a repr may look at them once more for its intervals
ALPHA = 0.05


def names(estimate: PriorEstimate) -> tuple[str, ...]:
    """Return what to call the classes: their names, or their column indices."""
    return estimate.classes or tuple(str(k) for k in range(len(estimate.prior)))


def movers(estimate: PriorEstimate) -> list[int]:
    """Return the classes, those whose share moved most first; equal ones in their own order."""
    return [int(k) for k in np.argsort(-np.abs(estimate.prior - estimate.source.prior), kind="stable")]


def share(x: float) -> str:
    """Return a share in percent, as many digits as it deserves."""
    return f"{100 * x:.1f} %" if x >= 0.01 or x == 0 else f"{100 * x:.2f} %" if x >= 1e-4 else "< 0.01 %"


def verdicts(checks: Checks | None) -> list[str]:
    """Return the sentences that must come first: whether the method applies, and whether anything has shifted."""
    if checks is None:
        return []
    said = []
    if checks.label_shift_p is not None and checks.label_shift_p < ALPHA:
        how = "clearly differ" if checks.label_shift_p < 1e-3 else "may differ"
        said.append(f"The rows {how} from the held-out rows by more than their class mix "
                    f"({told_p(checks.label_shift_p)}). Check the data before you use the estimate.")  # fmt: skip
    elif checks.shift_p >= ALPHA:
        said.append(f"No shift found ({told_p(checks.shift_p)}).")
    return said


def estimate_text(estimate: PriorEstimate, *, level: float | None = 0.95, top: int = SHOWN, head: str = "") -> str:
    """Return an estimate as a short table of the largest movers; `top` 0 lists all classes."""
    target = estimate.target
    stored = target.array.size if isinstance(target, ArrayBlocks) else CHEAP + 1
    stored = len(target.values) * target.n_classes if isinstance(target, TopKBlocks) else stored
    cheap = estimate.spread is not None or stored <= CHEAP
    interval = estimate.interval(level) if level is not None and (cheap or head) else None
    lines = [head or f"Estimate of {len(estimate.prior)} class shares from {estimate.n:,.0f} rows"]
    lines += [*verdicts(estimate.checks), "", *table(estimate, interval, top)]
    after = [estimate.status.value, interval.note if interval is not None else ""]
    after = [line for line in after if line]
    return "\n".join([*lines, *([""] if after else []), *after])


def table(estimate: PriorEstimate, interval: Interval | None, top: int) -> list[str]:
    """Return the lines of the table."""
    called, order = names(estimate), movers(estimate)
    shown = order[: top or None]
    width = max(5, *(len(called[k]) for k in shown))
    band = f"  {f'{100 * interval.level:g} % interval':>20}" if interval is not None else ""
    lines = [f"{'class':<{width}}  {'source':>8}  {'target':>8}{band}  change"]
    for k in shown:
        ends = f"{share(interval.lower[k])} … {share(interval.upper[k])}" if interval is not None else ""
        before, after = estimate.source.prior[k], estimate.prior[k]
        between = f"  {ends:>20}" if interval is not None else ""
        lines.append(f"{called[k]:<{width}}  {share(before):>8}  {share(after):>8}{between}  × {after / before:.2f}")
    if rest := len(order) - len(shown):
        lines.append(f"… and {rest} class{'es' * (rest > 1)} that moved less")
    return lines


def estimate_frame(estimate: PriorEstimate, level: float | None = 0.95) -> Any:
    """Return an estimate as a pandas DataFrame, one row a class in the classes' order."""
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("A data frame needs pandas: pip install pandas") from error
    columns = {"source": estimate.source.prior, "target": estimate.prior, "weight": estimate.weights}
    if level is not None:
        interval = estimate.interval(level)
        columns |= {"lower": interval.lower, "upper": interval.upper}
    return pd.DataFrame(columns, index=pd.Index(names(estimate), name="class"))


def estimate_plot(estimate: PriorEstimate, *, top: int = 20, ax: Any = None) -> Any:
    """Draw source and target share of the largest movers, with intervals; return the matplotlib axes."""
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("A picture needs matplotlib: pip install matplotlib") from error
    order = movers(estimate)[: top or None][::-1]
    axes = pyplot.subplots(figsize=(7, 1 + 0.28 * len(order)), layout="constrained")[1] if ax is None else ax
    y, called, interval = np.arange(len(order)), names(estimate), estimate.interval()
    prior, source = 100 * estimate.prior[order], 100 * estimate.source.prior[order]
    low, high = 100 * interval.lower[order], 100 * interval.upper[order]
    axes.hlines(y, low, high, color="#bfe0ee", lw=7, label="95 % interval")
    axes.plot(source, y, "o", mfc="white", mec="#555555", label="source")
    axes.plot(prior, y, "o", color="#0b6e99", label="target")
    axes.set(yticks=y, yticklabels=[called[k] for k in order], xlabel="share of the rows, %")
    axes.set_xlim(left=0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="best", frameon=False)
    return axes
