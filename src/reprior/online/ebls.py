"""online-EBLS, the default stream: a bank of filters that follow a moving class prior, beside "no shift".

Each filter keeps a Beta law for the share of every class, by its mean m and precision s (in samples), and matches its
moments to each sample. Filters differ in where they start, how firmly, and how soon they forget. How well
they predict each sample weighs them, and all of them together against the hypothesis that nothing has shifted. Without
evidence of a shift the stream keeps the source prior. `_kernels/reference.py` has the step for one sample, `acting.py`
how much of the correction is applied.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import ClassVar

import numpy as np

from reprior._check import check_flag, check_prior
from reprior._kernels import NATIVE, loops, reference
from reprior._types import Acts, ClassifierError, Matrix, MomentReference, Source, StreamChecks, Vector
from reprior.model.classifier_error import measure_error
from reprior.model.interval import Moments, mixture
from reprior.model.label_shift import MAX_LOG_EVIDENCE, Explanations, explanations
from reprior.online.acting import (
    DIRECTIONS,
    MIN_PRIOR,
    N_CORRECTIONS,
    acts_of,
    has_labels,
    learn_and_test,
    replace_sample_by_label,
    share_of_tests,
    update_by_label,
    weights_by_labels,
)
from reprior.online.method import Kernel, Layout, refuse, require_done, simplex, state_size, unpack, views
from reprior.online.settings import StreamSettings, as_settings
from reprior.online.shared_start import start_sizes

# classes below which memories and the first size are, in samples, those of ten: fewer than 20 hardly show a change
MIN_CLASSES = 10
BY_CLASS = ("mean", "precision", "proba_sums", "curvature", "newton_sum")  # parts of a state padded behind K classes


@dataclass(frozen=True)
class OnlineEbls:
    """Streaming empirical Bayes: it keeps the source prior until the samples show a shift, then follows them.

    Parameters
    ----------
    source : Source
        Held-out samples limit how much the stream makes of its samples.
    drift : bool
        Whether the prior may move. With False all samples count alike, and the estimate tends to that of a batch.
    base : (K,), optional
        The prior without shift, if it is not the one that the predicted probabilities imply.
    settings : StreamSettings or dict
        The constants.
    """

    name: ClassVar[str] = "online-ebls"
    needs: ClassVar[tuple[str, ...]] = ("prior", "classes", "error")

    source: Source = field(repr=False)
    drift: bool = True
    base: tuple[float, ...] | None = field(default=None, repr=False)
    settings: StreamSettings = field(default=StreamSettings(), repr=False)

    def __post_init__(self) -> None:
        check_flag(self.drift, self.name, "drift")
        object.__setattr__(self, "settings", as_settings(self.settings, self.name))
        if self.base is not None:
            base = check_prior(self.base, self.name, "base", n_classes=len(self.source.prior), like="the source")
            object.__setattr__(self, "base", tuple(base.tolist()))

    # from the source

    @cached_property
    def without_shift(self) -> Vector:
        """The prior (K,) if nothing has shifted."""
        return self.source.prior if self.base is None else np.array(self.base)

    @cached_property
    def log_unshifted(self) -> Vector:
        """The log class weights (K,) without shift."""
        return np.asarray(np.log(self.without_shift / self.source.prior))

    @cached_property
    def error(self) -> ClassifierError | None:
        return measure_error(self.source, self.settings.model)

    @cached_property
    def moments(self) -> MomentReference | None:
        """What the stream compares its samples with, to test for label shift."""
        if self.error is None or self.error.moments is None:
            return None
        return self.error.moments.leading(DIRECTIONS)

    @cached_property
    def explanations(self) -> Explanations:
        """The explanations of a change that a test compares."""
        assert self.moments is not None
        return explanations(self.moments, self.settings.model, None if self.base is None else self.without_shift)

    @cached_property
    def heldout(self) -> Vector:
        """Held-out samples (K,) per class, or what training counts are worth without them."""
        counts_worth = np.full(len(self.source.prior), self.settings.model.counts_worth)
        return counts_worth if self.error is None else self.error.heldout

    @cached_property
    def n_heldout(self) -> float:
        return max(float(self.heldout.sum()), 1.0)

    @cached_property
    def information(self) -> Vector:
        """The information I (K,) of predictions about each class; without held-out samples it is taken to be ½."""
        return np.full(len(self.source.prior), 0.5) if self.error is None else self.error.information

    @cached_property
    def heldout_noise(self) -> float:
        """h in t/(1 + h·t), the effective number of t samples.

        The variance of a share is v/(t·I) by t target samples and v(1/I − 1)/n by n held-out samples, whose labels are
        known; v is that by one label. So h = (1 − I)/n.
        """
        return max(1.0 - float(self.heldout @ self.information) / self.n_heldout, 0.0) / self.n_heldout

    @cached_property
    def implied(self) -> Vector:
        """The prior (K,) that the probabilities imply; a class has at least `pseudo_count` of the held-out samples."""
        if self.error is None:
            return self.source.prior
        return np.maximum(self.source.prior, self.settings.model.pseudo_count / self.n_heldout)

    @cached_property
    def kept_shift(self) -> Vector:
        """The part (K,) of each log class weight that the noise of held-out samples leaves.

        A weight divides the estimated prior by the implied prior ε_k. With n held-out samples log ε_k has the variance
        1/(n ε_k). Before any sample a log weight has the variance 1/size, for the loosest `size` of shift. So its
        posterior mean is n ε_k/(n ε_k + size) of the estimate. Without held-out samples nothing is known about noise.
        """
        if self.error is None:
            return np.ones(len(self.source.prior))
        counts = self.n_heldout * self.implied
        return np.asarray(counts / (counts + self.settings.model.sizes[0]))

    # what the kernels take

    @cached_property
    def kernel_priors(self) -> Matrix:
        """Priors for the kernel, one per row, padded: 1/implied prior, ones, prior without shift, equal shares.

        The prior without shift has `pseudo_count` more held-out samples per class. A class that had none is expected.
        """
        k, unshifted = len(self.without_shift), self.without_shift
        if self.error is not None:
            unshifted = self.n_heldout * unshifted + self.settings.model.pseudo_count
            unshifted = unshifted / unshifted.sum()
        others = [reference.padded(part)[:1] for part in (unshifted, np.full(k, 1.0 / k))]
        return np.concatenate([reference.padded(1.0 / self.implied), *others])

    @cached_property
    def options(self) -> Vector:
        """Numbers for the kernel: K, `sharing`, `heldout_noise`, caution/n, `chance_gain`, log odds of no shift."""
        k, no_shift = len(self.without_shift), self.settings.model.no_shift
        # a prior fitted to n samples of K classes beats the true one by (K − 1)/2n per sample: that is no evidence
        chance_gain = (k - 1) / (2.0 * self.n_heldout)
        sharing, caution = self.settings.sharing if self.drift else 0.0, self.settings.caution / self.n_heldout
        return np.array([k, sharing, self.heldout_noise, caution, chance_gain, np.log(no_shift / (1.0 - no_shift))])

    @cached_property
    def weight_constants(self) -> tuple[Matrix, Vector]:
        """What the kernel of class weights takes: vectors, one per row, padded, and numbers.

        The rows are the prior without shift, ones, `kept_shift`, `log_unshifted` and the source prior. The numbers are
        K, the number of filters, P(no shift) at the start, and the smallest prior.
        """
        k, others = len(self.without_shift), (self.kept_shift, self.log_unshifted, self.source.prior)
        rows = np.concatenate([reference.padded(self.without_shift), *(reference.padded(x)[:1] for x in others)])
        return rows, np.array([k, len(self.bank), self.settings.model.no_shift, MIN_PRIOR])

    @cached_property
    def chains(self) -> list[tuple[float, bool]]:
        """Size and centre of each chain of filters; True: centred at the prior without shift, else at equal shares."""
        k, (first, *others) = len(self.without_shift), self.settings.sizes
        sizes = (first * MIN_CLASSES / min(k, MIN_CLASSES), *others)
        return [*((size, False) for size in sizes), (self.settings.sizes[-1], True)]

    @cached_property
    def bank(self) -> Matrix:
        """One row per filter: size, memory (0: endless), whether it restarts from the row above, weight, centre.

        A chain has one filter per memory, from fast to slow, each twice as probable as the one before, which keeps
        quiet streams steady. Then come two that forget nothing: one that restarts after a change and one that never
        does. Both centres are equally probable. A filter restarts from the next faster one when that one leads by
        log(memory) in log-likelihood, or by log n if memory is endless or above n.

        Only the first chain, which allows the largest shifts, has the shortest memory, if there are enough classes. The
        size of that filter is smaller in proportion, so that its centre pulls it no more than the next filter.
        """
        classes, memories = max(len(self.without_shift), MIN_CLASSES), self.settings.memories
        shared = memories[1:] or memories
        of_first = shared if len(self.without_shift) < MIN_CLASSES else memories
        rows = []
        for i, (size, centre) in enumerate(self.chains):
            ladder = (*(shared if i else of_first), 0.0) if self.drift else ()
            weights = 2.0 ** np.minimum(np.arange(len(ladder) + 1), max(len(ladder) - 1, 0))
            weights *= (0.5 if centre else 0.5 / len(self.settings.sizes)) / weights.sum()
            rows += [(size * (min(memory / shared[0], 1.0) if memory else 1.0), classes * memory,
                      float(0 < j < len(ladder)), weights[j], centre)
                     for j, memory in enumerate((*ladder, 0.0))]  # fmt: skip
        return np.array(rows)

    @cached_property
    def directions(self) -> Matrix:
        """The directions (3K + 1, DIRECTIONS) of the moments that are compared; none if nothing can be compared."""
        if self.moments is None:
            return np.zeros((0, DIRECTIONS))
        own = self.moments.directions
        return np.ascontiguousarray(np.pad(own, ((0, 0), (0, DIRECTIONS - own.shape[1]))))

    def kernel(self, table: Matrix) -> Kernel:
        """Return the kernel for a state or a table of them, with tests for label shift if there is a reference."""
        kernel = partial(loops.ebls, *views(table, self.kernel_priors, self.options, self.bank, self.directions))
        return kernel if self.moments is None else learn_and_test(self, kernel, table)

    def bind(self, table: Matrix) -> Kernel:
        return self.kernel(table) if NATIVE else refuse

    def bind_top(self, table: Matrix) -> Kernel:
        return refuse

    # the state

    @cached_property
    def layout(self) -> Layout:
        """Samples; probability of no shift; of F filters their weights, log odds against them in favour of the next
        faster one, and samples held; mean and precision (F, K) of their shares; sums of moments, of their squares and
        of probabilities in this window; log evidence, amplification and number of the tests; weights of the
        corrections that labels change; and for two memories of labels the second derivatives and the `newton_sum` of
        `update_by_label`."""
        f, width = len(self.bank), reference.width(len(self.source.prior))
        return {"n": (), "no_shift": (), "weights": (f,), "behind": (f,), "held": (f,), "mean": (f, width),
                "precision": (f, width), "moment_sums": (2, DIRECTIONS), "proba_sums": (width,), "tests": (3,),
                "corrections": (N_CORRECTIONS,), "curvature": (2, width), "newton_sum": (2, width)}  # fmt: skip

    @cached_property
    def places(self) -> dict[str, slice]:
        """Where each part of a state is."""
        ends = np.cumsum([math.prod(shape) for shape in self.layout.values()]).tolist()
        return {name: slice(*ends) for name, *ends in zip(self.layout, [0, *ends], ends, strict=False)}

    def view(self, state: Vector, name: str) -> Vector:
        """Return a part of a state, without the zeros behind K classes. Writing to it changes the state."""
        part = state[self.places[name]].reshape(self.layout[name])
        return part[..., : self.source.prior.size] if name in BY_CLASS else part

    def parts(self, state: Vector) -> dict[str, Vector]:
        """Return all parts of a state by name."""
        return {name: self.view(state, name) for name in self.layout}

    def init(self) -> Vector:
        state = np.zeros(state_size(self.layout))
        part = self.parts(state)
        part["no_shift"][...], part["weights"][:] = self.settings.model.no_shift, self.bank[:, 3]
        part["mean"][:] = np.where(self.bank[:, 4:] > 0, self.without_shift, 1.0 / len(self.without_shift))
        part["precision"][:] = len(self.without_shift) * self.bank[:, :1]
        part["tests"][:] = 0.0, 1.0, 1.0  # the start counts as a test without evidence
        return state

    def learn(self, state: Vector, rows: Matrix) -> None:
        require_done(self.kernel(state)(None, np.ascontiguousarray(rows), 2))

    def valid(self, states: Vector) -> bool:
        k, part = len(self.source.prior), unpack(self.layout, states)
        log_evidence, amplification, n_tests = np.moveaxis(part["tests"], -1, 0)
        sums, squares = np.moveaxis(part["moment_sums"], -2, 0)
        corrections, precision, curvature = part["corrections"], part["precision"][..., :k], part["curvature"]
        conditions = (
            (part["no_shift"] > 0) & (part["no_shift"] < 1), part["behind"] >= 0, part["held"] >= 0,
            part["held"] <= np.asarray(part["n"])[..., None] + 1e-6,
            (precision > 1e-6) & (precision < 1e16),  # by moments, of at most 2⁵³ samples
            (np.abs(sums) < 1e12), squares >= 0, part["proba_sums"] >= 0,
            np.abs(log_evidence) <= MAX_LOG_EVIDENCE, (amplification >= 1) & (amplification < 1e9),
            (n_tests >= 1) & (n_tests <= part["n"] + 1),
            corrections >= 0, (np.abs(corrections.sum(axis=-1) - 1) < 1e-6) | ~corrections.any(axis=-1),
            (curvature >= 0) & (curvature < 1e16), np.abs(part["newton_sum"]) < 1e19,
            *(part[name][..., k:] == 0 for name in BY_CLASS),
        )  # fmt: skip
        return simplex(part["weights"]) and simplex(part["mean"][..., :k]) and all(np.all(x) for x in conditions)

    # answers

    def correction(self, state: Vector) -> tuple[Vector, Matrix]:
        """Return the estimated prior (K,) and, as `padded`, the class weights of the correction.

        Only evidence counts for the prior. Labels decide the weights once there are any.
        """
        k = len(self.without_shift)
        out: Vector = np.empty((3, self.kernel_priors.shape[1]))
        share, constants = share_of_tests(self, state), self.weight_constants
        if loops.ebls_weights(state, *constants, share, out) == reference.REFUSED:  # a state that is a slice of others
            reference.ebls_weights(state, *constants, share, out)
        prior = out[2, :k]
        if has_labels(self, state):
            w = weights_by_labels(self, state, prior)
            out[0, :k] = w / (self.source.prior @ w)
        return prior, out[:2]

    def prior(self, state: Vector) -> Vector:
        """Return the estimated prior (K,): the filters' mean and the prior without shift, mixed by the evidence."""
        return self.correction(state)[0]

    def weights(self, state: Vector) -> Vector:
        return np.asarray(self.correction(state)[1][0, : len(self.without_shift)])

    def acts(self, state: Vector) -> Acts:
        return acts_of(self, state)

    def checks(self, state: Vector) -> StreamChecks:
        """Return what the tests found so far."""
        acts, no_shift = self.acts(state), float(self.view(state, "no_shift"))
        tested = acts.log_evidence is not None
        return StreamChecks(no_shift, acts.log_evidence, acts.share if tested else None, acts.amplification)

    def spread(self, state: Vector) -> tuple[Moments, str]:
        """Return mean and variance of the mixture of filters, and how far to trust them: no bet on "no shift"."""
        part = self.parts(state)
        note = "From the mixture of filters, widened by the uncertainty about the classifier error."
        if self.error is None:
            note = "From the mixture of filters. Optimistic: no held-out samples show the error of the classifier."
        return mixture(part["weights"], part["mean"], self.widened_variances(part)), note

    def widened_variances(self, part: dict[str, Vector]) -> Matrix:
        """Return the variances (F, K) of shares with the error of the classifier in them.

        The predictions of `count` = held·m samples of a class inform like labels = count/(1 + rarity·(1/I − 1)), with
        I the information measured at equal shares, and rarity = √(label variance at equal shares / at share m). For two
        normal classes 2 to 4 standard deviations apart, 1/I − 1 grows as this ratio to the power 0.4 to 0.6. The other
        samples are ambiguous, and only the h held-out samples of the class show how to read them. So the log share has
        the variance 1/effective_labels = (1 + caution·(count − labels)/(h + pseudo_count))/labels. `extra_counts` come
        from the filter's prior, at least those it starts with, from labels and from other keys.
        """
        k, m, held = len(self.without_shift), part["mean"], part["held"][:, None]
        count, label_variance = np.maximum(held * m, 1e-9), np.maximum(m * (1.0 - m), 1e-9)
        rarity = np.sqrt((k - 1) / k**2 / label_variance)
        labels = count / (1.0 + rarity * (1.0 / self.information - 1.0))
        heldout = np.where(self.heldout > 0, self.heldout, self.heldout.mean()) + self.settings.model.pseudo_count
        effective_labels = labels / (1.0 + self.settings.caution * (count - labels) / heldout)
        pseudo_counts, at_start = part["precision"] * m, self.parts(self.init())
        extra_counts = np.maximum(pseudo_counts - held * m / (1.0 + self.heldout_noise * held), 0.0)
        extra_counts = np.maximum(extra_counts, np.minimum(at_start["precision"] * at_start["mean"], pseudo_counts))
        variance = m**2 / (extra_counts + effective_labels)
        variance *= 1.0 - variance / variance.sum(axis=1, keepdims=True)  # shares add up to 1
        return np.asarray(1.0 / (1.0 / np.maximum(variance, 1e-300) + 1.0 / label_variance))  # below one label's

    # labels

    def observe(self, state: Vector, row: Vector, y: int) -> None:
        update_by_label(self, state, row, y, self.prior(state))  # before the label moves the shares
        replace_sample_by_label(self, state, row, y)

    # tables, where a new key starts from what other keys have in common

    def pooled_method(self) -> OnlineEbls:
        """Return the method for the stream of the samples of all keys."""
        return PooledKeys(self.source, self.drift, self.base, self.settings)

    def fade(self, pooled_state: Vector, max_samples: float) -> None:
        """Let filters hold at most `max_samples` samples, so that earlier keys count less and less."""
        held, precision = self.view(pooled_state, "held"), self.view(pooled_state, "precision")
        over = np.maximum(held / max_samples, 1.0)
        held /= over
        precision /= over[:, None]

    def start(self, pooled_state: Vector, trust: float, sums: Matrix) -> Vector:
        """Return the state of a new key that starts `trust` of the way from `init` to what other keys have in common.

        `pooled_state` is the state of a stream of the samples of all keys. `sums` (2, G, K) of p and p² over samples of
        G keys show how alike keys are. All chains of filters start at the common prior, each with its own precision.
        """
        state, k = self.init(), len(self.source.prior)
        part, others = self.parts(state), self.parts(pooled_state)
        no_shift, at_first = float(others["no_shift"]), self.settings.model.no_shift
        # keys that come one after another are no drift: only filters that never restart show what keys have in common
        never_restarts = (self.bank[:, 1:3] == 0.0).all(axis=1)  # the last of each chain
        lasting, chain = others["weights"] * never_restarts, np.cumsum(never_restarts) - never_restarts
        common = no_shift * self.without_shift + (1.0 - no_shift) / lasting.sum() * lasting @ others["mean"]
        sizes, probability = start_sizes(sums, len(self.chains))
        part["mean"][:] += trust * (common - part["mean"])
        part["precision"][:] += trust * (k * sizes[chain, None] - part["precision"])
        weights = part["weights"]
        weights += trust * (weights * (probability / np.bincount(chain, weights))[chain] - weights)
        part["tests"][:2] += trust * (others["tests"][:2] - part["tests"][:2])
        part["no_shift"][...] += trust * (np.clip(no_shift, self.settings.model.min_probability, at_first) - at_first)
        return state


class PooledKeys(OnlineEbls):
    """A stream of the samples of all keys: those of later keys count as much as those of the first."""

    heldout_noise: ClassVar[float] = 0.0
