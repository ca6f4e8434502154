"""Every public answer about one world, for tests of what must not change it."""

from __future__ import annotations

import sys
import warnings
from typing import Any

import numpy as np

import reprior as rp

GROUPS = np.array(["north", "south", "west"])
LEVEL = 0.9


class Pieces:
    """Rows in blocks of `size` rows, as `Blocks` of a user's own."""

    def __init__(self, proba: Any, size: int) -> None:
        self.proba, self.size, self.n_classes, self.n = proba, size, proba.shape[1], len(proba)

    def parts(self) -> list[Any]:
        return [self.proba[i : i + self.size] for i in range(0, self.n, self.size)]

    def map_sum(self, fn: Any) -> Any:
        first, *rest = map(fn, self.parts())
        for part in rest:
            first = first + part
        return first


def world(seed: int) -> tuple[Any, Any, Any]:
    """Return held-out samples, their labels, and target samples of a Bayes classifier that is a little overconfident.

    There are 2 to 10 classes, blurred or sharp, 80 or 300 held-out and 60 or 400 target samples, shifted or not. No
    probability is below 1e-12, so that single precision holds all of them.
    """
    rng = np.random.default_rng(seed)
    k, distance = int(rng.integers(2, 11)), rng.choice([0.6, 1.5, 5.0])
    prior, target = rng.dirichlet(np.full(k, 2.0)), rng.dirichlet(np.ones(k))
    centres = distance * rng.normal(size=(k, 3))

    def outputs(mix: Any, n: int) -> Any:
        y = rng.choice(k, n, p=mix)
        z = (centres[y] + rng.normal(size=(n, 3))) @ centres.T - 0.5 * (centres**2).sum(axis=1) + np.log(prior)
        z = np.maximum(np.exp(1.3 * (z - z.max(axis=1, keepdims=True))), 1e-12)
        return z / z.sum(axis=1, keepdims=True), y

    heldout, y = outputs(prior, int(rng.choice([80, 300])))
    return heldout, y, outputs(target if rng.random() < 0.5 else prior, int(rng.choice([60, 400])))[0]


def answers(heldout: Any, y: Any, proba: Any, *, keys: Any = None, size: int | None = None) -> dict[str, Any]:
    """Return what each public function answers; with a `size`, of rows that come in blocks of so many.

    The last axis is that of the classes, but for "diagnose" (p-values and accuracies) and "query" (rows and weights).
    """
    if keys is None:
        keys = GROUPS[np.arange(len(proba)) % 3]
    blocks = proba if size is None else Pieces(proba, size)
    pieces = [proba] if size is None else blocks.parts()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # sentences on few samples, which are not looked at here
        pipe = rp.pipeline(heldout, y)
        est, answer = pipe.estimate(blocks, on_reject="ignore"), pipe.diagnose(blocks)
        by = pipe.groups(keys, blocks, on_reject="ignore")
        scaled = pipe.estimate(blocks)
        chosen, weights = rp.query(est, n=8, rng=0)
        stream, table, at = pipe.stream(), pipe.table(), 0
        for piece in pieces:
            stream.learn_many(piece)
            table.learn(keys[at : at + len(piece)], piece)
            at += len(piece)
    return {
        "shares": est.shares,
        "prior": est.prior,
        "scaled": np.stack([scaled.shares, scaled.prior]),
        "interval": np.concatenate([est.interval(LEVEL), est.interval(LEVEL, of="prior")]),
        "correct": np.concatenate([est.correct(piece) for piece in pieces]),
        "sets": np.concatenate([est.prediction_sets(piece, LEVEL) for piece in pieces]),
        "groups": np.stack([by[name].shares for name in GROUPS]),
        "interval of groups": np.concatenate([by[name].interval(LEVEL) for name in GROUPS]),
        "stream": stream.prior,
        "interval of stream": np.stack(stream.interval(LEVEL)),
        "correct of stream": np.concatenate([stream.correct_many(piece) for piece in pieces]),
        "table": np.stack([table[name].prior for name in GROUPS]),
        "diagnose": np.array([answer.shift_p, answer.label_shift, *(answer.accuracy or ())]),
        "query": np.column_stack([chosen, weights]),
    }


if __name__ == "__main__":  # python answers.py SEEDS FILE: write the answers about worlds 0 … SEEDS − 1
    results = [answers(*world(seed)) for seed in range(int(sys.argv[1]))]
    np.savez(sys.argv[2], **{f"{seed} {name}": x for seed, each in enumerate(results) for name, x in each.items()})
