"""The HTTP interface: every address, what answers it, and its description for machines (OpenAPI 3.1)."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from functools import wraps
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from reprior.service import changes, inference, views
from reprior.service.hub import Hub
from reprior.service.metrics import get_metrics
from reprior.service.sample_posts import post_samples
from reprior.service.wire import answer, hub_of

STATIC = Path(__file__).parent / "static"
JSON, MSGPACK = "application/json", "application/msgpack"
NUMBER, TEXT, FLAG, LIST = ({"type": kind} for kind in ("number", "string", "boolean", "array"))
WHOLE = {"type": "integer", "minimum": 0}
NUMBERS, TEXTS, WHOLES = ({"type": "array", "items": items} for items in (NUMBER, TEXT, WHOLE))
ROWS = {"type": "array", "items": NUMBERS}
NAME = {"type": "string", "minLength": 1, "maxLength": 200}
STREAM_NAME = NAME | {"pattern": r"^[A-Za-z0-9 _.:-]*[A-Za-z0-9 _:-]$"}
IDS = {"type": ["array", "null"], "items": NAME}
DTYPE = {"enum": ["f4", "f8", None]}
PERSON = {"by": NAME, "note": {"type": "string", "maxLength": 2000}}
OFFSET = {"client": NAME | {"type": ["string", "null"]},
          "seq": {"type": ["integer", "null"], "minimum": 0, "maximum": 2**53 - 1}}  # fmt: skip
ERRORS = {
    "400": "The body or the query is refused; the sentence says why.", "401": "A bearer token is needed.",
    "403": "Requests from pages of other sites may not change anything.", "404": "There is nothing of that name.",
    "405": "This address does not take this method.", "408": "The body came too slowly.",
    "409": "It exists already and differs, or this release cannot read it.", "413": "The body is too large.",
    "415": "The content type is not known.", "421": "The header Host must name this server.",
    "429": "Too many requests.", "503": "It cannot be stored now; send it again.",
}  # fmt: skip


def schema(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """Return the schema of an object; it may have other properties too."""
    return {"type": "object", "properties": properties, "required": list(required)}


def closed(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """Return the schema of an object without other properties."""
    return schema(required, **properties) | {"additionalProperties": False}


def between(low: int, high: float, kind: str = "integer") -> dict[str, Any]:
    return {"type": kind, "minimum": low, "maximum": high}


ANSWER = schema(("prior", "n"), proba=ROWS, prior=NUMBERS, n=WHOLE, repeated=FLAG,
                counted_at={"type": ["integer", "null"]}, gap=schema(first=WHOLE, last=WHOLE))  # fmt: skip
ACTS = schema(("share", "reason"), share=NUMBER, reason=TEXT, log_evidence={"type": ["number", "null"]},
              amplification=NUMBER)  # fmt: skip
STREAM = schema(
    ("name", "n", "classes", "source", "prior", "acts", "interval", "alarm", "diagnosis"),
    name=TEXT, n=WHOLE, labels=WHOLE, classes=TEXTS, named=FLAG, source=NUMBERS, prior=NUMBERS, acts=ACTS, method=TEXT,
    options=schema(), created=NUMBER, interval=schema(level=NUMBER, lower=NUMBERS, upper=NUMBERS, note=TEXT),
    seen={"type": ["number", "null"]}, rate=NUMBER, shift=NUMBER, alarm=schema(), clients=WHOLE, logits=FLAG,
    now=NUMBER, diagnosis={"type": ["object", "null"]},
)  # fmt: skip
DEFINITION = closed(
    source={"oneOf": [{"type": "array", "items": NUMBER, "minItems": 2},
                      {"type": "object", "additionalProperties": NUMBER, "minProperties": 2}]},
    classes=TEXTS, method=TEXT, options={"type": "object"},
    alarm={"oneOf": [FLAG, closed(alpha=NUMBER, mode={"enum": ["monitor", "ever"]}, run_length=NUMBER, exact=FLAG)]},
    stale_after={"type": ["number", "null"], "minimum": 0},
    heldout=closed(("proba", "y"), proba=ROWS, dtype={"enum": ["f4", "f8"]}, y=LIST),
)  # fmt: skip
TENSOR = schema(("name", "shape", "datatype"), name=TEXT, shape=WHOLES, datatype=TEXT, data=LIST)
SAMPLES = closed(("proba",), proba=ROWS, dtype=DTYPE, correct=FLAG, ids=IDS, **OFFSET)
LABELS = closed(("y",), proba={"anyOf": [ROWS, {"type": "null"}]}, ids=IDS, dtype=DTYPE, y=LIST, **OFFSET)
PACKED = (DEFINITION, SAMPLES, LABELS)  # bodies that may be msgpack too


async def get_page(hub: Hub, request: Request) -> Response:
    return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})


async def get_openapi(hub: Hub, request: Request) -> dict[str, Any]:
    return openapi()


class Operation(NamedTuple):
    """What answers one method of an address, and how it is described; one with a `body` writes."""

    work: Callable[..., Awaitable[Any]]  # takes the hub and the request, and returns an object or an answer
    summary: str
    answer: dict[str, Any] | None = None
    body: dict[str, Any] | None = None
    query: dict[str, Any] | None = None
    errors: tuple[str, ...] = ()  # beside those that any operation may give
    kind: str = JSON

    def described(self, in_path: list[str]) -> dict[str, Any]:
        """Return the operation as OpenAPI has it; `in_path` are the parameters in its address."""
        codes = {"400", "401", "405", "421", "429", *self.errors}
        codes |= {"404", "409"} if in_path else set()
        codes |= {"403", "408", "413", "415", "503"} if self.body is not None else set()
        refused = {JSON: {"schema": {"$ref": "#/components/schemas/Error"}}}
        done = {"description": "Done.", "content": {self.kind: {} if self.answer is None else {"schema": self.answer}}}
        made: dict[str, Any] = {
            "summary": self.summary, "security": [{}, {"bearer": []}],
            "responses": dict.fromkeys(("200", "201") if self.body is DEFINITION else ("200",), done)
            | {code: {"description": ERRORS[code], "content": refused} for code in sorted(codes)},
            "parameters": [{"name": name, "in": "path", "schema": STREAM_NAME if name == "name" else WHOLE,
                            "required": True} for name in in_path]
            + [{"name": name, "in": "query", "schema": value} for name, value in (self.query or {}).items()],
        }  # fmt: skip
        if self.body is not None:
            forms = {JSON: {"schema": self.body}} | ({MSGPACK: {"schema": {}}} if self.body in PACKED else {})
            made["requestBody"] = {"required": True, "content": forms}
        if self.body is DEFINITION:
            made["x-also"] = "A saved pipeline or stream as application/octet-stream is accepted too."
        return made


OF_SERVER = {
    "GET /healthz": Operation(views.health, "Health of the server", schema(("ok",), ok=FLAG), errors=("503",)),
    "GET /metrics": Operation(get_metrics, "Metrics for Prometheus", kind="text/plain"),
    "GET /events": Operation(views.get_events, "Follow the server, and a stream", query={"stream": TEXT},
                             errors=("404", "503"), kind="text/event-stream"),
    "GET /streams": Operation(
        views.get_streams, "List streams", schema(("total",), total=WHOLE, streams=LIST),
        query={"search": TEXT, "sort": {"enum": list(views.ORDERS)}, "offset": between(0, 10**9),
               "limit": between(0, views.MOST_STREAMS)}),
    "GET /overview": Operation(views.get_overview, "The whole server at a glance", schema(streams=WHOLE)),
    "GET /audit": Operation(views.get_audit, "Who did what, newest first", schema(("entries",), entries=LIST),
                            query={"stream": TEXT, "limit": between(1, views.MOST_ENTRIES)}),
    "GET /openapi.json": Operation(get_openapi, "This description", schema()),
    "POST /events/cloudevents": Operation(inference.post_event, "Take an event of KServe's payload logger",
                                          schema(("taken",), taken=FLAG), body={}, errors=("404",)),
    "GET /v2": Operation(inference.server_about, "Describe the server", schema(name=TEXT)),
    "GET /v2/health/live": Operation(inference.server_live, "Alive?", schema(live=FLAG)),
    "GET /v2/health/ready": Operation(inference.server_ready, "Ready?", schema(ready=FLAG), errors=("503",)),
}  # fmt: skip
OF_STREAM = {
    "PUT ": Operation(changes.put_stream, "Make a stream", STREAM, DEFINITION),
    "GET ": Operation(views.get_stream, "Read a stream", STREAM, query={"diagnosis": {"enum": [0, 1]}}),
    "DELETE ": Operation(changes.delete_stream, "Remove a stream", schema(deleted=TEXT),
                         closed(("confirm",), confirm=TEXT)),
    "POST /samples": Operation(post_samples, "Learn rows", ANSWER, SAMPLES),  # `App` calls it past the router
    "POST /labels": Operation(changes.post_labels, "Learn late labels", ANSWER, LABELS),
    "POST /versions": Operation(changes.post_version, "Begin a new model version", STREAM, DEFINITION, {"by": TEXT}),
    "GET /versions": Operation(views.get_versions, "Model versions, newest first",
                               schema(("versions",), versions=LIST)),
    "GET /state": Operation(views.get_state, "The stream as bytes", kind="application/octet-stream"),
    "GET /history": Operation(
        views.get_history, "The prior over time",
        schema(("t", "n", "prior"), t=NUMBERS, n=WHOLES, classes=WHOLES, prior=ROWS, lower=ROWS, upper=ROWS,
               shift=NUMBERS),
        query={"from": {"type": "number", "minimum": 0}, "to": {"type": "number", "minimum": 0},
               "points": between(2, views.MOST_POINTS), "top": between(0, views.MOST_LINES), "classes": TEXT,
               "heat": {"enum": [0, 1]}}),
    "GET /alarms": Operation(views.get_alarms, "Alarms, newest first", schema(("alarms",), alarms=LIST)),
    "POST /alarms/{id:int}/acknowledge": Operation(
        changes.acknowledge, "Acknowledge an alarm", schema(id=WHOLE, by=TEXT),
        closed(("by",), **PERSON, next={"enum": ["restart", "accept"]})),
    "POST /silence": Operation(
        changes.silence, "Hold back messages about a stream",
        schema(("silence",), silence={"type": ["object", "null"]}),
        closed(("by", "seconds"), **PERSON, seconds=between(0, changes.LONGEST_SILENCE, "number"))),
}  # fmt: skip
OF_MODEL = {
    "GET ": Operation(inference.get_model, "Describe a stream as a model", schema(name=TEXT)),
    "GET /ready": Operation(inference.model_ready, "Readiness of a stream", schema(ready=FLAG)),
    "POST /infer": Operation(
        inference.post_infer, "Learn samples and return them corrected", schema(model_name=TEXT, outputs=LIST),
        schema(("inputs",), inputs={"type": "array", "items": TENSOR, "minItems": 1, "maxItems": 1}, id=TEXT,
               parameters={"type": "object"})),
}  # fmt: skip
OPERATIONS = {
    (method, start + end): operation
    for start, below in {"": OF_SERVER, "/streams/{name}": OF_STREAM, "/v2/models/{name}": OF_MODEL,
                         "/v2/models/{name}/versions/1": OF_MODEL}.items()
    for where, operation in below.items() for method, end in [where.split(" ")]
}  # fmt: skip


def openapi() -> dict[str, Any]:
    """Return the description of every operation."""
    paths: dict[str, Any] = {}
    for (method, path), operation in OPERATIONS.items():
        shown = path.replace(":int", "")
        paths.setdefault(shown, {})[method.lower()] = operation.described(re.findall(r"{(\w+)}", shown))
    about = "Follow streams of predicted probabilities: estimate the class prior and correct samples."
    error = closed(("error", "code", "status"), error=TEXT, code=TEXT, status=WHOLE)
    return {
        "openapi": "3.1.0",
        "info": {"title": "reprior", "version": version("reprior"), "description": about},
        "paths": paths,
        "components": {"schemas": {"Error": error},
                       "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }  # fmt: skip


def routes() -> list[Any]:
    """Return every operation as a route for Starlette, with the page and its files."""

    def endpoint(work: Callable[..., Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
        @wraps(work)
        async def answered(request: Request) -> Response:
            value = await work(hub_of(request), request)
            return value if isinstance(value, Response) else answer(value)

        return answered

    return [
        Route("/", endpoint(get_page)), Mount("/static", StaticFiles(directory=STATIC)),
        *(Route(path, endpoint(operation.work), methods=[method]) for (method, path), operation in OPERATIONS.items()),
    ]  # fmt: skip
