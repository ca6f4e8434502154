"""Where results go, and how they say how they were made: a short trial run never replaces what is stored."""

from __future__ import annotations

import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
RESULTS, WORK = HERE / "results", HERE / ".work"


def circumstances() -> dict[str, object]:
    """Return by which command, when and with what a result was made; of paths, which differ, only the name."""
    words = [Path(word).name if "/" in word else word for word in sys.argv]
    return {
        "command": " ".join(["python", *words]),
        "made": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "load": round(os.getloadavg()[0], 1),
    }


def destination(name: str, *, full: bool, force: bool = False, folder: Path = RESULTS) -> Path:
    """Return where a result goes: `results/` if the run had its full number of trials or was told to, else `.work/`."""
    if full or force:
        return folder / f"{name}.json"
    print(f"Short run: {name}.json goes to {WORK.name}/. The stored one stays; --store replaces it.", file=sys.stderr)
    return WORK / f"{name}.json"


def store(path: Path, result: dict[str, object]) -> None:
    write(path, {"made_with": circumstances(), **result})


def write(path: Path, result: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=None) + "\n", encoding="utf-8")
    print(path.relative_to(HERE) if path.is_relative_to(HERE) else path)


def line_made(curves: dict, line: str) -> dict:
    """Return how a line of online curves was made, and with how many trials: a line may have been run by itself."""
    return curves.get("lines", {}).get(line) or {**curves.get("made_with", {}), "trials": curves["trials"]}


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
