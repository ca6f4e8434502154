"""What is written about the service: the example runs, the dashboard asks for metrics that exist, bounds hold."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("starlette", reason="needs reprior[serve]")
from service_help import ALL, WHY, free_port, outputs, points_at_most, wait_for

from reprior.client import Client, ServiceError
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
    assert float(share) >= 0.95
    assert second in "0123"


BOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text())
RULES = ROOT / "deploy" / "prometheus-rules.yml"
EXPRESSIONS = [target["expr"] for panel in BOARD["panels"] for target in panel["targets"]]
EXPRESSIONS += [each["expr"] for each in BOARD["annotations"]["list"]]
RULE_EXPRESSIONS = re.findall(r"expr: (.*)", RULES.read_text())


@pytest.fixture
def measured(tmp_path):
    """A server with a stream, an intake that is down, a refused post and an alarm."""
    settings = Settings(tmp_path / "s.db", intakes=(f"redis://127.0.0.1:{free_port()}/s",))
    with Background(settings) as running, Client(running.url) as client:
        client.put("s", [1, 1], alarm={"exact": True, "run_length": 100.0})
        client.send("s", outputs(0.99, 500))
        with pytest.raises(ServiceError):
            client.send("s", [[0.3, 0.3]])
        yield running


def test_the_dashboard_and_the_rules_ask_for_metrics_that_exist(measured):
    import httpx

    asked = {name for expression in EXPRESSIONS + RULE_EXPRESSIONS for name in re.findall(r"reprior_\w+", expression)}
    served = dict(re.findall(r"^# TYPE (\w+) (\w+)", httpx.get(f"{measured.url}/metrics").text, re.M))
    served |= {f"{name}_bucket": kind for name, kind in served.items() if kind == "histogram"}
    assert len(asked) >= 15
    assert asked <= set(served)


def test_the_dashboard_asks_by_labels_that_the_metrics_have(measured):
    """Each selector of every query finds a series of the real output, and each grouping uses labels of that series."""
    import httpx

    labels: dict[str, set[str]] = {}
    for name, inside in re.findall(r"^(\w+)(?:\{(.*)\})? \S+$", httpx.get(f"{measured.url}/metrics").text, re.M):
        labels.setdefault(name, set()).update(re.findall(r'(\w+)="', inside))
    for expression in EXPRESSIONS + RULE_EXPRESSIONS:
        names = re.findall(r"reprior_\w+", expression)
        for name, selector in re.findall(r"(reprior_\w+)\{([^}]*)\}", expression):
            assert set(re.findall(r"(\w+)\s*=~?", selector)) <= labels[name], expression
        for group in re.findall(r"by \(([^)]*)\)", expression):
            assert {part.strip() for part in group.split(",")} <= labels[names[0]] | {"instance"}, expression
        if "histogram_quantile" in expression:
            assert all("le" in labels[name] for name in names), expression
    for variable in BOARD["templating"]["list"]:
        if variable["type"] == "query":
            name, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
            assert label in labels[name]
    for panel in BOARD["panels"]:
        for target in panel["targets"]:
            legend = re.findall(r"\{\{\s*(\w+)\s*\}\}", target.get("legendFormat", ""))
            used = set().union(*(labels[name] for name in re.findall(r"reprior_\w+", target["expr"])))
            assert set(legend) <= used | {"instance"}, panel["title"]


def test_the_rules_fire_and_keep_silent(tmp_path):
    if not shutil.which("promtool"):
        pytest.skip("needs promtool, from Debian's prometheus")
    series = {"alarm": "0 1 1", "silenced": "0 0 1", "stale": "1 1 1"}
    inputs = [{"series": f'reprior_stream_{key}{{instance="a",stream="s"}}', "values": values}
              for key, values in series.items()]  # fmt: skip
    fires = [("RepriorClassPriorMoved", "0m", False), ("RepriorClassPriorMoved", "1m", True),
             ("RepriorClassPriorMoved", "2m", False), ("RepriorStreamStale", "0m", True),
             ("RepriorStreamStale", "2m", False)]  # fmt: skip
    predicted = {"RepriorClassPriorMoved": {"summary": "The class prior of s has moved."},
            "RepriorStreamStale": {"summary": "No samples come from s."}}  # fmt: skip
    alerts = re.findall(r"alert: (\w+).*?description: \"(.*?)\"", RULES.read_text(), re.S)
    for name, text in alerts:
        if name in predicted:
            predicted[name]["description"] = text.replace("{{ $labels.instance }}", "a")
    labels = {"instance": "a", "stream": "s", "severity": "warning"}
    checks = [{"alertname": name, "eval_time": when,
               "exp_alerts": [{"exp_labels": labels, "exp_annotations": predicted[name]}] if yes else []}
              for name, when, yes in fires]  # fmt: skip
    unit = {"rule_files": [str(RULES)], "evaluation_interval": "1m",
            "tests": [{"interval": "1m", "input_series": inputs, "alert_rule_test": checks}]}  # fmt: skip
    (tmp_path / "test.yml").write_text(json.dumps(unit))
    for line in (["promtool", "check", "rules", str(RULES)], ["promtool", "test", "rules", str(tmp_path / "test.yml")]):
        ended = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
        assert ended.returncode == 0, ended.stdout + ended.stderr


def test_prometheus_answers_every_query_of_the_dashboard(tmp_path, measured):
    import httpx

    if not ALL or not shutil.which("prometheus"):
        pytest.skip(WHY)
    port = free_port()
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(RULES)],
        "scrape_configs": [{"job_name": "reprior", "static_configs": [{"targets": [measured.url[7:]]}]}],
    }
    (tmp_path / "prometheus.yml").write_text(json.dumps(config))
    line = ["prometheus", f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}", "--log.level=error"]  # fmt: skip
    running = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    empty = {each["expr"] for each in BOARD["annotations"]["list"]}  # an alarm is marked when it is raised, and no more

    def values(expression):
        query = expression.replace("$stream", ".+").replace("$__rate_interval", "1m")
        answer = httpx.get(f"http://127.0.0.1:{port}/api/v1/query", params={"query": query}).json()
        assert answer["status"] == "success", (expression, answer)
        return answer["data"]["result"]

    def all_found():
        try:
            return all(values(each) for each in set(EXPRESSIONS) - empty)
        except httpx.TransportError:
            return False

    try:
        wait_for(all_found, 60)
        wait_for(lambda: {a["labels"]["alertname"] for a in httpx.get(f"http://127.0.0.1:{port}/api/v1/alerts").json()[
            "data"]["alerts"]} >= {"RepriorClassPriorMoved", "RepriorIntakeDown"}, 60)  # fmt: skip
    finally:
        running.terminate()
        running.wait(30)


def test_the_bound_on_the_history_is_the_stated_one():
    assert f"at most {points_at_most():,} points" in TEXT
    assert f"{points_at_most() * 800 / 1e6:.1f} MB for 100" in TEXT
