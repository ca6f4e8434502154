"""A disk that fills up under the service: it says so, goes on answering readers, and loses nothing."""

# ruff: noqa: E402
import subprocess

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
httpx = pytest.importorskip("httpx")
from service_help import Process, replay, rows_of

from reprior.client import Client, ServiceError
from reprior.service.upkeep import check

K = 100


def fill(url, client, blocks):
    """Post until the server cannot store any more; return what it said."""
    while len(blocks) < 3000:
        blocks.append(rows_of(5, K, len(blocks)))
        try:
            client.send("s", blocks[-1])
        except ServiceError as error:
            return str(error)
    raise AssertionError("the disk never filled up")


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(folder)], capture_output=True, check=False
    )
    if made.returncode:
        pytest.skip("no right to mount a small disk")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.slow
def test_a_full_disk(small_disk):
    (small_disk / "filler").write_bytes(bytes(1 << 20))
    blocks = []
    with Process(small_disk / "s.db") as server, Client(server.url, patience=0.5) as client:
        client.put("s", np.ones(K))
        message = fill(server.url, client, blocks)
        assert "not stored yet" in message or "No samples are taken" in message, message
        assert "disk is full" in message or "cannot be written" in message, message
        assert httpx.get(f"{server.url}/healthz").status_code == 503
        assert httpx.get(f"{server.url}/streams/s").status_code == 200  # readers are answered
        (small_disk / "filler").unlink()
        client.patience = 60
        client.seqs["s"] -= 1  # the last one again, under its number
        answer = client.send("s", blocks[-1])
        assert answer.n == 5 * len(blocks)
        np.testing.assert_array_equal(answer.prior, replay(np.ones(K), blocks).prior)
        assert httpx.get(f"{server.url}/healthz").json()["ok"]
    assert check(server.db).problems == []


@pytest.mark.slow
def test_a_file_that_may_not_grow(tmp_path):
    blocks = []
    with Process(tmp_path / "s.db", limit="ulimit -f 700") as server, Client(server.url, patience=0.5) as client:
        client.put("s", np.ones(K))
        message = fill(server.url, client, blocks)
        assert "not stored yet" in message or "No samples are taken" in message, message
        assert httpx.get(f"{server.url}/streams/s").status_code == 200
        server.kill()
    acknowledged = len(blocks) - 1
    server.limit = ""
    with (
        server,
        Client(server.url, name=client.name) as again,
    ):  # what was answered is there, what was not is sent again
        answer = again.get("s")
        assert answer["n"] in (5 * acknowledged, 5 * acknowledged + 5)
        again.seqs["s"] = acknowledged
        response = again.send("s", blocks[-1])
        np.testing.assert_array_equal(response.prior, replay(np.ones(K), blocks).prior)
    assert check(server.db).problems == []
