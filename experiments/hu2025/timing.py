"""Table 1 measured: seconds an iteration of the four variants against N, K and the number of gradient steps.

    python timing.py        # writes results/timing.json

The time of an iteration is the difference between a long and a short run, divided by the iterations between them, so
that reading and checking the input stays out of it. Settings are interleaved; a figure is the smallest of three rounds.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import time
from collections.abc import Callable

import numpy as np
import record

import reprior as rp

NS, KS, GRADS = (1000, 4000, 16000, 64000), (30, 100, 300, 1000), (1, 10, 100, 1000)
N0, K0, G0 = 4000, 100, 10
ROUNDS, SHORT, LONG = 3, 5, 25


def rows(n: int, k: int) -> np.ndarray:
    p = np.random.default_rng(1).dirichlet(np.full(k, 0.3), n) + 1e-6
    return p / p.sum(1, keepdims=True)


def batch_seconds(n: int, k: int, **options: object) -> Callable[[], float]:
    proba, prior = rows(n, k), np.ones(k)

    def run(n_iter: int) -> float:
        start = time.process_time()
        rp.fmapls(prior, proba, variant="paper", c=float(n), n_iter=n_iter, **options)
        return time.process_time() - start
    return lambda: (run(LONG) - run(SHORT)) / (LONG - SHORT)


def online_seconds(n: int, k: int, **options: object) -> Callable[[], float]:
    proba = rows(n, k)

    def once() -> float:
        stream = rp.Stream("online-fmapls", np.ones(k), **options)
        part = proba[:300] if options["update"] == "ga" else proba  # a sample costs the same wherever it comes
        start = time.process_time()
        stream.learn_many(part)
        return (time.process_time() - start) / len(part)
    return once


def settings() -> dict[str, dict[str, dict[int, Callable[[], float]]]]:
    """Return variant -> what varies -> its value -> one measurement."""
    out: dict[str, dict[str, dict[int, Callable[[], float]]]] = {}
    for name, measure in (("FMAPLS", batch_seconds), ("online-FMAPLS", online_seconds)):
        for update in ("GA", "LSF"):
            def at(n: int, k: int, g: int, measure=measure, update=update) -> Callable[[], float]:
                return measure(n, k, update=update.lower(), **({"n_grad": g} if update == "GA" else {}))
            out[f"{name}+{update}"] = {
                "N": {n: at(n, K0, G0) for n in NS}, "K": {k: at(N0, k, G0) for k in KS},
                "T_grad": {g: at(N0, K0, g) for g in GRADS}}
    return out


def main() -> None:
    plan = settings()
    best: dict[tuple[str, str, int], float] = {}
    for _ in range(ROUNDS):
        for variant, axes in plan.items():
            for axis, points in axes.items():
                for value, measure in points.items():
                    key = (variant, axis, value)
                    best[key] = min(best.get(key, np.inf), measure())
    table = {v: {a: {str(x): best[v, a, x] for x in points} for a, points in axes.items()} for v, axes in plan.items()}
    slopes = {v: {a: round(float(np.polyfit(np.log([int(x) for x in p][-3:]), np.log(list(p.values())[-3:]), 1)[0]), 2)
                  for a, p in axes.items()} for v, axes in table.items()}
    record.store(record.RESULTS / "timing.json", {
        "unit": "CPU-seconds an iteration (online: a sample)", "fixed": {"N": N0, "K": K0, "T_grad": G0},
        "seconds": table, "slopes_of_last_three_points": slopes})


if __name__ == "__main__":
    main()
