"""`reprior diagnose`: does label-shift correction apply to these files?"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from reprior.assess.diagnose import diagnose
from reprior.cli._inputs import input_options, method_options, read_inputs
from reprior.cli._shell import Answer, print_answer, progress


@click.command("diagnose")
@input_options
@method_options
@click.option("--alpha", default=0.05, show_default=True, help="Level of the tests.")
@print_answer
def command(alpha: float, **files: Any) -> Answer:
    """Test whether TARGET has shifted and whether it is label shift, and predict the accuracy.

    \b
    Example:  reprior diagnose scores.parquet --source model.reprior
    """
    job = read_inputs("diagnose", **files)
    with progress(job.rows):
        estimate = job.estimate(on_reject="ignore")
        diagnosis = diagnose(job.source, estimate.target, estimate=estimate, alpha=alpha)
    value = {field.name: getattr(diagnosis, field.name) for field in fields(diagnosis) if field.name != "estimate"}
    value |= {"shifted": diagnosis.shifted, "applies": diagnosis.applies, "sentences": str(diagnosis).split("\n"),
              "n": diagnosis.estimate.n, "n_labels": diagnosis.estimate.n_labels} | job.how_made  # fmt: skip
    return Answer(value, f"{diagnosis}\nThe estimate was made by {job.method_text}.{job.note()}")
