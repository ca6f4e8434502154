"""Worlds that are hard on numbers: no answer is NaN, outside its interval or outside of what probabilities can be.

Classifiers are near perfect, one-hot, constant or useless. There are 1 to 300 held-out samples and 1 to 200 target
samples, some with labels of huge or tiny weights, and classes without held-out samples.
"""

import warnings

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import reprior as rp

DISTANCES = {"gaussian": 1.5, "perfect": 30.0, "one-hot": 5.0, "constant": 0.0, "useless": 0.3, "zeros": 3.0}
tries = settings(max_examples=40, deadline=None)


def hostile_world(seed):
    """Return held-out samples with labels, training counts or None, target samples and their classes."""
    rng = np.random.default_rng(seed)
    k, kind = int(rng.choice([2, 3, 5, 10, 30])), rng.choice(list(DISTANCES))
    prior = np.maximum(rng.dirichlet(np.full(k, rng.choice([0.3, 2.0]))), 1e-4)
    prior = np.append(np.full(k - 1, 0.98 / (k - 1)), 0.02) if rng.random() < 0.2 else prior / prior.sum()
    target = rng.dirichlet(np.full(k, rng.choice([0.1, 1.0, 10.0])))
    centres = DISTANCES[kind] * rng.normal(size=(k, 3))

    def outputs(mix, n):
        y = rng.choice(k, n, p=mix)
        z = (centres[y] + rng.normal(size=(n, 3))) @ centres.T - 0.5 * (centres**2).sum(axis=1) + np.log(prior)
        rows = np.exp(z - z.max(axis=1, keepdims=True))
        rows /= rows.sum(axis=1, keepdims=True)
        if kind == "one-hot":
            rows = np.eye(k)[rows.argmax(axis=1)]
        if kind == "zeros":
            rows = np.where(rows < 0.05, 0, rows) / np.where(rows < 0.05, 0, rows).sum(axis=1, keepdims=True)
        return rows, y

    heldout, y = outputs(prior, int(rng.choice([1, 2, 5, 50, 300])))
    if rng.random() < 0.3 and (y > 0).any():  # no held-out sample of the first class
        heldout, y = heldout[y > 0], y[y > 0]
    counts = np.bincount(y, minlength=k) * 10 + rng.integers(1, 50, k) if rng.random() < 0.3 else None
    return heldout, y, counts, *outputs(target, int(rng.choice([1, 2, 5, 20, 200]))), rng


def labels_of(classes, rng):
    """Return labels of some samples and their weights, or neither."""
    if rng.random() < 0.5:
        return None, None
    labels = np.where(rng.random(len(classes)) < rng.choice([0.1, 0.5, 1.0]), classes, -1)
    return labels, np.exp(rng.normal(size=len(classes)) * rng.choice([1, 20])) if rng.random() < 0.5 else None


def assert_sound(result, level=0.9):
    """Assert that shares and prior are distributions and inside their intervals."""
    for of in ("shares", "prior"):
        value = getattr(result, of)
        np.testing.assert_allclose(value.sum(axis=-1), 1, atol=1e-6)
        lower, upper = result.interval(level, of=of)
        inside = (lower >= 0) & (upper <= 1) & (lower <= value + 1e-9) & (value <= upper + 1e-9)
        assert inside.all(), of


@pytest.fixture(autouse=True)
def _without_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # labels that do not fit, small shares of the correction
        yield


@given(st.integers(0, 10**6))
@example(2)
@tries
def test_estimates_and_prediction_sets(seed):
    heldout, y, counts, proba, classes, rng = hostile_world(seed)
    labels, weights = labels_of(classes, rng)
    pipe = rp.pipeline(heldout, y, counts=counts)
    estimate = pipe.estimate(proba, labels, label_weights=weights)
    assert_sound(estimate)
    assert (np.isfinite(estimate.weights) & (estimate.weights >= 0)).all()
    np.testing.assert_allclose(estimate.correct(proba).sum(axis=1), 1, atol=1e-5)
    assert estimate.prediction_sets(proba).shape == proba.shape
    assert str(pipe.diagnose(proba, labels))


@given(st.integers(0, 10**6))
@example(127)
@tries
def test_held_out_samples_of_one_class_in_any_order(seed):
    """Whether such labels contradict the probabilities must not be decided by rounding."""
    heldout, y, _, proba, _, rng = hostile_world(seed)
    heldout, y = heldout[y == y[0]], y[y == y[0]]
    counts = rng.integers(1, 50, heldout.shape[1])
    expected = rp.pipeline(heldout, y, counts=counts).estimate(proba)
    held, new, columns = (rng.permutation(n) for n in (len(y), len(proba), len(counts)))
    place = np.argsort(columns)
    other = rp.pipeline(heldout[held][:, columns], place[y], counts=counts[columns]).estimate(proba[new][:, columns])
    np.testing.assert_allclose(other.shares[place], expected.shares, atol=2e-3)
    ends = np.stack(other.interval(0.9)[:2])[:, place]
    np.testing.assert_allclose(ends, expected.interval(0.9)[:2], atol=2e-3 + 1.001 / len(proba))


@given(st.integers(0, 10**6))
@example(2)  # a class that no sample resembles
@example(3)  # labels
@tries
def test_groups(seed):
    heldout, y, counts, proba, classes, rng = hostile_world(seed)
    labels, weights = labels_of(classes, rng)
    pipe = rp.pipeline(heldout, y, counts=counts)
    keys = rng.integers(0, rng.choice([2, 5, 50]), len(proba))
    for groups in (pipe.groups(keys, proba, labels=labels), pipe.groups(keys, proba, share=False)):
        assert_sound(groups)
        np.testing.assert_allclose(groups.correct(keys, proba).sum(axis=1), 1, atol=1e-5)
    one = pipe.groups(["all"] * len(proba), proba, labels=labels, label_weights=weights)["all"]
    same = pipe.estimate(proba, labels, label_weights=weights)
    np.testing.assert_allclose(one.shares, same.shares, atol=1e-9)
    np.testing.assert_allclose(one.interval(0.9)[:2], same.interval(0.9)[:2], atol=1e-9)


@given(st.integers(0, 10**6))
@tries
def test_streams_and_tables(seed):
    heldout, y, counts, proba, classes, rng = hostile_world(seed)
    pipe = rp.pipeline(heldout, y, counts=counts)
    stream, table = pipe.stream(), pipe.table()
    keys = rng.integers(0, 5, len(proba))
    stream.learn_many(proba)
    table.learn(keys, proba)
    stream.observe(proba[0], int(classes[0]))
    lower, upper = stream.interval(0.9)
    assert ((lower <= stream.prior + 1e-9) & (stream.prior <= upper + 1e-9)).all()
    for fixed in (stream.correct_many(proba), table.correct(keys, proba)):
        np.testing.assert_allclose(fixed.sum(axis=1), 1, atol=1e-5)


@given(st.integers(0, 10**6), st.sampled_from(sorted(rp.METHODS)))
@example(15, "bbse")
@tries
def test_published_methods(seed, method):
    heldout, y, counts, proba, _, _ = hostile_world(seed)
    pipe = rp.pipeline(heldout, y, counts=counts)
    assert_sound(rp.estimate(pipe.source, pipe.calibrate(proba), method=method))
