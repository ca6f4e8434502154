"""Readers: every format gives the same rows, passes agree, and errors name the file, the part and the row."""

import io
import json
import os
import resource
from time import process_time

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from cli_files import CLASSES, TARGETS, N, write_all
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import reprior as rp
from reprior import InputError
from reprior.io import table
from reprior.io.files import FileBlocks, open_table, ordered
from reprior.io.sources import read_source
from reprior.io.table import Choice, Corrected
from reprior.rows.calibrated import CalibratedBlocks
from reprior.rows.passes import e_step, some_rows

KNOWN = Choice(caller="test", classes=CLASSES)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("files"))


@pytest.mark.parametrize("name", TARGETS)
def test_every_format_gives_the_same_rows(files, name):
    rows = open_table(files[name], KNOWN).load().proba
    assert rows.shape == (N, 4)
    assert np.abs(rows - np.load(files["npy"])).max() < 1e-6


@pytest.mark.parametrize("name", TARGETS)
def test_blocks_give_the_counts_of_the_array_in_every_pass(files, name):
    weights = np.array([0.5, 1.0, 2.0, 1.5])
    whole = e_step(rp.ArrayBlocks(np.load(files["npy"])), weights, likelihood=True)
    blocks = FileBlocks(open_table(files[name], KNOWN))
    for _ in range(2):
        result = e_step(blocks, weights, likelihood=True)
        assert result.n == blocks.n == N
        np.testing.assert_allclose(result.counts, whole.counts, rtol=1e-6)


@pytest.mark.parametrize("name", ["npz", "list", "columns", "csv"])
def test_labels_come_with_the_rows(files, name):
    source = read_source(files[name], Choice(caller="test", with_labels=True))
    assert source.counts.sum() == N
    assert source.counts.argmax() == 3


def test_named_labels_need_named_classes(files):
    with pytest.raises(InputError, match="must hold the column index of each row's class; got names"):
        read_source(files["ndjson"], Choice(caller="test", with_labels=True))


def test_a_source_in_another_order_is_matched_by_name(files, tmp_path):
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"dog": 4, "cat": 3, "bee": 2, "ant": 1}))
    source, table = read_source(path, Choice()), open_table(files["columns"], Choice(caller="test"))
    assert source.classes == CLASSES[::-1]
    turned = ordered(table, source.classes, 4)
    assert turned.classes == source.classes
    np.testing.assert_array_equal(turned.load().proba, table.load().proba[:, ::-1])
    copy = io.BytesIO()
    turned.parts[0].rewrite(copy, Corrected, None)  # a file keeps the order it has
    assert pq.read_table(copy).equals(pq.read_table(files["columns"]))


def test_other_classes_are_refused(files, tmp_path):
    path = tmp_path / "counts.json"
    path.write_text(json.dumps({"ant": 1, "bee": 1, "cat": 1, "eel": 1}))
    with pytest.raises(InputError, match=r"must have the classes of the source; .* with dog besides"):
        ordered(open_table(files["columns"], Choice()), read_source(path, Choice()).classes, 4)


@pytest.mark.parametrize(
    "text",
    ["class,count\nant,1\nbee,3\n", "label,count\nant,1\nbee,3\n", ",label\nant,1\nbee,3\n", "ant,1\nbee,3\n",
     "n,name\n1,ant\n3,bee\n", "\ufeffclass,count\r\nant,1\r\nbee,3\r\n"],
)  # fmt: skip
def test_counts_are_a_column_of_names_and_one_of_numbers(tmp_path, text):
    (tmp_path / "c.csv").write_text(text, newline="")
    source = read_source(tmp_path / "c.csv", Choice(with_labels=True))
    assert source.classes == ("ant", "bee")
    np.testing.assert_allclose(source.prior, [0.25, 0.75])


@pytest.mark.parametrize("text", ["ant,bee\n0.2,0.8\n.3,.7\n", "class,count\nant,1\nant,2\n", ",class,count\n0,ant,1\n",
                                  "class,count\nant,many\n"])  # fmt: skip
def test_other_tables_are_told_how_counts_look(tmp_path, text):
    (tmp_path / "c.csv").write_text(text)
    with pytest.raises(InputError, match="a counts file with the columns `class` and `count`"):
        read_source(tmp_path / "c.csv", Choice(with_labels=True))


@pytest.mark.parametrize("text", ["class;count\nant;1\n", '"ant, big";bee;label\n0.2;0.8;bee\n',
                                  "ant, big;bee;cat;label\n0,2;0,7;0,1;bee\n",
                                  "ant\tbee\tlabel\n0.2\t0.8\tbee\n"])  # fmt: skip
def test_other_separators_are_told(tmp_path, text):
    (tmp_path / "c.csv").write_text(text)
    for choice in (Choice(with_labels=True), Choice(with_labels=True, label="label")):
        with pytest.raises(InputError, match=r"must have its columns separated by commas; got .* Save it with commas"):
            read_source(tmp_path / "c.csv", choice)


def test_names_may_hold_semicolons(tmp_path):
    (tmp_path / "c.csv").write_text('"a;b;c","d;e;f",label\n0.2,0.8,d;e;f\n0.7,0.3,a;b;c\n')
    assert read_source(tmp_path / "c.csv", Choice(with_labels=True)).classes == ("a;b;c", "d;e;f")


def test_whole_numbers_may_be_names(tmp_path):
    (tmp_path / "c.csv").write_text("label,count\n1,30\n0,10\n")
    assert read_source(tmp_path / "c.csv", Choice()).classes == ("1", "0")


@pytest.mark.parametrize("name", ["columns", "csv", "ndjson objects"])
def test_columns_the_source_does_not_name_are_listed(files, name):
    rows = FileBlocks(open_table(files[name], Choice(classes=("ant", "dog"))))
    with pytest.raises(InputError, match="The source names 2 of the 4 numeric columns; unused: bee, cat"):
        rp.mlls([1, 1], rows)


def test_a_missing_column_lists_what_is_there(files, tmp_path):
    with pytest.raises(InputError, match=r"have the column 'p'; got id \(string\), proba \(list<.*label \(string\)"):
        open_table(files["list"], Choice(columns="p"))
    with pytest.raises(InputError, match="have the column 'p'; got id"):
        open_table(files["ndjson"], Choice(columns="p"))
    lines = files["csv with id"].read_text().replace('"id"', '"note"').splitlines()
    (tmp_path / "t.csv").write_text("\n".join(lines))
    assert open_table(tmp_path / "t.csv", Choice()).classes == CLASSES  # text is no class
    lines[5] = "0.25," + lines[5].partition(",")[2]
    (tmp_path / "t.csv").write_text("\n".join(lines))  # but it may be a damaged one
    with pytest.raises(InputError, match="numbers in the columns of the classes; got 'note' of type string"):
        open_table(tmp_path / "t.csv", Choice())
    assert open_table(files["csv with id"], Choice()).classes == ("ant", "bee", "cat", "dog")


def test_columns_can_be_named_one_by_one_or_as_a_range(files):
    table = open_table(files["csv with id"], Choice(columns="ant:cat"))
    assert table.classes == ("ant", "bee", "cat")
    assert open_table(files["columns"], Choice(columns="dog,ant")).classes == ("dog", "ant")


def test_a_bad_row_is_named_by_its_number_over_all_parts(tmp_path):
    rng = np.random.default_rng(0)
    for i in range(4):
        rows = rng.dirichlet(np.ones(3), 30_000).astype(np.float32)
        if i == 2:
            rows[10_000, 1] = np.nan
        pq.write_table(pa.table({c: rows[:, j] for j, c in enumerate("abc")}), tmp_path / f"part-{i}.parquet")
    blocks = FileBlocks(open_table(tmp_path, Choice(caller="estimate")))
    with pytest.raises(
        InputError, match=r"part-2.parquet` must contain only finite.*row 70000 of all, row 10000 of this"
    ):
        rp.mlls([1, 1, 1], blocks)
    assert blocks.n is None
    with pytest.raises(InputError, match="row 70000 of all"):  # nothing was kept of the failed pass
        rp.mlls([1, 1, 1], blocks)


def test_a_damaged_part_is_named(files, tmp_path):
    for path in sorted(files["parts"].iterdir()):
        data = path.read_bytes()
        (tmp_path / path.name).write_bytes(data[: len(data) // 2] if "3" in path.name else data)
    with pytest.raises(InputError, match=r"part-3.parquet` must be a readable, whole file"):
        open_table(tmp_path, Choice(caller="estimate"))
    with pytest.raises(FileNotFoundError, match="nowhere"):
        open_table(tmp_path / "nowhere.npy", Choice())


def test_parts_must_have_the_same_classes(tmp_path):
    pq.write_table(pa.table({"a": [0.5], "b": [0.5]}), tmp_path / "0.parquet")
    pq.write_table(pa.table({"a": [0.5], "c": [0.5]}), tmp_path / "1.parquet")
    with pytest.raises(InputError, match=r"1.parquet` must have the classes of .*0.parquet"):
        open_table(tmp_path, Choice())


def test_parts_of_several_types_are_decoded_anew(tmp_path):
    rng = np.random.default_rng(0)
    rows = [rng.dirichlet(np.ones(3), 100).astype(t) for t in (np.float32, np.float64)]
    for i, part in enumerate(rows):
        np.savez(tmp_path / f"{i}.npz", proba=part)
    blocks = FileBlocks(open_table(tmp_path, Choice()))
    first, second = (e_step(blocks, np.ones(3)).counts for _ in range(2))
    np.testing.assert_array_equal(first, second)
    np.testing.assert_allclose(first, sum(part.sum(axis=0, dtype=float) for part in rows), rtol=1e-6)


def test_a_nan_in_a_mapped_file_names_its_row(tmp_path):
    rows = np.full((80_000, 4), 0.25, np.float32)
    rows[70_000, 2] = np.nan
    np.save(tmp_path / "t.npy", rows)
    with pytest.raises(InputError, match="row 70000 of all"):
        rp.ebls([1, 1, 1, 1], FileBlocks(open_table(tmp_path / "t.npy", Choice())))


def bad_rows():
    """Rows that are no probability vectors, or not even rows."""
    number = st.one_of(st.floats(allow_nan=True), st.integers(-3, 3), st.none(), st.text(max_size=3), st.booleans())
    return st.lists(st.lists(number, max_size=5), min_size=1, max_size=6)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(rows=bad_rows(), kind=st.sampled_from(["ndjson", "csv", "objects"]))
def test_strange_text_is_refused_in_one_sentence_or_read(tmp_path, rows, kind):
    path = tmp_path / "f"
    if kind == "csv":
        lines = ["a,b,c", *(",".join("" if v is None else str(v) for v in row) for row in rows)]
    else:
        lines = [json.dumps({"proba": row} if kind == "objects" else row) for row in rows]
    path.write_text("\n".join(lines), encoding="utf-8", errors="replace")
    refused_or_right(path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(name=st.sampled_from(TARGETS), cut=st.floats(0, 1), flip=st.integers(0, 255), data=st.data())
def test_damaged_files_are_refused_in_one_sentence_or_read(files, tmp_path, name, cut, flip, data):
    source = files[name] / "part-0.parquet" if name == "parts" else files[name]
    content = bytearray(source.read_bytes())
    if data.draw(st.booleans()):
        content = content[: int(cut * len(content))]
    if content:
        content[data.draw(st.integers(0, len(content) - 1))] ^= flip
    path = tmp_path / "damaged"
    path.write_bytes(bytes(content))
    refused_or_right(path)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    content=st.binary(max_size=200), head=st.sampled_from([b"", b"PAR1", b"\x93NUMPY", b"PK\x03\x04", b"ARROW1", b"{"])
)
def test_noise_is_refused_in_one_sentence(tmp_path, content, head):
    path = tmp_path / "noise"
    path.write_bytes(head + content)
    refused_or_right(path)


def refused_or_right(path):
    """Either one InputError in one sentence, or rows that all are probability vectors."""
    try:
        blocks = FileBlocks(open_table(path, Choice(caller="test", classes=CLASSES)))
        total = e_step(blocks, np.ones(blocks.n_classes))
    except InputError as error:
        sentence = str(error)
    else:
        sentence = "test: `read`"
        assert total.n == blocks.n
        assert total.counts.sum() == pytest.approx(total.n, rel=1e-3)
    assert sentence.startswith("test: `")
    assert "\n" not in sentence


def test_very_many_classes(tmp_path):
    rows = np.full((3, 5_000), 1 / 5_000)
    path = tmp_path / "wide.csv"
    np.savetxt(path, rows, delimiter=",", header=",".join(f"c{i}" for i in range(5_000)), comments="")
    assert e_step(FileBlocks(open_table(path, Choice())), np.ones(5_000)).n == 3
    np.save(tmp_path / "wide.npy", rows)
    assert e_step(FileBlocks(open_table(tmp_path / "wide.npy", Choice())), np.ones(5_000)).n == 3


def test_text_that_is_not_utf8_is_refused(tmp_path):
    for content in (b"a,b\n0.5,\xff\xfe\n", b"\xe9t\xe9,b\n0.5,0.5\n", b'{"\xff": 0.5, "b": 0.5}\n'):
        path = tmp_path / "latin"
        path.write_bytes(content)
        refused_or_right(path)
        with pytest.raises(InputError):
            e_step(FileBlocks(open_table(path, Choice())), np.ones(2))


def test_a_file_that_is_cut_while_it_is_read_is_refused(tmp_path):
    rows = np.random.default_rng(0).dirichlet(np.ones(8), 60_000)
    for name, array in (("rows", rows), ("columns", np.asfortranarray(rows))):
        np.save(tmp_path / f"{name}.npy", array)
        blocks = FileBlocks(open_table(tmp_path / f"{name}.npy", Choice(caller="test")))
        np.testing.assert_allclose(e_step(blocks, np.ones(8)).counts, rows.sum(axis=0))
        size = (tmp_path / f"{name}.npy").stat().st_size
        os.truncate(tmp_path / f"{name}.npy", size - 8)
        with pytest.raises(InputError, match=r"must be a readable, whole file; got .* of the 3840000 bytes"):
            e_step(blocks, np.ones(8))
        with pytest.raises(InputError, match="must be a readable, whole file"):
            open_table(tmp_path / f"{name}.npy", Choice(caller="test"))


@pytest.mark.parametrize("dtype", ["<f2", ">f4", "<f8", ">i2", "u1"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_npy_files_of_every_type_and_order(tmp_path, dtype, order):
    rows = np.eye(4)[np.arange(1000) % 4]
    rows[:, :2] += [[0.25, -0.25]] if np.dtype(dtype).kind == "f" else 0
    np.save(tmp_path / "t.npy", np.asarray(rows, dtype, order=order))
    loaded = open_table(tmp_path / "t.npy", Choice()).load().proba
    np.testing.assert_array_equal(loaded, rows)
    assert loaded.dtype.kind == "f"


def test_a_header_that_promises_more_than_there_is_allocates_nothing(tmp_path):
    head = io.BytesIO()
    np.lib.format.write_array_header_1_0(head, {"descr": "<f8", "fortran_order": False, "shape": (1 << 50, 4)})
    (tmp_path / "t.npy").write_bytes(head.getvalue() + b"\0" * 64)
    with pytest.raises(InputError, match="must be a readable, whole file; got 64 of the"):
        open_table(tmp_path / "t.npy", Choice())


def test_a_mistake_of_ours_is_no_damaged_file(files, monkeypatch):
    from reprior.io import npy as module

    for kind in (KeyError, TypeError, IndexError):
        space = {"__name__": "reprior.io.npy"}
        exec(f"def broken(*_): raise {kind.__name__}('ours')", space)
        with monkeypatch.context() as patch:
            patch.setattr(module, "npy_part", space["broken"])
            with pytest.raises(kind, match="ours"):
                open_table(files["npy"], Choice())


@pytest.mark.parametrize(
    ("text", "message"),
    [("0.7,0.3\n0.5,0.5\n", "begin with a line of column names; got '0.7,0.3'"),
     ("17,.7,3e-1,cat\n18,.5,.5,dog\n", "begin with a line of column names"),
     ('{"a": 0.5, "b": 0.5, "a": 0.9}\n', "the key 'a' twice in one object"),
     ('{"proba": [0.5, 0.5], "about": {"x": 1, "x": 2}}\n', "the key 'x' twice in one object"),
     ("[0.5,0.5]\n[0.5\n0.5]\n[0.5,0.5],[0.5,0.5]\n", "one JSON value on each line; got .*, first at row 1"),
     ('{"\\ud83d": 0.5, "b": 0.5}\n', r"have class names that are text; got '.ud83d'")],
)  # fmt: skip
def test_text_that_says_something_else_than_it_seems_is_refused(tmp_path, text, message):
    (tmp_path / "t").write_text(text)
    with pytest.raises(InputError, match=message):
        e_step(FileBlocks(open_table(tmp_path / "t", Choice(caller="test"))), np.ones(2))


def test_names_may_look_like_numbers_if_the_source_has_them(tmp_path):
    (tmp_path / "t").write_text("0.1,0.9\n0.5,0.5\n")
    assert open_table(tmp_path / "t", Choice(classes=("0.9", "0.1"))).classes == ("0.9", "0.1")
    (tmp_path / "t").write_text("0,1\n0.5,0.5\n")
    assert open_table(tmp_path / "t", Choice()).classes == ("0", "1")


def test_counts_that_name_a_class_twice_or_by_half_a_letter_are_refused(tmp_path):
    (tmp_path / "c.json").write_text('{"ant": 1, "bee": 2, "ant": 3}')
    with pytest.raises(InputError, match="the key 'ant' twice"):
        read_source(tmp_path / "c.json", Choice())
    (tmp_path / "c.json").write_text('{"\\ud83d": 1, "bee": 2}')
    with pytest.raises(InputError, match="have class names that are text"):
        read_source(tmp_path / "c.json", Choice())


@pytest.mark.parametrize("start", [b"[0.5, 0.5]\n[", b"a,b\n0.5,0.5\n"])
def test_a_line_without_end_is_refused(tmp_path, monkeypatch, start):
    monkeypatch.setattr("reprior.io.files.RECORD_BYTES", 1 << 20)
    (tmp_path / "t").write_bytes(start + b"0.5," * (5 << 20))
    with pytest.raises(InputError):
        e_step(FileBlocks(open_table(tmp_path / "t", Choice(caller="test"))), np.ones(2))
    (tmp_path / "t").write_bytes(start.rpartition(b"\n")[2] + b"0.5," * (5 << 18))
    with pytest.raises(InputError, match="have lines or records of at most 1 MiB"):
        open_table(tmp_path / "t", Choice(caller="test"))


def test_csv_goes_out_as_it_came_in_but_for_the_probabilities(tmp_path):
    text = 'id,n,ant,bee,note,"a ""b"""\n007,5,0.5,0.5,"x, ""y""",\n8,,0.25,0.75,,2026-01-01\n'
    (tmp_path / "t.csv").write_text(text)
    (part,) = open_table(tmp_path / "t.csv", Choice(classes=("ant", "bee"))).parts
    with open(tmp_path / "o.csv", "wb") as file:
        part.rewrite(file, Corrected, None)
    assert (tmp_path / "o.csv").read_text() == text


def test_a_heldout_csv_may_have_text_beside_as_parquet_may(tmp_path):
    columns = {"note": ["hello", "x", "y"], "when": ["2026-01-01"] * 3, "empty": [""] * 3, "sure": [True] * 3,
               "ant": [0.5, 0.25, 0.125], "bee": [0.5, 0.75, 0.875], "label": ["ant", "bee", "bee"]}  # fmt: skip
    pa.csv.write_csv(pa.table(columns), tmp_path / "h.csv")
    pq.write_table(pa.table(columns), tmp_path / "h.parquet")
    results = [read_source(tmp_path / name, Choice(with_labels=True)) for name in ("h.csv", "h.parquet")]
    assert results[0].classes == results[1].classes == ("ant", "bee")
    np.testing.assert_array_equal(results[0].heldout[0], results[1].heldout[0])


class Plain:
    """Blocks that only pass rows on, as a cluster's do."""

    def __init__(self, blocks):
        self.blocks, self.n_classes = blocks, blocks.n_classes

    def map_sum(self, fn):
        return self.blocks.map_sum(fn)


class Counting:
    """A calibrator that counts the rows it is asked for."""

    def __init__(self, calibrator):
        self.calibrator, self.rows = calibrator, 0

    def __call__(self, block):
        self.rows += len(block)
        return self.calibrator(block)


@pytest.mark.parametrize("form", ["npy", "npz", "parquet", "full disk"])
def test_rows_of_files_are_calibrated_once(tmp_path, form):
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 5, 400)
    held = rng.dirichlet(np.ones(5), 400) + np.eye(5)[labels]
    pipe = rp.pipeline(held / held.sum(axis=1, keepdims=True), labels)
    n = 90_000 if form == "full disk" else 450_000  # several segments
    rows = rng.dirichlet([1, 2, 3, 1, 1], n).astype(np.float32)
    path = tmp_path / f"t.{'npy' if form == 'full disk' else form}"
    if form == "parquet":
        pq.write_table(pa.table({str(k): rows[:, k] for k in range(5)}), path)
    else:
        np.savez(path, proba=rows) if form == "npz" else np.save(path, rows)
    blocks = FileBlocks(open_table(path, Choice()))
    plain, calibrator = Plain(FileBlocks(open_table(path, Choice()))), Counting(pipe.calibrator)
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    if form == "full disk":
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        once, each = CalibratedBlocks(blocks, calibrator), CalibratedBlocks(plain, pipe.calibrator)
        weights = np.array([1.0, 2, 0.5, 1, 3])
        for _ in range(3):
            result, wanted = e_step(once, weights, likelihood=True), e_step(each, weights, likelihood=True)
            np.testing.assert_array_equal(result.counts, wanted.counts)
            assert result.log_likelihood == wanted.log_likelihood
            assert result.n == n
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert calibrator.rows == (3 * n if form == "full disk" else n)
    raw = [e_step(some, weights).counts for some in (blocks, plain)]  # raw rows stay raw
    np.testing.assert_allclose(*raw, rtol=1e-12)


def test_a_bad_row_is_named_though_rows_are_calibrated(tmp_path):
    rows = np.full((80_000, 4), 0.25, np.float32)
    rows[70_000, 2] = 0.75
    np.savez(tmp_path / "t.npz", proba=rows)
    pipe = rp.pipeline(np.eye(4)[[0, 1, 2, 3] * 50] * 0.6 + 0.1, [0, 1, 2, 3] * 50)
    blocks = FileBlocks(open_table(tmp_path / "t.npz", Choice()))
    for _ in range(2):
        with pytest.raises(InputError, match="row 70000 of all"):
            pipe.estimate(blocks)


def test_rows_of_files_are_sampled_evenly_in_every_pass(tmp_path):
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(4), 700_000)
    np.savez(tmp_path / "t.npz", proba=rows)
    labels = rng.integers(0, 4, 400)
    held = rng.dirichlet(np.ones(4), 400) + np.eye(4)[labels]
    pipe = rp.pipeline(held / held.sum(axis=1, keepdims=True), labels)
    blocks = FileBlocks(open_table(tmp_path / "t.npz", Choice()))
    for _ in range(2):
        np.testing.assert_array_equal(some_rows(blocks, len(rows), 10_000), rows[::70])
        result = some_rows(pipe.rows(blocks), len(rows), 10_000)
        np.testing.assert_array_equal(result, pipe.calibrator(rows[::70]))


def test_a_file_of_very_many_columns_is_refused_before_it_is_read(tmp_path, monkeypatch):
    """A CSV file of a million columns used to take 11 GB and two minutes."""
    names = [f"c{j}" for j in range(60_000)]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n" + ",".join(["0.5"] * len(names)) + "\n")
    begun = process_time()
    with pytest.raises(rp.InputError, match=r"at most 50,000 columns; got 60,000\. Save .* as NPY"):
        open_table(tmp_path / "wide.csv", Choice())
    with pytest.raises(rp.InputError, match="at most 50,000 columns; got 60,000"):
        read_source(tmp_path / "wide.csv", Choice())
    assert process_time() - begun < 5
    monkeypatch.setattr(table, "MAX_COLUMNS", 500)
    pq.write_table(pa.table({name: [0.5] for name in names[:501]}), tmp_path / "wide.parquet")
    with pytest.raises(rp.InputError, match="at most 500 columns; got 501"):
        open_table(tmp_path / "wide.parquet", Choice())


def test_the_time_to_choose_columns_grows_with_their_number(tmp_path):
    names = [f"c{j}" for j in range(20_000)]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n" + ",".join(["5e-5"] * len(names)) + "\n")
    begun = process_time()
    assert open_table(tmp_path / "wide.csv", Choice()).n_classes == 20_000
    assert process_time() - begun < 5  # 20 s with a set made again for each column


@pytest.mark.parametrize(("head", "message"), [("b,a", "2 classes in another order"), ("a,c", "without b and with c")])
def test_parts_that_name_their_columns_otherwise_are_refused(head, message, tmp_path):
    (tmp_path / "1.csv").write_text("a,b\n0.7,0.3\n")
    (tmp_path / "2.csv").write_text(f"{head}\n0.7,0.3\n")
    with pytest.raises(rp.InputError, match=message):
        open_table(tmp_path, Choice())
