"""Where each classifier's outputs come from: shipped with the experiment, with the package, or simulated."""

from __future__ import annotations

import outputs
import simulated
from outputs import Outputs

import reprior.datasets


def load(model: str) -> Outputs:
    """Return the outputs of a classifier by its name in `cells`."""
    if model.startswith("cifar100") or model == "imagenet-lt":
        return outputs.load(model, outputs.FOLDER)  # looked up when called: a test has its own
    if model == "imagenet-lt-simulated":
        return simulated.imagenet_like()
    text = reprior.datasets.load(model)
    return Outputs(text.counts, text.pool_proba, text.pool_y, text.heldout_proba, text.heldout_y)


def available(model: str) -> bool:
    """Return whether a classifier's outputs are here: networks can be trained, ImageNet's outputs made, one by one."""
    return not model.startswith(("cifar100", "imagenet-lt")) or model == "imagenet-lt-simulated" or (
        outputs.FOLDER / f"{model}.npz").exists()
