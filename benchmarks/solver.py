"""The certified solver behind `mlls` against plain EM, both to the same duality gap, in one interleaved run.

    python benchmarks/solver.py [--tol 1e-8] [--only K=10,] [--max-pass 50000]

Plain EM uses our own E-step, so the ratio shows the solver alone; a textbook E-step is timed beside it.
Where EM's gap is still above the tolerance it was stopped, and the ratios are lower bounds.
"""

import argparse
import time

from _record import markdown, progress, store  # isort: split

import numpy as np
from em_pass import textbook

import reprior as rp
from reprior.batch.solve import evaluate, maximize
from reprior.rows.blocks import ArrayBlocks

SIZES = {  # rows, classes, dimensions of the features, distance between the class means, EM passes between timings
    "K=1000, N=10,000, hard": (10_000, 1000, 20, 0.8, 1000),
    "K=1000, N=20,000, easier": (20_000, 1000, 64, 0.5, 500),
    "K=10, N=1,000,000": (1_000_000, 10, 4, 0.6, 100),
}


def problem(n: int, k: int, d: int, distance: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return a source prior, exact posteriors of Gaussian classes under it, and how often their arg max is right."""
    rng = np.random.default_rng(0)
    source = rp.simulate.long_tail(k, 0.1)
    target = rp.simulate.shuffled_long_tail(k, 0.02, rng=rng)
    means = distance * rng.standard_normal((k, d))
    y = rng.choice(k, n, p=target)
    logits = (means[y] + rng.standard_normal((n, d))) @ means.T
    logits += np.log(source) - 0.5 * (means**2).sum(axis=1)
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return source, logits, float((logits.argmax(axis=1) == y).mean())


def measure(name: str, tol: float, max_pass: int) -> dict[str, float | str]:
    n, k, d, distance, every = SIZES[name]
    source, proba, accuracy = problem(n, k, d, distance)
    blocks, solver, book, em, passes = ArrayBlocks(proba), [], [], 0.0, 0
    point = evaluate(blocks, source, source)
    while point.gap > tol and passes < max_pass:
        if passes % every == 0 and len(solver) < 5:
            start = time.process_time()
            best, fast = maximize(blocks, source, tol=tol)
            solver.append(time.process_time() - start)
            start = time.process_time()
            textbook(proba, point.prior / source)
            book.append(time.process_time() - start)
        start = time.process_time()
        point = evaluate(blocks, point.prior * point.gradient, source)
        em += time.process_time() - start
        passes += 1
        if passes % 100 == 0:
            progress(passes, max_pass, f"{name}: EM at gap {point.gap:.1e}")
    assert best.gap <= tol
    ours = float(np.median(solver))
    return {
        "problem": name,
        "MB": proba.nbytes / 1e6,
        "accuracy of the arg max": accuracy,
        "solver: passes": fast,
        "solver: seconds": ours,
        "solver: gap": best.gap,
        "EM: passes": passes,
        "EM: seconds": em,
        "EM: gap": point.gap,
        "EM / solver, seconds": em / ours,
        "EM with textbook passes / solver, seconds": passes * float(np.median(book)) / ours,
        "largest difference of a share": float(np.abs(best.prior - point.prior).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tol", type=float, default=1e-8)
    parser.add_argument("--only", default="", help="problems whose name contains this")
    parser.add_argument("--max-pass", type=int, default=50_000, help="of EM; the ratios are then lower bounds")
    options = parser.parse_args()
    rows = [measure(name, options.tol, options.max_pass) for name in SIZES if options.only in name]
    table = markdown(
        ["", *(str(row["problem"]) for row in rows)],
        [[key, *(f"{row[key]:.3g}" for row in rows)] for key in rows[0] if key != "problem"],
    )
    title = f"# Converged maximum likelihood to a duality gap of {options.tol:g}: CPU time, one thread"
    store("solver", {"problems": rows}, f"{title}\n\n{table}")


if __name__ == "__main__":
    main()
