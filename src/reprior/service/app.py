"""The service over HTTP: short bodies over the hub, one a route."""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Match, Mount, Route, Router
from starlette.staticfiles import StaticFiles

from reprior._check import check_choice, fail
from reprior.service import inference, intake, kinds, metrics, views
from reprior.service.commits import Unavailable
from reprior.service.events import events
from reprior.service.guard import Asgi, guarded
from reprior.service.hub import Hub, Missing
from reprior.service.live import check_seq
from reprior.service.openapi import openapi
from reprior.service.settings import Settings
from reprior.service.store import Store
from reprior.service.webhook import deliver
from reprior.service.wire import (
    Refused,
    answer,
    body_of,
    error_body,
    error_response,
    kind_of,
    known_keys,
    parse,
    wants_msgpack,
)

log = logging.getLogger("reprior.service")
STATIC = Path(__file__).parent / "static"


def hub_of(request: Request) -> Hub:
    hub: Hub = request.scope["app"].hub
    return hub


async def read_body(request: Request) -> bytes:
    limits = hub_of(request).settings.limits
    return await body_of(request, limits.body, limits.body_seconds)


async def read_object(request: Request, caller: str, keys: tuple[str, ...]) -> dict[str, Any]:
    value = parse(await read_body(request), kind_of(request), caller)
    known_keys(value, keys, caller)
    return value


async def put_stream(request: Request) -> Response:
    hub, name = hub_of(request), kinds.check_name(request.path_params["name"])
    body, limits = await read_body(request), hub.settings.limits
    if kind_of(request) == "application/octet-stream":
        made = kinds.saved(body, request.query_params, limits)
    else:
        made = kinds.described(parse(body, kind_of(request), "PUT"), limits)
    new = await hub.create(name, made.stream, made.source, classes=made.classes, alarm=made.alarm)
    told = await views.detailed(hub, hub.get(name), diagnosis=False)
    return answer({"new": new, **told}, 201 if new else 200)


async def get_stream(request: Request) -> Response:
    hub = hub_of(request)
    wanted = check_choice(request.query_params.get("diagnosis", "1"), "GET", "diagnosis", ("0", "1"))
    return answer(await views.detailed(hub, hub.get(request.path_params["name"]), diagnosis=wanted == "1"))


async def delete_stream(request: Request) -> Response:
    hub, name = hub_of(request), request.path_params["name"]
    if name not in hub.unreadable:
        hub.get(name)
    body = await read_object(request, "DELETE", ("confirm",))
    if body.get("confirm") != name:
        fail("DELETE", "confirm", f"be the stream's own name, {name!r}", repr(body.get("confirm"))[:80],
             remedy="All that it has learned goes with it")  # fmt: skip
    await hub.delete(name)
    return answer({"deleted": name})


async def post_samples(request: Request) -> Response:
    body = await read_object(request, "samples", ("proba", "dtype", "client", "seq", "correct"))
    if "proba" not in body:
        fail("samples", "proba", "be a list of rows", "nothing")
    client, seq = check_seq(body.get("client"), body.get("seq"))
    correct = body.get("correct", True)
    if not isinstance(correct, bool):
        fail("samples", "correct", "be true or false", repr(correct)[:80])
    told = await hub_of(request).samples(
        request.path_params["name"], body["proba"], client, seq, dtype=body.get("dtype"), correct=correct
    )
    return answer(told.fields(), packed=wants_msgpack(request))


async def post_labels(request: Request) -> Response:
    body = await read_object(request, "labels", ("proba", "dtype", "y", "client", "seq"))
    client, seq = check_seq(body.get("client"), body.get("seq"))
    told = await hub_of(request).labels(
        request.path_params["name"], body.get("proba"), body.get("y"), client, seq, body.get("dtype")
    )
    return answer(told.fields(), packed=wants_msgpack(request))


async def get_streams(request: Request) -> Response:
    return answer(await views.listed(hub_of(request), request.query_params))


async def get_history(request: Request) -> Response:
    hub = hub_of(request)
    return answer(await views.history(hub, hub.get(request.path_params["name"]), request.query_params))


async def get_alarms(request: Request) -> Response:
    hub = hub_of(request)
    return answer({"alarms": await hub.alarms(hub.get(request.path_params["name"]))})


async def acknowledge(request: Request) -> Response:
    hub = hub_of(request)
    body = await read_object(request, "acknowledge", ("by", "note", "next"))
    by, note = body.get("by"), body.get("note", "")
    for name, text, most, least in (("by", by, 200, 1), ("note", note, 2000, 0)):
        if not isinstance(text, str) or not least <= len(text) <= most:
            fail("acknowledge", name, f"be a text of {least} to {most} characters", repr(text)[:80])
    then = check_choice(body.get("next", "restart"), "acknowledge", "next", ("restart", "accept"))
    told = await hub.acknowledge(request.path_params["name"], request.path_params["id"], str(by), str(note), then)
    return answer(told)


async def get_events(request: Request) -> Response:
    hub, name = hub_of(request), request.query_params.get("stream")
    if name is not None:
        hub.get(name)
    if hub.watchers >= hub.settings.limits.watchers:
        raise Refused(503, f"At most {hub.settings.limits.watchers} event streams are served at once.")

    async def counted() -> AsyncIterator[bytes]:
        hub.watchers += 1
        try:
            async for part in events(hub, name):
                yield part
        finally:
            hub.watchers -= 1

    return StreamingResponse(counted(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})


async def get_metrics(request: Request) -> Response:
    return Response(metrics.exposition(hub_of(request)), media_type=metrics.CONTENT_TYPE)


async def health(request: Request) -> Response:
    hub = hub_of(request)
    undelivered = 0
    if hub.store is not None and hub.settings.webhook is not None:
        undelivered = await hub.in_reader(hub.store.undelivered)
    told = {"ok": hub.trouble is None, "trouble": hub.trouble, "streams": len(hub.streams),
            "unreadable": sorted(hub.unreadable), "clock_ahead": round(hub.clock.ahead, 3),
            "undelivered": undelivered}  # fmt: skip
    return answer(told, 200 if hub.trouble is None else 503)


async def post_event(request: Request) -> Response:
    hub, body = hub_of(request), await read_body(request)
    request.scope["app"].forwarder.put(request.headers, body)
    return answer(await inference.take_event(hub, request.headers, body))


async def post_infer(request: Request) -> Response:
    name, length = request.path_params["name"], request.headers.get(inference.LENGTH)
    return await inference.infer(hub_of(request), name, await read_body(request), length)


async def get_model(request: Request) -> Response:
    return answer(inference.model(hub_of(request).get(request.path_params["name"])))


async def model_ready(request: Request) -> Response:
    hub_of(request).get(request.path_params["name"])
    return answer({"name": request.path_params["name"], "ready": True})


async def server_live(request: Request) -> Response:
    return answer({"live": True})


async def server_ready(request: Request) -> Response:
    trouble = hub_of(request).trouble
    if trouble:
        raise Unavailable(trouble)
    return answer({"ready": True})


async def server_about(request: Request) -> Response:
    return answer({"name": "reprior", "version": version("reprior"), "extensions": ["binary_tensor_data"]})


async def get_openapi(request: Request) -> Response:
    return answer(openapi())


async def get_page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


def routes() -> list[Any]:
    """Return every route of the service."""
    stream = "/streams/{name}"
    return [
        Route("/", get_page),
        Route("/healthz", health),
        Route("/metrics", get_metrics),
        Route("/events", get_events),
        Route("/streams", get_streams),
        Route(stream, put_stream, methods=["PUT"]),
        Route(stream, get_stream),
        Route(stream, delete_stream, methods=["DELETE"]),
        Route(f"{stream}/samples", post_samples, methods=["POST"]),
        Route(f"{stream}/labels", post_labels, methods=["POST"]),
        Route(f"{stream}/history", get_history),
        Route(f"{stream}/alarms", get_alarms),
        Route(f"{stream}/alarms/{{id:int}}/acknowledge", acknowledge, methods=["POST"]),
        Route("/events/cloudevents", post_event, methods=["POST"]),
        Route("/v2", server_about),
        Route("/v2/health/live", server_live),
        Route("/v2/health/ready", server_ready),
        Route("/v2/models/{name}", get_model),
        Route("/v2/models/{name}/ready", model_ready),
        Route("/v2/models/{name}/infer", post_infer, methods=["POST"]),
        Route("/v2/models/{name}/versions/1", get_model),
        Route("/v2/models/{name}/versions/1/ready", model_ready),
        Route("/v2/models/{name}/versions/1/infer", post_infer, methods=["POST"]),
        Route("/openapi.json", get_openapi),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]


def expected(error: Exception) -> Response:
    """Return the answer for an error: the sentence of those that are known, nothing of those that are not."""
    known = error_response(error)
    if known is not None:
        return known
    if isinstance(error, HTTPException):
        said = {404: "There is nothing at this address.", 405: "This address does not take this method."}
        text = said.get(error.status_code, str(error.detail))
        return Response(error_body(error.status_code, text), error.status_code, error.headers,
                        media_type="application/json")  # fmt: skip
    last = traceback.extract_tb(error.__traceback__)[-1]
    log.error("unexpected %s in %s, line %s", type(error).__name__, last.name, last.lineno)
    return Response(error_body(500, "The server has a fault. Its log says where."), 500, media_type="application/json")


class App:
    """The ASGI application: it opens the database at its start and answers every failure itself.

    Nothing else may answer a failure, or a stack trace would reach the log.
    """

    def __init__(self, settings: Settings, hub: Hub | None = None) -> None:
        self.settings, self.hub = settings, hub
        self._router = Router(routes(), lifespan=self._lifespan)

    @asynccontextmanager
    async def _lifespan(self, _: Any) -> AsyncIterator[None]:
        self.hub = self.hub or open_hub(self.settings)
        self.forwarder = inference.Forwarder(self.hub)
        self.hub.start()
        others = [asyncio.create_task(work) for work in self._work()]
        try:
            yield
        finally:
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await self.hub.stop()

    def _allowed(self, scope: Any) -> str:
        """Return the methods that an address takes; one of its routes alone does not know the others."""
        fits = [route for route in self._router.routes if route.matches(scope)[0] != Match.NONE]
        return ", ".join(sorted({method for route in fits for method in getattr(route, "methods", ())}))

    def _work(self) -> list[Any]:
        """Return what runs beside the requests."""
        assert self.hub is not None
        work: list[Any] = [deliver(self.hub), self.forwarder.run()]
        work += [intake.run(self.hub, url) for url in self.settings.intakes]
        if self.settings.demo:
            from reprior.service.demo import feed

            work.append(feed(self.hub))
        return work

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        begun = False

        async def sending(message: Any) -> None:
            nonlocal begun
            begun = True
            await send(message)

        scope["app"] = self
        try:
            if b"%2f" in scope.get("raw_path", b"").lower():
                raise Missing("No name in an address holds a slash, however it is written.")
            await self._router(scope, receive, sending)
        except Exception as error:
            if scope["type"] != "http":
                raise
            response = expected(error)
            if response.status_code == 405:
                response.headers["Allow"] = self._allowed(scope)
            if not begun:
                await response(scope, receive, send)


def open_hub(settings: Settings) -> Hub:
    """Return the streams of a database, which this process then holds; a file that cannot be served is refused."""
    store = Store(settings.db) if settings.db else None
    try:
        return Hub(settings, store)
    except BaseException:
        if store:
            store.close()
        raise


def create_app(settings: Settings, hub: Hub | None = None) -> Asgi:
    """Return the service as an ASGI application; without a hub it opens its own when it starts."""
    return guarded(App(settings, hub), settings)
