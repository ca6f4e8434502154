"""What `diagnose` says about clean, shifted, foreign and confused data."""

from dataclasses import replace

import numpy as np
import pytest
from worlds import gaussian_outputs, make_problem, posteriors, softmax, two_gaussians

import reprior as rp
from reprior import datasets, simulate
from reprior.assess.accuracy import Expected, expected_accuracy, plausible_shares, with_labels
from reprior.assess.diagnose import diagnose, shift_p_value, smallest_singular_value

MEANS = 1.3 * np.random.default_rng(0).normal(size=(6, 5))  # five classes, and a sixth the source never had
UNIFORM = np.full(5, 0.2)


def outputs(x):
    return posteriors(x, MEANS[:5])


def draw(prior, n, seed, *, unknown=0.0, blur=1.0):
    rng = np.random.default_rng(seed)
    y = rng.choice(5, n, p=prior)
    x = MEANS[np.where(rng.random(n) < unknown, 5, y)] + blur * rng.normal(size=(n, 5))
    return outputs(x), y


@pytest.fixture(scope="module")
def source():
    return rp.summarize(*draw(UNIFORM, 1500, 1), classes=tuple("abcde"))


def test_no_shift(source):
    diagnosis = diagnose(source, draw(UNIFORM, 2000, 2)[0])
    assert not diagnosis.shifted
    assert diagnosis.applies
    assert "No shift found" in str(diagnosis)


def test_label_shift_is_found_and_recognised(source):
    proba, y = draw([0.5, 0.2, 0.15, 0.1, 0.05], 2000, 3)
    diagnosis = diagnose(source, proba)
    assert diagnosis.shift_p < 1e-6
    assert diagnosis.applies
    assert "No evidence against label shift" in str(diagnosis)
    before, after = diagnosis.accuracy
    assert after >= before
    right = np.mean(diagnosis.estimate.correct(proba).argmax(axis=1) == y)
    assert after == pytest.approx(right, abs=0.03)
    low, high = diagnosis.accuracy_interval
    assert low < after < high < low + 0.08
    assert low < right < high
    assert f"{100 * after:.1f} % corrected (95 % interval {100 * low:.1f} % to {100 * high:.1f} %)" in str(diagnosis)
    assert diagnosis.effective_heldout < 1500
    assert "Hold out more" not in str(diagnosis)
    held, labels = source.heldout
    assert "Hold out more" in str(diagnose(rp.summarize(held[:150], labels[:150]), proba))


@pytest.mark.parametrize("how", [{"unknown": 0.15}, {"blur": 1.5}])
def test_what_is_not_label_shift_is_refused(source, how):
    diagnosis = diagnose(source, draw([0.4, 0.2, 0.2, 0.1, 0.1], 3000, 4, **how)[0])
    assert diagnosis.applies is False
    assert diagnosis.shifted
    assert "differ by more than their class prior" in str(diagnosis)
    assert diagnosis.label_shift < 0.01


def test_the_interval_of_the_accuracy_widens_where_the_mix_has_moved_from_that_of_the_heldout_rows(source):
    def width(reference, prior):
        est = rp.ebls(reference, draw(prior, 2000, 3)[0])
        answer = expected_accuracy(est, est.target, reference)
        counted = answer.after * (1 - answer.after) * (1 / len(reference.heldout[1]) + 1 / 2000)
        return answer.upper - answer.lower, 2 * 1.96 * np.sqrt(counted)

    shifted = [0.5, 0.2, 0.15, 0.1, 0.05]
    (same, counted), (moved, _) = width(source, UNIFORM), width(source, shifted)
    assert same < 0.92 * counted  # outputs that are unequally sure tell more than how many rows are right
    assert moved > 1.3 * same
    assert width(rp.summarize(*draw(UNIFORM, 30000, 1)), shifted)[0] < 0.6 * moved  # not where very many rows tell


def test_the_interval_of_the_accuracy_allows_for_a_bet_that_is_lost(source):
    est = rp.ebls(source, draw(UNIFORM, 2000, 3)[0])

    def width(mix):
        posterior = replace(est.posterior, shares=replace(est.posterior.shares, mean=mix))
        answer = expected_accuracy(replace(est, posterior=posterior), est.target, source)
        return answer.upper - answer.lower

    assert width(np.array([0.05, 0.05, 0.4, 0.1, 0.4])) > 2 * width(est.shares)


def test_rows_that_were_sure_to_be_chosen_do_not_tell_how_right_the_others_are():
    """Unsure rows all have a label and are all wrong. Of sure rows one in ten has one, and nine in ten are right."""
    rows = np.repeat([[0.6, 0.4], [0.9, 0.1]], [300, 700], axis=0)
    labels = np.full(1000, -1)
    labels[:300], labels[300:370] = 1, np.arange(70) % 10 == 0
    weights = np.where(np.arange(1000) < 300, 0.37, 3.7)  # the chance of a row in an even draw over its chance in this
    est = rp.ebls([0.5, 0.5], rows, labels=labels, label_weights=weights)
    est = replace(est, shares=np.full(2, 0.5), weights=np.ones(2), posterior=None)
    unknown, predicted = Expected(np.zeros(2), np.full(2, np.inf)), np.full(2, 0.3 * 0.6 + 0.7 * 0.9)
    answer = with_labels(unknown, est.target, est, predicted).mean[1]
    labelled = 63 / 1000  # of all samples, have a label and are right
    assert (answer - labelled) / 0.63 == pytest.approx(0.9, abs=0.01)


def test_mixes_of_two_classes_that_might_be_scatter_by_their_standard_error(monkeypatch):
    """Drawn one by one, and then made to add up to one, their scatter was less by a factor of 1.4."""
    monkeypatch.setattr("reprior.assess.accuracy.SHARE_DRAWS", 2000)
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 800)
    rows = two_gaussians(rng, y, 1.5)
    est = rp.ebls(rp.summarize(rows[:400], y[:400]), rows[400:])
    assert plausible_shares(est).std(axis=0) == pytest.approx(np.sqrt(est.posterior.shares.variance), rel=0.1)


def test_outputs_of_a_row_left_out_are_those_of_a_calibrator_that_never_saw_it():
    rng, k = np.random.default_rng(0), 12
    means = 0.9 * rng.normal(size=(k, 5))
    y = rng.integers(k, size=120)
    proba = softmax(1.5 * np.log(gaussian_outputs(rng, y, means)))  # too sure
    cal = rp.calibrate.fit(proba, y, kind="bias-corrected", ridge=10, shrink=1)
    whole = cal(proba)
    result, moved = cal.left_out(whole, y), []
    for i in range(0, 120, 6):
        others = np.arange(120) != i
        refitted = rp.calibrate.fit(proba[others], y[others], kind="bias-corrected", ridge=10, shrink=1)
        refitted = refitted(proba[i : i + 1])[0]
        moved.append((refitted[y[i]] - whole[i, y[i]], result[i, y[i]] - whole[i, y[i]]))
    real, step = np.array(moved).T
    assert (step < 0).all()
    assert step.mean() == pytest.approx(real.mean(), rel=0.3)
    assert np.corrcoef(real, step)[0, 1] > 0.9


def test_labels_of_target_rows_correct_the_accuracy_to_expect(source):
    """Half of the rows have outputs that say nothing of them, which held-out rows do not show."""
    proba, y = draw([0.3, 0.2, 0.2, 0.2, 0.1], 1000, 8)
    proba[:500] = proba[np.random.default_rng(0).permutation(500)]
    right, off = np.mean(proba.argmax(axis=1) == y), []
    labels, order = np.full(1000, -1), np.random.default_rng(1).permutation(1000)
    for m in (0, 200, 1000):
        labels[order[:m]] = y[order[:m]]
        est = rp.ebls(source, proba, labels=labels)
        diagnosis = diagnose(source, proba, estimate=est)
        off.append(abs(diagnosis.accuracy[0] - right))
        if m:
            assert diagnosis.accuracy_interval[1] - diagnosis.accuracy_interval[0] < 0.14
    assert off[0] > 0.1
    assert off[1] < 0.4 * off[0]
    assert off[2] < 0.01
    alone = diagnose(UNIFORM, proba, estimate=rp.ebls(UNIFORM, proba, labels=labels))
    assert alone.accuracy[0] == pytest.approx(right, abs=0.01)  # labels do without held-out rows


def test_labels_do_not_lower_the_accuracy_to_expect_where_outputs_are_right():
    """Labels are drawn by the corrected outputs, so that these say how often predictions are right in the mean."""
    data, n, off = datasets.load("banking77"), 1000, []
    pipe = rp.pipeline(data.heldout_proba, data.heldout_y, counts=data.counts)
    proba = simulate.resample(data.pool_proba, data.pool_y, simulate.dirichlet(77, 1.0, rng=0), n=n, rng=0).proba
    chance = pipe.estimate(proba, check=False).correct(proba)
    for seed in range(16):
        rng = np.random.default_rng(seed)
        y = (chance.cumsum(axis=1) > rng.random((n, 1)) * chance.sum(axis=1, keepdims=True)).argmax(axis=1)
        reference = rng.permutation(n) < 300
        est = pipe.estimate(proba, labels=np.where(reference, y, -1), check=False)
        made = est.correct(proba).argmax(axis=1)
        right = np.where(reference, made == y, chance[np.arange(n), made]).mean()
        off.append(diagnose(pipe.source, est.target, estimate=est).accuracy[1] - right)
    assert abs(np.mean(off)) < 0.002


def test_a_class_without_heldout_rows_is_expected_to_be_as_right_as_it_promises():
    """It is nearly half of the target. The other classes' held-out rows do not tell how often it is right."""
    for seed in (0, 2):
        problem = make_problem(n=2000, separation=1.0, seed=seed)
        rows, y = problem.source.heldout
        there = y != problem.target_prior.argmax()
        est = rp.ebls(rp.summarize(rows[there], y[there], prior=problem.source_prior), problem.proba)
        diagnosis = diagnose(est.source, problem.proba, estimate=est)
        right = np.mean(est.correct(problem.proba).argmax(axis=1) == problem.y)
        assert abs(diagnosis.accuracy[1] - right) < 0.06


def test_without_heldout_rows_it_says_what_it_cannot_tell():
    diagnosis = diagnose(UNIFORM, draw(UNIFORM, 1000, 5)[0])
    assert diagnosis.applies is None
    assert diagnosis.accuracy is None
    assert diagnosis.overconfidence is None
    assert "Not tested for label shift: this needs held-out samples" in str(diagnosis)


def test_twins_are_named_and_the_confusion_is_singular():
    (held, y), (target, _) = draw(UNIFORM, 1500, 6), draw(UNIFORM, 1000, 7)
    half = np.where(np.random.default_rng(0).random(len(y)) < 0.5, y, np.where(y == 4, 5, y))

    def twinned(p):
        return np.column_stack([p[:, :4], p[:, 4] / 2, p[:, 4] / 2])

    source = rp.summarize(twinned(held), half, classes=("a", "b", "c", "d", "left", "right"))
    diagnosis = diagnose(source, twinned(target))
    assert diagnosis.confused[0][:2] == ("left", "right")
    assert diagnosis.confused[0][2] > 0.999
    assert smallest_singular_value(source) < 0.05
    assert "left and right" in str(diagnosis)


def test_overconfidence_is_measured(source):
    held, y = source.heldout
    sharp = held**3 / (held**3).sum(axis=1, keepdims=True)
    diagnosis = diagnose(rp.summarize(sharp, y), sharp)
    assert diagnosis.overconfidence > 3 * diagnosis.overconfidence_se
    assert "overconfident" in str(diagnosis)
    calm = diagnose(source, held)
    assert abs(calm.overconfidence) < 3 * calm.overconfidence_se


def test_worth_is_near_n_for_a_sure_classifier_and_less_for_an_unsure_one(source):
    proba = draw(UNIFORM, 1000, 8)[0]
    soft = 0.3 * proba + 0.7 * UNIFORM
    sure = np.eye(5)[proba.argmax(axis=1)] * 0.99 + 0.002
    worth = [diagnose(UNIFORM, p).effective_labels for p in (soft, proba, sure)]
    assert worth[0] < worth[1] < worth[2] <= 1000
    assert worth[2] > 2 * worth[0]


def test_an_estimate_can_be_judged(source):
    proba = draw(UNIFORM, 500, 9)[0]
    estimate = rp.mlls(source, proba)
    diagnosis = diagnose(source, proba, estimate=estimate)
    assert diagnosis.estimate is estimate
    others = [diagnose(source, proba), diagnose(source, proba, estimate=rp.mapls(source, proba))]
    assert [other.applies for other in [diagnosis, *others]] == [True] * 3


def test_p_values_of_the_shift_test_are_uniform_enough(source):
    results = [
        shift_p_value(proba.sum(axis=0), proba, rp.Source(UNIFORM))
        for proba in (draw(UNIFORM, 300, seed)[0] for seed in range(100, 300))
    ]
    assert 0.01 <= np.mean(np.array(results) < 0.05) <= 0.1
    assert 0.4 < np.mean(results) < 0.6


def test_bad_input_is_refused(source):
    with pytest.raises(rp.InputError, match="diagnose: `proba` must have 5 columns"):
        diagnose(source, np.full((3, 4), 0.25))
    with pytest.raises(rp.InputError, match="diagnose: `alpha` must be a number above 0"):
        diagnose(source, np.full((3, 5), 0.2), alpha=0)
    with pytest.raises(rp.InputError, match="diagnose: `estimate` must be what a method returned for these 5 classes"):
        diagnose(source, np.full((3, 5), 0.2), estimate=UNIFORM)


def test_few_target_rows_raise_no_alarm():
    rng = np.random.default_rng(0)
    proba = rng.dirichlet(np.full(10, 0.3), 1000 + 40 * 3)
    y = np.array([rng.choice(10, p=row) for row in proba])
    source = rp.summarize(proba[:1000], y[:1000])
    results = [diagnose(source, proba[i : i + 3]).label_shift for i in range(1000, 1120, 3)]
    assert np.mean(np.array(results) < 0.8) <= 0.05
    assert min(results) > 0.5


def test_the_order_of_rows_does_not_matter(source):
    proba, rng = draw([0.4, 0.2, 0.2, 0.1, 0.1], 500, 11, unknown=0.1)[0], np.random.default_rng(0)
    (held, y), shuffled = source.heldout, rng.permutation(1500)
    moved = diagnose(rp.summarize(held[shuffled], y[shuffled]), rng.permutation(proba))
    assert moved.label_shift == pytest.approx(diagnose(source, proba).label_shift, rel=1e-6)


@pytest.mark.parametrize("unknown", [False, True])
def test_heldout_rows_may_have_another_mix_than_training(unknown):
    """A large change of the class prior hides a small share of samples of an unknown class."""
    counts = np.array([500.0, 300, 120, 50, 30])
    mix = counts / counts.sum()

    def trained(proba):  # as a classifier trained on that mix would have it
        tilted = proba * mix
        return tilted / tilted.sum(axis=1, keepdims=True)

    held, y = draw(UNIFORM, 1500, 12)
    default = rp.pipeline(trained(held), y, counts=counts)
    for prior, share in ((mix, 0.15), (UNIFORM, 0.15), (mix[::-1], 0.25)):
        rows = trained(draw(prior, 3000, 13, unknown=share * unknown)[0])
        assert default.diagnose(rows).applies is not unknown


def test_a_pipeline_diagnoses_raw_rows_and_its_source_refuses_them():
    """Raw rows beside calibrated held-out rows used to be called no label shift, p < 1e-12, on good data."""
    held, y = draw(UNIFORM, 2000, 1)
    proba, labels = draw([0.4, 0.2, 0.2, 0.1, 0.1], 2000, 2)
    sharp, target = (x**3 / (x**3).sum(axis=1, keepdims=True) for x in (held, proba))
    pipe = rp.pipeline(sharp, y)
    diagnosis = pipe.diagnose(target, alpha=0.01)
    assert diagnosis.applies
    assert diagnosis.alpha == 0.01
    est = pipe.estimate(target)
    assert diagnosis.label_shift == est.checks.label_shift
    whole = pipe.estimate(target, on_reject="ignore")
    assert str(diagnose(pipe.source, whole.target, estimate=whole)) == str(pipe.diagnose(target))
    reference = np.where(np.arange(2000) < 100, labels, -1)
    assert pipe.diagnose(target, reference).estimate.n_labels == 100
    for loaded in (pipe, rp.Pipeline.from_bytes(pipe.to_bytes())):
        with pytest.raises(rp.InputError, match=r"calibrated by the pipeline .* `pipe.diagnose\(proba\)`"):
            diagnose(loaded.source, target)
    plain = rp.pipeline(held, y, calibration="none")
    assert diagnose(plain.source, proba).applies  # nothing to calibrate


def test_sure_outputs_and_classes_without_heldout_rows_are_no_trouble():
    rng = np.random.default_rng(0)
    proba = np.eye(6)[rng.integers(6, size=300)]
    y = np.minimum(proba.argmax(axis=1), 3)  # nobody labelled the last two
    with np.errstate(all="raise", under="ignore"):
        assert 0 <= diagnose(rp.summarize(proba, y, prior=np.full(6, 1 / 6)), proba[:50]).label_shift <= 1


def test_a_row_that_stands_for_many_does_not_lower_the_accuracy_to_expect():
    """With few rows for many classes its label is most of what is known of its class."""
    data = datasets.load("clinc150")
    target = simulate.resample(data.pool_proba, data.pool_y, data.counts / data.counts.sum(), n=400, rng=0)
    pipe = rp.pipeline(data.heldout_proba, data.heldout_y, counts=data.counts)
    rows = np.random.default_rng(0).permutation(400)[:60]
    labels, weights = np.full(400, -1), np.ones(400)
    labels[rows] = target.y[rows]
    weights[rows[:10]] = 20.0
    est = pipe.estimate(target.proba, labels=labels, label_weights=weights, check=False)
    low, high = diagnose(pipe.source, est.target, estimate=est).accuracy_interval
    assert low < np.mean(est.correct(target.proba).argmax(axis=1) == target.y) < high
    assert high - low < 0.2


def test_few_labels_for_many_classes_do_not_ruin_the_accuracy_to_expect():
    """A label moves the share of its class by what else is known of that, however few rows the class has."""
    rng, k = np.random.default_rng(0), 300
    logits = 3.0 * np.eye(k)[y := rng.integers(0, k, 3000)] + rng.normal(size=(3000, k))
    proba = softmax(logits + np.eye(k)[y])
    pipe = rp.pipeline(proba[:1500], y[:1500], counts=np.full(k, 100))
    labels = np.full(1500, -1)
    labels[:60] = y[1500:1560]
    est = pipe.estimate(proba[1500:], labels=labels, check=False)
    low, high = diagnose(pipe.source, est.target, estimate=est).accuracy_interval
    assert low - 0.02 < np.mean(est.correct(proba[1500:]).argmax(axis=1) == y[1500:]) < high + 0.02


def test_a_correction_that_may_do_harm_is_said_beforehand():
    """A classifier that hardly tells two classes apart, and few held-out rows: any small change looks like a shift."""
    rng = np.random.default_rng(1)
    vague = rng.beta(20, 20, 400)
    rows = np.column_stack([vague, 1 - vague])
    y = (rng.random(400) > vague).astype(int)
    moved = np.clip(rows[200:] + np.array([0.06, -0.06]), 0.01, 0.99)
    source = rp.pipeline(rows[:200], y[:200]).source
    estimate = rp.mlls(source, moved)
    diagnosis = diagnose(source, estimate.target, estimate=estimate)
    assert diagnosis.may_harm
    assert "Sensitive to small errors: the estimated shares moved" in str(diagnosis) or diagnosis.applies is False
    assert diagnose([1, 1], rows).may_harm is None
    data = datasets.load("banking77")
    pipe = rp.pipeline(data.heldout_proba, data.heldout_y, counts=data.counts)
    target = simulate.resample(data.pool_proba, data.pool_y, simulate.dirichlet(77, 1.0, rng=0), n=2000, rng=0)
    est = pipe.estimate(target.proba)
    assert diagnose(pipe.source, est.target, estimate=est).may_harm is False


def test_label_shift_that_a_weak_classifier_meets_is_not_taken_for_something_else() -> None:
    """Its outputs are not what its calibrator takes them for, and its shares far off: both once counted against label
    shift."""
    result, k = [], 9
    middles = 2 * np.random.default_rng(0).normal(size=(k, 2, 4))  # two clusters a class, badly described by one
    centre = middles.mean(axis=1)

    def outputs(rng, prior, n, blur=1.0):
        y = rng.choice(k, n, p=prior)
        x = middles[y, rng.integers(2, size=n)] + blur * rng.normal(size=(n, 4))
        return softmax(0.4 * (x @ centre.T - 0.5 * (centre**2).sum(axis=1))), y

    for seed in range(12):
        rng = np.random.default_rng(seed)
        pipe = rp.pipeline(*outputs(rng, np.full(k, 1 / k), 1000))
        prior = rng.dirichlet(np.full(k, 0.7))
        result.append(pipe.estimate(outputs(rng, prior, 1000)[0]).acts.share)
    assert np.sum(np.array(result) < 0.8) <= 1
    assert min(result) > 0.5
    assert pipe.estimate(outputs(rng, prior, 1000, blur=1.5)[0]).acts.share < 0.01  # that is something else


def test_outputs_that_are_all_alike_show_no_shift():
    """Means of the same numbers differ in their last digit, by the number of rows; that once was a shift, p < 1e-12."""
    rng = np.random.default_rng(0)
    for n in (300, 500, 1000):
        row, y = [0.2, 0.3, 0.5], rng.choice(3, n, p=[0.17, 0.33, 0.5])
        est = rp.pipeline(np.tile(row, (n, 1)), y).estimate(np.tile(row, (501, 1)))
        assert est.checks.shift_p > 0.05
        assert str(est).split("\n")[1].startswith("No shift found")


def test_harm_is_said_for_the_reason_there_is():
    """Shares that moved far rest on small changes of outputs. That is no lack of knowledge about the mix, and once was
    said to be beside an interval that ruled it out."""
    result = replace(
        diagnose([1, 1], [[0.9, 0.1], [0.8, 0.2], [0.3, 0.7]]),
        label_shift=0.9, accuracy=(0.55, 0.80), accuracy_interval=(0.75, 0.85), accuracy_risk=0.1, amplification=2.5,
    )  # fmt: skip
    assert result.may_harm
    assert "the class shares are uncertain" not in str(result)
    assert "the estimated shares moved 2.5 times as far as the mean prediction" in str(result)
    assert "the class shares are uncertain" in str(replace(result, accuracy_interval=(0.5, 0.9)))


def test_labels_help_whatever_else_has_changed():
    """Inputs blurred within classes are not corrected, until labels show the class biases that they need."""
    rng = np.random.default_rng(3)
    middles = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0]])

    def outputs(y, blur):
        return posteriors(middles[y] + blur * rng.normal(size=(len(y), 2)), middles)

    held = rng.choice(3, 1000)
    pipe = rp.pipeline(outputs(held, 1.0), held)
    # without label shift there is hardly a correction that labels could decide about
    for prior, gain, advice in (
        ([0.1, 0.8, 0.1], 0.05, "Pass labels of about"),
        ([1 / 3] * 3, -0.005, "Even labels of all"),
    ):
        y = rng.choice(3, 1500, p=prior)
        rows, labels = outputs(y, 1.7), np.full(1500, -1)
        alone = pipe.estimate(rows)
        assert alone.acts.share < 0.01
        with pytest.warns(UserWarning, match=rf"differ by more than their class prior.*{advice}"):
            alone.correct(rows)
        labels[:150] = y[:150]
        est = pipe.estimate(rows, labels=labels)
        right = np.mean(rp.correct(pipe.calibrate(rows), est.weights).argmax(axis=1) == y)
        assert right > np.mean(rows.argmax(axis=1) == y) + gain
        assert np.abs(est.shares - np.bincount(y) / 1500).max() < np.abs(alone.shares - np.bincount(y) / 1500).max()


@pytest.mark.parametrize("held", range(86, 101))
def test_classes_that_separate_perfectly_are_no_singular_matrix(held: int) -> None:
    sure = np.array([[1.0, 1e-35], [1e-35, 1.0]])
    y, target = np.repeat([0, 1], [held, 200 - held]), np.repeat([0, 1], [49, 1])
    est = rp.pipeline(sure[y], y).estimate(sure[target])
    np.testing.assert_allclose(est.shares, [0.98, 0.02], atol=0.02)
