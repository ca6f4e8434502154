"""The documentation: one command builds it without a warning, no link in it is dead, and it holds every public name."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

import reprior

ROOT = Path(__file__).parents[2]
BUILDER = "mkdocs", "material", "mkdocstrings_handlers"


class Links(HTMLParser):
    """The anchors of a page and where its links lead."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("id", "name"):
                self.anchors.add(value)
            elif value and name in ("href", "src"):
                self.links.append((tag, value))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not all(map(importlib.util.find_spec, BUILDER)):
        pytest.skip("The site needs pip install -e '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "docs/build.py", "--site-dir", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder.resolve()


def test_no_link_is_dead_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {path: Links(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 60
    for path, page in pages.items():
        for tag, link in page.links:
            if re.match(r"[a-z]+:|//", link):
                assert tag == "a", f"{path.name} loads {link}"
                continue
            place, _, anchor = link.partition("#")
            target = (path.parent / unquote(place.partition("?")[0])).resolve() if place else path
            if target.is_dir():
                target /= "index.html"
            assert target.exists(), f"{path.relative_to(site)} links {link}"
            if anchor and target in pages and not anchor.startswith("__"):
                assert unquote(anchor) in pages[target].anchors, f"{path.relative_to(site)} links {link}"


def test_the_reference_holds_every_public_name(site: Path) -> None:
    anchors = {name for page in (site / "reference").glob("*.html") for name in Links(page.read_text("utf-8")).anchors}
    ends = {anchor.rpartition(".")[2] for anchor in anchors}
    modules = {anchor.rpartition(".")[0].rpartition(".")[2] for anchor in anchors}
    for name in reprior.__all__:
        assert name.isupper() or name in ends or name in modules, name


def test_every_equation_that_the_mathematics_names_leads_to_a_function() -> None:
    text = (ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8")
    for number in (2, 3, *range(7, 19), 24, 31, *range(33, 40)):
        assert re.search(rf"eq\. (\d+, )*{number}\b|Eq\. {number}\b", text), number
