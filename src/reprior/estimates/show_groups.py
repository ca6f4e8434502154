"""Many groups as people look at them: what they have in common and a short table, a data frame, a picture."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from reprior._check import counted, fail, listed, percent
from reprior._types import Interval, Status
from reprior.estimates import show

if TYPE_CHECKING:
    from reprior.estimates.groups import Groups, Population

ALIKE = 0.015  # standard deviation of a share of 10 % between groups up to which they are called alike
MIDNIGHT = re.compile(r"\d{4}-\d\d-\d\d[ T]00:00:00(\.0+)?")


def groups_text(
    groups: Groups, *, level: float | None = 0.95, top: int = show.SHOWN_CLASSES,
    first: Sequence[str] = (), status: Status = Status.CONVERGED,
) -> str:  # fmt: skip
    """Return what groups have in common and a table of the largest, after the lines `first`."""
    n, k = int(groups.n.sum()), groups.prior.shape[1]
    apart = f"Estimates of {len(groups):,} separate groups from {n:,} samples, {k} classes"
    alone = [apart] if groups.population is None else []
    common = [] if groups.population is None else population_sentences(groups.population)
    rows, rest = groups_rows(groups, level, top)
    lines = [*(first or [*alone, *show.unseen(groups.source)]), *common, "", *show.aligned(rows, left=(0, 2))]
    if rest:
        lines.append(f"… and {counted(rest, 'group')} of at most this size")
    late = int((~groups.converged).sum())
    lines += show.endings(status, groups.note if level is not None else "",
                     f"The estimates of {late:,} groups have not converged." if late else "")  # fmt: skip
    return "\n".join(lines)


def population_sentences(population: Population) -> list[str]:
    """Return what groups have in common in a few sentences."""
    names = population.classes or tuple(f"class {j}" for j in range(len(population.prior)))
    largest = np.argsort(-population.prior, kind="stable")[:5]
    prior = ", ".join(f"{names[j]} {percent(population.prior[j], 1)}" for j in largest)
    more = f" and {len(names) - 5} more classes" if len(names) > 5 else ""
    out = [f"{counted(population.n_groups, 'group')} with {counted(population.n, 'sample')}.",
           f"Common prior: {prior}{more}."]  # fmt: skip
    deviation = float(np.sqrt(0.1 * 0.9 / (population.concentration + 1)))
    if population.n_groups == 1:
        return out
    if not population.differ:
        out.append("No clear difference between the groups.")
    elif deviation < ALIKE:
        low, high = 0.1 - ALIKE, 0.1 + ALIKE
        out.append("The groups are alike: a class with a prior of 10 % has "
                   f"{100 * low:.1f} to {percent(high, 1)} in most groups.")  # fmt: skip
    else:
        low, high = max(0.0, 0.1 - deviation), 0.1 + deviation
        out.append("The groups differ: a class with a prior of 10 % has "
                   f"{100 * low:.0f} to {percent(high)} in most groups.")  # fmt: skip
    if population.stand_out:
        verb = "stands" if len(population.stand_out) == 1 else "stand"
        out.append(f"{counted(len(population.stand_out), 'group')} {verb} out: {listed(population.stand_out, 5)}.")
    return out


def groups_rows(groups: Groups, level: float | None, top: int) -> tuple[list[list[str]], int]:
    """Return a table of the largest groups with the largest change in each, and the number of groups left out."""
    order = sorted(range(len(groups)), key=lambda g: -groups.n[g])
    shown = order[: top or None]
    rows = [["group", "rows", "largest change", "source", "target"]]
    rows[0] += [f"{100 * level:g} % interval"] if level is not None else []
    called = key_texts(groups)
    for g in shown:
        estimate = groups[groups.keys[g]]
        k = show.movers(estimate)[0]
        rows.append([show.cut(called[g]), f"{groups.n[g]:,}", show.cut(estimate.source.called[k]),
                     show.share(groups.source.prior[k]), show.share(groups.shares[g, k])])  # fmt: skip
        if level is not None:
            interval = estimate.interval(level)
            rows[-1].append(f"{show.share(interval.lower[k])} … {show.share(interval.upper[k])}")
    return rows, len(order) - len(shown)


def key_texts(groups: Groups) -> list[str]:
    """Return what to call the groups: as their keys are written, and days by their date alone."""
    called = [str(key) for key in groups.keys]
    return [name[:10] for name in called] if all(map(MIDNIGHT.fullmatch, called)) else called


def groups_frame(groups: Groups, level: float | None = 0.95) -> Any:
    """Return groups as a pandas DataFrame: the frame of each group's estimate below the other, under its key."""
    frames = {key: show.estimate_frame(groups[key], level) for key in groups}
    return show.pandas().concat(frames, names=["group"])


def groups_plot(groups: Groups, label: str | int | None = None, *, top: int = 20, ax: Any = None) -> Any:
    """Draw one class's share in the largest groups, with intervals; return the matplotlib axes."""
    called = groups.source.called
    if label is None:
        k = int(np.argmax(groups.n @ (groups.shares - groups.shares.mean(axis=0)) ** 2))
    elif str(label) in called:
        k = called.index(str(label))
    else:
        fail("Groups.plot", "label", "be one of the classes", repr(label),
             remedy=f"The classes are {listed(called)}")  # fmt: skip
    keys = key_texts(groups)
    order, interval = np.argsort(-groups.n, kind="stable")[: top or None], groups.interval()
    return show.drawn(
        [keys[g] for g in order], np.full(len(order), groups.source.prior[k]), groups.shares[order, k],
        Interval(interval.lower[order, k], interval.upper[order, k], level=interval.level, note=interval.note), ax,
        [f"Share of {show.cut(called[k])} in each group", "Groups sorted by their number of rows"],
    )  # fmt: skip
