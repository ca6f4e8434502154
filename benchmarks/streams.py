"""Streams that predict before they learn: drifts beside the published methods and their authors' code, and harm.

    python benchmarks/streams.py drifts [--seeds 5] [--ols FOLDER] [--cifar FOLDER]
    python benchmarks/streams.py harm [--seeds 2]
    python benchmarks/streams.py alarms [--seeds 200]
    python benchmarks/streams.py constants [--seeds 1]

`drifts`: classifiers of 10 to 150 classes that nothing was chosen on (`clinc150` was looked at), paths of 500 steps of
10 samples. Everyone gets the same probabilities after our calibration on 500 held-out samples. `--ols` is a clone of
acmi-lab/OnlineLabelShift, whose code needs torch, cvxpy, tqdm and Pillow, and runs once: what it reaches is kept in
`.trials/`. `--cifar` is a clone of wrh14/online_adaptation_to_label_distribution_shift: CIFAR-10 without held-out
samples, the four drifts of OnlineLabelShift. `harm`: no shift, a mild, a strong one. `alarms`: false alarms and delays.
`constants`: what other values of the stream's constants cost, on data that they were not chosen on.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _record import TRIALS, markdown, progress, store, store_cells  # isort: split

import numpy as np
import real_drift
from _worlds import HARM, SHIFTS, Case, clustered, draw, kl, losses, mean_and_error, shipped, softmax, unseen

import reprior as rp
from reprior import simulate
from reprior.online.ebls import OnlineEbls
from reprior.online.fmapls import OnlineFmapls
from reprior.online.published import PEERS

SETS = ("pendigits", "emoji", "commands")
STEPS, STEP, HELDOUT = 500, 10, 500
DRIFT_KINDS = ("lin", "squ", "sin", "ber", "swap")
CIFAR_STEPS = 1000
VALUES: dict[str, tuple[Any, ...]] = {  # other values of the constants
    "sizes": ((0.1, 3.0), (1.0, 3.0)), "memories": ((0.25, 2.0, 20.0), (1.0, 2.0, 20.0), (0.5, 4.0, 20.0)),
    "sharing": (1e-4, 3e-3), "caution": (1.0, 4.0), "window": (50, 200), "label_memories": ((50.0, 200.0),),
    "label_sharing": (0.05, 0.5),
}  # fmt: skip


class Steps(NamedTuple):
    """A stream: the prior at each step (T, K), the samples (T·STEP, K) and their labels."""

    priors: np.ndarray
    proba: np.ndarray
    y: np.ndarray


def streams(case: Case, kind: str, seed: int) -> tuple[Any, Steps]:
    """Return the pipeline of a case and a stream along a drift between two priors."""
    k, rng = case.n_classes, np.random.default_rng([seed, DRIFT_KINDS.index(kind), *map(ord, case.name)])
    order = rng.permutation(case.n_heldout or len(case.y))
    first = [np.flatnonzero(case.y[order] == j)[:1] for j in range(k)]  # the authors' code needs a sample of each class
    late = np.concatenate([at for at in first if at.size and at[0] >= HELDOUT] or [order[:0]])
    order = np.concatenate([order[late], np.delete(order, late)]) if len(late) else order
    held = order[:HELDOUT]
    pool = order[HELDOUT:] if case.n_heldout is None else np.arange(case.n_heldout, len(case.y))
    pipe = rp.pipeline(case.proba[held], case.y[held])
    ends = [simulate.dirichlet(k, 1.0, rng=rng) if seed % 2 else simulate.shuffled_long_tail(k, 0.02, rng=rng)
            for _ in range(2)]  # fmt: skip
    path = simulate.drift(*ends, n=STEPS, kind=kind, rng=rng)
    drawn = simulate.draw_stream(case.proba[pool], case.y[pool], path, repeat=STEP, rng=rng)
    return pipe, Steps(path, drawn.proba, drawn.y)


def follow(method: Any, source: Any, stream: Steps) -> dict[str, Any]:
    """Return accuracy and priors (T, K) of a method that predicts each step before it learns it."""
    state, priors, right = method.init(), [], 0
    for first in range(0, len(stream.y), STEP):
        rows, prior = stream.proba[first : first + STEP], method.prior(state)
        priors.append(prior)
        right += int(((rows * (prior / source.prior)).argmax(axis=1) == stream.y[first : first + STEP]).sum())
        method.learn(state, rows)
    return {"accuracy": right / len(stream.y), "priors": np.array(priors)}


def follow_pipeline(pipe: Any, stream: Steps) -> dict[str, Any]:
    """Return accuracy and priors of `pipe.stream()` on raw samples."""
    learner, priors, right = pipe.stream(), [], 0
    for first in range(0, len(stream.y), STEP):
        rows = stream.proba[first : first + STEP]
        priors.append(learner.prior)
        right += int((np.asarray(learner.correct_many(rows)).argmax(axis=1) == stream.y[first : first + STEP]).sum())
        learner.learn_many(rows)
    return {"accuracy": right / len(stream.y), "priors": np.array(priors)}


def contenders(source: Any) -> Iterator[tuple[str, Any]]:
    """Yield `online-fmapls` and the published methods in our writing, at their authors' settings."""
    rerun = {"batch": STEP, "hard": False}
    yield "reprior, `online-fmapls`", OnlineFmapls(source)
    yield "FTH", PEERS["fth"](source, clip=True, **rerun)
    yield "FTFWH", PEERS["ftfwh"](source, window=1000, clip=True, **rerun)
    yield "ROGD", PEERS["rogd"](source, **rerun)
    yield "FLH-FTL", PEERS["flh-ftl"](source)
    yield "UOGD", PEERS["uogd"](source)
    yield "ATLAS", PEERS["atlas"](source)


def scored(results: dict[str, Any], stream: Steps, plain: float, seconds: float) -> dict[str, float]:
    """Return accuracy above the uncorrected one, squared error and KL over time; priors get a floor for KL."""
    out = {"accuracy": results["accuracy"] - plain, "seconds": seconds}
    if results["priors"] is not None:
        priors, k = np.asarray(results["priors"], float), stream.priors.shape[1]
        out["squared"] = float(((priors - stream.priors) ** 2).sum(axis=1).mean())
        priors = 0.999 * np.maximum(priors, 0) + 0.001 / k
        true = np.maximum(stream.priors, 1e-300)
        out["kl"] = float((stream.priors * np.log(true / priors)).sum(axis=1).mean())
    return out


def drifts(seeds: int, ols: Path | None, cifar: Path | None) -> None:
    """Store accuracy, squared error and KL along drifts."""
    kept_path = TRIALS / "streams_kept.json"
    kept = json.loads(kept_path.read_text()) if kept_path.exists() else {}
    theirs = None
    if ols is not None:
        from _online_authors import Authors

        theirs = Authors(ols, STEP)
    cells: dict[str, list[dict[str, Any]]] = defaultdict(list)
    cases = [*(c for c in unseen("logistic") if c.set in SETS), *shipped(("clinc150",))]
    runs = [(case, kind, seed) for seed in range(seeds) for case in cases for kind in DRIFT_KINDS]
    for done, (case, kind, seed) in enumerate(runs, 1):
        pipe, raw = streams(case, kind, seed)
        stream = raw._replace(proba=np.ascontiguousarray(pipe.calibrate(raw.proba), np.float64))
        plain = losses(stream.proba, stream.y)[1]
        results = {}

        def add(name: str, run: Any, *args: Any) -> None:
            start = time.process_time()
            made = run(*args)
            results[name] = scored(made, stream, plain, time.process_time() - start)  # noqa: B023 - used in this turn

        results["uncorrected"] = scored({"accuracy": plain, "priors": np.tile(pipe.source.prior, (STEPS, 1))},
                                      stream, plain, 0.0)  # fmt: skip
        add("reprior, `pipe.stream()`", follow_pipeline, pipe, raw)
        for name, method in contenders(pipe.source):
            add(name, follow, method, pipe.source, stream)
        if theirs is not None:
            for name in theirs.names:
                key = f"{case.name}|{kind}|{seed}|{name}"
                if key not in kept:
                    try:
                        add(f"{name}, authors' code", theirs.follow, name, pipe, stream)
                    except ValueError:  # a step size below 0
                        results[f"{name}, authors' code"] = {"accuracy": 0.0, "seconds": 0.0, "failed": 1}
                    kept[key] = results[f"{name}, authors' code"]
                    TRIALS.mkdir(exist_ok=True)
                    kept_path.write_text(json.dumps(kept))
                results[f"{name}, authors' code"] = kept[key]
        for name, x in results.items():
            cells[name].append({"set": case.set, "kind": kind, "seed": seed, **x})
        progress(done, len(runs), f"{case.name}, {kind}")
    about = (
        f"# Streams along drifts\n\n{len(cases)} classifiers ({', '.join(f'{c.set}, K={c.n_classes}' for c in cases)})"
        f", drifts {', '.join(DRIFT_KINDS)}, seeds: {seeds}, {STEPS} steps of {STEP} samples. Each method predicts a "
        "step before it learns it. Accuracy is the change from uncorrected. Means over sets ± standard errors between "
        "sets; the last columns are squared errors of the prior by drift ± standard errors over sets and seeds. "
        "A method that fails counts as uncorrected."
    )
    rows = []
    for name, own in cells.items():
        errors = [mean_and_error(own, what, form) if what in own[0] else "" for what, form in
                  (("squared", ".4f"), ("kl", ".3f"))]  # fmt: skip
        by_kind = [over_seeds([r for r in own if r["kind"] == kind]) for kind in DRIFT_KINDS]
        failed = str(sum(r.get("failed", 0) for r in own))
        rows.append([name, mean_and_error(own, "accuracy", "+.2f", 100), *errors,
                     f"{clustered(own, 'seconds')[0]:.2f}", failed, *by_kind])  # fmt: skip
    head = ["method", "accuracy, points", "squared error", "KL", "CPU s", "failed", *DRIFT_KINDS]
    parts = [about, markdown(head, sorted(rows, key=lambda row: -float(row[1].split()[0])))]
    figures: dict[str, Any] = {"cells": [dict(zip(head, row, strict=True)) for row in rows]}
    if cifar is not None:
        figures["cifar"], table = on_cifar(cifar, seeds)
        parts.append(table)
    store("streams_drifts", figures, "\n\n".join(parts))


def over_seeds(own: list[dict[str, Any]]) -> str:
    """Return mean ± standard error of the squared error over sets and seeds."""
    values = np.array([r["squared"] for r in own if "squared" in r])
    if not len(values):
        return ""
    error = values.std(ddof=1) / np.sqrt(len(values)) if len(values) > 1 else 0.0
    return f"{values.mean():.4f} ± {error:.4f}"


def cifar_outputs(folder: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return probabilities and labels of CIFAR-10's test images by a calibrated ResNet-18, and the training prior."""
    import torch

    stored = torch.load(folder / "data_preparation" / "test_cifar10_resnet18_cal.pt", weights_only=False)
    proba = softmax(np.asarray(stored["test_preds"], float))
    return proba, np.asarray(stored["y"], int), np.asarray(stored["p_train"], float)


def cifar_streams(folder: Path, kind: str, seed: int) -> tuple[Any, Steps]:
    """Return the source without held-out samples, and a stream from equal shares to one class."""
    proba, y, prior = cifar_outputs(folder)
    k, rng = len(prior), np.random.default_rng([seed, DRIFT_KINDS.index(kind)])
    path = simulate.drift(np.full(k, 1 / k), np.eye(k)[0], n=CIFAR_STEPS, kind=kind, rng=rng)
    drawn = simulate.draw_stream(proba, y, path, repeat=STEP, rng=rng)
    return rp.Source(prior), Steps(path, drawn.proba, drawn.y)


def on_cifar(folder: Path, seeds: int) -> tuple[dict[str, Any], str]:
    """Return squared errors on the four public drifts of CIFAR-10, by our stream and the published methods."""
    results: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for kind in DRIFT_KINDS[:4]:
        for seed in range(seeds):
            source, stream = cifar_streams(folder, kind, seed)
            for name, method in (("reprior, `online-ebls`", OnlineEbls(source)), *contenders_without(source)):
                made = follow(method, source, stream)
                results[name][kind].append(scored(made, stream, 0.0, 0.0)["squared"])
    rows = [[name, *(f"{np.mean(x):.4f} ± {np.std(x, ddof=1) / np.sqrt(len(x)):.4f}" for x in own.values())]
            for name, own in results.items()]  # fmt: skip
    about = ("## CIFAR-10 without held-out samples: squared error of the prior\n\n"
             f"{CIFAR_STEPS} steps of {STEP} samples from equal shares to one class; mean ± error.")  # fmt: skip
    figures = {name: {kind: float(np.mean(x)) for kind, x in own.items()} for name, own in results.items()}
    return figures, f"{about}\n\n{markdown(['method', *DRIFT_KINDS[:4]], rows)}"


def contenders_without(source: Any) -> Iterator[tuple[str, Any]]:
    """Yield the methods that need no held-out samples."""
    yield "reprior, `online-fmapls`", OnlineFmapls(source)


def harm(seeds: int) -> None:
    """Store the change of log-loss by a stream, by shift and by part of the stream."""
    cells: dict[tuple[str, int], list[dict[str, Any]]] = defaultdict(list)
    parts, cases = ((0, 100), (100, 300), (300, 1000)), list(unseen())
    for done, case in enumerate(cases, 1):
        for size in (200, 1000):
            for shift in SHIFTS:
                for seed in range(seeds):
                    d = draw(case, size, shift, seed)
                    pipe, raw, y = rp.pipeline(case.proba[d.heldout], case.y[d.heldout]), case.proba[d.target], case.y
                    learner, fixed, true = pipe.stream(), [], y[d.target]
                    for first in range(0, len(true), STEP):
                        fixed.append(np.asarray(learner.correct_many(raw[first : first + STEP])))
                        learner.learn_many(raw[first : first + STEP])
                    corrected, calibrated = np.concatenate(fixed), np.asarray(pipe.calibrate(raw))
                    loss = losses(corrected, true)[0] - losses(calibrated, true)[0]
                    record = {"set": case.set, "loss": loss, "harmed": float(loss > HARM)}
                    for first, last in parts:
                        part = slice(first, last)
                        if len(true) > first:
                            record[f"{first}"] = (losses(corrected[part], true[part])[0]
                                                  - losses(calibrated[part], true[part])[0])  # fmt: skip
                    cells[shift, size].append(record)
        progress(done, len(cases), case.name)
    rows = [[shift, str(size), mean_and_error(own, "loss", "+.4f"), f"{clustered(own, 'harmed')[0]:.1%}",
             f"{max(r['loss'] for r in own):+.3f}", *(mean_and_error(own, str(p[0]), "+.4f") for p in parts)]
            for (shift, size), own in cells.items()]  # fmt: skip
    spans = [f"samples {first + 1} to {last}" for first, last in parts]
    head = ["shift", "held-out", "change of log-loss", "harmed", "worst", *spans]
    about = (f"# Streams: do they do harm?\n\n{len(cases)} classifiers, {seeds} streams each of up to 1,000 samples; "
             "change of log-loss from calibrated probabilities left alone, mean over sets ± error.")  # fmt: skip
    store_cells("streams_harm", about, head, rows)


def resampled(settings: dict[str, Any], size: int, shift: str, seed: int) -> list[dict[str, Any]]:
    """Return the change of log-loss, and KL at the end, of streams of resampled unseen classifiers."""
    out = []
    for case in unseen():
        d = draw(case, size, shift, seed)
        pipe, raw, y = rp.pipeline(case.proba[d.heldout], case.y[d.heldout]), case.proba[d.target], case.y[d.target]
        learner, fixed = pipe.stream(settings=settings), []
        for first in range(0, len(y), STEP):
            fixed.append(np.asarray(learner.correct_many(raw[first : first + STEP])))
            learner.learn_many(raw[first : first + STEP])
        change = losses(np.concatenate(fixed), y)[0] - losses(np.asarray(pipe.calibrate(raw)), y)[0]
        out.append({"set": case.set, "loss": change, "kl": kl(d.prior, learner.prior)})
    return out


def drifting(settings: dict[str, Any], size: int, seed: int, labels: bool) -> list[dict[str, Any]]:
    """Return the change of log-loss by streams of the reported half of real drift, perhaps with late labels."""
    out, classifiers = [], list(real_drift.load())
    half = real_drift.halves([c.task for c in classifiers])
    for c in (c for c in classifiers if half[c.task] == "reported"):
        rng = np.random.default_rng([seed, size, *map(ord, c.name)])
        held = rng.permutation(len(c.heldout_y))[:size]
        pipe = rp.pipeline(c.heldout[held], c.heldout_y[held])
        raw, y = (np.concatenate([batch[i] for batch in c.batches]) for i in (0, 1))
        late = np.flatnonzero(rng.random(len(y)) < real_drift.LABELLED) if labels else np.arange(0)
        corrected = real_drift.streamed(pipe, raw, y, late, settings=settings)
        change = losses(corrected, y)[0] - losses(np.asarray(pipe.calibrate(raw)), y)[0]
        out.append({"set": c.task, "loss": change, "harmed": float(change > HARM)})
    return out


def constants(seeds: int) -> None:
    """Store what other values of the stream's constants cost: one is changed at a time."""
    rows, figures = [], {}
    changes = [("as chosen", {}), *((f"{name} = {x}", {name: x}) for name, values in VALUES.items() for x in values)]
    for label, settings in changes:
        cells = {}
        for size in (200, 1000):
            none, strong = ([r for seed in range(seeds) for r in resampled(settings, size, shift, seed)]
                            for shift in ("none", "strong"))  # fmt: skip
            real, late = ([r for seed in range(seeds) for r in drifting(settings, size, seed, labels)]
                          for labels in (False, True))  # fmt: skip
            columns = {"none": (none, "loss"), "strong": (strong, "loss"), "KL, strong": (strong, "kl"),
                       "real": (real, "loss"), "harmed": (real, "harmed"), "late labels": (late, "loss")}  # fmt: skip
            cells |= {f"{what} ({size})": clustered(*column)[0] for what, column in columns.items()}
        figures[label] = {key: round(x, 5) for key, x in cells.items()}
        rows.append([label, *(f"{x:.1%}" if key.startswith("harmed") else f"{x:+.4f}" for key, x in cells.items())])
        progress(len(rows), len(changes), label)
    about = (
        f"# Streams: what other values of the constants cost\n\nOne constant is changed at a time. Draws: {seeds}; the "
        "number of held-out samples is in brackets. None, strong: change of log-loss on resampled unseen classifiers, "
        "and KL at the end. Real: on the reported half of real drift, also with 5 % late labels."
    )
    store("streams_constants", figures, f"{about}\n\n{markdown(['', *cells], rows)}")


def alarms(seeds: int) -> None:
    """Store false alarms of quiet streams at 1 %, and delays after a strong shift."""
    rows, figures = [], {}
    for case in [*(c for c in unseen("logistic") if c.set in SETS), *shipped(("banking77",))]:
        raised, delays = 0, []
        for seed in range(seeds):
            rng = np.random.default_rng([seed, *map(ord, case.name)])
            order = rng.permutation(case.n_heldout or len(case.y))
            held = order[: len(order) // 2]
            source = rp.summarize(case.proba[held], case.y[held])
            quiet = case.proba[rng.choice(order[len(order) // 2 :], 2000)]
            alarm, learner = rp.Alarm(source, alpha=0.01), rp.Stream("online-ebls", source)
            raised += bool(alarm.watch(learner, quiet))
            if seed < seeds // 10:
                d = draw(case, 500, "strong", seed, rows=2000)
                alarm, learner = rp.Alarm(source, alpha=0.01), rp.Stream("online-ebls", source)
                verdict = alarm.watch(learner, case.proba[d.target])
                delays.append(verdict.raised_at if verdict else np.inf)
        figures[case.name] = {"false": raised, "of": seeds, "delay": float(np.median(delays)) if delays else None}
        rows.append([case.name, f"{raised} of {seeds}", f"{np.median(delays):.0f}" if delays else ""])
        progress(len(rows), 4, case.name)
    head = ["classifier", "false alarms in 2,000 samples, level 1 %", "median samples until a strong shift is found"]
    store("streams_alarms", figures, f"# Alarms\n\n{markdown(head, rows)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=("drifts", "harm", "alarms", "constants"))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--ols", type=Path, help="a clone of acmi-lab/OnlineLabelShift")
    parser.add_argument("--cifar", type=Path, help="a clone of wrh14/online_adaptation_to_label_distribution_shift")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # what `correct` says of single streams
    if options.part == "drifts":
        drifts(options.seeds or 5, options.ols, options.cifar)
    else:
        run, seeds = {"harm": (harm, 2), "alarms": (alarms, 200), "constants": (constants, 1)}[options.part]
        run(options.seeds or seeds)


if __name__ == "__main__":
    main()
