"""Our methods as QuaPy quantifiers: its protocols, evaluation and model selection run on them."""

import warnings

import numpy as np
import pytest

pytest.importorskip("quapy")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what QuaPy's own imports warn about is not ours to fix
    import quapy
    from quapy.data import LabelledCollection
    from quapy.evaluation import evaluate
    from quapy.method.aggregative import EMQ
    from quapy.model_selection import GridSearchQ
    from quapy.protocol import APP, UPP
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB

import reprior as rp
from reprior.adapters.quapy import LabelShiftQuantifier

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def halves(load):
    x, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    train, test = order[: len(y) // 2], order[len(y) // 2 :]
    return (x[train], y[train]), LabelledCollection(x[test], y[test])


def test_not_worse_than_emq_by_quapy_s_own_evaluation():
    train, test = halves(load_digits)
    protocol = UPP(test, sample_size=100, repeats=20, random_state=0)
    ours, theirs = (q(LogisticRegression(C=1e-4, solver="newton-cholesky")) for q in (LabelShiftQuantifier, EMQ))
    assert evaluate(ours.fit(*train), protocol, "mae") <= evaluate(theirs.fit(*train), protocol, "mae")


def test_artificial_prevalence_protocol_on_two_classes():
    train, test = halves(load_breast_cancer)
    protocol = APP(test, sample_size=100, n_prevalences=5, repeats=1, random_state=0)
    assert evaluate(LabelShiftQuantifier(GaussianNB()).fit(*train), protocol, "mae") < 0.06


@pytest.mark.parametrize("method", sorted(rp.METHODS))
def test_every_method_is_a_quantifier(method):
    train, test = halves(load_digits)
    quantifier = LabelShiftQuantifier(GaussianNB(var_smoothing=0.01), val_split=0.4, method=method).fit(*train)
    prevalence = quantifier.predict(test.X)
    assert prevalence.sum() == pytest.approx(1)
    assert np.abs(prevalence - test.prevalence()).max() < 0.08
    np.testing.assert_array_equal(prevalence, quantifier.aggregate(quantifier.classify(test.X)))


def test_without_a_validation_split_the_training_labels_are_the_source():
    train, test = halves(load_digits)
    quantifier = LabelShiftQuantifier(GaussianNB(var_smoothing=0.01), val_split=None, method="mlls").fit(*train)
    np.testing.assert_allclose(quantifier.pipeline_.source.prior, np.bincount(train[1]) / len(train[1]))
    theirs = EMQ(GaussianNB(var_smoothing=0.01)).fit(*train)
    np.testing.assert_allclose(quantifier.predict(test.X), theirs.predict(test.X), atol=5e-3)


def test_string_classes_and_quapy_s_model_selection():
    (x, y), test = halves(load_digits)
    names = np.array(list("abcdefghij"))
    search = GridSearchQ(
        LabelShiftQuantifier(GaussianNB(var_smoothing=0.01), calibration="temperature"),
        {"method": ["ebls", "mlls"]}, UPP(LabelledCollection(test.X, names[test.y]), 100, repeats=5), error="mae",
        refit=False,
    ).fit(x, names[y])  # fmt: skip
    assert search.best_params_["method"] in ("ebls", "mlls")
    assert search.best_score_ < 0.02
    assert quapy.__version__
