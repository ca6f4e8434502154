"""The picture of `reprior demo`: accuracy per data set, true and estimated class prior (needs matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

TRUE, ESTIMATE, COUNTED, SOURCE = "#c9ced6", "#0b6e99", "#d1495b", "#444444"


def channels_picture(
    path: Path, *, channels: dict[str, dict[str, float]], shares: dict[str, dict[str, float]], of: str, title: str
) -> None:
    """Draw the accuracy of each data set before and after, and the class prior of the data set `of`."""
    figure = Figure(figsize=(11, 4.8), layout="constrained")
    left: Any
    right: Any
    left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
    order = sorted(channels, key=lambda name: channels[name]["after"] - channels[name]["before"])
    for at, name in enumerate(order):
        keys = ("before", "calibrated", "after", "true prior")
        before, calibrated, after, best = (100 * channels[name][key] for key in keys)
        left.plot([before, after], [at, at], color=ESTIMATE, lw=2.5, alpha=0.35, solid_capstyle="butt")
        left.plot(best, at, "|", ms=11, mew=1.6, color=SOURCE, label="with the true prior" if at == 0 else None)
        left.plot(calibrated, at, "o", ms=4, color=SOURCE, label="calibrated only" if at == 0 else None)
        left.plot(before, at, "o", ms=7, color=COUNTED, label="uncorrected" if at == 0 else None)
        left.plot(after, at, "o", ms=7, color=ESTIMATE, label="corrected, no labels" if at == 0 else None)
        left.text(101, at, f"{after - before:+.0f}", va="center", fontsize=9)
    left.set(yticks=range(len(order)), yticklabels=order, xlabel="accuracy, %", xlim=(30, 100))
    left.text(101, len(order) - 0.3, "gain", fontsize=8, va="center", color=SOURCE)
    left.set_ylim(-0.7, len(order) + 0.1)
    left.legend(loc="lower left", bbox_to_anchor=(0, 0.02), framealpha=0.95, edgecolor="none", fontsize=9)
    left.grid(axis="x", alpha=0.25)
    left.tick_params(axis="y", length=0)
    left.set_title(title, loc="left", fontweight="bold")

    names = list(next(iter(shares.values())))
    for offset, (label, color) in enumerate((("true", TRUE), ("predicted classes", COUNTED), ("estimated", ESTIMATE))):
        values = [100 * shares[label][name] for name in names]
        right.barh(np.arange(len(names)) + 0.27 * (offset - 1), values, height=0.25, color=color, label=label)
    right.set(yticks=range(len(names)), yticklabels=names, xlabel="share of the texts, %")
    right.invert_yaxis()
    right.tick_params(axis="y", length=0)
    right.legend(loc="lower right", framealpha=0.95, edgecolor="none", fontsize=9)
    right.set_title(f"Why: the class prior of {of}", loc="left", fontsize=10)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
