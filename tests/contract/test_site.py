"""The documentation: one command builds it without a warning, no link in it is dead, and it holds every public name."""

from __future__ import annotations

import importlib.util
import inspect
import json
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
    for name in reprior.__all__:
        value = getattr(reprior, name)
        start = f"{value.__name__}." if inspect.ismodule(value) else f"reprior.{name}"
        assert name.isupper() or any(anchor.startswith(start) for anchor in anchors), name


def test_the_reference_shows_the_names_that_users_type(site: Path) -> None:
    text = (site / "reference" / "pipeline.html").read_text("utf-8")
    assert "rp.pipeline" in text
    assert "reprior.pipelines.fit" not in re.sub(r"<[^>]*>", "", text)
    assert "Usage: reprior estimate" in (site / "reference" / "command-line.html").read_text("utf-8")


def test_citations_lead_to_the_bibliography(site: Path) -> None:
    assert ("a", "bibliography.html#saerens2002") in Links((site / "which-method.html").read_text("utf-8")).links
    assert "saerens2002" in Links((site / "bibliography.html").read_text("utf-8")).anchors


@pytest.mark.parametrize("words", ["calibration", "class weights", "covariate shift"])
def test_the_search_finds_a_how_to_first(site: Path, words: str) -> None:
    lunr = pytest.importorskip("lunr").lunr
    docs = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    fields = [{"field_name": "title", "boost": 1000}, "text"]  # as the theme's search ranks them
    rows = [(doc, {"boost": doc.get("boost", 1)}) for doc in docs]
    index = lunr(ref="location", fields=fields, documents=rows)
    match = index.search(" ".join(f"+{word}" for word in words.split()))
    pages = list(dict.fromkeys(hit["ref"].partition("#")[0] for hit in match))[:3]
    assert any(page.startswith("how-to-") for page in pages), pages


def test_stored_results_are_not_in_the_search_index(site: Path) -> None:
    docs = json.loads((site / "search" / "search_index.json").read_text("utf-8"))["docs"]
    assert not [doc["location"] for doc in docs if doc["location"].startswith("project/")]


def test_notebooks_are_shown_with_their_pictures(site: Path) -> None:
    for name in ("scikit-learn", "stream"):
        assert (site / "notebooks" / f"{name}-1.png").stat().st_size > 5000


def test_every_equation_that_the_mathematics_names_leads_to_a_function() -> None:
    text = (ROOT / "docs" / "mathematics.md").read_text(encoding="utf-8")
    for number in (2, 3, *range(7, 19), 24, 31, *range(33, 40)):
        assert re.search(rf"eq\. (\d+, )*{number}\b|Eq\. {number}\b", text), number
