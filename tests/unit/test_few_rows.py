"""A weak classifier, hardly two held-out rows a class, and nothing shifted: neither counts nor labels may do harm."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import gaussian_outputs, two_gaussians

import reprior as rp

K, N = 26, 1000


def world(seed: int, k: int = K, far: float = 0.6):
    """Return what draws outputs and labels: classes that are hard to tell apart, as often in source as in target."""
    rng = np.random.default_rng(seed)
    means = far * rng.normal(size=(k, 6))

    def draw(n: int) -> tuple[np.ndarray, np.ndarray]:
        y = rng.choice(k, n)
        return gaussian_outputs(rng, y, means), y

    return draw


def lost(proba: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(proba[np.arange(len(y)), y]).mean())


def test_training_counts_beside_few_held_out_rows_do_no_harm():
    """Counts once made 50 held-out rows count as 320: accuracy fell by 2 to 4 points where nothing had shifted."""
    more, right = [], []
    for seed in range(6):
        draw = world(seed)
        held, target, y = draw(50), *draw(N)
        pipe = rp.pipeline(*held, counts=np.full(K, 80.0), classes=range(K))
        fixed = pipe.estimate(target, check=False).correct(target)
        more.append(lost(fixed, y) - lost(pipe.calibrate(target), y))
        right.append((fixed.argmax(axis=1) == y).mean() - (target.argmax(axis=1) == y).mean())
    assert np.mean(more) < 0.005
    assert np.mean(right) > -0.01


@pytest.mark.parametrize("counts", [None, np.full(K, 80.0)])
@pytest.mark.parametrize("m", [20, 50, 200])
def test_labels_of_an_unshifted_target_do_no_harm(m, counts):
    """If nothing has shifted, labels tell of the mix that outputs carry already, and no reason to change these."""
    more, nearer = [], []
    for seed in range(8):
        draw = world(seed)
        held, target, y = draw(50), *draw(N)
        pipe, labels = rp.pipeline(*held, counts=counts, classes=range(K)), np.full(N, -1)
        labels[:m] = y[:m]
        without, beside = (pipe.estimate(target, labels=inputs, check=False) for inputs in (None, labels))
        more.append(lost(beside.correct(target), y) - lost(without.correct(target), y))
        mix = np.bincount(y, minlength=K) / N
        nearer.append(rp.metrics.kl(mix, beside.prior) - rp.metrics.kl(mix, without.prior))
    assert np.mean(more) < 0.002
    assert np.mean(nearer) < 0.002


def test_the_few_rows_without_a_label_are_what_their_outputs_say():
    """What the estimate expects of labelled rows was taken from the whole, and left next to nothing of one class."""
    rng = np.random.default_rng(0)
    held, far = [], []

    def draw(n: int, share: float) -> tuple[np.ndarray, np.ndarray]:
        y = (rng.random(n) < share).astype(int)
        return two_gaussians(rng, y, 2.6), y

    for _ in range(60):
        pipe = rp.pipeline(*draw(200, 0.5), classes=["no", "yes"])
        target, y = draw(113, float(rng.uniform(0.2, 0.8)))
        labels, mix = np.where(np.arange(113) < 100, y, -1), np.bincount(y, minlength=2) / 113
        est = pipe.estimate(target, labels=labels, check=False)
        lower, upper = est.interval(0.95)
        held.append(lower[0] <= mix[0] <= upper[0])
        far.append(113 * abs(est.shares[0] - mix[0]))
    assert np.mean(held) > 0.9
    assert np.mean(far) < 1.5


@pytest.mark.parametrize(("rows", "classes", "message"), [(50, 26, True), (200, 26, False), (50, 3, False)])
def test_held_out_rows_that_are_too_few_to_see_a_shift_are_said_to_be(rows, classes, message):
    proba = np.random.default_rng(0).dirichlet(np.ones(classes), rows + 300)
    y = proba[:rows].argmax(axis=1)
    text = str(rp.pipeline(proba[:rows], y, classes=range(classes)).estimate(proba[rows:], check=False))
    assert (f"only {rows} held-out samples for {classes} classes" in text) == message


def test_training_counts_are_not_outweighed_by_thirty_labels():
    """Where nothing has shifted, counts say the mix better than 50 held-out rows, which labels were weighed against."""
    further = []
    for seed in range(20):
        draw = world(seed, 10, 1.5)
        pipe, (rows, y) = rp.pipeline(*draw(50), counts=np.full(10, 80.0), classes=range(10)), draw(900)
        mix, labels = np.bincount(y, minlength=10) / 900, np.where(np.arange(900) < 30, y, -1)
        without, beside = (pipe.estimate(rows, labels=inputs, check=False) for inputs in (None, labels))
        further.append(rp.metrics.kl(mix, beside.prior) - rp.metrics.kl(mix, without.prior))
    assert np.mean(further) < 0.003


def test_true_labels_of_an_unshifted_target_are_not_called_a_contradiction():
    """By chance labels move the mix a little, and the mean output has then gone none of that way."""
    called = 0
    for seed in range(20):
        draw = world(seed, 10, 0.8)
        pipe, (rows, y) = rp.pipeline(*draw(50), counts=np.full(10, 80.0), classes=range(10)), draw(900)
        labels, weights = np.full(900, -1), np.ones(900)
        at, weights_there = rp.query(pipe.estimate(rows, check=False), 300, rng=seed)
        labels[at], weights[at] = y[at], weights_there
        called += bool(pipe.estimate(rows, labels=labels, label_weights=weights).checks.labels_conflict)
    assert called == 0
