"""`reprior completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click

from reprior.cli._shell import as_json, emit


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@as_json
def command(shell: str, as_json: bool) -> None:
    """Print the script for completion in SHELL.

    \b
    Example:  reprior completion bash >> ~/.bashrc
    """
    from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

    from reprior.cli import cli

    kinds: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
    script = kinds[shell](cli, {}, "reprior", "_REPRIOR_COMPLETE").source()
    emit({"shell": shell, "script": script}, script, as_json)
