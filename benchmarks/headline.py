"""Write the headline tables of README.md from stored results.

    python benchmarks/headline.py

Reads `results/peers.json`, `results/quapy_peer.json` and `results/drift_drift.json`. A test holds the page to them.
"""

import json
from pathlib import Path

import numpy as np
from _record import RESULTS, markdown

README = Path(__file__).parents[1] / "README.md"
SETS = {"lid176": "13 language channels", "banking77": "77 bank intents", "clinc150": "150 intents"}
ONLINE = {  # methods of OnlineLabelShift [baby2023] and the paper it compares with, by the names of drift.py
    "online-ebls": "**reprior, `online-ebls`**", "flh-ftl [baby2023]": "FLH-FTL", "fth [baby2023]": "FTH",
    "ftfwh 1000 [baby2023]": "FTFWH, window 1000", "rogd [baby2023]": "ROGD", "uogd [bai2022]": "UOGD",
    "atlas [bai2022]": "ATLAS",
}  # fmt: skip


def read(name: str) -> dict:
    return json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))


def against_packages() -> str:
    found = read("peers")["figures"]
    rows = []
    for name, sets in found.items():
        shown = f"**{name}**" if "default" in name else name
        cells = [shown]
        for key in SETS:
            ms = "" if name == "as it is" else f"{np.median(sets[key]['ms']):.0f}"
            cells += [f"{np.mean(sets[key]['accuracy']):.1f} %, {np.mean(sets[key]['kl']):.3f}", ms]
        rows.append(cells)
    return markdown(["accuracy, KL; CPU ms", *(cell for title in SETS.values() for cell in (title, "ms"))], rows)


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
    stored = read("drift_drift")
    cells = list(stored["kl"].values())
    rows = [[shown, f"{np.mean([cell[name] for cell in cells]):.3f}"] for name, shown in ONLINE.items()]
    below = sum(cell["online-ebls"] < min(cell[name] for name in list(ONLINE)[1:]) for cell in cells)
    table = markdown(["stream method", f"mean KL of {len(cells)} drifts"], rows)
    return f"{table}\n\n`online-ebls` has the lowest error in {below} of {len(cells)} drifts."


def block() -> str:
    """Return what stands between the two marks of the page."""
    return (
        f"{against_packages()}\n\nabstention's calibration fails on the language channels: 88 of 176 classes have no "
        f"held-out row.\n\n{against_quapy()}\n\nStreams, predicting before they learn, against the methods of "
        f"OnlineLabelShift in our own implementation of them:\n\n{online()}"
    )


def main() -> None:
    before, _, rest = README.read_text(encoding="utf-8").partition("<!-- headline -->")
    after = rest.partition("<!-- end -->")[2]
    README.write_text(f"{before}<!-- headline -->\n\n{block()}\n\n<!-- end -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
