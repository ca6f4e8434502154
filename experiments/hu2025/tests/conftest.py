"""What the tests of this experiment share: its modules, which live beside each other, outside the package."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the modules of this experiment importable."""
    folder = Path(__file__).parents[1]
    monkeypatch.syspath_prepend(str(folder))
    names = {p.stem for p in folder.glob("*.py")} | {"style"}
    before = list(sys.path)
    yield folder
    sys.path[:] = before
    for name in names & set(sys.modules):
        del sys.modules[name]
