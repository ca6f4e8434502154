"""What holds for every stream of rows, however odd."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import reprior as rp

STREAMS = {
    "ebls": ("online-ebls", {}),
    "ebls, stationary": ("online-ebls", {"drift": False}),
    "fmapls": ("online-fmapls", {}),
    "fmapls, short memory": ("online-fmapls", {"memory": 3.0}),
    "fmapls, c": ("online-fmapls", {"c": 0.01, "gamma": 0.5}),
    "fmapls, printed": ("online-fmapls", {"variant": "paper", "c": 7.0}),
}
ODD = st.sampled_from([0.0, 1e-300, 1e-30, 1e-8, 0.1, 1.0, 1.0, 3.0])


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    k = draw(st.integers(2, 12))
    rows = draw(hnp.arrays(float, (draw(st.integers(1, 40)), k), elements=ODD))
    rows[rows.sum(axis=1) < 0.05, draw(st.integers(0, k - 1))] = 1.0
    source = draw(hnp.arrays(float, k, elements=st.sampled_from([1e-6, 0.01, 1.0, 50.0])))
    return source / source.sum(), rows / rows.sum(axis=1, keepdims=True)


@given(problem=problems(), repeats=st.sampled_from([1, 50]), y=st.integers(0, 1))
@pytest.mark.parametrize("name", sorted(STREAMS))
def test_the_estimate_stays_a_prior(name: str, problem, repeats: int, y: int) -> None:
    source, rows = problem
    method, options = STREAMS[name]
    stream = rp.Stream(method, source, **options)
    for _ in range(repeats):
        stream.learn_many(rows)
        stream.observe(rows[0], y)
    assert np.isfinite(stream.state.values).all()
    assert (stream.prior > 0).all()
    assert stream.prior.sum() == pytest.approx(1, abs=1e-9)
    lower, upper = stream.interval(0.9)
    assert ((lower >= 0) & (lower <= upper) & (upper <= 1)).all()
    np.testing.assert_allclose(stream.correct_many(rows).sum(axis=1), 1)


@given(problem=problems(), data=st.data())
@pytest.mark.parametrize("name", ["ebls", "ebls, stationary"])
def test_labels_come_between_any_blocks_and_survive_bytes(name: str, problem, data) -> None:
    source, rows = problem
    method, options = STREAMS[name]
    one, other = (rp.Stream(method, source, **options) for _ in range(2))
    table = rp.StreamTable(method, source, share=False, **options)
    label = st.tuples(st.integers(0, len(rows)), st.integers(0, len(rows) - 1), st.integers(0, len(source) - 1))
    at = 0
    for stop, row, y in sorted(data.draw(st.lists(label, min_size=1, max_size=8))):
        for p in rows[at:stop]:
            one.learn_one(p)
        if stop > at:
            other.learn_many(rows[at:stop])
            table.learn(["key"] * (stop - at), rows[at:stop])
        other = rp.Stream.from_bytes(other.to_bytes())
        if one.state.labels >= stop:
            for refuses in (one, other):
                with pytest.raises(rp.InputError, match="belong to samples that were learned"):
                    refuses.observe(rows[row], y)
            at = stop
            continue
        one.observe(rows[row], y)
        other.observe(rows[row], y)
        table.observe("key", rows[row], y)
        at = stop
    assert one.to_bytes() == other.to_bytes()
    if at:
        assert one.to_bytes() == table["key"].to_bytes()
        assert rp.StreamTable.from_bytes(table.to_bytes())["key"] == one
    assert np.isfinite(one.weights).all()
    assert one.source.prior @ one.weights == pytest.approx(1)


@given(problem=problems(), data=st.data())
@pytest.mark.parametrize("name", sorted(STREAMS))
def test_classes_have_no_order(name: str, problem, data) -> None:
    source, rows = problem
    order = np.array(data.draw(st.permutations(range(len(source)))))
    method, options = STREAMS[name]
    one, other = rp.Stream(method, source, **options), rp.Stream(method, source[order], **options)
    one.learn_many(rows)
    other.learn_many(rows[:, order])
    np.testing.assert_allclose(other.prior, one.prior[order], rtol=1e-6, atol=1e-12)
