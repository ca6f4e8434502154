"""The default estimator beside the one it replaced, and what other values of its constants cost.

    python benchmarks/model.py [--parts designed kept fresh] [--draws 6]
    python benchmarks/model.py --constants            # on kept and fresh sets, where no constant was chosen
    PYTHONPATH=OLD/src python benchmarks/model.py --before    # once, with the replaced default (commit c7b1a7d)

Constants were chosen on the part "designed". Four families of draws. "tables": classifiers of `_ordinary.py` with 50 to
1,000 held-out samples and 2,000 target samples. "counts": the same targets with training counts and no held-out
samples. "rare": two classes of which one has 2 %, batches of 1, 5 and 20. "many": 77 to 200 classes (texts, images,
languages), 50 to 3,000 target samples. Both defaults see the same draws. Log-loss is compared with that of the same
calibrated probabilities without correction. `--constants` changes one constant at a time. Needs the classifiers that
`_ordinary.make()` trains.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _record import RESULTS, markdown, store  # isort: split

import numpy as np
from _ordinary import DESIGNED_ON, FRESH, KEPT_ASIDE, LATEST, draws, load

import reprior as rp
from reprior import datasets, simulate

PARTS = {"designed": DESIGNED_ON, "kept": KEPT_ASIDE, "fresh": (*FRESH, *LATEST)}
LARGE_SETS = {
    "designed": ("banking77", "cifar100-lt-0.1"), "kept": ("clinc150", "cifar100-lt-0.02", "cifar100-lt-0.05"),
    "fresh": ("lid176", "tiny-imagenet-lt-0.1"),
}  # fmt: skip
SIZES, SHIFTS = (50, 100, 200, 1000), ("none", "mild", "strong")
BATCHES, RARE, RARE_HELDOUT, REPEATS = (1, 5, 20), 0.02, 500, 15
HARM = 0.01  # nats of log-loss by which a draw counts as harmed
FLOOR = 1e-8  # of a share in KL
HU2025 = Path(__file__).parents[1] / "experiments" / "hu2025"
VALUES: dict[str, tuple[Any, ...]] = {  # other values of each constant
    "no_shift": (0.3, 0.8, 0.9),
    "even_shift": (0.1, 0.2, 0.7),
    "even_samples": (0.0, 5.0, 100.0),
    "sizes": ((1.0, 8.0, 64.0), (1.0, 3.0, 10.0, 30.0, 100.0), (0.3, 1.0, 4.0, 16.0, 64.0), (3.0, 12.0, 48.0)),
    "odd_size": (0.01, 0.1, 1.0),
    "odd_share": (0.01, 0.03, 0.3),
    "pseudo_count": (0.1, 1.0),
    "counts_worth": (10.0, 160.0),
    "max_samples": (200, 1000),
    "min_probability": (1e-2, 1e-4),
}


class Case(NamedTuple):
    """Calibrated target samples (n, K) with labels, the prior that they were drawn from if it is known, and what was
    fitted to held-out samples."""

    cell: tuple[str, ...]
    pipe: Any
    rows: np.ndarray
    y: np.ndarray
    prior: np.ndarray | None


def tables(part: str, n_draws: int) -> Iterator[Case]:
    """Yield draws of the classifiers on tabular sets."""
    for c in load(PARTS[part]):
        for size in SIZES:
            for seed in range(n_draws):
                drawn = draws(c, size, seed, shifts=SHIFTS)
                if drawn:
                    pipe = rp.pipeline(c.proba[drawn[0].heldout], c.y[drawn[0].heldout])
                for d in drawn:
                    rows = np.asarray(pipe.calibrate(c.proba[d.rows]))
                    yield Case(("tables", d.shift, f"{size} held-out"), pipe, rows, c.y[d.rows], d.prior)


def counts(part: str, n_draws: int) -> Iterator[Case]:
    """Yield the same targets for training counts alone."""
    for c in load(PARTS[part]):
        pipe = rp.pipeline(counts=c.counts)
        for seed in range(n_draws):
            for d in draws(c, 200, seed, shifts=SHIFTS):
                yield Case(("counts", d.shift, "counts alone"), pipe, c.proba[d.rows], c.y[d.rows], d.prior)


def rare(part: str, n_draws: int) -> Iterator[Case]:
    """Yield small batches of classifiers for two classes, one of which was made rare."""
    for c in load(PARTS[part]):
        if len(c.counts) != 2:
            continue
        own = np.flatnonzero(c.group == 0)
        few = int(np.bincount(c.y[own]).argmin())
        share = np.where(np.arange(2) == few, RARE, 1 - RARE)
        proba = rp.correct(c.proba, share / (c.counts / c.counts.sum()))
        for seed in range(n_draws):
            rng = np.random.default_rng([seed, *map(ord, c.name)])
            pools = [rng.permutation(own[c.y[own] == j]) for j in range(2)]
            n_held = np.rint(share * RARE_HELDOUT).astype(int)
            if any(len(pool) < 1.5 * n for pool, n in zip(pools, n_held, strict=True)):
                continue
            held = np.concatenate([pool[:n] for pool, n in zip(pools, n_held, strict=True)])
            pipe = rp.pipeline(proba[held], c.y[held])
            for n in BATCHES:
                for _ in range(REPEATS):
                    y = rng.binomial(1, share[1], n)
                    at = np.array([rng.choice(pools[j][n_held[j] :]) for j in y])
                    yield Case(("rare", "none", f"batch of {n}"), pipe, np.asarray(pipe.calibrate(proba[at])), y, share)


class Outputs(NamedTuple):
    """Training counts (K,), and probabilities (n, K) and labels of held-out samples and of a pool for targets."""

    counts: np.ndarray
    heldout: np.ndarray
    heldout_y: np.ndarray
    pool: np.ndarray
    pool_y: np.ndarray


def outputs(name: str, seed: int) -> Outputs:
    """Return predicted probabilities for many classes by name. Held-out samples are drawn again for each seed, as many
    of each class as a random sample of their number has."""
    if name in datasets.NAMES:
        d = datasets.load(name)
        heldout, heldout_y, pool, pool_y, counts = d.heldout_proba, d.heldout_y, d.pool_proba, d.pool_y, d.counts
    else:
        sys.path.insert(0, str(HU2025))
        import models

        o = models.load(name)
        heldout, heldout_y, pool, pool_y, counts = o.held_out, o.y_held_out, o.test, o.y_test, o.counts
    k, n, rng = pool.shape[1], len(heldout_y), np.random.default_rng([7, seed])
    of_heldout = np.bincount(heldout_y, minlength=k)
    proba, y = np.concatenate([heldout, pool]), np.concatenate([heldout_y, pool_y])
    wanted = rng.multinomial(n, of_heldout / n)
    held = np.concatenate([rng.permutation(np.flatnonzero(y == j))[: wanted[j]] for j in range(k)])
    rest = np.setdiff1d(np.arange(len(y)), held)
    counts = of_heldout if counts is None else np.asarray(counts, float)
    return Outputs(counts, proba[held], y[held], proba[rest], y[rest])


def many(part: str, n_draws: int) -> Iterator[Case]:
    """Yield targets of many classes."""
    for name in LARGE_SETS[part]:
        for seed in range(n_draws):
            o = outputs(name, seed)
            present = np.bincount(o.pool_y, minlength=len(o.counts)) > 0
            k, counts, rng = len(o.counts), None if name == "lid176" else o.counts, np.random.default_rng([31, seed])
            pipe, base = rp.pipeline(o.heldout, o.heldout_y, counts=counts), present / present.sum()
            source = np.bincount(o.heldout_y, minlength=k) / len(o.heldout_y) if counts is None else o.counts
            tail = simulate.shuffled_long_tail(k, 0.02, rng=rng) * present
            priors = {
                "none": source * present, "shuffled .02": tail, "Dirichlet 1": rng.dirichlet(np.ones(k)) * present,
                "uniform": base,
                "30 % absent": base * (rng.random(k) > 0.3), "80 % absent": base * (rng.random(k) > 0.8),
                "one class 50 %": base + (np.arange(k) == rng.choice(np.flatnonzero(present))),
            }  # fmt: skip
            for shift, weights in priors.items():
                prior = weights / weights.sum()
                for n in (50, 200, 3000) if shift == "Dirichlet 1" else (3000,):
                    sample = simulate.resample(o.pool, o.pool_y, prior, n=n, rng=rng, exact=False)
                    rows = np.asarray(pipe.calibrate(sample.proba))
                    yield Case(("many", shift, f"{n} samples"), pipe, rows, sample.y, prior)


FAMILIES = {"tables": tables, "counts": counts, "rare": rare, "many": many}


def losses(rows: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return log-loss and accuracy of probabilities (n, K)."""
    own = rows[np.arange(len(y)), y]
    return np.array([-np.log(np.maximum(own, 1e-12)).mean(), (rows.argmax(axis=1) == y).mean()])


def measure(case: Case, **settings: Any) -> dict[str, float]:
    """Return what the default changes in one draw. `settings` are constants with other values."""
    options = dict(case.pipe.options)
    if settings:
        from reprior.model.settings import Settings

        options["settings"] = Settings(**settings)
    start = time.process_time()
    est = rp.estimate(case.pipe.source, case.rows, case.pipe.method, **options)
    seconds = time.process_time() - start
    shares = np.asarray(getattr(est, "shares", est.prior))
    true = np.bincount(case.y, minlength=len(shares)) / len(case.y)
    change = losses(np.asarray(est.correct(case.rows)), case.y) - losses(case.rows, case.y)
    out = {
        "log_loss": change[0], "harmed": float(change[0] > HARM), "accuracy": 100 * change[1],
        "l1": np.abs(shares - true).sum(), "l1_mean": np.abs(case.rows.mean(axis=0) - true).sum(),
        "kl_shares": rp.metrics.kl(true, shares, floor=FLOOR), "ms": 1e3 * seconds,
    }  # fmt: skip
    if hasattr(est, "shares"):
        out["covers_shares"] = covered(est.interval(0.95, of="shares"), true)
    if case.prior is not None:
        out["kl_prior"] = rp.metrics.kl(case.prior, est.prior, floor=FLOOR)
        of = {"of": "prior"} if hasattr(est, "shares") else {}
        out["covers_prior"] = covered(est.interval(0.95, **of), case.prior)
    return {name: float(value) for name, value in out.items()}


def covered(interval: Any, truth: np.ndarray) -> float:
    """Return the percentage of classes whose interval contains the truth."""
    lower, upper = interval
    return float(100 * ((lower - 1e-12 <= truth) & (truth <= upper + 1e-12)).mean())


Cells = dict[str, dict[str, float]]


def means(records: Iterable[tuple[str, dict[str, float]]]) -> Cells:
    """Return the mean of every figure by cell."""
    by_cell: dict[str, list[dict[str, float]]] = defaultdict(list)
    for cell, record in records:
        by_cell[cell].append(record)
    out: Cells = {}
    for cell, some in by_cell.items():
        names = sorted({name for r in some for name in r})
        out[cell] = {n: round(float(np.mean([r[n] for r in some if n in r])), 5) for n in names}
        out[cell]["draws"] = len(some)
    return out


def cases(part: str, n_draws: int, families: tuple[str, ...]) -> Iterator[Case]:
    """Yield all draws of a part."""
    for family in families:
        yield from FAMILIES[family](part, n_draws)


def run(parts: list[str], n_draws: int, families: tuple[str, ...], settings: dict[str, Any] | None = None) -> Cells:
    """Return the figures of every cell."""
    records = []
    for part in parts:
        for done, case in enumerate(cases(part, n_draws, families), 1):
            records.append((", ".join((part, *case.cell)), measure(case, **(settings or {}))))
            if done % 1000 == 0:
                print(part, *case.cell, done, file=sys.stderr, flush=True)
    return means(records)


def sensitivity(n_draws: int) -> tuple[dict[str, dict[str, float]], str]:
    """Return what each constant costs at other values, and a table of it."""
    variants: list[tuple[str, dict[str, Any]]] = [("as chosen", {})]
    variants += [(f"{name} = {value}", {name: value}) for name, values in VALUES.items() for value in values]
    records: dict[str, list[tuple[str, dict[str, float]]]] = defaultdict(list)
    for part in ("kept", "fresh"):
        for case in cases(part, n_draws, tuple(FAMILIES)):
            family, shift, size = case.cell
            if family == "tables" and size not in ("100 held-out", "1000 held-out"):
                continue
            cell = f"{family} {shift}" if family in ("tables", "counts") else family
            for name, settings in variants:
                records[name].append((cell, measure(case, **settings)))
    results = {name: means(some) for name, some in records.items()}
    rows, figures = [], {}
    for name, cells_of in results.items():
        get = {
            **{f"{f} {s}": cells_of[f"{f} {s}"]["log_loss"] for f in ("tables", "counts") for s in SHIFTS},
            "harmed, none": 100 * cells_of["tables none"]["harmed"], "rare": cells_of["rare"]["log_loss"],
            "many": cells_of["many"]["log_loss"], "KL of prior, many": cells_of["many"]["kl_prior"],
            "shares covered, strong": cells_of["tables strong"]["covers_shares"], "ms": cells_of["tables strong"]["ms"],
        }  # fmt: skip
        figures[name] = {key: round(value, 5) for key, value in get.items()}
        form = {"harmed, none": "{:.1f} %", "shares covered, strong": "{:.1f} %", "ms": "{:.1f}",
                "KL of prior, many": "{:.4f}"}  # fmt: skip
        rows.append([name, *(form.get(key, "{:+.4f}").format(value) for key, value in get.items())])
    return figures, markdown(["constant", *next(iter(figures.values()))], rows)


def table(now: Cells, before: Cells) -> str:
    """Return a row for each cell: now / before."""
    rows = []
    for cell, new in now.items():
        old = before.get(cell, {})

        def both(name: str, form: str, new: dict[str, float] = new, old: dict[str, float] = old) -> str:
            return " / ".join(form.format(x[name]) if name in x else "–" for x in (new, old))

        rows.append([
            cell, str(new["draws"]), both("log_loss", "{:+.4f}"),
            f"{new['harmed']:.1%} / {old.get('harmed', np.nan):.1%}", both("accuracy", "{:+.2f}"), both("l1", "{:.4f}"),
            f"{new['l1_mean']:.4f}", both("kl_prior", "{:.4f}"), both("kl_shares", "{:.4f}"),
            f"{new.get('covers_shares', np.nan):.1f}", both("covers_prior", "{:.1f}"), both("ms", "{:.1f}"),
        ])  # fmt: skip
    head = ["part, family, shift, size", "draws", "log-loss", "harmed", "accuracy, points", "L1 of shares",
            "L1 of mean prediction", "KL of prior", "KL of shares", "shares covered, %", "prior covered, %",
            "ms"]  # fmt: skip
    return markdown(head, rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--families", nargs="+", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--draws", type=int, default=6)
    parser.add_argument("--before", action="store_true", help="store the figures of the replaced default")
    parser.add_argument("--constants", action="store_true", help="store what each constant costs at other values")
    options = parser.parse_args()
    warnings.simplefilter("ignore", UserWarning)  # of classifiers that do not know their classes: they are in use
    if options.constants:
        figures, rows = sensitivity(1)
        head = (
            "# What other values of a constant cost\n\nOn kept and fresh sets, where none was chosen. "
            "One constant is changed at a time. Change of log-loss unless stated: below 0 is a gain. Tables with 100 "
            "and 1,000 held-out samples.\n\n"
        )
        store("model_constants", {"constants": figures}, head + rows)
        return
    stored = RESULTS / "model_before.json"
    before: Cells = json.loads(stored.read_text(encoding="utf-8"))["cells"] if stored.exists() else {}
    figures_of = run(options.parts, options.draws, tuple(options.families))
    if options.before:
        store("model_before", {"cells": before | figures_of}, table(before | figures_of, {}))
        return
    head = (
        "# The default beside the one it replaced\n\nNow / before (commit c7b1a7d), on the same draws.\n\n"
    )
    store("model", {"cells": figures_of}, head + table(figures_of, before))


if __name__ == "__main__":
    main()
