"""Draw the figures from the results files.

    python figures.py [NAME ...]        # all of them without names; each writes figures/NAME.png
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np
from cells import CIFAR_RATIOS, DIRICHLET, SHUFFLED
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from tables import PRINTED, best_single

HERE = Path(__file__).parent
plt.rcParams.update({"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
                     "grid.alpha": 0.3, "figure.dpi": 130, "legend.frameon": False})
COLOURS = plt.get_cmap("viridis")(np.linspace(0.05, 0.85, 5))
METHOD_COLOURS = {"MAPLS": "#999999", "FMAPLS": "#0072b2", "online-FMAPLS": "#56b4e9", "EBLS": "#d55e00",
                  "online-EBLS": "#e69f00", "default pipeline": "#222222"}


def read(name: str) -> dict:
    return json.loads((HERE / "results" / f"{name}.json").read_text())


def online_panels(curves: dict, models: list[str], titles: list[str], shift: str, values: tuple[float, ...]) -> Figure:
    fig, axes = plt.subplots(1, len(models), figsize=(3.2 * len(models), 3.1), sharey=True, squeeze=False)
    symbol = "ρ" if shift == "shuffled" else "α"
    for ax, model, title in zip(axes[0], models, titles, strict=True):
        for value, colour in zip(values, COLOURS, strict=False):
            cell = curves[f"{model}/{shift}-{value:g}"]
            ax.plot(cell["samples"], cell["online-FMAPLS"], color=colour)
            ax.plot(cell["samples"], cell["online-EBLS"], color=colour, ls="--", lw=1)
        ax.set(xscale="log", yscale="log", xlabel="samples seen", title=title)
    axes[0, 0].set_ylabel("KL(true ‖ estimate)")
    handles = [Line2D([], [], color=c, label=f"{symbol}_test = {v:g}") for v, c in zip(values, COLOURS, strict=False)]
    handles += [Line2D([], [], color="k", label="online-FMAPLS (stable)"),
                Line2D([], [], color="k", ls="--", lw=1, label="online-EBLS")]
    fig.legend(handles=handles, loc="lower center", ncol=len(handles), fontsize=8)
    fig.tight_layout(rect=(0, 0.09, 1, 1))
    return fig


def cifar_online(shift: str, values: tuple[float, ...]) -> Figure:
    models = [f"cifar100-lt-{r}" for r in CIFAR_RATIOS]
    titles = [f"CIFAR-100-LT, ρ_train = {r}" for r in CIFAR_RATIOS]
    return online_panels(read("online-cifar"), models, titles, shift, values)


def imagenet_online() -> Figure:
    curves = read("online-imagenet")
    fig, axes = plt.subplots(1, 2, figsize=(7.5, 3.2), sharey=True)
    for ax, shift, values in zip(axes, ("shuffled", "dirichlet"), (SHUFFLED[:4], DIRICHLET[:4]), strict=True):
        symbol = "ρ" if shift == "shuffled" else "α"
        for value, colour in zip(values, COLOURS, strict=False):
            cell = curves[f"imagenet-lt-simulated/{shift}-{value:g}"]
            ax.plot(cell["samples"], cell["online-FMAPLS"], color=colour, label=f"{symbol}_test = {value:g}")
            ax.plot(cell["samples"], cell["online-EBLS"], color=colour, ls="--", lw=1)
        ax.set(xscale="log", yscale="log", xlabel="samples seen", title=f"simulated, K = 1000, {shift}")
        ax.legend(fontsize=8)
    axes[0].set_ylabel("KL(true ‖ estimate)\n(solid: online-FMAPLS, dashed: online-EBLS)")
    fig.tight_layout()
    return fig


def bars(ax: Axes, groups: list[str], labels: list[str], table: dict, printed: str) -> None:
    methods = {"MAPLS": "MAPLS", printed: printed, "FMAPLS": "FMAPLS, stable", "online-FMAPLS": "online-FMAPLS, stable",
               "EBLS": "EBLS", "online-EBLS": "online-EBLS", "default pipeline": "default pipeline (held-out labels)"}
    width = 0.8 / len(methods)
    for i, (method, label) in enumerate(methods.items()):
        values = np.array([[x or 0.0 for x in table[g][method][:2]] for g in groups])
        x = np.arange(len(groups)) + (i - (len(methods) - 1) / 2) * width
        ax.bar(x, values[:, 0], width, yerr=values[:, 1], label=label, color=METHOD_COLOURS.get(method, "#009e73"),
               error_kw={"lw": 0.8})
    ax.set_xticks(range(len(groups)), labels)
    ax.set_ylabel("KL(true ‖ estimate)")
    ax.grid(axis="x", visible=False)


def ablation_cifar() -> Figure:
    table = read("cifar")["cells"]
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.4), sharey=True)
    hardest = {"shuffled-0.02": "shuffled, ρ_test = 0.02", "dirichlet-1": "Dirichlet, α_test = 1"}
    for ax, (setting, title) in zip(axes, hardest.items(), strict=True):
        bars(ax, [f"cifar100-lt-{r}/{setting}" for r in CIFAR_RATIOS], [str(r) for r in CIFAR_RATIOS], table,
             best_single(table, PRINTED))
        ax.set(xlabel="ρ_train", title=title)
    axes[0].legend(fontsize=7)
    axes[1].set_ylabel("")
    fig.tight_layout()
    return fig


def ablation_imagenet() -> Figure:
    table = read("imagenet")["cells"]
    fig, ax = plt.subplots(figsize=(5.5, 3.3))
    groups = [f"imagenet-lt-simulated/{s}" for s in ("shuffled-0.02", "dirichlet-1")]
    bars(ax, groups, ["ρ_test = 0.02", "α_test = 1"], table, best_single(table, PRINTED))
    ax.set(title="simulated, K = 1000", ylim=(0, 0.25))
    ax.legend(fontsize=7, ncol=2)
    fig.tight_layout()
    return fig


def why() -> Figure:
    data = read("why")
    fig, axes = plt.subplots(1, 2, figsize=(9.5, 3.6), sharey=True)
    colours = plt.get_cmap("viridis")(np.linspace(0, 0.9, len(data["c_of_n"])))
    for c, colour in zip(data["c_of_n"], colours, strict=True):
        axes[0].plot(data["steps"], data["kl"][f"{c:g}"], "o-", ms=2.5, color=colour, label=f"c = {c:g} N")
    axes[0].axvline(100, color="k", lw=0.6, ls=":")
    axes[0].set(xlabel="iterations T", title="every c passes through the same minimum, at its own T")
    some = [t for t in (8, 32, 100, 256, 1024) if t in data["steps"]]
    for t, colour in zip(some, COLOURS, strict=True):
        at = data["steps"].index(t)
        kl = [data["kl"][f"{c:g}"][at] for c in data["c_of_n"]]
        axes[1].plot(data["c_of_n"], kl, "o-", ms=2.5, color=colour, label=f"T = {t}")
    axes[1].set(xlabel="c / N", title="so the best c depends on T")
    for ax in axes:
        for name, style in (("MLLS", ":"), ("MAPLS", "--"), ("FMAPLS stable", "-")):
            ax.axhline(data[name], color="#d55e00", lw=1, ls=style, label=f"{name}, T = 100" if ax is axes[1] else None)
        ax.set(xscale="log", yscale="log", ylim=(0.85 * data["FMAPLS stable"], 6))  # room for the legend
        ax.legend(fontsize=7, ncol=3, loc="upper left")
    axes[0].set_ylabel("KL of FMAPLS as printed")
    fig.tight_layout()
    return fig


def collapse() -> Figure:
    data = read("collapse")
    fig, ax = plt.subplots(figsize=(7.5, 4.2))
    for (c, kl), style in zip(data["printed"].items(), ("-", ":"), strict=True):
        ax.plot(data["samples"], kl, color="k", ls=style, label=f"as printed, c = {c}")
    mended = data["printed, start mended"]
    for (c, kl), colour in zip(mended.items(), plt.get_cmap("viridis")(np.linspace(0, 0.9, len(mended))), strict=True):
        ax.plot(data["samples"], kl, color=colour, label=f"start mended, c = {c}")
    for (c, kl), style in zip(data["stable, constant c"].items(), (":", "-.", "--"), strict=True):
        ax.plot(data["samples"], kl, color="#e69f00", ls=style, lw=1, label=f"posterior mean, c = {c}")
    ax.plot(data["samples"], data["stable"], color="#d55e00", lw=2, label="posterior mean, growing c (default)")
    ax.axhline(data["uniform"], color="k", lw=0.7, ls=":", label="uniform prior (the start)")
    ax.set(xscale="log", yscale="log", xlabel="samples seen", ylabel="KL(true ‖ estimate)",
           title="online-FMAPLS: the printed recursion collapses, or hardly moves")
    ax.legend(fontsize=7, ncol=2)
    fig.tight_layout()
    return fig


def intervals() -> Figure:
    data = read("intervals")
    names = list(next(iter(data["cells"].values())))
    fig, ax = plt.subplots(figsize=(7.5, 3.4))
    width = 0.8 / len(names)
    short = {"cifar100-lt-": "ρ_train ", "/shuffled-": "\nρ_test ", "/dirichlet-": "\nα_test "}
    labels = list(data["cells"])
    for long, brief in short.items():
        labels = [label.replace(long, brief) for label in labels]
    for i, (name, colour) in enumerate(zip(names, ("#999999", "#56b4e9", "#d55e00"), strict=True)):
        ax.bar(np.arange(len(labels)) + (i - 1) * width, [100 * v[name][0] for v in data["cells"].values()], width,
               label=name, color=colour)
    ax.axhline(95, color="k", lw=0.8, ls="--")
    ax.set_xticks(range(len(labels)), labels, fontsize=7)
    ax.set(ylabel="classes covered, %", ylim=(0, 118), title="95 % intervals around EBLS")
    ax.legend(fontsize=7, ncol=3, loc="upper center")
    ax.grid(axis="x", visible=False)
    fig.tight_layout()
    return fig


def timing() -> Figure:
    data = read("timing")
    fig, axes = plt.subplots(1, 3, figsize=(10.5, 3.3), sharey=True)
    colours = {"FMAPLS+GA": "#0072b2", "FMAPLS+LSF": "#56b4e9",
               "online-FMAPLS+GA": "#d55e00", "online-FMAPLS+LSF": "#e69f00"}
    for ax, axis in zip(axes, ("N", "K", "T_grad"), strict=True):
        for variant, colour in colours.items():
            points = data["seconds"][variant][axis]
            slope = data["slopes_of_last_three_points"][variant][axis]
            ax.plot([int(x) for x in points], list(points.values()), "o-", ms=3, color=colour,
                    label=f"{variant}: slope {slope:.2f}")
        fixed = ", ".join(f"{k} = {v}" for k, v in data["fixed"].items() if k != axis)
        ax.set(xscale="log", yscale="log", xlabel=f"{axis}   ({fixed})", ylim=(3e-8, 1))
        ax.legend(fontsize=7, loc="upper left")
    axes[0].set_ylabel("CPU-seconds an iteration\n(online: a sample)")
    fig.tight_layout()
    return fig


FIGURES: dict[str, Callable[[], Figure]] = {
    "figure2-online-shuffled": lambda: cifar_online("shuffled", SHUFFLED),
    "figure3-online-dirichlet": lambda: cifar_online("dirichlet", DIRICHLET),
    "figure4-online-imagenet-simulated": imagenet_online,
    "figure5-ablation": ablation_cifar,
    "figure6-ablation-imagenet-simulated": ablation_imagenet,
    "why-fmapls-works": why,
    "printed-online-collapse": collapse,
    "intervals": intervals,
    "table1-timing": timing,
}

if __name__ == "__main__":
    (HERE / "figures").mkdir(exist_ok=True)
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]().savefig(HERE / "figures" / f"{name}.png")
