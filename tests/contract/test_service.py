"""The service through real HTTP on loopback: every address, every refusal, exactly-once posts, durability."""

# ruff: noqa: E402
from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
httpx = pytest.importorskip("httpx")
import msgpack
from service_crash import crash_run
from service_help import ALL, WHY, Process, free_port, points_at_most, replay, rows_of, wait_for

import reprior as rp
from reprior import datasets
from reprior.client import Client, ServiceError
from reprior.service.definition import Recipe, encoded
from reprior.service.hub import Hub
from reprior.service.posts import Post
from reprior.service.server import Background
from reprior.service.settings import Clock, Limits, Retention, Settings, Token
from reprior.service.store import SPACINGS, Store
from reprior.service.upkeep import check

TOKENS = [Token("admin", "ann", "write-token-1"), Token("read", "page", "read-token-1")]
SOURCE = {"cat": 70, "dog": 20, "owl": 10}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Background(Settings(tmp_path_factory.mktemp("db") / "s.db", limits=Limits(body=1 << 20))) as running:
        yield running


@pytest.fixture
def http(server):
    with httpx.Client(base_url=server.url) as client:
        yield client


@pytest.fixture
def name(http, request):
    made = request.node.name[:150].replace("/", "-")
    assert http.put(f"/streams/{made}", json={"source": SOURCE}).status_code == 201
    return made


def error(response, status):
    assert response.status_code == status, response.text
    message = response.json()
    assert set(message) == {"error", "code", "status"}
    assert message["status"] == status
    assert "Traceback" not in message["error"]
    return message["error"]


def counted(db):
    raw = sqlite3.connect(db)
    try:
        return raw.execute("SELECT n FROM states").fetchone()[0]
    finally:
        raw.close()


# streams


def test_a_stream_is_made_read_and_deleted(http):
    made = http.put("/streams/life", json={"source": SOURCE, "method": "online-fmapls", "options": {"memory": 500.0}})
    assert made.status_code == 201
    assert made.json()["classes"] == ["cat", "dog", "owl"]
    again = http.put("/streams/life", json={"source": SOURCE, "method": "online-fmapls", "options": {"memory": 500.0}})
    assert (again.status_code, again.json()["new"]) == (200, False)
    assert "another definition" in error(http.put("/streams/life", json={"source": [1, 1]}), 409)
    answer = http.get("/streams/life").json()
    assert answer["source"] == pytest.approx([0.7, 0.2, 0.1])
    assert answer["options"]["memory"] == 500.0
    nothing = ("sure", "open", "not_label_shift", "stale", "silence", "evidence", "threshold")
    assert answer["alarm"] == {"watched": False, **dict.fromkeys(nothing)}
    for body in ({"json": {"confirm": "lif"}}, {}):
        assert "the stream's own name" in error(http.request("DELETE", "/streams/life", **body), 400)
    assert http.request("DELETE", "/streams/life", json={"confirm": "life"}).json() == {"deleted": "life"}
    assert "no stream 'life'" in error(http.get("/streams/life"), 404)


def test_options_of_a_bounded_stream_are_its_own_and_the_bound(http, caplog):
    rows, y = rows_of(50, 3), [0, 1] * 25
    body = {"heldout": {"proba": rows.tolist(), "y": y}, "options": {"robust": 0.01}, "alarm": False}
    assert http.put("/streams/bounded", json=body).status_code == 201
    answer = http.get("/streams/bounded").json()["options"]
    assert answer.pop("settings")["model"]["no_shift"] == 0.6
    assert answer == {"drift": True, "base": None, "robust": 0.01}  # and no held-out row
    assert "hardly agree" in caplog.text  # the labels are none of these rows'


@pytest.mark.parametrize(("body", "message"), [
    ({}, "`source` must be a list of counts"),
    ({"source": [1]}, "at least two class"),
    ({"source": [1, 0]}, "positive for every class"),
    ({"source": [1, "x"]}, "`source` must be"),
    ({"source": [True, False]}, "`source` must be a list"),
    ({"source": [1, 1], "classes": ["a"]}, "name all 2 classes"),
    ({"source": [1, 1], "classes": ["a", "a"]}, "all be different"),
    ({"source": [1, 1], "classes": ["\u00e9", "e\u0301"]}, "all be different"),
    ({"source": [1, 1], "classes": ["a", "b\n"]}, "printable"),
    ({"source": [1, 1], "method": "magic"}, "`method` must be one of"),
    ({"source": [1, 1], "options": {"speed": 1}}, "`options` must be one of"),
    ({"source": [1, 1], "option": {}}, "have only the keys"),
    ({"source": [1, 1], "alarm": True}, "held-out samples"),
    ({"source": [1, 1], "alarm": {"exact": 1}}, "`exact` must be true or false"),
    ({"source": [1.0] * 10_001}, "at most 10000 classes"),
    ({"source": {"a": 1, "b": 1}, "classes": ["a", "c"]}, "the same classes"),
])  # fmt: skip
def test_a_bad_definition_is_refused(http, body, message):
    assert message in error(http.put("/streams/bad", json=body), 400)
    assert http.get("/streams/bad").status_code == 404


def test_a_million_classes_are_refused(http):
    assert "at most 1048576 bytes" in error(http.put("/streams/huge", content=b"[" + b"1," * (1 << 20) + b"1]"), 413)


@pytest.mark.parametrize("name", [
    "<script>alert(1)</script>", "'; DROP TABLE streams; --", "a b%&?#+", "日本語", "𝒳",
    'quote"back\\slash', "..%2f", "{stream}", "a" * 200,
])  # fmt: skip
def test_hostile_names_are_only_names(http, name):
    classes = [name[:100] + "1", "</script><img src=x onerror=alert(1)>", "\"\\{}'"]
    with Client(str(http.base_url)) as client:
        if "/" in name:
            name = name.replace("/", "_")
        client.put(name, [1, 1, 1], classes=classes)
        assert client.send(name, [[0.2, 0.3, 0.5]]).n == 1
        assert client.get(name)["classes"] == classes
        listed = http.get("/streams", params={"search": name}).json()["streams"]
        assert name in [stream["name"] for stream in listed]
        text = http.get("/metrics").text
        assert text.count("\n") == len(text.splitlines())  # no name broke a line
        client.delete(name)


@pytest.mark.parametrize("name", ["%00", "a%0Ab", "%2E%2E", "x" * 201, "%E2%80%AE"])
def test_names_that_no_address_or_page_can_show_are_refused(http, name):
    answer = http.put(httpx.URL(str(http.base_url) + "/streams/" + name), json={"source": [1, 1]})
    assert answer.status_code in (400, 404, 405)
    assert set(answer.json()) == {"error", "code", "status"}


def test_a_saved_stream_goes_on_where_it_was(http, tmp_path):
    stream = replay([3, 1], [[[0.2, 0.8]] * 7])
    octets = {"Content-Type": "application/octet-stream"}
    made = http.put("/streams/moved", content=stream.to_bytes(), headers=octets)
    assert (made.status_code, made.json()["n"]) == (201, 7)
    assert http.put("/streams/moved", content=stream.to_bytes(), headers=octets).json()["new"] is False
    answer = http.post("/streams/moved/samples", json={"proba": [[0.5, 0.5]]}).json()
    stream.learn_many([[0.5, 0.5]])
    assert (answer["n"], answer["prior"]) == (8, stream.prior.tolist())
    damaged = bytearray(stream.to_bytes())
    damaged[60] ^= 1
    for content, query, message in (
        (bytes(damaged), "", "whole and unchanged"), (b"hello", "", "bytes written by reprior"),
        (rp.Alarm([1, 1], exact=True).to_bytes(), "", "saved pipeline or stream"),
        (stream.to_bytes(), "?method=online-fmapls", "leave out method and options"),
        (stream.to_bytes(), "?x=1", "`query` must be one of"),
        (stream.to_bytes(), "?alarm={", "be JSON"),
    ):  # fmt: skip
        assert message in error(http.put("/streams/bad" + query, content=content, headers=octets), 400)


def test_a_saved_pipeline_makes_a_stream_that_takes_raw_outputs(http, server):
    data = datasets.load("banking77")
    pipe = rp.pipeline(data.heldout_proba, data.heldout_y, counts=data.counts, classes=data.classes)
    with Client(server.url) as client:
        made = client.put("saved", saved=pipe.to_bytes(), alarm={"run_length": 1e5})
        assert made["classes"] == list(data.classes)
        assert made["alarm"]["watched"]
        rows = data.pool_proba[:200]
        answer = client.send("saved", rows)
        stream = pipe.stream()
        stream.learn_many(rows)
        np.testing.assert_array_equal(answer.prior, stream.prior)
        np.testing.assert_array_equal(answer.proba, stream.correct_many(rows))
        assert client.get("saved")["diagnosis"]["applies"] is not None
        client.put("saved-2", saved=pipe.to_bytes(), method="online-fmapls", memory=300.0, alarm=False)
        assert client.get("saved-2")["options"]["memory"] == 300.0


# samples


def test_samples_are_learned_and_corrected_as_the_library_does_it(http, name):
    blocks = [rows_of(7, 3, seed) for seed in range(4)]
    for number, block in enumerate(blocks):
        body = {"proba": block.tolist(), "client": "a", "seq": number}
        response = http.post(f"/streams/{name}/samples", json=body).json()
        stream = replay([70, 20, 10], blocks[: number + 1])
        assert response["n"] == stream.n
        assert response["prior"] == stream.prior.tolist()  # bit for bit, through JSON
        assert response["proba"] == stream.correct_many(block).tolist()
        assert "repeated" not in response
        assert "gap" not in response
    answer = http.get(f"/streams/{name}").json()
    assert answer["prior"] == stream.prior.tolist()
    assert answer["interval"]["lower"] == stream.interval().lower.tolist()
    assert answer["diagnosis"]["rows"] == 28
    assert answer["diagnosis"]["sentences"]


def test_what_cannot_be_diagnosed_says_why(http):
    assert http.put("/streams/wide", json={"source": [1] * 5000}).status_code == 201
    http.post("/streams/wide/samples", json={"proba": rows_of(2, 5000).tolist(), "correct": False})
    assert "`classes` must be at most 4096" in http.get("/streams/wide").json()["diagnosis"]["sentences"][0]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_msgpack_carries_raw_rows(http, name, dtype):
    rows = rows_of(50, 3).astype(dtype)
    body = msgpack.packb({"proba": rows.tobytes(), "dtype": dtype, "client": "m", "seq": 0})
    answer = http.post(f"/streams/{name}/samples", content=body, headers={"Content-Type": "application/msgpack"})
    assert answer.headers["content-type"] == "application/msgpack"
    response, stream = msgpack.unpackb(answer.content), replay([70, 20, 10], [rows])
    assert response["prior"] == stream.prior.tolist()
    assert response["proba"] == stream.correct_many(rows).tobytes()


def test_a_repeated_post_is_answered_and_counted_once(http, name):
    def post(seq, **more):
        return http.post(
            f"/streams/{name}/samples", json={"proba": [[0.1, 0.2, 0.7]], "client": "a", "seq": seq, **more}
        )

    assert post(5).json()["n"] == 1
    again = post(5).json()
    assert (again["n"], again["repeated"], again["counted_at"]) == (1, True, 1)
    answer = post(9).json()
    assert (answer["n"], answer["gap"]) == (2, {"first": 6, "last": 8})
    assert post(7).json()["n"] == 3  # late, but never counted before
    assert post(7).json()["repeated"]
    assert post(6).json()["n"] == 4
    assert post(8).json()["n"] == 5
    assert all(post(seq).json()["repeated"] for seq in (5, 6, 7, 8, 9))
    assert http.get(f"/streams/{name}").json()["n"] == 5
    assert post(9, client="b").json()["n"] == 6  # another client has its own numbers


@pytest.mark.parametrize(("body", "message"), [
    ({}, "`proba` must be a list of rows; got nothing"),
    ({"proba": [[0.5, 0.5]]}, "3 columns"),
    ({"proba": [[0.5, 0.5, 0.5]]}, "sum to 1"),
    ({"proba": [[-0.5, 0.5, 1.0]]}, "no negative"),
    ({"proba": [[0, 0, 0]]}, "all-zero"),
    ({"proba": [[1, 0, 0], [1, 0]]}, "rectangular"),
    ({"proba": [["a", "b", "c"]]}, "numbers"),
    ({"proba": [[None, 0.5, 0.5]]}, "numbers"),
    ({"proba": [[True, False, False]]}, "numbers"),
    ({"proba": [0.2, 0.3, 0.5]}, "each a list"),
    ({"proba": {"a": 1}}, "list of rows"),
    ({"proba": [[1, 0, 0]], "client": "a"}, "`seq` must be given"),
    ({"proba": [[1, 0, 0]], "seq": 1}, "`client` must be given"),
    ({"proba": [[1, 0, 0]], "client": "a", "seq": -1}, "at least 0"),
    ({"proba": [[1, 0, 0]], "client": "a", "seq": 1.5}, "whole number"),
    ({"proba": [[1, 0, 0]], "client": "a", "seq": 2**60}, "below 2**53"),
    ({"proba": [[1, 0, 0]], "client": "", "seq": 1}, "1 to 200"),
    ({"proba": [[1, 0, 0]], "clint": "a"}, "only the keys"),
    ({"proba": [[1, 0, 0]], "correct": "no"}, "true or false"),
    ([], "be an object"),
])  # fmt: skip
def test_bad_samples_change_nothing(http, name, body, message):
    assert message in error(http.post(f"/streams/{name}/samples", json=body), 400)
    assert http.get(f"/streams/{name}").json()["n"] == 0


def test_nan_is_refused_in_both_forms(http, name):
    text = b'{"proba": [[NaN, 0.5, 0.5]]}'
    assert "JSON has no NaN" in error(http.post(f"/streams/{name}/samples", content=text), 400)
    rows = np.array([[np.nan, 0.5, 0.5]], "f4").tobytes()
    kind = {"Content-Type": "application/msgpack"}
    packed = http.post(f"/streams/{name}/samples", content=msgpack.packb({"proba": rows}), headers=kind)
    assert "finite" in error(packed, 400)
    odd = http.post(f"/streams/{name}/samples", content=msgpack.packb({"proba": rows[:-1]}), headers=kind)
    assert "12 bytes" in error(odd, 400)
    assert "msgpack" in error(http.post(f"/streams/{name}/samples", content=b"\xc1", headers=kind), 400)
    assert "content type" in error(
        http.post(f"/streams/{name}/samples", content=b"x", headers={"Content-Type": "a/b"}), 415
    )


def test_no_rows_are_nothing_to_learn(http, name):
    answer = http.post(f"/streams/{name}/samples", json={"proba": [], "client": "a", "seq": 1}).json()
    assert (answer["n"], answer["proba"]) == (0, [])
    assert http.post(f"/streams/{name}/samples", json={"proba": [], "client": "a", "seq": 1}).json()["repeated"]


def test_labels_are_observed_as_the_library_does_it(http, name):
    rows = rows_of(6, 3)
    http.post(f"/streams/{name}/samples", json={"proba": rows.tolist()})
    body = {"proba": rows[:2].tolist(), "y": ["owl", "cat"], "client": "l", "seq": 1}
    answer = http.post(f"/streams/{name}/labels", json=body).json()
    stream = replay([70, 20, 10], [rows])
    stream.observe(rows[0], 2)
    stream.observe(rows[1], 0)
    assert answer["prior"] == stream.prior.tolist()
    assert http.post(f"/streams/{name}/labels", json=body).json()["repeated"]
    assert http.get(f"/streams/{name}").json()["labels"] == 2
    url = f"/streams/{name}/labels"
    assert "names of classes; got cow" in error(http.post(url, json={"proba": rows[:1].tolist(), "y": ["cow"]}), 400)
    assert "between 0 and 2" in error(http.post(url, json={"proba": rows[:1].tolist(), "y": [3]}), 400)
    bad = [rows[0].tolist(), [0.9, 0.9, 0.9]]
    assert "sum to 1" in error(http.post(url, json={"proba": bad, "y": [0, 0]}), 400)
    assert http.get(f"/streams/{name}").json()["prior"] == stream.prior.tolist()  # the good first row is undone
    more = {"proba": rows[:5].tolist(), "y": [0] * 5}
    assert error(http.post(url, json=more), 400) == (
        "labels: `y` must belong to samples that were learned; got 7 labels of 6 samples. Learn a sample first. Each"
        " sample takes one label."
    )
    assert http.get(f"/streams/{name}").json()["labels"] == 2
    assert http.get(f"/streams/{name}").json()["prior"] == stream.prior.tolist()


# reading


def test_the_list_is_searched_sorted_and_cut(http):
    for k in range(5):
        http.put(f"/streams/list-{k}", json={"source": [1, 1]})
    http.post("/streams/list-3/samples", json={"proba": [[0.9, 0.1]] * 30})
    answer = http.get("/streams", params={"search": "LIST-", "limit": 2, "offset": 1}).json()
    assert (answer["total"], [s["name"] for s in answer["streams"]]) == (5, ["list-1", "list-2"])
    for order in ("shift", "rate", "n", "seen"):
        top = http.get("/streams", params={"search": "list-", "sort": order}).json()["streams"][0]
        assert top["name"] == "list-3"
    assert top["shift"] > 0.1
    assert len(top["spark"]) >= 1
    assert "`sort` must be one of" in error(http.get("/streams?sort=x"), 400)
    assert "`limit`" in error(http.get("/streams?limit=1e9"), 400)
    assert "`offset` must be a number" in error(http.get("/streams?offset=x"), 400)


def test_history_is_down_sampled_with_bands(http, name):
    started = time.time()
    for k in range(4):
        http.post(f"/streams/{name}/samples", json={"proba": rows_of(20, 3, k).tolist()})
        time.sleep(0.02)
    answer = http.get(f"/streams/{name}/history", params={"from": started - 5, "heat": 1}).json()
    assert answer["n"][-1] == 80  # the newest state is always there
    assert answer["t"] == sorted(answer["t"])
    assert answer["names"] == ["cat", "dog", "owl"]
    prior = np.array(answer["prior"])
    assert prior.shape == (len(answer["t"]), 3)
    assert (np.array(answer["lower"]) <= prior).all()
    assert (prior <= np.array(answer["upper"])).all()
    np.testing.assert_allclose(prior.sum(axis=1), 1, atol=1e-5)
    interval = http.get(f"/streams/{name}").json()["interval"]
    np.testing.assert_allclose(answer["upper"][-1], interval["upper"], rtol=1e-3)
    assert answer["heat"]["classes"] == 3
    one = http.get(f"/streams/{name}/history?classes=2&points=2").json()
    assert (one["names"], len(one["t"]) <= 2, one["n"][-1]) == (["owl"], True, 80)
    for query, message in (("from=5&to=4", "before `to`"), ("points=1", "`points`"), ("classes=3", "between 0 and 2"),
                        ("classes=a", "column numbers"), ("from=nan", "`from`"), ("heat=2", "`heat`")):  # fmt: skip
        assert message in error(http.get(f"/streams/{name}/history?{query}"), 400)


def read_events(url, count, after_first=lambda: None, **headers):
    results = []
    with httpx.stream("GET", url, timeout=30, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        kind = ""
        for line in answer.iter_lines():
            if line.startswith("event: "):
                kind = line[7:]
            elif line.startswith("data: "):
                results.append((kind, json.loads(line[6:])))
                if len(results) == 1:
                    after_first()
                if len(results) == count:
                    return results
    return results


def test_events_tell_of_a_stream_and_of_the_server(http, server, name):
    def post():
        http.post(f"/streams/{name}/samples", json={"proba": rows_of(9, 3).tolist()})

    answer = read_events(f"{server.url}/events?stream={name}", 3, post)
    assert [kind for kind, _ in answer] == ["update", "server", "update"]
    first, whole, second = (value for _, value in answer)
    assert (first["n"], second["n"]) == (0, 9)
    assert whole["streams"] >= 1
    np.testing.assert_allclose(second["prior"], replay([70, 20, 10], [rows_of(9, 3)]).prior, rtol=1e-6)
    assert read_events(f"{server.url}/events", 1)[0][1]["streams"] >= 1
    assert "no stream" in error(http.get("/events?stream=nope"), 404)


def test_metrics_health_and_unknown_addresses(http, name):
    http.post(f"/streams/{name}/samples", json={"proba": rows_of(9, 3).tolist()})
    text = http.get("/metrics").text
    assert f'reprior_stream_samples_total{{stream="{name}"}} 9.0' in text
    assert text.count("reprior_class_share{class=") >= 3
    health = http.get("/healthz").json()
    assert (health["ok"], health["trouble"]) == (True, None)
    assert "nothing at this address" in error(http.get("/nowhere"), 404)
    assert "contain a slash" in error(http.put("/streams/team%2Fmodel", json={"source": [1, 1]}), 404)
    assert "a line break" in error(http.post("/streams/a/samples%0A", json={"proba": [[0.5, 0.5]]}), 404)
    assert "does not take this method" in error(http.post("/healthz"), 405)


# access


def test_tokens_are_asked_for_and_never_told(tmp_path):
    settings = Settings(tmp_path / "t.db", tokens=TOKENS)
    with Background(settings) as running, httpx.Client(base_url=running.url) as http:

        def bearer(token):
            return {"Authorization": f"Bearer {token}"}

        assert "needed to read" in error(http.get("/streams"), 401)
        assert "needed to change" in error(
            http.put("/streams/a", json={"source": [1, 1]}, headers=bearer("read-token-1")), 401
        )
        for wrong in ("x", "write-token-2", "write-token-11"):
            message = http.put("/streams/a", json={"source": [1, 1]}, headers=bearer(wrong))
            assert "write-token" not in error(message, 401)
        health = http.get("/healthz")
        assert (health.status_code, health.json()) == (200, {"ok": True, "trouble": None})  # no names of streams
        assert http.get("/healthz", headers=bearer("read-token-1")).json()["unreadable"] == []
        assert http.put("/streams/a", json={"source": [1, 1]}, headers=bearer("write-token-1")).status_code == 201
        for token in ("read-token-1", "write-token-1"):
            assert http.get("/streams", headers=bearer(token)).json()["total"] == 1
            assert http.get("/metrics", headers=bearer(token)).status_code == 200
        assert "needed to read" in error(http.get("/events"), 401)
        with pytest.raises(ServiceError, match="bearer token"):
            Client(running.url, token="no").send("a", [[0.5, 0.5]])
    assert "write-token" not in repr(settings)


def test_other_hosts_and_other_pages_are_refused(tmp_path):
    settings = Settings(tmp_path / "t.db", hosts=("127.0.0.1", "localhost"))
    with Background(settings) as running, httpx.Client(base_url=running.url) as http:
        assert "Host" in error(http.get("/streams", headers={"Host": "evil.example"}), 421)
        message = http.put("/streams/a", json={"source": [1, 1]}, headers={"Origin": "http://evil.example"})
        assert "pages of other sites" in error(message, 403)
        own = http.put("/streams/a", json={"source": [1, 1]}, headers={"Origin": running.url})
        assert own.status_code == 201


def test_every_answer_carries_a_strict_policy(http):
    for path in ("/", "/streams", "/nowhere", "/static/page.js"):
        headers = http.get(path).headers
        assert headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert "server" not in headers


def test_static_files_are_only_those(http):
    for path in ("/static/../app.py", "/static/%2e%2e/app.py", "/static/..%2fapp.py", "/static/"):
        assert http.get(httpx.URL(str(http.base_url) + path)).status_code in (404, 405)


def test_limits_of_body_streams_and_clients(tmp_path):
    limits = Limits(body=2_000, streams=2, clients=2, gaps=1)
    with Background(Settings(tmp_path / "t.db", limits=limits)) as running, httpx.Client(base_url=running.url) as http:
        assert http.put("/streams/a", json={"source": [1, 1]}).status_code == 201
        assert http.put("/streams/b", json={"source": [1, 1]}).status_code == 201
        assert "at most 2" in error(http.put("/streams/c", json={"source": [1, 1]}), 400)

        def post(client, seq):
            return http.post("/streams/a/samples", json={"proba": [[0.5, 0.5]], "client": client, "seq": seq})

        assert [post("x", 1).status_code, post("y", 1).status_code] == [200, 200]
        assert "at most 2 clients" in error(post("z", 1), 400)
        assert post("x", 3).status_code == 200
        assert "no more than 1 gaps" in error(post("x", 5), 400)
        assert post("x", 2).status_code == 200
        assert post("x", 5).status_code == 200
        big = {"proba": [[0.5, 0.5]] * 1000}
        assert "at most 2000 bytes" in error(http.post("/streams/a/samples", json=big), 413)

        def parts():
            yield from (b" " * 500,) * 10

        assert "at most 2000 bytes" in error(http.post("/streams/a/samples", content=parts()), 413)


def test_the_limit_of_the_rate(tmp_path):
    settings = Settings(tmp_path / "t.db", limits=Limits(rate=1))
    with Background(settings) as running, httpx.Client(base_url=running.url) as http:
        assert http.get("/healthz").status_code == 200
        wait_for(lambda: http.get("/healthz").status_code == 429)  # two within a second
        wait_for(lambda: http.get("/healthz").status_code == 200)


def test_slow_and_half_open_clients_are_left_behind(tmp_path):
    settings = Settings(tmp_path / "t.db", limits=Limits(body_seconds=3))
    with Background(settings, head_seconds=3) as running, httpx.Client(base_url=running.url) as http:
        http.put("/streams/a", json={"source": [1, 1]})
        port = int(running.url.rsplit(":", 1)[1])
        half = [socket.create_connection(("127.0.0.1", port), timeout=60) for _ in range(30)]
        for connection in half[:20]:
            connection.sendall(b"POST /streams/a/samples HTTP/1.1\r\nHost: x\r\n")  # and no more of the head
        for connection in half[20:]:
            connection.sendall(b"POST /streams/a/samples HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 50\r\n\r\n{")
        assert http.post("/streams/a/samples", json={"proba": [[0.5, 0.5]]}).json()["n"] == 1  # others are served
        for connection in half[:20]:
            assert connection.recv(100) == b""
        assert b" 408 " in half[20].recv(100)
        for connection in half:
            connection.close()
        assert http.get("/streams/a").json()["n"] == 1


def test_a_head_without_end_is_cut_off(tmp_path):
    with Background(Settings(tmp_path / "t.db")) as running, httpx.Client(base_url=running.url) as http:
        port = int(running.url.rsplit(":", 1)[1])
        for begun in (b"GET / HTTP/1.1\r\nHost: x\r\nX: ", b"GET /"):
            with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
                connection.sendall(begun)
                with pytest.raises(OSError):
                    connection.sendall(b"a" * (64 << 20))
        assert http.get("/healthz", headers={"X": "a" * 30_000}).status_code == 200


# durability


def test_a_stopped_server_goes_on_where_it_was(tmp_path):
    db, blocks = tmp_path / "s.db", [rows_of(40, 3, k) for k in range(6)]
    for half in (blocks[:3], blocks[3:]):
        with Background(Settings(db)) as running, Client(running.url, name="one") as client:
            client.put("s", [7, 2, 1], classes=["a", "b", "c"])
            client.seqs["s"] = 3 if half[0] is blocks[3] else 0
            for block in half:
                answer = client.send("s", block)
            client.seqs["s"] -= 1
            assert client.send("s", block).repeated
    stream = replay([7, 2, 1], blocks)
    assert answer.prior.tolist() == stream.prior.tolist()
    report = check(db)
    assert report.problems == []
    assert report.rows | {"history": 0} == {"streams": 1, "offsets": 1, "history": 0, "alarms": 0, "outbox": 0}


@pytest.mark.skipif(not ALL, reason=WHY)
def test_a_killed_server_loses_nothing_it_answered(tmp_path):
    crash_run(tmp_path, kills=3, seconds=0.4)


def test_a_server_that_stops_during_a_commit_ends_and_loses_nothing(tmp_path, monkeypatch):
    db, write = tmp_path / "s.db", Store.write

    def slowly(self, *args):
        time.sleep(0.3)
        write(self, *args)

    monkeypatch.setattr(Store, "write", slowly)

    async def main():
        hub = Hub(Settings(db), Store(db))
        hub.start()
        made = rp.Stream("online-ebls", [1, 1])
        await hub.create("s", encoded(made, made.source))
        posts = [asyncio.create_task(hub.posts.samples("s", Post([[0.3, 0.7]], "c", 1)))]
        await asyncio.sleep(0.1)  # its commit is on its way
        posts.append(asyncio.create_task(hub.posts.samples("s", Post([[0.3, 0.7]], "c", 2))))
        await asyncio.sleep(0.01)
        await asyncio.wait_for(hub.stop(), 10)
        return [(await asyncio.wait_for(post, 5)).n for post in posts]

    assert asyncio.run(main()) == [1, 2]
    assert counted(db) == 2
    assert check(db).problems == []


def test_one_file_is_served_by_one_process(tmp_path):
    with Background(Settings(tmp_path / "s.db")), pytest.raises(rp.InputError, match="be served by one process"):
        Store(tmp_path / "s.db")


def test_a_database_locked_by_another_is_waited_for_and_reported(tmp_path):
    db = tmp_path / "s.db"

    async def main():
        store = Store(db, wait=0.1)
        hub = Hub(Settings(db), store)
        hub.start()
        made = rp.Stream("online-ebls", [1, 1])
        await hub.create("s", encoded(made, made.source))
        await hub.posts.samples("s", Post([[0.3, 0.7]], "c", 1))
        reader = sqlite3.connect(db)  # a reader that sits on an old snapshot holds up nobody
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM streams").fetchall()
        assert (await hub.posts.samples("s", Post([[0.3, 0.7]], "c", 2))).n == 2
        writer = sqlite3.connect(db, isolation_level=None)
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(Exception, match=r"Another process holds the database. This was not stored yet"):
            await hub.posts.samples("s", Post([[0.3, 0.7]], "c", 3))
        with pytest.raises(Exception, match="No samples are taken"):
            await hub.posts.samples("s", Post([[0.3, 0.7]], "c", 3))
        assert hub.get("s").stream.n == 3
        writer.execute("ROLLBACK")
        while hub.trouble:
            await asyncio.sleep(0.02)
        again = await hub.posts.samples("s", Post([[0.3, 0.7]], "c", 3))  # what was held up is stored, and counted once
        assert (again.n, again.repeated) == (3, True)
        reader.close()
        writer.close()
        await hub.stop()

    asyncio.run(main())
    assert check(db).problems == []
    assert counted(db) == 3


def test_a_clock_that_is_set_back_leaves_the_history_in_order(tmp_path):
    wall, steady = [1000.0], [0.0]

    def passes(seconds, jump=0.0):
        wall[0] += seconds + jump
        steady[0] += seconds

    clock = Clock(0.0, lambda: wall[0], lambda: steady[0])

    async def main():
        hub = Hub(Settings(tmp_path / "s.db"), Store(tmp_path / "s.db"), clock)
        made = rp.Stream("online-ebls", [1, 1])
        hub.start()
        await hub.create("s", encoded(made, made.source))
        for k in range(12):
            passes(2.0, -3600.0 if k == 5 else 0.0)
            await hub.posts.samples("s", Post([[0.3, 0.7]] * 16, "c", k))
        assert clock.ahead == pytest.approx(3600, abs=30)
        times = [t for (t,) in hub.store.read("SELECT t FROM history ORDER BY n")]
        assert len(times) == 12  # and none is lost while the clock is behind
        assert times == sorted(set(times))
        passes(7200.0 + 100)
        assert clock.ahead == 0.0  # it has been caught up with
        await hub.stop()

    asyncio.run(main())
    assert check(tmp_path / "s.db").problems == []


def test_history_is_thinned_by_age_and_stays_bounded(tmp_path):
    store = Store(tmp_path / "s.db")
    number = store.create("s", 0.0, Recipe(b"", b"", None, 0))
    now = 400 * 86_400.0
    times = np.unique(np.concatenate([now - np.arange(0, 900, 1), now - np.arange(0, 86_400 * 400, 997.0)]))
    with store.transaction() as db:
        rows = [(number, int(t * 1000), k, b"", b"") for k, t in enumerate(times)]
        db.executemany("INSERT INTO history (stream, t, n, prior, variance) VALUES (?, ?, ?, ?, ?)", rows)
    store.compact(now, [number], Retention())
    left = np.array([t / 1000 for (t,) in store.read("SELECT t FROM history ORDER BY t")])
    assert len(left) <= points_at_most()
    assert (left >= now - Retention().history).all()
    assert (left > now - 300).sum() == (times > now - 300).sum()  # the young ones are all there
    for (age, spacing), (older, _) in zip(SPACINGS, (*SPACINGS[1:], (Retention().history, 0)), strict=True):
        inside = left[(left < now - age - spacing) & (left > now - older + spacing)]
        assert (np.diff(inside // spacing) >= 1).all()
    before = left.tolist()
    store.compact(now, [number], Retention())
    assert [t / 1000 for (t,) in store.read("SELECT t FROM history ORDER BY t")] == before
    store.close()


def test_check_finds_damage(tmp_path, call):
    db = tmp_path / "s.db"
    with Background(Settings(db)) as running, Client(running.url) as client:
        client.put("s", [1, 1])
        client.send("s", [[0.4, 0.6]] * 5)
    assert call("serve", "check", "--db", db)[:2] == (
        0,
        "s.db is sound.\n1 streams, 1 offsets, 1 history, 0 alarms, 0 outbox\n",
    )
    for change, message in (
        ("UPDATE states SET n = 6", "has learned 5 samples, but 6 were counted"),
        ("UPDATE states SET n = 5, state = x'00'", "cannot be read"),
    ):
        with sqlite3.connect(db) as raw:
            raw.execute(change)
        raw.close()
        code, out, _ = call("serve", "check", "--db", db)
        assert (code, message in out) == (1, True), out
    (tmp_path / "other.db").write_bytes(b"hello" * 1000)
    assert call("serve", "check", "--db", tmp_path / "other.db")[0] == 1


def test_the_command_refuses_what_it_should(refused, tmp_path, monkeypatch):
    monkeypatch.delenv("REPRIOR_TOKEN", raising=False)
    assert "name the database file" in refused("serve")
    assert "no token is set" in refused("serve", "--db", tmp_path / "x.db", "--host", "0.0.0.0")
    assert "at least 8" in refused("serve", "--db", tmp_path / "x.db", "--token", "short")


def test_what_keeps_the_command_from_starting_is_one_sentence(call, tmp_path):
    def message(db, port=0):
        code, out, err = call("serve", "--db", db, "--port", port)
        assert (code, out, err.count("\n")) == (1, "", 1), err
        return err

    with Background(Settings(tmp_path / "s.db")) as running, Client(running.url) as client:
        client.put("s", [1, 1])
        assert "be served by one process" in message(tmp_path / "s.db")
        assert "be an address that can be listened at" in message(tmp_path / "t.db", int(running.url.rsplit(":", 1)[1]))
    assert "No such file" in message(tmp_path / "nowhere" / "s.db")
    (tmp_path / "text.db").write_text("hello")
    assert "not a database" in message(tmp_path / "text.db")


@pytest.mark.parametrize(("table", "column"), [("states", "state"), ("versions", "definition"), ("tests", "test")])
def test_a_stream_of_another_release_stops_no_other(tmp_path, caplog, table, column):
    db, held = tmp_path / "s.db", {"proba": rows_of(30, 2).tolist(), "y": [0, 1] * 15}
    with Background(Settings(db)) as running, Client(running.url, name="c") as client:
        for name in ("old", "new"):
            httpx.put(f"{running.url}/streams/{name}", json={"heldout": held}).raise_for_status()
            client.send(name, [[0.4, 0.6]] * 5)

    old = "stream IN (SELECT id FROM streams WHERE name = 'old')"

    def bytes_of_old():
        with closing(sqlite3.connect(db)) as raw:
            return raw.execute(f"SELECT * FROM {table} WHERE {old}").fetchall()

    with closing(sqlite3.connect(db)) as raw:
        raw.execute(f"UPDATE {table} SET {column} = ? WHERE {old}", (b"bytes of another time",))
        raw.execute("INSERT INTO events SELECT id, 'event', 1.0 FROM streams WHERE name = 'old'")
        raw.commit()
    before = bytes_of_old()
    with Background(Settings(db)) as running, httpx.Client(base_url=running.url) as http:
        assert "The stream 'old' cannot be read" in caplog.text
        assert "the release that wrote it, or delete the stream" in caplog.text
        assert http.get("/healthz").json()["unreadable"] == ["old"]
        assert [stream["name"] for stream in http.get("/streams").json()["streams"]] == ["new"]
        assert http.post("/streams/new/samples", json={"proba": [[0.4, 0.6]]}).json()["n"] == 6
        for answer in (
            http.get("/streams/old"),
            http.put("/streams/old", json={"source": [1, 1]}),
            http.post("/streams/old/samples", json={"proba": [[0.4, 0.6]]}),
            http.get("/streams/old/history"),
            http.post("/v2/models/old/infer", json={"inputs": []}),
        ):
            assert "Its bytes are kept as they are" in error(answer, 409)
    assert bytes_of_old() == before
    with Background(Settings(db)) as running, httpx.Client(base_url=running.url) as http:
        assert http.request("DELETE", "/streams/old", json={"confirm": "no"}).status_code == 400
        assert http.request("DELETE", "/streams/old", json={"confirm": "old"}).status_code == 200
        assert http.put("/streams/old", json={"source": [1, 1]}).status_code == 201
        assert http.get("/healthz").json()["unreadable"] == []


def test_a_full_disk_is_reported_and_nothing_is_lost(tmp_path, monkeypatch):
    """A file that may not grow is what SQLite sees of a full disk; the real thing is in the slow tests."""
    db = tmp_path / "s.db"

    async def main():
        store = Store(db)
        hub = Hub(Settings(db), store)
        hub.start()
        made = rp.Stream("online-ebls", np.ones(50))
        await hub.create("s", encoded(made, made.source))
        rows = rows_of(10, 50)
        await hub.posts.samples("s", Post(rows.tolist(), "c", 1))
        pages = store._writer.execute("PRAGMA page_count").fetchone()[0]
        store._writer.execute(f"PRAGMA max_page_count={pages}")
        filled = 1

        async def fill():
            nonlocal filled
            for k in range(2, 200):
                hub.get("s").activity.point_at = 0.0
                await hub.posts.samples("s", Post(rows.tolist(), "c", k))
                filled = k

        with pytest.raises(Exception, match="The disk is full"):
            await fill()
        store._writer.execute("PRAGMA max_page_count=1000000")
        while hub.trouble:
            await asyncio.sleep(0.02)
        assert (await hub.posts.samples("s", Post(rows.tolist(), "c", filled + 1))).repeated
        await hub.stop()
        return filled + 1

    posts = asyncio.run(main())
    assert check(db).problems == []
    assert counted(db) == 10 * posts


# the client


class Flaky:
    """A proxy that loses every third answer: the post arrives, the client hears nothing of it."""

    def __init__(self, port):
        self.port, self.made, self.answers, self.open = port, socket.create_server(("127.0.0.1", 0)), 0, True
        self.made.settimeout(0.2)
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    @staticmethod
    def message(stream):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            line = stream.readline()
            if not line:
                return b""
            head += line
        size = next((int(x.split(b":")[1]) for x in head.lower().split(b"\r\n") if x.startswith(b"content-length")), 0)
        return head + stream.read(size)

    def run(self):
        while self.open:
            try:
                here, _ = self.made.accept()
            except TimeoutError:
                continue
            with here, socket.create_connection(("127.0.0.1", self.port)) as there:
                here.settimeout(60)
                there.settimeout(60)
                with here.makefile("rb") as asked, there.makefile("rb") as answered:
                    while request := self.message(asked):
                        there.sendall(request)
                        answer = self.message(answered)
                        self.answers += 1
                        if self.answers % 3 == 0:
                            break
                        here.sendall(answer)
        self.made.close()


def test_the_client_repeats_a_post_until_it_counts_once(tmp_path):
    with Background(Settings(tmp_path / "s.db")) as running:
        flaky = Flaky(int(running.url.rsplit(":", 1)[1]))
        with Client(f"http://127.0.0.1:{flaky.made.getsockname()[1]}", timeout=60) as client:
            client.put("s", [1, 1, 1])
            answers = [client.send("s", rows_of(3, 3, k)) for k in range(20)]
        flaky.open = False
        flaky.thread.join()
        assert sum(a.repeated for a in answers) >= 5
        assert answers[-1].n == 60
        np.testing.assert_array_equal(answers[-1].prior, replay([1, 1, 1], [rows_of(3, 3, k) for k in range(20)]).prior)


def test_the_client_gives_up_after_its_patience(tmp_path):
    waits = []
    client = Client("http://127.0.0.1:9", patience=0.5, sleep=waits.append)
    with pytest.raises(ServiceError, match=r"Given up after 0\.5 seconds"):
        client.get("s")
    assert waits[0] < 0.05 < max(waits)
    for bad in ("ftp://x", "nothing", ""):
        with pytest.raises(rp.InputError, match="http or https"):
            Client(bad)


def test_an_answer_has_as_many_digits_as_the_request(http, name):
    rows = np.round(rows_of(20, 3), 6)
    rows[:, 0] = np.round(1 - rows[:, 1:].sum(axis=1), 6)
    answer = http.post(f"/streams/{name}/samples", json={"proba": rows.tolist()}).json()
    exact = replay([70, 20, 10], [rows]).correct_many(rows)
    assert {float(f"{x:.9g}") for row in answer["proba"] for x in row} == {x for row in answer["proba"] for x in row}
    np.testing.assert_allclose(answer["proba"], exact, rtol=5.1e-9, atol=0)
    again = http.post(f"/streams/{name}/samples", content=b'{"seq": 1, "proba": [[0.2, 0.3, 0.50]], "client": "a"}')
    assert again.json()["n"] == 21


@pytest.mark.parametrize("packed", [True, False])
def test_the_client_speaks_both_forms(server, name, packed):
    with Client(server.url) as client:
        if not packed:
            client._msgpack = None
        rows = rows_of(30, 3)
        answer = client.send(name, rows)
        stream = replay([70, 20, 10], [rows])
        np.testing.assert_array_equal(answer.proba, stream.correct_many(rows))
        assert client.send(name, rows.astype("f4")).proba.dtype == np.float32
        assert client.send(name, rows, correct=False).proba is None
        assert client.label(name, rows[:2], ["cat", "owl"]).n == 90
        with pytest.raises(ServiceError, match="sum to 1") as caught:
            client.send(name, [[1.0, 1.0, 1.0]])
        assert caught.value.status == 400


def test_batches_gather_and_send(server, name):
    answers = []
    with Client(server.url) as client, client.batches(name, rows=50, seconds=0.5, on_answer=answers.append) as batches:
        rows = rows_of(220, 3)
        for row in rows:
            batches.add(row)
        wait_for(lambda: batches.sent == 220)
    assert [a.n for a in answers][-1] == 220
    assert len(answers) <= 220 // 50 + 10
    np.testing.assert_array_equal(answers[-1].prior, replay([70, 20, 10], [rows]).prior)


def test_the_command_serves_and_stops(tmp_path):
    as_in_a_container = ("--host", "0.0.0.0", "--allow-host", "mix.example")
    with Process(tmp_path / "s.db", "--token", "secret-token", *as_in_a_container) as running:
        for host, status in (("mix.example", 200), ("127.0.0.1", 200), ("elsewhere.example", 421)):
            assert httpx.get(f"{running.url}/healthz", headers={"Host": host}).status_code == status
        with Client(running.url, token="secret-token") as client:
            client.put("s", [1, 1])
            assert client.send("s", [[0.2, 0.8]]).n == 1
        assert running.stop() == 0
    log = running.log.read_text()
    assert "secret-token" not in log
    assert "Traceback" not in log
    assert check(Path(tmp_path / "s.db")).problems == []


def test_held_out_rows_make_the_same_stream_as_a_pipeline(tmp_path):
    data = datasets.load("banking77")
    pipe = rp.pipeline(data.heldout_proba, data.heldout_y, counts=data.counts, classes=data.classes)
    counts, labels = dict(zip(data.classes, data.counts, strict=True)), [data.classes[y] for y in data.heldout_y]
    with Background(Settings(tmp_path / "s.db")) as running, Client(running.url) as client:
        client.put("given", counts, heldout=(data.heldout_proba, labels))
        client.put("saved", saved=pipe.to_bytes())
        inputs, saved = (client.send(name, data.pool_proba[:200]).prior for name in ("given", "saved"))
    np.testing.assert_allclose(inputs, saved, atol=1e-9)
    assert np.abs(inputs - pipe.source.prior).max() > 1e-4


@pytest.mark.parametrize("source", [[1, 2], {"1": 1, "2": 2}])
def test_classes_that_are_numbers_are_refused_with_what_to_do(http, source):
    message = error(http.put("/streams/numbers", json={"source": source, "classes": [1, 2]}), 400)
    assert message.endswith('must be a list of texts; got 1. Put numbers in quotes, as in ["1", "2"].')


@pytest.mark.parametrize("proba", [[], [1, 2], [[]], [None], ["ab"], [{}]])
def test_held_out_rows_that_are_no_rows_are_refused(http, proba):
    body = {"classes": ["a", "b"], "heldout": {"proba": proba, "y": ["a", "b"]}}
    message = error(http.put("/streams/none", json=body), 400)
    assert "must" in message


CLASSES = ["ant", "mole", "zebra"]
OTHER_ORDER = ["zebra", "ant", "mole"]


@pytest.fixture
def animals():
    rng = np.random.default_rng(0)
    y = rng.choice(3, 300, p=[0.7, 0.2, 0.1])
    logits = rng.normal(size=(300, 3))
    logits[np.arange(300), y] += 2
    rows = np.exp(2 * logits) * [0.7, 0.2, 0.1]
    rows /= rows.sum(axis=1, keepdims=True)
    return rows, np.array(CLASSES)[y]


@pytest.mark.parametrize("how", ["heldout", "heldout frame", "saved", "pipeline", "asked"])
def test_the_client_matches_rows_by_name(tmp_path, animals, how):
    pd = pytest.importorskip("pandas")
    rows, y = animals
    frame = pd.DataFrame(rows, columns=CLASSES)
    shuffled, pipe = frame[OTHER_ORDER], rp.pipeline(rows, y, classes=CLASSES)
    with Background(Settings(tmp_path / "s.db")) as running, Client(running.url) as client:
        for name in ("a", "b"):
            if how == "heldout frame":
                client.put(name, classes=CLASSES, heldout=(shuffled, pd.Series(y)))
            elif how == "pipeline":
                client.put(name, pipe)
            elif how == "saved":
                client.put(name, saved=pipe.to_bytes())
            else:
                client.put(name, classes=CLASSES, heldout=(rows, y))
        other = Client(running.url) if how == "asked" else client
        first, second = client.send("a", rows), other.send("b", shuffled)
        np.testing.assert_array_equal(first.prior, second.prior)
        assert list(second.proba.columns) == OTHER_ORDER
        np.testing.assert_array_equal(second.proba[CLASSES], first.proba)
        labels = ["zebra"] * 9
        np.testing.assert_array_equal(client.label("a", rows[:9], labels).prior,
                                      other.label("b", shuffled[:9], labels).prior)  # fmt: skip
        for stream, each, by in (("a", rows[9], client), ("b", shuffled.iloc[9], other)):
            with by.batches(stream, rows=4) as batches:
                batches.add(each)
        assert client.get("a")["prior"] == client.get("b")["prior"]
        with pytest.raises(rp.InputError, match=r"Client.send: `proba` must have the 3 classes of the source; got 3 "):
            other.send("b", shuffled.rename(columns={"ant": "bee"}))
        other.close()


def test_the_client_takes_counts_by_name(tmp_path, animals):
    pd = pytest.importorskip("pandas")
    rows, y = animals
    counts = pd.Series({"zebra": 100, "ant": 700, "mole": 200})
    with Background(Settings(tmp_path / "s.db")) as running, Client(running.url) as client:
        made = [
            client.put("series", counts, classes=CLASSES), client.put("dict", counts.to_dict(), classes=CLASSES),
            client.put("sorted", counts.sort_index()),
            client.put("array", np.array([7, 2, 1]), classes=np.array(CLASSES)),
            client.put("bytes", rp.pipeline(counts=counts[CLASSES]).to_bytes()),
        ]  # fmt: skip
        for answer in made:
            assert answer["classes"] == CLASSES
            np.testing.assert_allclose(answer["source"], [0.7, 0.2, 0.1])
        both = client.put("both", counts, heldout=(pd.DataFrame(rows, columns=CLASSES)[OTHER_ORDER], y))
        assert both["classes"] == OTHER_ORDER
        numbers = client.put("numbers", classes=[1, 2, 3], heldout=(rows, np.searchsorted(CLASSES, y) + 1))
        assert numbers["classes"] == ["1", "2", "3"]
        before = client.send("numbers", np.full((50, 3), 1 / 3)).prior
        after = client.label("numbers", np.full((50, 3), 1 / 3), [1] * 50).prior
        assert after[0] > before[0]  # the class that is called 1, and not column 1
        for name, inputs in (("own", counts), ("own dict", counts.to_dict())):
            answer = client.put(name, inputs)
            assert answer["classes"] == OTHER_ORDER
            np.testing.assert_allclose(answer["source"], [0.1, 0.7, 0.2])
        with pytest.raises(rp.InputError, match="sorted by name"):
            client.put("unsorted", counts, heldout=(rows, y))
        with pytest.raises(rp.InputError, match="A Pipeline or Stream is given as `source` or `saved`"):
            client.put("slip", [1, 1], pipeline=rp.pipeline(counts=[1, 1]))
        with pytest.raises(rp.InputError, match="`saved` must be given without source, classes and heldout"):
            client.put("twice", rp.pipeline(counts=[1, 1]), classes=["a", "b"])
        with pytest.raises(ServiceError, match=r"have 3 classes, so rows of 3 numbers .*; got 2 numbers"):
            client.send("series", [[0.5, 0.5]])


def test_the_client_says_soon_that_nothing_answers():
    begun = time.monotonic()
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ServiceError, match=rf"^Given up after 5 seconds\. {url} does not answer .*`reprior serve`"):
        Client(url, sleep=lambda seconds: time.sleep(min(seconds, 0.5))).get("s")
    assert time.monotonic() - begun < 30
