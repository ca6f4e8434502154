"""What must not change an estimate: the order of classes or samples, blocks, precision, classes that are alike."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import gaussian_outputs

import reprior as rp
from reprior.rows.blocks import ArrayBlocks

CLOSE = 2e-3  # of a share: single precision inside, and EM that stops at 1e-4


class Pieces:
    """Rows in blocks of a given size, in any order that `map_sum` likes."""

    def __init__(self, proba, size):
        self.proba, self.size, self.n_classes, self.n = proba, size, proba.shape[1], len(proba)

    def map_sum(self, fn):
        parts = [fn(self.proba[i : i + self.size]) for i in range(0, self.n, self.size)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total


@st.composite
def worlds(draw):
    """Held-out samples with labels and target samples of a Bayes classifier, few or many classes, sharp or blurred."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    k, distance = draw(st.integers(2, 14)), draw(st.sampled_from([0.4, 1.0, 2.0, 6.0]))
    prior, target = rng.dirichlet(np.full(k, 2.0)), rng.dirichlet(np.full(k, 1.0))
    centres = distance * rng.normal(size=(k, 3))

    def outputs(mix, n):
        y = rng.choice(k, n, p=mix)
        return gaussian_outputs(rng, y, centres, prior), y

    heldout, y = outputs(prior, draw(st.sampled_from([60, 300])))
    shifted = draw(st.booleans())
    return heldout, y, outputs(target if shifted else prior, draw(st.sampled_from([40, 400])))[0]


def numbers(source, proba):
    """Return all that is invariant: shares, prior, corrected probabilities, ends of intervals."""
    estimate = rp.ebls(source, proba)
    ends = [*estimate.interval(0.95), *estimate.interval(0.95, of="prior")]
    return np.stack([estimate.shares, estimate.prior]), np.stack(ends), estimate


def same(one, other, n):
    np.testing.assert_allclose(one[0], other[0], atol=CLOSE)
    np.testing.assert_allclose(one[1], other[1], atol=CLOSE + 1.001 / n)  # ends are rounded to whole samples


@given(worlds(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None)
def test_the_order_of_classes_does_not_matter(world, random):
    heldout, y, proba = world
    k = heldout.shape[1]
    order = np.array(random.sample(range(k), k))
    place = np.argsort(order)
    one = numbers(rp.summarize(heldout, y), proba)
    other = numbers(rp.summarize(heldout[:, order], place[y]), proba[:, order])
    same(one, (other[0][:, place], other[1][:, place]), len(proba))


@given(worlds(), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_the_order_of_samples_does_not_matter(world, seed):
    heldout, y, proba = world
    rng = np.random.default_rng(seed)
    held, new = rng.permutation(len(y)), rng.permutation(len(proba))
    other = numbers(rp.summarize(heldout[held], y[held]), proba[new])
    same(numbers(rp.summarize(heldout, y), proba), other, len(proba))


@given(worlds(), st.sampled_from([1, 7, 64]))
@settings(max_examples=20, deadline=None)
def test_blocks_and_precision_do_not_matter(world, size):
    heldout, y, proba = world
    source = rp.summarize(heldout, y)
    whole = numbers(source, proba)
    same(whole, numbers(source, Pieces(proba, size)), len(proba))
    same(whole, numbers(source, ArrayBlocks(np.asfortranarray(proba))), len(proba))
    same(whole, numbers(source, proba.astype(np.float32)), len(proba))


@given(worlds())
@settings(max_examples=30, deadline=None)
def test_a_class_split_into_two_alike_ones_keeps_its_share(world):
    heldout, y, proba = world
    k = heldout.shape[1]

    def split(rows):
        return np.column_stack([rows[:, :-1], rows[:, -1:] / 2, rows[:, -1:] / 2])

    halves = np.where((y == k - 1) & (np.arange(len(y)) % 2 == 1), k, y)
    whole = rp.ebls(rp.summarize(heldout, y), proba).shares
    parts = rp.ebls(rp.summarize(split(heldout), halves), split(proba)).shares
    np.testing.assert_allclose(np.append(parts[:-2], parts[-2:].sum()), whole, atol=0.08)


@given(worlds())
@settings(max_examples=20, deadline=None)
def test_a_class_that_never_occurs_changes_next_to_nothing(world):
    heldout, y, proba = world

    def wider(rows):
        return np.column_stack([rows * (1 - 1e-9), np.full(len(rows), 1e-9)])

    whole = rp.ebls(rp.summarize(heldout, y), proba).shares
    more = rp.ebls(rp.summarize(wider(heldout), y), wider(proba)).shares
    assert more[-1] < 1e-3
    np.testing.assert_allclose(more[:-1], whole, atol=0.03)


@pytest.mark.parametrize("of", ["shares", "prior"])
@given(worlds())
@settings(max_examples=30, deadline=None)
def test_the_estimate_is_inside_its_interval(of, world):
    heldout, y, proba = world
    result = rp.ebls(rp.summarize(heldout, y), proba)
    lower, upper = result.interval(0.9, of=of)
    estimate = getattr(result, of)
    assert ((lower <= estimate) & (estimate <= upper) & (lower >= 0) & (upper <= 1)).all()
