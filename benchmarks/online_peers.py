"""Streams against the code of OnlineLabelShift's authors: accuracy, error of the class mix, and time.

    python benchmarks/online_peers.py --ols FOLDER [--seeds 1]

FOLDER is a clone of https://github.com/acmi-lab/OnlineLabelShift. Wants torch, cvxpy, scikit-learn, tqdm and Pillow.
Its networks of images and texts are not built, so torchvision and transformers are not wanted. Streams are those of
`drift.py`: everyone gets the same calibrated outputs, predicts ten rows, then learns from them.
"""

import argparse
import importlib
import json
import sys
import time
from pathlib import Path
from types import ModuleType

from _record import TRIALS, markdown, store  # isort: split

import numpy as np
from drift import PROBLEMS, kl_rows, streams

import reprior as rp
from reprior.online.ebls import OnlineEbls
from reprior.online.fmapls import OnlineFmapls
from reprior.online.published import PEERS

COMMIT, STEP, FLOOR = "f664b3f8", 10, 1e-3  # of its repository; rows a step; the mass that is spread evenly for KL
UNUSED = {"torchvision": ("transforms",), "torchvision.transforms": (), "transformers": (
    "DistilBertForSequenceClassification", "DistilBertModel")}  # fmt: skip


def centred(proba):
    logs = np.log(np.maximum(np.asarray(proba, float), 1e-30))
    return logs - logs.mean(axis=1, keepdims=True)


class Theirs:
    """The authors' classes, on a network whose logits are the log outputs."""

    def __init__(self, folder):
        sys.path.insert(0, str(folder))
        for name, members in UNUSED.items():
            module = sys.modules.setdefault(name, ModuleType(name))
            for member in members:  # classes that other classes are derived from when the file is read
                vars(module).setdefault(member, sys.modules.get(f"{name}.{member}", type(member, (), {})))
        self.torch = importlib.import_module("torch")
        self.torch.set_num_threads(1)
        self.models = importlib.import_module("utils.model_utils")
        self.settings = importlib.import_module("utils.proj_utils").ModelParameters
        self.models.tqdm = lambda rows, **_: rows  # no progress bars

    def rows(self, proba, y, size):
        """Return a loader of features: log outputs of mean 0, scaled as the inputs that its step sizes suppose."""
        data, y = self.torch.utils.data, np.asarray(y)
        features = centred(proba) / self.scale
        dataset = data.TensorDataset(self.torch.from_numpy(features).float(), self.torch.from_numpy(y).long())
        return data.DataLoader(dataset, batch_size=size)

    def network(self, k):
        """Return its network with a last layer that gives the outputs back, whatever their scale."""
        net = self.models.BaseModelWithLinearWeight(False, ".", "outputs", (k,), k, self.torch.nn.Identity(), k)
        net.linear.weight.data.copy_(self.scale * self.torch.eye(k))
        return net

    def contenders(self, source, n_steps, slow):
        """Yield each of its methods at the settings of its `run_ols.py`."""
        models, k = self.models, len(source.prior)
        proba, y = source.heldout
        self.scale = float(centred(proba).std())
        shares, heldout = np.bincount(y, minlength=k) / len(y), self.rows(proba, y, 200)
        common = {"source_train_marginals": shares, "num_labels": k}

        def local():
            return models.BlackBoxShiftEstimator(model=self.network(k), ref_dataloader=heldout, **common)

        def reweighting(estimator):
            return models.UnsupervisedReweightingClassifier(
                model=self.network(k), marginal_estimator=estimator, use_current_marginal_estimate=False, **common
            )

        memory = {"source_train_marginals": shares, "underlying_estimator": local()}
        yield "FTH", reweighting(models.FollowTheHistoryEstimator(**memory))
        yield "FTFWH, window 1000", reweighting(models.FollowTheFixedWindowHistoryEstimator(**memory, window_size=100))
        yield "FLH-FTL", reweighting(models.FollowLeadingHistoryFollowTheLeaderEstimator(**memory, num_labels=k))
        descent = {"ref_dataloader": heldout, "marginal_estimator": local(), "weight_name": "linear.weight",
                   "use_current_marginal_estimate": False, **common}  # fmt: skip
        net = self.network(k)
        self.torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - what its code draws from
        net.sample_linear_weight_lipschitz(self.torch.nn.CrossEntropyLoss())
        uogd = models.UnbiasedOnlineGradientDescentClassifier(model=net, **descent)
        uogd.compute_lr_from_total_time(total_time=n_steps)
        yield "UOGD", uogd
        pool = self.network(k)
        pool.weight_lipschitz_estimate = net.weight_lipschitz_estimate
        yield "ATLAS", models.ATLAS(model=pool, total_time=n_steps, **descent)
        if slow:
            rogd = models.RegularOnlineGradientEstimator(
                **memory, ref_labels=y, ref_prob=np.asarray(proba, np.float64), num_labels=k,
                lipschitz=float(np.median(list(self.settings.rogd_lipschitz.values()))),
            )  # fmt: skip
            rogd.estimate_learning_rate(n_steps, lipschitz_ntries=0)
            yield "ROGD", reweighting(rogd)

    def run(self, method, sample):
        """Return the accuracy, and the priors (steps, K) where the method has any."""
        steps = [self.rows(sample.proba[i : i + STEP], sample.y[i : i + STEP], STEP)
                 for i in range(0, len(sample.y), STEP)]  # fmt: skip
        found = method.predict_online_label_shift(steps)
        has_prior = hasattr(method, "marginal_estimator") and "l2-sq_marginal_errors" in found
        return float(found["accuracy"]), np.array(found["est_label_marginals"], float) if has_prior else None


def ours(source):
    """Yield our methods, and our own writing of the published ones at the same settings."""
    rerun = {"batch": STEP, "hard": False}
    yield "reprior, `online-ebls`", OnlineEbls(source)
    yield "reprior, `online-fmapls`", OnlineFmapls(source)
    yield "FTH, ours", PEERS["fth"](source, clip=True, **rerun)
    yield "FTFWH, window 1000, ours", PEERS["ftfwh"](source, window=1000, clip=True, **rerun)
    yield "FLH-FTL, ours", PEERS["flh-ftl"](source)
    yield "UOGD, ours", PEERS["uogd"](source)
    yield "ATLAS, ours", PEERS["atlas"](source)
    yield "ROGD, ours", PEERS["rogd"](source, **rerun)


def run_pipeline(pipe, sample):
    """Return what the default gives, which fits more to the held-out labels than a temperature."""
    stream, priors, right = pipe.stream(), [], 0
    for first in range(0, len(sample.y), STEP):
        rows = sample.proba[first : first + STEP]
        priors.append(stream.prior)
        right += (stream.correct_many(rows).argmax(axis=1) == sample.y[first : first + STEP]).sum()
        stream.learn_many(rows)
    return right / len(sample.y), np.array(priors)


def run_ours(method, sample):
    state, priors, right = method.init(), [], 0
    for first in range(0, len(sample.y), STEP):
        rows = sample.proba[first : first + STEP]
        priors.append(method.prior(state))
        right += ((rows * (priors[-1] / method.source.prior)).argmax(axis=1) == sample.y[first : first + STEP]).sum()
        method.learn(state, rows)
    return right / len(sample.y), np.array(priors)


def reached(run, method, path, sample, floor=0.0):
    """Return what one contender reached on one stream."""
    start = time.process_time()
    accuracy, priors = run(method, sample)
    row = {"accuracy": float(accuracy), "seconds": time.process_time() - start}
    if priors is not None:
        row["kl"] = float(kl_rows(path, (1 - floor) * priors + floor / priors.shape[1]).mean())
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ols", type=Path, required=True, help="a clone of acmi-lab/OnlineLabelShift")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--problems", nargs="+", choices=PROBLEMS, default=list(PROBLEMS))
    parser.add_argument("--rogd", nargs="*", default=["banking77, swap"],
                        help="drifts on which its ROGD runs as well, which takes minutes")  # fmt: skip
    options = parser.parse_args()
    kept = TRIALS / f"online_peers_{options.seeds}.json"  # what its code has reached, so that a run may be ended
    known = json.loads(kept.read_text()) if kept.exists() else {}
    theirs, cells = Theirs(options.ols), {}
    for name in options.problems:
        for called, source, drawn in streams(name, options.seeds):
            cell = cells[called] = {}
            for path, sample in drawn:
                plain = float((sample.proba.argmax(axis=1) == sample.y).mean())
                cell.setdefault("as it is", []).append({"accuracy": plain})
                contenders = [("**reprior, `pipe.stream()`**", rp.pipeline(*source.heldout), run_pipeline)]
                contenders += [(label, method, run_ours) for label, method in ours(source)]
                for label, method, run in contenders:
                    cell.setdefault(label, []).append(reached(run, method, path, sample))
            if called not in known:
                slow = known[called] = {}
                for path, sample in drawn:
                    for label, method in theirs.contenders(source, len(path), called in options.rogd):
                        slow.setdefault(label, []).append(reached(theirs.run, method, path, sample, FLOOR))
                        print(f"{called}, {label}: {slow[label][-1]}", file=sys.stderr, flush=True)
                kept.parent.mkdir(exist_ok=True)
                kept.write_text(json.dumps(known, indent=1))
            cell |= known[called]
    figures = {"seeds": options.seeds, "commit": COMMIT, "cells": cells}
    store("online_peers", figures, f"{note(figures)}\n\n{table(cells)}")


def mean(cells, label, what):
    """Return the mean over all drifts of one figure of one contender, or None where it does not have it."""
    found = [run[what] for cell in cells.values() for run in cell.get(label, []) if what in run]
    return float(np.mean(found)) if found else None


def table(cells):
    labels = list(dict.fromkeys(label for cell in cells.values() for label in cell))
    rows = []
    for label in sorted(labels, key=lambda label: -mean(cells, label, "accuracy")):
        figures = [mean(cells, label, what) for what in ("accuracy", "kl", "seconds")]
        over = sum(label in cell for cell in cells.values())
        forms = ("{:.1%}", "{:.3f}", "{:.1f}")
        shown = ["" if x is None else form.format(x) for form, x in zip(forms, figures, strict=True)]
        rows.append([label, *shown, str(over)])
    return markdown(["stream method", "accuracy", "KL", "CPU seconds a stream", "drifts"], rows)


def note(figures):
    ran = sum("ROGD" in cell for cell in figures["cells"].values())
    return (
        f"Streams of `drift.py` (1,000 steps of 10 rows), {figures['seeds']} a drift. Each method predicts a step "
        "before it learns from it. Names without “ours” are the code of OnlineLabelShift's authors, commit "
        f"{COMMIT}, at the settings of its `run_ols.py`, on a network whose logits are the log outputs. Its ATLAS "
        "learns from a step before it predicts it. UOGD and ATLAS change the network and give no class mix. Its ROGD "
        f"takes minutes a stream, so it ran on {ran} of the drifts; its step size follows from the median of the "
        f"Lipschitz constants that its authors list. KL(true ‖ estimate) is the mean over time, with {FLOOR:g} of the "
        "mass spread evenly, because their estimates contain zeros. Accuracies are as they come."
    )


if __name__ == "__main__":
    main()
