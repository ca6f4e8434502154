"""Calibrators: speed and likelihood against `abstention`, and KL of each estimator after each calibrator.

    python benchmarks/calibration.py [--repeats 5] [--seeds 3]

The first part wants `pip install abstention`. The ResNet-32 outputs of experiments/hu2025 take part if they are there.
"""

import argparse
import time

from _record import markdown, progress, store  # isort: split

import numpy as np
from _outputs import networks, shipped, targets

import reprior as rp
from reprior import calibrate

FLOOR = 1e-8
KINDS = {"TS": "temperature", "BCTS": "bias-corrected", "NBVS": "no-bias-vector", "VS": "vector"}


def simulated(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return overconfident and biased outputs (n, K) of a Gaussian classifier on a long tail, and labels."""
    rng = np.random.default_rng(0)
    prior = rp.simulate.long_tail(k, 0.02)
    y, centres = rng.choice(k, n, p=prior), 0.55 * rng.normal(size=(k, 32))
    z = (centres[y] + rng.normal(size=(n, 32))) @ centres.T - 0.5 * (centres**2).sum(axis=1) + np.log(prior)
    z = 1.8 * z + 0.4 * rng.normal(size=k)
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True), y


def speed(repeats: int) -> tuple[dict[str, dict[str, dict[str, float]]], str]:
    from abstention.calibration import NoBiasVectorScaling, TempScaling, VectorScaling

    peers = {
        "TS": TempScaling(),
        "BCTS": TempScaling(bias_positions="all"),
        "NBVS": NoBiasVectorScaling(),
        "VS": VectorScaling(),
    }
    inputs = {"simulated": simulated(5000, 100)}
    inputs |= {o.name: (o.pool[:5000], o.pool_y[:5000]) for o in networks()}
    figures, rows = {}, []
    for name, (proba, y) in inputs.items():
        figures[name] = {}
        at = np.arange(len(y)), y
        for short, peer in peers.items():
            spent: dict[str, list[float]] = {"ours": [], "abstention": []}
            for _ in range(repeats):  # in turns, so that a busy moment hits both
                start = time.process_time()
                ours = calibrate.fit(proba, y, kind=KINDS[short], ridge=0)
                spent["ours"].append(time.process_time() - start)
                start = time.process_time()
                theirs = peer(proba, np.eye(proba.shape[1])[y], posterior_supplied=True)
                spent["abstention"].append(time.process_time() - start)
            best = {who: min(times) for who, times in spent.items()}
            likelihood = [float(np.log(f(proba)[at]).mean()) for f in (ours, theirs)]
            figures[name][short] = {**best, "ratio": best["abstention"] / best["ours"], "log-likelihood": likelihood[0],
                                    "abstention's": likelihood[1]}  # fmt: skip
            rows.append([name, short, f"{1000 * best['ours']:.0f}", f"{1000 * best['abstention']:.0f}",
                         f"{best['abstention'] / best['ours']:.1f}", f"{likelihood[0]:.7f}",
                         f"{likelihood[0] - likelihood[1]:+.1e}"])  # fmt: skip
    head = [
        "outputs (5000 × 100)",
        "calibrator",
        "ours, ms CPU",
        "abstention, ms CPU",
        "ratio",
        "mean log-likelihood",
        "less abstention's",
    ]
    return figures, markdown(head, rows)


def quality(seeds: int, n: int) -> tuple[dict[str, dict[str, dict[str, list[float]]]], str]:
    def loss(target, source, cal, method):
        found = rp.estimate(source, cal(target.proba) if cal else target.proba, method)
        return round(rp.metrics.kl(target.prior, found.prior, floor=FLOOR), 6)

    figures, parts = {}, []
    sets = [*shipped(), *networks()]
    for done, o in enumerate(sets, 1):
        drawn = [t for _, t in targets(o, seeds=seeds, n=n, draw=77)]
        sources = {"raw, training counts": (None, rp.summarize(o.heldout, o.heldout_y, prior=o.counts)),
                   "raw, mean output": (None, rp.summarize(o.heldout, o.heldout_y))}  # fmt: skip
        fits = {short: calibrate.fit(o.heldout, o.heldout_y, kind=kind) for short, kind in KINDS.items()}
        fits["TS of the likelihood"] = calibrate.likelihood_temperature(o.heldout, o.heldout_y, prior=o.counts)
        for short, cal in fits.items():
            out = cal(o.heldout)
            sources[f"{short}, mean output"] = (cal, rp.summarize(out, o.heldout_y))
            if short == "TS":
                sources["TS, training counts"] = (cal, rp.summarize(out, o.heldout_y, prior=o.counts))
        figures[o.name] = {
            name: {
                method: [loss(t, source, cal, method) for t in drawn]
                for method in ("mlls", "mapls", "fmapls", "ebls", "bbse", "rlls")
            }
            for name, (cal, source) in sources.items()
        }  # fmt: skip
        rows = [[name, *(f"{np.mean(kl):.3f}" for kl in row.values())] for name, row in figures[o.name].items()]
        parts.append(f"### {o.name}\n\n" + markdown(["mean KL", *next(iter(figures[o.name].values()))], rows))
        progress(done, len(sets), o.name)
    return figures, "\n\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--n", type=int, default=2000)
    options = parser.parse_args()
    fast, fast_table = speed(options.repeats)
    good, good_table = quality(options.seeds, options.n)
    text = (
        f"# Calibration\n\n## Fitting, without ridge: best of {options.repeats} turns\n\n{fast_table}\n\n"
        f"## Estimates after calibration\n\nMean KL(true ‖ estimate) over {options.seeds} seeds of five shifts, "
        f"{options.n} target rows; calibrated and summarised on all held-out rows, ridge 1.\n\n{good_table}"
    )
    store("calibration", {"speed": fast, "kl": good, "n": options.n}, text)


if __name__ == "__main__":
    main()
