"""`reprior show`: what a saved file holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from reprior import Alarm, AlarmTable, Pipeline, Stream, StreamTable
from reprior._check import counted, fail, listed
from reprior.cli._inputs import level_option
from reprior.cli._shell import Answer, print_answer
from reprior.cli._stream_state import AlarmWatch
from reprior.estimates.show import Shown, applied, cut, first_lines, share, stopped, table
from reprior.io.files import read_whole
from reprior.io.sources import is_saved
from reprior.pipelines.load import load
from reprior.pipelines.watch import Watch
from reprior.rows.calibrated import calibration_of
from reprior.state import decode, kind_of, take

LISTED = 20  # classes, or keys
About = tuple[dict[str, Any], list[str]]  # what to print with --json, and the lines to print otherwise
JOB: dict[str, type] = {"output": str, "offset": int, "written": int, "records": int, "skipped": int, "settings": dict}


@click.command("show")
@click.argument("saved", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@level_option
@print_answer
def command(saved: Path, level: float) -> Answer:
    """Print the content of SAVED, a file from `reprior fit`, `reprior stream --state` or `save`.

    \b
    Example:  reprior show state.bin
    """
    data, name = read_whole(saved), str(saved)
    if not is_saved(saved):
        fail("show", name, "be what `reprior fit`, `reprior stream --state` or `save` wrote", "another file",
             remedy="For a table of predictions use `reprior estimate FILE --source MODEL`")  # fmt: skip
    kind = kind_of(data, "show", name=name)
    held = load(data)
    if isinstance(held, Stream):
        value, lines = about_stream(held, level, name, data if kind == "stream-job" else None)
    elif isinstance(held, Pipeline):
        value, lines = about_pipeline(held, name)
    elif isinstance(held, StreamTable):
        keys = list(held)
        off = [key for key in keys if stopped(held.acts(key))]
        value = {"method": held.method.name, "streams": len(keys), "keys": keys[:LISTED],
                 "not_label_shift": off[:LISTED]}  # fmt: skip
        less = f"{counted(len(off), 'stream applies', 'streams apply')} less than half of the correction"
        lines = [f"{less}: {listed(off, LISTED)}"] * bool(off)
        lines += [f"{name}: {len(keys):,} streams learned by {held.method.name}", f"keys: {listed(keys, LISTED)}"]
    elif isinstance(held, Watch):
        value = {"batches": held.n_batches, "acts": held.acts._asdict()}
        head = f"{name}: a deployment of {counted(held.n_batches, 'batch', 'batches')}"
        lines = first_lines(head, [applied(held.acts)], stopped(held.acts))
    elif isinstance(held, AlarmTable):
        loud = [key for key in held if held[key]]
        value = {"streams": len(held), "raised": loud[:LISTED]}
        lines = [f"{name}: alarms of {len(held):,} streams", f"raised: {listed(loud, LISTED) or 'none'}"]
    elif isinstance(held, Alarm):
        value = {"n": held.verdict.n, "watched": True, "alarm": AlarmWatch(held, None).verdict()}
        lines = [f"{name}: an alarm that has seen {held.verdict.n:,} rows", raised(value)]
    else:
        value, lines = {"calibration": held.kind}, [f"{name}: a calibrator, {held.kind}"]
    return Answer({"kind": kind} | value, "\n".join(lines))


def about_stream(stream: Stream, level: float, name: str, run: bytes | None) -> About:
    """Return what a stream has learned; of a `run` of `reprior stream` also how far it got, and its alarm."""
    ends, calibration = stream.interval(level), calibration_of(stream.calibrator)
    value: dict[str, Any] = {
        "method": stream.method.name, "calibration": calibration, "n": stream.n,
        "classes": list(stream.source.called), "prior": stream.prior, "source_prior": stream.source.prior,
        "lower": ends.lower, "upper": ends.upper, "level": level, "acts": stream.acts._asdict(),
    }  # fmt: skip
    more = []
    if run is not None:
        fields, watch = decode(run, "stream-job", "show", name=name), AlarmWatch(None, None)
        watch.restore(fields, len(stream.source.prior), "show")
        value |= {field: take(fields, field, kind, "show") for field, kind in JOB.items()}
        value |= {"watched": watch.alarm is not None, "alarm": watch.verdict()}
        more = ["input read to byte {offset}; {written} bytes written to {output}".format(**value), raised(value)]
    head = f"{name}: {stream.n} rows learned by {stream.method.name}, calibration {calibration}"
    lines = first_lines(head, [*more, applied(stream.acts)], stopped(stream.acts))
    return value, [Shown(lines, *table(stream, ends, LISTED)).text]


def about_pipeline(pipe: Pipeline, name: str) -> About:
    """Return what a pipeline knows of its classifier, and its classes, the largest first."""
    source, prior = pipe.source, pipe.source.prior
    value = {
        "method": pipe.method, "options": {name: str(option) for name, option in pipe.options.items()},
        "calibration": calibration_of(pipe.calibrator), "source": source.made,
        "classes": list(source.called), "source_prior": prior,
        "heldout_rows": source.n_heldout or None,
    }  # fmt: skip
    rows = "" if value["heldout_rows"] is None else f" and {value['heldout_rows']:,} held-out samples"
    order = sorted(range(len(prior)), key=lambda j: -prior[j])
    called = [cut(source.called[j]) for j in order[:LISTED]]
    width = max(len("class"), *map(len, called))
    lines = [f"{name}: a pipeline, method {value['method']}, calibration {value['calibration']}",
             f"source: {source.made}; it keeps {len(prior)} classes{rows}", ""]  # fmt: skip
    lines += [f"{'class':<{width}}   source"]
    lines += [f"{label:<{width}}  {share(prior[j]):>7}" for label, j in zip(called, order, strict=False)]
    return value, lines + [f"… and {len(order) - LISTED} more"] * (len(order) > LISTED)


def raised(value: dict[str, Any]) -> str:
    """Return what the alarm says, in one line."""
    alarm = value["alarm"]
    if alarm is None:
        return "no alarm was raised" if value["watched"] else "no alarm watches"
    since = f" ({alarm['since_time']})" if "since_time" in alarm else ""
    names = ", ".join(cut(str(name)) for name in alarm["classes"][:8])
    return f"alarm raised at row {alarm['raised_at']}, since about row {alarm['since']}{since}: {names}"
