"""What `pipe.stream()` does to ordinary classifiers: log-loss of predicting first, against the outputs left alone.

    python benchmarks/ordinary_streams.py [--sets kept-aside] [--draws 20] [--first 0] [--jumps]

The classifiers, held-out rows and targets are those of ordinary.py, up to 2,000 rows a stream. Each row is corrected by
the prior from before it, then learned. Two tables show the gain under a strong shift by rows of the stream and by set.
`--jumps` adds falls back to the source prior on 240 orders of the same rows of ten confused
classes.
Constants were chosen on the sets "designed-on" and on draws 100 to 119 of the "fresh" ones. The draws of the sets kept
aside that are stored were looked at in between, so `--first 300` takes others, of either part. So were those, before
streams let all rows count alike. The sets "latest" were put by before that, and draws from 600 on looked at once after.
"""

import argparse

from _record import markdown, progress, store  # isort: split

import numpy as np
from _ordinary import DESIGNED_ON, FRESH, KEPT_ASIDE, LATEST, draws, load

import reprior as rp
from reprior.estimates.verdict import MIN_MOVE

PARTS_OF = {"kept-aside": KEPT_ASIDE, "designed-on": DESIGNED_ON, "fresh": FRESH, "latest": LATEST}
SHIFTS = ("none", "mild", "strong")
METHODS = {
    "online-ebls": ("online-ebls", {}),
    "online-fmapls": ("online-fmapls", {}),
}
HARM = 0.01  # nats a row
PARTS = ((0, 100), (100, 300), (300, 1000), (1000, 2000))  # rows of a stream, first and end
IN_TURN = ("online-ebls", "online-fmapls", "pipe.estimate, in hindsight", "uniform mix, rows not looked at")
FALL, WITHIN, SETTLED = 0.14, 50, 300  # of total variation towards the source prior, within so many rows, after so many


def path_of(stream, rows):
    """Return the prior (n, K) from before each of the calibrated rows (n, K)."""
    method, state = stream.state.method, stream.state.values.copy()
    out = np.empty((len(rows), rows.shape[1]))
    for i in range(len(rows)):
        out[i] = method.prior(state)
        method.learn(state, rows[i : i + 1])
    return out


def change(prior, source, rows, y):
    """Return by how much putting calibrated rows (n, K) to `prior`, (K,) or (n, K), changes the log-loss of each."""
    joint, each = rows * prior / source.prior, np.arange(len(y))
    corrected = joint[each, y] / joint.sum(axis=1)
    return np.log(np.maximum(rows[each, y], 1e-300)) - np.log(np.maximum(corrected, 1e-300))


def study(sets, n_draws, sizes, first):
    """Return means of cells, and of strong shifts each stream's changes by row."""
    cells, strong, classifiers = {}, [], list(load(sets))
    for done, c in enumerate(classifiers):
        progress(done, len(classifiers), c.name)
        for size in sizes:
            for seed in range(first, first + n_draws):
                for counts in (None, c.counts) if seed - first < (n_draws + 3) // 4 else (None,):
                    drawn = draws(c, size, seed, shifts=SHIFTS)
                    if not drawn:
                        continue
                    held = drawn[0].heldout
                    pipe = rp.pipeline(c.proba[held], c.y[held], counts=counts)
                    for d in drawn:
                        rows = np.ascontiguousarray(pipe.calibrate(c.proba[d.rows]), np.float64)
                        source, y, found = pipe.source, c.y[d.rows], {}
                        for label, (method, options) in METHODS.items():
                            if counts is not None:
                                if label != "online-ebls":
                                    continue
                                label += ", with counts"
                            path = path_of(pipe.stream(method, **options), rows)
                            found[label] = change(path, source, rows, y)
                            cells.setdefault((d.shift, size, label), []).append(found[label].mean())
                            if label == IN_TURN[0]:
                                left = np.abs(path[-1] - source.prior).sum() < 2 * MIN_MOVE
                        if d.shift == "strong" and counts is None:
                            batch = rp.estimate(source, rows, pipe.method, **pipe.options).prior
                            found[IN_TURN[2]] = change(batch, source, rows, y)
                            found[IN_TURN[3]] = change(1 / rows.shape[1], source, rows, y)
                            strong.append({"set": c.name.split("-")[0], "size": size, "left": left, **found})
    return strong, {
        f"{shift}, {size}, {label}": {
            "draws": len(x), "mean": float(np.mean(x)), "harmed": float(np.mean(np.array(x) > HARM)),
            "error": float(np.std(x) / np.sqrt(len(x))),
        }
        for (shift, size, label), x in cells.items()
    }  # fmt: skip


def by_row(strong, sizes):
    """Return the mean change in each part of the streams, a row, and what the part adds to the mean of all streams."""
    out = {}
    for size in sizes:
        some = [r for r in strong if r["size"] == size]
        for first, end in PARTS:
            there = [r for r in some if len(r[IN_TURN[0]]) > first]
            out[f"{size}, {first + 1} to {end}"] = {"streams": len(there)} | {
                label: {"mean": float(np.mean([r[label][first:end].mean() for r in there])),
                        "adds": float(np.sum([r[label][first:end].sum() / len(r[label]) for r in there]) / len(some))}
                for label in IN_TURN
            }  # fmt: skip
    return out


def by_set(strong, sizes):
    """Return the mean change of each set, and where the stream has left the source prior in the end or has not."""
    out = {}
    for size in sizes:
        some = [r for r in strong if r["size"] == size]
        groups = {name: [r for r in some if r["set"] == name] for name in sorted({r["set"] for r in some})}
        groups |= {"shift followed": [r for r in some if not r["left"]], "left alone": [r for r in some if r["left"]]}
        for name, own in groups.items():
            means = {label: np.array([r[label].mean() for r in own]) for label in IN_TURN}
            out[f"{size}, {name}"] = {"streams": len(own)} | {
                label: {"mean": float(x.mean()), "harmed": float((x > HARM).mean())} for label, x in means.items()
            }
    return out


def confused(sharp, n=2000):
    """Return outputs (n, 10) of an exact classifier of ten overlapping Gaussians under a shift, and its source."""
    rng, middles = np.random.default_rng(0), np.random.default_rng(0).normal(size=(10, 4)) * sharp
    source, target = rng.dirichlet(np.full(10, 5.0)), rng.dirichlet(np.ones(10))
    x = middles[rng.choice(10, n, p=target)] + rng.normal(size=(n, 4))
    p = np.exp(x @ middles.T - 0.5 * (middles**2).sum(axis=1)) * source
    return p / p.sum(axis=1, keepdims=True), source


def jumps(orders=240):
    out = {}
    for sharp in (0.6, 1.0):
        rows, source = confused(sharp)
        for label, options in (("online-ebls", {}),):
            rng, found, largest = np.random.default_rng(1), 0, 0.0
            for _ in range(orders):
                stream = rp.Stream("online-ebls", source, **options)
                path = path_of(stream, np.ascontiguousarray(rows[rng.permutation(len(rows))]))
                away = 0.5 * np.abs(path - source).sum(axis=1)
                fall = float((away[SETTLED:-WITHIN] - away[SETTLED + WITHIN :]).max())
                found, largest = found + (fall > FALL), max(largest, fall)
            out[f"spread {sharp}, {label}"] = {"orders": orders, "jumps": found, "largest": largest}
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", choices=tuple(PARTS_OF), default="kept-aside")
    parser.add_argument("--draws", type=int, default=20)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--sizes", type=int, nargs="+", default=[200, 1000])
    parser.add_argument("--jumps", action="store_true")
    args = parser.parse_args()
    strong, cells = study(PARTS_OF[args.sets], args.draws, args.sizes, args.first)
    labels = sorted({name.split(", ", 2)[2] for name in cells})
    table = []
    for shift in SHIFTS:
        for size in args.sizes:
            found = [cells.get(f"{shift}, {size}, {label}") for label in labels]
            said = ["" if x is None else f"{x['mean']:+.4f} ({x['harmed']:.0%})" for x in found]
            table.append([f"{shift}, {size}", *said])
    text = markdown(["shift, held-out rows: change of log-loss (harmed)", *labels], table)
    rows, sets = by_row(strong, args.sizes), by_set(strong, args.sizes)
    figures = {"sets": args.sets, "draws a classifier": args.draws, "cells": cells, "by row": rows, "by set": sets}
    for title, found, second in (("strong shift; rows of the stream: mean change (adds to the mean)", rows, "adds"),
                                 ("strong shift; set: mean change (harmed)", sets, "harmed")):  # fmt: skip
        form = "+.4f" if second == "adds" else ".0%"
        text += "\n\n" + markdown([title, "streams", *IN_TURN], [
            [name, str(x["streams"]), *(f"{x[label]['mean']:+.4f} ({x[label][second]:{form}})" for label in IN_TURN)]
            for name, x in found.items()
        ])  # fmt: skip
    if args.jumps:
        figures["jumps"] = jumps()
        text += "\n\n" + markdown(["ten confused classes", "jumps of orders", "largest fall"], [
            [name, f"{x['jumps']} of {x['orders']}", f"{x['largest']:.2f}"] for name, x in figures["jumps"].items()
        ])  # fmt: skip
    part = "" if args.sets == "kept-aside" else f"_{args.sets}"
    store(f"ordinary_streams{part}" + ("_others" if args.first else ""), figures, text)


if __name__ == "__main__":
    main()
