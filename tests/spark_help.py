"""What tests of the Spark adapter share: one session, and folders of Parquet parts."""

from __future__ import annotations

import importlib.util
import os
import shutil

import numpy as np
import pytest

ALL = os.environ.get("REPRIOR_TEST_ALL") == "1"
THERE = importlib.util.find_spec("pyspark") is not None and shutil.which("java") is not None
needs_spark = pytest.mark.skipif(not (ALL and THERE), reason="needs pyspark and Java: set REPRIOR_TEST_ALL=1")
NAMES = ("ant", "bee", "cat", "dog", "eel")
QUICK = "spark.driver.defaultJavaOptions=-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # Java that compiles little
os.environ.setdefault("PYSPARK_SUBMIT_ARGS", f"--conf '{QUICK}' pyspark-shell")


@pytest.fixture(scope="session")
def spark():
    from reprior.adapters.spark.session import session

    made = session("local[2,4]")
    yield made
    made.stop()


def lists(rows, **more):
    """Return a table with a list column."""
    import pyarrow as pa

    wide = pa.FixedSizeListArray.from_arrays(pa.array(np.ascontiguousarray(rows).ravel()), rows.shape[1])
    return pa.table({"id": np.arange(len(rows)), "proba": wide.cast(pa.list_(wide.type.value_type)), **more})


def write_parts(folder, rows, n_parts, *, group=100_000, columns=None):
    """Write rows as so many Parquet files, with a list column or, under the names `columns`, one column a class."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    for i, part in enumerate(np.array_split(rows, n_parts)):
        table = lists(part) if columns is None else pa.table(dict(zip(columns, part.T, strict=True)))
        pq.write_table(table, folder / f"part-{i:03}.parquet", row_group_size=group)
    return folder
