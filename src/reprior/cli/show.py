"""`reprior show`: what a state file holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reprior.cli._shell import as_json, emit

if TYPE_CHECKING:
    from reprior import Stream

SHOWN = 20  # classes, the largest first


@click.command("show")
@click.argument("state", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--level", default=0.95, show_default=True, help="Of the intervals.")
@as_json
def command(state: Path, level: float, as_json: bool) -> None:
    """Print what STATE holds: what `reprior stream --state` keeps, or a saved stream.

    \b
    Example:  reprior show state.bin
    """
    from reprior import Stream
    from reprior._check import fail
    from reprior.cli._watch import Watch
    from reprior.state import decode, kind_of

    data = state.read_bytes()
    kind = kind_of(data, "show", name=str(state))
    if kind not in ("stream", "stream-job"):
        fail("show", str(state), "hold a stream", f"a {kind!r}", remedy="Read it in Python with its own `load`")
    stream = Stream.from_bytes(data)
    value: dict[str, Any] = {"kind": kind} | described(stream, level)
    lines = [f"{state}: {stream.n} rows learned by {stream.method.name}, calibration {value['calibration']}"]
    if kind == "stream-job":
        found = decode(data, "stream-job", "show", name=str(state))
        watch = Watch(None, None)
        watch.restore(found, len(stream.source.prior), "show")
        job = {name: found[name] for name in ("output", "offset", "written", "records", "skipped", "settings")}
        value |= job | {"watched": watch.alarm is not None, "alarm": watch.verdict()}
        lines.append(f"input read to byte {job['offset']}; {job['written']} bytes written to {job['output']}")
        lines.append(raised(value))
    emit(value, "\n".join([*lines, "", *table(value)]), as_json)


def described(stream: Stream, level: float) -> dict[str, Any]:
    """Return what a stream has learned, as plain values."""
    ends = stream.interval(level)
    return {
        "method": stream.method.name, "calibration": stream.calibrator.kind if stream.calibrator else "none",
        "n": stream.n, "classes": list(stream.classes or map(str, range(len(stream.prior)))), "prior": stream.prior,
        "source_prior": stream.source.prior, "lower": ends.lower, "upper": ends.upper, "level": level,
    }  # fmt: skip


def raised(value: dict[str, Any]) -> str:
    """Return what the alarm says, in one line."""
    said = value["alarm"]
    if said is None:
        return "no alarm was raised" if value["watched"] else "no alarm watches"
    since = f" ({said['since_time']})" if "since_time" in said else ""
    names = ", ".join(map(str, said["classes"][:8]))
    return f"alarm raised at row {said['raised_at']}, since about row {said['since']}{since}: {names}"


def table(value: dict[str, Any]) -> list[str]:
    """Return lines of classes with their shares, the largest first."""
    order = sorted(range(len(value["prior"])), key=lambda j: -value["prior"][j])
    width = max(5, *(len(value["classes"][j]) for j in order[:SHOWN]))
    lines = [f"{'class':<{width}}    source    target  {100 * value['level']:g} % interval"]
    for j in order[:SHOWN]:
        source, prior, lower, upper = (100 * value[name][j] for name in ("source_prior", "prior", "lower", "upper"))
        shares = f"{source:8.2f} %{prior:8.2f} %  {lower:7.2f} … {upper:7.2f} %"
        lines.append(f"{value['classes'][j]:<{width}}{shares}")
    return lines + [f"… and {len(order) - SHOWN} more"] * (len(order) > SHOWN)
