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
    seen = np.bincount(dataset.heldout_y, minlength=dataset.counts.size)
    assert np.abs(seen - dataset.counts / 3).max() < 1  # a quarter of each class's rows, rounded
    assert seen.min() >= 2


def test_pool_has_rows_of_every_class(dataset):
    assert np.bincount(dataset.pool_y, minlength=dataset.counts.size).min() >= 40


def test_accuracy_is_that_of_a_real_classifier(dataset):
    pool = (dataset.pool_proba.argmax(axis=1) == dataset.pool_y).mean()
    heldout = (dataset.heldout_proba.argmax(axis=1) == dataset.heldout_y).mean()
    assert pool == pytest.approx(SHAPES[dataset.name][3], abs=0.002)
    assert pool < heldout < 0.95  # the pool has more of the classes it was hardly trained on


def test_all_of_it_takes_at_most_three_megabytes():
    sizes = [len(file.read_bytes()) for file in files(datasets).iterdir() if file.name.endswith(".npz")]
    assert len(sizes) == 2
    assert sum(sizes) <= 3_000_000


def test_origin_and_licence_are_stated(dataset):
    assert "CC BY" in dataset.origin
    assert f"{dataset.name}.npz" in (files(datasets) / "ATTRIBUTION.md").read_text(encoding="utf-8")


def test_unknown_name_is_refused():
    with pytest.raises(InputError, match=r"load: `name` must be one of 'banking77', 'clinc150'; got 'mnist'"):
        datasets.load("mnist")
