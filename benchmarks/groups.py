"""Groups that learn from each other, on real outputs: error, coverage and cost against going alone and being one.

    python benchmarks/groups.py [--seeds 20] [--large]

Four structures of 100 groups: around one common mix (far from it, or near), in four clusters, alike but for one, and
alike. With --large the cost on simulated outputs instead: 100,000 x 100 rows x 10 classes, and 10,000 x 100 x 77.
"""

import argparse
import resource
import time

from _outputs import Outputs, shipped
from _record import markdown, progress, store  # isort: split

import numpy as np

import reprior as rp
from reprior.batch.groups import groups

N_GROUPS = 100
CELLS = (
    ("far from one mix", 30), ("far from one mix", 100), ("near one mix", 30), ("near one mix", 100),
    ("four clusters", 30), ("four clusters", 100), ("alike but one", 30), ("alike", 30),
)  # fmt: skip


def mixes(structure: str, k: int, rng: np.random.Generator) -> np.ndarray:
    """Return the true class mix of each group (G, K)."""
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


def cell(o: Outputs, pipe: rp.Pipeline, calibrated: np.ndarray, structure: str, n: int, seed: int) -> dict[str, float]:
    rng = np.random.default_rng([2026, seed])
    k = len(o.counts)
    true = mixes(structure, k, rng)
    members = [np.flatnonzero(o.pool_y == j) for j in range(k)]
    y = np.concatenate([rng.choice(k, size=n, p=mix) for mix in true])
    rows = calibrated[[rng.choice(members[j]) for j in y]]
    keys = np.repeat(np.arange(N_GROUPS), n)
    found = groups(pipe.source, keys, rows)
    lower, upper = found.interval()
    covered = (lower <= true) & (true <= upper)
    alone = np.stack([rp.ebls(pipe.source, rows[keys == g]).prior for g in range(N_GROUPS)])
    one = np.broadcast_to(rp.ebls(pipe.source, rows).prior, true.shape)
    return {
        "shared": divergence(true, found.prior), "alone": divergence(true, alone), "one for all": divergence(true, one),
        "alone, fast": divergence(true, groups(pipe.source, keys, rows, share=False).prior),
        "coverage": float(covered.mean()), "coverage of shares above 1 %": float(covered[true > 0.01].mean()),
    }  # fmt: skip


def quality(seeds: int) -> None:
    figures, table = {}, []
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
            table.append([o.name, structure, str(n), *(f"{mean[key]:.3f}" for key in
                          ("shared", "alone", "one for all", "alone, fast")), f"{mean['against the better']:+.1%}",
                          f"{mean['coverage']:.1%}", f"{mean['coverage of shares above 1 %']:.1%}"])  # fmt: skip
    head = ["outputs", "groups", "rows a group", "shared", "alone", "one for all", "alone, fast", "against the better",
            "coverage of 95 %", "of shares above 1 %"]  # fmt: skip
    text = (
        f"# 100 groups that learn from each other: mean KL(true, estimate), {seeds} seeds\n\n"
        "“Alone” is `ebls` on each group's rows, “one for all” `ebls` on all rows, “alone, fast” `share=False`. "
        "ALLOWANCE and the price of a cluster were chosen on banking77.\n\n" + markdown(head, table)
    )
    store("groups", {"seeds": seeds, "cells": figures}, text)


def cost() -> None:
    figures, table = {}, []
    for n_groups, n, k in ((10_000, 100, 77), (100_000, 100, 10)):
        rng = np.random.default_rng(0)
        true = rng.dirichlet(np.maximum(0.5 * k * rng.dirichlet(np.ones(k)), 0.05), size=n_groups)
        rows, keys = np.empty((n_groups * n, k)), np.repeat(np.arange(n_groups), n)
        for g in range(0, n_groups, 1000):
            y = (true[g : g + 1000].cumsum(axis=1)[:, None, :] < rng.random((1000, n, 1))).sum(axis=2).clip(0, k - 1)
            logits = 2.5 * (rng.standard_normal((1000 * n, k)) + 2.5 * np.eye(k)[y.ravel()])
            part = np.exp(logits - logits.max(axis=1, keepdims=True))
            rows[g * n : (g + 1000) * n] = part / part.sum(axis=1, keepdims=True)
        for share in (False, True):
            start = time.process_time()
            found = groups(np.ones(k), keys, rows, share=share)
            spent = time.process_time() - start
            peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / rows.nbytes
            error = divergence(np.maximum(true, 1e-12), found.prior)
            name = f"{n_groups:,} x {n} x {k}, {'shared' if share else 'alone'}"
            figures[name] = {"cpu_seconds": spent, "peak_over_rows": peak, "kl": error}
            table.append([name, f"{spent:.1f}", f"{peak:.2f}", f"{error:.4f}"])
            progress(1, 1, name)
        del rows
    text = (
        "# What many groups cost, on one thread\n\nPeak memory is that of the whole process, in units of the larger "
        "rows so far.\n\n"
        + markdown(["groups x rows x classes", "CPU seconds", "peak memory / rows", "mean KL"], table)
    )
    store("groups_cost", {"cells": figures}, text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--large", action="store_true")
    options = parser.parse_args()
    if options.large:
        cost()
    else:
        quality(options.seeds)


if __name__ == "__main__":
    main()
