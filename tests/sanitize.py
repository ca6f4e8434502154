"""Run the native kernel under address and undefined-behaviour sanitizers.

python tests/sanitize.py [--calls 1000000] [--no-tests]

builds it into a folder of its own with gcc, makes so many fuzzed calls of its functions for streams and a tenth as many
of those for whole iterations, and then runs the parity and
property tests and those of hostile use. Any finding of a sanitizer ends the process with its report. It needs gcc
with libasan and libubsan, on Linux.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
TESTS = ["tests/parity/test_native.py", "tests/parity/test_e_step.py", "tests/property/test_stream.py",
         "tests/unit/test_hostile.py"]  # fmt: skip
# an odd number of classes takes the kernel with vectors of eight, an even one that with vectors of four
FLAGS = ["-O1", "-g", "-std=c11", "-fno-math-errno", "-ffp-contract=off", "-fno-omit-frame-pointer", "-shared", "-fPIC",
         "-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-DREPRIOR_PLAIN",
         "-DPy_LIMITED_API=0x030B0000", "-DWIDE=", "-DHAS_WIDE=(job.k % 2)"]  # fmt: skip


def build(folder: Path) -> dict[str, str]:
    """Copy the package to `folder` with a kernel built under sanitizers; return the environment to run it in."""
    package = folder / "reprior"
    shutil.copytree(ROOT / "src" / "reprior", package, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    sources = [str(path) for path in sorted((package / "_kernels").glob("*.c"))]
    target = package / "_kernels" / "native.abi3.so"
    include = sysconfig.get_paths()["include"]
    subprocess.run(["gcc", *FLAGS, "-I", include, *sources, "-o", str(target), "-lm"], check=True)
    ask = ["gcc", "-print-file-name=libasan.so"], ["gcc", "-print-file-name=libubsan.so"]
    libraries = [subprocess.run(a, capture_output=True, text=True, check=True).stdout.strip() for a in ask]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT / "tests")]), "LD_PRELOAD": " ".join(libraries),
        "ASAN_OPTIONS": "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1", "PYTHONMALLOC": "malloc",
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1", "OPENBLAS_NUM_THREADS": "1", "REPRIOR_NATIVE": "1",
    }  # fmt: skip


def odd(rng: Any, good: Any) -> Any:
    """Return something in the place of a good argument."""
    import numpy as np

    ways = [
        lambda: None, lambda: b"", lambda: np.float64(1), lambda: np.zeros(()), lambda: np.zeros(0), lambda: "x",
        lambda: np.zeros((3, 0)), lambda: np.zeros((2, 2, 2)), lambda: good[..., ::-1] if np.ndim(good) else good,
        lambda: np.asarray(good, np.float32) if np.ndim(good) else good, lambda: memoryview(bytearray(9))[1:].cast("d"),
        lambda: np.resize(good, tuple(rng.integers(0, 9, np.ndim(good)))) if np.ndim(good) else -1,
        lambda: np.full(np.shape(good), rng.choice([np.nan, -1, 1e300, 0])) if np.ndim(good) else 2**40,
        lambda: np.asarray(good, np.int64) if np.ndim(good) else 10**30, lambda: np.asarray(good, order="F"),
    ]  # fmt: skip
    with np.errstate(all="ignore"):
        return ways[int(rng.integers(len(ways)))]()


def attempt(answer: dict[str, dict[str, int]], call: Any, args: list[Any]) -> None:
    """Call a function of the kernel and count how that ended."""
    from reprior._kernels import reference

    ends = answer.setdefault(call.__name__, {"done": 0, "refused": 0, "raised": 0})
    try:
        ends["done" if call(*args) != reference.REFUSED else "refused"] += 1
    except (TypeError, OverflowError, ValueError, BufferError):
        ends["raised"] += 1


def fuzz(calls: int, seed: int = 0) -> dict[str, dict[str, int]]:
    """Call the functions of native.c so many times: with good arguments, and four times with one of them odd."""
    import numpy as np

    from reprior._kernels import native, reference

    rng, answer = np.random.default_rng(seed), {}
    for _ in range(calls // 5):
        k, n, states = int(rng.integers(2, 30)), int(rng.integers(1, 9)), int(rng.integers(1, 5))
        width, keyed = reference.width(k), bool(rng.integers(2))
        rows = rng.dirichlet(np.ones(k), n)
        if rng.random() < 0.2:
            rows[rng.integers(n), rng.integers(k)] = rng.choice([np.nan, np.inf, -1.0, 0.0, 5.0])
        rows = rows.astype(np.float32) if rng.random() < 0.3 else rows
        truth = reference.padded(rng.uniform(0.01, 100, k))
        which = int(rng.integers(7))
        slots = rng.integers(-1 if rng.random() < 0.1 else 0, states + (rng.random() < 0.1), n) if keyed else None
        c, gamma = rng.choice([0.0, 50.0]), rng.choice([0.5, 1.0])
        options = np.array([k, rng.integers(2), c, gamma, rng.integers(3), 20.0, 1e-4])
        size = 8 + width * int(rng.integers(1, 3))
        state = np.abs(rng.normal(size=(states, size) if keyed else size))
        if rng.random() < 0.3:  # numbers that no state has
            state.reshape(-1)[rng.integers(state.size, size=4)] = rng.choice([np.nan, 4e6, -5.0, 1e300, np.inf])
        args: list[Any]
        if which == 0:
            call, args = native.fmapls, [state, truth, options, slots, rows, 2]
        elif which == 1:
            call, listed = native.fmapls_top, int(rng.integers(1, k))
            index = np.argsort(rng.random((n, k)), axis=1)[:, :listed].astype(np.int64)
            if rng.random() < 0.3:
                index[rng.integers(n), rng.integers(listed)] = rng.choice([-1, k, 10**12, 0])
            value = rng.dirichlet(np.ones(listed + 1), n)[:, :listed]
            args = [state, truth, options, slots, index, np.ascontiguousarray(value), 2]
        elif which == 2:
            filters, caution = int(rng.integers(1, 5)), float(rng.choice([0.0, 0.1]))
            size = 2 + 3 * filters + 2 * filters * width + 3 * width
            state = np.abs(rng.normal(size=(states, size) if keyed else size))
            bank = np.abs(rng.normal(size=(filters, 5))) * rng.choice([0.0, 1.0, 30.0])
            kept = np.zeros((4, width))
            kept[:2], kept[2:, :k] = truth, rng.dirichlet(np.ones(k), 2)
            settings = np.array([k, 0.001, 0.01, caution, *rng.choice([[0.0, 0.4], [0.05, 0.1]])])
            call, args = native.ebls, [state, kept, settings, bank, np.zeros((0, 16)), slots, rows, 2]
            if rng.random() < 0.3:
                shown, constants = np.zeros((3, width)), np.concatenate([kept, truth[:1]])
                call, args = native.ebls_weights, [np.abs(rng.normal(size=size)), constants,
                                                   np.array([k, filters, 0.9, 1e-12]), 0.5, shown]  # fmt: skip
        elif which == 3:
            call, args = native.correct, [truth, k, rows, np.empty_like(rows), 2]
        elif which == 4:
            call, args = native.first_bad_row, [rows]
        elif which == 5:
            call, args = native.calibrate, [np.tile(truth[:1], (3, 1)), k, rows, np.empty(rows.shape), 1e-6]
        else:
            weights = np.zeros(width)
            weights[:k] = rng.uniform(0.1, 3, k)
            call, args = native.e_step, [rows, weights, np.zeros((int(rng.integers(1, 3)), width)), 1]
        for turn in range(5):
            spot, inputs = int(rng.integers(len(args))), list(args)
            if turn:
                inputs[spot] = odd(rng, args[spot])
            attempt(answer, call, inputs)
    return answer


def fuzz_small(calls: int, seed: int = 0) -> dict[str, dict[str, int]]:
    """Call the functions of small.c so many times, in the same way; only their limits on steps stay small."""
    import numpy as np

    from reprior._kernels import native, reference

    rng, answer = np.random.default_rng(seed), {}
    for _ in range(calls // 5):
        k, n, groups = (int(x) for x in rng.integers((2, 1, 1), (30, 12, 5)))
        n, width = max(n, groups), reference.width(k)
        rows = rng.dirichlet(np.ones(k), n)
        if rng.random() < 0.2:
            rows[rng.integers(n), rng.integers(k)] = rng.choice([np.nan, np.inf, -1.0, 0.0, 5.0])
        rows = rows.astype(np.float32) if rng.random() < 0.3 else rows
        inverse, prior = np.zeros((2, width))
        inverse[:k], prior[:k] = rng.uniform(0.01, 100, k), rng.dirichlet(np.ones(k))
        slots = rng.integers(-1 if rng.random() < 0.1 else 0, groups + (rng.random() < 0.1), n)
        weights = np.tile(prior, (groups, 1))
        sums, which = np.abs(rng.normal(size=(groups, 2, width))), int(rng.integers(3))
        args: list[Any]
        if which == 0:
            call, args = native.em, [rows, inverse, prior, np.array([1.0, 1, 0, 1e-300, 0, 0]), 3]
        elif which == 1:
            call, args = native.climb, [rows, inverse, prior, np.zeros(2 + width), np.zeros((k, k)), 1e-6, 9]
        else:
            call, args = native.group_counts, [rows, inverse, slots, weights, sums, np.zeros(groups)]
        for turn in range(5):
            spot, inputs = int(rng.integers(len(args))), list(args)
            if turn and not isinstance(args[spot], int):
                inputs[spot] = odd(rng, args[spot])
            attempt(answer, call, inputs)
    return answer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-tests", action="store_true")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.inside:
        answer = fuzz(asked.calls, asked.seed) | fuzz_small(asked.calls // 10, asked.seed)
        print(*(f"{name}: {ends}" for name, ends in answer.items()), sep="\n")
        if any(ends["done"] * 20 < sum(ends.values()) for ends in answer.values()):
            raise SystemExit("A function refused nearly every call: the arguments made here are none of its own.")
        return
    with tempfile.TemporaryDirectory() as folder:
        environment, start = build(Path(folder)), time.monotonic()
        again = [sys.executable, __file__, "--inside", "--calls", str(asked.calls), "--seed", str(asked.seed)]
        subprocess.run(again, env=environment, check=True, cwd=folder)
        print(f"{asked.calls} calls in {time.monotonic() - start:.0f} s: nothing found")
        if not asked.no_tests:
            tests = [str(ROOT / path) for path in TESTS]
            run = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--rootdir", str(ROOT)]
            subprocess.run([*run, *tests], env=environment, check=True, cwd=ROOT / "tests")


if __name__ == "__main__":
    main()
