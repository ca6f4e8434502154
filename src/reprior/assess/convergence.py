"""How far one sample moves online-FMAPLS: the quantities of section IV-C of [hu2025], and what they leave out.

The paper reads eq. 37 as a trade-off: a larger ĉ gives smaller, more accurate steps. That holds for the posterior mean
(variant "stable"). The printed recursion also takes one count from every class at each sample, and that motion is away
from uniform: the same small step then sets how fast it runs away, not how well it settles.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from reprior._check import check_choice, check_int, check_number, check_prior, fail
from reprior._types import Vector


def _denominator(c_hat: float, k: int, variant: str, caller: str) -> float:
    check_choice(variant, caller, "variant", ("paper", "stable"))
    counts = check_number(c_hat, caller, "c_hat", low=0, open_low=True)
    bottom = counts + 1 if variant == "stable" else counts - k + 1  # eq. 36, with Σ B π = 1
    if bottom <= 0:
        fail(caller, "c_hat", f"be above K − 1 = {k - 1} for the printed recursion to be defined", c_hat)
    return bottom


def _motion(
    prior: Any, posterior: Any, c_hat: float, gamma: float, label: Any, variant: str, caller: str
) -> tuple[Vector, Vector]:
    """Return π (K,), and π′ − π (K,); the label's vector (K,) is taken to be the posterior where there is none."""
    pi = check_prior(prior, caller, "prior", allow_zero=True)
    weight = check_number(gamma, caller, "gamma", low=0, high=1)
    r = check_prior(posterior, caller, "posterior", allow_zero=True)
    d = r if label is None else check_prior(label, caller, "label", allow_zero=True)
    if r.shape != pi.shape or d.shape != pi.shape:
        fail(caller, "posterior, label", f"have {len(pi)} classes like `prior`", f"{len(r)}, {len(d)}")
    bottom = _denominator(c_hat, len(pi), variant, caller)
    s = (1 - weight) * d + weight * r  # eq. 24
    # eq. 37, where π(γB − γM + γ) + (1−γ)δ is S with M = 1
    return pi, (s - pi if variant == "stable" else s + (len(pi) - 1) * pi - 1) / bottom


def next_prior(
    prior: Any, posterior: Any, *, c_hat: float, gamma: float = 1.0, label: Any = None, variant: str = "paper"
) -> Vector:
    """Return the prior (K,) after one sample with this posterior (K,): eq. 36, or its mean form if "stable".

    Nothing is cut off: as printed a share may become negative, which is what the streams guard against.
    """
    pi, moved = _motion(prior, posterior, c_hat, gamma, label, variant, "next_prior")
    return pi + moved


def increment(
    prior: Any, posterior: Any, *, c_hat: float, gamma: float = 1.0, label: Any = None, variant: str = "paper"
) -> Vector:
    """Return |π′ − π| (K,) for one sample: eq. 37.

    >>> increment([0.5, 0.5], [1.0, 0.0], c_hat=100.0, variant="stable").round(4)
    array([0.005, 0.005])
    """
    return np.abs(_motion(prior, posterior, c_hat, gamma, label, variant, "increment")[1])


def step_size(c_hat: float, n_classes: int, *, variant: str = "paper") -> float:
    """Return the factor of O(1/ĉ) by which one sample's pull moves the prior: eq. 38."""
    k = check_int(n_classes, "step_size", "n_classes", low=2)
    return 1.0 / _denominator(c_hat, k, variant, "step_size")


def runaway_rate(c: float, n_classes: int) -> float:
    """Return by what fraction of itself a small deviation from uniform grows at each sample that says nothing.

    Of the printed recursion, with ĉ = c / max π ≈ cK; about 1/c. The posterior mean has none: it stays where it is.
    """
    k = check_int(n_classes, "runaway_rate", "n_classes", low=2)
    c_hat = check_number(c, "runaway_rate", "c", low=0, open_low=True) * k
    return k / _denominator(c_hat, k, "paper", "runaway_rate")
