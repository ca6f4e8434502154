"""The service's description for machines, OpenAPI 3.1, written by hand; tests hold it to the routes."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

NUMBER, TEXT, FLAG = {"type": "number"}, {"type": "string"}, {"type": "boolean"}
WHOLE = {"type": "integer", "minimum": 0}
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
    "403": "A page from elsewhere may not change anything.",
    "404": "There is nothing of that name.",
    "405": "This address does not take this method.",
    "408": "The body came too slowly.",
    "409": "It is there already, and different, or cannot be read by this release.",
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
    ("name", "n", "classes", "source", "prior", "interval", "alarm", "diagnosis"),
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
    summary: str,
    answer: dict[str, Any] | None,
    *,
    body: dict[str, Any] | None = None,
    query: dict[str, Any] | None = None,
    named: bool = True,
    also: tuple[str, ...] = (),
    kind: str = "application/json",
    writes: bool = False,
    packed: bool = False,
    status: tuple[str, ...] = ("200",),
) -> dict[str, Any]:
    """Return one operation; the errors that any may give are added."""
    shown = {"content": {kind: {"schema": answer} if answer is not None else {}}}
    errors = ["400", "401", "405", "421", "429", *also] + ["404", "409"] * named + ["403", "408", "413", "415"] * writes
    made: dict[str, Any] = {
        "summary": summary,
        "security": [{}, {"bearer": []}],
        "responses": {code: {"description": "Done.", **shown} for code in status}
        | {
            code: {
                "description": ERRORS[code],
                "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}},
            }
            for code in sorted(set(errors))
        },
        "parameters": [NAMED] * named
        + [{"name": key, "in": "query", "schema": value} for key, value in (query or {}).items()],
    }
    if body is not None:
        content = {"application/json": {"schema": body}}
        if packed:
            content["application/msgpack"] = {"schema": {}}
        made["requestBody"] = {"required": True, "content": content}
    return made


def openapi() -> dict[str, Any]:
    """Return the whole description."""
    stream, model = "/streams/{name}", "/v2/models/{name}"
    samples = closed({"proba": ROWS, "dtype": {"enum": ["f4", "f8", None]}, "correct": FLAG, "ids": IDS, **OFFSET},
                     ("proba",))  # fmt: skip
    labels = closed(
        {
            "proba": {"anyOf": [ROWS, {"type": "null"}]},
            "ids": IDS,
            "dtype": {"enum": ["f4", "f8", None]},
            "y": {"type": "array"},
            **OFFSET,
        },
        ("y",),
    )
    acknowledged = closed(
        {
            **PERSON,
            "next": {"enum": ["restart", "accept"]},
        },
        ("by",),
    )
    silence = closed({**PERSON, "seconds": {"type": "number", "minimum": 0, "maximum": 31622400}}, ("by", "seconds"))
    listing = {
        "search": TEXT,
        "sort": {"enum": ["name", "alarm", "shift", "rate", "n", "seen"]},
        "offset": {"type": "integer", "minimum": 0, "maximum": 10**9},
        "limit": {"type": "integer", "minimum": 0, "maximum": 200},
    }
    past = {
        "from": {"type": "number", "minimum": 0},
        "to": {"type": "number", "minimum": 0},
        "points": {"type": "integer", "minimum": 2, "maximum": 2000},
        "top": {"type": "integer", "minimum": 0, "maximum": 50},
        "classes": TEXT,
        "heat": {"enum": [0, 1]},
    }
    history = schema(
        {
            "t": NUMBERS,
            "n": {"type": "array", "items": WHOLE},
            "classes": {"type": "array", "items": WHOLE},
            "prior": ROWS,
            "lower": ROWS,
            "upper": ROWS,
            "shift": NUMBERS,
        },
        ("t", "n", "prior"),
    )
    infer = operation(
        "Learn rows and answer with them corrected",
        schema({"model_name": TEXT, "outputs": {"type": "array"}}),
        body=schema(
            {
                "inputs": {"type": "array", "items": TENSOR, "minItems": 1, "maxItems": 1},
                "id": TEXT,
                "parameters": {"type": "object"},
            },
            ("inputs",),
        ),
        writes=True,
        also=("503",),
    )
    metadata = operation("Describe a stream as a model", schema({"name": TEXT}))
    ready = operation("Say whether a stream is ready", schema({"ready": FLAG}))
    ack = operation(
        "Say who has dealt with an alarm",
        schema({"id": WHOLE, "by": TEXT}),
        body=acknowledged,
        writes=True,
        also=("503",),
    )
    ack["parameters"] = [NAMED, {"name": "id", "in": "path", "required": True, "schema": WHOLE}]
    event = operation(
        "Take an event of KServe's payload logger",
        schema({"taken": FLAG}, ("taken",)),
        body={},
        named=False,
        writes=True,
        also=("404", "503"),
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "reprior",
            "version": version("reprior"),
            "description": "Streams of a classifier's outputs: learn them, know the prior, correct the next.",
        },
        "paths": {
            "/healthz": {
                "get": operation("Say whether all is well", schema({"ok": FLAG}, ("ok",)), named=False, also=("503",))
            },
            "/metrics": {"get": operation("Metrics for Prometheus", None, named=False, kind="text/plain")},
            "/events": {
                "get": operation(
                    "Follow the server, and a stream",
                    None,
                    named=False,
                    kind="text/event-stream",
                    query={"stream": TEXT},
                    also=("404", "503"),
                )
            },
            "/streams": {
                "get": operation(
                    "List streams",
                    schema({"total": WHOLE, "streams": {"type": "array"}}, ("total",)),
                    named=False,
                    query=listing,
                )
            },
            stream: {
                "put": operation(
                    "Make a stream",
                    STREAM,
                    body=DEFINITION,
                    writes=True,
                    also=("409", "503"),
                    packed=True,
                    status=("200", "201"),
                )
                | {"x-also": "A saved pipeline or stream as application/octet-stream is taken too."},
                "get": operation("Read a stream", STREAM, query={"diagnosis": {"enum": [0, 1]}}),
                "delete": operation(
                    "Remove a stream",
                    schema({"deleted": TEXT}),
                    body=closed({"confirm": TEXT}, ("confirm",)),
                    writes=True,
                    also=("503",),
                ),
            },
            f"{stream}/samples": {
                "post": operation("Learn rows", ANSWER, body=samples, writes=True, also=("503",), packed=True)
            },
            f"{stream}/labels": {
                "post": operation("Take in late labels", ANSWER, body=labels, writes=True, also=("503",), packed=True)
            },
            f"{stream}/state": {"get": operation("The stream as bytes", None, kind="application/octet-stream")},
            f"{stream}/history": {"get": operation("The prior over time", history, query=past)},
            f"{stream}/alarms": {
                "get": operation("Alarms, newest first", schema({"alarms": {"type": "array"}}, ("alarms",)))
            },
            f"{stream}/alarms/{{id}}/acknowledge": {"post": ack},
            f"{stream}/silence": {
                "post": operation(
                    "Hold back messages about a stream",
                    schema({"silence": {"type": ["object", "null"]}}, ("silence",)),
                    body=silence,
                    writes=True,
                    also=("503",),
                )
            },
            "/overview": {"get": operation("The whole server at a glance", schema({"streams": WHOLE}), named=False)},
            "/audit": {
                "get": operation(
                    "Who acknowledged and silenced what, newest first",
                    schema({"entries": {"type": "array"}}, ("entries",)),
                    named=False,
                    query={"stream": TEXT, "limit": {"type": "integer", "minimum": 1, "maximum": 1000}},
                )
            },
            "/events/cloudevents": {"post": event},
            "/v2": {"get": operation("Describe the server", schema({"name": TEXT}), named=False)},
            "/v2/health/live": {"get": operation("Alive?", schema({"live": FLAG}), named=False)},
            "/v2/health/ready": {"get": operation("Ready?", schema({"ready": FLAG}), named=False, also=("503",))},
            model: {"get": metadata},
            f"{model}/ready": {"get": ready},
            f"{model}/infer": {"post": infer},
            f"{model}/versions/1": {"get": metadata},
            f"{model}/versions/1/ready": {"get": ready},
            f"{model}/versions/1/infer": {"post": infer},
            "/openapi.json": {"get": operation("This description", schema({}), named=False)},
        },
        "components": {
            "schemas": {"Error": closed({"error": TEXT, "code": TEXT, "status": WHOLE}, ("error", "code", "status"))},
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
