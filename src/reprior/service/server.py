"""Uvicorn with what it lacks: limits on how long the head of a request may take, and how long it may be."""

from __future__ import annotations

import asyncio
import threading
import time
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


class Protocol(HttpToolsProtocol):  # type: ignore[misc]
    """Uvicorn's protocol that closes connections which send no complete head, and idle ones if there are many.

    Idle connections may not keep others out: health must be answered while thousands are held open.
    """

    head_seconds, most = HEAD_SECONDS, CONNECTIONS
    head_timer: asyncio.TimerHandle | None = None
    head_bytes, heard_at = 0, 0.0

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._await_head()
        if len(self.connections) > self.most:  # close the one that has been idle longest; this one, if none is idle
            idle = [one for one in self.connections if one.cycle is None or one.cycle.response_complete]
            min(idle, key=lambda one: one.heard_at, default=self).transport.close()

    def data_received(self, data: bytes) -> None:
        self.heard_at = self.loop.time()
        if self.head_timer is None and (self.cycle is None or self.cycle.response_complete):
            self._await_head()
        super().data_received(data)
        if self.head_timer is not None:
            self.head_bytes += len(data)
            if self.head_bytes > HEAD_BYTES:
                self.transport.close()

    def on_headers_complete(self) -> None:
        self._stop_timer()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self.scope["arrived"] = True
        super().on_message_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self.head_bytes, self.heard_at = 0, self.loop.time()
        self.head_timer = self.loop.call_later(self.head_seconds, self.transport.close)

    def _stop_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None


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
    limited = type("Protocol", (Protocol,), {"head_seconds": head_seconds, "most": most_connections()})
    server = Server(uvicorn.Config(
        app, host=host, port=port, http=limited, ws="none", access_log=False,
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
        self.error: BaseException | None = None
        self.url = ""

    def _run(self) -> None:
        try:
            self.server.run()
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Background:
        self._thread.start()
        while not self.server.started and self._thread.is_alive():
            time.sleep(0.005)
        if not self.server.started:
            raise RuntimeError("the server did not start") from self.error
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(30)
