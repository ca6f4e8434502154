"""Prediction sets: they hold the true class as often as promised, from nothing but one number a held-out row."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from worlds import gaussian_outputs, make_problem

import reprior as rp
from reprior.estimates.sets import MIN_KEPT_PER_CLASS, Scores, scores, scores_of
from reprior.rows.calibrated import RIDGE

pytestmark = pytest.mark.filterwarnings("ignore:.* of the correction is applied")  # not the point here

K = 5
MEANS = np.random.default_rng(7).normal(size=(K, 4))
SOURCE = np.array([0.5, 0.25, 0.12, 0.08, 0.05])
TARGET = np.array([0.05, 0.08, 0.12, 0.25, 0.5])


def outputs(rng, y):
    """Return the exact posteriors under SOURCE of points of these classes."""
    return gaussian_outputs(rng, y, MEANS, SOURCE)


def drawn(seed, n_held, n=1500):
    rng = np.random.default_rng(seed)
    held, y = rng.choice(K, n_held, p=SOURCE), rng.choice(K, n, p=TARGET)
    held[:K] = np.arange(K)
    return outputs(rng, held), held, outputs(rng, y), y


def coverage(sets, y):
    return sets[np.arange(len(y)), y].mean()


def test_sets_cover_as_promised_where_plain_ones_do_not():
    ours, plain, by_class = [], [], []
    for seed in range(30):
        held, held_y, rows, y = drawn(seed, 500)
        pipe = rp.pipeline(held, held_y)
        estimate = pipe.estimate(rows, check=False)
        ours.append(coverage(estimate.prediction_sets(rows), y))
        by_class.append(coverage(estimate.prediction_sets(rows, by_class=True), y))
        own = np.sort(held[np.arange(len(held_y)), held_y])
        plain.append(coverage(rows >= own[int(0.1 * (len(own) + 1)) - 1], y))
    assert np.mean(plain) < 0.8
    assert 0.885 < np.mean(ours) < 0.92
    assert 0.885 < np.mean(by_class) < 0.95


@pytest.mark.parametrize("level", [0.5, 0.8, 0.95])
def test_every_class_is_covered_by_itself_if_asked(level):
    inside = np.zeros((2, K))
    for seed in range(20):
        held, held_y, rows, y = drawn(seed, 800)
        estimate = rp.ebls(rp.summarize(held, held_y), rows)
        sets = estimate.prediction_sets(rows, level, by_class=True)[np.arange(len(y)), y]
        inside += np.bincount(y, sets, K), np.bincount(y, minlength=K)
    np.testing.assert_allclose(inside[0] / inside[1], level, atol=0.04)


def test_the_promise_is_exact_for_a_known_mix_and_the_fewest_rows():
    """With 9 rows of one mix, 90 % is the least that one row among ten can be: no set may be left out unduly."""
    rng, hits = np.random.default_rng(0), 0
    for _ in range(4000):
        own = rng.random(10)
        kept = Scores(own[None, :9], np.zeros(9, np.intp), np.array([[1.0, 0.0]]))
        hits += own[9] >= kept.cutoffs(0.9, by_class=False)[0]
    assert abs(hits / 4000 - 0.9) < 0.02
    assert kept.cutoffs(0.95, by_class=False)[0] == 0.0  # more than nine rows can promise: every class is in
    assert kept.cutoffs(0.95, by_class=True)[0] == 0.0


def test_cutoffs_are_those_of_a_loop_over_all_rows():
    rng = np.random.default_rng(3)
    y, own, mix = rng.choice(4, 60), rng.random(60), rng.dirichlet(np.ones(4))
    cutoffs = Scores(own[None], y, mix[None]).cutoffs(0.8, by_class=False)
    counts = np.bincount(y, minlength=4)
    for c in range(4):
        for p in rng.random(50):
            new, weight = mix[c] / counts[c], mix[y] / counts[y]
            as_low = weight[own <= p].sum() + new
            assert (p >= cutoffs[c]) == (as_low > 0.2 * (weight.sum() + new))


def test_an_uncertain_estimate_makes_sets_larger(problem):
    source, prior = problem.source, problem.target_prior
    sure = scores_of(source, None, prior, None, prior / source.prior).cutoffs(0.9, by_class=False)
    unsure = scores_of(source, None, prior, 0.7 * prior, prior / source.prior).cutoffs(0.9, by_class=False)
    assert (unsure <= sure).all()
    assert (unsure < sure).any()


def test_a_row_is_judged_by_biases_fitted_without_it():
    held, y, _, _ = drawn(0, 120)
    cal = rp.calibrate.fit(held, y, kind="bias-corrected", ridge=RIDGE, shrink=1.0)
    rows, result = cal(held), cal.left_out(cal(held), y)
    for i in (0, 3, 17, 60):
        others = np.arange(len(y)) != i
        refitted = rp.calibrate.fit(held[others], y[others], kind="bias-corrected", ridge=RIDGE, shrink=1.0)
        wanted = refitted(held[i : i + 1])[0]
        assert abs(result[i] - wanted).max() < 0.5 * abs(rows[i] - wanted).max() + 2e-3
        assert result[i, y[i]] < rows[i, y[i]]


def test_what_is_kept_is_bounded_and_says_the_same(problem):
    rng = np.random.default_rng(0)
    y, own = rng.choice(700, 300_000), rng.random(300_000)
    mix = np.full((1, 700), 1 / 700)
    whole = Scores(own[None], y, mix)
    few = whole.thinned()
    assert np.bincount(few.y).max() == MIN_KEPT_PER_CLASS
    for by_class in (False, True):
        np.testing.assert_allclose(
            few.cutoffs(0.9, by_class=by_class), whole.cutoffs(0.9, by_class=by_class), atol=0.04
        )
    estimate = rp.ebls(problem.source, problem.proba)
    small = estimate.detach()
    assert small.source.heldout is None
    np.testing.assert_array_equal(small.prediction_sets(problem.proba), estimate.prediction_sets(problem.proba))
    np.testing.assert_array_equal(small.detach().prediction_sets(problem.proba), small.prediction_sets(problem.proba))


def test_frames_come_back_as_frames_and_classes_are_matched_by_name(problem):
    names = ["ant", "bee", "cat", "dog", "eel"]
    held, y = problem.source.heldout
    frame = pd.DataFrame(problem.proba, columns=names, index=np.arange(7, 7 + len(problem.proba)))
    estimate = rp.pipeline(pd.DataFrame(held, columns=names), np.array(names)[y]).estimate(frame)
    sets = estimate.prediction_sets(frame[names[::-1]])
    assert list(sets.columns) == names[::-1]
    assert list(sets.index) == list(frame.index)
    np.testing.assert_array_equal(sets[names], estimate.prediction_sets(problem.proba))


def test_a_saved_pipeline_gives_the_same_sets(problem, tmp_path):
    pipe = rp.pipeline(*problem.source.heldout)
    pipe.save(tmp_path / "model.reprior")
    expected = pipe.estimate(problem.proba).prediction_sets(problem.proba, level=0.8)
    sets = rp.load(tmp_path / "model.reprior").estimate(problem.proba).prediction_sets(problem.proba, level=0.8)
    np.testing.assert_array_equal(sets, expected)


def test_what_cannot_be_promised_is_refused(problem):
    with pytest.raises(rp.InputError, match="held-out samples with labels"):
        rp.ebls(problem.source_prior, problem.proba).prediction_sets(problem.proba)
    estimate = rp.ebls(problem.source, problem.proba)
    for level in (0, 1, 1.5, "0.9", None):
        with pytest.raises(rp.InputError, match="above 0 and below 1"):
            estimate.prediction_sets(problem.proba, level)
    with pytest.raises(rp.InputError, match="classes"):
        estimate.prediction_sets(problem.proba[:, :3])
    with pytest.raises(rp.InputError, match="by_class"):
        estimate.prediction_sets(problem.proba, by_class="yes")


def test_sets_of_groups(problem):
    groups = rp.groups(problem.source, np.arange(len(problem.y)) % 3, problem.proba)
    assert groups[1].prediction_sets(problem.proba).any(axis=1).mean() > 0.8


def test_an_unseen_class_can_be_in_a_set():
    held, y, rows, _ = drawn(0, 300)
    few = y != 4
    estimate = rp.pipeline(held[few], y[few]).estimate(rows, check=False)
    assert estimate.prediction_sets(rows)[:, 4].any()
    assert estimate.prediction_sets(rows, by_class=True)[:, 4].all()
    assert scores(estimate).own.shape[1] == few.sum()


def test_sets_of_more_promise_contain_those_of_less():
    problem = make_problem(n=800, seed=4)
    estimate = rp.ebls(problem.source, problem.proba)
    for by_class in (False, True):
        before = np.zeros(problem.proba.shape, bool)
        for level in (0.3, 0.6, 0.9, 0.99):
            sets = estimate.prediction_sets(problem.proba, level, by_class=by_class)
            assert (before <= sets).all()
            before = sets


def test_errors_are_told_by_the_name_of_what_was_called(problem) -> None:
    for made in (rp.ebls(problem.source, problem.proba), rp.pipeline(*problem.source.heldout).estimate(problem.proba)):
        with pytest.raises(rp.InputError, match=r"^prediction_sets: `proba` must have rows that sum to 1"):
            made.prediction_sets(2 * problem.proba)
        with pytest.raises(rp.InputError, match=r"^correct: `proba` must have rows that sum to 1"):
            made.correct(2 * problem.proba)
