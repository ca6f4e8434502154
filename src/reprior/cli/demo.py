"""`reprior demo`: a real classifier, a shifted class mix, every batch method, one table and one picture."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from reprior.cli._shell import as_json, emit

if TYPE_CHECKING:
    from reprior import Source
    from reprior.simulate import Sample


@click.command("demo")
@click.option(
    "--data", default="banking77", show_default=True, help="Which shipped classifier to use: banking77 or clinc150."
)
@click.option("--rows", default=2000, show_default=True, help="Rows of the shifted target.")
@click.option("--ratio", default=0.05, show_default=True, help="Rarest over most frequent class in the target.")
@click.option("--seed", default=0, show_default=True, help="Seed of the shift.")
@click.option("-o", "--output", default="demo.png", show_default=True, type=click.Path(path_type=Path),
              help="The picture.")  # fmt: skip
@as_json
def command(data: str, rows: int, ratio: float, seed: int, output: Path, as_json: bool) -> None:
    """Shift the class mix of real data, estimate it back with every method, and draw the result.

    \b
    Example:  reprior demo
    """
    import numpy as np

    import reprior as rp
    from reprior import datasets as shipped

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
    priors["the default pipeline"] = pipe.estimate(target.proba).prior
    seconds["the default pipeline"] = time.perf_counter() - start
    priors["the truth itself"], seconds["the truth itself"] = target.prior, 0.0
    corrected = {name: rp.correct(target.proba, prior / source.prior) for name, prior in priors.items()}
    corrected["the default pipeline"] = pipe.correct(target.proba, priors["the default pipeline"])
    table = [
        {"method": name, "kl": rp.metrics.kl(target.prior, prior), "seconds": round(seconds[name], 4),
         "accuracy": rp.metrics.accuracy(corrected[name], target.y)}
        for name, prior in priors.items()
    ]  # fmt: skip
    picture = _draw(output, source, target, priors, table, dataset.name)
    value = {"data": dataset.name, "rows": rows, "ratio": ratio, "seed": seed, "methods": table, "picture": picture,
             "origin": dataset.origin}  # fmt: skip
    emit(value, _text(value, len(dataset.classes)), as_json)


def _text(value: dict[str, Any], n_classes: int) -> str:
    before = value["methods"][0]["accuracy"]
    head = f"{value['data']}: {value['rows']} rows of {n_classes} classes, in a class mix the classifier never saw.\n"
    lines = [head, f"{'method':<20} {'KL(true‖est.)':>14} {'accuracy':>9} {'gain':>7} {'time':>8}"]
    for row in value["methods"]:
        gain = "" if row is value["methods"][0] else f"{100 * (row['accuracy'] - before):+.1f}"
        clock = f"{1000 * row['seconds']:.0f} ms" if row["seconds"] else ""
        lines.append(f"{row['method']:<20} {row['kl']:>14.4f} {100 * row['accuracy']:>8.1f}% {gain:>7} {clock:>8}")
    if any(math.isinf(row["kl"]) for row in value["methods"]):
        lines.append("inf: the method ruled out a class that does occur.")
    drawn = value["picture"] or "none without matplotlib; in the folder of reprior's source: pip install '.[plot]'"
    return "\n".join([*lines, "", f"Picture: {drawn}", value["origin"]])


def _draw(
    path: Path, source: Source, target: Sample, priors: dict[str, Any], table: list[dict[str, Any]], name: str
) -> str | None:
    try:
        from reprior.report.picture import shift_picture
    except ImportError:
        return None
    methods = {row["method"]: row["kl"] for row in table[1:-1]}
    shift_picture(path, source=source, target=target, priors=priors, errors=methods, shown="ebls", title=name)
    return str(path)
