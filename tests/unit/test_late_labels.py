"""Late labels judge the corrections of a stream: none, label shift, and class biases that they show."""

from __future__ import annotations

import re

import numpy as np
import pytest
from worlds import make_problem, posteriors, softmax

import reprior as rp
from reprior import datasets, simulate
from reprior.online.acting import NotLabelShift, share_of_tests, update_by_label, weights_by_labels
from reprior.online.ebls import OnlineEbls
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


def test_a_label_moves_weights_and_biases_as_the_formulas_say(problem) -> None:
    method = OnlineEbls(problem.source, drift=False)
    state = method.init()
    method.learn(state, problem.proba)
    row, y, part = problem.proba[7], 3, method.parts(state)
    prior, share = method.prior(state), share_of_tests(method, state)
    update_by_label(method, state, row, y, prior)
    log_shift = method.kept_shift * np.log(prior / problem.source.prior)
    shifted = row * np.exp(log_shift)
    p = np.stack([row, shifted / shifted.sum(), row, row])  # no label before: biases of 0
    start = np.array([(1 - share) / 3, share, (1 - share) / 3, (1 - share) / 3])
    weights = start * p[:, y] / (start @ p[:, y])
    kept = 1 - method.settings.label_sharing
    np.testing.assert_allclose(part["corrections"], kept * weights + (1 - kept) * start, rtol=1e-9)
    np.testing.assert_allclose(part["curvature"], np.stack([row * (1 - row)] * 2), atol=2e-12)
    np.testing.assert_allclose(part["newton_sum"], np.stack([np.eye(5)[y] - row] * 2), rtol=1e-9)
    biases = part["newton_sum"] / (part["curvature"] + 1)  # a ridge of one
    expected = part["corrections"] @ np.stack([0 * row, log_shift, *biases])
    np.testing.assert_allclose(np.log(weights_by_labels(method, state, prior)), expected, rtol=1e-9)


def test_tests_after_a_label_change_the_weight_of_label_shift() -> None:
    rng = np.random.default_rng(0)
    means = 3.0 * np.eye(4)

    def draw(blur: float) -> tuple[np.ndarray, np.ndarray]:
        y = rng.choice(4, 1000)
        x = means[y] + blur * rng.normal(size=(1000, 4))
        return posteriors(x, means, np.full(4, 0.25)), y

    pipe, (quiet, y), (blurred, _) = rp.pipeline(*draw(1.0)), draw(1.0), draw(2.0)
    streams = [pipe.stream(), pipe.stream()]
    for stream in streams:
        stream.learn_many(quiet[:200])
    streams[1].observe(quiet[0], int(y[0]))
    for stream in streams:
        assert stream.acts.share > 0.8
        with pytest.warns(NotLabelShift):
            stream.learn_many(blurred)
    without, with_label = (stream.acts.share for stream in streams)
    assert without < 0.5
    assert with_label == pytest.approx(without, abs=0.02)


def test_labels_fade_if_the_prior_may_drift(problem) -> None:
    curvature = {}
    for drift in (True, False):
        method = OnlineEbls(problem.source, drift=drift)
        state = method.init()
        for _ in range(2000):
            update_by_label(method, state, problem.proba[0], 1, method.prior(state))
        curvature[drift] = method.parts(state)["curvature"].sum(axis=1)
    np.testing.assert_array_less(curvature[True], 0.5 * curvature[False])


def test_without_labels_only_the_tests_scale_the_correction(problem) -> None:
    stream = rp.Stream("online-ebls", problem.source)
    stream.learn_many(problem.proba)
    expected = (stream.prior / stream.source.prior) ** (stream.acts.share * stream.method.kept_shift)
    np.testing.assert_allclose(stream.weights, expected / (stream.source.prior @ expected))
    for other in (rp.Stream("online-fmapls", problem.source), rp.Stream("fth", problem.source)):
        other.learn_one(problem.proba[0])
        other.observe(problem.proba[0], 1)
        assert other.acts.share == 1
        np.testing.assert_allclose(other.weights, other.prior / other.source.prior)


@pytest.mark.parametrize("method", ["online-ebls", "online-fmapls", "fth"])
def test_labels_of_rows_that_were_never_learned_are_refused(method, problem) -> None:
    stream = rp.Stream(method, problem.source)
    message = "^Stream.observe: `y` must belong to samples that were learned; got 1 label of 0 samples. Learn a "
    with pytest.raises(rp.InputError, match=message):
        stream.observe(problem.proba[0], 1)
    assert stream == rp.Stream(method, problem.source)
    stream.learn_many(problem.proba[:3])
    for row in problem.proba[:3]:
        stream.observe(row, 1)
    before = stream.to_bytes()
    assert step(stream.state, problem.proba[:1]).labels == 3
    for again in (stream, rp.Stream.of(stream.state), rp.Stream.from_bytes(before)):
        with pytest.raises(rp.InputError, match="got 4 labels of 3 samples"):
            again.observe(problem.proba[0], 1)
        assert again.to_bytes() == before


def test_every_correction_uses_the_labels(problem) -> None:
    stream, table = rp.Stream("online-ebls", problem.source), rp.StreamTable("online-ebls", problem.source, share=False)
    stream.learn_many(problem.proba)
    table.learn(["a"] * len(problem.proba), problem.proba)
    for row, y in zip(problem.proba[:40], problem.y[:40], strict=True):
        stream.observe(row, int(y))
        table.observe("a", row, int(y))
    alone = rp.Stream("online-ebls", problem.source)
    alone.learn_many(problem.proba)
    assert np.abs(np.log(stream.weights / alone.weights)).max() > 0.01
    assert stream.source.prior @ stream.weights == pytest.approx(1)
    rows = problem.proba[:20]
    expected = rows * stream.weights / (rows * stream.weights).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(stream.correct_many(rows), expected)
    np.testing.assert_allclose(stream.correct_many(rows.tolist()), expected)
    np.testing.assert_allclose(stream.correct_one(rows[3]), expected[3])
    np.testing.assert_allclose(table.correct(["a"] * 20, rows), expected)
    np.testing.assert_allclose(table["a"].weights, stream.weights)
    every = np.broadcast_to(np.arange(5), rows.shape)
    np.testing.assert_allclose(stream.correct_many((every[:, :4], rows[:, :4])), expected[:, :4])
    np.testing.assert_allclose(stream.correct_one((every[0, :4], rows[0, :4])), expected[0, :4])
    np.testing.assert_allclose(table.correct(["a"] * 20, (every[:, :4], rows[:, :4])), expected[:, :4])
    fresh = rp.Stream("online-ebls", problem.source)
    np.testing.assert_allclose(table.correct(["new"], rows[:1]), fresh.correct_many(rows[:1]))  # no other key's


def test_labels_of_a_label_shift_leave_its_correction_in_charge(banking) -> None:
    d, pipe = banking
    rng = np.random.default_rng([8, 2])
    t = simulate.resample(d.pool_proba, d.pool_y, simulate.dirichlet(77, 1.0, rng=rng), n=2000, rng=rng)
    stream = pipe.stream()
    stream.learn_many(t.proba)
    observed(stream, t.proba[:400], t.y[:400])
    assert stream.acts.share > 0.9
    assert stream.acts.reason.startswith("Given the labels, label shift has the weight 9")


def test_labels_take_over_if_inputs_have_changed() -> None:
    """Samples of every class move in the same direction: correcting for label shift does harm, labels do good."""
    rng = np.random.default_rng(0)
    means = 1.5 * np.eye(4)

    def draw(n, moved):
        y = rng.integers(4, size=n)
        z = 1.5 * (means[y] + rng.normal(size=(n, 4)) + moved)
        return softmax(z), y

    (heldout, held_y), (proba, y) = draw(500, 0), draw(3000, np.array([1.0, 1.0, -1.0, -1.0]))
    pipe, losses = rp.pipeline(heldout, held_y), {}
    for name in ("uncorrected", "without labels", "with labels"):
        stream, out = pipe.stream(), []
        for first in range(0, 3000, 20):
            rows = proba[first : first + 20]
            corrected = pipe.calibrate(rows) if name == "uncorrected" else stream.correct_many(rows)
            out.append(corrected[np.arange(20), y[first : first + 20]])
            stream.learn_many(rows)
            if name == "with labels":
                stream.observe(rows[0], int(y[first]))
        losses[name] = -np.log(np.concatenate(out)[400:]).mean()  # a stream has tested itself by then
    assert losses["without labels"] < losses["uncorrected"] + 0.01
    assert losses["with labels"] < losses["uncorrected"] - 0.02


def test_a_classifier_that_favours_classes_is_put_right() -> None:
    """Outputs of the target take classes 0 and 1 for three times as likely as they are; held-out rows do not."""
    problem = make_problem(n=3000, seed=3)
    favoured = problem.proba * np.array([3.0, 3.0, 1.0, 1.0, 1.0])
    favoured /= favoured.sum(axis=1, keepdims=True)
    stream = rp.Stream("online-ebls", problem.source)
    stream.learn_many(favoured)
    unlabelled = stream.correct_many(favoured[500:])
    observed(stream, favoured[:500], problem.y[:500])
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
    assert np.isfinite(stream.weights).all()
    plain, fixed = (
        np.mean(x.argmax(axis=1) == t.y) for x in (shares_alone(stream, t.proba), stream.correct_many(t.proba))
    )
    assert fixed > plain - 0.03


def test_where_nothing_has_shifted_labels_do_no_harm(banking) -> None:
    d, pipe = banking
    rng = np.random.default_rng(6)
    t = simulate.resample(d.pool_proba, d.pool_y, d.counts / d.counts.sum(), n=2000, rng=rng)
    stream = pipe.stream()
    stream.learn_many(t.proba)
    before = stream.correct_many(t.proba[500:])
    observed(stream, t.proba[:500], t.y[:500])
    own = np.arange(1500), t.y[500:]
    losses = [-np.log(x[own]).mean() for x in (before, stream.correct_many(t.proba[500:]))]
    assert losses[1] < losses[0] + 0.002


def test_a_bound_on_what_a_label_moves_holds_for_the_correction(problem) -> None:
    stream = rp.Stream("online-ebls", problem.source, robust=0.01)
    stream.learn_many(problem.proba)
    observed(stream, problem.proba[:40], problem.y[:40])
    share = stream.acts.share
    np.testing.assert_allclose(stream.weights, (stream.prior / stream.source.prior) ** share)


@pytest.mark.parametrize(("label", "message"), [
    (7, "must lie between 0 and 4; got 7. Whole numbers"),
    (None, "must hold the class of every row; got a missing label."),
    ("owl", "must hold the column index of each row's class; got names, as 'owl'."),
])  # fmt: skip
def test_one_label_is_told_as_one(problem, label, message) -> None:
    stream = rp.Stream("online-ebls", problem.source)
    with pytest.raises(rp.InputError, match=f"^Stream.observe: `y` {re.escape(message)}"):
        stream.observe(problem.proba[0], label)


def test_a_name_that_nearly_fits_is_told(problem) -> None:
    stream = rp.Stream("online-ebls", {"ham": 3, "spam": 1})
    with pytest.raises(rp.InputError, match=r"got Spam\. Perhaps you mean 'spam'\. The classes are ham, spam"):
        stream.observe([0.5, 0.5], "Spam")
