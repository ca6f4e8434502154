"""How much of a correction is applied: the evidence of label shift, the memory of a deployment, and labels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from worlds import gaussian_outputs, make_problem, posteriors

import reprior as rp
from reprior.model.acting import Evidence, describe, scaled
from reprior.model.label_shift import acting_share
from reprior.model.labels import fit_biases, labelled_rows, labelled_weights, updated_share
from reprior.model.settings import Settings
from reprior.online.acting import window_end_after
from reprior.pipelines.watch import Watch
from reprior.state import decode, encode

TRIALS = 20
K = 4
APART = 3.0 * np.vstack([np.eye(K), np.full((1, K), 0.25)])  # the last class is between the others, and unknown
IN_LINE = 1.5 * np.arange(K)[:, None] * np.array([[1.0, 0, 0, 0]])  # neighbours are confused
CLOSE = 0.7 * np.random.default_rng(0).normal(size=(K, K))  # a weak classifier
SOURCE = np.array([0.4, 0.3, 0.2, 0.1])


def draw(rng, means, prior, n, *, unknown=0.0, blur=1.0):
    """Return the probabilities of a Bayes classifier for `n` samples, and their classes."""
    y = rng.choice(K, n, p=prior)
    x = means[np.where(rng.random(n) < unknown, len(means) - 1, y)] + blur * rng.normal(size=(n, K))
    return posteriors(x, means[:K], SOURCE), y


def shares(means, change, *, n=1000, shifted=False, dtype=np.float64):
    """Return what share of the correction is applied in each of some trials, `change` (rng, prior) → samples."""
    results = []
    for seed in range(TRIALS):
        rng = np.random.default_rng(seed)
        heldout, y = draw(rng, means, SOURCE, 1000)
        prior = rng.dirichlet(np.ones(K)) if shifted else SOURCE
        proba = change(rng, prior, n)
        results.append(rp.pipeline(heldout.astype(dtype), y).estimate(proba.astype(dtype)).acts.share)
    return np.array(results)


CHANGES = {
    "unknown class": (APART, lambda rng, prior, n: draw(rng, APART, prior, n, unknown=0.15)[0]),
    "blurred inputs": (APART, lambda rng, prior, n: draw(rng, APART, prior, n, blur=1.5)[0]),
    "swapped columns": (IN_LINE, lambda rng, prior, n: draw(rng, IN_LINE, prior, n)[0][:, [2, 1, 0, 3]]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_not_label_shift_is_left_alone(name):
    means, change = CHANGES[name]
    assert np.mean(shares(means, change) <= 0.1) >= 0.9


@pytest.mark.parametrize("means", [APART, IN_LINE, CLOSE], ids=["strong", "in line", "weak"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_label_shift_is_corrected(means, dtype):
    result = shares(means, lambda rng, prior, n: draw(rng, means, prior, n)[0], shifted=True, dtype=dtype)
    assert np.mean(result >= 0.8) >= 0.9
    same = shares(means, lambda rng, prior, n: draw(rng, means, prior, n)[0], dtype=dtype)
    assert np.mean(same >= 0.8) >= 0.95


def test_moved_inputs_are_found_among_fifteen_classes():
    k, shares_applied = 15, []
    for seed in range(6):
        rng = np.random.default_rng(seed)
        means = 1.2 * rng.normal(size=(k, 7))
        heldout_y, y = rng.integers(0, k, 1000), rng.integers(0, k, 1000)
        heldout, x = gaussian_outputs(rng, heldout_y, means), means[y] + rng.normal(size=(1000, 7))
        shares_applied.append(rp.pipeline(heldout, heldout_y).estimate(posteriors(x + 0.6, means)).acts.share)
    assert np.mean(shares_applied) < 0.3


@pytest.mark.parametrize("name", CHANGES)
def test_neither_the_order_of_classes_nor_that_of_samples_matters(name):
    means, change = CHANGES[name]
    rng = np.random.default_rng(5)
    heldout, y = draw(rng, means, SOURCE, 600)
    proba = change(rng, SOURCE, 300)
    one = rp.pipeline(heldout, y).estimate(proba)
    order, rows, held = rng.permutation(K), rng.permutation(300), rng.permutation(600)
    place = np.argsort(order)
    other = rp.pipeline(heldout[held][:, order], place[y[held]]).estimate(proba[rows][:, order])
    assert other.acts.log_evidence == pytest.approx(one.acts.log_evidence, rel=1e-3, abs=1e-3)
    assert other.acts.share == pytest.approx(one.acts.share, rel=1e-3)
    np.testing.assert_allclose(other.weights[place], one.weights, rtol=1e-3)


@pytest.fixture(scope="module")
def world():
    """A pipeline, samples under label shift with their labels, and blurred samples with theirs."""
    rng = np.random.default_rng(3)
    pipe = rp.pipeline(*draw(rng, APART, SOURCE, 1000))
    return pipe, draw(rng, APART, SOURCE[::-1], 1000), draw(rng, APART, SOURCE, 1000, blur=1.7)


def test_weights_are_scaled_and_shares_are_of_the_more_probable_explanation(world):
    pipe, (proba, _), (other, _) = world
    for rows in (proba, other):
        plain, scaled = pipe.estimate(rows, check=False), pipe.estimate(rows)
        s = scaled.acts.share
        weights = plain.weights**s
        np.testing.assert_allclose(scaled.weights, weights / (pipe.source.prior @ weights), rtol=1e-9)
        mean = pipe.calibrate(rows).mean(axis=0)
        assert (s > 0.5) == (rows is proba)
        np.testing.assert_allclose(scaled.shares, plain.shares if s > 0.5 else mean, atol=1e-6)
        lower, upper = scaled.interval(0.95)
        for inside in (scaled.shares,) if s > 0.5 else (scaled.shares, plain.shares):
            assert ((lower <= inside) & (inside <= upper)).all()
        assert scaled.checks.label_shift == s


def test_one_sample_that_is_refused_hardly_moves_the_prior_of_the_population():
    rng = np.random.default_rng(0)
    y = (rng.random(400) < 0.05).astype(int)
    heldout = gaussian_outputs(rng, y, np.array([[0.0], [2.0]]), np.array([0.95, 0.05]))
    estimate, row = rp.pipeline(heldout, y).estimate(heldout), np.array([[0.01, 0.99]])
    refused = scaled(replace(estimate, n=1), 0.1, np.ones(2), row)
    assert refused.shares[1] > 0.9
    assert refused.prior[1] < 0.5


def test_training_counts_are_what_nothing_applied_leads_to():
    """If the class prior of training is known, predictions are moved to it, whatever else has changed."""
    rng = np.random.default_rng(4)
    counts = np.array([100.0, 200, 300, 400])
    pipe = rp.pipeline(*draw(rng, APART, SOURCE, 1000), counts=counts)
    rows = draw(rng, APART, SOURCE, 1000, blur=1.7)[0]
    est = pipe.estimate(rows)
    assert est.acts.share < 0.01
    factor = counts / counts.sum() / pipe.source.prior
    np.testing.assert_allclose(est.weights, factor / (pipe.source.prior @ factor), rtol=0.02)


def test_ignore_is_the_plain_method_and_refuse_raises(world):
    pipe, _, (rows, y) = world
    labels = np.where(np.arange(1000) < 50, y, -1)
    plain, ignored = pipe.estimate(rows, check=False), pipe.estimate(rows, on_reject="ignore")
    np.testing.assert_array_equal(ignored.weights, plain.weights)
    np.testing.assert_array_equal(ignored.prior, plain.prior)
    assert ignored.acts.share == 1
    assert ignored.checks.label_shift < 0.01
    with_labels = pipe.estimate(rows, labels, on_reject="ignore")
    by_hand = rp.ebls(pipe.source, pipe.calibrate(rows), labels=labels)
    np.testing.assert_allclose(with_labels.weights, by_hand.weights, rtol=1e-9)
    with pytest.raises(rp.InputError, match="must differ from the held-out samples in their class prior alone; got a"):
        pipe.estimate(rows, on_reject="refuse").correct(rows)
    with pytest.warns(UserWarning, match="of the correction is applied. The data differ"):
        pipe.estimate(rows).correct(rows)
    with pytest.raises(rp.InputError, match="`on_reject` must be one of 'scale', 'refuse', 'ignore'; got 'warn'"):
        pipe.estimate(rows, on_reject="warn")


def test_without_held_out_samples_nothing_is_tested_and_all_is_applied(world):
    _, (rows, y), _ = world
    pipe = rp.pipeline(counts=[4, 3, 2, 1])
    est = pipe.estimate(rows)
    assert est.acts.share == 1
    assert est.acts.log_evidence is None
    assert "not tested" in est.acts.reason
    np.testing.assert_array_equal(est.weights, pipe.estimate(rows, check=False).weights)
    some = pipe.estimate(rows, np.where(np.arange(1000) < 30, y, -1))
    assert some.acts.log_evidence is None
    assert "with 30 labels" in some.acts.reason


def test_a_deployment_remembers_and_does_not_rise_by_chance(world):
    pipe, (good, _), (bad, _) = world
    watch = pipe.watch()
    at_first = watch.acts.share
    for i in range(0, 1000, 250):
        assert watch.estimate(good[i : i + 250]).acts.share <= at_first  # evidence in favour does not add up
    assert watch.acts.share > 0.8
    fallen = watch.estimate(bad).acts.share
    assert fallen < 0.01
    for _ in range(10):
        later = watch.estimate(good)
    assert later.acts.share < 2 * fallen * 16 / 6  # the mean over more tests: quiet ones do not restore the correction
    assert pipe.estimate(good).acts.share > 0.8  # without the memory
    np.testing.assert_allclose(later.weights, 1, atol=0.05)
    assert watch.n_batches == 15


def test_labels_restore_the_right_to_act_and_take_it_away(world):
    pipe, (good, y), (bad, _) = world
    labels = np.where(np.arange(1000) < 200, y, -1)
    watch = pipe.watch()
    watch.estimate(bad)
    for _ in range(3):
        restored = watch.estimate(good, labels)
    assert restored.acts.share > 0.8
    assert watch.acts.share > 0.8
    # a weak classifier's inputs moved as label shift would move them; labels show the class prior of the source
    rng = np.random.default_rng(8)
    weak = rp.pipeline(*draw(rng, CLOSE, SOURCE, 1000))
    moved, old = draw(rng, CLOSE, SOURCE[::-1], 1000)[0], draw(rng, CLOSE, SOURCE, 1000)[1]
    before = weak.estimate(moved).acts.share
    after = weak.estimate(moved, np.where(np.arange(1000) < 300, old, -1)).acts.share
    assert after < 0.5 < before


@pytest.mark.parametrize("m", [20, 100, 400])
def test_labels_help_if_more_than_the_class_prior_has_changed(world, m):
    """Inputs are blurred and the class prior is another one: what the estimate alone cannot tell, labels show."""
    pipe, (rows, y) = world[0], draw(np.random.default_rng(6), APART, SOURCE[::-1], 2000, blur=1.7)
    labels, own = np.where(np.arange(2000) < m, y, -1), (np.arange(2000), y)
    with_labels, calibrated = pipe.estimate(rows, labels), pipe.calibrate(rows)
    gain = np.log(rp.correct(calibrated, with_labels.weights)[own] / calibrated[own])[m:].mean()
    assert gain > 0.02
    true = np.bincount(y, minlength=K) / 2000
    assert np.abs(with_labels.shares - true).sum() < np.abs(calibrated.mean(axis=0) - true).sum()


def test_labels_of_earlier_batches_help_later_ones(world):
    """Inputs stay blurred, and each batch has ten labels: together they show more than those of one batch."""
    rng, watch, gains = np.random.default_rng(7), world[0].watch(), []
    for _ in range(8):
        rows, y = draw(rng, APART, SOURCE[::-1], 500, blur=1.7)
        labels = np.where(np.arange(500) < 10, y, -1)
        alone, remembered = world[0].estimate(rows, labels), watch.estimate(rows, labels)
        losses = [rp.metrics.log_loss(rp.correct(world[0].calibrate(rows), est.weights), y)
                  for est in (alone, remembered)]  # fmt: skip
        gains.append(losses[0] - losses[1])
    assert gains[0] == 0
    assert np.mean(gains[4:]) > 0


def test_bytes_hold_the_whole_deployment(world, tmp_path):
    pipe, (good, y), (bad, _) = world
    watch = pipe.watch(on_reject="refuse")
    watch.estimate(bad[:200], np.where(np.arange(200) < 20, y[:200], -1))
    watch.save(tmp_path / "deployment", key=b"secret")
    for again in (Watch.from_bytes(watch.to_bytes()), Watch.load(tmp_path / "deployment", key=b"secret"),
                  rp.load(watch.to_bytes())):  # fmt: skip
        assert (again.n_batches, again.evidence, again.on_reject) == (1, watch.evidence, "refuse")
        assert again.pipeline == pipe
        np.testing.assert_array_equal(again.estimate(good).weights, replace_watch(watch).estimate(good).weights)
    with pytest.raises(rp.InputError):
        Watch.load(tmp_path / "deployment", key=b"other")


def replace_watch(watch):
    """Return a copy of a deployment."""
    return Watch(watch.pipeline, on_reject=watch.on_reject, evidence=watch.evidence, n_batches=watch.n_batches)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("n_batches", -1), ("n_batches", "3"), ("evidence", [1.0, 1.0, 0.0]), ("evidence", [0.0, 0.5, 0.0]),
        ("evidence", [0.0, 1.0]), ("evidence", ["0", 1.0, 0.0]), ("evidence", [-1e10, 1.0, 0.0]),
        ("on_reject", "explode"), ("method", "none such"), ("log_weights", [0.0]), ("log_weights", [0.0, 0, 0.0, 0.0]),
    ],
)  # fmt: skip
def test_forged_bytes_are_refused(world, name, value):
    fields = decode(world[0].watch().to_bytes(), "watch", "test")
    assert Watch.from_bytes(encode("watch", fields)).n_batches == 0
    with pytest.raises(rp.InputError):
        Watch.from_bytes(encode("watch", {**fields, name: value}))


def test_evidence_that_is_overwhelming_survives_bytes():
    """Samples unlike any held-out one: evidence beyond any bound must not make a file that is refused."""
    rng = np.random.default_rng(0)
    first = rng.uniform(0.99, 0.9900001, 400)
    first[200:] = 1 - first[200:]
    watch = rp.pipeline(np.column_stack([first, 1 - first]), np.repeat([0, 1], 200)).watch()
    watch.estimate(np.full((400, 2), 0.5))
    assert np.isfinite(watch.evidence.log_evidence)
    assert Watch.from_bytes(watch.to_bytes()).evidence == watch.evidence


def test_evidence_against_counts_and_evidence_in_favour_does_not():
    settings = Settings()
    start = settings.label_shift_odds / (1 + settings.label_shift_odds)
    assert acting_share(50.0, 1.0, settings) == pytest.approx(start)
    assert acting_share(-np.log(settings.label_shift_odds), 1.0, settings) == pytest.approx(0.5)
    assert acting_share(0.0, settings.label_shift_odds**2, settings) == pytest.approx(0.5)
    total = Evidence(-2.0, 1.5) + Evidence(3.0, 1.0) + Evidence(-1.0, 4.0, 2.0)
    mean_factor = np.exp([2.0, -3.0, 1.0]).mean()  # against label shift
    assert total.log_evidence == pytest.approx(-np.log(mean_factor))
    assert (total.amplification, total.of_labels, total.n_tests) == (4.0, 2.0, 3.0)
    assert updated_share(1.0, -100.0) == 1
    assert updated_share(0.5, 0.0) == pytest.approx(0.5)
    assert updated_share(0.0, 100.0) > 0.99


def test_a_stream_tests_often_at_first_and_counts_its_tests(world):
    pipe, (rows, _), _ = world
    rows = np.concatenate([rows] * 6)
    stops = [25, *range(100, 2001, 100), *range(2400, 6001, 400)]
    stream, result = pipe.stream(), []
    for row in rows:
        before = stream.method.view(stream.state.values, "tests")[2]
        stream.learn_one(row)
        if stream.method.view(stream.state.values, "tests")[2] > before:
            result.append(stream.n)
    assert result == stops
    windows = [25, *range(100, 2001, 100)]
    assert [window_end_after(n - 1, 100) for n in windows] == windows
    assert [window_end_after(n, 100) for n in windows[:-1]] == windows[1:]


def test_a_stream_tests_often_again_after_a_change_of_the_prior():
    rng = np.random.default_rng(1)
    quiet, _ = draw(rng, APART, SOURCE, 3000)
    later, _ = draw(rng, APART, SOURCE[::-1], 1200)
    tested = []
    for after in (quiet[:1200], later):
        stream = rp.pipeline(*draw(np.random.default_rng(3), APART, SOURCE, 1000)).stream()
        stream.learn_many(quiet)
        before = stream.method.view(stream.state.values, "tests")[2]
        stream.learn_many(after)
        tested.append(stream.method.view(stream.state.values, "tests")[2] - before)
    assert tested[0] == 3  # after every 400
    assert tested[1] >= 9  # after every 100, once the change is noticed


def test_a_stream_tests_by_the_settings_of_its_pipeline(world):
    pipe = world[0]
    strict = replace(pipe, options={**pipe.options, "settings": Settings(label_shift_odds=0.01)})
    assert pipe.stream().acts.share > 0.9
    assert strict.stream().acts.share < 0.01
    assert strict.stream(settings={"window": 40}).acts.share < 0.01
    assert strict.table(share=False).method.settings.model.label_shift_odds == 0.01


def test_biases_are_found_by_labels_and_zero_without_reason():
    rng, settings = np.random.default_rng(0), Settings()
    proba, y = draw(rng, CLOSE, SOURCE, 1000)
    right = fit_biases(labelled_rows(proba, y), np.zeros(K), settings)
    assert np.abs(right.mean).max() < 0.1
    assert right.none > 0.5
    bias = np.array([1.0, 0.0, 0.0, -1.0])
    wrong = fit_biases(labelled_rows(rp.correct(proba, np.exp(-bias)), y), np.zeros(K), settings)
    result = wrong.mean - wrong.mean.mean()
    np.testing.assert_allclose(result, bias, atol=0.35)
    assert wrong.none < 1e-6
    assert (np.abs(result - bias) < 4 * np.sqrt(np.diag(wrong.covariance))).all()


def test_labels_choose_between_calibrated_and_corrected_probabilities():
    rng, settings = np.random.default_rng(1), Settings()
    prior = SOURCE[::-1]
    proba, y = draw(rng, CLOSE, prior, 200)
    rows, shifted = labelled_rows(proba, y), np.log(prior / SOURCE)
    right = labelled_weights(rows, np.zeros(K), shifted, 0.5, settings)
    assert right.log_evidence > 3
    wrong = labelled_weights(rows, np.zeros(K), -shifted, 0.5, settings)
    assert wrong.log_evidence < -1


def test_labels_of_one_sample_prove_little():
    """A label that nobody expected may be a mistake: it moved shares by more than one half in total."""
    problem = make_problem()
    before = rp.ebls(problem.source, problem.proba)
    rows = rp.correct(problem.proba, before.weights)
    for i in np.argsort(rows[:, 2])[:: len(rows) // 20]:
        labels = np.full(len(rows), -1)
        labels[i] = 2
        after = rp.ebls(problem.source, problem.proba, labels=labels)
        assert np.abs(after.shares - before.shares).sum() < 0.2


def test_the_prior_keeps_its_shrinkage_as_long_as_labels_show_no_bias():
    """The prior of a population is nearer to that of training than the shares of few samples are."""
    better = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        pipe = rp.pipeline(*draw(rng, CLOSE, SOURCE, 500), counts=1000 * SOURCE)
        proba, y = draw(rng, CLOSE, SOURCE, 100)
        est = pipe.estimate(proba, np.where(np.arange(100) < 50, y, -1))
        better.append(rp.metrics.kl(SOURCE, est.prior) - rp.metrics.kl(SOURCE, est.shares))
    assert np.mean(better) < -0.005


def test_a_saved_estimate_acts_as_before(world):
    pipe, _, (rows, _) = world
    est = pipe.estimate(rows)
    light = replace(est.detach(), on_reject="scale")
    with pytest.warns(UserWarning, match="of the correction is applied"):
        fixed = light.correct(rows)
    with pytest.warns(UserWarning, match="of the correction is applied"):
        np.testing.assert_array_equal(fixed, est.correct(rows))
    np.testing.assert_allclose(fixed, rp.correct(pipe.calibrate(rows), est.weights), rtol=1e-12)


@pytest.mark.parametrize(
    ("share", "sentence"),
    [
        (0.9, "Consistent with label shift (probability 90%, with 1 label)."),
        (0.52, "It is unclear whether the change is label shift (probability 52%, with 1 label)."),
        (0.3, "It is unclear whether the change is label shift (probability 30%, with 1 label)."),
        (0.1, "The data differ by more than their class prior (probability of label shift 10%, with 1 label)."),
    ],
)
def test_the_reason_is_as_sure_as_the_probability(monkeypatch, share, sentence):
    monkeypatch.setattr(Evidence, "share", lambda self, settings: share)
    assert describe(Evidence(), Settings(), n_labels=1).reason == sentence
