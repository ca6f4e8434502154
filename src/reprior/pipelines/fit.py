"""Fit of a pipeline: the calibrator, and the class prior that the calibrated predictions imply."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from reprior._check import check_choice, check_order, check_prior, check_source, fail, in_order, warn
from reprior._labels import Labelled, check_labelled
from reprior._types import Labels, Matrix, Source, Vector
from reprior.batch.registry import ALIASES, METHODS, Method, check_options
from reprior.pipelines import calibrate
from reprior.pipelines.pipeline import Pipeline
from reprior.pipelines.source import as_counts, implied_prior, pooled_prior, summary, tilt_of
from reprior.rows.calibrated import FEW_FOR_BIASES, RIDGE, Calibrator, plain_softmax, softmax
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
        shares of the held-out labels, "training" the counts. "pooled" averages counts and mean by their numbers of
        samples; "carried" does so only for classes whose bias could not be fitted. "auto" is "carried" with counts and
        "mean" without. If you pass K numbers, nothing is calibrated.
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
    choices = Choices(calibration, prior, method, options)
    with enough_memory(proba):
        pipe = fit_pipeline(proba, y, choices, counts=counts, classes=classes, logits=logits)
    if mismatch := pipe.label_mismatch:
        warn(mismatch)
    return pipe


@contextmanager
def enough_memory(proba: Any) -> Iterator[None]:
    """Raise a `MemoryError` that says what to do, if memory is too small or an allocation inside fails."""
    shape = np.shape(proba) if hasattr(proba, "shape") else ()
    need = BYTES * float(np.prod(shape, dtype=np.float64)) if len(shape) == 2 else 0.0
    no_memory = MemoryError(NO_MEMORY.format(need / 1e9, " × ".join(f"{n:,}" for n in shape)))
    if need > physical_memory():  # else the system would end the process before an allocation fails
        raise no_memory
    try:
        yield
    except MemoryError as error:
        raise no_memory from error


class HeldOut(NamedTuple):
    """Held-out samples, and training counts (K,); `tilt` (K,) is label shares over training shares, if they differ."""

    rows: Matrix
    labels: Labels
    names: tuple[str, ...] | None
    counts: Vector | None
    tilt: Vector | None


class Choices(NamedTuple):
    """How a pipeline is fitted: arguments of `pipeline` with their defaults."""

    calibration: str = "auto"
    prior: Any = "auto"
    method: str | Method = "ebls"
    options: Mapping[str, Any] = MappingProxyType({})


BY_DEFAULT = Choices()


def fit_pipeline(
    proba: Any, y: Any, choices: Choices = BY_DEFAULT, *, counts: Any = None, classes: Sequence[Any] | None = None,
    logits: bool = False,
) -> Pipeline:  # fmt: skip
    """Return the `pipeline` without a warning about labels that do not match their samples; see `label_mismatch`."""
    calibration, prior, method, options = choices
    _check_given(proba, y, counts, prior)
    if isinstance(method, str):
        method = check_choice(method.lower(), "pipeline", "method", (*METHODS, *ALIASES))
        method = ALIASES.get(method, method)
    check_options(method, options, "pipeline", ("counts", "classes", "logits", "calibration", "prior", "method"))
    if proba is None:
        calibrator, source = _without_rows(counts, classes, calibration, prior, logits=logits)
        return Pipeline(calibrator, source, method, options)
    rows, labels, names = heldout_rows(proba, y, "pipeline", classes, logits=logits)
    k = rows.shape[1]
    training = None if counts is None else training_counts(counts, names, k, "`proba`")
    held = HeldOut(rows, labels, names, training, None if training is None else tilt_of(labels, training))
    if isinstance(prior, str):
        cal, source = _calibrator_and_source(held, calibration, prior)
    else:
        cal, own = _calibrator(held, "none"), _own_prior(prior, calibration, k, names)
        source = _source(cal, held, own)
        if training is None:  # the implied prior then differs from the label shares
            training = np.bincount(labels, minlength=k).astype(np.float64) + 0.5
    if method == "ebls" and training is not None:
        options = {"base": training / training.sum(), **options}
    raw = check_prior(np.maximum(rows.mean(axis=0, dtype=np.float64), 1e-9), "pipeline", "proba")
    kept = replace(cal, of_logits=logits) if logits or cal.kind != "none" else None
    return Pipeline(kept, source, method, options, raw)


def _calibrator_and_source(held: HeldOut, calibration: str, prior: str) -> tuple[Calibrator, Source]:
    """Return the fitted calibrator and the source; `calibration` and `prior` are names, as in `pipeline`."""
    (n, k), counts, by_default = held.rows.shape, held.counts, prior == "auto"
    if calibration == "auto" and counts is not None and n < k:  # counts are more exact than so few samples
        calibration, prior = "none", "training" if by_default else prior
    cal = _calibrator(held, calibration)
    source = _source(cal, held, prior)
    if counts is None or not by_default or cal.kind not in ("bias-corrected", "vector"):
        return cal, source
    # after the biases, predictions imply the noisy prior of the held-out samples: move them to the training prior
    training_prior = counts / counts.sum()
    cal = replace(cal, bias=cal.bias + np.log(training_prior / source.prior))
    return cal, replace(_source(cal, held, training_prior), made=source.made)


def _check_given(proba: Any, y: Any, counts: Any, prior: Any) -> None:
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


def training_counts(counts: Any, classes: Sequence[str] | None, k: int | None = None, like: str = "") -> Vector:
    """Return training counts (K,), in the order of `classes` by name; shares count as very many samples."""
    numbers = in_order(counts, "pipeline", "counts", classes)[0].astype(np.float64)
    check_prior(numbers, "pipeline", "counts")
    if k is not None and len(numbers) != k:
        fail("pipeline", "counts", f"have {k} classes like {like}", len(numbers))
    return as_counts(numbers)


def _without_rows(
    counts: Any, classes: Any, calibration: str, prior: Any, *, logits: bool
) -> tuple[Calibrator | None, Source]:
    """Return what a pipeline takes from counts or a prior alone. Only logits are changed, into probabilities."""
    if calibration not in ("auto", "none"):
        fail("pipeline", "calibration", "be 'auto' or 'none' without held-out samples", repr(calibration))
    check_order(classes, "pipeline")
    names = None if classes is None else [str(label) for label in classes]
    if isinstance(prior, str) and prior not in ("auto", "training"):
        fail("pipeline", "prior", "be 'auto', 'training' or K numbers without held-out samples", repr(prior))
    numbers = counts if isinstance(prior, str) else prior
    if counts is not None:
        training_counts(counts, names)  # checked only
    source = check_source(numbers, "pipeline", names)
    if counts is not None:
        training_counts(counts, source.classes, len(source.prior), "`prior`")
    origin = "training counts" if numbers is counts else "given by the user"
    return plain_softmax(len(source.prior)) if logits else None, replace(source, made=origin)


def _calibrator(held: HeldOut, kind: str) -> Calibrator:
    """Return the calibrator: fitted to predictions that are corrected to the label shares, and then moved back."""
    tilt, rows = held.tilt, held.rows
    if tilt is None or held.counts is None:
        return _fitted(rows, held.labels, kind)
    floor = 0.5 * float(rows.min(initial=1.0, where=rows > 0) * tilt.min() / tilt.max())  # zeros must tilt too
    moved = np.maximum(rows, floor)
    cal = _fitted(correct(moved / moved.sum(axis=1, keepdims=True), tilt), held.labels, kind)
    present = np.bincount(held.labels, minlength=len(tilt)) > 0
    back = cal.bias + (cal.scale - 1) * np.log(tilt)
    # a class without held-out samples gets the average bias
    back[~present] = np.average(back[present], weights=held.counts[present])
    return replace(cal, floor=floor, bias=back)


def _fitted(rows: Matrix, labels: Labels, kind: str) -> Calibrator:
    """Return a calibrator of this kind fitted to predictions (n, K); "auto" has biases unless there are few samples."""
    if kind == "auto":
        return calibrate.learned(rows, labels, biases=len(labels) >= FEW_FOR_BIASES)
    return calibrate.fit(rows, labels, kind=kind, ridge=RIDGE, shrink=SHRINK)


def _source(cal: Calibrator, held: HeldOut, prior: Any) -> Source:
    """Return the source of calibrated predictions; the tilt of held-out samples is undone."""
    out, tilt, made = np.asarray(cal(held.rows), np.float64), held.tilt, "given by the user"
    if isinstance(prior, str):
        kind = check_choice(prior, "pipeline", "prior", ("auto", *PRIORS))
        if kind == "auto":
            kind = "mean" if held.counts is None else "carried"
        prior, made = _prior_by_name(kind, out, held, cal.ridge), PRIORS[kind]
    source = summary(Labelled(out, held.labels, held.names), prior)
    if tilt is not None and source.confusion is not None and source.hard_confusion is not None:
        scale = 1 / (tilt * (source.confusion.sum(axis=0) @ (1 / tilt)))
        source = replace(source, confusion=source.confusion * scale, hard_confusion=source.hard_confusion * scale)
    return replace(source, made=made)


def _prior_by_name(kind: str, out: Matrix, held: HeldOut, ridge: float) -> Vector:
    """Return the prior (K,) that calibrated probabilities (n, K) imply, by a kind of `PRIORS`; the tilt is undone."""
    k, labels, counts = out.shape[1], held.labels, held.counts
    weight = None if held.tilt is None else 1 / held.tilt[labels]
    if kind == "labels":
        label_counts = np.bincount(labels, minlength=k).astype(np.float64)
        return label_counts if weight is None else weight @ (np.eye(k)[labels] + 1e-3)
    if kind == "mean":
        # no held-out sample resembles a class: tiny probabilities, below their noise, would count as evidence of it
        least = len(out) * MIN_CLASS_ROWS / (len(out) + MIN_CLASS_ROWS * k)
        return np.maximum(out.sum(axis=0), least) if weight is None else weight @ out
    if counts is None:
        fail("pipeline", "counts", f"be given for prior={kind!r}", "nothing")
    if kind == "training":
        return counts
    # a class without held-out samples, and not by chance, keeps its training share; others are computed among them
    present = (np.bincount(labels, minlength=k) > 0) | (weight is None)
    among = np.maximum(out[:, present], 1e-12)
    among /= among.sum(axis=1, keepdims=True)
    shares = (pooled_prior(among, counts[present], weight) if kind == "pooled" else
              implied_prior(among, counts[present], weight, ridge=ridge))  # fmt: skip
    prior = counts / counts.sum()
    prior[present] = shares / shares.sum() * prior[present].sum()
    return np.asarray(prior)
