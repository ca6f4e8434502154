"""Outputs of a ResNet-50 on ImageNet-LT, for those who have the images and weights trained on the long-tailed set.

    python imagenet.py IMAGES --train ImageNet_LT_train.txt --held-out ImageNet_LT_val.txt \\
        --test ImageNet_LT_test.txt --weights resnet50.pt --out outputs

The lists are those of [liu2019]: a path below IMAGES and a class number on each line. Their validation set is
balanced; hold out a part of the training list instead if the source prior is to come from held-out rows. WEIGHTS is a
state_dict with torchvision's names. The result is read like the CIFAR outputs: `outputs.load("imagenet-lt")`.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import outputs
import torch
from PIL import Image
from resnet import ResNet50
from torch.nn import functional as F

MEAN, STD = np.array([0.485, 0.456, 0.406], np.float32), np.array([0.229, 0.224, 0.225], np.float32)


def read_list(path: Path) -> tuple[list[str], np.ndarray]:
    """Return image paths and class numbers of one ImageNet-LT list."""
    pairs = [line.rsplit(maxsplit=1) for line in path.read_text().splitlines() if line.strip()]
    return [p for p, _ in pairs], np.array([int(y) for _, y in pairs], np.int64)


def read_image(path: Path, *, resize: int = 256, crop: int = 224) -> np.ndarray:
    """Return one image (3, crop, crop), normalised: shorter side to `resize`, centre crop."""
    with Image.open(path) as file:
        image = file.convert("RGB")
    scale = resize / min(image.size)
    width, height = (max(crop, round(s * scale)) for s in image.size)
    left, top = (width - crop) // 2, (height - crop) // 2
    image = image.resize((width, height), Image.Resampling.BILINEAR).crop((left, top, left + crop, top + crop))
    return ((np.asarray(image, np.float32) / 255 - MEAN) / STD).transpose(2, 0, 1)


def batches(root: Path, names: list[str], size: int) -> Iterator[torch.Tensor]:
    for i in range(0, len(names), size):
        yield torch.from_numpy(np.stack([read_image(root / name) for name in names[i : i + size]]))


@torch.inference_mode()
def log_proba(model: ResNet50, root: Path, names: list[str], *, batch: int = 64) -> np.ndarray:
    """Return log-probabilities (n, K) of the images, in the order of the list."""
    model.eval()
    return torch.cat([F.log_softmax(model(x), 1) for x in batches(root, names, batch)]).numpy()


def export(images: Path, train: Path, held_out: Path, test: Path, weights: Path, out: Path) -> None:
    """Write the outputs file for the images of two lists; the class counts come from the training list."""
    y_train, (held, y_held), (names, y_test) = read_list(train)[1], read_list(held_out), read_list(test)
    state = torch.load(weights, map_location="cpu", weights_only=True)
    model = ResNet50(len(state["fc.bias"]))
    model.load_state_dict(state)
    outputs.save(
        out, "imagenet-lt", counts=np.bincount(y_train, minlength=len(state["fc.bias"])),
        test=log_proba(model, images, names), y_test=y_test,
        held_out=log_proba(model, images, held), y_held_out=y_held,
        log=f'{{"weights": "{weights.name}", "n_train": {len(y_train)}}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images", type=Path)
    for name in ("train", "held-out", "test", "weights"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=outputs.FOLDER)
    args = parser.parse_args()
    export(args.images, args.train, args.held_out, args.test, args.weights, args.out)


if __name__ == "__main__":
    main()
