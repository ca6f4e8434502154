"""NumPy kernels: the specification of every kernel. They trust their input; callers have checked it."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def e_step(block: Array, weights: Array) -> tuple[Array, Array]:
    """Return expected class counts (K,) of a block (n, K) and the row normalisers s = P w (n,): eq. 8 and its sum."""
    scale = block @ weights
    return weights * (block.T @ (1.0 / scale)), scale


def e_step_squares(block: Array, weights: Array) -> tuple[Array, Array, Array]:
    """As `e_step`, with the sums of squared responsibilities (K,) in between."""
    scale = block @ weights
    inverse = 1.0 / scale
    counts = weights * (block.T @ inverse)
    squares = weights**2 * ((block * block).T @ (inverse * inverse))
    return counts, squares, scale
