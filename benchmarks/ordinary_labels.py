"""Do labels of a few target rows ever do harm? Ordinary tabular classifiers, few held-out rows, shifts from none on.

    python benchmarks/ordinary_labels.py [--sets kept|designed|fresh] [--draws 4] [--sizes 50 200 1000]

Log-loss after correction, KL of the estimate and coverage of its 95 % intervals with 20 and 100 labels, of random rows
and of rows that `query` chose, beside the same default without labels. Needs the classifiers that `ordinary.py --make`
trains. What labels do beside few held-out rows was mended on simulated classes, not on any of these.
"""

from __future__ import annotations

import argparse
from collections import defaultdict

from _ordinary import DESIGNED_ON, FRESH, KEPT_ASIDE, draws, load
from _record import markdown, progress, store

import numpy as np  # isort: skip
import reprior as rp

SHIFTS, LABELS = ("none", "mild", "strong"), (20, 100)
HARM = 0.01  # nats of log-loss by which a single draw counts as harmed
FLOOR = 1e-8  # of a share in KL
SETS = {"kept": KEPT_ASIDE, "designed": DESIGNED_ON, "fresh": FRESH}


def judged(est: rp.PriorEstimate, rows: np.ndarray, y: np.ndarray, prior: np.ndarray | None) -> dict[str, float]:
    """Return log-loss, KL and coverage: of the mix of these rows, or without labels of the one they come from."""
    k = rows.shape[1]
    mix, fixed = np.bincount(y, minlength=k) / len(y), est.correct(rows)
    (lower, upper), meant = est.interval(), mix if est.n_labels else prior
    covered = np.nan if meant is None else float(((lower - 1e-9 <= meant) & (meant <= upper + 1e-9)).mean())
    loss = float(-np.log(np.maximum(fixed[np.arange(len(y)), y], 1e-12)).mean())
    return {"loss": loss, "kl": rp.metrics.kl(mix, est.prior, floor=FLOOR), "covered": covered}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", choices=SETS, default="kept")
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 200, 1000])
    options = parser.parse_args()
    found: dict[tuple, list[dict[str, float]]] = defaultdict(list)
    classifiers = list(load(SETS[options.sets]))
    for done, c in enumerate(classifiers, 1):
        for size in options.sizes:
            for seed in range(options.draws):
                for d in draws(c, size, seed, shifts=SHIFTS):
                    pipe = rp.pipeline(c.proba[d.heldout], c.y[d.heldout], classes=range(len(c.counts)))
                    rows, y, rng = c.proba[d.rows], c.y[d.rows], np.random.default_rng([seed, size])
                    none = pipe.estimate(rows, check=False)
                    before, k = judged(none, rows, y, d.prior), len(c.counts)
                    found[size, d.shift, 0, ""].append(before)
                    mix = np.bincount(y, minlength=k) / len(y)
                    for m in LABELS:
                        if m > len(y) // 2:
                            continue
                        for kind in ("random", "chosen"):
                            chosen = (rng.permutation(len(y))[:m], np.ones(m)) if kind == "random" else None
                            at, weights = chosen or rp.query(none, m, rng=rng)
                            labels, label_weights = np.full(len(y), -1), np.ones(len(y))
                            labels[at], label_weights[at] = y[at], weights
                            est = pipe.estimate(rows, labels=labels, label_weights=label_weights, check=False)
                            alone = (np.bincount(y[at], weights, minlength=k) + 0.5) / (weights.sum() + 0.5 * k)
                            found[size, d.shift, m, kind].append({
                                **judged(est, rows, y, d.prior), "alone": rp.metrics.kl(mix, alone, floor=FLOOR),
                                "without": before["kl"], "loss without": before["loss"],
                            })  # fmt: skip
        progress(done, len(classifiers), "classifiers")
    cells = []
    for (size, shift, m, kind), all_of in found.items():
        if not m:
            continue
        of = {name: np.array([one[name] for one in all_of]) for name in all_of[0]}
        change = of["loss"] - of["loss without"]
        cells.append({
            "held-out rows": size, "shift": shift, "labels": m, "rows": kind, "targets": len(change),
            "change of log-loss": float(change.mean()), "harmed": float((change > HARM).mean()),
            "kl": float(of["kl"].mean()), "kl without labels": float(of["without"].mean()),
            "kl of labels alone": float(of["alone"].mean()), "covered": float(np.nanmean(of["covered"])),
        })  # fmt: skip
    head = ["held-out rows", "shift", "labels", "log-loss against none", "draws harmed by > 0.01",
            "KL: without", "labels alone", "both", "covered"]  # fmt: skip
    lines = [
        [str(c["held-out rows"]), c["shift"], f"{c['labels']} {c['rows']}", f"{c['change of log-loss']:+.4f}",
         f"{100 * c['harmed']:.1f} %", f"{c['kl without labels']:.4f}", f"{c['kl of labels alone']:.4f}",
         f"{c['kl']:.4f}", f"{100 * c['covered']:.1f} %"]
        for c in cells
    ]  # fmt: skip
    text = (
        "# Labels beside ordinary classifiers\n\n"
        f"{len(classifiers)} classifiers of the {options.sets} sets, {options.draws} draws each. Change of log-loss, "
        "and draws harmed, against the same default without labels.\n\n" + markdown(head, lines)
    )
    store("ordinary_labels" + ("" if options.sets == "kept" else f"_{options.sets}"), {"cells": cells}, text)


if __name__ == "__main__":
    main()
