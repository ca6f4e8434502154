"""The report in Chromium: dark and light, on a phone, with its own script and no other."""

from __future__ import annotations

import re

import numpy as np
import pytest

pytest.importorskip("selenium", reason="needs selenium")
from chromium import browser, faults, there

from reprior.cli import cli
from reprior.cli._shell import run

if not there():
    pytest.skip("needs Chromium and its driver", allow_module_level=True)

HOSTILE = '<img src=x onerror="document.title=1"><script>document.title=2</script>'


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    folder, rng, k = tmp_path_factory.mktemp("report"), np.random.default_rng(0), 40
    names = [HOSTILE, "a_name_" * 20, "word" * 40, *(f"class {j}" for j in range(3, k))]
    rows = rng.dirichlet(np.full(k, 0.05), 300) * 0.3
    rows[np.arange(300), rng.choice(k, 300, p=rng.dirichlet(np.ones(k)))] += 0.7
    np.savez(folder / "t.npz", proba=rows, classes=names)
    np.save(folder / "c.npy", np.arange(1, k + 1))
    arguments = [folder / "t.npz", "-s", folder / "c.npy", "-o", folder / "r.html", "--title", "A title " + HOSTILE]
    assert run(cli, ["report", *map(str, arguments)]) == 0
    with browser() as driver:
        driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": 360, "height": 800, "deviceScaleFactor": 1, "mobile": True}
        )
        driver.get((folder / "r.html").as_uri())
        yield driver


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_follows_the_colours_asked_for(driver, scheme):
    answer = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", answer)
    colour = driver.execute_script("return getComputedStyle(document.body).backgroundColor")
    assert (min(map(int, re.findall(r"\d+", colour))) > 128) == (scheme == "light")


def test_a_phone_scrolls_tables_and_not_the_page(driver):
    width, inside, cut = driver.execute_script("""
        const outer = [...document.querySelectorAll('body *')].filter(e => !e.closest('.wide *'));
        return [document.documentElement.scrollWidth, innerWidth,
                outer.filter(e => e.getBoundingClientRect().right > 361).map(e => e.outerHTML)]""")
    assert (width, inside, cut) == (360, 360, [])


def test_its_own_script_runs_and_no_other(driver):
    assert driver.title.startswith("A title <img")
    first, result = driver.execute_script("""
        const q = document.getElementById('q'), rows = () => [...document.getElementById('all').tBodies[0].rows];
        document.querySelector('#all th').click();
        q.value = 'CLASS 7'; q.oninput();
        return [rows()[0].cells[0].textContent, rows().filter(r => !r.hidden).length]""")
    assert (first, result) == (HOSTILE, 1)
    assert faults(driver) == []
