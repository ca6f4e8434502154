"""The accuracy to expect on the target: what its own corrected outputs promise, as far as labelled rows bear it out.

Calibrated outputs say how often they are right. The estimated mix flatters the rows that it was fitted to, so the
promise is read under mixes that it might have been. Where held-out rows in the target's mix differ from it by more than
chance, they are believed instead. A calibrator that was fitted to them flatters them, so each is looked at as if it had
been left out of the fit. Labels of target rows, as far as there are any, correct both.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reprior._types import Labels, Matrix, PriorEstimate, Source, Vector
from reprior.assess.conformal import nearby
from reprior.batch.few_labels import doubt
from reprior.batch.posterior import Posterior
from reprior.rows.blocks import Blocks
from reprior.rows.correction import posteriors
from reprior.rows.labelled import LabelledBlocks, taken_rows

REDRAWN = 16  # class mixes that the estimate might have been
Z = 1.959964


class Accuracy(NamedTuple):
    """What to expect of predictions as they are and of corrected ones, a 95 % interval of the latter, and by how much
    correction may lower it, if the class mix is not quite the estimate; 0 if it hardly can."""

    before: float
    after: float
    lower: float
    upper: float
    risk: float


class Rows(NamedTuple):
    """Of rows: how likely their prediction is right before and after correction, and whether it is, (2, n) each."""

    promised: Matrix
    right: Matrix


def expected_accuracy(estimate: PriorEstimate, target: Blocks, known: Source) -> Accuracy | None:
    """Return the accuracy that held-out rows and labels of target rows let one expect; None without any of them."""
    labelled = estimate.target if isinstance(estimate.target, LabelledBlocks) else None
    if known.heldout is None and labelled is None:
        return None
    weights, n = estimate.weights, float(estimate.n)
    others = might_be(estimate) / known.prior
    counts = np.zeros(len(weights)) if known.heldout is None else np.bincount(known.heldout[1], minlength=len(weights))
    untold = counts == 0

    def of_block(block: Matrix) -> Matrix:
        wide, promise = np.asarray(block, np.float64), promised(block, weights)
        total, made = wide @ others.T, (wide.argmax(axis=1), (wide * weights).argmax(axis=1))
        shares = [(wide[np.arange(len(y)), y, None] * others.T[y] / np.maximum(total, 1e-300)).sum(axis=0)
                  for y in made]  # fmt: skip
        alone = [(p * untold[y]).sum() for p, y in zip(promise, made, strict=True)]
        sums = [promise.sum(axis=1), (promise * (1 - promise)).sum(axis=1), np.array(alone)]
        return np.concatenate([np.stack(sums, axis=1), shares], axis=1)

    sums = np.asarray(target.map_sum(of_block) / n, np.float64)
    mean, spread, alone, redrawn = *sums[:, :3].T, sums[:, 3:]  # one that promises p is right with variance p(1 − p)
    whole = promise = mean
    variance = np.full(2, np.inf)
    if known.heldout is not None:
        rows, y = known.heldout
        each = (estimate.prior / np.maximum(counts, 1))[y]
        fitted = estimate.calibrator
        apart = told(np.asarray(rows, np.float64) if fitted is None else fitted.left_out(rows, y), y, weights)
        if redrawn.size:
            promise = np.minimum(promise, redrawn.mean(axis=1))
        # no held-out row tells of some classes, which are mostly rare and rarely right: they are as they promise
        found, noise = apart.right @ each + alone, (each**2) @ (apart.promised * (1 - apart.promised)).T
        differ = found - promise
        believed = np.maximum(0.0, 1 - 4 * noise / np.maximum(differ**2, 1e-12))  # beyond two standard errors
        mean = promise + believed * differ
        # what held-out rows leave open of the calibrator: between their number and what they are worth in this mix
        worth = np.sqrt(len(y) / max(float(each @ each), 1e-300)) * max(float(each.sum()), 1e-150)
        variance = np.maximum(mean * (1 - mean), 1e-6) / worth + spread / n + believed * noise
        variance += redrawn.var(axis=1) if redrawn.size else 0.0
    if labelled is not None:
        found, noise = by_labels(labelled, estimate, whole)
        # beyond three standard errors held-out rows do not tell how wrong it is here; beyond two, labels often are
        variance = variance + np.maximum((found - mean) ** 2 - 9 * (variance + noise), 0.0)
        gain = variance / (variance + noise) if np.isfinite(variance).all() else np.ones(2)
        mean = mean + gain * (found - mean)
        variance = noise * gain
    before, after = np.clip(mean, 0.0, 1.0)
    gains = redrawn[1] - redrawn[0]
    least = min(after - before, float(gains.mean() - 2 * gains.std()) if gains.size else np.inf)
    reach = Z * float(np.sqrt(variance[1]))
    ends = max(0.0, float(after) - reach), min(1.0, float(after) + reach)
    return Accuracy(float(before), float(after), *ends, max(0.0, -float(least)))


def might_be(estimate: PriorEstimate) -> Matrix:
    """Return class mixes (m, K) that the estimate might have been, as far as it has a posterior; else none."""
    found = estimate.posterior
    if not isinstance(found, Posterior):
        return np.empty((0, len(estimate.prior)))
    return nearby(estimate.prior, np.sqrt(found.variance()), REDRAWN)


def by_labels(target: LabelledBlocks, estimate: PriorEstimate, promise: Vector) -> tuple[Vector, Vector]:
    """Return the accuracies (2,) that labels of target rows tell, before and after, and their variances (2,).

    They say by how much the rows fail what they promise; the `promise` (2,) of all rows is then less by so much. A
    label has raised the share of its own class, so its row tells of rows without one by the share without it.
    """
    there = target.labels >= 0
    rows, y = taken_rows(target.raw, there), target.labels[there]
    each = np.ones(len(y)) if target.weights is None else target.weights[there]
    each = each / each.sum()
    weights, prior, own = estimate.weights, np.maximum(estimate.prior, 1e-12), rows.copy()
    raised = 1 / (len(there) * prior[y])
    belief = estimate.posterior
    if isinstance(belief, Posterior):  # it also speaks for the rows without a label
        raised = -np.expm1(-raised - belief.swayed[y])
    raised *= np.minimum(len(y) * each, 1.0)  # it is one row, whatever it stands for
    if isinstance(belief, Posterior) and estimate.bias is not None:
        # one Newton step back, as in `Calibrator.left_out`; it makes up for part of the share
        resp, known = posteriors(rows, weights), 1 / doubt(belief, prior)
        curve = (resp * (1 - resp)).sum(axis=0) + known
        own *= np.exp(resp / curve)
        own[np.arange(len(y)), y] *= np.exp(-1 / curve[y])
        raised *= (known / curve)[y]
    own[np.arange(len(y)), y] *= np.maximum(1 - raised, 0.0)
    seen = told(rows, y, weights)
    right = np.stack([seen.right[0], (own * weights).argmax(axis=1) == y])
    labelled = len(y) / len(there)
    found = promise + (labelled * seen.right + (1 - labelled) * right - seen.promised) @ each
    # half a row more of either kind: rows that are all right do not prove that none is wrong
    rate = (len(y) * (right @ each) + 0.5) / (len(y) + 1)
    plain = rate * (1 - rate) * float(each @ each)
    missed = right - seen.promised
    chance = seen.promised * (1 - seen.promised), (missed - (missed @ each)[:, None]) ** 2  # as promised, as it is seen
    noise = np.maximum(np.maximum(*(x @ each**2 for x in chance)), 0.3 * plain)
    return np.asarray(found), np.asarray(noise * max(1 - labelled, 1e-6))


def promised(rows: Matrix, weights: Vector) -> Matrix:
    """Return how likely predictions are right (2, n), by corrected outputs: as they are, and after correction."""
    wide = np.asarray(rows, np.float64)
    resp = posteriors(wide, weights)
    return np.stack([np.take_along_axis(resp, wide.argmax(axis=1)[:, None], axis=1)[:, 0], resp.max(axis=1)])


def told(rows: Matrix, y: Labels, weights: Vector) -> Rows:
    """Return what rows (n, K) with labels (n,) tell."""
    right = np.stack([rows.argmax(axis=1) == y, (rows * weights).argmax(axis=1) == y]).astype(np.float64)
    return Rows(promised(rows, weights), right)
