"""Held-out rows beside training counts: what the two say together, also where their class mixes differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from reprior import calibrate
from reprior._check import fail
from reprior._types import Labels, Matrix, Source, Vector
from reprior.blocks import correct
from reprior.calibrate import Calibrator
from reprior.selection import pooled_prior
from reprior.source import summarize

TOO_FAR = 0.05  # total variation between held-out labels and outputs that is worth a word


def calibrated(source: Source, kind: str) -> tuple[Source, Calibrator | None]:
    """Return the source as outputs calibrated on its held-out rows carry it, and the calibrator; None for "none"."""
    if kind == "none":
        return source, None
    assert source.heldout is not None
    fitted = calibrate.fit(*source.heldout, kind=kind)
    known = summarize(fitted(source.heldout[0]), source.heldout[1], classes=source.classes)
    return replace(known, made=f"{source.made}, calibrated ({fitted.kind})"), fitted


def trained(source: Source, counts: Vector, kind: str) -> tuple[Source, Calibrator | None]:
    """Return the source that held-out rows and training counts (K,) make together, and the calibrator of the outputs.

    The held-out mix h may differ from that of training, ε. So calibrators are fitted to rows put to h, where labels
    and outputs agree, and moved back to ε; whatever is averaged over rows weighs them by ε/h. Shares instead of counts
    are taken to be exact.
    """
    assert source.heldout is not None
    (rows, y), prior = source.heldout, counts / counts.sum()
    mix = held_out_mix(y, len(counts))
    fitted = None if kind == "none" else _fit(rows, y, mix, prior, kind)
    out = rows if fitted is None else fitted(rows)
    # free biases bring the mean output to the label shares: then the training prior is what outputs carry
    exact = counts.sum() < 1.5 or (fitted is not None and fitted.kind in ("bias-corrected", "vector"))
    carried = prior if exact else pooled_prior(np.asarray(out, np.float64), counts, (prior / mix)[y])
    known = summarize(out, y, prior=carried, classes=source.classes)
    soft, hard = known.confusion, known.hard_confusion
    assert soft is not None
    assert hard is not None
    share = soft.sum(axis=0)  # of each class among the held-out labels
    factor = np.where(share > 0, prior / prior[share > 0].sum() / np.where(share > 0, share, 1.0), 0.0)
    made = "training counts" if exact else "training counts and mean held-out output"
    made += f", calibrated ({fitted.kind})" if fitted else ""
    return replace(known, confusion=soft * factor, hard_confusion=hard * factor, made=made), fitted


def held_out_mix(y: Labels, n_classes: int) -> Vector:
    """Return the shares (K,) of labels, each class with half a row more, so that none is impossible."""
    return np.asarray((np.bincount(y, minlength=n_classes) + 0.5) / (len(y) + 0.5 * n_classes))


def _fit(rows: Matrix, y: Labels, mix: Vector, prior: Vector, kind: str) -> Calibrator:
    moved = correct(rows, mix / prior)
    if kind == "auto":
        kind = calibrate.fit(moved, y, kind="auto").kind
    if kind in ("ts", "temperature"):  # plain temperature scaling would temper the prior inside the outputs, too
        fitted = calibrate.likelihood_temperature(moved, y, prior=mix)
    else:
        fitted = calibrate.fit(moved, y, kind=kind)
    return replace(fitted, bias=fitted.bias + (fitted.scale - 1) * np.log(mix / prior))


def disagreement(source: Source) -> float:
    """Return how far labels and outputs of held-out rows differ in class mix: total variation, 0 if it may be chance.

    Rows drawn to another mix than the training rows look like this, and the mean output is then no source prior.
    """
    if source.heldout is None or source.counts is None:
        return 0.0
    rows, n = source.heldout[0], float(source.counts.sum())
    mean, k = rows.mean(axis=0, dtype=np.float64), rows.shape[1]
    variance = (mean - np.square(rows).mean(axis=0, dtype=np.float64)) / n + n**-2  # of labels around true outputs
    squares = float(((source.counts / n - mean) ** 2 / variance).sum())
    distance = float(np.abs(source.counts / n - mean).sum() / 2)
    return distance if squares > k + 5 * np.sqrt(2 * k) and distance > TOO_FAR else 0.0


def check_beside(source: Source, caller: str) -> None:
    """Refuse counts beside a source that is counts already."""
    if source.heldout is None:
        fail(caller, "--counts", "stand beside held-out rows with labels", "a source that is counts or a prior already",
             remedy="Give one of them")  # fmt: skip
