"""Write the tables of docs/what-we-found.md from the results, between its markers.

    python findings.py
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import outputs
from cells import CIFAR_RATIOS
from claims import DEFAULT, claims
from tables import CEILINGS, PRINTED, PRINTED_ONLINE, best_single

HERE = Path(__file__).parent
PAGE = HERE.parents[1] / "docs" / "what-we-found.md"
BLOCK = re.compile(r"(<!-- findings.py: (\S+) -->\n).*?(<!-- to here -->)", re.DOTALL)
Cells = dict[str, dict[str, list[float]]]


def markdown(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]) + "\n"


def networks() -> str:
    """Return what was trained, and how good it is: on all test images, as trained and put to the balanced prior."""
    rows = []
    for ratio in CIFAR_RATIOS:
        name = f"cifar100-lt-{ratio}"
        o = outputs.load(name)
        last = json.loads((outputs.FOLDER / f"{name}.jsonl").read_text().splitlines()[-1])
        right, weights = o.y_held_out, o.counts.sum() / o.counts
        rows.append([
            f"{ratio}", f"{o.counts.sum():,}", f"{last['of']}", f"{len(right):,}",
            f"{100 * np.mean(o.test.argmax(1) == o.y_test):.1f} %",
            f"{100 * np.mean((o.test * weights).argmax(1) == o.y_test):.1f} %",
            f"{100 * np.mean(o.held_out.argmax(1) == right):.1f} %", f"{100 * o.held_out.max(1).mean():.1f} %"])
    return markdown(["ρ_train", "training images", "epochs", "held-out images", "test accuracy, as trained",
                     "… at the balanced prior", "held-out accuracy", "held-out confidence"], rows)


def means(cells: Cells, names: list[str]) -> str:
    """Return mean KL and accuracy over the shifts of each classifier, best KL and best accuracy in bold."""
    models = list(dict.fromkeys(c.split("/")[0] for c in cells))
    table = {m: [np.mean([v[m] for c, v in cells.items() if c.startswith(k + "/")], axis=0)[[0, 2]] for k in models]
             for m in names}
    rivals = [m for m in names if m not in CEILINGS]
    low = [min(round(table[m][i][0], 3) for m in rivals) for i in range(len(models))]
    high = [max(round(table[m][i][1], 1) for m in rivals) for i in range(len(models))]

    def bold(text: str, on: bool) -> str:
        return f"**{text}**" if on else text
    rows = [[m, *(bold(f"{kl:.3f}", m in rivals and round(kl, 3) == low[i]) + ", " * (m in rivals)
                  + bold(f"{accuracy:.1f}", m in rivals and round(accuracy, 1) == high[i]) if m in rivals
                  else f"{accuracy:.1f}" for i, (kl, accuracy) in enumerate(values))] for m, values in table.items()]
    titles = [k.replace("cifar100-lt-", "ρ_train ").replace("imagenet-lt-", "") for k in models]
    return markdown(["mean KL, accuracy in %", *titles], rows)


def main_methods(cells: Cells) -> list[str]:
    """Return the methods of `means`: of the printed ones, only the best single c."""
    keep = {best_single(cells, PRINTED), best_single(cells, PRINTED_ONLINE)}
    hide = {"source prior", "BBSE, solve and clip", "FMAPLS, GA"}
    names = [m for m in next(iter(cells.values())) if m in keep or
             not (m.startswith((PRINTED, PRINTED_ONLINE)) or m in hide)]
    return [m for m in names if m not in CEILINGS] + [m for m in CEILINGS if m in names]


def comparisons(cells: Cells) -> str:
    """Return who is below whom in KL, in how many cells and by how much."""
    rows = []
    for c in claims(cells)["comparisons"]:
        rows.append([c["ours"], c["theirs"], f"{c['lower_in']} of {c['cells']}", f"{c['change_percent']:+.0f} %",
                     *(f"{v:+.0f} %" for v in reversed(c["change_percent_by_model"].values()))])
    models = reversed(claims(cells)["comparisons"][0]["change_percent_by_model"])
    return markdown(["KL of", "against", "lower in", "mean", *(m.rsplit("-", 1)[-1] for m in models)], rows)


def accuracy(cells: Cells) -> str:
    """Return how far the accuracy of the default is from the best of all methods, by classifier and cell by cell."""
    rows = []
    for a in claims(cells)["accuracy"]:
        by = a["gap_to_best_by_model"]
        rows.append([a["method"], *(f"{by[m][1]:.2f} ({by[m][0]})" for m in reversed(by)), f"{a['mean_gap']:.2f}",
                     f"{a['within_0.1_points_in']} of {a['cells']}", f"{a['mean_below_true_prior']:.1f}"])
    models = [m.rsplit("-", 1)[-1] for m in reversed(claims(cells)["accuracy"][0]["gap_to_best_by_model"])]
    return markdown(["points below the best", *models, "mean over cells", "cells within 0.1", "below the true prior"],
                    rows)


def printed() -> str:
    """Return the printed algorithms' paths in one cell: by iterations for batch, by samples for online."""
    batch, online = result("why"), result("collapse")
    kl = {c: dict(zip(batch["steps"], values, strict=True)) for c, values in batch["kl"].items()}
    best_c = min(kl, key=lambda c: kl[c][100])
    at = min(online["samples"], key=lambda n: abs(n - 1000))
    i, last = online["samples"].index(at), online["samples"][-1]
    rows = [["batch, best c at 100 iterations", f"{best_c} N", f"{kl[best_c][100]:.3f}"],
            ["… the same c after 1024 iterations", f"{best_c} N", f"{kl[best_c][1024]:.3f}"],
            ["… best c at 1024 iterations", *min(((f"{c} N", f"{v[1024]:.3f}") for c, v in kl.items()),
                                                 key=lambda row: float(row[1]))],
            ["batch, stable (no c), 100 iterations", "", f"{batch['FMAPLS stable']:.3f}"],
            ["MAPLS", "", f"{batch['MAPLS']:.3f}"], ["MLLS, 100 iterations", "", f"{batch['MLLS']:.3f}"]]
    for c, values in online["printed"].items():
        rows.append([f"online as printed, after {at} samples", c, f"{values[i]:.3f}"])
    for c, values in online["printed, start mended"].items():
        rows.append([f"… start mended, after {at} / {last} samples", c, f"{values[i]:.3f} / {values[-1]:.3f}"])
    rows += [[f"online, stable (no c), after {at} / {last} samples", "",
              f"{online['stable'][i]:.3f} / {online['stable'][-1]:.3f}"],
             ["uniform prior", "", f"{online['uniform']:.3f}"]]
    return markdown([batch["cell"], "c", "KL"], rows)


def intervals() -> str:
    """Return the lowest and highest coverage of each kind of interval over the cells, and its mean width."""
    table = result("intervals")["cells"]
    rows = []
    for kind in next(iter(table.values())):
        coverage, width = np.array([v[kind] for v in table.values()]).T
        rows.append([kind, f"{100 * coverage.min():.0f}–{100 * coverage.max():.0f} %", f"{width.mean():.4f}"])
    return markdown(["95 % intervals of EBLS, raw outputs", "classes covered", "mean width"], rows)


def result(name: str) -> dict:
    return json.loads((HERE / "results" / f"{name}.json").read_text())


def cells(experiment: str) -> Cells:
    return result(experiment)["cells"]


BLOCKS: dict[str, Callable[[], str]] = {
    "networks": networks,
    "cifar": lambda: means(cells("cifar"), main_methods(cells("cifar"))),
    "cifar-comparisons": lambda: comparisons(cells("cifar")),
    "cifar-accuracy": lambda: accuracy(cells("cifar")),
    "text": lambda: means(cells("text"), main_methods(cells("text"))),
    "text-comparisons": lambda: comparisons(cells("text")),
    "printed": printed,
    "intervals": intervals,
    "imagenet": lambda: means(cells("imagenet"), main_methods(cells("imagenet"))),
}


def filled(page: str) -> str:
    """Return the page with every block made anew."""
    return BLOCK.sub(lambda block: block[1] + BLOCKS[block[2]]() + block[3], page)


if __name__ == "__main__":
    assert DEFAULT in main_methods(cells("cifar"))
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
