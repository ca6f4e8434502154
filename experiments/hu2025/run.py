"""Run the paper's comparison: every cell, every method, 100 trials; resumable.

    python run.py cifar            # Tables 2 and 3, the 40 cells
    python run.py text             # the same on Banking77 and CLINC150
    python run.py imagenet         # Tables 4 and 5 at K = 1000, simulated

Finished pieces are kept in a work folder; started again, the script goes on where it stopped. Means and standard
errors go to results/EXPERIMENT.json, the tables (Markdown and HTML) beside it.
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
import reprior as rp
from cells import CIFAR, IMAGENET, TEXT, Cell, draw
from contenders import CONTENDERS, Contender, Guess, know
from models import load

HERE = Path(__file__).parent
KL_FLOOR = 1e-12  # a share estimated as zero would make KL infinite
TRUTH = "true prior"  # the ceiling of the accuracy


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
    # K = 1000 makes the O(K³) moment methods and the many printed variants slow; what the tables show stays.
    "imagenet": Experiment(IMAGENET, 10, 2, 12000, skip=("MLLS, converged", "BBSE, solve and clip", "RLLS + TS", "BBSE + TS")),
}


def methods(experiment: Experiment) -> dict[str, Contender]:
    return {name: f for name, f in CONTENDERS.items() if name not in experiment.skip}


@functools.lru_cache(maxsize=1)
def prepared(model: str):
    outputs = load(model)
    known = know(outputs)
    return outputs, known, known.calibrator(outputs.test)


def run_chunk(name: str, cell: Cell, trials: range, path: Path) -> None:
    """Write KL and accuracy (trials, 2) of every method in some trials of a cell."""
    experiment = EXPERIMENTS[name]
    outputs, known, calibrated = prepared(cell.model)
    values: dict[str, list[tuple[float, float]]] = {}
    for trial in trials:
        sample = draw(cell, outputs, trial, n_dirichlet=experiment.n_dirichlet)
        rows = calibrated[sample.rows]
        guesses = {m: f(known, sample.proba, rows) for m, f in methods(experiment).items()}
        guesses[TRUTH] = Guess(sample.prior, sample.prior / known.raw.prior)
        guesses[TRUTH + " + TS"] = Guess(sample.prior, sample.prior / known.calibrated.prior, calibrated=True)
        for method, guess in guesses.items():
            used = rows if guess.calibrated else sample.proba
            kl = rp.metrics.kl(sample.prior, guess.prior, floor=KL_FLOOR)
            values.setdefault(method, []).append(
                (kl, 100 * rp.metrics.accuracy(used, sample.y, weights=guess.weights)))
    part = path.with_suffix(".part")
    part.write_text(json.dumps(values))
    part.replace(path)


def progress(done: Iterable[object], total: int) -> Iterator[None]:
    start = time.time()
    for i, _ in enumerate(done, 1):
        left = (time.time() - start) / i * (total - i)
        bar = "#" * (30 * i // total)
        print(f"\r[{bar:<30}] {i}/{total}, {left / 60:.1f} min left ", end="", file=sys.stderr, flush=True)
        yield
    print(file=sys.stderr)


def summary(name: str, trials: int, folder: Path, seconds: float) -> dict[str, object]:
    """Return mean and standard error of KL and accuracy for each cell and method."""
    table: dict[str, dict[str, list[float]]] = {}
    for cell in EXPERIMENTS[name].cells:
        pieces = [json.loads(piece_path(folder, name, cell, c).read_text()) for c in chunks(name, trials)]
        for method in pieces[0]:
            v = np.array([row for piece in pieces for row in piece[method]])
            mean, se = v.mean(0), v.std(0, ddof=1) / np.sqrt(len(v))
            table.setdefault(cell.name, {})[method] = [round(float(x), 5) for x in (mean[0], se[0], mean[1], se[1])]
    return {
        "experiment": name, "trials": trials, "columns": ["kl", "kl_se", "accuracy", "accuracy_se"],
        "made_with": {"python": platform.python_version(), "numpy": np.__version__, "machine": platform.machine(),
                      "command": f"python run.py {name} --trials {trials}"},
        "seconds_of_last_run": round(seconds), "cells": table,
    }


def chunks(name: str, trials: int) -> list[range]:
    size = EXPERIMENTS[name].chunk
    return [range(i, min(i + size, trials)) for i in range(0, trials, size)]


def piece_path(folder: Path, name: str, cell: Cell, trials: range) -> Path:
    return folder / f"{name}-{cell.name.replace('/', '-')}-{trials.start}-{trials.stop}.json"


def fingerprint() -> str:
    """Return a short hash of the code and outputs that results depend on, so that stale pieces are never reused."""
    digest = hashlib.sha256()
    package = Path(rp.__file__).parent
    for path in [HERE / "contenders.py", HERE / "cells.py", HERE / "outputs" / "SHA256SUMS",
                 *sorted(package.glob("*.py")), *sorted((package / "_kernels").glob("*.[pc]*"))]:
        if path.is_file():
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("experiment", choices=EXPERIMENTS, nargs="?", default="cifar")
    parser.add_argument("--trials", type=int)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--work", type=Path, default=HERE / ".work")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    args = parser.parse_args()
    trials = args.trials or EXPERIMENTS[args.experiment].trials
    folder = args.work / fingerprint()
    folder.mkdir(parents=True, exist_ok=True)
    args.results.mkdir(parents=True, exist_ok=True)
    tasks = [(args.experiment, cell, c, piece_path(folder, args.experiment, cell, c))
             for cell in EXPERIMENTS[args.experiment].cells for c in chunks(args.experiment, trials)]
    todo = [t for t in tasks if not t[3].exists()]
    start = time.time()
    with ProcessPoolExecutor(args.jobs) as pool:
        futures = [pool.submit(run_chunk, *t) for t in todo]
        for _ in progress((f.result() for f in as_completed(futures)), len(todo)):
            pass
    result = summary(args.experiment, trials, folder, time.time() - start)
    path = args.results / f"{args.experiment}.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    from tables import write_tables
    write_tables(path)


if __name__ == "__main__":
    main()
