"""Write the headline tables of README.md from stored results.

    python benchmarks/headline.py

Run it after a benchmark has stored new figures. A test compares the page with the results.
"""

import json
from pathlib import Path

import numpy as np
from _record import RESULTS, markdown

README = Path(__file__).parents[1] / "README.md"
MOST = 20  # classes of the sets in the first table
TITLES = {"banking77": "Banking77", "clinc150": "CLINC150", "simulated100": "a simulated classifier"}
PUBLISHED = (  # methods of OnlineLabelShift [baby2023] and of the paper it compares with, by the names of drift.py
    "flh-ftl [baby2023]", "fth [baby2023]", "ftfwh 1000 [baby2023]", "rogd [baby2023]", "uogd [bai2022]",
    "atlas [bai2022]",
)  # fmt: skip


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def against_packages() -> str:
    """Return errors beside other packages on sets that nothing was designed on; everyone gets calibrated outputs."""
    records = [r for r in read("peers")["records"] if r["classes"] <= MOST and r["method"].endswith("|calibrated")]
    rows = []
    for method in dict.fromkeys(r["method"] for r in records):
        own = [{**r, "set": r["case"].split("-")[0]} for r in records if r["method"] == method]
        sets = sorted({r["set"] for r in own})
        mae = [1e3 * np.mean([np.mean([r["mae"] for r in own if r["set"] == s and r["shift"] == shift]) for s in sets])
               for shift in ("none", "mild", "strong")]  # fmt: skip
        harmed = np.mean([np.mean([r["loss"] > 0.01 for r in own if r["set"] == s]) for s in sets])
        name = method.split("|")[0]
        ms = "" if name == "doing nothing" else f"{1e3 * np.median([r['seconds'] for r in own]):.0f}"
        shown = f"**{name}**" if "default" in name else name
        rows.append((sum(mae), [shown, *(f"{x:.0f}" for x in mae), f"{harmed:.0%}", ms]))
    head = ["error of the class shares (MAE × 1000)", "no shift", "mild", "strong", "predictions made worse", "CPU ms"]
    return markdown(head, [row for _, row in sorted(rows)])


def against_quapy() -> str:
    cases = read("quapy_peer")["cases"]
    mae = {name: np.mean([case["mae"][name] for case in cases.values()]) for name in next(iter(cases.values()))["mae"]}
    faster = [case["cpu_seconds"]["EMQ to 1e-8"] / case["cpu_seconds"]["ours, uncalibrated"] for case in cases.values()]
    return (
        f"By QuaPy's own protocols ({len(cases)} cases of scikit-learn's data) the mean absolute error is "
        f"{mae['EMQ']:.3f} for its EMQ, {mae['EMQ, BCTS']:.3f} for its EMQ with BCTS, {mae['ours, ebls']:.3f} for our "
        f"default and {mae['ours, BCTS']:.3f} for our `mlls` with BCTS. To the same optimum `mlls` takes 1/"
        f"{np.median(faster):.1f} of EMQ's time (median; {min(faster):.1f} to {max(faster):.0f} times faster)."
    )


def online() -> str:
    cells = read("online_peers")["cells"]
    shown = ("**reprior, `pipe.stream()`**", "reprior, `online-ebls`", "UOGD", "FLH-FTL", "FTH", "FTFWH, window 1000",
             "ATLAS", "as it is")  # fmt: skip
    rows = []
    for label in shown:
        runs = [run for cell in cells.values() for run in cell[label]]
        figures = [
            form.format(np.mean([run[what] for run in runs])) if what in runs[0] else ""
            for what, form in (("accuracy", "{:.1%}"), ("kl", "{:.3f}"), ("seconds", "{:.1f}"))
        ]
        rows.append([label, *figures])
    rows.sort(key=lambda row: -float(row[1].rstrip("%")))
    stored = list(read("drift_drift")["kl"].values())
    below = sum(cell["online-ebls"] < min(cell[name] for name in PUBLISHED) for cell in stored)
    on = " and ".join(TITLES[name] for name in dict.fromkeys(cell.split(",")[0] for cell in cells))
    table = markdown(["stream method", "accuracy", "KL", "CPU s a stream"], rows)
    return (
        f"Streams, predicting before they learn, against the code of OnlineLabelShift's authors on {len(cells)} drifts "
        f"of {on} ([all of it](benchmarks/results/online_peers.md)):\n\n{table}\n\nUOGD and ATLAS train a "
        "classifier's last layer at every step and give no class mix. In our own writing of these methods "
        f"`online-ebls` has the lowest KL in {below} of {len(stored)} drifts of three classifiers "
        "([results](benchmarks/results/drift_drift.md))."
    )


def block() -> str:
    """Return what stands between the two marks of the page."""
    return (
        f"{against_packages()}\n\nMore classes, raw inputs, intervals and standard errors are in "
        f"[the results](benchmarks/results/peers.md).\n\n{against_quapy()}\n\n{online()}"
    )


def main() -> None:
    before, _, rest = README.read_text(encoding="utf-8").partition("<!-- headline -->")
    after = rest.partition("<!-- end -->")[2]
    README.write_text(f"{before}<!-- headline -->\n\n{block()}\n\n<!-- end -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
