"""Streams: friendly objects that own a state and let an online method change it in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from reprior._check import as_array, check_choice, check_number, check_pair, check_proba, check_row, check_source, fail
from reprior._kernels import NATIVE, loops
from reprior._kernels.reference import DONE, padded
from reprior._types import Interval, Labels, Matrix, Source, Vector
from reprior.online.ebls import OnlineEbls
from reprior.online.fmapls import OnlineFmapls
from reprior.online.method import StreamMethod, StreamState, learned, refuse, state_size
from reprior.online.published import PEERS
from reprior.rows.blocks import ArrayBlocks, TopKBlocks, check_top_k
from reprior.rows.correction import correct
from reprior.state import decode, encode, write_atomically

ONLINE: dict[str, type[StreamMethod]] = {method.name: method for method in (OnlineFmapls, OnlineEbls)} | PEERS


def online_method(name: Any, source: Any, options: dict[str, Any], caller: str) -> StreamMethod:
    """Return the online method of that name with its options, or say which there are."""
    made = ONLINE[check_choice(name, caller, "method", tuple(ONLINE))]
    known = [field.name for field in fields(made) if field.name != "source"]  # type: ignore[arg-type]
    for option in options:
        check_choice(option, caller, "options", known)
    return made(check_source(source, caller), **options)  # type: ignore[call-arg]


def aligned(shape: tuple[int, ...]) -> Vector:
    """Return zeros that start at a cache line."""
    size = int(np.prod(shape))
    memory = np.zeros(size + 8)
    first = -memory.ctypes.data % 64 // 8
    return memory[first : first + size].reshape(shape)


def is_top_k(proba: Any) -> TypeGuard[tuple[Any, Any]]:
    """Tell a top-k pair (indices, values) from a tuple of two probabilities."""
    if not isinstance(proba, tuple) or len(proba) != 2:
        return False
    return bool(getattr(proba[0], "ndim", isinstance(proba[0], Sequence)))


def one_top_k(pair: Any, source: Source, caller: str) -> TopKBlocks:
    """Return one sample's top-k pair (indices (k,), values (k,)), checked, as a block of one row."""
    indices, values = (as_array(x, caller, name)[None] for x, name in zip(pair, ("indices", "values"), strict=True))
    return check_top_k(indices, values, caller, source.prior)


def checked(proba: Any, source: Source, caller: str) -> ArrayBlocks | TopKBlocks:
    """Return rows or top-k rows (indices, values) as blocks, all of them checked."""
    if is_top_k(proba):
        return check_top_k(*proba, caller, source.prior)
    return ArrayBlocks(check_proba(proba, caller, "proba", len(source.prior)))


def contiguous(blocks: TopKBlocks) -> tuple[Labels, Vector]:
    """Return top-k rows in the types that kernels take."""
    return np.ascontiguousarray(blocks.indices, np.int64), np.ascontiguousarray(blocks.values, np.float64)


def correct_listed(method: StreamMethod, prior: Vector, blocks: TopKBlocks) -> Matrix:
    """Return the corrected values (n, k) of top-k rows; what they leave is the corrected mass of all other classes."""
    listed, p = blocks.indices, np.asarray(blocks.values, np.float64)
    source = method.source.prior
    joint = p * (prior / source)[listed]
    share = np.maximum(1.0 - p.sum(axis=1), 0.0) / np.maximum(1.0 - source[listed].sum(axis=1), 1e-300)
    rest = share * np.maximum(1.0 - prior[listed].sum(axis=1), 0.0)
    return np.asarray(joint / (joint.sum(axis=1) + rest)[:, None])


def described(method: StreamMethod) -> dict[str, Any]:
    """Return what bytes must say of a method: its name, options, layout, and what it needs of the source."""
    options = {f.name: getattr(method, f.name) for f in fields(method) if f.name != "source"}  # type: ignore[arg-type]
    about: dict[str, Any] = {"method": method.name, "options": options, "made": method.source.made,
                             "layout": [[name, list(shape)] for name, shape in method.layout.items()]}  # fmt: skip
    known = {need: getattr(method.source, need) for need in method.needs}
    known["proba"], known["y"] = known.pop("heldout", None) or (None, None)
    return about | {f"source_{name}": value for name, value in known.items() if value is not None}


def recovered(about: dict[str, Any], caller: str) -> StreamMethod:
    """Return the method that `described` put into bytes."""
    known = {name.removeprefix("source_"): value for name, value in about.items() if name.startswith("source_")}
    if "proba" in known:
        known["heldout"] = known.pop("proba"), known.pop("y")
    if "classes" in known:
        known["classes"] = tuple(known["classes"])
    method = online_method(about["method"], Source(**known, made=about["made"]), about["options"], caller)
    layout = {name: tuple(shape) for name, shape in about["layout"]}
    if method.layout != layout:
        fail(caller, "data", f"have the parts {method.layout}", layout, remedy="Another release of reprior wrote it")
    return method


class Stream:
    """One stream of a classifier's outputs: learn each sample, know the prior, correct the next one.

    `method` is a name of `ONLINE`, `source` class counts, a prior or a `Source`; options are the method's. Samples are
    learned one by one whoever calls: any cut into blocks gives the same state, bit for bit. A bad sample is refused
    and changes nothing. Wherever rows (n, K) are taken, top-k rows (indices (n, k), values (n, k)) are too; what a
    row does not list goes to its other classes in proportion to the source prior. One thread at a time per stream.

    >>> stream = Stream("online-ebls", [0.5, 0.5])
    >>> stream.learn_many([[0.9, 0.1], [0.8, 0.2], [0.9, 0.1]])
    >>> stream.n, bool(stream.prior[0] > 0.5)
    (3, True)
    """

    __slots__ = ("_kernel", "_top", "_values", "_weights", "method")

    def __init__(self, method: str, source: Any, /, **options: Any) -> None:
        self._own(online_method(method, source, options, "Stream"), None)

    def _own(self, method: StreamMethod, values: Vector | None) -> None:
        self.method = method
        self._values = aligned((state_size(method.layout),))
        self._values[:] = method.init() if values is None else values
        self._weights = padded(method.source.prior)  # room for the weights of a correction
        self._kernel, self._top = method.bind(self._values), method.bind_top(self._values)

    @classmethod
    def of(cls, state: StreamState) -> Stream:
        """Return a stream that goes on from a state, which stays as it is."""
        stream = cls.__new__(cls)
        stream._own(state.method, state.values)
        return stream

    @property
    def state(self) -> StreamState:
        """All there is to know of the stream, as a value."""
        return StreamState(self.method, self._values.copy())

    @property
    def source(self) -> Source:
        return self.method.source

    @property
    def n(self) -> int:
        """The samples learned."""
        return int(self._values[0])

    @property
    def prior(self) -> Vector:
        """The estimated target prior (K,)."""
        return self.method.prior(self._values)

    @property
    def weights(self) -> Vector:
        """Estimated prior over source prior (K,)."""
        return np.asarray(self.prior / self.source.prior)

    def learn_one(self, p: Any) -> None:
        """Learn one sample's probabilities (K,), or its top-k pair (indices (k,), values (k,))."""
        if self._kernel(None, p, 1) != DONE:
            if is_top_k(p):
                if not NATIVE or self._top(None, *p, 1) != DONE:
                    self._learn(one_top_k(p, self.source, "Stream.learn_one"))
            else:
                self.method.learn(self._values, check_row(p, "Stream.learn_one", "p", len(self.source.prior))[None])

    def learn_many(self, proba: Any) -> None:
        """Learn rows (n, K), or top-k rows (indices, values), in order."""
        if is_top_k(proba):
            if NATIVE and self._top(None, *proba, 2) == DONE:
                return
        elif self._kernel(None, proba, 2) == DONE:
            return
        self._learn(checked(proba, self.source, "Stream.learn_many"))

    def _learn(self, blocks: ArrayBlocks | TopKBlocks) -> None:
        if isinstance(blocks, TopKBlocks) and self._top is not refuse:
            learned(self._top(None, *contiguous(blocks), 2))
        else:
            for block in blocks:
                self.method.learn(self._values, block)

    def correct_one(self, p: Any) -> Vector:
        """Return one sample's probabilities (K,) under the estimated prior; nothing is learned."""
        if is_top_k(p):
            row = one_top_k(p, self.source, "Stream.correct_one")
            return np.asarray(correct_listed(self.method, self.prior, row)[0])
        k = len(self.source.prior)
        out, known = np.empty(k), self._padded_weights()
        if not NATIVE or loops.correct(known, k, p, out, 1) != DONE:
            learned(loops.correct(known, k, check_row(p, "Stream.correct_one", "p", k), out, 1))
        return out

    def _padded_weights(self) -> Vector:
        source = self.source.prior
        np.divide(self.prior, source, out=self._weights[0, : len(source)])
        return self._weights

    def correct_many(self, proba: Any) -> Matrix:
        """Return rows (n, K) under the estimated prior, in the type they came in; of top-k rows the listed values."""
        k = len(self.source.prior)
        if NATIVE and isinstance(proba, np.ndarray):
            out = np.empty(proba.shape, proba.dtype)
            if loops.correct(self._padded_weights(), k, proba, out, 2) == DONE:
                return out
        blocks = checked(proba, self.source, "Stream.correct_many")
        if isinstance(blocks, TopKBlocks):
            return correct_listed(self.method, self.prior, blocks)
        return correct(blocks.array, self.weights)

    def observe(self, p: Any, y: int) -> None:
        """Take in the label `y` of a sample `p` (K,) that was learned before, however late it comes."""
        self.method.observe(self._values, *check_pair(p, y, "Stream.observe", len(self.source.prior)))

    def interval(self, level: float = 0.95) -> Interval:
        """Return ends (K,), (K,) for each class's share: quantiles of a Beta with the estimate's mean and variance."""
        from scipy.special import betaincinv, ndtri

        inside = check_number(level, "Stream.interval", "level", low=0, high=1, open_low=True)
        mean = np.clip(self.prior, 1e-12, 1.0 - 1e-12)
        variance, note = self.method.variance(self._values)
        count = np.maximum(mean * (1.0 - mean) / np.maximum(variance, 1e-300) - 1.0, 1e-3)
        tails = (1.0 - inside) / 2, (1.0 + inside) / 2
        lower, upper = (betaincinv(mean * count, (1.0 - mean) * count, tail) for tail in tails)
        # a Beta never reaches 0, but a class of so few counts may well be absent
        lower = np.where(mean * count < ndtri(tails[1]) ** 2, 0.0, lower)
        return Interval(np.minimum(lower, mean), np.maximum(upper, mean), level=inside, note=note)

    def to_bytes(self) -> bytes:
        """Return the whole stream, with its method, options and source, as bytes for `from_bytes`."""
        return encode("stream", {**described(self.method), "n": self.n, "values": self._values})

    @classmethod
    def from_bytes(cls, data: Any) -> Stream:
        """Return the stream that `to_bytes` wrote; damaged bytes, of another kind or too new, are refused."""
        about = decode(data, "stream", "Stream.from_bytes")
        return cls.of(StreamState(recovered(about, "Stream.from_bytes"), about["values"]))

    def save(self, path: str | Path) -> None:
        """Write the stream to a file so that a crash at any moment leaves the old or the new state, whole."""
        write_atomically(path, self.to_bytes())

    @classmethod
    def load(cls, path: str | Path) -> Stream:
        """Return the stream that `save` wrote."""
        return cls.from_bytes(Path(path).read_bytes())

    def __copy__(self) -> Stream:
        return self.of(self.state)

    def __deepcopy__(self, memo: Any) -> Stream:
        return self.of(self.state)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).from_bytes, (self.to_bytes(),)

    def __repr__(self) -> str:
        return f"Stream({self.method!r}, n={self.n})"
