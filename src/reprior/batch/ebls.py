"""EBLS, the default: the posterior mean under a prior over class shares that is itself weighed by the data.

Most targets have not shifted, and most classifiers say little. So "nothing has shifted" is one of the hypotheses, and
shifts of many sizes, around the source prior and around the uniform one, are the others; each is a Dirichlet prior,
weighed by its evidence. Two rules keep the data from saying more than they know. The source prior and the calibrator
come from held-out rows, a sample too, so N target rows count as harmonically many as N and the held-out rows together.
That decides whether anything has shifted. How far, is asked at the mix that was found: where few held-out rows stand
for what is frequent there, or the classifier is seen to mislead on them, rows count for less.

Labels of target rows count in full, whatever the classifier's error; `few_labels.py` says how.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from reprior._check import check_number, check_prior
from reprior._kernels.small import ascend
from reprior._types import Matrix, PriorEstimate, Source, Status, Vector
from reprior.batch.driver import finish
from reprior.batch.few_labels import contradicted, doubt, favoured, gathered
from reprior.batch.hypotheses import Hypotheses, Weighed, averaged, but_for_some, softmax, supposed_once, weigh
from reprior.batch.posterior import Posterior
from reprior.batch.trust import FEWEST, MANY, left_open, shown_by, stands_behind, unsure_of
from reprior.rows.blocks import Blocks, given
from reprior.rows.labelled import LabelledBlocks, labelled, put_in, some_blocks
from reprior.rows.passes import e_step

HELD_BACK, SOME_LABELS = 1.5, 20.0  # times as wide as held-out rows say that the outputs' error is taken to be beside
# labels, of which so many bring half of that
SOON = 10  # labels from which on the bias that they show has more than half of its say in the shares
# by one draw of 1,000 simulated classes, and the next by seeds 50 to 54 of quality.py
ENOUGH, MORE_PASSES = 50.0, 4  # rows a class that a sample must have to do without so many more passes over all rows
FEW_ROWS = 5.0  # target rows a class of which the prior says half of what they would say by themselves
LOOSE = 15.5  # rows a class up to which a hypothesis lets the rows themselves say the shares
HOPELESS = 40.0  # nats by which a hypothesis has to be behind to be dropped


def ebls(
    source: Any, proba: Any, *, labels: Any = None, label_weights: Any = None, base: Any = None,
    worth: float | None = None, tol: float = 1e-5, n_iter: int = 60,
) -> PriorEstimate:  # fmt: skip
    """Estimate the target prior by empirical Bayes: where nothing is known, nothing is changed.

    Parameters
    ----------
    source : Source, or class counts or prior (K,)
        What the outputs carry. Its held-out rows, if it has any, tell how far outputs can be trusted.
    proba : rows (n, K) of probabilities, Blocks, or a top-k pair
    labels : (n,), optional
        Labels of some target rows, names or column indices, −1 where unknown.
    label_weights : (n,), optional
        How much each labelled row counts beside one that was chosen at random, as `query` says; others do not matter.
    base : (K,), optional
        The class mix of training where it is known better than the prior that outputs carry. That is kept if nothing
        has shifted.
    worth : float, optional
        How many held-out rows stand behind the outputs. By default those of the source, with a base at least 20 for
        each class beyond ten but no more than 2.2 times those there are, or 30 a class if it has none.
    tol, n_iter
        The L1 change of a hypothesis at which iterations stop, and passes over the rows at most.

    Examples
    --------
    >>> rows = [[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]] * 50
    >>> ebls([1, 1], rows).prior.round(2)
    array([0.5, 0.5])
    """
    check_number(tol, "ebls", "tol", low=0, open_low=True)
    check_number(n_iter, "ebls", "n_iter", low=1, whole=True)
    known, target = given(source, proba, "ebls")
    k = len(known.prior)
    middle = known.prior if base is None else check_prior(base, "ebls", "base", n_classes=k, like="`source`")
    target = labelled(target, labels, known, "ebls", label_weights)
    usual = stands_behind(known, beside_base=base is not None)
    worth = usual if worth is None else check_number(worth, "ebls", "worth", low=0, open_low=True)
    rows, n, seen = gathered(target, known.prior)
    unsure = n / worth  # how much more variance the held-out rows' noise brings than that of the target rows
    supposed = supposed_once(middle.tobytes(), float(worth), shown_by(known).tobytes())
    fit, total, reached = weigh(rows, known.prior, supposed, n, 1 / (1 + unsure), tol=tol, n_iter=int(n_iter))
    apart = None
    if n and known.heldout is not None:  # else nothing tells whether classes apart are not the classifier's errors
        shares = fit.if_shifted(supposed.still)
        apart = but_for_some(shares, supposed, middle, rows, known.prior, n / (1 + unsure))
    if apart is not None:
        other, more, also = weigh(rows, known.prior, apart, n, 1 / (1 + unsure), tol=tol, n_iter=int(n_iter))
        supposed, total, reached = supposed.joined(apart), total + more, reached and also
        fit = fit.joined(other, supposed)
    misled, vague, refuted, beyond, labelled_rows = unsure, 0.0, 1.0, 0.0, bool(seen.counts.any())
    if known.heldout is not None and n:
        # what held-out rows say of the classifier depends on the mix: ask them once, at what it is if it has shifted
        misled, vague = unsure_of(rows, n, fit.if_shifted(supposed.still), known, unsure=unsure)
        beyond = max(misled - unsure, 0.0)  # what is seen of the outputs' error, and not foreseen
    if labelled_rows and n:
        refuted = contradicted(fit, seen, (1 + misled) / (1 + unsure))
        beyond = refuted * (1 + beyond) - 1
        labels_seen = float(seen.drawn.sum())
        misled = refuted * (1 + (1 + (HELD_BACK - 1) * labels_seen / (labels_seen + SOME_LABELS)) * misled) - 1
        seen = seen.believed(1 / refuted)
    if labelled_rows or abs(np.log1p(misled) - np.log1p(unsure)) > 0.05:
        kept = (fit.log_odds > fit.log_odds.max() - HOPELESS) | labelled_rows  # labels may revive any of them
        before, supposed = fit.those(kept), supposed.those(kept)

        def again(given: Hypotheses) -> tuple[Weighed, int, bool]:
            temper = 1 / (1 + misled)
            return weigh(rows, known.prior, given, n, temper, tol=tol, n_iter=int(n_iter), start=before.modes)

        fit, more, reached = again(supposed)
        weights, unsure, total = fit.believing(before, supposed.still), misled, total + more
        if labelled_rows:
            supposed, rows_alone = replace(supposed, seen=seen), fit
            fit, more, reached = again(supposed)
            by_labels = fit.log_odds - rows_alone.log_odds
            weights = softmax(np.log(np.maximum(weights, 1e-300)) + by_labels) if refuted == 1 else fit.weights
            total += more
        fit = replace(fit, weights=weights)
    least = FEWEST * k if base is not None else 0.0
    prior, weights = answer(target, known, fit, supposed, rows, n, 1 / (1 + unsure), vague, refuted, least)
    estimate = finish(target, known, prior, total, Status.CONVERGED if reached else Status.NOT_CONVERGED)
    # a mode is drawn to the middle, what the rows say is not: if something has shifted, the truth may lie at either
    both = np.concatenate([fit.open_weights, fit.open_weights]) / 2
    means = np.concatenate([fit.modes, np.where(supposed.still[:, None], fit.modes, fit.said)])
    variances = fit.variances
    if n and known.heldout is not None:
        these = isinstance(target, LabelledBlocks)
        shown = shown_by(known) * min(1.0, worth / usual)  # fewer, if the caller says so
        variances = left_open(fit, supposed, n, shown, unsure, beyond, these=these)
    variances = np.concatenate([variances, variances])
    if isinstance(target, LabelledBlocks):  # of these rows, some of which are known: no chance is left in those
        middle, left = both @ means, n / len(target.labels)
        means = np.maximum(put_in(middle, target, known.prior) + left * (means - middle), 1e-12)
        variances = (left if known.heldout is None else left**2) * variances
    still = supposed.still
    swayed = fit.weights[~still] @ (fit.variances / fit.modes**2)[~still]
    swayed = swayed + fit.weights[still].sum() / (supposed.rows + seen.counts)
    posterior = Posterior(both, means, variances, unsure, swayed)
    if isinstance(target, LabelledBlocks):
        shares = prior
        if k <= MANY:
            trust = fit.weights[~still].sum() / refuted  # what labels refute is more than a bias
            weights = weights * np.exp(trust * favoured(target, weights, doubt(posterior, prior)))
            # corrected outputs add up to shares too, which labels have mended in another way: half of each errs less
            some = len(target.labels) - n
            half = trust / (2 * refuted) * some / (some + SOON)
            shares = prior + half * (e_step(target, weights).counts / len(target.labels) - prior)
        bias = np.divide(weights * known.prior, shares, out=np.ones(k), where=shares > 0)
        estimate = replace(estimate, prior=shares, weights=weights, bias=bias)
    return replace(estimate, posterior=posterior)


def scarce(said: Any, drawn: Any, n: int) -> float:
    """Return how far, from 0 to 1, `n` rows are too few for what they say, `said` (K,), and shares `drawn` (K,)
    to a prior are better.

    Rows say nothing for classes that none of them shows. Those have together about as much as there are classes with
    one row [good1953], and no more is drawn back than that takes. Outputs of few rows are rarely sure: a class that has
    0.4 of a row counts 0.4 as one with one row, and 0.6 as one with none.
    """
    rows = n * said
    unseen, one = np.maximum(1 - rows, 0.0), np.maximum(1 - abs(rows - 1), 0.0)
    few = 1 / (1 + (n / (FEW_ROWS * len(said))) ** 2)
    return float(min(few, one.sum() / max(n * (drawn @ unseen), 1e-9)))


def answer(
    target: Blocks, known: Source, fit: Weighed, given: Hypotheses, rows: Matrix, n: int, temper: float, vague: float,
    refuted: float, least: float,
) -> tuple[Vector, Vector]:  # fmt: skip
    """Return the estimate and by what to correct, (K,) each.

    It is what the rows say if something has shifted, but the mode of a hypothesis that leaves next to nothing open, or
    the more `vague` the outputs of few classes are: beside that the rows' error is the larger. If nothing has shifted,
    nothing is changed but for labels; beside these the source's mix counts as `least` rows at least. Rows with a label
    are what it says, and the others say less the more labels have `refuted` them."""
    said, seen = fit.said, given.seen
    weights = np.where(given.still, 0.0, fit.weights)
    moved = float(weights.sum())
    if len(rows) < n and moved > 1e-6:  # let all rows say it
        middle, alpha = weights @ fit.modes / moved, weights @ (given.alpha + seen.counts) / moved
        raw = some_blocks(target.raw, target.labels < 0) if isinstance(target, LabelledBlocks) else target
        counts = e_step(raw, middle / known.prior).counts
        for _ in range(MORE_PASSES if len(rows) < ENOUGH * len(middle) else 0):  # a small sample left modes far away
            middle = alpha + temper * counts
            counts = e_step(raw, middle / middle.sum() / known.prior).counts
        said = np.broadcast_to(counts / n, said.shape)
    said = said - vague * (1 - averaged(said.shape[1])) ** 2 * (said - fit.modes)
    if moved > 1e-6:
        # few rows a class are drawn back as if they were all that is uncertain: modes also bear the classifier's error
        total = given.alpha.sum(axis=1, keepdims=True) + n
        drawn = (given.alpha + n * said) / total
        said = said + scarce(weights @ said / moved, weights @ drawn / moved, n) * (drawn - said)
    said = np.where((given.alpha.sum(axis=1) > LOOSE * said.shape[1])[:, None], fit.modes, said)
    better = max(better_known(rows), least / max(given.rows.sum(), 1e-9))
    strength = given.rows * (1 + (better - 1) / refuted) + seen.counts
    kept = strength / strength.sum()
    if len(seen.rows):
        factors = seen.factors(0.0)
        kept = ascend(rows[:0], strength[None], 0.0, kept[None], seen.rows, factors, tol=1e-5, n_iter=60)[0][0]
    if isinstance(target, LabelledBlocks):
        mixed = put_in(kept, target, known.prior)
        if len(seen.rows):  # rows left by those that were chosen are unlike all; outputs tell how, if they are believed
            said = fit.modes + ((n * said + seen.counts) / (n + seen.counts.sum()) - fit.modes) / refuted
            kept = kept + (mixed - kept) / refuted
        else:
            said = (n * (fit.modes + (said - fit.modes) / refuted) + seen.counts) / (n + seen.counts.sum())
            kept = mixed
    shares, unmoved = weights @ said, fit.weights[given.still].sum()
    # if nothing has shifted, labels tell more of the mix that outputs carry: these stay, unless labels refute them
    by = (shares + unmoved * (kept + (known.prior - kept) / refuted)) / known.prior
    shares = shares + unmoved * kept
    return np.asarray(shares / shares.sum()), np.asarray(by / (by @ known.prior))


def better_known(rows: Matrix) -> float:
    """Return how many times better the mean of outputs (n, K) is known than that of as many labels: the less outputs
    differ, the better."""
    if not len(rows):
        return 1.0
    squares, of_mean = float((rows**2).sum() / len(rows)), float((rows.mean(axis=0) ** 2).sum())
    return max((1 - of_mean) / max(squares - of_mean, 1e-3), 1.0)
