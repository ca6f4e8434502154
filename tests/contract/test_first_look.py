"""What somebody sees who uses the library for the first time: values that read well, and mistakes that are named."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from worlds import make_problem, score_outputs

import reprior as rp

NAMES = list("abcde")


@pytest.fixture(scope="module")
def pipe():
    held, y = make_problem().source.heldout
    return rp.pipeline(held, y, classes=NAMES)


@pytest.fixture(scope="module")
def groups(pipe):
    problem = make_problem()
    return pipe.groups(np.arange(len(problem.proba)) % 12, problem.proba)


def test_groups_read_as_what_they_have_in_common_and_a_short_table(groups, pipe):
    lines = repr(groups).splitlines()
    assert lines[0] == "12 groups with 400 samples."
    assert lines[1].startswith("Common prior: ")
    assert lines[2] == "No clear difference between the groups."
    assert "array(" not in repr(groups) + repr(groups.population)
    assert lines.count("… and 2 groups of at most this size") == 1
    assert len(lines) < 20
    alone = pipe.groups([0, 1], make_problem().proba[:2], share=False)
    assert repr(alone).startswith("Estimates of 2 separate groups from 2 samples, 5 classes\n")
    assert groups == groups
    assert groups != alone


def test_groups_have_a_frame_and_a_picture_as_estimates_have(groups):
    frame = groups.to_frame(0.9)
    assert frame.index.names == ["group", "class"]
    assert len(frame) == 60
    assert frame.loc[7].equals(groups[7].to_frame(0.9))
    assert list(groups.to_frame(None).columns) == ["source", "shares", "prior", "weight"]
    axes = groups.plot("c", top=5)
    assert "Share of c" in axes.get_title(loc="left")
    assert [label.get_text() for label in axes.get_yticklabels()] == ["0", "1", "2", "3", "4"]
    most = NAMES[int(groups.prior.std(axis=0).argmax())]
    assert f"Share of {most}" in groups.plot().get_title(loc="left")
    with pytest.raises(rp.InputError, match=r"^Groups\.plot: `label` must be one of the classes; got 'z'. The classes"):
        groups.plot("z")


def test_streams_read_as_their_largest_movers(pipe):
    stream, table = pipe.stream(), pipe.table()
    stream.learn_many(make_problem().proba[:200])
    lines = repr(stream).splitlines()
    assert lines[0] == "Stream of 200 samples, method online-ebls"
    assert lines[1] == f"{stream.acts.share:.0%} of the correction is applied. {stream.acts.reason}"
    assert lines[3].split() == ["class", "source", "prior", "95", "%", "interval", "change"]
    assert sorted(line.split()[0] for line in lines[4:9]) == NAMES
    table.learn(["x", "y", "x"], make_problem().proba[:3])
    assert repr(table).startswith("StreamTable('online-ebls', 5 classes, 2 streams, n=3")


def test_a_normal_end_needs_no_word(pipe):
    problem = make_problem()
    for method in ("ebls", "mlls", "fmapls", "bbse"):
        est = rp.estimate(pipe.source, problem.proba, method)
        assert est.status.normal
        assert "onverged" not in repr(est)
        assert "Solved" not in repr(est)
    short = rp.mapls(pipe.source, problem.proba, n_iter=1)
    assert short.status.normal
    assert short.notes[-1] == short.interval().note


def test_a_class_without_held_out_rows_is_named_in_the_first_lines():
    held, y = make_problem().source.heldout
    some = y != 2
    est = rp.pipeline(held[some], y[some], classes=NAMES).estimate(make_problem().proba)
    assert repr(est).splitlines()[2] == "Class c has no held-out sample. Its share depends on uncalibrated predictions."
    assert repr(est.detach()).splitlines()[2] == repr(est).splitlines()[2]
    both = rp.summarize(held[y < 3], y[y < 3])
    message = repr(rp.ebls(both, make_problem().proba)).splitlines()[1]
    assert message == "2 of 5 classes have no held-out sample (3, 4). Their shares depend on uncalibrated predictions."
    whole = rp.pipeline(held, y, classes=NAMES).estimate(make_problem().proba)
    assert "no held-out sample" not in repr(whole)


def test_the_first_line_says_whether_there_is_a_shift():
    def outputs(n, prior, rng):
        y = rng.choice(3, n, p=prior)
        return score_outputs(rng, y, 3, 2.5), y

    visited = set()
    for seed in range(45, 60):
        rng = np.random.default_rng(seed)
        est = rp.pipeline(*outputs(200, [1 / 3] * 3, rng)).estimate(outputs(300, [0.26, 0.3, 0.44], rng)[0])
        p, line = est.checks.shift_p, repr(est).splitlines()[1]
        message = "The predictions have" if p < 1e-3 else "The predictions may have" if p < 0.05 else "No shift found"
        assert line.startswith(message)
        visited.add(message)
    assert {"The predictions have", "The predictions may have"} <= visited


def test_warnings_name_the_users_own_line():
    problem = make_problem(k=4, n=2000, separation=2.0, alpha=5.0)
    strange = np.random.default_rng(1).dirichlet(np.full(4, 30.0), 2000)  # unsure rows, such as no class has
    est = rp.pipeline(problem.proba, problem.y).estimate(strange)
    calls = (
        lambda: est.correct(strange),
        lambda: est.prediction_sets(strange),
        lambda: rp.pipeline(problem.proba, (problem.y + 1) % 4),
    )
    for call in calls:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            call()
        assert [(Path(w.filename).name, w.lineno) for w in caught] == [
            (Path(__file__).name, call.__code__.co_firstlineno)
        ]


def test_training_rows_given_as_held_out_rows_are_asked_about():
    """A model that knows rows by heart is right and sure about them all, and less sure about others."""
    from sklearn.datasets import load_digits
    from sklearn.ensemble import RandomForestClassifier

    from reprior.adapters.sklearn import LabelShiftClassifier

    X, y = load_digits(return_X_y=True)
    model = RandomForestClassifier(30, random_state=0).fit(X[:800], y[:800])
    new, asked = X[1300:], "Were the held-out samples used for training?"
    est = rp.pipeline(model.predict_proba(X[:800]), y[:800]).estimate(model.predict_proba(new))
    assert asked in repr(est).splitlines()[1]
    with pytest.raises(rp.InputError, match="Were the held-out samples used for training"):
        replace(est, on_reject="refuse").correct(model.predict_proba(new))
    with pytest.warns(UserWarning, match="Were the held-out samples used for training"):
        est.correct(model.predict_proba(new))
    with pytest.warns(UserWarning, match="Were the held-out samples used for training"):
        LabelShiftClassifier(model).fit(X[:800], y[:800]).adapt(new)
    right = rp.pipeline(model.predict_proba(X[800:1300]), y[800:1300]).estimate(model.predict_proba(new))
    assert asked not in repr(right)
    strange = np.random.default_rng(0).dirichlet(np.full(10, 30.0), 500)  # rows of another kind, and a fair source
    other = rp.pipeline(model.predict_proba(X[800:1300]), y[800:1300]).estimate(strange)
    assert other.checks.label_shift < 1e-3
    assert asked not in repr(other)


def test_mistakes_are_named_in_a_sentence(pipe, tmp_path):
    with pytest.raises(rp.InputError, match=r"^query: `estimate` must be what .* returned; got a Pipeline"):
        rp.query(pipe)
    with pytest.raises(rp.InputError, match=r"^load: `path` must be a file that `save` wrote; got the folder"):
        rp.load(tmp_path)
    with pytest.raises(rp.InputError, match=r"^load: `path` must be the path of a file, or bytes; got a Pipeline"):
        rp.load(pipe)
    (tmp_path / "t.csv").write_text("a,b,c,d,e")
    with pytest.raises(rp.InputError, match=r"^load: `.*t.csv` must be bytes written by reprior"):
        rp.load(tmp_path / "t.csv")
    with pytest.raises(
        rp.InputError, match=r"^pipeline: `method` must be one of .*; got 'mlss'. Perhaps you mean 'mlls'"
    ):
        rp.pipeline(counts=[1, 1], method="mlss")
    table = pipe.table()
    with pytest.raises(KeyError, match=r"There is no stream 'nope'. There is none yet"):
        table["nope"]
    table.learn(range(7), make_problem().proba[:7])
    with pytest.raises(KeyError, match=r"There is no stream 'nope'. The streams are 0, 1, 2, 3, 4, …"):
        table.pop("nope")
    with pytest.raises(KeyError, match=r"There is no key 'nope'"):
        rp.AlarmTable(pipe.source)["nope"]


def test_the_package_lists_its_public_names_alone():
    assert dir(rp) == sorted([*rp.__all__, "__version__"])


def test_a_stream_has_the_frame_of_an_estimate(problem):
    stream = rp.pipeline(*problem.source.heldout, classes=list("abcde")).stream()
    stream.learn_many(problem.proba)
    frame = stream.to_frame(0.9)
    assert list(frame.columns) == ["source", "prior", "weight", "lower", "upper", "acts_share"]
    assert (frame.index.name, list(frame.index)) == ("class", list("abcde"))
    np.testing.assert_array_equal(frame["prior"], stream.prior)
    np.testing.assert_array_equal(frame["lower"], stream.interval(0.9).lower)
    assert list(stream.to_frame(None).columns) == ["source", "prior", "weight", "acts_share"]


def test_groups_called_by_days_are_shown_by_their_dates(problem):
    pd = pytest.importorskip("pandas")
    days = pd.to_datetime("2026-01-01") + pd.to_timedelta(np.arange(400) % 3, unit="D")
    by_group = rp.groups(problem.source, days, problem.proba)
    assert "\n2026-01-02 " in repr(by_group)
    assert "00:00" not in repr(by_group)
    hours = rp.groups(problem.source, days + pd.to_timedelta(np.arange(400) % 2, unit="h"), problem.proba)
    assert "2026-01-02 00:00:00" in repr(hours)
