"""Faults of the service that must not go unseen: damaged files, tasks that end, clocks that jump, refused data."""

# ruff: noqa: E402
from __future__ import annotations

import asyncio
import gzip
import json
import shutil
import socket
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
httpx = pytest.importorskip("httpx")
from service_help import free_port, rows_of, wait_for

import reprior as rp
from reprior.service import hub as hub_module
from reprior.service import outgoing, served, supervise
from reprior.service import server as server_module
from reprior.service.definition import encoded
from reprior.service.errors import StoreError, Unavailable
from reprior.service.hub import Hub
from reprior.service.posts import Post
from reprior.service.served import ServedStream
from reprior.service.server import Background
from reprior.service.settings import Clock, Limits, Retention, Settings, Token
from reprior.service.store import Store
from reprior.service.upkeep import check


class Times:
    """A wall clock and a steady clock that a test moves."""

    def __init__(self, start: float = 1e9) -> None:
        self.wall, self.steady = start, 0.0

    def passes(self, seconds: float, jump: float = 0.0) -> None:
        self.wall += seconds + jump
        self.steady += seconds

    def clock(self, start: float = 0.0) -> Clock:
        return Clock(start, lambda: self.wall, lambda: self.steady)


async def made_hub(db, clock=None, **settings) -> Hub:
    """Return a running hub with the stream "s" of two classes."""
    hub = Hub(Settings(db, **settings), Store(db), clock)
    hub.start()
    if "s" not in hub.streams:
        made = rp.Stream("online-ebls", [1, 1])
        await hub.create("s", encoded(made, made.source))
    return hub


def test_pages_damaged_while_served_are_reported_and_posts_refused(tmp_path):
    db = tmp_path / "s.db"

    async def main():
        hub = await made_hub(db)
        await hub.posts.samples("s", Post([[0.3, 0.7]], "c", 1))
        hub.store._writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        pages = db.read_bytes()
        db.write_bytes(pages[:4096] + b"\xff" * (len(pages) - 4096))
        for connection in (hub.store._writer, hub.store._reader):
            connection.execute("PRAGMA shrink_memory")
        for _ in range(2):
            with pytest.raises(Unavailable, match="The database file is damaged"):
                await asyncio.wait_for(hub.posts.samples("s", Post([[0.3, 0.7]], "c", 2)), 10)
        assert "damaged" in hub.trouble
        with pytest.raises(Exception, match="The database file is damaged"):
            await hub.alarms.listed(hub.get("s"))
        db.write_bytes(pages)  # the operator puts the file back
        for connection in (hub.store._writer, hub.store._reader):
            connection.execute("PRAGMA shrink_memory")
        while hub.trouble:
            await asyncio.sleep(0.02)
        assert (await hub.posts.samples("s", Post([[0.3, 0.7]], "c", 2))).repeated
        await hub.stop()

    asyncio.run(main())
    assert check(db).problems == []


def overwrite(db: Path, values: bytes) -> None:
    """Write random bytes over the place of some values in a file, as a stray process would."""
    content = db.read_bytes()
    assert content.count(values) == 1
    with db.open("r+b") as opened:
        opened.seek(content.index(values))
        opened.write(np.random.default_rng(0).bytes(8))


def test_values_damaged_while_served_are_reported_and_not_served(tmp_path, monkeypatch):
    monkeypatch.setattr(hub_module, "COMPACT_SECONDS", 0.05)
    db = tmp_path / "s.db"

    async def problem(hub: Hub, wanted: bool) -> str:
        while bool(hub.problems()) != wanted:
            await asyncio.sleep(0.02)
        return "".join(hub.problems())

    async def main():
        hub = await made_hub(db)
        served, writer = hub.get("s"), hub.store._writer
        await hub.posts.samples("s", Post([[0.3, 0.7]]))
        served.add_point(hub.clock())
        served.state_due = True
        await hub.posts.samples("s", Post([[0.3, 0.7]]))
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        state, variance = hub.store.read("SELECT state, variance FROM states JOIN history")[0]
        await asyncio.sleep(0.2)
        assert not hub.problems()
        overwrite(db, state[-12:])
        shutil.copy(db, tmp_path / "copy.db")
        hub.store._reader.execute("PRAGMA shrink_memory")
        assert "state of the stream 's' is damaged" in await problem(hub, wanted=True)
        await problem(hub, wanted=False)  # without further samples
        await hub.posts.samples("s", Post([[0.3, 0.7]]))
        writer.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        overwrite(db, variance)
        shutil.copy(db, tmp_path / "other.db")
        hub.store._reader.execute("PRAGMA shrink_memory")
        points = hub.store.read("SELECT count(*) FROM history")[0][0]
        assert len(hub.store.priors(served.id, 10)) == points - 1
        assert "history of the stream 's' lacks damaged points" in await problem(hub, wanted=True)
        await hub.delete("s")
        assert not hub.problems()
        await hub.stop()

    asyncio.run(asyncio.wait_for(main(), 30))
    assert "cannot be read" in check(tmp_path / "copy.db").problems[0]
    hub = Hub(Settings(tmp_path / "copy.db"), Store(tmp_path / "copy.db"))
    assert list(hub.unreadable) == ["s"]
    hub.store.close()
    assert "damaged point in its history" in check(tmp_path / "other.db").problems[0]


@pytest.mark.parametrize("ending", ["", "-wal"])
def test_a_file_that_is_moved_while_served_takes_no_more_posts(tmp_path, ending):
    file, aside = tmp_path / f"s.db{ending}", tmp_path / "aside"
    settings = Settings(tmp_path / "s.db", webhook="http://127.0.0.1:9/", webhook_private=True)
    with Background(settings) as running, httpx.Client(base_url=running.url) as http:
        http.put("/streams/s", json={"source": [1, 1]})
        post = {"proba": [[0.3, 0.7]], "client": "c", "seq": 1}
        assert http.post("/streams/s/samples", json=post).json()["n"] == 1
        file.rename(aside)  # SQLite would write to it, and the next start would find nothing of that
        post["seq"] = 2
        refused = http.post("/streams/s/samples", json=post)
        assert (refused.status_code, "moved, deleted" in refused.json()["error"]) == (503, True)
        assert "moved, deleted" in http.get("/healthz").json()["trouble"]
        assert "reprior_storage_ok 0.0" in http.get("/metrics").text
        aside.rename(file)
        wait_for(lambda: http.get("/healthz").status_code == 200)
        assert http.post("/streams/s/samples", json=post).json()["n"] == 2
    assert check(tmp_path / "s.db").problems == []


def test_metrics_are_there_when_the_file_cannot_be_read(tmp_path, monkeypatch):
    def fails(*_):
        raise StoreError("The database file is damaged.")

    with Background(Settings(tmp_path / "s.db", webhook="http://127.0.0.1:9/", webhook_private=True)) as running:
        monkeypatch.setattr(Store, "read", fails)
        text = httpx.get(f"{running.url}/metrics").text
        assert "reprior_storage_ok 1.0" in text
        assert "undelivered" not in text  # not known
        assert httpx.get(f"{running.url}/healthz").json()["undelivered"] is None
        assert "damaged" in httpx.get(f"{running.url}/overview").json()["webhook"]["problem"]


def test_an_event_repeated_when_its_id_is_forgotten_stops_nothing(tmp_path, monkeypatch):
    times = Times()
    monkeypatch.setattr(hub_module, "COMPACT_SECONDS", 0.01)
    compact = Store.compact

    def slowly(self, *args):
        compact(self, *args)
        times.passes(2.0)  # time passes while the file is compacted

    monkeypatch.setattr(Store, "compact", slowly)

    async def main():
        hub = await made_hub(tmp_path / "s.db", times.clock())
        await hub.posts.samples("s", Post([[0.3, 0.7]], event="e"))
        times.passes(Retention().events - 1)
        while "e" in hub.get("s").receipts.events:
            await asyncio.sleep(0.01)
        again = await asyncio.wait_for(hub.posts.samples("s", Post([[0.3, 0.7]], event="e")), 10)
        assert again.n == 2
        assert hub.trouble is None
        await hub.stop()

    asyncio.run(main())


def test_a_commit_task_that_ends_answers_who_waits_and_ends_the_server(tmp_path, monkeypatch, caplog):
    with Background(Settings(tmp_path / "s.db")) as running, httpx.Client(base_url=running.url) as http:
        http.put("/streams/s", json={"source": [1, 1]})
        monkeypatch.setattr(ServedStream, "take_change", lambda served: 1 / 0)
        answer = http.post("/streams/s/samples", json={"proba": [[0.3, 0.7]]}, timeout=10)
        assert answer.status_code == 503
        assert "The task 'commits' ended unexpectedly (ZeroDivisionError" in answer.json()["error"]
        running._thread.join(20)
        assert not running._thread.is_alive()
        assert running.server.failed
    assert "The task 'commits' ended unexpectedly" in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("task", ["webhook", "history"])
def test_a_task_that_ends_is_seen_and_started_again(tmp_path, monkeypatch, caplog, task):
    monkeypatch.setattr(supervise, "PAUSE", 0.01)
    monkeypatch.setattr(outgoing, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(served, "POINT_SECONDS", 1.0)
    settings = Settings(tmp_path / "s.db", webhook="http://127.0.0.1:9/", webhook_private=True)
    with Background(settings) as running, httpx.Client(base_url=running.url) as http:
        http.put("/streams/s", json={"source": [1, 1]})
        assert http.get("/healthz").json()["problems"] == []
        for _ in range(2):  # the second has no point of its own yet
            http.post("/streams/s/samples", json={"proba": rows_of(1, 2).tolist()})
        with monkeypatch.context() as broken:
            if task == "webhook":
                broken.setattr(outgoing, "DUE", "SELECT nothing")
            else:
                broken.setattr(ServedStream, "add_point", lambda *_: 1 / 0)
            message = wait_for(lambda: http.get("/healthz").json()["problems"])
            failures = f'reprior_task_failures_total{{task="{task}"}}'
            wait_for(lambda: float(http.get("/metrics").text.split(failures)[1].split("\n")[0]) >= 2)
        assert f"The task '{task}' ended unexpectedly" in message[0]
        assert caplog.text.count(f"The task '{task}' ended unexpectedly") == 1  # no line for each second
        assert http.post("/streams/s/samples", json={"proba": [[0.3, 0.7]]}).status_code == 200


@pytest.mark.parametrize("restart", [False, True])
def test_a_clock_far_ahead_for_a_minute_erases_nothing(tmp_path, monkeypatch, restart):
    monkeypatch.setattr(hub_module, "COMPACT_SECONDS", 0.01)
    times, db = Times(), tmp_path / "s.db"

    async def compacted(hub):
        rounds = 0
        real = hub.ages

        def counting():
            nonlocal rounds
            rounds += 1
            return real()

        hub.ages = counting
        while rounds < 3:
            await asyncio.sleep(0.01)

    async def main():
        hub = await made_hub(db, times.clock())
        for k in range(5):
            times.passes(20.0)
            await hub.posts.samples("s", Post([[0.3, 0.7]], "c", k))
        if restart:
            await hub.stop()
        times.passes(5.0, 400 * 86_400)
        if restart:
            hub = await made_hub(db, times.clock())
        await compacted(hub)
        times.passes(65.0)
        await compacted(hub)
        times.passes(5.0, -400 * 86_400)
        assert (await hub.posts.samples("s", Post([[0.3, 0.7]], "c", 4))).repeated
        result = hub.store.read("SELECT t FROM history")
        assert len(result) >= 5
        if not restart:
            assert hub.clock() == pytest.approx(times.wall, abs=1.0)  # and it did not follow
        await hub.stop()

    asyncio.run(main())


def test_a_clock_that_stays_ahead_is_followed(tmp_path):
    times = Times()
    clock = times.clock()
    times.passes(1.0, 3_600.0)
    assert clock() == pytest.approx(times.wall - 3_600)
    for _ in range(61):
        times.passes(10.0)
        clock()
    assert clock() == times.wall


def test_idle_clients_make_room_for_others(tmp_path):
    times = Times()

    async def main():
        hub = await made_hub(tmp_path / "s.db", times.clock(), limits=Limits(clients=2))
        for client in ("a", "b"):
            await hub.posts.samples("s", Post([[0.3, 0.7]], client, 1))
            times.passes(1_000.0)
        with pytest.raises(rp.InputError, match="at most 2 clients"):
            await hub.posts.samples("s", Post([[0.3, 0.7]], "c", 1))
        times.passes(1_900.0)
        await hub.posts.samples("s", Post([[0.3, 0.7]], "c", 1))
        assert set(hub.get("s").receipts.offsets) == {"b", "c"}  # a was silent for more than an hour
        assert (await hub.posts.samples("s", Post([[0.3, 0.7]], "b", 1))).repeated
        await hub.stop()
        again = await made_hub(tmp_path / "s.db", times.clock())
        assert set(again.get("s").receipts.offsets) == {"b", "c"}
        await again.stop()

    asyncio.run(main())


def test_the_usual_limit_of_clients_is_far_away():
    assert Limits().clients >= 10_000


@pytest.mark.parametrize("wrong", ["large", "token", "host"])
def test_a_refusal_arrives_while_the_client_still_sends(tmp_path, wrong):
    tokens = [Token("admin", "ann", "secret-token")] if wrong == "token" else []
    settings = Settings(tmp_path / "s.db", tokens=tokens, hosts=("127.0.0.1",),
                        limits=Limits(body=(1 if wrong == "large" else 32) << 20))  # fmt: skip
    body = b'{"proba": [' + b" " * (40 << 20)
    headers = {"Content-Type": "application/json"} | ({"Host": "elsewhere"} if wrong == "host" else {})
    with Background(settings) as running:
        for _ in range(3):
            connection = HTTPConnection("127.0.0.1", int(running.url.rsplit(":", 1)[1]), timeout=30)
            connection.request("POST", "/streams/s/samples", body, headers)
            answer = connection.getresponse()
            status = {"large": 413, "token": 401, "host": 421}[wrong]
            assert (answer.status, json.loads(answer.read())["status"]) == (status, status)
            connection.close()
        if wrong == "large":
            assert (
                "--max-body"
                in json.loads(httpx.post(f"{running.url}/streams/s/samples", content=body).content)["error"]
            )


def test_a_compressed_body_gets_the_right_sentence(tmp_path):
    with Background(Settings(tmp_path / "s.db")) as running:
        httpx.put(f"{running.url}/streams/s", json={"source": [1, 1]})
        body, headers = gzip.compress(b'{"proba": [[0.5, 0.5]]}'), {"Content-Encoding": "gzip"}
        answer = httpx.post(f"{running.url}/streams/s/samples", content=body, headers=headers)
        assert answer.status_code == 415
        assert "compressed (gzip)" in answer.json()["error"]


def test_refused_data_leave_a_trace(tmp_path, caplog):
    with Background(Settings(tmp_path / "s.db")) as running, httpx.Client(base_url=running.url) as http:
        http.put("/streams/s", json={"source": [1, 1]})
        for _ in range(30):
            http.post("/streams/s/samples", json={"proba": [[0.9, 0.9]]})
        http.post("/streams/nope/samples", json={"proba": [[0.5, 0.5]]})
        text = http.get("/metrics").text
        assert 'reprior_refused_total{reason="bad_input",stream="s"} 30.0' in text
        assert 'reprior_refused_total{reason="not_found",stream=""} 1.0' in text
        refused = http.get("/healthz").json()["refused"]
        assert (refused["total"], refused["last"]["reason"]) == (31, "not_found")
    lines = [record.getMessage() for record in caplog.records if "refused (bad_input)" in record.getMessage()]
    assert len(lines) == 1
    assert "for the stream 's'" in lines[0]
    assert "sum to 1" in lines[0]


def test_metrics_parse_and_name_the_same_streams_whoever_is_busy(tmp_path):
    from prometheus_client.parser import text_string_to_metric_families

    with (
        Background(Settings(tmp_path / "s.db", metric_streams=3)) as running,
        httpx.Client(base_url=running.url) as http,
    ):
        for k in range(5):
            http.put(f"/streams/s{k}", json={"source": [1, 1], "classes": ['a"\\', "b"]})

        def shown():
            families = {f.name: f for f in text_string_to_metric_families(http.get("/metrics").text)}
            return families, {sample.labels["stream"] for sample in families["reprior_stream_samples"].samples}

        assert shown()[1] == {"s0", "s1", "s2"}
        http.post("/streams/s4/samples", json={"proba": [[0.9, 0.1]]})
        families, streams = shown()
        assert streams == {"s0", "s1", "s2"}
        assert families["reprior_streams"].samples[0].value == 5
        assert {sample.labels["class"] for sample in families["reprior_class_share"].samples} == {'a"\\', "b"}
        counted = {s.labels["route"]: s.value for s in families["reprior_requests"].samples}
        assert (counted["put_stream"], counted["post_samples"]) == (5, 1)
        took = [s.value for s in families["reprior_request_seconds"].samples if s.name.endswith("_count")]
        assert sum(took) >= 6
        assert families["reprior_commit_seconds"].samples[-1].value >= 1


def test_a_broker_that_is_down_shows_in_health(tmp_path):
    pytest.importorskip("redis")
    url = f"redis://user:hidden-word@127.0.0.1:{free_port()}/scores?stream=s"
    with Background(Settings(tmp_path / "s.db", intakes=(url,))) as running, httpx.Client(base_url=running.url) as http:
        http.put("/streams/s", json={"source": [1, 1]})
        message = wait_for(lambda: [x for x in http.get("/healthz").json()["problems"] if "ConnectionError" in x])
        assert message[0].startswith("The intake from redis://127.0.0.1:")
        assert "hidden-word" not in http.get("/healthz").text
        assert http.get("/healthz").json()["ok"]
        assert '/scores"} 0.0' in http.get("/metrics").text.split("# TYPE reprior_intake_ok gauge")[1]


def test_idle_connections_keep_nobody_out(tmp_path, monkeypatch):
    monkeypatch.setattr(server_module, "CONNECTIONS", 40)
    with Background(Settings(tmp_path / "s.db")) as running:
        address = "127.0.0.1", int(running.url.rsplit(":", 1)[1])
        held = [socket.create_connection(address, timeout=30) for _ in range(60)]
        try:
            for _ in range(5):
                assert httpx.get(f"{running.url}/healthz").status_code == 200
        finally:
            for connection in held:
                connection.close()


def test_a_forged_sender_does_not_evade_the_rate(tmp_path):
    with Background(Settings(tmp_path / "s.db", limits=Limits(rate=1))) as running:
        codes = [httpx.get(f"{running.url}/healthz", headers={"X-Forwarded-For": f"10.0.0.{k}"}).status_code
                 for k in range(5)]  # fmt: skip
        assert 429 in codes
    settings = Settings(tmp_path / "s.db", limits=Limits(rate=1), proxies=("127.0.0.1",))
    with Background(settings) as running:
        codes = [httpx.get(f"{running.url}/healthz", headers={"X-Forwarded-For": f"x, 10.0.0.{k}"}).status_code
                 for k in range(5)]  # fmt: skip
        assert codes == [200] * 5


def test_only_the_owner_can_read_the_file(tmp_path):
    db = tmp_path / "s.db"
    db.touch(mode=0o644)
    with Background(Settings(db)) as running:
        httpx.put(f"{running.url}/streams/s", json={"source": [1, 1]})
        for path in tmp_path.glob("s.db*"):
            assert path.stat().st_mode & 0o077 == 0, path


def test_a_version_that_begins_in_the_millisecond_of_a_post_is_sound(tmp_path):
    times, db = Times(), tmp_path / "s.db"

    async def main():
        hub = await made_hub(db, times.clock())
        for k in range(3):
            await hub.posts.samples("s", Post([[0.3, 0.7]] * 5, "c", k))
        made = rp.Stream("online-ebls", [1, 3])
        assert await hub.renew("s", encoded(made, made.source), "", "")
        await hub.posts.samples("s", Post([[0.3, 0.7]], "c", 3))
        await hub.stop()

    asyncio.run(main())
    assert check(db).problems == []
