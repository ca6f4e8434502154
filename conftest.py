"""What all tests share: documents write their files into a temporary folder."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _away_from_the_project(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(tmp_path)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spare the garbage collector what stays: the modules of all tests, which it would go through again and again."""
    gc.freeze()
