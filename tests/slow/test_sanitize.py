"""The native kernel under sanitizers, states forged by the thousand, and a long run."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import forge
import pytest

from reprior._kernels import NATIVE

TESTS = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.mark.skipif(not shutil.which("gcc") or sys.platform != "linux", reason="sanitizers need gcc on Linux")
def test_sanitizers_find_nothing() -> None:
    command = [sys.executable, str(TESTS / "sanitize.py"), "--calls", "100000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


@pytest.mark.parametrize(("change", "times"), [(forge.forged, 10_000), (forge.damaged, 100_000)])
def test_no_state_is_accepted_that_is_none(change, times: int) -> None:
    answer, most = forge.trial(change, times, seed=2)
    assert answer["refused"] > 0.7 * times
    assert change is forge.forged or not answer["accepted and valid"]
    assert most <= 2


@pytest.mark.skipif(not NATIVE, reason="the native kernel is not built")
@pytest.mark.parametrize("label", ["online-fmapls", "online-ebls", "online-fmapls, top 5 of 1,000"])
def test_a_long_run_stays_a_prior(label: str, monkeypatch) -> None:
    monkeypatch.syspath_prepend(str(TESTS.parent / "benchmarks"))
    import operations

    result = operations.long_run(label, {}, 4_000_000)
    assert abs(result["sum"]) < 1e-9
    assert result["error"] is None or result["error"] < 0.05
