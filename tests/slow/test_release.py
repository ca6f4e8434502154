"""What is released builds by one command, installs into empty environments and works there (needs a package index)."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_version_is_in_pyproject_and_citation_alone():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    version = re.search(r'^version = "(.+)"$', text, re.M)[1]
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    ours = [name for name in listed if name.endswith((".py", ".toml", ".cff", ".yml", ".cfg"))]
    assert [name for name in ours if f'"{version}"' in (ROOT / name).read_text(encoding="utf-8")] == ["pyproject.toml"]
    assert re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(encoding="utf-8"), re.M) == [version]


@pytest.mark.slow
@pytest.mark.skipif(os.environ.get("REPRIOR_TEST_ALL") != "1", reason="needs a package index; set REPRIOR_TEST_ALL=1")
@pytest.mark.skipif(importlib.util.find_spec("build") is None, reason="needs pip install -e '.[release]'")
def test_every_archive_installs_and_works(tmp_path):
    done = subprocess.run([sys.executable, "deploy/release.py", "--out", str(tmp_path)], cwd=ROOT, capture_output=True,
                          text=True, check=False, timeout=1200)  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(list(tmp_path.iterdir())) == 3
    assert "native loops" in done.stdout
    assert "reference loops" in done.stdout
