"""A classifier that the scikit-learn adapter trains itself: which held-out rows describe it?

    python benchmarks/folds.py [--draws 4]

Up to 1,000 training rows of six tabular sets (see `_ordinary.py`), five kinds of classifier. "Folds in turn" is what
`LabelShiftClassifier(clf).fit(X, y)` does: cross-validated outputs, and `adapt` asks the models of the folds. "Final
model" holds the same outputs against those of the model that was trained on all rows. "A quarter held out" trains on
the rest. Log-loss after `adapt`, coverage of 95 % intervals, and how often rows are said to differ by more than their
class mix (p < 0.001), which they never do here.
"""

from __future__ import annotations

import argparse
import warnings
from collections import defaultdict
from typing import Any

from _ordinary import CACHE, SETS
from _record import markdown, progress, store

import numpy as np  # isort: skip
from sklearn.base import clone
from sklearn.model_selection import train_test_split

from reprior._check import REJECTED
from reprior.adapters.sklearn import LabelShiftClassifier

NAMES = ("spam", "german", "satellite", "cut", "origin", "ticdata")
FORMS = ("folds in turn", "final model", "a quarter held out")
SHIFTS = ("none", "strong")


def kinds() -> dict[str, Any]:
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler
    from sklearn.tree import DecisionTreeClassifier

    return {
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
        "naive Bayes": GaussianNB(var_smoothing=1e-3),
        "tree": DecisionTreeClassifier(min_samples_leaf=5, random_state=0),
        "forest": RandomForestClassifier(60, min_samples_leaf=2, random_state=0),
        "boosting": HistGradientBoostingClassifier(max_iter=50, random_state=0),
    }


def targets(y: np.ndarray, train: np.ndarray, rng: np.random.Generator) -> list[tuple[str, np.ndarray]]:
    """Return rows of an unshifted and a shifted target that are not in `train`; none is there twice."""
    k, rest = y.max() + 1, np.setdiff1d(np.arange(len(y)), train)
    left, out = np.bincount(y[rest], minlength=k), []
    for shift in SHIFTS:
        prior = np.bincount(y[train], minlength=k) / len(train) if shift == "none" else rng.dirichlet(np.full(k, 2.0))
        size = int(np.clip((left / np.maximum(prior, 1e-12)).min(), min(1000, len(rest)) // 3, 1000))
        wanted = np.minimum(rng.multinomial(size, prior), left)
        some = [rng.permutation(rest[y[rest] == j])[: wanted[j]] for j in range(k)]
        out.append((shift, rng.permutation(np.concatenate(some))))
    return out


def log_loss(rows: np.ndarray, y: np.ndarray) -> float:
    return float(-np.log(np.maximum(rows[np.arange(len(y)), y], 1e-12)).mean())


def measure(model: LabelShiftClassifier, x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Return log-loss after `adapt`, coverage, and whether the rows were said to differ by more than their mix."""
    found = model.adapt(x).estimate_
    lower, upper = found.interval()
    true = np.bincount(y, minlength=len(lower)) / len(y)
    p = None if found.checks is None else found.checks.label_shift_p
    covered = float(((lower <= true) & (true <= upper)).mean())
    return log_loss(model.predict_proba(x), y), covered, float(p is not None and p < REJECTED)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=4)
    options = parser.parse_args()
    found: dict[tuple[str, str, str], list[tuple[float, float, float]]] = defaultdict(list)
    for done, name in enumerate(NAMES, 1):
        x, y, group = SETS[name](CACHE)
        x, y = x[group == 0], np.unique(y[group == 0], return_inverse=True)[1]
        for seed in range(options.draws):
            rng = np.random.default_rng([seed, *map(ord, name)])
            train = rng.permutation(len(y))[: min(1000, int(0.4 * len(y)))]
            drawn = targets(y, train, rng)
            for kind, model in kinds().items():
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # that rows differ by more than their mix is what is counted
                    turn = LabelShiftClassifier(clone(model)).fit(x[train], y[train])
                    final = LabelShiftClassifier(clone(model)).fit(x[train], y[train])
                    final.fold_estimators_ = []
                    most, part = train_test_split(train, test_size=0.25, stratify=y[train], random_state=0)
                    counts = np.bincount(y[most])
                    held = LabelShiftClassifier(clone(model).fit(x[most], y[most]), counts=counts).fit(x[part], y[part])
                    for shift, rows in drawn:
                        for form, fitted in zip(FORMS, (turn, final, held), strict=True):
                            found[kind, form, shift].append(measure(fitted, x[rows], y[rows]))
        progress(done, len(NAMES), name)
    means = {key: np.mean(values, axis=0).round(4).tolist() for key, values in found.items()}
    rows = [
        [kind, form, *(f"{means[kind, form, s][0]:.3f}" for s in SHIFTS),
         *(f"{means[kind, form, s][1]:.0%}" for s in SHIFTS), *(f"{means[kind, form, s][2]:.0%}" for s in SHIFTS)]
        for kind in kinds() for form in FORMS
    ]  # fmt: skip
    head = ["classifier", "held-out rows", "log-loss, no shift", "strong shift", "covered, no shift", "strong shift",
            "said to differ by more, no shift", "strong shift"]  # fmt: skip
    title = "# Which held-out rows describe a classifier that the adapter trains?"
    about = f"Means over {', '.join(NAMES)}, {options.draws} draws each."
    cells = {", ".join(key): value for key, value in means.items()}
    store("folds", {"cells": cells}, f"{title}\n\n{about}\n\n{markdown(head, rows)}")


if __name__ == "__main__":
    main()
