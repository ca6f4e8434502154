"""What holds for the project as a whole: layers, types, style, names, references."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import fmean

import reprior

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, check=False)


def test_lower_layers_never_import_higher_ones() -> None:
    done = run("-c", "from importlinter.cli import lint_imports_command; lint_imports_command()")
    assert done.returncode == 0, done.stdout


def test_types_are_sound() -> None:
    done = run("-m", "mypy")
    assert done.returncode == 0, done.stdout


def test_style_is_one() -> None:
    done = run("-m", "ruff", "check", "--output-format", "concise", ".")
    assert done.returncode == 0, done.stdout


def test_public_names_are_sorted_and_there() -> None:
    assert reprior.__all__ == sorted(reprior.__all__, key=lambda n: (not n.isupper(), not n[0].isupper(), n))
    assert all(hasattr(reprior, name) for name in reprior.__all__)


def test_every_reference_exists() -> None:
    known = set(re.findall(r"@\w+\{(\w+),", (ROOT / "docs" / "references.bib").read_text()))
    for path in SOURCES:
        for key in re.findall(r"\[([a-z]+\d{4})\]", path.read_text()):
            assert key in known, f"{path.name} cites [{key}]"


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


def test_the_table_in_the_readme_is_the_one_that_was_measured() -> None:
    data = json.loads((ROOT / "benchmarks" / "results" / "quality.json").read_text())["data"]
    ordinary = ["shuffled .02", "shuffled .1", "Dirichlet 1", "Dirichlet 3"]
    lines = (ROOT / "README.md").read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("| mean KL"))
    columns = [cell.strip() for cell in lines[start].split("|")[2:-1]]
    rows = [line for line in lines[start + 2 : start + 20] if line.startswith("|")]
    assert len(rows) == 7
    for line in rows:
        name, *cells = [cell.strip() for cell in line.split("|")[1:-1]]
        method = "fmapls paper, c=2N" if "printed" in name else name.strip("`")
        for column, cell in zip(columns, cells, strict=True):
            shifts = ordinary if column == "ordinary shifts" else [column]
            kls = [fmean(sets["cells"][shift][method]["kl"]) for sets in data.values() for shift in shifts]
            assert f"{fmean(kls):.3f}" == cell, (name, column)


def test_every_link_and_every_named_file_in_the_documents_exists() -> None:
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        text = page.read_text()
        for link in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (page.parent / link).exists(), f"{page.name} links {link}"
        for path in re.findall(r"`((?:benchmarks|experiments|docs|tests|src)/[\w./-]+\.\w+)`", text):
            assert (ROOT / path).exists(), f"{page.name} names {path}"


def test_the_package_says_it_is_typed() -> None:
    spec = importlib.util.find_spec("reprior")
    assert spec is not None
    assert spec.origin is not None
    assert (Path(spec.origin).parent / "py.typed").exists()
