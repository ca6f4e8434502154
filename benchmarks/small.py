"""What a small problem costs from call to answer, checks included, in units of 100 plain NumPy EM steps on its rows.

python benchmarks/small.py [--repeats 101]
"""

import argparse
import time
from collections.abc import Callable

from _record import markdown, progress, store  # isort: split

import numpy as np

import reprior as rp

SIZES = ((100, 10), (1000, 100))
ALLOWED = {"mlls": (0.25, 0.5), "fmapls": (0.5, 0.7), "fmapls, printed": (0.5, 0.7), "mapls": (0.5, 0.9),
           "ebls": (1.5, 1.5)}  # fmt: skip


def plain(source: np.ndarray, proba: np.ndarray) -> np.ndarray:
    """100 steps of EM in as few NumPy calls as can be."""
    weights, n = np.ones(len(source)), len(proba)
    for _ in range(100):
        weights = weights * (proba.T @ (1.0 / (proba @ weights))) / (n * source)
    return weights * source


def rows(n: int, k: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    y = rng.choice(k, size=n, p=rng.dirichlet(np.ones(k)))
    logits = 2.0 * (rng.standard_normal((n, k)) + 2.0 * np.eye(k)[y])
    proba = np.exp(logits - logits.max(axis=1, keepdims=True))
    return proba / proba.sum(axis=1, keepdims=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=101)
    options = parser.parse_args()
    figures, table = {}, []
    for size, (n, k) in enumerate(SIZES):
        source = np.full(k, 1.0 / k)
        calls: dict[str, Callable[[np.ndarray], object]] = {
            "100 plain steps": lambda p, s=source: plain(s, p),
            "mlls": lambda p, s=source: rp.mlls(s, p),
            "mlls, 100 steps": lambda p, s=source: rp.mlls(s, p, n_iter=100),
            "fmapls": lambda p, s=source: rp.fmapls(s, p),
            "fmapls, printed": lambda p, s=source: rp.fmapls(s, p, variant="paper"),
            "mapls": lambda p, s=source: rp.mapls(s, p),
            "ebls": lambda p, s=source: rp.ebls(s, p),
        }
        seconds: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(options.repeats + 3):
            proba = rows(n, k, turn)
            for name, call in calls.items():
                start = time.process_time()
                call(proba)
                if turn >= 3:
                    seconds[name].append(time.process_time() - start)
            progress(turn + 1, options.repeats + 3, f"{n} x {k}")
        base = np.array(seconds["100 plain steps"])
        for name, spent in seconds.items():
            ratio = float(np.median(np.array(spent) / base))
            figures[f"{n} x {k}, {name}"] = {"ms": 1e3 * float(np.median(spent)), "ratio": ratio}
            allowed = ALLOWED.get(name, ("", ""))[size]
            table.append([f"{n} x {k}", name, f"{1e3 * np.median(spent):.3f}", f"{ratio:.2f}", str(allowed)])
    text = (
        f"# Small problems: CPU time from call to answer, medians of {options.repeats} interleaved turns\n\n"
        "“Ratio” is to 100 plain NumPy EM steps on the same rows in the same turn; input is checked as ever.\n\n"
        + markdown(["rows x classes", "method", "ms", "ratio", "at most"], table)
    )
    store("small", {"cells": figures}, text)


if __name__ == "__main__":
    main()
