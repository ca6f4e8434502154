"""Is the default ever worse than outputs left alone, and does the diagnosis say so beforehand? Every stored cell.

    python benchmarks/harm.py

Reads the results of experiments/hu2025, experiments/language_id and ordinary.py. A cell is the mean over its targets.
It is worse if corrected predictions lose more than 0.3 points of accuracy. Of those of ordinary.py all targets are
drawn again, and `diagnose` is asked about each: what counts then is the mean change over those it says nothing of.
Needs the classifiers that `ordinary.py --make` trains.
"""

from __future__ import annotations

import json

from _ordinary import KEPT_ASIDE, draws, load
from _record import RESULTS, markdown, progress, store

import numpy as np  # isort: skip
import reprior as rp
from reprior.assess.diagnose import HARM

EXPERIMENTS = RESULTS.parents[1] / "experiments"
COUNTS_ALONE = "counts alone"


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


def asked_again(cells: list[dict]) -> list[dict]:
    """Return cells of ordinary.py with the mean change over targets of which the diagnosis says nothing, and their
    share."""
    classifiers = {c.name: c for c in load(KEPT_ASIDE)}
    out = []
    for done, cell in enumerate(cells, 1):
        c, silent = classifiers[cell["classifier"]], []
        for seed in range(cell["draws"]):
            drawn = draws(c, cell["size"], seed)
            held = drawn[0].heldout
            counts = None if cell["mode"] == "held-out rows" else c.counts
            pipe = rp.pipeline(c.proba[held], c.y[held], counts=counts)
            d = next(d for d in drawn if d.shift == cell["shift"])
            estimate = pipe.estimate(c.proba[d.rows], on_reject="ignore")
            found, rows = rp.diagnose(pipe.source, estimate.target, estimate=estimate), pipe.calibrate(c.proba[d.rows])
            after, alone = (
                np.asarray(x).argmax(axis=1) == c.y[d.rows] for x in (estimate.correct(c.proba[d.rows]), rows)
            )
            if not found.may_harm:
                silent.append(float(after.mean() - alone.mean()))
        unsaid = float(np.mean(silent)) if silent else 0.0
        out.append({**cell, "silent": len(silent) / cell["draws"], "unsaid": unsaid})
        progress(done, len(cells), "cells")
    return out


def main() -> None:
    stored = json.loads((RESULTS / "ordinary.json").read_text(encoding="utf-8"))["cells"]
    known, rows = [*networks(), *languages()], []
    for name in dict.fromkeys(x[0] for x in known):
        changes = {cell: change for experiment, cell, change in known if experiment == name}
        worst = min(changes, key=changes.__getitem__)
        worse = sum(change < -HARM for change in changes.values())
        rows.append([name, str(len(changes)), f"{100 * changes[worst]:+.2f} ({worst})", str(worse), "", ""])
    again = []
    for mode in dict.fromkeys(cell["mode"] for cell in stored):
        some = [cell for cell in stored if cell["mode"] == mode]
        worse = [cell for cell in some if cell["error"] > HARM]
        worst = max(some, key=lambda cell: cell["error"])
        where = f"{worst['classifier']}, {worst['size']} held-out rows, {worst['shift']}"
        said = ["all: it cannot tell", "0"]
        if mode != COUNTS_ALONE:
            found = asked_again(worse)
            again += found
            left = sum(cell["unsaid"] < -HARM for cell in found)
            said = [str(len(found) - left), str(left)]
        rows.append(
            [f"ordinary, {mode}", str(len(some)), f"{-100 * worst['error']:+.2f} ({where})", str(len(worse)), *said]
        )
    head = ["study", "cells", "worst change of accuracy, points", "cells worse by more than 0.3",
            "said beforehand", "not said"]  # fmt: skip
    left = [[c["mode"], c["classifier"], str(c["size"]), c["shift"], f"{-100 * c['error']:+.2f}", f"{c['silent']:.0%}",
             f"{100 * c['unsaid']:+.2f}"] for c in again if c["unsaid"] < -HARM]  # fmt: skip
    text = (
        "# Is the default worse than outputs left alone?\n\nAccuracy after correction less that of the same outputs "
        "left alone, in the mean of each cell. A cell is said beforehand if the targets of which the diagnosis does "
        "not say that correction may lower the accuracy lose 0.3 points at most in the mean.\n\n" + markdown(head, rows)
        + "\n\n## Cells in which it was not said\n\n"
        + markdown(["mode", "classifier", "held-out rows", "shift", "change, points", "targets without a word",
                    "change of those"], left)
    )  # fmt: skip
    store("harm", {"networks": known, "ordinary": again}, text)


if __name__ == "__main__":
    main()
