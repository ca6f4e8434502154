"""Train ResNet-32 on 90 classes of CIFAR-100 and export what it says of all 100, and of noisy images.

    python unknown.py DATA RUNS

One network sees 180 images of each class, one a long tail 1:10. RUNS gets checkpoints and one .npz per network: the
training counts and log-probabilities on the images it was not trained on, on the same images under so much noise that
it costs ten points of accuracy, and on those of the ten classes it never saw. `benchmarks/diagnosis.py images` asks of
them whether the label-shift test finds such rows. About an hour on one core.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import cifar
import numpy as np
import torch
from train import log_proba, normalise, train

SEED, UNKNOWN, EPOCHS, LOSS = 7, 10, 24, 0.10


def known_only(data: cifar.Cifar, unknown: np.ndarray) -> tuple[cifar.Cifar, np.ndarray]:
    """Return the data of the other classes, numbered anew, and all images of the unknown ones."""
    number = np.cumsum(~np.isin(np.arange(cifar.CLASSES), unknown)) - 1
    train_rows, test_rows = ~np.isin(data.y_train, unknown), ~np.isin(data.y_test, unknown)
    kept = cifar.Cifar(
        data.x_train[train_rows],
        number[data.y_train[train_rows]],
        data.x_test[test_rows],
        number[data.y_test[test_rows]],
    )
    return kept, np.concatenate([data.x_train[~train_rows], data.x_test[~test_rows]])


def noisy(images: np.ndarray, sigma: float) -> np.ndarray:
    noise = np.random.default_rng([SEED, len(images)]).normal(scale=sigma, size=images.shape)
    return np.clip(np.rint(images + noise), 0, 255).astype(np.uint8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("runs", type=Path)
    args = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    rng = np.random.default_rng(SEED)
    data, foreign = known_only(cifar.load(args.data), rng.choice(cifar.CLASSES, UNKNOWN, replace=False))
    n_classes = cifar.CLASSES - UNKNOWN
    for ratio, largest in ((1.0, 180), (0.1, 425)):
        sizes = cifar.class_counts(largest, ratio, n_classes)
        images = [rng.permutation(np.flatnonzero(data.y_train == k)) for k in range(n_classes)]
        rows = np.concatenate([own[:n] for own, n in zip(images, sizes, strict=True)])
        held = np.concatenate([own[n : n + 20] for own, n in zip(images, sizes, strict=True)])
        model = train(
            data,
            rows,
            held,
            ratio=ratio,
            epochs=EPOCHS,
            seed=SEED,
            folder=args.runs / f"ratio-{ratio}",
            n_classes=n_classes,
        )
        test = log_proba(model, normalise(data.x_test))
        enough = np.mean(test.argmax(1) == data.y_test) - LOSS
        for sigma in np.arange(3.0, 60.0, 0.5):
            spoiled = log_proba(model, normalise(noisy(data.x_test, sigma)))
            if np.mean(spoiled.argmax(1) == data.y_test) <= enough:
                break
        fresh = np.setdiff1d(np.arange(len(data.y_train)), rows)
        more = data.x_train[fresh]
        np.savez_compressed(
            args.runs / f"cifar90-{ratio}.npz",
            counts=sizes,
            sigma=sigma,
            y=np.concatenate([data.y_test, data.y_train[fresh]]).astype(np.uint8),
            proba=np.concatenate([test, log_proba(model, normalise(more))]).astype(np.float16),
            spoiled=np.concatenate([spoiled, log_proba(model, normalise(noisy(more, sigma)))]).astype(np.float16),
            foreign=log_proba(model, normalise(foreign)).astype(np.float16),
        )


if __name__ == "__main__":
    main()
