"""Samples of rows: as many as asked for and the same ones, however the rows are cut into blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from worlds import make_problem

import reprior as rp
from reprior import datasets
from reprior.assess.diagnose import look
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
    for target in (cut, ArrayBlocks(rows)):
        looked = look(target, 400)
        np.testing.assert_array_equal(looked.sample, rows)
        np.testing.assert_allclose(looked.counts, rows.sum(axis=0))
    prior = np.full(5, 0.2)
    whole = information(ArrayBlocks(rows), prior, problem.source_prior, stride=9)
    np.testing.assert_allclose(information(cut, prior, problem.source_prior, stride=9), whole)
    assert count_rows(cut) == 400


def test_interval_and_diagnosis_are_bounded_and_the_same_for_small_blocks() -> None:
    problem = make_problem(k=3, n=20_000)
    answers = {}
    for size in (20, 20_000):
        est = rp.mlls(problem.source_prior, Cut(problem.proba, size))
        answers[size] = [*est.interval(), rp.diagnose(problem.source_prior, est.target, estimate=est).shift_p]
    for small, large in zip(answers[20], answers[20_000], strict=True):
        np.testing.assert_allclose(small, large, atol=2e-4)


@dataclass
class Counted(Cut):
    """The same, which counts how often it is read."""

    passes: int = 0

    @property
    def n(self) -> int:
        return len(self.array)

    def map_sum(self, fn: Callable[[Any], Any]) -> Any:
        self.passes += 1
        return super().map_sum(fn)


@pytest.mark.parametrize("absent", [0, 3])
def test_many_rows_are_read_a_handful_of_times(absent: int, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(k=10, n=20_000)
    rows = problem.proba[problem.y >= absent]
    whole = rp.mlls(problem.source_prior, rows)
    monkeypatch.setattr("reprior.batch.solve.IN_MEMORY", 20_000)  # a tenth of the rows
    blocks = Counted(rows, 1500)
    estimate = rp.mlls(problem.source_prior, blocks)
    assert estimate.status is rp.Status.OPTIMUM  # the duality gap certifies it
    assert blocks.passes <= 8
    assert estimate.n_iter == blocks.passes
    np.testing.assert_allclose(estimate.prior, whole.prior, atol=1e-6)
    assert estimate.log_likelihood == pytest.approx(whole.log_likelihood, abs=2e-8 * len(rows))
    array = rp.mlls(problem.source_prior, rows)  # an array of more numbers than are held begins with a sample too
    assert array.n_iter <= 8
    np.testing.assert_allclose(array.prior, whole.prior, atol=1e-6)


def test_a_sample_that_misleads_costs_passes_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tenth row is of one class: what a sample says is wrong, and the answer is right."""
    problem = make_problem(k=6, n=6000)
    rows = problem.proba.copy()
    rows[::10] = rows[np.flatnonzero(problem.y == 0)[0]]
    whole = rp.mlls(problem.source_prior, rows)
    monkeypatch.setattr("reprior.batch.solve.IN_MEMORY", 3_600)
    estimate = rp.mlls(problem.source_prior, Cut(rows, 700))
    assert estimate.status is rp.Status.OPTIMUM
    np.testing.assert_allclose(estimate.prior, whole.prior, atol=1e-6)


def test_few_rows_in_blocks_are_read_once() -> None:
    problem = make_problem(k=5, n=400)
    blocks = Counted(problem.proba, 30)
    estimate = rp.mlls(problem.source_prior, blocks)
    assert blocks.passes == estimate.n_iter == 1
    np.testing.assert_allclose(estimate.prior, rp.mlls(problem.source_prior, problem.proba).prior, atol=1e-12)


def test_ebls_reads_many_rows_a_handful_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(k=10, n=20_000)
    monkeypatch.setattr("reprior.rows.passes.SAMPLE", 20_000)
    blocks = Counted(problem.proba, 1500)
    rp.ebls(problem.source_prior, blocks)
    assert blocks.passes <= 10


def test_all_rows_make_good_for_a_sample_of_few_rows_a_class(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 rows of 1,000 classes a third decide between hypotheses; their modes were far from those of all."""
    data = datasets.load("banking77")
    source = rp.summarize(data.heldout_proba, data.heldout_y, prior=data.counts)
    whole, some = [], []
    for seed in range(3):
        prior = rp.simulate.dirichlet(77, 1.0, rng=seed)
        target = rp.simulate.resample(data.pool_proba, data.pool_y, prior, n=3000, rng=seed)
        for size, result in ((4_000_000, whole), (400 * 77, some)):
            monkeypatch.setattr("reprior.rows.passes.SAMPLE", size)
            result.append(rp.metrics.kl(target.prior, rp.ebls(source, target.proba).prior))
    assert np.mean(some) < 1.3 * np.mean(whole)
