"""Every batch method, through one list."""

from __future__ import annotations

import numpy as np
import pytest
from worlds import Problem, make_problem

import reprior as rp

VARIANTS = {
    "bbse-hard": ("bbse", {"hard": True}),
    "bbse-clip": ("bbse", {"solver": "clip"}),
    "fmapls-paper": ("fmapls", {"variant": "paper", "c": 800.0}),
    "fmapls-ga": ("fmapls", {"update": "ga"}),
    "fmapls-newton": ("fmapls", {"update": "newton"}),
    # few steps: left to run, the printed gradient ascent amplifies rounding errors
    "fmapls-paper-ga": ("fmapls", {"variant": "paper", "update": "ga", "n_iter": 10}),
    "mlls-em": ("mlls", {"n_iter": 50}),
    "rlls-hard": ("rlls", {"hard": True}),
}
ALL = {name: (name, {}) for name in rp.METHODS} | VARIANTS


@pytest.fixture(params=sorted(ALL))
def run(request: pytest.FixtureRequest):
    name, options = ALL[request.param]
    return lambda source, proba: rp.estimate(source, proba, method=name, **options)


def test_the_estimate_is_a_prior_with_its_weights(run, problem: Problem) -> None:
    est = run(problem.source, problem.proba)
    assert est.prior.shape == (5,)
    assert est.prior.dtype == np.float64
    assert est.prior.min() >= 0
    assert est.prior.sum() == pytest.approx(1, abs=1e-12)
    assert est.shares.sum() == pytest.approx(1, abs=1e-6)
    mean = est.correct(problem.proba).mean(axis=0)  # shares are the mean corrected probability, averaged over shifts
    np.testing.assert_allclose(est.shares, mean, atol=0.02)
    assert est.n == len(problem.proba)
    assert est.status.ok
    assert np.isfinite(est.log_likelihood)


def test_it_is_nearer_to_the_truth_than_no_estimate(run) -> None:
    problem = make_problem(n=4000, seed=3)
    before = np.abs(problem.source.prior - problem.target_prior).sum()
    after = np.abs(run(problem.source, problem.proba).prior - problem.target_prior).sum()
    assert after < 0.4 * before


def test_corrected_rows_are_probabilities_and_more_often_right(run) -> None:
    problem = make_problem(n=4000, seed=3)
    fixed = run(problem.source, problem.proba).correct(problem.proba)
    np.testing.assert_allclose(fixed.sum(axis=1), 1)
    right = rp.metrics.accuracy(fixed, problem.y), rp.metrics.accuracy(problem.proba, problem.y)
    assert right[0] > right[1]


def test_the_same_input_gives_the_same_output_and_is_left_alone(run, problem: Problem) -> None:
    proba = problem.proba.copy()
    first = run(problem.source, proba).prior
    np.testing.assert_array_equal(proba, problem.proba)
    np.testing.assert_array_equal(first, run(problem.source, proba).prior)


def test_any_storage_is_accepted(run, problem: Problem, tmp_path) -> None:
    single = problem.proba.astype(np.float32)
    expected = run(problem.source, single.astype(np.float64)).prior
    frozen = single.copy()
    frozen.setflags(write=False)
    np.save(tmp_path / "p.npy", single)
    mapped = np.load(tmp_path / "p.npy", mmap_mode="r")
    strided = np.repeat(single, 2, axis=0)[::2]
    for stored in (single, frozen, np.asfortranarray(single), mapped, strided):
        np.testing.assert_allclose(run(problem.source, stored).prior, expected, atol=1e-7)
    half = problem.proba.astype(np.float16)
    expected = run(problem.source, half.astype(np.float64)).prior
    np.testing.assert_allclose(run(problem.source, half).prior, expected, atol=1e-7)
    np.testing.assert_allclose(run(problem.source, half.tolist()).prior, expected, atol=1e-7)


def test_shuffled_rows_change_nothing(run, problem: Problem) -> None:
    order = np.random.default_rng(0).permutation(len(problem.proba))
    expected = run(problem.source, problem.proba).prior
    np.testing.assert_allclose(run(problem.source, problem.proba[order]).prior, expected, atol=1e-7)


def bad_inputs() -> dict[str, tuple[object, str]]:
    good = make_problem(n=20).proba

    def changed(row: int, values: object) -> np.ndarray:
        copy = good.copy()
        copy[row] = values
        return copy

    return {
        "nan": (changed(7, np.nan), "finite numbers; got nan, first at row 7"),
        "infinite": (changed(7, [np.inf, 0, 0, 0, 0]), "finite numbers; got inf, first at row 7"),
        "negative": (changed(3, [-0.5, 1.5, 0, 0, 0]), "no negative number; got -0.5, first at row 3"),
        "all-zero row": (changed(4, 0), "no all-zero row; got a sum of 0, first at row 4"),
        "not a probability": (good * 1.1, "rows that sum to 1 (±0.001); got a sum of 1.1, first at row 0"),
        "logits": (np.log(good), "logits, apply softmax"),
        "empty": (good[:0], "at least one row"),
        "wrong K": (np.full((3, 4), 0.25), "5 columns"),
        "one-dimensional": (good[0], "shape (n, K)"),
        "one column": (np.ones((3, 1)), "at least two classes"),
        "text": (np.array([["a", "b"]]), "array of numbers"),
        "ragged": ([[0.5, 0.5], [1.0]], "rectangular array"),
    }


@pytest.mark.parametrize("case", bad_inputs())
def test_bad_target_gets_one_clear_sentence(run, problem: Problem, case: str) -> None:
    proba, sentence = bad_inputs()[case]
    with pytest.raises(rp.InputError) as error:
        run(problem.source, proba)
    assert sentence in str(error.value)
    assert str(error.value).split(":")[0] in rp.METHODS


@pytest.mark.parametrize("method", ["mlls", "mapls", "fmapls", "ebls"])
@pytest.mark.parametrize(
    ("prior", "sentence"),
    [
        ([0.5, 0.0, 0.5, 0.1, 0.1], "positive for every class; got 0.0, first at class 1"),
        ([0.5, -1, 0.5, 0.1, 0.1], "positive for every class"),
        ([0.5, np.nan, 0.5, 0.1, 0.1], "finite numbers"),
        ([1.0], "at least two class counts"),
        ([[1.0, 2.0]], "vector of at least two"),
    ],
)
def test_bad_source_gets_one_clear_sentence(method: str, prior: object, sentence: str, problem: Problem) -> None:
    with pytest.raises(rp.InputError, match=sentence):
        rp.estimate(prior, problem.proba, method=method)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("mlls", {"tol": 0}), ("mlls", {"n_iter": 0}), ("mlls", {"n_iter": 2.5}), ("mapls", {"lam": 1.5}),
        ("mapls", {"lam": "some"}), ("fmapls", {"variant": "other"}), ("fmapls", {"update": "sgd"}),
        ("fmapls", {"c": -1}), ("fmapls", {"c": np.nan}), ("ebls", {"base": [1, 2]}), ("rlls", {"alpha": -1}),
        ("rlls", {"delta": 0}), ("bbse", {"solver": "qp"}), ("fmapls", {"mu": True}),
    ],
)  # fmt: skip
def test_bad_options_are_named(method: str, options: dict[str, object], problem: Problem) -> None:
    with pytest.raises(rp.InputError, match=f"{method}: `{next(iter(options))}` must"):
        rp.estimate(problem.source, problem.proba, method=method, **options)


def test_unknown_methods_are_refused_and_aliases_known(problem: Problem) -> None:
    with pytest.raises(rp.InputError, match="be one of bbse, ebls"):
        rp.estimate(problem.source, problem.proba, method="nonsense")
    for alias, name in rp.ALIASES.items():
        expected = rp.estimate(problem.source, problem.proba, method=name).prior
        np.testing.assert_array_equal(rp.estimate(problem.source, problem.proba, method=alias.upper()).prior, expected)


@pytest.mark.parametrize("method", ["bbse", "rlls"])
def test_moment_methods_say_what_they_need(method: str, problem: Problem) -> None:
    with pytest.raises(rp.InputError, match="summarize"):
        rp.estimate(problem.source_prior, problem.proba, method=method)


def test_a_nan_deep_in_a_mapped_file_is_found_by_row(tmp_path) -> None:
    big = np.lib.format.open_memmap(tmp_path / "big.npy", mode="w+", dtype=np.float32, shape=(80_000, 10))
    big[:] = 0.1
    big[70_000, 3] = np.nan
    big.flush()
    mapped = np.load(tmp_path / "big.npy", mmap_mode="r")
    with pytest.raises(rp.InputError, match="got nan, first at row 70000 "):
        rp.ebls(np.ones(10), mapped)


@pytest.mark.parametrize("c", [0.5, 1e-300, 0.01])
def test_the_printed_form_stays_a_prior_where_every_numerator_is_negative(c: float) -> None:
    for proba in ([[0.5, 0.5]], [[1.0, 0.0]], [[0.9, 0.1], [0.2, 0.8]]):
        prior = rp.fmapls([1, 1], proba, variant="paper", c=c).prior
        assert np.isfinite(prior).all()
        assert prior.sum() == pytest.approx(1)


def test_a_source_made_by_hand_is_checked(problem: Problem) -> None:
    by_hand = rp.Source(prior=np.array([10.0, 20.0, 30.0, 20.0, 20.0]))
    expected = rp.mapls([10, 20, 30, 20, 20], problem.proba).prior
    np.testing.assert_allclose(rp.mapls(by_hand, problem.proba).prior, expected)
    with pytest.raises(rp.InputError, match=r"source\.prior` must be positive"):
        rp.ebls(rp.Source(prior=np.array([0.0, 0.5, 0.5, 0.5, 0.5])), problem.proba)
    with pytest.raises(rp.InputError, match="hold a confusion matrix"):
        rp.rlls(rp.Source(prior=problem.source.prior, confusion=problem.source.confusion), problem.proba)
    with pytest.raises(rp.InputError, match="5 classes like"):
        rp.summarize(*problem.source.heldout, prior=[1, 1])


def test_extreme_counts_neither_overflow_nor_pass_unseen(problem: Problem) -> None:
    for method in ("mlls", "mapls", "fmapls", "ebls"):
        even = rp.estimate([1e308] * 5, problem.proba, method=method).prior
        np.testing.assert_allclose(even, rp.estimate([1] * 5, problem.proba, method=method).prior, atol=1e-9)
        with pytest.raises(rp.InputError, match="positive for every class"):
            rp.estimate([1e-310, 1, 1, 1, 1], problem.proba, method=method)


def test_blocks_made_by_hand_masks_and_unknown_options_are_checked(problem: Problem) -> None:
    with pytest.raises(rp.InputError, match="finite numbers"):
        rp.ebls(np.ones(3), rp.ArrayBlocks(np.full((4, 3), np.nan)))
    masked = np.ma.masked_array(problem.proba, mask=problem.proba > 0.9)
    with pytest.raises(rp.InputError, match="no masked value"):
        rp.ebls(problem.source, masked)
    with pytest.raises(rp.InputError, match="`options` must be among n_iter, tol; got foo"):
        rp.estimate(problem.source, problem.proba, method="mlls", foo=1)
    with pytest.raises(rp.InputError, match="`hard` must be True or False"):
        rp.bbse(problem.source, problem.proba, hard="soft")


def test_where_the_confusion_says_nothing_nothing_has_shifted() -> None:
    blind = rp.summarize(np.full((8, 3), 1 / 3), [0, 0, 1, 1, 2, 2, 2, 2])
    np.testing.assert_allclose(rp.bbse(blind, np.full((4, 3), 1 / 3)).prior, [0.25, 0.25, 0.5], atol=1e-3)
