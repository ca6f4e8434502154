"""Run the paper's comparison: every cell, every method, 100 trials; resumable.

    python run.py cifar                     # Tables 2 and 3, the 40 cells
    python run.py long                      # the same with networks trained for twice the epochs
    python run.py text                      # the same on Banking77 and CLINC150
    python run.py imagenet                  # Tables 4 and 5: outputs that imagenet.py made, and a simulation
    python run.py tiny                      # the same shifts at K = 200: heads on long-tailed Tiny-ImageNet
    python run.py val                       # ImageNet's own 1000 classes, no image drawn twice
    python run.py cifar text --methods GA   # only methods with this in their name; the other rows stay as stored

Finished pieces are kept in .work/, named by the code and data they were made with; started again, the script goes on
where it stopped. Means and standard errors go to results/EXPERIMENT.json, the tables (Markdown and HTML) beside it. A
run with fewer trials than the stored one has, or of some cells only, goes to .work/ instead; --store overrides that.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two BLAS threads a process would fight over two cores
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import functools
import hashlib
import json
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import record
from cells import CIFAR, IMAGENET, LONG, TEXT, TINY, VAL, Cell, draw
from contenders import CONTENDERS, Contender, Target, know
from models import available, file_of, load
from tables import write_tables

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


SMALL_C, LARGE_C = ("FMAPLS printed, c=0.125N", "FMAPLS printed, c=0.25N"), ("FMAPLS printed, c=16N",)
EXPERIMENTS = {  # the best c of an experiment must lie inside its grid: a test looks
    "cifar": Experiment(CIFAR, 100, 10, 3000, skip=SMALL_C + LARGE_C),
    "long": Experiment(LONG, 10, 10, 3000, skip=SMALL_C + LARGE_C),
    "text": Experiment(TEXT, 100, 25, 1500, skip=SMALL_C),
    # a trial at K = 1000 takes half a minute with these left out; 5 of them are stored
    "imagenet": Experiment(IMAGENET, 5, 1, 12000, skip=(
        *LARGE_C, "MLLS, converged", "FMAPLS printed, c=4N", "FMAPLS printed, c=8N", "MLLS + TS", "RLLS + TS",
        "BBSE + TS", "FMAPLS + BCTS", "MAPLS, mean output as prior")),
    "tiny": Experiment(TINY, 10, 5, 2000, skip=SMALL_C + LARGE_C),
    "val": Experiment(VAL, 20, 5, 0, skip=SMALL_C + LARGE_C),
}


def methods(experiment: Experiment, wanted: tuple[str, ...] = ("",)) -> dict[str, Contender]:
    """Return the methods of an experiment that are named in `wanted`, or have one of its other texts in their name."""
    return {name: f for name, f in CONTENDERS.items() if name not in experiment.skip and any(
        text == name or (text in name and text not in CONTENDERS) for text in wanted)}


@functools.lru_cache(maxsize=4)
def prepared(model: str):
    pool = load(model)
    reference = know(pool)
    return pool, reference, {name: c(pool.test) for name, c in reference.calibrators.items()}


def run_chunk(name: str, cell: Cell, trials: range, path: Path, wanted: tuple[str, ...] = ("",)) -> None:
    """Write KL and accuracy (trials, 2) in some trials of a cell, for wanted methods that the piece lacks."""
    experiment = EXPERIMENTS[name]
    values = json.loads(path.read_text()) if path.exists() else {}
    todo = {m: f for m, f in methods(experiment, wanted).items() if m not in values}
    if not todo:
        return
    pool, reference, calibrated = prepared(cell.model)
    result: dict[str, list[tuple[float, float]]] = {m: [] for m in todo}
    for trial in trials:
        sample = draw(cell, pool, trial, n_dirichlet=experiment.n_dirichlet)
        rows = {"raw": sample.proba, **{name: p[sample.rows] for name, p in calibrated.items()}}
        target = Target(rows, sample.prior)
        for method, contender in todo.items():
            guess = contender(reference, target)
            kl = rp.metrics.kl(sample.prior, guess.prior, floor=KL_FLOOR)
            result[method].append((kl, 100 * rp.metrics.accuracy(rows[guess.use], sample.y, weights=guess.weights)))
    part = path.with_suffix(".part")
    part.write_text(json.dumps({**values, **result}))
    part.replace(path)


def progress(done: Iterable[object], total: int) -> Iterator[None]:
    start = time.time()
    for i, _ in enumerate(done, 1):
        left = (time.time() - start) / i * (total - i)
        bar = "#" * (30 * i // total)
        print(f"\r[{bar:<30}] {i}/{total}, {left / 60:.1f} min left ", end="", file=sys.stderr, flush=True)
        yield
    print(file=sys.stderr)


def summary(name: str, cells: list[Cell], trials: int, folder: Path, wanted: tuple[str, ...]) -> dict[str, object]:
    """Return mean and standard error of KL and accuracy for each cell and wanted method."""
    table: dict[str, dict[str, list[float]]] = {}
    for cell in cells:
        pieces = [json.loads(piece_path(folder, name, cell, c).read_text()) for c in chunks(name, trials)]
        for method in methods(EXPERIMENTS[name], wanted):
            v = np.array([row for piece in pieces for row in piece[method]])
            mean, se = v.mean(0).round(5).tolist(), [None, None]  # one trial has no standard error
            if len(v) > 1:
                se = (v.std(0, ddof=1) / np.sqrt(len(v))).round(5).tolist()
            table.setdefault(cell.name, {})[method] = [mean[0], se[0], mean[1], se[1]]
    made = {**record.circumstances(), "trials": trials}
    return {"experiment": name, "trials": trials, "columns": ["kl", "kl_se", "accuracy", "accuracy_se"],
            "made_with": {m: made for m in methods(EXPERIMENTS[name], wanted)}, "cells": table}


def merged(stored: dict, fresh: dict) -> dict:
    """Return the stored result with the fresh rows in place of its own; rows of methods given up are dropped.

    Rows may differ in their number of trials, which `made_with` tells and the tables repeat.
    """
    cells = {}
    for cell in [*stored["cells"], *(c for c in fresh["cells"] if c not in stored["cells"])]:
        rows = {**stored["cells"].get(cell, {}), **fresh["cells"].get(cell, {})}
        cells[cell] = {m: rows[m] for m in CONTENDERS if m in rows}
    made = {**stored["made_with"], **fresh["made_with"]}
    return {**stored, "made_with": {m: made[m] for m in CONTENDERS if m in made}, "cells": cells}


def chunks(name: str, trials: int) -> list[range]:
    size = EXPERIMENTS[name].chunk
    return [range(i, min(i + size, trials)) for i in range(0, trials, size)]


@functools.cache
def code() -> bytes:
    """Return a digest of everything a row depends on: the package and this folder's settings and methods."""
    files = [*sorted(Path(rp.__file__).parent.rglob("*.py")),
             *(HERE / f for f in ("cells.py", "contenders.py", "pretrained.py", "simulated.py"))]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).digest()


def piece_path(folder: Path, name: str, cell: Cell, trials: range) -> Path:
    """Return where a piece is kept; named by the code and the data it is made with, so that none is wrongly reused."""
    data = file_of(cell.model)
    key = hashlib.sha256(code() + (data.read_bytes() if data else b"")).hexdigest()[:8]
    return folder / f"{name}-{cell.name.replace('/', '-')}-{trials.start}-{trials.stop}-{key}.json"


def run(name: str, *, trials: int | None = None, jobs: int = 1, wanted: tuple[str, ...] = ("",), only: str = "",
        work: Path = record.WORK, results: Path = record.RESULTS, store: bool = False) -> Path:
    """Run one experiment and return where its result went."""
    experiment = EXPERIMENTS[name]
    if not methods(experiment, wanted):
        raise SystemExit(f"run.py: no method of {name} has {' or '.join(wanted)} in its name")
    work.mkdir(parents=True, exist_ok=True)
    trials = trials or experiment.trials
    cells = [c for c in experiment.cells if available(c.model) and only in c.name]
    tasks = [(name, cell, c, piece_path(work, name, cell, c)) for c in chunks(name, trials) for cell in cells]
    if jobs == 1:
        for _ in progress((run_chunk(*t, wanted=wanted) for t in tasks), len(tasks)):
            pass
    else:
        with ProcessPoolExecutor(jobs) as pool:
            futures = [pool.submit(run_chunk, *t, wanted=wanted) for t in tasks]
            for _ in progress((f.result() for f in as_completed(futures)), len(tasks)):
                pass
    result = summary(name, cells, trials, work, wanted)
    path = record.destination(name, full=trials >= experiment.trials and not only, force=store, folder=results)
    if wanted != ("",) and path.exists():
        result = merged(json.loads(path.read_text(encoding="utf-8")), result)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    write_tables(path)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiments", choices=EXPERIMENTS, nargs="*", metavar="EXPERIMENT")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--methods", nargs="+", default=[""], metavar="TEXT", help="only these, by part of the name")
    parser.add_argument("--only", default="", metavar="TEXT", help="only cells with this in their name")
    parser.add_argument("--store", action="store_true", help="store the result of a shorter run too")
    parser.add_argument("--work", type=Path, default=record.WORK)
    parser.add_argument("--results", type=Path, default=record.RESULTS)
    args = parser.parse_args()
    for name in args.experiments or ["cifar"]:
        print(run(name, trials=args.trials, jobs=args.jobs, wanted=tuple(args.methods), only=args.only, work=args.work,
                  results=args.results, store=args.store))


if __name__ == "__main__":
    main()
