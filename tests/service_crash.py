"""The crash test: kill -9 under load, start again, and compare with a replay that no crash disturbed."""

from __future__ import annotations

import threading
import time

import numpy as np
from service_help import Process, replay, rows_of

from reprior.client import Client
from reprior.service.upkeep import check

K = 8


def crash_run(folder, *, kills: int, seconds: float, methods=("online-ebls", "online-fmapls")) -> dict[str, int]:
    """Kill a server again and again while two clients post to two streams; return what happened.

    Every acknowledged post must be counted exactly once, and each stream must be, bit for bit, what the same rows in
    the same order give without a server. The order is told by `n` in the answers.
    """
    with Process(folder / "crash.db") as server:  # it ends with the test, however that ends
        return killed_again_and_again(server, kills, seconds, methods)


def killed_again_and_again(server: Process, kills: int, seconds: float, methods) -> dict[str, int]:
    with Client(server.url) as maker:
        for method in methods:
            maker.put(method, np.arange(1, K + 1), method=method)
    done, failed = threading.Event(), []
    logs = {(method, who): [] for method in methods for who in range(2)}

    def post(who: int) -> None:
        try:
            with Client(server.url, name=f"client-{who}", patience=120, timeout=10) as client:
                number = 0
                while not done.is_set():
                    method = methods[number % len(methods)]
                    rows = rows_of(1 + number % 17, K, seed=1_000_000 * who + number)
                    response = client.send(method, rows)
                    assert response.gap is None
                    logs[method, who].append((response.counted_at if response.repeated else response.n, rows, response))
                    number += 1
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=post, args=(who,)) for who in range(2)]
    for thread in threads:
        thread.start()
    rng = np.random.default_rng(0)
    for _ in range(kills):
        time.sleep(seconds * rng.uniform(0.3, 1.7))
        server.kill()
        server.start()
    time.sleep(seconds)
    done.set()
    for thread in threads:
        thread.join(150)
    assert not failed, failed
    repeated = 0
    with Client(server.url) as client:
        for method in methods:
            posts = sorted(logs[method, 0] + logs[method, 1], key=lambda entry: entry[0])
            ends = np.cumsum([len(rows) for _, rows, _ in posts])
            assert [n for n, _, _ in posts] == ends.tolist()  # each counted once, none lost, none twice
            stream = replay(np.arange(1, K + 1), [rows for _, rows, _ in posts], method)
            answer = client.get(method)
            assert answer["n"] == stream.n
            assert answer["prior"] == stream.prior.tolist()
            repeated += sum(response.repeated for _, _, response in posts)
    server.kill()
    report = check(server.db)
    assert report.problems == []
    assert "Traceback" not in server.log.read_text()
    return {"posts": sum(map(len, logs.values())), "repeated": repeated, **report.rows}
