"""Online methods: frozen options, and pure functions on a state that is one flat vector of numbers.

A method is defined sample by sample: learning a block is learning its rows in order, so chunks never change an answer.
Its state always starts with `n`, the samples learned. `init` and `step` are the pure face; `Stream` owns a state and
lets `learn` change it in place.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, Protocol

import numpy as np

from reprior._check import check_choice, check_flag, check_int, check_number, fail
from reprior._kernels import NATIVE, loops, reference
from reprior._types import Matrix, Source, Vector
from reprior.em import ascend

Layout = dict[str, tuple[int, ...]]
Kernel = Callable[..., int]


class StreamMethod(Protocol):
    """Every online method: a frozen dataclass whose first field is `source`, the others its options.

    Its functions trust their input; `rows` (n, K) are float64 probability vectors. `layout` names the parts of the
    state in order and starts with ``"n": ()``. `learn` and `observe` change the state in place. `variance` is that of
    each class's share (K,), with a sentence on how far to trust it. `bind` gives the native kernel as a function of
    (slots, rows, axes of rows), `bind_top` the one for top-k rows of (slots, indices, values, axes), or `refuse`.
    """

    name: ClassVar[str]
    predicts_first: ClassVar[bool]  # whether prior(state) leaves the sample to be corrected out
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
    def bind(self, table: Matrix) -> Kernel: ...
    def bind_top(self, table: Matrix) -> Kernel: ...


@dataclass(frozen=True, slots=True)
class StreamState:
    """A method, its options and source, and all it has learned: the whole of a stream as a value."""

    method: StreamMethod
    values: Vector

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
    """Return the state after learning `rows` (n, K); the one passed in stays as it is."""
    values = state.values.copy()
    state.method.learn(values, rows)
    return StreamState(state.method, values)


def state_size(layout: Layout) -> int:
    """Return how many numbers a state with this layout holds."""
    return sum(math.prod(shape) for shape in layout.values())


def unpack(layout: Layout, state: Vector) -> dict[str, Vector]:
    """Return the named parts of a state as views: writing to them changes the state."""
    parts, at = {}, 0
    for name, shape in layout.items():
        size = math.prod(shape)
        parts[name] = state[at : at + size].reshape(shape)
        at += size
    return parts


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


@dataclass(frozen=True)
class OnlineFmapls:
    """online-FMAPLS [hu2025]: the prior as the mean of a Dirichlet that each sample moves by about 1/ĉ.

    `variant` "stable" (posterior mean) or "paper" (Algorithm 2 as printed, which needs a number for `c` and is
    unstable); `c` a number for ĉ = c / max π (eq. 33), or "auto": ĉ starts at K/2 and grows by one a sample up to
    `memory` (a number of samples, or "auto" = 100 K, at least 1000). `gamma` and `delta` are γ and the reading of the
    unobserved label in eq. 24: "running" (the last statistic), "predicted" (the last sample's likeliest class) or
    "observed" (labels that arrived since). `update` of α: "lsf" (eq. 33) or "ga" (`n_grad` steps of size `mu`, eq. 10).
    """

    name: ClassVar[str] = "online-fmapls"
    predicts_first: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("prior", "classes")
    DELTAS: ClassVar[tuple[str, ...]] = ("running", "predicted", "observed")  # in the order of the kernels' numbers
    INFLOW: ClassVar[float] = 1e-4  # counts a sample shared by all classes, so that no class is lost for good

    source: Source = field(repr=False)
    variant: str = "stable"
    c: float | str = "auto"
    gamma: float = 1.0
    delta: str = "running"
    update: str = "lsf"
    memory: float | str = "auto"
    mu: float = 0.01
    n_grad: int = 10

    def __post_init__(self) -> None:
        caller = self.name
        check_choice(self.variant, caller, "variant", ("stable", "paper"))
        check_choice(self.delta, caller, "delta", self.DELTAS)
        check_choice(self.update, caller, "update", ("lsf", "ga"))
        check_number(self.gamma, caller, "gamma", low=0, high=1, open_low=True)
        check_number(self.mu, caller, "mu", low=0, open_low=True)
        object.__setattr__(self, "n_grad", check_int(self.n_grad, caller, "n_grad"))
        for option, value in (("c", self.c), ("memory", self.memory)):
            if value != "auto":
                check_number(value, caller, option, low=0, open_low=True)
        if self.variant == "paper" and self.c == "auto" and self.update == "lsf":
            fail(caller, "c", "be a number when `variant` is 'paper'", "'auto'",
                 remedy="The paper calls it a sufficiently large constant and prints none")  # fmt: skip

    @cached_property
    def known(self) -> Matrix:
        return reference.padded(1.0 / self.source.prior)

    @cached_property
    def options(self) -> Vector:
        k = len(self.source.prior)
        memory = max(1000.0, 100.0 * k) if self.memory == "auto" else float(self.memory)
        delta, c = self.DELTAS.index(self.delta), 0.0 if self.c == "auto" else float(self.c)
        return np.array([k, self.variant == "paper", c, self.gamma, delta, memory, self.INFLOW])

    @cached_property
    def layout(self) -> Layout:
        width = reference.width(len(self.source.prior))
        keeps_d = self.gamma < 1.0 and self.delta != "predicted"
        return {"n": (), "strength": (), "a": (), "b": (), "last": (), "spare": (3,), "u": (width,),
                "d": (width if keeps_d else 0,), "alpha": (width if self.update == "ga" else 0,)}  # fmt: skip

    def parts(self, state: Vector) -> dict[str, Vector]:
        k = len(self.source.prior)
        return {name: part[:k] if part.ndim else part for name, part in unpack(self.layout, state).items()}

    def init(self) -> Vector:
        k = len(self.source.prior)
        state = np.zeros(state_size(self.layout))
        part = self.parts(state)
        part["u"][:], part["a"][...], part["last"][...] = 1.0 / k, 1.0, -1.0 if self.delta == "predicted" else 0.0
        part["alpha"][:] = 1.0
        if self.delta == "running":  # Differs from hu2025: eq. 24 needs an S⁰ and none is printed; it is 1/K here
            part["d"][:] = 1.0 / k
        if self.variant == "paper":
            part["strength"][...] = k  # α = 1, as printed
        else:  # Differs from hu2025: α⁰ follows from π⁰, else one sample's posterior becomes the estimate
            part["strength"][...] = k / 2.0 if self.c == "auto" else float(self.c) * k
        return state

    def learn(self, state: Vector, rows: Matrix) -> None:
        if self.update == "ga":
            self.learn_by_gradient(state, rows)
        else:
            learned(loops.fmapls(state, self.known, self.options, None, np.ascontiguousarray(rows), 2))

    def bind(self, table: Matrix) -> Kernel:
        native = NATIVE and self.update == "lsf"
        return partial(loops.fmapls, *views(table, self.known, self.options)) if native else refuse

    def bind_top(self, table: Matrix) -> Kernel:
        lazy = self.update == "lsf" and self.variant == "stable" and self.c == "auto" and self.gamma == 1.0
        return partial(loops.fmapls_top, *views(table, self.known, self.options)) if lazy else refuse

    def learn_by_gradient(self, state: Vector, rows: Matrix) -> None:
        part = self.parts(state)
        pi, alpha, less = part["u"], part["alpha"], 1.0 if self.variant == "paper" else 0.0
        inverse = 1.0 / self.source.prior
        for p in rows:
            s = reference.posterior(p, inverse, pi)
            if self.gamma < 1.0:
                s = reference.statistic(state, part["d"], self.gamma, self.options[4], s)
            # eq. 31; Differs from hu2025: a numerator that would be negative stops at a floor
            pi[:] = np.maximum(alpha - less + s, reference.LEAST_NUMERATOR)
            pi /= pi.sum()
            alpha[:] = ascend(alpha, pi, mu=self.mu, n_grad=self.n_grad)
            state[0] += 1.0
            state[1] = alpha.sum()

    def observe(self, state: Vector, row: Vector, y: int) -> None:
        part = self.parts(state)
        if self.delta == "observed" and self.gamma < 1.0:  # with γ = 1, eq. 24 has no place for labels
            part["d"][y] += 1.0
            part["last"] += 1.0
            return
        pi = self.prior(state)
        change = -reference.posterior(row, 1.0 / self.source.prior, pi)  # what the sample had brought …
        change[y] += 1.0  # … and what it should have
        if self.update == "ga":  # the next π is made from α, which must stay positive
            part["alpha"][:] = np.maximum(part["alpha"] + change, 0.1 * part["alpha"])
        pi = np.maximum(pi + change / (state[1] + 1.0), reference.LEAST_NUMERATOR)
        part["u"][:], part["a"][...], part["b"][...] = pi / pi.sum(), 1.0, 0.0

    def prior(self, state: Vector) -> Vector:
        head = reference.FMAPLS_HEAD  # `parts` would take longer than the rest
        return np.asarray(state[2] * state[head : head + len(self.source.prior)] + state[3])

    def variance(self, state: Vector) -> tuple[Vector, str]:
        pi = self.prior(state)
        note = "As if the labels of the last ĉ samples had been seen: too narrow, above all where classes are confused."
        return pi * (1.0 - pi) / (state[1] + 1.0), note


@dataclass(frozen=True)
class OnlineEbls:
    """Streaming empirical Bayes: averaged moment-matched filters; with `drift`, a bank of memories that share weight.

    Nothing needs to be set. With `drift=False` it tends to the batch answer; with `drift=True` it also follows a
    moving prior, at any speed.
    """

    name: ClassVar[str] = "online-ebls"
    predicts_first: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("prior", "classes")
    STRENGTHS: ClassVar[tuple[float, ...]] = (0.1, 1.0, 10.0)
    MEMORIES: ClassVar[tuple[float, ...]] = (30.0, 100.0, 300.0, 1000.0, 3000.0)
    SHARE: ClassVar[float] = 0.001
    WIDER: ClassVar[float] = 1.3  # variance without drift, where no spread of memories hides how classes correlate
    MISFIT: ClassVar[float] = 0.5  # of φ: the rest is the held-out rows' own noise; measured: stream_coverage.py

    source: Source = field(repr=False)
    drift: bool = True

    def __post_init__(self) -> None:
        check_flag(self.drift, self.name, "drift")

    @cached_property
    def known(self) -> Matrix:
        return reference.padded(1.0 / self.source.prior)

    @cached_property
    def options(self) -> Vector:
        return np.array([len(self.source.prior), self.SHARE if self.drift else 0.0])

    @cached_property
    def bank(self) -> Matrix:
        """One row a filter: prior strength, memory (0 = endless), whether it competes with the row above, weight."""
        ladder = [(0.0, 0.0, 1.0)]  # endless, and never reset
        if self.drift:  # each memory has twice the weight of the next shorter one: that keeps quiet streams steady
            steps = [(memory, float(i > 0), 2.0**i) for i, memory in enumerate((*self.MEMORIES, 0.0))]
            ladder = [*steps, (0.0, 0.0, steps[-1][2])]
        total = len(self.STRENGTHS) * sum(weight for _, _, weight in ladder) / 0.9
        return np.array([(a, memory, competes, w / total) for a in self.STRENGTHS for memory, competes, w in ladder])

    @cached_property
    def layout(self) -> Layout:
        f, width = len(self.bank), reference.width(len(self.source.prior))
        spare = reference.width(2 + 2 * f) - (2 + 2 * f)
        return {"n": (), "weights": (f + 1,), "behind": (f,), "spare": (spare,), "mean": (f, width),
                "precision": (f, width)}  # fmt: skip

    def parts(self, state: Vector) -> dict[str, Vector]:
        k = len(self.source.prior)
        return {name: part[:, :k] if part.ndim == 2 else part for name, part in unpack(self.layout, state).items()}

    def init(self) -> Vector:
        state, k = np.zeros(state_size(self.layout)), len(self.source.prior)
        part = self.parts(state)
        part["weights"][:] = np.append(self.bank[:, 3], 0.1)
        part["mean"][:], part["precision"][:] = 1.0 / k, k * self.bank[:, :1]
        return state

    def learn(self, state: Vector, rows: Matrix) -> None:
        learned(loops.ebls(state, self.known, self.options, self.bank, None, np.ascontiguousarray(rows), 2))

    def bind(self, table: Matrix) -> Kernel:
        return partial(loops.ebls, *views(table, self.known, self.options, self.bank)) if NATIVE else refuse

    def bind_top(self, table: Matrix) -> Kernel:
        return refuse

    def observe(self, state: Vector, row: Vector, y: int) -> None:
        part = self.parts(state)
        mean, precision = part["mean"], part["precision"]
        r = row / self.source.prior * mean
        r /= r.sum(axis=1)[:, None]
        r[:, y] -= 1.0
        mean[:] = np.maximum(precision * mean - r, 1e-9) / precision
        mean /= mean.sum(axis=1)[:, None]

    def prior(self, state: Vector) -> Vector:
        f, k, first = len(self.bank), len(self.source.prior), reference.width(2 + 2 * len(self.bank))
        means = state[first:].reshape(2 * f, -1)[:f, :k]
        return np.asarray(state[1 : f + 1] @ means + state[f + 1] * self.source.prior)

    def variance(self, state: Vector) -> tuple[Vector, str]:
        part = self.parts(state)
        weights, m, mean = part["weights"], part["mean"], self.prior(state)
        within = weights[:-1] @ (m * (1.0 - m) / (part["precision"] + 1.0) + (m - mean) ** 2)
        found = within + weights[-1] * (self.source.prior - mean) ** 2
        if not self.drift:
            found = self.WIDER * found
        note = (
            "From the mixture of filters. Optimistic: without held-out rows the classifier's own misfit is not in it."
        )
        if self.source.heldout is not None:
            from reprior.bounds import Fit, misfit

            fit = Fit(mean, found, np.zeros_like(mean), np.ones_like(mean))
            found = found * (1.0 + self.MISFIT * (misfit(fit, *self.source.heldout, self.source.prior) or 0.0))
            note = "From the mixture of filters, widened by the classifier's misfit on held-out rows."
        return np.asarray(found), note


# `stream` joins these with `peers.PEERS`, a dict of the same kind, into the names that `Stream` knows.
ONLINE: dict[str, type[StreamMethod]] = {OnlineFmapls.name: OnlineFmapls, OnlineEbls.name: OnlineEbls}
