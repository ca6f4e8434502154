"""`reprior simulate`: a shifted data set drawn from labelled rows."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import click
import numpy as np

from reprior import simulate
from reprior._check import fail
from reprior.cli._inputs import values_options
from reprior.cli._shell import Answer, keep_apart, print_answer
from reprior.io.files import open_table
from reprior.io.sources import labelled_rows
from reprior.io.table import Choice
from reprior.state import whole_file

SHIFTS: dict[str, tuple[Any, float]] = {  # with their usual strength
    "long-tail": (simulate.shuffled_long_tail, 0.1), "dirichlet": (simulate.dirichlet, 1.0),
    "tweak-one": (simulate.tweak_one, 0.5), "knock-out": (simulate.knock_out, 0.5),
}  # fmt: skip


@click.command("simulate")
@click.argument("pool", type=click.Path(path_type=Path))
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Output: .npz, .parquet or .csv.")
@click.option("--shift", default="long-tail", show_default=True, type=click.Choice([*SHIFTS]), help="What changes.")
@click.option("--strength", type=float, help="Rarest over most frequent class, Dirichlet α, share of the one class,"
              " or share of absent classes.  [default: 0.1, 1, 0.5, 0.5]")  # fmt: skip
@click.option("--rows", default=2000, show_default=True, help="Number of samples.")
@click.option("--seed", default=0, show_default=True, help="Random seed.")
@click.option("--columns", help="Columns of the probabilities.")
@click.option("--label", help="Column of the labels.  [default: label or y]")
@values_options
@print_answer
def command(pool: Path, output: Path, shift: str, strength: float | None, rows: int, seed: int,
            **columns: Any) -> Answer:  # fmt: skip
    """Draw samples from POOL, labelled predictions, with a new class prior.

    \b
    Example:  reprior simulate heldout.npz --shift dirichlet --rows 1000 -o shifted.npz
    """
    if output.suffix not in (".npz", ".parquet", ".csv"):
        fail("simulate", "--output", "end in .npz, .parquet or .csv", output)
    keep_apart("simulate", output, pool)
    wanted = Choice(**columns, with_labels=True, caller="simulate")
    table = open_table(pool, wanted)
    proba, y = labelled_rows(table, pool)
    rng, k = np.random.default_rng(seed), table.n_classes
    draw, usual = SHIFTS[shift]
    value = usual if strength is None else strength
    sample = simulate.resample(proba, y, draw(k, value, rng=rng), n=rows, rng=rng)
    classes = table.classes or tuple(str(j) for j in range(k))
    with whole_file(output) as file:
        write(file, output.suffix, sample, table.classes)
    summary = {"output": str(output), "rows": rows, "shift": shift, "strength": value, "seed": seed,
            "prior": dict(zip(classes, sample.prior.tolist(), strict=True)),
            "reused": [classes[j] for j in sample.reused]}  # fmt: skip
    again = f"; rows of {len(sample.reused)} classes occur more than once" if sample.reused else ""
    return Answer(summary, f"{output}: {rows} rows of {k} classes, {shift} {value:g}, seed {seed}{again}")


def write(file: Any, ending: str, sample: Any, classes: tuple[str, ...] | None) -> None:
    """Write rows with their labels: as arrays, as a column of lists, or as one column per class."""
    names = classes or tuple(str(k) for k in range(sample.proba.shape[1]))
    if ending == ".npz":
        more: dict[str, Any] = {"classes": np.array(classes)} if classes else {}
        np.savez_compressed(file, proba=sample.proba, y=sample.y, prior=sample.prior, **more)
    elif ending == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        from reprior.io.arrow import CLASSES_KEY

        lists = pa.FixedSizeListArray.from_arrays(pa.array(sample.proba.ravel()), sample.proba.shape[1])
        table = pa.table({"proba": lists, "label": [classes[j] for j in sample.y] if classes else sample.y})
        about = {CLASSES_KEY: json.dumps(classes).encode()} if classes else {}
        pq.write_table(table.replace_schema_metadata(about), file)
    elif "label" in names:
        fail("simulate", "--output", "end in .npz or .parquet if a class is called 'label'", "a .csv file")
    else:
        text = io.TextIOWrapper(file, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*names, "label"])
        writer.writerows([*row, names[j]] for row, j in zip(sample.proba.tolist(), sample.y, strict=True))
        text.detach()  # which flushes it, and leaves the file open
