"""A scikit-learn classifier that corrects its predictions for a new class prior."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, MetaEstimatorMixin, clone
from sklearn.model_selection import StratifiedKFold, cross_validate
from sklearn.utils import _safe_indexing, get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _is_fitted, _num_samples, check_is_fitted, validate_data

from reprior._check import check_choice, check_prior, fail, warn
from reprior._labels import same_rows
from reprior._types import Labels, Matrix, Vector
from reprior.estimates.estimate import PriorEstimate
from reprior.estimates.verdict import ON_REJECT, report_rejected
from reprior.online.acting import NotLabelShift
from reprior.online.method import StreamState
from reprior.online.stream import Stream
from reprior.pipelines.fit import Choices, fit_pipeline
from reprior.pipelines.mismatch import CONTRADICT


class LabelShiftClassifier(ClassifierMixin, MetaEstimatorMixin, BaseEstimator):  # type: ignore[misc]
    """Wrap a classifier with `predict_proba`, so that `adapt` corrects it for new, unlabelled data.

    Parameters
    ----------
    estimator : classifier
        If it is fitted (or a `FrozenEstimator`, which also survives cloning), it is used unchanged, and `fit` needs
        held-out samples. Otherwise `fit` trains a clone, and cross-validation gives the held-out predictions. `adapt`
        then uses the models of the folds, each for a part of the samples, because their predictions match the held-out
        ones.
    method, calibration, source_prior
        As in `reprior.pipeline`; `source_prior` is its `prior`. Pass a prior by class if training was resampled or used
        class weights and you know the resulting prior.
    options : mapping, optional
        Further options of the method.
    counts : (K,) or mapping, optional
        Number of training samples per class, in the order of `classes_` or by class. Not needed if `fit` does the
        training.
    cv : int or splitter
        Cross-validation for an estimator that `fit` trains.
    on_reject : str
        What `adapt` does if more than the class prior has changed. "scale" applies a share of the correction and warns
        if it is below one half. "refuse" raises an error and keeps the prior. "ignore" applies the whole correction.

    Attributes
    ----------
    estimator_, classes_, pipeline_
        The fitted classifier, its classes, and the pipeline that `fit` made.
    fold_estimators_ : list
        Models of the folds, if `fit` did the training.
    prior_, prior_by_class_ : (K,), dict
        Current class prior in the order of `classes_`, and by class.
    weights_ : (K,)
        Current class weights: prior over source prior, times the class biases that labels showed.
    estimate_ : PriorEstimate
        Result of `adapt`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LabelShiftClassifier(LogisticRegression(max_iter=1000)).fit(X, y)
    >>> model.adapt(X[:75]).prior_.round(1)  # the first 50 are of class 0, the others of class 1
    array([0.7, 0.3, 0. ])
    """

    def __init__(
        self, estimator: Any, *, method: str = "ebls", options: Mapping[str, Any] | None = None,
        calibration: str = "auto", source_prior: Any = "auto", counts: Any = None, cv: Any = 5,
        on_reject: str = "scale",
    ) -> None:  # fmt: skip
        self.estimator = estimator
        self.method = method
        self.options = options
        self.calibration = calibration
        self.source_prior = source_prior
        self.counts = counts
        self.cv = cv
        self.on_reject = on_reject

    def fit(self, X: Any, y: Any, **fit_params: Any) -> Self:
        """Fit the pipeline to samples of the training distribution. A fitted estimator must not have seen them."""
        check_choice(self.on_reject, "fit", "on_reject", ON_REJECT)
        y = validate_data(self, X="no_validation", y=y)
        check_classification_targets(y)
        if get_config()["enable_metadata_routing"]:
            fit_params = process_routing(self, "fit", **fit_params).estimator.fit
        if not hasattr(self.estimator, "predict_proba"):
            fail("LabelShiftClassifier", "estimator", "have `predict_proba`", type(self.estimator).__name__,
                 remedy="Wrap it in scikit-learn's CalibratedClassifierCV")  # fmt: skip
        counts, of_folds = self.counts, []
        if _is_fitted(self.estimator):
            fitted, proba = self.estimator, self.estimator.predict_proba(X)
            classes = np.asarray(fitted.classes_)
        else:
            fitted = clone(self.estimator).fit(X, y, **fit_params)
            if counts is None and not fit_params:  # with sample weights, predictions imply another prior
                counts = np.unique(y, return_counts=True)[1]
            crossed = cross_validate(
                clone(self.estimator), X, y, cv=folds(self.cv, y), params=fit_params, scoring=lambda *_: 0.0,
                error_score="raise", return_estimator=True, return_indices=True,
            )  # fmt: skip
            of_folds, tests = crossed["estimator"], crossed["indices"]["test"]
            classes = np.asarray(fitted.classes_)
            proba = np.concatenate([fold_proba(m, X, rows, classes) for m, rows in zip(of_folds, tests, strict=True)])
            y = y[np.concatenate(tests)]
        choices = Choices(self.calibration, self.source_prior, self.method, self.options or {})
        pipe = fit_pipeline(proba, y, choices, counts=counts, classes=classes.tolist())
        mismatch = pipe.label_mismatch
        if mismatch == CONTRADICT or (mismatch and not of_folds):  # predictions that `fit` made belong to its samples
            warn(mismatch)
        self.pipeline_ = pipe
        self.estimator_, self.classes_, self.fold_estimators_ = fitted, classes, of_folds
        for name in ("n_features_in_", "feature_names_in_"):
            if hasattr(fitted, name):
                setattr(self, name, getattr(fitted, name))
        self.stream_: StreamState | None = None
        return self._take(self.pipeline_.source.prior)

    def adapt(self, X: Any, labels: Any = None, *, label_weights: Any = None) -> Self:
        """Estimate the class prior of unlabelled samples, and predict under it from now on.

        It warns if less than half of the correction is applied, unless `on_reject` says otherwise.

        Parameters
        ----------
        X : (n, p)
            New samples.
        labels : (n,), optional
            Classes of some of them; None if unknown, or −1 if no class has this name.
        label_weights : (n,), optional
            Weights of samples that `query` chose.
        """
        check_is_fitted(self)
        check_choice(self.on_reject, "adapt", "on_reject", ON_REJECT)
        raw = self._like_held_out(X)
        same_rows(X, labels, "adapt", "labels", "X")
        estimate = self.pipeline_.estimate(raw, labels, label_weights=label_weights, on_reject=self.on_reject)
        report_rejected(estimate, "adapt", "X")
        stream = self.pipeline_.stream()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotLabelShift)  # the estimate has warned of it
            stream.learn_many(raw)  # `partial_adapt` continues from these samples
        self.stream_ = stream.state
        return self._take(estimate.prior, estimate)

    def partial_adapt(self, X: Any) -> Self:
        """Follow a stream: update the class prior with new samples, in order. Call `predict` first, then this."""
        check_is_fitted(self)
        stream = self.pipeline_.stream() if self.stream_ is None else Stream.of(self.stream_)
        stream.learn_many(self._like_held_out(X, stream.n))
        self.stream_ = stream.state  # a value: it can be pickled and copied, which an open stream cannot
        return self._take(stream.prior)

    def set_prior(self, prior: Any) -> Self:
        """Predict under a known class prior: shares or counts in the order of `classes_`, or by class."""
        check_is_fitted(self)
        target_prior = check_prior(prior, "set_prior", "prior", allow_zero=True, n_classes=len(self.classes_),
                            like="the classifier", classes=self.pipeline_.classes)  # fmt: skip
        return self._take(target_prior)

    def predict_proba(self, X: Any) -> Matrix:
        """Return calibrated class probabilities (n, K) under the current prior."""
        check_is_fitted(self)
        estimate = self.prior_ if self.estimate_ is None else self.estimate_  # labels may have changed its weights
        return self.pipeline_.correct(self.estimator_.predict_proba(X), estimate)

    def predict(self, X: Any) -> np.ndarray[Any, Any]:
        """Return the most probable class (n,) under the current prior."""
        best = self.predict_proba(X).argmax(axis=1)
        return np.asarray(self.classes_[best])

    @property
    def prior_by_class_(self) -> dict[Any, float]:
        """Current class prior, by class."""
        check_is_fitted(self)
        return dict(zip(self.classes_.tolist(), self.prior_.tolist(), strict=True))

    def _like_held_out(self, X: Any, first: int = 0) -> Matrix:
        """Return predictions (n, K) made as the held-out ones were: by the models of the folds in turn."""
        if not self.fold_estimators_:
            return np.asarray(self.estimator_.predict_proba(X))
        n, models = _num_samples(X), self.fold_estimators_
        out = np.empty((n, len(self.classes_)))
        for i, model in enumerate(models):
            rows = np.arange((i - first) % len(models), n, len(models))
            if len(rows):
                out[rows] = fold_proba(model, X, rows, self.classes_)
        return out

    def get_metadata_routing(self) -> MetadataRouter:
        """Route the parameters of `fit` to the estimator's own `fit`."""
        mapping = MethodMapping().add(caller="fit", callee="fit")
        return MetadataRouter(owner=self).add(estimator=self.estimator, method_mapping=mapping)

    def __sklearn_tags__(self) -> Any:
        tags, inner = super().__sklearn_tags__(), get_tags(self.estimator)
        tags.input_tags, tags.classifier_tags = inner.input_tags, inner.classifier_tags
        return tags

    def _take(self, prior: Vector, estimate: PriorEstimate | None = None) -> Self:
        self.prior_, self.estimate_ = prior, estimate
        self.weights_ = prior / self.pipeline_.source.prior if estimate is None else estimate.weights
        return self


def fold_proba(model: Any, X: Any, rows: Labels, classes: np.ndarray[Any, Any]) -> Matrix:
    """Return the probabilities of some rows (n, K) by the model of a fold; 0 for a class that its fold did not have."""
    proba = model.predict_proba(_safe_indexing(*indexable(X), rows))
    out = np.zeros((len(proba), len(classes)))
    out[:, np.searchsorted(classes, model.classes_)] = proba
    return out


def folds(cv: Any, y: np.ndarray[Any, Any]) -> Any:
    """Return a splitter that puts every class into every fold."""
    if not isinstance(cv, int):
        return cv
    classes, counts = np.unique(y, return_counts=True)
    if counts.min() < 2:
        lone = classes[counts.argmin()]
        fail("fit", "y", "have at least two rows of every class to cross-validate", f"one of {lone!r}",
             remedy="Fit the estimator yourself and pass held-out samples, or leave that class out")  # fmt: skip
    return StratifiedKFold(min(cv, int(counts.min())))
