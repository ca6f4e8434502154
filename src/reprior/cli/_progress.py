"""A progress bar on a terminal: pass, rows a second, duality gap, time left. In a pipe a line now and then."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

GOAL = 1e-8  # the duality gap at which maximum likelihood is done
FIRST, THEN = 10.0, 60.0  # seconds until a word where there is no bar, and from one to the next


@contextmanager
def progress(rows: Any, enabled: bool = True) -> Iterator[None]:
    """Show a bar on stderr while passes over `rows` (FileBlocks) run, if stderr is a terminal and rich is there."""
    bar = make_bar() if enabled and sys.stderr.isatty() else None
    if bar is None:
        with patience():
            yield
        return
    state = Passes(rows.table.rows, bar)
    rows.watch, rows.note_gap = state.advance, state.note_gap
    try:
        with bar:
            yield
    finally:
        rows.watch = rows.note_gap = None


@contextmanager
def patience() -> Iterator[None]:
    """Report on stderr, if there is no bar, that the command still works: after ten seconds, then every minute."""
    done, start = threading.Event(), time.monotonic()

    def tell() -> None:
        wait = FIRST
        while not done.wait(wait):
            sys.stderr.write(f"Still working after {time.monotonic() - start:.0f} s.\n")
            wait = THEN

    thread = threading.Thread(target=tell, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def make_bar() -> Any:
    """Return a rich progress bar, or None without rich."""
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn
    except ImportError:
        return None
    text = "{task.description} {task.percentage:>3.0f}%"
    return Progress(TextColumn(text), BarColumn(), TextColumn("{task.fields[note]}"),
                    console=Console(stderr=True), transient=True)  # fmt: skip


class Passes:
    """Counts passes by counting rows, and guesses from the gap how many are still to come."""

    def __init__(self, rows: int | None, bar: Any) -> None:
        self.rows, self.bar, self.number, self.done = rows, bar, 1, 0
        self.gaps: list[float] = []
        self.start = time.perf_counter()
        self.task = bar.add_task("pass 1", total=rows, note="")

    def advance(self, rows: int) -> None:
        if self.rows is not None and self.done >= self.rows:
            self.number, self.done, self.start = self.number + 1, 0, time.perf_counter()
            self.bar.update(self.task, description=f"pass {self.number}", completed=0)
        self.done += rows
        seconds = time.perf_counter() - self.start
        speed = self.done / max(seconds, 1e-9)
        note = f"{speed / 1e6:.2f} M rows/s" + (f" · gap {self.gaps[-1]:.1e}" if self.gaps else "")
        if self.rows is not None:
            left = (self.rows - self.done) / speed + self.passes_left() * self.rows / speed
            note += f" · about {left:.0f} s left" if self.gaps else f" · {left:.0f} s left in this pass"
        self.bar.update(self.task, completed=self.done, note=note)

    def note_gap(self, gap: float) -> None:
        self.gaps.append(max(gap, 1e-300))
        if self.rows is None:  # the first pass has counted them
            self.rows = self.done
            self.bar.update(self.task, total=self.rows)


    def passes_left(self) -> float:
        """Return how many more passes the gap's fall so far suggests."""
        if len(self.gaps) < 2 or self.gaps[-1] >= self.gaps[0]:
            return 6.0 if self.gaps else 0.0
        fall = math.log(self.gaps[0] / self.gaps[-1]) / (len(self.gaps) - 1)
        return max(0.0, math.log(self.gaps[-1] / GOAL)) / fall
