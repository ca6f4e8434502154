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
    Example:  reprior compare scores.parquet --source heldout.npz
    """
    from reprior.io.files import Choice
    from reprior.io.sources import match, read_source
    from reprior.report.collect import agreement

    given = read_inputs("compare", **files)
    true = None
    if truth is not None:
        wanted = Choice(caller="compare", with_labels=True, label=files["label"])
        known = match(read_source(truth, wanted, files["columns"], files["values"]), given.table, "compare")
        true = known.prior if known.counts is None else known.counts / known.counts.sum()
    with progress(given.rows):
        methods = agreement(given.source, given.target, {"auto": lambda: given.estimate("auto", {})}, true=true)
    value = {"classes": given.classes, "matched": given.matched, "warning": given.warning, "methods": methods}
    told = f"\nAll were given the same rows; auto is {given.told('auto').replace(' (auto)', '')}."
    emit(value | given.taken("auto"), text(methods) + told + given.note, as_json)


def text(methods: list[dict[str, Any]]) -> str:
    """Return the comparison as a table."""
    error = "KL(true‖est.)" if "kl" in methods[0] else ""
    lines = [f"{'method':<8} {'distance to auto':>17} {'log-lik./row':>13} {'time':>9} {error:>14}"]
    for row in methods:
        if "skipped" in row:
            lines.append(f"{row['method']:<8} {row['skipped']}")
            continue
        kl = f"{row['kl']:14.4f}" if error else ""
        lines.append(f"{row['method']:<8} {row['distance']:>17.4f} {row['log_likelihood']:>13.4f} "
                     f"{1000 * row['seconds']:>6.0f} ms {kl}")  # fmt: skip
    meaning = "Distance: total variation, the difference of the class mixes (0: the same, 1: no class in common)."
    return "\n".join([*lines, "", meaning])
