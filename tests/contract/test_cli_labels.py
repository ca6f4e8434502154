"""Labels of some target rows on the command line: a column, a list, and which rows to list."""

from __future__ import annotations

import csv
import json

import numpy as np
import pandas as pd
import pytest
from cli_files import CLASSES


@pytest.fixture
def target(files, tmp_path):
    """The target with a label in every tenth row, as CSV, Parquet and NPZ, and the labels."""
    frame = pd.read_csv(files["csv with id"])
    y = frame["label"].to_numpy()
    some = frame.drop(columns="label").assign(truth=[x if i % 10 == 0 else None for i, x in enumerate(y)])
    some.to_csv(tmp_path / "t.csv", index=False)
    some.to_parquet(tmp_path / "t.parquet")
    index = np.array([CLASSES.index(x) for x in y])
    np.savez(tmp_path / "t.npz", proba=frame[list(CLASSES)].to_numpy(), classes=CLASSES,
             truth=np.where(np.arange(len(y)) % 10 == 0, index, -1))  # fmt: skip
    return tmp_path, y


def test_a_column_of_labels_is_taken_from_every_kind_of_file(ask, files, target):
    folder, _ = target
    arguments = ["--source", files["heldout"], "--labels", "truth"]
    results = [ask("estimate", folder / name, *arguments) for name in ("t.csv", "t.parquet", "t.npz")]
    without = ask("estimate", folder / "t.csv", "--source", files["heldout"], "--columns", "ant,bee,cat,dog")
    assert [x["n_labels"] for x in (*results, without)] == [100, 100, 100, 0]
    np.testing.assert_allclose(results[1]["prior"], results[0]["prior"], atol=1e-6)
    np.testing.assert_allclose(results[2]["prior"], results[0]["prior"], atol=1e-6)
    assert np.abs(np.subtract(results[0]["prior"], without["prior"])).max() > 1e-4
    for command in ("diagnose", "compare"):
        ask(command, folder / "t.csv", *arguments)
    assert ask("diagnose", folder / "t.csv", *arguments)["n_labels"] == 100
    ask("report", folder / "t.csv", *arguments, "-o", folder / "r.html")
    ask("correct", folder / "t.csv", *arguments, "-o", folder / "c.csv")
    fixed = pd.read_csv(folder / "c.csv")
    assert list(fixed.columns) == ["id", *CLASSES, "truth"]
    assert fixed["truth"].notna().sum() == 100


def fill(path, truth):
    """Write the labels that a person would."""
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame["label"] = [truth[x] for x in frame[frame.columns[0]]]
    frame.to_csv(path, index=False)


def test_query_lists_rows_that_the_next_commands_take(ask, call, files, target):
    folder, y = target
    truth = dict(zip(pd.read_csv(folder / "t.csv")["id"], y, strict=True))
    arguments = ["--source", files["heldout"]]
    answer = ask("query", folder / "t.parquet", *arguments, "-n", 40, "-o", folder / "a.csv")
    lines = list(csv.DictReader((folder / "a.csv").read_text().splitlines()))
    assert [line["id"] for line in lines] == [f"row {i}" for i in answer["rows"]]
    assert {*lines[0]} == {"id", "chance", "weight", "label"}
    assert all(line["label"] == "" for line in lines)
    assert sum(0 < float(line["chance"]) <= 1 for line in lines) == 40
    fill(folder / "a.csv", truth)
    with_list = [*arguments, "--labels", folder / "a.csv"]
    one = ask("estimate", folder / "t.parquet", *with_list)
    assert one["n_labels"] == 40
    again = ask("query", folder / "t.parquet", *with_list, "-n", 60, "-o", folder / "b.csv")
    assert not {*again["rows"]} & {*answer["rows"]}
    fill(folder / "b.csv", truth)
    two = ask("estimate", folder / "t.csv", *arguments, "--labels", folder / "b.csv")  # by id, whatever the file
    assert two["n_labels"] == 100
    true = np.array([(y == name).mean() for name in CLASSES])
    assert np.abs(np.array(two["prior"]) - true).sum() < 0.1
    code, out, _ = call("estimate", folder / "t.csv", *arguments, "--labels", folder / "b.csv")
    assert (code, "1,000 rows (100 with a label)" in out) == (0, True)


def test_rows_without_ids_go_by_their_numbers(ask, files, tmp_path):
    answer = ask("query", files["npy"], "--source", files["heldout"], "-n", 5, "-o", tmp_path / "a.csv")
    assert answer["named_by"] == "row"
    fill(tmp_path / "a.csv", {str(i): "ant" for i in range(1000)})
    assert ask("estimate", files["npy"], "--source", files["heldout"], "--labels", tmp_path / "a.csv")["n_labels"] == 5


def test_bad_labels_are_told(call, refused, files, target):
    folder, y = target
    arguments = ["--source", files["heldout"], "--labels"]
    assert "have the column 'thruth'" in refused("estimate", folder / "t.csv", *arguments, "thruth")
    for more in ([], ["--by", "id"]):
        message = refused("estimate", folder / "t.csv", *arguments, "thruth", *more)
        assert "Perhaps you mean 'truth'. Name what holds the labels with `--labels`" in message
    (folder / "to_label.csv").write_text("id,label\nrow 3,ant\n")
    message = refused("estimate", folder / "t.csv", *arguments, folder / "to_lable.csv")
    assert "no file of that name; got id (string)" in message
    assert f"Perhaps you mean the file '{folder / 'to_label.csv'}'" in message
    elsewhere = folder / "lists" / "a.csv"
    assert f"no folder {folder / 'lists'}" in refused("estimate", folder / "t.csv", *arguments, elsewhere)
    (folder / "a.csv").write_text("id,label\nrow 3,owl\n")
    message = refused("estimate", folder / "t.csv", *arguments, folder / "a.csv")
    place = f"`{folder / 'a.csv'}, column 'label'`"
    assert f"{place} must hold names of classes; got owl, first at id 'row 3'. The" in message
    (folder / "a.csv").write_text("id,label\nrow 3,Ant\n")
    assert "Perhaps you mean 'ant'" in refused("estimate", folder / "t.csv", *arguments, folder / "a.csv")
    (folder / "a.csv").write_text("id,label\nrow 3,ant\nrow 9999,ant\n")
    assert "'row 9999', first at line 3" in refused("estimate", folder / "t.csv", *arguments, folder / "a.csv")
    (folder / "a.csv").write_text("id,label\nrow 3,ant\nrow 3,bee\n")
    assert "name each row once" in refused("estimate", folder / "t.csv", *arguments, folder / "a.csv")
    (folder / "a.csv").write_text("id,weight\nrow 3,1\n")
    assert "the column 'label'" in refused("estimate", folder / "t.csv", *arguments, folder / "a.csv")
    rolled = [CLASSES[(CLASSES.index(x) + 1) % 4] for x in y]
    (folder / "a.csv").write_text("row,label\n" + "".join(f"{i},{rolled[i]}\n" for i in range(0, 1000, 10)))
    code, message, _ = call("correct", folder / "t.csv", *arguments, folder / "a.csv", "-o", folder / "out.csv")
    assert (code, "Do the labels belong to these samples?" in message) == (0, True)


def test_classes_called_by_numbers_go_through_every_step(ask, call, refused, tmp_path):
    """From a list to fill in, which spreadsheets give back as 3.0, to streams: the label 3 is the class called 3."""
    rng, names = np.random.default_rng(0), ["1", "2", "3", "4"]
    rows = rng.dirichlet(np.full(4, 0.3), 600)
    y = np.array([rng.choice(4, p=row) for row in rows])
    frame = pd.DataFrame(rows, columns=names)
    frame[:300].assign(label=y[:300] + 1).to_csv(tmp_path / "h.csv", index=False)
    frame[300:].assign(id=range(300)).to_csv(tmp_path / "t.csv", index=False)
    arguments = [tmp_path / "t.csv", "-s", tmp_path / "h.csv"]
    listed = tmp_path / "list.csv"
    assert ask("query", *arguments, "-n", 40, "-o", listed)["n_labels"] == 0
    assert ask("estimate", *arguments, "--labels", listed)["warning"] == f"{listed} has no label yet."
    filled = pd.read_csv(listed)
    filled["label"] = y[300 + filled["id"]] + 1.0
    filled.to_csv(listed, index=False)
    assert ask("estimate", *arguments, "--labels", listed)["n_labels"] == 40
    assert "got " + str(listed) + ", which has labels (40)" in refused("query", *arguments, "-n", 5, "-o", listed)
    assert len(pd.read_csv(listed).dropna()) == 40
    assert ask("query", *arguments, "-n", 5, "-o", listed, "--labels", listed)["n_labels"] == 40
    assert "Name what holds the names of the rows with `--id`" in refused(
        "query", *arguments, "-o", tmp_path / "a.csv", "--id", "no")
    filled.to_parquet(tmp_path / "list.parquet")
    assert "Save the list as CSV" in refused("estimate", *arguments, "--labels", tmp_path / "list.parquet")
    frame[300:].assign(id=[0, *range(299)]).to_csv(tmp_path / "twice.csv", index=False)
    message = refused("estimate", tmp_path / "twice.csv", *arguments[1:], "--labels", listed)
    assert "got 'id', which has '0' twice" in message
    lines = [{"id": i, **dict(zip(names, row, strict=True)), "label": 4} for i, row in enumerate(rows[300:].tolist())]
    (tmp_path / "s.ndjson").write_text("".join(json.dumps(line) + "\n" for line in lines))
    job = ["stream", tmp_path / "s.ndjson", "-s", tmp_path / "h.csv", "--label", "label", "--emit", "prior"]
    code, out, _ = call(*job)
    assert code == 0
    assert json.loads(out.splitlines()[-1])["prior"]["4"] > 0.8


def test_an_estimate_kept_as_json_corrects_as_the_labelled_rows_do(ask, files, target, tmp_path):
    folder, _ = target
    arguments = ["--source", files["heldout"], "--labels", "truth"]
    made = ask("estimate", folder / "t.csv", *arguments)
    assert np.abs(np.subtract(made["weights"], 1)).max() > 1e-4
    order = [2, 0, 3, 1]  # another program may write the classes in another order
    for key in ("classes", "prior", "source_prior", "weights"):
        made[key] = [made[key][j] for j in order]
    (tmp_path / "e.json").write_text(json.dumps(made))
    ask("correct", folder / "t.npz", *arguments, "-o", tmp_path / "a.npz")
    ask("correct", folder / "t.npz", *arguments[:2], "--prior", tmp_path / "e.json", "-o", tmp_path / "b.npz")
    with np.load(tmp_path / "a.npz") as a, np.load(tmp_path / "b.npz") as b:
        np.testing.assert_allclose(a["proba"], b["proba"], atol=1e-9)


def test_groups_take_labels_from_a_column_and_from_a_list(ask, call, refused, files, target):
    folder, y = target
    frame = pd.read_csv(folder / "t.csv").assign(shop=np.where(np.arange(1000) % 3 == 0, "north", "south"))
    frame.to_csv(folder / "t.csv", index=False)
    frame.to_parquet(folder / "t.parquet")
    arguments = ["--source", files["heldout"], "--by", "shop"]
    without = ask("estimate", folder / "t.csv", *arguments, "--columns", "ant,bee,cat,dog")
    column = [ask("estimate", folder / name, *arguments, "--labels", "truth") for name in ("t.csv", "t.parquet")]
    (folder / "a.csv").write_text("id,label\n" + "".join(f"row {i},{y[i]}\n" for i in range(0, 1000, 10)))
    column.append(ask("estimate", folder / "t.csv", *arguments, "--labels", folder / "a.csv"))
    for result in column:
        assert result["n_labels"] == 100
        priors, first, bare = ([group["prior"] for group in x["groups"]] for x in (result, column[0], without))
        np.testing.assert_allclose(priors, first, atol=1e-6)
        assert np.abs(np.subtract(priors, bare)).max() > 1e-4
    ask("correct", folder / "t.csv", *arguments, "--labels", "truth", "-o", folder / "c.csv")
    ask("compare", folder / "t.csv", *arguments, "--labels", "truth")
    ask("report", folder / "t.csv", *arguments, "--labels", "truth", "-o", folder / "r.html")


def test_lists_come_back_from_spreadsheets(ask, refused, files, target):
    """With another order of columns, lines of nothing, semicolons, and a comma in numbers."""
    folder, y = target
    arguments = [folder / "t.csv", "--source", files["heldout"], "--labels", folder / "a.csv"]
    rows = list(range(0, 1000, 20))
    lines = [(f"row {i}", f"{0.5 + i / 1000:.3f}", y[i]) for i in rows]
    (folder / "a.csv").write_text("id,weight,label\n" + "".join(f"{a},{b},{c}\n" for a, b, c in lines))
    first = ask("estimate", *arguments)
    for between, point in ((",", "."), (";", ","), ("\t", ".")):
        text = "".join(between.join([c, b.replace(".", point), a]) + "\r\n" for a, b, c in lines)
        head = between.join(["label", "weight", "id"])
        (folder / "a.csv").write_bytes(f"\ufeff{head}\r\n{between * 2}\r\n{text}\r\n".encode())
        answer = ask("estimate", *arguments)
        assert answer["n_labels"] == 50
        np.testing.assert_array_equal(answer["prior"], first["prior"])
        more = folder / f"more-{ord(between)}.csv"
        ask("query", *arguments, "-n", 5, "-o", more)  # which lists these labels again
        assert ask("estimate", *arguments[:-1], more)["n_labels"] == 50
    (folder / "a.csv").write_text("id,label\n,\nrow 9999,ant\n")
    assert "'row 9999', first at line 3" in refused("estimate", *arguments)
    (folder / "a.csv").write_text("row,label\n1000,ant\n")
    assert "Rows go by their numbers, from 0 to 999" in refused("estimate", *arguments)


def test_labels_of_rows_that_somebody_picked_are_noticed(call, files, target):
    folder, y = target
    picked = [i for i in range(400) if y[i] in ("ant", "bee")]
    (folder / "a.csv").write_text("row,label\n" + "".join(f"{i},{y[i]}\n" for i in picked))
    arguments = [folder / "t.csv", "--source", files["heldout"], "--labels", folder / "a.csv"]
    code, out, _ = call("estimate", *arguments)
    assert (code, "The labelled samples are not a random sample" in out) == (0, True)
    code, out, _ = call("correct", *arguments, "-o", folder / "out.csv")
    assert (code, "Label random samples" in out) == (0, True)


def test_labels_counted_from_one_are_told_by_file_and_row(refused, files, target, tmp_path):
    folder, y = target
    from_one = [CLASSES.index(x) + 1 for x in y]
    frame = pd.read_csv(folder / "t.csv").assign(truth=[k if i % 10 == 7 else None for i, k in enumerate(from_one)])
    frame.to_csv(folder / "one.csv", index=False)
    first = next(i for i in range(7, 1000, 10) if from_one[i] == 4)
    arguments = ["--source", files["heldout"], "--labels"]
    message = refused("estimate", folder / "one.csv", *arguments, "truth")
    rule = "must lie between 0 and 3; got 4, first at"
    assert f"estimate: `{folder / 'one.csv'}, column 'truth'` {rule} row {first} (the first is row 0)," in message
    lines = "".join(f"row {i},{from_one[i]}\n" for i in range(7, 1000, 10))
    (folder / "a.csv").write_text("id,label\n" + lines)
    listed = refused("estimate", folder / "t.csv", *arguments, folder / "a.csv")
    assert f"`{folder / 'a.csv'}, column 'label'` {rule} id 'row {first}'," in listed
    frame.assign(y=from_one).drop(columns=["truth", "id"]).to_csv(tmp_path / "h.csv", index=False)
    fitted = refused("fit", tmp_path / "h.csv", "-o", tmp_path / "m.reprior")
    assert f"fit: `{tmp_path / 'h.csv'}, column 'y'` {rule} row" in fitted
    for text in (message, listed, fitted):
        assert "name the columns with `--classes FILE`" in text
        assert "DataFrame" not in text


@pytest.mark.parametrize("name", ["id", "row", "shop"])
def test_a_list_may_have_other_columns_before_the_one_that_names_rows(ask, refused, files, target, name):
    folder, y = target
    frame = pd.read_csv(folder / "t.csv").assign(row=0).rename(columns={"id": name} if name == "shop" else {})
    frame.drop(columns="row").to_csv(folder / "t.csv", index=False)
    arguments = [folder / "t.csv", "--source", files["heldout"]]
    chosen = [] if name == "row" else ["--id", name]
    ask("query", *arguments, "-n", 30, "-o", folder / "a.csv", *chosen)
    filled = pd.read_csv(folder / "a.csv")
    if name == "row":
        filled = filled.rename(columns={"id": "row"}).assign(row=[x.removeprefix("row ") for x in filled["id"]])
    filled["label"] = [y[int(str(x).removeprefix("row "))] for x in filled[name]]
    filled.to_csv(folder / "a.csv", index=False)
    expected = ask("estimate", *arguments, "--labels", folder / "a.csv")
    assert expected["n_labels"] == 30
    filled.reset_index().to_csv(folder / "a.csv")
    answer = ask("estimate", *arguments, "--labels", folder / "a.csv")
    assert answer["prior"] == expected["prior"]
    filled.rename(columns={name: "who"}).to_csv(folder / "a.csv", index=False)
    assert "must have the column 'who'" in refused("estimate", *arguments, "--labels", folder / "a.csv")


def test_query_says_why_rows_go_by_their_numbers(call, files, target):
    folder, _ = target
    pd.read_csv(folder / "t.csv").assign(id="x").to_csv(folder / "twice.csv", index=False)
    arguments = ["--source", files["heldout"], "-n", 5]
    code, out, _ = call("query", folder / "twice.csv", *arguments, "-o", folder / "b.csv")
    assert (code, "5 of 1,000 rows without a label, named by row number, since 'id' has 'x' twice" in out) == (0, True)
    code, out, _ = call("query", files["npy"], *arguments, "-o", folder / "c.csv")
    assert (code, "named by row\n" in out) == (0, True)
    (folder / "d.csv").write_text("id,label\nrow 3,ant\nrow 4,\n")
    code, out, _ = call("query", folder / "t.csv", *arguments, "-o", folder / "e.csv", "--labels", folder / "d.csv")
    assert (code, "; 1 row had one already\n1 row of the earlier list still without a label." in out) == (0, True)
