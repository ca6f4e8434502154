"""What a new key of a table of streams gains from the other keys: KL after its first rows, with and without sharing.

    python benchmarks/keyed_streams.py [--seeds 10]

Keys are drawn around one Dirichlet(1) draw with concentration s·K: much apart (0.3), some (1), alike (3). Or: each half
of them around a draw of its own, all at the class mix of training, or all at one mix but the new keys, which are at
that of training. 40 keys have `rows` rows each, in any order; then 20 new ones come. Seeds 0 to 2 were looked
at while this was made, so seeds begin at 10. At the end, what learning costs a sample.
"""

import argparse
import time

from _record import markdown, progress, store  # isort: split

import numpy as np
from _outputs import shipped

import reprior as rp

OLD, NEW, FIRST = 40, 20, 10
AFTER = (1, 10, 30, 100)
STRUCTURES = ("apart", "some", "alike", "two kinds", "no shift", "new ones unlike")


def mixes(structure, k, source, rng):
    """Return the class mixes (OLD + NEW, K) of the keys, the new ones last."""
    n, base = OLD + NEW, rng.dirichlet(np.ones(k))
    concentration = {"apart": 0.3, "some": 1.0, "alike": 3.0, "two kinds": 3.0}.get(structure)
    if structure == "no shift":
        return np.tile(source, (n, 1))
    if concentration is None:
        return np.concatenate([np.tile(base, (OLD, 1)), np.tile(source, (NEW, 1))])
    bases = np.tile(base, (n, 1))
    if structure == "two kinds":
        bases[::2] = rng.dirichlet(np.ones(k))
    return np.stack([rng.dirichlet(np.maximum(concentration * k * b, 1e-3)) for b in bases])


def trial(o, pipe, structure, rows, seed):
    k, rng = len(o.counts), np.random.default_rng([seed, STRUCTURES.index(structure), rows])
    truth = mixes(structure, k, o.counts / o.counts.sum(), rng)
    by_class = [np.flatnonzero(o.pool_y == j) for j in range(k)]

    def draw(prior, n):
        return o.pool[[rng.choice(by_class[j]) for j in rng.choice(k, n, p=prior)]]

    keys = np.repeat(np.arange(OLD), rows)
    order, proba = rng.permutation(len(keys)), np.concatenate([draw(truth[g], rows) for g in range(OLD)])
    new = {g: draw(truth[g], max(AFTER)) for g in range(OLD, OLD + NEW)}
    out = {}
    for share in (False, True):
        table = pipe.table(share=share)
        table.learn(keys[order], proba[order])
        for g, x in new.items():
            for since, until in zip((0, *AFTER), AFTER, strict=False):
                table.learn(np.full(until - since, g), x[since:until])
                out.setdefault((share, until), []).append(rp.metrics.kl(truth[g], table.prior(g), floor=1e-6))
    return {cell: float(np.mean(x)) for cell, x in out.items()}


def costs(rounds=7):
    """Return microseconds a sample of tables with and without sharing, by how many rows each key brings."""
    rng, out = np.random.default_rng(0), {}
    for k, rows in ((10, 30), (10, 1000), (100, 30), (100, 1000)):
        n, keys = 30_000, 30_000 // rows
        proba = rng.dirichlet(np.ones(k), n)
        names = rng.permutation(np.repeat(np.arange(keys), rows))
        for share in [False, True] * rounds:
            table = rp.StreamTable("online-ebls", np.ones(k), share=share)
            start = time.thread_time()
            for at in range(0, n, 1000):
                table.learn(names[at : at + 1000], proba[at : at + 1000])
            took = (time.thread_time() - start) / n * 1e6
            cell = f"K={k}, {rows} rows a key, {'shared' if share else 'apart'}"
            out[cell] = min(out.get(cell, np.inf), took)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    seeds, cells, sets = parser.parse_args().seeds, {}, list(shipped())
    for done, o in enumerate(sets):
        progress(done, len(sets), o.name)
        pipe = rp.pipeline(o.heldout, o.heldout_y, counts=o.counts)
        for structure in STRUCTURES:
            for rows in (30, 200):
                for seed in range(FIRST, FIRST + seeds):
                    for (share, after), kl in trial(o, pipe, structure, rows, seed).items():
                        cells.setdefault((o.name, structure, rows, after), {}).setdefault(share, []).append(kl)
    table = []
    for name, structure, rows in dict.fromkeys(cell[:3] for cell in cells):
        row = [name, structure, str(rows)]
        for after in AFTER:
            apart, shared = (np.mean(cells[name, structure, rows, after][share]) for share in (False, True))
            row.append(f"{apart:.3f} → {shared:.3f} ({shared / apart - 1:+.0%})")
        table.append(row)
    head = ["classifier", "keys", "rows of each old key", *(f"KL after {n}" for n in AFTER)]
    spent = costs()
    text = markdown(head, table) + "\n\n" + markdown(["table of online-ebls", "µs a sample"],
                                                     [[cell, f"{us:.2f}"] for cell, us in spent.items()])  # fmt: skip
    figures = {", ".join(map(str, cell)): {"apart": x[False], "shared": x[True]} for cell, x in cells.items()}
    store("keyed_streams", {"seeds": seeds, "kl": figures, "microseconds": spent}, text)


if __name__ == "__main__":
    main()
