"""The same partial sums on Dask: `map_sum` is all that a method asks of its target.

Run it in the folder of reprior's source: pip install dask distributed pyarrow && python examples/dask_blocks.py FOLDER
"""

from __future__ import annotations

import sys
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from dask.distributed import Client, LocalCluster

import reprior as rp
from reprior.rows.blocks import ArrayBlocks, numbered


class DaskBlocks:
    """Rows (n, K) of futures, which stay on the workers that have read them; only sums come back."""

    def __init__(self, client, parts):
        self.client, self.parts = client, parts
        self.sizes = client.gather(client.map(len, parts))
        self.n, self.n_classes = sum(self.sizes), client.submit(lambda rows: rows.shape[1], parts[0]).result()

    def map_sum(self, fn):
        return self.map_numbered(lambda _, block: fn(block))

    def map_numbered(self, fn):
        firsts = np.cumsum([0, *self.sizes[:-1]]).tolist()
        return reduce(add, self.client.gather(self.client.map(part_sum, self.parts, firsts, fn=fn, pure=False)))

    def having(self, change):
        """Return the rows as a calibrator makes them, which is done once; methods call this."""
        if getattr(self, "asked", None) is not change:
            self.asked, self.changed = change, DaskBlocks(self.client, self.client.map(change, self.parts))
        return self.changed


def part_sum(rows, first, fn):
    return reduce(add, (fn(first + at, block) for at, block in numbered(ArrayBlocks(rows))))


def read(path):
    return np.stack(pq.read_table(path, columns=["proba"])["proba"].to_numpy()).astype(np.float64)


if __name__ == "__main__":
    folder = Path(sys.argv[1])  # as examples/spark_local.py writes it
    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        paths = sorted(map(str, (folder / "scores").glob("*.parquet")))
        pipe = rp.load(folder / "model.reprior")
        estimate = pipe.estimate(DaskBlocks(client, client.map(read, paths)))
        expected = pipe.estimate(np.concatenate(list(map(read, paths))))
        print(estimate, f"largest difference to NumPy: {np.abs(estimate.prior - expected.prior).max():.1e}", sep="\n")
