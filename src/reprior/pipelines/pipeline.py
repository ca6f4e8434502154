"""The artefact: what is learned about a classifier from held-out rows, fitted once, saved to one file, run everywhere.

`Pipeline.estimate` is the one way in which it is applied, to arrays, data frames, top-k rows, files and whatever else
can be `Blocks`. The page "Which method should I use?" of the docs has the defaults and their measurements.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from reprior._check import check_choice, check_prior, fail, like_input
from reprior._labels import same_rows
from reprior._types import Comparable, Matrix, Source, Vector
from reprior.assess.causes import likely_causes
from reprior.assess.diagnose import Diagnosis, checks, diagnose, evidence_of, look
from reprior.assess.query import labels_needed
from reprior.batch.registry import METHODS, Method, check_options, estimate, method_name
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.groups import Groups
from reprior.estimates.verdict import ON_REJECT
from reprior.model.acting import Evidence, act, describe
from reprior.model.classifier_error import measure_error
from reprior.model.groups import group_means, groups, of_estimates, scale_groups
from reprior.model.samples import base_factor
from reprior.model.settings import DEFAULT, Settings
from reprior.online.stream import Stream
from reprior.online.table import StreamTable
from reprior.pipelines.mismatch import label_mismatch
from reprior.pipelines.source import smallest_rise
from reprior.pipelines.watch import Watch
from reprior.rows.blocks import ArrayBlocks, Blocks, as_blocks, block_names, by_name, in_columns, is_top_k
from reprior.rows.calibrated import CalibratedBlocks, Calibrator, calibration_of
from reprior.rows.correction import correct
from reprior.rows.grouped import GroupedRows, factorize
from reprior.rows.labelled import LabelledBlocks, labelled
from reprior.rows.passes import count_rows
from reprior.rows.stored import from_fields, to_fields
from reprior.state import Saved, refuse, take

if TYPE_CHECKING:
    from reprior.pipelines.select import Candidate


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline(Comparable, Saved):
    """Calibrator, source and method of one classifier; made by `pipeline` or `select`, or read by `load`.

    A pipeline never changes. Pass it the probabilities that the classifier returns; it calibrates them first.

    Parameters
    ----------
    calibrator : Calibrator or None
        Applied to the classifier's probabilities first; None if nothing is calibrated.
    source : Source
        The prior that calibrated probabilities imply, the class names, and the calibrated held-out samples, if any.
    method : str or callable
        A name of `METHODS`, or a function of (source, target, **options) that returns a `PriorEstimate`.
    options : mapping
        Options of the method.
    raw_prior : (K,), optional
        The prior that *raw* probabilities imply. The probability that a top-k row does not list is divided by it.
    trials : tuple of Candidate
        Candidates that `select` compared, best first.

    Examples
    --------
    >>> from reprior import datasets, pipeline
    >>> data = datasets.load("banking77")
    >>> pipe = pipeline(data.heldout_proba, data.heldout_y, counts=data.counts, classes=data.classes)
    >>> est = pipe.estimate(data.pool_proba[:500])
    >>> est.correct(data.pool_proba[:3]).shape
    (3, 77)
    >>> Pipeline.from_bytes(pipe.to_bytes()) == pipe
    True
    """

    KIND = "pipeline"
    calibrator: Calibrator | None
    source: Source
    method: str | Method
    options: Mapping[str, Any] = field(default_factory=dict)
    raw_prior: Vector | None = None
    trials: tuple[Candidate, ...] = field(default=(), compare=False)
    _mismatch: str | None = field(default=None, init=False, compare=False, repr=False)  # once it was asked for

    def __post_init__(self) -> None:
        object.__setattr__(self, "source", replace(self.source, calibrated=self.calibrator is not None))

    @property
    def classes(self) -> tuple[str, ...] | None:
        """Class names in the order of the columns; None if they are not known."""
        return self.source.classes

    @property
    def measured(self) -> Source:
        """The source with its classifier error, which is measured when a test or stream first needs it."""
        if self.source.error is None:
            object.__setattr__(self, "source", replace(self.source, error=measure_error(self.source, self.settings)))
        return self.source

    @property
    def label_mismatch(self) -> str:
        """Why the held-out labels may belong to other samples, as a sentence; "" if there is no sign of it."""
        if self._mismatch is None:
            object.__setattr__(self, "_mismatch", label_mismatch(self.source, self.calibrator))
        return self._mismatch or ""

    def calibrate(self, proba: Any) -> Any:
        """Return calibrated probabilities (n, K), without any correction for label shift.

        Parameters
        ----------
        proba : (n, K) array or DataFrame
            Predicted probabilities as the classifier returns them. Columns of a DataFrame are matched to the classes by
            name, and a DataFrame is returned.
        """
        return like_input(self._calibrated(proba, "calibrate"), proba, self.classes)

    def _calibrated(self, proba: Any, caller: str) -> Any:
        """Return calibrated probabilities (n, K), with columns in the order of the classes."""
        rows = by_name(proba, self.classes, caller)
        return rows if self.calibrator is None else self.calibrator(rows, caller=caller)

    def rows(self, proba: Any, caller: str = "estimate") -> Blocks:
        """Return predicted probabilities of any kind as calibrated `Blocks`, with columns matched by name."""
        listed = is_top_k(proba)
        if listed and self.calibrator is not None and self.calibrator.of_logits:
            fail(caller, "proba", "be rows of logits, one per class", "top-k rows",
                 remedy="What a row does not list has no logit. Fit the pipeline to probabilities")  # fmt: skip
        in_memory = isinstance(proba, (np.ndarray, CalibratedBlocks, ArrayBlocks)) or not isinstance(proba, Blocks)
        if in_memory and not listed:
            rows = self._calibrated(proba.array if isinstance(proba, ArrayBlocks) else proba, caller)
            return ArrayBlocks(rows, checked=True) if self.calibrator else as_blocks(rows, self.source.prior, caller)
        proba = in_columns(proba, block_names(proba), self.classes, caller)
        raw = as_blocks(proba, self.source.prior if self.raw_prior is None else self.raw_prior, caller)
        return raw if self.calibrator is None else CalibratedBlocks(raw, self.calibrator)

    def estimate(
        self, proba: Any, labels: Any = None, *, label_weights: Any = None, on_reject: str = "scale",
        check: bool = True,
    ) -> PriorEstimate:  # fmt: skip
        """Estimate class shares, class prior and correction weights of target samples.

        Parameters
        ----------
        proba : (n, K) array, DataFrame, Blocks, or top-k pair (indices (n, k), values (n, k))
            Predicted probabilities as the classifier returns them. Columns of a DataFrame are matched to the classes by
            name.
        labels : (n,), optional
            Labels of some target samples, as class names or column indices; −1 if unknown.
        label_weights : (n,), optional
            Weights of labelled samples that `query` chose; other entries do not matter.
        on_reject : str
            What happens if more than the class prior has changed. "scale" applies the share of the correction that is
            the probability of label shift; `correct` warns if that is below one half. "refuse" makes `correct` raise an
            error then. "ignore" applies the whole correction.
        check : bool
            Whether to test for shift and label shift. Without tests the whole correction is applied.

        Returns
        -------
        PriorEstimate
            Its `correct` calibrates and corrects, so pass it the classifier's probabilities. No test on one batch finds
            every other change; `watch` remembers earlier batches.
        """
        return self.estimate_after(Evidence(), proba, labels, label_weights, on_reject, check=check)[0]

    def estimate_after(
        self, earlier: Evidence, proba: Any, labels: Any, label_weights: Any, on_reject: str, *, check: bool = True,
        made: PriorEstimate | None = None,
    ) -> tuple[PriorEstimate, Evidence]:  # fmt: skip
        """Return the estimate after `earlier` evidence, and the evidence with this batch; `made` saves estimating."""
        check_choice(on_reject, "estimate", "on_reject", ON_REJECT)
        target = self.rows(proba)
        same_rows(proba, labels, "estimate", "labels")
        with_labels = labelled(target, labels, self.source, "estimate", label_weights)
        made = made or estimate(self.measured if check else self.source, target, self.method, **self.options)
        made = replace(made, calibrator=self.calibrator, on_reject=on_reject)
        if not check and labels is None:
            return made, earlier
        looked, correction = look(target, made.n), made.weights
        evidence = evidence_of(made, target, looked.sample, self.settings, self.unshifted) if check else None
        now, acts = earlier if evidence is None else earlier + evidence, describe(None, self.settings)
        if evidence is not None or isinstance(with_labels, LabelledBlocks):
            made, now = act(made, with_labels, self.unshifted, looked.sample, now, on_reject, self.settings)
            acts = describe(now, self.settings, made.n_labels, remembers=earlier.n_tests > 1)
            acts = acts._replace(log_evidence=None if evidence is None else now.log_evidence)
        if on_reject == "ignore":
            acts = acts._replace(share=1.0)
        if check:
            tested = checks(made, looked, None if evidence is None else now, self.settings)
            needed = labels_needed(looked.sample, correction, self.unshifted, now.of_labels)
            differs = tested.label_shift is not None and tested.label_shift < 0.5
            causes = likely_causes(self.source, self.calibrator, target, made.n) if differs else ""
            tested = tested._replace(label_mismatch=self.label_mismatch, labels_needed=needed, causes=causes)
            made = replace(made, checks=tested)
        return replace(made, acts=acts), now

    @property
    def unshifted(self) -> Vector:
        """The class weights (K,) without label shift: training prior over implied prior; 1 if no counts are known."""
        return base_factor(self.source, self.options.get("base"))

    @property
    def settings(self) -> Settings:
        """The constants of the model."""
        return self.options.get("settings", DEFAULT)  # type: ignore[no-any-return]

    def watch(self, *, on_reject: str = "scale") -> Watch:
        """Return a `Watch`, which estimates batches one after another and remembers whether changes were label shift.

        Use it instead of `estimate` if the same classifier gets new batches repeatedly.

        Parameters
        ----------
        on_reject : str
            As in `estimate`.
        """
        return Watch(self, on_reject=on_reject)

    def diagnose(self, proba: Any, labels: Any = None, *, alpha: float = 0.05) -> Diagnosis:
        """Check whether label shift explains these samples and whether correcting them helps. `print` the result.

        Parameters
        ----------
        proba, labels
            As in `estimate`.
        alpha : float
            Significance level of the tests that the sentences report.

        Examples
        --------
        >>> from reprior import pipeline
        >>> rows, y = [[0.8, 0.2], [0.3, 0.7], [0.9, 0.1]] * 40, [0, 1, 0] * 40
        >>> pipe = pipeline(rows, y)
        >>> pipe.diagnose(rows).applies
        True
        """
        made = self.estimate(proba, labels, on_reject="ignore")
        return diagnose(self.source, made.target, estimate=made, alpha=alpha)

    def smallest_rise(self, n: int, *, level: float = 0.95, power: float = 0.8) -> Vector:
        """Return the smallest rise (K,) of each class's share that a batch of `n` samples is likely to show.

        A rise by δ, with the other classes in proportion, raises the mean prediction by δ times the difference between
        its mean on held-out samples of the class and of the other classes. The test finds it if it exceeds the noise of
        both means. The result is infinity for classes without held-out samples, and if no rise can be found.

        Parameters
        ----------
        n : int
            Number of samples in the batch.
        level : float
            Confidence level of the test.
        power : float
            Probability of finding the rise.

        Examples
        --------
        >>> from reprior import pipeline
        >>> rows, y = [[0.8, 0.2], [0.3, 0.7], [0.9, 0.1]] * 40, [0, 1, 0] * 40
        >>> pipeline(rows, y).smallest_rise(1000).round(2)
        array([0.11, 0.11])
        """
        return smallest_rise(self.source, n, level, power)

    def groups(
        self, keys: Any, proba: Any, *, share: bool = True, labels: Any = None, label_weights: Any = None,
        on_reject: str = "scale", check: bool = True,
    ) -> Groups:  # fmt: skip
        """Estimate class shares, class prior and correction weights of each group of samples.

        Parameters
        ----------
        keys : (n,)
            Group of each sample: hashable values, in any order.
        proba, labels, label_weights
            As in `estimate`.
        share : bool
            Whether small groups borrow from what all groups have in common.
        on_reject : str
            What happens if more than the class prior has changed, judged by all samples together, as in `estimate`.
        check : bool
            Whether to test all samples together for shift and label shift.
        """
        check_choice(on_reject, "groups", "on_reject", ON_REJECT)
        same_rows(proba, keys, "groups", "keys")
        same_rows(proba, labels, "groups", "labels")
        target, (names, codes) = self.rows(proba, "groups"), factorize(keys)
        if len(names) == 1 and len(codes) == count_rows(target) and self.method == "ebls":  # what `estimate` returns
            whole, _ = self.estimate_after(Evidence(), proba, labels, label_weights, on_reject, check=check)
            return replace(of_estimates(self.source, names, [whole]), calibrator=self.calibrator)
        options = {"labels": labels, "label_weights": label_weights, **(self.options if self.method == "ebls" else {})}
        estimated = groups(self.measured if check else self.source, keys, target, share=share, **options)
        if not check:
            return replace(estimated, calibrator=self.calibrator)
        made = estimated.whole if labels is None and self.method == "ebls" else None
        whole, _ = self.estimate_after(Evidence(), proba, labels, label_weights, on_reject, made=made)
        assert whole.acts is not None
        means = group_means(GroupedRows.of(target, codes, len(estimated)), self.unshifted)
        scaled = scale_groups(estimated, whole.acts.share, self.unshifted, means)
        return replace(scaled, calibrator=self.calibrator, whole=whole)

    def correct(self, proba: Any, prior: Any) -> Matrix:
        """Return calibrated probabilities (n, K) corrected to a prior that you know. Nothing is estimated.

        Parameters
        ----------
        proba : (n, K) array or DataFrame
            As in `calibrate`.
        prior : (K,)
            The known class prior. A Series or dict is matched by name.
        """
        if isinstance(prior, PriorEstimate):
            prior = prior.weights * self.source.prior
        target = check_prior(prior, "correct", "prior", allow_zero=True, n_classes=len(self.source.prior),
                             like="the pipeline", classes=self.classes)  # fmt: skip
        fixed = correct(self._calibrated(proba, "correct"), target / self.source.prior)
        return like_input(fixed, proba, self.classes)  # type: ignore[no-any-return]

    def stream(self, method: str = "online-ebls", **options: Any) -> Stream:
        """Return a `Stream`, which corrects samples one by one and learns the class prior from them.

        Pass it the probabilities that the classifier returns. It stays at the source prior until the samples show a
        shift.

        Parameters
        ----------
        method : str
            A name of `ONLINE`.
        **options
            Options of the method, as for `Stream`.
        """
        return Stream(method, self.measured, calibrator=self.calibrator, **self._stream_options(method, options))

    def _stream_options(self, method: str, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a stream: the default one has the prior without shift and settings of the pipeline."""
        own: dict[str, Any] = {}
        if method == "online-ebls" and (base := self.options.get("base")) is not None:
            own["base"] = tuple(np.asarray(base).tolist())
        if method == "online-ebls" and "settings" in self.options and isinstance(options.get("settings", {}), dict):
            own["settings"] = {"model": self.settings, **options.pop("settings", {})}
        return {**own, **options}

    def table(
        self, max_streams: int | None = None, on_evict: Callable[[Hashable, Stream], object] | None = None, *,
        method: str = "online-ebls", **options: Any,
    ) -> StreamTable:  # fmt: skip
        """Return a `StreamTable`: one stream per key, for example per customer or camera.

        Parameters
        ----------
        max_streams : int, optional
            Maximum number of streams; 100,000 by default.
        on_evict : callable, optional
            Called as `on_evict(key, stream)` for a stream that makes room for a new key.
        method, **options
            As in `stream`.
        """
        limit = {} if max_streams is None else {"max_streams": max_streams}
        arguments = self._stream_options(method, options | limit)
        return StreamTable(method, self.measured, calibrator=self.calibrator, on_evict=on_evict, **arguments)

    def fields(self, caller: str) -> dict[str, Any]:
        """Return what bytes must hold of the pipeline."""
        if not isinstance(self.method, str) or self.method not in METHODS:
            fail(caller, "method", "be a name of `METHODS`", method_name(self.method),
                 remedy="A function cannot be saved; register it as `METHODS[name]` wherever it is read")  # fmt: skip
        arrays = {f"option_{name}": value for name, value in self.options.items() if isinstance(value, np.ndarray)}
        options = {name: value for name, value in self.options.items() if not isinstance(value, np.ndarray)}
        raw = {"raw_prior": self.raw_prior} if self.raw_prior is not None else {}
        return {"method": self.method, "options": options, **arrays, **raw, **to_fields(self.measured, self.calibrator)}

    @classmethod
    def from_fields(cls, about: dict[str, Any], caller: str) -> Pipeline:
        """Return the pipeline whose `fields` bytes held."""
        method, options = take(about, "method", str, caller), take(about, "options", dict, caller)
        if method not in METHODS:
            refuse(caller, "data", f"the method {method[:60]!r}, which is none of `METHODS`")
        source, calibrator = from_fields(about, caller)
        k = len(source.prior)
        arrays = {name: take(about, name, np.ndarray, caller, (k,)) for name in about if name.startswith("option_")}
        options = {**options, **{name.removeprefix("option_"): x for name, x in arrays.items()}}
        check_options(METHODS[method], options, caller)
        raw = take(about, "raw_prior", (np.ndarray, type(None)), caller, (k,))
        return cls(calibrator, source, method, options,
                   None if raw is None else check_prior(raw, caller, "raw_prior", n_classes=k))  # fmt: skip

    def __repr__(self) -> str:
        kind = calibration_of(self.calibrator)
        shown = {name: f"array{x.shape}" if isinstance(x, np.ndarray) else repr(x) for name, x in self.options.items()}
        options = "".join(f"{name}={text}, " for name, text in shown.items())
        about = f"{len(self.source.prior)} classes, {self.source.n_heldout:,} held-out samples"
        about += f", source prior: {self.source.made}"
        return f"Pipeline(method={method_name(self.method)!r}, {options}calibration={kind!r}, {about})"
