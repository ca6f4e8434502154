"""The training side: its summary from held-out samples, and the class prior that predictions imply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reprior._check import check_int, check_level, check_prior, fail
from reprior._labels import Labelled, check_labelled
from reprior._types import Labels, Matrix, Source, Vector
from reprior.assess.labels import scaled_chi_square_p
from reprior.rows.blocks import ArrayBlocks, numbered

MAX_CONFUSION = 8192  # classes up to which confusion matrices are kept: two of them then take a gigabyte


def summarize(proba: Any, y: Any, *, prior: Any = "mean", classes: Sequence[Any] | None = None) -> Source:
    """Return the `Source` of a classifier, from held-out samples of the training distribution.

    Use it to call methods such as `ebls` directly; `pipeline` also calibrates. Confusion matrices are included for at
    most 8,192 classes.

    Parameters
    ----------
    proba : (n, K)
        Predicted probabilities; columns of a DataFrame name the classes.
    y : (n,)
        Labels: class names or column indices.
    prior : str or (K,)
        The source prior: "mean" (default), the mean predicted probability, which is the prior that the probabilities
        imply; "labels", the shares of the labels; or class counts of the training data.
    classes : sequence of K names, optional
        Class names in the order of the columns.

    Examples
    --------
    >>> summarize([[0.9, 0.1], [0.3, 0.7]], ["cat", "dog"], classes=["cat", "dog"]).prior
    array([0.6, 0.4])
    """
    return summary(check_labelled(proba, y, "summarize", classes), prior)


def summary(heldout: Labelled, prior: Any) -> Source:
    """Return the `Source` of checked held-out samples; `prior` is as in `summarize`."""
    rows, labels, names = heldout
    n, k = rows.shape
    soft, hard = (None, None) if k > MAX_CONFUSION else (np.zeros((k, k)), np.zeros((k, k)))
    total = np.zeros(k)
    for first, block in numbered(ArrayBlocks(rows)):
        true = labels[first : first + len(block)]
        if soft is not None and hard is not None:  # by places in memory, which NumPy adds to several times as fast
            np.add.at(soft.reshape(-1), (np.arange(k) * k + true[:, None]).reshape(-1), block.reshape(-1))
            np.add.at(hard.reshape(-1), block.argmax(axis=1) * k + true, 1.0)
        total += block.sum(axis=0, dtype=np.float64)
    counts = np.bincount(labels, minlength=k).astype(np.float64)
    value, name, made = prior, "prior", "given by the user"
    if isinstance(prior, str):
        if prior not in ("mean", "labels"):
            fail("summarize", "prior", "be 'mean', 'labels' or class counts", repr(prior))
        mean, labelled = (total, "proba", "mean held-out prediction"), (counts, "prior", "held-out label counts")
        value, name, made = mean if prior == "mean" else labelled
    return Source(
        prior=check_prior(value, "summarize", name, n_classes=k, like="`proba`", classes=names),
        confusion=None if soft is None else np.divide(soft, n, out=soft),
        hard_confusion=None if hard is None else np.divide(hard, n, out=hard), counts=counts,
        classes=names, heldout=(rows, labels), made=made,
    )  # fmt: skip


POWER_SD = 0.2  # prior standard deviation of the power of the training prior, whose mean is 1
CHANCE = 1e-3  # p-value below which the shares of held-out labels differ from training shares
# The next two were set by hand; no stored table shows their sensitivity.
CERTAIN = 0.2  # relative error of a mean prediction at which half of the pooling is applied
POOLING = 3.0  # training samples that one held-out sample counts as, for the prior that predictions imply
SHARE_SUM_ERROR = 0.01  # how far a sum of rounded shares may be from 1
SHARES_AS_SAMPLES = 1e9  # samples of the rarest class if shares are given instead of counts


def pooled_prior(rows: Matrix, counts: Vector, weight: Vector | None = None) -> Vector:
    """Return the source prior (K,) from calibrated held-out predictions (n, K) and training counts (K,).

    Calibration and overfitting flatten or sharpen the prior that predictions imply. So the training prior is first
    raised to the power that fits the mean prediction, and then both are averaged by their numbers of samples. `weight`
    (n,) are the weights of held-out samples whose class shares differ from those of training.
    """
    share = np.full(len(rows), 1.0 / len(rows)) if weight is None else weight / weight.sum()
    n, mean, log_counts = 1.0 / (share @ share), share @ rows, np.log(counts)
    log_counts = log_counts - log_counts.mean()
    low, high = -20.0, 20.0
    for _ in range(60):  # bisect the derivative of the log posterior n·mean·log base − (power − 1)²/(2·POWER_SD²)
        power = 0.5 * (low + high)
        base = np.exp(power * log_counts - (power * log_counts).max())
        base /= base.sum()
        slope_positive = n * (mean - base) @ log_counts > (power - 1) / POWER_SD**2
        low, high = (power, high) if slope_positive else (low, power)
    squares = n * (share @ rows**2)
    variance_ratio = (squares + squares.sum() / n) / (n * mean + 1)  # Σp²/Σp: predictions scatter less than labels
    held = POOLING * n / variance_ratio
    prior = (held * mean + counts.sum() * base) / (held + counts.sum())
    return np.asarray(prior / prior.sum())


def implied_prior(rows: Matrix, counts: Vector, weight: Vector | None = None, *, ridge: float) -> Vector:
    """Return the source prior (K,) that calibrated held-out predictions (n, K) imply, given training counts (K,).

    A free bias makes predictions imply the held-out prior, which is their mean. Without a bias they imply the training
    prior, and training counts and mean are pooled. The penalty removes the part ridge/(Σp(1−p) + ridge) of a bias. This
    part of the log prior is pooled, times v²/(v² + c²). Here v is the variance of the log of the mean, and c the
    smaller of CERTAIN² and 1/ridge, the variance of biases. The squares make a sharp switch; they were set by hand.
    """
    share = np.full(len(rows), 1.0 / len(rows)) if weight is None else weight / weight.sum()
    mean = share @ rows
    bias_information = (share @ (rows * (1 - rows))) / (share @ share)
    pooled_weight = ridge / (bias_information + ridge)
    noise = (share @ (rows - mean) ** 2) * (share @ share) / mean**2  # variance of the log of a mean prediction
    pooled_weight = pooled_weight * noise**2 / (noise**2 + min(CERTAIN**2, 1 / ridge) ** 2)
    log_prior = (1 - pooled_weight) * np.log(mean) + pooled_weight * np.log(pooled_prior(rows, counts, weight))
    prior = np.exp(log_prior - log_prior.max())
    return np.asarray(prior / prior.sum())


def as_counts(counts: Vector) -> Vector:
    """Return training counts (K,); shares, which have no number of samples, count as very many samples."""
    total = float(counts.sum())
    if total < 1 - SHARE_SUM_ERROR:
        rule = "be training samples of each class, or shares that sum to 1"
        fail("pipeline", "counts", rule, f"a sum of {total:.6g}")
    return counts if total > 1 + SHARE_SUM_ERROR else counts * (SHARES_AS_SAMPLES / counts.min())


def tilt_of(labels: Labels, counts: Vector) -> Vector | None:
    """Return label shares over training shares (K,) of held-out labels; None if they may differ by chance.

    Under chance, all samples of a class are equally likely to be held out. The squared differences are summed so that
    classes with less than one expected sample count little.
    """
    label_counts, n, total = np.bincount(labels, minlength=len(counts)), len(labels), counts.sum()
    held, rows = n / (n + total), label_counts + counts
    variance, others = held * (1 - held) * rows, 1 - rows / (n + total)
    weight = 1 / (variance + 1)
    mean, scatter = weight @ (variance * others), weight**2 @ ((variance + 2 * variance**2) * others)
    squares = weight @ (label_counts - held * rows) ** 2
    if scaled_chi_square_p(float(squares), mean=float(mean), variance=float(scatter)) > CHANCE:
        return None
    # half a row: no class is impossible
    return np.asarray((label_counts + 0.5) / (n + 0.5 * len(counts)) / (counts / total))


def smallest_rise(source: Source, n: int, level: float, power: float) -> Vector:
    """Return the smallest rise (K,) of each share that `n` samples are likely to show; see `Pipeline.smallest_rise`."""
    from scipy.special import ndtri

    size = check_int(n, "smallest_rise", "n")
    sure, often = check_level(level, "smallest_rise"), check_level(power, "smallest_rise", "power")
    if source.heldout is None:
        fail("smallest_rise", "pipeline", "have held-out samples", "none", remedy="Fit it to held-out samples")
    rows, y = source.heldout
    k, each = rows.shape[1], np.arange(len(y))
    counts, mean = np.bincount(y, minlength=k), rows.mean(axis=0, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        inside = np.bincount(y, rows[each, y], minlength=k) / counts
        gain = inside - (mean * len(y) - inside * counts) / (len(y) - counts)
        noise = rows.std(axis=0, dtype=np.float64) * np.sqrt(1 / size + 1 / len(y))
        rise = (ndtri(sure) + ndtri(often)) * noise / gain
    detectable = (counts > 0) & (counts < len(y)) & (gain > 0) & (rise < 1 - mean)
    return np.asarray(np.where(detectable, rise, np.inf))
