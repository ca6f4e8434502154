"""Pipelines: the defaults, the pooled prior, and selection by simulated shifts."""

import subprocess
import sys
from pathlib import Path
from time import process_time

import numpy as np
import pytest
from worlds import gaussian_outputs, posteriors, softmax, two_gaussians

import reprior as rp
from reprior import InputError, calibrate, datasets, ebls, metrics, simulate, summarize
from reprior.pipelines.fit import pipeline
from reprior.pipelines.mismatch import label_mismatch
from reprior.pipelines.select import select
from reprior.pipelines.source import implied_prior, pooled_prior, tilt_of


def outputs(n, prior, *, sharpen=1.0, seed=0, carried=None):
    """Rows from `prior` of a Gaussian classifier whose outputs carry the prior `carried`."""
    rng = np.random.default_rng(seed)
    k = len(prior)
    centres = np.random.default_rng(7).normal(size=(k, 6))
    y = rng.choice(k, n, p=prior)
    exact = gaussian_outputs(rng, y, 1.2 * centres, prior if carried is None else carried)
    return softmax(sharpen * np.log(exact)), y


EPS = simulate.long_tail(8, 0.2)
COUNTS = np.round(800 * EPS)


def test_the_default_is_temperature_with_biases_the_carried_prior_and_ebls_around_the_training_mix():
    held, y = outputs(300, EPS, sharpen=2.0)
    pipe = pipeline(held, y, counts=COUNTS)
    assert (pipe.calibrator.kind, pipe.method) == ("bias-corrected", "ebls")
    assert pipe.source.made == "training counts and mean held-out prediction"
    np.testing.assert_array_equal(pipe.options["base"], COUNTS / COUNTS.sum())
    target, y_new = outputs(2000, EPS[::-1], sharpen=2.0, seed=1, carried=EPS)
    by_hand = ebls(pipe.source, pipe.calibrator(target), base=COUNTS)
    np.testing.assert_allclose(pipe.estimate(target, check=False).prior, by_hand.prior, rtol=1e-12)
    np.testing.assert_allclose(pipe.estimate(target, on_reject="ignore").prior, by_hand.prior, rtol=1e-12)
    acts = pipe.estimate(target).acts
    assert acts.log_evidence > 0
    assert acts.share > 0.8
    np.testing.assert_allclose(pipe.correct(target, by_hand), by_hand.correct(pipe.calibrator(target)))
    truth = np.bincount(y_new, minlength=8) / 2000
    assert metrics.kl(truth, by_hand.shares) < 0.5 * metrics.kl(truth, ebls(EPS, target).shares)


def test_a_free_bias_carries_the_held_out_mix_and_one_held_back_what_training_gave():
    rng = np.random.default_rng(0)
    rows = rng.dirichlet([6.0, 3.0, 0.03], 500)  # two classes of which rows say much, and one of which they say little
    counts = np.array([300.0, 300.0, 30.0])
    mean, pooled = rows.mean(axis=0), pooled_prior(rows, counts)
    np.testing.assert_allclose(implied_prior(rows, counts, ridge=1e-9), mean, rtol=1e-6)
    constant = np.tile(mean, (500, 1))  # outputs that do not vary carry their mean, whatever the counts
    np.testing.assert_allclose(implied_prior(constant, counts, ridge=1e12), mean, rtol=1e-6)
    result = implied_prior(rows, counts, ridge=10.0)
    np.testing.assert_allclose(result[0] / result[1], mean[0] / mean[1], rtol=0.1)
    near = (result[2] - mean[2]) / (pooled[2] - mean[2])  # of the way to the pooled one
    assert 0.3 < near < 1


def test_outputs_whose_biases_are_found_to_be_none_carry_the_training_counts():
    """Ten held-out rows a class say less about that than the training rows do."""
    rng, counts = np.random.default_rng(0), np.full(100, 200.0)
    z = rng.normal(size=(1000, 100))
    z[np.arange(1000), rng.integers(100, size=1000)] += 2.0
    rows = softmax(2.0 * z)
    pooled = pooled_prior(rows, counts)
    np.testing.assert_allclose(implied_prior(rows, counts, ridge=1e6), pooled, rtol=0.01)
    assert np.abs(np.log(implied_prior(rows, counts, ridge=10.0) / pooled)).max() > 0.05


def test_held_out_rows_of_another_mix_than_the_counts_are_put_back_to_it():
    d = datasets.load("banking77")
    k, trained = len(d.counts), d.counts / d.counts.sum()
    half = np.random.default_rng(0).permutation(len(d.pool_y)) % 2 == 0
    shifted = simulate.shuffled_long_tail(k, 0.02, rng=0)
    target = simulate.resample(d.pool_proba[~half], d.pool_y[~half], shifted, n=2000, rng=2)
    kl, source = {}, {}
    for mix, prior in (("training", trained), ("flat", np.full(k, 1 / k))):
        held = simulate.resample(d.pool_proba[half], d.pool_y[half], prior, n=1000, rng=1)
        pipe = pipeline(held.proba, held.y, counts=d.counts)
        kl[mix], source[mix] = metrics.kl(target.prior, pipe.estimate(target.proba).prior), pipe.source
    unaware = pipeline(held.proba, held.y)
    assert kl["flat"] < 1.25 * kl["training"]
    assert kl["flat"] < metrics.kl(target.prior, unaware.estimate(target.proba).prior)
    assert metrics.kl(trained, source["flat"].prior) < 0.01
    np.testing.assert_allclose(source["flat"].confusion.sum(axis=0), trained, rtol=0.15)
    shares = source["flat"].hard_confusion.sum(axis=0)
    np.testing.assert_allclose(shares, source["flat"].confusion.sum(axis=0))


def test_labels_that_scatter_by_chance_leave_the_mix_alone():
    rng = np.random.default_rng(0)
    for counts in (np.array([100.0, 900.0]), np.maximum(1.0, np.round(5000 * simulate.long_tail(200, 0.001)))):
        prior = counts / counts.sum()
        assert all(tilt_of(rng.choice(len(prior), 300, p=prior), counts) is None for _ in range(200))
        assert tilt_of(rng.choice(len(prior), 300), counts) is not None


def test_a_prior_can_stand_alone():
    pipe = pipeline(prior=np.full(30, 1 / 30))
    assert (pipe.method, pipe.options, pipe.calibrator) == ("ebls", {}, None)


def test_with_counts_calibrated_outputs_have_the_mix_of_training():
    """So nothing is changed if nothing has shifted, and only the ratio of output to source prior matters."""
    gain = []
    for seed in range(8):
        how = {"carried": np.full(8, 1 / 8)}  # trained with class weights: biases are needed
        held, y = outputs(200, EPS, seed=seed, **how)
        pipe, alone = pipeline(held, y, counts=COUNTS), pipeline(held, y)
        np.testing.assert_allclose(pipe.source.prior, COUNTS / COUNTS.sum())
        target, labels = outputs(2000, EPS, seed=100 + seed, **how)
        np.testing.assert_allclose(pipe.correct(target, COUNTS), pipe.calibrate(target), atol=1e-12)
        own = (np.arange(2000), labels)
        gain.append(np.log(pipe.calibrate(target)[own] / alone.calibrate(target)[own]).mean())
    assert np.mean(gain) > 0


def test_no_shift_found_beside_counts_changes_no_share():
    """It was said beside shares that changed by a fifth: held-out rows of another mix by chance, not the target."""
    rng = np.random.default_rng(5)
    held, y = outputs(2000, EPS, seed=9)
    some = rng.permutation(np.concatenate([np.flatnonzero(y == 0)[:40], np.flatnonzero(y > 0)[:110]]))
    estimate = pipeline(held[some], y[some], counts=COUNTS).estimate(outputs(1000, EPS, seed=10)[0])
    assert estimate.checks.shift_p > 0.05
    np.testing.assert_allclose(estimate.weights, 1, atol=0.1)


def test_a_weak_classifier_whose_shares_would_move_far_is_not_corrected_in_full():
    """A change within classes looks like a large change of shares then, and no test can tell."""

    def weak(n, prior, seed, moved=0.0):
        rng = np.random.default_rng(seed)
        y = (rng.random(n) < prior).astype(int)
        x = rng.normal(size=(n, 1)) + 0.5 * y[:, None] + moved
        return posteriors(x, np.array([[0.0], [0.5]]), np.array([0.6, 0.4])), y

    pipe = pipeline(*weak(1000, 0.4, 0))
    shares = []
    for seed in range(1, 6):
        rows, labels = weak(2000, 0.4, seed, moved=0.4)  # the inputs moved; the classes are as they were
        result, whole = (pipe.estimate(rows, on_reject=how) for how in ("scale", "ignore"))
        assert result.checks.log_evidence > -4  # hardly to be found by a test
        assert result.checks.amplification > 2
        shares.append(result.acts.share)
        calibrated, own = pipe.calibrate(rows), (np.arange(2000), labels)
        fixed = rp.correct(calibrated, result.weights)
        harm = [np.log(calibrated[own] / x[own]).mean() for x in (fixed, whole.correct(rows))]
        assert harm[0] < 0.5 * harm[1]
        assert "times as far as the mean prediction" in repr(result)
    assert np.mean(shares) < 0.5
    least = pipe.estimate(weak(2000, 0.4, 1 + int(np.argmin(shares)), moved=0.4)[0])
    with pytest.warns(UserWarning, match="times as far as the mean prediction"):
        least.correct(rows)
    same = pipe.estimate(weak(2000, 0.4, 2)[0])
    assert same.checks.amplification == pytest.approx(1)
    assert same.acts.log_evidence > 0
    assert same.acts.share > 0.8
    same.correct(rows)


def test_without_counts_the_mean_output_is_the_prior():
    held, y = outputs(300, EPS)
    pipe = pipeline(held, y)
    np.testing.assert_allclose(pipe.source.prior, pipe.calibrator(held).mean(axis=0))
    assert pipe.options == {}


def test_biases_mend_outputs_that_carry_another_prior_and_leave_right_ones_alone():
    held, y = outputs(2000, EPS, carried=np.full(8, 1 / 8))  # a classifier trained with class weights
    pipe = pipeline(held, y, counts=COUNTS)
    np.testing.assert_allclose(pipe.source.prior, np.bincount(y) / 2000, atol=0.01)
    right, y = outputs(2000, EPS)
    assert np.ptp(pipeline(right, y, counts=COUNTS).calibrator.bias) < 0.5 * np.ptp(pipe.calibrator.bias)
    few, y = outputs(120, EPS, seed=3)
    assert np.ptp(pipeline(few, y, counts=COUNTS).calibrator.bias) < np.ptp(calibrate.fit(few, y, kind="bcts").bias)


def test_a_class_that_no_held_out_row_resembles_is_next_to_impossible_and_no_error():
    sure = np.eye(3)[[0, 1] * 100] * (1 - 3e-7) + 1e-7  # all right
    pipe = pipeline(sure, np.array([0, 1] * 100))
    assert 0 < pipe.source.prior[2] < 1e-3
    np.testing.assert_allclose(pipe.estimate(sure).prior[:2], 0.5, atol=0.05)


def test_a_class_that_every_held_out_row_gives_nothing_is_no_error_either():
    rows = np.eye(4)[np.arange(120) % 3]  # as the neighbours of few rows say it
    for counts in (None, [40, 40, 40, 2]):
        pipe = pipeline(rows, np.arange(120) % 3, counts=counts)
        assert np.isfinite(pipe.estimate(rows, on_reject="ignore").prior).all()


def test_class_weights_need_nothing_and_may_be_told():
    natural, flat = np.array([0.95, 0.05]), np.array([0.5, 0.5])  # a classifier trained with balanced class weights
    held, y = outputs(1000, natural, carried=flat)
    target, y_new = outputs(3000, np.array([0.8, 0.2]), carried=flat, seed=4)
    truth = np.bincount(y_new) / 3000
    for pipe in (pipeline(held, y), pipeline(held, y, prior=[1, 1]), pipeline(held, y, prior=[1, 1], counts=[950, 50])):
        estimate = pipe.estimate(target).prior
        np.testing.assert_allclose(estimate, truth, atol=0.06)
        corrected = pipe.correct(target, estimate)
        own = corrected[np.arange(3000), y_new]
        assert -np.log(own).mean() < -np.log(target[np.arange(3000), y_new]).mean()


def test_the_default_is_one_method_whatever_is_known():
    for counts in ([100, 50, 20], [100] * 25, [1000, 50, 10]):
        pipe = pipeline(counts=counts)
        assert (pipe.method, pipe.calibrator, pipe.source.made) == ("ebls", None, "training counts")
    held, y = outputs(30, EPS)
    few = pipeline(held[:7], y[:7], counts=1000 * simulate.long_tail(8, 0.01))  # fewer rows than classes
    assert (few.method, few.calibrator, few.source.made) == ("ebls", None, "training counts")
    assert pipeline(held, y).calibrator.kind == "bias-corrected"
    assert pipeline(held, y, counts=1000 * simulate.long_tail(8, 0.01), method="mlls").method == "mlls"


@pytest.mark.parametrize(
    ("prior", "made"),
    [
        ("mean", "mean held-out prediction"),
        ("labels", "held-out label counts"),
        ("training", "training counts"),
        (COUNTS, "given by the user"),
    ],
)
def test_the_source_says_how_its_prior_was_made(prior, made):
    held, y = outputs(300, EPS)
    assert pipeline(held, y, counts=COUNTS, prior=prior, calibration="none").source.made == made


def test_the_pooled_prior_goes_from_training_counts_to_the_mean_output():
    held, _ = outputs(20000, EPS)
    flat = calibrate.Calibrator("temperature", np.full(8, 0.7), np.zeros(8), 1e-12, 1, None)(held)
    np.testing.assert_allclose(pooled_prior(flat, COUNTS), flat.mean(axis=0), rtol=0.05)
    np.testing.assert_allclose(pooled_prior(held[:2], 1e6 * EPS), EPS, rtol=0.1)
    few = np.random.default_rng(0).permutation(20000)[:200]
    truth = flat.mean(axis=0)
    errors = [metrics.kl(truth, p) for p in (pooled_prior(flat[few], COUNTS), flat[few].mean(axis=0), EPS)]
    assert errors[0] < min(errors[1:])


def test_select_finds_the_calibrator_that_the_outputs_need_and_shows_its_table():
    held, y = outputs(2000, EPS, carried=np.full(8, 1 / 8), sharpen=2.0)
    pipe = select(held, y, trials=4, methods=("mapls", "ebls"))
    assert pipe.calibrator.kind == "bias-corrected"
    assert [line.loss for line in pipe.trials] == sorted(line.loss for line in pipe.trials)
    assert len(pipe.trials) == 1 + 3 * 2
    raw = min(line.loss for line in pipe.trials if line.calibration == "none")
    assert pipe.trials[0].loss < 0.7 * raw
    target, y_new = outputs(2000, EPS[::-1], carried=np.full(8, 1 / 8), sharpen=2.0, seed=5)
    truth = np.bincount(y_new, minlength=8) / 2000
    assert metrics.kl(truth, pipe.estimate(target).prior) < 0.02
    again = select(held, y, trials=4, methods=("mapls", "ebls"))
    assert again.trials == pipe.trials


def test_select_returns_the_default_itself_unless_another_is_clearly_better():
    held, y = outputs(400, EPS[::-1], carried=EPS, sharpen=1.5)  # held-out rows of another class mix than training had
    few = {"trials": 4, "calibrations": ("temperature",), "methods": ("fmapls", "ebls")}
    for criterion in ("kl", "log-loss", "accuracy"):
        pipe, usual = select(held, y, counts=COUNTS, criterion=criterion, **few), pipeline(held, y, counts=COUNTS)
        line = {c[:3]: c for c in pipe.trials}
        default = line["auto", "auto", "ebls"]
        if pipe.trials[0].loss > default.loss - 1e-12:
            np.testing.assert_array_equal(pipe.source.prior, usual.source.prior)  # the mix is corrected for here too
            np.testing.assert_array_equal(pipe.calibrator.bias, usual.calibrator.bias)
        assert pipe.trials[0].loss <= default.loss
        assert len({c[:3] for c in pipe.trials}) == 1 + 3 * 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: pipeline(), "`counts` alone"),
        (lambda: pipeline([[0.5, 0.5]]), "both be given"),
        (lambda: pipeline([[0.5, 0.5]], [0], counts=[1, 2, 3]), "2 classes"),
        (lambda: pipeline([[0.5, 0.5]], [0], prior="pooled"), "`counts` must be given"),
        (lambda: pipeline([[0.5, 0.5]], [0], prior="guess"), "be one of"),
        (lambda: pipeline([[0.5, 0.5]] * 20, [0, 1] * 10, prior=[1, 1], calibration="temperature"), "be left out"),
        (lambda: pipeline(counts=[5, 0]), "positive"),
        (lambda: pipeline(counts=[0.7, 0.2]), "or shares that sum to 1; got a sum of 0.9"),
        (lambda: pipeline(counts=[5, 2], method="best").estimate([[0.5, 0.5]]), "be one of"),
        (lambda: select([[0.5, 0.5]], [0], trials=1), "`trials`"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_summarize_of_calibrated_outputs_is_the_same_source():
    held, y = outputs(300, EPS)
    pipe = pipeline(held, y, prior="mean")
    np.testing.assert_array_equal(pipe.source.prior, summarize(pipe.calibrator(held), y).prior)


def test_hard_outputs_and_counts_of_another_mix_do_not_ruin_the_estimate():
    rng = np.random.default_rng(0)
    rows = np.eye(3)[rng.integers(0, 3, 300)]
    estimate = pipeline(rows, rows.argmax(axis=1), counts=[9000, 900, 100]).estimate(rows).prior
    np.testing.assert_allclose(estimate, rows.mean(axis=0), atol=0.05)


def test_the_pooled_prior_lies_between_what_it_pools_however_far_apart():
    for counts in ([900.0, 100.0], [9800.0, 200.0], [100000.0, 10.0]):
        result = pooled_prior(np.tile([0.45, 0.55], (500, 1)), np.array(counts))
        assert 0.44 < result[0] <= counts[0] / sum(counts)


def test_names_of_methods_may_be_capital_and_stand_for_the_same():
    held, y = outputs(300, EPS)
    made = [pipeline(held, y, counts=COUNTS, method=name) for name in ("EBLS", "ebls")]
    assert made[0].method == made[1].method
    np.testing.assert_array_equal(made[0].options["base"], made[1].options["base"])


def test_label_counts_of_another_mix_are_put_back_to_training():
    held, y = outputs(2000, np.full(8, 1 / 8), carried=EPS)
    source = pipeline(held, y, counts=20 * COUNTS, prior="labels", calibration="none").source
    np.testing.assert_allclose(source.prior, EPS, rtol=0.1)


@pytest.mark.parametrize("blunt", [1.0, 0.6, 1.5])
def test_a_class_that_held_out_rows_lack_keeps_its_training_share(blunt: float) -> None:
    rng = np.random.default_rng(1)
    means = 1.5 * np.eye(3)
    draws = [(y := rng.integers(3, size=n), rng.normal(means[y])) for n in (400, 700)]
    (y, x), (true, z) = draws
    rows, target = (softmax(blunt * 1.5 * v) for v in (x, z))
    kept = y != 2  # not one row of a third of what it was trained on
    est = pipeline(rows[kept], y[kept], counts=[500, 500, 500]).estimate(target)
    before, after = (-np.log(p[np.arange(len(true)), true]).mean() for p in (target, est.correct(target)))
    assert after < before + 0.01
    assert est.interval().lower[2] < 1 / 3 < est.interval().upper[2]


@pytest.mark.parametrize(("option", "meant"), [("klasses", "classes"), ("class_names", "classes"), ("count", "counts"),
                                               ("calibrate", "calibration"), ("bas", "base")])  # fmt: skip
def test_a_slip_in_a_keyword_is_told_at_once(problem, option, meant):
    rows, y = problem.source.heldout
    for inputs in ({}, {"counts": [1, 1, 1, 1, 1]}):
        with pytest.raises(rp.InputError, match=rf"got {option}\. Perhaps you mean `{meant}`\."):
            rp.pipeline(rows, y, **inputs, **{option: [1, 2, 3, 4, 5]})
    with pytest.raises(rp.InputError, match="`options` must be among n_iter, tol; got base"):
        rp.pipeline(rows, y, method="em", base=[1, 1, 1, 1, 1])


def test_options_of_a_function_are_looked_at_too(problem):
    rows, y = problem.source.heldout

    def mine(source, target, *, speed=1):
        return rp.mlls(source, target)

    assert rp.pipeline(rows, y, method=mine, speed=2).options["speed"] == 2
    with pytest.raises(rp.InputError, match=r"got sped\. Perhaps you mean `speed`"):
        rp.pipeline(rows, y, method=mine, sped=2)


def test_what_is_given_is_told(problem):
    rows, y = problem.source.heldout
    for inputs, message in (({}, "none of them"), ({"proba": rows}, "only `proba`"), ({"y": y}, "only `y`"),
                        ({"y": y, "counts": [1, 1, 1, 1, 1]}, "only `y` and `counts`")):  # fmt: skip
        with pytest.raises(rp.InputError, match=f"; got {message}\\."):
            rp.pipeline(**inputs)


@pytest.mark.parametrize("nothing", [np.nan, None, ""])
def test_a_missing_label_is_called_missing(problem, nothing):
    rows, y = problem.source.heldout
    names = np.array(list("abcde"), object)[y]
    numbers = y.astype(float)
    names[4], numbers[4] = nothing, np.nan
    message = r"`y` must hold the class of every row; got a missing label, first at row 4, 1 in all\. Drop those rows\."
    for labels in (names, list(names), numbers):
        with pytest.raises(rp.InputError, match=message):
            rp.pipeline(rows, labels, classes=list("abcde"))


def test_errors_begin_with_what_was_called(problem):
    rows, y = problem.source.heldout
    calls = {"estimate": lambda pipe, bad: pipe.estimate(bad), "correct": lambda pipe, bad: pipe.correct(bad, [1] * 5),
             "groups": lambda pipe, bad: pipe.groups(["a"] * len(bad), bad)}  # fmt: skip
    for pipe in (rp.pipeline(rows, y), rp.pipeline(counts=[1, 1, 1, 1, 1])):
        for name, call in calls.items():
            for bad in (2 * rows, rows[:, :3]):
                with pytest.raises(rp.InputError, match=f"^{name}: `proba` must"):
                    call(pipe, bad)


def test_a_pipeline_in_the_place_of_a_source_is_told_what_to_do(problem):
    rows, y = problem.source.heldout
    pipe = rp.pipeline(rows, y)
    for call in (lambda: rp.Alarm(pipe), lambda: rp.Stream("online-ebls", pipe), lambda: rp.diagnose(pipe, rows),
                 lambda: rp.estimate(pipe, rows), lambda: rp.groups(pipe, ["a"] * len(rows), rows)):  # fmt: skip
        with pytest.raises(rp.InputError, match=r"got a Pipeline\. Pass its `source`; rows must then be calibrated"):
            call()
    with pytest.raises(rp.InputError, match=r"got a PriorEstimate\. Pass its `source`\."):
        rp.mlls(pipe.estimate(rows), rows)


def test_one_class_without_a_held_out_row_is_one(problem):
    rows, y = problem.source.heldout
    observed = y != 2
    note = rp.pipeline(rows[observed], y[observed], method="mlls").estimate(rows).interval().note
    assert "1 class has no held-out sample. Its classifier error" in note


def test_columns_under_each_other_s_names_are_noticed() -> None:
    rng = np.random.default_rng(0)
    y = rng.choice(3, 200, p=[0.6, 0.3, 0.1])
    rows = rng.dirichlet(np.ones(3), 200) + 0.8 * np.eye(3)[y]
    rows /= rows.sum(axis=1, keepdims=True)
    names = np.array(["bus", "car", "walk"])
    rp.pipeline(rows, names[y], classes=["bus", "car", "walk"])
    with pytest.warns(UserWarning, match="contradict each other"):
        rp.pipeline(rows, names[y], classes=["walk", "bus", "car"])
    with pytest.warns(UserWarning, match="hardly agree"):  # useless is not opposed
        rp.pipeline(rng.dirichlet(np.ones(3), 200), names[y], classes=["bus", "car", "walk"])


def test_two_exchanged_class_names_among_many_are_noticed() -> None:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 6, 500)
    rows = rng.dirichlet(np.ones(6), 500) + 0.8 * np.eye(6)[y]
    rows /= rows.sum(axis=1, keepdims=True)
    names = np.array(list("abcdef"))
    rp.pipeline(rows, names[y], classes=list("abcdef"))
    with pytest.warns(UserWarning, match="contradict each other for the classes [bd] and [bd]"):
        rp.pipeline(rows, names[y], classes=list("adcbef"))
    assert label_mismatch(rp.summarize(rows[:20], np.array([0, 3, 2, 1, 4, 5])[y[:20]]), None) == ""  # too few


@pytest.mark.parametrize("separation", [1.5, 2.5, 4.0])
def test_swapped_columns_are_noticed_with_ten_rare_held_out_samples(separation: float) -> None:
    """They used to pass in silence, and almost everything was called fraud."""
    names, result = np.array(["legit", "fraud"]), 0
    for seed in range(15):
        rng = np.random.default_rng(seed)
        y = np.zeros(1000, int)
        y[rng.choice(1000, 10, replace=False)] = 1
        rows = two_gaussians(rng, y, separation, (0.99, 0.01))
        rp.pipeline(rows, names[y], classes=["legit", "fraud"])
        with pytest.warns(UserWarning, match="contradict each other|hardly agree"):
            rp.pipeline(rows, names[y], classes=["fraud", "legit"])
        result += bool(label_mismatch(rp.summarize(rows, rng.permutation(y)), None))  # shuffled
    assert result >= {1.5: 0, 2.5: 3, 4.0: 11}[separation]  # of a weak classifier nothing tells shuffled labels


def test_labels_of_other_rows_are_noticed_and_the_estimate_says_so_first(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    y = rng.choice(3, 300, p=[0.5, 0.3, 0.2])
    rows = rng.dirichlet(np.ones(3), 300) + 2 * np.eye(3)[y]
    rows /= rows.sum(axis=1, keepdims=True)
    one = "All 300 held-out samples have the class b"
    for wrong, message in (
        (np.roll(y, 1), "hardly agree"), (rng.permutation(y), "hardly agree"), (np.ones_like(y), one),
    ):  # fmt: skip
        with pytest.warns(UserWarning, match=message) as answer:
            pipe = rp.pipeline(rows, wrong, classes=["a", "b", "c"])
        assert len(answer) == 1
        pipe.save(tmp_path / "m.reprior")
        for reference in (pipe, rp.load(tmp_path / "m.reprior")):
            lines = str(reference.estimate(rows).detach()).splitlines()
            assert lines[1] == str(answer[0].message)
    assert "agree" not in str(rp.pipeline(rows, y).estimate(rows))


def test_outputs_that_never_name_a_rare_class_may_still_tell_of_it() -> None:
    rng = np.random.default_rng(0)
    y = (rng.random(2000) < 0.05).astype(int)
    p = 1 / (1 + np.exp(3.5 - 1.5 * (y + rng.normal(size=2000))))
    assert (p < 0.5)[y == 1].mean() > 0.9  # Cohen's kappa is near 0
    rp.pipeline(np.column_stack([1 - p, p]), y)


def test_few_held_out_rows_give_no_class_a_bias_and_the_estimate_says_how_few() -> None:
    rng = np.random.default_rng(0)
    y = np.arange(600) % 3
    rows = rng.dirichlet(np.ones(3), 600) + np.eye(3)[y]
    rows /= rows.sum(axis=1, keepdims=True)
    for n, message in ((9, True), (10, False)):
        pipe = rp.pipeline(rows[:n], y[:n])
        assert pipe.calibrator is not None
        assert (pipe.calibrator.kind == "temperature") == message
        assert (np.ptp(pipe.calibrator.bias) == 0) == message
        assert (f"error is unknown: there are only {n} held-out samples" in str(pipe.estimate(rows))) == message


def test_select_warns_of_labels_once() -> None:
    rng = np.random.default_rng(0)
    with pytest.warns(UserWarning, match="hardly agree") as answer:
        rp.select(rng.dirichlet(np.ones(3), 200), rng.integers(3, size=200), trials=2, calibrations=[], methods=[])
    assert len(answer) == 1


def test_noise_of_outputs_for_a_class_that_no_held_out_row_resembles_is_no_sign_of_it():
    rng = np.random.default_rng(5)

    def outputs(y):
        p = np.column_stack([np.where(y == 0, 0.9, 0.1), np.where(y == 1, 0.9, 0.1), rng.exponential(1e-5, len(y))])
        p[y == 2] = [0.05, 0.05, 0.9]
        return p / p.sum(axis=1, keepdims=True)

    y = np.arange(200) % 2
    pipe = rp.pipeline(outputs(y), y, classes=["a", "b", "c"])
    assert pipe.source.prior[2] == pytest.approx(0.1 / 200.3, rel=1e-3)
    new = rng.choice(3, 1500, p=[0.7, 0.28, 0.02])
    assert pipe.estimate(outputs(new)).prior[2] == pytest.approx(0.02, abs=0.01)


def test_labels_of_a_classifier_that_claims_little_are_not_doubted() -> None:
    """Of a rare class it says little, and that is so: warnings are errors here, and it once got one."""
    rng = np.random.default_rng(3)
    rare = rng.uniform(0.02, 0.1, 200)
    rows = np.stack([1 - rare, rare], axis=1)
    y = (rng.random(200) < rare).astype(int)
    assert "hardly agree" not in str(rp.pipeline(rows, y).estimate(rows))
    sure = np.where(rng.random((200, 1)) < 0.1, [[0.1, 0.9]], [[0.95, 0.05]])
    with pytest.warns(UserWarning, match="hardly agree"):  # it claims much, and its labels are another's
        rp.pipeline(sure, rng.permutation((sure[:, 1] > 0.5).astype(int)))


def test_very_many_classes_have_no_confusion_matrix_and_all_the_rest() -> None:
    k = 9_000
    y = np.arange(60)
    rows = np.full((60, k), 1e-6)
    rows[y, y] += 1 - 1e-6 * k
    pipe = rp.pipeline(rows, y)
    assert pipe.source.confusion is None
    assert pipe.estimate(rows, check=False).prior.shape == (k,)
    with pytest.raises(rp.InputError, match="got 9,000 classes, too many for one"):
        rp.bbse(pipe.source, rows)


def test_the_cost_of_a_pipeline_grows_with_the_classes_and_not_with_their_square() -> None:
    """5,000 classes used to take 51 s, and 10,000 did not finish."""
    seconds = {}
    for k in (1_000, 4_000):
        rng = np.random.default_rng(0)
        y = rng.integers(k, size=1_000)
        rows = rng.standard_normal((1_000, k), np.float32)
        rows[np.arange(1_000), y] += 5
        np.exp(5 * rows, out=rows)
        rows /= rows.sum(axis=1, keepdims=True)
        begun = process_time()
        rp.pipeline(rows, y, calibration="auto")
        seconds[k] = process_time() - begun
    assert seconds[1_000] < 2
    assert seconds[4_000] < 8 * seconds[1_000] + 1  # 16 times with the square


def test_more_than_the_machine_can_hold_is_refused_before_it_is_tried() -> None:
    rows = np.broadcast_to(np.float32(1e-5), (1_000_000, 100_000))  # takes no memory itself
    with pytest.raises(MemoryError, match=r"fit into 2,000.0 GB of free memory.*; got 1,000,000 × 100,000 numbers\."):
        rp.pipeline(rows, np.zeros(1_000_000, int))


def test_a_hundred_thousand_classes_take_memory_that_grows_with_them() -> None:
    """A matrix of K×K numbers would take 80 GB; groups ended in a MemoryError without a word."""
    k, n = 100_000, 40
    rng = np.random.default_rng(0)
    y, new = rng.integers(k, size=(2, n))
    rows, target = np.full((2, n, k), 0.1 / k)
    rows[np.arange(n), y] += 0.9
    target[np.arange(n), new] += 0.9
    pipe = rp.pipeline(rows, y)
    est = pipe.estimate(target)
    assert est.checks is not None
    lower, upper = est.interval()
    assert (lower <= est.shares).all()
    assert (est.shares <= upper).all()
    assert pipe.diagnose(target).effective_labels <= n
    for share in (True, False):
        groups = pipe.groups(np.arange(n) % 4, target, share=share)
        assert groups.shares.shape == (4, k)
        np.testing.assert_allclose(groups.shares.sum(axis=1), 1)
    assert pipe.watch().estimate(target).shares.shape == (k,)
    assert rp.mlls(pipe.source, target).interval().lower.shape == (k,)


def test_the_cost_of_an_estimate_grows_with_the_classes_and_not_with_their_square() -> None:
    seconds = {}
    for k in (750, 3_000):
        rng = np.random.default_rng(0)
        rows = rng.standard_normal((1_000, k), np.float32)
        y = rng.integers(k, size=500)
        rows[np.arange(500), y] += 5
        np.exp(3 * rows, out=rows)
        rows /= rows.sum(axis=1, keepdims=True)
        pipe = rp.pipeline(rows[:500], y)
        begun = process_time()
        pipe.diagnose(rows[500:])
        pipe.groups(np.arange(500) % 3, rows[500:])
        seconds[k] = process_time() - begun
    assert seconds[3_000] < 8 * seconds[750] + 1  # half a minute with matrices


def test_too_little_memory_is_a_sentence() -> None:
    code = """
import resource, sys, numpy as np, reprior as rp
rows = np.full((500, 40_000), 1 / 40_000, np.float32)
rp.pipeline  # loads what it needs
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 150_000_000, resource.RLIM_INFINITY))
try:
    rp.pipeline(rows, np.zeros(500, int))
except MemoryError as error:
    print(error)
"""
    if not Path("/proc/self/statm").exists():
        pytest.skip("no /proc")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    message = "must fit into 0.4 GB of free memory, at 20 bytes per number; got 500 × 40,000 numbers"
    assert message in done.stdout, done.stderr


def two_classes(seed: int, n: int, rare: float):
    rng = np.random.default_rng(seed)
    y = (rng.random(n) < rare).astype(int)
    p = 1 / (1 + np.exp(-3 * (rng.normal(size=n) + 2 * y - 1.5)))
    return np.column_stack([1 - p, p]), y


def test_a_threshold_decides_as_the_corrected_probability_does() -> None:
    rows, y = two_classes(0, 1000, 0.2)
    target, _ = two_classes(1, 2000, 0.5)
    for kind in ("auto", "none", "vector"):
        names = np.array(["legit", "fraud"])
        pipe = rp.pipeline(rows, names[y], classes=["legit", "fraud"], calibration=kind)
        est = pipe.estimate(target, on_reject="ignore")
        for at in (0.1, 0.5, 0.9):
            raw = est.threshold("fraud", at)
            np.testing.assert_allclose(est.correct([[1 - raw, raw]])[0, 1], at, atol=1e-9)
            assert ((target[:, 1] > raw) == (est.correct(target)[:, 1] > at)).all()
            assert est.threshold("legit", 1 - at) == pytest.approx(1 - raw)
    assert est.threshold(1, 0.5) == est.threshold("fraud")
    with pytest.raises(rp.InputError, match="`label` must hold names of classes; got frau"):
        est.threshold("frau")
    with pytest.raises(InputError, match="`at` must be a number above 0 and below 1"):
        est.threshold("fraud", 1.0)
    with pytest.raises(InputError, match=r"have two classes.*got 3 classes"):
        rp.ebls([1, 1, 1], np.full((4, 3), 1 / 3)).threshold(0)


def test_a_rise_of_the_smallest_size_is_found_as_often_as_promised() -> None:
    pipe = rp.pipeline(*two_classes(0, 3000, 0.1))
    rise = pipe.smallest_rise(500)
    assert 0.01 < rise[1] < 0.1
    results = []
    for seed in range(60):
        fresh, (target, _) = rp.pipeline(*two_classes(seed, 3000, 0.1)), two_classes(1000 + seed, 500, 0.1 + rise[1])
        results.append(fresh.estimate(target).checks.shift_p < 0.1)
    assert 0.65 < np.mean(results) < 0.95  # 0.8, by a test that looks to both sides
    assert (pipe.smallest_rise(5000) < rise).all()
    assert (pipe.smallest_rise(500, power=0.5) < rise).all()
    rows, y = two_classes(0, 3000, 0.1)
    wide = np.column_stack([rows * 0.99, np.full(3000, 0.01)])
    assert np.isinf(rp.pipeline(wide, y).smallest_rise(500)[2])  # no held-out sample tells
    with pytest.raises(InputError, match="must have held-out samples"):
        rp.pipeline(counts=[1, 2]).smallest_rise(10)
    with pytest.raises(InputError, match="`power` must be a number above 0 and below 1"):
        pipe.smallest_rise(10, power=1)


@pytest.mark.parametrize("counts", [[1, -1], {"a": float("nan"), "b": 1}, [0, 0], "x"])
def test_wrong_counts_are_named_counts(counts):
    with pytest.raises(InputError, match=r"^pipeline: `counts` must "):
        rp.pipeline(counts=counts)
