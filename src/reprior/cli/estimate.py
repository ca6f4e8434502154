"""`reprior estimate`: the class mix of new data, with intervals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from reprior.cli._inputs import Inputs, inputs, method_options, parse_options, read_inputs
from reprior.cli._progress import progress
from reprior.cli._shell import DONE, NOT_CONVERGED, as_json, emit

if TYPE_CHECKING:
    from reprior import PriorEstimate


@click.command("estimate")
@inputs
@method_options
@click.option("--level", default=0.95, show_default=True, help="Of the intervals.")
@click.option("--no-interval", is_flag=True, help="Skip the intervals, which cost three more passes.")
@click.option("--top", default=20, show_default=True, help="How many classes to list; 0 lists all.")
@as_json
def command(
    method: str, options: tuple[str, ...], level: float, no_interval: bool, top: int, as_json: bool, **files: Any
) -> int:
    """Estimate the class mix of TARGET: a file or folder of predictions, or - for standard input.

    \b
    Example:  reprior estimate scores.parquet --source counts.json
    """
    given = read_inputs("estimate", **files)
    with progress(given.rows):
        found = given.estimate(method, parse_options(options))
        value = described(found, given, method, None if no_interval else level)
    emit(value, text(value, given.told(method), top) + given.note, as_json)
    return DONE if found.status.ok else NOT_CONVERGED


def described(found: PriorEstimate, given: Inputs, method: str, level: float | None) -> dict[str, Any]:
    """Return an estimate as what `--json` prints."""
    interval = None if level is None else found.interval(level)
    return {
        "prior": found.prior, "interval": None if interval is None else list(zip(*interval, strict=True)),
        "classes": given.classes, "matched": given.matched, "source_prior": given.source.prior,
        "weights": found.weights, **given.taken(method), "status": found.status.name.lower(),
        "message": found.status.value, "n": found.n, "n_iter": found.n_iter, "log_likelihood": found.log_likelihood,
        "level": level, "note": interval.note if interval is not None else "", "source": given.source.made,
        "warning": given.warning, "target": [part.name for part in given.table.parts][:1000],
    }  # fmt: skip


def text(value: dict[str, Any], told: str, top: int) -> str:
    """Return an estimate for people: the classes that moved most first."""
    prior, before = value["prior"], value["source_prior"]
    order = sorted(range(len(prior)), key=lambda k: -abs(prior[k] - before[k]))[: top or None]
    width = max(5, *(len(value["classes"][k]) for k in order))
    ends = value["interval"]
    lines = [f"{value['n']:.0f} rows, {len(prior)} classes, {told}", ""]
    head = f"{'class':<{width}}  {'source':>8}  {'target':>8}"
    lines.append(head + (f"  {100 * value['level']:g} % interval".ljust(22) if ends else "") + "  change")
    for k in order:
        between = f"  {100 * ends[k][0]:7.2f} … {100 * ends[k][1]:7.2f} %" if ends else ""
        line = f"{value['classes'][k]:<{width}}  {100 * before[k]:6.2f} %  {100 * prior[k]:6.2f} %{between}"
        lines.append(f"{line}  × {prior[k] / before[k]:.2f}")
    if rest := len(prior) - len(order):
        lines.append(f"… and {rest} class{'es' * (rest > 1)} that moved less (--top 0 lists all)")
    return "\n".join([*lines, "", value["message"], *([value["note"]] if value["note"] else [])])
