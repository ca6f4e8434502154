"""Sections III-B and IV-C of hu2025: the error of the surrogate (LSF), rate against precision, fixed points.

python experiments/analysis/run.py [--quick]

Writes three plots and analysis.json beside itself. The outputs are exact posteriors of Gaussian classes, so that the
truth is known and nothing but the recursions is on trial.
"""

import argparse
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from scipy.special import digamma

import reprior as rp
from reprior import simulate

HERE = Path(__file__).parent
K = 20
MEANS = np.random.default_rng(0).normal(size=(K, 8))
UNIFORM = np.full(K, 1 / K)


def draw(prior, n, seed):
    """Return exact posteriors (n, K) under a uniform source."""
    rng = np.random.default_rng(seed)
    x = MEANS[rng.choice(K, n, p=prior)] + rng.normal(size=(n, MEANS.shape[1]))
    logits = x @ MEANS.T - 0.5 * (MEANS**2).sum(axis=1)
    proba = np.exp(logits - logits.max(axis=1, keepdims=True))
    return proba / proba.sum(axis=1, keepdims=True)


def gradient(alpha, prior):
    """Return ∂L_α/∂α_j (K,) of eq. 17 for any α."""
    return digamma(alpha.sum()) - digamma(alpha) + np.log(prior)


def surrogate_error(quick):
    """Eq. 17 and 18: how far α = ĉπ is from a stationary point, and where gradient ascent goes instead."""
    prior = simulate.long_tail(K, 0.02)
    c_hat = np.logspace(1, 6, 26)
    errors = np.array([np.abs(gradient(c * prior, prior)) for c in c_hat])
    bound = 1 / (c_hat[:, None] * prior)  # eq. 18 with its constant: log x − ψ(x) lies between 1/2x and 1/x
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    for j, label in ((0, "largest class"), (K // 2, "middle"), (K - 1, "smallest class")):
        left.loglog(c_hat, errors[:, j], label=f"{label}, π = {prior[j]:.3f}")
    left.loglog(c_hat, bound[:, -1], "k--", lw=1, label="1/(ĉπ), smallest class")
    left.loglog(c_hat, bound[:, -1] / 2, "k:", lw=1, label="1/(2ĉπ), smallest class")
    left.set(xlabel="ĉ", ylabel="|∂L/∂α| at α = ĉπ", title="Error of the surrogate (eq. 17, 18)")
    left.legend(fontsize=8)
    steps = 2000 if quick else 20000
    curves = {}
    for mu in (0.1, 1.0, 10.0):
        alpha, path = np.ones(K), []
        for t in range(steps):
            alpha = np.maximum(alpha + mu * gradient(alpha, prior), 0.1 * alpha)
            if t in np.unique(np.logspace(0, np.log10(steps - 1), 60).astype(int)):
                path.append((t, alpha.sum(), np.abs(gradient(alpha, prior)).max()))
        curves[mu] = np.array(path)
        right.loglog(curves[mu][:, 0], curves[mu][:, 1], label=f"GA, μ = {mu:g}")
    right.set(xlabel="gradient steps at a fixed π", ylabel="Σα", title="Gradient ascent (eq. 10): Σα only grows")
    right.legend(fontsize=8)
    fig.savefig(HERE / "surrogate.png", dpi=110)
    plt.close(fig)
    return {
        "ratio_to_bound": {"min": float((errors / bound).min()), "max": float((errors / bound).max())},
        "sum_of_alpha_after_ga": {str(mu): float(path[-1, 1]) for mu, path in curves.items()},
        "steps": steps,
    }


def rate_and_precision(quick):
    """Eq. 36 to 38: a constant c trades speed for precision, in the form that settles at all."""
    target = simulate.dirichlet(K, 1.0, rng=1)
    n, seeds = (4000, 2) if quick else (20000, 6)
    source, cs = UNIFORM, (30, 100, 300, 1000, 3000)
    settings = {f"stable, c = {c}": {"variant": "stable", "c": float(c)} for c in cs}
    settings["stable, c = auto"] = {"variant": "stable"}
    settings |= {f"printed, c = {c}": {"variant": "paper", "c": float(c)} for c in (300, 3000, 30000)}
    marks = np.unique(np.logspace(1, np.log10(n), 40).astype(int))
    fig, axes = plt.subplots(1, 2, figsize=(11, 4), sharey=True, layout="constrained")
    found = {}
    for label, options in settings.items():
        curves = []
        for seed in range(seeds):
            rows, stream, curve = draw(target, n, seed), rp.Stream("online-fmapls", source, **options), []
            for a, b in zip([0, *marks[:-1]], marks, strict=True):
                stream.learn_many(rows[a:b])
                curve.append(rp.metrics.kl(target, np.maximum(stream.prior, 1e-12)))
            curves.append(curve)
        mean = np.mean(curves, axis=0)
        found[label] = {"kl_after_1000": float(np.interp(1000, marks, mean)), "kl_at_end": float(mean[-1])}
        axes[int(label.startswith("printed"))].loglog(marks, mean, label=label.split(", ")[1])
    axes[0].set(xlabel="samples", ylabel="KL(true ‖ estimate)", title="Posterior mean: small c fast, large c precise")
    axes[1].set(xlabel="samples", title="As printed: no c settles on the truth")
    for ax in axes:
        ax.legend(fontsize=8)
    fig.savefig(HERE / "rate.png", dpi=110)
    plt.close(fig)
    return {"samples": n, "seeds": seeds, "kl": found}


def fixed_points(quick):
    """Where the recursions rest: batch, whatever c, at the maximum under Dirichlet(0); online nowhere stable."""
    target = simulate.dirichlet(K, 1.0, rng=1)
    n = 2000
    rows = draw(target, n, 9)
    likely = rp.mlls(UNIFORM, rows).prior
    iterations = (10, 30, 100, 300, 1000) if quick else (10, 30, 100, 300, 1000, 3000, 10000)
    fig, (left, right) = plt.subplots(1, 2, figsize=(11, 4), layout="constrained")
    ends = {}
    for c in (n / 4, n, 4 * n):
        path = [rp.fmapls(UNIFORM, rows, variant="paper", c=c, n_iter=t).prior for t in iterations]
        ends[f"c = {c:g}"] = path[-1]
        left.loglog(iterations, [rp.metrics.kl(target, p) for p in path], marker="o", ms=3, label=f"c = {c:g}")
    left.axhline(rp.metrics.kl(target, np.maximum(likely, 1e-12)), color="k", lw=1, ls="--", label="maximum likelihood")
    left.set(
        xlabel="iterations",
        ylabel="KL(true ‖ estimate)",
        title="Batch: every c ends at the same point",
    )
    left.legend(fontsize=8)
    ends = np.array(list(ends.values()))
    # online: expected motion Δπ ∝ s − 1 + (K−1)π for samples that say nothing new; deviations from uniform grow
    c, steps = 1000.0, 4000
    start = UNIFORM + 1e-3 * (np.arange(K) == 0)
    start /= start.sum()
    for variant in ("paper", "stable"):
        pi, sizes = start.copy(), []
        for _ in range(steps):
            c_hat = c / pi.max()
            moved = c_hat * pi + pi - (variant == "paper")  # S = E r = π: the sample agrees with what is believed
            pi = np.maximum(moved / (c_hat + 1 - K * (variant == "paper")), 1e-12)
            pi /= pi.sum()
            sizes.append(np.abs(pi - UNIFORM).max())
        right.semilogy(sizes, label="printed (eq. 36)" if variant == "paper" else "posterior mean")
        if variant == "paper":
            growth = float(np.log(sizes[500] / sizes[0]) / 500)
    right.set(xlabel="samples that say nothing new", ylabel="largest deviation from uniform",
              title=f"Online, c = {c:g}: the printed fixed point is unstable")  # fmt: skip
    right.legend(fontsize=8)
    fig.savefig(HERE / "fixed_points.png", dpi=110)
    plt.close(fig)
    spread = float(np.abs(ends - ends.mean(axis=0)).sum(axis=1).max())
    counts = n * (rows * (ends[0] / UNIFORM) / (rows @ (ends[0] / UNIFORM))[:, None]).mean(axis=0)
    alive = ends[0] > 1e-9
    residual = np.abs(ends[0] * (n - alive.sum()) - (counts - 1))[alive].max()  # where no class has been killed: n − K
    return {
        "l1_between_ends": spread, "iterations": iterations[-1], "dirichlet_0_residual_in_counts": float(residual),
        "classes_killed": int((~alive).sum()), "growth_per_sample": growth, "one_over_c": 1 / c,
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    found = {f.__name__: f(quick) for f in (surrogate_error, rate_and_precision, fixed_points)}
    (HERE / "analysis.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
