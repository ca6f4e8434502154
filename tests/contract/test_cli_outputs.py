"""Where `-o` leads: pipes, terminals, links, names of inputs, and files that another run is writing."""

import io
import json
import os
import select
import shlex
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

import reprior as rp
from reprior.cli._shell import alone

PROGRAM = [sys.executable, "-c", "from reprior.cli import main; main()"]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs FIFOs and terminals")


def read_all(path, result):
    with open(path, "rb") as file:
        result.append(file.read())


@pytest.mark.parametrize("name", ["npy", "npz", "list", "csv", "ndjson"])
def test_correct_writes_into_a_fifo(call, files, tmp_path, name):
    os.mkfifo(tmp_path / "out")
    results = []
    reader = threading.Thread(target=read_all, args=(tmp_path / "out", results))
    reader.start()
    arguments = ["correct", files[name], "-s", files["counts"], "-o"]
    assert call(*arguments, tmp_path / "out")[0] == 0
    reader.join()
    assert (tmp_path / "out").is_fifo()
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    assert call(*arguments, tmp_path / f"whole{files[name].suffix}")[0] == 0
    whole = (tmp_path / f"whole{files[name].suffix}").read_bytes()
    if name == "npz":  # sizes stand behind the data where one cannot go back
        np.testing.assert_array_equal(np.load(io.BytesIO(results[0]))["proba"], np.load(io.BytesIO(whole))["proba"])
    else:
        assert results[0] == whole


@pytest.mark.parametrize("command", ["correct", "report", "stream"])
def test_a_terminal_stays_a_terminal(call, files, command):
    main, terminal = os.openpty()
    place, done, got = os.ttyname(terminal), threading.Event(), []
    before = os.stat(place).st_ino

    def drain():
        while not done.is_set() or select.select([main], [], [], 0)[0]:
            if select.select([main], [], [], 0.02)[0]:
                got.append(os.read(main, 1 << 16))

    reader = threading.Thread(target=drain)
    reader.start()
    code, _, err = call(command, files["ndjson"], "-s", files["counts"], "-o", place)
    done.set()
    reader.join()
    assert (code, "Error" in err) == (0, False), err
    assert len(b"".join(got)) > 1000
    assert os.stat(place).st_ino == before
    os.close(main)
    os.close(terminal)


def test_a_link_is_followed(call, files, tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "out.npy").symlink_to(tmp_path / "real" / "out.npy")
    for _ in range(2):  # to a file that is not there yet, and to one that is
        assert call("correct", files["npy"], "-s", files["counts"], "-o", tmp_path / "out.npy")[0] == 0
        assert (tmp_path / "out.npy").is_symlink()
        assert [p.name for p in (tmp_path / "real").iterdir()] == ["out.npy"]


@pytest.mark.parametrize("command", ["correct", "stream"])
def test_an_input_under_another_name_is_refused(refused, files, tmp_path, command):
    shutil.copy(files["ndjson"], tmp_path / "in.ndjson")
    os.link(tmp_path / "in.ndjson", tmp_path / "out.ndjson")
    arguments = [command, tmp_path / "in.ndjson", "-s", files["counts"], "-o", tmp_path / "out.ndjson"]
    assert "be apart from the input" in refused(*arguments)
    assert (tmp_path / "in.ndjson").read_bytes() == files["ndjson"].read_bytes()


def test_the_second_of_two_corrects_is_refused(call, refused, files, tmp_path):
    arguments = ["correct", files["npy"], "-s", files["counts"], "-o"]
    with alone("correct", tmp_path / "out.npy", "--output"):
        message = "must belong to one run at a time; got"
        assert message in refused(*arguments, tmp_path / "out.npy")
        (tmp_path / "link").symlink_to(tmp_path / "out.npy")
        assert message in refused(*arguments, tmp_path / "link")
        assert call(*arguments, tmp_path / "other.npy")[0] == 0
    assert call(*arguments, tmp_path / "out.npy")[0] == 0
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link", "other.npy", "out.npy"]


def test_a_refused_run_makes_no_folder(refused, files, tmp_path):
    np.save(tmp_path / "bad.npy", np.full((9, 4), 0.3))
    refused("correct", tmp_path / "bad.npy", "-s", files["counts"], "-o", tmp_path / "new" / "folder" / "out.npy")


@pytest.mark.parametrize("name", ["npy", "npz", "list", "csv", "ndjson"])
def test_target_and_source_may_come_through_fifos(call, files, tmp_path, name):
    writers = []
    for place, source in (("target", files[name]), ("source", files["heldout"])):
        os.mkfifo(tmp_path / place)
        write = threading.Thread(target=(tmp_path / place).write_bytes, args=(source.read_bytes(),))
        write.start()
        writers.append(write)
    result, plain = (
        call("estimate", target, "-s", source, "--json")
        for target, source in ((tmp_path / "target", tmp_path / "source"), (files[name], files["heldout"]))
    )
    for write in writers:
        write.join()
    assert result[0] == 0, result[2]
    assert json.loads(result[1])["prior"] == json.loads(plain[1])["prior"]


@pytest.mark.parametrize("command", ["stream", "correct"])
def test_a_reader_that_has_had_enough_is_no_failure(files, tmp_path, command):
    with open(tmp_path / "many.ndjson", "w") as file:
        file.write(files["ndjson lists"].read_text() * 20)
    line = [sys.executable, "-c", "from reprior.cli import main; main()", command, str(tmp_path / "many.ndjson"), "-s"]
    process = subprocess.Popen([*line, str(files["counts"]), "-o", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout.readline().startswith(b"[")
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait() == 0


def test_names_of_files_need_not_be_text(call, files, tmp_path):
    odd = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.npy")
    shutil.copy(files["npy"], odd)
    for inputs in (["estimate", odd], ["correct", odd, "-o", odd + ".out"], ["report", odd, "-o", odd + ".html"]):
        code, _, err = call(*inputs, "-s", files["counts"])
        assert (code, err) == (0, "")
    code, _, err = call("estimate", odd + ".not", "-s", files["counts"])
    assert (code, err.endswith("No such file or directory.\n")) == (1, True)


def test_out_of_memory_names_no_option(files):
    code = """import reprior.cli._inputs as given
def read_inputs(*_, **__): raise MemoryError
given.read_inputs = read_inputs
from reprior.cli import cli; from reprior.cli._shell import run
raise SystemExit(run(cli, ["estimate", "x", "-s", "y"]))"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: Not enough memory.")
    assert "--" not in done.stderr


def test_a_report_on_a_method_that_rules_out_a_row(call, tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 300)
    observed = np.where((y == 0) & (rng.random(300) < 0.3), 2, y)  # class 0 is often taken for class 2
    held = np.where(np.eye(3)[observed] > 0, 0.98, 0.01)
    np.savez(tmp_path / "held.npz", proba=held, y=y)
    rows = np.vstack([held[observed < 2][:150], [[0.0, 0.0, 1.0]]])  # of class 2, which their moments leave no share
    np.save(tmp_path / "t.npy", rows)
    code, _, err = call(
        "report", tmp_path / "t.npy", "-s", tmp_path / "held.npz", "-o", tmp_path / "o.html", "--calibrate", "none"
    )
    assert (code, err) == (0, "")
    assert "−∞" in (tmp_path / "o.html").read_text(encoding="utf-8")


@pytest.mark.parametrize("line", [
    "estimate {npy}", "correct {csv} -o {out}", "report {npy} -o {out}", "compare {npy}", "diagnose {npy}",
    "query {npy} -n 5 -o {out}", "stream {csv} -o {out}",
])  # fmt: skip
def test_a_fitted_source_may_come_through_a_pipe(line: str, files: dict[str, Path], tmp_path: Path) -> None:
    with np.load(files["heldout"]) as held:
        rp.pipeline(held["proba"], held["y"], classes=held["classes"]).save(tmp_path / "model.reprior")
    os.mkfifo(tmp_path / "pipe")
    words = line.format(npy=files["npy"], csv=files["csv"], out=tmp_path / "out.csv").split()
    with subprocess.Popen(["cp", tmp_path / "model.reprior", tmp_path / "pipe"]) as writer:
        done = subprocess.run([*PROGRAM, *words, "--source", str(tmp_path / "pipe")], capture_output=True, text=True,
                              timeout=60, check=False)  # fmt: skip
        assert writer.wait(10) == 0
    assert done.returncode == 0, done.stderr
    with (tmp_path / "model.reprior").open("rb") as model:
        again = subprocess.run([*PROGRAM, *words, "--source", "-"], stdin=model, capture_output=True, timeout=60,
                               check=False)  # fmt: skip
    assert again.returncode == 0, again.stderr


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_do_not_matter(closed: str, files: dict[str, Path], tmp_path: Path) -> None:
    words = ["correct", files["csv"], "--source", files["counts"], "-o", tmp_path / "out.csv"]
    command = shlex.join(map(str, [*PROGRAM, *words]))
    done = subprocess.run(f"{command} {closed}", shell=True, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 1001


def test_a_closed_standard_input_is_an_empty_one(files: dict[str, Path]) -> None:
    command = shlex.join([*PROGRAM, "estimate", "-", "--source", str(files["counts"])])
    done = subprocess.run(f"{command} <&-", shell=True, capture_output=True, text=True, check=False)
    assert (done.returncode, "must have at least one row; got an empty file" in done.stderr) == (1, True)
