"""`correct` and `stream`, killed at random moments and started again, give the bytes of an undisturbed run."""

import json
import signal
import subprocess
import sys
import time

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from reprior.state import decode, encode

PROGRAM = [sys.executable, "-c", "from reprior.cli import main; main()"]
pytestmark = pytest.mark.slow


def killed_often(command, rng, longest, *, kills, by=signal.SIGKILL):
    """Start a command until it ends by itself; kill it the first few times. Return how often it was killed."""
    done, startup = 0, undisturbed(["doctor"])
    while True:
        process = subprocess.Popen([*PROGRAM, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if done < kills:
            time.sleep(startup + rng.uniform(0, 0.3) * max(0.1, longest - startup))
            if process.poll() is None:
                process.send_signal(by)
                process.communicate()
                done += 1
                continue
        _, err = process.communicate()
        assert process.returncode == 0, err
        return done


def undisturbed(command):
    start = time.monotonic()
    subprocess.run([*PROGRAM, *map(str, command)], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - start


@pytest.fixture(scope="module")
def rows():
    return np.random.default_rng(0).dirichlet(np.ones(10), 400_000).astype(np.float32)


@pytest.fixture(scope="module")
def counts(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "counts.json"
    path.write_text(json.dumps([3, *[1] * 9]))
    return path


@pytest.mark.parametrize("form", ["ndjson", "msgpack"])
def test_stream(tmp_path, rows, counts, form):
    pack = msgpack.packb if form == "msgpack" else lambda row: json.dumps(row).encode() + b"\n"
    (tmp_path / "in").write_bytes(b"".join(map(pack, rows[: 400_000 if form == "msgpack" else 60_000].tolist())))
    job = ["stream", tmp_path / "in", "-s", counts, "--save-every", 0.02]
    longest = undisturbed([*job, "-o", tmp_path / "once", "--state", tmp_path / "state once"])
    rng = np.random.default_rng(1)
    kills = killed_often([*job, "-o", tmp_path / "out", "--state", tmp_path / "state"], rng, longest, kills=8)
    assert kills >= 2
    assert (tmp_path / "out").read_bytes() == (tmp_path / "once").read_bytes()
    states = [decode((tmp_path / name).read_bytes(), "stream-job", "test") for name in ("state", "state once")]
    assert [state.pop("output") for state in states] == [str(tmp_path / "out"), str(tmp_path / "once")]
    assert encode("state", states[0]) == encode("state", states[1])


def test_stream_stopped_politely(tmp_path, rows, counts):
    (tmp_path / "in").write_bytes(b"".join(json.dumps(row).encode() + b"\n" for row in rows[:60_000].tolist()))
    job = ["stream", tmp_path / "in", "-s", counts]
    longest = undisturbed([*job, "-o", tmp_path / "once"])
    rng = np.random.default_rng(2)
    stopped = [*job, "-o", tmp_path / "out", "--state", tmp_path / "state"]
    assert killed_often(stopped, rng, longest, kills=3, by=signal.SIGINT) >= 2
    assert (tmp_path / "out").read_bytes() == (tmp_path / "once").read_bytes()


@pytest.mark.parametrize("form", ["npy", "parts"])
def test_correct(tmp_path, rows, counts, form):
    if form == "npy":
        target = tmp_path / "in.npy"
        big = np.lib.format.open_memmap(target, "w+", np.float32, (8_000_000, 10))
        for start in range(0, len(big), len(rows)):
            big[start : start + len(rows)] = rows
        big.flush()
        del big
    else:
        target = tmp_path / "parts"
        target.mkdir()
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 10)
        for i in range(20):
            pq.write_table(
                pa.table({"id": np.arange(20_000), "proba": lists[20_000 * i :][:20_000]}), target / f"{i:02}.parquet"
            )
    (tmp_path / "prior.json").write_text(json.dumps(list(range(1, 11))))
    job = ["correct", target, "-s", counts, "--prior", tmp_path / "prior.json"]
    longest = undisturbed([*job, "-o", tmp_path / "once"])
    kills = killed_often([*job, "-o", tmp_path / "out"], np.random.default_rng(3), longest, kills=6)
    assert kills >= 2
    pairs = [("out", "once")] if form == "npy" else [(f"out/{i:02}.parquet", f"once/{i:02}.parquet") for i in range(20)]
    for one, other in pairs:
        assert (tmp_path / one).read_bytes() == (tmp_path / other).read_bytes()
    assert not list(tmp_path.glob(".*")) or form == "npy"
    assert not list(tmp_path.glob(".out*"))


def test_ctrl_c_leaves_no_half_file(tmp_path, rows, counts):
    np.save(tmp_path / "in.npy", np.tile(rows, (20, 1)))
    (tmp_path / "prior.json").write_text(json.dumps(list(range(1, 11))))
    job = ["correct", tmp_path / "in.npy", "-s", counts, "--prior", tmp_path / "prior.json", "-o", tmp_path / "out.npy"]
    process = subprocess.Popen([*PROGRAM, *map(str, job)], stderr=subprocess.PIPE)
    while not list(tmp_path.glob(".out.npy.*tmp")) and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert b"Interrupted" in err
    assert not list(tmp_path.glob("*out.npy"))
    assert not list(tmp_path.glob(".*tmp"))
