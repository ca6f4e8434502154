"""`reprior completion`: what a shell needs to complete commands and options."""

from __future__ import annotations

import click

from reprior.cli._shell import Answer, print_answer


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@print_answer
def command(shell: str) -> Answer:
    """Print the script for completion in SHELL.

    \b
    Example:  reprior completion bash >> ~/.bashrc
    """
    from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

    from reprior.cli import cli

    kinds: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
    script = kinds[shell](cli, {}, "reprior", "_REPRIOR_COMPLETE").source()
    return Answer({"shell": shell, "script": script}, script)
