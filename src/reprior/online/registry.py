"""The registry of online methods, and how bytes hold one: its name, options, source and calibrator."""

from __future__ import annotations

from dataclasses import asdict, fields, is_dataclass, replace
from typing import Any, cast

import numpy as np

from reprior._check import check_choice, check_source, fail
from reprior._types import Labels
from reprior.online.ebls import OnlineEbls
from reprior.online.fmapls import OnlineFmapls
from reprior.online.method import Layout, Robust, StreamMethod, state_size
from reprior.online.published import PEERS
from reprior.rows.calibrated import Calibrator
from reprior.rows.stored import from_fields, to_fields
from reprior.state import refuse, take

ONLINE: dict[str, type[StreamMethod]] = {method.name: method for method in (OnlineFmapls, OnlineEbls)} | PEERS


def online_method(name: Any, source: Any, options: dict[str, Any], caller: str) -> StreamMethod:
    """Return the online method of that name with its options; another name is refused."""
    made = ONLINE[check_choice(name, caller, "method", tuple(ONLINE))]
    names = [field.name for field in fields(made) if field.name != "source"]  # type: ignore[arg-type]
    for option in options:
        check_choice(option, caller, "options", [*names, "robust"])
    own = {option: value for option, value in options.items() if option != "robust"}
    method: StreamMethod = made(check_source(source, caller), **own)  # type: ignore[call-arg]
    return method if options.get("robust") is None else cast(StreamMethod, Robust(method, options["robust"]))


def options_of(method: StreamMethod) -> dict[str, Any]:
    """Return the options of a method."""
    if isinstance(method, Robust):
        return options_of(method.method) | {"robust": method.robust}
    options = {f.name: getattr(method, f.name) for f in fields(method) if f.name != "source"}  # type: ignore[arg-type]
    return {name: asdict(x) if is_dataclass(x) and not isinstance(x, type) else x for name, x in options.items()}


def layout_fields(layout: Layout) -> list[Any]:
    """Return the layout of a state as bytes hold it."""
    return [[name, list(shape)] for name, shape in layout.items()]


def method_fields(method: StreamMethod, calibrator: Calibrator | None) -> dict[str, Any]:
    """Return what bytes hold of a method: its name, options, layout, what it needs of the source, a calibrator."""
    source = replace(method.source, error=method.error) if "error" in method.needs else method.source  # type: ignore[attr-defined]
    return {"method": method.name, "options": options_of(method), "layout": layout_fields(method.layout),
            **to_fields(source, calibrator, method.needs)}  # fmt: skip


def method_from_fields(about: dict[str, Any], caller: str, ndim: int = 1) -> tuple[StreamMethod, Calibrator | None]:
    """Return the method and the calibrator of `method_fields`; `values` that are no states of it are refused."""
    made = ONLINE[check_choice(about.get("method"), caller, "method", tuple(ONLINE))]
    source, calibrator = from_fields(about, caller)
    method = online_method(made.name, source, take(about, "options", dict, caller), caller)
    if (parts := take(about, "layout", list, caller)) != layout_fields(method.layout):
        fail(caller, "data", f"have the parts {method.layout}", str(parts)[:200],
             remedy="Another release of reprior wrote it")  # fmt: skip
    size = state_size(method.layout)
    states = take(about, "values", np.ndarray, caller, (None, size)[-ndim:]).reshape(-1, size)
    n = states[:, 0]
    whole = ((n >= 0) & (n <= 2**53) & (n == np.floor(n))).all()
    with np.errstate(all="ignore"):  # numbers that overflow here are no state
        sound = states.dtype == np.float64 and whole and method.valid(states)
    if not sound:
        refuse(caller, "data", f"invalid numbers for {method.name!r}")
    return method, calibrator


def labels_in(about: dict[str, Any], caller: str) -> Labels:
    """Return how many labels each of the states in bytes has taken in."""
    labels = take(about, "labels", np.ndarray, caller, about["values"].shape[:-1])
    if labels.dtype != np.int64 or (labels < 0).any() or (labels > 2**53).any():
        refuse(caller, "data", "an invalid number of labels")
    return np.asarray(labels)
