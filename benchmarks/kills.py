"""kill -9 at random moments, and two runs at once: is what is on disk afterwards what an undisturbed run leaves?

`correct` (NPY, Parquet parts) and `stream` (NDJSON, with calibration and alarm) are killed and started again until they
end by themselves; a process that saves a table again and again is killed, and the table read back. Then two `correct`
with different priors write one output at the same time: one of them must be refused, or wait its turn.
"""

from __future__ import annotations

import _record  # isort: skip

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from reprior.state import hidden

KINDS = ("correct NPY", "correct Parquet parts", "stream", "table saves", "two corrects at once")
PROGRAM = [sys.executable, "-c", "from reprior.cli import main; main()"]
SAVER = """
import sys, numpy as np, reprior as rp
path = sys.argv[1]
table = rp.load(path)
rows = np.random.default_rng(0).dirichlet(np.ones(20), 64)
print(flush=True)
while True:
    table.learn([f"k{i % 8}" for i in range(64)], rows)
    table.save(path)
"""


def run(command: list[object]) -> None:
    """Run a command undisturbed."""
    subprocess.run([*PROGRAM, *map(str, command)], check=True, capture_output=True)


def killed(command: list[object], rng: np.random.Generator, most: int, seen: Path) -> int:
    """Run a command until it ends by itself, killing it at most so often; return how often it was.

    Each time it may get going first: it is killed at a random moment after `seen` has changed.
    """
    kills = 0
    while True:
        before = stamp(seen)
        process = subprocess.Popen([*PROGRAM, *map(str, command)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        if kills < most:
            while process.poll() is None and stamp(seen) == before:
                time.sleep(0.002)
            time.sleep(rng.uniform(0, 0.2))
            if process.poll() is None:
                process.kill()
                process.communicate()
                kills += 1
                continue
        _, err = process.communicate()
        if process.returncode:
            raise SystemExit(f"ended with {process.returncode}: {err.decode()}")
        return kills


def stamp(path: Path) -> int:
    """Return when a file was last changed; 0 if it is not there."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def same(one: Path, other: Path) -> bool:
    """Return whether two files, or two folders of files, hold the same bytes."""
    if one.is_file():
        return one.read_bytes() == other.read_bytes()
    names = [sorted(p.name for p in folder.iterdir()) for folder in (one, other)]
    return names[0] == names[1] and all(same(one / name, other / name) for name in names[0])


def commands(folder: Path, rng: np.random.Generator, what: str, job: list[object], count: int) -> dict[str, object]:
    """Kill one kind of run `count` times; return how often, in how many jobs, and how many ended with other bytes."""
    state = ["--state", folder / "state once"] if what == "stream" else []
    run([*job, "-o", folder / "once", *state])
    kills = jobs = wrong = left = 0
    while kills < count:
        out, jobs = folder / f"out{jobs}", jobs + 1
        state = ["--state", folder / f"state{jobs}"] if what == "stream" else []
        seen = state[-1] if what == "stream" else hidden(out, "journal")
        kills += killed([*job, "-o", out, *state], rng, min(20, count - kills), Path(str(seen)))
        wrong += not same(out, folder / "once")
        left += sum(p.name.startswith(".out") or p.name.startswith(".state") for p in folder.iterdir())
        _record.progress(kills, count, what)
    return {"kills": kills, "jobs": jobs, "other bytes": wrong, "files left behind": left}


def table(folder: Path, rng: np.random.Generator, count: int) -> dict[str, object]:
    """Kill a process that saves a table; return how often, and how often what is there was not whole or went back."""
    import reprior as rp

    path, last, wrong = folder / "table", 0, 0
    rp.StreamTable("online-ebls", np.ones(20)).save(path)
    begun = time.monotonic()
    for _ in range(10):
        rp.load(path).save(path)
    once = (time.monotonic() - begun) / 10
    for kill in range(count):
        process = subprocess.Popen([sys.executable, "-c", SAVER, str(path)], stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(rng.uniform(0, 5) * once)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        try:
            found = rp.load(path)
            n = sum(found[key].n for key in found)
            wrong += n < last or n % 64 > 0
            last = n
        except rp.InputError:
            wrong += 1
        _record.progress(kill + 1, count, "table saves")
    rp.load(path).save(path)
    left = [p.name for p in folder.iterdir() if p.name.startswith(".table")]
    return {"kills": count, "jobs": count, "other bytes": wrong, "files left behind": len(left), "rows": last}


def races(folder: Path, count: int) -> dict[str, object]:
    """Start two corrects of one output at once; return how they ended."""
    rows = np.random.default_rng(1).dirichlet(np.ones(10), 400_000).astype(np.float32)
    np.save(folder / "in.npy", rows)
    (folder / "counts.json").write_text(json.dumps([1] * 10))
    jobs = []
    for name, prior in (("a", range(1, 11)), ("b", range(11, 1, -1))):
        (folder / f"{name}.json").write_text(json.dumps(list(prior)))
        jobs.append(["correct", folder / "in.npy", "-s", folder / "counts.json", "--prior", folder / f"{name}.json"])
        run([*jobs[-1], "-o", folder / f"{name}.npy"])
    refused = mixed = failed = both_done = 0
    for race in range(count):
        out = folder / "out.npy"
        both = [subprocess.Popen([*PROGRAM, *map(str, [*job, "-o", out])], stdout=subprocess.DEVNULL,
                                 stderr=subprocess.PIPE) for job in jobs]  # fmt: skip
        said = [process.communicate()[1] for process in both]
        codes = [process.returncode for process in both]
        refused += sum(b"one run at a time" in text for text in said)
        both_done += codes == [0, 0]  # neither was refused, so the lock was free when the second came
        failed += codes not in ([0, 0], [0, 1], [1, 0])
        whole = [name for code, name in zip(codes, "ab", strict=True) if code == 0]
        mixed += not any(same(out, folder / f"{name}.npy") for name in whole)
        out.unlink()
        _record.progress(race + 1, count, "races")
    left = [p.name for p in folder.iterdir() if p.name.startswith(".")]
    return {"races": count, "second refused": refused, "one after the other": both_done, "mixed or wrong": mixed,
            "failed otherwise": failed, "files left behind": len(left)}  # fmt: skip


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--count", type=int, default=100, help="kills of each kind, and races")
    given.add_argument("--only", choices=KINDS, help="one kind; what is stored of the others stays")
    count, only = given.parse_args().count, given.parse_args().only
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parents[1] / "src"),
                                                             os.environ.get("PYTHONPATH")]))  # fmt: skip
    rng = np.random.default_rng(7)
    rows = rng.dirichlet(np.ones(10), 400_000).astype(np.float32)
    figures: dict[str, dict[str, object]] = {}
    with tempfile.TemporaryDirectory() as name:
        for what in KINDS if only is None else [only]:
            folder = Path(name) / what.replace(" ", "-")
            folder.mkdir()
            (folder / "counts.json").write_text(json.dumps([3, *[1] * 9]))
            (folder / "prior.json").write_text(json.dumps(list(range(1, 11))))
            source = ["-s", folder / "counts.json", "--prior", folder / "prior.json"]
            if what == "correct NPY":
                np.save(folder / "in.npy", np.tile(rows, (4, 1)))
                figures[what] = commands(folder, rng, what, ["correct", folder / "in.npy", *source], count)
            elif what == "correct Parquet parts":
                (folder / "in").mkdir()
                lists = pa.FixedSizeListArray.from_arrays(pa.array(rows.ravel()), 10)
                for i in range(20):
                    part = pa.table({"id": np.arange(20_000), "proba": lists[20_000 * i :][:20_000]})
                    pq.write_table(part, folder / "in" / f"{i:02}.parquet")
                figures[what] = commands(folder, rng, what, ["correct", folder / "in", *source], count)
            elif what == "stream":
                y = np.array([rng.choice(10, p=p / p.sum()) for p in rows[:2000].astype(float)])
                np.savez(folder / "held.npz", proba=rows[:2000], y=y)
                lines = (json.dumps(row) for row in rows[:20_000].tolist())
                (folder / "in").write_text("".join(f"{line}\n" for line in lines))
                job = ["stream", folder / "in", "-s", folder / "held.npz", "--calibrate", "bcts", "--alarm"]
                figures[what] = commands(folder, rng, what, [*job, "--save-every", 0.02], count)
            elif what == "table saves":
                figures[what] = table(folder, rng, count)
            else:
                figures[what] = races(folder, count)
            store(figures)


def store(figures: dict[str, dict[str, object]]) -> None:
    """Store what there is so far beside what was stored: a long run that is stopped has not run for nothing."""
    path = _record.RESULTS / "kills.json"
    before = json.loads(path.read_text())["figures"] if path.exists() else {}
    figures = {what: (before | figures)[what] for what in KINDS if what in before | figures}
    heads = ["kills", "jobs", "other bytes", "files left behind"]
    lines = [[what, *(str(row[head]) for head in heads)] for what, row in figures.items() if "kills" in row]
    text = _record.markdown(["killed", *heads], lines)
    if "two corrects at once" in figures:
        pairs = "; ".join(f"{key} {value}" for key, value in figures["two corrects at once"].items())
        text += f"\n\nTwo corrects at once: {pairs}."
    _record.store("kills", {"figures": figures}, text)


if __name__ == "__main__":
    main()
