"""One artefact: fitted once, saved to one file, and the same wherever it runs."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from worlds import make_problem

import reprior as rp
from reprior import datasets
from reprior.rows.blocks import ArrayBlocks, add_up
from reprior.rows.calibrated import CalibratedBlocks
from reprior.state import decode, encode


class Parts:
    """Rows in parts of any size, known by `map_sum` alone."""

    def __init__(self, rows, size=37):
        self.rows, self.size, self.n_classes = rows, size, rows.shape[1]

    def map_sum(self, fn):
        return add_up(fn(self.rows[i : i + self.size]) for i in range(0, len(self.rows), self.size))


@pytest.fixture(scope="module")
def shifted():
    data = datasets.load("banking77")
    pipe = rp.pipeline(data.heldout_proba, data.heldout_y, counts=data.counts, classes=data.classes)
    prior = rp.simulate.dirichlet(77, 1, rng=0)
    return data, pipe, rp.simulate.resample(data.pool_proba, data.pool_y, prior, n=1500, rng=0)


def log_loss(proba, y):
    return -np.log(np.maximum(proba[np.arange(len(y)), y], 1e-12)).mean()


def test_correct_takes_raw_outputs_and_calibrates_them(shifted):
    _, pipe, new = shifted
    est = pipe.estimate(new.proba)
    fixed = est.correct(new.proba)
    np.testing.assert_allclose(fixed, pipe.correct(new.proba, est), rtol=1e-12)
    assert log_loss(fixed, new.y) < log_loss(rp.correct(new.proba, est.weights), new.y)  # without the calibrator
    assert log_loss(fixed, new.y) < 0.9 * log_loss(new.proba, new.y)


def test_arrays_frames_blocks_and_top_k_go_the_same_way(shifted):
    data, pipe, new = shifted
    expected = pipe.estimate(new.proba)
    frame = pd.DataFrame(new.proba, columns=data.classes)
    shuffled = frame[sorted(data.classes, key=hash)]
    for rows in (frame, shuffled, ArrayBlocks(new.proba), Parts(new.proba)):
        np.testing.assert_allclose(pipe.estimate(rows).prior, expected.prior, atol=1e-7)
    order = np.argsort(-new.proba, axis=1)[:, :40]
    top = pipe.estimate((order, np.take_along_axis(new.proba, order, axis=1)))
    assert np.abs(top.prior - expected.prior).sum() < 0.02
    assert isinstance(pipe.rows(Parts(new.proba)), CalibratedBlocks)


def test_each_row_under_its_own_mix_is_corrected_as_under_one_mix():
    keys, target = np.repeat(["a", "b"], 300), np.concatenate([make_problem(n=300, seed=i).proba for i in (1, 2)])
    counts = np.ones(target.shape[1])
    result, table = rp.groups(counts, keys, target), rp.StreamTable("online-ebls", counts)
    table.learn(keys, target)
    for way, weights in ((result, result.weights), (table, [table.prior("a"), table.prior("b")])):
        fixed = way.correct(keys, target)
        for key, factors in zip("ab", weights, strict=True):
            np.testing.assert_allclose(fixed[keys == key], rp.correct(target[keys == key], factors), atol=1e-14)


def test_top_k_rows_are_corrected_with_a_calibrator_and_without(problem, shifted):
    counts = np.ones(problem.proba.shape[1])
    order = np.argsort(-problem.proba, axis=1)[:, :3]
    top = order, np.take_along_axis(problem.proba, order, axis=1)
    est = rp.ebls(counts, top)
    dense = est.correct(next(iter(rp.TopKBlocks(*top, counts / counts.sum()))))
    np.testing.assert_allclose(est.correct(top)[: len(dense)], np.take_along_axis(dense, order[: len(dense)], axis=1))
    _, pipe, new = shifted
    whole, k = pipe.estimate(new.proba), new.proba.shape[1]
    for listed, error in ((k - 1, 1e-3), (max(5, k // 2), 0.1)):
        top = new.proba.argsort(axis=1)[:, -listed:], np.sort(new.proba, axis=1)[:, -listed:]
        est = pipe.estimate(top)
        assert est.acts.log_evidence > 0
        assert est.acts.share > 0.8  # held-out rows are looked at as if they had been listed so too
        there = np.take_along_axis(whole.correct(new.proba), top[0], axis=1)
        assert np.abs(est.correct(top) - there).mean() < error
    logits = rp.pipeline(np.log(pipe.source.heldout[0]), pipe.source.heldout[1], logits=True)
    with pytest.raises(rp.InputError, match="must list every class, because there is a calibrator; got top-k rows"):
        logits.estimate(np.log(new.proba), on_reject="ignore").correct(top)


def test_an_estimate_that_was_there_already_has_no_time_of_its_own(problem):
    counts = np.ones(problem.proba.shape[1])
    comparison = rp.compare(counts, problem.proba, ["mlls"], first=rp.ebls(counts, problem.proba), name="mine")
    assert [row.seconds is None for row in comparison] == [True, False]
    assert "ms" not in str(comparison).splitlines()[1]


def test_a_file_holds_all_of_it_and_gives_the_same_bits(shifted, tmp_path):
    _, pipe, new = shifted
    pipe.save(tmp_path / "model.reprior")
    again = rp.load(tmp_path / "model.reprior")
    assert again == pipe
    a, b = pipe.estimate(new.proba), again.estimate(new.proba)
    np.testing.assert_array_equal(a.prior, b.prior)
    np.testing.assert_array_equal(a.interval().upper, b.interval().upper)
    assert a.checks == b.checks
    stream, other = pipe.stream(), again.stream()
    stream.learn_many(new.proba)
    other.learn_many(new.proba[:700])
    other.learn_many(new.proba[700:])
    np.testing.assert_array_equal(stream.prior, other.prior)
    table = again.table()
    table.learn(["a"] * 700, new.proba[:700])
    assert len(table) == 1
    restored = rp.load(stream.to_bytes())
    np.testing.assert_array_equal(restored.correct_many(new.proba[:5]), stream.correct_many(new.proba[:5]))


def test_logits_are_said_once(shifted):
    data, _, new = shifted
    rng = np.random.default_rng(0)

    def logits(proba):
        return np.log(proba) + rng.normal(size=(len(proba), 1))

    plain = rp.pipeline(data.heldout_proba, data.heldout_y)
    pipe = rp.pipeline(logits(data.heldout_proba), data.heldout_y, logits=True)
    a, b = plain.estimate(new.proba), pipe.estimate(logits(new.proba))
    np.testing.assert_allclose(a.prior, b.prior, atol=1e-6)
    np.testing.assert_allclose(a.correct(new.proba), b.correct(logits(new.proba)), atol=1e-6)
    bare = rp.pipeline(counts=data.counts, logits=True).estimate(logits(new.proba))
    np.testing.assert_allclose(bare.prior, rp.pipeline(counts=data.counts).estimate(new.proba).prior, atol=1e-9)
    assert rp.Pipeline.from_bytes(pipe.to_bytes()).calibrator.of_logits


def test_a_method_of_ones_own_runs_everywhere(problem):
    def always_even(source, target, *, tilt=0.0):
        base = rp.mlls(source, target, n_iter=1)
        k = len(base.prior)
        prior = np.full(k, 1 / k)
        return rp.PriorEstimate(prior, prior / source.prior, prior, rp.Status.SOLVED, 0, base.n, 0.0, source, target)

    assert rp.estimate(problem.source, problem.proba, always_even, tilt=1.0).prior[0] == 0.2
    held, y = problem.source.heldout
    pipe = rp.pipeline(held, y, method=always_even)
    assert pipe.estimate(problem.proba, on_reject="ignore").prior[0] == 0.2
    assert [row.method for row in rp.compare(problem.source, problem.proba, [always_even, "mlls"])] == [
        "always_even",
        "mlls",
    ]
    with pytest.raises(rp.InputError, match="cannot be saved"):
        pipe.to_bytes()
    rp.METHODS["even"] = always_even
    try:
        named = rp.pipeline(held, y, method="even")
        assert rp.load(named.to_bytes()).estimate(problem.proba, on_reject="ignore").prior[0] == 0.2
    finally:
        del rp.METHODS["even"]


def test_without_rows_everything_said_is_kept_or_refused():
    pipe = rp.pipeline(counts=[5, 3], classes=["cat", "dog"], prior=[0.5, 0.5])
    assert pipe.classes == ("cat", "dog")
    np.testing.assert_array_equal(pipe.source.prior, [0.5, 0.5])
    with pytest.raises(rp.InputError, match="without held-out samples"):
        rp.pipeline(counts=[5, 3], calibration="ts")
    rows = np.array([[0.9, 0.1], [0.4, 0.6], [0.8, 0.2]])
    assert rp.pipeline(rows, ["cat", "dog", "cat"], classes=["cat", "dog"]).classes == ("cat", "dog")


def test_select_keeps_the_default_that_it_names():
    problem = make_problem(k=4, n=400, separation=2.0)
    held, y = problem.source.heldout
    usual = rp.pipeline(held, y)
    chosen = rp.select(held, y, trials=4)
    if chosen.method == usual.method and chosen.calibrator.kind == usual.calibrator.kind:
        assert chosen == usual
    only = rp.select(held, y, trials=2, calibrations=("bias-corrected",), methods=("ebls",))
    assert only.source.made in (usual.source.made, "held-out label counts")
    if only.source.made == usual.source.made:
        assert only == usual


def test_a_result_can_be_compared_shown_copied_and_let_go(problem):
    est = rp.ebls(problem.source, problem.proba)
    assert est == rp.ebls(problem.source, problem.proba)
    assert est != rp.mlls(problem.source, problem.proba)
    assert est.interval(0.9) == est.interval(0.9)
    assert (est == "text") is False
    text = repr(est)
    assert "95 % interval" in text
    assert text.count("×") == 3
    assert len(text.splitlines()) <= 8
    assert est.interval().note in est.notes
    light = est.detach()
    assert light.target is None
    np.testing.assert_array_equal(light.interval(0.8).lower, est.interval(0.8).lower)
    assert len(pickle.dumps(light)) < 20_000
    frame = est.to_frame()
    assert list(frame.columns) == ["source", "shares", "prior", "weight", "lower", "upper"]
    axes = est.plot()
    assert len(axes.get_yticklabels()) == 5
    assert rp.__version__.count(".") == 2


def test_label_shift_that_is_clearly_rejected_stops_a_correction():
    problem = make_problem(k=4, n=2000, separation=2.0, alpha=5.0)
    held, y = problem.proba, problem.y
    rng = np.random.default_rng(1)
    strange = rng.dirichlet(np.full(4, 30.0), 2000)  # unsure rows, such as no class has
    pipe = rp.pipeline(held, y)
    est = pipe.estimate(strange)
    assert est.acts.share < 1e-3
    assert est.checks.label_shift == est.acts.share
    assert "0% of the correction is applied" in repr(est).splitlines()[1]
    with pytest.warns(UserWarning, match="0% of the correction is applied"):
        np.testing.assert_allclose(est.correct(strange), pipe.calibrate(strange), atol=1e-3)
    with pytest.raises(rp.InputError, match="class prior alone"):
        pipe.estimate(strange, on_reject="refuse").correct(strange)
    plain = pipe.estimate(strange, check=False)
    np.testing.assert_array_equal(pipe.estimate(strange, on_reject="ignore").correct(strange), plain.correct(strange))
    same = pipe.estimate(held[:200])
    assert "No shift found" in repr(same)
    same.correct(held)


def test_a_forged_file_is_refused_whatever_its_fields_hold(problem):
    held, y = problem.source.heldout
    pipe = rp.pipeline(held, y, counts=[50, 40, 30, 20, 10], classes=list("abcde"))
    fields = decode(pipe.to_bytes(), "pipeline", "test")
    assert rp.load(encode("pipeline", fields)) == pipe
    junk = [7, "x", [1, 2], {"a": 1}, None, True, np.zeros(0), np.full(5, np.nan), np.full((5, 5), -1.0), np.arange(3)]
    accepted = 0
    for name in fields:
        for value in junk:
            forged = encode("pipeline", {k: v for k, v in ({**fields, name: value}).items() if v is not None})
            try:
                loaded = rp.load(forged)
            except rp.InputError:
                continue
            accepted += 1
            assert np.isfinite(loaded.source.prior).all()
            parts = "classes", "confusion", "hard_confusion", "counts", "proba", "y", "calibrator"
            parts += "error_heldout", "error_information", "moments_directions"  # without which there are none
            assert name in {"made", "raw_prior", "option_base", "options", *(f"source_{part}" for part in parts)}
    assert accepted < 30


@pytest.mark.parametrize("fields", [{}, {"stream": "x"}, {"stream": 3}, {"stream": np.zeros(3, np.uint8)}])
def test_a_forged_state_of_the_command_is_refused(fields):
    with pytest.raises(rp.InputError, match=r"^Stream\.from_bytes"):
        rp.load(encode("stream-job", fields))


def test_one_loader_reads_alarms_of_many_streams(problem, tmp_path):
    alarms = rp.AlarmTable(problem.source)
    alarms.watch(rp.StreamTable("online-ebls", problem.source), ["a", 7] * 200, problem.proba)
    alarms.save(tmp_path / "alarms")
    again = rp.load(tmp_path / "alarms")
    assert isinstance(again, rp.AlarmTable)
    assert [again[key] for key in again] == [alarms[key] for key in alarms]


def test_tiny_source_shares_leave_intervals_finite(problem):
    prior = np.array([1e-60, 0.3, 0.3, 0.2, 0.2])
    for method in ("mlls", "ebls"):
        lower, upper = rp.estimate(prior, problem.proba, method).interval()
        assert np.isfinite(lower).all()
        assert np.isfinite(upper).all()
