"""Groups and keyed streams that learn from each other: error, coverage, harm and cost against going alone.

    python benchmarks/groups.py quality [--seeds 5]   # 100 groups of shipped outputs, by how alike they are
    python benchmarks/groups.py harm [--seeds 1]      # 40 groups of classifiers that nothing was designed on
    python benchmarks/groups.py keyed [--seeds 5]     # what a new key of a table of streams gains from the other keys
    python benchmarks/groups.py cost                  # 100,000 x 100 samples x 10 classes, and 10,000 x 100 x 77
    python benchmarks/groups.py forms                 # the population model beside more complicated forms of it

Forms that are no longer in the package are stored once, with the commit that had them:
`PYTHONPATH=OLD/src python benchmarks/groups.py forms --form "one centre"` (commit 09f1b46).
"""

from __future__ import annotations

import argparse
import json
import pkgutil
import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

from _record import RESULTS, markdown, progress, store, store_cells  # isort: split

import numpy as np
from _worlds import HARM, Case, clustered, kl, losses, mean_and_error, shifted, shipped, softmax, unseen

import reprior as rp

N_GROUPS, FEW_GROUPS = 100, 40
TEXTS = ("banking77", "clinc150")
CELLS = (("far from one prior", 30), ("far from one prior", 100), ("near one prior", 30), ("near one prior", 100),
         ("four clusters", 30), ("alike but one", 30), ("alike", 30))  # fmt: skip
OLD, NEW, AFTER = 40, 20, (1, 10, 30, 100)  # keys before, new keys, samples of a new key
FORMS: dict[str, dict[str, float]] = {  # and what to change in the package for each
    "clusters, odd groups": {},
    "one centre, odd groups": {"reprior.model.groups:MAX_CENTRES": 1},
    "one centre": {"reprior.model.groups:MAX_CENTRES": 1, "reprior.model.population:ODD_GROUPS": 1e-300},
    "one population": {},
    "no unlike keys": {"reprior.online.shared_start:P_UNLIKE_KEY": 1e-9},
}
NOW, KEY_FORMS = "one population", ("clusters, odd groups", "one population", "no unlike keys")
STRUCTURES = ("far from one prior", "near one prior", "two clusters", "four clusters", "alike but one", "alike")
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


def forms(seeds: int, form: str = NOW) -> None:
    """Store KL and coverage of one form of the population model beside the other forms."""
    for where, value in FORMS[form].items():
        module, name = where.split(":")
        setattr(pkgutil.resolve_name(module), name, value)
    cells: dict[str, list[tuple[float, float]]] = {}

    def add(cell: str, true: np.ndarray, estimate: np.ndarray, ends: Any) -> None:
        covered = float(((ends[0] <= true + 1e-9) & (true <= ends[1] + 1e-9)).mean())
        cells.setdefault(cell, []).append((mean_kl(np.maximum(true, 1e-12), estimate), covered))

    cases = [*unseen("logistic"), *shipped(TEXTS)]
    for done, case in enumerate(cases, 1):
        kind = "many classes" if case.name in TEXTS else "unseen sets"
        for structure in STRUCTURES:
            for seed in range(seeds):
                rng = np.random.default_rng([2027, seed, *map(ord, case.name + structure)])
                order = rng.permutation(len(case.y))
                pipe = rp.pipeline(case.proba[order[:1000]], case.y[order[:1000]])
                true = priors(structure, FEW_GROUPS, pipe.source.prior, rng)
                rows, keys = samples(case, order[1000:], true, 30, rng), np.repeat(np.arange(FEW_GROUPS), 30)
                if form != "no unlike keys":
                    by_group = pipe.groups(keys, case.proba[rows], check=False)
                    add(f"groups, {kind}, {structure}", true, by_group.prior, by_group.interval(of="prior"))
                if form in KEY_FORMS:
                    mixed = rng.permutation(len(rows) - 300)  # the last ten keys are new
                    table = pipe.table()
                    table.learn(keys[mixed], case.proba[rows[mixed]])
                    for g in range(FEW_GROUPS - 10, FEW_GROUPS):
                        table.learn(keys[keys == g][:10], case.proba[rows[keys == g][:10]])
                        add(f"keys, {kind}, {structure}", true[g : g + 1], table.prior(g)[None], table.interval(g))
        progress(done, len(cases), f"{form}, {case.name}")
    stored = RESULTS / "groups_forms.json"
    by_form = json.loads(stored.read_text(encoding="utf-8"))["forms"] if stored.exists() else {}
    by_form[form] = {cell: np.mean(runs, axis=0).tolist() for cell, runs in cells.items()}
    by_form = {name: by_form[name] for name in FORMS if name in by_form}
    rows = [[cell, *(f"{own[cell][0]:.3f} ({own[cell][1]:.0%})" if cell in own else "–" for own in by_form.values())]
            for cell in sorted(by_form[NOW] if NOW in by_form else by_form[form])]  # fmt: skip
    about = (
        "# Forms of the population model\n\nKL(true ‖ estimated prior) and, in brackets, coverage of 95 % intervals of "
        f"the prior; {seeds} seeds. 40 groups of 30 samples; new keys after 10 samples, beside 30 keys of 30. Unseen "
        "sets are 16 classifiers of 2 to 63 classes, many classes banking77 and clinc150. Commit 09f1b46 had clusters "
        "and odd groups."
    )
    store("groups_forms", {"seeds": seeds, "forms": by_form}, f"{about}\n\n{markdown(['', *by_form], rows)}")


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
    parts: dict[str, Any] = {"quality": (quality, 5), "harm": (harm, 1), "keyed": (keyed, 5), "cost": (cost, 1),
                             "forms": (forms, 2)}  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--form", choices=FORMS, default=NOW, help="of the population model, for `forms`")
    options = parser.parse_args()
    run, seeds = parts[options.part]
    run(options.seeds or seeds, *([options.form] if options.part == "forms" else []))


if __name__ == "__main__":
    main()
