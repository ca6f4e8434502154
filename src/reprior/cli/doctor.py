"""`reprior doctor`: what is installed, and whether the fast paths are in use; `reprior completion`, for shells."""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import click
import numpy as np

from reprior._kernels import NATIVE, SENTENCE
from reprior.adapters.spark.session import HOW_JAVA, JAVA
from reprior.cli._shell import Answer, print_answer

EXTRAS = {  # extra: (module, what it is for)
    "plot": ("matplotlib", "the picture of `demo`"),
    "progress": ("rich", "progress bars"),
    "files": ("pyarrow", "Parquet, Arrow and CSV files"),
    "stream": ("msgpack", "msgpack streams"),
    "serve": ("starlette", "`reprior serve`"),
    "sklearn": ("sklearn", "scikit-learn estimators"),
    "river": ("river", "River pipelines"),
    "quapy": ("quapy", "QuaPy quantifiers"),
    "spark": ("pyspark", "`reprior spark`"),
    "torch": ("torch", "PyTorch tensors"),
}
DISTRIBUTIONS = {"sklearn": "scikit-learn"}
THREADS = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


@click.command("doctor")
@print_answer
def doctor() -> Answer:
    """Show versions, compiled kernels and installed extras.

    \b
    Example:  reprior doctor
    """
    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    limits = [f"{os.environ[name]} ({name})" for name in THREADS if name in os.environ]
    value: dict[str, Any] = {
        "versions": {name: _version(name) for name in ("reprior", "numpy", "scipy", "click")}
        | {"python": platform.python_version(), "platform": platform.platform()},
        "kernels": "native" if NATIVE else "reference",
        "blas": {"name": blas["name"], "version": blas["version"],
                 "threads": limits[0] if limits else f"{os.cpu_count()} (all cores)"},
        "extras": {extra: _version(module) for extra, (module, _) in EXTRAS.items()},
    }  # fmt: skip
    if value["extras"]["spark"]:
        from reprior.adapters.spark.session import java_version, workers_python

        value["spark"] = {"java": java_version(), "workers' python": workers_python()}
    return Answer(value, "\n".join(_lines(value)))


def _version(module: str) -> str | None:
    """Return the installed version of a package, None if there is none."""
    try:
        return metadata.version(DISTRIBUTIONS.get(module, module))
    except metadata.PackageNotFoundError:
        return None


def _lines(value: dict[str, Any]) -> list[str]:
    """Return versions, kernels and extras as lines for people."""
    lines = [f"{name:<10} {version}" for name, version in value["versions"].items()]
    lines.append(f"kernels    {'native (compiled)' if NATIVE else SENTENCE}")
    lines += ["blas       {name} {version}, threads: {threads}".format(**value["blas"]), "extras"]
    for extra, (module, purpose) in EXTRAS.items():
        extra_state = value["extras"][extra]
        package = "torch" if extra == "torch" else f"'.[{extra}]'"  # torch has as many wheels as devices
        state = f"{module} {extra_state}" if extra_state else f"missing: pip install {package} for {purpose}"
        lines.append(f"  {extra:<8} {state}")
        if extra == "spark" and extra_state:
            lines += [f"           {line}" for line in _spark(value["spark"])]
    if not all(value["extras"].values()):
        lines.append("Run these pip commands in a clone of the repository.")
    return lines


def _spark(state: dict[str, Any]) -> list[str]:
    """Return what Spark needs besides pyspark, and how to get what is missing."""
    java, theirs, ours = state["java"], state["workers' python"], platform.python_version()
    fine = java is not None and java >= JAVA
    lines = [f"Java {java}" if fine else f"Java {java or 'is missing'}. {HOW_JAVA}."]
    if theirs is None:
        return [*lines, "workers: the Python of PYSPARK_PYTHON does not start. Set it to one that has reprior."]
    if theirs["python"] != ours.rsplit(".", 1)[0]:
        lines.append(f"workers: Python {theirs['python']}, but this is {ours}. Set PYSPARK_PYTHON to the same version.")
    elif theirs["reprior"] is None:
        lines.append("workers: their Python has no reprior. Install it there, or set PYSPARK_PYTHON.")
    else:
        lines.append(f"workers: Python {theirs['python']} with reprior {theirs['reprior']}")
    return lines


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@print_answer
def completion(shell: str) -> Answer:
    """Print the script for completion in SHELL.

    \b
    Example:  reprior completion bash >> ~/.bashrc
    """
    from click.shell_completion import BashComplete, FishComplete, ShellComplete, ZshComplete

    from reprior.cli import cli

    kinds: dict[str, type[ShellComplete]] = {"bash": BashComplete, "zsh": ZshComplete, "fish": FishComplete}
    script = kinds[shell](cli, {}, "reprior", "_REPRIOR_COMPLETE").source()
    return Answer({"shell": shell, "script": script}, script)
