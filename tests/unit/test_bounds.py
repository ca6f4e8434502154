"""The printed bounds against their matrices, and intervals where they are easy to get wrong."""

from dataclasses import replace

import numpy as np
import pytest
from worlds import make_problem, two_gaussians

import reprior as rp
from reprior import bounds
from reprior.rows.blocks import ArrayBlocks
from reprior.rows.passes import information


def printed_bound(prior, mass):
    """Eq. 13 and 14 as they stand: a (K − 1)-dimensional matrix, inverted."""
    scaled = mass / prior**2
    return np.linalg.inv(np.diag(scaled[:-1]) + scaled[-1])


def test_batch_bound_is_the_inverse_of_the_printed_matrix():
    prior, counts, alpha = np.array([0.4, 0.3, 0.2, 0.1]), np.array([41.0, 27.0, 22.0, 10.0]), np.array([1, 2, 3, 1.5])
    bound = bounds.cramer_rao(prior, counts, alpha=alpha)
    expected = printed_bound(prior, alpha - 1 + counts)
    np.testing.assert_allclose(bound.to_array()[:-1, :-1], expected, rtol=1e-10)
    np.testing.assert_allclose(bound.diagonal()[:-1], np.diag(expected), rtol=1e-10)
    assert bound.diagonal()[-1] == pytest.approx(expected.sum())  # π_K = 1 − Σ π_i


def test_batch_bound_does_not_depend_on_the_last_class_as_appendix_b_would():
    prior, counts = np.array([0.5, 0.3, 0.2]), np.array([500.0, 300.0, 200.0])
    np.testing.assert_allclose(
        bounds.cramer_rao(prior[::-1], counts[::-1]).diagonal()[::-1], bounds.cramer_rao(prior, counts).diagonal()
    )
    without_n = printed_bound(prior, np.array([500.0, 300.0, 0.2]))  # E f_K where N·E f_K belongs
    assert without_n[0, 0] > 1.9 * bounds.cramer_rao(prior, counts).diagonal()[0]


def test_online_bound_is_the_inverse_of_the_printed_matrix():
    prior, observed, alpha = np.array([0.5, 0.3, 0.2]), np.array([0.45, 0.35, 0.2]), np.array([10.0, 6.0, 4.0])
    bound = bounds.cramer_rao_online(prior, observed, alpha=alpha, gamma=0.7, label=1)
    expected = printed_bound(prior, alpha - 1 + 0.3 * np.array([0, 1, 0]) + 0.7 * observed)
    np.testing.assert_allclose(bound.to_array()[:-1, :-1], expected, rtol=1e-10)


def test_implicit_matrix_works_without_forming_it():
    k = 10_000
    prior = rp.simulate.long_tail(k, 0.1)
    bound = bounds.cramer_rao(prior, prior * 1e6)
    x = np.random.default_rng(0).normal(size=(k, 2))
    product = bound @ x
    a = prior / 1e6
    np.testing.assert_allclose(product, a[:, None] * x - np.outer(a, a @ x) / a.sum(), rtol=1e-9)
    np.testing.assert_allclose(bound @ x[:, 0], product[:, 0])
    np.testing.assert_allclose(bound @ np.ones(k), 0, atol=1e-18)  # shares sum to one
    small = bounds.cramer_rao(prior[:5], prior[:5] * 100)
    np.testing.assert_allclose(small @ np.eye(5), small.to_array())


def test_no_bound_where_the_printed_mass_is_not_positive():
    with pytest.raises(rp.InputError, match="cramer_rao: `counts` must leave every class a positive"):
        bounds.cramer_rao([0.5, 0.5], [3.0, 0.2], alpha=0.5)


def test_information_is_the_sum_over_rows_whatever_the_blocks(monkeypatch):
    problem = make_problem(k=6, n=3000)
    weights = problem.target_prior / problem.source_prior
    g = problem.proba / problem.source_prior / (problem.proba @ weights)[:, None]
    for size in (1 << 12, 1 << 19):
        monkeypatch.setattr("reprior.rows.blocks.BLOCK_BYTES", size)
        result = information(ArrayBlocks(problem.proba), problem.target_prior, problem.source_prior)
        np.testing.assert_allclose(result, g.T @ g, rtol=1e-10)


@pytest.mark.parametrize("of", ["shares", "prior"])
def test_every_method_has_the_interval_of_the_default_extended_to_its_own_estimate(of):
    problem = make_problem(k=5, n=4000)
    default = rp.ebls(problem.source, problem.proba)
    for method in (rp.mlls, rp.mapls, rp.bbse):
        result = method(problem.source, problem.proba)
        own, ends, usual = getattr(result, of), result.interval(of=of), default.interval(of=of)
        inside = (own >= usual.lower) & (own <= usual.upper)
        assert inside.any()
        for end, expected in zip(ends, usual, strict=True):
            np.testing.assert_allclose(end[inside], expected[inside], atol=1e-3)
        assert ((ends.lower <= own) & (own <= ends.upper)).all()


def test_the_split_of_classes_that_cannot_be_told_apart_is_uncertain():
    problem = make_problem(k=3, n=2000)
    twins = np.column_stack([problem.proba[:, :2], problem.proba[:, 2] * 0.25, problem.proba[:, 2] * 0.75])
    prior = np.append(problem.source_prior[:2], problem.source_prior[2] * np.array([0.25, 0.75]))
    split, whole = rp.mlls(prior, twins), rp.mlls(problem.source_prior, problem.proba)
    widths, merged = (np.subtract(*result.interval()[::-1]) / result.shares for result in (split, whole))
    assert (widths[2:] > merged[2]).all()


def test_interval_lies_inside_the_unit_interval_and_grows_with_the_level():
    problem = make_problem(k=8, n=200)
    estimate = rp.ebls(problem.source, problem.proba)
    narrow, wide = estimate.interval(0.8), estimate.interval(0.99)
    assert narrow.level == 0.8
    for lower, upper in (narrow, wide):
        assert (lower >= 0).all()
        assert (upper <= 1).all()
        assert (lower <= upper).all()
    assert (wide.upper >= narrow.upper).all()
    assert (wide.lower <= narrow.lower).all()


def test_a_class_no_row_resembles_ends_at_a_few_rows():
    proba = np.repeat([[0.98, 0.02, 0.0], [0.02, 0.98, 0.0]], 500, axis=0)
    lower, upper = rp.mlls([1, 1, 1], proba).interval(0.95, of="prior")
    assert lower[2] == 0
    assert upper[2] == pytest.approx(1.96**2 / 1000, rel=0.05)
    assert (lower[:2] > 0.4).all()


def test_notes_say_whether_misfit_is_in_it_and_when_rows_are_few():
    problem = make_problem(k=5, n=300)
    with_labels = rp.mlls(problem.source, problem.proba)
    without = rp.mlls(replace(problem.source, heldout=None), problem.proba)
    assert "Optimistic" in without.interval().note
    assert "the uncertainty about the classifier error" in with_labels.interval().note
    assert "few samples: 3 for 5 classes" in rp.ebls(problem.source_prior, problem.proba[:3]).interval().note


@pytest.mark.parametrize("level", [0, 1, 1.5, -0.1, "high"])
def test_levels_outside_the_open_unit_interval_are_refused(level):
    problem = make_problem()
    with pytest.raises(rp.InputError, match="interval: `level` must be a number"):
        rp.ebls(problem.source, problem.proba).interval(level)


def test_an_estimate_without_rows_says_so():
    problem = make_problem()
    with pytest.raises(rp.InputError, match="interval: `estimate` must have its samples"):
        replace(rp.mlls(problem.source, problem.proba).spread, target=None).at(0.95)


def test_a_class_that_has_every_row_is_not_certain_to_have_all() -> None:
    for n in (1, 10, 50):
        lower, upper = rp.mlls([1, 1], np.eye(2)[[0] * n]).interval(of="prior")
        assert lower[0] < 1 - 1 / n if n > 3 else lower[0] < 0.5
        assert upper[0] == 1
        assert upper[1] == pytest.approx(1 - lower[0], abs=1 / n)


def test_a_dominant_class_is_covered() -> None:
    rng = np.random.default_rng(0)
    for n, share in ((10, 0.9), (30, 0.95), (100, 0.97)):
        hits = 0
        for _ in range(80):
            lower, upper = rp.mlls([1, 1], np.eye(2)[(rng.random(n) > share).astype(int)]).interval(of="prior")
            hits += lower[0] <= share <= upper[0]
        assert hits >= 70


def test_held_out_rows_that_say_nothing_are_said_to_and_give_no_nan() -> None:
    source = rp.summarize([[0.98, 0.01, 0.01]] * 3, [0, 0, 0], prior=[1, 1, 1])
    ends = rp.mlls(source, np.eye(3)[[1] * 50]).interval()
    assert np.isfinite(ends.lower).all()
    assert np.isfinite(ends.upper).all()
    assert "2 classes have no held-out sample" in ends.note
    source = rp.summarize(np.eye(3)[[0, 1, 1]], [0, 2, 2], prior=[1, 1, 1])
    assert np.isfinite(np.concatenate(rp.mlls(source, np.eye(3)[[0] * 25 + [1] * 25]).interval())).all()


def test_a_class_without_held_out_rows_is_not_blamed_on_the_classifier() -> None:
    problem = make_problem(n=2000)
    proba, y = problem.source.heldout
    whole = rp.ebls(problem.source, problem.proba).interval()
    kept = y != 4
    part = rp.ebls(rp.summarize(proba[kept], y[kept], prior=problem.source.prior), problem.proba).interval()
    wider = (part.upper - part.lower).sum() / (whole.upper - whole.lower).sum()
    assert wider < 2
    assert "1 class has no held-out sample" in part.note


def test_intervals_survive_pickling() -> None:
    import pickle

    ends = rp.mlls([1, 1], [[0.9, 0.1], [0.2, 0.8]]).interval()
    again = pickle.loads(pickle.dumps(ends))
    assert again.note == ends.note
    np.testing.assert_array_equal(np.stack(again), np.stack(ends))


@pytest.mark.parametrize(
    "call",
    [
        lambda: rp.bounds.cramer_rao([0.5, 0.5], [1, 2, 3]),
        lambda: rp.bounds.cramer_rao([0.5, 0.5], [np.inf, 1]),
        lambda: rp.bounds.cramer_rao_online([0.5, 0.5], [0.5, 0.5], alpha=2, label=5),
        lambda: rp.bounds.cramer_rao_online([0.5, 0.5], [0.5, 0.5], alpha=2, label=-1),
    ],
)
def test_bad_bounds_input_gets_a_sentence(call) -> None:
    with pytest.raises(rp.InputError, match="must"):
        call()


def test_a_streams_interval_includes_the_noise_of_few_held_out_samples():
    problem = make_problem(k=6, n=1500, seed=3)
    held, y = problem.source.heldout
    widths = []
    for n in (len(y) // 4, len(y)):
        stream = rp.Stream("online-ebls", rp.summarize(held[:n], y[:n]))
        stream.learn_many(problem.proba)
        interval = stream.interval()
        assert "Optimistic" not in interval.note
        widths.append(float(np.mean(interval.upper - interval.lower)))
    assert widths[0] > widths[1]
    stream = rp.Stream("online-ebls", held.mean(axis=0))
    stream.learn_many(problem.proba)
    assert "Optimistic" in stream.interval().note


def test_few_held_out_rows_do_not_make_an_interval_too_sure():
    rng, hits = np.random.default_rng(0), {"batch": [], "stream": []}

    def draw(share, n):
        y = (rng.random(n) < share).astype(int)
        return two_gaussians(rng, y, 1.5), y

    for _ in range(60):
        default, share = rp.pipeline(*draw(0.5, 200)), rng.uniform(0.1, 0.9)
        target = draw(share, 1000)[0]  # forgetting the held-out rows would cover two thirds
        stream = rp.Stream("online-ebls", default.source)
        stream.learn_many(default.calibrate(target))
        for name, interval in (("batch", default.estimate(target).interval()), ("stream", stream.interval())):
            hits[name].append(interval.lower[1] <= share <= interval.upper[1])
    assert np.mean(hits["batch"]) > 0.85
    assert np.mean(hits["stream"]) > 0.85
