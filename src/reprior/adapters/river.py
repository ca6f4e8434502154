"""River interfaces: a classifier with a corrected class prior, and two drift detectors."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import river.base

from reprior._check import by_name, check_prior, column_map, fail
from reprior._types import Acts, Source, Vector
from reprior.online.acting import STOPPED, acts_event, without_warning
from reprior.online.alarm import Alarm
from reprior.online.stream import Stream
from reprior.pipelines.pipeline import Pipeline

base: Any = river.base


class PriorCorrected(base.Wrapper, base.Classifier):  # type: ignore[misc]
    """Wrap a trained river classifier, so that its probabilities follow the class prior of the stream.

    `learn_one(x)` learns the class prior from the classifier's prediction for x, and from the label if you pass one.
    The classifier is not trained further.

    Parameters
    ----------
    model : river classifier
        A trained classifier.
    source : mapping or Pipeline
        Number or share of training samples per class; or a pipeline fitted to held-out samples, which also calibrates.
    method, options
        As in `reprior.Stream`.

    Examples
    --------
    >>> from river.naive_bayes import GaussianNB
    >>> model = GaussianNB()
    >>> for x in range(100):
    ...     model.learn_one({"x": x % 10}, x % 10 > 4)
    >>> wrapped = PriorCorrected(model, {False: 50, True: 50})
    >>> for _ in range(50):
    ...     wrapped.learn_one({"x": 9})
    >>> model.predict_proba_one({"x": 5})[True] < wrapped.predict_proba_one({"x": 5})[True]
    True
    """

    def __init__(
        self, model: Any, source: Mapping[Any, float] | Pipeline, method: str = "online-ebls", **options: Any
    ) -> None:
        self.model, self.source, self.method, self.options = model, source, method, options
        self.stream = stream_of(source, method, options, "PriorCorrected")
        self._columns = column_map(self.stream.source.called)

    @property
    def _wrapped_model(self) -> Any:
        return self.model

    @property
    def _multiclass(self) -> bool:
        return True

    def _get_params(self) -> dict[str, Any]:
        return {"model": self.model, "source": self.source, "method": self.method, **self.options}

    def output(self, x: dict[Any, Any]) -> Vector:
        """Return the classifier's own probabilities (K,) for x, in the order of the source's classes."""
        return self._output(x)[0]

    def _output(self, x: dict[Any, Any]) -> tuple[Vector, list[Any]]:
        """Return the classifier's own probabilities (K,) for x, and what it calls the classes."""
        proba: dict[Hashable, float] = self.model.predict_proba_one(x)
        p, labels = np.zeros(len(self._labels)), [*self._labels]
        for label, share in proba.items():
            column = self._column(label)
            p[column], labels[column] = share, label
        return p / p.sum() if p.sum() > 0 else self.stream.source.prior, labels  # an untrained model says nothing

    @property
    def _labels(self) -> tuple[Any, ...]:
        return self.stream.source.called if isinstance(self.source, Pipeline) else tuple(self.source)

    def _column(self, label: Any, caller: str = "PriorCorrected", name: str = "source") -> int:
        """Return the column of a class by its name; a class that the source has no count of is refused."""
        if str(label) not in self._columns:
            rule = "count every class that the model knows" if name == "source" else "be a class of `source`"
            fail(caller, name, rule, f"no count of {label!r}" if name == "source" else repr(label))
        return self._columns[str(label)]

    @property
    def acts(self) -> Acts:
        """How much of the correction is applied, and why."""
        return self.stream.acts

    def predict_proba_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """Return the corrected probabilities for x, by class."""
        p, labels = self._output(x)
        return dict(zip(labels, self.stream.correct_one(p).tolist(), strict=True))

    def learn_one(self, x: dict[Any, Any], y: Any = None, **kwargs: Any) -> None:
        """Learn the class prior from one sample, and from its label if you pass it."""
        p = self.output(x)
        label = None if y is None else self._column(y, "PriorCorrected.learn_one", "y")
        self.stream.learn_one(p)
        if label is not None:
            # by name: beside classes that are called 1, 2, 3 an index would be taken for one of those
            self.stream.observe(p, label if self.stream.classes is None else self.stream.classes[label])


class StreamDrift(base.DriftDetector):  # type: ignore[misc]
    """What both drift detectors share: a stream that estimates the prior."""

    def __init__(self, source: Any, method: str) -> None:
        super().__init__()
        self.source, self.method = source, method
        self.stream = stream_of(source, method, {}, type(self).__name__)

    @property
    def acts(self) -> Acts:
        """How much of a correction by the estimated prior would be applied, and why."""
        return self.stream.acts

    def _row(self, x: Any) -> Vector:
        """Return the probabilities (K,) of a sample in the order of the classes."""
        return np.asarray(by_name(x, self.stream.classes, f"{type(self).__name__}.update", "x"))


class PriorDrift(StreamDrift):
    """Detect that the class prior has drifted, from predicted probabilities alone, with river's detector interface.

    `drift_detected` is True after the sample at which the alarm was raised; the next `update` starts the test again.
    `NotLabelShiftDrift` detects other changes.

    Parameters
    ----------
    source : Pipeline or Source
        The pipeline of the classifier, or what `reprior.summarize` returned. Its held-out samples are the reference.
    method : str
        Stream method that estimates the prior.
    **options
        Options of `reprior.Alarm`.

    Examples
    --------
    >>> from reprior import summarize
    >>> rows = [[0.9, 0.1], [0.1, 0.9]] * 200
    >>> detector = PriorDrift(summarize(rows, [0, 1] * 200, classes=["mail", "spam"]))
    >>> alarms = []
    >>> for i in range(400):
    ...     detector.update({"mail": 0.9, "spam": 0.1} if i % 10 else {"mail": 0.1, "spam": 0.9})
    ...     alarms += [i] * detector.drift_detected
    >>> 0 < alarms[0] < 200
    True
    """

    def __init__(self, source: Any, method: str = "online-ebls", **options: Any) -> None:
        super().__init__(source, method)
        self.options, self.alarm = options, Alarm(self.stream.source, **options)

    def _reset(self) -> None:
        super()._reset()
        self.alarm.reset()

    def _get_params(self) -> dict[str, Any]:
        return {"source": self.source, "method": self.method, **self.options}

    def update(self, x: Any) -> None:
        """Take in the predicted probabilities of one sample: a mapping from class to probability, or (K,)."""
        if self.drift_detected:
            self._reset()
        with without_warning():
            self._drift_detected = bool(self.alarm.watch(self.stream, self._row(x)[None]))


class NotLabelShiftDrift(StreamDrift):
    """Detect that samples have changed by more than their class prior, with river's detector interface.

    The stream tests itself after 25 samples and then after every 100; after 2,000 without a change of the prior, after
    every 400. `drift_detected` is True after the sample at which less than half of the correction is applied for the
    first time.

    Parameters
    ----------
    source : Pipeline or Source
        The pipeline of the classifier, or what `reprior.summarize` returned, with held-out samples.
    method : str
        The stream method. Only `online-ebls` tests for label shift.

    Examples
    --------
    >>> from reprior import summarize
    >>> rows = [[0.9, 0.1], [0.6, 0.4], [0.3, 0.7], [0.1, 0.9]] * 100
    >>> detector = NotLabelShiftDrift(summarize(rows, [0, 0, 1, 1] * 100))
    >>> for i in range(100):
    ...     detector.update([0.5, 0.5])
    ...     if detector.drift_detected:
    ...         print(i + 1, f"{detector.acts.share:.0%}")
    25 0%
    """

    def __init__(self, source: Any, method: str = "online-ebls") -> None:
        super().__init__(source, method)
        self._acting = True

    def update(self, x: Any) -> None:
        """Take in the predicted probabilities of one sample: a mapping from class to probability, or (K,)."""
        before = self.stream.n
        with without_warning():
            self.stream.learn_one(self._row(x))
        event = acts_event(self.stream, before, self._acting)
        if event is not None:
            self._acting = event.kind != STOPPED
        self._drift_detected = event is not None and event.kind == STOPPED


def stream_of(source: Any, method: str, options: Mapping[str, Any], caller: str) -> Stream:
    """Return the stream of a pipeline, of a source, or of counts by class."""
    if isinstance(source, Pipeline):
        return source.stream(method, **options)
    if isinstance(source, Mapping):
        prior = check_prior(list(source.values()), caller, "source")
        source = Source(prior, classes=tuple(map(str, source)))
    return Stream(method, source, **options)
