"""Measure what the figures show: online curves, the path of the printed methods, and the accuracy of intervals.

    python curves.py [NAME ...] [--trials N]        # all of them without names; each writes results/NAME.json
    python curves.py online-cifar --lines online-EBLS --trials 20 --store     # this line alone; the others stay

A run with fewer trials than the default goes to .work/ and leaves the stored result alone; --store overrides that.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import argparse
from collections.abc import Callable, Sequence

import numpy as np
import record
from cells import CIFAR, CIFAR_RATIOS, IMAGENET, Cell, draw
from models import available, load
from outputs import Outputs

import reprior as rp
from reprior import bounds

FLOOR = 1e-12


def grid(n: int, points: int = 40) -> list[int]:
    """Return sample numbers up to n, evenly spaced on a log scale."""
    return sorted({int(x) for x in np.geomspace(10, n, points)})


def raw_source(outputs: Outputs) -> rp.Source:
    """Return what the paper's methods know: the training prior; the held-out rows serve intervals only."""
    return rp.summarize(outputs.held_out, outputs.y_held_out, prior=outputs.counts)


def follow(stream: rp.Stream, rows: np.ndarray, true: np.ndarray, at: Sequence[int]) -> list[float]:
    """Return KL after each number of samples in `at`."""
    out, done = [], 0
    for stop in at:
        stream.learn_many(rows[done:stop])
        out.append(rp.metrics.kl(true, stream.prior, floor=FLOOR))
        done = stop
    return out


STREAMS: dict[str, Callable[[rp.Source], rp.Stream]] = {
    "online-FMAPLS": lambda s: rp.Stream("online-fmapls", s, start_at="uniform"),
    "online-EBLS": lambda s: rp.Stream("online-ebls", s, drift=False),
}


def online_curves(cells: list[Cell], *, trials: int, n_dirichlet: int, lines: Sequence[str]) -> dict:
    """KL against samples seen, mean over trials, for each cell and stream."""
    out: dict[str, dict] = {}
    for model in dict.fromkeys(c.model for c in cells):
        outputs = load(model)
        source = raw_source(outputs)
        for cell in (c for c in cells if c.model == model):
            result: dict[str, list[list[float]]] = {name: [] for name in lines}
            for t in range(trials):  # one target at a time: a hundred of K = 1000 would take 10 GB
                s = draw(cell, outputs, t, n_dirichlet=n_dirichlet)
                at = grid(len(s.y))
                for name in lines:
                    result[name].append(follow(STREAMS[name](source), s.proba, s.prior, at))
            means = {name: np.round(np.mean(kl, 0), 5).tolist() for name, kl in result.items()}
            out[cell.name] = {"samples": at, **means}
    return {"cells": out}


def cifar_online(trials: int, lines: Sequence[str] = tuple(STREAMS)) -> dict:
    return online_curves(CIFAR, trials=trials, n_dirichlet=3000, lines=lines)


def imagenet_online(trials: int, lines: Sequence[str] = tuple(STREAMS)) -> dict:
    models = [c for c in IMAGENET if available(c.model)]
    return online_curves(models, trials=trials, n_dirichlet=12000, lines=lines)


def some_lines(stored: dict, lines: Sequence[str], trials: int, fresh: dict) -> dict:
    """Return stored online curves with fresh lines in place of their own, and how those were made."""
    made = {**stored.get("lines", {}), **{name: {"trials": trials, **record.circumstances()} for name in lines}}
    cells = {name: {**cell, **fresh["cells"][name]} for name, cell in stored["cells"].items()}
    return {**stored, "lines": made, "cells": cells}


def why(trials: int, model: str = "cifar100-lt-0.1") -> dict:
    """KL of printed FMAPLS against iterations for several c, and against c for several numbers of iterations."""
    outputs = load(model)
    source = raw_source(outputs)
    cell = Cell(model, "dirichlet", 1.0)
    samples = [draw(cell, outputs, t) for t in range(trials)]
    c_of_n, steps = [0.125, 0.25, 0.5, 1, 2, 4, 8, 16], [1, 2, 4, 8, 16, 32, 64, 100, 128, 256, 512, 1024]

    def mean_kl(estimate: Callable[[np.ndarray], np.ndarray]) -> float:
        return round(float(np.mean([rp.metrics.kl(s.prior, estimate(s.proba), floor=FLOOR) for s in samples])), 5)

    table = {f"{c:g}": [mean_kl(lambda p, c=c, t=t: rp.fmapls(
        source, p, variant="paper", c=c * len(p), n_iter=t).prior) for t in steps] for c in c_of_n}
    return {"cell": cell.name, "c_of_n": c_of_n, "steps": steps, "kl": table,
            "FMAPLS stable": mean_kl(lambda p: rp.fmapls(source, p).prior),
            "MAPLS": mean_kl(lambda p: rp.mapls(source, p).prior),
            "MLLS": mean_kl(lambda p: rp.mlls(source, p, n_iter=100).prior)}


def stopping(trials: int, n_iter: int = 500) -> dict:
    """Plain EM from the uniform prior, which knows no α, beside printed FMAPLS: how low KL comes on the way, and when.

    Each cell has the lowest mean KL of the path and its step, and in each trial after how many steps KL is lowest and
    the log-likelihood falls for the first time (0: never within `n_iter` steps).
    """
    out: dict[str, dict] = {}
    for ratio in CIFAR_RATIOS:
        model = f"cifar100-lt-{ratio}"
        outputs = load(model)
        prior = outputs.counts / outputs.counts.sum()
        for cell in (Cell(model, "shuffled", 0.02), Cell(model, "dirichlet", 1.0)):
            paths: dict[str, list[np.ndarray]] = {}
            firsts: dict[str, list[list[int]]] = {}
            for t in range(trials):
                s = draw(cell, outputs, t)
                for name, c in {"EM": None, **{f"c={c:g}N": c * len(s.y) for c in STOPPED_C}}.items():
                    kl, likelihood = path_of(prior, s.proba, s.prior, c, n_iter)
                    falls = np.flatnonzero(np.diff(likelihood) < -1e-7)
                    paths.setdefault(name, []).append(kl)
                    firsts.setdefault(name, []).append([int(kl.argmin()) + 1, int(falls[0]) + 2 if len(falls) else 0])
            cell_out = {}
            for name, kls in paths.items():
                mean = np.mean(kls, 0)
                cell_out[name] = {"kl": round(float(mean.min()), 5), "step": int(mean.argmin()) + 1,
                                  "by_trial": firsts[name]}
            mapls = [rp.metrics.kl(s.prior, rp.mapls(prior, s.proba).prior, floor=FLOOR)
                     for s in (draw(cell, outputs, t) for t in range(trials))]
            out[cell.name] = {**cell_out, "MAPLS": {"kl": round(float(np.mean(mapls)), 5)}}
    return {"steps": n_iter, "c_of_n": STOPPED_C, "by_trial": ["step of the lowest KL", "step of the first fall"],
            "cells": out}


STOPPED_C = (0.5, 1.0, 2.0, 4.0)


def path_of(
    prior: np.ndarray, rows: np.ndarray, true: np.ndarray, c: float | None, n_iter: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return KL and log-likelihood after each step of Algorithm 1 with the surrogate's c, or of plain EM without c."""
    n, k = rows.shape
    pi, less = np.full(k, 1 / k), np.zeros(k)  # α − 1: zero at the start, as printed, and throughout without a c
    kl, likelihood = np.empty(n_iter), np.empty(n_iter)
    sums = rows @ (pi / prior)
    for t in range(n_iter):
        w = pi / prior
        pi = np.maximum(less + w * (rows.T @ (1 / sums)), FLOOR * n)  # eq. 8, 9
        pi /= pi.sum()
        if c is not None:
            less = c * pi / pi.max() - 1  # eq. 15
        sums = rows @ (pi / prior)
        kl[t], likelihood[t] = rp.metrics.kl(true, pi, floor=FLOOR), np.log(sums).sum()
    return kl, likelihood


def printed_with_mended_start(
    prior: np.ndarray, rows: np.ndarray, true: np.ndarray, c: float, at: list[int]
) -> list[float]:
    """Return KL of Algorithm 2 with its first step mended, α⁰ = c·π⁰/max π⁰; the recursion itself is as printed."""
    pi, out = np.full(len(prior), 1 / len(prior)), []
    for t, p in enumerate(rows[: at[-1]], 1):
        r = p * pi / prior
        pi = np.maximum(c * pi / pi.max() - 1 + r / r.sum(), 1e-12)  # eq. 31 with γ = 1, eq. 33; a floor instead of < 0
        pi /= pi.sum()
        if t in at:
            out.append(rp.metrics.kl(true, pi, floor=FLOOR))
    return out


def collapse(trials: int, model: str = "cifar100-lt-0.1") -> dict:
    """KL of the printed online recursion against samples for several c, beside the stable form."""
    outputs = load(model)
    source = raw_source(outputs)
    cell = Cell(model, "dirichlet", 1.0)
    samples = [draw(cell, outputs, t) for t in range(trials)]
    at = grid(len(samples[0].y))

    def mean_curve(**options: object) -> list[float]:
        streams = (rp.Stream("online-fmapls", source, start_at="uniform", **options) for _ in samples)
        curves = [follow(stream, s.proba, s.prior, at) for stream, s in zip(streams, samples, strict=True)]
        return np.round(np.mean(curves, 0), 5).tolist()

    printed = {f"{c:g}": mean_curve(variant="paper", c=c) for c in (1000.0, 100000.0)}
    mended = {f"{c:g}": np.round(np.mean([printed_with_mended_start(source.prior, s.proba, s.prior, c, at)
                                          for s in samples], 0), 5).tolist()
              for c in (100.0, 300.0, 1000.0, 3000.0, 30000.0)}
    constant = {f"{c:g}": mean_curve(variant="stable", c=c) for c in (3.0, 30.0, 300.0)}
    uniform = np.full(len(source.prior), 1 / len(source.prior))
    return {"cell": cell.name, "samples": at, "printed": printed,
            "printed, start mended": mended, "stable, constant c": constant,
            "stable": mean_curve(),
            "uniform": round(float(np.mean([rp.metrics.kl(s.prior, uniform) for s in samples])), 5)}


def intervals(trials: int) -> dict:
    """Share of classes whose true share lies in the 95 % interval, by kind of interval, and their mean width."""
    out: dict[str, dict[str, list[float]]] = {}
    for ratio in CIFAR_RATIOS:
        model = f"cifar100-lt-{ratio}"
        outputs = load(model)
        source = raw_source(outputs)
        for cell in (Cell(model, "shuffled", 0.02), Cell(model, "dirichlet", 1.0)):
            hits: dict[str, list[tuple[float, float]]] = {}
            for t in range(trials):
                s = draw(cell, outputs, t)
                for name, (low, high) in all_intervals(source, s.proba).items():
                    hits.setdefault(name, []).append(
                        (float(np.mean((low <= s.prior) & (s.prior <= high))), float(np.mean(high - low))))
            out[cell.name] = {name: np.round(np.mean(v, 0), 4).tolist() for name, v in hits.items()}
    return {"level": 0.95, "columns": ["coverage", "width"], "cells": out}


def all_intervals(source: rp.Source, proba: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return 95 % intervals by kind. The paper proposes none: the first two are what its bound would give."""
    estimate = rp.ebls(source, proba)
    without = rp.ebls(source.prior, proba)
    printed = rp.fmapls(source, proba, variant="paper", c=2.0 * len(proba))
    return {"eq. 14 around EBLS, α = 1": by_bound(estimate, proba, np.ones(len(source.prior))),
            "eq. 14 around FMAPLS as printed, α = ĉπ": by_bound(printed, proba, printed.alpha),
            "EBLS, no held-out rows": without.interval(0.95),
            "EBLS, held-out rows known": estimate.interval(0.95)}


def by_bound(estimate: rp.PriorEstimate, proba: np.ndarray, alpha: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return π ± 1.96 standard deviations of eq. 14; a class with α − 1 + count ≤ 0 has no bound, and no width here."""
    counts = estimate.correct(proba).sum(0)
    bound = bounds.cramer_rao(estimate.prior, counts, alpha=np.maximum(alpha, 1 - counts + 1e-9))
    half = 1.96 * np.sqrt(bound.diagonal())
    return np.maximum(estimate.prior - half, 0), np.minimum(estimate.prior + half, 1)


ONLINE = {"online-cifar": cifar_online, "online-imagenet": imagenet_online}
CURVES: dict[str, tuple[Callable[[int], dict], int]] = {
    "online-cifar": (cifar_online, 100), "online-imagenet": (imagenet_online, 5), "why": (why, 10),
    "stopping": (stopping, 10), "collapse": (collapse, 10), "intervals": (intervals, 10),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", choices=[[], *CURVES], default=[])
    parser.add_argument("--trials", type=int)
    parser.add_argument("--store", action="store_true", help="store the result of a run with fewer trials too")
    parser.add_argument("--lines", nargs="+", choices=STREAMS, help="only these lines of online curves")
    args = parser.parse_args()
    for name in args.names or CURVES:
        measure, full = CURVES[name]
        trials = args.trials or full
        path = record.destination(name, full=trials >= full, force=args.store)
        if args.lines:
            fresh = ONLINE[name](trials, args.lines)
            record.write(path, some_lines(record.read(name), args.lines, trials, fresh))
        else:
            record.store(path, {"trials": trials, **measure(trials)})


if __name__ == "__main__":
    main()
