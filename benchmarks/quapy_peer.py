"""Our quantifier against QuaPy's EMQ by QuaPy's own evaluation, on data sets that ship with scikit-learn.

    python benchmarks/quapy_peer.py [--repeats 100] [--turns 3]

Wants `pip install quapy abstention`. Times are CPU times of `evaluation.evaluate`, contenders taking turns.
"""

import argparse
import time
import warnings

from _record import markdown, store  # isort: split

import numpy as np

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what QuaPy's own imports warn about
    from quapy.data import LabelledCollection
    from quapy.evaluation import evaluate
    from quapy.method.aggregative import EMQ
    from quapy.protocol import APP, UPP
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.linear_model import LogisticRegression
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from reprior.adapters.quapy import LabelShiftQuantifier

SETS = {"digits": load_digits, "breast cancer": load_breast_cancer, "wine": load_wine}
CLASSIFIERS = {
    "logistic": lambda: make_pipeline(StandardScaler(), LogisticRegression(C=0.01, solver="newton-cholesky")),
    "naive Bayes": lambda: GaussianNB(var_smoothing=0.01),
}


class ConvergedEMQ(EMQ):
    """EMQ run as close to its optimum as ours is certified to be."""

    def aggregate(self, posteriors, epsilon=1e-8):
        return super().aggregate(posteriors, epsilon)


CONTENDERS = {
    "EMQ": EMQ,
    "EMQ to 1e-8": ConvergedEMQ,
    "EMQ, BCTS": lambda c: EMQ.EMQ_BCTS(c, on_calib_error="backup"),
    "ours": lambda c: LabelShiftQuantifier(c, method="mlls"),
    "ours, uncalibrated": lambda c: LabelShiftQuantifier(c, val_split=None, method="mlls"),
    "ours, BCTS": lambda c: LabelShiftQuantifier(c, calibration="bcts", method="mlls"),
    "ours, ebls": LabelShiftQuantifier,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--turns", type=int, default=3)
    options = parser.parse_args()
    warnings.simplefilter("ignore")  # EMQ warns where it does not converge
    figures, rows = {}, []
    for data_name, load in SETS.items():
        x, y = load(return_X_y=True)
        order = np.random.default_rng(0).permutation(len(y))
        train, test = order[: len(y) // 2], order[len(y) // 2 :]
        pool = LabelledCollection(x[test], y[test])
        for classifier, make in CLASSIFIERS.items():
            fitted = {name: q(make()).fit(x[train], y[train]) for name, q in CONTENDERS.items()}
            for size in (100, 1000, 10000):
                protocol = UPP(pool, sample_size=size, repeats=options.repeats, random_state=0)
                if len(np.unique(y)) == 2:
                    protocol = APP(
                        pool, sample_size=size, n_prevalences=21, repeats=options.repeats // 20, random_state=0
                    )
                mae, spent = {}, {name: [] for name in fitted}
                for _ in range(options.turns):
                    for name, quantifier in fitted.items():
                        start = time.process_time()
                        mae[name] = float(evaluate(quantifier, protocol, "mae"))
                        spent[name].append(time.process_time() - start)
                best = {name: min(times) for name, times in spent.items()}
                case = f"{data_name}, {classifier}, {size} rows"
                figures[case] = {"mae": mae, "cpu_seconds": best}
                ratios = [best["EMQ"] / best["ours"], best["EMQ to 1e-8"] / best["ours, uncalibrated"]]
                rows.append([case, type(protocol).__name__, *(f"{mae[n]:.4f}" for n in fitted),
                             *(f"{r:.2f}" for r in ratios)])  # fmt: skip
    head = [
        "",
        "protocol",
        *(f"MAE {n}" for n in CONTENDERS),
        "time EMQ / ours",
        "time EMQ to 1e-8 / ours, uncalibrated",
    ]
    text = (
        "# Against QuaPy's EMQ, by QuaPy's evaluation\n\n"
        "“Ours” is `LabelShiftQuantifier(method=\"mlls\")`: calibrated on cross-validated outputs, then `mlls` to a "
        "certified optimum. “Ours, ebls” is `LabelShiftQuantifier` as it comes. EMQ stops when its estimate moves by "
        "less than 1e-4.\n\n" + markdown(head, rows)
    )
    store("quapy_peer", {"cases": figures}, text)


if __name__ == "__main__":
    main()
