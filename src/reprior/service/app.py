"""The service as an ASGI application: checks, routes, one shape for every failure, and what is counted."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match, Router

from reprior._check import InputError
from reprior.service import intake
from reprior.service.access import INGESTS
from reprior.service.errors import Missing, StoreError, place
from reprior.service.hub import Hub
from reprior.service.outgoing import Forwarder, deliver
from reprior.service.request_checks import HEADERS, Message, RequestChecks, Scope
from reprior.service.routes import routes
from reprior.service.sample_posts import post_samples, send_whole
from reprior.service.settings import Settings
from reprior.service.store import Store
from reprior.service.wire import CODES, drain, error_body, error_response

log = logging.getLogger("reprior.service")
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
    """The ASGI application: it opens the database at its start and answers every failure itself.

    Nothing else may answer a failure, or a stack trace would reach the log.
    """

    def __init__(self, settings: Settings, hub: Hub | None = None) -> None:
        self.settings, self.hub = settings, hub
        self.on_fatal: Callable[[], None] = lambda: None  # called when the server cannot continue
        self._checks, self._root = RequestChecks(settings), settings.root
        self._router = Router(routes(), lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        self.hub = hub = self.hub or open_hub(self.settings)
        self.forwarder = Forwarder(hub)
        hub.on_fatal = self.on_fatal
        hub.start()
        hub.tasks.start("webhook", partial(deliver, hub))
        hub.tasks.start("stale streams", hub.alarms.watch)
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

        assert self.hub is not None
        try:
            self._checks.check(scope)
            if b"%2f" in scope.get("raw_path", b"").lower():
                raise Missing("A name in an address must not contain a slash, not even encoded.")
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
        assert self.hub is not None
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
    """Return the streams of a database, which this process then holds; a file that cannot be served is refused."""
    store = Store(settings.db) if settings.db else None
    try:
        return Hub(settings, store)
    except BaseException as error:
        if store:
            store.close()
        if isinstance(error, StoreError):
            raise InputError(f"serve: `db` must be a file that can be read. {error}") from None
        raise
