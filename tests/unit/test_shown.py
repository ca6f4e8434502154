"""Estimates, streams and pipelines as values for other programs, notebooks and files."""

from __future__ import annotations

import json

import matplotlib
import numpy as np
import pandas as pd
import pytest

import reprior as rp

matplotlib.use("Agg")
NAMES = ["ant", "bee", "<b>cat</b>", "dog", "eel"]


@pytest.fixture
def pipe(problem):
    held, y = problem.source.heldout
    return rp.pipeline(held, np.array(NAMES)[y], classes=NAMES)


def test_an_estimate_is_plain_values_that_json_holds(problem, pipe):
    est = pipe.estimate(problem.proba)
    value = json.loads(json.dumps(est.to_dict(level=0.9)))
    assert value["classes"] == NAMES
    np.testing.assert_array_equal(value["prior"], est.prior)
    np.testing.assert_array_equal(np.transpose(value["interval"]), est.interval(0.9))
    assert (value["n"], value["level"], value["status"]) == (len(problem.proba), 0.9, est.status.name.lower())
    assert value["shift_p"] == est.checks.shift_p
    assert est.to_dict(level=None)["interval"] is None
    assert rp.mlls([1, 2], [[0.5, 0.5]]).to_dict()["classes"] == ["0", "1"]


def test_notebooks_show_a_table_with_names_escaped(problem, pipe):
    est, stream = pipe.estimate(problem.proba), pipe.stream()
    stream.learn_many(problem.proba)
    for shown in (est, stream):
        text = shown._repr_html_()
        assert text.count("<tr>") == 6
        assert "<td>&lt;b&gt;cat&lt;/b&gt;</td>" in text
        assert "<b>" not in text


def test_streams_are_drawn_and_tables_are_frames(problem, pipe):
    stream, table = pipe.stream(), pipe.table()
    stream.learn_many(problem.proba)
    axes = stream.plot(top=3)
    assert len(axes.get_yticklabels()) == 3
    with pytest.raises(rp.InputError, match="have at least one stream; got none"):
        table.to_frame()
    table.learn(["a", "b"] * (len(problem.proba) // 2), problem.proba)
    frame = table.to_frame()
    assert frame.index.names == ["key", "class"]
    np.testing.assert_array_equal(frame.loc["b", "prior"], table.prior("b"))
    pd.testing.assert_frame_equal(frame.loc["a"], table["a"].to_frame())


def test_each_kind_is_read_by_its_own_loader(problem, pipe, tmp_path):
    made = {
        rp.Pipeline: pipe, rp.Stream: pipe.stream(), rp.StreamTable: pipe.table(), rp.Alarm: rp.Alarm(pipe.source),
        rp.AlarmTable: rp.AlarmTable(pipe.source),
    }  # fmt: skip
    for kind, value in made.items():
        value.save(tmp_path / kind.__name__)
        loaded = kind.load(tmp_path / kind.__name__)
        assert type(loaded) is kind
        assert loaded.to_bytes() == value.to_bytes()
        other = next(name for name in made if name is not kind)
        value.save(tmp_path / "signed", key=b"secret")
        assert kind.load(tmp_path / "signed", key=b"secret").to_bytes() == value.to_bytes()
        with pytest.raises(rp.InputError):
            other.load(tmp_path / kind.__name__)
        with pytest.raises(rp.InputError, match=f"^{kind.__name__}.load: `path` must be a file that `save` wrote"):
            kind.load(tmp_path)


def test_a_pipeline_shows_its_options(problem):
    held, y = problem.source.heldout
    text = repr(rp.pipeline(held, y, method="fmapls", variant="paper", c=50.0))
    assert text.startswith("Pipeline(method='fmapls', variant='paper', c=50.0, calibration=")
    assert "base=array(5,)" in repr(rp.pipeline(held, y, counts=np.bincount(y, minlength=5) + 1))


def test_an_alarm_is_armed_again_with_a_new_reference(problem, pipe):
    shifted = problem.proba[problem.proba[:, 4] > 0.3]
    shifted = np.tile(shifted, (1 + 3000 // len(shifted), 1))
    for alarm in (rp.Alarm(pipe.source), rp.Alarm.from_bytes(rp.Alarm(pipe.source).to_bytes())):
        stream = rp.Stream("online-ebls", pipe.source)
        assert alarm.watch(stream, shifted[:1500])
        alarm.reset()
        assert alarm.watch(stream, shifted[:1500])
        alarm.reset(shifted[:1500])
        assert not alarm.watch(stream, shifted[1500:])
        again = rp.Alarm.from_bytes(alarm.to_bytes())
        assert again.verdict == alarm.verdict
        with pytest.raises(rp.InputError, match="`reference` must have at least two rows"):
            alarm.reset(shifted[:1])
        assert alarm.verdict == again.verdict


def test_fmapls_starts_where_the_paper_lets_it_start(problem):
    k = len(problem.source_prior)
    plain = rp.fmapls(problem.source, problem.proba, variant="paper", n_iter=20)
    answer = rp.fmapls(problem.source, problem.proba, variant="paper", n_iter=20, alpha0=1, start=np.full(k, 1 / k))
    np.testing.assert_allclose(answer.prior, plain.prior, rtol=1e-9)
    # one step by hand (eq. 9): π ∝ α⁰ − 1 + Σ posterior
    alpha, start = np.array([3.0, 2.0, 1.5, 4.0, 1.0]), np.array([0.4, 0.3, 0.1, 0.1, 0.1])
    posterior = problem.proba * start / problem.source.prior
    posterior /= posterior.sum(axis=1, keepdims=True)
    expected = alpha - 1 + posterior.sum(axis=0)
    for update in ("lsf", "ga", "newton"):
        estimate = rp.fmapls(
            problem.source, problem.proba, variant="paper", n_iter=1, alpha0=alpha, start=start, update=update
        )
        np.testing.assert_allclose(estimate.prior, expected / expected.sum(), rtol=1e-12)
    stable = rp.fmapls(problem.source, problem.proba, n_iter=1, alpha0=alpha, start=start)
    np.testing.assert_allclose(stable.prior, (expected + 1) / (expected + 1).sum(), rtol=1e-12)
    for bad in (0, [1, 2], -1.0, "one"):
        with pytest.raises(rp.InputError, match="`alpha0` must"):
            rp.fmapls(problem.source, problem.proba, alpha0=bad)
