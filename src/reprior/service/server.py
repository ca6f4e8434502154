"""The service as an ASGI application, and uvicorn to run it.

The application checks every request, answers every failure in one shape, and counts. Uvicorn gets what it lacks: limits
on how long the head of a request may take, and how long it may be.
"""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import uvicorn
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Router
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from reprior._check import InputError
from reprior.service import intake
from reprior.service.api import routes
from reprior.service.errors import Missing, StoreError, place
from reprior.service.hub import Hub
from reprior.service.outgoing import Forwarder, deliver
from reprior.service.request_checks import HEADERS, INGESTS, Message, RequestChecks, Scope
from reprior.service.sample_posts import post_samples, send_whole
from reprior.service.settings import Settings
from reprior.service.store import Store
from reprior.service.wire import CODES, drain, error_body, error_response

log = logging.getLogger("reprior.service")
HEAD_SECONDS = 20.0
HEAD_BYTES = 64 << 10  # before the end of the head is seen
CONNECTIONS = 2_000
OPEN_ENDED = "get_events"  # its duration says nothing about the server
SAMPLES = re.compile(r"/streams/[^/]+/samples")
OF_STREAM = re.compile(r"/(?:streams|v2/models)/([^/]+)")  # an address that names a stream
SENTENCES = {404: "There is nothing at this address.", 405: "This address does not take this method."}


def answer_to(error: Exception) -> Response:
    """Return the answer to an error: an expected error's own sentence, no detail of another one."""
    response = error_response(error)
    if response is not None:
        return response
    status, headers, sentence = 500, None, "Internal error. The server's log has the details."
    if isinstance(error, HTTPException):
        status, headers = error.status_code, error.headers
        sentence = SENTENCES.get(status, str(error.detail))
    else:
        log.error("unexpected %s", place(error))
    return Response(error_body(status, sentence), status, headers, media_type="application/json")


class App:
    """The ASGI application. Only it may answer a failure, or a stack trace would reach the log."""

    def __init__(self, hub: Hub) -> None:
        self.hub, self.settings, self.forwarder = hub, hub.settings, Forwarder(hub)
        self._checks, self._root = RequestChecks(hub.settings), hub.settings.root
        self._router = Router(routes(), lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        hub = self.hub
        hub.start()
        hub.tasks.start("webhook", partial(deliver, hub))
        hub.tasks.start("stale streams", hub.alarms.raise_stale)
        hub.tasks.start("forward", self.forwarder.run)
        for number, url in enumerate(self.settings.intakes, 1):
            hub.tasks.start(f"intake {number}", partial(intake.run, hub, url))
        if self.settings.demo:
            from reprior.service.demo import feed

            hub.tasks.start("demo", partial(feed, hub))
        try:
            yield
        finally:
            await hub.stop()

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        begun = time.perf_counter()
        scope["app"], scope["header_values"] = self, dict(scope["headers"])
        if self._root and scope["path"].startswith(self._root + "/"):
            scope["path"] = scope["path"][len(self._root) :]
        path, status = scope["path"], 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        try:
            self._checks.check(scope)
            if b"%2f" in scope.get("raw_path", b"").lower() or path.endswith("\n"):  # `$` of the router allows one
                raise Missing("A name in an address must not contain a slash or a line break, not even encoded.")
            if scope["method"] == "POST" and SAMPLES.fullmatch(path):  # past the router
                scope["endpoint"] = post_samples
                kind, body = await post_samples(self.hub, scope, receive)
                status = 200
                await send_whole(send, kind, body)
            else:
                await self._router(scope, receive, sending)
        except Exception as error:
            response = await self._refusal(error, scope, receive)
            if not status:
                await response(scope, receive, sending)
        endpoint = getattr(scope.get("endpoint"), "__name__", "none")
        if endpoint != OPEN_ENDED:
            self.hub.counters.request(endpoint, status, time.perf_counter() - begun)

    async def _refusal(self, error: Exception, scope: Scope, receive: Any) -> Response:
        """Return the answer for an error, once the client has sent its body: it would not read the answer before."""
        response = answer_to(error)
        if response.status_code == 405:
            response.headers["Allow"] = self._allowed(scope)
        if response.status_code != 408 and not scope.get("body_read"):
            await drain(receive, self.settings.limits.body_seconds)
        if scope["method"] == "POST" and scope["path"].endswith(INGESTS):
            named = OF_STREAM.match(scope["path"])
            name = named[1] if named else scope.get("event_stream")
            reason = CODES.get(response.status_code, "error")
            self.hub.counters.refuse(name if name in self.hub.streams else "", reason, str(error))
        return response

    def _allowed(self, scope: Any) -> str:
        """Return the methods that an address takes; one of its routes alone does not know the others."""
        fits = [route for route in self._router.routes if route.matches(scope)[0] != Match.NONE]
        return ", ".join(sorted({method for route in fits for method in getattr(route, "methods", ())}))


def open_hub(settings: Settings) -> Hub:
    """Return the streams of a database that this process holds from now on; refuse a file that cannot be served."""
    store = Store(settings.db) if settings.db else None
    try:
        return Hub(settings, store)
    except BaseException as error:
        if store:
            store.close()
        if isinstance(error, StoreError):
            raise InputError(f"serve: `db` must be a file that can be read. {error}") from None
        raise


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


def make(settings: Settings, host: str, port: int, *, head_seconds: float = HEAD_SECONDS) -> Server:
    """Open the database and return a server that is ready to run; nothing about requests goes to its log."""
    hub = open_hub(settings)
    limited = type("Protocol", (Protocol,), {"head_seconds": head_seconds, "most": most_connections()})
    server = Server(uvicorn.Config(
        App(hub), host=host, port=port, http=limited, ws="none", access_log=False,
        log_level="warning", server_header=False, timeout_keep_alive=30, proxy_headers=False,
        timeout_graceful_shutdown=5, lifespan="on", log_config=None,
    ))  # fmt: skip
    hub.on_fatal = server.give_up
    return server


class Background:
    """A server in a thread of this process, for tests, examples and benchmarks; use it as a context.

    `url` is where it answers.
    """

    def __init__(self, settings: Settings, *, head_seconds: float = HEAD_SECONDS) -> None:
        self.server = make(settings, "127.0.0.1", 0, head_seconds=head_seconds)
        self._thread = threading.Thread(target=self.server.run, daemon=True)
        self.url = ""

    def __enter__(self) -> Background:
        self._thread.start()
        while not self.server.started and self._thread.is_alive():
            time.sleep(0.005)
        if not self.server.started:
            raise RuntimeError("the server did not start")
        self.url = f"http://127.0.0.1:{self.server.servers[0].sockets[0].getsockname()[1]}"
        return self

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self._thread.join(30)
