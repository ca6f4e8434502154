"""Simulate label shift: make class priors, and draw samples from a labelled pool to match them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from reprior._check import as_rng, by_name, check_choice, check_int, check_number, check_prior, check_proba, fail
from reprior._labels import check_labelled
from reprior._types import Labels, Matrix, Vector

Rng = int | np.random.Generator | None


EXPONENTS = ("k/(K-1)", "k/K")


def long_tail(n_classes: int, ratio: float, *, exponent: str = "k/(K-1)") -> Vector:
    """Return the long-tailed prior (K,) of eq. 2: class k = 0 … K−1 is ρ^`exponent` times as frequent as the first.

    Parameters
    ----------
    n_classes : int
        Number of classes K, at least 2.
    ratio : float
        ρ in (0, 1]: frequency of the last class over that of the first.
    exponent : {"k/(K-1)", "k/K"}
        "k/(K-1)" (default) is what public code for these data sets uses. With "k/K", as [hu2025] prints, the last class
        is ρ^((K−1)/K) times as frequent as the first.

    Examples
    --------
    >>> long_tail(3, 0.25).round(3)
    array([0.571, 0.286, 0.143])
    >>> long_tail(3, 0.25, exponent="k/K").round(3)
    array([0.493, 0.311, 0.196])
    """
    k = check_int(n_classes, "long_tail", "n_classes", low=2)
    rho = check_number(ratio, "long_tail", "ratio", low=0, high=1, open_low=True)
    check_choice(exponent, "long_tail", "exponent", EXPONENTS)
    sizes = rho ** (np.arange(k) / (k - (exponent == "k/(K-1)")))  # eq. 2
    return np.asarray(sizes / sizes.sum())


def long_tail_counts(n_classes: int, ratio: float, *, n_max: int, exponent: str = "k/(K-1)") -> Labels:
    """Return the long-tailed class sizes ⌊n_max·ρ^`exponent`⌋ (K,) of eq. 2, at least one each.

    Parameters
    ----------
    n_classes, ratio, exponent
        As in `long_tail`.
    n_max : int
        Size of the largest class.

    Examples
    --------
    >>> long_tail_counts(3, 0.25, n_max=100)
    array([100,  50,  25])
    """
    prior = long_tail(n_classes, ratio, exponent=exponent)
    largest = check_int(n_max, "long_tail_counts", "n_max")
    sizes: Labels = np.maximum(1, np.floor(largest * prior / prior[0] + 1e-9)).astype(np.intp)
    return sizes


def shuffled_long_tail(n_classes: int, ratio: float, *, rng: Rng = None, exponent: str = "k/(K-1)") -> Vector:
    """Return a long-tailed prior (K,) in random class order (eq. 3, "shuffle").

    Parameters
    ----------
    n_classes, ratio, exponent
        As in `long_tail`.
    rng : int or Generator, optional
        A seed, or a generator of random numbers.

    Examples
    --------
    >>> shuffled_long_tail(3, 0.25, rng=0).round(3)
    array([0.143, 0.571, 0.286])
    """
    return np.asarray(as_rng(rng).permutation(long_tail(n_classes, ratio, exponent=exponent)))


def dirichlet(n_classes: int, alpha: float, *, rng: Rng = None) -> Vector:
    """Return a prior (K,) drawn from a symmetric Dirichlet distribution (eq. 3, "Dirichlet").

    Parameters
    ----------
    alpha : float
        Parameter of the distribution. Small values give uneven priors.
    n_classes, rng
        As in `shuffled_long_tail`.

    Examples
    --------
    >>> dirichlet(3, 1.0, rng=0).shape
    (3,)
    """
    k = check_int(n_classes, "dirichlet", "n_classes", low=2)
    a = check_number(alpha, "dirichlet", "alpha", low=0, high=1e9, open_low=True)
    return np.asarray(as_rng(rng).dirichlet(np.full(k, a)))


def _base_prior(n_classes: int, base: Any, caller: str) -> Vector:
    """Return a base prior as (K,) numbers, the uniform one if there is none."""
    k = check_int(n_classes, caller, "n_classes", low=2)
    return np.full(k, 1.0 / k) if base is None else check_prior(base, caller, "base", n_classes=k)


def tweak_one(n_classes: int, share: float, *, rng: Rng = None, base: Any = None) -> Vector:
    """Return a prior (K,) in which one random class has a given share.

    Parameters
    ----------
    share : float
        Share of that class.
    base : (K,), optional
        Prior whose proportions the other classes keep; by default uniform.
    n_classes, rng
        As in `shuffled_long_tail`.

    Examples
    --------
    >>> tweak_one(4, 0.7, rng=0)
    array([0.1, 0.1, 0.1, 0.7])
    """
    value = check_number(share, "tweak_one", "share", low=0, high=1)
    prior = _base_prior(n_classes, base, "tweak_one")
    one = as_rng(rng).integers(n_classes)
    rest = np.where(np.arange(n_classes) == one, 0.0, prior)
    rest *= (1 - value) / rest.sum()
    rest[one] = value
    return rest


def knock_out(n_classes: int, absent: float, *, rng: Rng = None, base: Any = None) -> Vector:
    """Return a prior (K,) in which a random part of the classes is absent.

    Parameters
    ----------
    absent : float
        Share of the classes that are absent.
    n_classes, rng, base
        As in `tweak_one`.

    Examples
    --------
    >>> knock_out(4, 0.5, rng=0)
    array([0.5, 0.5, 0. , 0. ])
    """
    value = check_number(absent, "knock_out", "absent", low=0, high=1)
    prior = _base_prior(n_classes, base, "knock_out").copy()
    gone = min(n_classes - 1, round(value * n_classes))
    prior[as_rng(rng).choice(n_classes, gone, replace=False)] = 0.0
    return np.asarray(prior / prior.sum())


def folds(labels: Labels, n: int, rng: Rng) -> Labels:
    """Return a random fold number per sample (n,), stratified by class.

    Parameters
    ----------
    labels : (n,)
        Labels, as column indices.
    n : int
        Number of folds.
    rng
        As in `shuffled_long_tail`.

    Examples
    --------
    >>> folds(np.array([0, 0, 1, 1]), 2, rng=0)
    array([0, 1, 0, 1])
    """
    order = as_rng(rng).permutation(len(labels))
    order = order[np.argsort(labels[order], kind="stable")]
    fold = np.empty(len(labels), np.intp)
    fold[order] = np.arange(len(labels)) % n  # neighbours in `order` share a class
    return fold


class Sample(NamedTuple):
    """Samples drawn from a pool; made by `resample`.

    Parameters
    ----------
    proba : (n, K)
        Predicted probabilities.
    y : (n,)
        Labels, as column indices.
    prior : (K,)
        Class prior of the draw; see `exact` of `resample`.
    rows : (n,)
        Row numbers in the pool.
    reused : tuple of int
        Classes with too few samples in the pool; some of their samples occur more than once.

    Examples
    --------
    >>> drawn = resample([[0.9, 0.1], [0.2, 0.8]], [0, 1], [0.75, 0.25], n=4, rng=0)
    >>> drawn.reused  # the pool has one sample of class 0
    (0,)
    """

    proba: Matrix
    y: Labels
    prior: Vector
    rows: Labels
    reused: tuple[int, ...]


def resample(proba: Any, y: Any, prior: Any, *, n: int, rng: Rng = None, exact: bool = True) -> Sample:
    """Draw samples from a labelled pool so that their classes follow a prior, in random order.

    Samples of a class are drawn without replacement. If the pool has too few, samples are used again, and `reused`
    lists the class.

    Parameters
    ----------
    proba : (n, K)
        Predicted probabilities of the pool.
    y : (n,)
        Labels of the pool.
    prior : (K,)
        Class prior to draw.
    n : int
        Number of samples to draw.
    rng : int or Generator, optional
        A seed, or a generator of random numbers.
    exact : bool
        Whether class sizes are n·prior, rounded so that they add up to n; `Sample.prior` then has the resulting shares.
        Otherwise labels are drawn independently, and `Sample.prior` is `prior`.

    Examples
    --------
    >>> pool = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7], [0.1, 0.9]]
    >>> resample(pool, [0, 0, 1, 1], [0.75, 0.25], n=4, rng=0).prior
    array([0.75, 0.25])
    """
    pool, labels, names = check_labelled(proba, y, "resample")
    target = check_prior(prior, "resample", "prior", allow_zero=True, n_classes=pool.shape[1], like="`proba`",
                         classes=names)  # fmt: skip
    total, rng = check_int(n, "resample", "n"), as_rng(rng)
    if exact:  # eq. 3, by largest remainders
        sizes = np.floor(target * total + 1e-9).astype(np.intp)
        sizes[np.argsort(sizes - target * total, kind="stable")[: total - sizes.sum()]] += 1
    else:
        sizes = rng.multinomial(total, target).astype(np.intp)
    chosen, reused = [], []
    order = np.argsort(labels, kind="stable")
    ends = np.searchsorted(labels[order], np.arange(pool.shape[1] + 1))
    for k, size in enumerate(sizes):
        rows = order[ends[k] : ends[k + 1]]
        if size and not len(rows):
            fail("resample", "y", f"have rows of class {k}, which `prior` asks for", "none")
        if size > len(rows):
            reused.append(k)
        whole, extra = divmod(int(size), max(1, len(rows)))
        chosen.append(np.tile(rows, whole))
        chosen.append(rng.choice(rows, extra, replace=False) if extra else rows[:0])
    picked = rng.permutation(np.concatenate(chosen)).astype(np.intp)
    share = sizes / sizes.sum() if exact else target
    return Sample(pool[picked], labels[picked], share, picked, tuple(reused))


DRIFTS = ("lin", "squ", "sin", "ber", "swap")


def drift(start: Any, end: Any, *, n: int, kind: str = "lin", period: int | None = None, rng: Rng = None) -> Matrix:
    """Return the prior (n, K) at each step of a drift between two priors.

    Parameters
    ----------
    start, end : (K,)
        The two priors.
    n : int
        Number of steps.
    kind : str
        "lin" (a straight line), "squ" (back and forth every `period` steps), "sin" (half a sine every `period` steps),
        "ber" (a switch with probability 1/`period` at each step) or "swap" (once, after `period` steps).
    period : int, optional
        Steps between changes; by default √n as published [bai2022], and n/2 for "swap".
    rng : int or Generator, optional
        Seed for "ber"; the other kinds are not random.

    Examples
    --------
    >>> drift([1, 0], [0, 1], n=4, kind="swap")[:, 0]
    array([1., 1., 0., 0.])
    """
    first = check_prior(start, "drift", "start", allow_zero=True)
    last = check_prior(end, "drift", "end", allow_zero=True, n_classes=len(first), like="`start`")
    steps = check_int(n, "drift", "n", low=2)
    check_choice(kind, "drift", "kind", DRIFTS)
    width = (steps // 2 if kind == "swap" else math.isqrt(steps)) if period is None else period
    width, t = check_int(width, "drift", "period"), np.arange(steps)
    moves: dict[str, Callable[[], Any]] = {
        "lin": lambda: t / (steps - 1),
        "squ": lambda: t // width % 2,
        "sin": lambda: np.sin(np.pi * (t % width) / width),
        "ber": lambda: np.cumsum(as_rng(rng).random(steps) < 1 / width) % 2,
        "swap": lambda: 1.0 * (t >= width),
    }
    moved = moves[kind]()[:, None]
    return np.asarray((1 - moved) * first + moved * last)


class StreamSample(NamedTuple):
    """A stream drawn from a pool; made by `draw_stream`.

    Parameters
    ----------
    proba : (n, K)
        Predicted probabilities, in order.
    y : (n,)
        Labels, as column indices.
    priors : (n, K)
        Class prior at each sample.
    rows : (n,)
        Row numbers in the pool.

    Examples
    --------
    >>> drawn = draw_stream([[0.9, 0.1], [0.2, 0.8]], [0, 1], drift([1, 0], [0, 1], n=4), rng=0)
    >>> drawn.priors[:, 1].round(2)
    array([0.  , 0.33, 0.67, 1.  ])
    """

    proba: Matrix
    y: Labels
    priors: Matrix
    rows: Labels


def draw_stream(proba: Any, y: Any, priors: Any, *, repeat: int = 1, rng: Rng = None) -> StreamSample:
    """Draw a stream from a labelled pool along a path of priors.

    Samples of a class come in random order. None comes again before all have come.

    Parameters
    ----------
    proba, y, rng
        Pool and seed, as in `resample`.
    priors : (n, K)
        Class prior at each step, as `drift` returns it.
    repeat : int
        Samples per step.

    Examples
    --------
    >>> path = drift([1, 0], [0, 1], n=4, kind="swap")
    >>> draw_stream([[0.9, 0.1], [0.2, 0.8]], [0, 1], path, rng=0).y
    array([0, 0, 1, 1])
    """
    pool, labels, names = check_labelled(proba, y, "draw_stream")
    each = check_proba(by_name(priors, names, "draw_stream", "priors"), "draw_stream", "priors", pool.shape[1])
    steps, rng = np.repeat(each, check_int(repeat, "draw_stream", "repeat"), axis=0), as_rng(rng)
    ends = np.cumsum(steps, axis=1)
    drawn = (rng.random(len(steps))[:, None] * ends[:, -1:] >= ends).sum(axis=1)
    rows = np.empty(len(steps), np.intp)
    for k in np.unique(drawn):
        mine, members = np.flatnonzero(drawn == k), np.flatnonzero(labels == k)
        if not len(members):
            fail("draw_stream", "y", f"have rows of class {k}, which `priors` asks for", "none")
        decks = -(-len(mine) // len(members))
        rows[mine] = np.concatenate([rng.permutation(members) for _ in range(decks)])[: len(mine)]
    return StreamSample(pool[rows], labels[rows], steps, rows)
