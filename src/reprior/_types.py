"""The values that travel between functions: frozen and small."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import Enum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.floating[Any]]
Labels = NDArray[np.intp]


def same(a: Any, b: Any) -> bool:
    """Return whether two values are equal, arrays number by number; a frozen value is equal if all its fields are."""
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return bool(np.array_equal(a, b))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key]) for key in a)
    return bool(a == b)


class Comparable:
    """A frozen dataclass that may hold arrays, with an equality that answers instead of raising."""

    __slots__ = ()
    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        compared = [f.name for f in fields(self) if f.compare]  # type: ignore[arg-type]
        return type(self) is type(other) and all(same(getattr(self, x), getattr(other, x)) for x in compared)


class Status(Enum):
    """Whether a method converged; the value is a sentence.

    Parameters
    ----------
    value : str
        The sentence; empty if there is nothing to report.

    Examples
    --------
    >>> Status.CONVERGED.ok, Status.NOT_CONVERGED.ok
    (True, False)
    """

    OPTIMUM = "Maximum likelihood: the duality gap certifies that no prior fits better by more than the tolerance."
    CONVERGED = "Converged: another iteration would not change the estimate by more than the tolerance."
    SOLVED = "Solved: the moment equations have been fitted under their constraints."
    STOPPED = ""  # the normal end of a method that is defined by its number of iterations: nothing to say
    UNSEEN_CLASSES = "Solved, but some classes have no held-out sample; their weight is 1."
    NOT_CONVERGED = "Not converged within the allowed iterations. Raise `n_iter`, loosen `tol`, or pass more samples."

    @property
    def ok(self) -> bool:
        """Whether the method converged."""
        return self is not Status.NOT_CONVERGED

    @property
    def normal(self) -> bool:
        """Whether the method ended as expected, so that nothing needs to be reported."""
        return self not in (Status.NOT_CONVERGED, Status.UNSEEN_CLASSES)


@dataclass(frozen=True, slots=True, eq=False)
class MomentReference(Comparable):
    """What held-out samples show about moments of predicted probabilities (see `model.label_shift`)."""

    directions: Matrix  # (3K + 1, D), the combinations of moments that are compared
    mean: Vector  # (D,), of these over all samples
    class_means: Matrix  # (K, D)
    within: Matrix  # (D, D), covariance within classes
    deviations: Matrix  # (K, D), standard deviations within classes
    source_prior: Vector  # (K,), class prior of the held-out samples
    information: Vector  # (K,), as in `ClassifierError`
    n_heldout: float

    def leading(self, d: int) -> MomentReference:
        """Return what is known about the first `d` combinations, which vary most."""
        return replace(
            self, directions=self.directions[:, :d], mean=self.mean[:d], class_means=self.class_means[:, :d],
            within=self.within[:d, :d], deviations=self.deviations[:, :d],
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class ClassifierError(Comparable):
    """What held-out samples show about a classifier, class by class, once the samples themselves are gone.

    `information` (K,) is the variance of an estimated share from labels, over its variance from predicted probabilities
    of the same number of samples, at equal shares: 1 for a classifier that is always right and sure, near 0 if it
    guesses.
    """

    heldout: Vector  # (K,), number of samples
    information: Vector
    moments: MomentReference | None = None  # what the test of label shift compares target samples with


@dataclass(frozen=True, slots=True, eq=False)
class Source(Comparable):
    """The training side: source prior, class names and held-out samples; made by `summarize` or `pipeline`.

    Parameters
    ----------
    prior : (K,)
        The class prior that the predicted probabilities imply (source prior).
    confusion, hard_confusion : (K, K), optional
        P(prediction = i, y = j) of the held-out samples: from mean probabilities, and from predicted classes.
    counts : (K,), optional
        Number of held-out samples per class.
    classes : tuple of str, optional
        Class names in the order of the columns.
    heldout : (rows (n, K), labels (n,)), optional
        Held-out probabilities and column indices of the labels; not copied.
    error : ClassifierError, optional
        Summary of the held-out samples for tests and streams (see `model.classifier_error.measure_error`).
    made : str
        How `prior` was obtained.
    calibrated : bool
        Whether the held-out probabilities are calibrated, as in the source of a pipeline.

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
    error: ClassifierError | None = field(default=None, repr=False, compare=False)  # follows from `heldout`
    calibrated: bool = False

    @property
    def called(self) -> tuple[str, ...]:
        """Class names, or column indices if there are none."""
        return self.classes or tuple(map(str, range(len(self.prior))))

    @property
    def n_heldout(self) -> int:
        """Number of held-out samples."""
        return 0 if self.heldout is None else len(self.heldout[1])


class Interval(NamedTuple("Ends", [("lower", Vector), ("upper", Vector)])):
    """Lower and upper ends of an interval per class, as a pair, with a note on what it includes.

    Parameters
    ----------
    lower, upper : (K,)
        Lower and upper ends.
    level : float
        Coverage probability.
    note : str
        What the interval includes and assumes.

    Examples
    --------
    >>> lower, upper = both = Interval(np.array([0.1]), np.array([0.3]), level=0.95, note="Optimistic.")
    >>> float(both.upper[0]), both.level
    (0.3, 0.95)
    """

    level: float
    note: str

    def __new__(cls, lower: Vector, upper: Vector, *, level: float = 0.95, note: str = "") -> Interval:
        pair = super().__new__(cls, lower, upper)
        pair.level, pair.note = level, note
        return pair

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Interval) and self.level == other.level and same(tuple(self), tuple(other))

    __hash__ = None  # type: ignore[assignment]


class Acts(NamedTuple):
    """How much of the correction is applied, and why.

    `share` is between 0 (predictions are only calibrated) and 1 (they are corrected in full), and `reason` a sentence.
    `log_evidence` is the log Bayes factor of label shift against any other change, given all tests so far; None without
    a test. `amplification` is the change of the estimated shares divided by the change of the mean prediction.
    """

    share: float
    reason: str
    log_evidence: float | None = None
    amplification: float = 1.0


class StreamChecks(NamedTuple):
    """Results of a stream's tests so far; None if its method has no test.

    `no_shift` is the probability that the class prior has not shifted. `log_evidence` is the log Bayes factor of label
    shift against any other change, given all tests so far. `label_shift` is the probability of label shift,
    given this evidence and labels. `amplification` is the change of the estimated prior divided by the change of the
    mean prediction, the largest of all tests.
    """

    no_shift: float | None = None
    log_evidence: float | None = None
    label_shift: float | None = None
    amplification: float = 1.0


class Checks(NamedTuple):
    """Results of the tests of an estimate.

    `shift_p` is the p-value of "nothing has shifted". `log_evidence` is the log Bayes factor of label shift against any
    other change; None without held-out samples. `label_shift` is the resulting probability of label shift.
    `amplification` is the change of the estimated shares divided by the change of the mean prediction. The other fields
    are flags, or sentences that are empty if there is nothing to report.

    `labels_conflict`: how labels of target samples contradict the predictions. `label_mismatch`: why the held-out
    labels may belong to other samples. `heldout_in_training`: whether held-out samples look like training samples.
    `causes`: what else was found that makes new samples differ from held-out ones. `labels_needed`: about how many more
    labels of random samples settle whether corrected or calibrated probabilities are right (see `query`). `pooled`:
    whether the estimate is that of one group and the tests are those of all groups together.
    """

    shift_p: float
    log_evidence: float | None
    label_shift: float | None
    amplification: float = 1.0
    labels_conflict: str = ""
    heldout_in_training: bool = False
    label_mismatch: str = ""
    causes: str = ""
    labels_needed: int | None = None
    pooled: bool = False
