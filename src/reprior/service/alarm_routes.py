"""What people on call read and do over HTTP: alarms, acknowledgements, silences, the audit and the overview."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from reprior._check import check_choice, check_number, fail
from reprior.service.alarm_store import Acknowledgement, Silence
from reprior.service.overview import overview
from reprior.service.views import number
from reprior.service.wire import answer, hub_of, read_object

MOST_ENTRIES = 1_000  # of the audit in one answer
LONGEST_SILENCE = 366 * 86_400.0  # seconds


def person(body: dict[str, Any], caller: str) -> tuple[str, str]:
    """Return who does something and the note about it."""
    by, note = body.get("by"), body.get("note", "")
    for name, text, most, least in (("by", by, 200, 1), ("note", note, 2000, 0)):
        if not isinstance(text, str) or not least <= len(text) <= most:
            fail(caller, name, f"be a text of {least} to {most} characters", repr(text)[:80])
    return str(by), str(note)


def address(request: Request) -> str:
    """Return the address that a request came from."""
    return request.client.host if request.client else ""


async def get_alarms(request: Request) -> Response:
    hub = hub_of(request)
    return answer({"alarms": await hub.alarms.listed(hub.get(request.path_params["name"]))})


async def acknowledge(request: Request) -> Response:
    body = await read_object(request, "acknowledge", ("by", "note", "next"))
    by, note = person(body, "acknowledge")
    then = check_choice(body.get("next", "restart"), "acknowledge", "next", ("restart", "accept"))
    done = Acknowledgement(by, note, then, address(request))
    return answer(await hub_of(request).acknowledge(request.path_params["name"], request.path_params["id"], done))


async def silence(request: Request) -> Response:
    hub = hub_of(request)
    body = await read_object(request, "silence", ("by", "note", "seconds"))
    by, note = person(body, "silence")
    seconds = check_number(body.get("seconds"), "silence", "seconds", low=0, high=LONGEST_SILENCE)
    wanted = Silence(hub.clock() + seconds, by, note, address(request))
    return answer({"silence": await hub.silence(request.path_params["name"], wanted)})


async def get_audit(request: Request) -> Response:
    hub, query = hub_of(request), request.query_params
    most = int(number(query, "limit", 100, 1, MOST_ENTRIES, whole=True))
    store = hub.alarms.store
    entries = [] if store is None else await hub.workers.read(store.audit, query.get("stream"), most)
    return answer({"entries": entries})


async def get_overview(request: Request) -> Response:
    return answer(await overview(hub_of(request)))


def routes() -> list[Route]:
    """Return the routes of this module."""
    stream = "/streams/{name}"
    return [
        Route("/overview", get_overview),
        Route("/audit", get_audit),
        Route(f"{stream}/alarms", get_alarms),
        Route(f"{stream}/alarms/{{id:int}}/acknowledge", acknowledge, methods=["POST"]),
        Route(f"{stream}/silence", silence, methods=["POST"]),
    ]
