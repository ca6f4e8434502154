"""Labels of some target rows: exact rows for every method, evidence that misfit does not lessen for the default."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
from worlds import make_problem, score_outputs

import reprior as rp
from reprior._labels import check_some_labels
from reprior.rows.blocks import ArrayBlocks
from reprior.rows.labelled import LabelledBlocks, SomeBlocks, taken_rows

METHODS = sorted(rp.METHODS)
NAMES = ["ant", "bee", "cat", "dog", "eel"]


def some(y, m, seed=0):
    """Return labels of m random rows, −1 elsewhere."""
    labels = np.full(len(y), -1)
    rows = np.random.default_rng(seed).permutation(len(y))[:m]
    labels[rows] = y[rows]
    return labels


@pytest.fixture(scope="module")
def misled():
    """A pipeline of a classifier that misses a class half of the time, which held-out rows do not show."""
    problem = make_problem(n=2000, separation=1.5, seed=4)
    rng = np.random.default_rng(1)
    proba = problem.proba.copy()
    lost = (problem.y == 2) & (rng.random(2000) < 0.5)
    proba[lost] = proba[problem.y == 0][rng.integers((problem.y == 0).sum(), size=lost.sum())]
    pipe = rp.pipeline(*problem.source.heldout)
    return pipe, proba, problem.y


@pytest.mark.parametrize("method", METHODS)
def test_no_labels_change_nothing(problem, method):
    before = rp.estimate(problem.source, problem.proba, method)
    for labels in (None, np.full(400, -1), [None] * 400, np.full(400, np.nan), [""] * 400):
        after = rp.estimate(problem.source, problem.proba, method, labels=labels)
        np.testing.assert_array_equal(after.prior, before.prior)
        assert after.n_labels == 0


@pytest.mark.parametrize("method", METHODS)
def test_labels_of_all_rows_give_their_mix(problem, method):
    est = rp.estimate(problem.source, problem.proba, method, labels=problem.y)
    mix = np.bincount(problem.y, minlength=5) / 400
    np.testing.assert_allclose(est.shares, mix, atol=1e-6)
    assert (est.n, est.n_labels) == (400, 400)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("m", [1, 30])
def test_a_few_labels_bring_the_estimate_nearer_to_their_classes(problem, method, m):
    labels = np.full(400, -1)
    labels[:m] = 2  # all of one class
    before, after = (rp.estimate(problem.source, problem.proba, method, labels=x) for x in (None, labels))
    assert after.prior[2] > before.prior[2]
    assert after.prior.min() >= 0
    assert after.prior.sum() == pytest.approx(1)
    assert after.n_labels == m
    assert m > 1 or np.abs(after.prior - before.prior).sum() < 0.05
    lower, upper = after.interval()
    assert (lower <= upper).all()


def test_labels_outweigh_a_classifier_that_misleads(misled):
    pipe, proba, y = misled
    true = np.bincount(y, minlength=5) / len(y)
    errors = [np.mean([rp.metrics.kl(true, pipe.estimate(proba, labels=some(y, m, seed), check=False).shares)
                       for seed in range(seeds)]) for m, seeds in ((0, 1), (200, 5), (1000, 3))]  # fmt: skip
    assert errors[0] > 0.05  # outputs alone are far off, and held-out rows do not tell
    assert errors[1] < 0.3 * errors[0]
    assert errors[2] < 0.5 * errors[1]


def test_the_interval_narrows_and_covers(misled):
    pipe, proba, y = misled
    true, widths = np.bincount(y, minlength=5) / len(y), {}
    for m, seeds in ((200, 8), (1000, 4), (2000, 1)):  # all labels are the same for every seed
        intervals = [pipe.estimate(proba, labels=some(y, m, seed), check=False).interval() for seed in range(seeds)]
        widths[m] = np.mean([b - a for a, b in intervals])
        assert np.mean([(a - 1e-9 <= true) & (true <= b + 1e-9) for a, b in intervals]) > 0.8
    assert widths[2000] < widths[1000] < widths[200]
    assert widths[2000] < 1e-6  # what is known of these rows is known


def test_names_are_matched_and_the_unknown_may_be_empty(problem):
    held, y = problem.source.heldout
    pipe = rp.pipeline(pd.DataFrame(held, columns=NAMES), np.array(NAMES)[y])
    frame, labels = pd.DataFrame(problem.proba, columns=NAMES), some(problem.y, 50)
    expected = pipe.estimate(problem.proba, labels=labels).prior
    text = pd.Series(np.where(labels < 0, None, np.array(NAMES)[labels]))
    shuffled = frame[["dog", "ant", "eel", "bee", "cat"]]
    for inputs in (text, text.fillna(""), text.astype("string"), text.tolist(), text.astype("category")):
        np.testing.assert_array_equal(pipe.estimate(shuffled, labels=inputs).prior, expected)
    with pytest.raises(rp.InputError, match="`labels` must hold names of classes; got owl, first at row 7"):
        pipe.estimate(frame, labels=["owl" if i == 7 else name for i, name in enumerate(text)])
    with pytest.raises(rp.InputError, match="lie between 0 and 4; got 5, first at row 3"):
        pipe.estimate(frame, labels=[5 if i == 3 else -1 for i in range(400)])
    with pytest.raises(rp.InputError, match=r"shape \(400,\), one per sample and −1 where unknown; got shape \(399,\)"):
        pipe.estimate(frame, labels=labels[1:])
    with pytest.raises(rp.InputError, match=r"labels\.loc"):
        pipe.estimate(frame, labels=text[::-1])


@pytest.mark.parametrize("form", [str, float, lambda k: f"{k}.0", int])
def test_classes_called_by_numbers_take_labels_of_any_form(problem, form):
    pipe = rp.pipeline(*problem.source.heldout, classes=[str(k) for k in range(5)])
    named = rp.pipeline(*problem.source.heldout, classes=list("abcde"))
    labels = [form(k) if i % 7 == 0 else None for i, k in enumerate(problem.y)]
    letters = ["abcde"[k] if i % 7 == 0 else None for i, k in enumerate(problem.y)]
    estimate = pipe.estimate(problem.proba, labels=labels)
    np.testing.assert_allclose(estimate.prior, named.estimate(problem.proba, labels=letters).prior, atol=1e-12)
    with pytest.raises(rp.InputError, match=r"`labels` must hold names of classes; got 7.*, first at row 14"):
        pipe.estimate(problem.proba, labels=[form(7) if i == 14 else v for i, v in enumerate(labels)])


@pytest.mark.parametrize(("classes", "label"), [(["1", "007"], "7"), (["1", "10"], "1_0"), (["12", "3"], "12.5")])
def test_numbers_that_name_no_class_are_refused(classes, label):
    rows = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]] * 20)
    pipe = rp.pipeline(rows, [classes[0], classes[1], classes[0]] * 20, classes=classes)
    with pytest.raises(rp.InputError, match=f"hold names of classes; got {label}"):
        pipe.estimate(rows, labels=[label] + [None] * 59)


@pytest.mark.parametrize("kind", [int, float, str, object])
@pytest.mark.parametrize("classes", [None, NAMES])
def test_a_label_that_is_masked_is_unknown(problem, kind, classes):
    y = some(problem.y, 30)
    arguments = np.array(NAMES)[y] if kind is str and classes else y.astype(object if kind is str else kind)
    columns = check_some_labels(np.ma.array(arguments, mask=y < 0), "estimate", len(y), 5, classes)
    np.testing.assert_array_equal(columns, y)
    unmasked = check_some_labels(np.ma.array(arguments), "estimate", len(y), 5, classes)
    np.testing.assert_array_equal(unmasked[y >= 0], y[y >= 0])


def test_a_class_may_be_called_minus_one():
    rows, y = [[0.9, 0.1]] * 30 + [[0.2, 0.8]] * 10, [-1] * 30 + [1] * 10
    pipe = rp.pipeline(counts={"-1": 20, "1": 20})
    assert pipe.estimate(rows, labels=y).n_labels == 40
    assert pipe.estimate(rows, labels=[np.nan] * 39 + [1]).n_labels == 1
    assert rp.ebls([1, 1], rows, labels=[-1] * 39 + [1]).n_labels == 1


@pytest.mark.parametrize("method", METHODS)
def test_rows_of_any_kind_take_labels(problem, method):
    labels = some(problem.y, 60)
    expected = rp.estimate(problem.source, problem.proba, method, labels=labels)

    class Odd:
        """Blocks of three sizes."""

        n_classes = 5

        def map_sum(self, fn):
            return fn(problem.proba[:7]) + fn(problem.proba[7:7]) + fn(problem.proba[7:300]) + fn(problem.proba[300:])

    for target in (Odd(), ArrayBlocks(problem.proba), pd.DataFrame(problem.proba)):
        estimate = rp.estimate(problem.source, target, method, labels=labels)
        np.testing.assert_allclose(estimate.prior, expected.prior, atol=1e-7)
        np.testing.assert_allclose(estimate.interval()[0], expected.interval()[0], atol=1e-5)
    order = np.argsort(-problem.proba, axis=1)[:, :4]
    top = order, np.take_along_axis(problem.proba, order, axis=1)
    np.testing.assert_allclose(rp.estimate(problem.source, top, method, labels=labels).prior, expected.prior, atol=2e-3)


def test_a_method_of_ones_own_sees_labelled_rows_as_certain(problem):
    def mean(source, target):
        prior = target.map_sum(lambda block: block.sum(axis=0)) / 400
        return rp.PriorEstimate(prior, prior / source.prior, rp.Status.SOLVED, 1, 400, 0.0, source, target)

    labels = some(problem.y, 60)
    estimate = rp.estimate(problem.source, problem.proba, mean, labels=labels)
    rows = problem.proba.copy()
    rows[labels >= 0] = np.eye(5)[labels[labels >= 0]]
    np.testing.assert_allclose(estimate.prior, rows.mean(axis=0))
    assert estimate.n_labels == 60


def test_of_long_targets_a_sample_of_the_others_decides(monkeypatch, problem):
    big = make_problem(n=20_000, seed=2)
    labels = some(big.y, 500)
    whole = rp.ebls(big.source, big.proba, labels=labels)
    monkeypatch.setattr("reprior.rows.passes.SAMPLE", 16000)
    np.testing.assert_allclose(rp.ebls(big.source, big.proba, labels=labels).prior, whole.prior, atol=0.01)


def test_weights_of_chosen_rows_take_out_the_bias_of_the_choice():
    """Rows of one predicted class are labelled ten times as often: who is not told takes their mix for that of all."""
    problem = make_problem(n=2000, separation=0.8, seed=4)  # few held-out rows: labels count ten times an output
    pipe, proba, y = rp.pipeline(*problem.source.heldout), problem.proba, problem.y
    true = np.bincount(y, minlength=5) / len(y)
    common = int(true.argmax())
    chance = np.where(proba.argmax(axis=1) == common, 0.4, 0.04)
    answer, untold = [], []
    for seed in range(8):
        labels = np.where(np.random.default_rng(seed).random(len(y)) < chance, y, -1)
        weights = (labels >= 0).mean() / chance
        answer.append(pipe.estimate(proba, labels=labels, label_weights=weights, check=False).shares)
        untold.append(pipe.estimate(proba, labels=labels, check=False).shares)
    error = [np.mean(result, axis=0)[common] - true[common] for result in (answer, untold)]
    assert abs(error[0]) < 0.02
    assert abs(error[1]) < 0.05
    even = pipe.estimate(proba, labels=labels, label_weights=np.full(len(y), 7.0), check=False)
    np.testing.assert_array_equal(even.prior, pipe.estimate(proba, labels=labels, check=False).prior)


def test_chosen_labels_that_refute_the_outputs_are_weighed_by_their_chances():
    """Outputs of chosen rows say what a label brings beyond them. If they are wrong, that must not bend the mix."""
    problem = make_problem(n=2000, separation=1.0, seed=3, alpha=5.0)
    y, true = problem.y, np.bincount(problem.y, minlength=5) / 2000
    wrong = problem.proba * np.array([6.0, 1, 1, 1, 1 / 6])
    wrong /= wrong.sum(axis=1, keepdims=True)
    none, errors = rp.ebls(problem.source_prior, wrong), []
    for seed in range(4):
        rows, weights = rp.query(none, n=500, rng=seed)
        labels, label_weights = np.full(2000, -1), np.ones(2000)
        labels[rows], label_weights[rows] = y[rows], weights
        estimate = rp.ebls(problem.source_prior, wrong, labels=labels, label_weights=label_weights)
        by_chance = np.bincount(y[rows], weights, minlength=5) / weights.sum()
        errors.append([rp.metrics.kl(true, prior) for prior in (estimate.prior, by_chance, none.prior)])
    mean, alone, without = np.mean(errors, axis=0)
    assert mean < 1.5 * alone
    assert mean < 0.02 * without


def test_intervals_beside_labels_hold_the_mix_of_these_rows():
    """With half of the rows labelled, and outputs that tell classes well, they are narrow, and hold it all the same."""
    held, narrower = [], []
    for seed in range(12):
        problem = make_problem(separation=1.5, seed=seed)
        pipe, true = rp.pipeline(*problem.source.heldout), np.bincount(problem.y, minlength=5) / 400
        lower, upper = pipe.estimate(problem.proba, labels=some(problem.y, 200, seed), check=False).interval(0.95)
        before = pipe.estimate(problem.proba, check=False).interval(0.95)
        held.append((lower <= true) & (true <= upper))
        narrower.append((upper - lower).mean() / (before.upper - before.lower).mean())
    assert np.mean(held) >= 0.9
    assert np.mean(narrower) < 0.6


def test_a_bias_that_labels_show_moves_the_shares_little_by_little(problem):
    priors = [rp.ebls(problem.source, problem.proba, labels=some(problem.y, m)).prior for m in (0, 1, 2)]
    assert all(np.abs(b - a).sum() < 0.06 for a, b in pairwise(priors))


def test_weights_are_checked(problem):
    labels = some(problem.y, 5)
    with pytest.raises(rp.InputError, match="label_weights` must be given with `labels`"):
        rp.ebls(problem.source, problem.proba, label_weights=np.ones(400))
    with pytest.raises(rp.InputError, match="label_weights` must have shape"):
        rp.ebls(problem.source, problem.proba, labels=labels, label_weights=np.ones(5))
    with pytest.raises(rp.InputError, match="positive and finite where there is a label"):
        rp.ebls(problem.source, problem.proba, labels=labels, label_weights=np.zeros(400))


def test_labels_of_other_rows_are_noticed():
    problem = make_problem(n=1000, separation=4.0, seed=1, alpha=5.0)
    pipe = rp.pipeline(*problem.source.heldout)
    good = pipe.estimate(problem.proba, labels=some(problem.y, 60))
    assert good.checks.labels_conflict == ""
    rolled = some((problem.y + 1) % 5, 60)
    bad = pipe.estimate(problem.proba, labels=rolled)
    assert "Do the labels belong to these samples?" in bad.checks.labels_conflict
    assert "conflict with the predictions" in repr(bad)
    with pytest.warns(UserWarning, match="conflict with the predictions"):
        bad.correct(problem.proba)
    with pytest.raises(rp.InputError, match=r"`labels` must agree with the predictions.*Do the labels belong"):
        pipe.estimate(problem.proba, labels=rolled, on_reject="refuse").correct(problem.proba)
    common = np.argsort(-np.bincount(problem.y, minlength=5))[:2]
    swapped = problem.y.copy()
    swapped[problem.y == common[0]], swapped[problem.y == common[1]] = common[1], common[0]
    half = np.where(np.isin(problem.y, common) & (np.arange(1000) % 9 > 0), problem.y, swapped)
    assert pipe.estimate(problem.proba, labels=some(half, 300)).checks.labels_conflict == ""  # one in nine is no swap
    few = np.isin(problem.y, common) & (np.arange(1000) % 10 > 0)
    estimate = pipe.estimate(problem.proba, labels=np.where(few, -1, swapped)).checks.labels_conflict
    assert f"Samples labelled {common.min()} look like {common.max()}, and vice versa." in estimate


def weak(seed):
    """A classifier that is right in half of its rows, 200 held-out rows, and 600 rows whose mix has not changed."""
    rng = np.random.default_rng(seed)
    y = rng.choice(4, 800, p=[0.35, 0.3, 0.25, 0.1])
    rows = score_outputs(rng, y, 4, 1.2, [0.35, 0.3, 0.25, 0.1])
    return rp.pipeline(rows[:200], y[:200]), rows[200:], y[200:]


def some_labelled(pipe, rows, y, n, *, chosen):
    """Return which rows have a label, the labels of all, and their weights: chosen by `query`, or drawn at random."""
    which, weights = np.random.default_rng(1).permutation(len(rows))[:n], None
    if chosen:
        which, some_weights = rp.query(pipe.estimate(rows), n=n)
        weights = np.ones(len(rows))
        weights[which] = some_weights
    labels = np.full(len(rows), -1)
    labels[which] = y[which]
    return which, labels, weights


@pytest.mark.parametrize("chosen", [True, False])
def test_a_mix_that_only_the_labels_have_moved_to_is_noticed(chosen):
    """Corrected outputs agree with labels that are nearly all the same: only the mean output still tells."""
    for seed in range(4):
        pipe, rows, y = weak(seed)
        which, labels, weights = some_labelled(pipe, rows, y, 100, chosen=chosen)
        good = pipe.estimate(rows, labels=labels, label_weights=weights)
        assert good.checks.labels_conflict == ""
        assert good.checks.shift_p > 0.001
        labels[which] = 0
        same = pipe.estimate(rows, labels=labels, label_weights=weights)
        assert "all 100 labels are 0, but about" in same.checks.labels_conflict
        labels[which[:3]] = 1, 2, 3
        bad = pipe.estimate(rows, labels=labels, label_weights=weights)
        assert "the mean prediction moved only " in bad.checks.labels_conflict
        for wrong in (same, bad):
            with pytest.warns(UserWarning, match="Are the labels right"):
                wrong.correct(rows)
            with pytest.raises(rp.InputError, match="Are the labels right"):
                replace(wrong, on_reject="refuse").correct(rows)


@pytest.mark.parametrize("chosen", [True, False])
def test_labels_all_of_the_class_that_is_frequent_now_are_noticed(chosen):
    """Outputs have moved there too, only less far. Labels of one class are no news where that class is all there is."""
    for seed in range(4):
        rng = np.random.default_rng(seed)
        y = np.concatenate([rng.choice(3, 300), rng.choice(3, 600, p=[0.7, 0.2, 0.1])])
        rows = score_outputs(rng, y, 3, 1.5, scale=1)
        pipe, rows, y = rp.pipeline(rows[:300], y[:300], classes=["dog", "cat", "bee"]), rows[300:], y[300:]
        which, labels, weights = some_labelled(pipe, rows, y, 50, chosen=chosen)
        good = pipe.estimate(rows, labels=labels, label_weights=weights)
        assert good.checks.labels_conflict == ""
        labels[which] = 0
        bad = pipe.estimate(rows, labels=labels, label_weights=weights)
        assert "all 50 labels are dog" in bad.checks.labels_conflict
        assert bad.checks.log_evidence == good.checks.log_evidence  # the rows are as they should be
        dogs = np.flatnonzero(y == 0)
        true = pipe.estimate(rows[dogs], labels=np.where(np.arange(len(dogs)) < 50, 0, -1))
        assert true.checks.labels_conflict == ""


def test_right_labels_beside_a_weak_classifier_and_few_held_out_rows_are_believed():
    rng, k = np.random.default_rng(0), 10
    for _ in range(30):
        source, target = rng.dirichlet(np.full(k, 3.0)), rng.dirichlet(np.full(k, 0.3))
        y = np.concatenate([rng.choice(k, 200, p=source), rng.choice(k, 1000, p=target)])
        rows = score_outputs(rng, y, k, 0.5, source)
        estimate = rp.pipeline(rows[:200], y[:200]).estimate(rows[200:], labels=some(y[200:], 30))
        assert estimate.checks.labels_conflict == ""


@pytest.mark.parametrize("m", [1, 5, 25, 60])
def test_a_label_that_nobody_expected_is_no_proof_of_a_shift(m):
    rng, k, low = np.random.default_rng(0), 10, 0
    for _ in range(30):
        y = rng.choice(k, 800)
        rows = score_outputs(rng, y, k, 3)
        estimate = rp.pipeline(rows[:500], y[:500]).estimate(rows[500:], labels=some(y[500:], m))
        low += estimate.checks.shift_p < 0.01
    assert low <= 2


def test_labels_tell_of_a_shift_that_the_outputs_hide():
    pipe, rows, y = weak(0)
    order = np.argsort(y == 3)[::-1]
    rows, y = rows[order][:120], y[order][:120]  # half of them of the rarest class
    assert rp.metrics.kl(np.bincount(y, minlength=4) / 120, pipe.source.prior) > 0.3
    estimate = pipe.estimate(rows, labels=some(y, 60))
    assert estimate.checks.shift_p < pipe.estimate(rows).checks.shift_p
    assert estimate.checks.shift_p < 1e-6
    assert "The predictions have shifted" in repr(estimate)


def test_labels_that_were_not_drawn_by_chance_are_noticed():
    problem = make_problem(n=1500, separation=2.0, seed=2, alpha=5.0)
    pipe, y = rp.pipeline(*problem.source.heldout), problem.y
    rng, common = np.random.default_rng(0), np.argsort(-np.bincount(y))[:2]
    for m in (10, 50, 400):
        for _ in range(5):
            drawn = np.where(np.isin(np.arange(1500), rng.permutation(1500)[:m]), y, -1)
            assert pipe.estimate(problem.proba, labels=drawn).checks.labels_conflict == ""
    for seed in range(5):  # chosen, but by known chances
        rows, weights = rp.query(pipe.estimate(problem.proba), n=100, rng=seed)
        labels, label_weights = np.full(1500, -1), np.ones(1500)
        labels[rows], label_weights[rows] = y[rows], weights
        estimate = pipe.estimate(problem.proba, labels=labels, label_weights=label_weights)
        assert estimate.checks.labels_conflict == ""
        unweighted = pipe.estimate(problem.proba, labels=labels)
        assert "not a random sample" in unweighted.checks.labels_conflict
    picked = np.where(np.isin(y, common) & (np.arange(1500) < 300), y, -1)
    estimate = pipe.estimate(problem.proba, labels=picked)
    assert "The labelled samples are not a random sample" in estimate.checks.labels_conflict
    with pytest.warns(UserWarning, match="Label random samples"):
        estimate.correct(problem.proba)


def test_blocks_with_labels_and_without(problem):
    labels = some(problem.y, 60)
    target = LabelledBlocks(ArrayBlocks(problem.proba), labels)
    rest = SomeBlocks(target.raw, labels < 0)
    np.testing.assert_array_equal(np.concatenate(rest.map_sum(lambda b: [b])), problem.proba[labels < 0])
    np.testing.assert_array_equal(taken_rows(target.raw, labels >= 0), problem.proba[labels >= 0])
    rows = np.concatenate(target.map_sum(lambda block: [block]))
    np.testing.assert_array_equal(rows[labels >= 0], np.eye(5)[labels[labels >= 0]])
    np.testing.assert_array_equal(rows[labels < 0], problem.proba[labels < 0])


@pytest.mark.parametrize("seed", range(8))
def test_weights_that_outweigh_the_rows_leave_a_prior(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows, labels = rng.dirichlet([0.05, 0.05], 43), np.full(43, -1)
    labels[:33] = 0
    weights = np.where(rng.random(43) < 0.1, 10.0, 0.1)
    estimate = rp.ebls([1, 1], rows, labels=labels, label_weights=weights)
    assert np.isfinite(estimate.prior).all()
    assert np.isfinite(np.stack(estimate.interval())).all()


def test_some_labels_in_an_array_of_short_text_may_be_fewer_letters_than_a_class_has():
    columns = check_some_labels(np.array(["", "ox"]), "test", 2, 2, ("elephant", "ox"))
    assert columns.tolist() == [-1, 1]


def test_an_output_of_zero_is_no_proof_against_labels_of_one_class():
    """Trees and neighbours give exact zeros: one strange row among sixty refused them all."""
    rng = np.random.default_rng(0)
    sure = rng.uniform(0.97, 1.0, 400)
    rows = np.stack([sure, 1 - sure], axis=1)
    rows[0] = 0.0, 1.0
    pipe = rp.pipeline(rows[200:], (rng.random(200) > rows[200:, 0]).astype(int), calibration="none")
    labels = np.where(np.arange(200) < 60, 0, -1)
    assert pipe.estimate(rows[:200], labels=labels).checks.labels_conflict == ""


def test_the_accuracy_of_rows_that_are_all_labelled_is_known_whatever_they_weigh():
    rng = np.random.default_rng(0)
    y = rng.choice(4, 700)
    rows = score_outputs(rng, y, 4, 1.2, scale=1)
    pipe = rp.pipeline(rows[:300], y[:300])
    est = pipe.estimate(rows[300:], labels=y[300:], label_weights=rng.uniform(0.5, 2.0, 400), check=False)
    right = np.mean(np.asarray(est.correct(rows[300:])).argmax(axis=1) == y[300:])
    diagnosis = rp.diagnose(pipe.source, est.target, estimate=est)
    assert diagnosis.accuracy[1] == pytest.approx(right, abs=1e-9)


def test_weights_are_checked_for_methods_that_need_none(problem):
    labels = some(problem.y, 60)
    with pytest.raises(rp.InputError, match="label_weights` must be positive and finite"):
        rp.estimate(problem.source, problem.proba, "mlls", labels=labels, label_weights=np.full(len(labels), np.nan))


def test_diagnose_says_that_labels_contradict_the_outputs():
    problem = make_problem(n=600, separation=2.0, seed=1)
    pipe, labels = rp.pipeline(*problem.source.heldout), np.full(600, -1)
    labels[:150] = np.roll(problem.y[:150], 1)
    est = pipe.estimate(problem.proba, labels=labels)
    diagnosis = rp.diagnose(pipe.source, est.target, estimate=est)
    assert est.checks.labels_conflict
    assert str(diagnosis).startswith(est.checks.labels_conflict)
    assert diagnosis.may_harm


def test_intervals_with_labels_cover_and_shrink():
    covered, widths = {0: [], 20: [], 100: []}, {0: [], 20: [], 100: []}
    for seed in range(12):
        problem = make_problem(n=800, separation=2.0, seed=seed, alpha=3.0)
        pipe = rp.pipeline(*problem.source.heldout)
        true = np.bincount(problem.y, minlength=5) / 800
        for m in covered:
            lower, upper = pipe.estimate(problem.proba, labels=some(problem.y, m) if m else None).interval(0.95)
            covered[m].append((lower <= true) & (true <= upper))
            widths[m].append(upper - lower)
    assert all(np.mean(hits) > 0.88 for hits in covered.values())
    assert np.mean(widths[0]) > np.mean(widths[20]) > np.mean(widths[100])
