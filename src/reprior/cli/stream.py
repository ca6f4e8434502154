"""`reprior stream`: corrected rows out as rows come in, and a state that survives any crash."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from reprior.cli._atomic import alone
from reprior.cli._options import calibrate_option, classes_option, counts_option, stream_method_options, values_options
from reprior.cli._shell import DONE, INTERRUPTED, printable


@click.command("stream")
@click.argument("input", default="-", type=click.Path(allow_dash=True, path_type=Path))
@click.option("-s", "--source", type=click.Path(path_type=Path), help="As for estimate; --state remembers it.")
@counts_option
@click.option("--source-columns", help="What holds the probabilities in the source, if it is called otherwise there.")
@click.option("--source-label", help="What holds the labels of held-out rows.  [default: label or y]")
@calibrate_option
@classes_option
@values_options[0]
@values_options[1]
@stream_method_options
@click.option("--columns", help="What holds the probabilities: a key, or class columns a,b,c or first:last.")
@click.option("--label", help="What holds the label of a row, where it is known; null or empty where it is not.")
@click.option("--id", "name", help="What names a row, so that its label can follow in a record of its own.")
@click.option("--remember", default=10_000, show_default=True, help="How many rows may wait for a label.")
@click.option("--time", "time_column", help="What holds the time of a row: seconds, or like 2026-11-16T12:00:00Z.")
@click.option("--alarm/--no-alarm", default=None, help="Watch for a shift from the held-out rows, and say since when."
              "  [default: with held-out rows, where the prior is written]")  # fmt: skip
@click.option("--on-alarm", metavar="COMMAND", help="Run this once the alarm is raised: no shell, the facts as JSON on"
              " its standard input and in REPRIOR_ALARM.")  # fmt: skip
@click.option("--rearm", is_flag=True, help="On a restart: the earlier alarm was dealt with; watch anew from here.")
@click.option("--level", default=0.95, show_default=True, help="Of the intervals beside the prior; 1: none.")
@click.option("--state", type=click.Path(path_type=Path), help="Keep the state here, and go on from it.")
@click.option("-o", "--output", default="-", type=click.Path(allow_dash=True, path_type=Path), help="Where rows go.")
@click.option("--emit", type=click.Choice(["both", "rows", "prior"]),
              help="Corrected rows, the prior every so many rows, or both (CSV: rows).  [default: rows with -o, else"
              " both]")  # fmt: skip
@click.option("--every", default=100, show_default=True, help="Rows between two updates of the prior in use.")
@click.option("--follow", is_flag=True, help="Wait for more at the end of the file, and go on with the one that takes"
              " its place, like tail -F.")  # fmt: skip
@click.option("--replay", is_flag=True, help="The pipe starts again from its first row: skip what the state has seen.")
@click.option("--skip-bad", is_flag=True, help="Leave out rows that are no probabilities instead of stopping.")
@click.option("--save-every", default=1.0, show_default=True, help="Seconds between two writes of the state.")
@click.option("--json", "as_json", is_flag=True, help="Errors as JSON; rows keep the form they came in.")
def command(as_json: bool, **settings: Any) -> int:
    """Correct INPUT (NDJSON, CSV or msgpack; standard input by default) row by row, and follow its class mix.

    Each row is corrected before it is learned, with the prior of at most --every rows ago. With --state a restart
    continues exactly: a file is read on from where it stopped, and an output file ends with the very bytes of an
    uninterrupted run. `reprior show` prints what a state holds.

    \b
    Example:  reprior stream scores.ndjson --source counts.json --state state.bin -o corrected.ndjson
    """
    state = settings["state"]
    with alone("stream", state, "--state") if state is not None else nullcontext():
        return follow(as_json, settings)


def follow(as_json: bool, settings: dict[str, Any]) -> int:
    """Follow the stream, report what was done and return the exit code."""
    from reprior._check import counted
    from reprior.cli._stream_run import BY_POSITION, StreamRun
    from reprior.cli._stream_state import StreamOptions

    run = StreamRun(StreamOptions(**settings))
    try:
        if run.warning:
            click.echo(run.warning, err=True)
        run.run()
        piped = run.out.handle == 1
    finally:
        run.close()
    labels, alarm, at, state = run.labels, run.watch.verdict(), run.progress, run.options.state
    summary = {"rows": run.stream.n, "skipped": at.skipped, "labels": labels.taken, "labels_lost": labels.lost,
               "output": run.out.name, "state": str(state) if state else None, "matched": run.matched,
               "alarm": alarm}  # fmt: skip
    lines = []
    if at.skipped:
        lines.append(f"{counted(at.skipped, 'row')} left out; the first: {at.first_skipped}")
    if labels.lost:
        lost = f"{counted(labels.lost, 'label')} found no row among the last {labels.remember:,} that wait for one"
        lines.append(f"{lost}; see --remember and --id")
    if alarm:
        since = f" ({alarm['since_time']})" if "since_time" in alarm else ""
        lines.append(f"The alarm was raised at row {alarm['raised_at']}; the outputs have moved since about row"
                     f" {alarm['since']}{since}: {', '.join(map(str, alarm['classes'][:8]))}.")  # fmt: skip
    if not piped:
        text = f"{run.out.name}: {counted(run.stream.n, 'row')}"
        text += f", {counted(labels.taken, 'label')}" if labels.label else ""
        lines.append(text + (f"; state in {state}" if state else "; no state kept"))
    if run.stream.n and run.matched == "position":
        lines.append(BY_POSITION)
    for line in [json.dumps(summary)] * (not piped) if as_json else lines:
        click.echo(printable(line), err=True)
    return INTERRUPTED if run.stop.asked else DONE
