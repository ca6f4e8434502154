"""What every benchmark shares: BLAS on one thread, and results that say how they were made."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # takes effect because this module is imported before NumPy

RESULTS = Path(__file__).parent / "results"
TRIALS = Path(__file__).parent / ".trials"  # ignored by git
REPLACE = "REPRIOR_STORE"  # set to 1, it lets another command than the stored one replace a result


def circumstances() -> dict[str, Any]:
    """Return on what, with what and by which command a result was made."""
    cpu = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        models = [line.split(":", 1)[1].strip() for line in info.read_text().splitlines() if "model name" in line]
        cpu = models[0] if models else cpu
    words = [Path(word).name if "/" in word else word for word in sys.argv[1:]]  # folders differ from one to the next
    return {
        "command": " ".join(["python", "benchmarks/" + Path(sys.argv[0]).name, *words]),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load": [round(x, 1) for x in os.getloadavg()],
        "blas_threads": os.environ["OPENBLAS_NUM_THREADS"],
        "python": platform.python_version(),
        "numpy": version("numpy"),
        "scipy": version("scipy"),
        "reprior": version("reprior"),
    }


def store(name: str, figures: dict[str, Any], table: str) -> None:
    """Write `results/{name}.json` and `results/{name}.md`, and print the table."""
    made = circumstances()
    folder = destination(name, made["command"])
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps({"made": made, **figures}, indent=1) + "\n", encoding="utf-8")
    how = (
        f"`{made['command']}`, {made['made']}; {made['cores']} cores of {made['cpu']} (load {made['load'][0]}), "
        f"BLAS on {made['blas_threads']} thread, Python {made['python']}, NumPy {made['numpy']}, SciPy {made['scipy']}."
    )
    (folder / f"{name}.md").write_text(f"{table.rstrip()}\n\nMade by {how}\n", encoding="utf-8")
    print(table)


def store_cells(name: str, about: str, head: list[str], rows: list[list[str]], **figures: Any) -> None:
    """Write a table with the text `about` above it, and its rows as cells by the names in `head`."""
    cells = [dict(zip(head, row, strict=True)) for row in rows]
    store(name, {**figures, "cells": cells}, f"{about}\n\n{markdown(head, rows)}")


def run_parts(parts: dict[str, Callable[[], None]], description: str | None) -> None:
    """Run the parts of a benchmark that the command line names, or all; each is stored with its own command."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*parts, []], help="all if none is given")
    for part in parser.parse_args().parts or parts:
        sys.argv[1:] = [part]
        parts[part]()


def destination(name: str, command: str) -> Path:
    """Return the folder a result goes to: a trial run, which is another command, never replaces what is stored."""
    stored = RESULTS / f"{name}.json"
    if not stored.exists() or os.environ.get(REPLACE) == "1":
        return RESULTS
    before = json.loads(stored.read_text(encoding="utf-8"))["made"]["command"]
    if command == before:
        return RESULTS
    print(f"{name}: the stored result was made by `{before}` and stays. This one goes to benchmarks/{TRIALS.name}/; "
          f"{REPLACE}=1 replaces the stored one.", file=sys.stderr)  # fmt: skip
    return TRIALS


def markdown(head: list[str], rows: list[list[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def progress(done: int, total: int, what: str) -> None:
    """Say how far a long run is: on a terminal always, in a log every tenth."""
    if sys.stderr.isatty():
        print(f"\r{done}/{total} {what:<40}", end="\n" if done == total else "", file=sys.stderr, flush=True)
    elif done % max(1, total // 10) == 0:
        print(f"{done}/{total} {what}", file=sys.stderr, flush=True)
