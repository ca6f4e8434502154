"""Groups and keyed streams that learn from each other: error, coverage, harm and cost against going alone.

    python benchmarks/groups.py quality [--seeds 5]   # 100 groups of shipped outputs, by how alike they are
    python benchmarks/groups.py harm [--seeds 1]      # 40 groups of classifiers that nothing was designed on
    python benchmarks/groups.py keyed [--seeds 5]     # what a new key of a table of streams gains from the other keys
    python benchmarks/groups.py cost                  # 100,000 x 100 samples x 10 classes, and 10,000 x 100 x 77
"""

from __future__ import annotations

import argparse
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from _record import markdown, progress, store, store_cells  # isort: split

import numpy as np
from _worlds import HARM, Case, clustered, kl, losses, mean_and_error, shifted, shipped, softmax, unseen

import reprior as rp

N_GROUPS, FEW_GROUPS = 100, 40
TEXTS = ("banking77", "clinc150")
CELLS = (("far from one prior", 30), ("far from one prior", 100), ("near one prior", 30), ("near one prior", 100),
         ("four clusters", 30), ("alike but one", 30), ("alike", 30))  # fmt: skip
OLD, NEW, AFTER = 40, 20, (1, 10, 30, 100)  # keys before, new keys, samples of a new key
NEAR = {"far from one prior": 0.3, "near one prior": 3.0, "four clusters": 3.0, "two clusters": 3.0}


def priors(structure: str, n: int, source: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the true class prior of each group (n, K)."""
    k = len(source)
    common = rng.dirichlet(np.ones(k))
    if structure == "no shift":
        drawn = np.tile(source, (n, 1))
    elif structure == "alike":
        drawn = np.tile(common, (n, 1))
    elif structure == "alike but one":
        drawn = np.concatenate([rng.dirichlet(np.full(k, 0.1), 1), rng.dirichlet(10 * k * common + 1e-3, n - 1)])
    else:
        clusters = {"four clusters": 4, "two clusters": 2}.get(structure, 1)
        centres = rng.dirichlet(np.ones(k), clusters)[np.arange(n) * clusters // n]
        drawn = np.stack([rng.dirichlet(np.maximum(NEAR[structure] * k * c, 1e-3)) for c in centres])
    drawn = np.maximum(drawn, 1e-12)
    return drawn / drawn.sum(axis=1, keepdims=True)


def samples(case: Case, pool: np.ndarray, true: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return indices (G·n,) of samples of each group, drawn from the pool with replacement."""
    members = [pool[case.y[pool] == j] for j in range(case.n_classes)]
    return np.array([rng.choice(members[j]) for prior in true for j in rng.choice(len(prior), n, p=prior)])


def mean_kl(true: np.ndarray, estimate: np.ndarray) -> float:
    return float(np.mean([kl(a, b) for a, b in zip(true, estimate, strict=True)]))


def quality(seeds: int) -> None:
    """Store KL of shared groups beside each alone and all as one."""
    figures, rows = {}, []
    for case in shipped(TEXTS):
        held, pool = np.arange(case.n_heldout), np.arange(case.n_heldout, len(case.y))
        pipe = rp.pipeline(case.proba[held], case.y[held], counts=case.counts)
        for structure, n in CELLS:
            runs = []
            for seed in range(seeds):
                rng = np.random.default_rng([2026, seed])
                true = priors(structure, N_GROUPS, pipe.source.prior, rng)
                proba = case.proba[samples(case, pool, true, n, rng)]
                keys = np.repeat(np.arange(N_GROUPS), n)
                results, one = pipe.groups(keys, proba), pipe.estimate(proba).prior
                alone = np.stack([pipe.estimate(proba[keys == g]).prior for g in range(N_GROUPS)])
                lower, upper = results.interval(of="prior")
                runs.append({"shared": mean_kl(true, results.prior), "alone": mean_kl(true, alone),
                             "one for all": mean_kl(true, np.broadcast_to(one, true.shape)),
                             "covered": float(((lower <= true) & (true <= upper)).mean())})  # fmt: skip
                progress(seed + 1, seeds, f"{case.name}, {structure}, {n}")
            mean = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
            figures[f"{case.name}, {structure}, {n}"] = mean
            rows.append([case.name, structure, str(n), *(f"{mean[key]:.3f}" for key in list(mean)[:3]),
                         f"{mean['covered']:.1%}"])  # fmt: skip
    head = ["outputs", f"{N_GROUPS} groups", "samples per group", "shared", "alone", "one for all", "covered"]
    about = f"# Groups that learn from each other: KL(true ‖ estimated prior), {seeds} seeds; 95 % intervals"
    store("groups", {"seeds": seeds, "cells": figures}, f"{about}\n\n{markdown(head, rows)}")


def harm(seeds: int) -> None:
    """Store the change of log-loss of groups of classifiers that nothing was designed on."""
    cells: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    cases = list(unseen("logistic"))
    for done, case in enumerate(cases, 1):
        for size, n in ((200, 50), (1000, 250)):
            for structure in ("none", "mild", "strong", "around one strong shift"):
                for seed in range(seeds):
                    rng = np.random.default_rng([seed, size, *map(ord, case.name)])
                    order = rng.permutation(len(case.y))
                    pipe = rp.pipeline(case.proba[order[:size]], case.y[order[:size]])
                    centre = 20 * shifted(pipe.source.prior, "strong", rng) + 1e-3
                    around = structure.startswith("around")
                    true = np.stack([rng.dirichlet(centre) if around else shifted(pipe.source.prior, structure, rng)
                                     for _ in range(FEW_GROUPS)])  # fmt: skip
                    true /= true.sum(axis=1, keepdims=True)
                    rows = samples(case, order[size:], true, n, rng)
                    keys, raw, y = np.repeat(np.arange(FEW_GROUPS), n), case.proba[rows], case.y[rows]
                    calibrated = np.asarray(pipe.calibrate(raw))
                    for name, share in (("shared", True), ("alone", False)):
                        weights = pipe.groups(keys, raw, share=share).prior / pipe.source.prior
                        fixed = calibrated * weights[keys]
                        fixed /= fixed.sum(axis=1, keepdims=True)
                        loss = losses(fixed, y)[0] - losses(calibrated, y)[0]
                        cell = cells.setdefault((structure, size, n, name), [])
                        cell.append({"set": case.set, "loss": loss, "harmed": float(loss > HARM)})
        progress(done, len(cases), case.name)
    head = ["shift", "held-out", "samples per group", "", "change of log-loss", "harmed"]
    rows = [[*map(str, key), mean_and_error(own, "loss", "+.4f"), f"{clustered(own, 'harmed')[0]:.1%}"]
            for key, own in cells.items()]  # fmt: skip
    about = (f"# Groups: does it do harm?\n\n{FEW_GROUPS} groups of each of {len(cases)} classifiers; change of "
             "log-loss from the calibrated probabilities left alone, mean over sets ± standard error.")  # fmt: skip
    store_cells("groups_harm", about, head, rows)


def keyed(seeds: int) -> None:
    """Store KL of the first samples of new keys, with and without sharing."""
    results: dict[tuple[Any, ...], list[float]] = {}
    structures = ("far from one prior", "near one prior", "two clusters", "no shift")
    for case in shipped(TEXTS):
        held, pool = np.arange(case.n_heldout), np.arange(case.n_heldout, len(case.y))
        pipe = rp.pipeline(case.proba[held], case.y[held], counts=case.counts)
        for structure in structures:
            for seed in range(10, 10 + seeds):  # seeds 0 to 2 were looked at while this was made
                rng = np.random.default_rng([seed, structures.index(structure)])
                true = rng.permutation(priors(structure, OLD + NEW, pipe.source.prior, rng))
                keys = rng.permutation(np.repeat(np.arange(OLD), AFTER[-1]))
                old = samples(case, pool, true[:OLD], AFTER[-1], rng).reshape(OLD, -1)
                new = samples(case, pool, true[OLD:], AFTER[-1], rng).reshape(NEW, -1)
                turn = [np.count_nonzero(keys[:i] == key) for i, key in enumerate(keys)]
                for share in (False, True):
                    table = pipe.table(share=share)
                    table.learn(keys, case.proba[old[keys, turn]])
                    for g, rows in enumerate(new, OLD):
                        for since, until in zip((0, *AFTER), AFTER, strict=False):
                            table.learn(np.full(until - since, g), case.proba[rows[since:until]])
                            cell = results.setdefault((case.name, structure, until, share), [])
                            cell.append(kl(true[g], table.prior(g)))
                progress(seed - 9, seeds, f"{case.name}, {structure}")
    means = {key: float(np.mean(values)) for key, values in results.items()}
    rows = [[*where, *(f"{means[*where, n, False]:.3f} → {means[*where, n, True]:.3f}" for n in AFTER)]
            for where in dict.fromkeys(key[:2] for key in results)]  # fmt: skip
    head = ["outputs", "keys", *(f"after {n} samples" for n in AFTER)]
    about = f"# New keys of a table: KL(true ‖ estimated prior) alone → shared, {seeds} seeds, {OLD} keys before"
    figures = {", ".join(map(str, key)): value for key, value in means.items()}
    store("groups_keyed", {"seeds": seeds, "cells": figures}, f"{about}\n\n{markdown(head, rows)}")


def one_cost(n_groups: int, n: int, k: int, share: bool) -> dict[str, float]:
    """Return what an estimate takes, in a process of its own."""
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.maximum(0.5 * k * rng.dirichlet(np.ones(k)), 0.05), size=n_groups)
    rows, keys = np.empty((n_groups * n, k)), np.repeat(np.arange(n_groups), n)
    for g in range(0, n_groups, 50):
        y = (true[g : g + 50].cumsum(axis=1)[:, None, :] < rng.random((50, n, 1))).sum(axis=2).clip(0, k - 1)
        rows[g * n : (g + 50) * n] = softmax(2.5 * (rng.standard_normal((50 * n, k)) + 2.5 * np.eye(k)[y.ravel()]))
    start = time.process_time()
    results = rp.groups(np.ones(k), keys, rows, share=share)
    spent = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / rows.nbytes
    return {"cpu_seconds": spent, "peak_over_rows": peak, "kl": mean_kl(true, results.prior), "mb": rows.nbytes / 1e6}


def cost(_: int) -> None:
    """Store CPU time and memory of many groups."""
    figures, rows = {}, []
    cases = [(*size, share) for size in ((10_000, 100, 77), (100_000, 100, 10)) for share in (False, True)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for done, (case, made) in enumerate(zip(cases, pool.map(one_cost, *zip(*cases, strict=True)), strict=True), 1):
            name = f"{case[0]:,} x {case[1]} x {case[2]}, {'shared' if case[3] else 'alone'}"
            figures[name] = made
            rows.append([name, f"{made['cpu_seconds']:.1f}", f"{made['mb']:.0f}", f"{made['peak_over_rows']:.2f}",
                         f"{made['kl']:.4f}"])  # fmt: skip
            progress(done, len(cases), name)
    about = "# What many groups cost, on one thread\n\nPeak memory is of the whole process, in units of its samples."
    head = ["groups x samples x classes", "CPU seconds", "samples, MB", "peak memory / samples", "mean KL"]
    store("groups_cost", {"cells": figures}, f"{about}\n\n{markdown(head, rows)}")


def main() -> None:
    parts = {"quality": (quality, 5), "harm": (harm, 1), "keyed": (keyed, 5), "cost": (cost, 1)}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--seeds", type=int)
    options = parser.parse_args()
    run, seeds = parts[options.part]
    run(options.seeds or seeds)


if __name__ == "__main__":
    main()
