"""Spark on this machine. `growth`: seconds a pass and memory of the driver by rows, and answers beside NumPy's.
`command`: `reprior spark estimate` beside `reprior estimate`. `groups`: 100,000 of them. `stream`: rows a second."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _record import RESULTS, circumstances, markdown, store

import reprior as rp
from reprior._kernels import reference
from reprior.rows.blocks import ArrayBlocks
from reprior.rows.passes import e_step

K, PARTS, PASSES, IN_MEMORY = 100, 8, 7, 1_000_000
REPRIOR = [sys.executable, "-c", "from reprior.cli import main; main()"]
IMAGE = Path(__file__).parents[1] / "docs" / "img" / "spark-growth.png"
MASTER = "local[2,4]"


def outputs(
    n: int, seed: int, prior: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:  # fmt: skip
    """Return a classifier's outputs (n, K) of float32 on rows drawn from `prior`, and their classes."""
    k = len(prior)
    rng, centres = np.random.default_rng(seed), np.random.default_rng(0).normal(size=(k, 8)).astype(np.float32)
    y = rng.choice(k, n, p=prior)
    logits = (centres[y] + 0.8 * rng.normal(size=(n, 8)).astype(np.float32)) @ centres.T * 1.5
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    return logits / logits.sum(axis=1, keepdims=True), y


def write(folder: Path, n: int, parts: int = PARTS) -> Path:
    """Write n target rows as so many Parquet files."""
    folder.mkdir()
    mix = rp.simulate.dirichlet(K, 1, rng=1)
    for i, size in enumerate(np.diff(np.linspace(0, n, parts + 1).astype(int))):
        path = folder / f"part-{i:03}.parquet"
        schema = pa.schema({"shop": pa.int64(), "seq": pa.int64(), "proba": pa.list_(pa.float32(), K)})
        with pq.ParquetWriter(path, schema, use_dictionary=False) as file:
            for j, first in enumerate(range(0, int(size), 1 << 16)):
                seq = np.arange(first, min(first + (1 << 16), size))
                table = listed(outputs(len(seq), 1000 * i + j + 10, mix)[0], shop=seq % 100, seq=seq)
                file.write_table(table.select(schema.names))
    return folder


def listed(rows: np.ndarray[Any, Any], **more: Any) -> Any:
    """Return a table with a list column of rows."""
    return pa.table({**more, "proba": pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), rows.shape[1])})


def rows_of(folder: Path) -> np.ndarray[Any, Any]:
    parts = [pq.read_table(path)["proba"].combine_chunks().flatten().to_numpy() for path in sorted(folder.iterdir())]
    return np.concatenate(parts).reshape(-1, K)


def timed(fn: Any) -> tuple[float, Any]:
    start = time.perf_counter()
    value = fn()
    return time.perf_counter() - start, value


def high_water() -> float:
    """Return the most memory that this process has had, in MB."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def grown(folder: str, model: str, *more: str) -> dict[str, Any]:
    """Return the figures of one driver: a folder, first without the rows in memory, then beside NumPy if they fit."""
    from reprior.adapters.spark import SparkBlocks
    from reprior.adapters.spark.session import session

    pipe = rp.load(model)
    begin, spark = timed(lambda: session(MASTER))
    workers, _ = timed(lambda: spark.sparkContext.parallelize([0, 1], 2).map(str).collect())
    look, blocks = timed(lambda: SparkBlocks(spark, folder))
    whole, results = timed(lambda: pipe.estimate(blocks))
    again, _ = timed(lambda: pipe.estimate(blocks))
    weights, calibrated = results.weights, pipe.rows(blocks)
    figures = {"rows": results.n, "session": begin, "workers": workers, "survey": look, "estimate": whole,
               "estimate again": again, "driver MB": high_water(), "pass": [], "numpy": [], "kernel": []}  # fmt: skip
    held = ArrayBlocks(pipe.calibrator(rows_of(Path(folder)).astype(np.float64))) if results.n <= IN_MEMORY else None
    for _ in range(PASSES):  # in turn, since the machine may be busy
        figures["pass"].append(timed(lambda: e_step(calibrated, weights))[0])
        if held is not None:
            figures["kernel"].append(timed(lambda: e_step(held, weights))[0])
            figures["numpy"].append(timed(lambda: held.map_sum(lambda b: reference_pass(b, weights)))[0])
    if held is not None:
        expected = pipe.estimate(rows_of(Path(folder))).prior
        figures["difference"] = {Path(folder).name: float(np.abs(results.prior - expected).max())}
        for other in more:
            prior = pipe.estimate(SparkBlocks(spark, other), check=False).prior
            figures["difference"][Path(other).name] = float(np.abs(prior - expected).max())
    figures["load"] = circumstances()["load"][0]
    spark.stop()
    return figures


def reference_pass(block: Any, weights: Any) -> Any:
    """Return the sums of an E-step by NumPy alone."""
    aligned = np.zeros(reference.width(K))
    aligned[:K] = weights
    sums = np.zeros((1, len(aligned)))
    reference.e_step(block, aligned, sums, False)
    return sums


def by_groups(folder: str, model: str) -> dict[str, Any]:
    """Return seconds and answers of groups on Spark and in memory."""
    from reprior.adapters.spark import groups
    from reprior.adapters.spark.session import session

    pipe, spark = rp.load(model), session(MASTER)
    spark.range(10).count()
    taken, results = timed(lambda: groups(pipe, spark, folder, by="group"))
    memory = high_water()
    table = pq.read_table(folder)
    rows = table["proba"].combine_chunks().flatten().to_numpy().reshape(table.num_rows, -1)
    alone, expected = timed(lambda: pipe.groups(table["group"].to_numpy(), rows))
    spark.stop()
    order = [expected.keys.index(key) for key in results.keys] if results.keys != expected.keys else slice(None)
    return {"rows": len(rows), "groups": len(results.keys), "classes": rows.shape[1], "seconds": taken, "memory": alone,
            "driver MB": memory, "prior": float(np.abs(results.prior - expected.prior[order]).max()),
            "variance": float(np.abs(results.variance - expected.variance[order]).max()),
            "population": str(results.population) == str(expected.population)}  # fmt: skip


def streamed(folder: str, model: str, out: str) -> dict[str, Any]:
    """Return the rows a second of a keyed stream over a folder, a file a micro-batch."""
    from reprior.adapters.spark.session import session
    from reprior.adapters.spark.stream import follow, write_batch

    spark = session(MASTER)
    coming = spark.readStream.schema(spark.read.parquet(folder).schema).option("maxFilesPerTrigger", 1).parquet(folder)
    rows = follow(rp.load(model), coming, key="shop", order="seq")
    query = (
        rows.writeStream.foreachBatch(partial(write_batch, out, "shop"))
        .option("checkpointLocation", f"{out}/checkpoint").trigger(availableNow=True).start()
    )  # fmt: skip
    query.awaitTermination()
    done = [p for p in query.recentProgress if p["numInputRows"]]
    spark.stop()
    return {"rows": done[0]["numInputRows"], "rows/s": [p["processedRowsPerSecond"] for p in done]}


def called(what: str, *args: Any) -> Any:
    """Return what a fresh process of this file finds."""
    words = [sys.executable, __file__, f"={what}", *map(str, args)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(ended.stderr[-3000:])
    return json.loads(ended.stdout.splitlines()[-1])


def fitted(folder: Path, k: int = K) -> Path:
    """Write a pipeline that held-out rows have made."""
    held, y = outputs(5000, 3, np.full(k, 1 / k))
    rp.pipeline(held.astype(np.float64), y).save(folder / "model.reprior")
    return folder / "model.reprior"


def growth(folder: Path, sizes: list[int]) -> None:
    model, results = fitted(folder), []
    for n in sizes:
        rows, more = write(folder / f"{PARTS}-files", n), []
        if n == sizes[0]:  # the same rows, cut otherwise
            for p in (1, 3):
                more.append(folder / f"{p}-files")
                more[-1].mkdir()
                for i, part in enumerate(np.array_split(rows_of(rows), p)):
                    pq.write_table(listed(part), more[-1] / f"part-{i:03}.parquet")
        results.append(called("grown", rows, model, *more))
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
        for path in (rows, *more):
            shutil.rmtree(path)
    store("spark", {"sizes": results}, growth_told(results))
    if json.loads((RESULTS / "spark.json").read_text(encoding="utf-8")).get("sizes") == results:  # else it was a trial
        draw(results)


def growth_told(sizes: list[dict[str, Any]]) -> str:
    passes = [float(np.median(size["pass"])) for size in sizes]
    low, each = sizes[0], 10  # million rows of a core: 10⁹ rows on 100 executors of one core
    numpy, kernel = (float(np.median(low[name])) for name in ("numpy", "kernel"))
    rows = [
        [f"{size['rows']:,.0f}", f"{size['session'] + size['workers']:.1f}", f"{size['estimate']:.1f}",
         f"{size['estimate again']:.1f}", f"{took:.2f}", f"{size['driver MB']:.0f}", f"{size['load']:.0f}"]
        for size, took in zip(sizes, passes, strict=True)
    ]  # fmt: skip
    head = ["rows", "start, s", "`estimate`, s", "again, s", "a pass, s", "driver, MB", "load"]
    projected = []
    for size, took in zip(sizes[1:], passes[1:], strict=True):
        more = (size["rows"] - low["rows"]) / 2e6  # for each of two cores
        whole, further = (size["estimate"] - low["estimate"]) / more, (took - passes[0]) / more
        ahead = each - low["rows"] / 2e6
        projected.append(
            f"From {low['rows']:,.0f} to {size['rows']:,.0f} rows `estimate` grew by {whole:.1f} s and a pass by"
            f" {further:.2f} s for each million rows of a core. At that rate {each} million rows a core take"
            f" {low['estimate'] + ahead * whole:.0f} s and a further pass {passes[0] + ahead * further:.0f} s."
        )
    differ = "; ".join(f"{name} {value:.1e}" for name, value in low["difference"].items())
    return "\n\n".join([
        f"`local[2]`, K = {K}, {PARTS} files, calibrated rows kept between passes; median of {PASSES} passes.",
        markdown(head, rows),
        f"At {low['rows']:,.0f} rows, in turn with those passes, a pass over calibrated rows in memory took"
        f" {numpy:.3f} s by NumPy and {kernel:.3f} s by the native kernel: Spark's took {passes[0] / numpy:.1f} times"
        f" NumPy's.",
        f"Largest difference to the `ebls` of NumPy at {low['rows']:,.0f} rows, by how they are cut: {differ}.",
        f"Projection, a calculation and no measurement: 10⁹ rows on 100 executors of one core are {each} million rows a"
        f" core. {' '.join(projected)} This holds if executors read their files as fast as this disk, and if their"
        f" cores have as much other work as these had. What the driver does for a pass, to add up a sum of {K} numbers"
        " for each of 100 tasks, does not grow with the rows.",
    ])  # fmt: skip


def draw(sizes: list[dict[str, Any]]) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
    import style  # the look is shared with the experiments

    n = [size["rows"] / 1e6 for size in sizes]
    figure, (time_axis, memory_axis) = style.plt.subplots(1, 2, figsize=(9, 3.4), width_ratios=(3, 2))
    for name, label, colour in (("estimate", "estimate: read, check, calibrate, keep", style.BLUE),
                                ("estimate again", "estimate again", style.RED),
                                ("pass", "one pass", style.GREEN)):  # fmt: skip
        time_axis.plot(n, [np.median(size[name]) for size in sizes], "o-", ms=4, color=colour, label=label)
    time_axis.set(xlabel="million rows", ylabel="seconds", xscale="log", yscale="log",
                  title=f"Spark on two cores, {K} classes")  # fmt: skip
    memory_axis.plot(n, [size["driver MB"] for size in sizes], "o-", ms=4, color=style.BLACK)
    memory_axis.set(xlabel="million rows", ylabel="MB", xscale="log", title="Most memory of the driver")
    memory_axis.set_ylim(0, 1.25 * max(size["driver MB"] for size in sizes))
    for axis in (time_axis, memory_axis):
        axis.set_xticks(n, [f"{x:g}" for x in n])
        axis.minorticks_off()
    time_axis.set_ylim(top=8 * max(size["estimate"] for size in sizes))
    time_axis.legend(loc="upper left")
    style.save(figure, IMAGE)


def command(folder: Path, n: int, turns: int) -> None:
    model, rows = fitted(folder), write(folder / "rows", n)
    taken: dict[str, list[float]] = {"estimate": [], "spark estimate": []}
    prior, loads = {}, []
    for _ in range(turns):
        for words in taken:
            line = [*REPRIOR, *words.split(), str(rows), "--source", str(model), "--json"]
            line += ["--master", MASTER] if "spark" in words else []
            loads.append(circumstances()["load"][0])
            seconds, ended = timed(partial(subprocess.run, line, check=True, capture_output=True))
            taken[words].append(seconds)
            prior[words] = np.array(json.loads(ended.stdout)["prior"])
            print(f"{words}: {seconds:.1f} s, load {loads[-1]}", file=sys.stderr, flush=True)
    ratio = [b / a for a, b in zip(taken["estimate"], taken["spark estimate"], strict=True)]
    differ = float(np.abs(prior["estimate"] - prior["spark estimate"]).max())
    lines = [[f"`reprior {words}`", ", ".join(f"{x:.1f}" for x in got), f"{np.median(got):.1f}", f"{min(got):.1f}"]
             for words, got in taken.items()]  # fmt: skip
    text = "\n\n".join([
        f"{n:,} rows of {K} classes in {PARTS} files, `ebls` with intervals, {MASTER}; from the start of the command to"
        f" its end, in turn; load {min(loads):.0f} to {max(loads):.0f}.",
        markdown(["command", "seconds", "median", "least"], lines),
        f"Spark's took {np.median(ratio):.1f} times as long (median of the turns;"
        f" {', '.join(f'{x:.1f}' for x in ratio)}). The answers differ by at most {differ:.1e}.",
    ])  # fmt: skip
    store("spark_command", {"rows": n, "seconds": taken, "loads": loads, "ratio": ratio, "difference": differ}, text)


def groups(folder: Path, n_groups: int, each: int, k: int) -> None:
    model, path = fitted(folder, k), folder / "rows"
    path.mkdir()
    rng, mixes = np.random.default_rng(5), rp.simulate.dirichlet(k, 3, rng=2)
    keys = rng.integers(0, n_groups, n_groups * each)
    keys[:n_groups] = np.arange(n_groups)  # each has a row
    for i, which in enumerate(np.array_split(rng.permutation(keys), PARTS)):
        rows = outputs(len(which), 20 + i, np.asarray(mixes))[0]
        pq.write_table(listed(rows, group=which), path / f"part-{i:03}.parquet", row_group_size=1 << 16)
    figures = called("by_groups", path, model)
    text = (
        f"{figures['groups']:,} groups of {figures['rows']:,} rows in {PARTS} files, K = {k}, {MASTER}: `groups` took"
        f" {figures['seconds']:.0f} s on Spark and {figures['memory']:.0f} s in memory, where the rows were already."
        f" Priors differ by at most {figures['prior']:.1e} and variances by {figures['variance']:.1e}; what is said of"
        f" all groups is {'the same' if figures['population'] else 'different'}. The driver had"
        f" {figures['driver MB']:.0f} MB."
    )
    store("spark_groups", figures, text)


def stream(folder: Path, n: int) -> None:
    model, rows = fitted(folder), write(folder / "rows", 4 * n, 4)
    figures = called("streamed", rows, model, folder / "out")
    speeds = ", ".join(f"{x:,.0f}" for x in figures["rows/s"])
    store("spark_stream", figures, f"Keyed stream, 100 keys, K = {K}, {MASTER}, four micro-batches of"
          f" {figures['rows']:,} rows: {speeds} rows/s. The first one starts the workers.")  # fmt: skip


if __name__ == "__main__":
    if sys.argv[1:2] in (["=grown"], ["=by_groups"], ["=streamed"]):
        print(json.dumps(globals()[sys.argv[1][1:]](*sys.argv[2:])))
        sys.exit()
    parser = argparse.ArgumentParser(description=__doc__)
    kinds = parser.add_subparsers(dest="what", required=True)
    kind = kinds.add_parser("growth")
    kind.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 4_000_000, 16_000_000])
    kind = kinds.add_parser("command")
    kind.add_argument("--rows", type=int, default=1_000_000)
    kind.add_argument("--turns", type=int, default=5)
    kind = kinds.add_parser("groups")
    kind.add_argument("--groups", type=int, default=100_000)
    kind.add_argument("--each", type=int, default=10, help="rows of a group, on average")
    kind.add_argument("--classes", type=int, default=10)
    kind = kinds.add_parser("stream")
    kind.add_argument("--rows", type=int, default=20_000, help="of a micro-batch")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.what == "growth":
            growth(Path(name), options.rows)
        elif options.what == "command":
            command(Path(name), options.rows, options.turns)
        elif options.what == "groups":
            groups(Path(name), options.groups, options.each, options.classes)
        else:
            stream(Path(name), options.rows)
