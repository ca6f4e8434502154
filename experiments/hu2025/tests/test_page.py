"""The page on hu2025: numbers come from stored results, short runs replace nothing, outputs of ImageNet are found."""

from __future__ import annotations

import json
import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

import reprior as rp

FOLDER = Path(__file__).parents[1]


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
    number = r"\d+(?:(?:, | and | to )\d+)*"
    names = rf"(?:[Ee]q\.|Tables?|Figures?) {number}|CIFAR-100|ResNet-32|K = \d+|own 1000 classes|1e-12|\(0\)"
    whole = re.findall(r"(?<![\w.])\d[\d,]*\d|(?<![\w.])\d", re.sub(rf"{names}|\d+\.\d+", "", prose))
    formulas = {"0", "1", "2", "3"}  # in formulas and as the number of images of a class
    others = {"200", "5", "42", "10", "90", "2,000", "3000"}  # epochs, a ridge, a share, a setting of δ
    assert set(whole) <= formulas | others, "a whole number must come from a fact, too"


def test_the_readmes_figures_are_those_of_code_and_logs(experiment: Path) -> None:
    import cifar
    import findings
    import pretrained
    import run
    from cells import CIFAR, SEED

    text = (experiment / "README.md").read_text(encoding="utf-8")
    words = " ".join(text.split())
    full = run.EXPERIMENTS["cifar"]
    assert f"{len(full.cells)} cells, {full.trials} trials each" in words
    n = cifar.PER_CLASS - cifar.HELD_OUT_MAX
    assert f"seed {SEED}. Class k has ⌊{n}·ρ^(k/99)⌋" in words
    assert f"({cifar.HELD_OUT_MAX}/{n})" in words
    assert f"the largest class has {cifar.PER_CLASS} images" in words
    epochs = [findings.last_epoch(model) for model in dict.fromkeys(c.model for c in CIFAR)]
    assert f"{', '.join(epochs[:-1])} and {epochs[-1]} epochs" in words
    twice = [str(2 * int(e)) for e in epochs]
    assert f"{twice[2]} and {twice[3]} at ratios 0.05 and 0.02" in words
    assert f"{twice[0]} and {twice[1]} at ratios 0.2 and 0.1" in words
    for ratio, by in findings.schedules().items():
        assert findings.last_epoch([*by][1]) == twice[findings.CIFAR_RATIOS.index(ratio)]
        assert findings.mixed([*by][1]) == (ratio >= 0.1)
    early = float(re.search(r"^EARLY = ([\d.]+)", (experiment / "train.py").read_text(encoding="utf-8"), re.M)[1])
    assert f"the first {100 * early:.0f} % of the epochs" in words
    assert f"Of each class's 500 training images {pretrained.TEST} are test rows" in words
    assert f"up to {pretrained.TRAIN} train and up to {pretrained.HELD_OUT} are held out" in words
    assert f"their {pretrained.AXES} leading principal axes" in words
    seconds = float(re.search(r"about ([\d.]+) CPU-seconds a trial, an hour in all", words)[1])
    assert round(len(full.cells) * full.trials * seconds / 3600) == 1


def test_no_best_c_is_the_end_of_its_grid(experiment: Path) -> None:
    import record
    from tables import PRINTED, best_single

    for name in ("cifar", "long", "text", "imagenet", "tiny", "val"):
        table = record.read(name)["cells"]
        groups = [table]
        if name == "imagenet":  # the real cells, once there are any, have a best c of their own
            models = dict.fromkeys(c.split("/")[0] for c in table)
            groups = [{c: v for c, v in table.items() if c.startswith(f"{model}/")} for model in models]
        for group in groups:
            tried = [float(m.removeprefix(PRINTED)[:-1]) for m in next(iter(group.values())) if m.startswith(PRINTED)]
            best = float(best_single(group, PRINTED).removeprefix(PRINTED)[:-1])
            assert min(tried) < best < max(tried), (name, best, tried)


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
    result = findings.pair("tiny/FMAPLS|MAPLS@0.2,0.05")
    assert result["cells"] == len(some) == 20
    assert result["change_percent"] == pytest.approx(100 * (means[0] / means[1] - 1), abs=0.1)


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
    assert (
        "not 19.7 % (ρ_train 0.1, α_test 2.5) and 17.9 % (ρ_train 0.1, α_test 3)"
        in (
            claims.reduced(claims.DIRICHLET_40, 20)(paper)[1]  # the paper says 20 % of Table 2 only
        )
    )
    for cells, n in ((claims.SHUFFLED_40, 9), (claims.DIRICHLET_40, 8)):
        assert claims.second(claims.severe(cells))(paper)[1].startswith(f"first or second in {n} of 10")
    assert claims.up_to(paper) == (
        1.0,
        "at most 40.5 % (ρ_train 0.05, ρ_test 0.1) and 12.9 % (ρ_train 0.02, ρ_test 0.025) below the best baseline",
    )
    assert claims.bbse_unstable(paper)[1].endswith("BBSE has 44.94 to 51.99 % at 0.02")
    assert claims.online_on_imagenet(paper)[1].startswith("Table 4: +0.47 (ρ_test 0.05) to +0.56 points (ρ_test 0.02)")
    assert claims.ablation((0.2, 0.1), (23, 33))(paper)[1] == "FMAPLS 23.2 and 32.9 % below MAPLS"
    online = claims.ablation_online((0.2, 0.1), below=False)(paper)
    assert online == (1.0, "online-FMAPLS -11.8 and -10.0 % below MAPLS")
    assert claims.ablation_imagenet(paper)[1] == "FMAPLS 21.4 and 23.8 % below MAPLS, online 2.2 and 11.0 %"
    result = claims.rlls_is_the_source_prior(paper)[1]
    assert result.startswith("KL 0.300 to 1.152;")
    assert result.endswith("BBSE in 6 and 0, MLLS in 0 and 8")  # neither highest everywhere, nor on ImageNet
    assert claims.settle([1.0, 0.5, 0.11, 0.1], [1, 2, 3, 4]) == pytest.approx(3)
    assert claims.settle([1.0, 0.12, 0.1, 0.1], [10, 100, 400, 500]) == pytest.approx(200)  # between two points


def test_a_claim_that_fails_here_and_holds_in_the_papers_table_is_not_reproduced(experiment: Path) -> None:
    import claims

    assert claims.judged(0.2, (1.0, "")) == claims.judged(0.2, (0.8, "")) == "not reproduced here"
    assert claims.judged(0.2, (0.3, "")) == "does not hold, nor in its own table"
    assert claims.judged(0.2, None) == "does not hold"
    assert claims.judged(0.95, (1.0, "")) == "nearly holds"


def test_claims_and_page_take_as_many_longer_trained_networks_as_there_are(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import claims
    import findings
    import outputs
    import record

    stored = record.read("long")
    before = {c.split("/")[0] for c in stored["cells"]}
    rows = next(iter(stored["cells"].values()))
    short = record.read("cifar")["cells"]
    for ratio in (0.2, 0.1, 0.05, 0.02):
        for cell, values in short.items():
            if cell.startswith(f"cifar100-lt-{ratio}/"):
                name = cell.replace("/", "-long/")
                stored["cells"].setdefault(name, {m: values[m] for m in rows if m in values})
    real = record.read
    monkeypatch.setattr(record, "read", lambda name: stored if name == "long" else real(name))
    folder = tmp_path / "outputs"
    folder.mkdir()
    for path in outputs.FOLDER.iterdir():
        (folder / path.name).symlink_to(path)
    sums = (folder / "SHA256SUMS").read_text(encoding="utf-8")
    (folder / "SHA256SUMS").unlink()
    for ratio in (0.2, 0.1):
        name = f"cifar100-lt-{ratio}"
        if f"{name}-long" not in before:
            (folder / f"{name}-long.npz").symlink_to(outputs.FOLDER / f"{name}.npz")
            line = json.loads((outputs.FOLDER / f"{name}.jsonl").read_text().splitlines()[-1])
            log = json.dumps({**line, "epoch": 2 * line["epoch"], "mixed": True})
            (folder / f"{name}-long.jsonl").write_text(log + "\n")
            (sha,) = (row.split("  ")[0] for row in sums.splitlines() if row.endswith(f"  {name}.npz"))
            sums += f"{sha}  {name}-long.npz\n"
    (folder / "SHA256SUMS").write_text(sums, encoding="utf-8")
    monkeypatch.setattr(outputs, "FOLDER", folder)
    view = claims.longer(stable=False)
    assert len(view.cells) == 40
    assert view.ratios == [0.2, 0.1, 0.05, 0.02]
    results = {str(r["quote"]): r for r in claims.verdicts()}
    fig5 = results["(ρ_train ≥ 0.1) … the proposed FMAPLS reduces KL divergence by about 23% and 33%"]
    assert fig5["longer"], "with its ratios there, a claim has a number"
    page = findings.filled(findings.TEMPLATE.read_text(encoding="utf-8"))
    words = " ".join(page.split())
    assert (
        "Those at ratios 0.2 and 0.1 were trained in mixed precision (bfloat16 activations, float32 weights), the "
        "others in float32." in words
    )
    assert "--ratios 0.2 0.1 --epochs 60 64 --suffix=-long --mixed --export outputs`" in words
    assert "--ratios 0.05 0.02 --epochs 72 80 --suffix=-long --export outputs` and `" in words
    assert re.search(r"lower in \d+ of 40 cells; at ratio 0.02 the two have", words)


def test_a_network_with_two_of_four_ratios_answers_what_it_can(experiment: Path) -> None:
    import claims

    whole = claims.ours(stable=False)
    part = claims.View({c: v for c, v in whole.cells.items() if c.startswith(("0.05/", "0.02/"))})
    assert claims.lowest(claims.SHUFFLED_40)(part)[1].endswith("of 10")
    assert claims.ablation((0.2, 0.1), (23, 33))(part) is None
    assert claims.lowest(claims.IMAGENET_8)(part) is None
    assert claims.ablation((0.05, 0.02), (33, 40))(part) == claims.ablation((0.05, 0.02), (33, 40))(whole)
    for claim in claims.CLAIMS:
        if claim.on_paper and not claim.imagenet:
            claim.check(part)


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
    result = sweeps.plane_path(settings, prior, sample.proba, sample.y, (40,))[0]
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
        np.testing.assert_allclose(result[names.index((start, reading, gamma, c))], stream.prior, rtol=1e-6, atol=1e-11)


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
    import claims
    import findings
    import outputs
    import record
    import run
    from cells import IMAGENET
    from models import available, load

    assert not available("imagenet-lt")
    (tmp_path / "outputs").mkdir()
    for file in outputs.FOLDER.glob("*.*"):
        (tmp_path / "outputs" / file.name).symlink_to(file)
    monkeypatch.setattr(outputs, "FOLDER", tmp_path / "outputs")
    rng = np.random.default_rng(0)
    y = np.repeat(np.arange(6), 30)
    logits = rng.normal(size=(len(y), 6)) + 3 * np.eye(6)[y]
    logits -= np.log(np.exp(logits).sum(1, keepdims=True))
    outputs.save(tmp_path / "outputs", "imagenet-lt", counts=np.array([60, 40, 30, 20, 10, 5]), test=logits, y_test=y,
                 held_out=logits[::2], y_held_out=y[::2], log="{}\n")  # fmt: skip
    assert load("imagenet-lt").test.shape == (180, 6)
    assert sum(c.model == "imagenet-lt" for c in IMAGENET) == 8
    # beside the stored results, as they are, all the way to claims and page
    results = tmp_path / "results"
    results.mkdir()
    for file in record.RESULTS.glob("*.json"):
        (results / file.name).write_bytes(file.read_bytes())
    monkeypatch.setattr(record, "RESULTS", results)
    methods = tuple(m for m in run.CONTENDERS if not any(t in m for t in ("EBLS", "pipeline", "GA, ", "TS")))
    path = run.run("imagenet", trials=2, wanted=methods, only="imagenet-lt/", work=tmp_path / "work", results=results,
                   store=True)  # fmt: skip
    table = path.with_suffix(".md").read_text(encoding="utf-8")
    assert "imagenet-lt, shuffled long-tail targets" in table
    assert "paper 0.229, 51.20" in table  # MAPLS, Table 4
    assert "paper 0.180, 52.78" in table  # FMAPLS
    kept = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert sum(c.startswith("imagenet-lt/") for c in kept) == sum("simulated" in c for c in kept) == 8
    untested = [r for r in claims.verdicts() if r["verdict"] == "cannot be tested here"]
    assert {r["command"] for r in untested} == {"python curves.py online-imagenet"}, "curves are another command"
    page = findings.filled(findings.TEMPLATE.read_text(encoding="utf-8"))
    assert "is not here" not in page
    assert "| mean KL, accuracy in % | imagenet-lt |" in page
    assert page.count("**cannot be tested here**") == len(untested)


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the network is not trained: its outputs contradict the labels
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


def test_the_confusion_on_training_rows_is_kept_and_used_where_a_file_has_it(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import findings
    import outputs
    import record
    import sweeps

    assert all(outputs.load(f"cifar100-lt-{r}").trained is None for r in (0.2, 0.02)), "made before it was kept"
    rng = np.random.default_rng(0)
    counts = np.array([60, 40, 20, 10, 5])
    y_train, y = np.repeat(np.arange(5), counts), np.repeat(np.arange(5), 100)

    def made(y: np.ndarray, sharp: float) -> np.ndarray:
        logits = rng.normal(size=(len(y), 5)) + sharp * np.eye(5)[y]
        return logits - np.log(np.exp(logits).sum(1, keepdims=True))

    train = made(y_train, 6.0)
    monkeypatch.setattr(outputs, "FOLDER", tmp_path)
    outputs.save(tmp_path, "cifar100-lt-0.2-long", counts=counts, test=made(y, 2.0), y_test=y,
                 held_out=made(y_train, 2.0), y_held_out=y_train, log='{"epoch": 60}\n',
                 trained=outputs.confusion(train, y_train))  # fmt: skip
    kept = outputs.load("cifar100-lt-0.2-long").trained
    source = rp.summarize(np.exp(train), y_train, prior=counts)
    np.testing.assert_allclose(kept.soft / len(y_train), source.confusion, atol=1e-6)
    np.testing.assert_array_equal(kept.hard, np.rint(source.hard_confusion * len(y_train)))
    result = sweeps.protocol_training(2)
    (by,) = result["classifiers"].values()
    assert by["held-out"]["rows"] == by["training"]["rows"] == counts.sum()
    assert by["training"]["accuracy"] > by["held-out"]["accuracy"]
    assert set(by["training"]["methods"]) == set(sweeps.MOMENTS)
    assert "RLLS, C undivided, hard, target soft" in sweeps.MOMENTS
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    assert "not kept" in findings.training("")
    assert not findings.protocol_training()
    record.store(tmp_path / "protocol-training.json", {"trials": 2, **result})
    assert findings.training("").endswith("at ratios 0.2 (twice the epochs):")
    assert "ρ_train 0.2, twice the epochs, training outputs" in findings.protocol_training()


def test_a_method_that_is_run_again_leaves_the_other_lines_of_online_curves(
    experiment: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    import curves
    import make
    import record

    stored = {"trials": 2, "lines": {"online-FMAPLS": {"trials": 100, "made": "now"}},
              "cells": {"a": {"samples": [1], "online-FMAPLS": [0.3], "online-EBLS": [0.2]}}}  # fmt: skip
    (tmp_path / "online-imagenet.json").write_text(json.dumps(stored))
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    asked = []

    def measure(trials: int, lines: list[str]) -> dict:
        asked.append((trials, lines))
        return {"cells": {"a": {"samples": [1], "online-EBLS": [0.1]}}}

    monkeypatch.setitem(curves.ONLINE, "online-imagenet", measure)
    for module in ("expected", "claims", "findings", "figures"):
        monkeypatch.setattr(getattr(make, module), "main", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["make.py", "--rerun", "EBLS", "default", "--of", "online-imagenet"])
    make.main()
    after = record.read("online-imagenet")
    assert asked == [(2, ["online-EBLS"])]
    assert after["cells"]["a"] == {"samples": [1], "online-FMAPLS": [0.3], "online-EBLS": [0.1]}
    assert record.line_made(after, "online-FMAPLS")["trials"] == 100
    assert record.line_made(after, "online-EBLS")["trials"] == 2


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
    folder = FOLDER / "analysis"
    result = json.loads((folder / "analysis.json").read_text())
    text = (folder / "README.md").read_text(encoding="utf-8")
    surrogate, rate, fixed = (result[name] for name in ("surrogate_error", "rate_and_precision", "fixed_points"))
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
