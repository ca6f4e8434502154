"""`--by COLUMN`: one class mix for each group, in every format, and each row corrected by that of its group."""

import json
import os
import signal
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from cli_files import CLASSES, draw

import reprior as rp

SHOPS = {"north": (400, [0.7, 0.1, 0.1, 0.1]), "south": (300, [0.1, 0.1, 0.1, 0.7]), "east": (60, [0.1, 0.7, 0.1, 0.1])}
FORMS = ("list.parquet", "columns.parquet", "t.csv", "t.ndjson", "objects.ndjson", "t.npz", "t.arrow")


@pytest.fixture(scope="module")
def shops(tmp_path_factory):
    """The same rows of three shops, shuffled, in every format; `number` is another column, of whole numbers."""
    folder, rng = tmp_path_factory.mktemp("shops"), np.random.default_rng(5)
    proba = np.concatenate([draw(rng, n, prior)[0] for n, prior in SHOPS.values()])
    keys = np.repeat([*SHOPS], [n for n, _ in SHOPS.values()])
    order = rng.permutation(len(keys))
    proba, keys = proba[order], keys[order]
    numbers = np.array([[*SHOPS].index(key) + 9 for key in keys])
    lists = pa.FixedSizeListArray.from_arrays(pa.array(proba.ravel()), 4)
    listed = pa.table({"shop": keys, "number": numbers, "proba": lists})
    listed = listed.replace_schema_metadata({b"reprior.classes": json.dumps(CLASSES).encode()})
    columns = {"shop": keys, "number": numbers} | {c: proba[:, j] for j, c in enumerate(CLASSES)}
    pq.write_table(listed, folder / "list.parquet")
    pq.write_table(pa.table(columns), folder / "columns.parquet")
    pc.write_csv(pa.table(columns), folder / "t.csv")
    np.savez(folder / "t.npz", proba=proba, shop=keys, number=numbers, classes=CLASSES)
    with pa.ipc.new_file(folder / "t.arrow", listed.schema) as writer:
        writer.write_table(listed)
    rows = [row.tolist() for row in proba]
    for name, values in (
        ("t", [{"proba": row} for row in rows]),
        ("objects", [dict(zip(CLASSES, row, strict=True)) for row in rows]),
    ):
        lines = (
            json.dumps({"shop": str(key), "number": int(number)} | value)
            for key, number, value in zip(keys, numbers, values, strict=True)
        )
        (folder / f"{name}.ndjson").write_text("".join(f"{line}\n" for line in lines))
    return folder, proba, keys


def fitted(files):
    with np.load(files["heldout"]) as held:
        return rp.pipeline(held["proba"], held["y"], classes=CLASSES)


def read(path):
    """Return the probabilities that a corrected file holds."""
    if path.suffix == ".npz":
        return np.load(path)["proba"]
    if path.suffix == ".ndjson":
        values = [json.loads(line) for line in path.read_text().splitlines()]
        return np.array([value.get("proba") or [value[c] for c in CLASSES] for value in values])
    table = {".parquet": pq.read_table, ".csv": pc.read_csv, ".arrow": lambda p: pa.ipc.open_file(p).read_all()}
    result = table[path.suffix](path)
    if "proba" in result.column_names:
        return np.array(result["proba"].to_pylist())
    return np.stack([result[c].to_numpy() for c in CLASSES], axis=1)


@pytest.mark.parametrize("name", FORMS)
def test_each_group_has_its_mix(ask, call, files, shops, name):
    folder, proba, keys = shops
    wanted = fitted(files).groups(keys, proba)
    message = ask("estimate", folder / name, "-s", files["heldout"], "--by", "shop", "--level", 0.9)
    results = {group["key"]: group for group in message["groups"]}
    assert (message["by"], sorted(results)) == ("shop", sorted(SHOPS))
    low, high = wanted.interval(0.9)[:2]
    for g, key in enumerate(wanted.keys):
        assert results[key]["n"] == SHOPS[key][0]
        np.testing.assert_allclose(results[key]["prior"], wanted.prior[g], atol=1e-6)
        np.testing.assert_allclose(results[key]["interval"], np.stack([low[g], high[g]], axis=1), atol=1e-5)
        assert np.abs(np.array(results[key]["prior"]) - SHOPS[key][1]).max() < 0.15
    code, text, _ = call("estimate", folder / name, "-s", files["heldout"], "--by", "shop", "--top", 2)
    lines = text.splitlines()
    assert code == 0
    assert "3 groups with 760 samples." in lines
    assert any(line.startswith("The groups differ") for line in lines)
    at = next(i for i, line in enumerate(lines) if line.startswith("group "))
    assert [line.split()[:3] for line in lines[at + 1 : at + 3]] == [["north", "400", "ant"], ["south", "300", "dog"]]
    assert lines[at + 3] == "… and 1 group of at most this size"


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("by", ["shop", "number"])
def test_each_row_is_corrected_by_its_group(call, files, shops, tmp_path, name, by):
    folder, proba, keys = shops
    pipe = fitted(files)
    groups, wanted = pipe.groups(keys, proba, on_reject="ignore"), np.empty(proba.shape)
    for key in SHOPS:
        wanted[keys == key] = pipe.correct(proba[keys == key], groups[key])
    out = tmp_path / name
    code, _, err = call("correct", folder / name, "-s", files["heldout"], "--by", by, "-o", out, "--anyway")
    assert (code, err) == (0, "")
    np.testing.assert_allclose(read(out), wanted, atol=2e-6)


def test_classes_in_another_order_and_logits_keep_their_groups(ask, files, shops, tmp_path):
    folder, proba, keys = shops
    turned = tmp_path / "t.parquet"
    pq.write_table(pa.table({c: np.log(proba[:, j]) for j, c in reversed([*enumerate(CLASSES)])} | {"s": keys}), turned)
    plain = ask("estimate", folder / "t.npz", "-s", files["counts"], "--by", "shop")["groups"]
    answer = ask("estimate", turned, "-s", files["counts"], "--by", "s", "--logits")["groups"]
    for a, b in zip(plain, answer, strict=True):
        assert a["key"] == b["key"]
        np.testing.assert_allclose(a["prior"], b["prior"], atol=1e-5)


def test_one_group_is_what_the_estimate_is(ask, files, shops, tmp_path):
    _, proba, _ = shops
    np.savez(tmp_path / "t.npz", proba=proba, day=np.full(len(proba), 7), classes=CLASSES)
    (tmp_path / "counts.json").write_text(json.dumps(dict(zip(CLASSES, [4000, 3000, 2000, 1000], strict=True))))
    message = ask(
        "estimate", tmp_path / "t.npz", "-s", files["heldout"], "--counts", tmp_path / "counts.json", "--by", "day"
    )
    np.testing.assert_allclose(message["groups"][0]["prior"], message["prior"], atol=1e-9)
    assert message["groups"][0]["key"] == 7


CRASH = """import os, signal, sys
from reprior.cli import correct, main
after = int(sys.argv.pop(1))
write = correct.write_journal
def note(output, journal):
    write(output, journal)
    if journal["parts"] == after:
        os.kill(os.getpid(), signal.SIGKILL)
correct.write_journal = note
main()"""


@pytest.mark.parametrize("after", [0, 2])
def test_after_a_crash_the_same_groups_are_used(call, files, shops, tmp_path, after):
    folder, _, _ = shops
    table, parts = pq.read_table(folder / "columns.parquet"), tmp_path / "parts"
    parts.mkdir()
    for i in range(4):
        pq.write_table(table.slice(190 * i, 190), parts / f"{i}.parquet")
    args = ["correct", parts, "-s", files["heldout"], "--by", "shop", "--anyway", "-o"]
    assert call(*args, tmp_path / "whole")[0] == 0
    crashed = [sys.executable, "-c", CRASH, str(after), *map(str, args), str(tmp_path / "again")]
    assert subprocess.run(crashed, env=os.environ, timeout=60).returncode == -signal.SIGKILL
    code, out, _ = call(*args, tmp_path / "again")
    assert code == 0
    assert ("2 of them by an earlier run" in out) == (after == 2)
    for i in range(4):
        name = f"{i}.parquet"
        assert (tmp_path / "again" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def spoil(folder, name, tmp_path, key):
    """Write a file whose row 5 has no key."""
    out = tmp_path / name
    if name.endswith(".parquet"):
        table = pq.read_table(folder / name)
        keys = table["shop"].to_pylist()
        keys[5] = key
        pq.write_table(table.set_column(0, "shop", pa.array(keys)), out)
    elif name.endswith(".csv"):
        lines = (folder / name).read_text().splitlines(keepends=True)
        lines[6] = '""' + lines[6][lines[6].index(",") :]
        out.write_text("".join(lines))
    elif name.endswith(".ndjson"):
        lines = (folder / name).read_text().splitlines()
        lines[5] = json.dumps(json.loads(lines[5]) | {"shop": key})
        out.write_text("".join(f"{line}\n" for line in lines))
    else:
        with np.load(folder / name) as archive:
            keys = archive["number"].astype(float)
            keys[5] = np.nan
            np.savez(out, **{**archive, "shop": keys})
    return out


@pytest.mark.parametrize("name", FORMS[:-1])
@pytest.mark.parametrize("command", ["estimate", "correct"])
def test_a_missing_key_names_its_row(refused, files, shops, tmp_path, name, command):
    path = spoil(shops[0], name, tmp_path, None)
    where = ["-o", tmp_path / f"out{path.suffix}", "--anyway"] if command == "correct" else []
    message = refused(command, path, "-s", files["heldout"], "--by", "shop", *where)
    assert f"`{path}` must name a group in 'shop' in every row; got none, first at row 5 of this file" in message


def test_what_cannot_be_a_key_or_goes_with_it_is_refused(refused, files, shops, tmp_path):
    folder, held = shops[0], files["heldout"]
    out = ["-s", held, "-o", tmp_path / "out.parquet"]
    path = folder / "list.parquet"
    assert "Perhaps you mean 'shop'" in refused("estimate", path, "-s", held, "--by", "shops")
    assert "Perhaps you mean 'shop'" in refused("estimate", folder / "t.npz", "-s", held, "--by", "Shop")
    assert "Perhaps you mean 'shop'" in refused("estimate", folder / "t.ndjson", "-s", held, "--by", "Shop")
    assert "3 classes, without ant" in refused("estimate", folder / "columns.parquet", "-s", held, "--by", "ant")
    assert "np.savez" in refused("estimate", files["npy"], "-s", held, "--by", "shop")
    assert "`--method` must be ebls with --by" in refused("estimate", path, "-s", held, "--by", "shop", "-m", "mlls")
    prior = files["counts"]
    assert "Pass either --prior or --by" in refused("correct", path, *out, "--by", "shop", "--prior", prior)
    spoilt = spoil(folder, "t.ndjson", tmp_path, ["a"])
    assert "must have text or numbers as keys; got ['a'], first at row 5" in refused(
        "estimate", spoilt, "-s", held, "--by", "shop"
    )


def test_a_report_has_a_table_of_groups(ask, call, files, shops, tmp_path):
    folder, proba, keys = shops
    wanted = fitted(files).groups(keys, proba)
    arguments = ["report", folder / "list.parquet", "-s", files["heldout"], "--by", "shop"]
    code, _, _ = call(*arguments, "-o", tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    assert code == 0
    assert "Groups by shop" in page
    assert [page.index(f"<td>{shop}</td>") for shop in ("north", "south", "east")] == sorted(
        page.index(f"<td>{shop}</td>") for shop in SHOPS)  # fmt: skip
    results = {group["key"]: group["prior"] for group in ask(*arguments)["groups"]}
    np.testing.assert_allclose([results[key] for key in wanted.keys], wanted.prior, atol=1e-9)


def test_compare_shows_what_sharing_does_and_how_wrong_each_way_is(ask, call, files, shops, tmp_path):
    folder, proba, keys = shops
    arguments = ["compare", folder / "list.parquet", "-s", files["heldout"], "--by", "shop"]
    rng = np.random.default_rng(0)
    y = np.array([rng.choice(4, p=SHOPS[key][1]) for key in keys])
    truth = pa.table({"shop": keys, "label": np.array(CLASSES)[y]} | {c: proba[:, j] for j, c in enumerate(CLASSES)})
    pq.write_table(truth, tmp_path / "truth.parquet")
    answer = ask(*arguments, "--truth", tmp_path / "truth.parquet")
    shared, alone, one = answer["ways"]
    pipe = fitted(files)
    np.testing.assert_allclose(shared["prior"], pipe.groups(keys, proba).prior, atol=1e-9)
    np.testing.assert_allclose(alone["prior"], pipe.groups(keys, proba, share=False).prior, atol=1e-9)
    assert one["kl"] > 5 * shared["kl"] > 0
    assert one["distance"] > alone["distance"] > shared["distance"] == 0
    assert "one prior for all" in call(*arguments)[1]
    pq.write_table(truth.filter(pa.array(keys != "east")), tmp_path / "two.parquet")
    code, _, err = call(*arguments, "--truth", tmp_path / "two.parquet")
    assert (code, "must have labelled rows of every group; got none of 'east'" in err) == (1, True)
