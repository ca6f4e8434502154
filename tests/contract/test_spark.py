"""On Spark every method gives the answers of NumPy, however the rows lie, and every fault is one sentence."""

from __future__ import annotations

import glob
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from service_help import wait_for
from spark_help import NAMES, QUICK, lists, needs_spark, spark, write_parts  # noqa: F401
from worlds import make_problem

import reprior as rp

pytestmark = needs_spark


@pytest.fixture(scope="module")
def made():
    problem = make_problem(n=900)
    held, y = problem.source.heldout
    pipe = rp.pipeline(held, np.array(NAMES)[y], classes=NAMES)
    return problem, pipe


@pytest.fixture
def blocks(spark, made, tmp_path):  # noqa: F811
    from reprior.adapters.spark import SparkBlocks

    return SparkBlocks(spark, write_parts(tmp_path / "rows", made[0].proba, 4))


@pytest.mark.parametrize("method", ["ebls", "mlls", "bbse", "rlls"])
def test_every_method_gives_numpys_answer(blocks, made, method):
    problem, _ = made
    result, expected = rp.estimate(problem.source, blocks, method), rp.estimate(problem.source, problem.proba, method)
    np.testing.assert_allclose(result.prior, expected.prior, atol=1e-6)
    np.testing.assert_allclose(result.interval(), expected.interval(), atol=1e-8)


@pytest.mark.parametrize("method", ["fmapls", "mapls"])
def test_methods_with_a_number_of_iterations_do_too(blocks, made, method):
    problem, _ = made
    options = {"n_iter": 4}
    estimate = rp.estimate(problem.source, blocks, method, **options)
    np.testing.assert_allclose(
        estimate.prior, rp.estimate(problem.source, problem.proba, method, **options).prior, atol=1e-6
    )


@pytest.mark.parametrize(("parts", "group"), [(1, 1000), (1, 50), (7, 10)])
def test_a_pipeline_does_not_care_how_the_rows_are_cut(spark, made, tmp_path, monkeypatch, parts, group):  # noqa: F811
    from reprior.adapters.spark import SparkBlocks
    from reprior.adapters.spark import parts as module

    monkeypatch.setattr(module, "PIECE_NUMBERS", 5 * 40)  # cut files into pieces of 40 rows
    problem, pipe = made
    rows = SparkBlocks(spark, write_parts(tmp_path / "rows", problem.proba, parts, group=group))
    result, expected = pipe.estimate(rows), pipe.estimate(problem.proba)
    np.testing.assert_allclose(result.prior, expected.prior, atol=1e-6)
    np.testing.assert_allclose(result.interval(), expected.interval(), atol=1e-8)
    assert result.checks == pytest.approx(expected.checks, abs=1e-9) or replace(result.checks) == expected.checks
    assert str(rp.diagnose(pipe.source, pipe.rows(rows))) == str(rp.diagnose(pipe.source, pipe.rows(problem.proba)))


def test_columns_are_matched_by_name(spark, made, tmp_path):  # noqa: F811
    from reprior.adapters.spark import SparkBlocks

    problem, pipe = made
    order = [3, 0, 4, 1, 2]
    folder = write_parts(tmp_path / "rows", problem.proba[:, order], 2, columns=[NAMES[j] for j in order])
    estimate = pipe.estimate(SparkBlocks(spark, folder), check=False)
    np.testing.assert_allclose(estimate.prior, pipe.estimate(problem.proba, check=False).prior, atol=1e-6)
    other = write_parts(tmp_path / "other", problem.proba, 2, columns=["ant", "bee", "cat", "dog", "fox"])
    with pytest.raises(rp.InputError, match="without eel and with fox besides"):
        pipe.estimate(SparkBlocks(spark, other))


def test_a_dataframe_and_a_saved_pipeline_do(spark, made, tmp_path):  # noqa: F811
    from reprior.adapters.spark import SparkBlocks, correct

    problem, pipe = made
    pipe.save(tmp_path / "model.reprior")
    frame = spark.createDataFrame(
        [(i, row.tolist()) for i, row in enumerate(problem.proba)], "id long, proba array<double>"
    )
    frame = frame.repartition(3, "id")
    estimate = rp.load(tmp_path / "model.reprior").estimate(SparkBlocks(spark, frame))
    expected = pipe.estimate(problem.proba)
    np.testing.assert_allclose(estimate.prior, expected.prior, atol=1e-6)
    fixed = correct(estimate, frame)
    assert (fixed.schema, fixed.rdd.getNumPartitions()) == (frame.schema, 3)
    before, after = (x.rdd.glom().map(lambda rows: [row.id for row in rows]).collect() for x in (frame, fixed))
    assert before == after
    rows = np.array([row.proba for row in fixed.sort("id").collect()])
    np.testing.assert_allclose(rows, expected.correct(problem.proba), atol=1e-6)


ODD = ("a.b", "x `y", "猫", "été 1", "reprior_0")


def test_class_columns_of_a_dataframe_keep_their_order_whatever_they_are_called(spark, made):  # noqa: F811
    from reprior.adapters.spark import SparkBlocks, correct, follow, groups

    problem, _ = made
    held, y = problem.source.heldout
    pipe, order = rp.pipeline(held, np.array(ODD)[y], classes=ODD), [3, 0, 4, 1, 2]
    names, kinds = [ODD[j] for j in order], ["no.1", "größe", "even"]
    rows = [(*map(float, row[order]), i, float("nan"), i % 2) for i, row in enumerate(problem.proba)]
    frame = spark.createDataFrame(rows, [*names, *kinds])
    estimate = pipe.estimate(SparkBlocks(spark, frame, classes=pipe.classes))
    expected = pipe.estimate(problem.proba)
    np.testing.assert_allclose(estimate.prior, expected.prior, atol=1e-6)
    shared, reference = groups(pipe, spark, frame, by="even"), pipe.groups(np.arange(900) % 2, problem.proba)
    np.testing.assert_allclose(shared.prior, reference.prior, atol=1e-6)
    followed, streams = np.empty_like(problem.proba), [pipe.stream(), pipe.stream()]
    for i, row in enumerate(problem.proba):
        followed[i] = streams[i % 2].correct_one(row)
        streams[i % 2].learn_one(row)
    each = [reference[i % 2].correct(row[None])[0] for i, row in enumerate(problem.proba)]
    for fixed, wanted in (
        (correct(estimate, frame), expected.correct(problem.proba)),
        (correct(shared, frame, by="even"), each),
        (follow(pipe, frame, key="even", order="no.1"), followed),
    ):
        assert fixed.columns[: len(frame.columns)] == frame.columns
        back = sorted(fixed.collect(), key=lambda row: row["no.1"])
        np.testing.assert_allclose([[row[name] for name in ODD] for row in back], wanted, atol=1e-6)


@pytest.mark.parametrize("unknown", [None, -1])
def test_labels_in_a_column_count_as_in_memory(spark, made, tmp_path, ask, refused, monkeypatch, unknown):  # noqa: F811
    import pyarrow.parquet as pq

    from reprior.adapters.spark import SparkBlocks
    from reprior.adapters.spark import blocks as module

    problem, pipe = made
    truth = np.where(np.arange(900) % 10, -1, problem.proba.argmax(axis=1))
    column = truth if unknown == -1 else np.array([NAMES[j] if j >= 0 else None for j in truth], object)
    (tmp_path / "rows").mkdir()
    for i, which in enumerate(np.array_split(np.arange(900), 3)):
        pq.write_table(lists(problem.proba[which], truth=column[which]), tmp_path / "rows" / f"{i}.parquet")
    expected = pipe.estimate(problem.proba, labels=truth)
    for data in (tmp_path / "rows", spark.read.parquet(str(tmp_path / "rows"))):
        rows = SparkBlocks(spark, data, label="truth")
        estimate = pipe.estimate(rows, labels=rows.labels)
        assert estimate.n_labels == 90
        np.testing.assert_allclose(estimate.prior, expected.prior, atol=1e-6)
        np.testing.assert_allclose(estimate.interval(), expected.interval(), atol=1e-8)
    with pytest.raises(rp.InputError, match="must have the column 'shop'"):
        SparkBlocks(spark, tmp_path / "rows", label="shop")
    pipe.save(tmp_path / "model.reprior")
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "0")  # as spark-submit would: the session of the test goes on
    line = ("spark", "estimate", tmp_path / "rows", "--source", tmp_path / "model.reprior", "--labels", "truth")
    answer = ask(*line)
    assert answer["n_labels"] == 90
    np.testing.assert_allclose(answer["prior"], expected.prior, atol=1e-6)
    assert "must be left out with --by" in refused(*line, "--by", "id")
    monkeypatch.setattr(module, "LABELLED", 100)
    assert "must be used with at most 100 rows on Spark; got 900" in refused(*line)


def kept_files(blocks):
    folders = blocks._context.parallelize([0], 1).map(lambda _: os.environ["SPARK_LOCAL_DIRS"]).collect()[0]
    return glob.glob(f"{folders}/reprior-kept/*.npy")


def ones(blocks):
    from reprior.rows.passes import e_step

    return e_step(blocks, np.ones(blocks.n_classes)).counts


def test_rows_are_kept_and_those_of_a_replaced_file_are_refused(blocks, made, tmp_path):
    problem, _ = made
    np.testing.assert_allclose(ones(blocks), problem.proba.sum(axis=0), rtol=1e-12)
    kept = [file for file in kept_files(blocks) if blocks.reader.mark in file]
    assert len(kept) == 4
    os.truncate(kept[0], 200)  # a damaged copy is not used
    np.testing.assert_allclose(ones(blocks), problem.proba.sum(axis=0), rtol=1e-12)
    part = tmp_path / "rows" / "part-002.parquet"
    write_parts(tmp_path / "new", problem.proba[::-1], 4)
    os.replace(tmp_path / "new" / "part-001.parquet", part)
    with pytest.raises(rp.InputError, match=r"part-002.parquet` must not change while it is read"):
        ones(blocks)
    part.unlink()
    with pytest.raises(rp.InputError, match=r"part-002.parquet` must not change .* got no file"):
        ones(blocks)


def test_what_is_kept_is_bounded_and_older_data_makes_room(spark, made, tmp_path):  # noqa: F811
    from reprior.adapters.spark import SparkBlocks

    problem, _ = made
    size = 225 * 5 * 8 + 128  # of a part
    first = SparkBlocks(spark, write_parts(tmp_path / "a", problem.proba, 4))
    ones(first)
    second = SparkBlocks(spark, write_parts(tmp_path / "b", problem.proba, 4), keep=2 * size)
    for _ in range(2):
        np.testing.assert_allclose(ones(second), problem.proba.sum(axis=0), rtol=1e-12)
    files = kept_files(second)
    assert not [file for file in files if first.reader.mark in file]
    assert len(files) in (2, 3)  # two workers may both find the last place free
    assert {os.path.getsize(file) for file in files} == {size}
    np.testing.assert_allclose(ones(first), problem.proba.sum(axis=0), rtol=1e-12)


FAULTS = {
    "nan": (
        lambda rows: rows.__setitem__((7, 1), np.nan), r"part-002.parquet` must contain only finite numbers; got nan,"
            r" first at row 457 of all, row 7 of this file"),
    "sum": (lambda rows: rows.__setitem__(3, 0.5), r"part-002.parquet` must have rows that sum to 1 .* row 3 of this"),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_bad_row_is_one_sentence_with_part_and_row(spark, made, tmp_path, fault):  # noqa: F811
    from reprior.adapters.spark import SparkBlocks

    spoil, sentence = FAULTS[fault]
    rows = made[0].proba.copy()
    spoil(rows[450:675])
    with pytest.raises(rp.InputError, match=sentence):
        made[1].estimate(SparkBlocks(spark, write_parts(tmp_path / "rows", rows, 4)))


def test_another_number_of_classes_is_one_sentence_with_the_part(spark, made, tmp_path):  # noqa: F811
    import pyarrow as pa
    import pyarrow.parquet as pq

    from reprior.adapters.spark import SparkBlocks

    folder = write_parts(tmp_path / "rows", made[0].proba, 3)
    pq.write_table(lists(np.full((4, 4), 0.25)), folder / "part-001.parquet")
    with pytest.raises(rp.InputError, match=r"part-001.parquet` must have the classes of .*part-000.parquet; got 4"):
        SparkBlocks(spark, folder)
    ragged = [*made[0].proba[:6].tolist(), [0.5, 0.5]]
    pq.write_table(pa.table({"proba": ragged}), folder / "part-001.parquet")
    with pytest.raises(
        rp.InputError, match=r"part-001.parquet` must have 5 numbers in every list.* row 6 of this file"
    ):
        ones(SparkBlocks(spark, folder))


def test_empty_parts_and_what_spark_writes_beside_are_nothing(spark, made, tmp_path):  # noqa: F811
    import pyarrow.parquet as pq

    from reprior.adapters.spark import SparkBlocks

    folder = write_parts(tmp_path / "rows", made[0].proba, 3)
    pq.write_table(lists(made[0].proba[:0]), folder / "part-000x.parquet")
    (folder / "_SUCCESS").touch()
    (folder / "_temporary").mkdir()
    (folder / "_temporary" / "half.parquet").write_bytes(b"PAR1")
    assert SparkBlocks(spark, folder).n == 900
    assert SparkBlocks(spark, f"file://{folder}").n == 900
    for part in folder.glob("*.parquet"):
        pq.write_table(lists(made[0].proba[:0]), part)
    with pytest.raises(rp.InputError, match="must have at least one row"):
        SparkBlocks(spark, folder)


def test_a_worker_killed_in_a_pass_changes_nothing(blocks, made):
    problem, _ = made
    observed: list[int] = []

    def slow(block):
        time.sleep(0.5)
        return block.sum(axis=0)

    def kill():
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline and not observed:
            observed.extend(workers()[:1])
            time.sleep(0.05)
        time.sleep(0.4)
        os.kill(observed[0], signal.SIGKILL)

    ones(blocks)
    killer = threading.Thread(target=kill)
    killer.start()
    total = blocks.map_sum(slow)
    killer.join()
    assert observed
    wait_for(lambda: observed[0] not in workers())
    np.testing.assert_allclose(total, problem.proba.sum(axis=0), rtol=1e-12)


def workers():
    """Return the Python workers of Spark that this process has started, the daemon itself left out."""
    parents, result = {}, []
    for path in glob.glob("/proc/[0-9]*/stat"):
        try:
            with open(path) as file:
                pid, rest = file.read().split(" (", 1)
            with open(f"/proc/{pid}/cmdline") as file:
                parents[int(pid)] = (int(rest.rsplit(") ", 1)[1].split()[1]), "pyspark.daemon" in file.read())
        except OSError:
            continue
    for pid, (parent, daemon) in parents.items():
        chain = {parent}
        while parent in parents:
            parent = parents[parent][0]
            chain.add(parent)
        if daemon and os.getpid() in chain and parents.get(parents[pid][0], (0, False))[1]:
            result.append(pid)
    return result


def test_the_command_line_says_what_the_other_one_says(spark, made, tmp_path, ask, call, refused):  # noqa: F811
    problem, pipe = made
    pipe.save(tmp_path / "model.reprior")
    folder = write_parts(tmp_path / "rows", problem.proba, 3)
    there = ("--source", tmp_path / "model.reprior")
    os.environ["PYSPARK_GATEWAY_PORT"] = "0"  # as spark-submit would: the session of the test goes on
    try:
        mine, theirs = (ask(*words, "estimate", folder, *there) for words in (("spark",), ()))
        np.testing.assert_allclose(mine["prior"], theirs["prior"], atol=1e-6)
        assert mine.keys() == theirs.keys()
        assert mine["acts"]["share"] == pytest.approx(theirs["acts"]["share"], abs=1e-6)
        written = ask("spark", "correct", folder, *there, "-o", tmp_path / "out")
        assert (written["rows"], written["acts"]) == (900, mine["acts"])
        fixed = spark.read.parquet(str(tmp_path / "out"))
        rows = np.array(sorted(row.proba for row in fixed.collect()))
        expected = np.array(sorted(pipe.estimate(problem.proba).correct(problem.proba).tolist()))
        np.testing.assert_allclose(rows, expected, atol=1e-6)
        assert "must name a new folder" in refused("spark", "correct", folder, *there, "-o", folder)
        assert "No such file" in refused("spark", "estimate", tmp_path / "nowhere", *there)
        bad = problem.proba[:6].copy()
        bad[4] = np.nan
        line = ("spark", "stream", write_parts(tmp_path / "bad", bad, 1), *there, "--key", "id", "-o", tmp_path / "s")
        code, _, message = call(*line)
        sentence = "Error: follow: `proba` must contain only finite numbers; got nan, first at row 0 of the key 4 in"
        assert (code, message[: len(sentence)], message.count("\n")) == (1, sentence, 1)
    finally:
        del os.environ["PYSPARK_GATEWAY_PORT"]


@pytest.mark.slow
def test_an_executor_killed_between_passes_changes_nothing(made, tmp_path):
    """Two executors, each a process with kept rows of its own. One dies: another one reads its rows again."""
    problem, pipe = made
    pipe.save(tmp_path / "model.reprior")
    folder = write_parts(tmp_path / "rows", problem.proba, 4)
    program = f"""
import glob, json, os, signal, sys
from pyspark import SparkConf, SparkContext
import reprior as rp
from reprior.adapters.spark import SparkBlocks
from reprior.rows.passes import e_step

spark = SparkContext(conf=SparkConf().setMaster("local-cluster[2,1,1024]").set("spark.log.level", "ERROR"))
pipe, rows = rp.load({str(tmp_path / "model.reprior")!r}), SparkBlocks(spark, {str(folder)!r})
first = pipe.estimate(rows).prior
where = spark.parallelize(range(4), 4).map(lambda _: (os.environ["SPARK_LOCAL_DIRS"], os.getppid())).collect()
parent = {{ppid: int(open(f"/proc/{{ppid}}/stat").read().rsplit(") ", 1)[1].split()[1]) for _, ppid in where}}
os.kill(parent[where[0][1]], signal.SIGKILL)
again = pipe.estimate(rows).prior
print(json.dumps([len(set(where)), first.tolist(), again.tolist()]))
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=900, check=False)
    assert ended.returncode == 0, ended.stderr[-3000:]
    executors, *priors = json.loads(ended.stdout.splitlines()[-1])
    assert executors == 2
    for prior in priors:
        np.testing.assert_allclose(prior, pipe.estimate(problem.proba).prior, atol=1e-6)


def test_the_documented_line_for_spark_submit_runs(made, tmp_path):
    import pyspark

    problem, pipe = made
    pipe.save(tmp_path / "model.reprior")
    folder = write_parts(tmp_path / "rows", problem.proba, 3)
    page = (Path(__file__).parents[2] / "docs" / "spark.md").read_text(encoding="utf-8")
    line = re.search(r"^\$ (spark-submit .*?)\n```", page, re.DOTALL | re.MULTILINE)[1]
    for there, here in (  # what only a cluster has
        ("--master yarn --num-executors 100", f"--master 'local[2]' --conf '{QUICK}'"),
        ("--archives env.tar.gz#env --conf spark.pyspark.python=env/bin/python",
         f"--conf spark.pyspark.python={sys.executable}"),
        ("$(python ", f"$({sys.executable} "),
        ("hdfs:///scores --source model.reprior", f"{folder} --source model.reprior --json"),
    ):  # fmt: skip
        assert there in line
        line = line.replace(there, here)
    programs = f"{Path(pyspark.__file__).parent / 'bin'}:{os.environ['PATH']}"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")} | {"PATH": programs}
    ended = subprocess.run(["bash", "-c", line], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500,
                           check=False)  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-3000:]
    np.testing.assert_allclose(json.loads(ended.stdout)["prior"], pipe.estimate(problem.proba).prior, atol=1e-6)


def test_without_java_a_sentence_says_how_to_get_it(made, tmp_path):
    made[1].save(tmp_path / "model.reprior")
    line = [sys.executable, "-c", "from reprior.cli import main; main()", "spark", "estimate", str(tmp_path),
            "--source", str(tmp_path / "model.reprior")]  # fmt: skip
    env = os.environ | {"JAVA_HOME": str(tmp_path)}
    ended = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == 1
    assert ended.stderr.startswith("Error: spark: `java` must be installed in version 17 or newer; got none. ")
    assert ended.stderr.count("\n") == 1


def test_doctor_knows_java_and_pyspark(ask):
    answer = ask("doctor")
    assert answer["spark"]["java"] >= 17
    assert answer["extras"]["spark"]
    assert json.dumps(answer["spark"]["workers' python"])


@pytest.mark.parametrize("share", [True, False])
def test_groups_are_those_of_numpy(spark, made, tmp_path, share):  # noqa: F811
    import pyarrow.parquet as pq

    from reprior.adapters.spark import SparkBlocks, correct, groups

    problem, pipe = made
    rng = np.random.default_rng(0)
    shops = rng.choice([f"shop-{g}" for g in range(9)], 900, p=[0.3, *[0.0875] * 8])
    (tmp_path / "rows").mkdir()
    for i, which in enumerate(np.array_split(np.arange(900), 3)):
        table = lists(problem.proba[which], shop=shops[which])
        pq.write_table(table, tmp_path / "rows" / f"part-{i}.parquet", row_group_size=100)
    expected = pipe.groups(shops, problem.proba, share=share)
    frame = spark.read.parquet(str(tmp_path / "rows"))
    by_group = groups(pipe, spark, tmp_path / "rows" if share else frame, by="shop", share=share)
    assert by_group.keys == expected.keys
    np.testing.assert_allclose(by_group.prior, expected.prior, atol=1e-6)
    np.testing.assert_allclose(by_group.shares, expected.shares, atol=1e-6)
    np.testing.assert_allclose(by_group["shop-2"].interval(), expected["shop-2"].interval(), atol=1e-6)
    assert str(by_group.population) == str(expected.population)
    assert by_group.whole.acts.share == pytest.approx(expected.whole.acts.share, abs=1e-6)
    if not share:
        return
    fixed = sorted((row.shop, row.proba) for row in correct(by_group, frame, by="shop").collect())
    own = [(key, expected[key].correct(row[None])[0].tolist()) for key, row in zip(shops, problem.proba, strict=True)]
    for (shop, mine), (other, theirs) in zip(fixed, sorted(own), strict=True):
        assert shop == other
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    with pytest.raises(rp.InputError, match="must be a column of the data; got id, proba, shop"):
        groups(pipe, spark, frame, by="store")
    assert SparkBlocks(spark, tmp_path / "rows").n == 900


def test_keys_on_the_driver_are_refused_where_rows_are_elsewhere(blocks, made, monkeypatch):
    from reprior.model import groups as module

    monkeypatch.setattr(module, "GATHERED", 10)
    with pytest.raises(rp.InputError, match="On Spark call"):
        made[1].groups(np.arange(900) % 3, blocks)
