"""Train ordinary classifiers on public sets that no part of this project was designed on, and store their outputs.

    python benchmarks/make_unseen.py FOLDER

FOLDER holds clones of the repositories that `benchmarks/data/README.md` lists. Wants pip's scikit-learn, pandas and
pyreadr. Writes `benchmarks/data/unseen.npz`, which `peers.py` reads. The sets are classification sets of the UCI
repository, R's modeldata, TweetEval and the NLU evaluation data that this project had not used before, with at least
4,000 samples and files of at most 4 MB. They were fixed before any method ran on them.
"""

from __future__ import annotations

import argparse
import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import _record  # noqa: F401 - BLAS and OpenMP on one thread, before NumPy is imported
import numpy as np
import pandas as pd
from make_time_ordered import models, read, table

OUT = Path(__file__).parent / "data" / "unseen.npz"
TRAIN, REST = 4000, 3200  # samples at most to train on, and to store
FEWEST = 40  # samples of a class, in all
LARGE = 20  # with more classes only the logistic regression is stored
FOLD = "CrossValidation/out4ApiaiReal/Apiai_trainset_2018_03_22-13_01_25_169/CrossValidation/KFold_1/merged-kfold1.zip"
Loaded = tuple[Any, pd.Series]  # features or texts, labels


def _csv(repository: str, path: str, label: int | str = -1, **options: Any) -> Callable[[Path], Loaded]:
    def load(folder: Path) -> Loaded:
        f = pd.read_csv(io.BytesIO(read(folder, repository, path)), **{"header": None, **options})
        name = f.columns[label] if isinstance(label, int) else label
        x = f.drop(columns=name)
        x.columns = x.columns.astype(str)
        return x, f[name].astype(str)

    return load


def _modeldata(file: str, label: str) -> Callable[[Path], Loaded]:
    def load(folder: Path) -> Loaded:
        f = table(folder, "modeldata", f"data/{file}")
        x = f.drop(columns=label)
        names = [c for c in x if not pd.api.types.is_numeric_dtype(x[c])]
        return x.astype(dict.fromkeys(names, str)), f[label].astype(str)

    return load


def _tweets(task: str, part: str) -> Callable[[Path], Loaded]:
    def load(folder: Path) -> Loaded:
        lines = [read(folder, "tweeteval", f"datasets/{task}/{part}_{kind}.txt").decode().split("\n")
                 for kind in ("text", "labels")]  # fmt: skip
        rows = [(text, label) for text, label in zip(*lines, strict=False) if label.strip()]
        return pd.Series([r[0] for r in rows]), pd.Series([r[1].strip() for r in rows])

    return load


def _commands(folder: Path) -> Loaded:
    """Return what people say to an assistant at home, and what they want."""
    archive = zipfile.ZipFile(io.BytesIO(read(folder, "NLU-Evaluation-Data", FOLD)))
    rows = []
    for name in archive.namelist():
        if "/intents/" in name and name.endswith(".json"):
            said = json.loads(archive.read(name))["userSays"]
            rows += [("".join(part["text"] for part in s["data"]), Path(name).stem) for s in said]
    return pd.Series([r[0] for r in rows]), pd.Series([r[1] for r in rows])


SETS: dict[str, Callable[[Path], Loaded]] = {
    "adult": _csv("Datasets", "adult-train.csv", na_values=" ?"),
    "beans": _csv("datasets", "Dry_Bean_Dataset.csv", "Class", header=0, sep=";", decimal=",", index_col=0),
    "churn": _modeldata("mlc_churn.RData", "churn"),
    "commands": _commands,
    "credit": _modeldata("credit_data.RData", "Status"),
    "emoji": _tweets("emoji", "train"),
    "endgame": _csv("ensemble", "krkopt.data"),
    "gamma": _csv("MAGIC-Gamma-Classification", "magic04.data", header=0),
    "mammography": _csv("Datasets", "mammography.csv"),
    "nursery": _csv("Naive-Bayes", "nursery.data"),
    "pendigits": _csv("MOW-14Z", "pendigits.csv", header=0, index_col=0),
    "phoneme": _csv("Datasets", "phoneme.csv"),
    "telco": _modeldata("wa_churn.rda", "churn"),
    "thyroid": _csv("Hyperthyroidism-ML", "ann-train.data", usecols=range(22)),
    "tweets": _tweets("sentiment", "test"),
    "wine": _csv("Datasets", "winequality-white.csv"),
}


def outputs(name: str, x: Any, y: pd.Series) -> dict[str, dict[str, np.ndarray]]:
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
            "P": np.round(full, 4).astype(np.float16), "y": labels[rest].astype(np.int8),
            "counts": np.bincount(labels[train], minlength=len(classes)).astype(np.int32),
        }  # fmt: skip
        right = (full.argmax(axis=1) == labels[rest]).mean()
        print(f"{name}-{kind}: K={len(classes)}, {len(train)} trained on, {len(rest)} stored, accuracy {right:.3f}",
              flush=True)  # fmt: skip
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the cloned repositories")
    folder = parser.parse_args().folder
    found: dict[str, dict[str, np.ndarray]] = {}
    for name, load in SETS.items():
        found |= outputs(name, *load(folder))
    OUT.parent.mkdir(exist_ok=True)
    flat = {f"{name}|{key}": x for name, values in found.items() for key, x in values.items()}
    np.savez_compressed(OUT, names=np.array(sorted(found)), **flat)
    print(f"{OUT.name}: {OUT.stat().st_size / 1e6:.2f} MB, {len(found)} classifiers")


if __name__ == "__main__":
    main()
