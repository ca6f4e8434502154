"""What held-out labelled rows say about the training side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from reprior._check import check_labels, check_prior, check_proba, fail, holds_names
from reprior._types import Source
from reprior.blocks import ArrayBlocks, numbered


def column_of(y: Any, classes: Sequence[str]) -> Any:
    """Return the column index of each label by its name in `classes` (K,)."""
    columns = {str(name): i for i, name in enumerate(classes)}
    unknown = [str(label) for label in y if str(label) not in columns]
    if unknown:
        fail("summarize", "y", "hold names from `classes`", repr(unknown[0]), count=len(unknown))
    return np.array([columns[str(label)] for label in y], dtype=np.intp)


def summarize(proba: Any, y: Any, *, prior: Any = "mean", classes: Sequence[str] | None = None) -> Source:
    """Return the `Source` of a classifier from held-out labelled rows of the training distribution.

    `proba` (n, K) are its outputs, `y` (n,) the column index of each row's class, or its name in `classes`. `prior` is
    the source prior to use: "mean", the mean output, which is what the outputs themselves imply; "labels", the label
    frequencies; or class counts (K,) of the training data.

    >>> summarize([[0.9, 0.1], [0.3, 0.7]], [0, 1]).prior
    array([0.6, 0.4])
    """
    rows = check_proba(proba, "summarize")
    n, k = rows.shape
    if classes is not None and (isinstance(classes, int) or len(classes) != k):
        fail("summarize", "classes", f"name all {k} classes", classes if isinstance(classes, int) else len(classes))
    if classes is not None and holds_names(y):
        y = column_of(y, classes)
    labels = check_labels(y, "summarize", "y", n, k)
    soft, hard, total = np.zeros((k, k)), np.zeros((k, k)), np.zeros(k)
    for first, block in numbered(ArrayBlocks(rows)):
        true = labels[first : first + len(block)]
        np.add.at(soft.T, true, block)  # column y collects the outputs: no n×K×K array
        np.add.at(hard, (block.argmax(axis=1), true), 1.0)
        total += block.sum(axis=0)
    counts = np.bincount(labels, minlength=k).astype(np.float64)
    value, name, made = prior, "prior", "given by the user"
    if isinstance(prior, str):
        if prior not in ("mean", "labels"):
            fail("summarize", "prior", "be 'mean', 'labels' or class counts", repr(prior))
        mean, labelled = (total, "proba", "mean held-out output"), (counts, "prior", "held-out label counts")
        value, name, made = mean if prior == "mean" else labelled
    return Source(
        prior=check_prior(value, "summarize", name, n_classes=k, like="`proba`"),
        confusion=soft / n, hard_confusion=hard / n, counts=counts,
        classes=None if classes is None else tuple(map(str, classes)), heldout=(rows, labels), made=made,
    )  # fmt: skip
