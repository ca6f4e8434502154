"""The artefact: what is learned about a classifier from held-out rows, fitted once, saved to one file, run everywhere.

A `Pipeline` holds a calibrator, the source its outputs carry, and a method. `Pipeline.estimate` is the one way in which
it is applied, to arrays, data frames, top-k rows, files and whatever else can be `Blocks`. The defaults, and what they
were measured against, are on the page "Which method should I use?" of the docs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from reprior._check import check_choice, check_prior, check_source, fail, in_order, warn
from reprior._labels import check_labelled, named, same_rows
from reprior._types import Labels, Matrix, PriorEstimate, Source, Vector, comparable
from reprior.assess.diagnose import checks
from reprior.batch.groups import Groups, groups
from reprior.batch.registry import ALIASES, METHODS, Method, check_options, estimate, method_name
from reprior.online.stream import Stream
from reprior.online.table import StreamTable
from reprior.pipelines import calibrate
from reprior.pipelines.source import carried_prior, pooled_prior, summarize, tilt_of
from reprior.rows.blocks import ArrayBlocks, Blocks, Named, as_blocks, by_name, in_columns, is_top_k
from reprior.rows.calibrated import RIDGE, TINY, CalibratedBlocks, Calibrator, softmax
from reprior.rows.correction import as_given, correct
from reprior.rows.stored import from_fields, to_fields
from reprior.state import Key, decode, encode, refuse, take, write_atomically

SHRINK = 1.0  # pull of the scale to 1: where every held-out row is right, labels alone would sharpen without end
OPPOSED = -4.0  # standard errors; a useless classifier has 0, one whose columns have each other's names far less
ON_REJECT = ("refuse", "warn", "ignore")


@comparable
@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """What turns raw outputs into an estimate; made by `pipeline` or `select`, or read by `load`.

    Parameters
    ----------
    calibrator : Calibrator or None
        What is done to raw outputs first.
    source : Source
        The prior that calibrated outputs carry, the classes' names, and the calibrated held-out rows if there are any.
    method : str or callable
        A name of `METHODS`, or a function of (source, target, **options) that returns a `PriorEstimate`.
    options : mapping
        Options of the method.
    raw_prior : (K,), optional
        The prior that *raw* outputs carry: what a top-k row does not list is spread by it.
    trials : tuple of Candidate
        What `select` decided from, best first.

    Examples
    --------
    >>> from reprior import datasets, pipeline
    >>> data = datasets.load("banking77")
    >>> pipe = pipeline(data.heldout_proba, data.heldout_y, counts=data.counts, classes=data.classes)
    >>> est = pipe.estimate(data.pool_proba[:500], on_reject="warn")
    >>> est.correct(data.pool_proba[:3]).shape
    (3, 77)
    >>> Pipeline.from_bytes(pipe.to_bytes()) == pipe
    True
    """

    calibrator: Calibrator | None
    source: Source
    method: str | Method
    options: Mapping[str, Any] = field(default_factory=dict)
    raw_prior: Vector | None = None
    trials: tuple[Candidate, ...] = field(default=(), compare=False)

    @property
    def classes(self) -> tuple[str, ...] | None:
        """The names of the classes, in the order of the columns, if they are known."""
        return self.source.classes

    def calibrate(self, proba: Any) -> Any:
        """Return raw outputs (n, K) calibrated.

        Parameters
        ----------
        proba : (n, K) array or DataFrame
            Raw outputs; the columns of a DataFrame are matched to the classes by name, and it comes back as one.
        """
        return as_given(self._calibrated(proba, "calibrate"), proba, self.classes)

    def _calibrated(self, proba: Any, caller: str) -> Any:
        """Return raw outputs calibrated as an array (n, K), columns in the order of the classes."""
        rows = by_name(proba, self.classes, caller)
        return rows if self.calibrator is None else self.calibrator(rows, caller=caller)

    def rows(self, proba: Any, caller: str = "estimate") -> Blocks:
        """Return raw outputs of any kind as calibrated blocks, classes matched by name where the rows name them."""
        if not isinstance(proba, (np.ndarray, CalibratedBlocks, ArrayBlocks)) and isinstance(proba, Blocks):
            proba = in_columns(proba, proba.classes, self.classes, caller) if isinstance(proba, Named) else proba
            raw = as_blocks(proba, self.source.prior if self.raw_prior is None else self.raw_prior, caller)
            return raw if self.calibrator is None else CalibratedBlocks(raw, self.calibrator)
        if is_top_k(proba):
            if self.calibrator is not None and self.calibrator.of_logits:
                fail(caller, "proba", "be rows of logits, one a class", "top-k rows",
                     remedy="What a row does not list has no logit. Fit the pipeline to probabilities")  # fmt: skip
            return self.rows(as_blocks(proba, self.source.prior if self.raw_prior is None else self.raw_prior, caller))
        array = proba.array if isinstance(proba, ArrayBlocks) else proba
        rows = self._calibrated(array, caller)
        return as_blocks(rows, self.source.prior, caller) if self.calibrator is None else ArrayBlocks(rows)

    def estimate(
        self, proba: Any, labels: Any = None, *, label_weights: Any = None, on_reject: str = "refuse",
        check: bool = True,
    ) -> PriorEstimate:  # fmt: skip
        """Return the estimate of the target prior from raw outputs.

        Parameters
        ----------
        proba : (n, K) array, DataFrame, Blocks, or top-k pair (indices (n, k), values (n, k))
            The classifier's outputs as they come. A DataFrame's columns are matched to the classes by name.
        labels : (n,), optional
            Labels of some target rows, names or column indices, −1 where unknown.
        label_weights : (n,), optional
            How much each labelled row counts beside one that was chosen at random, as `query` says. Those of rows
            without a label do not matter.
        on_reject : str
            What the estimate's `correct` does if the rows clearly differ by more than their class mix (p < 0.001):
            "refuse" with an error, "warn", or "ignore".
        check : bool
            Whether to test for shift and label shift; that costs about as much as an interval.

        Returns
        -------
        PriorEstimate
            Bound to the calibrator, so that its `correct` takes raw outputs too.
        """
        check_choice(on_reject, "estimate", "on_reject", ON_REJECT)
        target = self.rows(proba)
        same_rows(proba, labels, "estimate", "labels")
        found = estimate(self.source, target, self.method, labels=labels, label_weights=label_weights, **self.options)
        tested = checks(found, target) if check else None
        return replace(found, calibrator=self.calibrator, checks=tested, on_reject=on_reject)

    def groups(
        self, keys: Any, proba: Any, *, share: bool = True, labels: Any = None, label_weights: Any = None
    ) -> Groups:
        """Return the estimate of each group of rows; groups learn from each other.

        Parameters
        ----------
        keys : (n,)
            The group of each row: anything hashable, in any order.
        proba : (n, K) array, DataFrame, Blocks, or top-k pair
            Raw outputs, as in `estimate`.
        share : bool
            Whether groups learn from each other.
        labels, label_weights : (n,), optional
            Classes of some rows, and weights of those that `query` chose, as in `estimate`.
        """
        options = self.options if self.method == "ebls" else {}
        found = groups(self.source, keys, self.rows(proba, "groups"), share=share, labels=labels,
                       label_weights=label_weights, **options)  # fmt: skip
        return replace(found, calibrator=self.calibrator)

    def correct(self, proba: Any, prior: Any) -> Matrix:
        """Return raw outputs (n, K), calibrated, as they would be under a prior that is known.

        Parameters
        ----------
        proba : (n, K) array or DataFrame
            Raw outputs; the columns of a DataFrame are matched to the classes by name, and it comes back as one.
        prior : (K,)
            The class mix; a Series or dict is matched by name.
        """
        prior = prior.prior if isinstance(prior, PriorEstimate) else prior
        target = check_prior(prior, "correct", "prior", allow_zero=True, n_classes=len(self.source.prior),
                             like="the pipeline", classes=self.classes)  # fmt: skip
        fixed = correct(self._calibrated(proba, "correct"), target / self.source.prior)
        return as_given(fixed, proba, self.classes)  # type: ignore[no-any-return]

    def stream(self, method: str = "online-ebls", **options: Any) -> Stream:
        """Return a stream that takes raw outputs one by one.

        Unless told otherwise it keeps to the class mix of training until the rows prove a shift, and it makes no more
        of them than the held-out rows allow.

        Parameters
        ----------
        method : str
            A name of `ONLINE`.
        **options
            Options of the method, as for `Stream`.
        """
        return Stream(method, self.source, calibrator=self.calibrator, **{**self._kept(method), **options})

    def _kept(self, method: str) -> dict[str, Any]:
        """Return the prior that a stream keeps if nothing has shifted, as an option, where it takes one."""
        base = self.options.get("base")
        return {} if base is None or method != "online-ebls" else {"base": tuple(np.asarray(base).tolist())}

    def table(
        self, max_streams: int | None = None, on_evict: Callable[[Hashable, Stream], object] | None = None, *,
        method: str = "online-ebls", **options: Any,
    ) -> StreamTable:  # fmt: skip
        """Return a table of keyed streams that take raw outputs; see `StreamTable`.

        Parameters
        ----------
        max_streams : int, optional
            How many streams there may be at once.
        on_evict : callable, optional
            Called as `on_evict(key, stream)` for a stream that makes room for a new key.
        method : str
            A name of `ONLINE`.
        **options
            Options of the method, as for `Stream`.
        """
        limit = {} if max_streams is None else {"max_streams": max_streams}
        known = {**limit, **self._kept(method), **options}
        return StreamTable(method, self.source, calibrator=self.calibrator, on_evict=on_evict, **known)

    def to_bytes(self, key: Key = None) -> bytes:
        """Return the pipeline as bytes that later versions can read.

        Parameters
        ----------
        key : bytes, optional
            A secret of 1 to 64 bytes: only who has it can then write what is accepted.
        """
        if not isinstance(self.method, str) or self.method not in METHODS:
            fail("Pipeline.to_bytes", "method", "be a name of `METHODS`", method_name(self.method),
                 remedy="A function cannot be saved; register it as `METHODS[name]` wherever it is read")  # fmt: skip
        arrays = {f"option_{name}": value for name, value in self.options.items() if isinstance(value, np.ndarray)}
        options = {name: value for name, value in self.options.items() if not isinstance(value, np.ndarray)}
        told = {"raw_prior": self.raw_prior} if self.raw_prior is not None else {}
        known = to_fields(self.source, self.calibrator)
        return encode("pipeline", {"method": self.method, "options": options, **arrays, **told, **known}, key)

    @classmethod
    def from_bytes(cls, data: Any, key: Key = None) -> Pipeline:
        """Return the pipeline that `to_bytes` wrote; what is damaged, forged or too new is refused.

        Parameters
        ----------
        data : bytes
            What `to_bytes` returned.
        key : bytes, optional
            The key it was signed with.
        """
        caller = "Pipeline.from_bytes"
        about = decode(data, "pipeline", caller, key=key)
        method, options = take(about, "method", str, caller), take(about, "options", dict, caller)
        if method not in METHODS:
            refuse(caller, "data", f"the method {method[:60]!r}, which is none of `METHODS`")
        source, calibrator = from_fields(about, caller)
        k = len(source.prior)
        arrays = {name: take(about, name, np.ndarray, caller, (k,)) for name in about if name.startswith("option_")}
        options = {**options, **{name.removeprefix("option_"): x for name, x in arrays.items()}}
        check_options(METHODS[method], options, caller)
        raw = take(about, "raw_prior", (np.ndarray, type(None)), caller, (k,))
        return cls(calibrator, source, method, options,
                   None if raw is None else check_prior(raw, caller, "raw_prior", n_classes=k))  # fmt: skip

    def save(self, path: str | Path, key: Key = None) -> None:
        """Write the pipeline to one file, whole or not at all; `reprior.load` reads it, and every `--source` does.

        Parameters
        ----------
        path : str or Path
            The file.
        key : bytes, optional
            A secret of 1 to 64 bytes: only who has it can then write what is accepted.
        """
        write_atomically(path, self.to_bytes(key))

    def __repr__(self) -> str:
        kind = self.calibrator.kind if self.calibrator else "none"
        held = 0 if self.source.heldout is None else len(self.source.heldout[1])
        return (
            f"Pipeline(method={method_name(self.method)!r}, calibration={kind!r}, {len(self.source.prior)} classes, "
            f"{held:,} held-out rows, source prior: {self.source.made})"
        )


class Candidate(NamedTuple):
    """A line of the table `select` decides from: mean and standard error of the loss on simulated shifts."""

    calibration: str
    prior: str
    method: str
    loss: float
    error: float


def pipeline(
    proba: Any = None, y: Any = None, *, counts: Any = None, classes: Sequence[Any] | None = None,
    logits: bool = False, calibration: str = "auto", prior: Any = "auto", method: str | Method = "ebls",
    **options: Any,
) -> Pipeline:  # fmt: skip
    """Return the default pipeline, or the one described, from held-out rows, from class counts, or from both.

    Parameters
    ----------
    proba : (n, K), optional
        The classifier's outputs on held-out rows of the training distribution. A DataFrame's columns name the classes.
    y : (n,), optional
        Their labels: names of classes, or column indices.
    counts : (K,), optional
        Training rows of each class; a Series or dict is matched by name. Held-out rows may have another class mix.
    classes : sequence of K names, optional
        The classes in the order of the columns.
    logits : bool
        Whether `proba`, here and in all later calls, are logits.
    calibration : str
        A name of `calibrate.KINDS`. "auto" is temperature scaling with a bias for each class, both as far from the
        identity as the held-out rows bear out (`calibrate.learned`).
    prior : str or (K,)
        The prior that calibrated outputs carry: "carried" (mean calibrated output, pooled with training counts where
        biases are held back), "pooled", "mean", "labels", "training", or K numbers, which can also stand alone. "auto"
        is "carried" with counts and "mean" without. K numbers say what outputs carry as they are, after class weights
        or resampling; they are not calibrated then. The plain default needs no such thing: biases find it.
    method : str or callable
        A name of `METHODS`, or a function of (source, target, **options).
    **options
        Options of the method.

    Examples
    --------
    >>> pipe = pipeline(counts={"cat": 500, "dog": 300})
    >>> pipe.classes, pipe.source.prior
    (('cat', 'dog'), array([0.625, 0.375]))
    """
    if (proba is None) != (y is None) or (proba is None and counts is None and isinstance(prior, str)):
        there = [f"`{name}`" for name, x in (("proba", proba), ("y", y), ("counts", counts)) if x is not None]
        given = f"only {' and '.join(there)}" if there else "none of them"
        fail("pipeline", "proba, y", "both be given, or `counts` alone, or a `prior`", given)
    if isinstance(method, str):
        method = check_choice(method.lower(), "pipeline", "method", (*METHODS, *ALIASES))
        method = ALIASES.get(method, method)
    check_options(method, options, "pipeline", ("counts", "classes", "logits", "calibration", "prior", "method"))
    if proba is None:
        return _without_rows(counts, classes, logits, calibration, prior, method, options)
    rows, labels, names = check_labelled(proba, y, "pipeline", classes, logits=logits)
    if logits:
        rows = np.array(rows, np.float64)
        softmax(rows)
    n, k = rows.shape
    if against_chance(rows, labels) < OPPOSED:
        warn("Labels and outputs of the held-out rows contradict each other. Are the names of the classes in the order"
             " of the columns, and do the labels belong to these rows?")  # fmt: skip
    total = None if counts is None else training_rows(counts, names)
    if total is not None and len(total) != k:
        fail("pipeline", "counts", f"have {k} classes like `proba`", len(total))
    if not isinstance(prior, str):
        prior = check_prior(prior, "pipeline", "prior", n_classes=k, like="`proba`", classes=names)
        if calibration not in ("auto", "none"):
            fail("pipeline", "prior", f"be left out with calibration={calibration!r}", "a prior",
                 remedy="Calibrated outputs carry the held-out rows' mix, whatever training did")  # fmt: skip
        calibration = "none"  # outputs carry the prior as they are; calibrated, they would carry the held-out rows' mix
    if calibration == "auto" and total is not None and n < k:  # counts say more than so few rows
        calibration = "none"
        prior = "training" if isinstance(prior, str) and prior == "auto" else prior
    cal, tilt = _calibrator(rows, labels, total, calibration)
    source = _source(cal, rows, labels, prior, total, names, tilt=tilt)
    if total is not None and cal.kind in ("bias-corrected", "vector") and isinstance(prior, str) and prior == "auto":
        # biases have put outputs to the mix of the held-out rows, with its noise: put them to that of training
        mix = total / total.sum()
        cal = replace(cal, bias=cal.bias + np.log(mix / source.prior))
        source = replace(_source(cal, rows, labels, mix, total, names, tilt=tilt), made=source.made)
    raw = check_prior(np.maximum(rows.mean(axis=0, dtype=np.float64), 1e-9), "pipeline", "proba")
    if logits:
        cal = replace(cal, of_logits=True)
    kept = None if cal.kind == "none" and not logits else cal
    if total is None and not isinstance(prior, str):  # what outputs carry is then not the mix that rows have
        total = np.bincount(labels, minlength=k).astype(np.float64) + 0.5
    return Pipeline(kept, source, method, _options(method, total, options), raw)


def against_chance(rows: Matrix, labels: Labels) -> float:
    """Return by how many standard errors outputs (n, K) give a row's own class more than they give it on average."""
    more = rows[np.arange(len(labels)), labels] - rows.mean(axis=0, dtype=np.float64)[labels]
    error = float(more.std()) / np.sqrt(len(more))
    return float(more.mean()) / error if error > 1e-9 else 0.0


def training_rows(counts: Any, classes: Sequence[str] | None) -> Vector:
    """Return training rows of each class (K,), in the order of `classes` by name."""
    numbers = in_order(counts, "pipeline", "counts", classes)[0].astype(np.float64)
    check_prior(numbers, "pipeline", "counts")
    if numbers.min() < 1:
        fail("pipeline", "counts", "be training rows of each class, at least 1", numbers.min(),
             remedy="Pass shares as `prior`")  # fmt: skip
    return numbers


def _without_rows(
    counts: Any, classes: Any, logits: bool, calibration: str, prior: Any, method: Any, options: dict[str, Any]
) -> Pipeline:
    """Return a pipeline from counts or a prior alone: nothing tells how to calibrate."""
    if calibration not in ("auto", "none"):
        fail("pipeline", "calibration", "be 'auto' or 'none' without held-out rows to calibrate on", repr(calibration))
    names = None if classes is None else [str(label) for label in classes]
    if isinstance(prior, str) and prior not in ("auto", "training"):
        fail("pipeline", "prior", "be 'auto', 'training' or K numbers without held-out rows", repr(prior))
    told = counts if isinstance(prior, str) else prior
    source = check_source(told, "pipeline", names)
    total = None if counts is None else training_rows(counts, source.classes)
    if total is not None and len(total) != len(source.prior):
        fail("pipeline", "counts", f"have {len(source.prior)} classes like `prior`", len(total))
    made = "training counts" if told is counts else "given by the user"
    cal = None
    if logits:
        k = len(source.prior)
        cal = Calibrator("none", np.ones(k), np.zeros(k), TINY, 0, None, of_logits=True)
    return Pipeline(cal, replace(source, made=made), method, options)


def _calibrator(rows: Matrix, labels: Labels, counts: Vector | None, kind: str) -> tuple[Calibrator, Vector | None]:
    """Return the calibrator, and by how much held-out rows are tilted against training, if they are."""
    tilt = None if counts is None else tilt_of(labels, counts)
    if tilt is None or counts is None:
        return _fitted(rows, labels, kind), None
    # labels and outputs agree once these are put to the mix of the labels: fit there, and move back
    floor = 0.5 * float(rows.min(initial=1.0, where=rows > 0) * tilt.min() / tilt.max())  # zeros must tilt too
    moved = np.maximum(rows, floor)
    cal = _fitted(correct(moved / moved.sum(axis=1, keepdims=True), tilt), labels, kind)
    seen = np.bincount(labels, minlength=len(tilt)) > 0
    back = cal.bias + (cal.scale - 1) * np.log(tilt)
    back[~seen] = np.average(back[seen], weights=counts[seen])  # no row tells the bias of a class that is never seen
    return replace(cal, floor=floor, bias=back), tilt


def _fitted(rows: Matrix, labels: Labels, kind: str) -> Calibrator:
    if kind == "auto":
        return calibrate.learned(rows, labels)
    return calibrate.fit(rows, labels, kind=kind, ridge=RIDGE, shrink=SHRINK)


def _options(method: str | Method, counts: Vector | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return a method's options: the default keeps to the class mix of training, where that is known."""
    return options if method != "ebls" or counts is None else {"base": counts / counts.sum()} | options


def _source(
    cal: Calibrator, rows: Matrix, labels: Labels, prior: Any, counts: Vector | None,
    classes: Sequence[str] | None = None, *, tilt: Vector | None = None,
) -> Source:  # fmt: skip
    """Return the source of calibrated outputs; `tilt` is undone."""
    out, made, weight = np.asarray(cal(rows), np.float64), "", None if tilt is None else 1 / tilt[labels]
    if isinstance(prior, str):
        check_choice(prior, "pipeline", "prior", ("auto", "mean", "labels", "training", "pooled", "carried"))
        if prior == "auto":
            prior = "mean" if counts is None else "carried"
        if prior in ("training", "pooled", "carried"):
            if counts is None:
                fail("pipeline", "counts", f"be given for prior={prior!r}", "nothing")
            made = "training counts" if prior == "training" else "training counts and mean held-out output"
            if prior == "training":
                prior = counts
            else:
                # a class that is never seen, and not by chance, is missing from the mean output: it has its training
                # share, and the other classes are looked at among themselves
                seen = (np.bincount(labels, minlength=len(counts)) > 0) | (tilt is None)
                among = np.maximum(out[:, seen], 1e-12)
                among /= among.sum(axis=1, keepdims=True)
                shares = (pooled_prior(among, counts[seen], weight) if prior == "pooled" else
                          carried_prior(among, counts[seen], weight, ridge=cal.ridge))  # fmt: skip
                prior = counts / counts.sum()
                prior[seen] = shares / shares.sum() * prior[seen].sum()
        elif weight is not None:
            made = "mean held-out output" if prior == "mean" else "held-out label counts"
            prior = weight @ (out if prior == "mean" else np.eye(rows.shape[1])[labels] + 1e-3)
    if (
        isinstance(prior, str) and prior == "mean" and out.mean(axis=0).min() < 1e-9
    ):  # no held-out row resembles a class
        prior, made = np.maximum(out.mean(axis=0), 1e-9), "mean held-out output"
    source = summarize(out, named(labels, classes), prior=prior, classes=classes)
    if tilt is not None and source.confusion is not None and source.hard_confusion is not None:
        scale = 1 / (tilt * (source.confusion.sum(axis=0) @ (1 / tilt)))
        source = replace(source, confusion=source.confusion * scale, hard_confusion=source.hard_confusion * scale)
    return replace(source, made=made) if made else source
