"""What people see, word for word; run with REPRIOR_GOLDEN=write to accept a change."""

import os
import sys
from pathlib import Path

import pytest
from cli_files import write_all

from reprior.cli import cli
from reprior.cli._shell import run

HERE = Path(__file__).parent / "cli"
LINES = {
    "help": ["--help"],
    "estimate": ["estimate", "list.parquet", "-s", "held.npz", "--no-interval"],
    "estimate-counts": ["estimate", "t.csv", "-s", "counts.csv", "-m", "mlls", "--no-interval"],
    "correct": ["correct", "parts", "-s", "held.npz", "-o", "out"],
    "simulate": ["simulate", "held.npz", "-o", "shifted.npz", "--rows", "300"],
    "unknown-column": ["estimate", "list.parquet", "-s", "held.npz", "--columns", "scores"],
    "json-error": ["estimate", "t.npy", "-s", "counts.json", "--calibrate", "ts", "--json"],
    "usage": ["estimate", "t.npy"],
    "stream": ["stream", "to.ndjson", "-s", "counts.json", "--emit", "prior", "--every", "500"],
}


@pytest.mark.parametrize("name", LINES)
def test_text(name, tmp_path, monkeypatch, capfdbinary):
    write_all(tmp_path)
    monkeypatch.chdir(tmp_path)
    code = run(cli, LINES[name])
    sys.stdout.flush()
    out, err = (stream.decode() for stream in capfdbinary.readouterr())
    shown = f"$ reprior {' '.join(LINES[name])}\n{out}{err}exit {code}\n"
    path = HERE / f"{name}.txt"
    if os.environ.get("REPRIOR_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown)
    shown, expected = (rounded(text) if name == "stream" else text for text in (shown, path.read_text()))
    assert shown == expected


def rounded(text):
    """Machines may differ in the last digits of what is printed in full."""
    import re

    return re.sub(r"0\.\d+", lambda match: f"{float(match[0]):.6f}", text)
