"""The routes of the service: short bodies over the hub."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from reprior._check import check_choice, fail
from reprior.service import alarm_routes, inference, kinds, metrics, overview, views
from reprior.service.alarm_routes import address
from reprior.service.commits import Unavailable
from reprior.service.definition import Recipe
from reprior.service.events import events
from reprior.service.openapi import openapi
from reprior.service.posts import Post
from reprior.service.receipts import check_seq
from reprior.service.sample_posts import post_samples
from reprior.service.wire import (
    Refused,
    answer,
    hub_of,
    kind_of,
    parse,
    read_body,
    read_object,
    wants_msgpack,
)

STATIC = Path(__file__).parent / "static"


async def recipe_in(request: Request, caller: str, beside: tuple[str, ...] = ()) -> Recipe:
    """Return the recipe of a stream in a request; `beside` are parameters of the query that are for others."""
    hub = hub_of(request)
    body, limits, kind = await read_body(request), hub.settings.limits, kind_of(request)
    query = {key: value for key, value in request.query_params.items() if key not in beside}

    def make() -> Recipe:  # a fit of seconds: not in the thread that answers everybody
        if kind == "application/octet-stream":
            return kinds.saved(body, query, limits)
        return kinds.described(parse(body, kind, caller), limits)

    return await hub.workers.make(make)


async def put_stream(request: Request) -> Response:
    hub, name = hub_of(request), kinds.check_name(request.path_params["name"])
    new = await hub.create(name, await recipe_in(request, "PUT"))
    about = await views.detailed(hub, hub.get(name), diagnosis=False)
    return answer({"new": new, **about}, 201 if new else 200)


async def post_version(request: Request) -> Response:
    """Begin a new model version of a stream, made of the same as a new stream."""
    hub, name = hub_of(request), request.path_params["name"]
    hub.get(name)
    by = request.query_params.get("by", "")
    if len(by) > 200 or not (by.isprintable() or not by):
        fail("versions", "by", "be at most 200 printable characters", repr(by)[:80])
    recipe = await recipe_in(request, "versions", ("by",))
    if recipe.stream.n:
        fail("versions", "body", "hold a stream without samples, or a pipeline", f"one with {recipe.stream.n} samples")
    new = await hub.renew(name, recipe, by, address(request))
    about = await views.detailed(hub, hub.get(name), diagnosis=False)
    return answer({"new": new, **about}, 201 if new else 200)


async def get_versions(request: Request) -> Response:
    hub = hub_of(request)
    return answer({"versions": await views.versions(hub, hub.get(request.path_params["name"]))})


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


async def post_labels(request: Request) -> Response:
    body = await read_object(request, "labels", ("proba", "ids", "dtype", "y", "client", "seq"))
    client, seq = check_seq(body.get("client"), body.get("seq"))
    post = Post(body.get("proba"), client, seq, body.get("dtype"), ids=body.get("ids"))
    learned = await hub_of(request).posts.labels(request.path_params["name"], post, body.get("y"))
    packed = wants_msgpack(request.headers.get("accept", ""), kind_of(request))
    return answer(learned.fields(), packed=packed)


async def get_streams(request: Request) -> Response:
    return answer(await views.listed(hub_of(request), request.query_params))


async def get_state(request: Request) -> Response:
    """Return a stream with all that it has learned, as bytes that `reprior.load` and PUT take."""
    served = hub_of(request).get(request.path_params["name"])
    return Response(served.stream.to_bytes(), media_type="application/octet-stream")


async def get_history(request: Request) -> Response:
    hub = hub_of(request)
    return answer(await views.history(hub, hub.get(request.path_params["name"]), request.query_params))


UNBUFFERED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # a proxy must pass events on at once


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

    return StreamingResponse(counted(), media_type="text/event-stream", headers=UNBUFFERED)


async def get_metrics(request: Request) -> Response:
    return Response(await metrics.exposition(hub_of(request)), media_type=metrics.CONTENT_TYPE)


async def sample_route(request: Request) -> Response:
    """Answer a post of samples that did not take the direct way."""
    kind, body = await post_samples(hub_of(request), request.scope, request.receive)
    return Response(body, media_type=kind.decode())


async def health(request: Request) -> Response:
    hub = hub_of(request)
    undelivered, _ = await hub.alarms.undelivered()
    about = {"streams": len(hub.streams), "unreadable": sorted(hub.unreadable), "undelivered": undelivered}
    return answer(overview.health(hub) | about, 200 if hub.trouble is None else 503)


async def post_event(request: Request) -> Response:
    hub, body = hub_of(request), await read_body(request)
    request.scope["app"].forwarder.put(request.headers, body)
    return answer(await inference.take_event(hub, request.headers, body, request.scope))


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
        Route(f"{stream}/samples", sample_route, methods=["POST"]),
        Route(f"{stream}/labels", post_labels, methods=["POST"]),
        Route(f"{stream}/history", get_history),
        Route(f"{stream}/state", get_state),
        Route(f"{stream}/versions", post_version, methods=["POST"]),
        Route(f"{stream}/versions", get_versions),
        *alarm_routes.routes(),
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
