"""Commands run in this process, on the files of `cli_files`."""

import json
import sys

import pytest
from cli_files import write_all

from reprior.cli import _shell, cli
from reprior.cli._shell import run


@pytest.fixture(scope="session")
def files(tmp_path_factory):
    return write_all(tmp_path_factory.mktemp("files"))


@pytest.fixture
def call(capfdbinary, monkeypatch):
    """Run a command in this process; return (exit code, stdout, stderr), however long it takes on a busy machine."""
    monkeypatch.setattr(_shell, "FIRST", 3600.0)

    def call(*args):
        code = run(cli, [str(arg) for arg in args])
        sys.stdout.flush()
        out, err = capfdbinary.readouterr()
        return code, out.decode(errors="replace"), err.decode()

    return call


@pytest.fixture
def ask(call):
    """Run a command with --json; return its value."""

    def ask(*args):
        code, out, err = call(*args, "--json")
        assert (code, err) == (0, "")
        return json.loads(out)

    return ask


@pytest.fixture
def refused(call, tmp_path):
    """Run a command that is refused; return the one sentence it says. Nothing new may be left in the folder."""

    def refused(*args):
        before = sorted(tmp_path.rglob("*"))
        code, out, err = call(*args)
        assert (code, out, err.count("\n")) == (1, "", 1), err
        assert sorted(tmp_path.rglob("*")) == before
        return err

    return refused
