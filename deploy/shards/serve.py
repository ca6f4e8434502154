"""Several server processes behind one nginx: each stream belongs to one process, chosen by its name.

    python deploy/shards/serve.py --folder /var/lib/reprior --shards 4 --port 8733

Every process has its own file, `shard-1.db` and so on. nginx hashes the name in `/streams/{name}` and
`/v2/models/{name}`, so all requests for a stream reach the same process. Keep the number of shards: with another number
most names belong to another process. The page, `/metrics` and `/healthz` of a process are at `/shard/1/` and so on;
`/` shows the first. Needs nginx. SIGTERM ends everything in order.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.request import urlopen

CONF = """
daemon off;
worker_processes auto;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 10000; }}
http {{
    access_log off;
    client_max_body_size 32m;
    client_body_temp_path {folder}/nginx-body;
    proxy_temp_path {folder}/nginx-proxy;
    fastcgi_temp_path {folder}/nginx-fastcgi;
    uwsgi_temp_path {folder}/nginx-uwsgi;
    scgi_temp_path {folder}/nginx-scgi;
    map $uri $stream {{
        default "";
        ~^/(?:streams|v2/models)/(?<name>[^/]+) $name;
    }}
    upstream by_stream {{
        hash $stream;
        {servers}
        keepalive 256;
    }}
    {singles}
    server {{
        listen {host}:{port};
        proxy_http_version 1.1;
        proxy_set_header Connection "";
        proxy_set_header Host $http_host;
        proxy_set_header X-Forwarded-For $remote_addr;
        proxy_read_timeout 1h;
        proxy_next_upstream off;
        location ~ ^/(streams|v2/models)/. {{ proxy_pass http://by_stream; }}
        location / {{ proxy_pass http://shard_1; }}
        {locations}
    }}
}}
"""


def configuration(folder: Path, host: str, port: int, ports: list[int]) -> str:
    """Return the configuration of nginx for server processes at these ports."""
    numbered = list(enumerate(ports, 1))
    server = "server 127.0.0.1:{} max_fails=0;"
    return CONF.format(
        folder=folder, host=host, port=port,
        servers="\n        ".join(server.format(each) for each in ports),
        singles="\n    ".join(f"upstream shard_{k} {{ {server.format(each)} keepalive 64; }}" for k, each in numbered),
        locations="\n        ".join(f"location /shard/{k}/ {{ proxy_pass http://shard_{k}/; }}" for k, _ in numbered),
    )  # fmt: skip


def answers(port: int) -> bool:
    """Return whether a server process is healthy."""
    try:
        with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False


def wait_until(ready: list[int], processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until all ports answer; give up if a process ends."""
    while not all(map(answers, ready)):
        if any(process.poll() is not None for process in processes):
            raise SystemExit("A process ended. Its own message says why.")
        time.sleep(0.1)


def main() -> int:
    """Run the processes until one ends or a signal comes; return an exit code."""
    given = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    given.add_argument("--folder", type=Path, required=True, help="where the files are")
    given.add_argument("--shards", type=int, default=os.cpu_count(), help="server processes")
    given.add_argument("--host", default="127.0.0.1", help="address of nginx")
    given.add_argument("--port", type=int, default=8733, help="port of nginx; the processes use the next ones")
    options, more = given.parse_known_args()  # the rest goes to `reprior serve`, such as --token-file
    if shutil.which("nginx") is None:
        raise SystemExit("nginx is needed. Install it, as by `apt-get install nginx-light`.")
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    ports = [options.port + k for k in range(1, options.shards + 1)]
    (folder / "nginx.conf").write_text(configuration(folder, options.host, options.port, ports))
    serve = [sys.executable, "-m", "reprior", "serve", "--proxy", "127.0.0.1", "--allow-host", options.host, *more]
    processes = [subprocess.Popen([*serve, "--db", str(folder / f"shard-{k}.db"), "--port", str(port)],
                                  stdout=subprocess.DEVNULL) for k, port in enumerate(ports, 1)]  # fmt: skip
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit(0))
    try:
        wait_until(ports, processes)
        processes.append(subprocess.Popen(["nginx", "-p", str(folder), "-c", str(folder / "nginx.conf")]))
        wait_until([options.port], processes)
        print(f"Listening at http://{options.host}:{options.port}/ with {options.shards} shards", flush=True)
        while all(process.poll() is None for process in processes):
            time.sleep(0.5)
        return 1
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)


if __name__ == "__main__":
    raise SystemExit(main())
