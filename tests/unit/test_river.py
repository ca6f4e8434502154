"""River's habits, with a real river classifier."""

from __future__ import annotations

import random
from itertools import pairwise

import numpy as np
import pytest

import reprior as rp

pytest.importorskip("river")
from river import metrics, naive_bayes

from reprior.adapters.river import NotLabelShiftDrift, PriorCorrected, PriorDrift


def samples(n: int, share: float, seed: int):
    rng = random.Random(seed)
    for _ in range(n):
        y = "spam" if rng.random() < share else "mail"
        yield {"length": rng.gauss(1.5 if y == "spam" else 0.0, 1.0)}, y


@pytest.fixture
def model():
    trained = naive_bayes.GaussianNB()
    for x, y in samples(1000, 0.5, 0):
        trained.learn_one(x, y)
    return trained


@pytest.mark.parametrize("method", ["online-ebls", "online-fmapls"])
def test_it_follows_the_prior_without_labels(model, method: str) -> None:
    corrected = PriorCorrected(model, {"mail": 1, "spam": 1}, method)
    before, after = metrics.LogLoss(), metrics.LogLoss()
    for x, y in samples(600, 0.05, 1):
        before.update(y == "spam", model.predict_proba_one(x)["spam"])
        after.update(y == "spam", corrected.predict_proba_one(x)["spam"])  # predict first
        corrected.learn_one(x)
    assert corrected.stream.prior[1] < 0.35  # counts alone are trusted little
    assert after.get() < 0.9 * before.get()
    assert set(corrected.predict_proba_one({"length": 0.0})) == {"mail", "spam"}
    assert corrected.predict_one({"length": 4.0}) == "spam"


def test_labels_help_and_the_model_stays_as_it_is(model) -> None:
    corrected = PriorCorrected(model, {"mail": 1, "spam": 1})
    predicted = model.predict_proba_one({"length": 0.7})
    for x, y in samples(300, 0.1, 2):
        corrected.learn_one(x, y)
    assert model.predict_proba_one({"length": 0.7}) == predicted
    assert corrected.stream.n == 300
    with pytest.raises(rp.InputError, match="class of `source`"):
        corrected.learn_one({"length": 0.0}, "ham")
    assert corrected.stream.n == 300
    assert corrected.clone().stream.n == 0


def test_a_class_without_a_count_is_refused(model) -> None:
    with pytest.raises(rp.InputError, match="no count of 'spam'"):
        PriorCorrected(model, {"mail": 1, "ham": 1}).learn_one({"length": 0.0})


def test_an_untrained_model_says_nothing() -> None:
    corrected = PriorCorrected(naive_bayes.GaussianNB(), {"mail": 3, "spam": 1})
    corrected.learn_one({"length": 0.0})
    np.testing.assert_allclose(corrected.output({"length": 0.0}), [0.75, 0.25])


def test_a_label_is_matched_where_classes_are_numbers() -> None:
    trained = naive_bayes.GaussianNB()
    for x, y in samples(300, 0.5, 0):
        trained.learn_one(x, 2 if y == "spam" else 1)
    corrected = PriorCorrected(trained, {1: 1, 2: 1})
    for x, _ in samples(50, 0.5, 1):
        corrected.learn_one(x, 2)
    assert corrected.stream.prior[1] > 0.8


def heldout(model):
    rows, labels = [], []
    for x, y in samples(1000, 0.5, 3):
        predicted = model.predict_proba_one(x)
        rows.append([predicted["spam"], predicted["mail"]])
        labels.append(y)
    return np.array(rows), labels


def test_a_pipeline_brings_its_calibration_and_its_order(model):
    rows, labels = heldout(model)
    pipe = rp.pipeline(rows, labels, classes=["spam", "mail"])
    wrapped, stream = PriorCorrected(model, pipe), pipe.stream()
    for x, y in samples(200, 0.1, 4):
        predicted = model.predict_proba_one(x)
        row = np.array([predicted["spam"], predicted["mail"]])
        assert wrapped.predict_proba_one(x) == pytest.approx(
            dict(zip(["spam", "mail"], stream.correct_one(row), strict=True))
        )
        wrapped.learn_one(x, y)
        stream.learn_one(row)
        stream.observe(row, y)
    assert wrapped.predict_one({"length": 1.0}) in ("spam", "mail")
    with pytest.raises(rp.InputError, match="be a class of `source`; got 'ham'"):
        wrapped.learn_one({"length": 1.0}, "ham")


def test_a_drift_of_the_prior_is_detected_and_the_detector_starts_again(model):
    rows, labels = heldout(model)
    pipe = rp.pipeline(rows, labels, classes=["spam", "mail"])
    detector, raised = PriorDrift(pipe), []
    for i, (x, _) in enumerate([*samples(500, 0.5, 5), *samples(500, 0.05, 6)]):
        detector.update(model.predict_proba_one(x))
        raised += [i] * detector.drift_detected
    assert 500 < raised[0] < 700
    assert all(b - a > 1 for a, b in pairwise(raised))
    assert detector.clone().drift_detected is False


def test_other_changes_are_detected_once_and_do_not_count_as_prior_drift(model) -> None:
    held = [(model.predict_proba_one(x), y) for x, y in samples(600, 0.5, 4)]
    pipe = rp.pipeline([[p["mail"], p["spam"]] for p, _ in held], [y for _, y in held], classes=["mail", "spam"])
    detector, prior, raised = NotLabelShiftDrift(pipe), PriorDrift(pipe), []
    unsure = [{"mail": 0.5, "spam": 0.5}] * 500
    for i, p in enumerate([*(model.predict_proba_one(x) for x, _ in samples(400, 0.3, 5)), *unsure]):
        detector.update(p)
        prior.update(p)
        raised += [i + 1] * detector.drift_detected
        if i == 399:
            assert (detector.drift_detected, detector.acts.share > 0.5) == (False, True)
            assert detector.acts == prior.acts
    assert raised == [500]  # the first test after the change
    assert detector.acts.share < 0.5
    assert detector.acts.reason.startswith("The data differ by more than their class prior")
    assert detector.clone().acts.share > 0.5
    corrected = PriorCorrected(model, pipe)
    assert corrected.acts == corrected.stream.acts
