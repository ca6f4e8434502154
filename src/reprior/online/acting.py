"""How much of its correction a stream applies: it tests itself for label shift, and labels change its weight.

After 50 samples, after every 100 up to 2,000, and then after every 400, a test compares the moments of the last 100
samples with those of held-out samples (`model.label_shift`). The window is short because changes may be. The evidence
of all tests counts (`model.acting.Evidence`). Between tests a stream only adds up moments, so any cut into blocks gives
the same state.

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
from reprior.model.acting import MIN_LABEL_SHIFT, Evidence, describe
from reprior.model.label_shift import acting_share, amplification, log_evidence
from reprior.model.settings import Settings

if TYPE_CHECKING:
    from reprior.online.ebls import OnlineEbls
    from reprior.online.stream import Stream

BATCH = Settings()
FIRST_TEST, WINDOW = 50, 100  # samples after which the first test comes; samples that a later test compares
FREQUENT, PERIOD = 2000, 400  # samples up to which every window is tested; later one per period is, to save time
DIRECTIONS = 16  # columns of the kernels' directions; those behind the reference's own are zero
MIN_PRIOR = 1e-12  # smallest class prior, so that its logarithm is defined
MIN_PROBABILITY = 1e-6  # of a label, so that no label rules a correction out for good
STOP_BELOW, RESUME_ABOVE = 0.5, 0.75  # shares of the correction at which a stream has stopped, and has resumed
STOPPED, RESUMED = "not label shift", "label shift again"  # kinds of events
N_CORRECTIONS = 4  # none, label shift, biases of two memories

Parts = dict[str, Vector]


def next_window_end(n: int) -> int:
    """Return the number of samples, above `n`, at which the next window ends. The first test also ends a window."""
    return FIRST_TEST if n < FIRST_TEST else (n // WINDOW + 1) * WINDOW


def is_window_end(n: float) -> bool:
    """Return whether a window ends after `n` samples."""
    return n % WINDOW == 0.0 or n == FIRST_TEST


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
    """A stream has stopped correcting (kind `STOPPED`), or corrects again (kind `RESUMED`), at its `n`-th sample."""

    kind: str
    n: int
    share: float
    reason: str


def acts_event(stream: Stream, before: int, acting: bool) -> ActsEvent | None:
    """Return the event, if there is one, of a stream that had `before` samples and was `acting` before.

    An event comes only with a window end. A stream that has stopped resumes at a higher share than the one below which
    it stops, so that undecided labels do not cause many events.
    """
    if stream.n < next_window_end(before):
        return None
    acts = stream.acts
    now = acts.share >= (STOP_BELOW if acting else RESUME_ABOVE)
    return None if now == acting else ActsEvent(RESUMED if now else STOPPED, stream.n, acts.share, acts.reason)


def end_window(method: OnlineEbls, state: Vector) -> bool:
    """Test the window that ends here, if a test is due, and begin the next one. Return whether less than half of the
    correction is applied from now on, and more was before."""
    n, begin = int(state[0]), method.offsets
    sums = state[begin["moment_sums"] : begin["corrections"]].reshape(2, DIRECTIONS)
    fallen = False
    if n <= FREQUENT or n % PERIOD == 0:
        part, laws, size = method.parts(state), method.explanations, min(n, WINDOW)
        mean, squares = sums[:, : len(laws.reference.mean)] / size
        before, variance = share_of_tests(method, part), np.maximum(squares - mean**2, 0.0)
        prior = np.maximum(method.prior(state), MIN_PRIOR)
        amplified = amplification(prior - laws.base, laws.reference.information)
        tested = Evidence(log_evidence(laws, mean, variance, size, prior), amplified)
        after = evidence_in(part, n_tests=1.0 + n_tests_before(n)) + tested
        part["log_evidence"][...], part["amplification"][...] = after.log_evidence, after.amplification
        fallen = before >= STOP_BELOW > share_of_tests(method, part)
    if n % WINDOW == 0:
        sums[:] = 0.0
    return fallen


def n_tests_before(n: int) -> int:
    """Return the number of tests before the `n`-th sample."""
    return (n > FIRST_TEST) + min(n - 1, FREQUENT) // WINDOW + max(n - 1 - FREQUENT, 0) // PERIOD


def evidence_in(part: Parts, n_tests: float) -> Evidence:
    """Return the evidence of a stream's tests so far, from `n_tests` tests."""
    return Evidence(float(part["log_evidence"]), float(part["amplification"]), n_tests=n_tests)


def warn_if_fallen(code: int, fallen: bool) -> int:
    """Return a kernel's answer, after a warning if a test has made the correction fall below one half."""
    if fallen and not REPORTED.get():
        warn("Less than half of the correction is applied from now on: the samples differ from held-out samples by more"
             " than their class prior. See `stream.acts`.", NotLabelShift)  # fmt: skip
    return code


def learn_and_test(method: OnlineEbls, kernel: Callable[..., int], table: Any) -> Callable[..., int]:
    """Return the kernel as a function of (slots, rows, axes of rows) that also ends the windows of the states of
    `table`. Rows are learned all or not at all."""

    state: Any = table.data if table.ndim == 1 else None  # a memoryview: an index costs less than that of an array

    def learn(slots: Any, rows: Any, ndim: int) -> int:
        if slots is not None:
            return of_many(slots, rows, ndim)
        if ndim == 2 and hasattr(rows, "shape") and len(rows) >= next_window_end(int(state[0])) - int(state[0]):
            return of_block(rows)
        code = kernel(None, rows, ndim)
        if code == reference.DONE and is_window_end(state[0]):
            return warn_if_fallen(code, end_window(method, table))
        return code

    def of_block(rows: Matrix) -> int:
        code, first, fallen = int(loops.first_bad_row(rows)), 0, False
        while code == reference.DONE and first < len(rows):
            last = first + next_window_end(int(state[0])) - int(state[0])
            code, first = kernel(None, rows[first:last], 2), last
            if code == reference.DONE and is_window_end(state[0]):
                fallen |= end_window(method, table)
        return warn_if_fallen(code, fallen)

    def of_many(slots: Labels, rows: Any, ndim: int) -> int:
        due = window_ends(table, slots) if hasattr(slots, "shape") and len(slots) == len(rows) else []
        if not len(due):
            return kernel(slots, rows, ndim)
        code, first, fallen = int(loops.first_bad_row(rows)), 0, False
        for end in sorted({*due, len(slots)}):
            if code == reference.DONE:
                code = kernel(slots[first:end], rows[first:end], ndim)
            if code == reference.DONE and end in due:
                fallen |= end_window(method, table[slots[end - 1]])
            first = end
        return warn_if_fallen(code, fallen)

    return learn


def window_ends(table: Vector, slots: Labels) -> list[int]:
    """Return after how many rows of these slots (n,) a window of some stream ends, increasing."""
    order = np.argsort(slots, kind="stable")
    ordered = slots[order]
    first = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    rank = np.empty(len(slots), np.int64)
    rank[order] = np.arange(len(slots)) - np.repeat(first, np.diff(np.append(first, len(slots))))
    n = table[slots, 0] + rank + 1
    return [int(i) + 1 for i in np.flatnonzero((n % WINDOW == 0) | (n == FIRST_TEST))]


def acts_of(method: OnlineEbls, part: Parts) -> Acts:
    """Return how much of the label-shift correction is applied, and why."""
    if method.moments is None:
        acts = describe(None, BATCH)
    else:
        acts = describe(evidence_in(part, 1.0 + n_tests_before(int(part["n"]) + 1)), BATCH)
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
    shifted = np.log(np.maximum(prior, MIN_PRIOR) / method.source.prior)
    return np.asarray(method.log_unshifted + share * (shifted - method.log_unshifted))


def of_corrections(method: OnlineEbls, part: Parts, prior: Vector) -> Matrix:
    """Return the log class weights (N_CORRECTIONS, K) of each correction."""
    none, shifted = method.log_unshifted, np.log(np.maximum(prior, MIN_PRIOR) / method.source.prior)
    biases = part["product"] / (part["curvature"] + method.settings.bias_spread**-2)
    return np.stack([none, shifted, *(none + biases)])


def update_by_label(method: OnlineEbls, part: Parts, row: Vector, y: int, prior: Vector) -> None:
    """Take in the label `y` of a sample `row` (K,): weigh the corrections by how well they predict it, then let both
    memories of biases take a step of the logistic regression of labels on probabilities (its second derivative is taken
    to be diagonal)."""
    each, settings = of_corrections(method, part, prior), method.settings
    p = row * np.exp(each - each.max(axis=1, keepdims=True))
    p /= np.maximum(p.sum(axis=1, keepdims=True), 1e-300)
    share = max(share_of_tests(method, part), MIN_LABEL_SHIFT)
    start = np.full(N_CORRECTIONS, (1 - share) / (N_CORRECTIONS - 1))
    start[1] = share
    weights = part["corrections"] if has_labels(part) else start
    weights = weights * np.maximum(p[:, y], MIN_PROBABILITY)
    part["corrections"][:] = (1 - settings.label_sharing) * weights / weights.sum() + settings.label_sharing * start
    biases = each[2:] - each[0]
    keep = 0.5 ** (1 / np.array(settings.label_memories))[:, None] if method.drift else 1.0
    curvature = p[2:] * (1 - p[2:]) + 1e-12
    gradient = -p[2:]
    gradient[:, y] += 1.0
    part["curvature"][:] = keep * part["curvature"] + curvature
    part["product"][:] = keep * part["product"] + curvature * biases + gradient
