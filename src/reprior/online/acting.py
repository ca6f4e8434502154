"""How much of its correction a stream applies: it tests itself for label shift, and labels change its weight.

A test compares the moments of the samples of one window with those of held-out samples (`model.label_shift`). The
evidence of all tests counts (`model.acting.Evidence`). Between tests a stream only adds up moments, so any cut into
blocks gives the same state.

With labels, four corrections compete: none, label shift, and class biases that two memories of labels show. Each has a
weight, which the labels' likelihood under it multiplies; a part of all weight returns to the start with every label, so
that a correction that was wrong can be right later [herbster1998]. A test after labels multiplies the weights by what
it changes at the start. Log class weights are averaged by these weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from reprior._check import warn
from reprior._kernels import loops, reference
from reprior._types import Acts, Labels, Matrix, Vector
from reprior.model.acting import Evidence, describe
from reprior.model.label_shift import acting_share, amplification, log_evidence
from reprior.online.settings import StreamSettings
from reprior.online.shared_start import ranks

if TYPE_CHECKING:
    from reprior.online.ebls import OnlineEbls
    from reprior.online.stream import Stream

# windows after the start or a change of the prior that are all tested; later every fourth is, to save time
ALL_TESTED, TESTED_LATER = 20, 4
DIRECTIONS = 16  # columns of the kernels' directions; those behind the reference's own are zero
MIN_PRIOR = 1e-12  # smallest class prior, so that its logarithm is defined
MIN_PROBABILITY = 1e-6  # of a label, so that no label rules a correction out for good
STOP_BELOW, RESUME_ABOVE = 0.5, 0.75  # shares of the correction at which a stream has stopped, and has resumed
STOPPED, RESUMED = "not label shift", "label shift again"  # kinds of events
N_CORRECTIONS = 4  # none, label shift, biases of two memories
DEFAULTS = StreamSettings()  # made once: a server asks for a window with every post


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
    if stream.n < next_window_end(stream, before):
        return None
    acts = stream.acts
    now = acts.share >= (STOP_BELOW if acting else RESUME_ABOVE)
    return None if now == acting else ActsEvent(RESUMED if now else STOPPED, stream.n, acts.share, acts.reason)


# windows of samples, and their tests


def window_end_after(n: int, window: int) -> int:
    """Return the number of samples, above `n`, at which the next window ends: a quarter of the first, then each window.

    The first is short because a drift that is no label shift does much harm early.
    """
    return window // 4 if n < window // 4 else (n // window + 1) * window


def next_window_end(stream: Stream, n: int) -> int:
    """Return the number of samples, above `n`, at which the next window of a stream ends."""
    return window_end_after(n, getattr(stream.method, "settings", DEFAULTS).window)


def learn_and_test(method: OnlineEbls, kernel: Callable[..., int], table: Any) -> Callable[..., int]:
    """Return the kernel, a function of (slots, rows, axes of rows), which also ends windows of the states of `table`.

    Rows are learned all or not at all.
    """
    window = method.settings.window
    state: Any = table.data if table.ndim == 1 else None  # a memoryview: an index costs less than that of an array

    def learn(slots: Any, rows: Any, ndim: int) -> int:
        if ndim == 1:
            code = kernel(slots, rows, 1)
            if code == reference.DONE and (state[0] % window == 0.0 or state[0] == window // 4):
                warn_if_fallen(end_window(method, table))
            return code
        if not isinstance(rows, np.ndarray) or (slots is not None and len(slots) != len(rows)):
            return reference.REFUSED
        ends = window_ends(table, slots, len(rows), window)
        if not ends:
            return kernel(slots, rows, 2)
        code = int(loops.first_bad_row(rows))
        return code if code != reference.DONE else learn_parts(method, kernel, table, slots, rows, ends)

    return learn


def learn_parts(
    method: OnlineEbls, kernel: Callable[..., int], table: Any, slots: Any, rows: Any, ends: list[int]
) -> int:
    """Learn rows part by part; at each of `ends` (numbers of rows) end the window of the last row's stream."""
    fallen = False
    for first, end in pairwise(dict.fromkeys([0, *ends, len(rows)])):
        code = kernel(None if slots is None else slots[first:end], rows[first:end], 2)
        if code != reference.DONE:  # rows of another type: no part can be learned
            return code
        if end in ends:
            fallen |= end_window(method, table if slots is None else table[slots[end - 1]])
    warn_if_fallen(fallen)
    return reference.DONE


def window_ends(table: Vector, slots: Labels | None, n_rows: int, window: int) -> list[int]:
    """Return after how many of `n_rows` rows a window of some stream ends, increasing."""
    if slots is None:
        n = end = int(table[0])
        ends = []
        while (end := window_end_after(end, window)) <= n + n_rows:
            ends.append(end - n)
        return ends
    n_after = table[slots, 0] + ranks(slots) + 1
    return (np.flatnonzero((n_after % window == 0) | (n_after == window // 4)) + 1).tolist()


def end_window(method: OnlineEbls, state: Vector) -> bool:
    """Test the window that ends here if a test is due. Return whether the correction has fallen below one half."""
    n, window, settings = int(state[0]), method.settings.window, method.settings.model
    sums = method.view(state, "moment_sums")
    before = share_of_tests(method, state)
    since_change = float(method.view(state, "held")[method.bank[:, 1] == 0].min())  # of filters that forget nothing
    if since_change <= ALL_TESTED * window or n % (TESTED_LATER * window) == 0:
        laws, size = method.explanations, min(n, window)
        mean, squares = sums[:, : len(laws.reference.mean)] / size
        prior, variance = np.maximum(method.prior(state), MIN_PRIOR), np.maximum(squares - mean**2, 0.0)
        mean_moved = method.view(state, "proba_sums") / size - method.source.prior
        amplified = amplification(prior - laws.base, mean_moved, settings)
        after = evidence_of(method, state) + Evidence(log_evidence(laws, mean, variance, size, prior), amplified)
        method.view(state, "tests")[:] = after.log_evidence, after.amplification, after.n_tests
        if has_labels(method, state):
            update_by_test(method, state, before)
    if n % window == 0:
        sums[:] = 0.0
        method.view(state, "proba_sums")[:] = 0.0
    return before >= STOP_BELOW > share_of_tests(method, state)


def evidence_of(method: OnlineEbls, state: Vector) -> Evidence:
    """Return the evidence of a stream's tests so far."""
    log_evidence, amplified, n_tests = method.view(state, "tests").tolist()
    return Evidence(log_evidence, amplified, n_tests=n_tests)


def warn_if_fallen(fallen: bool) -> None:
    """Warn if a test has made the share of the correction `fallen` below one half, unless the caller reports it."""
    if fallen and not REPORTED.get():
        warn("Less than half of the correction is applied from now on: the samples differ from held-out samples by more"
             " than their class prior. See `stream.acts`.", NotLabelShift)  # fmt: skip


# how much of the correction is applied


def share_of_tests(method: OnlineEbls, state: Vector) -> float:
    """Return the share of the correction that the tests let act."""
    if method.moments is None:
        return 1.0
    log_evidence, amplified, _ = state[method.places["tests"]].tolist()
    return acting_share(log_evidence, amplified, method.settings.model)


def has_labels(method: OnlineEbls, state: Vector) -> bool:
    """Return whether the stream has taken in any label: each adds to every curvature."""
    return bool(state[method.places["curvature"].start] > 0.0)


def acts_of(method: OnlineEbls, state: Vector) -> Acts:
    """Return how much of the label-shift correction is applied, and why."""
    acts = describe(None if method.moments is None else evidence_of(method, state), method.settings.model)
    if not has_labels(method, state):
        return acts
    corrections = method.view(state, "corrections")
    share, biases = float(corrections[1]), float(corrections[2:].sum())
    reason = f"Given the labels, label shift has the weight {share:.0%}, and class biases {biases:.0%}."
    return acts._replace(share=share, reason=reason)


def weights_by_labels(method: OnlineEbls, state: Vector, prior: Vector) -> Vector:
    """Return the class weights (K,) of a state with labels, not normalised, given the estimated `prior` (K,)."""
    return np.asarray(np.exp(method.view(state, "corrections") @ log_weights_of_each(method, state, prior)))


def log_shift(method: OnlineEbls, prior: Vector) -> Vector:
    """Return the log class weights (K,) of label shift to a `prior` (K,), relative to those without shift."""
    return np.asarray(method.kept_shift * np.log(np.maximum(prior, MIN_PRIOR) / method.without_shift))


def log_weights_of_each(method: OnlineEbls, state: Vector, prior: Vector) -> Matrix:
    """Return the log class weights (N_CORRECTIONS, K) of each correction."""
    none = method.log_unshifted
    biases = method.view(state, "newton_sum") / (
        method.view(state, "curvature") + method.settings.model.bias_spreads[-1] ** -2
    )
    return np.stack([none, none + log_shift(method, prior), *(none + biases)])


def start_weights(method: OnlineEbls, share: float) -> Vector:
    """Return the weights (N_CORRECTIONS,) of the corrections without labels: label shift has the tests' `share`."""
    share = max(share, method.settings.model.min_probability)
    start = np.full(N_CORRECTIONS, (1 - share) / (N_CORRECTIONS - 1))
    start[1] = share
    return start


def update_by_test(method: OnlineEbls, state: Vector, before: float) -> None:
    """Weigh the corrections by a test after labels: new weight ∝ weight · start weight now / start weight `before`."""
    corrections = method.view(state, "corrections")
    weights = corrections * start_weights(method, share_of_tests(method, state)) / start_weights(method, before)
    corrections[:] = weights / weights.sum()


def update_by_label(method: OnlineEbls, state: Vector, row: Vector, y: int, prior: Vector) -> None:
    """Weigh the corrections by how well they predict the label `y` of `row` (K,), then let both memories learn it.

    The biases take a step of the logistic regression of labels on probabilities, with a diagonal second derivative. The
    `newton_sum` is of curvature·bias + gradient; divided by curvature plus prior precision it is the bias.
    """
    each, settings = log_weights_of_each(method, state, prior), method.settings
    p = row * np.exp(each - each.max(axis=1, keepdims=True))
    p /= np.maximum(p.sum(axis=1, keepdims=True), 1e-300)
    start = start_weights(method, share_of_tests(method, state))
    corrections = method.view(state, "corrections")
    weights = corrections if has_labels(method, state) else start
    weights = weights * np.maximum(p[:, y], MIN_PROBABILITY)
    corrections[:] = (1 - settings.label_sharing) * weights / weights.sum() + settings.label_sharing * start
    keep = 0.5 ** (1 / np.array(settings.label_memories))[:, None] if method.drift else 1.0
    biases, curvature, gradient = each[2:] - each[0], p[2:] * (1 - p[2:]) + 1e-12, -p[2:]
    gradient[:, y] += 1.0
    for name, step in (("curvature", curvature), ("newton_sum", curvature * biases + gradient)):
        part = method.view(state, name)
        part[:] = keep * part + step


def replace_sample_by_label(method: OnlineEbls, state: Vector, row: Vector, y: int) -> None:
    """Replace what `row` (K,) added to the filters' shares by its label `y`, and weigh the filters by the label.

    With r the class probabilities of the row under a filter, its counts change by −count·r + 1[y], its weight is
    multiplied by r_y, and the probability of no shift by r_y without shift.
    """
    part = method.parts(state)
    mean, precision, weights = part["mean"], part["precision"], part["weights"]
    r = row / method.source.prior * mean
    r /= r.sum(axis=1)[:, None]
    unshifted = row / method.source.prior * method.without_shift
    likelihood = max(float(unshifted[y] / unshifted.sum()), MIN_PROBABILITY)
    weights *= np.maximum(r[:, y], MIN_PROBABILITY)
    no_shift = float(part["no_shift"]) * likelihood
    no_shift /= no_shift + (1.0 - float(part["no_shift"])) * weights.sum()
    part["no_shift"][...] = np.clip(no_shift, reference.LEAST_NO_SHIFT, 1.0 - reference.LEAST_NO_SHIFT)
    weights /= weights.sum()
    count = 1.0 / (1.0 + method.heldout_noise * part["held"])[:, None] ** 2  # derivative of t/(1 + h·t)
    mass = precision * mean - count * r
    mass[:, y] += 1.0
    precision += 1.0 - count * (r * r).sum(axis=1)[:, None]
    mean[:] = np.maximum(mass, 1e-9) / precision
    mean /= mean.sum(axis=1)[:, None]
