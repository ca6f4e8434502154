"""The page for the one on call: the overview, charts that respect the time range, alarms on them, and axe."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path
from urllib.parse import parse_qs, urlencode

import numpy as np
import pytest
from service_help import ALL, WHY, wait_for
from worlds import make_problem

pytest.importorskip("starlette", reason="needs reprior[serve]")
if not ALL:
    pytest.skip(WHY, allow_module_level=True)
from chromium import browser, faults
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from reprior.client import Client
from reprior.service.damage import with_checksum
from reprior.service.server import Background
from reprior.service.settings import Settings

RED, GREEN = [179, 38, 30], [26, 127, 75]  # of alarms and acknowledgements, in the light theme
CLASSES = ["cat", "dog", "owl"]
AGO = {"stopped": 3000.0, "alone": 1200.0}  # seconds since the last samples


def rows(n: int, share: float, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    made = rng.dirichlet(np.full(3, 0.1), n) * 0.3
    made[np.arange(n), rng.choice(3, n, p=[share, (1 - share) / 2, (1 - share) / 2])] += 0.7
    return made


def age(db: Path) -> None:
    """Move the points of every stream into the past: two hours of them, up to the time in AGO."""
    with sqlite3.connect(db) as raw:
        for number, name in raw.execute("SELECT id, name FROM streams").fetchall():
            asked = "SELECT id, n, prior, variance FROM history WHERE stream = ? ORDER BY t DESC"
            result = raw.execute(asked, (number,)).fetchall()
            last = time.time() - AGO.get(name, 5.0)
            for k, (point, n, prior, variance) in enumerate(result):
                t = int((last - 120 * k) * 1000)
                again = with_checksum(variance[:-4], number, t, n, prior)
                raw.execute("UPDATE history SET t = ?, variance = ? WHERE id = ?", (t, again, point))
            raw.execute("UPDATE states SET last_post = ? WHERE stream = ?", (last, number))
        for number, about in raw.execute("SELECT id, about FROM alarms").fetchall():
            answer = json.loads(about) | {"raised": time.time() - 1800, "since": time.time() - 2400}
            raw.execute("UPDATE alarms SET about = ?, acknowledged = acknowledged - 900 WHERE id = ?",
                        (json.dumps(answer), number))  # fmt: skip
        damaged = raw.execute("INSERT INTO streams (name, created) VALUES ('damaged', 1)").lastrowid
        raw.execute("INSERT INTO versions VALUES (?, 1, 1, x'00')", (damaged,))
        raw.execute("INSERT INTO states VALUES (?, 0, 0, 1, x'00')", (damaged,))
    raw.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    db = tmp_path_factory.mktemp("views") / "s.db"
    with Background(Settings(db, point_seconds=0.001)) as running, Client(running.url) as client:
        for name in ("stopped", "watched", "known"):
            alarm = {"exact": True, "run_length": 100.0} if name != "stopped" else None
            client.put(name, [1, 1, 1], classes=CLASSES, alarm=alarm, stale_after=float(name in AGO))
            for seed in range(40):
                client.send(name, rows(20, 0.33 if seed < 20 else 0.8, seed))
                time.sleep(0.002)
        client.acknowledge("known", client.alarms("known")[0], by="Ann", note="new camera")
        client.put("alone", [1, 1, 1], classes=CLASSES, stale_after=1)
        client.send("alone", rows(5, 0.4, 0))
        client.put("quiet", [1, 1, 1], classes=CLASSES)
        world = make_problem(3, 500)
        client.put("drifted", classes=CLASSES, heldout=world.source.heldout, alarm=False)
        client.send("drifted", 0.4 * world.proba + 0.2)
    age(db)
    hook = {"webhook": "http://127.0.0.1:9/", "webhook_private": True}
    with Background(Settings(db, **hook)) as running, Client(running.url) as client:
        wait_for(lambda: client.get("stopped")["alarm"]["stale"])
        yield running


@pytest.fixture(scope="module")
def driver(server):
    with browser() as made:
        yield made


@pytest.fixture
def page(driver, server):
    driver.set_window_size(1280, 1000)

    def opened(**state):
        driver.get("about:blank")
        driver.get(f"{server.url}/#{urlencode(state)}")
        faults(driver)
        if "stream" in state:
            wait_for(lambda: text(driver, "name") == state["stream"])
            wait_for(lambda: driver.find_elements(By.CSS_SELECTOR, "#lines canvas"))
        else:
            wait_for(lambda: driver.find_element(By.ID, "home").is_displayed())
        return driver

    yield opened
    assert faults(driver) == []


def text(driver, name):
    return driver.find_element(By.ID, name).text


def colour_columns(driver, wanted, rows=1.0):
    """Return where in the time range of the lines a colour (r, g, b) begins and ends, in the upper part `rows`.

    A line of 1.5 pixels covers at least three quarters of some column: an opacity of 191.
    """
    return driver.execute_script(
        """const c = document.querySelector('#lines canvas'), o = document.querySelector('#lines .u-over');
        const [r, g, b] = arguments[0];
        const w = o.clientWidth, h = Math.round(o.clientHeight * arguments[1]), found = [];
        const d = c.getContext('2d').getImageData(o.offsetLeft, o.offsetTop, w, h).data;
        for (let i = 0; i < d.length; i += 4)
          if (Math.abs(d[i]-r) + Math.abs(d[i+1]-g) + Math.abs(d[i+2]-b) < 30 && d[i+3] > 180)
            found.push((i / 4) % w / w);
        return found.length ? [Math.min(...found), Math.max(...found)] : null;""", wanted, rows)  # fmt: skip


def tone(driver, k):
    value = driver.execute_script("return document.querySelectorAll('#legend i')[arguments[0]].style.background", k)
    return [int(part) for part in value[4:-1].split(",")]


def test_home_shows_alarms_stale_streams_movement_and_problems(page):
    driver = page()
    assert "watched" in text(driver, "open-alarms")
    assert "Class prior moved: " in text(driver, "open-alarms")
    assert "No samples since" in text(driver, "open-alarms")
    assert "known" not in text(driver, "open-alarms")  # somebody has dealt with it
    assert text(driver, "stale").index("stopped") < text(driver, "stale").index("alone")  # the longest silent first
    assert "50 minutes" in text(driver, "stale")
    moved = [link.text for link in driver.find_elements(By.CSS_SELECTOR, "#moved tbody tr a")]
    assert moved[-1] == "alone"
    assert set(moved) == {"stopped", "watched", "known", "alone", "drifted"}
    assert "'damaged' cannot be read" in text(driver, "problem-list")
    wait_for(lambda: "did not reach the webhook: Connection refused." in text(page(), "problem-list"))
    driver.find_element(By.LINK_TEXT, "watched").click()
    wait_for(lambda: text(driver, "name") == "watched")
    driver.find_element(By.CSS_SELECTOR, "h1 .home").click()
    wait_for(lambda: driver.find_element(By.ID, "home").is_displayed())
    driver.back()
    wait_for(lambda: text(driver, "name") == "watched")


def test_a_stream_that_stopped_does_not_look_alive(page):
    driver = page(stream="stopped", range="1h")
    first, last = colour_columns(driver, tone(driver, 0))
    assert first < 0.1
    assert last < 0.2  # 50 of 60 minutes are empty
    driver.find_element(By.CSS_SELECTOR, "input[value='5m'] + span").click()
    wait_for(lambda: "No samples in this range. The last ones came" in text(driver, "lines-hint"))
    time.sleep(1.5)  # what the server says next changes nothing
    assert "No samples in this range" in text(driver, "lines-hint")
    assert "50 minutes ago" in text(driver, "facts")
    driver.find_element(By.CSS_SELECTOR, "input[value='7d'] + span").click()
    wait_for(lambda: "95 % intervals" in text(driver, "lines-hint"))
    wait_for(lambda: (colour_columns(driver, tone(driver, 0)) or [0])[0] > 0.9)


def test_a_single_point_is_drawn(page):
    driver = page(stream="alone", range="1h")
    observed = wait_for(lambda: colour_columns(driver, tone(driver, 2)))  # the others lie below
    assert 0.6 < observed[0] <= observed[1] < 0.73  # 40 of 60 minutes


def test_a_tooltip_names_values_and_alarms(page):
    driver = page(stream="watched", range="1h")
    over = driver.find_element(By.CSS_SELECTOR, "#lines .u-over")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", over)
    tip = driver.find_element(By.CSS_SELECTOR, "#lines .tip")
    assert not tip.is_displayed()
    wait_for(lambda: "open" in text(driver, "alarms"))
    raised, _ = wait_for(lambda: colour_columns(driver, RED, 0.04))
    ActionChains(driver).move_to_element_with_offset(over, round((raised - 0.5) * over.size["width"]), 0).perform()
    wait_for(tip.is_displayed)
    assert "cat: " in tip.text
    assert " % to " in tip.text
    assert "samples" in tip.text
    assert "Alarm: raised" in tip.text
    chart = driver.find_element(By.ID, "lines")
    driver.execute_script("arguments[0].focus()", chart)
    chart.send_keys(Keys.END)
    message = "return document.getElementById('said').textContent"
    last = wait_for(lambda: "cat: " in (result := driver.execute_script(message)) and result)
    chart.send_keys(Keys.ARROW_LEFT)
    wait_for(lambda: "cat: " in (result := driver.execute_script(message)) and result != last)


def test_zoom_stays_and_is_in_the_address(page, server):
    driver = page(stream="watched", range="1h")
    over = driver.find_element(By.CSS_SELECTOR, "#lines .u-over")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", over)
    chain = ActionChains(driver).move_to_element_with_offset(over, -100, 0).click_and_hold()
    chain.move_by_offset(150, 0).release().perform()
    wait_for(lambda: "from=" in driver.current_url)
    address = driver.current_url
    answer = parse_qs(address.split("#")[1])
    assert "range" not in answer
    assert driver.find_element(By.CSS_SELECTOR, "input[value='custom']").is_selected()
    with Client(server.url) as client:
        client.send("watched", rows(5, 0.5, 1))  # the live point lies outside
    time.sleep(1.5)
    assert driver.current_url == address
    fields = [driver.find_element(By.ID, name).get_attribute("value") for name in ("from", "to")]
    driver.get("about:blank")
    driver.get(address)
    wait_for(lambda: text(driver, "name") == "watched")
    wait_for(lambda: [driver.find_element(By.ID, name).get_attribute("value") for name in ("from", "to")] == fields)
    driver.execute_script(
        "const to = document.getElementById('to'); to.value = '2001-01-01T00:00:00';"
        "to.dispatchEvent(new Event('change'))")  # fmt: skip
    assert "must lie before" in text(driver, "range-error")
    driver.find_element(By.ID, "unzoom").click()
    wait_for(lambda: "from=" not in driver.current_url)
    assert not driver.find_element(By.ID, "custom").is_displayed()


def test_alarms_acknowledgements_and_sources_are_drawn(page):
    def strokes(driver):
        """Return where the markers are."""
        return [colour_columns(driver, each, 0.04) for each in (RED, GREEN)]

    driver = page(stream="known", range="1h")
    wait_for(lambda: all(strokes(driver)))
    (raised, _), (done, _) = strokes(driver)
    assert 0.3 < raised < 0.55
    assert 0.2 < done - raised < 0.3  # a quarter of an hour later
    assert "acknowledged by Ann" in text(driver, "alarms")
    driver = page(stream="stopped", range="1h")
    tones = [tone(driver, k) for k in range(3)]
    assert max(colour_columns(driver, each)[1] for each in tones) < 0.2
    faint = driver.execute_script(
        """const c = document.querySelector('#lines canvas'), at = Math.round(c.width * 0.7);
        const d = c.getContext('2d').getImageData(at, 0, 40, c.height).data; let n = 0;
        for (let i = 0; i < d.length; i += 4) {
          const rgb = [d[i], d[i+1], d[i+2]];
          if (d[i + 3] > 60 && Math.max(...rgb) - Math.min(...rgb) > 30) n++;
        }
        return n;""")  # fmt: skip
    assert faint > 5  # the dashed source level goes on where nothing is heard


def test_colours_of_classes_do_not_change(page):
    driver = page(stream="watched", range="1h")

    def tones():
        return driver.execute_script(
            "return Object.fromEntries([...document.querySelectorAll('#legend li')].map(x =>"
            " [x.textContent.split(':')[0], x.firstChild.style.background]))")  # fmt: skip

    before = tones()
    assert len(set(before.values())) == 3
    box = driver.find_element(By.ID, "classes")
    box.send_keys("owl")
    wait_for(lambda: list(tones()) == ["owl"])
    assert tones()["owl"] == before["owl"]


def test_interval_bars_stay_in_their_column(page):
    driver = page(stream="stopped", range="1h")
    outside = driver.execute_script(
        """return [...document.querySelectorAll('#now .cls:not([hidden])')].flatMap(row => {
          const bar = row.children[1].getBoundingClientRect(), next = row.children[2].getBoundingClientRect();
          return [...row.children[1].children].map(x => x.getBoundingClientRect())
            .filter(x => x.left < row.children[0].getBoundingClientRect().right - 1 || x.right > next.left + 1);
          }).length""")  # fmt: skip
    assert outside == 0


def test_the_heat_map_names_classes_and_empty_times(page):
    driver = page(stream="stopped", range="1h")
    heat = driver.find_element(By.ID, "heat")
    driver.execute_script("arguments[0].scrollIntoView({block: 'center'})", heat)
    ActionChains(driver).move_to_element_with_offset(heat, 200, -20).perform()
    wait_for(lambda: "no samples" in text(driver, "heat-text"))
    driver.execute_script("arguments[0].focus()", heat)
    ActionChains(driver).move_to_element(driver.find_element(By.ID, "heat-title")).perform()
    heat.send_keys(Keys.ARROW_LEFT)
    wait_for(lambda: "its source share" in text(driver, "heat-text"))
    ink = driver.execute_script(
        """const c = document.getElementById('heat'), w = Math.round(c.width * 0.17);
        const d = c.getContext('2d').getImageData(0, 0, w, c.height).data;
        let n = 0; for (let i = 3; i < d.length; i += 4) if (d[i] > 128) n++; return n;""")  # fmt: skip
    assert ink > 100  # the names


def test_the_time_zone_is_shown(page):
    driver = page()
    assert text(driver, "zone").startswith("Times: ")
    driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": "Asia/Kolkata"})
    assert text(page(), "zone") == "Times: Asia/Calcutta (UTC+5:30)"
    driver.execute_cdp_cmd("Emulation.setTimezoneOverride", {"timezoneId": ""})


def test_messages_are_held_back_from_the_page(page, server):
    driver = page(stream="watched")
    driver.find_element(By.CSS_SELECTOR, "details summary").click()
    driver.find_element(By.ID, "silence-by").send_keys("Cy")
    driver.find_element(By.CSS_SELECTOR, "#silence button").click()
    wait_for(lambda: "held back until" in text(driver, "silence-text") and "(Cy)" in text(driver, "silence-text"))
    driver.find_element(By.ID, "unsilence").click()
    wait_for(lambda: text(driver, "silence-text") == "")


def test_the_page_says_whether_it_corrects(page):
    driver = page()
    message = "Not correcting for label shift: drifted. Correcting: 5 of 6 streams."
    wait_for(lambda: text(driver, "correcting") == message)
    assert "Not label shift: The data differ by more than their class prior" in text(driver, "open-alarms")
    driver = page(stream="watched")
    assert text(driver, "acts").startswith("Correcting: 100 %. Whether the change is label shift was not tested")
    driver = page(stream="drifted")
    assert text(driver, "acts").startswith("Not correcting for label shift: 0 % is applied. The data differ by more")
    assert text(driver, "alarm-text").startswith("Not label shift since sample 500")
    assert not driver.find_element(By.ID, "next-label").is_displayed()
    driver.find_element(By.ID, "by").send_keys("Dee")
    driver.find_element(By.CSS_SELECTOR, "#acknowledge button").click()
    wait_for(lambda: not driver.find_element(By.ID, "alarm").is_displayed())
    wait_for(lambda: "acknowledged by Dee" in text(driver, "alarms"))
    assert text(driver, "acts").startswith("Not correcting")  # it lasts until most of the correction is applied again


AXE = """const done = arguments[arguments.length - 1];
const names = (v) => v.id + ': ' + v.nodes.map(n => n.target).join(' ');
axe.run(document, {resultTypes: ['violations']}).then(found => done(found.violations.map(names)));"""


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("size", [(1280, 1000), (390, 844)])
@pytest.mark.parametrize("stream", [None, "watched", "stopped", "quiet", "drifted"])
def test_axe_finds_nothing(page, theme, size, stream):
    npm = shutil.which("npm")
    where = subprocess.run([npm, "root", "-g"], capture_output=True, text=True, check=True).stdout if npm else ""
    source = Path(where.strip()) / "axe-core" / "axe.min.js"
    if not source.exists():
        pytest.skip("needs `npm install -g axe-core`")
    driver = page()
    metrics = {"width": size[0], "height": size[1], "deviceScaleFactor": 1, "mobile": size[0] < 800}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    driver.execute_script("localStorage.setItem('reprior-theme', arguments[0])", theme)
    driver = page(**({"stream": stream} if stream else {}))
    time.sleep(0.5)
    assert driver.execute_script("return document.documentElement.scrollWidth <= innerWidth")  # nothing sticks out
    driver.execute_script(source.read_text())
    violations = driver.execute_async_script(AXE)
    driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    driver.execute_script("localStorage.removeItem('reprior-theme')")
    assert violations == []


def test_a_new_model_version_is_shown_while_the_page_is_open(tmp_path):
    import httpx

    with Background(Settings(tmp_path / "s.db")) as running, Client(running.url) as client, browser() as driver:
        client.put("s", [1, 1])
        client.send("s", [[0.6, 0.4]] * 50)
        driver.get(f"{running.url}/#stream=s&range=5m")
        wait_for(lambda: facts_of(driver).get("model version") == "1", 30)
        httpx.post(f"{running.url}/streams/s/versions", json={"source": [3, 1]}).raise_for_status()
        wait_for(lambda: facts_of(driver).get("model version") == "2", 30)
        assert facts_of(driver)["samples"] == "0"
        client.send("s", [[0.6, 0.4]] * 7)
        wait_for(lambda: facts_of(driver).get("samples") == "7", 30)
        assert faults(driver) == []


def facts_of(driver) -> dict[str, str]:
    """Return what stands beside the name of the stream."""
    script = "return [...document.querySelectorAll('#facts > div')].map(d => [...d.children].map(x => x.textContent))"
    return dict(driver.execute_script(script))
