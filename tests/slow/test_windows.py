"""Nothing in the package calls what only POSIX systems have: a type checker that is told of Windows would find it."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


def test_every_name_exists_on_windows(tmp_path):
    pytest.importorskip("mypy")
    command = [sys.executable, "-m", "mypy", "--platform", "win32", "--cache-dir", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout
