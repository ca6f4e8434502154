"""Options that several commands share: target and source, method, level."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from functools import partial, reduce
from pathlib import Path
from typing import Any

import click

from reprior._check import fail, perhaps
from reprior.batch.registry import METHODS
from reprior.online.registry import ONLINE

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
