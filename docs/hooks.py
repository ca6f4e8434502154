"""What the site has beside the pages of this folder: the reference, results, experiments, and links that lead to them.

Pages link files of the repository by their path, so that links work there too. Here a link to a page of the repository
leads to that page of the site, and a link to a source file to what the reference says of it. A link to a file that is
not part of the site becomes plain text; one to a file that does not exist is an error.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
ROOMS = {  # pages of the reference, and the rooms whose public names they hold
    "pipelines": ("The pipeline", ("pipelines",)),
    "batch": ("Batch methods, groups", ("batch", "model")),
    "online": ("Streams and alarms", ("online",)),
    "assess": ("Estimates, diagnosis, metrics", ("estimates", "assess")),
    "rows": ("Rows and values", ("rows", "_types", "_check")),
    "simulate": ("Simulated shifts, shipped outputs", ("simulate", "datasets")),
    "adapters": ("Adapters and client", ("adapters", "client")),
}
ADAPTERS = ("sklearn.LabelShiftClassifier", "quapy.LabelShiftQuantifier", "river.PriorCorrected", "spark.SparkBlocks")


def reference() -> dict[str, dict[str, list[str]]]:
    """Return for each page of the reference its public modules, with the names that each holds."""
    import reprior
    from reprior import datasets

    found: dict[str, dict[str, list[str]]] = {page: {} for page in ROOMS}

    def add(module: str, name: str) -> None:
        room = module.split(".")[1]
        page = next(page for page, (_, rooms) in ROOMS.items() if room in rooms)
        found[page].setdefault(module, []).append(name)

    for name in reprior.__all__:
        value = getattr(reprior, name)
        if inspect.ismodule(value):
            own = [n for n, x in vars(value).items() if getattr(x, "__module__", "") == value.__name__ and n[0] != "_"]
            for each in own:
                add(value.__name__, each)
        elif getattr(value, "__module__", "").startswith("reprior."):
            add(value.__module__, value.__name__)
    for name in ("Dataset", "load"):
        add(datasets.__name__, name)
    for path in ADAPTERS:
        module, name = path.split(".")
        add(f"reprior.adapters.{module}", name)
    add("reprior.client", "Client")
    return found


def pages() -> dict[str, str]:
    """Return pages of the repository outside docs/, by the path that they have in both."""
    shown = [
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "SECURITY.md",
        "benchmarks/README.md",
        "src/reprior/datasets/ATTRIBUTION.md",
        *(f"benchmarks/results/{path.name}" for path in sorted((ROOT / "benchmarks" / "results").glob("*.md"))),
        *(path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "experiments").glob("*/README.md"))),
    ]
    return {path: f"project/{path}" for path in shown}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made, and the pictures of the experiments."""
    for page, modules in reference().items():
        text = [f"# {ROOMS[page][0]}\n"]
        for module, names in modules.items():
            text += [f"## `{module}`\n", *(f"::: {module}.{name}\n" for name in names)]
        files.append(File.generated(config, f"reference/{page}.md", content="\n".join(text)))
    for source, place in pages().items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if not re.search(r"^# ", text, re.M):
            text = f"# {Path(source).stem.replace('_', ' ')}\n\n{text}"
        files.append(File.generated(config, place, content=text))
    for path in sorted((ROOT / "experiments").glob("**/*.png")):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, f"project/{name}", abs_src_path=str(path)))
    files.append(File.generated(config, "project/docs/img/demo.png", abs_src_path=str(ROOT / "docs/img/demo.png")))
    return files


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the pages that are made into the navigation."""
    own = pages()
    results = [place for source, place in own.items() if source.startswith("benchmarks/results/")]
    experiments = [place for source, place in own.items() if source.startswith("experiments/")]
    project = [own[name] for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")]
    listed = re.findall(r"[\w-]+\.md", str(config.nav))
    more = [path.name for path in sorted((ROOT / "docs").glob("*.md")) if path.name not in listed]  # pages just written
    how_to = next(part["How to"] for part in config.nav if "How to" in part)
    how_to += more
    config.nav = [
        *config.nav,
        {"Reference": [{title: f"reference/{page}.md"} for page, (title, _) in ROOMS.items()]},
        {"Benchmarks": [own["benchmarks/README.md"], {"Experiments": experiments}, {"Results": results}]},
        {"Project": [*project, own["src/reprior/datasets/ATTRIBUTION.md"]]},
    ]
    return config


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository lead to where these are in the site."""
    uri = page.file.src_uri
    here = uri.removeprefix("project/") if uri.startswith("project/") else f"docs/{uri}"
    if uri.startswith("reference/"):
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
        return f"{mark}[{text}]({back}{'#' + anchor if anchor else ''})"

    return re.sub(r"(!?)\[([^\[\]]*)\]\(([^)\s]+)\)", changed, markdown)


def where(target: str, files: Files) -> str | None:
    """Return where a file of the repository is in the site, if it is there."""
    if target.startswith("docs/") and files.get_file_from_path(target.removeprefix("docs/")):
        return target.removeprefix("docs/")
    if files.get_file_from_path(f"project/{target}"):
        return f"project/{target}"
    if target.startswith("src/reprior/") and target.endswith(".py"):
        module = target.removeprefix("src/").removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        for page, modules in reference().items():
            if module in modules:
                return f"reference/{page}.md#{module}.{modules[module][0]}"
        page = next((page for page, (_, rooms) in ROOMS.items() if module.split(".")[1] in rooms), None)
        return f"reference/{page}.md" if page else None
    return None
