"""`reprior report`: one HTML file to send to a colleague, and the same as JSON."""

from __future__ import annotations

import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click

from reprior._check import counted
from reprior.cli._inputs import Inputs, by_option, input_options, level_option, method_options, read_inputs
from reprior.cli._shell import Answer, json_ready, keep_apart, print_answer, progress
from reprior.estimates.groups import groups_rows
from reprior.estimates.show import first_lines, stopped
from reprior.report.collect import collect, grouped
from reprior.report.page import GROUPS, page
from reprior.state import whole_file


@click.command("report")
@input_options
@method_options
@by_option
@click.option("-o", "--output", type=click.Path(path_type=Path), help="HTML file; not needed with --json.")
@level_option
@click.option("--title", help="Title of the page.")
@print_answer
def command(output: Path | None, level: float, title: str | None, **files: Any) -> Answer:
    """Estimate the class prior of TARGET and write one self-contained HTML file.

    \b
    Example:  reprior report scores.parquet --source model.reprior -o report.html
    """
    if output is None and not click.get_current_context().params["as_json"]:
        raise click.UsageError("Name the HTML file with -o FILE, or pass --json")
    keep_apart("report", output, files["target"], files["source"], files["counts"])
    job = read_inputs("report", **files)
    with progress(job.rows):
        estimate = job.estimate()
        content = collect(estimate, job.rows, level=level, made=provenance(job, title, files))
        if files["by"]:
            by_group = job.groups()
            content |= grouped(by_group, files["by"], level) | {"group_table": groups_rows(by_group, level, GROUPS)}
        content = json_ready(content)
    finding = [sentence["text"] for sentence in content["headline"]]
    if job.warning and not any(job.warning in text for text in finding):
        content["diagnosis"].append({"text": job.warning, "ok": False})
    if output is not None:
        with whole_file(output) as file:
            file.write(page(content).encode("utf-8", "backslashreplace"))
    content |= job.how_made
    about = f"{counted(content['n'], 'row')}, {len(content['prior'])} classes, {job.method_text}"
    lines = first_lines(f"{output}: {about}", finding, stopped(estimate.acts))
    return Answer(content, "\n".join(lines) + job.note(content["verdict"]),
                  estimate.status.ok and (not files["by"] or bool(by_group.converged.all())))  # fmt: skip


def provenance(inputs: Inputs, title: str | None, files: dict[str, Any]) -> dict[str, str]:
    """Return the title of a report, and by what it was made."""
    name, parts, used = files["target"].name, [part.name for part in inputs.table.parts], inputs.how_made
    more = f" and {len(parts) - 3} more" if len(parts) > 3 else ""
    return {
        "title": title or f"Class prior of {'standard input' if name == '-' else name}",
        "target": ", ".join(parts[:3]) + more, "source": f"{files['source'] or files['counts']} ({inputs.source.made})",
        "classes": f"matched by {inputs.matched}", "method": " ".join([used["method"], *files["options"]]),
        "calibration": used["calibration"], "reprior": version("reprior"), "date": time.strftime("%Y-%m-%d %H:%M"),
    }  # fmt: skip
