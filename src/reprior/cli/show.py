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
from reprior.io.files import whole
from reprior.io.sources import is_saved
from reprior.pipelines.load import load
from reprior.pipelines.watch import Watch
from reprior.state import decode, kind_of, take

LISTED = 20  # classes, or keys
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
    data = whole(saved)
    if not is_saved(saved):
        fail("show", str(saved), "be what `reprior fit`, `reprior stream --state` or `save` wrote", "another file",
             remedy="For a table of predictions use `reprior estimate FILE --source MODEL`")  # fmt: skip
    kind = kind_of(data, "show", name=str(saved))
    held = load(data)
    value: dict[str, Any] = {"kind": kind}
    if isinstance(held, Stream):
        value |= described(held, level)
        head = f"{saved}: {held.n} rows learned by {held.method.name}, calibration {value['calibration']}"
        more = []
        if kind == "stream-job":
            run = stored_run(data, held, str(saved))
            value |= run
            more = [
                f"input read to byte {run['offset']}; {run['written']} bytes written to {run['output']}",
                raised(run),
            ]
        lines = first_lines(head, [*more, applied(held.acts)], stopped(held.acts))
        lines = [Shown(lines, *table(held, held.interval(level), LISTED)).text]
    elif isinstance(held, Pipeline):
        value |= fitted(held)
        rows = "" if value["heldout_rows"] is None else f" and {value['heldout_rows']:,} held-out samples"
        lines = [f"{saved}: a pipeline, method {value['method']}, calibration {value['calibration']}",
                 f"source: {held.source.made}; it keeps {len(held.source.prior)} classes{rows}", "",
                 *sources(held)]  # fmt: skip
    elif isinstance(held, StreamTable):
        keys = list(held)
        off = [key for key in keys if stopped(held.acts(key))]
        value |= {"method": held.method.name, "streams": len(keys), "keys": keys[:LISTED],
                  "not_label_shift": off[:LISTED]}  # fmt: skip
        less = f"{counted(len(off), 'stream applies', 'streams apply')} less than half of the correction"
        lines = [f"{less}: {listed(off, LISTED)}"] * bool(off)
        lines += [f"{saved}: {len(keys):,} streams learned by {held.method.name}", f"keys: {listed(keys, LISTED)}"]
    elif isinstance(held, Watch):
        value |= {"batches": held.n_batches, "acts": held.acts._asdict()}
        head = f"{saved}: a deployment of {counted(held.n_batches, 'batch', 'batches')}"
        lines = first_lines(head, [applied(held.acts)], stopped(held.acts))
    elif isinstance(held, (Alarm, AlarmTable)):
        about, lines = alarm_shown(held, str(saved))
        value |= about
    else:
        value |= {"calibration": held.kind}
        lines = [f"{saved}: a calibrator, {held.kind}"]
    return Answer(value, "\n".join(lines))


def stored_run(data: bytes, stream: Stream, name: str) -> dict[str, Any]:
    """Return how far a run of `reprior stream` got, by the bytes of its state, and its alarm."""
    fields = decode(data, "stream-job", "show", name=name)
    watch = AlarmWatch(None, None)
    watch.restore(fields, len(stream.source.prior), "show")
    run = {name: take(fields, name, kind, "show") for name, kind in JOB.items()}
    return run | {"watched": watch.alarm is not None, "alarm": watch.verdict()}


def alarm_shown(alarm: Alarm | AlarmTable, name: str) -> tuple[dict[str, Any], list[str]]:
    """Return one alarm, or those of many streams, as values and as lines."""
    if isinstance(alarm, AlarmTable):
        loud = [key for key in alarm if alarm[key]]
        lines = [f"{name}: alarms of {len(alarm):,} streams", f"raised: {listed(loud, LISTED) or 'none'}"]
        return {"streams": len(alarm), "raised": loud[:LISTED]}, lines
    value = {"n": alarm.verdict.n, "watched": True, "alarm": AlarmWatch(alarm, None).verdict()}
    return value, [f"{name}: an alarm that has seen {alarm.verdict.n:,} rows", raised(value)]


def fitted(pipe: Pipeline) -> dict[str, Any]:
    """Return what a pipeline knows of its classifier, as plain values."""
    source = pipe.source
    return {
        "method": pipe.method, "options": {name: str(option) for name, option in pipe.options.items()},
        "calibration": pipe.calibrator.kind if pipe.calibrator else "none", "source": source.made,
        "classes": list(source.called), "source_prior": source.prior,
        "heldout_rows": None if source.heldout is None else len(source.heldout[1]),
    }  # fmt: skip


def described(stream: Stream, level: float) -> dict[str, Any]:
    """Return what a stream has learned, as plain values."""
    ends = stream.interval(level)
    return {
        "method": stream.method.name, "calibration": stream.calibrator.kind if stream.calibrator else "none",
        "n": stream.n, "classes": list(stream.source.called), "prior": stream.prior,
        "source_prior": stream.source.prior, "lower": ends.lower, "upper": ends.upper, "level": level,
        "acts": stream.acts._asdict(),
    }  # fmt: skip


def raised(value: dict[str, Any]) -> str:
    """Return what the alarm says, in one line."""
    alarm = value["alarm"]
    if alarm is None:
        return "no alarm was raised" if value["watched"] else "no alarm watches"
    since = f" ({alarm['since_time']})" if "since_time" in alarm else ""
    names = ", ".join(map(str, alarm["classes"][:8]))
    return f"alarm raised at row {alarm['raised_at']}, since about row {alarm['since']}{since}: {names}"


def sources(pipe: Pipeline) -> list[str]:
    """Return lines of the classes that a pipeline knows with their source shares, the largest first."""
    prior = pipe.source.prior
    order = sorted(range(len(prior)), key=lambda j: -prior[j])
    called = [cut(pipe.source.called[j]) for j in order[:LISTED]]
    width = max(len("class"), *map(len, called))
    lines = [f"{name:<{width}}  {share(prior[j]):>7}" for name, j in zip(called, order, strict=False)]
    more = [f"… and {len(order) - LISTED} more"] * (len(order) > LISTED)
    return [f"{'class':<{width}}   source", *lines, *more]
