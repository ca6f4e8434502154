"""Run estimates, corrections, groups and keyed streams on a Spark cluster.

Workers read their own files. The driver sends paths and gets sums.
"""

from reprior.adapters.spark.blocks import SparkBlocks
from reprior.adapters.spark.frames import correct
from reprior.adapters.spark.groups import groups
from reprior.adapters.spark.stream import follow

__all__ = ["SparkBlocks", "correct", "follow", "groups"]
