"""How often a stream's 95 % intervals hold the true share of a class, after samples of one prior.

    python benchmarks/stream_coverage.py [--seeds 8]
    python benchmarks/stream_coverage.py --ordinary [--sets fresh] [--draws 6] [--first 700]
    python benchmarks/stream_coverage.py --row [--draws 32] [--first 100]

The first has classifiers of many classes, and 300 and 3,000 samples. The second has the classifiers, held-out rows and
targets of ordinary.py, up to 2,000 samples, beside the intervals of `pipe.estimate`. Weak classifiers are those that
are right in less than three quarters of the rows at the training mix. Constants were chosen on draws 700 to 705 of the
sets "designed-on"; those of the sets "fresh" were looked at once after that. The third has Gaussian classes in a row,
of which neighbours are alike; draws 0 to 15 of it were chosen on.
"""

import argparse

from _record import markdown, progress, store  # isort: split

import numpy as np
from _ordinary import DESIGNED_ON, FRESH, draws, load
from drift import PROBLEMS, problem, target

import reprior as rp
from reprior import simulate

STREAMS = {"online-ebls": {}, "online-ebls, drift=False": {"drift": False}, "online-fmapls": {}}
SETS = {"designed-on": DESIGNED_ON, "fresh": FRESH}
WEAK = 0.75
WORLDS = ((6, 0.5), (6, 0.8), (8, 0.4), (8, 0.7), (10, 0.4), (10, 0.8), (10, 1.5), (20, 0.4), (20, 0.8))


def many(seeds):
    """Measure classifiers of many classes."""
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


def ordinary(sets, n_draws, first):
    """Measure ordinary classifiers, most of them of few classes."""
    found, classifiers = {}, list(load(SETS[sets]))
    for done, c in enumerate(classifiers):
        progress(done, len(classifiers), c.name)
        kind = "weak" if (c.proba.argmax(axis=1) == c.y)[c.group == 0].mean() < WEAK else "able"
        for size in (200, 1000):
            for seed in range(first, first + n_draws):
                drawn = draws(c, size, seed, shifts=("none", "mild", "strong"))
                pipe = rp.pipeline(c.proba[drawn[0].heldout], c.y[drawn[0].heldout]) if drawn else None
                for d in drawn:
                    if d.prior is None:  # a class ran out
                        continue
                    rows = np.ascontiguousarray(pipe.calibrate(c.proba[d.rows]), np.float64)
                    batch = rp.estimate(pipe.source, rows, pipe.method, **pipe.options)
                    intervals = {"pipe.estimate": batch.interval(0.95)}
                    for label, options in list(STREAMS.items())[:2]:
                        stream = pipe.stream(**options)
                        stream.learn_calibrated(rows)
                        intervals[label] = stream.interval(0.95)
                    for label, (lower, upper) in intervals.items():
                        inside = ((d.prior >= lower) & (d.prior <= upper)).mean()
                        cell = found.setdefault(f"{d.shift}, {kind}, {size} held out", {}).setdefault(label, [])
                        cell.append((inside, (upper - lower).mean()))
    found = {cell: found[cell] for cell in sorted(found)}
    mean = {cell: {label: {"coverage": float(np.mean(x, axis=0)[0]), "width": float(np.mean(x, axis=0)[1])}
                   for label, x in row.items()} | {"streams": len(row["pipe.estimate"])}
            for cell, row in found.items()}  # fmt: skip
    head = ["95 % intervals hold the truth (mean width)", "streams", *next(iter(found.values()))]
    body = [[cell, str(row["streams"]), *(f"{row[label]['coverage']:.1%} ({row[label]['width']:.3f})"
                                          for label in head[2:])] for cell, row in mean.items()]  # fmt: skip
    name = "stream_coverage_ordinary" + ("" if sets == "designed-on" else f"_{sets}")
    store(name, {"sets": sets, "draws": n_draws, "first": first, "cells": mean}, markdown(head, body))


def in_a_row(n_draws, first):
    """Measure classes in a row, Gaussians at equal steps, by exact outputs that are calibrated all the same."""
    found = {}
    for done, (k, step) in enumerate(WORLDS):
        progress(done, len(WORLDS), f"{k} classes, step {step}")
        middles = step * np.arange(k)
        for size in (500, 1000):
            for seed in range(first, first + n_draws):
                rng = np.random.default_rng([seed, k, size, int(100 * step)])
                source = rng.dirichlet(np.full(k, 5.0))

                def drawn(n, mix, rng=rng, source=source, middles=middles):
                    y = rng.choice(len(mix), n, p=mix)
                    logits = np.outer(middles[y] + rng.normal(size=n), middles) - middles**2 / 2 + np.log(source)
                    proba = np.exp(logits - logits.max(axis=1, keepdims=True))
                    return proba / proba.sum(axis=1, keepdims=True), y

                heldout, y = drawn(size, source)
                prior = rng.dirichlet(np.full(k, 2.0 if seed % 2 else 1.0))
                pipe = rp.pipeline(heldout, y)
                rows = np.ascontiguousarray(pipe.calibrate(drawn(2000, prior)[0]), np.float64)
                batch = rp.estimate(pipe.source, rows, pipe.method, **pipe.options)
                intervals = {"pipe.estimate": batch.interval(0.95)}
                for label, options in list(STREAMS.items())[:2]:
                    stream = pipe.stream(**options)
                    stream.learn_calibrated(rows)
                    intervals[label] = stream.interval(0.95)
                for label, (lower, upper) in intervals.items():
                    cell = found.setdefault(f"{k} classes, step {step}, {size} held out", {}).setdefault(label, [])
                    right = (heldout.argmax(axis=1) == y).mean()
                    cell.append((((prior >= lower) & (prior <= upper)).mean(), (upper - lower).mean(), right))
    parts = "coverage", "width", "right"
    mean = {cell: {label: dict(zip(parts, np.mean(x, axis=0).tolist(), strict=True)) for label, x in row.items()}
            for cell, row in found.items()}  # fmt: skip
    labels = list(next(iter(mean.values())))
    mean["all"] = {
        label: {part: float(np.mean([row[label][part] for row in mean.values()])) for part in parts} for label in labels
    }
    body = [
        [cell, f"{row[labels[0]]['right']:.0%}"]
        + [f"{row[label]['coverage']:.1%} ({row[label]['width']:.3f})" for label in labels]
        for cell, row in mean.items()
    ]
    head = ["95 % intervals hold the truth (mean width)", "rows right", *labels]
    store("stream_coverage_row", {"draws": n_draws, "first": first, "cells": mean}, markdown(head, body))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--ordinary", action="store_true")
    parser.add_argument("--sets", choices=SETS, default="designed-on")
    parser.add_argument("--row", action="store_true")
    parser.add_argument("--draws", type=int)
    parser.add_argument("--first", type=int)
    args = parser.parse_args()
    if args.row:
        in_a_row(args.draws or 32, 100 if args.first is None else args.first)
    elif args.ordinary:
        ordinary(args.sets, args.draws or 6, 700 if args.first is None else args.first)
    else:
        many(args.seeds)


if __name__ == "__main__":
    main()
