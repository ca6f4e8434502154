"""Every method of the comparison as a function from what is known and the target outputs to an estimate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from outputs import Outputs
from scipy.optimize import minimize

import reprior as rp
from reprior import Source, calibrate
from reprior.pipelines.pipeline import Pipeline

PRINTED_C = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # of N; each experiment runs those around its best
GRADIENT = ((0.01, 10), (100.0, 10), (100.0, 100), (300.0, 100))  # μ, T_grad: a usual small step, the best of sweeps
PRINTED_ONLINE_C = (300.0, 1000.0, 3000.0, 10000.0, 30000.0)


@dataclass(frozen=True, slots=True)
class Known:
    """What a method may know of one classifier: the source of its raw outputs, and of calibrated ones, by name.

    Raw outputs come with the training prior, as in the paper; calibrated ones with their own mean.
    """

    sources: dict[str, Source]
    calibrators: dict[str, Callable[[np.ndarray], np.ndarray]]
    pipelines: dict[str, Pipeline]


@dataclass(frozen=True, slots=True)
class Target:
    """The rows of a trial, raw and calibrated, by name; the true prior is for the ceiling only."""

    rows: dict[str, np.ndarray]
    prior: np.ndarray


@dataclass(frozen=True, slots=True)
class Guess:
    """An estimated prior, and the weights that correct the rows called `use`."""

    prior: np.ndarray
    weights: np.ndarray
    use: str = "raw"


Contender = Callable[[Known, Target], Guess]


def know(outputs: Outputs) -> Known:
    """Return what the held-out rows and the training counts tell."""
    rows, y = outputs.held_out, outputs.y_held_out
    calibrators = {"TS": calibrate.fit(rows, y, kind="ts"), "BCTS": calibrate.fit(rows, y, kind="bcts", ridge=10)}
    sources = {name: rp.summarize(c(rows), y) for name, c in calibrators.items()}
    sources["raw"], sources["mean"] = rp.summarize(rows, y, prior=outputs.counts), rp.summarize(rows, y)
    pipelines = {"default": rp.pipeline(rows, y, counts=outputs.counts),
                 "FMAPLS": rp.pipeline(rows, y, counts=outputs.counts, method="fmapls")}
    made = {"mean": np.asarray, **calibrators, **{name: p.calibrate for name, p in pipelines.items()}}
    return Known(sources, made, pipelines)


def batch(method: str, use: str = "raw", *, c_of_n: float | None = None, **options: object) -> Contender:
    def run(reference: Known, target: Target) -> Guess:
        more = options if c_of_n is None else {**options, "c": c_of_n * len(target.rows[use])}
        estimate = rp.estimate(reference.sources[use], target.rows[use], method, **more)
        return Guess(estimate.prior, estimate.weights, use)
    return run


def online(method: str, use: str = "raw", **options: object) -> Contender:
    def run(reference: Known, target: Target) -> Guess:
        stream = rp.Stream(method, reference.sources[use], **options)
        stream.learn_many(target.rows[use])
        return Guess(stream.prior, stream.prior / reference.sources[use].prior, use)
    return run


def pipeline(use: str) -> Contender:
    def run(reference: Known, target: Target) -> Guess:
        p = reference.pipelines[use]  # its `estimate`, on rows that it has calibrated already
        estimate = rp.estimate(p.source, target.rows[use], p.method, **p.options)
        return Guess(estimate.prior, estimate.weights, use)
    return run


def truth(use: str = "raw") -> Contender:
    return lambda reference, target: Guess(target.prior, target.prior / reference.sources[use].prior, use)


def rlls_undivided(*, soft: bool, soft_target: bool | None = None) -> Contender:
    """RLLS with a confusion matrix that was never divided by the number of held-out rows.

    Public code of the MAPLS authors (github.com/ChangkunYe/MAPLS) computes it so. Its "soft" mode has soft outputs on
    both sides; its "hard" mode has a hard confusion matrix and the soft mean output of the target (`soft_target`).
    """
    soft_target = soft if soft_target is None else soft_target

    def run(reference: Known, target: Target) -> Guess:
        source, raw = reference.sources["raw"], target.rows["raw"]
        n, k = float(source.counts.sum()), len(source.prior)
        joint = source.confusion if soft else source.hard_confusion
        mean = raw.mean(0) if soft_target else np.bincount(raw.argmax(1), minlength=k) / len(raw)
        change, big = mean - joint.sum(1), joint * n
        log_term = np.log(2 * k / 0.05)
        strength = 0.01 * 3 * (2 * log_term / (3 * n) + np.sqrt(2 * log_term / n))

        def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
            residual = big @ theta - change
            a, b = np.sqrt(residual @ residual + 1e-30), np.sqrt(theta @ theta + 1e-30)
            return a + strength * b, big.T @ residual / a + strength * theta / b

        theta = minimize(objective, np.full(k, 1e-6), jac=True, method="L-BFGS-B", bounds=[(-1, None)] * k,
                         options={"maxiter": 200}).x
        prior = (1 + theta) * source.prior
        prior /= prior.sum()
        return Guess(prior, prior / source.prior)
    return run


def no_change(reference: Known, target: Target) -> Guess:
    prior = reference.sources["raw"].prior
    return Guess(prior, np.ones_like(prior))


CONTENDERS: dict[str, Contender] = {
    "true prior": truth(),
    "true prior + TS": truth("TS"),
    "source prior": no_change,
    "MLLS": batch("mlls", n_iter=100),
    "MLLS, converged": batch("mlls"),
    "BBSE": batch("bbse"),
    "BBSE, solve and clip": batch("bbse", solver="clip"),
    "RLLS": batch("rlls"),
    "RLLS, C undivided": rlls_undivided(soft=True),
    "MAPLS": batch("mapls"),
    **{f"FMAPLS printed, c={c:g}N": batch("fmapls", variant="paper", c_of_n=c) for c in PRINTED_C},
    "FMAPLS": batch("fmapls"),
    **{f"FMAPLS printed, GA, μ={mu:g}, T_grad={t}": batch(
        "fmapls", variant="paper", update="ga", c=1.0, mu=mu, n_grad=t) for mu, t in GRADIENT},
    "FMAPLS, Newton": batch("fmapls", update="newton"),
    "EBLS": batch("ebls"),
    **{f"online-FMAPLS printed, c={c:g}": online("online-fmapls", variant="paper", c=c) for c in PRINTED_ONLINE_C},
    "online-FMAPLS": online("online-fmapls", start_at="uniform"),  # as the paper's starts
    "online-FMAPLS, from the source": online("online-fmapls"),
    "online-EBLS": online("online-ebls", drift=False),
    "online-EBLS, drift": online("online-ebls"),
    "MAPLS, mean output as prior": batch("mapls", "mean"),
    "FMAPLS, mean output as prior": batch("fmapls", "mean"),
    "MLLS + TS": batch("mlls", "TS", n_iter=100),
    "BBSE + TS": batch("bbse", "TS"),
    "RLLS + TS": batch("rlls", "TS"),
    "MAPLS + TS": batch("mapls", "TS"),
    "FMAPLS + TS": batch("fmapls", "TS"),
    "EBLS + TS": batch("ebls", "TS"),
    "FMAPLS + BCTS": batch("fmapls", "BCTS"),
    "default pipeline": pipeline("default"),
    "default pipeline with FMAPLS": pipeline("FMAPLS"),
    "online-FMAPLS + TS": online("online-fmapls", "TS", start_at="uniform"),
    "online-EBLS + TS": online("online-ebls", "TS", drift=False),
}
