"""What most commands start from: target rows, and what is known of the source; both from files."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from reprior import PriorEstimate, Source
    from reprior.batch.groups import Groups
    from reprior.io.files import Table
    from reprior.io.labels import Given
    from reprior.pipelines.pipeline import Pipeline
    from reprior.rows.blocks import Blocks

CALIBRATIONS = ("auto", "none", "ts", "bcts", "nbvs", "vs")
TOGETHER = "All rows together: "  # before a verdict where there are groups
ONE_THREAD = 1 << 21  # numbers in a target below which handing them to threads takes longer than the sums
WARNING = (
    "Labels and outputs of the held-out rows differ in class mix by {}. If those rows were not drawn as the"
    " training rows were, give the training counts as well (--counts)."
)

counts_option = click.option(
    "--counts", type=click.Path(path_type=Path),
    help="Training class counts, for held-out rows that may have another class mix.",
)  # fmt: skip
calibrate_option = click.option(
    "--calibrate", default="auto", show_default=True, type=click.Choice(CALIBRATIONS),
    help="Calibrate on the held-out rows first; auto: as far as they tell, not at all without them.",
)  # fmt: skip
values_options = (
    click.option("--normalize", "values", flag_value="normalize", help="Divide each row by its sum."),
    click.option("--logits", "values", flag_value="logits", help="Rows are logits: take their softmax."),
)


classes_option = click.option(
    "--classes", type=click.Path(path_type=Path),
    help="Names of the class columns, in their order: one a line, or a JSON list. Columns that have these names already"
    " are matched by name.",
)  # fmt: skip
source_options = (
    counts_option,
    click.option("--source-columns", help="What holds the probabilities in the source, if it is called otherwise."),
    click.option("--label", help="What holds the labels of the held-out rows.  [default: label or y]"),
    calibrate_option,
)  # fmt: skip


def inputs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options by which target and source are named."""
    options = [
        click.argument("target", type=click.Path(allow_dash=True, path_type=Path)),
        click.option("-s", "--source", type=click.Path(path_type=Path),
                     help="What `reprior fit` wrote; or held-out predictions with labels; or training class counts"
                     ' (JSON {"cat": 70, "dog": 30}, CSV with the columns class,count, NPY).'),
        *source_options,
        click.option("--labels", "target_labels", metavar="COLUMN|FILE",
                     help="Labels of some rows: a column of TARGET, empty where unknown, or a list that `reprior query`"
                     " wrote and you have filled in."),
        click.option("--columns", help="What holds the probabilities: a list column, a,b,c or first:last."),
        classes_option,
        *values_options,
    ]  # fmt: skip
    return reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


by_option = click.option("--by", metavar="COLUMN",
                         help="What holds the group of each row: a class mix for each, learned from all.")  # fmt: skip


level_option = click.option("--level", default=0.95, show_default=True, help="The level of the intervals.")
anyway_option = click.option(
    "--anyway", is_flag=True,
    help="Correct even if the rows differ from the held-out rows by more than their class mix.",
)  # fmt: skip


def method_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the choice of a method and of its options."""
    command = click.option("-O", "--option", "options", multiple=True, metavar="NAME=VALUE",
                           help="An option of the method, as -O n_iter=50.")(command)  # fmt: skip
    return click.option("-m", "--method", cls=MethodOption, names=batch_methods,
                        help="How to estimate: {names}.  [default: the fitted pipeline's, ebls]")(command)  # fmt: skip


def batch_methods() -> tuple[str, ...]:
    """Return the names of the batch methods; the library is loaded only now."""
    from reprior.batch.registry import METHODS

    return tuple(METHODS)


def stream_methods() -> tuple[str, ...]:
    """Return the names of the stream methods; the library is loaded only now."""
    from reprior.online.registry import ONLINE

    return tuple(ONLINE)


def stream_method_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the choice of an online method and of its options."""
    command = click.option("-O", "--option", "options", multiple=True, metavar="NAME=VALUE",
                           help="An option of the method.")(command)  # fmt: skip
    return click.option("-m", "--method", default="online-ebls", show_default=True, cls=MethodOption,
                        names=stream_methods, help="Which online method: {names}.")(command)  # fmt: skip


class MethodOption(click.Option):
    """An option whose help and completion name the methods there are, looked up when they are asked for."""

    def __init__(self, *args: Any, names: Callable[[], tuple[str, ...]], **more: Any) -> None:
        self.names = names
        super().__init__(*args, shell_complete=self.starting, **more)

    def starting(self, ctx: click.Context, param: click.Parameter, word: str) -> list[str]:
        return [name for name in self.names() if name.startswith(word)]

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        self.help = (self.help or "").replace("{names}", ", ".join(self.names()))
        return super().get_help_record(ctx)


def check_method(caller: str, method: str, known: Sequence[str], others: Sequence[str], place: str) -> None:
    """Refuse a method that is not `known`; say which was meant, or that those of `others` run in another `place`."""
    from reprior._check import fail, perhaps

    if method in known:
        return
    remedy = f"`{place}` runs {method}" if method in others else perhaps(method, known, str)
    fail(caller, "--method", f"be one of {', '.join(known)}", repr(method), remedy=remedy)


def parse_options(pairs: tuple[str, ...]) -> dict[str, Any]:
    """Return NAME=VALUE pairs with numbers as numbers."""
    found = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise click.UsageError(f"-O takes NAME=VALUE, got {pair!r}")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


@dataclass(frozen=True, slots=True)
class Inputs:
    """Target rows and the pipeline for them, whose classes are in one order."""

    table: Table
    rows: Any  # FileBlocks, or SparkBlocks
    pipeline: Pipeline
    matched: str  # "name" or "position"
    warning: str = ""
    keys: Any = None  # of the rows' groups (n,), if the user names a column of them
    given: Given | None = None  # labels of some rows

    @property
    def source(self) -> Source:
        return self.pipeline.source

    @property
    def note(self) -> str:
        """Lines on how the classes were matched, where that is not plain from their names, and what to beware of."""
        return self.note_after([])

    def note_after(self, said: Sequence[str]) -> str:
        """Return the same without what the sentences of a verdict have said already."""
        by_position = "Classes were matched by position, because the target or the source does not name them."
        beware = self.warning
        for line in said:
            plain = line.removeprefix(TOGETHER)
            beware = beware.replace(plain[0].upper() + plain[1:], "").strip()
        lines = [by_position] * (self.matched == "position") + [beware] * bool(beware)
        return "".join(f"\n{line}" for line in lines)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.called

    @property
    def taken(self) -> dict[str, Any]:
        """Which method and calibration are used, for `--json`."""
        cal = self.pipeline.calibrator
        return {"method": self.pipeline.method, "calibration": cal.kind if cal else "none"}

    @property
    def told(self) -> str:
        """The same in a few words."""
        said = self.taken
        return f"method {said['method']}, calibration {said['calibration']}"

    def estimate(self, *, check: bool = True) -> PriorEstimate:
        """Return the pipeline's estimate for the rows; whoever corrects by it looks at its checks."""
        return self.pipeline.estimate(self.rows, **self.labels, on_reject="ignore", check=check)

    @property
    def labels(self) -> dict[str, Any]:
        """Labels of some rows and their weights, as estimates take them."""
        labels, weights = (None, None) if self.given is None else (self.given.labels, self.given.weights)
        return {"labels": labels, "label_weights": weights}

    def verdict(self, found: PriorEstimate) -> list[str]:
        """Return what to say first: what the tests say of the rows, all together where there are groups."""
        from reprior.report.show import verdicts

        said = verdicts(found)
        return said if self.keys is None else [f"{TOGETHER}{line[0].lower()}{line[1:]}" for line in said]

    def groups(self, *, share: bool = True) -> Groups:
        """Return the estimate of each group that the column of keys names."""
        return self.pipeline.groups(self.keys, self.rows, share=share, **self.labels)


def read_inputs(
    caller: str, *, target: Path, source: Path | None, counts: Path | None, columns: str | None, classes: Path | None,
    source_columns: str | None, label: str | None, calibrate: str, values: str | None, method: str | None = None,
    options: tuple[str, ...] = (), by: str | None = None, target_labels: str | None = None,
) -> Inputs:  # fmt: skip
    """Open the target and read the source; nothing of the target but its first rows, and its keys, is read yet."""
    from reprior._labels import is_missing
    from reprior.io.files import Choice, open_table
    from reprior.io.labels import is_list
    from reprior.io.prepare import ordered, prepared
    from reprior.io.scratch import FileBlocks

    names = read_names(classes, caller)
    fitted = read_pipeline(caller, source=source, counts=counts, columns=columns, source_columns=source_columns,
                           label=label, calibrate=calibrate, values=values, names=names)  # fmt: skip
    pipe, values, beware = with_method(fitted.pipeline, method, options), fitted.values, fitted.warning
    column = None if is_list(target_labels) else target_labels
    table = open_table(target, Choice(columns=columns, label=column, caller=caller, classes=pipe.classes or (),
                                      names=names, by=by or column))  # fmt: skip
    matched = "name" if pipe.classes and table.classes else "position"
    if matched == "position":
        refuse_unsorted(pipe, caller, target)
    table = prepared(ordered(table, pipe.classes, len(pipe.source.prior)), values)
    if pipe.classes is None and table.classes is not None:
        pipe = replace(pipe, source=replace(pipe.source, classes=table.classes))
    few = table.rows is not None and table.rows * table.n_classes <= ONE_THREAD
    rows = FileBlocks(table, threads=1) if few or by else FileBlocks(table)  # keys are for rows in their order
    keys, given = read_keys(table, pipe) if by else None, None
    if target_labels:
        given = read_target_labels(target_labels, target, table, rows, pipe)
        table = replace(table, choice=replace(table.choice, by=by))  # the column of labels is none of groups
        if all(map(is_missing, given.labels)) and caller != "query":
            beware = f"{beware} {target_labels} has no label yet.".strip()
    return Inputs(table, rows, pipe, matched, beware, keys, given)


def read_target_labels(where: str, target: Path, table: Table, rows: Blocks, pipe: Pipeline) -> Given:
    """Return the labels of some target rows, by a column of the target or by a list."""
    from reprior.io.labels import Given, checked_labels, column_in, column_values, is_list, opened_again, read_list
    from reprior.rows.passes import count_rows

    if is_list(where):
        return read_list(where, target, table.choice, count_rows(rows), pipe.source)
    if table.choice.by != where:  # that column holds the groups, and one is read at a time
        table = opened_again(target, table.choice, where, "--labels")
    return Given(checked_labels(column_values(table), pipe.source, table.choice.caller, column_in(target, where)))


def read_keys(table: Table, pipe: Pipeline) -> Any:
    """Return the keys of the groups of all rows (n,), before anything is estimated that would need them."""
    from reprior._check import fail
    from reprior.io.keys import group_keys

    if pipe.method != "ebls":
        fail(table.choice.caller, "--method", "be ebls with --by", pipe.method,
             remedy="Groups learn from each other by ebls alone")  # fmt: skip
    return group_keys(table)


def refuse_unsorted(pipe: Pipeline, caller: str, target: Path) -> None:
    """Refuse unsorted class counts where the target's columns have no names: their order would be a guess."""
    from reprior._check import fail

    classes = pipe.classes
    if classes and pipe.source.heldout is None and list(classes) != sorted(classes):
        fail(caller, str(target), "name its classes, since those of the source do not come sorted",
             "columns without names", remedy="Name the columns with `--classes FILE`")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Fitted:
    """A pipeline read or fitted from files, what its rows hold (None: probabilities), and a warning or ""."""

    pipeline: Pipeline
    values: str | None
    warning: str = ""


def read_names(path: Path | None, caller: str) -> tuple[str, ...]:
    """Return class names from a file: a JSON list, or one a line."""
    from reprior._check import fail

    if path is None:
        return ()
    text = path.read_text(encoding="utf-8-sig")
    try:
        found = json.loads(text) if text.lstrip().startswith("[") else text.splitlines()
    except ValueError:
        found = None
    names = tuple(str(name).strip() for name in found or () if str(name).strip())
    if len(names) < 2 or len({*names}) < len(names):
        fail(caller, str(path), "hold the names of at least two classes, each once", f"{len(names)} names")
    return names


def with_method(pipe: Pipeline, method: str | None, options: tuple[str, ...]) -> Pipeline:
    """Return the pipeline with the method and options asked for on the command line."""
    from reprior._check import fail
    from reprior.batch.registry import ALIASES, check_options, method_name

    given, name = parse_options(options), method_name(pipe.method)
    if method is not None:
        name = ALIASES.get(method.lower(), method.lower())
        check_method("estimate", name, batch_methods(), stream_methods(), "reprior stream")
        if name in ("bbse", "rlls") and pipe.source.confusion is None:
            fail(name, "--source", "hold a confusion matrix", "class counts or a prior alone",
                 remedy="Give held-out rows with labels as --source")  # fmt: skip
    check_options(name, given, name)
    kept = pipe.options if name == pipe.method else {}
    return replace(pipe, method=name, options={**kept, **given})


def read_pipeline(
    caller: str, *, source: Path | None, counts: Path | None, columns: str | None, source_columns: str | None,
    label: str | None, calibrate: str, values: str | None, names: tuple[str, ...] = (),
) -> Fitted:  # fmt: skip
    """Return the pipeline that a file holds, or that is fitted to held-out rows, to counts, or to both."""
    from reprior._check import fail, percent
    from reprior._labels import named
    from reprior.io.files import Choice
    from reprior.io.sources import disagreement, is_saved, read_counts, read_source
    from reprior.pipelines.fit import pipeline, unwarned
    from reprior.pipelines.load import load
    from reprior.pipelines.pipeline import Pipeline
    from reprior.pipelines.source import as_rows, doubt

    if source is None and counts is None:
        raise click.UsageError("Missing option '-s' / '--source'.")
    path, counts = (source, counts) if source is not None else (counts, None)
    assert path is not None
    if is_saved(path):
        pipe = load(path)
        if not isinstance(pipe, Pipeline):
            fail(caller, "--source", "hold a pipeline, as `reprior fit` writes it", f"a {type(pipe).__name__}")
        if counts is not None or calibrate != "auto":
            fail(caller, "--counts, --calibrate", "be left out, because the source is a fitted pipeline",
                 "--calibrate" if counts is None else "--counts", remedy="Give them to `reprior fit`")  # fmt: skip
        if pipe.calibrator is not None and pipe.calibrator.of_logits:  # files are made probabilities as they are read
            pipe, values = replace(pipe, calibrator=replace(pipe.calibrator, of_logits=False)), "logits"
        return Fitted(pipe, values, doubt(pipe.source, pipe.calibrator))
    wanted = Choice(columns=source_columns, label=label, with_labels=True, caller=caller, names=names)
    known = read_source(path, wanted, columns, values)
    if known.heldout is None:
        if calibrate not in ("auto", "none"):
            fail(caller, "--calibrate", "have held-out rows with labels to work with", "class counts alone",
                 remedy="Give held-out predictions as --source")  # fmt: skip
        if counts is not None:
            fail(caller, "--counts", "be given with held-out rows that have labels",
                 "a source that is counts or a prior already", remedy="Give one of them")  # fmt: skip
        numbers = read_counts(path, known, caller)
        pipe = pipeline(counts=numbers) if numbers.min() >= 1 else pipeline(prior=numbers)
        return Fitted(replace(pipe, source=known), values)
    trained = None if counts is None else as_rows(read_counts(counts, known, caller))
    rows, y = known.heldout
    pipe = unwarned(rows, named(y, known.classes), counts=trained, calibration=calibrate, classes=known.classes)
    kind = pipe.calibrator.kind if pipe.calibrator else "none"
    made = f"{pipe.source.made} ({path.name if counts is None else f'{counts.name}, {path.name}'})"
    made += f", calibrated ({kind})" * (kind != "none")
    pipe = replace(pipe, source=replace(pipe.source, made=made))
    apart = disagreement(known) if counts is None else 0.0
    mix = WARNING.format(percent(apart)) if apart else ""
    return Fitted(pipe, values, doubt(pipe.source, pipe.calibrator) or mix)
