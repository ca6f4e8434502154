"""Moment methods and the summary they rest on."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import Problem, make_problem, score_outputs

import reprior as rp
from reprior.batch.moments import regularised_shift


def test_summarize_counts_joint_shares(problem: Problem) -> None:
    proba, y = problem.source.heldout
    soft, hard = np.zeros((5, 5)), np.zeros((5, 5))
    for row, label in zip(proba, y, strict=True):
        soft[:, label] += row / len(y)
        hard[row.argmax(), label] += 1 / len(y)
    np.testing.assert_allclose(problem.source.confusion, soft)
    np.testing.assert_allclose(problem.source.hard_confusion, hard)
    np.testing.assert_allclose(problem.source.confusion.sum(axis=0), problem.source.counts / len(y))


def test_the_source_prior_is_what_was_asked_for(problem: Problem) -> None:
    proba, y = problem.source.heldout
    np.testing.assert_allclose(rp.summarize(proba, y).prior, proba.mean(axis=0))
    np.testing.assert_allclose(rp.summarize(proba, y, prior="labels").prior, np.bincount(y) / len(y))
    inputs = rp.summarize(proba, y, prior=[1, 2, 3, 4, 10], classes=list("abcde"))
    np.testing.assert_allclose(inputs.prior, np.array([1, 2, 3, 4, 10]) / 20)
    assert inputs.classes == tuple("abcde")
    assert "given" in inputs.made


@pytest.mark.parametrize(
    ("y", "words"),
    [([0, 7], "between 0 and 1"), ([0], "one label per"), ([0.5, 1], "whole numbers"), (["a", "b"], "column index")],
)
def test_bad_labels_are_refused(y: object, words: str) -> None:
    with pytest.raises(rp.InputError, match=words):
        rp.summarize([[0.5, 0.5], [0.2, 0.8]], y)


def test_names_are_labels_where_the_classes_are_given() -> None:
    proba = [[0.5, 0.5], [0.2, 0.8]]
    named = rp.summarize(proba, ["dog", "cat"], classes=["cat", "dog"])
    np.testing.assert_array_equal(named.confusion, rp.summarize(proba, [1, 0]).confusion)
    with pytest.raises(rp.InputError, match="names of classes; got cow, first at row 1"):
        rp.summarize(proba, ["dog", "cow"], classes=["cat", "dog"])
    with pytest.raises(rp.InputError, match="own `correct`"):
        rp.correct(proba, rp.mlls([1, 1], proba))


def test_a_label_missing_from_the_held_out_rows_is_refused_as_prior_and_said_by_moments() -> None:
    proba, y = np.array([[0.5, 0.3, 0.2], [0.2, 0.7, 0.1]]), [0, 1]
    with pytest.raises(rp.InputError, match="positive for every class"):
        rp.summarize(proba, y, prior="labels")
    est = rp.bbse(rp.summarize(proba, y), proba)
    assert est.status is rp.Status.UNSEEN_CLASSES
    assert est.prior[2] == pytest.approx(0.15)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("method", ["bbse", "rlls"])
def test_the_source_itself_comes_back_as_the_source(method: str, hard: bool) -> None:
    source = make_problem().source
    proba, y = source.heldout
    est = rp.estimate(source, proba, method=method, hard=hard)
    np.testing.assert_allclose(est.prior, np.bincount(y) / len(y), atol=1e-6)


def test_strong_regularisation_keeps_the_source_and_none_is_least_squares(problem: Problem) -> None:
    frequencies = problem.source.counts / problem.source.counts.sum()
    np.testing.assert_allclose(rp.rlls(problem.source, problem.proba, alpha=1e3).prior, frequencies, atol=1e-6)
    free = rp.rlls(problem.source, problem.proba, alpha=0).prior
    np.testing.assert_allclose(free, rp.bbse(problem.source, problem.proba).prior, atol=1e-4)


def lower_bound(confusion: np.ndarray, change: np.ndarray, strength: float, theta: np.ndarray) -> float:
    """Return what no θ ≥ −1 can go below in ‖Cθ − d‖ + s‖θ‖: u·d − Σ(v − Cᵀu), for ‖u‖ ≤ 1, ‖v‖ ≤ s, v ≥ Cᵀu."""
    residual, v = change - confusion @ theta, strength * theta / np.linalg.norm(theta)
    u = residual / max(np.linalg.norm(residual), 1e-300)
    if np.linalg.norm(residual) < 1e-9:  # at the kink Cθ = d any u of length 1 will do
        free = theta > -1
        u = np.linalg.lstsq(confusion[:, free].T, v[free], rcond=None)[0]
    u = u / max(np.linalg.norm(u), 1.0)
    v = np.maximum(v, confusion.T @ u)
    shrunk = min(1.0, strength / np.linalg.norm(v))
    return float(shrunk * (u @ change - (v - confusion.T @ u).sum()))


@pytest.mark.parametrize("seed", range(40))
def test_rlls_is_at_the_optimum_at_either_kink_and_between(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k, n = int(rng.choice([2, 5, 10, 30])), int(rng.choice([300, 20_000]))
    shift = rng.choice([0.05, 0.3, 2.0])

    def outputs(y: np.ndarray) -> np.ndarray:
        return score_outputs(rng, y, k, shift, scale=1)

    source = rp.summarize(outputs(y := rng.integers(0, k, n)), y)
    target = outputs(rng.choice(k, 300, p=rng.dirichlet(np.ones(k))))
    change, strength = target.mean(axis=0) - source.confusion.sum(axis=1), 10.0 ** rng.uniform(-5, -1)
    theta = regularised_shift(source.confusion, change, strength)
    value = np.linalg.norm(source.confusion @ theta - change) + strength * np.linalg.norm(theta)
    assert theta.min() >= -1
    if theta.any():
        assert value - lower_bound(source.confusion, change, strength, theta) < 1e-6 * value
    else:  # no direction θ ≥ 0 or θ ≤ 0 goes down
        assert np.linalg.norm(source.confusion.T @ change) <= strength * np.linalg.norm(change) * (1 + 1e-6)


@pytest.mark.parametrize("one_hot", [False, True])
def test_intervals_from_predicted_classes_cover_and_hold_the_estimate(one_hot: bool) -> None:
    rng, covered = np.random.default_rng(7), []
    for _ in range(80):
        k, prior = 4, rng.dirichlet(np.ones(4))

        def outputs(y: np.ndarray) -> np.ndarray:
            proba = score_outputs(rng, y, 4, 2, scale=1)
            return np.eye(4)[proba.argmax(axis=1)] if one_hot else proba

        y = rng.integers(0, k, 400)
        est = rp.bbse(rp.summarize(outputs(y), y), outputs(rng.choice(k, 1000, p=prior)), hard=not one_hot)
        lower, upper = est.interval(0.95, of="prior")
        if one_hot:  # corrected, they stay the decisions that they are
            np.testing.assert_array_equal(est.shares, est.prior)
        assert (lower <= est.prior).all()
        assert (est.prior <= upper).all()
        covered.append((lower <= prior) & (prior <= upper))
    assert np.mean(covered) > 0.91  # of 0.95; four standard errors of 320 shares would be 0.90
