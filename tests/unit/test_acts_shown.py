"""How much of the correction a stream applies, wherever a stream is looked at."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from worlds import make_problem

import reprior as rp
from reprior._types import Acts
from reprior.online.acting import RESUMED, STOPPED, NotLabelShift, acts_event, without_warning
from reprior.online.ebls import OnlineEbls


@pytest.fixture
def world():
    """A pipeline, target samples of label shift with labels, and the same samples with their columns moved by one."""
    problem = make_problem(n=2000)
    return rp.pipeline(*problem.source.heldout), problem, np.roll(problem.proba, 1, axis=1)


def test_the_tests_of_a_stream_are_named_fields(world):
    pipe, problem, moved = world
    stream = pipe.stream()
    assert stream.checks == (0.6, 0.0, stream.acts.share, 1.0)
    stream.learn_many(problem.proba[:1000])
    assert stream.checks.no_shift < 0.01
    assert stream.checks.label_shift == stream.acts.share > 0.8
    with without_warning():
        stream.learn_many(moved)
    assert stream.checks[1:] == (stream.acts.log_evidence, stream.acts.share, stream.acts.amplification)
    assert stream.checks.label_shift < 0.1
    assert rp.Stream("online-fmapls", [1, 1]).checks == (None, None, None, 1.0)
    assert rp.Stream("online-ebls", [1, 1]).checks == (0.6, None, None, 1.0)  # no held-out samples
    assert pipe.stream(robust=0.01).checks == pipe.stream().checks


def test_a_table_shows_it_for_each_key(world):
    pipe, problem, moved = world
    table = pipe.table(share=False)
    with pytest.warns(NotLabelShift):
        table.learn(["shop", "lab"] * 500, np.stack([problem.proba[:500], moved[:500]], 1).reshape(1000, -1))
    assert table.acts("shop") == table["shop"].acts
    assert table.acts("shop").share > 0.5 > table.acts("lab").share
    frame = table.to_frame()
    assert {*frame.loc["lab", "acts_share"]} == {table.acts("lab").share}
    line = f"{table.acts('lab').share:.0%} of the correction is applied. {table.acts('lab').reason}"
    assert table["lab"].to_frame().attrs["acts"] == line
    assert repr(table["lab"]).splitlines()[1] == line
    assert f"<p>{line}</p>" in table["lab"]._repr_html_()
    with pytest.raises(KeyError):
        table.acts("nobody")


def test_whoever_reports_the_event_gets_no_warning(world):
    pipe, _, moved = world
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with without_warning():
            pipe.stream().learn_many(moved)
    with pytest.warns(NotLabelShift):
        pipe.stream().learn_many(moved)


def test_the_fall_and_the_return_are_events_at_tests(world, monkeypatch):
    pipe, _, moved = world
    shares = {25: 0.4, 100: 0.6, 200: 0.8, 300: 0.55, 400: 0.1}  # labels may have raised those at 100 and 200
    monkeypatch.setattr(OnlineEbls, "acts", lambda self, state: Acts(shares.get(int(state[0]), 0.0), "So.", -1.0))
    stream = pipe.stream()
    result, acting = [], True
    for row in moved[:500]:
        before = stream.n
        with without_warning():
            stream.learn_one(row)
        event = acts_event(stream, before, acting)
        if event is not None:
            result.append(event)
            acting = event.kind != STOPPED
    assert result == [(STOPPED, 25, 0.4, "So."), (RESUMED, 200, 0.8, "So."), (STOPPED, 400, 0.1, "So.")]
