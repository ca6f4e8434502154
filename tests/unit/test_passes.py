"""Samples of rows: as many as asked for and the same ones, however the rows are cut into blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from conftest import make_problem

import reprior as rp
from reprior.rows.blocks import ArrayBlocks
from reprior.rows.passes import count_rows, information, some_rows


@dataclass
class Cut:
    """An array in blocks of `size` rows."""

    array: np.ndarray
    size: int

    @property
    def n_classes(self) -> int:
        return int(self.array.shape[1])

    def map_sum(self, fn: Callable[[Any], Any]) -> Any:
        parts = [fn(self.array[i : i + self.size]) for i in range(0, len(self.array), self.size)]
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total


@pytest.mark.parametrize("size", [1, 3, 7, 1000])
def test_samples_do_not_depend_on_blocks(size: int) -> None:
    problem = make_problem(k=5, n=400)
    rows, cut = problem.proba, Cut(problem.proba, size)
    np.testing.assert_array_equal(some_rows(cut, 400, 50), rows[::8])
    np.testing.assert_array_equal(some_rows(cut, 400, 4000), rows)
    prior = np.full(5, 0.2)
    whole = information(ArrayBlocks(rows), prior, problem.source_prior, stride=9)
    np.testing.assert_allclose(information(cut, prior, problem.source_prior, stride=9), whole)
    assert count_rows(cut) == 400


def test_interval_and_diagnosis_are_bounded_and_the_same_for_small_blocks() -> None:
    problem = make_problem(k=3, n=20_000)
    found = {}
    for size in (2, 20_000):
        est = rp.mlls(problem.source_prior, Cut(problem.proba, size))
        found[size] = [*est.interval(), rp.diagnose(problem.source_prior, est.target, estimate=est).shift_p]
    for small, large in zip(found[2], found[20_000], strict=True):
        np.testing.assert_allclose(small, large, atol=2e-4)
