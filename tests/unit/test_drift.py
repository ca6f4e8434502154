"""Drift schedules and the streams drawn along them."""

import numpy as np
import pytest

from reprior import InputError
from reprior.simulate import DRIFTS, draw_stream, drift

START, END = np.array([0.7, 0.2, 0.1]), np.array([0.1, 0.1, 0.8])


@pytest.mark.parametrize("kind", DRIFTS)
def test_every_step_is_a_mixture_of_the_two_priors(kind):
    path = drift(START, END, n=400, kind=kind, rng=0)
    moved = (path[:, 0] - START[0]) / (END[0] - START[0])
    assert path.shape == (400, 3)
    np.testing.assert_allclose(path, (1 - moved)[:, None] * START + moved[:, None] * END, atol=1e-12)
    assert moved.min() >= -1e-12
    assert moved.max() <= 1 + 1e-12
    assert moved[0] == pytest.approx(0)


def test_published_shapes():
    moved = {kind: (drift([1, 0], [0, 1], n=400, kind=kind, rng=3)[:, 1]) for kind in DRIFTS}
    np.testing.assert_allclose(moved["lin"], np.arange(400) / 399)
    assert moved["squ"][:60].tolist() == [0.0] * 20 + [1.0] * 20 + [0.0] * 20  # √400 steps each way
    assert moved["sin"][10] == pytest.approx(1)
    np.testing.assert_allclose(moved["sin"][:20], moved["sin"][20:40])
    assert 5 < np.abs(np.diff(moved["ber"])).sum() < 45  # 20 changes are expected
    assert np.flatnonzero(np.diff(moved["swap"])).tolist() == [199]
    assert np.flatnonzero(np.diff(drift([1, 0], [0, 1], n=400, kind="swap", period=30)[:, 1])).tolist() == [29]


def pool():
    y = np.repeat([0, 1, 2], [50, 20, 5])
    return np.eye(3)[y] * 0.7 + 0.1, y


def test_a_stream_follows_its_schedule_and_uses_each_row_before_any_twice():
    proba, y = pool()
    path = drift(START, END, n=500, kind="swap")
    sample = draw_stream(proba, y, path, repeat=10, rng=0)
    assert sample.proba.shape == sample.priors.shape == (5000, 3)
    assert (sample.y == y[sample.rows]).all()
    np.testing.assert_array_equal(sample.proba, proba[sample.rows])
    for half, prior in ((slice(0, 2500), START), (slice(2500, 5000), END)):
        np.testing.assert_allclose(np.bincount(sample.y[half], minlength=3) / 2500, prior, atol=0.04)
    used = np.bincount(sample.rows[sample.y == 2], minlength=75)[70:]
    assert used.max() - used.min() <= 1
    again = draw_stream(proba, y, path, repeat=10, rng=0)
    assert (again.rows == sample.rows).all()


def test_a_class_with_no_share_is_never_drawn_and_one_with_no_rows_is_refused():
    proba, y = pool()
    never = np.tile([0.5, 0.5, 0.0], (300, 1))
    assert (draw_stream(proba, y, never, rng=0).y < 2).all()
    with pytest.raises(InputError, match="have rows of class 2, which `priors` asks for"):
        draw_stream(proba[:70], y[:70], np.tile(END, (50, 1)), rng=0)


def test_bad_schedules_are_refused():
    with pytest.raises(InputError, match="`kind` must be one of 'lin'"):
        drift(START, END, n=10, kind="zigzag")
    with pytest.raises(InputError, match="`end` must have 3 classes"):
        drift(START, [0.5, 0.5], n=10)
    with pytest.raises(InputError, match="`priors` must have rows that sum to 1"):
        draw_stream(*pool(), np.ones((4, 3)))
