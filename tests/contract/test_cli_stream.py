"""`reprior stream`: rows out as rows come in, labels that come late, and a state that survives."""

import io
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import msgpack
import numpy as np
import pytest
from cli_files import CLASSES, N, msgpack_rows

import reprior as rp
from reprior.state import decode, encode


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


def test_an_output_named_like_another_format_is_refused(call, files, tmp_path):
    code, _, err = call("stream", files["csv"], "-s", files["heldout"], "-o", tmp_path / "out.ndjson")
    assert (code, (tmp_path / "out.ndjson").exists()) == (1, False)
    assert "must end in .csv, since the output has the format of the input" in err
    assert call("stream", files["csv"], "-s", files["heldout"], "--emit", "prior", "-o", tmp_path / "o.ndjson")[0] == 0


def test_stream_predicts_first_then_learns(call, files):
    code, out, _ = call("stream", files["ndjson lists"], "-s", files["heldout"], "--every", 1, "--emit", "rows",
                        "--calibrate", "none")  # fmt: skip
    stream = rp.Stream("online-ebls", rp.summarize(*(np.load(files["heldout"])[key] for key in ("proba", "y"))))
    rows = [json.loads(line) for line in files["ndjson lists"].read_text().splitlines()]
    for inputs, line in zip(rows[:50], out.splitlines(), strict=False):
        np.testing.assert_allclose(json.loads(line), stream.correct_one(np.array(inputs)), rtol=1e-9)
        stream.learn_one(np.array(inputs))
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
    arguments = ["stream", files["ndjson"], "--state", tmp_path / "s", "-o", tmp_path / "o"]
    assert call(*arguments, "-s", files["heldout"])[0] == 0
    code, _, err = call(*arguments, "--every", 7)
    assert code == 1
    assert "belong to a run with" in err
    code, _, err = call(*arguments, "-s", files["counts"])
    assert code == 1
    assert "After retraining name a new state file" in err
    assert call(*arguments, "-s", tmp_path / "not-there.csv")[0] == 1
    assert call(*arguments)[0] == 0
    (tmp_path / "s").write_bytes(b"noise")
    code, _, err = call(*arguments)
    assert code == 1
    assert "must be bytes written by reprior" in err


@pytest.mark.parametrize("name", ["npy", "npz", "list", "arrow"])
def test_stream_sends_files_to_correct(refused, files, tmp_path, name):
    err = refused("stream", files[name], "-s", files["counts"], "-o", tmp_path / "out")
    assert "Use `reprior correct` for files" in err


def test_a_stream_into_a_file_is_rows_alone_and_ends_with_a_line(call, refused, files, tmp_path):
    arguments = ["stream", files["ndjson lists"], "-s", files["counts"], "--state", tmp_path / "state", "-o"]
    code, out, err = call(*arguments, tmp_path / "o", "--json")
    assert (code, out) == (0, "")
    assert json.loads(err) == {
        "rows": N, "skipped": 0, "labels": 0, "labels_lost": 0, "output": str(tmp_path / "o"),
        "state": str(tmp_path / "state"), "matched": "position", "alarm": None,
        "acts": rp.Stream("online-ebls", [1, 1]).acts._asdict(),
    }  # fmt: skip
    assert len((tmp_path / "o").read_text().splitlines()) == N
    assert "Give the output of the earlier run" in refused(*arguments, tmp_path / "p")


@pytest.mark.parametrize("name", ["csv", "ndjson objects"])
def test_a_stream_lists_columns_the_source_does_not_name(refused, files, tmp_path, name):
    (tmp_path / "c.json").write_text('{"ant": 3, "dog": 4}')
    err = refused("stream", files[name], "-s", tmp_path / "c.json", "--emit", "prior")
    assert "The source names 2 of the 4 columns; unused: bee, cat" in err


def labelled(files, form, every=20, late=300):
    """Return records with ids, labels in every 20th, and late labels of others, 300 rows after; and the truth."""
    rows, y = np.load(files["npz"])["proba"].astype(float), np.load(files["npz"])["y"]
    own = {i: y[i] for i in range(0, N, every)}
    later = {i + late: i for i in range(7, N - late, every)}
    out = []
    for i, row in enumerate(rows.tolist()):
        if form == "csv":
            out.append(",".join([f"r{i}", *map(repr, row), CLASSES[own[i]] if i in own else ""]))
            out += [f"r{later[i]},,,,,{y[later[i]]}"] if i in later else []  # a class by its number
        else:
            out.append({"id": f"r{i}", "proba": row, "truth": CLASSES[own[i]] if i in own else None})
            out += [{"id": f"r{later[i]}", "truth": CLASSES[y[later[i]]]}] if i in later else []
    if form == "csv":
        return ("\n".join(["id,ant,bee,cat,dog,truth", *out]) + "\n").encode(), rows, y, own, later
    pack = msgpack.packb if form == "msgpack" else lambda value: json.dumps(value).encode() + b"\n"
    return b"".join(map(pack, out)), rows, y, own, later


@pytest.mark.parametrize("form", ["ndjson", "csv", "msgpack"])
def test_labels_with_a_row_and_late_ones_are_taken_in(call, files, tmp_path, form):
    data, rows, y, own, later = labelled(files, form)
    stream = rp.Stream("online-ebls", rp.summarize(*(np.load(files["heldout"])[key] for key in ("proba", "y"))))
    for i, row in enumerate(rows):
        stream.learn_one(row)
        if i in own:
            stream.observe(row, y[i])
        if i in later:
            stream.observe(rows[later[i]], y[later[i]])
    options = ["-s", files["heldout"], "--calibrate", "none", "--label", "truth", "--id", "id", "--remember", 350, "-o"]
    (tmp_path / "in").write_bytes(data)
    code, out, err = call("stream", tmp_path / "in", *options, tmp_path / "once", "--state", tmp_path / "s1", "--json")
    assert (code, out) == (0, "")
    assert json.loads(err) | {"rows": N, "labels": len(own) + len(later), "labels_lost": 0} == json.loads(err)
    for cut in (0.1, 0.5, 0.51, 1):  # a restart remembers the rows that wait
        (tmp_path / "growing").write_bytes(data[: int(cut * len(data))])
        call("stream", tmp_path / "growing", *options, tmp_path / "pieces", "--state", tmp_path / "s2")
    assert (tmp_path / "once").read_bytes() == (tmp_path / "pieces").read_bytes()
    results = [rp.load(tmp_path / s) for s in ("s1", "s2")]
    np.testing.assert_array_equal(results[0].prior, results[1].prior)
    np.testing.assert_allclose(results[0].prior, stream.prior, atol=1e-12)


def test_labels_of_forgotten_rows_are_counted_and_wrong_ones_refused(call, refused, files, tmp_path):
    data, *_, answer, later = labelled(files, "ndjson")
    (tmp_path / "in").write_bytes(data)
    arguments = ["stream", tmp_path / "in", "-s", files["heldout"], "--label", "truth", "--id", "id"]
    _, _, err = call(*arguments, "--remember", 100, "-o", tmp_path / "o")
    assert err.startswith(f"{len(later)} labels found no row among the last 100 that wait for one; see --remember")
    assert f"1,000 rows, {len(answer)} labels; no state kept" in err
    (tmp_path / "in").write_bytes(data.replace(b'"ant"', b'"eel"', 1))
    assert "must hold names of classes; got eel, first at row" in refused(*arguments, "--emit", "prior")
    assert "--id needs --label" in refused("stream", tmp_path / "in", *arguments[2:4], "--id", "id")
    (tmp_path / "in.csv").write_bytes(labelled(files, "csv")[0])
    csv = ["stream", tmp_path / "in.csv", *arguments[2:4], "--label", "y"]
    assert "must have the column 'y'; got id, ant" in refused(*csv)


def test_a_feed_may_begin_with_a_late_label(call, files, tmp_path):
    for form in ("ndjson", "msgpack"):
        pack = msgpack.packb if form == "msgpack" else lambda value: json.dumps(value).encode() + b"\n"
        (tmp_path / "in").write_bytes(pack({"id": "old", "truth": "ant"}) + labelled(files, form)[0])
        arguments = ["stream", tmp_path / "in", "-s", files["heldout"], "--label", "truth", "--id", "id"]
        assert call(*arguments, "-o", tmp_path / "o")[0] == 0


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
    arguments = ["-s", files["heldout"], "-o"]
    (tmp_path / "in").write_bytes(good)
    assert call("stream", tmp_path / "in", *arguments, tmp_path / "once")[0] == 0
    (tmp_path / "in").write_bytes(bad)
    code, _, err = call("stream", tmp_path / "in", *arguments, tmp_path / "out", "--state", tmp_path / "s")
    assert code == 1
    assert "row 50" in err
    (tmp_path / "in").write_bytes(good)
    assert call("stream", tmp_path / "in", *arguments, tmp_path / "out", "--state", tmp_path / "s")[0] == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "once").read_bytes()


def test_a_restart_knows_its_files_by_what_they_hold(call, refused, files, tmp_path):
    shutil.copy(files["ndjson"], tmp_path / "in")
    arguments = ["stream", tmp_path / "in", "-s", files["heldout"], "--state", tmp_path / "s"]
    assert call(*arguments, "-o", tmp_path / "out")[0] == 0
    assert "must belong to a run with -o -, --emit both; got -o" in refused(*arguments)
    assert f"Give the output of the earlier run ({tmp_path / 'out'})" in refused(*arguments, "-o", tmp_path / "other")
    (tmp_path / "other").write_bytes(b"x" * 10_000_000)
    assert "must still hold what was written to it" in refused(*arguments, "-o", tmp_path / "other")
    (tmp_path / "out").rename(tmp_path / "moved")
    assert call(*arguments, "-o", tmp_path / "moved")[0] == 0
    (tmp_path / "in").write_bytes(b"x" * 10_000_000)
    assert "Give the input of the earlier run" in refused(*arguments, "-o", tmp_path / "moved")


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
    arguments = ["--counts", files["counts"], "--calibrate", "ts", "--emit", "rows"]
    code, out, _ = call("stream", tmp_path / "in", "-s", tmp_path / "held.npz", "--logits", *arguments)
    assert code == 0
    _, plain, _ = call("stream", files["ndjson lists"], "-s", files["heldout"], *arguments)
    result, expected = (np.array([json.loads(line) for line in text.splitlines()]) for text in (out, plain))
    np.testing.assert_allclose(result, expected, atol=1e-6)
    assert np.abs(expected - rows).max() > 0.01


def test_ids_beside_scores_of_any_sum_are_not_taken_for_a_class(call, tmp_path):
    (tmp_path / "counts.json").write_text("[1, 1]")
    (tmp_path / "in").write_text("customer,score\n1001,0.7\n1002,2.5\n")
    arguments = ["stream", tmp_path / "in", "-s", tmp_path / "counts.json", "--normalize"]
    code, _, err = call(*arguments)
    assert (code, "got customer beside score. Name the columns of the classes with `--columns`" in err) == (1, True)
    (tmp_path / "in").write_text("a,b\n3,1\n1,2\n")  # votes
    assert call(*arguments, "--emit", "rows")[1] == "a,b\n0.75,0.25\n0.3333333333333333,0.6666666666666666\n"


def test_msgpack_objects_may_have_one_number_per_class(call, files, tmp_path):
    rows = [dict(zip(CLASSES, row, strict=True)) for row in np.load(files["npy"]).astype(float)[:50].tolist()]
    (tmp_path / "in.ndjson").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "in.msgpack").write_bytes(b"".join(map(msgpack.packb, rows)))
    for kind in ("ndjson", "msgpack"):
        arguments = ["-s", files["heldout"], "-o", tmp_path / f"out.{kind}"]
        assert call("stream", tmp_path / f"in.{kind}", *arguments)[0] == 0
    values = [json.loads(line) for line in (tmp_path / "out.ndjson").read_text().splitlines()]
    assert list(msgpack.Unpacker(io.BytesIO((tmp_path / "out.msgpack").read_bytes()))) == values


def test_a_restart_remembers_that_the_pipeline_takes_logits(call, files, tmp_path):
    held, rows = np.load(files["heldout"]), np.load(files["npy"]).astype(float)[:300]
    np.savez(tmp_path / "held.npz", proba=np.log(held["proba"]), y=held["y"], classes=CLASSES)
    assert call("fit", tmp_path / "held.npz", "--logits", "-o", tmp_path / "model")[0] == 0
    lines = [json.dumps(row) + "\n" for row in np.log(rows).tolist()]
    for name, ends in (("once", (300,)), ("twice", (100, 300))):
        for end in ends:
            (tmp_path / "in").write_text("".join(lines[:end]))
            arguments = ["-s", tmp_path / "model", "--state", tmp_path / f"{name}.state", "-o", tmp_path / name]
            assert call("stream", tmp_path / "in", *arguments)[0] == 0
    assert (tmp_path / "twice").read_bytes() == (tmp_path / "once").read_bytes()


PROGRAM = [sys.executable, "-c", "from reprior.cli import main; main()"]


def shifted(files, n=3000, at=1500):
    """Return rows that follow the held-out mix up to `at`, and then are nearly all of the last class."""
    held = np.load(files["heldout"])
    rng = np.random.default_rng(5)
    picks = np.concatenate([rng.integers(0, len(held["y"]), at), rng.choice(np.flatnonzero(held["y"] == 3), n - at)])
    return held["proba"][picks].astype(float).tolist()


@pytest.mark.parametrize("form", ["ndjson", "csv", "msgpack"])
def test_prior_interval_alarm_and_since_when_go_out_and_a_restart_changes_nothing(call, files, tmp_path, form):
    rows, day = shifted(files), "2026-11-16T{:02}:{:02}:00Z"
    stamped = [{"at": day.format(i // 60 % 24, i % 60) if i < 1440 else "2026-11-17T00:00:00Z", "proba": row}
               for i, row in enumerate(rows)]  # fmt: skip
    if form == "csv":
        lines = [",".join([record["at"], *map(repr, record["proba"])]) for record in stamped]
        data = ("\n".join(["at,ant,bee,cat,dog", *lines]) + "\n").encode()
    else:
        pack = msgpack.packb if form == "msgpack" else lambda value: json.dumps(value).encode() + b"\n"
        data = b"".join(map(pack, stamped))
    (tmp_path / "in").write_bytes(data)
    arguments = ["-s", files["heldout"], "--time", "at", "--every", 250, "--emit", "prior", "--calibrate", "bcts"]
    assert call("stream", tmp_path / "in", *arguments, "-o", tmp_path / "once", "--state", tmp_path / "s1")[0] == 0
    for cut in (0.2, 0.55, 0.551, 0.8, 1):
        (tmp_path / "growing").write_bytes(data[: int(cut * len(data))])
        call("stream", tmp_path / "growing", *arguments, "-o", tmp_path / "pieces", "--state", tmp_path / "s2")
    assert (tmp_path / "pieces").read_bytes() == (tmp_path / "once").read_bytes()
    out = (tmp_path / "once").read_bytes()
    lines = out.splitlines()
    answer = list(msgpack.Unpacker(io.BytesIO(out))) if form == "msgpack" else [json.loads(line) for line in lines]
    assert [record["n"] for record in answer] == list(range(250, 3001, 250))
    assert all(record["alarm"] is None for record in answer[:6])
    for record in answer:
        assert record["level"] == 0.95
        for name in CLASSES:
            assert record["lower"][name] <= record["prior"][name] <= record["upper"][name]
    last = answer[-1]["alarm"]
    assert 1500 < last["raised_at"] < 1700
    assert 1400 < last["since"] <= last["raised_at"]
    assert last["since_time"] == last["raised_time"] == "2026-11-17T00:00:00Z"
    assert answer[0]["time"] == "2026-11-16T04:09:00Z"
    held = np.load(files["heldout"])
    pipe = rp.pipeline(held["proba"], held["y"], calibration="bias-corrected")
    stream, alarm = rp.Stream("online-ebls", pipe.source, calibrator=pipe.calibrator), rp.Alarm(pipe.source)
    assert alarm.watch(stream, np.array(rows)[:2992]).raised_at == last["raised_at"]  # the library says the same


def test_a_state_is_read_by_the_library_and_shown_by_a_command(call, ask, files, tmp_path):
    (tmp_path / "in").write_text("".join(json.dumps(row) + "\n" for row in shifted(files)))
    code, _, err = call("stream", tmp_path / "in", "-s", files["heldout"], "-o", tmp_path / "o", "--state",
                        tmp_path / "s", "--alarm")  # fmt: skip
    assert code == 0
    assert "The alarm was raised at row 15" in err
    assert "matched by position" in err
    stream = rp.load(tmp_path / "s")
    assert stream.n == 3000
    answer = ask("show", tmp_path / "s")
    assert answer["prior"] == stream.prior.tolist()
    assert (answer["n"], answer["kind"], answer["output"], answer["offset"]) == (
        3000, "stream-job", str(tmp_path / "o"), (tmp_path / "in").stat().st_size)  # fmt: skip
    assert 1500 < answer["alarm"]["raised_at"] < 1700
    _, out, _ = call("show", tmp_path / "s")
    assert "alarm raised at row 15" in out
    assert "dog " in out
    stream.save(tmp_path / "plain")
    assert ask("show", tmp_path / "plain")["n"] == 3000
    kept = decode((tmp_path / "s").read_bytes(), "stream-job", "test")
    for name in ("output", "offset", "settings"):
        (tmp_path / "forged").write_bytes(encode("stream-job", kept | {name: None}))
        assert call("show", tmp_path / "forged")[0] == 1
    rp.Alarm([1, 1], exact=True).save(tmp_path / "alarm")
    assert call("show", tmp_path / "alarm")[1] == (
        f"{tmp_path / 'alarm'}: an alarm that has seen 0 rows\nno alarm was raised\n")  # fmt: skip


def test_show_prints_every_kind_that_can_be_saved(call, ask, files, tmp_path):
    with np.load(files["heldout"]) as held:
        pipe = rp.pipeline(held["proba"], held["y"], classes=CLASSES)
        rows = len(held["y"])
    pipe.save(tmp_path / "pipe")
    answer = ask("show", tmp_path / "pipe")
    assert (answer["kind"], answer["method"], answer["classes"], answer["heldout_rows"]) == (
        "pipeline", "ebls", list(CLASSES), rows)  # fmt: skip
    assert answer["source_prior"] == pipe.source.prior.tolist()
    assert f"{rows:,} held-out samples" in call("show", tmp_path / "pipe")[1]
    table = pipe.table()
    table.learn(["north", "south"], [[0.7, 0.1, 0.1, 0.1], [0.1, 0.1, 0.1, 0.7]])
    table.save(tmp_path / "table")
    assert ask("show", tmp_path / "table")["keys"] == ["north", "south"]
    (tmp_path / "bytes").write_bytes(pipe.calibrator.to_bytes())
    assert ask("show", tmp_path / "bytes")["calibration"] == pipe.calibrator.kind
    alarms = rp.AlarmTable([1, 1], exact=True)
    alarms.watch(rp.StreamTable("online-ebls", [1, 1]), ["a", "b"] * 100, [[0.9, 0.1], [0.5, 0.5]] * 100)
    alarms.save(tmp_path / "alarms")
    assert ask("show", tmp_path / "alarms")["raised"] == ["a"]
    assert call("show", tmp_path / "alarms")[1] == f"{tmp_path / 'alarms'}: alarms of 2 streams\nraised: a\n"
    (tmp_path / "bad").write_bytes(b"nothing that was saved")
    assert call("show", tmp_path / "bad")[0] == 1


def test_an_alarm_that_was_dealt_with_is_armed_again(call, ask, files, tmp_path):
    rows = [json.dumps(row) + "\n" for row in shifted(files)]
    arguments = ["stream", tmp_path / "in", "-s", files["heldout"], "-o", tmp_path / "o", "--state", tmp_path / "s"]
    arguments.append("--alarm")
    (tmp_path / "in").write_text("".join(rows[:2000]))
    assert call(*arguments)[0] == 0
    first = ask("show", tmp_path / "s")["alarm"]["raised_at"]
    (tmp_path / "in").write_text("".join(rows))
    assert call(*arguments, "--rearm")[0] == 0
    second = ask("show", tmp_path / "s")["alarm"]["raised_at"]  # the mix is still another than the held-out rows'
    assert 1500 < first < 2000 < second <= 3000
    assert call(*arguments)[0] == 0
    assert ask("show", tmp_path / "s")["alarm"]["raised_at"] == second
    code, _, err = call("stream", tmp_path / "in", "-s", files["heldout"], "-o", tmp_path / "p", "--state",
                        tmp_path / "t", "--no-alarm")  # fmt: skip
    assert code == 0
    code, _, err = call("stream", tmp_path / "in", "--state", tmp_path / "t", "-o", tmp_path / "p", "--rearm")
    assert (code, "`--rearm` must be used with an alarm; got none" in err) == (1, True)


def test_a_hook_is_told_once_and_no_shell_reads_it(call, files, tmp_path):
    (tmp_path / "in").write_text("".join(json.dumps(row) + "\n" for row in shifted(files)))
    code = "import os, sys; open('/'.join(sys.argv[1:]), 'a').write(sys.stdin.read() + os.environ['REPRIOR_ALARM'])"
    hook = f"{sys.executable} -c \"{code}\" {tmp_path} '$(touch no); x'"
    arguments = ["stream", tmp_path / "in", "-s", files["heldout"], "-o", tmp_path / "o", "--state", tmp_path / "s"]
    for _ in range(2):  # a restart does not tell it again
        assert call(*arguments, "--on-alarm", hook)[0] == 0
    text = (tmp_path / "$(touch no); x").read_text()
    answer = json.loads(text[: len(text) // 2])
    assert text == 2 * json.dumps(answer)
    assert (answer["kind"], answer["alarm"]["raised_at"] > 1500) == ("shift", True)
    assert answer["prior"].keys() == answer["upper"].keys() == set(CLASSES)


def test_a_hook_that_fails_is_said_and_stops_nothing(call, files, tmp_path):
    (tmp_path / "in").write_text("".join(json.dumps(row) + "\n" for row in shifted(files)))
    code, _, err = call("stream", tmp_path / "in", "-s", files["heldout"], "-o", tmp_path / "o", "--on-alarm", "false")
    assert code == 0
    assert "but --on-alarm failed: exit code 1" in err
    assert len((tmp_path / "o").read_text().splitlines()) == 3000


@pytest.mark.parametrize("name", ["csv", "ndjson objects"])
def test_a_stream_matches_classes_as_estimate_does(call, refused, files, tmp_path, name):
    (tmp_path / "c.json").write_text('{"dog": 40, "cat": 30, "bee": 20, "ant": 10}')
    (tmp_path / "straight.json").write_text('{"ant": 10, "bee": 20, "cat": 30, "dog": 40}')
    outs = []
    for counts in ("c.json", "straight.json"):
        code, _, err = call("stream", files[name], "-s", tmp_path / counts, "-o", tmp_path / "o", "--json")
        assert (code, json.loads(err)["matched"]) == (0, "name")
        outs.append((tmp_path / "o").read_bytes())

    def numbers(line):
        return [float(x) for x in (line.split(b",")[:4] if name == "csv" else json.loads(line).values())]

    first, second = (np.array([numbers(line) for line in out.splitlines()[1:]]) for out in outs)
    np.testing.assert_allclose(first, second, atol=1e-12)
    (tmp_path / "other.json").write_text('{"ant": 1, "bee": 1, "cat": 1, "eel": 1}')
    for extra in ([], ["--columns", "ant,bee,cat,dog"]):
        err = refused("stream", files[name], "-s", tmp_path / "other.json", *extra, "-o", tmp_path / "new")
        assert "must have the classes of the source; got 4 classes, without eel and with dog besides" in err


def test_half_an_emoji_goes_out_as_it_came_in(call, files, tmp_path):
    lines = [json.dumps({"text": "\ud83d", "ok": "\U0001f600", "proba": row}) for row in shifted(files)[:20]]
    (tmp_path / "in").write_text("\n".join(lines) + "\n")
    for command in ("stream", "correct"):
        assert call(command, tmp_path / "in", "-s", files["counts"], "-o", tmp_path / command)[0] == 0
        (first, *_) = (json.loads(line) for line in (tmp_path / command).read_text().splitlines())
        assert (first["text"], first["ok"]) == ("\ud83d", "\U0001f600")


@pytest.mark.parametrize("start", [b"[0.25,", b'{"proba": [', b"\xdd\x10\x00\x00\x00"])
def test_a_record_without_end_is_refused_before_it_fills_the_memory(files, tmp_path, start):
    (tmp_path / "in").write_bytes(start + b"\x01," * (12 << 20))
    line = [*PROGRAM, "stream", str(tmp_path / "in"), "-s", str(files["counts"]), "-o", str(tmp_path / "o")]
    begun = time.monotonic()
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    message = "must be NDJSON, CSV or msgpack" if start[0] > 127 else "have lines or records of at most 16 MiB"
    assert message in done.stderr
    assert time.monotonic() - begun < 20


class Followed:
    """`reprior stream --follow` in a process of its own."""

    def __init__(self, files, tmp_path, *more):
        line = ["stream", tmp_path / "in", "-s", files["counts"], "-o", tmp_path / "out", "--state", tmp_path / "s"]
        line += ["--follow", "--save-every", 0.01, *more]
        self.out = tmp_path / "out"
        self.process = subprocess.Popen([*PROGRAM, *map(str, line)], stderr=subprocess.PIPE)

    def wait(self, rows):
        end = time.monotonic() + 120
        while (self.out.read_bytes().count(b"\n") if self.out.exists() else 0) < rows:
            assert time.monotonic() < end
            assert self.process.poll() is None, self.process.stderr.read()
            time.sleep(0.02)

    def end(self, by=signal.SIGINT):
        self.process.send_signal(by)
        self.process.wait(120)
        return self.process.stderr.read().decode()


@pytest.fixture
def followed(files, tmp_path):
    """Start a follower; none outlives its test."""
    runs = []
    yield lambda *more: runs.append(Followed(files, tmp_path, *more)) or runs[-1]
    for run in runs:
        run.process.kill()
        run.process.wait()
        run.process.stderr.close()


@pytest.mark.parametrize("form", ["ndjson", "csv"])
def test_a_file_that_is_rotated_or_cut_is_followed_without_loss(call, followed, files, tmp_path, form):
    rows = shifted(files)[:600]
    if form == "csv":
        head, lines = "ant,bee,cat,dog\n", [",".join(map(repr, row)) + "\n" for row in rows]
    else:
        head, lines = "", [json.dumps(row) + "\n" for row in rows]
    extra = len(head) > 0
    (tmp_path / "all").write_text(head + "".join(lines))
    assert call("stream", tmp_path / "all", "-s", files["counts"], "-o", tmp_path / "once")[0] == 0
    (tmp_path / "in").write_text(head + "".join(lines[:100]))
    run = followed()
    run.wait(100 + extra)
    os.rename(tmp_path / "in", tmp_path / "in.1")
    (tmp_path / "in").write_text("")  # as logrotate makes it, while the writer still has the old one
    time.sleep(0.3)
    with open(tmp_path / "in.1", "a") as file:
        file.write("".join(lines[100:150]))
    run.wait(150 + extra)
    with open(tmp_path / "in.1", "a") as old, open(tmp_path / "in", "a") as new:
        old.write("".join(lines[150:200]))
        old.flush()
        new.write(head + "".join(lines[200:300]))
    run.wait(300 + extra)
    (tmp_path / "in").write_text(head + "".join(lines[300:350]))  # cut, and filled anew
    run.wait(350 + extra)
    run.end(signal.SIGKILL)
    with open(tmp_path / "in", "a") as file:  # and rotated twice while nobody follows
        file.write("".join(lines[350:400]))
    os.rename(tmp_path / "in", tmp_path / "in.2")
    time.sleep(0.02)
    (tmp_path / "in.1").unlink()
    (tmp_path / "in.1").write_text(head + "".join(lines[400:500]))
    time.sleep(0.02)
    (tmp_path / "in").write_text(head + "".join(lines[500:]))
    run = followed()
    run.wait(600 + extra)
    run.end()
    assert (tmp_path / "out").read_bytes() == (tmp_path / "once").read_bytes()


def test_a_second_stream_on_one_state_or_output_is_refused(call, followed, files, tmp_path):
    shutil.copy(files["ndjson"], tmp_path / "in")
    run = followed()
    run.wait(N)
    arguments = ["stream", tmp_path / "in", "-s", files["counts"], "-o"]
    for out, state, message in (
        ("other", "s", "must belong to one run at a time"),
        ("out", "t", "another run is writing"),
    ):
        code, _, err = call(*arguments, tmp_path / out, "--state", tmp_path / state, "--skip-bad")
        assert (code, message in err) == (1, True), err
    assert not (tmp_path / "other").exists()
    assert "Interrupted" not in run.end()
    assert (tmp_path / "out").read_text().count("\n") == N


def test_a_fifo_is_followed_from_writer_to_writer(followed, files, tmp_path):
    os.mkfifo(tmp_path / "in")
    run = followed()
    lines = files["ndjson"].read_text().splitlines(keepends=True)
    for part in (lines[:400], lines[400:]):
        write = threading.Thread(target=(tmp_path / "in").write_text, args=("".join(part),))
        write.start()
        write.join()
    run.wait(N)
    run.end()


def test_states_that_no_run_wrote_are_refused(call, files, tmp_path):
    from reprior.state import decode, encode

    arguments = ["stream", files["ndjson"], "-s", files["heldout"], "-o", tmp_path / "o", "--state", tmp_path / "s"]
    arguments.append("--alarm")
    assert call(*arguments)[0] == 0
    good = decode((tmp_path / "s").read_bytes(), "stream-job", "test")
    values = (None, -1, "x", [1], {"a": 1}, np.full(3, np.nan), np.ones((2, 9)))
    bad = [{name: value} for name in good for value in values]
    for change in [*bad, {"form": {"kind": "json", "key": 1}}, {"values": "x"}, {"mark": 3}]:
        (tmp_path / "s").write_bytes(encode("stream-job", good | change))
        code, _, err = call(*arguments)
        assert code == 0 or err.startswith("Error: "), (change, err)
        assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "message"),
    [(b'a,b\n0.5,"0.5\n0.5,0.5\n', "close each quote on its line; got"),
     (b"a,b\r0.5,0.5\r", "begin with a line of column names"),
     (b"a,a\n0.5,0.5\n", "have columns with different names"),
     (b"0.5,0.5\n0.5,0.5\n", "begin with a line of column names"),
     (b"[0.5\n0.5]\n[0.5,0.5],[0.5,0.5]\n", "hold one JSON value on each line"),
     (b'{"a":0.5,"b":0.5,"a":0.4}\n', "the key 'a' twice")],
)  # fmt: skip
def test_text_that_says_something_else_than_it_seems(refused, tmp_path, text, message):
    (tmp_path / "in").write_bytes(text)
    (tmp_path / "c.json").write_text("[1, 1]")
    assert message in refused("stream", tmp_path / "in", "-s", tmp_path / "c.json", "--emit", "prior")


def test_a_folder_is_no_stream(refused, files, tmp_path):
    assert "Is a directory" in refused("stream", tmp_path, "-s", files["counts"])


def test_a_full_disk_is_one_sentence_and_the_state_stays_whole(files, tmp_path):
    (tmp_path / "in").write_text(files["ndjson"].read_text() * 5)
    line = ["stream", tmp_path / "in", "-s", files["heldout"], "-o", tmp_path / "out", "--state", tmp_path / "s"]
    text = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))\n" + PROGRAM[2]
    done = subprocess.run([sys.executable, "-c", text, *map(str, line)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, f"Error: {tmp_path / 'out'}: File too large.\n")
    for out in ("out", "once"):  # with room on the disk it goes on, to the very bytes of a run that always had it
        more = ["--state", tmp_path / "s"] if out == "out" else []
        whole = [*PROGRAM, *line[:4], "-o", tmp_path / out, *more]
        assert subprocess.run(list(map(str, whole)), capture_output=True, check=False).returncode == 0
    assert (tmp_path / "out").read_bytes() == (tmp_path / "once").read_bytes()


def test_labels_mean_in_a_stream_what_they_mean_in_a_file(call, refused, files, tmp_path):
    rows = [json.loads(line) for line in files["ndjson"].read_bytes().splitlines()[:4]]
    arguments = ["stream", tmp_path / "in", "-s", files["heldout"], "--label", "truth", "-o", tmp_path / "o", "--json"]

    def feed(*labels):
        records = [{**row, "truth": label} for row, label in zip(rows, labels, strict=True)]
        (tmp_path / "in").write_text("".join(json.dumps(record) + "\n" for record in records))

    feed("cat", 2, "2", 2.0)
    assert json.loads(call(*arguments)[2])["labels"] == 4
    feed("", None, -1, "cat")
    assert json.loads(call(*arguments)[2])["labels"] == 1
    for bad in (["cat"], {"cat": 1}, "eel", 7, 1.5):
        feed("cat", "cat", bad, "cat")
        assert "`--label` must " in refused(*arguments)
