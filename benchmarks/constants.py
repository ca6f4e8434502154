"""How constants of the default were chosen: the same figures at other values, on other sets and draws than are stored.

    python benchmarks/constants.py [--draws 4] [--only shift intervals rare labels doubt biases]

"shift": how likely it is beforehand that nothing has shifted or that shares lie around the uniform one, how many rows a
held-out row stands for, and how many of a class half tell what it looks like, on the part of the sets of `_ordinary.py`
that the default was designed on. "intervals": how often 95 % intervals hold the true share, and how wide they are, if
they bet that nothing has shifted, on the same part and on the sets that nothing was designed on. "rare": how much of a
held-out row the source prior grants a class that none resembles, on the same part, with a class made rare: few rows of
it, and outputs as if training had had as few. "labels": how far outputs are held back beside labels, how much a class's
held-out rows leave open, how much outputs may favour classes, and how many labels may be of any class, on the sources
of labels.py with other draws; "strange" are labels of which one in twenty is drawn at random. "doubt": how often labels
of held-out rows are said not to be theirs, if they are, if they are shuffled, and if each class has the name of the
next, on the sets that the default was designed on, on those kept aside and on fresh ones. "biases": with how few
held-out rows no class has a bias, on three small sets with noise, on the sets designed on and on fresh ones, unshifted
and under Dirichlet shifts; "evened" are outputs as if training had weighed all classes alike. The values in use are in
bold. Needs the classifiers of `ordinary.py --make`.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from _record import markdown, progress, store

import numpy as np  # isort: skip
from _ordinary import DESIGNED_ON, FRESH, KEPT_ASIDE, LATEST, Classifier, draws, load, models
from _outputs import redrawn, shipped
from labels import FLOOR, draw, shares_of
from labels import networks as images

import reprior as rp
from reprior.batch import ebls, few_labels, hypotheses, trust
from reprior.pipelines import fit, source

HARM = 0.01  # nats of log-loss by which a draw counts as harmed
BELIEFS = {
    "NO_SHIFT": (0.5, 0.65, 0.8, 0.9, 0.97),
    "UNIFORM": (0.04, 0.08, 0.12, 0.16),
    "COUNTED": (0.6, 0.8, 1.0, 1.5),
    "TOLD": (0.5, 2.0, 8.0),
}
AROUND_UNIFORM = hypotheses.UNIFORM / (1 - hypotheses.NO_SHIFT)  # of what is left for a shift
BETS = (1e-6, 0.1, 0.3, 0.5, 0.8)
RARE, LEAST = 0.005, (0.0, 0.03, 0.1, 0.3, 1.0)
BESIDE_LABELS = {
    "HELD_BACK": (0.75, 1.0, 1.5, 2.0, 3.0),
    "UNTOLD": (0.5, 1.0, 1.5, 3.0),
    "BIASED": (0.01, 0.03, 0.1, 0.3, 1.0),
    "STRANGE": (0.03, 0.3, 1.0),
}
DOUBTS = {
    "CLAIMED": (3.0, 6.0, 12.0),
    "BORNE_OUT": (0.05, 0.1, 0.2),
    "HARDLY": (0.05, 0.1, 0.2),
    "RELATED": (2.0, 3.0, 4.0),
    "OPPOSED": (-3.0, -4.0, -5.0),
}
NO_CLAIM = {"CLAIMED": -1.0, "BORNE_OUT": 1e9}  # whatever outputs claim
FEWEST, NOISE = (0, 10, 100), 1.0  # rows below which no class has a bias; of features with a variance of 1
FIRST, LABELS = 1000, (100, 300)  # trial of labels.py from which on none is stored; rows with a label
Found = dict[str, dict[str, float]]


def home(name: str) -> Any:
    """Return the module of the default that a constant is in."""
    return next(m for m in (hypotheses, trust, few_labels, ebls) if name in vars(m))


@contextmanager
def held_at(module: Any, **values: float) -> Iterator[None]:
    """Let constants of a module have other values for a while."""
    before = {name: getattr(module, name) for name in values}
    for name, value in values.items():
        setattr(module, name, value)
    hypotheses.supposed_once.cache_clear()  # hypotheses that were made with the values before
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(module, name, value)
        hypotheses.supposed_once.cache_clear()


def log_loss(rows: np.ndarray, weights: np.ndarray, y: np.ndarray) -> float:
    """Return the log-loss of outputs (n, K) times weights (K,)."""
    joint = rows * weights
    own = joint[np.arange(len(y)), y] / joint.sum(axis=1)
    return float(-np.log(np.maximum(own, 1e-12)).mean())


def change(source: rp.Source, prior: np.ndarray, rows: np.ndarray, y: np.ndarray) -> float:
    """Return by how much putting calibrated rows to a prior changes their log-loss."""
    return log_loss(rows, prior / source.prior, y) - log_loss(rows, np.ones(len(prior)), y)


def summary(cells: dict[tuple[str, str], list[float]]) -> Found:
    """Return mean and harmed share of each value and cell."""
    out: Found = defaultdict(dict)
    for (value, cell), x in cells.items():
        out[value] |= {f"{cell}, mean": float(np.mean(x)), f"{cell}, harmed": float(np.mean(np.array(x) > HARM))}
    return dict(out)


def means(cells: dict[str, dict[str, list[float]]]) -> Found:
    """Return the mean of each value and cell."""
    return {value: {cell: float(np.mean(x)) for cell, x in found.items()} for value, found in cells.items()}


def shift(n_draws: int, sizes: tuple[int, ...] = (200, 1000)) -> Found:
    """Return what the default changes on the sets it was designed on, at other beliefs."""
    cells: dict[tuple[str, str], list[float]] = defaultdict(list)
    classifiers = list(load(DESIGNED_ON))
    for done, c in enumerate(classifiers, 1):
        for size in sizes:
            for seed in range(n_draws):
                drawn = draws(c, size, seed)
                if not drawn:
                    continue
                held = drawn[0].heldout
                pipe = rp.pipeline(c.proba[held], c.y[held])
                for d in drawn:
                    rows, y = np.asarray(pipe.calibrate(c.proba[d.rows]), np.float64), c.y[d.rows]
                    cell = f"{d.shift}, {size}"
                    cells["FMAPLS", cell].append(change(pipe.source, rp.fmapls(pipe.source, rows).prior, rows, y))
                    for name, values in BELIEFS.items():
                        for value in values:
                            also = {"UNIFORM": AROUND_UNIFORM * (1 - value)} if name == "NO_SHIFT" else {}
                            bold = "**" if value == getattr(home(name), name) else ""
                            used = f"{bold}{name} {value:g}{bold}"
                            with held_at(home(name), **{name: value}, **also):
                                prior = rp.ebls(pipe.source, rows).prior
                            cells[used, cell].append(change(pipe.source, prior, rows, y))
        progress(done, len(classifiers), c.name)
    return summary(cells)


def intervals(n_draws: int, sizes: tuple[int, ...] = (200, 1000)) -> Found:
    """Return how many shares 95 % intervals hold, and their width, if they bet that nothing has shifted."""
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    classifiers = list(load((*DESIGNED_ON, *FRESH)))
    for done, c in enumerate(classifiers, 1):
        for size, seed in ((size, seed) for size in sizes for seed in range(n_draws)):
            drawn = draws(c, size, seed)
            if not drawn:
                continue
            pipe = rp.pipeline(c.proba[drawn[0].heldout], c.y[drawn[0].heldout])
            for d in drawn:
                rows = np.asarray(pipe.calibrate(c.proba[d.rows]))
                true = np.bincount(c.y[d.rows], minlength=len(c.counts)) / len(d.rows)
                for bet in BETS:
                    with held_at(hypotheses, NO_SHIFT_OPEN=bet):
                        lower, upper = rp.ebls(pipe.source, rows).interval()
                    inside = (lower <= true) & (true <= upper)
                    found = cells[f"**{bet:g}**" if bet == hypotheses.NO_SHIFT_OPEN else f"{bet:g}"]
                    found[f"covered, {d.shift}, {size}"].append(float(inside.mean()))
                    found[f"width, {d.shift}, {size}"].append(float((upper - lower).mean()))
        progress(done, len(classifiers), c.name)
    return means(cells)


def rare(n_draws: int, sizes: tuple[int, ...] = (100, 200)) -> Found:
    """Return the same with a class made rare, of which no held-out row is left."""
    cells: dict[tuple[str, str], list[float]] = defaultdict(list)
    classifiers = [c for c in load(DESIGNED_ON) if c.proba.shape[1] > 2]
    for done, c in enumerate(classifiers, 1):
        for size in sizes:
            for seed in range(FIRST, FIRST + n_draws):
                rarely(c, size, seed, cells)
        progress(done, len(classifiers), c.name)
    return summary(cells)


def rarely(c: Classifier, size: int, seed: int, cells: dict[tuple[str, str], list[float]]) -> None:
    drawn, rng = draws(c, size, seed), np.random.default_rng([seed, size])
    if not drawn:
        return
    held, k = drawn[0].heldout, c.proba.shape[1]
    y, j = c.y[held], int(rng.integers(k))
    less = np.ones(k)
    less[j] = RARE / max(float((y == j).mean()), RARE)
    outputs = c.proba * less
    outputs /= outputs.sum(axis=1, keepdims=True)
    held = held[y != j]
    for least in LEAST:
        with held_at(fit, LEAST=least):
            pipe = rp.pipeline(outputs[held], c.y[held])
        for d in drawn:
            kept = d.rows
            if d.shift in ("none", "mild"):  # the class is as rare there
                lot = np.random.default_rng([seed, size, len(d.shift)]).random(len(kept))
                kept = kept[(c.y[kept] != j) | (lot < less[j])]
            rows = np.asarray(pipe.calibrate(outputs[kept]), np.float64)
            by = change(pipe.source, rp.ebls(pipe.source, rows).prior, rows, c.y[kept])
            name = f"LEAST {least:g}"
            cells[f"**{name}**" if least == fit.LEAST else name, f"{d.shift}, {size}"].append(by)


def beside_labels(n_draws: int) -> Found:
    """Return KL, coverage and accuracy with labels of rows drawn at random, at other values."""
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    sources = [*images(), *shipped()]
    for done, o in enumerate(sources, 1):
        for trial in range(FIRST, FIRST + n_draws):
            now = redrawn(o, trial)
            pipe = rp.pipeline(now.heldout, now.heldout_y, counts=now.counts)
            target, rng = draw(now, trial, 3000)
            order, k = rng.permutation(len(target.y)), len(now.counts)
            for m in LABELS:
                right, strange = np.full((2, len(target.y)), -1)
                right[order[:m]] = strange[order[:m]] = target.y[order[:m]]
                odd = order[: m // 20]
                strange[odd] = rng.integers(k, size=len(odd))
                values = [(name, value) for name, tried in BESIDE_LABELS.items() for value in tried]
                for name, value in values:
                    used = value == getattr(home(name), name)
                    found = cells[f"**{name} {value:g}**" if used else f"{name} {value:g}"]
                    with held_at(home(name), **{name: value}):
                        est = pipe.estimate(target.proba, labels=right, check=False)
                        off = pipe.estimate(target.proba, labels=strange, check=False)
                    lower, upper = est.interval(0.95)
                    mix = shares_of(target)
                    found[f"KL, {m}"].append(rp.metrics.kl(mix, est.prior, floor=FLOOR))
                    found[f"covered, {m}"].append(float(((lower <= mix) & (mix <= upper)).mean()))
                    for about, which in (("accuracy", est), ("accuracy, strange", off)):
                        hit = which.correct(target.proba).argmax(axis=1) == target.y
                        found[f"{about}, {m}"].append(float(hit.mean()))
        progress(done, len(sources), o.name)
    return means(cells)


def doubts(n_draws: int, sizes: tuple[int, ...] = (50, 200, 1000)) -> Found:
    """Return how often labels are doubted that are the rows' own, shuffled, and called by the next class's name."""
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    tried = [(f"{name} {value:g}", {name: value}) for name, values in DOUBTS.items() for value in values]
    used = {f"{name} {getattr(source, name):g}" for name in DOUBTS}
    parts = {"designed on": DESIGNED_ON, "kept aside": KEPT_ASIDE, "fresh": (*FRESH, *LATEST)}
    for part, sets in parts.items():
        classifiers = list(load(sets))
        for done, c in enumerate(classifiers, 1):
            own, k = np.flatnonzero(c.group == 0), c.proba.shape[1]
            for size, seed in ((size, seed) for size in sizes for seed in range(FIRST, FIRST + n_draws)):
                rng = np.random.default_rng([seed, size])
                held = rng.permutation(own)[:size]
                y = c.y[held]
                if len(held) < size or len(np.unique(y)) < 2:
                    continue
                for kind, labels in (("true", y), ("shuffled", rng.permutation(y)), ("misnamed", (y + 1) % k)):
                    known = rp.summarize(c.proba[held], labels, prior=np.ones(k))
                    for name, values in (*tried, ("whatever outputs claim", NO_CLAIM)):
                        with held_at(source, **values):
                            found = bool(source.doubt(known, None))
                        bold = "**" if name in used else ""
                        cells[f"{part}: {bold}{name}{bold}"][f"{kind}, {size}"].append(found)
            progress(done, len(classifiers), c.name)
    return means(cells)


def noisy() -> Iterator[Classifier]:
    """Yield three classifiers of each of three small sets, whose features are drowned in noise."""
    from sklearn import datasets

    for name in ("digits", "breast_cancer", "wine"):
        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        rng = np.random.default_rng(list(map(ord, name)))
        x = (x - x.mean(axis=0)) / np.maximum(x.std(axis=0), 1e-9) + NOISE * rng.normal(size=x.shape)
        order = rng.permutation(len(y))
        train, rest = np.split(order, [int(0.4 * len(y))])
        for model in ("logistic", "forest", "bayes"):
            proba = models()[model].fit(x[train], y[train]).predict_proba(x[rest])
            yield Classifier(f"{name}-{model}", proba, y[rest], np.zeros(len(rest)), np.bincount(y[train]))


def evened(classifiers: list[Classifier]) -> list[Classifier]:
    """Return classifiers whose outputs carry the uniform prior."""
    tilted = [c.proba * (c.counts.sum() / c.counts) for c in classifiers]
    return [c._replace(proba=x / x.sum(axis=1, keepdims=True)) for c, x in zip(classifiers, tilted, strict=True)]


def biases(n_draws: int, sizes: tuple[int, ...] = (2, 4, 8, 12, 16, 32, 64)) -> Found:
    """Return what the default changes against raw outputs left alone, with very few held-out rows."""
    cells: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    ours, fresh = list(load(DESIGNED_ON)), list(load(FRESH))
    parts = {"small sets": list(noisy()), "designed on": ours, "designed on, evened": evened(ours), "fresh": fresh,
             "fresh, evened": evened(fresh)}  # fmt: skip
    for part, classifiers in parts.items():
        for done, c in enumerate(classifiers, 1):
            own, k = np.flatnonzero(c.group == 0), c.proba.shape[1]
            for size, seed in ((size, seed) for size in sizes for seed in range(FIRST, FIRST + n_draws)):
                rng = np.random.default_rng([seed, size, *map(ord, c.name)])
                held, rest = np.split(rng.permutation(own), [size])
                ratio = rng.dirichlet(np.ones(k)) / np.maximum(np.bincount(c.y[rest], minlength=k), 1)
                for kind, weight in (("no shift", np.ones(len(rest))), ("Dirichlet", ratio[c.y[rest]])):
                    target = rng.choice(rest, 500, p=weight / weight.sum())
                    found = {by: after_few(c, held, target, few) for by, few in ((True, 0), (False, size + 1))}
                    for few in FEWEST:
                        bold = "**" if few == fit.FEW else ""
                        for about, value in found[size >= few].items():
                            cells[f"{part}, {kind}: {bold}FEW {few}{bold}"][f"{about}, {size}"].append(value)
            progress(done, len(classifiers), c.name)
    return means(cells)


def after_few(c: Classifier, held: np.ndarray, target: np.ndarray, few: int) -> dict[str, float]:
    """Return the change of one target, if no class has a bias with fewer than `few` held-out rows."""
    rows, y, one = c.proba[target], c.y[target], np.ones(c.proba.shape[1])
    with held_at(fit, FEW=few), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows that all have one class, and of labels that chance sets against them
        pipe = rp.pipeline(c.proba[held], c.y[held])
    after = pipe.estimate(rows, check=False).correct(rows)
    right, before = (float((x.argmax(axis=1) == y).mean()) for x in (after, rows))
    return {"log-loss": log_loss(after, one, y) - log_loss(rows, one, y), "accuracy": right - before}


def table_of(found: Found) -> str:
    """Return a table: a row a value, a column a cell; mean and harmed share of a cell are one column."""
    names = list(next(iter(found.values())))
    columns = [n.removesuffix(", mean") for n in names if not n.endswith(", harmed")]

    def said(x: dict[str, float], name: str) -> str:
        if f"{name}, harmed" in x:
            return f"{x[f'{name}, mean']:+.4f} ({x[f'{name}, harmed']:.1%})"
        return f"{x[name]:.4f}" if name.startswith(("KL", "width", "log-loss")) else f"{x[name]:.2%}"

    return markdown(["", *columns], [[value, *(said(x, name) for name in columns)] for value, x in found.items()])


SECTIONS = {
    "shift": (shift, "No shift, and trust in held-out rows: change of log-loss (harmed), sets designed on"),
    "intervals": (intervals, "Intervals that bet on no shift: how many shares 95 % hold, and how wide they are"),
    "rare": (rare, "A class that no held-out row resembles: change of log-loss (harmed), sets designed on"),
    "labels": (beside_labels, "Beside labels: the sources of labels.py, other draws"),
    "doubt": (doubts, "Labels of held-out rows that are doubted: their own, shuffled ones, and misnamed classes"),
    "biases": (biases, "Biases from few held-out rows: change of log-loss and accuracy against raw outputs left alone"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=4)
    parser.add_argument("--only", nargs="+", choices=list(SECTIONS), default=list(SECTIONS))
    options = parser.parse_args()
    for name in options.only:
        make, about = SECTIONS[name]
        found = make(options.draws)
        text = f"# {about}\n\n{options.draws} draws of each classifier or source.\n\n{table_of(found)}"
        store(f"constants_{name}", {"draws": options.draws, "values": found}, text)


if __name__ == "__main__":
    main()
