"""The compiled loops against the NumPy ones that specify them. Stated: equal to 1e-12, most often to the last bit."""

from __future__ import annotations

import ast
import inspect
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

import numpy as np
import pytest

import reprior as rp
from reprior import _kernels
from reprior._kernels import reference
from reprior.online.ebls import OnlineEbls
from reprior.online.fmapls import OnlineFmapls
from reprior.rows.blocks import TopKBlocks

native = pytest.importorskip("reprior._kernels.native", reason="the native kernel was not built")
SIZES = [2, 3, 7, 8, 9, 16, 23, 100]
FMAPLS = [
    {},
    {"c": 50.0},
    {"memory": 40.0},
    {"gamma": 0.6},
    {"gamma": 0.6, "delta": "predicted"},
    {"gamma": 0.6, "delta": "observed"},
    {"variant": "paper", "c": 3000.0},
    {"variant": "paper", "c": 3000.0, "gamma": 0.5, "delta": "predicted"},
]


def draw(k: int, n: int, seed: int = 0) -> tuple[rp.Source, np.ndarray]:
    rng = np.random.default_rng(seed)
    return rp.Source(rng.dirichlet(np.full(k, 5.0))), rng.dirichlet(np.full(k, 0.3), n)


def learn(loops, method, state, rows, slots=None, ndim=2):
    if isinstance(method, OnlineFmapls):
        return loops.fmapls(state, method.kernel_priors, method.options, slots, rows, ndim)
    return loops.ebls(state, method.kernel_priors, method.options, method.bank, method.directions, slots, rows, ndim)


def assert_same(method, ours: np.ndarray, theirs: np.ndarray) -> None:
    """Both states of one method, or tables of them."""
    for one, two in zip(np.atleast_2d(ours), np.atleast_2d(theirs), strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(method.prior(one), method.prior(two), rtol=1e-12)


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("options", FMAPLS, ids=str)
def test_fmapls(k: int, options: dict) -> None:
    source, rows = draw(k, 300)
    method = OnlineFmapls(source, **options)
    ours, theirs = method.init(), method.init()
    for part in (rows[:1], rows[1:200], rows[200:]):
        assert learn(native, method, ours, part) == learn(reference, method, theirs, part) == reference.DONE
        if options.get("delta") == "observed":
            method.observe(ours, rows[0], 1)
            method.observe(theirs, rows[0], 1)
    assert ours[0] == theirs[0] == 300
    assert_same(method, ours, theirs)


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_ebls_weights(k: int, share: float) -> None:
    source, rows = draw(k, 60)
    heldout = np.eye(k)[np.arange(6 * k) % k] * 0.7 + 0.3 / k
    methods = OnlineEbls(source), OnlineEbls(rp.summarize(heldout, np.arange(6 * k) % k), base=np.ones(k))
    for method in methods:
        state, ours, theirs = method.init(), *np.full((2, 3, reference.width(k)), np.nan)
        for _ in range(2):  # at the start, and after samples
            for loops, out in ((native, ours), (reference, theirs)):
                assert loops.ebls_weights(state, *method.weight_constants, share, out) == reference.DONE
            np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)
            np.testing.assert_allclose(ours[2, :k], method.prior(state), rtol=1e-12, atol=1e-15)
            method.learn(state, rows)
        np.testing.assert_allclose(method.correction(state)[1], reference.padded(method.weights(state)), rtol=1e-11)
    native_refuses = native.ebls_weights(state[:5], np.ones((5, 8)), np.ones(4), 1.0, ours)
    assert native_refuses == reference.REFUSED


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("options", [{}, {"drift": False}, {"base": "even"}], ids=str)
def test_ebls(k: int, options: dict) -> None:
    source, rows = draw(k, 200)
    rows[100:] = rows[100:, ::-1] ** 2  # a jump, so that filters reset
    rows /= rows.sum(axis=1, keepdims=True)
    method = OnlineEbls(source, **{name: np.ones(k) if x == "even" else x for name, x in options.items()})
    ours, theirs = method.init(), method.init()
    assert learn(native, method, ours, rows) == learn(reference, method, theirs, rows) == reference.DONE
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)  # precisions amplify rounding a little
    np.testing.assert_allclose(method.prior(ours), method.prior(theirs), rtol=1e-11)


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
def test_vectors_of_four_and_of_eight_give_the_same_bits(tmp_path: Path, monkeypatch) -> None:
    """A plain build runs both on any machine; the installed kernel takes those that its machine has."""
    folder, target = Path(_kernels.__file__).parent, tmp_path / "native.abi3.so"
    flags = ["-O1", "-fwrapv", "-ffp-contract=off", "-Wno-psabi", "-shared", "-fPIC", "-DPy_LIMITED_API=0x030B0000",
             "-DREPRIOR_PLAIN", "-DWIDE=", '-DHAS_WIDE=(getenv("EIGHT") != NULL)']  # fmt: skip
    sources = [folder / name for name in ("native.c", "small.c", "rows_json.c")]
    include = sysconfig.get_paths()["include"]
    subprocess.run(["gcc", *flags, "-I", include, *sources, "-o", target, "-lm"], check=True)
    plain = module_from_spec(spec_from_loader("native", ExtensionFileLoader("native", str(target))))
    for k in SIZES:
        source, rows = draw(k, 200)
        method, slots = OnlineEbls(source), np.random.default_rng(1).integers(0, 3, 200)
        for block, size in ((rows, 0), (rows.astype(np.float32), 3)):
            states = []
            for loops, eight in ((plain, False), (plain, True), (native, False)):
                monkeypatch.setenv("EIGHT", "") if eight else monkeypatch.delenv("EIGHT", raising=False)
                states.append(np.tile(method.init(), (size, 1)) if size else method.init())
                assert learn(loops, method, states[-1], block, slots if size else None) == reference.DONE
            assert states[0].tobytes() == states[1].tobytes() == states[2].tobytes()


@pytest.mark.parametrize("k", [5, 64])
@pytest.mark.parametrize("make", [OnlineFmapls, OnlineEbls])
def test_keyed_loops(k: int, make: type) -> None:
    source, rows = draw(k, 300)
    method = make(source)
    slots = np.random.default_rng(1).integers(0, 6, 300)
    ours, theirs = np.tile(method.init(), (6, 1)), np.tile(method.init(), (6, 1))
    for table, loops in ((ours, native), (theirs, reference)):
        assert learn(loops, method, table, rows, slots) == reference.DONE
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-12)
    alone = method.init()
    learn(native, method, alone, np.ascontiguousarray(rows[slots == 2]))
    assert alone.tobytes() == ours[2].tobytes()


@pytest.mark.parametrize("k", [12, 1500])
def test_lazy_top_k_is_the_dense_update(k: int) -> None:
    source, rows = draw(k, 2500)
    indices = np.argsort(-rows, axis=1)[:, :4].copy()
    values = np.take_along_axis(rows, indices, axis=1) * np.linspace(0.2, 1, len(rows))[:, None]
    method = OnlineFmapls(source, memory=300.0)
    ours, theirs, dense = method.init(), method.init(), method.init()
    for state, loops in ((ours, native), (theirs, reference)):
        assert loops.fmapls_top(state, method.kernel_priors, method.options, None, indices, values, 2) == reference.DONE
    for block in TopKBlocks(indices, values, source.prior):
        learn(native, method, dense, block)
    np.testing.assert_allclose(method.prior(ours), method.prior(theirs), rtol=1e-11)
    np.testing.assert_allclose(method.prior(ours), method.prior(dense), rtol=1e-9)
    assert ours[0] == dense[0] == 2500
    learn(native, method, ours, rows[:1])  # dense rows after top-k rows, and back
    learn(native, method, dense, rows[:1])
    np.testing.assert_allclose(method.prior(ours), method.prior(dense), rtol=1e-9)


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_correct(k: int, dtype: type) -> None:
    _, rows = draw(k, 40)
    rows = rows.astype(dtype)
    ours, theirs = np.empty_like(rows), np.empty_like(rows)
    truth = reference.padded(np.linspace(0.1, 3, k))
    assert native.correct(truth, k, rows, ours, 2) == reference.DONE
    assert reference.correct(truth, k, rows, theirs, 2) == reference.DONE
    np.testing.assert_allclose(ours, theirs, rtol=1e-14 if dtype == np.float64 else 1e-6)
    one = np.empty(k, dtype)
    assert native.correct(truth, k, rows[-1], one, 1) == reference.DONE
    np.testing.assert_array_equal(one, ours[-1])


@pytest.mark.parametrize("k", SIZES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("floor", [1e-6, np.finfo(np.float64).tiny, 0.0])
def test_calibrate(k: int, dtype: type, floor: float) -> None:
    rows = draw(k, 40)[1].astype(dtype) if floor else (100 * draw(k, 40)[1] - 30).astype(dtype)
    rows[3] = np.eye(k)[1]
    ours, theirs, one = np.empty((40, k)), np.empty((40, k)), np.empty((1, k))
    truth = np.concatenate([reference.padded(np.linspace(0.5, 2, k)), reference.padded(np.linspace(-3, 3, k))[:1]])
    assert native.calibrate(truth, k, rows, ours, floor) == reference.DONE
    assert reference.calibrate(truth, k, rows, theirs, floor) == reference.DONE
    np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-299)
    for row in (0, 39):  # whatever other rows there are
        assert native.calibrate(truth, k, rows[row : row + 1], one, floor) == reference.DONE
        np.testing.assert_array_equal(one[0], ours[row])
    assert native.calibrate(truth, k, rows[:, ::-1], ours, floor) == reference.REFUSED
    assert native.calibrate(truth, k, rows, ours[1:], floor) == reference.REFUSED


@pytest.mark.parametrize("k", [2, 7, 8, 100])
@pytest.mark.parametrize("make", [OnlineFmapls, OnlineEbls])
def test_both_find_the_same_bad_row_and_leave_the_state(k: int, make: type) -> None:
    source, rows = draw(k, 50)
    method = make(source)
    for value, column in ((np.nan, 0), (-1e-9, k - 1), (np.inf, k // 2), (0.5, k - 1)):
        bad = rows.copy()
        bad[31, column] = bad[31, column] + 0.5 if value == 0.5 else value
        for slots in (None, np.arange(50) % 3):
            state = method.init() if slots is None else np.tile(method.init(), (3, 1))
            before = state.tobytes()
            for loops in (native, reference):
                assert learn(loops, method, state, bad, slots) == 31
                assert state.tobytes() == before
        state = method.init()
        before = state.tobytes()
        assert learn(native, method, state, bad[31], None, 1) == 0
        assert state.tobytes() == before


def test_what_is_no_plain_array_of_the_right_shape_is_refused() -> None:
    source, rows = draw(6, 4)
    method = OnlineFmapls(source)
    state = method.init()
    before = state.tobytes()
    odd = [rows[:, ::-1], rows[:, :5], rows.astype(int), rows.astype(">f8"), rows.astype(np.float16), rows.tolist(),
           rows[:0], rows[0], None]  # fmt: skip
    for thing in odd:
        assert learn(native, method, state, thing) == reference.REFUSED
    for slots in (np.array([0, 1, 2, 3]), np.array([0, 0]), np.zeros(4), [0, 0, 0, 0]):
        table = np.tile(method.init(), (3, 1))
        assert learn(native, method, table, rows, slots) == reference.REFUSED
    assert state.tobytes() == before


def test_the_stub_tells_the_truth() -> None:
    stub = ast.parse(Path(_kernels.__file__).with_name("native.pyi").read_text())
    message = {f.name: len(f.args.posonlyargs) for f in stub.body if isinstance(f, ast.FunctionDef)}
    built = {name for name in dir(native) if not name.startswith("_")}
    assert set(message) == built
    for name, count in message.items():
        assert len(inspect.signature(getattr(reference, name)).parameters) == count
        with pytest.raises(TypeError, match=f"takes {count} argument"):
            getattr(native, name)(*range(count + 1))


def test_the_environment_can_turn_it_off() -> None:
    program = (
        "import numpy as np, reprior as rp, reprior._kernels as kernels\n"
        "rows = np.random.default_rng(0).dirichlet(np.ones(5), 50)\n"
        "for name in ('online-ebls', 'online-fmapls'):\n"
        "    stream = rp.Stream(name, np.ones(5)); stream.learn_many(rows); stream.learn_one(rows[0])\n"
        "    print(kernels.NATIVE, kernels.SENTENCE.split()[0], *stream.prior)"
    )
    predicted = {}
    for value in ("0", "1"):
        run = [sys.executable, "-c", program]
        out = subprocess.run(
            run, env=os.environ | {"REPRIOR_NATIVE": value}, capture_output=True, text=True, check=True
        )
        predicted[value] = [line.split() for line in out.stdout.splitlines()]
    for off, on in zip(predicted["0"], predicted["1"], strict=True):
        assert off[:2] == ["False", "reference"]
        assert on[:2] == ["True", "native"]
        np.testing.assert_allclose(np.array(off[2:], float), np.array(on[2:], float), rtol=1e-12)


def test_a_zero_with_a_sign_is_a_zero() -> None:
    for k in (3, 8, 11):
        source, rows = draw(k, 5)
        rows[:, 1] = 0.0
        rows /= rows.sum(axis=1, keepdims=True)
        signed = np.where(rows == 0.0, -0.0, rows)
        method = OnlineFmapls(source)
        ours, theirs = method.init(), method.init()
        assert learn(native, method, ours, signed) == learn(native, method, theirs, rows) == reference.DONE
        np.testing.assert_array_equal(ours, theirs)


def test_threads_learn_side_by_side() -> None:
    source, rows = draw(100, 2000)
    streams = [rp.Stream("online-ebls", source) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda stream: stream.learn_many(rows), streams))
    assert len({stream.to_bytes() for stream in streams}) == 1
