"""Sections III-B and IV-C of hu2025: the error of the surrogate (LSF), rate against precision, fixed points.

python experiments/hu2025/analysis/run.py [--quick]

Writes three plots and analysis.json beside itself; with --quick into .work/, so that a trial run replaces nothing. The
outputs are exact posteriors of Gaussian classes, so that the truth is known and nothing but the recursions is on trial.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np

import reprior as rp
from reprior import bounds, simulate
from reprior.batch.fmapls import newton

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[1]))
import style  # noqa: E402  the look is shared with the other experiments
from style import BLACK, BLUE, GREY, ORANGE, RED, SERIES, plt  # noqa: E402

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


def surrogate_error(quick, folder):
    """Eq. 17 and 18: how far α = ĉπ is from a stationary point, and where gradient ascent goes instead."""
    prior = simulate.long_tail(K, 0.02)
    c_hat = np.logspace(1, 6, 26)
    errors = np.array([bounds.surrogate_error(prior, c) for c in c_hat])
    limits = np.array([bounds.surrogate_error_bounds(prior, c) for c in c_hat])  # eq. 18 with its constants
    bound = 1 / (c_hat[:, None] * prior)
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8))
    for (j, label), colour in zip(((K - 1, "smallest class"), (K // 2, "middle"), (0, "largest class")),
                                  (BLACK, BLUE, RED), strict=True):
        left.fill_between(c_hat, np.maximum(limits[:, 0, j], 1e-9), limits[:, 1, j], color=colour, alpha=0.2, lw=0)
        left.loglog(c_hat, errors[:, j], color=colour, label=f"{label}, π = {prior[j]:.3f}")
    left.set(xlabel="ĉ", ylabel="∂L/∂α at α = ĉπ", title="Error of the surrogate, and its bounds (shaded; eq. 17, 18)",
             ylim=(errors.min() / 2, errors.max() * 2))
    left.legend()
    steps = 2000 if quick else 20000
    curves = {}
    marks = set(np.unique(np.logspace(0, np.log10(steps), 60).astype(int)).tolist())
    for mu, colour in zip((0.1, 1.0, 10.0), (RED, BLUE, BLACK), strict=True):
        alpha, path = np.ones(K), []
        for t in range(1, steps + 1):
            alpha = np.maximum(alpha + mu * bounds.alpha_gradient(alpha, prior), 0.1 * alpha)
            if t in marks:
                path.append((t, alpha.sum()))
        curves[mu] = np.array(path)
        right.loglog(curves[mu][:, 0], curves[mu][:, 1], color=colour, label=f"gradient ascent, μ = {mu:g}")
    alpha, path = np.ones(K), []
    for t in range(1, 13):
        alpha = newton(alpha, prior)
        path.append((t, alpha.sum()))
    right.loglog(*np.array(path).T, color=ORANGE, label="Newton")
    right.set(xlabel="steps at a fixed π", ylabel="Σα", ylim=(10, 1e5),
              title="Gradient ascent (eq. 10): in the end Σα grows without bound")
    right.legend()
    style.save(fig, folder / "surrogate.png")
    return {
        "ratio_to_bound": {"min": float((errors / bound).min()), "max": float((errors / bound).max())},
        "within_bounds": bool(((limits[:, 0] < errors) & (errors < limits[:, 1])).all()),
        "sum_of_alpha_after_ga": {str(mu): float(path[-1, 1]) for mu, path in curves.items()},
        "steps": steps,
    }


def rate_and_precision(quick, folder):
    """Eq. 36 to 38: a constant c trades speed for precision, in the form that settles at all."""
    target = simulate.dirichlet(K, 1.0, rng=1)
    n, seeds = (4000, 2) if quick else (20000, 6)
    source, cs = UNIFORM, (30, 100, 300, 1000, 3000)
    settings = {f"stable, c = {c}": {"variant": "stable", "c": float(c)} for c in cs}
    settings["stable, c = auto"] = {"variant": "stable"}
    settings |= {f"printed, c = {c}": {"variant": "paper", "c": float(c)} for c in (300, 3000, 30000)}
    marks = np.unique(np.logspace(1, np.log10(n), 40).astype(int))
    fig, axes = plt.subplots(1, 2, figsize=(10, 3.8), sharey=True)
    colours = dict(zip(settings, (*SERIES[:6], BLACK, BLUE, RED), strict=True))
    results = {}
    for label, options in settings.items():
        curves = []
        for seed in range(seeds):
            rows, stream, curve = draw(target, n, seed), rp.Stream("online-fmapls", source, **options), []
            for a, b in zip([0, *marks[:-1]], marks, strict=True):
                stream.learn_many(rows[a:b])
                curve.append(rp.metrics.kl(target, np.maximum(stream.prior, 1e-12)))
            curves.append(curve)
        mean = np.mean(curves, axis=0)
        results[label] = {"kl_after_1000": float(np.interp(1000, marks, mean)), "kl_at_end": float(mean[-1])}
        axes[int(label.startswith("printed"))].loglog(marks, mean, color=colours[label], label=label.split(", ")[1],
                                                      lw=2.4 if "auto" in label else 1.6)
    axes[0].set(xlabel="samples", ylabel="KL(true ‖ estimate)", title="Posterior mean: small c fast, large c precise")
    axes[1].set(xlabel="samples", title="As printed: no c settles on the truth")
    for ax in axes:
        ax.legend()
    style.save(fig, folder / "rate.png")
    return {"samples": n, "seeds": seeds, "kl": results}


def fixed_points(quick, folder):
    """Where the recursions rest: batch, whatever c, at the same stationary point; online nowhere stable."""
    target = simulate.dirichlet(K, 1.0, rng=1)
    n = 2000
    rows = draw(target, n, 9)
    likely = rp.mlls(UNIFORM, rows).prior
    iterations = np.unique(np.geomspace(10, 1000 if quick else 10000, 9 if quick else 25).astype(int)).tolist()
    fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8))
    ends = {}
    looks = ((ORANGE, 5.0, "-"), (BLUE, 2.4, "-"), (BLACK, 1.2, (0, (5, 2))))  # thick below thin: they end on one line
    for c, (colour, width, dash) in zip((n / 4, n, 4 * n), looks, strict=True):
        path = [rp.fmapls(UNIFORM, rows, variant="paper", c=c, n_iter=t).prior for t in iterations]
        ends[f"c = {c:g}"] = path[-1]
        shown = [rp.metrics.kl(target, np.maximum(p, 1e-9)) for p in path]  # a dead class is as dead in every curve
        left.loglog(iterations, shown, color=colour, lw=width, ls=dash, label=f"c = {c / n:g} N")
    optimum = rp.metrics.kl(target, np.maximum(likely, 1e-12))
    left.axhline(optimum, color=GREY, lw=1, ls="--", label="maximum likelihood")
    left.set(
        xlabel="iterations",
        ylabel="KL(true ‖ estimate)",
        title="Batch: every c ends at the same point",
    )
    left.legend()
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
        label, colour = ("printed (eq. 36)", RED) if variant == "paper" else ("posterior mean", BLUE)
        right.semilogy(sizes, color=colour, label=label)
        if variant == "paper":
            growth = float(np.log(sizes[500] / sizes[0]) / 500)
    right.set(xlabel="samples that say nothing new", ylabel="largest deviation from uniform",
              title=f"Online, c = {c:g}: the printed fixed point is unstable")  # fmt: skip
    right.legend()
    style.save(fig, folder / "fixed_points.png")
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
    folder = HERE / ".work" if quick else HERE
    results = {f.__name__: f(quick, folder) for f in (surrogate_error, rate_and_precision, fixed_points)}
    (folder / "analysis.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
