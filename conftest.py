"""What all tests share: documents write their files into a temporary folder, and types are checked beside the tests."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest

TYPES = pytest.StashKey["subprocess.Popen[str]"]()


@pytest.fixture(autouse=True)
def _away_from_the_project(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if isinstance(request.node, pytest.DoctestItem):
        monkeypatch.chdir(tmp_path)


@pytest.fixture
def type_check(request: pytest.FixtureRequest) -> subprocess.Popen[str]:
    """The check of the types, which began before the first test."""
    return request.config.stash[TYPES]


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let the check of the types, which takes longer than any test, run beside the others; look at it last."""
    waits = [item for item in items if "type_check" in getattr(item, "fixturenames", ())]
    if waits and not config.option.collectonly:
        items[:] = [item for item in items if item not in waits] + waits
        config.stash[TYPES] = subprocess.Popen([sys.executable, "-m", "mypy"], cwd=Path(__file__).parent, text=True,
                                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)  # fmt: skip


def pytest_collection_finish(session: pytest.Session) -> None:
    """Spare the garbage collector what stays: the modules of all tests, which it would go through again and again."""
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End it, if the tests ended before."""
    if TYPES in config.stash:
        with config.stash[TYPES] as checker:
            checker.kill()
