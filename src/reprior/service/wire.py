"""Bodies in and out: JSON for people, msgpack with raw float32 for speed, and one shape for every error."""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np
import orjson
from starlette.requests import Request
from starlette.responses import Response

from reprior._check import InputError, fail
from reprior.service.errors import Refused, RequestError
from reprior.service.hub import Hub

CLOSE = {"Connection": "close"}
DRAIN_BYTES = 512 << 20  # of a refused body that are read, so that its sender reads the answer
MSGPACK = ("application/msgpack", "application/x-msgpack", "application/vnd.msgpack")
CODES = {400: "bad_input", 401: "no_token", 403: "forbidden", 404: "not_found", 405: "method_not_allowed",
         408: "too_slow", 409: "conflict", 413: "too_large", 415: "unknown_type", 421: "wrong_host",
         429: "too_often", 500: "internal", 503: "unavailable"}  # fmt: skip


def error_body(status: int, sentence: str) -> bytes:
    """Return the one shape that every error has."""
    return json_bytes({"error": sentence, "code": CODES.get(status, "error"), "status": status})


def error_response(error: Exception) -> Response | None:
    """Return the answer for an expected error, None for an unexpected one."""
    if not isinstance(error, (RequestError, InputError)):
        return None
    status, headers = (error.status, error.headers) if isinstance(error, RequestError) else (400, {})
    return Response(error_body(status, str(error)), status, headers, media_type="application/json")


async def body_of(scope: Any, receive: Any, most: int, seconds: float) -> bytes:
    """Return the body; refuse one that is compressed, too large or too slow. `scope` then notes that it was read."""
    headers = scope["header_values"]
    coding = headers.get(b"content-encoding", b"").decode("latin-1").strip()
    if coding.lower() not in ("", "identity"):
        raise Refused(415, f"The body is compressed ({coding[:20]}). Send it without compression and without"
                      " Content-Encoding.")  # fmt: skip
    declared = headers.get(b"content-length", b"")
    if declared.isdigit() and int(declared) > most:
        raise too_large(most)
    if scope.get("arrived"):  # all of it: there is nothing to wait for
        body: bytes = (await receive()).get("body", b"")
        scope["body_read"] = True
    else:
        try:
            async with asyncio.timeout(seconds):
                body = await parts_of(scope, receive, most)
        except TimeoutError:
            raise Refused(408, f"The body must arrive within {seconds:g} seconds.", CLOSE) from None
    if len(body) > most:
        raise too_large(most)
    return body


async def parts_of(scope: Any, receive: Any, most: int) -> bytes:
    """Return a body that comes in parts, as soon as it is complete or longer than `most` bytes."""
    parts, size, more = [], 0, True
    while more and size <= most:
        message = await receive()
        if message["type"] != "http.request":
            raise Refused(400, "The connection ended before the body did.", CLOSE)
        parts.append(message.get("body", b""))
        size, more = size + len(parts[-1]), bool(message.get("more_body"))
    scope["body_read"] = not more
    return b"".join(parts)


def too_large(most: int) -> Refused:
    return Refused(413, f"The body must be at most {most} bytes. Send fewer rows at once, or start the server with a"
                   " larger --max-body.", CLOSE)  # fmt: skip


def hub_of(request: Request) -> Hub:
    hub: Hub = request.scope["app"].hub
    return hub


async def read_body(request: Request) -> bytes:
    limits = hub_of(request).settings.limits
    return await body_of(request.scope, request.receive, limits.body, limits.body_seconds)


async def read_object(request: Request, caller: str, keys: tuple[str, ...]) -> dict[str, Any]:
    value = parse(await read_body(request), kind_of(request), caller)
    check_keys(value, keys, caller)
    return value


async def drain(receive: Any, seconds: float) -> None:
    """Read what is left of a body, up to DRAIN_BYTES, and forget it.

    A client that is still sending would find its connection reset, and would not see the answer.
    """
    size = 0
    try:
        async with asyncio.timeout(seconds):
            while size <= DRAIN_BYTES:
                message = await receive()
                size += len(message.get("body", b""))
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
    except TimeoutError:
        return


def content_type(text: str | None) -> str:
    """Return a content type without its parameters; without one, JSON is meant."""
    return "application/json" if text is None else text.split(";")[0].strip().lower()


def kind_of(request: Request) -> str:
    """Return the content type of a request."""
    return content_type(request.headers.get("content-type"))


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
        raise Refused(
            415,
            f"{caller}: the content type must be application/json or application/msgpack,"
            " or application/octet-stream for a saved pipeline or stream.",
        )
    if not isinstance(value, dict):
        fail(caller, "body", "be an object", type(value).__name__)
    return value


def check_keys(value: dict[str, Any], keys: tuple[str, ...], caller: str) -> None:
    """Refuse a key that nobody reads: a slip in its name would go unnoticed."""
    for key in value:
        if key not in keys:
            fail(caller, "body", "have only the keys " + ", ".join(keys), repr(str(key))[:80])


def json_bytes(value: Any) -> bytes:
    made: bytes = orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    return made


def pack(value: dict[str, Any]) -> bytes:
    """Return an object as msgpack, with rows as raw numbers of the type they came in."""
    value = dict(value)
    for key, item in value.items():
        if isinstance(item, np.ndarray):
            value[key] = item.tobytes() if item.ndim == 2 else item.tolist()
    packed: bytes = msgpack.packb(value)
    return packed


def answer(value: dict[str, Any], status: int = 200, *, packed: bool = False) -> Response:
    """Return an object as an answer."""
    if packed:
        return Response(pack(value), status, media_type=MSGPACK[0])
    return Response(json_bytes(value), status, media_type="application/json")


@lru_cache(maxsize=1_000)  # clients send few different ones
def wants_msgpack(accept: str, kind: str) -> bool:
    """Return whether the answer is to be msgpack: as the header Accept asks, or else as the body came."""
    return any(name in accept for name in MSGPACK) or (kind in MSGPACK and "json" not in accept)
