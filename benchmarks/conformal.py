"""How often prediction sets at 90 % hold the true class under shift, and how large they are.

    python benchmarks/conformal.py [--seeds 30] [--n 2000] [--ordinary 4]

Held-out rows are drawn anew for each seed, from all rows that the classifier was not trained on, with the class mix
and number of those shipped: the promise is one over held-out rows and new rows together. The rest is the pool of
targets. "plain" is split conformal prediction that knows of no shift, on the same calibrated outputs. "true mix" has
weights that are not estimated. `--ordinary` adds classifiers of the sets kept aside, as in ordinary.py, with so many
draws each. The share of the expected loss that is charged (`CHARGED`) was looked at on seeds 0 to 11 of these sets.
"""

import argparse

from _record import markdown, progress, store  # isort: split

import numpy as np
from _outputs import SHIFTS, networks, redrawn, shipped, targets

import reprior as rp
from reprior.estimates.sets import scores_of

LEVEL, FIRST = 0.9, 100  # seeds begin here: others were looked at before
KINDS = ("estimated mix", "by class", "true mix", "plain")


def measured(pipe, proba, y, truth):
    """Return coverage, mean size and share of empty sets of each kind."""
    source, rows, each = pipe.source, pipe.calibrate(proba), np.arange(len(y))
    found = pipe.estimate(proba, check=False)
    held, held_y = source.heldout
    own = np.sort(held[np.arange(len(held_y)), held_y])
    exact = scores_of(source, pipe.calibrator, truth, None).cutoffs(LEVEL, by_class=False)
    sets = {
        "estimated mix": found.prediction_sets(proba, LEVEL),
        "by class": found.prediction_sets(proba, LEVEL, by_class=True),
        "true mix": rp.correct(rows, truth / source.prior) >= exact,
        "plain": rows >= own[int((1 - LEVEL) * (len(own) + 1)) - 1],
    }
    return {kind: (s[each, y].mean(), s.sum(axis=1).mean(), (~s.any(axis=1)).mean()) for kind, s in sets.items()}


def ordinary(n_draws):
    from _ordinary import KEPT_ASIDE, draws, load

    cells = {}
    for c in load(KEPT_ASIDE):
        for size in (200, 1000):
            for seed in range(n_draws):
                for d in draws(c, size, seed, shifts=("none", "mild", "strong")):
                    pipe = rp.pipeline(c.proba[d.heldout], c.y[d.heldout])
                    y, k = c.y[d.rows], c.proba.shape[1]
                    truth = np.bincount(y, minlength=k) / len(y)
                    for kind, x in measured(pipe, c.proba[d.rows], y, truth).items():
                        cells.setdefault((f"ordinary classifiers, {size} held out", d.shift, kind), []).append(x)
    return cells


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=30)
    parser.add_argument("--n", type=int, default=2000)
    parser.add_argument("--ordinary", type=int, default=0)
    args = parser.parse_args()
    cells, sets = {}, [*shipped(), *networks(("0.2", "0.1", "0.05", "0.02"))]
    for done, o in enumerate(sets):
        progress(done, len(sets), o.name)
        for seed in range(FIRST, FIRST + args.seeds):
            d = redrawn(o, seed)
            pipe = rp.pipeline(d.heldout, d.heldout_y, counts=d.counts)
            for shift, t in targets(d, seeds=1, n=args.n, draw=seed):
                for kind, x in measured(pipe, t.proba, t.y, t.prior).items():
                    cells.setdefault((o.name, shift, kind), []).append(x)
    cells |= ordinary(args.ordinary) if args.ordinary else {}
    figures, rows = {}, []
    for name, shift in dict.fromkeys(cell[:2] for cell in cells):
        row = [name, shift]
        for kind in KINDS:
            x = np.array(cells[name, shift, kind])
            figures[f"{name}, {shift}, {kind}"] = {
                "coverage": float(x[:, 0].mean()), "error": float(x[:, 0].std() / np.sqrt(len(x))),
                "size": float(x[:, 1].mean()), "empty": float(x[:, 2].mean()), "draws": len(x),
            }  # fmt: skip
            row.append(f"{x[:, 0].mean():.1%} ± {x[:, 0].std() / np.sqrt(len(x)):.1%} ({x[:, 1].mean():.2f})")
        rows.append(row)
    head = ["classifier", "shift", *(f"{kind}: covered (mean size)" for kind in KINDS)]
    store("conformal", {"level": LEVEL, "n": args.n, "shifts": SHIFTS, "cells": figures}, markdown(head, rows))


if __name__ == "__main__":
    main()
