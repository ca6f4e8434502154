"""A bound on what one sample may move: the prior that is shown follows a method's own, a bounded step at a time."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from reprior._check import check_number
from reprior._types import Acts, Matrix, StreamChecks, Vector
from reprior.online.method import Kernel, Layout, StreamMethod, method_acts, method_checks, refuse, simplex, state_size


@dataclass(frozen=True)
class Robust:
    """Any online method, whose prior moves by at most `robust` in total variation with each sample or label.

    So whoever sends m samples, crafted or not, moves it by at most m·`robust`; a true shift by d takes d/`robust`
    samples to be followed. The method behind it learns as ever: what a burst told it, it forgets by itself.
    """

    method: StreamMethod
    robust: float

    def __post_init__(self) -> None:
        check_number(self.robust, self.method.name, "robust", low=0, high=1, open_low=True)

    def __getattr__(self, name: str) -> Any:
        """Return what the bound does not change: the method's name, its source, what it needs of that."""
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
        """Return how much of the correction is applied, by the method's own tests; labels move the shown prior only."""
        return method_acts(self.method, state[: self.size])

    def checks(self, state: Vector) -> StreamChecks:
        """Return what the method's own tests found so far."""
        return method_checks(self.method, state[: self.size])

    def weights(self, state: Vector, prior: Vector | None = None) -> Vector:
        """Return the class weights (K,) of the correction to the shown prior, as far as it is applied."""
        return np.asarray((state[self.size :] / self.source.prior) ** self.acts(state).share)

    def variance(self, state: Vector) -> tuple[Vector, str]:
        inner = state[: self.size]
        variance, note = self.method.variance(inner)
        return variance + (self.method.prior(inner) - state[self.size :]) ** 2, note

    def valid(self, states: Vector) -> bool:
        shown = states[:, self.size :]
        return self.method.valid(states[:, : self.size]) and simplex(shown) and bool((shown > 0).all())

    def bind(self, table: Matrix) -> Kernel:
        return refuse

    def bind_top(self, table: Matrix) -> Kernel:
        return refuse
