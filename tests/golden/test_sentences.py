"""Every sentence that the program can print is listed in sentences.txt, for people to review.

A change of a sentence changes the list: run with REPRIOR_GOLDEN=write to accept it. The list has the messages of errors
and warnings, notes, labels of tables and pages, and the help of the command line. `{…}` is what the program fills in.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
LIST = Path(__file__).parent / "sentences.txt"
PACKAGE = ROOT / "src" / "reprior"
BANNED = re.compile(  # words that no sentence needs
    r"\b(mend(ed|s)?|anew|dear|bears? out|borne out|those there are|all the same|by itself|has its say|come out"
    r"|at first sight|(rows?|outputs?|labels?) (say|tell|know)s?)\b",
    re.I,
)
OTHERS = ("verdict.py", "diagnose.py")  # their sentences are written with the evidence of label shift


def sentences(path: Path) -> list[str]:
    """Return texts of at least three words in a module that users may read; docstrings only of commands."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    result: dict[str, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and not is_command(node):
                skipped.add(id(first.value))
        if isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in ast.walk(node) if part is not node}
    for node in ast.walk(tree):
        if id(node) not in skipped and (text := shown(node)) and len(re.findall(r"[A-Za-z]{2,}", text)) >= 3:
            result.setdefault(text, node.lineno)
    return sorted(result, key=lambda text: result[text])


def is_command(node: ast.AST) -> bool:
    """Return whether the docstring of a function is the help of a command."""
    marks = [ast.unparse(mark) for mark in getattr(node, "decorator_list", [])]
    return any(re.match(r"(\w+\.)?(command|group)\b", mark) for mark in marks)


def shown(node: ast.AST) -> str:
    """Return the text of a literal on one line, "" if it has none or is markup."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        text = node.value
    elif isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "{…}" for part in node.values)
        text = "".join(str(part) for part in parts)
    else:
        return ""
    line = " ".join(text.replace("\b", "").split())
    return "" if re.match(r"[<:]|const |import |CREATE |SELECT |INSERT |UPDATE |DELETE |PRAGMA ", line) else line


def listed() -> str:
    """Return the whole list."""
    parts = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if texts := sentences(path):
            parts.append("\n".join([f"# {path.relative_to(PACKAGE).as_posix()}", *texts]))
    return "\n\n".join(parts) + "\n"


def test_the_list_of_sentences_is_up_to_date() -> None:
    if os.environ.get("REPRIOR_GOLDEN") == "write":
        LIST.write_text(listed(), encoding="utf-8")
    assert listed() == LIST.read_text(encoding="utf-8"), "run REPRIOR_GOLDEN=write pytest tests/golden, then review"


def test_no_sentence_has_a_word_that_readers_stumble_over() -> None:
    paths = [path for path in PACKAGE.rglob("*.py") if path.name not in OTHERS]
    assert [line for path in paths for line in sentences(path) if BANNED.search(line)] == []
