"""The command line against its promises: start-up, estimating from Parquet, correcting NPY, streaming."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from _record import markdown, progress, store

import reprior as rp

REPRIOR = [sys.executable, "-c", "from reprior.cli import main; main()"]
READ_TABLE = "import sys, pyarrow.parquet as pq; pq.read_table(sys.argv[1])"
READ_BATCHES = """import sys, pyarrow.parquet as pq
for batch in pq.ParquetFile(sys.argv[1]).iter_batches(batch_size=16384): pass"""
COPY = "import sys, shutil; shutil.copyfile(sys.argv[1], sys.argv[2])"
COPY_SAFELY = COPY + "; import os; file = open(sys.argv[2], 'rb+'); os.fsync(file.fileno())"


def child(*command: Any) -> dict[str, float]:
    """Run a command; return its CPU and wall seconds and its peak memory in MB."""
    start = time.perf_counter()
    process = subprocess.Popen([str(word) for word in command], stdout=subprocess.DEVNULL)
    status, used, peak = watched(process.pid)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, command
    cpu = used.ru_utime + used.ru_stime
    return {"cpu": cpu, "wall": time.perf_counter() - start, "mb": peak}


def watched(pid: int) -> tuple[int, Any, float]:
    """Wait for a process; return its status, what it used, and its peak memory in MB.

    The system's own figure, ru_maxrss, starts with what the parent had when it forked, so the peak is looked up.
    """
    peak = 0.0
    while True:
        done, status, used = os.wait4(pid, os.WNOHANG)
        if done:
            return status, used, peak
        about = Path(f"/proc/{pid}/status").read_text()
        peak = max(peak, *(int(line.split()[1]) / 1024 for line in about.splitlines() if line.startswith("VmHWM")), 0.0)
        time.sleep(0.01)


def python(code: str, *args: Any) -> list[Any]:
    return [sys.executable, "-c", code, *args]


def interleaved(contenders: dict[str, Callable[[], list[Any]]], rounds: int, what: str) -> dict[str, dict[str, float]]:
    """Run contenders in turns; return the medians of what they used."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for done in range(rounds):
        for name, command in contenders.items():
            found[name].append(child(*command()))
        progress(done + 1, rounds, what)
    return {name: {key: median(run[key] for run in runs) for key in runs[0]} for name, runs in found.items()}


def outputs(rng: np.random.Generator, labels: Any, means: Any) -> np.ndarray[Any, Any]:
    """Return outputs (n, k) float32, which carry an even mix, of a classifier of overlapping classes at `means`."""
    n, k = len(labels), len(means)
    rows = np.empty((n, k), np.float32)
    for start in range(0, n, 50_000):
        y = labels[start : start + 50_000]
        x = means[y] + rng.normal(size=(len(y), 24))
        logits = x @ means.T - 0.5 * (means**2).sum(axis=1)
        logits = np.exp(logits - logits.max(axis=1, keepdims=True))
        rows[start : start + len(y)] = logits / logits.sum(axis=1, keepdims=True)
    return rows


def target(rng: np.random.Generator, n: int, k: int) -> np.ndarray[Any, Any]:
    """Return outputs (n, k) of such a classifier on a shifted mix."""
    means, mix = 0.7 * rng.normal(size=(k, 24)), rng.dirichlet(np.ones(k))
    return outputs(rng, rng.choice(k, n, p=mix), means)


def estimating(
    folder: Path, rows: np.ndarray[Any, Any], held: np.ndarray[Any, Any], y: np.ndarray[Any, Any], rounds: int
) -> dict[str, dict[str, float]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path, counts = folder / "target.parquet", folder / "counts.json"
    offsets = np.arange(0, rows.size + 1, rows.shape[1], dtype=np.int32)
    lists = pa.ListArray.from_arrays(offsets, pa.array(rows.ravel()))
    pq.write_table(pa.table({"proba": lists}), path, row_group_size=1 << 16)
    counts.write_text(json.dumps([1] * rows.shape[1]))
    rp.pipeline(held, y, counts=[1000] * rows.shape[1]).save(folder / "known.reprior")
    ours = [*REPRIOR, "estimate", path, "-s", counts, "--json"]
    return interleaved({
        "interpreter": lambda: python("pass"), "import pyarrow.parquet": lambda: python("import pyarrow.parquet"),
        "pyarrow read_table": lambda: python(READ_TABLE, path), "pyarrow batches": lambda: python(READ_BATCHES, path),
        "mlls": lambda: [*ours, "-m", "mlls", "--no-interval"], "mlls, intervals": lambda: [*ours, "-m", "mlls"],
        "ebls": lambda: [*ours, "--no-interval", "-m", "ebls"], "counts alone": lambda: ours,
        "held-out rows and counts": lambda: [*REPRIOR, "estimate", path, "-s", folder / "known.reprior", "--json"],
    }, rounds, "estimate")  # fmt: skip


def correcting(folder: Path, rows: np.ndarray[Any, Any], times: int, rounds: int) -> dict[str, dict[str, float]]:
    path, prior, out = folder / "target.npy", folder / "prior.json", folder / "out.npy"
    big = np.lib.format.open_memmap(path, "w+", rows.dtype, (times * len(rows), rows.shape[1]))
    for i in range(times):
        big[i * len(rows) : (i + 1) * len(rows)] = rows
    big.flush()
    del big
    prior.write_text(json.dumps(list(range(1, rows.shape[1] + 1))))
    (folder / "counts.json").write_text(json.dumps([1] * rows.shape[1]))

    def fresh(command: list[Any]) -> list[Any]:
        out.unlink(missing_ok=True)
        return command

    ours = [*REPRIOR, "correct", path, "-s", folder / "counts.json", "--prior", prior, "-o", out]
    return interleaved({
        "copy": lambda: fresh(python(COPY, path, out)), "copy, synced": lambda: fresh(python(COPY_SAFELY, path, out)),
        "correct": lambda: fresh(ours),
    }, rounds, "correct")  # fmt: skip


def streaming(folder: Path, rng: np.random.Generator, rounds: int) -> dict[str, dict[str, float]]:
    import msgpack

    rows = rng.dirichlet(np.ones(10), 1_000_000)
    forms: dict[str, tuple[int, Callable[[Any], bytes]]] = {
        "msgpack, lists": (len(rows), msgpack.packb),
        "msgpack, raw float32": (len(rows), lambda row: msgpack.packb(np.asarray(row, "<f4").tobytes())),
        "NDJSON, lists": (200_000, lambda row: json.dumps(row).encode() + b"\n"),
        "NDJSON, objects": (200_000, lambda row: json.dumps({"id": "a", "proba": row}).encode() + b"\n"),
    }
    (folder / "ten.json").write_text(json.dumps([1] * 10))
    contenders = {}
    for number, (name, (n, pack)) in enumerate(forms.items()):
        (folder / f"in{number}").write_bytes(b"".join(map(pack, rows[:n].tolist())))

        def command(number: int = number) -> list[Any]:
            (folder / "state").unlink(missing_ok=True)
            job = [*REPRIOR, "stream", folder / f"in{number}", "-s", folder / "ten.json", "-o", folder / "out"]
            return [*job, "--state", folder / "state"]

        contenders[name] = command
    found = interleaved(contenders, rounds, "stream")
    for name, (n, _) in forms.items():
        found[name]["rows/s"] = n / found[name]["cpu"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = interleaved({"--help": lambda: [*REPRIOR, "--help"]}, 3 * options.rounds, "help")
        stream = streaming(folder, rng, options.rounds)
        means, mix = 0.7 * rng.normal(size=(100, 24)), rng.dirichlet(np.ones(100))
        rows = outputs(rng, rng.choice(100, options.rows, p=mix), means)
        y = rng.integers(100, size=5000)
        estimate = estimating(folder, rows, outputs(rng, y, means), y, options.rounds)
        correct = correcting(folder, rows, 4, options.rounds)
    read, batches, base = estimate["pyarrow read_table"], estimate["pyarrow batches"], estimate["interpreter"]["mb"]
    lines = [["`reprior --help`", f"{1000 * start['--help']['cpu']:.0f} ms", "≤ 150 ms"]]
    for method in ("mlls", "mlls, intervals", "ebls"):
        cpu, peak = estimate[method]["cpu"], estimate[method]["mb"] - base
        lines.append([f"estimate {options.rows / 1e6:g} M × 100 float32, {method}",
                      f"{cpu:.2f} s: {cpu / read['cpu']:.2f} × `read_table` ({read['cpu']:.2f} s), "
                      f"{cpu / batches['cpu']:.2f} × `iter_batches`", "≤ 3 ×"])  # fmt: skip
        lines.append(["… memory above the interpreter", f"{peak:.0f} MB", "≤ 300 MB"])
    known, alone = estimate["held-out rows and counts"]["cpu"], estimate["counts alone"]["cpu"]
    lines.append([f"estimate {options.rows / 1e6:g} M × 100 float32 with 5,000 held-out rows, counts, intervals",
                  f"{known:.2f} s: {known / alone:.2f} × counts alone ({alone:.2f} s)", "≤ 3 ×"])  # fmt: skip
    size = f"correct NPY, {4 * rows.nbytes / 1e9:.1f} GB"
    for copy in ("copy", "copy, synced"):
        ratio = {key: correct[copy][key] / correct["correct"][key] for key in ("cpu", "wall")}
        lines.append(
            [f"{size}, speed against {copy}", f"{ratio['cpu']:.0%} by CPU, {ratio['wall']:.0%} by clock", "≥ 50 %"]
        )
    asked = {"msgpack, lists": "≥ 200,000", "NDJSON, lists": "≥ 30,000"}
    lines += [
        [f"stream K=10, {form}", f"{run['rows/s']:,.0f} rows/s", asked.get(form, "")] for form, run in stream.items()
    ]
    table = markdown(["what", "measured (CPU time unless said otherwise, median)", "asked"], lines)
    store("cli", {"help": start, "estimate": estimate, "correct": correct, "stream": stream}, table)


if __name__ == "__main__":
    main()
