"""CPU time of `import reprior`, and of using all its names, above `import numpy`; fresh processes in turns.

python benchmarks/import_time.py [--repeats 15]
"""

import argparse
import statistics
import subprocess
import sys

from _record import markdown, progress, store

CODE = {
    "python": "pass",
    "numpy": "import numpy",
    "reprior": "import reprior",
    "reprior, every name used": "import reprior; [getattr(reprior, name) for name in reprior.__all__]",
}
CLOCK = "import time; start = time.process_time(); {}; print(time.process_time() - start)"


def cpu_seconds(code: str) -> float:
    """Return the CPU time that `code` takes in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", CLOCK.format(code)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    turns: dict[str, list[float]] = {name: [] for name in CODE}
    for turn in range(options.repeats):
        for name, code in CODE.items():
            turns[name].append(1e3 * cpu_seconds(code))
        progress(turn + 1, options.repeats, "turns")
    used = "reprior, every name used"  # names load what they need when first used, so `import reprior` alone is less
    above = statistics.median(b - a for a, b in zip(turns["numpy"], turns[used], strict=True))
    figures = {f"import {name}, ms": round(statistics.median(values), 1) for name, values in turns.items()}
    figures |= {"every name used, above numpy, ms": round(above, 1)}
    title = f"# CPU time of `import reprior`, medians of {options.repeats} fresh processes in turns"
    table = markdown(["", "ms"], [[name, f"{value:.1f}"] for name, value in figures.items()])
    store("import_time", {"figures": figures}, f"{title}\n\n{table}")


if __name__ == "__main__":
    main()
