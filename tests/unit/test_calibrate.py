"""Calibrators against their definitions, their optimality conditions and hard input."""

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from worlds import softmax

from reprior import InputError, calibrate, summarize
from reprior.pipelines import softmax_fit
from reprior.pipelines.softmax_fit import RowCurvature, SoftmaxLoss
from reprior.simulate import long_tail

KINDS = [k for k in calibrate.KINDS if k != "none"]


def outputs(n=2000, k=6, *, scale=1.0, bias=0.0, prior=None, seed=0):
    """Rows of a Gaussian classifier whose true posterior is softmax(scale·logits + bias); returns logits and labels."""
    rng = np.random.default_rng(seed)
    prior = np.full(k, 1 / k) if prior is None else prior
    y = rng.choice(k, n, p=prior)
    centres = np.random.default_rng(99).normal(size=(k, 8))
    x = centres[y] + 1.3 * rng.normal(size=(n, 8))
    truth = (x @ centres.T - 0.5 * (centres**2).sum(axis=1)) / 1.3**2 + np.log(prior)
    return (truth - bias) / scale, y


@pytest.mark.parametrize("kind", KINDS)
def test_recovers_what_was_distorted(kind):
    bias = np.linspace(-1, 1, 6) if kind in ("bias-corrected", "vector") else 0.0
    z, y = outputs(40000, scale=0.5, bias=bias)
    cal = calibrate.fit(softmax(z), y, kind=kind, ridge=0)
    np.testing.assert_allclose(cal.scale, 0.5, rtol=0.06)
    np.testing.assert_allclose(cal.bias, bias, atol=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_gradient_vanishes_at_the_fit_and_no_neighbour_is_better(kind):
    z, y = outputs(3000, bias=np.linspace(-1, 1, 6), scale=0.6)
    cal = calibrate.fit(softmax(z), y, kind=kind, ridge=0)
    x = np.log(softmax(z))
    x -= x.mean(axis=1, keepdims=True)

    def loss(theta):
        return -calibrate._log_likelihood(x, y, theta[:6], theta[6:]).mean()

    best = loss(np.concatenate([cal.scale, cal.bias]))
    assert best == pytest.approx(-cal.log_likelihood, abs=1e-12)
    rng = np.random.default_rng(1)
    for _ in range(30):
        step = 1e-3 * rng.normal(size=12)
        if kind in ("temperature", "bias-corrected"):
            step[:6] = step[0]
        if kind in ("temperature", "no-bias-vector"):
            step[6:] = 0
        assert loss(np.concatenate([cal.scale, cal.bias]) + step) >= best - 1e-10


@pytest.mark.parametrize("ridge", [0.0, 3.0])
@pytest.mark.parametrize("kind", KINDS)
def test_the_numerical_gradient_of_the_penalised_loss_vanishes_at_the_fit(kind, ridge):
    z, y = outputs(300, bias=np.linspace(-1, 1, 6))
    x = np.log(softmax(z))
    x -= x.mean(axis=1, keepdims=True)
    plain = calibrate.fit(softmax(z), y, kind="temperature").scale[0]

    def loss(theta):
        scale, bias = theta[: 6 if "vector" in kind else 1], theta[6 if "vector" in kind else 1 :]
        away = np.sum(bias**2) + (np.sum((scale - plain) ** 2) if "vector" in kind else 0.0)
        bias = bias if len(bias) else np.zeros(6)
        return -calibrate._log_likelihood(x, y, np.broadcast_to(scale, 6), bias).sum() + 0.5 * ridge * away

    cal = calibrate.fit(softmax(z), y, kind=kind, ridge=ridge)
    scale = cal.scale if "vector" in kind else cal.scale[:1]
    at = np.concatenate([scale, cal.bias]) if kind in ("bias-corrected", "vector") else scale
    np.testing.assert_allclose(approx_fprime(at, loss, 1e-6), 0, atol=2e-3)  # of a loss of about 300


def test_many_classes_converge_from_a_poor_start():
    rng = np.random.default_rng(3)
    z = rng.normal(size=(400, 60)) * 9
    y = rng.integers(0, 60, 400)  # labels that have nothing to do with the outputs
    cal = calibrate.fit(softmax(z), y, kind="vector")
    assert cal.log_likelihood > np.log(1 / 60) - 0.1
    assert cal.scale.min() >= calibrate.SCALE_BOUNDS[0]


@pytest.mark.parametrize("kind", KINDS)
def test_logits_and_probabilities_say_the_same(kind):
    z, y = outputs(500)
    a, b = calibrate.fit(softmax(z), y, kind=kind), calibrate.fit(y=y, logits=z + 7.0, kind=kind)
    np.testing.assert_allclose(a(softmax(z)), b(logits=z - 3.0), atol=1e-6)


@pytest.mark.parametrize("kind", calibrate.KINDS)
def test_zeros_and_ones_are_safe(kind):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 60)
    hard = np.eye(3)[np.where(rng.random(60) < 0.8, y, (y + 1) % 3)]
    cal = calibrate.fit(hard, y, kind=kind)
    out = cal(hard)
    assert np.isfinite(out).all()
    np.testing.assert_allclose(out.sum(axis=1), 1)
    if kind == "temperature":  # right in 80 % of the rows, and now it says so
        assert out.max(axis=1).mean() == pytest.approx(np.mean(hard.argmax(axis=1) == y), abs=0.01)


def test_the_smallest_float_is_no_trouble():
    cal = calibrate.fit([[1.0, 5e-324], [0.3, 0.7]], [0, 1], kind="temperature")
    assert np.isfinite(cal([[1.0, 0.0]])).all()


@pytest.mark.parametrize("kind", KINDS)
def test_rows_that_are_all_right_keep_the_scale_finite(kind):
    y = np.arange(40) % 4
    cal = calibrate.fit(0.9 * np.eye(4)[y] + 0.025, y, kind=kind)
    assert cal.scale.max() <= calibrate.SCALE_BOUNDS[1]
    assert np.isfinite(cal(np.eye(4))).all()


def test_a_ridge_keeps_the_bias_of_unseen_classes_at_the_others_mean():
    z, y = outputs(300, bias=np.linspace(-1, 1, 6))
    few = y != 5
    free = calibrate.fit(softmax(z)[few], y[few], kind="bcts", ridge=0)
    held = calibrate.fit(softmax(z)[few], y[few], kind="bcts", ridge=10)
    assert abs(held.bias[5]) < 0.2 * abs(free.bias[5])
    strong = calibrate.fit(softmax(z), y, kind="bcts", ridge=1e6)
    np.testing.assert_allclose(strong.bias, 0, atol=1e-3)


def test_biases_make_the_mean_output_the_label_frequencies():
    z, y = outputs(1000, bias=np.linspace(-2, 2, 6))
    cal = calibrate.fit(softmax(z), y, kind="bcts", ridge=0)
    source = summarize(cal(softmax(z)), y)
    np.testing.assert_allclose(source.prior, np.bincount(y) / len(y), atol=1e-4)
    assert source.made == "mean held-out prediction"


def test_likelihood_temperature_leaves_the_prior_alone():
    prior = long_tail(6, 0.01)
    z, y = outputs(40000, prior=prior)
    blurred = (z - np.log(prior)) / 0.5 + np.log(prior)
    cal = calibrate.likelihood_temperature(softmax(blurred), y, prior=prior)
    np.testing.assert_allclose(cal.scale, 0.5, rtol=0.03)
    np.testing.assert_allclose(cal(softmax(blurred)), softmax(z), atol=0.02)
    plain = calibrate.fit(softmax(blurred), y, kind="temperature")
    assert plain.log_likelihood < cal.log_likelihood


def test_from_accuracy_matches_confidence_to_accuracy():
    z, _ = outputs()
    cal = calibrate.from_accuracy(softmax(3 * z), accuracy=0.7)
    assert cal(softmax(3 * z)).max(axis=1).mean() == pytest.approx(0.7, abs=1e-6)
    assert calibrate.Calibrator.from_bytes(cal.to_bytes()).log_likelihood is None


def test_auto_takes_the_stiffest_that_is_good_enough():
    z, y = outputs(600)
    assert calibrate.fit(softmax(z), y).kind == "none"
    assert calibrate.fit(softmax(2 * z), y).kind == "temperature"
    z, y = outputs(600, bias=np.linspace(-2, 2, 6))
    assert calibrate.fit(softmax(z), y).kind == "bias-corrected"
    assert calibrate.fit(softmax(z), y, kinds=("ts", "none")).kind != "bias-corrected"


def loss(cal, z, y):
    return -np.log(cal(softmax(z))[np.arange(len(y)), y]).mean()


def test_the_learned_one_leaves_right_outputs_nearly_alone_and_mends_wrong_ones_as_well_as_the_best():
    z, y = outputs(20000, 3, prior=np.array([0.5, 0.3, 0.2]))
    new, y_new, bias = z[10000:], y[10000:], np.array([1.0, 0.0, -1.0])
    right, worst, mended = [], [], []
    for first in range(0, 5000, 200):
        part = slice(first, first + 200)
        as_it_is = loss(calibrate.fit(softmax(z[part]), y[part], kind="none"), new, y_new)
        right.append(loss(calibrate.learned(softmax(z[part]), y[part]), new, y_new) - as_it_is)
        worst.append(loss(calibrate.fit(softmax(z[part]), y[part], kind="bcts", ridge=10), new, y_new) - as_it_is)
        wrong = calibrate.learned(softmax(3 * z[part] + bias), y[part])
        mended.append(loss(wrong, 3 * new + bias, y_new) - as_it_is)
    assert 0 < np.mean(right) < 0.5 * np.mean(worst)
    assert np.max(right) < np.max(worst)
    wrong = calibrate.fit(softmax(3 * z[:200] + bias), y[:200], kind="none")
    assert np.mean(mended) < 0.05 * (loss(wrong, 3 * new + bias, y_new) - as_it_is)


def test_many_rows_let_the_learned_one_go_where_the_likelihood_is_best():
    bias = np.linspace(-1, 1, 6)
    z, y = outputs(40000, scale=0.5, bias=bias)
    cal = calibrate.learned(softmax(z), y)
    free = calibrate.fit(softmax(z), y, kind="bcts", ridge=0)
    np.testing.assert_allclose(cal.scale, free.scale, rtol=1e-3)
    np.testing.assert_allclose(cal.bias, free.bias, atol=0.01)
    assert 0.05 < cal.ridge < 20  # biases of about 0.7
    z, y = outputs(40000)
    cal = calibrate.learned(softmax(z), y)
    assert np.abs(cal.bias).max() < 0.01
    assert cal.ridge > 100


def test_one_fitted_to_logits_takes_probabilities_with_zeros():
    z, y = outputs()
    cal = calibrate.fit(y=y, logits=z, kind="temperature")
    np.testing.assert_allclose(cal(softmax(z)), cal(logits=z), atol=1e-12)
    np.testing.assert_allclose(cal([[1.0, 0, 0, 0, 0, 0]]), [[1.0, 0, 0, 0, 0, 0]], atol=1e-9)


@pytest.mark.parametrize("kind", calibrate.KINDS)
def test_bytes_bring_the_same_calibrator_back(kind):
    z, y = outputs(300)
    cal = calibrate.fit(softmax(z), y, kind=kind)
    again = calibrate.Calibrator.from_bytes(cal.to_bytes())
    np.testing.assert_array_equal(cal(softmax(z)), again(softmax(z)))
    assert again == cal
    assert len(cal.to_bytes()) < 500


def test_the_float_type_that_comes_in_goes_out_and_large_input_is_done_in_blocks():
    z, y = outputs(300)
    cal = calibrate.fit(softmax(z), y, kind="temperature")
    many = np.tile(softmax(z), (60, 1)).astype(np.float32)
    out = cal(many)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out[-300:], cal(softmax(z)), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: calibrate.fit([[2.0, -1.0]], [0], kind="temperature"), "negative"),
        (lambda: calibrate.fit([[0.5, 0.5]], [2], kind="temperature"), "between 0 and 1"),
        (lambda: calibrate.fit([[0.5, 0.5]], kind="temperature"), "`y` must"),
        (lambda: calibrate.fit(y=[0], kind="temperature"), "neither"),
        (lambda: calibrate.fit([[0.5, 0.5]], [0], logits=[[0.0, 0.0]], kind="temperature"), "both"),
        (lambda: calibrate.fit(y=[0], logits=[[np.nan, 0.0]], kind="temperature"), "finite"),
        (lambda: calibrate.fit(y=[0, 1], logits=[[0.9, 0.1], [0.2, 0.8]], kind="ts"), "rows of probabilities"),
        (lambda: calibrate.fit([[0.5, 0.5]], [0], kind="platt"), "be one of"),
        (lambda: calibrate.fit([[0.5, 0.5]], [0]), "cross-validate"),
        (lambda: calibrate.fit([[0.5, 0.5]], [0], kind="ts", ridge=-1), "`ridge`"),
        (lambda: calibrate.likelihood_temperature([[0.5, 0.5]], [0], prior=[1, 1, 1]), "2 classes"),
        (lambda: calibrate.from_accuracy([[0.5, 0.5]], accuracy=1.5), "`accuracy`"),
        (lambda: calibrate.fit([[0.6, 0.4]] * 2, [0, 1], kind="ts")([[0.2, 0.3, 0.5]]), "2 columns"),
    ],
)
def test_bad_input_is_refused_in_one_sentence(call, words):
    with pytest.raises(InputError, match=words):
        call()


def test_held_out_rows_that_are_all_right_do_not_sharpen_without_end():
    from reprior import pipeline

    rng = np.random.default_rng(0)
    y = rng.integers(3, size=40)
    proba = rng.dirichlet([1, 1, 1], 40) * 0.4
    proba[np.arange(40), y] += 0.6  # every row is right
    assert calibrate.fit(proba, y, kind="temperature").scale[0] > 10
    assert 1 < pipeline(proba, y).calibrator.scale[0] < 4


def test_a_calibrator_can_be_undone():
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.ones(5), 50)
    for scale in ([0.3, 2.0, 1.0, 0.5, 1.5], [0.7] * 5):
        result = calibrate.Calibrator("vector", np.array(scale), rng.normal(size=5), 1e-12, 50, None)
        np.testing.assert_allclose(result.undone(result(rows)), rows, atol=1e-9)


def fits(n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(k, 0.3), n)
    return rows, np.array([rng.choice(k, p=row) for row in rows])


def test_many_classes_are_fitted_as_few_are(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, y = fits(400, 30)
    one = calibrate.learned(rows, y)
    for module in (calibrate, softmax_fit):
        monkeypatch.setattr(module, "LARGE", 0)
    other = calibrate.learned(rows, y)
    np.testing.assert_allclose(other.bias, one.bias, atol=0.01)
    np.testing.assert_allclose(other.scale, one.scale, rtol=0.002)


@pytest.mark.parametrize("ridge", [0.1, 1.0, 100.0])
def test_a_curvature_kept_as_rows_is_the_matrix(ridge: float) -> None:
    rows, y = fits(500, 40)
    loss, pull = SoftmaxLoss(np.log(rows), y, 1, 40), np.append(1.0, np.full(40, ridge))
    loss.at(np.append(1.0, np.zeros(40)))
    (moment, dense), (same, by_rows) = loss.by_products(), loss.by_row_sums()
    dense, by_rows = dense.plus(pull), by_rows.plus(pull)
    np.testing.assert_allclose(same, moment, rtol=1e-9)
    assert isinstance(by_rows, RowCurvature)
    b = np.random.default_rng(1).normal(size=(40, 2))
    exact, ours = dense.profile(), by_rows.profile()
    np.testing.assert_allclose(by_rows.times(b), dense.matrix[1:, 1:] @ b, rtol=1e-9)
    np.testing.assert_allclose(by_rows.inverse(b, 1e-9), np.linalg.solve(dense.matrix[1:, 1:], b), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ours.follow, exact.follow, atol=1e-3 * np.abs(exact.follow).max())
    assert ours.scale_precision == pytest.approx(exact.scale_precision, rel=1e-3)
    assert ours.log_determinant == pytest.approx(exact.log_determinant, abs=0.5)
    step = by_rows.step(moment - loss.target, np.ones(41, bool))
    np.testing.assert_allclose(step, dense.step(moment - loss.target, np.ones(41, bool)), atol=0.02 * abs(step).max())


def test_a_thousand_classes_are_fitted_without_their_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    """K² numbers and n·K² products are what a pipeline of many classes must not cost."""
    monkeypatch.delattr(SoftmaxLoss, "by_products")
    rng = np.random.default_rng(0)
    y, rows = rng.integers(0, 1000, 1000), rng.random((1000, 1000))
    rows[np.arange(1000), y] += 500
    fitted = calibrate.learned(rows / rows.sum(axis=1, keepdims=True), y)
    assert fitted.kind == "bias-corrected"
    assert np.isfinite(fitted.bias).all()
