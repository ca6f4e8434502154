"""The command line on large files, memory limits, very long streams and crafted samples: what operators ask.

    python benchmarks/operations.py [files memory long robust ...]

`files`: start-up, estimating from Parquet, correcting NPY, streaming (10 minutes, 5 GB of disk). `memory`: a 4.4 GB
Parquet folder under 1 GB of address space (5 minutes, 10 GB). `long`: whether a stream is still valid after 100 million
samples. `robust`: what crafted samples move a stream by, with and without `robust=`.
"""

from __future__ import annotations

import json
import os
import pty
import re
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from _record import markdown, progress, run_parts, store  # isort: split

import numpy as np
from _worlds import shipped, softmax

import reprior as rp
from reprior import metrics, simulate

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
    results: dict[str, list[dict[str, float]]] = {name: [] for name in contenders}
    for done in range(rounds):
        for name, command in contenders.items():
            results[name].append(child(*command()))
        progress(done + 1, rounds, what)
    return {name: {key: median(run[key] for run in runs) for key in runs[0]} for name, runs in results.items()}


def outputs(rng: np.random.Generator, labels: Any, means: Any) -> np.ndarray[Any, Any]:
    """Return outputs (n, k) float32, which carry an even prior, of a classifier of overlapping classes at `means`."""
    rows = np.empty((len(labels), len(means)), np.float32)
    for start in range(0, len(labels), 50_000):
        y = labels[start : start + 50_000]
        x = means[y] + rng.normal(size=(len(y), means.shape[1]))
        rows[start : start + len(y)] = softmax(x @ means.T - 0.5 * (means**2).sum(axis=1))
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
    results = interleaved(contenders, rounds, "stream")
    for name, (n, _) in forms.items():
        results[name]["rows/s"] = n / results[name]["cpu"]
    return results


def files(n_rows: int = 1_000_000, rounds: int = 5) -> None:
    """Store what the command line takes on files."""
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        start = interleaved({"--help": lambda: [*REPRIOR, "--help"]}, 3 * rounds, "help")
        stream = streaming(folder, rng, rounds)
        means, mix = 0.7 * rng.normal(size=(100, 24)), rng.dirichlet(np.ones(100))
        rows = outputs(rng, rng.choice(100, n_rows, p=mix), means)
        y = rng.integers(100, size=5000)
        estimate = estimating(folder, rows, outputs(rng, y, means), y, rounds)
        correct = correcting(folder, rows, 4, rounds)
    read, batches, base = estimate["pyarrow read_table"], estimate["pyarrow batches"], estimate["interpreter"]["mb"]
    lines = [["`reprior --help`", f"{1000 * start['--help']['cpu']:.0f} ms", "≤ 150 ms"]]
    for method in ("mlls", "mlls, intervals", "ebls"):
        cpu, peak = estimate[method]["cpu"], estimate[method]["mb"] - base
        lines.append([f"estimate {n_rows / 1e6:g} M × 100 float32, {method}",
                      f"{cpu:.2f} s: {cpu / read['cpu']:.2f} × `read_table` ({read['cpu']:.2f} s), "
                      f"{cpu / batches['cpu']:.2f} × `iter_batches`", "≤ 3 ×"])  # fmt: skip
        lines.append(["… memory above the interpreter", f"{peak:.0f} MB", "≤ 300 MB"])
    reference, alone = estimate["held-out rows and counts"]["cpu"], estimate["counts alone"]["cpu"]
    lines.append([f"estimate {n_rows / 1e6:g} M × 100 float32 with 5,000 held-out rows, counts, intervals",
                  f"{reference:.2f} s: {reference / alone:.2f} × counts alone ({alone:.2f} s)", "≤ 3 ×"])  # fmt: skip
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
    store("operations_files", {"help": start, "estimate": estimate, "correct": correct, "stream": stream}, table)


def write_parts(folder: Path, rows: np.ndarray[Any, Any], parts: int) -> int:
    """Write the rows once a part, in another order each time; return the bytes on disk."""
    rng = np.random.default_rng(1)
    import pyarrow as pa
    import pyarrow.parquet as pq

    for i in range(parts):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rng.permutation(rows).ravel()), rows.shape[1])
        table = pa.table({"proba": lists})
        pq.write_table(table, folder / f"part-{i:03}.parquet", row_group_size=1 << 16, use_dictionary=False)
        progress(i + 1, parts, "written")
    return sum(path.stat().st_size for path in folder.iterdir())


def estimate(folder: Path, counts: Path, limit: int, *, terminal: bool, method: str = "mlls") -> dict[str, Any]:
    """Run `reprior estimate` under a limit on its address space, with stderr on a terminal or in a pipe."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    shown: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                shown.append(data)
        except OSError:  # a terminal whose other end has closed
            pass

    command = [*REPRIOR, "estimate", str(folder), "-s", str(counts), "-m", method, "--no-interval", "--json"]
    start = time.perf_counter()
    terminal_of = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=theirs, env=terminal_of,
                               preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))  # fmt: skip
    os.close(theirs)
    reader = threading.Thread(target=read)
    reader.start()
    status, used, peak = watched(process.pid)
    process.returncode = os.waitstatus_to_exitcode(status)
    reader.join()
    os.close(ours)
    assert process.stdout is not None
    with process.stdout as result:  # short enough to wait in the pipe
        out = result.read()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(shown).decode())
    if process.returncode:
        sys.exit(text)
    bar = [line.strip() for line in re.split(r"[\r\n]+", text) if "pass" in line]
    passes = max((int(number) for line in bar for number in re.findall(r"pass (\d+)", line)), default=0)
    return {"value": json.loads(out), "passes": passes, "wall": time.perf_counter() - start,
            "cpu": used.ru_utime + used.ru_stime, "mb": peak, "bar": bar}  # fmt: skip


def memory(parts: int = 11, limit: int = 1 << 30) -> None:
    """Store an estimate from a folder that is larger than the memory; a part has a million rows, 400 MB."""
    with tempfile.TemporaryDirectory() as name:
        folder, counts = Path(name) / "target", Path(name) / "counts.json"
        folder.mkdir()
        counts.write_text(json.dumps([1] * 100))
        rows = target(np.random.default_rng(0), 1_000_000, 100)
        size = write_parts(folder, rows, parts)
        del rows
        results = estimate(folder, counts, limit, terminal=True)
        other = estimate(folder, counts, limit, terminal=True, method="ebls")
    value = results.pop("value")
    results |= {"bytes": size, "limit": limit, "to_optimum": value["n_iter"], "status": value["status"]}
    results["ebls"] = {key: other[key] for key in ("passes", "cpu", "wall", "mb")}
    results["bar"] = results["bar"][:: max(1, len(results["bar"]) // 12)]
    lines = [
        ["Parquet folder", f"{size / 1e9:.2f} GB, {value['n'] / 1e6:.0f} M × 100 float32 in {parts} parts"],
        ["limit on the address space", f"{limit / 1e9:.2f} GB"],
        ["peak resident memory", f"{results['mb']:.0f} MB"],
        ["`mlls`: passes to a duality gap of 1e-8", f"{value['n_iter']} ({value['status']})"],
        ["with those that count, and check for other shifts", str(results["passes"])],
        ["time", f"{results['cpu']:.0f} s CPU, {results['wall']:.0f} s by clock"],
        ["`ebls`: all passes", str(other["passes"])],
        ["time", f"{other['cpu']:.0f} s CPU, {other['wall']:.0f} s by clock"],
        ["in the middle, the bar said", f"`{results['bar'][len(results['bar']) // 2]}`"],
    ]  # fmt: skip
    store("operations_memory", results, markdown(["what", "measured"], lines))


K = 4
STREAMS = {"online-fmapls": {}, "online-fmapls, memory=20": {"memory": 20.0}, "online-ebls": {}}
TOP = "online-fmapls, top 5 of 1,000"


def exact_outputs(prior, n, rng):
    """Return true posteriors, under even classes, of rows drawn under `prior`."""
    x = rng.normal(size=(n, len(prior))) + 1.5 * np.eye(len(prior))[rng.choice(len(prior), n, p=prior)]
    rows = np.exp(1.5 * x)
    return rows / rows.sum(axis=1, keepdims=True)


def listed(rows, rng, k=1000):
    """Return top-5 rows of 1,000 classes."""
    index = (rows.argmax(axis=1)[:, None] * 200 + np.arange(5) * 37) % k
    return index, np.minimum(rows[:, :1], 0.9) * [0.5, 0.2, 0.15, 0.1, 0.04]


def long_run(label, options, samples, block=20_000):
    rng, top = np.random.default_rng(0), label == TOP
    stream = rp.Stream(label.split(",")[0], np.ones(1000 if top else K), **options)
    start, learned, part = time.process_time(), 0, samples // 100
    while learned < samples:
        if learned % part < block:
            prior = rng.dirichlet(np.ones(K))
            rows = exact_outputs(prior, block, rng)
            rows = listed(rows, rng) if top else rows
        stream.learn_many(rows)
        learned += block
    results = stream.prior
    assert stream.n == learned
    assert np.isfinite(stream.state.values).all()
    assert (results > 0).all()
    error = None if top else 0.5 * float(np.abs(results - prior).sum())
    rp.Stream.from_bytes(stream.to_bytes())  # which checks each of its numbers
    return {"samples": learned, "sum": float(results.sum() - 1), "error": error, "seconds": time.process_time() - start}


def long(samples: int = 100_000_000) -> None:
    """Store whether streams are valid after very many samples; the prior changes a hundred times, then stays."""
    results = {}
    for label, options in {**STREAMS, TOP: {}}.items():  # `online-ebls` and top-k rows take longer per sample
        results[label] = long_run(label, options, samples // 10 if label in ("online-ebls", TOP) else samples)
        print(label, results[label], file=sys.stderr, flush=True)
    lines = [[label, f"{x['samples']:.0e}", f"{x['sum']:.0e}", "" if x["error"] is None else f"{x['error']:.4f}"]
             for label, x in results.items()]  # fmt: skip
    head = ["stream", "samples", "sum of the prior - 1", "total variation from the last true prior"]
    store("operations_long", results, markdown(head, lines))


BOUNDS = (None, 0.01, 0.003, 0.001)
BATCH = ("mlls", "mapls", "fmapls", "ebls")


def moved(one: np.ndarray, other: np.ndarray) -> float:
    return 0.5 * float(np.abs(one - other).sum())


def robust(seeds: int = 5) -> None:
    """Store what 10 one-hot samples of the rarest class move a stream by after 2,000 samples, 20 of 2,020 a batch; and
    what the bound costs: mean KL over the 1,000 samples after a shift, and over the next 1,000."""
    results: dict[tuple[str, str], list[list[float]]] = {}
    batch: dict[str, list[list[float]]] = {}
    for case in shipped(("banking77", "clinc150")):
        held, pool = slice(case.n_heldout), slice(case.n_heldout, None)
        source, k = rp.summarize(case.proba[held], case.y[held]), case.n_classes
        rare = np.repeat(np.eye(k)[[int(source.prior.argmin())]], 20, axis=0)
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            priors = [simulate.shuffled_long_tail(k, 0.02, rng=rng), simulate.dirichlet(k, 1.0, rng=rng)]
            before, after = (simulate.resample(case.proba[pool], case.y[pool], p, n=2000, rng=rng, exact=False).proba
                             for p in priors)  # fmt: skip
            crafted = np.concatenate([before, rare])
            pairs = [[rp.estimate(source, rows, method).prior for rows in (before, crafted)] for method in BATCH]
            batch.setdefault(case.name, []).append([moved(*pair) for pair in pairs])
            for bound in BOUNDS:
                stream = rp.Stream("online-ebls", source, robust=bound)
                stream.learn_many(before)
                burst = rp.Stream.of(stream.state)
                burst.learn_many(rare[:10])
                first, errors = stream.prior, []
                for start in range(0, 2000, 20):
                    stream.learn_many(after[start : start + 20])
                    errors.append(metrics.kl(priors[1], stream.prior))
                cell = [moved(burst.prior, first), float(np.mean(errors[:50])), float(np.mean(errors[50:]))]
                results.setdefault((case.name, str(bound)), []).append(cell)
    means = {key: np.mean(cells, axis=0) for key, cells in results.items()}
    lines = [[*key, *(f"{x:.3f}" for x in mean)] for key, mean in means.items()]
    head = ["classifier", "`robust`", "moved by 10 samples (total variation)", "KL, 1,000 samples after a shift",
            "KL, the next 1,000"]  # fmt: skip
    others = [[name, *(f"{x:.3f}" for x in np.mean(rows, axis=0))] for name, rows in batch.items()]
    table = f"{markdown(head, lines)}\n\n{markdown(['moved by 20 samples of 2,020', *BATCH], others)}"
    figures = {", ".join(key): mean.tolist() for key, mean in means.items()}
    store("operations_robust", {"seeds": seeds, "streams": figures, "batch": others}, table)


PARTS = {"files": files, "memory": memory, "long": long, "robust": robust}


if __name__ == "__main__":
    run_parts(PARTS, __doc__)
