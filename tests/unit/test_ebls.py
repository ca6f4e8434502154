"""EBLS does no harm: what it keeps, what it follows, how far it trusts the rows, and that its interval holds it."""

import numpy as np
import pytest
from conftest import make_problem
from scipy.special import gammaln

import reprior as rp
from reprior import datasets
from reprior.batch import hypotheses
from reprior.batch.ebls import scarce
from reprior.batch.hypotheses import nothing, suppose, weigh
from reprior.batch.trust import scatter, unsure_of
from reprior.rows.blocks import as_blocks
from reprior.rows.passes import SAMPLE, sample


def outputs(prior, n, *, carried, distance=1.5, seed=0):
    """Rows from `prior` of the Bayes classifier of Gaussian classes whose outputs carry the prior `carried`."""
    rng = np.random.default_rng(seed)
    k = len(prior)
    centres = distance * np.random.default_rng(99).normal(size=(k, 3))
    y = rng.choice(k, n, p=prior)
    x = centres[y] + rng.normal(size=(n, 3))
    z = x @ centres.T - 0.5 * (centres**2).sum(axis=1) + np.log(carried)
    z = np.exp(z - z.max(axis=1, keepdims=True))
    return z / z.sum(axis=1, keepdims=True), y


EPS = np.array([0.5, 0.3, 0.15, 0.05])


def known(n, seed=7, **how):
    return rp.summarize(*outputs(EPS, n, carried=EPS, seed=seed, **how))


def test_outputs_that_say_nothing_change_nothing():
    rows = np.tile(EPS, (500, 1))
    np.testing.assert_allclose(rp.ebls(EPS, rows).prior, EPS, atol=0.03)
    source = rp.summarize(rows[:200], np.arange(200) % 4)
    np.testing.assert_allclose(rp.ebls(source, rows).prior, EPS, atol=0.03)


@pytest.mark.parametrize("n", [100, 200, 1000])
def test_without_a_shift_corrected_outputs_are_not_worse(n):
    worse = []
    for seed in range(20):
        source = known(n, seed=100 + seed, distance=0.7)
        rows, y = outputs(EPS, 1000, carried=EPS, distance=0.7, seed=seed)
        own = (np.arange(1000), y)
        worse.append(np.mean(np.log(rows[own]) - np.log(rp.ebls(source, rows).correct(rows)[own])))
    assert np.mean(worse) < 0.002
    assert np.mean(np.array(worse) > 0.01) <= 0.05


def test_three_held_out_rows_a_class_of_an_uneven_source_hide_no_shift_and_feign_none():
    d = datasets.load("banking77")
    few = np.random.default_rng(4).permutation(len(d.heldout_y))[: 3 * 77]
    pipe = rp.pipeline(d.heldout_proba[few], d.heldout_y[few])
    for prior, shifted in ((rp.simulate.dirichlet(77, 1.0, rng=0), True), (d.counts / d.counts.sum(), False)):
        target = rp.simulate.resample(d.pool_proba, d.pool_y, prior, n=1000, rng=1)
        found = pipe.estimate(target.proba, check=False)
        if shifted:  # the held-out mix is a nat away
            assert rp.metrics.kl(target.prior, found.prior) < 0.2 * rp.metrics.kl(target.prior, pipe.source.prior)
        else:
            np.testing.assert_allclose(found.weights, found.weights[0], rtol=0.05)


def test_uneven_held_out_rows_of_an_even_source_are_no_shift():
    """Four rows a class are uneven by chance; an even target is then not what has shifted."""
    k, even = 26, np.full(26, 1 / 26)

    def exact(n, rng):
        y, z = rng.integers(k, size=n), rng.normal(size=(n, k))
        z[np.arange(n), y] += 2.5
        p = np.exp(2.5 * z)
        return p / p.sum(axis=1, keepdims=True), y

    for seed in range(3):
        rng = np.random.default_rng(seed)
        pipe = rp.pipeline(*exact(100, rng))
        rows, y = exact(2000, rng)
        own = (np.arange(2000), y)
        before, after = pipe.calibrate(rows)[own], pipe.estimate(rows, check=False).correct(rows)[own]
        assert np.mean(np.log(before) - np.log(after)) < 0.005
    assert np.abs(pipe.correct(rows, even) - pipe.calibrate(rows)).max() > 0.1  # what it would have done


def test_a_class_without_held_out_rows_does_not_upset_the_measure_of_noise():
    source = known(300)
    rows, _ = outputs(EPS, 1000, carried=EPS)
    full, _ = unsure_of(rows, 1000, EPS, source, unsure=10.0)
    kept = source.heldout[1] != 3
    lacking = rp.summarize(source.heldout[0][kept], source.heldout[1][kept], prior=source.prior)
    assert 0 < full <= 10
    assert np.isfinite(unsure_of(rows, 1000, EPS, lacking, unsure=10.0)).all()


def test_a_proven_shift_is_followed():
    target = np.array([0.05, 0.15, 0.3, 0.5])
    rows, y = outputs(target, 2000, carried=EPS)
    truth = np.bincount(y) / 2000
    for source in (EPS, known(200), known(1000)):
        np.testing.assert_allclose(rp.ebls(source, rows).prior, truth, atol=0.05)


def test_fewer_held_out_rows_are_trusted_less_and_give_wider_intervals():
    rows, _ = outputs(np.array([0.4, 0.3, 0.2, 0.1]), 500, carried=EPS)
    few, many = rp.ebls(EPS, rows, worth=20), rp.ebls(EPS, rows, worth=1e5)
    assert rp.metrics.kl(EPS, few.prior) < 0.3 * rp.metrics.kl(EPS, many.prior)
    width = [np.subtract(*reversed(e.interval())) for e in (few, many)]
    assert (width[0] > width[1]).all()


def test_a_classifier_that_is_seen_to_mislead_is_trusted_less():
    source = known(2000)
    heldout, y = source.heldout
    bent = heldout ** np.array([0.3, 1.0, 2.0, 1.0])
    bent /= bent.sum(axis=1, keepdims=True)

    def measured(mix: np.ndarray, proba: np.ndarray) -> float:
        rows, _ = outputs(mix, 2000, carried=EPS)
        return unsure_of(rows, 2000, mix, rp.summarize(proba, y), unsure=1.0)[0]

    assert measured(EPS, heldout) <= 1.0
    assert measured(EPS[::-1], bent) > 3 * measured(EPS[::-1], heldout)


def test_few_held_out_rows_of_what_is_frequent_now_are_trusted_less():
    """A hundred of 2,000 held-out rows stand for the class that half of the rows have."""
    source, mix = known(2000), EPS[::-1]
    near, far = (unsure_of(outputs(m, 2000, carried=EPS)[0], 2000, m, source, unsure=1.0)[0] for m in (EPS, mix))
    assert far > 1.3 * near


def test_whether_anything_has_shifted_is_asked_at_the_source_mix():
    """A shift that is proven stays proven where its size is not well known."""
    rows, _ = outputs(np.array([0.02, 0.08, 0.1, 0.8]), 1000, carried=EPS)
    found = rp.ebls(known(100), rows)
    assert found.prior[3] > 0.4
    assert found.posterior.unsure > 1000 / 100  # more than theory says


def test_a_class_of_few_held_out_rows_is_granted_little_by_the_uniform_prior():
    told, base = np.array([0.0, 1.0, 4.0, 95.0]), np.array([0.005, 0.01, 0.035, 0.95])
    loosest = suppose(base, 100.0, nothing(4), told).alpha[7] / 0.3  # AROUND_UNIFORM's first
    assert (np.diff(loosest) > 0).all()
    assert loosest[0] < 0.15
    assert loosest[3] > 0.999
    share, told = np.full(400, 0.01 / 3), np.full(400, 3.0)
    told[:100], share[:50], share[50:100] = 0.0, 1e-3, 2e-5  # where 0.9 rows and next to none would be expected
    many = suppose(share / share.sum(), 900.0, nothing(400), told).alpha[7] / 0.3
    assert many[:50].min() > 0.9  # of many classes some have none by chance
    assert many[50:100].max() < 0.1  # but not those that the source has hardly any of


@pytest.mark.parametrize("target", [EPS, EPS[::-1], np.array([0.97, 0.01, 0.01, 0.01])])
@pytest.mark.parametrize("n", [3, 50, 2000])
def test_the_estimate_lies_in_its_interval(target, n):
    rows, _ = outputs(target, n, carried=EPS, seed=n)
    for source in (EPS, known(150)):
        estimate = rp.ebls(source, rows)
        for level in (0.05, 0.5, 0.95):
            lower, upper = estimate.interval(level)
            assert (lower <= estimate.prior).all()
            assert (estimate.prior <= upper).all()


def test_intervals_cover_where_held_out_rows_are_few():
    inside = []
    for seed in range(40):
        target = np.random.default_rng(seed).dirichlet(np.full(4, 2.0))
        rows, y = outputs(target, 800, carried=EPS, distance=0.8, seed=seed)
        lower, upper = rp.ebls(known(200, seed=200 + seed, distance=0.8), rows).interval()
        truth = np.bincount(y, minlength=4) / 800
        inside.append((lower <= truth) & (truth <= upper))
    assert np.mean(inside) > 0.9


def test_the_training_mix_is_kept_where_it_is_known_better_than_what_outputs_carry():
    carried = np.array([0.4, 0.3, 0.2, 0.1])
    rows, _ = outputs(EPS, 300, carried=carried, distance=0.3)
    np.testing.assert_allclose(rp.ebls(carried, rows, base=EPS).prior, EPS, atol=0.03)


def test_of_long_targets_a_sample_decides_and_all_rows_say_the_shares(monkeypatch):
    rows, y = outputs(EPS[::-1], 20000, carried=EPS)
    whole = rp.ebls(EPS, rows)
    monkeypatch.setattr("reprior.rows.passes.SAMPLE", 16000)
    assert len(sample(as_blocks(rows, EPS, "x"))[0]) < 6000 < SAMPLE
    few = rp.ebls(EPS, rows)
    np.testing.assert_allclose(few.prior, whole.prior, atol=0.01)
    np.testing.assert_allclose(few.prior, np.bincount(y) / 20000, atol=0.03)


@pytest.mark.parametrize(
    ("options", "words"), [({"worth": 0}, "worth"), ({"worth": -1}, "worth"), ({"base": [1, 2]}, "base")]
)
def test_bad_options_are_refused(options, words):
    with pytest.raises(rp.InputError, match=words):
        rp.ebls(EPS, np.tile(EPS, (5, 1)), **options)


@pytest.mark.parametrize("n", [1, 50])
def test_rows_that_are_all_alike_divide_nothing_by_zero(n):
    rng = np.random.default_rng(0)
    heldout = rng.dirichlet([1, 1, 1], 200)
    y = np.array([rng.choice(3, p=row) for row in heldout])
    with np.errstate(all="raise"):
        found = rp.ebls(rp.summarize(heldout, y), [[0.5, 0.25, 0.25]] * n)
    assert np.isfinite(found.prior).all()


def test_an_interval_holds_the_share_of_a_class_that_does_not_occur():
    problem = make_problem(k=4, n=1500, separation=2.5)
    keep = problem.y != 3
    found = rp.ebls(problem.source, problem.proba[keep])
    lower, upper = found.interval()
    assert lower[3] == 0 < upper[3]
    assert ((lower <= found.prior) & (found.prior <= upper)).all()


def test_a_class_that_no_held_out_row_shows_gets_nothing_from_nothing():
    rng = np.random.default_rng(0)
    y = rng.integers(2, size=300)
    rows = np.column_stack([np.where(y == 0, 0.9, 0.1), np.where(y == 1, 0.9, 0.1), np.full(300, 1e-4)])
    rows /= rows.sum(axis=1, keepdims=True)
    source = rp.summarize(rows, y)
    assert source.counts[2] == 0
    assert rp.ebls(source, rows[:200]).prior[2] < 0.005


def test_where_every_other_class_may_be_absent_all_rows_may_be_of_one() -> None:
    rng = np.random.default_rng(3)
    y = rng.integers(2, size=400)
    x = rng.normal(2.0 * y)
    rows = 1 / (1 + np.exp(-2 * (x - 1)))
    pipe = rp.pipeline(np.stack([1 - rows, rows], axis=1), y)
    target = 1 / (1 + np.exp(-2 * (rng.normal(2.0, size=300) - 1)))  # of class 1 alone
    lower, upper = pipe.estimate(np.stack([1 - target, target], axis=1)).interval()
    assert lower[0] == 0
    assert upper[1] == 1
    assert upper[0] + lower[1] == pytest.approx(1, abs=1e-6)


def test_rows_that_say_nothing_leave_all_hypotheses_as_likely_as_they_were():
    """Laplace's method alone takes 1/12 of a nat for each class and row that a loose hypothesis is worth."""
    k = 100
    given = suppose(np.full(k, 1 / k), 30.0 * k, nothing(k), np.full(k, np.inf))
    fit, _, _ = weigh(np.ones((500, k)), np.ones(k), given, 500, 1.0, tol=1e-8, n_iter=60)
    np.testing.assert_allclose(fit.log_odds - np.log(given.odds), 0, atol=0.2)


def test_evidence_is_the_integral_over_the_shares():
    carried = np.array([0.8, 0.2])
    rows, _ = outputs(np.array([0.5, 0.5]), 40, carried=carried, distance=1.0, seed=1)
    ratio, given = rows / carried, suppose(carried, 60.0, nothing(2), np.full(2, np.inf))
    fit, _, _ = weigh(rows, carried, given, 40, 0.7, tol=1e-10, n_iter=500)
    u = np.linspace(-200, 200, 100_001)  # logit of the first share, by which Dirichlet densities are smooth
    share = np.exp(-np.logaddexp(0, np.stack([-u, u])))
    likelihood = 0.7 * np.log(ratio @ share).sum(axis=0)
    for alpha, odds, found in zip(given.alpha, given.odds, fit.log_odds, strict=True):
        density = gammaln(alpha.sum()) - gammaln(alpha).sum() + alpha @ np.log(share)
        exact = np.log(np.exp(likelihood + density).sum() * (u[1] - u[0]))
        assert found - np.log(odds) == pytest.approx(exact, abs=0.012)


def test_a_plain_shift_among_many_classes_is_followed_though_the_classifier_is_weak():
    """Evidence that fell short for loose hypotheses, and the modes of narrow ones, drew estimates to the uniform."""
    k, errors = 100, []
    carried = 0.02 ** (np.arange(k) / (k - 1))
    carried /= carried.sum()
    for seed in range(2):
        rng = np.random.default_rng(seed)
        true = rng.dirichlet(np.full(k, 2.0))

        def said_of(y, rng=rng):
            z = rng.normal(size=(len(y), k))
            z[np.arange(len(y)), y] += 2.0
            p = carried * np.exp(2.0 * (z - z.max(axis=1, keepdims=True)))
            return p / p.sum(axis=1, keepdims=True)

        y = np.concatenate([np.arange(k), rng.choice(k, 2000, p=carried)])
        source = rp.summarize(said_of(y), y, prior=carried)
        rows = said_of(rng.choice(k, 1500, p=true))
        errors.append([rp.metrics.kl(true, estimate(source, rows).prior) for estimate in (rp.ebls, rp.mapls)])
    ours, theirs = np.mean(errors, axis=0)
    assert ours < 1.2 * theirs


def test_rows_that_scatter_more_than_the_classifier_says_are_noise_not_its_error():
    rng = np.random.default_rng(0)
    y, within = np.repeat(np.arange(50), 4), np.full(50, 3.0)  # of three directions, of variance 1
    place = rng.normal(size=50)[y][:, None] + rng.normal(size=(200, 3))
    assert scatter(place, y, within) == pytest.approx(1, abs=0.15)
    assert scatter(2 * place, y, within) == pytest.approx(4, rel=0.2)
    assert scatter(0.1 * place, y, within) == 1


@pytest.mark.parametrize("n", [3000, 30_000])
def test_among_many_classes_no_shift_and_an_even_mix_are_not_drowned_in_the_rows_error(n):
    """Rows once said the shares of every shift, also of next to none: that cost half a point of accuracy."""
    d = datasets.load("banking77")
    pipe = rp.pipeline(d.heldout_proba, d.heldout_y, counts=d.counts)
    for prior in (d.counts / d.counts.sum(), np.full(77, 1 / 77)):
        target = rp.simulate.resample(d.pool_proba, d.pool_y, prior, n=n, rng=5)
        found = pipe.estimate(target.proba, check=False)
        assert rp.metrics.kl(target.prior, found.prior) < 0.002


def test_an_even_target_of_an_even_source_is_no_shift_though_it_is_more_even_than_chance():
    """As many rows of each class favour the narrowest hypotheses, in which what rows say is noise."""
    k, rng = 100, np.random.default_rng(0)
    y = np.tile(np.arange(k), 3)

    def outputs_of(y):
        z = rng.normal(size=(len(y), k))
        z[np.arange(len(y)), y] += 2.5
        p = np.exp(2.5 * z)
        return p / p.sum(axis=1, keepdims=True)

    source = rp.summarize(outputs_of(y), y, prior=np.ones(k))
    assert rp.metrics.kl(np.full(k, 1 / k), rp.ebls(source, outputs_of(y)).prior) < 1e-4


def test_a_source_share_near_none_leaves_a_prior() -> None:
    rows = np.tile([[1e-3, 1 - 1e-3], [0.5, 0.5]], (20, 1))
    assert np.isfinite(rp.ebls([1e-90, 1.0], rows).prior).all()


def test_rows_in_single_precision_move_no_share_by_more_than_the_tolerance(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = make_problem(40, 800)
    taken: list[type] = []
    light = hypotheses.lighter
    monkeypatch.setattr(hypotheses, "SMALL", 0)
    monkeypatch.setattr(hypotheses, "lighter", lambda *given: taken.append((out := light(*given)).dtype.type) or out)
    rounded = rp.ebls(problem.source, problem.proba).prior
    monkeypatch.setattr(hypotheses, "SINGLE", 0.0)
    exact = rp.ebls(problem.source, problem.proba).prior
    assert {np.float32, np.float64} == set(taken)
    assert np.abs(rounded - exact).sum() < 1e-5


def test_classes_without_held_out_rows_are_granted_a_share_only_if_they_lack_them_by_chance() -> None:
    base = np.full(100, 0.01)
    by_chance = np.repeat([0.0, 1.0, 2.0, 3.0, 4.0], [5, 15, 22, 22, 36])  # as three rows a class make it
    never = np.repeat([0.0, 6.0], [50, 50])  # half of the classes are of another world
    for told, low, high in ((by_chance, 0.5, 1.0), (never, 0.0, 0.1)):
        expected = np.where(told == 0, 0.2 / told.sum(), base)  # outputs grant those a fifth of a row
        even = hypotheses.granted(expected, told)
        assert low <= even[0] <= high
        assert even[-1] > 0.9
    alone = hypotheses.granted(np.array([0.001, 0.4, 0.599]), np.array([0.0, 80.0, 120.0]))  # few classes tell nothing
    assert alone[0] < 0.05


@pytest.mark.parametrize(
    ("mix", "n", "most"),
    [  # in brackets: under Dirichlet priors that are alike for all classes
        (lambda rng: rp.simulate.tweak_one(77, 0.5, rng=rng), 3000, 0.012),  # (0.029)
        (lambda rng: rp.simulate.knock_out(77, 0.3, rng=rng), 3000, 0.011),  # (0.042; after one look 0.014)
        (lambda rng: rp.simulate.dirichlet(77, 1.0, rng=rng), 200, 0.19),  # (0.233, if rows alone say the shares)
    ],
)
def test_classes_apart_from_the_others_and_few_rows(mix, n, most) -> None:
    data = datasets.load("banking77")
    source = rp.summarize(data.heldout_proba, data.heldout_y, prior=data.counts)
    found = []
    for seed in range(5):
        rng = np.random.default_rng(seed)
        sample = rp.simulate.resample(data.pool_proba, data.pool_y, mix(rng), n=n, rng=rng, exact=n >= 1000)
        found.append(rp.metrics.kl(sample.prior, rp.ebls(source, sample.proba).prior, floor=1e-8))
    assert np.mean(found) < most


def test_parts_of_a_row_count_as_parts_where_rows_are_scarce() -> None:
    even = np.full(100, 0.01)
    sure, unsure = np.zeros(100), np.zeros(100)
    sure[:10], unsure[:25] = 0.1, 0.04  # ten rows of ten classes; each says two classes and a half

    assert scarce(sure, even, 10) == pytest.approx(1.0, abs=0.01)
    assert scarce(unsure, even, 10) == pytest.approx(1.0, abs=0.01)  # (0, if a class must have half of a row)
    assert scarce(np.where(np.arange(100) < 2, 0.5, 0.0), even, 10) == 0  # two classes of five rows: no other is there


@pytest.mark.parametrize("there", [False, True])
def test_a_class_that_resembles_another_is_found_absent_beside_the_others(there: bool) -> None:
    k, each, rng = 30, 40, np.random.default_rng(0)
    y = np.repeat(np.arange(0 if there else 1, k), each)
    ratio = np.where(y[:, None] == np.arange(k), 20.0, 0.2)
    likeness = rng.uniform(0.3, 1.0, (len(y), 1))  # rows of the first two classes look much alike
    ratio[:, :2] = np.where(y[:, None] > 1, 0.2, 20 * np.where(y[:, None] == np.arange(2), 1.0, likeness))
    usual, doubtful = np.full(k, 1 / k), np.arange(k) < 1

    for first in (0.0, 1.0):  # whatever the first look says
        gone = np.where(doubtful, first, 0.0)
        mix = np.where(doubtful, 1 - first + 0.01 * first, 1.0) / k
        found = hypotheses.one_by_one(gone, mix, usual, np.flatnonzero(doubtful), 0, ratio, len(y))
        assert found[0] < 0.01 if there else found[0] > 0.99
        assert not found[1:].any()
        few = hypotheses.one_by_one(gone, mix, usual, np.flatnonzero(doubtful), 0, ratio, 20.0)
        assert 0.001 < few[0] < 0.9  # so few rows leave it open


def test_hypotheses_but_for_some_classes_are_paid_for() -> None:
    base, k = np.full(40, 1 / 40), 40
    given = suppose(base, 4000.0, nothing(k), np.full(k, 100.0))
    rng = np.random.default_rng(0)

    def but_for_some(shares: np.ndarray, worth: float = 4000.0) -> hypotheses.Hypotheses | None:
        rows = np.repeat(0.02 / k + 0.98 * np.eye(k), rng.multinomial(4000, shares), axis=0)
        return hypotheses.but_for_some(shares, given, base, rows, base, worth)

    assert but_for_some(base) is None
    one = np.where(np.arange(k) == 3, 0.5, 0.5 / 39)
    found = but_for_some(one)
    np.testing.assert_allclose(found.alpha / found.alpha.sum(axis=1, keepdims=True), np.tile(one, (3, 1)), rtol=1e-6)
    assert (np.diff(found.odds) < 0).all()  # the more a prior claims to know of that share, the more it costs
    uneven = but_for_some(rng.dirichlet(np.full(k, 0.3)))
    assert uneven.odds.max() < 1e-3 * found.odds.max()  # many exceptions are less likely than one
    assert but_for_some(one, 10.0) is None  # too few rows to see it


def test_the_order_of_the_columns_does_not_matter() -> None:
    """Where many classes are absent, what is found of one changes what is found of the next."""
    for seed in range(6):
        rng, k = np.random.default_rng(seed), 20
        middles = rng.normal(size=(k, 4)) * 1.2
        mix = np.where(rng.random(k) < 0.3, 0.0, 1.0)

        def outputs(prior, n, rng=rng, middles=middles, k=k):
            y = rng.choice(k, n, p=prior)
            logits = (middles[y] + rng.normal(size=(n, 4))) @ middles.T - 0.5 * (middles**2).sum(axis=1)
            p = np.exp(logits - logits.max(axis=1, keepdims=True))
            return p / p.sum(axis=1, keepdims=True), y

        held, y = outputs(np.full(k, 1 / k), 1000)
        rows = outputs(mix / mix.sum(), 600)[0]
        found = rp.ebls(rp.summarize(held, y), rows).prior
        back = rp.ebls(rp.summarize(held[:, ::-1], k - 1 - y), rows[:, ::-1]).prior[::-1]
        np.testing.assert_allclose(found, back, atol=0.01 / k)
