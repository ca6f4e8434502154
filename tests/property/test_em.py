"""What must hold for any outputs, found by hypothesis."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import reprior as rp
from reprior.batch.solve import evaluate, maximize
from reprior.rows.blocks import ArrayBlocks
from reprior.rows.passes import e_step

EM = ["mlls", "mapls", "fmapls", "ebls"]


@st.composite
def outputs(draw: st.DrawFn, *, max_rows: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """A source prior and rows of probabilities, exact zeros and ones included."""
    k = draw(st.integers(2, 6))
    n = draw(st.integers(1, max_rows))
    cells = arrays(np.float64, (n, k), elements=st.one_of(st.just(0.0), st.floats(1e-6, 1.0)))
    raw = draw(cells)
    raw[np.arange(n), draw(arrays(np.intp, n, elements=st.integers(0, k - 1)))] += 0.05
    source = draw(arrays(np.float64, k, elements=st.floats(0.02, 1.0)))
    return source / source.sum(), raw / raw.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("method", EM)
@given(data=outputs())
def test_the_estimate_is_on_the_simplex(method: str, data: tuple[np.ndarray, np.ndarray]) -> None:
    source, proba = data
    est = rp.estimate(source, proba, method=method)
    assert np.isfinite(est.prior).all()
    assert est.prior.min() >= 0
    assert est.prior.sum() == pytest.approx(1)


@pytest.mark.parametrize("method", EM)
@given(data=outputs(), seed=st.integers(0, 99))
def test_class_order_does_not_matter(method: str, data: tuple[np.ndarray, np.ndarray], seed: int) -> None:
    source, proba = data
    order = np.random.default_rng(seed).permutation(len(source))
    # the optimum of a few rows need not be unique, so maximum likelihood is compared along EM's path
    options = {"n_iter": 20} if method == "mlls" else {}
    straight = rp.estimate(source, proba, method=method, **options).prior
    turned = rp.estimate(source[order], proba[:, order], method=method, **options).prior
    np.testing.assert_allclose(turned, straight[order], atol=1e-5)


@given(data=outputs(), copies=st.integers(2, 4))
def test_repeated_rows_leave_maximum_likelihood_alone(data: tuple[np.ndarray, np.ndarray], copies: int) -> None:
    source, proba = data
    once = rp.mlls(source, proba, n_iter=15).prior
    np.testing.assert_allclose(rp.mlls(source, np.tile(proba, (copies, 1)), n_iter=15).prior, once, atol=1e-10)


@given(data=outputs(), cuts=st.lists(st.integers(0, 40), max_size=4))
def test_any_split_gives_the_same_counts(data: tuple[np.ndarray, np.ndarray], cuts: list[int]) -> None:
    source, proba = data
    weights = 1 / source

    @dataclass
    class Parts:
        n_classes: int
        parts: list[np.ndarray]

        def map_sum(self, fn):
            return sum(ArrayBlocks(part).map_sum(fn) for part in self.parts)

    edges = sorted({0, len(proba), *(c for c in cuts if c < len(proba))})
    parts = [proba[a:b] for a, b in pairwise(edges)]
    whole, total = (e_step(Parts(len(source), rows), weights, likelihood=True) for rows in ([proba], parts))
    np.testing.assert_allclose(total.counts, whole.counts, atol=1e-12)
    assert total.log_likelihood == pytest.approx(whole.log_likelihood)
    assert total.n == whole.n == len(proba)
    assert whole.counts.sum() == pytest.approx(len(proba))


@given(data=outputs())
def test_em_never_lowers_the_likelihood_and_never_passes_the_certified_optimum(
    data: tuple[np.ndarray, np.ndarray],
) -> None:
    source, proba = data
    values = [rp.mlls(source, proba, n_iter=t).log_likelihood for t in (1, 2, 3, 5, 8, 30)]
    assert np.all(np.diff(values) >= -1e-9)
    assert rp.mlls(source, proba).log_likelihood >= values[-1] - 1e-8 * len(proba) - 1e-9


@given(data=outputs())
def test_the_duality_gap_bounds_what_is_left_to_gain(data: tuple[np.ndarray, np.ndarray]) -> None:
    source, proba = data
    target = ArrayBlocks(proba)
    best = maximize(target, source, tol=1e-8).point
    assert best.gap <= 1e-8
    for prior in (source, np.full(len(source), 1 / len(source))):
        here = evaluate(target, source, prior)
        assert best.value - here.value <= here.gap + 1e-9
