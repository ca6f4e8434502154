"""`reprior estimate`: the class mix of new data, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reprior.cli._inputs import Inputs, read_inputs
from reprior.cli._options import by_option, inputs, level_option, method_options
from reprior.cli._progress import progress
from reprior.cli._shell import DONE, NOT_CONVERGED, as_json, emit

if TYPE_CHECKING:
    from reprior import PriorEstimate
    from reprior.model.groups import Groups


@click.command("estimate")
@inputs
@method_options
@by_option
@level_option
@click.option("--no-interval", is_flag=True, help="Skip the intervals, which cost three more passes.")
@click.option("--top", default=20, show_default=True, help="How many classes, or groups, to list; 0 lists all.")
@as_json
def command(level: float, no_interval: bool, top: int, as_json: bool, **files: Any) -> int:
    """Estimate the class mix of TARGET: a file or folder of predictions, or - for standard input.

    \b
    Example:  reprior estimate scores.parquet --source model.reprior
    """
    given = read_inputs("estimate", **files)
    with progress(given.rows):
        found = given.estimate()
        parts = given.groups() if files["by"] else None
        told = shown(found, parts, given, files["by"], None if no_interval else level, top)
    emit(*told, as_json)
    return DONE if found.status.ok and (parts is None or parts.converged.all()) else NOT_CONVERGED


def shown(
    found: PriorEstimate, parts: Groups | None, given: Inputs, by: str | None, level: float | None, top: int
) -> tuple[dict[str, Any], str]:
    """Return an estimate, and that of the groups by the column `by` if there are any, as values and as text."""
    from reprior._check import counted
    from reprior.estimates.show import estimate_text
    from reprior.estimates.show_groups import groups_text
    from reprior.report.collect import grouped

    value = described(found, given, level)
    labelled = f" ({found.n_labels:,} with a label)" if found.n_labels else ""
    head = f"{counted(found.n, 'row')}{labelled}, {len(found.prior)} classes, {given.told}"
    if parts is None or by is None:
        return value, estimate_text(found, level=level, top=top, head=head) + given.note_after(value["verdict"])
    text = groups_text(parts, level=level, top=top, head=head, said=given.verdict(found), status=found.status)
    return value | grouped(parts, by, level), text + given.note_after(value["verdict"])


def described(found: PriorEstimate, given: Inputs, level: float | None) -> dict[str, Any]:
    """Return an estimate as what `--json` prints."""
    return {
        **found.to_dict(level), "verdict": given.verdict(found), "classes": given.classes, "matched": given.matched,
        **given.taken, "warning": given.warning, "target": [part.name for part in given.table.parts][:1000],
    }  # fmt: skip
