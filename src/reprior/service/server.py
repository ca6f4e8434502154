"""Uvicorn with what it lacks: limits on how long the head of a request may take, and how long it may be."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from reprior.service.access import Access
from reprior.service.app import App
from reprior.service.hub import Hub
from reprior.service.settings import Settings

HEAD_SECONDS = 20.0
HEAD_BYTES = 64 << 10  # before the end of the head is seen
CONNECTIONS = 2_000


def most_connections() -> int:
    """Return how many connections may be open: the process needs some of its file descriptors for other things."""
    try:
        from resource import RLIMIT_NOFILE, getrlimit
    except ImportError:  # Windows
        return CONNECTIONS
    allowed = getrlimit(RLIMIT_NOFILE)[0]
    return CONNECTIONS if allowed < 0 else max(16, min(CONNECTIONS, allowed - 100))


def protocol(head_seconds: float, most: int) -> type:
    """Return uvicorn's protocol that closes connections which send no complete head, and idle ones if there are many.

    Idle connections may not keep others out: health must be answered while thousands are held open.
    """

    def connection_made(self: Any, transport: Any) -> None:
        HttpToolsProtocol.connection_made(self, transport)
        wait(self)
        if len(self.connections) > most:
            make_room(self)

    def make_room(self: Any) -> None:
        """Close the connection that has been idle longest; this one, if none is idle."""
        idle = [one for one in self.connections if one.cycle is None or one.cycle.response_complete]
        min(idle, key=lambda one: one.heard_at, default=self).transport.close()

    def data_received(self: Any, data: bytes) -> None:
        self.heard_at = self.loop.time()
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

    def on_message_complete(self: Any) -> None:
        self.scope["arrived"] = True
        HttpToolsProtocol.on_message_complete(self)

    def connection_lost(self: Any, exc: Exception | None) -> None:
        stop(self)
        HttpToolsProtocol.connection_lost(self, exc)

    def wait(self: Any) -> None:
        self.head_bytes, self.heard_at = 0, self.loop.time()
        self.head_timer = self.loop.call_later(head_seconds, self.transport.close)

    def stop(self: Any) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    return type("Protocol", (HttpToolsProtocol,), {
        "head_timer": None, "head_bytes": 0, "heard_at": 0.0, "connection_made": connection_made,
        "data_received": data_received, "on_headers_complete": on_headers_complete,
        "on_message_complete": on_message_complete, "connection_lost": connection_lost,
    })  # fmt: skip


class Server(uvicorn.Server):  # type: ignore[misc]
    """A server that ends, and says that it `failed`, when its streams cannot be stored any more."""

    failed = False

    def give_up(self) -> None:
        """End in order; posts that wait are answered before."""
        self.failed = self.should_exit = True

    @property
    def access(self) -> Access:
        """Who may do what; it can change while the server runs."""
        access: Access = self.config.app.settings.access
        return access


def make(
    settings: Settings, host: str, port: int, *, head_seconds: float = HEAD_SECONDS, hub: Hub | None = None
) -> Server:
    """Return a server that is ready to run; nothing about requests goes to its log."""
    app = App(settings, hub)
    server = Server(uvicorn.Config(
        app, host=host, port=port, http=protocol(head_seconds, most_connections()), ws="none", access_log=False,
        log_level="warning", server_header=False, timeout_keep_alive=30, proxy_headers=False,
        timeout_graceful_shutdown=5, lifespan="on", log_config=None,
    ))  # fmt: skip
    app.on_fatal = server.give_up
    return server


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
