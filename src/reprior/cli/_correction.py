"""Rows corrected as fast as this machine can."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from reprior._kernels import NATIVE, loops
from reprior._kernels.reference import DONE, padded
from reprior._types import Matrix, Vector
from reprior.rows.correction import correct


def correction(weights: Vector, calibrator: Callable[[Matrix], Matrix] | None = None) -> Callable[[Matrix], Matrix]:
    """Return what calibrates rows (n, K), if asked to, and corrects them: compiled where that was built."""
    known = padded(weights)

    def fn(rows: Matrix) -> Matrix:
        if calibrator is not None:
            rows = calibrator(rows)
        out = np.empty(rows.shape, rows.dtype)
        if NATIVE and loops.correct(known, len(weights), rows, out, 2) == DONE:
            return out
        return np.ascontiguousarray(correct(rows, weights))

    return fn
