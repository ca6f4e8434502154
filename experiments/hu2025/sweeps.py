"""Every knob of the printed algorithms swept: μ and T_grad, γ and its reading, c and the start; monotonicity by c/N.

    python sweeps.py [NAME ...] [--trials N]        # all of them without names; each writes results/NAME.json
    python sweeps.py protocol-training              # networks whose confusion on the training set train.py has stored
    python sweeps.py protocol-text --data DATA      # needs the texts of experiments/text_intents and scikit-learn
    python sweeps.py protocol-tiny --data WORK      # needs the outputs on training rows that `pretrained.py tiny` left

A run with fewer trials than the default goes to .work/ and leaves the stored result alone; --store overrides that.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
import importlib.util
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import record
from cells import CIFAR, CIFAR_RATIOS, LONG, Cell, draw
from contenders import Contender, Known, Target, batch, rlls_undivided
from models import available, load
from outputs import Outputs
from scipy.special import digamma

import reprior as rp
from reprior import bounds

FLOOR = 1e-12
HARDEST = [Cell(f"cifar100-lt-{r}", s, v) for r in CIFAR_RATIOS for s, v in (("shuffled", 0.02), ("dirichlet", 1.0))]
PAGE = Cell("cifar100-lt-0.1", "dirichlet", 1.0)  # the cell that the page follows sample by sample
MUS, STEPS = (0.01, 0.1, 1.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0), (1, 10, 100)
ONLINE_MUS, ONLINE_STEPS = (0.01, 0.1, 1.0, 10.0, 100.0, 1000.0), (1, 10)
C_OF_N = (0.0625, 0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)
GAMMAS = (1.0, 0.5, 0.1, 0.05, 0.01, 0.001)
CS = (10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10000.0, 30000.0, 100000.0)
READINGS, STARTS = ("running", "predicted", "observed"), ("printed", "mended")
MARKS = (10, 30, 100, 300, 1000, 2000, 3000)


def kl(true: np.ndarray, estimate: np.ndarray) -> float:
    return float(rp.metrics.kl(true, estimate, floor=FLOOR))


def guarded_ascent(alpha: np.ndarray, prior: np.ndarray, mu: float, n_grad: int) -> tuple[np.ndarray, int]:
    """Return α after `n_grad` steps of eq. 10, as the library takes them, and in how many the guard of α > 0 fired."""
    log_prior, fired = np.log(prior), 0
    for _ in range(n_grad):
        free = alpha + mu * (digamma(alpha.sum()) - digamma(alpha) + log_prior)
        held = 0.1 * alpha
        fired += bool((free < held).any())
        alpha = np.maximum(free, held)
    return alpha, fired


def ascent_path(
    prior: np.ndarray, rows: np.ndarray, mu: float, n_grad: int, n_iter: int = 100
) -> tuple[np.ndarray, np.ndarray, float]:
    """Return π and α of Algorithm 1 with gradient ascent, and the share of gradient steps that had to be guarded."""
    n, k = rows.shape
    pi, alpha, fired = np.full(k, 1 / k), np.ones(k), 0
    for _ in range(n_iter):
        w = pi / prior
        numerator = alpha - 1 + w * (rows.T @ (1 / (rows @ w)))  # eq. 8, 9
        pi = np.maximum(numerator, FLOOR * n)
        pi /= pi.sum()
        alpha, more = guarded_ascent(alpha, pi, mu, n_grad)
        fired += more
    return pi, alpha, fired / (n_iter * n_grad)


def ascent(trials: int) -> dict:
    """Gradient ascent for every μ and T_grad, in batch, beside the surrogate for every c: KL, guard, α, seconds."""
    table: dict[str, dict[str, list[float]]] = {}
    for cell in HARDEST:
        outputs = load(cell.model)
        prior = outputs.counts / outputs.counts.sum()
        result: dict[str, list[list[float]]] = {}
        for t in range(trials):
            s = draw(cell, outputs, t)

            def note(name: str, pi: np.ndarray, alpha: np.ndarray, fired: float, start: float, s=s, out=result) -> None:
                row = [kl(s.prior, pi), fired, float(alpha.sum()) / len(s.y), time.process_time() - start]
                out.setdefault(name, []).append(row)

            for n_grad in STEPS:
                for mu in MUS:
                    start = time.process_time()
                    note(f"GA, μ={mu:g}, T_grad={n_grad}", *ascent_path(prior, s.proba, mu, n_grad), start)
            for c in C_OF_N:
                start = time.process_time()
                e = rp.fmapls(prior, s.proba, variant="paper", c=c * len(s.y))
                note(f"LSF, c={c:g}N", e.prior, e.alpha, 0.0, start)
            for name, options in (
                ("Newton, printed", {"variant": "paper", "update": "newton"}),
                ("Newton, posterior mean", {"update": "newton"}),
                ("stable", {}),
            ):
                start = time.process_time()
                e = rp.fmapls(prior, s.proba, **options)
                note(name, e.prior, e.alpha, 0.0, start)
            start = time.process_time()
            note("MAPLS", rp.mapls(prior, s.proba).prior, np.zeros(1), 0.0, start)
        table[cell.name] = {m: [float(f"{x:.4g}") for x in np.mean(v, 0)] for m, v in result.items()}
    return {
        "columns": ["kl", "guarded share of gradient steps", "sum of alpha over N", "cpu_seconds"],
        "mus": MUS,
        "steps": STEPS,
        "c_of_n": C_OF_N,
        "cells": table,
    }


def ascent_online(trials: int) -> dict:
    """Gradient ascent on a stream, as printed and with the posterior mean: KL at the end, share of guarded steps."""
    table: dict[str, dict[str, list[float]]] = {}
    for cell in (PAGE, Cell("cifar100-lt-0.02", "shuffled", 0.02)):
        outputs = load(cell.model)
        prior = outputs.counts / outputs.counts.sum()
        result: dict[str, list[list[float]]] = {}
        for t in range(trials):
            s = draw(cell, outputs, t)
            for form, less in (("printed", 1.0), ("posterior mean", 0.0)):
                for n_grad in ONLINE_STEPS:
                    for mu in ONLINE_MUS:
                        start, pi, alpha, fired = (
                            time.process_time(),
                            np.full(len(prior), 1 / len(prior)),
                            np.ones(len(prior)),
                            0,
                        )
                        for row in s.proba:
                            r = row * pi / prior
                            pi = np.maximum(alpha - less + r / r.sum(), FLOOR)  # eq. 31 with γ = 1
                            pi /= pi.sum()
                            alpha, more = guarded_ascent(alpha, pi, mu, n_grad)
                            fired += more
                        result.setdefault(f"{form}, μ={mu:g}, T_grad={n_grad}", []).append(
                            [
                                kl(s.prior, pi),
                                fired / (n_grad * len(s.y)),
                                float(alpha.sum()),
                                (time.process_time() - start) / len(s.y),
                            ]
                        )
            stream = rp.Stream("online-fmapls", prior, start_at="uniform")
            start = time.process_time()
            stream.learn_many(s.proba)
            seconds = (time.process_time() - start) / len(s.y)
            result.setdefault("online-FMAPLS, stable", []).append([kl(s.prior, stream.prior), 0.0, 0.0, seconds])
            uniform = np.full(len(prior), 1 / len(prior))
            result.setdefault("uniform prior", []).append([kl(s.prior, uniform), 0.0, 0.0, 0.0])
        table[cell.name] = {m: [float(f"{x:.4g}") for x in np.mean(v, 0)] for m, v in result.items()}
    return {
        "columns": ["kl", "guarded share of gradient steps", "sum of alpha", "cpu_seconds a sample"],
        "mus": ONLINE_MUS,
        "steps": ONLINE_STEPS,
        "cells": table,
    }


@dataclass(frozen=True, slots=True)
class Plane:
    """All settings of Algorithm 2 at once: γ (S, 1), c (S, 1), which reading, whether the start is mended (S,)."""

    gamma: np.ndarray
    c: np.ndarray
    reading: np.ndarray
    mended: np.ndarray


def plane_settings() -> tuple[list[tuple[str, str, float, float]], Plane]:
    names = [(start, reading, g, c) for start in STARTS for reading in READINGS for g in GAMMAS for c in CS]
    start, reading, gamma, c = zip(*names, strict=True)
    return names, Plane(
        np.array(gamma)[:, None],
        np.array(c)[:, None],
        np.array([READINGS.index(r) for r in reading]),
        np.array([s == "mended" for s in start]),
    )


def plane_path(p: Plane, prior: np.ndarray, rows: np.ndarray, y: np.ndarray, marks: tuple[int, ...]) -> np.ndarray:
    """Return π (len(marks), S, K) of Algorithm 2 in every setting, after each number of samples in `marks`.

    Eq. 24 with δ read as the running statistic, as the class predicted for the sample before, or as its true label,
    which is what δ says and nobody has; eq. 31 and 33. The mended start has α⁰ = c·π⁰/max π⁰ instead of 1.
    """
    s, k = len(p.c), len(prior)
    pi = np.full((s, k), 1 / k)
    alpha = np.where(p.mended[:, None], p.c, 1.0) * np.ones((1, k))
    running, last, out = np.full((s, k), 1 / k), np.full(s, -1), []
    run, guess, label = (np.flatnonzero(p.reading == i) for i in range(3))
    for t, row in enumerate(rows[: marks[-1]], 1):
        r = pi * (row / prior)
        r /= r.sum(1, keepdims=True)
        stat = r.copy()
        if t > 1:
            stat[guess] = p.gamma[guess] * r[guess]
            stat[guess, last[guess]] += 1 - p.gamma[guess, 0]
            stat[label] = p.gamma[label] * r[label]
            stat[label, y[t - 2]] += 1 - p.gamma[label, 0]
        stat[run] = (1 - p.gamma[run]) * running[run] + p.gamma[run] * r[run]
        running[run], last = stat[run], r.argmax(1)
        pi = np.maximum(alpha - 1 + stat, FLOOR)  # a floor instead of a negative share
        pi /= pi.sum(1, keepdims=True)
        alpha = p.c * pi / pi.max(1, keepdims=True)
        if t in marks:
            out.append(pi)
    return np.array(out)


def plane(trials: int) -> dict:
    """The printed online recursion over γ × reading of δ × c × start: KL after some numbers of samples."""
    names, settings = plane_settings()
    out = {}
    for cell in (PAGE, Cell("cifar100-lt-0.02", "shuffled", 0.02)):
        outputs = load(cell.model)
        prior = outputs.counts / outputs.counts.sum()
        result, uniform, stable = [], [], []
        for t in range(trials):
            s = draw(cell, outputs, t)
            marks = (*(m for m in MARKS if m < len(s.y)), len(s.y))
            path = plane_path(settings, prior, s.proba, s.y, marks)
            logs = np.log(np.maximum(path, FLOOR))
            result.append((s.prior * (np.log(np.maximum(s.prior, 1e-300)) - logs)).sum(-1))
            uniform.append(kl(s.prior, np.full(len(prior), 1 / len(prior))))
            stream = rp.Stream("online-fmapls", prior, start_at="uniform")
            stream.learn_many(s.proba)
            stable.append(kl(s.prior, stream.prior))
        mean = np.mean(result, 0).round(4)
        table = {
            f"{start}, {reading}, γ={g:g}, c={c:g}": mean[:, i].tolist()
            for i, (start, reading, g, c) in enumerate(names)
        }
        out[cell.name] = {
            "samples": marks,
            "uniform": round(float(np.mean(uniform)), 4),
            "stable": round(float(np.mean(stable)), 4),
            "kl": table,
        }
    return {"gammas": GAMMAS, "cs": CS, "readings": READINGS, "starts": STARTS, "cells": out}


def monotone(trials: int, n_iter: int = 300) -> dict:
    """In how many steps of printed FMAPLS the likelihood and three posteriors fall, by c/N, in each of the cells."""
    out = {}
    for cell in HARDEST:
        outputs = load(cell.model)
        prior = outputs.counts / outputs.counts.sum()
        result: dict[str, list[list[int]]] = {}
        for t in range(trials):
            rows = draw(cell, outputs, t).proba
            n, k = rows.shape
            for ratio in C_OF_N:
                pi, alpha, values, floored = np.full(k, 1 / k), np.ones(k), [], 0
                likelihood = np.nan
                for step in range(n_iter + 1):
                    w = pi / prior
                    s = rows @ w
                    if step:
                        likelihood = np.log(s).sum()
                        values.append(
                            (likelihood, likelihood + bounds.alpha_objective(alpha, pi), likelihood - np.log(pi).sum())
                        )
                    numerator = alpha - 1 + w * (rows.T @ (1 / s))
                    floored += bool((numerator < FLOOR * n).any()) and step < 100
                    pi = np.maximum(numerator, FLOOR * n)
                    pi /= pi.sum()
                    alpha = bounds.surrogate(pi, ratio * n)
                falls = np.diff(values, axis=0) < -1e-7
                result.setdefault(f"{ratio:g}", []).append([*falls[:99].sum(0), *falls.sum(0), floored])
        out[cell.name] = {c: np.mean(v, 0).round(1).tolist() for c, v in result.items()}
    columns = [
        f"{what}, {steps} steps"
        for steps in (99, n_iter - 1)
        for what in ("log-likelihood", "log posterior under the step's α", "log posterior under Dirichlet(0)")
    ]
    return {"columns": [*columns, "steps of 100 with a share held at the floor"], "cells": out}


MOMENTS = {
    "BBSE, soft": batch("bbse"),
    "BBSE, hard": batch("bbse", hard=True),
    "BBSE, soft, solve and clip": batch("bbse", solver="clip"),
    "RLLS, soft": batch("rlls"),
    "RLLS, hard": batch("rlls", hard=True),
    "RLLS, C undivided, hard": rlls_undivided(soft=False),
    "RLLS, C undivided, hard, target soft": rlls_undivided(soft=False, soft_target=True),
    "RLLS, C undivided, soft": rlls_undivided(soft=True),
}
DRAWN = {
    "MLLS": batch("mlls", n_iter=100),
    "MAPLS": batch("mapls"),
    "FMAPLS printed, c=2N": batch("fmapls", variant="paper", c_of_n=2.0),
    "FMAPLS": batch("fmapls"),
}


def on_cells(
    source: rp.Source,
    methods: dict[str, Contender],
    cells: list[Cell],
    outputs: Outputs,
    trials: int,
    **options: object,
) -> dict[str, list[float]]:
    """Return mean KL and accuracy of each method over some cells."""
    reference, result = Known({"raw": source}, {}, {}), {m: [] for m in methods}
    for cell in cells:
        for t in range(trials):
            s = draw(cell, outputs, t, **options)
            for name, contender in methods.items():
                g = contender(reference, Target({"raw": s.proba}, s.prior))
                result[name].append((kl(s.prior, g.prior), 100 * rp.metrics.accuracy(s.proba, s.y, weights=g.weights)))
    return {m: np.mean(v, 0).round(4).tolist() for m, v in result.items()}


def protocol(trials: int) -> dict:
    """What choices the paper leaves open are worth: soft or hard outputs for BBSE and RLLS, and eq. 2 and 3."""
    out: dict[str, dict] = {"moments": {}, "draws": {}}
    for ratio in CIFAR_RATIOS:
        model = f"cifar100-lt-{ratio}"
        outputs = load(model)
        source = rp.summarize(outputs.held_out, outputs.y_held_out, prior=outputs.counts)
        cells = [c for c in HARDEST if c.model == model]
        out["moments"][model] = on_cells(source, MOMENTS, cells, outputs, trials)
        for name, options in (("k/(K-1), largest remainder", {}), ("k/K, floor", {"printed": True})):
            out["draws"].setdefault(name, {})[model] = on_cells(source, DRAWN, cells, outputs, trials, **options)
    return {"columns": ["kl", "accuracy"], **out}


def training_outputs(name: str, data: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return outputs and labels of the shipped text classifier on its own training rows: it is trained once more.

    Which ridge it had is not stored: the one whose held-out outputs are those that ship.
    """
    spec = importlib.util.spec_from_file_location("text_intents", record.HERE.parent / "text_intents" / "make.py")
    make = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = make  # its dataclass looks itself up there
    spec.loader.exec_module(make)
    corpus = getattr(make, name)(data)
    rng = np.random.default_rng(make.SEED)
    train, heldout = make.long_tail_rows(corpus.y[: corpus.n_trainable], {"banking77": 130, "clinc150": 100}[name], rng)
    stored = load(name).held_out
    for strength in make.STRENGTHS:
        model = make.classifier(strength).fit(corpus.text[train], corpus.y[train])
        if np.abs(model.predict_proba(corpus.text[heldout]) - stored).max() < 0.02:
            return model.predict_proba(corpus.text[train]), corpus.y[train]
    raise SystemExit(f"sweeps.py: no ridge gives the outputs that ship for {name}; are data and scikit-learn the same?")


def protocol_text(trials: int, data: Path | None) -> dict:
    """BBSE and RLLS with outputs on held-out rows, and on the training rows as in public code of the MAPLS authors."""
    if data is None:
        raise SystemExit("sweeps.py: protocol-text trains the text classifiers again; give their folder by --data")
    out: dict[str, dict] = {}
    for name in ("banking77", "clinc150"):
        outputs = load(name)
        train, y = training_outputs(name, data)
        out[name] = both_protocols(name, outputs, train, y, trials, n_dirichlet=1500)
    return {"columns": ["kl", "accuracy"], "classifiers": out}


def both_protocols(
    model: str, outputs: Outputs, train: np.ndarray, y: np.ndarray, trials: int, n_dirichlet: int
) -> dict[str, dict]:
    """Return BBSE and RLLS with a classifier's outputs on held-out rows, and on its training rows."""
    cells = [Cell(model, "shuffled", 0.02), Cell(model, "dirichlet", 1.0)]
    out = {}
    for kind, proba, labels in (("held-out", outputs.held_out, outputs.y_held_out), ("training", train, y)):
        source = rp.summarize(proba, labels, prior=outputs.counts)
        right = round(100 * float(np.mean(proba.argmax(1) == labels)), 1)
        result = on_cells(source, MOMENTS, cells, outputs, trials, n_dirichlet=n_dirichlet)
        out[kind] = {"rows": len(labels), "accuracy": right, "methods": result}
    return out


def protocol_tiny(trials: int, data: Path | None) -> dict:
    """The same on the heads of `pretrained.py`."""
    if data is None:
        raise SystemExit("sweeps.py: protocol-tiny needs the outputs on training rows; give their folder by --data")
    out = {}
    for ratio in (0.2, 0.02):
        model = f"tiny-imagenet-lt-{ratio}"
        with np.load(data / f"training-{ratio}.npz") as f:
            out[model] = both_protocols(model, load(model), f["proba"].astype(float), f["y"], trials, n_dirichlet=2000)
    return {"columns": ["kl", "accuracy"], "classifiers": out}


def protocol_training(trials: int) -> dict:
    """The same on the networks whose confusion on the training set is stored: those that train.py exported again."""
    out = {}
    for model in dict.fromkeys(c.model for c in (*CIFAR, *LONG) if available(c.model)):
        outputs = load(model)
        if outputs.trained is None:
            continue
        held = rp.summarize(outputs.held_out, outputs.y_held_out, prior=outputs.counts)
        n = outputs.trained.hard.sum()
        training = rp.Source(
            outputs.counts / outputs.counts.sum(),
            confusion=outputs.trained.soft / n,
            hard_confusion=outputs.trained.hard / n,
            counts=outputs.counts.astype(float),
        )
        cells = [Cell(model, "shuffled", 0.02), Cell(model, "dirichlet", 1.0)]
        out[model] = {
            kind: {
                "rows": round(float(source.counts.sum())),
                "accuracy": round(100 * float(np.trace(source.hard_confusion)), 1),
                "methods": on_cells(source, MOMENTS, cells, outputs, trials),
            }
            for kind, source in (("held-out", held), ("training", training))
        }
    if not out:
        raise SystemExit("sweeps.py: no network has its confusion on the training set in outputs/; see train.py")
    return {"columns": ["kl", "accuracy"], "classifiers": out}


SWEEPS: dict[str, tuple[Callable[[int], dict], int]] = {
    "ascent": (ascent, 10),
    "ascent-online": (ascent_online, 10),
    "plane": (plane, 10),
    "monotone": (monotone, 3),
    "protocol": (protocol, 20),
}
WITH_TRAINING = {"protocol-training": (protocol_training, 20)}  # asked for by name: not every outputs file has it
WITH_DATA = {"protocol-text": (protocol_text, 20), "protocol-tiny": (protocol_tiny, 10)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *SWEEPS, *WITH_TRAINING, *WITH_DATA], default=[])
    parser.add_argument("--trials", type=int)
    parser.add_argument("--data", type=Path, help="folder that protocol-text or protocol-tiny needs")
    parser.add_argument("--store", action="store_true", help="store the result of a run with fewer trials too")
    args = parser.parse_args()
    for name in args.names or SWEEPS:
        sweep, full = {**SWEEPS, **WITH_TRAINING, **WITH_DATA}[name]
        sweep = partial(sweep, data=args.data) if name in WITH_DATA else sweep
        trials = args.trials or full
        path = record.destination(name, full=trials >= full, force=args.store)
        record.store(path, {"trials": trials, **sweep(trials)})


if __name__ == "__main__":
    main()
