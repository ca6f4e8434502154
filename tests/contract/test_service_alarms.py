"""Alarms of the service: raised once, stored with the state, sent out until somebody takes them, dealt with by name."""

# ruff: noqa: E402
from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing

import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
httpx = pytest.importorskip("httpx")
from service_help import CLASSES, Process, Sink, heldout, outputs, wait_for

from reprior.client import Client
from reprior.online.alarm import Alarm
from reprior.service import alarms, outgoing
from reprior.service.server import Background
from reprior.service.settings import Settings
from reprior.service.upkeep import check


@pytest.fixture
def sink():
    made = Sink(500, 503)
    yield made
    made.close()


def test_an_alarm_is_raised_sent_and_acknowledged(tmp_path, sink, monkeypatch):
    monkeypatch.setattr(outgoing, "FIRST_PAUSE", 0.05)
    db = tmp_path / "s.db"
    settings = Settings(db, webhook=sink.url, webhook_private=True, point_seconds=0.05)
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
        response = json.loads(body)
        assert response["type"] == "alarm.raised"
        event = response["data"]
        assert (event["stream"], event["id"], event["kind"]) == ("s", raised["id"], "shift")
        assert "webhook-signature" not in headers
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
    assert check(db).problems == []
    with Background(Settings(db)) as running, Client(running.url) as client:
        assert client.get("s")["alarm"]["open"]["id"] == open_id  # it is still open after a restart
        assert client.alarms("s")[0]["id"] == open_id
        assert client.acknowledge("s", client.alarms("s")[0], by="Cy", note="again")["id"] == open_id
        assert (client.alarms("s")[0]["by"], client.alarms("s")[0]["note"]) == ("Cy", "again")
        assert client.get("s")["alarm"]["open"] is None
        client.send("s", outputs(0.3, 3000, 7))
        assert client.get("s")["alarm"]["open"]["id"] == open_id + 1  # against the same reference it comes back


def test_a_webhook_that_never_answers_is_given_up_and_said_so(tmp_path, monkeypatch):
    monkeypatch.setattr(outgoing, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(outgoing, "ATTEMPTS", 3)
    settings = Settings(tmp_path / "s.db", webhook="http://127.0.0.1:9/secret-path", webhook_private=True)
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


ALARM = {"exact": True, "run_length": 100.0}


def types(sink) -> list[str]:
    return [json.loads(body)["type"] for _, body in sink.got]


def data(sink, k: int = -1) -> dict:
    return json.loads(sink.got[k][1])["data"]


@pytest.fixture
def quick():
    made = Sink()
    yield made
    made.close()


def settings(path, sink, **more):
    return Settings(path / "s.db", webhook=sink.url, webhook_private=True, public_url="https://mix.example/", **more)


def test_a_stream_that_falls_silent_raises_an_alarm_that_ends_by_itself(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(alarms, "LOOK_SECONDS", 0.02)
    with Background(settings(tmp_path, quick, stale_after=0.3)) as running, Client(running.url) as client:
        client.put("never fed", [1, 1])
        client.put("patient", [1, 1], stale_after=1000)
        client.put("never stale", [1, 1], stale_after=0)
        client.put("a & b", [1, 1])
        for name in ("patient", "never stale", "a & b"):
            client.send(name, outputs(0.5, 5))
        wait_for(lambda: types(quick) == ["alarm.raised"])
        answer = data(quick)
        assert (answer["kind"], answer["stream"], answer["samples"]) == ("stale", "a & b", 5)
        assert answer["link"] == "https://mix.example/#stream=a+%26+b"
        assert answer["since"] <= answer["raised"] - 0.3
        result = httpx.get(f"{running.url}/overview").json()
        assert [s["name"] for s in result["stale"]["shown"]] == ["a & b"]
        assert [a["id"] for a in result["alarms"]["shown"]] == [answer["id"]]
        shown = httpx.get(f"{running.url}/metrics").text
        assert 'reprior_stream_stale{stream="a & b"} 1.0' in shown
        assert 'reprior_stream_stale{stream="patient"} 0.0' in shown
        client.acknowledge("a & b", answer["id"], by="Ann", note="holiday")
        assert client.get("a & b")["alarm"]["stale"]["acknowledged"]  # and it is not raised anew while nothing comes
        assert httpx.get(f"{running.url}/overview").json()["alarms"]["total"] == 0
    with Background(settings(tmp_path, quick, stale_after=0.3)) as running, Client(running.url) as client:
        assert client.get("a & b")["alarm"]["stale"]["id"] == answer["id"]  # a restart does not forget
        client.send("a & b", outputs(0.5, 5))
        wait_for(lambda: "alarm.resolved" in types(quick))
        assert types(quick) == ["alarm.raised", "alarm.resolved"]
        over = data(quick)
        assert (over["id"], over["reason"], over["kind"]) == (answer["id"], "samples", "stale")
        assert over["resolved"] > over["raised"]
        kept = next(a for a in client.alarms("a & b") if a["id"] == answer["id"])
        assert (kept["by"], kept["resolved"] is not None) == ("Ann", True)


def test_a_server_that_was_down_does_not_call_its_streams_stale(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(alarms, "LOOK_SECONDS", 0.02)
    with Background(Settings(tmp_path / "s.db")) as running, Client(running.url) as client:
        client.put("s", [1, 1])
        client.send("s", outputs(0.5, 5))
    time.sleep(0.6)
    with Background(settings(tmp_path, quick, stale_after=0.5)) as running, Client(running.url) as client:
        time.sleep(0.2)
        assert client.get("s")["alarm"]["stale"] is None
        wait_for(lambda: client.get("s")["alarm"]["stale"])


def test_an_acknowledged_or_deleted_alarm_is_resolved(tmp_path, quick):
    with Background(settings(tmp_path, quick)) as running, Client(running.url) as client:
        for name in ("s", "t"):
            client.put(name, [1, 1], alarm=ALARM)
            client.send(name, outputs(0.99, 500))
        wait_for(lambda: types(quick) == ["alarm.raised"] * 2)
        client.acknowledge("s", client.alarms("s")[0], by="Ann", note="new camera")
        wait_for(lambda: len(quick.got) == 3)
        answer = data(quick)
        expected = ("s", "acknowledged", "Ann", "new camera")
        assert (answer["stream"], answer["reason"], answer["by"], answer["note"]) == expected
        client.delete("t")
        wait_for(lambda: len(quick.got) == 4)
        assert (data(quick)["stream"], data(quick)["reason"]) == ("t", "deleted")
        assert types(quick)[2:] == ["alarm.resolved"] * 2


def test_a_silence_holds_messages_back_and_nothing_else(tmp_path, quick):
    with Background(settings(tmp_path, quick)) as running, Client(running.url) as client:
        for name in ("short", "long", "loud"):
            client.put(name, [1, 1], alarm=ALARM)
        assert client.silence("short", 3.0, by="Ann", note="test")["by"] == "Ann"
        client.silence("long", 3600, by="Ann")
        for name in ("short", "long", "loud"):
            client.send(name, outputs(0.99, 500))
        assert client.get("long")["alarm"]["open"]  # it is seen, and counts as undelivered for nobody
        assert client.get("long")["alarm"]["silence"]["by"] == "Ann"
        assert 'reprior_stream_silenced{stream="long"} 1.0' in httpx.get(f"{running.url}/metrics").text
        wait_for(lambda: quick.got)
        assert data(quick)["stream"] == "loud"
        assert httpx.get(f"{running.url}/healthz").json()["undelivered"] == 0
        wait_for(lambda: len(quick.got) == 2)
        assert data(quick)["stream"] == "short"  # it is still open when the silence ends
        client.acknowledge("long", client.alarms("long")[0], by="Ann")
        client.acknowledge("loud", client.alarms("loud")[0], by="Ann")
        wait_for(lambda: len(quick.got) == 3)
        assert (data(quick)["stream"], types(quick)[-1]) == ("loud", "alarm.resolved")  # nobody was told of "long"
    with Background(settings(tmp_path, quick)) as running, Client(running.url) as client:
        assert client.get("long")["alarm"]["silence"] is not None
        assert client.silence("long", 0, by="Bob") is None
        client.send("long", outputs(0.99, 500))
        wait_for(lambda: len(quick.got) == 4)
        assert data(quick)["stream"] == "long"
        for bad in ({"by": "x"}, {"by": "x", "seconds": -1}, {"seconds": 5}, {"by": "x", "seconds": "5"}):
            assert httpx.post(f"{running.url}/streams/long/silence", json=bad).status_code == 400


def test_the_audit_outlives_the_stream(tmp_path, quick):
    with Background(settings(tmp_path, quick)) as running, Client(running.url) as client:
        client.put("s", [1, 1], alarm=ALARM)
        client.silence("s", 60, by="Bob", note="release")
        client.send("s", outputs(0.99, 500))
        number = client.alarms("s")[0]["id"]
        client.acknowledge("s", number, by="Ann", note="known")
        client.delete("s")
        answer = httpx.get(f"{running.url}/audit", params={"stream": "s"}).json()["entries"]
        assert [(e["action"], e["by"], e["note"], e["address"]) for e in answer] == [
            ("acknowledge", "Ann", "known", "127.0.0.1"), ("silence", "Bob", "release", "127.0.0.1"),
        ]  # fmt: skip
        assert answer[0]["alarm"] == number
        assert httpx.get(f"{running.url}/audit", params={"stream": "t"}).json()["entries"] == []
        assert len(httpx.get(f"{running.url}/audit", params={"limit": 1}).json()["entries"]) == 1


def test_that_an_alarm_is_over_is_not_said_before_it_was_raised(tmp_path, monkeypatch):
    monkeypatch.setattr(outgoing, "FIRST_PAUSE", 0.3)
    late = Sink(500, 500)
    with Background(settings(tmp_path, late)) as running, Client(running.url) as client:
        client.put("s", [1, 1], alarm=ALARM)
        client.send("s", outputs(0.99, 500))
        wait_for(lambda: late.got)
        client.acknowledge("s", client.alarms("s")[0], by="Ann")
        wait_for(lambda: len(late.got) == 4)
    assert types(late) == ["alarm.raised"] * 3 + ["alarm.resolved"]
    late.close()


def test_a_silence_does_not_hold_back_that_an_alarm_is_over(tmp_path, monkeypatch):
    monkeypatch.setattr(outgoing, "FIRST_PAUSE", 0.5)
    late = Sink(500)
    with Background(settings(tmp_path, late)) as running, Client(running.url) as client:
        client.put("s", [1, 1], alarm=ALARM)
        client.send("s", outputs(0.99, 500))
        wait_for(lambda: late.got)
        client.acknowledge("s", client.alarms("s")[0], by="Ann")  # its message waits until the first one is taken
        client.silence("s", 3600, by="Ann")
        wait_for(lambda: len(late.got) == 3, 20)
    assert types(late) == ["alarm.raised"] * 2 + ["alarm.resolved"]
    late.close()


def test_the_test_is_stored_with_points_and_at_the_end(tmp_path):
    def looked_at():
        with closing(sqlite3.connect(tmp_path / "s.db")) as raw:
            return Alarm.from_bytes(raw.execute("SELECT test FROM tests").fetchone()[0]).verdict.n

    rows, y = heldout()
    with Background(Settings(tmp_path / "s.db", point_seconds=3600.0)) as running, Client(running.url) as client:
        client.put("s", classes=CLASSES, heldout=(rows, y))
        client.send("s", rows[:64])
        assert looked_at() == 64  # the first samples make a point
        for first in range(64, 576, 64):
            client.send("s", rows[first : first + 64])
        assert looked_at() == 64
    assert looked_at() == 576
    with Background(Settings(tmp_path / "s.db", point_seconds=3600.0)) as running, Client(running.url) as client:
        client.send("s", outputs(0.99, 500))
        assert client.get("s")["alarm"]["open"]
        assert looked_at() > 576  # an alarm is stored with the test that raised it


def test_samples_since_an_alarm_can_be_accepted_after_a_restart(tmp_path):
    with Process(tmp_path / "s.db") as server, Client(server.url) as client:
        client.put("s", classes=CLASSES, heldout=heldout(), alarm={"run_length": 1000.0})
        for k in range(10):
            client.send("s", outputs(0.95, 100, k))
        raised = client.get("s")["alarm"]["open"]
        assert raised["sample"] <= 500
        server.kill()
        server.start()
        assert client.acknowledge("s", raised["id"], by="Ann", next="accept")["next"] == "accept"
        client.send("s", outputs(0.95, 1000, 11))
        assert client.get("s")["alarm"]["open"] is None  # these samples are as normal as those that were accepted
        client.send("s", outputs(0.3, 1000, 12))
        assert client.get("s")["alarm"]["open"] is not None
    with closing(sqlite3.connect(tmp_path / "s.db")) as raw:  # samples of an alarm that is over are not kept
        assert raw.execute("SELECT count(*) FROM since_alarm WHERE alarm = ?", (raised["id"],)).fetchone() == (0,)
        kept = raw.execute("SELECT sum(length(rows)) FROM since_alarm").fetchone()[0]
        assert 0 < kept <= 2000 * 2 * 4


def test_open_alarms_are_counted_alike_everywhere(tmp_path, quick, monkeypatch):
    monkeypatch.setattr(alarms, "LOOK_SECONDS", 0.02)
    with Background(settings(tmp_path, quick, stale_after=0.3)) as running, Client(running.url) as client:
        client.put("s", [1, 1], alarm=ALARM)
        client.send("s", outputs(0.99, 500))
        wait_for(lambda: client.get("s")["alarm"]["stale"])  # a second alarm of the same stream
        with httpx.stream("GET", f"{running.url}/events") as answer:
            line = next(line for line in answer.iter_lines() if line.startswith("data:"))
        assert json.loads(line.removeprefix("data:"))["alarms"] == 2
        assert httpx.get(f"{running.url}/overview").json()["alarms"]["total"] == 2
