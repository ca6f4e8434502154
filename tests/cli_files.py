"""The same thousand predictions in every format the command line reads, for its tests."""

from __future__ import annotations

import json
from pathlib import Path

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
from worlds import score_outputs

CLASSES = ("ant", "bee", "cat", "dog")
N = 1000


def draw(rng, n, prior):
    y = rng.choice(len(CLASSES), n, p=prior)
    return score_outputs(rng, y, len(CLASSES), 2.2, scale=1).astype(np.float32), y


def tables(proba, y):
    ids = [f"row {i}" for i in range(len(y))]
    names = [CLASSES[j] for j in y]
    fixed = pa.FixedSizeListArray.from_arrays(pa.array(proba.ravel()), len(CLASSES))
    metadata = {b"reprior.classes": json.dumps(CLASSES).encode()}
    listed = pa.table({"id": ids, "proba": fixed.cast(pa.list_(pa.float32())), "label": names})
    columns = pa.table({"id": ids} | {c: proba[:, j] for j, c in enumerate(CLASSES)} | {"label": names})
    return listed.replace_schema_metadata(metadata), pa.table({"id": ids, "proba": fixed}), columns


def write_all(folder: Path) -> dict[str, Path]:
    """Write target and source in every format; return the target's paths by format, and the sources' too."""
    rng = np.random.default_rng(3)
    held, held_y = draw(rng, 800, [0.25] * 4)
    proba, y = draw(rng, N, [0.1, 0.2, 0.3, 0.4])
    listed, fixed, columns = tables(proba, y)
    at = {name: folder / file for name, file in {
        "npy": "t.npy", "npz": "t.npz", "list": "list.parquet", "fixed": "fixed.parquet", "columns": "columns.parquet",
        "parts": "parts", "arrow": "t.arrow", "arrow stream": "ts.arrow", "csv": "t.csv", "csv with id": "tid.csv",
        "ndjson": "t.ndjson", "ndjson lists": "tl.ndjson", "ndjson objects": "to.ndjson",
        "heldout": "held.npz", "counts": "counts.json", "counts csv": "counts.csv"}.items()}  # fmt: skip
    np.save(at["npy"], proba)
    np.savez(at["npz"], proba=proba, y=y, classes=CLASSES)
    np.savez(at["heldout"], proba=held, y=held_y, classes=CLASSES)
    for name, table in (("list", listed), ("fixed", fixed), ("columns", columns)):
        pq.write_table(table, at[name])
    at["parts"].mkdir()
    for i in range(5):
        pq.write_table(columns.slice(200 * i, 200), at["parts"] / f"part-{i}.parquet")
    with pa.ipc.new_file(at["arrow"], listed.schema) as writer:
        writer.write_table(listed)
    with pa.ipc.new_stream(at["arrow stream"], listed.schema) as writer:
        writer.write_table(listed)
    pc.write_csv(columns.drop(["id"]), at["csv"])
    pc.write_csv(columns, at["csv with id"])
    rows = proba.astype(np.float64).tolist()
    lines = {
        "ndjson": [{"id": i, "proba": row, "label": CLASSES[y[i]]} for i, row in enumerate(rows)],
        "ndjson lists": rows,
        "ndjson objects": [dict(zip(CLASSES, row, strict=True)) for row in rows],
    }
    for name, values in lines.items():
        at[name].write_text("".join(json.dumps(value) + "\n" for value in values))
    at["counts"].write_text(json.dumps(dict.fromkeys(CLASSES, 100)))
    at["counts csv"].write_text("class,count\n" + "".join(f"{c},100\n" for c in reversed(CLASSES)))
    return at


TARGETS = ("npy", "npz", "list", "fixed", "columns", "parts", "arrow", "arrow stream", "csv", "csv with id", "ndjson",
           "ndjson lists", "ndjson objects")  # fmt: skip


def msgpack_rows(path, proba, raw):
    rows = [row.astype("<f4").tobytes() for row in proba] if raw else proba.astype(float).tolist()
    path.write_bytes(b"".join(map(msgpack.packb, rows)))
