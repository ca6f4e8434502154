"""`reprior spark`: estimate, correct and stream where the rows are, on a Spark cluster or on this machine.

spark-submit runs this file itself.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click

from reprior._check import InputError, counted, fail
from reprior.adapters.spark.blocks import SparkBlocks
from reprior.adapters.spark.frames import correct as corrected
from reprior.adapters.spark.groups import groups
from reprior.adapters.spark.parts import file_system
from reprior.adapters.spark.session import session, submitted
from reprior.adapters.spark.stream import follow, write_batch
from reprior.cli import _inputs as options
from reprior.cli._inputs import Inputs, SourceFiles, match_classes, read_pipeline, with_method
from reprior.cli._shell import Answer, print_answer, run
from reprior.cli.estimate import shown
from reprior.estimates.show import first_lines, stopped
from reprior.io.labels import UNLABELLED, TargetLabels, checked_labels, column_in
from reprior.io.table import Choice, Part, Table
from reprior.online.registry import ONLINE


@click.group("spark")
def command() -> None:
    """Run on Spark: on a cluster with spark-submit, otherwise on all cores of this machine.

    \b
    Example:  reprior spark estimate scores/ --source model.reprior
    """


shared = partial(options.all_of, [
    click.option("-s", "--source", required=True, type=click.Path(path_type=Path),
                 help="File from `reprior fit`, or as for `reprior estimate`. The driver reads it."),
    options.columns_option,
    click.option("--master", help="Spark master, if not started by spark-submit.  [default: local[*,4]]"),
])  # fmt: skip
labels_option = click.option("--labels", metavar="COLUMN",
                             help="Labels of some samples: a column of TARGET, empty or -1 if unknown.")  # fmt: skip


@command.command("estimate")
@click.argument("target")
@shared
@options.method_options
@options.by_option
@labels_option
@options.logits_option
@options.listing_options
@print_answer
def estimate(level: float, no_interval: bool, top: int, master: str | None, **files: Any) -> Answer:
    """Estimate the class prior of TARGET, a folder of Parquet files (s3://… too) that all workers can read.

    \b
    Example:  reprior spark estimate scores/ --source model.reprior
    """
    by = files["by"]
    with running(master) as spark:
        inputs = opened(spark, "estimate", **files)
        estimated = inputs.estimate()
        named = {"by": by, "columns": files["columns"], "estimate": estimated}
        parts = groups(inputs.pipeline, spark, files["target"], **named) if by else None
        return shown(estimated, parts, inputs, by, None if no_interval else level, top)


@command.command("correct")
@click.argument("target")
@shared
@options.method_options
@options.by_option
@labels_option
@click.option("-o", "--output", required=True, help="Output folder; must not exist.")
@options.anyway_option
@print_answer
def correct(output: str, anyway: bool, master: str | None, **files: Any) -> Answer:
    """Correct the predictions of TARGET, a folder of Parquet files, for the estimated class prior.

    Other columns, types and partitions stay the same.

    \b
    Example:  reprior spark correct scores/ --source model.reprior -o corrected/
    """
    target = files["target"]
    system, inside = file_system(output, "correct")
    if system.get_file_info(inside).type:
        fail("correct", "--output", "name a new folder", output)
    with running(master) as spark:
        inputs = opened(spark, "correct", **files)
        estimated = inputs.estimate(on_reject="ignore" if anyway else "scale")
        rows, named = spark.read.parquet(target), {"columns": files["columns"]}
        parts = None
        if files["by"]:
            parts = groups(inputs.pipeline, spark, target, by=files["by"], estimate=estimated, **named)
        frame = corrected(parts or estimated, rows, by=files["by"], **named)
        folders = inputs.rows.surveys[0].file.path.split("/")[:-1]  # some of them columns, as `day=2026-11-16/`
        by = [name.partition("=")[0] for name in folders if "=" in name and not name.startswith("=")]
        frame.write.partitionBy(*by).parquet(output)
        verdict = inputs.verdict(estimated)
    value = {"output": output, "rows": estimated.n, "ok": estimated.status.ok, "verdict": verdict,
             "acts": estimated.acts and estimated.acts._asdict()}  # fmt: skip
    head = f"{output}: {estimated.n:,.0f} rows corrected by {inputs.method_text}"
    lines = first_lines(head, verdict, stopped(estimated.acts))
    return Answer(value | inputs.how_made, "\n".join(lines) + inputs.note(verdict), estimated.status.ok)


@command.command("stream")
@click.argument("input")
@shared
@click.option("--key", required=True, metavar="COLUMN", help="Column of the stream keys.")
@click.option("--order", metavar="COLUMN", help="Column that orders the samples of a key: a number or a time.")
@options.stream_method_options
@click.option("-o", "--output", required=True, help="The folder for `rows`, `priors` and Spark's `checkpoint`.")
@click.option("--files", default=100, show_default=True, help="Maximum number of files per micro-batch.")
@click.option("--every", type=float, metavar="SECONDS",
              help="Interval at which to look for new files.  [default: process all files and stop]")  # fmt: skip
@click.option("--skip-bad", is_flag=True, help="Write null for rows that are not probabilities instead of stopping.")
@print_answer
def stream(input: str, output: str, files: int, every: float | None, master: str | None, **following: Any) -> Answer:
    """Correct each new Parquet file in the folder INPUT and follow the class prior of each key.

    A sample is corrected before it is learned, and learned and written exactly once. After a crash, or when there are
    new files, run the same command again. OUTPUT/rows has the corrected samples and OUTPUT/priors the prior of each
    key, in one folder per micro-batch.

    \b
    Example:  reprior spark stream scores/ --source model.reprior --key shop --order time -o followed/
    """
    options.check_method("stream", following["method"], ONLINE, "reprior spark estimate")
    pipe, values, warning = read_pipeline("stream", SourceFiles(following.pop("source"), columns=following["columns"]))
    own = options.parse_options(following.pop("options"))
    if values == "logits" and pipe.calibrator is not None:  # the stream itself takes them
        pipe = replace(pipe, calibrator=replace(pipe.calibrator, of_logits=True))
    with running(master) as spark:
        schema = spark.read.parquet(input).schema
        coming = spark.readStream.schema(schema).option("maxFilesPerTrigger", files).parquet(input)
        rows = follow(pipe, coming, **following, **own)
        when: dict[str, Any] = {"availableNow": True} if every is None else {"processingTime": f"{every} seconds"}
        query = (
            rows.writeStream.foreachBatch(partial(write_batch, output, following["key"]))
            .option("checkpointLocation", f"{output}/checkpoint").trigger(**when).start()
        )  # fmt: skip
        query.awaitTermination()
        done = [progress for progress in query.recentProgress if progress["numInputRows"]]
    n = sum(progress["numInputRows"] for progress in done)
    value = {"output": output, "rows": n, "batches": len(done), "warning": warning}
    batches = counted(len(done), "micro-batch", "micro-batches")
    return Answer(value, f"{output}: {n:,} rows in {batches}" + f"\n{warning}" * bool(warning))


def opened(spark: Any, caller: str, *, target: str, by: str | None, labels: str | None, **files: Any) -> Inputs:
    """Return the rows on the cluster and the pipeline for them, as other commands have them."""
    if by and labels:
        fail(caller, "--labels", "be left out with --by", "both", remedy="Groups do not take labels yet")
    columns = files["columns"]
    fit = read_pipeline(caller, SourceFiles(files["source"], columns=columns, values=files.get("values")))
    pipe, logits = with_method(fit.pipeline, files["method"], files["options"]), fit.values == "logits"
    if by and (pipe.method != "ebls" or logits):
        fail(caller, "--by", "be used with the method ebls and with probabilities", "logits" if logits else pipe.method)
    aside = {name: option for name, option in ((by, "--by"), (labels, "--labels")) if name}
    choice = Choice(columns=columns, caller=caller, classes=pipe.classes or (), aside=aside, label=labels,
                    values="logits" if logits else None)  # fmt: skip
    rows = SparkBlocks.of(spark, target, choice)
    pipe, matched = match_classes(pipe, rows.classes, caller, target)
    unread = (lambda: iter(())), (lambda *_: None), (lambda *_: iter(()))  # workers read and write
    parts = tuple(Part(about.file.name, rows.n_classes, *unread, rows.classes) for about in rows.surveys)
    labelled = UNLABELLED
    if labels:
        labelled = TargetLabels(checked_labels(rows.labels, pipe.source, caller, column_in(target, labels)))
    return Inputs(Table(parts, choice), rows, pipe, matched, fit.warning, by, labels=labelled)


@contextmanager
def running(master: str | None) -> Iterator[Any]:
    """Give a session; turn a worker's bad row into its sentence.

    Spark's own talk goes to a file: its Java process writes where standard error goes when it is started.
    """
    logging.getLogger("py4j").setLevel(logging.CRITICAL)  # it tells the whole way of an error that we say in a sentence
    spark, reason, log = None, None, None
    if not submitted():  # else whoever has submitted it has its log, and stops its session
        log = tempfile.NamedTemporaryFile(prefix="reprior-spark-", suffix=".log", delete=False)  # noqa: SIM115
    try:
        with elsewhere(log.fileno()) if log else nullcontext():
            spark = session(master)
        yield spark
    except Exception as error:
        reason = explained(error, log.name if log else "above")
        raise reason from error.__cause__
    finally:
        if log and spark is not None:
            spark.stop()
        if log and not isinstance(reason, SparkStopped):
            os.unlink(log.name)


@contextmanager
def elsewhere(place: int) -> Iterator[None]:
    """Have standard error of processes that are started now go to another file."""
    sys.stderr.flush()
    before = os.dup(2)
    os.dup2(place, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


class SparkStopped(click.ClickException):
    """Spark gave up for a reason that its log tells."""


def explained(error: Exception, log: str) -> Exception:
    """Return the sentence about a bad row that a worker's error holds; of other errors of Spark the first line."""
    marker = "InputError: "
    if type(error).__module__.split(".")[0] not in ("py4j", "pyspark"):
        return error
    lines = [line for line in str(error).splitlines() if line.strip()]
    bad = next((line for line in lines if marker in line), None)
    if bad is not None:
        return InputError(bad.split(marker, 1)[1])
    reason = lines[0].strip()[:300] if lines else type(error).__name__
    return SparkStopped(f"Spark stopped: {reason} Its log is {log}.")


if __name__ == "__main__":  # by spark-submit
    sys.exit(run(command))
