"""The constants of the default stream, in one frozen value that a caller can replace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from reprior._check import check_number, fail
from reprior.model.settings import Settings

BATCH = Settings()
WHERE = "StreamSettings"


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """Constants of `online-ebls`, chosen on sets of `benchmarks/_ordinary.py` and on drifts of CIFAR-10 outputs.

    Parameters
    ----------
    no_shift : float
        Prior probability that the class prior has not shifted, as in `reprior.model.Settings`.
    sizes : tuple of float
        Sizes of the filters' Dirichlet priors, in samples per class: as many samples must speak against a filter's
        centre to move it half of the way. Filters centred at equal shares have each size, filters centred at the source
        prior the last.
    memories : tuple of float, increasing
        Samples per class that a filter remembers, with ten classes or more; with fewer classes as with ten. Each size
        also has two filters that forget nothing. One of them restarts after a change.
    sharing : float
        Share of the filters' weight that returns to the weights of the start at each sample, so that a filter that has
        lost can win again.
    caution : float
        Samples that one sample counts as when `t` of them are weighed against `n` held-out samples: they count as
        t/(1 + caution·t/n) in the odds of no shift. Two samples of equal size give 1 in theory.
    max_no_shift : float
        Largest probability of no shift, so that a stream without shift still notices one.
    label_memories : tuple of two floats
        Half-lives of labels, in labels, for the class biases that they show if `drift` is True.
    label_sharing : float
        Share of the weight of competing corrections that returns to the start with each label.
    bias_spread : float
        Prior standard deviation of a class bias, in log probability.

    Examples
    --------
    >>> StreamSettings(memories=(5.0,)).memories
    (5.0,)
    """

    no_shift: float = BATCH.no_shift
    sizes: tuple[float, ...] = (0.5, 3.0)
    memories: tuple[float, ...] = (2.0, 20.0)
    sharing: float = 1e-6
    caution: float = 2.0
    max_no_shift: float = 0.999
    label_memories: tuple[float, float] = (25.0, 100.0)
    label_sharing: float = 0.2
    bias_spread: float = 1.0

    def __post_init__(self) -> None:
        for name, low, high in (("no_shift", 0, 0.999), ("sharing", 0, 0.5), ("caution", 0, 1e6),
                                ("max_no_shift", 0.5, 1 - 1e-9), ("label_sharing", 0, 1),
                                ("bias_spread", 0, 100)):  # fmt: skip
            number = check_number(getattr(self, name), WHERE, name, low=low, high=high, open_low=True)
            object.__setattr__(self, name, number)
        if self.no_shift > self.max_no_shift:
            fail(WHERE, "no_shift", "be at most `max_no_shift`", self.no_shift)
        if len(self.label_memories) != 2:
            fail(WHERE, "label_memories", "be two numbers", repr(self.label_memories))
        for name, low in (("sizes", 1e-3), ("memories", 0.2), ("label_memories", 1)):
            values = getattr(self, name)
            if not isinstance(values, (tuple, list)) or (name == "sizes" and not values):
                fail(WHERE, name, "be a tuple of numbers", repr(values))
            numbers = tuple(check_number(x, WHERE, name, low=low, high=1e12) for x in values)
            if list(numbers) != sorted(set(numbers)):
                fail(WHERE, name, "increase", repr(values))
            object.__setattr__(self, name, numbers)


def as_settings(value: Any, caller: str) -> StreamSettings:
    """Return settings from settings, or from a dict of some of their fields."""
    if isinstance(value, StreamSettings):
        return value
    names = StreamSettings.__dataclass_fields__
    if not isinstance(value, dict) or not set(value) <= set(names):
        fail(caller, "settings", f"be StreamSettings, or a dict with some of {', '.join(names)}", repr(value)[:80])
    return StreamSettings(**value)
