"""Predicted probabilities of three real classifiers that ship with the package, with labels and class names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reprior._check import check_choice
from reprior._types import Labels, Vector

_ORIGIN = {
    "banking77": "Banking77 (Casanueva et al., 2020), CC BY 4.0",
    "clinc150": "CLINC150 (Larson et al., 2019), CC BY 3.0",
}
_LID176 = (
    "Predictions of fastText's lid.176.ftz (Joulin et al., 2016; CC BY-SA 3.0) on strings of GNOME gedit's "
    "translations (GPL-2.0-or-later); no text included."
)
NAMES = (*_ORIGIN, "lid176")


@dataclass(frozen=True, slots=True)
class Dataset:
    """Predicted probabilities of a classifier on held-out samples, and on a pool of other samples to draw targets from.

    Probabilities are (n, K), labels (n,) column indices.

    Parameters
    ----------
    name : str
        Name that `load` takes.
    classes : tuple of str
        Class names in the order of the columns.
    counts : (K,) or None
        Number of training samples per class, if known. Held-out samples have the same proportions.
    heldout_proba, heldout_y : (n, K), (n,)
        Held-out samples and their labels.
    pool_proba, pool_y : (m, K), (m,)
        Samples of neither the training nor the held-out set.
    origin : str
        Origin and licence of the samples.
    channels : mapping
        Row numbers in the pool of each target, by its name, in order of date. Only "lid176" has them.
    pool_day : (m,), optional
        Day on which each sample of the pool was written, if known.
    pool_top_k : pair of (m, k), optional
        The pool as it is stored: the k most probable classes and their probabilities.

    Examples
    --------
    >>> data = load("banking77")
    >>> data.heldout_proba.shape, len(data.heldout_y)
    ((973, 77), 973)
    """

    name: str
    classes: tuple[str, ...]
    counts: Vector | None
    heldout_proba: NDArray[np.float64]
    heldout_y: Labels
    pool_proba: NDArray[np.float64]
    pool_y: Labels
    origin: str
    channels: Mapping[str, Labels] = field(default_factory=dict)
    pool_day: NDArray[np.datetime64] | None = None
    pool_top_k: tuple[Labels, NDArray[np.float64]] | None = None


def load(name: str) -> Dataset:
    """Load a shipped data set.

    Parameters
    ----------
    name : str
        "lid176": fastText's language identifier (K = 176) on short texts of fifteen sources with other language shares,
        with dates. "banking77" (K = 77) and "clinc150" (K = 150): intent classifiers trained on a long tail.

    Examples
    --------
    >>> data = load("banking77")
    >>> data.pool_proba.shape, data.counts.max(), data.counts.min()
    ((9184, 77), np.float64(98.0), np.float64(10.0))
    >>> data = load("lid176")
    >>> rows = data.channels["Croatia"]
    >>> rows.size, data.pool_day[rows].min(), data.pool_day[rows].max()
    (500, np.datetime64('2004-02-20'), np.datetime64('2024-03-17'))
    """
    check_choice(name, "load", "name", NAMES)
    with (files(__package__) / f"{name}.npz").open("rb") as file, np.load(file) as stored:
        if name == "lid176":
            return _lid176(stored)
        return Dataset(
            name, tuple(stored["classes"].tolist()), stored["counts"].astype(np.float64),
            _proba(stored["heldout_log_proba"]), stored["heldout_y"].astype(np.intp),
            _proba(stored["pool_log_proba"]), stored["pool_y"].astype(np.intp),
            f"Predictions of a TF-IDF and logistic-regression classifier on {_ORIGIN[name]}; no text included.",
        )  # fmt: skip


def _lid176(stored: Mapping[str, Any]) -> Dataset:
    classes, index = tuple(stored["classes"].tolist()), stored["index"].T.astype(np.intp)
    shares = np.exp(_joined(stored["log_proba"].transpose(0, 2, 1), "<u2") / -32.0)
    shares /= shares.sum(axis=1, keepdims=True)
    listed, others = shares[:, :-1], shares[:, -1:]
    proba = np.tile(others / (len(classes) - index.shape[1]), len(classes))  # unlisted classes alike
    np.put_along_axis(proba, index, listed, axis=1)
    parts = {key.removeprefix("rows_"): stored[key].astype(np.intp) for key in stored if key.startswith("rows_")}
    heldout, y = parts.pop("held-out"), stored["y"].astype(np.intp)
    pool = np.setdiff1d(np.arange(len(y)), heldout)
    return Dataset(
        "lid176", classes, None, proba[heldout], y[heldout], proba[pool], y[pool], _LID176,
        channels={channel: np.searchsorted(pool, rows) for channel, rows in parts.items()},
        pool_day=stored["day"][pool].astype("datetime64[D]"), pool_top_k=(index[pool], listed[pool]),
    )  # fmt: skip


def _joined(planes: NDArray[Any], dtype: str) -> NDArray[Any]:
    """Return numbers (n, K) of two bytes that are stored as two planes of bytes (2, n, K)."""
    return np.ascontiguousarray(np.moveaxis(planes, 0, 2)).view(dtype)[..., 0]


def _proba(planes: NDArray[Any]) -> NDArray[np.float64]:
    """Return probabilities (n, K) from float16 log-probabilities, stored as two planes of bytes (2, n, K)."""
    proba: NDArray[np.float64] = np.exp(_joined(planes, "<f2").astype(np.float64))
    proba /= proba.sum(axis=1, keepdims=True)
    return proba
