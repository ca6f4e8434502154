"""Many groups (shops, cameras, countries, days), each with its own class mix, that learn from each other.

With one target a Dirichlet prior that follows the estimate has no optimum. With many groups, π_g ~ Dirichlet(α), it
has: how much groups differ can be seen. Here α = s·m, where m is the mix of all rows by `ebls`, and s, how alike groups
are, has a distribution over a grid, learned from all groups: most may be alike and a few stand out. Where groups fall
into clusters, each cluster has its own m. The E-step of a group, and what filled-in labels are worth, are in small.py.
Groups share the classifier's error: what `ebls` does not believe of all rows is taken out of every group's outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from reprior._check import check_flag, check_level, check_prior, check_proba, fail
from reprior._kernels import loops, reference
from reprior._kernels.reference import width
from reprior._types import Interval, Matrix, PriorEstimate, Source, Status, Vector
from reprior.batch.ebls import at_most, ebls, nothing, stands_behind, suppose
from reprior.rows.blocks import ArrayBlocks, Blocks, by_name, given
from reprior.rows.calibrated import Calibrator
from reprior.rows.correction import as_given
from reprior.rows.passes import count_rows, some_rows

S = TypeVar("S")
Index = NDArray[np.int64]

STRENGTHS = 10.0 ** np.arange(0.0, 4.1, 0.5)  # Σα that a group may have: how many rows the common mix is worth in it
ENOUGH_GROUPS = 1000  # to learn the population from
CENTRES = (2, 4, 8)  # clusters of groups that are tried, as long as the evidence grows by more than they cost
GROUPS_A_CENTRE = 10
ROUNDS = 30  # of learning the population; its weights settle long before
TOLERANCE = 1e-5  # L1 change of a group's prior in an iteration
MANY = 0.95  # weight of the others from which a group's own `ebls` estimate is not asked for
FEW_GROUPS = 200  # up to which it is
STANDS_OUT = 0.95  # posterior probability of being unlike the others
NEWTON, RIDGE = 20, 1e-4  # steps at most; share of a class of which the rows must have something to say
MANY_CLASSES = 4096  # beyond which a K×K matrix is too dear
ALLOWANCE = 1.5  # for what a second-order model leaves out
GATHERED = 1 << 27  # numbers in rows that come in blocks, up to which they are fetched once and held
UNLIKE = 8.0  # times less strength than usual


@dataclass(frozen=True, slots=True)
class GroupSpread:
    """How sure the estimate of one group is, with what the other groups have told: variances (K,) of its shares."""

    prior: Vector
    variance: Vector
    note: str

    def at(self, level: float) -> Interval:
        """Return the interval of each class's share."""
        return Interval(*ends(self.prior, self.variance, level), level=level, note=self.note)


@dataclass(frozen=True, slots=True)
class Population:
    """What groups have in common: `prior` (K,) the common mix, `concentration` how alike groups are, `centres` (C, K)
    the mixes that groups scatter around with their `weights` (C,), and `stand_out`, the keys of groups unlike the rest.

    A class of share m has a variance of m(1 − m)/(concentration + 1) between groups.
    """

    prior: Vector
    concentration: float
    centres: Matrix
    weights: Vector
    stand_out: tuple[Hashable, ...]
    n_groups: int
    n: int
    classes: tuple[str, ...] | None = None

    def __str__(self) -> str:
        """Return the population in a few sentences."""
        names = self.classes or tuple(f"class {j}" for j in range(len(self.prior)))
        largest = np.argsort(-self.prior, kind="stable")[:5]
        mix = ", ".join(f"{names[j]} {self.prior[j]:.1%}" for j in largest)
        more = f" and {len(names) - 5} more classes" if len(names) > 5 else ""
        said = [f"{self.n_groups:,} groups with {self.n:,} rows.", f"Common mix: {mix}{more}."]
        spread = float(np.sqrt(0.1 * 0.9 / (self.concentration + 1)))
        if spread < 0.01:
            said.append("The groups are alike: a class with 10 % of all rows has 9 to 11 % in most groups.")
        else:
            low, high = max(0.0, 0.1 - spread), 0.1 + spread
            said.append(f"The groups differ: a class with 10 % of all rows has {low:.0%} to {high:.0%} in most groups.")
        held = np.sort(self.weights[self.weights >= 0.005])[::-1]
        if len(held) > 1:
            parts = ", ".join(f"{w:.0%}" for w in held[:-1])
            said.append(f"They form {len(held)} kinds, with {parts} and {held[-1]:.0%} of the groups.")
        if self.stand_out:
            shown = ", ".join(map(str, self.stand_out[:5])) + (", …" if len(self.stand_out) > 5 else "")
            verb = "stands" if len(self.stand_out) == 1 else "stand"
            said.append(f"{count(len(self.stand_out), 'group')} {verb} out: {shown}.")
        return " ".join(said)


@dataclass(frozen=True)
class Groups:
    """Estimates of many groups: `groups[key]` is that of one, `prior` (G, K) are all, in the order of `keys` (G,).

    `n` (G,) are the groups' rows, `variance` (G, K) the squared error to expect of each share, `log_likelihood` (G,)
    that of the rows under their prior, relative to the source prior. `population` is None if nothing was shared.
    """

    keys: tuple[Hashable, ...]
    prior: Vector
    n: NDArray[np.int64]
    variance: Vector = field(repr=False)
    log_likelihood: Vector = field(repr=False)
    converged: NDArray[np.bool_] = field(repr=False)
    n_iter: int
    population: Population | None
    source: Source = field(repr=False)
    note: str = field(repr=False)
    rows_of: Callable[[int], Blocks] = field(repr=False)
    calibrator: Calibrator | None = field(default=None, repr=False)

    @cached_property
    def _slot(self) -> Mapping[Hashable, int]:
        return MappingProxyType({key: g for g, key in enumerate(self.keys)})

    def _at(self, key: Hashable) -> int:
        if key not in self._slot:
            some = ", ".join(map(repr, self.keys[:5])) + ", …" * (len(self) > 5)
            raise KeyError(f"There is no group {key!r}. The groups are {some}.")
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

    def __contains__(self, key: object) -> bool:
        return key in self._slot

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
        names, codes = factorize(keys, "Groups.correct")
        of = np.array([self._at(key) for key in names], np.intp)
        rows = by_name(proba, self.source.classes, "Groups.correct")
        if self.calibrator is None:
            rows = check_proba(rows, "Groups.correct", "proba", self.prior.shape[1])
        else:
            rows = self.calibrator(rows, caller="Groups.correct")
        if len(codes) != len(rows):
            fail("Groups.correct", "keys", f"name the group of each of the {len(rows)} rows", f"{len(codes)} keys")
        joint = rows * (self.prior / self.source.prior)[of[codes]]
        fixed = np.asarray(joint / joint.sum(axis=1, keepdims=True), rows.dtype)
        return as_given(fixed, proba, self.source.classes)  # type: ignore[no-any-return]

    def interval(self, level: float = 0.95) -> Interval:
        """Return lower and upper ends (G, K), (G, K) of an interval for each class's share of each group."""
        level = check_level(level, "interval")
        return Interval(*ends(self.prior, self.variance, level), level=level, note=self.note)

    def columns(self) -> dict[str, Any]:
        """Return a table with one row a group, as `pandas.DataFrame` or `pyarrow.table` take it: key, rows, shares."""
        names = self.source.classes or tuple(map(str, range(self.prior.shape[1])))
        return {"group": list(self.keys), "n": self.n, **dict(zip(names, self.prior.T, strict=True))}


def groups(source: Any, keys: Any, proba: Any, *, share: bool = True, **options: Any) -> Groups:
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
    names, codes = factorize(keys)
    n = count_rows(target)
    if len(codes) != n:
        fail("groups", "keys", f"name the group of each of the {n} rows", f"{len(codes)} keys")
    if not isinstance(target, ArrayBlocks) and n * k <= GATHERED:
        target = ArrayBlocks(some_rows(target, n, n))

    def made(source_prior: Vector, unsure: float) -> Grouped:
        return GroupedRows.of(target, codes, len(names), source_prior, unsure)

    return estimated(known, names, made, target, n, share=share, options=options)


def estimated(
    known: Source, names: tuple[Hashable, ...], made: Callable[[Vector, float], Grouped], target: Blocks, n: int, *,
    share: bool, options: Mapping[str, Any],
) -> Groups:  # fmt: skip
    """Return the estimates of groups called `names` (G,), whose `n` rows are in `target` all together, and by group in
    what `made(prior that outputs carry, error of the classifier)` returns."""
    k = len(known.prior)
    if share:
        whole = ebls(known, target, **options)
        carried = carried_by(some_rows(target, n, at_most(k)), known.prior, whole.prior)
        rows = made(carried, whole.posterior.unsure / n)
        state, model, rounds = share_fit(rows, whole.prior)
        widen(rows, state, model, whole)
        own_weight(rows, state, model, known, options)
        state.tail[:, 1] = rows.log_likelihood(known.prior, state.prior)
        population = describe(names, rows, state, model, whole.prior, known)
    else:
        base, worth = options.get("base"), options.get("worth")
        worth = stands_behind(known, beside_base=base is not None) if worth is None else worth
        rows = made(known.prior, 1 / worth)
        state, rounds, population = by_itself(rows, known, base, worth), 1, None
    return Groups(
        names, state.prior[:, :k], rows.sizes, state.variance[:, :k], state.tail[:, 1],
        state.tail[:, 2] < 100 * TOLERANCE, rounds, population, known, note(known, shared=share), rows.of_group,
    )  # fmt: skip


def carried_by(some: Matrix, source_prior: Vector, mix: Vector) -> Vector:
    """Return the prior (K,) that outputs must carry if the rows of all groups together have the class mix `mix` (K,).

    What all rows say beyond what `ebls` believes of them is the classifier's error, which every group would take for a
    shift of its own: so it is taken out of their outputs. Newton's steps find weights w = mix/carried under which
    the mean of r is `mix`: the minimum of the convex mean log Σ_j p_j w_j − Σ_j mix_j log w_j.
    """
    k = len(mix)
    at = start = np.log(np.maximum(mix, 1e-12) / source_prior)
    for _ in range(NEWTON if k <= MANY_CLASSES else 0):
        r = some * np.exp(at)
        r /= r.sum(axis=1, keepdims=True)
        said = r.mean(axis=0)
        # the ridge leaves weights alone on which the rows have nothing to say
        slope = said - mix + RIDGE * (at - start)
        step = np.linalg.solve(np.diag(said + RIDGE) - r.T @ r / len(r), slope)
        at = at - np.clip(step, -1.0, 1.0)
        if np.abs(step * mix).sum() < 1e-6:
            break
    carried = source_prior * np.exp(start - at)
    return np.asarray(carried / carried.sum())


def note(known: Source, *, shared: bool) -> str:
    """Return what the groups' intervals allow for."""
    if known.heldout is None:
        return "Optimistic: no held-out labelled rows tell how wrong the classifier's outputs are."
    others = "what groups have in common, " if shared else ""
    return (
        f"The intervals allow for few rows in a group, {others}and what the held-out rows leave open about the "
        "classifier. The classifier errs in the same direction in every group."
    )


def factorize(keys: Any, caller: str = "groups") -> tuple[tuple[Hashable, ...], Index]:
    """Return the groups' keys, sorted if they can be, and the number of each row's group (n,)."""
    remedy = "Drop those rows, or give them a key of their own"
    rule = "name a group for every row"
    if isinstance(keys, (str, bytes)) or not hasattr(keys, "__len__"):
        fail(caller, "keys", "be an array or a list, one key a row", type(keys).__name__)
    # a list of numbers and text, or of tuples, would not survive as an array
    mixed = isinstance(keys, (list, tuple)) and {type(key) for key in keys} not in ({str}, {int})
    column = None if mixed else np.asarray(keys)
    if column is not None and column.ndim != 1:
        fail(caller, "keys", "have one axis", f"shape {column.shape}")
    if column is not None and column.dtype.kind in "iufbUSmM":
        missing = np.isnat(column) if column.dtype.kind in "mM" else column != column
        if missing.any():
            at, total = int(np.argmax(missing)), int(missing.sum())
            fail(caller, "keys", rule, column[at], place=f"row {at}", count=total, remedy=remedy)
        if column.dtype.kind == "i" and len(column) and (low := int(column.min())) + 4 * len(column) > column.max():
            near = (column - low if low else column).astype(np.int64, copy=False)  # so close, they need no sorting
            there = np.bincount(near) > 0
            codes = near if there.all() else (np.cumsum(there) - 1)[near]
            return tuple((np.flatnonzero(there) + low).tolist()), codes
        found, codes = np.unique(column, return_inverse=True)
        return tuple(found.tolist()), codes.astype(np.int64, copy=False)
    values = list(keys)
    slots: dict[Hashable, int] = {}
    codes = np.empty(len(values), np.int64)
    bad: list[int] = []
    for i, key in enumerate(values):
        try:
            if key is None or key != key:  # NaN is not itself
                bad.append(i)
                continue
            codes[i] = slots.setdefault(key, len(slots))
        except (TypeError, ValueError):  # not hashable; pandas.NA, which is neither itself nor another
            if type(key).__name__ != "NAType":
                fail(caller, "keys", "hold hashable keys", type(key).__name__, place=f"row {i}")
            bad.append(i)
    if bad:
        fail(caller, "keys", rule, values[bad[0]], place=f"row {bad[0]}", count=len(bad), remedy=remedy)
    names = list(slots)
    try:
        ranked = sorted(range(len(names)), key=names.__getitem__)  # type: ignore[arg-type]
    except TypeError:  # keys of several kinds have no order but that of the rows
        return tuple(names), codes
    rank = np.empty(len(names), np.int64)
    rank[ranked] = np.arange(len(names))
    return tuple(names[i] for i in ranked), rank[codes]


@dataclass(frozen=True, slots=True)
class Model:
    """A mixture of Dirichlets: component c has α = strength[c]·centres[which[c]] and the weight weights[c].

    `doubt` is the standard error of the mean of 1/(strength + 1), `gram` (K, K) the mean of r rᵀ over rows.
    """

    centres: Matrix
    which: NDArray[np.intp]
    strength: Vector
    weights: Vector
    doubt: float = 0.0
    gram: Matrix | None = None

    @property
    def alpha(self) -> Matrix:
        """Return α (C, K) of all components."""
        return np.asarray(self.strength[:, None] * self.centres[self.which])

    def arrays(self) -> tuple[Matrix, Matrix]:
        """Return α (C, width), and the terms (C, 3) that kernels take beside it."""
        from scipy.special import gammaln

        k = self.centres.shape[1]
        alpha = np.ones((len(self.strength), width(k)))
        alpha[:, :k] = np.maximum(self.alpha, 1e-12)
        log_gamma = gammaln(alpha[:, :k]).sum(axis=1) - gammaln(self.strength)
        return alpha, np.stack([self.strength, np.log(self.weights), log_gamma], axis=1)


def around(centres: Matrix) -> Model:
    """Return the model whose components have every centre (C, K) in every strength, alike in weight."""
    n = len(centres) * len(STRENGTHS)
    which, strength = np.repeat(np.arange(len(centres)), len(STRENGTHS)), np.tile(STRENGTHS, len(centres))
    return Model(centres, which, strength, np.full(n, 1.0 / n))


def by_itself(rows: Grouped, known: Source, base: Any, worth: float) -> State:
    """Return the fit of groups that do not hear of each other, under the hypotheses of `ebls`."""
    k = len(known.prior)
    middle = known.prior if base is None else check_prior(base, "groups", "base", n_classes=k, like="`source`")
    told = np.ones(k) if known.heldout is None else np.bincount(known.heldout[1], minlength=k)
    given = suppose(middle, worth, nothing(k), told > 0)
    some = (np.arange(len(given.odds)) % 2 == 0) | given.still  # every other size of shift: they are close together
    given = given.those(some)
    strength, odds, unbet = given.alpha.sum(axis=1), given.odds / given.odds.sum(), given.open / given.open.sum()
    model = Model(given.alpha / strength[:, None], np.arange(len(strength)), strength, odds)
    # intervals make no bet that nothing has shifted; a fit that begins with the bet would not lose it
    unbiased = replace(model, weights=unbet)
    other = rows.fit(unbiased, State.at(len(rows.sizes), middle, unbiased))
    state = rows.fit(model, State.at(len(rows.sizes), other.belief[:, :k], model))
    state.variance[:] = other.variance + (other.prior - state.prior) ** 2
    return state


@dataclass(frozen=True, slots=True)
class State:
    """Where all groups stand; small.py says what the arrays are."""

    belief: Vector
    prior: Vector
    variance: Vector
    counts: Vector
    member: Vector
    tail: Vector

    @classmethod
    def at(cls, n_groups: int, belief: Matrix, model: Model) -> State:
        """Return the start from a belief (K,) or (G, K)."""
        k = belief.shape[-1]
        start = np.zeros((n_groups, width(k)))
        start[:, :k] = belief
        prior, variance, counts = np.zeros((3, *start.shape))
        return cls(start, prior, variance, counts, np.zeros((n_groups, len(model.strength))), np.zeros((n_groups, 3)))

    def arrays(self) -> tuple[Matrix, ...]:
        return self.belief, self.prior, self.variance, self.counts, self.member, self.tail


class Grouped(Protocol):
    """What is asked of rows in groups, here or on a cluster; `GroupedRows` says what each means."""

    @property
    def sizes(self) -> Index: ...

    @property
    def unsure(self) -> float: ...

    @property
    def told(self) -> Vector: ...

    def fit(self, model: Model, state: State, *, n_iter: int = 300, tol: float = TOLERANCE) -> State: ...

    def log_likelihood(self, source_prior: Vector, priors: Matrix) -> Vector: ...

    def some(self, which: Index) -> GroupedRows: ...

    def of_group(self, g: int) -> Blocks: ...


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Target rows with the number of their group (n,): all rows of group g are `order[starts[g]:starts[g + 1]]`.

    `unsure` is the classifier's error beside the noise of one row, so that n rows of a group tell what n/(1 + unsure·n)
    would tell of a classifier that never errs.
    """

    target: Blocks
    codes: Index
    sizes: Index
    inverse: Vector
    unsure: float
    order: Index | None = None
    starts: Index | None = None

    @classmethod
    def of(cls, target: Blocks, codes: Index, n_groups: int, source_prior: Vector, unsure: float) -> GroupedRows:
        sizes = np.bincount(codes, minlength=n_groups).astype(np.int64)
        inverse = inverse_of(source_prior)
        if not (isinstance(target, ArrayBlocks) and in_cache_order(target.array)):
            return cls(target, codes, sizes, inverse, unsure)
        order = np.argsort(codes, kind="stable").astype(np.int64, copy=False)
        return cls(
            target, codes, sizes, inverse, unsure, order, np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
        )

    def fit(self, model: Model, state: State, *, n_iter: int = 300, tol: float = TOLERANCE) -> State:
        """Return the state after up to `n_iter` iterations from a state's belief; that state is used up."""
        if self.order is None or self.starts is None:
            return self.fit_by_passes(model, state, n_iter=n_iter, tol=tol)
        assert isinstance(self.target, ArrayBlocks)
        args: Any = (self.inverse, self.order, self.starts, *model.arrays(), *state.arrays(), n_iter, tol, self.unsure)
        if loops.group_fit(self.target.array, *args) == reference.REFUSED:
            reference.group_fit(self.target.array, *args)
        return state

    def fit_by_passes(self, model: Model, state: State, *, n_iter: int, tol: float) -> State:
        """Do the same with one pass over the rows an iteration: O(G·K) numbers and no row are held."""
        k, sizes = self.target.n_classes, self.sizes.astype(np.float64)
        alpha, terms = model.arrays()
        state.prior[:] = state.belief
        for _ in range(n_iter):
            before = state.prior.copy()
            sums, _ = self.count(state.belief)
            args: Any = (k, sizes, sums, alpha, terms, *state.arrays(), self.unsure)
            if loops.group_step(*args) == reference.REFUSED:
                reference.group_step(*args)
            state.tail[:, 2] = np.abs(state.prior - before).sum(axis=1)
            if (state.tail[:, 2] < tol).all():
                break
        state.tail[:, 1] = self.count(state.prior)[1]
        state.tail[:, 0] += state.tail[:, 1] / (1 + self.unsure * sizes)
        return state

    def count(self, weights: Matrix) -> tuple[Matrix, Vector]:
        """Return each group's sums (G, 2, width) of an E-step at `weights` (G, width), and its log-likelihood (G,)."""
        sums, logs = np.zeros((len(self.sizes), 2, weights.shape[1])), np.zeros(len(self.sizes))

        def of_block(block: Matrix, codes: Index) -> int:
            args = (self.inverse, codes, weights, sums, logs)
            if loops.group_counts(block, *args) == reference.REFUSED:
                reference.group_counts(block, *args)
            return 0

        map_keyed(self.target, self.codes, of_block)
        return sums, logs

    def log_likelihood(self, source_prior: Vector, priors: Matrix) -> Vector:
        """Return that of each group (G,) under its prior, of `priors` (G, width), relative to a source prior."""
        return replace(self, inverse=inverse_of(source_prior)).count(priors)[1]

    def some(self, which: Index) -> GroupedRows:
        """Return the rows of some groups (m,) alone, in memory."""
        new = np.full(len(self.sizes), -1, np.int64)
        new[which] = np.arange(len(which))
        prior = 1.0 / self.inverse[: self.target.n_classes]
        if self.order is not None and self.starts is not None:
            ends = self.starts[which + 1]
            order = np.concatenate([self.order[a:b] for a, b in zip(self.starts[which], ends, strict=True)])
            starts = np.concatenate([[0], np.cumsum(self.sizes[which])]).astype(np.int64)
            return GroupedRows(self.target, self.codes, self.sizes[which], self.inverse, self.unsure, order, starts)
        kept: list[Matrix] = []

        def keep(block: Matrix, codes: Index) -> int:
            kept.append(np.array(block[new[codes] >= 0]))
            return 0

        map_keyed(self.target, self.codes, keep)
        codes = new[self.codes]
        rows = np.ascontiguousarray(np.concatenate(kept), dtype=np.float64)
        return GroupedRows.of(ArrayBlocks(rows), codes[codes >= 0], len(which), prior, self.unsure)

    @property
    def told(self) -> Vector:
        """Return how many rows each group's rows are worth (G,)."""
        return worth_of(self.sizes, self.unsure)

    def of_group(self, g: int) -> Blocks:
        """Return the rows of one group."""
        if self.order is not None and self.starts is not None and isinstance(self.target, ArrayBlocks):
            return ArrayBlocks(self.target.array[self.order[self.starts[g] : self.starts[g + 1]]])
        return OneGroup(self.target, self.codes, g)


def worth_of(sizes: Index, unsure: float) -> Vector:
    """Return how many rows of a classifier that never errs so many rows (G,) are worth."""
    return np.asarray(sizes / (1 + unsure * sizes))


def inverse_of(source_prior: Vector) -> Vector:
    """Return 1/ε (width,), as kernels take it."""
    out = np.zeros(width(len(source_prior)))
    out[: len(source_prior)] = 1.0 / source_prior
    return out


@dataclass(frozen=True, slots=True)
class OneGroup:
    """The rows of one group among blocks."""

    target: Blocks
    codes: Index
    group: int

    @property
    def n_classes(self) -> int:
        return self.target.n_classes

    def map_sum(self, fn: Callable[[Matrix], S]) -> S:
        return map_keyed(self.target, self.codes, lambda block, codes: fn(block[codes == self.group]))


def map_keyed(target: Blocks, codes: Index, fn: Callable[[Matrix, Index], S]) -> S:
    """Return the sum of `fn(block, its rows' groups)` over blocks that come in the order of the rows."""
    at = 0

    def of_block(block: Matrix) -> S:
        nonlocal at
        at += len(block)
        return fn(block, codes[at - len(block) : at])

    total = target.map_sum(of_block)
    if at != len(codes):  # what `fn` notes down in another process, nobody here gets to see
        fail("groups", "proba", f"be {len(codes)} rows that this process reads in their order", f"{at} such rows",
             remedy="On Spark call `reprior.adapters.spark.groups`")  # fmt: skip
    return total


def in_cache_order(array: Matrix) -> bool:
    """Return whether rows can be read where they are."""
    return array.dtype in (np.float32, np.float64) and array.flags.c_contiguous and array.flags.aligned


def share_fit(rows: Grouped, mix: Vector) -> tuple[State, Model, int]:
    """Return all groups' fit under a population learned from them, whose overall mix is `mix` (K,)."""
    n_groups, k, base = len(rows.sizes), len(mix), mix
    step = -(-n_groups // ENOUGH_GROUPS)
    held = isinstance(rows, GroupedRows) and rows.order is not None
    sample = rows if step == 1 and held else rows.some(np.arange(0, n_groups, step))
    assert isinstance(sample, GroupedRows)
    model = learn(sample, base)
    state = rows.fit(model, State.at(n_groups, base, model))
    rounds = 1
    while rounds < 3 and len(model.centres) == 1:
        # `mix` is the mean over rows; what groups scatter around is the mean over groups, each by what it can tell
        told = worth(rows.told, state.member, model)
        by_group, by_row = told @ state.prior[:, :k] / told.sum(), rows.sizes @ state.prior[:, :k] / rows.sizes.sum()
        moved = mix * by_group / by_row
        moved /= moved.sum()
        if np.abs(moved - base).sum() < 0.01:
            break
        base, model, rounds = moved, learn(sample, moved), rounds + 1
        state = rows.fit(model, State.at(n_groups, state.prior[:, :k], model))
    return state, model, rounds


def widen(rows: Grouped, state: State, model: Model, whole: PriorEstimate) -> None:
    """Add to the groups' variances what their own fits leave out: that classes are confused with each other, that the
    common mix is an estimate, and that so is how much groups differ."""
    if model.gram is None:
        return
    mix, posterior = whole.prior, whole.posterior
    k, s = len(mix), float(np.exp(model.weights @ np.log(model.strength)))
    root = np.sqrt(np.maximum(mix, 1e-9))
    scaled = model.gram / root / root[:, None]  # information of a row on shares, in units of √share
    n = rows.told
    sizes = np.unique(np.geomspace(n.min(), n.max(), 6))
    unsure = np.stack([np.diag(inverse(size * scaled, s)) for size in sizes])
    confused = unsure * (sizes[:, None] * np.diag(scaled) + s)
    low = np.clip(np.searchsorted(sizes, n, side="right") - 1, 0, max(0, len(sizes) - 2))
    high = np.minimum(low + 1, len(sizes) - 1)
    at = np.log(n / sizes[low]) / np.maximum(np.log(sizes[high] / sizes[low]), 1e-12)
    within = state.member @ (model.which[:, None] == np.arange(len(model.centres)))  # (G, C), a group's centre
    told = worth(rows.sizes.astype(np.float64), state.member, model) @ within
    told /= 1 + rows.unsure * told  # the classifier's error does not average out over groups
    weak = 1 / np.maximum(mix, 1.0 / k)
    centres = np.stack([m * np.diag(inverse(t * scaled, weak)) for m, t in zip(model.centres, told, strict=True)])
    common = np.maximum(within @ centres, posterior.weights @ (posterior.variances + (posterior.means - mix) ** 2))
    reliance = ((state.member * model.strength / (n[:, None] + model.strength)).sum(axis=1) ** 2)[:, None]
    prior, variance = state.prior[:, :k], state.variance[:, :k]
    variance *= (1 - at)[:, None] * confused[low] + at[:, None] * confused[high]
    # rows look surer under a group's own mix than they did before it was known
    np.maximum(
        variance, prior * (1 - prior) * ((1 - at)[:, None] * unsure[low] + at[:, None] * unsure[high]), out=variance
    )
    variance *= ALLOWANCE
    variance += reliance * (common + model.doubt * prior * (1 - prior))


def inverse(information: Matrix, prior_precision: Vector | float) -> Matrix:
    """Return the inverse of an information matrix (K, K) plus a diagonal prior one."""
    return np.asarray(np.linalg.inv(information + np.diag(np.broadcast_to(prior_precision, len(information)))))


def worth(told: Vector, member: Matrix, model: Model) -> Vector:
    """Return how many independent rows each group is worth (G,) to learn the common mix from."""
    n, s = told[:, None], model.strength
    return np.asarray((member * (n * (s + 1) / (n + s))).sum(axis=1))


def learn(rows: GroupedRows, base: Vector) -> Model:
    """Return the population of some groups: strengths around `base` (K,), or around as many centres as they tell."""
    n_groups, k = len(rows.sizes), len(base)
    model, state, best = settle(rows, around(base[None]), base)
    for n_centres in CENTRES:
        if n_groups < GROUPS_A_CENTRE * n_centres:
            break
        centres = clusters(state.prior[:, :k], worth(rows.told, state.member, model), n_centres, base)
        other, other_state, evidence = settle(rows, around(centres), base)
        # a centre has K numbers, of which further centres share more and more, and a weight
        evidence -= k * float(np.log2(n_centres)) + (n_centres - 1) * float(np.log(n_groups))
        if evidence <= best:
            break
        model, state, best = other, other_state, evidence
    model = loosen(rows, model, state, base)
    # what hardly any group needs is dropped, but not the possibility to be unlike all others
    largest = int(np.argmax(np.bincount(model.which, model.weights)))
    kept = (model.weights * n_groups > 0.5) | ((model.which == largest) & (model.strength <= 10))
    weights = model.weights[kept] / model.weights[kept].sum()
    return replace(model, which=model.which[kept], strength=model.strength[kept], weights=weights)


def loosen(rows: GroupedRows, model: Model, state: State, base: Vector) -> Model:
    """Return the model with all strengths changed alike, so that groups scatter as their mean outputs do.

    Evidence at beliefs that have already been drawn to a centre finds groups too alike. But the mean over a group's
    rows of r at one common prior is linear in the group's shares, A π with A_jl = E[r_j | class l], so the scatter of
    those means beyond what rows within groups explain (analysis of variance) tells Σ 1/(s + 1) without bias.
    """
    usual = float(model.weights @ np.log(model.strength))
    like = np.log(model.strength) >= usual - np.log(UNLIKE)
    typical = state.member[:, like].sum(axis=1) > 0.5
    r, sizes = responsibilities(rows, typical, base)
    n, n_groups = len(r), len(sizes)
    if n_groups < 2 or n <= n_groups:
        return model
    means = np.add.reduceat(r, np.cumsum(sizes) - sizes, axis=0) / sizes[:, None]
    mean = r.mean(axis=0)
    between = (sizes[:, None] * (means - mean) ** 2).sum(axis=0)
    within = np.maximum((r**2).sum(axis=0) - (sizes[:, None] * means**2).sum(axis=0), 1e-12) / (n - n_groups)
    spread = n - (sizes**2).sum() / n
    shown = (r.T @ r) / np.maximum(r.sum(axis=0), 1e-12)  # A
    found = (between - (n_groups - 1) * within) / spread
    weights = np.bincount(model.which, model.weights * like, len(model.centres)).astype(np.float64)
    weights = weights / weights.sum()
    overall = weights @ model.centres
    unit = np.zeros(len(base))  # what 1/(s + 1) = 1 would bring
    for w, centre in zip(weights, model.centres, strict=True):
        unit += w * ((shown**2) @ centre - (shown @ centre) ** 2)
        found = found - w * (shown @ (centre - overall)) ** 2
    unit = np.maximum(unit, 1e-30)
    precision = unit / within**2
    scatter = float(precision @ found / (precision @ unit))
    # classes are correlated, so that their number counts for half
    error = float(np.sqrt(4 * (n_groups - 1) * (precision**2 @ within**2)) / (spread * (precision @ unit)))
    share = model.weights[like] / model.weights[like].sum()

    def implied(factor: float) -> float:
        return float(share @ (1 / (factor * model.strength[like] + 1)))

    wanted = float(np.clip(implied(1.0), scatter - error, scatter + error))
    low, high = np.log(0.003), np.log(3.0)
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if implied(float(np.exp(middle))) > wanted else (low, middle)
    strength = model.strength * np.where(like, np.exp((low + high) / 2), 1.0)
    return replace(model, strength=strength, doubt=error, gram=r.T @ r / n)


def responsibilities(rows: GroupedRows, which: NDArray[np.bool_], prior: Vector) -> tuple[Matrix, Index]:
    """Return r (m, K) at a common prior for rows of the chosen groups, side by side, and their sizes; no more than 200
    rows of a group, which tell as much about groups as all."""
    assert isinstance(rows.target, ArrayBlocks)
    assert rows.order is not None
    assert rows.starts is not None
    sizes = np.minimum(rows.sizes[which], 200)
    first = rows.starts[:-1][which]
    at = np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    r = rows.target.array[rows.order[at]] * (prior * rows.inverse[: len(prior)])
    r /= r.sum(axis=1)[:, None]
    return r, sizes


def settle(rows: GroupedRows, model: Model, base: Vector) -> tuple[Model, State, float]:
    """Return the model with its weights, and centres if there are several, fitted to the rows, and its evidence."""
    n_groups = len(rows.sizes)
    state = State.at(n_groups, base, model)
    for _ in range(ROUNDS):
        state = rows.fit(model, state, n_iter=2, tol=0.0)
        # one group's worth of doubt, so that no strength is ruled out
        weights = (state.member.sum(axis=0) + 1.0 / len(model.weights)) / (n_groups + 1.0)
        still = np.abs(weights - model.weights).sum() < 1e-3
        centres = model.centres
        if len(centres) > 1:
            centres = np.stack([recentre(rows, model, state, c, base) for c in range(len(centres))])
            still = still and np.abs(centres - model.centres).sum(axis=1).max() < 1e-3
        model = replace(model, centres=centres, weights=weights)
        if still:
            break
    return model, state, float(state.tail[:, 0].sum())


def recentre(rows: GroupedRows, model: Model, state: State, centre: int, base: Vector) -> Vector:
    """Return the mean mix (K,) of the groups around a centre, with K rows of the overall mix for those it has not."""
    n, total = rows.told[:, None], len(base) * base
    for c in np.flatnonzero(model.which == centre):
        s = model.strength[c]
        seen = state.counts[:, : len(base)] * (n / rows.sizes[:, None]) + s * model.centres[centre]
        total = total + (state.member[:, c, None] * (n * (s + 1) / (n + s)) / seen.sum(axis=1)[:, None] * seen).sum(
            axis=0
        )
    return np.asarray(total / total.sum())


def clusters(priors: Matrix, told: Vector, n_centres: int, base: Vector) -> Matrix:
    """Return centres (C, K) of priors (G, K) by k-means on their square roots, the best of five starts."""
    points, rng = np.sqrt(priors), np.random.default_rng(0)  # the same groups give the same clusters
    best, found = np.inf, np.zeros(len(points), np.intp)
    for _ in range(5):
        means = points[rng.integers(len(points), size=1)]
        for _ in range(n_centres - 1):  # far from those there are
            near = distances(points, means).min(axis=1) + 1e-300
            means = np.concatenate([means, points[rng.choice(len(points), size=1, p=near / near.sum())]])
        for _ in range(20):
            nearest = distances(points, means).argmin(axis=1)
            for c in np.unique(nearest):
                means[c] = points[nearest == c].mean(axis=0)
        cost = float(distances(points, means).min(axis=1).sum())
        if cost < best:
            best, found = cost, nearest
    sums = np.stack([told[found == c] @ priors[found == c] for c in range(n_centres)]) + len(base) * base
    return np.asarray(sums / sums.sum(axis=1)[:, None])


def distances(points: Matrix, means: Matrix) -> Matrix:
    """Return squared distances (G, C)."""
    squares = (points**2).sum(axis=1)[:, None] + (means**2).sum(axis=1) - 2 * points @ means.T
    return np.asarray(np.maximum(squares, 0.0))


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
        known.classes,
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
    # a class that has less than its own uncertainty may well be absent
    lower = np.where(prior <= (upper - lower) / 2, 0.0, lower)
    return np.minimum(lower, prior), np.maximum(upper, prior)


def count(n: int, noun: str) -> str:
    """Return a number with its noun."""
    return f"{n:,} {noun}" + "s" * (n != 1)
