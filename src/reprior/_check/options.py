"""Checks of single options: numbers, choices, flags, seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from reprior._check.errors import fail
from reprior._check.words import perhaps


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
