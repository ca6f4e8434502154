"""Add to the site what is not a Markdown page of this folder.

These are the reference (from docstrings and `--help`), the bibliography, the notebooks, pages of the repository, dark
variants of pictures, and links. Pages link files of the repository by path, so that the links work there too. On the
site such a link leads to the page or to the reference. A link to a file that is not part of the site becomes plain
text. A link to a file that does not exist is an error.
"""

from __future__ import annotations

import base64
import inspect
import json
import os
import posixpath
import re
import subprocess
from pathlib import Path
from typing import Any

import click
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

import reprior
from reprior.cli import COMMANDS, command_of

ROOT = Path(__file__).parents[1]
REFERENCE = {  # pages of the reference: title, and public names in the order shown
    "pipeline": ("Pipeline", ("pipeline", "Pipeline", "Watch", "load", "select", "summarize", "calibrate")),
    "estimate": ("Estimates and groups", ("PriorEstimate", "Interval", "Status", "groups", "correct", "query")),
    "methods": ("Batch methods", ("ebls", "mlls", "mapls", "fmapls", "bbse", "rlls", "estimate", "Source")),
    "streams": ("Streams and alarms", ("Stream", "StreamTable", "Alarm", "AlarmTable")),
    "checks": ("Diagnosis and metrics", ("diagnose", "Diagnosis", "compare", "interval", "metrics", "bounds")),
    "data": ("Data", ("simulate", "Blocks", "ArrayBlocks", "TopKBlocks", "InputError")),
}
ELSEWHERE_PUBLIC = {  # public names outside `rp`, and the page that shows them
    "data": ("datasets.load", "datasets.Dataset"),
    "adapters": (
        "adapters.sklearn.LabelShiftClassifier", "adapters.quapy.LabelShiftQuantifier",
        "adapters.river.PriorCorrected", "adapters.spark.SparkBlocks", "client.Client",
    ),
}  # fmt: skip
TITLES = {**{page: title for page, (title, _) in REFERENCE.items()}, "adapters": "Adapters and client"}
WIDTH = 78  # columns of code on the site
QUIET = ("project/",)  # pages that the search does not find


def public_names() -> dict[str, list[tuple[str, str]]]:
    """Return for each page of the reference its entries: the path to import, and the name to show."""
    grouped = {name for _, names in REFERENCE.values() for name in names}
    if missing := [name for name in reprior.__all__ if not name.isupper() and name not in grouped]:
        raise PluginError(f"docs/hooks.py: add {', '.join(missing)} to REFERENCE")
    entries: dict[str, list[tuple[str, str]]] = {page: [] for page in TITLES}
    for page, (_, names) in REFERENCE.items():
        for name in (name for name in names if name in reprior.__all__):
            value = getattr(reprior, name)
            if inspect.ismodule(value):
                own = [n for n, x in vars(value).items() if getattr(x, "__module__", "") == value.__name__]
                entries[page] += [(f"{value.__name__}.{n}", f"rp.{name}.{n}") for n in own if n[0] != "_"]
            else:
                entries[page].append((f"reprior.{name}", f"rp.{name}"))
    for page, paths in ELSEWHERE_PUBLIC.items():
        entries[page] += [(f"reprior.{path}", f"reprior.{path}") for path in paths]
    return entries


def command_line() -> str:
    """Return a page with the help of every command."""
    text = ["# Command line\n"]
    for name in COMMANDS:
        command = command_of(name)
        under = {f"{name} {part}": each for part, each in getattr(command, "commands", {}).items()}
        for title, each in {name: command, **under}.items():
            context = click.Context(each, info_name=f"reprior {title}", terminal_width=WIDTH, max_content_width=WIDTH)
            text.append(f"## reprior {title}\n\n```\n{each.get_help(context)}\n```\n")
    return "\n".join(text)


def references() -> dict[str, dict[str, str]]:
    """Return the entries of references.bib by their keys."""
    text = (ROOT / "docs" / "references.bib").read_text(encoding="utf-8")
    results = {}
    for key, body in re.findall(r"@\w+\{(\w+),(.*?)\n\}", text, re.S):
        fields = re.findall(r"(\w+)\s*=\s*\{((?:[^{}]|\{[^{}]*\})*)\}", body)
        results[key] = {name: plain(value) for name, value in fields}
    return results


def plain(text: str) -> str:
    """Return BibTeX text with its accents as letters and without braces."""
    accents = {r"{\'i}": "í", r"{\'u}": "ú", r"{\'e}": "é", r"{\`e}": "è", "--": "–"}
    for code, letter in accents.items():
        text = text.replace(code, letter)
    return re.sub(r"[{}]", "", text)


def bibliography() -> str:
    """Return the page that citations link to."""
    lines = ["# Bibliography\n"]
    for key, entry in sorted(references().items()):
        where = entry.get("journal") or entry.get("booktitle") or entry.get("institution")
        place = f" *{where}*" if where else ""
        place += f" {entry['volume']}" if "volume" in entry else ""
        place += f":{entry['pages']}" if "pages" in entry else ""
        people = "; ".join(entry["author"].split(" and "))
        lines.append(f"<a id=\"{key}\"></a>**[{key}]** {people} ({entry['year']}). {entry['title']}.{place}.\n")
    return "\n".join(lines).replace("..", ".")


def notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return an executed notebook as Markdown, and its pictures by name."""
    text, pictures = [], {}
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text.append(source)
            continue
        text.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                name = f"{path.stem}-{len(pictures)}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                text.append(f"![Plot of the cell above]({name})")
            elif printed := "".join(output.get("text", data.get("text/plain", ""))).rstrip():
                text.append(f"```\n{printed}\n```")
    return "\n\n".join(text), pictures


def pages() -> dict[str, str]:
    """Return the pages of the repository outside docs/, and their places on the site."""
    shown = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "benchmarks/README.md",
        "src/reprior/datasets/ATTRIBUTION.md",
        *(f"benchmarks/results/{path.name}" for path in sorted((ROOT / "benchmarks" / "results").glob("*.md"))),
        *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "experiments").glob("*/README.md"))),
        "experiments/hu2025/findings.md",
        *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "experiments").glob("*/results/*.md"))),
    ]
    return {name: f"project/{name}" for name in shown}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what is generated to the files of the site."""

    def add(place: str, **content: Any) -> None:
        files.append(File.generated(config, place, **content))

    for page, entries in public_names().items():
        text = [f"# {TITLES[page]}\n"]
        for path, name in entries:
            text.append(f"::: {path}\n    options:\n      heading: \"{name}\"\n      toc_label: \"{name}\"\n")
        add(f"reference/{page}.md", content="\n".join(text))
    add("reference/command-line.md", content=command_line())
    add("bibliography.md", content=bibliography())
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        text, pictures = notebook(path)
        add(f"notebooks/{path.stem}.md", content=text)
        for name, data in pictures.items():
            add(f"notebooks/{name}", content=data)
    for source, place in pages().items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if not re.search(r"^# ", text, re.M):
            text = f"# {Path(source).stem.replace('_', ' ')}\n\n{text}"
        add(place, content=text)
    for path in [*(ROOT / "experiments").glob("**/*.png"), *(ROOT / "docs" / "img").glob("reliability-*.png")]:
        add(f"project/{path.relative_to(ROOT).as_posix()}", abs_src_path=str(path))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the navigation, and the repository's address."""
    own = pages()
    experiments = [own[name] for name in own if re.fullmatch(r"experiments/\w+/README\.md", name)]
    project = [own[name] for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    listed = re.findall(r"[\w-]+\.md", str(config.nav))
    written = [path.name for path in sorted((ROOT / "docs").glob("*.md")) if not path.name.startswith(QUIET)]
    how_to = next(part["How to"] for part in config.nav if "How to" in part)
    how_to += [name for name in written if name not in listed]  # pages just written
    config.nav = [
        *config.nav,
        {"Reference": [
            *({title: f"reference/{page}.md"} for page, title in TITLES.items()),
            {"Command line": "reference/command-line.md"}, "formats.md", "bibliography.md",
        ]},
        {"Project": [*project, own["benchmarks/README.md"], {"Experiments": experiments},
                     own["src/reprior/datasets/ATTRIBUTION.md"]]},
    ]  # fmt: skip
    config.repo_url = os.environ.get("REPRIOR_REPOSITORY") or origin()
    return config


def origin() -> str | None:
    """Return the web address of the clone's remote repository, if it has one."""
    command = ["git", "remote", "get-url", "origin"]
    asked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    address = re.sub(r"^git@([^:]+):", r"https://\1/", asked.stdout.strip()).removesuffix(".git")
    return address if address.startswith("https://") else None


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Change links to files of the repository into links of the site, and add dark pictures."""
    uri = page.file.src_uri
    if uri.startswith(QUIET):
        page.meta["search"] = {"exclude": True}
    elif uri.startswith("how-to-"):
        page.meta["search"] = {"boost": 4}
    elif uri.startswith("reference/"):
        page.meta["search"] = {"boost": 0.5}
    here = uri.removeprefix("project/") if uri.startswith("project/") else f"docs/{uri}"
    if uri.startswith(("reference/", "bibliography")):
        return markdown

    def changed(match: re.Match[str]) -> str:
        mark, text, link = match.groups()
        path, _, anchor = link.partition("#")
        if not path or re.match(r"[a-z]+:", link):
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(here), path))
        place = where(target, files)
        if place is None and not (ROOT / target).exists():
            raise PluginError(f"{here} links {path}, which does not exist")
        if place is None:
            return text
        place, _, made = place.partition("#")
        anchor = made or anchor
        back = posixpath.relpath(place, posixpath.dirname(uri) or ".")
        dark = back.replace("-light.png", "-dark.png")
        if mark and dark != back:
            return f"![{text}]({back}#only-light)![{text}]({dark}#only-dark)"
        return f"{mark}[{text}]({back}{'#' + anchor if anchor else ''})"

    return re.sub(r"(!?)\[([^\[\]]*)\]\(([^)\s]+)\)", changed, markdown)


def on_page_content(html: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link citations like [hu2025] to the bibliography."""
    uri = page.file.src_uri
    if uri.startswith(("bibliography", "project/")):
        return html
    reference = references()
    back = posixpath.relpath("bibliography.html", posixpath.dirname(uri) or ".")

    def linked(match: re.Match[str]) -> str:
        keys = match[1].split(", ")
        if not all(key in reference for key in keys):
            return match[0]
        return "[" + ", ".join(f'<a href="{back}#{key}">{key}</a>' for key in keys) + "]"

    return re.sub(r"\[([a-z]+\d{4}(?:, [a-z]+\d{4})*)\]", linked, html)


def where(target: str, files: Files) -> str | None:
    """Return the place of a file of the repository on the site, if it has one."""
    if target.startswith("docs/") and target.endswith(".ipynb"):
        target = target.replace(".ipynb", ".md")
    if target.startswith("docs/") and files.get_file_from_path(target.removeprefix("docs/")):
        return target.removeprefix("docs/")
    if files.get_file_from_path(f"project/{target}"):
        return f"project/{target}"
    if target.startswith("src/reprior/") and target.endswith(".py"):
        module = target.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for page, entries in public_names().items():
            for path, _ in entries:
                value = inspect.getmodule(getattr(reprior, path.split(".")[-1], None))
                if path.startswith(f"{module}.") or (value is not None and value.__name__ == module):
                    return f"reference/{page}.md#{path}"
    return None
