"""Many groups (shops, cameras, countries, days), each with its own class mix, that learn from each other.

population.py learns what they have in common, grouped.py fits each group under it. Groups share the classifier's error:
what `ebls` does not believe of all rows is taken out of every group's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprior._check import (
    check_flag,
    check_level,
    check_number,
    check_prior,
    check_proba,
    counted,
    fail,
    listed,
    missing,
    percent,
)
from reprior._labels import same_rows
from reprior._types import Interval, Matrix, PriorEstimate, Source, Status, Vector, comparable, door
from reprior.batch.ebls import ebls
from reprior.batch.grouped import TOLERANCE, Grouped, GroupedRows, Model, State, factorize, plain
from reprior.batch.hypotheses import nothing, suppose
from reprior.batch.population import UNLIKE, carried_by, share_fit, widen, worth
from reprior.batch.registry import check_options
from reprior.batch.trust import shown_by, stands_behind
from reprior.rows.blocks import ArrayBlocks, Blocks, as_stored, by_name, given
from reprior.rows.calibrated import Calibrator
from reprior.rows.correction import as_given, reweight
from reprior.rows.labelled import labelled
from reprior.rows.passes import count_rows, rows_kept, some_rows

MANY = 0.95  # weight of the others from which a group's own `ebls` estimate is not asked for
FEW_GROUPS = 200  # up to which it is
SURELY = 2.0  # standard errors from which on groups are said to differ
ALIKE = 0.015  # of a share of 10 %, the standard deviation up to which groups are called alike
STANDS_OUT = 0.95  # posterior probability of being unlike the others
GATHERED = 1 << 27  # numbers in rows that come in blocks, up to which they are fetched once and held


@dataclass(frozen=True, slots=True)
class GroupSpread:
    """How sure the estimate of one group is, with what the other groups have told: variances (K,) of its shares."""

    prior: Vector
    variance: Vector
    note: str

    def at(self, level: float) -> Interval:
        """Return the interval of each class's share."""
        return Interval(*ends(self.prior, self.variance, level), level=level, note=self.note)


@comparable
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Population:
    """What groups have in common: `prior` (K,) the common mix, `concentration` how alike groups are, `centres` (C, K)
    the mixes that groups scatter around with their `weights` (C,), and `stand_out`, the keys of groups unlike the rest.

    A class of share m has a variance of m(1 − m)/(concentration + 1) between groups. `differ` says
    whether the rows prove that there is any.
    """

    prior: Vector
    concentration: float
    centres: Matrix
    weights: Vector
    stand_out: tuple[Hashable, ...]
    n_groups: int
    n: int
    classes: tuple[str, ...] | None = None
    differ: bool = True

    def sentences(self) -> list[str]:
        """Return the population in a few sentences."""
        names = self.classes or tuple(f"class {j}" for j in range(len(self.prior)))
        largest = np.argsort(-self.prior, kind="stable")[:5]
        mix = ", ".join(f"{names[j]} {percent(self.prior[j], 1)}" for j in largest)
        more = f" and {len(names) - 5} more classes" if len(names) > 5 else ""
        said = [f"{counted(self.n_groups, 'group')} with {counted(self.n, 'row')}.", f"Common mix: {mix}{more}."]
        spread = float(np.sqrt(0.1 * 0.9 / (self.concentration + 1)))
        if self.n_groups == 1:
            return said
        if not self.differ and spread >= ALIKE:
            said.append("These rows do not prove that the groups differ.")
        elif spread < ALIKE:
            said.append("The groups are alike: a class with 10 % of all rows has 9 to 11 % in most groups.")
        else:
            low, high = max(0.0, 0.1 - spread), 0.1 + spread
            said.append("The groups differ: a class with 10 % of all rows has "
                        f"{100 * low:.0f} to {percent(high)} in most groups.")  # fmt: skip
        held = np.sort(self.weights[self.weights >= 0.005])[::-1]
        if len(held) > 1:
            parts = ", ".join(percent(w) for w in held[:-1])
            said.append(f"They form {len(held)} kinds, with {parts} and {percent(held[-1])} of the groups.")
        if self.stand_out:
            verb = "stands" if len(self.stand_out) == 1 else "stand"
            said.append(f"{counted(len(self.stand_out), 'group')} {verb} out: {listed(self.stand_out, 5)}.")
        return said

    def __repr__(self) -> str:
        return " ".join(self.sentences())


@comparable
@dataclass(frozen=True, eq=False, repr=False)
class Groups:
    """Estimates of many groups: `groups[key]` is that of one, `prior` (G, K) are all, in the order of `keys` (G,).

    `n` (G,) are the groups' rows, `variance` (G, K) the squared error to expect of each share, `log_likelihood` (G,)
    that of the rows under their prior, relative to the source prior. `population` is None if nothing was shared.
    """

    keys: tuple[Hashable, ...]
    prior: Vector
    n: NDArray[np.int64]
    variance: Vector
    log_likelihood: Vector
    converged: NDArray[np.bool_]
    n_iter: int
    population: Population | None
    source: Source
    note: str
    rows_of: Callable[[int], Blocks] = field(compare=False)
    calibrator: Calibrator | None = None

    @cached_property
    def _slot(self) -> Mapping[Hashable, int]:
        return MappingProxyType({key: g for g, key in enumerate(self.keys)})

    def _at(self, key: Hashable) -> int:
        key = plain(key)
        if key not in self._slot:
            raise missing("group", key, self.keys)
        return self._slot[key]

    def __getitem__(self, key: Hashable) -> PriorEstimate:
        g = self._at(key)
        status = Status.CONVERGED if self.converged[g] else Status.NOT_CONVERGED
        return PriorEstimate(
            self.prior[g], self.prior[g] / self.source.prior, status, self.n_iter, int(self.n[g]),
            float(self.log_likelihood[g]), self.source, self.rows_of(g), self.calibrator,
            GroupSpread(self.prior[g], self.variance[g], self.note),
        )  # fmt: skip

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.keys)

    def __contains__(self, key: Hashable) -> bool:
        return plain(key) in self._slot

    def __len__(self) -> int:
        return len(self.keys)

    def correct(self, keys: Any, proba: Any) -> Matrix:
        """Return raw outputs (n, K), each row as the classifier would have put it under the class mix of its group.

        Parameters
        ----------
        keys : (n,)
            The group of each row, one of those estimated: another key is a KeyError.
        proba : (n, K) array or DataFrame
            Outputs as the classifier gives them. The columns of a DataFrame are matched to the classes by name, and it
            comes back as one.
        """
        same_rows(proba, keys, "Groups.correct", "keys")
        names, codes = factorize(keys, "Groups.correct")
        of = np.array([self._at(key) for key in names], np.intp)
        rows = by_name(proba, self.source.classes, "Groups.correct")
        if self.calibrator is None:
            rows = check_proba(rows, "Groups.correct", "proba", self.prior.shape[1])
        else:
            rows = self.calibrator(rows, caller="Groups.correct")
        if len(codes) != len(rows):
            fail("Groups.correct", "keys", f"name the group of each of the {len(rows)} rows", f"{len(codes)} keys")
        fixed = reweight(as_stored(rows), (self.prior / self.source.prior)[of[codes]]).astype(rows.dtype, copy=False)
        return as_given(fixed, proba, self.source.classes)  # type: ignore[no-any-return]

    def interval(self, level: float = 0.95) -> Interval:
        """Return lower and upper ends (G, K), (G, K) of an interval for each class's share of each group."""
        level = check_level(level, "interval")
        return Interval(*ends(self.prior, self.variance, level), level=level, note=self.note)

    def columns(self) -> dict[str, Any]:
        """Return a table with one row a group, as `pandas.DataFrame` or `pyarrow.table` take it: key, rows, shares."""
        names = self.source.called
        return {"group": list(self.keys), "n": self.n, **dict(zip(names, self.prior.T, strict=True))}

    def to_frame(self, level: float | None = 0.95) -> Any:
        """Return a pandas DataFrame: under each group's key, what `PriorEstimate.to_frame(level)` returns of it."""
        return door("groups_frame")(self, level)

    def plot(self, label: str | int | None = None, *, top: int = 20, ax: Any = None) -> Any:
        """Draw one class's share of the largest groups with its intervals by matplotlib; return the axes.

        Parameters
        ----------
        label : str or int, optional
            The class, by its name or column index; by default the one whose share differs most between groups.
        top : int
            How many groups.
        ax : matplotlib axes, optional
            Where to draw.
        """
        return door("groups_plot")(self, label, top=top, ax=ax)

    def __repr__(self) -> str:
        return str(door("groups_text")(self))


def groups(
    source: Any, keys: Any, proba: Any, *, share: bool = True, labels: Any = None, label_weights: Any = None,
    **options: Any,
) -> Groups:  # fmt: skip
    """Estimate the prior of each group of target rows, by a Dirichlet prior that is learned from all groups.

    Parameters
    ----------
    source
        A `Source`, or class counts (K,).
    keys
        The group of each row (n,): an array, a column or a list of anything hashable, in any order.
    proba
        Outputs (n, K), or `Blocks` that come in the order of `keys`.
    share
        Whether groups learn from each other; without it each is estimated by itself.
    labels
        Classes of some rows (n,), -1 or nothing where unknown. Such a row is certain in its group; all labels together
        also tell by how much the outputs err.
    label_weights
        Weights of rows that `query` chose (n,).
    options
        Options of `ebls`, which estimates the mix of all rows and tells how far outputs can be trusted.

    Examples
    --------
    >>> found = groups([1, 1], ["a", "b", "a"], [[0.9, 0.1], [0.2, 0.8], [0.8, 0.2]])
    >>> sorted(found), found.prior.shape, int(found["a"].n)
    (['a', 'b'], (2, 2), 2)
    """
    known, target = given(source, proba, "groups")
    check_flag(share, "groups", "share")
    k = len(known.prior)
    same_rows(proba, keys, "groups", "keys")
    names, codes = factorize(keys)
    n = count_rows(target)
    if len(codes) != n:
        fail("groups", "keys", f"name the group of each of the {n} rows", f"{len(codes)} keys")
    if not isinstance(target, ArrayBlocks) and n * k <= GATHERED:
        target = ArrayBlocks(some_rows(target, n, n))
    target = rows = labelled(target, labels, known, "groups", label_weights)
    if not isinstance(rows, ArrayBlocks) and n * k <= GATHERED:
        rows = ArrayBlocks(some_rows(rows, n, n))

    def made(source_prior: Vector, unsure: float) -> Grouped:
        return GroupedRows.of(rows, codes, len(names), source_prior, unsure)

    return estimated(known, names, made, target, n, share=share, options=options)


def estimated(
    known: Source, names: tuple[Hashable, ...], made: Callable[[Vector, float], Grouped], target: Blocks, n: int, *,
    share: bool, options: Mapping[str, Any],
) -> Groups:  # fmt: skip
    """Return the estimates of groups called `names` (G,), whose `n` rows are in `target` all together, and by group in
    what `made(prior that outputs carry, error of the classifier)` returns."""
    k = len(known.prior)
    check_options("ebls", options, "groups", ("share", "labels", "label_weights"))
    if share:
        whole = ebls(known, target, **options)
        carried = carried_by(some_rows(target, n, rows_kept(k)), known.prior, whole.prior)
        rows = made(carried, whole.posterior.unsure / n)
        state, model, rounds = share_fit(rows, whole.prior)
        widen(rows, state, model, whole)
        own_weight(rows, state, model, known, options)
        state.tail[:, 1] = rows.log_likelihood(known.prior, state.prior)
        population = describe(names, rows, state, model, whole.prior, known)
    else:
        base, worth = options.get("base"), options.get("worth")
        worth = stands_behind(known, beside_base=base is not None) if worth is None else worth
        check_number(worth, "groups", "worth", low=0, open_low=True)
        rows = made(known.prior, 1 / worth)
        state, rounds, population = by_itself(rows, known, base, worth), 1, None
    return Groups(
        names, state.prior[:, :k], rows.sizes, state.variance[:, :k], state.tail[:, 1],
        state.tail[:, 2] < 100 * TOLERANCE, rounds, population, known, note(known, shared=share), rows.of_group,
    )  # fmt: skip


def note(known: Source, *, shared: bool) -> str:
    """Return what the groups' intervals allow for."""
    if known.heldout is None:
        return "Optimistic: no held-out labelled rows tell how wrong the classifier's outputs are."
    others = "what groups have in common, " if shared else ""
    return (
        f"The intervals allow for few rows in a group, {others}and what the held-out rows leave open about the "
        "classifier. The classifier errs in the same direction in every group."
    )


def by_itself(rows: Grouped, known: Source, base: Any, worth: float) -> State:
    """Return the fit of groups that do not hear of each other, under hypotheses of `ebls` that leave out no class."""
    k = len(known.prior)
    middle = known.prior if base is None else check_prior(base, "groups", "base", n_classes=k, like="`source`")
    given = suppose(middle, worth, nothing(k), shown_by(known))
    some = (np.arange(len(given.odds)) % 2 == 0) | given.still  # every other size of shift: they are close together
    given = given.those(some)
    strength = np.asarray(given.alpha.sum(axis=1), np.float64)
    odds, unbet = given.odds / given.odds.sum(), given.open / given.open.sum()
    model = Model(given.alpha / strength[:, None], np.arange(len(strength)), strength, odds)
    # intervals make no bet that nothing has shifted; a fit that begins with the bet would not lose it
    unbiased = replace(model, weights=unbet)
    other = rows.fit(unbiased, State.at(len(rows.sizes), middle, unbiased))
    belief, variance, apart = other.belief, other.variance, other.prior
    del other  # of many groups the rest of it is felt
    state = rows.fit(model, State.at(len(rows.sizes), belief[:, :k], model))
    apart -= state.prior
    np.add(variance, np.square(apart, out=apart), out=state.variance)
    return state


def own_weight(rows: Grouped, state: State, model: Model, known: Source, options: Mapping[str, Any]) -> None:
    """Mix what a group's rows say by themselves into its estimate, where the others can tell little.

    What others tell of the common mix are as many rows as they are worth together; K/2 of them weigh as much as the
    group's own `ebls`. A group without others is left with that alone.
    """
    k = len(known.prior)
    told = worth(rows.told, state.member, model)
    others = told.sum() - told if len(told) > 1 else np.zeros(1)
    weight = others / (others + k / 2)
    alone = np.flatnonzero(weight < MANY)
    if not 0 < len(alone) <= FEW_GROUPS:
        return
    held = rows.some(alone)
    for i, g in enumerate(alone):
        own = ebls(known, held.of_group(i), **options)
        posterior = own.posterior
        variance = posterior.weights @ (posterior.variances + (posterior.means - own.prior) ** 2)
        w, shared = weight[g], state.prior[g, :k].copy()
        state.prior[g, :k] = w * shared + (1 - w) * own.prior
        state.variance[g, :k] = w * state.variance[g, :k] + (1 - w) * variance + w * (1 - w) * (shared - own.prior) ** 2


def describe(
    names: tuple[Hashable, ...], rows: Grouped, state: State, model: Model, mix: Vector, known: Source
) -> Population:
    """Return the population that was learned, in numbers a person can use."""
    usual = float(np.exp(model.weights @ np.log(model.strength)))
    unlike = model.strength < usual / UNLIKE
    out = np.flatnonzero(state.member[:, unlike].sum(axis=1) > STANDS_OUT)
    weights = np.bincount(model.which, model.weights, len(model.centres)).astype(np.float64)
    common = mix if len(model.centres) > 1 else model.centres[0]
    return Population(
        common, usual, model.centres, weights, tuple(names[g] for g in out), len(names), int(rows.sizes.sum()),
        known.classes, len(model.centres) > 1 or len(out) > 0 or model.scatter > SURELY * model.doubt,
    )  # fmt: skip


def ends(prior: Vector, variance: Vector, level: float) -> tuple[Vector, Vector]:
    """Return lower and upper ends of a Beta with these moments: equal tails, or from zero where its density is highest
    there."""
    from scipy.special import betaincinv

    mean = np.clip(prior, 1e-12, 1 - 1e-12)
    strength = np.maximum(mean * (1 - mean) / np.maximum(variance, 1e-300) - 1, 1e-3)
    a, b = mean * strength, (1 - mean) * strength
    tail = np.where((a <= 1) | (b <= 1), 1 - level, (1 - level) / 2)
    lower = np.where(a <= 1, 0.0, betaincinv(a, b, tail))
    upper = np.where(b <= 1, 1.0, betaincinv(a, b, 1 - tail))
    # a Beta with less than one count has a quantile that falls below its mean: go on as with one count, which reaches
    # −log(1 − level) means, so that a class next to absent keeps an interval as wide as its standard error demands
    reach = (-np.log1p(-level) - 1) * np.sqrt(variance)
    upper = np.where(a <= 1, np.clip(prior + reach, upper, 1.0), upper)
    lower = np.where(b <= 1, np.clip(prior - reach, 0.0, lower), lower)
    # a class that has less than its own uncertainty may well be absent
    lower = np.where(prior <= (upper - lower) / 2, 0.0, lower)
    return np.minimum(lower, prior), np.maximum(upper, prior)
