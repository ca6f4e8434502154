"""What must not change any public answer, each with the tolerance that it holds to.

The functions are estimate, interval, correct, groups, stream, table, diagnose, prediction sets and query.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from answers import GROUPS, answers, world
from hypothesis import given, settings
from hypothesis import strategies as st

from reprior._kernels import NATIVE

seeds, tries = st.integers(0, 10**6), settings(max_examples=12, deadline=None)
EXACT = 2e-3  # the estimate has single precision inside, and EM stops at 1e-4; what depends on it inherits that
NOT_BY_CLASS = ("diagnose", "query")


def alike(one, other, atol=EXACT, n=None, but=()):
    """Assert that answers agree to `atol`. Ends of intervals are rounded to whole samples of `n`, so that some lie one
    sample aside; a set may differ if a probability lies at its cutoff."""
    for name, value in other.items():
        if name in but:
            continue
        apart = np.abs(np.asarray(one[name], float) - np.asarray(value, float))
        if name == "sets":
            assert apart.mean() <= 0.05, name
        elif "interval" in name and n is not None:
            assert apart.max() <= 1.001 / n + atol, name
            assert np.mean(apart > atol) <= 0.2, name
        else:
            assert apart.max() <= atol, (name, apart.max())


@given(seeds)
@tries
def test_the_order_of_classes(seed):
    heldout, y, proba = world(seed)
    order = np.random.default_rng(seed).permutation(heldout.shape[1])
    place = np.argsort(order)
    other = answers(heldout[:, order], place[y], proba[:, order])
    back = {name: value if name in NOT_BY_CLASS else value[..., place] for name, value in other.items()}
    alike(answers(heldout, y, proba), back, n=len(proba) / 3)


@given(seeds)
@tries
def test_the_order_of_samples(seed):
    """All but streams and tables, which follow the samples in their order."""
    heldout, y, proba = world(seed)
    rng = np.random.default_rng(seed)
    held, new = rng.permutation(len(y)), rng.permutation(len(proba))
    other = answers(heldout[held], y[held], proba[new], keys=GROUPS[new % 3])
    place = np.argsort(new)
    back = {name: value[place] if name in ("correct", "sets") else value for name, value in other.items()}
    one = answers(heldout, y, proba)
    alike(one, back, n=len(proba) / 3, but=("stream", "interval of stream", "correct of stream", "table", "query"))
    ours, theirs = (np.sort(x["query"][:, 1]) for x in (one, back))  # of samples that are alike, any may be chosen
    np.testing.assert_allclose(theirs, ours, rtol=0.05)


@given(seeds, st.sampled_from([1, 7, 64]))
@tries
def test_cuts_into_blocks(seed, size):
    heldout, y, proba = world(seed)
    one, other = answers(heldout, y, proba), answers(heldout, y, proba, size=size)
    alike(one, other, n=len(proba) / 3)
    for name in ("stream", "interval of stream", "correct of stream", "table"):
        np.testing.assert_array_equal(one[name], other[name])  # a stream is defined sample by sample


@given(seeds)
@tries
def test_single_precision(seed):
    heldout, y, proba = world(seed)
    other = answers(heldout.astype(np.float32), y, proba.astype(np.float32))
    alike(answers(heldout, y, proba), other, n=len(proba) / 3, but=("query",))


@pytest.mark.skipif(not NATIVE, reason="needs both kernels")
def test_the_compiled_kernel_and_numpy(tmp_path):
    code, result = Path(__file__).parents[1] / "answers.py", {}
    for kernel in ("1", "0"):
        path = tmp_path / f"{kernel}.npz"
        env = {**os.environ, "REPRIOR_NATIVE": kernel}
        subprocess.run([sys.executable, str(code), "6", str(path)], env=env, check=True, timeout=300)
        with np.load(path) as stored:
            result[kernel] = {name: stored[name] for name in stored.files}
    for seed in range(6):
        one, other = ({name.partition(" ")[2]: value for name, value in all_of.items() if name.startswith(f"{seed} ")}
                      for all_of in result.values())  # fmt: skip
        alike(one, other, n=20)


def row_distance(one, other):
    """Return the mean total variation of rows."""
    return float(np.abs(one - other).sum(axis=-1).mean() / 2)


@given(seeds)
@tries
def test_every_sample_twice(seed):
    """Twice the evidence for the same: no estimate leaves its interval, and intervals hardly get wider."""
    heldout, y, proba = world(seed)
    keys = GROUPS[np.arange(len(proba)) % 3]
    one = answers(heldout, y, proba)
    two = answers(*(np.repeat(x, 2, axis=0) for x in (heldout, y, proba)), keys=np.repeat(keys, 2))
    lower, upper = one["interval"][:2]
    assert ((two["shares"] >= lower - 1e-6) & (two["shares"] <= upper + 1e-6)).all()
    width, narrower = upper - lower, two["interval"][1] - two["interval"][0]
    assert narrower.mean() <= width.mean() + 0.06
    assert row_distance(two["correct"][::2], one["correct"]) < 0.25


def beside(result, but=1):
    """Return the answers without the last class, or with the last two classes summed (`but=2`)."""
    def merged(value):
        return value[..., :-1] if but == 1 else np.append(value[..., :-2], value[..., -2:].sum(-1, keepdims=True), -1)

    return {name: merged(value) for name, value in result.items() if name not in NOT_BY_CLASS}


# A class more counts in "equal shares of all classes", which few samples of a blurred classifier cannot rule out.
# Over seeds 0 to 59 a class that never occurs moves a share by 0.0001 (median), 0.003 (nine in ten), 0.037 (largest),
# a key of a table by 0.006, 0.061, 0.143; a split class moves a share by 0.003, 0.023, 0.118. Tolerances leave room for
# rarer worlds.
WITHOUT = {"shares": 0.08, "prior": 0.1, "groups": 0.08, "stream": 0.2, "table": 0.3}
MERGED = {"shares": 0.2, "prior": 0.2, "groups": 0.2, "stream": 0.2, "table": 0.25}


@given(seeds)
@tries
def test_a_class_that_never_occurs(seed):
    heldout, y, proba = world(seed)

    def wider(rows):
        return np.column_stack([rows * (1 - 1e-9), np.full(len(rows), 1e-9)])

    one, more = answers(heldout, y, proba), answers(wider(heldout), y, wider(proba))
    assert more["shares"][-1] < 2e-3
    assert more["correct"][:, -1].max() < 1e-3
    assert more["interval"][0, -1] == 0
    other = beside(more)
    for name, atol in WITHOUT.items():
        np.testing.assert_allclose(other[name], one[name], atol=atol, err_msg=name)
    assert row_distance(other["correct"], one["correct"]) < 0.08
    assert row_distance(other["correct of stream"], one["correct of stream"]) < 0.2


@given(seeds)
@tries
def test_a_class_split_into_two_alike_ones(seed):
    heldout, y, proba = world(seed)
    k = heldout.shape[1]

    def split(rows):
        return np.column_stack([rows[:, :-1], rows[:, -1:] / 2, rows[:, -1:] / 2])

    halves = np.where((y == k - 1) & (np.arange(len(y)) % 2 == 1), k, y)
    one, parts = answers(heldout, y, proba), answers(split(heldout), halves, split(proba))
    other = beside(parts, but=2)
    for name, atol in MERGED.items():
        np.testing.assert_allclose(other[name], one[name], atol=atol, err_msg=name)
    assert row_distance(other["correct"], one["correct"]) < 0.2
    assert row_distance(other["correct of stream"], one["correct of stream"]) < 0.2
