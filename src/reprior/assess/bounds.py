"""The Cramér–Rao bounds of hu2025, as printed.

They use the information of *labelled* rows and so promise too much: a classifier's outputs say less than labels would.
`assess.intervals` uses what the rows really said.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reprior._check import as_array, check_labels, check_number, check_prior, fail
from reprior._types import Matrix, Vector


@dataclass(frozen=True, slots=True)
class DiagonalMinusRankOne:
    """The symmetric matrix diag(a) − a aᵀ/Σa (K, K), kept as the vector `a` (K,): nothing K×K is stored.

    This is the covariance of all K shares when the first K − 1 have the inverse of diag(1/a) + 11ᵀ/a_K (Sherman and
    Morrison); it does not depend on which class is called the last.
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

    `prior` (K,) is the estimate, `counts` (K,) the sums of posteriors over the N rows, `alpha` the Dirichlet
    parameters. The bound counts each row as if its label were known, so real errors are larger.

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

    `mean_posterior` (K,) is the mean posterior of the rows so far, `label` the class y^τ; without one, its
    expectation under `prior` (K,) stands in.
    """
    shares = check_prior(prior, "cramer_rao_online", "prior")
    weight = check_number(gamma, "cramer_rao_online", "gamma", low=0, high=1)
    # Differs from hu2025: y^τ is a label nobody saw; without one its expectation takes the place of δ
    delta = shares
    if label is not None:
        (y,) = check_labels([label], "cramer_rao_online", "label", 1, len(shares))
        delta = np.eye(len(shares))[y]
    seen = (1 - weight) * delta + weight * check_prior(
        mean_posterior, "cramer_rao_online", "mean_posterior", allow_zero=True
    )
    return _bound(shares, seen, alpha, "cramer_rao_online", "mean_posterior")  # eq. 34


def _bound(prior: Any, counts: Any, alpha: Any, caller: str, name: str) -> DiagonalMinusRankOne:
    shares = check_prior(prior, caller, "prior")
    seen, more = (as_array(x, caller, n).astype(np.float64) for x, n in ((counts, name), (alpha, "alpha")))
    for x, n in ((seen, name), (more, "alpha")):
        if x.shape not in ((), shares.shape) or not np.isfinite(x).all():
            fail(caller, n, f"be a finite number or ({len(shares)},) finite numbers", f"shape {x.shape}")
    mass = np.broadcast_to(more - 1 + seen, shares.shape)
    if not (mass > 0).all():
        fail(caller, name, "leave every class a positive α − 1 + count, or there is no bound", float(mass.min()),
             place=f"class {int(mass.argmin())}", count=int((mass <= 0).sum()))  # fmt: skip
    return DiagonalMinusRankOne(shares**2 / mass)  # eq. 14, 35
