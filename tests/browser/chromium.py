"""Debian's chromium, driven by Selenium, without a network of its own."""

from __future__ import annotations

import shutil
import tempfile
from contextlib import contextmanager

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
         "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage",
         "--force-device-scale-factor=1")  # fmt: skip


def there() -> bool:
    return bool(shutil.which("chromium") and shutil.which("chromedriver"))


@contextmanager
def browser(width: int = 1280, height: int = 1000):
    """Yield a browser with a profile of its own."""
    from selenium import webdriver
    from selenium.webdriver.chrome.service import Service

    with tempfile.TemporaryDirectory(prefix="reprior-chromium-") as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = shutil.which("chromium")
        for flag in (*FLAGS, f"--user-data-dir={profile}", f"--window-size={width},{height}"):
            options.add_argument(flag)
        options.page_load_strategy = "eager"
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        driver.set_page_load_timeout(90)
        try:
            yield driver
        finally:
            driver.quit()


def faults(driver) -> list[str]:
    """Return what the page complained of: script errors, what the policy stopped, what was not found."""
    return [entry["message"] for entry in driver.get_log("browser") if entry["level"] in ("SEVERE", "ERROR")]
