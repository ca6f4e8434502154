"""A new model version of a stream: the history stays, the estimate starts again; and a stream's state as bytes."""

from __future__ import annotations

import asyncio

import httpx
import numpy as np
import pytest
from service_help import replay, rows_of

import reprior as rp
from reprior.client import AsyncClient, Client, ServiceError
from reprior.service.pending import Pending
from reprior.service.server import Background
from reprior.service.settings import Settings
from reprior.service.upkeep import check


def pipe_of(seed: int, k: int = 3) -> rp.Pipeline:
    rng = np.random.default_rng(seed)
    rows = rows_of(300, k, seed)
    return rp.pipeline(rows, np.array([rng.choice(k, p=row) for row in rows]))


def shifted(seed: int, n: int) -> np.ndarray:
    rows = rows_of(n, 3, seed)
    return rows[np.argsort(-rows[:, 0])][: n // 3]


def test_history_stays_and_the_estimate_starts_again(tmp_path):
    db, old, new = tmp_path / "s.db", pipe_of(1), pipe_of(2)
    with Background(Settings(db, point_seconds=0.05)) as running, Client(running.url, name="c") as client:
        client.put("s", old)
        for seed in range(5):
            client.send("s", rows_of(40, 3, seed))
        assert client.renew("s", new, by="Ann") == 2
        about = client.get("s")
        assert (about["n"], about["version"]) == (0, 2)
        assert client.renew("s", new) == 2  # a request that is repeated begins one version
        rows = rows_of(30, 3, 9)
        answer = client.send("s", rows)
        stream = new.stream()
        stream.learn_many(rows)
        assert answer.n == 30
        assert answer.prior.tolist() == stream.prior.tolist()
        assert answer.gap is None  # the clients' numbers go on
        since = {"from": about["now"] - 30, "to": about["now"] + 30, "points": 2000}  # 30 ms each
        past = httpx.get(f"{running.url}/streams/s/history", params=since).json()
        assert 200 in past["n"]
        assert past["n"][-1] == 30
        entries = httpx.get(f"{running.url}/audit").json()["entries"]
        assert [(entry["action"], entry["by"], entry["version"]) for entry in entries] == [("renew", "Ann", 2)]
    assert check(db).problems == []
    with Background(Settings(db)) as running, Client(running.url, name="c") as client:
        again = client.get("s")
        assert (again["n"], again["version"], again["prior"]) == (30, 2, answer.prior.tolist())
        versions = httpx.get(f"{running.url}/streams/s/versions").json()["versions"]
        assert [entry["version"] for entry in versions] == [2, 1]
        assert versions[0]["since"] > versions[1]["since"]
        assert versions[0]["since"] == again["version_since"]


def test_an_open_alarm_ends_with_the_version_that_raised_it(tmp_path):
    with Background(Settings(tmp_path / "s.db")) as running, Client(running.url) as client:
        client.put("s", pipe_of(1))
        for seed in range(20):
            client.send("s", shifted(seed, 300))
        assert client.get("s")["alarm"]["open"] is not None
        client.renew("s", pipe_of(2))
        assert client.get("s")["alarm"]["open"] is None
        assert client.get("s")["alarm"]["watched"]
        assert {alarm["kind"] for alarm in client.alarms("s")} >= {"shift"}
        for alarm in client.alarms("s"):
            assert alarm["resolved"] is not None
            assert alarm["acknowledged"] is None


def test_another_model_must_have_the_same_classes(tmp_path):
    with Background(Settings(tmp_path / "s.db")) as running, Client(running.url) as client:
        client.put("s", pipe_of(1))
        client.send("s", rows_of(10, 3))
        with pytest.raises(ServiceError, match="must have the same classes in the same order"):
            client.renew("s", pipe_of(2, k=4))
        with pytest.raises(ServiceError, match="hold a stream without samples"):
            client.renew("s", client.state("s"))
        with pytest.raises(ServiceError, match="There is no stream"):
            client.renew("t", pipe_of(2))
        assert (client.get("s")["n"], client.get("s")["version"]) == (10, 1)


def test_labels_of_old_predictions_do_not_reach_a_new_version(tmp_path):
    with Background(Settings(tmp_path / "s.db")) as running, httpx.Client(base_url=running.url) as http:
        with Client(running.url) as client:
            client.put("s", pipe_of(1))
            post = {"proba": rows_of(2, 3).tolist(), "ids": ["a", "b"]}
            http.post("/streams/s/samples", json=post).raise_for_status()
            client.renew("s", pipe_of(2))
        assert http.post("/streams/s/labels", json={"ids": ["a"], "y": [0]}).status_code == 404


def test_posts_during_a_renewal_count_for_one_version(tmp_path):
    """Each post is learned by the old version or by the new one, and what is stored is what was answered."""
    db = tmp_path / "s.db"

    async def main(url: str) -> list[int]:
        async with AsyncClient(url) as maker:
            await maker.put("s", pipe_of(1))

            async def post(who: int) -> list[int]:
                async with AsyncClient(url, name=f"c{who}") as client:
                    return [(await client.send("s", rows_of(3, 3, who))).n for _ in range(30)]

            posts = [asyncio.create_task(post(who)) for who in range(4)]
            for seed in (2, 3):
                await asyncio.sleep(0.05)
                await maker.renew("s", pipe_of(seed))
            return [n for each in await asyncio.gather(*posts) for n in each]

    with Background(Settings(db)) as running:
        counts = asyncio.run(main(running.url))
        assert len(counts) == 120
        last = httpx.get(f"{running.url}/streams/s").json()
        assert last["version"] == 3
        assert last["n"] <= 360
    assert check(db).problems == []


def test_the_state_of_a_stream_can_be_taken_elsewhere(tmp_path):
    blocks = [rows_of(20, 3, seed) for seed in range(3)]
    with Background(Settings(tmp_path / "a.db")) as running, Client(running.url) as client:
        client.put("s", [70, 20, 10])
        for block in blocks[:2]:
            client.send("s", block)
        data = client.state("s")
    stream = rp.Stream.from_bytes(data)
    assert stream == replay([70, 20, 10], blocks[:2])
    with Background(Settings(tmp_path / "b.db")) as running, Client(running.url) as client:
        client.put("moved", saved=data)
        assert client.send("moved", blocks[2]).n == 60
        assert client.get("moved")["prior"] == replay([70, 20, 10], blocks).prior.tolist()


def test_a_commit_that_failed_does_not_carry_the_old_version_into_the_new():
    failed, later = Pending(), Pending()
    failed.put("row", "a", 1, "a", 0.0, b"")
    failed.put("test", None, 1, b"old")
    failed.put("offset", "c", 1, "c", 7, 7, 0.0, "[]")
    later.begin_version(2, 1.0, b"new")
    later.put("row", "b", 1, "b", 1.0, b"")
    both = failed.followed_by(later)
    assert set(both.rows) == {("offset", "c"), ("row", "b")}
    assert both.versions == [(2, 1.0, b"new")]
