"""One look for every picture of the experiments: colours that differ in lightness, lines named at their ends."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

plt.rcParams.update(
    {
        "font.size": 9,
        "axes.titlesize": 9.5,
        "axes.titlelocation": "left",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "figure.dpi": 130,
        "legend.frameon": False,
        "legend.fontsize": 8,
        "figure.constrained_layout.use": True,
        "lines.linewidth": 1.6,
    }
)
BLACK, ORANGE, BLUE, GREEN, RED, PINK, GREY = (
    "#222222",
    "#e69f00",
    "#0072b2",
    "#009e73",
    "#d55e00",
    "#cc79a7",
    "#999999",
)
SERIES = (BLACK, BLUE, RED, ORANGE, GREEN, PINK, GREY)
METHODS = {
    "MAPLS": GREY,
    "FMAPLS": BLUE,
    "online-FMAPLS": "#56b4e9",
    "EBLS": RED,
    "online-EBLS": ORANGE,
    "default pipeline": BLACK,
}  # one colour a method, in every picture


def label_ends(ax: Axes, labels: Iterable[tuple[float, float, str, str]], *, size: float = 7.5) -> None:
    """Write (x, y, text, colour) right of the ends of lines, moved apart where they would overlap."""
    items = sorted(labels, key=lambda item: item[1])
    log = ax.get_yscale() == "log"
    low, high = (np.log10(v) if log else v for v in ax.get_ylim())
    gap = (high - low) * 1.25 * size / 72 / (ax.figure.get_size_inches()[1] * 0.75)
    places: list[float] = []
    for _, y, _, _ in items:
        want = np.log10(y) if log else y
        places.append(max(want, places[-1] + gap) if places else want)
    over = max(0.0, places[-1] - high) if places else 0.0
    for (x, _, text, colour), place in zip(items, places, strict=True):
        y = 10 ** (place - over) if log else place - over
        ax.annotate(
            text,
            (x, y),
            xytext=(4, 0),
            textcoords="offset points",
            color=colour,
            fontsize=size,
            va="center",
            annotation_clip=False,
        )


def heat(
    ax: Axes,
    values: Sequence[Sequence[float]],
    x: Sequence[float],
    y: Sequence[float],
    *,
    low: float,
    high: float,
    text: str = "{:.2f}",
) -> None:
    """Draw a table of positive numbers as colours on a log scale, each cell with its number."""
    grid = np.asarray(values, float)
    ax.imshow(np.log(np.clip(grid, low, high)), cmap="cividis_r", vmin=np.log(low), vmax=np.log(high), aspect="auto")
    for (i, j), v in np.ndenumerate(grid):
        shown = text.format(v) if v < 10 else f"{v:.0f}"
        dark = np.log(np.clip(v, low, high)) > 0.5 * (np.log(low) + np.log(high))
        ax.text(j, i, shown, ha="center", va="center", fontsize=6.5, color="white" if dark else "black")
    ax.set_xticks(range(len(x)), [f"{v:g}" for v in x], fontsize=7)
    ax.set_yticks(range(len(y)), [f"{v:g}" for v in y], fontsize=7)
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)


def save(figure: Figure, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)
