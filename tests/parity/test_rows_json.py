"""Rows as JSON text: the native reader and writer against the reference and against Python's own."""

from __future__ import annotations

import json

import numpy as np
import pytest

from reprior._kernels import NATIVE, loops, reference

BOTH = [reference, loops] if NATIVE else [reference]
UNUSUAL = [
    b"[[01,2]]", b"[[.5,1]]", b"[[1.,2]]", b"[[+1,2]]", b"[[NaN,1]]", b"[[1,2],]", b"[[1,2]", b"[[1 2]]", b"[[1,2,3]]",
    b"[[1e999,1]]", b"[[1e,2]]", b'[["1",2]]', b"[[true,2]]", b"[[]]", b"[]", b"[", b"[[1,-]]", b"[[1,2],[3]]",
    b"[[[1],2]]", b"[[1,2]], [1]", b"[null]", b"[[1,2] [3,4]]", b"[[Infinity,1]]", b"[[1,2]x",
]  # fmt: skip


def rows_in(kind: str) -> np.ndarray:
    rows = np.random.default_rng(3).dirichlet(np.full(20, 0.1), 50)
    if kind == "float32":
        return rows.astype(np.float32).astype(np.float64)
    if kind == "tiny":
        return np.maximum(rows**8, 1e-250)
    return np.round(rows, 7) if kind == "rounded" else rows


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("kind", ["float64", "float32", "tiny", "rounded"])
def test_numbers_are_read_as_python_reads_them(kernel, kind):
    rows = rows_in(kind)
    for text in (json.dumps(rows.tolist()), json.dumps(rows.tolist(), indent=1), json.dumps((-rows).tolist())):
        whole = f'{{"proba": {text}, "n": 3}}'.encode()
        values, end, wide = kernel.parse_rows(whole, 10, 20)
        assert np.frombuffer(values).reshape(-1, 20).tolist() == json.loads(text)
        assert whole[end:] == b', "n": 3}'
        assert wide == (kind != "rounded")


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("text", UNUSUAL)
def test_what_is_not_plain_rows_is_left_to_a_general_parser(kernel, text):
    assert kernel.parse_rows(text, 0, 2) is None


HARD = ["0.30000000000000004", "9007199254740993", "1234567890123456789", "123456789012345678901", "1e-5", "5e-324",
        "2.2250738585072011e-308", "0.1e1", "1E+2", "-0", "0.5000000000000001"]  # fmt: skip


@pytest.mark.parametrize("text", HARD)
def test_hard_numbers_are_read_as_python_reads_them(text):
    for kernel in BOTH:
        values, _, _ = kernel.parse_rows(f"[[{text}, 1]]".encode(), 0, 2)
        assert np.frombuffer(values)[0] == float(text)


def test_random_digits_are_read_as_python_reads_them():
    rng = np.random.default_rng(0)
    parts = rng.integers([10, 10**12, 10**7, 60], size=(20_000, 4)).tolist()
    texts = [f"{first}.{middle}{last}e-{power}" for first, middle, last, power in parts]
    values, _, _ = loops.parse_rows(f"[[{','.join(texts)}]]".encode(), 0, len(texts))
    assert np.frombuffer(values).tolist() == [float(text) for text in texts]


@pytest.mark.parametrize("kernel", BOTH)
@pytest.mark.parametrize("kind", ["float64", "float32", "tiny", "rounded"])
def test_rows_are_written_with_nine_digits(kernel, kind):
    rows = rows_in(kind)
    for typed in (rows, rows.astype(np.float32)):
        written = np.array(json.loads(kernel.format_rows(typed)))
        np.testing.assert_allclose(written, typed.astype(np.float64), rtol=5.1e-9, atol=0)


@pytest.mark.parametrize("kernel", BOTH)
def test_every_probability_can_be_written(kernel):
    values = [1.0, 0.9999999999, 0.1, 0.09999999999, 1e-5, 9.99999999999e-6, 1e-10, 1e-99, 1e-100, 1.5e-289, 0.5, 0.0]
    written = json.loads(kernel.format_rows(np.array([values])))[0]
    np.testing.assert_allclose(written, values, rtol=5.1e-9, atol=0)
    for other in (-0.1, 1.1, np.nan, np.inf):
        assert kernel.format_rows(np.array([[other, 0.5]])) == reference.REFUSED
