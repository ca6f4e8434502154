"""`reprior query`: which rows to label, as a list to fill in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from reprior._check import counted, fail
from reprior.assess.query import query
from reprior.cli._inputs import input_options, method_options, read_inputs
from reprior.cli._shell import Answer, keep_apart, print_answer, progress
from reprior.estimates.verdict import label_advice
from reprior.io.labels import filled_in, read_ids, write_list
from reprior.state import whole_file


@click.command("query")
@input_options
@method_options
@click.option("-n", "size", default=100, show_default=True, help="Number of samples.")
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Output file (CSV).")
@click.option("--id", "name", help="Column with ids.  [default: id or row_id, else row numbers from 0]")
@click.option("--seed", default=0, show_default=True, help="Random seed.")
@print_answer
def command(size: int, output: Path, name: str | None, seed: int, **files: Any) -> Answer:
    """Choose the samples of TARGET whose labels are most informative, and write a list for you to fill in.

    Pass the completed list as --labels to estimate, correct, report, diagnose, and to query for the next round.

    \b
    Example:  reprior query scores.parquet --source model.reprior -n 100 -o to_label.csv
    """
    keep_apart("query", output, files["target"], files["source"], files["counts"])
    labels = files["target_labels"]
    if (count := filled_in(output)) and not (labels and os.path.exists(labels) and os.path.samefile(labels, output)):
        fail("query", "-o", "be a new file, or the list given as --labels", f"{output}, which has labels ({count})",
             remedy=f"Add `--labels {output}` to keep them")  # fmt: skip
    job = read_inputs("query", **files)
    before = job.labels.listed
    if before is not None and name is not None and name != before.name:
        fail("query", "--id", f"be {before.name!r}, as in the earlier list", repr(name))
    named = before.name if before is not None else name
    column, ids, why = ("row", None, "") if named == "row" else read_ids(job.table, files["target"], named)
    with progress(job.rows):
        estimate = job.estimate()
        rows, weights = chosen = query(estimate, size, rng=seed)
    left = estimate.n - estimate.n_labels
    waiting = [] if before is None else [row for row, line in zip(before.rows, before.lines, strict=True)
                                         if not line["label"]]  # fmt: skip
    fresh = [i for i, row in enumerate(rows) if row not in {*waiting}]
    chances = len(rows) / left / weights
    with whole_file(output) as file:
        write_list(file, column, ids, rows[fresh], weights[fresh], chances[fresh], before)
    value = {"output": str(output), "rows": rows[fresh], "weights": weights[fresh], "chances": chances[fresh],
             "named_by": column, "n": estimate.n, "n_labels": estimate.n_labels,
             "labels_needed": chosen.labels_needed} | job.how_made  # fmt: skip
    lines = [f"{output}: {len(fresh):,} of {counted(left, 'row')} without a label, named by {column}"]
    if why:
        lines[0] += f" number, since {why}"
    if estimate.n_labels:
        lines[0] += f"; {counted(estimate.n_labels, 'row')} had one already"
    if waiting:
        lines.append(f"{counted(len(waiting), 'row')} of the earlier list still without a label.")
    advice = label_advice("Labels of {} would settle whether to correct.", chosen.labels_needed, left)
    lines += [advice.strip()] * bool(advice)
    lines.append(f"Fill in the column label, then pass --labels {output}.")
    return Answer(value, "\n".join(lines) + job.note())
