"""What one EM pass costs: ours, one plain read of the matrix, and the textbook formulation, in one interleaved run.

python benchmarks/em_pass.py [--repeats 31]
"""

import argparse
import time
import tracemalloc
from collections.abc import Callable

from _record import markdown, progress, store  # isort: split

import numpy as np

from reprior.rows.blocks import ArrayBlocks
from reprior.rows.passes import e_step

BYTES = 160_000_000  # of P in float64: twice what is asked for, far beyond any cache


def textbook(proba: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The formulation of the popular packages: posteriors as a matrix, then their mean."""
    posterior = proba * weights
    posterior = posterior / posterior.sum(axis=1, keepdims=True)
    return posterior.mean(axis=0)


def ours(proba: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return e_step(ArrayBlocks(proba), weights).counts / len(proba)


def outputs(n: int, k: int) -> np.ndarray:
    """Rows like a network's: one class likely, the others in a long tail."""
    rng = np.random.default_rng(k)
    proba = np.exp(2.0 * rng.standard_normal((n, k), dtype=np.float32).astype(np.float64))
    proba[np.arange(n), rng.integers(k, size=n)] *= 10 * k
    proba /= proba.sum(axis=1, keepdims=True)
    return proba


def interleaved(calls: dict[str, Callable[[], object]], repeats: int, what: str) -> dict[str, np.ndarray]:
    """Return CPU seconds of each call, repeated in turns so that a busy moment hits all of them alike."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(repeats + 2):  # two turns to warm up
        for name, call in calls.items():
            start = time.process_time()
            call()
            if turn >= 2:
                seconds[name].append(time.process_time() - start)
        progress(turn + 1, repeats + 2, what)
    return {name: np.array(values) for name, values in seconds.items()}


def peak_bytes(call: Callable[[], object]) -> int:
    """Return the most memory that `call` held at once on top of what was there; NumPy reports to tracemalloc."""
    tracemalloc.start()
    try:
        call()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def measure(k: int, repeats: int) -> dict[str, float]:
    n = BYTES // (8 * k)
    proba = outputs(n, k)
    single = proba.astype(np.float32)
    weights = np.random.default_rng(0).dirichlet(np.ones(k)) * k
    np.testing.assert_allclose(ours(proba, weights), textbook(proba, weights), rtol=1e-10)
    np.testing.assert_allclose(ours(single, weights), textbook(proba, weights), rtol=1e-4)
    flat = proba.reshape(-1)
    seconds = interleaved(
        {
            "sum": flat.sum,
            "dot": lambda: flat @ flat,
            "ours": lambda: ours(proba, weights),
            "ours, float32": lambda: ours(single, weights),
            "textbook": lambda: textbook(proba, weights),
        },
        repeats,
        f"K={k}",
    )
    read = seconds["sum"]
    return {
        "K": k,
        "N": n,
        "MB": proba.nbytes / 1e6,
        "read GB/s": proba.nbytes / 1e9 / float(np.median(read)),
        **{f"{name} ms": 1e3 * float(np.median(values)) for name, values in seconds.items()},
        "ours / read": float(np.median(seconds["ours"] / read)),
        "ours / fastest read": float(np.median(seconds["ours"] / seconds["dot"])),
        "ours float32 / read of float64": float(np.median(seconds["ours, float32"] / read)),
        "textbook / ours": float(np.median(seconds["textbook"] / seconds["ours"])),
        "textbook / ours float32": float(np.median(seconds["textbook"] / seconds["ours, float32"])),
        "extra memory, % of P": 100 * peak_bytes(lambda: ours(proba, weights)) / proba.nbytes,
        "extra memory float32, % of P": 100 * peak_bytes(lambda: ours(single, weights)) / single.nbytes,
        "extra memory textbook, % of P": 100 * peak_bytes(lambda: textbook(proba, weights)) / proba.nbytes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=31)
    options = parser.parse_args()
    rows = [measure(k, options.repeats) for k in (100, 1000)]
    shown = [key for key in rows[0] if key not in ("K", "N")]
    table = markdown(
        ["", *(f"K={row['K']}, N={row['N']:,}" for row in rows)],
        [[key, *(f"{row[key]:.3g}" for row in rows)] for key in shown],
    )
    title = (
        f"# One EM pass in CPU time on one thread, medians of {options.repeats} interleaved turns\n\n"
        "A read is `P.sum()`; the fastest read found is `p @ p` of the flattened matrix. "
        "Ratios are medians of the turns' ratios."
    )
    store("em_pass", {"sizes": rows}, f"{title}\n\n{table}")


if __name__ == "__main__":
    main()
