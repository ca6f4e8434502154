"""Uvicorn with what it lacks: limits on how long the head of a request may take, and how long it may be."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from reprior.service.app import create_app
from reprior.service.hub import Hub
from reprior.service.settings import Settings

HEAD_SECONDS = 20.0
HEAD_BYTES = 64 << 10  # before the end of the head is seen
CONNECTIONS = 2_000


def protocol(head_seconds: float) -> type:
    """Return uvicorn's protocol that hangs up on a client who opens a connection and does not get to the point."""

    def connection_made(self: Any, transport: Any) -> None:
        HttpToolsProtocol.connection_made(self, transport)
        wait(self)

    def data_received(self: Any, data: bytes) -> None:
        if self.head_timer is None and (self.cycle is None or self.cycle.response_complete):
            wait(self)
        HttpToolsProtocol.data_received(self, data)
        if self.head_timer is not None:
            self.head_bytes += len(data)
            if self.head_bytes > HEAD_BYTES:
                self.transport.close()

    def on_headers_complete(self: Any) -> None:
        stop(self)
        HttpToolsProtocol.on_headers_complete(self)

    def connection_lost(self: Any, exc: Exception | None) -> None:
        stop(self)
        HttpToolsProtocol.connection_lost(self, exc)

    def wait(self: Any) -> None:
        self.head_bytes = 0
        self.head_timer = self.loop.call_later(head_seconds, self.transport.close)

    def stop(self: Any) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    return type("Protocol", (HttpToolsProtocol,), {
        "head_timer": None, "head_bytes": 0, "connection_made": connection_made, "data_received": data_received,
        "on_headers_complete": on_headers_complete, "connection_lost": connection_lost,
    })  # fmt: skip


def make(
    settings: Settings, host: str, port: int, *, head_seconds: float = HEAD_SECONDS, hub: Hub | None = None
) -> uvicorn.Server:  # fmt: skip
    """Return a server that is ready to run; nothing about requests goes to its log."""
    return uvicorn.Server(uvicorn.Config(
        create_app(settings, hub), host=host, port=port, http=protocol(head_seconds), ws="none", access_log=False,
        log_level="warning", server_header=False, limit_concurrency=CONNECTIONS, timeout_keep_alive=30,
        timeout_graceful_shutdown=5, lifespan="on",
    ))  # fmt: skip


class Background:
    """A server in a thread of this process, for tests, examples and benchmarks; use it as a context.

    `url` is where it answers.
    """

    def __init__(self, settings: Settings, *, head_seconds: float = HEAD_SECONDS) -> None:
        self.server = make(settings, "127.0.0.1", 0, head_seconds=head_seconds)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._ready = threading.Event()
        self.error: BaseException | None = None
        self.url = ""

    def _run(self) -> None:
        async def serve() -> None:
            task = asyncio.create_task(self.server.serve())
            while not self.server.started and not task.done():
                await asyncio.sleep(0.005)
            if self.server.started:
                port = self.server.servers[0].sockets[0].getsockname()[1]
                self.url = f"http://127.0.0.1:{port}"
            self._ready.set()
            await task

        try:
            asyncio.run(serve())
        except BaseException as error:
            self.error = error
        finally:
            self._ready.set()

    def __enter__(self) -> Background:
        self._thread.start()
        self._ready.wait(30)
        if not self.url:
            raise RuntimeError("the server did not start") from self.error
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(30)
