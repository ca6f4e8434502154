"""How much of its correction a stream applies: it tests itself for label shift, and labels judge it.

After 50, 100, 200 and 400 samples, and then after every 400, the moments of all samples so far, or of the last 400, are
compared with those of held-out samples (`model.label_shift`). The least favourable test counts. Between tests a stream
only adds up moments, so any cut into blocks gives the same state.

With labels, four corrections compete: none, label shift, and class biases that two memories of labels show. Each has a
weight, which the labels' likelihood under it multiplies; a part of all weight returns to the start with every label, so
that a correction that was wrong can be right later [herbster1998]. Log class weights are averaged by these weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reprior._check import warn
from reprior._kernels import loops, reference
from reprior._types import Acts, Labels, Matrix, MomentReference, Vector
from reprior.model.acting import MIN_SHARE as MIN_LABEL_SHIFT
from reprior.model.acting import Evidence, describe
from reprior.model.label_shift import acting_share, amplification, log_evidence
from reprior.model.settings import Settings

if TYPE_CHECKING:
    from reprior.online.ebls import OnlineEbls
    from reprior.online.stream import Stream

BATCH = Settings()
FIRST_TESTS, PERIOD = (50, 100, 200), 400  # samples after which a stream tests itself; the second repeats
DIRECTIONS = 16  # columns of the kernels' directions; those behind the reference's own are zero
MIN_SHARE = 1e-12  # of a class, for logarithms
MIN_PROBABILITY = 1e-6  # of a label, so that no label rules a correction out for good
STOP, RETURN = 0.5, 0.75  # shares of the correction at which a stream counts as not acting, and as acting again
NOT, AGAIN = "not label shift", "label shift again"  # kinds of events
N_CORRECTIONS = 4  # none, label shift, biases of two memories

Parts = dict[str, Vector]


def next_test(n: int) -> int:
    """Return the number of samples, above `n`, after which the next test comes."""
    return next((m for m in FIRST_TESTS if n < m), (n // PERIOD + 1) * PERIOD)


def n_compared(n: int) -> int:
    """Return how many samples the test after `n` samples compares: all, or those since the last multiple of PERIOD."""
    return n - (n - 1) // PERIOD * PERIOD


def is_test(n: float) -> bool:
    """Return whether a test comes after `n` samples."""
    return n % PERIOD == 0.0 or n in FIRST_TESTS


def padded_directions(reference_of: MomentReference | None) -> Matrix:
    """Return the directions (3K + 1, DIRECTIONS) for the kernel; (0, DIRECTIONS) if nothing can be compared."""
    if reference_of is None:
        return np.zeros((0, DIRECTIONS))
    directions = reference_of.directions
    out = np.zeros((len(directions), DIRECTIONS))
    out[:, : directions.shape[1]] = directions
    return out


class NotLabelShift(UserWarning):
    """Warns that a stream applies less than half of its correction from now on."""


REPORTED: ContextVar[bool] = ContextVar("reported", default=False)  # whether the caller reports it in another way


@contextmanager
def without_warning() -> Iterator[None]:
    """Raise no `NotLabelShift` inside: the command line, the service and Spark report the event themselves."""
    token = REPORTED.set(True)
    try:
        yield
    finally:
        REPORTED.reset(token)


class ActsEvent(NamedTuple):
    """A stream has stopped to correct (kind `NOT`), or corrects again (kind `AGAIN`), at its `n`-th sample."""

    kind: str
    n: int
    share: float
    reason: str


def acts_event(stream: Stream, before: int, acting: bool) -> ActsEvent | None:
    """Return the event, if there is one, of a stream that had `before` samples and was `acting` at the last look.

    A look comes with each test. Labels that are undecided between both would make many events, so the share must be
    more than one half to return.
    """
    if stream.n < next_test(before):
        return None
    acts = stream.acts
    now = acts.share >= (STOP if acting else RETURN)
    return None if now == acting else ActsEvent(AGAIN if now else NOT, stream.n, acts.share, acts.reason)


def run_test(method: OnlineEbls, state: Vector) -> bool:
    """Compare the moments of the latest samples with those of held-out samples, and let the evidence count. Return
    whether less than half of the correction is applied from now on, and more was before."""
    part, about = method.parts(state), method.moments
    assert about is not None
    before = share_of_tests(method, part)
    n, d = n_compared(int(state[0])), about.directions.shape[1]
    mean = part["moment_sums"][:d] / n
    variance = np.maximum(part["moment_squares"][:d] / n - mean**2, 0.0)
    prior, base = method.prior(state), method.without_shift
    changed = None if method.base is None else base
    evidence = log_evidence(about, mean, variance, n, np.maximum(prior, 1e-12), BATCH, changed)
    part["log_evidence"][...] = min(float(part["log_evidence"]), evidence)
    amplified = amplification(prior - base, about.information)
    part["amplification"][...] = max(float(part["amplification"]), amplified)
    if state[0] % PERIOD == 0:
        part["moment_sums"][:] = 0.0
        part["moment_squares"][:] = 0.0
    return before >= 0.5 > share_of_tests(method, part)


def warn_once(code: int, fallen: bool) -> int:
    """Return a kernel's answer, after a warning if a test has made the correction fall below one half."""
    if fallen and not REPORTED.get():
        warn("Less than half of the correction is applied from now on: the samples differ from held-out samples by more"
             " than their class prior. See `stream.acts`.", NotLabelShift)  # fmt: skip
    return code


def learn_and_test(method: OnlineEbls, kernel: Callable[..., int], table: Any) -> Callable[..., int]:
    """Return the kernel as a function of (slots, rows, axes of rows) that also tests the states of `table` when their
    tests are due. Rows are learned all or not at all."""

    state: Any = table.data if table.ndim == 1 else None  # a memoryview: an index costs less than that of an array

    def learn(slots: Any, rows: Any, ndim: int) -> int:
        if slots is not None:
            return of_many(slots, rows, ndim)
        if ndim == 2 and hasattr(rows, "shape") and len(rows) >= next_test(int(state[0])) - int(state[0]):
            return of_block(rows)
        code = kernel(None, rows, ndim)
        if code == reference.DONE and not state[0] % FIRST_TESTS[0] and is_test(state[0]):
            return warn_once(code, run_test(method, table))
        return code

    def of_block(rows: Matrix) -> int:
        code, first, fallen = int(loops.first_bad_row(rows)), 0, False
        while code == reference.DONE and first < len(rows):
            last = first + next_test(int(state[0])) - int(state[0])
            code, first = kernel(None, rows[first:last], 2), last
            if code == reference.DONE and is_test(state[0]):
                fallen |= run_test(method, table)
        return warn_once(code, fallen)

    def of_many(slots: Labels, rows: Any, ndim: int) -> int:
        due = tests_due(table, slots) if hasattr(slots, "shape") and len(slots) == len(rows) else []
        if not len(due):
            return kernel(slots, rows, ndim)
        code, first, fallen = int(loops.first_bad_row(rows)), 0, False
        for stop in sorted({*due, len(slots)}):
            if code == reference.DONE:
                code = kernel(slots[first:stop], rows[first:stop], ndim)
            if code == reference.DONE and stop in due:
                fallen |= run_test(method, table[slots[stop - 1]])
            first = stop
        return warn_once(code, fallen)

    return learn


def tests_due(table: Vector, slots: Labels) -> list[int]:
    """Return after how many rows of these slots (n,) a test comes, increasing."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    rank = np.empty(len(slots), np.int64)
    rank[order] = np.arange(len(slots)) - np.repeat(first, np.diff(np.append(first, len(slots))))
    n = table[slots, 0] + rank + 1
    return [int(i) + 1 for i in np.flatnonzero((n % PERIOD == 0) | np.isin(n, FIRST_TESTS))]


def acts_of(method: OnlineEbls, part: Parts) -> Acts:
    """Return how much of the label-shift correction is applied, and why."""
    if method.moments is None:
        acts = describe(None, BATCH)
    else:
        acts = describe(Evidence(float(part["log_evidence"]), float(part["amplification"])), BATCH)
    if not has_labels(part):
        return acts
    share, biases = float(part["corrections"][1]), float(part["corrections"][2:].sum())
    reason = f"Given the labels, label shift has the weight {share:.0%}, and class biases {biases:.0%}."
    return acts._replace(share=share, reason=reason)


def has_labels(part: Parts) -> bool:
    """Return whether the stream has taken in any label: each adds to every curvature."""
    return bool(part["curvature"][0, 0] > 0.0)


def share_of_tests(method: OnlineEbls, part: Parts) -> float:
    """Return the share of the correction that the tests let act."""
    if method.moments is None:
        return 1.0
    return acting_share(float(part["log_evidence"]), float(part["amplification"]), BATCH)


def log_weights(method: OnlineEbls, part: Parts, prior: Vector) -> Vector:
    """Return the log class weights (K,) of the correction, given the estimated `prior` (K,)."""
    if has_labels(part):
        return np.asarray(part["corrections"] @ of_corrections(method, part, prior))
    share = share_of_tests(method, part)
    shifted = np.log(np.maximum(prior, MIN_SHARE) / method.source.prior)
    return np.asarray(method.log_unshifted + share * (shifted - method.log_unshifted))


def of_corrections(method: OnlineEbls, part: Parts, prior: Vector) -> Matrix:
    """Return the log class weights (4, K) of each correction."""
    none, shifted = method.log_unshifted, np.log(np.maximum(prior, MIN_SHARE) / method.source.prior)
    biases = part["product"] / (part["curvature"] + method.settings.bias_spread**-2)
    return np.stack([none, shifted, *(none + biases)])


def judge(method: OnlineEbls, part: Parts, row: Vector, y: int, prior: Vector) -> None:
    """Take in the label `y` of a sample `row` (K,): weigh the corrections by how well they predict it, then let both
    memories of biases take a step of the logistic regression of labels on probabilities (its second derivative is taken
    to be diagonal)."""
    each, settings = of_corrections(method, part, prior), method.settings
    p = row * np.exp(each - each.max(axis=1, keepdims=True))
    p /= np.maximum(p.sum(axis=1, keepdims=True), 1e-300)
    share = max(share_of_tests(method, part), MIN_LABEL_SHIFT)
    start = np.array([(1 - share) / 3, share, (1 - share) / 3, (1 - share) / 3])
    weights = part["corrections"] if has_labels(part) else start
    weights = weights * np.maximum(p[:, y], MIN_PROBABILITY)
    part["corrections"][:] = (1 - settings.label_sharing) * weights / weights.sum() + settings.label_sharing * start
    biases = each[2:] - each[0]
    keep = 0.5 ** (1 / np.array(settings.label_memories))[:, None] if method.drift else 1.0
    bend = p[2:] * (1 - p[2:]) + 1e-12
    gradient = -p[2:]
    gradient[:, y] += 1.0
    part["curvature"][:] = keep * part["curvature"] + bend
    part["product"][:] = keep * part["product"] + bend * biases + gradient
