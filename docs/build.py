"""Build the documentation into `site/`: `python docs/build.py`. A warning, a dead link among them, is an error.

Needs `pip install -e '.[docs]'` and no network.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
OUR_OWN = {"NO_MKDOCS_2_WARNING": "1"}  # leaves out an announcement of the theme's makers


def main() -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", *sys.argv[1:]]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **OUR_OWN}, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)
    print("Built. Open site/index.html; the search box needs a server: python -m http.server -d site")


if __name__ == "__main__":
    main()
