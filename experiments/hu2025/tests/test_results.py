"""The experiments of hu2025: the shipped outputs, some cells run again, and the ImageNet path on made-up images."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

FOLDER = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


def test_outputs_are_the_files_listed_and_hold_probabilities(experiment: Path) -> None:
    import outputs
    from cells import CIFAR

    for model in dict.fromkeys(c.model for c in CIFAR):
        o = outputs.load(model)
        np.testing.assert_allclose(o.test.sum(1), 1, atol=1e-9)
        assert (np.bincount(o.y_test, minlength=100) == 100).all()
        held = np.bincount(o.y_held_out, minlength=100)
        assert held.min() >= 1
        shares = held / held.sum(), o.counts / o.counts.sum()
        assert np.abs(shares[0] - shares[1]).max() < 0.003, "the held-out rows have the prior of the training set"


def test_a_changed_outputs_file_is_refused(experiment: Path, tmp_path: Path) -> None:
    import outputs

    half = np.log(np.full((4, 2), 0.5))
    outputs.save(
        tmp_path,
        "x",
        counts=np.array([3, 1]),
        test=half,
        y_test=np.arange(4) % 2,
        held_out=half,
        y_held_out=np.arange(4) % 2,
        log="",
    )
    assert outputs.load("x", tmp_path).test.tolist() == np.full((4, 2), 0.5).tolist()
    path = tmp_path / "x.npz"
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ValueError, match="SHA256SUMS"):
        outputs.load("x", tmp_path)


def test_every_figure_is_drawn_from_the_stored_results(experiment: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import figures

    for name, draw in figures.FIGURES.items():
        figures.style.save(draw(), tmp_path / f"{name}.png")
        assert (FOLDER / "figures" / f"{name}.png").exists(), name
    assert len(list(tmp_path.iterdir())) == len(list((FOLDER / "figures").iterdir())) == len(figures.FIGURES)


def test_cells_come_out_as_expected(experiment: Path, tmp_path: Path) -> None:
    import run
    from cells import CIFAR

    expected = json.loads((FOLDER / "expected.json").read_text())
    for i, (name, methods) in enumerate(expected["cells"].items()):
        cell = next(c for c in CIFAR if c.name == name)
        path = tmp_path / f"{i}.json"
        run.run_chunk("cifar", cell, range(expected["trials"]), path)
        values = json.loads(path.read_text())
        for method, (kl, accuracy) in methods.items():
            result = np.mean(values[method], axis=0)
            assert result == pytest.approx([kl, accuracy], rel=0.02, abs=0.02), (name, method)


def test_class_sizes_are_those_of_eq_2(experiment: Path) -> None:
    import cifar

    sizes = cifar.class_counts(500, 0.1)
    assert (sizes[0], sizes[-1], sizes.sum()) == (500, 50, 19573)


def test_both_cifar_file_formats_give_the_same_images(experiment: Path, tmp_path: Path) -> None:
    import pickle

    import cifar

    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8), np.arange(6)
    for name in ("train", "test"):
        batch = {b"data": x.transpose(0, 3, 1, 2).reshape(6, -1), b"fine_labels": y.tolist()}
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol=2))
    np.savez(tmp_path / "all.npz", x_train=x, y_train=y, x_test=x, y_test=y)
    a, b = cifar.load(tmp_path), cifar.load(tmp_path / "all.npz")
    np.testing.assert_array_equal(a.x_train, b.x_train)
    np.testing.assert_array_equal(a.y_test, b.y_test)


def test_imagenet_path_on_made_up_images(experiment: Path, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    image = pytest.importorskip("PIL.Image")
    import imagenet
    import outputs
    import resnet

    rng = np.random.default_rng(0)
    (tmp_path / "train").mkdir()
    lines = []
    for i in range(6):
        shape = (300, 240, 3) if i % 2 else (200, 260, 3)
        image.fromarray(rng.integers(0, 256, shape, dtype=np.uint8)).save(tmp_path / "train" / f"{i}.png")
        lines.append(f"train/{i}.png {i % 3}")
    (tmp_path / "list.txt").write_text("\n".join(lines) + "\n")
    torch.manual_seed(0)
    torch.save(resnet.ResNet50(3).state_dict(), tmp_path / "weights.pt")
    out = tmp_path / "outputs"
    imagenet.export(tmp_path, *[tmp_path / "list.txt"] * 3, tmp_path / "weights.pt", out)
    o = outputs.load("imagenet-lt", out)
    assert o.counts.tolist() == [2, 2, 2]
    assert o.test.shape == (6, 3)
    np.testing.assert_array_equal(o.y_test, [0, 1, 2, 0, 1, 2])
    np.testing.assert_allclose(o.test.sum(1), 1, atol=1e-9)
    assert sum(p.numel() for p in resnet.ResNet50(1000).parameters()) == 25_557_032  # as He et al. and torchvision


def test_training_resumes_exactly(experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    import cifar
    import train

    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(100), 5)
    data = cifar.Cifar(rng.integers(0, 256, (500, 32, 32, 3), dtype=np.uint8), y, None, None)
    monkeypatch.setattr(cifar, "PER_CLASS", 5)
    monkeypatch.setattr(cifar, "HELD_OUT_MAX", 1)
    monkeypatch.setattr(train, "BATCH", 32)
    rows, held = cifar.split(y, 0.5, np.random.default_rng(1))

    def run(folder: str) -> train.ResNet32:
        return train.train(data, rows, held, ratio=0.5, epochs=2, seed=1, folder=tmp_path / folder)

    once = run("once")

    class Stop(Exception):
        pass

    real = train.log_proba
    calls = []

    def interrupted(*args: object) -> np.ndarray:
        calls.append(1)
        if len(calls) == 2:
            raise Stop
        return real(*args)

    monkeypatch.setattr(train, "log_proba", interrupted)
    with pytest.raises(Stop):
        run("twice")
    monkeypatch.setattr(train, "log_proba", real)
    again = run("twice")
    for a, b in zip(once.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(a, b)


def test_a_finished_checkpoint_is_exported_again_with_the_confusion_on_its_training_set(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    import cifar
    import outputs
    import train

    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(100), 5)
    x = rng.integers(0, 256, (500, 32, 32, 3), dtype=np.uint8)
    np.savez(tmp_path / "data.npz", x_train=x, y_train=y, x_test=x[::5], y_test=y[::5])
    monkeypatch.setattr(cifar, "PER_CLASS", 5)
    monkeypatch.setattr(cifar, "HELD_OUT_MAX", 1)
    out = tmp_path / "outputs"
    argv = ["train.py", tmp_path / "data.npz", tmp_path / "runs", "--ratios", 0.5, "--epochs", 1, "--suffix=-long"]
    monkeypatch.setattr(sys, "argv", [str(a) for a in [*argv, "--mixed", "--export", out]])
    train.main()
    first, log = outputs.load("cifar100-lt-0.5-long", out), (out / "cifar100-lt-0.5-long.jsonl").read_text()
    assert first.trained.hard.sum() == first.counts.sum()
    np.testing.assert_allclose(first.trained.soft.sum(0), first.counts, rtol=1e-5)  # column y: the rows of class y
    (out / "cifar100-lt-0.5-long.npz").unlink()
    train.main()  # nothing is left to train
    again = outputs.load("cifar100-lt-0.5-long", out)
    assert (out / "cifar100-lt-0.5-long.jsonl").read_text() == log
    np.testing.assert_array_equal(first.trained.hard, again.trained.hard)
    np.testing.assert_array_equal(first.test, again.test)
