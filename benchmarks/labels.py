"""What a few labels from the target are worth: random samples, samples chosen by `query`, late labels in a stream.

    python benchmarks/labels.py [--trials 8]

Classifiers of five to 150 classes, 500 held-out samples, targets of 2,000 samples under strong shift. KL is of the
class proportions of these samples; accuracy and log-loss are of the samples without a label. "Labels alone" are the
counts of the labels. In a stream each label comes 300 samples after its sample.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from typing import Any

from _record import progress, store_cells  # isort: split

import numpy as np
from _worlds import Case, clustered, draw, kl, losses, mean_and_error, shipped, unseen

import reprior as rp

SIZES, HELDOUT, N, DELAY, STEP = (20, 100, 300), 500, 2000, 300, 10


def judged(case: Case, pipe: Any, target: np.ndarray, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Return what no labels, labels alone, random and chosen labels reach on one target."""
    raw, y, k = case.proba[target], case.y[target], case.n_classes
    true = np.bincount(y, minlength=k) / len(y)
    calibrated, order = np.asarray(pipe.calibrate(raw)), rng.permutation(len(y))
    none, out = pipe.estimate(raw), {}

    def add(name: str, est: Any, rest: np.ndarray) -> None:
        fixed, base = losses(np.asarray(est.correct(raw))[rest], y[rest]), losses(calibrated[rest], y[rest])
        lower, upper = est.interval(0.95, of="shares")
        inside = (lower - 1e-9 <= true) & (true <= upper + 1e-9)
        out[name] = {"kl": kl(true, est.shares), "loss": fixed[0] - base[0], "accuracy": fixed[1] - base[1],
                     "covered": float(inside.mean())}  # fmt: skip

    add("none", none, order)
    for m in (m for m in SIZES if 2 * m <= len(y)):
        counts = np.bincount(y[order[:m]], minlength=k)
        out[f"{m}, labels alone"] = {"kl": kl(true, (counts + 0.5) / (m + 0.5 * k))}
        for kind in ("random", "chosen"):
            rows, w = (order[:m], np.ones(m)) if kind == "random" else rp.query(none, m, rng=rng)
            labels, weights = np.full(len(y), -1), np.ones(len(y))
            labels[rows], weights[rows] = y[rows], w
            rest = np.flatnonzero(labels < 0)
            add(f"{m}, {kind}", pipe.estimate(raw, labels=labels, label_weights=weights), rest)
    return out


def streamed(case: Case, pipe: Any, target: np.ndarray, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Return what a stream reaches that predicts first, without labels and with late labels of 5 % of its samples."""
    raw, y, out = case.proba[target], case.y[target], {}
    alone, asked = losses(np.asarray(pipe.calibrate(raw)), y), rng.random(len(y)) < 0.05
    for name, share in (("stream, none", asked & False), ("stream, late labels", asked)):
        stream, parts = pipe.stream(), []
        for first in range(0, len(y), STEP):
            parts.append(np.asarray(stream.correct_many(raw[first : first + STEP])))
            stream.learn_many(raw[first : first + STEP])
            late = np.arange(max(first - DELAY, 0), max(first - DELAY + STEP, 0))
            for i in late[share[late]]:
                stream.observe(raw[i], int(y[i]))
        fixed = losses(np.concatenate(parts), y)
        true = np.bincount(y, minlength=case.n_classes) / len(y)
        out[name] = {"kl": kl(true, stream.prior), "loss": fixed[0] - alone[0], "accuracy": fixed[1] - alone[1]}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=8)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # what `correct` says of single targets
    cases = [c for c in (*unseen("logistic"), *shipped(("banking77", "clinc150"))) if c.n_classes >= 5]
    results = defaultdict(list)
    for done, case in enumerate(cases, 1):
        for trial in range(options.trials):
            d, rng = draw(case, HELDOUT, "strong", trial, rows=N), np.random.default_rng([trial, done])
            pipe = rp.pipeline(case.proba[d.heldout], case.y[d.heldout])
            for name, x in (judged(case, pipe, d.target, rng) | streamed(case, pipe, d.target, rng)).items():
                results[name].append({"set": case.set, **x})
        progress(done, len(cases), case.name)
    rows, head = [], ["labels", "KL of the shares", "log-loss", "accuracy, points", "covered"]
    for name, own in results.items():
        more = ["", "", ""]
        if "loss" in own[0]:
            covered = f"{clustered(own, 'covered')[0]:.1%}" if "covered" in own[0] else ""
            more = [mean_and_error(own, "loss", "+.4f"), mean_and_error(own, "accuracy", "+.2f", 100), covered]
        rows.append([name, mean_and_error(own, "kl", ".4f"), *more])
    about = (
        f"# A few labels from the target\n\n{len(cases)} classifiers ({', '.join(c.set for c in cases)}), targets per "
        f"classifier: {options.trials}, held-out samples: {HELDOUT}. Changes of log-loss and accuracy are from the "
        "calibrated probabilities left alone. Means over sets ± standard errors. Covered: 95 % intervals of the shares."
    )
    store_cells("labels", about, head, rows)


if __name__ == "__main__":
    main()
