"""Webhooks: addresses are checked, every message arrives or is shown as undelivered, and receivers can verify it."""

# ruff: noqa: E402
from __future__ import annotations

import base64
import ipaddress
import os
import subprocess
import sys

import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
httpx = pytest.importorskip("httpx")
from service_help import Sink, outputs, wait_for

import reprior as rp
from reprior.client import Client
from reprior.service import outgoing
from reprior.service.outgoing import check_target, forbidden
from reprior.service.server import Background
from reprior.service.settings import Settings

SECRET = "whsec_" + base64.b64encode(bytes(range(32))).decode()
ALARM = {"exact": True, "run_length": 100.0}


@pytest.fixture
def sink():
    made = Sink()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("file:///etc/passwd", "be an http or https URL"), ("ftp://example.org/x", "be an http or https URL"),
        ("http:///x", "be an http or https URL"), ("alarms", "be an http or https URL"),
        ("http://example.org:99999/", "port between 1 and 65535"), ("http://example.org:port/", "port between"),
        ("http://example.org/ünder", "Write '/%C3%BCnder'"), ("http://example.org/a b", "printable ASCII"),
        ("http://me:word@example.org/", "hold no user name"), ("http://10.1.2.3/hook", "--allow-private-webhook"),
        ("http://[::1]:8080/", "--allow-private-webhook"), ("http://169.254.169.254/latest", "link-local"),
        ("http://[fe80::1]/", "link-local"), ("http://[::ffff:169.254.169.254]/", "link-local"),
        ("http://0.0.0.0/", "no address of a server"),
    ],
)  # fmt: skip
def test_an_address_is_checked_before_the_server_starts(tmp_path, url, sentence):
    with pytest.raises(rp.InputError, match="--webhook") as caught:
        Settings(tmp_path / "s.db", webhook=url)
    assert sentence in str(caught.value)
    assert "word" not in str(caught.value)


def test_the_command_refuses_a_webhook_that_is_a_file(tmp_path):
    line = [sys.executable, "-c", "from reprior.cli import main; main()", "serve", "--db", str(tmp_path / "s.db")]
    ended = subprocess.run([*line, "--webhook", "file:///etc/passwd"], capture_output=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert b"http or https" in ended.stderr
    env = {**os.environ, "REPRIOR_WEBHOOK_SECRET": "short"}
    ended = subprocess.run(line, capture_output=True, timeout=60, check=False, env=env)
    assert ended.returncode == 1
    assert b"base64 of 24 to 64 bytes" in ended.stderr


@pytest.mark.parametrize(
    ("address", "open_network", "private_network"),
    [
        ("93.184.216.34", None, None), ("2606:2800:220:1::1", None, None), ("::ffff:93.184.216.34", None, None),
        ("127.0.0.1", "private", None), ("::1", "private", None), ("192.168.1.1", "private", None),
        ("100.64.0.1", "private", None), ("fd00:ec2::254", "private", None), ("::ffff:10.0.0.1", "private", None),
        ("2002:0a00:0001::1", "private", None), ("64:ff9b::a00:1", "private", None),
        ("169.254.169.254", "link-local", "link-local"), ("64:ff9b::a9fe:a9fe", "link-local", "link-local"),
        ("2002:a9fe:a9fe::1", "link-local", "link-local"),
        ("224.0.0.1", "no address of a server", "no address of a server"),
    ],
)  # fmt: skip
def test_addresses_inside_addresses_are_seen(address, open_network, private_network):
    assert forbidden(ipaddress.ip_address(address), private=False) == open_network
    assert forbidden(ipaddress.ip_address(address), private=True) == private_network


def test_a_name_is_checked_when_it_is_connected_to(sink):
    """`localhost` may mean anything when the server starts; what counts is the address at the time of the post."""
    url = sink.url.replace("127.0.0.1", "localhost")
    assert outgoing.post(check_target(url, "--webhook", private=False), b"{}", {}) == "the address is private"
    assert sink.got == []
    assert outgoing.post(check_target(url, "--webhook", private=True), b"{}", {}) is None
    assert sink.got[0][0]["Host"].startswith("localhost:")


def test_a_refused_address_is_seen_in_health(tmp_path, sink, monkeypatch, caplog):
    monkeypatch.setattr(outgoing, "FIRST_PAUSE", 0.01)
    settings = Settings(tmp_path / "s.db", webhook=sink.url.replace("127.0.0.1", "localhost"))
    with Background(settings) as running, Client(running.url) as client:
        client.put("s", [1, 1], alarm=ALARM)
        client.send("s", outputs(0.99, 500))
        wait_for(lambda: "the address is private" in caplog.text)
        assert httpx.get(f"{running.url}/healthz").json()["undelivered"] == 1
    assert sink.got == []


def test_the_client_of_the_convention_verifies_the_signature(tmp_path, sink):
    receiver = pytest.importorskip("standardwebhooks")
    settings = Settings(tmp_path / "s.db", webhook=sink.url, webhook_private=True, webhook_secret=SECRET)
    with Background(settings) as running, Client(running.url) as client:
        client.put("s", [1, 1], classes=["cät", "dog"], alarm=ALARM)
        client.send("s", outputs(0.99, 500))
        wait_for(lambda: sink.got)
    headers, body = sink.got[0]
    answer = receiver.Webhook(SECRET).verify(body, headers)
    assert answer["type"] == "alarm.raised"
    with pytest.raises(receiver.WebhookVerificationError):
        receiver.Webhook("whsec_" + base64.b64encode(bytes(32)).decode()).verify(body, headers)
    with pytest.raises(receiver.WebhookVerificationError):
        receiver.Webhook(SECRET).verify(body.replace(b"dog", b"dig"), headers)


def test_numbers_are_not_used_twice(tmp_path, sink):
    """A receiver takes a message whose id it knows for a repetition."""
    visited = set()
    for _ in range(2):
        with Background(Settings(tmp_path / "s.db", webhook=sink.url, webhook_private=True)) as running:
            with Client(running.url) as client:
                client.put("s", [1, 1], alarm=ALARM)
                client.send("s", outputs(0.99, 500))
                visited.add(client.alarms("s")[0]["id"])
                client.delete("s")  # before or after it was sent: it must arrive
            wait_for(lambda: len({got[0]["webhook-id"] for got in sink.got}) == 2 * len(visited))  # raised and resolved
    assert len(visited) == 2
