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

from reprior._check import check_choice, check_number, fail
from reprior.service import inference, metrics, recipes, views
from reprior.service.alarm_store import Acknowledgement, Silence
from reprior.service.definition import Recipe
from reprior.service.errors import Refused, Unavailable
from reprior.service.events import events
from reprior.service.hub import Hub
from reprior.service.openapi import openapi
from reprior.service.posts import Post
from reprior.service.receipts import check_seq
from reprior.service.sample_posts import post_samples
from reprior.service.served import ServedStream
from reprior.service.wire import answer, hub_of, kind_of, parse, read_body, read_object, wants_msgpack

STATIC = Path(__file__).parent / "static"
UNBUFFERED = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # a proxy must pass events on at once
MOST_ENTRIES = 1_000  # of the audit in one answer
LONGEST_SILENCE = 366 * 86_400.0  # seconds


def named(request: Request) -> tuple[Hub, ServedStream]:
    """Return the hub and the stream that the address of a request names."""
    hub = hub_of(request)
    return hub, hub.get(request.path_params["name"])


def address(request: Request) -> str:
    """Return the address that a request came from."""
    return request.client.host if request.client else ""


# the server as a whole


async def get_page(request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def get_openapi(request: Request) -> Response:
    return answer(openapi())


async def health(request: Request) -> Response:
    hub = hub_of(request)
    undelivered, _ = await hub.alarms.undelivered()
    about = {"streams": len(hub.streams), "unreadable": sorted(hub.unreadable), "undelivered": undelivered}
    return answer(views.health(hub) | about, 200 if hub.trouble is None else 503)


async def get_metrics(request: Request) -> Response:
    return Response(await metrics.exposition(hub_of(request)), media_type=metrics.CONTENT_TYPE)


async def get_overview(request: Request) -> Response:
    return answer(await views.overview(hub_of(request)))


async def get_streams(request: Request) -> Response:
    return answer(await views.listed(hub_of(request), request.query_params))


async def get_audit(request: Request) -> Response:
    hub, query = hub_of(request), request.query_params
    most = views.whole(query, "limit", 100, 1, MOST_ENTRIES)
    store = hub.alarms.store
    return answer({"entries": [] if store is None else await hub.workers.read(store.audit, query.get("stream"), most)})


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


# one stream


async def recipe_in(request: Request, caller: str, beside: tuple[str, ...] = ()) -> Recipe:
    """Return the recipe of a stream in a request; `beside` are parameters of the query that are for others."""
    hub = hub_of(request)
    body, limits, kind = await read_body(request), hub.settings.limits, kind_of(request)
    query = {key: value for key, value in request.query_params.items() if key not in beside}

    def make() -> Recipe:  # a fit of seconds: not in the thread that answers everybody
        if kind == "application/octet-stream":
            return recipes.saved(body, query, limits)
        return recipes.described(parse(body, kind, caller), limits)

    return await hub.workers.make(make)


async def made(hub: Hub, name: str, new: bool) -> Response:
    """Return the answer to a request that makes a stream or a version of one; not `new` if it was there already."""
    about = await views.detailed(hub, hub.get(name), diagnosis=False)
    return answer({"new": new, **about}, 201 if new else 200)


async def put_stream(request: Request) -> Response:
    hub, name = hub_of(request), recipes.check_name(request.path_params["name"])
    return await made(hub, name, await hub.create(name, await recipe_in(request, "PUT")))


async def post_version(request: Request) -> Response:
    """Begin a new model version of a stream, made of the same as a new stream."""
    hub, served = named(request)
    by = request.query_params.get("by", "")
    if len(by) > 200 or not (by.isprintable() or not by):
        fail("versions", "by", "be at most 200 printable characters", repr(by)[:80])
    recipe = await recipe_in(request, "versions", ("by",))
    if recipe.stream.n:
        fail("versions", "body", "hold a stream without samples, or a pipeline", f"one with {recipe.stream.n} samples")
    return await made(hub, served.name, await hub.renew(served.name, recipe, by, address(request)))


async def get_versions(request: Request) -> Response:
    return answer({"versions": await views.versions(*named(request))})


async def get_stream(request: Request) -> Response:
    hub, served = named(request)
    wanted = check_choice(request.query_params.get("diagnosis", "1"), "GET", "diagnosis", ("0", "1"))
    return answer(await views.detailed(hub, served, diagnosis=wanted == "1"))


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


async def sample_route(request: Request) -> Response:
    """Answer a post of samples that did not take the direct way."""
    kind, body = await post_samples(hub_of(request), request.scope, request.receive)
    return Response(b"".join(body), media_type=kind.decode())


async def post_labels(request: Request) -> Response:
    body = await read_object(request, "labels", ("proba", "ids", "dtype", "y", "client", "seq"))
    client, seq = check_seq(body.get("client"), body.get("seq"))
    post = Post(body.get("proba"), client, seq, body.get("dtype"), ids=body.get("ids"))
    learned = await hub_of(request).posts.labels(request.path_params["name"], post, body.get("y"))
    return answer(learned.fields(), packed=wants_msgpack(request.headers.get("accept", ""), kind_of(request)))


async def get_state(request: Request) -> Response:
    """Return a stream with all that it has learned, as bytes that `reprior.load` and PUT take."""
    _, served = named(request)
    return Response(served.stream.to_bytes(), media_type="application/octet-stream")


async def get_history(request: Request) -> Response:
    return answer(await views.history(*named(request), request.query_params))


# its alarms


def person(body: dict[str, Any], caller: str) -> tuple[str, str]:
    """Return who does something and the note about it."""
    by, note = body.get("by"), body.get("note", "")
    for name, text, most, least in (("by", by, 200, 1), ("note", note, 2000, 0)):
        if not isinstance(text, str) or not least <= len(text) <= most:
            fail(caller, name, f"be a text of {least} to {most} characters", repr(text)[:80])
    return str(by), str(note)


async def get_alarms(request: Request) -> Response:
    hub, served = named(request)
    return answer({"alarms": await hub.alarms.listed(served)})


async def acknowledge(request: Request) -> Response:
    body = await read_object(request, "acknowledge", ("by", "note", "next"))
    by, note = person(body, "acknowledge")
    then = check_choice(body.get("next", "restart"), "acknowledge", "next", ("restart", "accept"))
    done = Acknowledgement(by, note, then, address(request))
    name, number = request.path_params["name"], request.path_params["id"]
    return answer(await hub_of(request).alarms.acknowledge(name, number, done))


async def silence(request: Request) -> Response:
    hub = hub_of(request)
    body = await read_object(request, "silence", ("by", "note", "seconds"))
    by, note = person(body, "silence")
    seconds = check_number(body.get("seconds"), "silence", "seconds", low=0, high=LONGEST_SILENCE)
    wanted = Silence(hub.clock() + seconds, by, note, address(request))
    return answer({"silence": await hub.alarms.silence(request.path_params["name"], wanted)})


# model servers and their clients


async def post_event(request: Request) -> Response:
    hub, body = hub_of(request), await read_body(request)
    request.scope["app"].forwarder.put(request.headers, body)
    return answer(await inference.take_event(hub, request.headers, body, request.scope))


async def post_infer(request: Request) -> Response:
    name, length = request.path_params["name"], request.headers.get(inference.LENGTH)
    return await inference.infer(hub_of(request), name, await read_body(request), length)


async def get_model(request: Request) -> Response:
    _, served = named(request)
    return answer(inference.model(served))


async def model_ready(request: Request) -> Response:
    _, served = named(request)
    return answer({"name": served.name, "ready": True})


async def server_live(request: Request) -> Response:
    return answer({"live": True})


async def server_ready(request: Request) -> Response:
    if trouble := hub_of(request).trouble:
        raise Unavailable(trouble)
    return answer({"ready": True})


async def server_about(request: Request) -> Response:
    return answer({"name": "reprior", "version": version("reprior"), "extensions": ["binary_tensor_data"]})


STREAM, MODEL, VERSION = "/streams/{name}", "/v2/models/{name}", "/v2/models/{name}/versions/1"
READS = {
    "/": get_page, "/healthz": health, "/metrics": get_metrics, "/openapi.json": get_openapi,
    "/overview": get_overview, "/audit": get_audit, "/events": get_events, "/streams": get_streams,
    STREAM: get_stream, f"{STREAM}/history": get_history, f"{STREAM}/state": get_state,
    f"{STREAM}/versions": get_versions, f"{STREAM}/alarms": get_alarms,
    "/v2": server_about, "/v2/health/live": server_live, "/v2/health/ready": server_ready,
    MODEL: get_model, f"{MODEL}/ready": model_ready, VERSION: get_model, f"{VERSION}/ready": model_ready,
}  # fmt: skip
POSTS = {
    f"{STREAM}/samples": sample_route, f"{STREAM}/labels": post_labels, f"{STREAM}/versions": post_version,
    f"{STREAM}/alarms/{{id:int}}/acknowledge": acknowledge, f"{STREAM}/silence": silence,
    "/events/cloudevents": post_event, f"{MODEL}/infer": post_infer, f"{VERSION}/infer": post_infer,
}  # fmt: skip


def routes() -> list[Any]:
    """Return every route of the service."""
    return [
        *(Route(path, work) for path, work in READS.items()),
        *(Route(path, work, methods=["POST"]) for path, work in POSTS.items()),
        Route(STREAM, put_stream, methods=["PUT"]),
        Route(STREAM, delete_stream, methods=["DELETE"]),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
