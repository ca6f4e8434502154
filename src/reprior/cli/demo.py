"""`reprior demo`: a real classifier, shifted class priors, one table and one picture."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

import reprior as rp
from reprior import datasets as shipped
from reprior.cli._shell import Answer, print_answer

NO_PICTURE = "none without matplotlib; in the folder of reprior's source: pip install '.[plot]'"
TYPICAL = "Netherlands"  # the picture shows its prior: among the 13 of a region, its error is near the middle
LANGUAGES = {"nl": "Dutch", "de": "German", "fr": "French", "af": "Afrikaans", "en": "English"}
PICTURES = (".png", ".svg", ".pdf")


@click.command("demo")
@click.option("--data", default="lid176", show_default=True, type=click.Choice(["lid176", "banking77", "clinc150"]),
              help="Shipped predictions: a language identifier or an intent classifier.")  # fmt: skip
@click.option("--rows", type=click.IntRange(1), help="Number of samples.  [default: 2000; not for lid176]")
@click.option("--ratio", type=float, help="Rarest / most frequent class prior.  [default: 0.05; not for lid176]")
@click.option("--seed", type=int, help="Random seed.  [default: 0; not for lid176]")
@click.option("-o", "--output", default="demo.png", show_default=True, type=click.Path(path_type=Path),
              help="Picture file.")  # fmt: skip
@print_answer
def command(data: str, rows: int | None, ratio: float | None, seed: int | None, output: Path) -> Answer:
    """Correct a real classifier under label shift, and draw the result.

    lid176 is fastText's language identifier on short texts of fifteen data sets, each with its own class prior.
    banking77 and clinc150 are intent classifiers: every method estimates a simulated shift.

    \b
    Example:  reprior demo
    """
    if output.suffix.lower() not in PICTURES:
        raise click.UsageError(f"-o must end in one of {', '.join(PICTURES)}.")
    if data == "lid176":
        chosen = [name for name, value in (("--rows", rows), ("--ratio", ratio), ("--seed", seed)) if value is not None]
        if chosen:
            raise click.UsageError(f"{chosen[0]} works with banking77 and clinc150 only.")
        return _channels(output)
    return _methods(data, 2000 if rows is None else rows, 0.05 if ratio is None else ratio, seed or 0, output)


def _channels(output: Path) -> Answer:
    """Correct the language identifier on each of its data sets."""
    data = shipped.load("lid176")
    start = time.perf_counter()
    pipe = rp.pipeline(data.heldout_proba, data.heldout_y, classes=data.classes)
    table: dict[str, dict[str, float]] = {}
    shares: dict[str, dict[str, float]] = {}
    for name, rows in data.channels.items():
        proba, y = data.pool_proba[rows], data.pool_y[rows]
        true = np.bincount(y, minlength=len(data.classes)) / len(y)
        est = pipe.estimate(proba)
        table[name] = {
            "rows": len(y),
            "before": rp.metrics.accuracy(proba, y),
            "calibrated": rp.metrics.accuracy(pipe.calibrate(proba), y),
            "after": rp.metrics.accuracy(est.correct(proba), y),
            "true prior": rp.metrics.accuracy(pipe.correct(proba, true), y),
            "refused": est.acts is not None and est.acts.share < 0.5,
        }
        if name == TYPICAL:
            counted = np.bincount(proba.argmax(axis=1), minlength=len(true)) / len(y)
            shares = {label: _named(prior, data.classes) for label, prior in
                      (("true", true), ("predicted classes", counted), ("estimated", est.prior))}  # fmt: skip
    seconds = round(time.perf_counter() - start, 2)
    gain = max(row["after"] - row["before"] for row in table.values())
    title = f"Correction gains up to {100 * gain:.0f} points of accuracy"
    picture = _draw("channels_picture", output, channels=table, shares=shares, of=TYPICAL, title=title)
    value = {"data": data.name, "heldout_rows": len(data.heldout_y), "seconds": seconds, "channels": table,
             "picture": picture, "origin": data.origin}  # fmt: skip
    return Answer(value, _channels_text(value, len(data.classes)))


def _named(prior: Any, classes: tuple[str, ...]) -> dict[str, float]:
    """Return the shares of the languages that the picture names, and of all others together."""
    shown = {name: float(prior[classes.index(code)]) for code, name in LANGUAGES.items()}
    return {**shown, "171 others": max(0.0, 1 - sum(shown.values()))}


def _channels_text(value: dict[str, Any], n_classes: int) -> str:
    total = sum(row["rows"] for row in value["channels"].values())
    lines = [
        f"lid176: fastText's identifier of {n_classes} languages on {total} short texts in {len(value['channels'])}"
        f" data sets.\nCorrected with {value['heldout_rows']} held-out texts and no other labels, in"
        f" {value['seconds']:.1f} s. Accuracy:\n",
        f"{'data set':<12} {'texts':>8} {'raw':>9} {'calibrated':>11} {'corrected':>10} {'gain':>6} {'true prior':>11}",
    ]
    for name, row in value["channels"].items():
        keys = ("before", "calibrated", "after", "true prior")
        before, calibrated, after, best = (100 * row[key] for key in keys)
        star = " *" if row["refused"] else ""
        lines.append(f"{name:<12} {row['rows']:>8} {before:>7.1f} % {calibrated:>9.1f} % {after:>8.1f} %"
                     f" {after - before:>+6.1f} {best:>9.1f} %{star}")  # fmt: skip
    lines.append("All alike and History have hardly any shift: their gain comes from calibration.")
    if any(row["refused"] for row in value["channels"].values()):
        lines.append("* Not consistent with label shift. Corrected here nevertheless.")
    return "\n".join(lines + _ending(value))


def _draw(name: str, path: Path, **content: Any) -> str | None:
    """Draw the picture `name` of `report.picture`; return its path, None without matplotlib."""
    try:
        from reprior.report import picture
    except ImportError:
        return None
    getattr(picture, name)(path, **content)
    return str(path)


def _ending(value: dict[str, Any]) -> list[str]:
    """Return the last lines of a demo: its picture, and the origin of its data."""
    return ["", f"Picture: {value['picture'] or NO_PICTURE}", value["origin"]]


def _methods(data: str, rows: int, ratio: float, seed: int, output: Path) -> Answer:
    """Estimate a simulated shift of an intent classifier by every method."""
    dataset = shipped.load(data)
    source = rp.summarize(dataset.heldout_proba, dataset.heldout_y, classes=dataset.classes)
    rng = np.random.default_rng(seed)
    shift = rp.simulate.shuffled_long_tail(len(dataset.classes), ratio, rng=rng)
    target = rp.simulate.resample(dataset.pool_proba, dataset.pool_y, shift, n=rows, rng=rng)
    priors = {"none (source prior)": source.prior}
    seconds = {"none (source prior)": 0.0}
    for name, method in rp.METHODS.items():
        start = time.perf_counter()
        priors[name] = method(source, target.proba).prior
        seconds[name] = time.perf_counter() - start
    start = time.perf_counter()
    pipe = rp.pipeline(dataset.heldout_proba, dataset.heldout_y, counts=dataset.counts)
    priors["default pipeline"] = pipe.estimate(target.proba).prior
    seconds["default pipeline"] = time.perf_counter() - start
    priors["true prior"], seconds["true prior"] = target.prior, 0.0
    corrected = {name: rp.correct(target.proba, prior / source.prior) for name, prior in priors.items()}
    corrected["default pipeline"] = pipe.correct(target.proba, priors["default pipeline"])
    table = [
        {"method": name, "kl": rp.metrics.kl(target.prior, prior), "seconds": round(seconds[name], 4),
         "accuracy": rp.metrics.accuracy(corrected[name], target.y)}
        for name, prior in priors.items()
    ]  # fmt: skip
    errors = {row["method"]: row["kl"] for row in table[1:-1]}
    picture = _draw("shift_picture", output, source=source, target=target, priors=priors, errors=errors, shown="ebls",
                    title=dataset.name)  # fmt: skip
    value = {"data": dataset.name, "rows": rows, "ratio": ratio, "seed": seed, "methods": table, "picture": picture,
             "origin": dataset.origin}  # fmt: skip
    return Answer(value, _text(value, len(dataset.classes)))


def _text(value: dict[str, Any], n_classes: int) -> str:
    before = value["methods"][0]["accuracy"]
    head = f"{value['data']}: {value['rows']} samples of {n_classes} classes, with a new class prior.\n"
    lines = [head, f"{'method':<20} {'KL(true‖est.)':>14} {'accuracy':>9} {'gain':>7} {'time':>8}"]
    for row in value["methods"]:
        gain = "" if row is value["methods"][0] else f"{100 * (row['accuracy'] - before):+.1f}"
        clock = f"{1000 * row['seconds']:.0f} ms" if row["seconds"] else ""
        lines.append(f"{row['method']:<20} {row['kl']:>14.4f} {100 * row['accuracy']:>7.1f} % {gain:>7} {clock:>8}")
    if any(math.isinf(row["kl"]) for row in value["methods"]):
        lines.append("inf: the method gave a class that occurs a prior of 0.")
    return "\n".join(lines + _ending(value))
