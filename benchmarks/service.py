"""Samples a second through the service, durable and not; latency at half load; many streams; memory; the page.

    python benchmarks/service.py [cost|quiet|throughput|streams|soak|page|kills ...]

The server runs in a process of its own, the clients in others, all on the same cores. "Without storage" is the same
server with no database: everything but the commit. `page` needs chromium and its driver. `quiet` compares with the
code in the folder REPRIOR_AGAINST, if that is set. `kills` ends the server by kill -9 under load, 45 times.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing as mp
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path

import _record  # first: it sets the threads of BLAS
import numpy as np

K, BATCH = 100, 256
MARKS = "return performance.getEntriesByName('reprior-list').map(m => m.startTime)"
PAINT = "return performance.getEntriesByName('first-contentful-paint')[0].startTime"
SERVER = """
import asyncio, sys
if sys.argv[1] != "-":
    from reprior.cli import main
    sys.argv = ["reprior", "serve", "--db", sys.argv[1], "--port", sys.argv[2], "--max-rate", "1e9"]
    sys.exit(main())
from reprior.service.server import make
from reprior.service.settings import Limits, Settings
server = make(Settings(None, limits=Limits(rate=1e9)), "127.0.0.1", int(sys.argv[2]))
import uvloop
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(server.serve())
"""


NOTHING = """
import sys, uvicorn
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route
async def nothing(request):
    await request.body()
    return Response(b"{}", media_type="application/json")
app = Starlette(routes=[Route("/healthz", nothing), Route("/streams/{name}/samples", nothing, methods=["POST"])])
uvicorn.run(app, port=int(sys.argv[2]), access_log=False, log_level="warning", http="httptools", loop="uvloop")
"""


class Server:
    """A server process; `rss` is its memory and `cpu` the seconds it has worked."""

    def __init__(self, db: Path | None, code: str = SERVER, source: str | None = None) -> None:
        with socket.socket() as made:
            made.bind(("127.0.0.1", 0))
            self.port = made.getsockname()[1]
        line = [sys.executable, "-c", code, "-" if db is None else str(db), str(self.port)]
        environment = os.environ | ({"PYTHONPATH": source} if source else {})
        self.process = subprocess.Popen(line, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = f"http://127.0.0.1:{self.port}"
        for _ in range(600):
            try:
                HTTPConnection("127.0.0.1", self.port, timeout=5).request("GET", "/healthz")
                break
            except OSError:
                time.sleep(0.05)

    def rss(self) -> float:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0]) / 1024

    def cpu(self) -> float:
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/schedstat")  # in nanoseconds, of every thread
        return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait()


def bodies(form: str, seed: int) -> list[bytes]:
    """Return posts made beforehand, so that clients cost little."""
    import msgpack

    rows = np.random.default_rng(seed).dirichlet(np.full(K, 0.1), (8, BATCH)).astype("<f4")
    if form == "msgpack":
        return [msgpack.packb({"proba": block.tobytes()}) for block in rows]
    return [json.dumps({"proba": [[round(float(x), 7) for x in row] for row in block]}).encode() for block in rows]


def client(port: int, stream: str, form: str, seed: int, seconds: float, pause: float, out: mp.Queue) -> None:
    """Post again and again; put down how long each took."""
    made, took = bodies(form, seed), []
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    headers = {"Content-Type": f"application/{form}"}
    end, number = time.perf_counter() + seconds, 0
    due = time.perf_counter()
    while time.perf_counter() < end:
        if pause:
            due += pause
            time.sleep(max(0.0, due - time.perf_counter()))
        begun = time.perf_counter()
        connection.request("POST", f"/streams/{stream}/samples", made[number % len(made)], headers)
        answer = connection.getresponse()
        answer.read()
        if answer.status != 200:
            raise RuntimeError(answer.status)
        took.append(time.perf_counter() - begun)
        number += 1
    out.put(took)


async def send_all(port: int, requests: list[bytes], connections: int, posts: int) -> list[float]:
    """Send posts over some connections, each again as soon as it was answered; return how long each took."""
    left, took = posts, []

    async def one(first: int) -> None:
        nonlocal left
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        number = first
        while left > 0:
            left -= 1
            begun = time.perf_counter()
            writer.write(requests[number % len(requests)])
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(head[:200])
            await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
            took.append(time.perf_counter() - begun)
            number += connections
        writer.close()

    await asyncio.gather(*(one(k) for k in range(connections)))
    return took


def posts_for(streams: list[str], k: int, batch: int, form: str, alpha: float = 0.1) -> list[bytes]:
    """Return whole HTTP requests, several for each stream."""
    import msgpack

    rng, made = np.random.default_rng(0), []
    for name in streams:
        for rows in rng.dirichlet(np.full(k, alpha), (8, batch)).astype("<f4"):
            body = (msgpack.packb({"proba": rows.tobytes()}) if form == "msgpack" else
                    json.dumps({"proba": [[round(float(x), 7) for x in row] for row in rows]}).encode())  # fmt: skip
            head = f"POST /streams/{name}/samples HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/{form}\r\n"
            made.append(head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return made


def load_all(port: int, requests: list[bytes], connections: int, posts: int) -> list[float]:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(send_all(port, requests, connections, posts))


def in_turn(servers: dict[str, Server], requests: list[bytes], connections: int, posts: int, rounds: int) -> dict:
    """Load servers in turn, so that what else the machine does falls on all of them; return the runs of each."""
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in servers}
    for number in range(rounds + 1):
        for kind, server in servers.items():
            busy, begun = server.cpu(), time.perf_counter()
            took = load_all(server.port, requests, connections, posts)
            seconds = time.perf_counter() - begun
            if number:  # the first round warms up
                runs[kind].append({
                    "posts_per_second": posts / seconds, "cpu_us_per_post": 1e6 * (server.cpu() - busy) / posts,
                    "p50_ms": 1000 * float(np.quantile(took, 0.5)), "p99_ms": 1000 * float(np.quantile(took, 0.99)),
                    "memory_mb": server.rss(),
                })  # fmt: skip
    return runs


def medians(runs: dict) -> dict[str, dict[str, float]]:
    return {kind: {key: float(np.median([run[key] for run in each])) for key in each[0]} for kind, each in runs.items()}


def cost(connections: int = 32, rounds: int = 15) -> None:
    """CPU of a durable post over an endpoint that reads the body and does nothing, in one run."""
    figures, lines = {}, []
    for k in (10, 100):
        for form in ("json", "msgpack"):
            for batch in (1, 32, 256):
                posts = {1: 1200, 32: 800, 256: 300}[batch] // (1 if k == 10 else 2)
                with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "n.db", NOTHING) as noop, \
                        Server(Path(folder) / "s.db") as server:  # fmt: skip
                    put(server.port, "bench", {"source": [1.0] * k})
                    requests = posts_for(["bench"], k, batch, form)
                    runs = in_turn({"nothing": noop, "post": server}, requests, connections, posts, rounds)
                nothing, post = (each["cpu_us_per_post"] for each in medians(runs).values())
                spent = {kind: [run["cpu_us_per_post"] for run in each] for kind, each in runs.items()}
                figures[f"K={k} {form} batch={batch}"] = {"cpu_us_per_post": spent, "ratio": post / nothing}
                lines.append([str(k), form, str(batch), f"{nothing:.0f}", f"{post:.0f}", f"{post / nothing:.1f}"])
                print(lines[-1], flush=True)
    head = ["classes", "form", "samples per post", "CPU µs, no-op", "CPU µs, durable post", "ratio"]
    _record.store("service_cost", {"connections": connections, "figures": figures}, _record.markdown(head, lines))


def quiet(count: int = 1_000, posts: int = 1_000, connections: int = 32, rounds: int = 20) -> None:
    """Posts of one sample per second to many streams that are watched for a shift; with the old code in turn."""
    rng = np.random.default_rng(0)
    rows = rng.dirichlet(np.full(10, 0.3), 200)
    body = {"heldout": {"proba": rows.tolist(), "y": [int(rng.choice(10, p=row)) for row in rows]}}
    made = posts_for([f"s{k}" for k in range(count)], 10, 1, "json", alpha=0.3)
    requests = [request for turn in range(8) for request in made[turn::8]]  # one post to each stream in turn
    sources = {"now": None} | ({"before": os.environ["REPRIOR_AGAINST"]} if "REPRIOR_AGAINST" in os.environ else {})
    with ExitStack() as opened:
        servers = {}
        for kind, source in sources.items():
            folder = opened.enter_context(tempfile.TemporaryDirectory())
            servers[kind] = opened.enter_context(Server(Path(folder) / "s.db", source=source))
            for k in range(count):
                put(servers[kind].port, f"s{k}", body)
        runs = in_turn(servers, requests, connections, posts, rounds)
    middle = medians(runs)
    print(middle)
    lines = [[key.replace("_", " "), *(f"{middle[kind][key]:,.1f}" for kind in middle)] for key in middle["now"]]
    head = [f"{count:,} streams with alarms, posts of 1 sample", *middle]
    _record.store("service_quiet", {"streams": count, "runs": runs}, _record.markdown(head, lines))


def put(port: int, stream: str, body: dict[str, object]) -> None:
    connection = HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("PUT", f"/streams/{stream}", json.dumps(body), {"Content-Type": "application/json"})
    assert connection.getresponse().status in (200, 201)
    connection.close()


def load(port: int, form: str, seconds: float, clients: int, pause: float = 0.0) -> list[float]:
    """Run clients and return how long their posts took."""
    out: mp.Queue = mp.Queue()
    crowd = [
        mp.Process(target=client, args=(port, "bench", form, seed, seconds, pause, out)) for seed in range(clients)
    ]
    for one in crowd:
        one.start()
    took = [x for _ in crowd for x in out.get()]
    for one in crowd:
        one.join()
    return took


def throughput(seconds: float = 4.0, clients: int = 4, repeats: int = 3) -> None:
    figures, lines = {}, []
    for method in ("online-fmapls", "online-ebls"):
        for form in ("json", "msgpack"):
            rates: dict[str, list[float]] = {"durable": [], "without storage": []}
            cpu: dict[str, list[float]] = {"durable": [], "without storage": []}
            for _ in range(repeats):  # in turn, so that what else the machine does falls on both
                for kind in rates:
                    folder = tempfile.mkdtemp()
                    with Server(Path(folder) / "s.db" if kind == "durable" else None) as server:
                        put(server.port, "bench", {"source": [1.0] * K, "method": method})
                        load(server.port, form, 0.5, 1)
                        busy = server.cpu()
                        took = load(server.port, form, seconds, clients)
                        rates[kind].append(len(took) * BATCH / seconds)
                        cpu[kind].append(1e6 * (server.cpu() - busy) / (len(took) * BATCH))
                        half = np.median(rates[kind]) / BATCH / 2
                        if kind == "durable":
                            slow = load(server.port, form, seconds, clients, clients / half)
                    shutil.rmtree(folder)
            durable, without = (float(np.median(rates[kind])) for kind in rates)
            costs = [float(np.median(cpu[kind])) for kind in cpu]
            p50, p99 = (1000 * float(np.quantile(slow, q)) for q in (0.5, 0.99))
            figures[f"{method} {form}"] = {"rates": rates, "cpu_us_a_sample": cpu, "half_load_ms": [p50, p99]}
            lines.append([method, form, f"{durable:,.0f}", f"{without:,.0f}", f"{durable / without:.0%}",
                          f"{costs[0]:.1f}", f"{costs[1]:.1f}", f"{p50:.1f}", f"{p99:.1f}"])  # fmt: skip
    head = ["method", "form", "durable, samples/s", "without storage", "share", "CPU µs a sample, durable",
            "without storage", "p50 at half load, ms", "p99, ms"]  # fmt: skip
    _record.store("service", {"classes": K, "batch": BATCH, "clients": clients, "figures": figures},
                  _record.markdown(head, lines))  # fmt: skip


def streams(count: int = 10_000, posts: int = 20_000) -> None:
    """Make many streams, post to all of them, start again, and read the list."""
    import msgpack

    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "s.db"
        with Server(db) as server:
            begun = time.perf_counter()
            connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
            for k in range(count):
                body = json.dumps({"source": [1.0] * 10, "method": "online-fmapls"})
                connection.request("PUT", f"/streams/s{k}", body, {"Content-Type": "application/json"})
                connection.getresponse().read()
            making = time.perf_counter() - begun
            rows = rng.dirichlet(np.ones(10), (64, 16)).astype("<f4")
            packed = [msgpack.packb({"proba": block.tobytes(), "correct": False}) for block in rows]
            out: mp.Queue = mp.Queue()
            crowd = [
                mp.Process(target=many, args=(server.port, packed, c, 8, count, posts // 8, out)) for c in range(8)
            ]
            begun = time.perf_counter()
            for one in crowd:
                one.start()
            took = [x for _ in crowd for x in out.get()]
            posting = time.perf_counter() - begun
            for one in crowd:
                one.join()
            memory = server.rss()
        begun = time.perf_counter()
        with Server(db) as server:
            starting = time.perf_counter() - begun
            connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
            lists = []
            for _ in range(20):
                begun = time.perf_counter()
                connection.request("GET", "/streams?limit=50&sort=shift&search=s9")
                connection.getresponse().read()
                lists.append(time.perf_counter() - begun)
    figures = {"streams": count, "made_a_second": count / making, "posts_a_second": len(took) / posting,
               "samples_a_second": 16 * len(took) / posting, "p99_ms": 1000 * float(np.quantile(took, 0.99)),
               "memory_mb": memory, "start_seconds": starting, "list_ms": 1000 * float(np.median(lists))}  # fmt: skip
    lines = [[name.replace("_", " "), f"{value:,.1f}"] for name, value in figures.items()]
    _record.store(
        "service_streams", {"figures": figures}, _record.markdown(["10 classes, posts of 16 rows", ""], lines)
    )


def many(port: int, packed: list[bytes], first: int, step: int, count: int, posts: int, out: mp.Queue) -> None:
    connection, took = HTTPConnection("127.0.0.1", port, timeout=60), []
    for k in range(posts):
        begun = time.perf_counter()
        name = (first + k * step) % count
        connection.request("POST", f"/streams/s{name}/samples", packed[k % 64], {"Content-Type": "application/msgpack"})
        connection.getresponse().read()
        took.append(time.perf_counter() - begun)
    out.put(took)


def soak(seconds: float = 120.0) -> None:
    """Post as fast as it goes, with pages and scrapes beside it, and watch the memory.

    One post a second is what a quiet stream sends; an hour of that are 3,600 posts. This run sends many times as many.
    """
    with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "s.db") as server:
        put(server.port, "bench", {"source": [1.0] * K, "method": "online-fmapls"})
        out: mp.Queue = mp.Queue()
        crowd = [
            mp.Process(target=client, args=(server.port, "bench", "msgpack", s, seconds, 0.0, out)) for s in range(2)
        ]
        for one in crowd:
            one.start()
        memory, begun = [], time.perf_counter()
        while time.perf_counter() - begun < seconds:
            connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
            for path in ("/streams/bench", "/streams/bench/history?heat=1", "/metrics", "/streams"):
                connection.request("GET", path)
                connection.getresponse().read()
            connection.close()  # a new one each time, as browsers come and go
            memory.append([round(time.perf_counter() - begun, 1), round(server.rss(), 1)])
            time.sleep(1.0)
        posts = sum(len(out.get()) for _ in crowd)
        for one in crowd:
            one.join()
        size = sum(f.stat().st_size for f in Path(folder).iterdir()) / 2**20
    early = float(np.median([m for t, m in memory if 0.2 * seconds < t < 0.4 * seconds]))
    late = float(np.median([m for t, m in memory if t > 0.8 * seconds]))
    lines = [[f"{posts:,}", f"{posts / 3600:.1f}", f"{early:.0f}", f"{late:.0f}", f"{size:.1f}"]]
    head = ["posts of 256 x 100", "hours at a post a second", "memory after a fifth, MB", "at the end, MB", "files, MB"]
    _record.store("service_soak", {"posts": posts, "memory": memory, "files_mb": size}, _record.markdown(head, lines))


def page() -> None:
    """Time an update at K=100 and the first list of 10,000 streams, in Chromium."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "browser"))
    from chromium import browser

    with tempfile.TemporaryDirectory() as folder, Server(Path(folder) / "s.db") as server:
        put(server.port, "bench", {"source": [1.0] * K, "method": "online-fmapls"})
        load(server.port, "msgpack", 4.0, 1, 0.2)
        with browser(1400, 1000) as driver:
            driver.get(f"{server.url}/#stream=bench")
            time.sleep(3)
            driver.execute_script("repriorTimings.length = 0")
            load(server.port, "msgpack", 12.0, 1, 0.1)
            took = driver.execute_script("return repriorTimings")
        connection = HTTPConnection("127.0.0.1", server.port, timeout=60)
        for k in range(10_000):
            body = json.dumps({"source": [1.0] * 5, "method": "online-fmapls"})
            connection.request("PUT", f"/streams/s{k:05d}", body, {"Content-Type": "application/json"})
            connection.getresponse().read()
        first = []
        for _ in range(5):
            with browser(1400, 1000) as driver:
                driver.get(server.url)
                for _ in range(200):
                    marks = driver.execute_script(MARKS)
                    if marks:
                        break
                    time.sleep(0.05)
                paint = driver.execute_script(PAINT)
                first.append([paint, marks[0]])
    paint, listed = np.median(np.array(first), axis=0)
    figures = {"updates": len(took), "update_ms": [float(np.quantile(took, q)) for q in (0.5, 0.95)],
               "first_paint_ms": float(paint), "list_there_ms": float(listed), "runs": first}  # fmt: skip
    middle, late = figures["update_ms"]
    lines = [["update at K=100, median", f"{middle:.1f}"], ["update at K=100, 95 %", f"{late:.1f}"],
             ["first paint, 10,000 streams", f"{paint:.0f}"],
             ["list there, 10,000 streams", f"{listed:.0f}"]]  # fmt: skip
    _record.store("service_page", figures, _record.markdown(["in Chromium", "ms"], lines))


def kills(runs: int = 9, per_run: int = 5) -> None:
    """Kill the server under load and compare what it holds with a replay that nothing disturbed."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
    from service_crash import crash_run

    totals = {"kills": 0, "posts": 0, "repeated": 0}
    for _ in range(runs):
        with tempfile.TemporaryDirectory() as folder:
            result = crash_run(Path(folder), kills=per_run, seconds=1.0)  # it fails if one post is lost or counts twice
        totals = {key: totals[key] + (result | {"kills": per_run})[key] for key in totals}
        print(totals, flush=True)
    lines = [[str(totals["kills"]), f"{totals['posts']:,}", f"{totals['repeated']:,}", "0", "0"]]
    head = ["kill -9", "posts answered", "sent again and counted once", "lost or counted twice", "other bits"]
    _record.store("service_kills", totals, _record.markdown(head, lines))


if __name__ == "__main__":
    parts = {each.__name__: each for each in (cost, quiet, throughput, streams, soak, page, kills)}
    for name in sys.argv[1:] or parts:
        parts[name]()
