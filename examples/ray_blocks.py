"""The same partial sums on Ray Data: `map_sum` is all that a method asks of its target.

Run it in the folder of reprior's source: pip install 'ray[data]' && python examples/ray_blocks.py FOLDER
"""

from __future__ import annotations

import sys
from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import ray

import reprior as rp
from reprior.rows.blocks import ArrayBlocks, numbered


class RayBlocks:
    """Rows (n, K) of a dataset's blocks, which stay in Ray's object stores; only sums come back."""

    def __init__(self, parts):
        self.parts = parts
        self.shapes = ray.get([shape.remote(part) for part in parts])
        self.n, self.n_classes = sum(rows for rows, _ in self.shapes), self.shapes[0][1]

    def map_sum(self, fn):
        return self.map_numbered(lambda _, block: fn(block))

    def map_numbered(self, fn):
        firsts = np.cumsum([0, *(rows for rows, _ in self.shapes[:-1])]).tolist()
        sums = [part_sum.remote(part, first, fn) for part, first in zip(self.parts, firsts, strict=True)]
        return reduce(add, ray.get(sums))

    def having(self, change):
        """Return the rows as a calibrator makes them, which is done once; methods call this."""
        if getattr(self, "asked", None) is not change:
            self.asked, self.changed = change, RayBlocks([changed.remote(part, change) for part in self.parts])
        return self.changed


shape = ray.remote(lambda rows: rows.shape)
changed = ray.remote(lambda rows, change: change(rows))


@ray.remote
def part_sum(rows, first, fn):
    return reduce(add, (fn(first + at, block) for at, block in numbered(ArrayBlocks(rows))))


if __name__ == "__main__":
    folder = Path(sys.argv[1])  # as examples/spark_local.py writes it
    ray.init(num_cpus=2, include_dashboard=False)
    rows = ray.data.read_parquet(str(folder / "scores"), columns=["proba"]).materialize().to_numpy_refs(column="proba")
    pipe = rp.load(folder / "model.reprior")
    wide = ray.remote(lambda lists: np.stack(list(lists)).astype(np.float64))
    estimate = pipe.estimate(RayBlocks([wide.remote(part) for part in rows]))
    expected = pipe.estimate(np.concatenate([np.stack(list(part)) for part in ray.get(rows)]).astype(np.float64))
    print(estimate, f"largest difference to NumPy: {np.abs(estimate.prior - expected.prior).max():.1e}", sep="\n")
