"""Samples in the file that are later than the state of their stream are learned again after a crash, bit for bit."""

from __future__ import annotations

import asyncio
import sqlite3

import numpy as np
import pytest

import reprior as rp
from reprior.service import commits
from reprior.service.definition import encoded, state_bytes
from reprior.service.hub import Hub
from reprior.service.posts import Post
from reprior.service.settings import Settings
from reprior.service.store import DROP_COMMITS, Store
from reprior.service.upkeep import backup, check

K = 5


def rows_of(n, seed):
    return np.random.default_rng(seed).dirichlet(np.full(K, 0.3), n)


def heldout(seed=0):
    proba = rows_of(200, seed)
    return proba, np.array([np.random.default_rng(k).choice(K, p=row) for k, row in enumerate(proba)])


def recipe(number=0):
    pipe = rp.pipeline(*heldout(number), classes=list("abcde"))
    stream = pipe.stream()
    return encoded(stream, stream.source, list("abcde"), {})


def states(hub):
    return {name: (served.stream.n, served.labels, state_bytes(served.stream)) for name, served in hub.streams.items()}


def as_left_by_a_crash(hub, copy):
    """Return the streams of a server that starts with what is in the file now, and its number of logged commits."""
    backup(hub.store.path, copy)
    assert check(copy).problems == []
    other = Hub(Settings(copy), Store(copy))
    try:
        assert not other.unreadable
        return states(other), other.store.read("SELECT count(*) FROM samples")[0][0]
    finally:
        other.workers.stop()
        other.store.close()


async def post_some(hub, first, count=100):
    """Post samples to three streams in turn: of both types of numbers, some with late labels."""
    for k in range(first, first + count):
        rows = rows_of(1 + k % 3, k)
        await hub.posts.samples(f"s{k % 3}", Post(rows.astype("<f4") if k % 7 else rows, "c", k))
        if k % 40 == 0:
            await hub.posts.labels(f"s{k % 3}", Post(rows.tolist(), "l", k), ["a"] * len(rows))


def test_what_a_crash_leaves_is_learned_again_bit_for_bit(tmp_path):
    db = tmp_path / "s.db"

    async def run(first):
        hub = Hub(Settings(db), Store(db))
        hub.start()
        for number in range(3):
            await hub.create(f"s{number}", recipe(number))
        await post_some(hub, first)
        result, logged = as_left_by_a_crash(hub, tmp_path / f"{first}.db")
        assert result == states(hub)
        assert logged > 0
        await hub.renew("s1", recipe(7), "Ann", "")  # samples of the old version are not for the new one
        await hub.delete("s2")
        await hub.create("s2", recipe(8))  # the file gives it the number of the one that is gone
        assert as_left_by_a_crash(hub, tmp_path / f"{first} new.db")[0] == states(hub)
        await hub.posts.samples("s2", Post(rows_of(1, 1)))
        result, _ = as_left_by_a_crash(hub, tmp_path / f"{first} one.db")
        assert result == states(hub)
        assert result["s2"][0] == 1
        await hub.stop()
        return states(hub)

    before = asyncio.run(run(0))
    store = Store(db)
    assert [stored.samples for stored in store.streams()] == [(), (), ()]  # a server that ends writes the states
    store.close()
    hub = Hub(Settings(db), Store(db))
    assert states(hub) == before
    hub.store.close()


def test_a_server_that_crashes_twice_keeps_what_it_learned_before_the_first_crash(tmp_path):
    async def run(db, first):
        hub = Hub(Settings(db), Store(db))
        hub.start()
        for number in range(3):
            await hub.create(f"s{number}", recipe(number))
        if first:
            await hub.posts.samples("s0", Post(rows_of(1, first)))  # s1 and s2 have no samples after the first crash
            for k in range(2 * DROP_COMMITS):
                await hub.posts.samples("s0", Post(rows_of(1, k)))
        else:
            await post_some(hub, first, 30)
        backup(hub.store.path, tmp_path / f"{first + 1}.db")
        left = states(hub)
        await hub.stop()
        return left

    first = asyncio.run(run(tmp_path / "0.db", 0))
    second = asyncio.run(run(tmp_path / "1.db", 1))
    assert {name: second[name] for name in ("s1", "s2")} == {name: first[name] for name in ("s1", "s2")}
    hub = Hub(Settings(tmp_path / "2.db"), Store(tmp_path / "2.db"))
    assert states(hub) == second
    hub.store.close()


def test_the_log_is_short(tmp_path, monkeypatch):
    monkeypatch.setattr(commits, "LOG_BYTES", 2_000)

    async def main():
        hub = Hub(Settings(tmp_path / "s.db"), Store(tmp_path / "s.db"))
        hub.start()
        for number in range(3):
            await hub.create(f"s{number}", recipe(number))
        await hub.posts.samples("s1", Post(rows_of(1, 0)))  # and then nothing: it must not keep all that follows
        lengths = []
        for k in range(5 * DROP_COMMITS):
            await hub.posts.samples("s0", Post(rows_of(1, k)))
            lengths.append(hub.store.read("SELECT count(*) FROM samples")[0][0])
        result, _ = as_left_by_a_crash(hub, tmp_path / "copy.db")
        assert result == states(hub)
        await hub.stop()
        return lengths

    lengths = asyncio.run(main())
    assert 10 < max(lengths) < 2.5 * DROP_COMMITS


def test_samples_that_could_not_be_stored_are_in_the_next_state(tmp_path):
    async def main():
        hub = Hub(Settings(tmp_path / "s.db"), Store(tmp_path / "s.db"))
        hub.start()
        await hub.create("s0", recipe())
        await hub.posts.samples("s0", Post(rows_of(1, 0), "c", 0))
        writer = sqlite3.connect(tmp_path / "s.db", isolation_level=None)
        hub.store._writer.execute("PRAGMA busy_timeout=10")
        writer.execute("BEGIN IMMEDIATE")
        with pytest.raises(Exception, match="not stored yet"):
            await hub.posts.samples("s0", Post(rows_of(1, 1), "c", 1))
        writer.execute("ROLLBACK")
        writer.close()
        while hub.trouble:
            await asyncio.sleep(0.02)
        await hub.posts.samples("s0", Post(rows_of(1, 2), "c", 2))
        result, _ = as_left_by_a_crash(hub, tmp_path / "copy.db")
        assert result == states(hub)
        assert result["s0"][0] == 3
        await hub.stop()

    asyncio.run(main())


def test_a_stream_whose_logged_samples_are_damaged_is_named(tmp_path):
    async def main():
        hub = Hub(Settings(tmp_path / "s.db"), Store(tmp_path / "s.db"))
        hub.start()
        await hub.create("s0", recipe())
        await hub.create("s1", recipe())
        for k in range(3):
            await hub.posts.samples("s0", Post(rows_of(1, k)))
        await hub.posts.samples("s1", Post(rows_of(1, 9)))
        backup(hub.store.path, tmp_path / "copy.db")
        await hub.stop()

    asyncio.run(main())
    with sqlite3.connect(tmp_path / "copy.db") as raw:
        raw.execute("UPDATE samples SET posts = x'00' WHERE number = 2")
    raw.close()
    assert "Stream 's0' cannot be read" in check(tmp_path / "copy.db").problems[0]
    hub = Hub(Settings(tmp_path / "copy.db"), Store(tmp_path / "copy.db"))
    assert (list(hub.unreadable), list(hub.streams)) == (["s0"], ["s1"])
    assert hub.get("s1").stream.n == 1
    hub.store.close()
