"""Late labels tell a stream which classes its corrected outputs favour, and that is taken out of the correction."""

from __future__ import annotations

import re

import numpy as np
import pytest
from worlds import make_problem

import reprior as rp
from reprior import datasets, simulate
from reprior.online.ebls import MIN_SHARE, OnlineEbls
from reprior.online.method import step
from reprior.rows.correction import correct_rows


@pytest.fixture(scope="module")
def banking():
    d = datasets.load("banking77")
    return d, rp.pipeline(d.heldout_proba, d.heldout_y, counts=d.counts)


def observed(stream: rp.Stream, rows, y) -> rp.Stream:
    for row, label in zip(rows, y, strict=True):
        stream.observe(row, int(label))
    return stream


def shares_alone(stream: rp.Stream, rows) -> np.ndarray:
    return correct_rows(stream.calibrated(rows), stream.prior / stream.source.prior)


def test_a_label_moves_the_bias_as_the_formula_says(problem) -> None:
    method = OnlineEbls(problem.source, drift=False)
    state = method.init()
    method.learn(state, problem.proba)
    source, row, y = problem.source.prior, problem.proba[7], 3
    weights = method.prior(state) / source
    r = row * weights / (row * weights).sum()
    credible = r[y] / (r[y] + method.settings.label_noise / 5)
    assert method.bias(state) is None
    method.observe(state, row, y)
    bend, product, bias = (method.parts(state)[name] for name in ("curvature", "product", "log_bias"))
    np.testing.assert_allclose(bend, credible * r * (1 - r) + MIN_SHARE, rtol=1e-9)
    np.testing.assert_allclose(product, bend * np.log(weights) + credible * (np.eye(5)[y] - r), rtol=1e-9)
    prior, b = method.prior(state), method.settings.bias_variance
    variance = method.about_estimate(state, method.filter_variances(state))
    gain = b / (1 + (b + np.minimum(variance / prior**2, 1)) * bend)
    np.testing.assert_allclose(bias, gain * (product - bend * np.log(prior / source)), rtol=1e-9)
    shifted = 1 - method.parts(state)["no_shift"]
    factors = np.exp(shifted * bias)
    np.testing.assert_allclose(method.bias(state), factors / (prior @ factors), rtol=1e-12)


def test_labels_fade_if_the_prior_may_drift(problem) -> None:
    told = {}
    for drift in (True, False):
        method = OnlineEbls(problem.source, drift=drift)
        state = method.init()
        for _ in range(3000):
            method.fit_bias(state, problem.proba[0], 1)
        told[drift] = method.parts(state)["curvature"].max()
    assert told[True] == pytest.approx(told[False] / 3, rel=0.1)


def test_without_labels_there_is_no_bias_and_nothing_changes(problem) -> None:
    stream = rp.Stream("online-ebls", problem.source)
    stream.learn_many(problem.proba)
    np.testing.assert_array_equal(stream.bias, 1)
    np.testing.assert_array_equal(stream.weights, stream.prior / stream.source.prior)
    for other in (rp.Stream("online-fmapls", problem.source), rp.Stream("fth", problem.source)):
        other.learn_one(problem.proba[0])
        other.observe(problem.proba[0], 1)
        np.testing.assert_array_equal(other.bias, 1)


@pytest.mark.parametrize("method", ["online-ebls", "online-fmapls", "fth"])
def test_labels_of_rows_that_were_never_learned_are_refused(method, problem) -> None:
    stream = rp.Stream(method, problem.source)
    said = "^Stream.observe: `y` must belong to rows that were learned; got 1 label of 0 rows. Learn a row first"
    with pytest.raises(rp.InputError, match=said):
        stream.observe(problem.proba[0], 1)
    assert stream == rp.Stream(method, problem.source)
    stream.learn_many(problem.proba[:3])
    for row in problem.proba[:3]:
        stream.observe(row, 1)
    before = stream.to_bytes()
    assert step(stream.state, problem.proba[:1]).labels == 3
    for again in (stream, rp.Stream.of(stream.state), rp.Stream.from_bytes(before)):
        with pytest.raises(rp.InputError, match="got 4 labels of 3 rows"):
            again.observe(problem.proba[0], 1)
        assert again.to_bytes() == before


def test_every_correction_knows_the_bias(problem) -> None:
    stream, table = rp.Stream("online-ebls", problem.source), rp.StreamTable("online-ebls", problem.source, share=False)
    stream.learn_many(problem.proba)
    table.learn(["a"] * len(problem.proba), problem.proba)
    for row, y in zip(problem.proba[:40], problem.y[:40], strict=True):
        stream.observe(row, int(y))
        table.observe("a", row, int(y))
    assert np.ptp(stream.bias) > 0.05
    assert stream.prior @ stream.bias == pytest.approx(1)
    np.testing.assert_allclose(stream.weights, stream.prior / stream.source.prior * stream.bias)
    rows = problem.proba[:20]
    expected = rows * stream.weights / (rows * stream.weights).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(stream.correct_many(rows), expected)
    np.testing.assert_allclose(stream.correct_many(rows.tolist()), expected)
    np.testing.assert_allclose(stream.correct_one(rows[3]), expected[3])
    np.testing.assert_allclose(table.correct(["a"] * 20, rows), expected)
    np.testing.assert_allclose(table["a"].bias, stream.bias)
    every = np.broadcast_to(np.arange(5), rows.shape)
    np.testing.assert_allclose(stream.correct_many((every[:, :4], rows[:, :4])), expected[:, :4])
    np.testing.assert_allclose(stream.correct_one((every[0, :4], rows[0, :4])), expected[0, :4])
    np.testing.assert_allclose(table.correct(["a"] * 20, (every[:, :4], rows[:, :4])), expected[:, :4])
    fresh = rp.Stream("online-ebls", problem.source)
    np.testing.assert_allclose(table.correct(["new"], rows[:1]), fresh.correct_many(rows[:1]))  # no other key's


def test_labels_raise_the_accuracy_of_later_rows(banking) -> None:
    d, pipe = banking
    right, loss = np.zeros(2), np.zeros(2)  # of shares alone, and with the bias
    for seed in range(12):
        rng = np.random.default_rng([8, seed])
        t = simulate.resample(d.pool_proba, d.pool_y, simulate.dirichlet(77, 1.0, rng=rng), n=2000, rng=rng)
        stream = pipe.stream()
        stream.learn_many(t.proba)
        observed(stream, t.proba[:400], t.y[:400])
        rest, y = t.proba[400:], t.y[400:]
        for i, fixed in enumerate((shares_alone(stream, rest), stream.correct_many(rest))):
            right[i] += 100 * np.mean(fixed.argmax(axis=1) == y) / 12
            loss[i] -= np.mean(np.log(fixed[np.arange(len(y)), y])) / 12
    assert right[1] > right[0] + 0.1
    assert loss[1] < loss[0] - 0.003


def test_a_classifier_that_favours_classes_is_put_right() -> None:
    """Outputs of the target take classes 0 and 1 for three times as likely as they are; held-out rows do not."""
    problem = make_problem(n=3000, seed=3)
    favoured = problem.proba * np.array([3.0, 3.0, 1.0, 1.0, 1.0])
    favoured /= favoured.sum(axis=1, keepdims=True)
    stream = rp.Stream("online-ebls", problem.source)
    stream.learn_many(favoured)
    unlabelled = stream.correct_many(favoured[500:])
    observed(stream, favoured[:500], problem.y[:500])
    assert stream.bias[:2].max() < 0.9 < 1.1 < stream.bias[2:].max()
    rest, y = favoured[500:], problem.y[500:]
    losses = [-np.mean(np.log(x[np.arange(len(y)), y])) for x in (stream.correct_many(rest), unlabelled)]
    assert losses[0] < losses[1] - 0.005


@pytest.mark.parametrize("kind", ["one class", "shuffled", "any class"])
def test_nonsense_labels_do_bounded_harm(kind: str, banking) -> None:
    d, pipe = banking
    rng = np.random.default_rng(5)
    t = simulate.resample(d.pool_proba, d.pool_y, simulate.dirichlet(77, 1.0, rng=rng), n=2000, rng=rng)
    y = {"one class": np.full(300, 3), "shuffled": rng.permutation(t.y[:300]), "any class": rng.integers(77, size=300)}
    stream = pipe.stream()
    stream.learn_many(t.proba)
    observed(stream, t.proba[:300], y[kind])
    most = stream.method.max_bias
    assert np.ptp(np.log(stream.bias)) <= 2 * most + 1e-9
    plain, fixed = (
        np.mean(x.argmax(axis=1) == t.y) for x in (shares_alone(stream, t.proba), stream.correct_many(t.proba))
    )
    assert fixed > plain - (0.03 if kind == "one class" else 0.005)


def test_where_nothing_has_shifted_labels_change_next_to_nothing(banking) -> None:
    d, pipe = banking
    rng = np.random.default_rng(6)
    t = simulate.resample(d.pool_proba, d.pool_y, d.counts / d.counts.sum(), n=2000, rng=rng)
    stream = pipe.stream()
    stream.learn_many(t.proba)
    observed(stream, t.proba[:500], t.y[:500])
    np.testing.assert_allclose(stream.bias, 1, atol=1e-3)


def test_a_bound_on_what_a_label_moves_leaves_no_bias(problem) -> None:
    stream = rp.Stream("online-ebls", problem.source, robust=0.01)
    stream.learn_many(problem.proba)
    observed(stream, problem.proba[:40], problem.y[:40])
    np.testing.assert_array_equal(stream.bias, 1)


@pytest.mark.parametrize(("label", "said"), [
    (7, "must lie between 0 and 4; got 7. Whole numbers"),
    (None, "must hold the class of every row; got a missing label."),
    ("owl", "must hold the column index of each row's class; got names, as 'owl'."),
])  # fmt: skip
def test_one_label_is_told_as_one(problem, label, said) -> None:
    stream = rp.Stream("online-ebls", problem.source)
    with pytest.raises(rp.InputError, match=f"^Stream.observe: `y` {re.escape(said)}"):
        stream.observe(problem.proba[0], label)


def test_a_name_that_nearly_fits_is_told(problem) -> None:
    stream = rp.Stream("online-ebls", {"ham": 3, "spam": 1})
    with pytest.raises(rp.InputError, match=r"got Spam\. Perhaps you mean 'spam'\. The classes are ham, spam"):
        stream.observe([0.5, 0.5], "Spam")
