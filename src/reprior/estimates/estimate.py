"""`PriorEstimate`: what a method returns, and what can be done with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from reprior._check import check_choice, check_flag, check_level, check_proba, fail, like_input
from reprior._labels import check_label
from reprior._types import Acts, Checks, Comparable, Interval, Matrix, Source, Status, Vector
from reprior.estimates import sets, show
from reprior.estimates.verdict import report_rejected
from reprior.rows.blocks import Blocks, by_name, check_top_k, is_top_k, numbered, top_k_in
from reprior.rows.calibrated import Calibrator
from reprior.rows.correction import correct_rows, correct_top_k, refuse_listed

if TYPE_CHECKING:
    from reprior.batch.driver import ModelSpread
    from reprior.model.interval import Posterior, PosteriorSpread

OF = ("shares", "prior")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PriorEstimate(Comparable, show.Displayed):
    """Estimates for target samples: `shares`, `prior` and `weights`, with intervals and tests.

    `shares` answers "what share of these samples is of each class?", `prior` "what is the class prior of the population
    they come from?", and `weights` "by what are predictions corrected?". `print` shows the tests and the largest
    changes.

    Parameters
    ----------
    prior : (K,)
        Class prior of the population.
    weights : (K,)
        Class weights, target prior over source prior: `correct` multiplies by them.
    shares : (K,)
        Class shares among these samples, with known labels counted: the mean corrected probability under label shift,
        or the mean prediction if label shift is improbable (`acts.share` below one half).
    status : Status
        Whether the method converged; `status.value` is a sentence.
    n_iter : int
        Number of iterations, or of passes over the samples.
    n : float
        Number of target samples.
    log_likelihood : float
        Log-likelihood of the samples under the prior of label shift, minus that under the source prior.
    source : Source
        The training side.
    target : Blocks, optional
        The samples as the method used them. `detach` drops them.
    calibrator : Calibrator, optional
        Calibrator of the pipeline. `correct` applies it.
    spread : PosteriorSpread or ModelSpread, optional
        Uncertainty of the estimate; `interval` uses it.
    checks : Checks, optional
        Results of the tests for shift and for label shift.
    alpha : (K,), optional
        Final Dirichlet parameters, if the method has any.
    posterior : Posterior, optional
        Posterior of shares and prior, if the default method made the estimate.
    on_reject : str
        What `correct` does if less than half of the correction is applied: "scale" warns, "refuse" raises `InputError`,
        "ignore" does nothing.
    acts : Acts, optional
        How much of the correction `weights` contain, and why; None if a method was called without a pipeline.
    scores : Scores, optional
        Held-out scores for prediction sets, which `detach` keeps.
    n_labels : int
        Number of target samples with a label.

    Examples
    --------
    >>> from reprior import ebls
    >>> est = ebls([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.3, 0.7]])
    >>> est.shares.round(2), est.weights.round(2), est.correct([[0.5, 0.5]]).shape
    (array([0.74, 0.26]), array([1.04, 0.95]), (1, 2))
    """

    prior: Vector
    weights: Vector
    shares: Vector
    status: Status
    n_iter: int
    n: float
    log_likelihood: float
    source: Source
    target: Blocks | None = field(default=None, compare=False)
    calibrator: Calibrator | None = None
    spread: ModelSpread | PosteriorSpread | None = field(default=None, compare=False)
    checks: Checks | None = None
    on_reject: str = "ignore"
    alpha: Vector | None = None
    posterior: Posterior | None = field(default=None, compare=False)
    scores: sets.Scores | None = field(default=None, compare=False)
    n_labels: int = 0
    acts: Acts | None = None

    def correct(self, proba: Any) -> Matrix:
        """Return probabilities (n, K) corrected to the estimated prior: multiplied by `weights` and normalised (eq. 8).

        Parameters
        ----------
        proba : (n, K) array, DataFrame, or top-k pair
            Predicted probabilities as the classifier returns them; the pipeline's calibrator is applied first. Columns
            of a DataFrame are matched to the classes by name. For a top-k pair the corrected probabilities of the
            listed classes are returned; no calibrator takes top-k pairs.
        """
        report_rejected(self)
        return self._correct(proba, "correct")

    def _correct(self, proba: Any, caller: str) -> Matrix:
        if is_top_k(proba):
            return self._correct_top_k(proba, caller)
        rows = by_name(proba, self.source.classes, caller)
        if self.calibrator is None:
            fixed = correct_rows(check_proba(rows, caller, "proba", len(self.weights)), self.weights)
        else:
            fixed = self.calibrator.reweighted(self.weights)(rows, caller=caller)
        return like_input(fixed, proba, self.source.classes)  # type: ignore[no-any-return]

    def _correct_top_k(self, proba: Any, caller: str) -> Matrix:
        (indices, values), prior = proba, self.weights * self.source.prior
        if self.calibrator is None:
            listed = check_top_k(indices, values, caller, self.source.prior)
            return correct_top_k(self.source, prior[None] / prior.sum(), listed)
        if self.calibrator.of_logits:
            refuse_listed(caller, "proba")
        like = top_k_in(self.target)  # a calibrator reads unlisted classes as it did for the estimate
        listed = check_top_k(indices, values, caller, self.source.prior if like is None else like.prior)
        out, corrector = np.empty(listed.values.shape), self.calibrator.reweighted(self.weights)
        for first, block in numbered(listed):
            here = slice(first, first + len(block))
            out[here] = np.take_along_axis(corrector(block), listed.indices[here].astype(np.intp), axis=1)
        return out

    def threshold(self, label: Any, at: float = 0.5) -> float:
        """Return the raw probability of a class at which its corrected probability is `at`, for two classes.

        If your system compares a score with a threshold, replace the threshold by this value instead of correcting.

        Parameters
        ----------
        label : str or int
            One of the two classes: its name or column index.
        at : float
            The corrected probability, between 0 and 1.

        Examples
        --------
        >>> from reprior import ebls
        >>> est = ebls([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.9, 0.1], [0.3, 0.7]] * 20)
        >>> round(est.threshold(1), 2), est.correct([[1 - est.threshold(1), est.threshold(1)]]).round(2)
        (0.92, array([[0.5, 0.5]]))
        """
        if len(self.weights) != 2:
            fail("threshold", "estimate", "have two classes, because one threshold cannot decide between more",
                 f"{len(self.weights)} classes", remedy="Correct the samples instead")  # fmt: skip
        own = check_label(label, "threshold", 2, self.source.classes, "label")
        wanted = check_level(at, "threshold", "at")
        log_odds = np.log(wanted / (1 - wanted)) - np.log(self.weights[own] / self.weights[1 - own])
        if self.calibrator is not None:  # its classes are centred, so that both scales act on half of the log-odds
            bias = self.calibrator.bias[own] - self.calibrator.bias[1 - own]
            log_odds = (log_odds - bias) / self.calibrator.scale.mean()
        return float(1 / (1 + np.exp(-log_odds)))

    def interval(self, level: float = 0.95, of: str = "shares") -> Interval:
        """Return lower and upper ends (K,), (K,) of an interval per class.

        Parameters
        ----------
        level : float
            Coverage probability of each interval, between 0 and 1.
        of : str
            "shares", the class shares among these samples, or "prior", the class prior of their population.
        """
        check_choice(of, "interval", "of", OF)
        return self._spread().at(check_level(level, "interval"), of)

    def _spread(self) -> ModelSpread | PosteriorSpread:
        if self.spread is None:
            fail("interval", "estimate", "come from a method that measures its uncertainty", "none",
                 remedy="Call the method with `reprior.estimate`, which adds intervals")  # fmt: skip
        return self.spread

    def prediction_sets(self, proba: Any, level: float = 0.9, *, by_class: bool = False) -> Any:
        """Return a set of classes per sample, as booleans (n, K). Sets contain the true class with probability `level`.

        Parameters
        ----------
        proba : (n, K)
            Predicted probabilities as the classifier returns them, as in `correct`. A DataFrame is returned for a
            DataFrame.
        level : float, default 0.9
            Probability that a set contains the true class, under the estimated prior.
        by_class : bool, default False
            Whether `level` holds within each class, for any prior. Sets are then larger. A class with fewer than
            level/(1 − level) held-out samples is in every set.
        """
        check_flag(by_class, "prediction_sets", "by_class")
        cutoffs = sets.scores(self).cutoffs(check_level(level, "prediction_sets"), by_class=by_class)
        rows = by_name(proba, self.source.classes, "prediction_sets")
        report_rejected(self)
        inside = self._correct(rows, "prediction_sets") >= (1 - sets.TIED) * cutoffs
        return like_input(np.asarray(inside), proba, self.source.classes)

    def detach(self) -> PriorEstimate:
        """Return the estimate without its samples: small, and still with intervals and prediction sets."""
        scores = self.scores if self.source.heldout is None else sets.scores(self)
        source = replace(self.source, heldout=None)
        return replace(self, target=None, source=source, spread=self._spread().without_rows(), scores=scores)

    def to_dict(self, level: float | None = 0.95) -> dict[str, Any]:
        """Return the estimate as plain lists, numbers and text, ready for JSON.

        Parameters
        ----------
        level : float or None
            Coverage probability of the intervals; None leaves them out.
        """
        interval, checks = None if level is None else self.interval(level), self.checks
        return {
            "verdict": show.verdicts(self), "shift_p": checks and checks.shift_p,
            "label_shift": checks and checks.label_shift,
            "acts": self.acts and self.acts._asdict(), "shares": self.shares.tolist(),
            "prior": self.prior.tolist(),
            "interval": None if interval is None else np.stack(interval, axis=1).tolist(),
            "classes": list(self.source.called), "source_prior": self.source.prior.tolist(),
            "weights": self.weights.tolist(),
            "status": self.status.name.lower(), "message": self.status.value, "n": float(self.n),
            "n_labels": self.n_labels, "n_iter": self.n_iter, "log_likelihood": show.prior_log_likelihood(self),
            "level": level, "note": "" if interval is None else interval.note, "source": self.source.made,
        }  # fmt: skip

    @property
    def notes(self) -> list[str]:
        """Sentences about the estimate: its tests, missing held-out samples, and what its interval includes."""
        return show.notes(self)
