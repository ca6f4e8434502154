"""Moment methods and the summary they rest on."""

from __future__ import annotations

import numpy as np
import pytest
from conftest import Problem, make_problem

import reprior as rp


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
    given = rp.summarize(proba, y, prior=[1, 2, 3, 4, 10], classes=list("abcde"))
    np.testing.assert_allclose(given.prior, np.array([1, 2, 3, 4, 10]) / 20)
    assert given.classes == tuple("abcde")
    assert "given" in given.made


@pytest.mark.parametrize(
    ("y", "words"),
    [([0, 7], "between 0 and 1"), ([0], "one label a row"), ([0.5, 1], "whole numbers"), (["a", "b"], "column index")],
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
