"""Every command: its documented lines, its formats, its exit codes, its JSON, and what it leaves on disk."""

import io
import json
import os
import pty
import re
import resource
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from cli_files import CLASSES, TARGETS, N, msgpack_rows

import reprior as rp
from reprior.cli import COMMANDS, _shell, command_of

PROGRAM = [sys.executable, "-c", "from reprior.cli import main; main()"]
PAGE = (Path(__file__).parents[2] / "docs/command-line.md").read_text(encoding="utf-8").replace("\\\n", "")
DOCUMENTED = re.findall(r"^\$ (reprior [^#\n]+)", PAGE, re.M)


def test_every_command_is_documented_and_shows_an_example():
    assert {shlex.split(line)[1] for line in DOCUMENTED} == set(COMMANDS)
    for name in COMMANDS:
        command = command_of(name)
        assert f"Example:  reprior {name}" in command.help, name
        for each in getattr(command, "commands", {name: command}).values():
            assert "--json" in [flag for parameter in each.params for flag in parameter.opts], (name, each.name)


@pytest.mark.parametrize("line", DOCUMENTED)
def test_documented_lines_run(call, files, tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    for name, file in {"list": "scores.parquet", "ndjson": "scores.ndjson", "heldout": "heldout.npz",
                       "counts": "counts.json"}.items():  # fmt: skip
        shutil.copy(files[name], file)
    shutil.copy(files["ndjson"], "labelled.ndjson")
    words = shlex.split(line)
    if "--source model.reprior" in line:
        assert call("fit", "heldout.npz", "-o", "model.reprior")[0] == 0
    if "--by" in words:
        table = pq.read_table("scores.parquet")
        pq.write_table(table.append_column("shop", [["a", "b"] * (len(table) // 2)]), "scores.parquet")
    if "show" in words:
        rp.Stream("online-ebls", [1, 1]).save("state.bin")
    code, out, err = call(*words[1:])
    message = "corrected.ndjson: 1,000 rows; state in state.bin\n" * ("--state" in words)
    by_position = "Classes were matched by position, because the input or the source has no class names.\n"
    message += by_position * ("stream" in words)
    assert (code, err) == (0, message)
    if "-o" in words:
        assert Path(words[words.index("-o") + 1]).stat().st_size > 100
    else:
        assert out


@pytest.mark.parametrize("name", TARGETS)
def test_every_format_gives_the_same_estimate(ask, files, name):
    value = ask("estimate", files[name], "-s", files["heldout"])
    pipe = rp.pipeline(*(np.load(files["heldout"])[key] for key in ("proba", "y")))
    expected = pipe.estimate(np.load(files["npy"]).astype(np.float64))
    np.testing.assert_allclose(value["prior"], expected.prior, atol=1e-6)
    assert (value["method"], value["calibration"]) == ("ebls", "bias-corrected")
    assert value["classes"] == list(CLASSES)
    assert value["n"] == N
    assert all(low <= high for low, high in value["interval"])


@pytest.mark.parametrize("name", TARGETS)
def test_correct_writes_the_same_shape(call, files, tmp_path, name):
    out = tmp_path / files[name].name
    code, _, err = call("correct", files[name], "-s", files["heldout"], "-o", out)
    assert (code, err) == (0, "")
    assert [p.name for p in tmp_path.iterdir()] == [out.name]  # no helper file is left
    from reprior.io.files import open_table
    from reprior.io.table import Choice

    loaded = open_table(out, Choice(classes=CLASSES)).load().proba
    pipe = rp.pipeline(*(np.load(files["heldout"])[key] for key in ("proba", "y")))
    rows = np.load(files["npy"]).astype(np.float64)
    expected = pipe.estimate(rows).correct(rows)
    np.testing.assert_allclose(loaded, expected, atol=2e-6)
    if name in ("list", "fixed", "columns"):
        before, after = pq.read_table(files[name]), pq.read_table(out)
        assert before.schema == after.schema
        assert before.column("id") == after.column("id")


def test_a_pipe_is_read_and_written(files):
    data = files["list"].read_bytes()
    command = [*PROGRAM, "estimate", "-", "-s", str(files["heldout"]), "--json"]
    done = subprocess.run(command, input=data, capture_output=True, check=True)
    assert re.sub(rb"Still working after \d+ s\.\n", b"", done.stderr) == b""  # no progress bar in a pipe
    assert json.loads(done.stdout)["n"] == N
    command = [*PROGRAM, "correct", "-", "-s", str(files["heldout"]), "-o", "-"]
    out = subprocess.run(command, input=files["ndjson"].read_bytes(), capture_output=True, check=True).stdout
    assert [json.loads(line)["id"] for line in out.splitlines()] == list(range(N))


@pytest.mark.parametrize("calibrate", ["none", "bcts"])
def test_a_terminal_shows_passes(files, tmp_path, calibrate):
    target = tmp_path / "t.npy"
    np.save(target, np.tile(np.load(files["npy"]), (5000, 1)))  # long enough for a bar to be drawn more than once
    ours, theirs = pty.openpty()
    command = [*PROGRAM, "estimate", str(target), "-s", str(files["heldout"]), "-m", "mlls", "--calibrate", calibrate]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    shown = b""
    try:
        while data := os.read(ours, 65536):
            shown += data
    except OSError:  # the other end has closed
        pass
    out, _ = process.communicate()
    os.close(ours)
    assert process.returncode == 0
    assert b"pass 1" in shown
    assert b"pass 2" in shown
    assert re.search(rb"\d%\S* \S*\d:\d\d:\d\d", shown)  # done, and time left
    assert b"pass" not in out


def test_exit_codes(call, files, tmp_path, monkeypatch):
    assert call("estimate", files["npy"], "-s", files["counts"])[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr("reprior.model.likelihood.MAX_CYCLES", 1)
        assert call("estimate", files["npy"], "-s", files["counts"])[0] == 2
    for bad in (
        ["estimate", files["npy"]], ["estimate", tmp_path / "no.npy", "-s", files["counts"]], ["strange"],
        ["estimate", files["npy"], "-s", files["counts"], "-m", "magic"],
        ["estimate", files["npy"], "-s", files["counts"], "-O", "speed=3"],
        ["estimate", files["npy"], "-s", files["counts"], "--calibrate", "ts"],
        ["estimate", files["npy"], "-s", files["npy"]],
        ["simulate", files["npy"], "-o", tmp_path / "x.npz"], ["stream", files["ndjson"]],
    ):  # fmt: skip
        code, out, err = call(*bad)
        assert (code, out) == (1, ""), bad
        assert err.startswith("Error: ")
        assert err.count("\n") == 1
        code, out, err = call(*bad, "--json")
        assert code == 1
        assert json.loads(err)["exit"] == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["compare", "diagnose", "report", "doctor"])
def test_json_everywhere(ask, files, name):
    arguments = [] if name == "doctor" else [files["list"], "-s", files["heldout"]]
    assert ask(name, *arguments)


def test_named_methods_and_calibrations_are_taken_at_their_word(ask, call, files, tmp_path):
    held, rows = (np.load(files["heldout"])[key] for key in ("proba", "y")), np.load(files["npy"])
    arguments = [files["npy"], "-s", files["heldout"]]
    value = ask("estimate", *arguments, "-m", "MAPLS", "--calibrate", "none")
    pipe = rp.pipeline(*held, method="mapls", calibration="none")
    np.testing.assert_allclose(value["prior"], pipe.estimate(rows).prior, atol=1e-6)
    np.testing.assert_array_equal(pipe.estimate(rows, check=False).prior, rp.mapls(pipe.source, rows).prior)
    assert (value["method"], value["calibration"]) == ("mapls", "none")
    for command in ("report", "diagnose", "compare"):
        value = ask(command, *arguments)
        assert (value["method"], value["calibration"]) == ("ebls", "bias-corrected")
    assert "method ebls, calibration bias-corrected" in call("diagnose", *arguments)[1]


@pytest.mark.parametrize("largest", [100, 1000])
def test_counts_alone_are_taken_as_the_pipeline_takes_them(ask, tmp_path, largest):
    counts = np.linspace(40, largest, 25).round()
    rows = np.random.default_rng(0).dirichlet(np.full(25, 0.1), 300)
    np.save(tmp_path / "t.npy", rows)
    np.save(tmp_path / "counts.npy", counts)
    np.save(tmp_path / "prior.npy", counts / counts.sum())
    value = ask("estimate", tmp_path / "t.npy", "-s", tmp_path / "counts.npy", "--no-interval")
    assert (value["method"], value["calibration"]) == ("ebls", "none")
    np.testing.assert_allclose(value["prior"], rp.pipeline(counts=counts).estimate(rows).prior, atol=1e-9)
    value = ask("estimate", tmp_path / "t.npy", "-s", tmp_path / "prior.npy", "--no-interval")
    np.testing.assert_allclose(value["prior"], rp.pipeline(prior=counts).estimate(rows).prior, atol=1e-9)


def test_compare_measures_against_the_truth(ask, files):
    value = ask("compare", files["npz"], "-s", files["heldout"], "--truth", files["npz"])
    assert {row["method"] for row in value["methods"]} == {"the default", *rp.METHODS}
    assert all(0 <= row["kl"] < 0.1 for row in value["methods"])
    skipped = [
        row["method"] for row in ask("compare", files["npz"], "-s", files["counts"])["methods"] if "skipped" in row
    ]
    assert skipped == ["bbse", "rlls"]


@pytest.mark.parametrize("whole_numbers", [False, True])
def test_the_truth_may_be_ids_and_labels_alone(ask, refused, files, tmp_path, whole_numbers):
    archive = np.load(files["npz"])
    expected = ask("compare", files["npz"], "-s", files["heldout"], "--truth", files["npz"])["methods"]
    names = [int(j) if whole_numbers else CLASSES[j] for j in archive["y"]]
    lines = [f"{i},{name}" for i, name in enumerate(names)]
    (tmp_path / "truth.csv").write_text("\n".join(["id,label", *lines]))
    answer = ask("compare", files["npz"], "-s", files["heldout"], "--truth", tmp_path / "truth.csv")["methods"]
    assert [row.get("kl") for row in answer] == pytest.approx([row.get("kl") for row in expected])
    (tmp_path / "truth.csv").write_text("\n".join(["id,label", *lines[:3], "x,owl"]))
    err = refused("compare", files["npz"], "-s", files["heldout"], "--truth", tmp_path / "truth.csv")
    first = f"{names[0]}, first at row 0" if whole_numbers else "owl, first at row 3"
    assert f"column 'label'` must hold names of classes; got {first}" in err


def test_simulate_writes_csv_that_other_commands_read(ask, refused, files, tmp_path):
    arguments = ["simulate", files["npz"], "--rows", 200, "--seed", 3, "-o"]
    ask(*arguments, tmp_path / "s.csv")
    ask(*arguments, tmp_path / "s.npz")
    source = ["-s", files["heldout"]]
    a, b = (ask("estimate", tmp_path / name, *source)["prior"] for name in ("s.csv", "s.npz"))
    assert a == pytest.approx(b, abs=1e-6)
    ask("fit", tmp_path / "s.csv", "-o", tmp_path / "m.reprior")
    np.savez(tmp_path / "odd.npz", proba=np.load(files["npz"])["proba"], y=np.load(files["npz"])["y"],
             classes=["label", *CLASSES[1:]])  # fmt: skip
    assert "if a class is called 'label'" in refused("simulate", tmp_path / "odd.npz", "-o", tmp_path / "x.csv")


def test_simulate_draws_what_it_says(ask, files, tmp_path):
    out = tmp_path / "shifted.parquet"
    value = ask("simulate", files["npz"], "--shift", "tweak-one", "--strength", 0.7, "--rows", 200, "-o", out)
    again = ask("simulate", files["npz"], "--shift", "tweak-one", "--strength", 0.7, "--rows", 200, "-o", out)
    assert value == again
    labels = pq.read_table(out).column("label").to_pylist()
    assert max(value["prior"].values()) == pytest.approx(0.7)
    assert {c: labels.count(c) / 200 for c in CLASSES} == pytest.approx(value["prior"])


@pytest.mark.parametrize(("k", "n"), [(2, 200), (1000, 300)])
def test_report_is_one_whole_file(call, tmp_path, k, n):
    rng = np.random.default_rng(0)
    names = [f"class <{j}> & co" for j in range(k)]
    np.savez(tmp_path / "t.npz", proba=rng.dirichlet(np.full(k, 0.1), n).astype(np.float32) + 1e-9, classes=names)
    (tmp_path / "c.json").write_text(json.dumps(dict.fromkeys(names, 1)))
    code, _, _ = call("report", tmp_path / "t.npz", "-s", tmp_path / "c.json", "-o", tmp_path / "r.html")
    assert code in (0, 2)
    page = (tmp_path / "r.html").read_text()
    assert page.count("<tr><td>class &lt;") == k
    assert "://" not in page  # nothing is loaded from anywhere
    assert "src=" not in page
    assert "class <" not in page


def test_a_full_disk_is_named_and_damages_nothing(files, tmp_path):
    limit = 4000  # bytes a file may have

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    for name in ("list", "npy"):
        out = tmp_path / f"out{files[name].suffix}"
        out.write_bytes(b"what was there before")
        command = [*PROGRAM, "correct", str(files[name]), "-s", str(files["counts"]), "-o", str(out)]
        done = subprocess.run(command, capture_output=True, text=True, preexec_fn=small_files)
        assert done.returncode == 1
        assert done.stderr == f"Error: {out}: File too large.\n"
        assert out.read_bytes() == b"what was there before"
        assert not list(tmp_path.glob(".*tmp"))


def test_an_unreadable_part_leaves_what_was_written(call, files, tmp_path):
    target, out = tmp_path / "parts", tmp_path / "out"
    shutil.copytree(files["parts"], target)
    assert call("correct", target, "-s", files["heldout"], "-o", out)[0] == 0
    before = {p.name: p.read_bytes() for p in out.iterdir()}
    data = (target / "part-3.parquet").read_bytes()
    (target / "part-3.parquet").write_bytes(data[:600])
    code, _, err = call("correct", target, "-s", files["heldout"], "-o", out)
    assert code == 1
    assert "part-3.parquet` must be a readable, whole file" in err
    assert {p.name: p.read_bytes() for p in out.iterdir()} == before


@pytest.mark.parametrize(("module", "extra"), [("pyarrow", "files"), ("msgpack", "stream")])
def test_a_missing_extra_is_one_sentence(files, tmp_path, module, extra):
    msgpack_rows(tmp_path / "rows", np.load(files["npy"]), raw=False)
    line = ["stream", tmp_path / "rows"] if extra == "stream" else ["estimate", files["csv"]]
    code = f"import sys; sys.modules[{module!r}] = None; from reprior.cli import main; main()"
    command = [sys.executable, "-c", code, *map(str, line), "--source", str(files["counts csv"])]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.endswith(f"pip install '.[{extra}]'\n")


def test_no_command_overwrites_its_input(refused, files, tmp_path):
    shutil.copy(files["npz"], tmp_path / "t.npz")
    shutil.copy(files["ndjson"], tmp_path / "t.ndjson")
    shutil.copytree(files["parts"], tmp_path / "parts")
    (tmp_path / "link.npz").symlink_to(tmp_path / "t.npz")
    source = ["-s", files["counts"], "-o"]
    for line in (
        ["correct", tmp_path / "t.npz", *source, tmp_path / "link.npz"],
        ["correct", tmp_path / "parts", *source, tmp_path / "parts"],
        ["correct", tmp_path / "parts", *source, tmp_path / "parts" / "corrected"],
        ["report", tmp_path / "t.npz", *source, tmp_path / "t.npz"],
        ["simulate", tmp_path / "t.npz", "-o", tmp_path / "t.npz"],
        ["stream", tmp_path / "t.ndjson", *source, tmp_path / "t.ndjson"],
    ):
        assert "be apart from the input" in refused(*line)


def test_commands_that_write_files_alone_refuse_standard_output(refused, files, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # they used to write a file with the name "-"
    rest = [files["csv"], "-s", files["heldout"], "-o", "-"]
    for line in (["fit", files["heldout"], "-o", "-"], ["report", *rest], ["query", *rest]):
        assert "must name a file; got -" in refused(*line)


def test_no_command_prints_the_help(call):
    code, out, err = call()
    assert (code, out) == (1, "")
    assert err.startswith("Usage: reprior")
    assert "Error" not in err


def test_the_name_of_an_output_may_not_promise_another_format(call, refused, files, tmp_path):
    for name, out in (("npy", "o.csv"), ("csv", "o.parquet"), ("ndjson", "o.npy")):
        err = refused("correct", files[name], "-s", files["counts"], "-o", tmp_path / out)
        assert f"end in {files[name].suffix}" in err
    assert "end in .npz" in refused("simulate", files["npz"], "-o", tmp_path / "x.npy")
    assert call("correct", files["npy"], "-s", files["counts"], "-o", tmp_path / "o")[0] == 0  # promises nothing


def test_how_classes_were_matched_is_said(call, ask, files):
    for name, matched in (("npy", "position"), ("columns", "name")):
        for command in ("estimate", "compare", "diagnose", "report"):
            assert ask(command, files[name], "-s", files["heldout"])["matched"] == matched
        _, out, _ = call("estimate", files[name], "-s", files["heldout"])
        assert ("matched by position" in out) == (matched == "position")


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_simulate_invents_no_names(ask, files, tmp_path, suffix):
    rows = np.load(files["npz"])
    np.savez(tmp_path / "pool.npz", proba=rows["proba"], y=rows["y"])
    ask("simulate", tmp_path / "pool.npz", "-o", tmp_path / f"s.{suffix}")
    for source in (files["heldout"], tmp_path / f"s.{suffix}"):
        assert ask("estimate", tmp_path / f"s.{suffix}", "-s", source)["matched"] == "position"


def test_failures_speak_of_the_command_line(refused, files):
    arguments = [files["npy"], "-s", files["counts"]]
    for line, message in (
        (["estimate", *arguments, "-m", "bbse"], "Pass held-out samples with labels as --source"),
        (["estimate", *arguments, "-m", "rlls"], "Pass held-out samples with labels as --source"),
        (["stream", files["ndjson"], *arguments[1:], "-m", "fth"], "held-out samples with labels: `summarize"),
        (["estimate", *arguments, "-m", "mlsl"], "Perhaps you mean mlls"),
        (["estimate", *arguments, "-m", "online-ebls"], "`reprior stream` runs online-ebls"),
        (["stream", files["ndjson"], *arguments[1:], "-m", "ebls"], "`reprior estimate` runs ebls"),
        (["estimate", *arguments, "-O", "foo=3"], "base"),
        (["estimat", *arguments], "Did you mean 'estimate'?"),
    ):
        assert message in refused(*line)


def test_doctor_knows_all_extras(ask):
    assert {"files", "stream", "sklearn", "river", "quapy", "torch"} <= ask("doctor")["extras"].keys()


def test_help_loads_no_heavy_library():
    code = """import sys; from reprior.cli import cli; from reprior.cli._shell import run; run(cli, ["--help"])
print([name for name in ("pyarrow", "matplotlib", "rich", "pandas", "scipy.optimize") if name in sys.modules])"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.endswith("[]\n")
    assert all(name in out for name in COMMANDS)


def test_a_shift_beyond_doubt_has_no_p_of_zero(call, tmp_path):
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "held.npz", proba=rng.dirichlet([9, 1], 20_000), y=rng.choice(2, 20_000, p=[0.9, 0.1]))
    np.save(tmp_path / "t.npy", rng.dirichlet([1, 9], 20_000))
    code, out, _ = call("diagnose", tmp_path / "t.npy", "-s", tmp_path / "held.npz")
    assert code == 0
    assert "changed against the held-out samples (p < 1e-12)" in out


def test_an_interrupted_array_is_written_again_as_a_whole(call, tmp_path, monkeypatch):
    from reprior.cli import correct

    rows = np.tile([[0.7, 0.2, 0.1]], (40_000, 1))
    np.save(tmp_path / "t.npy", rows)
    (tmp_path / "c.json").write_text("[1, 1, 1]")
    (tmp_path / "p.json").write_text("[1, 2, 3]")
    job = ["correct", tmp_path / "t.npy", "-s", tmp_path / "c.json", "--prior", tmp_path / "p.json"]
    assert call(*job, "-o", tmp_path / "whole.npy")[0] == 0
    make = correct.correction

    def interrupted(*args):
        blocks = iter([make(*args)])  # the second block is the end of it

        def once(block):
            try:
                return next(blocks)(block)
            except StopIteration:
                raise KeyboardInterrupt from None

        return once

    with monkeypatch.context() as patch:
        patch.setattr(correct, "correction", interrupted)
        assert call(*job, "-o", tmp_path / "out.npy")[0] == 130
    assert not list(tmp_path.glob("*out.npy*tmp"))
    assert call(*job, "-o", tmp_path / "out.npy")[0] == 0
    assert (tmp_path / "out.npy").read_bytes() == (tmp_path / "whole.npy").read_bytes()


def test_in_a_pipe_a_word_says_that_work_goes_on(monkeypatch):
    message, words = threading.Event(), io.StringIO()

    class Pipe:
        def write(self, text):
            words.write(text)
            message.set()

    monkeypatch.setattr(_shell, "FIRST", 0.01)
    monkeypatch.setattr(sys, "stderr", Pipe())
    with _shell.patience():
        assert message.wait(60)
    assert re.fullmatch(r"(Still working after \d+ s\.\n)+", words.getvalue())
