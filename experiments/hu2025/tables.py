"""Tables in the paper's layout, its figures beside ours: Markdown and HTML from a results file.

    python tables.py results/cifar.json
"""

from __future__ import annotations

import html
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
PRINTED, PRINTED_ONLINE = "FMAPLS printed, c=", "online-FMAPLS printed, c="
PRINTED_GA = "FMAPLS printed, GA, "
SWEPT = (PRINTED, PRINTED_ONLINE, PRINTED_GA)  # of each of these only the best setting is shown
NOT_THE_PAPERS = ("cifar100-lt-", "imagenet-lt/", "imagenet-lt-simulated/")  # beginnings of names of cells
CEILINGS = ("true prior", "true prior + TS")
SHIFTS = {"shuffled": ("shuffled long-tail targets", "ρ_test = {}"), "dirichlet": ("Dirichlet targets", "α_test = {}"),
          "absent": ("all images of a part of the classes", "{} of the classes absent"),
          "uneven": ("a random number of images of each class", "0 to {} images a class")}
PAPER_ROW = {"MLLS": "MLLS", "BBSE": "BBSE", "RLLS, C undivided": "RLLS", "MAPLS": "MAPLS"}
TITLES = {
    "cifar": "Long-tailed CIFAR-100, ResNet-32 trained here",
    "long": "Long-tailed CIFAR-100, ResNet-32 trained here for twice the epochs",
    "text": "Banking77 and CLINC150, long-tailed training (not in the paper)",
    "imagenet": "ImageNet scale. `imagenet-lt-simulated` is SIMULATED: K = 1000 Gaussian classes with ImageNet-LT-like "
                "class sizes; the paper's figures are for the real ImageNet-LT and stand there for the order of the "
                "methods only. `imagenet-lt`, where it appears, is the real one",
    "tiny": "Tiny-ImageNet, K = 200: heads trained here on long tails, on features of a network that knows ImageNet "
            "(not in the paper)",
    "val": "ImageNet's 1000 classes: EfficientNet-lite0 on 3 validation images a class, none drawn twice (not in the "
           "paper)",
}


@dataclass(frozen=True, slots=True)
class Entry:
    kl: float
    kl_se: float | None
    accuracy: float
    accuracy_se: float | None
    paper: tuple[float, float] | None
    best_kl: bool = False
    best_accuracy: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    title: str
    columns: list[str]
    rows: list[tuple[str, list[Entry]]]


def best_single(table: dict[str, dict[str, list[float]]], prefix: str) -> str:
    """Return the setting of a printed method whose mean KL over all cells is lowest: chosen with hindsight."""
    names = [m for m in next(iter(table.values())) if m.startswith(prefix)]
    return min(names, key=lambda m: sum(cell[m][0] for cell in table.values()), default="")


def sections(result: dict) -> Iterator[Section]:
    table = result["cells"]
    paper = {m: row for t in json.loads((HERE / "paper.json").read_text()).values() for m, row in _flat(t)}
    groups: dict[tuple[str, str], list[str]] = {}
    for name in table:
        model, setting = name.split("/")
        groups.setdefault((setting.split("-")[0], model), []).append(name)
    for (shift, model), names in sorted(groups.items(), key=lambda g: g[0][0] != "shuffled"):
        alone = model in ("imagenet-lt", "imagenet-lt-simulated")  # real and simulated have each their best c
        family = {n: v for n, v in table.items() if not alone or n.startswith(f"{model}/")}
        printed, online, gradient = (best_single(family, s) for s in SWEPT)
        paper_row = {**PAPER_ROW, printed: "FMAPLS", online: "online-FMAPLS"}
        methods = [m for m in table[names[0]] if not m.startswith(SWEPT) or m in (printed, online, gradient)]
        rivals = [m for m in methods if m not in CEILINGS]
        rows = []
        for m in methods:
            entries = []
            for name in names:
                v = table[name][m]
                low = min(round(table[name][r][0], 3) for r in rivals)
                high = max(round(table[name][r][2], 2) for r in rivals)
                key = (paper_row.get(m), re.sub(f"^({'|'.join(NOT_THE_PAPERS)})|-long(?=/)", "", name))
                rival = m in rivals
                entries.append(Entry(*v, paper=paper.get(key), best_kl=rival and round(v[0], 3) == low,
                                     best_accuracy=rival and round(v[2], 2) == high))
            rows.append((m, entries))
        title, column = SHIFTS[shift]
        yield Section(f"{model}, {title}", [column.format(n.rsplit("-", 1)[1]) for n in names], rows)


def _flat(table: dict) -> Iterator[tuple[tuple[str, str], tuple[float, float]]]:
    for method, row in table["rows"].items():
        for cell, value in row.items():
            yield (method, cell), tuple(value)


def cell_text(e: Entry, bold: str, end: str, line: str, aside: str, aside_end: str) -> str:
    kl = f"{e.kl:.3f}" if e.kl_se is None else f"{e.kl:.3f} ± {e.kl_se:.3f}"
    accuracy = f"{e.accuracy:.2f}" if e.accuracy_se is None else f"{e.accuracy:.2f} ± {e.accuracy_se:.2f}"
    text = f"{bold + kl + end if e.best_kl else kl}{line}{bold + accuracy + end if e.best_accuracy else accuracy}"
    if e.paper:
        text += f"{line}{aside}paper {e.paper[0]:.3f}, {e.paper[1]:.2f}{aside_end}"
    return text


def legend(result: dict) -> str:
    fewer = [f"{m} ({made['trials']})" for m, made in result["made_with"].items() if made["trials"] != result["trials"]]
    other = f" (other numbers of trials: {', '.join(fewer)})" if fewer else ""
    return (f"KL(true ‖ estimate) and accuracy in % after correction: mean ± standard error of {result['trials']} "
            f"trials{other}; best of ours in bold. Below, in the same box, what the paper prints for that cell: its "
            "BBSE beside ours under w ≥ 0, its RLLS beside the one with C undivided, which comes closest. Raw "
            "outputs and the training prior are used unless a name ends in “+ TS”: temperature scaling on held-out "
            "rows, with the mean calibrated output as source prior. The c of a printed method, and the μ and T_grad of "
            "gradient ascent, are the single best over all cells, chosen with hindsight.")


def markdown(result: dict) -> str:
    out = [f"# {TITLES[result['experiment']]}\n", legend(result) + "\n"]
    for s in sections(result):
        out += [f"## {s.title}\n", "| | " + " | ".join(s.columns) + " |", "|---|" + "---|" * len(s.columns)]
        out += [f"| {m} | " + " | ".join(cell_text(e, "**", "**", "<br>", "<small>", "</small>") for e in row) + " |"
                for m, row in s.rows]
        out.append("")
    return "\n".join(out)


STYLE = ("body{font:14px/1.4 system-ui,sans-serif;margin:2em;max-width:75em}"
         "table{border-collapse:collapse;margin:1em 0}td:first-child{text-align:left}small{color:#777}"
         "td,th{padding:.3em .7em;border-bottom:1px solid #ddd;text-align:right;font-variant-numeric:tabular-nums}")


def web(result: dict) -> str:
    title = html.escape(TITLES[result["experiment"]])
    out = [f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{STYLE}</style>"
           f"<h1>{title}</h1><p>{html.escape(legend(result))}</p>"]
    for s in sections(result):
        head = "".join(f"<th>{html.escape(c)}</th>" for c in s.columns)
        out.append(f"<h2>{html.escape(s.title)}</h2><table><tr><th></th>{head}</tr>")
        for m, row in s.rows:
            boxes = "".join(f"<td>{cell_text(e, '<b>', '</b>', '<br>', '<small>', '</small>')}</td>" for e in row)
            out.append(f"<tr><td>{html.escape(m)}</td>{boxes}</tr>")
        out.append("</table>")
    return "\n".join([*out, "</html>\n"])


def write_tables(path: Path) -> None:
    result = json.loads(path.read_text())
    path.with_suffix(".md").write_text(markdown(result))
    path.with_suffix(".html").write_text(web(result))


if __name__ == "__main__":
    write_tables(Path(sys.argv[1]))
