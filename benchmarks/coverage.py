"""How often 95 % intervals hold the true share of a class, and how often prediction sets hold the true class.

python benchmarks/coverage.py exact [--trials 500]      # K = 10 and 100, N = 500 and 3,000, beside the paper's bound
python benchmarks/coverage.py few [--trials 100]        # few classes and few held-out samples
python benchmarks/coverage.py real [--trials 4]         # classifiers that nothing was designed on, batches and streams
python benchmarks/coverage.py streams [--trials 40]     # simulated streams, stationary and drifting
python benchmarks/coverage.py sets [--trials 4]         # prediction sets
"""

import argparse
import warnings

from _record import markdown, progress, store  # isort: split

import numpy as np
from _worlds import SHIFTS, Gaussians, clustered, draw, in_turn, mean_and_error, shipped, unseen

import reprior as rp
from reprior import bounds, simulate
from reprior.rows.blocks import ArrayBlocks
from reprior.rows.passes import e_step

SIZES = {"< 5 samples": (0, 5), "5 to 50": (5, 50), "> 50": (50, np.inf)}  # expected samples of a class
Z = 1.959964


class Tally:
    """Counts hits and widths by class size."""

    def __init__(self):
        self.hits, self.total, self.width = (dict.fromkeys([*SIZES, "all", "absent"], 0.0) for _ in range(3))

    def add(self, truth, n, lower, upper):
        hit = (truth >= lower - 1e-12) & (truth <= upper + 1e-12)
        for name, (low, high) in {**SIZES, "all": (-1, np.inf)}.items():
            inside = (n * truth >= low) & (n * truth < high) & ((truth > 0) | (name == "all"))
            self._count(name, hit[inside], (upper - lower)[inside] * n)
        self._count("absent", hit[truth == 0], (upper - lower)[truth == 0] * n)

    def _count(self, name, hit, width):
        self.hits[name] += float(hit.sum())
        self.total[name] += len(hit)
        self.width[name] += float(width.sum())

    def figures(self):
        return {
            name: {"coverage": self.hits[name] / t, "width in samples": self.width[name] / t, "intervals": t}
            for name, t in self.total.items()
            if t
        }


CELLS = ((10, 500), (10, 3000), (100, 500), (100, 3000))


def exact(trials):
    worlds = {10: Gaussians(10, 6, 1.3), 100: Gaussians(100, 12, 1.0)}
    results = {}
    for k, n in CELLS:
        tallies = {label: Tally() for label in ("mlls", "ebls", "paper's bound, mlls", "paper's bound, ebls")}
        rng = np.random.default_rng(k + n)
        for trial in range(trials):
            prior = in_turn(k, trial, rng)
            proba, _ = worlds[k].draw(prior, n, rng)
            for method in ("mlls", "ebls"):
                estimate = rp.METHODS[method](worlds[k].source, proba)
                tallies[method].add(prior, n, *estimate.interval(0.95))
                positive = np.maximum(estimate.prior, 1e-12)
                counts = np.maximum(e_step(ArrayBlocks(proba), positive / worlds[k].source).counts, 1e-12)
                error = Z * np.sqrt(bounds.cramer_rao(positive, counts).diagonal())
                low, high = np.clip(estimate.prior - error, 0, 1), np.clip(estimate.prior + error, 0, 1)
                tallies[f"paper's bound, {method}"].add(prior, n, low, high)
            progress(trial + 1, trials, f"K={k} N={n}")
        results[f"K={k}, N={n}"] = {label: tally.figures() for label, tally in tallies.items()}
        table = coverage_table(results, [*SIZES, "absent", "all"])
        store("coverage_exact", {"trials": trials, "coverage": results}, table)


def coverage_table(results, columns):
    def cell(f):
        return f"{100 * f['coverage']:.1f} ({f['width in samples']:.1f})" if f else ""

    rows = [
        [setting, name, *(cell(f.get(c)) for c in columns)]
        for setting, intervals in results.items()
        for name, f in intervals.items()
    ]
    return "Coverage in % of nominal 95 % (mean width in samples).\n\n" + markdown(["", "interval", *columns], rows)


DEFAULT = "default pipeline"


def real(trials):
    """Unseen and shipped classifiers: batches and streams."""
    cases = [*unseen("logistic"), *shipped(("banking77", "clinc150"))]
    tallies = {}
    for done, case in enumerate(cases, 1):
        for size in (200, 1000):
            for shift in SHIFTS:
                for seed in range(trials):
                    d = draw(case, size, shift, seed)
                    pipe = rp.pipeline(case.proba[d.heldout], case.y[d.heldout])
                    rows, n = case.proba[d.target], len(d.target)
                    shares = np.bincount(case.y[d.target], minlength=case.n_classes) / n
                    est, stream = pipe.estimate(rows), pipe.stream()
                    stream.learn_many(rows)
                    for label, truth, interval in (
                        ("shares", shares, est.interval(0.95, of="shares")),
                        ("prior", d.prior, est.interval(0.95, of="prior")),
                        ("stream", d.prior, stream.interval(0.95)),
                    ):
                        cell = tallies.setdefault(f"{shift}, {size} held-out samples", {})
                        cell.setdefault(label, Tally()).add(truth, n, *interval)
        progress(done, len(cases), case.name)
    results = {where: {label: tally.figures() for label, tally in cell.items()} for where, cell in tallies.items()}
    store("coverage_real", {"trials": trials, "coverage": results}, coverage_table(results, [*SIZES, "absent", "all"]))


def sets(trials):
    """How often prediction sets at 90 % hold the true class, and how large they are."""
    cells, cases = {}, [*unseen("logistic"), *shipped(("banking77", "clinc150"))]
    for done, case in enumerate(cases, 1):
        for shift in SHIFTS:
            for seed in range(trials):
                d = draw(case, 500, shift, seed)
                rows, y = case.proba[d.target], case.y[d.target]
                est = rp.pipeline(case.proba[d.heldout], case.y[d.heldout]).estimate(rows)
                made = np.asarray(est.prediction_sets(rows, level=0.9))
                held = made[np.arange(len(y)), y]
                cells.setdefault(shift, []).append(
                    {"set": case.set, "held": float(held.mean()), "size": float(made.sum(axis=1).mean()),
                     "share": float(made.mean())}
                )  # fmt: skip
        progress(done, len(cases), case.name)
    rows = [[shift, mean_and_error(own, "held", ".1f", 100), mean_and_error(own, "size", ".2f"),
             mean_and_error(own, "share", ".1f", 100)] for shift, own in cells.items()]  # fmt: skip
    head = ["shift", "holds the true class, %", "classes per set", "of all classes, %"]
    figures = {shift: {what: clustered(own, what)[0] for what in ("held", "size", "share")}
               for shift, own in cells.items()}  # fmt: skip
    store("coverage_sets", {"trials": trials, "level": 0.9, "cells": figures}, markdown(head, rows))


def few(trials):
    """Few classes tell little of their misfit, and calibrating on the rows that should tell it hides it."""
    results = {}
    for k, d, separation in ((2, 2, 1.0), (2, 2, 2.5), (5, 2, 2.0), (10, 6, 1.3), (30, 10, 1.2)):
        world = Gaussians(k, d, separation, seed=9)
        for held, n in ((200, 500), (200, 5000), (1000, 5000)):
            tallies = {}
            rng = np.random.default_rng([k, held, n])
            for trial in range(trials):
                rows, y = world.draw(world.source, held, rng)
                prior = simulate.dirichlet(k, 2.0, rng=rng)
                target, _ = world.draw(prior, n, rng)
                estimates = {
                    "counts alone": rp.ebls(world.source, target),
                    "held-out samples": rp.ebls(rp.summarize(rows, y), target),
                    DEFAULT: rp.pipeline(rows, y).estimate(target),
                    f"{DEFAULT}, with training counts": rp.pipeline(rows, y, counts=1000 * world.source * k)
                    .estimate(target),
                }  # fmt: skip
                for label, estimate in estimates.items():
                    tallies.setdefault(label, Tally()).add(prior, n, *estimate.interval(0.95))
                progress(trial + 1, trials, f"K={k} held={held} N={n}")
            where = f"K={k}, separation {separation}, {held} held-out samples, N={n}"
            results[where] = {label: tally.figures() for label, tally in tallies.items()}
    store("coverage_few", {"trials": trials, "coverage": results}, coverage_table(results, ["all"]))


def streams(trials):
    results = {}
    names = {"online-ebls": {}, "online-ebls, drift=False": {"drift": False}, "online-fmapls": {}}
    for k, world in {10: Gaussians(10, 6, 1.3), 100: Gaussians(100, 12, 1.0)}.items():
        for n in (500, 3000):
            for drift in ("stationary", "sudden", "slow"):
                tallies = {label: Tally() for label in names}
                rng = np.random.default_rng(n)
                for trial in range(trials):
                    before, after = (in_turn(k, trial, rng) for _ in range(2))
                    start = 1.0 if drift == "stationary" else 0.0
                    mix = np.clip(np.linspace(start, 1, n), 0, 1) if drift != "sudden" else np.arange(n) >= n // 2
                    parts = [world.draw(p, n, rng)[0] for p in (before, after)]
                    late = rng.random(n) < mix
                    rows = np.where(late[:, None], parts[1], parts[0])
                    for label, options in names.items():
                        stream = rp.Stream(label.split(",")[0], world.source, **options)
                        stream.learn_many(rows)
                        tallies[label].add(after, n, *stream.interval(0.95))
                    progress(trial + 1, trials, f"K={k} n={n} {drift}")
                results[f"K={k}, n={n}, {drift}"] = {label: tally.figures() for label, tally in tallies.items()}
    table = coverage_table(results, [*SIZES, "absent", "all"])
    store("coverage_streams", {"trials": trials, "coverage": results}, table)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {"exact": (exact, 500), "few": (few, 100), "real": (real, 4), "streams": (streams, 40), "sets": (sets, 4)}
    parser.add_argument("part", choices=parts)
    parser.add_argument("--trials", type=int)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # what `correct` says of single targets
    run, trials = parts[options.part]
    run(options.trials or trials)


if __name__ == "__main__":
    main()
