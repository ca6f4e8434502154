"""The service says how much of the correction is applied, and raises an alarm when that falls below one half."""

# ruff: noqa: E402
from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
httpx = pytest.importorskip("httpx")
from service_help import Sink, wait_for
from worlds import make_problem

from reprior._types import Acts
from reprior.client import Client
from reprior.online.ebls import OnlineEbls
from reprior.service.server import Background
from reprior.service.settings import Settings
from reprior.service.upkeep import check

CLASSES = list("abcde")
WORLD = make_problem(n=900)
MOVED = np.roll(WORLD.proba, 1, axis=1)  # no class prior explains samples with swapped columns


def test_the_fall_is_an_alarm_that_lasts(tmp_path):
    sink, db = Sink(), tmp_path / "s.db"
    settings = Settings(db, webhook=sink.url, webhook_private=True)
    with Background(settings) as running, Client(running.url) as client, httpx.Client(base_url=running.url) as http:
        client.put("s", classes=CLASSES, heldout=WORLD.source.heldout, alarm=False)
        client.send("s", WORLD.proba[:420])
        about = client.get("s")
        assert about["acts"]["share"] > 0.8
        assert about["acts"].keys() == {"share", "reason", "log_evidence", "amplification"}
        assert (about["alarm"]["not_label_shift"], http.get("/overview").json()["not_correcting"]["total"]) == (None, 0)
        client.send("s", MOVED)
        client.send("s", MOVED)
        about = client.get("s")
        raised = about["alarm"]["not_label_shift"]
        assert (raised["kind"], raised["sample"], raised["share"] < 0.5) == ("not label shift", 1320, True)
        assert about["acts"]["share"] < 0.5
        assert raised["reason"].startswith("The data differ by more than their class prior")
        assert len(client.alarms("s")) == 1
        assert http.get("/overview").json()["not_correcting"] == {"total": 1, "shown": ["s"]}
        assert http.get("/streams").json()["streams"][0]["alarm"]["kind"] == "not label shift"
        gauge = next(x for x in http.get("/metrics").text.splitlines() if x.startswith("reprior_correction_share{"))
        assert (gauge.split()[0], float(gauge.split()[1]) < 0.5) == ('reprior_correction_share{stream="s"}', True)
        answer = wait_for(lambda: json.loads(sink.got[0][1]) if sink.got else None)
        assert (answer["type"], answer["data"]["kind"]) == ("alarm.raised", "not label shift")
        client.acknowledge("s", client.alarms("s")[0], by="Ann", note="new cameras")
        assert client.alarms("s")[0]["resolved"] is None
    with Background(Settings(db)) as running, Client(running.url) as client, httpx.Client(base_url=running.url) as http:
        kept = client.get("s")["alarm"]["not_label_shift"]
        assert (kept["id"], bool(kept["acknowledged"])) == (raised["id"], True)
        client.send("s", MOVED)
        assert len(client.alarms("s")) == 1  # it is raised once
        entry = http.get("/audit?stream=s").json()["entries"][0]
        assert (entry["action"], entry["by"], entry["alarm"]) == ("acknowledge", "Ann", raised["id"])
        saved = http.get("/streams/s/state").content
        http.put("/streams/t", content=saved, headers={"Content-Type": "application/octet-stream"})
        assert client.get("t")["acts"]["share"] < 0.5
    assert check(db).problems == []
    sink.close()


def test_the_return_resolves_the_alarm_and_so_does_a_new_version(tmp_path, monkeypatch):
    sink = Sink()
    monkeypatch.setattr(OnlineEbls, "acts", lambda self, state: Acts(0.9 if 399 < state[0] < 800 else 0.2, "So.", -1.0))
    settings = Settings(tmp_path / "s.db", webhook=sink.url, webhook_private=True)
    with Background(settings) as running, Client(running.url) as client, httpx.Client(base_url=running.url) as http:
        client.put("s", classes=CLASSES, heldout=WORLD.source.heldout, alarm=False)
        client.send("s", WORLD.proba[:60])
        assert client.get("s")["alarm"]["not_label_shift"]["share"] == 0.2
        client.send("s", WORLD.proba[:360])
        assert client.get("s")["alarm"]["not_label_shift"] is None
        assert client.alarms("s")[0]["resolved"] > 0
        answer = wait_for(lambda: [json.loads(body) for _, body in sink.got] if len(sink.got) == 2 else None)
        assert [(x["type"], x["data"].get("reason")) for x in answer] == [
            ("alarm.raised", "So."), ("alarm.resolved", "label shift again"),
        ]  # fmt: skip
        client.send("s", WORLD.proba[:500])
        assert client.get("s")["alarm"]["not_label_shift"]["sample"] == 920
        body = {"source": dict.fromkeys(CLASSES, 1), "classes": CLASSES}
        assert http.post("/streams/s/versions?by=Ann", json=body).status_code == 201
        assert client.get("s")["alarm"]["not_label_shift"] is None
        assert [bool(alarm["resolved"]) for alarm in client.alarms("s")] == [True, True]
    sink.close()
