"""How often `diagnose` calls label shift something else, and how often it finds what is something else.

python benchmarks/diagnosis.py gaussians [--trials 300]         # exact posteriors
python benchmarks/diagnosis.py outputs [--trials 100]           # the shipped text classifiers and the CIFAR networks
python benchmarks/diagnosis.py texts --data DATA [--trials 100] # text classifiers trained here without some classes

The test was designed on the Gaussians of K = 10 and 30 and on Banking77, shipped or not; all others were kept for
this report.
`texts` needs scikit-learn and the folder that experiments/text_intents/make.py takes. Label shift itself gets three
times the trials.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import NamedTuple

from _record import markdown, progress, store  # isort: split

import numpy as np
from _outputs import ROOT, networks, shipped
from coverage import Gaussians, shifted

import reprior as rp
from reprior import calibrate, simulate
from reprior.diagnose import diagnose

N, HELD, FOREIGN = 2000, 1000, 0.1
DESIGNED_ON = ("Gaussians, K=10", "Gaussians, K=30", "Banking77", "banking77")


def gaussians(_):
    """Yield (name, kinds, draw); each draw gives held-out rows and labels, target outputs and accuracy."""
    kinds = {"label shift": {}, "nothing at all": {"still": True}, "10 % of an unknown class": {"unknown": FOREIGN},
             "10 % of an unknown class, 20,000 held-out rows": {"unknown": FOREIGN, "held": 20_000},
             "blurred inputs": {"blur": 1.22}, "moved inputs": {"move": 1.0}}  # fmt: skip
    for k, d, separation, seed in ((10, 6, 1.3, 0), (30, 10, 1.2, 0), (20, 8, 1.2, 1), (50, 12, 1.1, 1)):
        everyone = Gaussians(k + 1, d, separation, seed)  # the last class is unknown to the source
        known = Gaussians(k, d, separation, seed)
        known.means = everyone.means[:-1]

        def draw(trial, rng, k=k, d=d, means=everyone.means, known=known, *, held=HELD, still=False, unknown=0.0,
                 blur=1.0, move=0.0):  # fmt: skip
            heldout = known.draw(known.source, held, rng)
            y = rng.choice(k, N, p=known.source if still else shifted(k, trial, rng))
            y = np.where(rng.random(N) < unknown, k, y)
            proba = known.outputs(means[y] + blur * rng.normal(size=(N, d)) + move / np.sqrt(d))
            return heldout, proba, float(np.mean(proba.argmax(axis=1) == y))

        yield f"Gaussians, K={k}", kinds, draw


class World(NamedTuple):
    """A real classifier: training counts (K,), outputs (n, K) and labels (n,) of rows it has not seen, the outputs on
    the same rows with the inputs spoiled, and on rows of no class it knows."""

    counts: np.ndarray
    proba: np.ndarray
    y: np.ndarray
    spoiled: np.ndarray | None = None
    foreign: dict[str, np.ndarray] | None = None

    def draw(self, trial, rng, *, held=HELD, still=False, foreign=None, spoiled=False, worse=False):
        k, source = len(self.counts), self.counts / self.counts.sum()
        have = np.bincount(self.y, minlength=k)
        sizes = np.minimum(rng.multinomial(held, source), 6 * have // 10)  # the target needs rows of every class too
        order = rng.permutation(len(self.y))
        rank = np.empty(len(order), int)
        for c in range(k):
            mine = order[self.y[order] == c]
            rank[mine] = np.arange(len(mine))
        is_held = rank < sizes[self.y]
        pool, y = self.proba[~is_held], self.y[~is_held]
        n = N - round(FOREIGN * N) if foreign else N
        prior = source if still else shifted(k, trial, rng)
        sample = simulate.resample(pool, y, rng.multinomial(n, prior) / n, n=n, rng=rng)
        proba = (self.spoiled[~is_held] if spoiled else pool)[sample.rows]
        if worse:  # right rows give way to wrong ones of the same class
            wrong = [np.flatnonzero((y == c) & (pool.argmax(axis=1) != c)) for c in range(k)]
            for i in rng.choice(np.flatnonzero(proba.argmax(axis=1) == sample.y), round(0.1 * N), replace=False):
                if len(wrong[sample.y[i]]):
                    proba[i] = pool[rng.choice(wrong[sample.y[i]])]
        right = float(np.sum(proba.argmax(axis=1) == sample.y)) / N
        if foreign:
            rows = self.foreign[foreign]
            proba = np.concatenate([proba, rows[rng.choice(len(rows), N - n, replace=False)]])
        scale = calibrate.temperature(self.proba[is_held], self.y[is_held])
        return (scale(self.proba[is_held]), self.y[is_held]), scale(proba), right


def outputs(_):
    kinds = {"label shift": {}, "nothing at all": {"still": True}, "10 % right rows replaced by wrong": {"worse": True}}
    for o in (*shipped(), *networks()):
        world = World(o.counts, np.concatenate([o.heldout, o.pool]), np.concatenate([o.heldout_y, o.pool_y]))
        yield o.name, kinds, world.draw


def texts(data):
    """Yield intent classifiers that were trained without a tenth of the classes, balanced and long-tailed."""
    sys.path.insert(0, str(ROOT / "experiments" / "text_intents"))
    import make

    splits = json.loads((data / "clinc150" / "data_full.json").read_text(encoding="utf-8"))
    out_of_scope = [text for part in ("oos_train", "oos_val", "oos_test") for text, _ in splits[part]]
    corpora = (
        ("Banking77", make.banking77(data), None, ((60, 1.0), (90, 0.1))),
        ("CLINC150", make.clinc150(data), out_of_scope, ((40, 1.0), (70, 0.1))),
    )
    for name, corpus, foreign, sizes in corpora:
        for size, ratio in sizes:
            world = trained(make, corpus, foreign, size, ratio)
            full = {"held": 25 * len(world.counts)}
            kinds = {"label shift": {}, "nothing at all": {"still": True}, "typos": {"spoiled": True},
                     "label shift, 25 held-out rows a class": full}  # fmt: skip
            for unknown in world.foreign:
                kinds[f"10 % {unknown}"] = {"foreign": unknown}
                kinds[f"10 % {unknown}, 25 held-out rows a class"] = {"foreign": unknown, **full}
            yield name if ratio == 1 else f"{name}, 1:10", kinds, world.draw


def trained(make, corpus, out_of_scope, size, ratio, seed=5):
    """Train on at most `size` rows a class, of nine classes in ten, and keep all outputs."""
    rng = np.random.default_rng(seed)
    k = len(corpus.classes)
    known = np.sort(rng.choice(k, k - k // 10, replace=False))
    column = np.full(k, -1)
    column[known] = np.arange(len(known))
    y = column[corpus.y]
    sizes = rng.permutation(np.maximum(5, simulate.long_tail_counts(len(known), ratio, n_max=size)))
    train = np.concatenate([rng.permutation(np.flatnonzero(y == c))[: sizes[c]] for c in range(len(known))])
    rest = np.setdiff1d(np.flatnonzero(y >= 0), train)
    proba = make.classifier(300.0).fit(corpus.text[train], y[train]).predict_proba
    foreign = {"of unknown classes": proba(corpus.text[y < 0])}
    if out_of_scope:
        foreign["out of scope"] = proba(out_of_scope)
    spoiled = proba([" ".join(typed(word, rng) for word in text.split()) for text in corpus.text[rest]])
    return World(np.bincount(y[train]).astype(float), proba(corpus.text[rest]), y[rest], spoiled, foreign)


def typed(word, rng, rate=0.3):
    """Return the word as a hasty hand types it: at times two letters swapped, one missing, one wrong, or no word."""
    if len(word) < 2 or rng.random() > rate:
        return word
    i = rng.integers(len(word) - 1)
    slips = (word[:i] + word[i + 1] + word[i] + word[i + 2 :], word[:i] + word[i + 1 :],
             word[:i] + chr(97 + rng.integers(26)) + word[i + 1 :], "")  # fmt: skip
    return slips[rng.integers(4)]


def run(name, kinds, draw, trials):
    found = {}
    for kind, options in kinds.items():
        rng = np.random.default_rng(2)  # not the draws that the test was designed on
        times = 3 * trials if kind == "label shift" else trials
        rejected, shift, accuracy = [], [], []
        for trial in range(times):
            held, target, right = draw(trial, rng, **options)
            verdict = diagnose(rp.summarize(*held), target)
            rejected.append(verdict.label_shift_p < 0.05)
            shift.append(verdict.shift_p < 0.05)
            accuracy.append(right)
            progress(trial + 1, times, f"{name}: {kind}")
        found[kind] = {"not label shift": float(np.mean(rejected)), "shift": float(np.mean(shift)),
                       "accuracy": float(np.mean(accuracy)), "trials": times}  # fmt: skip
    return found


def main():
    parts = {"gaussians": gaussians, "outputs": outputs, "texts": texts}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=parts)
    parser.add_argument("--trials", type=int, default=100)
    parser.add_argument("--data", type=Path)
    asked = parser.parse_args()
    sys.argv = ["FOLDER" if arg == str(asked.data) else arg for arg in sys.argv]  # results name no machine's paths
    found = {}
    for name, kinds, draw in parts[asked.part](asked.data):
        found[name] = run(name, kinds, draw, asked.trials)
        rows = [
            [where + (" (designed on)" if where.startswith(DESIGNED_ON) else ""), kind,
             *(f"{100 * f[c]:.1f} %" for c in ("accuracy", "shift", "not label shift")), str(f["trials"])]
            for where, done in found.items() for kind, f in done.items()
        ]  # fmt: skip
        head = ["", "what happened", "accuracy", "says: shifted", "says: not label shift", "trials"]
        store(f"diagnosis_{asked.part}", {"n": N, "heldout": HELD, "found": found}, markdown(head, rows))


if __name__ == "__main__":
    main()
