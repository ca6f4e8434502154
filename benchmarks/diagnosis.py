"""How often `diagnose` calls label shift something else, and how often it finds what is something else.

python benchmarks/diagnosis.py [--trials 300] [--real 60]
"""

import argparse

from _record import markdown, progress, store  # isort: split

import numpy as np
from coverage import Gaussians, shifted, split

import reprior as rp
from reprior import calibrate, data, simulate
from reprior.diagnose import diagnose

N, HELD = 2000, 1000
KINDS = {  # what happens to the target beside new class shares
    "label shift": {},
    "nothing at all": {"still": True},
    "10 % of an unknown class": {"unknown": 0.1},
    "blurred inputs": {"blur": 1.25},
    "moved inputs": {"move": 1.0},
}


def gaussian_trial(world, trial, rng, *, still=False, unknown=0.0, blur=1.0, move=0.0):
    """Return held-out rows, target outputs and accuracy; the world's last class is unknown to the source."""
    k, d = len(world.source), world.means.shape[1]
    known = Gaussians.__new__(Gaussians)
    known.means, known.source = world.means[:-1], np.full(k - 1, 1 / (k - 1))
    held = known.draw(known.source, HELD, rng)
    y = rng.choice(k - 1, N, p=known.source if still else shifted(k - 1, trial, rng))
    y = np.where(rng.random(N) < unknown, k - 1, y)
    proba = known.outputs(world.means[y] + blur * rng.normal(size=(N, d)) + move / np.sqrt(d))
    return held, proba, float(np.mean(proba.argmax(axis=1) == y))


def real_trial(dataset, trial, rng, *, still=False, unknown=False, worse=0.0, noise=0.0):
    """Return calibrated held-out rows, target outputs and accuracy; `unknown` hides the last tenth of the classes."""
    k = len(dataset.counts)
    held, pool, y = split(dataset, HELD, rng)
    prior = dataset.counts / dataset.counts.sum() if still else shifted(k, trial, rng)
    seen = int(0.9 * k) if unknown else k
    if unknown:  # a classifier that never had those classes, as nearly as outputs alone can tell
        prior = np.where(np.arange(k) < seen, 0.9 * prior / prior[:seen].sum(), 0.1 / (k - seen))
    sample = simulate.resample(pool, y, rng.multinomial(N, prior) / N, n=N, rng=rng)
    target, labels = sample.proba.copy(), sample.y
    if worse:  # right rows give way to wrong ones of the same class
        wrong = [np.flatnonzero((y == c) & (pool.argmax(axis=1) != c)) for c in range(k)]
        for i in rng.choice(np.flatnonzero(target.argmax(axis=1) == labels), int(worse * N), replace=False):
            if len(wrong[labels[i]]):
                target[i] = pool[rng.choice(wrong[labels[i]])]
    if noise:
        target = np.exp(np.log(target) + noise * rng.normal(size=target.shape))
    keep = held.y < seen
    held_proba, target = held.proba[keep][:, :seen], target[:, :seen]
    held_proba, target = (p / p.sum(axis=1, keepdims=True) for p in (held_proba, target))
    scale = calibrate.temperature(held_proba, held.y[keep])
    accuracy = float(np.mean(target.argmax(axis=1) == labels))
    return (scale(held_proba), held.y[keep]), scale(target), accuracy


def run(make, kinds, trials, what):
    found = {}
    for kind, options in kinds.items():
        rng = np.random.default_rng(1)
        label, shift, accuracy = [], [], []
        for trial in range(trials):
            held, target, right = make(trial, rng, **options)
            verdict = diagnose(rp.summarize(*held), target)
            label.append(verdict.label_shift_p < 0.05)
            shift.append(verdict.shift_p < 0.05)
            accuracy.append(right)
            progress(trial + 1, trials, f"{what}: {kind}")
        found[kind] = {
            "not label shift": float(np.mean(label)),
            "shift": float(np.mean(shift)),
            "accuracy": float(np.mean(accuracy)),
            "trials": trials,
        }
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=300)
    parser.add_argument("--real", type=int, default=60)
    options = parser.parse_args()
    found = {}
    for k, d, separation in ((10, 6, 1.3), (30, 10, 1.2)):
        world = Gaussians(k + 1, d, separation)
        found[f"Gaussians, K={k}"] = run(
            lambda trial, rng, world=world, **kind: gaussian_trial(world, trial, rng, **kind),
            KINDS, options.trials, f"K={k}")  # fmt: skip
    real = {
        "label shift": {}, "nothing at all": {"still": True}, "10 % of unknown classes": {"unknown": True},
        "10 % right rows replaced by wrong": {"worse": 0.1}, "noisy logits": {"noise": 1.7},
    }  # fmt: skip
    for name in ("banking77", "clinc150"):
        dataset = data.load(name)
        found[name] = run(
            lambda trial, rng, dataset=dataset, **kind: real_trial(dataset, trial, rng, **kind),
            real, options.real, name)  # fmt: skip
    rows = [
        [where, kind, *(f"{100 * f[c]:.1f} %" for c in ("accuracy", "shift", "not label shift")), str(f["trials"])]
        for where, kinds in found.items()
        for kind, f in kinds.items()
    ]
    head = ["", "what happened", "accuracy", "says: shifted", "says: not label shift", "trials"]
    store("diagnosis", {"n": N, "heldout": HELD, "found": found}, markdown(head, rows))


if __name__ == "__main__":
    main()
