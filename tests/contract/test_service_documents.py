"""What is written about the service: the example runs, the dashboard asks for metrics that exist, bounds hold."""

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
from service_help import points_at_most

from reprior.client import Client
from reprior.service.server import Background
from reprior.service.settings import Settings

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "service.md").read_text()


def test_the_example_beside_scikit_learn_runs(capsys):
    pytest.importorskip("sklearn")
    code = re.search(r"```python\n(.*?)```", TEXT, re.S)
    assert code is not None
    exec(compile(code[1], "docs/service.md", "exec"), {})
    first, second = capsys.readouterr().out.split("\n")[:2]
    n, share, _ = first.split(" ", 2)
    assert int(n) > 150
    assert float(share) > 0.95
    assert second in "0123"


def test_the_dashboard_asks_for_metrics_that_exist(tmp_path):
    import httpx

    board = json.loads((ROOT / "deploy" / "grafana.json").read_text())
    asked = {name for panel in board["panels"] for target in panel["targets"]
             for name in re.findall(r"reprior_\w+", target["expr"])}  # fmt: skip
    with Background(Settings(tmp_path / "s.db")) as running, Client(running.url) as client:
        client.put("s", [1, 1])
        client.send("s", [[0.3, 0.7]])
        served = set(re.findall(r"^(reprior_\w+)", httpx.get(f"{running.url}/metrics").text, re.M))
    assert len(asked) >= 8
    assert asked <= served


def test_the_bound_on_the_history_is_the_stated_one():
    assert f"at most {points_at_most():,} points" in TEXT
    assert f"{points_at_most() * 800 / 1e6:.1f} MB for 100" in TEXT
