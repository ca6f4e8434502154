"""The service's description for machines, OpenAPI 3.1, written by hand; tests hold it to the routes."""

from __future__ import annotations

import re
from importlib.metadata import version
from typing import Any, NamedTuple

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
SAMPLES = closed(("proba",), proba=ROWS, dtype=DTYPE, correct=FLAG, ids=IDS, **OFFSET)
LABELS = closed(("y",), proba={"anyOf": [ROWS, {"type": "null"}]}, ids=IDS, dtype=DTYPE, y=LIST, **OFFSET)
PACKED = (DEFINITION, SAMPLES, LABELS)  # bodies that may be msgpack too


class Operation(NamedTuple):
    """What one method of an address does; one with a `body` writes."""

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


SERVER = {
    "GET /healthz": Operation("Health of the server", schema(("ok",), ok=FLAG), errors=("503",)),
    "GET /metrics": Operation("Metrics for Prometheus", kind="text/plain"),
    "GET /events": Operation("Follow the server, and a stream", query={"stream": TEXT}, errors=("404", "503"),
                             kind="text/event-stream"),
    "GET /streams": Operation("List streams", schema(("total",), total=WHOLE, streams=LIST), query={
        "search": TEXT, "sort": {"enum": ["name", "alarm", "shift", "rate", "n", "seen"]},
        "offset": between(0, 10**9), "limit": between(0, 200)}),
    "GET /overview": Operation("The whole server at a glance", schema(streams=WHOLE)),
    "GET /audit": Operation("Who did what, newest first", schema(("entries",), entries=LIST),
                            query={"stream": TEXT, "limit": between(1, 1000)}),
    "GET /openapi.json": Operation("This description", schema()),
    "POST /events/cloudevents": Operation("Take an event of KServe's payload logger", schema(("taken",), taken=FLAG),
                                          body={}, errors=("404",)),
    "GET /v2": Operation("Describe the server", schema(name=TEXT)),
    "GET /v2/health/live": Operation("Alive?", schema(live=FLAG)),
    "GET /v2/health/ready": Operation("Ready?", schema(ready=FLAG), errors=("503",)),
}  # fmt: skip
OF_STREAM = {
    "PUT ": Operation("Make a stream", STREAM, DEFINITION),
    "GET ": Operation("Read a stream", STREAM, query={"diagnosis": {"enum": [0, 1]}}),
    "DELETE ": Operation("Remove a stream", schema(deleted=TEXT), closed(("confirm",), confirm=TEXT)),
    "POST /samples": Operation("Learn rows", ANSWER, SAMPLES),
    "POST /labels": Operation("Learn late labels", ANSWER, LABELS),
    "POST /versions": Operation("Begin a new model version", STREAM, DEFINITION, {"by": TEXT}),
    "GET /versions": Operation("Model versions, newest first", schema(("versions",), versions=LIST)),
    "GET /state": Operation("The stream as bytes", kind="application/octet-stream"),
    "GET /history": Operation(
        "The prior over time",
        schema(("t", "n", "prior"), t=NUMBERS, n=WHOLES, classes=WHOLES, prior=ROWS, lower=ROWS, upper=ROWS,
               shift=NUMBERS),
        query={"from": {"type": "number", "minimum": 0}, "to": {"type": "number", "minimum": 0},
               "points": between(2, 2000), "top": between(0, 50), "classes": TEXT, "heat": {"enum": [0, 1]}}),
    "GET /alarms": Operation("Alarms, newest first", schema(("alarms",), alarms=LIST)),
    "POST /alarms/{id}/acknowledge": Operation("Acknowledge an alarm", schema(id=WHOLE, by=TEXT),
                                               closed(("by",), **PERSON, next={"enum": ["restart", "accept"]})),
    "POST /silence": Operation("Hold back messages about a stream",
                               schema(("silence",), silence={"type": ["object", "null"]}),
                               closed(("by", "seconds"), **PERSON, seconds=between(0, 31622400, "number"))),
}  # fmt: skip
OF_MODEL = {
    "GET ": Operation("Describe a stream as a model", schema(name=TEXT)),
    "GET /ready": Operation("Readiness of a stream", schema(ready=FLAG)),
    "POST /infer": Operation(
        "Learn samples and return them corrected", schema(model_name=TEXT, outputs=LIST),
        schema(("inputs",), inputs={"type": "array", "items": TENSOR, "minItems": 1, "maxItems": 1}, id=TEXT,
               parameters={"type": "object"})),
}  # fmt: skip


def openapi() -> dict[str, Any]:
    """Return the whole description."""
    paths: dict[str, Any] = {}
    below = {"": SERVER, "/streams/{name}": OF_STREAM, "/v2/models/{name}": OF_MODEL,
             "/v2/models/{name}/versions/1": OF_MODEL}  # fmt: skip
    for start, operations in below.items():
        for where, operation in operations.items():
            method, end = where.split(" ")
            path = start + end
            paths.setdefault(path, {})[method.lower()] = operation.described(re.findall(r"{(\w+)}", path))
    about = "Follow streams of predicted probabilities: estimate the class prior and correct samples."
    error = closed(("error", "code", "status"), error=TEXT, code=TEXT, status=WHOLE)
    return {
        "openapi": "3.1.0",
        "info": {"title": "reprior", "version": version("reprior"), "description": about},
        "paths": paths,
        "components": {"schemas": {"Error": error},
                       "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}}},
    }  # fmt: skip
