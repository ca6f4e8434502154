"""The compiled E-step against the NumPy one that specifies it, and both against the textbook formula."""

from __future__ import annotations

import numpy as np
import pytest

from reprior._kernels import reference

native = pytest.importorskip("reprior._kernels.native", reason="the native kernel was not built")


@pytest.mark.parametrize("k", [2, 3, 7, 8, 9, 10, 23, 100, 600])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 130])
def test_sums_and_likelihood(k: int, n: int) -> None:
    rng = np.random.default_rng(k * n)
    rows, w = rng.dirichlet(np.full(k, 0.5), n), rng.random(k) + 0.1
    sums = {loops: np.zeros((2, reference.width(k))) for loops in (native, reference)}
    values = [loops.e_step(rows, reference.padded(w)[0], sums[loops], 1) for loops in sums]
    resp = rows * w / (rows * w).sum(axis=1, keepdims=True)
    for result in sums.values():
        np.testing.assert_allclose(w * result[0, :k], resp.sum(axis=0), rtol=1e-12)
        np.testing.assert_allclose(w**2 * result[1, :k], (resp**2).sum(axis=0), rtol=1e-12)
    np.testing.assert_allclose(values, np.log(rows @ w).sum(), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("k", [2, 7, 8, 9, 100, 600])
@pytest.mark.parametrize("n", [1, 3, 4, 130])
def test_float32_rows_are_widened_exactly(k: int, n: int) -> None:
    rng = np.random.default_rng(k * n)
    rows, w = rng.dirichlet(np.full(k, 0.5), n).astype(np.float32), reference.padded(rng.random(k) + 0.1)[0]
    for loops in (native, reference):
        result, sums = [], [np.zeros((2, len(w))) for _ in range(2)]
        for array, out in zip((rows, rows.astype(np.float64)), sums, strict=True):
            result.append(loops.e_step(array, w, out, 1))
        assert result[0] == result[1]
        np.testing.assert_array_equal(sums[0][:, :k], sums[1][:, :k])


def test_far_likelihoods_do_not_overflow() -> None:
    rows = np.tile([1.0, 0.0], (1000, 1))
    for scale in (1e-200, 1e200):
        value = native.e_step(rows, reference.padded(np.array([scale, 1.0]))[0], np.zeros((1, 8)), 1)
        assert value == pytest.approx(1000 * np.log(scale))


def test_what_is_not_contiguous_is_left_to_the_reference() -> None:
    rows = np.asfortranarray(np.full((4, 3), 1 / 3))
    sums = np.zeros((1, 8))
    assert native.e_step(rows, reference.padded(np.ones(3))[0], sums, 0) == reference.REFUSED
    assert not sums.any()
