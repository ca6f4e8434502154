"""Many groups of samples (shops, cameras, countries, days), each with its own class prior, that learn from each other.

All samples together give the estimate of `ebls`. `population.py` learns how alike groups are, `group_fit.py` finds the
class weights of each group. Posterior means and variances are here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from reprior._check import check_flag, check_prior, fail
from reprior._labels import same_rows
from reprior._types import Source, Vector
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.groups import Groups, Population
from reprior.estimates.verdict import UNCLEAR
from reprior.model.acting import equal_mixture, pooled, scaled_weights
from reprior.model.ebls import ebls
from reprior.model.group_fit import TOLERANCE, Common, GroupFit, fit_groups
from reprior.model.interval import Moments, Posterior, PosteriorSpread, posterior_of
from reprior.model.population import Scatter, scatter_of, share_slope, unlikeness
from reprior.model.samples import base_factor
from reprior.model.settings import DEFAULT, Settings
from reprior.rows.blocks import ArrayBlocks, check_inputs
from reprior.rows.grouped import GroupCounts, Grouped, GroupedRows, factorize
from reprior.rows.labelled import labelled
from reprior.rows.passes import count_rows, physical_memory, some_rows

GATHERED = 1 << 27  # probabilities in blocks up to which all are read once and held, 1 GB
BYTES = 250  # of memory per group and class: measured with 20 groups of 100,000 classes and 400 of 5,000
MIN_MEAN = 1e-12  # mean probability of a class that no sample resembles, so that its class weights are defined


class FittedGroups(NamedTuple):
    """Groups fitted with one concentration: class `weights`, mean and variance of shares and priors (G, K), and what
    `GroupFit` and `Groups` have per group (G,)."""

    weights: Vector
    shares: Vector
    shares_variance: Vector
    prior: Vector
    prior_variance: Vector
    log_ratio: Vector
    change: Vector
    shifted: Vector


def group_spread(shares: Vector, prior: Vector, posterior: Posterior, n: Vector, source: Source) -> PosteriorSpread:
    """Return how sure the estimates of groups of n (G,) samples are. Priors are rounded to one of all samples."""
    note = "Optimistic: without held-out samples the classifier error is unknown."
    if source.heldout is not None:
        note = ("The intervals include the noise of each group and the uncertainty about the classifier error. This "
                "error has the same direction in every group.")  # fmt: skip
    return PosteriorSpread(shares, prior, n[:, None], float(n.sum()), posterior, note)


def groups(
    source: Any, keys: Any, proba: Any, *, share: bool = True, labels: Any = None, label_weights: Any = None,
    base: Any = None, settings: Settings = DEFAULT,
) -> Groups:  # fmt: skip
    """Estimate class shares, class prior and correction weights of each group of target samples.

    Parameters
    ----------
    source : Source, or class counts or prior (K,)
        The training side.
    keys : (n,)
        Group of each sample: an array, column or list of hashable values, in any order.
    proba : (n, K) array, DataFrame, Blocks, or top-k pair
        Calibrated probabilities; blocks come in the order of `keys`.
    share : bool
        Whether small groups borrow from what all groups have in common. If False, `ebls` estimates each group alone, in
        a few milliseconds per group.
    labels : (n,), optional
        Labels of some samples, as class names or column indices; −1 if unknown.
    label_weights : (n,), optional
        Weights of labelled samples that `query` chose; other entries do not matter.
    base : (K,), optional
        Class prior of the training data, if you know it better than the held-out labels show.
    settings : Settings
        The constants of the model.

    Returns
    -------
    Groups
        With `shares`, `prior` and `weights` (G, K), and `population`, what groups have in common.

    Examples
    --------
    >>> estimates = groups([1, 1], ["a", "b", "a"], [[0.9, 0.1], [0.2, 0.8], [0.8, 0.2]])
    >>> estimates.keys, estimates.shares.shape, estimates["a"].n
    (('a', 'b'), (2, 2), 2)
    """
    training, target = check_inputs(source, proba, "groups")
    if base is not None:
        base = check_prior(base, "groups", "base", n_classes=len(training.prior), like="`source`")
    check_flag(share, "groups", "share")
    same_rows(proba, keys, "groups", "keys")
    names, codes = factorize(keys)
    n, k, options = count_rows(target), len(training.prior), {"base": base, "settings": settings}
    if len(codes) != n:
        fail("groups", "keys", f"name the group of each of the {n} rows", f"{len(codes)} keys")
    check_memory(len(names), k)
    if not isinstance(target, ArrayBlocks) and n * k <= GATHERED:
        target = ArrayBlocks(some_rows(target, n, n))
    target = labelled(target, labels, training, "groups", label_weights)
    if not share or len(names) == 1:
        estimates = [ebls(training, rows, **options) for rows in GroupedRows.of(target, codes, len(names)).each()]
        return of_estimates(training, names, estimates)
    rows = target
    if not isinstance(rows, ArrayBlocks) and n * k <= GATHERED:
        rows = ArrayBlocks(some_rows(rows, n, n))  # a labelled sample is certain of its class
    grouped = GroupedRows.of(rows, codes, len(names))
    whole, unshifted = ebls(training, target, **options), base_factor(training, base)
    made = fit_pooled_groups(training, names, grouped, whole, unshifted, settings)
    return replace(made, rows_of=GroupedRows.of(target, codes, len(names)).of_group)  # with labels, if there are any


def check_memory(n_groups: int, n_classes: int) -> None:
    """Refuse more groups than memory holds, before the system ends the process."""
    memory = physical_memory()
    if n_groups * n_classes * BYTES > memory:
        raise MemoryError(
            f"groups: `keys` must name at most {memory / n_classes / BYTES:,.0f} groups of {n_classes:,} classes, which"
            f" fit into memory; got {n_groups:,}. Estimate fewer groups at once, or merge rare classes."
        )


def of_estimates(training: Source, names: tuple[Hashable, ...], estimates: list[PriorEstimate]) -> Groups:
    """Return groups that were estimated separately. One group is the population."""

    def stacked(value: Callable[[PriorEstimate], Any]) -> Any:
        return np.stack([value(estimate) for estimate in estimates])

    def moments(of: str) -> Moments:
        return Moments(stacked(lambda e: getattr(posterior_of(e), of).mean),
                       stacked(lambda e: getattr(posterior_of(e), of).variance))  # fmt: skip

    posterior = Posterior(moments("shares"), moments("prior"), stacked(lambda e: posterior_of(e).no_shift),
                          stacked(lambda e: posterior_of(e).log_weight_variance))  # fmt: skip
    shares, prior, n = stacked(lambda e: e.shares), stacked(lambda e: e.prior), stacked(lambda e: e.n)
    one, population = estimates[0] if len(estimates) == 1 else None, None
    if one is not None:
        population = Population(one.prior, np.inf, (), 1, int(one.n), training.classes, differ=False)
    return Groups(
        names, shares, prior, stacked(lambda e: e.weights), n.astype(np.int64), 1 - posterior.no_shift,
        stacked(lambda e: e.log_likelihood), stacked(lambda e: e.status.ok), population, training,
        group_spread(shares, prior, posterior, n, training),
        lambda g: estimates[g].target, one,  # type: ignore[arg-type,return-value]
    )  # fmt: skip


def fit_pooled_groups(
    training: Source, names: tuple[Hashable, ...], rows: Grouped, whole: PriorEstimate, unshifted: Vector,
    settings: Settings,
) -> Groups:  # fmt: skip
    """Return groups of one population, given the estimate `whole` of all samples together and the class weights without
    shift, `unshifted` (K,)."""
    n, weights = rows.sizes.astype(np.float64), whole.weights
    heldout = settings.counts_worth * len(training.prior)
    if training.heldout is not None:
        heldout = len(training.heldout[1])
    common_counts = GroupCounts(*rows.map_groups(lambda some: some.counts(weights)))
    scatter = scatter_of(common_counts.observed, common_counts.squares, n)
    mean = np.maximum(common_counts.observed.sum(axis=0) / n.sum(), MIN_MEAN)
    common = Common(weights, mean, whole.prior, scatter.concentration, heldout)
    outlying = np.flatnonzero(unlikeness(common_counts.observed, n, scatter) > settings.stands_out)
    log_ratio_unshifted = np.zeros(len(n))
    if (unshifted != 1).any():
        log_ratio_unshifted = GroupCounts(*rows.map_groups(lambda some: some.counts(unshifted))).log_ratio
    fitted = fit_with(common, scatter, rows, whole, log_ratio_unshifted, settings)
    if len(outlying):
        loose = replace(common, concentration=1.0)  # one sample of the common prior: others show little about these
        refitted = fit_with(loose, scatter, rows, whole, log_ratio_unshifted, settings, own_variance_only=True)
        for array, own in zip(fitted, refitted, strict=True):
            array[outlying] = own[outlying]
    stand_out = tuple(names[g] for g in outlying)
    population = Population(whole.prior, scatter.concentration, stand_out, len(names), int(n.sum()), training.classes,
                            alike(scatter, settings) < UNCLEAR[0] or len(stand_out) > 0)  # fmt: skip
    of_log = np.log1p(fitted.prior_variance / np.maximum(fitted.prior, MIN_MEAN) ** 2)  # if the prior were log-normal
    posterior = Posterior(Moments(fitted.shares, fitted.shares_variance), Moments(fitted.prior, fitted.prior_variance),
                          1 - fitted.shifted, of_log)  # fmt: skip
    return Groups(
        names, fitted.shares, fitted.prior, fitted.weights, rows.sizes, fitted.shifted,
        fitted.log_ratio - n * np.log(fitted.weights @ training.prior), fitted.change < TOLERANCE, population, training,
        group_spread(fitted.shares, fitted.prior, posterior, n, training), rows.of_group, whole,
    )  # fmt: skip


def fit_with(
    common: Common, scatter: Scatter, rows: Grouped, whole: PriorEstimate, log_ratio_unshifted: Vector,
    settings: Settings, *, own_variance_only: bool = False,
) -> FittedGroups:  # fmt: skip
    """Return all groups fitted with the concentration of `common`. `log_ratio_unshifted` (G,) is Σ log r without shift.

    If `own_variance_only`, groups are known to differ, and variances follow from the samples of each group only.
    """
    n = rows.sizes.astype(np.float64)
    fit, centre = GroupFit(*rows.map_groups(lambda some: fit_groups(some, common))), common
    if own_variance_only:
        centre = replace(common, mean=np.maximum(fit.observed / n[:, None], MIN_MEAN))
        scatter = replace(scatter, gain=np.inf, share_slope=share_slope(fit.observed, fit.squares, n[:, None]))
    about = {of: add_common_error(whole, of, x) for of, x in group_moments(centre, scatter, fit, n).items()}
    relative = fit._replace(log_ratio=fit.log_ratio - log_ratio_unshifted)
    return FittedGroups(
        common.weights * fit.ratios, about["shares"].mean, about["shares"].variance, about["prior"].mean,
        about["prior"].variance, fit.log_ratio, fit.change,
        shift_probability(common, scatter, relative, n, whole, settings),
    )  # fmt: skip


def group_moments(common: Common, scatter: Scatter, fit: GroupFit, n: Vector) -> dict[str, Moments]:
    """Return what is known about "shares" and "prior" of groups (G, K), given the common weights.

    Let N be the effective samples of a group, and I the `share_slope`. For one class against the others, N samples
    inform like N·I labels, so Var(log v) = 1/(c + N) + (1 − m)/(m(c + N·I)). The prior has the Dirichlet variance
    p(1 − p)/(c + N + 1), times Var(log v) over its value at I = 1. The shares of these samples move with v only by the
    lost information 1 − I. Groups may scatter further than estimated: the standard error `intraclass_se` of 1/(c + 1),
    times the squared weight (c/(c + N))² of the common prior, adds to the variance of the prior.
    """
    c, n = common.concentration, n[:, None]
    effective, lost_information = common.effective(n), 1 - scatter.share_slope
    shares, prior = fit.observed / n, c * common.prior + effective / n * fit.observed
    prior /= prior.sum(axis=1, keepdims=True)
    scaled_complement = (1 - common.mean) / (1 - effective / (c + effective) * lost_information)
    scatter_error = (c / (c + effective)) ** 2 * scatter.intraclass_se
    of_prior = (common.mean + scaled_complement) / (c + effective + 1) + scatter_error
    of_shares = prior * scaled_complement * lost_information**2 / (c + effective) + (fit.observed - fit.squares) / n**2
    of_prior = prior * (1 - prior) * np.minimum(of_prior, 1)
    return {"shares": Moments(shares, of_shares), "prior": Moments(prior, of_prior)}


def add_common_error(whole: PriorEstimate, of: str, own: Moments) -> Moments:
    """Return moments (G, K) whose variance includes the error of the estimate of all samples together.

    Groups have that error in common. For each class it is scaled by p(1 − p) of the group over that of all samples.
    """
    about, estimate = getattr(posterior_of(whole), of), getattr(whole, of)
    error, max_variance = about.variance + (about.mean - estimate) ** 2, own.mean * (1 - own.mean)
    scale = np.minimum(max_variance / np.maximum(estimate * (1 - estimate), 1e-9), 1)
    return Moments(own.mean, np.minimum(own.variance + error * scale, max_variance))


def alike(scatter: Scatter, settings: Settings) -> float:
    """Return the probability that groups do not differ, which is `no_shift` before the data."""
    return float(settings.no_shift / (settings.no_shift + (1 - settings.no_shift) * np.exp(min(scatter.gain, 700.0))))


def shift_probability(
    common: Common, scatter: Scatter, fit: GroupFit, n: Vector, whole: PriorEstimate, settings: Settings
) -> Vector:
    """Return the probability that each group (G,) has shifted.

    If groups do not differ, all have shifted or none has. Otherwise the samples of a group are compared under its own
    weights and without shift: `fit.log_ratio` is relative to that. The prior of its weights enters by Laplace's method
    in log v.
    """
    odds, c, effective = settings.no_shift / (1 - settings.no_shift), common.concentration, common.effective(n)
    size, factor = c * common.mean, effective / n
    evidence = factor * (fit.log_ratio - n * np.log(whole.source.prior @ whole.weights)) + np.log(fit.ratios) @ size
    # shares sum to 1, so one direction, which has the precision c, is not free
    evidence -= 0.5 * (np.log1p(factor[:, None] * fit.squares / size).sum(axis=1) - np.log1p(effective / c))
    own = 1 / (1 + odds * np.exp(-np.clip(evidence, -700, 700)))
    p_alike = alike(scatter, settings)
    return np.asarray(p_alike * (1 - posterior_of(whole).no_shift) + (1 - p_alike) * own)


def scale_groups(groups: Groups, share: float, unshifted: Vector, means: Vector) -> Groups:
    """Return groups of which this share of the correction is applied, as `acting.scaled` does for one estimate. `means`
    (G, K) are the groups' mean probabilities under the class weights `unshifted` (K,)."""
    scaled = replace(groups, weights=scaled_weights(groups.weights, share, unshifted, groups.source.prior))
    if share >= 0.5:
        return scaled
    posterior = groups.spread.posterior
    n, base, population = groups.n[:, None], unshifted * groups.source.prior, groups.population
    base = base / base.sum()
    priors = pooled(base, len(base), means, n)
    posterior = replace(posterior, shares=equal_mixture(posterior.shares, means, n),
                        prior=equal_mixture(posterior.prior, priors, n))  # fmt: skip
    spread = replace(groups.spread, posterior=posterior, shares=means, prior=priors)
    if population is not None:
        of_all = pooled(base, len(base), groups.n @ means / groups.n.sum(), groups.n.sum())
        population = replace(population, prior=of_all)
    return replace(scaled, shares=means, prior=priors, spread=spread, population=population)


def group_means(rows: Grouped, weights: Vector) -> Vector:
    """Return the mean probabilities (G, K) of each group under class weights (K,)."""
    counts = GroupCounts(*rows.map_groups(lambda some: some.counts(weights)))
    return np.asarray(counts.observed / rows.sizes[:, None])
