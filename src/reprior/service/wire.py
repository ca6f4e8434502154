"""Bodies in and out: JSON for people, msgpack with raw float32 for speed, and one shape for every error."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from reprior._check import InputError, fail
from reprior.service.commits import Unavailable
from reprior.service.hub import Conflict, Hub, Missing
from reprior.service.late import Unknown
from reprior.service.store import StoreError

MSGPACK = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
CODES = {400: "bad_input", 401: "no_token", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
         408: "too_slow", 409: "conflict", 413: "too_large", 415: "unknown_type", 421: "wrong_host",
         429: "too_often", 500: "internal", 503: "unavailable"}  # fmt: skip


class Refused(Exception):
    """A request that gets an error: a status and a sentence."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status, self.headers = status, headers or {}


def error_body(status: int, sentence: str) -> bytes:
    """Return the one shape that every error has."""
    return json_bytes({"error": sentence, "code": CODES.get(status, "error"), "status": status})


def error_response(error: Exception) -> Response | None:
    """Return the answer for an expected error, None for an unexpected one."""
    match error:
        case Refused():
            status, headers = error.status, error.headers
        case InputError():
            status, headers = 400, {}
        case Missing() | Unknown():
            status, headers = 404, {}
        case Conflict():
            status, headers = 409, {}
        case Unavailable() | StoreError():
            status, headers = 503, {"Retry-After": "1"}
        case _:
            return None
    return Response(error_body(status, str(error)), status, headers, media_type="application/json")


async def body_of(request: Request, most: int, seconds: float) -> bytes:
    """Return the body; refuse one that is compressed, too large or too slow."""
    declared = 0
    for name, value in request.scope["headers"]:
        if name == b"content-length":
            declared = int(value) if value.isdigit() else 0
        elif name == b"content-encoding" and value.strip().lower() not in (b"", b"identity"):
            coding = value.decode("latin-1")[:20]
            raise Refused(415, f"The body is compressed ({coding}). Send it without compression and without"
                          " Content-Encoding.")  # fmt: skip
    sentence = f"The body must be at most {most} bytes. Send fewer rows at once, or start the server with a larger"
    sentence += " --max-body."
    if declared > most:
        raise Refused(413, sentence, {"Connection": "close"})
    if request.scope.get("arrived"):  # all of it: there is nothing to wait for
        whole: bytes = (await request.receive()).get("body", b"")
        if len(whole) > most:
            raise Refused(413, sentence, {"Connection": "close"})
        return whole
    parts, size = [], 0
    try:
        async with asyncio.timeout(seconds):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise Refused(413, sentence, {"Connection": "close"})
                parts.append(part)
    except TimeoutError:
        raise Refused(408, f"The body must arrive within {seconds:g} seconds.", {"Connection": "close"}) from None
    return b"".join(parts)


class Sent(Response):  # type: ignore[misc]
    """A JSON or msgpack answer without the work that a general response does."""

    def __init__(self, body: bytes, kind: bytes) -> None:
        self.status_code, self.background, self.body = 200, None, body
        self.raw_headers = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]


def kinds_of(headers: list[tuple[bytes, bytes]]) -> tuple[str, bool]:
    """Return the content type of a request, and whether its answer is to be msgpack."""
    kind, accept = "application/json", ""
    for name, value in headers:
        if name == b"content-type":
            kind = value.decode("latin-1").split(";")[0].strip().lower()
        elif name == b"accept":
            accept = value.decode("latin-1")
    packed = any(found in accept for found in MSGPACK) or (kind in MSGPACK and "json" not in accept)
    return kind, packed


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


async def drain(receive: Any, most: int, seconds: float) -> None:
    """Read what is left of a body, up to `most` bytes, and forget it.

    A client that is still sending would find its connection reset, and would not see the answer.
    """
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while size <= most:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
    except TimeoutError:
        return


def kind_of(request: Request) -> str:
    """Return the content type without its parameters."""
    return str(request.headers.get("content-type", "application/json")).split(";")[0].strip().lower()


def parse_json(body: bytes, caller: str) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError as error:
        fail(caller, "body", "be JSON", f"{error.msg} at character {error.pos}",
             remedy="JSON has no NaN and no Infinity" if "NaN" in str(error.doc)[:1000000] else "")  # fmt: skip


def parse(body: bytes, kind: str, caller: str) -> dict[str, Any]:
    """Return the object that a JSON or msgpack body holds."""
    if kind in MSGPACK:
        try:
            value = msgpack.unpackb(body, strict_map_key=True, max_str_len=1 << 20)
        except Exception as error:  # msgpack raises a dozen kinds
            fail(caller, "body", "be one msgpack map", type(error).__name__)
    elif kind in ("application/json", "text/json", ""):
        value = parse_json(body, caller) if body else {}
    else:
        raise Refused(415, f"{caller}: the content type must be application/json or application/msgpack.")
    if not isinstance(value, dict):
        fail(caller, "body", "be an object", type(value).__name__)
    return value


def known_keys(value: dict[str, Any], known: tuple[str, ...], caller: str) -> None:
    """Refuse a key that nobody reads: a slip in its name would go unnoticed."""
    for key in value:
        if key not in known:
            fail(caller, "body", "have only the keys " + ", ".join(known), repr(str(key))[:80])


def json_bytes(value: Any) -> bytes:
    made: bytes = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return made


def answer_bytes(value: dict[str, Any], packed: bool) -> tuple[bytes, bytes]:
    """Return an object as JSON, or as msgpack with rows as raw numbers of the type they came in; and its type."""
    if not packed:
        return json_bytes(value), b"application/json"
    value = dict(value)
    for key, item in value.items():
        if isinstance(item, np.ndarray):
            value[key] = item.tobytes() if item.ndim == 2 else item.tolist()
    return msgpack.packb(value), b"application/msgpack"


def answer(value: dict[str, Any], status: int = 200, *, packed: bool = False) -> Response:
    """Return an object as an answer."""
    body, kind = answer_bytes(value, packed)
    return Response(body, status, media_type=kind.decode())


def wants_msgpack(request: Request) -> bool:
    """Return whether the answer is to be msgpack: as the request asks, or else as it came."""
    return kinds_of(request.scope["headers"])[1]
