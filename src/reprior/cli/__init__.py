"""The `reprior` command: short bodies over the library, in modules that are imported when a command is called."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

import click

COMMANDS = {  # name: one line
    "demo": "See it correct a real classifier.",
    "fit": "Fit a pipeline to held-out samples and save it.",
    "estimate": "Estimate the class prior of new data.",
    "correct": "Correct predicted probabilities for the estimated prior.",
    "stream": "Correct a stream of predictions, one by one.",
    "show": "Show the content of a saved file.",
    "report": "Write an HTML report.",
    "compare": "Compare all methods on one file.",
    "query": "Choose the samples to label next.",
    "diagnose": "Test whether the change is label shift.",
    "simulate": "Simulate label shift from labelled samples.",
    "spark": "Run on Spark.",
    "serve": "Run the HTTP service with a live page.",
    "doctor": "Show versions, compiled kernels and extras.",
    "completion": "Print the script for shell completion.",
}

MODULES = {  # of commands that have no module of their own name here; the service neither imports nor is imported
    **dict.fromkeys(("report", "compare", "diagnose"), "reprior.cli.estimate"), "completion": "reprior.cli.doctor",
    "serve": "reprior.service.command",
}  # fmt: skip


def command_of(name: str) -> click.Command:
    """Return a command, whose module is imported now."""
    module = importlib.import_module(MODULES.get(name, f"reprior.cli.{name}"))
    return next(x for x in vars(module).values() if isinstance(x, click.Command) and x.name == name)


class LazyGroup(click.Group):
    """A group that knows its commands' names and one-liners without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return command_of(cmd_name) if cmd_name in COMMANDS else None

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        from click.shell_completion import CompletionItem

        names = [CompletionItem(name, help=line) for name, line in COMMANDS.items() if name.startswith(incomplete)]
        return names + click.Command.shell_complete(self, ctx, incomplete)

    def invoke(self, ctx: click.Context) -> object:
        from reprior.cli._shell import reader_gone

        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:  # click would exit with 1, and say nothing
            if error.filename:
                raise click.ClickException(f"{error.filename}: {error.strerror}.") from error
            raise click.exceptions.Exit(reader_gone()) from error

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from difflib import get_close_matches

        close = get_close_matches(args[0], COMMANDS, n=1)
        if close and args[0] not in COMMANDS:
            ctx.fail(f"No such command {args[0]!r}. Did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="reprior")
def cli() -> None:
    """Correct a classifier's predicted probabilities under label shift, without labels and retraining.

    \b
    Example:  reprior demo

    Exit codes: 0 done, 1 bad input, 2 done but not converged.
    """


def main() -> None:
    """Run the command line; every failure ends as one sentence on stderr and an exit code."""
    for library in ("OPENBLAS", "MKL", "OMP"):  # NumPy is not loaded yet; blocks are too small to share among threads
        os.environ.setdefault(f"{library}_NUM_THREADS", "1")
    from reprior.cli._shell import open_standard_streams, run

    open_standard_streams()
    sys.exit(run(cli))
