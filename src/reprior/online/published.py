"""The published online methods, on the same interface, for comparison and use.

All of them use black-box estimates [lipton2018]: the mean output of `batch` samples, multiplied by the inverse of the
held-out confusion matrix. Beyond the papers, negative shares are cut to the simplex when a prior is asked for, a
thousandth of the mass (`floor`) is spread evenly so that no class is ruled out for good, and a late label replaces that
sample's output in the next estimate. None of them has intervals. A method has three functions of its own: the parts of
its state, the prior that follows from them, and how one estimate changes them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import ClassVar, NamedTuple, NoReturn

import numpy as np

from reprior._check import UNLABELLED, check_flag, check_number, fail
from reprior._types import Labels, Matrix, Source, Vector
from reprior.online.method import Layout, StreamMethod, Untested, simplex, unpack

MATRICES = ("prior", "classes", "counts", "confusion", "hard_confusion")
ROWS = (*MATRICES, "heldout")
FLAGS, LEAST = ("hard", "clip"), {"batch": 1, "experts": 2, "horizon": 1, "window": 1}  # whole numbers, at least these
MOST = {"floor": 1, "diameter": 400, "rate": 1e9}  # positive numbers; exp(-√2·400) is still a number
Parts = dict[str, Vector]


class HeldOut(NamedTuple):
    """Held-out outputs (n, K), labels (n,), the output for the label (n,), and the row's share of its class (n,)."""

    rows: Matrix
    y: Labels
    own: Vector
    share: Vector


@dataclass(frozen=True)
class Published(Untested):
    """What the published methods have in common.

    `parts` are those of the state before the first sample, beside `n` and the outputs that await the next estimate.
    `share` returns the prior (K,) of such parts, and `update` changes them by one estimate.
    """

    name: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = MATRICES

    source: Source = field(repr=False)
    batch: int = 10
    hard: bool = True
    floor: float = 1e-3

    def __post_init__(self) -> None:
        for option in sorted(f.name for f in fields(self)):  # `batch` before `window`
            value = getattr(self, option)
            if option in FLAGS:
                check_flag(value, self.name, option)
            elif option in LEAST:
                low = self.batch if option == "window" else LEAST[option]
                whole = check_number(value, self.name, option, low=low, high=1e9, whole=True)
                object.__setattr__(self, option, int(whole))
            elif option in MOST and value != "auto":
                check_number(value, self.name, option, low=0, high=MOST[option], open_low=True)
        self.forward  # noqa: B018 - it refuses a source that lacks what it needs

    def parts(self) -> Parts:
        raise NotImplementedError

    def share(self, part: Parts) -> Vector:
        raise NotImplementedError

    def update(self, part: Parts, estimate: Vector) -> None:
        raise NotImplementedError

    @cached_property
    def forward(self) -> Matrix:
        """The mean output (K, K) of each class; a class without a held-out sample counts as predicted without error."""
        source = self.source
        matrix = source.hard_confusion if self.hard else source.confusion
        if matrix is None or source.counts is None or ("heldout" in self.needs and source.heldout is None):
            fail(self.name, "source", "have held-out samples with labels", "a prior alone", remedy=UNLABELLED)
        present = source.counts > 0
        return np.where(present, matrix / np.where(present, matrix.sum(axis=0), 1.0), np.eye(len(matrix)))

    @cached_property
    def inverse(self) -> Matrix:
        """The matrix (K, K) that turns a mean output into shares of classes."""
        ridge = 1e-8 * np.eye(len(self.forward))  # as published: solvable even if two classes are never distinguished
        return np.linalg.solve(self.forward.T @ self.forward + ridge, self.forward.T)

    @cached_property
    def held_out(self) -> HeldOut:
        """The held-out rows, with what gradients need of them."""
        assert self.source.heldout is not None
        rows, y = np.asarray(self.source.heldout[0], np.float64), self.source.heldout[1]
        return HeldOut(rows, y, rows[np.arange(len(y)), y], 1.0 / np.bincount(y)[y])

    @cached_property
    def layout(self) -> Layout:
        own = {name: part.shape for name, part in self.parts().items()}
        return {"n": (), "pending": self.source.prior.shape, **own}

    def init(self) -> Vector:
        return np.concatenate([np.zeros(1 + len(self.source.prior)), *map(np.ravel, self.parts().values())])

    def output(self, row: Vector) -> Vector:
        return np.eye(1, len(row), int(row.argmax()))[0] if self.hard else row

    def learn(self, state: Vector, rows: Matrix) -> None:
        """Add up outputs; whenever a batch is full, update by its estimate, whose shares may be negative."""
        part = unpack(self.layout, state)
        n, pending = part["n"], part["pending"]
        for row in rows:
            pending += self.output(row)
            n += 1.0
            if n % self.batch == 0:
                estimate = self.inverse @ (pending / self.batch)
                pending[:] = 0.0
                self.update(part, estimate)

    def observe(self, state: Vector, row: Vector, y: int) -> None:
        """Let the mean output of class `y` take the place of the sample's own in the next estimate."""
        pending = unpack(self.layout, state)["pending"]
        pending += self.forward[:, y] - self.output(row)

    def prior(self, state: Vector) -> Vector:
        share = self.share(unpack(self.layout, state))
        return np.asarray((1 - self.floor) * share + self.floor / len(share))

    def spread(self, state: Vector) -> NoReturn:
        fail("Stream.interval", "method", "know its own uncertainty", repr(self.name), remedy="Use 'online-ebls'")

    def valid(self, states: Vector) -> bool:
        part = unpack(self.layout, states)
        negative = any((part[name] < 0).any() for name in ("weight", "count") if name in part)
        far = "bias" in part and (np.linalg.norm(part["bias"], axis=-1) > 1.000001 * getattr(self, "diameter", 0)).any()
        if negative or far or (np.abs(states) > 1e100).any():
            return False
        priors = np.stack([self.prior(state) for state in states]) if len(states) else self.source.prior
        return simplex(priors) and bool((priors > 0).all())


def to_simplex(x: Vector) -> Vector:
    """Return `x` (K,) with negative shares cut off and the rest scaled to sum to one."""
    positive = np.maximum(x, 0.0)
    return np.asarray(positive / positive.sum())


def nearest_on_simplex(x: Vector) -> Vector:
    """Return the point of the simplex nearest to `x` (K,) in Euclidean distance."""
    x = x - x.max()  # a shift of all of x changes nothing, and large numbers would swallow the 1
    down = np.sort(x)[::-1]
    excess = (np.cumsum(down) - 1.0) / np.arange(1, len(x) + 1)
    return np.asarray(np.maximum(x - excess[np.flatnonzero(down > excess)[-1]], 0.0))


def blank(*shape: int) -> Vector:
    """Return zeros that take no memory: they only give a part its shape."""
    return np.broadcast_to(0.0, shape)


@dataclass(frozen=True)
class Fth(Published):
    """Follow the history [wu2021]: the mean of all estimates so far.

    Published one sample at a time, by hard predictions. `clip=True` cuts each estimate to the simplex before it enters
    the mean, as [baby2023] ran it, with `batch=10, hard=False`.
    """

    name: ClassVar[str] = "fth"
    batch: int = 1
    clip: bool = False

    def parts(self) -> Parts:
        return {"total": blank(len(self.source.prior))}

    def share(self, part: Parts) -> Vector:
        return to_simplex(part["total"]) if part["total"].any() else self.source.prior

    def update(self, part: Parts, estimate: Vector) -> None:
        part["total"] += to_simplex(estimate) if self.clip else estimate


@dataclass(frozen=True)
class Ftfwh(Fth):
    """Follow the fixed-window history [wu2021]: the mean of the estimates of the last `window` samples.

    Published with windows of 100, 1,000 and 10,000 samples; [baby2023] took 100 batches of 10, with `clip=True`.
    """

    name: ClassVar[str] = "ftfwh"
    window: int = 1000

    def parts(self) -> Parts:
        k = len(self.source.prior)
        return {"total": blank(k), "ring": blank(self.window // self.batch, k)}

    def update(self, part: Parts, estimate: Vector) -> None:
        ring, total = part["ring"], part["total"]
        slot = (int(part["n"]) // self.batch - 1) % len(ring)
        total -= ring[slot]
        ring[slot] = to_simplex(estimate) if self.clip else estimate
        total += ring[slot]
        if slot == len(ring) - 1:
            total[:] = ring.sum(axis=0)  # so that rounding does not add up


@dataclass(frozen=True)
class FlhFtl(Published):
    """Follow the leading history of followers of the leader [baby2023].

    One expert starts at each estimate and follows their mean since then; experts lose weight by their squared error,
    at rate `rate` ("auto" = 1/K as published), and the prior is their weighted mean.
    """

    # Differs from baby2023: at most `experts` are kept, so that the state is bounded; the lightest gives way. The
    # published runs have 1000 estimates, so they are the same.

    name: ClassVar[str] = "flh-ftl"
    hard: bool = False
    rate: float | str = "auto"
    experts: int = 1000

    def parts(self) -> Parts:
        m = self.experts
        return {"weight": blank(m), "count": blank(m), "mean": blank(m, len(self.source.prior))}

    def share(self, part: Parts) -> Vector:
        if not part["weight"].any():
            return np.asarray(self.source.prior)
        live = np.count_nonzero(part["count"])
        mixed = part["weight"][:live] @ part["mean"][:live]
        return np.asarray(mixed / mixed.sum())

    def update(self, part: Parts, estimate: Vector) -> None:
        weight, count, mean = part["weight"], part["count"], part["mean"]
        estimate, estimates = to_simplex(estimate), int(part["n"]) // self.batch
        rate = 1.0 / len(estimate) if self.rate == "auto" else float(self.rate)
        live = min(estimates - 1, self.experts)
        error = ((mean[:live] - estimate) ** 2).sum(axis=1)
        weight[:live] *= np.exp(-rate * error)
        weight[:live] *= (1 - 1 / estimates) / (weight[:live].sum() or 1.0)
        slot = live if live < self.experts else int(weight.argmin())
        weight[slot], count[slot], mean[slot] = 1 / estimates, 0.0, 0.0
        live = min(estimates, self.experts)
        count[:live] += 1.0
        mean[:live] += (estimate - mean[:live]) / count[:live, None]


def error_gradient(held: HeldOut, source_prior: Vector, prior: Vector, share: Vector) -> Vector:
    """Return the gradient (K,) at `prior` of Σ_k share_k · (error of class k after reweighting)."""
    scale = np.maximum(held.rows @ (prior / source_prior), 1e-12)
    own = share[held.y] * held.share * held.own / source_prior[held.y] / scale
    pull = held.rows.T @ (own * prior[held.y] / scale) / source_prior
    return np.asarray(pull - np.bincount(held.y, own, len(prior)))


@dataclass(frozen=True)
class Rogd(Published):
    """Online gradient descent on the prior that reweights the outputs [wu2021].

    Each estimate takes a step against the gradient of the (smoothed) error rate that the reweighted classifier would
    have on the held-out rows under it. `rate` "auto" is √(2/T)/G as published, T = `horizon` estimates, G the largest
    gradient.
    """

    # Differs from wu2021: G is sought over random priors and not at the corners of the simplex, where it is so large
    # that nothing moves.

    name: ClassVar[str] = "rogd"
    needs: ClassVar[tuple[str, ...]] = ROWS
    batch: int = 1
    rate: float | str = "auto"
    horizon: int = 1000

    def parts(self) -> Parts:
        return {"point": self.source.prior}

    def share(self, part: Parts) -> Vector:
        return part["point"]

    @cached_property
    def step(self) -> float:
        if self.rate != "auto":
            return float(self.rate)
        k, largest = len(self.source.prior), 0.0
        for prior in np.random.default_rng(0).dirichlet(np.ones(k), 10):
            by_class = [error_gradient(self.held_out, self.source.prior, prior, one) for one in np.eye(k)]
            largest = max(largest, float(np.linalg.norm(np.stack(by_class, axis=1) @ self.inverse, axis=0).max()))
        return math.sqrt(2 / self.horizon) / largest

    def update(self, part: Parts, estimate: Vector) -> None:
        gradient = error_gradient(self.held_out, self.source.prior, part["point"], estimate)
        part["point"][:] = nearest_on_simplex(part["point"] - self.step * gradient)


def risk_and_gradient(held: HeldOut, bias: Vector, share: Vector) -> tuple[float, Vector]:
    """Return the held-out log loss of softmax(log p + bias) under class shares, and its gradient (K,) in `bias`."""
    each = share[held.y] * held.share
    factors = np.exp(bias - bias.max())
    scale = np.maximum(held.rows @ factors, 1e-300)
    risk = each @ np.log(scale / (np.maximum(held.own, 1e-12) * factors[held.y]))
    return float(risk), factors * (held.rows.T @ (each / scale)) - np.bincount(held.y, each, len(share))


@dataclass(frozen=True)
class Atlas(Published):
    """A pool of UOGD learners with step sizes a factor of two apart, combined by their risk so far [bai2022].

    The same restatement on outputs alone as `Uogd`. Steps run from D/(G√T) to D/G; the learners' biases are averaged
    with weights ∝ exp(−2√(ln N / T) · risk).
    """

    name: ClassVar[str] = "atlas"
    needs: ClassVar[tuple[str, ...]] = ROWS
    diameter: float = 10.0
    horizon: int = 1000

    @cached_property
    def steps(self) -> Vector:
        n = 1 + math.ceil(math.log2(1 + 2 * self.horizon) / 2)
        return np.asarray(self.diameter / math.sqrt(self.horizon) * 2.0 ** np.arange(n))

    def parts(self) -> Parts:
        m = len(self.steps)
        return {"risk": blank(m), "bias": blank(m, len(self.source.prior))}

    def share(self, part: Parts) -> Vector:
        """Return the prior (K,) under which the mean bias is the right thing to add to the log outputs."""
        rate = 2 * math.sqrt(math.log(len(self.steps)) / self.horizon)
        weight = np.exp(-rate * (part["risk"] - part["risk"].min()))
        bias = weight @ part["bias"] / weight.sum()
        prior = self.source.prior * np.exp(bias - bias.max())
        return np.asarray(prior / prior.sum())

    def update(self, part: Parts, estimate: Vector) -> None:
        """Move each of the biases by a gradient step of its own size within the ball, and add up their risks."""
        for i, bias in enumerate(part["bias"]):
            risk, gradient = risk_and_gradient(self.held_out, bias, estimate)
            bias -= self.steps[i] * gradient
            bias *= min(1.0, self.diameter / max(float(np.linalg.norm(bias)), 1e-300))
            part["risk"][i] += risk


@dataclass(frozen=True)
class Uogd(Atlas):
    """Online gradient descent on the unbiased risk estimate [bai2022], stated on outputs alone.

    Published for the weights of a network's last layer. With outputs alone there is one bias for each class to learn,
    added to the log output; the prior is the one under which those biases are right. The held-out log loss, weighted
    by each estimate, gives the step, of size D/(G√T): D = `diameter` and G = 1 as published, T = `horizon` estimates.
    """

    name: ClassVar[str] = "uogd"

    @cached_property
    def steps(self) -> Vector:
        return np.array([self.diameter / math.sqrt(self.horizon)])


PEERS: dict[str, type[StreamMethod]] = {peer.name: peer for peer in (Fth, Ftfwh, FlhFtl, Rogd, Uogd, Atlas)}
