"""How far the keys of a table scatter, and around how many centres: what a new key can be expected to be like.

Keys have class mixes π ~ Dirichlet(s·m). All that is known of a key here are sums over its first rows, of r, their
posteriors at a prior that all keys have in common, and of r². The mean of r is linear in a key's shares, so the
analysis of variance tells 1/(s + 1), how far keys scatter, without bias: the scatter of the means beyond what rows
within keys explain, against what a scatter of 1 would bring. All classes count alike. Weights by precision would be
those of rare classes, of which a few keys show too little scatter.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from reprior._types import Labels, Matrix, Vector

KEYS_A_CENTRE = 10
MIN_STRENGTH, MAX_STRENGTH = 0.1, 30.0  # strengths s that keys may have, in rows a class
UNLIKE_WEIGHT, UNLIKE_STRENGTH = (
    0.1,
    0.3,
)  # weight of a mix unlike that of all other keys, and what the common mix counts then
MIN_PURITY = 0.2  # least part of a difference that r is taken to show
MAX_MOVES = 20  # of keys that move to the nearest centre, at most


class StartingMixes(NamedTuple):
    """Class mixes (n, K) that a new key may have, their strengths in samples (n,), and their weights (n,)."""

    mixes: Matrix
    strengths: Vector
    weights: Vector


class Clusters(NamedTuple):
    """The mixes (C, K) that keys scatter around, the weight of each (C,), and the strengths between which s lies, in
    rows a class."""

    centres: Matrix
    weights: Vector
    low: float
    high: float

    def parts(self, common: Vector, n: int) -> StartingMixes:
        """Return n > C mixes for a new key: first it may be unlike all others, then each centre in turn, with
        strengths from low to high."""
        c = len(self.centres)
        of = np.arange(n - 1) % c
        at, many = np.arange(n - 1) // c, np.bincount(of)[of]
        step = np.where(many > 1, at / np.maximum(many - 1, 1), 0.5)
        strengths = self.low * (self.high / self.low) ** step
        weights = (1.0 - UNLIKE_WEIGHT) * self.weights[of] / many
        return StartingMixes(
            np.concatenate([common[None], self.centres[of]]),
            np.append(min(UNLIKE_STRENGTH, self.low), strengths),
            np.append(UNLIKE_WEIGHT, weights),
        )


def find_clusters(sums: Matrix, common: Vector, most: int) -> Clusters:
    """Return the kinds of keys, at most so many, by their sums (2, G, K) and the mix that they have in common (K,)."""
    n_keys, k = sums.shape[1:]
    if n_keys == 0:
        return Clusters(common[None], np.ones(1), MIN_STRENGTH, MAX_STRENGTH)
    which, mean = np.zeros(n_keys, np.int64), np.maximum(sums[0].sum(axis=0) / sums[0].sum(), 1e-12)
    best, clusters = weigh(sums, which, mean[None])
    for n in range(2, 1 + min(most, n_keys // KEYS_A_CENTRE)):
        # one of the centres is split; keys then go to the nearest
        tried = [settle(sums[0], np.where(halved(sums[0], which == c, mean), n - 1, which), n, mean)
                 for c in range(n - 1)]  # fmt: skip
        weighed = [(*weigh(sums, *one), one[0]) for one in tried]
        evidence, other, moved = max(weighed, key=lambda one: one[0])
        # a centre has a weight and K numbers: each fits half a nat by chance, and errs by as much in other keys
        evidence -= (n - 1) * (k + float(np.log(n_keys)))
        if evidence <= best:
            break
        best, clusters, which = evidence, other, moved
    # r is drawn to the prior that it was computed at: of where centres are, only how they differ is taken over, and
    # they differ by more than is left of it where classes are confused
    centres = common * (clusters.centres / mean) ** (1.0 / np.maximum(purity(sums), MIN_PURITY))
    return clusters._replace(centres=centres / centres.sum(axis=1, keepdims=True))


def halved(counts: Matrix, at: Vector, mean: Vector) -> Vector:
    """Return one half (G,) of those keys by their counts (G, K), along the direction in which they differ most."""
    out = np.zeros(len(counts), bool)
    x, n = counts[at], counts[at].sum(axis=1)[:, None]
    if len(x) < 2:
        return out
    x = (x - n * (x.sum(axis=0) / n.sum())) / np.sqrt(n * mean)
    along = x[np.argmax((x * x).sum(axis=1))]
    for _ in range(10):
        along = (x @ along) @ x
        along /= max(float(np.sqrt(along @ along)), 1e-300)
    out[at] = x @ along > 0.0
    return out


def settle(counts: Matrix, which: Labels, n: int, mean: Vector) -> tuple[Labels, Matrix]:
    """Return which centre each key (G,) is nearest to, and the centres (n, K), with K rows of the mean of all each for
    classes that its keys have not shown."""
    for _ in range(MAX_MOVES):
        total = (which == np.arange(n)[:, None]).astype(np.float64) @ counts + len(mean) * mean
        centres = total / total.sum(axis=1, keepdims=True)
        nearest = (counts @ np.log(centres.T)).argmax(axis=1)
        if (nearest == which).all():
            break
        which = nearest
    return which, centres


def weigh(sums: Matrix, which: Labels, centres: Matrix) -> tuple[float, Clusters]:
    """Return the evidence for centres (C, K), each with those keys that are at it (G,), and what they make."""
    from scipy.special import gammaln

    (n_keys, k), n_centres = sums.shape[1:], len(centres)
    scatter, error = scattered(sums, which, n_centres)
    ends = np.clip(
        [scatter + error, scatter, scatter - error], 1.0 / (MAX_STRENGTH * k + 1.0), 1.0 / (MIN_STRENGTH * k + 1.0)
    )
    low, s, high = 1.0 / ends - 1.0
    weights = (np.bincount(which, minlength=n_centres) + 1.0) / (n_keys + n_centres)
    alpha = np.maximum(s * centres, 1e-9)[:, None]
    fits = (gammaln(sums[0] + alpha) - gammaln(alpha)).sum(axis=2)  # but for what all centres have in common
    n = sums[0].sum(axis=1)
    evidence = np.logaddexp.reduce(fits + np.log(weights)[:, None], axis=0) + gammaln(s) - gammaln(n + s)
    return float(evidence.sum()), Clusters(centres, weights, low / k, high / k)


def purity(sums: Matrix) -> Vector:
    """Return E[r_j | class j] (K,)."""
    return np.asarray(sums[1].sum(axis=0) / np.maximum(sums[0].sum(axis=0), 1e-12))


def scattered(sums: Matrix, which: Labels, n_centres: int) -> tuple[float, float]:
    """Return 1/(s + 1) of a new key around the mean of those at the same centre, with its standard error."""
    counts, squares = sums[0], sums[1].sum(axis=0)
    n, free = counts.sum(axis=1), len(which) - n_centres
    rest = n.sum() - len(n)
    if free < 1 or rest < 0.5:
        return 0.0, np.inf
    own = counts * counts / n[:, None]
    within = np.maximum(squares - own.sum(axis=0), 0.0) / rest
    pure = purity(sums)
    between, whole = np.zeros((2, len(within)))  # as it is, and what a scatter of 1 would bring
    for c in range(n_centres):
        here = which == c
        size = max(n[here].sum(), 1e-12)
        mean = counts[here].sum(axis=0) / size
        between += own[here].sum(axis=0) - size * mean * mean
        whole += (size - n[here] @ n[here] / size) * pure * pure * mean * (1.0 - mean)
    total = max(float(whole.sum()), 1e-12)
    # classes are correlated, so that their number counts for half
    error = 2.0 * float(np.sqrt((between * between).sum() / free)) / total
    scatter = max(float((between - free * within).sum()) / total, 0.0)
    # a new key scatters around the true centre, which those of others miss by as much as they tell too little
    return scatter * (1.0 + n_centres / len(n)) + n_centres * float(within.sum()) / total, error
