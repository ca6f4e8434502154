"""The published online methods: each does what its paper says, and learns sample by sample like every stream."""

import numpy as np
import pytest
from worlds import score_outputs

import reprior as rp
from reprior import InputError
from reprior._types import Source
from reprior.assess.metrics import kl
from reprior.online.method import init, step, unpack
from reprior.online.published import PEERS, Ftfwh, Fth, Rogd, error_gradient, nearest_on_simplex, risk_and_gradient

K = 5


def outputs(y, rng, sharp=2.0):
    return score_outputs(rng, y, K, sharp)


@pytest.fixture(scope="module")
def source():
    rng = np.random.default_rng(0)
    y = rng.integers(K, size=400)
    return rp.summarize(outputs(y, rng), y)


TRUTH = np.array([0.5, 0.2, 0.15, 0.1, 0.05])


@pytest.fixture(scope="module")
def rows():
    rng = np.random.default_rng(1)
    return outputs(rng.choice(K, 3000, p=TRUTH), rng)


@pytest.mark.parametrize("name", PEERS)
def test_it_starts_at_the_source_and_comes_closer_to_the_truth(name, source, rows):
    state = init(PEERS[name](source))
    np.testing.assert_allclose(state.prior, source.prior, atol=2e-3)
    learned = step(state, rows)
    assert learned.n == 3000
    assert learned.prior.sum() == pytest.approx(1)
    assert learned.prior.min() > 0
    assert kl(TRUTH, learned.prior) < 0.6 * kl(TRUTH, source.prior)
    assert state.n == 0


@pytest.mark.parametrize("name", PEERS)
def test_any_split_gives_the_same_state_bit_for_bit(name, source, rows):
    method = PEERS[name](source)
    whole = step(init(method), rows[:205]).values
    parts = init(method)
    for first, last in ((0, 1), (1, 8), (8, 9), (9, 205)):
        parts = step(parts, rows[first:last])
    np.testing.assert_array_equal(parts.values, whole)


@pytest.mark.parametrize("name", PEERS)
def test_true_labels_that_come_late_help(name, source):
    rng = np.random.default_rng(5)
    y = np.zeros(600, np.intp)
    blunt = outputs(y, rng, sharp=0.3)  # these outputs say almost nothing
    method = PEERS[name](source, batch=10)
    without = step(init(method), blunt)
    state = method.init()
    for first in range(0, 600, 10):
        method.learn(state, blunt[first : first + 10])
        for row in blunt[first : first + 10]:
            method.observe(state, row, 0)
    assert method.prior(state)[0] > without.prior[0] + 0.005


@pytest.mark.parametrize("name", PEERS)
def test_a_source_without_labelled_rows_is_refused(name):
    with pytest.raises(InputError, match=f"^{name}: `source` must have held-out samples with labels"):
        PEERS[name](Source(np.full(K, 1 / K)))


@pytest.mark.parametrize("name", PEERS)
def test_none_of_them_claims_to_know_its_uncertainty(name, source):
    method = PEERS[name](source)
    with pytest.raises(InputError, match="Use 'online-ebls'"):
        method.spread(method.init())


def test_following_the_history_is_bbse_on_all_of_it(source, rows):
    batch = rp.bbse(source, rows, hard=True)
    state = step(init(Fth(source)), rows)
    np.testing.assert_allclose(state.prior, 0.999 * batch.prior + 0.001 / K, atol=1e-5)


def test_a_window_forgets_what_left_it(source, rows):
    method = Ftfwh(source, window=200)
    long, short = step(init(method), rows).prior, step(init(method), rows[-200:]).prior
    np.testing.assert_allclose(long, short, atol=1e-12)


def test_flh_ftl_holds_the_running_mean_since_each_start(source, rows):
    method = PEERS["flh-ftl"](source, experts=40)
    state = step(init(method), rows[:300])
    part = unpack(method.layout, state.values)
    estimates = []
    for block in np.split(rows[:300], 30):
        raw = method.inverse @ block.mean(axis=0)
        estimates.append(np.maximum(raw, 0) / np.maximum(raw, 0).sum())
    for start in (0, 13, 29):
        np.testing.assert_allclose(part["mean"][start], np.mean(estimates[start:], axis=0), atol=1e-9)
    assert part["weight"].sum() == pytest.approx(1)
    # with room for fewer experts than estimates the state stays bounded and sane
    bounded = step(init(PEERS["flh-ftl"](source, experts=5)), rows)
    assert kl(TRUTH, bounded.prior) < 0.2


def test_flh_ftl_leaves_the_past_faster_than_the_history(source):
    rng = np.random.default_rng(3)
    first, second = outputs(np.full(2000, 0), rng), outputs(np.full(600, 4), rng)
    both = np.concatenate([first, second])
    assert step(init(PEERS["flh-ftl"](source, rate=2.0)), both).prior[4] > step(init(Fth(source)), both).prior[4] + 0.2


def numeric(f, x, h=1e-6):
    return np.array([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(len(x))])


def test_gradients_are_those_of_the_published_risks(source):
    p, y = source.heldout
    rng = np.random.default_rng(4)
    prior, share, bias = rng.dirichlet(np.ones(K)), rng.dirichlet(np.ones(K)), rng.standard_normal(K)

    def error_rate(x):
        r = p / source.prior * x
        right = (r / r.sum(axis=1, keepdims=True))[np.arange(len(y)), y]
        return share @ [1 - right[y == k].mean() for k in range(K)]

    def log_loss(b):
        logits = np.log(p) + b
        own = logits[np.arange(len(y)), y] - np.log(np.exp(logits).sum(axis=1))
        return share @ [-own[y == k].mean() for k in range(K)]

    held = Rogd(source).held_out
    result = error_gradient(held, source.prior, prior, share)
    np.testing.assert_allclose(result, numeric(error_rate, prior), atol=1e-6)
    risk, gradient = risk_and_gradient(held, bias, share)
    assert risk == pytest.approx(log_loss(bias))
    np.testing.assert_allclose(gradient, numeric(log_loss, bias), atol=1e-6)


def test_nearest_point_on_the_simplex():
    rng = np.random.default_rng(6)
    for x in rng.standard_normal((20, K)):
        best = nearest_on_simplex(x)
        assert best.min() >= 0
        assert best.sum() == pytest.approx(1)
        others = rng.dirichlet(np.ones(K), 200)
        assert (((others - x) ** 2).sum(axis=1) >= ((best - x) ** 2).sum() - 1e-12).all()


def test_options_out_of_range_are_refused(source):
    with pytest.raises(InputError, match="`batch` must be a whole number of at least 1"):
        Fth(source, batch=0)
    with pytest.raises(InputError, match="`window` must be a whole number of at least 10"):
        Ftfwh(source, window=5, batch=10)
    with pytest.raises(InputError, match="`rate` must be a number above 0"):
        Rogd(source, rate=-1.0)


@pytest.mark.parametrize("name", PEERS)
def test_flags_are_true_or_false(name, source):
    with pytest.raises(InputError, match=f"{name}: `hard` must be True or False; got 'no'"):
        rp.Stream(name, source, hard="no")


def test_whole_numbers_may_be_written_as_floats(source, rows):
    for name, floats in (
        ("ftfwh", {"window": 30.0, "batch": 3.0}),
        ("flh-ftl", {"experts": 5.0}),
        ("atlas", {"horizon": 9.0}),
    ):
        one, same = rp.Stream(name, source, **floats), rp.Stream(name, source, **{k: int(v) for k, v in floats.items()})
        one.learn_many(rows[:99])
        same.learn_many(rows[:99])
        assert one.to_bytes() == same.to_bytes()
    with pytest.raises(InputError, match="ftfwh: `batch` must be a whole number"):
        rp.Stream("ftfwh", source, batch="ten")
    with pytest.raises(InputError, match="ftfwh: `window` must be a whole number of at least 9"):
        rp.Stream("ftfwh", source, batch=9, window=8)
    with pytest.raises(InputError, match="fth: `batch`"):
        rp.Stream("fth", source, batch="auto")
