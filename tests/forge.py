"""States that were damaged or written on purpose: bytes with a right checksum that no release of reprior has written.

python tests/forge.py [--damaged 100000] [--forged 10000] [--seed 0]
prints how many of each were refused, how many were accepted and are valid, and the most memory that one of them took.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import tracemalloc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import reprior as rp
from reprior.online.acting import without_warning
from reprior.rows.calibrated import Calibrator
from reprior.state import HEAD, MAGIC, PROTOCOL, checksum, encode

K = 5
SPARE = 1 << 17  # bytes that reading the smallest state may take: Python objects, and what NumPy works with
ODD_NUMBERS = (math.nan, math.inf, -math.inf, -1.0, -1e-9, 0.0, 0.5, 1.0, 2.0, 1e9, 4e6, 1e300, -1e300, 5e-324, 2.0**53)
ODD_VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 2, 10**9, 10**30, 1e308, 0.5, -0.5, "", "x", "online-ebls", "predicted", "observed",
    "ga", "paper", "auto", [], {}, [1], [[]], {"a": 1}, ["a"] * K, [0] * K,
)  # fmt: skip
DTYPES = ("<f8", "<f4", "<f2", ">f8", "<i8", "<u8", "|u1", "|b1", "|O", "<U4", "|S8", "<c16", "<M8[s]", "|V8", "x", "")
SHAPES: tuple[Any, ...] = (
    [], [0], [1], [-1], [10**12], [1 << 62, 4], [0, 10**18], [2, 3], [True], [1.0], "5", None, [[5]], [1] * 40, [K, K],
)  # fmt: skip


def problem() -> tuple[rp.Source, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(K), 120)
    labels = np.append(np.arange(K), [rng.choice(K, p=row) for row in rows[K:60]])
    return rp.summarize(rows[:60], labels, classes=tuple("abcde")), rows[60:]


SOURCE, ROWS = problem()
Reader = Callable[[bytes], Any]


def originals() -> Iterator[tuple[bytes, Reader]]:
    """Yield one of everything that has bytes, with what reads it."""
    cal = Calibrator("vector", np.linspace(0.5, 1.5, K), np.linspace(-0.3, 0.3, K), 1e-9, 100, -0.5)
    yield cal.to_bytes(), Calibrator.from_bytes
    options: list[dict[str, Any]] = [
        {}, {"gamma": 0.5}, {"gamma": 0.5, "delta": "predicted"}, {"gamma": 0.5, "delta": "observed"}, {"update": "ga"},
        {"variant": "paper", "c": 900.0},
    ]  # fmt: skip
    made = [("online-fmapls", o) for o in options] + [("online-ebls", {}), ("online-ebls", {"drift": False}),
                                                     ("online-ebls", {"robust": 0.01})]  # fmt: skip
    made += [(name, {}) for name in rp.ONLINE if not name.startswith("online")]
    for name, chosen in made:
        small = {"experts": 20} if name == "flh-ftl" else {"window": 20} if name == "ftfwh" else chosen
        stream = rp.Stream(name, SOURCE, calibrator=cal if name == "online-ebls" else None, **small)
        stream.learn_many(ROWS)
        yield stream.to_bytes(), rp.Stream.from_bytes
    for name in ("online-fmapls", "online-ebls"):
        table = rp.StreamTable(name, SOURCE)
        table.learn(["a", "b", 7] * 20, ROWS)
        yield table.to_bytes(), rp.StreamTable.from_bytes
    alarm, alarms = rp.Alarm(SOURCE), rp.AlarmTable(SOURCE)
    alarm.watch(rp.Stream("online-ebls", SOURCE), ROWS, np.arange(60.0))
    alarms.watch(rp.StreamTable("online-ebls", SOURCE), ["a", 7] * 30, ROWS)
    yield alarm.to_bytes(), rp.Alarm.from_bytes
    yield alarms.to_bytes(), rp.AlarmTable.from_bytes
    held, y = SOURCE.heldout
    yield rp.pipeline(held, y, classes=SOURCE.classes).to_bytes(), rp.load
    yield encode("stream-job", {"stream": np.frombuffer(stream.to_bytes(), np.uint8), "offset": 1}), rp.load


def taken_apart(data: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """Return the header of bytes, and what each array holds."""
    (_, _, length), at = HEAD.unpack_from(data), HEAD.size
    header, at = json.loads(data[at : at + length]), at + length
    arrays = []
    for _, dtype, shape in header["arrays"]:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        arrays.append(data[at : at + size])
        at += size
    return header, arrays


def put_together(text: bytes, arrays: list[bytes], length: int | None = None) -> bytes:
    body = HEAD.pack(MAGIC, PROTOCOL, len(text) if length is None else length) + text + b"".join(arrays)
    return body + checksum(body, None)


def forged(data: bytes, rng: np.random.Generator) -> bytes:
    """Return bytes that differ from `data` in one to three places, with a right checksum."""
    header, arrays = taken_apart(data)
    length: int | None = None
    for _ in range(int(rng.integers(1, 4))):
        way, i = int(rng.integers(10)), int(rng.integers(len(arrays)))
        entry = header["arrays"][i] if i < len(header["arrays"]) else None
        if way <= 3 and entry is not None and entry[1] == "<f8" and len(arrays[i]) // 8 * 8 == len(arrays[i]) > 0:
            x = np.frombuffer(arrays[i], "<f8").copy()
            where = rng.integers(len(x), size=int(rng.integers(1, 4)))
            x[where] = rng.choice(ODD_NUMBERS) if way < 2 else x[where] * rng.choice([-1.0, 0.0, 1e10, 1e-10, 1.5])
            arrays[i] = (rng.permutation(x) if way == 3 else x).tobytes()
        elif way == 4 and entry is not None:
            entry[int(rng.integers(1, 3))] = copy.deepcopy(rng.choice(np.array([*DTYPES, *SHAPES], object)))
        elif way == 5 and entry is not None:  # longer or shorter, and it says so
            many = int(rng.integers(0, 3 * K))
            arrays[i], entry[2] = arrays[i][: 8 * many].ljust(8 * many, b"\0"), [many]
        elif way in (6, 7):
            fields = header["fields"]
            inner = [fields[name] for name in ("options", "verdict", "0_verdict") if isinstance(fields.get(name), dict)]
            spot = inner[0] if inner and way == 7 else fields
            names = [*spot, "experts", "memory", "extra"]
            spot[names[int(rng.integers(len(names)))]] = copy.deepcopy(ODD_VALUES[int(rng.integers(len(ODD_VALUES)))])
        elif way == 8:
            what = int(rng.integers(6))
            if what == 0:
                header["kind"] = str(rng.choice(["stream", "stream-table", "alarm", "calibrator", "", "pipeline"]))
            elif what == 1 and header["fields"]:
                header["fields"].pop(list(header["fields"])[int(rng.integers(len(header["fields"])))])
            elif what == 2 and entry is not None:
                header["arrays"].pop(i)
            elif what == 3:
                length = int(rng.choice([0, 1, 7, 1 << 20, (1 << 32) - 1]))
            elif what == 4:
                arrays.append(bytes(int(rng.integers(1, 40))))
            else:
                header = {**header, str(rng.choice(["fields", "arrays", "kind"])): ODD_VALUES[int(rng.integers(27))]}
                break
    text = json.dumps(header).encode()
    if rng.random() < 0.1:
        nested = b"[" * 100_000 if rng.random() < 0.3 else b"NaN" if rng.random() < 0.5 else b"1e999"
        text = text.replace(b'"fields": {', b'"fields": {"deep": ' + nested + b",", 1)
    if rng.random() < 0.1:
        changed = bytearray(text)
        changed[int(rng.integers(len(changed)))] ^= 1 << int(rng.integers(8))
        text = bytes(changed)
    return put_together(text, arrays, length)


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Return `data` as a bad disk, a cut line or a careless program may leave it."""
    changed, way = bytearray(data), int(rng.integers(4))
    at = int(rng.integers(len(data)))
    if way == 0:
        changed[at] ^= 1 << int(rng.integers(8))
    elif way == 1:
        del changed[at:]
    elif way == 2:
        changed[at : at + int(rng.integers(1, 64))] = rng.bytes(int(rng.integers(64)))
    else:
        changed += rng.bytes(int(rng.integers(1, 64)))
    return bytes(changed)


def alike_rows(calibrator: Any, n: int, k: int) -> np.ndarray:
    """Return n rows without preference for a class, as the calibrator reads them: logits or probabilities."""
    of_logits = calibrator is not None and calibrator.of_logits
    return np.full((n, k), 0.0 if of_logits else 1 / k)


def valid(value: Any) -> bool:
    """Return whether what was read does all that such a value does, and nothing turns into what is no prior."""

    def is_prior(x: Any) -> bool:
        return bool(np.isfinite(x).all() and (x > 0).all() and abs(x.sum() - 1) < 1e-5)

    if isinstance(value, Calibrator):
        out = value(alike_rows(value, 2, len(value.scale)))
        return bool(np.isfinite(out).all() and np.allclose(out.sum(axis=1), 1))
    if isinstance(value, rp.Alarm):
        verdict = value.look(np.full((40, len(value.plan.mean)), 1 / len(value.plan.mean)), value.plan.mean)
        return bool(np.isfinite(verdict.evidence)) and rp.Alarm.from_bytes(value.to_bytes()).verdict == verdict
    if isinstance(value, rp.AlarmTable):
        return all(np.isfinite(value[key].evidence) for key in value) and valid(value.model)
    if isinstance(value, rp.StreamTable):
        return all(valid(value.pop(key)) for key in value)
    k = len(value.source.prior)
    if isinstance(value, rp.Pipeline):
        est = value.estimate(alike_rows(value.calibrator, 20, k), on_reject="ignore")
        fixed = est.correct(alike_rows(value.calibrator, 2, k))
        return bool((est.prior >= 0).all()) and is_prior(est.prior + 1e-9) and np.allclose(fixed.sum(axis=1), 1)
    rows = np.vstack([np.eye(k)[:3] * 0.999 + 0.001 / k, np.full((20, k), 1 / k)])
    if not is_prior(value.prior):
        return False
    with without_warning():  # a forged state may find that its samples have drifted
        value.learn_many(rows)
    value.observe(rows[0], 1)
    with without_warning():  # a forged state may find that its samples have drifted
        value.learn_many(rows)
    if value.method.name.startswith("online"):
        lower, upper = value.interval()
        if not ((lower >= 0) & (lower <= upper) & (upper <= 1)).all():
            return False
    corrected = value.correct_many(rows)
    return is_prior(value.prior) and bool(np.allclose(corrected.sum(axis=1), 1))


def trial(change: Callable[[bytes, np.random.Generator], bytes], times: int, seed: int) -> tuple[Counter[str], float]:
    """Return what became of so many changed states, and the most memory that one took as a multiple of its size.

    `SPARE` is left out of that multiple. Any error but the one users see, or a valid-looking state that is none, stops.
    """
    made, rng, answer, most = list(originals()), np.random.default_rng(seed), Counter[str](), 0.0
    for data, reader in made:
        reader(data)  # what is imported on first use is no part of a state
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "Less than half of the correction")
    for number in range(times):
        data, reader = made[number % len(made)]
        with np.errstate(all="ignore"):
            bad = change(data, rng)
        if bad == data:
            continue
        tracemalloc.start()
        try:
            value = reader(bad)
        except rp.InputError:
            answer["refused"] += 1
            value = None
        finally:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        most = max(most, (peak - SPARE) / max(len(bad), 1))
        if value is not None:
            answer["accepted and valid"] += 1
            if not valid(value):
                raise AssertionError(f"number {number} was accepted and is not valid: {reader.__qualname__}")
    return answer, most


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--damaged", type=int, default=100_000)
    parser.add_argument("--forged", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    for name, change, times in (("forged", forged, asked.forged), ("damaged", damaged, asked.damaged)):
        answer, most = trial(change, times, asked.seed)
        print(name, dict(answer), f"at most {most:.2f} times its size, beside {SPARE} bytes")


if __name__ == "__main__":
    main()
