"""A keyed stream on Spark: every row corrected and learned once, in order, whatever happens to the driver."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from functools import partial

import numpy as np
import pytest
from spark_help import NAMES, needs_spark, spark  # noqa: F401
from worlds import make_problem

import reprior as rp

pytestmark = needs_spark
KEYS = np.array(["north", "south"])


@pytest.fixture(scope="module")
def made():
    problem = make_problem(n=400)
    held, y = problem.source.heldout
    return (
        problem,
        rp.pipeline(held, np.array(NAMES)[y], classes=NAMES),
        KEYS[np.random.default_rng(0).integers(0, 2, 400)],
    )


def write(folder, number, problem, keys, which):
    """Write some rows as one file, in any order; Spark takes files by their time of change."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    mixed = np.random.default_rng(1).permutation(which)
    bill = pa.array([None if i % 3 else 2**60 + int(i) for i in mixed], pa.int64())
    rows = pa.array(problem.proba[mixed].tolist(), pa.list_(pa.float64()))
    table = pa.table({"bill": bill, "shop": keys[mixed], "seq": mixed, "proba": rows})
    path = folder / f"{number:03}.parquet"
    pq.write_table(table, folder / ".hidden")
    os.utime(folder / ".hidden", (1_700_000_000 + 10 * number,) * 2)
    os.replace(folder / ".hidden", path)


def check(rows, problem, pipe, keys, batches):
    """Check corrected rows against streams that learn the same batches here."""
    results = {row.seq: row for row in rows}
    assert len(rows) == len(results) == sum(map(len, batches))
    streams = {key: pipe.stream() for key in KEYS}
    for batch in batches:
        last = {}
        for i in sorted(batch):
            stream, row = streams[keys[i]], results[i]
            np.testing.assert_allclose(row.proba, stream.correct_one(problem.proba[i]), atol=1e-12)
            stream.learn_one(problem.proba[i])
            assert (row.reprior_n, row.shop, row.bill) == (stream.n, keys[i], None if i % 3 else 2**60 + i)
            last[keys[i]] = i
        for key, i in last.items():
            np.testing.assert_allclose(results[i].reprior_prior, streams[key].prior, atol=1e-12)
            assert results[i].acts_share == streams[key].acts.share
        answer = [i for i in batch if results[i].reprior_prior is not None]
        assert sorted(answer) == sorted(last.values())


def followed(spark, pipe, tmp_path, **options):  # noqa: F811
    from reprior.adapters.spark.stream import follow, write_batch

    schema = "bill long, shop string, seq long, proba array<double>"
    coming = spark.readStream.schema(schema).option("maxFilesPerTrigger", 1).parquet(str(tmp_path / "in"))
    out = follow(pipe, coming, key="shop", order="seq", **options)
    for tries in range(8):
        query = (
            out.writeStream.foreachBatch(partial(write_batch, str(tmp_path / "out"), "shop"))
            .option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        )  # fmt: skip
        try:
            query.awaitTermination()
            break
        except Exception as error:  # Spark waits ten seconds for a worker, which is short on a busy machine
            if "failed to connect back" not in str(error) or tries == 7:
                raise
    return spark.read.parquet(str(tmp_path / "out" / "rows")).collect()


def test_rows_are_learned_once_over_restarts_late_rows_and_empty_files(spark, made, tmp_path):  # noqa: F811
    problem, pipe, keys = made
    batches = [np.arange(0, 150), np.arange(0), np.arange(200, 400), np.arange(150, 200)]  # the last ones come late
    write(tmp_path / "in", 0, problem, keys, batches[0])
    write(tmp_path / "in", 1, problem, keys, batches[1])
    check(followed(spark, pipe, tmp_path), problem, pipe, keys, batches[:1])
    write(tmp_path / "in", 2, problem, keys, batches[2])
    write(tmp_path / "in", 3, problem, keys, batches[3])
    check(followed(spark, pipe, tmp_path), problem, pipe, keys, batches)
    priors = spark.read.parquet(str(tmp_path / "out" / "priors")).collect()
    assert sorted({row.shop for row in priors}) == sorted(KEYS)
    assert all(0 < row.acts_share <= 1 for row in priors)
    assert max(row.reprior_n for row in priors if row.shop == "north") == (keys == "north").sum()


def test_bad_rows_end_the_query_or_pass_by_and_another_pipeline_is_refused(spark, made, tmp_path):  # noqa: F811
    problem, pipe, keys = made
    rows = problem.proba[:60].copy()
    rows[33] = np.nan
    write(tmp_path / "in", 0, problem._replace(proba=rows), keys, np.arange(60))
    with pytest.raises(
        Exception, match=f"must contain only finite numbers; got nan, first at seq 33 of the key '{keys[33]}'"
    ):
        followed(spark, pipe, tmp_path)
    out = followed(spark, pipe, tmp_path, skip_bad=True)
    bad = next(row for row in out if row.seq == 33)
    assert bad.proba is None
    assert max(row.reprior_n for row in out if row.shop == keys[33]) == (keys[:60] == keys[33]).sum() - 1
    write(tmp_path / "in", 1, problem, keys, np.arange(60, 70))
    with pytest.raises(Exception, match="must be the one that started the checkpoint"):
        followed(spark, rp.pipeline(counts=dict.fromkeys(NAMES, 5)), tmp_path, skip_bad=True)


@pytest.mark.parametrize("kills", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_a_driver_killed_in_a_micro_batch_loses_and_repeats_no_row(made, tmp_path, kills):
    problem, pipe, keys = made
    pipe.save(tmp_path / "model.reprior")
    batches = np.array_split(np.arange(400), 2 * kills + 2)  # a kill may come just after a commit
    for number, batch in enumerate(batches):
        write(tmp_path / "in", number, problem, keys, batch)
    program = [sys.executable, "-c", "from reprior.cli import main; main()"]
    line = [*program, "spark", "stream", tmp_path / "in", "--source",
            tmp_path / "model.reprior", "--key", "shop", "--order", "seq", "--files", "1", "-o", tmp_path / "out",
            "--master", "local[2]"]  # fmt: skip
    line = list(map(str, line))
    rng, done = random.Random(0), 0

    def begun(folder):
        numbers = [path.name for path in (tmp_path / "out" / "checkpoint" / folder).glob("[0-9]*")]
        return max(map(int, numbers), default=-1)

    def run():
        """Run it to its end, again if the machine is so busy that a worker is late: Spark waits ten seconds for it."""
        for _ in range(20):
            ended = subprocess.run(line, check=False, capture_output=True, text=True)
            if "failed to connect back" not in ended.stderr:
                return ended
        return ended

    while done < kills:
        job = subprocess.Popen(line, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        deadline, before = time.monotonic() + 600, begun("commits")
        while begun("offsets") <= begun("commits") or (done % 2 and begun("commits") == before):
            assert time.monotonic() < deadline
            if job.poll() is not None:
                break
            time.sleep(0.01)
        else:
            moment = time.monotonic() + rng.uniform(0, 3)
            while time.monotonic() < moment and begun("offsets") > begun("commits"):
                time.sleep(0.01)
        ended = job.poll() is not None
        if not ended:
            os.killpg(job.pid, signal.SIGKILL)  # driver, Java and workers, in the middle of a micro-batch
            done += 1
        message = job.communicate()[1].decode()
        assert not ended or "failed to connect back" in message, message
        assert begun("commits") < len(batches) - 1, "all batches were committed before the kills were done"
    assert run().returncode == 0
    import pyarrow.parquet as pq

    class Row:
        def __init__(self, values):
            self.__dict__.update(values)

    rows = [Row(values) for values in pq.read_table(tmp_path / "out" / "rows").to_pylist()]
    check(rows, problem, pipe, keys, batches)
