"""Accuracy of fastText's language identifier before and after correction, channel by channel, from shipped outputs.

python experiments/language_id/run.py                     # one minute; compares with expected.json
python experiments/language_id/run.py --store             # writes expected.json and the tables of README.md
python experiments/language_id/run.py --full full.npz …   # adds the column of all 176 outputs (see make.py)
"""

import argparse
import json
from pathlib import Path

import numpy as np

import reprior as rp
from reprior.datasets import Dataset, load

HERE = Path(__file__).parent
SEED, DRAWS, FEW, KEPT = 0, 5, (10, 30, 100), (1, 3, 5, 20)
OF_ALL = ("All alike", "History")  # channels of all languages: as the held-out strings, or nearly
ALLOWED = 1.0  # points of accuracy by which another machine or a small change of a method may differ


def percent(proba: np.ndarray, y: np.ndarray) -> float:
    return round(100 * rp.metrics.accuracy(proba, y), 1)


def followed(pipe: rp.Pipeline, proba: np.ndarray, y: np.ndarray) -> float:
    """Return the accuracy of a stream that predicts each string before it learns from it."""
    stream, right = pipe.stream(), 0
    for p, label in zip(proba, y, strict=True):
        right += int(stream.correct_one(p).argmax() == label)
        stream.learn_one(p)
    return round(100 * right / len(y), 1)


def channel(data: Dataset, pipe: rp.Pipeline, name: str) -> dict[str, float]:
    """Return what becomes of one channel's accuracy, in percent, by each way to correct it."""
    rows = data.channels[name]
    proba, y = data.pool_proba[rows], data.pool_y[rows]
    true = np.bincount(y, minlength=len(data.classes)) / len(y)
    est = pipe.estimate(proba)
    mixed = np.random.default_rng(SEED).permutation(len(y))
    blind = rp.ebls(np.ones(len(data.classes)), proba)
    return {
        "strings": len(y),
        "as it is": percent(proba, y),
        "calibrated only": percent(pipe.calibrate(proba), y),
        "corrected": percent(rp.correct(pipe.calibrate(proba), est.weights), y),  # `correct` would warn
        "true mix": percent(pipe.correct(proba, true), y),
        "stream, by date": followed(pipe, proba, y),
        "stream, mixed": followed(pipe, proba[mixed], y[mixed]),
        "without held-out": percent(blind.correct(proba), y),
        "KL, held-out mix": round(rp.metrics.kl(true, pipe.source.prior), 3),
        "KL, estimate": round(rp.metrics.kl(true, est.prior), 3),
        "share applied": round(est.acts.share, 2),
    }


def few_strings(data: Dataset, pipe: rp.Pipeline) -> dict[str, dict[str, float]]:
    """Return mean accuracy over channels when each mix is estimated from few strings: alone, and by groups together."""
    names = [name for name in data.channels if name not in OF_ALL]
    table = {}
    for n in FEW:
        alone, apart, together = [], [], []
        for draw in range(DRAWS):
            rng = np.random.default_rng([SEED, n, draw])
            observed = {name: rng.permutation(data.channels[name])[:n] for name in names}
            rows = np.concatenate(list(observed.values()))
            keys = np.repeat(names, n)
            groups, single = (pipe.groups(keys, data.pool_proba[rows], share=share, check=False)
                              for share in (True, False))  # fmt: skip
            for name in names:
                other = np.setdiff1d(data.channels[name], observed[name])  # strings that neither estimate saw
                proba, y = data.pool_proba[other], data.pool_y[other]
                one = pipe.estimate(data.pool_proba[observed[name]], on_reject="ignore", check=False)
                alone.append(percent(one.correct(proba), y))
                apart.append(percent(single[name].correct(proba), y))
                together.append(percent(groups[name].correct(proba), y))
        table[str(n)] = {
            key: round(float(np.mean(values)), 1)
            for key, values in (("alone", alone), ("apart", apart), ("together", together))
        }
    return table


def shortened(data: Dataset, full: Path | None) -> dict[str, dict[str, float]]:
    """Return mean accuracy over channels when only the k largest outputs are kept, of held-out strings and targets."""
    names = [name for name in data.channels if name not in OF_ALL]
    table = {}
    for k in KEPT:
        index, values = (part[:, :k] for part in data.pool_top_k)
        order = np.argsort(-data.heldout_proba, axis=1, kind="stable")[:, :k]
        heldout = dense(order, np.take_along_axis(data.heldout_proba, order, 1), len(data.classes))
        pipe = rp.pipeline(heldout, data.heldout_y, classes=data.classes)
        after = []
        for name in names:
            rows = data.channels[name]
            est = pipe.estimate((index[rows], values[rows]), on_reject="ignore", check=False)
            after.append(percent(est.correct(dense(index[rows], values[rows], len(data.classes))), data.pool_y[rows]))
        table[str(k)] = {"corrected": round(float(np.mean(after)), 1)}
    if full is not None:
        stored = np.load(full)
        proba, y, rows = stored["proba"], stored["y"], stored["held-out"]
        pipe = rp.pipeline(proba[rows], y[rows], classes=data.classes)
        after = [percent(pipe.estimate(proba[stored[name]], on_reject="ignore", check=False).correct(
            proba[stored[name]]), y[stored[name]]) for name in names]  # fmt: skip
        table["176"] = {"corrected": round(float(np.mean(after)), 1)}
    return table


def dense(index: np.ndarray, values: np.ndarray, n_classes: int) -> np.ndarray:
    """Return rows (n, K) from their k largest outputs: what is not listed is shared alike."""
    rest = np.maximum(1 - values.sum(axis=1, keepdims=True), 1e-12) / (n_classes - index.shape[1])
    proba = np.tile(rest, n_classes)
    np.put_along_axis(proba, index, values, axis=1)
    return proba / proba.sum(axis=1, keepdims=True)


def measure(data: Dataset, full: Path | None = None) -> dict[str, dict[str, dict[str, float]]]:
    pipe = rp.pipeline(data.heldout_proba, data.heldout_y, classes=data.classes)
    return {
        "channels": {name: channel(data, pipe, name) for name in data.channels},
        "few strings": few_strings(data, pipe),
        "largest outputs": shortened(data, full),
    }


def markdown(figures: dict) -> str:
    channels = figures["channels"]
    head = ["channel", *next(iter(channels.values()))]
    lines = [head, ["---"] * len(head)]
    lines += [[name, *(f"{value:g}" for value in row.values())] for name, row in channels.items()]
    mean = [np.mean([row[key] for name, row in channels.items() if name not in OF_ALL]) for key in head[2:9]]
    lines.append(["mean of the 13 regional ones", "", *(f"{x:.1f}" for x in mean), "", "", ""])
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    few = "\n".join(f"| {n} | {' | '.join(map(str, row.values()))} |" for n, row in figures["few strings"].items())
    top = "\n".join(f"| {k} | {row['corrected']} |" for k, row in figures["largest outputs"].items())
    return (
        f"{text}\n\n| strings seen of each channel | `estimate`, each alone | `groups(share=False)` | `groups` |\n"
        f"| --- | --- | --- | --- |\n{few}\n\n"
        f"| largest outputs kept | corrected |\n| --- | --- |\n{top}"
    )


def differences(result: dict, expected: dict) -> list[str]:
    """Return a sentence for each figure that differs by more than `ALLOWED`."""
    return [
        f"{part}, {name}, {key}: {row[key]} was stored, {result[part][name][key]} is found"
        for part, table in expected.items() for name, row in table.items() for key in row
        if name in result[part] and abs(result[part][name][key] - row[key]) > ALLOWED
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--store", action="store_true", help="write expected.json and the tables of README.md")
    parser.add_argument("--full", type=Path, help="every probability, as make.py --full wrote them")
    options = parser.parse_args()
    result = measure(load("lid176"), options.full)
    print(markdown(result))
    if not options.store:
        wrong = differences(result, json.loads((HERE / "expected.json").read_text(encoding="utf-8")))
        raise SystemExit("\n".join(wrong) or None)
    (HERE / "expected.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    readme = HERE / "README.md"
    before, _, rest = readme.read_text(encoding="utf-8").partition("<!-- tables -->")
    after = rest.partition("<!-- end -->")[2]
    readme.write_text(f"{before}<!-- tables -->\n\n{markdown(result)}\n\n<!-- end -->{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
