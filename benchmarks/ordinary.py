"""Does the default do harm? Ordinary tabular classifiers, few held-out rows, shifts from none to strong, real months.

    python benchmarks/ordinary.py [--make] [--sets kept|designed|fresh|all] [--draws 20] [--sizes 100 200 1000 4000]
    python benchmarks/ordinary.py --by-set

Log-loss, accuracy and KL after correction against the same calibrated outputs left alone, without training counts, with
them, and from counts alone; coverage of 95 % intervals; what calibration alone changes. `--make` first trains the
classifiers (see `_ordinary.py`). The default was designed on one part of the sets; what is stored is of the others.
Those kept aside have been looked at many times since, so nine more, "fresh", were measured once the design was fixed.
`--by-set` makes a table of each set from what is stored. Makes a table of docs/which-method.md.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from typing import Any

from _ordinary import DESIGNED_ON, FRESH, KEPT_ASIDE, SHIFTS, Classifier, draws, load, make, models, months
from _record import RESULTS, markdown, progress, store

import numpy as np  # isort: skip
import reprior as rp
from reprior._check import REJECTED
from reprior.assess.label_shift import label_shift_p_value
from reprior.estimates.verdict import AMPLIFIED, MIN_MOVE, amplification

BEGIN, END = "<!-- made by benchmarks/ordinary.py -->", "<!-- to there -->"
HARM = 0.01  # nats of log-loss by which a single draw counts as harmed
FAILED = "shuttle-boosting"  # nine tenths of its outputs are the same
MODES = ("held-out rows", "with counts", "counts alone")


def losses(rows: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return log-loss and error rate of outputs (n, K)."""
    own = rows[np.arange(len(y)), y]
    return float(-np.log(np.maximum(own, 1e-12)).mean()), float((rows.argmax(axis=1) != y).mean())


def held(interval: Any, prior: np.ndarray | None) -> tuple[float, float]:
    """Return how many of the shares an interval holds, if they are known, and how wide it is."""
    lower, upper = interval
    covered = np.nan if prior is None else float(((lower <= prior) & (prior <= upper)).mean())
    return covered, float((upper - lower).mean())


def measure(pipe: Any, rows: np.ndarray, y: np.ndarray, prior: np.ndarray | None, *, before: bool) -> dict[str, float]:
    """Return what the default changes on a target of calibrated outputs `rows` (n, K), in the order of nats, and what
    its interval holds of the mix `prior` (K,) that they were drawn from, if that is known."""
    estimate = rp.estimate(pipe.source, rows, pipe.method, **pipe.options)
    lower, upper = estimate.interval()
    covered, width = held((lower, upper), prior)
    true, alone = np.bincount(y, minlength=rows.shape[1]) / len(y), losses(rows, y)
    after = losses(np.asarray(estimate.correct(rows)), y)
    out = {
        "log_loss": after[0] - alone[0], "error": after[1] - alone[1], "kl": float(rp.metrics.kl(true, estimate.prior)),
        "covered": covered, "width": width,
        "inside": float(((lower <= estimate.prior) & (estimate.prior <= upper)).all()),
    }  # fmt: skip
    if before:  # what the default was below 20 classes, and where that starts, whatever the rows say
        out["fmapls"] = losses(np.asarray(rp.fmapls(pipe.source, rows).correct(rows)), y)[0] - alone[0]
        out["uniform"] = losses(rp.correct(rows, 1 / pipe.source.prior), y)[0] - alone[0]
        out["rows_covered"], out["rows_width"] = held(rp.mlls(pipe.source, rows).interval(), prior)
        out["left"] = float(np.abs(estimate.prior - pipe.source.prior).sum() < 2 * MIN_MOVE)
    return out


def study(c: Classifier, sizes: list[int], seeds: int) -> list[dict[str, Any]]:
    """Return a record of each draw of one classifier."""
    out = []
    for size in sizes:
        for seed in range(seeds):
            drawn = draws(c, size, seed)
            if not drawn:
                continue
            held = c.proba[drawn[0].heldout], c.y[drawn[0].heldout]
            pipes = {MODES[0]: rp.pipeline(*held), MODES[1]: rp.pipeline(*held, counts=c.counts)}
            if size == 200:
                pipes[MODES[2]] = rp.pipeline(counts=c.counts)
            for d in drawn:
                for mode, pipe in pipes.items():
                    rows = np.asarray(pipe.calibrate(c.proba[d.rows]))
                    found = measure(pipe, rows, c.y[d.rows], d.prior, before=mode == MODES[0])
                    if mode == MODES[0]:
                        found["calibration"] = losses(rows, c.y[d.rows])[0] - losses(c.proba[d.rows], c.y[d.rows])[0]
                    out.append({"classifier": c.name, "size": size, "shift": d.shift, "mode": mode, **found})
    return out


def in_months(c: Classifier, sizes: list[int]) -> list[dict[str, Any]]:
    """Return a record of each later month: what the default changes, and the p-value of label shift."""
    out = []
    for size in sizes:
        drawn = months(c, size, 0)
        for d in drawn:
            pipe = rp.pipeline(c.proba[d.heldout], c.y[d.heldout])
            rows = np.asarray(pipe.calibrate(c.proba[d.rows]))
            found = measure(pipe, rows, c.y[d.rows], d.prior, before=False)
            estimate = rp.estimate(pipe.source, rows, pipe.method, **pipe.options)
            assert pipe.source.heldout is not None
            open_to = estimate.posterior.shares.variance
            p = label_shift_p_value(rows, *pipe.source.heldout, estimate.prior, pipe.source.prior, open_to)
            moved = amplification(estimate.prior - pipe.source.prior, rows.mean(axis=0) - pipe.source.prior)
            out.append({"classifier": c.name, "size": size, "shift": d.shift, "p": p, "stretch": moved, **found})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--make", action="store_true", help="train the classifiers first")
    parser.add_argument("--sets", choices=["kept", "designed", "fresh", "all"], default="kept")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 200, 1000, 4000])
    parser.add_argument("--by-set", action="store_true", help="only make a table of each set from what is stored")
    options = parser.parse_args()
    if options.by_set:
        by_set()
        return
    if options.make:
        make()
    parts_of = {"kept": KEPT_ASIDE, "designed": DESIGNED_ON, "fresh": FRESH}
    sets = parts_of.get(options.sets, (*DESIGNED_ON, *KEPT_ASIDE, *FRESH))
    classifiers = list(load(sets))
    records, later = [], []
    for done, c in enumerate(classifiers, 1):
        records += study(c, options.sizes, options.draws)
        later += in_months(c, [s for s in (200, 1000) if s in options.sizes])
        progress(done, len(classifiers), c.name)
    parts = [f"## {mode.capitalize()}\n\n" + table([r for r in records if r["mode"] == mode]) for mode in MODES]
    parts.append("## Intervals\n\n" + interval_table([r for r in records if r["mode"] == MODES[0]]))
    parts.append("## Where the rows prove no shift\n\n" + left_table([r for r in records if r["mode"] == MODES[0]]))
    parts.append("## Calibration alone, no shift: against raw outputs\n\n" + calibration_table(records))
    if later:
        head = "## Real months: flights of January to March, deployed on each later month\n\n"
        parts.append(head + month_table(later))
    head = (
        "# Ordinary classifiers: does the default do harm?\n\n"
        f"{len(classifiers)} classifiers on the sets {', '.join(sets)} ({options.sets}), {options.draws} draws of "
        "held-out rows and targets of up to 2,000 rows for each cell, no row twice. Change of log-loss (nats) against "
        f"the same calibrated outputs left alone; harmed: worse by more than {HARM}."
    )
    name = "ordinary" if options.sets == "kept" else f"ordinary_{options.sets}"
    store(name, {"cells": cells(records), "months": later}, "\n\n".join([head, *parts]))
    if name == "ordinary":
        page = RESULTS.parents[1] / "docs" / "which-method.md"
        before, rest = page.read_text(encoding="utf-8").split(BEGIN)
        made = table([r for r in records if r["mode"] == MODES[0]])
        page.write_text(f"{before}{BEGIN}\n{made}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def cells(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mean of each classifier × size × shift × mode."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = defaultdict(list)
    for r in records:
        groups[r["mode"], r["classifier"], r["size"], r["shift"]].append(r)
    names = ("log_loss", "error", "kl", "covered", "width", "inside", "rows_covered", "rows_width", "fmapls",
             "uniform", "left", "calibration")  # fmt: skip
    return [
        {"mode": m, "classifier": c, "size": s, "shift": d, "draws": len(rs),
         "harmed": round(float(np.mean([r["log_loss"] > HARM for r in rs])), 3)}
        | {n: mean_of([r[n] for r in rs]) for n in names if n in rs[0]}
        for (m, c, s, d), rs in groups.items()
    ]  # fmt: skip


def mean_of(values: list[float]) -> float | None:
    """Return the mean of those that are known, or None."""
    known = [x for x in values if not np.isnan(x)]
    return round(float(np.mean(known)), 5) if known else None


def table(records: list[dict[str, Any]]) -> str:
    rows = []
    for shift in SHIFTS:
        for size in sorted({r["size"] for r in records}):
            some = [r for r in records if r["shift"] == shift and r["size"] == size]
            if not some:
                continue
            loss = np.array([r["log_loss"] for r in some])
            row = [shift, str(size), str(len(some)), f"{loss.mean():+.4f}", f"{(loss > HARM).mean():.1%}",
                   f"{-100 * np.mean([r['error'] for r in some]):+.2f}", f"{np.mean([r['kl'] for r in some]):.4f}",
                   f"{np.nanmean([r['covered'] for r in some]):.1%}",
                   f"{np.mean([r['inside'] for r in some]):.0%}"]  # fmt: skip
            if "fmapls" in some[0]:
                old = np.array([r["fmapls"] for r in some])
                row += [f"{old.mean():+.4f}", f"{(old > HARM).mean():.1%}"]
            rows.append(row)
    head = ["shift", "held-out rows", "draws", "log-loss", "harmed", "accuracy, points", "KL", "covered", "inside"]
    return markdown(head + (["FMAPLS", "harmed"] if "fmapls" in records[0] else []), rows)


def interval_table(records: list[dict[str, Any]]) -> str:
    """Return what 95 % intervals hold, and how wide they are, beside those that rows give by themselves."""
    rows = []
    for shift in SHIFTS:
        for size in sorted({r["size"] for r in records}):
            some = [r for r in records if r["shift"] == shift and r["size"] == size]
            if some:
                found = {n: float(np.nanmean([r[n] for r in some])) for n in ("covered", "rows_covered")}
                wide, alone = (float(np.mean([r[n] for r in some])) for n in ("width", "rows_width"))
                rows.append([shift, str(size), f"{found['covered']:.1%}", f"{wide:.3f}",
                             f"{found['rows_covered']:.1%}", f"{alone:.3f}", f"{wide / alone:.2f}"])  # fmt: skip
    head = ["shift", "held-out rows", "covered", "width", "rows alone", "width", "ratio of widths"]
    return (
        "Shares of the mix that targets were drawn from, where no class ran out. Rows alone: the interval of `mlls`, "
        "which knows no hypothesis that shares are near the source's.\n\n" + markdown(head, rows)
    )


def left_table(records: list[dict[str, Any]]) -> str:
    """Return what is gained where the default moves shares and where it leaves them, beside FMAPLS and a blind bet."""
    rows = []
    for shift in ("strong", "one class"):
        for size in sorted({r["size"] for r in records}):
            for left, name in ((0.0, "followed"), (1.0, "left alone")):
                some = [r for r in records if r["shift"] == shift and r["size"] == size and r["left"] == left]
                if some:
                    told = [f"{np.mean([r[n] for r in some]):+.4f}" for n in ("log_loss", "fmapls", "uniform")]
                    harmed = [f"{np.mean([r[n] > HARM for r in some]):.1%}" for n in ("log_loss", "fmapls", "uniform")]
                    both = [x for pair in zip(told, harmed, strict=True) for x in pair]
                    rows.append([shift, str(size), name, str(len(some)), *both])
    head = ["shift", "held-out rows", "the default", "draws", "log-loss", "harmed", "FMAPLS", "harmed",
            "uniform mix, rows not looked at", "harmed"]  # fmt: skip
    return ("FMAPLS starts at the uniform prior, around which these shifts are drawn. Where the rows do not prove a "
            "shift, its gain is that of the start.\n\n" + markdown(head, rows))  # fmt: skip


def by_set() -> None:
    """Store what is gained and lost on each set, made of the stored cells: where a class is rare, a shift is worth many
    times as much."""
    stored = json.loads((RESULTS / "ordinary.json").read_text(encoding="utf-8"))["cells"]
    means = [c for c in stored if c["mode"] == MODES[0]]
    shares = {c.name: c.counts / c.counts.sum() for c in load(KEPT_ASIDE)}
    rare = {name for name, x in shares.items() if len(x) * x.min() < 0.5}
    groups = {s: {name for name in shares if name.split("-")[0] == s} for s in sorted(KEPT_ASIDE)} | {
        "those with a class of less than half of an even share": rare, "the others": set(shares) - rare,
        f"all but {FAILED}": set(shares) - {FAILED}, "all": set(shares),
    }  # fmt: skip
    rows, figures = [], []
    for size in sorted({c["size"] for c in means}):
        for name, own_names in groups.items():
            some = [c for c in means if c["size"] == size and c["classifier"] in own_names]
            if not some:
                continue
            found: dict[str, Any] = {"size": size, "sets": name}
            for shift in SHIFTS[:3]:
                own = [c for c in some if c["shift"] == shift]
                found[shift] = {n: float(np.mean([c[n] for c in own])) for n in ("log_loss", "harmed", "fmapls")}
            figures.append(found)
            share, strong = shares.get(f"{name}-logistic"), found["strong"]
            rows.append([
                str(size), name, *(("", "") if share is None else (str(len(share)), f"{share.min():.1%}")),
                *(x for s in SHIFTS[:3] for x in (f"{found[s]['log_loss']:+.4f}", f"{found[s]['harmed']:.1%}")),
                f"{strong['fmapls']:+.4f}", f"{strong['log_loss'] / strong['fmapls']:.0%}",
            ])  # fmt: skip
    head = ["held-out rows", "sets", "classes", "rarest", "none", "harmed", "mild", "harmed", "strong", "harmed",
            "strong, FMAPLS", "of its gain"]  # fmt: skip
    about = (
        "# Ordinary classifiers, by set\n\nMade of `ordinary.json`: held-out rows, no counts. Change of log-loss "
        f"against the same calibrated outputs left alone; harmed: worse by more than {HARM}."
    )
    store("ordinary_sets", {"sets": figures}, f"{about}\n\n{markdown(head, rows)}")


def calibration_table(records: list[dict[str, Any]]) -> str:
    """Return what calibrating on so many held-out rows changes, by the kind of classifier."""
    plain = [r for r in records if r["shift"] == "none" and "calibration" in r]
    kinds = {name: [r for r in plain if r["classifier"].endswith(name)] for name in models()} | {"all": plain}
    rows = []
    for size in sorted({r["size"] for r in plain}):
        for name, some in kinds.items():
            change = np.array([r["calibration"] for r in some if r["size"] == size])
            if len(change):
                rows.append([str(size), name, str(len(change)), f"{change.mean():+.4f}", f"{np.median(change):+.4f}",
                             f"{(change > HARM).mean():.1%}", f"{change.max():+.4f}"])  # fmt: skip
    return markdown(["held-out rows", "classifier", "draws", "mean", "median", "worse by > 0.01", "worst"], rows)


def month_table(records: list[dict[str, Any]]) -> str:
    rows = []
    for size in sorted({r["size"] for r in records}):
        for name in sorted({r["classifier"] for r in records}):
            some = [r for r in records if r["size"] == size and r["classifier"] == name]
            silent = [r["log_loss"] for r in some if r["p"] >= REJECTED and r["stretch"] < AMPLIFIED]
            rows.append([name, str(size), f"{np.mean([r['log_loss'] for r in some]):+.4f}",
                         f"{max(r['log_loss'] for r in some):+.4f}",
                         f"{sum(r['log_loss'] > HARM for r in some)} of {len(some)}",
                         f"{sum(r['p'] < REJECTED for r in some)}", f"{len(some) - len(silent)}",
                         f"{max(silent):+.4f}" if silent else "none"])  # fmt: skip
    head = ["classifier", "held-out rows", "mean change", "worst month", "harmed", "refused (p < 0.001)",
            "refused or warned of", "worst month without a word"]  # fmt: skip
    return markdown(head, rows)


if __name__ == "__main__":
    main()
