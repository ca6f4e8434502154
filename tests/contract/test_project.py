"""What holds for the project as a whole: names, references, pages."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import subprocess
import sys
import tomllib
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

import reprior
from reprior.model.settings import Settings

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "benchmarks").glob("*.md")]


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)


def test_linting_is_pinned_and_no_part_of_the_tests() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert all("==" in wanted for wanted in extras["lint"])
    assert not [wanted for wanted in extras["test"] if re.match("mypy|ruff|import-linter", wanted)]
    ci = (ROOT / ".ci" / "run").read_text()
    assert all(command in ci for command in ("[test,lint]", "ruff check", "mypy", "lint-imports", "REPRIOR_PURE=1"))


def test_public_names_are_sorted_and_there() -> None:
    assert reprior.__all__ == sorted(reprior.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert all(hasattr(reprior, name) for name in reprior.__all__)


def test_every_reference_exists() -> None:
    names = set(re.findall(r"@\w+\{(\w+),", (ROOT / "docs" / "references.bib").read_text()))
    for path in SOURCES:
        for key in re.findall(r"\[([a-z]+\d{4})\]", path.read_text()):
            assert key in names, f"{path.name} cites [{key}]"


def test_nothing_in_the_library_prints() -> None:
    for path in SOURCES:
        if "cli" not in path.parts:
            calls = [n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call)]
            assert not any(isinstance(c.func, ast.Name) and c.func.id == "print" for c in calls), path


def test_import_brings_in_no_heavy_package() -> None:
    code = "import sys, reprior; reprior.estimate; print(*sorted({m.split('.')[0] for m in sys.modules}))"
    loaded = set(run("-c", code).stdout.split())
    assert "numpy" in loaded
    heavy = {"sklearn", "pandas", "pyarrow", "matplotlib", "rich", "torch", "click"}
    assert not loaded & heavy
    names = "('scipy.optimize', 'scipy.special')"
    code = f"import sys, reprior; reprior.Stream; print([m for m in {names} if m in sys.modules])"
    assert run("-c", code).stdout.strip() == "[]"


def test_every_file_and_every_public_name_says_what_it_is_for() -> None:
    for path in SOURCES:
        assert ast.get_docstring(ast.parse(path.read_text())), path
    for name in reprior.__all__:
        if not name.isupper():  # a constant's meaning stands beside it
            assert (getattr(reprior, name).__doc__ or "").strip(), name


def documented(value: Any) -> set[str]:
    """Return what the Parameters list of a docstring names."""
    text = inspect.getdoc(value) or ""
    listed = re.search(r"^Parameters\n-+\n(.*?)(?=\n\n|\Z)", text, re.M | re.S)
    lines = [line.split(" : ")[0] for line in listed[1].splitlines() if line[0] != " "] if listed else []
    return {name.lstrip("*") for line in lines for name in line.split(", ")}


def public_values() -> list[tuple[str, Any]]:
    """Return what the package and its public modules offer, with the names that users call it by."""
    results = []
    for name in reprior.__all__:
        value = getattr(reprior, name)
        if inspect.ismodule(value):
            own = [(n, x) for n, x in vars(value).items() if getattr(x, "__module__", "") == value.__name__]
            results += [(f"{name}.{n}", x) for n, x in own if callable(x) and n[0] != "_"]
        elif callable(value):
            results.append((name, value))
    return results


@pytest.mark.parametrize(("name", "value"), public_values())
def test_every_parameter_is_documented(name: str, value: Any) -> None:
    has_none = {"Blocks", "InputError", "Status"}  # nobody calls them: a protocol, an error that we raise, an enum
    wanted = set(inspect.signature(value).parameters) if name not in has_none else set()
    assert documented(value), name
    assert wanted <= documented(value), f"{name} does not say what these are: {wanted - documented(value)}"


@pytest.mark.parametrize(("name", "value"), public_values())
def test_every_public_name_has_an_example_that_runs(name: str, value: Any) -> None:
    assert "Examples\n--------\n>>> " in (inspect.getdoc(value) or ""), name  # and all doctests are run


def test_every_link_and_every_named_file_in_the_documents_exists() -> None:
    for page in PAGES:
        text = page.read_text()
        for link, anchor in re.findall(r"\]\(([^)#:]+)(?:#([^)]*))?\)", text):
            assert (page.parent / link).exists(), f"{page.name} links {link}"
            titles = re.findall(r"^#+ (.*)$", (page.parent / link).read_text(), re.M) if anchor else []
            anchors = ["", *(re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles)]
            assert anchor in anchors, f"{page.name} links {link}#{anchor}"
        for path in re.findall(r"`((?:benchmarks|experiments|docs|tests|src)/[\w./-]+\.\w+)`", text):
            assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_no_page_installs_from_an_index_that_has_no_such_package() -> None:
    for page in [*PAGES, *SOURCES]:
        assert not re.search(r"pip install '?\"?reprior", page.read_text()), page


def test_the_headline_tables_are_those_of_the_stored_results() -> None:
    code = "import sys; sys.path.insert(0, 'benchmarks'); import headline; sys.stdout.reconfigure(encoding='utf-8'); "
    done = run("-c", code + "print(headline.block())")
    assert done.stdout.strip() in (ROOT / "README.md").read_text(encoding="utf-8"), "run python benchmarks/headline.py"


DRIFT = {  # rows of the table in docs/limits.md, and of the stored results
    "correction in full, each batch": "corrected in full",
    "`pipe.estimate`, each batch": "default",
    "`pipe.watch()`": "watch",
    "`pipe.stream()`": "stream",
    "`pipe.stream()`, 5 % late labels": "stream, late labels",
    "`pipe.watch()`, 20 labels per batch": "20 labels, watch",
    "the batch's true prior": "true prior",
    "QuaPy, EMQ with BCTS": "QuaPy, EMQ-BCTS",
}


def table_rows(text: str) -> dict[str, list[str]]:
    """Return the cells of each row of the tables of a page by the first cell; of rows alike, the first."""
    rows: dict[str, list[str]] = {}
    for line in re.findall(r"^\|(.*)\|$", text, re.M):
        name, *cells = [cell.strip() for cell in line.split("|")]
        rows.setdefault(name, cells)
    return rows


def test_the_table_of_real_drift_is_that_of_the_stored_results() -> None:
    shown = table_rows((ROOT / "docs" / "limits.md").read_text(encoding="utf-8"))
    stored = table_rows((ROOT / "benchmarks" / "results" / "real_drift.md").read_text(encoding="utf-8"))
    for name, cells in ((name, stored[row]) for name, row in DRIFT.items()):
        losses = [f"{float(cells[i].split()[0]):+.3f}".replace("-", "−") for i in (0, 6)]
        harmed = [f"{int(float(cells[i].rstrip('%')) + 0.5)} %" for i in (2, 8)]
        assert shown[name] == [losses[0], harmed[0], losses[1], harmed[1]], name


def test_the_constants_of_the_default_are_those_of_the_code() -> None:
    shown = {}
    for name, cells in table_rows((ROOT / "docs" / "how-the-default-works.md").read_text(encoding="utf-8")).items():
        pairs = [name, *cells]
        shown |= dict(zip(pairs[::2], pairs[1::2], strict=False))
    for name, value in asdict(Settings()).items():
        numbers = value if isinstance(value, tuple) else (value,)
        assert shown[f"`{name}`"] == ", ".join(f"{x:.10g}" for x in numbers), name


def test_the_citation_has_the_version_and_a_year() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {version}\n" in text
    assert re.search(r"^date-released: \d{4}-\d\d-\d\d$", text, re.M)


def test_every_page_is_linked_from_the_index() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "README.md" or f"({page.name})" in index, page.name


def test_code_of_the_documentation_fits_a_page() -> None:
    for page in (ROOT / "docs").glob("*.md"):
        for block in re.findall(r"^```.*?\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S):
            wide = [line for line in block.splitlines() if len(line) > 78]
            assert not wide, f"{page.name}: {wide[0]}"


def test_pages_are_short() -> None:
    def words(text: str) -> int:
        return len(re.sub(r"```.*?```", "", text, flags=re.S).split())

    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert words(re.sub(r"<!-- headline -->.*<!-- end -->", "", readme, flags=re.S)) <= 700
    pages = list((ROOT / "docs").glob("*.md"))
    assert sum(words(page.read_text(encoding="utf-8")) for page in pages) <= 20_000


def test_every_benchmark_is_listed() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text()
    for path in (ROOT / "benchmarks").glob("[!_]*.py"):
        assert f"benchmarks/{path.name}" in text, path.name


@pytest.mark.parametrize("path", sorted([*(ROOT / "benchmarks").glob("*.py"), *(ROOT / "experiments").rglob("*.py")]),
                         ids=lambda path: path.relative_to(ROOT).as_posix())  # fmt: skip
def test_scripts_import_what_the_package_has(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "reprior":
            assert importlib.util.find_spec(str(node.module)) is not None, f"{path.name} imports {node.module}"
            module = pytest.importorskip(str(node.module), exc_type=ImportError)  # an adapter may want its own package
            for name in node.names:
                submodule = f"{node.module}.{name.name}"
                exists = hasattr(module, name.name) or importlib.util.find_spec(submodule) is not None
                assert exists, f"{path.name} imports {name.name} from {node.module}"


def test_a_new_method_is_one_line_in_a_registry_and_the_command_line_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from reprior.cli import cli

    monkeypatch.setitem(reprior.METHODS, "cautious", reprior.mlls)
    monkeypatch.setitem(reprior.ONLINE, "online-cautious", reprior.ONLINE["fth"])
    for module in ("_inputs", "estimate", "stream"):  # imported anew, after the registry has changed
        monkeypatch.delitem(sys.modules, f"reprior.cli.{module}", raising=False)
    assert "cautious" in CliRunner().invoke(cli, ["estimate", "--help"]).output
    assert "online-cautious" in CliRunner().invoke(cli, ["stream", "--help"]).output


def test_the_package_says_it_is_typed() -> None:
    spec = importlib.util.find_spec("reprior")
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").exists()


def test_the_package_runs_as_a_module():
    done = subprocess.run([sys.executable, "-m", "reprior", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("python -m reprior, version") or done.stdout.startswith("reprior, version")
