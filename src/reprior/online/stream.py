"""`Stream`: one stream of predictions, which owns a state that an online method changes in place."""

from __future__ import annotations

import os
from collections.abc import Mapping
from threading import RLock
from time import sleep
from typing import Any, Self
from weakref import WeakSet

import numpy as np

from reprior._check import as_array, check_level, check_logits, check_proba, check_row, fail, in_order, like_input
from reprior._kernels import NATIVE, loops
from reprior._kernels.reference import DONE, padded
from reprior._labels import check_label, check_learned
from reprior._types import Acts, Interval, Matrix, Source, StreamChecks, Vector
from reprior.estimates import show
from reprior.model.interval import Moments, beta_parameters
from reprior.online.method import StreamMethod, StreamState, require_done
from reprior.online.registry import labels_in, method_fields, method_from_fields, online_method
from reprior.rows.blocks import ArrayBlocks, TopKBlocks, by_name, check_top_k, is_top_k
from reprior.rows.calibrated import Calibrator
from reprior.rows.correction import correct_rows, correct_top_k, refuse_listed
from reprior.state import Key, Saved, decode, kind_of, take


class ForkedLocks:
    """Locks of objects that threads share. A fork waits for all of them, so a child finds every object whole."""

    def __init__(self) -> None:
        self.locks: WeakSet[Any] = WeakSet()
        self.held: list[Any] = []
        self.forking = False

    def new(self) -> Any:
        lock = RLock()
        self.locks.add(lock)
        return lock

    def hold(self) -> None:
        self.forking, self.held = True, list(self.locks)
        for lock in self.held:
            lock.acquire()
        self.forking = False

    def free(self) -> None:
        while self.held:
            self.held.pop().release()

    def let_forks_pass(self) -> None:
        """Pause while a fork waits: a thread that learns block after block would always be first at the lock again."""
        if self.forking:
            sleep(0.001)


LOCKS = ForkedLocks()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(before=LOCKS.hold, after_in_parent=LOCKS.free, after_in_child=LOCKS.free)


def aligned_zeros(shape: tuple[int, ...]) -> Vector:
    """Return zeros that start at a cache line of 64 bytes."""
    size = int(np.prod(shape))
    memory = np.zeros(size + 8)
    first = -memory.ctypes.data % 64 // 8
    return memory[first : first + size].reshape(shape)


def checked(proba: Any, source: Source, caller: str, calibrator: Calibrator | None = None) -> ArrayBlocks | TopKBlocks:
    """Return rows, or top-k rows (indices, values), as checked blocks; top-k rows are refused beside a calibrator."""
    if not is_top_k(proba):
        return ArrayBlocks(raw_rows(proba, source, caller, calibrator))
    if calibrator is not None:
        refuse_listed(caller, "proba")
    pair = zip(proba, ("indices", "values"), strict=True)
    indices, values = (np.array(as_array(x, caller, name)) for x, name in pair)  # what is checked is what is learned
    listed = check_top_k(indices, values, caller, source.prior)
    return TopKBlocks(np.ascontiguousarray(listed.indices, np.int64), np.ascontiguousarray(listed.values, np.float64),
                      source.prior)  # fmt: skip


def as_one_row(pair: Any, caller: str) -> tuple[Any, Any]:
    """Return the top-k pair (indices (k,), values (k,)) of one sample as one of (1, k), (1, k)."""
    indices, values = pair
    return as_array(indices, caller, "indices")[None], as_array(values, caller, "values")[None]


def raw_rows(proba: Any, source: Source, caller: str, calibrator: Calibrator | None) -> Matrix:
    """Return checked rows (n, K) before calibration, with columns matched by name."""
    k, logits = len(source.prior), calibrator is not None and calibrator.of_logits
    plain = type(proba) is np.ndarray and not logits and proba.shape[1:] == (k,) and len(proba) > 0
    if plain and loops.first_bad_row(proba) == DONE:
        return np.asarray(proba)  # as nearly always
    values = by_name(proba, source.classes, caller)
    if logits:
        return check_logits(values, caller, k)
    return check_proba(values, caller, "proba", k)


def calibrated(proba: Any, source: Source, calibrator: Calibrator | None, caller: str) -> Matrix:
    """Return rows (n, K) after calibration, if there is a calibrator; a DataFrame keeps its columns."""
    rows = raw_rows(proba, source, caller, calibrator)
    values = rows if calibrator is None else calibrator.of_block(np.asarray(rows, np.float64))
    return like_input(values, proba, source.classes)  # type: ignore[no-any-return]


def calibrated_row(p: Any, source: Source, caller: str, calibrator: Calibrator | None) -> Vector:
    """Return one sample (K,), checked and after calibration; classes are matched by name if it has names."""
    if calibrator is not None and is_top_k(p):
        refuse_listed(caller, "p")
    if isinstance(p, Mapping) or hasattr(p, "to_numpy"):  # one with names
        p = in_order(p, caller, "p", source.classes)[0]
    if calibrator is not None and calibrator.of_logits:
        return np.asarray(calibrator.of_block(check_logits([p], caller, len(source.prior)))[0])
    row = check_row(p, caller, len(source.prior))
    return row if calibrator is None else np.asarray(calibrator.of_block(row[None])[0])


def corrected(
    blocks: ArrayBlocks | TopKBlocks, weights: Matrix, source: Source, calibrator: Calibrator | None, like: Any
) -> Matrix:
    """Return checked rows, calibrated and corrected by `weights`, (K,) or (n, K); float type and names stay."""
    if isinstance(blocks, TopKBlocks):
        return correct_top_k(source, np.atleast_2d(weights * source.prior), blocks)
    rows = blocks.array if calibrator is None else calibrator(np.asarray(blocks.array, np.float64))
    fixed = correct_rows(rows, weights).astype(blocks.array.dtype, copy=False)
    return like_input(fixed, like, source.classes)  # type: ignore[no-any-return]


def check_calibrator(calibrator: Any, source: Source, caller: str) -> Calibrator | None:
    """Return a calibrator with the classes of the source; None if there is none, or if it changes nothing."""
    if calibrator is None:
        return None
    if not isinstance(calibrator, Calibrator):
        fail(caller, "calibrator", "be a Calibrator or None", type(calibrator).__name__,
             remedy="Fit one with `reprior.calibrate.fit`")  # fmt: skip
    if calibrator.scale.shape != source.prior.shape:
        fail(caller, "calibrator", f"have {len(source.prior)} classes like the source", len(calibrator.scale))
    return None if calibrator.kind == "none" and not calibrator.of_logits else calibrator


class Stream(show.Displayed, Saved):
    """Follow one stream of predictions: correct each sample, then learn the class prior from it.

    Samples are learned one by one. Any cut into blocks gives the same state, bit for bit. A bad sample raises
    `InputError` and changes nothing. Threads may share a stream. Without a calibrator every method that takes
    probabilities (n, K) also takes a top-k pair (indices (n, k), values (n, k)); the missing probability is divided
    among the unlisted classes in proportion to the source prior.

    Parameters
    ----------
    method : str
        A name of `ONLINE`; the default of pipelines is "online-ebls".
    source : Source or (K,)
        What `summarize` returned, or class counts, or a prior.
    calibrator : Calibrator, optional
        With it the stream takes the probabilities that the classifier returns, and calibrates them.
    **options
        Options of the method, and `robust`: how far one sample or label may move the prior at most, in total variation.

    Examples
    --------
    >>> stream = Stream("online-ebls", [0.5, 0.5])
    >>> stream.learn_many([[0.9, 0.1], [0.8, 0.2], [0.9, 0.1]])
    >>> stream.n, bool(stream.prior[0] > 0.5)
    (3, True)
    """

    KIND = "stream"
    __slots__ = ("_kernel", "_labels", "_lock", "_top", "_values", "_weights", "calibrator", "method")

    def __init__(self, method: str, source: Any, /, *, calibrator: Calibrator | None = None, **options: Any) -> None:
        made = online_method(method, source, options, "Stream")
        self._own(StreamState(made, made.init(), check_calibrator(calibrator, made.source, "Stream")))

    def _own(self, state: StreamState) -> None:
        method, values = state.method, state.values
        self.method, self.calibrator, self._labels = method, state.calibrator, state.labels
        self._lock = LOCKS.new()
        self._values = aligned_zeros(values.shape)
        self._values[:] = values
        self._weights = padded(method.source.prior)  # room for the weights of a correction
        self._kernel, self._top = method.bind(self._values), method.bind_top(self._values)

    @classmethod
    def of(cls, state: StreamState) -> Self:
        """Return a stream that continues from a state. The state does not change."""
        stream = cls.__new__(cls)
        stream._own(state)
        return stream

    @property
    def state(self) -> StreamState:
        """The whole state of the stream, as a frozen value."""
        with self._lock:
            return StreamState(self.method, self._values.copy(), self.calibrator, self._labels)

    @property
    def source(self) -> Source:
        """The training side: source prior, class names and held-out samples."""
        return self.method.source

    @property
    def n(self) -> int:
        """Number of samples learned."""
        return int(self._values.item(0))

    @property
    def prior(self) -> Vector:
        """The estimated target prior (K,)."""
        with self._lock:
            return self.method.prior(self._values)

    @property
    def weights(self) -> Vector:
        """Class weights (K,) that `correct_one` multiplies by. They contain the share of the correction that is
        applied.
        """
        with self._lock:
            return self.method.weights(self._values)

    @property
    def acts(self) -> Acts:
        """How much of the correction is applied, and why.

        The stream tests for label shift after 25 samples and then after every 100; after 2,000 without a change of the
        prior, after every 400. `StreamSettings.window` changes that.
        """
        with self._lock:
            return self.method.acts(self._values)

    @property
    def checks(self) -> StreamChecks:
        """Results of the stream's tests so far: probabilities of no shift and of label shift, and the evidence."""
        with self._lock:
            return self.method.checks(self._values)

    def calibrated(self, proba: Any, *, caller: str = "Stream.calibrated") -> Matrix:
        """Return probabilities (n, K) as the method uses them: calibrated, if the stream has a calibrator."""
        return calibrated(proba, self.source, self.calibrator, caller)

    def learn_one(self, p: Any) -> None:
        """Learn from the probabilities (K,) of one sample, or its top-k pair (indices (k,), values (k,))."""
        caller = "Stream.learn_one"
        with self._lock:
            listed = self.calibrator is None and is_top_k(p)
            if self.calibrator is None and (self._top(None, *p, 1) if listed else self._kernel(None, p, 1)) == DONE:
                return
            if listed:
                self._learn_rows(as_one_row(p, caller), None, caller)
            else:
                self.method.learn(self._values, calibrated_row(p, self.source, caller, self.calibrator)[None])

    def learn_many(self, proba: Any) -> None:
        """Learn from the probabilities (n, K) of samples in order, or from their top-k pair (indices, values)."""
        self._learn_rows(proba, self.calibrator, "Stream.learn_many")

    def learn_calibrated(self, rows: Any) -> None:
        """Learn from probabilities (n, K) that `calibrated` returned, so that they are not calibrated twice."""
        self._learn_rows(rows, None, "Stream.learn_calibrated")

    def _learn_rows(self, proba: Any, calibrator: Calibrator | None, caller: str) -> None:
        LOCKS.let_forks_pass()
        with self._lock:  # a kernel checks the rows itself
            top = is_top_k(proba)
            if calibrator is None and (self._top(None, *proba, 2) if top else self._kernel(None, proba, 2)) == DONE:
                return
            blocks = checked(proba, self.source, caller, calibrator)
            if isinstance(blocks, TopKBlocks) and self._top(None, blocks.indices, blocks.values, 2) == DONE:
                return
            for block in blocks:
                self.method.learn(self._values, block if calibrator is None else calibrator.of_block(block))

    def correct_one(self, p: Any) -> Vector:
        """Return the corrected probabilities (K,) of one sample, and learn nothing. A Series or dict keeps its names.
        """
        with self._lock:
            caller, weights, k = "Stream.correct_one", self.method.weights(self._values), len(self.source.prior)
            if self.calibrator is None and is_top_k(p):
                blocks = checked(as_one_row(p, caller), self.source, caller)
                return np.asarray(corrected(blocks, weights, self.source, None, p)[0])
            self._weights[0, :k], out = weights, np.empty(k)
            if not NATIVE or self.calibrator is not None or loops.correct(self._weights, k, p, out, 1) != DONE:
                row = calibrated_row(p, self.source, caller, self.calibrator)
                require_done(loops.correct(self._weights, k, row, out, 1))
            return out if isinstance(p, np.ndarray) else like_input(out, p, self.classes)

    def correct_many(self, proba: Any) -> Matrix:
        """Return corrected probabilities (n, K), and learn nothing.

        A DataFrame keeps its columns. For a top-k pair the probabilities of the listed classes are returned.
        """
        blocks = checked(proba, self.source, "Stream.correct_many", self.calibrator)
        return corrected(blocks, self.weights, self.source, self.calibrator, proba)

    def correct_calibrated(self, rows: Matrix) -> tuple[Matrix, Vector]:
        """Return corrected probabilities (n, K), given what `calibrated` returned, and the estimated prior (K,)."""
        with self._lock:
            prior, weights = self.method.correction(self._values)
        out, k = np.empty(rows.shape, rows.dtype), len(prior)
        if not NATIVE or loops.correct(weights, k, rows, out, 2) != DONE:
            out = correct_rows(rows, weights[0, :k])
        return out, prior

    def observe(self, p: Any, y: Any) -> None:
        """Learn the label `y` of a sample `p` (K,) that the stream has learned before. Labels may arrive late.

        The label replaces what the sample had added to the shares, so a stream takes at most as many labels as samples.
        With "online-ebls" labels also decide how to correct: not at all, by label shift, or by a bias per class.
        """
        caller = "Stream.observe"
        row = calibrated_row(p, self.source, caller, self.calibrator)
        label = check_label(y, caller, len(self.source.prior), self.source.classes)
        with self._lock:
            check_learned(self._labels + 1, self._values[0], caller)
            self.method.observe(self._values, row, label)
            self._labels += 1

    def interval(self, level: float = 0.95) -> Interval:
        """Return lower and upper ends (K,), (K,) of an interval per class, as quantiles of a Beta distribution."""
        with self._lock:
            return beta_interval(self.method, self._values, check_level(level, "Stream.interval"))

    def fields(self, caller: str) -> dict[str, Any]:
        """Return what bytes hold of the stream: method, options, source, calibrator and state."""
        state, about = self.state, method_fields(self.method, self.calibrator)
        return {**about, "n": state.n, "labels": np.array(state.labels, np.int64), "values": state.values}

    @classmethod
    def from_fields(cls, about: dict[str, Any], caller: str) -> Self:
        """Return the stream whose `fields` bytes held."""
        method, calibrator = method_from_fields(about, caller)
        return cls.of(StreamState(method, about["values"], calibrator, int(labels_in(about, caller))))

    @classmethod
    def from_bytes(cls, data: Any, key: Key = None) -> Self:
        """Return the stream that `to_bytes` wrote, or that of a state file of `reprior stream --state`."""
        caller = "Stream.from_bytes"
        if kind_of(data, caller, key=key) == "stream-job":
            job = decode(data, "stream-job", caller, key=key)
            data, key = take(job, "stream", np.ndarray, caller, (None,)).tobytes(), None
        return super().from_bytes(data, key)

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same method, source, calibrator and state."""
        if not isinstance(other, Stream):
            return NotImplemented
        return self is other or self.to_bytes() == other.to_bytes()

    __hash__ = None  # type: ignore[assignment]

    def __copy__(self) -> Stream:
        return Stream.of(self.state)

    def __deepcopy__(self, memo: Any) -> Stream:
        return Stream.of(self.state)

    def __reduce__(self) -> tuple[Any, ...]:
        return Stream.from_bytes, (self.to_bytes(),)


def beta_interval(method: StreamMethod, state: Vector, level: float) -> Interval:
    """Return ends (K,), (K,) for each class's share: quantiles of a Beta with the mean and variance of `spread`."""
    about, note = method.spread(state)
    return Interval(*share_interval(about, method.prior(state), level), level=level, note=note)


def share_interval(about: Moments, prior: Any, level: float) -> tuple[Any, Any]:
    """Return the ends of an interval for shares of any shape from their moments; the estimated `prior` is inside."""
    from scipy.special import betaincinv, ndtri

    a, b = beta_parameters(about)
    tails = (1.0 - level) / 2, (1.0 + level) / 2
    lower, upper = (betaincinv(a, b, tail) for tail in tails)
    # a Beta never reaches 0, but below z² counts, zero is within z Poisson standard errors
    lower = np.where(a < ndtri(tails[1]) ** 2, 0.0, lower)
    return np.minimum(lower, prior), np.maximum(upper, prior)
