"""Train the two intent classifiers whose outputs ship in `reprior.data`, and store those outputs.

    python experiments/text_intents/make.py DATA [--out src/reprior/data]

DATA holds `banking77/{train,test}.csv` and `clinc150/data_full.json`. A few minutes on one core; same bytes each time
on the same versions of NumPy, SciPy and scikit-learn.
"""

import argparse
import csv
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold, cross_val_predict
from sklearn.pipeline import make_pipeline, make_union

SEED, RATIO, HELD_OUT = 77, 0.1, 0.25
STRENGTHS = (30.0, 100.0, 300.0, 1000.0)  # of the ridge (scikit-learn's C), chosen by cross-validation


@dataclass(frozen=True)
class Corpus:
    """Texts and labels; `n_trainable` rows may be trained on, the official test rows after them never."""

    text: np.ndarray
    y: np.ndarray
    classes: list[str]
    n_trainable: int


def corpus(trainable: list[tuple[str, str]], test: list[tuple[str, str]]) -> Corpus:
    """Rows in the given order, without texts seen before: no pool row may be a copy of a training row."""
    first = {text: label for text, label in reversed([*trainable, *test])}
    rows = [(text, label) for text, label in dict([*trainable, *test]).items() if first[text] == label]
    classes = sorted({label for _, label in rows})
    index = {name: k for k, name in enumerate(classes)}
    seen = {text for text, _ in trainable}
    return Corpus(
        text=np.array([text for text, _ in rows], dtype=object),
        y=np.array([index[label] for _, label in rows]),
        classes=classes,
        n_trainable=sum(text in seen for text, _ in rows),
    )


def banking77(data: Path) -> Corpus:
    def read(name: str) -> list[tuple[str, str]]:
        with (data / "banking77" / name).open(newline="", encoding="utf-8") as file:
            return [(row["text"], row["category"]) for row in csv.DictReader(file)]

    return corpus(read("train.csv"), read("test.csv"))


def clinc150(data: Path) -> Corpus:
    splits = json.loads((data / "clinc150" / "data_full.json").read_text(encoding="utf-8"))
    return corpus([*map(tuple, splits["train"] + splits["val"])], [*map(tuple, splits["test"])])


def long_tail_rows(y: np.ndarray, n_max: int, n_classes: int, rng: np.random.Generator) -> np.ndarray:
    """Rows of a long-tailed sample (eq. 2) whose class order is random, but no class gives rows it has not got."""
    have = np.bincount(y, minlength=n_classes)
    order = rng.permutation(n_classes)
    rows = []
    for rank in range(n_classes):
        quota = int(n_max * RATIO ** (rank / (n_classes - 1)))  # eq. 2
        k = next(k for k in order if have[k] >= quota)
        order = order[order != k]
        rows.append(rng.choice(np.flatnonzero(y == k), quota, replace=False))
    return rng.permutation(np.concatenate(rows))


def classifier(strength: float):
    words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True)
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 4), sublinear_tf=True)
    return make_pipeline(make_union(words, letters), LogisticRegression(C=strength, max_iter=2000))


def make(name: str, corpus: Corpus, n_max: int, out: Path) -> None:
    rng = np.random.default_rng(SEED)
    n_classes = len(corpus.classes)
    rows = long_tail_rows(corpus.y[: corpus.n_trainable], n_max, n_classes, rng)
    n_heldout = round(HELD_OUT * len(rows))
    heldout, train = rows[:n_heldout], rows[n_heldout:]
    pool = np.setdiff1d(np.arange(len(corpus.y)), rows)
    text, y = corpus.text, corpus.y
    counts = np.bincount(y[train], minlength=n_classes)
    assert counts.min() >= 3, "each class needs training rows in every fold"

    folds = StratifiedKFold(3, shuffle=True, random_state=SEED)
    loss = {
        s: log_loss(y[train], cross_val_predict(classifier(s), text[train], y[train], cv=folds, method="predict_proba"))
        for s in STRENGTHS
    }
    strength = min(loss, key=loss.__getitem__)
    model = classifier(strength).fit(text[train], y[train])
    log_proba = {part: model.predict_log_proba(text[at]) for part, at in (("heldout", heldout), ("pool", pool))}

    # Log-probabilities, not probabilities: in float16 those below 6e-5 lose their digits and those below 3e-8 vanish,
    # and label-shift EM divides by the small ones; the logarithm keeps every ratio to 0.4 %.
    np.savez_compressed(
        out / f"{name}.npz",
        classes=np.array(corpus.classes),
        counts=counts.astype(np.int16),
        heldout_log_proba=log_proba["heldout"].astype(np.float16),
        heldout_y=y[heldout].astype(np.int16),
        pool_log_proba=log_proba["pool"].astype(np.float16),
        pool_y=y[pool].astype(np.int16),
    )
    accuracy = {p: (log_proba[p].argmax(1) == y[at]).mean() for p, at in (("heldout", heldout), ("pool", pool))}
    confidence = {p: np.exp(log_proba[p].max(1)).mean() for p in log_proba}
    print(f"{name}: K={n_classes}, {len(train)} training rows ({counts.max()} to {counts.min()} a class), C={strength:g}")
    print(f"  cross-validated log loss {', '.join(f'C={s:g} {v:.3f}' for s, v in loss.items())}")
    for part, at in (("heldout", heldout), ("pool", pool)):
        print(f"  {part}: {len(at)} rows, accuracy {accuracy[part]:.3f}, mean confidence {confidence[part]:.3f}")
    print(f"  {(out / f'{name}.npz').stat().st_size / 1e6:.2f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, help="folder with banking77/ and clinc150/")
    parser.add_argument("--out", type=Path, default=Path(__file__).parents[2] / "src" / "reprior" / "data")
    options = parser.parse_args()
    make("banking77", banking77(options.data), 130, options.out)
    make("clinc150", clinc150(options.data), 100, options.out)


if __name__ == "__main__":
    main()
