"""Online methods: frozen options, and pure functions on a state that is one flat vector of numbers.

A method is defined sample by sample: learning a block is learning its rows in order, so chunks never change an answer.
Its state always starts with `n`, the samples learned. `init` and `step` are the pure face; `Stream` owns a state and
lets `learn` change it in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

import numpy as np

from reprior._kernels import NATIVE, reference
from reprior._types import Acts, Matrix, Source, StreamChecks, Vector
from reprior.rows.calibrated import Calibrator

Layout = dict[str, tuple[int, ...]]
Kernel = Callable[..., int]


class StreamMethod(Protocol):
    """Every online method: a frozen dataclass whose first field is `source`, the others its options.

    Its functions trust their input; `rows` (n, K) are float64 probability vectors. `layout` names the parts of the
    state in order and starts with ``"n": ()``. `learn` and `observe` change the state in place. `variance` is that of
    each class's share (K,), with a sentence on how far to trust it. `valid` tells of finite numbers (S, size) with a
    whole `n` whether they are S states of this method, so that bytes can be refused. `bind` gives the native kernel as
    a function of (slots, rows, axes of rows), `bind_top` the one for top-k rows of (slots, indices, values, axes), or
    `refuse`. A kernel that refuses has learned nothing; `learn` then takes checked rows.

    A method may have `acts`, how much of its correction is applied and why, `checks`, what its tests found, and
    `weights`, the class weights (K,) of what is applied.
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
    def variance(self, state: Vector) -> tuple[Vector, str]: ...
    def valid(self, states: Vector) -> bool: ...
    def bind(self, table: Matrix) -> Kernel: ...
    def bind_top(self, table: Matrix) -> Kernel: ...


@dataclass(frozen=True, slots=True)
class StreamState:
    """A method, its options and source, all it has learned, a calibrator, and how many labels were taken in: the whole
    of a stream as a value."""

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


def method_acts(method: StreamMethod, state: Vector) -> Acts:
    """Return how much of the correction is applied, and why."""
    if not hasattr(method, "acts"):
        return Acts(1.0, f"{method.name} does not test for label shift.")
    return method.acts(state)  # type: ignore[no-any-return]


def method_checks(method: StreamMethod, state: Vector) -> StreamChecks:
    """Return what the tests of a stream found so far."""
    return method.checks(state) if hasattr(method, "checks") else StreamChecks()


def class_weights(method: StreamMethod, state: Vector, prior: Vector | None = None) -> Vector:
    """Return the class weights (K,) of the correction, as far as it is applied.

    `prior` is the one of the state, if the caller has it already.
    """
    if hasattr(method, "weights"):
        return method.weights(state, prior)  # type: ignore[no-any-return]
    return np.asarray((method.prior(state) if prior is None else prior) / method.source.prior)


def simplex(shares: Vector) -> bool:
    """Return whether all shares (..., K) are non-negative and sum to one, but for what rounding may have cost."""
    return bool((shares >= 0).all() and (np.abs(shares.sum(axis=-1) - 1) < 1e-6).all())


def views(*arrays: Matrix) -> tuple[Any, ...]:
    """Return memoryviews, which a native kernel opens three times as fast as arrays; the reference needs arrays."""
    return tuple(x.data for x in arrays) if NATIVE else arrays


def refuse(*_: Any) -> int:
    """Stand in for a kernel where there is none."""
    return reference.REFUSED


def learned(code: int) -> None:
    """Raise if a kernel did not learn: checked rows never come to that."""
    if code != reference.DONE:
        raise AssertionError(f"rows reached a kernel unchecked (code {code})")
