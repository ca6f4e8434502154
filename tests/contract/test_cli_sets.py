"""`correct --sets LEVEL`: the sets that the library gives, in every format that has room for them."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from cli_files import CLASSES

import reprior as rp

FORMS = ("npz", "list", "fixed", "columns", "arrow", "csv", "ndjson", "ndjson objects")


def wanted(files, level=0.9, **options):
    with np.load(files["heldout"]) as held, np.load(files["npz"]) as target:
        pipe, rows = rp.pipeline(held["proba"], held["y"], classes=CLASSES), target["proba"]
    return pipe.estimate(rows).prediction_sets(rows, level, **options)


def written(path, order=CLASSES):
    """Return the sets of a file (n, K), in the order of the classes."""
    if path.suffix == ".npz":
        with np.load(path) as result:
            return result["set"][:, [list(result["classes"]).index(c) for c in order]]
    if path.suffix == ".ndjson":
        lists = [json.loads(line)["set"] for line in path.read_text().splitlines()]
    elif path.suffix == ".csv":
        lists = [x.split("|") if x else [] for x in pc.read_csv(path)["set"].to_pylist()]
    else:
        table = pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()
        lists = table["set"].to_pylist()
    return np.array([[c in names for c in order] for names in lists])


@pytest.mark.parametrize("form", FORMS)
def test_sets_are_written_beside_the_rows(call, files, tmp_path, form):
    out = tmp_path / files[form].name
    code, _, err = call("correct", files[form], "-s", files["heldout"], "-o", out, "--sets", 0.9)
    assert (code, err) == (0, "")
    agree = written(out) == wanted(files)
    assert agree.mean() > 0.9995  # the rows of a file may be float32
    plain = tmp_path / ("plain" + out.suffix)
    call("correct", files[form], "-s", files["heldout"], "-o", plain)
    if out.suffix == ".parquet":
        assert pq.read_table(out).drop(["set"]).equals(pq.read_table(plain))


def test_sets_by_class_of_columns_in_another_order_and_of_a_known_mix(call, files, tmp_path):
    order = ["dog", "ant", "cat", "bee"]
    with np.load(files["npz"]) as target:
        rows = target["proba"][:, [CLASSES.index(c) for c in order]]
    np.savez(tmp_path / "t.npz", proba=rows, classes=order)
    arguments = [tmp_path / "t.npz", "-s", files["heldout"], "--sets", 0.8]
    assert call("correct", *arguments, "-o", tmp_path / "o.npz", "--sets-by-class")[0] == 0
    assert (written(tmp_path / "o.npz") == wanted(files, 0.8, by_class=True)).mean() > 0.9995
    (tmp_path / "mix.json").write_text(json.dumps({"ant": 0.1, "bee": 0.2, "cat": 0.3, "dog": 0.4}))
    assert call("correct", *arguments, "-o", tmp_path / "p.npz", "--prior", tmp_path / "mix.json")[0] == 0
    assert 0.5 < written(tmp_path / "p.npz").sum(axis=1).mean() < 3


def test_sets_of_groups_are_those_of_each_group(call, files, tmp_path):
    with np.load(files["npz"]) as target:
        rows, keys = target["proba"], np.where(target["y"] < 2, "left", "right")
    np.savez(tmp_path / "t.npz", proba=rows, classes=CLASSES, side=keys)
    arguments = ["-s", files["heldout"], "--sets", 0.9, "--by", "side", "--anyway"]
    assert call("correct", tmp_path / "t.npz", *arguments, "-o", tmp_path / "o.npz")[0] == 0
    with np.load(files["heldout"]) as held:
        groups = rp.pipeline(held["proba"], held["y"], classes=CLASSES).groups(keys, rows, on_reject="ignore")
    result = written(tmp_path / "o.npz")
    for side in ("left", "right"):
        mine = groups[side].prediction_sets(rows[keys == side])
        assert (result[keys == side] == mine).mean() > 0.999


def test_what_has_no_room_for_sets_is_refused(refused, files, tmp_path):
    out = ["-o", tmp_path / "o.csv", "--sets", 0.9]
    assert "class counts alone" in refused("correct", files["csv"], "-s", files["counts"], *out)
    assert "np.savez" in refused(
        "correct", files["npy"], "-s", files["heldout"], "-o", tmp_path / "o.npy", "--sets", 0.9
    )
    assert "above 0 and below 1" in refused("correct", files["csv"], "-s", files["heldout"], *out[:2], "--sets", 90)


def test_a_column_of_that_name_is_not_overwritten(call, files, tmp_path):
    pq.write_table(pq.read_table(files["columns"]).append_column("set", pa.array(["x"] * 1000)), tmp_path / "t.parquet")
    arguments = ["-s", files["heldout"], "-o", tmp_path / "o.parquet", "--sets", 0.9]
    code, out, err = call("correct", tmp_path / "t.parquet", *arguments)
    assert (code, out) == (1, "")
    assert "no column 'set'" in err
    assert not (tmp_path / "o.parquet").exists()


def test_other_sets_are_another_job(call, files, tmp_path):
    """What an interrupted run left behind is not gone on with if the level has changed since."""
    out = tmp_path / "o"
    arguments = [files["parts"], "-s", files["heldout"], "-o", out]
    assert call("correct", *arguments, "--sets", 0.9)[0] == 0
    first = np.concatenate([written(path) for path in sorted(out.iterdir())])
    assert call("correct", *arguments, "--sets", 0.5)[0] == 0
    second = np.concatenate([written(path) for path in sorted(out.iterdir())])
    assert second.sum() < first.sum()
