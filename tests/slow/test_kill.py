"""kill -9 at random moments while a stream writes checkpoints: what is read back is always a whole state."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, random, signal, sys, time
import numpy as np, reprior as rp
path, kills = sys.argv[1], int(sys.argv[2])
rows = np.random.default_rng(0).dirichlet(np.ones(30), 64)
stream, begun = rp.Stream("online-ebls", np.ones(30)), time.perf_counter()
for _ in range(5):
    stream.save(path)
once = (time.perf_counter() - begun) / 5
last, moved = 0, 0
for kill in range(kills):
    ready, say = os.pipe()
    child = os.fork()
    if child == 0:
        stream = rp.load(path)
        stream.learn_many(rows)
        stream.save(path)
        os.write(say, b"!")  # on a busy machine it may take longer to begin than to be killed
        while True:
            stream.learn_many(rows)
            stream.save(path)
    os.read(ready, 1)
    time.sleep(random.random() * 3 * once)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(ready), os.close(say)
    stream = rp.load(path)  # raises unless it is whole
    assert stream.n % 64 == 0 and stream.n >= last, (stream.n, last)
    moved += stream.n > last
    last = stream.n
    left = [name for name in os.listdir(os.path.dirname(path)) if name.endswith(".tmp")]
    assert len(left) <= 1, left  # of the writer just killed: the next one clears it away
print(kills, moved, last)
"""


@pytest.mark.skipif(not hasattr(__import__("os"), "fork"), reason="needs fork")
@pytest.mark.parametrize("kills", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_kill_while_checkpointing(kills: int, tmp_path) -> None:
    run = [sys.executable, "-c", PROGRAM, str(tmp_path / "state"), str(kills)]
    out = subprocess.run(run, capture_output=True, text=True, check=False)
    assert out.returncode == 0, out.stderr
    done, moved, _ = map(int, out.stdout.split())
    assert done == kills
    assert moved > kills / 10  # the writer did get to write
