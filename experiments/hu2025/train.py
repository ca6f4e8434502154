"""Train ResNet-32 on long-tailed CIFAR-100 and export its outputs on the test and held-out images.

    python train.py DATA RUNS --export outputs

DATA is the .npz file or the folder of the original pickled files; RUNS keeps one checkpoint per model, written
after every epoch. Started again, the script goes on where it stopped, with the same random numbers; where nothing is
left to train it exports only. With the outputs goes the confusion on the training images themselves, not augmented.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path

import cifar
import numpy as np
import outputs
import torch
from resnet import ResNet32
from torch import Tensor
from torch.nn import functional as F

MEAN, STD = (0.5071, 0.4866, 0.4409), (0.2673, 0.2564, 0.2762)
BATCH, MAX_LR, MOMENTUM, DECAY = 64, 0.1, 0.9, 5e-4
EARLY = 0.65  # of the epochs see 24x24 crops at 0.56 of the cost, the rest the whole padded-and-cropped image


def normalise(images: np.ndarray) -> Tensor:
    x = torch.from_numpy(images).permute(0, 3, 1, 2).float().div_(255)
    x = (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    return x.contiguous(memory_format=torch.channels_last)


def augment(x: Tensor, rng: torch.Generator, *, size: int) -> Tensor:
    """Random square crop of the image, padded by four if it is to be 32 wide, and a random flip."""
    n = len(x)
    padded = F.pad(x, (4, 4, 4, 4)) if size == 32 else x
    top, left = torch.randint(0, padded.shape[2] - size + 1, (2, n), generator=rng)
    flip = torch.rand(n, generator=rng) < 0.5
    step = torch.arange(size)
    cols = left[:, None] + torch.where(flip[:, None], step.flip(0), step)
    rows = top[:, None] + step
    out = padded.permute(0, 2, 3, 1)[torch.arange(n)[:, None, None], rows[:, :, None], cols[:, None, :]]
    return out.permute(0, 3, 1, 2)


def one_cycle(progress: float) -> float:
    """Return the learning rate as a share of its peak: a cosine up over the first quarter, a cosine down after it."""
    if progress < 0.25:
        return 0.04 + 0.48 * (1 - math.cos(4 * math.pi * progress))
    return 0.5 * (1 + math.cos(math.pi * (progress - 0.25) / 0.75))


@torch.inference_mode()
def log_proba(model: ResNet32, x: Tensor) -> np.ndarray:
    model.eval()
    return torch.cat([F.log_softmax(model(b), 1) for b in x.split(500)]).numpy()


def train(
    data: cifar.Cifar, rows: np.ndarray, held: np.ndarray, *, ratio: float, epochs: int, seed: int, folder: Path,
    n_classes: int = cifar.CLASSES, mixed: bool = False,
) -> ResNet32:
    """Train one model on `rows`, resuming from its checkpoint; one JSON line per epoch goes to the log. `mixed` ones
    compute in bfloat16 and keep their weights in float32."""
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint, log = folder / "checkpoint.pt", folder / "log.jsonl"
    torch.manual_seed(seed)
    rng = torch.Generator().manual_seed(seed)
    x, y = normalise(data.x_train[rows]), torch.from_numpy(data.y_train[rows])
    x_held, y_held = normalise(data.x_train[held]), data.y_train[held]

    model = ResNet32(n_classes).to(memory_format=torch.channels_last)
    sgd = torch.optim.SGD(model.parameters(), MAX_LR, MOMENTUM, weight_decay=DECAY, nesterov=True)
    steps = -(-len(x) // BATCH)
    first = 0
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        sgd.load_state_dict(saved["sgd"])
        rng.set_state(saved["rng"])
        first = saved["epoch"]
    for epoch in range(first, epochs):
        wall, cpu, total = time.time(), time.process_time(), 0.0
        model.train()
        size = 24 if epoch < round(EARLY * epochs) else 32
        for i, batch in enumerate(torch.randperm(len(x), generator=rng).split(BATCH)):
            sgd.param_groups[0]["lr"] = MAX_LR * one_cycle((epoch + i / steps) / epochs)
            with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
                logits = model(augment(x[batch], rng, size=size))
            loss = F.cross_entropy(logits.float(), y[batch])
            sgd.zero_grad()
            loss.backward()
            sgd.step()
            total += loss.item() * len(batch)
        hits = log_proba(model, x_held).argmax(1) == y_held
        line = {"ratio": ratio, "seed": seed, "epoch": epoch + 1, "of": epochs, "crop": size, "n_train": len(x),
                **({"mixed": True} if mixed else {}),
                "loss": round(total / len(x), 4), "held_out_accuracy": round(float(hits.mean()), 4),
                "seconds": round(time.time() - wall, 1), "cpu_seconds": round(time.process_time() - cpu, 1)}
        part = checkpoint.with_suffix(".part")
        torch.save({"model": model.state_dict(), "sgd": sgd.state_dict(),
                    "rng": rng.get_state(), "epoch": epoch + 1}, part)
        part.replace(checkpoint)
        with log.open("a") as f:
            f.write(json.dumps(line) + "\n")
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--ratios", type=float, nargs="+", default=[0.02, 0.05, 0.1, 0.2])
    parser.add_argument("--epochs", type=int, nargs="+", default=[40, 36, 32, 30], help="one number, or one per ratio")
    parser.add_argument("--seed", type=int, default=2025)
    parser.add_argument("--suffix", default="", help="ends the names of the outputs: -long, after other epochs")
    parser.add_argument("--mixed", action="store_true", help="bfloat16 where it does: two thirds of the time")
    parser.add_argument("--export", type=Path, help="folder for the float16 outputs")
    args = parser.parse_args()
    torch.set_flush_denormal(True)
    torch.set_num_threads(1)  # two threads on a busy machine are slower than one
    data = cifar.load(args.data)
    epochs = args.epochs * len(args.ratios) if len(args.epochs) == 1 else args.epochs
    for ratio, n_epochs in zip(args.ratios, epochs, strict=True):
        folder = args.runs / f"ratio-{ratio}"
        rows, held = cifar.split(data.y_train, ratio, np.random.default_rng(args.seed))
        model = train(data, rows, held, ratio=ratio, epochs=n_epochs, seed=args.seed, folder=folder,
                      mixed=args.mixed)
        if args.export:
            outputs.save(
                args.export, f"cifar100-lt-{ratio}{args.suffix}",
                counts=np.bincount(data.y_train[rows], minlength=cifar.CLASSES),
                test=log_proba(model, normalise(data.x_test)), y_test=data.y_test,
                held_out=log_proba(model, normalise(data.x_train[held])), y_held_out=data.y_train[held],
                trained=outputs.confusion(log_proba(model, normalise(data.x_train[rows])), data.y_train[rows]),
                log=(folder / "log.jsonl").read_text())


if __name__ == "__main__":
    main()
