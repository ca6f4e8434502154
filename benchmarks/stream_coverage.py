"""How often a stream's 95 % intervals hold the true share of a class, after 300 and 3,000 samples of one prior.

python benchmarks/stream_coverage.py [--seeds 8]
"""

import argparse

from _record import markdown, store  # isort: split

import numpy as np
from drift import PROBLEMS, problem, target

import reprior as rp
from reprior import simulate

STREAMS = {"online-ebls": {}, "online-ebls, drift=False": {"drift": False}, "online-fmapls": {}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    seeds = parser.parse_args().seeds
    found = {}
    for name in PROBLEMS:
        source, pool, y = problem(name)
        for n in (300, 3000):
            for seed in range(2 * seeds):
                rng = np.random.default_rng(seed)
                prior = target("dirichlet" if seed % 2 else "shuffled long tail", len(source.prior), rng)
                sample = simulate.resample(pool, y, prior, n=n, rng=rng, exact=False)
                for label, options in STREAMS.items():
                    stream = rp.Stream(label.split(",")[0], source, **options)
                    stream.learn_many(sample.proba)
                    lower, upper = stream.interval(0.95)
                    inside = ((prior >= lower) & (prior <= upper)).mean()
                    found.setdefault(f"{name}, n={n}", {}).setdefault(label, []).append(inside)
    mean = {cell: {label: float(np.mean(x)) for label, x in row.items()} for cell, row in found.items()}
    table = markdown(["95 % intervals hold the truth", *STREAMS],
                     [[cell, *(f"{x:.1%}" for x in row.values())] for cell, row in mean.items()])  # fmt: skip
    store("stream_coverage", {"seeds": seeds, "coverage": mean}, table)


if __name__ == "__main__":
    main()
