"""The values that travel between functions: frozen and small. What they can do is done by the rooms above them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from reprior.rows.blocks import Blocks
    from reprior.rows.calibrated import Calibrator

T = TypeVar("T")
Vector = NDArray[np.float64]
Matrix = NDArray[np.floating[Any]]
Labels = NDArray[np.intp]


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, arrays number by number; a frozen value is equal if all its fields are."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return np.shape(a) == np.shape(b) and bool(np.array_equal(a, b))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


def comparable(kind: type[T]) -> type[T]:
    """Give a frozen dataclass that holds arrays an equality that answers instead of raising."""

    def equal(self: Any, other: object) -> bool:
        if type(self) is not type(other):
            return False
        compared = (f.name for f in fields(kind) if f.compare)  # type: ignore[arg-type]
        return all(same(getattr(self, name), getattr(other, name)) for name in compared)

    kind.__eq__ = equal  # type: ignore[method-assign]
    kind.__hash__ = None  # type: ignore[assignment]
    return kind


class Status(Enum):
    """How an estimate came about; the value is the sentence to show.

    Parameters
    ----------
    value : str
        The sentence. It is empty where there is nothing to say.

    Examples
    --------
    >>> Status.CONVERGED.ok, Status.NOT_CONVERGED.ok
    (True, False)
    """

    OPTIMUM = "Maximum likelihood: the duality gap certifies that no prior fits better by more than the tolerance."
    CONVERGED = "Converged: another iteration would not change the estimate by more than the tolerance."
    SOLVED = "Solved: the moment equations have been fitted under their constraints."
    STOPPED = ""  # the normal end of a method that is defined by its number of iterations: nothing to say
    UNSEEN_CLASSES = "Solved, but some classes have no held-out row; their weight was left at 1."
    NOT_CONVERGED = "Not converged within the allowed iterations. Raise `n_iter`, loosen `tol`, or give more rows."

    @property
    def ok(self) -> bool:
        """Whether the estimate is what its method promises."""
        return self is not Status.NOT_CONVERGED

    @property
    def normal(self) -> bool:
        """Whether this is how the method ends if all is well, of which nothing need be said."""
        return self not in (Status.NOT_CONVERGED, Status.UNSEEN_CLASSES)


@comparable
@dataclass(frozen=True, slots=True, eq=False)
class ClassifierError:
    """What held-out samples tell about a classifier, class by class, once the samples themselves are gone.

    Parameters
    ----------
    heldout : (K,)
        Held-out samples of each class.
    information : (K,)
        What a predicted probability tells about the share of the class, relative to a label: 1 for a classifier that
        is always right and sure, 0 if it tells nothing. It is measured at equal shares, all of them unknown.

    Examples
    --------
    >>> ClassifierError(np.array([30.0, 20.0]), np.array([0.8, 0.8])).heldout.sum()
    np.float64(50.0)
    """

    heldout: Vector
    information: Vector


@comparable
@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """What is known of the training side; made by `summarize`, or from class counts alone.

    Parameters
    ----------
    prior : (K,)
        The class prior that the classifier's outputs carry.
    confusion, hard_confusion : (K, K), optional
        P(prediction = i, y = j) from the held-out rows, soft and by arg max.
    counts : (K,), optional
        The held-out labels of each class.
    classes : tuple of str, optional
        The names of the classes, in the order of the columns.
    heldout : (rows (n, K), labels (n,)), optional
        The held-out rows themselves; no copy is made.
    error : ClassifierError, optional
        What a stream needs of the held-out samples once those are gone (see `model.classifier_error.measure_error`).
    made : str
        How `prior` was obtained.

    Examples
    --------
    >>> Source(np.array([0.7, 0.3]), classes=("cat", "dog")).made
    'given by the user'
    """

    prior: Vector
    confusion: Matrix | None = None
    counts: Vector | None = None
    classes: tuple[str, ...] | None = None
    hard_confusion: Matrix | None = None
    heldout: tuple[Matrix, Labels] | None = field(default=None, repr=False)
    made: str = "given by the user"
    error: ClassifierError | None = field(default=None, repr=False)

    @property
    def called(self) -> tuple[str, ...]:
        """What to call the classes: their names, or their column indices."""
        return self.classes or tuple(map(str, range(len(self.prior))))


class Interval(tuple[Vector, Vector]):
    """A pair (lower, upper) that also says, in `note`, how far it can be trusted.

    Parameters
    ----------
    lower, upper : (K,)
        The ends.
    level : float
        How often it is meant to hold the true share.
    note : str
        What to know before you rely on it.

    Examples
    --------
    >>> lower, upper = both = Interval(np.array([0.1]), np.array([0.3]), level=0.95, note="Optimistic.")
    >>> float(both.upper[0]), both.level
    (0.3, 0.95)
    """

    level: float
    note: str

    def __new__(cls, lower: Vector, upper: Vector, *, level: float, note: str) -> Interval:
        pair = super().__new__(cls, (lower, upper))
        pair.level, pair.note = level, note
        return pair

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Interval) and self.level == other.level and same(tuple(self), tuple(other))

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(Interval, level=self.level, note=self.note), tuple(self)

    @property
    def lower(self) -> Vector:
        return self[0]

    @property
    def upper(self) -> Vector:
        return self[1]


class Spread(Protocol):
    """How sure an estimate is, kept without the rows it came from."""

    def at(self, level: float, of: str = "shares") -> Interval:
        """Return the interval of each class's share, or of its prior in the population, at a level in (0, 1)."""
        ...


class Checks(NamedTuple):
    """P-values of "nothing has shifted" and of "only the class shares have" (None without held-out rows), how labels
    of target rows contradict the outputs, in a sentence, if they do, how much further than the mean output the shares
    have moved, by total variation (1 if they have hardly), whether held-out rows look like rows of training, why labels
    of held-out rows may not be theirs, in a sentence, if there is a reason, and that labels of target rows show the
    correction to help though more than the class shares has changed, in a sentence, if they do."""

    shift_p: float
    label_shift_p: float | None
    contradiction: str = ""
    stretch: float = 1.0
    trained: bool = False
    doubt: str = ""
    borne_out: str = ""


@comparable
@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PriorEstimate:
    """Three estimates for target samples, and what is needed to use them.

    `shares` answers "what share of these samples is of each class?", `prior` "what is the class prior of the population
    they come from?", and `weights` "by what are predictions corrected?".

    Parameters
    ----------
    prior : (K,)
        The class prior of the population.
    weights : (K,)
        Class weights, target prior over source prior: `correct` multiplies by them.
    shares : (K,)
        The class proportions among these samples: the mean corrected probability, with known labels counted.
    status : Status
        How the estimate came about; `status.value` is a sentence.
    n_iter : int
        Iterations, or passes where passes are what is counted.
    n : float
        Target rows.
    log_likelihood : float
        That of the rows under `prior`, against the source prior (0: the source prior explains them as well).
    source : Source
        What the estimate started from.
    target : Blocks, optional
        The rows as the method saw them; `detach` lets go of them.
    calibrator : Calibrator, optional
        What a pipeline does to raw outputs before it uses them. `correct` does the same.
    spread : Spread, optional
        How sure the estimate is, where the method itself says so, or `detach` has kept it.
    checks : Checks, optional
        What a pipeline's tests of "no shift" and of "label shift" found.
    alpha : (K,), optional
        The Dirichlet parameters that the method ended with, if it has any.
    posterior : optional
        What the method believes about the shares, if it says; intervals are then read from it.
    on_reject : str
        What `correct` does if label shift is clearly rejected: "refuse", "warn" or "ignore".
    scores : optional
        What `detach` has kept of the held-out rows for prediction sets.
    n_labels : int
        How many of the target rows came with a label.

    Examples
    --------
    >>> from reprior import ebls
    >>> est = ebls([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.3, 0.7]])
    >>> est.shares.round(2), est.weights.round(2), est.correct([[0.5, 0.5]]).shape
    (array([0.74, 0.26]), array([1.04, 0.95]), (1, 2))
    """

    prior: Vector
    weights: Vector
    shares: Vector
    status: Status
    n_iter: int
    n: float
    log_likelihood: float
    source: Source
    target: Blocks | None = field(default=None, compare=False)
    calibrator: Calibrator | None = None
    spread: Spread | None = field(default=None, compare=False)
    checks: Checks | None = None
    on_reject: str = "ignore"
    alpha: Vector | None = None
    posterior: Any = field(default=None, compare=False)
    scores: Any = field(default=None, compare=False)
    n_labels: int = 0

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, if they are known."""
        return self.source.classes

    def correct(self, proba: Any, *, anyway: bool = False) -> Matrix:
        """Return raw outputs as the classifier would have put them under the estimated prior (eq. 8).

        Parameters
        ----------
        proba : (n, K) array, DataFrame, or top-k pair
            Outputs as the classifier gives them. What the pipeline does to them is done here too. The columns of a
            DataFrame are matched to the classes by name. Of top-k rows, which no calibrator takes, come the listed
            values.
        anyway : bool
            Correct even if the estimate's checks clearly reject label shift.
        """
        return door("correct_estimated")(self, proba, anyway=anyway)  # type: ignore[no-any-return]

    def interval(self, level: float = 0.95, of: str = "shares") -> Interval:
        """Return lower and upper ends (K,), (K,) of an interval for each class.

        Parameters
        ----------
        level : float
            Coverage probability of each interval, between 0 and 1.
        of : str
            "shares", the class proportions among these samples, or "prior", that of the population they come from.
        """
        return door("interval")(self, level, of)  # type: ignore[no-any-return]

    def prediction_sets(self, proba: Any, level: float = 0.9, *, by_class: bool = False, anyway: bool = False) -> Any:
        """Return which classes are in the set of each row, as (n, K) of bool: sets that hold the true class as often as
        promised, under the estimated class mix.

        Parameters
        ----------
        proba : (n, K)
            Outputs as the classifier gives them, as for `correct`. A DataFrame comes back as one.
        level : float
            How often a set is to hold the true class.
        by_class : bool
            Whether to promise it of each class by itself, whatever the class mix; sets are larger. A class with fewer
            than level/(1 − level) held-out rows is then in every set.
        anyway : bool
            Return sets even if the estimate's checks clearly reject label shift.
        """
        return door("prediction_sets")(self, proba, level, by_class=by_class, anyway=anyway)

    def detach(self) -> PriorEstimate:
        """Return the estimate without its rows: small, and still with intervals and prediction sets."""
        kept = self.scores if self.source.heldout is None else door("scores")(self)
        source = replace(self.source, heldout=None)
        return replace(self, target=None, source=source, spread=door("spread")(self), scores=kept)

    def to_frame(self, level: float | None = 0.95) -> Any:
        """Return a pandas DataFrame: one row a class, with source and target shares and interval.

        Parameters
        ----------
        level : float or None
            Of the intervals; None leaves them out.
        """
        return door("estimate_frame")(self, level)

    def to_dict(self, level: float | None = 0.95) -> dict[str, Any]:
        """Return the estimate as plain lists, numbers and text, which JSON can hold.

        Parameters
        ----------
        level : float or None
            Of the intervals; None leaves them out.
        """
        return door("estimate_dict")(self, level)  # type: ignore[no-any-return]

    def plot(self, *, top: int = 20, ax: Any = None) -> Any:
        """Draw the largest movers with their intervals by matplotlib; return the axes.

        Parameters
        ----------
        top : int
            How many classes.
        ax : matplotlib axes, optional
            Where to draw.
        """
        return door("estimate_plot")(self, top=top, ax=ax)

    def __repr__(self) -> str:
        return str(door("estimate_text")(self))

    def _repr_html_(self) -> str:
        """Return what notebooks show."""
        return str(door("estimate_html")(self))


def door(name: str) -> Callable[..., Any]:
    """Return what the package's front door lists under a name: a value knows no room above it."""
    import reprior

    return getattr(reprior, name)  # type: ignore[no-any-return]
