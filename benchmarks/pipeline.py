"""The default pipeline against MAPLS and others: enough, few and no held-out labels; balanced and long-tailed sources.

    python benchmarks/pipeline.py [--texts FOLDER] [--seeds 4] [--n 2000] [--select]

FOLDER holds the Banking77 texts (banking77/train.csv, test.csv), from which two more classifiers are trained, balanced
and 1:50. The ResNet-32 outputs of experiments/hu2025 take part if they are there. "Few" is 3 held-out rows a class on
average. Makes the decision table of docs/which-method.md.
"""

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from _record import markdown, progress, store  # isort: split

import numpy as np
from _outputs import ROOT, SHIFTS, Outputs, digits, networks, shipped, targets, texts

import reprior as rp
from reprior.pipelines.fit import pipeline
from reprior.pipelines.select import select

FLOOR = 1e-8  # of a share in KL, as maximum likelihood puts rare classes at exactly zero
BEGIN, END = "<!-- made by benchmarks/pipeline.py -->", "<!-- to here -->"
Estimator = Callable[[np.ndarray], np.ndarray]


def held_out(o: Outputs, labels: str) -> tuple[np.ndarray, np.ndarray]:
    """Return all held-out rows and labels, or 3 a class on average."""
    rows = np.arange(len(o.heldout))
    rows = rows if labels == "enough" else np.random.default_rng(4).permutation(rows)[: 3 * len(o.counts)]
    return o.heldout[rows], o.heldout_y[rows]


def taken(o: Outputs, labels: str) -> str:
    """Return in a few words what the default pipeline is."""
    pipe = pipeline(counts=o.counts) if labels == "none" else pipeline(*held_out(o, labels), counts=o.counts)
    kind = pipe.calibrator.kind if pipe.calibrator else "raw"
    prior = {"training counts": "training prior", "mean held-out output": "mean output"}.get(
        pipe.source.made, "pooled prior"
    )
    return f"{kind}, {prior}, {pipe.method}"


def contenders(o: Outputs, labels: str, selecting: bool) -> dict[str, Estimator]:
    """Return what can be done with all, few or no held-out labels."""
    made: dict[str, Estimator] = {
        f"{m}, raw": lambda p, m=m: rp.estimate(o.counts, p, m).prior for m in ("mlls", "mapls", "fmapls", "ebls")
    }
    if labels == "none":
        return made | {"default": lambda p: pipeline(counts=o.counts).estimate(p, check=False).prior}
    held, y = held_out(o, labels)
    pipes = {
        "default": pipeline(held, y, counts=o.counts),
        "default, no counts": pipeline(held, y),
    }
    usual = pipes["default"]
    pipes["default, plain temperature"] = pipeline(held, y, counts=o.counts, calibration="temperature")
    for factor in (0, 0.3, 2, 4) if "misfit" in usual.options else ():
        pipes[f"default, misfit × {factor:g}"] = replace(usual, options={"misfit": factor * usual.options["misfit"]})
    if selecting and labels == "enough":
        pipes["selected"] = select(held, y, counts=o.counts, n=1000, trials=4)
    for m in ("mapls", "ebls"):
        pipes[f"{m}, TS, mean"] = pipeline(held, y, calibration="temperature", prior="mean", method=m)
        pipes[f"{m}, BCTS, mean"] = pipeline(held, y, calibration="bias-corrected", prior="mean", method=m)
    pipes["mapls, as default"] = pipeline(held, y, counts=o.counts, method="mapls")
    return made | {name: lambda p, q=q: q.estimate(p, check=False).prior for name, q in pipes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--texts", type=Path, help="folder with banking77/")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--select", action="store_true", help="with enough labels, let `select` compete: minutes more")
    parser.add_argument("--n", type=int, default=2000)
    options = parser.parse_args()
    sys.argv = ["FOLDER" if arg == str(options.texts) else arg for arg in sys.argv]  # results name no machine's paths
    sets = [digits(), *shipped(), *networks()]
    if options.texts:
        sets += [texts(options.texts, 1.0), texts(options.texts, 0.02)]
    results: dict[str, dict[str, dict[str, list[float]]]] = {}
    for done, o in enumerate(sets, 1):
        drawn = list(targets(o, seeds=options.seeds, n=options.n))
        results[o.name] = {}
        for labels in ("enough", "few", "none"):
            results[o.name][labels] = {
                name: [round(rp.metrics.kl(t.prior, f(t.proba), floor=FLOOR), 6) for _, t in drawn]
                for name, f in contenders(o, labels, options.select).items()
            }
        progress(done, len(sets), o.name)
    parts, never_worse = [], True
    for labels in ("enough", "few", "none"):
        names = sorted({m for r in results.values() for m in r[labels]}, key=lambda m: ("default" not in m, m))
        rows = []
        for name in names:
            row = [f"**{name}**" if name == "default" else name]
            for r in results.values():
                row.append(f"{np.mean(r[labels][name]):.4f}" if name in r[labels] else "")
            rows.append(row)
        gap = []
        for r in results.values():
            d = np.array(r[labels]["default"]) - np.array(r[labels]["mapls, raw"])
            gap.append(f"{d.mean():+.4f} ± {d.std(ddof=1) / np.sqrt(d.size):.4f}")
            never_worse &= bool(d.mean() <= 0)
        rows.append(["default − mapls, raw", *gap])
        size = {"enough": "all of them", "few": "3 a class", "none": "training counts alone"}[labels]
        parts.append(f"## {labels.capitalize()} held-out labels: {size}\n\n" + markdown(["mean KL", *results], rows))
    about = "; ".join(
        f"{o.name}: K={len(o.counts)}, {o.counts.min():.0f} to {o.counts.max():.0f} training rows a class, "
        f"{len(o.heldout)} held-out rows"
        for o in sets
    )
    head = (
        "# The default pipeline on real outputs\n\n"
        f"Mean KL(true ‖ estimate) over {options.seeds} seeds of five shifts ({', '.join(SHIFTS)}), {options.n} target "
        f"rows. {about}. Raw: outputs as they are, training counts as source prior. "
        f"The default is never worse than MAPLS in mean: **{'yes' if never_worse else 'no'}**."
    )
    store("pipeline", {"n": options.n, "floor": FLOOR, "never_worse_than_mapls": never_worse, "kl": results},
          "\n\n".join([head, *parts]))  # fmt: skip
    page = ROOT / "docs" / "which-method.md"
    before, rest = page.read_text(encoding="utf-8").split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{decisions(sets, results)}\n{END}{rest.split(END)[1]}", encoding="utf-8")


def decisions(sets: list[Outputs], results: dict[str, dict[str, dict[str, list[float]]]]) -> str:
    """Return the decision table of the docs: what the default takes and gets, MAPLS, and the best of the rest."""
    rows = []
    for labels in ("enough", "few", "none"):
        for o in sets:
            kl = {name: float(np.mean(values)) for name, values in results[o.name][labels].items()}
            best = min((n for n in kl if "default" not in n and n != "selected"), key=kl.__getitem__)
            rows.append([labels, o.name, taken(o, labels), f"**{kl['default']:.4f}**", f"{kl['mapls, raw']:.4f}",
                         f"{kl[best]:.4f} ({best})"])  # fmt: skip
    return markdown(
        ["labels", "source", "the default takes", "its KL", "MAPLS", "best of the others, in hindsight"], rows
    )


if __name__ == "__main__":
    main()
