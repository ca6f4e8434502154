"""Every method of the comparison as a function from what is known and the target outputs to an estimate."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from outputs import Outputs
from scipy.optimize import minimize

import reprior as rp
from reprior import Source, calibrate

PRINTED_C = (0.5, 1.0, 2.0, 4.0, 8.0)  # of N
PRINTED_ONLINE_C = (300.0, 1000.0, 3000.0, 10000.0, 30000.0)


@dataclass(frozen=True, slots=True)
class Known:
    """What a method may know of one classifier: raw outputs with the training prior, or calibrated with their own."""

    raw: Source
    calibrated: Source
    calibrator: calibrate.Calibrator


@dataclass(frozen=True, slots=True)
class Target:
    """The rows of a trial, raw and temperature-scaled; the true prior is for the ceiling only."""

    raw: np.ndarray
    calibrated: np.ndarray
    prior: np.ndarray


@dataclass(frozen=True, slots=True)
class Guess:
    """An estimated prior, and the weights that correct `rows` (the raw ones if None)."""

    prior: np.ndarray
    weights: np.ndarray
    rows: np.ndarray | None = None


Contender = Callable[[Known, Target], Guess]


def know(outputs: Outputs) -> Known:
    """Return what the held-out rows and the training counts tell."""
    raw = rp.summarize(outputs.held_out, outputs.y_held_out, prior=outputs.counts)
    calibrator = calibrate.temperature(outputs.held_out, outputs.y_held_out)
    return Known(raw, rp.summarize(calibrator(outputs.held_out), outputs.y_held_out), calibrator)


def batch(method: str, *, calibrated: bool = False, c_of_n: float | None = None, **options: object) -> Contender:
    def run(known: Known, target: Target) -> Guess:
        source, rows = (known.calibrated, target.calibrated) if calibrated else (known.raw, target.raw)
        more = options if c_of_n is None else {**options, "c": c_of_n * len(rows)}
        found = rp.estimate(source, rows, method, **more)
        return Guess(found.prior, found.weights, rows)
    return run


def online(method: str, *, calibrated: bool = False, **options: object) -> Contender:
    def run(known: Known, target: Target) -> Guess:
        source, rows = (known.calibrated, target.calibrated) if calibrated else (known.raw, target.raw)
        stream = rp.Stream(method, source, **options)
        stream.learn_many(rows)
        return Guess(stream.prior, stream.prior / source.prior, rows)
    return run


def rlls_undivided(known: Known, target: Target) -> Guess:
    """RLLS with a confusion matrix that was never divided by the number of held-out rows.

    The public code of the MAPLS authors computes it so; only here, to explain the paper's RLLS column.
    """
    source, raw = known.raw, target.raw
    n, k = float(source.counts.sum()), len(source.prior)
    hard = source.hard_confusion
    change = np.bincount(raw.argmax(1), minlength=k) / len(raw) - hard.sum(1)
    log_term = np.log(2 * k / 0.05)
    strength = 0.01 * 3 * (2 * log_term / (3 * n) + np.sqrt(2 * log_term / n))
    big = hard * n

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        residual = big @ theta - change
        a, b = np.sqrt(residual @ residual + 1e-30), np.sqrt(theta @ theta + 1e-30)
        return a + strength * b, big.T @ residual / a + strength * theta / b

    theta = minimize(objective, np.full(k, 1e-6), jac=True, method="L-BFGS-B", bounds=[(-1, None)] * k,
                     options={"maxiter": 200}).x
    prior = (1 + theta) * source.prior
    prior /= prior.sum()
    return Guess(prior, prior / source.prior)


def no_change(known: Known, target: Target) -> Guess:
    return Guess(known.raw.prior, np.ones_like(known.raw.prior))


def truth(known: Known, target: Target) -> Guess:
    return Guess(target.prior, target.prior / known.raw.prior)


def truth_calibrated(known: Known, target: Target) -> Guess:
    return Guess(target.prior, target.prior / known.calibrated.prior, target.calibrated)


CONTENDERS: dict[str, Contender] = {
    "true prior": truth,
    "true prior + TS": truth_calibrated,
    "source prior": no_change,
    "MLLS": batch("mlls", n_iter=100),
    "MLLS, converged": batch("mlls"),
    "BBSE": batch("bbse"),
    "BBSE, solve and clip": batch("bbse", solver="clip"),
    "RLLS": batch("rlls"),
    "RLLS, C undivided": rlls_undivided,
    "MAPLS": batch("mapls"),
    **{f"FMAPLS printed, c={c:g}N": batch("fmapls", variant="paper", c_of_n=c) for c in PRINTED_C},
    "FMAPLS": batch("fmapls"),
    "FMAPLS, GA": batch("fmapls", variant="paper", update="ga", c=1.0),
    "EBLS": batch("ebls"),
    **{f"online-FMAPLS printed, c={c:g}": online("online-fmapls", variant="paper", c=c) for c in PRINTED_ONLINE_C},
    "online-FMAPLS": online("online-fmapls"),
    "online-EBLS": online("online-ebls", drift=False),
    "online-EBLS, drift": online("online-ebls"),
    "MLLS + TS": batch("mlls", calibrated=True, n_iter=100),
    "BBSE + TS": batch("bbse", calibrated=True),
    "RLLS + TS": batch("rlls", calibrated=True),
    "MAPLS + TS": batch("mapls", calibrated=True),
    "FMAPLS + TS": batch("fmapls", calibrated=True),
    "EBLS + TS": batch("ebls", calibrated=True),
    "online-FMAPLS + TS": online("online-fmapls", calibrated=True),
    "online-EBLS + TS": online("online-ebls", calibrated=True, drift=False),
}
