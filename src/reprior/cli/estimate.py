"""`reprior estimate`: the class mix of new data, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reprior.cli._inputs import Inputs, by_option, inputs, method_options, read_inputs
from reprior.cli._progress import progress
from reprior.cli._shell import DONE, NOT_CONVERGED, as_json, emit

if TYPE_CHECKING:
    from reprior import PriorEstimate
    from reprior.batch.groups import Groups


@click.command("estimate")
@inputs
@method_options
@by_option
@click.option("--level", default=0.95, show_default=True, help="Of the intervals.")
@click.option("--no-interval", is_flag=True, help="Skip the intervals, which cost three more passes.")
@click.option("--top", default=20, show_default=True, help="How many classes, or groups, to list; 0 lists all.")
@as_json
def command(level: float, no_interval: bool, top: int, as_json: bool, **files: Any) -> int:
    """Estimate the class mix of TARGET: a file or folder of predictions, or - for standard input.

    \b
    Example:  reprior estimate scores.parquet --source model.reprior
    """
    from reprior.report.collect import grouped
    from reprior.report.show import estimate_text

    given = read_inputs("estimate", **files)
    with progress(given.rows):
        found = given.estimate()
        value = described(found, given, None if no_interval else level)
        labelled = f" ({found.n_labels:,} with a label)" if found.n_labels else ""
        head = f"{found.n:,.0f} rows{labelled}, {len(found.prior)} classes, {given.told}"
        if files["by"]:
            by_group = given.groups()
            value |= grouped(by_group, files["by"], None if no_interval else level)
            text = groups_text(by_group, found, given, None if no_interval else level, top, head)
        else:
            text = estimate_text(found, level=None if no_interval else level, top=top, head=head)
    emit(value, text + given.note, as_json)
    return DONE if found.status.ok and (not files["by"] or by_group.converged.all()) else NOT_CONVERGED


def groups_text(found: Groups, overall: PriorEstimate, given: Inputs, level: float | None, top: int, head: str) -> str:
    """Return what groups have in common, and a table of the largest, each with the class that moved most in it."""
    from reprior.report.show import groups_rows

    rows, rest = groups_rows(found, level, top)
    lines = aligned(rows)
    if rest:
        lines.append(f"… and {rest:,} group{'s' * (rest > 1)} with no more rows")
    after = [overall.status.value, found.note if level is not None else ""]
    if not found.converged.all():
        after.append(f"{(~found.converged).sum():,} of the groups had not settled.")
    after = [line for line in after if line]
    return "\n".join([head, *given.verdict(overall), str(found.population), "", *lines, *[""] * bool(after), *after])


def aligned(rows: list[list[str]]) -> list[str]:
    """Return the lines of a table: first and third column begin, the others end, under each other."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(f"{cell:{'<' if j in (0, 2) else '>'}{width}}" for j, (cell, width) in
                      enumerate(zip(row, widths, strict=True))).rstrip() for row in rows]  # fmt: skip


def described(found: PriorEstimate, given: Inputs, level: float | None) -> dict[str, Any]:
    """Return an estimate as what `--json` prints."""
    interval, checks = None if level is None else found.interval(level), found.checks
    return {
        "verdict": given.verdict(found), "shift_p": checks and checks.shift_p,
        "label_shift_p": checks and checks.label_shift_p, "prior": found.prior,
        "interval": None if interval is None else list(zip(*interval, strict=True)), "classes": given.classes,
        "matched": given.matched, "source_prior": given.source.prior, "weights": found.weights, **given.taken,
        "status": found.status.name.lower(), "message": found.status.value, "n": found.n, "n_labels": found.n_labels,
        "n_iter": found.n_iter,
        "log_likelihood": found.log_likelihood, "level": level, "note": interval.note if interval is not None else "",
        "source": given.source.made, "warning": given.warning,
        "target": [part.name for part in given.table.parts][:1000],
    }  # fmt: skip
