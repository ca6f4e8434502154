"""Estimators of other packages on stored probabilities: each is fitted to held-out samples and labels alone.

A peer is a function of held-out probabilities (n, K) and labels (n,) that returns a function from target probabilities
(N, K) to the estimated prior (K,). Code that is not on PyPI is read from clones: qunfold and MAPLS.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the packages' own imports warn about
    import quapy.method.aggregative as quapy
from _worlds import clipped
from sklearn.base import BaseEstimator, ClassifierMixin

BCTS = {"exact_train_prev": False, "calib": "bcts", "on_calib_error": "backup"}
Estimate = Callable[[np.ndarray], np.ndarray]
Peer = Callable[[np.ndarray, np.ndarray], Estimate]


class PassThrough(ClassifierMixin, BaseEstimator):
    """A trained classifier whose inputs are its outputs."""

    def __init__(self, n_classes: int = 2) -> None:
        self.n_classes = n_classes
        self.classes_ = np.arange(n_classes)
        self.is_fitted_ = True
        self.oob_score = True  # qunfold asks for out-of-bag outputs: the held-out ones are

    def fit(self, x: Any, y: Any) -> PassThrough:
        return self

    def predict_proba(self, x: Any) -> np.ndarray:
        return np.asarray(x)

    def predict(self, x: Any) -> np.ndarray:
        return self.classes_[np.asarray(x).argmax(axis=1)]


def emq_bcts(heldout: np.ndarray, y: np.ndarray) -> Any:
    """Return QuaPy's EMQ with its bias-corrected temperature scaling, fitted to clipped held-out samples."""
    return _quapy(quapy.EMQ, heldout, y, **BCTS)


def bootstrap(heldout: np.ndarray, y: np.ndarray) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Return QuaPy's bootstrap of its EMQ-BCTS: a function from target samples to 95 % intervals of the shares."""
    from joblib import parallel_config
    from quapy.method.confidence import AggregativeBootstrap

    rows = clipped(heldout)
    inner = quapy.EMQ(PassThrough(rows.shape[1]), fit_classifier=False, val_split=(rows, y), **BCTS)
    model = AggregativeBootstrap(inner, n_test_samples=100, confidence_level=0.95, random_state=0).fit(rows, y)

    def intervals(proba: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        with parallel_config(backend="sequential"):
            region = model.predict_conf(clipped(proba))[1]
        return np.asarray(region.I_low), np.asarray(region.I_high)

    return intervals


def _quapy(kind: Any, heldout: np.ndarray, y: np.ndarray, **options: Any) -> Any:
    rows = clipped(heldout)
    model = kind(PassThrough(rows.shape[1]), fit_classifier=False, val_split=(rows, y), **options)
    return model.fit(rows, y)


def of_quapy(kind: Any, **options: Any) -> Peer:
    """Return a quantifier of QuaPy as a peer."""

    def fit(heldout: np.ndarray, y: np.ndarray) -> Estimate:
        model = _quapy(kind, heldout, y, **options)
        return lambda proba: np.asarray(model.predict(clipped(proba)))

    return fit


def on_present(peer: Peer) -> Peer:
    """Return a peer that is fitted to the classes with held-out samples; the others get no share."""

    def fit(heldout: np.ndarray, y: np.ndarray) -> Estimate:
        present, own = np.unique(y, return_inverse=True)
        estimate = peer(clipped(clipped(heldout)[:, present]), own)

        def predict(proba: np.ndarray) -> np.ndarray:
            prior = np.zeros(heldout.shape[1])
            prior[present] = estimate(clipped(clipped(proba)[:, present]))
            return prior

        return predict

    return fit


def of_mlquantify() -> dict[str, Peer]:
    """Return quantifiers of mlquantify as peers."""
    from mlquantify.counting import GPACC
    from mlquantify.likelihood import EMQ
    from mlquantify.matching import GHDy

    def bcts(heldout: np.ndarray, y: np.ndarray) -> Estimate:
        model, classes = EMQ(PassThrough(heldout.shape[1]), calib_function="bcts"), np.arange(heldout.shape[1])
        return lambda proba: np.asarray(model.aggregate(clipped(proba), clipped(heldout), y, classes=classes))

    def composed(kind: Any) -> Peer:
        def fit(heldout: np.ndarray, y: np.ndarray) -> Estimate:
            model = kind(PassThrough(heldout.shape[1])).fit(heldout, y)
            return lambda proba: np.asarray(model.predict(proba))

        return on_present(fit)

    return {"mlquantify, EMQ-BCTS": bcts, "mlquantify, GHDy": composed(GHDy), "mlquantify, GPACC": composed(GPACC)}


def of_qunfold(folder: Path) -> dict[str, Peer]:
    """Return methods of qunfold as peers; `folder` is a clone."""
    sys.path.insert(0, str(folder))
    qunfold = importlib.import_module("qunfold")

    def peer(kind: Any) -> Peer:
        def fit(heldout: np.ndarray, y: np.ndarray) -> Estimate:
            classifier = PassThrough(heldout.shape[1])
            classifier.oob_decision_function_ = heldout
            model = kind(classifier, fit_classifier=False).fit(heldout, y, heldout.shape[1])
            return lambda proba: np.asarray(model.predict(proba))

        return on_present(fit)

    return {"qunfold, PACC": peer(qunfold.PACC), "qunfold, EDy": peer(qunfold.EDy)}


def abstention_bcts(heldout: np.ndarray, y: np.ndarray) -> Estimate:
    """Return abstention's EM after its bias-corrected temperature scaling.

    Release 0.1.3.1 runs EM on uncalibrated target samples if it gets a calibrator, so the calibrator is applied first.
    """
    from abstention.calibration import TempScaling
    from abstention.label_shift import EMImbalanceAdapter

    with np.errstate(all="ignore"):  # its optimizer overflows if a class has no held-out sample
        scaling = TempScaling(bias_positions="all", verbose=False)
        calibrate = scaling(clipped(heldout), np.eye(heldout.shape[1])[y], posterior_supplied=True)
        rows = calibrate(clipped(heldout))

    @np.errstate(all="ignore")
    def estimate(proba: np.ndarray) -> np.ndarray:
        adapter = EMImbalanceAdapter(verbose=False)
        results = adapter(tofit_initial_posterior_probs=calibrate(clipped(proba)), valid_posterior_probs=rows)
        return np.asarray(results.multipliers) * np.asarray(rows).mean(axis=0)

    return estimate


def of_mapls(folder: Path) -> dict[str, Peer]:
    """Return the code of MAPLS' authors as a peer; `folder` is a clone. It takes the shares of held-out labels."""
    sys.path.insert(0, str(folder))
    if not hasattr(np, "float"):
        setattr(np, "float", float)  # noqa: B010 - the code is older than NumPy 1.24
    mapls = importlib.import_module("label_shift.mapls").mapls

    def fit(heldout: np.ndarray, y: np.ndarray) -> Estimate:
        shares = np.bincount(y, minlength=heldout.shape[1]) + 0.5
        return lambda proba: np.asarray(mapls(clipped(heldout), clipped(proba), shares / shares.sum()))

    return {"MAPLS' code": fit}


def peers(qunfold: Path | None = None, mapls: Path | None = None) -> dict[str, Peer]:
    """Return all peers, as far as the clones are there."""
    out = {
        "QuaPy, EMQ": of_quapy(quapy.EMQ, exact_train_prev=False),
        "QuaPy, EMQ-BCTS": of_quapy(quapy.EMQ, **BCTS),
        "QuaPy, KDEyML": on_present(of_quapy(quapy.KDEyML)),
        "QuaPy, DMy": on_present(of_quapy(quapy.DMy)),
        "QuaPy, EDy": on_present(of_quapy(quapy.EDy)),
        "QuaPy, PACC": on_present(of_quapy(quapy.PACC)),
        "QuaPy, RLLS": on_present(of_quapy(quapy.RLLS)),
        "abstention, EM-BCTS": abstention_bcts,
        **of_mlquantify(),
    }
    if qunfold is not None:
        out |= of_qunfold(qunfold)
    if mapls is not None:
        out |= of_mapls(mapls)
    return out
