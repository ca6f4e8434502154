"""What many groups have in common, learned from them: how far they scatter, and around how many centres.

With one target a Dirichlet prior that follows the estimate has no optimum. With many groups, π_g ~ Dirichlet(α), it
has: how much groups differ can be seen. Here α = s·m, where m is the mix of all rows by `ebls`, and s, how alike groups
are, has a distribution over a grid, learned from all groups: most may be alike and a few stand out. Where groups fall
into clusters, each cluster has its own m.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from reprior._types import Matrix, PriorEstimate, Vector
from reprior.batch.grouped import Grouped, GroupedRows, Index, Model, State
from reprior.rows.blocks import ArrayBlocks
from reprior.rows.correction import posteriors

STRENGTHS = 10.0 ** np.arange(0.0, 4.1, 0.5)  # Σα that a group may have: how many rows the common mix is worth in it
ENOUGH_GROUPS = 1000  # to learn the population from
CENTRES = (2, 4, 8)  # clusters of groups that are tried, as long as the evidence grows by more than they cost
GROUPS_A_CENTRE = 10
STARTS = 10  # of looking for clusters
ROUNDS = 30  # of learning the population; its weights settle long before
NEWTON, RIDGE = 20, 1e-4  # steps at most; share of a class of which the rows must have something to say
MANY_CLASSES = 4096  # beyond which a K×K matrix is too dear
ALLOWANCE = 1.5  # for what a second-order model leaves out
UNLIKE = 8.0  # times less strength than usual


def carried_by(some: Matrix, source_prior: Vector, mix: Vector) -> Vector:
    """Return the prior (K,) that outputs must carry if the rows of all groups together have the class mix `mix` (K,).

    What all rows say beyond what `ebls` believes of them is the classifier's error, which every group would take for a
    shift of its own: so it is taken out of their outputs. Newton's steps find weights w = mix/carried under which
    the mean of r is `mix`: the minimum of the convex mean log Σ_j p_j w_j − Σ_j mix_j log w_j.
    """
    k = len(mix)
    at = start = np.log(np.maximum(mix, 1e-12) / source_prior)
    for _ in range(NEWTON if k <= MANY_CLASSES else 0):
        r = posteriors(some, np.exp(at))
        said = r.mean(axis=0)
        # the ridge leaves weights alone on which the rows have nothing to say
        slope = said - mix + RIDGE * (at - start)
        step = np.linalg.solve(np.diag(said + RIDGE) - r.T @ r / len(r), slope)
        at = at - np.clip(step, -1.0, 1.0)
        if np.abs(step * mix).sum() < 1e-6:
            break
    carried = source_prior * np.exp(start - at)
    return np.asarray(carried / carried.sum())


def around(centres: Matrix) -> Model:
    """Return the model whose components have every centre (C, K) in every strength, alike in weight."""
    n = len(centres) * len(STRENGTHS)
    which, strength = np.repeat(np.arange(len(centres)), len(STRENGTHS)), np.tile(STRENGTHS, len(centres))
    return Model(centres, which, strength, np.full(n, 1.0 / n))


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
        start = State.at(n_groups, state.prior[:, :k], model)
        del state  # of many groups two are felt
        state = rows.fit(model, start)
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
        counts = state.counts[:, :k] * (rows.told / rows.sizes)[:, None]
        centres = clusters(counts, n_centres, base)
        other, other_state, evidence = settle(rows, around(centres), base)
        # a centre has a weight and K numbers: each fits half a nat by chance, and errs by as much in other groups
        evidence -= (n_centres - 1) * (k + float(np.log(n_groups)))
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
    return replace(model, strength=strength, scatter=scatter, doubt=error, gram=r.T @ r / n)


def responsibilities(rows: GroupedRows, which: NDArray[np.bool_], prior: Vector) -> tuple[Matrix, Index]:
    """Return r (m, K) at a common prior for rows of the chosen groups, side by side, and their sizes; no more than 200
    rows of a group, which tell as much about groups as all."""
    assert isinstance(rows.target, ArrayBlocks)
    assert rows.order is not None
    assert rows.starts is not None
    sizes = np.minimum(rows.sizes[which], 200)
    first = rows.starts[:-1][which]
    at = np.repeat(first - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())
    return posteriors(rows.target.array[rows.order[at]], prior * rows.inverse[: len(prior)]), sizes


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
    told = worth(rows.told, state.member * (model.which == centre), model)
    total = len(base) * base + (told / rows.sizes) @ state.counts[:, : len(base)]
    return np.asarray(total / total.sum())


def clusters(counts: Matrix, n_centres: int, base: Vector) -> Matrix:
    """Return centres (C, K) of groups by their counts (G, K), each group at the centre that makes them most likely; the
    best of several starts."""
    k, rng = len(base), np.random.default_rng(0)  # the same groups give the same clusters

    def centres_of(sums: Matrix) -> Matrix:
        smoothed = np.maximum(sums + k * base, 1e-300)  # as `recentre` has it
        return np.asarray(smoothed / smoothed.sum(axis=1, keepdims=True))

    best, found = -np.inf, centres_of(np.zeros((n_centres, k)))
    for _ in range(STARTS):
        centres = centres_of(counts[rng.integers(len(counts), size=1)])
        for _ in range(n_centres - 1):  # unlike those there are
            own = np.maximum(counts / counts.sum(axis=1, keepdims=True), 1e-300)
            far = np.maximum((counts * np.log(own)).sum(axis=1) - (counts @ np.log(centres.T)).max(axis=1), 1e-300)
            centres = np.concatenate([centres, centres_of(counts[rng.choice(len(counts), size=1, p=far / far.sum())])])
        for _ in range(20):
            fit = counts @ np.log(centres.T)
            nearest = fit.argmax(axis=1)
            moved = centres_of((nearest == np.arange(n_centres)[:, None]).astype(np.float64) @ counts)
            still = np.abs(moved - centres).max() < 1e-9
            centres = moved
            if still:
                break
        value = float(fit.max(axis=1).sum())
        if value > best:
            best, found = value, centres
    return found
