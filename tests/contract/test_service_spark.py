"""The example that feeds the service from Spark: a micro-batch that is repeated counts once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from service_help import ALL, WHY, rows_of

from reprior.client import Client
from reprior.service.server import Background
from reprior.service.settings import Settings

sys.path.insert(0, str(Path(__file__).parents[2] / "deploy" / "spark"))
from feed_service import feeder, post_partition


def rows(seed: int) -> list[dict[str, object]]:
    return [{"key": key, "proba": row} for key in ("shop", "till") for row in rows_of(40, 3, seed).tolist()]


def test_a_micro_batch_counts_once(tmp_path):
    with Background(Settings(tmp_path / "s.db")) as running, Client(running.url) as client:
        for name in ("shop", "till"):
            client.put(name, [1, 1, 1])
        for batch, seed in ((0, 1), (0, 1), (1, 2)):  # Spark repeats the first one
            post_partition(iter(rows(seed)), url=running.url, prefix=f"q-{batch}", most=30)
        assert [client.get(name)["n"] for name in ("shop", "till")] == [60, 60]
        with pytest.raises(OSError, match="404"):  # so that Spark tries the micro-batch again
            post_partition(iter([{"key": "none", "proba": [0.2, 0.3, 0.5]}]), url=running.url, prefix="q-2")


def test_spark_feeds_the_service(tmp_path):
    if not ALL:
        pytest.skip(WHY)
    sql = pytest.importorskip("pyspark.sql")
    spark = sql.SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    try:
        with Background(Settings(tmp_path / "s.db")) as running, Client(running.url) as client:
            for name in ("shop", "till"):
                client.put(name, [1, 1, 1])
            spark.sparkContext.addPyFile(str(Path(__file__).parents[2] / "deploy" / "spark" / "feed_service.py"))
            frame = spark.createDataFrame(rows(1), "key string, proba array<double>")
            for _ in range(2):
                feeder(running.url)(frame, 7)
            assert [client.get(name)["n"] for name in ("shop", "till")] == [40, 40]
    finally:
        spark.stop()
