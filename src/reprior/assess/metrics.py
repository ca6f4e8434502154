"""Measures of error: of an estimated prior, and of predicted probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reprior._check import check_number, check_prior, in_order, names_of
from reprior._labels import check_labelled
from reprior._types import Vector


def _pair(true: Any, estimate: Any, caller: str) -> tuple[Vector, Vector]:
    numbers, classes = in_order(true, caller, "true", names_of(estimate)[1])
    p = check_prior(numbers, caller, "true", allow_zero=True)
    q = check_prior(estimate, caller, "estimate", allow_zero=True, n_classes=len(p), like="`true`", classes=classes)
    return p, q


def kl(true: Any, estimate: Any, *, floor: float = 0.0) -> float:
    """Return KL(true ‖ estimate) of two priors in nats (eq. 39).

    It is infinite if `estimate` is 0 for a class that occurs, as maximum likelihood can be for rare classes.

    Parameters
    ----------
    true, estimate : (K,)
        The two priors; Series or dicts are matched by name.
    floor : float
        Smaller values of `estimate` are raised to it, so that means over trials stay finite.

    Examples
    --------
    >>> round(kl([0.5, 0.5], [0.9, 0.1]), 3)
    0.511
    """
    p, q = _pair(true, estimate, "kl")
    present, q = p > 0, np.maximum(q, check_number(floor, "kl", "floor", low=0, high=1))
    if (q[present] == 0).any():
        return float("inf")
    return float(max(0.0, np.sum(p[present] * np.log(p[present] / q[present]))))


def weight_mse(true: Any, estimate: Any, source: Any) -> float:
    """Return the mean squared error of the importance weights π/ε.

    Parameters
    ----------
    true, estimate : (K,)
        As in `kl`.
    source : (K,)
        The source prior ε.

    Examples
    --------
    >>> round(weight_mse([0.5, 0.5], [0.6, 0.4], [0.5, 0.5]), 3)
    0.04
    """
    p, q = _pair(true, estimate, "weight_mse")
    source_prior = check_prior(source, "weight_mse", "source", n_classes=len(p), like="`true`")
    return float(np.mean(((p - q) / source_prior) ** 2))


def absolute_error(true: Any, estimate: Any) -> float:
    """Return the mean absolute error over the classes (AE in quantification).

    Parameters
    ----------
    true, estimate : (K,)
        As in `kl`.

    Examples
    --------
    >>> round(absolute_error([0.5, 0.5], [0.6, 0.4]), 3)
    0.1
    """
    p, q = _pair(true, estimate, "absolute_error")
    return float(np.mean(np.abs(p - q)))


def relative_absolute_error(true: Any, estimate: Any, *, n: float) -> float:
    """Return the mean relative absolute error over the classes (RAE), both priors smoothed by 1/(2n).

    Parameters
    ----------
    true, estimate : (K,)
        As in `kl`.
    n : float
        Number of target samples.

    Examples
    --------
    >>> round(relative_absolute_error([0.5, 0.5], [0.6, 0.4], n=100), 3)
    0.198
    """
    p, q = _pair(true, estimate, "relative_absolute_error")
    eps = 1.0 / (2.0 * check_number(n, "relative_absolute_error", "n", low=0, open_low=True))
    p, q = (p + eps) / (1 + eps * len(p)), (q + eps) / (1 + eps * len(q))
    return float(np.mean(np.abs(p - q) / p))


def accuracy(proba: Any, y: Any, *, classes: Sequence[Any] | None = None, weights: Any = None) -> float:
    """Return the share of samples whose most probable class is their label.

    Parameters
    ----------
    proba, y, classes
        Samples, as in `summarize`.
    weights : (K,), optional
        Class weights to multiply by first. A Series or dict is matched by name.

    Examples
    --------
    >>> accuracy([[0.9, 0.1], [0.6, 0.4]], ["cat", "dog"], classes=["cat", "dog"])
    0.5
    """
    rows, labels, names = check_labelled(proba, y, "accuracy", classes)
    if weights is not None:
        rows = rows * check_prior(weights, "accuracy", "weights", allow_zero=True, n_classes=rows.shape[1],
                                  like="`proba`", classes=names)  # fmt: skip
    return float(np.mean(rows.argmax(axis=1) == labels))


def log_loss(proba: Any, y: Any, *, classes: Sequence[Any] | None = None) -> float:
    """Return the mean of −log p(label) over samples, in nats.

    It is infinite if a label has probability 0.

    Parameters
    ----------
    proba, y, classes
        Predicted probabilities and labels, as in `accuracy`.

    Examples
    --------
    >>> round(log_loss([[0.9, 0.1], [0.5, 0.5]], ["cat", "dog"], classes=["cat", "dog"]), 3)
    0.399
    """
    rows, labels, _ = check_labelled(proba, y, "log_loss", classes)
    with np.errstate(divide="ignore"):
        return float(-np.log(rows[np.arange(len(rows)), labels].astype(np.float64)).mean())
