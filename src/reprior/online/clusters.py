"""Where a new key of a table starts, by the kinds of keys that there are: the population model of groups."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reprior._types import Matrix, Vector
from reprior.model.population import ODD_GROUPS, GroupSums, attenuation, find_kinds

MIN_SIZE, MAX_SIZE = 0.1, 30.0  # samples per class that a kind of keys may count as
MIN_ATTENUATION = 0.2  # smallest part of a difference between keys that p is taken to show
ODD_SIZE = 0.3  # samples per class that the common prior counts as for a key unlike the others


@dataclass(frozen=True, slots=True)
class Starts:
    """Priors (n, K) that a new key may start from, the samples per class `sizes` (n,) that each counts as, and their
    `probability` (n,)."""

    priors: Matrix
    sizes: Vector
    probability: Vector


def key_starts(sums: Matrix, common: Vector, n: int) -> Starts:
    """Return `n` starts of a new key, given the sums (2, G, K) of p and p² over the first samples of other keys.

    First the key may be unlike all others, at the `common` prior (K,). Then each centre of keys comes in turn, as
    strict as the scatter of keys, less and plus its standard error.
    """
    k, sums = len(common), sums[:, sums[0].sum(axis=1) > 0.5]
    centres, chance = common[None], np.ones(1)
    low, high = MIN_SIZE, MAX_SIZE
    if sums.shape[1]:
        samples, mean = sums[0].sum(axis=1), np.maximum(sums[0].sum(axis=0) / sums[0].sum(), 1e-12)
        of_keys = GroupSums(sums[0], sums[1], samples, samples)
        kinds = find_kinds(of_keys, mean, n - 1)
        # p is drawn to the prior that it was computed at: only how centres differ is taken over, and p shows a part
        centres = common * (kinds.centres[:-1] / mean) ** (1 / np.maximum(attenuation(of_keys), MIN_ATTENUATION))
        centres, chance = centres / centres.sum(axis=1, keepdims=True), kinds.probability[:-1]
        inverse, error = 1 / (kinds.scatter.concentration + 1), kinds.scatter.inverse_se
        low, high = (float(np.clip((1 / max(x, 1e-9) - 1) / k, MIN_SIZE, MAX_SIZE))
                     for x in (inverse + error, inverse - error))  # fmt: skip
    at = np.arange(n - 1) % len(centres)
    of_centre, turn = np.bincount(at)[at], np.arange(n - 1) // len(centres)
    step = np.where(of_centre > 1, turn / np.maximum(of_centre - 1, 1), 0.5)
    shares = chance[at] / of_centre
    return Starts(
        np.concatenate([common[None], centres[at]]), np.append(min(ODD_SIZE, low), low * (high / low) ** step),
        np.append(ODD_GROUPS, (1 - ODD_GROUPS) * shares / shares.sum()),
    )  # fmt: skip
