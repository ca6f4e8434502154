"""Estimating from a Parquet folder several times larger than the memory that is allowed, with its progress bar."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from _record import markdown, progress, store
from cli import REPRIOR, target, watched


def write_parts(folder: Path, rows: np.ndarray[Any, Any], parts: int) -> int:
    """Write the rows once a part, in another order each time; return the bytes on disk."""
    rng = np.random.default_rng(1)
    for i in range(parts):
        lists = pa.FixedSizeListArray.from_arrays(pa.array(rng.permutation(rows).ravel()), rows.shape[1])
        table = pa.table({"proba": lists})
        pq.write_table(table, folder / f"part-{i:03}.parquet", row_group_size=1 << 16, use_dictionary=False)
        progress(i + 1, parts, "written")
    return sum(path.stat().st_size for path in folder.iterdir())


def estimate(folder: Path, counts: Path, limit: int, *, terminal: bool, method: str = "mlls") -> dict[str, Any]:
    """Run `reprior estimate` under a limit on its address space, with stderr on a terminal or in a pipe."""
    ours, theirs = pty.openpty() if terminal else os.pipe()
    shown: list[bytes] = []

    def read() -> None:
        try:
            while data := os.read(ours, 65536):
                shown.append(data)
        except OSError:  # a terminal whose other end has closed
            pass

    command = [*REPRIOR, "estimate", str(folder), "-s", str(counts), "-m", method, "--no-interval", "--json"]
    start = time.perf_counter()
    process = Popen(command, stdout=PIPE, stderr=theirs, env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))  # fmt: skip
    os.close(theirs)
    reader = threading.Thread(target=read)
    reader.start()
    status, used, peak = watched(process.pid)
    process.returncode = os.waitstatus_to_exitcode(status)
    reader.join()
    os.close(ours)
    assert process.stdout is not None
    with process.stdout as result:  # short enough to wait in the pipe
        out = result.read()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", b"".join(shown).decode())
    if process.returncode:
        sys.exit(text)
    bar = [line.strip() for line in re.split(r"[\r\n]+", text) if "pass" in line]
    passes = max((int(number) for line in bar for number in re.findall(r"pass (\d+)", line)), default=0)
    return {"value": json.loads(out), "passes": passes, "wall": time.perf_counter() - start,
            "cpu": used.ru_utime + used.ru_stime, "mb": peak, "bar": bar}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", type=int, default=11, help="of a million rows, 400 MB each")
    parser.add_argument("--limit", type=int, default=1 << 30, help="bytes of address space")
    parser.add_argument("--both", action="store_true", help="once more with stderr in a pipe")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, counts = Path(name) / "target", Path(name) / "counts.json"
        folder.mkdir()
        counts.write_text(json.dumps([1] * 100))
        rows = target(np.random.default_rng(0), 1_000_000, 100)
        size = write_parts(folder, rows, options.parts)
        del rows
        found = estimate(folder, counts, options.limit, terminal=True)
        other = estimate(folder, counts, options.limit, terminal=True, method="ebls")
        if options.both:
            quiet = estimate(folder, counts, options.limit, terminal=False)
            assert quiet["bar"] == []
            assert quiet["value"]["prior"] == found["value"]["prior"]
    value = found.pop("value")
    found |= {"bytes": size, "limit": options.limit, "to_optimum": value["n_iter"], "status": value["status"]}
    found["ebls"] = {key: other[key] for key in ("passes", "cpu", "wall", "mb")}
    found["bar"] = found["bar"][:: max(1, len(found["bar"]) // 12)]
    lines = [
        ["Parquet folder", f"{size / 1e9:.2f} GB, {value['n'] / 1e6:.0f} M × 100 float32 in {options.parts} parts"],
        ["limit on the address space", f"{options.limit / 1e9:.2f} GB"],
        ["peak resident memory", f"{found['mb']:.0f} MB"],
        ["`mlls`: passes to a duality gap of 1e-8", f"{value['n_iter']} ({value['status']})"],
        ["with those that count, and check for other shifts", str(found["passes"])],
        ["time", f"{found['cpu']:.0f} s CPU, {found['wall']:.0f} s by clock"],
        ["`ebls`: all passes", str(other["passes"])],
        ["time", f"{other['cpu']:.0f} s CPU, {other['wall']:.0f} s by clock"],
        ["in the middle, the bar said", f"`{found['bar'][len(found['bar']) // 2]}`"],
    ]  # fmt: skip
    store("out_of_core", found, markdown(["what", "measured"], lines))


if __name__ == "__main__":
    main()
