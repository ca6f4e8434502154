"""The pipeline that does best on shifts simulated from the user's own held-out rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reprior import simulate
from reprior._check import as_rng, check_int, check_labelled
from reprior._types import Labels, Matrix
from reprior.assess import metrics
from reprior.batch.registry import estimate
from reprior.pipelines import calibrate
from reprior.pipelines.pipeline import RIDGE, Candidate, Pipeline, _options, _source, pipeline
from reprior.pipelines.source import misfit_of


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
