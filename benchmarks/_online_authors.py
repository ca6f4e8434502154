"""The code of OnlineLabelShift's authors (commit f664b3f8) on a network whose logits are the log probabilities.

Its networks of images and texts are not built, so torchvision and transformers are not wanted. Its ATLAS learns from a
step before it predicts it. UOGD and ATLAS change the network and give no prior.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

UNUSED = {"torchvision": ("transforms",), "torchvision.transforms": (), "transformers": (
    "DistilBertForSequenceClassification", "DistilBertModel")}  # fmt: skip


def centred(proba: Any) -> np.ndarray:
    """Return log probabilities (n, K) whose mean is 0."""
    logs = np.log(np.maximum(np.asarray(proba, float), 1e-30))
    return np.asarray(logs - logs.mean(axis=1, keepdims=True))


class Authors:
    """The authors' methods at the settings of their `run_ols.py`; `folder` is a clone, `step` the samples of a step."""

    names = ("FTH", "FTFWH", "FLH-FTL", "UOGD", "ATLAS")

    def __init__(self, folder: Path, step: int) -> None:
        self.step, self.scale = step, 1.0
        sys.path.insert(0, str(folder))
        for name, members in UNUSED.items():
            module = sys.modules.setdefault(name, ModuleType(name))
            for member in members:  # classes that other classes are derived from when the file is read
                vars(module).setdefault(member, sys.modules.get(f"{name}.{member}", type(member, (), {})))
        self.torch = importlib.import_module("torch")
        self.torch.set_num_threads(1)
        self.models = importlib.import_module("utils.model_utils")
        self.models.tqdm = lambda rows, **_: rows  # no progress bars

    def rows(self, proba: Any, y: Any, size: int) -> Any:
        """Return a loader of features: log outputs of mean 0, scaled as the inputs that its step sizes suppose."""
        data, y = self.torch.utils.data, np.asarray(y)
        features = self.torch.from_numpy(centred(proba) / self.scale).float()
        return data.DataLoader(data.TensorDataset(features, self.torch.from_numpy(y).long()), batch_size=size)

    def network(self, k: int) -> Any:
        """Return its network with a last layer that gives the outputs back, whatever their scale."""
        net = self.models.BaseModelWithLinearWeight(False, ".", "outputs", (k,), k, self.torch.nn.Identity(), k)
        net.linear.weight.data.copy_(self.scale * self.torch.eye(k))
        return net

    def method(self, name: str, source: Any, n_steps: int) -> Any:
        """Return one of its methods on the held-out samples of a source."""
        models, k = self.models, len(source.prior)
        proba, y = source.heldout
        self.scale = float(centred(proba).std())
        shares, heldout = np.bincount(y, minlength=k) / len(y), self.rows(proba, y, 200)
        common = {"source_train_marginals": shares, "num_labels": k}
        local = models.BlackBoxShiftEstimator(model=self.network(k), ref_dataloader=heldout, **common)
        memory = {"source_train_marginals": shares, "underlying_estimator": local}
        estimators = {
            "FTH": lambda: models.FollowTheHistoryEstimator(**memory),
            "FTFWH": lambda: models.FollowTheFixedWindowHistoryEstimator(**memory, window_size=100),
            "FLH-FTL": lambda: models.FollowLeadingHistoryFollowTheLeaderEstimator(**memory, num_labels=k),
        }
        if name in estimators:
            return models.UnsupervisedReweightingClassifier(
                model=self.network(k), marginal_estimator=estimators[name](), use_current_marginal_estimate=False,
                **common
            )  # fmt: skip
        descent = {"ref_dataloader": heldout, "marginal_estimator": local, "weight_name": "linear.weight",
                   "use_current_marginal_estimate": False, **common}  # fmt: skip
        net = self.network(k)
        self.torch.manual_seed(0)
        np.random.seed(0)  # noqa: NPY002 - what its code draws from
        net.sample_linear_weight_lipschitz(self.torch.nn.CrossEntropyLoss())
        if name == "ATLAS":
            fresh = self.network(k)
            fresh.weight_lipschitz_estimate = net.weight_lipschitz_estimate
            return models.ATLAS(model=fresh, total_time=n_steps, **descent)
        uogd = models.UnbiasedOnlineGradientDescentClassifier(model=net, **descent)
        uogd.compute_lr_from_total_time(total_time=n_steps)
        return uogd

    def follow(self, name: str, pipe: Any, stream: Any) -> dict[str, Any]:
        """Return the accuracy, and the priors (T, K) if the method has any."""
        method, step = self.method(name, pipe.source, len(stream.priors)), self.step
        steps = [self.rows(stream.proba[i : i + step], stream.y[i : i + step], step)
                 for i in range(0, len(stream.y), step)]  # fmt: skip
        results = method.predict_online_label_shift(steps)
        has_prior = hasattr(method, "marginal_estimator") and "l2-sq_marginal_errors" in results
        priors = np.array(results["est_label_marginals"], float) if has_prior else None
        return {"accuracy": float(results["accuracy"]), "priors": priors}
