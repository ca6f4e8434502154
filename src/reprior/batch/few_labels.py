"""What labels of a few target rows tell: of the shares, of outputs that they refute, and of classes these favour.

Labels are evidence that no classifier's error lessens. A labelled row leaves the rows that outputs speak for, and its
label counts in full. Where rows to label were chosen, its label says in full what it says beyond its output, and the
output counts as often as it would have in a sample drawn at random. Labels also tell which classes the corrected
outputs of their rows favour.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from reprior._types import Matrix, Vector
from reprior.batch.hypotheses import Seen, Weighed, averaged, nothing
from reprior.batch.posterior import Posterior
from reprior.rows.blocks import Blocks
from reprior.rows.correction import posteriors
from reprior.rows.labelled import LabelledBlocks, some_blocks, taken_rows
from reprior.rows.passes import rows_kept, sample

REFUTED, WIDER = 2.5, 0.5  # nats it takes for labels to refute the outputs at all; to double the variance of those
STRAYS = 2.0  # nats more among very many classes, of which one strays far by chance; by a draw of late_labels.py
STRANGE = 0.3  # of labelled rows, how many may have any class whatever their output says
BIASED = 0.1  # variance of the logarithms by which outputs favour classes, were they corrected by the true shares


def gathered(target: Blocks, source_prior: Vector) -> tuple[Matrix, int, Seen]:
    """Return the rows without a label, or a sample, how many such rows there are, and what labels there are."""
    k = len(source_prior)
    if not isinstance(target, LabelledBlocks):
        return *sample(target), nothing(k)
    labelled = target.labels >= 0
    y = target.labels[labelled]
    counts = np.bincount(y, minlength=k).astype(np.float64)
    seen = replace(nothing(k), counts=counts, drawn=counts)
    if target.weights is not None:
        chosen = np.flatnonzero(labelled)[:: max(1, len(y) // rows_kept(k))]
        there = np.zeros(len(labelled), bool)
        there[chosen] = True
        weights = target.weights[chosen]
        weights = weights * (weights.sum() / (weights**2).sum())  # rows that count unequally tell less
        drawn = np.asarray(np.bincount(target.labels[chosen], weights, minlength=k) * (len(y) / len(chosen)))
        more = (weights - 1) * (len(y) / len(chosen))
        seen = Seen(counts, drawn, taken_rows(target.raw, there) / source_prior, more)
    if labelled.all():
        return np.empty((0, k)), 0, seen
    return *sample(some_blocks(target.raw, ~labelled)), seen


def contradicted(fit: Weighed, seen: Seen, wider: float) -> float:
    """Return how many times wider than `wider` times theirs the variances must be for labels to be as they are.

    Were the outputs right to within those variances, labels of rows drawn at random would be negative binomial around
    the shares that outputs give. A classifier that misleads on the target in a way that held-out rows do not show is
    found out here: labels then count for more. It takes evidence to say so, WIDER for each doubling and REFUTED once.
    """
    from scipy.special import gammaln

    mean = fit.weights @ fit.modes
    spread = fit.open_weights @ (fit.variances + (fit.modes - mean) ** 2)
    shape = mean**2 / np.maximum(wider * spread, 1e-300)
    counts = seen.drawn
    expected = counts.sum() * mean
    doubled, enough = np.arange(0.0, 12.0, 0.5), REFUTED + STRAYS * averaged(len(mean)) ** 2
    score = []
    for step in doubled:
        a = shape / 2**step
        score.append(float((gammaln(counts + a) - gammaln(a) - (counts + a) * np.log1p(expected / a)
                            - counts * np.log(a)).sum()) - WIDER * step - enough * (step > 0))  # fmt: skip
    return float(2 ** doubled[int(np.argmax(score))])


def doubt(posterior: Posterior, prior: Vector) -> Vector:
    """Return the variance (K,) of the logarithm of what a class must count in the correction, before its labels' rows
    are looked at: that of its share, and of how much the outputs favour it."""
    of_share = posterior.variance() / np.maximum(prior, 1e-12) ** 2
    return np.asarray(np.minimum(of_share, 1.0) + BIASED)


def favoured(target: LabelledBlocks, weights: Vector, variance: Vector) -> Vector:
    """Return the logarithms (K,) by which classes must count more for outputs, corrected by `weights` (K,), to expect
    the labels that their rows have: a logistic regression, held back by the `variance` (K,) of those logarithms.

    Outputs say which label each row is likely to have, so a few labels tell more of this than of the shares. A row
    whose label its output all but rules out is no sign of a bias. What a class counts is its mean over what is left
    open, so it is a little more for a class that little is known of.
    """
    known = np.flatnonzero(target.labels >= 0)
    known = known[:: max(1, len(known) // rows_kept(len(weights)))]
    y, rows = target.labels[known], taken_rows(target.raw, np.isin(np.arange(len(target.labels)), known)) * weights
    k, each, bias = len(weights), np.arange(len(y)), np.zeros(len(weights))
    for _ in range(30):
        resp = posteriors(rows, np.exp(bias))
        fair = resp[each, y] / (resp[each, y] + STRANGE / k)
        expected = fair @ resp
        bend = np.diag(expected + 1 / variance) - (fair * resp.T) @ resp
        missing = np.bincount(y, fair, k) - expected - bias / variance
        step = np.clip(np.linalg.solve(bend, missing), -1.0, 1.0)
        bias += step
        if np.abs(step).max() < 1e-6:
            break
    return np.asarray(bias + np.diag(np.linalg.inv(bend)) / 2)
