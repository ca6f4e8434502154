"""Calibrator, source prior and method as one value: by default, by hand, or chosen by simulated shifts.

The defaults, and what they were measured against, are on the page "Which method should I use?" of the docs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from reprior import calibrate, metrics, simulate
from reprior._check import as_rng, check_choice, check_labels, check_matrix, check_number, check_prior, check_rows, fail
from reprior._types import Labels, Matrix, PriorEstimate, Source, Vector
from reprior.blocks import ArrayBlocks, correct, numbered
from reprior.calibrate import Calibrator
from reprior.methods import ALIASES, METHODS, estimate
from reprior.source import summarize

LABELS_FOR_BIASES = 10  # held-out rows of every class, from which on a bias for each class can be considered
FEW_ROWS = 100  # held-out rows in all, below which training counts say more than they do
FEW_LABELS = 5  # held-out rows a class, on average, below which they cannot tell how wrong the tail is
FEW_CLASSES = 20  # below which there are too few shares to learn their distribution from
SEVERE = 20.0  # times as many training rows in the largest class as in the smallest: its tail is then misjudged
TILT = 0.2  # how far from 1, a priori, the exponent of the training prior may be
POOLING = 3.0  # a held-out row says as much about the prior that outputs carry as this many training rows


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What turns raw outputs into an estimate: a calibrator or None, the source its outputs carry, and a method.

    `table` holds what `select` decided from.
    """

    calibrator: Calibrator | None
    source: Source
    method: str
    options: Mapping[str, Any] = field(default_factory=dict)
    table: tuple[Candidate, ...] = ()

    def calibrate(self, proba: Any) -> Any:
        """Return raw outputs (n, K) calibrated."""
        return proba if self.calibrator is None else self.calibrator(proba)

    def estimate(self, proba: Any) -> PriorEstimate:
        """Return the estimate of the target prior from raw outputs `proba` (n, K)."""
        return estimate(self.source, self.calibrate(proba), self.method, **self.options)

    def correct(self, proba: Any, prior: Any) -> Matrix:
        """Return raw outputs `proba` (n, K), calibrated, as they would be under `prior` (K,)."""
        target = check_prior(prior, "correct", "prior", allow_zero=True)
        return correct(self.calibrate(proba), target / self.source.prior)


class Candidate(NamedTuple):
    """A line of the table `select` decides from: mean and standard error of KL(true ‖ estimate) on simulated shifts."""

    calibration: str
    prior: str
    method: str
    misfit: float
    kl: float
    error: float


def pipeline(
    proba: Any = None, y: Any = None, *, counts: Any = None, calibration: str = "auto", prior: Any = "auto",
    method: str = "auto", classes: Sequence[str] | None = None, **options: Any,
) -> Pipeline:  # fmt: skip
    """Return the default pipeline, or the one described, from held-out outputs (n, K) and labels (n,), or from neither.

    `counts` (K,) are the training rows of each class. `calibration` is a name of `calibrate.KINDS`; "auto" is
    temperature scaling, with biases if they pay and there are labels for them. `prior` is "pooled" (training counts and
    mean calibrated output), "mean", "labels", "training", or a vector (K,); "auto" pools if it can. `method` is a name
    of `METHODS`; "auto" is EBLS that allows for classes with few training rows, FMAPLS below 20 classes, or MAPLS where
    the training counts are severely long-tailed and too few labels tell what that did to the outputs. `options` go to
    the method.

    >>> pipeline(counts=[500] * 30).method, pipeline(counts=[500, 300]).method, pipeline(counts=[900, 90, 10]).method
    ('ebls', 'fmapls', 'mapls')
    """
    check_choice(str(method).lower(), "pipeline", "method", ("auto", *METHODS, *ALIASES))
    if (proba is None) != (y is None) or (proba is None and counts is None):
        fail(
            "pipeline", "proba, y", "both be given, or `counts` alone", "one of them" if counts is None else "`counts`"
        )
    trained = None if counts is None else check_prior(counts, "pipeline", "counts")
    total = None if counts is None else np.asarray(counts, np.float64)
    if total is not None and total.min() < 1:
        fail("pipeline", "counts", "be training rows of each class, at least 1", total.min(),
             remedy="Pass shares as `prior`")  # fmt: skip
    if proba is None:
        made = replace(Source(trained), made="training counts")  # type: ignore[arg-type]
        return Pipeline(None, made, *_method(method, len(made.prior), total, 0.0, options))
    rows, labels = _read(proba, y)
    if trained is not None and len(trained) != rows.shape[1]:
        fail("pipeline", "counts", f"have {rows.shape[1]} classes like `proba`", len(trained))
    n_each = len(rows) / rows.shape[1]
    biases = np.bincount(labels, minlength=rows.shape[1]).min() >= LABELS_FOR_BIASES
    if calibration == "auto" and biases:
        cal = calibrate.fit(rows, labels, kind="auto", kinds=("temperature", "bias-corrected"))
    elif calibration == "auto" and total is not None and len(rows) < FEW_ROWS:
        cal = calibrate.fit(rows, labels, kind="none")
        prior = "training" if isinstance(prior, str) and prior == "auto" else prior
    elif calibration == "auto":
        cal = calibrate.temperature(rows, labels)
    else:
        cal = calibrate.fit(rows, labels, kind=calibration)
    source = _source(cal, rows, labels, prior, total, classes)
    return Pipeline(cal, source, *_method(method, rows.shape[1], total, n_each, options))


def select(
    proba: Any, y: Any, *, counts: Any = None, n: int | None = None, trials: int = 8,
    calibrations: Sequence[str] = ("none", "temperature", "bias-corrected"),
    methods: Sequence[str] = ("mlls", "mapls", "fmapls", "ebls"), misfits: Sequence[float] = (0.0, 1.0, 3.0),
    rng: int | np.random.Generator | None = 0,
) -> Pipeline:  # fmt: skip
    """Return the pipeline that does best on shifts simulated from held-out outputs (n, K) and labels (n,).

    Half of the rows, in turn, calibrate and summarise; from the other half targets of up to `n` rows are drawn, to
    random priors and no row twice. Calibrators × source priors × methods × strengths compete; `misfits` are multiples
    of what the default takes from the training `counts` (K,). The default pipeline is kept unless another beats it by
    more than two standard errors. `Pipeline.table` lists all, best first.
    """
    rows, labels = _read(proba, y)
    rng = as_rng(rng)
    check_number(trials, "select", "trials", low=2, whole=True)
    total = None if counts is None else np.asarray(counts, np.float64)
    priors = ("mean", "labels") if counts is None else ("mean", "pooled", "training")
    strengths = [0.0] if counts is None else [float(m) for m in misfits]
    setups = [(m, s) for m in methods for s in (strengths if m == "ebls" else [0.0])]
    usual = pipeline(rows, labels, counts=counts)
    losses: dict[tuple[str, str, str, float], list[float]] = {}
    side = _halves(labels, rng)
    for trial in range(int(trials)):
        fitting, drawing = side == trial % 2, side != trial % 2
        target = _simulated(rows[drawing], labels[drawing], trial // 2, n or int(drawing.sum()), rng)
        for kind in calibrations:
            cal = calibrate.fit(rows[fitting], labels[fitting], kind=kind)
            out = cal(target.proba)
            for prior, (method, strength) in product(priors, setups):
                source = _source(cal, rows[fitting], labels[fitting], prior, total, smooth=True)
                found = estimate(source, out, method, **_options(method, total, strength, {}, tol=1e-5))
                key = (calibrate.ALIASES.get(kind, kind), prior, method, strength)
                losses.setdefault(key, []).append(min(metrics.kl(target.prior, found.prior), 50.0))
    mean = {key: float(np.mean(loss)) for key, loss in losses.items()}
    best = min(mean, key=mean.__getitem__)
    kind = usual.calibrator.kind if usual.calibrator else "none"
    prior = {"training counts": "training", "mean held-out output": "mean"}.get(usual.source.made, "pooled")
    default = (kind, prior, usual.method, 1.0 if "misfit" in usual.options else 0.0)
    if default in losses:
        gain = np.subtract(losses[default], losses[best])
        best = default if gain.mean() <= 2 * gain.std() / np.sqrt(len(gain)) else best
    spread = {key: float(np.std(loss) / np.sqrt(len(loss))) for key, loss in losses.items()}
    table = tuple(Candidate(*key, mean[key], spread[key]) for key in sorted(mean, key=mean.__getitem__))
    cal = calibrate.fit(rows, labels, kind=best[0])
    source = _source(cal, rows, labels, best[1], total)
    return Pipeline(cal, source, best[2], _options(best[2], total, best[3], {}), table)


def pooled_prior(rows: Matrix, counts: Vector, weight: Vector | None = None) -> Vector:
    """Return the source prior (K,) that calibrated held-out outputs (n, K) and training counts (K,) agree on.

    Calibration and overfitting flatten or sharpen the prior that outputs carry, so the training prior is first raised
    to the power that fits the mean output, then pooled with it, each weighed by the rows it stands for. `weight` (n,)
    says how much each row counts, where held-out rows have another class mix than training had.
    """
    share = np.full(len(rows), 1.0 / len(rows)) if weight is None else weight / weight.sum()
    n, mean, log_counts = 1.0 / (share @ share), share @ rows, np.log(counts)
    log_counts = log_counts - log_counts.mean()
    power = 1.0
    for _ in range(
        50
    ):  # Newton's method on a concave log-likelihood, Σ mean log prior, with a normal prior on the power
        base = np.exp(power * log_counts)
        base /= base.sum()
        slope = n * (mean - base) @ log_counts - (power - 1) / TILT**2
        bend = n * (base @ log_counts**2 - (base @ log_counts) ** 2) + 1 / TILT**2
        power += slope / bend
        if abs(slope / bend) < 1e-9:
            break
    squares = n * (share @ rows**2)
    worth = (squares + squares.sum() / n) / (n * mean + 1)  # κ = Σp²/Σp: soft outputs scatter less than counted labels
    held = POOLING * n / worth
    prior = (held * mean + counts.sum() * base) / (held + counts.sum())
    return np.asarray(prior / prior.sum())


def misfit_of(counts: Vector) -> Vector:
    """Return the variance (K,) of the error a classifier makes in the log share of classes with few training rows."""
    return np.asarray(np.maximum(0.0, 1 / counts - 1 / counts.mean()))


def _method(
    method: str, n_classes: int, counts: Vector | None, n_each: float, options: dict[str, Any]
) -> tuple[str, dict[str, Any]]:
    if method == "auto":
        severe = counts is not None and counts.max() > SEVERE * counts.min()
        method = "fmapls" if n_classes < FEW_CLASSES else "ebls"
        method = "mapls" if severe and n_each < FEW_LABELS else method
    return method, _options(method, counts, 1.0, options)


def _options(
    method: str, counts: Vector | None, strength: float, options: dict[str, Any], **more: Any
) -> dict[str, Any]:
    if method != "ebls":
        return options
    return ({} if counts is None else {"misfit": strength * misfit_of(counts)}) | more | options


def _source(
    cal: Calibrator, rows: Matrix, labels: Labels, prior: Any, counts: Vector | None,
    classes: Sequence[str] | None = None, *, smooth: bool = False,
) -> Source:  # fmt: skip
    """Return the source of calibrated outputs; `smooth` gives unseen classes half a label."""
    out = np.asarray(cal(rows), np.float64)
    if not isinstance(prior, str):
        return summarize(out, labels, prior=prior, classes=classes)
    check_choice(prior, "pipeline", "prior", ("auto", "mean", "labels", "training", "pooled"))
    if prior == "auto":
        prior = "mean" if counts is None or cal.kind == "bias-corrected" else "pooled"
    if prior in ("mean", "labels") and not (prior == "labels" and smooth):
        return summarize(out, labels, prior=prior, classes=classes)
    if prior == "labels":
        value, made = np.bincount(labels, minlength=rows.shape[1]) + 0.5, "held-out label counts"
    elif counts is None:
        fail("pipeline", "counts", f"be given for prior={prior!r}", "nothing")
    elif prior == "training":
        value, made = counts, "training counts"
    else:
        value, made = pooled_prior(out, counts), "training counts and mean held-out output"
    return replace(summarize(out, labels, prior=value, classes=classes), made=made)


def _read(proba: Any, y: Any) -> tuple[Matrix, Labels]:
    rows = check_matrix(proba, "select", "proba")
    check_rows(numbered(ArrayBlocks(rows)), "select", "proba")
    return rows, check_labels(y, "select", "y", *rows.shape)


def _halves(labels: Labels, rng: np.random.Generator) -> Labels:
    """Return 0 or 1 for each row, so that both halves have half of each class."""
    order = rng.permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    side = np.empty(len(labels), np.intp)
    side[order] = np.arange(len(labels)) % 2
    return side


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
