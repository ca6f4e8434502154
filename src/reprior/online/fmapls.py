"""online-FMAPLS, as printed and in the form that works."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from reprior._check import check_choice, check_number, fail
from reprior._kernels import NATIVE, loops, reference
from reprior._types import Matrix, Source, Vector
from reprior.batch.fmapls import ascend
from reprior.model.interval import Moments
from reprior.online.method import Kernel, Layout, Untested, refuse, require_done, simplex, state_size, unpack, views


@dataclass(frozen=True)
class OnlineFmapls(Untested):
    """online-FMAPLS [hu2025]: the prior as the mean of a Dirichlet that each sample moves by about 1/ĉ.

    `variant` "stable" (posterior mean) or "paper" (Algorithm 2 as printed, which needs a number for `c` and is
    unstable); `c` a number for ĉ = c / max π (eq. 33), or "auto": ĉ starts at K/2 and grows by one a sample up to
    `memory` (a number of samples, or "auto" = 100 K, at least 1000). `gamma` and `delta` are γ and the reading of the
    unobserved label in eq. 24: "running" (the last statistic), "predicted" (the last sample's likeliest class) or
    "observed" (labels that arrived since). `update` of α: "lsf" (eq. 33) or "ga" (`n_grad` steps of size `mu`, eq. 10).
    `start_at` "source" (prior), or "uniform" as printed, where "paper" always starts.
    """

    name: ClassVar[str] = "online-fmapls"
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
    start_at: str = "source"

    def __post_init__(self) -> None:
        caller = self.name
        choices = {"variant": ("stable", "paper"), "delta": self.DELTAS, "update": ("lsf", "ga"),
                   "start_at": ("source", "uniform")}  # fmt: skip
        for option, names in choices.items():
            check_choice(getattr(self, option), caller, option, names)
        for option, high in (("gamma", 1), ("mu", 1e100), ("c", 1e100), ("memory", 1e100)):
            if (value := getattr(self, option)) != "auto" or option in ("gamma", "mu"):
                check_number(value, caller, option, low=0, high=high, open_low=True)
        steps = check_number(self.n_grad, caller, "n_grad", low=1, high=10_000, whole=True)  # of each sample
        object.__setattr__(self, "n_grad", int(steps))
        if self.variant == "paper" and self.c == "auto" and self.update == "lsf":
            fail(caller, "c", "be a number when `variant` is 'paper'", "'auto'",
                 remedy="The paper prints no value")  # fmt: skip

    @cached_property
    def kernel_priors(self) -> Matrix:
        """1/source prior for the kernel, padded."""
        return reference.padded(1.0 / self.source.prior)

    @cached_property
    def options(self) -> Vector:
        k = len(self.source.prior)
        memory = max(1000.0, 100.0 * k) if self.memory == "auto" else float(self.memory)
        delta, c = self.DELTAS.index(self.delta), 0.0 if self.c == "auto" else float(self.c)
        return np.array([k, self.variant == "paper", c, self.gamma, delta, memory, self.INFLOW])

    @cached_property
    def layout(self) -> Layout:
        """Samples; `strength` ĉ; π = a·u + b; `last` predicted class, or number of labels in d; how far the kernel for
        top-k rows has let u fall `apart`; last statistic or labels `d`; and α."""
        width = reference.width(len(self.source.prior))
        keeps_d = self.gamma < 1.0 and self.delta != "predicted"
        return {"n": (), "strength": (), "a": (), "b": (), "last": (), "apart": (), "padding": (2,), "u": (width,),
                "d": (width if keeps_d else 0,), "alpha": (width if self.update == "ga" else 0,)}  # fmt: skip

    def parts(self, state: Vector) -> dict[str, Vector]:
        k = len(self.source.prior)
        return {name: part[:k] if part.ndim else part for name, part in unpack(self.layout, state).items()}

    def init(self) -> Vector:
        k = len(self.source.prior)
        state = np.zeros(state_size(self.layout))
        part = self.parts(state)
        # Differs from hu2025, which starts at the uniform prior: if nothing has shifted, nothing is to change
        uniform = self.variant == "paper" or self.start_at == "uniform"
        first = np.full(k, 1.0 / k) if uniform else self.source.prior
        part["u"][:], part["a"][...], part["last"][...] = first, 1.0, -1.0 if self.delta == "predicted" else 0.0
        part["alpha"][:] = (k * first)[: len(part["alpha"])]
        if self.delta == "running":  # Differs from hu2025: eq. 24 needs an S⁰ and none is printed; it is π⁰ here
            part["d"][:] = first[: len(part["d"])]
        if self.variant == "paper":
            part["strength"][...] = k  # α = 1, as printed
        else:  # Differs from hu2025: α⁰ follows from π⁰, else one sample's posterior becomes the estimate
            part["strength"][...] = k / 2.0 if self.c == "auto" else float(self.c) / first.max()
        return state

    def learn(self, state: Vector, rows: Matrix) -> None:
        if self.update == "ga":
            self.learn_by_gradient(state, rows)
        else:
            require_done(loops.fmapls(state, self.kernel_priors, self.options, None, np.ascontiguousarray(rows), 2))

    def bind(self, table: Matrix) -> Kernel:
        native = NATIVE and self.update == "lsf"
        return partial(loops.fmapls, *views(table, self.kernel_priors, self.options)) if native else refuse

    def bind_top(self, table: Matrix) -> Kernel:
        lazy = NATIVE and self.update == "lsf" and self.variant == "stable" and self.c == "auto" and self.gamma == 1.0
        return partial(loops.fmapls_top, *views(table, self.kernel_priors, self.options)) if lazy else refuse

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
        part["u"][:], part["a"][...], part["b"][...], part["apart"][...] = pi / pi.sum(), 1.0, 0.0, 0.0

    def prior(self, state: Vector) -> Vector:
        head = reference.FMAPLS_HEAD  # `parts` would take longer than the rest
        return np.asarray(state[2] * state[head : head + len(self.source.prior)] + state[3])

    def valid(self, states: Vector) -> bool:
        k, part = len(self.source.prior), unpack(self.layout, states)
        last, a, b, d = part["last"], part["a"], part["b"], part["d"]
        pi, alpha = a[:, None] * part["u"][:, :k] + b[:, None], part["alpha"][:, :k]
        least, most = {"predicted": (-1.0, k - 1.0), "observed": (0.0, np.inf), "running": (0.0, 0.0)}[self.delta]
        d_sum = 1.0 if self.delta == "running" else last  # d is the last statistic, or counts the labels since
        conditions = (
            pi > 0, a > 0, b >= 0, part["strength"] > 0, d >= 0, (alpha > 1e-12) & (alpha < 1e12),
            (last >= least) & (last <= most) & (last == np.floor(last)),
            not d.size or np.abs(d.sum(axis=-1) - d_sum) < 1e-6,
            *(part[name][:, k:] == 0 for name in ("u", "d", "alpha")),
        )  # fmt: skip
        return simplex(pi) and all(np.all(x) for x in conditions)

    def spread(self, state: Vector) -> tuple[Moments, str]:
        pi = self.prior(state)
        note = "Too narrow: the last ĉ samples count as if they had labels."
        return Moments(pi, pi * (1.0 - pi) / (state[1] + 1.0)), note
