"""What a few labels from the target are worth: random rows, rows chosen by `query`, and the accuracy to expect.

    python benchmarks/labels.py [--trials 20] [--n 3000] [--minutes 60] [--more]

Shipped outputs: four ResNet-32s trained on long-tailed CIFAR-100 and two heads trained on long-tailed Tiny-ImageNet
(experiments/hu2025), two text classifiers. A trial is a target of N rows (in turn: shuffled tails 1:50 and 1:10,
Dirichlet 1 and 3), of which m get their label. Held-out rows are drawn anew for each trial, since intervals promise
something over held-out and target rows together. Constants of the model were chosen on draws with other seeds. Results
are stored after each round of trials, the last of which begins before the minutes are over; `--more` goes on after the
stored ones, if no estimate has changed since. The tables of docs/how-good.md are made from what is stored
(`--trials 0`: only that).
"""

import argparse
import json
import sys
import time
from collections.abc import Iterator

from _record import RESULTS, markdown, progress, store  # isort: split

import numpy as np
from _outputs import ROOT, Outputs, redrawn, shipped

import reprior as rp
from reprior import simulate
from reprior.assess.accuracy import expected_accuracy

SIZES = (50, 100, 300, 1000)
FLOOR = 1e-8  # of a share in KL
SEED = 20261116
BEGIN, END = "<!-- made by benchmarks/labels.py -->", "<!-- to here -->"
BETTER = "better of labels alone and outputs alone"


def networks() -> Iterator[Outputs]:
    """Yield the outputs of the networks."""
    sys.path.insert(0, str(ROOT / "experiments" / "hu2025"))
    import models

    for name, model, ratios in (
        ("CIFAR-100", "cifar100-lt", ("0.02", "0.05", "0.1", "0.2")),
        ("Tiny-ImageNet", "tiny-imagenet-lt", ("0.02", "0.1")),
    ):
        for ratio in ratios:
            o = models.load(f"{model}-{ratio}")
            held, test = (o.held_out, o.y_held_out), (o.test, o.y_test)
            yield Outputs(f"{name}, ratio {ratio}", o.counts.astype(float), *held, *test)


def draw(o: Outputs, trial: int, n: int) -> tuple[simulate.Sample, np.random.Generator]:
    """Return the target of a trial."""
    k, rng = len(o.counts), np.random.default_rng([SEED, trial])
    prior = (
        lambda: simulate.shuffled_long_tail(k, 0.02, rng=rng), lambda: simulate.dirichlet(k, 1.0, rng=rng),
        lambda: simulate.shuffled_long_tail(k, 0.1, rng=rng), lambda: simulate.dirichlet(k, 3.0, rng=rng),
    )[trial % 4]()  # fmt: skip
    return simulate.resample(o.pool, o.pool_y, prior, n=n, rng=rng, exact=False), rng


def shares_of(target: simulate.Sample) -> np.ndarray:
    """Return the mix (K,) of the rows of a target."""
    return np.bincount(target.y, minlength=target.proba.shape[1]) / len(target.y)


def judged(est: rp.PriorEstimate, target: simulate.Sample) -> dict[str, float]:
    """Return how good an estimate is: KL, accuracy after correction, share of intervals that hold the truth; and by how
    much the accuracy to expect is off, and whether its interval holds the real one.

    The truth is the mix of these rows. Without labels intervals speak of the mix that these come from."""
    lower, upper = est.interval(0.95)
    mix = shares_of(target)
    meant = mix if est.n_labels else target.prior
    right = float((est.correct(target.proba).argmax(axis=1) == target.y).mean())
    raw = est.target.raw if est.n_labels else est.target
    told = expected_accuracy(est, raw, est.source)
    return {
        "kl": rp.metrics.kl(mix, est.prior, floor=FLOOR), "accuracy": right,
        "covered": float(((lower - 1e-12 <= meant) & (meant <= upper + 1e-12)).mean()),
        "predicted": told.after - right, "inside": float(told.lower <= right <= told.upper),
    }  # fmt: skip


def trial_of(pipe: rp.Pipeline, target: simulate.Sample, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Return what comes of no labels, of labels alone, of random and of chosen rows."""
    n, k = target.proba.shape
    none = pipe.estimate(target.proba, check=False)
    best = pipe.correct(target.proba, shares_of(target)).argmax(axis=1) == target.y
    found = {"none": judged(none, target), "true mix": {"accuracy": float(best.mean())}}
    order = rng.permutation(n)
    for m in SIZES:
        counts = np.bincount(target.y[order[:m]], minlength=k)
        alone = (counts + 0.5) / (m + 0.5 * k)
        found[f"alone {m}"] = {"kl": rp.metrics.kl(shares_of(target), alone, floor=FLOOR)}
        for kind in ("random", "chosen"):
            rows, w = (order[:m], np.ones(m)) if kind == "random" else rp.query(none, m, rng=rng)
            labels, weights = np.full(n, -1), np.ones(n)
            labels[rows], weights[rows] = target.y[rows], w
            est = pipe.estimate(target.proba, labels=labels, label_weights=weights, check=False)
            found[f"{kind} {m}"] = judged(est, target)
    return found


def mean(results: list[dict[str, dict[str, float]]], what: str, figure: str) -> float:
    return float(np.mean([r[what][figure] for r in results]))


def told(results: dict[str, list[dict[str, dict[str, float]]]], options: argparse.Namespace) -> tuple[dict, str]:
    """Return the summary and the tables."""
    rows, gains, worst = [], [], []
    for name, r in results.items():
        none = mean(r, "none", "kl")
        for m in (0, *SIZES):
            if m == 0:
                rows.append([name, "0", "", f"{none:.4f}", "", f"{100 * mean(r, 'none', 'accuracy'):.1f}", "",
                             f"{100 * mean(r, 'none', 'covered'):.1f}", "",
                             f"{100 * mean(r, 'none', 'predicted'):+.2f}",
                             f"{100 * mean(r, 'none', 'inside'):.0f}"])  # fmt: skip
                continue
            alone, random, chosen = (mean(r, f"{kind} {m}", "kl") for kind in ("alone", "random", "chosen"))
            gains.append(chosen / random - 1)
            worst.append(random / min(alone, none) - 1)
            rows.append(["", str(m), f"{alone:.4f}", f"{random:.4f} ({100 * (random / none - 1):+.0f} %)",
                         f"{chosen:.4f} ({100 * (chosen / random - 1):+.0f} %)",
                         *(f"{100 * mean(r, f'{kind} {m}', 'accuracy'):.1f}" for kind in ("random", "chosen")),
                         *(f"{100 * mean(r, f'{kind} {m}', 'covered'):.1f}" for kind in ("random", "chosen")),
                         f"{100 * mean(r, f'random {m}', 'predicted'):+.2f}",
                         f"{100 * mean(r, f'random {m}', 'inside'):.0f}"])  # fmt: skip
    trials = len(next(iter(results.values())))
    summary = {"trials": trials, "chosen_against_random": float(np.mean(gains)), "chosen_worst": max(gains),
               "random_against_better": max(worst)}  # fmt: skip
    head = ["", "m", "labels alone", "random rows (against none)", "chosen rows (against random)", "accuracy: random",
            "chosen", "covered, %: random", "chosen", "expected accuracy off by",
            "interval holds it, %"]  # fmt: skip
    text = (
        f"# A few labels from the target\n\nMean KL(true ‖ estimate) over {trials} targets of {options.n} rows, "
        "default pipeline; the row m = 0 is without labels. "
        f"Chosen rows: KL {100 * summary['chosen_against_random']:+.0f} % against random ones in the mean of cells, "
        f"{100 * summary['chosen_worst']:+.0f} % at worst. Random rows "
        f"against the {BETTER}: {100 * summary['random_against_better']:+.0f} % at worst.\n\n" + markdown(head, rows)
    )
    return summary, text


def page() -> None:
    """Write the stored figures into docs/how-good.md."""
    stored = json.loads((RESULTS / "labels.json").read_text(encoding="utf-8"))
    rows = []
    for name, r in stored["results"].items():
        kl = {f"{kind} {m}": mean(r, f"{kind} {m}", "kl") for kind in ("alone", "random", "chosen") for m in SIZES}
        cells = [" / ".join(f"{kl[f'{kind} {m}']:.3f}" for kind in ("alone", "random", "chosen")) for m in SIZES]
        rows.append([name, f"{mean(r, 'none', 'kl'):.3f}", *cells])
    head = ["labels alone / random / chosen rows", "no labels", *(f"{m} labels" for m in SIZES)]
    more = []
    for name, r in stored["results"].items():
        sizes = ["none", *(f"random {m}" for m in SIZES)]
        more.append([name, " → ".join(f"{100 * mean(r, what, 'accuracy'):.1f}" for what in sizes),
                     f"{100 * mean(r, 'true mix', 'accuracy'):.1f}",
                     *(" ".join(f"{100 * mean(r, what, figure):{form}}" for what in sizes) for figure, form in
                       (("covered", ".0f"), ("predicted", "+.1f"), ("inside", ".0f")))])  # fmt: skip
    about = (
        f"Mean KL(true ‖ estimate) of the default pipeline, {stored['trials']} targets of {stored['n']:,} rows for "
        "each source ([all figures](../benchmarks/results/labels.md)):"
    )
    second = (
        "Without labels and with 50, 100, 300 and 1,000 random ones: accuracy of corrected predictions in %, beside "
        "what the true mix would give; how many of the 95 % intervals hold the true share; by how many points the "
        "accuracy to expect is off in the mean; and how many of its intervals hold the real accuracy:"
    )
    table = markdown(["", "accuracy", "true mix", "covered, %", "expected accuracy off by", "covered, %"], more)
    path = ROOT / "docs" / "how-good.md"
    before, rest = path.read_text(encoding="utf-8").split(BEGIN)
    made = "\n\n".join([about, markdown(head, rows), second, table])
    path.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--n", type=int, default=3000)
    parser.add_argument("--minutes", type=float, default=np.inf)
    parser.add_argument("--more", action="store_true")
    options = parser.parse_args()
    began = time.monotonic()
    sets = [*networks(), *shipped()]
    results: dict[str, list[dict[str, dict[str, float]]]] = {o.name: [] for o in sets}
    if options.more:
        stored = json.loads((RESULTS / "labels.json").read_text(encoding="utf-8"))
        if stored["n"] != options.n:
            parser.error(f"the stored targets have {stored['n']} rows")
        results = stored["results"]
    for trial in range(min(map(len, results.values())), options.trials):
        if time.monotonic() - began > 60 * options.minutes:
            break
        for o in sets:
            drawn = redrawn(o, SEED + trial)
            pipe = rp.pipeline(drawn.heldout, drawn.heldout_y, counts=drawn.counts)
            results[o.name].append(trial_of(pipe, *draw(drawn, trial, options.n)))
        summary, text = told(results, options)
        store("labels", {"n": options.n, **summary, "results": results}, text)
        progress(trial + 1, options.trials, "trials")
    page()


if __name__ == "__main__":
    main()
