"""`reprior diagnose`: does label-shift correction apply to these files?"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import click

from reprior.cli._inputs import inputs, method_options, parse_options, read_inputs
from reprior.cli._progress import progress
from reprior.cli._shell import as_json, emit


@click.command("diagnose")
@inputs
@method_options
@click.option("--alpha", default=0.05, show_default=True, help="The level at which the tests decide.")
@as_json
def command(method: str, options: tuple[str, ...], alpha: float, as_json: bool, **files: Any) -> None:
    """Say whether TARGET has shifted, whether it is label shift, and how well it can be measured.

    \b
    Example:  reprior diagnose scores.parquet --source heldout.npz
    """
    from reprior.assess.diagnose import diagnose
    from reprior.report.collect import in_files

    given = read_inputs("diagnose", **files)
    with progress(given.rows):
        estimate = given.estimate(method, parse_options(options))
        found = diagnose(given.source, given.target, estimate=estimate, alpha=alpha)
    value = {field.name: getattr(found, field.name) for field in fields(found) if field.name != "estimate"}
    text = in_files(str(found))
    value |= {"shifted": found.shifted, "applies": found.applies, "sentences": text.split("\n"), "n": found.estimate.n}
    value |= {"matched": given.matched, "warning": given.warning} | given.taken(method)
    emit(value, f"{text}\nThe estimate judged is by {given.told(method)}.{given.note}", as_json)
