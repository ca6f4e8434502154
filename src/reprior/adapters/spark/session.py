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
        answer = subprocess.run([path or "java", "-version"], capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return None
    version = re.search(r'version "(?:1\.)?(\d+)', answer.stderr)
    return int(version[1]) if version else None


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
        answer = subprocess.run([python, "-c", ask], capture_output=True, text=True, check=False, timeout=60)
        versions: dict[str, str | None] = json.loads(answer.stdout)
    except (OSError, ValueError):
        return None
    return versions


def submitted() -> bool:
    """Return whether spark-submit has started this program, and has set up all there is."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def session(master: str | None = None) -> Any:
    """Return the session that spark-submit has set up, or start one on this machine, with the Python that runs here."""
    try:
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(HOW_PYSPARK) from error
    wanted = {"spark.app.name": "reprior", "spark.sql.streaming.stateStore.providerClass": STORE}
    if not submitted():
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
        wanted |= {
            "spark.master": master or "local[*,4]",  # a task is tried four times: a lost worker is made up for
            "spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.ui.showConsoleProgress": "false",
            "spark.sql.shuffle.partitions": str(os.cpu_count() or 1),
        }  # fmt: skip
    try:
        return SparkSession.builder.config(map=wanted).getOrCreate()
    except Exception:  # for want of Java, perhaps; to ask for that first costs time
        version = java_version()
        if not submitted() and (version is None or version < JAVA):
            fail("spark", "java", f"be installed in version {JAVA} or newer", "none" if version is None else version,
                 remedy=HOW_JAVA)  # fmt: skip
        raise
