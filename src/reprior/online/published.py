"""The published online methods, on the same interface, for comparison and use.

All of them rest on black-box estimates [lipton2018]: the mean output of `batch` samples, multiplied by the inverse of
the held-out confusion matrix. As in all streams, the prior they give before a sample has not seen it. What they share
beyond the papers: an estimate with negative shares is cut to the simplex where a prior is asked for, a thousandth of
the mass (`floor`) is spread evenly so that no class is ruled out for good, and a late label replaces that sample's
output in the next estimate. None of them has intervals. So a method is little more than a function that changes the
parts of a state by one estimate.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field, fields, make_dataclass
from functools import cached_property
from typing import Any, NamedTuple, NoReturn

import numpy as np

from reprior._check import UNLABELLED, check_flag, check_number, fail
from reprior._types import Labels, Matrix, Source, Vector
from reprior.online.method import Kernel, Layout, StreamMethod, refuse, simplex, unpack

MATRICES = ("prior", "classes", "counts", "confusion", "hard_confusion")
ROWS = (*MATRICES, "heldout")
Parts = dict[str, Vector]


class BlackBox(NamedTuple):
    """How outputs become estimates: `forward` (K, K) is the mean output of each class, `inverse` takes it back."""

    forward: Matrix
    inverse: Matrix


def black_box(method: Any) -> BlackBox:
    """Return the black-box estimator of a method's source and options, or say what it lacks."""
    source = method.source
    matrix = source.hard_confusion if method.hard else source.confusion
    if matrix is None or source.counts is None or ("heldout" in method.needs and source.heldout is None):
        fail(method.name, "source", "have held-out samples with labels", "a prior alone", remedy=UNLABELLED)
    present = source.counts > 0  # a class with no held-out row is taken to be predicted without error
    forward = np.where(present, matrix / np.where(present, matrix.sum(axis=0), 1.0), np.eye(len(matrix)))
    ridge = 1e-8 * np.eye(len(forward))  # as published: solvable even where two classes are never told apart
    return BlackBox(forward, np.linalg.solve(forward.T @ forward + ridge, forward.T))


class HeldOut(NamedTuple):
    """Held-out outputs (n, K), labels (n,), the output for the label (n,), and the row's share of its class (n,)."""

    rows: Matrix
    y: Labels
    own: Vector
    share: Vector


def held_out(method: Any) -> HeldOut:
    """Return the held-out rows of a method's source, with what its gradients need of them."""
    rows, y = np.asarray(method.source.heldout[0], np.float64), method.source.heldout[1]
    return HeldOut(rows, y, rows[np.arange(len(y)), y], 1.0 / np.bincount(y)[y])


def check_options(method: Any) -> None:
    """Refuse options out of range, and a source that lacks what the method needs."""
    for option in sorted(f.name for f in fields(method)):  # `batch` before `window`
        value = getattr(method, option)
        if option in ("hard", "clip"):
            check_flag(value, method.name, option)
        elif option in ("batch", "experts", "horizon", "window"):
            low = {"experts": 2, "window": method.batch}.get(option, 1)
            whole = check_number(value, method.name, option, low=low, high=1e9, whole=True)
            object.__setattr__(method, option, int(whole))
        elif option in ("diameter", "floor") or (option == "rate" and value != "auto"):
            high = {"floor": 1, "diameter": 400, "rate": 1e9}[option]  # exp(-√2·400) is still a number
            check_number(value, method.name, option, low=0, high=high, open_low=True)
    black_box(method)


def layout(method: Any) -> Layout:
    own = {name: part.shape for name, part in method.parts().items()}
    return {"n": (), "pending": method.source.prior.shape, **own}


def init(method: Any) -> Vector:
    return np.concatenate([np.zeros(1 + len(method.source.prior)), *map(np.ravel, method.parts().values())])


def output(method: Any, row: Vector) -> Vector:
    return np.eye(1, len(row), int(row.argmax()))[0] if method.hard else row


def learn(method: Any, state: Vector, rows: Matrix) -> None:
    """Add up outputs, and update by their estimate, whose shares may be negative, whenever a batch is full."""
    part = unpack(method.layout, state)
    n, pending = part["n"], part["pending"]
    for row in rows:
        pending += output(method, row)
        n += 1.0
        if n % method.batch == 0:
            estimate = method.box.inverse @ (pending / method.batch)
            pending[:] = 0.0
            method.update(part, estimate)


def observe(method: Any, state: Vector, row: Vector, y: int) -> None:
    """Let the mean output of class `y` take the place of the sample's own in the next estimate."""
    pending = unpack(method.layout, state)["pending"]
    pending += method.box.forward[:, y] - output(method, row)


def prior(method: Any, state: Vector) -> Vector:
    share = method.share(unpack(method.layout, state))
    return np.asarray((1 - method.floor) * share + method.floor / len(share))


def variance(method: Any, state: Vector) -> NoReturn:
    fail("Stream.interval", "method", "know its own uncertainty", repr(method.name), remedy="Use 'online-ebls'")


def valid(method: Any, states: Vector) -> bool:
    part = unpack(method.layout, states)
    if (np.abs(states) > 1e100).any() or any((part[name] < 0).any() for name in ("weight", "count") if name in part):
        return False
    if "bias" in part and (np.linalg.norm(part["bias"], axis=-1) > 1.000001 * method.diameter).any():
        return False
    priors = np.stack([method.prior(state) for state in states]) if len(states) else method.source.prior
    return simplex(priors) and bool((priors > 0).all())


def no_kernel(method: Any, table: Matrix) -> Kernel:
    return refuse


def published(
    name: str, *, parts: Callable[[Any], Parts], share: Callable[[Any, Parts], Vector],
    steps: Callable[[Any], Any] | None = None, needs: tuple[str, ...] = MATRICES, **options: Any,
) -> Callable[[Callable[[Any, Parts, Vector], None]], type[StreamMethod]]:  # fmt: skip
    """Make a function that changes the parts of a state by one estimate into an online method with its `options`.

    `parts(method)` are those of the state before the first sample, beside `n` and the outputs that await the next
    estimate; `share(method, parts)` is the prior (K,) they stand for; `steps(method)` are sizes worked out once.
    """

    def method_of(update: Callable[[Any, Parts, Vector], None]) -> type[StreamMethod]:
        namespace = {
            "name": name, "needs": needs, "parts": parts, "share": share, "update": update,
            "init": init, "learn": learn, "observe": observe, "prior": prior, "valid": valid,
            "variance": variance,
            "bind": no_kernel, "bind_top": no_kernel,
            "layout": cached_property(layout), "box": cached_property(black_box),
            "steps": cached_property(steps) if steps else None,
            "held_out": cached_property(held_out), "__post_init__": check_options, "__doc__": update.__doc__,
            "__module__": __name__,
        }  # fmt: skip
        source = ("source", Source, field(repr=False))
        defaults = [(option, Any, field(default=value)) for option, value in {**options, "floor": 1e-3}.items()]
        return make_dataclass(update.__name__, [source, *defaults], namespace=namespace, frozen=True)

    return method_of


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


def mean_so_far(method: Any, part: Parts) -> Vector:
    return to_simplex(part["total"]) if part["total"].any() else method.source.prior


@published("fth", parts=lambda method: {"total": np.zeros_like(method.source.prior)}, share=mean_so_far,
           batch=1, hard=True, clip=False)  # fmt: skip
def Fth(method: Any, part: Parts, estimate: Vector) -> None:
    """Follow the history [wu2021]: the mean of all estimates so far.

    Published one sample at a time, by hard predictions. `clip=True` cuts each estimate to the simplex before it enters
    the mean, as [baby2023] ran it, with `batch=10, hard=False`.
    """
    part["total"] += to_simplex(estimate) if method.clip else estimate


def blank(*shape: int) -> Vector:
    """Return zeros that take no memory, so that a layout can be known before a state of its size is made."""
    return np.broadcast_to(0.0, shape)


def window_parts(method: Any) -> Parts:
    k = len(method.source.prior)
    return {"total": blank(k), "ring": blank(method.window // method.batch, k)}


@published("ftfwh", parts=window_parts, share=mean_so_far, window=1000, batch=1, hard=True, clip=False)
def Ftfwh(method: Any, part: Parts, estimate: Vector) -> None:
    """Follow the fixed-window history [wu2021]: the mean of the estimates of the last `window` samples.

    Published with windows of 100, 1,000 and 10,000 samples; [baby2023] took 100 batches of 10, with `clip=True`.
    """
    ring, total = part["ring"], part["total"]
    slot = (int(part["n"]) // method.batch - 1) % len(ring)
    total -= ring[slot]
    ring[slot] = to_simplex(estimate) if method.clip else estimate
    total += ring[slot]
    if slot == len(ring) - 1:
        total[:] = ring.sum(axis=0)  # so that rounding does not add up


def expert_parts(method: Any) -> Parts:
    m = method.experts
    return {"weight": blank(m), "count": blank(m), "mean": blank(m, len(method.source.prior))}


def mean_of_experts(method: Any, part: Parts) -> Vector:
    if not part["weight"].any():
        return np.asarray(method.source.prior)
    live = np.count_nonzero(part["count"])
    mixed = part["weight"][:live] @ part["mean"][:live]
    return np.asarray(mixed / mixed.sum())


@published("flh-ftl", parts=expert_parts, share=mean_of_experts, rate="auto", experts=1000, batch=10, hard=False)
def FlhFtl(method: Any, part: Parts, estimate: Vector) -> None:
    """Follow the leading history of followers of the leader [baby2023].

    One expert starts at each estimate and follows their mean since then; experts lose weight by their squared error,
    at rate `rate` ("auto" = 1/K as published), and the prior is their weighted mean.
    """
    # Differs from baby2023: at most `experts` are kept, so that the state is bounded; the lightest gives way. The
    # published runs have 1000 estimates, so they are the same.
    weight, count, mean = part["weight"], part["count"], part["mean"]
    estimate, estimates = to_simplex(estimate), int(part["n"]) // method.batch
    rate = 1.0 / len(estimate) if method.rate == "auto" else method.rate
    live = min(estimates - 1, method.experts)
    error = ((mean[:live] - estimate) ** 2).sum(axis=1)
    weight[:live] *= np.exp(-rate * error)
    weight[:live] *= (1 - 1 / estimates) / (weight[:live].sum() or 1.0)
    slot = live if live < method.experts else int(weight.argmin())
    weight[slot], count[slot], mean[slot] = 1 / estimates, 0.0, 0.0
    live = min(estimates, method.experts)
    count[:live] += 1.0
    mean[:live] += (estimate - mean[:live]) / count[:live, None]


def error_gradient(held: HeldOut, source_prior: Vector, prior: Vector, share: Vector) -> Vector:
    """Return the gradient (K,) at `prior` of Σ_k share_k · (error of class k after reweighting)."""
    scale = np.maximum(held.rows @ (prior / source_prior), 1e-12)
    own = share[held.y] * held.share * held.own / source_prior[held.y] / scale
    pull = held.rows.T @ (own * prior[held.y] / scale) / source_prior
    return np.asarray(pull - np.bincount(held.y, own, len(prior)))


def error_step(method: Any) -> float:
    if method.rate != "auto":
        return float(method.rate)
    k, largest = len(method.source.prior), 0.0
    for prior in np.random.default_rng(0).dirichlet(np.ones(k), 10):
        by_class = [error_gradient(method.held_out, method.source.prior, prior, one) for one in np.eye(k)]
        largest = max(largest, float(np.linalg.norm(np.stack(by_class, axis=1) @ method.box.inverse, axis=0).max()))
    return math.sqrt(2 / method.horizon) / largest


@published("rogd", parts=lambda method: {"point": method.source.prior}, share=lambda _, part: part["point"],
           steps=error_step, needs=ROWS, rate="auto", horizon=1000, batch=1, hard=True)  # fmt: skip
def Rogd(method: Any, part: Parts, estimate: Vector) -> None:
    """Online gradient descent on the prior that reweights the outputs [wu2021].

    Each estimate takes a step against the gradient of the (smoothed) error rate that the reweighted classifier would
    have on the held-out rows under it. `rate` "auto" is √(2/T)/G as published, T = `horizon` estimates, G the largest
    gradient.
    """
    # Differs from wu2021: G is sought over random priors and not at the corners of the simplex, where it is so large
    # that nothing moves.
    point = part["point"]
    gradient = error_gradient(method.held_out, method.source.prior, point, estimate)
    point[:] = nearest_on_simplex(point - method.steps * gradient)


def risk_and_gradient(held: HeldOut, bias: Vector, share: Vector) -> tuple[float, Vector]:
    """Return the held-out log loss of softmax(log p + bias) under class shares, and its gradient (K,) in `bias`."""
    each = share[held.y] * held.share
    factors = np.exp(bias - bias.max())
    scale = np.maximum(held.rows @ factors, 1e-300)
    risk = each @ np.log(scale / (np.maximum(held.own, 1e-12) * factors[held.y]))
    return float(risk), factors * (held.rows.T @ (each / scale)) - np.bincount(held.y, each, len(share))


def descend(method: Any, biases: Matrix, estimate: Vector) -> list[float]:
    """Move each of the biases (m, K) by a gradient step of its own size within the ball; return the risks they had."""
    risks = []
    for bias, size in zip(biases, method.steps, strict=True):
        risk, gradient = risk_and_gradient(method.held_out, bias, estimate)
        bias -= size * gradient
        bias *= min(1.0, method.diameter / max(float(np.linalg.norm(bias)), 1e-300))
        risks.append(risk)
    return risks


def biased(source: Source, bias: Vector) -> Vector:
    """Return the prior (K,) under which `bias` is the right thing to add to the log outputs."""
    prior = source.prior * np.exp(bias - bias.max())
    return np.asarray(prior / prior.sum())


@published("uogd", parts=lambda method: {"bias": np.zeros_like(method.source.prior)},
           share=lambda method, part: biased(method.source, part["bias"]),
           steps=lambda method: [method.diameter / math.sqrt(method.horizon)],
           needs=ROWS, diameter=10.0, horizon=1000, batch=10, hard=True)  # fmt: skip
def Uogd(method: Any, part: Parts, estimate: Vector) -> None:
    """Online gradient descent on the unbiased risk estimate [bai2022], stated on outputs alone.

    Published for the weights of a network's last layer. With outputs alone there is one bias for each class to learn,
    added to the log output; the prior is the one under which those biases are right. The held-out log loss, weighted
    by each estimate, gives the step, of size D/(G√T): D = `diameter` and G = 1 as published, T = `horizon` estimates.
    """
    descend(method, part["bias"][None], estimate)


def pool_steps(method: Any) -> Vector:
    n = 1 + math.ceil(math.log2(1 + 2 * method.horizon) / 2)
    return np.asarray(method.diameter / math.sqrt(method.horizon) * 2.0 ** np.arange(n))


def pool_parts(method: Any) -> Parts:
    m = len(method.steps)
    return {"risk": np.zeros(m), "bias": np.zeros((m, len(method.source.prior)))}


def mean_of_pool(method: Any, part: Parts) -> Vector:
    rate = 2 * math.sqrt(math.log(len(method.steps)) / method.horizon)
    weight = np.exp(-rate * (part["risk"] - part["risk"].min()))
    return biased(method.source, weight @ part["bias"] / weight.sum())


@published("atlas", parts=pool_parts, share=mean_of_pool, steps=pool_steps, needs=ROWS,
           diameter=10.0, horizon=1000, batch=10, hard=True)  # fmt: skip
def Atlas(method: Any, part: Parts, estimate: Vector) -> None:
    """A pool of UOGD learners with step sizes a factor of two apart, combined by their risk so far [bai2022].

    The same restatement on outputs alone as `Uogd`. Steps run from D/(G√T) to D/G; the learners' biases are averaged
    with weights ∝ exp(−2√(ln N / T) · risk).
    """
    part["risk"] += descend(method, part["bias"], estimate)


PEERS: dict[str, type[StreamMethod]] = {peer.name: peer for peer in (Fth, Ftfwh, FlhFtl, Rogd, Uogd, Atlas)}
