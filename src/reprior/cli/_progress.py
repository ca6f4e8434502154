"""A progress bar on a terminal: which pass over the rows, how much of it, and time left. In a pipe a line now and then.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

FIRST, THEN = 10.0, 60.0  # seconds until a word where there is no bar, and from one to the next


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
