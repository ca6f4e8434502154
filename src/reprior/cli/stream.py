"""`reprior stream`: corrected rows out as rows come in, and a state that survives any crash."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from reprior._check import counted
from reprior.cli._inputs import classes_option, source_options, stream_method_options, values_options
from reprior.cli._shell import DONE, INTERRUPTED, alone, printable
from reprior.cli._stream_run import StreamRun
from reprior.cli._stream_state import StreamOptions
from reprior.estimates.show import applied

BY_POSITION = "Classes were matched by position, because the input or the source has no class names."


@click.command("stream")
@click.argument("input", default="-", type=click.Path(allow_dash=True, path_type=Path))
@click.option("-s", "--source", type=click.Path(path_type=Path), help="As for estimate; --state remembers it.")
@source_options("--source-label")
@classes_option
@values_options
@stream_method_options
@click.option("--columns", help="Key or columns of the probabilities: a,b,c or first:last.")
@click.option("--label", help="Key of the label; null or empty if unknown.")
@click.option("--id", "name", help="Key of the sample id, so that its label can arrive in a later record.")
@click.option("--remember", default=10_000, show_default=True, help="Number of samples that may wait for a label.")
@click.option("--time", "time_column", help="Key of the time: seconds, or like 2026-11-16T12:00:00Z.")
@click.option("--alarm/--no-alarm", default=None, help="Raise an alarm when the prior shifts."
              "  [default: on with held-out samples, if the prior is written]")  # fmt: skip
@click.option("--on-alarm", metavar="COMMAND", help="Run this once the alarm is raised: without a shell, with the"
              " record as JSON on standard input and in REPRIOR_ALARM.")  # fmt: skip
@click.option("--rearm", is_flag=True, help="On a restart: reset the alarm.")
@click.option("--level", default=0.95, show_default=True, help="Level of the intervals; 1: no intervals.")
@click.option("--state", type=click.Path(path_type=Path), help="Save the state here, and continue from it.")
@click.option("-o", "--output", default="-", type=click.Path(allow_dash=True, path_type=Path), help="Output file.")
@click.option("--emit", type=click.Choice(["both", "rows", "prior"]),
              help="Corrected rows, the prior after every --every rows, or both; a CSV table gets rows alone."
              "  [default: rows with -o, else both]")  # fmt: skip
@click.option("--every", default=100, show_default=True, help="Number of samples between two updates of the prior.")
@click.option("--follow", is_flag=True, help="Wait for more at the end of the file, and follow a rotated file, like"
              " tail -F.")  # fmt: skip
@click.option("--skip-bad", is_flag=True, help="Skip rows that are not probabilities instead of stopping.")
@click.option("--save-every", default=1.0, show_default=True, help="Seconds between two saves of the state.")
@click.option("--json", "as_json", is_flag=True, help="Print errors as JSON.")
def command(as_json: bool, **settings: Any) -> int:
    """Correct INPUT (NDJSON, CSV or msgpack; standard input by default) one by one, and follow the class prior.

    Each sample is corrected before it is learned, with the prior of at most --every samples ago. With --state a
    restart continues, and the output has the same bytes as an uninterrupted run. `reprior show` prints a state.

    \b
    Example:  reprior stream scores.ndjson --source counts.json --state state.bin -o corrected.ndjson
    """
    state = settings["state"]
    with alone("stream", state, "--state") if state is not None else nullcontext():
        run = StreamRun(StreamOptions(**settings))
        try:
            if run.warning:
                click.echo(run.warning, err=True)
            run.run()
            piped = run.out.handle == 1
        finally:
            run.close()
        lines = [json.dumps(summary(run))] * (not piped) if as_json else report(run, piped)
        for line in lines:
            click.echo(printable(line), err=True)
        return INTERRUPTED if run.stop.asked else DONE


def summary(run: StreamRun) -> dict[str, Any]:
    """Return what a run did, for --json."""
    labels, state = run.labels, run.options.state
    return {"rows": run.stream.n, "skipped": run.at.skipped, "labels": labels.n_used, "labels_lost": labels.n_lost,
            "output": run.out.name, "state": str(state) if state else None, "matched": run.matched,
            "alarm": run.watch.verdict(), "acts": run.stream.acts._asdict()}  # fmt: skip


def report(run: StreamRun, piped: bool) -> list[str]:
    """Return what a run did, in sentences; where it wrote is left out if that is a pipe."""
    labels, alarm, at, state, lines = run.labels, run.watch.verdict(), run.at, run.options.state, []
    if at.skipped:
        lines.append(f"{counted(at.skipped, 'row')} left out; the first: {at.first_skipped}")
    if labels.n_lost:
        lost = f"{counted(labels.n_lost, 'label')} found no row among the last {labels.remember:,} that wait for one"
        lines.append(f"{lost}; see --remember and --id")
    if alarm:
        since = f" ({alarm['since_time']})" if "since_time" in alarm else ""
        lines.append(f"The alarm was raised at row {alarm['raised_at']}; predictions have changed since about row"
                     f" {alarm['since']}{since}: {', '.join(map(str, alarm['classes'][:8]))}.")  # fmt: skip
    if run.stream.acts.log_evidence is not None:
        lines.append(applied(run.stream.acts))
    if not piped:
        text = f"{run.out.name}: {counted(run.stream.n, 'row')}"
        text += f", {counted(labels.n_used, 'label')}" if labels.label else ""
        lines.append(text + (f"; state in {state}" if state else "; no state kept"))
    return lines + [BY_POSITION] * (run.stream.n > 0 and run.matched == "position")
