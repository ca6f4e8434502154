"""Training counts beside held-out rows: what they change where the held-out rows have the training mix, or a flat one.

    python benchmarks/counts.py [--seeds 2]

The pool is halved: flat held-out rows come from one half, targets from the other. The ResNet-32 outputs of
experiments/hu2025 take part if they are there.
"""

import argparse

from _record import markdown, progress, store  # isort: split

import numpy as np
from _outputs import Outputs, networks, shipped, targets

import reprior as rp
from reprior.io.sources import disagreement

KINDS = {"raw": "none", "TS": "ts", "default": "auto"}


def losses(o: Outputs, seeds: int, n: int) -> tuple[dict[str, dict[str, list[float]]], list[list[str]]]:
    k, even = len(o.counts), np.random.default_rng(5).permutation(len(o.pool_y)) % 2 == 0
    flat = rp.simulate.resample(o.pool[even], o.pool_y[even], np.full(k, 1 / k), n=10 * k, rng=5)
    drawn = [t for _, t in targets(o._replace(pool=o.pool[~even], pool_y=o.pool_y[~even]), seeds=seeds, n=n, draw=5)]
    figures, rows = {}, []
    for mix, held in (("training", (o.heldout, o.heldout_y)), ("flat", (flat.proba, flat.y))):
        known = rp.summarize(*held)
        told = disagreement(known)
        for short, kind in KINDS.items():
            cell = {}
            for name, counts in (("alone", None), ("with counts", o.counts)):
                pipe = rp.pipeline(*held, counts=counts, calibration=kind)
                found = [pipe.estimate(t.proba).prior for t in drawn]
                cell[name] = [round(rp.metrics.kl(t.prior, p), 6) for t, p in zip(drawn, found, strict=True)]
            figures[f"{mix}, {short}"] = cell | {"disagreement": told}
            means = [f"{np.mean(cell[name]):.4f}" for name in ("alone", "with counts")]
            rows.append([o.name, mix, short, *means, f"{told:.0%}" if told else "no"])
    return figures, rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=2000)
    args = parser.parse_args()
    figures, rows, sets = {}, [], [*shipped(), *networks()]
    for done, o in enumerate(sets, 1):
        figures[o.name], lines = losses(o, args.seeds, args.rows)
        rows += lines
        progress(done, len(sets), o.name)
    head = ["source", "mix of held-out rows", "outputs", "KL, held-out rows alone", "with `--counts`", "warned"]
    title = f"Mean KL(true ‖ estimate) of the default, {args.rows} rows, five shifts, {args.seeds} seeds\n\n"
    store("counts", {"kl": figures}, title + markdown(head, rows))


if __name__ == "__main__":
    main()
