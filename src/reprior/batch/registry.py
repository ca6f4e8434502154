"""The registry of batch methods, under their own names and the ones users know them by."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import signature
from types import MappingProxyType
from typing import Any

from reprior._check import fail
from reprior._types import PriorEstimate
from reprior.batch.ebls import ebls
from reprior.batch.fmapls import fmapls
from reprior.batch.mapls import mapls
from reprior.batch.mlls import mlls
from reprior.batch.moments import bbse, rlls

# from a source and target outputs, with options by keyword, to an estimate
Method = Callable[..., PriorEstimate]
METHODS: Mapping[str, Method] = MappingProxyType(
    {"bbse": bbse, "ebls": ebls, "fmapls": fmapls, "mapls": mapls, "mlls": mlls, "rlls": rlls}
)


ALIASES: Mapping[str, str] = MappingProxyType({"pacc": "bbse", "em": "mlls", "emq": "mlls", "sld": "mlls"})


def estimate(source: Any, proba: Any, method: str = "ebls", **options: Any) -> PriorEstimate:
    """Estimate the target prior by a method given by name; `METHODS` lists them, `ALIASES` their other names.

    >>> estimate([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], method="SLD").status.ok
    True
    """
    name = str(method).lower()
    function = METHODS.get(ALIASES.get(name, name))
    if function is None:
        fail("estimate", "method", "be one of " + ", ".join([*METHODS, *ALIASES]), repr(method))
    known = list(signature(function).parameters)[2:]
    for option in options:
        if option not in known:
            fail(name, "options", "be among " + ", ".join(known), option)
    return function(source, proba, **options)
