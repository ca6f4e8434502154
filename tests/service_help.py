"""What the tests of the service share: a server to ask, rows to send, and what they give without a server."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np

import reprior as rp
from reprior.service.settings import Retention
from reprior.service.store import SPACINGS

ALL = os.environ.get("REPRIOR_TEST_ALL") == "1"
WHY = "needs more than pip packages, or longer: set REPRIOR_TEST_ALL=1"


def rows_of(n: int, k: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(k, 0.3), n)


def replay(source, blocks, method="online-ebls", **options) -> rp.Stream:
    """Return a stream that has learned the blocks in order, here and not on a server."""
    stream = rp.Stream(method, source, **options)
    for block in blocks:
        stream.learn_many(np.asarray(block))
    return stream


def points_at_most(point_seconds: float = 1.0) -> int:
    """Return how many points the history of one stream can hold just after it was compacted."""
    total, since, spacing = 0.0, 0.0, point_seconds
    for age, coarser in SPACINGS:
        total, since, spacing = total + (age - since) / spacing, age, max(coarser, spacing)
    return int(total + (Retention().history - since) / spacing) + len(SPACINGS) + 1


def free_port() -> int:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return int(made.getsockname()[1])


class Process:
    """`reprior serve` in a process of its own, to be killed and started again at the same port."""

    def __init__(self, db: Path, *more: str, env: dict[str, str] | None = None, limit: str = "") -> None:
        self.db, self.port, self.more, self.env, self.limit = db, free_port(), more, env or {}, limit
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = db.with_suffix(".log")

    def start(self) -> None:
        line = [sys.executable, "-c", "from reprior.cli import main; main()", "serve", "--db", str(self.db),
                "--port", str(self.port), *self.more]  # fmt: skip
        if self.limit:
            line = ["bash", "-c", f'{self.limit}; exec "$@"', "bash", *line]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=log, env={**os.environ, **self.env})
        assert self.process.stdout is not None
        message = self.process.stdout.readline().decode()
        assert message.startswith("Listening at"), self.log.read_text()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(60)
        self.process.stdout.close()

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(60)
        self.process.stdout.close()
        return code

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.stop()


def wait_for(condition, seconds: float = 120.0):
    """Return what a condition gives once it is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        result = condition()
        if result:
            return result
        time.sleep(0.02)
    raise AssertionError("it did not happen in time")


CLASSES = ["cat", "dog"]


def outputs(share: float, n: int, seed: int = 0) -> np.ndarray:
    """Rows of a classifier that is right nine times in ten, where dogs have this share."""
    rng = np.random.default_rng(seed)
    return np.where(np.eye(2)[(rng.random(n) < share).astype(int)] > 0, 0.9, 0.1)


def heldout(n: int = 600):
    rng = np.random.default_rng(9)
    predicted = (rng.random(n) < 0.5).astype(int)
    rows = np.where(np.eye(2)[predicted] > 0, 0.9, 0.1)
    return rows, np.where(rng.random(n) < 0.9, predicted, 1 - predicted)


class Sink:
    """A web server that notes what it is sent and answers as it is told."""

    def __init__(self, *statuses: int) -> None:
        self.got, answers = [], list(statuses)

        class Handler(BaseHTTPRequestHandler):
            def do_POST(handler):
                body = handler.rfile.read(int(handler.headers["Content-Length"]))
                self.got.append((dict(handler.headers), body))
                handler.send_response(answers.pop(0) if answers else 200)
                handler.end_headers()

            def log_message(handler, *_):
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()
