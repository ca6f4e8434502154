"""Requests that change something: streams are made, renewed and deleted, labels learned, alarms dealt with."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from reprior._check import check_choice, check_number, fail
from reprior.service import recipes, views
from reprior.service.definition import Recipe
from reprior.service.hub import Hub
from reprior.service.posts import Post
from reprior.service.receipts import check_seq
from reprior.service.views import stream_of
from reprior.service.wire import answer, kind_of, parse, read_body, read_object, wants_msgpack

LONGEST_SILENCE = 366 * 86_400.0  # seconds


async def recipe_in(hub: Hub, request: Request, caller: str, beside: tuple[str, ...] = ()) -> Recipe:
    """Return the recipe of a stream in a request; `beside` are parameters of the query that are for others."""
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


async def put_stream(hub: Hub, request: Request) -> Response:
    name = recipes.check_name(request.path_params["name"])
    return await made(hub, name, await hub.create(name, await recipe_in(hub, request, "PUT")))


async def post_version(hub: Hub, request: Request) -> Response:
    """Begin a new model version of a stream, made of the same as a new stream."""
    name, by = stream_of(hub, request).name, request.query_params.get("by", "")
    if len(by) > 200 or not (by.isprintable() or not by):
        fail("versions", "by", "be at most 200 printable characters", repr(by)[:80])
    recipe = await recipe_in(hub, request, "versions", ("by",))
    if recipe.n:
        fail("versions", "body", "hold a stream without samples, or a pipeline", f"one with {recipe.n} samples")
    return await made(hub, name, await hub.renew(name, recipe, by, address(request)))


async def delete_stream(hub: Hub, request: Request) -> dict[str, Any]:
    name = request.path_params["name"]
    if name not in hub.unreadable:
        hub.get(name)
    body = await read_object(request, "DELETE", ("confirm",))
    if body.get("confirm") != name:
        fail("DELETE", "confirm", f"be the stream's own name, {name!r}", repr(body.get("confirm"))[:80],
             remedy="All that it has learned goes with it")  # fmt: skip
    await hub.delete(name)
    return {"deleted": name}


async def post_labels(hub: Hub, request: Request) -> Response:
    body = await read_object(request, "labels", ("proba", "ids", "dtype", "y", "client", "seq"))
    client, seq = check_seq(body.get("client"), body.get("seq"))
    post = Post(body.get("proba"), client, seq, body.get("dtype"), ids=body.get("ids"))
    learned = await hub.posts.labels(request.path_params["name"], post, body.get("y"))
    return answer(learned.fields(), packed=wants_msgpack(request.headers.get("accept", ""), kind_of(request)))


def address(request: Request) -> str:
    """Return the address that a request came from."""
    return request.client.host if request.client else ""


async def read_person(request: Request, caller: str, more: str) -> dict[str, Any]:
    """Return a body that says who does something, with a note and one more key."""
    body = {"by": None, "note": "", **await read_object(request, caller, ("by", "note", more))}
    for name, least, most in (("by", 1, 200), ("note", 0, 2000)):
        if not isinstance(body[name], str) or not least <= len(body[name]) <= most:
            fail(caller, name, f"be a text of {least} to {most} characters", repr(body[name])[:80])
    return body


async def acknowledge(hub: Hub, request: Request) -> dict[str, Any]:
    body = await read_person(request, "acknowledge", "next")
    then = check_choice(body.get("next", "restart"), "acknowledge", "next", ("restart", "accept"))
    done = {"by": body["by"], "note": body["note"], "next": then}
    return await hub.alarms.acknowledge(request.path_params["name"], request.path_params["id"], done, address(request))


async def silence(hub: Hub, request: Request) -> dict[str, Any]:
    body = await read_person(request, "silence", "seconds")
    seconds = check_number(body.get("seconds"), "silence", "seconds", low=0, high=LONGEST_SILENCE)
    about = {"until": hub.clock() + seconds, "by": body["by"], "note": body["note"]}
    return {"silence": await hub.alarms.silence(request.path_params["name"], about, address(request))}
