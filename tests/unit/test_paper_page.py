"""The page on hu2025: numbers come from stored results, short runs replace nothing, outputs of ImageNet are found."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import reprior as rp

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "experiments" / "hu2025"


@pytest.fixture
def experiment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make the experiment's modules importable; they live beside each other, outside the package."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = {p.stem for p in FOLDER.glob("*.py")} | {"style"}
    before = list(sys.path)
    yield FOLDER
    sys.path[:] = before
    for name in names & set(sys.modules):
        del sys.modules[name]


def test_the_page_is_the_template_filled_from_the_stored_results(experiment: Path) -> None:
    import findings

    template = findings.TEMPLATE.read_text(encoding="utf-8")
    assert set(findings.TABLES) == set(findings.TABLE.findall(template))
    assert findings.filled(template) == findings.PAGE.read_text(encoding="utf-8")


def test_no_result_is_written_into_the_prose_by_hand(experiment: Path) -> None:
    import findings

    prose = re.sub(r"\{[^{}\n]+\}|`[^`]*`|\]\([^)]*\)|<!--.*?-->", "", findings.TEMPLATE.read_text(encoding="utf-8"))
    settings = {"0.2", "0.1", "0.05", "0.02", "0.01"}  # ratios, and the γ and μ that are talked about
    by_hand = set(re.findall(r"\d+\.\d+|\d+(?= %)", prose)) - settings
    assert by_hand == {"90"}, "a percentage or a decimal must come from a fact (90 % is the rule for a verdict)"


def test_a_number_after_a_method_is_the_training_ratio_or_else_the_shift(experiment: Path) -> None:
    import findings

    table = findings.cells("cifar")
    at_ratio = [v["MAPLS"][0] for c, v in table.items() if c.startswith("cifar100-lt-0.02/")]
    assert len(at_ratio) == 10  # not the cells with ρ_test = 0.02
    assert findings.over("MAPLS@0.02", 0) == pytest.approx(np.mean(at_ratio))
    assert findings.over("val/MAPLS@0.5", 2) == findings.cells("val")["imagenet-val5k/absent-0.5"]["MAPLS"][2]
    assert findings.over("val/MAPLS@0", 2) == findings.cells("val")["imagenet-val5k/absent-0"]["MAPLS"][2]


def test_methods_are_compared_at_the_ratios_that_are_named(experiment: Path) -> None:
    import findings

    table = findings.cells("tiny")
    some = [c for c in table if c.startswith(("tiny-imagenet-lt-0.2/", "tiny-imagenet-lt-0.05/"))]
    means = [np.mean([table[c][m][0] for c in some]) for m in ("FMAPLS", "MAPLS")]
    found = findings.pair("tiny/FMAPLS|MAPLS@0.2,0.05")
    assert found["cells"] == len(some) == 20
    assert found["change_percent"] == pytest.approx(100 * (means[0] / means[1] - 1), abs=0.1)


def test_lines_that_are_run_again_leave_the_others_and_say_how_many_trials_they_have(experiment: Path) -> None:
    import curves

    stored = {"trials": 100, "cells": {"a": {"samples": [1], "online-FMAPLS": [0.3], "online-EBLS": [0.2]}}}
    fresh = {"cells": {"a": {"samples": [1], "online-EBLS": [0.1]}}}
    made = curves.some_lines(stored, ["online-EBLS"], 20, fresh)
    assert made["cells"] == {"a": {"samples": [1], "online-FMAPLS": [0.3], "online-EBLS": [0.1]}}
    assert made["trials"] == 100
    assert made["lines"]["online-EBLS"]["trials"] == 20


def test_every_claim_has_a_quote_from_the_paper_a_place_a_verdict_and_a_command(experiment: Path) -> None:
    import claims

    rows = claims.verdicts()
    assert len(rows) > 30
    for row in rows:
        assert all(row[key] for key in ("quote", "place", "here", "verdict", "command")), row
        script = str(row["command"]).split()[1]
        assert (FOLDER / script).exists(), script
    stored = json.loads((FOLDER / "results" / "claims.json").read_text(encoding="utf-8"))
    assert stored["claims"] == rows
    assert claims.table(rows).count("\n") == len(rows) + 2


def test_checks_agree_with_figures_read_from_the_papers_tables_by_hand(experiment: Path) -> None:
    import claims

    paper = claims.paper()
    assert claims.reduced(claims.SHUFFLED_40, 20)(paper)[0] == 1.0
    assert claims.reduced(claims.DIRICHLET_40, 20)(paper)[1].startswith("17.9 to")  # said of Table 2 only
    assert claims.second(claims.SEVERE)(paper)[1].startswith("first or second in 17 of 20")
    assert claims.ablation((0.2, 0.1), (23, 33))(paper)[1].startswith("FMAPLS 23.2 and 32.9 %")
    assert claims.ablation_imagenet(paper)[1] == "FMAPLS 21.4 and 23.8 % below MAPLS, online 2.2 and 11.0 %"
    found = claims.rlls_is_the_source_prior(paper)[1]
    assert found.startswith("KL 0.300 to 1.152;")
    assert found.endswith("BBSE in 6 and 0, MLLS in 0 and 8")  # neither highest everywhere, nor on ImageNet
    assert claims.settle([1.0, 0.5, 0.109, 0.1], [1, 2, 3, 4]) == 3


def test_counting_guards_changes_nothing_in_gradient_ascent(experiment: Path) -> None:
    import sweeps
    from cells import draw
    from models import load

    outputs = load(sweeps.PAGE.model)
    prior = outputs.counts / outputs.counts.sum()
    rows = draw(sweeps.PAGE, outputs, 0).proba
    guarded = 0.0
    for mu, n_grad in ((0.01, 10), (100.0, 3)):
        ours, alpha, fired = sweeps.ascent_path(prior, rows, mu, n_grad, n_iter=4)
        theirs = rp.fmapls(prior, rows, variant="paper", update="ga", c=1.0, mu=mu, n_grad=n_grad, n_iter=4)
        np.testing.assert_allclose(ours, theirs.prior, rtol=1e-6, atol=1e-12)
        np.testing.assert_allclose(alpha, theirs.alpha, rtol=1e-6)
        guarded += fired
    assert guarded > 0  # in few iterations: where the guard fires, rounding errors grow


def test_the_swept_online_recursion_is_the_streams(experiment: Path) -> None:
    import sweeps
    from cells import draw
    from models import load

    outputs = load(sweeps.PAGE.model)
    prior = outputs.counts / outputs.counts.sum()
    sample = draw(sweeps.PAGE, outputs, 1)
    names, settings = sweeps.plane_settings()
    assert len(names) == 2 * 3 * 6 * 9
    found = sweeps.plane_path(settings, prior, sample.proba, sample.y, (40,))[0]
    for start, reading, gamma, c in (
        ("printed", "running", 0.1, 3e4),
        ("printed", "predicted", 0.5, 1e4),
        ("printed", "observed", 0.5, 1e5),
        ("printed", "running", 1.0, 1e3),
    ):
        stream = rp.Stream("online-fmapls", prior, variant="paper", c=c, gamma=gamma, delta=reading)
        for row, y in zip(sample.proba[:40], sample.y, strict=False):
            stream.learn_one(row)
            if reading == "observed":
                stream.observe(row, int(y))
        np.testing.assert_allclose(found[names.index((start, reading, gamma, c))], stream.prior, rtol=1e-6, atol=1e-11)


def test_a_short_run_leaves_the_stored_result_alone(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import record
    import run

    monkeypatch.setattr(record, "WORK", tmp_path / "work")
    results = tmp_path / "results"
    results.mkdir()
    (results / "cifar.json").write_text("kept")
    path = run.run("cifar", trials=1, wanted=("MAPLS",), only="lt-0.1/shuffled-0.1", work=tmp_path, results=results)
    assert path == tmp_path / "work" / "cifar.json"
    assert (results / "cifar.json").read_text() == "kept"
    assert "Short run" in capsys.readouterr().err
    # told to, it merges: fresh rows replace their own, the others stay
    fresh = json.loads(path.read_text())
    stored = {**fresh, "cells": {c: {"MLLS": [1.0] * 4, "MAPLS": [2.0] * 4} for c in fresh["cells"]},
              "made_with": {"MLLS": {"trials": 100}, "MAPLS": {"trials": 100}}}  # fmt: skip
    both = run.merged(stored, fresh)
    (cell,) = both["cells"].values()
    assert cell["MLLS"] == [1.0] * 4
    assert cell["MAPLS"] != [2.0] * 4
    assert both["made_with"]["MAPLS"]["trials"] == 1


def test_outputs_of_imagenet_are_found_and_stand_beside_the_papers_figures(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import outputs
    import run
    from cells import IMAGENET
    from models import available, load

    assert not available("imagenet-lt")
    monkeypatch.setattr(outputs, "FOLDER", tmp_path / "outputs")
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(6), 30)
    logits = rng.normal(size=(len(y), 6)) + 3 * np.eye(6)[y]
    logits -= np.log(np.exp(logits).sum(1, keepdims=True))
    outputs.save(tmp_path / "outputs", "imagenet-lt", counts=np.array([60, 40, 30, 20, 10, 5]), test=logits, y_test=y,
                 held_out=logits[::2], y_held_out=y[::2], log="{}\n")  # fmt: skip
    assert load("imagenet-lt").test.shape == (180, 6)
    assert sum(c.model == "imagenet-lt" for c in IMAGENET) == 8
    path = run.run("imagenet", trials=2, wanted=("MAPLS", "FMAPLS printed, c=2N"), only="imagenet-lt/shuffled-0.02",
                   work=tmp_path / "work", results=tmp_path / "results", store=True)  # fmt: skip
    table = path.with_suffix(".md").read_text(encoding="utf-8")
    assert "imagenet-lt, shuffled long-tail targets" in table
    assert "paper 0.229, 51.20" in table  # MAPLS, Table 4
    assert "paper 0.180, 52.78" in table  # FMAPLS


def test_a_made_up_imagenet_lt_folder_goes_all_the_way_to_the_table(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    image = pytest.importorskip("PIL.Image")
    import imagenet
    import outputs
    import resnet
    import run

    rng = np.random.default_rng(0)
    for name, sizes in (("train", (6, 3, 2)), ("held-out", (4, 3, 2)), ("test", (4, 4, 4))):
        (tmp_path / name).mkdir()
        lines = []
        for i, y in enumerate(np.repeat(np.arange(3), sizes)):
            picture = rng.integers(0, 80, (60, 80, 3), dtype=np.uint8)
            picture[..., y] += 150
            image.fromarray(picture).save(tmp_path / name / f"{i}.png")
            lines.append(f"{name}/{i}.png {y}")
        (tmp_path / f"{name}.txt").write_text("\n".join(lines) + "\n")
    torch.manual_seed(0)
    torch.save(resnet.ResNet50(3).state_dict(), tmp_path / "weights.pt")
    monkeypatch.setattr(outputs, "FOLDER", tmp_path / "outputs")
    lists = [tmp_path / f"{name}.txt" for name in ("train", "held-out", "test")]
    options = ["--train", lists[0], "--held-out", lists[1], "--test", lists[2], "--weights", tmp_path / "weights.pt"]
    argv = ["imagenet.py", tmp_path, *options, "--out", tmp_path / "outputs"]
    monkeypatch.setattr(sys, "argv", [str(x) for x in argv])
    imagenet.main()
    path = run.run("imagenet", trials=2, wanted=("MAPLS",), only="imagenet-lt/dirichlet-1", work=tmp_path / "work",
                   results=tmp_path / "results", store=True)  # fmt: skip
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert set(cells) == {"imagenet-lt/dirichlet-1", "imagenet-lt/dirichlet-1.5"}
    assert all(0 <= row["MAPLS"][2] <= 100 for row in cells.values())


def test_outputs_on_imagenets_kind_of_images_ship_in_little_room(experiment: Path) -> None:
    import outputs
    import pretrained
    from cells import CIFAR_RATIOS, VAL, draw
    from models import load

    size = {name: (outputs.FOLDER / f"{name}.npz").stat().st_size for name in (pretrained.TINY, pretrained.VAL)}
    assert sum(size.values()) < 8e6
    for ratio in CIFAR_RATIOS:
        o = load(f"{pretrained.TINY}-{ratio}")
        np.testing.assert_allclose(o.test.sum(1), 1, atol=1e-9)
        assert (np.bincount(o.y_test) == pretrained.TEST).all()
        held = np.bincount(o.y_held_out, minlength=200)
        np.testing.assert_array_equal(held, pretrained.held_out_counts(ratio))
        assert o.counts[-1] == np.floor(pretrained.TRAIN * ratio + 1e-9)
        assert 0.3 < np.mean(o.test.argmax(1) == o.y_test) < np.mean(o.held_out.argmax(1) == o.y_held_out) < 0.9
    o = load(pretrained.VAL)
    assert np.mean(o.test.argmax(1) == o.y_test) == pytest.approx(0.754, abs=1e-3)
    for cell in VAL:
        sample = draw(cell, o, 3)
        assert len(set(sample.rows.tolist())) == len(sample.rows), "no image comes twice"
        assert np.bincount(sample.y).max() <= 3
    assert [round(float(np.mean(draw(c, o, 0).prior == 0)), 2) for c in VAL] == [0.0, 0.24, 0.5, 0.8]


def test_heads_are_trained_on_long_tails_and_read_as_they_were_trained(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import outputs
    import pretrained

    for name, value in {"K": 4, "TEST": 6, "TRAIN": 100, "HELD_OUT": 20, "AXES": 5}.items():
        monkeypatch.setattr(pretrained, name, value)
    monkeypatch.setattr(outputs, "FOLDER", tmp_path)
    rng = np.random.default_rng(0)
    most, held = pretrained.training_counts(0.2), pretrained.held_out_counts(0.2)
    assert (most.tolist(), pretrained.training_counts(0.02).tolist()) == ([100, 58, 34, 20], [100, 27, 7, 2])
    centres = 3 * rng.normal(size=(4, 12))
    made = [rng.normal(size=(6 + n + h, 12)) + c for n, h, c in zip(most, held, centres, strict=True)]
    monkeypatch.setattr(pretrained, "features", lambda images, work: [m.astype(np.float32) for m in made])
    monkeypatch.setattr(pretrained, "classes", lambda images: list("abcd"))
    pretrained.make_tiny(tmp_path, tmp_path, tmp_path)
    log = [json.loads(line) for line in (tmp_path / f"{pretrained.TINY}.jsonl").read_text().splitlines()]
    trained = {line["ratio"]: line for line in log if "ratio" in line}
    for ratio in (0.2, 0.02):
        o = pretrained.load(f"{pretrained.TINY}-{ratio}")
        assert trained[ratio]["n_train"] == o.counts.sum() == pretrained.training_counts(ratio).sum()
        assert trained[ratio]["accuracy"]["test"] == round(float(np.mean(o.test.argmax(1) == o.y_test)), 4) > 0.8
        assert np.bincount(o.y_held_out).tolist() == pretrained.held_out_counts(ratio).tolist()
        # no ridge on the bias: the mean output on the training rows is the training prior, on these nearly
        assert np.abs(o.held_out.mean(0) - o.counts / o.counts.sum()).max() < 0.05
    # the held-out rows of a smaller set are the last ones of each class
    keep = pretrained.nested(np.array([0, 0, 0, 1, 1, 2]), np.array([1, 2, 1]))
    assert keep.tolist() == [False, False, True, True, True, True]


def test_one_byte_a_probability_loses_little(experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import outputs
    import pretrained

    monkeypatch.setattr(outputs, "FOLDER", tmp_path)
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(4), 5)
    logits = 2 * rng.normal(size=(20, 4)) + 4 * np.eye(4)[y]
    files = [f"ILSVRC2012_val_{i:08d}.JPEG" for i in range(20)]
    np.savez(tmp_path / "logits.npz", logits=logits, labels=y, files=files)
    pretrained.make_val(tmp_path / "logits.npz", tmp_path)
    o = pretrained.load(pretrained.VAL)
    proba = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    held = np.tile([True, True, False, False, False], 4)
    np.testing.assert_allclose(o.held_out, proba[held], atol=0.01)
    np.testing.assert_allclose(o.test, proba[~held], atol=0.01)
    np.testing.assert_array_equal(o.y_test, y[~held])


def test_what_the_analysis_says_of_its_numbers_is_so() -> None:
    folder = ROOT / "experiments" / "analysis"
    found, text = json.loads((folder / "analysis.json").read_text()), (folder / "README.md").read_text(encoding="utf-8")
    surrogate, rate, fixed = (found[name] for name in ("surrogate_error", "rate_and_precision", "fixed_points"))
    ratio = surrogate["ratio_to_bound"]
    assert f"between {ratio['min']:.2f} and {ratio['max']:.2f} times 1/(ĉπ)" in text
    assert surrogate["within_bounds"]
    auto = rate["kl"]["stable, c = auto"]
    assert f"({auto['kl_after_1000']:.3f} after 1,000, {auto['kl_at_end']:.3f} after\n20,000)" in text
    assert all(17 < v["kl_at_end"] < 23.5 for name, v in rate["kl"].items() if name.startswith("printed"))
    assert fixed["l1_between_ends"] < 1e-11
    assert fixed["dirichlet_0_residual_in_counts"] < 5e-10
    assert fixed["classes_killed"] == 2
    assert f"grows by {fixed['growth_per_sample'] / fixed['one_over_c']:.2f}/c a sample" in text
