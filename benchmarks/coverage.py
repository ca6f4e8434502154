"""How often 95 % intervals hold the true share of a class, for batches and streams, and what they cost.

python benchmarks/coverage.py exact [--trials 500]      # K = 10 and 100, N = 500 and 3,000, beside the paper's bound
python benchmarks/coverage.py exact-large               # N = 20,000
python benchmarks/coverage.py real [--trials 30]        # shipped outputs, with and without calibration and misfit
python benchmarks/coverage.py few [--trials 100]        # few classes and few held-out rows, as held-out rows have it
python benchmarks/coverage.py streams [--trials 40]     # stationary and drifting
python benchmarks/coverage.py cost                      # of one interval at K = 1000, N = 50,000, in EM passes
"""

import argparse
import time
from dataclasses import replace

from _record import markdown, progress, store  # isort: split

import numpy as np

import reprior as rp
from reprior import bounds, calibrate, datasets, simulate
from reprior.rows.blocks import ArrayBlocks
from reprior.rows.passes import e_step

SIZES = {"< 5 rows": (0, 5), "5 to 50": (5, 50), "> 50": (50, np.inf)}  # expected rows of a class
Z = 1.959964


class Gaussians:
    """K unit Gaussians in d dimensions: the outputs are exact posteriors under a uniform source prior."""

    def __init__(self, k, d, separation, seed=0):
        self.means = separation * np.random.default_rng(seed).normal(size=(k, d))
        self.source = np.full(k, 1.0 / k)

    def draw(self, prior, n, rng):
        y = rng.choice(len(prior), n, p=prior)
        return self.outputs(self.means[y] + rng.normal(size=(n, self.means.shape[1]))), y

    def outputs(self, x):
        logits = x @ self.means.T - 0.5 * (self.means**2).sum(axis=1)
        logits -= logits.max(axis=1, keepdims=True)
        np.exp(logits, out=logits)
        return logits / logits.sum(axis=1, keepdims=True)


def shifted(k, trial, rng):
    """Return a target prior: Dirichlet, long-tailed or with a fifth of the classes absent, in turn."""
    if trial % 3 == 0:
        return simulate.dirichlet(k, 1.0, rng=rng)
    base = simulate.shuffled_long_tail(k, 0.02, rng=rng)
    return base if trial % 3 == 1 else simulate.knock_out(k, 0.2, rng=rng, base=base)


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
            name: {"coverage": self.hits[name] / t, "width in rows": self.width[name] / t, "intervals": t}
            for name, t in self.total.items()
            if t
        }


CELLS = ((10, 500), (10, 3000), (100, 500), (100, 3000))
LARGE = ((10, 20_000), (100, 20_000))


def exact(trials, cells=CELLS, name="coverage_exact"):
    worlds = {10: Gaussians(10, 6, 1.3), 100: Gaussians(100, 12, 1.0)}
    found = {}
    for k, n in cells:
        tallies = {label: Tally() for label in ("mlls", "ebls", "paper's bound, mlls", "paper's bound, ebls")}
        rng = np.random.default_rng(k + n)
        for trial in range(trials):
            prior = shifted(k, trial, rng)
            proba, _ = worlds[k].draw(prior, n, rng)
            for method in ("mlls", "ebls"):
                if method == "ebls" and n > 3000 and trial >= trials // 5:
                    continue
                estimate = rp.METHODS[method](worlds[k].source, proba)
                tallies[method].add(prior, n, *estimate.interval(0.95))
                positive = np.maximum(estimate.prior, 1e-12)
                counts = np.maximum(e_step(ArrayBlocks(proba), positive / worlds[k].source).counts, 1e-12)
                error = Z * np.sqrt(bounds.cramer_rao(positive, counts).diagonal())
                low, high = np.clip(estimate.prior - error, 0, 1), np.clip(estimate.prior + error, 0, 1)
                tallies[f"paper's bound, {method}"].add(prior, n, low, high)
            progress(trial + 1, trials, f"K={k} N={n}")
        found[f"K={k}, N={n}"] = {label: tally.figures() for label, tally in tallies.items()}
        store(name, {"trials": trials, "coverage": found}, coverage_table(found, [*SIZES, "absent", "all"]))


def exact_large(trials):
    exact(trials, LARGE, "coverage_exact_large")


def coverage_table(found, columns):
    def cell(f):
        return f"{100 * f['coverage']:.1f} ({f['width in rows']:.1f})" if f else ""

    rows = [
        [setting, name, *(cell(f.get(c)) for c in columns)]
        for setting, intervals in found.items()
        for name, f in intervals.items()
    ]
    return "Coverage in % of nominal 95 % (mean width in rows).\n\n" + markdown(["", "interval", *columns], rows)


def split(dataset, n, rng):
    """Return fresh held-out rows with the training prior, and the rest as a pool."""
    proba = np.concatenate([dataset.heldout_proba, dataset.pool_proba])
    y = np.concatenate([dataset.heldout_y, dataset.pool_y])
    training = rng.multinomial(n, dataset.counts / dataset.counts.sum()) / n
    held = simulate.resample(proba, y, training, n=n, rng=rng)
    rest = np.ones(len(proba), bool)
    rest[held.rows] = False
    return held, proba[rest], y[rest]


DEFAULT = "default pipeline"


def real(trials):
    found = {}
    pipelines = {  # calibrator, source prior, whether the interval sees the held-out rows
        "raw, training counts, no misfit": (None, "counts", False),
        "raw, training counts, misfit": (None, "counts", True),
        "temperature, no misfit": ("temperature", "mean", False),
        "temperature, misfit": ("temperature", "mean", True),
        "bias-corrected, misfit": ("bias-corrected", "mean", True),
    }
    for name in ("banking77", "clinc150"):
        dataset = datasets.load(name)
        k = len(dataset.counts)
        for n in (500, 2000, 6000):
            tallies = {label: Tally() for label in [DEFAULT, *pipelines]}
            rng = np.random.default_rng(n)
            for trial in range(trials):
                held, pool, y = split(dataset, 975, rng)
                prior = shifted(k, trial, rng)
                target = simulate.resample(pool, y, rng.multinomial(n, prior) / n, n=n, rng=rng).proba
                tallies[DEFAULT].add(prior, n, *rp.pipeline(held.proba, held.y, counts=dataset.counts)
                                     .estimate(target).interval(0.95))  # fmt: skip
                made = {}
                for label, (kind, source_prior, misfit) in pipelines.items():
                    key = (kind, source_prior)
                    if key not in made:
                        scale = calibrate.fit(held.proba, held.y, kind=kind) if kind else (lambda p: p)
                        given = dataset.counts if source_prior == "counts" else source_prior
                        source = rp.summarize(scale(held.proba), held.y, prior=given)
                        made[key] = rp.ebls(source, scale(target))
                    estimate = made[key]
                    if not misfit:
                        estimate = replace(estimate, source=replace(estimate.source, heldout=None))
                    tallies[label].add(prior, n, *estimate.interval(0.95))
                progress(trial + 1, trials, f"{name} N={n}")
            found[f"{name}, N={n}"] = {label: tally.figures() for label, tally in tallies.items()}
            store("coverage_real", {"trials": trials, "heldout": 975, "coverage": found},
                  coverage_table(found, [*SIZES, "absent", "all"]))  # fmt: skip


def few(trials):
    """Few classes tell little of their misfit, and calibrating on the rows that should tell it hides it."""
    found = {}
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
                    "held-out rows": rp.ebls(rp.summarize(rows, y), target),
                    DEFAULT: rp.pipeline(rows, y).estimate(target),
                    f"{DEFAULT}, with training counts": rp.pipeline(rows, y, counts=1000 * world.source * k)
                    .estimate(target),
                }  # fmt: skip
                for label, estimate in estimates.items():
                    tallies.setdefault(label, Tally()).add(prior, n, *estimate.interval(0.95))
                progress(trial + 1, trials, f"K={k} held={held} N={n}")
            where = f"K={k}, separation {separation}, {held} held-out rows, N={n}"
            found[where] = {label: tally.figures() for label, tally in tallies.items()}
    store("coverage_few", {"trials": trials, "coverage": found}, coverage_table(found, ["all"]))


def streams(trials):
    found = {}
    names = {"online-ebls": {}, "online-ebls, drift=False": {"drift": False}, "online-fmapls": {}}
    for k, world in {10: Gaussians(10, 6, 1.3), 100: Gaussians(100, 12, 1.0)}.items():
        for n in (500, 3000):
            for drift in ("stationary", "sudden", "slow"):
                tallies = {label: Tally() for label in names}
                rng = np.random.default_rng(n)
                for trial in range(trials):
                    before, after = (shifted(k, trial, rng) for _ in range(2))
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
                found[f"K={k}, n={n}, {drift}"] = {label: tally.figures() for label, tally in tallies.items()}
    store("coverage_streams", {"trials": trials, "coverage": found}, coverage_table(found, [*SIZES, "absent", "all"]))


def cost(trials):
    world, rng = Gaussians(1000, 24, 1.0), np.random.default_rng(0)
    prior = simulate.dirichlet(1000, 1.0, rng=rng)
    proba, _ = world.draw(prior, 50_000, rng)
    estimate = rp.mlls(world.source, proba)
    passes, intervals = [], []
    for _ in range(min(trials, 10)):  # in turns, so that a busy moment hits both
        for _ in range(5):
            began = time.process_time()
            e_step(estimate.target, estimate.weights + 1e-9)
            passes.append(time.process_time() - began)
        began = time.process_time()
        lower, upper = estimate.interval(0.95)
        intervals.append(time.process_time() - began)
    figures = {
        "pass_seconds": float(np.median(passes)),
        "interval_seconds": float(np.median(intervals)),
        "interval_in_passes": float(np.median(intervals) / np.median(passes)),
        "coverage": float(((prior >= lower) & (prior <= upper)).mean()),
    }
    store("coverage_cost", figures, markdown(list(figures), [[f"{x:.4g}" for x in figures.values()]]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = {
        "exact": (exact, 500),
        "exact-large": (exact_large, 500),
        "real": (real, 30),
        "few": (few, 100),
        "streams": (streams, 40),
        "cost": (cost, 10),
    }
    parser.add_argument("part", choices=parts)
    parser.add_argument("--trials", type=int)
    options = parser.parse_args()
    run, trials = parts[options.part]
    run(options.trials or trials)


if __name__ == "__main__":
    main()
