"""How much better could an estimate beside random labels be? Learned from the true mixes of other targets.

    python benchmarks/labels_limit.py [--trials 40]

For each class of a target: the default's share with and without labels and its variances, labels and what outputs
expect of their rows, held-out rows, the source share. Boosted trees learn from three quarters of the targets, whose
true mixes they are told, by what factor the share must change, and mend that of the others. No user has such targets,
so what they gain is about what is left to gain. Targets are those of labels.py with other seeds. Needs scikit-learn.
"""

from __future__ import annotations

import argparse

from _record import markdown, progress, store  # isort: split

import labels as study
import numpy as np
from _outputs import redrawn
from sklearn.ensemble import HistGradientBoostingRegressor

import reprior as rp

SOURCES, SIZES, FIRST, FOLDS = ("CIFAR-100, ratio 0.02", "Tiny-ImageNet, ratio 0.02"), (100, 300), 1000, 4


def known_of(pipe: rp.Pipeline, target: rp.simulate.Sample, order: np.ndarray, m: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what is known of each class (K, d), and the default's share (K,)."""
    k, rows, source = target.proba.shape[1], pipe.calibrate(target.proba), pipe.source
    labels = np.full(len(rows), -1)
    labels[order[:m]] = target.y[order[:m]]
    none, est = (pipe.estimate(target.proba, labels=given, check=False) for given in (None, labels))
    resp = rp.correct(rows, none.prior / source.prior)
    seen, expected = np.bincount(target.y[order[:m]], minlength=k), resp[order[:m]].sum(axis=0)
    beyond = np.zeros(k)  # how unlikely the outputs found the labels of this class
    np.add.at(beyond, target.y[order[:m]], 1 - resp[order[:m], target.y[order[:m]]])
    spread = [np.log(x.posterior.variance() / x.prior**2) for x in (none, est)]
    known = [
        np.log(est.prior), np.log(none.prior), seen, expected, seen - expected, beyond, *spread,
        (resp**2).sum(axis=0) / resp.sum(axis=0), source.counts, np.log(source.prior),
        np.bincount(rows.argmax(axis=1), minlength=k) / len(rows) / none.prior,
    ]  # fmt: skip
    return np.stack(known, axis=1), est.prior


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=40)
    options = parser.parse_args()
    found, lines = {}, []
    for o in (o for o in study.networks() if o.name in SOURCES):
        drawn: dict[int, list] = {m: [] for m in SIZES}
        for trial in range(options.trials):
            these = redrawn(o, study.SEED + FIRST + trial)
            pipe = rp.pipeline(these.heldout, these.heldout_y, counts=these.counts)
            target, rng = study.draw(these, FIRST + trial, 3000)
            order = rng.permutation(3000)
            for m in SIZES:
                drawn[m].append((*known_of(pipe, target, order, m), study.shares_of(target)))
            progress(trial + 1, options.trials, o.name)
        for m, targets in drawn.items():
            ours, learned = [], []
            for fold in range(FOLDS):
                others = [t for i, t in enumerate(targets) if i % FOLDS != fold]
                known, share, mix = (np.concatenate(x) for x in zip(*others, strict=True))
                trees = HistGradientBoostingRegressor(
                    loss="poisson", max_iter=60, learning_rate=0.04, max_leaf_nodes=6, min_samples_leaf=150
                ).fit(known, np.maximum(mix / share, 1e-6), sample_weight=share)
                for own, prior, truth in targets[fold::FOLDS]:
                    mended = prior * trees.predict(own)
                    ours.append(rp.metrics.kl(truth, prior, floor=study.FLOOR))
                    learned.append(rp.metrics.kl(truth, mended / mended.sum(), floor=study.FLOOR))
            found[f"{o.name}, {m} labels"] = {"default": ours, "learned": learned}
            gain = np.mean(learned) / np.mean(ours) - 1
            lines.append([o.name, str(m), f"{np.mean(ours):.4f}", f"{np.mean(learned):.4f}", f"{100 * gain:+.0f} %"])
    head = ["", "random labels", "KL of the default", "mended by what other targets taught", "change"]
    text = (
        f"# What is left to gain beside random labels\n\nMean KL over {options.trials} targets of 3,000 rows. The "
        "trees were told the true mixes of other targets of the same classifier.\n\n" + markdown(head, lines)
    )
    store("labels_limit", {"targets": options.trials, "kl": found}, text)


if __name__ == "__main__":
    main()
