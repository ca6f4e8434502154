"""Draw the plots of docs/drift-and-alarms.md.

    python benchmarks/drift_plots.py [--out docs/img]

Needs results/drift_swap.json, which drift.py makes.
"""

import argparse
import json
import sys
from pathlib import Path

from _record import RESULTS  # isort: split

import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "experiments"))
import style
from drift import Follower, kl_rows, population, problem, target, trajectory

import reprior as rp
from reprior import simulate
from reprior.assess.bounds import next_prior
from reprior.online.alarm import Alarm
from reprior.online.ebls import OnlineEbls
from reprior.online.fmapls import OnlineFmapls
from reprior.online.published import PEERS

COLOURS = {
    "online-ebls": style.METHODS["online-EBLS"], "fresh online-ebls": style.BLACK,
    "online-ebls, drift=False": style.PINK, "online-fmapls": style.METHODS["online-FMAPLS"],
    "ftfwh 1000": style.GREEN, "flh-ftl": style.GREY,
}  # fmt: skip


def follow(out):
    """Recovery from a sudden swap, and the share of ten classes along a drift."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 3.8))
    stored = json.loads((RESULTS / "drift_swap.json").read_text())["problems"]["banking77"]
    for label, curve in stored["curves, every 100"].items():
        left.semilogy(100 * np.arange(len(curve)), curve, color=COLOURS[label], label=label,
                      ls="--" if "fresh" in label else "-")  # fmt: skip
    left.axhline(2 * stored["stationary KL"], color="black", lw=0.8, ls=":")
    left.annotate("2 × stationary", (4000, 2 * stored["stationary KL"]), ha="right", va="bottom", fontsize=8)
    left.set(
        title="Banking77: after a sudden swap of the prior",
        xlabel="samples since the swap",
        ylabel="KL(true ‖ estimate)",
    )
    ends = [(100 * (len(curve) - 1), curve[-1], label, COLOURS[label]) for label, curve in
            stored["curves, every 100"].items()]  # fmt: skip
    style.label_ends(left, ends)
    source, pool, y = problem("banking77")
    rng = np.random.default_rng(3)
    first, second = (target("dirichlet", len(source.prior), rng) for _ in range(2))
    path = simulate.drift(first, second, n=1000, kind="squ", period=250)
    sample = simulate.draw_stream(pool, y, path, repeat=10, rng=rng)
    ten = np.argsort(first - second)[:10]
    right.plot(10 * np.arange(1000), path[:, ten].sum(axis=1), color="black", lw=1, label="true share")
    for label, method in (("ftfwh 1000", PEERS["ftfwh"](source)), ("flh-ftl", PEERS["flh-ftl"](source)),
                          ("online-ebls", OnlineEbls(source))):  # fmt: skip
        right.plot(
            10 * np.arange(1000),
            trajectory(method, sample.proba)[0][:, ten].sum(axis=1),
            color=COLOURS[label],
            label=label,
        )
    right.set(title="Ten of 77 classes together, square drift", xlabel="samples", ylabel="share", ylim=(0, None))
    right.legend(ncol=4, loc="upper center", bbox_to_anchor=(0.5, -0.16))
    style.save(figure, out / "drift.png")


def alarm(out):
    """Evidence along quiet streams and along streams whose head class halves."""
    figure, axis = plt.subplots(figsize=(7.5, 4))
    pool, y, prior, chance = population("banking77", 0.3)
    halved = prior.copy()
    halved[prior.argmax()] /= 2
    halved /= halved.sum()
    before, after = chance(prior), chance(halved)
    for seed in range(18):
        rng = np.random.default_rng(seed)
        held = rng.choice(len(y), 4000, p=before)
        source = rp.summarize(pool[held], y[held])
        moves = seed < 6
        rows = np.concatenate(
            [rng.choice(len(y), 1000, p=before), rng.choice(len(y), 1000, p=after if moves else before)]
        )
        watched, stream, evidence = Alarm(source), Follower(OnlineEbls(source)), [0.0]
        for first in range(0, 2000, 20):
            evidence.append(watched.watch(stream, pool[rows[first : first + 20]]).evidence)
        label = {0: "head class halved at 1,000", 6: "nothing moved"}.get(seed)
        axis.plot(
            20 * np.arange(101),
            evidence,
            color=style.RED if moves else style.GREY,
            lw=1.2 if moves else 0.8,
            label=label,
        )
    axis.axhline(np.log(1e4), color="black", lw=0.8, ls=":")
    axis.annotate("alarm", (0, np.log(1e4)), va="bottom", fontsize=9)
    axis.axvline(1000, color="black", lw=0.6)
    axis.set(title="Banking77 outputs, head class 30 %, 4,000 held-out rows", xlabel="samples", ylabel="log evidence")
    axis.legend(loc="center left")
    style.save(figure, out / "alarm.png")


def printed(out):
    """What the printed recursion does for any c, beside the posterior mean."""
    source, pool, y = problem("simulated100")
    k, n = len(source.prior), 6000
    rng = np.random.default_rng(0)
    truth = target("dirichlet", k, rng)
    rows = simulate.draw_stream(pool, y, np.tile(truth, (n, 1)), rng=rng).proba
    figure, axis = plt.subplots(figsize=(7.5, 4))
    for c, colour in ((100, style.BLACK), (300, style.BLUE), (1000, style.PINK), (10000, style.GREY)):
        prior, path = np.full(k, 1 / k), []
        for i, p in enumerate(rows):
            if i % 20 == 0:
                path.append(prior)
            r = p / source.prior * prior
            if c / prior.max() <= k - 1:  # the printed denominator is no longer positive
                break
            prior = np.maximum(next_prior(prior, r / r.sum(), c_hat=c / prior.max()), 1e-12)
            prior = prior / prior.sum()
        axis.semilogy(20 * np.arange(len(path)), kl_rows(truth[None], np.array(path)), color=colour,
                      label=f"as printed, c = {c:,}")  # fmt: skip
    for label, method in (("stable, c = auto", OnlineFmapls(source)), ("online-ebls", OnlineEbls(source))):
        colour = COLOURS["online-fmapls" if "stable" in label else label]
        axis.semilogy(
            20 * np.arange(n // 20), kl_rows(truth[None], trajectory(method, rows, 20)[0]), color=colour, label=label
        )
    axis.set(title="K = 100, a prior that stays", xlabel="samples", ylabel="KL(true ‖ estimate)")
    style.label_ends(
        axis, [(line.get_xdata()[-1], line.get_ydata()[-1], line.get_label(), line.get_color()) for line in axis.lines]
    )
    style.save(figure, out / "printed.png")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[1] / "docs" / "img")
    parser.add_argument("--only", choices=("follow", "alarm", "printed"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for draw in (follow, alarm, printed):
        if options.only in (None, draw.__name__):
            draw(options.out)


if __name__ == "__main__":
    main()
