"""Batch methods as QuaPy aggregative quantifiers, for QuaPy's protocols, evaluation and model selection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from quapy.method.aggregative import AggregativeSoftQuantifier

from reprior._labels import check_labels
from reprior._types import Labels, Vector
from reprior.pipelines.fit import pipeline


class LabelShiftQuantifier(AggregativeSoftQuantifier):  # type: ignore[misc]
    """Estimate class prevalence with a method of `reprior.METHODS`, as a QuaPy quantifier.

    Parameters
    ----------
    classifier, fit_classifier, val_split
        As in QuaPy. With `val_split=None` there are no held-out samples: the training labels give the source prior, and
        nothing is calibrated.
    method, calibration
        As in `reprior.pipeline`.
    options : mapping, optional
        Further options of the method.

    Examples
    --------
    >>> from sklearn import datasets, linear_model
    >>> X, y = datasets.load_iris(return_X_y=True)
    >>> quantifier = LabelShiftQuantifier(linear_model.LogisticRegression(max_iter=1000)).fit(X, y)
    >>> quantifier.predict(X[:75]).round(1)
    array([0.7, 0.3, 0. ])
    """

    def __init__(
        self, classifier: Any = None, fit_classifier: bool = True, val_split: Any = 5, *, method: str = "ebls",
        calibration: str = "auto", options: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(classifier, fit_classifier, val_split)
        self.method = method
        self.calibration = calibration
        self.options = options

    def classifier_fit_predict(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Fit the classifier as QuaPy does, and keep the training labels."""
        held = super().classifier_fit_predict(X, y)
        self.counts_ = np.bincount(self._columns(y)) if self.fit_classifier else None
        return held  # type: ignore[no-any-return]

    def _columns(self, y: Any) -> Labels:
        return check_labels(y, "fit", "y", len(y), len(self.classes_), np.asarray(self.classes_).tolist())

    def aggregation_fit(self, classif_predictions: Any, labels: Any) -> None:
        """Fit the pipeline to held-out probabilities (n, K) and labels (n,)."""
        counts = getattr(self, "counts_", None)
        y = None if labels is None else self._columns(labels)
        self.pipeline_ = pipeline(
            classif_predictions, y, counts=counts, calibration=self.calibration, method=self.method,
            **(self.options or {}),
        )  # fmt: skip

    def aggregate(self, classif_predictions: Any) -> Vector:
        """Return the class shares (K,) among the samples with these predicted probabilities (n, K)."""
        return self.pipeline_.estimate(classif_predictions, check=False).shares
