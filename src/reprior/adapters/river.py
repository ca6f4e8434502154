"""River's habits for streams: dicts of features in, dicts of class probabilities out, one sample at a time."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import river.base
import river.naive_bayes

from reprior._check import check_prior, fail
from reprior._types import Source, Vector
from reprior.online.stream import Stream

base: Any = river.base


class PriorCorrected(base.Wrapper, base.Classifier):  # type: ignore[misc]
    """Wrap a trained river classifier so that its probabilities follow the class prior of what it is shown.

    `learn_one(x)` learns the prior from the classifier's output for x, and from the label too where one is given. The
    classifier itself is not trained.

    Parameters
    ----------
    model : river classifier
        The classifier, trained.
    source : mapping
        The count or share of each class in the data that the classifier was trained on.
    method, options
        Those of `reprior.Stream`.

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

    def __init__(self, model: Any, source: Mapping[Any, float], method: str = "online-ebls", **options: Any) -> None:
        self.model, self.source, self.method, self.options = model, dict(source), method, options
        prior = check_prior(list(source.values()), "PriorCorrected", "source")
        self.stream = Stream(method, Source(prior, classes=tuple(map(str, source))), **options)

    @property
    def _wrapped_model(self) -> Any:
        return self.model

    @property
    def _multiclass(self) -> bool:
        return True

    def _get_params(self) -> dict[str, Any]:
        return {"model": self.model, "source": self.source, "method": self.method, **self.options}

    @classmethod
    def _unit_test_params(cls) -> Any:
        naive: Any = river.naive_bayes
        yield {"model": naive.GaussianNB(), "source": {False: 1, True: 1}}

    def output(self, x: dict[Any, Any]) -> Vector:
        """Return the classifier's own probabilities (K,) for x, in the order of `source`."""
        said: dict[Hashable, float] = self.model.predict_proba_one(x)
        if unknown := [label for label in said if label not in self.source]:
            fail("PriorCorrected", "source", "count every class that the model knows", f"no count of {unknown[0]!r}")
        p = np.array([said.get(label, 0.0) for label in self.source])
        return p / p.sum() if p.sum() > 0 else self.stream.source.prior  # an untrained model says nothing

    def predict_proba_one(self, x: dict[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """Return the classifier's probabilities for x under the estimated prior."""
        return dict(zip(self.source, self.stream.correct_one(self.output(x)).tolist(), strict=True))

    def learn_one(self, x: dict[Any, Any], y: Any = None, **kwargs: Any) -> None:
        """Learn the prior from one sample, and from its label if it is known."""
        p = self.output(x)
        if y is not None and y not in self.source:
            fail("PriorCorrected.learn_one", "y", "be a class of `source`", repr(y))
        self.stream.learn_one(p)
        if y is not None:
            # by name: beside classes that are called 1, 2, 3 an index would be taken for one of those
            self.stream.observe(p, str(list(self.source)[list(self.source).index(y)]))
