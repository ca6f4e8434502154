"""Bytes that say what they are."""

from __future__ import annotations

import struct
from hashlib import blake2b

import numpy as np
import pytest

import reprior as rp
from reprior.state import MAGIC, PROTOCOL, decode, encode, write_atomically

FIELDS = {
    "name": "π", "n": 3, "x": np.arange(6, dtype=np.float32).reshape(2, 3), "empty": np.zeros((0, 4)), "none": None,
    "scalar": np.array(2.5), "whole": np.array([1, -2]), "big": np.array([1.0], ">f8"), "rate": np.float64(0.25),
}  # fmt: skip


def test_what_goes_in_comes_out() -> None:
    back = decode(encode("thing", FIELDS), "thing", "test")
    assert back.keys() == FIELDS.keys()
    for name, value in FIELDS.items():
        np.testing.assert_array_equal(back[name], value)
        if isinstance(value, np.ndarray):
            assert back[name].shape == value.shape
            assert back[name].dtype == value.dtype.newbyteorder("=")
            back[name][...] = 0  # writable


def signed(body: bytes) -> bytes:
    return body + blake2b(body, digest_size=16).digest()


def test_each_fault_has_its_sentence() -> None:
    data = encode("thing", FIELDS)
    newer = signed(MAGIC + struct.pack("<H", PROTOCOL + 1) + data[10:-16])
    cases = [
        (b"", "be bytes written by reprior"),
        (b"\x80\x04pickle", "be bytes written by reprior"),
        (data[:30], "be whole and unchanged"),
        (data + b"x", "be whole and unchanged"),
        (newer, f"have a protocol number of at most {PROTOCOL}; got {PROTOCOL + 1}.*upgrade"),
        (encode("other", {}), "hold a 'thing'; got a 'other'"),
        ("text", "be bytes; got str"),
    ]
    for bad, sentence in cases:
        with pytest.raises(rp.InputError, match=f"^test: `data` must {sentence}"):
            decode(bad, "thing", "test")


def test_not_a_number_is_no_option() -> None:
    with pytest.raises(ValueError, match="JSON"):
        encode("thing", {"x": float("nan")})


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    path = tmp_path / "state"
    write_atomically(path, b"old")
    with monkeypatch.context() as patched:
        patched.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError("no")))
        with pytest.raises(OSError, match="no"):
            write_atomically(path, b"new")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_stream_goes_to_a_file_and_back(tmp_path) -> None:
    stream = rp.Stream("online-ebls", rp.Source(np.array([0.5, 0.5]), classes=("cat", "dog")))
    stream.learn_one([0.9, 0.1])
    stream.save(tmp_path / "state")
    back = rp.load(tmp_path / "state")
    assert back.to_bytes() == stream.to_bytes()
    assert back.source.classes == ("cat", "dog")


@pytest.mark.parametrize("field", ["floor", "log_likelihood", "ridge", "n"])
def test_a_forged_integer_of_400_digits_is_refused(field: str) -> None:
    fields = decode(rp.calibrate.fit([[0.9, 0.1], [0.2, 0.8]], [0, 1], kind="ts").to_bytes(), "calibrator", "test")
    with pytest.raises(rp.InputError, match="a header that is not JSON"):
        rp.load(encode("calibrator", fields | {field: 10**400}))
