"""Does the default do harm? Change of log-loss by correction on classifiers that nothing was designed on.

    python benchmarks/harm.py [--draws 2] [--sizes 50 200 1000]

Targets have no shift, a mild, a strong one, or half of their samples from one class. Harmed draws lose more than .01
nats against the same calibrated probabilities left alone. "In full" ignores the test of label shift, so the other rows
show how much of the gain it costs. Twelve batches are the same target in twelve parts.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from typing import Any

from _record import progress, store_cells  # isort: split

import numpy as np
from _worlds import HARM, SHIFTS, Case, Draw, clustered, draw, kl, losses, mean_and_error, unseen

import reprior as rp
from reprior.online.acting import NotLabelShift

SHIFT_KINDS = (*SHIFTS, "one class")
LABELS = (20, 100)


def applied(est: Any, proba: np.ndarray) -> np.ndarray:
    """Return corrected probabilities; warnings that little of the correction is applied are not shown."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return np.asarray(est.correct(proba))


def study(case: Case, d: Draw, rng: np.random.Generator) -> dict[str, dict[str, float]]:
    """Return the scores of each way to correct one target."""
    raw, y = case.proba[d.target], case.y[d.target]
    pipe = rp.pipeline(case.proba[d.heldout], case.y[d.heldout])
    counted = rp.pipeline(case.proba[d.heldout], case.y[d.heldout], counts=case.counts)
    calibrated = np.asarray(pipe.calibrate(raw))
    alone, order, out = losses(calibrated, y)[0], rng.permutation(len(y)), {}

    def add(name: str, est: Any, rows: np.ndarray) -> None:
        fixed, base = applied(est, raw)[rows], losses(calibrated[rows], y[rows])[0]
        lower, upper = est.interval(0.95, of="prior")
        inside = float(((lower <= d.prior) & (d.prior <= upper)).mean())
        out[name] = {"loss": losses(fixed, y[rows])[0] - base, "kl": kl(d.prior, est.prior), "covered": inside}

    everything = np.arange(len(y))
    add("default", pipe.estimate(raw), everything)
    add("in full", pipe.estimate(raw, on_reject="ignore"), everything)
    for name, watch in (("twelve batches", pipe.watch()), ("twelve batches, in full", pipe.watch(on_reject="ignore"))):
        fixed = np.concatenate([applied(watch.estimate(part), part) for part in np.array_split(raw, 12)])
        out[name] = {"loss": losses(fixed, y)[0] - alone}
    add("default, training counts", counted.estimate(raw), everything)
    for m in LABELS:
        labels = np.full(len(y), -1)
        labels[order[:m]] = y[order[:m]]
        add(f"{m} labels", pipe.estimate(raw, labels=labels), order[m:])
    stream, parts = pipe.stream(), []
    for first in range(0, len(y), 10):
        parts.append(np.asarray(stream.correct_many(raw[first : first + 10])))
        stream.learn_many(raw[first : first + 10])
    out["stream"] = {"loss": losses(np.concatenate(parts), y)[0] - alone, "kl": kl(d.prior, stream.prior)}
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--sizes", type=int, nargs="+", default=[50, 200, 1000])
    options = parser.parse_args()
    warnings.simplefilter("ignore", NotLabelShift)
    cells, cases = defaultdict(list), list(unseen())
    for done, case in enumerate(cases, 1):
        for size in options.sizes:
            for shift in SHIFT_KINDS:
                for seed in range(options.draws):
                    d = draw(case, size, shift, seed)
                    if len(np.unique(case.y[d.heldout])) < 2:
                        continue
                    for name, x in study(case, d, np.random.default_rng([seed, size])).items():
                        x["harmed"] = float(x["loss"] > HARM)
                        cells[shift, size, name].append({"set": case.set, "case": case.name, **x})
        progress(done, len(cases), case.name)
    head = ["shift", "held-out", "", "change of log-loss", "harmed", "worst draw", "KL of the prior", "covered"]
    rows = []
    for (shift, size, name), own in cells.items():
        worst = max(own, key=lambda r: r["loss"])
        covered = f"{clustered(own, 'covered')[0]:.1%}" if "covered" in own[0] else ""
        rows.append([shift, str(size), name, mean_and_error(own, "loss", "+.4f"),
                     f"{clustered(own, 'harmed')[0]:.1%}", f"{worst['loss']:+.3f} ({worst['case']})",
                     f"{clustered(own, 'kl')[0]:.4f}" if "kl" in own[0] else "", covered])  # fmt: skip
    about = (
        f"# Harm\n\n{len(cases)} classifiers, draws per cell: {options.draws}. Change of log-loss from the calibrated "
        f"probabilities left alone, mean over sets ± standard error between sets. Harmed: worse by more than {HARM}. "
        "Covered: 95 % intervals of the prior. With labels the other samples are judged."
    )
    store_cells("harm", about, head, rows)


if __name__ == "__main__":
    main()
