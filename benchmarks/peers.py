"""Error, harm and CPU time beside every peer, on data that nothing in this project was designed on.

    python benchmarks/peers.py [--qunfold FOLDER] [--mapls FOLDER] [--draws 1] [--protocols]

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
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from _record import TRIALS, markdown, progress, store  # isort: split

import numpy as np
from _peers import FLOOR, Peer, clipped, peers

import reprior as rp
from reprior import datasets

DATA = Path(__file__).parent / "data" / "unseen.npz"
SHIPPED = ("banking77", "clinc150", "lid176")  # banking77 and clinc150 were looked at while constants were set
SHIFTS, SIZES, ROWS = ("none", "mild", "strong"), (100, 200, 1000), 1000
HARM = 0.01  # nats of log-loss by which a draw counts as harmed
MANY = 20  # with more classes only peers that take at most seconds run
SLOW = ("QuaPy, KDEyML", "QuaPy, DMy", "QuaPy, EDy", "mlquantify, EMQ-BCTS", "mlquantify, GHDy", "mlquantify, GPACC",
        "qunfold, PACC", "qunfold, EDy")  # fmt: skip
NOTHING, DEFAULT = "doing nothing", "reprior, default"
PROTOCOL_SIZE, PROTOCOL_ROWS, REPEATS = 200, 250, 10


class Case(NamedTuple):
    """Outputs and labels; held-out samples come from the first `n_heldout` of them, or from all if it is None."""

    name: str
    proba: np.ndarray
    y: np.ndarray
    n_heldout: int | None

    @property
    def set(self) -> str:
        return self.name.split("-")[0]


class Draw(NamedTuple):
    """Indices of held-out and of target samples, and the prior that the target was drawn from."""

    heldout: np.ndarray
    target: np.ndarray
    prior: np.ndarray


def cases() -> Iterator[Case]:
    """Yield the stored classifiers, then the shipped ones."""
    with np.load(DATA) as stored:
        for name in map(str, stored["names"]):
            proba = clipped(stored[f"{name}|P"].astype(np.float64))
            yield Case(name, proba, stored[f"{name}|y"].astype(np.intp), None)
    for name in SHIPPED:
        d = datasets.load(name)
        proba = clipped(np.concatenate([d.heldout_proba, d.pool_proba]).astype(np.float64))
        yield Case(name, proba, np.concatenate([d.heldout_y, d.pool_y]), len(d.heldout_y))


def draw(case: Case, size: int, shift: str, seed: int) -> Draw:
    """Return held-out samples of the source and a target of another class prior; no sample is in both."""
    rng = np.random.default_rng([seed, size, *map(ord, case.name + shift)])
    k, n = case.proba.shape[1], len(case.y)
    own = rng.permutation(case.n_heldout or n)
    heldout = own[:size]
    rest = own[size:] if case.n_heldout is None else rng.permutation(np.arange(case.n_heldout, n))
    source = np.bincount(case.y[own], minlength=k) / len(own)
    left = np.bincount(case.y[rest], minlength=k)
    prior = {"none": source, "mild": source * rng.uniform(0.6, 1.6, k), "strong": rng.dirichlet(np.full(k, 2.0))}[shift]
    prior = np.where(left > 0, prior, 0.0)
    prior /= prior.sum()
    total = int(np.clip((left[prior > 0] / prior[prior > 0]).min(), ROWS // 3, ROWS))
    wanted = np.minimum(rng.multinomial(total, prior), left)
    rows = np.concatenate([rest[case.y[rest] == j][: wanted[j]] for j in range(k)])
    return Draw(heldout, rng.permutation(rows), prior)


def losses(proba: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Return log-loss and accuracy; a probability below the floor counts as the floor."""
    own = proba[np.arange(len(y)), y]
    return float(-np.log(np.maximum(own, FLOOR)).mean()), float((proba.argmax(axis=1) == y).mean())


def scored(case: Case, d: Draw, alone: tuple[float, float], shares: np.ndarray, corrected: np.ndarray,
           seconds: float) -> dict[str, float]:  # fmt: skip
    """Return the errors of estimated shares (K,) and of corrected target samples (N, K)."""
    y = case.y[d.target]
    true = np.bincount(y, minlength=len(shares)) / len(y)
    estimate = np.maximum(shares, FLOOR)
    seen = d.prior > 0
    kl = float((d.prior[seen] * np.log(d.prior[seen] / (estimate / estimate.sum())[seen])).sum())
    loss, accuracy = losses(corrected, y)
    return {"mae": float(np.abs(shares - true).mean()), "kl": kl, "loss": loss - alone[0],
            "accuracy": accuracy - alone[1], "seconds": seconds}  # fmt: skip


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
    source = heldout.mean(axis=0)
    corrected = target * (np.maximum(prior, 0) / source)
    corrected /= np.maximum(corrected.sum(axis=1, keepdims=True), FLOOR)
    seconds = time.process_time() - start
    return {**scored(case, d, alone, prior, corrected, seconds), "failed": failed}


def run_ours(case: Case, d: Draw) -> tuple[dict[str, dict[str, Any]], Any, tuple[float, float]]:
    """Return what our methods and doing nothing reach, the pipeline, and the losses of calibrated outputs alone."""
    raw, y = case.proba[d.target], case.y[d.heldout]
    start = time.process_time()
    pipe = rp.pipeline(case.proba[d.heldout], y)
    est = pipe.estimate(raw)
    shares = getattr(est, "shares", est.prior)
    try:
        corrected = np.asarray(est.correct(raw))
    except ValueError:  # refused: left alone
        corrected = np.asarray(pipe.calibrate(raw))
    seconds = time.process_time() - start
    calibrated = np.asarray(pipe.calibrate(raw))
    alone = losses(calibrated, case.y[d.target])
    lower, upper = est.interval(0.95)
    inside = {"covered": float(((lower <= d.prior) & (d.prior <= upper)).mean()),
              "width": float((upper - lower).mean())}  # fmt: skip
    out = {f"{DEFAULT}|calibrated": {**scored(case, d, alone, shares, corrected, seconds), **inside}}
    for how, rows in (("raw", raw), ("calibrated", calibrated)):
        out[f"{NOTHING}|{how}"] = scored(case, d, alone, rows.mean(axis=0), rows, 0.0)
    for name, method in (("mlls", rp.mlls), ("fmapls", rp.fmapls)):
        start = time.process_time()
        found = method(pipe.source, calibrated)
        prior, fixed = found.prior, np.asarray(found.correct(calibrated))
        out[f"reprior, {name}|calibrated"] = scored(case, d, alone, prior, fixed, time.process_time() - start)
    return out, pipe, alone


def study(case: Case, others: dict[str, Peer], draws: int, kept: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the records of one classifier; what peers reached before is taken from `kept`."""
    out = []
    for size in SIZES:
        for shift in SHIFTS:
            for seed in range(draws):
                d = draw(case, size, shift, seed)
                found, pipe, alone = run_ours(case, d)
                inputs = {"raw": (case.proba[d.heldout], case.proba[d.target])}
                inputs["calibrated"] = tuple(clipped(np.asarray(pipe.calibrate(x))) for x in inputs["raw"])
                state = hashlib.sha1(inputs["calibrated"][1].tobytes()).hexdigest()[:12]  # changes with our calibrator
                for name, peer in others.items():
                    if case.proba.shape[1] > MANY and name in SLOW:
                        continue
                    for how, rows in inputs.items():
                        key = f"{case.name}|{size}|{shift}|{seed}|{state}|{name}|{how}"
                        if key not in kept:
                            kept[key] = run_peer(peer, case, d, rows, alone)
                        found[f"{name}|{how}"] = kept[key]
                common = {"case": case.name, "set": case.set, "classes": case.proba.shape[1], "size": size,
                          "shift": shift}  # fmt: skip
                out += [{**common, "method": method, **x} for method, x in found.items()]
    return out


def protocols(case: Case, others: dict[str, Peer]) -> list[dict[str, Any]]:
    """Return mean absolute errors by QuaPy's protocols, on calibrated outputs."""
    from quapy.data import LabelledCollection
    from quapy.protocol import APP, NPP, UPP

    if case.n_heldout is not None or case.proba.shape[1] > MANY:
        return []
    pipe = rp.pipeline(case.proba[:PROTOCOL_SIZE], case.y[:PROTOCOL_SIZE])
    raw, y = case.proba[PROTOCOL_SIZE:], case.y[PROTOCOL_SIZE:]
    pool = LabelledCollection(raw, y, classes=np.arange(raw.shape[1]))
    common = {"sample_size": PROTOCOL_ROWS, "random_state": 0}
    kinds = {"NPP": NPP(pool, repeats=REPEATS, **common), "UPP": UPP(pool, repeats=REPEATS, **common)}
    if raw.shape[1] == 2:
        kinds["APP"] = APP(pool, n_prevalences=11, repeats=1, **common)
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
            found = {name: estimate(calibrated) for name, estimate in fitted.items()}
            est = pipe.estimate(x)
            found[DEFAULT] = getattr(est, "shares", est.prior)
            out += [{"set": case.set, "protocol": protocol, "method": name,
                     "mae": float(np.abs(np.asarray(p) - prevalence).mean())} for name, p in found.items()]  # fmt: skip
    return out


def clustered(records: list[dict[str, Any]], what: str) -> tuple[float, float]:
    """Return the mean over sets, each the mean of its own records, and its standard error between sets."""
    by_set = defaultdict(list)
    for r in records:
        if what in r:
            by_set[r["set"]].append(r[what])
    means = np.array([np.mean(own) for own in by_set.values()])
    return float(means.mean()), float(means.std(ddof=1) / np.sqrt(len(means))) if len(means) > 1 else 0.0


def table(records: list[dict[str, Any]]) -> str:
    """Return one row per method: error by shift, harm and time."""
    by_method = defaultdict(list)
    for r in records:
        by_method[r["method"]].append(r)
    rows = []
    for method, own in by_method.items():
        by_shift = [clustered([r for r in own if r["shift"] == shift], "mae") for shift in SHIFTS]
        harm = clustered([{**r, "harmed": float(r["loss"] > HARM)} for r in own], "harmed")[0]
        loss, accuracy, kl = (clustered(own, what) for what in ("loss", "accuracy", "kl"))
        rows.append((clustered(own, "mae")[0], [
            *method.split("|"), *(f"{1e3 * m:.1f} ± {1e3 * e:.1f}" for m, e in by_shift), f"{kl[0]:.3f}",
            f"{loss[0]:+.4f} ± {loss[1]:.4f}", f"{100 * accuracy[0]:+.2f}", f"{harm:.0%}",
            f"{1e3 * np.median([r['seconds'] for r in own]):.0f}", str(sum(r.get("failed", False) for r in own)),
        ]))  # fmt: skip
    head = ["method", "input", *(f"MAE × 1000, {shift}" for shift in SHIFTS), "KL", "log-loss", "accuracy, points",
            "harmed", "CPU ms", "failed"]  # fmt: skip
    return markdown(head, [row for _, row in sorted(rows)])


def protocol_table(records: list[dict[str, Any]]) -> str:
    """Return mean absolute errors by protocol."""
    rows = []
    for method in dict.fromkeys(r["method"] for r in records):
        cells = [clustered([r for r in records if r["method"] == method and r["protocol"] == p], "mae")
                 for p in ("NPP", "UPP", "APP")]  # fmt: skip
        rows.append([method, *(f"{1e3 * m:.1f} ± {1e3 * e:.1f}" for m, e in cells)])
    return markdown(["method", "NPP, MAE × 1000", "UPP, MAE × 1000", "APP (two classes), MAE × 1000"], rows)


def report(records: list[dict[str, Any]], asked: list[dict[str, Any]], draws: int) -> str:
    """Return the page of results."""
    few = [r for r in records if r["classes"] <= MANY and r["set"] not in SHIPPED]
    many = [r for r in records if r["classes"] > MANY or r["set"] in SHIPPED]
    own = [r for r in records if "covered" in r]
    covered = [[shift, *(f"{clustered([r for r in own if r['shift'] == shift and r['size'] == n], 'covered')[0]:.1%}, "
                         f"{clustered([r for r in own if r['shift'] == shift and r['size'] == n], 'width')[0]:.3f}"
                         for n in SIZES)] for shift in SHIFTS]  # fmt: skip
    about = (
        f"# Peers\n\n{len({r['case'] for r in records})} classifiers on {len({r['set'] for r in records})} sets; "
        f"held-out samples {', '.join(map(str, SIZES))}; shifts {', '.join(SHIFTS)}; draws per cell: {draws}, of up "
        f"to {ROWS} target samples. MAE: mean absolute error of the class shares among the target samples. KL(drawn "
        "prior ‖ estimate). Log-loss and accuracy after correction, as change from our calibrated outputs left alone. "
        f"Harmed: draws worse by more than {HARM}. Means over sets ± standard errors between sets. CPU time is the "
        "median from arrays to corrected samples; our default includes calibration and all checks. A method that fails "
        "reports the held-out shares."
    )
    parts = [about, f"## Sets that nothing was designed on, 2 to {MANY} classes\n\n{table(few)}"]
    parts.append(f"## More classes: commands (63), and the shipped sets (77, 150, 176)\n\n{table(many)}")
    parts.append("## Intervals of the default at 95 %: coverage, width\n\n"
                 + markdown(["shift", *(f"{n} held-out samples" for n in SIZES)], covered))  # fmt: skip
    if asked:
        parts.append(f"## QuaPy's protocols\n\n{PROTOCOL_SIZE} held-out samples, samples of {PROTOCOL_ROWS}, "
                     f"calibrated input, sets of the first table.\n\n{protocol_table(asked)}")  # fmt: skip
    return "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--qunfold", type=Path, help="a clone of mirkobunse/qunfold")
    parser.add_argument("--mapls", type=Path, help="a clone of ChangkunYe/MAPLS")
    parser.add_argument("--draws", type=int, default=1, help="draws per classifier, size and shift")
    parser.add_argument("--sets", nargs="+", help="run these sets only")
    parser.add_argument("--protocols", action="store_true", help="add QuaPy's protocols, which take as long again")
    parser.add_argument("--classifier", help="run this kind of classifier only, for example logistic")
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # peers warn if they do not converge
    others = peers(options.qunfold, options.mapls)
    path = TRIALS / "peers_kept.json"
    kept = json.loads(path.read_text()) if path.exists() else {}
    todo = [c for c in cases() if options.sets is None or c.set in options.sets]
    todo = [c for c in todo if options.classifier is None or c.name in (c.set, f"{c.set}-{options.classifier}")]
    records, asked = [], []
    for done, case in enumerate(todo, 1):
        records += study(case, others, options.draws, kept)
        asked += protocols(case, others) if options.protocols else []
        TRIALS.mkdir(exist_ok=True)
        path.write_text(json.dumps(kept))
        progress(done, len(todo), case.name)
    slim = [{k: round(v, 5) if isinstance(v, float) else v for k, v in r.items() if k != "set"} for r in records]
    store("peers", {"draws": options.draws, "records": slim, "protocols": asked}, report(records, asked, options.draws))


if __name__ == "__main__":
    main()
