"""`reprior fit`: what held-out rows say about a classifier, learned once and saved to one file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from reprior.cli._inputs import (  # isort: skip
    SourceFiles, classes_option, method_options, read_names, read_pipeline, source_options, values_options, with_method,
)  # fmt: skip
from reprior.cli._shell import Answer, keep_apart, print_answer
from reprior.rows.calibrated import calibration_of, plain_softmax


@click.command("fit")
@click.argument("heldout", required=False, type=click.Path(path_type=Path))
@source_options("--label")
@classes_option
@values_options
@method_options
@click.option("-o", "--output", required=True, type=click.Path(path_type=Path), help="Output file: model.reprior.")
@print_answer
def command(
    heldout: Path | None, output: Path, method: str | None, options: tuple[str, ...], classes: Path | None,
    values: str | None, **files: Any,
) -> Answer:  # fmt: skip
    """Fit a pipeline to HELDOUT, predictions with labels, and save it to one file.

    With training counts (--counts) and no HELDOUT nothing is calibrated.

    \b
    Example:  reprior fit heldout.parquet --counts counts.csv -o model.reprior
    """
    keep_apart("fit", output, heldout, files["counts"])
    fitted = read_pipeline("fit", SourceFiles(heldout, values=values, names=read_names(classes, "fit"), **files))
    pipe = with_method(fitted.pipeline, method, options)
    if fitted.values == "logits":  # its rows are logits, as those it was fitted to were
        calibrator = pipe.calibrator or plain_softmax(len(pipe.source.prior))
        pipe = replace(pipe, calibrator=replace(calibrator, of_logits=True))
    pipe.save(output)
    held, kind = pipe.source.n_heldout, calibration_of(pipe.calibrator)
    value = {"output": str(output), "classes": pipe.classes, "n_classes": len(pipe.source.prior), "heldout": held,
             "method": pipe.method, "calibration": kind, "source_prior": pipe.source.prior,
             "source": pipe.source.made, "warning": fitted.warning}  # fmt: skip
    lines = [f"{output}: {len(pipe.source.prior)} classes, {held:,} held-out samples, method {pipe.method},"
             f" calibration {kind}", f"Use it as --source, or as reprior.load({str(output)!r})."]  # fmt: skip
    return Answer(value, "\n".join([*lines, *([fitted.warning] if fitted.warning else [])]))
