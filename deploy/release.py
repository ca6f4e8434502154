"""Build what is released, install each part into an empty environment, and try it there.

    python deploy/release.py [--out dist]

Makes the source archive, the wheel with the compiled kernel and the wheel without, into `dist/`. Needs
`pip install -e '.[release]'` and a network (or a cache of pip) for NumPy, SciPy and click.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).parents[1]
LARGEST = 4_000_000  # bytes of a wheel, shipped outputs included
SMOKE = """
import json, subprocess, sys
import numpy as np
import reprior as rp
from reprior._kernels import NATIVE
from reprior.datasets import load
data = load("banking77")
pipe = rp.pipeline(data.heldout_proba, data.heldout_y, counts=data.counts, classes=data.classes)
new = rp.simulate.resample(data.pool_proba, data.pool_y, rp.simulate.dirichlet(77, 1, rng=0), n=500, rng=0)
est = pipe.estimate(new.proba)
assert rp.metrics.accuracy(est.correct(new.proba), new.y) > rp.metrics.accuracy(new.proba, new.y)
stream = pipe.stream()
stream.learn_many(new.proba)
assert rp.load(stream.to_bytes()).n == 500
assert rp.load(pipe.to_bytes()) == pipe
shown = json.loads(subprocess.run([sys.executable, "-m", "reprior", "demo", "--json"], check=True, capture_output=True,
                                  text=True).stdout)
gain = np.mean([row["after"] - row["before"] for row in shown["channels"].values()])
assert gain > 0.08, gain
loops = "native" if NATIVE else "reference"
print(f"reprior {rp.__version__}, {loops} loops, mean gain of the demo {100 * gain:.1f} points")
"""


def build(out: Path, *arguments: str, **environment: str) -> Path:
    """Return the archive that one run of the build tool made."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "build", "--outdir", folder, *arguments, str(ROOT)]
        subprocess.run(command, check=True, env={**os.environ, **environment}, stdout=subprocess.DEVNULL)
        made = next(Path(folder).iterdir())
        out.mkdir(exist_ok=True)
        return made.replace(out / made.name)


def try_out(archive: Path) -> str:
    """Install an archive into an empty environment, away from the source, and return what the trial says."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / ("Scripts" if os.name == "nt" else "bin") / "python"
        clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run([python, "-m", "pip", "install", "-q", archive.resolve()], check=True, env=clean, cwd=folder)
        done = subprocess.run([python, "-c", SMOKE], check=True, env=clean, cwd=folder, capture_output=True, text=True)
        return done.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    options = parser.parse_args()
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    made = [
        build(options.out, "--sdist"),
        build(options.out, "--wheel"),
        build(options.out, "--wheel", REPRIOR_PURE="1"),
    ]
    for archive in made:
        size = archive.stat().st_size
        if version not in archive.name or (archive.suffix == ".whl" and size > LARGEST):
            raise SystemExit(f"{archive.name} has {size} bytes; allowed are {LARGEST} and the version {version}.")
        print(f"{archive.name}: {size / 1e6:.2f} MB; {try_out(archive)}", flush=True)


if __name__ == "__main__":
    main()
