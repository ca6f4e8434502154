"""What hu2025 names: its objective, its surrogate and that one's error, and how far one sample moves its estimate."""

import numpy as np
import pytest
from scipy.stats import dirichlet
from worlds import make_problem, score_outputs

import reprior as rp
from reprior import InputError, bounds
from reprior._types import Source
from reprior.assess.bounds import increment, next_prior, runaway_rate, step_size
from reprior.assess.metrics import kl
from reprior.online.fmapls import OnlineFmapls
from reprior.online.method import init, step


def test_increment_is_the_printed_expression():
    rng = np.random.default_rng(0)
    k, gamma, c_hat = 6, 0.7, 40.0
    pi, b = rng.dirichlet(np.ones(k)), rng.random(k)
    b /= b @ pi  # M = Σ B π = 1
    delta = np.eye(k)[2]
    m = b @ pi
    printed = np.abs((pi * (gamma * b - gamma * m + gamma + k - 1) + (1 - gamma) * delta - 1)
                     / (c_hat - k + 1 - gamma + gamma * m))  # eq. 37, letter by letter  # fmt: skip
    options = {"c_hat": c_hat, "gamma": gamma, "label": delta}
    np.testing.assert_allclose(increment(pi, b * pi, **options), printed, rtol=1e-12)
    np.testing.assert_allclose(np.abs(next_prior(pi, b * pi, **options) - pi), printed, rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("variant", ["paper", "stable"])
def test_the_step_is_of_order_one_over_c(variant):
    pi, r = np.full(5, 0.2), np.eye(5)[0]
    sizes = [increment(pi, r, c_hat=c, variant=variant)[0] * c for c in (1e3, 1e4, 1e5)]
    np.testing.assert_allclose(sizes, sizes[-1], rtol=1e-2)
    assert step_size(1e3, 5, variant=variant) == pytest.approx(1e-3, rel=1e-2)


def test_where_the_printed_denominator_is_not_positive_it_is_refused():
    with pytest.raises(InputError, match="`c_hat` must be above K − 1 = 9"):
        step_size(9.0, 10)
    assert step_size(9.0, 10, variant="stable") == pytest.approx(0.1)


def outputs(prior, n, rng, k=10, sharp=2.0):
    """Calibrated outputs under a uniform source prior, rows drawn under `prior`."""
    y = rng.choice(k, n, p=prior)
    return score_outputs(rng, y, k, sharp)


def path(method, rows, truth):
    state, errors = init(method), []
    for block in np.split(rows, 40):
        state = step(state, block)
        errors.append(kl(truth, state.prior))
    return np.array(errors)


def test_larger_c_is_slower_but_more_accurate_in_the_stable_form():
    rng = np.random.default_rng(1)
    truth = rng.dirichlet(np.ones(10))
    source = Source(np.full(10, 0.1))
    rows = outputs(truth, 6000, rng)
    errors = {c: path(OnlineFmapls(source, c=c), rows, truth) for c in (5.0, 50.0, 500.0)}
    halved = [int(np.argmax(e < kl(truth, source.prior) / 2)) for e in errors.values()]
    assert halved == sorted(halved)
    assert halved[2] > halved[0] + 5
    assert errors[5.0][20:].mean() > 2 * errors[50.0][20:].mean()  # the small c keeps jumping about


def test_a_sample_that_says_nothing_drives_the_printed_form_away_from_uniform():
    k, c, n = 10, 50.0, 60
    source = Source(np.full(k, 1 / k))
    nothing = np.full((n, k), 1 / k)
    moved = source.prior + 1e-6 * (np.arange(k) - 4.5)
    pi = moved
    for _ in range(n):
        pi = next_prior(pi, pi, c_hat=c / pi.max())
    growth = np.abs(pi - 1 / k).max() / np.abs(moved - 1 / k).max()
    assert growth == pytest.approx((1 + runaway_rate(c, k)) ** n, rel=1e-3)
    assert growth > 2  # about exp(n/c)
    still = step(init(OnlineFmapls(source)), nothing).prior
    np.testing.assert_allclose(still, 1 / k, atol=1e-12)


def test_the_printed_stream_passes_the_truth_and_goes_on_to_one_class_or_has_not_moved():
    rng = np.random.default_rng(2)
    k, n = 10, 3000
    truth = rng.dirichlet(np.ones(k))
    source, rows = Source(np.full(k, 1 / k)), outputs(truth, n, rng)
    errors = {}
    for c in (200.0, 30000.0):
        pi, errors[c] = source.prior, []
        for p in rows:  # from α = LSF(π): the printed start, α = 1, is worse still
            r = p * pi
            pi = np.maximum(next_prior(pi, r / r.sum(), c_hat=c / pi.max()), 1e-12)
            pi /= pi.sum()
            errors[c].append(kl(truth, pi))
    stable = path(OnlineFmapls(source), rows, truth)[-1]
    assert errors[200.0][-1] > 10
    assert min(errors[200.0]) < 0.1  # a stopped clock is right once
    assert errors[30000.0][-1] > kl(truth, source.prior) / 2
    assert stable < 0.02


def test_variants_are_those_of_the_streams():
    for call in (next_prior, increment):
        with pytest.raises(InputError, match=f"{call.__name__}: `variant` must be one of 'paper', 'stable'"):
            call([0.5, 0.5], [0.5, 0.5], c_hat=9.0, variant="Stable")
    with pytest.raises(InputError, match="step_size: `variant`"):
        step_size(9.0, 2, variant="mean")


def test_the_part_in_alpha_is_the_log_density_of_scipy_and_its_gradient_that_of_differences():
    rng = np.random.default_rng(3)
    pi, alpha = rng.dirichlet(np.ones(6)), rng.gamma(3.0, size=6) + 0.1
    assert bounds.alpha_objective(alpha, pi) == pytest.approx(dirichlet.logpdf(pi, alpha), rel=1e-12)
    counts = rng.random(6) * 40
    assert bounds.objective(pi, alpha, counts) == pytest.approx(dirichlet.logpdf(pi, alpha) + counts @ np.log(pi))
    for j in range(6):
        step = 1e-5 * np.eye(6)[j]
        difference = (bounds.alpha_objective(alpha + step, pi) - bounds.alpha_objective(alpha - step, pi)) / 2e-5
        assert bounds.alpha_gradient(alpha, pi)[j] == pytest.approx(difference, abs=1e-6)


def test_an_m_step_maximises_the_printed_objective_in_the_prior():
    rng = np.random.default_rng(4)
    alpha, counts = rng.gamma(3.0, size=5) + 1, rng.random(5) * 40
    best = alpha - 1 + counts  # eq. 9
    best /= best.sum()
    top = bounds.objective(best, alpha, counts)
    for other in rng.dirichlet(200 * best, 50):
        assert bounds.objective(other, alpha, counts) < top


@pytest.mark.parametrize("c_hat", [3.0, 100.0, 1e6])
def test_the_surrogates_error_lies_within_its_bounds(c_hat):
    pi = rp.simulate.long_tail(30, 0.01)
    low, high = bounds.surrogate_error_bounds(pi, c_hat)
    error = bounds.surrogate_error(pi, c_hat)
    assert (low < error).all()
    assert (error < high).all()
    np.testing.assert_allclose(error, bounds.alpha_gradient(bounds.surrogate(pi, c_hat * pi.max()), pi), atol=1e-12)
    assert (high <= 1 / (c_hat * pi)).all()  # O(1/ĉπ), as printed


def test_the_final_alpha_is_that_of_the_update():
    problem = make_problem(k=6, n=500)
    inputs = problem.source_prior, problem.proba
    printed = rp.fmapls(*inputs, variant="paper", c=900.0)
    np.testing.assert_allclose(printed.alpha, bounds.surrogate(printed.prior, 900.0))
    assert rp.fmapls(*inputs, c=70.0).alpha.sum() == pytest.approx(70)
    climbed = [rp.fmapls(*inputs, update="ga", mu=10.0, n_iter=t).alpha.sum() for t in (20, 40, 80)]
    assert climbed[0] < climbed[1] < climbed[2]
    assert rp.mlls(*inputs).alpha is None


def test_bad_alpha_is_refused():
    for alpha in ([1.0], [1.0, 0.0], [np.nan, 1.0]):
        with pytest.raises(InputError, match="`alpha` must be"):
            bounds.alpha_objective(alpha, [0.5, 0.5])
    with pytest.raises(InputError, match="objective: `counts` must be"):
        bounds.objective([0.5, 0.5], [1, 1], [3.0, -1.0])
    with pytest.raises(InputError, match="surrogate: `c` must be"):
        bounds.surrogate([0.5, 0.5], 0.0)
