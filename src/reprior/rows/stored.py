"""How bytes hold a source and a calibrator: one form for pipelines, streams and alarms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reprior._check import check_classes, check_prior
from reprior._labels import check_labelled
from reprior._types import ClassifierError, MomentReference, Source
from reprior.rows.calibrated import Calibrator
from reprior.state import refuse, take

PARTS = ("prior", "classes", "confusion", "hard_confusion", "counts", "error", "heldout")
NOTHING = type(None)
MOMENTS = ("directions", "mean", "class_means", "within", "deviations", "source_prior")
MIN_INFORMATION = 1e-9  # of probabilities relative to labels, in bytes that are accepted; at least 1e-6 is written
MAX_DIRECTIONS = 64  # of moments, in bytes that are accepted


def to_fields(source: Source, calibrator: Calibrator | None = None, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """Return the fields for `encode` that hold these parts of a source, and a calibrator."""
    fields = {part: getattr(source, part) for part in parts}
    fields["proba"], fields["y"] = fields.pop("heldout", None) or (None, None)
    if error := fields.pop("error", None):
        fields |= {"error_heldout": error.heldout, "error_information": error.information}
        if error.moments is not None:
            fields |= {f"moments_{name}": getattr(error.moments, name) for name in MOMENTS}
    fields["calibrator"] = calibrator and calibrator.to_bytes()
    return {"made": source.made} | {f"source_{part}": x for part, x in fields.items() if x is not None}


def from_fields(about: Mapping[str, Any], caller: str) -> tuple[Source, Calibrator | None]:
    """Return the source and the calibrator that `to_fields` described; invalid ones are refused."""

    def array(part: str, *shape: int | None) -> Any:
        return take(about, f"source_{part}", (np.ndarray, NOTHING), caller, shape)

    prior = check_prior(take(about, "source_prior", np.ndarray, caller, (None,)), caller, "prior")
    k = len(prior)
    parts = {"confusion": array("confusion", k, k), "hard_confusion": array("hard_confusion", k, k),
             "counts": array("counts", k)}  # fmt: skip
    for part, x in parts.items():
        if x is not None and (x < 0).any():
            refuse(caller, "data", f"a negative number in {part!r}")
    error = stored_error(array("error_heldout", k), array("error_information", k), about, caller)
    rows = array("proba", None, k)
    heldout = None if rows is None else check_labelled(rows, array("y", len(rows)), caller)[:2]
    names = take(about, "source_classes", (list, NOTHING), caller)
    if names is not None and not all(isinstance(name, str) for name in names):
        refuse(caller, "data", "class names that are not text")
    classes, stored = check_classes(names, None, k, caller), array("calibrator", None)
    calibrator = None if stored is None else Calibrator.from_bytes(stored.tobytes())
    if calibrator is not None and len(calibrator.scale) != k:
        refuse(caller, "data", f"a calibrator of {len(calibrator.scale)} classes beside {k}")
    made = take(about, "made", str, caller)
    return Source(prior, **parts, classes=classes, heldout=heldout, made=made, error=error), calibrator


def stored_error(heldout: Any, information: Any, about: Mapping[str, Any], caller: str) -> ClassifierError | None:
    """Return the classifier's error from its stored parts (K,) each, and moments; what cannot be such is refused."""
    if heldout is None and information is None:
        return None
    if heldout is None or information is None:
        refuse(caller, "data", "'source_error_heldout' without 'source_error_information', or the reverse")
    if not ((heldout >= 0) & (heldout <= 2**53)).all() or not heldout.sum() > 0:
        refuse(caller, "data", "invalid counts in 'source_error_heldout'")
    if not ((information >= MIN_INFORMATION) & (information <= 1)).all():
        refuse(caller, "data", "numbers in 'source_error_information' that are too small or above 1")
    heldout, information = heldout.astype(np.float64), information.astype(np.float64)
    if "source_moments_directions" not in about:
        return ClassifierError(heldout, information)
    k = len(heldout)
    d = take(about, "source_moments_mean", np.ndarray, caller, (None,)).size
    shapes = ((3 * k + 1, d), (d,), (k, d), (d, d), (k, d), (k,))
    parts = {name: take(about, f"source_moments_{name}", np.ndarray, caller, shape).astype(np.float64)
             for name, shape in zip(MOMENTS, shapes, strict=True)}  # fmt: skip
    within, deviations, prior = parts["within"], parts["deviations"], parts["source_prior"]
    sound = 0 < d <= MAX_DIRECTIONS and all((np.abs(x) < 1e9).all() for x in parts.values())
    sound = sound and (deviations > 1e-9).all() and (prior > 0).all() and abs(prior.sum() - 1) < 1e-6
    if not sound or not np.allclose(within, within.T) or not np.linalg.eigvalsh(within)[0] > 0:
        refuse(caller, "data", "invalid numbers in 'source_moments'")
    moments = MomentReference(**parts, information=information, n_heldout=float(heldout.sum()))
    return ClassifierError(heldout, information, moments)
