"""Online methods: frozen options, and pure functions on a state that is one flat vector of numbers.

A method is defined sample by sample: learning a block is learning its rows in order, so any cut into blocks gives the
same state. A state starts with `n`, the number of samples learned.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol

import numpy as np

from reprior._check import check_number
from reprior._kernels import NATIVE, reference
from reprior._types import Acts, Matrix, Source, StreamChecks, Vector
from reprior.model.interval import Moments
from reprior.rows.calibrated import Calibrator

Layout = dict[str, tuple[int, ...]]
Kernel = Callable[..., int]


class StreamMethod(Protocol):
    """Every online method: a frozen dataclass whose first field is `source`, the others its options.

    Its functions trust their input; `rows` (n, K) are float64 probabilities. `layout` names the parts of the state in
    order. `learn` and `observe` change the state in place. Intervals follow from `spread`, the moments of each class's
    share (K,), with a sentence on how far to trust it. `valid`: whether finite numbers (S, size) with a whole `n` are S
    states of this method. `weights` are the class weights (K,) of the correction that is applied. `correction` returns
    the prior and, as `padded`, these weights. `bind` returns the native kernel as a function of (slots, rows, axes of
    rows), `bind_top` the one for top-k rows of (slots, indices, values, axes). A kernel that refuses has learned
    nothing; `learn` then takes checked rows.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]]  # the fields of `source` that it uses, and that its bytes carry

    @property
    def source(self) -> Source: ...
    @property
    def layout(self) -> Layout: ...
    def init(self) -> Vector: ...
    def learn(self, state: Vector, rows: Matrix) -> None: ...
    def observe(self, state: Vector, row: Vector, y: int) -> None: ...
    def prior(self, state: Vector) -> Vector: ...
    def spread(self, state: Vector) -> tuple[Moments, str]: ...
    def valid(self, states: Vector) -> bool: ...
    def acts(self, state: Vector) -> Acts: ...
    def checks(self, state: Vector) -> StreamChecks: ...
    def weights(self, state: Vector) -> Vector: ...
    def correction(self, state: Vector) -> tuple[Vector, Matrix]: ...
    def bind(self, table: Matrix) -> Kernel: ...
    def bind_top(self, table: Matrix) -> Kernel: ...


class Untested:
    """Defaults of a method that does not test for label shift."""

    name: ClassVar[str]
    source: Source

    def prior(self, state: Vector) -> Vector:
        raise NotImplementedError

    def acts(self, state: Vector) -> Acts:
        return Acts(1.0, f"{self.name} does not test for label shift.")

    def checks(self, state: Vector) -> StreamChecks:
        return StreamChecks()

    def weights(self, state: Vector) -> Vector:
        return np.asarray(self.prior(state) / self.source.prior)

    def correction(self, state: Vector) -> tuple[Vector, Matrix]:
        return self.prior(state), reference.padded(self.weights(state))

    def bind(self, table: Matrix) -> Kernel:
        return refuse

    def bind_top(self, table: Matrix) -> Kernel:
        return refuse


@dataclass(frozen=True, slots=True)
class StreamState:
    """A whole stream as a value: the method, its state, the calibrator and the number of labels learned."""

    method: StreamMethod
    values: Vector
    calibrator: Calibrator | None = None
    labels: int = 0

    @property
    def n(self) -> int:
        return int(self.values[0])

    @property
    def prior(self) -> Vector:
        return self.method.prior(self.values)


def init(method: StreamMethod) -> StreamState:
    """Return the state before the first sample."""
    return StreamState(method, method.init())


def step(state: StreamState, rows: Matrix) -> StreamState:
    """Return the state after learning `rows` (n, K), raw if it has a calibrator; the one passed in stays as it is."""
    values = state.values.copy()
    state.method.learn(values, rows if state.calibrator is None else state.calibrator.of_block(rows))
    return replace(state, values=values)


def state_size(layout: Layout) -> int:
    """Return how many numbers a state with this layout holds."""
    return sum(math.prod(shape) for shape in layout.values())


def unpack(layout: Layout, state: Vector) -> dict[str, Vector]:
    """Return the named parts of a state, or of states (S, size), as views: writing to them changes the state."""
    parts, at = {}, 0
    for name, shape in layout.items():
        size = math.prod(shape)
        parts[name] = state[..., at : at + size].reshape((*state.shape[:-1], *shape))
        at += size
    return parts


def simplex(shares: Vector) -> bool:
    """Return whether all shares (..., K) are non-negative and sum to one, up to rounding."""
    return bool((shares >= 0).all() and (np.abs(shares.sum(axis=-1) - 1) < 1e-6).all())


def views(*arrays: Matrix) -> tuple[Any, ...]:
    """Return memoryviews, which a native kernel opens three times as fast; without one, the arrays."""
    return tuple(x.data for x in arrays) if NATIVE else arrays


def refuse(*_: Any) -> int:
    """Refuse all rows: the kernel of a method that has none."""
    return reference.REFUSED


def require_done(code: int) -> None:
    """Raise if a kernel refused checked rows, which never happens."""
    if code != reference.DONE:
        raise AssertionError(f"rows reached a kernel unchecked (code {code})")


@dataclass(frozen=True)
class Robust(Untested):
    """Any online method, whose prior moves by at most `robust` in total variation with each sample or label.

    So m samples, crafted or not, move the prior by at most m·`robust`. A true shift by d is followed after d/`robust`
    samples. The method behind it learns as without the bound.
    """

    method: StreamMethod
    robust: float

    def __post_init__(self) -> None:
        check_number(self.robust, self.method.name, "robust", low=0, high=1, open_low=True)

    def __getattr__(self, name: str) -> Any:
        """Return the attributes that the bound does not change, such as the name and the source of the method."""
        if name == "method":  # while a copy is being made
            raise AttributeError(name)
        return getattr(self.method, name)

    @cached_property
    def layout(self) -> Layout:
        return {**self.method.layout, "shown": self.source.prior.shape}

    @cached_property
    def size(self) -> int:
        return state_size(self.method.layout)

    def init(self) -> Vector:
        inner = self.method.init()
        return np.concatenate([inner, self.method.prior(inner)])

    def pooled_method(self) -> Robust:
        return Robust(self.method.pooled_method(), self.robust)  # type: ignore[attr-defined]

    def start(self, pooled_state: Vector, trust: float, sums: Matrix) -> Vector:
        inner = self.method.start(pooled_state[: self.size], trust, sums)  # type: ignore[attr-defined]
        return np.concatenate([inner, self.method.prior(inner)])

    def learn(self, state: Vector, rows: Matrix) -> None:
        for row in rows:
            self.method.learn(state[: self.size], row[None])
            self.follow(state)

    def observe(self, state: Vector, row: Vector, y: int) -> None:
        self.method.observe(state[: self.size], row, y)
        self.follow(state)

    def follow(self, state: Vector) -> None:
        """Move the shown prior towards the method's own."""
        shown = state[self.size :]
        away = self.method.prior(state[: self.size]) - shown
        distance = 0.5 * float(np.abs(away).sum())
        shown += away * min(1.0, self.robust / max(distance, 1e-300))

    def prior(self, state: Vector) -> Vector:
        return state[self.size :].copy()

    def acts(self, state: Vector) -> Acts:
        return self.method.acts(state[: self.size])

    def checks(self, state: Vector) -> StreamChecks:
        return self.method.checks(state[: self.size])

    def weights(self, state: Vector) -> Vector:
        return np.asarray((state[self.size :] / self.source.prior) ** self.acts(state).share)

    def spread(self, state: Vector) -> tuple[Moments, str]:
        inner = state[: self.size]
        about, note = self.method.spread(inner)
        return Moments(about.mean, about.variance + (self.method.prior(inner) - state[self.size :]) ** 2), note

    def valid(self, states: Vector) -> bool:
        shown = states[:, self.size :]
        return self.method.valid(states[:, : self.size]) and simplex(shown) and bool((shown > 0).all())
