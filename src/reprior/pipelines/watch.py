"""A deployment: batches of one classifier one after another, with a memory of whether changes were label shift."""

from __future__ import annotations

from dataclasses import replace
from threading import Lock
from typing import TYPE_CHECKING, Any

from reprior._check import check_choice
from reprior._types import Acts
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.verdict import ON_REJECT
from reprior.model.acting import Evidence, describe
from reprior.model.label_shift import MAX_LOG_EVIDENCE
from reprior.state import Saved, refuse, take

if TYPE_CHECKING:
    from reprior.pipelines.pipeline import Pipeline


class Watch(Saved):
    """Estimate batches one after another, and remember whether changes were label shift; made by `Pipeline.watch`.

    Each batch is tested for label shift, and the mean evidence of all tests counts. Corrections are scaled by the
    probability of label shift. After clear evidence against it, only labels of target samples can raise it again. What
    labels showed in one batch is one explanation of the labels in the next.

    Parameters
    ----------
    pipeline : Pipeline
        Estimates each batch.
    on_reject : str
        As in `Pipeline.estimate`.
    evidence : Evidence
        Evidence from earlier batches.
    n_batches : int
        Number of earlier batches.

    Examples
    --------
    >>> from reprior import pipeline
    >>> proba, y = [[0.8, 0.2], [0.3, 0.7], [0.9, 0.1]] * 40, [0, 1, 0] * 40
    >>> watch = pipeline(proba, y).watch()
    >>> est = watch.estimate(proba)
    >>> watch.n_batches, watch.acts.reason
    (1, 'No evidence against label shift (probability 91%).')
    """

    KIND = "watch"

    def __init__(
        self, pipeline: Pipeline, *, on_reject: str = "scale", evidence: Evidence | None = None, n_batches: int = 0
    ) -> None:
        self.pipeline, self.n_batches = pipeline, n_batches
        self.on_reject = check_choice(on_reject, "watch", "on_reject", ON_REJECT)
        self.evidence = Evidence() if evidence is None else evidence
        self._lock = Lock()

    def estimate(self, proba: Any, labels: Any = None, *, label_weights: Any = None) -> PriorEstimate:
        """Estimate a batch with the evidence of earlier batches, and remember what it adds.

        Parameters
        ----------
        proba, labels, label_weights
            As in `Pipeline.estimate`.
        """
        with self._lock:
            made, self.evidence = self.pipeline.estimate_after(
                self.evidence, proba, labels, label_weights, self.on_reject
            )
            self.n_batches += 1
        return made

    @property
    def acts(self) -> Acts:
        """How much of the next correction will be applied, and why."""
        tested = self.pipeline.source.heldout is not None
        return describe(self.evidence if tested else None, self.pipeline.settings)

    def fields(self, caller: str) -> dict[str, Any]:
        """Return what bytes hold of the watch."""
        e = self.evidence
        return {"on_reject": self.on_reject, "n_batches": self.n_batches,
                "evidence": [e.log_evidence, e.amplification, e.of_labels, e.n_tests],
                "log_weights": list(e.log_weights or []),
                **self.pipeline.fields(caller)}  # fmt: skip

    @classmethod
    def from_fields(cls, about: dict[str, Any], caller: str) -> Watch:
        """Return the watch whose `fields` bytes held."""
        from reprior.pipelines.pipeline import Pipeline

        n, numbers = take(about, "n_batches", int, caller), take(about, "evidence", list, caller)
        log_weights, pipeline = take(about, "log_weights", list, caller), Pipeline.from_fields(about, caller)
        sound = len(numbers) == 4 and len(log_weights) in (0, len(pipeline.source.prior))
        sound = sound and all(type(x) is float and abs(x) <= MAX_LOG_EVIDENCE for x in numbers + log_weights)
        if not sound or n < 0 or min(numbers[1], numbers[3]) < 1:
            refuse(caller, "data", "invalid numbers")
        evidence = replace(Evidence(*numbers), log_weights=tuple(log_weights) or None)
        return cls(pipeline, on_reject=take(about, "on_reject", str, caller), evidence=evidence, n_batches=n)

    def __repr__(self) -> str:
        return f"Watch({self.n_batches} batches; {self.acts.share:.0%} of the correction is applied)"
