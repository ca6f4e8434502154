"""Spark on this machine: parity with NumPy, seconds a pass, growth with rows, the driver's memory, a keyed stream."""

from __future__ import annotations

import argparse
import json
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
from _record import circumstances, markdown, store

import reprior as rp
from reprior._kernels import reference
from reprior.rows.blocks import ArrayBlocks
from reprior.rows.passes import e_step

K, PARTS, PASSES = 100, 8, 7
REPRIOR = [sys.executable, "-c", "from reprior.cli import main; main()"]
IMAGE = Path(__file__).parents[1] / "docs" / "img" / "spark-growth.png"


def outputs(n: int, seed: int, prior: np.ndarray[Any, Any]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return a classifier's outputs (n, K) of float32 on rows drawn from `prior`, and their classes."""
    rng, centres = np.random.default_rng(seed), np.random.default_rng(0).normal(size=(K, 8)).astype(np.float32)
    y = rng.choice(K, n, p=prior)
    logits = (centres[y] + 0.8 * rng.normal(size=(n, 8)).astype(np.float32)) @ centres.T * 1.5
    logits -= logits.max(axis=1, keepdims=True)
    np.exp(logits, out=logits)
    return logits / logits.sum(axis=1, keepdims=True), y


def write(folder: Path, n: int, parts: int) -> Path:
    """Write n target rows as so many Parquet files."""
    folder.mkdir()
    mix = rp.simulate.dirichlet(K, 1, rng=1)
    for i, size in enumerate(np.diff(np.linspace(0, n, parts + 1).astype(int))):
        rows = outputs(int(size), 10 + i, mix)[0]
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), K)
        table = pa.table({"shop": np.arange(size) % 100, "seq": np.arange(size), "proba": lists})
        pq.write_table(table, folder / f"part-{i:03}.parquet", row_group_size=1 << 16, use_dictionary=False)
    return folder


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


def child(folder: str, model: str, *more: str) -> dict[str, Any]:
    """Return the figures of one driver: a folder, first without the rows in memory, then beside NumPy."""
    from reprior.adapters.spark import SparkBlocks
    from reprior.adapters.spark.session import session

    pipe = rp.load(model)
    begin, spark = timed(lambda: session("local[2,4]"))
    timed(lambda: spark.sparkContext.parallelize([0, 1], 2).map(str).collect())  # workers are there
    look, blocks = timed(lambda: SparkBlocks(spark, folder))
    whole, found = timed(lambda: pipe.estimate(blocks))
    again, _ = timed(lambda: pipe.estimate(blocks))
    memory, weights = high_water(), found.weights
    first, _ = timed(lambda: e_step(blocks, weights))  # of rows that are not calibrated
    figures = {"rows": found.n, "session": begin, "survey": look, "estimate": whole, "estimate again": again,
               "driver MB": memory, "first pass": first, "pass": [], "numpy": [], "kernel": []}  # fmt: skip
    held = ArrayBlocks(rows_of(Path(folder)))
    for _ in range(PASSES):  # in turn, since the machine may be busy
        figures["pass"].append(timed(lambda: e_step(blocks, weights))[0])
        figures["kernel"].append(timed(lambda: e_step(held, weights))[0])
        figures["numpy"].append(timed(lambda: held.map_sum(lambda b: reference_pass(b, weights)))[0])
    expected = pipe.estimate(held.array).prior
    figures["difference"] = {Path(folder).name: float(np.abs(found.prior - expected).max())}
    for other in more:
        prior = pipe.estimate(SparkBlocks(spark, other), check=False).prior
        figures["difference"][Path(other).name] = float(np.abs(prior - expected).max())
    spark.stop()
    return figures


def reference_pass(block: Any, weights: Any) -> Any:
    """Return the sums of an E-step by NumPy alone."""
    aligned = np.zeros(reference.width(K))
    aligned[:K] = weights
    sums = np.zeros((1, len(aligned)))
    reference.e_step(block, aligned, sums, False)
    return sums


def stream(folder: str, model: str, out: str) -> dict[str, Any]:
    """Return the rows a second of a keyed stream over a folder, a file a micro-batch."""
    from reprior.adapters.spark.session import session
    from reprior.adapters.spark.stream import follow, write_batch

    spark = session("local[2,4]")
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
    ended = subprocess.run(
        [sys.executable, __file__, what, *map(str, args)], capture_output=True, text=True, check=False
    )
    if ended.returncode:
        sys.exit(ended.stderr[-3000:])
    return json.loads(ended.stdout.splitlines()[-1])


def measured(sizes: list[int], stream_rows: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        held, y = outputs(5000, 3, np.full(K, 1 / K))
        rp.pipeline(held.astype(np.float64), y).save(folder / "model.reprior")
        model, found = folder / "model.reprior", []
        for n in sizes:
            rows = write(folder / f"{PARTS}-files", n, PARTS)
            few = [write(folder / f"{p}-files", n, p) for p in (1, 3)] if n == sizes[0] else []
            if few:  # the same rows, cut otherwise
                whole = rows_of(rows)
                for p in (1, 3):
                    for i, part in enumerate(np.array_split(whole, p)):
                        lists = pa.FixedSizeListArray.from_arrays(pa.array(part.ravel()), K)
                        pq.write_table(pa.table({"proba": lists}), folder / f"{p}-files" / f"part-{i:03}.parquet")
            found.append(called("child", rows, model, *few))
            line = ["estimate", str(rows), "--source", str(model), "--no-interval", "--json"]
            for label, words in (("cli", []), ("spark cli", ["spark"])):
                found[-1][label] = timed(partial(subprocess.run, [*REPRIOR, *words, *line], check=True,
                                                 capture_output=True))[0]  # fmt: skip
            found[-1]["load"] = circumstances()["load"][0]
            for path in folder.glob("*-files/*"):
                path.unlink()
            for path in folder.glob("*-files"):
                path.rmdir()
        rows = write(folder / "stream", 4 * stream_rows, 4)
        return {"sizes": found, "stream": called("stream", rows, model, folder / "out")}


def told(figures: dict[str, Any]) -> str:
    """Return the figures as text."""
    sizes = figures["sizes"]
    middle = {name: [float(np.median(size[name])) for size in sizes] for name in ("pass", "kernel", "numpy")}
    rows = [
        [f"{size['rows']:,.0f}", f"{size['estimate']:.1f}", f"{size['estimate again']:.1f}", f"{middle['pass'][i]:.2f}",
         f"{middle['numpy'][i]:.3f}", f"{middle['kernel'][i]:.3f}", f"{size['cli']:.1f}", f"{size['spark cli']:.1f}",
         f"{size['driver MB']:.0f}", f"{size['load']:.0f}"]
        for i, size in enumerate(sizes)
    ]  # fmt: skip
    head = ["rows", "`estimate`, s", "again, s", "a pass, s", "NumPy's pass, s", "native pass, s",
            "`reprior estimate`, s", "`reprior spark estimate`, s", "driver, MB", "load"]  # fmt: skip
    low, high = sizes[0], sizes[-1]
    grown = high["rows"] - low["rows"]
    slope = 2 * (middle["pass"][-1] - middle["pass"][0]) / grown  # seconds a row and core: there are two cores
    first = 2 * (high["estimate"] - low["estimate"]) / grown
    fixed, each = low["estimate"] - low["rows"] * first / 2, 10**9 / 100
    differ = "; ".join(f"{name} {value:.1e}" for name, value in low["difference"].items())
    speed = figures["stream"]
    return "\n\n".join([
        f"`local[2]`, K = {K}, {PARTS} files, calibrated rows kept between passes; median of {PASSES} passes in turn.",
        markdown(head, rows),
        f"Largest difference to NumPy's `ebls` at {low['rows']:,.0f} rows, by how they are cut: {differ}.",
        f"Projection, a calculation and no measurement: `estimate` took {fixed:.1f} s + {first * 1e6:.2f} s for each"
        f" million rows of a core, and a pass {slope * 1e6:.3f} s for each million more. 10⁹ rows on 100 executors of"
        f" one core are {each / 1e6:.0f} million rows a core: {fixed + first * each:.0f} s for `estimate` and"
        f" {middle['pass'][0] + slope * each:.1f} s for a further pass, if they read their files as fast as this disk.",
        f"Keyed stream, 100 keys, micro-batches of {speed['rows']:,} rows:"
        f" {', '.join(f'{x:,.0f}' for x in speed['rows/s'])} rows/s.",
    ])  # fmt: skip


def draw(figures: dict[str, Any]) -> None:
    sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
    import style  # the look is shared with the experiments

    figure, ax = style.plt.subplots(figsize=(6.5, 3.6))
    n = [size["rows"] / 1e6 for size in figures["sizes"]]
    ends = []
    for name, label, colour in (("estimate", "estimate: read, calibrate, solve", style.BLUE),
                                ("cli", "reprior estimate, one process", style.BLACK),
                                ("estimate again", "estimate, rows kept", style.RED),
                                ("pass", "one pass", style.GREEN)):  # fmt: skip
        seconds = [float(np.median(size[name])) for size in figures["sizes"]]
        ax.plot(n, seconds, "o-", color=colour, ms=4)
        ends.append((n[-1], seconds[-1], label, colour))
    ax.set(xlabel="million rows", ylabel="seconds", title="Spark on two cores, 100 classes")
    ax.set_ylim(bottom=0)
    style.label_ends(ax, ends)
    style.save(figure, IMAGE)


if __name__ == "__main__":
    if sys.argv[1:2] == ["child"]:
        print(json.dumps(child(*sys.argv[2:])))
    elif sys.argv[1:2] == ["stream"]:
        print(json.dumps(stream(*sys.argv[2:])))
    else:
        parser = argparse.ArgumentParser(description=__doc__)
        parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 4_000_000, 16_000_000])
        parser.add_argument("--stream-rows", type=int, default=20_000, help="rows of a micro-batch")
        given = parser.parse_args()
        figures = measured(given.rows, given.stream_rows)
        store("spark", figures, told(figures))
        draw(figures)
