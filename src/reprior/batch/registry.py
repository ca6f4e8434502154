"""The registry of batch methods, under their own names and the ones users know them by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from inspect import signature
from types import MappingProxyType
from typing import Any

from reprior._check import fail, perhaps
from reprior.batch.driver import ModelSpread
from reprior.batch.fmapls import fmapls
from reprior.batch.mapls import mapls
from reprior.batch.mlls import mlls
from reprior.batch.moments import bbse, rlls
from reprior.estimates.estimate import PriorEstimate
from reprior.model.ebls import ebls
from reprior.rows.blocks import check_inputs
from reprior.rows.labelled import LabelledBlocks, labelled

# from a source and target outputs, with options by keyword, to an estimate
Method = Callable[..., PriorEstimate]
# open: a method of one's own, METHODS["mine"] = function, is known wherever a method is named
METHODS: dict[str, Method] = {"bbse": bbse, "ebls": ebls, "fmapls": fmapls, "mapls": mapls, "mlls": mlls, "rlls": rlls}
ALIASES: Mapping[str, str] = MappingProxyType({"pacc": "bbse", "em": "mlls", "emq": "mlls", "sld": "mlls"})


def method_name(method: str | Method) -> str:
    """Return what to call a method: its name, or that of the user's own function."""
    return method if isinstance(method, str) else getattr(method, "__name__", type(method).__name__)


def check_options(method: str | Method, options: Iterable[str], caller: str, beside: Iterable[str] = ()) -> None:
    """Refuse an option that a method does not take; `beside` are other arguments that may have been meant."""
    options = tuple(options)
    if not options:  # to ask a function what it takes costs more than to check a few rows
        return
    try:
        parameters = signature(METHODS[method] if isinstance(method, str) else method).parameters
    except (TypeError, ValueError):  # some functions have no signature
        return
    names = [option for option in list(parameters)[2:] if option not in ("labels", "label_weights")]
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for option in options:
        if option not in names:
            fail(caller, "options", "be among " + ", ".join(names), option,
                 remedy=perhaps(option, [*beside, *names], "`{}`".format))  # fmt: skip


def estimate(
    source: Any, proba: Any, method: str | Method = "ebls", *, labels: Any = None, label_weights: Any = None,
    **options: Any,
) -> PriorEstimate:  # fmt: skip
    """Estimate the target prior with a method of your choice. A pipeline also calibrates and tests; see `pipeline`.

    Parameters
    ----------
    source : Source or (K,)
        What `summarize` returned, or class counts. A Series or dict is matched by name.
    proba : (n, K) array, DataFrame, Blocks, or top-k pair
        Predicted probabilities of target samples, calibrated.
    method : str or callable
        A name of `METHODS` or `ALIASES`, or a function of (source, target, **options).
    labels : (n,), optional
        Labels of some target samples, as class names or column indices; −1 if unknown.
    label_weights : (n,), optional
        Weights of labelled samples that `query` chose; other entries do not matter.
    **options
        Options of the method.

    Examples
    --------
    >>> estimate([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]], method="SLD").status.ok
    True
    """
    if callable(method):
        training, target = check_inputs(source, proba, "estimate")
        target = labelled(target, labels, training, "estimate", label_weights)
        estimated = method(training, target, **options)
        if not isinstance(estimated, PriorEstimate):
            fail("estimate", "method", "return a PriorEstimate", type(estimated).__name__)
        lazy = ModelSpread(estimated.shares, estimated.prior, training, target, float(estimated.n))
        return replace(estimated, spread=estimated.spread or lazy, n_labels=getattr(target, "n_labels", 0))
    name = str(method).lower()
    function = METHODS.get(ALIASES.get(name, name))
    if function is None:
        fail("estimate", "method", "be one of " + ", ".join([*METHODS, *ALIASES]), repr(method),
             remedy=perhaps(name, [*METHODS, *ALIASES]))  # fmt: skip
    check_options(function, options, name)
    if labels is None and label_weights is None:
        return function(source, proba, **options)
    # Methods without a classifier-error model count labels as exact and ignore label weights.
    parameters = signature(function).parameters
    training, target = check_inputs(source, proba, "estimate")
    target = labelled(target, labels, training, "estimate", label_weights)
    if "labels" in parameters and "label_weights" not in parameters and isinstance(target, LabelledBlocks):
        target = replace(target, weights=None)
    return replace(function(training, target, **options), n_labels=getattr(target, "n_labels", 0))
