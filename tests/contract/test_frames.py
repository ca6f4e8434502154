"""Every public entry takes frames of every library, matches their columns by name, and gives back what it was given."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from worlds import make_problem

import reprior as rp

NAMES = ["ant", "bee", "cat", "dog", "eel"]
SHUFFLED = ["dog", "ant", "eel", "bee", "cat"]
PRIOR = dict(zip(NAMES, [5.0, 1.0, 1.0, 1.0, 2.0], strict=True))


def typed(frame, kind):
    return frame.astype({name: kind for name in frame if frame[name].dtype == float and name != "amount"})


def duckdb_relation(frame):
    duckdb = pytest.importorskip("duckdb")
    return duckdb.from_arrow(pa.Table.from_pandas(frame, preserve_index=False))


def polars_frame(frame):
    polars = pytest.importorskip("polars")
    return polars.from_dict({name: frame[name].to_numpy() for name in frame})


FRAMES = {
    "pandas": lambda frame: frame,
    "pandas nullable": lambda frame: typed(frame, "Float64"),
    "pandas Arrow": lambda frame: typed(frame, "double[pyarrow]"),
    "polars": polars_frame,
    "pyarrow Table": lambda frame: pa.Table.from_pandas(frame, preserve_index=False),
    "pyarrow chunks": lambda frame: pa.concat_tables(
        pa.Table.from_pandas(part, preserve_index=False) for part in (frame[:33], frame[33:])
    ),
    "pyarrow RecordBatch": lambda frame: pa.RecordBatch.from_pandas(frame, preserve_index=False),
    "duckdb": duckdb_relation,
}


def columns_of(frame):
    """Return the columns of a frame of any library as {name: array}."""
    if isinstance(frame, pd.DataFrame):
        return {name: frame[name].to_numpy() for name in frame}
    if hasattr(frame, "to_arrow_table"):
        frame = frame.to_arrow_table()
    if isinstance(frame, (pa.Table, pa.RecordBatch)):
        return {name: np.asarray(frame.column(name)) for name in frame.schema.names}
    return {name: frame[name].to_numpy() for name in frame.columns}


def rows_of(frame):
    columns = columns_of(frame)
    return np.stack([columns[name].astype(float) for name in NAMES], axis=1)


def by_class(estimate):
    return [dict(zip(estimate.classes, estimate.prior, strict=True))[name] for name in NAMES]


def learned(stream, *inputs):
    (stream.learn if len(inputs) == 2 else stream.learn_many)(*inputs)
    return stream


MIX = {"eel": 0.7, "ant": 0.2, "bee": 0.1, "cat": 0.0, "dog": 0.0}
KEYS = ["a", "b"] * 40
# what returns numbers per class, in the order of NAMES
NUMBERS = {
    **{name: lambda pipe, x, y, name=name: rp.estimate(pipe.source, x, name).prior for name in rp.METHODS},
    "Pipeline.estimate": lambda pipe, x, y: pipe.estimate(x).prior,
    "estimate with labels": lambda pipe, x, y: pipe.estimate(x, labels=[*y[:9], *[None] * 71]).prior,
    "estimate from counts": lambda pipe, x, y: by_class(rp.ebls(PRIOR, x)),
    "pipeline": lambda pipe, x, y: rp.pipeline(x, y, classes=NAMES).source.prior,
    "summarize": lambda pipe, x, y: rp.summarize(x, y, classes=NAMES).prior,
    "select": lambda pipe, x, y: rp.select(x, y, classes=NAMES, trials=2, methods=("mlls",)).source.prior,
    "groups": lambda pipe, x, y: rp.groups(pipe.source, KEYS, x).prior,
    "Pipeline.groups": lambda pipe, x, y: pipe.groups(KEYS, x).prior,
    "learn_many": lambda pipe, x, y: learned(pipe.stream(), x).prior,
    "Stream": lambda pipe, x, y: learned(rp.Stream("online-ebls", pipe.source), x).prior,
    "table": lambda pipe, x, y: learned(pipe.table(), KEYS, x).prior("a"),
    "alarm": lambda pipe, x, y: np.array([rp.Alarm(pipe.source).look(x, pipe.source.prior).n]),
    "alarm reference": lambda pipe, x, y: rp.Alarm(pipe.source, reference=x).plan.mean,
    "watch": lambda pipe, x, y: watched(rp.Alarm(pipe.source), pipe.stream(), x),
    "diagnose": lambda pipe, x, y: pipe.diagnose(x).estimate.prior,
    "compare": lambda pipe, x, y: rp.compare(pipe.source, x, ["mlls"])[0].prior,
    "accuracy": lambda pipe, x, y: np.array([rp.metrics.accuracy(x, y), rp.metrics.log_loss(x, y)]),
    "calibrate.fit": lambda pipe, x, y: np.sort(rp.calibrate.fit(x, y, kind="bias-corrected").bias),
    "resample": lambda pipe, x, y: np.sort(rp.simulate.resample(x, y, MIX, n=20, rng=0).prior),
}
# what returns rows, as they came
ROWS = {
    "estimate.correct": lambda pipe, x: pipe.estimate(x, on_reject="ignore").correct(x),
    "Pipeline.correct": lambda pipe, x: pipe.correct(x, PRIOR),
    "calibrate": lambda pipe, x: pipe.calibrate(x),
    "prediction_sets": lambda pipe, x: pipe.estimate(x, on_reject="ignore").prediction_sets(x),
    "correct": lambda pipe, x: rp.correct(x, PRIOR),
    "correct_many": lambda pipe, x: learned(pipe.stream(), x).correct_many(x),
    "plain stream": lambda pipe, x: learned(rp.Stream("online-ebls", pipe.source), x).correct_many(x),
    "Stream.calibrated": lambda pipe, x: pipe.stream().calibrated(x),
    "table.correct": lambda pipe, x: learned(pipe.table(), KEYS, x).correct(KEYS, x),
    "StreamTable.calibrated": lambda pipe, x: pipe.table().calibrated(x),
    "Groups.correct": lambda pipe, x: pipe.groups(KEYS, x).correct(KEYS, x),
}


def watched(alarm, stream, rows):
    alarm.watch(stream, rows)
    return stream.prior


@pytest.fixture(scope="module")
def world():
    problem = make_problem(k=5, n=80)
    held, y = problem.source.heldout
    pipe = rp.pipeline(pd.DataFrame(held, columns=NAMES), np.array(NAMES)[y])
    return pipe, pd.DataFrame(problem.proba, columns=NAMES), np.array(NAMES)[problem.y]


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("entry", NUMBERS)
def test_columns_in_another_order_give_the_same_numbers(world, entry, kind):
    pipe, rows, y = world
    expected = NUMBERS[entry](pipe, rows, y)
    result = NUMBERS[entry](pipe, FRAMES[kind](rows[SHUFFLED]), y)
    np.testing.assert_allclose(result, expected, atol=1e-7)


@pytest.mark.parametrize("kind", FRAMES)
@pytest.mark.parametrize("entry", ROWS)
def test_a_frame_comes_back_with_its_type_names_and_order(world, entry, kind):
    pipe, rows, _ = world
    inputs = FRAMES[kind](rows[SHUFFLED])
    result = ROWS[entry](pipe, inputs)
    assert type(result) is type(inputs)
    assert list(columns_of(result)) == SHUFFLED
    if isinstance(inputs, pd.DataFrame) and entry != "prediction_sets":
        assert (result.dtypes == inputs.dtypes).all()
    np.testing.assert_allclose(rows_of(result), rows_of(ROWS[entry](pipe, rows)), atol=1e-9)


@pytest.mark.parametrize("kind", [kind for kind in FRAMES if kind != "duckdb"])
@pytest.mark.parametrize("entry", ROWS)
def test_other_columns_are_left_aside_and_come_back(world, entry, kind):
    pipe, rows, _ = world
    extra = rows[SHUFFLED].assign(id=range(100, 180), amount=7.5, shop=KEYS)[["id", *SHUFFLED, "shop", "amount"]]
    result = columns_of(ROWS[entry](pipe, FRAMES[kind](extra)))
    assert list(result) == list(extra.columns)
    for name in ("id", "amount", "shop"):
        assert result[name].tolist() == extra[name].tolist()
    expected = rows_of(ROWS[entry](pipe, rows))
    np.testing.assert_allclose(np.stack([result[name].astype(float) for name in NAMES], axis=1), expected, atol=1e-9)


@pytest.mark.parametrize("kind", FRAMES)
def test_ids_and_text_beside_held_out_rows_are_no_classes(world, kind):
    _, rows, y = world
    extra = FRAMES[kind](rows[SHUFFLED].assign(id=range(80), shop=KEYS))
    for make in (rp.pipeline, rp.summarize):
        fitted = make(extra, y)
        assert fitted.classes == tuple(SHUFFLED)
    np.testing.assert_allclose(by_class(rp.mlls(PRIOR, extra)), by_class(rp.mlls(PRIOR, rows)), atol=1e-7)


@pytest.mark.parametrize("kind", FRAMES)
def test_a_class_too_many_is_refused(world, kind):
    pipe, rows, _ = world
    more = FRAMES[kind](0.5 * rows[SHUFFLED].assign(owl=1.0))
    with pytest.raises(rp.InputError, match="have the 5 classes of the source; got 6 classes, with owl besides"):
        pipe.estimate(more)
    fewer = FRAMES[kind](rows[SHUFFLED[:4]].assign(owl=rows["cat"]))
    with pytest.raises(rp.InputError, match="without cat and with owl besides"):
        pipe.estimate(fewer)


@pytest.mark.parametrize("kind", [kind for kind in FRAMES if kind not in ("pandas", "polars")])
def test_a_missing_value_is_refused(world, kind):
    pipe, rows, _ = world
    gap = pa.array([None, *rows["bee"][1:]], pa.float64())
    holed = pa.Table.from_pandas(rows[SHUFFLED], preserve_index=False).set_column(3, "bee", gap)
    if "pandas" in kind:
        inputs = FRAMES[kind](rows[SHUFFLED])
        inputs.iloc[0, 3] = pd.NA
    elif kind == "duckdb":
        inputs = pytest.importorskip("duckdb").from_arrow(holed)
    else:
        inputs = holed if "RecordBatch" not in kind else holed.combine_chunks().to_batches()[0]
    with pytest.raises(rp.InputError, match="contain only finite numbers; got nan, first at row 0"):
        pipe.estimate(inputs)


def test_numbers_of_other_types_are_read(world):
    pipe, rows, _ = world
    hard = np.eye(5)[rows.to_numpy().argmax(axis=1)]
    expected = pipe.estimate(hard, on_reject="ignore").prior
    for kind in (pa.bool_(), pa.int8(), pa.uint32(), pa.float16(), pa.float32(), pa.decimal128(12, 2)):
        arrays = [pa.array(column.astype(int)).cast(pa.int32()).cast(kind) for column in hard.T]
        table = pa.Table.from_arrays(arrays, names=NAMES).select(SHUFFLED)
        np.testing.assert_allclose(pipe.estimate(table[5:], on_reject="ignore").prior,
                                   pipe.estimate(hard[5:], on_reject="ignore").prior, atol=1e-7)  # fmt: skip
        np.testing.assert_allclose(pipe.estimate(table, on_reject="ignore").prior, expected, atol=1e-7)
    decimals = pa.table({"ant": pa.array(["0.25", "-0.10"]).cast(pa.decimal128(5, 2)), "bee": [0.75, 1.1]})
    with pytest.raises(rp.InputError, match=r"no negative number; got -0\.1"):
        rp.mlls([1, 1], decimals)
    words = pa.table({"ant": ["a", "b"], "bee": [0.75, 1.1]})
    with pytest.raises(rp.InputError, match="hold only numbers; got another type in the column 'ant'"):
        rp.mlls([1, 1], words)
    codes = pa.table({"ant": pa.array([0.5, 0.5]).dictionary_encode(), "bee": [0.5, 0.5]})
    with pytest.raises(rp.InputError, match="another type in the column 'ant'"):
        rp.mlls([1, 1], codes)


def test_float32_frames_keep_their_type(world):
    pipe, rows, _ = world
    for kind in ("float32", "Float32", "float[pyarrow]"):
        corrected = pipe.correct(rows.astype(kind), PRIOR)
        assert (corrected.dtypes == kind).all()
    table = pa.Table.from_pandas(rows.astype("float32"), preserve_index=False)
    assert pipe.correct(table, PRIOR).schema == table.schema


def test_a_relation_with_other_columns_is_refused_where_rows_come_back(world):
    pipe, rows, _ = world
    with pytest.raises(rp.InputError, match=r"no columns beside the classes .* got shop. Pass `proba.to_arrow_table"):
        pipe.correct(duckdb_relation(rows.assign(shop=KEYS)), PRIOR)


def test_a_lazy_frame_is_told_what_to_do(world):
    polars = pytest.importorskip("polars")
    pipe, rows, _ = world
    with pytest.raises(rp.InputError, match=r"got a frame that is not computed yet. Pass `proba.collect\(\)`"):
        pipe.estimate(polars_frame(rows).lazy())
    assert isinstance(polars_frame(rows), polars.DataFrame)


def test_vectors_of_any_library_are_counts(world):
    polars = pytest.importorskip("polars")
    _, rows, _ = world
    counts = list(PRIOR.values())
    expected = rp.mlls(counts, rows.to_numpy()).prior
    for vector in (pa.array(counts), pa.chunked_array([counts[:2], counts[2:]]), polars.Series(counts)):
        np.testing.assert_array_equal(rp.mlls(vector, rows.to_numpy()).prior, expected)


@pytest.mark.parametrize("kind", FRAMES)
def test_columns_called_by_their_index_are_matched_without_class_names(kind):
    """Columns of Arrow and polars are always called by text."""
    problem = make_problem(k=5, n=80)
    source, proba = problem.source, problem.proba
    pipe = rp.pipeline(*source.heldout)
    order = [2, 0, 4, 3, 1]
    frame = FRAMES[kind](pd.DataFrame(proba[:, order], columns=[str(j) for j in order]))
    expected = pipe.estimate(proba)
    estimate = pipe.estimate(frame)
    np.testing.assert_allclose(estimate.shares, expected.shares, atol=1e-6)
    fixed = columns_of(estimate.correct(frame))
    assert [*fixed] == [str(j) for j in order]
    np.testing.assert_allclose(np.column_stack([fixed[str(j)] for j in range(5)]), expected.correct(proba), atol=1e-6)


@pytest.mark.parametrize("vector", [pa.array, lambda keys: pa.chunked_array([keys]),
                                    lambda keys: pa.array(keys).dictionary_encode()])  # fmt: skip
def test_keys_of_arrow_are_python_values(vector):
    problem = make_problem(k=5, n=80)
    source, proba = problem.source, problem.proba
    pipe = rp.pipeline(*source.heldout)
    keys = vector([f"shop-{i % 2}" for i in range(len(proba))])
    groups, table = pipe.groups(keys, proba), pipe.table()
    table.learn(keys, proba)
    assert groups.keys == ("shop-0", "shop-1") == tuple(sorted(table))
    assert groups["shop-1"].n == len(proba) // 2
    assert type(rp.StreamTable.from_bytes(table.to_bytes())) is rp.StreamTable


def test_no_library_is_imported_for_a_frame_of_another():
    code = """
import sys
import polars, numpy as np
import reprior as rp
frame = polars.DataFrame({"b": [0.8, 0.3, 0.6], "a": [0.2, 0.7, 0.4]})
pipe = rp.pipeline(counts={"a": 10, "b": 20})
print(type(pipe.estimate(frame).correct(frame)).__name__, sorted({"pandas", "pyarrow", "duckdb"} & {*sys.modules}))
"""
    pytest.importorskip("polars")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["DataFrame", "[]"]


def test_a_frame_of_another_library_is_refused_with_a_way_out():
    class Other:
        """A frame that only has the Arrow C interface."""

        def __arrow_c_stream__(self, requested_schema=None):
            raise NotImplementedError

    problem = make_problem()
    pipe = rp.pipeline(*problem.source.heldout)
    for call in (pipe.estimate, pipe.stream().learn_many, pipe.calibrate):
        with pytest.raises(rp.InputError, match=r"pandas, polars, pyarrow or DuckDB; got Other. Pass `pyarrow.table"):
            call(Other())
