"""Why may new predictions differ from held-out ones by more than their class prior? Causes that can be tested for."""

from __future__ import annotations

import numpy as np

from reprior._check import counted, percent
from reprior._types import Matrix, Source
from reprior.rows.blocks import Blocks
from reprior.rows.calibrated import Calibrator
from reprior.rows.passes import some_rows

MAX_NUMBERS = 200_000  # probabilities of either side that are looked at
DECIMALS = (1, 2, 3, 4)  # to which predictions may have been rounded
OFF = 3  # units of the last decimal
SAME = 1e-3  # of the last decimal, by which a rounded number may be off after calibration and back
MIN_ROUNDED, MAX_ROUNDED = 0.9, 0.5  # share of rounded samples: at least on one side, and at most on the other
MIN_UNSEEN = 0.01  # of the mean prediction, that classes without held-out samples must have to matter
CERTAIN, CERTAIN_MORE = 0.9999, 0.2  # a probability that is hardly below 1; by how many more of the samples
CLIPPED, NOT_CLIPPED = 0.05, 0.02  # of the samples that have the very same smallest probability, on either side
TIED = 1e-4  # relative difference of probabilities that is rounding
MIN_CLIPPED = 1e-6  # probability below which a floor is a matter of number types


def likely_causes(source: Source, calibrator: Calibrator | None, target: Blocks, n: float) -> str:
    """Return sentences, each after a space, on why `n` target samples may look unlike held-out ones; "" if none."""
    if source.heldout is None:
        return ""
    rows = max(100, MAX_NUMBERS // target.n_classes)
    heldout: Matrix = np.asarray(source.heldout[0][:: max(1, len(source.heldout[0]) // rows)], np.float64)
    sample: Matrix = np.asarray(some_rows(target, int(n), rows), np.float64)
    if calibrator is not None:
        heldout, sample = calibrator.undone(heldout), calibrator.undone(sample)
    # the first explains the others: rounded numbers are also certain, and equal
    how = rounded(sample, heldout) or certain(sample, heldout) or clipped(sample, heldout)
    return "".join(f" {sentence}" for sentence in (how, unseen(source, sample)) if sentence)


def rounded(sample: Matrix, heldout: Matrix) -> str:
    """Return a sentence if predictions of one side are rounded to some decimals, and those of the other are not."""
    for decimals in DECIMALS:
        of_new, of_held = share_rounded(sample, decimals), share_rounded(heldout, decimals)
        for one, other, side, rest in ((of_new, of_held, "new", "held-out"), (of_held, of_new, "held-out", "new")):
            if one >= MIN_ROUNDED and other <= MAX_ROUNDED:
                digits = counted(decimals, "decimal", "decimals")
                return f"The {side} predictions are rounded to {digits}, the {rest} ones are not: round neither."
    return ""


def share_rounded(rows: Matrix, decimals: int) -> float:
    """Return the share of samples (n, K) that are not certain whose probabilities have at most so many decimals.

    Rounded probabilities rarely sum to 1. They may have been divided by their sum, which was off by OFF units at most.
    """
    whole = 10**decimals
    inner = rows[rows.max(axis=1) < 1 - 0.5 / whole]
    rounded_rows = np.zeros(len(inner), bool)
    for total in range(whole - OFF, whole + OFF + 1):
        units = inner * total
        rounded_rows |= (np.abs(units - units.round()) < SAME).all(axis=1)
    return float(rounded_rows.mean()) if len(inner) else 0.0


def unseen(source: Source, sample: Matrix) -> str:
    """Return a sentence if new predictions give much to classes without held-out samples."""
    assert source.heldout is not None
    missing = np.bincount(source.heldout[1], minlength=sample.shape[1]) == 0
    part = float(sample[:, missing].sum() / len(sample))
    if part < MIN_UNSEEN:
        return ""
    who = counted(int(missing.sum()), "class has", "classes have")
    return f"{who} no held-out sample and {percent(part)} of the new predictions: hold out samples of every class."


def certain(sample: Matrix, heldout: Matrix) -> str:
    """Return a sentence if many more predictions of one side are certain, as if they had been made hard."""
    new, held = (float(np.mean(rows.max(axis=1) > CERTAIN)) for rows in (sample, heldout))
    if abs(new - held) < CERTAIN_MORE:
        return ""
    return (f"{percent(new)} of the new predictions are almost 0 or 1, and {percent(held)} of the held-out ones: were"
            " probabilities replaced by decisions?")  # fmt: skip


def clipped(sample: Matrix, heldout: Matrix) -> str:
    """Return a sentence if predictions of one side pile up at a smallest probability, and those of the other do not."""
    new, held = piled(sample), piled(heldout)
    for side, here, there in (("new", new, held), ("held-out", held, new)):
        if here > CLIPPED and there < NOT_CLIPPED:
            return f"{percent(here)} of the {side} predictions share their smallest probability: they look clipped."
    return ""


def piled(rows: Matrix) -> float:
    """Return the share of samples (n, K) with the smallest probability of all samples, or in two of their classes."""
    least = np.sort(rows, axis=1)[:, :2]
    same = least[:, 0] < float(rows.min()) * (1 + TIED)
    if rows.shape[1] > 2:  # several were raised, and then divided by another sum
        same |= least[:, 1] < least[:, 0] * (1 + TIED)
    return float(np.mean(same & (least[:, 0] > MIN_CLIPPED)))
