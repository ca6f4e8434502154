"""Real classifiers' outputs in one shape, wherever they come from, and targets drawn from them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from reprior import datasets, simulate

ROOT = Path(__file__).parents[1]
SHIFTS = ("shuffled .02", "Dirichlet 1", "Dirichlet 3", "no shift", "uniform")


class Outputs(NamedTuple):
    """Training counts (K,), outputs (n, K) and labels (n,) of held-out rows at the training prior, and of a pool."""

    name: str
    counts: np.ndarray
    heldout: np.ndarray
    heldout_y: np.ndarray
    pool: np.ndarray
    pool_y: np.ndarray


def shipped() -> Iterator[Outputs]:
    for name in ("banking77", "clinc150"):
        d = datasets.load(name)
        yield Outputs(f"{name}, 1:10", d.counts, d.heldout_proba, d.heldout_y, d.pool_proba, d.pool_y)


def networks(ratios: tuple[str, ...] = ("0.1", "0.02")) -> Iterator[Outputs]:
    """Yield the ResNet-32 outputs of experiments/hu2025, as far as they are there."""
    sys.path.insert(0, str(ROOT / "experiments" / "hu2025"))
    import outputs

    for ratio in ratios:
        name = f"1:{1 / float(ratio):.0f}"
        if (outputs.FOLDER / f"cifar100-lt-{ratio}.npz").exists():
            o = outputs.load(f"cifar100-lt-{ratio}")
            yield Outputs(f"CIFAR-100, {name}", o.counts.astype(float), o.held_out, o.y_held_out, o.test, o.y_test)


def redrawn(o: Outputs, seed: int) -> Outputs:
    """Return the same outputs with other held-out rows, of the same number and class mix, drawn from all there are."""
    rng, k = np.random.default_rng([7, seed]), len(o.counts)
    proba, y = np.concatenate([o.heldout, o.pool]), np.concatenate([o.heldout_y, o.pool_y])
    mix = np.bincount(o.heldout_y, minlength=k) / len(o.heldout_y)
    wanted = rng.multinomial(len(o.heldout_y), mix)
    held = np.concatenate([rng.permutation(np.flatnonzero(y == j))[: wanted[j]] for j in range(k)])
    rest = np.setdiff1d(np.arange(len(y)), held)
    return o._replace(heldout=proba[held], heldout_y=y[held], pool=proba[rest], pool_y=y[rest])


def digits() -> Outputs:
    """Return the outputs of a naive Bayes classifier on the balanced digits of scikit-learn."""
    from sklearn.datasets import load_digits
    from sklearn.naive_bayes import GaussianNB

    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    train, held, pool = np.split(order, [500, 900])
    proba = GaussianNB(var_smoothing=0.01).fit(x[train], y[train]).predict_proba
    return Outputs(
        "digits, balanced", np.bincount(y[train]).astype(float), proba(x[held]), y[held], proba(x[pool]), y[pool]
    )


def texts(folder: Path, ratio: float) -> Outputs:
    """Train the Banking77 classifier of experiments/text_intents on another long tail, and return its outputs."""
    sys.path.insert(0, str(ROOT / "experiments" / "text_intents"))
    import make

    corpus = make.banking77(folder)
    y, k = corpus.y, len(corpus.classes)
    make.RATIO = ratio
    trainable = y[: corpus.n_trainable]
    largest = int(np.bincount(trainable).min()) if ratio == 1 else 130
    train, held = make.long_tail_rows(trainable, largest, np.random.default_rng(1))
    pool = np.setdiff1d(np.arange(len(y)), np.concatenate([train, held]))
    model = make.classifier(300.0).fit(corpus.text[train], y[train])
    proba = model.predict_proba
    name = "banking77, balanced" if ratio == 1 else f"banking77, 1:{1 / ratio:.0f}"
    counts = np.bincount(y[train], minlength=k).astype(float)
    return Outputs(name, counts, proba(corpus.text[held]), y[held], proba(corpus.text[pool]), y[pool])


def targets(o: Outputs, *, seeds: int, n: int, draw: int = 2026) -> Iterator[tuple[str, simulate.Sample]]:
    """Yield `seeds` targets of `n` rows for each kind of shift."""
    k, source = len(o.counts), o.counts / o.counts.sum()
    for seed in range(seeds):
        rng = np.random.default_rng([draw, seed])
        priors = (
            simulate.shuffled_long_tail(k, 0.02, rng=rng), simulate.dirichlet(k, 1.0, rng=rng),
            simulate.dirichlet(k, 3.0, rng=rng), source, np.full(k, 1 / k),
        )  # fmt: skip
        for shift, prior in zip(SHIFTS, priors, strict=True):
            yield shift, simulate.resample(o.pool, o.pool_y, prior, n=n, rng=rng)
