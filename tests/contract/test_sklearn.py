"""LabelShiftClassifier is a scikit-learn classifier, and does what it is for."""

import pickle
import warnings

import numpy as np
import pytest
from scipy import sparse

sklearn = pytest.importorskip("sklearn")
from sklearn.base import clone  # noqa: E402
from sklearn.datasets import load_digits, make_classification  # noqa: E402
from sklearn.frozen import FrozenEstimator  # noqa: E402
from sklearn.linear_model import LogisticRegression  # noqa: E402
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score  # noqa: E402
from sklearn.naive_bayes import GaussianNB, MultinomialNB  # noqa: E402
from sklearn.pipeline import make_pipeline  # noqa: E402
from sklearn.preprocessing import StandardScaler  # noqa: E402
from sklearn.tree import DecisionTreeClassifier  # noqa: E402
from sklearn.utils.estimator_checks import parametrize_with_checks  # noqa: E402

from reprior import InputError, calibrate, ebls, simulate, summarize  # noqa: E402
from reprior.adapters.sklearn import LabelShiftClassifier  # noqa: E402


@parametrize_with_checks([LabelShiftClassifier(LogisticRegression(solver="newton-cholesky"), cv=2)])  # as all folds do
def test_scikit_learn_s_own_checks(estimator, check):
    check(estimator)


@pytest.fixture(scope="module")
def digits():
    """A fitted classifier, held-out rows at the training prior, and target rows where two digits dominate."""
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))
    train, held, pool = order[:300], order[300:800], order[800:]
    prior = np.array([0.02] * 8 + [0.42, 0.42])
    drawn = simulate.resample(np.full((len(pool), 10), 0.1), y[pool], prior, n=400, rng=rng).rows
    model = LogisticRegression(C=0.01, solver="newton-cholesky").fit(x[train], y[train])
    return model, (x[held], y[held]), (x[pool[drawn]], y[pool[drawn]])


def test_one_line_estimates_and_corrects(digits):
    model, (x_val, y_val), (x_new, y_new) = digits
    shifted = LabelShiftClassifier(model, method="ebls", on_reject="ignore").fit(x_val, y_val).adapt(x_new)
    assert shifted.estimator_ is model
    assert np.abs(shifted.prior_ - np.bincount(y_new) / len(y_new)).max() < 0.03
    assert shifted.score(x_new, y_new) >= model.score(x_new, y_new)
    assert shifted.estimate_.status.ok
    cal = shifted.pipeline_.calibrator
    by_hand = ebls(summarize(cal(model.predict_proba(x_val)), y_val), cal(model.predict_proba(x_new)))
    np.testing.assert_allclose(by_hand.prior, shifted.prior_, rtol=1e-6)
    np.testing.assert_allclose(
        shifted.predict_proba(x_new), by_hand.correct(cal(model.predict_proba(x_new))), atol=1e-9
    )


def test_an_unfitted_estimator_is_cross_validated_and_a_frozen_one_is_not(digits):
    model, (x, y), (x_new, _) = digits
    inner = GaussianNB(var_smoothing=0.01)
    crossed = LabelShiftClassifier(inner, calibration="temperature").fit(x, y)
    assert not hasattr(inner, "theta_")
    assert crossed.pipeline_.calibrator.n == len(y)
    frozen = LabelShiftClassifier(FrozenEstimator(model), calibration="temperature")
    again = clone(frozen).fit(x, y)
    np.testing.assert_allclose(again.estimator_.predict_proba(x_new), model.predict_proba(x_new))


def test_models_of_folds_are_asked_about_new_rows_and_a_refit_is_not_held_against_them():
    x, y = make_classification(4000, n_informative=6, n_classes=3, flip_y=0.2, random_state=0)
    model = LabelShiftClassifier(DecisionTreeClassifier(min_samples_leaf=5, random_state=0)).fit(x[:1000], y[:1000])
    acts = model.adapt(x[1000:]).estimate_.acts
    assert acts.log_evidence > 0
    assert acts.share > 0.8  # nothing has shifted, and nobody is warned
    refit = model.pipeline_.calibrate(model.estimator_.predict_proba(x[1000:]))
    assert np.abs(model.estimate_.target.array - refit).max() > 0.3  # one tree of all rows says other things
    in_parts = clone(model).fit(x[:1000], y[:1000]).partial_adapt(x[1000:1003]).partial_adapt(x[1003:2000])
    np.testing.assert_array_equal(in_parts.prior_, model.fit(x[:1000], y[:1000]).partial_adapt(x[1000:2000]).prior_)


def test_a_fold_without_a_class_gives_it_nothing():
    x, y = make_classification(300, n_informative=6, n_classes=3, random_state=0)
    order = np.argsort(y, kind="stable")
    with pytest.warns(UserWarning, match="contradict each other"):  # each fold is asked about a class it has not seen
        unlike = LabelShiftClassifier(LogisticRegression(), cv=KFold(3)).fit(x[order], np.array(list("abc"))[y[order]])
    assert [len(m.classes_) for m in unlike.fold_estimators_] != [3, 3, 3]
    assert unlike.pipeline_.source.heldout[0].shape == (300, 3)


def test_a_known_prior_undoes_resampling():
    x, y = make_classification(6000, n_informative=6, weights=[0.95], class_sep=0.7, random_state=0)
    rng = np.random.default_rng(0)
    train, test = np.arange(3000), np.arange(3000, 6000)
    rare = train[y[train] == 1]
    balanced = np.concatenate([rare, rng.choice(train[y[train] == 0], len(rare), replace=False)])
    model = LogisticRegression().fit(x[balanced], y[balanced])
    wrapped = LabelShiftClassifier(model, calibration="none").fit(x[balanced], y[balanced])
    share = {0: np.mean(y[train] == 0), 1: np.mean(y[train] == 1)}
    assert wrapped.predict_proba(x[test])[:, 1].mean() > 0.2
    wrapped.set_prior(share)
    assert wrapped.predict_proba(x[test])[:, 1].mean() == pytest.approx(np.mean(y[test] == 1), abs=0.02)
    assert wrapped.score(x[test], y[test]) > model.score(x[test], y[test])
    whole = LogisticRegression().fit(x[train], y[train])
    assert np.abs(wrapped.predict_proba(x[test]) - whole.predict_proba(x[test])).mean() < 0.03


def test_a_stream_of_batches_moves_the_prior_however_it_is_cut(digits):
    model, val, (x_new, y_new) = digits
    one = LabelShiftClassifier(model, calibration="temperature").fit(*val).partial_adapt(x_new)
    many = LabelShiftClassifier(model, calibration="temperature").fit(*val)
    for part in np.array_split(x_new, 7):
        many.partial_adapt(part)
    np.testing.assert_allclose(one.prior_, many.prior_, rtol=1e-9)
    assert np.abs(one.prior_ - np.bincount(y_new) / len(y_new)).max() < 0.05
    back = pickle.loads(pickle.dumps(many))
    np.testing.assert_array_equal(back.predict_proba(x_new), many.predict_proba(x_new))
    np.testing.assert_allclose(back.partial_adapt(x_new).prior_, many.partial_adapt(x_new).prior_)
    assert many.fit(*val).stream_ is None


def test_pipeline_grid_search_and_cross_validation(digits):
    _, (x, y), (x_new, y_new) = digits
    wrapped = LabelShiftClassifier(GaussianNB(), cv=2, calibration="temperature")
    grid = {
        "labelshiftclassifier__estimator__var_smoothing": [1e-2, 1e-1],
        "labelshiftclassifier__method": ["ebls", "mapls"],
    }
    search = GridSearchCV(make_pipeline(StandardScaler(), wrapped), grid, cv=2).fit(x, y)
    assert search.score(x_new, y_new) > 0.8
    assert cross_val_score(wrapped, x, y, cv=2).min() > 0.7


@pytest.mark.parametrize("dtype", [str, object, bool, float])
def test_classes_of_any_type(dtype):
    x, y = make_classification(300, random_state=1, weights=[0.7])
    names = np.array([False, True] if dtype is bool else [1.0, 2.0] if dtype is float else ["no", "yes"], dtype=dtype)
    wrapped = LabelShiftClassifier(LogisticRegression(), calibration="temperature").fit(x, names[y])
    wrapped.adapt(x).set_prior({names[0]: 1, names[1]: 3})
    assert wrapped.classes_.dtype == names.dtype
    assert set(wrapped.predict(x)) <= set(names)
    np.testing.assert_allclose(wrapped.prior_, [0.25, 0.75])
    assert wrapped.prior_by_class_ == {names[0].item() if dtype is not object else names[0]: 0.25,
                                       names[1].item() if dtype is not object else names[1]: 0.75}  # fmt: skip


@pytest.mark.filterwarnings("ignore:.*The data differ")  # models of half of the rows are not the one of all
def test_sparse_rows_pass_through(digits):
    _, (x, y), (x_new, _) = digits
    wrapped = LabelShiftClassifier(MultinomialNB(), cv=2, calibration="temperature")
    dense = clone(wrapped).fit(x, y).adapt(x_new)
    thin = clone(wrapped).fit(sparse.csr_matrix(x), y).adapt(sparse.csr_matrix(x_new))
    np.testing.assert_allclose(dense.prior_, thin.prior_, atol=1e-6)


def test_sample_weights_reach_the_estimator_with_and_without_routing():
    x, y = make_classification(300, random_state=1, weights=[0.8])
    weight = np.where(y == 1, 4.0, 1.0)
    wrapped = LabelShiftClassifier(LogisticRegression(), calibration="none")
    plain = clone(wrapped).fit(x, y, sample_weight=weight)
    with sklearn.config_context(enable_metadata_routing=True):
        inner = LogisticRegression().set_fit_request(sample_weight=True)
        routed = LabelShiftClassifier(inner, calibration="none").fit(x, y, sample_weight=weight)
        np.testing.assert_allclose(routed.estimator_.coef_, plain.estimator_.coef_)
    assert plain.pipeline_.source.prior[1] > clone(wrapped).fit(x, y).pipeline_.source.prior[1] + 0.05


def test_refusals(digits):
    model, (x, y), _ = digits
    with pytest.raises(InputError, match="hold names of classes; got 11"):
        LabelShiftClassifier(model).fit(x, np.where(y == 3, 11, y))
    with pytest.raises(InputError, match="at least two rows of every class"):
        LabelShiftClassifier(LogisticRegression()).fit(x[:5], np.array([0, 0, 1, 1, 2]))
    fitted = LabelShiftClassifier(model, calibration="none").fit(x, y)
    before = fitted.prior_
    for bad in ([0.5, 0.5], {0: 1.0}, [-1.0] * 10):
        with pytest.raises(InputError):
            fitted.set_prior(bad)
    assert fitted.prior_ is before
    with pytest.raises(InputError, match="be one of"):
        LabelShiftClassifier(model, calibration="platt").fit(x, y)
    assert calibrate.KINDS[0] == "none"


def test_what_cannot_work_is_said_when_fitting() -> None:
    from sklearn.svm import LinearSVC

    x, y = np.eye(2)[[0, 1] * 10], np.array([0, 1] * 10)
    with pytest.raises(InputError, match="CalibratedClassifierCV"):
        LabelShiftClassifier(LinearSVC()).fit(x, y)
    with pytest.raises(InputError, match="`method` must be one of"):
        LabelShiftClassifier(LogisticRegression(), method="elbs").fit(x, y)


def test_series_and_dicts_are_matched_by_class_and_an_adapted_prior_is_not_forgotten():
    import pandas as pd

    rng = np.random.default_rng(0)
    names = np.array(["low", "mid", "high"])
    y = names[rng.choice(3, 900, p=[0.6, 0.3, 0.1])]
    x = np.searchsorted(np.sort(names), y)[:, None] * 2.0 + rng.normal(size=(900, 2))
    counts = pd.Series(y).value_counts()
    assert list(counts.index) != sorted(names)  # largest first, not as columns are
    model = LabelShiftClassifier(LogisticRegression().fit(x[:300], y[:300]), counts=counts).fit(x[300:600], y[300:600])
    reference = {"mid": 0.2, "low": 0.7, "high": 0.1}
    np.testing.assert_allclose(model.set_prior(pd.Series(reference)).prior_, [0.1, 0.7, 0.2])
    np.testing.assert_allclose(model.set_prior(reference).prior_, [0.1, 0.7, 0.2])
    high = x[600:][y[600:] == "high"]
    many = np.concatenate([high] * 8)[:200]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows drawn again and again are no sample
        after = model.adapt(many).prior_[0]
    assert after > 0.5
    assert model.partial_adapt(many[:5]).prior_[0] > 0.4


def test_rows_of_another_kind_are_warned_of_or_refused():
    X, y = make_classification(3000, 8, n_informative=5, random_state=0)
    clf = LogisticRegression().fit(X[:1000], y[:1000])
    odd = X[2000:] + 4 * (np.arange(8) % 2)
    warned = LabelShiftClassifier(clf).fit(X[1000:2000], y[1000:2000])
    with pytest.warns(UserWarning, match="by more than their class prior"):
        warned.adapt(odd)
    calibrated = warned.pipeline_.calibrate(clf.predict_proba(odd))
    np.testing.assert_allclose(warned.predict_proba(odd), calibrated, atol=0.01)  # next to nothing is applied
    refused = LabelShiftClassifier(clf, on_reject="refuse").fit(X[1000:2000], y[1000:2000])
    before = refused.prior_
    with pytest.raises(InputError, match=r"^adapt: `X` must differ from the held-out samples in their class prior"):
        refused.adapt(odd)
    np.testing.assert_array_equal(refused.prior_, before)
    refused.set_params(on_reject="ignore").adapt(odd)
    plain = warned.pipeline_.estimate(clf.predict_proba(odd), check=False)
    np.testing.assert_array_equal(refused.prior_, plain.prior)
    with pytest.raises(InputError, match="`on_reject` must be one of"):
        refused.set_params(on_reject="raise").adapt(odd)


def test_labels_of_some_rows_are_taken():
    pd = pytest.importorskip("pandas")
    X, y = make_classification(3000, 8, n_informative=5, random_state=0)
    y = np.array(["ham", "spam"])[y]
    model = LabelShiftClassifier(LogisticRegression().fit(X[:1000], y[:1000])).fit(X[1000:2000], y[1000:2000])
    X_new, y_new = pd.DataFrame(X[2000:]), pd.Series(y[2000:])
    some = y_new.where(y_new.index < 300)
    model.adapt(X_new, labels=some, label_weights=np.ones(1000))
    raw = model.estimator_.predict_proba(X_new.to_numpy())
    expected = model.pipeline_.estimate(raw, labels=some)
    assert model.estimate_.n_labels == 300
    np.testing.assert_array_equal(model.prior_, expected.prior)
    np.testing.assert_array_equal(model.weights_, expected.weights)
    np.testing.assert_allclose(model.predict_proba(X_new.to_numpy()), expected.correct(raw), rtol=1e-9)
    with pytest.raises(InputError, match=r"adapt: .* order of `X`; .* Pass `labels.loc\[X.index\]`"):
        model.adapt(X_new, labels=some[::-1])
    with pytest.warns(UserWarning, match="labels|Labels"):
        model.adapt(X_new, labels=y_new.map({"ham": "spam", "spam": "ham"}))


def test_held_out_rows_that_were_trained_on_are_asked_for():
    from sklearn.ensemble import RandomForestClassifier

    X, y = make_classification(1200, 8, n_informative=5, flip_y=0.1, random_state=0)
    forest = RandomForestClassifier(30, random_state=0).fit(X[:600], y[:600])
    with pytest.warns(UserWarning, match=r"label shift below 1%\).* Were the held-out samples used for training\?"):
        LabelShiftClassifier(forest).fit(X[:600], y[:600]).adapt(X[600:])


def test_labels_of_other_rows_are_noticed_for_a_classifier_that_is_fitted_already():
    x, y = make_classification(600, n_informative=6, n_classes=3, random_state=0)
    fitted = LogisticRegression().fit(x[:300], y[:300])
    with pytest.warns(UserWarning, match="hardly agree"):
        LabelShiftClassifier(fitted).fit(x[300:], np.roll(y[300:], 1))


def test_a_wrong_choice_is_refused_by_fit():
    x, y = make_classification(60, random_state=0)
    with pytest.raises(InputError, match="`on_reject` must be one of 'scale', 'refuse', 'ignore'; got 'explode'"):
        LabelShiftClassifier(LogisticRegression(), on_reject="explode").fit(x, y)
