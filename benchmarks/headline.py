"""Write the headline tables of README.md from stored results.

    python benchmarks/headline.py

Run it after `peers.py` or `streams.py drifts` have stored new figures. A test compares the page with the results.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from _record import RESULTS, markdown

README = Path(__file__).parents[1] / "README.md"
BATCH = {  # rows of the first table: the method in peers.json, and its name in the table
    "reprior, default": "**reprior**, default", "QuaPy, EMQ": "QuaPy, EMQ", "QuaPy, EMQ-BCTS": "QuaPy, EMQ with BCTS",
    "QuaPy, KDEyML": "QuaPy, KDEyML", "mlquantify, GHDy": "mlquantify, GHDy", "doing nothing": "doing nothing",
}  # fmt: skip
STREAMS = {"reprior, `pipe.stream()`": "**reprior**, `pipe.stream()`", "FLH-FTL, authors' code": "FLH-FTL",
           "FTFWH, authors' code": "FTFWH", "FTH, authors' code": "FTH", "UOGD, authors' code": "UOGD",
           "uncorrected": "uncorrected"}  # fmt: skip


def read(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def batch() -> str:
    """Return errors beside other packages on sets that nothing was designed on; everyone gets calibrated outputs."""
    cells = {c["method"]: c for c in read("peers")["few"] if c["input"] == "calibrated"}
    rows = []
    for method, name in BATCH.items():
        c = cells[method]
        errors = [f"{100 * c[shift]['mae'][0]:.1f}" for shift in ("none", "mild", "strong")]
        harmed, ms = f"{c['all']['harmed'][0]:.0%}", "" if method == "doing nothing" else f"{c['ms']:.0f}"
        rows.append([name, *errors, harmed, ms])
    head = ["error of the class proportions, points", "no shift", "mild", "strong", "predictions made worse", "CPU ms"]
    return markdown(head, rows)


def streams() -> str:
    """Return accuracy and error of streams beside the authors' code, or nothing before there is a result."""
    if not (RESULTS / "streams_drifts.json").exists():
        return ""
    cells = {c["method"]: c for c in read("streams_drifts")["cells"]}
    rows = [[name, *(cells[method][what] for what in ("accuracy, points", "squared error", "CPU s"))]
            for method, name in STREAMS.items() if method in cells]  # fmt: skip
    head = ["streams along drifts, authors' code", "accuracy, points", "squared error of the prior", "CPU s per stream"]
    return f"\n\n{markdown(head, rows)}\n\n[All streams](benchmarks/results/streams_drifts.md)."


def block() -> str:
    """Return the section between the markers."""
    return f"{batch()}\n\n[All methods, raw inputs, intervals and errors](benchmarks/results/peers.md).{streams()}"


def main() -> None:
    before, _, rest = README.read_text(encoding="utf-8").partition("<!-- headline -->")
    after = rest.partition("<!-- end -->")[2]
    README.write_text(f"{before}<!-- headline -->\n\n{block()}\n\n<!-- end -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
