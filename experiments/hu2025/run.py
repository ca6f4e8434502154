"""Run the paper's comparison: every cell, every method, 100 trials; resumable.

    python run.py cifar            # Tables 2 and 3, the 40 cells
    python run.py text             # the same on Banking77 and CLINC150
    python run.py imagenet         # Tables 4 and 5 at K = 1000, simulated

Finished pieces are kept in a work folder; started again, the script goes on where it stopped, and runs a method that
is new, or named after --redo, without running the others again. Means and standard errors go to
results/EXPERIMENT.json, the tables (Markdown and HTML) beside it.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two BLAS threads a process would fight over two cores
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import functools
import hashlib
import json
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import outputs
from cells import CIFAR, IMAGENET, TEXT, Cell, draw
from contenders import CONTENDERS, Contender, Target, know
from models import available, load

import reprior as rp

HERE = Path(__file__).parent
KL_FLOOR = 1e-12  # a share estimated as zero would make KL infinite


@dataclass(frozen=True, slots=True)
class Experiment:
    cells: list[Cell]
    trials: int
    chunk: int
    n_dirichlet: int
    skip: tuple[str, ...] = ()


EXPERIMENTS = {
    "cifar": Experiment(CIFAR, 100, 10, 3000),
    "text": Experiment(TEXT, 100, 25, 1500),
    # a trial at K = 1000 takes half a minute with these left out
    "imagenet": Experiment(IMAGENET, 3, 1, 12000, skip=(
        "MLLS, converged", "FMAPLS printed, c=4N", "FMAPLS printed, c=8N", "MLLS + TS", "RLLS + TS", "BBSE + TS",
        "FMAPLS + BCTS", "MAPLS, mean output as prior")),
}


def methods(experiment: Experiment) -> dict[str, Contender]:
    return {name: f for name, f in CONTENDERS.items() if name not in experiment.skip}


@functools.lru_cache(maxsize=4)
def prepared(model: str):
    pool = load(model)
    known = know(pool)
    return pool, known, {name: c(pool.test) for name, c in known.calibrators.items()}


def run_chunk(name: str, cell: Cell, trials: range, path: Path, redo: tuple[str, ...] = ()) -> None:
    """Write KL and accuracy (trials, 2) in some trials of a cell, for every method the piece does not hold yet."""
    experiment = EXPERIMENTS[name]
    values = json.loads(path.read_text()) if path.exists() else {}
    todo = {m: f for m, f in methods(experiment).items() if m not in values or m in redo}
    if not todo:
        return
    pool, known, calibrated = prepared(cell.model)
    found: dict[str, list[tuple[float, float]]] = {m: [] for m in todo}
    for trial in trials:
        sample = draw(cell, pool, trial, n_dirichlet=experiment.n_dirichlet)
        rows = {"raw": sample.proba, **{name: p[sample.rows] for name, p in calibrated.items()}}
        target = Target(rows, sample.prior)
        for method, contender in todo.items():
            guess = contender(known, target)
            kl = rp.metrics.kl(sample.prior, guess.prior, floor=KL_FLOOR)
            found[method].append((kl, 100 * rp.metrics.accuracy(rows[guess.use], sample.y, weights=guess.weights)))
    part = path.with_suffix(".part")
    part.write_text(json.dumps({**values, **found}))
    part.replace(path)


def progress(done: Iterable[object], total: int) -> Iterator[None]:
    start = time.time()
    for i, _ in enumerate(done, 1):
        left = (time.time() - start) / i * (total - i)
        bar = "#" * (30 * i // total)
        print(f"\r[{bar:<30}] {i}/{total}, {left / 60:.1f} min left ", end="", file=sys.stderr, flush=True)
        yield
    print(file=sys.stderr)


def summary(name: str, cells: list[Cell], trials: int, folder: Path) -> dict[str, object]:
    """Return mean and standard error of KL and accuracy for each cell and method."""
    table: dict[str, dict[str, list[float]]] = {}
    for cell in cells:
        pieces = [json.loads(piece_path(folder, name, cell, c).read_text()) for c in chunks(name, trials)]
        for method in methods(EXPERIMENTS[name]):
            v = np.array([row for piece in pieces for row in piece[method]])
            mean, se = v.mean(0).round(5).tolist(), [None, None]  # one trial has no standard error
            if len(v) > 1:
                se = (v.std(0, ddof=1) / np.sqrt(len(v))).round(5).tolist()
            table.setdefault(cell.name, {})[method] = [mean[0], se[0], mean[1], se[1]]
    return {
        "experiment": name, "trials": trials, "columns": ["kl", "kl_se", "accuracy", "accuracy_se"],
        "made_with": {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine(),
                      "command": f"python run.py {name} --trials {trials}"},
        "cells": table,
    }


def chunks(name: str, trials: int) -> list[range]:
    size = EXPERIMENTS[name].chunk
    return [range(i, min(i + size, trials)) for i in range(0, trials, size)]


def piece_path(folder: Path, name: str, cell: Cell, trials: range) -> Path:
    """Return where a piece is kept; named by how rows are drawn and from what, so that none is wrongly reused."""
    data = outputs.FOLDER / f"{cell.model}.npz"
    content = (HERE / "cells.py").read_bytes() + (data.read_bytes() if data.exists() else b"")
    key = hashlib.sha256(content).hexdigest()[:8]
    return folder / f"{name}-{cell.name.replace('/', '-')}-{trials.start}-{trials.stop}-{key}.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", choices=EXPERIMENTS, nargs="?", default="cifar")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--redo", nargs="+", default=[], metavar="METHOD", help="run these again")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cells with this in their name; no tables")
    parser.add_argument("--work", type=Path, default=HERE / ".work")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    trials = args.trials or EXPERIMENTS[args.experiment].trials
    folder = args.work
    folder.mkdir(parents=True, exist_ok=True)
    args.results.mkdir(parents=True, exist_ok=True)
    cells = [c for c in EXPERIMENTS[args.experiment].cells if available(c.model) and args.only in c.name]
    tasks = [(args.experiment, cell, c, piece_path(folder, args.experiment, cell, c))
             for c in chunks(args.experiment, trials) for cell in cells]
    with ProcessPoolExecutor(args.jobs) as pool:
        futures = [pool.submit(run_chunk, *t, redo=tuple(args.redo)) for t in tasks]
        for _ in progress((f.result() for f in as_completed(futures)), len(tasks)):
            pass
    if args.only:
        return
    result = summary(args.experiment, cells, trials, folder)
    path = args.results / f"{args.experiment}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    from tables import write_tables
    write_tables(path)


if __name__ == "__main__":
    main()
