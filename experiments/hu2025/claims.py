"""Hold the results against the paper's claims and our own: one line each, with numbers.

    python claims.py results/cifar.json        # writes results/cifar-claims.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
from tables import CEILINGS, PRINTED, PRINTED_ONLINE, best_single

DEFAULT = "default pipeline"


def compare(table: dict[str, dict[str, list[float]]], ours: str, theirs: str) -> dict[str, object]:
    """Return in how many cells `ours` has the lower KL, and by how much in the mean, overall and per classifier."""
    kl = {m: {c: v[m][0] for c, v in table.items()} for m in (ours, theirs)}
    models = sorted({c.split("/")[0] for c in table})

    def change(cells: list[str]) -> float:
        mean = {m: np.mean([kl[m][c] for c in cells]) for m in kl}
        return round(100 * float(mean[ours] / mean[theirs] - 1), 1)
    return {"ours": ours, "theirs": theirs, "cells": len(table),
            "lower_in": sum(kl[ours][c] < kl[theirs][c] for c in table),
            "mean_kl": [round(float(np.mean(list(kl[m].values()))), 4) for m in (ours, theirs)],
            "change_percent": change(list(table)),
            "change_percent_by_model": {m: change([c for c in table if c.startswith(m + "/")]) for m in models}}


def accuracy_gaps(table: dict[str, dict[str, list[float]]], ours: str) -> dict[str, object]:
    """Return how far `ours` is below the best method's accuracy, cell by cell, and below the true prior's."""
    gaps = {c: max(x[2] for m, x in v.items() if m not in CEILINGS) - v[ours][2] for c, v in table.items()}
    models = sorted({c.split("/")[0] for c in table})
    mean = {k: {m: float(np.mean([v[m][2] for c, v in table.items() if c.startswith(k + "/")]))
                for m in next(iter(table.values())) if m not in CEILINGS} for k in models}
    ceiling = [max(v[m][2] for m in CEILINGS) - v[ours][2] for v in table.values()]
    return {"method": ours, "within_0.1_points_in": sum(g <= 0.1 for g in gaps.values()), "cells": len(gaps),
            "largest_gap": round(max(gaps.values()), 2), "largest_gap_in": max(gaps, key=gaps.__getitem__),
            "gap_to_best_by_model": {k: [max(v, key=v.__getitem__), round(max(v.values()) - v[ours], 2)]
                                     for k, v in mean.items()},
            "mean_gap": round(float(np.mean(list(gaps.values()))), 3),
            "mean_below_true_prior": round(float(np.mean(ceiling)), 2)}


def claims(table: dict[str, dict[str, list[float]]]) -> dict[str, object]:
    printed, online = best_single(table, PRINTED), best_single(table, PRINTED_ONLINE)
    methods = next(iter(table.values()))
    pairs = [("FMAPLS", "MAPLS"), (printed, "MAPLS"), ("FMAPLS", printed), ("EBLS", "MAPLS"), ("EBLS", printed),
             (DEFAULT, "MAPLS"), (DEFAULT, printed), (DEFAULT, "FMAPLS"), (DEFAULT, "EBLS"),
             (DEFAULT + " with FMAPLS", printed), ("online-EBLS", "EBLS"),
             ("online-EBLS, drift", "EBLS"), ("online-FMAPLS", "FMAPLS"), ("online-FMAPLS", "MAPLS"), (online, "MAPLS"),
             ("EBLS + TS", "EBLS"), ("FMAPLS + TS", "FMAPLS"),
             ("FMAPLS + TS", "MAPLS + TS"), ("FMAPLS, mean output as prior", "MAPLS, mean output as prior"),
             ("MLLS + TS", "MLLS")]
    means = {m: [round(float(np.mean([v[m][i] for v in table.values()])), 4 - i) for i in (0, 2)] for m in methods}
    return {"mean_kl_and_accuracy": means,
            "comparisons": [compare(table, a, b) for a, b in pairs if a in methods and b in methods],
            "accuracy": [accuracy_gaps(table, m) for m in (DEFAULT, DEFAULT + " with FMAPLS", "EBLS", "FMAPLS", "MLLS")
                         if m in methods]}


def main(path: Path) -> None:
    found = claims(json.loads(path.read_text())["cells"])
    path.with_name(f"{path.stem}-claims.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
