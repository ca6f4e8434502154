"""The command line says how much of the correction is applied, and records when that falls below one half."""

import json
import sys

import numpy as np
import pytest
from cli_files import CLASSES, N

import reprior as rp
from reprior._types import Acts
from reprior.online.ebls import OnlineEbls


@pytest.fixture
def drift(files, tmp_path):
    """Samples of the target, first as they are and then blurred, as NDJSON; the blurred ones as NPY too."""
    rows = np.load(files["npy"]).astype(np.float64)
    rows = np.concatenate([rows, 0.5 * rows + 0.125])
    (tmp_path / "in").write_text("".join(json.dumps(row) + "\n" for row in rows.tolist()))
    np.save(tmp_path / "blurred.npy", rows[N:])
    return tmp_path


def records(path):
    return [value for line in path.read_text().splitlines() if isinstance(value := json.loads(line), dict)]


def test_a_stream_records_the_fall_once(call, ask, files, drift):
    code = "import sys; open(sys.argv[1], 'a').write(sys.stdin.read() + '\\n')"
    hook = f'{sys.executable} -c "{code}" {drift / "told"}'
    arguments = ["stream", drift / "in", "-s", files["heldout"], "--emit", "prior", "--every", 300, "--on-alarm", hook]
    done, _, err = call(*arguments, "-o", drift / "once")
    assert done == 0
    *values, event, last, _, after = records(drift / "once")
    assert [value["n"] for value in values] == [300, 600, 900]
    assert min(value["acts_share"] for value in values) > 0.5 > last["acts_share"]
    assert (event["kind"], event["n"]) == ("not label shift", 1100)
    assert 0.5 > event["share"] > last["acts_share"]
    assert f"Sample 1,100: not label shift. {event['share']:.0%} of the correction is applied. {event['reason']}" in err
    answer = [json.loads(line) for line in (drift / "told").read_text().splitlines()]
    assert [about["kind"] for about in answer if about["kind"] != "shift"] == ["not label shift"]
    assert (after["n"], set(after["prior"])) == (1800, set(CLASSES))


@pytest.mark.parametrize("emit", ["rows", "both"])
def test_predictions_alone_have_no_record_and_standard_error_has_the_event(call, files, drift, emit):
    chosen = [] if emit == "rows" else ["--emit", emit]
    code, _, err = call("stream", drift / "in", "-s", files["heldout"], "-o", drift / "out", *chosen)
    assert code == 0
    assert "Sample 1,100: not label shift." in err
    assert ["not label shift"] * (emit == "both") == [r["kind"] for r in records(drift / "out") if "kind" in r]


def test_a_restart_does_not_repeat_the_event(call, ask, files, drift):
    arguments = ["-s", files["heldout"], "--emit", "prior", "--every", 300]
    data = (drift / "in").read_bytes()
    assert call("stream", drift / "in", *arguments, "-o", drift / "once")[0] == 0
    for cut in (0.3, 0.59, 0.61, 0.9, 1):
        (drift / "growing").write_bytes(data[: int(cut * len(data))])
        code, _, err = call("stream", drift / "growing", *arguments, "-o", drift / "pieces", "--state", drift / "s")
        assert code == 0 or cut < 1  # half a line is an error, and the state is kept
    assert (drift / "pieces").read_bytes() == (drift / "once").read_bytes()
    assert "% of the correction is applied. The data differ" in err
    assert "Sample 1,200" not in err
    shown = ask("show", drift / "s")["acts"]
    assert shown["share"] < 0.5
    first = call("show", drift / "s")[1].splitlines()[0]
    assert first == f"{shown['share']:.0%} of the correction is applied. {shown['reason']}"


def test_the_return_is_recorded_too(call, files, drift, monkeypatch):
    monkeypatch.setattr(OnlineEbls, "acts", lambda self, state: Acts(0.9 if state[0] > 399 else 0.2, "So.", -1.0))
    code, out, err = call("stream", drift / "in", "-s", files["heldout"], "--emit", "prior", "--every", 1000)
    assert code == 0
    events = [json.loads(line) for line in out.splitlines() if "kind" in line]
    assert events == [{"kind": "not label shift", "n": 25, "share": 0.2, "reason": "So."},
                      {"kind": "label shift again", "n": 400, "share": 0.9, "reason": "So."}]  # fmt: skip
    assert "Sample 400: label shift again. 90% of the correction is applied. So." in err


def test_the_mean_prediction_has_no_log_likelihood_under_label_shift(call, ask, files, drift):
    assert ask("estimate", drift / "blurred.npy", "-s", files["heldout"])["log_likelihood"] is None
    assert ask("estimate", files["npy"], "-s", files["heldout"])["log_likelihood"] > 0
    compared = ask("compare", drift / "blurred.npy", "-s", files["heldout"])["methods"]
    missing = {row["method"]: row["log_likelihood"] is None for row in compared if "skipped" not in row}
    assert (missing["the default"], missing["mlls"]) == (True, False)
    line = call("compare", drift / "blurred.npy", "-s", files["heldout"])[1].splitlines()[1]
    assert line.split()[:4] == ["the", "default", "0.0000", "—"]


def test_the_first_line_says_that_little_is_applied(call, ask, files, drift):
    arguments = [drift / "blurred.npy", "-s", files["heldout"]]
    about = ask("estimate", *arguments)["acts"]
    line = f"{about['share']:.0%} of the correction is applied. {about['reason']}"
    assert about["share"] < 0.5
    assert call("estimate", *arguments)[1].startswith(line)
    assert call("correct", *arguments, "-o", drift / "o.npy")[1].startswith(line)
    assert ask("correct", *arguments, "-o", drift / "o.npy")["acts"] == about
    assert call("report", *arguments, "-o", drift / "o.html")[1].startswith(line)
    assert ask("report", *arguments)["acts"] == about
    assert not call("estimate", files["npy"], "-s", files["heldout"])[1].startswith("9")


def test_a_nightly_job_remembers(call, ask, refused, files, drift):
    arguments = ["-s", files["heldout"], "--watch", drift / "w"]
    fine = ask("correct", files["npy"], "-s", files["heldout"], "-o", drift / "fine.npy")
    first = ask("correct", files["npy"], *arguments, "-o", drift / "a.npy")
    assert first["acts"] == fine["acts"]
    assert (drift / "a.npy").read_bytes() == (drift / "fine.npy").read_bytes()
    ask("correct", drift / "blurred.npy", *arguments, "-o", drift / "b.npy")
    after = ask("correct", files["npy"], *arguments, "-o", drift / "c.npy")
    watch = rp.load(drift / "w")
    assert (watch.n_batches, after["acts"]["share"] < 0.5 < first["acts"]["share"]) == (3, True)
    assert watch.acts.share == after["acts"]["share"]
    shown = call("show", drift / "w")[1].splitlines()
    assert shown[1] == f"{drift / 'w'}: a deployment of 3 batches"
    kept = (drift / "w").read_bytes()
    other = ["correct", files["npy"], "-s", files["counts"], "--watch", drift / "w", "-o", drift / "d.npy"]
    assert "`--watch` must belong to this source and method" in refused(*other)
    assert call("correct", files["npy"], *arguments, "-o", drift / "w")[0] == 1
    assert call("correct", files["npy"], *arguments, "--prior", files["counts"], "-o", drift / "d.npy")[0] == 1
    assert (drift / "w").read_bytes() == kept


def test_a_run_that_continues_counts_its_batch_once(call, ask, files, drift, monkeypatch):
    arguments = ["correct", files["parts"], "-s", files["heldout"], "--watch", drift / "w", "-o", drift / "out"]
    import reprior.cli.correct as correct

    broken = correct.correction

    def third_fails(inputs, weighted, number):
        if number == 2:
            raise OSError("no room")
        return broken(inputs, weighted, number)

    monkeypatch.setattr(correct, "correction", third_fails)
    assert call(*arguments)[0] == 1
    assert not (drift / "w").exists()
    monkeypatch.setattr(correct, "correction", broken)
    assert ask(*arguments)["written"] == 3
    assert rp.load(drift / "w").n_batches == 1
