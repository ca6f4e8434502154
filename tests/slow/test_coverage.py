"""Intervals cover what they say, and the label-shift test errs as often as it says."""

import numpy as np
import pytest
from worlds import make_problem

import reprior as rp
from reprior.assess.diagnose import diagnose

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", ["mlls", "ebls"])
@pytest.mark.parametrize(("k", "n"), [(5, 500), (20, 2000)])
def test_nominal_95_covers_between_92_and_98(method, k, n):
    hits = []
    for seed in range(150):
        problem = make_problem(k=k, n=n, seed=seed)
        lower, upper = rp.METHODS[method](problem.source_prior, problem.proba).interval(0.95, of="prior")
        hits.append((problem.target_prior >= lower) & (problem.target_prior <= upper))
    assert 0.92 <= np.mean(hits) <= 0.98


def test_the_printed_bound_covers_far_less():
    hits = []
    for seed in range(60):
        problem = make_problem(k=10, n=1000, seed=seed, separation=0.8)
        estimate = rp.mlls(problem.source_prior, problem.proba)
        prior = np.maximum(estimate.prior, 1e-9)
        error = 1.96 * np.sqrt(rp.bounds.cramer_rao(prior, 1000 * prior).diagonal())
        hits.append(np.abs(estimate.prior - problem.target_prior) <= error)
    assert np.mean(hits) < 0.8


def test_label_shift_test_has_its_size():
    rejected = []
    for seed in range(150):
        problem = make_problem(k=8, n=1500, seed=seed)
        rejected.append(diagnose(problem.source, problem.proba).label_shift < 0.5)
    assert np.mean(rejected) <= 0.09  # 5 % and two standard errors
