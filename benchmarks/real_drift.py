"""What correction changes on real time-ordered data, where inputs and classes drift together.

    python benchmarks/real_drift.py [--draws 5] [--sizes 200 1000] [--half reported]
    python benchmarks/real_drift.py --constants [--draws 1]   # what other values of the test's constants cost

Wants `pip install quapy abstention`. Classifiers were trained on a first period and meet later batches in order of
time; nothing is resampled (`benchmarks/data/README.md`). Held-out samples are drawn from the first period. Every method
is compared with the same calibrated probabilities left alone. Streams predict a block of samples before they learn it.
Constants of the default may be chosen on the design half only.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from _record import markdown, progress, store  # isort: split

import numpy as np
from _peers import clipped, emq_bcts
from _worlds import clustered, draw, unseen
from scipy.optimize import minimize

import reprior as rp
from reprior.model.settings import Settings

DATA = Path(__file__).parent / "data" / "time_ordered.npz"
FLOOR = 2e-5  # probabilities are stored with four decimals, so a stored 0 is below 5e-5
HARM = 0.01  # nats of log-loss by which a batch or a stream counts as harmed
BLOCK, DELAY, LABELLED = 20, 300, 0.05  # samples learned at once; samples until a label comes; share of labels
FEW_LABELS, MANY_LABELS = 20, 100  # labels per batch
MIN_PROBABILITY = 1e-6  # a smaller probability counts as this in the log-loss
VALUES = {  # other values of each constant
    "label_shift_odds": (3.0, 30.0), "drift_scale": (0.1, 0.4), "samples_per_direction": (1.0, 4.0),
    "min_move": (0.003, 0.3), "no_shift": (0.3, 0.9),
}  # fmt: skip
RIDGE = 1.0  # standard deviation of class biases fitted to all labels
BATCH = {
    "uncorrected, not calibrated": "the classifier as it is",
    "corrected in full": '`on_reject="ignore"`',
    "default": "`pipe.estimate(batch).correct(batch)`, each batch by itself",
    "watch": "`pipe.watch()`, which remembers earlier batches",
    "true prior": "the prior of the batch's own labels",
    "QuaPy, EMQ-BCTS": "QuaPy 0.2.3 on the same held-out samples",
    "biases from all labels": "class biases fitted to all labels of the batch",
}
STREAM = {
    "stream": "`pipe.stream()`, no labels",
    "stream, late labels": f"{LABELLED:.0%} of the labels, each {DELAY} samples late",
}
LABELS = [f"{m} labels, {how}" for m in (FEW_LABELS, MANY_LABELS) for how in ("default", "watch", "true prior")]


class Classifier(NamedTuple):
    """Predicted probabilities and labels of held-out samples of the training period, and of each later batch."""

    name: str
    counts: np.ndarray
    heldout: np.ndarray
    heldout_y: np.ndarray
    batches: list[tuple[np.ndarray, np.ndarray]]

    @property
    def task(self) -> str:
        return self.name.split("-")[0]


def halves(tasks: list[str]) -> dict[str, str]:
    """Return the half of each task: by name, every second task is for design and the others are reported."""
    return {task: ("design", "reported")[i % 2] for i, task in enumerate(sorted(set(tasks)))}


def load(path: Path = DATA) -> Iterator[Classifier]:
    """Yield the stored classifiers."""
    with np.load(path) as stored:
        for name in map(str, stored["names"]):
            proba = np.maximum(stored[f"{name}|P"].astype(np.float64), FLOOR)
            proba /= proba.sum(axis=1, keepdims=True)
            y, t = stored[f"{name}|y"].astype(np.intp), stored[f"{name}|t"]
            batches = [(proba[t == i], y[t == i]) for i in range(1, int(t.max()) + 1)]
            yield Classifier(name, stored[f"{name}|counts"].astype(float), proba[t == 0], y[t == 0], batches)


class Scores:
    """Losses of one method on one batch or stream, as differences from two baselines."""

    def __init__(self, y: np.ndarray, calibrated: np.ndarray, raw: np.ndarray) -> None:
        self.y = y
        self.calibrated, self.raw = losses(calibrated, y), losses(raw, y)

    def of(self, proba: Any) -> dict[str, float]:
        """Return the change of log-loss and accuracy by corrected probabilities (n, K)."""
        results = losses(np.asarray(proba), self.y)
        return {"loss": results[0] - self.calibrated[0], "from_raw": results[0] - self.raw[0],
                "accuracy": results[1] - self.calibrated[1]}  # fmt: skip


def losses(proba: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return log-loss and accuracy of probabilities (n, K)."""
    own = proba[np.arange(len(y)), y]
    return float(-np.log(np.maximum(own, MIN_PROBABILITY)).mean()), float((proba.argmax(axis=1) == y).mean())


def applied(est: Any, proba: np.ndarray) -> np.ndarray:
    """Return corrected probabilities; warnings that little of the correction is applied are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(est.correct(proba))


def at_prior(calibrated: np.ndarray, source: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return calibrated probabilities put to the prior of the labels."""
    out = calibrated * (np.bincount(y, minlength=len(source)) / len(y) / source)
    return out / out.sum(axis=1, keepdims=True)


def with_biases(calibrated: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return calibrated probabilities with class biases fitted to all of their labels, with a ridge."""
    z = np.log(np.maximum(calibrated, 1e-12))
    counts = np.bincount(y, minlength=z.shape[1])

    def objective(b: np.ndarray) -> tuple[float, np.ndarray]:
        shifted = z + b
        top = shifted.max(axis=1, keepdims=True)
        p = np.exp(shifted - top)
        total = p.sum(axis=1, keepdims=True)
        log_likelihood = counts @ b - (np.log(total) + top).sum()
        return b @ b / (2 * RIDGE**2) - log_likelihood, b / RIDGE**2 - counts + (p / total).sum(axis=0)

    out = calibrated * np.exp(minimize(objective, np.zeros(z.shape[1]), jac=True, method="L-BFGS-B").x)
    return out / out.sum(axis=1, keepdims=True)


def batches(c: Classifier, pipe: Any, quapy: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return the changes on each batch by each method that needs no stream."""
    out, watches = [], [pipe.watch() for _ in range(3)] if hasattr(pipe, "watch") else [None] * 3
    for i, (proba, y) in enumerate(c.batches):
        calibrated = np.asarray(pipe.calibrate(proba))
        est = pipe.estimate(proba)
        results = {
            "uncorrected, not calibrated": proba, "default": applied(est, proba),
            "corrected in full": pipe.estimate(proba, on_reject="ignore").correct(proba),
            "true prior": at_prior(calibrated, pipe.source.prior, y),
            "biases from all labels": with_biases(calibrated, y),
            "QuaPy, EMQ-BCTS": quapy.predict_proba(clipped(proba)),
        }  # fmt: skip
        if watches[0] is not None:
            results["watch"] = applied(watches[0].estimate(proba), proba)
        scores = Scores(y, calibrated, proba)
        out += [{"method": name, "batch": i, **scores.of(x)} for name, x in results.items()]
        out += labelled(pipe, watches[1:], (proba, y, calibrated), i, rng)
    return out


def labelled(pipe: Any, watches: list[Any], rows: tuple[np.ndarray, ...], batch: int,
             rng: np.random.Generator) -> list[dict[str, Any]]:  # fmt: skip
    """Return the changes on the samples without a label, if some random ones of a batch have labels."""
    proba, y, calibrated = rows
    order, out = rng.permutation(len(y)), []
    for m, watch in zip((FEW_LABELS, MANY_LABELS), watches, strict=True):
        labels = np.full(len(y), -1)
        labels[order[:m]] = y[order[:m]]
        rest = labels < 0
        scores = Scores(y[rest], calibrated[rest], proba[rest])
        results = {"default": pipe.estimate(proba, labels=labels)}
        if watch is not None:
            results["watch"] = watch.estimate(proba, labels=labels)
        for how, est in results.items():
            corrected = applied(est, proba)[rest]
            out.append({"method": f"{m} labels, {how}", "batch": batch, **scores.of(corrected)})
        truth = at_prior(calibrated[rest], pipe.source.prior, y[rest])
        out.append({"method": f"{m} labels, true prior", "batch": batch, **scores.of(truth)})
    return out


def streamed(pipe: Any, proba: np.ndarray, y: np.ndarray, labels: np.ndarray, **options: Any) -> np.ndarray:
    """Return all samples as a stream corrects them before it learns them; `labels` are positions, in order."""
    stream, out, next_label = pipe.stream(**options), [], 0
    for first in range(0, len(y), BLOCK):
        block = proba[first : first + BLOCK]
        out.append(np.asarray(stream.correct_many(block)))
        stream.learn_many(block)
        while next_label < len(labels) and labels[next_label] + DELAY < first + BLOCK:
            at = labels[next_label]
            stream.observe(proba[at], int(y[at]))
            next_label += 1
    return np.concatenate(out)


def streams(c: Classifier, pipe: Any, rng: np.random.Generator) -> list[dict[str, Any]]:
    """Return the changes over all later samples as one stream."""
    proba, y = (np.concatenate([batch[i] for batch in c.batches]) for i in (0, 1))
    scores = Scores(y, np.asarray(pipe.calibrate(proba)), proba)
    late = np.flatnonzero(rng.random(len(y)) < LABELLED)
    chosen = {"stream": late[:0], "stream, late labels": late}
    return [{"method": name, "batch": 0, **scores.of(streamed(pipe, proba, y, labels))}
            for name, labels in chosen.items()]  # fmt: skip


def study(c: Classifier, size: int, draw: int) -> list[dict[str, Any]]:
    """Return the records of one classifier with one draw of held-out samples."""
    rng = np.random.default_rng([draw, size, *map(ord, c.name)])
    held = rng.permutation(len(c.heldout_y))[:size]
    pipe = rp.pipeline(c.heldout[held], c.heldout_y[held])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # QuaPy's EM, if it does not converge
        quapy = emq_bcts(c.heldout[held], c.heldout_y[held])
        results = batches(c, pipe, quapy, rng) + streams(c, pipe, rng)
    return [{"classifier": c.name, "task": c.task, "size": size, "draw": draw, **r} for r in results]


def constants(classifiers: list[Classifier], sizes: list[int], draws: int) -> None:
    """Store what other values of the constants cost: harm on real batches with memory, and gain on resampled shift."""
    rows, figures = [], {}
    for name, value in [("as chosen", None), *((key, x) for key, values in VALUES.items() for x in values)]:
        settings = Settings() if value is None else replace(Settings(), **{name: value})
        real, gains = defaultdict(list), defaultdict(list)
        for size in sizes:
            for c in classifiers:
                for draw_number in range(draws):
                    held = np.random.default_rng([draw_number, size, *map(ord, c.name)]).permutation(len(c.heldout_y))
                    held = held[:size]
                    watch = rp.pipeline(c.heldout[held], c.heldout_y[held], settings=settings).watch()
                    for proba, y in c.batches:
                        calibrated = np.asarray(watch.pipeline.calibrate(proba))
                        change = Scores(y, calibrated, proba).of(applied(watch.estimate(proba), proba))
                        real[size].append({"set": c.task, **change, "harmed": float(change["loss"] > HARM)})
            for case in unseen():
                d = draw(case, size, "strong", 0)
                if len(np.unique(case.y[d.heldout])) > 1:
                    pipe = rp.pipeline(case.proba[d.heldout], case.y[d.heldout], settings=settings)
                    raw, y = case.proba[d.target], case.y[d.target]
                    change = Scores(y, np.asarray(pipe.calibrate(raw)), raw).of(applied(pipe.estimate(raw), raw))
                    gains[size].append({"set": case.set, **change})
        cells = {}
        for size in sizes:
            kinds = ("real", real[size], "loss"), ("harmed", real[size], "harmed"), ("strong", gains[size], "loss")
            cells |= {f"{what} ({size})": clustered(own, key)[0] for what, own, key in kinds}
        label = name if value is None else f"{name} = {value}"
        figures[label] = {key: round(x, 5) for key, x in cells.items()}
        rows.append([label, *(f"{x:.1%}" if key.startswith("harmed") else f"{x:+.4f}" for key, x in cells.items())])
        progress(len(rows), 1 + sum(map(len, VALUES.values())), label)
    about = (
        "# Real drift: what other values of the constants cost\n\nOne constant is changed at a time. Real: change of "
        "log-loss by `pipe.watch()` on the reported half; harmed: batches worse by more than 0.01; strong: change of "
        "log-loss under strong resampled shift on sets that nothing was designed on. Held-out samples in brackets.\n\n"
    )
    store("real_drift_constants", {"constants": figures}, about + markdown(["constant", *cells], rows))


def summary(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return means over tasks, each the mean of its own records, with standard errors between tasks."""
    by_task = defaultdict(list)
    for r in records:
        by_task[r["task"]].append(r)
    out: dict[str, Any] = {"records": len(records), "tasks": len(by_task)}
    for what in ("loss", "from_raw", "accuracy"):
        means = np.array([np.mean([r[what] for r in own]) for own in by_task.values()])
        out[what] = round(float(means.mean()), 5)
        out[f"{what}_error"] = round(float(means.std(ddof=1) / np.sqrt(len(means))), 5) if len(means) > 1 else None
    out["harmed"] = round(float(np.mean([np.mean([r["loss"] > HARM for r in own]) for own in by_task.values()])), 4)
    out["worst"] = round(max(r["loss"] for r in records), 4)
    first = [np.mean([r["loss"] for r in own if r["batch"] == 0]) for own in by_task.values()]
    out["first_batch"] = round(float(np.mean(first)), 5)
    return out


def rows_of(cells: dict[tuple[str, int, str], dict[str, Any]], half: str, methods: list[str],
            sizes: list[int]) -> list[list[str]]:  # fmt: skip
    """Return the rows of one table; a method that was not run has none."""
    rows = []
    for method in methods:
        own = [cells[half, size, method] for size in sizes if (half, size, method) in cells]
        cells_of = [
            f"{x['loss']:+.4f} ± {x['loss_error'] or 0:.4f} | {x['from_raw']:+.4f} | {x['harmed']:.1%} | "
            f"{x['worst']:+.3f} | {100 * x['accuracy']:+.2f} | {x['first_batch']:+.4f}" for x in own
        ]  # fmt: skip
        if own:
            rows.append([method, *cells_of])
    return rows


def report(cells: dict[tuple[str, int, str], dict[str, Any]], sizes: list[int], about: str) -> str:
    """Return the page: one table for batches, streams and labels, for each half."""
    what = ("log-loss", "from raw", "harmed", "worst", "accuracy, points", "first batch")
    head = ["", *(f"{name} ({size})" for size in sizes for name in what)]
    parts = [about]
    for half in ("reported", "design"):
        for title, methods in (("batches", list(BATCH)), ("streams", list(STREAM)), ("labels", LABELS)):
            rows = rows_of(cells, half, methods, sizes)
            if rows:
                parts.append(f"## {half.capitalize()} half: {title}\n\n{markdown(head, rows)}")
    legend = "\n".join(f"- {name}: {text}" for name, text in (BATCH | STREAM).items())
    return "\n\n".join([*parts, f"## Methods\n\n{legend}"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=5, help="draws of held-out samples")
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 1000], help="held-out samples")
    parser.add_argument("--half", choices=["design", "reported"], help="run one half only")
    parser.add_argument("--tasks", nargs="+", help="run these tasks only")
    parser.add_argument("--constants", action="store_true", help="store what other values of the constants cost")
    options = parser.parse_args()
    classifiers = list(load())
    half_of = halves([c.task for c in classifiers])
    classifiers = [c for c in classifiers if options.half in (None, half_of[c.task])
                   and (options.tasks is None or c.task in options.tasks)]  # fmt: skip
    if options.constants:
        constants([c for c in classifiers if half_of[c.task] == "reported"], options.sizes, options.draws)
        return
    records = []
    for done, c in enumerate(classifiers, 1):
        records += [r for size in options.sizes for number in range(options.draws) for r in study(c, size, number)]
        progress(done, len(classifiers), c.name)
    grouped = defaultdict(list)
    for r in records:
        grouped[half_of[r["task"]], r["size"], r["method"]].append(r)
    cells = {key: summary(own) for key, own in grouped.items()}
    about = (
        "# Real drift: what correction changes\n\n"
        f"{len(classifiers)} classifiers, {options.draws} draws of held-out samples each; sizes in brackets. Change of "
        "log-loss (nats) and accuracy from the same calibrated probabilities left alone, and from the raw ones. Mean "
        f"over tasks ± standard error between tasks. Harmed: batches (or streams) worse by more than {HARM}. Worst: "
        "the worst single batch or stream. First batch: mean change of log-loss on the first batch of each deployment "
        "(for a stream: on all of it). Methods with labels are judged on samples without one."
    )
    figures = {"halves": half_of, "cells": [{"half": h, "size": s, "method": m, **x} for (h, s, m), x in cells.items()]}
    store("real_drift", figures, report(cells, options.sizes, about))


if __name__ == "__main__":
    main()
