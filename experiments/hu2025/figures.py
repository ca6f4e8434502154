"""Draw the figures from the results files.

python figures.py [NAME ...]        # all of them without names; each writes figures/NAME.png
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from cells import CIFAR_RATIOS
from record import line_made, read
from tables import PRINTED, PRINTED_GA, best_single

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
import style  # noqa: E402  the look is shared with the other experiments
from matplotlib.axes import Axes  # noqa: E402
from matplotlib.figure import Figure  # noqa: E402
from matplotlib.lines import Line2D  # noqa: E402
from style import BLACK, BLUE, GREEN, GREY, ORANGE, PINK, RED, plt  # noqa: E402

KL = "KL(true ‖ estimate)"
SHOWN = {"shuffled": (0.02, 0.05, 0.1), "dirichlet": (1.0, 2.0, 3.0)}  # of the five strengths: the ends and the middle
COLOURS = (BLACK, BLUE, RED)
LARGE = {"imagenet-lt": "ImageNet-LT", "imagenet-lt-simulated": "simulated, K = 1000 (not ImageNet)"}


def large(table: dict) -> str:
    """Return whose cells stand for ImageNet: its own where its outputs have been made, else the simulation's."""
    return next((m for m in LARGE if any(c.startswith(f"{m}/") for c in table)), "imagenet-lt-simulated")


def online_panel(ax: Axes, curves: dict, batch: dict, model: str, shift: str, values: tuple[float, ...]) -> None:
    """KL along the stream; batch estimates as lines over its last part, and as marks at the right end."""
    family = f"{model}/" if model in LARGE else "cifar100-lt-"  # the best c is one for all its cells
    printed = best_single({c: v for c, v in batch.items() if c.startswith(family)}, PRINTED)
    for value, colour in zip(values, COLOURS, strict=True):
        name = f"{model}/{shift}-{value:g}"
        cell = curves[name]
        end = cell["samples"][-1]
        ax.plot(cell["samples"], cell["online-FMAPLS"], color=colour)
        ax.plot(cell["samples"], cell["online-EBLS"], color=colour, ls=(0, (4, 2)), lw=1.1)
        for method, dash in (("MAPLS", ":"), (printed, "-.")):
            ax.hlines(batch[name][method][0], 0.3 * end, 1.6 * end, color=colour, ls=dash, lw=1.1)
        for method, marker in (("FMAPLS", "<"), ("EBLS", "x")):
            ax.plot([1.9 * end], [batch[name][method][0]], marker, color=colour, ms=5, mew=1.3, clip_on=False)
    ax.set(xscale="log", yscale="log", xlabel="samples seen")
    ax.yaxis.set_major_locator(plt.FixedLocator([0.03, 0.05, 0.1, 0.2, 0.4, 0.8]))
    ax.yaxis.set_major_formatter(plt.FormatStrFormatter("%g"))
    ax.yaxis.set_minor_locator(plt.NullLocator())


def online_legend(fig: Figure, data: dict, shift: str, values: tuple[float, ...]) -> None:
    symbol = "ρ_test" if shift == "shuffled" else "α_test"
    handles = [Line2D([], [], color=c, label=f"{symbol} = {v:g}") for v, c in zip(values, COLOURS, strict=True)]
    fig.legend(handles=handles + method_handles(data), loc="outside lower center", ncol=5)


def method_handles(data: dict) -> list[Line2D]:
    trials = {line: line_made(data, line)["trials"] for line in ("online-FMAPLS", "online-EBLS")}
    return [
        Line2D([], [], color=GREY, label=f"online-FMAPLS, stable, {trials['online-FMAPLS']} trials"),
        Line2D([], [], color=GREY, ls=(0, (4, 2)), lw=1.1, label=f"online-EBLS, {trials['online-EBLS']} trials"),
        Line2D([], [], color=GREY, ls=":", lw=1.1, label="MAPLS, batch"),
        Line2D([], [], color=GREY, ls="-.", lw=1.1, label="FMAPLS as printed, best c, batch"),
        Line2D([], [], color=GREY, ls="", marker="<", label="FMAPLS, stable, batch"),
        Line2D([], [], color=GREY, ls="", marker="x", label="EBLS, batch"),
    ]


def cifar_online(shift: str) -> Figure:
    data, batch = read("online-cifar"), read("cifar")["cells"]
    fig, axes = plt.subplots(1, 4, figsize=(12, 3.4), sharey=True)
    for ax, ratio in zip(axes, CIFAR_RATIOS, strict=True):
        online_panel(ax, data["cells"], batch, f"cifar100-lt-{ratio}", shift, SHOWN[shift])
        ax.set_title(f"CIFAR-100-LT, ρ_train = {ratio}")
    axes[0].set_ylabel(KL)
    online_legend(fig, data, shift, SHOWN[shift])
    return fig


def imagenet_online() -> Figure:
    data, batch = read("online-imagenet"), read("imagenet")["cells"]
    model = large({c: v for c, v in data["cells"].items() if c in batch})
    fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True)
    for ax, shift, values in zip(axes, ("shuffled", "dirichlet"), ((0.02, 0.04, 0.05), (1.0, 2.0, 2.5)), strict=True):
        online_panel(ax, data["cells"], batch, model, shift, values)
        symbol = "ρ_test" if shift == "shuffled" else "α_test"
        lines = [Line2D([], [], color=c, label=f"{symbol} = {v:g}") for v, c in zip(values, COLOURS, strict=True)]
        ax.legend(handles=lines, loc="lower left")
        ax.set_title(f"{LARGE[model]}, {shift} targets")
    axes[0].set_ylabel(KL)
    fig.legend(handles=method_handles(data), loc="outside lower center", ncol=3)
    return fig


def bars(ax: Axes, groups: list[str], labels: list[str], table: dict) -> None:
    printed, gradient = best_single(table, PRINTED), best_single(table, PRINTED_GA)
    methods = {
        "MAPLS": ("MAPLS", GREY),
        printed: (printed, GREEN),
        gradient: (gradient, PINK),
        "FMAPLS": ("FMAPLS, stable", BLUE),
        "online-FMAPLS": ("online-FMAPLS, stable", "#56b4e9"),
        "EBLS": ("EBLS", RED),
        "online-EBLS": ("online-EBLS", ORANGE),
        "default pipeline": ("default pipeline (held-out labels)", BLACK),
    }
    methods = {m: v for m, v in methods.items() if m in table[groups[0]]}
    width = 0.85 / len(methods)
    for i, (method, (label, colour)) in enumerate(methods.items()):
        values = np.array([[x or 0.0 for x in table[g][method][:2]] for g in groups])
        x = np.arange(len(groups)) + (i - (len(methods) - 1) / 2) * width
        ax.bar(x, values[:, 0], 0.92 * width, yerr=values[:, 1], label=label, color=colour, error_kw={"lw": 0.8})
    ax.set_xticks(range(len(groups)), labels)
    ax.set_ylabel(KL)
    ax.grid(axis="x", visible=False)


def ablation(experiment: str, models: str, title_start: str) -> Figure:
    table = read(experiment)["cells"]
    fig, axes = plt.subplots(1, 2, figsize=(10.5, 3.7), sharey=True)
    hardest = {"shuffled-0.02": "shuffled, ρ_test = 0.02", "dirichlet-1": "Dirichlet, α_test = 1"}
    for ax, (setting, title) in zip(axes, hardest.items(), strict=True):
        bars(ax, [f"{models}-{r}/{setting}" for r in CIFAR_RATIOS], [str(r) for r in CIFAR_RATIOS], table)
        ax.set(xlabel="ρ_train", title=f"{title_start}, {title}")
    axes[1].set_ylabel("")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncol=4)
    return fig


def ablation_imagenet() -> Figure:
    table = read("imagenet")["cells"]
    model = large(table)
    table = {c: v for c, v in table.items() if c.startswith(f"{model}/")}
    fig, ax = plt.subplots(figsize=(7, 3.7))
    bars(ax, [f"{model}/{s}" for s in ("shuffled-0.02", "dirichlet-1")], ["ρ_test = 0.02", "α_test = 1"], table)
    ax.set(title=LARGE[model])
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncol=3)
    return fig


def why() -> Figure:
    data = read("why")
    some = [c for c in data["c_of_n"] if c in (0.25, 1, 4, 16)]
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for c, colour in zip(some, (BLACK, BLUE, RED, ORANGE), strict=True):
        axes[0].plot(data["steps"], data["kl"][f"{c:g}"], "o-", ms=3, color=colour, label=f"c = {c:g} N")
    axes[0].axvline(100, color=GREY, lw=0.8, ls=":")
    axes[0].set(xlabel="iterations T", title="Each c passes about the same minimum, at its own T")
    for t, colour in zip((32, 100, 1024), (BLACK, BLUE, RED), strict=True):
        at = data["steps"].index(t)
        kl = [data["kl"][f"{c:g}"][at] for c in data["c_of_n"]]
        axes[1].plot(data["c_of_n"], kl, "o-", ms=3, color=colour, label=f"T = {t}")
    axes[1].set(xlabel="c / N", title="so the best c depends on T")
    for ax in axes:
        ax.set(xscale="log", yscale="log", ylim=(0.85 * data["FMAPLS stable"], 3.5))
        for name, dash in (("MLLS", ":"), ("MAPLS", "--"), ("FMAPLS stable", "-")):
            ax.axhline(data[name], color=GREEN, lw=1, ls=dash, label=f"{name}, T = 100" if ax is axes[1] else None)
        ax.legend(ncol=2, loc="upper center")
    axes[0].set_ylabel(f"KL of FMAPLS as printed, {data['cell']}")
    return fig


def collapse() -> Figure:
    data = read("collapse")
    x = data["samples"]
    fig, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True)
    mended = {
        f"start mended, c = {c}": (kl, "-", colour)
        for (c, kl), colour in zip(
            data["printed, start mended"].items(), (BLACK, BLUE, RED, ORANGE, GREEN), strict=True
        )
    }
    printed = {
        f"as printed, c = {c}": (kl, (0, (4, 2)), colour)
        for (c, kl), colour in zip(data["printed"].items(), (PINK, GREY), strict=True)
    }
    constant = {
        f"c = {c}": (kl, "-", colour)
        for (c, kl), colour in zip(data["stable, constant c"].items(), (ORANGE, GREEN, BLUE), strict=True)
    }
    left, right = {**printed, **mended}, {**constant, "growing c (default)": (data["stable"], "-", RED)}
    for ax, lines, title in (
        (axes[0], left, "As printed (γ = 1): it collapses, or hardly moves"),
        (axes[1], right, "Posterior mean: c trades speed for precision, a growing c has both"),
    ):
        ax.set(xscale="log", yscale="log", ylim=(0.06, 60), xlim=(10, 3100), xlabel="samples seen", title=title)
        for label, (kl, dash, colour) in lines.items():
            ax.plot(x, kl, ls=dash, color=colour, lw=2.4 if "default" in label else 1.5, label=label)
        ax.axhline(data["uniform"], color=BLACK, lw=0.8, ls=":", zorder=0)
        style.label_ends(ax, [(x[-1], kl[-1], label, colour) for label, (kl, _, colour) in lines.items()])
        ax.text(10.5, 1.08 * data["uniform"], "uniform prior", fontsize=7)
    axes[0].set_ylabel(f"{KL}, {data['cell']}")
    return fig


def plane() -> Figure:
    """The whole plane: rows are starts, columns readings of δ; in each, γ by c, KL at the end of the stream."""
    data = read("plane")
    name, cell = next(iter(data["cells"].items()))
    fig, axes = plt.subplots(2, 3, figsize=(13, 6), sharex=True, sharey=True)
    what = {"running": "the running statistic", "predicted": "the predicted class", "observed": "the true label"}
    for i, start in enumerate(data["starts"]):
        for j, reading in enumerate(data["readings"]):
            ax = axes[i, j]
            kl = [[cell["kl"][f"{start}, {reading}, γ={g:g}, c={c:g}"][-1] for c in data["cs"]] for g in data["gammas"]]
            style.heat(ax, kl, data["cs"], data["gammas"], low=cell["stable"], high=20)
            ax.set_title(
                f"start as printed, δ = {what[reading]}" if start == "printed" else f"start mended, δ = {what[reading]}"
            )
            if i:
                ax.set_xlabel("c")
            if not j:
                ax.set_ylabel("γ")
    where = f"after {cell['samples'][-1]} samples, {name}, mean of {data['trials']} trials"
    reference = f"Uniform prior {cell['uniform']:.2f}, stable form {cell['stable']:.2f}"
    fig.suptitle(f"KL of online-FMAPLS as printed {where}. {reference}", fontsize=10)
    return fig


def ascent() -> Figure:
    """Gradient ascent beside the surrogate: KL against its own knob, mean of the eight hardest cells."""
    data = read("ascent")
    mean = {m: float(np.mean([v[m][0] for v in data["cells"].values()])) for m in next(iter(data["cells"].values()))}
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    for t, colour in zip(data["steps"], (ORANGE, RED, BLACK), strict=True):
        axes[0].plot(
            data["mus"],
            [mean[f"GA, μ={m:g}, T_grad={t}"] for m in data["mus"]],
            "o-",
            ms=3,
            color=colour,
            label=f"gradient ascent, T_grad = {t}",
        )
    axes[1].plot(
        data["c_of_n"],
        [mean[f"LSF, c={c:g}N"] for c in data["c_of_n"]],
        "o-",
        ms=3,
        color=BLUE,
        label="surrogate (LSF)",
    )
    axes[0].set(xlabel="μ", title="Gradient ascent (eq. 10)")
    axes[1].set(xlabel="c / N", title="Surrogate (eq. 15)")
    for ax in axes:
        for name, label, dash in (
            ("MAPLS", "MAPLS", ":"),
            ("Newton, posterior mean", "Newton, no constant", "--"),
            ("stable", "stable form, no constant", "-"),
        ):
            ax.axhline(mean[name], color=GREEN, lw=1, ls=dash, label=label)
        ax.set(xscale="log", yscale="log")
        ax.yaxis.set_major_locator(plt.FixedLocator([0.1, 0.2, 0.5, 1, 2]))
        ax.yaxis.set_major_formatter(plt.FormatStrFormatter("%g"))
        ax.legend()
    axes[0].set_ylabel(f"{KL}, mean of the eight hardest\nCIFAR-100-LT cells, {data['trials']} trials each")
    return fig


def intervals() -> Figure:
    data = read("intervals")
    names = list(next(iter(data["cells"].values())))
    fig, ax = plt.subplots(figsize=(9.5, 3.8))
    width = 0.84 / len(names)
    labels = list(data["cells"])
    for long, brief in {"cifar100-lt-": "ρ_train ", "/shuffled-": "\nρ_test ", "/dirichlet-": "\nα_test "}.items():
        labels = [label.replace(long, brief) for label in labels]
    for i, (name, colour) in enumerate(zip(names, (GREY, PINK, "#56b4e9", RED), strict=True)):
        ax.bar(
            np.arange(len(labels)) + (i - (len(names) - 1) / 2) * width,
            [100 * v[name][0] for v in data["cells"].values()],
            0.92 * width,
            label=name,
            color=colour,
        )
    ax.axhline(95, color=BLACK, lw=0.8, ls="--")
    ax.set_xticks(range(len(labels)), labels, fontsize=7)
    ax.set(ylabel="classes covered, %", ylim=(0, 100), title=f"95 % intervals, CIFAR-100-LT, {data['trials']} trials")
    ax.grid(axis="x", visible=False)
    fig.legend(*ax.get_legend_handles_labels(), loc="outside lower center", ncol=2)
    return fig


def timing() -> Figure:
    data = read("timing")
    fig, axes = plt.subplots(1, 3, figsize=(11, 3.6), sharey=True)
    colours = {"FMAPLS+GA": BLUE, "FMAPLS+LSF": "#56b4e9", "online-FMAPLS+GA": RED, "online-FMAPLS+LSF": ORANGE}
    for ax, axis in zip(axes, ("N", "K", "T_grad"), strict=True):
        for variant, colour in colours.items():
            points = data["seconds"][variant][axis]
            slope = data["slopes_of_last_three_points"][variant][axis]
            ax.plot(
                [int(x) for x in points],
                list(points.values()),
                "o-",
                ms=3,
                color=colour,
                label=f"{variant}: slope {slope:.2f}",
            )
        fixed = ", ".join(f"{k} = {v}" for k, v in data["fixed"].items() if k != axis)
        ax.set(xscale="log", yscale="log", xlabel=f"{axis}   ({fixed})", ylim=(3e-8, 1))
        ax.legend(loc="upper left", fontsize=7)
    axes[0].set_ylabel("CPU-seconds an iteration\n(online: a sample)")
    return fig


FIGURES: dict[str, Callable[[], Figure]] = {
    "figure2-online-shuffled": lambda: cifar_online("shuffled"),
    "figure3-online-dirichlet": lambda: cifar_online("dirichlet"),
    "figure4-online-imagenet-simulated": imagenet_online,
    "figure5-ablation": lambda: ablation("cifar", "cifar100-lt", "CIFAR-100-LT"),
    "figure6-ablation-imagenet-simulated": ablation_imagenet,
    "figure6-ablation-tiny-imagenet": lambda: ablation("tiny", "tiny-imagenet-lt", "Tiny-ImageNet-LT"),
    "why-fmapls-works": why,
    "printed-online-collapse": collapse,
    "printed-online-plane": plane,
    "gradient-ascent": ascent,
    "intervals": intervals,
    "table1-timing": timing,
}


def main(names: list[str]) -> None:
    for name in names or FIGURES:
        style.save(FIGURES[name](), HERE / "figures" / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1:])
