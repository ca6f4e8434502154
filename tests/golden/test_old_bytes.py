"""Bytes of earlier releases stay readable: the files here were written by the release in their name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reprior as rp
from reprior.online.ebls import OnlineEbls
from reprior.service.live import define, restored
from reprior.service.store import Kept

HERE = Path(__file__).parent
ROWS = np.random.default_rng(0).dirichlet([1, 2, 3], 50)
STREAMS = {
    "online-ebls": ("online-ebls", {"cautious": False}),
    "online-fmapls": ("online-fmapls", {}),
    "online-fmapls-paper": ("online-fmapls", {"variant": "paper", "c": 900.0, "gamma": 0.5, "delta": "predicted"}),
}


def made(name: str) -> rp.Stream:
    method, options = STREAMS[name]
    stream = rp.Stream(method, rp.Source(np.array([0.5, 0.3, 0.2]), classes=("a", "b", "c")), **options)
    if name == "online-fmapls":  # it started at the uniform prior then
        stream.method.parts(stream._values)["u"][:] = 1 / 3
    stream.learn_many(ROWS)
    return stream


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_streams_of_0_1(name: str) -> None:
    stream = rp.load(HERE / f"{name}-0.1.bin")
    now = made(name)
    assert stream.n == 50
    assert stream.source.classes == ("a", "b", "c")
    np.testing.assert_allclose(stream.prior, now.prior, rtol=1e-9)
    for other in (stream, now):
        other.learn_many(ROWS)
    np.testing.assert_allclose(stream.prior, now.prior, rtol=1e-9)


LATER = {"online-ebls-cautious": {}, "online-ebls-robust": {"robust": 0.05}}
SAID = {  # by the code that wrote the files; how rows are weighed has changed since, and what they said must not
    "online-ebls-cautious": [0.017334649230908918, 0.09200422447413951, 0.8906611262949513],
    "online-ebls-robust": [0.017280126527876097, 0.0892597466707459, 0.8934601268013778],
    "table": [0.14476247640800052, 0.1144179183841243, 0.7408196052078752],
    "key-2": [0.1413903534435978, 0.14270433716052155, 0.7159053093958806],
}


@pytest.fixture
def constants_of_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams of three classes have the filters and the caution that they had when these files were written."""
    monkeypatch.setattr(OnlineEbls, "AT_UNIFORM", (0.3, 0.6))
    monkeypatch.setattr(OnlineEbls, "CAUTION", 3.0)


@pytest.mark.parametrize("name", sorted(LATER))
@pytest.mark.usefixtures("constants_of_then")
def test_streams_that_knew_no_bias_go_on(name: str) -> None:
    stream = rp.load(HERE / f"{name}-0.1.bin")
    np.testing.assert_allclose(stream.prior, SAID[name], rtol=1e-9)
    now = rp.Stream("online-ebls", rp.Source(np.array([0.5, 0.3, 0.2]), classes=("a", "b", "c")), **LATER[name])
    now.learn_many(ROWS)
    now.observe(ROWS[3], "b")
    # other constants have changed a little since, and so has what rows count in the odds of the source prior
    np.testing.assert_allclose(stream.prior, now.prior, rtol=1e-2)
    np.testing.assert_array_equal(stream.bias, 1)
    np.testing.assert_array_equal(stream.weights, stream.prior / stream.source.prior)
    for other in (stream, now):
        other.learn_many(ROWS)
        other.observe(ROWS[4], "c")
    np.testing.assert_allclose(stream.prior, now.prior, rtol=1e-2)
    assert rp.Stream.from_bytes(stream.to_bytes()) == stream


@pytest.mark.usefixtures("constants_of_then")
def test_a_shared_table_that_knew_no_bias_goes_on() -> None:
    table = rp.load(HERE / "table-shared-0.1.bin")
    np.testing.assert_allclose(table.common, SAID["table"], rtol=1e-9)
    np.testing.assert_allclose(table.prior("key-2"), SAID["key-2"], rtol=1e-9)
    now = rp.StreamTable("online-ebls", rp.Source(np.array([0.5, 0.3, 0.2]), classes=("a", "b", "c")))
    keys = [f"key-{i % 5}" for i in range(50)]
    now.learn(keys, ROWS)
    now.observe("key-2", ROWS[2], "c")
    np.testing.assert_allclose(table.common, now.common, rtol=1e-2)
    for other in (table, now):
        other.learn(["new", *keys[1:]], ROWS)
    for key in now:
        np.testing.assert_allclose(table.prior(key), now.prior(key), rtol=1e-2)
    np.testing.assert_array_equal(table["key-2"].bias, 1)


def test_a_table_of_0_1() -> None:
    table = rp.StreamTable.from_bytes((HERE / "table-0.1.bin").read_bytes())
    assert sorted(map(str, table)) == ["7", "b"]
    assert table[7].n == 25


def test_a_served_stream_that_knew_no_bias_goes_on() -> None:
    stream = rp.Stream("online-ebls", rp.Source(np.array([0.5, 0.3, 0.2])))
    stream.learn_many(ROWS)
    definition, _ = define(stream, stream.source, classes=None, alarm=None)
    numbers = stream.state.values
    before = numbers[: stream.method.labels_at]  # where the labels' part is now, states once ended
    live = restored(Kept(1, "a", 0.0, definition, 50, 0, 0.0, before.tobytes(), None))
    assert live.stream == stream
    live.observe(ROWS[:1], [2])
    assert live.stream.bias[2] > 1
    told = restored(Kept(1, "a", 0.0, definition, 50, 49, 0.0, before.tobytes(), None))
    told.observe(ROWS[:1], [2])
    with pytest.raises(rp.InputError, match="got 51 labels of 50 rows"):  # those of before the restart count
        told.observe(ROWS[:1], [2])
    with pytest.raises(rp.InputError, match="damaged"):
        restored(Kept(1, "a", 0.0, definition, 50, 0, 0.0, before[:-1].tobytes(), None))
    with pytest.raises(rp.InputError, match="damaged"):
        restored(Kept(1, "a", 0.0, definition, 50, 0, 0.0, before.tobytes()[:-1], None))
