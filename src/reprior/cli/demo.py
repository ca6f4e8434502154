"""`reprior demo`: a real classifier, shifted class priors, one table and one picture."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import numpy as np

import reprior as rp
from reprior.cli._shell import Answer, print_answer
from reprior.datasets import load

NO_PICTURE = "none without matplotlib; in the folder of reprior's source: pip install '.[plot]'"
TYPICAL = "Netherlands"  # the picture shows its prior: among the 13 of a region, its error is near the middle
TRUE, ESTIMATE, COUNTED, SOURCE = "#c9ced6", "#0b6e99", "#d1495b", "#444444"
LANGUAGES = {"nl": "Dutch", "de": "German", "fr": "French", "af": "Afrikaans", "en": "English"}
PICTURES = (".png", ".svg", ".pdf")


@click.command("demo")
@click.option("-o", "--output", default="demo.png", show_default=True, type=click.Path(path_type=Path),
              help="Picture file.")  # fmt: skip
@print_answer
def command(output: Path) -> Answer:
    """Correct a real classifier under label shift, and draw the result.

    The classifier is fastText's language identifier, on short texts of fifteen data sets with class priors of their
    own.

    \b
    Example:  reprior demo
    """
    if output.suffix.lower() not in PICTURES:
        raise click.UsageError(f"-o must end in one of {', '.join(PICTURES)}.")
    data = load("lid176")
    start = time.perf_counter()
    pipe = rp.pipeline(data.heldout_proba, data.heldout_y, classes=data.classes)
    accuracy = rp.metrics.accuracy
    table: dict[str, dict[str, float]] = {}
    shares: dict[str, dict[str, float]] = {}
    for name, rows in data.channels.items():
        proba, y = data.pool_proba[rows], data.pool_y[rows]
        true = np.bincount(y, minlength=len(data.classes)) / len(y)
        est = pipe.estimate(proba)
        table[name] = {
            "rows": len(y), "before": accuracy(proba, y), "calibrated": accuracy(pipe.calibrate(proba), y),
            "after": accuracy(est.correct(proba), y), "true prior": accuracy(pipe.correct(proba, true), y),
            "refused": est.acts is not None and est.acts.share < 0.5,
        }  # fmt: skip
        if name == TYPICAL:
            counted = np.bincount(proba.argmax(axis=1), minlength=len(true)) / len(y)
            for label, prior in (("true", true), ("predicted classes", counted), ("estimated", est.prior)):
                named = {name: float(prior[data.classes.index(code)]) for code, name in LANGUAGES.items()}
                shares[label] = {**named, "171 others": max(0.0, 1 - sum(named.values()))}
    seconds = round(time.perf_counter() - start, 2)
    gain = max(row["after"] - row["before"] for row in table.values())
    title = f"Correction gains up to {100 * gain:.0f} points of accuracy"
    try:
        channels_picture(output, channels=table, shares=shares, of=TYPICAL, title=title)
        picture = str(output)
    except ImportError:
        picture = None
    value = {"data": data.name, "heldout_rows": len(data.heldout_y), "seconds": seconds, "channels": table,
             "picture": picture, "origin": data.origin}  # fmt: skip
    return Answer(value, _text(value, len(data.classes)))


def _text(value: dict[str, Any], n_classes: int) -> str:
    total = sum(row["rows"] for row in value["channels"].values())
    lines = [
        f"lid176: fastText's identifier of {n_classes} languages on {total} short texts in {len(value['channels'])}"
        f" data sets.\nCorrected with {value['heldout_rows']} held-out texts and no other labels, in"
        f" {value['seconds']:.1f} s. Accuracy:\n",
        f"{'data set':<12} {'texts':>8} {'raw':>9} {'calibrated':>11} {'corrected':>10} {'gain':>6} {'true prior':>11}",
    ]
    for name, row in value["channels"].items():
        keys = ("before", "calibrated", "after", "true prior")
        before, calibrated, after, best = (100 * row[key] for key in keys)
        star = " *" if row["refused"] else ""
        lines.append(f"{name:<12} {row['rows']:>8} {before:>7.1f} % {calibrated:>9.1f} % {after:>8.1f} %"
                     f" {after - before:>+6.1f} {best:>9.1f} %{star}")  # fmt: skip
    lines.append("All alike and History have hardly any shift: their gain comes from calibration.")
    if any(row["refused"] for row in value["channels"].values()):
        lines.append("* Not consistent with label shift. Corrected here nevertheless.")
    return "\n".join([*lines, "", f"Picture: {value['picture'] or NO_PICTURE}", value["origin"]])


def channels_picture(
    path: Path, *, channels: dict[str, dict[str, float]], shares: dict[str, dict[str, float]], of: str, title: str
) -> None:
    """Draw the accuracy of each data set before and after, and the class prior of the data set `of`."""
    from matplotlib.figure import Figure

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
