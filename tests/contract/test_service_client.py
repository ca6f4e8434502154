"""The clients: batches in the request path of a model server, asyncio, and bodies of any size."""

from __future__ import annotations

import asyncio
import logging
import os
import time

import numpy as np
import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
from service_help import Process, free_port, replay, rows_of, wait_for

import reprior as rp
from reprior.client import AsyncClient, Client, ServiceError
from reprior.service.server import Background
from reprior.service.settings import Limits, Settings


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Background(Settings(tmp_path_factory.mktemp("client") / "s.db")) as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server.url) as made:
        yield made


@pytest.fixture
def name(client, request):
    client.put(request.node.name, [70, 20, 10], classes=["cat", "dog", "owl"])
    return request.node.name


def test_batches_outlast_an_outage_and_count_each_row_once(tmp_path, caplog):
    down = Process(tmp_path / "s.db")
    with down, Client(down.url, patience=0.1) as client:
        client.put("s", [1, 1, 1])
        batches = client.batches("s", rows=10, seconds=0.05)
        batches.add(rows_of(10, 3))
        assert batches.flush()
        down.kill()
        with caplog.at_level(logging.INFO, "reprior.client"):
            for k in range(50):
                begun = time.monotonic()
                assert batches.add(rows_of(1, 3, k)) == 1
                assert time.monotonic() - begun < 1  # it does not wait for the service
            assert not batches.flush(0.5)
            assert (batches.sent, batches.dropped, batches.waiting) == (10, 0, 50)
            wait_for(lambda: batches.error)
            assert "does not answer" in batches.error
            down.start()
            assert batches.flush(60)
        assert "rows wait" in caplog.text
        assert "takes rows again" in caplog.text
        assert (batches.sent, batches.dropped, batches.error) == (60, 0, None)
        assert client.get("s")["n"] == 60
        assert batches.close()


@pytest.mark.parametrize("bad", [[np.nan, 0.5, 0.5], [-0.1, 0.6, 0.5], [1.0, 1.0, 1.0], [0.0, 0.0, 0.0]])
def test_a_bad_row_costs_itself_alone(client, name, bad):
    dropped = []
    rows = rows_of(200, 3)
    with client.batches(name, rows=500, seconds=60, on_drop=lambda n, why: dropped.append((n, why))) as batches:
        batches.add(np.insert(rows, 100, bad, axis=0))
        assert batches.flush()
        assert batches.add([bad]) == 0  # the stream is known now
        assert batches.add(rows_of(1, 3, 1)[0]) == 1
        assert batches.flush()
        assert (batches.sent, batches.dropped) == (201, 2)
    assert [n for n, _ in dropped] == [1, 1]
    assert "`proba` must" in dropped[-1][1]
    assert client.get(name)["n"] == 201


NO_ROWS = ([0.5, 0.5], np.full((3, 4), 0.25), "text", None, [[1.0], [0.5, 0.5]], object(), {"a": 1})


@pytest.mark.parametrize("bad", NO_ROWS)
def test_what_is_no_row_of_the_stream_ends_nothing(client, name, bad):
    with client.batches(name, rows=4, seconds=0.01) as batches:
        batches.add(bad)
        for _ in range(2):
            batches.add(rows_of(4, 3))
            assert batches.flush()
            batches.add(bad)
        assert batches.flush()
    assert batches.sent == 8
    assert batches.dropped >= 3
    with client.batches(name, strict=True) as strict:
        strict.add(rows_of(1, 3))
        strict.flush()
        with pytest.raises(rp.InputError, match=r"Batches\.add"):
            strict.add(bad)


def test_the_oldest_rows_go_when_too_many_wait(caplog):
    dropped = []
    client = Client(f"http://127.0.0.1:{free_port()}")
    batches = client.batches("s", rows=1, max_bytes=10_000, on_drop=lambda n, why: dropped.append(n))
    with caplog.at_level(logging.WARNING, "reprior.client"):
        for k in range(1000):
            assert batches.add(np.array([k, 1000 - k]) / 1000) == 1
    assert sum(dropped) == batches.dropped > 900
    assert batches.waiting + batches.dropped == 1000
    assert sum(held.size for held in batches._held) <= 10_000
    assert batches._held[-1].rows[0, 0] == 0.999  # the newest are kept
    assert sum("dropped" in line for line in caplog.messages) == 1  # and not one line per row
    assert not batches.close(0.1)
    assert (batches.sent, batches.dropped) == (0, 1000)
    assert batches.add([0.5, 0.5]) == 0


def test_many_rows_at_once_wait_in_parts_that_fit():
    batches = Client(f"http://127.0.0.1:{free_port()}").batches("s", rows=256, max_bytes=10_000)
    batches.add(rows_of(200, 10))  # 16,000 bytes
    assert 0 < batches.waiting < 200
    assert sum(held.size for held in batches._held) <= 10_000
    assert not batches.close(0.1)


def test_batches_survive_a_stream_that_is_deleted_and_made_again(client, name):
    batches = client.batches(name, rows=5, seconds=0.01)
    batches.add(rows_of(5, 3))
    assert batches.flush()
    client.delete(name)
    batches.add(rows_of(5, 3))
    wait_for(lambda: batches.error)
    assert "no stream" in batches.error
    client.put(name, [1, 1, 1])
    assert batches.flush()
    assert (client.get(name)["n"], batches.sent, batches.dropped) == (5, 10, 0)
    client.delete(name)
    client.put(name, [1, 1])
    batches.add(rows_of(5, 3))
    batches.flush()
    assert (batches.sent, batches.dropped) == (10, 5)  # two classes now
    batches.add(rows_of(5, 2))
    assert batches.close()
    assert client.get(name)["n"] == 5


def test_callbacks_may_fail(client, name, caplog):
    def fails(*_):
        raise KeyError("mine")

    with client.batches(name, rows=1, on_answer=fails, on_drop=fails) as batches:
        for _ in range(3):
            assert batches.add([0.2, 0.3, 0.5]) == 1
            batches.add([np.nan, 0.0, 0.0])
        assert batches.flush()
        assert (batches.sent, batches.dropped) == (3, 3)
    assert caplog.text.count("a callback of Batches failed") == 1  # and not a stack trace for each row


def test_a_forked_child_has_batches_of_its_own(client, name):
    with client.batches(name, rows=1) as batches:
        batches.add([0.2, 0.3, 0.5])
        assert batches.flush()
        child = os.fork()
        if child == 0:
            batches.add([0.2, 0.3, 0.5])
            os._exit(0 if batches.flush() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        batches.add([0.2, 0.3, 0.5])
        assert batches.flush()
    assert client.get(name)["n"] == 3


def test_rows_with_names_are_matched_in_the_background(client, name):
    pd = pytest.importorskip("pandas")
    rows = rows_of(6, 3)
    frame = pd.DataFrame(rows, columns=["cat", "dog", "owl"])[["owl", "cat", "dog"]]
    with client.batches(name, rows=2) as batches:
        batches.add(frame[:3])
        batches.add(frame.iloc[3])
        batches.add(frame.iloc[4].to_dict())
        batches.add(rows[5])
        assert batches.flush()
    expected = replay([70, 20, 10], [rows]).prior
    np.testing.assert_allclose(client.get(name)["prior"], expected, atol=1e-12)


def test_logits_are_no_probabilities_and_are_sent(client):
    logits = np.log(rows_of(300, 3) + 1e-6)
    pipe = rp.pipeline(logits, np.argmax(logits, axis=1), logits=True)
    client.put("logits", pipe)
    with client.batches("logits") as batches:
        for part in np.array_split(logits, 3):
            batches.add(part)
            assert batches.flush()
    assert (batches.sent, batches.dropped) == (300, 0)


def test_the_async_client_makes_every_call(server):
    rows = rows_of(30, 3)

    async def main():
        async with AsyncClient(server.url) as client:
            await client.put("async", [70, 20, 10], classes=["cat", "dog", "owl"])
            response = await asyncio.gather(*(client.send("async", block) for block in np.split(rows, 5)))
            assert [answer.n for answer in response] == [6, 12, 18, 24, 30]
            np.testing.assert_array_equal(response[-1].prior, replay([70, 20, 10], np.split(rows, 5)).prior)
            assert (await client.label("async", rows[:1], ["cat"])).n == 30
            async with client.batches("async", rows=7) as batches:
                batches.add(rows)
                assert await batches.aflush()
            assert (await client.get("async"))["n"] == 60
            assert await client.alarms("async") == []
            with pytest.raises(ServiceError, match="no open alarm") as caught:
                await client.acknowledge("async", 3, by="Ann")
            assert caught.value.status == 404
            await client.delete("async")
            with pytest.raises(ServiceError, match="no stream"):
                await client.get("async")

    asyncio.run(main())


def test_the_async_client_waits_out_an_outage_and_holds_up_nobody(tmp_path):
    async def main():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        with Process(tmp_path / "s.db") as down:
            async with AsyncClient(down.url) as client:
                await client.put("s", [1, 1])
                down.kill()
                counting = asyncio.create_task(tick())
                waiting = asyncio.create_task(client.send("s", [[0.5, 0.5]]))
                await asyncio.sleep(0.5)
                assert not waiting.done()
                assert ticks > 10
                await asyncio.to_thread(down.start)
                assert (await waiting).n == 1
                counting.cancel()

    asyncio.run(main())


@pytest.mark.parametrize("packed", [True, False])
def test_rows_too_many_for_one_body_are_sent_in_several(tmp_path, packed):
    rows, y = rows_of(500, 3), ["cat", "dog"] * 250
    small = Settings(tmp_path / "s.db", limits=Limits(body=4_000))
    with Background(small) as running, Client(running.url) as client:
        if not packed:
            client._msgpack = None
        client.put("s", [70, 20, 10], classes=["cat", "dog", "owl"])
        answer = client.send("s", rows)  # the service says 413, and the client halves
        assert (answer.n, answer.proba.shape) == (500, (500, 3))
        assert client.label("s", rows, y).n == 500
        posts = client.seqs["s"]
        client.max_body = 3_000
        assert client.send("s", rows, correct=False).n == 1000
        assert client.seqs["s"] - posts <= (8 if packed else 30)
        with client.batches("s", rows=500) as batches:
            batches.add(rows)
        assert (batches.sent, batches.dropped) == (500, 0)
        assert client.get("s")["n"] == 1500


def test_a_stream_without_a_name_is_refused(client):
    with pytest.raises(rp.InputError, match="must be the name of a stream; got an empty text"):
        client.get("")


def test_labels_follow_by_prediction_id(tmp_path):
    rows = rows_of(600, 3)
    ids = [f"p{k}" for k in range(600)]
    with (Background(Settings(tmp_path / "s.db", limits=Limits(body=4_000))) as running,
          Client(running.url) as client):  # fmt: skip
        client.put("s", [1, 1, 1], classes=["cat", "dog", "owl"])
        assert client.send("s", rows, ids=ids).n == 600  # in several parts, each with its own ids
        stream = replay([1, 1, 1], [rows])
        assert client.label("s", y=["owl", "cat"], ids=["p599", "p7"]).n == 600
        stream.observe(rows[599], 2)
        stream.observe(rows[7], 0)
        assert client.get("s")["prior"] == stream.prior.tolist()
        assert client.label("s", y=["dog"] * 500, ids=ids[50:550]).proba is None
        with pytest.raises(ServiceError, match="p7"):
            client.label("s", y=["owl"], ids=["p7"])
        with pytest.raises(rp.InputError, match="or `ids`; got both"):
            client.label("s", rows[:1], ["owl"], ids=["p1"])
        with pytest.raises(rp.InputError, match="or `ids`; got neither"):
            client.label("s", y=["owl"])


def test_held_out_rows_travel_as_raw_numbers(tmp_path):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 20, 2000)
    rows = rng.dirichlet(np.full(20, 0.5), 2000) * 0.5
    rows[np.arange(2000), y] += 0.5
    fits = Settings(tmp_path / "s.db", limits=Limits(body=400_000))  # as JSON they would need 800,000
    with Background(fits) as running, Client(running.url) as client:
        packed = client.put("packed", heldout=(rows, y))
        single = client.put("single", heldout=(rows.astype("f4"), y))
        np.testing.assert_allclose(packed["source"], single["source"])
        client._msgpack = None
        with pytest.raises(ServiceError, match="at most 400000 bytes"):
            client.put("lists", heldout=(rows, y))


def test_a_refused_post_leaves_no_gap(client, name):
    for _ in range(150):
        with pytest.raises(ServiceError, match="sum to 1"):
            client.send(name, [[1.0, 1.0, 1.0]])
    answer = client.send(name, [[0.2, 0.3, 0.5]])
    assert (answer.n, answer.gap) == (1, None)
