"""Estimate, correct and follow a folder of Parquet with Spark on this machine, from start to end.

Run it in the folder of reprior's source: python examples/spark_local.py [folder]
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import reprior as rp
from reprior import datasets

REPRIOR = [sys.executable, "-c", "from reprior.cli import main; main()"]


def write_data(folder: Path) -> None:
    """Write a saved pipeline, and target rows of 20 shops whose class mix has shifted, in four Parquet files."""
    data = datasets.load("banking77")
    pipe = rp.pipeline(data.heldout_proba, data.heldout_y, counts=data.counts, classes=data.classes)
    pipe.save(folder / "model.reprior")
    rng = np.random.default_rng(0)
    mix = rp.simulate.dirichlet(77, 1, rng=rng)
    rows = rp.simulate.resample(data.pool_proba, data.pool_y, mix, n=4000, rng=rng, exact=False).proba
    (folder / "scores").mkdir()
    for i, which in enumerate(np.array_split(np.arange(len(rows)), 4)):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rows[which].ravel()), 77)
        table = pa.table({"time": which, "shop": [f"shop-{t % 20}" for t in which], "proba": lists})
        pq.write_table(table, folder / "scores" / f"part-{i}.parquet")


def main(folder: Path) -> None:
    write_data(folder)
    there = ["scores", "--source", "model.reprior"]
    for words in (
        ["spark", "estimate", *there, "--top", "5"],
        ["spark", "estimate", *there, "--by", "shop", "--top", "5"],
        ["spark", "correct", *there, "-o", "corrected"],
        ["spark", "stream", *there, "--key", "shop", "--order", "time", "-o", "followed"],
    ):
        print("$ reprior", " ".join(words), flush=True)
        subprocess.run([*REPRIOR, *words], cwd=folder, check=True)
        print(flush=True)
    for name in ("corrected", "followed/rows", "followed/priors"):
        table = pq.read_table(folder / name)
        print(f"{name}: {table.num_rows:,} rows with the columns {', '.join(table.column_names)}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True)
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as folder:
            main(Path(folder))
