"""`reprior compare`: every method on one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from reprior.cli._inputs import inputs, read_inputs
from reprior.cli._progress import progress
from reprior.cli._shell import as_json, emit


@click.command("compare")
@inputs
@click.option("--truth", type=click.Path(exists=True, path_type=Path),
              help="The true class mix, or labelled rows that have it: adds each method's error.")  # fmt: skip
@as_json
def command(truth: Path | None, as_json: bool, **files: Any) -> None:
    """Estimate the class mix of TARGET with every method and show how far they agree.

    \b
    Example:  reprior compare scores.parquet --source model.reprior
    """
    from reprior.assess.compare import compare
    from reprior.io.files import Choice
    from reprior.io.sources import read_prior

    given, true = read_inputs("compare", **files), None
    if truth is not None:
        wanted = Choice(caller="compare", with_labels=True, label=files["label"], columns=files["columns"])
        true = read_prior(truth, given.source.classes, given.table.n_classes, wanted)
    with progress(given.rows):
        first = given.estimate(check=False)
        found = compare(given.source, first.target, true=true, first=first, name="the default")
    rows = [{"method": row.method, "skipped": row.skipped} if row.estimate is None else
            {"method": row.method, "prior": row.prior, "status": row.estimate.status.name.lower(), "kl": row.kl,
             "log_likelihood": row.estimate.log_likelihood / row.estimate.n, "seconds": row.seconds,
             "distance": row.distance} for row in found]  # fmt: skip
    value = {"classes": given.classes, "matched": given.matched, "warning": given.warning, "methods": rows}
    told = f"All were given the same rows. The default is {given.told}."
    emit(value | given.taken, f"{found}\n{told}{given.note}", as_json)
