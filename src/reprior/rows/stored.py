"""What bytes say of a source and a calibrator: one form, whether a pipeline, a stream or an alarm is saved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from reprior._check import check_classes, check_prior
from reprior._labels import check_labelled
from reprior._types import Source
from reprior.rows.calibrated import Calibrator
from reprior.state import refuse, take

PARTS = ("prior", "classes", "confusion", "hard_confusion", "counts", "misled", "heldout")
NOTHING = type(None)
# what pipelines and alarms called their parts before there was one form
EARLIER = {
    "prior": "source_prior", "classes": "source_classes", "source_rows": "source_proba",
    "calibrator": "source_calibrator",
}  # fmt: skip


def to_fields(source: Source, calibrator: Calibrator | None = None, parts: Sequence[str] = PARTS) -> dict[str, Any]:
    """Return the fields for `encode` that tell these parts of a source, and a calibrator."""
    known = {part: getattr(source, part) for part in parts}
    known["proba"], known["y"] = known.pop("heldout", None) or (None, None)
    known["calibrator"] = calibrator and calibrator.to_bytes()
    return {"made": source.made} | {f"source_{part}": x for part, x in known.items() if x is not None}


def from_fields(about: Mapping[str, Any], caller: str) -> tuple[Source, Calibrator | None]:
    """Return the source and the calibrator that `to_fields` told; what cannot be such is refused."""
    about = {EARLIER.get(name, name): x for name, x in about.items()}

    def array(part: str, *shape: int | None) -> Any:
        return take(about, f"source_{part}", (np.ndarray, NOTHING), caller, shape)

    prior = check_prior(take(about, "source_prior", np.ndarray, caller, (None,)), caller, "prior")
    k = len(prior)
    known = {"confusion": array("confusion", k, k), "hard_confusion": array("hard_confusion", k, k),
             "counts": array("counts", k), "misled": array("misled", None, k)}  # fmt: skip
    if (misled := known["misled"]) is not None:
        if len(misled) not in (3, 4):  # three in bytes from before
            refuse(caller, "data", f"'source_misled' of shape {misled.shape}")
        if (misled[2] > 2**53).any():
            refuse(caller, "data", "more held-out rows in 'source_misled' than can be counted")
    for part, x in known.items():
        if x is not None and (x < 0).any():
            refuse(caller, "data", f"a negative number in {part!r}")
    rows = array("proba", None, k)
    heldout = None if rows is None else check_labelled(rows, array("y", len(rows)), caller)[:2]
    names = take(about, "source_classes", (list, NOTHING), caller)
    if names is not None and not all(isinstance(name, str) for name in names):
        refuse(caller, "data", "names of classes that are no text")
    classes, stored = check_classes(names, None, k, caller), array("calibrator", None)
    calibrator = None if stored is None else Calibrator.from_bytes(stored.tobytes())
    if calibrator is not None and len(calibrator.scale) != k:
        refuse(caller, "data", f"a calibrator of {len(calibrator.scale)} classes beside {k}")
    made = take(about, "made", (str, NOTHING), caller) or "read from bytes"
    return Source(prior, **known, classes=classes, heldout=heldout, made=made), calibrator
