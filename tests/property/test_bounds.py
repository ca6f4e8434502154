"""Intervals keep their promises for any probabilities."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import reprior as rp
from reprior import bounds


@st.composite
def problems(draw):
    k, n = draw(st.integers(2, 6)), draw(st.integers(1, 40))
    rows = draw(hnp.arrays(float, (n, k), elements=st.floats(0.0, 1.0))) + draw(st.sampled_from([1e-12, 1e-3, 0.1]))
    source = draw(hnp.arrays(float, k, elements=st.floats(0.05, 1.0)))
    return source / source.sum(), rows / rows.sum(axis=1, keepdims=True)


@given(problems(), st.sampled_from(["ebls", "mlls", "mapls"]), st.floats(0.5, 0.999))
def test_intervals_are_finite_ordered_and_inside(problem, method, level):
    source, proba = problem
    lower, upper = rp.METHODS[method](source, proba).interval(level)
    assert np.isfinite(lower).all()
    assert np.isfinite(upper).all()
    assert (lower >= 0).all()
    assert (upper <= 1).all()
    assert (lower <= upper).all()
    assert lower.sum() <= 1 + 1e-9
    assert upper.sum() >= 1 - 1e-9


@given(problems(), st.randoms(use_true_random=False))
def test_intervals_follow_the_classes(problem, random):
    source, proba = problem
    order = np.array(random.sample(range(len(source)), len(source)))
    here, there = rp.mlls(source, proba), rp.mlls(source[order], proba[:, order])
    if np.abs(here.prior[order] - there.prior).max() < 1e-6:  # the optimum may not be unique
        for a, b in zip(here.interval(), there.interval(), strict=True):
            np.testing.assert_allclose(a[order], b, atol=0.02)


@given(hnp.arrays(float, 5, elements=st.floats(0.01, 1.0)), hnp.arrays(float, 5, elements=st.floats(0.5, 1e4)))
def test_bounds_are_covariances_of_shares_that_sum_to_one(prior, counts):
    bound = bounds.cramer_rao(prior, counts)
    matrix = bound.to_array()
    np.testing.assert_allclose(matrix.sum(axis=0), 0, atol=1e-9 * matrix.max())
    np.testing.assert_allclose(np.diag(matrix), bound.diagonal())
    assert (np.linalg.eigvalsh(matrix) >= -1e-9 * matrix.max()).all()
