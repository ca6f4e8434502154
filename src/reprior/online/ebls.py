"""online-EBLS: averaged moment-matched filters that follow a moving prior at any speed."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from reprior._check import check_flag
from reprior._kernels import NATIVE, loops, reference
from reprior._types import Matrix, Source, Vector
from reprior.batch.misfit import inflation, misled_of
from reprior.online.method import Kernel, Layout, learned, refuse, simplex, state_size, unpack, views


@dataclass(frozen=True)
class OnlineEbls:
    """Streaming empirical Bayes: averaged moment-matched filters; with `drift`, a bank of memories that share weight.

    Nothing needs to be set. With `drift=False` it tends to the batch answer; with `drift=True` it also follows a
    moving prior, at any speed.
    """

    name: ClassVar[str] = "online-ebls"
    predicts_first: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ("prior", "classes", "misled")
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
    def misled(self) -> Matrix | None:
        return misled_of(self.source)

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

    def valid(self, states: Vector) -> bool:
        k, part = len(self.source.prior), unpack(self.layout, states)
        mean, precision = part["mean"], part["precision"]
        counted = (precision[..., :k] > 1e-6) & (precision[..., :k] < 1e16)  # by moments, of at most 2⁵³ samples
        sound = simplex(part["weights"]) and simplex(mean[..., :k]) and counted.all()
        unused = not (part["spare"].any() or mean[..., k:].any() or precision[..., k:].any())
        return bool(sound and unused and (part["behind"] >= 0).all())

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
        if self.misled is not None:
            found = found * (1.0 + self.MISFIT * inflation(self.misled, mean, found))
            note = "From the mixture of filters, widened by the classifier's misfit on held-out rows."
        return np.asarray(found), note
