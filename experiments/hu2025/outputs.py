"""The classifiers' outputs that ship with the experiment: float16 log-probabilities, checked by SHA-256.

A float16 probability loses everything below 6e-8, and half the softmax of a confident network is smaller than
that; a float16 log-probability keeps every class to a relative error of |log p| / 4096 (0.2 % at p = 1e-4).
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).parent / "outputs"


@dataclass(frozen=True, slots=True)
class Trained:
    """Outputs on the training set itself, summed up (K, K): row i, column y, of soft outputs and of arg-max ones."""

    soft: np.ndarray
    hard: np.ndarray


@dataclass(frozen=True, slots=True)
class Outputs:
    """One classifier: its training counts (K), and soft outputs (n, K) with labels on two sets of rows.

    `trained` is its confusion on the training set, which not every file has.
    """

    counts: np.ndarray
    test: np.ndarray
    y_test: np.ndarray
    held_out: np.ndarray
    y_held_out: np.ndarray
    trained: Trained | None = None


def save(folder: Path, name: str, *, counts: np.ndarray, test: np.ndarray, y_test: np.ndarray,
         held_out: np.ndarray, y_held_out: np.ndarray, log: str, trained: Trained | None = None) -> None:
    """Write one classifier's outputs, log-probabilities, and its log; its confusion on the training set if given."""
    more = {} if trained is None else {"trained_soft": trained.soft.astype(np.float32),
                                       "trained_hard": trained.hard.astype(np.int32)}
    store(folder, name, log, counts=counts.astype(np.int32),
          test=test.astype(np.float16), y_test=y_test.astype(np.uint16),
          held_out=held_out.astype(np.float16), y_held_out=y_held_out.astype(np.uint16), **more)


def confusion(log_proba: np.ndarray, y: np.ndarray) -> Trained:
    """Return the summed outputs of each class (K, K) from log-probabilities (n, K) and labels."""
    k = log_proba.shape[1]
    proba = np.exp(log_proba.astype(np.float64))
    soft, hard = np.zeros((k, k)), np.zeros((k, k), np.int64)
    np.add.at(soft.T, y, proba / proba.sum(1, keepdims=True))
    np.add.at(hard, (proba.argmax(1), y), 1)
    return Trained(soft, hard)


def store(folder: Path, name: str, log: str, **arrays: np.ndarray) -> None:
    """Write NAME.npz and NAME.jsonl and refresh the checksums of the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / f"{name}.npz", **arrays)
    (folder / f"{name}.jsonl").write_text(log)
    files = sorted(p for p in folder.iterdir() if p.suffix in (".npz", ".jsonl"))
    (folder / "SHA256SUMS").write_text("".join(f"{_sha256(p)}  {p.name}\n" for p in files))


def read(name: str, folder: Path | None = None) -> dict[str, np.ndarray]:
    """Return the arrays of NAME.npz, refusing a file whose checksum is wrong."""
    folder = folder or FOLDER  # looked up when called: a test has its own
    path = folder / f"{name}.npz"
    sums = dict(reversed(line.split("  ")) for line in (folder / "SHA256SUMS").read_text().splitlines())
    if _sha256(path) != sums[path.name]:
        raise ValueError(f"{path.name} is not the file that SHA256SUMS lists")
    with np.load(path) as f:
        return dict(f)


def load(name: str, folder: Path | None = None) -> Outputs:
    """Read one classifier's outputs as float64 probabilities, refusing a file whose checksum is wrong."""
    f = read(name, folder)
    return Outputs(f["counts"], _proba(f["test"]), f["y_test"].astype(np.int64),
                   _proba(f["held_out"]), f["y_held_out"].astype(np.int64),
                   Trained(f["trained_soft"].astype(np.float64), f["trained_hard"]) if "trained_soft" in f else None)


def _proba(log_proba: np.ndarray) -> np.ndarray:
    p = np.exp(log_proba.astype(np.float64))
    return p / p.sum(1, keepdims=True)


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
