"""`Groups`: the estimates of many groups of samples, and `Population`: what these groups have in common."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from reprior._check import check_choice, check_level, check_proba, counted, fail, like_input, listed, missing, percent
from reprior._labels import same_rows
from reprior._types import Comparable, Interval, Matrix, Source, Status, Vector
from reprior.estimates import show
from reprior.estimates.estimate import OF, PriorEstimate
from reprior.estimates.verdict import report_rejected
from reprior.rows.blocks import Blocks, by_name
from reprior.rows.calibrated import Calibrator
from reprior.rows.correction import correct_rows
from reprior.rows.grouped import as_python, factorize

if TYPE_CHECKING:
    from reprior.model.interval import PosteriorSpread

ALIKE = 0.015  # standard deviation of a share of 10 % between groups up to which they are called alike
MIDNIGHT = re.compile(r"\d{4}-\d\d-\d\d[ T]00:00:00(\.0+)?")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Population(Comparable):
    """What groups have in common.

    Parameters
    ----------
    prior : (K,)
        The common class prior.
    concentration : float
        How alike groups are, in samples: a class of prior m has the variance m(1 − m)/(concentration + 1).
    stand_out : tuple
        Keys of groups that are unlike the others.
    n_groups, n : int
        Groups and samples.
    classes : tuple of str, optional
        Names of the classes.
    differ : bool
        Whether the samples clearly show that groups differ. If False, single groups may still differ.
    """

    prior: Vector
    concentration: float
    stand_out: tuple[Hashable, ...]
    n_groups: int
    n: int
    classes: tuple[str, ...] | None = None
    differ: bool = True

    def sentences(self) -> list[str]:
        """Return the population in a few sentences."""
        names = self.classes or tuple(f"class {j}" for j in range(len(self.prior)))
        largest = np.argsort(-self.prior, kind="stable")[:5]
        prior = ", ".join(f"{show.cut(names[j])} {percent(self.prior[j], 1)}" for j in largest)
        more = f" and {counted(len(names) - 5, 'other class', 'other classes')}" if len(names) > 5 else ""
        out = [f"{counted(self.n_groups, 'group')} with {counted(self.n, 'sample')}.", f"Common prior: {prior}{more}."]
        if self.n_groups == 1:
            return out
        deviation = float(np.sqrt(0.1 * 0.9 / (self.concentration + 1)))
        if not self.differ:
            out.append("No clear difference between the groups.")
        else:
            alike, digits = ("are alike", 1) if deviation < ALIKE else ("differ", 0)
            low, high = max(0.0, 0.1 - max(deviation, ALIKE)), 0.1 + max(deviation, ALIKE)
            out.append(f"The groups {alike}: a class with a prior of 10 % has {100 * low:.{digits}f} to"
                       f" {percent(high, digits)} in most groups.")  # fmt: skip
        if self.stand_out:
            verb = "stands" if len(self.stand_out) == 1 else "stand"
            out.append(f"{counted(len(self.stand_out), 'group')} {verb} out: {listed(self.stand_out, 5)}.")
        return out

    def __repr__(self) -> str:
        return " ".join(self.sentences())


@dataclass(frozen=True, eq=False, repr=False)
class Groups(Comparable):
    """Estimates of many groups; `groups[key]` is the `PriorEstimate` of one group.

    Parameters
    ----------
    keys : tuple
        Keys of the groups, in the order of all arrays.
    shares, prior, weights : (G, K)
        Per group: class shares among its samples, class prior of its population, and correction weights.
    n : (G,)
        Number of samples per group.
    shifted : (G,)
        Probability that the class prior of the group differs from that of the training data.
    log_likelihood : (G,)
        Log-likelihood of the samples under the group's weights, minus that under the source prior.
    converged : (G,) of bool
        Whether the estimate has converged.
    population : Population or None
        What groups have in common; None if each group was estimated alone.
    source : Source
        The training side.
    spread : PosteriorSpread
        Uncertainty of shares and priors, for the intervals.
    rows_of : callable
        Returns the samples of a group by its position.
    whole : PriorEstimate, optional
        The estimate of all samples together. Its checks hold for every group.
    calibrator : Calibrator, optional
        Calibrator of the pipeline. Corrections apply it first.
    """

    keys: tuple[Hashable, ...]
    shares: Vector
    prior: Vector
    weights: Vector
    n: NDArray[np.int64]
    shifted: Vector
    log_likelihood: Vector
    converged: NDArray[np.bool_]
    population: Population | None
    source: Source
    spread: PosteriorSpread = field(compare=False)
    rows_of: Callable[[int], Blocks] = field(compare=False)
    whole: PriorEstimate | None = field(default=None, compare=False)
    calibrator: Calibrator | None = None

    @cached_property
    def _position(self) -> Mapping[Hashable, int]:
        return {key: g for g, key in enumerate(self.keys)}

    def _at(self, key: Hashable) -> int:
        key = as_python(key)
        if key not in self._position:
            raise missing("group", key, self.keys)
        return self._position[key]

    def __getitem__(self, key: Hashable) -> PriorEstimate:
        g, whole = self._at(key), self.whole
        status = Status.CONVERGED if self.converged[g] else Status.NOT_CONVERGED
        checked: dict[str, Any] = {}
        if whole is not None:
            checks = whole.checks and whole.checks._replace(pooled=len(self) > 1)
            checked = {"checks": checks, "on_reject": whole.on_reject, "acts": whole.acts}
        target, spread = self.rows_of(g), self.spread.of_group(g)
        return PriorEstimate(
            self.prior[g], self.weights[g], self.shares[g], status, 0, int(self.n[g]), float(self.log_likelihood[g]),
            self.source, target, self.calibrator, spread, posterior=spread.posterior,
            n_labels=getattr(target, "n_labels", 0), **checked,
        )  # fmt: skip

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self.keys)

    def __contains__(self, key: Hashable) -> bool:
        return as_python(key) in self._position

    def __len__(self) -> int:
        return len(self.keys)

    def correct(self, keys: Any, proba: Any) -> Matrix:
        """Return predicted probabilities (n, K), each corrected for the class prior of its group.

        Parameters
        ----------
        keys : (n,)
            The group of each sample, one of those estimated: another key is a KeyError.
        proba : (n, K) array or DataFrame
            Predicted probabilities as the classifier returns them. The columns of a DataFrame are matched to the
            classes by name, and a DataFrame is returned.
        """
        if self.whole is not None:
            report_rejected(self.whole)
        same_rows(proba, keys, "Groups.correct", "keys")
        names, codes = factorize(keys, "Groups.correct")
        position = np.array([self._at(key) for key in names], np.intp)
        rows = by_name(proba, self.source.classes, "Groups.correct")
        if self.calibrator is None:
            rows = check_proba(rows, "Groups.correct", "proba", self.prior.shape[1])
        else:
            rows = self.calibrator(rows, caller="Groups.correct")
        if len(codes) != len(rows):
            fail("Groups.correct", "keys", f"name the group of each of the {len(rows)} rows", f"{len(codes)} keys")
        corrected = correct_rows(rows, self.weights[position[codes]])
        return like_input(corrected, proba, self.source.classes)  # type: ignore[no-any-return]

    def interval(self, level: float = 0.95, of: str = "shares") -> Interval:
        """Return lower and upper ends (G, K), (G, K) of what `PriorEstimate.interval` returns for each group."""
        check_choice(of, "interval", "of", OF)
        return self.spread.at(check_level(level, "interval"), of)

    @property
    def note(self) -> str:
        """What the intervals include."""
        return self.spread.note

    def columns(self) -> dict[str, Any]:
        """Return a table with one row per group for `pandas.DataFrame` or `pyarrow.table`: key, samples, shares."""
        names = self.source.called
        return {"group": list(self.keys), "n": self.n, **dict(zip(names, self.shares.T, strict=True))}

    def to_frame(self, level: float | None = 0.95) -> Any:
        """Return a pandas DataFrame: under each group's key, its `PriorEstimate.to_frame(level)`."""
        frames = {key: self[key].to_frame(level) for key in self}
        return show.pandas().concat(frames, names=["group"])

    def plot(self, label: str | int | None = None, *, top: int = 20, ax: Any = None) -> Any:
        """Draw one class's share in the largest groups with intervals by matplotlib; return the axes.

        Parameters
        ----------
        label : str or int, optional
            The class, by name or column index; by default the class whose share differs most between groups.
        top : int
            How many groups.
        ax : matplotlib axes, optional
            Where to draw.
        """
        called = self.source.called
        if label is None:
            k = int(np.argmax(self.n @ (self.shares - self.shares.mean(axis=0)) ** 2))
        elif str(label) in called:
            k = called.index(str(label))
        else:
            fail("Groups.plot", "label", "be one of the classes", repr(label),
                 remedy=f"The classes are {listed(called)}")  # fmt: skip
        order, both = np.argsort(-self.n, kind="stable")[: top or None], self.interval()
        title = [f"Share of {show.cut(called[k])} in each group", "Groups sorted by their number of rows"]
        source, interval = np.full(len(self), self.source.prior[k]), Interval(*(end[:, k] for end in both))
        return show.drawn(order, key_texts(self), source, self.shares[:, k], interval, ax, title)

    def __repr__(self) -> str:
        return groups_text(self)


def groups_text(
    groups: Groups, *, level: float | None = 0.95, top: int = show.SHOWN_CLASSES,
    first: Sequence[str] = (), status: Status = Status.CONVERGED,
) -> str:  # fmt: skip
    """Return what groups have in common and a table of the largest, after the lines `first`."""
    n, k = int(groups.n.sum()), groups.prior.shape[1]
    apart = f"Estimates of {len(groups):,} separate groups from {n:,} samples, {k} classes"
    alone = [apart] if groups.population is None else []
    common = [] if groups.population is None else groups.population.sentences()
    rows, rest = groups_rows(groups, level, top)
    lines = [*(first or [*alone, *show.without_heldout(groups.source)]), *common, "", *show.aligned(rows, left=(0, 2))]
    if rest:
        lines.append(f"… and {counted(rest, 'group')} of at most this size")
    late = int((~groups.converged).sum())
    lines += show.endings(status, groups.note if level is not None else "",
                     f"The estimates of {late:,} groups have not converged." if late else "")  # fmt: skip
    return "\n".join(lines)


def groups_rows(groups: Groups, level: float | None, top: int) -> tuple[list[list[str]], int]:
    """Return a table of the largest groups with the largest change in each, and the number of groups left out."""
    shown = np.argsort(-groups.n, kind="stable")[: top or None].tolist()
    rows = [["group", "samples", "largest change", "source", "target"]]
    rows[0] += [f"{100 * level:g} % interval"] if level is not None else []
    called = key_texts(groups)
    for g in shown:
        estimate = groups[groups.keys[g]]
        k = show.movers(estimate)[0] if len(groups.prior[g]) > 2 else int(groups.source.prior.argmin())
        rows.append([show.cut(called[g]), f"{groups.n[g]:,}", show.cut(estimate.source.called[k]),
                     show.share(groups.source.prior[k]), show.share(groups.shares[g, k])])  # fmt: skip
        if level is not None:
            interval = estimate.interval(level)
            rows[-1].append(f"{show.share(interval.lower[k])} … {show.share(interval.upper[k])}")
    return rows, len(groups) - len(shown)


def key_texts(groups: Groups) -> list[str]:
    """Return what to call the groups: as their keys are written, and days by their date alone."""
    called = [str(key) for key in groups.keys]
    return [name[:10] for name in called] if all(map(MIDNIGHT.fullmatch, called)) else called
