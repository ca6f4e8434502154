"""The pictures of `reprior demo`: accuracy per data set, true and estimated class prior (needs matplotlib)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from reprior._types import Source, Vector
from reprior.simulate import Sample

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


def shift_picture(
    path: Path, *, source: Source, target: Sample, priors: dict[str, Vector], errors: dict[str, float], shown: str,
    title: str,
) -> None:  # fmt: skip
    """Draw the true shares, the shares of predicted classes, and the estimate `shown`, class by class."""
    order = np.argsort(-target.prior, kind="stable")
    k, n = len(order), len(target.y)
    counted = np.bincount(target.proba.argmax(axis=1), minlength=k) / n
    figure = Figure(figsize=(12, 7.2), layout="constrained")
    grid = figure.add_gridspec(2, 3, height_ratios=(1.35, 1), width_ratios=(1.25, 1, 1))
    top: Any = figure.add_subplot(grid[0, :])
    x = np.arange(k)
    top.bar(x, target.prior[order] * 100, width=0.9, color=TRUE, label="true share")
    top.step(x, source.prior[order] * 100, where="mid", color=SOURCE, lw=0.8, alpha=0.7, label="source share")
    top.plot(x, counted[order] * 100, "x", ms=5, color=COUNTED, label="counting predictions")
    top.plot(x, priors[shown][order] * 100, "o", ms=5, color=ESTIMATE, label=f"estimated without labels ({shown})")
    top.set(ylabel="share of the samples, %", xlim=(-0.8, k - 0.2), xticks=[])
    top.set_xlabel(f"{k} classes, most frequent first")
    top.set_ylim(top=1.12 * top.get_ylim()[1])  # room for the legend in one row above all marks
    top.legend(loc="upper right", ncol=4, framealpha=0.9, edgecolor="none")
    top.set_title(f"{title}: the estimate is close to the true prior of {n} samples", loc="left", fontweight="bold")

    bars: Any = figure.add_subplot(grid[1, 0])
    error_bars(bars, errors, shown)
    bars.set_title("KL(true prior ‖ estimated prior): shorter is better", loc="left", fontsize=10)

    pair = (("counting predictions", counted, COUNTED), (f"estimated ({shown})", priors[shown], ESTIMATE))
    low = 0.5 / n
    values = np.concatenate([target.prior, counted, priors[shown]])
    ends = (60 * max(low, values.min()), 160 * values.max())
    for column, (label, prior, color) in enumerate(pair, 1):
        panel: Any = figure.add_subplot(grid[1, column])
        panel.plot(ends, ends, color=SOURCE, lw=0.8)
        panel.plot(100 * np.maximum(target.prior, low), 100 * np.maximum(prior, low), "o", ms=4, alpha=0.7, color=color)
        panel.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="true share, %")
        for axis in (panel.xaxis, panel.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:g}")
            axis.set_minor_locator(NullLocator())
        panel.set_title(f"{label}: one dot per class", loc="left", fontsize=10)
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)


def error_bars(bars: Any, errors: dict[str, float], shown: str) -> None:
    """Draw a bar for each error, the largest at the bottom; an infinite one is open-ended."""
    names = sorted(errors, key=lambda name: -errors[name])
    end = 1.3 * max((value for value in errors.values() if np.isfinite(value)), default=1.0)
    bars.set_xlim(0, end)
    for i, method in enumerate(names):
        color = ESTIMATE if method == shown else TRUE
        if np.isfinite(errors[method]):
            bars.barh(method, errors[method], color=color)
            bars.text(errors[method], i, f" {errors[method]:.3f}", va="center", fontsize=9)
        else:  # it rules out a class that occurs; no length says that, so the bar leaves the picture
            bars.barh(method, 2 * end, color="white", edgecolor=color, hatch="///")
            bars.text(end, i, " ∞", va="center", fontsize=13)
