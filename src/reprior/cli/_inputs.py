"""What most commands start from: shared options, target rows, and what is known of the source."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from reprior import PriorEstimate, Source
from reprior._check import fail, percent, perhaps
from reprior._labels import is_missing, named
from reprior.batch.registry import ALIASES, METHODS, check_options, method_name
from reprior.estimates.groups import Groups
from reprior.estimates.show import verdicts
from reprior.io.files import FileBlocks, open_table, ordered, read_whole
from reprior.io.labels import UNLABELLED, TargetLabels, checked_labels, column_in, is_list, read_list
from reprior.io.sources import disagreement, is_saved, read_counts, read_source
from reprior.io.table import Choice, Table, group_keys
from reprior.online.registry import ONLINE
from reprior.pipelines.fit import Choices, fit_pipeline, pipeline
from reprior.pipelines.load import load
from reprior.pipelines.pipeline import Pipeline
from reprior.rows.calibrated import calibration_of
from reprior.rows.passes import count_rows

BY_POSITION = "Classes were matched by position, because the target or the source has no class names."
TOGETHER = "All samples together: "  # before a verdict where there are groups
WARNING = (
    "Labels and predictions of the held-out samples have different class priors (distance {}). If the held-out samples"
    " are not a random part of the training data, pass the training counts too (--counts)."
)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Target rows and the pipeline for them, whose classes are in one order."""

    table: Table
    rows: Any  # FileBlocks, or SparkBlocks
    pipeline: Pipeline
    matched: str  # "name" or "position"
    warning: str = ""
    by: str | None = None  # the column of the groups, if the user names one
    keys: list[Any] | None = None  # groups of the samples, (n,) for each part
    labels: TargetLabels = UNLABELLED  # of some rows

    @property
    def source(self) -> Source:
        return self.pipeline.source

    def note(self, sentences: Sequence[str] = ()) -> str:
        """Return lines on classes matched by position, and what to beware of, unless `sentences` have it already."""
        beware = self.warning
        for line in sentences:
            plain = line.removeprefix(TOGETHER)
            beware = beware.replace(plain[0].upper() + plain[1:], "").strip()
        return f"\n{BY_POSITION}" * (self.matched == "position") + f"\n{beware}" * bool(beware)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.called

    @property
    def how_made(self) -> dict[str, Any]:
        """Which method and calibration are used, how classes are matched, and what to beware of, for `--json`."""
        return {"method": self.pipeline.method, "calibration": calibration_of(self.pipeline.calibrator),
                "matched": self.matched, "warning": self.warning}  # fmt: skip

    @property
    def method_text(self) -> str:
        """Method and calibration in a few words."""
        return "method {method}, calibration {calibration}".format(**self.how_made)

    def estimate(self, *, on_reject: str = "scale") -> PriorEstimate:
        """Return the pipeline's estimate for the samples."""
        labels, weights, _ = self.labels
        return self.pipeline.estimate(self.rows, labels, label_weights=weights, on_reject=on_reject)

    def verdict(self, estimate: PriorEstimate) -> list[str]:
        """Return what to say first: what the tests say of the rows, all together where there are groups."""
        lines = verdicts(estimate)
        return lines if self.by is None else [f"{TOGETHER}{line[0].lower()}{line[1:]}" for line in lines]

    def groups(self, *, share: bool = True, on_reject: str = "scale") -> Groups:
        """Return the estimate of each group that the column of keys names."""
        keys, (labels, weights, _) = np.concatenate(self.keys or ()), self.labels
        return self.pipeline.groups(keys, self.rows, share=share, labels=labels, label_weights=weights,
                                    on_reject=on_reject)  # fmt: skip


@dataclass(frozen=True, slots=True)
class SourceFiles:
    """The options that name what a pipeline is read from or fitted to; `names` are those of the class columns."""

    source: Path | None
    counts: Path | None = None
    columns: str | None = None
    source_columns: str | None = None
    label: str | None = None
    calibrate: str = "auto"
    values: str | None = None
    names: tuple[str, ...] = ()


def read_inputs(
    caller: str, *, target: Path, classes: Path | None, method: str | None = None, options: tuple[str, ...] = (),
    by: str | None = None, target_labels: str | None = None, **source: Any,
) -> Inputs:  # fmt: skip
    """Open the target, read its first rows, keys and labels, and read the source (options of `SourceFiles`)."""
    names = read_names(classes, caller)
    fitted, values, beware = read_pipeline(caller, SourceFiles(**source, names=names))
    pipe = with_method(fitted, method, options)
    column = None if is_list(target_labels) else target_labels
    aside = {name: option for name, option in ((by, "--by"), (column, "--labels")) if name}
    table = open_table(target, Choice(columns=source["columns"], caller=caller, classes=pipe.classes or (),
                                      names=names, aside=aside, values=values))  # fmt: skip
    pipe, matched = match_classes(pipe, table.classes, caller, target)
    table = ordered(table, pipe.classes, len(pipe.source.prior))
    rows = FileBlocks(table)
    if by and pipe.method != "ebls":
        fail(caller, "--method", "be ebls with --by", pipe.method,
             remedy="Only `ebls` shares information between groups")  # fmt: skip
    keys, labelled = group_keys(table, by) if by else None, UNLABELLED
    if column:
        texts = [*chain.from_iterable(table.column(column, "--labels"))]
        labelled = TargetLabels(checked_labels(texts, pipe.source, caller, column_in(target, column)))
    elif target_labels:
        labelled = read_list(target_labels, target, table, count_rows(rows), pipe.source)
    if labelled.labels is not None and all(map(is_missing, labelled.labels)) and caller != "query":
        beware = f"{beware} {target_labels} has no label yet.".strip()
    return Inputs(table, rows, pipe, matched, beware, by, keys, labelled)


def match_classes(
    pipe: Pipeline, columns: tuple[str, ...] | None, caller: str, target: str | Path
) -> tuple[Pipeline, str]:
    """Return the pipeline, with the target's class names if it has none, and how these match: by "name" or "position".

    Unsorted class counts need names, because the order of columns would be a guess.
    """
    classes = pipe.classes
    if classes and columns:
        return pipe, "name"
    if classes and pipe.source.heldout is None and list(classes) != sorted(classes):
        fail(caller, str(target), "name its classes, since those of the source do not come sorted",
             "columns without names", remedy="Name the columns with `--classes FILE`")  # fmt: skip
    return (pipe if columns is None else replace(pipe, source=replace(pipe.source, classes=columns))), "position"


class Fitted(NamedTuple):
    """A pipeline read or fitted from files, what its rows hold (None: probabilities), and a warning or ""."""

    pipeline: Pipeline
    values: str | None
    warning: str = ""


def read_names(path: Path | None, caller: str) -> tuple[str, ...]:
    """Return class names from a file: a JSON list, or one a line."""
    if path is None:
        return ()
    text = path.read_text(encoding="utf-8-sig")
    try:
        listed_names = json.loads(text) if text.lstrip().startswith("[") else text.splitlines()
    except ValueError:
        listed_names = None
    names = tuple(str(name).strip() for name in listed_names or () if str(name).strip())
    if len(names) < 2 or len({*names}) < len(names):
        fail(caller, str(path), "hold the names of at least two classes, each once", f"{len(names)} names")
    return names


def with_method(pipe: Pipeline, method: str | None, options: tuple[str, ...]) -> Pipeline:
    """Return the pipeline with the method and options asked for on the command line."""
    own, name = parse_options(options), method_name(pipe.method)
    if method is not None:
        name = ALIASES.get(method.lower(), method.lower())
        check_method("estimate", name, METHODS, "reprior stream")
        if name in ("bbse", "rlls") and pipe.source.confusion is None:
            fail(name, "--source", "hold a confusion matrix", "class counts or a prior alone",
                 remedy="Pass held-out samples with labels as --source")  # fmt: skip
    check_options(name, own, name)
    kept = pipe.options if name == pipe.method else {}
    return replace(pipe, method=name, options={**kept, **own})


def read_pipeline(caller: str, files: SourceFiles) -> Fitted:
    """Return the pipeline that a file holds, or that is fitted to held-out rows, to counts, or to both."""
    path, counts = (files.source, files.counts) if files.source is not None else (files.counts, None)
    if path is None:
        raise click.UsageError("Missing option '-s' / '--source'.")
    if is_saved(path):
        if counts is not None or files.calibrate != "auto":
            fail(caller, "--counts, --calibrate", "be left out, because the source is a fitted pipeline",
                 "--calibrate" if counts is None else "--counts", remedy="Give them to `reprior fit`")  # fmt: skip
        pipe, values = load(path if path.is_file() else read_whole(path)), files.values
        if not isinstance(pipe, Pipeline):
            fail(caller, "--source", "hold a pipeline, as `reprior fit` writes it", f"a {type(pipe).__name__}")
        if pipe.calibrator is not None and pipe.calibrator.of_logits:  # files are made probabilities as they are read
            pipe, values = replace(pipe, calibrator=replace(pipe.calibrator, of_logits=False)), "logits"
        return Fitted(pipe, values, pipe.label_mismatch)
    wanted = Choice(columns=files.source_columns, label=files.label, with_labels=True, caller=caller, names=files.names,
                    values=files.values)  # fmt: skip
    source = read_source(path, wanted, files.columns)
    if source.heldout is None:
        if files.calibrate not in ("auto", "none"):
            fail(caller, "--calibrate", "have held-out samples with labels to work with", "class counts alone",
                 remedy="Give held-out predictions as --source")  # fmt: skip
        if counts is not None:
            fail(caller, "--counts", "be given with held-out samples that have labels",
                 "a source that is counts or a prior already", remedy="Give one of them")  # fmt: skip
        pipe = pipeline(prior=read_counts(path, source, caller))
        return Fitted(replace(pipe, source=source), files.values)
    trained = None if counts is None else read_counts(counts, source, caller)
    rows, y = source.heldout
    pipe = fit_pipeline(
        rows, named(y, source.classes), Choices(files.calibrate), counts=trained, classes=source.classes
    )
    kind = calibration_of(pipe.calibrator)
    made = f"{pipe.source.made} ({path.name if counts is None else f'{counts.name}, {path.name}'})"
    made += f", calibrated ({kind})" * (kind != "none")
    distance = disagreement(source) if counts is None else 0.0
    warning = WARNING.format(percent(distance)) * bool(distance)
    return Fitted(replace(pipe, source=replace(pipe.source, made=made)), files.values, pipe.label_mismatch or warning)


Command = Callable[..., Any]
Decorator = Callable[[Command], Command]
CALIBRATIONS = ("auto", "none", "ts", "bcts", "nbvs", "vs")
by_option = click.option("--by", metavar="COLUMN", help="Column of the groups; estimate one prior per group.")
columns_option = click.option("--columns", help="Columns of the probabilities: one list column, a,b,c or first:last.")
level_option = click.option("--level", default=0.95, show_default=True, help="Level of the intervals.")
anyway_option = click.option(
    "--anyway", is_flag=True, help="Apply the whole correction even if more than the class prior has changed."
)
logits_option = click.option("--logits", "values", flag_value="logits", help="Rows are logits; apply softmax first.")


def all_of(options: Sequence[Decorator], command: Command) -> Command:
    """Add several options to a command, in this order."""
    return reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


values_options = partial(all_of, [
    click.option("--normalize", "values", flag_value="normalize", help="Divide each row by its sum first."),
    logits_option,
])  # fmt: skip
listing_options = partial(all_of, [
    level_option,
    click.option("--no-interval", is_flag=True, help="Skip the intervals; saves three passes."),
    click.option("--top", default=20, show_default=True, help="Number of classes or groups to list; 0 lists all."),
])  # fmt: skip
classes_option = click.option(
    "--classes", type=click.Path(path_type=Path),
    help="File with the class names in the order of the columns, one per line or as a JSON list.",
)  # fmt: skip


def source_options(label: str) -> Decorator:
    """Return a decorator that adds the options of held-out samples; `label` is the option of their label column."""
    return partial(all_of, [
        click.option("--counts", type=click.Path(path_type=Path),
                     help="File with training class counts, in addition to held-out samples."),
        click.option("--source-columns",
                     help="Columns of the probabilities in the source, if they differ from --columns."),
        click.option(label, help="Column of the held-out labels.  [default: label or y]"),
        click.option("--calibrate", default="auto", show_default=True, type=click.Choice(CALIBRATIONS),
                     help="Calibration on the held-out samples; auto: temperature and class biases, shrunk."),
    ])  # fmt: skip


input_options = partial(all_of, [
    click.argument("target", type=click.Path(allow_dash=True, path_type=Path)),
    click.option("-s", "--source", type=click.Path(path_type=Path),
                 help="File from `reprior fit`, or held-out predictions with labels, or training class counts"
                 ' (JSON {"cat": 70, "dog": 30}, CSV with the columns class,count, NPY).'),
    source_options("--label"),
    click.option("--labels", "target_labels", metavar="COLUMN|FILE",
                 help="Labels of some samples: a column of TARGET, empty if unknown, or a file from"
                 " `reprior query` that you have filled in."),
    columns_option,
    classes_option,
    values_options,
])  # fmt: skip


def choice_of_method(methods: Collection[str], text: str, example: str = "", **more: Any) -> Decorator:
    """Return a decorator that adds --method, one of `methods`, and -O; shells complete the names."""

    def complete(ctx: click.Context, param: click.Parameter, word: str) -> list[str]:
        return [name for name in methods if name.startswith(word)]

    return partial(all_of, [
        click.option("-m", "--method", shell_complete=complete, help=text.format(", ".join(methods)), **more),
        click.option("-O", "--option", "options", multiple=True, metavar="NAME=VALUE",
                     help=f"Option of the method{example}."),
    ])  # fmt: skip


method_options = choice_of_method(
    METHODS, "Method: {}.  [default: ebls, or the method of the pipeline]", ", for example -O n_iter=50"
)
stream_method_options = choice_of_method(ONLINE, "Online method: {}.", default="online-ebls", show_default=True)


def check_method(caller: str, method: str, methods: Collection[str], place: str) -> None:
    """Refuse a method that is not among `methods`: say which was meant, or that another command, `place`, runs it."""
    if method not in methods:
        runs = f"`{place}` runs {method}" if method in METHODS or method in ONLINE else ""
        fail(caller, "--method", f"be one of {', '.join(methods)}", repr(method),
             remedy=runs or perhaps(method, methods, str))  # fmt: skip


def parse_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return NAME=VALUE pairs with numbers as numbers."""
    options = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise click.UsageError(f"-O takes NAME=VALUE, got {pair!r}")
        try:
            options[name] = json.loads(text)
        except ValueError:
            options[name] = text
    return options
