"""online-EBLS, the default stream: a bank of filters that follow a moving class prior, beside "no shift".

Each filter keeps a Beta law for the share of every class, by its mean m and precision s (in samples), and matches its
moments to each sample. Filters differ in where they start, how firmly, and how soon they forget. How well
they predict each sample weighs them, and all of them together against the hypothesis that nothing has shifted. Without
evidence of a shift the stream keeps the source prior. `_kernels/reference.py` has the step for one sample.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property, lru_cache, partial
from typing import ClassVar

import numpy as np

from reprior._check import check_flag, check_prior
from reprior._kernels import NATIVE, loops, reference
from reprior._types import Acts, ClassifierError, Matrix, MomentReference, Source, StreamChecks, Vector
from reprior.model.classifier_error import measure_error
from reprior.model.label_shift import MAX_LOG_EVIDENCE, Explanations, acting_share, explanations
from reprior.online.acting import (
    DIRECTIONS,
    N_CORRECTIONS,
    acts_of,
    learn_and_test,
    log_weights,
    padded_directions,
    update_by_label,
)
from reprior.online.method import Kernel, Layout, learned, refuse, simplex, state_size, unpack, views
from reprior.online.settings import BATCH, StreamSettings, as_settings
from reprior.online.shared_start import start_sizes

MIN_PRIOR = 1e-12  # smallest class prior, so that its logarithm is defined
MIN_CLASSES = 10  # with fewer, memories are as for so many: 20 samples are the fewest that show a change of shares
MIN_LIKELIHOOD = 1e-9  # of a label, so that no label rules a filter out for good


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
            k = len(self.source.prior)
            base = check_prior(self.base, self.name, "base", n_classes=k, like="the source")
            object.__setattr__(self, "base", tuple(base.tolist()))

    # from the source

    @cached_property
    def without_shift(self) -> Vector:
        """The prior (K,) if nothing has shifted."""
        return self.source.prior if self.base is None else np.array(self.base)

    @cached_property
    def error(self) -> ClassifierError | None:
        return measure_error(self.source)

    @cached_property
    def moments(self) -> MomentReference | None:
        """What the stream compares its samples with, to test for label shift."""
        return None if self.error is None else self.error.moments

    @cached_property
    def explanations(self) -> Explanations:
        """The explanations of a change that a test compares."""
        assert self.moments is not None
        return explanations(self.moments, BATCH, None if self.base is None else self.without_shift)

    @cached_property
    def log_unshifted(self) -> Vector:
        """The log class weights (K,) without shift."""
        return np.asarray(np.log(self.without_shift / self.source.prior))

    @cached_property
    def directions(self) -> Matrix:
        return padded_directions(self.moments)

    @cached_property
    def n_heldout(self) -> float:
        """Held-out samples, or what training counts are worth without them."""
        n = BATCH.counts_worth * len(self.source.prior) if self.error is None else float(self.error.heldout.sum())
        return max(n, 1.0)

    @cached_property
    def heldout_noise(self) -> float:
        """By how much a sample that is held reduces the count of the next: t samples count as t/(1 + heldout_noise·t).

        The variance of a share is v/(t·I) by t target samples and v(1/I − 1)/n by n held-out samples, whose labels are
        known; v is that by one label. So heldout_noise = (1 − I)/n. Without held-out samples I is taken to be ½.
        """
        if self.error is None:
            return 0.5 / self.n_heldout
        information = float(self.error.heldout @ self.error.information) / self.n_heldout
        return max(1.0 - information, 0.0) / self.n_heldout

    # what the kernel takes

    @cached_property
    def kernel_priors(self) -> Matrix:
        """Priors for the kernel, one per row, padded: 1/implied prior, prior without shift, equal shares."""
        k = len(self.without_shift)
        implied = self.source.prior
        if self.error is not None:  # a class without held-out samples is implied to have had a few
            implied = np.maximum(implied, BATCH.pseudo_count / self.n_heldout)
        parts = (1.0 / implied, self.without_shift, np.full(k, 1.0 / k))
        inverse, without_shift, even = (reference.padded(part) for part in parts)
        return np.concatenate([inverse, without_shift[:1], even[:1]])

    @cached_property
    def options(self) -> Vector:
        k, set_ = len(self.without_shift), self.settings
        # a prior fitted to n samples of K classes beats the true one by (K − 1)/2n per sample: that is no evidence
        chance_gain = (k - 1) / (2.0 * self.n_heldout)
        odds = set_.no_shift / (1.0 - set_.no_shift)
        return np.array([k, set_.sharing if self.drift else 0.0, self.heldout_noise, set_.caution / self.n_heldout,
                         chance_gain, np.log(odds), set_.max_no_shift])  # fmt: skip

    @cached_property
    def chains(self) -> list[tuple[float, bool]]:
        """Size and centre of each chain of filters; True: centred at the prior without shift, else at equal shares."""
        return [*((size, False) for size in self.settings.sizes), (self.settings.sizes[-1], True)]

    @cached_property
    def bank(self) -> Matrix:
        """One row per filter: size, memory (0: endless), whether it restarts from the row above, weight, centre.

        A chain has one filter per memory, from fast to slow, each twice as probable as the one before, which keeps
        quiet streams steady. Then come two that forget nothing: one that restarts after a change and one that never
        does. Both centres are equally probable. A slower filter restarts from the next faster one at odds against it of
        its memory in samples.
        """
        ladder = [(0.0, 0.0, 1.0)]  # memory, restarts, weight
        if self.drift:
            classes = max(len(self.without_shift), MIN_CLASSES)
            memories = (*(classes * memory for memory in self.settings.memories), 0.0)
            ladder = [(memory, float(i > 0), 2.0**i) for i, memory in enumerate(memories)]
            ladder.append((0.0, 0.0, ladder[-1][2]))
        per_chain = [0.5 if centre else 0.5 / len(self.settings.sizes) for _, centre in self.chains]
        total = sum(weight for *_, weight in ladder)
        return np.array([
            (size, memory, restarts, chain * weight / total, float(centre))
            for chain, (size, centre) in zip(per_chain, self.chains, strict=True) for memory, restarts, weight in ladder
        ])  # fmt: skip

    # the state

    @cached_property
    def layout(self) -> Layout:
        """Samples; probability of no shift; of F filters their weights, log odds against them in favour of the next
        faster one, and samples held; mean and precision (F, K) of their shares; the evidence of label shift, the
        amplification, and sums of moments and their squares since the last multiple of 100 samples; weights of the
        corrections that labels change, and second derivatives and their products with the biases for two memories of
        labels."""
        f, width = len(self.bank), reference.width(len(self.source.prior))
        return {"n": (), "no_shift": (), "weights": (f,), "behind": (f,), "held": (f,), "mean": (f, width),
                "precision": (f, width), "log_evidence": (), "amplification": (), "moment_sums": (DIRECTIONS,),
                "moment_squares": (DIRECTIONS,), "corrections": (N_CORRECTIONS,), "curvature": (2, width),
                "product": (2, width)}  # fmt: skip

    def parts(self, state: Vector) -> dict[str, Vector]:
        """Return the parts of a state by name, without the zeros behind K classes. Writing to them changes it."""
        k, by_class = len(self.source.prior), ("mean", "precision", "curvature", "product")
        return {name: part[..., :k] if name in by_class else part
                for name, part in unpack(self.layout, state).items()}  # fmt: skip

    def init(self) -> Vector:
        state = np.zeros(state_size(self.layout))
        part = self.parts(state)
        part["no_shift"][...], part["weights"][:] = self.settings.no_shift, self.bank[:, 3]
        part["mean"][:] = np.where(self.bank[:, 4:] > 0, self.without_shift, 1.0 / len(self.without_shift))
        part["precision"][:] = len(self.without_shift) * self.bank[:, :1]
        part["amplification"][...] = 1.0
        return state

    def learn(self, state: Vector, rows: Matrix) -> None:
        kernel_arguments = self.kernel_priors, self.options, self.bank, self.directions
        kernel = partial(loops.ebls, state, *kernel_arguments)
        learn = kernel if self.moments is None else learn_and_test(self, kernel, state)
        learned(learn(None, np.ascontiguousarray(rows), 2))

    def bind(self, table: Matrix) -> Kernel:
        if not NATIVE:
            return refuse
        kernel = partial(loops.ebls, *views(table, self.kernel_priors, self.options, self.bank, self.directions))
        return kernel if self.moments is None else learn_and_test(self, kernel, table)

    def bind_top(self, table: Matrix) -> Kernel:
        return refuse

    # answers

    def prior(self, state: Vector) -> Vector:
        """Return the filters' mean and the prior without shift, mixed by the evidence of a shift.

        Only evidence counts: the filters' share is 1 − P(no shift)/P(no shift at the start), at least 0.
        """
        begin, f, k = self.offsets, len(self.bank), len(self.without_shift)
        means = state[begin["mean"] : begin["precision"]].reshape(f, -1)[:, :k]
        weights = state[begin["weights"] : begin["behind"]]
        shifted = max(0.0, 1.0 - float(state[begin["no_shift"]]) / self.settings.no_shift)
        return np.asarray(self.without_shift + shifted * (weights @ means - self.without_shift))

    def variance(self, state: Vector) -> tuple[Vector, str]:
        if self.error is None:
            note = "From the mixture of filters. Optimistic: no held-out samples show the error of the classifier."
            return self.about_estimate(state, self.filter_variances(state)), note
        note = "From the mixture of filters, widened by the uncertainty about the classifier error."
        return self.about_estimate(state, self.widened_variances(state, self.error)), note

    def about_estimate(self, state: Vector, within: Matrix) -> Vector:
        """Return the variances (K,) about the estimate, from those `within` each filter (F, K).

        The estimate may rest on "no shift". The variance does not, so intervals do not bet that nothing has shifted.
        """
        part = self.parts(state)
        return np.asarray(part["weights"] @ (within + (part["mean"] - self.prior(state)) ** 2))

    def filter_variances(self, state: Vector) -> Matrix:
        """Return the variances (F, K) of Beta laws with each filter's mean and precision."""
        part = self.parts(state)
        return np.asarray(part["mean"] * (1.0 - part["mean"]) / (part["precision"] + 1.0))

    def widened_variances(self, state: Vector, error: ClassifierError) -> Matrix:
        """Return the variances (F, K) of shares with the error of the classifier in them.

        The predictions of `count` = held·m samples of a class inform like labels = count/(1 + rarity·(1/I − 1)), with
        I the information measured at equal shares; a rare class has less. The other samples are ambiguous, and only
        the h held-out samples of the class show how to read them. So the log share has the variance
        1/effective_labels = (1 + caution·(count − labels)/(h + pseudo_count))/labels. `extra_counts` are the
        pseudo-counts that do not come from the held samples: from the filter's prior, labels and other keys.
        """
        k, part = len(self.without_shift), self.parts(state)
        m, held = part["mean"], part["held"][:, None]
        count, most = np.maximum(held * m, 1e-9), np.maximum(m * (1.0 - m), 1e-9)
        rarity = np.sqrt((k - 1) / k**2 / most)
        labels = count / (1.0 + rarity * (1.0 / error.information - 1.0))
        heldout = np.where(error.heldout > 0, error.heldout, error.heldout.mean()) + BATCH.pseudo_count
        effective_labels = labels / (1.0 + self.settings.caution * (count - labels) / heldout)
        pseudo_counts = part["precision"] * m
        centre = np.where(self.bank[:, 4:] > 0, self.without_shift, 1.0 / k)
        extra_counts = np.maximum(pseudo_counts - held * m / (1.0 + self.heldout_noise * held), 0.0)
        extra_counts = np.maximum(extra_counts, np.minimum(k * self.bank[:, :1] * centre, pseudo_counts))
        variance = m**2 / (extra_counts + effective_labels)
        variance *= 1.0 - variance / variance.sum(axis=1, keepdims=True)  # shares add up to 1
        return np.asarray(1.0 / (1.0 / np.maximum(variance, 1e-300) + 1.0 / most))  # never above that of one label

    def valid(self, states: Vector) -> bool:
        k, part = len(self.source.prior), unpack(self.layout, states)
        mean, precision, weights = part["mean"], part["precision"], part["weights"]
        counted = (precision[..., :k] > 1e-6) & (precision[..., :k] < 1e16)  # by moments, of at most 2⁵³ samples
        labels = (part["curvature"] >= 0) & (part["curvature"] < 1e16) & (np.abs(part["product"]) < 1e19)
        evidence = np.abs(part["log_evidence"]) <= MAX_LOG_EVIDENCE
        evidence &= (part["amplification"] >= 1) & (part["amplification"] < 1e9)
        moments = (np.abs(part["moment_sums"]) < 1e12).all() and (part["moment_squares"] >= 0).all()
        corrections = part["corrections"]
        judged = (corrections >= 0).all() and (np.abs(corrections.sum(axis=-1) - 1) < 1e-6) | ~corrections.any(axis=-1)
        held = (part["held"] >= 0) & (part["held"] <= np.asarray(part["n"])[..., None] + 1e-6)
        certain = (part["no_shift"] > 0) & (part["no_shift"] < 1)
        padding = (part[name][..., k:] for name in ("mean", "precision", "curvature", "product"))
        return bool(
            simplex(weights) and simplex(mean[..., :k]) and counted.all() and labels.all() and held.all()
            and evidence.all() and moments and np.all(judged)
            and certain.all() and (part["behind"] >= 0).all() and not any(x.any() for x in padding)
        )  # fmt: skip

    # labels, and how much of the correction is applied

    def observe(self, state: Vector, row: Vector, y: int) -> None:
        update_by_label(self, self.parts(state), row, y, self.prior(state))  # before the label moves the shares
        self.replace_output(state, row, y)

    def replace_output(self, state: Vector, row: Vector, y: int) -> None:
        """Let a label replace what the sample's probabilities added to the shares: it counts in full."""
        part = self.parts(state)
        mean, precision, weights = part["mean"], part["precision"], part["weights"]
        r = row / self.source.prior * mean
        r /= r.sum(axis=1)[:, None]
        unshifted = row / self.source.prior * self.without_shift
        likelihood = max(float(unshifted[y] / unshifted.sum()), MIN_LIKELIHOOD)
        weights *= np.maximum(r[:, y], MIN_LIKELIHOOD)
        no_shift = float(part["no_shift"]) * likelihood
        no_shift /= no_shift + (1.0 - float(part["no_shift"])) * weights.sum()
        part["no_shift"][...] = np.clip(no_shift, reference.LEAST_NO_SHIFT, self.settings.max_no_shift)
        weights /= weights.sum()
        count = 1.0 / (1.0 + self.heldout_noise * part["held"])[:, None] ** 2  # of a sample among those held
        mass = precision * mean - count * r
        mass[:, y] += 1.0
        precision += 1.0 - count * (r * r).sum(axis=1)[:, None]
        mean[:] = np.maximum(mass, 1e-9) / precision
        mean /= mean.sum(axis=1)[:, None]

    def acts(self, state: Vector) -> Acts:
        """Return how much of the correction is applied, and why."""
        return acts_of(self, self.parts(state))

    def checks(self, state: Vector) -> StreamChecks:
        """Return what the tests found so far."""
        acts, no_shift = self.acts(state), float(state[self.offsets["no_shift"]])
        tested = acts.log_evidence is not None
        return StreamChecks(no_shift, acts.log_evidence, acts.share if tested else None, acts.amplification)

    def weights(self, state: Vector, prior: Vector | None = None) -> Vector:
        """Return the class weights (K,) of the correction; `prior` is that of the state, if the caller has it."""
        prior, source = self.prior(state) if prior is None else prior, self.source.prior
        share = self.tested_share(state)
        if share is None or self.base is not None:
            log_w = log_weights(self, self.parts(state), prior)
            w = np.exp(log_w - log_w.max())
        else:  # the same with few array operations: a server does this for every post
            w = (np.maximum(prior, MIN_PRIOR) / source) ** share
        return np.asarray(w / (source @ w))

    def tested_share(self, state: Vector) -> float | None:
        """Return the share of the correction that the tests let act; None if labels decide it."""
        begin = self.offsets
        if state[begin["curvature"]] > 0.0:  # every label adds to it
            return None
        if self.moments is None:
            return 1.0
        return remembered_share(float(state[begin["log_evidence"]]), float(state[begin["amplification"]]))

    @cached_property
    def offsets(self) -> dict[str, int]:
        """Where each part of a state begins."""
        sizes = [math.prod(shape) for shape in self.layout.values()]
        return dict(zip(self.layout, [0, *np.cumsum(sizes)[:-1].tolist()], strict=True))

    # tables, where a new key starts from what other keys have in common

    def pooled_method(self) -> OnlineEbls:
        """Return the method for the stream of the samples of all keys."""
        return PooledKeys(self.source, self.drift, self.base, self.settings)

    def fade(self, pooled_state: Vector, max_samples: float) -> None:
        """Let filters hold at most `max_samples` samples, so that earlier keys count less and less."""
        part = self.parts(pooled_state)
        over = np.maximum(part["held"] / max_samples, 1.0)
        part["held"] /= over
        part["precision"] /= over[:, None]

    def start(self, pooled_state: Vector, trust: float, sums: Matrix) -> Vector:
        """Return the state of a key that starts `trust` of the way from `init` to what others have in common.

        `pooled_state` is the state of a stream of all their samples. Their `sums` (2, G, K) show how alike keys are.
        Each chain of filters starts at what they have in common, one more firmly than another.
        """
        state, k, n_chains = self.init(), len(self.source.prior), len(self.chains)
        part, others = self.parts(state), self.parts(pooled_state)
        no_shift = float(others["no_shift"])
        # keys that come one after another are no drift: only filters that never restart show what keys have in common
        lasting = others["weights"] * (self.bank[:, 1:3] == 0.0).all(axis=1)
        common = no_shift * self.without_shift + (1.0 - no_shift) / lasting.sum() * lasting @ others["mean"]
        sizes, probability = start_sizes(sums, n_chains)
        chain = np.repeat(np.arange(n_chains), len(self.bank) // n_chains)
        part["mean"][:] += trust * (common - part["mean"])
        part["precision"][:] += trust * (k * sizes[chain, None] - part["precision"])
        weights = part["weights"]
        weights += trust * (weights * (probability / np.bincount(chain, weights))[chain] - weights)
        at_first = self.settings.no_shift
        part["log_evidence"][...] = trust * others["log_evidence"]
        part["amplification"][...] = 1.0 + trust * (others["amplification"] - 1.0)
        part["no_shift"][...] += trust * (np.clip(no_shift, 1.0 - self.settings.max_no_shift, at_first) - at_first)
        return state


@lru_cache(maxsize=10_000)
def remembered_share(log_evidence: float, amplification: float) -> float:
    """Return `acting_share` of evidence that changes only with a test."""
    return acting_share(log_evidence, amplification, BATCH)


class PooledKeys(OnlineEbls):
    """A stream of the samples of all keys: those of later keys count as much as those of the first."""

    heldout_noise: ClassVar[float] = 0.0
