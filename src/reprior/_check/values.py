"""Checks of single values: numbers, choices, flags, seeds, a prior, a source."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reprior._check.arrays import as_array
from reprior._check.errors import fail, perhaps, refuse_where
from reprior._check.names import check_classes, in_order
from reprior._types import Source, Vector


def is_number(value: Any) -> bool:
    """Return whether `value` is a number, which False and True are not."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def check_number(
    value: Any, caller: str, name: str, *, low: float = -math.inf, high: float = math.inf, open_low: bool = False,
    whole: bool = False,
) -> float:  # fmt: skip
    """Return a finite number inside [low, high] (or (low, high])."""
    kind, least = "a whole number" if whole else "a number", "above" if open_low else "of at least"
    rule = f"be {kind} {least} {low:g}" + (f" and at most {high:g}" if high < math.inf else "")
    if not is_number(value):
        fail(caller, name, rule, repr(value))
    try:
        number = float(value)
    except OverflowError:
        fail(caller, name, rule, "a whole number too large for a float")
    inside = math.isfinite(number) and low <= number <= high and not (open_low and number == low)
    if not inside or (whole and not number.is_integer()):
        fail(caller, name, rule, value)
    return number


def check_level(level: Any, caller: str, name: str = "level") -> float:
    """Return the level of an interval, or another number above 0 and below 1."""
    if not is_number(level) or not 0 < level < 1:
        fail(caller, name, "be a number above 0 and below 1", repr(level))
    return float(level)


def check_int(value: Any, caller: str, name: str, *, low: float = 1) -> int:
    """Return a whole number of at least `low`."""
    return int(check_number(value, caller, name, low=low, whole=True))


def check_choice(value: Any, caller: str, name: str, choices: Sequence[str]) -> str:
    """Return `value` if it is one of `choices`."""
    if not isinstance(value, str) or value not in choices:
        meant = perhaps(value, choices) if isinstance(value, str) else ""
        fail(caller, name, "be one of " + ", ".join(repr(c) for c in choices), repr(value), remedy=meant)
    return str(value)


def check_flag(value: Any, caller: str, name: str) -> bool:
    """Return `value` if it is True or False."""
    if not isinstance(value, (bool, np.bool_)):
        fail(caller, name, "be True or False", repr(value))
    return bool(value)


def as_rng(rng: int | np.random.Generator | None) -> np.random.Generator:
    """Return a generator from a seed or a generator."""
    if rng is not None and not isinstance(rng, (int, np.integer, np.random.Generator)):
        fail("rng", "rng", "be a whole number or a numpy Generator", repr(rng))
    return rng if isinstance(rng, np.random.Generator) else np.random.default_rng(rng)


def check_prior(
    x: Any, caller: str, name: str, *, allow_zero: bool = False, n_classes: int | None = None, like: str = "",
    classes: Sequence[str] | None = None,
) -> Vector:  # fmt: skip
    """Return counts or a prior (K,) as a prior in the order of `classes`; `like` names what has `n_classes` too."""
    array = in_order(x, caller, name, classes)[0]
    prior = as_prior(array, caller, name, allow_zero=allow_zero)
    if n_classes is not None and len(prior) != n_classes:
        fail(caller, name, f"have {n_classes} classes" + (like and f" like {like}"), len(prior))
    return prior


def as_prior(x: np.ndarray[Any, Any], caller: str, name: str, *, allow_zero: bool = False) -> Vector:
    """Return an array of counts or shares (K,), in the order of the classes, as a prior."""
    array = x.astype(np.float64)
    if array.ndim != 1 or array.size < 2:
        fail(caller, name, "be a vector of at least two class counts or probabilities", f"shape {array.shape}")
    least, most, class_at = array.min(), array.max(), "class {}".format
    if not 1e-100 * most < least <= most < math.inf:  # else there is no fault to look for
        refuse_where(~np.isfinite(array), caller, name, "contain only finite numbers", array, place=class_at)
        if allow_zero:
            refuse_where(array < 0, caller, name, "contain no negative number", array, place=class_at)
        else:  # beyond a factor of 1e100 between two classes their squared weights would leave the range of a float
            remedy = "Remove classes that the classifier was not trained on, or pass a small count for them"
            tiny = array <= 1e-100 * most
            refuse_where(tiny, caller, name, "be positive for every class", array, place=class_at, remedy=remedy)
        if not array.any():
            fail(caller, name, "have a positive sum", 0.0)
    if most <= 1 and abs(array.sum() - 1) < 1e-14:
        return array  # bit for bit what was given
    array = array / most
    return np.asarray(array / array.sum())


def check_source(source: Any, caller: str, names: Sequence[Any] | None = None) -> Source:
    """Return a `Source` from one, or from class counts or a prior; `names` (K,) are what the rows call the classes."""
    if isinstance(source, Source):
        prior = as_prior(as_array(source.prior, caller, "source.prior"), caller, "source.prior")
        called = check_classes(source.classes, None if names is None else tuple(names), len(prior), caller)
        return replace(source, prior=prior, classes=called)
    if isinstance(getattr(source, "source", None), Source):
        raw = (
            "; rows must then be calibrated, by its `calibrate`. Its own `estimate`, `diagnose`, `stream` and `table`"
            " take raw rows"
        )
        fail(caller, "source", "be a Source, class counts or a prior", f"a {type(source).__name__}",
             remedy="Pass its `source`" + raw * hasattr(source, "calibrate"))  # fmt: skip
    labels = None if names is None else [str(label) for label in names]
    numbers, classes = in_order(source, caller, "source", labels)
    prior = as_prior(numbers, caller, "source")
    return Source(prior, classes=check_classes(classes, None, len(prior), caller))
