"""Simulated shifts and the metrics on them."""

from __future__ import annotations

import numpy as np
import pytest

import reprior as rp
from reprior import metrics, simulate


def test_long_tail_sizes_are_those_of_eq_2() -> None:
    sizes = simulate.long_tail_counts(100, 0.1, n_max=500)
    assert sizes[0] == 500
    assert sizes[-1] == 50
    assert sizes.sum() == 19573  # the published size of CIFAR-100-LT at this ratio
    assert simulate.long_tail(10, 0.05)[-1] / simulate.long_tail(10, 0.05)[0] == pytest.approx(0.05)


def test_the_printed_exponent_is_on_offer() -> None:
    printed = simulate.long_tail(10, 0.05, exponent="k/K")
    assert printed[-1] / printed[0] == pytest.approx(0.05**0.9)
    assert simulate.long_tail_counts(100, 0.1, n_max=500, exponent="k/K")[-1] == int(500 * 0.1**0.99)
    np.testing.assert_array_equal(np.sort(simulate.shuffled_long_tail(10, 0.05, rng=1, exponent="k/K"))[::-1], printed)
    pool, y = np.full((30, 3), 1 / 3), np.repeat(np.arange(3), 10)
    assert np.bincount(simulate.resample(pool, y, [0.45, 0.28, 0.27], n=10).y).tolist() == [4, 3, 3]
    with pytest.raises(rp.InputError, match="`exponent` must be one of"):
        simulate.long_tail(3, 0.1, exponent="k")


def test_priors_are_seeded_and_sum_to_one() -> None:
    for make in (
        lambda rng: simulate.shuffled_long_tail(20, 0.1, rng=rng),
        lambda rng: simulate.dirichlet(20, 1.5, rng=rng),
        lambda rng: simulate.tweak_one(20, 0.5, rng=rng),
        lambda rng: simulate.knock_out(20, 0.25, rng=rng),
    ):
        assert make(1).sum() == pytest.approx(1)
        np.testing.assert_array_equal(make(1), make(1))
        assert not np.array_equal(make(1), make(2))
    assert np.sort(simulate.tweak_one(20, 0.5, rng=0))[-1] == pytest.approx(0.5)
    assert (simulate.knock_out(20, 0.25, rng=0) == 0).sum() == 5


def test_resample_follows_the_prior_and_says_where_rows_ran_out() -> None:
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.ones(4), 400)
    y = np.repeat(np.arange(4), 100)
    sample = simulate.resample(proba, y, [0.7, 0.1, 0.1, 0.1], n=303, rng=3)
    assert len(sample.y) == 303
    np.testing.assert_allclose(np.bincount(sample.y) / 303, sample.prior)
    assert sample.reused == (0,)
    np.testing.assert_array_equal(proba[sample.rows], sample.proba)
    rare = sample.rows[sample.y == 1]
    assert len(set(rare)) == len(rare)
    again = simulate.resample(proba, y, [0.7, 0.1, 0.1, 0.1], n=303, rng=3)
    np.testing.assert_array_equal(again.rows, sample.rows)


def test_resample_refuses_a_class_the_pool_has_not() -> None:
    with pytest.raises(rp.InputError, match="rows of class 1"):
        simulate.resample([[0.5, 0.5]], [0], [0.5, 0.5], n=10)
    with pytest.raises(rp.InputError, match="2 classes"):
        simulate.resample([[0.5, 0.5]], [0], [0.5, 0.3, 0.2], n=10)
    with pytest.raises(rp.InputError, match="n_classes"):
        simulate.long_tail(1, 0.5)
    with pytest.raises(rp.InputError, match="ratio"):
        simulate.long_tail(5, 0)


def test_metrics_by_hand() -> None:
    true, estimate = [0.5, 0.5], [0.25, 0.75]
    assert metrics.kl(true, estimate) == pytest.approx(0.5 * np.log(2) + 0.5 * np.log(2 / 3))
    assert metrics.kl([1, 0], [0.5, 0.5]) == pytest.approx(np.log(2))
    assert metrics.kl(true, [1, 0]) == np.inf
    assert metrics.kl(true, [1, 0], floor=1e-6) == pytest.approx(0.5 * np.log(0.5) + 0.5 * np.log(0.5e6))
    assert metrics.absolute_error(true, estimate) == pytest.approx(0.25)
    assert metrics.weight_mse(true, estimate, [0.5, 0.5]) == pytest.approx(0.25)
    assert metrics.relative_absolute_error(true, estimate, n=1e9) == pytest.approx(0.5)
    assert metrics.accuracy([[0.6, 0.4], [0.6, 0.4]], [0, 1]) == 0.5
    assert metrics.accuracy([[0.6, 0.4], [0.6, 0.4]], [0, 1], weights=[1, 2]) == 0.5
    with pytest.raises(rp.InputError, match="2 classes"):
        metrics.kl(true, [0.2, 0.3, 0.5])


@pytest.mark.parametrize(
    "call",
    [
        lambda: metrics.kl([1, 1], [1, 1], floor=np.nan),
        lambda: metrics.relative_absolute_error([1, 1], [1, 1], n=0),
        lambda: metrics.weight_mse([1, 1], [1, 1], [1, 1, 1]),
        lambda: metrics.accuracy([[np.nan, 1.0]], [0]),
        lambda: metrics.accuracy([[0.5, 0.5]], [0], weights=[1, 1, 1]),
        lambda: metrics.accuracy([[0.5, 0.5]], [0], weights=[1, -1]),
        lambda: simulate.knock_out(3, 0.5, base=[1] * 5),
        lambda: simulate.tweak_one(1, 0.5),
        lambda: simulate.long_tail_counts(5, 0.1, n_max=np.nan),
        lambda: simulate.resample([[np.nan, 0.5]], [0], [1, 0], n=3),
        lambda: simulate.dirichlet(5, 1.0, rng="a"),
    ],
)
def test_bad_numbers_get_a_sentence(call) -> None:
    with pytest.raises(rp.InputError, match="must"):
        call()
