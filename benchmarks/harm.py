"""Is the default ever worse than outputs left alone, and does the diagnosis say so beforehand? Every stored cell.

    python benchmarks/harm.py

Reads the results of experiments/hu2025, experiments/language_id and ordinary.py. A cell is the mean over its targets.
It is worse if corrected predictions lose more than 0.3 points of accuracy. Of those of ordinary.py all targets are
drawn again, and `diagnose` is asked about each: what counts then is the mean change over those it says nothing of.
The worst of a thousand cells are so in part by chance. So ten times as many other draws, which had no part in choosing
a cell, decide whether it is worse and whether that was said. They are of the same unseen rows of the same classifier:
what is chance among those, they do not tell.
Needs the classifiers that `ordinary.py --make` trains.
"""

from __future__ import annotations

import json

from _ordinary import KEPT_ASIDE, Classifier, draws, load
from _record import RESULTS, markdown, progress, store

import numpy as np  # isort: skip
import reprior as rp
from reprior.assess.diagnose import HARM

EXPERIMENTS = RESULTS.parents[1] / "experiments"
COUNTS_ALONE = "counts alone"
OTHERS = 10  # times as many other draws as a cell was found by
CHANCE = 2  # standard errors


def networks() -> list[tuple[str, str, float]]:
    """Return experiment, cell and change of accuracy of every cell of experiments/hu2025."""
    out = []
    for name in ("cifar", "text", "tiny", "imagenet", "val"):
        table = json.loads((EXPERIMENTS / "hu2025" / "results" / f"{name}.json").read_text(encoding="utf-8"))["cells"]
        out += [(name, cell, (v["default pipeline"][2] - v["source prior"][2]) / 100) for cell, v in table.items()]
    return out


def languages() -> list[tuple[str, str, float]]:
    """Return the same of every channel of experiments/language_id."""
    found = json.loads((EXPERIMENTS / "language_id" / "expected.json").read_text(encoding="utf-8"))["channels"]
    return [("language_id", name, (x["corrected"] - x["as it is"]) / 100) for name, x in found.items()]


def asked(c: Classifier, cell: dict, seeds: range) -> np.ndarray:
    """Return the change of accuracy and whether the diagnosis says nothing, of each draw of a cell (draws, 2)."""
    out = []
    for seed in seeds:
        d = next((d for d in draws(c, cell["size"], seed) if d.shift == cell["shift"]), None)
        if d is None:
            continue
        counts = None if cell["mode"] == "held-out rows" else c.counts
        pipe = rp.pipeline(c.proba[d.heldout], c.y[d.heldout], counts=counts)
        estimate = pipe.estimate(c.proba[d.rows], on_reject="ignore")
        found, rows = rp.diagnose(pipe.source, estimate.target, estimate=estimate), pipe.calibrate(c.proba[d.rows])
        after, alone = (np.asarray(x).argmax(axis=1) == c.y[d.rows] for x in (estimate.correct(c.proba[d.rows]), rows))
        out.append((after.mean() - alone.mean(), not found.may_harm))
    return np.array(out, float)


def told(found: np.ndarray) -> dict[str, float]:
    """Return the mean change of a cell's draws, the share of which nothing is said, and their mean change."""
    changes, silent = found[:, 0], found[:, 0][found[:, 1] > 0]
    return {
        "change": float(changes.mean()), "change_error": error_of(changes), "silent": len(silent) / len(changes),
        "unsaid": float(silent.mean()) if len(silent) else 0.0, "unsaid_error": error_of(silent),
    }  # fmt: skip


def error_of(x: np.ndarray) -> float:
    """Return the standard error of a mean; a single draw may be off by anything."""
    return float(x.std(ddof=1) / np.sqrt(len(x))) if len(x) > 1 else float(len(x))


def looked_at(cells: list[dict]) -> list[dict]:
    """Return cells of ordinary.py with what their own draws say, and what others do."""
    classifiers = {c.name: c for c in load(KEPT_ASIDE)}
    out = []
    for done, cell in enumerate(cells, 1):
        c, n = classifiers[cell["classifier"]], cell["draws"]
        own, others = (told(asked(c, cell, seeds)) for seeds in (range(n), range(n, n + OTHERS * n)))
        out.append({**cell, "own": own, "others": others})
        progress(done, len(cells), "cells")
    return out


def main() -> None:
    stored = json.loads((RESULTS / "ordinary.json").read_text(encoding="utf-8"))["cells"]
    known, rows = [*networks(), *languages()], []
    for name in dict.fromkeys(x[0] for x in known):
        changes = {cell: change for experiment, cell, change in known if experiment == name}
        worst = min(changes, key=changes.__getitem__)
        worse = sum(change < -HARM for change in changes.values())
        rows.append([name, str(len(changes)), f"{100 * changes[worst]:+.2f} ({worst})", str(worse), *[""] * 4])
    again = []
    for mode in dict.fromkeys(cell["mode"] for cell in stored):
        some = [cell for cell in stored if cell["mode"] == mode]
        worse = [cell for cell in some if cell["error"] > HARM]
        worst = max(some, key=lambda cell: cell["error"])
        where = f"{worst['classifier']}, {worst['size']} held-out rows, {worst['shift']}"
        said = ["", "all: it cannot tell", "0", "0"]
        if mode != COUNTS_ALONE:
            found = looked_at(worse)
            again += found
            both = sum(cell["others"]["change"] < -HARM for cell in found)
            left = [cell["others"] for cell in found if cell["others"]["unsaid"] < -HARM]
            sure = sum(x["unsaid"] + CHANCE * x["unsaid_error"] < -HARM for x in left)
            said = [str(both), str(len(found) - len(left)), str(len(left)), str(sure)]
        rows.append(
            [f"ordinary, {mode}", str(len(some)), f"{-100 * worst['error']:+.2f} ({where})", str(len(worse)), *said]
        )
    head = ["study", "cells", "worst change of accuracy, points", "cells worse by more than 0.3",
            "so on other draws too", "said beforehand", "not said", "that beyond chance"]  # fmt: skip
    left = [[c["mode"], c["classifier"], str(c["size"]), c["shift"], *spelled(c["own"]), *spelled(c["others"])]
            for c in again if min(c["own"]["unsaid"], c["others"]["unsaid"]) < -HARM]  # fmt: skip
    text = (
        "# Is the default worse than outputs left alone?\n\nAccuracy after correction less that of the same outputs "
        "left alone, in the mean of each cell. A cell is said beforehand if the targets of which the diagnosis does "
        "not say that correction may lower the accuracy lose 0.3 points at most in the mean. That is asked of "
        f"{OTHERS} times as many draws as the cell was found by, all of them others. Beyond chance: by more than "
        f"{CHANCE} standard errors.\n\n" + markdown(head, rows)
        + "\n\n## Cells in which it was not said, by the draws that they were found by or by others\n\nMeans with "
        "their standard errors. The draws that a cell was found by make it look worse than it is; others do not.\n\n"
        + markdown(["mode", "classifier", "held-out rows", "shift", "change, points", "targets without a word",
                    "change of those", "other draws: change", "without a word", "change of those"], left)
    )  # fmt: skip
    store("harm", {"networks": known, "ordinary": again}, text)


def spelled(x: dict[str, float]) -> list[str]:
    """Return change, share without a word and change of those, as the table has them."""
    mean, alone = (f"{100 * x[n]:+.2f} ± {100 * x[f'{n}_error']:.2f}" for n in ("change", "unsaid"))
    return [mean, f"{x['silent']:.0%}", alone]


if __name__ == "__main__":
    main()
