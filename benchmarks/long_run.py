"""Whether a stream is still a valid one after very many samples, and says so with the same prior as a shorter one.

python benchmarks/long_run.py [--samples 100000000]

The prior changes a hundred times, each time to one that was drawn anew; at the end it stays as it is. `online-ebls` and
top-k rows take several times as long a sample, and a tenth of the samples.
"""

import argparse
import time

from _record import markdown, store  # isort: split

import numpy as np

import reprior as rp

K = 4
STREAMS = {"online-fmapls": {}, "online-fmapls, memory=20": {"memory": 20.0}, "online-ebls": {}}
TOP = "online-fmapls, top 5 of 1,000"


def outputs(prior, n, rng):
    """Return true posteriors, under even classes, of rows drawn under `prior`."""
    x = rng.normal(size=(n, len(prior))) + 1.5 * np.eye(len(prior))[rng.choice(len(prior), n, p=prior)]
    rows = np.exp(1.5 * x)
    return rows / rows.sum(axis=1, keepdims=True)


def listed(rows, rng, k=1000):
    """Return top-5 rows of 1,000 classes."""
    index = (rows.argmax(axis=1)[:, None] * 200 + np.arange(5) * 37) % k
    return index, np.minimum(rows[:, :1], 0.9) * [0.5, 0.2, 0.15, 0.1, 0.04]


def run(label, options, samples, block=20_000):
    rng, top = np.random.default_rng(0), label == TOP
    stream = rp.Stream(label.split(",")[0], np.ones(1000 if top else K), **options)
    start, learned, part = time.process_time(), 0, samples // 100
    while learned < samples:
        if learned % part < block:
            prior = rng.dirichlet(np.ones(K))
            rows = outputs(prior, block, rng)
            rows = listed(rows, rng) if top else rows
        stream.learn_many(rows)
        learned += block
    found = stream.prior
    assert stream.n == learned
    assert np.isfinite(stream.state.values).all()
    assert (found > 0).all()
    error = None if top else 0.5 * float(np.abs(found - prior).sum())
    rp.Stream.from_bytes(stream.to_bytes())  # which checks each of its numbers
    return {"samples": learned, "sum": float(found.sum() - 1), "error": error, "seconds": time.process_time() - start}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=100_000_000)
    asked = parser.parse_args().samples
    found = {}
    for label, options in {**STREAMS, TOP: {}}.items():
        found[label] = run(label, options, asked // 10 if label in ("online-ebls", TOP) else asked)
        print(label, found[label], flush=True)
    lines = [[label, f"{x['samples']:.0e}", f"{x['sum']:.0e}", "" if x["error"] is None else f"{x['error']:.4f}"]
             for label, x in found.items()]  # fmt: skip
    table = markdown(["stream", "samples", "sum of the prior - 1", "total variation from the last true prior"], lines)
    store("long_run", found, table)


if __name__ == "__main__":
    main()
