"""Error, harm and CPU time beside every peer, on data that nothing in this project was designed on.

    python benchmarks/peers.py [--qunfold FOLDER] [--mapls FOLDER] [--draws 3]

Wants `pip install -r benchmarks/requirements.txt`; folders are clones of mirkobunse/qunfold and ChangkunYe/MAPLS.
Everyone gets the same held-out samples with labels and the same target samples, once as the classifier gives them
("raw") and once after our calibration ("calibrated"), so that calibration and method are told apart. Sets, shifts and
sizes are fixed in advance (`benchmarks/data/README.md`). What peers reach is kept in `.trials/`, so that only our own
methods run again while our calibration stays the same.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
import warnings
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from _record import TRIALS, markdown, progress, store  # isort: split

import numpy as np
from _peers import Peer, bootstrap, peers
from _worlds import FLOOR, HARM, ROWS, SHIFTS, Case, Draw, clipped, clustered, draw, kl, losses, shipped, unseen

import reprior as rp

SIZES = (100, 200, 1000)
MAX_CLASSES = 20  # with more classes only peers that take at most seconds run
SLOW = ("QuaPy, KDEyML", "QuaPy, DMy", "QuaPy, EDy", "mlquantify, EMQ-BCTS", "mlquantify, GHDy", "mlquantify, GPACC",
        "qunfold, PACC", "qunfold, EDy")  # fmt: skip
ONCE = ("qunfold, PACC", "qunfold, EDy")  # compiled anew for each number of samples: the first draw of the middle size
NOTHING, DEFAULT, BOOTSTRAP = "doing nothing", "reprior, default", "QuaPy, EMQ-BCTS, bootstrap"
PROTOCOLS = {"NPP": 10, "UPP": 10, "APP": 11}  # samples of each
PROTOCOL_SIZE, PROTOCOL_ROWS = 200, 250
PACKAGES = ("quapy", "mlquantify", "abstention", "scikit-learn", "numpy", "scipy")
WHAT = ("mae", "kl", "loss", "accuracy", "harmed")
Records = list[dict[str, Any]]


def scored(case: Case, d: Draw, alone: tuple[float, float], answers: tuple[np.ndarray, np.ndarray],
           corrected: np.ndarray) -> dict[str, float]:  # fmt: skip
    """Return the errors of estimated shares and prior (K,), and of corrected target samples (N, K)."""
    shares, prior = answers
    y = case.y[d.target]
    true = np.bincount(y, minlength=len(shares)) / len(y)
    loss, accuracy = losses(corrected, y)
    return {"mae": float(np.abs(shares - true).mean()), "kl": kl(d.prior, prior), "loss": loss - alone[0],
            "accuracy": accuracy - alone[1], "harmed": float(loss - alone[0] > HARM)}  # fmt: skip


def inside(case: Case, d: Draw, interval: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    """Return how many intervals hold the share of a class among the target samples, and their mean width."""
    lower, upper = interval
    true = np.bincount(case.y[d.target], minlength=len(lower)) / len(d.target)
    hit = (lower - 1e-9 <= true) & (true <= upper + 1e-9)
    return {"covered": float(hit.mean()), "width": float((upper - lower).mean())}


def run_peer(peer: Peer, case: Case, d: Draw, rows: tuple[np.ndarray, np.ndarray],
             alone: tuple[float, float]) -> dict[str, Any]:  # fmt: skip
    """Return what a peer reaches; one that fails reports the held-out shares."""
    heldout, target = rows
    y, failed = case.y[d.heldout], False
    start = time.process_time()
    try:
        prior = np.asarray(peer(heldout, y)(target), float)
        failed = not np.isfinite(prior).all()
    except Exception:  # whatever another package raises
        failed = True
    if failed:
        prior = np.bincount(y, minlength=heldout.shape[1]) / len(y)
    corrected = target * (np.maximum(prior, 0) / heldout.mean(axis=0))
    corrected /= np.maximum(corrected.sum(axis=1, keepdims=True), FLOOR)
    seconds = time.process_time() - start
    return {**scored(case, d, alone, (prior, prior), corrected), "seconds": seconds, "failed": failed}


def run_ours(case: Case, d: Draw) -> tuple[dict[str, dict[str, Any]], Any, tuple[float, float]]:
    """Return what our methods and doing nothing reach, the pipeline, and the losses of calibrated outputs alone."""
    raw, y = case.proba[d.target], case.y[d.heldout]
    start = time.process_time()
    pipe = rp.pipeline(case.proba[d.heldout], y)
    est = pipe.estimate(raw)
    shares = est.shares
    try:
        corrected = np.asarray(est.correct(raw))
    except ValueError:  # refused: left alone
        corrected = np.asarray(pipe.calibrate(raw))
    seconds = time.process_time() - start
    calibrated = np.asarray(pipe.calibrate(raw))
    alone = losses(calibrated, case.y[d.target])
    out = {f"{DEFAULT}|calibrated": {
        **scored(case, d, alone, (shares, est.prior), corrected), "seconds": seconds,
        **inside(case, d, est.interval(0.95, of="shares")),
    }}  # fmt: skip
    for how, rows in (("raw", raw), ("calibrated", calibrated)):
        mean = rows.mean(axis=0)
        out[f"{NOTHING}|{how}"] = {**scored(case, d, alone, (mean, mean), rows), "seconds": 0.0}
    for name in ("mlls", "fmapls"):
        start = time.process_time()
        made = rp.METHODS[name](pipe.source, calibrated)
        fixed = np.asarray(made.correct(calibrated))
        spent = {"seconds": time.process_time() - start}
        out[f"reprior, {name}|calibrated"] = {**scored(case, d, alone, (made.prior, made.prior), fixed), **spent}
    return out, pipe, alone


def study(case: Case, others: dict[str, Peer], draws: int, kept: dict[str, Any]) -> Records:
    """Return the records of one classifier; what peers reached before is taken from `kept`."""
    out = []
    for size, shift, seed in ((a, b, c) for a in SIZES for b in SHIFTS for c in range(draws)):
        d = draw(case, size, shift, seed)
        made, pipe, alone = run_ours(case, d)
        inputs = {"raw": (case.proba[d.heldout], case.proba[d.target])}
        inputs["calibrated"] = tuple(clipped(np.asarray(pipe.calibrate(x))) for x in inputs["raw"])
        state = hashlib.sha1(inputs["calibrated"][1].tobytes()).hexdigest()[:12]  # changes with our calibrator
        for name, peer in others.items():
            slow = case.n_classes > MAX_CLASSES and (name in SLOW or seed)
            if slow or (name in ONCE and (seed or size != SIZES[1])):
                continue
            for how, rows in inputs.items():
                key = f"{case.name}|{size}|{shift}|{seed}|{state}|{name}|{how}"
                if key not in kept:
                    kept[key] = run_peer(peer, case, d, rows, alone)
                made[f"{name}|{how}"] = kept[key]
        if case.n_classes <= MAX_CLASSES and seed == 0:
            key = f"{case.name}|{size}|{shift}|{seed}|{state}|{BOOTSTRAP}"
            if key not in kept:
                kept[key] = bootstrapped(case, d, inputs["calibrated"])
            made[f"{BOOTSTRAP}|calibrated"] = kept[key]
        common = {"case": case.name, "set": case.set, "classes": case.n_classes, "size": size, "shift": shift}
        out += [{**common, "method": method, **x} for method, x in made.items()]
    return out


def bootstrapped(case: Case, d: Draw, rows: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    """Return coverage and width of the intervals of QuaPy's bootstrap."""
    try:
        return inside(case, d, bootstrap(rows[0], case.y[d.heldout])(rows[1]))
    except Exception:  # whatever another package raises
        return {}


def protocols(case: Case, others: dict[str, Peer]) -> Records:
    """Return mean absolute errors by QuaPy's protocols, on calibrated outputs."""
    from quapy.data import LabelledCollection
    from quapy.protocol import APP, NPP, UPP

    if case.n_heldout is not None or case.n_classes > MAX_CLASSES:
        return []
    pipe = rp.pipeline(case.proba[:PROTOCOL_SIZE], case.y[:PROTOCOL_SIZE])
    raw, y = case.proba[PROTOCOL_SIZE:], case.y[PROTOCOL_SIZE:]
    pool = LabelledCollection(raw, y, classes=np.arange(raw.shape[1]))
    common = {"sample_size": PROTOCOL_ROWS, "random_state": 0}
    kinds = {"NPP": NPP(pool, repeats=PROTOCOLS["NPP"], **common), "UPP": UPP(pool, repeats=PROTOCOLS["UPP"], **common)}
    if raw.shape[1] == 2:
        kinds["APP"] = APP(pool, n_prevalences=PROTOCOLS["APP"], repeats=1, **common)
    heldout = clipped(np.asarray(pipe.calibrate(case.proba[:PROTOCOL_SIZE])))
    fitted: dict[str, Any] = {NOTHING: lambda x: x.mean(axis=0)}
    for name, peer in others.items():
        try:
            fitted[name] = peer(heldout, case.y[:PROTOCOL_SIZE])
        except Exception:  # whatever another package raises
            continue
    out = []
    for protocol, samples in kinds.items():
        for x, prevalence in samples():
            calibrated = clipped(np.asarray(pipe.calibrate(x)))
            made = {name: estimate(calibrated) for name, estimate in fitted.items()}
            made[DEFAULT] = pipe.estimate(x).shares
            out += [{"set": case.set, "protocol": protocol, "method": name,
                     "mae": float(np.abs(np.asarray(p) - prevalence).mean())} for name, p in made.items()]  # fmt: skip
    return out


def summary(records: Records) -> list[dict[str, Any]]:
    """Return one cell per method and input: means over sets with standard errors, by shift and over all."""
    by_method = defaultdict(list)
    for r in records:
        if "mae" in r:
            by_method[r["method"]].append(r)
    out = []
    for method, own in by_method.items():
        cell: dict[str, Any] = dict(zip(("method", "input"), method.split("|"), strict=True))
        for shift in (*SHIFTS, "all"):
            some = [r for r in own if shift in (r["shift"], "all")]
            cell[shift] = {what: [round(x, 5) for x in clustered(some, what)] for what in WHAT}
        cell["ms"] = round(1e3 * float(np.median([r["seconds"] for r in own])), 2)
        cell["failed"] = sum(r.get("failed", False) for r in own)
        out.append(cell)
    return sorted(out, key=lambda cell: cell["all"]["mae"][0])


def table(cells: list[dict[str, Any]]) -> str:
    """Return one row per method: error by shift, harm and time."""
    rows = []
    for c in cells:
        mae = [f"{1e3 * c[shift]['mae'][0]:.1f} ± {1e3 * c[shift]['mae'][1]:.1f}" for shift in SHIFTS]
        over = c["all"]
        rows.append([c["method"], c["input"], *mae, f"{1e3 * over['mae'][0]:.1f}", f"{over['kl'][0]:.3f}",
                     f"{over['loss'][0]:+.4f} ± {over['loss'][1]:.4f}", f"{100 * over['accuracy'][0]:+.2f}",
                     f"{over['harmed'][0]:.1%}", f"{c['ms']:.0f}", str(c["failed"])])  # fmt: skip
    head = ["method", "input", *(f"MAE × 1000, {shift}" for shift in SHIFTS), "all", "KL", "log-loss",
            "accuracy, points", "harmed", "CPU ms", "failed"]  # fmt: skip
    return markdown(head, rows)


def intervals(records: Records) -> list[dict[str, Any]]:
    """Return coverage and width of 95 % intervals by method, size and shift, on the draws that both have."""
    out = []
    for method, size, shift in ((m, n, s) for m in (DEFAULT, BOOTSTRAP) for n in SIZES for s in SHIFTS):
        own = [r for r in records if r["method"] == f"{method}|calibrated" and r["size"] == size
               and r["shift"] == shift and r["classes"] <= MAX_CLASSES and "covered" in r]  # fmt: skip
        out.append({"method": method, "size": size, "shift": shift, "covered": clustered(own, "covered"),
                    "width": clustered(own, "width")})  # fmt: skip
    return out


def report(figures: dict[str, Any], records: Records, asked: Records) -> str:
    """Return the page of results."""
    about = (
        f"# Peers\n\n{len({r['case'] for r in records})} classifiers on {len({r['set'] for r in records})} sets; "
        f"held-out samples {', '.join(map(str, SIZES))}; shifts {', '.join(SHIFTS)}; draws per cell: "
        f"{figures['draws']}, of up to {ROWS} target samples. MAE: mean absolute error of the class proportions of the "
        "target samples. KL(drawn prior ‖ estimated prior). Log-loss and accuracy after correction, as change from our "
        f"calibrated probabilities left alone. Harmed: draws worse by more than {HARM}. Means over sets ± standard "
        "errors between sets. CPU time is the median from arrays to corrected samples; our default includes "
        "calibration and all checks. A method that fails reports the held-out shares. Peers on sets with more than "
        f"{MAX_CLASSES} classes see the first draw alone, and qunfold the first draw with {SIZES[1]} held-out samples."
    )
    rows = [[c["method"], c["shift"], str(c["size"]), f"{c['covered'][0]:.1%}", f"{c['width'][0]:.3f}"]
            for c in figures["intervals"]]  # fmt: skip
    parts = [
        about, f"## Sets that nothing was designed on, 2 to {MAX_CLASSES} classes\n\n{table(figures['few'])}",
        f"## More classes: commands (63), and the shipped sets (77, 150, 176)\n\n{table(figures['many'])}",
        f"## 95 % intervals of the shares, sets of 2 to {MAX_CLASSES} classes\n\n"
        + markdown(["method", "shift", "held-out samples", "covered", "width"], rows),
        f"## QuaPy's protocols\n\n{PROTOCOL_SIZE} held-out samples, samples of {PROTOCOL_ROWS}, calibrated input, sets "
        f"of the first table. MAE × 1000.\n\n{protocol_table(asked)}",
    ]  # fmt: skip
    return "\n\n".join(parts)


def protocol_table(asked: Records) -> str:
    """Return mean absolute errors by protocol."""
    rows = []
    for method in dict.fromkeys(r["method"] for r in asked):
        cells = [clustered([r for r in asked if r["method"] == method and r["protocol"] == p], "mae")
                 for p in PROTOCOLS]  # fmt: skip
        rows.append([method, *(f"{1e3 * m:.1f} ± {1e3 * e:.1f}" for m, e in cells)])
    rows.sort(key=lambda row: float(row[2].split()[0]))
    return markdown(["method", "NPP", "UPP", "APP (two classes)"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--qunfold", type=Path, help="a clone of mirkobunse/qunfold")
    parser.add_argument("--mapls", type=Path, help="a clone of ChangkunYe/MAPLS")
    parser.add_argument("--draws", type=int, default=3, help="draws per classifier, size and shift")
    parser.add_argument("--sets", nargs="+", help="run these sets only")
    parser.add_argument("--ours", action="store_true", help="run our own methods only")
    parser.add_argument("--classifier", help="run this kind of classifier only, for example logistic")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # peers warn if they do not converge
    others = {} if options.ours else peers(options.qunfold, options.mapls)
    path = TRIALS / "peers_kept.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    todo = [c for c in (*unseen(options.classifier), *shipped()) if options.sets is None or c.set in options.sets]
    records, asked = [], []
    for done, case in enumerate(todo, 1):
        records += study(case, others, options.draws, kept)
        asked += protocols(case, others)
        TRIALS.mkdir(exist_ok=True)
        path.write_text(json.dumps(kept))
        progress(done, len(todo), case.name)
    figures = {
        "draws": options.draws, "versions": {name: version(name) for name in PACKAGES},
        "few": summary([r for r in records if r["classes"] <= MAX_CLASSES]),
        "many": summary([r for r in records if r["classes"] > MAX_CLASSES]), "intervals": intervals(records),
        "protocols": [{"method": m, "protocol": p, "mae": clustered([r for r in asked if (r["method"], r["protocol"])
                                                                     == (m, p)], "mae")}
                      for m in dict.fromkeys(r["method"] for r in asked) for p in PROTOCOLS],
    }  # fmt: skip
    store("peers", figures, report(figures, records, asked))


if __name__ == "__main__":
    main()
