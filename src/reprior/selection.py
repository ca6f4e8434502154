"""Calibrator, source prior and method as one value: by default, by hand, or chosen by simulated shifts.

The defaults, and what they were measured against, are on the page "Which method should I use?" of the docs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from reprior import calibrate, metrics, simulate
from reprior._check import as_rng, check_choice, check_int, check_labelled, check_prior, fail
from reprior._types import Labels, Matrix, PriorEstimate, Source, Vector
from reprior.blocks import correct
from reprior.calibrate import Calibrator
from reprior.diagnose import scaled_chi_square_p
from reprior.methods import ALIASES, METHODS, estimate
from reprior.source import summarize

RIDGE = 10.0  # labelled rows of a class that its bias must outweigh: few of them leave plain temperature scaling
FEW_ROWS = 100  # held-out rows in all, below which training counts say more than they do
FEW_CLASSES = 20  # below which there are too few shares to learn their distribution from
SEVERE = 20.0  # times as many training rows in the largest class as in the smallest: its tail is then misjudged
TILT = 0.2  # how far from 1, a priori, the exponent of the training prior may be
PSEUDO_ROWS = 5.0  # of average certainty, added to each class
CHANCE = 1e-3  # p-value of the held-out labels' mix below which it is taken to differ from that of training
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

    `counts` (K,) are the training rows of each class; held-out rows may have another class mix. `calibration` is a
    name of `calibrate.KINDS`; "auto" is temperature scaling with a bias for each class, held back where a class has
    few labels. `prior` is "pooled" (training counts and mean calibrated output), "mean", "labels", "training", or a
    vector (K,), which can also stand alone; "auto" pools if it can. `method` is a name of `METHODS`; "auto" is EBLS
    that allows for classes learnt from few rows, FMAPLS below 20 classes, or MAPLS where training was severely
    long-tailed and no labels tell what that did to the outputs. `options` go to the method.

    >>> pipeline(counts=[500] * 30).method, pipeline(counts=[500, 300]).method, pipeline(counts=[900, 90, 10]).method
    ('ebls', 'fmapls', 'mapls')
    """
    method = check_choice(str(method).lower(), "pipeline", "method", ("auto", *METHODS, *ALIASES))
    method = ALIASES.get(method, method)
    if (proba is None) != (y is None) or (proba is None and counts is None and isinstance(prior, str)):
        given = "one of them" if counts is None else "`counts`"
        fail("pipeline", "proba, y", "both be given, or `counts` alone, or a `prior`", given)
    trained = None if counts is None else check_prior(counts, "pipeline", "counts")
    total = None if counts is None else np.asarray(counts, np.float64)
    if total is not None and total.min() < 1:
        fail("pipeline", "counts", "be training rows of each class, at least 1", total.min(),
             remedy="Pass shares as `prior`")  # fmt: skip
    if proba is None:
        source = Source(check_prior(prior, "pipeline", "prior") if trained is None else trained)
        source = source if trained is None else replace(source, made="training counts")
        method = _auto(method, len(source.prior), source.prior if total is None else total, heldout=False)
        return Pipeline(None, source, method, options)
    rows, labels = check_labelled(proba, y, "pipeline")
    n, k = rows.shape
    if trained is not None and len(trained) != k:
        fail("pipeline", "counts", f"have {k} classes like `proba`", len(trained))
    if calibration == "auto" and total is not None and n < FEW_ROWS:
        calibration = "none"
        prior = "training" if isinstance(prior, str) and prior == "auto" else prior
    kind, tilt = "bias-corrected" if calibration == "auto" else calibration, None
    if total is not None and (tilt := tilt_of(labels, total)) is not None:
        # labels and outputs agree once these are put to the mix of the labels: fit there, and move back
        floor = 0.5 * float(rows.min(initial=1.0, where=rows > 0) * tilt.min() / tilt.max())  # zeros must tilt too
        moved = np.maximum(rows, floor)
        cal = calibrate.fit(correct(moved / moved.sum(axis=1, keepdims=True), tilt), labels, kind=kind, ridge=RIDGE)
        cal = replace(cal, floor=floor, bias=cal.bias + (cal.scale - 1) * np.log(tilt))
    else:
        cal = calibrate.fit(rows, labels, kind=kind, ridge=RIDGE)
    source = _source(cal, rows, labels, prior, total, classes, tilt=tilt)
    method = _auto(method, k, total, heldout=True)
    misfit = misfit_of(total, cal(rows), None if tilt is None else 1 / tilt[labels])
    return Pipeline(cal, source, method, _options(method, misfit, 1.0, options))


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
    rows, labels = check_labelled(proba, y, "select")
    rng, trials = as_rng(rng), check_int(trials, "select", "trials", low=2)
    total = None if counts is None else np.asarray(counts, np.float64)
    priors = ("mean", "labels") if counts is None else ("mean", "pooled", "training")
    strengths = [0.0] if counts is None else [float(m) for m in misfits]
    setups = [(m, s) for m in methods for s in (strengths if m == "ebls" else [0.0])]
    usual = pipeline(rows, labels, counts=counts)
    losses: dict[tuple[str, str, str, float], list[float]] = {}
    side = simulate.folds(labels, 2, rng)
    for trial in range(trials):
        fitting, drawing = side == trial % 2, side != trial % 2
        target = _simulated(rows[drawing], labels[drawing], trial // 2, n or int(drawing.sum()), rng)
        for kind in calibrations:
            cal = calibrate.fit(rows[fitting], labels[fitting], kind=kind, ridge=RIDGE)
            misfit, out = misfit_of(total, cal(rows[fitting])), cal(target.proba)
            for prior in priors:
                source = _source(cal, rows[fitting], labels[fitting], prior, total, smooth=True)
                for method, strength in setups:
                    found = estimate(source, out, method, **_options(method, misfit, strength, {}, tol=1e-5))
                    key = (calibrate.ALIASES.get(kind, kind), prior, method, strength)
                    losses.setdefault(key, []).append(min(metrics.kl(target.prior, found.prior), 50.0))
    root = np.sqrt(trials)
    table = [Candidate(*key, float(np.mean(loss)), float(np.std(loss) / root)) for key, loss in losses.items()]
    table.sort(key=lambda candidate: candidate.kl)
    best = table[0][:4]
    kind = usual.calibrator.kind if usual.calibrator else "none"
    prior = {"training counts": "training", "mean held-out output": "mean"}.get(usual.source.made, "pooled")
    default = (kind, prior, usual.method, 1.0 if "misfit" in usual.options else 0.0)
    if default in losses:
        gain = np.subtract(losses[default], losses[best])
        best = default if gain.mean() <= 2 * gain.std() / root else best
    kind, prior, method, strength = best
    cal = calibrate.fit(rows, labels, kind=kind, ridge=RIDGE)
    source = _source(cal, rows, labels, prior, total)
    return Pipeline(cal, source, method, _options(method, misfit_of(total, cal(rows)), strength, {}), tuple(table))


def pooled_prior(rows: Matrix, counts: Vector, weight: Vector | None = None) -> Vector:
    """Return the source prior (K,) that calibrated held-out outputs (n, K) and training counts (K,) agree on.

    Calibration and overfitting flatten or sharpen the prior that outputs carry, so the training prior is first raised
    to the power that fits the mean output, then pooled with it, each weighed by the rows it stands for. `weight` (n,)
    says how much each row counts, where held-out rows have another class mix than training had.
    """
    share = np.full(len(rows), 1.0 / len(rows)) if weight is None else weight / weight.sum()
    n, mean, log_counts = 1.0 / (share @ share), share @ rows, np.log(counts)
    log_counts = log_counts - log_counts.mean()
    low, high = -20.0, 20.0
    for _ in range(60):  # bisect the slope of Σ mean log base, which is concave, with a normal prior on the power
        power = 0.5 * (low + high)
        base = np.exp(power * log_counts - (power * log_counts).max())
        base /= base.sum()
        rising = n * (mean - base) @ log_counts > (power - 1) / TILT**2
        low, high = (power, high) if rising else (low, power)
    squares = n * (share @ rows**2)
    worth = (squares + squares.sum() / n) / (n * mean + 1)  # κ = Σp²/Σp: soft outputs scatter less than counted labels
    held = POOLING * n / worth
    prior = (held * mean + counts.sum() * base) / (held + counts.sum())
    return np.asarray(prior / prior.sum())


def misfit_of(counts: Vector | None, rows: Matrix, weight: Vector | None = None) -> Vector | None:
    """Return the variance (K,) of the error a classifier makes in the log share of a class, from its training rows.

    A class learnt from n rows is misjudged by about 1/n, if it is mistaken for others: rows whose class is certain are
    counted right however badly it was learnt. So 1/n is multiplied by (1−κ)/κ, the odds that a soft count of the
    calibrated `rows` (n, K), weighed by `weight` (n,), is not one whole row.
    """
    if counts is None:
        return None
    weighed = rows if weight is None else rows * (weight / weight.mean())[:, None]
    sums, squares = weighed.sum(axis=0), (weighed * rows).sum(axis=0)
    whole = (squares + PSEUDO_ROWS * squares.sum() / sums.sum()) / (sums + PSEUDO_ROWS)  # κ = Σp²/Σp
    return np.asarray((1 - whole) / whole / counts)


def _auto(method: str, n_classes: int, counts: Vector | None, *, heldout: bool) -> str:
    if method != "auto":
        return method
    if not heldout and counts is not None and counts.max() > SEVERE * counts.min():
        return "mapls"
    return "fmapls" if n_classes < FEW_CLASSES else "ebls"


def _options(
    method: str, misfit: Vector | None, strength: float, options: dict[str, Any], **more: Any
) -> dict[str, Any]:
    if method != "ebls":
        return options
    return ({} if misfit is None else {"misfit": strength * misfit}) | more | options


def _source(
    cal: Calibrator, rows: Matrix, labels: Labels, prior: Any, counts: Vector | None,
    classes: Sequence[str] | None = None, *, smooth: bool = False, tilt: Vector | None = None,
) -> Source:  # fmt: skip
    """Return the source of calibrated outputs; `smooth` gives unseen classes half a label, `tilt` is undone."""
    out, made, weight = np.asarray(cal(rows), np.float64), "", None if tilt is None else 1 / tilt[labels]
    if isinstance(prior, str):
        check_choice(prior, "pipeline", "prior", ("auto", "mean", "labels", "training", "pooled"))
        if prior == "auto":
            prior = "mean" if counts is None else "pooled"
        if prior == "labels" and smooth:
            prior, made = np.bincount(labels, minlength=rows.shape[1]) + 0.5, "held-out label counts"
        elif prior in ("training", "pooled"):
            if counts is None:
                fail("pipeline", "counts", f"be given for prior={prior!r}", "nothing")
            made = "training counts" if prior == "training" else "training counts and mean held-out output"
            prior = counts if prior == "training" else pooled_prior(out, counts, weight)
        elif weight is not None:
            made = "mean held-out output" if prior == "mean" else "held-out label counts"
            prior = weight @ (out if prior == "mean" else np.eye(rows.shape[1])[labels] + 1e-3)
    source = summarize(out, labels, prior=prior, classes=classes)
    if tilt is not None and source.confusion is not None and source.hard_confusion is not None:
        scale = 1 / (tilt * (source.confusion.sum(axis=0) @ (1 / tilt)))
        source = replace(source, confusion=source.confusion * scale, hard_confusion=source.hard_confusion * scale)
    return replace(source, made=made) if made else source


def tilt_of(labels: Labels, counts: Vector) -> Vector | None:
    """Return how many times its training share each class has among held-out labels (K,); None if that may be chance.

    Both are samples, so a class's rows would fall to either as all rows do. The squared differences are summed so that
    classes of which less than a row is expected count little.
    """
    seen, n, total = np.bincount(labels, minlength=len(counts)), len(labels), counts.sum()
    held, rows = n / (n + total), seen + counts
    variance, others = held * (1 - held) * rows, 1 - rows / (n + total)
    weight = 1 / (variance + 1)
    mean, scatter = weight @ (variance * others), weight**2 @ ((variance + 2 * variance**2) * others)
    squares = weight @ (seen - held * rows) ** 2
    if scaled_chi_square_p(squares, mean=mean, variance=scatter) > CHANCE:
        return None
    return np.asarray((seen + 0.5) / (n + 0.5 * len(counts)) / (counts / total))  # half a row: no class is impossible


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
