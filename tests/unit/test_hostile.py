"""Streams under hostile use: odd memory, changing buffers, threads, adversarial rows, forged states."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import reprior as rp
from reprior._kernels import NATIVE
from reprior.rows.blocks import TopKBlocks
from reprior.state import DTYPES, decode, encode, kind_of

sys.path.insert(0, str(Path(__file__).parents[1]))
import forge

K = 5
ROWS = np.random.default_rng(0).dirichlet(np.ones(K), 40)


def unaligned(rows: np.ndarray) -> np.ndarray:
    """Return the rows as they lie in a packet behind one byte of something else."""
    return np.frombuffer(b"x" + rows.tobytes(), rows.dtype, rows.size, 1).reshape(rows.shape)


@pytest.mark.parametrize("method", ["online-fmapls", "online-ebls"])
@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_rows_may_lie_anywhere_in_memory(method: str, kind) -> None:
    rows = ROWS.astype(kind)
    odd, expected = rp.Stream(method, np.ones(K)), rp.Stream(method, np.ones(K))
    expected.learn_many(rows)
    expected.learn_one(rows[0])
    expected.observe(rows[1], 2)
    assert not unaligned(rows).flags.aligned
    odd.learn_many(unaligned(rows))
    odd.learn_one(memoryview(bytearray(b"x" + rows[0].tobytes()))[1:].cast(rows.dtype.char))
    odd.observe(unaligned(rows[1]), 2)
    assert odd.to_bytes() == expected.to_bytes()
    np.testing.assert_allclose(odd.correct_many(unaligned(rows)), expected.correct_many(rows), rtol=1e-6)
    np.testing.assert_array_equal(odd.correct_one(unaligned(rows[0])), expected.correct_one(rows[0]))
    table, plain = rp.StreamTable(method, np.ones(K)), rp.StreamTable(method, np.ones(K))
    for one, inputs in ((table, unaligned(rows)), (plain, rows)):
        one.learn(["a", "b"] * 20, inputs)
        one.learn(["a", "b"] * 20, inputs)
    assert table.to_bytes() == plain.to_bytes()
    index, value = np.tile([0, 3], (40, 1)), ROWS[:, [0, 3]]
    odd.learn_many((unaligned(index), unaligned(value)))
    expected.learn_many((index, value))
    assert odd.to_bytes() == expected.to_bytes()
    np.testing.assert_array_equal(rp.ebls(np.ones(K), unaligned(rows)).prior, rp.ebls(np.ones(K), rows).prior)


def adversarial(k: int, listed: int, n: int, rng: np.random.Generator) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return top-k rows that push the listed and the unlisted classes apart."""
    any_of = np.argsort(rng.random((n, k)), axis=1)[:, :listed]
    rotating = np.stack([np.delete(np.arange(k), (row + np.arange(k - listed)) % k) for row in range(n)])
    same = np.tile(np.arange(listed), (n, 1))
    first = np.zeros((n, listed))
    first[:, 0] = 1.0
    random = rng.random((n, listed)) ** 8
    random *= (rng.random(n) ** 4 / random.sum(axis=1))[:, None]
    return {
        "all but a rotating few, hardly likely": (rotating, np.full((n, listed), 1e-3 / listed)),
        "the same ones, hardly likely": (same, 1e-9 * first),
        "the same ones, nearly sure": (same, (1 - 1e-9) * first),
        "any ones": (any_of, random + 1e-12),
    }


@pytest.mark.parametrize("memory", ["auto", 5.0, 0.01])
@pytest.mark.parametrize(("k", "listed"), [(50, 49), (50, 30), (50, 10), (3, 1), (200, 99), (300, 3)])
def test_top_k_rows_equal_the_dense_rows_however_adverse(k: int, listed: int, memory) -> None:
    rng = np.random.default_rng(k + listed)
    n = 1100 if NATIVE else 150
    skewed = rng.dirichlet(np.full(k, 0.3)) + 1e-6
    for prior in (np.ones(k), skewed):
        for index, value in adversarial(k, listed, n, rng).values():
            top, dense = (rp.Stream("online-fmapls", prior, memory=memory) for _ in range(2))
            for part in np.array_split(np.arange(n), 11):
                top.learn_many((index[part], value[part]))
                for rows in TopKBlocks(index[part], value[part], dense.source.prior):
                    dense.learn_many(rows)
                np.testing.assert_allclose(top.prior, dense.prior, rtol=1e-9)
                assert abs(top.prior.sum() - 1) < 1e-9


def test_a_short_memory_and_many_classes_stay_a_prior() -> None:
    k, n = 20_000, 20_000 if NATIVE else 5000
    stream = rp.Stream("online-fmapls", np.ones(k), memory=20)
    index = np.argsort(np.random.default_rng(0).random((50, k)), axis=1)[:, :10]
    for _ in range(n // 50):
        stream.learn_many((index, np.full(index.shape, 0.099)))
    assert (stream.prior > 0).all()
    assert stream.prior.sum() == pytest.approx(1, abs=1e-9)


@pytest.mark.skipif(not NATIVE, reason="the native kernel is not built")
def test_a_listing_is_checked_in_time_that_grows_with_its_length() -> None:
    k = 60_000
    index = np.argsort(np.random.default_rng(0).random((8, k)), axis=1)[:, : k // 2 - 1]
    stream, value = rp.Stream("online-fmapls", np.ones(k)), np.full(index.shape, 1 / k)
    start = time.process_time()
    stream.learn_many((index, value))
    assert time.process_time() - start < 1.0  # each class against each other took 3 s
    index[5, -1] = index[5, 0]
    with pytest.raises(rp.InputError, match="name each class once"):
        stream.learn_many((index, value))


CHANGING = """
import threading, time
import numpy as np, reprior as rp
k = 1000
stream = rp.Stream("online-fmapls", np.ones(k))
index = np.tile(np.arange(50), (400, 1))
value = np.full(index.shape, 0.019)
stop = time.monotonic() + 1.5
def change():
    while time.monotonic() < stop:
        index[:, 7] = 10**12
        index[:, 7] = 7
threading.Thread(target=change).start()
while time.monotonic() < stop:
    try:
        stream.learn_many((index, value))
    except rp.InputError:
        pass
assert abs(stream.prior.sum() - 1) < 1e-9 and stream.prior.min() > 0
"""


def test_a_listing_that_changes_while_it_is_learned_leads_to_no_other_memory() -> None:
    done = subprocess.run([sys.executable, "-c", CHANGING], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("method", ["online-fmapls", "online-ebls", "fth"])
def test_threads_may_share_a_stream_and_a_table(method: str) -> None:
    source = rp.summarize(ROWS, ROWS.argmax(axis=1))
    many = {"online-fmapls": 400, "online-ebls": 60, "fth": 20}[method]
    stream = rp.Stream(method, source)
    left: list[int] = []
    table = rp.StreamTable(method, source, max_streams=60, on_evict=lambda _, gone: left.append(gone.n))
    rows = np.tile(ROWS, (100, 1)) if method == "online-fmapls" else ROWS  # large blocks are learned without the GIL

    def work(seed: int) -> None:
        rng = np.random.default_rng(seed)
        for step in range(many):
            stream.learn_many(rows[:400])
            stream.learn_one(ROWS[step % 40])
            assert abs(stream.prior.sum() - 1) < 1e-6
            keys = [f"{seed}-{key}" for key in rng.integers(0, 20, 40)]
            table.learn(keys, ROWS)
            table.correct(keys[:5], ROWS[:5])
            if step % 10 == 0:
                stream.to_bytes()
                table.to_bytes()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert stream.n == 4 * many * (len(rows[:400]) + 1)
    assert sum(table[key].n for key in table) + sum(left) == 4 * many * 40
    assert len(set(table._slots.values())) == len(table)


@pytest.mark.parametrize("change", [forge.forged, forge.damaged])
def test_states_that_were_damaged_or_forged_are_refused_or_valid(change) -> None:
    answer, most = forge.trial(change, 400, seed=1)
    assert answer["refused"] > 300
    assert most <= (2 if sys.version_info < (3, 13) else 6)  # newer ones follow a nested header as deep as it goes


def test_a_key_keeps_others_from_writing_states() -> None:
    stream = rp.Stream("online-ebls", np.ones(K))
    data = stream.to_bytes(b"k" * 32)
    assert rp.Stream.from_bytes(data, b"k" * 32).to_bytes() == stream.to_bytes()
    for key in (None, b"other"):
        with pytest.raises(rp.InputError, match=r"^Stream.from_bytes: `data` must be whole and unchanged.*key"):
            rp.Stream.from_bytes(data, key)
    with pytest.raises(rp.InputError, match="under this key"):
        rp.Stream.from_bytes(stream.to_bytes(), b"k" * 32)  # without one, anybody may have written it
    for bad in (b"", b"k" * 65, "text"):
        with pytest.raises(rp.InputError, match="`key` must be 1 to 64 bytes"):
            stream.to_bytes(bad)
    assert kind_of(data, key=b"k" * 32) == "stream"
    assert kind_of(rp.StreamTable("online-ebls", np.ones(K)).to_bytes()) == "stream-table"


def test_no_array_but_of_numbers_comes_out_of_bytes() -> None:
    assert all(np.dtype(kind).kind in "biuf" for kind in DTYPES)
    header, arrays = forge.taken_apart(encode("thing", {"x": np.zeros(4)}))
    for dtype, shape in (("|O", [4]), ("<f8", [1 << 40]), ("<f8", [5]), ("<f8", [3]), ("<c16", [2]), ("<f8", [-4])):
        header["arrays"] = [["x", dtype, shape]]
        text = json.dumps(header).encode()
        with pytest.raises(rp.InputError, match=r"^test: `data` must hold what reprior writes; got"):
            decode(forge.put_together(text, arrays), "thing", "test")


@pytest.mark.parametrize("method", ["online-ebls", "online-fmapls", "fth"])
def test_one_sample_moves_a_robust_stream_no_further_than_it_may(method: str) -> None:
    source = rp.summarize(ROWS, ROWS.argmax(axis=1))
    free, bound = rp.Stream(method, source), rp.Stream(method, source, robust=0.002)
    table = rp.StreamTable(method, source, robust=0.002)
    for p in [*ROWS, *np.repeat(np.eye(K)[[4]], 20, axis=0)]:
        before = bound.prior
        bound.learn_one(p)
        assert 0.5 * np.abs(bound.prior - before).sum() <= 0.002 + 1e-12
        assert bound.prior.sum() == pytest.approx(1, abs=1e-9)
        free.learn_one(p)
        table.learn(["a"], p[None])
    before = bound.prior
    bound.observe(ROWS[0], 1)
    assert 0.5 * np.abs(bound.prior - before).sum() <= 0.002 + 1e-12
    table.observe("a", ROWS[0], 1)
    assert free.prior[4] > bound.prior[4]
    back = rp.Stream.from_bytes(bound.to_bytes())
    for other in (back, bound):
        other.learn_many(ROWS)
    assert back.to_bytes() == bound.to_bytes()
    table.learn(["a"] * 40, ROWS)
    assert table["a"].to_bytes() == bound.to_bytes()
    for _ in range(50):
        bound.learn_many(ROWS)
        free.learn_many(ROWS)
    np.testing.assert_allclose(bound.prior, free.prior, atol=0.01)  # it arrives
    for bad in (0, -1, 1.5, "much"):
        with pytest.raises(rp.InputError, match="`robust` must be a number above 0 and at most 1"):
            rp.Stream(method, source, robust=bad)


@pytest.mark.parametrize("option", ["c", "mu", "memory"])
def test_an_option_that_would_overflow_is_refused(option):
    with pytest.raises(rp.InputError, match=r"at most 1e\+100; got 1e\+308"):
        rp.Stream("online-fmapls", [1, 2], **{option: 1e308})
    if option != "memory":
        with pytest.raises(rp.InputError, match=r"at most 1e\+100; got 1e\+308"):
            rp.fmapls([1, 2], [[0.5, 0.5]], **{option: 1e308})


FRAME = pd.DataFrame([[0.8, 0.2], [0.3, 0.7]] * 5, columns=["cat", "dog"])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (FRAME.assign(dog="x"), "got text, as 'x', in the column 'dog'. Remove that column, or convert it to"),
        (FRAME.to_numpy().astype(object), "got objects, as 0.8. Pass `proba.astype(float)`."),
        (sparse.csr_matrix(FRAME.to_numpy()), "got a sparse matrix. Pass `proba.toarray()`."),
        (FRAME.to_dict("records"), "got a list of dicts. Pass `pandas.DataFrame(proba)`."),
        (FRAME.to_dict("list"), "got a dict of columns. Pass `pandas.DataFrame(proba)`."),
        ({name: FRAME[name].to_numpy() for name in FRAME}, "got a dict of columns. Pass `pandas.DataFrame(proba)`."),
        ("scores.csv", "got the text 'scores.csv'. If it is a file, read it first"),
        (Path("scores.csv"), "got the text 'scores.csv'. If it is a file, read it first"),
        ([["0.8", "0.2"]], "got text, as '0.8'. Remove text, or convert it to numbers."),
    ],
)
def test_what_is_no_array_of_numbers_is_called_by_what_it_is(inputs, message):
    pipe = rp.pipeline(FRAME, ["cat", "dog"] * 5)
    for call in (pipe.estimate, lambda x: rp.pipeline(x, [0, 1] * 5), lambda x: rp.ebls([1, 1], x)):
        with pytest.raises(rp.InputError, match=re.escape(message)):
            call(inputs)


def test_a_file_to_save_to_must_have_a_name():
    pipe = rp.pipeline(counts=[1, 1])
    for save in (pipe.save, pipe.stream().save):
        with pytest.raises(rp.InputError, match="`path` must be the path of a file; got None"):
            save(None)


def test_a_refusal_in_python_names_no_option_of_the_command_line():
    pipe = rp.pipeline(FRAME, ["cat", "dog"] * 5)
    first = np.random.default_rng(0).uniform(0.8, 1.0, 400)
    first[200:] = 1 - first[200:]
    strange = rp.pipeline(np.column_stack([first, 1 - first]), np.repeat([0, 1], 200))
    unsure = np.full((400, 2), 0.5)
    for call, message in (
        (lambda: pipe.estimate([[70, 30]]), "divide each row by its sum first"),
        (lambda: pipe.estimate([[-1.0, 2.0]]), "apply softmax first, or fit a `pipeline` with `logits=True`"),
        (lambda: pipe.stream().learn_one([3.0, 2.0]), "apply softmax first, or fit a `pipeline` with `logits=True`"),
        (lambda: strange.estimate(unsure, on_reject="refuse").correct(unsure), "estimate with `on_reject='ignore'`"),
    ):
        with pytest.raises(rp.InputError, match=re.escape(message)) as refused:
            call()
        assert "--" not in str(refused.value)
        assert pickle.loads(pickle.dumps(refused.value)).shell == refused.value.shell


@pytest.mark.parametrize("labels", [-1, 1 << 60, 0.5])
def test_a_number_of_labels_that_cannot_be_is_refused(labels: float) -> None:
    stream, table = rp.Stream("online-ebls", np.full(K, 1 / K)), rp.StreamTable("online-ebls", np.full(K, 1 / K))
    stream.learn_many(ROWS)
    table.learn(["a"] * len(ROWS), ROWS)
    for value, kind, shape in ((stream, "stream", ()), (table, "stream-table", (1,))):
        fields = decode(value.to_bytes(), kind, "test")
        for forged in (np.full(shape, labels), np.zeros((*shape, 1), np.int64), 3):
            with pytest.raises(rp.InputError, match="hold what reprior writes"):
                type(value).from_bytes(encode(kind, fields | {"labels": forged}))
        answer = type(value).from_bytes(encode(kind, fields | {"labels": np.full(shape, len(ROWS), np.int64)}))
        with pytest.raises(rp.InputError, match="belong to samples that were learned"):
            answer.observe(*["a"] * len(shape), ROWS[0], 1)
