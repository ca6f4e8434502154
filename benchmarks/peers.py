"""Error, accuracy and CPU time on the shipped outputs, against QuaPy, abstention and the code of MAPLS' authors.

    python benchmarks/peers.py [--mapls FOLDER] [--seeds 10]

Wants `pip install quapy abstention`; FOLDER is a clone of https://github.com/ChangkunYe/MAPLS. Everyone gets the same
held-out outputs with labels, the same training counts where they are known, and the same target outputs. Time is CPU
time from these arrays to the corrected rows, calibration included; contenders take turns.
"""

import argparse
import importlib
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

from _record import markdown, store  # isort: split

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the packages' own imports warn about
    import quapy.method.aggregative as quapy
    from abstention.calibration import TempScaling
    from abstention.label_shift import EMImbalanceAdapter

import reprior as rp
from reprior.datasets import Dataset, load

Found = tuple[np.ndarray, np.ndarray]  # the estimated prior, the corrected rows
ROWS, FLOOR = 2000, 1e-8
COMMIT = "3ba525a8"  # of MAPLS
DEFAULT, PEERS = "reprior, default pipeline", ("as it is", "QuaPy, EMQ", "abstention, BCTS + EM", "MAPLS' code")


def as_it_is(data: Dataset, proba: np.ndarray) -> Found:
    return prior_of(data), proba


def quapy_emq(data: Dataset, proba: np.ndarray) -> Found:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # where it does not converge
        prior, corrected = quapy.EMQ.EM(prior_of(data), proba)
    return prior, corrected


@np.errstate(all="ignore")  # its optimizer overflows where a class has no held-out row
def abstention_bcts(data: Dataset, proba: np.ndarray) -> Found:
    adapter = EMImbalanceAdapter(calibrator_factory=TempScaling(bias_positions="all", verbose=False), verbose=False)
    onehot = np.eye(len(data.classes))[data.heldout_y]
    change = adapter(valid_labels=onehot, tofit_initial_posterior_probs=proba,
                     valid_posterior_probs=data.heldout_proba)  # fmt: skip
    corrected = np.asarray(change(proba))
    source = np.asarray(change.calibrator_func(data.heldout_proba)).mean(axis=0)
    prior = np.asarray(change.multipliers) * source
    if not np.isfinite(prior).all():  # its calibration has failed; what it then says is no prior
        prior, corrected = np.full(len(source), 1 / len(source)), np.nan_to_num(corrected)
    return prior / prior.sum(), corrected


def mapls_code(folder: Path) -> Callable[[Dataset, np.ndarray], Found]:
    sys.path.insert(0, str(folder))
    if not hasattr(np, "float"):
        setattr(np, "float", float)  # noqa: B010 - the code is older than NumPy 1.24
    mapls = importlib.import_module("label_shift.mapls").mapls

    def run(data: Dataset, proba: np.ndarray) -> Found:
        source = prior_of(data)
        prior = mapls(data.heldout_proba, proba, source)
        corrected = proba * (prior / source)
        return prior, corrected / corrected.sum(axis=1, keepdims=True)

    return run


def default(data: Dataset, proba: np.ndarray) -> Found:
    pipe = rp.pipeline(data.heldout_proba, data.heldout_y, counts=data.counts)
    est = pipe.estimate(proba, on_reject="ignore", check=False)
    return est.prior, est.correct(proba)


def uncalibrated(data: Dataset, proba: np.ndarray) -> Found:
    est = rp.fmapls(prior_of(data), proba)
    return est.prior, est.correct(proba)


def prior_of(data: Dataset) -> np.ndarray:
    """Return the source prior that peers get: training counts, or else the mean held-out output."""
    return data.heldout_proba.mean(axis=0) if data.counts is None else data.counts / data.counts.sum()


def targets(data: Dataset, seeds: int) -> list[tuple[np.ndarray, np.ndarray]]:
    if data.channels:
        chosen = [rows for name, rows in data.channels.items() if name not in ("All alike", "History")]
        return [(data.pool_proba[rows], data.pool_y[rows]) for rows in chosen]
    k, drawn = len(data.classes), []
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        for prior in (rp.simulate.shuffled_long_tail(k, 0.02, rng=rng), rp.simulate.dirichlet(k, 1.0, rng=rng),
                      data.counts / data.counts.sum()):  # fmt: skip
            sample = rp.simulate.resample(data.pool_proba, data.pool_y, prior, n=ROWS, rng=rng)
            drawn.append((sample.proba, sample.y))
    return drawn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mapls", type=Path, help="a clone of ChangkunYe/MAPLS")
    parser.add_argument("--seeds", type=int, default=10)
    options = parser.parse_args()
    contenders = {"as it is": as_it_is, "QuaPy, EMQ": quapy_emq, "abstention, BCTS + EM": abstention_bcts}
    if options.mapls:
        contenders["MAPLS' code"] = mapls_code(options.mapls)
    contenders |= {"reprior, `fmapls`": uncalibrated, DEFAULT: default}
    figures: dict = {}
    for name in ("lid176", "banking77", "clinc150"):
        data = load(name)
        for proba, y in targets(data, options.seeds):
            true = np.bincount(y, minlength=len(data.classes)) / len(y)
            for contender, run in contenders.items():
                start = time.process_time()
                prior, corrected = run(data, proba)
                spent = time.process_time() - start
                row = figures.setdefault(contender, {}).setdefault(name, {"kl": [], "accuracy": [], "ms": []})
                row["kl"].append(rp.metrics.kl(true, np.maximum(prior, FLOOR)))
                row["accuracy"].append(100 * rp.metrics.accuracy(corrected, y))
                row["ms"].append(1000 * spent)
    table = []
    for contender, sets in figures.items():
        cells = [contender]
        for row in sets.values():
            ms = "" if contender == "as it is" else f"{np.median(row['ms']):.0f}"
            cells += [f"{np.mean(row['accuracy']):.1f}", f"{np.mean(row['kl']):.3f}", ms]
        table.append(cells)
    head = [""] + [f"{name}: {what}" for name in next(iter(figures.values())) for what in ("accuracy, %", "KL", "ms")]
    note = (
        f"Mean over 13 channels of language strings, and over {options.seeds} seeds of three shifts of {ROWS} rows "
        f"(shuffled long tail 0.02, Dirichlet 1, none). KL(true ‖ estimate), shares below {FLOOR:g} counted as that. "
        f"Median CPU milliseconds from the arrays to the corrected rows. MAPLS' code is its authors', commit {COMMIT}. "
        "On lid176, where 88 of 176 classes have no held-out row, abstention's calibration does not converge."
    )
    store("peers", {"seeds": options.seeds, "figures": figures}, f"{note}\n\n{markdown(head, table)}")


if __name__ == "__main__":
    main()
