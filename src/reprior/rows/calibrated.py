"""Calibrated rows: a fitted calibrator, and target rows as it sees them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from reprior._check import check_logits, check_proba, fail
from reprior._kernels import loops, reference
from reprior._kernels.reference import width
from reprior._types import Comparable, Labels, Matrix, Vector
from reprior.rows.blocks import Blocks, View, block_slices, map_numbered
from reprior.rows.correction import correct_rows
from reprior.state import Saved, refuse, take

S = TypeVar("S")
SMALLEST_NORMAL = float(np.finfo(np.float64).tiny)
RIDGE = 10.0  # of biases whose strength is not learned: labelled rows of a class that its bias must outweigh
STIFF = 1e12  # the ridge of one without biases
# held-out rows below which no class has a bias: with 2 to 8 rows biases cost 0.3 to 1.2 points of accuracy and 0.01 to
# 0.05 of log-loss, shifted or not. With 12 and 16 rows they cost less, and where training weighed all classes alike and
# nothing has shifted they bring 0.8 to 9 points (benchmarks/results/constants_biases.md)
FEW_FOR_BIASES = 10


@dataclass(frozen=True, slots=True, eq=False)
class Calibrator(Comparable, Saved):
    """A fitted calibrator, softmax(scale·x + bias); call it on `proba` (n, K), or by name on `logits` (n, K).

    `scale` and `bias` are (K,). Probabilities below `floor` are raised to it. `n` samples were fitted, with the mean
    log-likelihood `log_likelihood` if they had labels. With `of_logits` it takes logits in place of probabilities.
    `ridge` is the penalty on its biases.
    """

    KIND = "calibrator"
    kind: str
    scale: Vector
    bias: Vector
    floor: float
    n: int
    log_likelihood: float | None
    of_logits: bool = False
    ridge: float = STIFF

    def __call__(self, proba: Any = None, *, logits: Any = None, caller: str = "Calibrator") -> Matrix:
        """Return calibrated probabilities (n, K), in the float type that came in; `caller` is who refuses bad ones."""
        if self.of_logits and logits is None:
            proba, logits = None, proba
        array = check_proba_or_logits(proba, logits, caller, len(self.scale))
        if self.kind == "none" and logits is None:
            return array
        out = np.empty(array.shape, array.dtype)
        for rows in block_slices(*array.shape):
            out[rows] = self.of_block(np.asarray(array[rows], np.float64), logits=logits is not None)
        return out

    def of_block(self, block: Matrix, *, logits: bool | None = None) -> Matrix:
        """Return rows (n, K), which the caller has checked, calibrated, as float64; other rows never change a row."""
        k, out = len(self.scale), np.empty(block.shape)
        parameters = np.zeros((3, width(k)))
        parameters[0, :k], parameters[1, :k], parameters[2, :k] = self.scale, 1.0, self.bias
        floor = 0.0 if (self.of_logits if logits is None else logits) else max(self.floor, SMALLEST_NORMAL)
        if loops.calibrate(parameters, k, np.ascontiguousarray(block), out, floor) == reference.REFUSED:
            reference.calibrate(parameters, k, block, out, floor)
        return out

    def reweighted(self, weights: Vector) -> Calibrator:
        """Return the calibrator that also multiplies probabilities by class weights (K,) (eq. 8), as biases do."""
        with np.errstate(divide="ignore"):  # a weight of 0 rules out its class
            return replace(self, kind="reweighted", bias=self.bias + np.log(weights))

    def undone(self, rows: Matrix) -> Matrix:
        """Return the probabilities (n, K) before calibration: softmax of (log p − bias − c)/scale, c a shift per row.

        The shift makes the logits of a row sum to 0, as `centred` does before calibration.
        """
        # sums over few classes are fast in this order
        logs, each = np.log(np.maximum(rows, SMALLEST_NORMAL, order="F")) - self.bias, 1 / self.scale
        logs -= (logs @ each / each.sum())[:, None]  # a softmax does not depend on the shift, but the scale acts on it
        logs *= each
        softmax(logs)
        return logs

    def left_out(self, rows: Matrix, y: Labels) -> Matrix:
        """Return calibrated held-out probabilities (n, K), each as if biases had been fitted without its row.

        Samples that the biases were fitted to look better than new ones, by half a point of accuracy or coverage with
        ten samples per class. One Newton step per sample undoes it: the biases move by (p − 1[y])/(Σ p(1 − p) + ridge).
        """
        rows = np.asarray(rows, np.float64)
        curve = (rows * (1 - rows)).sum(axis=0) + self.ridge
        moved = rows / curve
        moved[np.arange(len(y)), y] -= 1 / curve[y]
        out = rows * np.exp(moved)
        return np.asarray(out / out.sum(axis=1, keepdims=True))

    def fields(self, caller: str) -> dict[str, Any]:
        """Return what bytes hold of the calibrator."""
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_fields(cls, fields: dict[str, Any], caller: str) -> Calibrator:
        """Return the calibrator whose `fields` bytes held; invalid numbers are refused."""
        scale = take(fields, "scale", np.ndarray, caller, (None,)).astype(np.float64)
        bias = take(fields, "bias", np.ndarray, caller, scale.shape).astype(np.float64)
        kind, n = take(fields, "kind", str, caller), take(fields, "n", int, caller)
        floor = float(take(fields, "floor", (int, float), caller))
        score = take(fields, "log_likelihood", (int, float, type(None)), caller)
        ridge = float(take(fields, "ridge", (int, float), caller))
        sound = len(scale) >= 2 and n >= 0 and 0 <= floor < 1 and 0 <= ridge <= STIFF
        if not sound or np.abs(scale).max() > 1e6 or np.abs(bias).max() > 1e6:
            refuse(caller, "data", "invalid numbers")
        return cls(kind, scale, bias, floor, n, score, take(fields, "of_logits", bool, caller), ridge)


def corrected_rows(rows: Matrix, calibrator: Calibrator | None, weights: Vector | Matrix, first: int = 0) -> Matrix:
    """Return rows (n, K) calibrated and corrected by `weights`, (K,) or (n, K), in the float type that came in."""
    return correct_rows(rows if calibrator is None else calibrator(rows), weights, first).astype(rows.dtype, copy=False)


def calibration_of(calibrator: Calibrator | None) -> str:
    """Return what to call a calibration: its kind, or "none"."""
    return "none" if calibrator is None else calibrator.kind


def plain_softmax(n_classes: int) -> Calibrator:
    """Return a calibrator that turns logits into probabilities and changes nothing else."""
    return Calibrator("none", np.ones(n_classes), np.zeros(n_classes), SMALLEST_NORMAL, 0, None, of_logits=True)


@dataclass(frozen=True, slots=True)
class CalibratedBlocks(View):
    """Rows as a calibrator sees them, block by block; rows that can be changed once for all passes are."""

    raw: Blocks
    calibrator: Callable[[Matrix], Matrix]

    @property
    def n(self) -> int | None:
        """The number of rows, if it is known before they are read."""
        return getattr(self.raw, "n", None)

    def map_numbered(self, fn: Callable[[int, Matrix], S]) -> S:
        if (having := getattr(self.raw, "having", None)) is not None:  # rows that keep what a calibrator made of them
            return map_numbered(having(self.calibrator), fn)
        return map_numbered(self.raw, lambda at, block: fn(at, self.calibrator(np.asarray(block, np.float64))))


def check_proba_or_logits(proba: Any, logits: Any, caller: str, n_classes: int | None = None) -> Matrix:
    """Return the one of `proba` and `logits` that was given, checked."""
    if (proba is None) == (logits is None):
        passed = "neither" if logits is None else "both"
        fail(caller, "proba", "be given, or `logits` by name, and not both", passed)
    return check_logits(logits, caller, n_classes) if proba is None else check_proba(proba, caller, "proba", n_classes)


def centred(block: Matrix, floor: float | None) -> Matrix:
    """Return log-probabilities, or logits if there is no `floor`, less their row mean: float64, a new array."""
    x = np.array(block, np.float64, order="C")  # a row is added up along memory, whatever other rows there are
    if floor is not None:  # one fitted to logits has none of its own
        np.log(np.maximum(x, max(floor, SMALLEST_NORMAL), out=x), out=x)
    x -= x.mean(axis=1, keepdims=True)
    return x


def softmax(rows: Matrix) -> Vector:
    """Turn logits (n, K) into their softmax, in place; return the logarithm of what their exponentials sum to (n,)."""
    top = rows.max(axis=1)
    rows -= top[:, None]
    np.exp(rows, out=rows)
    total = rows.sum(axis=1)  # not by BLAS, whose rounding depends on the number of rows
    rows /= total[:, None]
    return np.asarray(top + np.log(total))
