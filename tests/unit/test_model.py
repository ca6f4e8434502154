"""The default: what it leaves alone, what it follows, how sure it is, and that its evidence is an integral."""

import numpy as np
import pytest
from worlds import gaussian_outputs, make_problem, score_outputs

import reprior as rp
from reprior import datasets
from reprior.model.likelihood import fit_weights, log_likelihood
from reprior.model.samples import two_samples
from reprior.model.settings import Settings
from reprior.model.shift_prior import GammaPrior, fit_shifts, laplace, log_gamma_density, stacked
from reprior.rows.blocks import as_blocks

EPS = np.array([0.5, 0.3, 0.15, 0.05])
OTHER = np.array([0.05, 0.15, 0.3, 0.5])


def bayes_outputs(prior, n, *, implied=EPS, distance=1.5, seed=0):
    """Samples from `prior`, as the Bayes classifier of Gaussian classes sees them whose outputs imply `implied`."""
    rng = np.random.default_rng(seed)
    k = len(prior)
    centres = distance * np.random.default_rng(99).normal(size=(k, 3))
    y = rng.choice(k, n, p=prior)
    return gaussian_outputs(rng, y, centres, implied), y


def source_of(n, seed=7, **how):
    return rp.summarize(*bayes_outputs(EPS, n, seed=seed, **how))


def samples_of(source, proba, base=None):
    return two_samples(source, as_blocks(proba, source.prior, "test"), len(proba), base, Settings())


def share_of(y, k=4):
    return np.bincount(y, minlength=k) / len(y)


def test_outputs_that_are_all_alike_change_nothing():
    proba = np.tile(EPS, (500, 1))
    for source in (EPS, rp.summarize(proba[:200], np.arange(200) % 4)):
        estimate = rp.ebls(source, proba)
        np.testing.assert_allclose(estimate.correct(proba), proba, atol=0.01)
        np.testing.assert_allclose(estimate.shares, EPS, atol=0.01)


@pytest.mark.parametrize("n", [100, 200, 1000])
def test_without_a_shift_corrected_probabilities_are_not_worse(n):
    worse = []
    for seed in range(20):
        proba, y = bayes_outputs(EPS, 1000, distance=0.7, seed=seed)
        estimate = rp.ebls(source_of(n, seed=100 + seed, distance=0.7), proba)
        worse.append(rp.metrics.log_loss(estimate.correct(proba), y) - rp.metrics.log_loss(proba, y))
    assert np.mean(worse) < 0.001
    assert np.mean(np.array(worse) > 0.01) <= 0.05


@pytest.mark.parametrize("balanced", [True, False])
def test_many_classes_with_few_held_out_samples_each_are_left_alone_without_a_shift(balanced):
    k, worse = 60, []
    prior = np.full(k, 1 / k) if balanced else rp.simulate.long_tail(k, 0.1)
    for seed in range(8):
        rng = np.random.default_rng(seed)
        heldout_y, y = rng.choice(k, 100, p=prior), rng.choice(k, 1000, p=prior)
        heldout, proba = (score_outputs(rng, labels, k, 4.0, prior) for labels in (heldout_y, y))
        est = rp.pipeline(heldout, heldout_y).estimate(proba)
        calibrated = rp.pipeline(heldout, heldout_y).calibrate(proba)
        worse.append(rp.metrics.log_loss(est.correct(proba), y) - rp.metrics.log_loss(calibrated, y))
    assert max(worse) < 0.01


@pytest.mark.parametrize("n", [1, 5, 20])
def test_a_tiny_batch_changes_next_to_nothing(n):
    """Two per cent positives: one uninformative sample must not move the probabilities."""
    heldout, y = bayes_outputs(np.array([0.98, 0.02]), 1000, implied=np.array([0.98, 0.02]))
    source, worse = rp.summarize(heldout, y), []
    for seed in range(200):
        proba, labels = bayes_outputs(np.array([0.98, 0.02]), n, implied=np.array([0.98, 0.02]), seed=seed)
        worse.append(rp.metrics.log_loss(rp.ebls(source, proba).correct(proba), labels)
                     - rp.metrics.log_loss(proba, labels))  # fmt: skip
    assert np.mean(worse) < 0.001


def test_a_clear_shift_is_followed():
    proba, y = bayes_outputs(OTHER, 2000)
    for source, error in ((EPS, 0.1), (source_of(200), 0.08), (source_of(1000), 0.04)):  # counts alone: half as sure
        estimate = rp.ebls(source, proba)
        np.testing.assert_allclose(estimate.shares, share_of(y), atol=error)
        np.testing.assert_allclose(estimate.prior, OTHER, atol=error)
        assert rp.metrics.log_loss(estimate.correct(proba), y) < rp.metrics.log_loss(proba, y) - 0.05


def test_shares_are_of_these_samples_and_the_prior_of_their_population():
    """Few samples of a sharp classifier: it tells their shares exactly, and their population hardly."""
    proba, y = bayes_outputs(EPS, 40, distance=8.0, seed=3)
    estimate = rp.ebls(source_of(1000, distance=8.0), proba)
    np.testing.assert_allclose(estimate.shares, share_of(y), atol=0.01)
    width = {of: np.subtract(*estimate.interval(of=of)[::-1]) for of in ("shares", "prior")}
    assert (width["prior"] > width["shares"]).all()
    lower, upper = estimate.interval(of="prior")
    assert ((lower <= EPS) & (upper >= EPS)).all()


def test_fewer_held_out_samples_are_trusted_less():
    proba, _ = bayes_outputs(np.array([0.4, 0.3, 0.2, 0.1]), 500)
    few, many = (rp.ebls(source_of(n), proba) for n in (60, 5000))
    assert few.posterior.no_shift > many.posterior.no_shift
    assert (np.subtract(*few.interval()[::-1]) > np.subtract(*many.interval()[::-1])).all()


@pytest.mark.parametrize("target", [EPS, OTHER, np.array([0.97, 0.01, 0.01, 0.01])])
@pytest.mark.parametrize("n", [1, 3, 50, 2000])
def test_the_estimate_lies_in_its_interval(target, n):
    proba, _ = bayes_outputs(target, n, seed=n)
    for source in (EPS, source_of(150)):
        result = rp.ebls(source, proba)
        for of, estimate in (("shares", result.shares), ("prior", result.prior)):
            for level in (0.05, 0.5, 0.95):
                lower, upper = result.interval(level, of=of)
                assert ((lower <= estimate) & (estimate <= upper)).all()
                assert ((lower >= 0) & (upper <= 1)).all()


@pytest.mark.parametrize("of", ["shares", "prior"])
def test_intervals_cover_if_held_out_samples_are_few(of):
    inside = []
    for seed in range(60):
        target = np.random.default_rng(seed).dirichlet(np.full(4, 2.0))
        proba, y = bayes_outputs(target, 800, distance=0.8, seed=seed)
        lower, upper = rp.ebls(source_of(200, seed=200 + seed, distance=0.8), proba).interval(of=of)
        truth = share_of(y) if of == "shares" else target
        inside.append((lower <= truth) & (truth <= upper))
    assert np.mean(inside) > 0.9


def test_an_interval_holds_the_share_of_a_class_that_does_not_occur():
    problem = make_problem(k=4, n=1500, separation=2.5)
    estimate = rp.ebls(problem.source, problem.proba[problem.y != 3])
    for of in ("shares", "prior"):
        lower, upper = estimate.interval(of=of)
        assert lower[3] == 0 < upper[3]


def test_if_samples_are_many_a_part_finds_the_weights_and_all_count_in_the_shares():
    proba, y = bayes_outputs(OTHER, 20_000)
    source = source_of(1000)
    whole, part = rp.ebls(source, proba), rp.ebls(source, proba, settings=Settings(max_samples=4000))
    np.testing.assert_allclose(part.shares, whole.shares, atol=0.01)
    np.testing.assert_allclose(part.shares, share_of(y), atol=0.03)
    for result in (whole, part):  # the interval is centred where the estimate is
        lower, upper = result.interval()
        np.testing.assert_allclose((lower + upper) / 2, result.shares, atol=0.01)


def test_training_counts_beat_the_noise_of_few_held_out_samples():
    heldout, y = bayes_outputs(EPS, 60, seed=11)
    estimate = rp.ebls(rp.summarize(heldout, y, prior=EPS), bayes_outputs(EPS, 300)[0], base=EPS)
    np.testing.assert_allclose(estimate.prior, EPS, atol=0.03)


def test_a_class_without_held_out_samples_keeps_its_training_share():
    heldout, y = bayes_outputs(EPS, 600, seed=5)
    kept = y != 2
    source = rp.summarize(heldout[kept], y[kept], prior=EPS)
    estimate = rp.ebls(source, bayes_outputs(EPS, 1500)[0], base=EPS)
    np.testing.assert_allclose(estimate.weights, 1, atol=0.2)
    np.testing.assert_allclose(estimate.shares, EPS, atol=0.04)


def test_a_class_that_no_held_out_sample_resembles_gets_nothing():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=300)
    proba = np.column_stack([np.where(y == 0, 0.9, 0.1), np.where(y == 1, 0.9, 0.1), np.full(300, 1e-4)])
    proba /= proba.sum(axis=1, keepdims=True)
    assert rp.ebls(rp.summarize(proba, y), proba[:200]).shares[2] < 0.001


def test_labels_of_all_samples_give_their_shares():
    proba, y = bayes_outputs(OTHER, 300)
    estimate = rp.ebls(source_of(200), proba, labels=y)
    np.testing.assert_allclose(estimate.shares, share_of(y), atol=1e-6)


def test_random_labels_bring_shares_and_weights_closer():
    errors = np.zeros((20, 2))
    for seed in range(20):
        proba, y = bayes_outputs(OTHER, 600, distance=0.5, seed=seed)
        labels = np.where(np.arange(600) < 150, y, -1)
        source = source_of(200, seed=50 + seed, distance=0.5)
        errors[seed] = [np.abs(rp.ebls(source, proba, labels=reference).shares - share_of(y)).sum()
                        for reference in (None, labels)]  # fmt: skip
    assert errors[:, 1].mean() < 0.7 * errors[:, 0].mean()


@pytest.mark.parametrize("bad", [{"base": [1, 2]}, {"base": [-1, 1, 1, 1]}])
def test_a_bad_base_is_refused(bad):
    with pytest.raises(rp.InputError, match="base"):
        rp.ebls(EPS, np.tile(EPS, (5, 1)), **bad)


@pytest.mark.parametrize("n", [1, 50])
def test_samples_that_are_all_alike_divide_nothing_by_zero(n):
    rng = np.random.default_rng(0)
    heldout = rng.dirichlet([1, 1, 1], 200)
    y = np.array([rng.choice(3, p=row) for row in heldout])
    with np.errstate(divide="raise", invalid="raise"):
        estimate = rp.ebls(rp.summarize(heldout, y), [[0.5, 0.25, 0.25]] * n)
    assert np.isfinite(estimate.prior).all()


def test_a_source_share_near_none_leaves_a_prior():
    proba = np.tile([[1e-3, 1 - 1e-3], [0.5, 0.5]], (20, 1))
    assert np.isfinite(rp.ebls([1e-90, 1.0], proba).prior).all()


def test_a_mode_solves_its_equation():
    samples, k = samples_of(source_of(500), bayes_outputs(OTHER, 800)[0]), 4
    size, mean = np.array([np.full(k, 1.0), np.full(k, 30.0)]), np.ones((2, k))
    fit = fit_weights(samples, size, mean, mean, tol=1e-7)
    assert fit.converged
    step = 1e-3
    for j, weights in enumerate(fit.weights):
        for c in range(k):  # the log posterior of log w is flat there
            up, down = (weights * np.exp(sign * step * (np.arange(k) == c)) for sign in (1, -1))
            value = [log_likelihood(samples, w) + log_gamma_density(w, size[j], mean[j]).sum()
                     for w in (up, down)]  # fmt: skip
            assert (value[0] - value[1]) / (2 * step) == pytest.approx(0, abs=0.3)


def test_evidence_is_the_integral_over_the_weights():
    prior = np.array([0.8, 0.2])
    heldout, y = bayes_outputs(prior, 60, implied=prior, distance=1.0, seed=2)
    proba, _ = bayes_outputs(np.array([0.5, 0.5]), 40, implied=prior, distance=1.0, seed=1)
    samples = samples_of(rp.summarize(heldout, y), proba)
    u = np.linspace(-6, 6, 161)
    for size in (1.0, 10.0):
        gamma = GammaPrior(np.full(2, size), np.ones(2), 0.0)
        fit = fit_weights(samples, *stacked([gamma]), np.ones((1, 2)), tol=1e-8)
        result = laplace(samples, gamma, fit.weights[0]).log_evidence
        grid = [np.exp([a, b]) for a in u for b in u]
        values = [log_likelihood(samples, w) + log_gamma_density(w, gamma.size, gamma.mean).sum()
                  for w in grid]  # fmt: skip
        exact = np.logaddexp.reduce(values) + 2 * np.log(u[1] - u[0])
        assert result == pytest.approx(exact, abs=0.15)


def test_absent_and_dominant_classes_are_found_among_many():
    data = datasets.load("banking77")
    pipe = rp.pipeline(data.heldout_proba, data.heldout_y, counts=data.counts)
    for prior in (rp.simulate.tweak_one(77, 0.5, rng=0), rp.simulate.knock_out(77, 0.5, rng=0)):
        target = rp.simulate.resample(data.pool_proba, data.pool_y, prior, n=3000, rng=1)
        with_odd, without = (
            rp.ebls(pipe.source, pipe.calibrate(target.proba), base=pipe.options["base"], settings=settings)
            for settings in (Settings(), Settings(odd_share=1e-6))
        )
        error = [rp.metrics.kl(share_of(target.y, 77), result.shares, floor=1e-8) for result in (with_odd, without)]
        assert error[0] < 0.9 * error[1]


def test_settings_are_open_to_the_caller():
    heldout, y = bayes_outputs(EPS, 200)
    proba, _ = bayes_outputs(np.array([0.4, 0.35, 0.2, 0.05]), 500)
    never = rp.pipeline(heldout, y, settings=Settings(no_shift=1 - 1e-12)).estimate(proba, check=False)
    often = rp.pipeline(heldout, y, settings=Settings(no_shift=0.01)).estimate(proba, check=False)
    np.testing.assert_allclose(never.weights, 1, atol=1e-6)
    assert np.abs(often.weights - 1).max() > 0.05


def test_kinds_of_shift_are_averaged_by_their_evidence():
    samples = samples_of(source_of(500), bayes_outputs(OTHER, 800)[0])
    shifts = fit_shifts(samples, Settings())
    assert shifts.probability.sum() == pytest.approx(1)
    assert shifts.no_shift < 1e-6
    assert (shifts.weights > 0).all()
