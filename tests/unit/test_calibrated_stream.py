"""Streams that take raw outputs and calibrate them themselves."""

from __future__ import annotations

import copy
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from worlds import make_problem

import reprior as rp
from reprior.online.method import step, unpack
from reprior.rows.calibrated import Calibrator


def raw_problem(k: int = 5, n: int = 60):
    """Outputs that are too sure of themselves, a calibrator for them, and the source that it makes."""
    problem = make_problem(k=k, n=n)
    rng = np.random.default_rng(2)
    cal = Calibrator("vector", rng.uniform(0.3, 0.9, k), rng.normal(0, 0.3, k), 1e-9, 100, None)
    raw = problem.proba**3 / (problem.proba**3).sum(axis=1, keepdims=True)
    return problem, raw, cal


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("k", [2, 3, 5, 8, 100])
def test_a_calibrated_row_does_not_depend_on_the_rows_beside_it(k: int, kind) -> None:
    rng = np.random.default_rng(k)
    rows = rng.dirichlet(np.full(k, 0.3), 211).astype(kind)
    rows[5] = np.eye(k)[0]
    cal = Calibrator("vector", rng.uniform(0.3, 2, k), rng.normal(0, 1, k), 1e-9, 1, None)
    whole = cal(rows)
    weights = rng.uniform(0.2, 5, k)
    corrected = rp.correct(rows, weights)
    for size in (1, 2, 3, 7, 64, 150):
        for order in (np.ascontiguousarray, np.asfortranarray):
            parts = [order(rows[first : first + size]) for first in range(0, len(rows), size)]
            np.testing.assert_array_equal(np.concatenate([cal(part) for part in parts]), whole)
            np.testing.assert_array_equal(np.concatenate([rp.correct(part, weights) for part in parts]), corrected)


@pytest.mark.parametrize("name", sorted(rp.ONLINE))
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_raw_outputs_in_are_calibrated_ones_learned(name: str, kind) -> None:
    problem, raw, cal = raw_problem()
    raw = raw.astype(kind)
    stream = rp.Stream(name, problem.source, calibrator=cal)
    plain, one = rp.Stream(name, problem.source), rp.Stream(name, problem.source, calibrator=cal)
    observed = cal(raw.astype(np.float64))
    stream.learn_many(raw)
    plain.learn_many(observed)
    for p in raw:
        one.learn_one(p)
    for other in (stream, one):
        other.observe(raw[3], 2)
    plain.observe(observed[3], 2)
    assert one.state.values.tobytes() == stream.state.values.tobytes() == plain.state.values.tobytes()
    np.testing.assert_allclose(stream.correct_one(raw[7]), plain.correct_one(observed[7]), rtol=1e-12)
    np.testing.assert_allclose(stream.correct_many(raw), plain.correct_many(observed), rtol=1e-6)
    assert stream.correct_many(raw).dtype == kind
    np.testing.assert_array_equal(stream.calibrated(raw), observed)
    pure = step(rp.Stream(name, problem.source, calibrator=cal).state, raw.astype(np.float64))
    assert pure.values.tobytes() == rp.Stream.of(pure).state.values.tobytes()
    for again in (rp.Stream.from_bytes(stream.to_bytes()), copy.copy(stream), copy.deepcopy(stream)):
        again.learn_many(raw)
        assert again.n == 2 * len(raw)
        assert again.calibrator is not None
        assert again.to_bytes() != plain.to_bytes()


@given(cuts=st.lists(st.integers(0, 60), max_size=6))
def test_any_cut_gives_the_same_state(cuts: list[int]) -> None:
    problem, raw, cal = raw_problem()
    whole, cut = (rp.Stream("online-ebls", problem.source, calibrator=cal) for _ in range(2))
    whole.learn_many(raw)
    for first, last in pairwise(sorted({0, *cuts, len(raw)})):
        cut.learn_many(raw[first:last])
    assert cut.to_bytes() == whole.to_bytes()


def test_tables_and_alarms_take_raw_outputs_too() -> None:
    problem, raw, cal = raw_problem(n=400)
    observed = cal(raw)
    keys = ["a", "b"] * 200
    table, plain = (rp.StreamTable("online-ebls", problem.source, calibrator=own) for own in (cal, None))
    table.learn(keys, raw)
    plain.learn(keys, observed)
    table.observe("a", raw[3], 2)
    plain.observe("a", observed[3], 2)
    np.testing.assert_array_equal(table["a"].state.values, plain["a"].state.values)
    np.testing.assert_array_equal(table.correct(keys, raw), plain.correct(keys, observed))
    back = rp.StreamTable.from_bytes(table.to_bytes())
    assert back.to_bytes() == table.to_bytes()
    np.testing.assert_allclose(back["a"].correct_many(raw), back.correct(["a"] * 400, raw), rtol=1e-12)
    with pytest.raises(rp.InputError, match="another source or calibrator"):
        plain["c"] = table.pop("a")
    raws, calibrated = (rp.Stream("online-ebls", problem.source, calibrator=own) for own in (cal, None))
    one, other = rp.Alarm(problem.source), rp.Alarm(problem.source)
    for first in range(0, 400, 90):
        part = slice(first, first + 90)
        assert one.watch(raws, raw[part]) == other.watch(calibrated, observed[part])
    assert raws.state.values.tobytes() == calibrated.state.values.tobytes()


def test_what_cannot_be_calibrated_is_refused_and_changes_nothing() -> None:
    problem, raw, cal = raw_problem()
    stream = rp.Stream("online-fmapls", problem.source, calibrator=cal)
    table = rp.StreamTable("online-fmapls", problem.source, calibrator=cal)
    before = stream.to_bytes()
    index, value = np.array([[0, 1]]), np.array([[0.6, 0.3]])
    for call in (
        lambda: stream.learn_one((index[0], value[0])), lambda: stream.learn_many((index, value)),
        lambda: stream.correct_one((index[0], value[0])), lambda: stream.correct_many((index, value)),
        lambda: table.learn(["a"], (index, value)), lambda: table.correct(["a"], (index, value)),
    ):  # fmt: skip
        with pytest.raises(rp.InputError, match="must list every class, because there is a calibrator"):
            call()
    bad = raw.copy()
    bad[50, 1] = np.nan
    with pytest.raises(rp.InputError, match=r"Stream.learn_many: `proba` must contain only finite.* row 50 "):
        stream.learn_many(bad)
    assert stream.to_bytes() == before
    assert len(table) == 0
    odd_ones = (lambda p: p, "be a Calibrator or None; got function"), (raw_problem(k=3)[2], "have 5 classes")
    for odd, sentence in odd_ones:
        for make in (rp.Stream, rp.StreamTable):
            with pytest.raises(rp.InputError, match=rf"`calibrator` must {sentence}"):
                make("online-ebls", problem.source, calibrator=odd)
    none = Calibrator("none", np.ones(5), np.zeros(5), 1e-9, 1, None)
    assert rp.Stream("online-ebls", problem.source, calibrator=none).calibrator is None


def test_a_stream_knows_the_names_of_its_classes() -> None:
    source = rp.Source(np.array([0.5, 0.5]), classes=("cat", "dog"))
    assert rp.Stream("online-ebls", source).classes == rp.StreamTable("online-ebls", source).classes == ("cat", "dog")
    assert rp.Stream("online-ebls", [1, 1]).classes is None


@pytest.mark.parametrize("held", [1e6, 1e9, 1e12])
def test_a_filter_that_has_held_millions_of_rows_goes_on(held: float) -> None:
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(5, 0.5), 60)  # of five classes: three numbers behind them are padding
    stream = rp.pipeline(rows, [int(rng.choice(5, p=p)) for p in rows]).stream()
    stream.learn_many(rows)
    before = stream.prior
    unpack(stream.method.layout, stream._values)["held"][:] = held
    stream.learn_many(rows)
    np.testing.assert_allclose(stream.prior, before, atol=0.05)
