"""A Spark session for the command line: that of spark-submit, or one on this machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from typing import Any

from reprior._check import fail

JAVA = 17
HOW_JAVA = f"Install Java {JAVA} or newer (Debian: apt-get install openjdk-{JAVA}-jre-headless)"
HOW_PYSPARK = "Spark needs pyspark 4.1 or newer. In the folder of reprior's source: pip install '.[spark]'"
STORE = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def java_version() -> int | None:
    """Return the main version of the Java that Spark would start, None if there is none."""
    home = os.environ.get("JAVA_HOME")
    path = os.path.join(home, "bin", "java") if home else shutil.which("java")
    try:
        said = subprocess.run([path or "java", "-version"], capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return None
    found = re.search(r'version "(?:1\.)?(\d+)', said.stderr)
    return int(found[1]) if found else None


def workers_python() -> dict[str, str | None] | None:
    """Return the versions of Python and of reprior that workers on this machine would have, None without Python."""
    ask = (
        "import importlib.metadata as m, json, sys\n"
        "try: v = m.version('reprior')\n"
        "except m.PackageNotFoundError: v = None\n"
        "print(json.dumps({'python': '%d.%d' % sys.version_info[:2], 'reprior': v}))"
    )
    python = os.environ.get("PYSPARK_PYTHON", sys.executable)
    try:
        said = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False, timeout=60)
        found: dict[str, str | None] = json.loads(said.stdout)
    except (OSError, ValueError):
        return None
    return found


def session(master: str | None = None, caller: str = "spark") -> Any:
    """Return the session that spark-submit has set up, or start one on this machine.

    On this machine a lost worker is made up for, as on a cluster: the number behind the comma says how often a task is
    tried. Python on the workers is the one that runs here.
    """
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(HOW_PYSPARK) from error
    build = SparkSession.builder.appName("reprior").config("spark.sql.streaming.stateStore.providerClass", STORE)
    if "PYSPARK_GATEWAY_PORT" not in os.environ:  # not started by spark-submit
        found = java_version()
        if found is None or found < JAVA:
            fail(caller, "java", f"be there in version {JAVA} or newer", "none" if found is None else found,
                 remedy=HOW_JAVA)  # fmt: skip
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        settings = {
            "spark.master": master or "local[*,4]", "spark.ui.enabled": "false", "spark.log.level": "ERROR",
            "spark.ui.showConsoleProgress": "false", "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        }  # fmt: skip
        for name, value in settings.items():
            build = build.config(name, value)
    return build.getOrCreate()
