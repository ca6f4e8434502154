"""Intake from real brokers, with a server that is killed in between: each message counts once, in its order."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import time

import msgpack
import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
from service_help import ALL, WHY, Process, free_port, replay, rows_of, wait_for

import reprior as rp
from reprior.client import Client
from reprior.service.intake import PACKAGES, check_address, check_package
from reprior.service.upkeep import check

SOURCE = [3, 2, 1]
BLOCKS = [rows_of(4, 3, seed) for seed in range(200)]


@pytest.mark.parametrize(("url", "message"), [
    ("ftp://x/y", "start with redis://"), ("redis://localhost", "be like redis"), ("kafka:///topic", "be like redis"),
])  # fmt: skip
def test_a_bad_address_is_refused_without_its_password(url, message):
    with pytest.raises(rp.InputError, match=message) as caught:
        check_address(url.replace("://", "://user:hidden@") if "@" not in url and "localhost" in url else url)
    assert "hidden" not in str(caught.value)


def test_an_address_is_read():
    result = check_address("redis://u:p@h:7/my%20key?stream=s&db=2")
    assert (result.host, result.port, result.topic, result.stream, result.password) == ("h", 7, "my key", "s", "p")
    assert check_address("nats://h/scores").stream == "scores"
    assert check_address("kafka://h/t").port == 9092


def test_a_broker_without_its_package_is_refused_at_the_start(monkeypatch):
    monkeypatch.setitem(PACKAGES, "kafka", ("no_such_module", "confluent-kafka"))
    with pytest.raises(rp.InputError, match=r"got kafka:// without it\. Run `pip install confluent-kafka`\."):
        check_package(check_address("kafka://h/t"))


def message(k: int) -> bytes:
    body = {"proba": BLOCKS[k].tolist()}
    if k % 2:
        return msgpack.packb({"proba": BLOCKS[k].astype("<f8").tobytes(), "dtype": "f8"})
    return json.dumps(body).encode()


@pytest.fixture
def broker(tmp_path):
    started = []

    def start(*line: str, port: int) -> None:
        if not ALL:
            pytest.skip(WHY)
        if not shutil.which(line[0]):
            pytest.skip(f"{line[0]} is not installed")
        with (tmp_path / "broker.log").open("wb") as log:
            started.append(subprocess.Popen(line, cwd=tmp_path, stdout=log, stderr=log))

        def listens():
            import socket

            with socket.socket() as made:
                return made.connect_ex(("127.0.0.1", port)) == 0

        wait_for(listens)

    yield start
    for process in started:
        process.terminate()
        process.wait(60)


def fed(tmp_path, url: str, send) -> None:
    """Send half, kill the server, send the rest, start it again, and compare with a replay."""
    server = Process(tmp_path / "s.db", "--intake", url)
    with server, Client(server.url) as client:
        client.put("s", SOURCE)
        send(range(100))
        wait_for(lambda: client.get("s")["n"] >= 40)
        server.kill()
        send(range(100, 150))
        server.start()
        wait_for(lambda: client.get("s")["n"] >= 600)
        send([-1])  # nothing that can be learned
        send(range(150, 200))
        wait_for(lambda: client.get("s")["n"] >= 800)
        time.sleep(0.5)
        answer = client.get("s")
    assert answer["n"] == 800
    np.testing.assert_array_equal(answer["prior"], replay(SOURCE, BLOCKS).prior)
    assert check(server.db).problems == []
    assert "Traceback" not in server.log.read_text()


def body_of(k: int) -> bytes:
    return b"{nonsense" if k < 0 else message(k)


def test_redis_streams(tmp_path, broker):
    port = free_port()
    broker("redis-server", "--port", str(port), "--save", "", "--bind", "127.0.0.1", port=port)
    import redis

    with redis.Redis(port=port) as client:
        fed(tmp_path, f"redis://127.0.0.1:{port}/scores?stream=s",
            lambda ks: [client.xadd("scores", {"body": body_of(k)}) for k in ks])  # fmt: skip


def test_nats_jetstream(tmp_path, broker):
    port = free_port()
    broker("nats-server", "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(tmp_path / "nats"), port=port)
    import nats

    def send(ks):
        async def main():
            client = await nats.connect(f"nats://127.0.0.1:{port}")
            jet = client.jetstream()
            await jet.add_stream(name="scores", subjects=["scores.*"])
            for k in ks:
                await jet.publish("scores.a", body_of(k))
            await client.close()

        asyncio.run(main())

    fed(tmp_path, f"nats://127.0.0.1:{port}/scores?stream=s", send)


def test_a_jetstream_stream_made_again_is_read_from_its_start(tmp_path, broker):
    port = free_port()
    broker("nats-server", "-js", "-a", "127.0.0.1", "-p", str(port), "-sd", str(tmp_path / "nats"), port=port)
    import nats

    def send(ks):
        async def main():
            client = await nats.connect(f"nats://127.0.0.1:{port}")
            jet = client.jetstream()
            if ks[0]:
                await jet.delete_stream("scores")
            await jet.add_stream(name="scores", subjects=["scores.*"])
            for k in ks:
                await jet.publish("scores.a", body_of(k))
            await client.close()

        asyncio.run(main())

    send(range(50))
    with (
        Process(tmp_path / "s.db", "--intake", f"nats://127.0.0.1:{port}/scores?stream=s") as server,
        Client(server.url) as client,
    ):
        client.put("s", SOURCE)
        wait_for(lambda: client.get("s")["n"] == 200)
        send(range(50, 90))
        wait_for(lambda: client.get("s")["n"] == 360)
        np.testing.assert_array_equal(client.get("s")["prior"], replay(SOURCE, BLOCKS[:90]).prior)


def test_kafka_mock_broker(tmp_path):
    if not ALL:
        pytest.skip(WHY)
    kafka = pytest.importorskip("confluent_kafka")
    producer = kafka.Producer({"bootstrap.servers": "x", "test.mock.num.brokers": 1, "log_level": 0})
    reference = next(iter(producer.list_topics("scores", timeout=60).brokers.values()))
    producer.produce("scores", message(0), partition=0)
    producer.flush(60)

    def send(ks):
        for k in ks:
            if k != 0:
                producer.produce("scores", body_of(k), partition=0)
        producer.flush(60)

    fed(tmp_path, f"kafka://{reference.host}:{reference.port}/scores?stream=s", send)


def test_mqtt(tmp_path, broker):
    """Messages carry client and seq here: that is what makes a redelivered one count once."""
    port = free_port()
    (tmp_path / "mosquitto.conf").write_text(
        f"listener {port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\nmax_inflight_messages 20\n"
    )
    broker("mosquitto", "-c", str(tmp_path / "mosquitto.conf"), port=port)
    import paho.mqtt.client as mqtt

    client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
    client.connect("127.0.0.1", port)
    client.loop_start()

    def send(ks):
        for k in ks:
            body = (
                b"{nonsense" if k < 0 else json.dumps({"proba": BLOCKS[k].tolist(), "client": "m", "seq": k}).encode()
            )
            client.publish("scores", body, qos=1).wait_for_publish(60)

    server = Process(tmp_path / "s.db", "--intake", f"mqtt://127.0.0.1:{port}/scores?stream=s")
    with server, Client(server.url) as http:
        http.put("s", SOURCE)

        def probe():
            send([0])
            time.sleep(0.3)
            return http.get("s")["n"] >= 4

        wait_for(probe)  # until it has subscribed
        send(range(1, 100))
        wait_for(lambda: http.get("s")["n"] >= 40)
        server.kill()
        send(range(100, 150))
        server.start()
        wait_for(lambda: http.get("s")["n"] >= 600)  # new messages might overtake the backlog
        send([-1])
        send(range(150, 200))
        wait_for(lambda: http.get("s")["n"] >= 800)
        time.sleep(0.5)
        answer = http.get("s")
    client.disconnect()
    client.loop_stop()
    assert answer["n"] == 800
    np.testing.assert_array_equal(answer["prior"], replay(SOURCE, BLOCKS).prior)
