"""The values that travel between functions: frozen, small, without behaviour of their own."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from reprior.rows.blocks import Blocks

Vector = NDArray[np.float64]
Matrix = NDArray[np.floating[Any]]
Labels = NDArray[np.intp]


class Status(Enum):
    """How an estimate came about; the value is the sentence to show."""

    OPTIMUM = "Maximum likelihood: the duality gap certifies that no prior fits better by more than the tolerance."
    CONVERGED = "Converged: another iteration would not change the estimate by more than the tolerance."
    SOLVED = "Solved: the moment equations have been fitted under their constraints."
    STOPPED = "Stopped after the number of iterations that defines the method; it is not meant to converge."
    UNSEEN_CLASSES = "Solved, but some classes have no held-out row; their weight was left at 1."
    NOT_CONVERGED = "Not converged within the allowed iterations: loosen `tol`, or give more rows a class."

    @property
    def ok(self) -> bool:
        """Whether the estimate is what its method promises."""
        return self is not Status.NOT_CONVERGED


@dataclass(frozen=True, slots=True)
class Source:
    """What is known of the training side; made by `summarize`, or from class counts alone.

    `prior` (K,) is the class prior that the classifier's outputs carry. `confusion` and `hard_confusion` (K, K)
    hold P(prediction = i, y = j) from the held-out rows, soft and by arg max; `counts` (K,) are the held-out
    labels of each class, `heldout` the rows themselves (no copy), `made` says how `prior` was obtained. `misled` (3, K)
    is what intervals of a stream need of the held-out rows once those are gone (see `batch.misfit.misled_of`).
    """

    prior: Vector
    confusion: Matrix | None = None
    counts: Vector | None = None
    classes: tuple[str, ...] | None = None
    hard_confusion: Matrix | None = None
    heldout: tuple[Matrix, Labels] | None = field(default=None, repr=False)
    made: str = "given by the user"
    misled: Matrix | None = field(default=None, repr=False)


class Interval(tuple[Vector, Vector]):
    """A pair (lower, upper) that also says, in `note`, how far it can be trusted."""

    level: float
    note: str

    def __new__(cls, lower: Vector, upper: Vector, *, level: float, note: str) -> Interval:
        pair = super().__new__(cls, (lower, upper))
        pair.level, pair.note = level, note
        return pair

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Interval, level=self.level, note=self.note), tuple(self)

    @property
    def lower(self) -> Vector:
        return self[0]

    @property
    def upper(self) -> Vector:
        return self[1]


@dataclass(frozen=True, slots=True)
class PriorEstimate:
    """An estimated target prior, and what is needed to use it.

    `prior` (K,) and `weights` = prior / source prior (K,); `n` is the number of target rows, `log_likelihood` that
    of the rows under `prior`, relative to the source prior (0 = the source prior explains them equally well).
    `alpha` (K,) are the Dirichlet parameters that a method ended with, if it has any; `posterior` is what it believes
    about the shares, if it says, and intervals are then read from it.
    """

    prior: Vector
    weights: Vector
    status: Status
    n_iter: int
    n: float
    log_likelihood: float
    source: Source = field(repr=False)
    target: Blocks | None = field(default=None, repr=False)
    alpha: Vector | None = field(default=None, repr=False)
    posterior: Any = field(default=None, repr=False)

    def correct(self, proba: Any) -> Matrix:
        """Return `proba` (n, K) as the classifier would have put it under the estimated prior (eq. 8)."""
        import reprior  # the front door: a value knows no room by name

        return reprior.correct(proba, self.weights)

    def interval(self, level: float = 0.95) -> Interval:
        """Return lower and upper ends (K,), (K,) of an interval for each class's share of the target."""
        import reprior

        return reprior.interval(self, level)
