"""Bytes of earlier releases stay readable: the files here were written by the release in their name."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import reprior as rp

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


def test_a_table_of_0_1() -> None:
    table = rp.StreamTable.from_bytes((HERE / "table-0.1.bin").read_bytes())
    assert sorted(map(str, table)) == ["7", "b"]
    assert table[7].n == 25
