"""A short trial run of a benchmark never replaces a stored result."""

import json
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def record(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import _record

    monkeypatch.setattr(_record, "RESULTS", tmp_path / "results")
    monkeypatch.setattr(_record, "TRIALS", tmp_path / ".trials")
    monkeypatch.delenv(_record.REPLACE, raising=False)
    return _record


def run(record, monkeypatch, value, *arguments):
    monkeypatch.setattr(sys, "argv", ["somewhere/speed.py", *arguments])
    record.store("speed", {"value": value}, f"{value}")
    return json.loads((record.RESULTS / "speed.json").read_text())["value"]


def test_a_trial_goes_elsewhere_and_says_so(record, monkeypatch, capsys):
    assert run(record, monkeypatch, 1) == 1
    assert run(record, monkeypatch, 2, "--seeds", "1") == 1
    assert json.loads((record.TRIALS / "speed.json").read_text())["value"] == 2
    assert "stays" in capsys.readouterr().err


def test_the_same_command_replaces_whatever_folder_it_was_given(record, monkeypatch):
    assert run(record, monkeypatch, 1, "--data", "/a/data") == 1
    assert run(record, monkeypatch, 2, "--data", "/b/data") == 2


def test_another_command_replaces_when_told_to(record, monkeypatch):
    assert run(record, monkeypatch, 1) == 1
    monkeypatch.setenv(record.REPLACE, "1")
    assert run(record, monkeypatch, 2, "--seeds", "99") == 2
