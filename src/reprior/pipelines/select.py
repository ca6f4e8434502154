"""The pipeline that does best on shifts simulated from the user's own held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from reprior import simulate
from reprior._check import as_rng, check_choice, check_int
from reprior._labels import named
from reprior._types import Labels, Matrix
from reprior.assess import metrics
from reprior.pipelines import calibrate
from reprior.pipelines.fit import Choices, fit_pipeline, heldout_rows, pipeline, training_counts
from reprior.pipelines.pipeline import Pipeline

CRITERIA = ("kl", "log-loss", "accuracy")
Setup = tuple[str, str, str]  # calibration, prior and method of a pipeline that competes
DEFAULT: Setup = ("auto", "auto", "ebls")


def select(
    proba: Any, y: Any, *, counts: Any = None, classes: Sequence[Any] | None = None, logits: bool = False,
    n: int | None = None, trials: int = 8, criterion: str = "kl",
    calibrations: Sequence[str] = ("none", "temperature", "bias-corrected"),
    methods: Sequence[str] = ("mlls", "mapls", "fmapls", "ebls"),
    rng: int | np.random.Generator | None = 0,
) -> Pipeline:  # fmt: skip
    """Choose calibrator, source prior and method by shifts simulated from held-out samples; return the best pipeline.

    Each half of the held-out samples fits pipelines, and targets with random priors are drawn from the other half. The
    default pipeline is returned unless another one is better by more than two standard errors. `Pipeline.trials` lists
    all candidates, best first.

    Parameters
    ----------
    proba, y, counts, classes, logits
        As in `pipeline`.
    n : int, optional
        Maximum number of samples of a simulated target; by default all available.
    trials : int
        Number of targets: no shift, uniform prior, long tail and Dirichlet draw, in turn.
    criterion : "kl", "log-loss" or "accuracy"
        What is compared: KL(true ‖ estimate), or the log-loss or accuracy of corrected probabilities.
    calibrations, methods
        Names of calibrators and methods to compare.
    rng : int or Generator, optional
        A seed, or a generator of random numbers.

    Examples
    --------
    >>> rows = [[0.8, 0.2]] * 30 + [[0.3, 0.7]] * 30
    >>> pipe = select(rows, [0] * 25 + [1] * 35, trials=2, calibrations=["none"], methods=["mlls"])
    >>> sorted(trial.method for trial in pipe.trials)
    ['ebls', 'mlls']
    """
    rows, labels, names = heldout_rows(proba, y, "select", classes, logits=logits)
    rng, trials = as_rng(rng), check_int(trials, "select", "trials", low=2)
    check_choice(criterion, "select", "criterion", CRITERIA)
    total = None if counts is None else training_counts(counts, names)
    priors = ("mean", "pooled", "training") if counts is not None else ("mean",)
    kinds = [calibrate.ALIASES.get(kind, kind) for kind in calibrations]
    losses: dict[Setup, list[float]] = {DEFAULT: []}
    losses |= {(kind, prior, name): [] for kind in kinds for prior in priors for name in methods}
    side = simulate.folds(labels, 2, rng)
    for trial in range(trials):
        fitting, drawing = side == trial % 2, side != trial % 2
        target = _simulated(rows[drawing], labels[drawing], trial // 2, n or int(drawing.sum()), rng)
        for setup in losses:
            pipe = fit_pipeline(rows[fitting], labels[fitting], Choices(*setup), counts=total)
            losses[setup].append(_loss(pipe, target, criterion))
    table = [Candidate(*setup, float(np.mean(loss)), standard_error(loss)) for setup, loss in losses.items()]
    table.sort(key=lambda candidate: candidate.loss)
    best = table[0][:3]
    gain = np.subtract(losses[DEFAULT], losses[best])
    kind, prior, method = DEFAULT if gain.mean() <= 2 * standard_error(gain) else best
    pipe = pipeline(rows, named(labels, names), counts=total, classes=names, calibration=kind, prior=prior,
                    method=method)  # fmt: skip
    if logits and pipe.calibrator is not None:
        pipe = replace(pipe, calibrator=replace(pipe.calibrator, of_logits=True))
    return replace(pipe, trials=tuple(table))


def standard_error(values: Any) -> float:
    """Return the standard error of a mean."""
    return float(np.std(values) / np.sqrt(len(values)))


class Candidate(NamedTuple):
    """A line of the table `select` decides from: mean and standard error of the loss on simulated shifts."""

    calibration: str
    prior: str
    method: str
    loss: float
    error: float


def _loss(pipe: Pipeline, target: simulate.Sample, criterion: str) -> float:
    """Return what a pipeline loses on a target whose labels are known."""
    estimate = pipe.estimate(target.proba, check=False)
    if criterion == "kl":
        return min(float(metrics.kl(target.prior, estimate.prior)), 50.0)
    corrected = pipe.correct(target.proba, estimate.prior)
    if criterion == "accuracy":
        return float(np.mean(corrected.argmax(axis=1) != target.y))
    own = corrected[np.arange(len(target.y)), target.y]
    return float(-np.log(np.maximum(own, 1e-12)).mean())


def _simulated(rows: Matrix, labels: Labels, which: int, n: int, rng: np.random.Generator) -> simulate.Sample:
    """Return target rows drawn to a Dirichlet prior, a shuffled long tail, a flat one, or their own, in turn.

    No row is drawn twice: repeated rows of a rare class would look like a classifier that is wrong about it. Classes
    that run out get less than the prior asks for, and the target fewer than `n` rows.
    """
    k = rows.shape[1]
    have = np.bincount(labels, minlength=k)
    make = (
        lambda: simulate.dirichlet(k, 1.0, rng=rng), lambda: simulate.shuffled_long_tail(k, 0.02, rng=rng),
        lambda: np.full(k, 1.0 / k), lambda: have / len(labels),
    )  # fmt: skip
    sizes = np.minimum(np.ceil(n * make[which % 4]()), have)
    return simulate.resample(rows, labels, sizes, n=int(sizes.sum()), rng=rng)
