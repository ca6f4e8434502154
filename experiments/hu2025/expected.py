"""Write expected.json: one cell a classifier, a few trials, every method but chaotic ones; a slow test runs them again.

    python expected.py [TEXT ...]       # only methods with one of these in their name; the other rows stay
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import run
from cells import CIFAR

TRIALS = 3
CHAOTIC = ("FMAPLS printed, GA, μ=0.01, T_grad=10",)  # held back at most steps: KL moves by 5 % with rows by 1e-14


def main(wanted: tuple[str, ...] = ("",)) -> None:
    stored = json.loads((run.HERE / "expected.json").read_text())["cells"]
    cells = [c for c in CIFAR if (c.shift, c.value) in (("shuffled", 0.02), ("dirichlet", 1.0))]
    results = {}
    with tempfile.TemporaryDirectory() as folder:
        for i, cell in enumerate(cells):
            path = Path(folder) / f"{i}.json"
            run.run_chunk("cifar", cell, range(TRIALS), path, wanted)
            values = json.loads(path.read_text())
            fresh = {m: np.round(np.mean(v, axis=0), 4).tolist() for m, v in values.items()}
            rows = {**stored.get(cell.name, {}), **fresh}
            results[cell.name] = {m: rows[m] for m in run.CONTENDERS if m in rows and m not in CHAOTIC}
    text = json.dumps({"trials": TRIALS, "columns": ["kl", "accuracy"], "cells": results}, indent=1)
    (run.HERE / "expected.json").write_text(text + "\n")


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or ("",))
