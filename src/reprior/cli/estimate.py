"""Commands that estimate from a file: `estimate`, `report`, `diagnose` and `compare`."""

from __future__ import annotations

import time
from dataclasses import fields, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import numpy as np

from reprior import PriorEstimate
from reprior._check import counted, fail
from reprior._types import Vector
from reprior.assess import compare, diagnose
from reprior.assess.metrics import kl

from reprior.cli._inputs import (  # isort: skip
    Inputs, by_option, input_options, level_option, listing_options, method_options, read_inputs,
)  # fmt: skip
from reprior.cli._shell import Answer, json_ready, keep_apart, print_answer, progress
from reprior.estimates.groups import Groups, groups_rows, groups_text
from reprior.estimates.show import estimate_shown, first_lines, stopped
from reprior.io.files import open_table, ordered
from reprior.io.labels import label_columns
from reprior.io.sources import read_prior
from reprior.io.table import Choice, group_keys
from reprior.report.collect import collect, grouped
from reprior.state import whole_file

WAYS = ("sharing", "separate", "one prior for all")


@click.command("estimate")
@input_options
@method_options
@by_option
@listing_options
@print_answer
def estimate_command(level: float, no_interval: bool, top: int, **files: Any) -> Answer:
    """Estimate the class prior of TARGET: a file or folder of predictions, or - for standard input.

    \b
    Example:  reprior estimate scores.parquet --source model.reprior
    """
    inputs = read_inputs("estimate", **files)
    with progress(inputs.rows):
        estimate = inputs.estimate()
        parts = inputs.groups() if files["by"] else None
        return shown(estimate, parts, inputs, files["by"], None if no_interval else level, top)


def shown(
    estimate: PriorEstimate, parts: Groups | None, inputs: Inputs, by: str | None, level: float | None, top: int
) -> Answer:
    """Return the answer of `estimate`: about all samples, or about the groups `parts` by the column `by`, if any."""
    value = {
        **estimate.to_dict(level), "verdict": inputs.verdict(estimate), "classes": inputs.classes, **inputs.how_made,
        "target": [part.name for part in inputs.table.parts][:1000],
    }  # fmt: skip
    labelled = f" ({estimate.n_labels:,} with a label)" if estimate.n_labels else ""
    head = f"{counted(estimate.n, 'row')}{labelled}, {len(estimate.prior)} classes, {inputs.method_text}"
    first = first_lines(head, value["verdict"], stopped(estimate.acts))
    note = inputs.note(value["verdict"])
    if parts is None or by is None:
        text = estimate_shown(estimate, level, top, head)._replace(before=first).text
        return Answer(value, text + note, estimate.status.ok)
    text = groups_text(parts, level=level, top=top, first=first, status=estimate.status)
    ok = estimate.status.ok and bool(parts.converged.all())
    return Answer(value | grouped(parts, by, level), text + note, ok)


@click.command("report")
@input_options
@method_options
@by_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="HTML file; not needed with --json.")
@level_option
@click.option("--title", help="Title of the page.")
@print_answer
def report_command(output: Path | None, level: float, title: str | None, **files: Any) -> Answer:
    """Estimate the class prior of TARGET and write one self-contained HTML file.

    \b
    Example:  reprior report scores.parquet --source model.reprior -o report.html
    """
    from reprior.report.page import GROUPS, page

    if output is None and not click.get_current_context().params["as_json"]:
        raise click.UsageError("Name the HTML file with -o FILE, or pass --json")
    keep_apart("report", output, files["target"], files["source"], files["counts"])
    inputs = read_inputs("report", **files)
    with progress(inputs.rows):
        estimate = inputs.estimate()
        content = collect(estimate, inputs.rows, level=level, made=provenance(inputs, title, files))
        if files["by"]:
            groups = inputs.groups()
            content |= grouped(groups, files["by"], level) | {"group_table": groups_rows(groups, level, GROUPS)}
        content = json_ready(content)
    finding = [sentence["text"] for sentence in content["headline"]]
    if inputs.warning and not any(inputs.warning in text for text in finding):
        content["diagnosis"].append({"text": inputs.warning, "ok": False})
    if output is not None:
        with whole_file(output) as file:
            file.write(page(content).encode("utf-8", "backslashreplace"))
    content |= inputs.how_made
    about = f"{counted(content['n'], 'row')}, {len(content['prior'])} classes, {inputs.method_text}"
    lines = first_lines(f"{output}: {about}", finding, stopped(estimate.acts))
    return Answer(content, "\n".join(lines) + inputs.note(content["verdict"]),
                  estimate.status.ok and (not files["by"] or bool(groups.converged.all())))  # fmt: skip


def provenance(inputs: Inputs, title: str | None, files: dict[str, Any]) -> dict[str, str]:
    """Return the title of a report, and the files, method and versions that it was made with."""
    name, parts, used = files["target"].name, [part.name for part in inputs.table.parts], inputs.how_made
    more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
    return {
        "title": title or f"Class prior of {'standard input' if name == '-' else name}",
        "target": ", ".join(parts[:3]) + more, "source": f"{files['source'] or files['counts']} ({inputs.source.made})",
        "classes": f"matched by {inputs.matched}", "method": " ".join([used["method"], *files["options"]]),
        "calibration": used["calibration"], "reprior": version("reprior"), "date": time.strftime("%Y-%m-%d %H:%M"),
    }  # fmt: skip


@click.command("diagnose")
@input_options
@method_options
@click.option("--alpha", default=0.05, show_default=True, help="Level of the tests.")
@print_answer
def diagnose_command(alpha: float, **files: Any) -> Answer:
    """Test whether TARGET has shifted and whether it is label shift, and predict the accuracy.

    \b
    Example:  reprior diagnose scores.parquet --source model.reprior
    """
    inputs = read_inputs("diagnose", **files)
    with progress(inputs.rows):
        estimate = inputs.estimate(on_reject="ignore")
        diagnosis = diagnose.diagnose(inputs.source, estimate.target, estimate=estimate, alpha=alpha)
    value = {field.name: getattr(diagnosis, field.name) for field in fields(diagnosis) if field.name != "estimate"}
    value |= {"shifted": diagnosis.shifted, "applies": diagnosis.applies, "sentences": str(diagnosis).split("\n"),
              "n": diagnosis.estimate.n, "n_labels": diagnosis.estimate.n_labels} | inputs.how_made  # fmt: skip
    return Answer(value, f"{diagnosis}\nThe estimate was made by {inputs.method_text}.{inputs.note()}")


@click.command("compare")
@input_options
@by_option
@click.option("--truth", type=click.Path(exists=True, path_type=Path),
              help="The true class prior, or labelled samples: adds the error of each method. With --by: labelled"
              " samples with that column.")  # fmt: skip
@print_answer
def compare_command(truth: Path | None, **files: Any) -> Answer:
    """Estimate the class prior of TARGET with every method and compare the results.

    With --by it compares three ways: groups that share information (default), separate groups, and one prior
    for all.

    \b
    Example:  reprior compare scores.parquet --source model.reprior
    """
    inputs, true = read_inputs("compare", **files), None
    wanted = Choice(caller="compare", with_labels=True, label=files["label"], columns=files["columns"])
    if files["by"]:
        return compare_groups(inputs, truth, replace(wanted, aside={files["by"]: "--by"}))
    if truth is not None:
        true = read_prior(truth, inputs.source.classes, inputs.table.n_classes, wanted)
    with progress(inputs.rows):
        first = inputs.estimate()
        compared = compare.compare(inputs.source, first.target, true=true, first=first, name="the default")
    rows = [{"method": row.method, "skipped": row.skipped} if row.estimate is None else
            {"method": row.method, "prior": row.prior, "status": row.estimate.status.name.lower(), "kl": row.kl,
             "log_likelihood": row.log_likelihood, "seconds": row.seconds,
             "distance": row.distance} for row in compared]  # fmt: skip
    value = {"classes": inputs.classes, "methods": rows}
    note = f"All methods had the same samples. The default is {inputs.method_text}."
    return Answer(value | inputs.how_made, f"{compared}\n{note}{inputs.note()}")


def compare_groups(inputs: Inputs, truth: Path | None, wanted: Any) -> Answer:
    """Compare the ways to estimate the prior of each group, and their errors if the true priors are known."""
    true = None if truth is None else true_shares(inputs, truth, wanted)
    seconds, priors = [], []
    with progress(inputs.rows):
        overall = inputs.estimate()  # which also decodes the rows, before anything is timed
        for share in (True, False):
            start = time.perf_counter()
            groups = inputs.groups(share=share)
            seconds.append(time.perf_counter() - start)
            priors.append(groups.prior)
    priors.append(np.broadcast_to(overall.prior, priors[0].shape))
    keys, first = groups.keys, priors[0]
    if true is not None and (lost := [key for key in keys if key not in true]):
        fail("compare", str(truth), "have labelled rows of every group", f"none of {lost[0]!r}", count=len(lost))
    rows, lines = [], [f"{'groups':<26} {'distance':>9} {'furthest':>9}  {'in':<20}" + "  KL(true‖est.)" * bool(true)]
    for way, prior, took in zip(WAYS, priors, [*seconds, None], strict=True):
        distance = np.abs(prior - first).sum(axis=1) / 2
        far = int(distance.argmax())
        error = None if true is None else float(np.mean([kl(true[key], prior[g]) for g, key in enumerate(keys)]))
        rows.append({"way": way, "distance": distance.mean(), "furthest": distance[far], "in": keys[far], "kl": error,
                     "seconds": took, "prior": prior})  # fmt: skip
        where = str(keys[far])[:20] if distance[far] else ""
        line = f"{way:<26} {distance.mean():>9.4f} {distance[far]:>9.4f}  {where:<20}"
        lines.append((line + (f"  {error:>13.4f}" if error is not None else "")).rstrip())
    lines.append(f"Distance: total variation from the first line, as the mean over {len(keys):,} groups; furthest: the"
                 " largest of them, and in which group.")  # fmt: skip
    value = {"classes": inputs.classes, "by": inputs.by, "keys": keys, "ways": rows}
    return Answer(value | inputs.how_made, "\n".join(lines) + inputs.note())


def true_shares(inputs: Inputs, truth: Path, wanted: Any) -> dict[Any, Vector]:
    """Return the class shares of the labelled rows of each group, in the order of the source's classes."""
    table = ordered(open_table(truth, wanted), inputs.source.classes, inputs.table.n_classes)
    assert inputs.by is not None
    keys, labels = np.concatenate(group_keys(table, inputs.by)), table.load().labels
    y = label_columns(labels, table, truth, len(keys), inputs.source.classes)
    counts: dict[Any, Vector] = {}
    for key, k in zip(keys, y, strict=True):
        counts.setdefault(key, np.zeros(inputs.table.n_classes))[k] += 1
    return {key: count / count.sum() for key, count in counts.items()}
