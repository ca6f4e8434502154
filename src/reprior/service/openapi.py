"""The service's description for machines, OpenAPI 3.1, written by hand; tests hold it to the routes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

NUMBER, TEXT, FLAG = {"type": "number"}, {"type": "string"}, {"type": "boolean"}
WHOLE = {"type": "integer", "minimum": 0}
LIST = {"type": "array"}
JSON = "application/json"
ERROR = {"$ref": "#/components/schemas/Error"}
NUMBERS = {"type": "array", "items": NUMBER}
ROWS = {"type": "array", "items": NUMBERS}
IDS = {"type": ["array", "null"], "items": {"type": "string", "minLength": 1, "maxLength": 200}}
NAMED = {
    "name": "name",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"^[A-Za-z0-9 _.:-]*[A-Za-z0-9 _:-]$"},
}
ERRORS = {
    "400": "The body or the query is refused; the sentence says why.",
    "401": "A bearer token is needed.",
    "403": "Requests from pages of other sites may not change anything.",
    "404": "There is nothing of that name.",
    "405": "This address does not take this method.",
    "408": "The body came too slowly.",
    "409": "It exists already and differs, or this release cannot read it.",
    "413": "The body is too large.",
    "415": "The content type is not known.",
    "421": "The header Host must name this server.",
    "429": "Too many requests.",
    "503": "It cannot be stored now; send it again.",
}


def schema(properties: dict[str, Any], required: tuple[str, ...] = (), **more: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(required), **more}


def closed(properties: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    return schema(properties, required, additionalProperties=False)


OFFSET = {
    "client": {"type": ["string", "null"], "minLength": 1, "maxLength": 200},
    "seq": {"type": ["integer", "null"], "minimum": 0, "maximum": 2**53 - 1},
}
ANSWER = schema(
    {
        "proba": ROWS,
        "prior": NUMBERS,
        "n": WHOLE,
        "repeated": FLAG,
        "counted_at": {"type": ["integer", "null"]},
        "gap": schema({"first": WHOLE, "last": WHOLE}),
    },
    ("prior", "n"),
)
STREAM = schema(
    {
        "name": TEXT,
        "n": WHOLE,
        "labels": WHOLE,
        "classes": {"type": "array", "items": TEXT},
        "named": FLAG,
        "source": NUMBERS,
        "prior": NUMBERS,
        "acts": schema(
            {"share": NUMBER, "reason": TEXT, "log_evidence": {"type": ["number", "null"]}, "amplification": NUMBER},
            ("share", "reason"),
        ),
        "method": TEXT,
        "options": schema({}),
        "created": NUMBER,
        "interval": schema({"level": NUMBER, "lower": NUMBERS, "upper": NUMBERS, "note": TEXT}),
        "seen": {"type": ["number", "null"]},
        "rate": NUMBER,
        "shift": NUMBER,
        "alarm": schema({}),
        "clients": WHOLE,
        "logits": FLAG,
        "now": NUMBER,
        "diagnosis": {"type": ["object", "null"]},
    },
    ("name", "n", "classes", "source", "prior", "acts", "interval", "alarm", "diagnosis"),
)
DEFINITION = closed(
    {
        "source": {
            "oneOf": [
                {"type": "array", "items": NUMBER, "minItems": 2},
                {"type": "object", "additionalProperties": NUMBER, "minProperties": 2},
            ]
        },
        "classes": {"type": "array", "items": TEXT},
        "method": TEXT,
        "options": {"type": "object"},
        "alarm": {
            "oneOf": [
                FLAG,
                closed({"alpha": NUMBER, "mode": {"enum": ["monitor", "ever"]}, "run_length": NUMBER, "exact": FLAG}),
            ]
        },
        "stale_after": {"type": ["number", "null"], "minimum": 0},
        "heldout": closed({"proba": ROWS, "dtype": {"enum": ["f4", "f8"]}, "y": {"type": "array"}}, ("proba", "y")),
    }
)
PERSON = {
    "by": {"type": "string", "minLength": 1, "maxLength": 200},
    "note": {"type": "string", "maxLength": 2000},
}
TENSOR = schema(
    {"name": TEXT, "shape": {"type": "array", "items": WHOLE}, "datatype": TEXT, "data": {"type": "array"}},
    ("name", "shape", "datatype"),
)


def operation(
    summary: str, answer: dict[str, Any] | None, *, body: dict[str, Any] | None = None,
    query: dict[str, Any] | None = None, named: bool = True, errors: tuple[str, ...] = (), kind: str = JSON,
) -> dict[str, Any]:  # fmt: skip
    """Return one operation; one with a `body` writes. The errors that any operation may give are added."""
    shown = {"content": {kind: {"schema": answer} if answer is not None else {}}}
    codes = {"400", "401", "405", "421", "429", *errors}
    codes |= {"404", "409"} if named else set()
    codes |= {"403", "408", "413", "415", "503"} if body is not None else set()
    made: dict[str, Any] = {
        "summary": summary, "security": [{}, {"bearer": []}],
        "responses": {"200": {"description": "Done.", **shown}}
        | {code: {"description": ERRORS[code], "content": {JSON: {"schema": ERROR}}} for code in sorted(codes)},
        "parameters": [NAMED] * named
        + [{"name": key, "in": "query", "schema": value} for key, value in (query or {}).items()],
    }  # fmt: skip
    if body is not None:
        made["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return made


def also_msgpack(made: dict[str, Any]) -> dict[str, Any]:
    """Return an operation whose body may be msgpack."""
    made["requestBody"]["content"]["application/msgpack"] = {"schema": {}}
    return made


def creating(made: dict[str, Any], *codes: str) -> dict[str, Any]:
    """Return an operation that makes something of a definition, with these codes of success."""
    done = made["responses"].pop("200")
    made["responses"] = dict.fromkeys(codes, done) | made["responses"]
    return also_msgpack(made) | {"x-also": "A saved pipeline or stream as application/octet-stream is accepted too."}


def server_paths() -> dict[str, Any]:
    """Return the paths that are about the server as a whole."""
    listing = {
        "search": TEXT, "sort": {"enum": ["name", "alarm", "shift", "rate", "n", "seen"]},
        "offset": {"type": "integer", "minimum": 0, "maximum": 10**9},
        "limit": {"type": "integer", "minimum": 0, "maximum": 200},
    }  # fmt: skip
    entries = {"stream": TEXT, "limit": {"type": "integer", "minimum": 1, "maximum": 1000}}
    healthy = operation("Health of the server", schema({"ok": FLAG}, ("ok",)), named=False, errors=("503",))
    events = operation("Follow the server, and a stream", None, named=False, kind="text/event-stream",
                       query={"stream": TEXT}, errors=("404", "503"))  # fmt: skip
    streams = schema({"total": WHOLE, "streams": LIST}, ("total",))
    return {
        "/healthz": {"get": healthy},
        "/metrics": {"get": operation("Metrics for Prometheus", None, named=False, kind="text/plain")},
        "/events": {"get": events},
        "/streams": {"get": operation("List streams", streams, named=False, query=listing)},
        "/overview": {"get": operation("The whole server at a glance", schema({"streams": WHOLE}), named=False)},
        "/audit": {"get": operation("Who did what, newest first", schema({"entries": LIST}, ("entries",)),
                                    named=False, query=entries)},
        "/openapi.json": {"get": operation("This description", schema({}), named=False)},
    }  # fmt: skip


def stream_paths() -> dict[str, Any]:
    """Return the paths that are about one stream."""
    kinds = {"enum": ["f4", "f8", None]}
    samples = closed({"proba": ROWS, "dtype": kinds, "correct": FLAG, "ids": IDS, **OFFSET}, ("proba",))
    labels = closed({"proba": {"anyOf": [ROWS, {"type": "null"}]}, "ids": IDS, "dtype": kinds, "y": LIST, **OFFSET},
                    ("y",))  # fmt: skip
    silence = closed({**PERSON, "seconds": {"type": "number", "minimum": 0, "maximum": 31622400}}, ("by", "seconds"))
    past = {
        "from": {"type": "number", "minimum": 0}, "to": {"type": "number", "minimum": 0},
        "points": {"type": "integer", "minimum": 2, "maximum": 2000},
        "top": {"type": "integer", "minimum": 0, "maximum": 50}, "classes": TEXT, "heat": {"enum": [0, 1]},
    }  # fmt: skip
    wholes = {"type": "array", "items": WHOLE}
    history = schema({"t": NUMBERS, "n": wholes, "classes": wholes, "prior": ROWS, "lower": ROWS, "upper": ROWS,
                      "shift": NUMBERS}, ("t", "n", "prior"))  # fmt: skip
    acknowledge = operation("Acknowledge an alarm", schema({"id": WHOLE, "by": TEXT}),
                            body=closed({**PERSON, "next": {"enum": ["restart", "accept"]}}, ("by",)))  # fmt: skip
    acknowledge["parameters"] = [NAMED, {"name": "id", "in": "path", "required": True, "schema": WHOLE}]
    delete = operation("Remove a stream", schema({"deleted": TEXT}), body=closed({"confirm": TEXT}, ("confirm",)))
    silenced = schema({"silence": {"type": ["object", "null"]}}, ("silence",))
    renew = operation("Begin a new model version", STREAM, body=DEFINITION, query={"by": TEXT})
    stream = "/streams/{name}"
    return {
        stream: {
            "put": creating(operation("Make a stream", STREAM, body=DEFINITION), "200", "201"),
            "get": operation("Read a stream", STREAM, query={"diagnosis": {"enum": [0, 1]}}),
            "delete": delete,
        },
        f"{stream}/samples": {"post": also_msgpack(operation("Learn rows", ANSWER, body=samples))},
        f"{stream}/labels": {"post": also_msgpack(operation("Learn late labels", ANSWER, body=labels))},
        f"{stream}/versions": {
            "post": creating(renew, "200", "201"),
            "get": operation("Model versions, newest first", schema({"versions": LIST}, ("versions",))),
        },
        f"{stream}/state": {"get": operation("The stream as bytes", None, kind="application/octet-stream")},
        f"{stream}/history": {"get": operation("The prior over time", history, query=past)},
        f"{stream}/alarms": {"get": operation("Alarms, newest first", schema({"alarms": LIST}, ("alarms",)))},
        f"{stream}/alarms/{{id}}/acknowledge": {"post": acknowledge},
        f"{stream}/silence": {"post": operation("Hold back messages about a stream", silenced, body=silence)},
    }  # fmt: skip


def inference_paths() -> dict[str, Any]:
    """Return the paths that model servers and their clients use."""
    model = "/v2/models/{name}"
    tensors = {"type": "array", "items": TENSOR, "minItems": 1, "maxItems": 1}
    body = schema({"inputs": tensors, "id": TEXT, "parameters": {"type": "object"}}, ("inputs",))
    answer = schema({"model_name": TEXT, "outputs": LIST})
    infer = operation("Learn samples and return them corrected", answer, body=body)
    metadata = operation("Describe a stream as a model", schema({"name": TEXT}))
    ready = operation("Readiness of a stream", schema({"ready": FLAG}))
    event = operation("Take an event of KServe's payload logger", schema({"taken": FLAG}, ("taken",)), body={},
                      named=False, errors=("404",))  # fmt: skip
    return {
        "/events/cloudevents": {"post": event},
        "/v2": {"get": operation("Describe the server", schema({"name": TEXT}), named=False)},
        "/v2/health/live": {"get": operation("Alive?", schema({"live": FLAG}), named=False)},
        "/v2/health/ready": {"get": operation("Ready?", schema({"ready": FLAG}), named=False, errors=("503",))},
        model: {"get": metadata}, f"{model}/ready": {"get": ready}, f"{model}/infer": {"post": infer},
        f"{model}/versions/1": {"get": metadata}, f"{model}/versions/1/ready": {"get": ready},
        f"{model}/versions/1/infer": {"post": infer},
    }  # fmt: skip


def openapi() -> dict[str, Any]:
    """Return the whole description."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "reprior",
            "version": version("reprior"),
            "description": "Follow streams of predicted probabilities: estimate the class prior and correct samples.",
        },
        "paths": server_paths() | stream_paths() | inference_paths(),
        "components": {
            "schemas": {"Error": closed({"error": TEXT, "code": TEXT, "status": WHOLE}, ("error", "code", "status"))},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
