"""How a command ends (its answer as text or JSON, a sentence for each failure), its progress, and safe outputs."""

from __future__ import annotations

import json
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import click

from reprior._check import fail
from reprior.state import hidden, lock, naming

DONE, BAD_INPUT, NOT_CONVERGED, INTERRUPTED = 0, 1, 2, 130
FIRST, THEN = 10.0, 60.0  # seconds until a word where there is no bar, and from one to the next


class Answer(NamedTuple):
    """What a command prints: `value` with --json, otherwise `text`; `ok` is whether its method converged."""

    value: dict[str, Any]
    text: str
    ok: bool = True


def print_answer(command: Callable[..., Answer | int]) -> Callable[..., int]:
    """Add the `--json` switch to a command, print its answer and return the exit code.

    A command that writes to standard output returns its exit code and prints nothing.
    """

    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of text.")
    @wraps(command)
    def printing(as_json: bool, **options: Any) -> int:
        answer = command(**options)
        if isinstance(answer, int):
            return answer
        click.echo(printable(json.dumps(json_ready(answer.value), allow_nan=False) if as_json else answer.text))
        return DONE if answer.ok else NOT_CONVERGED

    return printing


def printable(text: str) -> str:
    """Return a text that any terminal takes; names of files may hold bytes that are no text."""
    return text.encode("utf-8", "backslashreplace").decode()


def json_ready(value: Any) -> Any:
    """Return arrays as lists and what JSON cannot say (∞, NaN) as null, all the way down."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(key): json_ready(item) for key, item in value.items()}
    return [json_ready(item) for item in value] if isinstance(value, (list, tuple)) else value


def open_standard_streams() -> None:
    """Put the null device in the place of closed standard streams: a file that we open would else become one."""
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            if handle != number:
                os.dup2(handle, number)
                os.close(handle)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115  # until we end


def run(cli: click.Group, args: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; click's own usage errors count as bad input."""
    argv = list(sys.argv[1:] if args is None else args)
    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        # one plain line: whose line of Python a warning came from is no help here
        warnings.showwarning = lambda message, *_: click.echo(printable(f"Warning: {message}"), err=True)
        code = BAD_INPUT
        try:
            result = cli.main(argv, prog_name="reprior", standalone_mode=False)
            sys.stdout.flush()
            return result if isinstance(result, int) else DONE
        except BrokenPipeError:
            return reader_gone()
        except click.exceptions.Exit as end:
            return end.exit_code
        except (click.Abort, KeyboardInterrupt):
            message, code = "Interrupted. No partial file was left.", INTERRUPTED
        except click.exceptions.NoArgsIsHelpError as error:
            click.echo(error.format_message(), err=True)
            return BAD_INPUT
        except click.ClickException as error:
            hint = error.ctx.command_path if isinstance(error, click.UsageError) and error.ctx else "reprior"
            message = f"{error.format_message()} (see `{hint} --help`)"
        except (ValueError, OSError, MemoryError, ImportError) as error:
            message = sentence_about(error)
            if not message:
                raise
    text = json.dumps({"error": message, "exit": code}) if "--json" in argv else f"Error: {message}"
    click.echo(printable(text), err=True)
    return code


def reader_gone() -> int:
    """Return the exit code where whoever read our output has had enough, as `head` has: nothing is wrong."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered goes nowhere
    return DONE


def sentence_about(error: Exception) -> str:
    """Return what to say about bad input, a system error or a missing extra; "" for a mistake of ours."""
    from reprior._check import InputError

    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename or 'output'}: {error.strerror}."
    if isinstance(error, MemoryError):
        return "Not enough memory. Pass fewer samples or classes at a time, or use a larger machine."
    if isinstance(error, (InputError, OSError)) or "pip install '.[" in str(error):
        return str(getattr(error, "shell", error))
    return ""


def keep_apart(caller: str, output: Path | None, *inputs: Path | None, standard: bool = False) -> None:
    """Refuse an output that would overwrite an input or lie inside an input folder, and "-" if not `standard`."""
    if str(output) == "-" and not standard:
        fail(caller, "--output", "name a file", "-", remedy="This command does not write to standard output")
    for path in inputs:
        if output is None or path is None or "-" in (str(output), str(path)):
            continue
        inside = path.is_dir() and path.resolve() in output.resolve().parents
        same = output.resolve() == path.resolve()  # links may lead to it, too; no file takes the place of a device
        if same or inside or ((output.is_file() or output.is_dir()) and path.exists() and output.samefile(path)):
            fail(caller, "--output", f"be apart from the input {path}", output, remedy="Name another file or folder")


@contextmanager
def alone(caller: str, path: Path, option: str) -> Iterator[None]:
    """Let one run at a time have `path`; the second is refused. A run that was killed holds nothing."""
    name = hidden(path, "lock")
    made = [folder for folder in name.parents if not folder.exists()]
    with naming(path):
        name.parent.mkdir(parents=True, exist_ok=True)
        handle = -1
        while handle < 0:
            handle = os.open(name, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            if not lock(handle):
                os.close(handle)
                fail(caller, option, "belong to one run at a time", f"{path}, which another run has",
                     remedy="Wait for its end, or name another file")  # fmt: skip
            if not os.fstat(handle).st_nlink:  # its holder has just ended and removed it: this lock is no one's
                os.close(handle)
                handle = -1
    try:
        yield
    finally:
        with suppress(OSError):
            name.unlink()
        os.close(handle)
        for folder in made:
            with suppress(OSError):  # unless something was written there
                folder.rmdir()


@contextmanager
def progress(rows: Any) -> Iterator[None]:
    """Show a bar on stderr while passes over `rows` (FileBlocks) run, if stderr is a terminal and rich is there."""
    if not sys.stderr.isatty() or find_spec("rich") is None:
        with patience():
            yield
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task, number = bar.add_task("pass 1", total=rows.table.rows), 1

        def advance(n: int) -> None:
            nonlocal number
            if bar.tasks[0].finished:
                number += 1
                bar.reset(task, description=f"pass {number}")
            bar.advance(task, n)

        rows.watch = advance
        try:
            yield
        finally:
            rows.watch = None


@contextmanager
def patience() -> Iterator[None]:
    """Report on stderr, if there is no bar, that the command still works: after ten seconds, then every minute."""
    done, start = threading.Event(), time.monotonic()

    def report() -> None:
        wait = FIRST
        while not done.wait(wait):
            sys.stderr.write(f"Still working after {time.monotonic() - start:.0f} s.\n")
            wait = THEN

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
