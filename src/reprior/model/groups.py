"""Many groups of samples (shops, cameras, countries, days), each with its own class prior, that learn from each other.

All samples together give the estimate of `ebls`. `population.py` learns how much groups differ from it, `group_fit.py`
fits each group.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprior._check import check_choice, check_flag, check_level, check_proba, fail, like_input, missing
from reprior._labels import same_rows
from reprior._types import Interval, Matrix, Source, Status, Vector, comparable
from reprior.estimates import show_groups
from reprior.estimates.estimate import OF, PriorEstimate
from reprior.estimates.verdict import report_rejected
from reprior.model.acting import either, scaled_weights
from reprior.model.ebls import DEFAULT, ebls, mean_corrected
from reprior.model.group_fit import TOLERANCE, Common, Grouped, GroupedRows, GroupFit
from reprior.model.interval import Moments, beta_interval, posterior_of
from reprior.model.likelihood import DENSE_CLASSES
from reprior.model.population import ClusterPriors, GroupSums, Population, find_kinds
from reprior.model.settings import Settings
from reprior.rows.blocks import ArrayBlocks, Blocks, as_stored, by_name, check_inputs, map_numbered
from reprior.rows.calibrated import Calibrator
from reprior.rows.correction import correct_float64, correct_rows
from reprior.rows.keys import Codes, factorize, plain
from reprior.rows.labelled import LabelledBlocks, labelled, some_blocks
from reprior.rows.passes import count_rows, physical_memory, rows_kept, some_rows

GATHERED = 1 << 27  # probabilities in blocks up to which all are read once and held, 1 GB
ENOUGH_GROUPS, FEW_GROUPS = 500, 20  # to learn the population from, and if classes are very many
LEARNED_NUMBERS = 1_000_000  # groups times classes to learn it from, at about 10 µs each
BYTES = 250  # of memory per group and class: measured with 20 groups of 100,000 classes and 400 of 5,000
MAX_CENTRES = 8  # that groups may scatter around
MIN_MEAN = 1e-12  # mean probability of a class that no sample resembles, so that its class weights are defined
STANDS_OUT = 0.95  # posterior probability of being unlike the others
SURE_GAIN = 2.0  # log likelihood ratio from which groups are said to differ: two standard errors


@dataclass(frozen=True, slots=True)
class GroupSpread:
    """What is known about shares and prior of one group: an interval for each."""

    groups: Groups
    number: int

    def at(self, level: float, of: str = "shares") -> Interval:
        """Return the interval of each class's share, or of its prior in the population."""
        g = slice(self.number, self.number + 1)
        lower, upper = self.groups.ends(level, of, g)
        return Interval(lower[0], upper[0], level=level, note=self.groups.note)

    def without_rows(self) -> GroupSpread:
        """Return the same: all groups share one table of moments."""
        return self


@comparable
@dataclass(frozen=True, eq=False, repr=False)
class Groups:
    """Estimates of many groups; `groups[key]` is the `PriorEstimate` of one group.

    Parameters
    ----------
    keys : tuple
        Keys of the groups, in the order of all arrays.
    shares, prior, weights : (G, K)
        Per group: class shares among its samples, class prior of its population, and correction weights.
    n : (G,)
        Number of samples per group.
    shifted : (G,)
        Probability that the class prior of the group differs from the source.
    log_likelihood : (G,)
        Log-likelihood of the samples under the group's weights, minus that under the source prior.
    converged : (G,) of bool
        Whether the estimate has converged.
    population : Population or None
        What groups have in common; None if each group was estimated alone.
    source : Source
        The training side.
    note : str
        What the intervals include.
    about : dict of Moments
        Moments of "shares" and "prior", (G, K) each, for the intervals.
    rows_of : callable
        Returns the samples of a group by its position.
    whole : PriorEstimate, optional
        The estimate of all samples together. Its checks hold for every group.
    calibrator : Calibrator, optional
        Calibrator of the pipeline. Corrections apply it first.
    """

    keys: tuple[Hashable, ...]
    shares: Vector
    prior: Vector
    weights: Vector
    n: NDArray[np.int64]
    shifted: Vector
    log_likelihood: Vector
    converged: NDArray[np.bool_]
    population: Population | None
    source: Source
    note: str
    about: Mapping[str, Moments] = field(compare=False)
    rows_of: Callable[[int], Blocks] = field(compare=False)
    whole: PriorEstimate | None = field(default=None, compare=False)
    calibrator: Calibrator | None = None

    @cached_property
    def _position(self) -> Mapping[Hashable, int]:
        return MappingProxyType({key: g for g, key in enumerate(self.keys)})

    def _at(self, key: Hashable) -> int:
        key = plain(key)
        if key not in self._position:
            raise missing("group", key, self.keys)
        return self._position[key]

    def __getitem__(self, key: Hashable) -> PriorEstimate:
        g = self._at(key)
        status = Status.CONVERGED if self.converged[g] else Status.NOT_CONVERGED
        whole = self.whole
        checked: dict[str, Any] = {}
        if whole is not None:
            checked = {"checks": whole.checks, "on_reject": whole.on_reject, "acts": whole.acts}
        return PriorEstimate(
            self.prior[g], self.weights[g], status=status, n_iter=0, n=int(self.n[g]),
            log_likelihood=float(self.log_likelihood[g]), source=self.source, target=self.rows_of(g),
            calibrator=self.calibrator, spread=GroupSpread(self, g), shares=self.shares[g], **checked,
        )  # fmt: skip

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.keys)

    def __contains__(self, key: Hashable) -> bool:
        return plain(key) in self._position

    def __len__(self) -> int:
        return len(self.keys)

    def correct(self, keys: Any, proba: Any) -> Matrix:
        """Return predicted probabilities (n, K), each corrected for the class prior of its group.

        Parameters
        ----------
        keys : (n,)
            The group of each sample, one of those estimated: another key is a KeyError.
        proba : (n, K) array or DataFrame
            Predicted probabilities as the classifier returns them. The columns of a DataFrame are matched to the
            classes by name, and a DataFrame is returned.
        """
        if self.whole is not None:
            report_rejected(self.whole)
        same_rows(proba, keys, "Groups.correct", "keys")
        names, codes = factorize(keys, "Groups.correct")
        position = np.array([self._at(key) for key in names], np.intp)
        rows = by_name(proba, self.source.classes, "Groups.correct")
        if self.calibrator is None:
            rows = check_proba(rows, "Groups.correct", "proba", self.prior.shape[1])
        else:
            rows = self.calibrator(rows, caller="Groups.correct")
        if len(codes) != len(rows):
            fail("Groups.correct", "keys", f"name the group of each of the {len(rows)} rows", f"{len(codes)} keys")
        corrected = correct_rows(as_stored(rows), self.weights[position[codes]]).astype(rows.dtype, copy=False)
        return like_input(corrected, proba, self.source.classes)  # type: ignore[no-any-return]

    def interval(self, level: float = 0.95, of: str = "shares") -> Interval:
        """Return lower and upper ends (G, K), (G, K) of an interval for each class in each group.

        Parameters
        ----------
        level : float
            Coverage probability of each interval, between 0 and 1.
        of : str
            "shares", the class proportions among the samples of a group, or "prior", that of its population.
        """
        check_choice(of, "interval", "of", OF)
        return Interval(*self.ends(check_level(level, "interval"), of), level=level, note=self.note)

    def ends(self, level: float, of: str, which: slice = slice(None)) -> tuple[Vector, Vector]:
        """Return lower and upper ends of the intervals of some groups."""
        about, samples = (
            self.about[of],
            self.n[which, None].astype(np.float64) if of == "shares" else float(self.n.sum()),
        )
        some = Moments(about.mean[which], about.variance[which])
        return beta_interval(some, level, estimate=getattr(self, of)[which], n=samples)

    def columns(self) -> dict[str, Any]:
        """Return a table with one row per group for `pandas.DataFrame` or `pyarrow.table`: key, samples, shares."""
        names = self.source.called
        return {"group": list(self.keys), "n": self.n, **dict(zip(names, self.shares.T, strict=True))}

    def to_frame(self, level: float | None = 0.95) -> Any:
        """Return a pandas DataFrame: under each group's key, its `PriorEstimate.to_frame(level)`."""
        return show_groups.groups_frame(self, level)

    def plot(self, label: str | int | None = None, *, top: int = 20, ax: Any = None) -> Any:
        """Draw one class's share in the largest groups with intervals by matplotlib; return the axes.

        Parameters
        ----------
        label : str or int, optional
            The class, by name or column index; by default the class whose share differs most between groups.
        top : int
            How many groups.
        ax : matplotlib axes, optional
            Where to draw.
        """
        return show_groups.groups_plot(self, label, top=top, ax=ax)

    def __repr__(self) -> str:
        return show_groups.groups_text(self)


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
        estimates = [ebls(training, rows, **options) for rows in split(target, codes, len(names))]
        return of_estimates(training, names, estimates)
    rows = target
    if not isinstance(rows, ArrayBlocks) and n * k <= GATHERED:
        rows = ArrayBlocks(some_rows(rows, n, n))  # a labelled sample is certain of its class
    grouped = GroupedRows.of(rows, codes, len(names))
    return fit_pooled_groups(training, names, grouped, ebls(training, target, **options), settings)


def split(target: Blocks, codes: Codes, n_groups: int) -> Iterator[Blocks]:
    """Yield the samples of each group, with their labels if they have any."""
    raw = target.raw if isinstance(target, LabelledBlocks) else target
    ends = np.cumsum(np.bincount(codes, minlength=n_groups))[:-1]
    for here in np.split(np.argsort(codes, kind="stable"), ends):
        if isinstance(raw, ArrayBlocks):
            rows: Blocks = ArrayBlocks(raw.array[here])
        else:
            rows = some_blocks(raw, np.isin(np.arange(len(codes)), here))
        if isinstance(target, LabelledBlocks) and (target.labels[here] >= 0).any():
            rows = LabelledBlocks(rows, target.labels[here], None if target.weights is None else target.weights[here])
        yield rows


def of_estimates(training: Source, names: tuple[Hashable, ...], estimates: list[PriorEstimate]) -> Groups:
    """Return groups that were estimated separately. One group is the population."""

    def stacked(value: Callable[[PriorEstimate], Any]) -> Any:
        return np.stack([value(estimate) for estimate in estimates])

    def moments(of: str) -> Moments:
        return Moments(stacked(lambda e: getattr(posterior_of(e), of).mean),
                       stacked(lambda e: getattr(posterior_of(e), of).variance))  # fmt: skip

    about = {of: moments(of) for of in OF}
    population, n = None, stacked(lambda e: int(e.n))
    if len(estimates) == 1:
        prior = estimates[0].prior
        size, classes = int(n[0]), training.classes
        population = Population(prior, np.inf, prior[None], np.ones(1), (), 1, size, classes, differ=False)
    return Groups(
        names, stacked(lambda e: e.shares), stacked(lambda e: e.prior), stacked(lambda e: e.weights), n,
        stacked(lambda e: 1 - posterior_of(e).no_shift), stacked(lambda e: e.log_likelihood),
        stacked(lambda e: e.status.ok), population, training, note(training), about,
        lambda g: estimates[g].target, estimates[0] if len(estimates) == 1 else None,  # type: ignore[arg-type,return-value]
    )  # fmt: skip


def fit_pooled_groups(
    training: Source, names: tuple[Hashable, ...], rows: Grouped, whole: PriorEstimate, settings: Settings
) -> Groups:
    """Return groups that are fitted under a common population, given the estimate `whole` of all samples together."""
    n, target, k = int(whole.n), whole.target, len(training.prior)
    assert target is not None
    heldout = settings.counts_worth * k
    if training.heldout is not None:
        heldout = len(training.heldout[1])
    mean = np.maximum(mean_corrected(target, whole.weights[None], n)[0][0], MIN_MEAN)
    p = correct_float64(some_rows(target, n, rows_kept(k)), whole.weights)
    gram = p.T @ p / len(p) if k <= DENSE_CLASSES else (p**2).mean(axis=0)
    common = Common(whole.weights, mean, whole.prior, gram, heldout)
    kinds = learn(rows.some(groups_to_learn_from(len(names), k)), common)
    fit = rows.fit(common, kinds)
    sizes, weights = rows.sizes.astype(np.float64), whole.weights * fit.ratios
    population = population_of(names, rows, fit, kinds, whole)
    return Groups(
        names, fit.shares, fit.prior, weights, rows.sizes, shifted(fit, kinds, common, whole, sizes, settings),
        fit.log_ratio - sizes * np.log(weights @ training.prior), fit.change < TOLERANCE, population, training,
        note(training), {"shares": add_common_error(whole, "shares", fit.shares, fit.shares_variance),
                      "prior": add_common_error(whole, "prior", fit.prior, fit.prior_variance)}, rows.of_group, whole,
    )  # fmt: skip


def scale_groups(groups: Groups, share: float, unshifted: Vector, means: Vector) -> Groups:
    """Return groups of which this share of the correction is applied, as `acting.scaled` does for one estimate. `means`
    (G, K) are the groups' mean probabilities under the class weights `unshifted` (K,)."""
    scaled = replace(groups, weights=scaled_weights(groups.weights, share, unshifted, groups.source.prior))
    if share >= 0.5:
        return scaled
    about = {of: either(x, means, groups.n[:, None]) for of, x in groups.about.items()}
    return replace(scaled, shares=means, prior=means, about=about)


def group_means(target: Blocks, codes: Codes, n_groups: int, weights: Vector) -> Vector:
    """Return the mean probabilities (G, K) of each group under class weights (K,)."""

    def of_block(first: int, block: Matrix) -> Matrix:
        sums = np.zeros((n_groups, block.shape[1]))
        np.add.at(sums, codes[first : first + len(block)], correct_float64(block, weights))
        return sums

    sums = of_block(0, target.array) if isinstance(target, ArrayBlocks) else map_numbered(target, of_block)
    return np.asarray(sums / np.bincount(codes, minlength=n_groups)[:, None])


def groups_to_learn_from(n_groups: int, n_classes: int) -> NDArray[np.intp]:
    """Return the numbers of the groups that show what groups have in common: enough, spread evenly over all."""
    enough = min(ENOUGH_GROUPS, max(FEW_GROUPS, LEARNED_NUMBERS // n_classes))
    return np.arange(0, n_groups, -(-n_groups // enough))


def check_memory(n_groups: int, n_classes: int) -> None:
    """Refuse more groups than memory holds, before the system ends the process."""
    memory = physical_memory()
    if n_groups * n_classes * BYTES > memory:
        raise MemoryError(
            f"groups: `keys` must name at most {memory / n_classes / BYTES:,.0f} groups of {n_classes:,} classes, which"
            f" fit into memory; got {n_groups:,}. Estimate fewer groups at once, or merge rare classes."
        )


def learn(rows: GroupedRows, common: Common) -> ClusterPriors:
    """Return the kinds of groups that some groups show."""
    first, n = rows.counts(common.weights, np.ones((len(rows.sizes), len(common.mean)))), rows.sizes.astype(np.float64)
    return find_kinds(GroupSums(first.observed, first.squares, n, common.effective(n)), common.mean, MAX_CENTRES)


def add_common_error(whole: PriorEstimate, of: str, mean: Vector, variance: Vector) -> Moments:
    """Return moments (G, K) whose variance includes the error of the estimate of all samples together.

    Groups have that error in common. For each class it is scaled by p(1 − p) of the group over that of all samples.
    """
    about, estimate = getattr(posterior_of(whole), of), getattr(whole, of)
    error = about.variance + (about.mean - estimate) ** 2
    share = np.minimum(mean * (1 - mean) / np.maximum(estimate * (1 - estimate), 1e-9), 1)
    return Moments(mean, np.minimum(variance + error * share, mean * (1 - mean)))


def shifted(
    fit: GroupFit, kinds: ClusterPriors, common: Common, whole: PriorEstimate, n: Vector, settings: Settings
) -> Vector:
    """Return the probability that each group (G,) has shifted.

    If groups do not differ, all have shifted or none has. Otherwise a group's samples are compared with the source.
    """
    odds = settings.no_shift / (1 - settings.no_shift)
    alike = odds / (odds + np.exp(min(kinds.scatter.gain, 700.0)))
    ratio = fit.log_ratio_common - n * np.log(whole.source.prior @ whole.weights)
    evidence = common.effective(n) / n * ratio + fit.log_evidence
    own = 1 / (1 + odds * np.exp(-np.clip(evidence, -700, 700)))
    return np.asarray(alike * (1 - posterior_of(whole).no_shift) + (1 - alike) * own)


def population_of(
    names: tuple[Hashable, ...], rows: Grouped, fit: GroupFit, kinds: ClusterPriors, whole: PriorEstimate
) -> Population:
    """Return the population of these groups: common prior, clusters, and groups that stand out."""
    stand_out = np.flatnonzero(fit.member[:, -1] > STANDS_OUT)
    weights = kinds.probability[:-1] / kinds.probability[:-1].sum()
    differ = len(weights) > 1 or len(stand_out) > 0 or kinds.scatter.gain > SURE_GAIN
    return Population(
        whole.prior, kinds.scatter.concentration, kinds.centres[:-1], weights, tuple(names[g] for g in stand_out),
        len(names), int(rows.sizes.sum()), whole.source.classes, differ,
    )  # fmt: skip


def note(training: Source) -> str:
    """Return what the intervals include."""
    if training.heldout is None:
        return "Optimistic: without held-out samples the classifier error is unknown."
    return (
        "The intervals include the noise of each group and the uncertainty about the classifier error. This error has "
        "the same direction in every group."
    )
