"""How close each batch method comes to the true prior, on the outputs of real classifiers that ship with the package.

    python benchmarks/quality.py [--seeds 20] [--data banking77 clinc150] [--source counts|mean]

Targets are drawn from the pool, which the classifiers never saw. At N=3000 as in the paper: class sizes are N·π, and
the truth is the prior that the rows have. At N=50 and 200 the rows are a random sample of a Dirichlet(1) prior, and
the truth is that prior, which few rows can only hint at.
"""

import argparse
import time
from collections.abc import Callable

from _record import markdown, progress, store  # isort: split

import numpy as np

import reprior as rp
from reprior import datasets, simulate

FLOOR = 1e-8  # of a share in KL: maximum likelihood and the moment methods put rare classes at exactly zero

Cells = dict[str, dict[str, dict[str, list[float]]]]  # setting, method, what: a value a seed
Prior = Callable[[np.ndarray, np.random.Generator], np.ndarray]
SETTINGS: dict[str, tuple[int, Prior]] = {
    "shuffled .02": (3000, lambda source, rng: simulate.shuffled_long_tail(source.size, 0.02, rng=rng)),
    "shuffled .1": (3000, lambda source, rng: simulate.shuffled_long_tail(source.size, 0.1, rng=rng)),
    "Dirichlet 1": (3000, lambda source, rng: simulate.dirichlet(source.size, 1.0, rng=rng)),
    "Dirichlet 3": (3000, lambda source, rng: simulate.dirichlet(source.size, 3.0, rng=rng)),
    "no shift": (3000, lambda source, rng: source),
    "one class 50 %": (3000, lambda source, rng: simulate.tweak_one(source.size, 0.5, rng=rng)),
    "30 % absent": (3000, lambda source, rng: simulate.knock_out(source.size, 0.3, rng=rng)),
    "N=50": (50, lambda source, rng: simulate.dirichlet(source.size, 1.0, rng=rng)),
    "N=200": (200, lambda source, rng: simulate.dirichlet(source.size, 1.0, rng=rng)),
}
ORDINARY = ("shuffled .02", "shuffled .1", "Dirichlet 1", "Dirichlet 3")

METHODS: dict[str, Callable[[rp.Source, np.ndarray], np.ndarray]] = {
    "source prior": lambda source, proba: source.prior,
    "bbse": lambda source, proba: rp.bbse(source, proba).prior,
    "bbse hard": lambda source, proba: rp.bbse(source, proba, hard=True).prior,
    "rlls": lambda source, proba: rp.rlls(source, proba).prior,
    "rlls hard": lambda source, proba: rp.rlls(source, proba, hard=True).prior,
    "mlls": lambda source, proba: rp.mlls(source, proba).prior,
    "mapls": lambda source, proba: rp.mapls(source, proba).prior,
    "fmapls paper, c=N": lambda source, proba: rp.fmapls(source, proba, variant="paper", c=len(proba)).prior,
    "fmapls paper, c=2N": lambda source, proba: rp.fmapls(source, proba, variant="paper", c=2 * len(proba)).prior,
    "fmapls paper, GA": lambda source, proba: rp.fmapls(source, proba, variant="paper", update="ga").prior,
    "fmapls": lambda source, proba: rp.fmapls(source, proba).prior,
    "ebls": lambda source, proba: rp.ebls(source, proba).prior,
}
TRUTH = "true prior"
ESTIMATORS = [name for name in METHODS if name != "source prior"]


def draw(dataset: datasets.Dataset, setting: str, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the outputs, labels and true prior of one simulated target."""
    rng = np.random.default_rng([seed, list(SETTINGS).index(setting)])
    n, make = SETTINGS[setting]
    prior = make(dataset.counts / dataset.counts.sum(), rng)
    sample = simulate.resample(dataset.pool_proba, dataset.pool_y, prior, n=n, rng=rng, exact=n >= 1000)
    return sample.proba, sample.y, sample.prior


def run(dataset: datasets.Dataset, source_prior: str, n_seeds: int) -> Cells:
    """Return KL and accuracy of every method in every setting, a value a seed."""
    prior = dataset.counts if source_prior == "counts" else "mean"
    source = rp.summarize(dataset.heldout_proba, dataset.heldout_y, prior=prior)
    names = (*METHODS, TRUTH)
    cells: Cells = {s: {m: {"kl": [], "accuracy": [], "seconds": []} for m in names} for s in SETTINGS}
    for done, (setting, seed) in enumerate(((s, i) for s in SETTINGS for i in range(n_seeds)), 1):
        proba, y, truth = draw(dataset, setting, seed)
        for name in names:
            start = time.perf_counter()
            estimate = METHODS[name](source, proba) if name in METHODS else truth
            cell = cells[setting][name]
            cell["seconds"].append(time.perf_counter() - start)
            cell["kl"].append(rp.metrics.kl(truth, estimate, floor=FLOOR))
            cell["accuracy"].append(rp.metrics.accuracy(proba, y, weights=estimate / source.prior))
        progress(done, len(SETTINGS) * n_seeds, f"{dataset.name}: {setting}")
    return cells


def mean(values: list[float]) -> float:
    return float(np.mean(values))


def table(cells: Cells, what: str) -> str:
    """Return mean ± standard error of `what`, methods down, settings across, the best of each column in bold."""
    scale, digits, pick, last = (1, 3, min, ()) if what == "kl" else (100, 1, max, (TRUTH,))
    rows = []
    for method in (*METHODS, *last):
        row = [method]
        for setting in SETTINGS:
            values = scale * np.array(cells[setting][method][what])
            best = pick(mean(cells[setting][m][what]) for m in ESTIMATORS) == mean(cells[setting][method][what])
            text = f"{values.mean():.{digits}f}"
            error = values.std(ddof=1) / np.sqrt(values.size)
            row.append((f"**{text}**" if best else text) + f" ± {error:.{digits}f}")
        rows.append(row)
    return markdown(["KL" if what == "kl" else "accuracy, %", *SETTINGS], rows)


def verdict(cells: Cells) -> dict[str, float | dict[str, float]]:
    """Return the figures asked of fmapls and ebls as ratios of mean KL."""
    kl = {s: {m: mean(cells[s][m]["kl"]) for m in METHODS} for s in SETTINGS}
    ordinary = {m: mean([kl[s][m] for s in ORDINARY]) for m in METHODS}
    others = [m for m in ESTIMATORS if m != "ebls"]
    return {
        "fmapls / mapls, ordinary shifts": ordinary["fmapls"] / ordinary["mapls"],
        "ebls / best other, ordinary shifts": ordinary["ebls"] / min(ordinary[m] for m in others),
        "ebls / best other": {s: kl[s]["ebls"] / min(kl[s][m] for m in others) for s in SETTINGS},
        "ebls / mapls": {s: kl[s]["ebls"] / kl[s]["mapls"] for s in SETTINGS},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--data", nargs="+", default=["banking77", "clinc150"])
    parser.add_argument("--source", choices=("counts", "mean"), default="counts", help="source prior: training counts, "
                        "as in the paper, or the mean held-out output")  # fmt: skip
    parser.add_argument("--name", default=None, help="of the result files")
    options = parser.parse_args()
    results, parts = {}, []
    for name in options.data:
        cells = run(datasets.load(name), options.source, options.seeds)
        figures = verdict(cells)
        results[name] = {"ratios": figures, "means": {
            s: {m: {what: round(mean(values), 6) for what, values in cell.items()} for m, cell in row.items()}
            for s, row in cells.items()
        }}  # fmt: skip
        parts.append(f"## {name}\n\n{table(cells, 'kl')}\n\n{table(cells, 'accuracy')}\n\n" + ratios(figures))
    note = {"counts": "training class counts", "mean": "mean held-out output"}[options.source]
    head = (
        f"# Batch methods on shipped outputs, mean ± standard error over {options.seeds} seeds\n\n"
        f"Source prior: {note}. KL(true ‖ estimate) in nats, shares below {FLOOR:g} counted as {FLOOR:g}; "
        "best method in bold. N=3000 unless stated."
    )
    name = options.name or ("quality" if options.source == "counts" else "quality_mean")
    store(name, {"floor": FLOOR, "source_prior": note, "data": results}, "\n\n".join([head, *parts]))


def ratios(figures: dict[str, float | dict[str, float]]) -> str:
    lines = []
    for name, value in figures.items():
        shown = ", ".join(f"{s} {v:.2f}" for s, v in value.items()) if isinstance(value, dict) else f"{value:.2f}"
        lines.append(f"- {name}: {shown}")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
