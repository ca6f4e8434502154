"""Write findings.md from its template, page.md, and the stored results: every table and every number in it.

    python findings.py

In the template `<!-- table: NAME -->` stands for a table of TABLES, `{FACT:ARGUMENTS}` for a number of FACTS. The page
itself is never edited by hand; a test fills the template again and compares.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable
from pathlib import Path

import cifar
import claims
import models
import numpy as np
import outputs
import pretrained
import record
import run
import simulated
from cells import CIFAR, CIFAR_RATIOS
from claims import DEFAULT, compare
from tables import CEILINGS, PRINTED, PRINTED_GA, PRINTED_ONLINE, SWEPT, best_single

HERE = Path(__file__).parent
TEMPLATE = HERE / "page.md"
PAGE = HERE / "findings.md"
TABLE, FACT = re.compile(r"<!-- table: (\S+) -->"), re.compile(r"\{([^{}\n]+)\}")
Cells = dict[str, dict[str, list[float]]]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def cells(experiment: str) -> Cells:
    return record.read(experiment)["cells"]


def named(table: Cells, method: str) -> str:
    """Return the full name of a method: the swept ones are called by the best setting they have."""
    swept = {"printed": PRINTED, "printed-online": PRINTED_ONLINE, "gradient": PRINTED_GA}
    return best_single(table, swept[method]) if method in swept else method


# -- tables -----------------------------------------------------------------------------------------------------------


def last_epoch(name: str) -> str:
    return str(json.loads((outputs.FOLDER / f"{name}.jsonl").read_text().splitlines()[-1])["epoch"])


QUALITIES = ("test accuracy, as trained", "… at the balanced prior", "held-out accuracy", "held-out confidence")


def how_good(o: outputs.Outputs) -> list[str]:
    """Return test accuracy as trained and at the balanced prior, held-out accuracy and confidence."""
    weights = o.counts.sum() / o.counts
    values = [
        np.mean(o.test.argmax(1) == o.y_test),
        np.mean((o.test * weights).argmax(1) == o.y_test),
        np.mean(o.held_out.argmax(1) == o.y_held_out),
        o.held_out.max(1).mean(),
    ]
    return [f"{100 * x:.1f} %" for x in values]


def networks() -> str:
    """Return what was trained, how good it is, and the accuracy of printed FMAPLS beside the paper's."""
    theirs, mine, rows = claims.paper(), claims.ours(stable=False), []
    for ratio in CIFAR_RATIOS:
        o = outputs.load(f"cifar100-lt-{ratio}")
        settings = [c for c in mine.cells if c.startswith(f"{ratio}/")]
        rows.append(
            [
                f"{ratio}",
                f"{o.counts.sum():,}",
                last_epoch(f"cifar100-lt-{ratio}"),
                f"{len(o.y_held_out):,}",
                *how_good(o),
                *(f"{np.mean([v.accuracy(c) for c in settings]):.1f} %" for v in (theirs, mine)),
            ]
        )
    return markdown(
        [
            "ρ_train",
            "training images",
            "epochs",
            "held-out images",
            *QUALITIES,
            "FMAPLS as printed: paper",
            "here",
        ],
        rows,
    )


def schedules() -> dict[float, dict[str, Cells]]:
    """Return the cells of each training set that was trained on for more epochs too, by network: the shorter first."""
    tables, result = {**cells("cifar"), **cells("long")}, {}
    for ratio in CIFAR_RATIOS:
        names = (f"cifar100-lt-{ratio}", f"cifar100-lt-{ratio}-long")
        by = {name: {c: v for c, v in tables.items() if c.startswith(f"{name}/")} for name in names}
        if all(by.values()):
            result[ratio] = by
    return result


def longer() -> str:
    """Return what more epochs change: the networks themselves, and what methods make of their outputs."""
    tables = {name: table for by in schedules().values() for name, table in by.items()}
    rows = [[what, *row] for what, *row in zip(QUALITIES, *(how_good(outputs.load(n)) for n in tables), strict=True)]
    for method in ("MLLS", "MAPLS", "printed", "FMAPLS", "online-FMAPLS", DEFAULT, "true prior"):
        row = []
        for table in tables.values():
            name = named(table, method)
            kl, right = (np.mean([v[name][column] for v in table.values()]) for column in (0, 2))
            c = f" (c={name.removeprefix(PRINTED)})" if method == "printed" else ""
            row.append(f"{right:.1f}" if method in CEILINGS else f"{kl:.3f}, {right:.1f}{c}")
        rows.append(["FMAPLS printed, its best c here" if method == "printed" else method, *row])
    heads = [f"ρ_train {ratio}, {last_epoch(name)} epochs" for ratio, by in schedules().items() for name in by]
    return markdown(["mean KL, accuracy in %", *heads], rows)


def listed(words: list[str]) -> str:
    """Return words as a list in a sentence: "a, b and c"."""
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last


def mixed(name: str) -> bool:
    """Return whether a network was trained in mixed precision, by its log."""
    return json.loads((outputs.FOLDER / f"{name}.jsonl").read_text().splitlines()[-1]).get("mixed", False)


def commands(_: str) -> str:
    """Return the commands that trained the networks with more epochs: one for each precision."""
    out = []
    for precision, option in ((False, ""), (True, " --mixed")):
        some = {r: [*by][1] for r, by in schedules().items() if mixed([*by][1]) == precision}
        if some:
            ratios, epochs = " ".join(map(str, some)), " ".join(map(last_epoch, some.values()))
            out.append(
                f"`train.py DATA RUNS --ratios {ratios} --epochs {epochs} --suffix=-long{option} --export outputs`"
            )
    return listed(out)


def precision(_: str) -> str:
    """Return in which precision the networks with more epochs were trained, as a sentence."""
    low, full = ([str(r) for r, by in schedules().items() if mixed([*by][1]) == p] for p in (True, False))
    if not low:
        return f"All of them (ratios {listed(full)}) computed in float32."
    others = ", the others in float32" if full else ""
    kind = f"mixed precision (bfloat16 activations, float32 weights){others}"
    return f"Those at ratios {listed(low)} were trained in {kind}."


def schedule(what: str) -> str:
    """Return what more epochs bring to FMAPLS as printed, at its best c for either network, and what the paper has."""
    theirs, message = claims.paper(), []
    for ratio, by in schedules().items():
        before, after = (np.mean([v[named(table, "printed")][2] for v in table.values()]) for table in by.values())
        printed = np.mean([theirs.accuracy(c) for c in theirs.cells if c.startswith(f"{ratio}/")])
        message.append(
            {
                "ratios": f"{ratio}",
                "gain": f"{after - before:+.1f}",
                "behind": f"{printed - after:.1f}",
                "paper": f"{printed:.1f}",
            }[what]
        )
    return listed(message)


def levels(_: str) -> str:
    """Return in how many cells our KL is above the one that the paper prints, by method."""
    theirs, mine = claims.paper(), claims.ours(stable=False)
    some = claims.CIFAR_40
    above = {m: sum(mine.kl(c, m) > theirs.kl(c, m) for c in some) for m in claims.METHODS}
    names = {"FMAPLS": "FMAPLS as printed", "online-FMAPLS": "online-FMAPLS (the stable form)"}
    return listed([f"{n} for {names.get(m, m)}" for m, n in above.items()])


def printed_gain(_: str) -> str:
    """Return by how many per cent the paper's mean KL of FMAPLS is below that of MAPLS, over the 40 cells."""
    theirs = claims.paper()
    ours, other = (np.mean([theirs.kl(c, m) for c in claims.CIFAR_40]) for m in ("FMAPLS", "MAPLS"))
    return f"{100 * (1 - ours / other):.0f}"


VAL_CELLS = {
    "imagenet-val5k/absent-0": "nothing shifted",
    "imagenet-val5k/uneven-3": "0 to 3 images a class",
    "imagenet-val5k/absent-0.5": "half of the classes absent",
    "imagenet-val5k/absent-0.8": "four fifths absent",
}


def heads() -> str:
    """Return what the heads on Tiny-ImageNet learnt from, and how good they are."""
    rows = []
    for ratio in CIFAR_RATIOS:
        o = models.load(f"tiny-imagenet-lt-{ratio}")
        rows.append(
            [
                f"{ratio}",
                f"{o.counts.sum():,}",
                f"{o.counts.max()} to {o.counts.min()}",
                f"{len(o.y_held_out):,}",
                *how_good(o),
            ]
        )
    return markdown(
        [
            "ρ_train",
            "training images",
            "a class",
            "held-out images",
            *QUALITIES,
        ],
        rows,
    )


def means(table: Cells, titles: dict[str, str] | None = None) -> str:
    """Return mean KL and accuracy over the shifts of each classifier, best KL and best accuracy in bold.

    With `titles`, columns are the single cells in it, under these names, and doing nothing is a row.
    """
    names = [*(["source prior"] if titles else []), *main_methods(table)]
    models = list(titles or dict.fromkeys(c.split("/")[0] + "/" for c in table))
    values = {
        m: [
            np.mean([v[m] for c, v in table.items() if k in (c, c.split("/")[0] + "/")], axis=0)[[0, 2]] for k in models
        ]
        for m in names
    }
    rivals = [m for m in names if m not in CEILINGS]
    low = [min(round(values[m][i][0], 3) for m in rivals) for i in range(len(models))]
    high = [max(round(values[m][i][1], 1) for m in rivals) for i in range(len(models))]

    def bold(text: str, on: bool) -> str:
        return f"**{text}**" if on else text

    rows = [
        [
            m,
            *(
                bold(f"{kl:.3f}", round(kl, 3) == low[i])
                + ", "
                + bold(f"{accuracy:.1f}", round(accuracy, 1) == high[i])
                if m in rivals
                else f"{accuracy:.1f}"
                for i, (kl, accuracy) in enumerate(row)
            ),
        ]
        for m, row in values.items()
    ]
    columns = [re.sub("^(cifar100|tiny-imagenet)-lt-", "ρ_train ", k).removeprefix("imagenet-lt-")[:-1] for k in models]
    return markdown(["mean KL, accuracy in %", *(titles.values() if titles else columns)], rows)


def main_methods(table: Cells) -> list[str]:
    """Return the methods of `means`: of the printed ones, only the best single setting."""
    keep = {best_single(table, s) for s in SWEPT}
    hide = {"source prior", "BBSE, solve and clip"}
    names = [m for m in next(iter(table.values())) if m in keep or not (m.startswith(SWEPT) or m in hide)]
    return [m for m in names if m not in CEILINGS] + [m for m in CEILINGS if m in names]


def comparisons(table: Cells, longer: Cells | None = None) -> str:
    """Return who is below whom in KL, in how many cells and by how much; the same after longer training if given."""
    result = claims.comparisons(table)["comparisons"]
    beside = [compare(longer, str(c["ours"]), str(c["theirs"])) for c in result] if longer else []
    after = [[f"{c['lower_in']} of {c['cells']}", f"{c['change_percent']:+.0f} %"] for c in beside]
    rows = [
        [
            c["ours"],
            c["theirs"],
            f"{c['lower_in']} of {c['cells']}",
            f"{c['change_percent']:+.0f} %",
            *(f"{v:+.0f} %" for v in reversed(c["change_percent_by_model"].values())),
            *more,
        ]
        for c, more in zip(result, after or [[]] * len(result), strict=True)
    ]
    models = [m.rsplit("-", 1)[-1] for m in reversed(result[0]["change_percent_by_model"])]
    heads = ["twice the epochs: lower in", "mean"] if longer else []
    return markdown(["KL of", "against", "lower in", "mean", *models, *heads], rows)


def accuracy(table: Cells) -> str:
    """Return how far the accuracy of the default is from the best of all methods, by classifier."""
    result = claims.comparisons(table)["accuracy"]
    rows = []
    for a in result:
        by = a["gap_to_best_by_model"]
        rows.append(
            [
                a["method"],
                *(f"{by[m][1]:.2f} ({by[m][0]})" for m in reversed(by)),
                f"{a['mean_below_true_prior']:.1f}",
            ]
        )
    models = [m.rsplit("-", 1)[-1] for m in reversed(result[0]["gap_to_best_by_model"])]
    return markdown(["points below the best", *models, "below the true prior"], rows)


def printed() -> str:
    """Return the printed algorithms' paths in one cell: by iterations for batch, by samples for online."""
    batch, online = record.read("why"), record.read("collapse")
    kl = {c: dict(zip(batch["steps"], values, strict=True)) for c, values in batch["kl"].items()}
    best_c = min(kl, key=lambda c: kl[c][100])
    at = min(online["samples"], key=lambda n: abs(n - 1000))
    i, last = online["samples"].index(at), online["samples"][-1]
    rows = [
        ["batch, best c at 100 iterations", f"{best_c} N", f"{kl[best_c][100]:.3f}"],
        ["… the same c after 1024 iterations", f"{best_c} N", f"{kl[best_c][1024]:.3f}"],
        [
            "… best c at 1024 iterations",
            *min(((f"{c} N", f"{v[1024]:.3f}") for c, v in kl.items()), key=lambda row: float(row[1])),
        ],
        ["batch, stable (no c), 100 iterations", "", f"{batch['FMAPLS stable']:.3f}"],
        ["MAPLS", "", f"{batch['MAPLS']:.3f}"],
        ["MLLS, 100 iterations", "", f"{batch['MLLS']:.3f}"],
    ]
    for c, values in online["printed"].items():
        rows.append([f"online as printed, γ = 1, after {at} samples", c, f"{values[i]:.3f}"])
    for c, values in online["printed, start mended"].items():
        rows.append([f"… start mended, after {at} / {last} samples", c, f"{values[i]:.3f} / {values[-1]:.3f}"])
    rows += [
        [
            f"online, stable (no c), after {at} / {last} samples",
            "",
            f"{online['stable'][i]:.3f} / {online['stable'][-1]:.3f}",
        ],
        ["uniform prior", "", f"{online['uniform']:.3f}"],
    ]
    return markdown([f"{batch['cell']}, {batch['trials']} trials", "c", "KL"], rows)


def ascent_means() -> dict[str, np.ndarray]:
    table = cells("ascent")
    return {m: np.mean([v[m] for v in table.values()], axis=0) for m in next(iter(table.values()))}


def ascent() -> str:
    """Return gradient ascent at its best μ for each T_grad, beside the surrogate and the rules without a constant."""
    data, mean = record.read("ascent"), ascent_means()
    names = [min((f"GA, μ={m:g}, T_grad={t}" for m in data["mus"]), key=lambda m: mean[m][0]) for t in data["steps"]]
    names += [
        "GA, μ=0.01, T_grad=10",
        min((m for m in mean if m.startswith("LSF")), key=lambda m: mean[m][0]),
        "Newton, printed",
        "Newton, posterior mean",
        "stable",
        "MAPLS",
    ]
    by = {r: [c for c in data["cells"] if c.startswith(f"cifar100-lt-{r}/")] for r in CIFAR_RATIOS}
    rows = [
        [
            m,
            f"{mean[m][0]:.3f}",
            *(f"{np.mean([data['cells'][c][m][0] for c in by[r]]):.3f}" for r in CIFAR_RATIOS),
            f"{100 * mean[m][1]:.2f} %" if m.startswith("GA") else "",
            f"{mean[m][2]:.1f} N" if m != "MAPLS" else "",
            f"{1000 * mean[m][3]:.0f}",
        ]
        for m in dict.fromkeys(names)
    ]
    return markdown(
        ["update of α", "mean KL", *(f"ρ_train {r}" for r in CIFAR_RATIOS), "steps guarded", "Σα at the end", "ms"],
        rows,
    )


def ascent_online() -> str:
    """Return gradient ascent on a stream: for each form and T_grad the best μ, its KL and its cost."""
    data = record.read("ascent-online")
    some = list(data["cells"])
    rows = []
    mean = {m: np.mean([data["cells"][c][m] for c in some], axis=0) for m in data["cells"][some[0]]}
    for form in ("printed", "posterior mean"):
        for t in data["steps"]:
            best = min((f"{form}, μ={m:g}, T_grad={t}" for m in data["mus"]), key=lambda m: mean[m][0])
            rows.append(
                [
                    f"GA, {best}",
                    *(f"{data['cells'][c][best][0]:.2f}" for c in some),
                    f"{100 * mean[best][1]:.1f} %",
                    f"{1e6 * mean[best][3]:.0f}",
                ]
            )
    for name in ("online-FMAPLS, stable", "uniform prior"):
        rows.append(
            [
                name,
                *(f"{data['cells'][c][name][0]:.2f}" for c in some),
                "",
                f"{1e6 * mean[name][3]:.0f}" if mean[name][3] else "",
            ]
        )
    return markdown(["on a stream", *(f"KL, {c}" for c in some), "steps guarded", "µs a sample"], rows)


def monotone() -> str:
    """Return in how many steps what falls, by c/N: the range over the cells."""
    table = cells("monotone")
    rows = []
    for c in next(iter(table.values())):
        values = np.array([v[c] for v in table.values()])
        spans = [f"{a:.0f}–{b:.0f}" if b else "0" for a, b in zip(values.min(0), values.max(0), strict=True)]
        rows.append([c, *spans[:6]])
    return markdown(
        [
            "c/N",
            *(
                f"{what}, {t} steps"
                for t in (99, 299)
                for what in ("log-likelihood", "log posterior, α of the step", "log-likelihood − Σ log π")
            ),
        ],
        rows,
    )


def intervals() -> str:
    """Return the lowest and highest coverage of each kind of interval over the cells, and its mean width."""
    table = cells("intervals")
    rows = []
    for kind in next(iter(table.values())):
        coverage, width = np.array([v[kind] for v in table.values()]).T
        rows.append([kind, f"{100 * coverage.min():.0f}–{100 * coverage.max():.0f} %", f"{width.mean():.4f}"])
    return markdown(["95 % intervals, raw outputs", "classes covered", "mean width"], rows)


def timing() -> str:
    """Return all twelve slopes of Table 1."""
    data = record.read("timing")
    rows = [[v, *(f"{x:+.2f}" for x in axes.values())] for v, axes in data["slopes_of_last_three_points"].items()]
    return markdown(["slope of log time against log …", "N", "K", "T_grad"], rows)


def kl_accuracy(values: list[float]) -> str:
    return f"{values[0]:.3f}, {values[1]:.1f}"


def protocol_moments() -> str:
    """Return BBSE and RLLS on the networks, soft and hard."""
    by = record.read("protocol")["moments"]
    rows = [[m, *(kl_accuracy(v[m]) for v in by.values())] for m in next(iter(by.values()))]
    return markdown(["mean KL, accuracy in %", *(f"ρ_train {k.rsplit('-', 1)[-1]}" for k in by)], rows)


def protocol_draws() -> str:
    """Return what eq. 2 and 3 as printed change, mean over the training ratios."""
    by = record.read("protocol")["draws"]
    names = list(next(iter(next(iter(by.values())).values())))
    rows = [
        [m, *(kl_accuracy(np.mean([v[m] for v in draws.values()], axis=0)) for draws in by.values())] for m in names
    ]
    return markdown(["mean KL, accuracy in %", *by], rows)


def both_protocols(name: str) -> str:
    """Return BBSE and RLLS with the outputs on held-out rows and on the training rows."""
    by = record.read(name)["classifiers"]
    kinds = [(name, kind) for name, v in by.items() for kind in v]
    rows = [["rows, accuracy on them", *(f"{by[n][k]['rows']:,}, {by[n][k]['accuracy']:.1f}" for n, k in kinds)]]
    for m in by[kinds[0][0]][kinds[0][1]]["methods"]:  # a row that an older run lacks is left out
        rows.append([m, *(kl_accuracy(by[n][k]["methods"][m]) for n, k in kinds)])
    short = re.compile("(tiny-imagenet|cifar100)-lt-")
    titles = [(short.sub("ρ_train ", n).replace("-long", ", twice the epochs"), k) for n, k in kinds]
    return markdown(["mean KL, accuracy in %", *(f"{n}, {k} outputs" for n, k in titles)], rows)


def imagenet_real() -> str:
    """Return the means on ImageNet-LT itself, where its outputs have been made; else nothing."""
    table, kind = claims.imagenet_cells()
    return means(table) if kind == "real" else ""


def imagenet_here(where: str) -> str:
    """Return whether the outputs on ImageNet-LT are here, in words for one of two places."""
    real = claims.imagenet_cells()[1] == "real"
    return {
        ("claims", False): "ImageNet's images are not here, and a simulation cannot confirm or refute what was "
        "measured on them: its numbers are given for what they are worth.",
        ("claims", True): "Claims on ImageNet are put to outputs on its images.",
        ("page", False): "The paper's ImageNet-LT is not here. Those who have the images run `imagenet.py` and then "
        "`run.py imagenet`; its cells then stand here, in the claims and beside the paper's figures of Tables 4 and 5. "
        "Three studies stand in for it.",
        ("page", True): "The outputs on ImageNet-LT were made by `imagenet.py`. Three studies stand beside it.",
    }[where, real]


def protocol_training() -> str:
    """Return BBSE and RLLS on the networks whose confusion on the training set is stored; else nothing."""
    return both_protocols("protocol-training") if stored("protocol-training") else ""


def stored(name: str) -> bool:
    return (record.RESULTS / f"{name}.json").exists()


def training(_: str) -> str:
    """Return of which networks the confusion on the training set is stored, as a sentence."""
    if not stored("protocol-training"):
        return "Our networks' training outputs were not kept."
    names = [n.removeprefix("cifar100-lt-") for n in record.read("protocol-training")["classifiers"]]
    ratios = listed([n.replace("-long", " (twice the epochs)") for n in names])
    return f"Of our networks the confusion on the training set is stored at ratios {ratios}:"


TABLES: dict[str, Callable[[], str]] = {
    "networks": networks,
    "longer": longer,
    "cifar": lambda: means(cells("cifar")),
    "cifar-comparisons": lambda: comparisons(cells("cifar"), cells("long")),
    "cifar-accuracy": lambda: accuracy(cells("cifar")),
    "claims": lambda: claims.table(claims.verdicts()).rstrip("\n"),
    "text": lambda: means(cells("text")),
    "text-comparisons": lambda: comparisons(cells("text")),
    "printed": printed,
    "ascent": ascent,
    "ascent-online": ascent_online,
    "monotone": monotone,
    "intervals": intervals,
    "timing": timing,
    "protocol-moments": protocol_moments,
    "protocol-text": lambda: both_protocols("protocol-text"),
    "protocol-tiny": lambda: both_protocols("protocol-tiny"),
    "protocol-draws": protocol_draws,
    "imagenet": lambda: means({c: v for c, v in cells("imagenet").items() if c.startswith(claims.SIMULATED)}),
    "imagenet-real": imagenet_real,
    "protocol-training": protocol_training,
    "heads": heads,
    "tiny": lambda: means(cells("tiny")),
    "tiny-comparisons": lambda: comparisons(cells("tiny")),
    "val": lambda: means(cells("val"), VAL_CELLS),
}


# -- numbers in the prose ---------------------------------------------------------------------------------------------


def of_experiment(argument: str) -> tuple[Cells, str]:
    """Return the cells of the experiment that an argument names before a slash, and the rest; without one, CIFAR."""
    name, slash, rest = argument.partition("/")
    table = cells(name if slash else "cifar")
    if name == "imagenet":  # in the prose always the simulation
        table = {c: v for c, v in table.items() if c.startswith(claims.SIMULATED)}
    return table, rest if slash else argument


def over(argument: str, column: int) -> float:
    """Return a method's mean over the cells; `METHOD@0.02` only at that training ratio, `text/METHOD` on text.

    Of a classifier without a ratio `METHOD@0.5` is the cell of that strength.
    """
    table, rest = of_experiment(argument)
    method, _, where = rest.partition("@")
    method = named(table, method)
    those = [c for c in table if f"-{where}/" in c] or [c for c in table if c.endswith(f"-{where}")]
    return float(np.mean([table[c][method][column] for c in (those if where else table)]))


def pair(argument: str) -> dict:
    """Return how two methods compare (`A|B`), or at some training ratios (`A|B@0.2,0.05`)."""
    table, rest = of_experiment(argument)
    names, _, ratios = rest.partition("@")
    ours, theirs = (named(table, name) for name in names.split("|"))
    if ratios:
        table = {c: v for c, v in table.items() if any(f"-{ratio}/" in c for ratio in ratios.split(","))}
    return compare(table, ours, theirs)


def below(argument: str) -> str:
    """Return by how many per cent KL is below (`A|B`), or below at one training ratio (`A|B@0.02`)."""
    names, _, where = argument.partition("@")
    result = pair(names)
    by = {m.rsplit("-", 1)[-1]: v for m, v in result["change_percent_by_model"].items()}
    value = by[where] if where else result["change_percent"]
    return f"{abs(value):.0f}"


def span(argument: str) -> str:
    values = [abs(round(v)) for v in pair(argument)["change_percent_by_model"].values()]
    return f"{min(values)} to {max(values)}"


def rlls(what: str) -> str:
    theirs, table = claims.paper(), cells("cifar")
    ratio = [theirs.kl(c.replace("cifar100-lt-", ""), "RLLS") / v["source prior"][0] - 1 for c, v in table.items()]
    return {"low": f"{100 * min(ratio):.0f}", "high": f"{100 * max(ratio):.0f}"}[what]


def gap(what: str) -> str:
    """Return the default pipeline's distance to the best accuracy at a training ratio: the largest."""
    a = claims.accuracy_gaps(cells("cifar"), DEFAULT)
    largest = max(gap for _, gap in a["gap_to_best_by_model"].values())
    return {"largest": "" if largest < 0.005 else f", or at most {largest:.2f} points below it"}[what]


def stopping(what: str) -> str:
    """Return where plain EM and printed FMAPLS are best on their way, and when the likelihood falls."""
    data = record.read("stopping")
    low = {c: min(x["kl"] for m, x in v.items() if m.startswith("c=")) for c, v in data["cells"].items()}
    apart = [100 * (v["EM"]["kl"] / low[c] - 1) for c, v in data["cells"].items()]
    em = [v["EM"]["step"] for v in data["cells"].values()]
    pairs = [pair for v in data["cells"].values() for pair in v["c=2N"]["by_trial"]]
    fell = [(best, fall) for best, fall in pairs if fall]
    return {
        "apart": f"{min(apart):+.1f} to {max(apart):+.1f}",
        "steps": f"{min(em)} to {max(em)}",
        "best": f"{min(b for b, _ in pairs)} to {max(b for b, _ in pairs)}",
        "late": f"{min(f / b for b, f in fell):.1f} to {max(f / b for b, f in fell):.1f}",
        "never": f"{len(pairs) - len(fell)} of {len(pairs)}",
        "limit": str(data["steps"]),
    }[what]


@functools.cache
def sizes() -> dict[str, str]:
    """Return the sizes that the experiment was set up with."""
    epochs = [int(last_epoch(f"cifar100-lt-{r}")) for r in CIFAR_RATIOS]
    labels = [len(models.load(f"{pretrained.TINY}-{r}").y_held_out) / pretrained.K for r in CIFAR_RATIOS]
    simulated_sizes = simulated.imagenet_counts()
    return {
        "held-out": str(cifar.HELD_OUT_MAX),
        "class": str(cifar.PER_CLASS),
        "epochs": f"{min(epochs)} to {max(epochs)}",
        "cells": str(len(CIFAR)),
        "timing": str(record.read("timing")["fixed"]["N"]),
        "text": str(run.EXPERIMENTS["text"].n_dirichlet),
        "tiny": str(run.EXPERIMENTS["tiny"].n_dirichlet),
        "tiny-test": str(pretrained.TEST),
        "tiny-labels": f"{min(labels):.0f} to {max(labels):.0f}",
        "simulated": f"{simulated_sizes.max()} to {simulated_sizes.min()}",
    }


def rule(what: str) -> str:
    """Return a threshold of the checks."""
    return {
        "comparable": f"{claims.COMPARABLE:g}",
        "steady": f"{claims.STEADY:g}",
        "near": f"{claims.NEAR:g}",
        "settled": f"{100 * claims.SETTLED:.0f}",
    }[what]


def newton(what: str) -> str:
    mean = ascent_means()
    return {
        "kl": f"{mean['Newton, posterior mean'][0]:.3f}",
        "ms": f"{1000 * mean['Newton, posterior mean'][3]:.0f}",
        "stable-ms": f"{1000 * mean['stable'][3]:.0f}",
        "stable": f"{mean['stable'][0]:.3f}",
    }[what]


def ascended(what: str) -> str:
    mean = ascent_means()
    ga, lsf = (min((m for m in mean if m.startswith(s)), key=lambda m: mean[m][0]) for s in ("GA", "LSF"))
    cheap = min((m for m in mean if m.startswith("GA") and m.endswith("=10")), key=lambda m: mean[m][0])
    return {
        "kl": f"{mean[ga][0]:.3f}",
        "setting": ga.removeprefix("GA, ").replace("=", " = "),
        "lsf": f"{mean[lsf][0]:.3f}",
        "c": lsf.removeprefix("LSF, c="),
        "times": f"{mean[ga][3] / mean[lsf][3]:.1f}",
        "cheap": f"{mean[cheap][0]:.3f}",
        "cheap-setting": cheap.removeprefix("GA, ").replace("=", " = "),
        "cheap-times": f"{mean[cheap][3] / mean[lsf][3]:.1f}",
        "small": f"{mean['GA, μ=0.01, T_grad=10'][0]:.2f}",
        "small-guarded": f"{100 * mean['GA, μ=0.01, T_grad=10'][1]:.0f}",
        "guarded": f"{100 * mean[ga][1]:.2f}",
        "alpha": f"{mean[lsf][2]:.0f}",
    }[what]


def streamed(what: str) -> str:
    table = cells("ascent-online")
    if what == "sum":
        return f"{next(iter(table.values()))['posterior mean, μ=0.01, T_grad=1'][2]:.0f}"
    values = {
        form: [min(x[0] for m, x in v.items() if m.startswith(form)) for v in table.values()]
        for form in ("printed", "posterior mean", "online-FMAPLS", "uniform")
    }
    return " and ".join(f"{x:.2f}" for x in values[what])


def in_plane(what: str) -> str:
    """Return what the sweep of the online recursion says, of the readings that need no label; `WHAT@2` of cell 2."""
    what, _, number = what.partition("@")
    name, cell = list(cells("plane").items())[int(number or 1) - 1]
    end = {k: v[-1] for k, v in cell["kl"].items() if "observed" not in k}
    printed, mended = ([v for k, v in end.items() if k.startswith(s)] for s in ("printed", "mended"))
    labelled = [v[-1] for k, v in cell["kl"].items() if "observed" in k]
    best = min(end, key=end.__getitem__)
    path = cell["kl"]["printed, running, γ=0.01, c=3000"]
    return {
        "cell": claims.spot(name.removeprefix("cifar100-lt-")),
        "settings": str(len(end)),
        "printed": str(len(printed)),
        "gone": str(sum(v > 2 for v in printed)),
        "least": f"{min(printed):.2f}",
        "best": f"{end[best]:.2f}",
        "setting": best.replace("=", " = "),
        "labelled": f"{min(labelled):.2f}",
        "uniform": f"{cell['uniform']:.2f}",
        "stable": f"{cell['stable']:.2f}",
        "n": f"{cell['samples'][-1]:,}",
        "mended-gone": str(sum(v > 2 for v in mended)),
        "mended": str(len(mended)),
        "slow-2000": f"{path[cell['samples'].index(2000)]:.2f}",
        "slow-end": f"{path[-1]:.1f}",
    }[what]


def weaker(_: str) -> str:
    """Return how many points of accuracy our networks are behind the paper's, by FMAPLS as printed: least to most."""
    theirs, mine = claims.paper(), claims.ours(stable=False)
    lost = []
    for ratio in CIFAR_RATIOS:
        settings = [c for c in mine.cells if c.startswith(f"{ratio}/")]
        lost.append(np.mean([theirs.accuracy(c) - mine.accuracy(c) for c in settings]))
    return f"{min(lost):.1f} to {max(lost):.1f}"


def hours(epochs: str) -> str:
    """Return the CPU-hours of so many epochs for the four networks, by their logs."""
    logs = [(outputs.FOLDER / f"cifar100-lt-{r}.jsonl").read_text().splitlines() for r in CIFAR_RATIOS]
    seconds = [np.mean([json.loads(line)["cpu_seconds"] for line in log]) for log in logs]
    return f"{int(epochs) * sum(seconds) / 3600:.0f}"


def trials(name: str) -> str:
    return str(record.read(name)["trials"])


def fewer(experiment: str) -> str:
    """Return which rows have another number of trials than the rest, and how many."""
    result = record.read(experiment)
    shown = main_methods(of_experiment(f"{experiment}/")[0])
    other = {
        m: made["trials"]
        for m, made in result["made_with"].items()
        if made["trials"] != result["trials"] and m in shown
    }
    by = {n: [m for m in other if other[m] == n] for n in sorted(set(other.values()), reverse=True)}
    return "; ".join(f"{n} for {listed([f'`{m}`' for m in names])}" for n, names in by.items()) or "none"


def lines(experiment: str) -> str:
    """Return how many trials each line of online curves has; one that is older than its method now is says so."""
    result = record.read(experiment)
    names = [name for name in next(iter(result["cells"].values())) if name != "samples"]
    made = {name: record.line_made(result, name) for name in names}
    return "; ".join(
        f"{name}: {m['trials']} trials" + ("" if "made" in m else ", run before that method was made anew")
        for name, m in made.items()
    )


def stale(experiment: str) -> str:
    """Return which rows are older than the estimator now is, as a sentence; nothing if none is."""
    made = record.read(experiment)["made_with"]
    old = [m for m, how in made.items() if ("EBLS" in m or DEFAULT in m) and "made" not in how]
    names = listed([f"`{m}`" for m in old]) if old else ""
    return f" From before the estimator was made anew are {len(old)} rows: {names}." if old else ""


def lower_of(argument: str) -> str:
    """Return in how many cells of one kind of shift the first method has the lower KL (`A|B|shuffled`)."""
    table, rest = of_experiment(argument)
    ours, theirs, shift = rest.split("|")
    comparison = compare({c: v for c, v in table.items() if f"/{shift}-" in c}, ours, theirs)
    return f"{comparison['lower_in']} of {comparison['cells']}"


def worth(_: str) -> str:
    """Return how many gradient steps on α cost as much as one pass over the rows, by the times of Table 1."""
    seconds = record.read("timing")["seconds"]
    ascent = seconds["FMAPLS+GA"]["T_grad"]
    few, many = min(ascent, key=int), max(ascent, key=int)
    step = (ascent[many] - ascent[few]) / (int(many) - int(few))
    return f"{seconds['FMAPLS+LSF']['T_grad'][many] / step:.0f}"


def fixed(_: str) -> str:
    """Return the µs of a sample of online-FMAPLS that do not depend on K: a straight line through the four points."""
    points = record.read("timing")["seconds"]["online-FMAPLS+LSF"]["K"]
    return f"{1e6 * np.polyfit([int(k) for k in points], list(points.values()), 1)[1]:.2f}"


def cost(argument: str) -> str:
    """Return by how many points of accuracy a method is below outputs left alone, in the cell where that is most."""
    table, method = of_experiment(argument)
    return f"{max(v['source prior'][2] - v[method][2] for v in table.values()):.1f}"


def true_prior(where: str) -> str:
    return f"{max(over(f'{m}@{where}' if where else m, 2) for m in CEILINGS):.1f}"


FACTS: dict[str, Callable[[str], str]] = {
    "kl": lambda a: f"{over(a, 0):.3f}",
    "accuracy": lambda a: f"{over(a, 2):.1f}",
    "setting": lambda a: named(*of_experiment(a)).removeprefix(PRINTED_GA).replace("=", " = "),
    "c": lambda a: named(of_experiment(a + "printed")[0], "printed").removeprefix(PRINTED),
    "tried": lambda a: str(sum(m.startswith(PRINTED_GA) for m in next(iter(cells("cifar").values())))),
    "below": below,
    "lower-of": lower_of,
    "worth": worth,
    "cost": cost,
    "change": lambda a: f"{pair(a)['change_percent']:+.0f}",
    "span": span,
    "lower": lambda a: f"{pair(a)['lower_in']} of {pair(a)['cells']}",
    "gap": gap,
    "rlls": rlls,
    "newton": newton,
    "ascent": ascended,
    "streamed": streamed,
    "plane": in_plane,
    "hours": hours,
    "schedule": schedule,
    "commands": commands,
    "precision": precision,
    "levels": levels,
    "printed-gain": printed_gain,
    "imagenet": imagenet_here,
    "training": training,
    "stopping": stopping,
    "rule": rule,
    "size": lambda a: sizes()[a],
    "fixed": fixed,
    "trials": trials,
    "fewer": fewer,
    "lines": lines,
    "stale": stale,
    "weaker": weaker,
    "ceiling": true_prior,
    "slope": lambda a: f"{record.read('timing')['slopes_of_last_three_points'][a.split('|')[0]][a.split('|')[1]]:.2f}",
    "verdicts": lambda a: str(sum(str(v["verdict"]) == a for v in claims.verdicts())),
}


def fact(text: str) -> str:
    name, _, argument = text.partition(":")
    return FACTS[name](argument)


def filled(template: str) -> str:
    """Return the page: the template with every table and number made from the results."""
    body = TABLE.sub(lambda m: TABLES[m[1]](), FACT.sub(lambda m: fact(m[1]), template))
    return "<!-- Made by findings.py from page.md and the stored results: edit those. -->\n\n" + body


def main() -> None:
    PAGE.write_text(filled(TEMPLATE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE.relative_to(HERE.parents[1]))


if __name__ == "__main__":
    main()
