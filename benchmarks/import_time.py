"""CPU time of `import reprior` above that of `import numpy`, each in a fresh process, in turns.

python benchmarks/import_time.py [--repeats 15]
"""

import argparse
import re
import statistics
import subprocess
import sys

from _record import markdown, progress, store

CODE = {
    "python": "pass",
    "numpy": "import numpy",
    "reprior": "import reprior",
}
CLOCK = "import time; start = time.process_time(); {}; print(time.process_time() - start)"


def cpu_seconds(code: str) -> float:
    """Return the CPU time that `code` takes in a fresh interpreter."""
    done = subprocess.run([sys.executable, "-c", CLOCK.format(code)], capture_output=True, text=True, check=True)
    return float(done.stdout)


def heaviest(n: int) -> list[tuple[str, float]]:
    """Return the modules that cost most by themselves, in milliseconds, NumPy's left out."""
    run = [sys.executable, "-X", "importtime", "-c", "import numpy; import reprior"]
    lines = subprocess.run(run, capture_output=True, text=True, check=True).stderr.splitlines()
    parsed = [re.match(r"import time:\s+(\d+) \|\s+\d+ \|\s+(\S+)", line) for line in lines]
    own = [(match[2], int(match[1]) / 1e3) for match in parsed if match]
    after = own[next(i for i, (name, _) in enumerate(own) if name == "numpy") + 1 :]
    return sorted(after, key=lambda item: -item[1])[:n]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    turns: dict[str, list[float]] = {name: [] for name in CODE}
    for turn in range(options.repeats):
        for name, code in CODE.items():
            turns[name].append(1e3 * cpu_seconds(code))
        progress(turn + 1, options.repeats, "turns")
    above = statistics.median(b - a for a, b in zip(turns["numpy"], turns["reprior"], strict=True))
    figures = {f"import {name}, ms": round(statistics.median(values), 1) for name, values in turns.items()}
    figures |= {"reprior above numpy, ms": round(above, 1)}
    top = heaviest(8)
    title = f"# CPU time of `import reprior`, medians of {options.repeats} fresh processes in turns"
    table = markdown(["", "ms"], [[name, f"{value:.1f}"] for name, value in figures.items()])
    modules = markdown(["module's own time after NumPy", "ms"], [[f"`{name}`", f"{ms:.1f}"] for name, ms in top])
    store("import_time", {"figures": figures, "modules": dict(top)}, f"{title}\n\n{table}\n\n{modules}")


if __name__ == "__main__":
    main()
