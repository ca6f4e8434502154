"""Groups that learn from each other, on real outputs: error, coverage and cost against going alone and being one.

    python benchmarks/groups.py [--seeds 20] [--large | --ordinary]

Four structures of 100 groups: around one common mix (far from it, or near), in four clusters, alike but for one, and
alike. With --large the cost on simulated outputs instead: 100,000 x 100 rows x 10 classes, and 10,000 x 100 x 77. With
--ordinary whether groups of ordinary classifiers are harmed: 40 groups, the kept half of the sets in `_ordinary.py`.
"""

import argparse
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

from _ordinary import KEPT_ASIDE, load
from _outputs import Outputs, shipped
from _record import markdown, progress, store  # isort: split

import numpy as np

import reprior as rp
from reprior import groups

N_GROUPS = 100
CELLS = (
    ("far from one mix", 30), ("far from one mix", 100), ("near one mix", 30), ("near one mix", 100),
    ("four clusters", 30), ("four clusters", 100), ("alike but one", 30), ("alike", 30),
)  # fmt: skip


def mixes(structure: str, k: int, rng: np.random.Generator) -> np.ndarray:
    """Return the true class prior of each group (G, K)."""
    common = rng.dirichlet(np.ones(k))

    def around(mix: np.ndarray, strength: float, size: int) -> np.ndarray:
        return rng.dirichlet(np.maximum(strength * k * mix, 1e-3), size=size)

    if structure == "far from one mix":
        drawn = around(common, 0.3, N_GROUPS)
    elif structure == "near one mix":
        drawn = around(common, 3.0, N_GROUPS)
    elif structure == "four clusters":
        drawn = np.concatenate([around(rng.dirichlet(np.ones(k)), 3.0, N_GROUPS // 4) for _ in range(4)])
    elif structure == "alike but one":
        drawn = np.concatenate([around(np.full(k, 1 / k), 0.1, 1), around(common, 10.0, N_GROUPS - 1)])
    else:
        drawn = np.tile(common, (N_GROUPS, 1))
    drawn = np.maximum(drawn, 1e-12)
    return drawn / drawn.sum(axis=1, keepdims=True)


def divergence(true: np.ndarray, found: np.ndarray) -> float:
    return float((true * np.log(true / np.maximum(found, 1e-300))).sum(axis=1).mean())


def drawn(
    o: Outputs, calibrated: np.ndarray, structure: str, n: int, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return true priors (G, K), and keys, classes and outputs of n rows of each group."""
    rng = np.random.default_rng([2026, seed])
    k = len(o.counts)
    true = mixes(structure, k, rng)
    members = [np.flatnonzero(o.pool_y == j) for j in range(k)]
    y = np.concatenate([rng.choice(k, size=n, p=mix) for mix in true])
    rows = calibrated[[rng.choice(members[j]) for j in y]]
    return true, np.repeat(np.arange(N_GROUPS), n), y, rows


def cell(o: Outputs, pipe: rp.Pipeline, calibrated: np.ndarray, structure: str, n: int, seed: int) -> dict[str, float]:
    true, keys, _, rows = drawn(o, calibrated, structure, n, seed)
    found = groups(pipe.source, keys, rows, **pipe.options)
    alone = np.stack([rp.ebls(pipe.source, rows[keys == g], **pipe.options).prior for g in range(N_GROUPS)])
    one = np.broadcast_to(rp.ebls(pipe.source, rows, **pipe.options).prior, true.shape)

    made = {
        "shared": divergence(true, found.prior), "alone": divergence(true, alone), "one for all": divergence(true, one),
        "alone, fast": divergence(true, groups(pipe.source, keys, rows, share=False, **pipe.options).prior),
    }  # fmt: skip
    lower, upper = found.interval(of="prior")
    covered = (lower <= true) & (true <= upper)
    above = float(covered[true > 0.01].mean())
    return made | {"coverage": float(covered.mean()), "coverage, of shares above 1 %": above}


def quality(seeds: int) -> None:
    figures, table = {}, []
    coverages = ["coverage", "coverage, of shares above 1 %"]
    for o in shipped():
        pipe = rp.pipeline(o.heldout, o.heldout_y, counts=o.counts)
        calibrated = np.asarray(pipe.calibrate(o.pool))
        for structure, n in CELLS:
            runs = []
            for seed in range(seeds):
                runs.append(cell(o, pipe, calibrated, structure, n, seed))
                progress(seed + 1, seeds, f"{o.name}, {structure}, {n}")
            mean = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
            mean["against the better"] = mean["shared"] / min(mean["alone"], mean["one for all"]) - 1
            figures[f"{o.name}, {structure}, {n} rows"] = mean
            divergences = (f"{mean[key]:.3f}" for key in
                           ("shared", "alone", "one for all", "alone, fast"))  # fmt: skip
            covered = (f"{mean[key]:.1%}" for key in coverages)
            table.append([o.name, structure, str(n), *divergences, f"{mean['against the better']:+.1%}", *covered])
    head = ["outputs", "groups", "rows a group", "shared", "alone", "one for all", "alone, fast",
            "against the better", "coverage of 95 %", "of shares above 1 %"]  # fmt: skip
    text = (
        f"# 100 groups that learn from each other: mean KL(true, estimate), {seeds} seeds\n\n"
        "“Alone” is `ebls` on each group's rows, “one for all” `ebls` on all rows, “alone, fast” `share=False`. "
        "All with the options of the default pipeline.\n\n" + markdown(head, table)
    )
    store("groups", {"seeds": seeds, "cells": figures}, text)


def losses(rows: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(np.maximum(rows[np.arange(len(y)), y], 1e-12)).mean())


def ordinary_mixes(structure: str, source: np.ndarray, n_groups: int, rng: np.random.Generator) -> np.ndarray:
    """Return the true class mix of each group (G, K)."""
    k = len(source)
    drawn = {
        "no shift": lambda: np.tile(source, (n_groups, 1)),
        "each mildly shifted": lambda: source * rng.uniform(0.6, 1.6, (n_groups, k)),
        "around one strong shift": lambda: rng.dirichlet(20 * rng.dirichlet(np.full(k, 2.0)), n_groups),
        "each strongly shifted": lambda: rng.dirichlet(np.full(k, 2.0), n_groups),
    }[structure]()
    drawn = np.maximum(drawn, 1e-9)
    return drawn / drawn.sum(axis=1, keepdims=True)


def ordinary(seeds: int, n_groups: int = 40) -> None:
    figures, table = [], []
    classifiers = list(load(KEPT_ASIDE))
    structures = ("no shift", "each mildly shifted", "around one strong shift", "each strongly shifted")
    cells = [(size, n, s) for size in (200, 1000) for n in (50, 250) for s in structures]
    for done, (size, n, structure) in enumerate(cells, 1):
        runs = []
        for c in classifiers:
            for seed in range(seeds):
                rng = np.random.default_rng([seed, size, *map(ord, c.name)])
                own = rng.permutation(np.flatnonzero(c.group == 0))
                held, rest = own[:size], own[size:]
                members = [rest[c.y[rest] == j] for j in range(len(c.counts))]
                if len(rest) < 300 or min(map(len, members)) == 0:
                    continue
                true = ordinary_mixes(
                    structure, np.bincount(c.y[own], minlength=len(c.counts)) / len(own), n_groups, rng
                )
                y = np.concatenate([rng.choice(len(mix), size=n, p=mix) for mix in true])
                keys = np.repeat(np.arange(n_groups), n)
                pipe = rp.pipeline(c.proba[held], c.y[held])
                rows = np.asarray(pipe.calibrate(c.proba[[rng.choice(members[j]) for j in y]]))
                found = groups(pipe.source, keys, rows, **pipe.options)
                lower, upper = found.interval()
                priors = {
                    "shared": found.prior,
                    "by itself": groups(pipe.source, keys, rows, share=False, **pipe.options).prior,
                    "one for all": np.tile(rp.ebls(pipe.source, rows, **pipe.options).prior, (n_groups, 1)),
                }
                left = losses(rows, y)
                run = {"covered": float(((lower <= true) & (true <= upper)).mean())}
                for name, prior in priors.items():
                    fixed = rows * (prior / pipe.source.prior)[keys]
                    run[name] = losses(fixed / fixed.sum(axis=1, keepdims=True), y) - left
                runs.append(run)
        names = ("shared", "by itself", "one for all")
        mean = {name: float(np.mean([run[name] for run in runs])) for name in (*names, "covered")}
        mean["harmed"] = float(np.mean([run["shared"] > 0.01 for run in runs]))
        figures.append({"heldout": size, "rows": n, "groups": structure, "draws": len(runs), **mean})
        table.append([structure, str(size), str(n), str(len(runs)), *(f"{mean[name]:+.4f}" for name in names),
                      f"{mean['harmed']:.0%}", f"{mean['covered']:.1%}"])  # fmt: skip
        progress(done, len(cells), structure)
    head = ["groups", "held-out rows", "rows a group", "draws", *names, "harmed", "coverage of 95 %"]
    text = (
        f"# Groups of ordinary classifiers: does it do harm?\n\n{n_groups} groups, {len(classifiers)} classifiers on "
        f"the sets {', '.join(KEPT_ASIDE)}, draws of each: {seeds}. “By itself” is `share=False`. Change of log-loss "
        "(nats) against the same calibrated outputs left alone; harmed: shared groups worse by more than 0.01.\n\n"
        + markdown(head, table)
    )
    store("groups_ordinary", {"cells": figures}, text)


def one_cost(n_groups: int, n: int, k: int, share: bool) -> dict[str, float]:
    """Return what an estimate takes, in a process of its own."""
    rng = np.random.default_rng(0)
    true = rng.dirichlet(np.maximum(0.5 * k * rng.dirichlet(np.ones(k)), 0.05), size=n_groups)
    rows, keys = np.empty((n_groups * n, k)), np.repeat(np.arange(n_groups), n)
    for g in range(0, n_groups, 50):
        y = (true[g : g + 50].cumsum(axis=1)[:, None, :] < rng.random((50, n, 1))).sum(axis=2).clip(0, k - 1)
        logits = 2.5 * (rng.standard_normal((50 * n, k)) + 2.5 * np.eye(k)[y.ravel()])
        part = np.exp(logits - logits.max(axis=1, keepdims=True))
        rows[g * n : (g + 50) * n] = part / part.sum(axis=1, keepdims=True)
    start = time.process_time()
    found = groups(np.ones(k), keys, rows, share=share)
    spent = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / rows.nbytes
    return {
        "cpu_seconds": spent,
        "peak_over_rows": peak,
        "kl": divergence(np.maximum(true, 1e-12), found.prior),
        "rows_mb": rows.nbytes / 1e6,
    }


def cost() -> None:
    figures, table = {}, []
    cases = [(*size, share) for size in ((10_000, 100, 77), (100_000, 100, 10)) for share in (False, True)]
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
        for done, (case, made) in enumerate(zip(cases, pool.map(one_cost, *zip(*cases, strict=True)), strict=True), 1):
            name = f"{case[0]:,} x {case[1]} x {case[2]}, {'shared' if case[3] else 'alone'}"
            figures[name] = made
            table.append([name, f"{made['cpu_seconds']:.1f}", f"{made['rows_mb']:.0f}",
                          f"{made['peak_over_rows']:.2f}", f"{made['kl']:.4f}"])  # fmt: skip
            progress(done, len(cases), name)
    text = (
        "# What many groups cost, on one thread\n\nPeak memory is that of the whole process, in units of its rows.\n\n"
        + markdown(["groups x rows x classes", "CPU seconds", "rows, MB", "peak memory / rows", "mean KL"], table)
    )
    store("groups_cost", {"cells": figures}, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--ordinary", action="store_true")
    options = parser.parse_args()
    if options.large:
        cost()
    elif options.ordinary:
        ordinary(options.seeds)
    else:
        quality(options.seeds)


if __name__ == "__main__":
    main()
