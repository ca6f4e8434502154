"""What late labels are worth to a stream: `pipe.stream()` beside `pipe.estimate` with the same labels.

    python benchmarks/late_labels.py [--seeds 20] [--n 3000] [--delay 500]

Targets as in stream_batch.py, without "no shift". So many of the rows, drawn at random, get their label `delay` rows
after they came, or at the end. Mean KL(true ‖ estimate) after the last row; accuracy is that of predictions corrected
before the label was known, over all rows.
"""

import argparse

from _record import markdown, progress, store  # isort: split

import numpy as np
from _outputs import Outputs, networks, shipped, targets

import reprior as rp

SIZES = (0, 50, 100, 300, 1000)
FORMS = ("batch", "stream")
BLOCK = 20  # rows that come at once


def streamed(pipe: rp.Pipeline, rows: np.ndarray, labels: np.ndarray, delay: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the prior after all rows and labels, and the class predicted for each row before its block was learned."""
    stream, said, there, told = pipe.stream(), [], np.flatnonzero(labels >= 0), 0
    for first in range(0, len(rows) + delay, BLOCK):
        if first < len(rows):
            block = rows[first : first + BLOCK]
            said.append(stream.correct_many(block).argmax(axis=1))
            stream.learn_many(block)
        while told < len(there) and there[told] < first + BLOCK - delay:
            stream.observe(rows[there[told]], int(labels[there[told]]))
            told += 1
    return stream.prior, np.concatenate(said)


def cell(o: Outputs, seeds: int, n: int, delay: int) -> dict[str, list[dict[str, float]]]:
    """Return the errors of a classifier's targets, by form and number of labels."""
    pipe, found = rp.pipeline(o.heldout, o.heldout_y, counts=o.counts), {}
    for number, (shift, t) in enumerate(targets(o, seeds=seeds, n=n)):
        if shift == "no shift":
            continue
        order = np.random.default_rng([31, number]).permutation(n)
        for m in SIZES:
            labels = np.full(n, -1)
            labels[order[:m]] = t.y[order[:m]]
            batch = pipe.estimate(t.proba, labels=labels if m else None, check=False)
            prior, said = streamed(pipe, t.proba, labels, delay)
            for form, share, right in (("batch", batch.prior, batch.correct(t.proba).argmax(axis=1) == t.y),
                                       ("stream", prior, said == t.y)):  # fmt: skip
                found.setdefault(f"{form} {m}", []).append(
                    {"kl": rp.metrics.kl(t.prior, share, floor=1e-8), "accuracy": float(right.mean())}
                )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--n", type=int, default=3000)
    parser.add_argument("--delay", type=int, default=500)
    args = parser.parse_args()
    sets, cells, rows = [*shipped(), *networks(("0.2", "0.1", "0.05", "0.02"))], {}, []
    for done, o in enumerate(sets):
        progress(done, len(sets), o.name)
        cells[o.name] = cell(o, args.seeds, args.n, args.delay)
        mean = {key: {f: float(np.mean([x[f] for x in v])) for f in v[0]} for key, v in cells[o.name].items()}
        for form in FORMS:
            first = mean[f"{form} 0"]["kl"]
            kl = [f"{mean[f'{form} {m}']['kl']:.4f}" + f" ({mean[f'{form} {m}']['kl'] / first - 1:+.0%})" * (m > 0)
                  for m in SIZES]  # fmt: skip
            right = " → ".join(f"{100 * mean[f'{form} {m}']['accuracy']:.1f}" for m in SIZES)
            rows.append([o.name if form == "batch" else "", form, *kl, right])
    head = ["classifier", "mean KL", "no labels", *(f"{m} labels" for m in SIZES[1:]), "accuracy, %"]
    store("late_labels", {"seeds": args.seeds, "n": args.n, "delay": args.delay, "cells": cells}, markdown(head, rows))


if __name__ == "__main__":
    main()
