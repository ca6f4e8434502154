"""The language experiment: its stored figures are what its script finds, and its page shows what is stored."""

import importlib.util
import json
from pathlib import Path

import pytest

import reprior as rp
from reprior.datasets import load

HERE = Path(__file__).parents[2] / "experiments" / "language_id"


@pytest.fixture(scope="module")
def experiment():
    spec = importlib.util.spec_from_file_location("language_id_run", HERE / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def stored():
    return json.loads((HERE / "expected.json").read_text(encoding="utf-8"))


def test_channels_come_out_as_stored(experiment, stored):
    data = load("lid176")
    pipe = rp.pipeline(data.heldout_proba, data.heldout_y, classes=data.classes)
    names = ("Croatia", "Netherlands", "Indonesia")
    results = {"channels": {name: experiment.channel(data, pipe, name) for name in names}}
    assert experiment.differences(results, {"channels": {name: stored["channels"][name] for name in names}}) == []


def test_a_figure_that_moved_is_named(experiment, stored):
    moved = json.loads(json.dumps(stored))
    moved["channels"]["Spain"]["corrected"] += 2
    assert len(experiment.differences(moved, stored)) == 1


def test_the_page_shows_what_is_stored(experiment, stored):
    assert experiment.markdown(stored) in (HERE / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_figure_comes_out_as_stored(experiment, stored):
    assert experiment.differences(experiment.measure(load("lid176")), stored) == []
