"""Alarms of the service: raised once, stored with the state, sent out until somebody takes them, dealt with by name."""

# ruff: noqa: E402
from __future__ import annotations

import base64
import hashlib
import hmac
import json
import sqlite3
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
httpx = pytest.importorskip("httpx")
from service_help import wait_for

from reprior.client import Client
from reprior.service import webhook
from reprior.service.server import Background
from reprior.service.settings import Settings
from reprior.service.store import check

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


@pytest.fixture
def sink():
    made = Sink(500, 503)
    yield made
    made.close()


def test_an_alarm_is_raised_sent_with_a_signature_and_acknowledged(tmp_path, sink, monkeypatch):
    monkeypatch.setattr(webhook, "FIRST_PAUSE", 0.05)
    db = tmp_path / "s.db"
    settings = Settings(db, webhook=sink.url, webhook_secret="whsec", point_seconds=0.05)
    with Background(settings) as running, Client(running.url) as client, httpx.Client(base_url=running.url) as http:
        made = client.put("s", classes=CLASSES, heldout=heldout(), alarm={"run_length": 1000.0})
        assert made["alarm"]["watched"]
        assert "1,000 samples apart" in made["alarm"]["sure"]
        for k in range(5):
            client.send("s", outputs(0.5, 50, k))
        assert client.get("s")["alarm"]["open"] is None
        while client.get("s")["alarm"]["open"] is None:
            answer = client.send("s", outputs(0.95, 50, answer_seed := client.seqs["s"]))
        assert answer_seed < 60
        raised = client.get("s")["alarm"]["open"]
        assert raised["classes"][0]["class"] in CLASSES
        assert raised["since_sample"] > 150
        assert raised["sample"] <= answer.n
        assert raised["since"] <= raised["raised"]
        assert raised["evidence"] >= raised["threshold"]
        client.send("s", outputs(0.95, 900))
        assert len(http.get("/streams/s/alarms").json()["alarms"]) == 1  # once, however long it lasts
        assert 'reprior_stream_alarm{stream="s"} 1.0' in http.get("/metrics").text
        assert http.get("/streams?sort=alarm").json()["alarms"] == 1

        wait_for(lambda: len(sink.got) == 3)  # refused twice, then taken
        headers, body = sink.got[-1]
        told = json.loads(body)
        assert (told["type"], told["stream"], told["id"]) == ("alarm.raised", "s", raised["id"])
        signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
        mac = base64.b64encode(hmac.new(b"whsec", signed, hashlib.sha256).digest()).decode()
        assert headers["webhook-signature"] == f"v1,{mac}"
        assert len({got[0]["webhook-id"] for got in sink.got}) == 1  # the receiver can tell that it is the same

        url = f"/streams/s/alarms/{raised['id']}/acknowledge"
        assert "`by` must be" in http.post(url, json={}).json()["error"]
        assert http.post("/streams/s/alarms/77/acknowledge", json={"by": "x"}).status_code == 404
        done = http.post(url, json={"by": "Ann <b>", "note": "known", "next": "accept"})
        assert done.status_code == 200, done.text
        assert http.post(url, json={"by": "Bob"}).status_code == 404
        kept = http.get("/streams/s/alarms").json()["alarms"][0]
        assert (kept["by"], kept["note"], kept["next"]) == ("Ann <b>", "known", "accept")
        client.send("s", outputs(0.95, 2000, 5))
        assert client.get("s")["alarm"]["open"] is None  # what was accepted is the new normal
        client.send("s", outputs(0.3, 1000, 6))
        assert client.get("s")["alarm"]["open"] is not None
        open_id = client.get("s")["alarm"]["open"]["id"]
    assert check(db)[0] == []
    with Background(Settings(db)) as running, Client(running.url) as client:
        assert client.get("s")["alarm"]["open"]["id"] == open_id  # it is still open after a restart
        assert client.alarms("s")[0]["id"] == open_id
        assert client.acknowledge("s", client.alarms("s")[0], by="Cy", note="again")["id"] == open_id
        assert (client.alarms("s")[0]["by"], client.alarms("s")[0]["note"]) == ("Cy", "again")
        assert client.get("s")["alarm"]["open"] is None
        client.send("s", outputs(0.3, 3000, 7))
        assert client.get("s")["alarm"]["open"]["id"] == open_id + 1  # against the same reference it comes back


def test_a_webhook_that_never_answers_is_given_up_and_said_so(tmp_path, monkeypatch):
    monkeypatch.setattr(webhook, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(webhook, "ATTEMPTS", 3)
    settings = Settings(tmp_path / "s.db", webhook="http://127.0.0.1:9/secret-path")
    with Background(settings) as running, Client(running.url) as client:
        client.put("s", [1, 1], alarm={"exact": True, "run_length": 100.0})
        client.send("s", outputs(0.99, 500))
        assert client.get("s")["alarm"]["open"] is not None

        def problem():
            raw = sqlite3.connect(tmp_path / "s.db")
            try:
                return raw.execute("SELECT attempts, problem FROM outbox").fetchone()
            finally:
                raw.close()

        wait_for(lambda: problem()[0] == 3)
        assert "Connection refused" in problem()[1]
        health = httpx.get(f"{running.url}/healthz").json()
        assert health["undelivered"] == 1
        assert "secret-path" not in json.dumps(health)
