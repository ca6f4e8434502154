"""The same methods where the rows are: Parquet folders, DataFrames, groups and keyed streams on a Spark cluster.

`map_sum` is the only hinge. Paths are shipped to the workers and not rows; only sums come back.
"""

from reprior.adapters.spark.blocks import SparkBlocks
from reprior.adapters.spark.frames import correct
from reprior.adapters.spark.groups import groups
from reprior.adapters.spark.stream import follow

__all__ = ["SparkBlocks", "correct", "follow", "groups"]
