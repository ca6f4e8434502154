"""online-EBLS: averaged moment-matched filters that follow a moving prior at any speed."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np

from reprior._check import check_flag, check_prior
from reprior._kernels import NATIVE, loops, reference
from reprior._types import Matrix, Source, Vector
from reprior.batch.few_labels import BIASED, STRANGE
from reprior.batch.hypotheses import granted
from reprior.batch.misfit import misled_of
from reprior.batch.trust import SEEN, adding_up, like_others, read_from, shown_by
from reprior.online.kinds import find_kinds
from reprior.online.method import Kernel, Layout, learned, refuse, simplex, state_size, unpack, views

DOUBT = 2  # where `options` have by how much a row that is remembered lessens the next
LEAST_SHARE = 1e-12  # of a class, where its logarithm is asked for
SOME = 1e-12  # curvature that every label adds for every class: so a look at one class tells whether there were labels


@dataclass(frozen=True)
class OnlineEbls:
    """Streaming empirical Bayes: averaged moment-matched filters; with `drift`, a bank of memories that share weight.

    Nothing needs to be set. The source prior is kept until the rows prove a shift, and no more is made of them than the
    held-out rows allow. With `drift=False` it tends to the batch answer; with `drift=True` it also follows a moving
    prior, at any speed. `base` (K,) is the prior to keep where it is not the one that outputs carry. `cautious=False`
    is its first form: it starts at the uniform prior and trusts every row in full.
    """

    name: ClassVar[str] = "online-ebls"
    needs: ClassVar[tuple[str, ...]] = ("prior", "classes", "misled")
    before: ClassVar[dict[str, Any]] = {"cautious": False}  # options that the first bytes did not name
    later: ClassVar[tuple[str, ...]] = ("labels",)
    MOST_MISFIT: ClassVar[float] = 100.0  # shares ten times too large: what is worse tells nothing more
    STRENGTHS: ClassVar[tuple[float, ...]] = (0.1, 1.0, 10.0)
    MEMORIES: ClassVar[tuple[float, ...]] = (30.0, 100.0, 300.0, 1000.0, 3000.0)
    SHARE: ClassVar[float] = 0.001
    # on stream_coverage.py, with draws 700 to 705 of ordinary classifiers that are designed on
    WIDER: ClassVar[float] = 1.3  # times as much, at least, is open of a class as if all others stayed in proportion
    # with caution; chosen on the sets of ordinary_streams.py that are designed on, on draws 100 to 104 of the fresh
    # ones and on the streams of drift.py, with draws of those kept aside in view; NO_SHIFT without these, and on draws
    # up to 119
    AT_UNIFORM: ClassVar[tuple[float, ...]] = (0.5, 1.0)  # rows a class, and for all classes together two times that
    NEAR_UNIFORM: ClassVar[tuple[float, ...]] = (2.5, 50.0)  # classes more alike than the rows of a poor classifier say
    AT_SOURCE: ClassVar[tuple[float, ...]] = (10.0,)
    STIFF_MEMORIES: ClassVar[tuple[float, ...]] = (1000.0,)  # of strong ones: shorter would be where they start again
    NO_SHIFT: ClassVar[float] = 0.75  # how likely it is beforehand; if no held-out row tells what outputs are worth:
    NO_SHIFT_BLIND: ClassVar[float] = 0.9
    # on draws 800 to 803 of the sets of ordinary_streams.py that are designed on
    BEFOREHAND: ClassVar[float] = 30.0  # rows after which half is left of what is taken from the belief in a shift
    # the rest on draws 99 and 199 of stream_batch.py and seeds 10 and 11 of drift.py
    CAUTIOUS_SHARE: ClassVar[float] = 0.000125  # of the weight, shared anew at every sample
    QUIET: ClassVar[float] = 1000.0  # samples without a change by which that halves
    STIFF: ClassVar[float] = 0.0001  # of a strong filter's weight at first, what it gets of it beside the others
    CAUTION: ClassVar[float] = 2.0  # rows that one row counts for against the held-out rows, where a shift is at issue
    FEW: ClassVar[float] = 5.0  # classes, above which filters are held back less
    # of the classifier's own error, a class's share being known to 1/misfit counts at best; on banking77, clinc150 and
    # three networks, other draws than those that stream_batch.py stores
    MISLED: ClassVar[float] = 0.08  # in what rows count for a filter
    RIVALRY: ClassVar[float] = 0.5  # in what they count between filters
    BLIND: ClassVar[float] = 30.0  # held-out rows a class that outputs are trusted like where there are none, and
    LEAST_BLIND: ClassVar[float] = 120.0  # in all at least
    # of a key that starts from what others have in common; on seeds 0 to 2 of keyed_streams.py, like those of kinds.py
    UNLIKE: ClassVar[float] = 0.01  # least weight of the source prior: a key may be where all others were once
    # of labels; on draw 5 of late_labels.py, drifts of a text's and two networks' outputs, and ordinary classifiers
    LABELS: ClassVar[float] = 1000.0  # that are remembered of how outputs favour classes, if the prior may drift
    MOST_BIAS: ClassVar[float] = 2.0 * BIASED**0.5  # what says more, as labels of one class alone do, is no bias

    source: Source = field(repr=False)
    drift: bool = True
    cautious: bool = True
    base: tuple[float, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        check_flag(self.drift, self.name, "drift")
        check_flag(self.cautious, self.name, "cautious")
        if self.base is not None:
            k = len(self.source.prior)
            base = check_prior(self.base, self.name, "base", n_classes=k, like="the source")
            object.__setattr__(self, "base", tuple(base.tolist()))

    @cached_property
    def kept(self) -> Vector:
        """The prior (K,) that is kept if nothing has shifted."""
        return self.source.prior if self.base is None else np.array(self.base)

    @cached_property
    def known(self) -> Matrix:
        parts = (1.0 / self.source.prior, self.kept, self.even)
        inverse, kept, even = (reference.padded(part) for part in parts)
        return np.concatenate([inverse, kept[:1], even[:1]])

    @cached_property
    def even(self) -> Vector:
        """Where filters start that know nothing (K,): at the uniform prior, but for a class that no held-out row shows
        and that is not without one by chance. What outputs say of such a class nobody has seen."""
        return np.asarray(self.granted / self.granted.sum())

    @cached_property
    def granted(self) -> Vector:
        """How much of an even share these filters grant each class (K,), as in batch."""
        return granted(self.kept, shown_by(self.source)) if self.cautious else np.ones(len(self.kept))

    @cached_property
    def misled(self) -> Matrix | None:
        return misled_of(self.source)

    @cached_property
    def misfit(self) -> float:
        """The variance of the classifier's own error in the logarithm of a share, of a typical class; 0 if unknown."""
        told = self.misled is not None and self.misled[2] > 0
        median = float(np.median(self.misled[0][told])) if self.misled is not None and np.any(told) else 0.0
        return min(median, self.MOST_MISFIT)

    @cached_property
    def worth(self) -> float:
        """How many held-out rows stand behind the outputs."""
        source, k = self.source, len(self.source.prior)
        if source.heldout is not None:
            return float(len(source.heldout[1]))
        if source.misled is not None:
            return max(float(source.misled[2].sum()), 1.0)
        return max(self.BLIND * k, self.LEAST_BLIND)

    @cached_property
    def options(self) -> Vector:
        k = len(self.source.prior)
        if not self.cautious:
            return np.array([k, self.SHARE if self.drift else 0.0, *[0.0] * 8])
        # t rows are worth t/(1 + t/worth) of them; of many classes a filter's own noise is the larger error for longer
        many = max(1.0, k / self.FEW)
        doubt = max(1.0 / (self.worth * many), self.MISLED * self.misfit / k)
        share = self.CAUTIOUS_SHARE if self.drift else 0.0
        rivalry = self.RIVALRY * self.misfit / k
        caution, restless = self.CAUTION / self.worth, 1.0 / self.QUIET
        odds, price = np.log(self.belief / (1.0 - self.belief)), (k - 1) / (2.0 * many) if self.told else 0.0
        return np.array([k, share, doubt, caution, rivalry, restless, self.noise, odds, price, self.telling / k])

    @cached_property
    def told(self) -> bool:
        """Whether held-out rows tell what outputs are worth."""
        return self.source.heldout is not None or self.source.misled is not None

    @cached_property
    def belief(self) -> float:
        """How likely it is before the first row that nothing has shifted."""
        return self.NO_SHIFT if self.told else self.NO_SHIFT_BLIND

    @cached_property
    def telling(self) -> float:
        """How much an output says of its class beside what a label does, on average; 1 if unknown."""
        if self.misled is None or not self.misled[2].any():
            return 1.0
        less = np.maximum(self.misled[1], 1.0)  # bytes may say anything
        return float(self.misled[2] @ (1.0 / less) / self.misled[2].sum())

    @cached_property
    def noise(self) -> float:
        """What a row seems to say for filters because the prior of the outputs is known from held-out rows alone: so
        much does a mix fitted to n rows of K classes gain on the true one, (K − 1)/2n."""
        return (len(self.source.prior) - 1) / (2.0 * self.worth) if self.told else 0.0

    @cached_property
    def bank(self) -> Matrix:
        """One row a filter: strength, memory (0 = endless), whether it competes with the row above, how much it gets of
        the weight that is shared anew, base.

        Strong filters get little. How alike classes are does not change from row to row, so one that has lost must not
        win on a short unlucky run: that was the cause of jumps.
        """
        return self.filters(self.STIFF)

    def filters(self, stiff: float) -> Matrix:
        """Return the bank with the weights at first, those of strong filters times `stiff`."""

        def ladder(memories: tuple[float, ...]) -> list[tuple[float, float, float]]:
            if not self.drift:
                return [(0.0, 0.0, 1.0)]  # endless, and never reset
            # each memory has twice the weight of the next shorter one: that keeps quiet streams steady
            steps = [(memory, float(i > 0), 2.0**i) for i, memory in enumerate((*memories, 0.0))]
            return [*steps, (0.0, 0.0, steps[-1][2])]

        if not self.cautious:
            return chains(self.STRENGTHS, ladder(self.MEMORIES), 0.0, 0.9)
        half, few, k = (1.0 - self.belief) / 2, ladder(self.STIFF_MEMORIES), len(self.kept)
        of_all = float(self.granted.mean())  # a class that is granted nothing leaves no more to the others
        return np.concatenate([
            chains(tuple(of_all * (a + 2.0 * a / k) for a in self.AT_UNIFORM), ladder(self.MEMORIES), 0.0, half / 2),
            chains(tuple(of_all * a for a in self.NEAR_UNIFORM), few, 0.0, stiff * half / 2),
            chains(self.AT_SOURCE, few, 1.0, stiff * half),
        ])  # fmt: skip

    @cached_property
    def layout(self) -> Layout:
        f, width = len(self.bank), reference.width(len(self.source.prior))
        held = {"held": (f,)} if self.cautious else {}
        used = 2 + (3 if self.cautious else 2) * f
        return {"n": (), "weights": (f + 1,), "behind": (f,), **held, "spare": (reference.width(used) - used,),
                "mean": (f, width), "precision": (f, width), "labels": (3, width)}  # fmt: skip

    def parts(self, state: Vector) -> dict[str, Vector]:
        k = len(self.source.prior)
        return {name: part[:, :k] if part.ndim == 2 else part for name, part in unpack(self.layout, state).items()}

    def init(self) -> Vector:
        state, k = np.zeros(state_size(self.layout)), len(self.source.prior)
        part = self.parts(state)
        part["weights"][:] = np.append(self.filters(1.0)[:, 3], self.belief if self.cautious else 0.1)
        part["mean"][:] = np.where(self.bank[:, 4:] > 0, self.kept, self.even)
        part["precision"][:] = k * self.bank[:, :1]
        if self.cautious:
            part["spare"][0] = 1.0 - self.belief  # zero in bytes from before: they say what they said
        return state

    def start(self, together: Vector, trust: float, sums: Matrix) -> Vector:
        """Return the state of a key that starts `trust` of the way from `init` to what others have in common.

        That is the mix that `together`, the state of a stream of all their rows, says, and the kinds of keys that are
        found by their `sums` (2, G, K). Filters of each strength start from another part of them.
        """
        state, k = self.init(), len(self.source.prior)
        part, others = self.parts(state), self.parts(together)
        still = others["weights"][-1]
        # keys that come one after another are no drift: what counts are filters that forget nothing
        lasting = others["weights"][:-1] * ((self.bank[:, 1:3] == 0.0).all(axis=1))
        common = still * self.kept + (1.0 - still) / lasting.sum() * lasting @ others["mean"]
        strengths, of = np.unique(self.bank[:, 0], return_inverse=True)
        mixes, alike, odds = find_kinds(sums, common, len(strengths) - 1).parts(common, len(strengths))
        filters = part["weights"][:-1] / part["weights"][:-1].sum()
        part["mean"][:] += trust * (mixes[of] - part["mean"])
        part["precision"][:] += trust * (k * alike[of, None] - part["precision"])
        filters += trust * (filters * (odds / np.bincount(of, filters))[of] - filters)
        at_first = part["weights"][-1]
        source = at_first + trust * (np.clip(still, self.UNLIKE, at_first) - at_first)
        part["weights"][:] = np.append((1.0 - source) * filters, source)
        if self.cautious:
            part["spare"][0] *= 1.0 - trust  # what rows of others have shown is not taken from a key
        return state

    def of_all(self) -> OnlineEbls:
        """Return the method for rows of all keys: those of later ones count as much as those of the first."""
        other = replace(self)
        other.__dict__["options"] = self.options * (np.arange(len(self.options)) != DOUBT)
        return other

    def fade(self, together: Vector, most: float) -> None:
        """Let filters remember no more than so many rows: those of keys long ago count less and less."""
        if self.cautious:
            part = self.parts(together)
            over = np.maximum(part["held"] / most, 1.0)
            part["held"] /= over
            part["precision"] /= over[:, None]

    def learn(self, state: Vector, rows: Matrix) -> None:
        learned(loops.ebls(state, self.known, self.options, self.bank, None, np.ascontiguousarray(rows), 2))

    def bind(self, table: Matrix) -> Kernel:
        return partial(loops.ebls, *views(table, self.known, self.options, self.bank)) if NATIVE else refuse

    def bind_top(self, table: Matrix) -> Kernel:
        return refuse

    def observe(self, state: Vector, row: Vector, y: int) -> None:
        self.judge(state, row, y)  # before the label has moved the shares: it must not have been expected
        self.exchange(state, row, y)
        self.settle(state)

    def judge(self, state: Vector, row: Vector, y: int) -> None:
        """Let a label say what classes must count in the correction for outputs to expect it: one step of the logistic
        regression that `favoured` is in batch, with the diagonal of its curvature alone.

        A row whose label its output all but rules out is no sign of a bias.
        """
        curvature, product, bias = self.labels(state)
        if self.drift:
            curvature *= 1.0 - 1.0 / self.LABELS
            product *= 1.0 - 1.0 / self.LABELS
        logs = np.log(np.maximum(self.prior(state), LEAST_SHARE) / self.source.prior) + bias
        r = row * np.exp(logs)
        r /= max(float(r.sum()), 1e-300)
        fair = r[y] / (r[y] + STRANGE / len(r))
        bend = fair * r * (1.0 - r) + SOME
        curvature += bend
        product += bend * logs - fair * r
        product[y] += fair

    def settle(self, state: Vector) -> None:
        """Take the bias to be what labels say beyond the shares, as far as it is open.

        The shares have moved by the same labels, as far as their own variance let them. If w is that variance, b that
        of the bias and c the curvature, the part of what is left that belongs to the bias is bc/(1 + (b + w)c).
        """
        curvature, product, bias = self.labels(state)
        prior = np.maximum(self.prior(state), LEAST_SHARE)
        of_share = np.minimum(self.own(state) / prior**2, 1.0)
        left = product - curvature * np.log(prior / self.source.prior)
        found = BIASED * left / (1.0 + (BIASED + of_share) * curvature)
        np.clip(found, -self.MOST_BIAS, self.MOST_BIAS, out=bias)

    def exchange(self, state: Vector, row: Vector, y: int) -> None:
        """Let the label of a row that was learned take the place of what the row said of the shares."""
        part = self.parts(state)
        mean, precision = part["mean"], part["precision"]
        r = row / self.source.prior * mean
        r /= r.sum(axis=1)[:, None]
        if self.cautious:  # the row was weighed when it was learned; what it leaves to the label is how likely that was
            weights, still = part["weights"], row / self.source.prior * self.kept
            weights *= np.maximum(np.append(r[:, y], still[y] / still.sum()), 1e-9)
            source = np.clip(weights[-1] / weights.sum(), reference.LEAST_SOURCE, reference.MOST_SOURCE)
            weights[:-1] *= (1.0 - source) / weights[:-1].sum()
            weights[-1] = source
        mass = precision * mean
        if self.cautious:
            # the row was one of many that the classifier's error lessens; its label is exact, and counts in full
            lessened = 1.0 / (1.0 + self.options[2] * part["held"])[:, None] ** 2
            mass -= lessened * r
            precision += 1.0 - lessened * (r * r).sum(axis=1)[:, None]
        else:
            mass -= r
        mass[:, y] += 1.0
        mean[:] = np.maximum(mass, 1e-9) / precision
        mean /= mean.sum(axis=1)[:, None]

    def prior(self, state: Vector) -> Vector:
        """Return the mix of the filters and of the prior that is kept, by their weights.

        What filters are believed before the first row is no reason to change anything, and where they start nothing has
        been seen of. So of their weight as much is taken, less and less as rows come: without rows, all of it.
        """
        f, k = len(self.bank), len(self.source.prior)
        first = reference.width(2 + (3 if self.cautious else 2) * f)
        means = state[first : first + f * reference.width(k)].reshape(f, -1)[:, :k]
        mix, source = state[1 : f + 1] @ means, float(state[f + 1])
        if self.cautious:
            beforehand = float(state[3 * f + 2]) / (1.0 + float(state[0]) / self.BEFOREHAND)
            left = max(1.0 - source - beforehand, 0.0) / ((1.0 - source) * (1.0 - beforehand))
            mix *= left
            source = 1.0 - left * (1.0 - source)
        return np.asarray(mix + source * self.kept)

    def bias(self, state: Vector) -> Vector | None:
        """Return by how much more each class counts (K,) than its share says, or None before the first label.

        The less likely it is that anything has shifted, the nearer to one. Times the shares it is a class mix again.
        """
        if state[self.labels_at] == 0.0:  # a curvature, of which each label adds to all
            return None
        shifted = 1.0 - state[len(self.bank) + 1]
        factors = np.exp(shifted * self.labels(state)[2])
        return np.asarray(factors / (self.prior(state) @ factors))

    def labels(self, state: Vector) -> Matrix:
        """Return of what labels have told (3, K): the curvature, its product with the logarithms of what classes must
        count, and the logarithms of the bias. Writing to it changes the state."""
        k = len(self.source.prior)
        return state[self.labels_at : self.labels_at + 3 * reference.width(k)].reshape(3, -1)[:, :k]

    @cached_property
    def labels_at(self) -> int:
        """Where in a state the part of the labels begins."""
        return state_size(self.layout) - 3 * reference.width(len(self.source.prior))

    def valid(self, states: Vector) -> bool:
        k, part = len(self.source.prior), unpack(self.layout, states)
        mean, precision = part["mean"], part["precision"]
        counted = (precision[..., :k] > 1e-6) & (precision[..., :k] < 1e16)  # by moments, of at most 2⁵³ samples
        sound = simplex(part["weights"]) and simplex(mean[..., :k]) and counted.all()
        labels, most = part["labels"], self.MOST_BIAS
        bend, product, bias = (labels[..., i, :k] for i in range(3))
        told = (bend >= 0) & (bend < 1e16) & (np.abs(product) < 1e19) & (np.abs(bias) <= most)
        spare = part["spare"]
        beyond = spare[..., int(self.cautious) :], *(x[..., k:] for x in (mean, precision, labels))
        unused = not any(x.any() for x in beyond)
        if self.cautious:
            source = part["weights"][..., -1]
            held = (part["held"] >= 0) & (part["held"] <= np.asarray(part["n"])[..., None] + 1e-6)
            sound = sound and held.all() and (source < 0.5 * (1 + reference.MOST_SOURCE)).all()
            sound = sound and ((spare[..., 0] >= 0) & (spare[..., 0] <= 0.5)).all()
        return bool(sound and told.all() and unused and (part["behind"] >= 0).all())

    def variance(self, state: Vector) -> tuple[Vector, str]:
        if self.misled is None:
            found, but = self.own(state), "Optimistic: without held-out rows the classifier's own misfit is not in it."
            return found, f"From the mixture of filters. {but}"
        note = "From the mixture of filters, widened for what the held-out rows leave open about the classifier."
        return self.mixed(state, self.left_open(state)), note

    def mixed(self, state: Vector, within: Matrix) -> Vector:
        """Return the variances (K,) about the estimate of shares that have those `within` each filter (F, K)."""
        part, mean = self.parts(state), self.prior(state)
        weights = part["weights"]
        if self.cautious:  # the estimate bets that nothing has shifted; an interval must not
            weights = np.append(weights[:-1] / weights[:-1].sum(), 0.0)
        found = weights[:-1] @ (within + (part["mean"] - mean) ** 2)
        return np.asarray(found + weights[-1] * (self.kept - mean) ** 2)

    def own(self, state: Vector) -> Vector:
        """Return the variances (K,) that filters go by themselves. Without drift no spread of memories hides that they
        look at each class alone."""
        part = self.parts(state)
        m = part["mean"]
        found = self.mixed(state, m * (1.0 - m) / (part["precision"] + 1.0))
        return found if self.drift else self.WIDER * found

    def left_open(self, state: Vector) -> Matrix:
        """Return the variances (F, K) of the shares that each filter's rows come from, as `left_open` does in batch.

        The rows are those that a filter holds. How much less than labels outputs tell of them, held-out rows say, which
        were asked at about even shares: of a rare class it is less, and its variance falls less than its share. They
        say, too, how much less is known of a class with all other shares open: filters look at each class alone. What a
        filter knows beyond all that so many rows could tell, it has from labels, from other keys or beforehand.
        """
        even = 1.0 / len(self.kept)
        part, (astray, vague, heldout, beside) = self.parts(state), self.summary
        m, n = part["mean"], self.rows_held(part)
        base = np.where(self.bank[:, 4:] > 0, self.kept, self.even)
        mass, count = part["precision"] * m, np.maximum(n * m, 1e-9)
        beforehand = np.minimum(len(self.kept) * self.bank[:, :1] * base, mass)
        sure = np.maximum(mass - n * m / (1.0 + self.options[DOUBT] * n), beforehand)
        most = np.maximum(m * (1.0 - m), 1e-9)
        rarer = np.sqrt(even * (1.0 - even) / most)
        o = count / (1.0 + beside * rarer * (vague - 1.0))
        apart = m**2 / (sure + 1.0 / read_from(count, o, heldout, o * astray))
        return np.asarray(1.0 / (1.0 / np.maximum(adding_up(apart), 1e-300) + 1.0 / most))  # as of a Dirichlet

    def rows_held(self, part: dict[str, Vector]) -> Matrix:
        """Return how many rows each filter (F, 1) remembers."""
        if self.cautious:
            return part["held"][:, None]
        memory = self.bank[:, 1:2]
        return np.minimum(part["n"], np.where(memory > 0, memory, np.inf))

    @cached_property
    def summary(self) -> Matrix:
        """What `misled` says of each class (4, K), but of the squared errors what is taken to be the classifier's, the
        held-out rows' own noise being some of them. A class without held-out rows is taken to be like the others."""
        assert self.misled is not None
        astray, vague, heldout, beside = self.misled
        vague = like_others(np.clip(vague, 1.0, 1e12), heldout, min(1.0 / self.telling, 1e12))  # bytes may say anything
        astray = like_others(np.minimum(astray, self.MOST_MISFIT), heldout, self.misfit)
        noise = (vague - 1.0) / (like_others(heldout, heldout) + 0.5)
        beside = np.clip(like_others(beside, heldout), self.WIDER, 1e12)
        return np.stack([SEEN * np.maximum(astray - noise, 0.0), vague, heldout, beside])


def chains(strengths: tuple[float, ...], ladder: list[tuple[float, float, float]], base: float, total: float) -> Matrix:
    """Return the bank's rows for filters of each strength and memory, whose weights add up to `total`."""
    scale = total / (len(strengths) * sum(weight for _, _, weight in ladder))
    return np.array([(a, memory, competes, w * scale, base) for a in strengths for memory, competes, w in ladder])
