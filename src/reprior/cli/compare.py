"""`reprior compare`: every method on one file, or every way to treat its groups."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from reprior._check import fail
from reprior._types import Vector
from reprior.assess.compare import compare
from reprior.assess.metrics import kl
from reprior.cli._inputs import Inputs, by_option, input_options, read_inputs
from reprior.cli._shell import Answer, print_answer, progress
from reprior.io.files import open_table, ordered
from reprior.io.labels import label_columns
from reprior.io.sources import read_prior
from reprior.io.table import Choice, group_keys

WAYS = ("sharing", "separate", "one prior for all")


@click.command("compare")
@input_options
@by_option
@click.option("--truth", type=click.Path(exists=True, path_type=Path),
              help="The true class prior, or labelled samples: adds the error of each method. With --by: labelled"
              " samples with that column.")  # fmt: skip
@print_answer
def command(truth: Path | None, **files: Any) -> Answer:
    """Estimate the class prior of TARGET with every method and compare the results.

    With --by it compares three ways: groups that share information (default), separate groups, and one prior
    for all.

    \b
    Example:  reprior compare scores.parquet --source model.reprior
    """
    job, true = read_inputs("compare", **files), None
    wanted = Choice(caller="compare", with_labels=True, label=files["label"], columns=files["columns"])
    if files["by"]:
        return by_group(job, truth, replace(wanted, aside={files["by"]: "--by"}))
    if truth is not None:
        true = read_prior(truth, job.source.classes, job.table.n_classes, wanted)
    with progress(job.rows):
        first = job.estimate()
        compared = compare(job.source, first.target, true=true, first=first, name="the default")
    rows = [{"method": row.method, "skipped": row.skipped} if row.estimate is None else
            {"method": row.method, "prior": row.prior, "status": row.estimate.status.name.lower(), "kl": row.kl,
             "log_likelihood": row.log_likelihood, "seconds": row.seconds,
             "distance": row.distance} for row in compared]  # fmt: skip
    value = {"classes": job.classes, "methods": rows}
    note = f"All methods had the same samples. The default is {job.method_text}."
    return Answer(value | job.how_made, f"{compared}\n{note}{job.note()}")


def by_group(inputs: Inputs, truth: Path | None, wanted: Any) -> Answer:
    """Compare the ways to estimate the prior of each group, and their errors if the true priors are known."""
    true = None if truth is None else true_shares(inputs, truth, wanted)
    seconds, priors = [], []
    with progress(inputs.rows):
        overall = inputs.estimate()  # which also decodes the rows, before anything is timed
        for share in (True, False):
            start = time.perf_counter()
            groups = inputs.groups(share=share)
            seconds.append(time.perf_counter() - start)
            priors.append(groups.prior)
    priors.append(np.broadcast_to(overall.prior, priors[0].shape))
    keys, first = groups.keys, priors[0]
    if true is not None and (lost := [key for key in keys if key not in true]):
        fail("compare", str(truth), "have labelled rows of every group", f"none of {lost[0]!r}", count=len(lost))
    rows, lines = [], [f"{'groups':<26} {'distance':>9} {'furthest':>9}  {'in':<20}" + "  KL(true‖est.)" * bool(true)]
    for way, prior, took in zip(WAYS, priors, [*seconds, None], strict=True):
        distance = np.abs(prior - first).sum(axis=1) / 2
        far = int(distance.argmax())
        error = None if true is None else float(np.mean([kl(true[key], prior[g]) for g, key in enumerate(keys)]))
        rows.append({"way": way, "distance": distance.mean(), "furthest": distance[far], "in": keys[far], "kl": error,
                     "seconds": took, "prior": prior})  # fmt: skip
        where = str(keys[far])[:20] if distance[far] else ""
        line = f"{way:<26} {distance.mean():>9.4f} {distance[far]:>9.4f}  {where:<20}"
        lines.append((line + (f"  {error:>13.4f}" if error is not None else "")).rstrip())
    lines.append(f"Distance: total variation from the first line, as the mean over {len(keys):,} groups; furthest: the"
                 " largest of them, and in which group.")  # fmt: skip
    value = {"classes": inputs.classes, "by": inputs.by, "keys": keys, "ways": rows}
    return Answer(value | inputs.how_made, "\n".join(lines) + inputs.note())


def true_shares(inputs: Inputs, truth: Path, wanted: Any) -> dict[Any, Vector]:
    """Return the class shares of the labelled rows of each group, in the order of the source's classes."""
    table = ordered(open_table(truth, wanted), inputs.source.classes, inputs.table.n_classes)
    assert inputs.by is not None
    keys, labels = np.concatenate(group_keys(table, inputs.by)), table.load().labels
    y = label_columns(labels, table, truth, len(keys), inputs.source.classes)
    counts: dict[Any, Vector] = {}
    for key, k in zip(keys, y, strict=True):
        counts.setdefault(key, np.zeros(inputs.table.n_classes))[k] += 1
    return {key: count / count.sum() for key, count in counts.items()}
