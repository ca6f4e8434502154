"""`reprior estimate`: the class prior of new data, with intervals."""

from __future__ import annotations

from typing import Any

import click

from reprior import PriorEstimate
from reprior._check import counted
from reprior.cli._inputs import Inputs, by_option, input_options, listing_options, method_options, read_inputs
from reprior.cli._shell import Answer, print_answer, progress
from reprior.estimates.groups import Groups, groups_text
from reprior.estimates.show import estimate_shown, first_lines, stopped
from reprior.report.collect import grouped


@click.command("estimate")
@input_options
@method_options
@by_option
@listing_options
@print_answer
def command(level: float, no_interval: bool, top: int, **files: Any) -> Answer:
    """Estimate the class prior of TARGET: a file or folder of predictions, or - for standard input.

    \b
    Example:  reprior estimate scores.parquet --source model.reprior
    """
    job = read_inputs("estimate", **files)
    with progress(job.rows):
        estimate = job.estimate()
        parts = job.groups() if files["by"] else None
        return shown(estimate, parts, job, files["by"], None if no_interval else level, top)


def shown(
    estimate: PriorEstimate, parts: Groups | None, inputs: Inputs, by: str | None, level: float | None, top: int
) -> Answer:
    """Return the answer about an estimate, and about that of the groups by the column `by` if there are any."""
    value = {
        **estimate.to_dict(level), "verdict": inputs.verdict(estimate), "classes": inputs.classes, **inputs.how_made,
        "target": [part.name for part in inputs.table.parts][:1000],
    }  # fmt: skip
    labelled = f" ({estimate.n_labels:,} with a label)" if estimate.n_labels else ""
    head = f"{counted(estimate.n, 'row')}{labelled}, {len(estimate.prior)} classes, {inputs.method_text}"
    first = first_lines(head, value["verdict"], stopped(estimate.acts))
    note = inputs.note(value["verdict"])
    if parts is None or by is None:
        text = estimate_shown(estimate, level, top, head)._replace(before=first).text
        return Answer(value, text + note, estimate.status.ok)
    text = groups_text(parts, level=level, top=top, first=first, status=estimate.status)
    ok = estimate.status.ok and bool(parts.converged.all())
    return Answer(value | grouped(parts, by, level), text + note, ok)
