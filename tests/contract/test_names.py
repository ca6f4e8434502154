"""Classes are matched by name wherever there are names, and never by position where names disagree."""

from __future__ import annotations

import json
import unicodedata

import numpy as np
import pandas as pd
import pytest
from worlds import make_problem

import reprior as rp

pytestmark = pytest.mark.filterwarnings("ignore:.* of the correction is applied")  # not the point here

NAMES = ["ant", "bee", "cat", "dog", "eel"]
SHUFFLED = ["dog", "ant", "eel", "bee", "cat"]


@pytest.fixture
def frames(problem):
    rows = pd.DataFrame(problem.proba, columns=NAMES)
    held, y = problem.source.heldout
    return rows, pd.DataFrame(held, columns=NAMES), np.array(NAMES)[y]


@pytest.mark.parametrize("method", sorted(rp.METHODS))
def test_columns_in_another_order_give_the_same_shares(problem, frames, method):
    rows, held, y = frames
    source = rp.summarize(held, y)
    assert source.classes == tuple(NAMES)
    expected = rp.estimate(problem.source, problem.proba, method)
    estimate = rp.estimate(source, rows[SHUFFLED], method)
    assert estimate.classes == tuple(NAMES)
    np.testing.assert_allclose(estimate.prior, expected.prior, atol=1e-8)  # maximum likelihood is certified to 1e-8
    np.testing.assert_array_equal(estimate.correct(rows[SHUFFLED])[NAMES], estimate.correct(rows))


def test_counts_of_any_kind_are_matched_to_columns_by_name(problem, frames):
    rows, _, _ = frames
    counts = dict(zip(NAMES, (1000 * problem.source_prior).round(), strict=True))
    expected = rp.ebls(list(counts.values()), problem.proba).prior
    largest_first = pd.Series(counts).sort_values(ascending=False)[::-1]
    for named in (counts, {name: counts[name] for name in SHUFFLED}, largest_first):
        estimate = rp.ebls(named, rows)
        np.testing.assert_allclose(estimate.prior, expected, atol=1e-12)
        assert estimate.classes == tuple(NAMES)


def test_names_out_of_order_beside_columns_without_names_are_refused(problem):
    counts = dict(zip(SHUFFLED, [5, 4, 3, 2, 1], strict=True))
    for call in (
        lambda: rp.ebls(counts, problem.proba),
        lambda: rp.Stream("online-ebls", counts),
        lambda: rp.pipeline(counts=counts),
        lambda: rp.metrics.kl(counts, problem.target_prior),
    ):
        with pytest.raises(rp.InputError, match="sorted by name"):
            call()


def test_counts_of_integer_labels_are_put_to_their_columns(problem):
    y = pd.Series(problem.y)
    estimate = rp.mlls(y.value_counts(), problem.proba)
    np.testing.assert_allclose(estimate.source.prior, np.bincount(problem.y, minlength=5) / len(y))


def test_names_that_are_not_the_same_are_told(problem, frames):
    rows, held, y = frames
    source = rp.summarize(held, y)
    with pytest.raises(rp.InputError, match="without eel and with owl besides"):
        rp.ebls(source, rows.rename(columns={"eel": "owl"}))
    with pytest.raises(rp.InputError, match="hold names of classes; got owl"):
        rp.summarize(held, ["owl", *y[1:]])


@pytest.mark.parametrize("classes", [("1", "2", "3"), (1, 2, 3), (1.0, 2.0, 3.0)])
def test_whole_numbers_are_names_where_names_are_numbers_and_columns_elsewhere(classes):
    rows = np.full((3, 3), 1 / 3)
    np.testing.assert_array_equal(rp.summarize(rows, [1, 3, 3], classes=classes).counts, [1, 0, 2])
    np.testing.assert_array_equal(rp.summarize(rows, [0, 2, 2], classes=["a", "b", "c"]).counts, [1, 0, 2])
    np.testing.assert_array_equal(rp.summarize(rows, [0, 2, 2]).counts, [1, 0, 2])
    with pytest.raises(rp.InputError, match="names of classes; got 0"):
        rp.summarize(rows, [0, 2, 2], classes=classes)


def test_metrics_match_by_name():
    a = pd.Series({"x": 0.2, "y": 0.3, "z": 0.5})
    assert rp.metrics.kl(a, a[::-1]) == 0
    assert rp.metrics.absolute_error(a[::-1], {"y": 0.3, "x": 0.2, "z": 0.5}) == pytest.approx(0)


def test_the_shell_matches_by_name_whatever_the_order(tmp_path, capfd):
    from reprior.cli import cli
    from reprior.cli._shell import run

    problem = make_problem(k=5, n=300)
    held, y = problem.source.heldout
    pd.DataFrame(held, columns=NAMES).assign(label=np.array(NAMES)[y]).to_csv(tmp_path / "held.csv", index=False)
    np.savez(tmp_path / "a.npz", proba=problem.proba, classes=NAMES)
    order = [NAMES.index(name) for name in SHUFFLED]
    np.savez(tmp_path / "b.npz", proba=problem.proba[:, order], classes=SHUFFLED)
    numbered = pd.DataFrame(problem.proba, columns=[f"proba_{k}" for k in range(5)])
    numbered.to_csv(tmp_path / "c.csv", index=False)
    (tmp_path / "names.txt").write_text("\n".join(NAMES))

    def ask(*args):
        code = run(cli, [str(arg) for arg in args])
        out, err = capfd.readouterr()
        assert code == 0, err
        return json.loads(out)

    ask("fit", tmp_path / "held.csv", "-o", tmp_path / "model.reprior", "--json")
    arguments = ["--source", tmp_path / "model.reprior", "--json"]
    first = ask("estimate", tmp_path / "a.npz", *arguments)
    second = ask("estimate", tmp_path / "b.npz", *arguments)
    third = ask("estimate", tmp_path / "c.csv", *arguments, "--classes", tmp_path / "names.txt")
    for other in (second, third):
        assert other["classes"] == NAMES
        assert other["matched"] == "name"
        np.testing.assert_allclose(other["prior"], first["prior"], atol=1e-9)
    ask("correct", tmp_path / "a.npz", *arguments, "-o", tmp_path / "ca.npz")
    ask("correct", tmp_path / "b.npz", *arguments, "-o", tmp_path / "cb.npz")
    a, b = np.load(tmp_path / "ca.npz")["proba"], np.load(tmp_path / "cb.npz")["proba"]
    np.testing.assert_allclose(a[:, order], b, atol=1e-12)


@pytest.mark.parametrize("names", [["1", "2", "3"], ["2", "0", "1"], ["10", "5", "7"]])
def test_classes_with_numbers_for_names_keep_them_everywhere(tmp_path, capfd, names):
    from reprior.cli import cli
    from reprior.cli._shell import run

    problem = make_problem(k=3, n=200)
    held, y = problem.source.heldout
    plain = rp.pipeline(held, y).estimate(problem.proba)
    numbers = np.array(names, int)[y]
    pipe = rp.pipeline(held, numbers, classes=names)
    np.testing.assert_array_equal(pipe.source.counts, np.bincount(y))
    np.testing.assert_array_equal(pipe.estimate(problem.proba).prior, plain.prior)
    chosen = rp.select(held, numbers, classes=names, trials=2, methods=("ebls",), calibrations=("temperature",))
    np.testing.assert_array_equal(chosen.source.counts, np.bincount(y))
    again = rp.load(pipe.to_bytes())
    np.testing.assert_array_equal(again.source.heldout[1], y)
    pd.DataFrame(held, columns=names).assign(label=numbers).to_csv(tmp_path / "h.csv", index=False)
    pd.DataFrame(problem.proba, columns=names)[sorted(names)].to_csv(tmp_path / "t.csv", index=False)
    code = run(cli, ["estimate", str(tmp_path / "t.csv"), "--source", str(tmp_path / "h.csv"), "--json"])
    out, err = capfd.readouterr()
    assert code == 0, err
    answer = json.loads(out)
    assert answer["classes"] == names
    np.testing.assert_allclose(answer["prior"], plain.prior, atol=1e-9)


@pytest.mark.parametrize("suffix", ["csv", "parquet", "ndjson"])
def test_files_keep_the_order_of_columns_called_by_numbers(tmp_path, capfd, suffix):
    from reprior.cli import cli
    from reprior.cli._shell import run

    problem = make_problem(k=2, n=300)
    held, y = problem.source.heldout
    frame = pd.DataFrame(held[:, ::-1], columns=["1", "0"]).assign(label=y)
    write = {"csv": lambda path: frame.to_csv(path, index=False), "parquet": frame.to_parquet,
             "ndjson": lambda path: frame.to_json(path, orient="records", lines=True)}  # fmt: skip
    write[suffix](tmp_path / f"held.{suffix}")
    np.savez(tmp_path / "t.npz", proba=problem.proba[:, ::-1])
    assert run(cli, ["fit", str(tmp_path / f"held.{suffix}"), "-o", str(tmp_path / "m.reprior")]) == 0
    capfd.readouterr()
    assert run(cli, ["estimate", str(tmp_path / "t.npz"), "--source", str(tmp_path / "m.reprior"), "--json"]) == 0
    answer = json.loads(capfd.readouterr().out)
    assert answer["classes"] == ["1", "0"]
    np.testing.assert_allclose(answer["prior"][::-1], rp.pipeline(held, y).estimate(problem.proba).prior, atol=1e-6)


def test_columns_called_by_their_index_are_put_in_order(problem):
    frame = pd.DataFrame(problem.proba)
    held, y = problem.source.heldout
    pipe = rp.pipeline(held, y)
    expected = pipe.estimate(problem.proba)
    for order in ([4, 2, 0, 1, 3], [0, 1, 2, 3, 4]):
        estimate = pipe.estimate(frame[order])
        np.testing.assert_allclose(estimate.prior, expected.prior, rtol=1e-12)
        fixed = estimate.correct(frame[order])
        assert list(fixed.columns) == order
        np.testing.assert_allclose(fixed[[0, 1, 2, 3, 4]].to_numpy(), expected.correct(problem.proba), rtol=1e-12)
    shuffled = pd.DataFrame(held)[[4, 2, 0, 1, 3]]
    kept = rp.pipeline(shuffled, y)
    assert kept.classes == ("4", "2", "0", "1", "3")
    np.testing.assert_allclose(kept.source.prior, pipe.source.prior[[4, 2, 0, 1, 3]], rtol=1e-9)
    two = pd.DataFrame(np.c_[problem.proba[:, 0], 1 - problem.proba[:, 0]], columns=[True, False])
    np.testing.assert_allclose(
        rp.ebls([1, 1], two).prior, rp.ebls([1, 1], two.iloc[:, ::-1].to_numpy()).prior, rtol=1e-12
    )


ORDERS = [[1, 0], [True, False], [False, True], [2, 0, 1], [1.0, 0.0]]


@pytest.mark.parametrize("names", ORDERS)
@pytest.mark.parametrize("kind", ["same", int, float, str])
def test_columns_keep_their_order_whatever_they_are_called(names, kind):
    problem = make_problem(k=len(names), n=300)
    held, y = problem.source.heldout
    letters = list("abc"[: len(names)])
    plain = rp.pipeline(held, np.array(letters)[y], classes=letters)
    labels = np.array(names)[y] if kind == "same" else [kind(names[k]) for k in y]
    pipe = rp.pipeline(pd.DataFrame(held, columns=names), labels)
    assert pipe.classes == tuple(map(str, names))
    np.testing.assert_array_equal(pipe.source.heldout[1], y)
    expected = plain.estimate(problem.proba)
    frame = pd.DataFrame(problem.proba, columns=names)
    for rows in (problem.proba, frame, frame.iloc[:, ::-1]):
        np.testing.assert_allclose(pipe.estimate(rows).prior, expected.prior, rtol=1e-9)
    stream = pipe.stream()
    np.testing.assert_allclose(stream.correct_one(problem.proba[0]), plain.stream().correct_one(problem.proba[0]))
    turned = stream.correct_many(frame.iloc[:, ::-1])
    assert list(turned.columns) == names[::-1]
    np.testing.assert_allclose(turned.iloc[:, ::-1], plain.stream().correct_many(problem.proba))
    some = [names[k] if i % 5 == 0 else None for i, k in enumerate(problem.y)]
    answer = [letters[k] if i % 5 == 0 else None for i, k in enumerate(problem.y)]
    estimate = pipe.estimate(frame, labels=some)
    np.testing.assert_allclose(estimate.prior, plain.estimate(problem.proba, labels=answer).prior, rtol=1e-9)
    np.testing.assert_array_equal(rp.load(pipe.to_bytes()).source.heldout[1], y)


def test_what_pandas_numbers_by_itself_has_no_names(problem):
    held, y = problem.source.heldout
    numbers = [2, 0, 1, 4, 3]
    pipe = rp.pipeline(pd.DataFrame(held), np.array(numbers)[y], classes=numbers)
    np.testing.assert_array_equal(pipe.source.heldout[1], y)
    rows = pd.DataFrame(problem.proba)
    for call in (pipe.estimate, pipe.stream().correct_many, pipe.calibrate):
        with pytest.raises(rp.InputError, match=r"classes 2, 0, 1, 4, 3; got 0 to 4, .* Pass `proba.to_numpy"):
            call(rows)
    with pytest.raises(rp.InputError, match=r"`counts` must have class names.* Pass `counts.to_numpy"):
        rp.pipeline(held, np.array(numbers)[y], classes=numbers, counts=pd.Series(np.bincount(y) + 1))
    expected = pipe.estimate(problem.proba).prior
    np.testing.assert_allclose(pipe.estimate(rows.set_axis(numbers, axis=1)).prior, expected, rtol=1e-12)
    in_order = rp.pipeline(held, y, classes=range(5))
    np.testing.assert_allclose(in_order.estimate(rows).prior, in_order.estimate(problem.proba).prior, rtol=1e-12)


def test_false_and_true_are_names_that_others_do_not_match():
    problem = make_problem(k=2, n=200)
    held, y = problem.source.heldout
    pipe = rp.pipeline(pd.DataFrame(held, columns=[True, False]), y == 0)
    with pytest.raises(rp.InputError, match="without True, False and with 0, 1 besides"):
        pipe.estimate(pd.DataFrame(problem.proba, columns=[0, 1]))
    other = rp.pipeline(held, y, classes=["yes", "no"])
    with pytest.raises(rp.InputError, match="without yes, no and with True, False besides"):
        other.estimate(pd.DataFrame(problem.proba, columns=[True, False]))
    counts = pd.Series([True] * 7 + [False] * 3).value_counts()
    assert rp.pipeline(counts=counts).classes == ("False", "True")
    np.testing.assert_allclose(rp.pipeline(counts=counts).source.prior, [0.3, 0.7])
    base = rp.pipeline(held, y == 0, classes=[True, False], counts=counts).options["base"]
    np.testing.assert_allclose(base, [0.7, 0.3])


@pytest.mark.parametrize("label", [True, np.True_])
def test_truths_are_no_indices_of_classes_with_names(label):
    problem = make_problem(k=3, n=200)
    pipe = rp.pipeline(*problem.source.heldout, classes=["yes", "no", "perhaps"])
    stream, many = pipe.stream(), np.full(200, label)
    before = stream.prior
    for call in (
        lambda: stream.observe(problem.proba[0], label),
        lambda: rp.pipeline(problem.proba, many, classes=["yes", "no", "perhaps"]),
        lambda: pipe.estimate(problem.proba, labels=many),
    ):
        with pytest.raises(rp.InputError, match="hold names of classes, or column indices; got"):
            call()
    for alone in (2.0, np.float64(1)):
        with pytest.raises(rp.InputError, match="`y` must be the name of a class, or a column index; got "):
            stream.observe(problem.proba[0], alone)
    np.testing.assert_array_equal(stream.prior, before)
    gaps = pd.Series([1, 2, None] + [None] * 197)  # which pandas makes floats
    assert pipe.estimate(problem.proba, labels=gaps).n_labels == 2
    with pytest.raises(rp.InputError, match="got False or True"):
        rp.pipeline(problem.proba, problem.y > 0)


def test_truths_name_the_two_columns_of_a_classifier_without_names():
    problem = make_problem(k=2, n=200)
    held, y = problem.source.heldout
    for classes in (None, ["0", "1"], [False, True]):
        np.testing.assert_array_equal(rp.pipeline(held, y == 1, classes=classes).source.heldout[1], y)
    np.testing.assert_array_equal(rp.pipeline(held[:, ::-1], y == 1, classes=[1, 0]).source.heldout[1], 1 - y)


def test_metrics_match_numbers_that_are_names():
    a = pd.Series({10: 0.2, 20: 0.3, 5: 0.5})
    assert rp.metrics.kl(a, a[::-1]) == 0


def test_a_frame_comes_back_as_it_came(problem, frames):
    rows, held, y = frames
    est = rp.pipeline(held, y).estimate(rows)
    rows.index = np.arange(len(rows)) + 7
    fixed = est.correct(rows[SHUFFLED])
    assert list(fixed.columns) == SHUFFLED
    assert (fixed.index == rows.index).all()
    np.testing.assert_array_equal(fixed[NAMES].to_numpy(), est.correct(rows.to_numpy()))


def test_labels_in_another_order_than_the_rows_and_missing_ones_are_refused(frames):
    _, held, y = frames
    labels = pd.Series(y, index=held.index)
    with pytest.raises(rp.InputError, match="same index in another order"):
        rp.pipeline(held, labels[::-1])
    for missing in (None, float("nan")):
        with pytest.raises(rp.InputError, match="hold the class of every row; got a missing label"):
            rp.pipeline(held, [missing, *y[1:]])


def test_a_prior_may_be_given_as_its_estimate(problem):
    held, y = problem.source.heldout
    pipe = rp.pipeline(held, y)
    est = pipe.estimate(problem.proba)
    np.testing.assert_allclose(pipe.correct(problem.proba, est), est.correct(problem.proba), rtol=1e-12)


@pytest.fixture
def fitted(frames):
    _, held, y = frames
    return rp.pipeline(held, y)


CORRECTIONS = {
    "estimate": lambda pipe, rows: pipe.estimate(rows, on_reject="ignore").correct(rows),
    "pipeline": lambda pipe, rows: pipe.correct(rows, dict(zip(NAMES, [5, 1, 1, 1, 2], strict=True))),
    "calibrate": lambda pipe, rows: pipe.calibrate(rows),
    "stream": lambda pipe, rows: learned(pipe.stream(), rows).correct_many(rows),
    "plain stream": lambda pipe, rows: learned(rp.Stream("online-ebls", pipe.source), rows).correct_many(rows),
    "calibrated": lambda pipe, rows: pipe.stream().calibrated(rows),
    "table": lambda pipe, rows: learned(pipe.table(), ["a"] * len(rows), rows).correct(["a"] * len(rows), rows),
    "calibrated of a table": lambda pipe, rows: pipe.table().calibrated(rows),
    "correct": lambda pipe, rows: rp.correct(rows, pd.Series([5, 1, 1, 1, 2], NAMES)),
    "groups": lambda pipe, rows: pipe.groups(["a"] * len(rows), rows)["a"].correct(rows),
    "all groups": lambda pipe, rows: pipe.groups(["a"] * len(rows), rows).correct(["a"] * len(rows), rows),
}


def learned(stream, *inputs):
    (stream.learn if len(inputs) == 2 else stream.learn_many)(*inputs)
    return stream


@pytest.mark.parametrize("how", CORRECTIONS)
def test_a_frame_comes_back_in_its_own_order(fitted, frames, how):
    rows = frames[0][:80].set_axis(range(100, 180))
    expected, result = (CORRECTIONS[how](fitted, some) for some in (rows, rows[SHUFFLED]))
    assert list(result.columns) == SHUFFLED
    assert list(result.index) == list(rows.index)
    np.testing.assert_allclose(result[NAMES], expected, atol=1e-12)
    assert not np.allclose(result, expected)


def test_column_indices_come_back_in_their_own_order_too(problem):
    rows = pd.DataFrame(problem.proba[:20])
    expected = rp.correct(rows.to_numpy(), [5, 1, 1, 1, 2])
    corrected = rp.correct(rows[[3, 0, 4, 1, 2]], [5, 1, 1, 1, 2])
    np.testing.assert_array_equal(corrected[range(5)], expected)
    stream = rp.Stream("online-ebls", problem.source)
    np.testing.assert_array_equal(stream.correct_many(rows[[3, 0, 4, 1, 2]])[range(5)], stream.correct_many(rows))


def test_numbers_without_names_have_the_order_of_the_frame(frames):
    rows = frames[0][:9]
    corrected = rp.correct(rows[SHUFFLED], [9, 1, 1, 1, 1])
    np.testing.assert_allclose(corrected[NAMES], rp.correct(rows, {"dog": 9, "ant": 1, "bee": 1, "cat": 1, "eel": 1}))


def test_a_frame_with_names_beside_classes_without_any_keeps_its_own(problem, frames):
    est = rp.ebls(problem.source, problem.proba)
    corrected = est.correct(frames[0])
    assert list(corrected.columns) == NAMES
    np.testing.assert_array_equal(corrected, est.correct(problem.proba))


def test_one_row_with_names_comes_back_with_them(fitted, frames):
    rows = frames[0]
    stream = learned(fitted.stream(), rows)
    expected = stream.correct_one(rows.iloc[7].to_numpy())
    np.testing.assert_array_equal(stream.correct_one(rows.iloc[7][SHUFFLED])[NAMES], expected)
    corrected = stream.correct_one(rows.iloc[7][SHUFFLED].to_dict())
    assert list(corrected) == SHUFFLED
    assert [corrected[name] for name in NAMES] == expected.tolist()


def test_a_late_label_of_a_table_is_matched_by_name(fitted, frames):
    rows = frames[0]
    one, other, unlabelled = fitted.table(), fitted.table(), fitted.table()
    for table in (one, other, unlabelled):
        table.learn(["a"] * len(rows), rows)
    one.observe("a", rows.iloc[3][SHUFFLED], "bee")
    other.observe("a", rows.iloc[3].to_numpy(), 1)
    np.testing.assert_array_equal(one.prior("a"), other.prior("a"))
    assert one.prior("a")[1] > unlabelled.prior("a")[1]


def test_alarms_match_by_name(fitted, frames):
    rows = frames[0]
    for make, inputs in ((rp.Alarm, ()), (rp.AlarmTable, (["a"] * len(rows),))):
        first, second = (
            make(fitted.source).watch(fitted.table() if inputs else fitted.stream(), *inputs, some)
            for some in (rows, rows[SHUFFLED])
        )
        assert first == second
    observed, prior = fitted.calibrate(rows), pd.Series([0.1, 0.2, 0.3, 0.2, 0.2], NAMES)
    one, other = rp.Alarm(fitted.source), rp.Alarm(fitted.source, reference=rows[SHUFFLED][:100])
    assert one.look(observed, prior) == rp.Alarm(fitted.source).look(observed[SHUFFLED], prior[SHUFFLED])
    same = rp.Alarm(fitted.source, reference=rows[:100]).rows
    np.testing.assert_allclose(other.rows, same, rtol=1e-12)  # a frame's memory may lie in another order


def test_metrics_of_rows_take_names(problem, frames):
    rows, y = frames[0], np.array(NAMES)[problem.y]
    for metric in (rp.metrics.accuracy, rp.metrics.log_loss):
        expected = metric(problem.proba, problem.y)
        assert metric(problem.proba, y, classes=NAMES) == metric(rows[SHUFFLED], y) == expected
        with pytest.raises(rp.InputError, match="or with `classes`"):
            metric(problem.proba, y)
    own = problem.proba[np.arange(len(y)), problem.y]
    assert rp.metrics.log_loss(rows, y) == pytest.approx(-np.log(own).mean())
    assert rp.metrics.log_loss([[1.0, 0.0]], [1]) == np.inf
    weights = pd.Series([9, 1, 1, 1, 1], NAMES)
    assert rp.metrics.accuracy(rows, y, weights=weights[SHUFFLED]) == rp.metrics.accuracy(rows, y, weights=weights)


def test_names_of_classes_come_in_an_order_and_all_are_there():
    rows, y = [[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]] * 4, [0, 1, 2] * 4
    for make in (
        lambda classes: rp.pipeline(rows, y, classes=classes), lambda classes: rp.summarize(rows, y, classes=classes),
        lambda classes: rp.pipeline(counts=[1, 2, 3], classes=classes),
        lambda classes: rp.pipeline(pd.DataFrame(rows, columns=list("abc")), y, classes=classes),
    ):  # fmt: skip
        for classes in ({"a", "b", "c"}, frozenset("abc")):
            with pytest.raises(rp.InputError, match=r"must come in the order of the columns; got a set.*list"):
                make(classes)
        for nothing in (None, float("nan"), pd.NA):
            with pytest.raises(rp.InputError, match=r"must have a name for every class; got .*at column 1"):
                make(["a", nothing, "c"])
        make(["a", "b", "c"])


def test_columns_that_are_numbers_in_no_order_are_no_places_of_classes_that_have_names():
    rows, y = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8]] * 4), [0, 1, 2] * 4
    pipe = rp.pipeline(rows, y, classes=["ape", "wolf", "yak"])
    mixed, plain = pd.DataFrame(rows, columns=[2, 0, 1]), pd.DataFrame(rows, columns=[0, 1, 2])
    message = r"`proba` must use the class names ape, wolf, yak; got the whole numbers 2, 0, 1"
    for call in (pipe.estimate, pipe.calibrate, lambda x: rp.ebls(pipe.source, x), pipe.stream().learn_many,
                 lambda x: rp.pipeline(x, y, classes=["ape", "wolf", "yak"])):  # fmt: skip
        with pytest.raises(rp.InputError, match=message):
            call(mixed)
        call(plain)
    np.testing.assert_array_equal(pipe.estimate(plain).prior, pipe.estimate(rows).prior)
    numbers = rp.pipeline(rows, [2, 0, 1] * 4, classes=[2, 0, 1])
    np.testing.assert_array_equal(numbers.estimate(mixed).prior, numbers.estimate(rows).prior)


@pytest.mark.parametrize(("change", "got"), [(str.upper, "EEL"), (str.title, "Eel"), ("{} ".format, "'eel '")])
def test_the_hint_belongs_to_the_name_that_is_shown(fitted, frames, change, got):
    rows, held, y = frames
    misspelt = [change("eel"), change("ant"), *y[2:]]
    message = rf"got {got}, first at row 0, 2 in all\. Perhaps you mean 'eel'\. The classes are ant"
    with pytest.raises(rp.InputError, match=f"^pipeline: `y` .*{message}"):
        rp.pipeline(held, misspelt)
    some = [change("eel"), change("ant"), *[None] * (len(rows) - 2)]
    with pytest.raises(rp.InputError, match=f"^estimate: `labels` .*{message}"):
        fitted.estimate(rows, labels=some)


def test_names_that_look_the_same_are_the_same(frames):
    rows, held, y = frames
    composed, apart = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    classes = [composed, *NAMES[1:]]
    pipe = rp.pipeline(held.to_numpy(), np.where(y == "ant", apart, y), classes=classes)
    assert pipe == rp.pipeline(held.to_numpy(), np.where(y == "ant", composed, y), classes=classes)
    other = rows[SHUFFLED].rename(columns={"ant": apart})
    fixed = pipe.estimate(other).correct(other)
    assert list(fixed.columns) == list(other.columns)
    np.testing.assert_array_equal(fixed[apart], pipe.estimate(rows.to_numpy()).correct(rows.to_numpy())[:, 0])
    with pytest.raises(rp.InputError, match="look the same: only their Unicode differs"):
        rp.pipeline(held.to_numpy(), np.zeros(len(y), int), classes=[composed, apart, *NAMES[2:]])


def test_names_that_look_the_same_are_the_same_in_files(tmp_path, capfd, frames):
    from reprior.cli import cli
    from reprior.cli._shell import run

    rows, held, y = frames
    composed, apart = (unicodedata.normalize(form, "é") for form in ("NFC", "NFD"))
    held.rename(columns={"ant": composed}).assign(label=np.where(y == "ant", apart, y)).to_csv(tmp_path / "h.csv")
    answer = []
    for name in ("ant", composed, apart):
        # with a column besides, as in most files
        rows[SHUFFLED].rename(columns={"ant": name}).assign(amount=7.5).to_csv(tmp_path / "t.csv", index=False)
        for command in (["estimate", "--json"], ["stream", "--emit", "prior"]):
            code = run(cli, [*command[:1], str(tmp_path / "t.csv"), "-s", str(tmp_path / "h.csv"), *command[1:]])
            out, _ = capfd.readouterr()
            answer.append((code, json.loads(out.splitlines()[-1])["prior"] if code == 0 else None))
    assert [code for code, _ in answer] == [1, 1, 0, 0, 0, 0]
    assert answer[2:4] == answer[4:6]


def test_names_with_commas_are_quoted(frames):
    _, held, y = frames
    classes = ["ant, big", "bee", "cat ", "dog", "eel"]
    with pytest.raises(rp.InputError, match="The classes are 'ant, big', bee, 'cat ', dog, eel"):
        rp.pipeline(held.to_numpy(), y, classes=classes)
    with pytest.raises(rp.InputError, match="without 'ant, big', 'cat ' and with ant, cat besides"):
        rp.pipeline(held, y, classes=classes)


def test_text_that_was_a_missing_label_is_told(fitted, frames):
    rows, held, y = frames
    message = "got the text 'nan', first at row 1, 1 in all. Pass None for an unknown label"
    with pytest.raises(rp.InputError, match=f"`y` .*{message}"):
        rp.pipeline(held, np.array(["ant", np.nan, *y[2:]]))
    with pytest.raises(rp.InputError, match=f"`labels` .*{message}"):
        fitted.estimate(rows, labels=np.array(["ant", np.nan, *[""] * (len(rows) - 2)]))
    assert fitted.estimate(rows, labels=["ant", np.nan, *[""] * (len(rows) - 2)]).n_labels == 1


def test_names_that_only_look_different_are_never_merged():
    rows = [[0.8, 0.2], [0.3, 0.7]] * 5
    for make in (
        lambda classes: rp.pipeline(rows, [0, 1] * 5, classes=classes),
        lambda classes: rp.summarize(rows, [0, 1] * 5, classes=classes),
        lambda classes: rp.pipeline(counts=[1, 2], classes=classes),
        lambda classes: rp.pipeline(counts=dict(zip(classes, [1, 2], strict=True))),
        lambda classes: rp.Stream("online-ebls", dict(zip(classes, [1, 2], strict=True))),
        lambda classes: rp.summarize(pd.DataFrame(rows, columns=pd.Index(classes, dtype=object)), [0, 1] * 5),
    ):
        with pytest.raises(rp.InputError, match=r"each once; got 1 and 1\.0, which are the same number\. Rename one"):
            make(["1", "1.0"])
        for odd, shown in (("a\0", r"'a\\x00'"), ("\ud800", r"'\\ud800'")):
            with pytest.raises(rp.InputError, match=f"have class names that are text; got {shown}. Rename that class"):
                make(["a", odd])


def test_whole_numbers_beyond_floats_are_told_apart():
    rows, big = [[0.8, 0.2], [0.3, 0.7]] * 5, [2**53, 2**53 + 1]
    for y in (big * 5, np.array(big * 5), [*map(str, big)] * 5):
        assert rp.summarize(rows, y, classes=big).counts.tolist() == [5, 5]
    pipe = rp.pipeline(rows, big * 5, classes=big)
    assert pipe.estimate(rows, labels=[big[1], *[None] * 9], on_reject="ignore").n_labels == 1
    frame = pd.DataFrame(rows, columns=big)[big[::-1]]
    np.testing.assert_array_equal(pipe.correct(frame, [1, 3])[big], pipe.correct(np.array(rows), [1, 3]))
    for y in (np.array(big * 5, float), pd.Series([*big, None] * 3 + big[:1], dtype=float)):
        with pytest.raises(rp.InputError, match=r"from 2\*\*53 on as integers or text; got dtype float64\. Floats"):
            pipe.estimate(rows, labels=y)


def test_a_label_with_a_nul_is_none_of_the_classes():
    rows = [[0.8, 0.2], [0.3, 0.7]] * 5
    with pytest.raises(rp.InputError, match=r"hold names of classes; got 'b\\x00', first at row 1, 5 in all"):
        rp.summarize(rows, ["a", "b\0"] * 5, classes=["a", "b"])


def test_shares_are_counts_of_very_many_samples():
    problem = make_problem(k=2, n=200)
    held, y = problem.source.heldout
    names = np.array(["legit", "fraud"])
    inputs = {"proba": held, "y": names[y], "classes": names}
    shares = rp.pipeline(**inputs, counts={"fraud": 0.01, "legit": 0.99})
    many = rp.pipeline(**inputs, counts={"legit": 9.9e10, "fraud": 1e9})
    assert shares.calibrator is not None
    np.testing.assert_allclose(shares.source.prior, many.source.prior)
    np.testing.assert_allclose(rp.pipeline(counts=[0.99, 0.01]).source.prior, [0.99, 0.01])
    assert rp.pipeline(**inputs, counts=[100, 0.5]).calibrator is not None
    with pytest.raises(rp.InputError, match=r"samples of each class, or shares that sum to 1; got a sum of 0\.5"):
        rp.pipeline(**inputs, counts=[0.2, 0.3])
