"""Formulas of [hu2025] as printed, with what each of them leaves out.

These are its objective and surrogate (eq. 7, 15–18), its Cramér–Rao bounds (eq. 11–14, 34–35), and the size of one
online step (eq. 36–38).

The bounds use the information of *labelled* samples, so real errors are larger: predictions contain less information
than labels. The paper gives no intervals; use `PriorEstimate.interval`. The paper reads eq. 37 as a trade-off: a larger
ĉ gives smaller, more accurate steps. That holds for the posterior mean (variant "stable"). The printed recursion also
subtracts one count from every class at each sample, which moves the estimate away from uniform. The step size then sets
how fast the estimate diverges.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import digamma, gammaln

from reprior._check import as_array, check_choice, check_int, check_number, check_prior, fail
from reprior._labels import check_labels
from reprior._types import Matrix, Vector

# -- the objective, and the surrogate for its part in α ---------------------------------------------------------------


def alpha_objective(alpha: Any, prior: Any) -> float:
    """Return L_α = log Dir(π; α) of eq. 16: the part of the objective that depends on α.

    It has no maximum: along α = ĉπ it grows without limit, as (K−1)/2 · log ĉ.

    Parameters
    ----------
    alpha : (K,)
        Dirichlet parameters, positive.
    prior : (K,)
        The estimate π.

    Examples
    --------
    >>> [round(alpha_objective([c * 0.7, c * 0.3], [0.7, 0.3]), 2) for c in (10, 1000, 100000)]
    [0.98, 3.31, 5.62]
    """
    pi, a = _with_alpha(prior, alpha, "alpha_objective")
    return float(gammaln(a.sum()) - gammaln(a).sum() + ((a - 1) * np.log(pi)).sum())


def alpha_gradient(alpha: Any, prior: Any) -> Vector:
    """Return ∂L_α/∂α (K,): the bracket of eq. 10, and eq. 17 at α = ĉπ.

    Parameters
    ----------
    alpha, prior : (K,)
        As in `alpha_objective`.

    Examples
    --------
    >>> alpha_gradient([7, 3], [0.7, 0.3]).round(3)  # positive: no maximum
    array([0.022, 0.125])
    """
    pi, a = _with_alpha(prior, alpha, "alpha_gradient")
    return np.asarray(digamma(a.sum()) - digamma(a) + np.log(pi))


def objective(prior: Any, alpha: Any, counts: Any) -> float:
    """Return the expected log posterior of eq. 7 without its constant: L_α plus Σ n_j log π_j.

    Parameters
    ----------
    prior : (K,)
        The estimate π.
    alpha : (K,)
        Dirichlet parameters.
    counts : (K,)
        Sums over samples of the corrected probabilities at the *previous* estimate (eq. 8).

    Examples
    --------
    >>> round(objective([0.5, 0.5], [1, 1], [6, 4]), 3)
    -6.931
    """
    pi, _ = _with_alpha(prior, alpha, "objective")
    observed = as_array(counts, "objective", "counts").astype(np.float64)
    if observed.shape != pi.shape or not np.isfinite(observed).all() or (observed < 0).any():
        fail("objective", "counts", f"be ({len(pi)},) finite numbers, none negative", f"shape {observed.shape}")
    return alpha_objective(alpha, prior) + float((observed * np.log(pi)).sum())


def surrogate(prior: Any, c: float) -> Vector:
    """Return α = c·π / max π (K,): the linear surrogate of eq. 15 and 33. Its sum is ĉ = c / max π.

    Parameters
    ----------
    prior : (K,)
        The estimate π.
    c : float
        The paper's constant, positive.

    Examples
    --------
    >>> surrogate([0.7, 0.3], 70)
    array([70., 30.])
    """
    pi = check_prior(prior, "surrogate", "prior", allow_zero=True)
    return np.asarray(check_number(c, "surrogate", "c", low=0, open_low=True) * pi / pi.max())


def surrogate_error(prior: Any, c_hat: float) -> Vector:
    """Return ∂L_α/∂α (K,) at α = ĉπ (eq. 17): how far the surrogate is from a stationary point.

    Parameters
    ----------
    prior, c_hat : (K,), float
        The estimate π, and ĉ, the sum of the Dirichlet parameters, positive.

    Examples
    --------
    >>> surrogate_error([0.7, 0.3], 100).round(4)
    array([0.0022, 0.0118])
    """
    pi = check_prior(prior, "surrogate_error", "prior")
    return alpha_gradient(check_number(c_hat, "surrogate_error", "c_hat", low=0, open_low=True) * pi, pi)


def surrogate_error_bounds(prior: Any, c_hat: float) -> tuple[Vector, Vector]:
    """Return lower and upper bounds (K,), (K,) on `surrogate_error`: eq. 18 with its constants.

    From 1/2x < log x − ψ(x) < 1/x. Both are O(1/ĉπ_j), as printed: the rarest class has the largest error.

    Parameters
    ----------
    prior, c_hat
        As in `surrogate_error`.

    Examples
    --------
    >>> low, high = surrogate_error_bounds([0.9, 0.1], 100.0)
    >>> bool((low < surrogate_error([0.9, 0.1], 100.0)).all() and (surrogate_error([0.9, 0.1], 100.0) < high).all())
    True
    """
    pi = check_prior(prior, "surrogate_error_bounds", "prior")
    total = check_number(c_hat, "surrogate_error_bounds", "c_hat", low=0, open_low=True)
    each = 1 / (total * pi)
    return each / 2 - 1 / total, each - 1 / (2 * total)


def _with_alpha(prior: Any, alpha: Any, caller: str) -> tuple[Vector, Vector]:
    pi = check_prior(prior, caller, "prior")
    a = as_array(alpha, caller, "alpha").astype(np.float64)
    if a.shape != pi.shape or not np.isfinite(a).all() or (a <= 0).any():
        fail(caller, "alpha", f"be ({len(pi)},) finite positive numbers", f"shape {a.shape}")
    return pi, a


# -- Cramér–Rao bounds ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DiagonalMinusRankOne:
    """The symmetric matrix diag(a) − a aᵀ/Σa (K, K), stored as the vector a.

    If the information about the first K − 1 shares is diag(1/a) + 11ᵀ/a_K, this is the covariance of all K shares
    (Sherman and Morrison). It does not depend on which class is the last.

    Parameters
    ----------
    a : (K,)
        Diagonal before the rank-one part is subtracted.

    Examples
    --------
    >>> DiagonalMinusRankOne(np.array([0.5, 0.3, 0.2])).diagonal()
    array([0.25, 0.21, 0.16])
    """

    a: Vector

    def diagonal(self) -> Vector:
        """Return the variances (K,), in O(K)."""
        return np.asarray(self.a * (1 - self.a / self.a.sum()))

    def __matmul__(self, x: Any) -> Matrix:
        x = np.asarray(x, dtype=np.float64)
        scaled = (self.a * x.T).T
        return np.asarray(scaled - np.multiply.outer(self.a / self.a.sum(), self.a @ x))

    def to_array(self) -> Matrix:
        """Return the matrix itself (K, K)."""
        return np.diag(self.a) - np.outer(self.a, self.a / self.a.sum())


def cramer_rao(prior: Any, counts: Any, *, alpha: Any = 1.0) -> DiagonalMinusRankOne:
    """Return the Cramér–Rao bound of hu2025 on the covariance of a batch estimate, as printed (eq. 11–14).

    The bound counts each sample as if its label were known, so real errors are larger.

    Parameters
    ----------
    prior : (K,)
        The estimate π.
    counts : (K,)
        Sums over the N samples of the corrected probabilities (eq. 8).
    alpha : float or (K,)
        The Dirichlet parameters.

    Examples
    --------
    >>> cramer_rao([0.5, 0.3, 0.2], [50, 30, 20]).diagonal().round(4)
    array([0.0025, 0.0021, 0.0016])
    """
    # eq. 13, m_i = α_i − 1 + Σ_n f_i. Differs from hu2025, appendix B: its last line has E f_K in the last class's term
    # where the sum over rows needs N·E f_K; eq. 13 and 14 in the text are right and are what is used here
    return _bound(prior, counts, alpha, "cramer_rao", "counts")


def cramer_rao_online(
    prior: Any, mean_posterior: Any, *, alpha: Any = 1.0, gamma: float = 1.0, label: int | None = None
) -> DiagonalMinusRankOne:
    """Return the Cramér–Rao bound of hu2025 on the covariance of its online estimate, as printed (eq. 34–35).

    Parameters
    ----------
    prior : (K,)
        The estimate π.
    mean_posterior : (K,)
        Mean corrected probability of the samples so far: τ + 1 samples in eq. 34, τ in appendix D, which omits the last
        one.
    alpha : float or (K,)
        The Dirichlet parameters.
    gamma : float
        γ, the weight of the posterior against the label.
    label : int, optional
        The class y^τ; by default its expectation under `prior` is used.

    Examples
    --------
    >>> cramer_rao_online([0.5, 0.3, 0.2], [0.5, 0.3, 0.2], alpha=[51, 31, 21]).diagonal().round(4)
    array([0.0025, 0.0021, 0.0016])
    """
    shares = check_prior(prior, "cramer_rao_online", "prior")
    weight = check_number(gamma, "cramer_rao_online", "gamma", low=0, high=1)
    # Differs from hu2025: y^τ is a label nobody saw; without one its expectation takes the place of δ
    delta = shares
    if label is not None:
        (y,) = check_labels([label], "cramer_rao_online", "label", 1, len(shares))
        delta = np.eye(len(shares))[y]
    mean = check_prior(mean_posterior, "cramer_rao_online", "mean_posterior", allow_zero=True)
    observed = (1 - weight) * delta + weight * mean
    return _bound(shares, observed, alpha, "cramer_rao_online", "mean_posterior")  # eq. 34


def _bound(prior: Any, counts: Any, alpha: Any, caller: str, name: str) -> DiagonalMinusRankOne:
    shares = check_prior(prior, caller, "prior")
    mass = np.full(shares.shape, -1.0)
    for what, value in ((name, counts), ("alpha", alpha)):
        x = as_array(value, caller, what).astype(np.float64)
        if x.shape not in ((), shares.shape) or not np.isfinite(x).all():
            fail(caller, what, f"be a finite number or ({len(shares)},) finite numbers", f"shape {x.shape}")
        mass += x
    if not (mass > 0).all():
        fail(caller, name, "leave every class a positive α − 1 + count, or there is no bound", float(mass.min()),
             place=f"class {int(mass.argmin())}", count=int((mass <= 0).sum()))  # fmt: skip
    return DiagonalMinusRankOne(shares**2 / mass)  # eq. 14, 35


# -- one sample's motion ----------------------------------------------------------------------------------------------


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
    """Return π (K,), and π′ − π (K,); without a label the posterior replaces its vector (K,)."""
    pi = check_prior(prior, caller, "prior", allow_zero=True)
    weight = check_number(gamma, caller, "gamma", low=0, high=1)
    r, d = (check_prior(posterior if x is None else x, caller, name, allow_zero=True, n_classes=len(pi), like="`prior`")
            for x, name in ((posterior, "posterior"), (label, "label")))  # fmt: skip
    bottom = _denominator(c_hat, len(pi), variant, caller)
    s = (1 - weight) * d + weight * r  # eq. 24
    # eq. 37, where π(γB − γM + γ) + (1−γ)δ is S with M = 1
    return pi, (s - pi if variant == "stable" else s + (len(pi) - 1) * pi - 1) / bottom


def next_prior(
    prior: Any, posterior: Any, *, c_hat: float, gamma: float = 1.0, label: Any = None, variant: str = "paper"
) -> Vector:
    """Return the prior (K,) after one sample: eq. 36, or its mean form if "stable".

    Nothing is clipped: with the printed form a share may become negative. The streams prevent that.

    Parameters
    ----------
    prior : (K,)
        The estimate π before the sample.
    posterior : (K,)
        The sample's corrected probabilities.
    c_hat : float
        ĉ, the sum of the Dirichlet parameters.
    gamma : float
        γ, the weight of the posterior against the label.
    label : (K,), optional
        The label as a vector δ; by default the posterior is used.
    variant : str
        "paper" as printed, or "stable".

    Examples
    --------
    >>> next_prior([0.6, 0.3, 0.1], [0.6, 0.3, 0.1], c_hat=100)  # π itself, yet the printed form moves
    array([0.60816327, 0.29897959, 0.09285714])
    >>> next_prior([0.6, 0.3, 0.1], [0.6, 0.3, 0.1], c_hat=100, variant="stable")
    array([0.6, 0.3, 0.1])
    """
    pi, moved = _motion(prior, posterior, c_hat, gamma, label, variant, "next_prior")
    return pi + moved


def increment(
    prior: Any, posterior: Any, *, c_hat: float, gamma: float = 1.0, label: Any = None, variant: str = "paper"
) -> Vector:
    """Return |π′ − π| (K,) for one sample: eq. 37.

    Parameters
    ----------
    prior, posterior, c_hat, gamma, label, variant
        As in `next_prior`.

    Examples
    --------
    >>> increment([0.5, 0.5], [1.0, 0.0], c_hat=100.0, variant="stable").round(4)
    array([0.005, 0.005])
    """
    return np.abs(_motion(prior, posterior, c_hat, gamma, label, variant, "increment")[1])


def step_size(c_hat: float, n_classes: int, *, variant: str = "paper") -> float:
    """Return the step size of one sample, O(1/ĉ): eq. 38.

    Parameters
    ----------
    c_hat : float
        ĉ, the sum of the Dirichlet parameters, positive.
    n_classes : int
        K, at least 2.
    variant : str
        "paper" as printed, or "stable".

    Examples
    --------
    >>> step_size(99, 10, variant="stable")
    0.01
    """
    k = check_int(n_classes, "step_size", "n_classes", low=2)
    return 1.0 / _denominator(c_hat, k, variant, "step_size")


def runaway_rate(c: float, n_classes: int) -> float:
    """Return the relative growth, per uninformative sample, of a small deviation from the uniform prior.

    This holds for the printed recursion with ĉ = c / max π ≈ cK; it is about 1/c. The posterior mean does not move.

    Parameters
    ----------
    c : float
        The paper's constant, positive.
    n_classes : int
        K, at least 2.

    Examples
    --------
    >>> round(runaway_rate(1000, 100), 4)
    0.001
    """
    k = check_int(n_classes, "runaway_rate", "n_classes", low=2)
    c_hat = check_number(c, "runaway_rate", "c", low=0, open_low=True) * k
    return k / _denominator(c_hat, k, "paper", "runaway_rate")
