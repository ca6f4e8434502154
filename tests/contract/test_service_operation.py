"""Running the service: tokens with roles, options by environment and file, backup, logs, proxies, model servers."""

# ruff: noqa: E402
from __future__ import annotations

import json
import logging
import os
import re
import signal
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
httpx = pytest.importorskip("httpx")
from service_help import Process, replay, rows_of, wait_for
from test_service_servers import kserve

import reprior as rp
from reprior.client import Client
from reprior.service import recipes
from reprior.service.request_checks import allowed
from reprior.service.server import Background
from reprior.service.settings import Settings, Token, read_tokens
from reprior.service.upkeep import check

ROOT = Path(__file__).parents[2]
ROLES = [Token("admin", "ann", "admin-token"), Token("ingest", "model", "ingest-token"),
         Token("read", "page", "reading-token")]  # fmt: skip


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# who may do what


@pytest.mark.parametrize(("token", "allowed"), [
    ("reading-token", ["read"]), ("ingest-token", ["read", "ingest"]), ("admin-token", ["read", "ingest", "admin"]),
    ("wrong-token", []), (None, []),
])  # fmt: skip
def test_a_role_allows_what_it_says(tmp_path, token, allowed):
    with Background(Settings(tmp_path / "s.db", tokens=ROLES)) as running, httpx.Client(base_url=running.url) as http:
        http.put("/streams/s", json={"source": [1, 1]}, headers=bearer("admin-token")).raise_for_status()
        http.headers.update(bearer(token) if token else {})
        rows = {"proba": [[0.4, 0.6]]}
        asked = {
            "read": [http.get("/streams/s"), http.get("/metrics"), http.get("/streams")],
            "ingest": [http.post("/streams/s/samples", json=rows),
                       http.post("/streams/s/labels", json={**rows, "y": [1]}),
                       http.post("/events/cloudevents", json={"predictions": [[0.4, 0.6]]}, headers=kserve("s", "1"))],
            "admin": [http.put("/streams/t", json={"source": [1, 1]}),
                      http.request("DELETE", "/streams/s", json={"confirm": "s"})],
        }  # fmt: skip
        for role, answers in asked.items():
            for answer in answers:
                assert (answer.status_code < 300) == (role in allowed), (role, answer.text)
                assert answer.status_code in (200, 201, 401)


def test_reading_stays_closed_when_the_last_token_for_it_goes():
    tokens = [Token("admin", "ann", "admin-token"), Token("read", "page", "reading-token")]
    assert allowed(tokens, "read", "reading-token")
    assert not allowed(tokens[:1], "read", "reading-token")
    assert not allowed(tokens[:1], "read", "")
    assert allowed(tokens[:1], "read", "admin-token")


def test_a_wrong_token_is_logged_without_it(tmp_path, caplog):
    with Background(Settings(tmp_path / "s.db", tokens=ROLES)) as running:
        for _ in range(20):
            answer = httpx.put(f"{running.url}/streams/s", json={"source": [1, 1]}, headers=bearer("guessed-token"))
        assert "does not allow this" in answer.json()["error"]
    lines = [record.getMessage() for record in caplog.records if "wrong token" in record.getMessage()]
    assert len(lines) == 1
    assert "127.0.0.1" in lines[0]
    assert "guessed-token" not in caplog.text


def test_token_files_are_read_and_refused(tmp_path):
    file = tmp_path / "tokens"
    file.write_text("# who\nadmin ann secret-one\n\ningest shop secret-two\n")
    result = read_tokens(file, "admin", "--token-file")
    assert [(token.role, token.name) for token in result] == [("admin", "ann"), ("ingest", "shop")]
    assert "secret" not in repr(result)
    faults = {
        "admin ann": "lines of ROLE NAME TOKEN", "boss ann secret-one\nread b secret-two": "one of",
        "admin ann short\nread b secret-two": "at least 8", "": "at least one token",
    }  # fmt: skip
    for text, message in faults.items():
        file.write_text(text)
        with pytest.raises(ValueError, match=message):
            read_tokens(file, "admin", "--token-file")


def test_tokens_are_reloaded_without_a_restart(tmp_path):
    file = tmp_path / "tokens"
    file.write_text("admin ann first-token\n")
    with Process(tmp_path / "s.db", "--token-file", str(file), "--host", "0.0.0.0") as running:

        def reads(token):
            return httpx.get(f"{running.url}/streams", headers=bearer(token)).status_code == 200

        assert httpx.get(f"{running.url}/streams").status_code == 401  # a write token alone closes reading, too
        assert reads("first-token")
        file.write_text("nonsense\nnonsense")
        running.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "tokens not reloaded" in running.log.read_text())
        assert reads("first-token")
        file.write_text("admin ann second-token\nread bob third-token\n")
        running.process.send_signal(signal.SIGHUP)
        wait_for(lambda: reads("second-token"))
        assert reads("third-token")
        assert not reads("first-token")
    assert "tokens reloaded: ann (admin), bob (read)" in running.log.read_text()
    assert "second-token" not in running.log.read_text()


# options


def test_options_come_from_a_file_and_the_environment(tmp_path):
    (tmp_path / "serve.toml").write_text('max-body = 500\nlog-format = "json"\nmax-clients = 7\n')
    env = {"REPRIOR_CONFIG": str(tmp_path / "serve.toml"), "REPRIOR_MAX_BODY": "900"}
    with Process(tmp_path / "s.db", env=env) as running, httpx.Client(base_url=running.url) as http:
        http.put("/streams/s", json={"source": [1, 1]}).raise_for_status()
        big = http.post("/streams/s/samples", content=b" " * 1000)
        assert "at most 900 bytes" in big.json()["error"]  # the environment comes before the file
        http.request("DELETE", "/streams/s", json={"confirm": "s"})
    lines = [json.loads(line) for line in running.log.read_text().splitlines()]
    text = [(line["level"], line["message"]) for line in lines if line["logger"] == "reprior.service"]
    assert ("info", "stream 's' created") in text
    assert ("info", "stream 's' deleted") in text
    assert any(message.startswith("data for the stream 's' refused (too_large)") for _, message in text)


def test_a_bad_file_of_options_is_refused(tmp_path, refused):
    for text, message in (("max-boddy = 1", "must be one of"), ("x = ", "TOML"), ("max-body = 'many'", "max-body")):
        (tmp_path / "serve.toml").write_text(text)
        assert message in refused("serve", "--config", tmp_path / "serve.toml", "--db", tmp_path / "s.db")


# the file


def test_a_backup_of_a_served_file_is_restored(tmp_path, call):
    db, copy, blocks = tmp_path / "s.db", tmp_path / "copy.db", [rows_of(9, 2, k) for k in range(4)]
    with Background(Settings(db)) as running, Client(running.url) as client:
        client.put("s", [1, 1])
        for block in blocks[:2]:
            client.send("s", block)
        code, out, err = call("serve", "backup", "--db", db, copy)
        assert (code, out.startswith("copy.db is a sound copy.\n1 streams"), err) == (0, True, "")
        assert call("serve", "backup", "--db", db, copy)[0] == 1  # never over another file
        client.send("s", blocks[2])
        assert "one process" in call("serve", "restore", "--db", db, copy, "--replace")[2]
    assert copy.stat().st_mode & 0o077 == 0
    assert "--replace" in call("serve", "restore", "--db", db, copy)[2]
    assert call("serve", "restore", "--db", db, copy, "--replace")[0] == 0
    assert check(db).problems == []
    with Background(Settings(db)) as running, Client(running.url) as client:
        assert client.get("s")["prior"] == replay([1, 1], blocks[:2]).prior.tolist()
    (tmp_path / "text.db").write_text("hello" * 999)
    for file in ("text.db", "none.db"):
        assert call("serve", "restore", "--db", tmp_path / "new.db", tmp_path / file)[0] == 1
    assert not (tmp_path / "new.db").exists()


def test_a_copy_with_a_damaged_stream_is_made_and_reported(tmp_path, call):
    db, copy, restored = tmp_path / "s.db", tmp_path / "copy.db", tmp_path / "restored.db"
    with Background(Settings(db)) as running, Client(running.url) as client:
        client.put("s", [1, 1])
        client.send("s", rows_of(9, 2))
    with closing(sqlite3.connect(db)) as opened, opened:
        opened.execute("UPDATE states SET state = zeroblob(length(state))")
    for command in (("backup", "--db", db, copy), ("restore", "--db", restored, copy)):
        code, out, _ = call("serve", *command)
        assert (code, "cannot be read" in out) == (1, True)
    assert copy.exists()
    assert restored.exists()


def test_the_unit_starts_a_server_with_one_damaged_stream():
    unit = (ROOT / "deploy" / "reprior.service").read_text()
    assert re.search(r"^ExecStart=.*reprior serve --db", unit, re.M)
    assert not re.search(r"^ExecStartPre=.*check", unit, re.M)  # it exits with 1 for a stream that the server survives


def test_the_image_reads_brokers_and_holds_no_more_than_it_needs():
    assert "'/src[serve,brokers]'" in (ROOT / "deploy" / "Dockerfile").read_text()
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[1] == "*"
    assert {"!src", "!pyproject.toml", "!README.md", "!LICENSE"} <= set(ignored)


# proxies


def test_a_proxy_may_serve_it_under_a_path(tmp_path):
    settings = Settings(tmp_path / "s.db", hosts=("mix.example",), public_url="https://mix.example:8443/reprior")
    with Background(settings) as running, httpx.Client(base_url=running.url) as http:
        http.headers["Host"] = "mix.example"
        for root in ("", "/reprior"):  # whether the proxy takes the path off or not
            assert http.get(f"{root}/healthz").json()["ok"]
            assert http.get(f"{root}/static/page.js").status_code == 200
            assert 'src="static/page.js"' in http.get(f"{root}/").text
        body = {"source": [1, 1]}
        for headers, status in (
            ({"Origin": "https://mix.example:8443"}, 201),  # the proxy has left out the port of Host
            ({"Origin": "https://mix.example:8443", "Host": "mix.example:8443"}, 200),
            ({"Origin": "https://other.example", "Sec-Fetch-Site": "same-origin"}, 200),
            ({"Origin": "http://mix.example:3000", "Sec-Fetch-Site": "same-site"}, 403),
            ({"Origin": "https://other.example"}, 403),
        ):
            assert http.put("/reprior/streams/s", json=body, headers=headers).status_code == status, headers
        with http.stream("GET", "/events") as answer:
            assert answer.headers["x-accel-buffering"] == "no"


# streams


def test_a_fit_does_not_hold_up_other_requests(tmp_path, monkeypatch):
    threads, real = [], recipes.described

    def described(*args):
        threads.append(threading.current_thread().name)
        return real(*args)

    monkeypatch.setattr(recipes, "described", described)
    with Background(Settings(tmp_path / "s.db")) as running:
        assert httpx.put(f"{running.url}/streams/s", json={"source": [1, 1]}).status_code == 201
    assert threads[0].startswith("reprior-maker")


def test_services_of_one_name_in_two_namespaces_do_not_share_a_stream(tmp_path):
    body, url = {"predictions": [[0.2, 0.8]]}, "/events/cloudevents"
    for reference in (False, True):  # also after a restart
        with Background(Settings(tmp_path / "s.db")) as running, httpx.Client(base_url=running.url) as http:
            http.put("/streams/s", json={"source": [1, 1]})
            if not reference:  # an event that is refused claims nothing
                bad = kserve("s", "bad", **{"ce-namespace": "bank"})
                assert http.post(url, json={"predictions": [[0.4]]}, headers=bad).status_code == 400
            first = http.post(url, json=body, headers=kserve("s", f"a{reference}", **{"ce-namespace": "shop"}))
            assert first.status_code == 200
            other = http.post(url, json=body, headers=kserve("s", f"b{reference}", **{"ce-namespace": "bank"}))
            assert other.status_code == 409
            assert "Make a stream 's.bank'" in other.json()["error"]
    with Background(Settings(tmp_path / "s.db")) as running, httpx.Client(base_url=running.url) as http:
        http.put("/streams/s.bank", json={"source": [1, 1]})
        assert http.post(url, json=body, headers=kserve("s", "c", **{"ce-namespace": "bank"})).json()["n"] == 1
        assert http.get("/streams/s").json()["n"] == 2


def test_labels_follow_by_the_id_of_a_prediction(tmp_path):
    rows = rows_of(4, 2)
    stream = replay([1, 1], [rows])
    ids = ["p0", "p1", "p2", "p3"]
    with Background(Settings(tmp_path / "s.db")) as running, httpx.Client(base_url=running.url) as http:
        http.put("/streams/s", json={"source": [1, 1], "classes": ["a", "b"]})
        for bad, message in ((["p0"], "one for each of the 4 rows"), (["p"] * 4, "all be different"), ("p", "list of")):
            answer = http.post("/streams/s/samples", json={"proba": rows.tolist(), "ids": bad})
            assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.text
        assert http.post("/streams/s/samples", json={"proba": rows.tolist(), "ids": ids}).json()["n"] == 4
    with Background(Settings(tmp_path / "s.db")) as running, httpx.Client(base_url=running.url) as http:
        body = {"ids": ["p2", "p0"], "y": ["b", "a"], "client": "l", "seq": 1}
        response = http.post("/streams/s/labels", json=body).json()  # also after a restart
        stream.observe(rows[2], 1)
        stream.observe(rows[0], 0)
        assert response["prior"] == stream.prior.tolist()
        assert http.post("/streams/s/labels", json=body).json()["repeated"]
        for gone in ("p2", "never"):
            again = http.post("/streams/s/labels", json={"ids": ["p1", gone], "y": [0, 1]})
            assert again.status_code == 404
            assert repr(gone) in again.json()["error"]
        assert http.get("/streams/s").json()["labels"] == 2
        assert "either `proba` or `ids`" in http.post("/streams/s/labels", json={"y": [1]}).json()["error"]
        assert http.post("/streams/s/labels", json={"ids": ["p1"], "y": [1]}).status_code == 200
    assert check(tmp_path / "s.db").problems == []


def test_the_state_of_a_stream_is_exported(tmp_path):
    rows = rows_of(40, 2)
    with Background(Settings(tmp_path / "s.db")) as running, httpx.Client(base_url=running.url) as http:
        http.put("/streams/s", json={"source": [1, 1]})
        http.post("/streams/s/samples", json={"proba": rows.tolist()})
        data = http.get("/streams/s/state").content
        assert rp.Stream.from_bytes(data) == replay([1, 1], [rows])
        octets = {"Content-Type": "application/octet-stream"}
        assert http.put("/streams/copy", content=data, headers=octets).json()["n"] == 40


# the log


def test_the_log_holds_no_stack_trace(caplog):
    from reprior.service.errors import Json, Text

    try:
        raise ZeroDivisionError("a secret of /srv/app")
    except ZeroDivisionError:
        record = logging.getLogger("x").makeRecord("x", logging.ERROR, __file__, 1, "Exception in %s", ("it",),
                                                   __import__("sys").exc_info())  # fmt: skip
    text, answer = Text("%(levelname)s %(message)s").format(record), json.loads(Json().format(record))
    assert text.startswith("ERROR Exception in it ZeroDivisionError in test_the_log")
    assert answer["error"].startswith("ZeroDivisionError in test_the_log")
    for message in (text, json.dumps(answer)):
        assert "Traceback" not in message
        assert "/srv/app" not in message
        assert os.sep + "tests" not in message
