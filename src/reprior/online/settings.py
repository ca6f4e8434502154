"""The constants of the default stream, in one frozen value that a caller can replace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from reprior._check import check_number, fail
from reprior.model.settings import Settings

WHERE = "StreamSettings"
MODEL = Settings()
INCREASING = (("sizes", 1e-3), ("memories", 0.2), ("label_memories", 1.0))  # tuples, and their smallest values


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Constants of `online-ebls`, chosen on sets of `benchmarks/_ordinary.py`, on drifts of CIFAR-10 outputs and on the
    design half of real drift. `benchmarks/results/streams_constants.md` has what other values cost.

    Parameters
    ----------
    sizes : tuple of float
        Sizes of the filters' Dirichlet priors, in samples per class: as many samples must speak against a filter's
        centre to move it half of the way. Filters centred at equal shares have each size, filters centred at the source
        prior the last. With fewer than ten classes the first size is larger: in all as many samples as with ten.
    memories : tuple of float, increasing
        Samples per class that a filter remembers, with ten classes or more; with fewer classes as with ten. The
        shortest of several memories is for large sudden changes: only the first size has it, and only with ten classes
        or more. Each size also has two filters that forget nothing. One of them restarts after a change.
    sharing : float
        Share of the filters' weight that returns to the weights of the start at each sample, so that a filter that has
        lost can win again.
    caution : float
        Samples that one sample counts as when `t` of them are weighed against `n` held-out samples: they count as
        t/(1 + caution·t/n) in the odds of no shift. Two samples of equal size give 1 in theory.
    window : int
        Samples that a test for label shift compares with held-out samples. It is short because changes may be. The
        first test comes after a quarter of it, later ones after each window.
    label_memories : tuple of two floats
        Half-lives of labels, in labels, for the class biases that they show if `drift` is True.
    label_sharing : float
        Share of the weight of competing corrections that returns to the start with each label.
    model : Settings or dict
        Constants of the default estimator that streams share: the probability of no shift, the held-out samples that
        training counts are worth, the odds of label shift, and the largest spread of class biases.

    Examples
    --------
    >>> StreamSettings(memories=(5.0,)).memories
    (5.0,)
    """

    sizes: tuple[float, ...] = (0.5, 3.0)
    memories: tuple[float, ...] = (0.5, 2.0, 20.0)
    sharing: float = 1e-6
    caution: float = 2.0
    window: int = 100
    label_memories: tuple[float, float] = (25.0, 100.0)
    label_sharing: float = 0.2
    model: Settings = MODEL

    def __post_init__(self) -> None:
        for name, high in (("sharing", 0.5), ("caution", 1e6), ("label_sharing", 1)):
            self._set(name, check_number(getattr(self, name), WHERE, name, low=0, high=high, open_low=True))
        self._set("window", int(check_number(self.window, WHERE, "window", low=4, high=1e9, whole=True)))
        for name, low in INCREASING:
            values = getattr(self, name)
            if not isinstance(values, (tuple, list)) or not values:
                fail(WHERE, name, "be a tuple of numbers", repr(values))
            numbers = tuple(check_number(x, WHERE, name, low=low, high=1e12) for x in values)
            if list(numbers) != sorted(set(numbers)):
                fail(WHERE, name, "increase", repr(values))
            self._set(name, numbers)
        if len(self.label_memories) != 2:
            fail(WHERE, "label_memories", "be two numbers", repr(self.label_memories))
        self._set("model", filled(Settings, self.model, WHERE, "model"))
        for name in Settings.__dataclass_fields__:
            for x in np.atleast_1d(getattr(self.model, name)).tolist():
                high = 0.999 if name == "no_shift" else 1e12
                check_number(x, WHERE, f"model.{name}", low=0, high=high, open_low=True)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


def filled(kind: Any, value: Any, caller: str, option: str) -> Any:
    """Return a value of this dataclass from one, or from a dict of some of its fields, as bytes and JSON hold it."""
    if isinstance(value, kind):
        return value
    names = kind.__dataclass_fields__
    if not isinstance(value, dict) or not set(value) <= set(names):
        fail(caller, option, f"be {kind.__name__}, or a dict with some of {', '.join(names)}", repr(value)[:80])
    return kind(**{name: tuple(x) if isinstance(x, list) else x for name, x in value.items()})


def as_settings(value: Any, caller: str) -> StreamSettings:
    """Return settings from settings, or from a dict of some of their fields."""
    return filled(StreamSettings, value, caller, "settings")  # type: ignore[no-any-return]
