"""What late labels are worth to a stream: `pipe.stream()` beside `pipe.estimate` with the same labels.

    python benchmarks/late_labels.py [--seeds 20] [--n 3000] [--delay 500] [--draw 2026] [--odd]

Targets as in stream_batch.py. So many of the rows, drawn at random, get their label `delay` rows after they came, or at
the end. Mean KL(true ‖ estimate) after the last row, without "no shift". Accuracy and log-loss, twice: "all rows" are
corrected with all labels in batch, and in a stream with those that had come before, so batch has seen the labels of
some rows that it is judged on. "Rows without a label" are corrected in the end, by either; which rows these are differs
with the number of labels. "Shares alone" is the same stream without its bias. `--odd` stores instead what labels of a
tenth of all rows do while the mix moves between two Dirichlet(1) mixes, and if they are nonsense while it does not.
Constants were chosen on draw 5.
"""

import argparse

from _record import markdown, progress, store  # isort: split

import numpy as np
from _outputs import Outputs, networks, shipped, targets

import reprior as rp

SIZES = (0, 50, 100, 300, 1000)
FORMS = ("batch", "stream", "shares alone")
BLOCK = 20  # rows that come at once
DRIFTS = {"swap": ("swap", None), "turns every 1,000": ("squ", 1000), "straight": ("lin", None)}
NONSENSE = {
    "shuffled labels": lambda y, k, rng: rng.permutation(y),
    "any class": lambda y, k, rng: rng.integers(k, size=len(y)),
    "one class": lambda y, k, rng: np.full(len(y), 3),
}


def streamed(
    pipe: rp.Pipeline, rows: np.ndarray, labels: np.ndarray, delay: int
) -> tuple[rp.Stream, dict[str, np.ndarray]]:
    """Return the stream after all rows and labels, and by form what it made of rows before their block was learned."""
    stream, there, told = pipe.stream(), np.flatnonzero(labels >= 0), 0
    said: dict[str, list[np.ndarray]] = {form: [] for form in FORMS[1:]}
    for first in range(0, len(rows) + delay, BLOCK):
        if first < len(rows):
            block = rows[first : first + BLOCK]
            for form, fixed in corrected(stream, block).items():
                said[form].append(fixed)
            stream.learn_many(block)
        while told < len(there) and there[told] < first + BLOCK - delay:
            stream.observe(rows[there[told]], int(labels[there[told]]))
            told += 1
    return stream, {form: np.concatenate(parts) for form, parts in said.items()}


def corrected(stream: rp.Stream, rows: np.ndarray) -> dict[str, np.ndarray]:
    """Return rows (n, K) as a stream corrects them, and as its shares alone do."""
    fixed = stream.correct_many(rows)
    plain = np.asarray(fixed, np.float64) / stream.bias
    return {"stream": fixed, "shares alone": plain / plain.sum(axis=1, keepdims=True)}


def odd(o: Outputs, seeds: int, n: int, delay: int, draw: int) -> dict[str, list[dict[str, dict[str, float]]]]:
    """Return what corrections make of all rows, predicting first, where mixes move and where labels are nonsense."""
    pipe, k, found = rp.pipeline(o.heldout, o.heldout_y, counts=o.counts), len(o.counts), {}
    for seed in range(seeds):
        rng = np.random.default_rng([draw, 77, seed])
        first, second = (rp.simulate.dirichlet(k, 1.0, rng=rng) for _ in range(2))
        for kind in (*DRIFTS, *NONSENSE):
            form, period = DRIFTS.get(kind, ("swap", n))
            path = rp.simulate.drift(first, second, n=n, kind=form, period=period)
            t = rp.simulate.draw_stream(o.pool, o.pool_y, path, rng=rng)
            some, labels = rng.permutation(n)[: n // 10], np.full(n, -1)
            labels[some] = NONSENSE[kind](t.y[some], k, rng) if kind in NONSENSE else t.y[some]
            _, said = streamed(pipe, t.proba, labels, delay)
            found.setdefault(kind, []).append({form: judged(fixed, t.y) for form, fixed in said.items()})
    return found


def judged(fixed: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Return accuracy and log-loss of corrected rows."""
    own = np.maximum(fixed[np.arange(len(y)), y], 1e-12)
    return {"accuracy": float((fixed.argmax(axis=1) == y).mean()), "loss": float(-np.log(own).mean())}


def cell(o: Outputs, seeds: int, n: int, delay: int, draw: int) -> dict[str, list[dict[str, float]]]:
    """Return the errors of a classifier's targets, by whether they have shifted, form and number of labels."""
    pipe, found = rp.pipeline(o.heldout, o.heldout_y, counts=o.counts), {}
    for number, (shift, t) in enumerate(targets(o, seeds=seeds, n=n, draw=draw)):
        kind = "no shift" if shift == "no shift" else "shift"
        order = np.random.default_rng([31, number]).permutation(n)
        for m in SIZES:
            labels = np.full(n, -1)
            labels[order[:m]] = t.y[order[:m]]
            batch = pipe.estimate(t.proba, labels=labels if m else None, check=False)
            stream, said = streamed(pipe, t.proba, labels, delay)
            fixed = {"batch": batch.correct(t.proba)}
            said, after = fixed | said, fixed | corrected(stream, t.proba)
            for form in FORMS:
                left = {f"{what} left": x for what, x in judged(after[form][labels < 0], t.y[labels < 0]).items()}
                kl = rp.metrics.kl(t.prior, batch.prior if form == "batch" else stream.prior, floor=1e-8)
                found.setdefault(f"{kind} {form} {m}", []).append({"kl": kl, **judged(said[form], t.y), **left})
    return found


def oddly(args: argparse.Namespace) -> None:
    """Store what labels do while the mix moves, and what nonsense labels do."""
    sets, cells, rows = [*shipped(), *networks(("0.1", "0.02"))], {}, []
    for done, o in enumerate(sets):
        progress(done, len(sets), o.name)
        cells[o.name] = odd(o, args.seeds, args.n, args.delay, args.draw)
        for kind, found in cells[o.name].items():
            mean = {form: {f: np.mean([x[form][f] for x in found]) for f in ("accuracy", "loss")} for form in FORMS[1:]}
            right = " → ".join(f"{100 * mean[form]['accuracy']:.2f}" for form in ("shares alone", "stream"))
            loss = " → ".join(f"{mean[form]['loss']:.4f}" for form in ("shares alone", "stream"))
            rows.append([o.name if kind == "swap" else "", kind, right, loss])
    about = {"seeds": args.seeds, "n": args.n, "delay": args.delay, "draw": args.draw, "cells": cells}
    head = ["classifier", "shares alone → with the bias", "accuracy, %", "log-loss"]
    store("late_labels_odd", about, markdown(head, rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--n", type=int, default=3000)
    parser.add_argument("--delay", type=int, default=500)
    parser.add_argument("--draw", type=int, default=2026)
    parser.add_argument("--odd", action="store_true")
    args = parser.parse_args()
    if args.odd:
        oddly(args)
        return
    sets, cells, shares, fixed, still = [*shipped(), *networks(("0.2", "0.1", "0.05", "0.02"))], {}, [], [], []
    for done, o in enumerate(sets):
        progress(done, len(sets), o.name)
        cells[o.name] = cell(o, args.seeds, args.n, args.delay, args.draw)
        mean = {key: {f: float(np.mean([x[f] for x in v])) for f in v[0]} for key, v in cells[o.name].items()}

        def along(kind: str, form: str, what: str, scale: float, digits: int, mean=mean) -> str:
            return " → ".join(f"{scale * mean[f'{kind} {form} {m}'][what]:.{digits}f}" for m in SIZES)

        for form in FORMS[:2]:
            kl = [mean[f"shift {form} {m}"]["kl"] for m in SIZES]
            cut = [f"{x:.4f} ({x / kl[0] - 1:+.0%})" for x in kl[1:]]
            shares.append([o.name if form == "batch" else "", form, f"{kl[0]:.4f}", *cut])
        for form in FORMS:
            fixed.append([o.name if form == "batch" else "", form,
                          along("shift", form, "accuracy", 100, 1), along("shift", form, "accuracy left", 100, 2),
                          along("shift", form, "loss", 1, 3), along("shift", form, "loss left", 1, 4)])  # fmt: skip
        still.append([o.name, *(along("no shift", form, "loss left", 1, 4) for form in FORMS)])
    text = markdown(["classifier", "mean KL", "no labels", *(f"{m} labels" for m in SIZES[1:])], shares)
    text += f"\n\nCorrected with {', '.join(str(m) for m in SIZES[:-1])} and {SIZES[-1]} labels:\n\n"
    text += markdown(["classifier", "", "accuracy, %: all rows", "rows without a label", "log-loss: all rows",
                      "rows without a label"], fixed)  # fmt: skip
    text += "\n\nWhere nothing has shifted, log-loss of rows without a label:\n\n"
    text += markdown(["classifier", *FORMS], still)
    about = {"seeds": args.seeds, "n": args.n, "delay": args.delay, "draw": args.draw, "cells": cells}
    store("late_labels", about, text)


if __name__ == "__main__":
    main()
