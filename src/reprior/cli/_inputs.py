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
    from reprior import Blocks, PriorEstimate, Source
    from reprior.io.files import Table
    from reprior.pipelines.pipeline import Pipeline
    from reprior.rows.calibrated import Calibrator

METHODS = ("bbse", "ebls", "fmapls", "mapls", "mlls", "rlls")  # here once more: help must not load the library
ONLINE = ("online-ebls", "online-fmapls", "fth", "ftfwh", "flh-ftl", "rogd", "uogd", "atlas")
CALIBRATIONS = ("auto", "none", "ts", "bcts", "nbvs", "vs")
EXACT = 1e9  # counts of the rarest class that shares, which have no number of rows, are taken for
ONE_THREAD = 1 << 21  # numbers in a target below which handing them to threads takes longer than the sums
WARNING = (
    "Labels and outputs of the held-out rows differ in class mix by {:.0%}: if those rows were not drawn as the"
    " training rows were, give the training counts as well (--counts)."
)
HARDLY = 0.1  # Cohen's κ of labels and predictions on held-out rows, below which the labels are probably not theirs
UNRELATED = (
    "Labels and outputs of the held-out rows hardly agree (Cohen's kappa {:.2f}): do the labels belong to these rows,"
    " and are classes counted from 0? If so, nothing can be estimated with this classifier."
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


def inputs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options by which target and source are named."""
    file = click.Path(path_type=Path)
    options = [
        click.argument("target", type=click.Path(allow_dash=True, path_type=Path)),
        click.option("-s", "--source", type=file, help='Training class counts or prior (JSON {"cat": 70, "dog": 30},'
                     ' CSV with the columns class,count, NPY), or held-out predictions with labels.'),
        counts_option,
        click.option("--columns", help="What holds the probabilities: a list column, a,b,c or first:last."),
        click.option("--source-columns", help="The same in the source, if they are called otherwise there."),
        click.option("--label", help="What holds the labels of the held-out rows.  [default: label or y]"),
        calibrate_option,
        *values_options,
    ]  # fmt: skip
    return reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def method_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the choice of a method and of its options."""
    command = click.option("-O", "--option", "options", multiple=True, metavar="NAME=VALUE",
                           help="An option of the method, as -O n_iter=50.")(command)  # fmt: skip
    names = starting(("auto", *METHODS))
    return click.option("-m", "--method", default="auto", show_default=True, shell_complete=names,
                        help=f"How to estimate: {', '.join(METHODS)}; auto takes what does best with what is known of"
                        " the source, and says so.")(command)  # fmt: skip


def starting(names: Sequence[str]) -> Callable[..., list[str]]:
    """Return what completes a word in a shell to one of `names`."""
    return lambda ctx, param, word: [name for name in names if name.startswith(word)]


def check_method(caller: str, method: str, known: Sequence[str], others: Sequence[str], place: str) -> None:
    """Refuse a method that is not `known`; say which was meant, or that those of `others` run in another `place`."""
    from difflib import get_close_matches

    from reprior._check import fail

    if method in known:
        return
    close = get_close_matches(method, known, n=1)
    remedy = f"`{place}` runs {method}" if method in others else f"Perhaps you mean {close[0]}" if close else ""
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
    """Target and source, with their classes in the target's order."""

    table: Table
    rows: Any  # FileBlocks, unless calibrated
    target: Blocks
    pipeline: Pipeline  # what `auto` takes
    matched: str  # "name" or "position"
    warning: str = ""

    @property
    def source(self) -> Source:
        return self.pipeline.source

    @property
    def calibrator(self) -> Calibrator | None:
        return self.pipeline.calibrator

    @property
    def note(self) -> str:
        """Lines on how the classes were matched, where that is not plain from their names, and what to beware of."""
        by_position = "Classes were matched by position, for target or source does not name them."
        lines = [by_position] * (self.matched == "position") + [self.warning] * bool(self.warning)
        return "".join(f"\n{line}" for line in lines)

    @property
    def classes(self) -> tuple[str, ...]:
        return self.source.classes or tuple(str(k) for k in range(self.table.n_classes))

    def taken(self, method: str) -> dict[str, Any]:
        """Return which method and calibration are taken where `method` was asked for."""
        auto, kind = method.lower() == "auto", self.calibrator.kind if self.calibrator else "none"
        return {"method": self.pipeline.method if auto else method, "auto": auto, "calibration": kind}

    def told(self, method: str) -> str:
        """Return the same in a few words."""
        said = self.taken(method)
        return f"method {said['method']}{' (auto)' * said['auto']}, calibration {said['calibration']}"

    def estimate(self, method: str, options: dict[str, Any]) -> PriorEstimate:
        """Return the estimate by a method with its options; "auto" is the pipeline's."""
        import reprior as rp
        from reprior._check import fail
        from reprior.batch.registry import ALIASES

        check_method("estimate", method.lower(), ["auto", *METHODS, *ALIASES], ONLINE, "reprior stream")
        if method.lower() == "auto":
            return rp.estimate(self.source, self.target, self.pipeline.method, **{**self.pipeline.options, **options})
        if ALIASES.get(method.lower(), method.lower()) in ("bbse", "rlls") and self.source.confusion is None:
            fail(method, "--source", "hold a confusion matrix", "class counts or a prior alone",
                 remedy="Give held-out rows with labels as --source")  # fmt: skip
        return rp.estimate(self.source, self.target, method, **options)


def read_inputs(
    caller: str, *, target: Path, source: Path | None, counts: Path | None, columns: str | None,
    source_columns: str | None, label: str | None, calibrate: str, values: str | None,
) -> Inputs:  # fmt: skip
    """Open the target and read the source; nothing of the target but its first rows is read yet."""
    from reprior.io.files import Choice, open_table
    from reprior.io.prepare import prepared
    from reprior.io.scratch import FileBlocks
    from reprior.io.sources import match, read_source
    from reprior.rows.calibrated import CalibratedBlocks

    source, counts = known_files(source, counts)
    wanted = Choice(columns=source_columns, label=label, with_labels=True, caller=caller)
    known = read_source(source, wanted, columns, values)
    table = prepared(open_table(target, Choice(columns=columns, caller=caller, classes=known.classes or ())), values)
    matched = "name" if known.classes and table.classes else "position"
    pipe, warning = learned(match(known, table, caller), source, counts, calibrate, caller, as_read=known)
    few = table.rows is not None and table.rows * table.n_classes <= ONE_THREAD
    rows = FileBlocks(table, threads=1) if few else FileBlocks(table)
    blocks = rows if pipe.calibrator is None else CalibratedBlocks(rows, pipe.calibrator)
    return Inputs(table, rows, blocks, pipe, matched, warning)


def known_files(source: Path | None, counts: Path | None) -> tuple[Path, Path | None]:
    """Return the files of source and counts; counts alone are the source."""
    if source is None and counts is None:
        raise click.UsageError("Missing option '-s' / '--source'.")
    return (source, counts) if source is not None else (counts, None)  # type: ignore[return-value]


def learned(
    source: Source, path: Path, counts: Path | None, calibrate: str, caller: str, *, as_read: Source | None = None
) -> tuple[Pipeline, str]:
    """Return the default pipeline from a source read from `path`, training counts and a calibration; and a warning.

    Counts without names are in the order of the classes `as_read`, before they were put to that of the target.
    """
    from reprior._check import fail
    from reprior.io.sources import chance_corrected, disagreement, read_counts
    from reprior.pipelines.pipeline import pipeline

    if source.heldout is None:
        if calibrate not in ("auto", "none"):
            fail(caller, "--calibrate", "have held-out rows with labels to work with", "class counts alone",
                 remedy="Give held-out predictions as --source")  # fmt: skip
        if counts is not None:
            fail(caller, "--counts", "stand beside held-out rows with labels",
                 "a source that is counts or a prior already", remedy="Give one of them")  # fmt: skip
        numbers = read_counts(path, source, caller)
        pipe = pipeline(counts=numbers) if numbers.min() >= 1 else pipeline(prior=numbers)
        return replace(pipe, source=source), ""
    trained = None if counts is None else read_counts(counts, as_read or source, caller)
    if trained is not None and as_read is not None and as_read.classes and source.classes:
        trained = trained[[as_read.classes.index(name) for name in source.classes]]
    if trained is not None and trained.min() < 1:
        trained *= EXACT / trained.min()
    pipe = pipeline(*source.heldout, counts=trained, calibration=calibrate, classes=source.classes)
    assert pipe.calibrator is not None
    kind = pipe.calibrator.kind
    made = f"{pipe.source.made} ({path.name if counts is None else f'{counts.name}, {path.name}'})"
    known = replace(pipe.source, made=made + f", calibrated ({kind})" * (kind != "none"))
    apart = disagreement(source) if counts is None else 0.0
    pipe = replace(pipe, source=known, calibrator=None if kind == "none" else pipe.calibrator)
    if (agreement := chance_corrected(*source.heldout)) < HARDLY:
        return pipe, UNRELATED.format(agreement)
    return pipe, WARNING.format(apart) if apart else ""
