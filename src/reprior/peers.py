"""The published online methods, on the same interface, for comparison and use.

All of them rest on black-box estimates [lipton2018]: the mean output of `batch` samples, multiplied by the inverse of
the held-out confusion matrix. As in all streams, the prior they give before a sample has not seen it. What they share
beyond the papers: an estimate with negative shares is cut to the simplex where a prior is asked for, a thousandth of
the mass (`floor`) is spread evenly so that no class is ruled out for good, and a late label replaces that sample's
output in the next estimate. None of them has intervals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from reprior._check import check_number, fail
from reprior._types import Labels, Matrix, Source, Vector
from reprior.online import Layout, StreamMethod, state_size, unpack

MATRICES = ("prior", "classes", "counts", "confusion", "hard_confusion")
ROWS = (*MATRICES, "heldout")
RULES: dict[str, dict[str, Any]] = {
    "batch": {"low": 1, "whole": True}, "experts": {"low": 2, "whole": True}, "horizon": {"low": 1, "whole": True},
    "floor": {"low": 0, "high": 1, "open_low": True}, "rate": {"low": 0, "open_low": True},
    "diameter": {"low": 0, "open_low": True},
}  # fmt: skip


@dataclass(frozen=True)
class BlackBox:
    """How rows become estimates: `forward` (K, K) is the mean output of each class, `inverse` takes it back."""

    forward: Matrix
    inverse: Matrix
    hard: bool
    batch: int

    def output(self, row: Vector) -> Vector:
        return np.eye(1, len(row), int(row.argmax()))[0] if self.hard else row

    def estimates(self, n: Vector, pending: Vector, rows: Matrix) -> Iterator[Vector]:
        """Add rows to `pending`, and yield an estimate (K,) whenever a batch is full; shares may be negative."""
        for row in rows:
            pending += self.output(row)
            n += 1.0
            if n % self.batch == 0:
                estimate = self.inverse @ (pending / self.batch)
                pending[:] = 0.0
                yield estimate


def black_box(method: Any) -> BlackBox:
    """Return the black-box estimator of a method's source and options, or say what it lacks."""
    source, caller = method.source, method.name
    matrix = source.hard_confusion if method.hard else source.confusion
    if matrix is None or source.counts is None or ("heldout" in method.needs and source.heldout is None):
        fail(caller, "source", "have held-out rows with labels", "a prior alone", remedy="Make it by `summarize`")
    seen = source.counts > 0  # a class with no held-out row is taken to be predicted without error
    forward = np.where(seen, matrix / np.where(seen, matrix.sum(axis=0), 1.0), np.eye(len(matrix)))
    ridge = 1e-8 * np.eye(len(forward))  # as published: solvable even where two classes are never told apart
    return BlackBox(
        forward, np.linalg.solve(forward.T @ forward + ridge, forward.T), bool(method.hard), int(method.batch)
    )


def check_options(method: Any) -> None:
    """Refuse options out of range, and a source that lacks what the method needs."""
    for option in sorted(f.name for f in fields(method)):  # `batch` before `window`
        value = getattr(method, option)
        if option in ("hard", "clip") and not isinstance(value, bool):
            fail(method.name, option, "be True or False", repr(value))
        rule = {"low": method.batch, "whole": True} if option == "window" else RULES.get(option)
        if rule and not (option == "rate" and value == "auto"):
            number = check_number(value, method.name, option, **rule)
            object.__setattr__(method, option, int(number) if "whole" in rule else value)
    black_box(method)


def to_simplex(x: Vector) -> Vector:
    """Return `x` (K,) with negative shares cut off and the rest scaled to sum to one."""
    positive = np.maximum(x, 0.0)
    return np.asarray(positive / positive.sum())


def nearest_on_simplex(x: Vector) -> Vector:
    """Return the point of the simplex nearest to `x` (K,) in Euclidean distance."""
    down = np.sort(x)[::-1]
    excess = (np.cumsum(down) - 1.0) / np.arange(1, len(x) + 1)
    return np.asarray(np.maximum(x - excess[np.flatnonzero(down > excess)[-1]], 0.0))


def leave_open(prior: Vector, floor: float) -> Vector:
    """Return the prior with a little mass spread evenly, so that no class is impossible."""
    return (1 - floor) * prior + floor / len(prior)


def zeros(method: Any) -> Vector:
    """Return the state before the first sample, where all its parts are zero."""
    return np.zeros(state_size(method.layout))


def late_label(method: Any, state: Vector, row: Vector, y: int) -> None:
    """Let the mean output of class `y` take the place of the sample's own in the next estimate."""
    pending = unpack(method.layout, state)["pending"]
    pending += method.box.forward[:, y] - method.box.output(row)


def no_variance(method: Any, state: Vector) -> tuple[Vector, str]:
    fail("Stream.interval", "method", "know its own uncertainty", repr(method.name), remedy="Use 'online-ebls'")


@dataclass(frozen=True)
class Fth:
    """Follow the history [wu2021]: the mean of all estimates so far.

    Published one sample at a time, by hard predictions. `clip=True` cuts each estimate to the simplex before it enters
    the mean, as [baby2023] ran it, with `batch=10, hard=False`.
    """

    name: ClassVar[str] = "fth"
    predicts_first: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = MATRICES

    box, init, observe, variance = cached_property(black_box), zeros, late_label, no_variance
    source: Source = field(repr=False)
    batch: int = 1
    hard: bool = True
    clip: bool = False
    floor: float = 1e-3

    def __post_init__(self) -> None:
        check_options(self)

    @cached_property
    def layout(self) -> Layout:
        k = len(self.source.prior)
        return {"n": (), "pending": (k,), "total": (k,)}

    def learn(self, state: Vector, rows: Matrix) -> None:
        part = unpack(self.layout, state)
        for estimate in self.box.estimates(part["n"], part["pending"], rows):
            part["total"] += to_simplex(estimate) if self.clip else estimate

    def prior(self, state: Vector) -> Vector:
        total = unpack(self.layout, state)["total"]
        return leave_open(to_simplex(total) if total.any() else self.source.prior, self.floor)


@dataclass(frozen=True)
class Ftfwh:
    """Follow the fixed-window history [wu2021]: the mean of the estimates of the last `window` samples.

    Published with windows of 100, 1,000 and 10,000 samples; [baby2023] took 100 batches of 10, with `clip=True`.
    """

    name: ClassVar[str] = "ftfwh"
    predicts_first: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = MATRICES

    box, init, observe, variance = cached_property(black_box), zeros, late_label, no_variance
    source: Source = field(repr=False)
    window: int = 1000
    batch: int = 1
    hard: bool = True
    clip: bool = False
    floor: float = 1e-3

    def __post_init__(self) -> None:
        check_options(self)

    @cached_property
    def layout(self) -> Layout:
        k = len(self.source.prior)
        return {"n": (), "pending": (k,), "total": (k,), "ring": (self.window // self.batch, k)}

    def learn(self, state: Vector, rows: Matrix) -> None:
        part = unpack(self.layout, state)
        ring, total = part["ring"], part["total"]
        for estimate in self.box.estimates(part["n"], part["pending"], rows):
            slot = (int(part["n"]) // self.batch - 1) % len(ring)
            total -= ring[slot]
            ring[slot] = to_simplex(estimate) if self.clip else estimate
            total += ring[slot]
            if slot == len(ring) - 1:
                total[:] = ring.sum(axis=0)  # so that rounding does not add up

    def prior(self, state: Vector) -> Vector:
        total = unpack(self.layout, state)["total"]
        return leave_open(to_simplex(total) if total.any() else self.source.prior, self.floor)


@dataclass(frozen=True)
class FlhFtl:
    """Follow the leading history of followers of the leader [baby2023].

    One expert starts at each estimate and follows their mean since then; experts lose weight by their squared error,
    at rate `rate` ("auto" = 1/K as published), and the prior is their weighted mean.
    """

    # Differs from baby2023: at most `experts` are kept, so that the state is bounded; the lightest gives way. The
    # published runs have 1000 estimates, so they are the same.
    name: ClassVar[str] = "flh-ftl"
    predicts_first: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = MATRICES

    box, init, observe, variance = cached_property(black_box), zeros, late_label, no_variance
    source: Source = field(repr=False)
    rate: float | str = "auto"
    experts: int = 1000
    batch: int = 10
    hard: bool = False
    floor: float = 1e-3

    def __post_init__(self) -> None:
        check_options(self)

    @cached_property
    def layout(self) -> Layout:
        k, m = len(self.source.prior), self.experts
        return {"n": (), "pending": (k,), "weight": (m,), "count": (m,), "mean": (m, k)}

    def learn(self, state: Vector, rows: Matrix) -> None:
        part = unpack(self.layout, state)
        weight, count, mean = part["weight"], part["count"], part["mean"]
        rate = 1.0 / len(self.source.prior) if self.rate == "auto" else float(self.rate)
        for raw in self.box.estimates(part["n"], part["pending"], rows):
            estimate, seen = to_simplex(raw), int(part["n"]) // self.batch
            live = min(seen - 1, self.experts)
            error = ((mean[:live] - estimate) ** 2).sum(axis=1)
            weight[:live] *= np.exp(-rate * error)
            weight[:live] *= (1 - 1 / seen) / (weight[:live].sum() or 1.0)
            slot = live if live < self.experts else int(weight.argmin())
            weight[slot], count[slot], mean[slot] = 1 / seen, 0.0, 0.0
            live = min(seen, self.experts)
            count[:live] += 1.0
            mean[:live] += (estimate - mean[:live]) / count[:live, None]

    def prior(self, state: Vector) -> Vector:
        part = unpack(self.layout, state)
        if not part["weight"].any():
            return leave_open(self.source.prior, self.floor)
        live = np.count_nonzero(part["count"])
        mixed = part["weight"][:live] @ part["mean"][:live]
        return leave_open(mixed / mixed.sum(), self.floor)


@dataclass(frozen=True)
class Rogd:
    """Online gradient descent on the prior that reweights the outputs [wu2021].

    Each estimate takes a step against the gradient of the (smoothed) error rate that the reweighted classifier would
    have on the held-out rows under it. `rate` "auto" is √(2/T)/G as published, T = `horizon` estimates, G the largest
    gradient.
    """

    # Differs from wu2021: G is sought over random priors and not at the corners of the simplex, where it is so large
    # that nothing moves.
    name: ClassVar[str] = "rogd"
    predicts_first: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ROWS

    box, observe, variance = cached_property(black_box), late_label, no_variance
    source: Source = field(repr=False)
    rate: float | str = "auto"
    horizon: int = 1000
    batch: int = 1
    hard: bool = True
    floor: float = 1e-3

    def __post_init__(self) -> None:
        check_options(self)

    @cached_property
    def heldout(self) -> tuple[Matrix, Labels, Vector]:
        """Outputs over source prior (n, K), labels (n,), and that of the label / rows with the label (n,)."""
        assert self.source.heldout is not None
        rows, y = self.source.heldout
        ratio = np.asarray(rows, np.float64) / self.source.prior
        return ratio, y, ratio[np.arange(len(y)), y] / np.bincount(y)[y]

    def gradient(self, prior: Vector, share: Vector) -> Vector:
        """Return the gradient (K,) at `prior` of Σ_k share_k · (error of class k after reweighting)."""
        ratio, y, of_label = self.heldout
        scale = np.maximum(ratio @ prior, 1e-12)
        own = of_label * share[y] / scale
        return np.asarray(ratio.T @ (own * prior[y] / scale) - np.bincount(y, own, len(prior)))

    @cached_property
    def step_size(self) -> float:
        if self.rate != "auto":
            return float(self.rate)
        k, rng = len(self.source.prior), np.random.default_rng(0)
        largest = 0.0
        for prior in rng.dirichlet(np.ones(k), 10):
            by_class = np.stack([self.gradient(prior, one) for one in np.eye(k)], axis=1)
            largest = max(largest, float(np.linalg.norm(by_class @ self.box.inverse, axis=0).max()))
        return math.sqrt(2 / self.horizon) / largest

    @cached_property
    def layout(self) -> Layout:
        k = len(self.source.prior)
        return {"n": (), "pending": (k,), "point": (k,)}

    def init(self) -> Vector:
        state = zeros(self)
        unpack(self.layout, state)["point"][:] = self.source.prior
        return state

    def learn(self, state: Vector, rows: Matrix) -> None:
        part = unpack(self.layout, state)
        point = part["point"]
        for estimate in self.box.estimates(part["n"], part["pending"], rows):
            point[:] = nearest_on_simplex(point - self.step_size * self.gradient(point, estimate))

    def prior(self, state: Vector) -> Vector:
        return leave_open(unpack(self.layout, state)["point"], self.floor)


def risk_and_gradient(source: Source, bias: Vector, share: Vector) -> tuple[float, Vector]:
    """Return the held-out log loss of softmax(log p + bias) under class shares, and its gradient (K,) in `bias`."""
    assert source.heldout is not None
    rows, y = source.heldout
    each = share[y] / np.bincount(y)[y]
    factors = np.exp(bias - bias.max())
    scale = np.maximum(rows @ factors, 1e-300)
    own = np.maximum(rows[np.arange(len(y)), y], 1e-12) * factors[y]
    return float(each @ np.log(scale / own)), factors * (rows.T @ (each / scale)) - np.bincount(y, each, len(share))


def into_ball(bias: Vector, radius: float) -> Vector:
    return bias * min(1.0, radius / max(float(np.linalg.norm(bias)), 1e-300))


def biased(source: Source, bias: Vector) -> Vector:
    """Return the prior (K,) under which `bias` is the right thing to add to the log outputs."""
    prior = source.prior * np.exp(bias - bias.max())
    return np.asarray(prior / prior.sum())


@dataclass(frozen=True)
class Uogd:
    """Online gradient descent on the unbiased risk estimate [bai2022], stated on outputs alone.

    Published for the weights of a network's last layer. With outputs alone there is one bias for each class to learn,
    added to the log output; the prior is the one under which those biases are right. The held-out log loss, weighted
    by each estimate, gives the step, of size D/(G√T): D = `diameter` and G = 1 as published, T = `horizon` estimates.
    """

    name: ClassVar[str] = "uogd"
    predicts_first: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ROWS

    box, init, observe, variance = cached_property(black_box), zeros, late_label, no_variance
    source: Source = field(repr=False)
    diameter: float = 10.0
    horizon: int = 1000
    batch: int = 10
    hard: bool = True
    floor: float = 1e-3

    def __post_init__(self) -> None:
        check_options(self)

    @cached_property
    def layout(self) -> Layout:
        k = len(self.source.prior)
        return {"n": (), "pending": (k,), "bias": (k,)}

    def learn(self, state: Vector, rows: Matrix) -> None:
        part = unpack(self.layout, state)
        bias, size = part["bias"], self.diameter / math.sqrt(self.horizon)
        for estimate in self.box.estimates(part["n"], part["pending"], rows):
            _, gradient = risk_and_gradient(self.source, bias, estimate)
            bias[:] = into_ball(bias - size * gradient, self.diameter)

    def prior(self, state: Vector) -> Vector:
        return leave_open(biased(self.source, unpack(self.layout, state)["bias"]), self.floor)


@dataclass(frozen=True)
class Atlas:
    """A pool of UOGD learners with step sizes a factor of two apart, combined by their risk so far [bai2022].

    The same restatement on outputs alone as `Uogd`. Steps run from D/(G√T) to D/G; the learners' biases are averaged
    with weights ∝ exp(−2√(ln N / T) · risk).
    """

    name: ClassVar[str] = "atlas"
    predicts_first: ClassVar[bool] = True
    needs: ClassVar[tuple[str, ...]] = ROWS

    box, init, observe, variance = cached_property(black_box), zeros, late_label, no_variance
    source: Source = field(repr=False)
    diameter: float = 10.0
    horizon: int = 1000
    batch: int = 10
    hard: bool = True
    floor: float = 1e-3

    def __post_init__(self) -> None:
        check_options(self)

    @cached_property
    def sizes(self) -> Vector:
        n = 1 + math.ceil(math.log2(1 + 2 * self.horizon) / 2)
        return np.asarray(self.diameter / math.sqrt(self.horizon) * 2.0 ** np.arange(n))

    @cached_property
    def layout(self) -> Layout:
        k, m = len(self.source.prior), len(self.sizes)
        return {"n": (), "pending": (k,), "risk": (m,), "bias": (m, k)}

    def learn(self, state: Vector, rows: Matrix) -> None:
        part = unpack(self.layout, state)
        for estimate in self.box.estimates(part["n"], part["pending"], rows):
            for j, (bias, size) in enumerate(zip(part["bias"], self.sizes, strict=True)):
                risk, gradient = risk_and_gradient(self.source, bias, estimate)
                part["risk"][j] += risk
                bias[:] = into_ball(bias - size * gradient, self.diameter)

    def prior(self, state: Vector) -> Vector:
        part = unpack(self.layout, state)
        rate = 2 * math.sqrt(math.log(len(self.sizes)) / self.horizon)
        weight = np.exp(-rate * (part["risk"] - part["risk"].min()))
        return leave_open(biased(self.source, weight @ part["bias"] / weight.sum()), self.floor)


PEERS: dict[str, type[StreamMethod]] = {peer.name: peer for peer in (Fth, Ftfwh, FlhFtl, Rogd, Uogd, Atlas)}
