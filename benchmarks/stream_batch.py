"""`pipe.stream()` against `pipe.estimate` on the same rows, and whether a quiet stream ever jumps.

    python benchmarks/stream_batch.py [--seeds 5] [--n 3000] [--quiet 200]

Mean KL over five shifts on both texts and the four CIFAR networks. Constants were chosen on other draws (seeds 0 to 2
of draw 5) of all but the network trained 1:5, and on draws 99 and 199 of quiet streams. A quiet stream has one class
mix, shifted or not, for 10,000 rows; it jumps where a share leaves its own 99 % interval of `STEP` rows before.
"""

import argparse

from _record import markdown, progress, store  # isort: split

import numpy as np
from _outputs import SHIFTS, networks, shipped, targets

import reprior as rp

FORMS = {"batch": None, "stream": {}, "stream, drift=False": {"drift": False}}
STEP, SETTLED, ROWS = 100, 500, 10_000


def jumps(pipe, rows):
    """Return how often any share leaves its own 99 % interval of STEP rows before, and the most shares move."""
    stream, found, most, before = pipe.stream(), 0, 0.0, None
    for at in range(0, len(rows), STEP):
        stream.learn_many(rows[at : at + STEP])
        prior = stream.prior
        if before is not None and at >= SETTLED:
            lower, upper, old = before
            found += bool(((prior < lower) | (prior > upper)).any())
            most = max(most, 0.5 * float(np.abs(prior - old).sum()))
        before = (*stream.interval(0.99), prior)
    return found, most


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--n", type=int, default=3000)
    parser.add_argument("--quiet", type=int, default=200)
    args = parser.parse_args()
    sets = [*shipped(), *networks(("0.2", "0.1", "0.05", "0.02"))]
    kl, quiet = {}, {}
    for done, o in enumerate(sets):
        progress(done, len(sets), o.name)
        pipe = rp.pipeline(o.heldout, o.heldout_y, counts=o.counts)
        for shift, t in targets(o, seeds=args.seeds, n=args.n):
            for form, options in FORMS.items():
                if options is None:
                    prior = pipe.estimate(t.proba, check=False).prior
                else:
                    stream = pipe.stream(**options)
                    stream.learn_many(t.proba)
                    prior = stream.prior
                kl.setdefault((o.name, form), {}).setdefault(shift, []).append(
                    rp.metrics.kl(t.prior, prior, floor=1e-8)
                )
        each = -(-args.quiet // (len(sets) * len(SHIFTS)))
        for shift, t in targets(o, seeds=each, n=ROWS, draw=299) if args.quiet else ():
            quiet.setdefault(shift, []).append(jumps(pipe, t.proba))
    rows = []
    for (name, form), by in kl.items():
        mean = np.mean([x for values in by.values() for x in values])
        first = np.mean([x for values in kl[name, "batch"].values() for x in values])
        rows.append([name, form, *(f"{np.mean(x):.4f}" for x in by.values()), f"{mean:.4f}", f"{mean / first:.2f}"])
    text = markdown(["classifier", "mean KL", *SHIFTS, "all", "over batch"], rows)
    still = [[shift, str(len(x)), str(sum(n for n, _ in x)), f"{max(most for _, most in x):.3f}"]
             for shift, x in quiet.items()]  # fmt: skip
    head = [f"quiet streams of {ROWS} rows", "streams", "jumps", f"most that shares move in {STEP} rows"]
    text += "\n\n" + markdown(head, still) if quiet else ""
    figures = {f"{name}, {form}": by for (name, form), by in kl.items()}
    store("stream_batch", {"seeds": args.seeds, "n": args.n, "kl": figures, "quiet": quiet}, text)


if __name__ == "__main__":
    main()
