"""Counts beside held-out rows, rows that are shares or logits, and what is said when files do not fit."""

import json

import numpy as np
import pytest
from cli_files import CLASSES
from worlds import make_problem

import reprior as rp
from reprior import simulate
from reprior.datasets import load
from reprior.io.sources import disagreement


@pytest.fixture(scope="module")
def unlike(tmp_path_factory):
    """A classifier trained on a long tail, held-out rows of a flat mix, and a target of yet another one."""
    data, folder = load("banking77"), tmp_path_factory.mktemp("unlike")
    k = len(data.counts)
    half = np.random.default_rng(0).permutation(len(data.pool_y)) % 2 == 0
    held = simulate.resample(data.pool_proba[half], data.pool_y[half], np.full(k, 1 / k), n=20 * k, rng=1)
    rows = data.pool_proba[~half], data.pool_y[~half]
    target = simulate.resample(*rows, simulate.shuffled_long_tail(k, 0.02, rng=0), n=2000, rng=2)
    same = simulate.resample(*rows, data.counts / data.counts.sum(), n=2000, rng=3)
    np.savez(folder / "held.npz", proba=held.proba, y=held.y, classes=data.classes)
    np.savez(folder / "target.npz", proba=target.proba, y=target.y, classes=data.classes)
    np.savez(folder / "same.npz", proba=same.proba, classes=data.classes)
    order = np.random.default_rng(1).permutation(k)  # matched by name, not by place
    counts = {data.classes[j]: int(data.counts[j]) for j in order}
    (folder / "counts.json").write_text(json.dumps(counts))
    return folder, target.prior, data.counts / data.counts.sum()


@pytest.mark.parametrize("calibrate", ["none", "ts", "bcts", "auto"])
def test_counts_mend_held_out_rows_of_another_mix(ask, unlike, calibrate):
    folder, truth, trained_prior = unlike
    arguments = ["estimate", folder / "target.npz", "-s", folder / "held.npz", "--calibrate", calibrate]
    alone, beside = ask(*arguments), ask(*arguments, "--counts", folder / "counts.json")
    raw = ask(*arguments[:-1], "none")  # nothing mends the mix there
    errors = [rp.metrics.kl(truth, value["prior"]) for value in (alone, beside, raw)]
    assert errors[1] < 0.5 * errors[2]
    if calibrate == "auto":  # the default's biases find the mix by themselves
        assert errors[0] < 0.5 * errors[2]
    else:
        assert errors[1] < (0.8 if calibrate == "bcts" else 0.5) * errors[0]
    assert rp.metrics.kl(trained_prior, beside["source_prior"]) < 0.01
    assert "different class priors (distance 13 %)" in alone["warning"]
    assert (beside["warning"], "(counts.json, held.npz)" in beside["source"]) == ("", True)


def test_a_diagnosis_compares_with_training(call, ask, unlike):
    folder, _, _ = unlike
    arguments = [folder / "same.npz", "-s", folder / "held.npz"]
    assert ask("diagnose", *arguments)["shift_p"] < 1e-6  # the held-out rows differ from the target …
    assert ask("diagnose", *arguments, "--counts", folder / "counts.json")["shift_p"] > 0.05  # … but training does not
    shifted = [folder / "target.npz", *arguments[1:], "--counts", folder / "counts.json"]
    assert ask("diagnose", *shifted)["label_shift"] > 0.8
    assert "pass the training counts too (--counts)" in call("estimate", *arguments)[1]


def test_counts_go_to_every_command(call, ask, files, tmp_path):
    (tmp_path / "c.json").write_text('{"dog": 100, "ant": 400, "bee": 300, "cat": 200}')
    arguments = [files["npz"], "-s", files["heldout"], "--counts", tmp_path / "c.json", "--calibrate", "none"]
    value = ask("estimate", *arguments)
    assert value["source_prior"] == sorted(value["source_prior"], reverse=True)
    assert ask("compare", *arguments)["methods"][0]["prior"] == value["prior"]
    assert ask("report", *arguments)["prior"] == value["prior"]
    assert call("correct", *arguments, "-o", tmp_path / "o.npz")[0] == 0
    expected = rp.correct(np.load(files["npz"])["proba"], np.array(value["weights"]))
    np.testing.assert_allclose(np.load(tmp_path / "o.npz")["proba"], expected, atol=1e-6)


def test_counts_alone_are_a_source_and_counts_beside_counts_are_refused(ask, refused, files):
    assert ask("estimate", files["npy"], "--counts", files["counts"]) == ask(
        "estimate", files["npy"], "-s", files["counts"]
    )
    err = refused("estimate", files["npy"], "-s", files["counts"], "--counts", files["counts"])
    assert "must be given with held-out samples that have labels" in err
    err = refused("estimate", files["npy"], "-s", files["heldout"], "--counts", files["npz"])
    assert "must hold one number per class; got rows" in err


def test_counts_of_other_classes_are_refused(refused, files, tmp_path):
    (tmp_path / "c.json").write_text('{"ant": 1, "bee": 2, "cat": 3, "eel": 4}')
    err = refused("estimate", files["npy"], "-s", files["heldout"], "--counts", tmp_path / "c.json")
    assert "must have the classes of the source; got 4 classes, without dog and with eel besides" in err
    (tmp_path / "c.json").write_text("[1, 2, 3]")
    err = refused("estimate", files["npy"], "-s", files["heldout"], "--counts", tmp_path / "c.json")
    assert "must have the 4 classes of the source; got 3 classes without names" in err


def test_labels_and_outputs_that_disagree_about_the_mix_are_worth_a_word():
    problem = make_problem(k=6, n=3000, separation=2.0)
    assert disagreement(problem.source) == 0
    blurred = make_problem(k=6, separation=0.8).source.heldout
    one = blurred[1] == 5
    assert disagreement(rp.summarize(blurred[0][one], blurred[1][one])) > 0.1


@pytest.mark.parametrize("name", ["npy", "npz", "parquet", "csv", "ndjson"])
@pytest.mark.parametrize("values", ["logits", "normalize"])
def test_logits_and_shares_give_what_probabilities_give(call, ask, files, tmp_path, name, values):
    held, rows = np.load(files["heldout"]), np.load(files["npy"]).astype(np.float64)
    change = (lambda p: np.log(p) + 1.7) if values == "logits" else (lambda p: 250 * p)
    np.savez(tmp_path / "held.npz", proba=change(held["proba"]), y=held["y"], classes=CLASSES)
    path, out = tmp_path / f"t.{name}", tmp_path / f"o.{name}"
    write(path, change(rows))
    plain = ["--calibrate", "none"]
    arguments = [path, "-s", tmp_path / "held.npz", f"--{values}", *plain]
    value, expected = ask("estimate", *arguments), ask("estimate", files["npy"], "-s", files["heldout"], *plain)
    np.testing.assert_allclose(value["prior"], expected["prior"], atol=1e-6)
    assert call("correct", *arguments, "-o", out)[0] == 0
    from reprior.io.files import open_table
    from reprior.io.table import Choice

    loaded = open_table(out, Choice(classes=CLASSES)).load().proba
    np.testing.assert_allclose(loaded, rp.correct(rows, np.array(expected["weights"])), atol=1e-5)


def write(path, rows):
    import pyarrow as pa
    import pyarrow.csv as pc
    import pyarrow.parquet as pq

    columns = pa.table({c: rows[:, j] for j, c in enumerate(CLASSES)})
    {
        ".npy": lambda: np.save(path, rows.astype(np.float32)), ".npz": lambda: np.savez(path, proba=rows),
        ".parquet": lambda: pq.write_table(columns, path), ".csv": lambda: pc.write_csv(columns, path),
        ".ndjson": lambda: path.write_text("".join(json.dumps(row) + "\n" for row in rows.tolist())),
    }[path.suffix]()  # fmt: skip


def test_rows_that_are_no_probabilities_are_told_what_to_say(call, refused, files, tmp_path):
    arguments = ["-s", files["counts"]]
    np.save(tmp_path / "shares.npy", [[2.0, 1, 1, 1]])
    assert "pass `--normalize`, which divides each row by its sum. If these are logits, pass `--logits`" in refused(
        "estimate", tmp_path / "shares.npy", *arguments
    )
    for line in (["stream", files["ndjson lists"]], ["estimate", files["npy"]]):
        assert "must hold logits; got rows that sum to 1" in refused(*line, *arguments, "--logits")
    faults = ([[0.0, 0, 0, 0]], "all-zero"), ([[1.0, -1, 2, 2]], "negative"), ([[np.nan, 1, 1, 1]], "finite")
    for bad, message in faults:
        np.save(tmp_path / "bad.npy", bad)
        assert message in refused("estimate", tmp_path / "bad.npy", *arguments, "--normalize")
    np.save(tmp_path / "bad.npy", [[np.inf, 1, 1, 1]])
    assert "finite" in refused("estimate", tmp_path / "bad.npy", *arguments, "--logits")
    np.save(tmp_path / "ruled-out.npy", [[-np.inf, 1, 1, 1]])
    assert call("estimate", tmp_path / "ruled-out.npy", *arguments, "--logits")[0] == 0


def test_bad_held_out_rows_are_named_by_their_file(refused, files, tmp_path):
    np.savez(tmp_path / "held.npz", proba=[[0.5, 0.5, 0.5, 0.5]], y=[0])
    err = refused("estimate", files["npy"], "-s", tmp_path / "held.npz")
    assert f"estimate: `{tmp_path / 'held.npz'}` must have rows that sum to 1" in err


def test_simulate_reads_logits(ask, files, tmp_path):
    held = np.load(files["heldout"])
    np.savez(tmp_path / "pool.npz", proba=np.log(held["proba"]), y=held["y"])
    ask("simulate", tmp_path / "pool.npz", "--logits", "-o", tmp_path / "s.npz")
    np.testing.assert_allclose(np.load(tmp_path / "s.npz")["proba"].sum(axis=1), 1, atol=1e-5)


@pytest.mark.parametrize("command", ["estimate", "stream"])
def test_files_as_other_programs_write_them(call, refused, files, tmp_path, command):
    arguments = ["-s", files["counts"]]
    text = files["csv"].read_text()
    for data, message in (
        (text.encode("utf-16"), "must be text in UTF-8"), (text.replace("ant", "änt").encode("latin1"), "UTF-8"),
        (text.replace(",", ";").encode(), "must have its columns separated by commas"),
        (text.replace(",", ";").replace("ant", "ant, big").encode(), "must have its columns separated by commas"),
        (text.replace('"', "").replace(",", ";").replace("ant", "ant, big").replace(".", ",").encode(),
         "must have its columns separated by commas"),
    ):  # fmt: skip
        (tmp_path / "in").write_bytes(data)
        assert message in refused(command, tmp_path / "in", *arguments)
    for name in ("csv", "ndjson"):
        (tmp_path / "in").write_bytes(b"\xef\xbb\xbf" + files[name].read_bytes())
        marked, plain = (call(command, path, *arguments)[:2] for path in (tmp_path / "in", files[name]))
        assert marked == plain
        assert marked[0] == 0


def test_a_csv_stream_tells_its_prior_if_that_is_all(call, files):
    _, out, _ = call("stream", files["csv"], "-s", files["counts"], "--emit", "prior", "--every", 1000)
    assert list(json.loads(out)["prior"]) == list(CLASSES)


def test_labels_that_are_not_those_of_the_rows_are_named(ask, call, unlike, tmp_path):
    folder, _, _ = unlike
    with np.load(folder / "held.npz") as held:
        np.savez(tmp_path / "h.npz", proba=held["proba"], y=np.roll(held["y"], 700), classes=held["classes"])
    warning = ask("estimate", folder / "target.npz", "-s", tmp_path / "h.npz")["warning"]
    assert "hardly agree" in warning
    assert "hardly agree" not in ask("estimate", folder / "target.npz", "-s", folder / "held.npz")["warning"]
    code, out, err = call("fit", tmp_path / "h.npz", "-o", tmp_path / "m.reprior")
    assert (code, out.count("hardly agree"), err) == (0, 1, "")
    for source in ("h.npz", "m.reprior"):
        for command in (["estimate"], ["diagnose"], ["report", "-o", tmp_path / "r.html"]):
            _, out, err = call(command[0], folder / "target.npz", *command[1:], "-s", tmp_path / source)
            assert (out.count("hardly agree"), err) == (1, ""), (command, out)


def test_a_prior_estimated_from_another_source_is_refused(call, ask, refused, unlike, tmp_path):
    folder, _, _ = unlike
    arguments = [folder / "target.npz", "-s", folder / "held.npz"]
    (tmp_path / "e.json").write_text(json.dumps(ask("estimate", *arguments, "--counts", folder / "counts.json")))
    write = ["--prior", tmp_path / "e.json", "-o", tmp_path / "o.npz"]
    other = ["correct", folder / "target.npz", "-s", folder / "counts.json", *write]
    assert "come from the same source" in refused(*other)
    assert call("correct", *arguments, "--counts", folder / "counts.json", *write)[0] == 0


def test_counts_without_names_are_in_the_order_of_the_held_out_rows(ask, unlike, tmp_path):
    folder, _, _ = unlike
    with np.load(folder / "target.npz") as target:
        np.savez(tmp_path / "t.npz", proba=target["proba"][:, ::-1], classes=target["classes"][::-1])
        counts = json.loads((folder / "counts.json").read_text())
        (tmp_path / "c.json").write_text(json.dumps([counts[name] for name in target["classes"]]))
    arguments = ["estimate", tmp_path / "t.npz", "-s", folder / "held.npz", "--counts"]
    bare, named = ask(*arguments, tmp_path / "c.json"), ask(*arguments, folder / "counts.json")
    assert bare["source_prior"] == named["source_prior"]


@pytest.mark.parametrize("option", ["--source", "--counts"])
def test_an_estimate_is_no_source(ask, refused, files, tmp_path, option):
    (tmp_path / "est.json").write_text(json.dumps(ask("estimate", files["npy"], "-s", files["heldout"])))
    arguments = ["-s", files["heldout"]] if option == "--counts" else []
    message = refused("estimate", files["npy"], *arguments, option, tmp_path / "est.json")
    assert "must hold training counts or held-out samples; got an estimate of a target prior" in message


def test_a_demo_draws_no_page(refused, tmp_path):
    assert "-o must end in one of .png" in refused("demo", "-o", tmp_path / "demo.html")


def test_files_of_another_kind_are_called_by_what_they_are(call, refused, files, tmp_path):
    assert call("fit", files["heldout"], "-o", tmp_path / "m.reprior")[0] == 0
    model, out = tmp_path / "m.reprior", ["-o", tmp_path / "x.reprior"]
    for words in (["estimate", model, "-s", model], ["stream", model, "-s", model],
                  ["fit", files["heldout"], "--counts", model, *out]):  # fmt: skip
        assert "must hold a table; got a file that reprior has saved. Give the table itself" in refused(*words)
    junk = tmp_path / "junk.csv"
    for head in (b"\x89\x01PNG", b"\n", b"a,b\n0.1,"):
        junk.write_bytes(head + bytes(range(256)) * 20)
        for words in (["fit", junk, *out], ["estimate", files["csv"], "-s", junk]):
            assert "codec" not in refused(*words)


def test_counts_that_lack_a_class_are_told_so(refused, files, tmp_path):
    (tmp_path / "c.csv").write_text("class,count\n" + "".join(f"{name},5\n" for name in CLASSES[:-1]))
    err = refused("fit", files["heldout"], "--counts", tmp_path / "c.csv", "-o", tmp_path / "m.reprior")
    assert f"without {CLASSES[-1]}. Give every class a count there." in err
    assert "--source-columns" not in err


def test_a_warning_is_one_plain_line(capsys):
    import click

    from reprior._check import warn
    from reprior.cli._shell import run

    group = click.Group(commands={"a": click.Command("a", callback=lambda: warn("Look out."))})
    assert run(group, ["a"]) == 0
    assert capsys.readouterr().err == "Warning: Look out.\n"


@pytest.mark.parametrize("suffix", ["csv", "parquet", "ndjson"])
@pytest.mark.parametrize("values", ["--normalize", "--logits"])
def test_an_amount_is_no_score_of_a_class(refused, ask, tmp_path, suffix, values):
    import pyarrow as pa
    from pyarrow import csv, parquet

    rng = np.random.default_rng(0)
    scores, labels = rng.uniform(0.5, 3.0, (60, 4)), rng.permutation(60) % 4
    columns = {name: scores[:, j] for j, name in enumerate(CLASSES)}
    columns |= {"amount": rng.uniform(5, 90, 60).round(2), "label": [CLASSES[j] for j in labels]}
    table, file, out = pa.table(columns), tmp_path / f"held.{suffix}", tmp_path / "model.reprior"
    if suffix == "ndjson":
        file.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    else:
        {"csv": csv.write_csv, "parquet": parquet.write_table}[suffix](table, file)
    message = refused("fit", file, values, "-o", out)
    assert "must have no other numbers beside the scores of the classes; got amount, which no label names" in message
    assert "Name the columns of the classes with `--source-columns`" in message
    made = ask("fit", file, values, "--source-columns", ",".join(CLASSES), "-o", out)
    assert made["classes"] == list(CLASSES)
    assert "`--columns`" in refused("simulate", file, values, "-o", tmp_path / "shifted.npz")
