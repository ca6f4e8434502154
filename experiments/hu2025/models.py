"""Where each classifier's outputs come from: shipped with the experiment, with the package, or simulated."""

from __future__ import annotations

from pathlib import Path

import outputs
import pretrained
import simulated
from outputs import Outputs

import reprior.datasets


def load(model: str) -> Outputs:
    """Return the outputs of a classifier by its name in `cells`."""
    if model.startswith("cifar100") or model == "imagenet-lt":
        return outputs.load(model)
    if model.startswith((pretrained.TINY, pretrained.VAL)):
        return pretrained.load(model)
    if model == "imagenet-lt-simulated":
        return simulated.imagenet_like()
    text = reprior.datasets.load(model)
    return Outputs(text.counts, text.pool_proba, text.pool_y, text.heldout_proba, text.heldout_y)


def available(model: str) -> bool:
    """Return whether a classifier's outputs are here: networks can be trained, ImageNet's outputs made, one by one."""
    path = file_of(model)
    return path is None or path.exists()


def file_of(model: str) -> Path | None:
    """Return the file in `outputs/` that a classifier's outputs come from, if from one of these."""
    if model.startswith(pretrained.TINY):
        return outputs.FOLDER / f"{pretrained.TINY}.npz"
    if model.startswith("cifar100") or model in ("imagenet-lt", pretrained.VAL):
        return outputs.FOLDER / f"{model}.npz"
    return None
