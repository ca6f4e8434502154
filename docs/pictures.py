"""Draw the pictures of the documentation, each for light and dark pages: `python docs/pictures.py [FOLDER]`.

Needs `pip install -e '.[docs]'`. Without FOLDER the pictures go to docs/img.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from scipy.stats import norm
from sklearn.datasets import make_classification
from sklearn.ensemble import HistGradientBoostingClassifier

import reprior as rp

GENUINE, FRAUD, FIXED = "#5b8db8", "#d1495b", "#2a9d63"
TITLE = {"fontweight": "bold", "fontsize": 13}
STYLES = {
    "light": {"text": "#222222", "muted": "#777777", "paper": "#ffffff"},
    "dark": {"text": "#e6e6e6", "muted": "#9aa0a6", "paper": "#1e2129"},
}


@dataclass(frozen=True)
class Fraud:
    """The fraud model of the tutorial: a pipeline, one month with 15 % fraud, and the estimate for it."""

    pipe: rp.Pipeline
    month: Any
    estimate: rp.PriorEstimate


def fraud() -> Fraud:
    """Return the example of docs/tutorial.md."""
    X, y = make_classification(40000, n_features=12, n_informative=6, weights=[0.97], flip_y=0.01, random_state=0)
    model = HistGradientBoostingClassifier(random_state=0).fit(X[:8000], y[:8000])
    proba = model.predict_proba(X)
    pipe = rp.pipeline(proba[8000:11000], y[8000:11000], classes=["genuine", "fraud"])
    month = rp.simulate.resample(proba[11000:], y[11000:], [0.85, 0.15], n=3000, rng=0)
    return Fraud(pipe, month, pipe.estimate(month.proba))


def two_bumps(ax: Any, share: float, title: str) -> None:
    """Draw how often each score occurs for genuine and fraudulent payments."""
    x = np.linspace(-4, 5, 400)
    genuine, bad = (1 - share) * norm.pdf(x, -0.5), share * norm.pdf(x, 2)
    ax.fill_between(x, genuine, color=GENUINE, alpha=0.75, lw=0, label="genuine")
    ax.fill_between(x, bad, color=FRAUD, alpha=0.85, lw=0, label="fraud")
    ax.set(title=title, xlabel="what the model sees (x)", yticks=[], xticks=[], ylim=(0, 0.42))


def label_shift(colors: dict[str, str]) -> None:
    """Two panels: each class keeps its shape, and only the number of its samples changes."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    two_bumps(axes[0], 0.03, "Training: 3 % fraud")
    two_bumps(axes[1], 0.25, "Today: 25 % fraud")
    axes[0].legend(frameon=False)
    figure.suptitle("Label shift: the classes keep their shape, only their sizes change", **TITLE)


def posterior(colors: dict[str, str]) -> None:
    """The probability of fraud at each x, before and after."""
    ax = plt.subplots(figsize=(8, 3.2), layout="constrained")[1]
    x = np.linspace(-3, 4, 400)
    for share, color, text in ((0.03, GENUINE, "training prior: 3 %"), (0.25, FRAUD, "new prior: 25 %")):
        ax.plot(x, 1 / (1 + (1 - share) * norm.pdf(x, -0.5) / (share * norm.pdf(x, 2))), color=color, lw=2.5)
        at = (2.3, 0.3) if share < 0.1 else (0.55, 0.62)
        ax.text(*at, text, color=color, ha="left" if share < 0.1 else "right", fontsize=12)
    ax.axhline(0.5, color=colors["muted"], lw=0.8, ls=":")
    for at, color in ((0.75 + np.log(0.97 / 0.03) / 2.5, GENUINE), (0.75 + np.log(3) / 2.5, FRAUD)):
        ax.axvline(at, 0, 0.5, color=color, lw=1)
    ax.set(xlabel="what the model sees (x)", ylabel="probability of fraud", xticks=[], ylim=(0, 1.02), xlim=(-3, 4.1))
    ax.set_title("The same payment is more likely to be fraud when fraud is frequent", loc="left", fontweight="bold")


def reliability(colors: dict[str, str]) -> None:
    """Predicted against observed fraud, uncorrected and corrected, for the tutorial's model."""
    example = fraud()
    ax = plt.subplots(figsize=(8, 3.6), layout="constrained")[1]
    ax.plot([0, 100], [0, 100], color=colors["muted"], lw=0.8, ls=":")
    ax.text(60, 53, "perfect", color=colors["muted"], fontsize=10)
    fixed = example.estimate.correct(example.month.proba)
    for proba, color, text in ((example.pipe.calibrate(example.month.proba), FRAUD, "calibrated, uncorrected"),
                               (fixed, FIXED, "corrected, no labels used")):  # fmt: skip
        score = proba[:, 1]
        edges = np.array([0, 0.02, 0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 1.0001])
        bins = np.digitize(score, edges) - 1
        kept = [b for b in range(len(edges) - 1) if (bins == b).sum() > 10]
        points = [(100 * score[bins == b].mean(), 100 * example.month.y[bins == b].mean()) for b in kept]
        ax.plot(*np.array(points).T, "o-", color=color, lw=2, ms=6, label=text)
    ax.set(xlabel="predicted probability of fraud, %", ylabel="observed fraud, %")
    ax.legend(frameon=False, loc="lower right")
    ax.set_title("After the shift the model predicts too little fraud; the correction repairs it", loc="left",
                 fontweight="bold")  # fmt: skip


def other_shifts(colors: dict[str, str]) -> None:
    """Two panels that are not label shift."""
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True, layout="constrained")
    x = np.linspace(-4, 5, 400)
    before = 0.75 * norm.pdf(x, -0.5), 0.25 * norm.pdf(x, 2)
    odds = before[1] / (before[0] + before[1])  # covariate shift: p(class | x) stays, p(x) changes
    inputs = 0.6 * norm.pdf(x, 1.4, 0.7) + 0.4 * norm.pdf(x, -1)
    drifted = before[0], 0.25 * norm.pdf(x, 0.6)
    moved = inputs * (1 - odds), inputs * odds
    for ax, after, title in ((axes[0], drifted, "Concept drift: fraud looks different"),
                             (axes[1], moved, "Covariate shift: other inputs arrive")):  # fmt: skip
        ax.fill_between(x, after[0], color=GENUINE, alpha=0.75, lw=0)
        ax.fill_between(x, after[1], color=FRAUD, alpha=0.85, lw=0)
        for curve in before:
            ax.plot(x, curve, color=colors["muted"], lw=1, ls="--")
        ax.set(title=title, xlabel="what the model sees (x)", xticks=[], yticks=[], ylim=(0, 0.42))
    figure.suptitle("Not label shift: the classes no longer have their old shape (dashed)", **TITLE)


def alarm(colors: dict[str, str]) -> None:
    """The alarm's evidence along the tutorial's stream."""
    example = fraud()
    rng = np.random.default_rng(2)
    pool = np.flatnonzero(example.month.y == 0), np.flatnonzero(example.month.y == 1)
    share = np.where(np.arange(1600) < 1000, 0.035, 0.15)
    rows = [rng.choice(pool[int(rng.random() < p)]) for p in share]
    stream, watch, points = example.pipe.stream(), rp.Alarm(example.pipe.source), []
    for block in np.array_split(example.month.proba[rows], 100):
        verdict = watch.watch(stream, block)
        points.append((verdict.n, verdict.evidence))
    ax = plt.subplots(figsize=(8, 3), layout="constrained")[1]
    ax.plot(*np.array(points).T, color=GENUINE, lw=2)
    ax.axvline(1000, color=colors["muted"], lw=1)
    ax.text(990, ax.get_ylim()[1] * 0.9, "the shift begins", ha="right", va="top", color=colors["muted"])
    raised = watch.verdict.raised_at
    if raised is not None:
        ax.axvline(raised, color=FRAUD, lw=1)
        ax.text(raised + 10, ax.get_ylim()[1] * 0.9, "alarm", va="top", color=FRAUD)
        ax.set_title(f"The alarm is raised {raised - 1000} payments after the shift", loc="left", fontweight="bold")
    ax.set(xlabel="payments", ylabel="log evidence of a shift")


PICTURES: dict[str, Callable[[dict[str, str]], None]] = {
    "label-shift": label_shift, "posterior": posterior, "reliability": reliability, "other-shifts": other_shifts,
    "alarm": alarm,
}  # fmt: skip


def main() -> None:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "img"
    for style, colors in STYLES.items():
        plt.rcParams.update({
            "font.size": 12, "axes.titlesize": 12, "axes.spines.top": False, "axes.spines.right": False,
            "text.color": colors["text"], "axes.labelcolor": colors["text"], "axes.edgecolor": colors["muted"],
            "xtick.color": colors["text"], "ytick.color": colors["text"], "axes.facecolor": colors["paper"],
            "figure.facecolor": colors["paper"], "savefig.facecolor": colors["paper"],
        })  # fmt: skip
        for name, draw in PICTURES.items():
            draw(colors)
            plt.savefig(folder / f"{name}-{style}.png", dpi=110)
            plt.close()


if __name__ == "__main__":
    main()
