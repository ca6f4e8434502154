"""Options that several commands share: target and source, method, level."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import reduce
from pathlib import Path
from typing import Any

import click

CALIBRATIONS = ("auto", "none", "ts", "bcts", "nbvs", "vs")
counts_option = click.option(
    "--counts", type=click.Path(path_type=Path),
    help="File with training class counts, in addition to held-out samples.",
)  # fmt: skip
calibrate_option = click.option(
    "--calibrate", default="auto", show_default=True, type=click.Choice(CALIBRATIONS),
    help="Calibration on the held-out samples; auto: temperature and class biases, shrunk.",
)  # fmt: skip
values_options = (
    click.option("--normalize", "values", flag_value="normalize", help="Divide each row by its sum first."),
    click.option("--logits", "values", flag_value="logits", help="Rows are logits; apply softmax first."),
)
classes_option = click.option(
    "--classes", type=click.Path(path_type=Path),
    help="File with the class names in the order of the columns, one per line or as a JSON list.",
)  # fmt: skip
source_options = (
    counts_option,
    click.option("--source-columns", help="Columns of the probabilities in the source, if they differ from --columns."),
    click.option("--label", help="Column of the held-out labels.  [default: label or y]"),
    calibrate_option,
)  # fmt: skip
by_option = click.option("--by", metavar="COLUMN",
                         help="Column of the groups; estimate one prior per group.")  # fmt: skip
level_option = click.option("--level", default=0.95, show_default=True, help="Level of the intervals.")
anyway_option = click.option(
    "--anyway", is_flag=True,
    help="Apply the whole correction even if more than the class prior has changed.",
)  # fmt: skip


def inputs(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options by which target and source are named."""
    options = [
        click.argument("target", type=click.Path(allow_dash=True, path_type=Path)),
        click.option("-s", "--source", type=click.Path(path_type=Path),
                     help="File from `reprior fit`, or held-out predictions with labels, or training class counts"
                     ' (JSON {"cat": 70, "dog": 30}, CSV with the columns class,count, NPY).'),
        *source_options,
        click.option("--labels", "target_labels", metavar="COLUMN|FILE",
                     help="Labels of some samples: a column of TARGET, empty if unknown, or a file from"
                     " `reprior query` that you have filled in."),
        click.option("--columns", help="Columns of the probabilities: one list column, a,b,c or first:last."),
        classes_option,
        *values_options,
    ]  # fmt: skip
    return reduce(lambda wrapped, option: option(wrapped), reversed(options), command)


def method_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the choice of a method and of its options."""
    command = click.option("-O", "--option", "options", multiple=True, metavar="NAME=VALUE",
                           help="Option of the method, for example -O n_iter=50.")(command)  # fmt: skip
    return click.option("-m", "--method", cls=MethodOption, names=batch_methods,
                        help="Method: {names}.  [default: ebls, or the method of the pipeline]")(command)  # fmt: skip


def stream_method_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the choice of an online method and of its options."""
    command = click.option("-O", "--option", "options", multiple=True, metavar="NAME=VALUE",
                           help="Option of the method.")(command)  # fmt: skip
    return click.option("-m", "--method", default="online-ebls", show_default=True, cls=MethodOption,
                        names=stream_methods, help="Online method: {names}.")(command)  # fmt: skip


def batch_methods() -> tuple[str, ...]:
    """Return the names of the batch methods; the library is loaded only now."""
    from reprior.batch.registry import METHODS

    return tuple(METHODS)


def stream_methods() -> tuple[str, ...]:
    """Return the names of the stream methods; the library is loaded only now."""
    from reprior.online.registry import ONLINE

    return tuple(ONLINE)


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


def check_method(caller: str, method: str, methods: Sequence[str], others: Sequence[str], place: str) -> None:
    """Refuse a method that is not `known`; say which was meant, or that those of `others` run in another `place`."""
    from reprior._check import fail, perhaps

    if method in methods:
        return
    remedy = f"`{place}` runs {method}" if method in others else perhaps(method, methods, str)
    fail(caller, "--method", f"be one of {', '.join(methods)}", repr(method), remedy=remedy)


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
