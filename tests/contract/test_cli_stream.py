"""`reprior stream`: rows out as rows come in, labels that come late, and a state that survives."""

import json
import shutil

import msgpack
import numpy as np
import pytest
from cli_files import CLASSES, N, msgpack_rows

import reprior as rp
from reprior.state import decode


@pytest.mark.parametrize("name", ["ndjson", "ndjson lists", "ndjson objects", "csv", "csv with id", "msgpack", "raw"])
def test_stream_goes_on_exactly(call, files, tmp_path, name):
    if name in ("msgpack", "raw"):
        msgpack_rows(tmp_path / "in", np.load(files["npy"]), name == "raw")
    else:
        shutil.copy(files[name], tmp_path / "in")
    data = (tmp_path / "in").read_bytes()
    whole = ["-s", files["heldout"], "--every", 70, "--emit", "both"]
    assert call("stream", tmp_path / "in", *whole, "-o", tmp_path / "once")[:2] == (0, "")
    for cut in (0.1, 0.35, 0.36, 0.8, 1):
        (tmp_path / "growing").write_bytes(data[: int(cut * len(data))])
        code, _, _ = call("stream", tmp_path / "growing", *whole, "-o", tmp_path / "pieces", "--state", tmp_path / "s")
        with open(tmp_path / "pieces", "ab") as file:
            file.write(b"what a crash left behind the saved state")
    with open(tmp_path / "pieces", "rb") as file:
        assert file.read((tmp_path / "once").stat().st_size) == (tmp_path / "once").read_bytes()
    assert code == 0


def test_stream_predicts_first_then_learns(call, files):
    code, out, _ = call("stream", files["ndjson lists"], "-s", files["heldout"], "--every", 1, "--emit", "rows",
                        "--calibrate", "none")  # fmt: skip
    stream = rp.Stream("online-ebls", rp.summarize(*(np.load(files["heldout"])[key] for key in ("proba", "y"))))
    rows = [json.loads(line) for line in files["ndjson lists"].read_text().splitlines()]
    for given, line in zip(rows[:50], out.splitlines(), strict=False):
        np.testing.assert_allclose(json.loads(line), stream.correct_one(np.array(given)), rtol=1e-9)
        stream.learn_one(np.array(given))
    assert code == 0


def test_stream_stops_at_a_bad_row_or_leaves_it_out(call, files, tmp_path):
    lines = files["ndjson lists"].read_text().splitlines()
    lines[7] = "[1, 1, 1, 1]"
    lines[9] = '{"proba": [1, 0, 0, 0]}'
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    code, out, err = call("stream", tmp_path / "in", "-s", files["heldout"])
    assert code == 1
    assert "rows that sum to 1" in err
    assert "row 7" in err
    assert len(out.splitlines()) == 7
    code, out, err = call("stream", tmp_path / "in", "-s", files["heldout"], "--skip-bad", "--emit", "rows")
    assert code == 0
    assert len(out.splitlines()) == N - 2
    assert err.startswith("2 rows left out; the first: stream: `input`")


def test_a_state_of_another_run_is_refused(call, files, tmp_path):
    given = ["stream", files["ndjson"], "--state", tmp_path / "s", "-o", tmp_path / "o"]
    assert call(*given, "-s", files["heldout"])[0] == 0
    code, _, err = call(*given, "--every", 7)
    assert code == 1
    assert "belong to a run with" in err
    code, _, err = call(*given, "-s", files["counts"])
    assert code == 1
    assert "After a retraining name another state file" in err
    assert call(*given, "-s", tmp_path / "not-there.csv")[0] == 1
    assert call(*given)[0] == 0
    (tmp_path / "s").write_bytes(b"noise")
    code, _, err = call(*given)
    assert code == 1
    assert "must be bytes written by reprior" in err


@pytest.mark.parametrize("name", ["npy", "npz", "list", "arrow"])
def test_stream_sends_files_to_correct(refused, files, tmp_path, name):
    err = refused("stream", files[name], "-s", files["counts"], "-o", tmp_path / "out")
    assert "Use `reprior correct` for files" in err


def test_a_stream_into_a_file_is_rows_alone_and_ends_with_a_line(call, refused, files, tmp_path):
    given = ["stream", files["ndjson lists"], "-s", files["counts"], "--state", tmp_path / "state", "-o"]
    code, out, err = call(*given, tmp_path / "o", "--json")
    assert (code, out) == (0, "")
    assert json.loads(err) == {
        "rows": N, "skipped": 0, "labels": 0, "labels_lost": 0, "output": str(tmp_path / "o"),
        "state": str(tmp_path / "state"),
    }  # fmt: skip
    assert len((tmp_path / "o").read_text().splitlines()) == N
    assert "Give the output of the earlier run" in refused(*given, tmp_path / "p")


@pytest.mark.parametrize("name", ["csv", "ndjson objects"])
def test_a_stream_lists_columns_the_source_does_not_name(refused, files, tmp_path, name):
    (tmp_path / "c.json").write_text('{"ant": 3, "dog": 4}')
    err = refused("stream", files[name], "-s", tmp_path / "c.json", "--emit", "prior")
    assert "The source names 2 of the 4 columns; unused: bee, cat" in err


def labelled(files, form, every=20, late=300):
    """Return records with ids, labels in every 20th, and late labels of others, 300 rows after; and the truth."""
    rows, y = np.load(files["npz"])["proba"].astype(float), np.load(files["npz"])["y"]
    told = {i: y[i] for i in range(0, N, every)}
    later = {i + late: i for i in range(7, N - late, every)}
    out = []
    for i, row in enumerate(rows.tolist()):
        if form == "csv":
            out.append(",".join([f"r{i}", *map(repr, row), CLASSES[told[i]] if i in told else ""]))
            out += [f"r{later[i]},,,,,{y[later[i]]}"] if i in later else []  # a class by its number
        else:
            out.append({"id": f"r{i}", "proba": row} | ({"truth": CLASSES[told[i]]} if i in told else {"truth": None}))
            out += [{"id": f"r{later[i]}", "truth": CLASSES[y[later[i]]]}] if i in later else []
    if form == "csv":
        return ("\n".join(["id,ant,bee,cat,dog,truth", *out]) + "\n").encode(), rows, y, told, later
    pack = msgpack.packb if form == "msgpack" else lambda value: json.dumps(value).encode() + b"\n"
    return b"".join(map(pack, out)), rows, y, told, later


@pytest.mark.parametrize("form", ["ndjson", "csv", "msgpack"])
def test_labels_with_a_row_and_late_ones_are_taken_in(call, files, tmp_path, form):
    data, rows, y, told, later = labelled(files, form)
    stream = rp.Stream("online-ebls", rp.summarize(*(np.load(files["heldout"])[key] for key in ("proba", "y"))))
    for i, row in enumerate(rows):
        stream.learn_one(row)
        if i in told:
            stream.observe(row, y[i])
        if i in later:
            stream.observe(rows[later[i]], y[later[i]])
    given = ["-s", files["heldout"], "--calibrate", "none", "--label", "truth", "--id", "id", "--remember", 350, "-o"]
    (tmp_path / "in").write_bytes(data)
    code, out, err = call("stream", tmp_path / "in", *given, tmp_path / "once", "--state", tmp_path / "s1", "--json")
    assert (code, out) == (0, "")
    assert json.loads(err) | {"rows": N, "labels": len(told) + len(later), "labels_lost": 0} == json.loads(err)
    for cut in (0.1, 0.5, 0.51, 1):  # a restart remembers the rows that wait
        (tmp_path / "growing").write_bytes(data[: int(cut * len(data))])
        call("stream", tmp_path / "growing", *given, tmp_path / "pieces", "--state", tmp_path / "s2")
    assert (tmp_path / "once").read_bytes() == (tmp_path / "pieces").read_bytes()
    found = [rp.Stream.from_bytes(decode((tmp_path / s).read_bytes(), "stream-job", "test")["stream"].tobytes())
             for s in ("s1", "s2")]  # fmt: skip
    np.testing.assert_array_equal(found[0].prior, found[1].prior)
    np.testing.assert_allclose(found[0].prior, stream.prior, atol=1e-12)


def test_labels_of_forgotten_rows_are_counted_and_wrong_ones_refused(call, refused, files, tmp_path):
    data, *_, told, later = labelled(files, "ndjson")
    (tmp_path / "in").write_bytes(data)
    given = ["stream", tmp_path / "in", "-s", files["heldout"], "--label", "truth", "--id", "id"]
    _, _, err = call(*given, "--remember", 100, "-o", tmp_path / "o")
    assert err.startswith(f"{len(later)} labels were of no row among the last 100 that wait for one; see --remember")
    assert f"1000 rows, {len(told)} labels; no state kept" in err
    (tmp_path / "in").write_bytes(data.replace(b'"ant"', b'"eel"', 1))
    assert "must have labels that are classes; got 'eel', first at row" in refused(*given, "--emit", "prior")
    assert "say what holds those with --label" in refused("stream", tmp_path / "in", *given[2:4], "--id", "id")
    (tmp_path / "in.csv").write_bytes(labelled(files, "csv")[0])
    csv = ["stream", tmp_path / "in.csv", *given[2:4], "--label", "y"]
    assert "must have the column 'y'; got id, ant" in refused(*csv)


def test_a_feed_may_begin_with_a_late_label(call, files, tmp_path):
    for form in ("ndjson", "msgpack"):
        pack = msgpack.packb if form == "msgpack" else lambda value: json.dumps(value).encode() + b"\n"
        (tmp_path / "in").write_bytes(pack({"id": "old", "truth": "ant"}) + labelled(files, form)[0])
        given = ["stream", tmp_path / "in", "-s", files["heldout"], "--label", "truth", "--id", "id"]
        assert call(*given, "-o", tmp_path / "o")[0] == 0


def test_without_label_options_labels_are_only_passed_through(call, files, tmp_path):
    (tmp_path / "in").write_bytes(b"".join(line + b"\n" for line in files["ndjson"].read_bytes().splitlines()))
    code, out, _ = call("stream", tmp_path / "in", "-s", files["heldout"], "--emit", "rows")
    assert code == 0
    bare = call("stream", files["ndjson lists"], "-s", files["heldout"], "--emit", "rows")[1]
    assert [json.loads(line)["proba"] for line in out.splitlines()] == [json.loads(line) for line in bare.splitlines()]
    assert json.loads(out.splitlines()[0])["label"] in CLASSES


@pytest.mark.parametrize("name", ["ndjson", "csv", "msgpack"])
def test_after_a_bad_row_was_mended_the_run_goes_on_exactly(call, files, tmp_path, name):
    if name == "msgpack":
        msgpack_rows(tmp_path / "in", np.load(files["npy"]), raw=False)
        good = (tmp_path / "in").read_bytes()
        at = good.index(msgpack.packb(np.load(files["npy"])[500].astype(float).tolist()))
        bad = good[: at + 2] + b"\x40" + good[at + 3 :]  # another exponent
    else:
        good = files[name].read_bytes()
        lines = good.splitlines(keepends=True)
        bad = b"".join([*lines[:501], lines[501].replace(b"0.", b"3.", 1), *lines[502:]])
    given = ["-s", files["heldout"], "-o"]
    (tmp_path / "in").write_bytes(good)
    assert call("stream", tmp_path / "in", *given, tmp_path / "once")[0] == 0
    (tmp_path / "in").write_bytes(bad)
    code, _, err = call("stream", tmp_path / "in", *given, tmp_path / "out", "--state", tmp_path / "s")
    assert code == 1
    assert "row 50" in err
    (tmp_path / "in").write_bytes(good)
    assert call("stream", tmp_path / "in", *given, tmp_path / "out", "--state", tmp_path / "s")[0] == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "once").read_bytes()


def test_a_restart_knows_its_files_by_what_they_hold(call, refused, files, tmp_path):
    shutil.copy(files["ndjson"], tmp_path / "in")
    given = ["stream", tmp_path / "in", "-s", files["heldout"], "--state", tmp_path / "s"]
    assert call(*given, "-o", tmp_path / "out")[0] == 0
    assert "must belong to a run with -o -, --emit both; got -o" in refused(*given)
    assert f"Give the output of the earlier run ({tmp_path / 'out'})" in refused(*given, "-o", tmp_path / "other")
    (tmp_path / "other").write_bytes(b"x" * 10_000_000)
    assert "must still hold what was written to it" in refused(*given, "-o", tmp_path / "other")
    (tmp_path / "out").rename(tmp_path / "moved")
    assert call(*given, "-o", tmp_path / "moved")[0] == 0
    (tmp_path / "in").write_bytes(b"x" * 10_000_000)
    assert "Give the input of the earlier run" in refused(*given, "-o", tmp_path / "moved")


def test_marks_and_line_ends_of_other_systems(call, files, tmp_path):
    text = files["csv"].read_bytes()
    (tmp_path / "in").write_bytes(b"\xef\xbb\xbf" + text.replace(b"\n", b"\r\n"))
    outs = [call("stream", path, "-s", files["heldout"])[1] for path in (tmp_path / "in", files["csv"])]
    assert outs[0].splitlines() == outs[1].splitlines()
    assert outs[0].count("\r\n") == outs[0].count("\n") == N + 1


def test_counts_calibration_and_logits_in_a_stream(call, files, tmp_path):
    held, (rows,) = np.load(files["heldout"]), (np.load(files["npy"]).astype(float),)
    np.savez(tmp_path / "held.npz", proba=np.log(held["proba"]), y=held["y"], classes=CLASSES)
    (tmp_path / "in").write_text("".join(json.dumps(row) + "\n" for row in (np.log(rows) + 3).tolist()))
    given = ["--counts", files["counts"], "--calibrate", "ts", "--emit", "rows"]
    code, out, _ = call("stream", tmp_path / "in", "-s", tmp_path / "held.npz", "--logits", *given)
    assert code == 0
    _, plain, _ = call("stream", files["ndjson lists"], "-s", files["heldout"], *given)
    found, expected = (np.array([json.loads(line) for line in text.splitlines()]) for text in (out, plain))
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert np.abs(expected - rows).max() > 0.01
