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
from reprior.batch.hypotheses import Hypotheses, Seen, Weighed, averaged, nothing
from reprior.batch.posterior import Posterior
from reprior.rows.blocks import Blocks
from reprior.rows.correction import posteriors
from reprior.rows.labelled import LabelledBlocks, some_blocks, taken_rows
from reprior.rows.passes import rows_kept, sample

REFUTED, WIDER = 2.5, 0.5  # nats it takes for labels to refute the outputs at all; to double the variance of those
STRAYS = 2.0  # nats more among very many classes, of which one strays far by chance; by a draw of late_labels.py
UNTOLD = 2.0  # times that counts what a class's held-out rows leave open; by trials 1000 to 1023 of labels.py
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


def of_these_rows(fit: Weighed, given: Hypotheses, n: int, heldout: Vector, unsure: float, misled: float) -> Matrix:
    """Return the variances (C, K) of the shares among `n` rows without a label, beside rows with one.

    Outputs tell as much of log π_j as o_j labels, if the classifier is right. So far they count o_j/(1 + `unsure`), as
    if its error were alike for all classes. But nπ_j − o_j rows of a class they leave open, and how to read those only
    the class's own rows in `heldout` (K,) tell. So their variance is 1 + `misled` + UNTOLD·(nπ_j − o_j)/(h_j + ½) times
    1/o_j: little more for a class that outputs are sure of, much for one that hardly a held-out row is of. The share
    among these very rows strays from π_j by 1/nπ_j. Their own outputs have seen that, and labels of others have not.
    """
    sure, count = given.alpha + given.seen.counts, np.maximum(n * fit.modes, 1e-9)
    total = sure.sum(axis=1, keepdims=True) + n / (1 + unsure)  # shares add up to 1, which is put aside here
    known = 1 / (fit.variances / fit.modes**2 + 1 / total)
    o = (1 + unsure) * np.maximum(known - sure, 0.02 * known)
    by_outputs = (1 + misled + UNTOLD * np.maximum(count - o, 0.0) / (heldout + 0.5)) / o
    by_outputs -= np.minimum(1 / count, 0.9 * by_outputs)
    return np.asarray(fit.modes**2 * (1 - fit.modes) / (1 / (1 / sure + 1 / count) + 1 / by_outputs))


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
