"""The service's description for machines, OpenAPI 3.1, written by hand; tests hold it to the routes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

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


def between(low: int, high: int, kind: str = "integer") -> dict[str, Any]:
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


def parameter(name: str, where: str, value: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": where, "schema": value} | ({"required": True} if where == "path" else {})


def operation(
    summary: str, answer: dict[str, Any] | None, *, body: dict[str, Any] | None = None, msgpack: bool = False,
    query: dict[str, Any] | None = None, in_path: tuple[str, ...] = ("name",), errors: tuple[str, ...] = (),
    kind: str = JSON, done: tuple[str, ...] = ("200",),
) -> dict[str, Any]:  # fmt: skip
    """Return one operation; one with a `body` writes. The errors that any operation may give are added."""
    codes = {"400", "401", "405", "421", "429", *errors}
    codes |= {"404", "409"} if in_path else set()
    codes |= {"403", "408", "413", "415", "503"} if body is not None else set()
    success = {"description": "Done.", "content": {kind: {} if answer is None else {"schema": answer}}}
    refused = {"schema": {"$ref": "#/components/schemas/Error"}}
    made: dict[str, Any] = {
        "summary": summary, "security": [{}, {"bearer": []}],
        "responses": dict.fromkeys(done, success)
        | {code: {"description": ERRORS[code], "content": {JSON: refused}} for code in sorted(codes)},
        "parameters": [parameter(name, "path", STREAM_NAME if name == "name" else WHOLE) for name in in_path]
        + [parameter(name, "query", value) for name, value in (query or {}).items()],
    }  # fmt: skip
    if body is not None:
        forms = {JSON: {"schema": body}} | ({MSGPACK: {"schema": {}}} if msgpack else {})
        made["requestBody"] = {"required": True, "content": forms}
    if body is DEFINITION:
        made["x-also"] = "A saved pipeline or stream as application/octet-stream is accepted too."
    return made


def server_paths() -> dict[str, Any]:
    """Return the paths that are about the server as a whole."""
    listing = {"search": TEXT, "sort": {"enum": ["name", "alarm", "shift", "rate", "n", "seen"]},
               "offset": between(0, 10**9), "limit": between(0, 200)}  # fmt: skip
    return {
        "/healthz": {"get": operation("Health of the server", schema(("ok",), ok=FLAG), in_path=(), errors=("503",))},
        "/metrics": {"get": operation("Metrics for Prometheus", None, in_path=(), kind="text/plain")},
        "/events": {"get": operation("Follow the server, and a stream", None, in_path=(), kind="text/event-stream",
                                     query={"stream": TEXT}, errors=("404", "503"))},
        "/streams": {"get": operation("List streams", schema(("total",), total=WHOLE, streams=LIST), in_path=(),
                                      query=listing)},
        "/overview": {"get": operation("The whole server at a glance", schema(streams=WHOLE), in_path=())},
        "/audit": {"get": operation("Who did what, newest first", schema(("entries",), entries=LIST), in_path=(),
                                    query={"stream": TEXT, "limit": between(1, 1000)})},
        "/openapi.json": {"get": operation("This description", schema(), in_path=())},
    }  # fmt: skip


def stream_paths() -> dict[str, Any]:
    """Return the paths that are about one stream."""
    samples = closed(("proba",), proba=ROWS, dtype=DTYPE, correct=FLAG, ids=IDS, **OFFSET)
    labels = closed(("y",), proba={"anyOf": [ROWS, {"type": "null"}]}, ids=IDS, dtype=DTYPE, y=LIST, **OFFSET)
    past = {"from": {"type": "number", "minimum": 0}, "to": {"type": "number", "minimum": 0},
            "points": between(2, 2000), "top": between(0, 50), "classes": TEXT, "heat": {"enum": [0, 1]}}  # fmt: skip
    history = schema(("t", "n", "prior"), t=NUMBERS, n=WHOLES, classes=WHOLES, prior=ROWS, lower=ROWS, upper=ROWS,
                     shift=NUMBERS)  # fmt: skip
    made: dict[str, Any] = {"body": DEFINITION, "msgpack": True, "done": ("200", "201")}
    stream = "/streams/{name}"
    return {
        stream: {
            "put": operation("Make a stream", STREAM, **made),
            "get": operation("Read a stream", STREAM, query={"diagnosis": {"enum": [0, 1]}}),
            "delete": operation("Remove a stream", schema(deleted=TEXT), body=closed(("confirm",), confirm=TEXT)),
        },
        f"{stream}/samples": {"post": operation("Learn rows", ANSWER, body=samples, msgpack=True)},
        f"{stream}/labels": {"post": operation("Learn late labels", ANSWER, body=labels, msgpack=True)},
        f"{stream}/versions": {
            "post": operation("Begin a new model version", STREAM, query={"by": TEXT}, **made),
            "get": operation("Model versions, newest first", schema(("versions",), versions=LIST)),
        },
        f"{stream}/state": {"get": operation("The stream as bytes", None, kind="application/octet-stream")},
        f"{stream}/history": {"get": operation("The prior over time", history, query=past)},
        f"{stream}/alarms": {"get": operation("Alarms, newest first", schema(("alarms",), alarms=LIST))},
        f"{stream}/alarms/{{id}}/acknowledge": {"post": operation(
            "Acknowledge an alarm", schema(id=WHOLE, by=TEXT), in_path=("name", "id"),
            body=closed(("by",), **PERSON, next={"enum": ["restart", "accept"]}))},
        f"{stream}/silence": {"post": operation(
            "Hold back messages about a stream", schema(("silence",), silence={"type": ["object", "null"]}),
            body=closed(("by", "seconds"), **PERSON, seconds=between(0, 31622400, "number")))},
    }  # fmt: skip


def inference_paths() -> dict[str, Any]:
    """Return the paths that model servers and their clients use."""
    tensors = {"type": "array", "items": TENSOR, "minItems": 1, "maxItems": 1}
    body = schema(("inputs",), inputs=tensors, id=TEXT, parameters={"type": "object"})
    model = {
        "": {"get": operation("Describe a stream as a model", schema(name=TEXT))},
        "/ready": {"get": operation("Readiness of a stream", schema(ready=FLAG))},
        "/infer": {"post": operation("Learn samples and return them corrected", schema(model_name=TEXT, outputs=LIST),
                                     body=body)},
    }  # fmt: skip
    return {
        "/events/cloudevents": {"post": operation("Take an event of KServe's payload logger",
                                                  schema(("taken",), taken=FLAG), body={}, in_path=(),
                                                  errors=("404",))},
        "/v2": {"get": operation("Describe the server", schema(name=TEXT), in_path=())},
        "/v2/health/live": {"get": operation("Alive?", schema(live=FLAG), in_path=())},
        "/v2/health/ready": {"get": operation("Ready?", schema(ready=FLAG), in_path=(), errors=("503",))},
        **{f"/v2/models/{{name}}{which}{end}": about for which in ("", "/versions/1") for end, about in model.items()},
    }  # fmt: skip


def openapi() -> dict[str, Any]:
    """Return the whole description."""
    about = "Follow streams of predicted probabilities: estimate the class prior and correct samples."
    bearer = {"type": "http", "scheme": "bearer"}
    error = closed(("error", "code", "status"), error=TEXT, code=TEXT, status=WHOLE)
    return {
        "openapi": "3.1.0",
        "info": {"title": "reprior", "version": version("reprior"), "description": about},
        "paths": server_paths() | stream_paths() | inference_paths(),
        "components": {"schemas": {"Error": error}, "securitySchemes": {"bearer": bearer}},
    }  # fmt: skip
