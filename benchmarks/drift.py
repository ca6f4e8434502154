"""Streams on real outputs: how close to batch when nothing moves, how well they follow drifts, and what alarms cost.

    python benchmarks/drift.py [--sections stationary drift swap labels alarm] [--seeds 2] [--nulls 1000] [--ours]

`--ours` measures our own methods in the section `drift` anew and keeps the stored figures of the published ones, which
saw the same streams. Each section is stored as results/drift_*.json and .md. Outputs are calibrated by
temperature on the held-out rows and the source is their mean, for every method alike. An online estimate is always
the one from before the samples it is judged on.
"""

import argparse
import json
import time

from _record import RESULTS, markdown, store  # isort: split

import numpy as np

import reprior as rp
from reprior import datasets, simulate
from reprior.online.alarm import Alarm
from reprior.online.ebls import OnlineEbls
from reprior.online.fmapls import OnlineFmapls
from reprior.online.published import PEERS
from reprior.pipelines.calibrate import fit

FLOORS = (1e-4, 1e-3, 1e-2, 0.05, 0.2)
OURS = ("online-ebls", "online-fmapls")
EASY = "best published, smoothed in hindsight"


def simulated(k=100, sharp=2.2, n_heldout=3000, n_pool=15000, ratio=0.1):
    """A calibrated classifier with a long-tailed source prior: Gaussian scores with one raised for the true class."""
    rng = np.random.default_rng(0)
    prior = simulate.long_tail(k, ratio)

    def rows(y):
        scores = sharp * (rng.standard_normal((len(y), k)) + sharp * np.eye(k)[y]) + np.log(prior)
        p = np.exp(scores - scores.max(axis=1, keepdims=True))
        return p / p.sum(axis=1, keepdims=True)

    heldout_y, pool_y = rng.choice(k, n_heldout, p=prior), rng.integers(k, size=n_pool)
    return rows(heldout_y), heldout_y, rows(pool_y), pool_y


def problem(name):
    """Return the source, and a pool of calibrated outputs (n, K) with labels (n,)."""
    if name == "simulated100":
        heldout, heldout_y, pool, pool_y = simulated()
    else:
        d = datasets.load(name)
        heldout, heldout_y, pool, pool_y = d.heldout_proba, d.heldout_y, d.pool_proba, d.pool_y
    calibrate = fit(heldout, heldout_y, kind="temperature")
    return rp.summarize(calibrate(heldout), heldout_y), calibrate(pool), pool_y


PROBLEMS = ("banking77", "clinc150", "simulated100")


def target(kind, k, rng):
    return simulate.dirichlet(k, 1.0, rng=rng) if kind == "dirichlet" else simulate.shuffled_long_tail(k, 0.02, rng=rng)


def trajectory(method, rows, every=10):
    """Return the prior (n // every, K) before each block of `every` rows, and the one after the last."""
    state, path = method.init(), []
    for first in range(0, len(rows), every):
        path.append(method.prior(state))
        method.learn(state, rows[first : first + every])
    return np.array(path), method.prior(state)


def kl_rows(true, estimate):
    return np.where(true > 0, true * np.log(np.maximum(true, 1e-300) / estimate), 0.0).sum(axis=1)


def stationary(seeds):
    """KL after 3,000 samples of a prior that stays, over that of the batch method on the same rows."""
    out = {}
    for name in PROBLEMS:
        source, pool, y = problem(name)
        for kind in ("dirichlet", "shuffled long tail"):
            cells = []
            for seed in range(seeds):
                rng = np.random.default_rng(seed)
                sample = simulate.resample(pool, y, target(kind, len(source.prior), rng), n=3000, rng=rng)
                row = {
                    f.__name__: rp.metrics.kl(sample.prior, f(source, sample.proba).prior) for f in (rp.mapls, rp.ebls)
                }
                for label, method in (
                    ("online-ebls, drift=False", OnlineEbls(source, drift=False)),
                    ("online-ebls", OnlineEbls(source)),
                    ("online-fmapls", OnlineFmapls(source)),
                ):
                    row[label] = rp.metrics.kl(sample.prior, trajectory(method, sample.proba, 3000)[1])
                cells.append(row)
            out[f"{name}, {kind}"] = {key: float(np.mean([c[key] for c in cells])) for key in cells[0]}
    ratios = {}
    for above, below, asked in (("online-ebls, drift=False", "ebls", 1.05), ("online-ebls", "ebls", 1.15),
                                ("online-fmapls", "mapls", 1.3)):  # fmt: skip
        for name in (*PROBLEMS, ""):
            cells = [cell for label, cell in out.items() if label.startswith(name)]
            ratio = sum(c[above] for c in cells) / sum(c[below] for c in cells)
            ratios[f"{above} / {below}, {name or 'all'} (asked: {asked})"] = ratio
    return {"seeds": seeds, "kl": out, "ratios": ratios}


def contenders(source):
    """Ours at their defaults, and each published method at the settings of its authors (and of those who reran it)."""
    rerun = {"batch": 10, "hard": False, "clip": True}
    yield "online-ebls", OnlineEbls(source)
    yield "online-fmapls", OnlineFmapls(source)
    yield "fth [wu2021]", PEERS["fth"](source)
    yield "fth [baby2023]", PEERS["fth"](source, **rerun)
    for window in (100, 1000, 10000):
        yield f"ftfwh {window} [wu2021]", PEERS["ftfwh"](source, window=window)
    yield "ftfwh 1000 [baby2023]", PEERS["ftfwh"](source, window=1000, **rerun)
    yield "rogd [wu2021]", PEERS["rogd"](source, horizon=10000)
    yield "rogd [baby2023]", PEERS["rogd"](source, batch=10, hard=False)
    yield "flh-ftl [baby2023]", PEERS["flh-ftl"](source)
    yield "uogd [bai2022]", PEERS["uogd"](source)
    yield "atlas [bai2022]", PEERS["atlas"](source)


def streams(name, seeds):
    """Yield the drifts of one problem: its name, its source, and for every seed the true priors (1000, K) and rows."""
    source, pool, y = problem(name)
    k = len(source.prior)
    for kind in simulate.DRIFTS:
        for speed, period in (("", None), ("slow", 100)) if kind == "squ" else (("", None),):
            drawn = []
            for seed in range(seeds):
                rng = np.random.default_rng(seed)
                shape = "dirichlet" if seed % 2 else "shuffled long tail"
                path = simulate.drift(target(shape, k, rng), target(shape, k, rng), n=1000, kind=kind,
                                      period=period, rng=rng)  # fmt: skip
                drawn.append((path, simulate.draw_stream(pool, y, path, repeat=10, rng=rng)))
            yield f"{name}, {kind} {speed}".strip(), source, drawn


def drifts(seeds, ours=False):
    """Mean over time of KL(true ‖ estimate) along 1,000 steps of 10 samples; `seconds` a stream of each method."""
    out, seconds, wins = {}, {}, []
    stored = json.loads((RESULTS / "drift_drift.json").read_text(encoding="utf-8")) if ours else {}
    if ours and stored["seeds"] != seeds:
        raise SystemExit(f"The stored figures are of {stored['seeds']} seeds: say --seeds {stored['seeds']}.")
    for name in PROBLEMS:
        for called, source, drawn in streams(name, seeds):
            k = len(source.prior)
            found, suited = {}, {}
            for path, sample in drawn:
                for label, method in contenders(source):
                    if ours and label not in OURS:
                        continue
                    start = time.perf_counter()
                    priors, _ = trajectory(method, sample.proba)
                    seconds.setdefault(label, []).append(time.perf_counter() - start)
                    found.setdefault(label, []).append(kl_rows(path, priors).mean())
                    if method.name in PEERS:  # smoothed as would have suited it best on this very stream
                        bare = (priors - method.floor / k) / (1 - method.floor)
                        error = min(kl_rows(path, (1 - f) * bare + f / k).mean() for f in FLOORS)
                        suited.setdefault(label, []).append(error)
            kept = dict(stored["kl"][called]) if ours else {}
            hindsight = kept.pop(EASY, None)
            cell = {**kept, **{label: float(np.mean(errors)) for label, errors in found.items()}}
            best = min((v, label) for label, v in cell.items() if label not in OURS)
            easy = [hindsight] if ours else min((float(np.mean(errors)), label) for label, errors in suited.items())
            out[called] = {**cell, EASY: easy[0]}
            wins.append((cell["online-ebls"] < best[0], cell["online-ebls"] < easy[0]))
            print(f"{called}: online-ebls {cell['online-ebls']:.3f}, best published {best} {easy}", flush=True)
    below, below_easy = np.sum(wins, axis=0)
    return {"seeds": seeds, "kl": out, "online-ebls below every published method": f"{below} of {len(wins)} cells",
            "even if each is smoothed towards uniform, up to 20 %, as suits it best in hindsight": f"{below_easy}",
            "seconds": {**stored.get("seconds", {}), **{label: float(np.mean(s)) for label, s in seconds.items()}},
            **({"published methods": f"kept from {stored['made']['made']}"} if ours else {})}  # fmt: skip


def swap(seeds, n=4000):
    """Samples after a sudden swap until the mean KL is within twice the stationary KL, against a fresh filter."""
    out = {}
    for name in PROBLEMS:
        source, pool, y = problem(name)
        k = len(source.prior)
        curves = {}
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            first, second = target("dirichlet", k, rng), target("dirichlet", k, rng)
            path = simulate.drift(first, second, n=2 * n, kind="swap")
            sample = simulate.draw_stream(pool, y, path, rng=rng)
            for label, method, rows in (
                ("fresh online-ebls", OnlineEbls(source), sample.proba[n:]),
                ("online-ebls", OnlineEbls(source), sample.proba),
                ("online-ebls, drift=False", OnlineEbls(source, drift=False), sample.proba),
                ("online-fmapls", OnlineFmapls(source), sample.proba),
                ("ftfwh 1000", PEERS["ftfwh"](source, window=1000, floor=0.01), sample.proba),
                ("flh-ftl", PEERS["flh-ftl"](source, floor=0.01), sample.proba),
            ):
                priors = trajectory(method, rows)[0][-n // 10 :]
                curves.setdefault(label, []).append(kl_rows(path[n::10], priors))
        mean = {label: np.mean(c, axis=0) for label, c in curves.items()}
        settled = float(mean["fresh online-ebls"][-50:].mean())
        reached = {
            label: 10 * int(np.argmax(c < 2 * settled)) if (c < 2 * settled).any() else None
            for label, c in mean.items()
        }
        out[name] = {"stationary KL": settled, "samples to twice that": reached,
                     "ratio to fresh (asked: 1.5)": reached["online-ebls"] / reached["fresh online-ebls"],
                     "curves, every 100": {label: c[::10].round(4).tolist() for label, c in mean.items()}}  # fmt: skip
        print(name, settled, reached, flush=True)
    return {"seeds": seeds, "problems": out}


def labels(seeds, delay=100):
    """Mean KL over a stream when a share of the labels arrives, each `delay` samples late."""
    out = {}
    for name in PROBLEMS:
        source, pool, y = problem(name)
        k = len(source.prior)
        for kind in ("stationary", "lin"):
            found = {}
            for seed in range(seeds):
                rng = np.random.default_rng(seed)
                first = target("dirichlet", k, rng)
                second = first if kind == "stationary" else target("dirichlet", k, rng)
                path = simulate.drift(first, second, n=3000, kind="lin")
                sample = simulate.draw_stream(pool, y, path, rng=rng)
                arrives = rng.random(3000)
                for share in (0.0, 0.01, 0.05):
                    for method in (OnlineEbls(source), OnlineFmapls(source)):
                        state, priors = method.init(), []
                        for first_row in range(0, 3000, 10):
                            priors.append(method.prior(state))
                            method.learn(state, sample.proba[first_row : first_row + 10])
                            for late in range(max(0, first_row - delay), max(0, first_row - delay + 10)):
                                if arrives[late] < share:
                                    method.observe(state, sample.proba[late], int(sample.y[late]))
                        error = kl_rows(path[::10], np.array(priors))
                        found.setdefault((method.name, share), []).append((error.mean(), error[-50:].mean()))
            for (method_name, share), errors in found.items():
                mean, end = np.mean(errors, axis=0)
                none = np.mean(found[method_name, 0.0], axis=0)
                out.setdefault(f"{name}, {kind}", {})[f"{method_name}, {share:.0%}"] = {
                    "mean KL": float(mean), "last 500": float(end),
                    "change": f"{mean / none[0] - 1:+.1%} / {end / none[1] - 1:+.1%}",
                }  # fmt: skip
    return {"seeds": seeds, "delay": delay, "kl": out}


def population(name, head=None):
    """Return outputs, labels, a source prior (whose head class may be given a share), and the chance of each row."""
    source, pool, y = problem(name)
    k = len(source.prior)
    prior = source.prior.copy()
    if head is not None:
        top = int(prior.argmax())
        prior *= (1 - head) / (1 - prior[top])
        prior[top] = head
        pool = rp.correct(pool, prior / source.prior)
    share = np.bincount(y, minlength=k) / len(y)

    def chance(p):
        each = (p / share)[y]
        return each / each.sum()

    return pool, y, prior, chance


def alarms(nulls, n=2000):
    """False alarms over streams drawn, like their held-out rows, from one population; and delays for a halved head."""
    out = {"null streams": nulls, "length": n, "false alarms": {}, "shifts": {}}
    for name, size in (("banking77", 1000), ("clinc150", 1500)):
        pool, y, prior, chance = population(name)
        p = chance(prior)
        raised = {"ever": 0, "monitor": 0, "ever, no margin": 0}
        for seed in range(nulls // 2):
            rng = np.random.default_rng(seed)
            held, rows = rng.choice(len(y), size, p=p), rng.choice(len(y), n, p=p)
            source = rp.summarize(pool[held], y[held])
            for label in raised:
                if "no margin" in label and seed >= 50:
                    continue
                alarm = Alarm(source, alpha=0.01, mode=label.split(",")[0], exact="no margin" in label)
                raised[label] += bool(alarm.watch(Follower(OnlineEbls(source)), pool[rows]))
        raised["ever, no margin"] = f"{raised['ever, no margin']} of {min(50, nulls // 2)}"
        out["false alarms"][f"{name}, {size} held-out rows, {nulls // 2} streams"] = raised
        print(name, raised, flush=True)
    for head, size in (
        (None, 1000),
        (0.1, 1000),
        (0.1, 4000),
        (0.3, 1000),
        (0.3, 4000),
        (0.5, 1000),
        ("dirichlet", 1000),
    ):
        pool, y, prior, chance = population("banking77", head if head != "dirichlet" else None)
        halved = prior.copy()
        halved[prior.argmax()] /= 2
        halved /= halved.sum()
        before = chance(prior)
        delays, said, expected = [], [], []
        for seed in range(31):
            rng = np.random.default_rng(seed)
            if head == "dirichlet":
                halved = simulate.dirichlet(len(prior), 1.0, rng=rng)
            after = chance(halved)
            held = rng.choice(len(y), size, p=before)
            source = rp.summarize(pool[held], y[held])
            rows = np.concatenate([rng.choice(len(y), 1000, p=before), rng.choice(len(y), 4000, p=after)])
            alarm = Alarm(source, mode="monitor")
            verdict = alarm.watch(Follower(OnlineEbls(source)), pool[rows])
            delays.append(verdict.raised_at - 1000 if verdict else np.inf)
            if verdict:
                said.append(verdict.since - 1000)
            expected.append(alarm.delay(halved))
        shift = f"head class of {prior.max():.1%} halved" if head != "dirichlet" else "all classes anew, Dirichlet(1)"
        out["shifts"][f"{shift}, {size} held-out rows"] = {
            "found within 4000": float(np.mean(np.isfinite(delays))),
            "median delay": None if np.median(delays) == np.inf else float(np.median(delays)),
            "median of `since`, 0 = the change": float(np.median(said)) if said else None,
            "median of `delay(prior)`": None if np.median(expected) == np.inf else float(np.median(expected)),
        }  # fmt: skip
        print(head, size, list(out["shifts"].values())[-1], flush=True)
    return out


class Follower:
    """The least an alarm needs of a stream."""

    def __init__(self, method):
        self.method, self.state = method, method.init()

    @property
    def prior(self):
        return self.method.prior(self.state)

    def calibrated(self, rows):
        return rows

    def learn_calibrated(self, rows):
        self.method.learn(self.state, rows)


def table(section, found):
    """Return the section's figures as Markdown."""
    if section == "stationary":
        keys = list(next(iter(found["kl"].values())))
        rows = [[cell, *(f"{v[key]:.4f}" for key in keys)] for cell, v in found["kl"].items()]
        return "\n".join([markdown(["KL after 3,000", *keys], rows), "",
                          *(f"- {k}: {v:.3f}" for k, v in found["ratios"].items())])  # fmt: skip
    if section == "drift":
        keys = list(next(iter(found["kl"].values())))
        rows = [[key, *(f"{cell[key]:.3f}" for cell in found["kl"].values())] for key in keys]
        rows = [[*row, f"{found['seconds'][row[0]]:.2f}" if row[0] in found["seconds"] else ""] for row in rows]
        told = ("online-ebls", "even", "published")
        said = [f"- {key}: {value}" for key, value in found.items() if key.startswith(told)]
        return "\n".join([markdown(["mean KL over time", *found["kl"], "seconds a stream"], rows), "", *said])
    if section == "swap":
        keys = list(next(iter(found["problems"].values()))["samples to twice that"])
        rows = [[name, f"{v['stationary KL']:.4f}", *(str(v["samples to twice that"][key] or "never") for key in keys),
                 f"{v['ratio to fresh (asked: 1.5)']:.2f}"] for name, v in found["problems"].items()]  # fmt: skip
        return markdown(["samples until within 2 x", "stationary KL", *keys, "online-ebls / fresh"], rows)
    if section == "labels":
        rows = [[cell, how, f"{v['mean KL']:.4f}", f"{v['last 500']:.4f}", v["change"]]
                for cell, hows in found["kl"].items() for how, v in hows.items()]  # fmt: skip
        return markdown(["stream", "method, labels", "mean KL", "KL, last 500", "change"], rows)
    null = [[cell, *map(str, v.values())] for cell, v in found["false alarms"].items()]
    heads = [[cell, *(f"{x:g}" if x is not None else "none" for x in v.values())]
             for cell, v in found["shifts"].items()]  # fmt: skip
    return "\n\n".join([
        markdown(["false alarms, level 1 %", *next(iter(found["false alarms"].values()))], null),
        markdown(["shift after 1,000 samples", *next(iter(found["shifts"].values()))], heads),
    ])  # fmt: skip


def main():
    sections = {
        "stationary": lambda args: stationary(4 * args.seeds), "drift": lambda args: drifts(args.seeds, args.ours),
        "swap": lambda args: swap(8 * args.seeds), "labels": lambda args: labels(4 * args.seeds),
        "alarm": lambda args: alarms(args.nulls),
    }  # fmt: skip
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", nargs="+", choices=sections, default=list(sections))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--nulls", type=int, default=1000)
    parser.add_argument("--ours", action="store_true")
    args = parser.parse_args()
    for section in args.sections:
        start = time.time()
        found = sections[section](args)
        store(f"drift_{section}", {**found, "took": f"{time.time() - start:.0f} s"}, table(section, found))


if __name__ == "__main__":
    main()
