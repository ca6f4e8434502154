"""Fit of a pipeline: the calibrator, and the class prior that the calibrated predictions imply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from reprior._check import check_choice, check_order, check_prior, check_source, fail, in_order, warn
from reprior._labels import Labelled, check_labelled, named
from reprior._types import Labels, Matrix, Source, Vector
from reprior.batch.registry import ALIASES, METHODS, Method, check_options
from reprior.model.classifier_error import measure_error
from reprior.pipelines import calibrate
from reprior.pipelines.pipeline import Pipeline
from reprior.pipelines.source import as_rows, carried_prior, pooled_prior, summarize, tilt_of
from reprior.rows.calibrated import FEW_FOR_BIASES, RIDGE, SMALLEST_NORMAL, Calibrator, softmax
from reprior.rows.correction import correct
from reprior.rows.passes import physical_memory

BYTES = 20  # of memory per held-out number, beside the number itself: measured with 10,000 samples of 10,000 classes
NO_MEMORY = (
    "pipeline: `proba` must fit into {:,.1f} GB of free memory, at 20 bytes per number; got {} numbers. Pass fewer"
    " held-out samples, or merge rare classes."
)
SHRINK = 1.0  # pull of the scale to 1: if every held-out prediction is right, labels alone would sharpen without end
PRIORS = {  # names of source priors, and how each is made
    "mean": "mean held-out prediction", "labels": "held-out label counts", "training": "training counts",
    "pooled": "training counts and mean held-out prediction", "carried": "training counts and mean held-out prediction",
}  # fmt: skip
MIN_CLASS_ROWS = 0.1  # held-out samples that each class has in the source prior at least, though none resembles it


def pipeline(
    proba: Any = None, y: Any = None, *, counts: Any = None, classes: Sequence[Any] | None = None,
    logits: bool = False, calibration: str = "auto", prior: Any = "auto", method: str | Method = "ebls",
    **options: Any,
) -> Pipeline:  # fmt: skip
    """Fit a pipeline: learn from held-out samples how to calibrate a classifier and how far to trust it.

    Pass held-out samples (`proba` and `y`), training `counts`, or both. Then call `estimate` with the predicted
    probabilities of new samples.

    Parameters
    ----------
    proba : (n, K), optional
        Predicted probabilities of held-out samples, one row per sample and one column per class. Held-out samples come
        from the training distribution and were not used for training. A DataFrame's columns name the classes.
    y : (n,), optional
        Labels of the held-out samples: class names, or column indices from 0.
    counts : (K,), optional
        Number of training samples per class, or class shares. A Series or dict is matched by name. The held-out samples
        may have another class prior.
    classes : sequence of K names, optional
        Class names in the order of the columns.
    logits : bool, default False
        Whether `proba`, here and in all later calls, are logits.
    calibration : str, default "auto"
        A name of `calibrate.KINDS`. "auto" fits one temperature and one bias per class. Both are shrunk: with few
        held-out samples they change little.
    prior : str or (K,), default "auto"
        The class prior that the calibrated probabilities imply. "mean" is the mean calibrated probability, "labels" the
        shares of the held-out labels, "training" the counts, "pooled" and "carried" combine counts and mean. "auto" is
        "carried" with counts and "mean" without. If you pass K numbers, nothing is calibrated.
    method : str or callable, default "ebls"
        A name of `METHODS`, or a function of (source, target, **options).
    **options
        Options of the method.

    Returns
    -------
    Pipeline
        Call its `estimate`, `stream`, `groups`, `diagnose` and `save`.

    Raises
    ------
    InputError
        If the input is not valid. The message says what is wrong and how to fix it.

    Examples
    --------
    >>> pipe = pipeline(counts={"cat": 500, "dog": 300})
    >>> pipe.classes, pipe.source.prior
    (('cat', 'dog'), array([0.625, 0.375]))
    """
    shape = np.shape(proba) if hasattr(proba, "shape") else ()
    need = BYTES * float(np.prod(shape, dtype=np.float64)) if len(shape) == 2 else 0.0
    no_memory = MemoryError(NO_MEMORY.format(need / 1e9, " × ".join(f"{n:,}" for n in shape)))
    if need > physical_memory():  # else the system would end the process before an allocation fails
        raise no_memory
    try:
        pipe = fit_pipeline(proba, y, counts=counts, classes=classes, logits=logits, calibration=calibration,
                            prior=prior, method=method, **options)  # fmt: skip
    except MemoryError as error:
        raise no_memory from error
    if mismatch := pipe.label_mismatch:
        warn(mismatch)
    return pipe


def fit_pipeline(
    proba: Any = None, y: Any = None, *, counts: Any = None, classes: Sequence[Any] | None = None,
    logits: bool = False, calibration: str = "auto", prior: Any = "auto", method: str | Method = "ebls",
    **options: Any,
) -> Pipeline:  # fmt: skip
    """Return the `pipeline` without a warning about labels that do not match their samples; see `label_mismatch`."""
    _check_there(proba, y, counts, prior)
    if isinstance(method, str):
        method = check_choice(method.lower(), "pipeline", "method", (*METHODS, *ALIASES))
        method = ALIASES.get(method, method)
    check_options(method, options, "pipeline", ("counts", "classes", "logits", "calibration", "prior", "method"))
    if proba is None:
        return _without_rows(counts, classes, logits, calibration, prior, method, options)
    rows, labels, names = heldout_rows(proba, y, "pipeline", classes, logits=logits)
    n, k = rows.shape
    training_counts = None if counts is None else training_rows(counts, names)
    if training_counts is not None and len(training_counts) != k:
        fail("pipeline", "counts", f"have {k} classes like `proba`", len(training_counts))
    by_default = isinstance(prior, str) and prior == "auto"
    if not isinstance(prior, str):
        prior, calibration = _own_prior(prior, calibration, k, names), "none"
    elif calibration == "auto" and training_counts is not None and n < k:  # counts are more exact than so few samples
        calibration, prior = "none", "training" if by_default else prior
    cal, tilt = _calibrator(rows, labels, training_counts, calibration)
    source = _source(cal, rows, labels, prior, training_counts, names, tilt=tilt)
    if training_counts is not None and cal.kind in ("bias-corrected", "vector") and by_default:
        # after the biases, predictions imply the noisy prior of the held-out samples: move them to the training prior
        training_prior = training_counts / training_counts.sum()
        cal = replace(cal, bias=cal.bias + np.log(training_prior / source.prior))
        moved = _source(cal, rows, labels, training_prior, training_counts, names, tilt=tilt)
        source = replace(moved, made=source.made)
    raw = check_prior(np.maximum(rows.mean(axis=0, dtype=np.float64), 1e-9), "pipeline", "proba")
    if logits:
        cal = replace(cal, of_logits=True)
    kept = None if cal.kind == "none" and not logits else cal
    if training_counts is None and not isinstance(prior, str):  # the implied prior then differs from the label shares
        training_counts = np.bincount(labels, minlength=k).astype(np.float64) + 0.5
    if method == "ebls" and training_counts is not None:
        options = {"base": training_counts / training_counts.sum()} | options
    return Pipeline(kept, replace(source, error=measure_error(source)), method, options, raw)


def _check_there(proba: Any, y: Any, counts: Any, prior: Any) -> None:
    """Refuse samples without labels, labels without samples, and no input at all."""
    if (proba is None) != (y is None) or (proba is None and counts is None and isinstance(prior, str)):
        there = [f"`{name}`" for name, x in (("proba", proba), ("y", y), ("counts", counts)) if x is not None]
        passed = f"only {' and '.join(there)}" if there else "none of them"
        fail("pipeline", "proba, y", "both be given, or `counts` alone, or a `prior`", passed)


def _own_prior(prior: Any, calibration: str, k: int, names: Sequence[str] | None) -> Vector:
    """Return the user's prior (K,); with it nothing is calibrated, because that would imply the held-out prior."""
    if calibration not in ("auto", "none"):
        fail("pipeline", "prior", f"be left out with calibration={calibration!r}", "a prior",
             remedy="Calibrated probabilities imply the prior of the held-out samples")  # fmt: skip
    return check_prior(prior, "pipeline", "prior", n_classes=k, like="`proba`", classes=names)


def heldout_rows(proba: Any, y: Any, caller: str, classes: Any, *, logits: bool) -> Labelled:
    """Return held-out samples and their labels, both checked; logits become probabilities."""
    heldout = check_labelled(proba, y, caller, classes, logits=logits)
    if not logits:
        return heldout
    rows = np.array(heldout.rows, np.float64)
    softmax(rows)
    return heldout._replace(rows=rows)


def training_rows(counts: Any, classes: Sequence[str] | None) -> Vector:
    """Return training samples per class (K,), in the order of `classes` by name; shares count as very many samples."""
    numbers = in_order(counts, "pipeline", "counts", classes)[0].astype(np.float64)
    check_prior(numbers, "pipeline", "counts")
    return as_rows(numbers, "pipeline")


def _without_rows(
    counts: Any, classes: Any, logits: bool, calibration: str, prior: Any, method: Any, options: dict[str, Any]
) -> Pipeline:
    """Return a pipeline from counts or a prior alone, without calibration."""
    if calibration not in ("auto", "none"):
        fail("pipeline", "calibration", "be 'auto' or 'none' without held-out samples", repr(calibration))
    check_order(classes, "pipeline")
    names = None if classes is None else [str(label) for label in classes]
    if isinstance(prior, str) and prior not in ("auto", "training"):
        fail("pipeline", "prior", "be 'auto', 'training' or K numbers without held-out samples", repr(prior))
    numbers = counts if isinstance(prior, str) else prior
    source = check_source(numbers, "pipeline", names)
    training_counts = None if counts is None else training_rows(counts, source.classes)
    if training_counts is not None and len(training_counts) != len(source.prior):
        fail("pipeline", "counts", f"have {len(source.prior)} classes like `prior`", len(training_counts))
    origin = "training counts" if numbers is counts else "given by the user"
    cal = None
    if logits:
        k = len(source.prior)
        cal = Calibrator("none", np.ones(k), np.zeros(k), SMALLEST_NORMAL, 0, None, of_logits=True)
    return Pipeline(cal, replace(source, made=origin), method, options)


def _calibrator(rows: Matrix, labels: Labels, counts: Vector | None, kind: str) -> tuple[Calibrator, Vector | None]:
    """Return the calibrator, and the ratio (K,) of held-out label shares to training shares; None if they agree."""
    tilt = None if counts is None else tilt_of(labels, counts)
    if tilt is None or counts is None:
        return _fitted(rows, labels, kind), None
    # predictions agree with the labels once corrected to the label shares: fit there, and move back
    floor = 0.5 * float(rows.min(initial=1.0, where=rows > 0) * tilt.min() / tilt.max())  # zeros must tilt too
    moved = np.maximum(rows, floor)
    cal = _fitted(correct(moved / moved.sum(axis=1, keepdims=True), tilt), labels, kind)
    present = np.bincount(labels, minlength=len(tilt)) > 0
    back = cal.bias + (cal.scale - 1) * np.log(tilt)
    # a class without held-out samples gets the average bias
    back[~present] = np.average(back[present], weights=counts[present])
    return replace(cal, floor=floor, bias=back), tilt


def _fitted(rows: Matrix, labels: Labels, kind: str) -> Calibrator:
    if kind == "auto":
        return calibrate.learned(rows, labels, biases=len(labels) >= FEW_FOR_BIASES)
    return calibrate.fit(rows, labels, kind=kind, ridge=RIDGE, shrink=SHRINK)


def _source(
    cal: Calibrator, rows: Matrix, labels: Labels, prior: Any, counts: Vector | None,
    classes: Sequence[str] | None = None, *, tilt: Vector | None = None,
) -> Source:  # fmt: skip
    """Return the source of calibrated predictions; `tilt` is undone."""
    out, made = np.asarray(cal(rows), np.float64), "given by the user"
    if isinstance(prior, str):
        kind = check_choice(prior, "pipeline", "prior", ("auto", *PRIORS))
        if kind == "auto":
            kind = "mean" if counts is None else "carried"
        prior, made = _implied_prior(kind, out, labels, counts, tilt, cal.ridge), PRIORS[kind]
    source = replace(summarize(out, named(labels, classes), prior=prior, classes=classes), made=made)
    if tilt is not None and source.confusion is not None and source.hard_confusion is not None:
        scale = 1 / (tilt * (source.confusion.sum(axis=0) @ (1 / tilt)))
        source = replace(source, confusion=source.confusion * scale, hard_confusion=source.hard_confusion * scale)
    return source


def _implied_prior(
    kind: str, out: Matrix, labels: Labels, counts: Vector | None, tilt: Vector | None, ridge: float
) -> Vector:
    """Return the prior (K,) that calibrated probabilities (n, K) imply, by a kind of `PRIORS`; `tilt` is undone."""
    k, weight = out.shape[1], None if tilt is None else 1 / tilt[labels]
    if kind == "labels":
        plain = np.bincount(labels, minlength=k).astype(np.float64)
        return plain if weight is None else weight @ (np.eye(k)[labels] + 1e-3)
    if kind == "mean":
        # no held-out sample resembles a class: tiny probabilities, below their noise, would count as evidence of it
        least = len(out) * MIN_CLASS_ROWS / (len(out) + MIN_CLASS_ROWS * k)
        return np.maximum(out.sum(axis=0), least) if weight is None else weight @ out
    if counts is None:
        fail("pipeline", "counts", f"be given for prior={kind!r}", "nothing")
    if kind == "training":
        return counts
    # a class without held-out samples, and not by chance, keeps its training share; others are computed among them
    present = (np.bincount(labels, minlength=k) > 0) | (tilt is None)
    among = np.maximum(out[:, present], 1e-12)
    among /= among.sum(axis=1, keepdims=True)
    shares = (pooled_prior(among, counts[present], weight) if kind == "pooled" else
              carried_prior(among, counts[present], weight, ridge=ridge))  # fmt: skip
    prior = counts / counts.sum()
    prior[present] = shares / shares.sum() * prior[present].sum()
    return np.asarray(prior)
