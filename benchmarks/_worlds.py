"""Classifiers, targets and class priors that the benchmarks share: one set of worlds and one loader for each.

`unseen` are classifiers on public sets that no part of this project was designed on (`data/README.md`), `shipped` the
ones in the package, `Gaussians` simulated classes with exact posteriors. Classifiers that constants may be chosen on
are in `_ordinary.py`, those on dated data in `real_drift.py`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reprior import datasets, simulate

DATA = Path(__file__).parent / "data"
SHIPPED = ("banking77", "clinc150", "lid176")  # banking77 and clinc150 were looked at while constants were set
SHIFTS = ("none", "mild", "strong")
FLOOR = 1e-6  # a smaller probability counts as this in logarithms
HARM = 0.01  # nats of log-loss by which a draw counts as harmed
ROWS = 1000  # target samples of a draw


class Case(NamedTuple):
    """Probabilities (n, K) and labels (n,) of samples that a classifier was not trained on.

    Held-out samples come from the first `n_heldout` of them, or from all if it is None. `counts` (K,) are the training
    samples of each class.
    """

    name: str
    proba: np.ndarray
    y: np.ndarray
    n_heldout: int | None
    counts: np.ndarray

    @property
    def set(self) -> str:
        return self.name.split("-")[0]

    @property
    def n_classes(self) -> int:
        return self.proba.shape[1]


class Draw(NamedTuple):
    """Indices of held-out and of target samples, and the prior that the target was drawn from."""

    heldout: np.ndarray
    target: np.ndarray
    prior: np.ndarray


def clipped(proba: np.ndarray) -> np.ndarray:
    """Return probabilities without zeros."""
    proba = np.maximum(proba, FLOOR)
    return proba / proba.sum(axis=1, keepdims=True)


def unseen(kind: str | None = None) -> Iterator[Case]:
    """Yield the stored classifiers on unseen sets; `kind` is one kind of classifier, for example "logistic"."""
    with np.load(DATA / "unseen.npz") as stored:
        for name in map(str, stored["names"]):
            if kind is None or name.endswith(f"-{kind}"):
                proba = clipped(stored[f"{name}|P"].astype(np.float64))
                counts = stored[f"{name}|counts"].astype(float)
                yield Case(name, proba, stored[f"{name}|y"].astype(np.intp), None, counts)


def shipped(names: tuple[str, ...] = SHIPPED) -> Iterator[Case]:
    """Yield the classifiers in the package; their held-out samples have the class prior of training."""
    for name in names:
        d = datasets.load(name)
        proba = clipped(np.concatenate([d.heldout_proba, d.pool_proba]).astype(np.float64))
        y = np.concatenate([d.heldout_y, d.pool_y])
        yield Case(name, proba, y, len(d.heldout_y), np.asarray(d.counts, float))


def draw(case: Case, size: int, shift: str, seed: int, rows: int = ROWS) -> Draw:
    """Return held-out samples of the source and a target of another class prior; no sample is in both."""
    rng = np.random.default_rng([seed, size, *map(ord, case.name + shift)])
    k, n = case.n_classes, len(case.y)
    own = rng.permutation(case.n_heldout or n)
    heldout = own[:size]
    rest = own[size:] if case.n_heldout is None else rng.permutation(np.arange(case.n_heldout, n))
    source = np.bincount(case.y[own], minlength=k) / len(own)
    left = np.bincount(case.y[rest], minlength=k)
    prior = np.where(left > 0, shifted(source, shift, rng), 0.0)
    prior /= prior.sum()
    total = int(np.clip((left[prior > 0] / prior[prior > 0]).min(), rows // 3, rows))
    asked = rng.multinomial(total, prior)
    wanted = np.minimum(asked, left)
    if (wanted < asked).any():  # a class ran out: its proportion is then the nearest to a prior that there is
        prior = wanted / wanted.sum()
    target = np.concatenate([rest[case.y[rest] == j][: wanted[j]] for j in range(k)])
    return Draw(heldout, rng.permutation(target), prior)


def shifted(source: np.ndarray, shift: str, rng: np.random.Generator) -> np.ndarray:
    """Return a target prior (K,), not normalised, by the kind of shift."""
    k = len(source)
    if shift == "none":
        return source
    if shift == "mild":
        return source * rng.uniform(0.6, 1.6, k)
    if shift == "strong":
        return rng.dirichlet(np.full(k, 2.0))
    rare = rng.choice(np.flatnonzero(source < 0.4))  # "one class": half of the samples from a class that had less
    prior = 0.5 * source / (1 - source[rare])
    prior[rare] = 0.5
    return prior


def in_turn(k: int, trial: int, rng: np.random.Generator) -> np.ndarray:
    """Return a target prior: Dirichlet, long-tailed or with a fifth of the classes absent, in turn."""
    if trial % 3 == 0:
        return simulate.dirichlet(k, 1.0, rng=rng)
    base = simulate.shuffled_long_tail(k, 0.02, rng=rng)
    return base if trial % 3 == 1 else simulate.knock_out(k, 0.2, rng=rng, base=base)


class Gaussians:
    """K unit Gaussians in d dimensions: the outputs are exact posteriors under a uniform source prior."""

    def __init__(self, k: int, d: int, separation: float, seed: int = 0) -> None:
        self.means = separation * np.random.default_rng(seed).normal(size=(k, d))
        self.source = np.full(k, 1.0 / k)

    def draw(self, prior: np.ndarray, n: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        y = rng.choice(len(prior), n, p=prior)
        return self.outputs(self.means[y] + rng.normal(size=(n, self.means.shape[1]))), y

    def outputs(self, x: np.ndarray) -> np.ndarray:
        logits = x @ self.means.T - 0.5 * (self.means**2).sum(axis=1)
        return softmax(logits)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Return probabilities (n, K) of logits."""
    logits = np.exp(logits - logits.max(axis=1, keepdims=True))
    return logits / logits.sum(axis=1, keepdims=True)


def one_likely(n: int, k: int, sharp: float, seed: int, prior: np.ndarray | None = None) -> np.ndarray:
    """Return probabilities (n, K) whose logit of the true class is raised; classes are drawn from `prior`."""
    rng = np.random.default_rng(seed)
    y = rng.choice(k, size=n, p=rng.dirichlet(np.ones(k)) if prior is None else prior)
    return softmax(sharp * (rng.standard_normal((n, k)) + sharp * np.eye(k)[y]))


# -- scores -----------------------------------------------------------------------------------------------------------


def losses(proba: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return log-loss and accuracy; a probability below the floor counts as the floor."""
    own = proba[np.arange(len(y)), y]
    return float(-np.log(np.maximum(own, FLOOR)).mean()), float((proba.argmax(axis=1) == y).mean())


def kl(true: np.ndarray, estimate: np.ndarray) -> float:
    """Return KL(true ‖ estimate); shares of the estimate below the floor count as the floor."""
    estimate = np.maximum(estimate, FLOOR)
    present = true > 0
    return float((true[present] * np.log(true[present] / (estimate / estimate.sum())[present])).sum())


def clustered(records: list[dict[str, Any]], what: str) -> tuple[float, float]:
    """Return the mean over sets, each the mean of its own records, and its standard error between sets."""
    by_set = defaultdict(list)
    for r in records:
        if what in r:
            by_set[r["set"]].append(r[what])
    means = np.array([np.mean(own) for own in by_set.values()])
    if not len(means):
        return float("nan"), 0.0
    return float(means.mean()), float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else 0.0


def mean_and_error(records: list[dict[str, Any]], what: str, form: str, scale: float = 1.0) -> str:
    """Return "mean ± standard error" over sets."""
    mean, error = clustered(records, what)
    return f"{scale * mean:{form}} ± {scale * error:{form.lstrip('+')}}"
