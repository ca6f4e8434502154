"""The example of several processes behind a proxy: a stream belongs to one of them, whatever is asked."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from service_help import ALL, WHY, free_port, rows_of

from reprior.client import Client
from reprior.service.upkeep import check

EXAMPLE = Path(__file__).parents[2] / "deploy" / "shards" / "serve.py"


def test_streams_are_spread_over_processes_by_their_name(tmp_path):
    if not ALL or not shutil.which("nginx"):
        pytest.skip(WHY)
    port, names = free_port(), [f"shop {k}" for k in range(30)]
    line = [sys.executable, str(EXAMPLE), "--folder", str(tmp_path), "--shards", "3", "--port", str(port)]
    for posts in (1, 2):  # started again, each stream is where it was
        running = subprocess.Popen(line, stdout=subprocess.PIPE)
        try:
            assert running.stdout is not None
            assert b"with 3 shards" in running.stdout.readline()
            url = f"http://127.0.0.1:{port}"
            with Client(url, name=f"run {posts}") as client:
                for name in names:
                    client.put(name, [1, 1, 1])
                    assert client.send(name, rows_of(5, 3)).n == 5 * posts
                assert client.get(names[0])["n"] == 5 * posts
            listed = [httpx.get(f"{url}/shard/{k}/streams?limit=100").json()["streams"] for k in (1, 2, 3)]
            assert min(map(len, listed)) >= 3  # nobody is idle
            assert sorted(stream["name"] for shard in listed for stream in shard) == sorted(names)
            assert httpx.get(f"{url}/shard/2/healthz").json()["ok"]
            assert "<title>" in httpx.get(f"{url}/shard/3/").text
            assert "reprior_streams" in httpx.get(f"{url}/shard/3/metrics").text
            assert httpx.get(f"{url}/v2/models/{names[3]}").json()["name"] == names[3]
        finally:
            running.send_signal(signal.SIGTERM)
            assert running.wait(60) == 0
            running.stdout.close()
    for k in (1, 2, 3):
        assert check(tmp_path / f"shard-{k}.db").problems == []
