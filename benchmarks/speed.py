"""CPU time and memory: fit and estimate beside QuaPy, one EM pass, small problems, passes, streams, import.

    python benchmarks/speed.py [fit pass small blocks stream import ...]

Contenders take turns, so that a busy moment hits all of them, and BLAS runs on one thread. `fit` wants
`pip install -r benchmarks/requirements.txt`.
"""

from __future__ import annotations

import subprocess
import sys
import time
import tracemalloc
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from _record import markdown, progress, run_parts, store  # isort: split

import numpy as np
from _worlds import one_likely

import reprior as rp
from reprior._kernels import SENTENCE, reference
from reprior.online.fmapls import OnlineFmapls
from reprior.rows.blocks import ArrayBlocks, TopKBlocks
from reprior.rows.passes import e_step

Calls = dict[str, Callable[[], object]]
IMPORTS = {
    "python": "pass", "numpy": "import numpy", "reprior": "import reprior",
    "reprior, every name used": "import reprior; [getattr(reprior, name) for name in reprior.__all__]",
}  # fmt: skip
CLOCK = "import time; start = time.process_time(); {}; print(time.process_time() - start)"


def interleaved(calls: Calls, turns: int, what: str, warm_up: int = 1) -> dict[str, np.ndarray]:
    """Return CPU seconds (turns,) of each call; calls take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(turns + warm_up):
        for name, call in calls.items():
            start = time.process_time()
            call()
            if turn >= warm_up:
                seconds[name].append(time.process_time() - start)
        progress(turn + 1, turns + warm_up, what)
    return {name: np.array(values) for name, values in seconds.items()}


def fit() -> None:
    """From arrays to corrected samples: the default with all checks beside QuaPy's methods."""
    import quapy.method.aggregative as quapy
    from _peers import BCTS, of_quapy, on_present

    def quapys(peer: Any, held: Any, y: Any, new: Any) -> object:
        prior = peer(held, y)(new)
        fixed = new * (prior / held.mean(axis=0))
        return fixed / fixed.sum(axis=1, keepdims=True)

    def ours(held: Any, y: Any, new: Any) -> object:
        return rp.pipeline(held, y).estimate(new).correct(new)

    def named(method: str, held: Any, y: Any, new: Any) -> object:
        return rp.pipeline(held, y, method=method).estimate(new, check=False).correct(new)

    figures, rows = {}, []
    warnings.simplefilter("ignore")
    for n_heldout, n, k, turns in ((1000, 1000, 10, 9), (2000, 100_000, 100, 3)):
        true = np.random.default_rng(0).choice(k, n_heldout)
        held = one_likely(n_heldout, k, 1.6, 0, np.eye(k)[true].mean(axis=0))
        y = np.array([np.random.default_rng(i).choice(k, p=p) for i, p in enumerate(held)])  # calibrated labels
        data = held, y, one_likely(n, k, 1.6, 1)
        calls: Calls = {"reprior, default with checks": partial(ours, *data)}
        calls |= {f"reprior, {m}": partial(named, m, *data) for m in ("mlls", "fmapls")}
        calls["QuaPy, EMQ-BCTS"] = partial(quapys, of_quapy(quapy.EMQ, **BCTS), *data)
        if k <= 20:
            calls["QuaPy, KDEyML"] = partial(quapys, on_present(of_quapy(quapy.KDEyML)), *data)
        results = interleaved(calls, turns, f"{n} x {k}")
        base = results["QuaPy, EMQ-BCTS"]
        for name, spent in results.items():
            ratio = float(np.median(spent / base))
            figures[f"{n} x {k}, {name}"] = {"seconds": float(np.median(spent)), "ratio": ratio}
            where = f"{n_heldout:,} held-out, {n:,} x {k}"
            rows.append([where, name, f"{1e3 * np.median(spent):,.0f}", f"{ratio:.2f}"])
    for k, turns in ((1000, 3), (5000, 1)):
        held = one_likely(5000, k, 2.0, 0, np.full(k, 1 / k))
        y = held.argmax(axis=1)
        spent = interleaved({"fit": partial(rp.pipeline, held, y)}, turns, f"fit, K={k}", warm_up=0)["fit"]
        figures[f"fit, 5000 x {k}"] = {"seconds": float(np.median(spent))}
        rows.append([f"5,000 held-out, K = {k:,}", "`rp.pipeline`", f"{1e3 * np.median(spent):,.0f}", ""])
    about = ("# From arrays to corrected samples: CPU time\n\nHeld-out samples and target in; calibrated, estimated "
             "and corrected samples out. The ratio is to QuaPy's EMQ-BCTS in the same turn.")  # fmt: skip
    table = markdown(["samples", "method", "CPU ms", "ratio"], rows)
    store("speed_fit", {"cells": figures}, f"{about}\n\n{table}")


def one_pass() -> None:
    """One EM pass beside one read of the matrix and the textbook formulation."""

    def textbook(proba: np.ndarray, weights: np.ndarray) -> np.ndarray:
        posterior = proba * weights
        return (posterior / posterior.sum(axis=1, keepdims=True)).mean(axis=0)

    def peak(call: Callable[[], object]) -> int:
        tracemalloc.start()
        try:
            call()
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    columns = []
    for k in (100, 1000):
        proba = one_likely(160_000_000 // (8 * k), k, 2.0, k)  # 160 MB: far beyond any cache
        weights = np.random.default_rng(0).dirichlet(np.ones(k)) * k
        ours, flat = partial(e_step, ArrayBlocks(proba), weights), proba.reshape(-1)
        calls: Calls = {"read": flat.sum, "ours": ours, "textbook": partial(textbook, proba, weights)}
        s = interleaved(calls, 9, f"pass, K={k}")
        columns.append({
            "K": k, "N": len(proba), **{f"{name}, ms": 1e3 * float(np.median(x)) for name, x in s.items()},
            "ours / read": float(np.median(s["ours"] / s["read"])),
            "textbook / ours": float(np.median(s["textbook"] / s["ours"])),
            "extra memory, % of the matrix": 100 * peak(ours) / proba.nbytes,
            "extra memory of the textbook's, %": 100 * peak(calls["textbook"]) / proba.nbytes,
        })  # fmt: skip
    rows = [[key, *(f"{c[key]:.3g}" for c in columns)] for key in columns[0]]
    store("speed_pass", {"sizes": columns}, "# One EM pass, 160 MB of float64\n\n" + markdown(["", "", ""], rows))


def small() -> None:
    """Small problems from call to answer, in units of 100 plain NumPy EM steps."""

    def plain(source: np.ndarray, proba: np.ndarray) -> np.ndarray:
        weights, n = np.ones(len(source)), len(proba)
        for _ in range(100):
            weights = weights * (proba.T @ (1.0 / (proba @ weights))) / (n * source)
        return weights * source

    figures, rows = {}, []
    for n, k in ((100, 10), (1000, 100)):
        source, proba = np.full(k, 1.0 / k), one_likely(n, k, 2.0, 0)
        calls: Calls = {"100 plain steps": partial(plain, source, proba)}
        calls |= {name: partial(rp.METHODS[name], source, proba) for name in ("mlls", "fmapls", "mapls", "ebls")}
        seconds = interleaved(calls, 31, f"small, {n} x {k}", 3)
        for name, spent in seconds.items():
            ratio = float(np.median(spent / seconds["100 plain steps"]))
            figures[f"{n} x {k}, {name}"] = {"ms": 1e3 * float(np.median(spent)), "ratio": ratio}
            rows.append([f"{n} x {k}", name, f"{1e3 * np.median(spent):.3f}", f"{ratio:.2f}"])
    about = "# Small problems: CPU time from call to answer, checks included\n\nRatios are to 100 plain NumPy EM steps."
    table = markdown(["samples x classes", "method", "ms", "ratio"], rows)
    store("speed_small", {"cells": figures}, f"{about}\n\n{table}")


class Counted:
    """Samples in blocks of 10,000, and how often they were read."""

    def __init__(self, rows: np.ndarray) -> None:
        self.rows, self.passes, self.n_classes = rows, 0, rows.shape[1]

    def map_sum(self, fn: Callable[[Any], Any]) -> Any:
        self.passes += 1
        total = fn(self.rows[:10_000])
        for first in range(10_000, len(self.rows), 10_000):
            total = total + fn(self.rows[first : first + 10_000])
        return total


def blocks(n: int = 300_000, k: int = 100) -> None:
    """How often samples in blocks are read."""
    source, rows = rp.simulate.long_tail(k, 0.1), []
    proba = one_likely(n, k, 2.0, 0, rp.simulate.shuffled_long_tail(k, 0.02, rng=np.random.default_rng(0)))
    figures = {}
    for method in ("mlls", "fmapls", "ebls"):
        target, start = Counted(proba), time.process_time()
        rp.METHODS[method](source, target)
        figures[method] = {"passes": target.passes, "cpu_seconds": time.process_time() - start}
        rows.append([method, str(target.passes), f"{figures[method]['cpu_seconds']:.1f}"])
    about = f"# How often {n:,} x {k} samples in blocks are read, all passes counted"
    store("speed_blocks", {"cells": figures}, f"{about}\n\n" + markdown(["method", "passes", "CPU s"], rows))


def each(function: Callable[[Any], object], rows: Any) -> None:
    for p in rows:
        function(p)


def stream_calls() -> dict[str, tuple[int, Callable[[], object]]]:
    """Return samples and call of each contender."""
    out: dict[str, tuple[int, Callable[[], object]]] = {}
    for k in (10, 100, 1000):
        n = 2_000_000 // k  # 16 MB: every round reads it from memory
        rows, source = one_likely(n, k, 2.0, k), rp.Source(np.full(k, 1.0 / k))
        some = np.ascontiguousarray(rows[:2000])
        out[f"reading the row once, K={k}"] = n, partial(np.sum, rows)
        out[f"`online-fmapls`, K={k}"] = n, partial(rp.Stream("online-fmapls", source).learn_many, rows)
        out[f"`online-ebls`, K={k}"] = len(some), partial(rp.Stream("online-ebls", source).learn_many, some)
        still = rp.Stream("online-ebls", source, drift=False)
        out[f"`online-ebls`, `drift=False`, K={k}"] = len(some), partial(still.learn_many, some)
        out[f"`correct_many`, K={k}"] = n, partial(rp.Stream("online-fmapls", source).correct_many, rows)
        if k == 100:
            method, few = OnlineFmapls(source), rows[:300]
            plain = partial(reference.fmapls, method.init(), method.kernel_priors, method.options, None, few)
            out["NumPy reference of `online-fmapls`, K=100"] = 300, plain
            learn_one = rp.Stream("online-fmapls", source).learn_one
            out["`online-fmapls`, `learn_one`, K=100"] = 2000, partial(each, learn_one, some)
            held = one_likely(1000, k, 2.0, 5)
            pipe = rp.pipeline(held, held.argmax(axis=1))
            out["`pipe.stream()`, K=100"] = len(some), partial(pipe.stream().learn_many, some)
            keys = np.random.default_rng(2).integers(0, 10_000, n)
            table = rp.StreamTable("online-fmapls", source)
            table.learn(np.arange(10_000), rows[:10_000])
            out["`StreamTable`, 10,000 keys, K=100"] = n, partial(table.learn, keys, rows)
    k, listed, n = 100_000, 10, 2000
    rng, source = np.random.default_rng(3), rp.Source(np.full(k, 1 / k))
    values = np.sort(0.9 * rng.dirichlet(np.ones(listed), n), axis=1)[:, ::-1].copy()
    indices = np.stack([rng.choice(k, listed, replace=False) for _ in range(n)])
    dense = next(iter(TopKBlocks(indices[:20], values[:20], source.prior)))
    out["top 10 of K=100,000"] = n, partial(rp.Stream("online-fmapls", source).learn_many, (indices, values))
    out["dense, K=100,000"] = len(dense), partial(rp.Stream("online-fmapls", source).learn_many, dense)
    return out


def stream() -> None:
    """Nanoseconds per sample of the stream methods: the fastest of 20 rounds."""
    calls = stream_calls()
    results = interleaved({name: call for name, (_, call) in calls.items()}, 20, "streams")
    ns = {name: 1e9 * float(results[name].min()) / n for name, (n, _) in calls.items()}
    names = dict.fromkeys(name.rpartition(", K=")[0] for name in ns if name.endswith(("K=10", "K=1000")))
    sizes = (10, 100, 1000)
    wide = [[name, *(f"{ns[f'{name}, K={k}']:,.0f}" for k in sizes)] for name in names]
    others = [[name, f"{x:,.0f}"] for name, x in ns.items() if name.rpartition(", K=")[0] not in names]
    text = f"{SENTENCE}\n\n{markdown(['ns per sample', *(f'K={k}' for k in sizes)], wide)}"
    store("speed_stream", {"ns": ns}, f"{text}\n\n{markdown(['ns per sample', ''], others)}")


def importing(turns: int = 9) -> None:
    """CPU time of `import reprior`, in fresh processes."""
    spent: dict[str, list[float]] = {name: [] for name in IMPORTS}
    for _ in range(turns):
        for name, code in IMPORTS.items():
            done = subprocess.check_output([sys.executable, "-c", CLOCK.format(code)], text=True)
            spent[name].append(1e3 * float(done))
    figures = {name: round(float(np.median(values)), 1) for name, values in spent.items()}
    rows = [[name, f"{value:.1f}"] for name, value in figures.items()]
    store("speed_import", {"ms": figures}, "# CPU time of an import\n\n" + markdown(["", "ms"], rows))


PARTS = {"fit": fit, "pass": one_pass, "small": small, "blocks": blocks, "stream": stream, "import": importing}


if __name__ == "__main__":
    run_parts(PARTS, __doc__)
