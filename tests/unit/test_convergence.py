"""Section IV-C: the increment of one sample, the trade-off it implies, and the instability it does not mention."""

import numpy as np
import pytest

from reprior import InputError
from reprior._types import Source
from reprior.assess.convergence import increment, next_prior, runaway_rate, step_size
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
    logits = sharp * rng.standard_normal((n, k)) + sharp**2 * np.eye(k)[y]
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    return p / p.sum(axis=1, keepdims=True)


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
