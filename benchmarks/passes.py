"""How often 500,000 x 100 rows are read: `mlls` and `ebls` on rows that come in blocks, which are not held in memory.

python benchmarks/passes.py [--turns 3]

“Without a sample” is the same solver from the source prior, as for rows that are all in memory and fewer.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

from _record import markdown, progress, store  # isort: split

import numpy as np

import reprior as rp
from reprior.batch import solve

N, K = 500_000, 100


class Read:
    """Rows in blocks, and how often they were read."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows, self.passes, self.n_classes = rows, 0, rows.shape[1]

    def map_sum(self, fn: Callable[[Any], Any]) -> Any:
        self.passes += 1
        total = fn(self.rows[:10_000])
        for first in range(10_000, len(self.rows), 10_000):
            total = total + fn(self.rows[first : first + 10_000])
        return total


def problem(kind: str) -> tuple[np.ndarray, np.ndarray]:
    """Return a source prior and outputs in single precision; of “absent” every fourth class does not occur."""
    rng = np.random.default_rng(0)
    source, target = rp.simulate.long_tail(K, 0.1), rp.simulate.shuffled_long_tail(K, 0.02, rng=rng)
    target[:: 4 if kind == "absent" else K] *= kind != "absent"
    y = rng.choice(K, N, p=target / target.sum())
    logits = 2 * rng.standard_normal((N, K), dtype=np.float32)
    logits[np.arange(N), y] += {"plain": 4, "absent": 4, "hard": 2.5}[kind]
    logits += np.log(source).astype(np.float32)
    np.exp(logits - logits.max(axis=1, keepdims=True), out=logits)
    logits /= logits.sum(axis=1, keepdims=True, dtype=np.float64)
    return source, logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    figures, table = {}, []
    for kind in ("plain", "absent", "hard"):
        source, rows = problem(kind)
        runs, priors = {}, {}

        def without(target: Read, source: np.ndarray = source) -> solve.Point:
            point = solve.evaluate(target, source, source)
            point, _ = solve.accelerated_em(target, source, point, 1, tol=1e-8, max_pass=solve.WARM_UP)
            point, _ = solve.newton(target, source, point, 0, tol=1e-8, max_pass=500)
            return point

        calls = {
            "mlls": lambda target, s=source: rp.mlls(s, target),
            "mlls, without a sample": without,
            "ebls": lambda target, s=source: rp.ebls(s, target),
        }
        for turn in range(options.turns):
            for name, call in calls.items():
                target = Read(rows)
                cpu, wall = time.process_time(), time.perf_counter()
                priors[name] = call(target).prior
                spent = time.process_time() - cpu, time.perf_counter() - wall
                runs.setdefault(name, []).append((target.passes, *spent))
            progress(turn + 1, options.turns, kind)
        apart = float(np.abs(priors["mlls"] - priors["mlls, without a sample"]).sum())
        for name, measured in runs.items():
            passes, cpu, wall = (float(x) for x in np.median(measured, axis=0))
            figures[f"{kind}, {name}"] = {"passes": passes, "cpu_seconds": cpu, "wall_seconds": wall}
            table.append([kind, name, f"{passes:.0f}", f"{cpu:.1f}", f"{wall:.1f}",
                          f"{apart:.1e}" if name == "mlls" else ""])  # fmt: skip
        figures[f"{kind}, mlls"]["apart"] = apart
    text = (
        f"# How often {N:,} x {K} rows in blocks are read\n\nMedians of {options.turns} interleaved turns; all passes "
        "count, those for the number of rows and for a sample too. `mlls` ends at a duality gap of 1e-8 nats.\n\n"
        + markdown(["outputs", "method", "passes", "CPU s", "wall s", "L1 to the other mlls"], table)
    )
    store("passes", {"cells": figures}, text)


if __name__ == "__main__":
    main()
