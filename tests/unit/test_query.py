"""Which rows to label: known chances, weights that undo the choice, and more told than by random rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm
from worlds import make_problem, score_outputs

import reprior as rp
from reprior import datasets
from reprior.assess import query as module
from reprior.assess.query import inclusion, information_value, label_values, precision, systematic
from reprior.estimates.verdict import label_advice
from reprior.rows.correction import correct_rows


@pytest.fixture(scope="module")
def data():
    loaded = datasets.load("banking77")
    pipe = rp.pipeline(loaded.heldout_proba, loaded.heldout_y, counts=loaded.counts)
    prior = rp.simulate.shuffled_long_tail(77, 0.02, rng=1)
    return pipe, rp.simulate.resample(loaded.pool_proba, loaded.pool_y, prior, n=1500, rng=1)


def test_chances_add_up_and_are_kept():
    rng = np.random.default_rng(0)
    chance = inclusion(rng.exponential(size=200) ** 3, 50)
    assert chance.sum() == pytest.approx(50)
    assert chance.max() <= 1
    counts = np.zeros(200)
    for _ in range(4000):
        picked = systematic(chance, 50, rng)
        assert len(np.unique(picked)) == 50
        counts[picked] += 1
    assert np.abs(counts / 4000 - chance).max() < 0.04


def test_weights_undo_the_choice():
    """Weighted by what `query` says, the chosen rows have the mean output of all; as they are, they do not."""
    problem = make_problem(n=3000, separation=2.0, seed=1)
    est = rp.ebls(problem.source, problem.proba)
    means, plain, output = [], [], problem.proba[:, 3]
    for seed in range(60):
        rows, weights = rp.query(est, 100, rng=seed)
        assert len(np.unique(rows)) == 100
        assert (np.diff(rows) > 0).all()
        means.append(weights @ output[rows] / 100)
        plain.append(output[rows].mean())
    assert np.mean(plain) > output.mean() + 0.02
    assert abs(np.mean(means) - output.mean()) < 0.3 * (np.mean(plain) - output.mean())


def test_chosen_rows_tell_more_than_random_ones(data):
    pipe, target = data
    est, n = pipe.estimate(target.proba, check=False), len(target.y)
    chosen, random = [], []
    for seed in range(4):
        rows, weights = rp.query(est, 300, rng=seed)
        for result, (at, w) in (
            (chosen, (rows, weights)),
            (random, (np.random.default_rng(seed).permutation(n)[:300], np.ones(300))),
        ):
            labels, label_weights = np.full(n, -1), np.ones(n)
            labels[at], label_weights[at] = target.y[at], w
            new = pipe.estimate(target.proba, labels=labels, label_weights=label_weights, check=False)
            result.append(rp.metrics.kl(target.prior, new.prior))
    assert np.mean(chosen) < 0.85 * np.mean(random)


def test_a_row_between_classes_that_err_against_each_other_tells_most(monkeypatch):
    """Classes 0 and 1 are confused in most rows, so that one has what the other lacks; 0 and 2 hardly ever are."""
    pair, apart = [0.48, 0.48, 0.02, 0.02], [0.48, 0.02, 0.48, 0.02]
    rows = np.array([pair] * 400 + [[0.01, 0.01, 0.97, 0.01]] * 200 + [[0.01, 0.01, 0.01, 0.97]] * 200 + [apart] * 4)
    est = rp.ebls(np.ones(4), rows)
    gain, likely, sure = label_values(est.target, len(rows), est, 20)
    assert gain[0] > 1.5 * gain[-1] > 0
    assert (gain >= 0).all()
    np.testing.assert_array_equal(likely[400:600], 2)
    assert sure[400] > sure[0]
    monkeypatch.setattr(module, "DIAGONAL_CLASSES", 3)  # without K×K matrices each class stands for itself
    alone, _, _ = label_values(est.target, len(rows), est, 20)
    assert alone[0] / alone[-1] < gain[0] / gain[-1]


def test_rounds_ask_for_new_rows_until_none_is_left():
    problem = make_problem(n=120, seed=1)
    pipe = rp.pipeline(*problem.source.heldout)
    labels, weights, asked = np.full(120, -1), np.ones(120), []
    for _ in range(3):
        est = pipe.estimate(problem.proba, labels=labels, label_weights=weights, check=False)
        rows, w = rp.query(est, 50)
        asked.append(rows)
        labels[rows], weights[rows] = problem.y[rows], w
    assert [len(rows) for rows in asked] == [50, 50, 20]
    assert len(np.unique(np.concatenate(asked))) == 120
    np.testing.assert_allclose(w, 1)  # all that are left have the same chance, 1
    est = pipe.estimate(problem.proba, labels=labels)
    np.testing.assert_allclose(est.shares, np.bincount(problem.y, minlength=5) / 120)
    with pytest.raises(rp.InputError, match="have samples without a label; got labels for all 120 rows"):
        rp.query(est)


@pytest.mark.parametrize("method", sorted(rp.METHODS))
def test_estimates_of_every_method_and_rows_of_any_kind_can_be_asked(method):
    problem = make_problem(n=500, seed=1)

    class Odd:
        n_classes = 5

        def map_sum(self, fn):
            return fn(problem.proba[:7]) + fn(problem.proba[7:300]) + fn(problem.proba[300:])

    expected = rp.query(rp.estimate(problem.source, problem.proba, method), 20)
    chosen = rp.query(rp.estimate(problem.source, Odd(), method), 20)
    assert len(chosen.rows) == 20
    assert len({*chosen.rows} & {*expected.rows}) >= 18  # intervals differ in the last digits
    assert np.isfinite(chosen.weights).all()


def test_what_cannot_be_asked_is_refused(problem):
    est = rp.ebls(problem.source, problem.proba)
    with pytest.raises(rp.InputError, match="have its samples"):
        rp.query(est.detach())
    with pytest.raises(rp.InputError, match="`n` must be a whole number"):
        rp.query(est, 0)
    assert len(rp.query(est, 10_000).rows) == 400


@pytest.mark.parametrize("n_labels", [50, 300, 900])
def test_the_more_rows_of_a_kind_are_drawn_the_less_the_next_one_tells(data, n_labels):
    """Chances that know of each other leave less open than those by any power of what each row tells alone."""
    pipe, target = data
    est, n = pipe.estimate(target.proba, check=False), len(target.y)
    prior = np.maximum(est.shares, 0.1 / n)
    rows = correct_rows(pipe.calibrate(target.proba), est.weights)
    reference = precision(est.target, n, est, prior)

    def left_open(often: np.ndarray) -> float:
        chance = inclusion(often, n_labels)
        after = np.linalg.inv(reference + np.diag(chance @ rows) - (rows.T * chance) @ rows)
        return float(prior @ np.diag(after))

    often, _, _ = label_values(est.target, n, est, n_labels)
    value = np.linalg.inv(reference)
    alone = information_value(rows, (value * prior) @ value)
    together, even = left_open(often), left_open(np.ones(n))
    assert together < min(left_open(alone**power) for power in (0.5, 1.0, 1.5, 2.0, 3.0))
    assert together < 0.9 * even


@pytest.mark.parametrize("right", ["corrected", "calibrated"])
def test_as_many_labels_as_query_says_settle_it(right):
    """Labels of label shift, and labels that agree with calibrated probabilities, as if nothing had shifted."""
    settled, truly = [], []
    for seed in range(8):
        rng = np.random.default_rng(seed)
        prior, k = rp.simulate.shuffled_long_tail(6, 0.2, rng=rng), 6
        heldout_y, y = rng.choice(k, 800), rng.choice(k, 2000, p=prior)
        pipe = rp.pipeline(score_outputs(rng, heldout_y, k, 1.5), heldout_y)
        proba = score_outputs(rng, y, k, 1.5)
        est = pipe.estimate(proba)
        needed = rp.query(est).labels_needed
        assert needed == est.checks.labels_needed
        if right == "calibrated":
            y = (pipe.calibrate(proba).cumsum(axis=1) > rng.random((len(y), 1))).argmax(axis=1)
        for _ in range(4):
            labels = np.full(len(y), -1)
            some = rng.choice(len(y), needed, replace=False)
            labels[some] = y[some]
            new = pipe.estimate(proba, labels)
            settled.append(new.checks.labels_needed == 0)
            truly.append((new.checks.label_shift > 0.5) == (right == "corrected"))
    assert np.mean(settled) > 0.6
    assert np.mean(truly) > 0.85


def test_labels_needed_grow_as_the_correction_shrinks_and_have_a_cap():
    rows = np.random.default_rng(0).dirichlet(np.ones(4), 500)
    weights = np.array([3.0, 1.0, 0.5, 0.2])
    needed = [module.labels_needed(rows, weights**power, np.ones(4)) for power in (1.0, 0.5, 0.1, 0.0)]
    assert needed[0] < needed[1] < needed[2] < needed[3] == module.MAX_LABELS
    # both sides times any weights: only their ratio, and the probabilities that it is applied to, matter
    moved = correct_rows(rows, 1 / weights)
    assert module.labels_needed(moved, weights * weights, weights) == needed[0]
    assert module.labels_needed(rows, weights, np.ones(4), so_far=-np.log(20)) == 0


def test_the_decisive_evidence_is_what_its_formula_gives():
    mean = module.DECISIVE
    assert norm.sf(np.log(20), mean, np.sqrt(2 * mean)) == pytest.approx(0.8, abs=0.003)


@pytest.mark.parametrize(
    ("needed", "unlabelled", "sentence"),
    [
        (None, 300, " Label some random samples."),
        (0, 300, ""),
        (1, 300, " Label about 1 random sample."),
        (300, 300, " Label about 300 random samples."),
        (301, 300, " Even labels of all samples might not decide."),
        (10_000, 50_000, " Even 10,000 labels might not decide."),
    ],
)
def test_advice_on_labels_is_possible_to_follow(needed, unlabelled, sentence):
    assert label_advice("Label {}.", needed, unlabelled) == sentence


def test_a_small_batch_is_not_told_to_label_more_samples_than_it_has():
    rng = np.random.default_rng(0)
    y = rng.choice(3, 900)
    rows = score_outputs(rng, y, 3, 1.5)
    est = rp.pipeline(rows[:600], y[:600]).estimate(rows[600:])
    est = replace(est, acts=est.acts._replace(share=0.1), checks=est.checks._replace(labels_needed=10_000))
    with pytest.warns(UserWarning, match=r"Even labels of all samples might not decide\.$"):
        est.correct(rows[600:])
    with pytest.raises(rp.InputError, match=r"Even labels of all samples might not decide\. To correct anyway"):
        replace(est, on_reject="refuse").correct(rows[600:])
