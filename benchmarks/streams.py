"""How long a sample takes: online-fmapls, online-ebls, keyed, top-k and one at a time, against NumPy and the memory.

    python benchmarks/streams.py [--rounds 40] [--pipeline]

All functions take turns within one run, so that what else the machine does hits them alike; each figure is the
fastest of its rounds, in processor time (the machine is shared). `--pipeline` times `pipe.stream()` alone, on the
outputs of the ResNet-32 of ratio 0.02: what calibration adds to the bank, and one row at a time.
"""

import argparse
import time
from functools import partial

from _record import markdown, progress, store  # isort: split

import numpy as np

import reprior as rp
from reprior._kernels import SENTENCE, loops, reference
from reprior.online.ebls import OnlineEbls
from reprior.online.fmapls import OnlineFmapls
from reprior.online.method import init
from reprior.rows.blocks import TopKBlocks


class OneFilter(OnlineEbls):
    """A bank of one."""

    STRENGTHS = (1.0,)


class Empty:
    """What calling a method costs when it does nothing."""

    __slots__ = ()

    def learn_one(self, p):
        pass


def rows_of(k, n, seed=0):
    rng = np.random.default_rng(seed)
    rows = rng.exponential(size=(n, k)) ** 3
    return rows / rows.sum(axis=1, keepdims=True)


def lean_numpy(state, inverse, rows):
    """online-fmapls as one would write it in NumPy, with nothing checked and nothing optional."""
    for p in rows:
        joint = p * inverse
        joint *= state["prior"]
        joint *= 1.0 / (joint.sum() * (state["strength"] + 1.0))
        state["prior"] *= state["strength"] / (state["strength"] + 1.0)
        state["prior"] += joint
        state["strength"] += 1.0


def each(function, rows):
    for p in rows:
        function(p)


def cases():
    """Yield (name, samples, what one round runs)."""
    for k in (10, 100, 1000):
        n = 4_000_000 // k  # 32 MB: every round reads it from memory
        rows, source = rows_of(k, n), rp.Source(rows_of(k, 1, 1)[0] / 2 + 0.5 / k)
        method = OnlineFmapls(source)
        yield f"read, K={k}", n, partial(np.sum, rows)
        yield f"fmapls, K={k}", n, partial(rp.Stream.of(init(method)).learn_many, rows)
        single = rows.astype(np.float32)
        yield f"fmapls, float32, K={k}", n, partial(rp.Stream.of(init(method)).learn_many, single)
        few = rows[: 20_000 // k]
        cached = rp.Stream.of(init(method))
        yield f"fmapls, rows in cache, K={k}", 20 * len(few), partial(each, cached.learn_many, [few] * 20)
        yield f"correct_many, K={k}", n, partial(cached.correct_many, rows)
        paper = rp.Stream("online-fmapls", source, variant="paper", c=1e5)
        yield f"fmapls as printed, K={k}", n, partial(paper.learn_many, rows)
        some = rows[:2000]
        yield f"ebls, one filter, K={k}", len(some), partial(learn, OneFilter(source, drift=False), some)
        yield (
            f"ebls, drift=False, K={k}",
            len(some),
            partial(rp.Stream("online-ebls", source, drift=False).learn_many, some),
        )
        yield f"ebls, default bank, K={k}", len(some), partial(rp.Stream("online-ebls", source).learn_many, some)
        if k == 100:
            few = rows[:300]
            state = method.init()
            known = method.known[0, :k].copy()
            lean = {"prior": np.full(k, 1 / k), "strength": k / 2}
            yield (
                "NumPy reference, K=100",
                300,
                partial(reference.fmapls, state, method.known, method.options, None, few),
            )
            yield "lean NumPy, K=100", 300, partial(lean_numpy, lean, known, few)
            one, bank = rp.Stream("online-fmapls", source), rp.Stream("online-ebls", source)
            yield "empty method", 2000, partial(each, Empty().learn_one, some)
            yield "fmapls learn_one", 2000, partial(each, one.learn_one, some)
            yield "ebls learn_one", 2000, partial(each, bank.learn_one, some)
            yield "fmapls correct_one", 2000, partial(each, one.correct_one, some)
            yield from keyed(method, rows)
    yield from top()


def learn(method, rows):
    state = method.init()
    loops.ebls(state, method.known, method.options, method.bank, None, rows, 2)


def keyed(method, rows, streams=10_000):
    keys = np.random.default_rng(2).integers(0, streams, len(rows))
    table = rp.StreamTable("online-fmapls", method.source)
    table.learn(np.arange(streams), rows[:streams])
    slots = np.fromiter(map(table._slots.get, keys.tolist()), np.int64)
    yield "keyed kernel, 10,000 x K=100", len(rows), lambda: table._kernel(slots, rows, 2)
    yield "StreamTable.learn, 10,000 x K=100", len(rows), partial(table.learn, keys, rows)
    bank = rp.StreamTable("online-ebls", method.source)
    bank.learn(np.arange(streams), rows[:streams])
    yield "StreamTable.learn, ebls, 10,000 x K=100", 2000, partial(bank.learn, keys[:2000], rows[:2000])


def top(k=100_000, listed=10, n=2000):
    rng = np.random.default_rng(3)
    values = np.sort(rows_of(listed, n) * 0.9, axis=1)[:, ::-1].copy()
    indices = np.stack([rng.choice(k, listed, replace=False) for _ in range(n)])
    source = rp.Source(np.full(k, 1 / k))
    lazy, dense = rp.Stream("online-fmapls", source), rp.Stream("online-fmapls", source)
    block = next(iter(TopKBlocks(indices[:20], values[:20], source.prior)))
    yield "top-10 of K=100,000", n, partial(lazy.learn_many, (indices, values))
    yield "dense, K=100,000", len(block), partial(dense.learn_many, block)


def of_pipeline(n=2000):
    from _outputs import networks

    o = next(networks(("0.02",)))
    pipe = rp.pipeline(o.heldout, o.heldout_y, counts=o.counts)
    rows = np.ascontiguousarray(o.pool[:n])
    seen, single = np.asarray(pipe.calibrate(rows)), rows.astype(np.float32)
    yield "pipe.stream(), K=100", n, partial(pipe.stream().learn_many, rows)
    yield "pipe.stream(), float32, K=100", n, partial(pipe.stream().learn_many, single)
    yield "its bank, calibrated rows, K=100", n, partial(rp.Stream("online-ebls", pipe.source).learn_many, seen)
    yield "pipe.calibrate, K=100", n, partial(pipe.calibrate, rows)
    yield "pipe.stream().learn_one, K=100", 200, partial(each, pipe.stream().learn_one, rows[:200])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--pipeline", action="store_true", help="`pipe.stream()` alone")
    chosen = parser.parse_args()
    rounds = chosen.rounds
    runs = list(of_pipeline() if chosen.pipeline else cases())
    fastest = dict.fromkeys((name for name, _, _ in runs), np.inf)
    for done in range(rounds):
        for name, n, run in runs:
            start = time.thread_time()
            run()
            fastest[name] = min(fastest[name], (time.thread_time() - start) / n * 1e9)
        progress(done + 1, rounds, "rounds")
    f = fastest
    if chosen.pipeline:
        asked = [["pipe.stream(), us a sample, K=100", f["pipe.stream(), K=100"] / 1000, "5"]]
        write("streams_pipeline", rounds, asked, fastest)
        return
    asked = [
        ["fmapls, ns an element, K=100", f["fmapls, K=100"] / 100, "1.5"],
        ["fmapls, ns an element, K=1000", f["fmapls, K=1000"] / 1000, "1.5"],
        ["fmapls / reading the row once, K=100", f["fmapls, K=100"] / f["read, K=100"], "2.5, if the machine is slow"],
        ["fmapls, ns a sample, K=10", f["fmapls, K=10"], "45"],
        ["NumPy reference / fmapls, rows in cache, K=100",
         f["NumPy reference, K=100"] / f["fmapls, rows in cache, K=100"], "at least 60"],
        ["the same, NumPy without checks or options",
         f["lean NumPy, K=100"] / f["fmapls, rows in cache, K=100"], "at least 60"],
        ["learn_one above an empty method, ns", f["fmapls learn_one"] - f["empty method"], "1000"],
        ["ebls, one filter / 150 ns, K=100", f["ebls, one filter, K=100"] / 150, "3"],
        ["ebls, default bank, us a sample, K=100", f["ebls, default bank, K=100"] / 1000, "5"],
        ["keyed kernel / single stream", f["keyed kernel, 10,000 x K=100"] / f["fmapls, K=100"], "1.5"],
        ["StreamTable.learn / single stream", f["StreamTable.learn, 10,000 x K=100"] / f["fmapls, K=100"], "1.5"],
        ["StreamTable.learn / single stream, ebls",
         f["StreamTable.learn, ebls, 10,000 x K=100"] / f["ebls, default bank, K=100"], "1.5"],
        ["dense / top-10, K=100,000", f["dense, K=100,000"] / f["top-10 of K=100,000"], "at least 100"],
    ]  # fmt: skip
    write("streams", rounds, asked, fastest)


def write(name, rounds, asked, fastest):
    table = "\n\n".join([
        markdown(["figure", "measured", "asked: at most"], [[a, f"{b:.3g}", c] for a, b, c in asked]),
        markdown(["run", "ns a sample"], [[name, f"{ns:.1f}"] for name, ns in fastest.items()]),
    ])  # fmt: skip
    figures = {"kernel": SENTENCE, "rounds": rounds, "asked": {a: [b, c] for a, b, c in asked}, "ns a sample": fastest}
    store(name, figures, table)


if __name__ == "__main__":
    main()
