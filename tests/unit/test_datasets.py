"""The shipped outputs are what they are said to be: small, proper, held out, long-tailed, and a fair classifier's."""

from importlib.resources import files

import numpy as np
import pytest

from reprior import datasets
from reprior._check import InputError

SHAPES = {"banking77": (77, 973, 9184, 0.759), "clinc150": (150, 1449, 9808, 0.850)}


@pytest.fixture(scope="module", params=sorted(SHAPES))
def dataset(request):
    return datasets.load(request.param)


def test_shapes_agree_with_the_class_names(dataset):
    n_classes, n_heldout, n_pool, _ = SHAPES[dataset.name]
    assert len(set(dataset.classes)) == len(dataset.classes) == dataset.counts.size == n_classes
    assert dataset.heldout_proba.shape == (n_heldout, n_classes)
    assert dataset.heldout_y.shape == (n_heldout,)
    assert dataset.pool_proba.shape == (n_pool, n_classes)
    assert dataset.pool_y.shape == (n_pool,)


def test_rows_are_probabilities_without_zeros(dataset):
    for proba in (dataset.heldout_proba, dataset.pool_proba):
        assert proba.min() > 0
        np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=0, atol=1e-12)


def test_training_counts_are_long_tailed_in_no_alphabetical_order(dataset):
    rank = np.arange(dataset.counts.size)
    assert 8 < dataset.counts.max() / dataset.counts.min() < 20
    assert abs(np.corrcoef(rank, dataset.counts)[0, 1]) < 0.3


def test_heldout_labels_follow_the_training_prior(dataset):
    observed = np.bincount(dataset.heldout_y, minlength=dataset.counts.size)
    assert np.abs(observed - dataset.counts / 3).max() < 1  # a quarter of each class's rows, rounded
    assert observed.min() >= 2


def test_pool_has_rows_of_every_class(dataset):
    assert np.bincount(dataset.pool_y, minlength=dataset.counts.size).min() >= 40


def test_accuracy_is_that_of_a_real_classifier(dataset):
    pool = (dataset.pool_proba.argmax(axis=1) == dataset.pool_y).mean()
    heldout = (dataset.heldout_proba.argmax(axis=1) == dataset.heldout_y).mean()
    assert pool == pytest.approx(SHAPES[dataset.name][3], abs=0.002)
    assert pool < heldout < 0.95  # the pool has more of the classes it was hardly trained on


def test_all_of_it_takes_at_most_three_and_a_quarter_megabytes():
    sizes = [len(file.read_bytes()) for file in files(datasets).iterdir() if file.name.endswith(".npz")]
    assert len(sizes) == 3
    assert sum(sizes) <= 3_250_000


def test_origin_and_licence_are_stated(dataset):
    assert "CC BY" in dataset.origin
    assert f"{dataset.name}.npz" in (files(datasets) / "ATTRIBUTION.md").read_text(encoding="utf-8")


def test_unknown_name_is_refused():
    with pytest.raises(InputError, match=r"load: `name` must be one of 'banking77', 'clinc150', 'lid176'; got 'mnist'"):
        datasets.load("mnist")


@pytest.fixture(scope="module")
def languages():
    return datasets.load("lid176")


def test_language_outputs_are_probabilities_of_176_languages(languages):
    assert languages.heldout_proba.shape == (2498, 176)
    assert len(languages.pool_y) == len(languages.pool_day) == len(languages.pool_proba)
    for proba in (languages.heldout_proba, languages.pool_proba):
        assert proba.min() > 0
        np.testing.assert_allclose(proba.sum(axis=1), 1, rtol=0, atol=1e-12)
    assert "lid176.npz" in (files(datasets) / "ATTRIBUTION.md").read_text(encoding="utf-8")
    assert "CC BY-SA" in languages.origin


def test_what_is_stored_of_a_row_is_in_the_dense_row(languages):
    index, values = languages.pool_top_k
    np.testing.assert_array_equal(np.take_along_axis(languages.pool_proba, index, axis=1), values)
    assert (np.diff(values, axis=1) <= 1e-12).all()  # likeliest first
    assert values.sum(axis=1).min() > 0.5
    assert (values.sum(axis=1) <= 1).all()


def test_a_channel_has_the_mix_it_is_said_to_have_in_order_of_date_and_no_row_twice(languages):
    shares = np.bincount(languages.pool_y[languages.channels["Croatia"]], minlength=176) / 500
    named = {name: share for name, share in zip(languages.classes, shares, strict=True) if share}
    assert named == {"hr": 0.7, "bs": 0.1, "sl": 0.1, "sr": 0.1}
    for rows in languages.channels.values():
        assert len(np.unique(rows)) == len(rows)
        assert (np.diff(languages.pool_day[rows]).astype(int) >= 0).all()
