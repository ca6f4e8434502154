"""What a burst of crafted rows moves a stream by, with and without `robust=`, and what the bound costs.

python benchmarks/robust.py [--seeds 5]

After 2,000 ordinary samples, 10 one-hot rows of the class that is rarest in the source; and, for what it costs, a shift
to another prior: mean KL over the 1,000 samples after it, and over the 1,000 after those. In batch: 20 such rows among
2,000 ordinary ones.
"""

import argparse

from _record import markdown, store  # isort: split

import numpy as np
from drift import PROBLEMS, problem, target

import reprior as rp
from reprior import metrics, simulate

BOUNDS = (None, 0.01, 0.003, 0.001)
BATCH = ("mlls", "mapls", "fmapls", "ebls")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    seeds = parser.parse_args().seeds
    found, batch = {}, {}
    for name in PROBLEMS:
        source, pool, y = problem(name)
        k = len(source.prior)
        rare = np.repeat(np.eye(k)[[int(source.prior.argmin())]], 10, axis=0)
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            priors = [target(kind, k, rng) for kind in ("shuffled long tail", "dirichlet")]
            before, after = (simulate.resample(pool, y, p, n=2000, rng=rng, exact=False).proba for p in priors)
            for method in BATCH:
                crafted = np.concatenate([before, np.repeat(rare[:1], 20, axis=0)])
                one, other = (rp.estimate(source, rows, method).prior for rows in (before, crafted))
                batch.setdefault(name, {}).setdefault(method, []).append(0.5 * float(np.abs(one - other).sum()))
            for bound in BOUNDS:
                stream = rp.Stream("online-ebls", source, robust=bound)
                stream.learn_many(before)
                burst = rp.Stream.of(stream.state)
                burst.learn_many(rare)
                moved = 0.5 * float(np.abs(burst.prior - stream.prior).sum())
                early, late = [], []
                for first in range(0, 2000, 20):
                    stream.learn_many(after[first : first + 20])
                    (early if first < 1000 else late).append(metrics.kl(priors[1], stream.prior))
                cell = found.setdefault(name, {}).setdefault(str(bound), {"moved": [], "early": [], "late": []})
                for part, value in (("moved", moved), ("early", np.mean(early)), ("late", np.mean(late))):
                    cell[part].append(float(value))
    lines = [[name, bound, *(f"{np.mean(cell[part]):.3f}" for part in ("moved", "early", "late"))]
             for name, row in found.items() for bound, cell in row.items()]  # fmt: skip
    headings = ["classifier", "robust", "moved by 10 rows (total variation)", "KL, 1,000 samples after a shift",
                "KL, the next 1,000"]  # fmt: skip
    moved = [[name, *(f"{np.mean(row[method]):.3f}" for method in BATCH)] for name, row in batch.items()]
    tables = markdown(headings, lines) + "\n\n" + markdown(["moved by 20 rows of 2,020", *BATCH], moved)
    store("robust", {"seeds": seeds, "cells": found, "batch": batch}, tables)


if __name__ == "__main__":
    main()
