"""Which columns are taken as classes, and what is said where they, the labels or the counts do not fit."""

import csv
import json
import zipfile

import numpy as np
import pytest
from cli_files import CLASSES


def write(path, rows, before=None, after=None, classes=CLASSES):
    """Write rows as CSV or NDJSON, with other columns before and after them."""
    names = [*(before or {}), *classes, *(after or {})]
    lines = [[*(x[i] for x in (before or {}).values()), *map(float, row), *(x[i] for x in (after or {}).values())]
             for i, row in enumerate(rows)]  # fmt: skip
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([names, *lines])
    else:
        path.write_text("".join(json.dumps(dict(zip(names, line, strict=True))) + "\n" for line in lines))
    return path


@pytest.fixture
def held(files):
    archive = np.load(files["heldout"])
    return archive["proba"].astype(np.float64), [CLASSES[j] for j in archive["y"]]


@pytest.mark.parametrize("suffix", ["csv", "ndjson"])
@pytest.mark.parametrize("name", ["id", "order_number"])
@pytest.mark.parametrize("extra", [[], ["--normalize"]])
def test_whole_numbers_beside_probabilities_are_no_class(call, ask, held, tmp_path, suffix, name, extra):
    rows, y = held
    ids = {name: list(range(5, 5 + len(y)))}
    source = write(tmp_path / f"s.{suffix}", rows, ids, {"label": y})
    target = write(tmp_path / f"t.{suffix}", rows[:50], ids)
    value = ask("estimate", target, "-s", source, *extra)
    assert value["classes"] == list(CLASSES)
    (tmp_path / "counts.json").write_text("[1, 2, 3, 4]")  # nothing names the classes but the target
    arguments = ["-s", tmp_path / "counts.json", *extra]
    assert call("correct", target, *arguments, "-o", tmp_path / f"o.{suffix}")[0] == 0
    text = (tmp_path / f"o.{suffix}").read_text().splitlines()
    if suffix == "csv":
        assert [line.split(",")[0].strip('"') for line in text[1:]] == [str(i) for i in ids[name][:50]]
    else:
        assert [json.loads(line)[name] for line in text] == ids[name][:50]


@pytest.mark.parametrize("suffix", ["csv", "ndjson"])
@pytest.mark.parametrize("classes", [["score"], ["score", "other"]])
@pytest.mark.parametrize("extra", ["--normalize", "--logits"])
def test_ids_beside_scores_of_any_sum_are_not_taken_for_a_class(ask, refused, tmp_path, suffix, classes, extra):
    scores = np.random.default_rng(0).uniform(0.1, 3.0, (40, len(classes)))
    target = write(tmp_path / f"t.{suffix}", scores, {"customer": list(range(1001, 1041))}, classes=classes)
    arguments = ["-s", tmp_path / "counts.json", extra]
    (tmp_path / "counts.json").write_text(json.dumps([1] * (1 + len(classes))))
    err = refused("estimate", target, *arguments)
    assert f"got customer beside {', '.join(classes)}. Name the columns of the classes with `--columns`" in err
    assert ask("estimate", target, *arguments, "--columns", f"customer:{classes[-1]}")["n"] == 40
    if len(classes) > 1:
        (tmp_path / "counts.json").write_text("[1, 2]")
        assert ask("estimate", target, *arguments, "--columns", "score,other")["classes"] == classes


def test_counts_and_classes_never_predicted_stay_classes(ask, files, tmp_path):
    votes = write(tmp_path / "votes.csv", np.random.default_rng(0).integers(1, 9, (40, 4)))
    votes.write_text(votes.read_text().replace(".0", ""))
    assert ask("estimate", votes, "-s", files["counts"], "--normalize")["classes"] == list(CLASSES)
    (tmp_path / "votes.ndjson").write_text('{"a": 3, "b": 1, "c": 0, "d": 2}\n{"a": 1, "b": 1, "c": 1, "d": 5}\n')
    (tmp_path / "counts.json").write_text("[1, 2, 3, 4]")
    arguments = ["-s", tmp_path / "counts.json", "--normalize"]
    assert ask("estimate", tmp_path / "votes.ndjson", *arguments)["classes"] == list("abcd")
    (tmp_path / "never.csv").write_text("a,b,c,d\n" + "0.25,0.75,0,0\n" * 9)
    assert ask("estimate", tmp_path / "never.csv", "-s", tmp_path / "counts.json")["classes"] == list("abcd")


def test_a_wrong_sum_lists_the_columns_and_how_to_choose_others(refused, held, tmp_path):
    rows, y = held
    bad = write(tmp_path / "s.csv", rows, {"score": np.full(len(y), 0.5).tolist()}, {"label": y})
    err = refused("estimate", bad, "-s", bad)
    assert "The columns taken as classes are score, ant, bee, cat, dog: choose others with `--source-columns`" in err
    (tmp_path / "counts.json").write_text("[1, 2, 3, 4, 5]")
    err = refused("estimate", bad, "-s", tmp_path / "counts.json")
    assert "are score, ant, bee, cat, dog: choose others with `--columns`" in err
    (tmp_path / "counts.json").write_text("[1, 2, 3]")
    err = refused("estimate", bad, "-s", tmp_path / "counts.json")
    assert "Choose the class columns with `--columns`" in err


def test_classes_that_differ_are_named(refused, files, tmp_path):
    (tmp_path / "c.json").write_text('{"ant": 1, "bee": 2, "cat": 3, "eel": 4}')
    err = refused("estimate", files["csv"], "-s", tmp_path / "c.json")
    assert "must have the classes of the source; got 4 classes, without eel and with dog besides" in err
    (tmp_path / "c.json").write_text('{"ant": 1, "bee": 2, "cat": 3}')
    err = refused("estimate", files["csv"], "-s", files["heldout"], "--counts", tmp_path / "c.json")
    assert "must have the 4 classes of the source; got 3 classes, without dog" in err


def test_a_label_column_that_is_not_there(refused, held, tmp_path):
    rows, y = held
    bad = write(tmp_path / "s.csv", rows, None, {"Lable": y})
    err = refused("estimate", bad, "-s", bad, "--label", "lable ")
    assert "got Lable (string), ant (double)" in err
    assert "Perhaps you mean 'Lable'" in err
    err = refused("estimate", bad, "-s", bad)
    assert "got the columns Lable, ant, bee, cat, dog. Perhaps you mean 'Lable'." in err
    for name in ("abuse", "target"):  # whatever it is called: the one column that holds no probability
        for labels in (y, [["ant", "bee", "cat", "dog"].index(label) for label in y]):
            bad = write(tmp_path / "t.csv", rows, None, {name: labels})
            assert f"Perhaps you mean {name!r}. Name the label column" in refused("estimate", bad, "-s", bad)
            other = write(tmp_path / "t.ndjson", rows, None, {name: labels})
            assert f"Perhaps you mean {name!r}. " in refused("estimate", other, "-s", other)


def test_a_column_that_names_rows_is_not_taken_for_labels(refused, held, tmp_path):
    rows, y = held
    for name in ("id", "row_id"):
        bad = write(tmp_path / "s.csv", rows, None, {name: [f"r{i}" for i in range(len(y))]})
        for more in ([], ["--label", "label"]):
            assert "Perhaps" not in refused("estimate", bad, "-s", bad, *more)
    bad = write(tmp_path / "s.csv", rows, None, {"id": range(len(y)), "truth": y})
    assert "Perhaps you mean 'truth'" in refused("estimate", bad, "-s", bad)


def test_a_sum_is_told_in_digits_that_show_what_is_wrong(call, refused, files, tmp_path):
    np.save(tmp_path / "t.npy", [[0.333, 0.333, 0.333, 0.0]] * 3)
    assert call("estimate", tmp_path / "t.npy", "-s", files["counts"])[0] == 0
    np.save(tmp_path / "t.npy", [[0.333, 0.333, 0.3329999, 0.0]] * 3)
    err = refused("estimate", tmp_path / "t.npy", "-s", files["counts"])
    assert "(±0.001); got a sum of 0.9989999" in err
    assert "pass `--normalize`" in err


@pytest.mark.parametrize("extra", [[], ["--normalize"]])
def test_negative_numbers_may_be_logits_only(refused, files, tmp_path, extra):
    np.save(tmp_path / "t.npy", [[1.0, -1, 2, 2]])
    err = refused("estimate", tmp_path / "t.npy", "-s", files["counts"], *extra)
    assert "no negative number" in err
    assert "If these are logits, pass `--logits`." in err
    assert "--normalize" not in err


@pytest.mark.parametrize("count", [0, -3])
def test_a_count_that_is_not_positive_is_told_by_its_class(refused, files, tmp_path, count):
    (tmp_path / "c.json").write_text(json.dumps(dict.fromkeys(CLASSES, 9) | {"cat": count}))
    for inputs in (["-s", tmp_path / "c.json"], ["-s", files["heldout"], "--counts", tmp_path / "c.json"]):
        err = refused("estimate", files["csv"], *inputs)
        assert f"must be positive for every class; got {count}, first at class cat" in err
        assert "its column out of the predictions" in err
        assert "a count of 0.5" in err


def late(tmp_path, *records):
    rows = [{"id": f"a{i}", "proba": [0.1, 0.2, 0.3, 0.4]} for i in range(4)]
    (tmp_path / "in").write_text("".join(json.dumps(record) + "\n" for record in [*rows, *records]))
    return tmp_path / "in"


@pytest.mark.parametrize("unknown", [None, ""])
def test_a_late_label_that_is_still_unknown_changes_nothing(call, files, tmp_path, unknown):
    arguments = ["-s", files["counts"], "--id", "id", "--label", "truth", "--emit", "rows"]
    code, out, err = call(
        "stream", late(tmp_path, {"id": "a3", "truth": unknown}, {"id": "a3", "truth": "cat"}), *arguments
    )
    assert (code, len(out.splitlines()), err.count("\n")) == (0, 4, 1)
    assert "matched by position" in err
    answer = call("stream", late(tmp_path, {"id": "b", "truth": "cat"}), *arguments)[2]
    assert "1 label found no row among the last 10,000 that wait for one; see --remember" in answer


def test_what_is_said_of_late_labels_names_the_options(call, files, tmp_path):
    arguments = ["-s", files["counts"], "--label", "truth"]
    message = call("stream", late(tmp_path, {"id": "a3", "truth": "cat"}), *arguments)[2]
    assert "Name the column of the sample ids with `--id`" in message
    err = call("stream", late(tmp_path, {"ID": "a3", "truth": "cat"}), *arguments, "--id", "id")[2]
    assert "`--id id` and `--label truth` name the two columns" in err
    err = call("stream", late(tmp_path, {"id": "a3", "truth": "cow"}), *arguments, "--id", "id")[2]
    assert "`--label` must hold names of classes; got cow, first at row 4" in err


def test_a_label_that_is_not_there_is_called_missing(refused, held, tmp_path):
    rows, y = held
    bad = write(tmp_path / "m.csv", rows, None, {"label": [*y[:4], "", *y[5:]]})
    err = refused("estimate", bad, "-s", bad)
    assert "must hold the class of every row; got a missing label, first at row 4 (the first is row 0), 1 in" in err


def test_show_says_what_shows_a_table(refused, files):
    err = refused("show", files["csv"])
    assert "must be what `reprior fit`, `reprior stream --state` or `save` wrote; got another file" in err
    assert "use `reprior estimate FILE --source MODEL`" in err


def test_a_slip_in_an_option_is_not_saved(refused, files, tmp_path):
    err = refused("fit", files["heldout"], "-O", "bas=1", "-o", tmp_path / "m.reprior")
    assert "got bas. Perhaps you mean `base`." in err
    assert not (tmp_path / "m.reprior").exists()


@pytest.mark.parametrize("suffix", ["csv", "ndjson"])
@pytest.mark.parametrize("command", ["estimate", "stream"])
def test_names_of_a_file_are_those_of_the_columns(call, files, held, tmp_path, command, suffix):
    """Estimates and streams take them alike, for columns that have the classes' names and for others."""

    def prior(target, *more):
        arguments = [command, target, "-s", files["heldout"], *more]
        more = ["--json"] if command == "estimate" else ["--emit", "prior", "--every", 300]
        code, out, err = call(*arguments, *more)
        assert code == 0, err
        answer = json.loads(out.splitlines()[-1])
        return answer["prior"] if command == "stream" else dict(zip(answer["classes"], answer["prior"], strict=True))

    rows = held[0][:300, ::-1]  # the columns come in another order than the classes of the source
    listed = tmp_path / "names.txt"
    listed.write_text("\n".join(CLASSES[::-1]))
    named = write(tmp_path / f"named.{suffix}", rows, classes=CLASSES[::-1])
    plain = write(tmp_path / f"plain.{suffix}", rows, classes=["p0", "p1", "p2", "p3"])
    expected = prior(named)
    assert prior(plain, "--classes", listed) == pytest.approx(expected)
    assert prior(named, "--classes", listed) == pytest.approx(expected)
    listed.write_text("\n".join(CLASSES))
    assert prior(named, "--classes", listed) == pytest.approx(expected)  # columns that have these names keep them


@pytest.mark.parametrize("command", ["estimate", "stream"])
def test_names_of_a_file_that_disagree_are_refused(refused, files, tmp_path, command):
    names = tmp_path / "names.txt"
    for source in ("heldout", "counts"):
        for target in ("csv", "ndjson objects"):
            arguments = [command, files[target], "-s", files[source], "--classes", names]
            names.write_text("ant\nbee\ncat\n")
            assert "`--classes` must name all 4 classes" in refused(*arguments)
            names.write_text("ant\nbee\ncat\neel\n")
            err = refused(*arguments)
            where = "input" if command == "stream" else str(files[target])
            if source == "counts":
                assert f"`--classes` must agree with the columns of {where}, which have names; got 4 classes" in err
                assert "without dog and with eel besides. Leave it out to use the names of the columns." in err
    names.write_text("dog\ncat\nbee\nant\n")
    if command == "stream":
        err = refused("stream", files["ndjson"], "-s", files["heldout"], "--classes", names)
        assert "be the classes of the source in their order, since the records are lists; got dog, cat" in err


def test_labels_beside_columns_with_other_names_lead_to_the_names(refused, held, tmp_path):
    rows, y = held
    path = write(tmp_path / "s.csv", rows, None, {"label": y}, ["p0", "p1", "p2", "p3"])
    err = refused("fit", path, "-o", tmp_path / "m.reprior")
    assert "The classes are p0, p1, p2, p3. If the columns have other names than the classes, pass the class" in err
    assert "`--classes FILE`" in err


@pytest.mark.parametrize("kind", ["csv", "ndjson objects", "columns"])
def test_a_range_of_columns_that_runs_backwards_is_named(ask, refused, files, kind):
    arguments = [files[kind], "-s", files["heldout"]]
    err = refused("estimate", *arguments, "--columns", "dog:ant")
    assert (
        "`--columns` must name the first column before the last; got dog:ant. In the file ant comes before dog" in err
    )
    expected = ask("estimate", *arguments)["prior"]
    assert ask("estimate", *arguments, "--columns", "ant:dog")["prior"] == expected
    if kind != "columns":
        assert "In the file ant comes before dog" in refused("stream", *arguments, "--columns", "dog:ant")


@pytest.mark.parametrize("command", ["estimate", "stream"])
def test_columns_left_aside_do_not_hide_how_to_normalise(refused, files, held, tmp_path, command):
    bad = write(tmp_path / "t.csv", 1.05 * held[0][:50], {"score": [0.25] * 50})
    err = refused(command, bad, "-s", files["heldout"], *(["--emit", "prior"] if command == "stream" else []))
    assert "unused: score. If these are rounded probabilities or counts, pass `--normalize`" in err
    assert "`--normalize`" in err


@pytest.mark.parametrize("name", ["c.xlsx", "c.XLSX", "c.parquet", "c.csv.gz"])
def test_a_name_that_promises_another_format_is_refused(refused, files, tmp_path, name):
    err = refused("correct", files["csv"], "-s", files["heldout"], "-o", tmp_path / name)
    assert "`--output` must end in .csv, the format of the target" in err


def test_the_only_array_of_two_dimensions_holds_the_rows(ask, refused, files, held, tmp_path):
    rows, y = held
    np.savez(tmp_path / "h.npz", predictions=rows, y=y, classes=CLASSES, counts=np.ones(4))
    np.savez(tmp_path / "w.npz", predictions=rows, note="as it was")
    ask("fit", tmp_path / "h.npz", "-o", tmp_path / "m.reprior")
    arguments = ["--source", tmp_path / "m.reprior"]
    np.save(tmp_path / "w.npy", rows)
    expected = ask("estimate", tmp_path / "w.npy", *arguments)
    assert ask("estimate", tmp_path / "w.npz", *arguments)["prior"] == expected["prior"]
    ask("correct", tmp_path / "w.npz", *arguments, "-o", tmp_path / "c.npz")
    with np.load(tmp_path / "c.npz") as fixed:
        assert {*fixed} == {"predictions", "note"}
        assert not np.allclose(fixed["predictions"], rows)
    np.savez(tmp_path / "two.npz", a=rows, b=rows)
    assert "must have the column 'proba'; got a, b" in refused("estimate", tmp_path / "two.npz", *arguments)
    with zipfile.ZipFile(tmp_path / "w.npz", "a") as archive:
        archive.writestr("readme.txt", "not an array")
    assert ask("estimate", tmp_path / "w.npz", *arguments)["prior"] == expected["prior"]
    np.savez(tmp_path / "counts.npz", counts=np.ones(4), classes=CLASSES, confusion=np.eye(4))
    assert ask("estimate", tmp_path / "w.npy", "--source", tmp_path / "counts.npz")["n"] == len(rows)


def test_small_files_are_told_in_whole_sentences(refused, files, held, tmp_path):
    rows, y = held
    (tmp_path / "empty.csv").write_text("")
    message = refused("fit", tmp_path / "empty.csv", "-o", tmp_path / "m.reprior")
    assert "must have at least one row; got an empty file." in message
    one = write(tmp_path / "one.csv", rows[:, :1], None, {"label": y}, classes=["ant"])
    assert "at least two classes; got 1 (ant)" in refused("fit", one, "-o", tmp_path / "m.reprior")
    (tmp_path / "counts.json").write_text('{"ant": 3}')
    message = refused("fit", files["heldout"], "--counts", tmp_path / "counts.json", "-o", tmp_path / "m.reprior")
    assert "1 classes" not in message


def test_names_of_classes_may_hold_semicolons(call, refused, tmp_path):
    """A semicolon in a name has a space behind it. Counted alone, those of names once outnumbered the commas."""
    names, path = ("sports; football; EU", "politics; home; x"), tmp_path / "held.csv"
    rows = [f"{names[i % 2]},{(0.8, 0.3)[i % 2]},{(0.2, 0.7)[i % 2]}" for i in range(40)]
    path.write_text("\n".join([f"label,{names[0]},{names[1]}", *rows]), encoding="utf-8")
    assert call("fit", path, "-o", tmp_path / "model.reprior")[0] == 0
    for text in ("label;sports;politics\nsports;0,7;0,3\n", "label; sports; politics\nsports; 0.7; 0.3\n"):
        path.write_text(text, encoding="utf-8")
        assert "separated by commas" in refused("fit", path, "-o", tmp_path / "other.reprior")


@pytest.mark.parametrize("command", ["estimate", "stream"])
def test_probabilities_in_an_object_under_a_key_are_refused_with_the_way_out(call, refused, files, tmp_path, command):
    record = {"id": "a", "shop": 3, "proba": dict.fromkeys("wxyz", 0.25)}
    (tmp_path / "t.ndjson").write_text(f"{json.dumps(record)}\n" * 30)
    err = refused(command, tmp_path / "t.ndjson", "-s", files["counts"])
    assert "an object under 'proba'. Move its keys to the top of the record." in err
    counts = json.loads(files["counts"].read_text())
    beside = dict.fromkeys(counts, 1 / len(counts)) | {"features": {"a": 1.0}}  # numbers that are no probabilities
    (tmp_path / "t.ndjson").write_text(f"{json.dumps(beside)}\n" * 30)
    assert call(command, tmp_path / "t.ndjson", "-s", files["counts"])[0] == 0


def test_a_stream_of_csv_refuses_line_breaks_inside_quotes(call, files, tmp_path):
    head, first, *others = files["csv"].read_text().splitlines()
    (tmp_path / "t.csv").write_text("\n".join([f"{head},note", f'{first},"two', 'lines"', *others]) + "\n")
    code, _, err = call("stream", tmp_path / "t.csv", "-s", files["counts"])
    assert code == 1
    assert "close each quote on its line" in err


def test_names_of_an_array_may_have_another_order_than_the_source(call, tmp_path):
    rows = np.random.default_rng(0).dirichlet(np.ones(3), 50)
    np.save(tmp_path / "t.npy", rows)
    np.save(tmp_path / "sorted.npy", rows[:, [1, 2, 0]])
    (tmp_path / "c.json").write_text('{"a": 5, "b": 3, "c": 2}')
    (tmp_path / "names").write_text("c\na\nb\n")
    named = ["correct", tmp_path / "t.npy", "-s", tmp_path / "c.json", "--classes", tmp_path / "names"]
    assert call(*named, "-o", tmp_path / "one.npy")[0] == 0
    assert call("correct", tmp_path / "sorted.npy", "-s", tmp_path / "c.json", "-o", tmp_path / "two.npy")[0] == 0
    np.testing.assert_allclose(np.load(tmp_path / "one.npy")[:, [1, 2, 0]], np.load(tmp_path / "two.npy"), atol=1e-12)
