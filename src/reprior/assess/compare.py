"""Every method on the same rows."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from reprior._check import InputError, check_prior
from reprior._types import Vector
from reprior.assess.metrics import kl
from reprior.batch.registry import METHODS, Method, estimate, method_name
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.show import prior_log_likelihood
from reprior.rows.blocks import check_inputs
from reprior.rows.passes import e_step


class Compared(NamedTuple):
    """Result of one method.

    `seconds` is its run time (None if the estimate existed already), `distance` the total variation from the first
    estimate, and `kl` KL(true ‖ estimate) if the truth is known. `skipped` says why a method could not run.
    """

    method: str
    estimate: PriorEstimate | None
    seconds: float | None = None
    distance: float = 0.0
    kl: float | None = None
    skipped: str = ""

    @property
    def prior(self) -> Vector | None:
        return None if self.estimate is None else self.estimate.prior

    @property
    def log_likelihood(self) -> float | None:
        """Log-likelihood of `prior` per sample; None if most of the correction is not applied."""
        total = None if self.estimate is None else prior_log_likelihood(self.estimate)
        return None if self.estimate is None or total is None else total / self.estimate.n


class Comparison(tuple[Compared, ...]):
    """Results of several methods, in the order asked for; `print` shows a table."""

    def __repr__(self) -> str:
        has_truth = any(row.kl is not None for row in self)
        lines = [f"{'method':<14} {'distance':>9} {'log-lik./row':>13} {'time':>9}" + "  KL(true‖est.)" * has_truth]
        for row in self:
            if row.estimate is None:
                lines.append(f"{row.method:<14} {row.skipped}")
                continue
            fit = row.log_likelihood
            took = "" if row.seconds is None else f"{1000 * row.seconds:.0f} ms"
            line = f"{row.method:<14} {row.distance:>9.4f} {'—' if fit is None else f'{fit:.4f}':>13} {took:>9}"
            lines.append((line + (f" {row.kl:>14.4f}" if row.kl is not None else "")).rstrip())
        first = self[0].method if self else ""
        lines.append(f"Distance: total variation from {first} (0: the same prior, 1: no class in common).")
        return "\n".join(lines)


def compare(
    source: Any, proba: Any, methods: Sequence[str | Method] | None = None, *, true: Any = None,
    first: PriorEstimate | None = None, name: str = "this estimate",
) -> Comparison:  # fmt: skip
    """Run several methods on the same samples. `print` the result to see a table.

    Parameters
    ----------
    source, proba
        As in `estimate`.
    methods : sequence of str or callable, optional
        Methods to run; by default all of `METHODS`.
    true : (K,), optional
        True class prior, if it is known.
    first : PriorEstimate, optional
        An existing estimate to compare with.
    name : str
        Name of that estimate in the table.

    Examples
    --------
    >>> rows = [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]
    >>> [row.method for row in compare([1, 1], rows, ["ebls", "mlls"])]
    ['ebls', 'mlls']
    """
    training, target = check_inputs(source, proba, "compare")
    truth = None if true is None else check_prior(true, "compare", "true", allow_zero=True, classes=training.classes)
    e_step(target, np.ones(len(training.prior)))  # rows that must be decoded are, before any method is timed
    rows: list[Compared] = []
    if first is not None:
        rows.append(Compared(name, first, kl=None if truth is None else kl(truth, first.prior)))
    for method in methods if methods is not None else sorted(METHODS, key=lambda method: method != "ebls"):
        start = time.perf_counter()
        try:
            made = estimate(training, target, method)
        except InputError as error:
            why = "needs held-out samples with labels" if training.confusion is None else str(error)
            rows.append(Compared(method_name(method), None, skipped=why))
            continue
        seconds = time.perf_counter() - start
        reference = next((row.prior for row in rows if row.prior is not None), made.prior)
        distance = float(np.abs(made.prior - reference).sum() / 2)
        missed = None if truth is None else kl(truth, made.prior)
        rows.append(Compared(method_name(method), made, seconds, distance, missed))
    return Comparison(rows)
